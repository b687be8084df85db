"""``nlweb``: a website driven by an interface, beside plain Playwright doing the same by hand.

Both drive the same browser on the same pages of loopback, in turn, one repetition each (A B A B). By hand means:
without sandbox, proxy, throttle, healing, metrics or errors that name a step, and with one evaluation for the
extraction, as an expert would write it; the usual way, a locator for each element, stands beside it. Figures are
medians; those of ``still`` are ours without healing, which tells what that costs. A click waits for two frames of the
page, so each deed begins at a random moment of a frame: in step with the others, one would always catch a frame that
another just misses, and cost 17 ms where that costs 33.

Rows are named WHOSE_WHAT. Ours carry RT-014's target beside the figure: ``limit_ms`` and ``limit_per_minute``, and
``met``, whether both are kept.

    launch      from nothing to an empty page
    navigate    to a page, until its document is parsed
    action      one click
    extract     100 cards of four fields; locators: the same by a locator for each element
    sequence    six steps: open, type, type, select, click, extract 100 cards
    pool        20 sequences at once in one browser, each for another person; an error is a wrong result

Ratios: ``overhead_WHAT`` is ours / by hand (1.15 is the limit), ``extract_vs_locators`` how many times faster ours is
than a locator for each element (30 is the least), ``healing_WHAT`` ours / ours without healing.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench.harness import HEALTHY, Options, Result, Row, bench, ratio, say, serving, uvicorn
from bench.load import HOST, percentile

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from agent3.definitions import NLWebAction, NLWebInterface
    from agent3.nlweb import NLWebExecutor

__all__ = ["LIMITS", "run"]

FRAME = 1 / 60
_phases = random.Random(60)

LIMITS: dict[str, tuple[float, float | None]] = {
    "launch": (2_000.0, None),
    "navigate": (3_000.0, 20.0),
    "action": (1_000.0, 30.0),
    "extract": (2_000.0, 20.0),
    "sequence": (10_000.0, 6.0),
}
"""RT-014: milliseconds for one, and how many a minute."""
TIMES = {"launch": 3, "navigate": 20, "action": 30, "extract": 15, "sequence": 10}
"""Repetitions in each round."""
STILL = ("action", "sequence")
LOCATORS = 2
AT_ONCE = 20
CARDS = 100
FIELDS = {"airline": ".airline", "price": ".price", "time": ".time", "book": ".book"}
BY_HAND = """fields => [...document.querySelectorAll('.flight-card')].map(card => Object.fromEntries(
  Object.entries(fields).map(([name, selector]) => [name, card.querySelector(selector)?.innerText.trim() ?? null])))"""

Deed = Callable[[], Any]


@bench("nlweb", "websites: launch, navigate, act, extract and a sequence, beside plain Playwright by hand")
def run(options: Options) -> Result:
    """All rows."""
    with serving(lambda port, _: uvicorn("flights", port), HEALTHY) as server:
        url = f"http://{HOST}:{server.port}"
        laps: dict[str, list[float]] = {}
        for turn in range(options.rounds):
            _round(url, laps)
            say(f"round {turn + 1}/{options.rounds}: {_told(laps)}")
        pool = asyncio.run(_pool(url))
    rows = [_row(name, found) for name, found in laps.items()]
    return Result([*rows, pool], _ratios(laps))


def _told(laps: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(found) * 1e3:.1f} ms" for name, found in laps.items())


def _row(name: str, laps: list[float]) -> Row:
    ordered = sorted(laps)
    p50 = percentile(ordered, 0.5)
    extra: dict[str, Any] = {"times": len(laps)}
    whose, _, what = name.partition("_")
    if whose == "ours" and what in LIMITS:
        most, least = LIMITS[what]
        minute = 60.0 / p50
        extra |= {"limit_ms": most, "per_minute": minute}
        extra |= {"limit_per_minute": least} if least is not None else {}
        extra["met"] = p50 * 1e3 < most and (least is None or minute >= least)
    return Row(name, 1 / p50, p50 * 1e3, percentile(ordered, 0.99) * 1e3, extra=extra)


def _ratios(laps: dict[str, list[float]]) -> dict[str, float | None]:
    middle = {name: statistics.median(found) for name, found in laps.items()}
    found = {f"overhead_{what}": ratio(middle.get(f"ours_{what}"), middle.get(f"hand_{what}")) for what in TIMES}
    found |= {f"healing_{what}": ratio(middle.get(f"ours_{what}"), middle.get(f"still_{what}")) for what in STILL}
    return {**found, "extract_vs_locators": ratio(middle.get("locators_extract"), middle.get("ours_extract"))}


# Rounds


def _round(url: str, laps: dict[str, list[float]]) -> None:
    from playwright.sync_api import sync_playwright

    from agent3.nlweb import NLWebExecutor
    from agent3.protocols.nlweb.steps.locator import SelectorFinder
    from agent3.protocols.nlweb.visit.page_session import Tools

    for _ in range(TIMES["launch"]):
        _timed(laps, "ours_launch", lambda: _launched(url))
        _timed(laps, "hand_launch", _launched_by_hand)
    with ExitStack() as stack:
        ours = stack.enter_context(NLWebExecutor(interface(url)))
        still = stack.enter_context(NLWebExecutor(interface(url), tools=Tools(finder=SelectorFinder())))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=_browser())
        stack.callback(browser.close)
        page = browser.new_context().new_page()
        without = {what: deed for what, deed, _ in _pairs(url, still, page)}
        for what, deed, by_hand in _pairs(url, ours, page):
            if what == "locators":
                _repeated(laps, LOCATORS, {"locators_extract": by_hand})
                continue
            extra = {f"still_{what}": without[what]} if what in STILL else {}
            if what == "action":
                without["navigate"]()
            _repeated(laps, TIMES[what], {f"ours_{what}": deed, f"hand_{what}": by_hand, **extra})


def _pairs(url: str, ours: NLWebExecutor, page: Page) -> list[tuple[str, Deed, Deed]]:
    """What is done, ours and by hand. Each leaves the page as the next one needs it."""
    single = ours._execute_single_action
    go, click, cards = _step("navigate", value=f"{url}/"), _step("click", "#more"), _cards()
    return [
        ("navigate", lambda: single(go), lambda: page.goto(f"{url}/", wait_until="domcontentloaded")),
        ("action", lambda: single(click), lambda: page.click("#more")),
        ("sequence", lambda: _sequence(ours), lambda: _sequence_by_hand(page, url)),
        ("extract", lambda: _whole(single(cards)), lambda: _whole(page.evaluate(BY_HAND, FIELDS))),
        ("locators", lambda: None, lambda: _whole(_by_locators(page))),
    ]


def _repeated(laps: dict[str, list[float]], times: int, deeds: dict[str, Deed]) -> None:
    for deed in deeds.values():
        deed()  # warm, and not counted
    for _ in range(times):
        for name, deed in deeds.items():
            time.sleep(_phases.uniform(0.0, FRAME))
            _timed(laps, name, deed)


def _timed(laps: dict[str, list[float]], name: str, deed: Deed) -> None:
    began = time.perf_counter()
    end = deed()
    laps.setdefault(name, []).append(time.perf_counter() - began)
    if callable(end):
        end()  # to close what was opened is not part of it


def _whole(rows: Any) -> None:
    if len(rows) != CARDS or rows[6]["price"] != "$ 7.50":
        raise RuntimeError(f"the extraction gave {len(rows)} rows, or wrong ones")


# Ours


def _step(kind: str, selector: str | None = None, value: str | None = None, **more: Any) -> NLWebAction:
    from agent3.definitions import ActionType, NLWebAction

    return NLWebAction(action_type=ActionType(kind), selector=selector, value=value, **more)


def _cards() -> NLWebAction:
    return _step("extract", ".flight-card", extract_schema=FIELDS)


def interface(url: str) -> NLWebInterface:
    """The airline as an interface."""
    from agent3.definitions import NLWebInterface

    steps = [
        _step("navigate", value="/"),
        _step("type", "#from", "{origin}"),
        _step("type", "#to", "{to}"),
        _step("select", "#class", "b"),
        _step("click", "#search"),
        _cards(),
    ]
    trip = [*steps[:5], _step("extract", "h1")]
    return NLWebInterface(interface_id="air", name="Air", base_url=url, actions={"search": steps, "trip": trip})


def _sequence(ours: NLWebExecutor) -> None:
    _whole(ours.execute_action("search", {"origin": "NYC", "to": "SFO"}))


def _launched(url: str) -> Deed:
    from agent3.nlweb import NLWebExecutor

    executor = NLWebExecutor(interface(url))
    executor.start_browser()
    return executor.stop_browser


# By hand


def _browser() -> str:
    from agent3.protocols.nlweb.browser import installation as browsers

    return str(browsers.require().path)


def _launched_by_hand() -> Deed:
    from playwright.sync_api import sync_playwright

    manager = sync_playwright()
    browser = manager.start().chromium.launch(executable_path=_browser())
    browser.new_context().new_page()

    def close() -> None:
        browser.close()
        manager.__exit__()

    return close


def _sequence_by_hand(page: Page, url: str) -> None:
    page.goto(f"{url}/", wait_until="domcontentloaded")
    page.fill("#from", "NYC")
    page.fill("#to", "SFO")
    page.select_option("#class", "b")
    page.click("#search")
    page.wait_for_selector(".flight-card", state="attached")  # as ours does
    _whole(page.evaluate(BY_HAND, FIELDS))


def _by_locators(page: Page) -> list[dict[str, str]]:
    return [
        {name: card.locator(selector).inner_text() for name, selector in FIELDS.items()}
        for card in page.locator(".flight-card").all()
    ]


# Many at once


async def _pool(url: str) -> Row:
    """Twenty people at once, each of whom must get the answer to the own question."""
    from agent3.protocols.nlweb.visit.visits import Visits

    visits, air = Visits(), interface(url)
    try:

        async def one(number: int) -> bool:
            said = await visits.run(air, "trip", {"origin": f"A{number}", "to": f"B{number}"}, principal=f"p{number}")
            return bool(said == [f"A{number} B{number} b"])

        await one(-1)
        began = time.perf_counter()
        right = await asyncio.gather(*(one(number) for number in range(AT_ONCE)), return_exceptions=True)
        took = time.perf_counter() - began
    finally:
        await visits.aclose()
    errors = sum(found is not True for found in right)
    extra = {"times": AT_ONCE, "per_minute": 60 * AT_ONCE / took, "limit_per_minute": 6.0, "met": not errors}
    return Row("ours_pool", AT_ONCE / took, took * 1e3 / AT_ONCE, errors=errors, extra=extra)
