"""Every way in which a part of a sentence can fill a slot, with what speaks against it.

A fill is announced by a word (the name of the slot, a preposition that fits it), found by its kind (a date, an
address), or stands bare. ``reader`` chooses among them so that every word has a place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from agent3.sentences.announcements import CALLED, DETERMINERS, LEAD, Scene, row_length
from agent3.sentences.compounds import compounds_at
from agent3.sentences.lexicon import BROAD, is_phrase
from agent3.sentences.passing import NEW
from agent3.sentences.slots import Kind, Slot, form_of_code
from agent3.sentences.texts import is_form, is_name, is_taken, may_be_part, texts_at
from agent3.sentences.tokens import Token
from agent3.sentences.values import Cue, Value, Words, values_at

__all__ = ["Fill", "find_fills"]


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
    swallows: frozenset[int] = frozenset()
    named: bool = False
    """It begins with the name of its slot, or with words that lead to it."""


_COSTS: dict[Cue, float] = {"named": 0.0, "called": 0.05, "noun": 0.4, "lead": 0.1, "role": 0.35, "weak": 0.9, "": 0.5}
"""What announces a value, from the surest to the least: each is clearly better than the next."""
_BARE = 0.7
"""Against a value that neither a word nor its form tells, on top."""
_OPTIONAL = 0.35
_PLAIN = 0.95
"""Up to here a value is sure enough for a text to end before it."""
_MOST_FILLS = 120
"""For one token."""
_WORDED = ("name", "place", "id", "text")


_ARTICLES = DETERMINERS - frozenset("this that these those este esta ese esa".split())
_STAGES: tuple[tuple[Kind, ...], ...] = (
    ("enum", "boolean", "integer", "number", "date", "datetime", "time", "email", "url", "path", "domain", "currency",
     "language", "zone", "phone", "duration", "when", "code"),
    ("id", "name", "place"),
    ("text",),
)  # fmt: skip
"""The surest kinds first: a name ends where one of them begins, and a text where any of the others does."""


def find_fills(scene: Scene) -> list[list[Fill]]:
    """For each token the fills that begin at it, the likeliest first."""
    found: list[list[Fill]] = [[] for _ in scene.tokens]
    codes = _Codes(scene)
    for index in range(len(scene.tokens)):
        for last, values in compounds_at(scene, index):
            fill = Fill(index, last, values, 0.05, True, True)
            number = values[0][0] if values else None
            whole = iter([fill]) if number is None else _with_notes(scene, fill, number, scene.slots[number])
            for wider in whole:
                _keep(scene, found, wider)
    for kinds in _STAGES:
        slots = [(number, slot) for number, slot in enumerate(scene.slots) if slot.kind in kinds]
        for index in range(len(scene.tokens)):
            for number, slot in slots:
                for fill in filter(None, map(codes.judge, _fills_of(scene, index, number, slot))):
                    for wider in _with_notes(scene, fill, number, slot):
                        _keep(scene, found, wider)
        if kinds == _STAGES[0]:
            scene.sure = [{*numbers} for numbers in scene.stops]
        if kinds != ("text",):
            _announce_texts(scene)
            scene.link_stops()
    return [_best(fills) for fills in found]


def _keep(scene: Scene, found: list[list[Fill]], fill: Fill) -> None:
    found[fill.first].append(fill)
    if not fill.values:  # a day that is part of a time said elsewhere
        scene.stops[fill.first].update(n for n, slot in enumerate(scene.slots) if slot.kind == "datetime")
    if (
        fill.values
        and (fill.cued or fill.typed)
        and fill.cost < _PLAIN
        and scene.slots[fill.values[0][0]].kind != "text"
    ):
        scene.stops[fill.first].update(number for number, _ in fill.values)


class _Codes:
    """Which codes of a sentence have the form of those that a slot shows as examples: "Issue key, e.g. ENG-12"."""

    def __init__(self, scene: Scene):
        self._scene = scene
        self._shown = [slot.forms for slot in scene.slots]
        said = Counter(form_of_code(token.value) for token in scene.tokens if any(self._shown))
        self._said = {form for form in said if form}
        takers = Counter(form for forms in self._shown for form in forms)
        self._spoken_for = {form for form in self._said if 0 < said[form] <= takers[form]}
        """Forms of which there are no more codes than slots that show them."""

    def judge(self, fill: Fill) -> Fill | None:
        """The fill; with a doubt, or None, where the form of a code speaks for another."""
        if not any(self._shown) or len(fill.values) != 1:
            return fill
        number, value = fill.values[0]
        slot, forms = self._scene.slots[number], self._shown[number]
        said = [form_of_code(one) if isinstance(one, str) else "" for one in (value if slot.many else (value,))]
        if not forms:
            plain = slot.kind in ("name", "place", "id") and not (fill.named and fill.cued)
            return None if plain and self._spoken_for.intersection(said) else fill
        if forms.issuperset(said):
            return fill
        if self._said & forms:
            return None
        digits = isinstance(value, str) and value.isdigit()
        return fill if fill.named or digits or fill.doubt is not None else replace(fill, doubt=value)


def _announce_texts(scene: Scene) -> None:
    """A text ends where another is announced by its name."""
    for index, names in enumerate(scene.names):
        for number in names:
            begin = next(scene.named_begins(index, number))
            if scene.slots[number].kind == "text" and begin < len(scene.tokens) and scene.tokens[begin].shape != "mark":
                scene.stops[index].add(number)


def _best(fills: list[Fill]) -> list[Fill]:
    kept: dict[str, Fill] = {}
    for fill in sorted(fills, key=lambda fill: fill.cost):
        kept.setdefault(f"{fill.last} {fill.values}", fill)
    return [*kept.values()][:_MOST_FILLS]


def _fills_of(scene: Scene, index: int, number: int, slot: Slot) -> Iterator[Fill]:
    tokens = scene.tokens
    if number in scene.names[index]:
        firsts = [index]
        while firsts[-1] and index - firsts[-1] < 3 and tokens[firsts[-1] - 1].plain in LEAD:
            firsts.append(firsts[-1] - 1)
        noun = scene.is_noun(index, number)
        if slot.kind in _NAMES and slot.words[-1:] != ("of",) and not slot.many:
            owned = [*_fill_owned(scene, index, number, slot)]
            yield from owned
            if owned or _is_owner(scene, index, scene.names[index][number]):
                return
        unsure = slot.kind == "name" and _may_bear_name(scene, index, scene.names[index][number])
        for begin in scene.named_begins(index, number):
            for fill in _values(scene, index, begin, number, slot, "noun" if noun else "named"):
                if unsure and fill.doubt is None and not slot.forms:
                    fill = replace(fill, doubt=Words(index, fill.last))
                for first in firsts:
                    yield replace(_with_noun(scene, index, begin, fill), first=first, cued=True, named=not noun)
        yield from _before_name(scene, index, number, slot)
    # Whether an address is rather for the parameter of its kind that is required, unless something names this one.
    rivals = [other for other in scene.slots if other.required and other.kind == slot.kind]
    second = slot.kind in _ADDRESSES and not slot.required and bool(rivals)
    for begin, own in dict.fromkeys(scene.led_begins(index, slot)):
        if (own or (slot.required and slot.kind != "text")) and (slot.role or not second):
            yield from _values(scene, index, begin, number, slot, "role" if own else "weak")
    if slot.kind in ("path", *_WORDED) and not slot.many:
        length = scene.called_length(index)
        if length and (slot.role == "title" or (slot.required and slot.kind != "id" and not _has_title(scene))):
            yield from _values(scene, index, index + length, number, slot, "called")
    if slot.required and slot.kind in ("name", "id") and slot.words[-1:] == ("name",) and _follows_type(scene, index):
        yield from _values(scene, index, index, number, slot, "noun")
    if slot.kind in ("integer", "number") and (after := scene.bound_end(index, slot)) is not None:
        yield from _values(scene, index, after, number, slot, "lead")
    shown = slot.kind in ("id", "name") and slot.forms and form_of_code(tokens[index].value) in slot.forms
    unsaid = slot.required or (slot.kind not in _WORDED and not second)
    if unsaid or shown or (slot.kind == "text" and tokens[index].shape == "quote"):
        yield from _values(scene, index, index, number, slot, "")


def _has_title(scene: Scene) -> bool:
    """Whether there is a parameter for what something is called: then "called" announces no other."""
    return any(slot.role == "title" for slot in scene.slots)


_NAMES = ("name", "id", "place")
_ADDRESSES = ("email", "url", "path", "domain", "phone")
_OF = frozenset("of de del".split())
_INTO = frozenset("to a al as como into por for".split())


def _fill_owned(scene: Scene, index: int, number: int, slot: Slot) -> Iterator[Fill]:
    """ "the gate of IB3166 to K72": after "of" stands whose it is, and what it is to be only after "to"."""
    tokens, at = scene.tokens, scene.names[index][number]
    others = [n for n, other in enumerate(scene.slots) if other.required and other.kind in _NAMES and n != number]
    if at + 1 >= len(tokens) or tokens[at].plain not in _OF or len(others) != 1 or scene.slots[others[0]].many:
        return
    owner = scene.slots[others[0]]
    begin = next((begin for begin, _ in scene.led_begins(at, owner)), at + 1)
    for whose in _values(scene, index, begin, others[0], owner, "noun"):
        if whose.last + 1 < len(tokens) and tokens[whose.last].plain in _INTO:
            for what in _values(scene, whose.last, whose.last + 1, number, slot, "role"):
                doubt = whose.doubt if what.doubt is None else what.doubt
                yield Fill(index, what.last, (*whose.values, *what.values), 0.1, True, True, doubt)


def _is_owner(scene: Scene, index: int, end: int) -> bool:
    """Whether the name of a slot with "of" after it says what somebody is to be: "make Ann the manager of Bob"."""
    if end >= len(scene.tokens) or scene.tokens[end].plain not in _OF | _INTO:
        return False
    first = index
    while first and scene.tokens[first - 1].plain in DETERMINERS - {"al", "del"}:
        first -= 1
    before = scene.tokens[first - 1]
    if first <= scene.verb + 1 or before.shape == "mark":
        return False  # "change the owner of …"
    if before.plain in _BEING or scene.tokens[end].plain in _INTO:
        return before.plain in _BEING  # "Ann as mentor to Bob"
    return before.plain not in LEAD and not before.means & scene.form.named


def _may_bear_name(scene: Scene, index: int, end: int) -> bool:
    """Whether the name of a slot may be part of what it is called: "Sprint 4", "Sales report to Ann"."""
    tokens, before = scene.tokens, scene.tokens[index - 1]
    if index <= scene.verb or index < 1 or before.shape == "mark":
        return False
    if tokens[index].value[:1].isupper() and not scene.sentence.text.isupper():
        return True
    named = before.shape == "word" and before.value[:1].isupper() and index - 1 > scene.verb
    return named and end < len(tokens) and tokens[end].plain in _INTO


_BEING = frozenset("as como is be es sea de".split())


def _with_noun(scene: Scene, index: int, begin: int, fill: Fill) -> Fill:
    """ "at Hotel Miramar" says the noun of a place as part of its name; "at the hotel Miramar" does not."""
    tokens = scene.tokens
    if index == scene.verb or begin != index + 1 or not _bears_noun(tokens[begin], tokens[index]):
        return fill
    said = Words(index, fill.last)
    return replace(fill, values=tuple((number, said) for number, _ in fill.values)) if len(fill.values) == 1 else fill


def _follows_type(scene: Scene, index: int) -> bool:
    """Whether the word before says of what type it is: "the pod web-1", where there is a parameter for that."""
    before = scene.tokens[index - 1] if index else None
    return before is not None and any(
        before.shape == "word" and is_form(before.plain, plain) for slot in scene.slots for plain, _ in slot.shown
    )


def _values(scene: Scene, first: int, begin: int, number: int, slot: Slot, cue: Cue) -> Iterator[Fill]:
    tokens = scene.tokens
    if cue and slot.kind not in ("enum", "boolean"):
        while begin < len(tokens) and tokens[begin].plain in _ARTICLES and tokens[begin].value[:1].islower() and (
            slot.kind != "text" or slot.role == "query" or (slot.role == "title" and cue != "called")
        ) and not any(atom.kind in ("number", "measure", "sum") for atom in scene.atoms[begin]):  # fmt: skip
            begin += 1
    if begin >= len(tokens):
        return
    for value in _lists(scene, begin, number, slot, cue) if slot.many else _single(scene, begin, number, slot, cue):
        cued = (bool(cue) and cue != "weak") or value.cued
        cost = (0.1 if value.cued and not cue else _COSTS[cue]) + value.cost
        if slot.kind in ("enum", "boolean") and cue in ("", "role"):
            cost = 0.15 + value.cost
        if not cue and not value.typed:
            cost += _BARE
        if not cue and not slot.required and slot.kind not in ("enum", "boolean"):
            cost += _OPTIONAL
        yield Fill(first, value.end, ((number, value.value),), cost, cued, value.typed, value.doubt, value.swallows)


def _single(scene: Scene, begin: int, number: int, slot: Slot, cue: Cue, *, item: bool = False) -> Iterator[Value]:
    if slot.kind in _WORDED:
        yield from texts_at(scene, begin, number, cue, item=item)
    else:
        yield from values_at(scene, begin, slot, cue)


def _lists(scene: Scene, begin: int, number: int, slot: Slot, cue: Cue) -> Iterator[Value]:
    """A, B and C: as many as follow each other."""
    tokens, position, cost, typed = scene.tokens, begin, 0.0, True
    values: list[Any] = []
    doubt: Any = None
    while position < len(tokens) and len(values) < 40:
        if values and tokens[position].shape == "word" and scene.stops[position] - {number}:
            break
        one = next(iter(_single(scene, position, number, slot, cue, item=True)), None)
        if one is None:
            break
        values.append(one.value)
        cost, typed, position = max(cost, one.cost), typed and one.typed, one.end
        doubt, end = one.doubt if doubt is None else doubt, one.end
        while position < len(tokens) and tokens[position].plain in (",", "and", "y", "e", "&", "plus", "ni", "nor"):
            position += 1
        # "to ann@x.org and to bob@x.org": the preposition that led to the first may be said again.
        led = tokens[first - 1].plain if (first := begin) else ""
        while first and led in DETERMINERS - {"a", "al"}:
            first -= 1
            led = tokens[first - 1].plain if first else ""
        if end < position < len(tokens) - 1 and tokens[position].plain == led != "":
            position += 1
        several = len(values) == 1 and isinstance(one.value, Words) and one.value.last - one.value.first > 1
        if several and begin and tokens[begin - 1].plain.endswith("s") and doubt is None:
            doubt = tokens[one.value.first].value  # "with labels bug urgent": one of them, or two?
        if end < position < len(tokens) and tokens[position].plain in NEW and doubt is None:
            doubt = tokens[position].value  # "the tags urgent, new": one of them, or said of what follows?
        yield Value(end, tuple(values), cost - 0.01 * len(values), typed, doubt=doubt)
        if position == end:
            break


def _before_name(scene: Scene, index: int, number: int, slot: Slot) -> Iterator[Fill]:
    """A value before the name of its slot: "high priority", "the staging namespace"."""
    tokens = scene.tokens
    if index == 0 or row_length(tokens, index, CALLED):
        return  # what is titled stands after it
    end = scene.names[index][number]
    if slot.kind == "enum":
        for first in range(max(0, index - 3), index):
            for value in values_at(scene, first, slot, "named"):
                if value.end == index:
                    yield Fill(first, end, ((number, value.value),), value.cost, True, True)
    elif slot.kind in ("name", "id") and not slot.many and index > 1:
        token, before = tokens[index - 1], tokens[index - 2]
        if before.plain not in LEAD or token.shape not in ("word", "code") or not is_name(token):
            return
        if any(token.means & (other.own - BROAD) for other in scene.slots):
            return  # "el bucket origen", where there are two buckets: it says which one, not what it is called
        if not token.means & scene.form.named and not is_taken(scene, index - 1, number, "named"):
            # "the living room" is a room, "the billing service" one called billing, "Central Garage" bears its noun.
            whole = is_phrase(token.plain, tokens[index].plain) or _bears_noun(token, tokens[index])
            said = Words(index - 1, end) if whole else token.value
            part = not whole and token.value[:1].isupper() and may_be_part(scene, index)
            doubt = Words(index - 1, end) if part else None
            yield Fill(index - 1, end, ((number, said),), 0.3, True, False, doubt)


_ANYBODY = frozenset("anyone anybody everyone everybody nadie todos them".split())
_VENUES = frozenset(
    "hotel hostel garage restaurant cafe bar museum school university college hospital clinic park station airport "
    "theatre theater cinema gym bank library church".split()
)


def _bears_noun(token: Token, noun: Token) -> bool:
    """Whether the noun of a place is part of its name, as its capital letter tells: "Central Garage"."""
    return token.value[:1].isupper() and noun.value[:1].isupper() and bool(noun.means & _VENUES)


def _announces_another(scene: Scene, index: int, slot: Slot) -> bool:
    """Whether what follows a word is of the kind of a slot as well, so that the word speaks of that."""
    at = index + 1
    while at < len(scene.tokens) and at - index < 3 and scene.tokens[at].plain in LEAD | DETERMINERS:
        at += 1
    kinds = ("number", "sum", "measure") if slot.kind in ("integer", "number") else ("date", "time", "datetime")
    return at < len(scene.tokens) and any(atom.kind in kinds for atom in scene.atoms[at])


def _with_notes(scene: Scene, fill: Fill, number: int, slot: Slot) -> Iterator[Fill]:
    """The fill, and the same with the words beside it that the slot's own description has: "300 pixels wide"."""
    yield fill
    tokens, own = scene.tokens, slot.own | slot.about
    for other, _ in fill.values[1:]:
        own |= scene.slots[other].own
    if slot.kind == "text" or slot.shown or not (fill.typed or fill.cued):
        return
    last, cued, named = fill.last, fill.cued, False
    if slot.kind == "boolean" and last < len(tokens) and tokens[last].plain in _ANYBODY:
        yield replace(fill, last=last + 1)  # "without notifying anyone"
    for _ in range(3):
        at = last + (last < len(tokens) and tokens[last].plain in ("of", "de", "in"))
        if slot.kind == "boolean" and at < len(tokens):
            at = min(scene.past_articles[at], len(tokens) - 1)  # "notify the singers"
        if slot.kind in _NAMES and at < len(tokens) and tokens[at].plain in NEW:
            break  # "Red new", for the new name of something
        if slot.kind in ("date", "datetime", "time", "integer", "number") and _announces_another(scene, at, slot):
            break  # "on Monday returning on Friday"
        if at >= len(tokens) or tokens[at].shape != "word" or not tokens[at].means & own or scene.stops[at] - {number}:
            break
        named = named or number in scene.names[at]
        last = at + 1
    first = fill.first
    for _ in range(2):
        if (
            not first
            or tokens[first - 1].shape != "word"
            or not tokens[first - 1].means & own
            or first - 1 == scene.verb
        ):
            break
        if tokens[first - 1].means & scene.form.named:
            break
        named = named or number in scene.names[first - 1]
        first -= 1
    if first != fill.first or last != fill.last:
        wider = replace(fill, last=last, cost=min(fill.cost, 0.05) if named else fill.cost, cued=cued or named)
        yield wider
        if first != fill.first:
            yield replace(wider, first=first)
