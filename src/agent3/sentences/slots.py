"""The parameters of a capability as slots of a sentence: what kind of value each takes, and which words announce it.

Made once from a capability's name, description and input schema. It knows no sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from agent3.model import Capability
from agent3.sentences.lexicon import BROAD, EMPTY, fold, is_action, meanings, things, ways_to_say
from agent3.sentences.spans import NUMBER_NAMES
from agent3.sentences.synonyms import CURRENCIES, LANGUAGES, UNITS

__all__ = [
    "ARITHMETIC",
    "EXCLUDING",
    "INVERTING",
    "Form",
    "Kind",
    "Role",
    "Slot",
    "form_of",
    "form_of_code",
    "kind_of",
    "split_name",
]

Kind = Literal["enum", "boolean", "integer", "number", "date", "datetime", "time", "email", "url", "path", "domain",
               "currency", "language", "zone", "phone", "duration", "when", "id", "code", "place", "name", "text",
               "other"]  # fmt: skip
Role = Literal[
    "from", "to", "by", "who", "in", "most", "least", "first", "page", "content", "query", "title", "place", ""
]

INVERTING = frozenset("no exclude skip disable without omit avoid ignore hide".split())
"""Words at the start of a name that take away what follows."""
EXCLUDING = frozenset(
    tuple(row.split())
    for row in (
        "leave out|leaving out|excluding|exclude|except|except for|ignoring|skipping|skip|omitting"
        "|sin contar|sin incluir|excepto|salvo|excluyendo|omitiendo|ignorando|dejando fuera|without counting|but not"
    ).split("|")
)
"""How people say what is to be left out, where there is a parameter for that."""
_MOST_SLOTS = 60
_DEEPEST = 3

_FROM = frozenset(
    "from source origin src start begin old departure sender since after checkin pickup earliest depart outbound "
    "started".split()
)
_TO = frozenset(
    "to target destination dest dst end until new arrival recipient recipients return before checkout stop dropoff "
    "latest assignee inbound".split()
)
_BY = frozenset("artist author creator writer director singer band composer autor artista".split())
_CONTENT = frozenset(
    "body text message content contents comment note prompt question reply description details reason".split()
)
_QUERY = frozenset("query q search term terms keyword keywords question topic phrase looking".split())
_TITLE = frozenset("title subject summary name headline heading label caption".split())
_PLACE = frozenset(
    "city location place address town country region airport station destination origin where venue".split()
)
_PEOPLE = frozenset(
    "person member user player customer client partner buddy colleague friend guest patient employee worker student "
    "teacher tenant borrower driver volunteer picker recipient winner candidate applicant participant".split()
)
_WHO = re.compile(
    r"(?:the )?(?:who(?:se|m)?\b|(?:full )?(?:name of (?:the )?)?(?:person|member|user|player|customer|client|partner"
    r"|colleague|guest|patient|employee|worker|student|teacher|tenant)\b)"
)
"""How a description says that a value is a person."""
_CONTAINERS = frozenset(
    "room area folder project channel board calendar workspace department collection album playlist database "
    "environment namespace group category section list repo repository cluster warehouse store shop restaurant venue "
    "bucket space "
    "subreddit".split()
)
_PATH = frozenset("path file filename filepath folder directory dir pathname".split())
_MOST = frozenset("max maximum limit count top size num number results length per most amount n k quantity".split())
_FIRST = frozenset("start offset index skip begin".split())
_NOUNS: dict[str, tuple[str, ...]] = {
    "path": ("file", "folder"),
    "url": ("url", "page"),
    "email": ("email", "address"),
    "domain": ("domain",),
    "place": tuple("city town address warehouse office branch store shop airport station hotel restaurant".split()),
}
"""What people put before a value of a kind, whatever the parameter is called."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter. ``path`` is where its value belongs in the input; a nested object has a slot for each "
    "property."""

    name: str
    path: tuple[str, ...]
    kind: Kind
    definition: Mapping[str, Any]
    required: bool
    many: bool = False
    """It takes a list of such values."""
    role: Role = ""
    words: tuple[str, ...] = ()
    cues: frozenset[tuple[str, ...]] = frozenset()
    """Rows of words that announce it: its name, the parts of it that stand for it, and what means the same."""
    nouns: frozenset[str] = frozenset()
    """Meanings that announce it where no other slot has a better claim."""
    about: frozenset[str] = frozenset()
    """Meanings of the words of its description."""
    options: tuple[tuple[Any, frozenset[tuple[str, ...]]], ...] = ()
    inverted: bool = False
    own: frozenset[str] = frozenset()
    """Meanings of the telling words of its name."""
    unit: tuple[str, float] | None = None
    """What a number of it counts: the base unit of its dimension, and how many of them one is."""
    shown: tuple[tuple[str, str], ...] = ()
    """Single words that its description gives as examples, with each as it is written there."""
    forms: frozenset[str] = frozenset()
    """The forms of the codes that its description gives as examples, such as ENG-12: see ``form_of_code``."""

    @property
    def described(self) -> str:
        return str(self.definition.get("description") or self.definition.get("title") or "")


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """The slots of a capability, and the words that belong to the capability itself. One is like no other."""

    slots: tuple[Slot, ...]
    named: frozenset[str] = field(default=frozenset())
    """Meanings of the words of its name and title."""
    verbs: frozenset[str] = field(default=frozenset())
    """Meanings of the verbs in its name, and of the first word of its description."""
    undoes: bool = False
    """It takes something away or back: then its verb must be said, and no other will do."""
    told: frozenset[str] = field(default=frozenset())
    """Meanings of the words of its description, its tags and its agent."""
    told_words: tuple[str, ...] = ()
    brands: frozenset[str] = frozenset()
    """Names in its description, such as that of the service it speaks to."""
    reading: bool = False
    """It looks something up and changes nothing, by its hints or by its name."""
    unreadable: tuple[str, ...] = ()
    """Required parameters that no sentence can fill."""
    objects: frozenset[str] = frozenset()
    """Meanings as nouns of the words of its name, its description and its parameters: what it may be done to."""
    hyphenated: frozenset[str] = frozenset()
    """Words of its description such as "to-do"."""
    choices: frozenset[str] = frozenset()
    """The options of single words that its parameters offer."""
    sorts: bool = False
    """One of its parameters says in which order."""
    phrases: frozenset[tuple[str, ...]] = frozenset()
    """What is said for one of its own words in several: "lista de reproducción" for a playlist."""
    index: Mapping[str, Sequence[tuple[int, tuple[str, ...]]]] = field(default_factory=dict)
    """By the meaning of its first word: each row of words that announces a slot, and the number of the slot."""


_READING = frozenset(
    "get list search find read show lookup fetch query resolve track convert translate check describe view look "
    "count "
    "calculate compute compare browse inspect validate explain summarize forecast status retrieve analyze detect "
    "geocode "
    "info details history estimate distance directions select".split()
)
_WRITING = frozenset(
    "create delete remove update send post write set add move rename cancel book buy pay stop start restart scale "
    "kill "
    "insert edit drop execute run push merge publish invite assign order transfer refund deploy install upload "
    "schedule "
    "reserve close open put patch append reset clear turn switch lock unlock play approve reject".split()
)


_SEEKING = frozenset("search find look get list show view check".split())
_UNDOING = frozenset(
    "delete deletes remove removes cancel cancels stop stops close closes kill drop clear reset archive reject block "
    "ban revoke disable deactivate unsubscribe uninstall terminate refund shutdown purge wipe erase void end "
    "decline abort leave lock suspend".split()
)
_KEPT = 2_000
_forms: dict[tuple[int, str], tuple[Capability, Form]] = {}
"""Forms by the identity of their capability, which is frozen and held here as long as its form."""


def form_of(capability: Capability, agent: str = "") -> Form:
    """The form of a capability. A stranger's schema may hold anything: what cannot be read is left out."""
    known = _forms.get((id(capability), agent))
    if known is None or known[0] is not capability:
        if len(_forms) >= _KEPT:
            _forms.clear()
        known = _forms[id(capability), agent] = capability, _make_form(capability, agent)
    return known[1]


def _brand(agent: str) -> str:
    """The name of an agent where it is one word, as in "on github". Of several, each may be part of a value: an "Oak
    tray" of the shop cup-and-tray.
    """
    words = {fold(word) for word in re.findall(r"[^\W_]+", agent)}
    return agent if len(words) == 1 else ""


_APART: dict[str, frozenset[str]] = {
    verb: frozenset(heads.split())
    for verbs, heads in (
        ("block ban report submit file", "create"),
        ("open", "create read"),
        ("raise lower increase decrease reduce", "create set update"),
        ("turn switch", "set"),
        ("print", "read"),
        ("clear empty clean", "delete"),
        ("reply", "send"),
    )
    for verb in verbs.split()
}
"""Verbs that may be said for a wider one, and what that is: one opens an issue that is created, but creates no door."""
RECORDS = frozenset(
    "issue ticket bug case incident pr pull request account thread discussion question complaint claim report".split()
)
"""What is made by being opened, raised, filed or reported."""


def _done_by(verb: str, name_words: Sequence[str], reading: bool) -> frozenset[str]:
    """What may be said for a verb of a capability."""
    apart = _APART.get(verb, frozenset())
    switched = not {"turn", "switch"} & {verb} or {"on", "off"} & {*name_words}
    if reading or not switched or ("create" in apart and RECORDS & {*name_words} - {verb}):
        return meanings(verb)
    return meanings(verb) - apart


def _make_form(capability: Capability, agent: str) -> Form:
    definition = capability.input_schema
    slots: list[Slot] = []
    unreadable: list[str] = []
    _add_slots(definition, definition, (), True, slots, unreadable, 0)
    name_words = [*split_name(capability.name), *split_name(capability.title or "")]
    first = capability.description[:600].split(". ", 1)[0]
    brand = _brand(agent) if slots else agent
    told_words = [fold(word) for word in re.findall(r"[^\W_]+", f"{first} {brand} {' '.join(capability.tags)}")]
    objects = [word for word in split_name(capability.name) if word not in _READING | _WRITING | _WEAK_WORDS]
    slots = [_with_nouns(slot, objects) for slot in slots]
    # Who is meant only by the way may as well be part of a text: "titled Buy milk for Ann".
    slots = [replace(slot, role="") if slot.role == "who" and not slot.required else slot for slot in slots]
    if any(slot.kind == "path" and slot.role == "from" for slot in slots):  # then its destination is one too
        slots = [replace(slot, kind="path") if slot.role == "to" and not slot.described else slot for slot in slots]
    if not any("head" in slot.words for slot in slots):  # the base of a pull request is where it goes
        slots = [replace(slot, role="from") if "base" in slot.words and not slot.role else slot for slot in slots]
    elif any("base" in slot.words for slot in slots):
        ends: dict[str, Role] = {"head": "from", "base": "to"}
        slots = [replace(slot, role=ends.get(slot.words[-1], slot.role)) if slot.words else slot for slot in slots]
    verbs = [word for word in name_words if word in _READING | _WRITING]
    known_verbs = _READING | _WRITING
    named_verbs = [
        word
        for place, word in enumerate(name_words[:3])
        # "update_phone" updates, and calls nobody; "print_file" files nothing.
        if is_action(word) and (word in known_verbs or not any(map(is_action, name_words[:place])))
    ]
    for slot in slots:  # "Text to translate", "Value to store"
        named_verbs += [verb for verb in re.findall(r"\bto ([a-z]+)", slot.described[:100].lower()) if is_action(verb)]
        # "the task to search for and complete" completes it
        named_verbs = [verb for verb in named_verbs if verb in name_words or verb not in _SEEKING]
    # "light_turn_on" is done by "switch it on", too.
    named_verbs += [
        after for before, after in pairwise(name_words) if before in ("turn", "switch") and after in ("on", "off")
    ]
    name_words += _initials(name_words)
    name_words += told_words[:1]  # "Tell a tale …": its own verb, as much as one in its name
    if not verbs:
        opening = re.findall(r"[a-z]+", capability.description[:40].lower())[:1]
        verbs = [form for word in opening for form in (word, word.removesuffix("s")) if form in _READING | _WRITING]
    reading = capability.hints.read_only or (
        bool(verbs) and verbs[0] in _READING and not capability.hints.consequential
    )
    return Form(
        tuple(slots),
        frozenset(meaning for word in name_words for meaning in meanings(word)),
        frozenset().union(*(_done_by(word, name_words, reading) for word in [*named_verbs, *told_words[:1]])),
        bool(_UNDOING.intersection([*name_words[:3], *told_words[:1]])),
        frozenset(meaning for word in told_words if word not in EMPTY for meaning in meanings(word)),
        tuple(dict.fromkeys(word for word in [*name_words, *told_words] if word not in EMPTY and len(word) > 3))[:40],
        frozenset(fold(name) for name in re.findall(r"(?<=[a-z,] )[A-Z][A-Za-z]+", capability.description[:600])),
        reading,
        tuple(unreadable),
        frozenset().union(
            *map(things, name_words),
            *map(things, told_words),
            *map(things, re.findall(r"[a-z]{3,}", fold(capability.description[:600]))),
            *(
                things(word)
                for slot in slots
                for word in (*slot.words, *re.findall(r"[a-z]{3,}", fold(slot.described)))
            ),
        ),
        frozenset(re.findall(r"[a-z]+(?:-[a-z]+)+", fold(capability.description[:600]))),
        frozenset(
            word for slot in slots for _, ways in slot.options for (word, *rest) in filter(None, ways) if not rest
        ),
        any({"sort", "order", "orderby", "sorting", "ordering"} & {*slot.words} for slot in slots),
        frozenset(
            row
            for word in {*name_words, *told_words}
            if word not in EMPTY and len(word) > 3
            for row in ways_to_say(word)
            if len(row) > 1
        ),
        _index_names(slots),
    )


def _initials(words: Sequence[str]) -> list[str]:
    """How people shorten what a capability is about: "MR" for a merge request."""
    return [f"{first[0]}{second[0]}" for first, second in pairwise(words[1:]) if first and second]


def _family(slot: Slot) -> str:
    """Kinds that can take the same words as a value."""
    families = {"integer": "number", "date": "time", "datetime": "time", "when": "time", "duration": "measure"}
    return families.get(
        slot.kind, slot.kind if slot.kind in ("number", "time", "enum", "boolean", "email", "id") else "words"
    )


def _index_names(slots: Sequence[Slot]) -> dict[str, list[tuple[int, tuple[str, ...]]]]:
    """A word that two slots share announces neither, unless it is all of a name."""
    shared = Counter((row, _family(slot)) for slot in slots for row in slot.cues)
    told = Counter((noun, _family(slot)) for slot in slots for noun in slot.nouns)
    index: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for number, slot in enumerate(slots):
        family = _family(slot)
        telling = tuple(word for word in slot.words if word not in _WEAK_WORDS) or slot.words
        whole = (slot.words,) if _ENDS.intersection(slot.words) else (slot.words, telling)
        named = [row for row in slot.cues if row and (shared[row, family] == 1 or row in whole)]
        if len(telling) == 2:  # "rama de origen", "fecha de inicio"
            named += [(telling[1], of, telling[0]) for of in ("de", "of")]
        named += [(noun,) for noun in slot.nouns if told[noun, family] == 1 and not shared[(noun,), family]]
        for row in sorted({*named}, key=lambda row: (-len(row), row)):
            for meaning in (meanings(row[0]) - BROAD) | {row[0]}:
                index.setdefault(meaning, []).append((number, row))
    return index


_ENDS = frozenset("in to by for of".split())
"""Words of a name that tell it from another: of "player_out" and "player_in" neither is just the player."""


def _with_nouns(slot: Slot, objects: Sequence[str]) -> Slot:
    """A name or an id that does not say of what is announced by what the capability is about: "deployment web"."""
    if slot.kind not in ("name", "id") or any(word not in _WEAK_WORDS for word in slot.words):
        return slot
    nouns = {word for word in objects if len(word) > 2}
    return replace(slot, nouns=slot.nouns | nouns)


_HEAD = re.compile(r"[,.;:(/]|\b(?:per|in|of|for|to|that|which|where|when|with|from|by|on|at|e\.g|used|as|or)\b")


def _head_nouns(described: str) -> Iterator[str]:
    """What a description calls the value: the words of its first phrase, "Application name", "Ticker symbol"."""
    first = _HEAD.split(described.removeprefix("the ").removeprefix("(optional) ").removeprefix("optional "), 1)[0]
    said = re.findall(r"[^\W_\d]+", first)
    if len(said) <= 3:
        yield from (word for word in said if word not in _WEAK_WORDS | EMPTY | _PLAIN_HEADS and len(word) > 2)
    if of := re.match(
        r"(?:the )?(?:name|id|identifier|number|key|address|code|label|unique id|timestamp) (?:of|for) "
        r"(?:the |a |an )?([a-z]+)",
        described,
    ):
        yield of[1]


_PLAIN_HEADS = frozenset(
    "maximum minimum number max min optional whether list array filter unique new target time date value string type "
    "total default only address search name full format first last end start include only code".split()
)


def split_name(name: str) -> list[str]:
    """The words of a name as it is written in code."""
    return [fold(word) for word in re.findall(r"[A-Za-z]+|\d+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name))]


def _add_slots(
    root: Mapping[str, Any],
    definition: Mapping[str, Any],
    path: tuple[str, ...],
    required: bool,
    slots: list[Slot],
    unreadable: list[str],
    depth: int,
) -> None:
    properties = definition.get("properties")
    wanted = definition.get("required")
    names = wanted if isinstance(wanted, list) else []
    for name, given in properties.items() if isinstance(properties, Mapping) else ():
        part = _simplify(root, given)
        must = required and name in names and "default" not in part
        if "const" in part:
            continue
        if part.get("type") == "object" and isinstance(part.get("properties"), Mapping) and depth < _DEEPEST:
            _add_slots(root, part, (*path, name), must, slots, unreadable, depth + 1)
            continue
        many = part.get("type") == "array"
        item = _simplify(root, part.get("items", {})) if many else part
        slot = _slot(str(name), (*path, str(name)), item, part, must, many) if len(slots) < _MOST_SLOTS else None
        if slot is not None:
            slots.append(slot)
        elif must:
            unreadable.append(str(name))


def _simplify(root: Mapping[str, Any], given: Any) -> Mapping[str, Any]:
    """A definition without references, and without the null that it allows."""
    part = given if isinstance(given, Mapping) else {}
    for _ in range(3):
        if isinstance(reference := part.get("$ref"), str) and reference.startswith("#/"):
            target: Any = root
            for step in reference[2:].split("/"):
                target = target.get(step) if isinstance(target, Mapping) else None
            part = {**(target if isinstance(target, Mapping) else {}), **{k: v for k, v in part.items() if k != "$ref"}}
        for key in ("anyOf", "oneOf", "allOf"):
            several = part.get(key)
            if isinstance(several, list):
                real = [one for one in several if isinstance(one, Mapping) and one.get("type") != "null"]
                if any(one.get("type") in ("integer", "number") for one in real):  # or a word such as "all"
                    real = [one for one in real if "const" not in one and "enum" not in one]
                if len(real) == 1:
                    part = {**{k: v for k, v in part.items() if k != key}, **real[0]}
    if isinstance(kinds := part.get("type"), list):
        real_kinds = [kind for kind in kinds if kind != "null"]
        part = {**part, "type": real_kinds[0] if len(real_kinds) == 1 else real_kinds}
    return part


def _slot(
    name: str, path: tuple[str, ...], item: Mapping[str, Any], whole: Mapping[str, Any], required: bool, many: bool
) -> Slot | None:
    words = tuple(split_name(name))
    described = fold(str(whole.get("description") or item.get("description") or ""))
    kind = _kind(words, described, item)
    if kind == "other":
        return None
    if kind == "name" and (listed := _listed_options(described)):
        kind, item = "enum", {**item, "enum": listed}
    levels = _levels(described, item) if kind == "integer" else {}
    if levels:
        kind, item = "enum", {**item, "enum": [*levels]}
    definition = {**item, **({"description": whole["description"]} if "description" in whole else {})}
    options: list[tuple[Any, frozenset[tuple[str, ...]]]] = []
    if kind == "enum":
        options = [(option, ways_to_say(str(option))) for option in item["enum"][:200] if option is not None]
        options = [(option, ways | _ways_to_say_code(option, words)) for option, ways in options]
        for option, name in levels.items():
            said = {*NUMBER_NAMES.get(option, "").split()} - {"un", "una", "uno", "one"}
            named = ways_to_say(name) if name else frozenset()
            options = [
                (one, ways | named | {(word,) for word in said} if one == option else ways) for one, ways in options
            ]
    about = frozenset(
        meaning
        for word in re.findall(r"[^\W_]+", described[:300])
        if word not in EMPTY and len(word) > 2
        for meaning in meanings(word)
    )
    return Slot(
        name,
        path,
        kind,
        definition,
        required,
        many,
        _role(words, kind, described),
        words,
        frozenset(_cues(words, kind))
        | (EXCLUDING if words[:1] and words[0] in INVERTING and kind != "boolean" else set()),
        frozenset([*_NOUNS.get(kind, ()), *(_head_nouns(described) if kind not in ("boolean", "other") else ())]),
        about,
        tuple(options),
        bool(words) and words[0] in INVERTING,
        frozenset(meaning for word in words if word not in _WEAK_WORDS for meaning in meanings(word)) - BROAD,
        (_unit(words, described) or (_SHARE if item.get("maximum") == 1 and kind == "number" else None))
        if kind in ("integer", "number")
        else None,
        tuple(_examples(definition)) if kind == "name" else (),
        frozenset(_example_forms(definition)) if kind in ("name", "id") else frozenset(),
    )


def _ways_to_say_code(option: Any, words: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """What an option is called that is the code of a language, where languages are meant, or of a currency."""
    said = ""
    if frozenset(words) & _LANGUAGE_WORDS:
        said = LANGUAGES.get(str(option).lower(), "")
    elif re.fullmatch(r"[A-Z]{3}", str(option)):
        said = CURRENCIES.get(str(option), "")
    return frozenset(tuple(name.split("_")) for name in said.split())


_LANGUAGE_WORDS = frozenset("language lang idioma locale languages".split())
_SUCH_AS = re.compile(
    r"(?:e\.?g\.?,?|such as|for example,?|like|ejemplo:?|one of:?|:)\s*([^.;)]{3,160})", re.IGNORECASE
)


def _examples(definition: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a parameter may be called by: "(e.g. 'Task', 'Bug')", or the examples of its schema."""
    given = definition.get("examples")
    texts = [one for one in given[:20] if isinstance(one, str)] if isinstance(given, list) else []
    found = _SUCH_AS.search(str(definition.get("description") or "")[:400])
    listed = re.split(r",\s*(?:or |and )?|\s+or\s+|\s+and\s+|/", found[1]) if found else []
    texts += [part.strip(" '\"`(") for part in listed] if len(listed) > 2 else []
    for text in texts[:20]:
        if re.fullmatch(r"[A-Za-z][A-Za-z_-]{2,30}", text) and text.lower() not in ("etc", "optional"):
            yield fold(text), text


_CODE_AFTER = re.compile(
    r"(?:\be\.?g\b|such as|for example|\blike\b|ejemplo|\bp\. ?ej|['\"`(])(.{0,60})", re.IGNORECASE
)
_CODE = re.compile(r"(?<![\w.-])#?[A-Za-z\d]+(?:[-_:/#][A-Za-z\d]+)*(?![\w-])")


def _example_forms(definition: Mapping[str, Any]) -> Iterator[str]:
    """The forms of the codes among the examples: of "Issue key, e.g. ENG-12" that of letters, a hyphen and digits."""
    given = definition.get("examples")
    texts = [one for one in given[:20] if isinstance(one, str)] if isinstance(given, list) else []
    texts += [found[1] for found in _CODE_AFTER.finditer(str(definition.get("description") or "")[:400])]
    for text in texts:
        yield from filter(None, map(form_of_code, _CODE.findall(text[:60])))


def form_of_code(text: str) -> str:
    """The form of a code that has both letters and digits: A for letters, 9 for digits, X for both. "" for no code."""
    if not (re.search(r"[A-Za-z]", text) and re.search(r"\d", text)) or _NO_CODES.fullmatch(text):
        return ""
    if prefixed := re.match(r"[a-z]{2,6}_(?=[A-Za-z\d]+$)", text):
        return prefixed[0]  # "cus_41Lp"
    form = re.sub(r"[A-Za-z\d]+", lambda run: "A" if run[0].isalpha() else "9" if run[0].isdigit() else "X", text)
    return form if len(form) < 6 else "long"


_NO_CODES = re.compile(
    r"(?:\d+(?:st|nd|rd|th|am|pm|h|m|s|min|d|w|k|kg|g|km|cm|mm|gb|mb)|ISO-?\d+|UTF-?\d+)", re.IGNORECASE
)
_LIST = re.compile(
    r"(?:\(|: |one of )((?:['\"`]?[a-z][a-z_-]+['\"`]?(?:, | or |, or |\|)){2,}['\"`]?[a-z][a-z_-]+['\"`]?)(?=\)|\.|$)"
)


def _listed_options(described: str) -> list[str]:
    """Options that only the description lists: "Resource type (deployment, replicaset, statefulset)"."""
    if re.search(r"e\.g|etc|such as|for example|like", described):
        return []
    found = _LIST.search(described)
    return re.findall(r"[a-z][a-z_-]+", re.sub(r"\bor\b", " ", found[1])) if found else []


_LEVEL = re.compile(r"\b(\d{1,2})\s*(?:=|:|->|\(|\bis\b)?\s*((?:no )?[a-z]{3,})\)?(?=\s*(?:[,;/.)]|$|to\b|and\b|or\b))")
_LEVEL_AFTER = re.compile(r"\b((?:no )?[a-z]{3,})\s*(?:=|:|\()\s*(\d{1,2})\b")


def _levels(described: str, item: Mapping[str, Any]) -> dict[int, str]:
    """What whole numbers stand for where a description says so of two or more: "1 (normal) to 4 (urgent)"."""
    found = {int(number): word for number, word in _LEVEL.findall(described[:300])}
    found = found or {int(number): word for word, number in _LEVEL_AFTER.findall(described[:300])}
    least, most = item.get("minimum", min(found, default=0)), item.get("maximum", max(found, default=0))
    if len(found) < 2 or any(word in UNITS or word.removesuffix("s") in UNITS for word in found.values()):
        return {}
    if not isinstance(least, int) or not isinstance(most, int) or not least <= min(found) <= max(found) <= most <= 20:
        return {}
    return {number: found.get(number, "") for number in range(least, most + 1)}


def _unit(words: tuple[str, ...], described: str) -> tuple[str, float] | None:
    """The unit that a number is in, by the name of its slot or by "in minutes" in its description."""
    for word in reversed(words[: words.index("per")] if "per" in words else words):
        if len(word) > 1 and (unit := UNITS.get(word) or UNITS.get(word.removesuffix("s"))):
            return unit
    if re.search(r"percent|%|\b0(?:-| to | and )100\b", described[:200]):
        return UNITS["percent"]
    told = re.findall(r"\b(?:in|of|number of) (?:degrees )?([a-z]+)\b", described[:200])
    for word in told:
        if len(word) > 1 and (unit := UNITS.get(word) or UNITS.get(word.removesuffix("s"))):
            return unit
    return None


_SHARE = ("percent", 100.0)
"""What a number from 0 to 1 counts."""
_DURATION_EXAMPLE = re.compile(r"['\"`(]\d+ ?[hm](?: \d+ ?m)?['\"`)]")
"""A text such as '1h 30m', shown in a description."""
_CODE_WORDS = frozenset("sql script expression regex selector css xpath jq formula javascript command cmd cron".split())
ARITHMETIC = re.compile(r"\b(?:arithmetic|math(?:s|ematical)?) (?:expression|formula|calculation)\b")
"""How a description says that a text is to be arithmetic."""
_ID_WORDS = frozenset(
    "id ids uuid sha hash key token number ref slug isbn sku code identifier issn doi version timestamp ts".split()
)


_WHEN = re.compile(r"natural language|['\"`](?:tomorrow|yesterday|next (?:week|monday)|\d+ (?:days?|weeks?) ago)['\"`]")
"""A description of a date that is given in words."""
_MOMENTS = frozenset("due date time when since until before after start end deadline schedule timestamp day".split())


def kind_of(name: str, definition: Mapping[str, Any]) -> Kind:
    """The kind of value that a parameter takes."""
    return _kind(tuple(split_name(name)), fold(str(definition.get("description") or "")), definition)


def _kind(words: tuple[str, ...], described: str, item: Mapping[str, Any]) -> Kind:
    said, kind, form = frozenset(words), item.get("type"), item.get("format")
    if isinstance(item.get("enum"), list):
        return "enum"
    simple: dict[Any, Kind] = {"boolean": "boolean", "integer": "integer", "number": "number"}
    if isinstance(kind, str) and kind in simple:
        return simple[kind]
    if kind not in ("string", None) and not (isinstance(kind, list) and "string" in kind):
        return "other"
    formats: dict[Any, Kind] = {
        "date": "date", "date-time": "datetime", "time": "time", "email": "email", "idn-email": "email", "uri": "url",
        "url": "url", "uuid": "id", "hostname": "domain",
    }  # fmt: skip
    if form in formats:
        return formats[form]
    natural = "natural language" in described or "human" in described
    if _WHEN.search(described) and said & _MOMENTS:
        return "when"
    if said & {"email", "mail", "correo", "emails", "cc", "bcc"} and not said & {
        "subject",
        "body",
        "text",
        "content",
        "id",
    }:
        return "email"
    if re.search(
        r"\be-?mail address|^(?:list of |array of )?e-?mails? (?:of|for|to)\b", described[:80]
    ) and not re.search(r"\bor\b", described[:80]):
        return "email"
    if said & {"phone", "mobile", "telephone", "msisdn", "telefono"} or re.search(
        r"phone number|\be\.?164\b|whatsapp number|number in international", described[:80]
    ):
        return "phone"
    if said & {"duration", "spent"} and _DURATION_EXAMPLE.search(described):
        return "duration"
    if said & {"url", "uri", "link", "href", "website"}:
        return "url"
    if said & {"timezone", "tz", "timezones"} or "iana" in described or "time zone" in described[:40]:
        return "zone"
    if said & {"language", "lang", "idioma", "locale"} or "iso 639" in described:
        return "language"
    if said & {"currency", "currencies"} or "iso 4217" in described or "currency code" in described:
        return "currency"
    if (
        said & {"pattern", "patterns", "glob", "globs"}
        or said & _CODE_WORDS
        or (words == ("code",) and re.search(r"execut|run|script|python|source|snippet|program|evaluat", described))
        or re.search(r"\bsql\b|\bselector\b|regular expression|\bregex\b|javascript|cron expression", described)
        or ARITHMETIC.search(described)
    ):
        return "code"
    if said & {"domain", "hostname", "host", "fqdn"}:
        return "domain"
    if said & _PATH or re.search(
        r"\b(?:file|directory|folder) paths?\b|\bpaths? (?:to|of)\b|\babsolute path|^(?:\w+ ){0,3}paths?(?:$|[,.;(])",
        described,
    ):
        return "path"
    if not natural and (
        re.search(r"iso.?8601|yyyy-mm-ddt|\b\d{4}-\d\d-\d\dt\d\d:\d\d", described)
        and not re.search(r"yyyy-mm-dd(?!t)", described)
    ):
        return "datetime"
    if not natural and (
        said & {"date", "day", "fecha", "checkin", "checkout"}
        or re.search(r"yyyy-mm-dd|\b\d{4}-\d\d-\d\d\b", described)
    ):
        return "date" if "time" not in said else "datetime"
    if re.search(r"\bhh:mm(?::ss)?\b", described):
        return "time"
    if not natural and (
        said & {"time", "hour"} and not said & {"timestamp"} and re.search(r"hh:mm|24|clock|time", described or "time")
    ):
        return "time"
    if (words[-1:] == ("ref",) and _NAMED_REF.search(described)) or re.search(
        r"\bname or id\b|\bid or name\b", described
    ):
        return "name"
    if words and (
        words[-1] in _ID_WORDS or re.match(r"(?:the )?(?:unique )?(?:\w+ ){0,2}(?:id|identifier)\b(?! or)", described)
    ):
        return "id"
    if said & {"source", "src"} and not described:
        return "path"
    if said & _PLACE or re.match(
        r"(?:the )?(?:\w+ ){0,2}(?:address|city|airport|location)(?: name)?(?:$|[,.(]| of\b)", described
    ):
        return "place"
    if said & (_CONTENT | _QUERY) or words[-1:] in (
        ("title",),
        ("subject",),
        ("summary",),
        ("headline",),
        ("caption",),
    ):
        return "text"
    if re.match(
        r"(?:the )?(?:optional )?(?:(?:name|title)/)?(?:text|message|note|reason|comment|content)\b", described
    ):
        return "text"
    return "name"


_STARTS_FROM = re.compile(r"\b(?:start|create|branch|copy|clone|begin)(?:ing|ed)? (?:it )?from$|\bbased on$")
"""How a description says that a value is where something comes from: "Branch to start from"."""
_NAMED_REF = re.compile(r"\b(?:branch|tag|name)\b")


def _role(words: tuple[str, ...], kind: Kind, described: str) -> Role:
    said = frozenset(words)
    if kind in ("integer", "number"):
        if said & {"page"} and not said & {"size", "per"}:
            return "page"
        if said & {"min", "minimum", "least", "from", "since", "after", "earliest"}:
            return "least"
        if said & {"to", "until", "before", "latest"}:
            return "most"
        if said & _FIRST and not said & {"max"}:
            return "first"
        return (
            "most"
            if said & _MOST or described.startswith(("maximum", "max ", "number of", "limit", "how many"))
            else ""
        )
    if kind == "boolean":
        return ""
    joined = {"".join(words)}  # "check_in"
    if kind in ("date", "datetime", "time") and said & {"first", "last"}:
        return "from" if "first" in said else "to"
    if (said | joined) & _FROM or (kind in ("name", "id") and _STARTS_FROM.search(described)):
        return "from"
    if (said | joined) & _TO or (words == ("value",) and kind == "name"):
        return "to"
    if said & _BY:
        return "by"
    if kind == "name" and not said & _CONTAINERS and (said & _PEOPLE or _WHO.match(described)):
        return "who"
    if kind == "text":
        if said & _QUERY:
            return "query"
        titled = said & _TITLE and not said & _CONTENT
        return (
            "title"
            if titled or re.match(r"(?:the )?(?:name|title|content)/(?:content|title|name)\b", described)
            else "content"
        )
    if kind == "place":
        return "place"
    if kind == "name" and (said & _CONTAINERS or described.startswith("where")):
        return "in"
    return "title" if words in (("name",), ("title",), ("label",)) else ""


_WEAK_WORDS = frozenset("id ids name the a of in to is for by value string text input list new".split())


def _cues(words: tuple[str, ...], kind: Kind) -> Iterator[tuple[str, ...]]:
    """The whole name, its words without those that say only of what form it is, and its single telling words."""
    if not words:
        return
    yield words
    telling = tuple(word for word in words if word not in _WEAK_WORDS) or words
    yield telling
    for word in telling:
        if word not in (
            "from",
            "to",
            "in",
            "at",
            "by",
            "on",
            "max",
            "min",
            "start",
            "end",
            "is",
            "has",
            "num",
            "per",
            "unit",
        ):
            yield (word,)
    for said in ("_".join(words), *telling):
        yield from (row for row in ways_to_say(said) if len(row) > 1)
    if len(words) > 1:
        yield from ways_to_say("_".join(words))
