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
    r"^(?:(?:please|hey|hi|hello|hola|por favor|can you|could you|i want to|i need to|i'd like to|quiero|necesito"
    r"|me gustaria|puedes|podrias)[,\s]+)+|[,\s]*(?:please|por favor|thanks|thank you|gracias)?[\s.!?]*$"
)


def match_phrases(capability: Capability, message: str) -> Iterator[Mapping[str, str]]:
    """The texts for the placeholders of each phrase that a whole message has the form of.

    Those with the most text of their own come first.
    """
    plain = fold_letters(message)
    polite = [match.span() for match in _COURTESY.finditer(plain)]
    start = polite[0][1] if polite and polite[0][0] == 0 and polite[0][1] < len(plain) else 0
    end = polite[-1][0] if polite and polite[-1][1] == len(plain) else len(plain)
    phrases = [capability.name, capability.name.replace("_", " "), *capability.phrases]
    for phrase in sorted(phrases, key=lambda phrase: -len(_PLACEHOLDER.sub("", phrase))):
        if (found := _compile(phrase).fullmatch(plain, start, max(start, end))) is not None:
            yield {name: message[found.start(name) : found.end(name)].strip() for name in found.groupdict()}


@lru_cache(maxsize=4096)
def _compile(phrase: str) -> re.Pattern[str]:
    # Texts and names of placeholders by turns. Of two with one name the second is read as any text.
    parts: list[str] = []
    seen: set[str] = set()
    for number, text in enumerate(_PLACEHOLDER.split(phrase)):
        if number % 2 == 0:
            parts.append(r"\s+".join(map(re.escape, re.split(r"\s+", fold(text)))))
        else:
            parts.append(rf"[\"'“«]?(?P<{text}>.+?)[\"'”»]?" if text not in seen else ".+?")
            seen.add(text)
    return re.compile("".join(parts))
