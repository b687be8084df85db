"""Sliders and spinners: moved by keys until the page shows the wanted number."""

from __future__ import annotations

import re

from agent3.protocols.nlweb.driver.hand import Hand
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.story import Story

__all__ = ["slide", "spin"]

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_TRIES = 40


async def slide(story: Story) -> bool:
    """Set one slider, or several in order."""
    if not re.search(r"\bsliders?\b", story.clause.rest, re.IGNORECASE):
        return False
    wanted = [float(one) for one in _NUMBER.findall(story.clause.rest)]
    count = len(_sliders(await story.hand.look()))
    if not wanted or not count:
        return False
    for number, value in enumerate(wanted[:count]):
        await _one(story.hand, number, value)
        story.hand.did.append(f"set the slider to {value:g}")
    return True


def _sliders(sight: Sight) -> list[Element]:
    """What is moved: a range, a thing of that role, or the handle of one that is drawn."""
    real = sight.having(lambda one: one.role == "slider")
    return real or sight.having(lambda one: "slider" in one.words and "handle" in one.words)


async def _one(hand: Hand, number: int, wanted: float) -> None:
    """By keys: the value that the page shows tells how far it is still to go."""
    sight = await hand.look()
    handle = _sliders(sight)[number]
    now = _shown(sight, handle, number)
    if now is None:
        return
    step = None
    for _ in range(_TRIES):
        if now == wanted:
            return
        far = abs(wanted - now) / step if step else 1
        await hand.press(handle, "ArrowRight" if wanted > now else "ArrowLeft", max(1, round(far)))
        sight = await hand.look()
        after = _shown(sight, _sliders(sight)[number], number)
        if after is None or after == now:
            return
        step = step or abs(after - now)
        now = after


def _shown(sight: Sight, handle: Element, number: int) -> float | None:
    """The value: the element's own, or the number that stands after it."""
    if handle.tag == "input" and _NUMBER.fullmatch(handle.value):
        return float(handle.value)
    after = [one for one in sight.shown if one.index > handle.index and _NUMBER.fullmatch(one.own)]
    return float(after[0].own) if after else None


async def spin(story: Story) -> bool:
    """Set a field with arrows."""
    if not re.search(r"\bspinner\b|\bcounter\b|\bstepper\b", story.clause.rest, re.IGNORECASE):
        return False
    wanted = _NUMBER.search(story.clause.rest)
    fields = (await story.hand.look()).having(lambda one: one.role == "spinner" or one.kind == "number")
    if wanted is None or not fields:
        return False
    await story.hand.write(fields[0], wanted[0])
    return True
