"""The reader of sentences: from a capability and what was said to its input, to a question, or to nothing.

Deterministic, English and Spanish, without a model. It looks for the reading in which every word has a place: as a
value, as what announces one, as a word of the capability, or as a courtesy. A word without a place, a required
parameter without a value, and two readings that are equally good each lead to a question: nothing is guessed.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any

from agent3.errors import Agent3Error
from agent3.model import Capability
from agent3.schema.compiler import compiled
from agent3.sentences.announcements import Scene
from agent3.sentences.fills import Fill, find_fills
from agent3.sentences.lexicon import BROAD, Language, detect_language, fold, fold_letters, is_action, meanings
from agent3.sentences.passing import FILLER, pass_over, switches_otherwise
from agent3.sentences.phrases import match_phrases
from agent3.sentences.prohibitions import Why, blank_courtesies, find_prohibition
from agent3.sentences.slots import Form, form_of, form_of_code, split_name
from agent3.sentences.spans import find_spans
from agent3.sentences.tokens import LONGEST, Sentence
from agent3.sentences.values import Words

__all__ = ["Ask", "Forbidden", "Reading", "Understood", "read"]


@dataclass(frozen=True, slots=True)
class Understood:
    """A sentence that says all that is needed. ``used`` tells what its words were taken for."""

    input: dict[str, Any]
    used: tuple[tuple[str, str], ...] = ()
    guessed: tuple[str, ...] = ()
    """Parameters whose value nothing announced."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A sentence that leaves something open: what is ``missing``, which words are ``left``, what is in ``doubt``."""

    missing: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    input: dict[str, Any] = field(default_factory=dict)
    """What was understood all the same."""
    doubt: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    language: Language = "en"


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A sentence that asks for nothing to be done."""

    why: Why
    language: Language = "en"


Reading = Understood | Ask | Forbidden

_LEFT, _MISSING = 4.0, 3.0
_CLEAR = 0.3
"""How much worse another reading has to be."""
_SURE = 0.5
"""Up to here a fill is told as understood where something else has to be asked."""
_MOST_STATES = 20_000
_MOST_TOKENS = 400
_AND = frozenset("and then y e luego".split())
_REQUESTS = frozenset("give tell let dame dime damelos damelas muestrame ensename".split())
_ISO_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_GIVING = frozenset("give pay send lend owe wire transfer refund".split())
"""What is done to somebody with something, in this order."""
_TAKERS: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (
        frozenset(
            "person people assignee recipient attendee attendees guest guests contact customer member user".split()
        ),
        frozenset("for to with by para a con por".split()),
    ),
    (frozenset("place location city venue where".split()), frozenset("in at en".split())),
)
"""What an optional parameter may be about, and the words that lead to it inside a text."""
_ONLY_SHAPES: dict[str, tuple[str, ...]] = {
    "path": ("path", "dotted", "quote"),
    "id": ("code", "digits", "quote"),
    "name": ("code", "quote", "handle", "path", "dotted", "digits"),
    "place": ("quote",),
}
"""What a message that is nothing but a value must look like, by the kind of its slot."""


_CORRECTION = re.compile(
    r"(?<![,;\u2013\u2014\u2026-])(?:(?<!\s)\s++)?[,;\u2013\u2014\u2026-]++\s*+"
    r"(?:no\s*[,;]|(?:no,? )?(?:i mean|sorry|make (?:that|it)|or rather|rather|digo"
    r"|perdon|mejor dicho|quiero decir|mejor)\b)[\s,]*(?:(?:sorry|make (?:that|it)|perdon|mejor)\b[\s,]*)?"
    r"(?:to |at |on |a |el )?"
)
"""What stands between a value and the one that takes its place: "five, no, eight"."""


def _settle_corrections(message: str, now: datetime) -> str:
    """The message without what was said first and then corrected, where both are a number, a sum, a day or a time."""
    if not _CORRECTION.search(plain := fold_letters(message)):
        return message
    spans = [span for span in find_spans(message, now) if span.unit != "article"]
    for first, second in pairwise(spans):
        if first.kind == second.kind != "quote" and _CORRECTION.fullmatch(plain, first.end, second.start):
            message = f"{message[: first.start]}{' ' * (second.start - first.start)}{message[second.start :]}"
    return message


def read(capability: Capability, message: str, now: datetime, *, agent: str = "") -> Reading:
    """What a message means to a capability, with days counted from ``now``."""
    form = form_of(capability, agent)
    message = _settle_corrections(message, now) if len(message) <= LONGEST else message
    language = detect_language(message)
    if (why := find_prohibition(message, reading=form.reading, verbs=form.verbs)) is not None:
        restricted = _read_restricted(capability, message, now, agent, form) if why == "forbids" else None
        return restricted or Forbidden(why, language)
    sentence = Sentence(blank_courtesies(message[:LONGEST]), now)
    if len(message) > LONGEST or len(sentence.tokens) > _MOST_TOKENS:
        required = [slot.path[0] for slot in form.slots if slot.required]
        return Ask(tuple(dict.fromkeys([*required, *form.unreadable])), language=language)
    found = _only_value(sentence, form, capability) or _Search(sentence, form, capability, language).run()
    if not isinstance(found, Ask):
        return found
    phrased = [_read_phrase(capability, form, said, found, now) for said in match_phrases(capability, message)]
    return next((one for one in phrased if isinstance(one, Understood)), (phrased or [found])[0])


_RESTRICTION = re.compile(
    r"(?<![\s,;.])(?:\s*[,;.]+(?:\s*(?:but|and|pero|y))?|\s+(?:but|pero|and|y))\s+(?:(?:please|por favor)\s+)?"
    r"(?:do not|don'?t|don\u2019t|never|no)\s+(?=\w+(?:\s+\w+)+)"
)
"""Where a request goes on with what is not to be done beside it: "…, but do not send the welcome mail"."""
_REFERRING = frozenset("it that this yet so them anything now eso esto lo todavia aun nada ahora".split())
"""How a clause ends that speaks of the request itself: "but don't do it yet"."""


def _read_restricted(capability: Capability, message: str, now: datetime, agent: str, form: Form) -> Reading | None:
    """A request that forbids something beside what it asks for: that is a switch, or is asked about.

    None where what is forbidden is what is done here, or nothing is asked for before.
    """
    found = [*_RESTRICTION.finditer(fold_letters(message))] if len(message) <= LONGEST else []
    if len(found) != 1:
        return None
    asked, rest = message[: found[0].start()], message[found[0].end() :].rstrip(" .!")
    said = [fold(word) for word in re.findall(r"\w+", rest)]
    if meanings(said[0]) & (form.verbs - BROAD) or said[0] in form.verbs or said[-1] in _REFERRING:
        return None
    plain = read(capability, asked, now, agent=agent)
    if isinstance(plain, Forbidden) or (isinstance(plain, Understood) and not plain.used):
        return None
    language = detect_language(message)
    switched = read(capability, f"{asked} {'sin' if language == 'es' else 'without'} {rest}", now, agent=agent)
    if isinstance(switched, Understood):
        more = {name: value for name, value in switched.input.items() if name not in plain.input}
        if more and all(value is False for value in more.values()) and {**plain.input, **more} == switched.input:
            return switched
    missing = plain.missing if isinstance(plain, Ask) else ()
    doubt = plain.doubt if isinstance(plain, Ask) else {}
    left = (*(plain.left if isinstance(plain, Ask) else ()), message[found[0].start() :].strip(" ,;."))
    return Ask(missing, left, plain.input, doubt, language)


def _read_phrase(capability: Capability, form: Form, said: Mapping[str, str], asked: Ask, now: datetime) -> Reading:
    """What the words for the placeholders of a phrase mean, each to its own parameter."""
    given: dict[str, Any] = {}
    doubt: dict[str, Sequence[Any]] = {}
    properties = capability.input_schema.get("properties") or {}
    # "2 mugs" is no product where there is a quantity to be said.
    open_kinds = {_SPAN_OF[slot.kind] for slot in form.slots if slot.name not in said and slot.kind in _SPAN_OF}
    for slot in form.slots:
        name = slot.name
        if name not in said or len(slot.path) > 1:
            continue
        if slot.kind in ("text", "name", "place", "id", "code") and not slot.many:
            spans = find_spans(said[name], now)
            if any(span.kind in open_kinds and span.unit != "article" for span in spans):
                return asked
            # Where somebody looks or says something, any text will do; a name of something is not two things.
            if form.reading or slot.role == "content" or not _SEVERAL.search(said[name]):
                words = said[name].rstrip(" ?") if form.reading else said[name]  # "do you have a mug?"
                given[name] = _COMMON_ARTICLE.sub("", words or said[name])
            continue
        schema = {"type": "object", "properties": {name: properties.get(name)}, "required": [name]}
        one = read(Capability(name="get", input_schema=schema), said[name], now)
        if isinstance(one, Understood):
            given |= one.input
        elif isinstance(one, Ask):
            doubt |= one.doubt
    if not given and said:
        return asked
    # What the phrase does not name may still have been said elsewhere, where nothing was left over.
    given = {**({} if asked.left else asked.input), **given}
    missing = tuple(slot.path[0] for slot in form.slots if slot.required and slot.path[0] not in given)
    if missing or doubt:
        return Ask(tuple(dict.fromkeys([*missing, *doubt])), (), given, doubt, asked.language)
    try:
        compiled(capability.input_schema).check(given)
    except Agent3Error:
        return Ask(tuple(said), (), {}, {}, asked.language)
    return Understood(given, tuple((text, name) for name, text in said.items()))


_HAPPENED = frozenset(
    "incident accident occurred happened purchase purchased bought birth born damage loss theft expense worked "
    "performed".split()
)
"""Words for what lies in the past."""
_HOW = re.compile(r"\w{3,}ly|\w{3,}mente|minus|plus|only|again|also|twice|anew|solo|otra|tambien|menos")
"""The last word of what may not be all a name."""
_SEVERAL = re.compile(r"[,;]|\b(?:and|then|but|y|luego|pero)\b", re.IGNORECASE)
_COMMON_ARTICLE = re.compile(
    r"^(?:an?|the|my|some|any|el|la|los|las|mi|mis|un|una|unos|unas|alg[uú]n|alguna)\s+(?=[a-z])"
)
_SPAN_OF = {"integer": "number", "number": "number", "date": "date", "datetime": "date", "time": "time"}


def _only_value(sentence: Sentence, form: Form, capability: Capability) -> Understood | None:
    """A message that is nothing but the value of the one parameter that is required: "Rome", "README.md"."""
    required = [slot for slot in form.slots if slot.required]
    tokens = [token for token in sentence.tokens if token.shape != "mark" or token.plain not in ".!?¿¡"]
    if len(required) != 1 or form.unreadable or not 0 < len(tokens) <= 4 or required[0].many:
        return None
    slot, first = required[0], tokens[0]
    proper = (
        len(tokens) <= 3
        and first.shape == "word"
        and not is_action(first.plain)  # 'Publish "Hello"' is no name
        and all(token.value[:1].isupper() or (token is not first and token.shape == "digits") for token in tokens)
    )
    known = any(token.means & (form.named | form.told) or token.plain in FILLER for token in tokens)
    fits = len(tokens) == 1 and first.shape in _ONLY_SHAPES.get(slot.kind, ())
    if first.shape != "quote" and _letters(sentence.text) == _letters(capability.name):
        return None  # "add_book" says what to do, and of no book
    if not (fits or (proper and not known and slot.kind in ("place", "name"))):
        return None
    value = first.value if len(tokens) == 1 else sentence.text[first.start : tokens[-1].end]
    given: dict[str, Any] = {}
    place = given
    for name in slot.path[:-1]:
        place = place.setdefault(name, {})
    place[slot.path[-1]] = value
    try:
        compiled(capability.input_schema).check(given)
    except Agent3Error:
        return None
    return Understood(given, ((value, slot.name),))


def _letters(text: str) -> str:
    """A name without what sets its words apart."""
    return re.sub(r"[\W_]+", "", fold_letters(text))


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A reading up to a position: what was filled, passed over and left."""

    position: int = 0
    fills: tuple[Fill, ...] = ()
    left: tuple[int, ...] = ()
    used: tuple[tuple[int, int, str], ...] = ()
    anchored: bool = False
    ignored: frozenset[int] = frozenset()
    """Slots whose names were passed over with a value after them."""

    @property
    def filled(self) -> dict[int, Any]:
        return {number: value for fill in self.fills for number, value in fill.values}


class _Search:
    """The cheapest reading first, until the next one is clearly worse."""

    def __init__(self, sentence: Sentence, form: Form, capability: Capability, language: Language):
        self._sentence = sentence
        self._tokens = sentence.tokens
        self._form = form
        self._capability = capability
        self._language = language
        self._scene = Scene(sentence, form)
        self._fills = [
            [] if switches_otherwise(self._scene, index) else fills
            for index, fills in enumerate(find_fills(self._scene))
        ]
        self._passes = [pass_over(self._scene, index) for index in range(len(self._tokens))]
        self._paired = {
            number for fills in self._fills for fill in fills if len(fill.values) > 1 for number, _ in fill.values
        }
        """Slots that something may fill together with another: then the order of the others tells nothing."""

    def run(self) -> Reading:
        finals: list[tuple[float, _State]] = []
        heap: list[tuple[float, int, _State]] = [(0.0, 0, _State())]
        issued = 0
        seen: set[Any] = set()
        while heap:
            cost, _, state = heapq.heappop(heap)
            if issued > _MOST_STATES or len(finals) > 4 or (finals and cost > finals[0][0] + _CLEAR):
                break
            if state.position > len(self._tokens):
                if all(state.filled != other.filled for _, other in finals):
                    finals.append((cost, state))
                continue
            key = (state.position, state.fills, len(state.left), state.anchored)
            if key in seen:
                continue
            seen.add(key)
            for more, following in self._steps(state):
                issued += 1
                heapq.heappush(heap, (cost + more, issued, following))
        if not finals:
            return self._ask(_State(left=tuple(range(len(self._tokens)))), {})
        return self._conclude(finals)

    # What may come next

    def _steps(self, state: _State) -> Iterator[tuple[float, _State]]:
        index = state.position
        filled = state.filled
        if index == len(self._tokens):
            missing = sum(slot.required and number not in filled for number, slot in enumerate(self._form.slots))
            yield _MISSING * missing, replace(state, position=index + 1)
            return
        open_fills = [fill for fill in self._fills[index] if not any(number in filled for number, _ in fill.values)]
        if (passing := self._passes[index]) is not None:
            # A word that is just what a choice or a switch is called was hardly said for nothing.
            choice = index != self._scene.verb and any(self._is_choice(fill) for fill in open_fills)
            # Nor was the name of a parameter with a value after it.
            named = frozenset(fill.values[0][0] for fill in self._fills[index] if fill.named)
            named -= {number for fill in state.fills if fill.cued for number, _ in fill.values}
            led = passing.cost > 0 and any(fill.cued for fill in open_fills)
            yield (
                passing.cost + (0.5 if choice or led else 0.0) + (1.5 if named else 0.0),
                _State(
                    passing.last,
                    state.fills,
                    state.left,
                    (*state.used, (index, passing.last, passing.what)),
                    state.anchored or passing.anchors,
                    state.ignored | named | passing.names,
                ),
            )
        for fill in self._fills[index]:  # "en HTML, sin simplificar": one thing said twice
            if self._is_choice(fill) and all(
                number in filled and filled[number] == value for number, value in fill.values
            ):
                yield 0.1, replace(state, position=fill.last, used=(*state.used, (index, fill.last, "mark")))
        for fill in open_fills:
            if (cost := self._cost(fill, state, filled)) is not None:
                yield cost, self._take(state, fill)
        if passing is None:
            used = (*state.used, (index, index + 1, ""))
            yield _LEFT, replace(state, position=index + 1, left=(*state.left, index), used=used)

    def _is_choice(self, fill: Fill) -> bool:
        return len(fill.values) == 1 and self._form.slots[fill.values[0][0]].kind in ("enum", "boolean")

    def _cost(self, fill: Fill, state: _State, filled: Mapping[int, Any]) -> float | None:
        if fill.cued or not fill.values:
            return fill.cost
        slot = self._form.slots[fill.values[0][0]]
        if not fill.typed and (not state.anchored or (slot.role == "to" and not self._may_be_bare(fill))):
            return None
        if slot.role == "to" and len(fill.values) == 1:
            # Without a "to" it is a destination only beside an origin.
            origins = (self._form.slots[other] for other in {*filled, *self._paired})
            if any(other.kind == slot.kind for other in self._form.slots if other.role == "from") and not any(
                other.role == "from" and other.kind == slot.kind for other in origins
            ):
                return fill.cost + 1.2
        return fill.cost

    def _may_be_bare(self, fill: Fill) -> bool:
        """Whether who or what something goes to needs no "to" here: "pay Ann 20 euros"."""
        if self._is_led_to_code(fill):
            return True
        said, after = self._tokens[fill.first : fill.last], self._tokens[fill.last : fill.last + 1]
        return (
            fill.first == self._scene.verb + 1
            and self._tokens[self._scene.verb].plain in _GIVING
            and all(token.shape == "word" and token.value[:1].isupper() for token in said)
            and bool(after)
            and any(atom.kind in ("number", "sum", "money") for atom in self._scene.atoms[fill.last])
        )

    def _is_led_to_code(self, fill: Fill) -> bool:
        """ "assign Ann to ENG-12": the form of the code tells which of the two is which."""
        after = self._tokens[fill.last : fill.last + 2]
        code = form_of_code(after[1].value) if len(after) == 2 and after[0].plain in ("to", "a", "al") else ""
        return bool(code) and any(code in other.forms for other in self._form.slots)

    def _take(self, state: _State, fill: Fill) -> _State:
        names = ", ".join(self._form.slots[number].name for number, _ in fill.values) or "time"
        said = self._tokens[fill.first : fill.last][:20]
        own = self._form.verbs if self._form.undoes else self._form.named
        anchored = state.anchored or any(token.shape == "word" and token.means & own for token in said)
        if fill.first == self._scene.verb and self._is_choice(fill) and not self._form.undoes:
            # "apaga light.salon", "close ticket 4"
            sets = self._form.verbs & {"set", "update", "transition"}
            anchored = anchored or self._form.slots[fill.values[0][0]].required or bool(sets)
        used = (*state.used, (fill.first, fill.last, names))
        return replace(state, position=fill.last, fills=(*state.fills, fill), used=used, anchored=anchored)

    # How it ends

    def _conclude(self, finals: list[tuple[float, _State]]) -> Reading:
        cost, best = finals[0]
        values, missing = best.filled, self._list_missing(best)
        doubts: dict[int, list[Any]] = {
            fill.values[0][0]: [fill.doubt] for fill in best.fills if fill.doubt is not None
        }
        for other, rival in finals[1:]:
            if other - cost >= _CLEAR or len(rival.left) != len(best.left) or self._list_missing(rival) != missing:
                continue
            theirs = rival.filled
            for number in values.keys() | theirs.keys():
                if values.get(number) != theirs.get(number):
                    doubts.setdefault(number, []).append(theirs.get(number))
        for fill in best.fills:
            # A word that marks another slot's role was taken for any preposition, and that slot was filled otherwise.
            if not fill.cued and fill.values:
                marked = {other.values[0][0] for other in self._fills[fill.first] if other.cued and other.values}
                for number in marked - {fill.values[0][0]}:
                    if number in values and not any(other.cued for other in best.fills if number in dict(other.values)):
                        doubts.setdefault(number, []).append(None)
        for number, earlier in self._find_past(values):
            doubts.setdefault(number, []).append(earlier)
        announced = {number for fill in best.fills if fill.cued for number, _ in fill.values}
        unclear = [
            *self._find_unordered(best),
            *self._swappable(best),
            *self._turned_round(best),
            *self._ends_early(best),
            *self._twice(best),
            *self._find_joined(best),
            *(best.ignored - announced),
        ]
        for number in unclear:
            doubts.setdefault(number, []).append(None)
        for fill in best.fills:
            # A text with words in it that would fill a slot which has no other value: where does it end?
            takes_more = self._names_somebody(fill, values) or self._goes_on(fill, values) or self._says_how(fill)
            if fill.swallows - values.keys() or takes_more:
                doubts.setdefault(fill.values[0][0], []).append(None)
            # Two days for one: a text that took the one leaves the other in doubt.
            for number in fill.swallows & values.keys():
                if self._form.slots[number].kind in ("date", "datetime"):
                    doubts.setdefault(number, []).append(None)
        if best.left or missing or doubts or self._form.unreadable:
            return self._ask(best, doubts)
        if not self._form.reading and not best.anchored and values:
            return self._ask(best, {})
        given = self._input(best.fills)
        if (refused := self._ask_again(given)) is not None:
            return refused
        used = tuple(
            (self._sentence.slice(first, last), what) for first, last, what in best.used if what not in ("mark", "")
        )
        guessed = [number for fill in best.fills if not fill.cued and not fill.typed for number, _ in fill.values]
        return Understood(given, used, tuple(".".join(self._form.slots[number].path) for number in guessed))

    def _names_somebody(self, fill: Fill, values: Mapping[int, Any]) -> bool:
        """Whether a text may have taken in who it is for, or where: "titled Buy milk for Ann"."""
        said = fill.values[0][1] if len(fill.values) == 1 else None
        if not isinstance(said, Words):
            return False
        leads = {
            lead
            for number, slot in enumerate(self._form.slots)
            if number not in values and slot.kind in ("name", "place", "text") and not slot.required
            for about, row in _TAKERS
            if about & (slot.own | frozenset(slot.words)) or (slot.kind == "place" and "in" in row)
            for lead in row
        }
        inner = range(said.first + 1, min(said.last, said.first + 60) - 1)
        return any(self._tokens[at].plain in leads and self._tokens[at + 1].value[:1].isupper() for at in inner)

    def _find_past(self, values: Mapping[int, Any]) -> Iterator[tuple[int, str]]:
        """Days to come of what has happened already, where no year was said, each with the day before that it may be:
        an incident "on 14 November" was no accident of next year.
        """
        today, logs = self._sentence.today, "log" in split_name(self._capability.name)
        for number, value in values.items():
            slot = self._form.slots[number]
            past = logs or not _HAPPENED.isdisjoint({*slot.words, *re.findall(r"[a-z]+", slot.described.lower())})
            if slot.kind != "date" or not past or not isinstance(value, str) or not _ISO_DAY.fullmatch(value):
                continue
            day = date.fromisoformat(value)
            if day <= today or str(day.year) in self._sentence.text:
                continue
            if day - today <= timedelta(days=7):  # a weekday
                earlier = day - timedelta(days=7)
            else:
                earlier = day.replace(year=day.year - 1, day=min(day.day, 28) if day.month == 2 else day.day)
            yield number, earlier.isoformat()

    def _says_how(self, fill: Fill) -> bool:
        """Whether a name may have taken in how something is to be done: "create the user Ann quietly"."""
        number, said = fill.values[0] if len(fill.values) == 1 else (0, None)
        if not isinstance(said, Words) or said.last - said.first < 2 or self._form.slots[number].kind != "name":
            return False
        last = self._tokens[said.last - 1]
        proper = self._tokens[self._scene.past_articles[said.first]].value[:1].isupper()
        return proper and last.value.islower() and _HOW.fullmatch(last.plain) is not None

    def _goes_on(self, fill: Fill, values: Collection[int]) -> bool:
        """Whether a text ends with the beginning of another request: "invoices and give me" before "at most 20".

        Or holds one of the same kind: "saying hi and tell Ann too", "que venga y a Ana que no".
        """
        said = fill.values[0][1] if len(fill.values) == 1 else None
        if not isinstance(said, Words):
            return False
        whom = any(self._form.slots[number].role in ("to", "who") for number in values)
        for at in range(said.first + 1, said.last - 2):
            after, next_to_it = self._tokens[at + 1], self._tokens[at + 2]
            again = after.means & self._form.verbs or (whom and after.plain in ("a", "al", "to"))
            if self._tokens[at].plain in _AND and again and next_to_it.value[:1].isupper():
                return True
        if said.last >= len(self._tokens):
            return False
        return any(
            self._tokens[at].plain in _AND
            and (self._tokens[at + 1].plain in _REQUESTS or is_action(self._tokens[at + 1].plain))
            for at in range(max(said.first + 1, said.last - 4), said.last - 1)
        )

    def _find_joined(self, state: _State) -> list[int]:
        """Values of one form with only "and" between them, one of a list and one of something else: "a.pdf and b"."""
        found = []
        for first, second in pairwise(sorted(state.fills, key=lambda fill: fill.first)):
            if len(first.values) != 1 or len(second.values) != 1 or second.cued:
                continue
            (number, _), (other, _) = first.values[0], second.values[0]
            between = self._tokens[first.last : second.first]
            alike = self._tokens[first.last - 1].shape == self._tokens[second.first].shape
            if (
                self._form.slots[number].many
                and alike
                and [token.plain for token in between] in ([","], ["and"], ["y"])
            ):
                found += [number, other]
        return found

    def _find_unordered(self, state: _State) -> list[int]:
        """The two ends of something, such as two time zones, where no word tells which of them is which."""
        bare = [fill.values[0][0] for fill in state.fills if len(fill.values) == 1 and not fill.cued]
        ends = [number for number in bare if self._form.slots[number].role in ("from", "to")]
        kinds = Counter(self._form.slots[number].kind for number in ends)
        return [number for number in ends if kinds[self._form.slots[number].kind] > 1]

    def _swappable(self, state: _State) -> list[int]:
        """Slots whose values could change places, since neither a word nor their form tells which is which."""
        bare = [fill for fill in state.fills if len(fill.values) == 1 and not fill.cued]
        found = []
        for fill in bare:
            for other in bare:
                (number, value), (second, theirs) = fill.values[0], other.values[0]
                if number != second and self._may_be(fill, second, value) and self._may_be(other, number, theirs):
                    found.append(number)
        for fill in state.fills:
            # "assign Ann to Bob": the verb may be said of either.
            if fill.cued and not fill.named and self._scene.english and len(fill.values) == 1:
                meant = self._scene.meant_by_verb.intersection(dict(fill.values))
                beside = [other for other in bare if other.first == self._scene.verb + 1]
                rivals = [other for other in beside if meant and not self._form.slots[other.values[0][0]].forms]
                found += [*meant, *(other.values[0][0] for other in rivals)] if rivals else []
        return found

    def _turned_round(self, state: _State) -> list[int]:
        """Where something goes, if that stands bare behind the verb, and only where it comes from is announced.

        "move a.txt out of docs/" moves a.txt, and does not say where to.
        """
        cued = {fill.values[0][0] for fill in state.fills if fill.cued and len(fill.values) == 1}
        starts = {self._form.slots[number].kind for number in cued if self._form.slots[number].role == "from"}
        return [
            fill.values[0][0]
            for fill in state.fills
            if len(fill.values) == 1
            and not fill.cued
            and fill.first == self._scene.past_articles[min(self._scene.verb + 1, len(self._tokens))]
            and self._form.slots[fill.values[0][0]].role == "to"
            and self._form.slots[fill.values[0][0]].kind in starts
        ]

    def _ends_early(self, state: _State) -> list[int]:
        """The first and the last day of something, if the last comes before the first."""
        days = {
            self._form.slots[number].role: (value, number)
            for number, value in state.filled.items()
            if self._form.slots[number].kind == "date" and isinstance(value, str) and _ISO_DAY.fullmatch(value)
        }
        first, last = days.get("from"), days.get("to")
        return [first[1], last[1]] if first and last and last[0] < first[0] else []

    def _may_be(self, fill: Fill, number: int, value: Any) -> bool:
        return any(other.values == ((number, value),) for other in self._fills[fill.first])

    def _twice(self, state: _State) -> list[int]:
        """The days that a time of day has taken too: "due Friday at five" is one moment, not a day and a moment."""
        moments = {
            value[:10] for number, value in state.filled.items() if self._form.slots[number].kind == "datetime"
            and isinstance(value, str)
        }  # fmt: skip
        said = Counter(atom.value.isoformat() for atom in self._scene.days)
        return [
            number
            for number, value in state.filled.items()
            if self._form.slots[number].kind == "date" and value in moments and said[value] == 1
        ]

    def _ask_again(self, given: Mapping[str, Any]) -> Ask | None:
        """The question about an input that does not fit the schema."""
        try:
            compiled(self._capability.input_schema).check(given)
        except Agent3Error as error:
            faults = error.data.get("errors")
            told = faults if isinstance(faults, list) else []
            wrong = [str(fault.get("path", "")) for fault in told if isinstance(fault, dict)]
            tops = dict.fromkeys(slot.path[0] for slot in self._form.slots)
            names = [name for name in tops if any(name in place for place in wrong)]
            required = [slot.path[0] for slot in self._form.slots if slot.required]
            kept = {name: value for name, value in given.items() if name not in names} if names else {}
            return Ask(tuple(dict.fromkeys(names or required)), (), kept, {}, self._language)
        return None

    def _list_missing(self, state: _State) -> tuple[str, ...]:
        filled = state.filled
        return tuple(
            dict.fromkeys(
                slot.path[0] for number, slot in enumerate(self._form.slots) if slot.required and number not in filled
            )
        )

    def _input(self, fills: Sequence[Fill], without: Collection[int] = ()) -> dict[str, Any]:
        given: dict[str, Any] = {}
        values = sorted(((number, value) for fill in fills for number, value in fill.values), key=lambda pair: pair[0])
        for number, value in values:
            if number not in without:
                place = given
                *outer, last = self._form.slots[number].path
                for name in outer:
                    place = place.setdefault(name, {})
                place[last] = self._said(value)
        return given

    def _said(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self._said(one) for one in value]
        return self._sentence.slice(value.first, value.last) if isinstance(value, Words) else value

    def _ask(self, state: _State, doubts: Mapping[int, Sequence[Any]]) -> Ask:
        values = state.filled
        told = {
            self._form.slots[number].path[0]: list(
                dict.fromkeys(repr(self._said(one)) for one in (values.get(number), *others))
            )
            for number, others in doubts.items()
        }
        sure = [fill for fill in state.fills if fill.cost <= _SURE]
        given = self._input(sure, doubts.keys())
        # Where something is asked anyway, so is what was required and only half understood.
        unsure = [slot.path[0] for slot in self._form.slots if slot.required and slot.path[0] not in given]
        missing = dict.fromkeys([*self._list_missing(state), *told, *self._form.unreadable])
        if missing:  # what was half understood is asked about, and not passed over in silence
            for fill in state.fills:
                for number, value in fill.values:
                    name = self._form.slots[number].path[0]
                    if fill.cost > _SURE and name in unsure:
                        told.setdefault(name, [repr(self._said(value))])
        left = tuple(self._tokens[index].value for index in state.left)
        return Ask(tuple(dict.fromkeys([*missing, *(unsure if missing else ())])), left, given, told, self._language)
