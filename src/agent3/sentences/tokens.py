"""A sentence as tokens and spans: words, marks, quoted texts, addresses, paths, codes, and what ``spans`` finds.

It knows no schema. A quoted text, an address or a path is one token; a date or a sum is a span over several, which may
still be read as plain words where they are part of a longer text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time
from functools import cache
from typing import Any, Literal
from zoneinfo import available_timezones

from agent3.sentences.lexicon import detect_language, fold, fold_letters, meanings
from agent3.sentences.spans import find_spans, parse_number, read_amount
from agent3.sentences.synonyms import CURRENCIES, LANGUAGES, PLACES, UNITS

__all__ = ["FORBIDDING", "LONGEST", "Atom", "Sentence", "Shape", "Token", "is_sign", "unit_said"]

LONGEST = 2_000
"""Characters of a sentence that is read; a longer text can only be passed on as it is."""

Shape = Literal["word", "mark", "quote", "url", "email", "phone", "path", "dotted", "handle", "code", "digits"]


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a sentence without blanks, but for quoted texts. ``value`` is what it says."""

    start: int
    end: int
    plain: str
    shape: Shape
    value: str

    @property
    def means(self) -> frozenset[str]:
        return meanings(self.plain) if self.shape == "word" else frozenset({self.plain})


@dataclass(frozen=True, slots=True)
class Atom:
    """Tokens from ``first`` up to ``last`` that say one thing: a number, a date, a sum, a currency, a language."""

    first: int
    last: int
    kind: str
    value: Any
    unit: str = ""
    doubt: Any = None


_LEXER = re.compile(
    r"(?P<quote>```[\s\S]*?```|`[^`]+`|“[^”]*”|«[^»]*»|\"[^\"]*\"|(?<![\w\u2018])['\u2018](?:[^'\u2019]"
    r"|(?<=\w)['\u2019](?=\w))+['\u2019](?!\w))"
    r"|(?P<url>https?://[^\s\"'<>]*[^\s\"'<>.,;:!?)\]])"
    r"|(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<iso>\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\w))"
    r"|(?P<phone>(?<![\w+])(?:\+\d{1,3}(?: \d{2,4}){2,5}|\d{3} \d{3} \d{3}|\d{3}(?: \d\d){3})(?![\w,.:/ ]*\d))"
    r"|(?P<clock>\d{1,2}:\d\d(?::\d\d)?(?!\d))"
    r"|(?P<windows>[A-Za-z]:\\[^\s,;]+)"
    r"|(?P<selector>[\w#.*-]*\[[\w-]+[~|^$*]?=[^\]\s]+\][\w.#:\[\]=\"'-]*)"
    r"|(?P<assigned>[A-Za-z_]\w*(?==\S))|(?P<mark>[()\[\]{}]|[,;:!?¿¡=…—\u2013]+|\.+(?![\w/\\])|-(?=\s)|%|[🚫❌⛔❎👎✋🛑🙅⏸⏹✗✘✖¬≠]+\ufe0f?)"
    r"|(?P<chunk>[^\s,;=\"“”«»()\[\]{}¿¡?!…%]+(?:,\d+)*(?:=[^\s,;]+(?<=/\S))?)"
)
_ADDRESSES: dict[str, Shape] = {"url": "url", "email": "email", "phone": "phone"}
_CONTRACTED = frozenset("it that what he she let there who where here how when one".split())
_MARKS = ".,;:!?'\u2019-\u2013—"
_DOTTED = re.compile(r"[\w-]+(?:\.[\w-]+)*\.[A-Za-z]\w{0,9}|\.[\w.-]+")
_PATH = re.compile(r"(?:[\w.~*-]*[/\\])+[\w.*-]*[/\\]?|~|\*\.[\w*]+|[\w*-]*\*[\w.*-]*")
_CODE = re.compile(r"(?=.*[\d_-])(?=.*[A-Za-z])[\w-]+(?:[.:#][\w-]+)*")

FORBIDDING = frozenset("🚫❌⛔❎👎✋🛑🙅⏸⏹✗✘✖¬≠")
"""Signs that say no, whatever is asked for."""
_PUNCTUATION = re.compile(r"[.,;:?!¿¡…'\"\u2018\u2019“”«»()\[\]{}%*•·|_]+|[=\-\u2013—]|\.?[\u200b-\u200f\ufe0f]+")

_HYPHENATED = re.compile(
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty-(?:one|two|three|four|five|six|seven|eight|nine)"
)


_ZONES = available_timezones()
"""Read once, when the program starts: it opens every file of the zones."""


class Sentence:
    """What was said, read once: ``tokens``, and the ``atoms`` over them."""

    def __init__(self, text: str, now: datetime):
        self.text = text
        self.today = now.date()
        self.tokens = list(_lex(text))
        atoms = [*_find_atoms(self, now)]
        atoms += _find_measures(self.tokens, {atom.first: atom for atom in atoms if atom.kind == "number"})
        self.atoms = sorted(atoms, key=lambda atom: (atom.first, -atom.last))

    def slice(self, first: int, last: int) -> str:
        """The words from one token up to another, as they were written; a single quoted text without its quotes."""
        if last - first == 1:
            return self.tokens[first].value
        return self.text[self.tokens[first].start : self.tokens[last - 1].end]


def _lex(text: str) -> Iterator[Token]:
    plain = fold_letters(text)
    for match in _LEXER.finditer(text):
        kind, start, end = match.lastgroup, *match.span()
        if kind == "quote":
            inner = match[0].strip("`") if match[0][0] == "`" else match[0][1:-1]
            # Its plain form is no word, so that a quoted "a" is never taken for an article.
            yield Token(start, end, f'"{fold(inner)}"', "quote", inner.strip() if match[0][0] == "`" else inner)
        elif kind == "selector":
            yield Token(start, end, plain[start:end], "code", match[0])
        elif kind in ("url", "email", "phone"):
            yield Token(start, end, plain[start:end], _ADDRESSES[kind], match[0])
        elif kind == "mark":
            yield Token(start, end, match[0][0], "mark", match[0])
        elif kind == "windows":
            yield Token(start, end, plain[start:end], "path", match[0].rstrip(".!?"))
        elif kind in ("iso", "clock"):
            yield Token(start, end, plain[start:end], "digits", match[0])
        else:
            kept = match[0].rstrip(_MARKS) or match[0]
            if kept[:1] in "-\u2013—" and len(kept) > 1 and not kept[1].isdigit():
                kept = kept.lstrip("-\u2013—") or kept
                start = end - len(match[0].lstrip("-\u2013—"))
            if kept[-2:] in ("'s", "\u2019s") and plain[start : start + len(kept) - 2] not in _CONTRACTED:
                # "Ana's": whose it is, and a mark; but "King's Cross" is one name.
                named = kept[0].isupper() and text[end : end + 1] == " " and text[end + 1 : end + 2].isupper()
                kept = kept if named else kept[:-2]
            stop = start + len(kept)
            yield Token(start, stop, plain[start:stop], _shape(kept), kept)
            if stop < end:
                yield Token(stop, end, text[stop], "mark", text[stop:end])


def is_sign(mark: str) -> bool:
    """Whether a mark is no punctuation: it says something, as a word does. "//", "--" and "!=" are such, too."""
    return _PUNCTUATION.fullmatch(mark) is None


def _shape(text: str) -> Shape:
    if not any(letter.isalnum() for letter in text):
        return "mark" if text not in ("&", "+", "$", "€", "£", "%", "#") else "word"
    if text[0] in "#@" and len(text) > 1:
        return "handle"
    if re.fullmatch(r"\+\d[\d-]{6,}", text):
        return "phone"
    if re.fullmatch(r"[-+]?[$€£]?\d[\d.,]*[$€£]?", text):
        return "digits"
    if _PATH.fullmatch(text) and not re.fullmatch(r"\d+/\d+(/\d+)?", text):
        return "path"
    if _DOTTED.fullmatch(text) and not re.fullmatch(r"(?:[a-z]\.)+[a-z]?\.?", text.lower()):
        return "dotted"
    if re.fullmatch(r"\d+(?:st|nd|rd|th|am|pm|h|k|km|m|kg|g|ms|s|mb|gb|º|ª)", text.lower()):
        return "word"
    if re.fullmatch(r"[A-Z\u00c0-\u00dd][a-z\u00df-\u00ff]+(?:-[A-Za-z\u00c0-\u00ff]+)+", text):
        return "word"  # "Notre-Dame"
    if _HYPHENATED.fullmatch(text.lower()):
        return "word"  # "twenty-five"
    if _CODE.fullmatch(text) or re.fullmatch(r"[A-Za-z]\w*(?:[:#]\w+)+", text):
        return "code"
    return "word"


_RANGE = re.compile(
    r"(?:\b(?:from|de|desde|between|entre|desde las"
    r"|de las)\s+(?:las?\s+)?)?\b(?P<h>\d{1,2})(?::(?P<m>\d\d))?\s*(?P<half>[ap]\.?m\b\.?)?"
    r"\s*(?:to|until|till|-|\u2013|and|a|hasta"
    r"|y)\s*(?:las?\s+)?(?P<h2>\d{1,2})(?::(?P<m2>\d\d))?\s*(?P<half2>[ap]\.?m\b\.?)?(?![\w:])"
    r"(?:\s+(?:in the|de la|por la)\s+(?P<part>morning|afternoon|evening|manana|tarde|noche))?"
)


def _find_atoms(sentence: Sentence, now: datetime) -> Iterator[Atom]:
    starts = {token.start: index for index, token in enumerate(sentence.tokens)}
    ends = {token.end: index + 1 for index, token in enumerate(sentence.tokens)}

    def at(start: int, end: int) -> tuple[int, int] | None:
        return (starts[start], ends[end]) if start in starts and end in ends else None

    plain = fold_letters(sentence.text)
    ranges: list[tuple[int, int]] = []
    for match in _RANGE.finditer(plain):
        if not (match["m"] or match["m2"] or match["half"] or match["half2"]):
            continue
        half = match["half2"] or match["half"] or ""
        late = match["part"] in ("afternoon", "evening", "tarde", "noche")
        first = _clock(match["h"], match["m"], match["half"] or half, late)
        second = _clock(match["h2"], match["m2"], half, late)
        place = at(match.start(), match.end())
        if first is not None and second is not None and place is not None:
            ranges.append(place)
            yield Atom(*place, "times", (first, second))
    spans = find_spans(sentence.text, now)
    for span in spans:
        if span.kind in ("quote", "url", "email") or span.unit == "article":
            continue
        if (place := at(span.start, span.end)) is None:
            continue
        if span.kind == "time" and any(first <= place[0] < last for first, last in ranges):
            continue
        yield Atom(*place, span.kind, span.value, span.unit, span.other)
        if span.kind == "money":
            yield Atom(*place, "sum", span.value, span.unit, span.other)
    for index, token in enumerate(sentence.tokens):
        if token.shape == "digits" and re.fullmatch(r"\d{4}-\d\d-\d\dT.+", token.value):
            yield Atom(index, index + 1, "datetime", token.value)
        for kind, table in (("currency", _currency_names()), ("language", _language_names()), ("zone", _zones())):
            yield from _names_at(sentence.tokens, index, kind, table)
        if re.fullmatch(r"[A-Z]{3}", token.value) and token.value in CURRENCIES:
            yield Atom(index, index + 1, "currency", token.value)
        if re.fullmatch(r"[A-Z]\w+/\w+(?:/\w+)?", token.value) and token.value in _ZONES:
            yield Atom(index, index + 1, "zone", token.value)
    # An amount right before a currency that is not one of the usual ones.
    tokens, language = sentence.tokens, detect_language(sentence.text)
    for span in spans:
        place = at(span.start, span.end) if span.kind == "number" else None
        if place is None or place[1] >= len(tokens):
            continue
        after = place[1] + (tokens[place[1]].plain == "de" and place[1] + 1 < len(tokens))
        amount, doubt = read_amount(sentence.text[span.start : span.end], language)
        for atom in [*_names_at(tokens, after, "currency", _currency_names())]:
            yield Atom(place[0], atom.last, "sum", amount, atom.value, doubt)
        if tokens[after].value in CURRENCIES:
            yield Atom(place[0], after + 1, "sum", amount, tokens[after].value, doubt)


_FUSED = re.compile(r"(\d+(?:[.,]\d+)?)-?([a-z%°]+)(?:(\d+)(m|min)?)?")
_MORE: dict[tuple[str, ...], float] = {
    ("y", "media"): 0.5, ("y", "medio"): 0.5, ("and", "a", "half"): 0.5, ("y", "cuarto"): 0.25,
    ("and", "a", "quarter"): 0.25, ("y", "tres", "cuartos"): 0.75, ("and", "three", "quarters"): 0.75,
}  # fmt: skip
"""What may be said after a unit: "hora y media"."""
_PARTS: dict[tuple[str, ...], float] = {
    ("half", "a"): 0.5, ("half", "an"): 0.5, ("half",): 0.5, ("media",): 0.5, ("medio",): 0.5,
    ("a", "quarter", "of", "an"): 0.25, ("quarter", "of", "an"): 0.25, ("un", "cuarto", "de"): 0.25,
    ("three", "quarters", "of", "an"): 0.75, ("tres", "cuartos", "de"): 0.75,
}  # fmt: skip
"""And before it: "half an hour"."""


def _row_among(tokens: list[Token], index: int, rows: dict[tuple[str, ...], float]) -> tuple[int, float] | None:
    """Where the longest of some rows ends that stands here, and what it says."""
    for length in (4, 3, 2, 1):
        row = tuple(token.plain for token in tokens[index : index + length])
        if len(row) == length and row in rows:
            return index + length, rows[row]
    return None


def _find_measures(tokens: list[Token], numbers: dict[int, Atom]) -> Iterator[Atom]:
    """Quantities with their units, in the base unit of their dimension: "2 hours 30 minutes", "hora y media"."""
    for index in range(len(tokens)):
        for last, value, (base, _) in _quantities(tokens, index, numbers):
            if (more_of := _row_among(tokens, last, _MORE)) is not None:
                value += UNITS[_unit_word(tokens[last - 1].plain) or "s"][1] * more_of[1]
                last = more_of[0]
            joint = last + (last < len(tokens) and tokens[last].plain in ("and", "y", ","))
            for end, more, (other, _) in _quantities(tokens, joint, numbers):
                if other == base == "second" and more < value:
                    value, last = value + more, end
                    break
            said = numbers.get(index)
            doubt = None if said is None or said.doubt is None else said.doubt * value / said.value
            yield Atom(index, last, "measure", value, base, doubt)


def _quantities(
    tokens: list[Token], index: int, numbers: dict[int, Atom]
) -> Iterator[tuple[int, float, tuple[str, float]]]:
    if index >= len(tokens):
        return
    token = tokens[index]
    if fused := _FUSED.fullmatch(token.plain):
        amount = parse_number(fused[1])
        units = [UNITS[fused[2]]] if fused[2] in UNITS else []
        units += [("second", 60.0)] if fused[2] == "m" else []
        for unit in units:
            more = 60.0 * int(fused[3]) if fused[3] and unit == ("second", 3_600.0) else 0.0
            if more or not fused[3]:
                yield index + 1, amount * unit[1] + more, unit
        return
    if (part := _row_among(tokens, index, _PARTS)) is not None:
        at, number = part
    elif index in numbers:
        at, number = numbers[index].last, numbers[index].value
    elif token.plain in ("a", "an", "un", "una", "one"):
        at, number = index + 1, 1
        if at < len(tokens) and _unit_word(tokens[at].plain) in (None, "%", "m", "s", "g", "h"):
            return
    elif token.plain in ("hora", "hour"):
        at, number = index, 1
    else:
        return
    if at < len(tokens) and (word := _unit_word(tokens[at].plain)) is not None:
        if at == index and _row_among(tokens, at + 1, _MORE) is None:
            return
        yield at + 1, number * UNITS[word][1], UNITS[word]
    elif at + 1 < len(tokens) and (tokens[at].plain, tokens[at + 1].plain) == ("por", "ciento"):
        yield at + 2, number, ("percent", 1.0)


def unit_said(token: Token) -> tuple[str, float] | None:
    """The unit that a token says, by itself or with its number: "mm", "12mm"."""
    fused = _FUSED.fullmatch(token.plain)
    word = _unit_word(fused[2] if fused else token.plain)
    return UNITS[word] if word else None


def _unit_word(word: str) -> str | None:
    return next((form for form in (word, word.removesuffix("s"), word.removesuffix("es")) if form in UNITS), None)


def _clock(hour: str, minute: str | None, half: str, late: bool) -> time | None:
    hours = int(hour)
    if half.startswith("p") or (late and hours < 12):
        hours = hours % 12 + 12
    elif half.startswith("a"):
        hours %= 12
    return time(hours, int(minute or 0)) if hours < 24 and int(minute or 0) < 60 else None


def _names_at(tokens: list[Token], index: int, kind: str, table: dict[tuple[str, ...], str]) -> Iterator[Atom]:
    for length in (3, 2, 1):
        row = tuple(token.plain for token in tokens[index : index + length] if token.shape in ("word", "mark", "code"))
        if len(row) == length and row in table:
            yield Atom(index, index + length, kind, table[row])
            return


@cache
def _currency_names() -> dict[tuple[str, ...], str]:
    return {tuple(name.split("_")): code for code, names in CURRENCIES.items() for name in names.split()}


@cache
def _language_names() -> dict[tuple[str, ...], str]:
    return {(name,): code for code, names in LANGUAGES.items() for name in names.split()}


@cache
def _zones() -> dict[tuple[str, ...], str]:
    cities: dict[tuple[str, ...], str] = {}
    for zone in sorted(_ZONES):
        region, _, city = zone.rpartition("/")
        if region in ("Africa", "America", "Asia", "Atlantic", "Australia", "Europe", "Pacific", "Indian"):
            cities[tuple(fold(city).split("_"))] = zone
    return cities | {tuple(name.split()): zone for name, zone in PLACES.items()}
