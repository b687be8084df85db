"""Numbers on the page: the greatest and the cheapest, in order, odd or even, guessed, generated or waited for."""

from __future__ import annotations

import re
import time as clock
from collections.abc import Callable

from agent3.protocols.nlweb.commands.spans import number_of
from agent3.protocols.nlweb.driver.clicks import sender
from agent3.protocols.nlweb.driver.matching import best
from agent3.protocols.nlweb.driver.message_lists import rows
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.sentences import Target
from agent3.protocols.nlweb.driver.story import Story

__all__ = ["cheapest", "guess", "in_order", "parity", "pick_extreme", "until", "when"]

_LEAST = re.compile(
    r"\b(?:cheapest|lowest|shortest|smallest|least|fewest|minimum|earliest|barato|corto)\b", re.IGNORECASE
)
_MOST = re.compile(
    r"\b(?:most expensive|highest|longest|greatest|largest|biggest|maximum|latest|caro|largo)\b", re.IGNORECASE
)
_MONEY = re.compile(r"[$€£]\s*(\d[\d.,]*)|(\d[\d.,]*)\s*[$€£]")
_LENGTH = re.compile(r"\b(?:(\d+)\s*h(?:ours?|rs?)?\b)?\s*(?:(\d+)\s*m(?:in(?:utes?|s)?)?\b)?", re.IGNORECASE)
_PLAIN = re.compile(r"^-?\d+(?:\.\d+)?$")
_THAN = re.compile(
    r"\b(?P<side>less|lower|smaller|greater|more|higher|larger|below|under|above|over)(?: than)?"
    r"\s+\$?(?P<number>-?\d+(?:\.\d+)?)",
    re.I,
)
_BETWEEN = re.compile(r"\bbetween\s+(-?\d+)\s*(?:-|\u2013|and|to)\s*(-?\d+)", re.IGNORECASE)
_PATIENCE = 20.0


def _measure(text: str, wanted: str) -> float | None:
    """What a card says of its price or length."""
    if re.search(r"cheap|expensive|cost|price|fare|barato|caro", wanted, re.IGNORECASE):
        match = _MONEY.search(text)
        return float(number_of((match[1] or match[2]).rstrip(".,"))) if match else None
    times = [match for match in _LENGTH.finditer(text) if match[1] or match[2]]
    if re.search(r"short|long|duration|time", wanted, re.IGNORECASE):
        return float(int(times[0][1] or 0) * 60 + int(times[0][2] or 0)) if times else None
    match = re.search(r"-?\d+(?:\.\d+)?", text)
    return float(match[0]) if match else None


async def cheapest(story: Story) -> bool:
    """Of several cards with a button each, the one with the least or most of what is said."""
    wanted = story.hand.sentence
    least, most = _LEAST.search(wanted), _MOST.search(wanted)
    if story.clause.verb not in ("buy", "select", "find", "click") or not (least or most):
        return False
    return await take_extreme(story, wanted, bool(least))


async def take_extreme(story: Story, wanted: str, least: bool) -> bool:
    """Press the button of the best card."""
    sight = await story.hand.look()
    buttons = sight.having(lambda one: one.role == "button" and not one.off)
    measured = []
    for one in buttons:
        card = rows(sight, one)
        value = _measure(card.text, wanted)
        if value is not None and card.tag != "body":
            measured.append((value, one))
    if len(measured) < 2:
        return False
    _, button = (min if least else max)(measured, key=lambda pair: pair[0])
    await story.hand.click(button)
    return True


async def pick_extreme(story: Story) -> bool:
    """The card with the greatest or least number; covered ones are turned over one by one."""
    least, most = _LEAST.search(story.clause.rest), _MOST.search(story.clause.rest)
    if story.clause.verb not in ("find", "select", "click") or not (least or most):
        return False
    noun = re.search(r"\b(?P<noun>[a-z]+?)s? (?:with|that|which|of)\b", story.clause.rest.lower())
    kind = noun["noun"] if noun else "card"
    hidden = _numbered(await story.hand.look(), kind)
    if len(hidden) < 2:
        return False
    seen: list[tuple[float, int]] = []
    for number in range(len(hidden)):
        await story.hand.click(_numbered(await story.hand.look(), kind)[number])
        card = _numbered(await story.hand.look(), kind)[number]
        if (found := re.search(r"-?\d+", card.text)) is not None:
            seen.append((float(found[0]), number))
    if not seen:
        return False
    _, number = (min if least else max)(seen, key=lambda pair: pair[0])
    await story.hand.click(_numbered(await story.hand.look(), kind)[number])
    return True


def _numbered(sight: Sight, kind: str) -> list[Element]:
    """The things of that name: several alike beside each other."""
    groups: dict[tuple[int, str], list[Element]] = {}
    for one in sight.shown:
        if kind in one.words:
            groups.setdefault((one.parent, one.tag), []).append(one)
    return max(groups.values(), key=len, default=[])


async def in_order(story: Story) -> bool:
    """Click all numbers from the least to the greatest, or the other way."""
    up = re.search(
        r"\b(?:ascending|increasing) order|smallest to largest|\bin order\b", story.clause.rest, re.IGNORECASE
    )
    down = re.search(r"\b(?:descending|decreasing) order|largest to smallest", story.clause.rest, re.IGNORECASE)
    if story.clause.verb != "click" or not (up or down):
        return False
    sight = await story.hand.look()
    # Seen once and remembered: a page may cover them after the first click.
    numbers = [one for one in sight.shown if _PLAIN.match(one.text) and sight.leaf(one)]
    for one in sorted(numbers, key=lambda each: float(each.text), reverse=bool(down)):
        await story.hand.point(*one.middle)
    return bool(numbers)


async def parity(story: Story) -> bool:
    """Beside each number, the button that says whether it is odd or even."""
    if not re.search(r"\bodd or even|even or odd\b", story.clause.rest, re.IGNORECASE):
        return False
    sight = await story.hand.look()
    numbers = [one for one in sight.shown if _PLAIN.match(one.text) and sight.leaf(one)]
    for one in numbers:
        name = "even" if int(float(one.text)) % 2 == 0 else "odd"
        beside = [button for button in sight.shown if button.role == "button" and button.text.lower() == name]
        if beside:
            await story.hand.click(min(beside, key=lambda button: abs(button.middle[1] - one.middle[1])))
    return bool(numbers)


async def until(story: Story) -> bool:
    """Press the button again and again until the number fits: odd, even, less or greater than."""
    if story.clause.verb != "generate":
        return False
    fits = _condition(story.clause.rest)
    if fits is None:
        return False
    for _ in range(60):
        sight = await story.hand.look()
        number = next(
            (one for one in sight.shown if _PLAIN.match(one.text) and one.role != "button" and sight.leaf(one)), None
        )
        if number is not None and fits(float(number.text)):
            return True
        button = best(sight, Target(story.clause.word, "button"))
        if button is None:
            return False
        await story.hand.click(button)
    return False


def _condition(text: str) -> Callable[[float], bool] | None:
    if match := _THAN.search(text):
        limit = float(match["number"])
        less = match["side"].lower() in ("less", "lower", "smaller", "below", "under")
        return (lambda value: value < limit) if less else (lambda value: value > limit)
    if re.search(r"\bodd\b", text):
        return lambda value: int(value) % 2 == 1
    if re.search(r"\beven\b", text):
        return lambda value: int(value) % 2 == 0
    return None


async def guess(story: Story) -> bool:
    """Halve the range by what the page answers."""
    match = _BETWEEN.search(story.clause.text)
    if story.clause.verb != "guess" or match is None:
        return False
    low, high = int(match[1]), int(match[2])
    while low <= high:
        sight = await story.hand.look()
        fields, button = sight.fields(), sender(sight)
        if not fields or button is None:
            return False
        middle = (low + high) // 2
        await story.hand.write(fields[0], str(middle))
        await story.hand.click(button)
        said = (await story.hand.look()).texts().lower()
        if re.search(r"\bcorrect|\bright\b|\bfound\b", said):
            break
        if re.search(r"\b(?:lower|less|smaller|too high)\b", said):
            high = middle - 1
        elif re.search(r"\b(?:higher|greater|more|larger|too low)\b", said):
            low = middle + 1
        else:
            break
    story.ahead.clear()
    return True


async def when(story: Story) -> bool:
    """Press a button as soon as a number on the page fits: "buy when the price is less than $40"."""
    match = re.search(r"\bwhen\b(?P<if>.*)", story.clause.rest, re.IGNORECASE)
    fits = _condition(match["if"]) if match else None
    if match is None or fits is None:
        return False
    end = clock.monotonic() + _PATIENCE
    while clock.monotonic() < end:
        sight = await story.hand.look()
        price = next((found for one in sight.shown if sight.leaf(one) and (found := _MONEY.search(one.text))), None)
        button = best(sight, Target(story.clause.word, "button"))
        if price and button and fits(float(number_of((price[1] or price[2]).rstrip(".,")))):
            await story.hand.locator(button).click(timeout=500)
            return True
    return False
