"""Dates and times of a sentence, in the form that a field takes; through its calendar where it takes no text."""

from __future__ import annotations

import re
from datetime import date, datetime, time

from agent3.protocols.nlweb.commands.spans import Span, find_spans
from agent3.protocols.nlweb.driver.page_operator import PageOperator
from agent3.protocols.nlweb.driver.page_view import Element, PageView

__all__ = ["enter_moment", "parse_moment", "takes_moment"]

_MOST_MONTHS = 60
_YEAR = re.compile(r"\b(19|20)\d\d\b")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def takes_moment(field: Element) -> bool:
    """Whether a field wants a date or a time, rather than any text."""
    return field.kind in ("date", "time") or field.read_only


def parse_moment(text: str) -> date | time | None:
    """The date or time that a text is; None if it says more, or can be read in two ways, such as 03/04/2027."""
    found: list[Span] = find_spans(text, datetime.now())  # noqa: DTZ005 - the user's own day
    if len(found) != 1 or found[0].other is not None or found[0].kind not in ("date", "time"):
        return None
    moment: date | time = found[0].value
    return moment if not re.search(r"\w", text[: found[0].start] + text[found[0].end :]) else None


async def enter_moment(operator: PageOperator, field: Element, moment: date | time) -> bool:
    """Put a date or time into a field that ``takes_moment``."""
    if isinstance(moment, time):
        if field.kind == "time":
            await operator.write(field, moment.strftime("%H:%M"))
        return field.kind == "time"
    if field.kind == "date":
        await operator.write(field, moment.isoformat())
        return True
    if field.kind == "time":
        return False
    # A field that takes no text: open its calendar, go to the month, and press the day.
    day = moment
    await operator.click(field)
    await operator.settle(120, 900)
    for _ in range(_MOST_MONTHS):
        view = await operator.look()
        shown = _find_month(view)
        if shown is None:
            return False
        if shown == (day.year, day.month):
            cells = view.where(
                lambda cell: cell.own == str(day.day) and (cell.pressable or cell.role in ("cell", "gridcell"))
            )
            if cells:
                # A calendar may also show days of the months before and after: of two, the early day comes first.
                await operator.click(cells[-1] if len(cells) > 1 and day.day > 15 else cells[0])
            return bool(cells)
        word, sign = ("next", ">") if shown < (day.year, day.month) else ("prev", "<")
        step = next(
            (
                element
                for element in view.where(lambda element: element.pressable)
                if len(said := f"{element.title} {element.text}".lower()) < 30
                and (word in said or element.own.strip() == sign or word in element.mark_words)
            ),
            None,
        )
        if step is None:
            return False
        await operator.click(step)
    return False


def _find_month(view: PageView) -> tuple[int, int] | None:
    """The year and month that a calendar shows: the shortest text with both."""
    texts = [element.text for element in view.visible if len(element.text) < 40 and _YEAR.search(element.text)]
    for text in sorted(texts, key=len):
        year = _YEAR.search(text)
        month = next((number for number, name in enumerate(_MONTHS, 1) if name in text.lower()), None)
        if month and year:
            return int(year[0]), month
    return None
