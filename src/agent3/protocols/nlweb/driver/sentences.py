"""A sentence as clauses, each with a verb and what it speaks of, and the ways to read a description of a control.

English, with the usual verbs in Spanish. It only reads words: ``plans`` finds what they name on a page.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from agent3.sentences.lexicon import fold, is_action
from agent3.sentences.prohibitions import find_prohibition, leaves_open

__all__ = [
    "ROLES",
    "Clause",
    "Target",
    "Verb",
    "is_hedged",
    "parse_sentence",
    "quote_names",
    "read_targets",
    "strip_article",
]

Verb = Literal["press", "choose", "clear", "write", "use", "add", "search", "submit", "upload", ""]

_VERBS: dict[Verb, str] = {
    "press": "click|press|hit|push|tap|open|go to|haz clic|hacer clic|pulsa|pulsar|presiona|presionar|abre|abrir|ve a",
    "choose": "select|choose|pick|check|mark|tick|turn on|switch on|enable|selecciona|seleccionar|elige|elegir|marca"
    "|marcar|activa|activar|enciende|encender",
    "clear": "uncheck|unselect|deselect|untick|turn off|switch off|disable|desmarca|desmarcar|desactiva|desactivar"
    "|apaga|apagar",
    "write": "type|enter|write|input|fill in|fill|set|put|introduce|escribe|escribir|pon|poner|rellena",
    "use": "use|usa|usar|utiliza",
    "add": "add|añade|añadir|agrega",
    "search": "search|find|busca|buscar|encuentra",
    "submit": "submit|envía|envia",
    "upload": "upload|attach|sube|subir|adjunta|adjuntar",
}
_CANONICAL: dict[str, Verb] = {word: verb for verb, words in _VERBS.items() for word in words.split("|")}
_ANY_VERB = "|".join(sorted(_CANONICAL, key=len, reverse=True)).replace(" ", r"\s+")
_QUOTE = re.compile(r"\"([^\"]*)\"|“([^”]*)”|«([^»]*)»|(?<!\w)'([^']*)'(?!\w)")
# A quoted text is held as its number between two control characters, so that no pattern looks into it.
_TOKEN = re.compile(r"\x02(\d+)\x03")
# What would be read as something else in the name of a control: a second part, a question, a condition, a prohibition.
_MISREAD = re.compile(
    rf"\?$|[,;.]\s|\b(?:and|y|e|then|luego|despu[eé]s|{_ANY_VERB})\b",
    re.IGNORECASE,
)
_MOST_NAMES = 200
_BEFORE_NAME = r"(?:(?:on|the|my|en|el|la|los|las|mi)\s+)*$"
_USED = re.compile(
    rf"\b(?<!not )(?<!n['\u2019]t )(?<!no )(?<!never )(?<!nunca )(?:{_ANY_VERB})\s+{_BEFORE_NAME}", re.IGNORECASE
)
_PLACED = re.compile(
    rf"\b(?:into|in|as|to|of|for|from|en|como|a|de|del|para)\s+(?:(?:row|line|card|section|fila|tarjeta)\s+(?:of|de)\s+)?{_BEFORE_NAME}",
    re.IGNORECASE,
)
_LISTED = re.compile(
    rf"^\W*(?:{_VERBS['choose']}|{_VERBS['clear']})\b(?!.*\b(?:{_VERBS['press']}|{_VERBS['write']})\b).*"
    rf"(?:,|\b(?:and|y))\s+{_BEFORE_NAME}",
    re.IGNORECASE,
)
_CONTROL = str.maketrans("", "", "\x02\x03\x04\x05")
# Between clauses: the end of a sentence, "then", or "and" and a comma before a verb.
_SPLIT = re.compile(
    rf"(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bSt)(?<!\bSr)(?<!\bSra)(?<!\bDra)[.;]\s+"
    rf"|,?\s*\b(?:(?:and|y)\s+)?(?:then|luego|después)\b,?\s*|,?\s+\b(?:and|y)\b\s+(?=(?:{_ANY_VERB})\b)"
    rf"|,\s+(?=(?:{_ANY_VERB})\b)",
    re.IGNORECASE,
)
_LEAD = re.compile(
    rf"(?:(?:please|por favor,?|now|i (?:need|want)(?: you)? to|quiero)\s+)*(?P<verb>{_ANY_VERB})\b\s*", re.IGNORECASE
)
# What makes a request of a sentence, and says nothing of what is requested.
_COURTESY = re.compile(
    r"^[¿¡\s]*(?:(?:hi|hello|hey|ok|okay|please|hola|oye|por favor)[,!]?\s+)*"
    r"(?:(?:can|could|would|will) you\s+(?:please\s+)?"
    r"|(?:i|we)(?:['\u2019]d| would) (?:like|love)\s+(?:you )?(?:to\s+)?|(?:i|we) (?:want|need)\s+(?:you )?(?:to\s+)?"
    r"|(?:me |nos )?(?:puedes|podr[ií]as|puede|podr[ií]a)\s+|(?:quiero|quisiera|necesito|me gustar[ií]a)\s+)?",
    re.IGNORECASE,
)
# "Turn the lamp off": what it does to the lamp stands at the end.
_AROUND = re.compile(r"^(turn|switch)\s+(?!(?:on|off)\b)(.+?)\s+(on|off)$", re.IGNORECASE)
# "El modo oscuro (Dark mode)": the name as the page has it, after it was said in other words.
_GLOSS = re.compile(r"\b(?:the|my|el|la|los|las|mi|esta|este)\s+[^,()\x02\x03]*?\s*\((\x02\d+\x03)\)", re.IGNORECASE)
_GLOSS_TEXT = re.compile(r"\((?=\w)([^()\"\x02]{2,80})\)")
# The same without those words.
_BARE_GLOSS = re.compile(
    r"(?:(?<=^)|(?<=\b(?:a|y)\s)|(?<=\b(?:to|in|on|of|as|de|en|al)\s)|(?<=\b(?:for|and|del|con)\s))\((\x02\d+\x03)\)"
)
_NAMED = re.compile(r"[(\x04]\x02(\d+)\x03[)\x05]")
_AGAIN = re.compile(r"(?:on|en)\s+(?=\S)", re.IGNORECASE)
_TAIL = re.compile(r"[,\s]*\b(?:please|pls|por favor|porfa|thanks|thank you|gracias)[\s.!]*$", re.IGNORECASE)
_ORDINALS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "last": -1, "primer": 1, "primero": 1, "primera": 1, "segundo": 2, "segunda": 2, "tercer": 3,
    "tercero": 3, "tercera": 3, "último": -1, "última": -1, "ultimo": -1, "ultima": -1,
}  # fmt: skip
_ORDINAL = re.compile(rf"^(?:(\d+)(?:st|nd|rd|th|º|ª)|({'|'.join(_ORDINALS)}))\b\s*", re.IGNORECASE)
_FIELDS = ("textbox", "searchbox", "combobox", "spinbutton")
ROLES: dict[str, tuple[str, ...]] = {
    r"check ?box(?:es)?|casillas?": ("checkbox", "switch"),
    r"radio(?: ?buttons?)?": ("radio",),
    r"switch|interruptor": ("switch", "checkbox"),
    r"(?:text|input|search) (?:fields?|box(?:es)?)|text ?(?:box|area)|fields?|box|campos?": _FIELDS,
    r"(?:menu )?(?:button|bot[oó]n)": ("button",),
    r"links?|enlaces?": ("link",),
    r"tabs?|pestañas?": ("tab",),
    r"icons?|iconos?": ("button", "link"),
    r"(?:menu )?items?|options?|opci[oó]n|elemento": ("option", "menuitem", "menuitemradio", "menuitemcheckbox"),
    r"slider|deslizador": ("slider",),
    r"spinner": ("spinbutton",),
    r"drop-?\s?down(?: list)?|lista?|menu|select": ("list", "combobox"),
}
"""Words for kinds of controls, and the roles that they may have."""
_ROLE_BEFORE = [
    (re.compile(rf"^(?:{words})(?:\s+(?:called|named|labell?ed|with the name|llamad[oa]))?\s+", re.IGNORECASE), roles)
    for words, roles in ROLES.items()
]
_ROLE_AFTER = [(re.compile(rf"(?:^|\s+)(?:{words})$", re.IGNORECASE), roles) for words, roles in ROLES.items()]
_ARTICLE = re.compile(
    r"^(?:(?:on|the|a|an|my|your|its|el|la|los|las|un|una|mi|tu|su|en)(?:\s+|$))+(?=\S|$)", re.IGNORECASE
)
_ON = re.compile(r"^(?:on|en)\s+", re.IGNORECASE)
_FILE_NAME = re.compile(r"\w\.[a-z]\w{0,7}(?![\w.])", re.IGNORECASE)
_PLACE = re.compile(
    r"\s+(?:next to|beside|for|of|in|on|from|under|inside|within|junto a|para|de|del|en|dentro de)\s+", re.IGNORECASE
)
_CONTAINER = (
    r"row|line|entry|card|item|section|form|dialog|window|table|list|menu|page|group|drop-?\s?down(?: list)?"
    r"|fila|tarjeta|secci[oó]n|formulario|di[aá]logo|tabla|lista|p[aá]gina|grupo"
)
_CONTAINER_BEFORE = re.compile(rf"^(?:{_CONTAINER})(?:\s+(?:of|for|called|named|with|de|con))?(?:\s+|$)", re.IGNORECASE)
_CONTAINER_AFTER = re.compile(rf"\s+(?:{_CONTAINER})$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing to do. ``rest`` is what follows the verb, with a token for each quoted text; ``text`` is all of it.

    ``names`` are the numbers of the quoted texts that stood in brackets: what something is called, never a value.
    """

    verb: Verb
    text: str
    rest: str
    quotes: tuple[str, ...] = ()
    names: frozenset[int] = frozenset()

    def restore(self, words: str) -> str | None:
        """What words of ``rest`` name: one quoted text, or words without any; None if they are neither."""
        words = words.strip(" ,.:")
        if (only := _TOKEN.fullmatch(words)) is not None:
            return self.quotes[int(only[1])]
        return None if _TOKEN.search(words) else words

    def restore_value(self, words: str) -> str | None:
        """The same for a text that is to be written or looked for; None if it stood in brackets."""
        only = _TOKEN.fullmatch(words.strip(" ,.:"))
        return None if only is not None and int(only[1]) in self.names else self.restore(words)

    def is_quoted(self, words: str) -> bool:
        return _TOKEN.fullmatch(words.strip(" ,.:")) is not None


@dataclass(frozen=True, slots=True)
class Target:
    """A control as a clause describes it: its name, its roles, which one of several (from 1, or -1), and where."""

    name: str = ""
    roles: tuple[str, ...] = ()
    ordinal: int | None = None
    place: str = ""


def quote_names(sentence: str, names: Iterable[str]) -> str:
    """The sentence with names in quotes that would not be read as names: "Terms and returns", "Lost your key?".

    A name that forbids something ("Do not disturb") is one only after a verb that uses it.
    """
    plain = sentence.lower()
    said = sorted({name for name in names if " " in name and name.lower() in plain}, key=len, reverse=True)
    said = said[:_MOST_NAMES]  # of a page that knows the sentence
    forbidding = {name for name in said if find_prohibition(name) is not None}
    said = [name for name in said if name in forbidding or _MISREAD.search(name)]
    while (quoted := _quote_one(sentence, said, forbidding)) is not None:
        sentence = quoted
    return sentence


def _quote_one(sentence: str, names: Iterable[str], forbidding: Collection[str]) -> str | None:
    """The sentence with the first of the names in quotes that stands where a name would; None where none does."""
    held = [match.span() for match in _QUOTE.finditer(sentence)]
    for name in names:
        found = [*re.finditer(rf"(?<!\w){re.escape(name)}(?![\w?])", sentence, re.IGNORECASE)]
        before = sentence[: found[0].start()] if len(found) == 1 else ""
        lead = _USED.search(before)
        if lead is None and name not in forbidding:
            lead = _LISTED.search(before) or _PLACED.search(before)
        start, end = found[0].span() if found else (0, 0)
        if lead is not None and not any(start < stop and begin < end for begin, stop in held):
            return f'{sentence[:start]}"{sentence[start:end]}"{sentence[end:]}'
    return None


def parse_sentence(sentence: str) -> list[Clause]:
    """The clauses of a sentence. Quoted texts are never split."""
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        held.append(next(text for text in match.groups() if text is not None))
        return f"\x02{len(held) - 1}\x03"

    clauses: list[Clause] = []
    plain_text = _COURTESY.sub("", _QUOTE.sub(hold, sentence.translate(_CONTROL).strip()))
    for part in _SPLIT.split(_TAIL.sub("", _GLOSS_TEXT.sub(lambda match: f"({hold(match)})", plain_text))):
        # The text keeps the brackets around a name, by which it is told from a value.
        words = _BARE_GLOSS.sub("\x04\\1\x05", _GLOSS.sub("\x04\\1\x05", part.strip(" ,;").removesuffix(".")))
        if not words.strip(" .,;"):
            continue
        plain, *others = _TOKEN.split(words)  # text, then number and text by turns
        quotes = tuple(held[int(number)] for number in others[::2])
        words = plain + "".join(f"\x02{number}\x03{text}" for number, text in enumerate(others[1::2]))
        names = frozenset(int(match[1]) for match in _NAMED.finditer(words))
        text = plain + "".join(f'"{quote}"{text}' for quote, text in zip(quotes, others[1::2], strict=True))
        text = text.replace("\x04", "(").replace("\x05", ")")
        words = _AROUND.sub(r"\1 \3 \2", words.replace("\x04", "").replace("\x05", ""))
        lead = _LEAD.match(words)
        if lead is not None and _CANONICAL.get(lead["verb"].lower()) == "upload" and not _FILE_NAME.search(text):
            lead = None  # "upload the volume" names no file
        verb: Verb = _CANONICAL[" ".join(lead["verb"].lower().split())] if lead else ""
        if lead is None and clauses and clauses[-1].verb == "press" and _AGAIN.match(words):
            verb = "press"  # "click Add and then on Pay"
        elif lead is None and clauses and clauses[-1].quotes and _TOKEN.match(words):
            verb = clauses[-1].verb  # 'choose "A" in X and then "B" in Y'
        clauses.append(Clause(verb, text, words[lead.end() :] if lead else words, quotes, names))
    return clauses


def read_targets(clause: Clause, words: str) -> Iterator[Target]:
    """The ways to read a description, the most literal first: as a name; with a kind; with a number; with a place.

    Every word has its part in each of them, so whichever names something on the page leaves nothing out.
    """
    words = words.strip(" .,:")
    yield from _read_one(clause, words, "")
    for split in reversed([*_PLACE.finditer(words)]):
        place = strip_article(words[split.end() :])
        bare = _CONTAINER_AFTER.sub("", _CONTAINER_BEFORE.sub("", place))
        # "The row of The Hobbit": an article may belong to the name.
        for there in dict.fromkeys((place, strip_article(bare), bare, words[split.end() :].strip(" ,"))):
            if (where := clause.restore(there)) is not None:
                yield from _read_one(clause, words[: split.start()], where)


def _read_one(clause: Clause, words: str, place: str) -> Iterator[Target]:
    bare = strip_article(words)
    numbered = _ORDINAL.match(bare)
    # "My account" and "On sale" are names, whatever their first word may be elsewhere.
    ways: list[tuple[str, int | None]] = [(left, None) for left in dict.fromkeys((words, _ON.sub("", words), bare))]
    if numbered is not None:
        number = int(numbered[1]) if numbered[1] else _ORDINALS[numbered[2].lower()]
        ways.append((bare[numbered.end() :], number))
    for left, ordinal in ways:
        if left and (name := clause.restore(left)):
            yield Target(name, (), ordinal, place)
        for pattern, roles in [*_ROLE_BEFORE, *_ROLE_AFTER]:
            if pattern.search(left) is None:
                continue
            name = clause.restore(strip_article(pattern.sub("", left, count=1)))
            if name is not None:
                yield Target(name, roles, ordinal, place)


def strip_article(words: str) -> str:
    return _ARTICLE.sub("", words.strip(" ,"))


_HEDGED = re.compile(
    r"^\W*(?:i|we|you|he|she|they|it)(?:['\u2019]d| would| might| could| may| should)(?! (?:also |really )?(?:like|love"
    r"|be|prefer|rather|appreciate|want|need|have)\b)|\b(?:just about|nearly|almost)\b",
    re.IGNORECASE,
)
_CONDITIONAL = re.compile(r"^\W*(\w+[aei]r)[ií]a(?:s|mos|n)?\b", re.IGNORECASE)


def is_hedged(text: str) -> bool:
    """Whether a sentence only says what one would do, or does it not quite: "I would delete it", "borraría la nota"."""
    text = re.sub(r"\"[^\"]*\"|“[^”]*”|«[^»]*»", "", text)
    would = _CONDITIONAL.search(text)
    return _HEDGED.search(text) is not None or leaves_open(text) or (would is not None and is_action(fold(would[1])))
