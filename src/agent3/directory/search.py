"""The index: what agents say of their capabilities, found by words.

BM25F over one document per capability, in immutable segments with a small buffer for what is new. Putting or removing
an agent costs what that agent weighs, however large the catalogue is. ``rank`` only reads, and may run in a thread
while another one writes; ``plan``, ``build`` and ``swap`` keep the segments few.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from agent3.arrays import NDArray, np
from agent3.directory.documents import Document, documents_of
from agent3.directory.names import NameList, Names, fold
from agent3.directory.queries import Query, read_query
from agent3.directory.segments import LARGEST, Buffer, Postings, Segment, Vocabulary, merge, seal
from agent3.model import Agent

__all__ = ["Index", "Match", "Ranking", "rank_agents"]

_BUFFERED = 512
"""Documents in the buffer: it is read by loops in Python, which is quick for so many."""
_TOGETHER = 4
"""Segments of like size that become one."""
_SMALL = 1_024
"""Below it all segments are of like size."""
_FEWEST = 300
"""Documents of which a small catalogue is taken to be a part: that one of ten tools has a word makes it no rare one."""
_STEPS = (0.8, 0.6, 0.45, 0.3, 0.15, 0.0)
"""Shares of the best score by which a ranking is cut: most readers never get past the first."""
_PORTION = 256
"""Documents that are sorted together."""


class Match(NamedTuple):
    """A capability that fits, and how well, from 0 to 1, an exact name. ``capability`` is None for a bare agent."""

    agent: str
    capability: str | None
    score: float
    fit: float = 1.0
    """The same by the words alone, where the exact name of an agent names all its capabilities."""


class Ranking:
    """What was found, the best first. Only what is read is sorted; equal scores are ordered by name."""

    def __init__(self, query: Query, scored: _Scored):
        self.query = query
        self.best = scored.best
        """The best score as BM25F gave it: what is compared between queries."""
        self.scores = scored.scores
        self._scored = scored
        self._read: list[Match] = []
        self._unread = scored.sort()

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the documents that have these scores."""
        return self._scored.numbers

    def with_scores(self, scores: NDArray[np.float32]) -> Ranking:
        """The same documents by other scores."""
        return Ranking(self.query, self._scored.with_scores(scores))

    def top(self, most: int) -> list[int]:
        """Numbers of the documents with the best scores, in no order."""
        rows = np.flatnonzero(self.scores)
        if len(rows) > most:
            rows = rows[np.argpartition(self.scores[rows], len(rows) - most)[-most:]]
        return list(self.numbers[rows].tolist())

    def __iter__(self) -> Iterator[Match]:
        """All of it. What was read once, perhaps in a thread, is not sorted again."""
        yield from self._read
        for match in self._unread:
            self._read.append(match)
            yield match


class _Scored:
    """Documents with their scores. A ranking has one and reads from it; it knows nothing of the ranking, since a circle
    of the two would keep a megabyte for each search until the garbage collector comes by.
    """

    def __init__(
        self,
        parts: Sequence[NDArray[np.int64]],
        scores: NDArray[np.float32],
        exact: Sequence[int],
        document: Callable[[int], tuple[str, str | None] | None],
    ):
        self.scores = scores
        self.best = float(scores.max()) if len(scores) else 0.0
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))
        self._exact = exact
        self._document = document

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Of all of them: made when it is asked for, since a few are all that most searches want to know."""
        return np.concatenate(self._parts)

    def with_scores(self, scores: NDArray[np.float32]) -> _Scored:
        return _Scored(self._parts, scores, self._exact, self._document)

    def sort(self) -> Iterator[Match]:
        """The best first."""
        exact = frozenset(self._exact)
        if exact:
            rows = np.flatnonzero(np.isin(self.numbers, np.fromiter(exact, np.int64, len(exact))))
            for match, score in self._sort(rows, frozenset()):
                yield match._replace(score=1.0, fit=round(score / self.best, 4) if self.best > 0 else 1.0)
        for rows in self._portions():
            for match, score in self._sort(rows, exact):
                yield match._replace(score=round(0.99 * score / self.best, 4), fit=round(score / self.best, 4))

    def _portions(self) -> Iterator[NDArray[np.intp]]:
        above = math.inf
        for share in _STEPS if self.best > 0 else ():
            cut = max(self.best * share, 1e-6)
            rows = np.flatnonzero((self.scores >= cut) & (self.scores < above))
            above = cut
            while len(rows) > _PORTION:
                order = np.argpartition(self.scores[rows], len(rows) - _PORTION)
                yield rows[order[-_PORTION:]]
                rows = rows[order[:-_PORTION]]
            yield rows

    def _sort(self, rows: NDArray[np.intp], without: frozenset[int]) -> list[tuple[Match, float]]:
        found = []
        for row, score in zip(rows.tolist(), self.scores[rows].tolist(), strict=True):
            at = bisect_right(self._ends, row)
            number = int(self._parts[at][row - self._ends[at]])  # counted from the end of its part
            document = self._document(number)
            if document is not None and number not in without:  # else it was removed since it was scored
                found.append((Match(*document, 0.0), score))
        return sorted(found, key=lambda pair: (-pair[1], pair[0].agent, pair[0].capability or ""))


class Index:
    """An index over agents. One thread writes (put, remove, swap); any may rank."""

    def __init__(self, agents: Mapping[str, Agent] | None = None):
        self._next = 0
        # In one attribute, so that a reader in another thread never sees a document twice or not at all.
        self._state: tuple[tuple[Segment, ...], Buffer, Vocabulary] = ((), Buffer(), Vocabulary())
        self._agents: dict[str, _Entry] = {}
        self._count = 0
        self._names = Names()
        # Agents by the numbers of their first documents, which ascend; those that are gone are left out now and then.
        self._owners: tuple[list[int], list[str]] = ([], [])
        for agent in (agents or {}).values():
            self.put(agent, documents_of(agent))

    def __len__(self) -> int:
        """How many capabilities there are, with bare agents counted as one."""
        return self._count

    @property
    def agents(self) -> int:
        """How many agents there are."""
        return len(self._agents)

    # Writing

    def put(self, agent: Agent, documents: Iterable[Document], names: NameList | None = None) -> None:
        """Take an agent in, or a new state of it; ``documents_of`` makes its documents, in any thread. ``names`` are
        those of its capabilities, where somebody has them in that form.
        """
        self.remove(agent.id)
        segments, buffer, vocabulary = self._state
        start, capabilities = self._next, list[str | None]()
        firsts, owners = self._owners
        owners.append(agent.id)  # before its number: a reader in another thread finds both or neither
        firsts.append(start)
        for document in documents:
            capabilities.append(document.capability)
            buffer.add(self._next, document.gains, vocabulary)
            self._next += 1
            if len(buffer) >= _BUFFERED:
                segments, buffer, _ = self._state = (*segments, seal(buffer)), Buffer(), vocabulary
        if names is None or [*names] != capabilities:
            names = NameList([name for name in capabilities if name is not None])
        entry = _Entry(start, len(capabilities), names, fold(agent.name))
        self._agents[agent.id] = entry
        self._names.put(agent.id, entry.title, names)
        self._count += entry.size
        if len(firsts) > 2 * len(self._agents) + _BUFFERED:
            left = sorted((entry.start, agent_id) for agent_id, entry in self._agents.items())
            self._owners = [first for first, _ in left], [owner for _, owner in left]

    def remove(self, agent_id: str) -> None:
        """Forget an agent, if it is there."""
        entry = self._agents.pop(agent_id, None)
        if entry is None:
            return
        self._names.remove(agent_id, entry.title)
        self._count -= entry.size
        segments, buffer, _ = self._state
        parts: tuple[Postings, ...] = (buffer, *segments)
        for number in entry.numbers:
            any(part.remove(number) for part in parts)

    def numbers_of(self, agent_id: str) -> Sequence[int]:
        """The numbers of an agent's documents, in the order of its capabilities; they change with every ``put``."""
        entry = self._agents.get(agent_id)
        return () if entry is None else entry.numbers

    def having(self, capability: str) -> list[str]:
        """The agents that have a capability of this name, however it is spelled in large and small letters."""
        name = fold(capability)
        found = ((agent_id, self._agents.get(agent_id)) for agent_id in self._names.having(name))
        return sorted(agent_id for agent_id, entry in found if entry and name in map(fold, entry.names))

    def _document(self, number: int) -> tuple[str, str | None] | None:
        """The agent and capability of a document; None where it is gone."""
        firsts, owners = self._owners
        owner = owners[bisect_right(firsts, number) - 1]
        entry = self._agents.get(owner)
        if entry is None or number not in entry.numbers:
            return None
        return owner, entry.names[number - entry.start] if entry.names else None

    # Keeping the segments few

    def plan(self) -> tuple[Segment, ...]:
        """Segments that should become one now; none where all is well."""
        tiers: dict[int, list[Segment]] = {}
        for segment in self._state[0]:
            if segment.gone * 2 > len(segment):
                return (segment,)
            tiers.setdefault(int(math.log(max(_left(segment), _SMALL), _TOGETHER)), []).append(segment)
        for _, alike in sorted(tiers.items()):
            alike.sort(key=_left)
            sizes = accumulate(map(_left, alike))
            fitting = tuple(segment for segment, size in zip(alike, sizes, strict=True) if size <= LARGEST)
            if len(alike) >= _TOGETHER and len(fitting) > 1:
                return fitting
        return ()

    @staticmethod
    def build(plan: Sequence[Segment]) -> Segment | None:
        """The one segment, or None where nothing is left. Takes long for many documents: run it in a thread."""
        left = [segment for segment in plan if segment.gone < len(segment)]
        return merge(left) if left else None

    def swap(self, plan: Sequence[Segment], built: Segment | None) -> None:
        """Put the built segment in the place of what it was made of, with what was removed meanwhile."""
        segments, buffer, vocabulary = self._state
        kept = [segment for segment in segments if all(segment is not old for old in plan)]
        if built is not None:
            gone = np.concatenate([old.numbers[old.alive == 0] for old in plan])
            rows = np.flatnonzero(np.isin(built.numbers, gone))
            built.alive[rows] = 0
            built.gone = len(rows)
            kept.append(built)
        vocabulary.exchange(plan, built)
        shrunk = vocabulary.shrink(kept, buffer)
        vocabulary, kept, buffer = shrunk or (vocabulary, kept, buffer)
        self._state = tuple(kept), buffer, vocabulary

    # Reading

    def rank(self, text: str) -> Ranking:
        """What fits a text. Grows with how common its words are, a few milliseconds for 100,000 documents."""
        segments, buffer, vocabulary = self._state
        parts: tuple[Postings, ...] = (*segments, buffer)
        sizes = [len(part) for part in parts]
        total = sum(sizes)
        query = read_query(text, vocabulary)
        concepts = _weigh_concepts(query, vocabulary, max(total, _FEWEST))
        scores = np.zeros(total, np.float32)
        begun = 0
        for part, size in zip(parts, sizes, strict=True):
            part.score(concepts, scores[begun : begun + size])
            begun += size
        found: set[int] = set()
        for agent_id, capability in self._names.find(text):
            entry = self._agents.get(agent_id)
            if entry is not None:
                several = zip(entry.numbers, entry.names or (None,), strict=True)
                found.update(number for number, name in several if capability in (None, name and fold(name)))
        numbers = [np.asarray(part.numbers[:size], np.int64) for part, size in zip(parts, sizes, strict=True)]
        return Ranking(query, _Scored(numbers, scores, sorted(found), self._document))

    def search(self, text: str) -> list[tuple[str, float]]:
        """Ids of agents with scores from 0 to 1, the best first: by its best capability and a little of the others."""
        return rank_agents(self.rank(text))


def _left(segment: Segment) -> int:
    return len(segment) - segment.gone


def _weigh_concepts(query: Query, terms: Vocabulary, total: int) -> list[dict[int, float]]:
    """For each word of a query: the numbers of its terms, weighted by how rare they are.

    No addition is rarer than the word that it stands for. Else a word that many have would be outdone by some synonym
    that happens to stand in one document.
    """
    concepts: dict[str, dict[str, float]] = {}
    for term, weight in query.weights.items():
        concepts.setdefault(query.words[term], {})[term] = weight
    for concept in concepts.values():
        counts = {term: terms.count(term) for term in concept}
        rarity = {term: math.log(1 + (max(total - count, 0) + 0.5) / (count + 0.5)) for term, count in counts.items()}
        most = max(concept.values())
        common = min(rarity[term] for term, weight in concept.items() if weight == most)
        for term in concept:
            concept[term] *= min(rarity[term], common)
    found = ({terms.find(term): worth for term, worth in concept.items()} for concept in concepts.values())
    return [{term: worth for term, worth in concept.items() if term is not None} for concept in found]


class _Entry(NamedTuple):
    """What the index knows of an agent: the number of its first document, and what each of them is of."""

    start: int
    size: int
    names: NameList
    """Of its capabilities; of an agent without any there is one document all the same."""
    title: str

    @property
    def numbers(self) -> range:
        return range(self.start, self.start + self.size)


def rank_agents(matches: Iterable[Match]) -> list[tuple[str, float]]:
    """Agents by their best capability and the mean of their best three, with scores from 0 to 1."""
    by_agent: dict[str, list[float]] = {}
    for match in matches:
        found = by_agent.setdefault(match.agent, [])
        if len(found) < 3:
            found.append(match.score)
    worth = {agent: found[0] + 0.3 * sum(found) / 3 for agent, found in by_agent.items()}
    best = max(worth.values(), default=1.0)
    ranked = {
        agent: 1.0 if found[0] == 1.0 else round(0.99 * worth[agent] / best, 4) for agent, found in by_agent.items()
    }
    return sorted(ranked.items(), key=lambda pair: (-pair[1], -worth[pair[0]], pair[0]))
