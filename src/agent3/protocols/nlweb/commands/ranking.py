"""How well the actions of an interface fit a command, by words: BM25, and how much of an example phrase was said.

BM25 alone only orders; the share of a phrase that was said makes the score absolute, so that a threshold on it means
the same for every interface.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent3.definitions import NLWebInterface
from agent3.sentences.lexicon import to_concepts

__all__ = ["WordIndex", "action_texts", "as_words"]

_K1, _B = 1.2, 0.5
_SLOT = re.compile(r"\{\w+\}")
_UNKNOWN = 0.6
"""What a word weighs in a command that no action knows: it is often the name of something."""
_SWALLOWED = 0.3
"""What remains of that weight if a free text takes the word up."""


def as_words(name: str) -> str:
    """The name of an action or parameter as words."""
    return re.sub(r"[_\-.]+|(?<=[a-z])(?=[A-Z])", " ", name).strip().lower()


def action_texts(interface: NLWebInterface, action: str) -> list[str]:
    """What an action says of itself: its name, its phrases without their slots, its description."""
    info = interface.info.get(action)
    phrases = [_SLOT.sub(" ", phrase) for phrase in info.phrases] if info else []
    return [as_words(action), *phrases, *([info.description] if info and info.description else [])]


@dataclass(frozen=True, slots=True)
class _Document:
    texts: tuple[frozenset[str], ...]
    counts: Mapping[str, int]
    length: int


class WordIndex:
    """The words of all actions of one interface."""

    def __init__(self, interface: NLWebInterface):
        self._documents = {name: _read_document(tuple(action_texts(interface, name))) for name in interface.actions}
        self._mean = sum(document.length for document in self._documents.values()) / max(1, len(self._documents))
        self._spread = Counter(word for document in self._documents.values() for word in document.counts)
        self._rarities: dict[str, float] = {}

    def vocabulary(self, action: str) -> frozenset[str]:
        """The words that belong to an action and are hence no values of its parameters."""
        return frozenset(self._documents[action].counts)

    def score(self, action: str, said: Sequence[str], values: Iterable[str] = (), loose: Iterable[str] = ()) -> float:
        """Between 0 and 1, for the concepts of a command.

        Those of the values found in it are not held against it, those of a ``loose`` value only in part: anything can
        be swallowed by a free text.
        """
        document = self._documents[action]
        found = frozenset(said)
        strange = found - self._spread.keys()
        named = found - (frozenset(values) & strange)
        swallowed = frozenset(loose) & strange & named
        weight = self._weigh(named) - (1 - _SWALLOWED) * self._weigh(swallowed)
        # How much of a text was said, and how much of what was said is in the text.
        share = 0.0
        for text in document.texts:
            if met := self._weigh(text & found):
                share = max(share, 0.6 * met / self._weigh(text) + 0.4 * met / max(met, weight))
        # BM25, of the most that the words could have brought.
        norm = _K1 * (1 - _B + _B * document.length / self._mean)
        got = sum(
            self._rarity(word) * count * (_K1 + 1) / (count + norm)
            for word in named
            if (count := document.counts.get(word, 0))
        )
        most = weight * (_K1 + 1)
        bm25 = min(1.0, 1.4 * got / most) if most else 0.0
        return min(1.0, 0.6 * share + 0.4 * bm25)

    def _weigh(self, found: Iterable[str]) -> float:
        return sum(self._rarity(word) for word in found)

    def _rarity(self, word: str) -> float:
        rarity = self._rarities.get(word)
        if rarity is None:
            known = self._spread.get(word, 0)
            rarity = 0.4 + math.log(1 + (len(self._documents) - known + 0.5) / (known + 0.5)) if known else _UNKNOWN
            self._rarities[word] = rarity
        return rarity


# An index is made for every sentence, since interfaces may change; the texts of actions hardly ever do.
@lru_cache(maxsize=4096)
def _read_document(texts: tuple[str, ...]) -> _Document:
    read = [to_concepts(text) for text in texts]
    counts = Counter(word for concepts in read for word in concepts)
    counts.update(read[0])  # the name counts twice
    return _Document(tuple(frozenset(concepts) for concepts in read if concepts), counts, sum(counts.values()))
