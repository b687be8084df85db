"""A query as weighted terms: its words, and what is added to them.

Additions help a word and never replace it: the kinds of things that are in the text (a date, an amount, a file),
words that people use for the same thing, and for a word that nobody uses, those that are spelled almost like it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

from agent3.directory.words import Language, detect_language, is_empty, spell, stem
from agent3.sentences import lexicon

__all__ = ["PAIRS", "Query", "Terms", "read_query"]

_LONGEST = 4_000
"""Characters of a query that are looked at: what a long message is about, it says first."""
_MOST_WORDS = 64
"""Different words of a query that are looked for."""
_KIND, _PAIR, _SYNONYM, _NEIGHBOUR = 0.4, 0.6, 0.5, 0.5
_MOST_NEIGHBOURS = 6
_MOST_CORRECTED = 12
"""Words that nobody uses whose neighbours are looked for: a query with more of them is no misspelt one."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_KINDS = tuple(
    (re.compile(pattern, re.IGNORECASE), kinds.split())
    for pattern, kinds in (
        (r"\b\d{4}-\d\d?-\d\d?\b|\b\d\d?[/.]\d\d?[/.]\d{2,4}\b", "date"),
        (r"\b(?:january|february|march|april|june|july|august|september|october|november|december)\b", "date"),
        (r"\b(?:today|tomorrow|yesterday|monday|tuesday|wednesday|thursday|friday|saturday|sunday)\b", "date"),
        (r"\b(?:hoy|mañana|ayer|lunes|martes|miércoles|jueves|viernes|sábado|domingo)\b", "date fecha"),
        (r"\b\d\d?:\d\d\b|\b\d\d? ?(?:am|pm)\b", "time"),
        (r"[$€£¥] ?\d|(?<![\w.,])[.,]?\d[\d.,]*+ ?(?:usd|eur|gbp|dollars?|euros?|pounds?)\b", "amount currency price"),
        (r"(?<![\w.+-])[\w.+-]++@[\w-]++\.\w+", "email"),
        (r"\bhttps?://|\bwww\.", "url"),
        (r"-?\d{1,3}\.\d{2,}\s*+,\s*+-?\d{1,3}\.\d{2,}", "latitude longitude coordinates location"),
        (
            r"(?:^|\s)[\w.~/-]*/[\w.-]|(?<![\w-])[\w-]++\.(?:txt|pdf|csv|json|xlsx?|docx?|md|py|png|jpe?g|mp[34])\b",
            "file path",
        ),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ip address"),
        (r"#[0-9a-f]{6}\b", "color"),
        (
            r"\bwhat(?:'s| is)? (?:the )?(?:time|date|day)\b|\b(?:right now|currently|ahora)\b|\bqué (?:hora|día)\b",
            "current",
        ),
    )
)

_ARITHMETIC = re.compile(
    r"(?<=\d)(?:\s*(?:[+*\u00d7\u00f7^]|times|plus|minus|divided by|multiplied by|por|más|menos|entre)\s*"
    r"|\s+[-/]\s+)(?=\d)"
    r"|(?<=\d) ?(?:%|percent|por ciento) (?:of|de)\b",
    re.IGNORECASE,
)
"""What stands between numbers: the "times" of "3 times 4" asks for no clock. 2026-07-28 and 24/7 are no sums."""

_BESIDE = ("date", "time", "amount")
"""Kinds that a request has beside what it is about: "who won yesterday" is about no capability that takes a date."""

# Words that people use for the same thing. Both find each other; several on a line all do.
_SAME = """
repo repository | photo image picture | folder directory | rain weather | snow weather | sunny weather | buy
purchase | movie film | car vehicle | doctor physician | flat apartment | job work career | song music track |
lyrics song | mail email | meeting event appointment | delete remove | create add new | edit update modify | change
update | find search | lookup search | fetch retrieve | reserve book | reservation booking | trip travel | flight
airline | hotel accommodation sleep | railway train | hungry eat food | vacation holiday trip | restaurant food |
recipe cook | stock share | crypto cryptocurrency | bitcoin cryptocurrency | money currency | convert exchange |
translate language | translation language | dictionary definition | meaning definition | synonym word | news article
headline | headline news | paper article | author writer | tv television | game play | score result | match game |
team club | player athlete | football soccer | draw image | resize image | screenshot image | video clip | youtube
video | tweet twitter | post message | chat message | text message sms | call phone | phone telephone | contact
person | people person | user account | login sign | password credential | pay payment | bill invoice | cost price |
cheap price | rate price | discount coupon | deal offer | order purchase | shop store | product item | shipping
delivery | package parcel | track status | address location | place location | map location | near nearby | distance
route | directions route | drive route | city location | town city | country nation | zip postal | timezone time |
clock time | hour time | calendar schedule | remind reminder | todo task | task issue | bug issue | ticket issue |
commit git | branch git | code source | run execute | script code | database sql | query sql | table database | row
record | column field | log logs trace | error exception | server host | site website | webpage website page | page
url | link url | browse web | website web | download file | upload file | document file | pdf document | spreadsheet
excel | sheet spreadsheet | slide presentation | summary summarize | shorten summarize | sentiment emotion | feel
emotion | random generate | compute calculate | math calculate | sum add | average mean | graph chart | plot chart |
diagram chart | temperature weather | forecast weather | climate weather | health medical | illness disease | sick
disease | drug medicine | medication medicine | fitness exercise | workout exercise | calories nutrition | diet
nutrition | pet animal | dog animal | cat animal | house property | home property | rent property | loan mortgage |
tax income | salary income | university college | school education | course class | lesson course | student learner
| exam test | quiz question | joke humor | funny humor | quote saying | review rating | horoscope zodiac | moon
astronomy | planet astronomy | earthquake disaster | air pollution | cloud storage | container docker | age birthday
| due deadline | begin start | end stop | halt stop | launch start | copy duplicate | rename name | send transfer |
publish post | share send | write save | store save | send post | history log | screenshot capture | big size |
large size | high elevation | height elevation | altitude elevation | remember memory | forget memory | knowledge
memory | restaurant place | cafe place | visit navigate | open navigate | undo revert | difference diff | compare diff
"""


def _pairs() -> dict[str, frozenset[str]]:
    same: dict[str, set[str]] = {}
    for group in _SAME.split("|"):
        members = [stem(word) for word in group.split()]
        for member in members:
            same.setdefault(member, set()).update(other for other in members if other != member)
    return {member: frozenset(others) for member, others in same.items()}


PAIRS: Mapping[str, frozenset[str]] = _pairs()


class Query(NamedTuple):
    """The terms to look for with their weights, and the words of the query behind each."""

    weights: Mapping[str, float]
    words: Mapping[str, str]


class Terms(Protocol):
    """The terms of all documents."""

    def count(self, term: str) -> int:
        """How many documents hold a term."""
        ...

    def starting_with(self, start: str) -> list[str]:
        """Some terms that begin so."""
        ...

    def among(self, candidates: set[str]) -> set[str]:
        """Those of the candidates that are terms: one question for hundreds."""
        ...


def read_query(text: str, terms: Terms) -> Query:
    """What to look for, given what there is."""
    text = text[:_LONGEST]
    language: Language = "spanish" if lexicon.detect_language(text) == "es" else detect_language(text)
    plain, sums = _ARITHMETIC.subn(" ", text)
    counts = Counter(word for word in spell(plain) if not is_empty(word, language))
    weights: dict[str, float] = {}
    said: dict[str, str] = {}

    def add(term: str, weight: float, word: str) -> None:
        if weight > weights.get(term, 0.0):
            weights[term] = weight
            said[term] = word

    additions: list[tuple[str, float, str]] = []
    corrected = 0
    for word, count in list(counts.items())[:_MOST_WORDS]:
        worth = 1.5 * count / (count + 0.5)
        known = [term for term in _direct(word, language, terms) if terms.count(term)]
        for term in known:
            add(term, worth, word)
        if not known and corrected < _MOST_CORRECTED:
            corrected += 1
            additions += [(near, _NEIGHBOUR * worth, word) for near in _neighbours(word, terms)]
        additions += [(other, _PAIR * worth, word) for other in PAIRS.get(stem(word), ())]
        additions += [(other, _SYNONYM * worth, word) for other in _synonyms(word, language)]
    additions += [(stem(kind), 1.0, "calculation") for kind in ("calculate", "arithmetic", "math") if sums]
    is_about = bool(weights) or any(terms.count(term) for term, _, _ in additions)
    for pattern, kinds in _KINDS:
        if (is_about or kinds[0] not in _BESIDE) and (found := pattern.search(text)):
            additions += [(stem(kind), _KIND, found[0].strip()[:40]) for kind in kinds]
    for term, weight, word in additions:
        if terms.count(term):
            add(term, weight, word)
    return Query(weights, said)


def _direct(word: str, language: Language, terms: Terms) -> Iterable[str]:
    """The terms that are the word itself. Of a Spanish one also what it is in English, where most cards are written."""
    if language == "spanish":
        return {stem(word, language), *(stem(meaning) for meaning in lexicon.meanings(word))}
    # Short queries hide their language, so that both are tried.
    return (stem(word),) if terms.count(stem(word)) else (stem(word, "spanish"),)


@lru_cache(maxsize=2_000)
def _synonyms(word: str, language: Language) -> frozenset[str]:
    """The terms of words that mean the same to a tool."""
    root = stem(word)
    forms = {form for form in lexicon.base_forms(word) if language == "spanish" or stem(form) == root}
    return frozenset(stem(other) for form in forms for other in lexicon.synonyms(form)) - {root}


def _neighbours(word: str, terms: Terms) -> list[str]:
    """Known terms that go on where the word ends, or are one letter away from it; the most used first."""
    if len(word) < 4 or word.isdigit():
        return []
    root = stem(word)
    near = {term for start in {word, root} if len(start) >= 4 for term in terms.starting_with(start)}
    near |= terms.among({term for form in {root, word} for term in _one_edit(form)})
    near |= terms.among(set(map(stem, near)))
    return sorted(near, key=lambda term: (-terms.count(term), term))[:_MOST_NEIGHBOURS]


def _one_edit(word: str) -> Iterator[str]:
    """Every text that is one letter left out, added, changed or swapped away; the first letter is mostly right."""
    for at in range(1, len(word)):
        head, tail = word[:at], word[at:]
        yield head + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
        for letter in _LETTERS:
            yield head + letter + tail
            yield head + letter + tail[1:]
    for letter in _LETTERS:
        yield word + letter
    yield word[1:]
