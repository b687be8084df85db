"""The reader of sentences: from a capability and what was said to its input, to a question, or to nothing.

Deterministic, English and Spanish, without a model. It looks for the reading in which every word has a place: as a
value, as what announces one, as a word of the capability, or as a courtesy. A word without a place, a required
parameter without a value, and two readings that are equally good each lead to a question: nothing is guessed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from typing import Any

from agent3.errors import Agent3Error
from agent3.model import Capability
from agent3.schema.compiler import compiled
from agent3.sentences.fills import DETERMINERS, Fill, find_fills, row_at
from agent3.sentences.lexicon import EMPTY, Language, detect_language, ways_to_say
from agent3.sentences.phrases import match_phrases
from agent3.sentences.prohibitions import Why, blank_courtesies, find_prohibition
from agent3.sentences.slots import Form, form_of
from agent3.sentences.spans import find_spans
from agent3.sentences.tokens import LONGEST, Sentence

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
_MOST_STEPS = 6_000
_FILLER = (
    EMPTY
    | DETERMINERS
    | frozenset(
        "please kindly thanks thank ok okay hello hi hey just now right away here there asap immediately also too "
        "then so well would "
        "like i'd id i'll need want wants wanted let's lets go ahead help able make sure quick quickly moment am "
        "were was been be being "
        "favor gracias hola buenas ahora ya mismo aqui solo tambien pues bien ayuda ayudame gustaria querria deseo "
        "tengo tienes hay "
        "he ha mismo cuanto antes haga hagas hazme necesita podrias puede podeis poder any whatever it's i'm what's "
        "where's who's "
        "that's there's they we us him her one ones their theirs esto eso ello ellos nos os vez end up forget "
        "olvides but pero down i've got have anda porfa venga".split()
    )
)
_RETRIEVING = frozenset(
    "show tell give get find list see look read check fetch display know view open what which who how much many is "
    "are does do did "
    "dame dime muestra muestrame mostrar ensename lista listar ver mira mirar saber obten obtener busca buscar "
    "encuentra consulta "
    "cual cuales que quien como cuanto cuantos cuanta cuantas esta estan hay abre lee leer pone pon traeme trae go "
    "say when where "
    "cuando donde any busco buscame pone vale son es era fue current currently latest va dice dicen says si if "
    "whether continue keep apunta address direccion voy ir llego llegar llega come has have tiene tienen tengo "
    "contiene hacia there".split()
)
_LIGHT_VERBS = frozenset("do make take run give perform have haz hacer hazme dar da realiza realizar ejecuta".split())
_LOOKING = frozenset({"read", "search", "lookup"})
_WANTING = frozenset("want need like i'd needs quiero necesito quisiera gustaria querria deseo".split())
_BEFORE_DATE = frozenset("next proximo proxima this este esta coming dia day on el".split())
_LIGHT = frozenset(
    "content contents contenido contenidos result results resultado resultados info information informacion details "
    "detalles data "
    "datos text texto phrase frase value valor name nombre number numero folks people gente team equipo list lista "
    "everything todo "
    "thing things cosa cosas following siguiente new nuevo nueva called llamado class clase it".split()
)
_COSTLY = frozenset(
    "to from in on at for of with by about into as a de en con por para sobre desde hasta al del que that".split()
)
"""Words that mostly announce something: to pass one over speaks a little against a reading."""
_TELLING = frozenset(
    "before after since until between under over above below except excluding without only than more less fewer "
    "least instead "
    "antes despues entre excepto sin menos mas solo salvo both either or o ni then luego despues later first "
    "last".split()
)
"""Words that change what is meant: they are never passed over."""
_TAIL = tuple(
    tuple(row.split())
    for row in (
        "por favor|thank you|right now|at the moment|for me|in general|ahora mismo|cuanto antes|right away|de una vez"
        "|so much"
    ).split("|")
)
_ONLY_SHAPES: dict[str, tuple[str, ...]] = {
    "path": ("path", "dotted", "quote"),
    "id": ("code", "digits", "quote"),
    "name": ("code", "quote", "handle", "path", "dotted", "digits"),
    "place": ("quote",),
}
"""What a message that is nothing but a value must look like, by the kind of its slot."""


def read(capability: Capability, message: str, now: datetime, *, agent: str = "") -> Reading:
    """What a message means to a capability, with days counted from ``now``."""
    form = form_of(capability, agent)
    language = detect_language(message)
    if (why := find_prohibition(message, reading=form.reading)) is not None:
        return Forbidden(why, language)
    required = tuple(slot.path[0] for slot in form.slots if slot.required)
    if len(message) > LONGEST:
        return Ask(tuple(dict.fromkeys([*required, *form.unreadable])), (), {}, {}, language)
    sentence = Sentence(blank_courtesies(message), now)
    found = _only_value(sentence, form, capability) or _Search(sentence, form, capability, language).run()
    if not isinstance(found, Ask):
        return found
    phrased = [_read_phrase(capability, form, said, found, now) for said in match_phrases(capability, message)]
    return next((one for one in phrased if isinstance(one, Understood)), (phrased or [found])[0])


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
                given[name] = _COMMON_ARTICLE.sub("", said[name])
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
        and all(token.value[:1].isupper() or (token is not first and token.shape == "digits") for token in tokens)
    )
    known = any(token.means & (form.named | form.told) or token.plain in _FILLER for token in tokens)
    fits = len(tokens) == 1 and first.shape in _ONLY_SHAPES.get(slot.kind, ())
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


@dataclass(frozen=True, slots=True)
class _State:
    position: int
    filled: tuple[tuple[int, Any], ...] = ()
    left: tuple[int, ...] = ()
    guessed: tuple[int, ...] = ()
    used: tuple[tuple[int, int, str], ...] = ()
    anchored: bool = False
    doubts: tuple[tuple[int, Any], ...] = ()


class _Search:
    """The cheapest reading first, until the next one is clearly worse."""

    def __init__(self, sentence: Sentence, form: Form, capability: Capability, language: Language):
        self._sentence = sentence
        self._tokens = sentence.tokens
        self._form = form
        self._capability = capability
        self._language = language
        self._fills = find_fills(sentence, form)

    def run(self) -> Reading:
        finals: list[tuple[float, _State]] = []
        ticket = count()
        heap: list[tuple[float, int, _State]] = [(0.0, next(ticket), _State(0))]
        seen: dict[Any, float] = {}
        for _ in range(_MOST_STEPS):
            if not heap:
                break
            cost, _, state = heapq.heappop(heap)
            if finals and cost > finals[0][0] + _CLEAR:
                break
            if state.position > len(self._tokens):
                if all(state.filled != other.filled for _, other in finals):
                    finals.append((cost, state))
                if len(finals) > 4:
                    break
                continue
            key = (state.position, repr(state.filled), len(state.left), state.anchored)
            if seen.get(key, float("inf")) <= cost:
                continue
            seen[key] = cost
            for more, following in self._steps(state):
                heapq.heappush(heap, (cost + more, next(ticket), following))
        if not finals:
            return self._ask(_State(0, left=tuple(range(len(self._tokens)))), {})
        return self._conclude(finals)

    # What may come next

    def _steps(self, state: _State) -> list[tuple[float, _State]]:
        index = state.position
        if index == len(self._tokens):
            in_order = tuple(sorted(state.filled, key=lambda pair: pair[0]))
            return [(self._closing_cost(state), replace(state, position=index + 1, filled=in_order))]
        steps = []
        passing = self._pass(index, state)
        filled = {number for number, _ in state.filled}
        if index and any(self._is_choice(fill) and fill.values[0][0] not in filled for fill in self._fills[index]):
            # A word that is just what a choice or a switch is called was hardly said for nothing.
            passing = [(end, cost + 0.5, what, anchors) for end, cost, what, anchors in passing]
        for end, cost, what, anchors in passing:
            steps.append((cost, _advance(state, end, what, anchored=anchors)))
        for fill in self._fills[index]:
            if any(number in filled for number, _ in fill.values):
                continue
            if (cost_of_fill := self._cost(fill, state, filled)) is not None:
                steps.append((cost_of_fill, self._take(state, fill)))
        if not passing:
            steps.append((_LEFT, _advance(state, index + 1, "", left=index)))
        return steps

    def _pass(self, index: int, state: _State) -> list[tuple[int, float, str, bool]]:
        """Ways to pass a token over: as a mark, a courtesy, or a word of the capability."""
        token, form = self._tokens[index], self._form
        for row in _TAIL:
            if row_at(self._tokens, index, row):
                return [(index + len(row), 0.0, "courtesy", False)]
        if token.shape == "mark":
            return [(index + 1, 0.0, "mark", False)]
        if token.shape != "word":
            return []
        means = token.means
        dated = any(atom.first == index + 1 and atom.kind == "date" for atom in self._sentence.atoms)
        if dated and token.plain in _BEFORE_DATE:
            return [(index + 1, 0.0, "courtesy", False)]
        if token.plain in _LIGHT_VERBS and any(
            after.shape == "word" and after.means & form.named for after in self._tokens[index + 1 : index + 4]
        ):
            return [(index + 1, 0.0, "courtesy", True)]
        if means & form.named and (token.plain not in _COSTLY or index == 0):
            return [(index + 1, 0.0, "capability", True)]
        if token.plain in _WANTING:
            return [(index + 1, 0.0, "courtesy", True)]
        if form.reading and (token.plain in _RETRIEVING or means & _LOOKING):
            return [(index + 1, 0.0, "courtesy", True)]
        if token.plain in _TELLING:
            return [(index + 1, 0.1, "capability", False)] if means & form.told else []
        if token.plain in _COSTLY:
            return [(index + 1, 0.15, "courtesy", False)]
        if token.plain in _FILLER:
            return [(index + 1, 0.0, "courtesy", False)]
        if means & form.told and not (not form.reading and token.plain in _RETRIEVING):
            proper = index > 0 and token.value[:1].isupper() and self._tokens[index - 1].shape != "mark"
            return [(index + 1, 0.5 if proper else 0.1, "capability", True)]
        if token.plain in _LIGHT:
            return [(index + 1, 0.2, "courtesy", False)]
        # What belongs to a slot that has its value already: "raw, the HTML as it is".
        for number, _ in state.filled:
            slot = form.slots[number]
            if slot.kind in ("boolean", "enum") and means & frozenset(slot.words):
                return [(index + 1, 0.2, slot.name, False)]
            for row in (row for word in slot.words for row in ways_to_say(word) if slot.kind == "boolean"):
                if row_at(self._tokens, index, row):
                    return [(index + len(row), 0.2, slot.name, False)]
        return []

    def _is_choice(self, fill: Fill) -> bool:
        if len(fill.values) != 1 or fill.cost > 0.1:
            return False
        return self._form.slots[fill.values[0][0]].kind in ("enum", "boolean")

    def _cost(self, fill: Fill, state: _State, filled: set[int]) -> float | None:
        cost = fill.cost
        for number, _ in fill.values[:1]:
            slot = self._form.slots[number]
            if not fill.cued:
                if slot.role == "to" and len(fill.values) == 1:
                    partner = any(
                        self._form.slots[other].role == "from" and self._form.slots[other].kind == slot.kind
                        for other in filled
                    )
                    cost += 0.0 if partner else 1.2
                if not fill.typed and not state.anchored:
                    return None
                if not slot.required:
                    alike = any(other.kind == slot.kind and other is not slot for other in self._form.slots)
                    cost += 0.5 if alike and slot.kind != "enum" else 0.1
        return cost

    def _take(self, state: _State, fill: Fill) -> _State:
        names = ", ".join(self._form.slots[number].name for number, _ in fill.values) or "time"
        guessed = tuple(number for number, _ in fill.values if not fill.cued and not fill.typed)
        doubts = ((fill.values[0][0], fill.doubt),) if fill.doubt is not None else ()
        said = self._tokens[fill.first : fill.last]
        anchored = state.anchored or any(token.shape == "word" and token.means & self._form.named for token in said)
        return _State(
            fill.last,
            (*state.filled, *fill.values),
            state.left,
            (*state.guessed, *guessed),
            (*state.used, (fill.first, fill.last, names)),
            anchored,
            (*state.doubts, *doubts),
        )

    def _closing_cost(self, state: _State) -> float:
        filled = {number for number, _ in state.filled}
        slots = self._form.slots
        missing = sum(slot.required and number not in filled for number, slot in enumerate(slots))
        return _MISSING * missing

    # How it ends

    def _conclude(self, finals: list[tuple[float, _State]]) -> Reading:
        cost, best = finals[0]
        rivals = [state for other, state in finals[1:] if other - cost < _CLEAR]
        rivals = [
            state
            for state in rivals
            if len(state.left) == len(best.left) and self._missing(state) == self._missing(best)
        ]
        doubts: dict[int, list[Any]] = {number: [value] for number, value in best.doubts}
        values = dict(best.filled)
        for rival in rivals:
            theirs = dict(rival.filled)
            for number in values.keys() | theirs.keys():
                if values.get(number) != theirs.get(number):
                    doubts.setdefault(number, []).append(theirs.get(number))
        if best.left or self._missing(best) or doubts or self._form.unreadable:
            return self._ask(best, doubts)
        if not self._form.reading and not best.anchored and values:
            return self._ask(best, {})
        given = self._input(best, ())
        try:
            compiled(self._capability.input_schema).check(given)
        except Agent3Error as error:
            faults = error.data.get("errors")
            wrong = (
                {str(fault.get("path", "")) for fault in faults if isinstance(fault, dict)}
                if isinstance(faults, list)
                else set()
            )
            names = [slot.path[0] for slot in self._form.slots if any(slot.path[0] in place for place in wrong)]
            return Ask(tuple(dict.fromkeys(names or [slot.path[0] for slot in self._form.slots if slot.required])), (),
                       {}, {}, self._language)  # fmt: skip
        used = tuple(
            (self._sentence.slice(first, last), what) for first, last, what in best.used if what not in ("mark", "")
        )
        guessed = tuple(dict.fromkeys(".".join(self._form.slots[number].path) for number in best.guessed))
        return Understood(given, used, guessed)

    def _missing(self, state: _State) -> tuple[str, ...]:
        filled = {number for number, _ in state.filled}
        return tuple(
            dict.fromkeys(
                slot.path[0] for number, slot in enumerate(self._form.slots) if slot.required and number not in filled
            )
        )

    def _input(self, state: _State, without: Sequence[int]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for number, value in state.filled:
            if number in without:
                continue
            place = given
            *outer, last = self._form.slots[number].path
            for name in outer:
                place = place.setdefault(name, {})
            place[last] = value
        return given

    def _ask(self, state: _State, doubts: Mapping[int, Sequence[Any]]) -> Ask:
        values = dict(state.filled)
        told = {
            self._form.slots[number].path[0]: list(dict.fromkeys(map(repr, [values.get(number), *others])))
            for number, others in doubts.items()
        }
        missing = tuple(dict.fromkeys([*self._missing(state), *told, *self._form.unreadable]))
        left = tuple(self._tokens[index].value for index in state.left)
        return Ask(missing, left, self._input(state, [*doubts]), told, self._language)


def _advance(state: _State, end: int, what: str, *, anchored: bool = False, left: int | None = None) -> _State:
    return _State(
        end,
        state.filled,
        state.left if left is None else (*state.left, left),
        state.guessed,
        (*state.used, (state.position, end, what)),
        state.anchored or anchored,
        state.doubts,
    )
