"""Words as search sees them: split, without case and accents, reduced to their stems, and without the words that
every request is made of. What a word means is not known here.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, TypeAlias

import snowballstemmer

__all__ = ["Language", "detect_language", "is_empty", "spell", "stem", "terms"]

Language: TypeAlias = Literal["english", "spanish"]

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ACCENT = re.compile("[\u0300-\u036f]")
_KNOWN = 10_000
"""Words whose terms are kept, in each of two halves."""
_LONGEST = 40
"""Letters of a word that count: what is longer is no word, and would only fill the index."""

# Function words, and what requests are made of: they say that something is wanted, not what.
_ENGLISH = frozenset(
    """
    a about above after again all also am an and any another anybody anyone anything are aren around as ask at away back
    be
    because been before being below between both but by came can cannot could couldn d did didn do does doesn doing
    don done during each either else ever every everything few for from further get gets getting give given gives go
    goes going gonna got had hadn has hasn have haven having hello help helps her here hers herself hey hi him
    himself his how however i if im in into is isn it its itself just know let lets like ll look looking love m make
    makes making may maybe me might mine more most much must my myself need needed needs neither no nobody
    none nor not nothing nowhere now of
    off ok okay on once one only or other our ours ourselves out over own perhaps please provide provides put quite
    rather re really regarding s said same say says see several shall she should shouldn show shows since so some
    somebody someone something soon specific specified still such sure t take takes tell tells than thank thanks
    that the their theirs them themselves then there these they thing things think this those though through thus to
    together too toward towards try trying under until up upon us use used uses using various ve very via wanna want
    wanted wants was wasn way we well were weren what whatever when where whether which while who whom whose why
    will wish with within without won would wouldn wondering yes yet you your yours yourself
    """.split()
)
_SPANISH = frozenset(
    """
    a al algo algun alguna algunas alguno algunos ante antes aqui asi aun aunque ayuda ayudame bajo bien cada como
    con cual cuales cuando cuanto da dame de del desde dime donde dos durante e el ella ellas ellos en entre era
    eres es esa esas ese eso esos esta estaba estan estar estas este esto estos estoy favor fue gracias ha hace
    hacer hacia hasta hay haz hola la las le les lo los mas me mi mis mostrar mucho muestra muestrame muy nada nadie
    necesito ni no nos nosotros nuestra nuestro o os otra otro para pero poco podria podrias por porque puede puedes
    puedo que quien quiero quisiera se sea ser si sin sobre solo son soy su sus tal tambien te tener tengo ti tiene
    tienen todo todos tu tus un una unas uno unos usa usando usar usted ver y ya yo
    """.split()
)
_ONLY_SPANISH = _SPANISH - _ENGLISH - frozenset("a no me e o y la sea son solo ser tal era un te ha das".split())


class _Stemmers(threading.local):
    """Those of one thread: a stemmer keeps the word that it is at in itself."""

    def __init__(self) -> None:
        self.of = {language: snowballstemmer.stemmer(language) for language in ("english", "spanish")}


_stemmers = _Stemmers()


def _plain(text: str) -> str:
    if text.isascii():
        return text.lower()
    return _ACCENT.sub("", unicodedata.normalize("NFKD", text)).casefold()


def spell(text: str) -> list[str]:
    """The words of a text as they are written, split at humps and underscores, without case and accents."""
    return [word[:_LONGEST] for word in _WORD.findall(_plain(_CAMEL.sub(" ", text)))]


def detect_language(text: str) -> Language:
    """Spanish where a text has more words that only Spanish has than English function words; else English."""
    said = spell(text)
    spanish = sum(word in _ONLY_SPANISH for word in said) + 2 * ("¿" in text or "¡" in text or "ñ" in text.lower())
    return "spanish" if spanish > sum(word in _ENGLISH and word not in _SPANISH for word in said) else "english"


@lru_cache(maxsize=2_000)
def stem(word: str, language: Language = "english") -> str:
    """The Snowball stem of a word that is spelled as ``spell`` does."""
    return str(_stemmers.of[language].stemWord(word))


def is_empty(word: str, language: Language) -> bool:
    """Whether a word says nothing of what a text is about."""
    return word in _ENGLISH or (language == "spanish" and word in _SPANISH)


def terms(text: str, language: Language = "english") -> Iterator[str]:
    """What a text is indexed by: the stems of its words, in their order, without the empty ones."""
    known = _known[language].new
    for word in spell(text):
        if term := known.get(word) or _term(word, language):
            yield term


class _Known:
    """The terms of the words of one language: of those that were met lately, in two halves, the older of which goes at
    once when the newer is full. An ``lru_cache`` would keep a tuple, a link and a text of its own for each word.
    """

    def __init__(self) -> None:
        self.new: dict[str, str] = {}
        self.old: dict[str, str] = {}

    def keep(self, word: str, term: str) -> str:
        if len(self.new) >= _KNOWN:
            self.new, self.old = {}, self.new
        self.new[word] = term
        return term


_known: dict[Language, _Known] = {"english": _Known(), "spanish": _Known()}


def _term(word: str, language: Language) -> str:
    known = _known[language]
    term = known.new.get(word)
    if term is not None:
        return term
    term = known.old.get(word)
    if term is None:
        term = "" if is_empty(word, language) else str(_stemmers.of[language].stemWord(word))
        term = word if term == word else term  # one text in place of two
    return known.keep(word, term)
