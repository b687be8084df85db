"""A sentence as a list of clauses: what to do, to what, with which quoted texts.

English, with the usual verbs in Spanish. It only reads words: ``matching`` finds what they name on a page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Clause", "Target", "Verb", "is_restricted", "parse_ordinal", "parse_sentence", "parse_target"]

Verb = Literal["click", "open", "select", "uncheck", "type", "search", "submit", "scroll", "wait", ""]

_VERBS: dict[Verb, str] = {
    "click": "click|press|hit|push|tap|haz clic|hacer clic|pulsa|pulsar|presiona|presionar",
    "open": "open|go|find|locate|abre|abrir|encuentra",
    "select": "select|choose|pick|check|mark|tick|selecciona|seleccionar|elige|elegir|marca|marcar",
    "uncheck": "uncheck|unselect|deselect|untick|desmarca|desmarcar",
    "type": "type|enter|write|input|fill|set|put|use|introduce|escribe|escribir|pon|rellena",
    "search": "search|busca|buscar",
    "submit": "submit",
    "scroll": "scroll|desplaza",
    "wait": "wait|espera",
}
_CANONICAL: dict[str, Verb] = {word: verb for verb, words in _VERBS.items() for word in words.split("|")}
_ANY_VERB = "|".join(sorted(_CANONICAL, key=len, reverse=True)).replace(" ", r"\s+")
_QUOTE = re.compile(r"\"([^\"]*)\"|“([^”]*)”|«([^»]*)»|(?<!\w)'([^']*)'(?!\w)")
# A quoted text is held as its number between two control characters, so that no pattern looks into it.
_TOKEN = re.compile(r"\x02(\d+)\x03")
_CONTROL = str.maketrans("", "", "\x02\x03")
# Between clauses: the end of a sentence, "then", or "and" and a comma before a verb.
_SPLIT = re.compile(
    rf"[.;]\s+|,?\s*\b(?:and\s+)?then\b,?\s*|,?\s+\b(?:and|y)\b\s+(?=(?:{_ANY_VERB})\b)|,\s+(?=(?:{_ANY_VERB})\b)",
    re.IGNORECASE,
)
_LEAD = re.compile(
    rf"(?:(?:please|por favor,?|now|i (?:need|want)(?: you)? to)\s+)*(?P<verb>{_ANY_VERB})\b\s*", re.IGNORECASE
)
# What forbids something or sets a condition. "Not now" and "No" are the names of buttons.
_RESTRICTED = re.compile(
    r"^(?:(?:please|por favor,?)\s+)?no\s|\bnot\b(?! now\b)|n['\u2019]t\b"
    r"|\b(?:dont|never|avoid|unless|except|if|when|whenever|until)\b"
    r"|\b(?:pero no|nunca|jam[aá]s|excepto|salvo|si|cuando|hasta que|a menos que)\b",
    re.IGNORECASE,
)
_ORDINALS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "last": -1, "primer": 1, "primero": 1, "primera": 1, "segundo": 2, "segunda": 2, "tercer": 3,
    "tercero": 3, "tercera": 3, "último": -1, "última": -1, "ultimo": -1, "ultima": -1,
}  # fmt: skip
_ORDINAL = re.compile(rf"\b(?:(\d+)(?:st|nd|rd|th)|({'|'.join(_ORDINALS)}))\b", re.IGNORECASE)
_ROLES = tuple(
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), role)
    for pattern, role in (
        (r"check ?box(?:es)?|casillas?", "checkbox"),
        (r"radio(?: ?buttons?)?", "radio"),
        (r"(?:text|input|search) (?:fields?|box(?:es)?)|text ?(?:box|area)(?:es|s)?|fields?|campos?", "textbox"),
        (r"buttons?|bot[oó]n(?:es)?", "button"),
        (r"links?|enlaces?", "link"),
        (r"tabs?|pestañas?", "tab"),
        (r"icons?|iconos?", "icon"),
        (r"items?|options?|opci[oó]n", "item"),
    )
)
_LEADING = re.compile(r"^(?:(?:on|in|to|the|a|an|el|la|los|las|un|una|en)(?:\s+|$))+", re.IGNORECASE)
_ARTICLES = re.compile(r"\b(?:on|the|a|an|that|which|called|named|labell?ed|el|la|los|las|un|una|en)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing to do. ``rest`` is what follows the verb, with a token for each quoted text; ``text`` is all of it."""

    verb: Verb
    text: str
    rest: str
    quotes: tuple[str, ...] = ()

    @property
    def is_restricted(self) -> bool:
        """Whether it forbids something or sets a condition, outside of what it quotes."""
        return _RESTRICTED.search(_QUOTE.sub(" ", self.text).strip()) is not None

    def restore(self, words: str) -> str:
        """Words of ``rest`` with the quoted texts in place of their tokens."""
        return _TOKEN.sub(lambda match: self.quotes[int(match[1])], words)

    def is_quoted(self, words: str) -> bool:
        """Whether the words are one quoted text and nothing else."""
        return _TOKEN.fullmatch(words) is not None

    def has_quotes(self, words: str) -> bool:
        return _TOKEN.search(words) is not None


@dataclass(frozen=True, slots=True)
class Target:
    """The element that a clause speaks of: its name, its kind, and which one of several (from 1, or -1 for the last).

    ``exact`` is the clause word for word: an element that is called so is meant, whatever the words may mean.
    """

    name: str
    role: str = ""
    ordinal: int | None = None
    exact: str = ""


def parse_sentence(sentence: str) -> list[Clause]:
    """The clauses of a sentence. Quoted texts are never split."""
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        held.append(next(text for text in match.groups() if text is not None))
        return f"\x02{len(held) - 1}\x03"

    clauses = []
    for part in _SPLIT.split(_QUOTE.sub(hold, sentence.translate(_CONTROL).strip())):
        words = part.strip(" ,;").removesuffix(".")
        if not words.strip(" .,;"):
            continue
        plain, *others = _TOKEN.split(words)  # text, then number and text by turns
        quotes = tuple(held[int(number)] for number in others[::2])
        words = plain + "".join(f"\x02{number}\x03{text}" for number, text in enumerate(others[1::2]))
        text = plain + "".join(f'"{quote}"{text}' for quote, text in zip(quotes, others[1::2], strict=True))
        lead = _LEAD.match(words)
        verb: Verb = _CANONICAL[" ".join(lead["verb"].lower().split())] if lead else ""
        clauses.append(Clause(verb, text, words[lead.end() :] if lead else words, quotes))
    return clauses


def is_restricted(sentence: str) -> bool:
    """Whether a sentence forbids something or sets a condition: then nothing of it may be done."""
    return any(clause.is_restricted for clause in parse_sentence(sentence))


def parse_ordinal(text: str) -> int | None:
    """Which one in a row: from 1, or -1 for the last."""
    match = _ORDINAL.search(text)
    if match is None:
        return None
    return int(match[1]) if match[1] else _ORDINALS[match[2].lower()]


def parse_target(clause: Clause, words: str) -> Target | None:
    """The element that words of a clause speak of; None if a quoted name leaves other words unexplained."""
    role = next((role for pattern, role in _ROLES if pattern.search(words)), "")
    ordinal = parse_ordinal(words)
    left = _ORDINAL.sub(" ", words)
    for pattern, name in _ROLES:
        left = pattern.sub(" ", left) if name == role else left
    left = " ".join(left.split())
    if clause.has_quotes(words):
        # Words beside a quoted name say which one, or under which condition: to ignore them would be a guess.
        if not clause.is_quoted(_ARTICLES.sub(" ", left).strip(" ,:")):
            return None
        name = clause.restore(_ARTICLES.sub(" ", left).strip(" ,:"))
        return Target(name, role, ordinal, name)
    return Target(_LEADING.sub("", left).strip(" .,:"), role, ordinal, _LEADING.sub("", words).strip(" ."))
