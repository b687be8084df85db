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
from functools import lru_cache
from typing import Any, Literal

from agent3.protocols.nlweb.commands.command import Command
from agent3.sentences.lexicon import EMPTY, fold, to_concept, to_concepts
from agent3.sentences.spans import Kind, Span
from agent3.sentences.word_forms import words

__all__ = ["SlotType", "Slots", "fill_slots", "slot_type"]

SlotType = Literal["date", "datetime", "time", "money", "number", "email", "url", "enum", "boolean", "place", "text"]

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
_CUE_TEXT = r"named|called|titled|about|llamad[oa]|titulad[oa]|sobre"
_STOPS = re.compile(
    r"\s+(?:from|to|in|at|on|for|with|by|under|below|over|above|and|then|returning|leaving|between|until|near|please"
    r"|desde|hasta|hacia|en|para|por|con|el|del|a|y|entre|saliendo|volviendo)\s+|[,;.!?](?:\s|$)"
)
_INTO = frozenset("into to in on onto from at al a en del de".split())
_TELLING_KINDS = ("date", "time", "money", "email", "url")
_NEGATION = re.compile(r"\b(?:without|no|not|don'?t|never|sin|non|excluding|excepto)\b")
_SPAN_KINDS: dict[SlotType, tuple[Kind, ...]] = {
    "date": ("date",),
    "datetime": ("date",),
    "time": ("time",),
    "money": ("money", "number"),
    "number": ("number",),
    "email": ("email",),
    "url": ("url",),
}


_FORMATS: dict[Any, SlotType] = {
    "date": "date", "date-time": "datetime", "time": "time", "email": "email", "uri": "url",
}  # fmt: skip
_BY_NAME: tuple[tuple[frozenset[str], SlotType], ...] = (
    (frozenset({"email", "mail", "correo"}), "email"),
    (frozenset({"url", "link"}), "url"),
    (_DATE, "date"),
    (frozenset({"time", "hour", "hora"}), "time"),
    (_PLACE, "place"),
)


@dataclass(slots=True)
class Slots:
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


def fill_slots(command: Command, schema: Mapping[str, Any], verbs: Iterable[str] = ()) -> Slots:
    """Read the parameters of ``schema`` out of a command; ``verbs`` are words of the action itself, not values."""
    return _SlotFiller(command, schema, frozenset(verbs)).run()


def slot_type(name: str, schema: Mapping[str, Any]) -> SlotType:
    """What kind of value a parameter takes, by its schema, and by its name where that says only "string"."""
    if "enum" in schema:
        return "enum"
    if (form := schema.get("format")) in _FORMATS:
        return _FORMATS[form]
    said = _name_words(name)
    if schema.get("type") in ("integer", "number"):
        return "money" if said & _MONEY else "number"
    if schema.get("type") == "boolean":
        return "boolean"
    found: SlotType | None = next((slot for names, slot in _BY_NAME if said & names), None)
    return found or ("place" if said and said <= (_FROM | _TO) else "text")


class _SlotFiller:
    """One command against one schema: the sure kinds first, free text from what is left."""

    def __init__(self, command: Command, schema: Mapping[str, Any], verbs: frozenset[str]):
        self._command = command
        self._plain = command.plain
        self._properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
        self._required: Sequence[str] = schema.get("required", ())
        self._verbs = verbs
        self._taken: list[tuple[int, int]] = []
        self._slots = Slots()

    def run(self) -> Slots:
        slots = self._slots
        types = {name: slot_type(name, schema) for name, schema in self._properties.items()}
        for name in (name for name, slot in types.items() if slot == "enum"):
            self._fill_enum(name)
        # The most specific first: a date holds numbers, and a sum is one.
        kinds: tuple[SlotType, ...] = ("email", "url", "datetime", "date", "time", "money", "number")
        for kind in kinds:
            self._fill_from_spans([name for name, slot in types.items() if slot == kind], kind)
        for name in (name for name, slot in types.items() if slot == "boolean"):
            wanted = [to_concept(word) for word in words(name)]
            said = self._command.words
            for index, (start, _, _) in enumerate(said):
                if [concept for _, _, concept in said[index : index + len(wanted)]] == wanted:
                    slots.values[name] = _NEGATION.search(self._plain[max(0, start - 12) : start]) is None
                    break
        # The words after one that speaks for the parameter; quoted texts for those that have no such word.
        free = [name for name, slot in types.items() if slot in ("place", "text")]
        free = sorted((name for name in free if not self._fill_after_cue(name, types[name])), key=self._rank_text)
        spans = self._command.spans
        quotes = [span for span in spans if span.kind == "quote" and self._is_free(span.start, span.end)]
        for name, quote in zip(free, quotes, strict=False):
            slots.values[name] = quote.value
            self._taken.append((quote.start, quote.end))
        slots.idle = sum(self._is_free(span.start, span.end) for span in spans if span.kind in _TELLING_KINDS)
        slots.sure = len(slots.values)  # before the guess that follows
        # The text parameter that is nearest to "what is looked for" gets what is left.
        texts = [name for name, slot in types.items() if slot == "text" and name not in slots.values]
        texts.sort(key=self._rank_text)
        if texts and (texts[0] in self._required or _query_rank(texts[0]) < len(_QUERY)):
            self._fill_with_rest(texts[0])
        slots.missing = [name for name in self._required if name not in slots.values]
        slots.rest = self._unused_text()
        return slots

    # Dates, times, money, numbers and addresses

    def _fill_from_spans(self, names: list[str], kind: SlotType) -> None:
        """Those with a word before the value that speaks for them choose first; the others take what is left."""
        for name in [*names]:
            before, after = _cue_patterns(name, kind)
            for span in self._free_spans(kind):
                cued = before.search(self._plain[: span.start])
                if cued or (kind == "number" and after.match(self._plain[span.end :])):
                    self._take_span(name, span, kind)
                    names.remove(name)
                    break
        for name in names:
            for span in self._free_spans(kind):
                if self._may_be(name, span, kind):
                    self._take_span(name, span, kind)
                    break

    def _free_spans(self, kind: SlotType) -> list[Span]:
        return [
            span
            for wanted in _SPAN_KINDS.get(kind, ())
            for span in self._command.spans
            if span.kind == wanted and self._is_free(span.start, span.end)
        ]

    def _may_be(self, name: str, span: Span, kind: SlotType) -> bool:
        """Whether no word around a value speaks against it."""
        said, before = _name_words(name), self._plain[: span.start]
        if kind in ("date", "datetime"):
            return not said & _RETURN or _ENDS_WITH_RETURN.search(before) is not None
        if kind == "number":
            limits = _ENDS_WITH_LIMIT.search(before) is not None
            return span.unit != "article" and (not limits or bool(said & (_MOST | _LEAST)))
        if kind == "money":
            return span.kind == "money" or _ENDS_WITH_LIMIT.search(before) is not None
        return True

    def _take_span(self, name: str, span: Span, kind: SlotType) -> None:
        self._taken.append((span.start, span.end))
        value = span.value
        if kind == "datetime":
            clock = next(iter(self._free_spans("time")), None)
            if clock is not None:
                self._taken.append((clock.start, clock.end))
            value = datetime.combine(value, clock.value if clock else time()).isoformat()
        elif isinstance(value, date):
            value = value.isoformat()
        elif isinstance(value, time):
            value = value.strftime("%H:%M")
        elif self._properties[name].get("type") == "integer":
            value = int(value)
        elif self._properties[name].get("type") == "string":
            value = str(value)
        self._slots.values[name] = value
        if span.other is not None:
            self._slots.doubts[name] = [value, span.other.isoformat()]

    # Enums and booleans

    def _fill_enum(self, name: str) -> None:
        """The choice that is named, in either language; the longest of several."""
        said = self._command.words
        best: tuple[int, int, Any] | None = None
        for choice in self._properties[name]["enum"]:
            literal = _choice_pattern(str(choice)).search(self._plain)
            places = [literal.span()] if literal else []
            wanted = [] if literal else [to_concept(word) for word in words(str(choice))]
            for index in range(len(said) - len(wanted) + 1 if wanted else 0):
                part = said[index : index + len(wanted)]
                meant = [concept for _, _, concept in part]
                if meant == wanted and not set(meant) <= self._verbs:
                    places.append((part[0][0], part[-1][1]))
            for start, end in places[:1]:
                if best is None or end - start > best[1] - best[0]:
                    best = (start, end, choice)
        if best is not None:
            self._slots.values[name] = best[2]
            self._taken.append(best[:2])

    # Texts

    def _fill_after_cue(self, name: str, kind: SlotType) -> bool:
        """The words after one that speaks for the parameter, up to the next such word."""
        spans = self._command.spans
        # A number may be part of a name ("Gate 7"); a date, a time or a sum is not.
        others = [span.start for span in spans if span.kind != "number"]
        for match in _text_cue_pattern(name, kind).finditer(self._plain):
            start = match.end()
            end = next((span.end for span in spans if span.kind == "quote" and span.start == start), None)
            if end is None:
                stops = [stop.start() for stop in _STOPS.finditer(self._plain, start)]
                places = [*stops, *others, *(taken for taken, _ in self._taken)]
                end = min((place for place in places if place > start), default=len(self._plain))
            value = self._command.text[start:end].strip(" ,;.!?¿¡")
            if not value or not self._is_free(start, end) or self._is_verb(value.split()[0]):
                continue
            quoted = len(value) > 1 and value[0] in "\"'“«" and value[-1] in "\"'”»"
            self._slots.values[name] = value[1:-1] if quoted else value
            self._taken.append((match.start(), end))
            return True
        return False

    def _fill_with_rest(self, name: str) -> None:
        """What is left when the words of the action and all other values are gone."""
        said = self._unused_text().split()
        while said and self._is_verb(said[0]):
            said.pop(0)
        while said and fold(said[-1]).strip(".,!?") in EMPTY | {"please"}:
            said.pop()
        # Without an end such as "into my cart" where the cart belongs to the action.
        for index in range(1, len(said) - 1):
            if fold(said[index]) in _INTO and all(map(self._is_verb, said[index + 1 :])):
                said = said[:index]
                break
        value = " ".join(said).strip(" ,;.!?¿¡")
        if value:
            self._slots.values[name] = value
            self._slots.loose = name
            self._taken.append((0, len(self._plain)))

    def _rank_text(self, name: str) -> tuple[bool, int]:
        return name not in self._required, _query_rank(name)

    def _is_verb(self, word: str) -> bool:
        meant = to_concepts(word)
        return not meant or meant[0] in self._verbs

    def _unused_text(self) -> str:
        letters = list(self._command.text)
        for start, end in self._taken:
            letters[start:end] = " " * len(letters[start:end])
        return " ".join("".join(letters).split())

    def _is_free(self, start: int, end: int) -> bool:
        return not any(start < taken_end and taken_start < end for taken_start, taken_end in self._taken)


# What the names of parameters say. Interfaces name theirs alike, and every sentence asks again.


@lru_cache(maxsize=4096)
def _name_words(name: str) -> frozenset[str]:
    return frozenset(words(name))


@lru_cache(maxsize=4096)
def _name_pattern(name: str) -> str:
    """A pattern for the name of a parameter as people write it: its words in a row, or its last word."""
    said = [fold(word) for word in re.findall(r"[A-Za-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))]
    return "|".join(dict.fromkeys(map(re.escape, (" ".join(said), said[-1])))) if said else r"(?!)"


@lru_cache(maxsize=4096)
def _query_rank(name: str) -> int:
    """How near the name of a parameter is to "whatever is being looked for"."""
    ranks = [
        rank
        for rank, query in enumerate(_QUERY)
        for word in words(name)
        if SequenceMatcher(None, query, word).ratio() > 0.85
    ]
    return min(ranks, default=len(_QUERY))


@lru_cache(maxsize=4096)
def _choice_pattern(choice: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(fold(choice)).replace('_', '[ _-]')}s?(?!\w)")


@lru_cache(maxsize=4096)
def _cue_patterns(name: str, kind: SlotType) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What stands before a value that belongs to a parameter, and what may stand after it."""
    said = _name_words(name)
    cues = [_name_pattern(name)]
    if said & _MOST:
        cues.append(_CUE_MOST)
    if said & _LEAST:
        cues.append(_CUE_LEAST)
    if kind in ("date", "datetime") and said & _RETURN:
        cues.append(_CUE_RETURN)
    elif kind in ("date", "datetime") and said & _FROM:
        cues.append(_CUE_FROM)
    before = re.compile(rf"(?:^|\W)(?:{'|'.join(cues)})\W+(?:(?:the|el|la|of|de|than|on)\W+)*$")
    return before, re.compile(rf"^\W*(?:{_name_pattern(name)})")


@lru_cache(maxsize=4096)
def _text_cue_pattern(name: str, kind: SlotType) -> re.Pattern[str]:
    said = _name_words(name)
    cues = [_name_pattern(name)]
    if said & _FROM:
        cues.append(_CUE_FROM)
    elif said & _TO:
        cues.append(_CUE_TO)
    elif kind == "place":
        cues.append(_CUE_IN)
    elif said & {"name", "title", "topic", "nombre"}:
        cues.append(_CUE_TEXT)
    elif said & {"recipient", "receiver", "destinatario"}:
        cues.append(_CUE_TO)
    return re.compile(rf"(?:^|(?<=\W))(?:{'|'.join(cues)})(?:\s*[:=]\s*|\s+)(?=\S)")


def _ends_with(cue: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|\W)(?:{cue})\W+(?:(?:the|el|la|on|of|de)\W+)*$")


_ENDS_WITH_RETURN = _ends_with(_CUE_RETURN)
_ENDS_WITH_LIMIT = _ends_with(f"{_CUE_MOST}|{_CUE_LEAST}")
