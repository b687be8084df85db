"""Which of an agent's capabilities a message means, by its words and by what it speaks of: sums, dates, addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from agent3.model import Capability
from agent3.sentences.lexicon import EMPTY, fold, meanings
from agent3.sentences.slots import split_name
from agent3.sentences.tokens import LONGEST, Sentence

__all__ = ["choose_by_topic", "topic_words"]

_CLEARLY, _LEAST_HITS = 1.5, 2
"""How much better than the second the first must fit, and how many words must speak for it: one may be chance."""
_SPEAKS_OF = {
    "sum": ("amount", "currency"),
    "money": ("amount", "currency"),
    "currency": ("currency",),
    "date": ("date",),
    "time": ("time",),
    "times": ("time",),
    "language": ("language",),
}
_SHAPES = {
    "email": ("email",),
    "url": ("url",),
    "path": ("file",),
    "dotted": ("file", "domain"),
    "handle": ("channel",),
}


def choose_by_topic(
    offered: Sequence[Capability],
    message: str,
    now: datetime,
    words_of: Callable[[Capability], Mapping[str, float]] | None = None,
) -> Capability | None:
    """The capability that a message fits clearly best; None where two fit alike, or none does.

    ``words_of`` gives what ``topic_words`` made of a capability, for callers that keep it.
    """
    sentence = Sentence(message[:LONGEST], now)
    said = {fold(token.value) for token in sentence.tokens if token.shape == "word"} - EMPTY
    said |= {word for atom in sentence.atoms for word in _SPEAKS_OF.get(atom.kind, ())}
    said |= {word for token in sentence.tokens for word in _SHAPES.get(token.shape, ())}
    told = [(words_of or topic_words)(capability) for capability in offered]
    spread = Counter(meaning for words in told for meaning in words)
    scores = [
        sum(max((weights[m] / spread[m] for m in meanings(word) if m in weights), default=0.0) for word in said)
        for weights in told
    ]
    ranked = sorted(range(len(offered)), key=lambda index: -scores[index])
    if not ranked or sum(bool(meanings(word) & told[ranked[0]].keys()) for word in said) < _LEAST_HITS:
        return None
    if len(ranked) > 1 and scores[ranked[0]] < _CLEARLY * scores[ranked[1]]:
        return None
    return offered[ranked[0]]


def topic_words(capability: Capability) -> dict[str, float]:
    """What a capability says of itself, by meaning: its name counts most."""
    weights: dict[str, float] = {}
    properties = capability.input_schema.get("properties")
    names = " ".join(properties) if isinstance(properties, dict) else ""
    texts = [
        (3.0, " ".join(split_name(f"{capability.name} {capability.title or ''}"))),
        (1.0, f"{capability.description[:1_000]} {' '.join(capability.tags)} {' '.join(capability.phrases[:20])}"),
        (1.0, " ".join(split_name(names[:1_000]))),
    ]
    for weight, text in texts:
        for word in re.findall(r"[^\W_]+", fold(text)):
            if word not in EMPTY:
                for meaning in meanings(word):
                    weights[meaning] = max(weight, weights.get(meaning, 0.0))
    return weights
