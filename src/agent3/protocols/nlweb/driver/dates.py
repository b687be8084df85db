"""Dates and times: written where a field takes them, picked in a calendar where it does not."""

from __future__ import annotations

import re
from datetime import date, datetime, time

from agent3.protocols.nlweb.commands.spans import spans
from agent3.protocols.nlweb.driver.hand import Hand
from agent3.protocols.nlweb.driver.page_view import Element, Sight
from agent3.protocols.nlweb.driver.story import Story

__all__ = ["enter", "pick"]

_TRIES = 60
_YEAR = re.compile(r"\b(19|20)\d\d\b")
_MONTHS = tuple(date(2000, month, 1).strftime("%B").lower() for month in range(1, 13))
_FORMS = {"mm/dd/yyyy": "%m/%d/%Y", "dd/mm/yyyy": "%d/%m/%Y", "yyyy-mm-dd": "%Y-%m-%d"}


async def enter(story: Story) -> bool:
    """A clause that states a date or time: into the field for it."""
    if story.clause.verb not in ("type", "select") or story.clause.quotes:
        return False
    found = [one for one in spans(story.clause.rest, datetime.now()) if one.kind in ("date", "time")]  # noqa: DTZ005
    if len(found) != 1 or not re.search(r"\b(?:date|time|day|fecha|hora)\b", story.clause.rest, re.IGNORECASE):
        return False
    sight = await story.hand.look()
    fields = [one for one in sight.having(lambda one: one.tag == "input" and not one.off) if one.role == "textbox"]
    if not fields:
        return False
    value, field = found[0].value, fields[0]
    if isinstance(value, time):
        text = value.strftime("%H:%M") if field.kind == "time" else value.strftime("%I:%M %p").lstrip("0")
        await story.hand.write(field, text)
        return True
    written = re.search(r"\d{1,2}/\d{1,2}/\d{4}", story.clause.rest)
    return await pick(story.hand, field, value, written[0] if written else None)


async def pick(hand: Hand, field: Element, day: date, written: str | None = None) -> bool:
    """Put a date into a field: as its kind wants it, or through the calendar that opens on it."""
    if field.kind == "date":
        await hand.write(field, day.isoformat())
        return True
    if not field.fixed:
        await hand.write(field, written or day.strftime(_FORMS.get(field.hint.lower(), "%m/%d/%Y")), keys=True)
        return True
    await hand.click(field)
    await hand.settle(120, 900)
    for _ in range(_TRIES):
        sight = await hand.look()
        shown = _month(sight)
        if shown is None:
            return False
        if shown == (day.year, day.month):
            return await _day(hand, sight, day)
        step = _step(sight, forward=shown < (day.year, day.month))
        if step is None:
            return False
        await hand.click(step)
    return False


def _month(sight: Sight) -> tuple[int, int] | None:
    """Which month a calendar shows: the smallest text with a month and a year."""
    texts = [one.text for one in sight.shown if len(one.text) < 40 and _YEAR.search(one.text)]
    for text in sorted(texts, key=len):
        year = _YEAR.search(text)
        month = next((number for number, name in enumerate(_MONTHS, 1) if name[:3] in text.lower()), None)
        if month and year:
            return int(year[0]), month
    return None


def _step(sight: Sight, *, forward: bool) -> Element | None:
    wanted = ("next", ">") if forward else ("prev", "<")
    for one in sight.shown:
        said = f"{one.title} {one.text}".lower()
        if (
            one.pressable
            and len(said) < 30
            and (wanted[0] in said or one.own.strip() == wanted[1] or wanted[0] in one.words)
        ):
            return one
    return None


async def _day(hand: Hand, sight: Sight, day: date) -> bool:
    cells = [
        one for one in sight.shown if one.own == str(day.day) and (one.pressable or one.role in ("cell", "gridcell"))
    ]
    if not cells:
        return False
    await hand.click(cells[-1] if len(cells) > 1 and day.day > 15 else cells[0])
    return True
