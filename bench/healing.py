"""Healing as an examination: pages are redesigned by a seed; the finder must find what a selector meant, or nothing.

Twelve pages stand in ``bench/pages``. Every case takes one of their elements, remembers it from the page as it was, and
changes the page in several of eleven ways: ids, classes, marks, order, wrappers, texts, tags, labels, decoys, places,
and in a fifth of the cases the element is taken away and a decoy stands where it was. ``precision`` is the share of
right elements among those that were taken, ``coverage`` the share of those that were found among those still there.

The row ``unseen`` is of another family of pages: ``bench.redesigned`` draws them anew. They were written without a look
at how healing judges, and its rules are not tuned on them; ``unseen_…`` among the ratios are its figures alone.

The row ``named`` is of lists whose rows a caller names (``bench.named``): in half of the cases that row is gone, others
with the same button stay, and nothing is the right answer.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from bench import named, redesigned
from bench.contents import PAGES as CONTENTS
from bench.contents import Page
from bench.harness import ROOT, Options, Result, Row, bench

__all__ = ["CASES", "NAMED", "SEED", "UNSEEN", "Case", "Finding", "cases", "examine", "examine_named", "examine_unseen",
           "run", "unseen"]  # fmt: skip

PAGES = ROOT / "bench" / "pages"
CASES = 300
SEED = 100_000
"""The seeds from here on were not looked at while the weights were found."""
UNSEEN = 700_000
"""The seeds from here on judge the pages that are drawn anew."""
NAMED = 800_000
"""The seeds from here on judge rows that a caller names."""
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
        return bool({"removed", *redesigned.GONE} & set(self.kinds))


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


def unseen(seeds: Sequence[int], pages: Sequence[Page] = CONTENTS) -> list[Case]:
    """One case of the pages that are drawn anew for each seed."""
    made = []
    for seed in seeds:
        chance = random.Random(seed)
        page = chance.choice(list(pages))
        target = chance.choice(redesigned.targets(page))
        kinds = chance.sample(redesigned.KINDS, chance.randint(1, 6))
        gone = [chance.choice(redesigned.GONE)] if chance.random() < _REMOVED else []
        made.append(Case(seed, page.name, target, ("renamed", *sorted(kinds, key=redesigned.KINDS.index), *gone)))
    return made


async def examine(seeds: Sequence[int]) -> list[Finding]:
    """Run the cases of these seeds in one browser."""
    sources = {path.stem: path.read_text("utf-8") for path in sorted(PAGES.glob("*.html"))}
    mutate = (PAGES / "mutate.js").read_text("utf-8")
    async with _opened() as page:
        hall = _Hall(page, sources, mutate)
        targets = [(name, one) for name in sources for one in await hall.targets(name)]
        return [await hall.case(one) for one in cases(targets, seeds)]


async def examine_unseen(chosen: Sequence[Case]) -> list[Finding]:
    """Run these cases of the pages that are drawn anew in one browser."""
    contents = {page.name: page for page in CONTENTS}
    async with _opened() as page:
        hall = _Gallery(page, {name: redesigned.draw(one) for name, one in contents.items()}, contents)
        return [await hall.case(one) for one in chosen]


async def examine_named(seeds: Sequence[int]) -> list[Finding]:
    """Run the cases of rows that a caller names in one browser."""
    async with _opened() as page:
        return [await _Counter(page, {}).ask(named.lists(seed)) for seed in seeds]


@asynccontextmanager
async def _opened() -> AsyncIterator[Any]:
    from agent3.protocols.nlweb.browser.installation import require
    from agent3.protocols.nlweb.browser.sdk import playwright

    async with playwright().async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=str(require().path))
        yield await browser.new_page(viewport={"width": 1200, "height": 900})
        await browser.close()


class _Hall:
    """The page on which all cases are examined, and the pages as they were."""

    def __init__(self, page: Any, sources: dict[str, str], mutate: str = ""):
        self._page = page
        self._sources = sources
        self._mutate = mutate

    async def targets(self, name: str) -> list[str]:
        await self._page.set_content(self._sources[name])
        found: list[str] = await self._page.eval_on_selector_all(_TARGETS, "all => all.map(one => one.id)")
        return found

    async def case(self, case: Case) -> Finding:
        healer, step = await self._prepared(case)
        await self._show(case)
        return await self._found(case, healer, step)

    async def _found(self, case: Case, healer: Any, step: Any) -> Finding:
        """What the finder takes on the page as it is now."""
        began = time.perf_counter()
        try:
            found = await healer.find(self._page, step, _PATIENCE)
        except TimeoutError as nothing:
            ms = (time.perf_counter() - began) * 1e3
            return Finding(case, "rightly nothing" if case.removed else "missed", ms, str(nothing))
        ms = (time.perf_counter() - began) * 1e3
        right = await found.evaluate("one => one.hasAttribute('data-truth')")
        detail = await found.evaluate("one => one.outerHTML.slice(0, 200)")
        if not healer.uses:
            return Finding(case, "selector", ms, detail)
        return Finding(case, "right" if right else "wrong", ms, detail)

    async def _prepared(self, case: Case) -> tuple[Any, Any]:
        """A finder that remembers the element of the page as it was."""
        from agent3.definitions import ActionType, NLWebAction, NLWebInterface
        from agent3.protocols.nlweb.healing import Healer, Policy

        interface = NLWebInterface(interface_id="exam", name="Exam", base_url="http://127.0.0.1/")
        step = NLWebAction(action_type=ActionType.CLICK, selector=f"#{case.target.replace('~', '-')}")
        healer = Healer(interface, policy=Policy(grace=_GRACE))
        await self._page.set_content(self._sources[case.page])
        found = await healer.find(self._page, step, 1000)
        await healer.note_success(self._page, step, found)
        return healer, step

    async def _show(self, case: Case) -> None:
        """The page as it is now. The mark of truth is put there before, and no finder looks at it."""
        mark = f"document.getElementById({case.target!r}).setAttribute('data-truth', '')"
        await self._page.evaluate(mark)
        await self._page.evaluate(self._mutate, {"kinds": list(case.kinds), "seed": case.seed})


class _Gallery(_Hall):
    """A hall where the page as it is now is drawn anew instead of changed."""

    def __init__(self, page: Any, sources: dict[str, str], contents: dict[str, Page]):
        super().__init__(page, sources)
        self._contents = contents

    async def _show(self, case: Case) -> None:
        drawn = redesigned.draw(self._contents[case.page], case.target, case.kinds, case.seed)
        await self._page.set_content(drawn)


class _Counter(_Hall):
    """Where a row is asked for by its name, once as the list was and once as it is."""

    async def ask(self, asked: named.Lists) -> Finding:
        from agent3.definitions import ActionType, NLWebAction, NLWebInterface
        from agent3.protocols.nlweb.healing import Healer, Policy
        from agent3.protocols.nlweb.steps.parameters import inject

        interface = NLWebInterface(interface_id="exam", name="Exam", base_url="http://127.0.0.1/")
        healer = Healer(interface, policy=Policy(grace=_GRACE))
        written = NLWebAction(action_type=ActionType.CLICK, selector=named.template(asked))
        step = inject(written, {"item": asked.wanted})
        await healer.begin("ask", [written])
        await self._page.set_content(named.page(asked, now=False))
        await healer.note_success(self._page, step, await healer.find(self._page, step, 1000))
        await healer.end(ok=True)
        await healer.begin("ask", [written])
        await self._page.set_content(named.page(asked, now=True))
        kinds = (f"to_{asked.new}", *(["removed", f"others_{len(asked.after)}"] if asked.gone else []))
        return await self._found(Case(asked.seed, asked.old, asked.wanted, kinds), healer, step)


@bench("healing", "Redesigned pages: is the element that a selector meant found again, and never a wrong one (--seeds)")
def run(options: Options) -> Result:
    """Examine the cases of the chosen seeds, or of fresh ones; rounds and load do not apply."""
    found = asyncio.run(examine(options.seeds or range(SEED, SEED + CASES)))
    anew = asyncio.run(examine_unseen(unseen(options.seeds or range(UNSEEN, UNSEEN + CASES))))
    asked = asyncio.run(examine_named(options.seeds or range(NAMED, NAMED + CASES)))
    rows = [
        _row("all", found),
        *(_row(kind, [one for one in found if kind in one.case.kinds]) for kind in _named(found)),
        _row("unseen", anew),
        *(_row(f"unseen_{kind}", [one for one in anew if kind in one.case.kinds]) for kind in _named(anew)),
        _row("named", asked),
        *(_row(f"named_{kind}", [one for one in asked if kind in one.case.kinds]) for kind in _named(asked)),
    ]
    ratios = _ratios(found)
    for family, of_it in (("unseen", anew), ("named", asked)):
        ratios |= {f"{family}_{name}": value for name, value in _ratios(of_it).items()}
    return Result(rows, ratios)


def _ratios(found: Sequence[Finding]) -> dict[str, float | None]:
    return {"precision": _precision(found), "coverage": _coverage(found), "restraint": _restraint(found)}


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
