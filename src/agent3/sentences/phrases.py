"""The phrases that a capability gives of itself, as forms of a sentence: "flights from {origin} to {destination}".

What stands for a placeholder is read by the type of its parameter. A phrase without placeholders says that the
capability is meant, and nothing of its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from agent3.model import Capability
from agent3.sentences.lexicon import fold, fold_letters

__all__ = ["match_phrases"]

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_COURTESY = re.compile(
    r"(?:(?:please|hey|hi|hello|hola|por favor|can you|could you|i want to|i need to|i'd like to|quiero|necesito"
    r"|me gustaria|puedes|podrias)[,\s]+)+"
)
_OPENING, _CLOSING = "\"'“«", "\"'”»"


def match_phrases(capability: Capability, message: str) -> Iterator[Mapping[str, str]]:
    """The texts for the placeholders of each phrase that a whole message has the form of.

    Those with the most text of their own come first.
    """
    plain = fold_letters(message)
    lead = _COURTESY.match(plain)
    start = lead.end() if lead is not None and lead.end() < len(plain) else 0
    phrases = [capability.name, capability.name.replace("_", " "), *capability.phrases]
    for phrase in sorted(phrases, key=lambda phrase: -len(_PLACEHOLDER.sub("", phrase))):
        if (found := _match(phrase, plain, start)) is not None:
            yield {name: message[begin:stop].strip() for name, (begin, stop) in found.items()}


def _match(phrase: str, plain: str, start: int) -> dict[str, tuple[int, int]] | None:
    """Where the texts of the placeholders stand, each as short as can be.

    Of what is written between two placeholders the first place is taken. A later one would only leave less for the
    rest, so nothing is ever tried twice: a phrase is a stranger's, and one pattern for all of it would be tried in
    ways without end.
    """
    literals, names = _compile(phrase)
    first = literals[0].match(plain, start)
    if first is None:
        return None
    found: dict[str, tuple[int, int]] = {}
    at = first.end()
    for name, literal in zip(names, literals[1:], strict=True):
        after = literal.search(plain, at + 1)
        if after is None or after.start() <= at or "\n" in plain[at : after.start()]:
            return None
        begin, stop = at, after.start()
        begin += stop - begin > 1 and plain[begin] in _OPENING
        stop -= stop - begin > 1 and plain[stop - 1] in _CLOSING
        found.setdefault(name, (begin, stop))
        at = after.end()
    return found


@lru_cache(maxsize=4096)
def _compile(phrase: str) -> tuple[tuple[re.Pattern[str], ...], tuple[str, ...]]:
    """What is written between the placeholders of a phrase, the last to the end, and their names."""
    parts = _PLACEHOLDER.split(phrase)
    # Spaces begin where a run of them does: searched from each of its places, a long one would take its square.
    patterns = [r"(?<!\s)\s+".join(map(re.escape, re.split(r"\s+", fold(text)))) for text in parts[::2]]
    patterns[-1] += r"\Z"
    return tuple(map(re.compile, patterns)), tuple(parts[1::2])
