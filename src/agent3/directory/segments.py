"""Postings: which documents hold a term, and what it is worth in each.

A ``Buffer`` takes what is new, one document at a time. A ``Segment`` never changes except for its mask of what is
alive: numpy arrays over sorted terms, with gains in half precision. Both know a term by the number that the one
``Vocabulary`` of their index gave it. Buffers are sealed into segments and segments merged by ``seal`` and ``merge``,
which are made for a thread of their own: they are Python loops and calls that release the interpreter, never one long
call that holds it, and they pause after every slice. Nothing here knows what a document is; it has a number.
"""

from __future__ import annotations

import ctypes
import sys
import time
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise, takewhile
from typing import Any, TypeAlias

from agent3.arrays import NDArray, np

__all__ = [
    "LARGEST",
    "Buffer",
    "Postings",
    "Segment",
    "Vocabulary",
    "keep_memory_together",
    "merge",
    "paced",
    "release_memory",
    "seal",
]

Postings: TypeAlias = "Buffer | Segment"
_DENSE = 6
"""A term that more than one of so many documents hold gets a row with a byte for every document."""
_DENSE_FROM = 2_000
"""Documents from which such rows are worth having, in the place of others."""
LARGEST = 32_768
"""Documents of the largest segment: a row has two bytes, and the scores of all stay in the cache of a core."""
_MOST_PREFIXED = 400
_BLOCK = 512
_FEWEST_SHRUNK = 10_000
"""Terms that no document holds that are kept at least."""
_STEP = 2.5 / 255
"""What one step of such a byte is worth: gains are below 2.2."""
_MERGED = 65_536
"""Postings that are merged at a time."""
_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Options of mallopt in the GNU C library."""
_SLICE, _PAUSE = 0.001, 0.0005
"""Seconds of work in a thread between two pauses, and of a pause: else the event loop waits for the interpreter."""


def paced(items: Iterable[Any], every: int = 64) -> Iterator[Any]:
    """The items, with a short sleep after each millisecond of work; the clock is read after ``every`` items."""
    began = time.perf_counter()
    for number, item in enumerate(items):
        yield item
        if number % every == every - 1 and time.perf_counter() - began > _SLICE:
            time.sleep(_PAUSE)
            began = time.perf_counter()


class Vocabulary:
    """The terms of one index: their numbers, and how many documents hold each. One thread writes; others may read
    meanwhile. A number is never given to another term; where many are used no more, ``shrink`` makes a new vocabulary.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._counts = array("i")
        self._sorted: list[list[str]] = [[]]
        """The terms in their order, in blocks: a new one moves few others."""

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, term: str) -> int | None:
        """The number of a term."""
        return self._numbers.get(term)

    def take(self, term: str) -> int:
        """Count one document more for a term; its number, a new one for a new term."""
        number = self._numbers.get(term)
        if number is None:
            number = len(self._counts)
            self._counts.append(1)  # before the number, so that a reader never finds one without a count
            self._numbers[term] = number
            self._sort_in(term)
        else:
            self._counts[number] += 1
        return number

    def count(self, term: str) -> int:
        """How many documents hold a term, with those that are gone since their segment was made."""
        number = self._numbers.get(term)
        return 0 if number is None else self._counts[number]

    def among(self, candidates: set[str]) -> set[str]:
        """Those of the candidates that are terms here."""
        return self._numbers.keys() & candidates

    def starting_with(self, start: str) -> list[str]:
        """Some terms that begin so."""
        blocks = list(self._sorted)
        found: list[str] = []
        for at in range(max(0, bisect_left(blocks, [start]) - 1), len(blocks)):
            block = blocks[at]
            first = bisect_left(block, start)
            there = list(takewhile(lambda term: term.startswith(start), block[first : first + _MOST_PREFIXED]))
            found += there
            if len(found) >= _MOST_PREFIXED or first + len(there) < len(block):
                break
        return found[:_MOST_PREFIXED]

    def exchange(self, old: Iterable[Segment], built: Segment | None) -> None:
        """Count what a built segment holds in the place of what it was made of."""
        counts = np.frombuffer(self._counts, np.int32)
        for segment in old:
            counts[segment.terms] -= segment.counts()
        if built is not None:
            counts[built.terms] += built.counts()

    def shrink(self, segments: Sequence[Segment], buffer: Buffer) -> tuple[Vocabulary, list[Segment], Buffer] | None:
        """Without the terms that no document holds, and the same documents by new numbers; None where these are few."""
        counts = np.frombuffer(self._counts, np.int32)
        used = np.flatnonzero(counts).astype(np.int32)
        if len(self._counts) < _FEWEST_SHRUNK + 2 * len(used):
            return None
        places = np.full(len(counts), -1, np.int32)
        places[used] = np.arange(len(used), dtype=np.int32)
        found = places.tolist()
        new = Vocabulary()
        new._counts.frombytes(counts[used].tobytes())
        kept = ((term, found[number]) for term, number in paced(self._numbers.items()))
        new._numbers = {term: number for term, number in kept if number >= 0}
        blocks = ([term for term in block if term in new._numbers] for block in paced(self._sorted, every=1))
        new._sorted = [block for block in blocks if block] or [[]]
        return new, [segment.renumber(places) for segment in segments], buffer.renumber(found)

    def _sort_in(self, term: str) -> None:
        blocks = self._sorted
        at = max(0, bisect_left(blocks, [term]) - 1)
        block = blocks[at]
        insort(block, term)
        if len(block) > _BLOCK:
            blocks[at : at + 1] = [block[: _BLOCK // 2], block[_BLOCK // 2 :]]


class Buffer:
    """The newest documents. One thread writes; others may read meanwhile and see each document whole or not."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.alive = bytearray()
        self.postings: dict[int, tuple[list[int], list[float]]] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, gains: Mapping[str, float], vocabulary: Vocabulary) -> None:
        """Take a document; numbers ascend."""
        row = len(self.numbers)
        for term, gain in gains.items():
            there = vocabulary.take(term)
            known = self.postings.get(there)
            if known is None:
                known = self.postings[there] = ([], [])
            known[1].append(gain)  # before the row, so that a reader never finds a row without its gain
            known[0].append(row)
        self.alive.append(1)
        self.numbers.append(number)

    def remove(self, number: int) -> bool:
        """Forget a document; False if it is not here."""
        row = bisect_left(self.numbers, number)
        found = row < len(self.numbers) and self.numbers[row] == number
        if found:
            self.alive[row] = 0
        return found

    def renumber(self, places: Sequence[int]) -> Buffer:
        """The same documents with their terms by other numbers."""
        new = Buffer()
        new.numbers, new.alive = self.numbers, self.alive
        new.postings = {places[term]: known for term, known in self.postings.items()}
        return new

    def score(self, concepts: Sequence[Mapping[int, float]], into: NDArray[np.float32]) -> None:
        """Add what each document is worth: of each concept, its best term; those that are gone get 0."""
        for concept in concepts:
            best = np.zeros(len(into), np.float32)
            for term, weight in concept.items():
                known = self.postings.get(term)
                if known is not None:
                    rows = [row for row in known[0][:] if row < len(into)]
                    gains = np.array(known[1][: len(rows)], np.float16)  # as in a segment
                    best[rows] = np.maximum(best[rows], np.float32(weight) * gains)
            into += best
        into *= np.frombuffer(bytes(self.alive[: len(into)]), np.uint8)


class Segment:
    """Documents in the order of their numbers, and for each of the sorted terms the rows that hold it."""

    def __init__(
        self,
        numbers: NDArray[np.int64],
        terms: NDArray[np.int32],
        starts: NDArray[np.int32],
        rows: NDArray[np.uint16],
        gains: NDArray[np.float16],
    ):
        self.numbers = numbers
        self.terms = terms
        self.alive = np.ones(len(numbers), np.uint8)
        self.gone = 0
        self._starts = starts
        self._rows = rows
        self._gains = gains
        self._dense: dict[int, NDArray[np.uint8]] = {}
        """The terms that most documents hold, by their places: of these there are no rows and gains."""
        if len(numbers) >= _DENSE_FROM:
            left, kept, begun = np.diff(starts), list[slice](), 0
            for at in np.flatnonzero(left > len(numbers) // _DENSE).tolist():
                row = np.zeros(len(numbers), np.uint8)
                here = slice(int(starts[at]), int(starts[at + 1]))
                row[rows[here]] = np.maximum(np.rint(gains[here].astype(np.float32) / _STEP), 1)
                self._dense[at] = row
                kept.append(slice(begun, here.start))
                begun = here.stop
            kept.append(slice(begun, None))
            self._rows = np.concatenate([rows[here] for here in kept])
            self._gains = np.concatenate([gains[here] for here in kept])
            left[list(self._dense)] = 0
            self._starts = np.concatenate([[0], np.cumsum(left)]).astype(np.int32)

    def __len__(self) -> int:
        return len(self.numbers)

    def counts(self) -> NDArray[np.int32]:
        """How many documents hold each term, with those that are gone since the segment was made."""
        counts: NDArray[np.int32] = np.diff(self._starts)
        for at, row in self._dense.items():
            counts[at] = np.count_nonzero(row)
        return counts

    def renumber(self, places: NDArray[np.int32]) -> Segment:
        """The same documents with their terms by other numbers, in the same order."""
        new = copy(self)
        new.terms = places[self.terms]
        return new

    def remove(self, number: int) -> bool:
        """Forget a document; False if it is not here."""
        row = int(np.searchsorted(self.numbers, number))
        found = row < len(self.numbers) and int(self.numbers[row]) == number
        if found and self.alive[row]:
            self.alive[row] = 0
            self.gone += 1
        return found

    def score(self, concepts: Sequence[Mapping[int, float]], into: NDArray[np.float32]) -> None:
        """Add what each document is worth: of each concept, its best term; those that are gone get 0."""
        if not len(self.terms):  # capabilities that consist of words without meaning
            return
        best: NDArray[np.float32] | None = None
        wanted = np.array([term for concept in concepts for term in concept], np.int32)
        places = np.searchsorted(self.terms, wanted).clip(max=len(self.terms) - 1)
        there = dict(zip(wanted.tolist(), places.tolist(), strict=True))
        absent = set(wanted[self.terms[places] != wanted].tolist())
        for concept in concepts:
            terms = [term for term in concept if term not in absent]
            touched: list[Any] = []
            for term in terms:
                at, weight = there[term], concept[term]
                rows: Any = slice(None)
                if (dense := self._dense.get(at)) is not None:
                    worth = np.multiply(dense, np.float32(weight * _STEP), dtype=np.float32)
                else:
                    here = slice(int(self._starts[at]), int(self._starts[at + 1]))
                    rows = self._rows[here].astype(np.intp)
                    worth = np.float32(weight) * self._gains[here].astype(np.float32)
                if len(terms) > 1:
                    # Only by how much it is better than the others of its concept.
                    if best is None:
                        best = np.zeros(len(into), np.float32)
                    before = best[rows].copy()
                    best[rows] = np.maximum(before, worth)
                    worth = best[rows] - before
                    touched.append(rows)
                into[rows] += worth
            if best is not None:
                for rows in touched:
                    best[rows] = 0
        if self.gone:
            into *= self.alive

    def postings(self, low: int, high: int) -> tuple[NDArray[np.int32], NDArray[np.uint16], NDArray[np.float16]]:
        """Of the terms at these places: the term of each posting, its row, and its gain; in no order of the terms."""
        here = slice(int(self._starts[low]), int(self._starts[high]))
        owners = [np.repeat(self.terms[low:high], np.diff(self._starts[low : high + 1]))]
        rows, gains = [self._rows[here]], [self._gains[here]]
        for at in (at for at in self._dense if low <= at < high):
            there = np.flatnonzero(self._dense[at]).astype(np.uint16)
            owners.append(np.full(len(there), self.terms[at]))
            rows.append(there)
            gains.append((self._dense[at][there] * np.float32(_STEP)).astype(np.float16))
        return np.concatenate(owners), np.concatenate(rows), np.concatenate(gains)


def seal(buffer: Buffer) -> Segment:
    """A buffer that takes nothing more, as a segment. What is removed from it later must be removed again."""
    terms = np.sort(np.fromiter(buffer.postings, np.int32, len(buffer.postings)))
    starts = np.zeros(len(terms) + 1, np.int32)
    rows: list[int] = []
    gains: list[float] = []
    for at, term in enumerate(paced(terms.tolist())):
        there, worth = buffer.postings[term]
        rows += there
        gains += worth
        starts[at + 1] = len(rows)
    numbers = np.array(buffer.numbers, np.int64)
    segment = Segment(numbers, terms, starts, np.array(rows, np.uint16), np.array(gains, np.float16))
    segment.alive[:] = np.frombuffer(buffer.alive, np.uint8)
    segment.gone = len(segment) - int(segment.alive.sum())
    return segment


def merge(segments: Sequence[Segment]) -> Segment:
    """Several segments as one, without what is gone. What is removed from them meanwhile must be removed again."""
    segments = sorted(segments, key=lambda one: int(one.numbers[0]))
    masks = [segment.alive.astype(bool) for segment in segments]
    numbers = np.concatenate([one.numbers[mask] for one, mask in zip(segments, masks, strict=True)])
    order = np.argsort(numbers, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)  # where the documents that are left stand afterwards
    begun = 0
    moves = []
    for segment, mask in zip(segments, masks, strict=True):
        moved = np.full(len(segment), -1, np.int32)
        left = int(mask.sum())
        moved[mask] = place[begun : begun + left]
        begun += left
        moves.append(moved)
    terms = np.unique(np.concatenate([segment.terms for segment in segments]))
    sizes = np.zeros(len(terms), np.int64)
    for segment in segments:
        sizes[np.searchsorted(terms, segment.terms)] += segment.counts()
    parts = np.cumsum(sizes) // _MERGED  # numbers of the parts of about one size
    cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(terms)]
    merged = [_merge_postings(segments, moves, terms[low:high], len(numbers)) for low, high in pairwise(cuts)]
    counts, rows, gains = (np.concatenate(several) for several in zip(*merged, strict=True))
    starts = np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.int32)
    return Segment(np.sort(numbers), terms[counts > 0], starts, rows, gains)


def _merge_postings(
    segments: Sequence[Segment], moves: Sequence[NDArray[np.int32]], terms: NDArray[np.int32], size: int
) -> tuple[Any, Any, Any]:
    """Of some merged terms: how many documents each has, the rows of these, and gains.

    Some terms at a time, since this takes several times the memory of what comes of it.
    """
    found = []
    for segment, moved in zip(segments, moves, strict=True):
        low, high = np.searchsorted(segment.terms, [terms[0], terms[-1] + 1]).tolist() if len(terms) else (0, 0)
        owners, there, worth = segment.postings(low, high)
        new = moved[there]
        keep = new >= 0
        found.append((np.searchsorted(terms, owners[keep]), new[keep], worth[keep]))
    owners, rows, gains = (np.concatenate(several) for several in zip(*found, strict=True))
    order = np.argsort(owners * max(1, size) + rows, kind="stable")
    time.sleep(_PAUSE)
    return np.bincount(owners, minlength=len(terms)), rows[order].astype(np.uint16), gains[order]


def keep_memory_together() -> None:
    """Have the C library give large arrays back to the system when they are freed, and threads share what it has.

    It would else keep a hundred MB and more of what reading and merging took for a while. For the start of a process.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None and sys.platform == "linux":
        option(_ARENA_MAX, 1)
        option(_MMAP_THRESHOLD, 1 << 18)


def release_memory() -> None:
    """Give what merges and threads left free back to the system, where the C library can: it may be a hundred MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
