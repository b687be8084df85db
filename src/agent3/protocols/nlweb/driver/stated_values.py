"""Values that a clause states without quotes: "Ann as name, Rome as city", "the name Ann", "city to Rome".

All of it or nothing: a form that gets half of what was said is worse than one that gets none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent3.protocols.nlweb.commands.lexicon import concepts
from agent3.protocols.nlweb.driver.page_view import Element, Sight

__all__ = ["named", "stated"]

_PARTS = re.compile(r",\s*(?:(?:and|y)\s+)?|\s+(?:and|y)\s+", re.IGNORECASE)
_ARTICLE = r"(?:(?:the|your|my|a|an|el|la|los|las|tu|mi|su)\s+)?"
_AS = re.compile(
    rf"^(?P<text>\S.*?)\s+(?:as|into|in|for|como|en)\s+{_ARTICLE}(?P<where>\S.*)$",
    re.IGNORECASE,
)
_TO = re.compile(
    rf"^(?:in\s+|out\s+)?{_ARTICLE}(?P<where>\S.*?)(?:\s+(?:to|with|as|is|con|a)\s+|\s*[:=]\s*)(?P<text>\S.*)$",
    re.IGNORECASE,
)
_FIRST = re.compile(rf"^(?:in\s+)?{_ARTICLE}(?P<words>\S.*?)(?:\s+(?:in|there|into it))?$", re.IGNORECASE)
_GENERIC = frozenset(concepts("text input field box textbox area textarea fields inputs boxes campo casilla"))

Stated = list[tuple[Element, str]]


def stated(sight: Sight, rest: str) -> Stated:
    """Each field with its text, in order; empty unless every word has its place."""
    parts = [part.strip() for part in _PARTS.split(rest.strip(" .")) if part.strip()]
    if found := _all(sight, parts):
        return found
    whole = _all(sight, [rest.strip(" .")])
    return whole if whole and not _speaks_of_others(sight, *whole[0]) else []


def named(words: str, fields: Sequence[Element]) -> Element | None:
    """The field that all of the words name, by its label, hint, the text beside it or its marks; the plainest one."""
    wanted = frozenset(concepts(words)) - _GENERIC
    fitting = [one for one in fields if wanted and wanted <= _known(one)]
    return min(fitting, key=lambda one: (len(frozenset(concepts(_label(one))) - wanted), one.index), default=None)


def _speaks_of_others(sight: Sight, field: Element, text: str) -> bool:
    """Whether a text with an "and" in it is rather two."""
    said = frozenset(concepts(text))
    return any(said & frozenset(concepts(_label(one))) for one in sight.fields() if one.index != field.index)


def _known(one: Element) -> frozenset[str]:
    texts = [one.label, one.hint, one.before, one.title, one.kind, " ".join(one.words)]
    return frozenset(word for text in texts for word in concepts(text))


def _label(one: Element) -> str:
    return one.label or one.hint or one.before or one.title


def _all(sight: Sight, parts: Sequence[str]) -> Stated:
    found: Stated = []
    for part in parts:
        taken = {one.index for one, _ in found}
        pair = _one(part, [one for one in sight.fields() if one.index not in taken])
        if pair is None:
            return []
        found.append(pair)
    return found


def _one(part: str, fields: Sequence[Element]) -> tuple[Element, str] | None:
    for form in (_AS, _TO):
        match = form.match(part)
        field = named(match["where"], fields) if match else None
        if match and field is not None:
            return field, match["text"].strip()
    match = _FIRST.match(part)
    words = match["words"].split() if match else []
    for count in range(len(words) - 1, 0, -1):
        field = named(" ".join(words[:count]), fields)
        if field is not None:
            return field, " ".join(words[count:])
    return None
