"""The fault kill-browser, small; and its judge can say no."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent3.protocols.nlweb.browser.chromium import Chrome
from faults.kill_browser import SECONDS, descendants, judged, kill_browser

GOOD: list[dict[str, Any]] = [
    {"what": "a", "status": "found", "why": "", "seconds": 0.5},
    {"what": "b", "status": "bought", "why": "", "seconds": 0.5},
    {"what": "c", "status": "failed", "why": "interrupted: the browser went away", "seconds": 0.5},
]


@pytest.mark.browser
def test_of_a_driver_that_is_killed_no_error_is_left_unheard() -> None:
    complaints: list[str] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, told: complaints.append(f"{told['message']}: {told.get('exception')}"))
        before = descendants(os.getpid())
        chrome = Chrome()
        await chrome.start()
        drivers = [pid for pid in descendants(os.getpid()) - before if b"run-driver" in _command(pid)]
        os.kill(drivers[0], signal.SIGKILL)
        async with asyncio.timeout(60):
            while await chrome.is_responding():
                await asyncio.sleep(0.01)
        await chrome.aclose()

    asyncio.run(story())
    gc.collect()
    assert complaints == []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


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
