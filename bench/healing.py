"""Healing as an examination: pages are redesigned by a seed; the finder must find what a selector meant, or nothing.

Twelve pages stand in ``bench/pages``. Every case takes one of their elements, remembers it from the page as it was, and
changes the page in several of eleven ways: ids, classes, marks, order, wrappers, texts, tags, labels, decoys, places,
and in a fifth of the cases the element is taken away and a decoy stands where it was. ``precision`` is the share of
right elements among those that were taken, ``coverage`` the share of those that were found among those still there.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness import ROOT, Options, Result, Row, bench

__all__ = ["CASES", "SEED", "Case", "Finding", "cases", "examine", "run"]

PAGES = ROOT / "bench" / "pages"
CASES = 300
SEED = 100_000
"""The seeds from here on were not looked at while the weights were found."""
KINDS = ("ids", "classes", "marks", "order", "wrappers", "texts", "tags", "labels", "decoys", "moved")
_REMOVED = 0.2
_TARGETS = "body :is(a, button, input, select, textarea)[id]"
_GRACE, _PATIENCE = 15.0, 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One redesign of one page, and the element that a step means there."""

    seed: int
    page: str
    target: str
    kinds: tuple[str, ...]

    @property
    def removed(self) -> bool:
        """Whether nothing is the right answer."""
        return "removed" in self.kinds


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in a case: right, wrong, missed (it was there), rightly nothing, or by the selector itself."""

    case: Case
    outcome: str
    ms: float
    detail: str = ""


def cases(targets: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[Case]:
    """One case for each seed. Ids always change, since a selector that fits needs no healing."""
    made = []
    for seed in seeds:
        chance = random.Random(seed)
        page, target = chance.choice(list(targets))
        kinds = chance.sample(KINDS[1:], chance.randint(1, 6))
        gone = ["removed"] if chance.random() < _REMOVED else []
        made.append(Case(seed, page, target, ("ids", *sorted(kinds, key=KINDS.index), *gone)))
    return made


async def examine(seeds: Sequence[int]) -> list[Finding]:
    """Run the cases of these seeds in one browser."""
    from agent3.nlweb.browsers import require
    from agent3.nlweb.sdk import playwright

    sources = {path.stem: path.read_text("utf-8") for path in sorted(PAGES.glob("*.html"))}
    mutate = (PAGES / "mutate.js").read_text("utf-8")
    async with playwright().async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=str(require().path))
        page = await browser.new_page(viewport={"width": 1200, "height": 900})
        hall = _Hall(page, sources, mutate)
        targets = [(name, one) for name in sources for one in await hall.targets(name)]
        found = [await hall.case(one) for one in cases(targets, seeds)]
        await browser.close()
    return found


class _Hall:
    """The page on which all cases are examined, and what is remembered of the pages as they were."""

    def __init__(self, page: Any, sources: dict[str, str], mutate: str):
        self._page = page
        self._sources = sources
        self._mutate = mutate
        self._prints: dict[tuple[str, str], Any] = {}

    async def targets(self, name: str) -> list[str]:
        await self._page.set_content(self._sources[name])
        found: list[str] = await self._page.eval_on_selector_all(_TARGETS, "all => all.map(one => one.id)")
        return found

    async def case(self, case: Case) -> Finding:
        healer, step = await self._prepared(case)
        await self._show(case)
        began = time.perf_counter()
        try:
            found = await healer.find(self._page, step, _PATIENCE)
        except TimeoutError as nothing:
            ms = (time.perf_counter() - began) * 1e3
            return Finding(case, "rightly nothing" if case.removed else "missed", ms, str(nothing))
        ms = (time.perf_counter() - began) * 1e3
        right = await found.evaluate("one => one.hasAttribute('data-truth')")
        detail = await found.evaluate("one => one.outerHTML.slice(0, 200)")
        if not healer.used:
            return Finding(case, "selector", ms, detail)
        return Finding(case, "right" if right else "wrong", ms, detail)

    async def _prepared(self, case: Case) -> tuple[Any, Any]:
        """A finder that remembers the element of the page as it was."""
        from agent3.definitions import ActionType, NLWebAction, NLWebInterface
        from agent3.nlweb.healing import Healer, Policy

        interface = NLWebInterface(interface_id="exam", name="Exam", base_url="http://127.0.0.1/")
        step = NLWebAction(action_type=ActionType.CLICK, selector=f"#{case.target}")
        healer = Healer(interface, policy=Policy(grace=_GRACE))
        await self._page.set_content(self._sources[case.page])
        found = await healer.find(self._page, step, 1000)
        await healer.worked(self._page, step, found)
        return healer, step

    async def _show(self, case: Case) -> None:
        """The page as it is now. The mark of truth is put there before, and no finder looks at it."""
        mark = f"document.getElementById({case.target!r}).setAttribute('data-truth', '')"
        await self._page.evaluate(mark)
        await self._page.evaluate(self._mutate, {"kinds": list(case.kinds), "seed": case.seed})


@bench("healing", "Redesigned pages: is the element that a selector meant found again, and never a wrong one (--seeds)")
def run(options: Options) -> Result:
    """Examine the cases of the chosen seeds, or of fresh ones; rounds and load do not apply."""
    found = asyncio.run(examine(options.seeds or range(SEED, SEED + CASES)))
    rows = [
        _row("all", found),
        *(_row(kind, [one for one in found if kind in one.case.kinds]) for kind in _named(found)),
    ]
    return Result(rows, {"precision": _precision(found), "coverage": _coverage(found), "restraint": _restraint(found)})


def _named(found: Sequence[Finding]) -> list[str]:
    return sorted({kind for one in found for kind in one.case.kinds})


def _count(found: Sequence[Finding], outcome: str) -> int:
    return sum(one.outcome == outcome for one in found)


def _precision(found: Sequence[Finding]) -> float | None:
    taken = _count(found, "right") + _count(found, "wrong")
    return round(_count(found, "right") / taken, 4) if taken else None


def _coverage(found: Sequence[Finding]) -> float | None:
    there = [one for one in found if not one.case.removed]
    return round(_count(there, "right") / len(there), 4) if there else None


def _restraint(found: Sequence[Finding]) -> float | None:
    """How often nothing was taken where nothing was to be found."""
    gone = [one for one in found if one.case.removed]
    return round(_count(gone, "rightly nothing") / len(gone), 4) if gone else None


def _row(target: str, found: Sequence[Finding]) -> Row:
    took = sorted(one.ms for one in found)
    extra = {
        "cases": len(found),
        "right": _count(found, "right"),
        "wrong": _count(found, "wrong"),
        "missed": _count(found, "missed"),
        "removed": sum(one.case.removed for one in found),
        "precision": _precision(found),
        "coverage": _coverage(found),
    }
    return Row(target, p50_ms=statistics.median(took), p99_ms=took[int(len(took) * 0.99)], extra=extra)
