"""Names, places, ids and free texts: the spans of a sentence that may be one, and where their borders are.

A free text goes on up to what announces another slot, or to the end. What it swallows on its way, words that would
fill a slot, is told, so that ``reader`` can ask where that slot stays empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from agent3.sentences.announcements import CALLED, DETERMINERS, LEAD, SAYING, TAIL, TELLING, Scene, row_length
from agent3.sentences.lexicon import BROAD, EMPTY, fold, is_action, is_common, is_known, meanings
from agent3.sentences.passing import FILLER, NEW
from agent3.sentences.slots import Slot
from agent3.sentences.tokens import Token, is_sign
from agent3.sentences.values import Cue, Value, Words

__all__ = ["is_form", "is_name", "is_taken", "may_be_part", "texts_at"]

_MOST_BORDERS = 8
_LONGEST_NAME, _LONGEST_PLACE, _LONGEST_REACH = 4, 6, 6
_CROSSING = 1.3
"""Against a text that goes on past what would fill another slot."""
_VAGUE = frozenset(
    "it that this them these those something anything someone everything nothing one ones things stuff it's eso esto "
    "ese aquello algo alguien lo nada todo cosas anyone everyone him her me us all todos todas other others".split()
)
_LINKING = frozenset(
    "has have had contains contain belongs tiene tienen tenia contiene contienen pertenece hay".split()
)
"""Verbs that say what belongs to something: "what columns does it have", "que columnas tiene"."""
_NO_NAMES = _VAGUE | DETERMINERS | LEAD | EMPTY | TELLING | _LINKING
_DANGLING = frozenset(
    "to from in on at for of with by about into as a de en con por para sobre desde hasta al del que that and y e "
    "the el la los las un una since before after until till between under over within without during than through via "
    "is are or o sin entre antes despues durante tras segun hacia bajo".split()
)
"""Words with which no text ends."""
_ARTICLES = frozenset("a the el la los las un una".split())
_SPANNING = frozenset("date time times measure sum datetime".split())
_NOT_FIRST = EMPTY | TELLING | frozenset("se es son esta i do does did please por favor and y or o".split())
"""Words with which no bare value begins."""


def texts_at(scene: Scene, begin: int, number: int, cue: Cue, *, item: bool = False) -> Iterator[Value]:
    """The values of a name, a place, an id or a text that begin here; ``item`` is for one of a list."""
    slot, token = scene.slots[number], scene.tokens[begin]
    if token.shape == "mark" and not (token.plain in "¿¡" and begin and scene.tokens[begin - 1].plain == ":"):
        return
    if token.shape == "quote":
        if slot.kind == "id" and " " in token.value:
            return
        if cue or _takes_quote(scene, slot, token):
            yield Value(begin + 1, token.value, 0.0 if cue or slot.kind == "text" else 0.2)
        return
    if row_length(scene.tokens, begin, CALLED):
        return
    if slot.kind != "text" and is_taken(scene, begin, number, cue):
        return
    if slot.kind == "text" and not item:
        yield from _texts(scene, begin, number, cue)
    elif token.shape in ("email", "url", "phone") and not (
        slot.kind == "name" and _takes(scene, slot, token.shape, cue)
    ):
        return
    elif slot.kind == "id":
        yield from _ids(scene, begin, slot, cue)
    elif slot.kind == "place":
        yield from _places(scene, begin, slot, cue)
    else:
        yield from _names(scene, begin, number, cue, item=item)


def _takes_quote(scene: Scene, slot: Slot, token: Token) -> bool:
    """Whether a quoted text that nothing announces may be for a slot: for a text first, then for a title or a name."""
    if slot.kind == "text" or not slot.required:
        return slot.kind == "text"
    if any(other.kind == "text" and (other.required or slot.role != "title") for other in scene.slots):
        return slot.many and not any(other.kind == "text" and other.required for other in scene.slots)
    alone = sum(other.kind in ("name", "place", "id") for other in scene.slots) == 1
    return slot.role == "title" or slot.many or alone or " " not in token.value


def _words(scene: Scene, begin: int, end: int) -> str | Words:
    return scene.tokens[begin].value if end == begin + 1 else Words(begin, end)


def is_taken(scene: Scene, begin: int, number: int, cue: Cue) -> bool:
    """Whether a word is plainly something else than a name: a date, another slot's option, what announces a slot."""
    token, slot = scene.tokens[begin], scene.slots[number]
    if token.shape == "word" and slot.kind != "text" and token.plain in (slot.name.lower(), *slot.words[-1:]):
        return True  # "the quantity of SKU to 120": what the slot is called, and nothing that is in it
    after = scene.tokens[begin + 1] if begin + 1 < len(scene.tokens) else None
    if token.value.islower() and token.means & scene.form.verbs and after is not None and after.plain in DETERMINERS:
        return True  # "in table set the field …"
    spans = any(atom.kind in _SPANNING and atom.last > begin + 1 for atom in scene.atoms[begin])
    if scene.inside[begin] or (spans and cue not in ("named", "called")):
        return True
    if scene.sure[begin] - {number} and cue not in ("named", "called"):
        return True
    if token.plain in FILLER | NEW and token.value[:1].islower():
        return True
    if token.shape == "word" and token.plain in scene.form.told_words and cue not in ("named", "called"):
        return True
    before = scene.tokens[begin - 1] if begin else None
    labelled = before is not None and before.plain in ":=" and cue == "named"
    if before is not None and before.shape == "mark" and token.value.islower() and is_action(token.plain):
        return not labelled  # "…, delete it"
    if token.shape != "word" or (token.value[:1].isupper() and begin):
        return bool(token.shape == "word" and any(atom.kind in ("date", "time") for atom in scene.atoms[begin]))
    known = scene.form.named | scene.form.told
    return bool(
        (token.means & known and cue not in ("named", "called"))
        or token.means & scene.slots[number].own
        or scene.names[begin]
        or scene.sure[begin] - {number}
        or (
            cue not in ("named", "called")
            and any(atom.kind not in ("zone", "language", "currency") for atom in scene.atoms[begin])
        )
        or begin >= scene.closing
    )


def is_name(token: Token) -> bool:
    """Whether a token by itself may be a name."""
    return token.plain not in _NO_NAMES and token.shape != "mark"


def _takes(scene: Scene, slot: Slot, shape: str, cue: Cue) -> bool:
    """Whether a slot without a kind of its own takes addresses: it says so, or it is announced and no other does."""
    told = slot.about & {"email": {"email", "mail"}, "url": {"url", "link"}, "phone": {"phone", "number"}}[shape]
    return bool(told) or (bool(cue) and not any(other.kind == shape for other in scene.slots))


_WORDY_IDS = frozenset("key slug ref tag".split())


def _ids(scene: Scene, begin: int, slot: Slot, cue: Cue) -> Iterator[Value]:
    token = scene.tokens[begin]
    if token.shape in ("code", "dotted") or (token.shape == "digits" and re.fullmatch(r"[\d.-]+", token.value)):
        if token.shape == "digits" and (not cue or re.fullmatch(r"\d{4}-\d\d-\d\d", token.value)):
            return
        yield Value(begin + 1, token.value, 0.0 if cue else 0.1)
    elif token.shape == "path" and slot.words[-1] in ("key", "object", "ref") and "*" not in token.value:
        if not any(other.kind == "path" or other.name.lower() == "owner" for other in scene.slots):
            yield Value(begin + 1, token.value, 0.0 if cue else 0.1)
    elif token.shape == "handle":
        named = slot.about & {"name", "channel", "user", "username", "handle"}
        yield Value(begin + 1, _written_handle(slot, token) if named else token.value.lstrip("#@"), 0.1)
    elif _is_symbol(scene, token):
        yield Value(begin + 1, token.value)
    elif cue == "named" and token.shape == "word" and is_name(token) and _border(scene, begin) == begin + 1:
        shown = re.search(rf"['\"`]{re.escape(token.plain)}['\"`]", fold(slot.described))
        if shown or slot.words[-1] in _WORDY_IDS:
            yield Value(begin + 1, token.value, 0.2, typed=False)


_BARE_HANDLE = re.compile(r"\b(?:without|no|omit|sin)\b[^.;]{0,30}?[#@]|\bbare\b", re.IGNORECASE)


def _written_handle(slot: Slot, token: Token) -> str:
    """ "#general" as a slot takes it: "without the #", where its description says so."""
    return token.value.lstrip("#@") if _BARE_HANDLE.search(slot.described) else token.value


def _is_copula(token: Token) -> bool:
    """ "está", which only its accent tells from "this"."""
    return token.value.lower() in ("está", "estás", "estan", "están")


def _is_symbol(scene: Scene, token: Token) -> bool:
    """A word in capitals among others that are not, such as that of a share, and no word of the capability."""
    return (
        token.shape == "word"
        and len(token.value) > 1
        and token.value.isupper()
        and not token.means & (scene.form.named | scene.form.told)
        and not scene.sentence.text.isupper()
    )


def is_form(word: str, example: str) -> bool:
    """Whether a word is an example in the singular or plural, or a known translation of it."""
    return word.removesuffix("s") == example.removesuffix("s") or bool(
        len(word) > 3 and (meanings(word) & meanings(example)) - BROAD
    )


_INSTANCES = {
    "room": "living_room kitchen bedroom bathroom office garage garden hallway dining_room",
    "color": "white black red green blue yellow orange purple pink gray brown gold silver",
    "colour": "white black red green blue yellow orange purple pink gray brown gold silver",
}
"""What a parameter of such a name takes, by the meanings of the words."""


_SLASHED = frozenset("repo repository project image model package path key object name".split())
"""Parts of the names of parameters whose values may have a slash in them."""


def _is_instance(slot: Slot, word: str) -> bool:
    return any(name in slot.words and meanings(word) & frozenset(kinds.split()) for name, kinds in _INSTANCES.items())


def _names(scene: Scene, begin: int, number: int, cue: Cue, *, item: bool) -> Iterator[Value]:
    """One word of any form, several with capital letters, or the bare object of the verb up to the next border."""
    slot, token = scene.slots[number], scene.tokens[begin]
    for plain, written in slot.shown:
        if token.shape == "word" and (token.plain == plain or is_form(token.plain, plain)):
            yield Value(
                begin + 1, written, 0.0 if cue else 0.1, typed=token.plain.removesuffix("s") == plain.removesuffix("s")
            )
            return
    if token.shape == "word" and _is_instance(slot, token.plain):
        yield Value(begin + 1, token.value, 0.0 if cue else 0.05)
        return
    if token.shape != "word":
        pair = re.fullmatch(r"[\w.-]+/[\w.-]+", token.value)
        if token.shape == "path" and (not pair or any(other.name.lower() == "owner" for other in scene.slots)):
            return
        if token.shape in ("path", "dotted") and cue != "named" and any(other.kind == "path" for other in scene.slots):
            return
        if cue not in ("named", "called") and any(atom.kind in ("date", "time") for atom in scene.atoms[begin]):
            return  # a day is no name
        if token.shape == "path" and not cue and not frozenset(slot.words) & _SLASHED:
            return
        counts = token.shape == "digits" and cue in ("role", "weak") and not _ends_address(scene, begin)
        if (cue and not counts) or (slot.required and token.shape != "digits"):
            written = _written_handle(slot, token) if token.shape == "handle" else token.value
            yield Value(begin + 1, written, 0.0 if cue else 0.1, typed=token.shape != "path")
        return
    if (end := _thing_end(scene, begin, slot, cue)) is not None and not item:
        yield Value(end, _words(scene, begin, end), 0.1, typed=False)
        return
    if not cue and begin and scene.tokens[begin - 1].plain in DETERMINERS and not _is_copula(scene.tokens[begin - 1]):
        return  # "an MR", "the place"
    if not cue and _is_symbol(scene, token) and not scene.stops[begin]:
        yield Value(begin + 1, token.value, 0.1)
        return
    titled = token.value[:1].isupper() and (
        cue == "named" or (cue and _proper_end(scene, begin, 2) > begin + 1)  # "status Todo", "El Bulli"
    )
    if not (titled or is_name(token)) or (not cue and not scene.follows[begin]):
        return
    if token.value[:1].islower() and (token.plain in _WHERE_OR_WHEN or _is_said_of(scene, begin, cue)):
        return
    if token.value[:1].islower() and is_common(token.plain) and not item:
        # "in the kitchen" is a room; "in blue" is not.
        placed = cue == "role" and slot.role == "in" and scene.tokens[begin - 1].plain in DETERMINERS
        placed = placed or (not cue and _is_sole_object(scene, begin, number))
        if (cue in ("weak", "") and not placed) or (cue == "role" and slot.role == "in" and not placed):
            return
    if token.value[:1].isupper():
        end = _proper_end(scene, begin, _LONGEST_NAME)
        if slot.role == "title" and cue in ("named", "called", "noun"):
            end = max(end, _border(scene, begin))  # "named Renew passport on …"
        # "Mediterráneo de Serrat": one name, or what and by whom?
        made_by = any(other.role == "by" and other is not slot for other in scene.slots)
        joint = next((at for at in range(begin, end) if scene.tokens[at].plain in ("de", "del")), None)
        for value in _reaching(scene, begin, end, cue, typed=token.value.isupper()):
            cut = made_by and joint is not None and value.doubt is None
            yield replace(value, doubt=_words(scene, begin, joint or end)) if cut else value
        return
    end = _border(scene, begin)
    if end - begin > _LONGEST_NAME:
        return
    if end - begin > 1 and cue in ("role", "weak", "noun", ""):
        return  # "de la aplicación tienda": which of the words are the name?
    if slot.role != "title" and not item:
        end = begin + 1
    if end - begin == 1 or cue in ("named", "called") or item:
        reach = _reach(scene, end)
        cut = reach > end and (scene.tokens[end].plain in NEW or reach < len(scene.tokens))
        doubt = _words(scene, begin, reach) if cut and scene.tokens[end].plain in FILLER | NEW else None
        yield Value(end, _words(scene, begin, end), 0.0 if end - begin == 1 else 0.2, typed=False, doubt=doubt)


_BY_THE_WAY = frozenset(
    "again twice once thrice instead together overnight forever soon later tonight already still yet alone "
    "otra nuevamente dos juntos siempre pronto todavia anoche temprano tarde".split()
)
"""Words after a name that may say when or how often, too."""
_TELLS_HOW = re.compile(r"\w{3,}(?:ly|mente)")


def _reaching(scene: Scene, begin: int, end: int, cue: Cue, *, typed: bool) -> Iterator[Value]:
    """A name with capital letters up to ``end``, with the words that still belong to it: "the card Logo nuevo to …".

    After the name of its slot, or a preposition, it reaches to the next border; where it stands bare, the words after
    it may be something else, and lead to a question. So they do at the end, if they may say when or how.
    """
    tokens, reach = scene.tokens, _reach(scene, end)
    more = tokens[end:reach]
    loose = any(one.plain in FILLER | _BY_THE_WAY or _TELLS_HOW.fullmatch(one.plain) for one in more)
    new = any(one.plain in NEW for one in more)
    if reach < scene.closing and row_length(tokens, reach, TAIL):
        doubt = _words(scene, begin, reach + 1)  # "the card Thank you please to …"
        yield Value(reach, _words(scene, begin, reach), 0.0, typed=False, doubt=doubt)
        return
    if not more or (scene.form.reading and not new):
        longer = _words(scene, begin, end + 1) if may_be_part(scene, end) else None
        yield Value(end, _words(scene, begin, end), 0.0, typed=typed, doubt=longer)
        return
    ends = reach == len(tokens) or tokens[reach].shape == "mark" or reach >= scene.closing
    announced = cue in ("named", "called", "noun") or (cue == "role" and scene.english)
    if announced and not scene.form.reading and reach - begin <= _LONGEST_REACH:
        shorter = _words(scene, begin, end) if loose and (ends or cue == "role") else None
        yield Value(reach, _words(scene, begin, reach), 0.0, typed=False, doubt=shorter)
        return
    # The other words are left over, or would be passed over as a courtesy.
    yield Value(end, _words(scene, begin, end), 0.0, typed=typed and not (loose or new),
                doubt=_words(scene, begin, reach) if loose or new else None)  # fmt: skip


def may_be_part(scene: Scene, index: int) -> bool:
    """Whether a word after a name only means what the capability is about: "Login bug", to one about tickets."""
    token, form = scene.tokens[index] if index < scene.closing else None, scene.form
    if token is None or form.reading or token.shape != "word" or not token.value.islower():
        return False
    if token.plain in LEAD | TELLING | FILLER or is_action(token.plain):
        return False
    own = {*form.told_words, *(word for slot in scene.slots for word in slot.words)}
    return bool(token.means & (form.named | form.told)) and not {token.plain, token.plain.removesuffix("s")} & own


_EACH = frozenset("every each per cada todos todas".split())


def _reach(scene: Scene, end: int) -> int:
    """Where the words after a name end that are neither a preposition, a verb, a mark nor anything known otherwise."""
    tokens, known = scene.tokens, scene.form.named | scene.form.told
    while end < min(len(tokens), scene.closing):
        token = tokens[end]
        new = token.plain in NEW and not (end + 1 < len(tokens) and scene.names[end + 1])  # not "new name …"
        if token.shape != "word" or token.plain in LEAD | TELLING | _EACH or scene.next_stop[end] == end:
            break
        if not new and (scene.names[end] or token.means & known or (token.value.islower() and is_action(token.plain))):
            break
        if any(atom.kind in _SPANNING for atom in scene.atoms[end]) or row_length(tokens, end, CALLED):
            break
        end += 1
    return end


_WHERE_OR_WHEN = frozenset(
    "upstairs downstairs nearby here there outside inside indoors outdoors home away abroad below above next today "
    "tomorrow yesterday tonight arriba abajo cerca lejos aqui alli ahi fuera dentro hoy ayer manana anoche".split()
)
"""What is said of something, and no name of it: "the printer upstairs"."""


def _is_said_of(scene: Scene, begin: int, cue: Cue) -> bool:
    """Whether a plain word after "of" says more of what was named, not what it is called: "el cliente de siempre"."""
    return cue in ("named", "noun") and scene.tokens[begin - 1].plain in ("of", "de", "del")


_NO_THINGS = frozenset(
    "person people persona man woman guy hombre mujer same other others usual right whole rest best worst cheapest "
    "available correct wrong mismo misma otro otra otros otras resto mejor peor disponible thing cosa whoever whatever "
    "following such own next previous second third half pair couple par lot bit few mitad poco pocos varios "
    "varias".split()
)
_SUPERLATIVE = re.compile(r"\w{3,}(?:est|isim[oa]s?)")
_THE = frozenset("the a an el la los las un una".split())


def _thing_end(scene: Scene, begin: int, slot: Slot, cue: Cue) -> int | None:
    """Where a plain thing with its article ends that can only be a whole value: "lend the belt sander to Omar".

    It stands right after the verb or after the preposition of its role, has no word that the capability knows, and
    nothing is said of it afterwards. What is undone, or is one of many, has to be told by more than that.
    """
    tokens = scene.tokens
    if not slot.required or slot.many or slot.role == "title" or scene.form.undoes or scene.form.sorts:
        return None
    if cue not in ("role", "") or begin < 2 or tokens[begin - 1].plain not in _THE:
        return None
    if not cue and (begin != scene.verb + 2 or "create" in scene.form.verbs):
        return None  # "create a contact": that is what is made
    if cue and tokens[begin - 1].plain in ("a", "an", "un", "una"):
        return None  # "for a friend" does not say for whom
    known = scene.form.named | scene.form.told | frozenset(word for other in scene.slots for word in other.own)
    end = begin
    while end < min(len(tokens), scene.closing) and tokens[end].shape == "word" and tokens[end].plain not in LEAD:
        token = tokens[end]
        if (
            not token.value.islower()
            or token.plain in FILLER | NEW | TELLING | EMPTY | _VAGUE | _NO_THINGS | _BY_THE_WAY
        ):
            return None
        if (token.means - BROAD) & known or scene.names[end] or _SUPERLATIVE.fullmatch(token.plain):
            return None
        if _TELLS_HOW.fullmatch(token.plain) or (end > begin and _PARTICIPLE.fullmatch(token.plain)):
            return None
        if any(atom.kind not in ("zone", "language", "currency") for atom in scene.atoms[end]):
            return None
        end += 1
    after = tokens[end].plain if end < len(tokens) else "."
    several = after in ("and", "y", "e", "or", "o", "of", "de", "del", "that", "which", "que", "whose", ",")
    return end if 0 < end - begin <= 3 and not several else None


def _is_sole_object(scene: Scene, begin: int, number: int) -> bool:
    """Whether a plain noun between the verb and what fills another slot can only be the name: "scale web to 5"."""
    slot, token = scene.slots[number], scene.tokens[begin]
    others = [
        other for other in scene.slots if other.required and other.kind in ("name", "place", "id", "text", "path")
    ]
    return (
        slot.required
        and others == [slot]
        and begin == scene.verb + 1
        and begin + 1 < len(scene.tokens)
        and bool(scene.stops[begin + 1] - {number})
        and not token.plain.endswith(("s", "ly", "mente"))
    )


def _places(scene: Scene, begin: int, slot: Slot, cue: Cue) -> Iterator[Value]:
    tokens, token = scene.tokens, scene.tokens[begin]
    if token.shape in ("digits", "code") and not (begin + 1 < len(tokens) and tokens[begin + 1].value[:1].isupper()):
        if cue in ("named", "noun") or (
            cue and slot.required and re.search(r"code|zip|coordinate|iata", slot.described.lower())
        ):
            yield Value(begin + 1, token.value, 0.2)
        return
    if token.plain in _VAGUE | DETERMINERS and not token.value[:1].isupper():
        return
    number = token.shape in ("digits", "code")
    if not number and any(atom.kind in ("number", "date", "time", "measure", "sum") for atom in scene.atoms[begin]):
        return
    proper = token.value[:1].isupper() or number
    if proper and token.plain not in scene.form.told_words and (cue or is_name(token)):
        numbers = bool(slot.own & {"address"} or slot.about & {"address"})
        end = _proper_end(scene, begin, _LONGEST_PLACE, numbers=numbers)
        if end - begin == 1 and not is_name(token):
            return
        cut = end < len(tokens) and tokens[end].plain in NEW  # "Villa nueva"
        doubt = _words(scene, begin, end + 1) if cut else None
        yield Value(end, _words(scene, begin, end), 0.0, typed=False, doubt=doubt)
        after = end + 1
        if end < len(tokens) - 1 and tokens[end].plain == "," and tokens[after].value[:1].isupper():
            wider = _proper_end(scene, after, _LONGEST_PLACE, numbers=numbers)
            if wider == len(tokens) or scene.next_stop[wider] == wider or tokens[wider].plain in LEAD:
                yield Value(wider, _words(scene, begin, wider), 0.0, typed=False)
    elif cue in ("role", "named", "noun") and token.shape == "word" and is_name(token):
        end = _border(scene, begin)
        # "maps of quinoa": what comes after "of" in small letters is no place, unless one has to be said.
        loose = cue == "role" and not slot.required and tokens[begin - 1].plain in _LOOSE
        if end - begin <= 3 and not loose and not any(is_known(other.plain) for other in tokens[begin:end]):
            yield Value(end, _words(scene, begin, end), 0.1 * (end - begin), typed=False)


def _texts(scene: Scene, begin: int, number: int, cue: Cue) -> Iterator[Value]:
    slot, tokens, token = scene.slots[number], scene.tokens, scene.tokens[begin]
    if not cue:
        if not _is_object(scene, begin, slot) or scene.names[begin] or token.plain in _NOT_FIRST - DETERMINERS:
            return
        articles = token.plain in DETERMINERS, begin > 0 and tokens[begin - 1].plain in DETERMINERS
        if articles[1 if slot.role == "content" else 0]:
            return  # what is said keeps its article; what is sought or titled does not
        noun = tokens[begin + 1] if articles[0] and begin + 1 < len(tokens) else token
        if noun.means & (scene.form.named | scene.form.told):
            return
        if any(atom.kind in ("date", "time", "times", "sum", "number") for atom in scene.atoms[begin]):
            return
    if token.shape in ("email", "phone", "url") or token.plain in _SAYS:
        return
    if token.shape == "digits" and slot.role == "content" and _border(scene, begin) == begin + 1:
        return  # "message 512" is which, not what
    if scene.sure[begin] - {number} and cue in ("role", "", "noun"):
        return
    spoken = slot.role == "content" and begin > 0 and tokens[begin - 1].plain == ":"
    if token.plain in _DANGLING - _ARTICLES and begin and tokens[begin - 1].plain not in ":=":
        return  # "a message to Ana" does not say what it is
    swallowed: set[int] = scene.stops[begin] - {number}
    border, crossed = begin, 0
    for _ in range(_MOST_BORDERS):
        if border < len(tokens):
            border = scene.next_stop[max(border, begin + 1)]
        if border < len(tokens) and border >= scene.closing:
            border = scene.closing
        end = _strip(tokens, begin, border)
        if spoken and border < len(tokens) and tokens[border].plain in "?!":
            border += 1  # it is part of what is said
            continue
        if spoken and end < border and tokens[end].plain in "?!":
            end += 1
        if border < len(tokens) and tokens[border].plain == ":" and not spoken:
            return
        if _is_whole(scene, begin, end, border, slot, cue):
            # After a colon all is text.
            yield Value(border, _words(scene, begin, end), _CROSSING * crossed, typed=False,
                        swallows=frozenset() if spoken else frozenset(swallowed))  # fmt: skip
        if border >= len(tokens) or border == scene.closing:
            return
        if scene.is_label(border, number) or (border + 1 < len(tokens) and scene.is_label(border + 1, number)):
            return  # "content: Dune, tags: reading" is a list
        crossed += bool(scene.stops[border] - {number})
        swallowed |= scene.stops[border] - {number}
        if tokens[border].shape == "mark" and not spoken and (not cue or slot.role != "content"):
            return  # a comma: does it go on?
        border += 1


_SEEKING = frozenset("search lookup fetch read list".split())


def _is_object(scene: Scene, begin: int, slot: Slot) -> bool:
    """Whether a text that nothing announces is what the verb is about: "search …", "say …", "an image of …"."""
    if scene.follows[begin] != "verb":
        return scene.follows[begin] == "noun"
    verbs = scene.form.verbs
    if slot.role == "title" and scene.form.reading and scene.tokens[begin].value[:1].isupper():
        return True
    return (slot.role == "query" and (scene.form.reading or bool(verbs & _SEEKING))) or (
        slot.role == "content" and (bool(verbs & SAYING and not verbs & {"create"}) or "remind" in verbs)
    )


_SAYS = frozenset("diga digan dice dicen says say saying".split())
_ABOUT = frozenset("about sobre acerca regarding matching containing mentioning contengan mencionen coincidan".split())
_PARTICIPLE = re.compile(r"\w{3,}(?:ed|ad[oa]s?|id[oa]s?|ing|ando|iendo)")


def _is_whole(scene: Scene, begin: int, end: int, border: int, slot: Slot, cue: Cue) -> bool:
    """Whether the words up to a border may be all of a text."""
    last = scene.tokens[end - 1]
    if end <= begin or last.plain in _DANGLING or (end - begin > 1 and scene.names[end - 1]):
        return False
    said = scene.tokens[begin:end][:12]
    if scene.tokens[begin - 1].plain != ":" and any(token.shape == "quote" for token in scene.tokens[begin:end][:60]):
        return False  # "almacenes "…"": the quotes say where the text begins
    own = slot.own | frozenset(slot.words)
    if end - begin > 1 and said[0].value[:1].islower() and said[0].means & own and cue not in ("named", "called"):
        return False  # "la búsqueda tarjetas", for what is sought: a word for the slot, then its value
    if all(token.plain in _NO_NAMES or token.shape == "mark" or token.plain in scene.form.told_words for token in said):
        return False
    if any(token.plain in _ABOUT for token in scene.tokens[begin + 1 : end][:60]) and slot.role == "query":
        return False  # then what comes before is something else
    joints = [
        at for at in range(begin, min(end, begin + 60)) if scene.tokens[at].plain in ("and", "y", "e", "then", "luego")
    ]
    if joints and end - joints[-1] > 3 and (border < len(scene.tokens) or slot.role != "content"):
        return False  # "spam and mute the user for …": one thing or two?
    if end - begin > 1 and border < len(scene.tokens) and scene.stops[border] and _PARTICIPLE.fullmatch(last.plain):
        return False  # "climate change published since 2020"
    if cue in ("named", "called"):
        return True
    if any(atom.kind in ("date", "time", "times", "measure") and atom.last >= end for atom in scene.atoms[begin]):
        return False
    if cue:
        return True
    words = scene.tokens[begin:end][:60]
    if any(token.shape in ("email", "phone", "url", "path", "handle", "quote") for token in words):
        return False
    if any(token.plain in _SAYS for token in words):
        return False  # it begins there
    if scene.follows[begin] == "verb" and slot.role == "content" and words[0].plain in DETERMINERS:
        return False  # "post a note …" does not say what it says
    return end - begin > 1 or not is_common(last.plain)


def _strip(tokens: list[Token], begin: int, end: int) -> int:
    while end > begin + 1 and tokens[end - 1].shape == "mark" and not is_sign(tokens[end - 1].value):
        end -= 1
    return end


def _border(scene: Scene, begin: int) -> int:
    """Where a name without capital letters ends: before a preposition, a mark, or what announces another slot."""
    tokens, end = scene.tokens, begin + 1
    while end < len(tokens) and end - begin <= _LONGEST_PLACE:
        token = tokens[end]
        if token.shape != "word" or token.plain in LEAD | TELLING | _EACH or scene.next_stop[end] == end:
            break
        if row_length(tokens, end, CALLED):
            break
        end += 1
    return end


def _ends_address(scene: Scene, index: int) -> bool:
    """Whether a number is followed by nothing, a mark or a preposition: it counts nothing."""
    after = scene.tokens[index + 1] if index + 1 < len(scene.tokens) else None
    return after is None or after.shape == "mark" or after.plain in LEAD


def _is_series(scene: Scene, begin: int) -> bool:
    """Whether a word in capitals and the number after it are one name, and nothing is counted by it: "NGC 7000"."""
    first, after = scene.tokens[begin], scene.tokens[begin + 1]
    return (
        len(first.value) > 1
        and first.value.isupper()
        and not scene.sentence.text.isupper()
        and after.shape == "digits"
        and after.value.isdigit()
        and not scene.stops[begin + 1]
        and _ends_address(scene, begin + 1)
    )


_LOOSE = frozenset("of for de del para".split())
_STREETS = frozenset("street avenue road lane square boulevard calle avenida plaza paseo carretera st ave rd".split())


def _proper_end(scene: Scene, begin: int, longest: int, *, numbers: bool = False) -> int:
    """Where a name with capital letters ends: "Santiago de Compostela", "10 Downing Street"."""
    tokens, end = scene.tokens, begin + 1
    while end < len(tokens) and end - begin < longest:
        token = tokens[end]
        if token.value[:1].isupper() and token.shape in ("word", "code") and not scene.stops[end]:
            end += 1
            continue
        street = tokens[end - 1].means & _STREETS or (end - begin > 1 and tokens[begin].means & _STREETS)
        if end == begin + 1 and _is_series(scene, begin):
            end += 1  # "NGC 7000"
            break
        if (numbers or street) and token.shape == "digits" and token.value.isdigit() and _ends_address(scene, end):
            end += 1  # "Gran Vía 28, Madrid"
            break
        if token.plain not in ("de", "del", "of"):
            break
        after = end + 1 + (end + 1 < len(tokens) and tokens[end + 1].plain in ("la", "los", "las", "the", "el"))
        if after >= len(tokens) or tokens[after].shape != "word" or scene.stops[after]:
            break
        if not tokens[after].value[:1].isupper():
            break
        end = after + 1
    return end
