"""Search by words: a small BM25 index over the words of agents about themselves.

Everything is in memory; ten thousand agents take a few milliseconds. An exact name or id always comes first.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping

from agent3.model import Agent

__all__ = ["Index", "words"]

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ACCENT = re.compile("[\u0300-\u036f]")
_K1, _B = 1.2, 0.6
"""The constants of BM25: how soon repetitions stop to count, and how much long texts are discounted."""
_LONGEST = 4_000
"""Characters of a query that are looked at: what a long message is about, it says first."""
_MOST_WORDS = 64
"""Different words of a query that are looked for."""
_COMMON = frozenset("a an and are as at be by for from i in is it me my of on or the to want with you your".split())


def words(text: str) -> list[str]:
    """The words of a text for matching: without case, accents, plural s or camel case."""
    plain = _ACCENT.sub("", unicodedata.normalize("NFKD", _CAMEL.sub(" ", text))).casefold()
    return [_stem(word) for word in _WORD.findall(plain)]


def _stem(word: str) -> str:
    for ending, least in (("ies", 5), ("ing", 6), ("es", 5), ("s", 4)):
        if len(word) >= least and word.endswith(ending) and not word.endswith("ss"):
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word


class Index:
    """An immutable index over some agents."""

    def __init__(self, agents: Mapping[str, Agent]):
        self._names = {agent_id: _names(agent) for agent_id, agent in agents.items()}
        self._counts = {agent_id: _count_words(agent) for agent_id, agent in agents.items()}
        self._lengths = {agent_id: sum(counts.values()) for agent_id, counts in self._counts.items()}
        self._mean = sum(self._lengths.values()) / len(agents) if agents else 1.0
        self._where: dict[str, list[str]] = defaultdict(list)
        for agent_id, counts in self._counts.items():
            for word in counts:
                self._where[word].append(agent_id)

    def search(self, query: str) -> list[tuple[str, float]]:
        """Ids with scores between 0 and 1, the best first; equal scores by id, so that the order is always the same."""
        asked = [word for word in dict.fromkeys(words(query[:_LONGEST])) if word not in _COMMON][:_MOST_WORDS]
        scores: dict[str, float] = defaultdict(float)
        for word in asked:
            # The word itself, and at a discount the words that begin with it.
            matches = [(word, 1.0)] if word in self._where else []
            if len(word) >= 4:
                matches += [(known, 0.4) for known in self._where if known != word and known.startswith(word)]
            for match, weight in matches:
                found = self._where[match]
                rarity = math.log(1 + (len(self._counts) - len(found) + 0.5) / (len(found) + 0.5))
                for agent_id in found:
                    count = self._counts[agent_id][match]
                    norm = _K1 * (1 - _B + _B * self._lengths[agent_id] / self._mean)
                    scores[agent_id] += weight * rarity * count * (_K1 + 1) / (count + norm)
        best = max(scores.values(), default=1.0)
        ranked = {agent_id: 0.99 * score / best for agent_id, score in scores.items()}
        name = query.strip().lower()
        ranked |= {agent_id: 1.0 for agent_id, names in self._names.items() if name in names}
        return sorted(ranked.items(), key=lambda found: (-found[1], found[0]))


def _names(agent: Agent) -> frozenset[str]:
    return frozenset(
        {agent.id.lower(), agent.name.lower()} | {capability.name.lower() for capability in agent.capabilities}
    )


def _count_words(agent: Agent) -> Counter[str]:
    """How often each word occurs, where a name counts more than prose."""
    texts = [(agent.id, 3), (agent.name, 3), (agent.description, 1), (" ".join(agent.tags), 2)]
    for capability in agent.capabilities:
        texts += [(capability.name, 3), (capability.description, 1)]
        texts += [(" ".join(capability.tags), 2), (" ".join(capability.phrases), 1)]
    counts: Counter[str] = Counter()
    for text, weight in texts:
        for word in words(text):
            counts[word] += weight
    return counts
