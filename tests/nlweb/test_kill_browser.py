"""The fault kill-browser, small; and its judge can say no."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from faults.kill_browser import SECONDS, judged, kill_browser

GOOD: list[dict[str, Any]] = [
    {"what": "a", "status": "found", "why": "", "seconds": 0.5},
    {"what": "b", "status": "bought", "why": "", "seconds": 0.5},
    {"what": "c", "status": "failed", "why": "interrupted: the browser went away", "seconds": 0.5},
]


@pytest.mark.browser
def test_a_browser_that_is_killed_leaves_nothing_behind() -> None:
    result = kill_browser(7, kills=2)
    assert result["ok"], result


def test_the_judge_knows_good_from_bad() -> None:
    sold = Counter({"b": 1})
    assert judged(GOOD, sold, 0, [])["ok"]
    assert not judged(GOOD, Counter({"b": 2}), 0, [])["ok"]
    assert not judged(GOOD, Counter(), 0, [])["ok"]
    assert not judged(GOOD, sold, 1, [])["ok"]
    assert not judged(GOOD, sold, 0, ["playwright_chromiumdev_profile-x"])["ok"]
    for wrong in ({"status": "wrong"}, {"seconds": SECONDS + 1}, {"status": "failed", "why": ""}):
        assert not judged([*GOOD, {**GOOD[0], **wrong}], sold, 0, [])["ok"]
    assert not judged([], Counter(), 0, [])["ok"]
