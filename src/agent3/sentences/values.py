"""The values of one slot that begin at a token, by the kind of the slot: numbers, options, switches, dates, addresses.

Each comes with what speaks against it. Names, places and free texts are in ``texts``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from itertools import takewhile
from typing import Any, Literal

from agent3.sentences.announcements import AT_MOST, DETERMINERS, Scene, row_at
from agent3.sentences.lexicon import BROAD, EMPTY, fold, is_cognate, is_translation, meanings, same_stem, ways_to_say
from agent3.sentences.passing import NEW
from agent3.sentences.slots import ARITHMETIC, INVERTING, Slot, split_name
from agent3.sentences.synonyms import LANGUAGES, UNITS
from agent3.sentences.tokens import Atom, Token, unit_said

__all__ = ["Cue", "Value", "Words", "day_for", "is_in_cents", "plain_number", "values_at", "write_moment"]

Cue = Literal["named", "noun", "called", "role", "weak", "lead", ""]
"""What announces a value: the name of its slot, a noun of its description, "called", a preposition of its role or any
other, a bound, or nothing."""


@dataclass(frozen=True, slots=True)
class Words:
    """A text that stands in the sentence, by its tokens."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Value:
    """A value up to a token, and what speaks against it."""

    end: int
    value: Any
    cost: float = 0.0
    typed: bool = True
    """Its form alone tells what it is."""
    cued: bool = False
    """A word after it tells what it is: "3 nights"."""
    doubt: Any = None
    swallows: frozenset[int] = frozenset()
    """Other slots that words inside a text may have been meant for."""


_PERIODS = {"hour": "hora", "day": "dia", "week": "semana", "month": "mes", "year": "ano"}
_BEFORE_PERIOD = frozenset(
    "last past this the ultimo ultima ultimos ultimas pasado pasada este esta el la los las of de del over during "
    "durante for en in previous".split()
)
_PERIOD_CODE = re.compile(r"(\d+) ?(d|w|wk|mo|y|yr|h|min|day|week|month|year|hour)s?")
_CODE_UNITS = {
    "d": ("second", 86_400.0), "w": ("second", 604_800.0), "wk": ("second", 604_800.0), "mo": ("month", 1.0),
    "y": ("month", 12.0), "yr": ("month", 12.0), "h": ("second", 3_600.0), "min": ("second", 60.0),
    "day": ("second", 86_400.0), "week": ("second", 604_800.0), "month": ("month", 1.0), "year": ("month", 12.0),
    "hour": ("second", 3_600.0),
}  # fmt: skip
_EVERY = {"hourly": "h", "daily": "d", "diario": "d", "diaria": "d", "diarios": "d", "weekly": "w", "semanal": "w",
          "semanales": "w", "monthly": "mo", "mensual": "mo", "mensuales": "mo", "yearly": "y", "anual": "y",
          "annual": "y"}  # fmt: skip
_UP_TO = frozenset("to a al hasta until =".split())
_COUNTERS = frozenset("units unit unidades unidad items pieces times veces piezas".split())
_TOPS = (("como", "maximo"), ("como", "mucho"), ("at", "most"), ("maximo",), ("max",), ("maximum",), ("tops",))
_NEGATIVE = frozenset(
    "without sin no not excluding except excluyendo avoiding avoid evitando evita evitar skipping omitting omitiendo "
    "ignoring hiding saltando".split()
)
_POSITIVE = frozenset("with con by por including as in only incluyendo solo y and en".split())
_OPPOSITES = {
    one: other
    for pair in "on off|enabled disabled|active inactive|open closed|locked unlocked|muted unmuted|public private"
    "|visible hidden|online offline|paid unpaid|read unread".split("|")
    for one, other in (pair.split(), pair.split()[::-1])
}
"""A switch is also said by its opposite: "off" where it is called "on", "private" where it is called "public"."""
_FLAG_WORDS = INVERTING | frozenset(
    "include is has should enable only with show use allow want includes return returns".split()
)
_SETTING = frozenset("set update change transition".split())
_ORDERING = frozenset("sort order orderby sorting ordering".split())
_ORDERED_BY = {
    said: frozenset("date created newest latest recent published time".split())
    for said in "recent reciente new nuevo nueva".split()
}
_FLAG_PHRASES = (("in",), ("with",), ("as",))
_KEYS = frozenset("id number no key pr issue ticket num nr ref".split())
_PRICES = frozenset("price cost rate fee fare tariff precio tarifa".split())
_FOR_HOW_MUCH = frozenset("at for a por @".split())
_QUANTITIES = frozenset("quantity qty count copies units pieces".split())
_ORDER = frozenset("last first latest oldest newest next ultimos ultimas primeros primeras proximos proximas".split())
_OF = frozenset("of the my these those your our de los las mis estos estas sus tus del".split())
_SOME = frozenset("them ones ellos ellas".split())
_BEYOND = 0.3
"""Against a number out of the bounds of its slot: it is asked about where no other slot takes it."""
_OTHER_UNIT = 0.7
"""Against a quantity that is said in the unit of another slot."""
_SQL = frozenset("select insert update delete create alter drop with show explain pragma describe".split())
_OPERATORS: dict[tuple[str, ...], str] = {
    ("plus",): "+", ("mas",): "+", ("minus",): "-", ("menos",): "-", ("times",): "*", ("multiplied", "by"): "*",
    ("por",): "*", ("divided", "by"): "/", ("entre",): "/", ("dividido", "entre"): "/", ("dividido", "por"): "/",
}  # fmt: skip
_ARITHMETIC = re.compile(r"[\d+*/().,%^-]+")
_NUMBER = r"-?\d+(?:\.\d+)?"
_WORDED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (
        re.compile(rf"{words.replace('#', f'({_NUMBER})')}(?![^ ])(?! (?:to|into|on|in|from|of|a|al|en|de|del) )"),
        written,
    )
    for words, written in (
        (r"(?:add|sum|suma|sumar|(?:the )?sum of|(?:la )?suma de) #(?: plus| and| to| mas| y| a) #", "{0} + {1}"),
        (r"(?:add|sum|suma|sumar|(?:the )?sum of|(?:la )?suma de) # , #(?: ,)?(?: and| y) #", "{0} + {1} + {2}"),
        (r"(?:subtract|resta|restar) # (?:from|de|a) #", "{1} - {0}"),
        (
            r"(?:multiply|multiplica|multiplicar|(?:the )?product of|(?:el )?producto de) # (?:by|times|and|por|y) #",
            "{0} * {1}",
        ),
        (r"(?:divide|dividir) # (?:by|entre|por) #", "{0} / {1}"),
        (r"(?:el )?# ?(?:%|percent|per cent|por ciento) (?:of|de) #", "{1} * {0} / 100"),
    )
)
"""Operations whose words stand before or around their numbers, and how they are written."""
_LONGEST_WORDED = 12
_EXPRESSION = frozenset("expression formula calculation equation".split())
_OTHER_EXPRESSION = re.compile(r"\b(?:cron|regex|regular|jq|xpath|jsonpath|jmespath|boolean|logical|filter)\b")


def values_at(scene: Scene, begin: int, slot: Slot, cue: Cue) -> Iterator[Value]:
    """The values of a slot that is neither a name nor a text."""
    token = scene.tokens[begin]
    match slot.kind:
        case "enum":
            yield from _options(scene, begin, slot, cue)
        case "boolean":
            yield from _flags(scene, begin, slot)
        case "integer" | "number":
            yield from _numbers(scene, begin, slot, cue)
        case "date" | "datetime" | "time" | "currency" | "language" | "zone":
            yield from _read_typed(scene, begin, slot, cue)
        case "duration":
            for atom in scene.atoms[begin]:
                if atom.kind == "measure" and atom.unit == "second" and (said := _write_duration(atom.value)):
                    yield Value(atom.last, said)
        case "when":
            yield from _moments(scene, begin)
        case "email" | "url" | "phone":
            if token.shape == slot.kind or (token.shape == "quote" and _looks_like(slot.kind, token.value)):
                yield Value(begin + 1, token.value)
            elif slot.kind == "url" and token.shape == "dotted" and _DOMAIN.fullmatch(token.value):
                yield Value(begin + 1, f"https://{token.value}", 0.1)
            elif _takes_code(slot, token):
                yield Value(begin + 1, token.value, 0.1)
        case "domain":
            if token.shape == "dotted" or (token.shape == "quote" and "." in token.value):
                yield Value(begin + 1, token.value)
        case "path":
            yield from _paths(scene, begin, cue)
        case "code":
            yield from _code(scene, begin, slot, cue)


def _takes_code(slot: Slot, token: Token) -> bool:
    """Whether a token is an address of some other form: "spotify:track:4cOd", "600111222"."""
    if slot.kind == "phone":
        return token.shape == "digits" and re.fullmatch(r"\d{7,15}", token.value) is not None
    return slot.kind == "url" and "uri" in slot.words and token.shape == "code" and ":" in token.value


def _read_typed(scene: Scene, begin: int, slot: Slot, cue: Cue) -> Iterator[Value]:
    tokens, token = scene.tokens, scene.tokens[begin]
    exact = slot.definition.get("format") == "date-time" or "time" in slot.words or "hh:mm" in fold(slot.described)
    exact = exact or re.search(r"\d[tT ]\d\d:\d\d", slot.described) is not None
    for atom in scene.atoms[begin]:
        if atom.kind == slot.kind or (slot.kind == "datetime" and atom.kind == "date" and not exact):
            if slot.kind == "datetime" and atom.kind == "date" and scene.clocks:
                continue
            since = begin > 0 and tokens[begin - 1].plain == "since" and isinstance(atom.value, date)
            if since and atom.value > scene.sentence.today:
                continue  # the last such day, or the next one?
            doubt = None if atom.doubt is None else atom.doubt.isoformat()
            written = _name_language(atom.value) if _takes_language_names(slot) else write_moment(atom.value, slot)
            yield Value(atom.last, written, 0.0, doubt=doubt)
        if slot.kind == "datetime" and atom.kind == "time" and (day := day_for(scene, atom)) is not None:
            universal = atom.last < len(tokens) and tokens[atom.last].value in ("UTC", "GMT", "Z")
            written = f"{write_moment(datetime.combine(day, atom.value), slot)}{'Z' if universal else ''}"
            local = None if universal or not _UNIVERSAL.search(slot.described) else written
            local = local or (None if atom.doubt is None else atom.doubt.isoformat())  # four in the afternoon?
            yield Value(atom.last + universal, written, doubt=local)  # which zone is meant is asked
    if slot.kind == "time" and "hh:mm:ss" in fold(slot.described) and re.fullmatch(r"\d\d:\d\d:\d\d", token.value):
        yield Value(begin + 1, token.value)  # a time of day, or a place in a recording
    if slot.kind == "currency" and re.fullmatch(r"[A-Z]{3}", token.value):
        yield Value(begin + 1, token.value, 0.1 if cue else 0.3)
    code = slot.kind == "language" and cue and re.fullmatch(r"[a-z]{2}(?:-[A-Z]{2})?", token.value)
    if code and (token.plain not in EMPTY or (cue == "named" and token.plain in LANGUAGES)):
        yield Value(begin + 1, token.value, 0.2)


def _takes_language_names(slot: Slot) -> bool:
    """Whether a language is to be called by its name: it has a name as an example, and speaks of no code."""
    if slot.kind != "language" or re.search(r"\biso\b|\bcodes?\b|\blocale\b", fold(slot.described)):
        return False
    given = slot.definition.get("examples")
    shown = f"{slot.described} {given if isinstance(given, list) else ''} {slot.definition.get('default', '')}"
    return bool(_LANGUAGE_NAMES.intersection(re.findall(r"\b[A-Z][a-z]+\b", shown)))


def _name_language(code: str) -> str:
    """Its English name."""
    return LANGUAGES[code].split()[0].capitalize()


_LANGUAGE_NAMES = frozenset(map(_name_language, LANGUAGES))
_DOMAIN = re.compile(
    r"(?:[\w-]+\.)+(?:com|org|net|edu|gov|io|dev|app|ai|co|info|es|mx|ar|cl|pe|uk|de|fr|it|pt|eu|us|tv|me|cat)"
)
_NEXT = frozenset("next this coming last proximo proxima este esta".split())


def _moments(scene: Scene, begin: int) -> Iterator[Value]:
    """A day, a time of day or both, as they are said: "next Monday", "tomorrow at 5pm"."""
    after = begin + (scene.tokens[begin].plain in _NEXT and begin + 1 < len(scene.tokens))
    for atom in [*scene.atoms[begin], *(scene.atoms[after] if after > begin else ())]:
        if atom.kind not in ("date", "time"):
            continue
        yield Value(atom.last, Words(begin, atom.last))
        after = atom.last
        while after < len(scene.tokens) and after - atom.last < 3 and scene.tokens[after].plain in _AT:
            after += 1
        for clock in scene.atoms[after] if after < len(scene.tokens) else ():
            if {atom.kind, clock.kind} == {"date", "time"}:
                yield Value(clock.last, Words(begin, clock.last), -0.05)


_AT = frozenset("at a las la on el".split())


def day_for(scene: Scene, clock: Atom) -> date | None:
    """The day that a time of day belongs to: the only one that is named, or the one right beside it."""
    if len(scene.days) == 1:
        day: date = scene.days[0].value
        return day
    beside = [atom for atom in scene.days[:8] if atom.last == clock.first or atom.first == clock.last]
    return beside[0].value if len(beside) == 1 else None


# Options and switches


def _options(scene: Scene, begin: int, slot: Slot, cue: Cue) -> Iterator[Value]:
    tokens = scene.tokens
    found: list[tuple[int, Any, float]] = []
    start = begin
    while start < len(tokens) - 1 and start - begin < 4 and tokens[start].plain in _BEFORE_PERIOD:
        start += 1
    if tokens[begin].plain in DETERMINERS:
        begin = scene.past_articles[begin] if scene.past_articles[begin] < len(tokens) else begin
    after = tokens[begin + 1].plain if begin + 1 < len(tokens) else ""
    if begin == scene.verb and scene.form.reading and after in DETERMINERS:
        return  # "void the invoices" asks for something else than those that are void
    sets = begin == scene.verb and scene.form.verbs & _SETTING
    for option, ways in slot.options:
        text = fold(str(option))
        if sets and (meanings(text) & tokens[begin].means) - BROAD:
            found.append((begin + 1, option, 0.1))  # "close ticket 4", where its status may be closed
        if fold(tokens[begin].value) == text and (tokens[begin].shape != "word" or text[:1].isdigit()):
            found.append((begin + 1, option, 0.0))  # "eu-west"
        if tokens[begin].shape == "word" and is_translation(tokens[begin].plain, text):
            found.append((begin + 1, option, 0.01))
        if (end := _match_words(tokens, begin, text)) is not None:
            found.append((end, option, 0.1))
        # "to mi": after the word that marks its end, a short option is no other word.
        named = cue in ("named", "noun") or (cue == "role" and slot.role in ("from", "to"))
        costs = [(row, _match_option(tokens, begin, row, text, named=named)) for row in ways]
        found += [(begin + len(row), option, cost) for row, cost in costs if cost is not None]
        if text in _PERIODS and start < len(tokens) and tokens[start].plain in (text, _PERIODS[text]):
            found.append((start + 1, option, 0.0 if cue else 0.1))
        if text == "day" and any(
            atom.kind == "date" and atom.value == scene.sentence.today for atom in scene.atoms[begin]
        ):
            found.append((begin + 1, option, 0.1))
        if (code := _PERIOD_CODE.fullmatch(text)) is not None:
            found += [(end, option, 0.1) for end in _said_period(scene, start, int(code[1]), _CODE_UNITS[code[2]])]
    if slot.own & _ORDERING and tokens[begin].plain in ("most", "mas") and begin + 1 < len(tokens):
        by = tokens[begin + 1]
        keys = _ORDERED_BY.get(by.plain.removesuffix("s"), by.means - BROAD)
        for option, _ in slot.options:
            parts = split_name(str(option))
            if any(part in keys or is_alike(by.plain, part) or (meanings(part) & keys) - BROAD for part in parts):
                found.append((begin + 2, option, 0.1))  # "the most viewed"
    if not found:
        return
    longest = max(end for end, _, _ in found)
    cheapest = min(cost for end, _, cost in found if end == longest)
    best = {repr(option): option for end, option, cost in found if end == longest and cost == cheapest}
    if len(best) == 1:
        # The verb of the sentence is no option: "open an issue". Still less is a word that only means the same.
        verb = begin == scene.verb and bool(tokens[begin].means & scene.form.named)
        exact = tokens[begin].plain == fold(str(next(iter(best.values()))))
        if verb and tokens[begin].means & scene.form.verbs and not exact:
            return
        # Nor is what the capability is about: "create a ticket" does not say that it is a bug.
        if (tokens[begin].means - BROAD) & scene.form.named and not exact and longest == begin + 1 and cue != "named":
            return
        yield Value(longest, next(iter(best.values())), cheapest + (0.8 if verb else 0.0))


def _match_words(tokens: list[Token], begin: int, text: str) -> int | None:
    """Where an option of several words ends that are said in any order: "habitación de hotel" is a hotel_room."""
    wanted = [word for word in re.findall(r"[a-z]+", text) if word not in EMPTY]
    if not 2 <= len(wanted) <= 3 or tokens[begin].shape != "word" or tokens[begin].plain in EMPTY:
        return None
    end = begin
    while wanted and end < len(tokens) and end - begin < 6:
        if end > begin and tokens[end].plain in ("de", "of", "del", "la", "el"):
            end += 1
            continue
        match = next((word for word in wanted if (tokens[end].means & meanings(word)) - BROAD), None)
        if match is None:
            return None
        wanted.remove(match)
        end += 1
    return end if not wanted else None


def _match_option(tokens: list[Token], begin: int, row: tuple[str, ...], text: str, *, named: bool) -> float | None:
    """What speaks against these words as an option; None if they are not it."""
    if not row or begin + len(row) > len(tokens):
        return None
    part = tokens[begin : begin + len(row)]
    if tuple(token.plain for token in part) == row or (len(row) == 1 and fold(part[0].value) == row[0]):
        if row == (text,) and len(text) <= 2 and not named and not (text in UNITS and text not in EMPTY):
            # "A" may be a kind of record, and "on" a state; "a", "no" and "in" are hardly ever options.
            # An article before: "an A record" says A and means it.
            upper = part[0].value.isupper() and (
                part[0].plain not in EMPTY or (begin > 0 and tokens[begin - 1].plain in DETERMINERS)
            )
            return 0.1 if upper else 0.3 if text == "on" else None
        return 0.0 if [*row] == re.findall(r"[^\W_]+", text) else 0.02  # its own words before what means the same
    if len(row) > 1 or part[0].shape != "word" or len(row[0]) < 3:
        return None
    alike = text in part[0].means or row[0] in part[0].means - {"set"} or same_stem(part[0].plain, row[0])
    return 0.1 if alike else 0.15 if is_cognate(part[0].plain, row[0]) else None


def is_alike(word: str, other: str) -> bool:
    """Whether two words, folded, are forms of one, or of one root in the two languages."""
    return same_stem(word, other) or is_cognate(word, other)


def _said_period(scene: Scene, start: int, count: int, unit: tuple[str, float]) -> Iterator[int]:
    if start >= len(scene.tokens):
        return
    for atom in scene.atoms[start]:
        if atom.kind == "measure" and atom.unit == unit[0] and atom.value == count * unit[1]:
            yield atom.last
    plain = scene.tokens[start].plain
    if count == 1 and plain in _EVERY and _CODE_UNITS[_EVERY[plain]] == unit:
        yield start + 1
    named = any(_CODE_UNITS.get(name) == unit and plain in (name, said) for name, said in _PERIODS.items())
    if count == 1 and named and start and scene.tokens[start - 1].plain in _BEFORE_PERIOD:
        yield start + 1


def _flags(scene: Scene, begin: int, slot: Slot) -> Iterator[Value]:
    """A switch is said by the words of its name: "with symbols", "sin símbolos", "as a dry run"."""
    tokens = scene.tokens
    row = [word for word in slot.words if word not in _FLAG_WORDS] or [*slot.words]
    start, positive = begin, True
    if tokens[begin].plain in _NEGATIVE | _POSITIVE:
        start, positive = begin + 1, tokens[begin].plain not in _NEGATIVE
    ways = [tuple(way) for way in ways_to_say("_".join(row))] if len(row) < 4 else []
    if len(row) > 1:
        ways.append(tuple(row))
    told = tuple(re.findall(r"[^\W_]+", fold(slot.described[:60])))
    if told[:1] in _FLAG_PHRASES and 1 < len(told) <= 4 and row_at(tokens, begin, told):
        yield Value(begin + len(told), not slot.inverted)  # "In the background"
        return
    for way in sorted(ways, key=len, reverse=True):
        at = scene.past_articles[start]
        if at < len(tokens) and row_at(tokens, at, way) and way != ("no",):
            yield Value(at + len(way), positive != slot.inverted)
            return
    if len(row) > 1 and start < len(tokens) and tokens[start].plain == "-".join(row):
        yield Value(start + 1, positive != slot.inverted)  # "an all-day event"
        return
    if len(row) == 1 and start == begin and tokens[begin].shape == "word":
        opposite = _OPPOSITES.get(row[0], "")
        if opposite and (tokens[begin].plain == opposite or opposite in tokens[begin].means - BROAD):
            yield Value(begin + 1, slot.inverted)
            return
    at = start
    for word in row:
        at = scene.past_articles[min(at, len(tokens))]
        unlike = at + 1 < len(tokens) and not scene.means(at, (word,)) and not is_alike(tokens[at].plain, word)
        if unlike and at > begin and tokens[at].means & slot.about:
            at += 1  # "including recent activity"
        if not (scene.means(at, (word,)) or (at < len(tokens) and is_alike(tokens[at].plain, word))):
            return
        at += 1
    if begin == scene.verb and tokens[begin].means & scene.form.named and len(row) == 1:
        return
    yield Value(at, positive != slot.inverted)


# Numbers


def _numbers(scene: Scene, begin: int, slot: Slot, cue: Cue) -> Iterator[Value]:
    tokens = scene.tokens
    numbers = [other for other in scene.slots if other.kind in ("integer", "number")]
    uncounted = [other for other in numbers if not other.unit]
    alone = uncounted in ([], [slot]) or len(numbers) == 1
    counted = alone or [other for other in uncounted if not frozenset(other.words) & _PRICES] == [slot]
    """Whether no other number could be how many there are: a price is none."""
    bounds = slot.role == "most" and not slot.unit
    for atom in scene.atoms[begin]:
        if scene.relative and not _is_key(slot) and begin and tokens[begin - 1].plain not in _UP_TO:
            continue  # "lower it by 10 %" does not say to what
        if atom.kind == "measure" and slot.unit is not None and atom.unit == slot.unit[0]:
            measured, doubt = _fit_unit(atom, slot, slot.unit[1])
            if measured is not None:
                cost = _OTHER_UNIT if _is_unit_of_another(scene, atom, slot) else 0.0
                cost += 0.0 if _in_range(measured, slot) else _BEYOND
                yield Value(atom.last, measured, cost, cued=True, doubt=doubt)
            continue
        if slot.unit is not None and any(other.kind == "measure" for other in scene.atoms[begin]):
            continue  # "1 hour" is not 1 minute
        if atom.kind != "number" or (_is_key(slot) and _counts_things(scene, begin, atom.last)):
            continue
        end, cost, cued = atom.last, 0.0, cue in ("named", "noun", "lead")
        following = tokens[end] if end < len(tokens) else None
        if following is not None and following.means & slot.own and frozenset(slot.words) & _PRICES:
            continue  # "3 days" are no price per day, "200 units" no unit price
        if following is not None and following.shape == "word" and following.plain not in EMPTY:
            if (
                following.means & slot.own - {"max", "min", "number"}
                or (bounds and following.means & (scene.form.named | scene.form.told | {"result", "results"}))
                or (_counts(slot) and following.means & slot.about and not _is_elsewhere(scene, slot, following))
            ):
                end, cued = end + 1, True
            elif bounds and any(other.means & scene.form.named for other in tokens[end + 1 : end + 3]):
                cued = True  # "3 natural images"
            elif slot.unit is None and cue in ("role", "") and not cued:
                cost += 0.3  # something else is counted
        elif following is not None and following.plain == "de" and scene.means_slot(end + 1, slot):
            end, cued, cost = end + 2, True, 0.0  # "768 de alto"
        if "per" in slot.words and following is not None and following.plain in ("per", "por", "a", "each"):
            if end + 1 < len(tokens) and tokens[end + 1].means & slot.own:
                end, cued, cost = end + 2, True, 0.0  # "10 per page"
        elif following is not None and following.plain in _COUNTERS and not slot.unit and end == atom.last:
            end += 1
            if _is_quantity(slot) and counted:
                cued, cost = True, 0.0
        if not cued and counted and _is_portion(scene, begin, end, slot):
            cued, cost = True, 0.1  # "add 3 of AB-123", "refund 12.50 of payment pay_4"
        if slot.own & {"year"} and 1900 <= atom.value <= 2100:
            cued = True
        for row in _TOPS:
            if slot.role in ("most", "") and row_at(tokens, end, row):
                end, cued = end + len(row), True
                break
        if bounds and begin and tokens[begin - 1].plain in AT_MOST:
            cued = True
        if not cued and begin and tokens[begin - 1].plain in _FOR_HOW_MUCH and len(numbers) > 1 and any(
            other is not slot and frozenset(other.words) & _PRICES for other in numbers
        ):  # fmt: skip
            continue  # "at 200": so many, or for so much?
        if not cued and not (slot.required and alone) and (cue != "role" or not slot.required):
            continue
        if any(
            other.kind in ("date", "time", "times", "sum") and other.last > atom.last for other in scene.atoms[begin]
        ):
            cost += 0.5
        value, doubt = _fit_unit(atom, slot)
        if value is not None:
            yield Value(end, value, cost + (0.0 if _in_range(value, slot) else _BEYOND), cued=cued, doubt=doubt)
    token = tokens[begin]
    if token.shape == "handle" and re.fullmatch(r"#\d+", token.value) and slot.kind == "integer" and _is_key(slot):
        yield Value(begin + 1, int(token.value[1:]))


def _fit_unit(atom: Atom, slot: Slot, unit: float = 1) -> tuple[Any, Any]:
    """The number in the unit of its slot, and what it may also be, as far as that fits the slot."""
    said = [one / unit for one in (atom.value, atom.doubt) if one is not None]
    fitting = [one for one in said if _whole(one, slot) is not None and _in_range(one, slot)] or said[:1]
    return _whole(fitting[0], slot), _whole(fitting[1], slot) if len(fitting) > 1 else None


def _is_unit_of_another(scene: Scene, atom: Atom, slot: Slot) -> bool:
    """Whether a quantity is said in the very unit of another slot: "12 mm" beside a length in metres."""
    said = unit_said(scene.tokens[atom.last - 1])
    return said != slot.unit and any(
        other is not slot and other.unit == said and other.kind in ("integer", "number") for other in scene.slots
    )


def is_in_cents(slot: Slot) -> bool:
    """Whether an amount of money is given in hundredths: then a sum has to be converted."""
    return (
        bool(slot.about & {"cent", "cents", "minor", "smallest", "centimos", "centavo"}) and "major" not in slot.about
    )


def _is_quantity(slot: Slot) -> bool:
    """Whether it says how many of something are meant."""
    return not slot.unit and (
        bool(frozenset(slot.words) & _QUANTITIES) or slot.described.lower().startswith(("how many", "quantity"))
    )


def _is_portion(scene: Scene, begin: int, end: int, slot: Slot) -> bool:
    """Whether a number right after the verb says how much of what follows is meant."""
    if begin != scene.verb + 1 or end >= len(scene.tokens) or scene.tokens[end].plain not in ("of", "de", "del"):
        return False
    return _is_quantity(slot) or "amount" in slot.words


def _counts(slot: Slot) -> bool:
    return slot.role in ("most", "") and not slot.unit


def _is_key(slot: Slot) -> bool:
    """Whether a number of it tells which one is meant, and not how many."""
    return (
        bool(slot.words)
        and slot.words[-1] in _KEYS
        and not re.search(r"\bnumber of (?!the\b)|\bhow many\b", slot.described.lower())
    )


def _counts_things(scene: Scene, begin: int, end: int) -> bool:
    """Whether a number says how many of what the capability is about: "4 reminders", "four of them", "the last 4"."""
    if begin and scene.tokens[begin - 1].plain in _ORDER:
        return True
    after = end
    while after < len(scene.tokens) and after - end < 3 and scene.tokens[after].plain in _OF:
        after += 1
    if after >= len(scene.tokens):
        return False
    about = scene.form.named | scene.form.told
    nouns = takewhile(lambda token: token.shape == "word" and token.means & about, scene.tokens[after : after + 3])
    # "2 pull requests": the last of several words says it.
    return scene.tokens[after].plain in _SOME or any(noun.plain.endswith("s") for noun in nouns)


def _is_elsewhere(scene: Scene, slot: Slot, token: Token) -> bool:
    """Whether another number has a better claim to this noun: it is in its name."""
    return any(
        other is not slot and other.kind in ("integer", "number") and token.means & (other.own | other.about)
        for other in scene.slots
    )


def _whole(value: float, slot: Slot) -> int | float | None:
    """The number as the slot takes it; None if it does not."""
    value = round(value, 9)
    if slot.kind == "integer" and value != int(value):
        return None
    return plain_number(value)


def _in_range(value: float, slot: Slot) -> bool:
    least, most = slot.definition.get("minimum"), slot.definition.get("maximum")
    return not (isinstance(least, int | float) and value < least) and not (
        isinstance(most, int | float) and value > most
    )


def plain_number(value: float) -> int | float:
    """Without a fraction where there is none."""
    return int(value) if value == int(value) else value


# Paths and code


def _paths(scene: Scene, begin: int, cue: Cue) -> Iterator[Value]:
    token, form = scene.tokens[begin], scene.form
    if "*" in token.value and any(other.kind == "code" for other in scene.slots):
        return
    if token.shape in ("path", "dotted") or (
        token.shape == "quote"
        and len(token.value) <= 200
        and (cue in ("named", "called") or re.search(r"[/\\.]\w", token.value))
    ):
        yield Value(begin + 1, token.value)
    elif (
        cue in ("named", "noun", "called")
        and token.shape in ("word", "code")
        and token.plain not in EMPTY | DETERMINERS
        and not token.means & (form.named | form.told)
    ):
        after = scene.tokens[begin + 1] if begin + 1 < len(scene.tokens) else None
        doubt = (
            Words(begin, begin + 2) if after is not None and after.plain in NEW else None
        )  # "the folder Fotos nuevas"
        yield Value(begin + 1, token.value, 0.2, typed=False, doubt=doubt)


def _code(scene: Scene, begin: int, slot: Slot, cue: Cue) -> Iterator[Value]:
    tokens, token = scene.tokens, scene.tokens[begin]
    said = frozenset(slot.words)
    if (said & _EXPRESSION or ARITHMETIC.search(fold(slot.described))) and not (
        _OTHER_EXPRESSION.search(fold(slot.described))
    ):
        if (worded := _worded_arithmetic(scene, begin)) is not None:
            yield worded
        end, text = _arithmetic(scene, begin)
        if any(letter.isdigit() for letter in text) and text.count("(") == text.count(")"):
            yield Value(end, text)
    if token.shape == "quote":
        yield Value(begin + 1, token.value, 0.0 if cue or slot.required else 0.5)
    elif (
        said & {"pattern", "patterns", "glob", "globs"}
        and cue == "named"
        and token.shape in ("path", "dotted", "code", "word")
    ):
        yield Value(begin + 1, token.value, 0.0 if token.shape != "word" else 0.1)
    elif ("*" in token.value and token.shape in ("path", "dotted", "code")) or (
        said & {"selector", "css"} and re.fullmatch(r"[#.][\w-]+|.*\[.+=.+\].*", token.value)
    ):
        yield Value(begin + 1, token.value)
    sql = said & {"sql", "query", "statement"} or re.search(r"\bsql\b", fold(slot.described))
    written = token.value.isupper() or (begin and tokens[begin - 1].plain == ":")
    if sql and written and token.plain in _SQL and token.shape == "word" and len(tokens) - begin > 2:
        end = scene.closing if scene.closing > begin else len(tokens)
        while end > begin and tokens[end - 1].plain in (",", "?", ".", "!"):
            end -= 1
        yield Value(end, scene.sentence.slice(begin, end))


def _worded_arithmetic(scene: Scene, begin: int) -> Value | None:
    """An operation in words that begins here: "add 2 and 3" is 2 + 3. A verb of the capability is none of them."""
    tokens = scene.tokens[begin : begin + _LONGEST_WORDED]
    if tokens[0].shape == "word" and tokens[0].means & scene.form.named:
        return None
    said = " ".join(token.plain for token in tokens)
    for pattern, written in _WORDED:
        if (match := pattern.match(said)) is not None:
            return Value(begin + match[0].count(" ") + 1, written.format(*match.groups()))
    return None


def _arithmetic(scene: Scene, begin: int) -> tuple[int, str]:
    """Where an expression that begins here ends, and how it is written: "2 plus 2" is 2 + 2."""
    tokens, end = scene.tokens, begin
    written: list[str] = []
    worded = False
    while end < min(len(tokens), begin + 60):
        if _ARITHMETIC.fullmatch(tokens[end].value):
            written.append(tokens[end].value)
            end += 1
            continue
        row = next((row for row in _OPERATORS if row_at(tokens, end, row)), None)
        after = end + len(row or ())
        if row is None or not written or after >= len(tokens) or not _ARITHMETIC.fullmatch(tokens[after].value):
            break
        written.append(_OPERATORS[row])
        end, worded = after, True
    while end > begin and tokens[end - 1].plain in (",", ".", "?", "!"):
        end -= 1
        written.pop()
    if worded:
        return end, " ".join(written)
    return end, scene.sentence.slice(begin, end) if end > begin else ""


_UNIVERSAL = re.compile(r"\bin UTC\b|\d\d:\d\d(?::\d\d)?Z\b|:SSZ\b")
_DAY_FORM = re.compile(r"\b(dd?|mm?|yyyy)([-/. ]?)(dd?|mmm?|m|yyyy)\2(dd?|mm?|yyyy|yy)(?![a-z])")
_DAY_PARTS = {"d": "%d", "m": "%m", "y": "%Y", "yy": "%y"}


def write_moment(value: Any, slot: Slot) -> Any:
    """A day, a time of day or both as the description of a slot shows them: DD/MM/YYYY, HH:MM:SS."""
    told = fold(slot.described)
    if isinstance(value, time):
        return value.strftime("%H:%M:%S" if "hh:mm:ss" in told else "%H:%M")
    if not isinstance(value, date):
        return value
    form = _DAY_FORM.search(told)
    day = value.date().isoformat() if isinstance(value, datetime) else value.isoformat()
    if form is not None and {form[1][0], form[3][0], form[4][0]} == {"d", "m", "y"} and "mmm" not in form[0]:
        parts = (_DAY_PARTS.get(part, _DAY_PARTS[part[0]]) for part in (form[1], form[3], form[4]))
        day = value.strftime(form[2].join(parts))
    if not isinstance(value, datetime):
        return day
    seconds = "hh:mm:ss" in told or "hh:mm" not in told
    spaced = re.search(r"(?:dd|yyyy) hh:mm|\d{4} \d\d:\d\d|-\d\d \d\d:\d\d", told)
    return f"{day}{' ' if spaced else 'T'}{value.strftime('%H:%M:%S' if seconds else '%H:%M')}"


def _write_duration(seconds: float) -> str:
    """As '1h 30m'; empty if it is not of whole minutes."""
    minutes, rest = divmod(seconds, 60)
    if rest or not minutes:
        return ""
    hours, minutes = divmod(int(minutes), 60)
    return " ".join([*([f"{hours}h"] if hours else []), *([f"{minutes}m"] if minutes else [])])


def _looks_like(kind: str, text: str) -> bool:
    forms = {"email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "url": r"https?://\S+", "phone": r"\+?[\d -]{7,20}"}
    return bool(re.fullmatch(forms[kind], text))
