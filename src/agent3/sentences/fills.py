"""Every way in which a part of a sentence can fill a slot, with what speaks against it.

A fill is announced by a word (the name of the slot, a preposition that fits it), found by its kind (a date, an
address), or stands bare. ``reader`` chooses among them so that every word has a place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from difflib import SequenceMatcher
from typing import Any

from agent3.sentences.lexicon import EMPTY, fold, meanings, ways_to_say
from agent3.sentences.slots import Form, Slot
from agent3.sentences.synonyms import UNITS
from agent3.sentences.tokens import Atom, Sentence, Token

__all__ = ["DETERMINERS", "Fill", "find_fills", "row_at"]


@dataclass(frozen=True, slots=True)
class Fill:
    """Tokens up to ``last`` as the values of some slots. The higher the cost, the less likely."""

    first: int
    last: int
    values: tuple[tuple[int, Any], ...]
    cost: float
    cued: bool
    """A word announces it."""
    typed: bool = False
    """Its form alone tells what it is: an address, a date, a code."""
    doubt: Any = None


def _rows(text: str) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(row.split()) for row in text.split("|"))


DETERMINERS = frozenset(
    "the a an el la los las lo un una unos unas my our your his her their its this that these those mi mis tu tus "
    "su sus "
    "nuestro nuestra este esta ese esa some al del".split()
)
_LEAD = DETERMINERS | frozenset(
    "with and y e con of de by por as como using at in en on to for para is whose cuyo where which that que has "
    "having "
    "into from desde set & usando".split()
)
_TRAIL = frozenset(
    "of de is are es son to a al as = : be should called named llamado llamada number numero no id name nombre the "
    "el la "
    "los las it lo me le sera sea equal por para in en it's address from".split()
)
_CALLED = _rows(
    "called|named|titled|llamado|llamada|titulado|titulada|se llame|que se llame|by the name of|con nombre|de nombre"
)
_FROM = _rows(
    "from|desde|de|del|out of|leaving|saliendo de|starting|a partir de|leaving from|starting at"
    "|starting from|between|entre"
)
_TO = _rows("to|into|a|al|hacia|hasta|until|as|como|onto|towards|through|con destino a|in to|up as|till|becomes")
_BY = _rows("by|de|del|from|por")
_IN = _rows("in|at|on|en|inside|within|dentro de|near|cerca de|around|under")
_FOR = _rows(
    "for|about|on|sobre|para|acerca de|related to|relacionado con|relacionada con|relacionados con"
    "|regarding|containing|matching|mentioning|mention|mentions|que contengan|que contenga|with|con|of|de|like|por"
)
_SAY = _rows(
    "saying|that says|which says|diciendo|que diga|que dice|that|que|:|to say|reading|diciendo que"
    "|saying that|for|por|containing"
)
_OF = _rows("of|for|de|del|para|in|en|on|by|por|at|with|con|to|a")
_TAIL = _rows(
    "please|por favor|gracias|thanks|thank you|for me|right now|ahora|now|ahora mismo|asap|cuanto antes"
    "|at the moment|en este momento"
)
_MOST_WORDS = frozenset(
    "limit max maximum most up first top last only least primeros primeras ultimos ultimas maximo hasta solo "
    "como".split()
)
_BETWEEN = frozenset("of than to at no como mucho a al de".split())
_INSIDE = frozenset("in inside under within en dentro de".split())
_ORDERED = frozenset(_rows("a b|x y|num1 num2|number1 number2|first second|left right|latitude longitude|lat lon"
    "|lat lng"))  # fmt: skip
_JOINTS = frozenset("and y e , + plus mas x * by por".split())
_SQL = frozenset("select insert update delete create alter drop with show explain pragma describe".split())
_ARITHMETIC = re.compile(r"[\d+*/().,%^-]+")
_END_MARKS = frozenset(",;.()!?…—\u2013")
_PASSED = DETERMINERS | EMPTY | frozenset("se es son esta i do does did please por favor".split())
"""Words with which no bare value begins."""
_PASSING = frozenset("me us nos to for de que my mi please algo something some se".split())
_ASKING = frozenset(
    "find search show get tell give look list about what's is busca buscar buscame encuentra dame dime muestra "
    "muestrame say dice "
    "need want necesito quiero add anade schedule remind recuerdame que como what who quien up".split()
)
_DANGLING = frozenset(
    "to from in on at for of with by about into as a de en con por para sobre desde hasta al del que that and y e "
    "the el la".split()
)
_VAGUE = frozenset(
    "it that this them these those something anything someone everything nothing one ones things stuff it's eso esto "
    "ese aquello algo alguien lo nada todo cosas anyone everyone him her me us him".split()
)


def row_at(tokens: Sequence[Token], index: int, row: Sequence[str]) -> bool:
    """Whether these words stand here."""
    return len(tokens) - index >= len(row) and all(
        tokens[index + offset].plain == word and tokens[index + offset].shape in ("word", "mark", "code")
        for offset, word in enumerate(row)
    )


def find_fills(sentence: Sentence, form: Form) -> list[list[Fill]]:
    """For each token the fills that begin at it."""
    return _Finder(sentence, form).run()


class _Finder:
    def __init__(self, sentence: Sentence, form: Form):
        self._sentence = sentence
        self._tokens = sentence.tokens
        self._form = form
        self._slots = form.slots
        self._atoms = {
            index: [atom for atom in sentence.atoms if atom.first == index] for index in range(len(self._tokens))
        }
        rows = [row for slot in form.slots for row in slot.cues]
        # A word that two slots share announces neither.
        self._rows = [
            [row for row in slot.cues if rows.count(row) == 1 or len(row) == len(slot.words)] for slot in form.slots
        ]
        self._name_cues = [
            list(self._name_cue(index, number))
            for index in range(len(self._tokens))
            for number in range(len(self._slots))
        ]
        self._stops = [self._is_stop(index) for index in range(len(self._tokens))]

    def run(self) -> list[list[Fill]]:
        found: list[list[Fill]] = []
        for index in range(len(self._tokens)):
            here: list[Fill] = []
            for number, slot in enumerate(self._slots):
                here += self._fill(index, number, slot)
            here += self._compounds(index)
            found.append(here)
        return found

    # What announces a slot

    def _cue_ends(self, index: int, number: int) -> list[int]:
        return self._name_cues[index * len(self._slots) + number]

    def _name_cue(self, index: int, number: int) -> Iterator[int]:
        """Where a value may begin if the name of the slot stands here, with the words around it that go with a "
        "name."""
        tokens, slot = self._tokens, self._slots[number]
        for lead in range(4):
            if lead and not (index + lead - 1 < len(tokens) and tokens[index + lead - 1].plain in _LEAD):
                return
            start = index + lead
            for row in [*self._rows[number], *((noun,) for noun in slot.nouns)]:
                if not self._means(start, row):
                    continue
                end = start + len(row)
                if slot.kind == "place" and start and tokens[start].value[:1].isupper():
                    continue  # "Ciudad de México" is a name
                yield end
                for _ in range(3):
                    if end < len(tokens) and tokens[end].plain in _TRAIL:
                        end += 1
                        yield end
                    else:
                        break

    def _means(self, index: int, row: Sequence[str]) -> bool:
        tokens = self._tokens
        if index + len(row) > len(tokens):
            return False
        return all(
            tokens[index + offset].shape == "word"
            and (
                tokens[index + offset].plain == word or bool(tokens[index + offset].means & (meanings(word) - {"set"}))
            )
            for offset, word in enumerate(row)
        )

    def _preposition_ends(self, index: int, slot: Slot) -> Iterator[tuple[int, float]]:
        """Where a value may begin after a preposition that fits the slot, and how weakly it speaks for it."""
        for rows, cost in _prepositions(slot):
            for row in rows:
                if row_at(self._tokens, index, row):
                    yield index + len(row), cost

    def _is_stop(self, index: int) -> bool:
        """Whether a text may end before this token: a mark, a courtesy, or what announces another slot."""
        token = self._tokens[index]
        if token.shape == "mark" and token.plain in _END_MARKS:
            return True
        if any(row_at(self._tokens, index, row) for row in _TAIL):
            return True
        typed = index + 1 < len(self._tokens) and self._tokens[index + 1].shape in ("email", "url", "handle", "path")
        if typed and token.plain in _DANGLING:
            return True
        for number, slot in enumerate(self._slots):
            if self._cue_ends(index, number):
                return True
            if any(cost < 0.3 and self._is_plausible(end, slot) for end, cost in self._preposition_ends(index, slot)):
                return True
        return token.shape in ("quote", "email", "url", "handle", "path") or any(
            atom.kind in ("date", "datetime", "times", "time", "sum") for atom in self._atoms[index]
        )

    def _is_plausible(self, index: int, slot: Slot) -> bool:
        """Whether a value of the slot may begin here, or after an article."""
        tokens = self._tokens
        while index < len(tokens) and tokens[index].plain in DETERMINERS:
            index += 1
        if index >= len(tokens):
            return False
        kinds = {atom.kind for atom in self._atoms[index]}
        match slot.kind:
            case "integer" | "number":
                return bool(kinds & {"number", "sum"})
            case "date" | "datetime" | "time":
                return bool(kinds & {"date", "datetime", "time", "times"})
            case "currency" | "language" | "zone":
                return slot.kind in kinds
            case "email" | "url" | "domain" | "path" | "id":
                return tokens[index].shape not in ("word", "mark")
            case "place":
                return (tokens[index].shape in ("word", "quote") and tokens[index].value[:1].isupper()) or tokens[
                    index
                ].shape == "quote"
            case "enum" | "boolean":
                return False
            case _:
                return tokens[index].shape not in ("mark",)

    # Fills of one slot

    def _fill(self, index: int, number: int, slot: Slot) -> Iterator[Fill]:
        for begin in dict.fromkeys(self._cue_ends(index, number)):
            yield from self._values(index, begin, number, slot, 0.0, "name")
        for begin, cost in self._preposition_ends(index, slot):
            yield from self._values(index, begin, number, slot, cost, "preposition")
        if slot.kind in ("path", "text", "name", "id", "enum") and not slot.many:
            for row in _CALLED:
                if row_at(self._tokens, index, row):
                    cost = 0.05 if slot.role == "title" else 0.3 if slot.kind != "text" else 0.5
                    yield from self._values(index, index + len(row), number, slot, cost, "called")
        if slot.kind in ("integer", "number") and (after := self._number_lead(index, slot)) is not None:
            yield from self._values(index, after, number, slot, 0.05, "lead")
        yield from self._values(index, index, number, slot, 0.0, "")
        yield from self._before_name(index, number, slot)

    def _number_lead(self, index: int, slot: Slot) -> int | None:
        """Where a number begins after words that say what it bounds: "only the first 20", "from character 20"."""
        tokens, begin, led = self._tokens, index, False
        while (
            begin < len(tokens) and begin - index < 4 and not any(atom.kind == "number" for atom in self._atoms[begin])
        ):
            token = tokens[begin]
            if (
                (slot.role in ("most", "") and token.plain in _MOST_WORDS)
                or (
                    slot.role == "first"
                    and token.plain
                    in (
                        "from",
                        "desde",
                        "starting",
                        "at",
                        "after",
                        "skip",
                        "skipping",
                        "offset",
                    )
                )
                or (slot.role == "least" and token.plain in ("least", "over", "above", "menos", "minimum", "more"))
            ):
                led = True
            elif token.plain not in DETERMINERS | _BETWEEN and not (
                led and token.means & slot.about and slot.role == "first"
            ):
                return None
            begin += 1
        return begin if led and begin < len(tokens) else None

    def _values(self, first: int, begin: int, number: int, slot: Slot, cost: float, cue: str) -> Iterator[Fill]:
        tokens = self._tokens
        if cue and slot.kind not in ("enum", "boolean"):
            while (
                begin < len(tokens)
                and tokens[begin].plain in DETERMINERS
                and tokens[begin].value[:1].islower()
                and (slot.kind != "text" or slot.role in ("query", "title"))
            ):
                begin += 1
        if begin >= len(tokens):
            return
        if slot.many:
            yield from self._lists(first, begin, number, slot, cost, cue)
            return
        for end, value, more, typed, doubt in self._single(begin, slot, cue):
            # A number that its own noun follows is as good as announced.
            cued = bool(cue) or (slot.kind in ("integer", "number") and more <= 0.2)
            yield Fill(first, end, ((number, value),), cost + more, cued, typed, doubt)

    def _lists(self, first: int, begin: int, number: int, slot: Slot, cost: float, cue: str) -> Iterator[Fill]:
        """A, B and C: as many as follow each other."""
        tokens, end, worst, typed = self._tokens, begin, 0.0, True
        values: list[Any] = []
        position = begin
        while position < len(tokens):
            if values and tokens[position].shape == "word" and self._starts_name_cue(position):
                break
            single = [one for one in self._single(position, slot, cue, item=True) if one[2] < 0.6 or cue]
            if not single:
                break
            stop, value, more, is_typed, _ = single[0]
            values.append(value)
            worst, typed, end = max(worst, more), typed and is_typed, stop
            yield Fill(first, end, ((number, [*values]),), cost + worst - 0.01 * len(values), bool(cue), typed)
            position = end
            joined = False
            while position < len(tokens) and tokens[position].plain in (",", "and", "y", "e", "&", "or", "plus"):
                position, joined = position + 1, tokens[position].plain not in ("or",)
            if not joined:
                break

    def _single(
        self, begin: int, slot: Slot, cue: str, *, item: bool = False
    ) -> Iterator[tuple[int, Any, float, bool, Any]]:
        """The values that begin here: their end, the value, what speaks against it, whether its form tells, a "
        "doubt."""
        token = self._tokens[begin]
        named = cue in ("name", "called")
        match slot.kind:
            case "enum":
                yield from self._options(begin, slot, named)
            case "boolean":
                yield from self._flags(begin, slot)
            case "integer" | "number":
                yield from self._numbers(begin, slot, cue)
            case "date" | "datetime" | "time" | "currency" | "language" | "zone":
                yield from self._typed(begin, slot, cue)
            case "email" | "url":
                if token.shape == slot.kind or (token.shape == "quote" and _looks_like(slot.kind, token.value)):
                    yield begin + 1, token.value, 0.1, True, None
            case "domain":
                if token.shape == "dotted" or (token.shape == "quote" and "." in token.value):
                    yield begin + 1, token.value, 0.1, True, None
            case "path":
                known = self._form.named | self._form.told
                if "*" in token.value and any(other.kind == "code" for other in self._slots):
                    return
                if token.shape in ("path", "dotted") or (token.shape == "quote" and len(token.value) <= 200):
                    yield begin + 1, token.value, 0.1, True, None
                elif named and token.shape in ("word", "code") and self._is_name(token) and not token.means & known:
                    yield begin + 1, token.value, 0.3, False, None
            case "code":
                yield from self._code(begin, slot)
            case _:
                yield from self._texts(begin, slot, cue, item=item)

    def _typed(self, begin: int, slot: Slot, cue: str) -> Iterator[tuple[int, Any, float, bool, Any]]:
        for atom in self._atoms[begin]:
            if atom.kind == slot.kind or (slot.kind == "time" and atom.kind == "time"):
                value = _write(atom)
                doubt = None if atom.doubt is None else atom.doubt.isoformat()
                yield atom.last, value, 0.1 if cue else 0.2, True, doubt
        token = self._tokens[begin]
        if slot.kind == "currency" and re.fullmatch(r"[A-Z]{3}", token.value):
            yield begin + 1, token.value, 0.2 if cue else 0.4, True, None
        if (
            slot.kind == "language"
            and cue
            and re.fullmatch(r"[a-z]{2}(?:-[A-Z]{2})?", token.value)
            and token.plain not in EMPTY
        ):
            yield begin + 1, token.value, 0.3, True, None
        if slot.kind == "datetime":
            for atom in self._atoms[begin]:
                if atom.kind == "time" and (day := self._day_for(atom)) is not None:
                    universal = atom.last < len(self._tokens) and self._tokens[atom.last].value in ("UTC", "GMT", "Z")
                    value = f"{datetime.combine(day, atom.value).isoformat()}{'Z' if universal else ''}"
                    yield atom.last + universal, value, 0.1 if cue else 0.2, True, None

    def _day_for(self, clock: Atom) -> date | None:
        """The day that a time of day belongs to: the only one that is named, or the one right beside it."""
        days = [atom for atom in self._sentence.atoms if atom.kind == "date"]
        if len(days) == 1:
            day: date = days[0].value
            return day
        beside = [atom for atom in days if atom.last == clock.first or atom.first == clock.last]
        return beside[0].value if len(beside) == 1 else None

    def _options(self, begin: int, slot: Slot, named: bool) -> Iterator[tuple[int, Any, float, bool, Any]]:
        tokens = self._tokens
        found: list[tuple[int, Any, float]] = []
        for option, rows in slot.options:
            text = str(option)
            for row in rows:
                if not row or begin + len(row) > len(tokens):
                    continue
                part = tokens[begin : begin + len(row)]
                if tuple(token.plain for token in part) == row or (len(row) == 1 and fold(part[0].value) == row[0]):
                    own = row == (fold(text),)
                    if (
                        own
                        and len(text) <= 2
                        and not named
                        and (fold(text) == text or part[0].value != text or part[0].plain in EMPTY)
                    ):
                        if not (text == "on" and any(str(other) == "off" for other, _ in slot.options)):
                            continue
                        found.append((begin + 1, option, 0.3))
                        continue
                    found.append((begin + len(row), option, 0.05))
                elif len(row) == 1 and part[0].shape == "word" and len(row[0]) > 2:
                    if part[0].means & {fold(text)} or (row[0] in part[0].means and row[0] != "set"):
                        found.append((begin + 1, option, 0.15))
                    elif len(row[0]) >= 6 and SequenceMatcher(None, part[0].plain, row[0]).ratio() >= 0.85:
                        found.append((begin + 1, option, 0.3))
        if found:
            longest = max(end for end, _, _ in found)
            cheapest = min(cost for end, _, cost in found if end == longest)
            best = {repr(option): option for end, option, cost in found if end == longest and cost == cheapest}
            if len(best) == 1:
                yield longest, next(iter(best.values())), cheapest + (0.0 if begin else 0.5), True, None

    def _flags(self, begin: int, slot: Slot) -> Iterator[tuple[int, Any, float, bool, Any]]:
        tokens = self._tokens
        row = [word for word in slot.words if word not in _FLAG_WORDS] or [*slot.words]
        rows = [row, *([word] for word in row if len(row) == 2 and word in ("direct",))]
        ways = {tuple(each.split("_")) for word in row for each in _phrases(word)} if len(row) == 1 else set()
        offset = (
            1
            if tokens[begin].plain
            in ("without", "sin", "no", "not", "excluding", "with", "con", "including", "including", "as", "in", "only")
            else 0
        )
        positive = tokens[begin].plain not in ("without", "sin", "no", "not", "excluding") if offset else True
        for way in sorted(ways, key=len, reverse=True):
            if row_at(tokens, begin, way):
                yield begin + len(way), not slot.inverted, 0.1, True, None
                return
        for start in {begin, begin + offset}:
            for each in rows:
                if self._means(start, each):
                    said = positive if start > begin else True
                    yield start + len(each), said != slot.inverted, 0.1, True, None
                    return

    def _numbers(self, begin: int, slot: Slot, cue: str) -> Iterator[tuple[int, Any, float, bool, Any]]:
        tokens = self._tokens
        for atom in self._atoms[begin]:
            if atom.kind != "number":
                continue
            end, value, cost = atom.last, atom.value, 0.0 if cue in ("name", "lead") else 0.7
            unit = self._unit(end, slot)
            if unit is not None:
                factor, length = unit
                value, end, cost = value * factor, end + length, min(cost, 0.1)
            elif end < len(tokens) and tokens[end].shape == "word":
                means = tokens[end].means
                if means & frozenset(
                    meaning for word in slot.words if word not in ("max", "min", "number") for meaning in meanings(word)
                ):
                    cost, end = 0.0, end + 1
                elif means & slot.about or (slot.role == "most" and means & (self._form.named | {"result", "results"})):
                    cost, end = min(cost, 0.2), end + 1
            while (
                end > atom.last
                and end < len(tokens)
                and tokens[end].plain in ("before", "antes", "after")
                and tokens[end].means & slot.about
            ):
                end += 1
            if cue == "lead" and not slot.role and end == atom.last:
                continue  # "the first 3" of what?
            if slot.role == "most" and begin and tokens[begin - 1].plain in _MOST_WORDS:
                cost = min(cost, 0.1)
            if slot.role == "first" and end > atom.last and cue not in ("name", "lead"):
                cost += 0.5
            if slot.required and cost > 0.3 and sum(other.kind in ("integer", "number") for other in self._slots) == 1:
                cost = 0.3
            if slot.kind == "integer":
                if value != int(value):
                    continue
                value = int(value)
            yield end, _plain_number(value), cost, True, None

    def _unit(self, index: int, slot: Slot) -> tuple[float, int] | None:
        """The factor from the unit that stands here to the one that the slot is in."""
        if index >= len(self._tokens):
            return None
        said = next((form for form in meanings(self._tokens[index].plain) if form in UNITS), None)
        said = said or (
            self._tokens[index].plain.rstrip("s") if self._tokens[index].plain.rstrip("s") in UNITS else None
        )
        if said is None:
            words = 2 if row_at(self._tokens, index, ("por", "ciento")) else 1
            percent = words == 2 or self._tokens[index].plain in ("%", "percent", "pct")
            return (1.0, words) if percent and slot.about & {"percent", "percentage", "porcentaje"} else None
        wanted = [word.rstrip("s") for word in slot.words if word.rstrip("s") in UNITS]
        wanted = wanted or [word for word in slot.about if word in UNITS and len(word) > 1][:1]
        if not wanted or UNITS[wanted[0]][0] != UNITS[said][0]:
            return None
        return UNITS[said][1] / UNITS[wanted[0]][1], 1

    def _code(self, begin: int, slot: Slot) -> Iterator[tuple[int, Any, float, bool, Any]]:
        tokens = self._tokens
        token = tokens[begin]
        if frozenset(slot.words) & {"expression", "formula", "calculation", "equation"}:
            end = begin
            while end < len(tokens) and _ARITHMETIC.fullmatch(tokens[end].value):
                end += 1
            while end > begin and tokens[end - 1].plain in (",", ".", "?", "!"):
                end -= 1
            said = self._sentence.slice(begin, end) if end > begin else ""
            if any(letter.isdigit() for letter in said) and said.count("(") == said.count(")"):
                yield end, said, 0.1, True, None
        if token.shape == "quote" or ("*" in token.value and token.shape in ("path", "dotted", "code")):
            yield begin + 1, token.value, 0.1, True, None
        if (
            token.plain in _SQL
            and token.shape == "word"
            and len(tokens) - begin > 2
            and (token.value.isupper() or begin == 0 or tokens[begin - 1].plain == ":")
        ):
            end = len(tokens)
            for index in range(begin + 1, len(tokens)):
                if any(row_at(tokens, index, row) for row in _TAIL):
                    end = index
                    break
            while end > begin and tokens[end - 1].plain in (",", "?", ".", "!"):
                end -= 1
            yield end, self._sentence.slice(begin, end), 0.1, True, None

    def _texts(self, begin: int, slot: Slot, cue: str, *, item: bool) -> Iterator[tuple[int, Any, float, bool, Any]]:
        tokens = self._tokens
        token = tokens[begin]
        if token.shape == "quote":
            if not cue and slot.kind != "text" and any(other.kind == "text" for other in self._slots):
                return
            against = {"text": 0.2, "name": 0.3, "place": 0.4, "id": 0.4}.get(slot.kind, 0.4)
            yield begin + 1, token.value, 0.0 if cue else against + (0.0 if slot.required else 0.2), True, None
            return
        if token.shape in ("email", "url") and slot.kind != "text":
            return
        if token.shape == "mark":
            return
        if slot.kind == "id":
            yield from self._ids(begin, slot, cue)
            return
        if slot.kind == "name" and token.shape in ("code", "handle", "dotted") and (cue or slot.required):
            yield begin + 1, token.value, 0.05 if cue else 0.3, True, None
            return
        if slot.kind == "name" and token.shape == "path":
            return
        if any(row_at(tokens, begin, row) for row in _CALLED) or (
            begin + 1 < len(tokens) and row_at(tokens, begin, ("and", "then"))
        ):
            return
        if not cue and not self._follows_capability(begin):
            return
        if not cue and (
            token.plain in _PASSED
            or token.means & self._form.named
            or any(atom.kind in ("date", "time", "times", "sum") for atom in self._atoms[begin])
        ):
            return
        if slot.kind == "name" and self._starts_other_cue(begin, slot):
            return
        longest = {"name": 3, "place": 5}.get(slot.kind, 200)
        spoken = slot.kind == "text" and slot.role != "title" and cue in ("name", "preposition") and not item
        crossed = 0.0
        for end in range(begin + 1, min(len(tokens), begin + longest) + 1):
            at_end = end == len(tokens)
            named = slot.kind in ("place", "name")
            if not (at_end or self._stops[end] or (item and tokens[end].plain in ("and", "y", "e"))):
                # A name ends before a preposition, and one with a capital letter before a word without.
                proper = token.value[:1].isupper() and not tokens[end].value[:1].isupper()
                if not (named and (proper or tokens[end].plain in _LEAD)):
                    continue
            if not at_end and slot.kind in ("place", "name") and self._is_inside_name(end):
                continue
            if tokens[end - 1].plain in _DANGLING:
                continue
            if (cost := self._against_text(begin, end, slot, cue)) is not None:
                yield end, self._sentence.slice(begin, _strip_end(tokens, begin, end)), cost + crossed, False, None
            if at_end or slot.kind != "text" or item:
                # A name or a place ends where anything else may begin.
                break
            mark = tokens[end].shape == "mark"
            if mark and not (spoken and tokens[end].plain in ",;."):
                break
            crossed += (
                (0.3 if slot.role == "content" else 0.6) if mark else 0.2 if not self._starts_name_cue(end) else 1.0
            )

    def _follows_capability(self, index: int) -> bool:
        """Whether what stands before is a word of the capability, but for articles and the like."""
        before = index - 1
        while before >= 0 and self._tokens[before].plain in DETERMINERS | _PASSING:
            before -= 1
        token = self._tokens[before] if before >= 0 else None
        return token is not None and (
            bool(token.means & (self._form.named | self._form.told)) or token.plain in _ASKING or token.plain == ":"
        )

    def _is_inside_name(self, index: int) -> bool:
        """Whether a name goes on here: "Santiago de Compostela"."""
        tokens = self._tokens
        after = index + 1
        while after < len(tokens) and tokens[after].plain in ("la", "los", "las", "el", "the"):
            after += 1
        return (
            tokens[index].plain in ("de", "del", "of")
            and tokens[index - 1].value[:1].isupper()
            and after < len(tokens)
            and tokens[after].value[:1].isupper()
        )

    def _starts_other_cue(self, index: int, slot: Slot) -> bool:
        return any(
            other is not slot and any(self._means(index, row) for row in self._rows[number])
            for number, other in enumerate(self._slots)
        )

    def _starts_name_cue(self, index: int) -> bool:
        return any(self._cue_ends(index, number) for number in range(len(self._slots))) or bool(
            self._tokens[index].shape in ("email", "url", "handle", "quote")
            or any(atom.kind in ("date", "datetime", "times", "sum") for atom in self._atoms[index])
        )

    def _ids(self, begin: int, slot: Slot, cue: str) -> Iterator[tuple[int, Any, float, bool, Any]]:
        token = self._tokens[begin]
        if token.shape in ("code", "dotted", "handle") or (
            token.shape == "digits" and re.fullmatch(r"[\d-]+", token.value)
        ):
            if token.shape == "handle" and not slot.about & {"name", "channel", "user", "username"}:
                return
            yield begin + 1, token.value, 0.05 if cue == "name" else 0.2, True, None
        elif cue == "name" and token.shape == "word" and token.value.isupper() and len(token.value) > 1:
            yield begin + 1, token.value, 0.1, True, None
        elif cue == "name" and token.shape == "word" and self._is_name(token) and "name" in slot.about:
            yield begin + 1, token.value, 0.3, False, None

    def _against_text(self, begin: int, end: int, slot: Slot, cue: str) -> float | None:
        """What speaks against these words as a text, a name or a place; None if they cannot be one."""
        words = self._tokens[begin:end]
        if all(token.plain in _VAGUE | DETERMINERS | _LEAD or token.shape == "mark" for token in words):
            return None
        if slot.kind == "text":
            if cue:
                return 0.0 if cue != "preposition" else 0.05
            return 0.7 if slot.required else 1.5
        if not cue and any(token.plain in _PASSED for token in words):
            return None
        first = words[0]
        if first.plain in _VAGUE or (first.plain in _LEAD and not first.value[:1].isupper()):
            return None
        proper = first.value[:1].isupper() or first.shape in ("code", "handle")
        known = all(token.means & (self._form.named | self._form.told) for token in words)
        if slot.kind == "place":
            if known or any(token.plain in _VAGUE for token in words):
                return None
            if cue:
                return 0.0 if proper else 0.25
            # "weather new york", "BCN to JFK"
            follows = begin > 0 and bool(self._tokens[begin - 1].means & (self._form.named | self._form.told))
            return 0.5 if proper and begin else 0.9 if follows and end == len(self._tokens) and begin else None
        if known and cue not in ("name", "called"):
            return None
        if cue in ("name", "called"):
            return 0.05 if len(words) == 1 or all(token.value[:1].isupper() for token in words) else 0.5
        if cue:
            return 0.1 if proper else 0.3
        return 0.6 if proper and begin and slot.required else None

    def _is_name(self, token: Token) -> bool:
        return token.plain not in _VAGUE | DETERMINERS | _LEAD | _TRAIL and not any(
            row == (token.plain,) for row in _CALLED
        )

    def _before_name(self, index: int, number: int, slot: Slot) -> Iterator[Fill]:
        """A value before the name of its slot: "high priority", "the staging namespace"."""
        tokens = self._tokens
        if slot.kind == "enum":
            for end, value, cost, _, _ in self._options(index, slot, named=True):
                for row in self._rows[number]:
                    if self._means(end, row):
                        yield Fill(index, end + len(row), ((number, value),), cost - 0.05, True, True)
            return
        if slot.kind not in ("name", "id") or slot.many:
            return
        begin = index
        while begin < len(tokens) and tokens[begin].plain in DETERMINERS | {
            "in",
            "en",
            "of",
            "on",
            "from",
            "to",
            "for",
        }:
            begin += 1
        if begin == index or begin >= len(tokens) - 1 or not self._is_name(tokens[begin]):
            return
        token = tokens[begin]
        if token.shape in ("word", "code") and not token.means & self._form.named:
            for row in [*self._rows[number], *((noun,) for noun in slot.nouns)]:
                if self._means(begin + 1, row) and row != ("name",):
                    yield Fill(index, begin + 1 + len(row), ((number, token.value),), 0.2, True, False)

    # Fills of several slots at once

    def _compounds(self, index: int) -> Iterator[Fill]:
        yield from self._joined_paths(index)
        yield from self._pairs(index)
        slots = self._slots
        token = self._tokens[index]
        by_name = {slot.name.lower(): number for number, slot in enumerate(slots)}
        if token.shape == "path" and re.fullmatch(r"[\w.-]+/[\w.-]+", token.value) and "owner" in by_name:
            owner, _, repository = token.value.partition("/")
            if (
                other := next((by_name[name] for name in ("repo", "repository", "repo_name") if name in by_name), None)
            ) is not None:
                yield Fill(index, index + 1, ((by_name["owner"], owner), (other, repository)), 0.05, False, True)
        for atom in self._atoms[index]:
            if atom.kind == "sum":
                yield from self._sums(atom)
            elif atom.kind == "times":
                yield from self._times(atom)
            elif atom.kind == "date" and any(slot.kind == "datetime" for slot in slots):
                clocks = [other for other in self._sentence.atoms if other.kind in ("time", "times")]
                if any(other.kind == "times" or self._day_for(other) == atom.value for other in clocks):
                    yield Fill(index, atom.last, (), 0.0, False, True)  # it is part of what the times say

    def _joined_paths(self, index: int) -> Iterator[Fill]:
        """ "called photos in /tmp/work" is one path where there is one parameter for it."""
        tokens = self._tokens
        paths = [number for number, slot in enumerate(self._slots) if slot.kind == "path" and not slot.many]
        if len(paths) != 1 or any(slot.role == "title" for slot in self._slots):
            return
        begins = [index + len(row) for row in _CALLED if row_at(tokens, index, row)]
        begins += [end for end in self._cue_ends(index, paths[0]) if end - index < 4]
        for begin in dict.fromkeys(begins):
            if begin >= len(tokens) or tokens[begin].shape not in ("word", "dotted", "code", "quote"):
                continue
            name = tokens[begin]
            if "/" in name.value or (
                name.shape == "word" and (not self._is_name(name) or name.means & self._form.named)
            ):
                continue
            place = begin + 1
            while (
                place < len(tokens)
                and place - begin < 5
                and (
                    tokens[place].plain in DETERMINERS
                    or tokens[place].plain in _INSIDE
                    or tokens[place].means & {"folder"}
                )
            ):
                place += 1
            if place < len(tokens) and place > begin + 1 and tokens[place].shape == "path":
                joined = f"{tokens[place].value.rstrip('/')}/{name.value}"
                yield Fill(index, place + 1, ((paths[0], joined),), 0.0, True, True)

    def _pairs(self, index: int) -> Iterator[Fill]:
        """Two numbers for two parameters that have an order and nothing else: "add 2 and 3", "40.4, -3.7"."""
        numbers = [
            number for number, slot in enumerate(self._slots) if slot.kind in ("integer", "number") and slot.required
        ]
        if len(numbers) != 2 or tuple(self._slots[number].name.lower() for number in numbers) not in _ORDERED:
            return
        for first in self._atoms[index]:
            joint = first.last
            if first.kind != "number" or joint >= len(self._tokens) or self._tokens[joint].plain not in _JOINTS:
                continue
            for second in self._atoms.get(joint + 1, ()):
                if second.kind == "number":
                    values = zip(numbers, (first.value, second.value), strict=True)
                    yield Fill(index, second.last, tuple(values), 0.05, True, True)

    def _sums(self, atom: Atom) -> Iterator[Fill]:
        amounts = [n for n, slot in enumerate(self._slots) if slot.kind in ("number", "integer") and _is_money(slot)]
        if not amounts and sum(slot.kind in ("number", "integer") for slot in self._slots) == 1:
            amounts = [n for n, slot in enumerate(self._slots) if slot.kind in ("number", "integer")]
        currencies = [
            number
            for number, slot in enumerate(self._slots)
            if slot.role != "to"
            and not slot.many
            and (slot.kind == "currency" or any(str(option).upper() == atom.unit for option, _ in slot.options))
        ]
        for amount in amounts:
            value = atom.value
            slot = self._slots[amount]
            if slot.about & {"cent", "cents", "minor", "smallest", "centimos", "centavo"} and "major" not in slot.about:
                continue  # people say dollars where it takes cents: that is asked
            if slot.kind == "integer" and value != int(value):
                continue
            for currency in currencies:
                unit = next((o for o, _ in self._slots[currency].options if str(o).upper() == atom.unit), atom.unit)
                yield Fill(atom.first, atom.last, ((amount, _plain_number(value)), (currency, unit)), 0.05, False, True)
            if not currencies and atom.unit.lower() in fold(slot.described):
                yield Fill(atom.first, atom.last, ((amount, _plain_number(value)),), 0.1, False, True)

    def _times(self, atom: Atom) -> Iterator[Fill]:
        slots = self._slots
        first, second = atom.value
        for kind in ("datetime", "time"):
            starts = [n for n, slot in enumerate(slots) if slot.kind == kind and slot.role == "from"]
            ends = [n for n, slot in enumerate(slots) if slot.kind == kind and slot.role == "to"]
            if len(starts) != 1 or len(ends) != 1:
                continue
            if kind == "datetime":
                if (day := self._day_for(atom)) is None:
                    continue
                values: tuple[str, str] = (
                    datetime.combine(day, first).isoformat(),
                    datetime.combine(day, second).isoformat(),
                )
            else:
                values = first.strftime("%H:%M"), second.strftime("%H:%M")
            if values[0] < values[1]:
                yield Fill(atom.first, atom.last, ((starts[0], values[0]), (ends[0], values[1])), 0.05, True, True)


_FLAG_WORDS = frozenset(
    "include is has should enable only with show use allow want includes return returns no exclude skip disable "
    "without omit".split()
)


def _phrases(word: str) -> Iterator[str]:
    for row in ways_to_say(word):
        yield "_".join(row)


def _prepositions(slot: Slot) -> Iterator[tuple[frozenset[tuple[str, ...]], float]]:
    match slot.role:
        case "from":
            yield _FROM, 0.05
        case "to":
            yield _TO, 0.05
        case "content":
            yield _SAY, 0.2
        case "query":
            yield _FOR, 0.1
        case "by":
            yield _BY, 0.05
    match slot.kind:
        case "place":
            near = _IN | _rows("of|for|de|del|para")
            yield (near, 0.15) if not slot.role or slot.role == "place" else (near, 0.6)
        case "currency" | "language":
            if slot.role != "from":
                yield _TO | _IN, 0.05
        case "path":
            yield _IN | _OF, 0.1
        case "id":
            yield _OF | _IN, 0.2
        case "name" | "domain" | "zone" | "email":
            yield _OF, 0.35
        case "number" | "integer":
            yield (
                _rows("to|a|at|for|of|de|al|by|up to|hasta|por"),
                0.0,
            )
        case "date" | "datetime" | "time":
            yield (
                _rows("on|el|for|para el|para|by|at|del|due|starting|con fecha de|de"),
                0.0,
            )


def _write(atom: Atom) -> Any:
    value = atom.value
    if isinstance(value, date):
        return value.isoformat()
    return value.strftime("%H:%M") if isinstance(value, time) else value


def _plain_number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _is_money(slot: Slot) -> bool:
    return bool(
        frozenset(slot.words) & frozenset("amount price cost budget total sum fare importe value fee salary".split())
    )


def _looks_like(kind: str, text: str) -> bool:
    return bool(re.fullmatch(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+" if kind == "email" else r"https?://\S+", text))


def _strip_end(tokens: Sequence[Token], begin: int, end: int) -> int:
    while end > begin + 1 and tokens[end - 1].shape == "mark" and tokens[end - 1].plain in ",;:.([":
        end -= 1
    return end
