"""A sentence as a list of clauses: what to do, to what, with which quoted texts.

English; the verbs of Spanish are known too. It reads words only: what a clause is about on a page, the skills find out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Clause", "Target", "bare", "clauses", "ordinal_of", "target_of"]

_VERBS = {
    "click": "click press hit push tap clicking pulsa pulsar haz presiona presionar submit accept agree confirm login",
    "select": "select choose pick check mark tick selecciona seleccionar elige elegir marca marcar toggle",
    "uncheck": "uncheck unselect deselect untick desmarca",
    "type": "enter type write input fill set put introduce escribe escribir pon rellena give make",
    "expand": "expand open unfold collapse abre abrir despliega",
    "close": "close dismiss cierra cerrar",
    "scroll": "scroll desplaza",
    "focus": "focus enfoca",
    "copy": "copy copia copiar",
    "paste": "paste pega pegar",
    "drag": "drag move arrastra mueve",
    "wait": "wait espera",
    "find": "find locate navigate switch go look encuentra",
    "search": "search buscar busca",
    "use": "use using playing",
    "hover": "hover keep",
    "highlight": "highlight resalta",
    "sort": "sort ordena",
    "delete": "delete remove trash erase elimina borra",
    "star": "star flag favorite",
    "reply": "reply respond answer responde",
    "forward": "forward send reenvia envia",
    "buy": "buy book order purchase compra reserva pide",
    "solve": "solve calculate compute resuelve",
    "guess": "guess adivina",
    "generate": "generate genera",
    "create": "create add draw crea",
    "resize": "resize",
    "count": "count how",
}
_CANON = {word: verb for verb, line in _VERBS.items() for word in line.split()}
_V = "|".join(sorted(_CANON, key=len, reverse=True))
_QUOTE = re.compile(r"\"([^\"]*)\"|“([^”]*)”|(?<![\w])'([^']*)'(?!\w)")

_HELD = re.compile(r"⟦(\d+)⟧")
_SPLIT = re.compile(
    rf"(?:[.;]\s+|,?\s*\band then\b\s*|,?\s*\bthen\b,?\s*|,?\s+\band\b\s+(?=(?:{_V})\b)|,\s+(?=(?:to\s+)?(?:{_V})\b)"
    rf"|\s+(?=(?:hit|press|click)\s+(?:on\s+)?(?:the\s+)?(?:submit|login|search)\b)|,?\s+y\s+(?=(?:{_V})\b))",
    re.IGNORECASE,
)
_LEAD = re.compile(
    rf"^(?:please\s+|to\s+|now\s+|and\s+|then\s+|i (?:need|want)(?: you)? to\s+)*(?P<verb>{_V})\b\s*", re.IGNORECASE
)
_ORDINALS = {
    "first": 1,
    "second": 2,
    "third": 3,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
    "last": -1,
    "primer": 1,
    "primero": 1,
    "primera": 1,
    "segundo": 2,
    "segunda": 2,
    "tercer": 3,
    "tercero": 3,
    "tercera": 3,
    "ultimo": -1,
    "última": -1,
    "último": -1,
}
_ORDINAL = re.compile(rf"\b(?:(\d+)(?:st|nd|rd|th)|({'|'.join(_ORDINALS)}))\b", re.IGNORECASE)
_ROLES = (
    (r"check ?box(?:es)?|casillas?", "checkbox"),
    (r"radio(?: ?buttons?)?", "radio"),
    (r"text ?areas?", "textarea"),
    (
        r"(?:text|input|search) (?:fields?|inputs?|box(?:es)?|textbox(?:es)?)|text ?box(?:es)?|fields?|inputs?|campos?",
        "textbox",
    ),
    (r"drop ?downs?|scroll list|list(?: ?box)?|lista|menu list", "list"),
    (r"sliders?", "slider"),
    (r"spinners?", "spinner"),
    (r"buttons?|bot[oó]n", "button"),
    (r"links?|enlaces?", "link"),
    (r"tabs?|pestañas?", "tab"),
    (r"icons?|iconos?", "icon"),
    (r"menus?|menú", "menu"),
    (r"dialog(?: box)?|popup|modal|di[aá]logo", "dialog"),
    (r"search results?|results?|resultados?", "result"),
    (r"sections?|secci[oó]n", "section"),
    (r"paragraphs?|p[aá]rrafos?", "paragraph"),
    (r"folders?(?: or files?)?|files?|carpetas?", "node"),
    (r"items?|options?|opci[oó]n", "item"),
    (r"widgets?", "widget"),
)
_FILLER = re.compile(
    r"\b(?:the|a|an|on|in|into|at|of|to|with|from|by|as|below|above|following|labell?ed|named|called|that|which|is|are"
    r"|your|it|and|for|el|la|los|las|un|una|en|con|de)\b|[,.:!?]+(?=\s|$)",
    re.IGNORECASE,
)


def bare(text: str) -> str:
    """A text without what is quoted in it."""
    return _QUOTE.sub(" ", text).strip()


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing to do. ``text`` is all of it, ``rest`` what follows the verb; ``quotes`` stand in order."""

    verb: str
    word: str
    text: str
    rest: str
    quotes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """What a clause speaks of: a name, a kind of element, a place in a row."""

    name: str
    role: str = ""
    ordinal: int | None = None
    quoted: bool = False


def clauses(sentence: str) -> list[Clause]:
    """The clauses of a sentence; quoted texts are never split."""
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        held.append(next(one for one in match.groups() if one is not None))
        return f"⟦{len(held) - 1}⟧"

    plain = _QUOTE.sub(hold, sentence.strip())
    parts = [part.strip(" ,;") for part in _SPLIT.split(plain)]
    return [_clause(part.removesuffix("."), held) for part in parts if part.strip(" .,;")]


def _clause(part: str, held: list[str]) -> Clause:
    quotes = tuple(held[int(number)] for number in _HELD.findall(part))
    restored = _HELD.sub(lambda match: f'"{held[int(match[1])]}"', part)
    lead = _LEAD.match(part)
    if lead is None:
        return Clause("", "", restored, restored, quotes)
    word = lead["verb"].lower()
    rest = _HELD.sub(lambda match: f'"{held[int(match[1])]}"', part[lead.end() :])
    return Clause(_CANON[word], word, restored, rest, quotes)


def ordinal_of(text: str) -> int | None:
    """Which one in a row: from 1, or -1 for the last."""
    match = _ORDINAL.search(text)
    if match is None:
        return None
    return int(match[1]) if match[1] else _ORDINALS[match[2].lower()]


def target_of(text: str, quotes: tuple[str, ...] = ()) -> Target:
    """What the words after a verb speak of."""
    bare = _QUOTE.sub(" ", text)
    role = next((role for pattern, role in _ROLES if re.search(rf"\b(?:{pattern})\b", bare, re.IGNORECASE)), "")
    ordinal = ordinal_of(bare)
    if quotes:
        return Target(quotes[0], role, ordinal, True)
    name = _ORDINAL.sub(" ", bare)
    pattern = next((pattern for pattern, one in _ROLES if one == role), None)
    if pattern:
        name = re.sub(rf"\b(?:{pattern})\b", " ", name, flags=re.IGNORECASE)
    return Target(re.sub(r"\s+", " ", _FILLER.sub(" ", name)).strip(), role, ordinal)
