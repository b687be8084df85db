"""Parts of a sentence that fill several slots at once: ranges, sums, sizes, owner and repository, joined paths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from agent3.sentences.announcements import CALLED, DETERMINERS, Scene, row_length
from agent3.sentences.lexicon import fold
from agent3.sentences.slots import Role, Slot
from agent3.sentences.synonyms import CURRENCIES
from agent3.sentences.texts import is_name
from agent3.sentences.tokens import Atom, Token
from agent3.sentences.values import day_for, is_in_cents, plain_number, write_moment

__all__ = ["compounds_at"]

Compound = tuple[int, tuple[tuple[int, Any], ...]]
"""Where it ends, and the values by the numbers of their slots."""

_INSIDE = frozenset("in inside under within en dentro de".split())
_ORDERED = frozenset(
    tuple(pair.split())
    for pair in (
        "a b|x y|num1 num2|number1 number2|first second|left right|latitude longitude|lat lon|lat lng|width height"
    ).split("|")
)
_JOINTS = frozenset("and y e , + plus mas x * by por".split())
_TIMES = frozenset("x * by por".split())
_BEFORE_RANGE = frozenset("from between de del desde entre".split())
_IN_RANGE = frozenset("to until till through and al a hasta y e - \u2013".split())
_INTO = frozenset("to into in a en".split())
_SIZE = re.compile(r"(\d+)[x\u00d7](\d+)")


def compounds_at(scene: Scene, index: int) -> Iterator[Compound]:
    """What begins at a token and fills two slots, or is part of what others say."""
    yield from _ranges(scene, index)
    yield from _joined_paths(scene, index)
    yield from _pairs(scene, index)
    yield from _repositories(scene, index)
    yield from _full_names(scene, index)
    yield from _ends_between(scene, index)
    yield from _units(scene, index)
    for atom in scene.atoms[index]:
        if atom.kind == "sum":
            yield from _sums(scene, atom)
        elif atom.kind == "times":
            yield from _times(scene, atom)
        elif atom.kind == "time":
            yield from _times_in_zones(scene, atom)
        elif (
            atom.kind == "date"
            and any(slot.kind == "datetime" for slot in scene.slots)
            and any(other.kind == "times" or day_for(scene, other) == atom.value for other in scene.clocks[:8])
        ):
            yield atom.last, ()  # it is part of what the times say


def _sure(scene: Scene, index: int) -> list[Atom]:
    """What stands there and can be one thing only: a compound has no place for a doubt."""
    return [atom for atom in scene.atoms[index] if atom.doubt is None]


def _ranges(scene: Scene, index: int) -> Iterator[Compound]:
    """From one value to another of a kind that has a slot for each: "del 3 al 7 de marzo", "between 2019 and 2022"."""
    tokens = scene.tokens
    begin = scene.past_articles[index + (tokens[index].plain in _BEFORE_RANGE)]
    if begin >= len(tokens):
        return
    for first in _sure(scene, begin):
        joint = first.last
        if first.kind not in ("date", "number") or joint >= len(tokens) or tokens[joint].plain not in _IN_RANGE:
            continue
        if tokens[joint].plain in ("and", "y", "e") and tokens[index].plain not in ("between", "entre", "de", "from"):
            continue
        second_at = scene.past_articles[joint + 1]
        for second in _sure(scene, second_at) if second_at < len(tokens) else ():
            if second.kind != first.kind:
                continue
            kinds = ("date",) if first.kind == "date" else ("integer", "number")
            if (ends := _ends(scene, kinds)) and first.value < second.value:
                both = (first.value, second.value)
                values = [
                    write_moment(one, scene.slots[number]) if first.kind == "date" else plain_number(one)
                    for number, one in zip(ends, both, strict=True)
                ]
                yield second.last, tuple(zip(ends, values, strict=True))


def _ends(scene: Scene, kinds: tuple[str, ...]) -> tuple[int, int] | None:
    """The two slots of a kind that begin and end something; None unless there are just two."""
    roles = {"from": ("from", "least", "first"), "to": ("to", "most")}
    starts = [n for n, slot in enumerate(scene.slots) if slot.kind in kinds and slot.role in roles["from"]]
    ends = [n for n, slot in enumerate(scene.slots) if slot.kind in kinds and slot.role in roles["to"]]
    if kinds != ("date",):
        ends = [n for n in ends if any(scene.slots[n].own & scene.slots[start].own for start in starts)]
    return (starts[0], ends[0]) if len(starts) == len(ends) == 1 else None


def _joined_paths(scene: Scene, index: int) -> Iterator[Compound]:
    """ "called photos in /tmp/work" is one path where there is one parameter for it."""
    tokens = scene.tokens
    paths = [number for number, slot in enumerate(scene.slots) if slot.kind == "path" and not slot.many]
    if len(paths) != 1 or any(slot.role == "title" for slot in scene.slots):
        return
    length = row_length(tokens, index, CALLED)
    begins = [index + length] if length else []
    begins += [end for end in scene.named_begins(index, paths[0]) if end - index < 4]
    for begin in dict.fromkeys(begins):
        if begin >= len(tokens) or tokens[begin].shape not in ("word", "dotted", "code", "quote"):
            continue
        name = tokens[begin]
        if not length and name.shape == "word" and not ("folder" in tokens[index].means and _is_single(tokens[index])):
            continue  # "the files pdf in /tmp" are not called so
        if "/" in name.value or (name.shape == "word" and (not is_name(name) or name.means & scene.form.named)):
            continue
        place = begin + 1
        while place < len(tokens) and place - begin < 5 and (
            tokens[place].plain in DETERMINERS | _INSIDE or tokens[place].means & {"folder"}
        ):  # fmt: skip
            place += 1
        if begin + 1 < place < len(tokens) and tokens[place].shape == "path":
            yield place + 1, ((paths[0], f"{tokens[place].value.rstrip('/')}/{name.value}"),)


def _is_single(token: Token) -> bool:
    return not token.plain.endswith("s")


def _pairs(scene: Scene, index: int) -> Iterator[Compound]:
    """Two numbers for two parameters that have an order and nothing else: "add 2 and 3", "40.4, -3.7", "1280x720"."""
    numbers = [n for n, slot in enumerate(scene.slots) if slot.kind in ("integer", "number")]
    named = {scene.slots[number].name.lower(): number for number in numbers}
    found = [pair for pair in _ORDERED if all(name in named for name in pair)]
    if len(found) != 1:
        return
    pair = tuple(named[name] for name in found[0])
    if size := _SIZE.fullmatch(scene.tokens[index].plain):
        if found[0] == ("width", "height"):
            yield index + 1, tuple(zip(pair, (int(size[1]), int(size[2])), strict=True))
        return
    required = len([number for number in numbers if scene.slots[number].required]) == 2
    for first in _sure(scene, index):
        joint = first.last
        if first.kind != "number" or joint + 1 >= len(scene.tokens):
            continue
        if scene.tokens[joint].plain not in (_JOINTS if required else _TIMES):
            continue
        for second in _sure(scene, joint + 1):
            if second.kind == "number":
                yield second.last, tuple(zip(pair, (first.value, second.value), strict=True))


def _repositories(scene: Scene, index: int) -> Iterator[Compound]:
    token = scene.tokens[index]
    if token.shape != "path" or not re.fullmatch(r"[\w.-]+/[\w.-]+", token.value):
        return
    by_name = {slot.name.lower(): number for number, slot in enumerate(scene.slots)}
    other = next((by_name[name] for name in ("repo", "repository", "repo_name") if name in by_name), None)
    if "owner" in by_name and other is not None:
        owner, _, repository = token.value.partition("/")
        yield index + 1, ((by_name["owner"], owner), (other, repository))


def _full_names(scene: Scene, index: int) -> Iterator[Compound]:
    """ "Ann Lee" where there is a parameter for the first and one for the last name; not where three words are one."""
    by_name = {"".join(slot.words): number for number, slot in enumerate(scene.slots) if not slot.many}
    first = next((by_name[name] for name in ("firstname", "givenname", "forename") if name in by_name), None)
    last = next((by_name[name] for name in ("lastname", "surname", "familyname") if name in by_name), None)
    begin = index + row_length(scene.tokens, index, CALLED)
    tokens = scene.tokens[begin : begin + 3]
    if first is None or last is None or begin == 0 or [*map(_is_capitalised, tokens)][:2] != [True, True]:
        return
    led = begin - 1 != scene.verb and _is_capitalised(scene.tokens[begin - 1])
    if (len(tokens) == 3 and _is_capitalised(tokens[2])) or led:
        return
    yield begin + 2, ((first, tokens[0].value), (last, tokens[1].value))


def _is_capitalised(token: Token) -> bool:
    return token.shape == "word" and token.value[:1].isupper() and not token.value.isupper()


def _ends_between(scene: Scene, index: int) -> Iterator[Compound]:
    """ "between MAD and JFK": the two ends of something that has a beginning and an end, in that order."""
    tokens = scene.tokens
    if tokens[index].plain not in ("between", "entre"):
        return
    for kind in ("id", "place", "zone", "currency", "name"):
        starts = [n for n, slot in enumerate(scene.slots) if slot.kind == kind and slot.role == "from"]
        ends = [n for n, slot in enumerate(scene.slots) if slot.kind == kind and slot.role == "to"]
        if len(starts) != 1 or len(ends) != 1:
            continue
        for first, second in (_two_names(scene, index + 1),):
            if first and second:
                yield second[1], ((starts[0], _slice(scene, first)), (ends[0], _slice(scene, second)))


def _two_names(scene: Scene, begin: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Two names with capital letters, or codes, and an "and" between them."""
    first = _capitals(scene, begin)
    joint = first[1] if first else len(scene.tokens)
    if joint >= len(scene.tokens) or scene.tokens[joint].plain not in ("and", "y", "e"):
        return None, None
    return first, _capitals(scene, joint + 1)


def _capitals(scene: Scene, begin: int) -> tuple[int, int] | None:
    end = begin
    while end < min(len(scene.tokens), begin + 4) and (
        scene.tokens[end].shape in ("word", "code") and scene.tokens[end].value[:1].isupper()
    ):
        end += 1
    return (begin, end) if end > begin else None


def _slice(scene: Scene, span: tuple[int, int]) -> str:
    return scene.sentence.slice(*span)


def _units(scene: Scene, index: int) -> Iterator[Compound]:
    """A number and its unit where there is a parameter for each: "10 km" in "convert 10 km to mi"."""
    numbers = [n for n, slot in enumerate(scene.slots) if slot.kind in ("integer", "number")]
    units = [n for n, slot in enumerate(scene.slots) if slot.kind == "enum" and slot.role == "from"]
    if len(numbers) != 1 or len(units) != 1 or scene.slots[numbers[0]].unit is not None:
        return
    for atom in _sure(scene, index):
        if atom.kind != "number" or atom.last >= len(scene.tokens):
            continue
        said = fold(scene.tokens[atom.last].value)
        for option, ways in scene.slots[units[0]].options:
            if said == fold(str(option)) or (said,) in ways or (said.removesuffix("s"),) in ways:
                yield atom.last + 1, ((numbers[0], plain_number(atom.value)), (units[0], option))


def _times_in_zones(scene: Scene, atom: Atom) -> Iterator[Compound]:
    """A time of day in a zone, where there is one to convert from: "when it is 09:00 in America/New_York"."""
    at = atom.last + (atom.last < len(scene.tokens) and scene.tokens[atom.last].plain in ("in", "en"))
    if at >= len(scene.tokens):
        return
    clocks = [n for n, slot in enumerate(scene.slots) if slot.kind == "time"]
    starts = [n for n, slot in enumerate(scene.slots) if slot.kind == "zone" and slot.role == "from"]
    for zone in scene.atoms[at]:
        if zone.kind == "zone" and len(clocks) == len(starts) == 1:
            yield zone.last, ((clocks[0], write_moment(atom.value, scene.slots[clocks[0]])), (starts[0], zone.value))


def _sums(scene: Scene, atom: Atom) -> Iterator[Compound]:
    if atom.doubt is not None:
        return
    names = [atom.unit.lower(), *CURRENCIES.get(atom.unit, "").split()]
    amounts = [
        n
        for n, slot in enumerate(scene.slots)
        if slot.kind in ("number", "integer") and not slot.unit and (_is_money(slot) or _tells(slot, names))
    ]
    if not amounts and sum(slot.kind in ("number", "integer") for slot in scene.slots) == 1:
        amounts = [n for n, slot in enumerate(scene.slots) if slot.kind in ("number", "integer") and not slot.unit]
    led = scene.tokens[atom.first - 1].plain if atom.first else ""
    ends = [slot.role for slot in scene.slots if slot.kind == "currency"]
    end: Role = "from"
    if led in _INTO and "to" in ends:
        if scene.tokens[atom.first].shape == "digits":
            return  # "into 1500 EUR": so much of which of the two?
        end = "to"  # "from CHF to EUR 1500"
    currencies = [
        number
        for number, slot in enumerate(scene.slots)
        if (slot.role == end if end == "to" else slot.role != "to")
        and not slot.many
        and (slot.kind == "currency" or any(str(option).upper() == atom.unit for option, _ in slot.options))
    ]
    for amount in amounts:
        value, slot = atom.value, scene.slots[amount]
        hundredths = is_in_cents(slot)
        if hundredths:
            if atom.unit in _WITHOUT_CENTS:
                continue
            value = round(value * 100, 6)
        if slot.kind == "integer" and value != int(value):
            continue
        last = atom.last
        if (each := _past_each(scene, last, slot)) is not None:
            last = each
        elif last < len(scene.tokens) and scene.tokens[last].plain in ("per", "por", "each"):
            continue  # "2.50 euros per crate" is no other sum
        for currency in currencies:
            unit = next((o for o, _ in scene.slots[currency].options if str(o).upper() == atom.unit), atom.unit)
            yield last, ((amount, plain_number(value)), (currency, unit))
        # A capability that pays "an amount in euros" says for its only amount in what.
        told = len(amounts) == 1 and not frozenset(names).isdisjoint(scene.form.told_words)
        if not currencies and (hundredths or told or _tells(slot, names)):
            yield last, ((amount, plain_number(value)),)


def _tells(slot: Slot, names: Sequence[str]) -> bool:
    """Whether a description speaks of a currency."""
    words = "_".join(re.findall(r"[^\W_]+", fold(slot.described)))
    return any(f"_{name}_" in f"_{words}_" for name in names)


def _past_each(scene: Scene, index: int, slot: Slot) -> int | None:
    """Where "per crate" or "a year" ends after a sum, if that is what the slot is the price of."""
    tokens, at = scene.tokens, index + 1
    if at < len(tokens) and tokens[index].plain in ("per", "por", "a", "al", "each", "cada", "/", "the", "la", "el"):
        return at + 1 if tokens[at].means & (slot.own | slot.about) else None
    priced = bool({"per", "each", "unit"} & {*slot.words, *re.findall(r"[a-z]+", fold(slot.described))})
    return index + 1 if index < len(tokens) and tokens[index].plain == "each" and priced else None


_WITHOUT_CENTS = frozenset("JPY KRW CLP HUF".split())


def _is_money(slot: Slot) -> bool:
    return bool(
        frozenset(slot.words) & frozenset("amount price cost budget total sum fare importe value fee salary".split())
    )


def _times(scene: Scene, atom: Atom) -> Iterator[Compound]:
    first, second = atom.value
    for kind in ("datetime", "time"):
        starts = [n for n, slot in enumerate(scene.slots) if slot.kind == kind and slot.role == "from"]
        ends = [n for n, slot in enumerate(scene.slots) if slot.kind == kind and slot.role == "to"]
        if len(starts) != 1 or len(ends) != 1:
            continue
        both: tuple[Any, Any] = first, second
        if kind == "datetime":
            if (day := day_for(scene, atom)) is None:
                continue
            both = datetime.combine(day, first), datetime.combine(day, second)
        if first < second:
            numbers = starts[0], ends[0]
            yield atom.last, tuple((n, write_moment(one, scene.slots[n])) for n, one in zip(numbers, both, strict=True))
