"""Sentences on pages that nobody described: how often the page ends as asked, and how often it does not.

A folder holds ``pages/*.html``, each of which keeps what was done to it in ``window.__state``, and ``cases.json`` with
sentences and the state that each should lead to. Every case runs as ``agent3 web run URL SENTENCE`` does, in a context
of its own, on loopback. What counts is the state of the page and whether it was called done, not the words.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from agent3.errors import Agent3Error, SetupError
from bench.harness import Options, Result, Row, bench, say
from bench.miniwob import serve

__all__ = ["Verdict", "examine", "judge", "measure"]

Verdict = Literal["right", "asked", "wrong", "false done"]
_BEST_FIRST: tuple[Verdict, ...] = ("right", "asked", "false done", "wrong")
_STATE = "() => JSON.parse(JSON.stringify(window.__state))"
_LATE_SECONDS = 1.0
_CASE_SECONDS = 60.0


@bench("pages", "Sentences on the pages of a FOLDER that nobody described: right, asked, wrong, false done (--tasks)")
def measure(options: Options) -> Result:
    """Run every case of the folder, or those of the pages and ids that ``--tasks`` names."""
    if len(options.files) != 1:
        raise SystemExit("Give one folder: python -m bench pages FOLDER")
    folder = Path(options.files[0])
    cases = json.loads((folder / "cases.json").read_text())
    chosen = [case for case in cases if not options.tasks or {case["id"], case["page"]} & {*options.tasks}]
    tally: dict[str, Counter[Verdict]] = defaultdict(Counter)
    for case, verdict, told in asyncio.run(examine(folder, chosen)):
        for key in ("all", case["kind"], f"{case['kind']} {case['lang']}"):
            tally[key][verdict] += 1
        if verdict in ("wrong", "false done") or (verdict == "asked" and options.tasks):
            say(f"{case['id']} {case['kind']} {verdict}: {case['sentence']}\n    {told}")
    rows = [
        Row(
            key,
            errors=counts["wrong"] + counts["false done"],
            extra={"cases": counts.total()}
            | {verdict.replace(" ", "_"): counts[verdict] for verdict in ("right", "asked", "wrong", "false done")},
        )
        for key, counts in sorted(tally.items())
    ]
    return Result(
        rows, {f"right of {key}": round(tally[key]["right"] / tally[key].total(), 3) for key in sorted(tally)}
    )


async def examine(
    folder: Path, cases: Sequence[Mapping[str, Any]], *, at_once: int = 3
) -> list[tuple[Mapping[str, Any], Verdict, str]]:
    """Each case with what it is worth, and what was done and changed."""
    from agent3.protocols.nlweb.browser.chromium import Chrome

    waiting, results = list(enumerate(cases)), {}
    chrome = Chrome()
    await chrome.start()

    async def work(base: str) -> None:
        while waiting:
            number, case = waiting.pop(0)
            results[number] = (case, *await _run_case(chrome, f"{base}{case['page']}.html", case))

    try:
        with serve(folder / "pages") as base:
            await asyncio.gather(*(work(base) for _ in range(at_once)))
    finally:
        await chrome.aclose()
    return [results[number] for number in sorted(results)]


async def _run_case(chrome: Any, url: str, case: Mapping[str, Any]) -> tuple[Verdict, str]:
    from agent3.definitions import ActionType, NLWebAction, NLWebInterface
    from agent3.protocols.nlweb.authoring.workbench import drive_session
    from agent3.protocols.nlweb.browser.sandbox import NLWebSandbox
    from agent3.protocols.nlweb.visit.page_session import Session

    def confirm(what: str) -> None:
        if not case["yes"]:
            raise SetupError(f"This has consequences and was not done: {what}.")

    interface = NLWebInterface(interface_id="exam", name="exam", base_url=url.rpartition("/")[0])
    session = Session(interface, NLWebSandbox.of(interface), chrome=chrome)
    await session.open()
    try:
        await session.perform(NLWebAction(action_type=ActionType.NAVIGATE, value=url))
        page = session.page
        before = after = await page.evaluate(_STATE)
        claimed, told = False, ""
        try:
            async with asyncio.timeout(_CASE_SECONDS):
                driven = await drive_session(session, case["sentence"], confirm=confirm)
            claimed, told = driven.complete, f"{'; '.join(driven.done)} | {driven.question or ''}"
        except (Agent3Error, TimeoutError) as error:
            told = f"{type(error).__name__}: {error}"
        await asyncio.sleep(_LATE_SECONDS)
        with suppress(Exception):  # a page that went elsewhere has no state: then nothing is known to have changed
            after = await page.evaluate(_STATE)
    finally:
        await session.aclose()
    changed = {key: (before.get(key), after.get(key)) for key in {*before, *after} if before.get(key) != after.get(key)}
    verdict = judge(case["expect"], before, after, claimed)
    return verdict, f"{'claimed done, ' if claimed else ''}{told}\n    changed {changed}\n    wanted {case['expect']}"


def judge(
    expect: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    claimed: bool,
) -> Verdict:
    """What a case is worth. The rules are in docs/reference/benchmarks.md."""
    if alternatives := expect.get("any"):
        shared = {key: value for key, value in expect.items() if key != "any"}
        found = {judge({**shared, **one}, before, after, claimed) for one in alternatives}
        return next(one for one in _BEST_FIRST if one in found)
    ignored = expect.get("ignore", ())
    start, end = _drop(before, ignored), _drop(after, ignored)
    for key, harmless in expect.get("may", {}).items():
        if end.get(key) in harmless:
            end[key] = start.get(key)
    untouched, on_the_way = _equal(start, end), False
    if expect.get("nothing"):
        if untouched and not claimed:
            return "right"
    else:
        goal = _overlay(start, _drop(expect["state"], ignored))
        reached = _equal(end, goal) if expect.get("unchanged", True) else _covers(end, expect["state"])
        if reached and (claimed or not untouched):
            return "right"
        on_the_way = _leads(start, end, goal)
    if untouched:
        return "false done" if claimed else "asked"
    return "false done" if claimed and on_the_way else "wrong"


def _drop(state: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """A copy of a state without what dotted paths name."""
    copy: dict[str, Any] = json.loads(json.dumps(state))
    for path in paths:
        *way, last = path.split(".")
        inner: Any = copy
        for key in way:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(last, None)
    return copy


def _overlay(under: Any, over: Any) -> Any:
    """Objects are merged at every depth; anything else is replaced."""
    if not isinstance(under, Mapping) or not isinstance(over, Mapping):
        return over
    return {**under, **{key: _overlay(under[key], value) if key in under else value for key, value in over.items()}}


def _equal(one: Any, other: Any) -> bool:
    """As in JSON: true is not 1."""
    return json.dumps(_as_numbers(one), sort_keys=True) == json.dumps(_as_numbers(other), sort_keys=True)


def _as_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_numbers(inner) for inner in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _covers(state: Any, part: Any) -> bool:
    if isinstance(part, Mapping):
        return isinstance(state, Mapping) and all(key in state and _covers(state[key], part[key]) for key in part)
    return _equal(state, part)


def _leads(start: Any, end: Any, goal: Any) -> bool:
    """Whether every change up to now is a part of what was asked for."""
    if _equal(end, start) or _equal(end, goal):
        return True
    if isinstance(start, Mapping) and isinstance(end, Mapping) and isinstance(goal, Mapping):
        return all(key in goal and _leads(start.get(key), value, goal[key]) for key, value in end.items())
    if isinstance(start, list) and isinstance(end, list) and isinstance(goal, list):
        return _equal(end[: len(start)], start) and _equal(end, goal[: len(end)])
    return False
