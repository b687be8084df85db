"""Waiting on a page, and the conditions that are waited for: an element, a text, an address, the network, a value.

Every wait has an end. A condition is asked again and again only where Playwright has no event for it.
"""

from __future__ import annotations

import asyncio
import fnmatch
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from agent3.definitions import Condition, NLWebAction
from agent3.errors import CallTimeout, ValidationError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.locator import Awaited
from agent3.protocols.nlweb.steps.parameters import look_up
from agent3.protocols.nlweb.steps.run_context import Place, RunContext

if TYPE_CHECKING:
    from playwright.async_api import Locator

__all__ = ["holds", "ms_left", "parse_number", "wait"]

_LOAD_STATES: dict[str, Literal["load", "domcontentloaded", "networkidle"]] = {
    "load": "load",
    "domcontentloaded": "domcontentloaded",
    "networkidle": "networkidle",
    "network": "networkidle",
}
_ELEMENT_STATES: dict[str, Literal["attached", "detached", "hidden", "visible"]] = {
    "visible": "visible",
    "hidden": "hidden",
    "present": "attached",
    "absent": "detached",
}
_PAUSE = 0.05
_SHOWS = "text => (document.body?.innerText ?? '').toLowerCase().includes(text.toLowerCase())"


def ms_left(end: float) -> float:
    """Milliseconds until that moment of ``time.monotonic``; never 0, which means without end to Playwright."""
    return max((end - time.monotonic()) * 1000, 1.0)


def parse_number(text: str | None, kind: str) -> float:
    """The number that a step's value is; ValidationError if it is not one."""
    try:
        return float(text or "")
    except ValueError:
        raise ValidationError(
            f"A {kind} step has the value {text!r}, which is neither a number nor a known word."
        ) from None


async def wait(ctx: RunContext, place: Place, action: NLWebAction, ms: float) -> None:
    """What a wait step waits for: a condition, an element (with a text, if it has a value), loading, or seconds.

    CallTimeout says which condition was not met in time.
    """
    if action.until is not None:
        end = time.monotonic() + ms / 1000
        said = action.until.model_dump(exclude_defaults=True, by_alias=True)
        (name, selector), *others = said.items() if said else (("", None),)
        if not others and name in _ELEMENT_STATES:  # Playwright waits for these by itself
            state = _ELEMENT_STATES[name]
            if state == "hidden" or state == "detached":
                # What is to go is not looked for in a new shape: something else that is gone would be taken for it.
                await place.locator(selector).first.wait_for(state=state, timeout=ms)
            else:
                awaited = Awaited(str(selector), action.frame or "", state, sure=not action.optional)
                await ctx.finder.appears(place, awaited, ms)
            return
        while not await holds(ctx, place, action.until, action.frame):
            if time.monotonic() + _PAUSE > end:
                words = ", ".join(f"{name} {value!r}" for name, value in said.items())
                raise CallTimeout(f"Step {ctx.label or 'wait'}: still waiting for {words} after {ms / 1000:.3g} s.")
            await asyncio.sleep(_PAUSE)
    elif action.selector:
        awaited = Awaited(action.selector, action.frame or "", sure=not action.optional)
        if action.value:
            found = await ctx.finder.locate(place, awaited)
            await found.filter(has_text=action.value).first.wait_for(state="visible", timeout=ms)
        else:
            await ctx.finder.appears(place, awaited, ms)
    elif not action.wait_for:
        value = action.value or "load"
        if value in _LOAD_STATES:
            await ctx.page.wait_for_load_state(_LOAD_STATES[value], timeout=ms)
        else:
            async with asyncio.timeout(ms / 1000):
                await asyncio.sleep(parse_number(value, "wait"))


async def holds(ctx: RunContext, place: Place, condition: Condition, frame: str | None = None) -> bool:
    """Whether the condition holds now. On a page that is just moving on, nothing holds."""
    if not _values_hold(condition, ctx.values):
        return False
    url = ctx.page.url
    if condition.url is not None and not (
        fnmatch.fnmatchcase(url, condition.url) if "*" in condition.url else condition.url in url
    ):
        return False
    try:
        if not await _elements_hold(ctx, place, condition, frame or ""):
            return False
        if condition.text is not None and not await place.evaluate(_SHOWS, condition.text):
            return False
        if condition.negated is not None and await holds(ctx, place, condition.negated, frame):
            return False
        for choice in condition.any:
            if await holds(ctx, place, choice, frame):
                return True
        return not condition.any
    except playwright().Error as error:
        if "context was destroyed" in error.message or "navigation" in error.message:
            return False
        raise


async def _elements_hold(ctx: RunContext, place: Place, condition: Condition, frame: str) -> bool:
    async def locate(selector: str) -> Locator:
        return await ctx.finder.locate(place, Awaited(selector, frame))

    if condition.visible and not await (await locate(condition.visible)).first.is_visible():
        return False
    # What is to be gone is never looked for in a new shape: something else that is gone would be taken for it.
    if condition.hidden and await place.locator(condition.hidden).first.is_visible():
        return False
    if condition.present and not await (await locate(condition.present)).count():
        return False
    if condition.absent and await place.locator(condition.absent).count():
        return False
    if condition.count is None:
        return True
    count = await place.locator(condition.count).count()
    return (condition.at_least or 0) <= count and (condition.at_most is None or count <= condition.at_most)


def _values_hold(condition: Condition, values: Mapping[str, Any]) -> bool:
    if condition.given is not None and look_up(values, condition.given) in (None, "", [], {}):
        return False
    if condition.variable is None:
        return True
    value, wanted = look_up(values, condition.variable), condition.equals
    # A number, a text that is one, the amount of a price, or how many there are of a list.
    number: Any = len(value) if isinstance(value, list) else value.get("amount") if isinstance(value, dict) else value
    amount = None
    with suppress(TypeError, ValueError):
        amount = float(number)
    if wanted is not None:
        if isinstance(wanted, bool) or isinstance(value, bool):
            equal = str(value).lower() == str(wanted).lower()
        elif isinstance(wanted, float) and amount is not None:
            equal = amount == wanted
        else:
            equal = str(value) == str(wanted)
        if not equal:
            return False
    if condition.contains is not None and condition.contains.lower() not in str(value).lower():
        return False
    if condition.above is not None and not (amount is not None and amount > condition.above):
        return False
    return condition.below is None or (amount is not None and amount < condition.below)
