"""Where a sentence announces the slots of a form: by their names, by prepositions with the role they mark.

It also tells where a free text may end: before what announces or plainly is the value of another slot. It reads no
values; ``values`` and ``texts`` do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal

from agent3.sentences.lexicon import BROAD, EMPTY, is_action, is_cognate, is_english, meanings
from agent3.sentences.slots import Form, Kind, Role, Slot
from agent3.sentences.tokens import Atom, Sentence, Token

__all__ = [
    "AT_MOST",
    "CALLED",
    "DETERMINERS",
    "LEAD",
    "SAYING",
    "TAIL",
    "TELLING",
    "WRITING_DOWN",
    "Scene",
    "row_at",
    "row_length",
    "rows",
]


_Rows = frozenset[tuple[str, ...]]


def rows(text: str) -> _Rows:
    """Rows of words, written with bars between them."""
    return frozenset(tuple(row.split()) for row in text.split("|"))


DETERMINERS = frozenset(
    "the a an el la los las lo un una unos unas my our your his her their its this that these those mi mis tu tus "
    "su sus nuestro nuestra este esta ese esa some al del".split()
)
LEAD = DETERMINERS | frozenset(
    "with and y e con of de by por as como using at in en on to for para is whose cuyo cuya where which that que has "
    "having into from desde & usando due under bajo".split()
)
"""Words that may stand before the name of a slot: "with the", "y con el"."""
_TRAIL = frozenset(
    "of de is are es son to a al as = : be should called named llamado llamada number numero no id name nombre the "
    "el la los las it lo sera sea equal by at on".split()
)
"""Words that may stand between the name of a slot and its value."""
_TEXT_TRAIL = frozenset("= : is es sera sea that que".split())
CALLED = rows(
    "called|named|titled|llamado|llamada|titulado|titulada|que se llame|se llame|by the name of|con nombre|de nombre"
    "|and call it|call it|y llamala|y llamalo"
)
_CALLING = frozenset("call name title label llama nombra titula".split())
TAIL = rows(
    "please|pls|por favor|porfa|gracias|thanks|thank you|for me|right now|ahora mismo|asap|cuanto antes|at the moment"
    "|en este momento|if possible"
)
"""Courtesies at the end."""

TELLING = frozenset(
    "before after since until between under over above below except excluding without only than more less fewer "
    "least instead antes despues entre excepto sin menos mas solo salvo both either or o ni then luego later first "
    "last by".split()
)
"""Words that change what is meant: they are never passed over, unless the capability is called so."""
SAYING = frozenset("send post notify write reply say".split())
_OPENING = EMPTY | frozenset(
    "please kindly hey hi hello oye hola por favor can could would will you i i'd id we want need like to quiero "
    "necesito quisiera puedes podrias me the a an ok okay so and y now ahora just let's lets go ahead".split()
)
_ASKING = frozenset("find search look busca buscar buscame busco encuentra encuentrame google up".split())
_PASSING = frozenset("me us nos to for de que my mi please algo something some se of about sobre".split())
_TELLS = frozenset(
    "i'm im we're i've we've is are was has have had it's got needs estoy estamos voy vamos tengo tenemos soy somos es "
    "esta estan ha he han hay tiene tienen".split()
)
"""Verbs of sentences that tell something."""
_COPULAS = frozenset("is was are were es fue era son eran".split())
_WHO = frozenset("who what quien quienes que cual".split())
_WHERE = frozenset("in on at from using via en por".split())
_MINE = frozenset("my our mi mis nuestro nuestra".split())
_WORDED = ("name", "id", "place")
_ADDRESSED = -1
"""Among the numbers of slots: the capability itself."""
_RELATIVE = frozenset({"raise", "lower"})
WRITING_DOWN = ("put", "note", "write", "jot", "take")
"""Verbs that with "down" say that something is to be kept."""
AT_MOST = frozenset(
    "limit max maximum most up first top last only next coming proximos proximas siguientes primeros primeras "
    "ultimos ultimas maximo hasta solo under below "
    "within less fewer menos mucho como than maxima until".split()
)
_AT_LEAST = frozenset("least over above more minimum from mas menos minimo since desde after minima".split())
_FIRST_ONES = frozenset("first top primeros primeras primero primera beginning".split())
_LAST_ONES = frozenset("last ultimos ultimas ultimo ultima latest end final".split())
_FROM_HERE = frozenset("from desde starting at skip skipping offset".split())
_BETWEEN = frozenset("of than to at no como mucho a al de in en lo por".split())

_FROM = rows("from|desde|de|del|out of|leaving|leaving from|saliendo de|starting|starting on|starting at|starting from"
             "|a partir de|a partir del|since|between|entre|beginning|beginning on|desde el|desde la|saliendo|departing"
             "|departing from|departing at|leaving at|leaving on|departing on|saliendo el|con salida")  # fmt: skip
_TO = rows("to|into|a|al|hacia|hasta|hasta el|hasta la|until|till|as|como|onto|towards|through|con destino a|ending"
           "|ending on|up to|arriving|arriving at|arriving in|arriving on|llegando|llegando a|returning|returning on"
           "|volviendo|volviendo el|con vuelta|con vuelta el|and back on|back on")  # fmt: skip
_BY = rows("by|de|del|from|por|written by|escrito por|escritos por")
_WHOM = rows("to|for|by|a|al|para|por")
_IN = rows("in|at|on|en|inside|within|dentro de|near|cerca de|around|close to|alrededor de")
_ABOUT = rows(
    "for|about|on|sobre|acerca de|related to|relacionado con|relacionada con|relacionados con|relacionadas con"
    "|regarding|containing|matching|mentioning|that mention|which mention|that mentions|que mencionen|que contengan"
    "|que contenga|que hablen de|que hable de|que traten de|que traten sobre|con|with|of|de|like"
)
_OF_WHAT = rows("about|sobre|acerca de|regarding")
_SAY = rows(
    "know that|know|saber que"
    "|saying|that says|which says|diciendo|que diga|que dice|:|to say|reading|diciendo que|saying that"
    "|que diga :|que diga que|diciendo :|saying :|that says :|containing|that contains|to contain|contains|contain"
    "|que contenga|contenga|conteniendo|contuviera"
)
_THAT = rows("that|que|de que")
"""After a verb of saying."""
_BECAUSE = rows("because|because of|due to|porque|por|debido a|for")
_BECAUSE_IT_IS = _BECAUSE | rows(
    "because it was|because it was a|because it is|because it is a|because it's|because it's a|because they|it was a"
    "|porque es|porque era|porque fue|porque es un|porque era un|porque fue un|as it was|as it was a|since it was a"
    "|porque lo|porque esta|porque estaba"
)
_OF = rows(
    "using|usando|of|for|de|del|para|in|en|on|by|por|at|with|con|to|a|al|under|near"
    "|over|across|along|against|sobre|contra"
)
_ON = rows("on|el|for|para el|para|by|at|due|due on|due by|con fecha de|con fecha|antes del|para las|a las|a la|before")
_SINCE = rows("de|del|from|desde|desde el|a partir de|a partir del|starting|starting on|effective|as of|on or after")
_AMOUNT = rows(
    "to|a|at|for|of|de|al|hasta|con|with|up to|down to|en|un|after|during|durante|within|in|dentro de|por|every|cada"
    "|giving it|give it|and give it|allowing|and wait|waiting|dandole|dale|y dale|esperando"
)
_VIA = rows("by|in|on|as|via|en|con|como|using|with|for|of|de|to|a|al|por|only|just|solo|solamente|unicamente")


class Scene:
    """A sentence beside the form of a capability: what stands where, found once."""

    def __init__(self, sentence: Sentence, form: Form):
        self.sentence = sentence
        self.tokens = sentence.tokens
        self.form = form
        self.slots = form.slots
        self.atoms: list[list[Atom]] = [[] for _ in self.tokens]
        for atom in sentence.atoms:
            self.atoms[atom.first].append(atom)
        self.past_articles: list[int] = [*range(len(self.tokens) + 1)]
        """For each token the first one from it on that is no article."""
        for index in range(len(self.tokens) - 1, -1, -1):
            if self.tokens[index].plain in DETERMINERS:
                self.past_articles[index] = self.past_articles[index + 1]
        self.days = [atom for atom in sentence.atoms if atom.kind == "date"]
        self.clocks = [atom for atom in sentence.atoms if atom.kind in ("time", "times")]
        self.verb = next(
            (n for n, token in enumerate(self.tokens) if token.shape == "word" and token.plain not in _OPENING), 0
        )
        """Where the first word stands that is no courtesy: the verb of a command."""
        self.relative = bool(self.tokens) and any(
            token.means & _RELATIVE for token in self.tokens[self.verb : self.verb + 1]
        )
        down = [token.plain for token in self.tokens[self.verb : self.verb + 6]]
        if not (down[1:2] == ["down"] and down[0] in WRITING_DOWN):
            self.relative = self.relative or any(word in ("up", "down") for word in down[1:])
        """Whether the verb says by how much, not to what: "raise it by 5"."""
        self.english = is_english(sentence.text, self.tokens[self.verb].plain if self.tokens else "")
        """Then "a" is an article, and no preposition."""
        self.preamble = self._find_preamble()
        """Where what somebody tells of themselves ends, before they say what they want: "I'm bored, show me …"."""
        self.closing = self._find_closing()
        """Where the courtesies at the end begin."""
        self.follows = self._find_objects()
        """What stands before a token, but for articles and the like: a word of the capability, and of which sort."""
        self.meant_by_verb: set[int] = set()
        """Slots that are called as the verb is, such as the assignee of "assign": it does not announce them."""
        self.names = [self._names_at(index) for index in range(len(self.tokens))]
        self.inside = [False] * len(self.tokens)
        """Whether a token is part of a date, a time or a quantity that began before it."""
        for atom in sentence.atoms:
            if atom.kind in ("date", "time", "times", "measure", "sum", "datetime"):
                self.inside[atom.first + 1 : atom.last] = [True] * (atom.last - atom.first - 1)
        self.sure: list[set[int]] = [set() for _ in self.tokens]
        """For each token the slots, neither names nor texts, whose value plainly is there."""
        self.stops: list[set[int]] = [set() for _ in self.tokens]
        """For each token the slots that are announced there with a value, or whose value plainly begins there."""
        self.next_stop: list[int] = []
        """For each token the next one at which a text may end."""
        self.link_stops()

    def _find_objects(self) -> list[Literal["verb", "noun", ""]]:
        found: list[Literal["verb", "noun", ""]] = []
        before: Literal["verb", "noun", ""] = ""
        past = 0
        for index, token in enumerate(self.tokens):
            found.append(before)
            if token.plain in DETERMINERS | _PASSING or index < past:
                continue
            if before and self._is_address(index):
                past = self.past_articles[index + 1] + 1  # "search my drive for …"
                continue
            if index == self.verb and token.means & self.form.verbs:
                before = "verb"
            elif self.form.reading and token.plain in _COPULAS and index and self.tokens[index - 1].plain in _WHO:
                before = "verb"  # "who was Ada Lovelace?"
            elif (token.means - BROAD) & self.form.named or token.plain == ":":
                before = "noun"
            else:
                before = "verb" if token.plain in _ASKING and index <= self.verb + 2 else ""
        return found

    def _find_preamble(self) -> int:
        told, end = False, 0
        for index, token in enumerate(self.tokens[:20]):
            if token.shape == "mark" and token.plain in ",;:.!" and told:
                end = index
                break
            told = told or token.plain in _TELLS
        after = end + 1
        while end and after < len(self.tokens) and self.tokens[after].plain in _OPENING:
            after += 1
        if not end or after >= len(self.tokens) or self.tokens[after].shape != "word":
            return 0
        verb = self.tokens[after]
        wanted = verb.means & self.form.verbs or (self.form.reading and is_action(verb.plain))
        return end if wanted and not any(token.means & self.form.verbs for token in self.tokens[:end]) else 0

    def _find_closing(self) -> int:
        end = len(self.tokens)
        while end and self.tokens[end - 1].shape == "mark":
            end -= 1
        for row in TAIL:
            if end >= len(row) and row_at(self.tokens, end - len(row), row):
                return end - len(row)
        return len(self.tokens)

    # Announcements

    def called_length(self, index: int) -> int:
        """How many words here say that a name follows: "called", or "call the screenshot", at the verb."""
        if index == self.verb and self.tokens[index].plain in _CALLING:
            at = self.past_articles[index + 1]
            if (
                at + 1 < len(self.tokens)
                and self.tokens[at + 1].shape == "quote"
                and self.tokens[at].means & self.form.named
            ):
                return at + 1 - index
        return row_length(self.tokens, index, CALLED)

    def named_begins(self, index: int, number: int) -> Iterator[int]:
        """Where a value may begin if the name of the slot stands here, with the words that go with a name."""
        trail = _TEXT_TRAIL if self.slots[number].kind == "text" else _TRAIL
        if (end := self.names[index].get(number)) is None:
            return
        begin = end
        while begin - end < 3 and begin < len(self.tokens) and self.tokens[begin].plain in trail and (
            self.tokens[begin].plain not in DETERMINERS or not self.tokens[begin].value[:1].isupper()
        ):  # fmt: skip
            begin += 1  # but "Las Palmas"
        yield begin if begin < len(self.tokens) else end

    def led_begins(self, index: int, slot: Slot) -> Iterator[tuple[int, bool]]:
        """Where a value may begin after a preposition that stands here, and whether it is of the slot's own role."""
        if index and self.tokens[index].value[:1].isupper() and not self.sentence.text.isupper():
            return  # "to In Progress": it is part of a name
        reason, saying = "reason" in slot.own, bool(self.form.verbs & (SAYING | {"remind"}))
        for several, own in _prepositions(slot.kind, slot.role, reason, saying):
            length = row_length(self.tokens, index, several)
            if length and not (self.english and length == 1 and self.tokens[index].plain == "a"):
                begin = self._skip_noun(index + length, slot)
                # "de" may mean anything: it marks a role before a name or a code only.
                loose = slot.kind in ("name", "id") and self.tokens[index].plain in ("de", "del", "of")
                yield begin, own and not (loose and not self._is_proper(begin))

    def _is_proper(self, index: int) -> bool:
        return index < len(self.tokens) and (
            self.tokens[index].value[:1].isupper() or self.tokens[index].shape not in ("word", "mark")
        )

    def _skip_noun(self, index: int, slot: Slot) -> int:
        """After "from the account" where two slots are accounts: the noun that they share announces neither."""
        after = self.past_articles[index] if index < len(self.tokens) else index
        noun = self.tokens[after] if after < len(self.tokens) - 1 else None
        if noun is None or noun.shape != "word" or noun.value[:1].isupper() or not noun.means & (slot.own | slot.nouns):
            return index
        return after + 1

    def means(self, index: int, row: Sequence[str]) -> bool:
        """Whether these words, or what means the same, stand here."""
        if index + len(row) > len(self.tokens):
            return False
        return all(
            token.shape == "word"
            and (token.plain == word or (word not in EMPTY and bool((token.means & meanings(word)) - BROAD)))
            for token, word in zip(self.tokens[index : index + len(row)], row, strict=True)
        )

    def means_slot(self, index: int, slot: Slot) -> bool:
        """Whether a word of the slot's own name, or what means the same, stands here."""
        return index < len(self.tokens) and bool((self.tokens[index].means - BROAD) & slot.own)

    def is_label(self, index: int, number: int) -> bool:
        """Whether another slot's name stands here with a colon after it, as in a list of "name: value"."""
        return any(
            other != number and end < len(self.tokens) and self.tokens[end].plain in ":="
            for other, end in self.names[index].items()
        )

    def is_noun(self, index: int, number: int) -> bool:
        """Whether only a description has the word that announces the slot here, not its name."""
        return not any(self.means(index, row) for row in self.slots[number].cues)

    def _names_at(self, index: int) -> dict[int, int]:
        """The slots whose names begin here, with where they end. A slot's own word goes before words that mean it."""
        token = self.tokens[index]
        if token.shape != "word":
            return {}
        found: dict[int, int] = {}
        exact: dict[int, int] = {}
        seen: set[tuple[int, tuple[str, ...]]] = set()
        for meaning in (token.means - BROAD) | {token.plain}:
            for number, row in self.form.index.get(meaning, ()):
                if (number, row) in seen or not self.means(index, row):
                    continue
                seen.add((number, row))
                if self.slots[number].kind == "place" and index and token.value[:1].isupper():
                    continue  # "Ciudad de México" is a name
                if index == self.verb and token.means & self.form.verbs and self.slots[number].kind in _WORDED:
                    self.meant_by_verb.add(number)
                    continue  # "assign ENG-12 to Ann": the verb says nothing of who the assignee is
                end = index + len(row)
                found[number] = max(end, found.get(number, 0))
                if row[0] in (token.plain, token.plain.removesuffix("s")):
                    exact[number] = max(end, exact.get(number, 0))
        if not found and not self.english and index > self.verb:
            # "operador" for an operator, where just one slot has such a name.
            alike = [n for n, slot in enumerate(self.slots) if any(is_cognate(token.plain, one) for one in slot.words)]
            found = {alike[0]: index + 1} if len(alike) == 1 and len(self.slots[alike[0]].words) == 1 else {}
        return exact or found

    # Borders

    def link_stops(self) -> None:
        """To be called after ``stops`` has changed."""
        following = [len(self.tokens)] * (len(self.tokens) + 1)
        for index in range(len(self.tokens) - 1, -1, -1):
            following[index] = index if self._may_end(index) else following[index + 1]
        self.next_stop = following

    def _may_end(self, index: int) -> bool:
        token = self.tokens[index]
        if self.stops[index] or (token.shape == "mark" and token.plain in ",;:.!?()…—\u2013"):
            return True
        if row_length(self.tokens, index, TAIL):
            return True
        if self._is_address(index):
            self.stops[index].add(_ADDRESSED)
            return True
        return token.plain in LEAD and index + 1 < len(self.tokens) and bool(self.stops[index + 1])

    def _is_address(self, index: int) -> bool:
        """Whether this speaks of the capability again: where it is to be done, "on Wikipedia", or what to do."""
        after = self.past_articles[index + 1]
        if self.tokens[index].plain in ("as", "como") and after < len(self.tokens):
            return bool((self.tokens[after].means - BROAD) & self.form.verbs)  # "mark … as complete"
        if self.tokens[index].plain not in _WHERE or after >= len(self.tokens):
            return False
        mine = after > index + 1 and self.tokens[after - 1].plain in _MINE
        token = self.tokens[after]
        return token.plain in self.form.told_words and (
            token.value[:1].isupper() or mine or token.plain in self.form.brands
        )

    def bound_end(self, index: int, slot: Slot) -> int | None:
        """Where a number begins after words that say what it bounds: "only the first 20", "menos de", "since"."""
        tokens, begin, led = self.tokens, index, False
        bounds = {"first": _FROM_HERE, "least": _AT_LEAST, "from": _AT_LEAST}.get(slot.role, AT_MOST)
        while begin < len(tokens) and begin - index < 4 and not self.atoms[begin]:
            token = tokens[begin]
            if token.plain in self.form.choices:
                return None  # "below 5", where "below" is to be chosen
            if token.plain in bounds:
                led = True
            elif token.plain not in DETERMINERS | _BETWEEN and not (
                led and slot.role == "first" and token.means & slot.about
            ):
                return None
            begin += 1
        if not led or begin >= len(tokens) or self._is_other_end(tokens[index:begin], slot):
            return None
        return begin if any(atom.kind in ("number", "measure", "sum", "money") for atom in self.atoms[begin]) else None

    def _is_other_end(self, said: Sequence[Token], slot: Slot) -> bool:
        """Whether "the first" or "the last" is said, and the slot is described as that of the other end."""
        words = {token.plain for token in said}
        for own, other in ((_FIRST_ONES, _LAST_ONES), (_LAST_ONES, _FIRST_ONES)):
            if words & own and slot.about & other and not slot.about & own:
                return True
        return False


def row_at(tokens: Sequence[Token], index: int, row: Sequence[str]) -> bool:
    """Whether these words stand here."""
    return len(tokens) - index >= len(row) and all(
        tokens[index + offset].plain == word and tokens[index + offset].shape in ("word", "mark", "code")
        for offset, word in enumerate(row)
    )


def row_length(tokens: Sequence[Token], index: int, several: _Rows) -> int:
    """How long the longest of several rows is that stands here; 0 if none does."""
    fitting = _by_first_word(several).get(tokens[index].plain, ()) if index < len(tokens) else ()
    return next((len(row) for row in fitting if row_at(tokens, index, row)), 0)


@cache
def _by_first_word(several: _Rows) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for row in sorted(several, key=lambda row: (-len(row), row)):
        found.setdefault(row[0], []).append(row)
    return found


@cache
def _prepositions(
    kind: Kind, role: Role, reason: bool, saying: bool
) -> tuple[tuple[frozenset[tuple[str, ...]], bool], ...]:
    """The prepositions before a value of a slot, and whether they mark just its role."""
    found: list[tuple[_Rows, bool]] = []
    match role:
        case "from":
            found.append((_FROM, True))
        case "to":
            found.append((_TO, True))
        case "by":
            found.append((_BY, True))
        case "who":
            found.append((_WHOM, True))
        case "query":
            found.append((_ABOUT, True))
        case "title" if kind == "text":
            found.append((_OF_WHAT, True))
        case "in":
            found.append((_IN, True))
        case "content":
            found.append(((_BECAUSE if reason else _SAY), True))
            if saying:
                found.append((_THAT, True))
    match kind:
        case "place":
            found.append((_IN | rows("of|for|de|del|para|to|a"), role in ("", "place")))
        case "currency" | "language":
            if role != "from":
                found.append((_TO | _IN, True))
        case "zone":
            if role not in ("from", "to"):
                found.append((_IN | _OF, True))
        case "path":
            found.append((_IN | _OF | _TO, role not in ("from", "to")))
        case "email" | "phone" | "url" | "domain":
            found.append((_OF | _IN | _TO, True))
        case "id" | "name" | "text" if role != "content":
            found.append((_OF, False))
        case "number" | "integer" | "duration":
            found.append((_AMOUNT, True))
        case "enum":
            found.append((_VIA | _BECAUSE_IT_IS if reason else _VIA, True))
        case "date" | "datetime" | "time" | "when":
            found.append((_ON, True))
            if role not in ("from", "to"):
                found.append((_SINCE, True))
    return tuple(found)
