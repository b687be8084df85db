"""Healing as an examination: pages are redesigned by a seed; the finder must find what a selector meant, or nothing.

Twelve pages stand in ``bench/pages``. Every case takes one of their elements, remembers it from the page as it was, and
changes the page in several of eleven ways: ids, classes, marks, order, wrappers, texts, tags, labels, decoys, places,
and in a fifth of the cases the element is taken away and a decoy stands where it was. ``precision`` is the share of
right elements among those that were taken, ``coverage`` the share of those that were found among those still there.

The row ``unseen`` is of another family of pages: ``bench.redesigned`` draws them anew. They were written without a look
at how healing judges, and its rules are not tuned on them; ``unseen_…`` among the ratios are its figures alone.

The row ``fresh`` is of pages that were written after the rules, and looked at once.

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
from bench.fresh_contents import PAGES as FRESH
from bench.harness import ROOT, Options, Result, Row, bench

__all__ = ["CASES", "NAMED", "SEED", "UNSEEN", "Case", "Finding", "examine", "examine_named", "examine_unseen",
           "make_cases", "make_unseen_cases", "run", "summarize"]  # fmt: skip

PAGES = ROOT / "bench" / "pages"
CASES = 300
SEED = 100_000
"""The seeds from here on were not looked at while the weights were found."""
UNSEEN = 700_000
"""The seeds from here on judge the pages that are drawn anew."""
FRESH_SEED = 900_000
"""The seeds from here on judge the pages that were written last."""
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


def make_cases(targets: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[Case]:
    """One case for each seed. Ids always change, since a selector that fits needs no healing."""
    made = []
    for seed in seeds:
        chance = random.Random(seed)
        page, target = chance.choice(list(targets))
        kinds = chance.sample(KINDS[1:], chance.randint(1, 6))
        gone = ["removed"] if chance.random() < _REMOVED else []
        made.append(Case(seed, page, target, ("ids", *sorted(kinds, key=KINDS.index), *gone)))
    return made


def make_unseen_cases(seeds: Sequence[int], pages: Sequence[Page] = CONTENTS) -> list[Case]:
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
    async with _open_page() as page:
        targets: list[tuple[str, str]] = []
        for name, source in sources.items():
            await page.set_content(source)
            ids: list[str] = await page.eval_on_selector_all(_TARGETS, "all => all.map(one => one.id)")
            targets += [(name, target) for target in ids]
        findings = []
        for case in make_cases(targets, seeds):
            healer, step = await _remember(page, sources[case.page], case)
            # The mark of truth is put there before the page is changed, and no finder looks at it.
            await page.evaluate(f"document.getElementById({case.target!r}).setAttribute('data-truth', '')")
            await page.evaluate(mutate, {"kinds": list(case.kinds), "seed": case.seed})
            findings.append(await _find(page, case, healer, step))
        return findings


async def examine_unseen(chosen: Sequence[Case]) -> list[Finding]:
    """Run these cases of the pages that are drawn anew in one browser."""
    contents = {page.name: page for page in (*CONTENTS, *FRESH)}
    async with _open_page() as page:
        findings = []
        for case in chosen:
            content = contents[case.page]
            healer, step = await _remember(page, redesigned.draw(content), case)
            await page.set_content(redesigned.draw(content, case.target, case.kinds, case.seed))
            findings.append(await _find(page, case, healer, step))
        return findings


async def examine_named(seeds: Sequence[int]) -> list[Finding]:
    """Run the cases of rows that a caller names in one browser: once as the list was, and once as it is."""
    from agent3.definitions import ActionType, NLWebAction
    from agent3.protocols.nlweb.steps.parameters import inject

    async with _open_page() as page:
        findings = []
        for lists in map(named.make_lists, seeds):
            healer = _make_healer()
            written = NLWebAction(action_type=ActionType.CLICK, selector=named.template(lists))
            step = inject(written, {"item": lists.wanted})
            await healer.begin("ask", [written])
            await page.set_content(named.page(lists, now=False))
            await healer.note_success(page, step, await healer.find(page, step, 1000))
            await healer.end(ok=True)
            await healer.begin("ask", [written])
            await page.set_content(named.page(lists, now=True))
            kinds = (f"to_{lists.new}", *(["removed", f"others_{len(lists.after)}"] if lists.gone else []))
            findings.append(await _find(page, Case(lists.seed, lists.old, lists.wanted, kinds), healer, step))
        return findings


@asynccontextmanager
async def _open_page() -> AsyncIterator[Any]:
    from agent3.protocols.nlweb.browser.installation import require
    from agent3.protocols.nlweb.browser.sdk import playwright

    async with playwright().async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=str(require().path))
        yield await browser.new_page(viewport={"width": 1200, "height": 900})
        await browser.close()


def _make_healer() -> Any:
    from agent3.definitions import NLWebInterface
    from agent3.protocols.nlweb.healing import Healer, Policy

    interface = NLWebInterface(interface_id="exam", name="Exam", base_url="http://127.0.0.1/")
    return Healer(interface, policy=Policy(grace=_GRACE))


async def _remember(page: Any, source: str, case: Case) -> tuple[Any, Any]:
    """A finder that remembers the element of the page as it was, and the step that means it."""
    from agent3.definitions import ActionType, NLWebAction

    step = NLWebAction(action_type=ActionType.CLICK, selector=f"#{case.target.replace('~', '-')}")
    healer = _make_healer()
    await page.set_content(source)
    await healer.note_success(page, step, await healer.find(page, step, 1000))
    return healer, step


async def _find(page: Any, case: Case, healer: Any, step: Any) -> Finding:
    """What the finder takes on the page as it is now."""
    began = time.perf_counter()
    try:
        found = await healer.find(page, step, _PATIENCE)
    except TimeoutError as error:
        ms = (time.perf_counter() - began) * 1e3
        return Finding(case, "rightly nothing" if case.removed else "missed", ms, str(error))
    ms = (time.perf_counter() - began) * 1e3
    is_right = await found.evaluate("element => element.hasAttribute('data-truth')")
    detail = await found.evaluate("element => element.outerHTML.slice(0, 200)")
    if not healer.uses:
        return Finding(case, "selector", ms, detail)
    return Finding(case, "right" if is_right else "wrong", ms, detail)


@bench("healing", "Redesigned pages: is the element that a selector meant found again, and never a wrong one (--seeds)")
def run(options: Options) -> Result:
    """Examine the cases of the chosen seeds, or of fresh ones; rounds and load do not apply."""
    families = {
        "": asyncio.run(examine(options.seeds or range(SEED, SEED + CASES))),
        "unseen_": asyncio.run(examine_unseen(make_unseen_cases(options.seeds or range(UNSEEN, UNSEEN + CASES)))),
        "fresh_": asyncio.run(
            examine_unseen(make_unseen_cases(options.seeds or range(FRESH_SEED, FRESH_SEED + CASES), FRESH))
        ),
        "named_": asyncio.run(examine_named(options.seeds or range(NAMED, NAMED + CASES))),
    }
    rows: list[Row] = []
    ratios: dict[str, float | None] = {}
    for family, findings in families.items():
        rows.append(_row(family.removesuffix("_") or "all", findings))
        kinds = sorted({kind for finding in findings for kind in finding.case.kinds})
        rows += [_row(f"{family}{kind}", [found for found in findings if kind in found.case.kinds]) for kind in kinds]
        ratios |= {f"{family}{name}": value for name, value in summarize(findings).items()}
    return Result(rows, ratios)


def summarize(findings: Sequence[Finding]) -> dict[str, float | None]:
    """``precision`` of what was taken, ``coverage`` of what was there, ``restraint`` where nothing was to be found."""
    there = [finding for finding in findings if not finding.case.removed]
    gone = [finding for finding in findings if finding.case.removed]
    right, wrong = _count(findings, "right"), _count(findings, "wrong")
    return {
        "precision": round(right / (right + wrong), 4) if right + wrong else None,
        "coverage": round(_count(there, "right") / len(there), 4) if there else None,
        "restraint": round(_count(gone, "rightly nothing") / len(gone), 4) if gone else None,
    }


def _count(findings: Sequence[Finding], outcome: str) -> int:
    return sum(finding.outcome == outcome for finding in findings)


def _row(target: str, findings: Sequence[Finding]) -> Row:
    took = sorted(finding.ms for finding in findings)
    ratios = summarize(findings)
    extra = {
        "cases": len(findings),
        "right": _count(findings, "right"),
        "wrong": _count(findings, "wrong"),
        "missed": _count(findings, "missed"),
        "removed": sum(finding.case.removed for finding in findings),
        "precision": ratios["precision"],
        "coverage": ratios["coverage"],
    }
    return Row(target, p50_ms=statistics.median(took), p99_ms=took[int(len(took) * 0.99)], extra=extra)
