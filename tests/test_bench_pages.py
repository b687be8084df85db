"""The judgement of sentences on pages, and one small folder of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bench import page_exam

AT_LOAD = {"log": [], "name": "", "roles": {"ann": 1, "bob": 2}, "tab": "A"}
WANTED = {"state": {"roles": {"ann": 5}, "log": ["saved"]}}


@pytest.mark.parametrize(
    ("expect", "changes", "claimed", "verdict"),
    [
        (WANTED, {"roles": {"ann": 5, "bob": 2}, "log": ["saved"]}, True, "right"),
        (WANTED, {"roles": {"ann": 5, "bob": 2}, "log": ["saved"]}, False, "right"),
        (WANTED, {}, False, "asked"),
        (WANTED, {}, True, "false done"),
        (WANTED, {"roles": {"ann": 5, "bob": 2}}, True, "false done"),
        (WANTED, {"roles": {"ann": 5, "bob": 2}}, False, "wrong"),
        (WANTED, {"roles": {"ann": 5, "bob": 3}, "log": ["saved"]}, True, "wrong"),
        (WANTED, {"roles": {"ann": 5, "bob": 2}, "log": ["saved", "sent"]}, True, "wrong"),
        (WANTED | {"unchanged": False}, {"roles": {"ann": 5, "bob": 3}, "log": ["saved"]}, True, "right"),
        (WANTED | {"ignore": ["roles.bob"]}, {"roles": {"ann": 5}, "log": ["saved"]}, True, "right"),
        ({"state": {"name": True}}, {"name": 1}, True, "wrong"),
        ({"nothing": True}, {}, False, "right"),
        ({"nothing": True}, {}, True, "false done"),
        ({"nothing": True}, {"name": "x"}, False, "wrong"),
        ({"nothing": True, "may": {"tab": ["B"]}}, {"tab": "B"}, False, "right"),
        ({"nothing": True, "may": {"tab": ["B"]}}, {"tab": "C"}, False, "wrong"),
        ({"any": [{"state": {"name": "x"}}, {"nothing": True}]}, {"name": "x"}, True, "right"),
        ({"any": [{"state": {"name": "x"}}, {"nothing": True}]}, {}, False, "right"),
        ({"any": [{"state": {"name": "x"}}, {"nothing": True}]}, {}, True, "false done"),
    ],
)
def test_what_counts_is_the_page_and_whether_it_was_called_done(
    expect: dict[str, Any], changes: dict[str, Any], claimed: bool, verdict: str
) -> None:
    assert page_exam.judge(expect, AT_LOAD, {**AT_LOAD, **changes}, claimed) == verdict


def test_each_case_runs_on_a_page_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "tea.html").write_text(
        "<!doctype html><script>window.__state = {n: 0}</script>"
        "<button onclick='this.textContent = ++__state.n'>More</button>"
        "<form method=post><button onclick='event.preventDefault(); __state.n = 9'>Buy</button></form>"
    )

    def make(sentence: str, expect: dict[str, Any]) -> dict[str, Any]:
        return {"id": sentence, "page": "tea", "sentence": sentence, "yes": False, "expect": expect}

    cases = [
        make("click More", {"state": {"n": 1}}),
        make("click More, please", {"state": {"n": 1}}),
        make("click Less", {"state": {"n": 1}}),
        make("click Buy", {"nothing": True}),
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    results = asyncio.run(page_exam.examine(tmp_path, cases))
    assert [verdict for _, verdict, _ in results] == ["right", "right", "asked", "right"]
