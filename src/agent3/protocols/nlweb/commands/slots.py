"""Filling the parameters of an action from the words of a command, by the types of its schema.

Dates, times, money, numbers, enums, booleans, places, e-mail addresses and free text, in English and Spanish. A value
that is not in the command is never made up: it is missing, and the caller asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from difflib import SequenceMatcher
from typing import Any, Literal

from agent3.directory.search import words
from agent3.protocols.nlweb.commands.lexicon import EMPTY, concept, concepts, fold
from agent3.protocols.nlweb.commands.spans import Kind, Span, spans

__all__ = ["Filled", "Sort", "fill", "sort_of"]

Sort = Literal["date", "datetime", "time", "money", "number", "email", "url", "enum", "boolean", "place", "text"]

_DATE = frozenset("date day fecha dia when cuando checkin checkout depart arrive".split())
_MONEY = frozenset("price cost budget amount precio presupuesto importe coste fare".split())
_PLACE = frozenset(
    "origin destination city country place location where airport station ciudad lugar origen destino".split()
)
_FROM = frozenset("origin from source start departure origen desde salida pickup".split())
_TO = frozenset("destination to target end arrival destino hasta hacia llegada dropoff".split())
_RETURN = frozenset("return back until end checkout vuelta regreso".split())
_MOST = frozenset("max maximum most limit budget up maximo tope".split())
_LEAST = frozenset("min minimum least minimo".split())
_QUERY = ("query", "q", "search", "term", "keyword", "text", "item", "product", "name", "title", "topic", "message")

_CUE_FROM = r"from|leaving(?: from)?|departing(?: from)?|out of|desde|saliendo de|de"
_CUE_TO = r"to|into|towards?|going to|a|hacia|hasta|para|con destino a"
_CUE_IN = r"in|at|near|around|en|cerca de"
_CUE_RETURN = r"returning|return|back|until|through|till|volviendo|vuelta|regresando|regreso|hasta"
_CUE_MOST = (
    r"under|below|less than|cheaper than|up to|at most|max(?:imum)?(?: of)?|menos de|por debajo de|hasta|como mucho"
)
_CUE_LEAST = r"over|above|more than|at least|min(?:imum)?(?: of)?|mas de|por encima de|al menos|desde"
_CUE_COUNT = r"for|para|order|buy|add|pide|compra"
_CUE_TEXT = r"named|called|titled|about|llamad[oa]|titulad[oa]|sobre"
_STOPS = re.compile(
    r"\s+(?:from|to|in|at|on|for|with|by|under|below|over|above|and|then|returning|leaving|between|until|near|please"
    r"|desde|hasta|hacia|en|para|por|con|el|del|a|y|entre|saliendo|volviendo)\s+|[,;.!?](?:\s|$)"
)
_INTO = frozenset("into to in on onto from at al a en del de".split())
_TELLING = ("date", "time", "money", "email", "url")
_NO = re.compile(r"\b(?:without|no|not|don'?t|never|sin|non|excluding|excepto)\b")
_SUITS: dict[Sort, tuple[Kind, ...]] = {
    "date": ("date",),
    "time": ("time",),
    "money": ("money", "number"),
    "number": ("number",),
    "email": ("email",),
    "url": ("url",),
}


@dataclass(slots=True)
class Filled:
    """What was found for the parameters of one action. ``doubts`` are values that can be read in two ways."""

    values: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    doubts: dict[str, list[Any]] = field(default_factory=dict)
    rest: str = ""
    """The command without what was used."""
    loose: str | None = None
    """The parameter that got all words that nothing else explained, if one did."""
    sure: int = 0
    """How many values were found by their type or by a word before them."""
    idle: int = 0
    """How many dates, times, sums and addresses of the command have no parameter."""


def fill(command: str, schema: Mapping[str, Any], now: datetime, verbs: Iterable[str] = ()) -> Filled:
    """Read the parameters of ``schema`` out of ``command``; ``verbs`` are words of the action itself, not values."""
    return _Filling(command, schema, now, frozenset(verbs)).run()


def sort_of(name: str, schema: Mapping[str, Any]) -> Sort:
    """What kind of value a parameter takes, by its schema, and by its name where that says only "string"."""
    if "enum" in schema:
        return "enum"
    kind, form = schema.get("type"), schema.get("format")
    forms: dict[Any, Sort] = {"date": "date", "date-time": "datetime", "time": "time", "email": "email", "uri": "url"}
    said = set(words(name))
    if form in forms:
        return forms[form]
    if kind in ("integer", "number"):
        return "money" if said & _MONEY else "number"
    if kind == "boolean":
        return "boolean"
    return _by_name(said)


def _by_name(said: set[str]) -> Sort:
    for names, sort in (({"email", "mail", "correo"}, "email"), ({"url", "link"}, "url"), (_DATE, "date")):
        if said & names:
            return sort  # type: ignore[return-value]
    if said & {"time", "hour", "hora"}:
        return "time"
    if said & _PLACE or (said <= (_FROM | _TO) and said):
        return "place"
    return "text"


class _Filling:
    """One command against one schema: the sure kinds first, free text from what is left."""

    def __init__(self, command: str, schema: Mapping[str, Any], now: datetime, verbs: frozenset[str]):
        self._text = command
        self._plain = "".join((fold(one) or one)[0] for one in command)
        self._properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
        self._required: Sequence[str] = schema.get("required", ())
        self._verbs = verbs
        self._spans = spans(command, now)
        self._taken: list[tuple[int, int]] = []
        self._filled = Filled()

    def run(self) -> Filled:
        sorts = {name: sort_of(name, one) for name, one in self._properties.items()}
        for name in (name for name, sort in sorts.items() if sort == "enum"):
            self._enum(name)
        for kind in ("email", "url", "datetime", "date", "time", "money", "number"):
            self._by_span([name for name, sort in sorts.items() if sort == kind], kind)
        for name in (name for name, sort in sorts.items() if sort == "boolean"):
            self._boolean(name)
        self._texts([name for name, sort in sorts.items() if sort in ("place", "text")], sorts)
        self._filled.idle = sum(self._free(one.start, one.end) for one in self._spans if one.kind in _TELLING)
        self._filled.sure = len(self._filled.values)
        self._loosely(sorts)
        self._filled.missing = [name for name in self._required if name not in self._filled.values]
        self._filled.rest = self._left()
        return self._filled

    # --- spans

    def _by_span(self, names: list[str], sort: str) -> None:
        """Those with a word before the value that speaks for them choose first; the others take what is left."""
        for name in [*names]:
            found = self._cued(name, sort)
            if found is not None:
                self._give(name, found, sort)
                names.remove(name)
        for name in names:
            if (found := self._first(name, sort)) is not None:
                self._give(name, found, sort)

    def _suited(self, sort: str) -> list[Span]:
        kinds = _SUITS.get("date" if sort == "datetime" else sort, ())  # type: ignore[call-overload]
        suited = [one for kind in kinds for one in self._spans if one.kind == kind]
        return [one for one in suited if self._free(one.start, one.end)]

    def _cued(self, name: str, sort: str) -> Span | None:
        cue = re.compile(rf"(?:^|\W)(?:{self._cues(name, sort)})\W+(?:(?:the|el|la|of|de|than|on)\W+)*$")
        after = re.compile(rf"^\W*(?:{_names(name)})")
        for span in self._suited(sort):
            if cue.search(self._plain[: span.start]) or (sort == "number" and after.match(self._plain[span.end :])):
                return span
        return None

    def _cues(self, name: str, sort: str) -> str:
        said = set(words(name))
        cues = [_names(name)]
        if said & _MOST:
            cues.append(_CUE_MOST)
        if said & _LEAST:
            cues.append(_CUE_LEAST)
        if sort in ("date", "datetime") and said & _RETURN:
            cues.append(_CUE_RETURN)
        elif sort in ("date", "datetime") and said & _FROM:
            cues.append(_CUE_FROM)
        return "|".join(cues)

    def _first(self, name: str, sort: str) -> Span | None:
        """The first that suits, unless the words around it speak against it."""
        said = set(words(name))
        for span in self._suited(sort):
            before = self._plain[: span.start]
            if sort in ("date", "datetime") and said & _RETURN and not self._ended(before, _CUE_RETURN):
                continue
            if sort == "number" and span.unit == "article":
                continue
            if sort == "number" and self._ended(before, f"{_CUE_MOST}|{_CUE_LEAST}") and not said & (_MOST | _LEAST):
                continue
            if sort == "money" and span.kind == "number" and not self._ended(before, f"{_CUE_MOST}|{_CUE_LEAST}"):
                continue
            return span
        return None

    def _ended(self, before: str, cue: str) -> bool:
        return re.search(rf"(?:^|\W)(?:{cue})\W+(?:(?:the|el|la|on|of|de)\W+)*$", before) is not None

    def _give(self, name: str, span: Span, sort: str) -> None:
        self._take(span.start, span.end)
        value = self._formed(name, span, sort)
        self._filled.values[name] = value
        if span.other is not None:
            self._filled.doubts[name] = [value, span.other.isoformat()]

    def _formed(self, name: str, span: Span, sort: str) -> Any:
        value = span.value
        if sort == "datetime":
            return self._with_time(value)
        if isinstance(value, date | time):
            return value.isoformat() if isinstance(value, date) else value.strftime("%H:%M")
        kind = self._properties[name].get("type")
        if kind == "integer":
            return int(value)
        if kind == "string":
            return str(value)
        return value

    def _with_time(self, day: date) -> str:
        clock = next((one for one in self._spans if one.kind == "time" and self._free(one.start, one.end)), None)
        if clock is not None:
            self._take(clock.start, clock.end)
        return datetime.combine(day, clock.value if clock else time()).isoformat()

    # --- enums and booleans

    def _enum(self, name: str) -> None:
        """The choice that is named, in either language; the longest of several. One of none is no choice."""
        best: tuple[int, Any, int, int] | None = None
        for choice in self._properties[name]["enum"]:
            found = self._named(str(choice))
            if found and (best is None or found[1] - found[0] > best[0]):
                best = (found[1] - found[0], choice, *found)
        if best is not None:
            self._filled.values[name] = best[1]
            self._take(best[2], best[3])

    def _named(self, choice: str) -> tuple[int, int] | None:
        literal = re.search(rf"(?<!\w){re.escape(fold(choice)).replace('_', '[ _-]')}s?(?!\w)", self._plain)
        if literal:
            return literal.span()
        wanted = [concept(word) for word in words(choice)]
        said = [(match, concept(one)) for match in re.finditer(r"\w+", self._plain) for one in words(match[0])[:1]]
        for index in range(len(said) - len(wanted) + 1):
            part = said[index : index + len(wanted)]
            if [one for _, one in part] == wanted and not {one for _, one in part} <= self._verbs:
                return part[0][0].start(), part[-1][0].end()
        return None

    def _boolean(self, name: str) -> None:
        wanted = [concept(word) for word in words(name)]
        for match in re.finditer(r"\w+(?:[ -]\w+)*?", self._plain):
            said = [concept(word) for word in words(self._plain[match.start() :])[: len(wanted)]]
            if said == wanted:
                before = self._plain[max(0, match.start() - 12) : match.start()]
                self._filled.values[name] = _NO.search(before) is None
                return

    # --- text

    def _texts(self, names: list[str], sorts: Mapping[str, Sort]) -> None:
        left = [name for name in names if not self._after_cue(name, sorts[name])]
        left.sort(key=lambda name: (name not in self._required, _query_rank(name)))
        quotes = [one for one in self._spans if one.kind == "quote" and self._free(one.start, one.end)]
        for name, quote in zip([*left], quotes, strict=False):
            self._filled.values[name] = quote.value
            self._take(quote.start, quote.end)
            left.remove(name)

    def _loosely(self, sorts: Mapping[str, Sort]) -> None:
        """The text parameter that is nearest to "what is looked for" gets what is left."""
        left = [name for name, sort in sorts.items() if sort == "text" and name not in self._filled.values]
        left.sort(key=lambda name: (name not in self._required, _query_rank(name)))
        if left and (left[0] in self._required or _query_rank(left[0]) < len(_QUERY)):
            self._residue(left[0])

    def _after_cue(self, name: str, sort: Sort) -> bool:
        """The words after one that speaks for the parameter, up to the next such word."""
        for match in re.finditer(
            rf"(?:^|(?<=\W))(?:{self._text_cues(name, sort)})(?:\s*[:=]\s*|\s+)(?=\S)", self._plain
        ):
            start, end = match.end(), self._end_of_text(match.end())
            value = self._text[start:end].strip(" ,;.!?¿¡")
            if not value or not self._free(start, end) or self._is_verb(value.split()[0]):
                continue
            self._filled.values[name] = self._unquoted(value)
            self._take(match.start(), end)
            return True
        return False

    def _text_cues(self, name: str, sort: Sort) -> str:
        said = set(words(name))
        cues = [_names(name)]
        if said & _FROM:
            cues.append(_CUE_FROM)
        elif said & _TO:
            cues.append(_CUE_TO)
        elif sort == "place":
            cues.append(_CUE_IN)
        elif said & {"name", "title", "topic", "nombre"}:
            cues.append(_CUE_TEXT)
        elif said & {"recipient", "receiver", "destinatario"}:
            cues.append(_CUE_TO)
        return "|".join(cues)

    def _end_of_text(self, start: int) -> int:
        quoted = next((one for one in self._spans if one.kind == "quote" and one.start == start), None)
        if quoted is not None:
            return quoted.end
        stops = [match.start() for match in _STOPS.finditer(self._plain, start) if match.start() > start]
        starts = [
            one.start for one in self._spans if one.start > start and one.kind != "number" and one.unit != "article"
        ]
        return min([*stops, *starts, *(taken for taken, _ in self._taken if taken > start), len(self._plain)])

    def _unquoted(self, value: str) -> str:
        return value[1:-1] if len(value) > 1 and value[0] in "\"'“«" and value[-1] in "\"'”»" else value

    def _residue(self, name: str) -> None:
        """What is left when the words of the action and all other values are gone."""
        left = self._left()
        spoken = left.split()
        while spoken and self._is_verb(spoken[0]):
            spoken.pop(0)
        while spoken and fold(spoken[-1]).strip(".,!?") in EMPTY | {"please"}:
            spoken.pop()
        spoken = self._without_place(spoken)
        value = " ".join(spoken).strip(" ,;.!?¿¡")
        if value:
            self._filled.values[name] = value
            self._filled.loose = name
            self._take(0, len(self._text))

    def _without_place(self, spoken: list[str]) -> list[str]:
        """Without an end such as "into my cart" where the cart belongs to the action."""
        for index in range(1, len(spoken)):
            if fold(spoken[index]) in _INTO and all(map(self._is_verb, spoken[index + 1 :])) and spoken[index + 1 :]:
                return spoken[:index]
        return spoken

    def _is_verb(self, word: str) -> bool:
        meant = concepts(word)
        return not meant or meant[0] in self._verbs

    def _left(self) -> str:
        kept = [one if self._free(index, index + 1) else " " for index, one in enumerate(self._text)]
        return re.sub(r"\s+", " ", "".join(kept)).strip()

    def _free(self, start: int, end: int) -> bool:
        return not any(start < taken_end and taken_start < end for taken_start, taken_end in self._taken)

    def _take(self, start: int, end: int) -> None:
        self._taken.append((start, end))


def _names(name: str) -> str:
    """A pattern for the name of a parameter as people write it: its words in a row, or its last word."""
    said = [fold(word) for word in re.findall(r"[A-Za-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))]
    return "|".join(dict.fromkeys(re.escape(one) for one in (" ".join(said), said[-1]) if one)) if said else r"(?!)"


def _query_rank(name: str) -> int:
    """How near the name of a parameter is to "whatever is being looked for"."""
    said = words(name)
    ranks = [
        index for index, one in enumerate(_QUERY) for word in said if SequenceMatcher(None, one, word).ratio() > 0.85
    ]
    return min(ranks, default=len(_QUERY))
