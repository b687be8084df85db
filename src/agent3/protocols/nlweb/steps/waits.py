"""Waiting on a page, and the conditions that are waited for: an element, a text, an address, the network, a value.

Every wait has an end. A condition is asked again and again only where Playwright has no event for it.
"""

from __future__ import annotations

import asyncio
import fnmatch
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, cast

from agent3.definitions import Condition, NLWebAction
from agent3.errors import CallTimeout, ValidationError
from agent3.protocols.nlweb.browser.sdk import playwright
from agent3.protocols.nlweb.steps.locator import Awaited
from agent3.protocols.nlweb.steps.parameters import look_up
from agent3.protocols.nlweb.steps.scene import Place, Scene

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

__all__ = ["holds", "left", "number", "until", "visible", "wait"]

LoadState = Literal["load", "domcontentloaded", "networkidle"]

_LOAD_STATES = {"load": "load", "domcontentloaded": "domcontentloaded", "networkidle": "networkidle"}
_LOAD_STATES["network"] = "networkidle"
_PAUSE = 0.05
_SHOWS = "text => (document.body?.innerText ?? '').toLowerCase().includes(text.toLowerCase())"
Waited = Literal["attached", "detached", "hidden", "visible"]
_STATES: dict[str, Waited] = {"visible": "visible", "hidden": "hidden", "present": "attached", "absent": "detached"}


def left(end: float) -> float:
    """Milliseconds until that moment of ``time.monotonic``; never 0, which means without end to Playwright."""
    return max((end - time.monotonic()) * 1000, 1.0)


async def visible(found: Locator, ms: float) -> None:
    """Until the first match is seen."""
    await found.first.wait_for(state="visible", timeout=ms)


async def wait(scene: Scene, place: Place, action: NLWebAction, ms: float) -> None:
    """What a wait step waits for: a condition, an element (with a text, if it has a value), loading, or seconds."""
    page = scene.page
    if action.until is not None:
        await until(scene, place, action, action.until, ms)
    elif action.selector:
        awaited = Awaited(action.selector, action.frame or "", sure=not action.optional)
        if action.value:
            await visible((await scene.finder.meant(place, awaited)).filter(has_text=action.value), ms)
        else:
            await scene.finder.appears(place, awaited, ms)
    elif not action.wait_for:
        await _for_value(page, action.value or "load", ms)


async def _for_value(page: Page, value: str, ms: float) -> None:
    if value in _LOAD_STATES:
        await page.wait_for_load_state(cast("LoadState", _LOAD_STATES[value]), timeout=ms)
        return
    async with asyncio.timeout(ms / 1000):
        await asyncio.sleep(number(value, "wait"))


async def until(scene: Scene, place: Place, action: NLWebAction, condition: Condition, ms: float) -> None:
    """Wait until the condition holds; CallTimeout says what did not.

    An element that is to come is looked for in its new shape when the time is nearly over; one that is to go is not:
    something else that is gone would be taken for it.
    """
    end = time.monotonic() + ms / 1000
    if single := _single(condition):
        state, selector = single
        if state == "hidden" or state == "detached":
            await place.locator(selector).first.wait_for(state=state, timeout=ms)
        else:
            awaited = Awaited(selector, action.frame or "", state, sure=not action.optional)
            await scene.finder.appears(place, awaited, ms)
        return
    while not await holds(scene, place, condition, action.frame):
        if time.monotonic() + _PAUSE > end:
            raise CallTimeout(
                f"Step {scene.label or 'wait'}: {_words(condition)} did not come to be in {ms / 1000:.3g} s."
            )
        await asyncio.sleep(_PAUSE)


async def holds(scene: Scene, place: Place, condition: Condition, frame: str | None = None) -> bool:
    """Whether the condition holds now. A page that is just moving on has nothing yet."""
    return _values_hold(condition, scene.values) and await _page_holds(scene, place, condition, frame or "")


async def _page_holds(scene: Scene, place: Place, condition: Condition, frame: str) -> bool:
    try:
        return (
            _address_holds(scene.page.url, condition)
            and await _elements_hold(scene, place, condition, frame)
            and await _text_holds(place, condition)
            and (condition.negated is None or not await holds(scene, place, condition.negated, frame))
            and (not condition.any or await _any_holds(scene, place, condition.any, frame))
        )
    except playwright().Error as error:
        if "context was destroyed" in error.message or "navigation" in error.message:
            return False
        raise


async def _any_holds(scene: Scene, place: Place, conditions: list[Condition], frame: str) -> bool:
    for one in conditions:
        if await holds(scene, place, one, frame):
            return True
    return False


async def _elements_hold(scene: Scene, place: Place, condition: Condition, frame: str) -> bool:
    async def meant(selector: str) -> Locator:
        return await scene.finder.meant(place, Awaited(selector, frame))

    if condition.visible and not await (await meant(condition.visible)).first.is_visible():
        return False
    if condition.hidden and await place.locator(condition.hidden).first.is_visible():
        return False
    if condition.present and not await (await meant(condition.present)).count():
        return False
    if condition.absent and await place.locator(condition.absent).count():
        return False
    return condition.count is None or _between(await place.locator(condition.count).count(), condition)


def _between(count: int, condition: Condition) -> bool:
    least = condition.at_least if condition.at_least is not None else 0
    return least <= count and (condition.at_most is None or count <= condition.at_most)


async def _text_holds(place: Place, condition: Condition) -> bool:
    return condition.text is None or bool(await place.evaluate(_SHOWS, condition.text))


def _address_holds(url: str, condition: Condition) -> bool:
    if condition.url is None:
        return True
    return fnmatch.fnmatchcase(url, condition.url) if "*" in condition.url else condition.url in url


def _values_hold(condition: Condition, values: Mapping[str, Any]) -> bool:
    if condition.given is not None and look_up(values, condition.given) in (None, "", [], {}):
        return False
    if condition.variable is None:
        return True
    value = look_up(values, condition.variable)
    if condition.equals is not None and not _equal(value, condition.equals):
        return False
    if condition.contains is not None and condition.contains.lower() not in str(value).lower():
        return False
    if condition.above is None and condition.below is None:
        return True
    amount = _amount(value)
    if amount is None:
        return False
    return (condition.above is None or amount > condition.above) and (
        condition.below is None or amount < condition.below
    )


def _equal(value: Any, wanted: str | bool | float) -> bool:
    amount = _amount(value)
    if isinstance(wanted, bool) or isinstance(value, bool):
        return str(value).lower() == str(wanted).lower()
    if isinstance(wanted, float) and amount is not None:
        return amount == wanted
    return str(value) == str(wanted)


def _amount(value: Any) -> float | None:
    """A number, a text that is one, the amount of a price, or how many there are of a list."""
    if isinstance(value, list):
        return float(len(value))
    if isinstance(value, dict):
        value = value.get("amount")
    with suppress(TypeError, ValueError):
        return float(value)
    return None


def _single(condition: Condition) -> tuple[Waited, str] | None:
    """The state and selector, if that is all the condition says: Playwright waits for these by itself."""
    said = condition.model_dump(exclude_defaults=True)
    ((name, value),) = said.items() if len(said) == 1 else (("", None),)
    return (_STATES[name], str(value)) if name in _STATES else None


def _words(condition: Condition) -> str:
    said = condition.model_dump(exclude_defaults=True, by_alias=True)
    return ", ".join(f"{name} {value!r}" for name, value in said.items())


def number(text: str | None, kind: str) -> float:
    """The number that a step's value is; ValidationError if it is none."""
    try:
        return float(text or "")
    except ValueError:
        raise ValidationError(
            f"A {kind} step has the value {text!r}, which is neither a number nor a known word."
        ) from None
