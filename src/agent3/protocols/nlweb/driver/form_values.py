"""Which text goes into which field: "Ann as name, Rome as city", "the name Ann", "city to Rome", '"Ann" into Name'.

All of a clause or nothing: a form that gets half of what was said is worse than one that gets none. A date or time is
written in the form that its field takes, or chosen in its calendar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, time

from agent3.protocols.nlweb.driver.matching import nth
from agent3.protocols.nlweb.driver.page_operator import PageOperator
from agent3.protocols.nlweb.driver.page_view import Element, PageView
from agent3.protocols.nlweb.driver.sentences import Clause, parse_ordinal
from agent3.sentences.lexicon import to_concepts
from agent3.sentences.spans import Span, find_spans

__all__ = ["assign_values", "enter_moment", "find_field", "parse_moment", "takes_moment"]

_PARTS = re.compile(r",\s*(?:(?:and|y)\s+)?|\s+(?:and|y)\s+", re.IGNORECASE)
_ARTICLE = re.compile(r"^(?:in\s+|out\s+)?(?:(?:the|your|my|a|an|el|la|los|las|tu|mi|su)\s+)?", re.IGNORECASE)
_BEFORE_FIELD = re.compile(r"\s+(?:as|into|in|for|como|en)\s+", re.IGNORECASE)
_BEFORE_TEXT = re.compile(r"\s+(?:to|with|as|is|con|a)\s+|\s*[:=]\s*", re.IGNORECASE)
_AT_END = re.compile(
    r"\s+(?:in|there|into it|(?:in|into|on)\s+the\s+(?:form|page|(?:text |input )?(?:fields|inputs|boxes)))$",
    re.IGNORECASE,
)
_GENERIC = frozenset(to_concepts("text input field box textbox area textarea fields inputs boxes campo casilla"))

Values = list[tuple[Element, str]]


def assign_values(view: PageView, clause: Clause) -> Values:
    """Each field with its text, in order; empty unless every word has its place."""
    words = clause.rest.strip(" .")
    values = _assign(view, clause, [part.strip() for part in _PARTS.split(_AT_END.sub("", words)) if part.strip()])
    if values:
        return values
    # "Trinidad and Tobago as country" is one part, though there is an "and" in it.
    values = _assign(view, clause, [words])
    # But a text that speaks of a second field is rather two, and one of them was not understood.
    if not values or any(
        frozenset(to_concepts(values[0][1])) & frozenset(to_concepts(field.field_name))
        for field in view.fields()
        if field.index != values[0][0].index
    ):
        return []
    return values


def find_field(words: str, fields: Sequence[Element]) -> Element | None:
    """The field that all of the words name: by its label, hint, the text beside it or its marks; the plainest one.

    Words such as "the second text field" name one by its place, "the field" the only one.
    """
    wanted = frozenset(to_concepts(words)) - _GENERIC
    named = []
    for field in fields if wanted else ():
        texts = [field.label, field.hint, field.beside, field.title, field.kind, " ".join(field.mark_words)]
        if wanted <= frozenset(word for text in texts for word in to_concepts(text)):
            named.append(field)
    if named:
        return min(named, key=lambda field: (len(frozenset(to_concepts(field.field_name)) - wanted), field.index))
    ordinal = parse_ordinal(words)
    if ordinal is not None and len(wanted) <= 1:
        return nth([field for field in fields if not field.read_only], ordinal)
    return fields[0] if not wanted and len(fields) == 1 else None


def _assign(view: PageView, clause: Clause, parts: Sequence[str]) -> Values:
    """The field and the text of each part, such as "Ann as name", by the first way it can be cut in two."""
    values: Values = []
    for part in parts:
        taken = {field.index for field, _ in values}
        fields = [field for field in view.fields() if field.index not in taken]
        cuts = [(part[: cut.start()], part[cut.end() :]) for cut in _BEFORE_FIELD.finditer(part)]
        cuts += [(part[cut.end() :], part[: cut.start()]) for cut in _BEFORE_TEXT.finditer(part)]
        words = _ARTICLE.sub("", _AT_END.sub("", part)).split()
        cuts += [(" ".join(words[count:]), " ".join(words[:count])) for count in range(len(words) - 1, 0, -1)]
        cuts += [(part, "")] if clause.is_quoted(part) else []
        for text, name in cuts:
            # A quoted text is the whole value; words beside it would be lost.
            if not text.strip() or (clause.has_quotes(text) and not clause.is_quoted(text.strip())):
                continue
            field = find_field(clause.restore(_ARTICLE.sub("", name)), fields)
            if field is not None:
                values.append((field, clause.restore(text.strip())))
                break
        else:
            return []
    return values


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
