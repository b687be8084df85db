"""Postings: which documents hold a term, and what it is worth in each.

A ``Buffer`` takes what is new, one document at a time. A ``Segment`` never changes except for its mask of what is
alive: numpy arrays over sorted terms, with gains in half precision. Buffers are sealed into segments and segments
merged by ``seal`` and ``merge``, which are made for a thread of their own: they are Python loops and calls that release
the interpreter, never one long call that holds it, and they pause after every slice. Nothing here knows what a document
is; it has a number.
"""

from __future__ import annotations

import ctypes
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge as merge_sorted
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, TypeAlias

from agent3.arrays import NDArray, np

__all__ = ["Buffer", "Postings", "Segment", "keep_memory_together", "merge", "paced", "release_memory", "seal"]

Postings: TypeAlias = "Buffer | Segment"
_DENSE = 16
"""A term that more than one of so many documents hold gets a row with a byte for every document."""
_DENSE_FROM = 2_000
"""Documents from which such rows are worth having, in the place of others."""
_START = 4
"""Letters by which the terms of a buffer are kept together; ``starting_with`` is asked for at least so many."""
_STEP = 2.5 / 255
"""What one step of such a byte is worth: gains are below 2.2."""
_MERGED = 4_096
"""Terms that are merged at a time."""
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


class Buffer:
    """The newest documents. One thread writes; others may read meanwhile and see each document whole or not."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.alive = bytearray()
        self.postings: dict[str, tuple[list[int], list[float]]] = {}
        self._starts: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, gains: Mapping[str, float]) -> None:
        """Take a document; numbers ascend."""
        row = len(self.numbers)
        for term, gain in gains.items():
            known = self.postings.get(term)
            if known is None:
                term = sys.intern(term)  # most segments have the same ones
                known = self.postings[term] = ([], [])
                self._starts.setdefault(term[:_START], []).append(term)
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

    def count(self, term: str) -> int:
        """How many documents hold a term."""
        known = self.postings.get(term)
        return len(known[0]) if known is not None else 0

    def among(self, candidates: set[str]) -> set[str]:
        """Those of the candidates that are terms here."""
        return self.postings.keys() & candidates

    def starting_with(self, start: str, most: int) -> list[str]:
        """Terms that begin so, at most so many."""
        return [term for term in self._starts.get(start[:_START], ()) if term.startswith(start)][:most]

    def score(self, concepts: Sequence[Mapping[str, float]], into: NDArray[np.float32]) -> None:
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
        terms: Sequence[str],
        starts: NDArray[np.int64],
        rows: NDArray[np.int32],
        gains: NDArray[np.float16],
    ):
        self.numbers = numbers
        self.terms = terms
        self._places = {term: at for at, term in enumerate(paced(terms))}
        self._starts = starts
        self._rows = rows
        self._gains = gains
        self.alive = np.ones(len(numbers), np.uint8)
        self.gone = 0
        self._dense: dict[int, NDArray[np.uint8]] = {}
        """The terms that most documents hold, by their places: of these there are no rows and gains."""
        self._counts = counts = np.diff(starts).astype(np.int32)
        if len(numbers) >= _DENSE_FROM:
            sparse = np.ones(len(rows), bool)
            for at in np.flatnonzero(counts > len(numbers) // _DENSE).tolist():
                row = np.zeros(len(numbers), np.uint8)
                here = slice(int(starts[at]), int(starts[at + 1]))
                row[rows[here]] = np.maximum(np.rint(gains[here].astype(np.float32) / _STEP), 1)
                self._dense[at] = row
                sparse[here] = False
            self._rows, self._gains = rows[sparse], gains[sparse]
            left = counts.copy()
            left[list(self._dense)] = 0
            self._starts = np.concatenate([[0], np.cumsum(left, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self.numbers)

    def remove(self, number: int) -> bool:
        """Forget a document; False if it is not here."""
        row = int(np.searchsorted(self.numbers, number))
        found = row < len(self.numbers) and int(self.numbers[row]) == number
        if found and self.alive[row]:
            self.alive[row] = 0
            self.gone += 1
        return found

    def count(self, term: str) -> int:
        """How many documents hold a term, with those that are gone since the segment was made."""
        at = self._places.get(term)
        return 0 if at is None else int(self._counts[at])

    def among(self, candidates: set[str]) -> set[str]:
        """Those of the candidates that are terms here."""
        return self._places.keys() & candidates

    def starting_with(self, start: str, most: int) -> list[str]:
        """Terms that begin so, at most so many."""
        at = bisect_left(self.terms, start)
        found: list[str] = []
        while at < len(self.terms) and len(found) < most and self.terms[at].startswith(start):
            found.append(self.terms[at])
            at += 1
        return found

    def score(self, concepts: Sequence[Mapping[str, float]], into: NDArray[np.float32]) -> None:
        """Add what each document is worth: of each concept, its best term; those that are gone get 0."""
        best = np.zeros(len(into), np.float32)
        for concept in concepts:
            touched: list[Any] = []
            for term, weight in concept.items():
                at = self._places.get(term)
                if at is None:
                    continue
                rows: Any = slice(None)
                if (dense := self._dense.get(at)) is not None:
                    worth = np.multiply(dense, np.float32(weight * _STEP), dtype=np.float32)
                else:
                    here = slice(int(self._starts[at]), int(self._starts[at + 1]))
                    rows, worth = self._rows[here], np.float32(weight) * self._gains[here].astype(np.float32)
                if len(concept) > 1:
                    # Only by how much it is better than the others of its concept.
                    before = best[rows].copy()
                    best[rows] = np.maximum(before, worth)
                    worth = best[rows] - before
                    touched.append(rows)
                into[rows] += worth
            for rows in touched:
                best[rows] = 0
        if self.gone:
            into *= self.alive

    def postings(self, low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float16]]:
        """Of the terms at these places: the place of each posting, its row, and its gain; in no order of the terms."""
        here = slice(int(self._starts[low]), int(self._starts[high]))
        owners = [np.repeat(np.arange(low, high), np.diff(self._starts[low : high + 1]))]
        rows, gains = [self._rows[here]], [self._gains[here]]
        for at in (at for at in self._dense if low <= at < high):
            there = np.flatnonzero(self._dense[at]).astype(np.int32)
            owners.append(np.full(len(there), at))
            rows.append(there)
            gains.append((self._dense[at][there] * np.float32(_STEP)).astype(np.float16))
        return np.concatenate(owners), np.concatenate(rows), np.concatenate(gains)


def seal(buffer: Buffer) -> Segment:
    """A buffer that takes nothing more, as a segment. What is removed from it later must be removed again."""
    by_start: dict[str, list[str]] = {}
    for term in paced(buffer.postings):
        by_start.setdefault(term[:1], []).append(term)
    terms = [term for start in paced(sorted(by_start), every=1) for term in sorted(by_start[start])]
    starts = np.zeros(len(terms) + 1, np.int64)
    rows: list[int] = []
    gains: list[float] = []
    for at, term in enumerate(paced(terms)):
        there, worth = buffer.postings[term]
        rows += there
        gains += worth
        starts[at + 1] = len(rows)
    numbers = np.array(buffer.numbers, np.int64)
    return Segment(numbers, terms, starts, np.array(rows, np.int32), np.array(gains, np.float16))


def merge(segments: Sequence[Segment]) -> Segment:
    """Several segments as one, without what is gone. What is removed from them meanwhile must be removed again."""
    segments = sorted(segments, key=lambda one: int(one.numbers[0]))
    masks = [segment.alive.astype(bool) for segment in segments]
    numbers = np.concatenate([one.numbers[mask] for one, mask in zip(segments, masks, strict=True)])
    order = np.argsort(numbers, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)  # where the documents that are left stand afterwards
    terms, homes = _merge_terms([segment.terms for segment in segments])
    begun = 0
    moves = []
    for segment, mask in zip(segments, masks, strict=True):
        moved = np.full(len(segment), -1, np.int32)
        left = int(mask.sum())
        moved[mask] = place[begun : begun + left]
        begun += left
        moves.append(moved)
    merged = [
        _merge_postings(segments, moves, homes, first, min(first + _MERGED, len(terms)), len(numbers))
        for first in range(0, len(terms), _MERGED)
    ]
    counts, rows, gains = (np.concatenate(several) for several in zip(*merged, strict=True))
    kept = [term for term, count in paced(zip(terms, counts.tolist(), strict=True)) if count]
    starts = np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.int64)
    return Segment(np.sort(numbers), kept, starts, rows, gains)


def _merge_postings(
    segments: Sequence[Segment],
    moves: Sequence[NDArray[np.int32]],
    homes: Sequence[Sequence[int]],
    first: int,
    last: int,
    size: int,
) -> tuple[Any, Any, Any]:
    """Of the merged terms from the first up to the last: how many documents each has, the rows of these, and gains.

    Some terms at a time, since this takes several times the memory of what comes of it.
    """
    found = []
    for segment, moved, home in zip(segments, moves, homes, strict=True):
        low, high = bisect_left(home, first), bisect_left(home, last)
        places, there, worth = segment.postings(low, high)
        new = moved[there]
        keep = new >= 0
        owner = np.array(home[low:high], np.int64)[places[keep] - low] - first
        found.append((owner, new[keep], worth[keep]))
    owners, rows, gains = (np.concatenate(several) for several in zip(*found, strict=True))
    order = np.argsort(owners * max(1, size) + rows, kind="stable")
    time.sleep(_PAUSE)
    return np.bincount(owners, minlength=last - first), rows[order], gains[order]


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


def _merge_terms(several: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]]]:
    """All terms, sorted, and for each list where its terms stand among them."""
    terms: list[str] = []
    homes: list[list[int]] = [[] for _ in several]
    tagged = [zip(one, repeat(number)) for number, one in enumerate(several)]
    for term, group in groupby(paced(merge_sorted(*tagged)), itemgetter(0)):
        for _, number in group:
            homes[number].append(len(terms))
        terms.append(term)
    return terms, homes
