"""A command as it is compared with actions: read once, however many actions there are.

Example phrases are patterns: ``flights from {origin} to {destination}`` fits what people say in that form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from agent3.sentences.lexicon import fold, fold_letters, to_concept, to_concepts
from agent3.sentences.spans import Span, find_spans
from agent3.sentences.word_forms import words

__all__ = ["Command", "match_phrase"]

_WORD = re.compile(r"\w+")
_COURTESY = re.compile(
    r"^(?:(?:please|hey|hi|hello|hola|por favor|can you|could you|i want to|i need to|i'd like to|quiero|necesito"
    r"|me gustaria|puedes|podrias)[,\s]+)+|[,\s]*(?:please|por favor|thanks|thank you|gracias)?[\s.!?]*$"
)


@dataclass(frozen=True, slots=True)
class Command:
    """A sentence and what can be said of it without an action. All positions are those of ``text``."""

    text: str
    plain: str
    spans: list[Span]
    concepts: list[str]
    words: list[tuple[int, int, str]]
    """Start, end and concept of each word."""
    core: tuple[int, int]
    """Where the sentence stands without its courtesies."""

    @classmethod
    def read(cls, text: str, now: datetime) -> Command:
        """Read a sentence; days are counted from ``now``."""
        plain = fold_letters(text)
        found = [
            (match.start(), match.end(), to_concept(word))
            for match in _WORD.finditer(plain)
            for word in words(match[0])[:1]
        ]
        polite = [match.span() for match in _COURTESY.finditer(plain)]
        start = polite[0][1] if polite and polite[0][0] == 0 and polite[0][1] < len(plain) else 0
        end = polite[-1][0] if polite and polite[-1][1] == len(plain) else len(plain)
        return cls(text, plain, find_spans(text, now), to_concepts(text), found, (start, max(start, end)))


_SLOT = re.compile(r"\{([A-Za-z_]\w*)\}")
_BLANK = re.compile(r"\s+")


def match_phrase(command: Command, phrase: str) -> Mapping[str, str] | None:
    """The texts that stand for the phrase's slots if the whole command has its form; None if it has not."""
    start, end = command.core
    found = _compile(phrase).fullmatch(command.plain[start:end])
    if found is None:
        return None
    return {
        name: command.text[start + found.start(name) : start + found.end(name)].strip() for name in found.groupdict()
    }


@lru_cache(maxsize=4096)
def _compile(phrase: str) -> re.Pattern[str]:
    # Texts and names of slots by turns. Of two slots with one name the second is read as any text.
    texts_and_names = _SLOT.split(phrase)
    parts: list[str] = []
    seen: set[str] = set()
    for text, name in zip(texts_and_names[::2], [*texts_and_names[1::2], None], strict=True):
        parts.append(_BLANK.sub(r"\\s+", re.escape(fold(text)).replace(r"\ ", " ")))
        if name is not None:
            parts.append(rf"[\"'“«]?(?P<{name}>.+?)[\"'”»]?" if name not in seen else r".+?")
            seen.add(name)
    return re.compile("".join(parts))
