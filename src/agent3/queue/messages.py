"""What goes into a queue and what comes out: data only, and the refusal of a full queue."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, TypeAlias
from zlib import crc32

from msgspec import Struct

from agent3.errors import RateLimited, TooLarge, ValidationError

__all__ = ["Attempt", "Depth", "Fate", "Lease", "Letter", "Message", "QueueFull", "Rules", "checksum"]

Fate: TypeAlias = Literal["retry", "dead", "lost"]
"""What a nack led to; ``lost`` when the lease was no longer the caller's."""

LONGEST_LEASE = 3_600.0
_LONGEST_NAME = 1_000
_LONGEST_DELAY = 10 * 365 * 86_400.0
_HIGHEST_PRIORITY = 1_000_000


class QueueFull(RateLimited):
    """The queue holds as many messages as it may; nothing was put. ``retry_after`` says when to try again."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a queue allows. Every process that uses one queue should use the same rules."""

    bound: int = 10_000
    """Messages that have not ended; one more is refused."""
    attempts: int = 5
    """Times that a message is handed out before it is dead."""
    lease: float = 30.0
    """Seconds that a consumer has before others may take the message; at most an hour, and ``extend`` gives more."""
    first_delay: float = 1.0
    """Ceiling of the first retry's delay in seconds; it doubles with each retry, and a random share of it is taken."""
    longest_delay: float = 300.0
    keep_done: float = 0.0
    """Seconds that an acknowledged message is kept, so that it can be replayed; 0 deletes it at once."""
    keep_dead: float = 30 * 86_400.0
    dead: int = 100_000
    """Dead letters kept, to within one per cent: beyond it the oldest are dropped, counted and logged. 0 keeps all."""
    keep_keys: float = 86_400.0
    """Seconds, at least, that an idempotency key is remembered."""
    largest: int = 1_048_576
    """Bytes of a body."""
    poll: float = 1.0
    """Seconds after which a waiting consumer looks again, in case no wake-up reached it."""

    def __post_init__(self) -> None:
        for name, low in (
            ("bound", 1),
            ("attempts", 1),
            ("lease", 0.001),
            ("poll", 0.001),
            ("largest", 1),
            ("dead", 0),
        ):
            if not getattr(self, name) >= low:
                raise ValidationError(f"{name} of a queue is {getattr(self, name)!r}; it must be at least {low}.")
        if self.lease > LONGEST_LEASE:
            raise ValidationError(
                f"A lease of {self.lease:g} s is too long. Use at most {LONGEST_LEASE:g} s and extend it."
            )


class Message(Struct, frozen=True, gc=False):
    """One message to put. ``context`` orders it behind others of its kind; ``key`` makes putting it twice harmless."""

    id: str
    body: bytes
    context: str | None = None
    priority: int = 0
    key: str | None = None
    delay: float = 0.0

    @property
    def digest(self) -> str:
        """What its key stands for."""
        return hashlib.sha256(self.body).hexdigest()

    @property
    def checksum(self) -> int:
        return checksum(self.id, self.context, self.body)

    @property
    def weight(self) -> int:
        """Bytes that it takes in a database at most: itself, its index entries, and half-empty pages."""
        return 2 * len(self.body) + 4_096

    @property
    def is_independent(self) -> bool:
        """Whether it has neither a context nor a key."""
        return self.context is None and self.key is None

    def check(self, largest: int) -> None:
        """Raise ValidationError or TooLarge, naming the field, unless every database can store it."""
        for name, text in (("id", self.id), ("context", self.context), ("key", self.key)):
            if text is None:
                continue
            valid = 0 < len(text) <= _LONGEST_NAME and "\0" not in text
            if not valid or not (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)):
                raise ValidationError(
                    f"The {name} of a message must have 1 to {_LONGEST_NAME} characters and no NUL: {text[:40]!r}."
                )
        if not -_HIGHEST_PRIORITY <= self.priority <= _HIGHEST_PRIORITY:
            raise ValidationError(
                f"Priority {self.priority} is out of range. Use {-_HIGHEST_PRIORITY} to {_HIGHEST_PRIORITY}."
            )
        if not 0 <= self.delay <= _LONGEST_DELAY:
            raise ValidationError(f"A delay of {self.delay} s is out of range. Use 0 to {_LONGEST_DELAY:.0f} s.")
        if len(self.body) > largest:
            raise TooLarge(f"A message of {len(self.body)} bytes is too large; the maximum of this queue is {largest}.")


def checksum(name: str, context: str | None, body: bytes) -> int:
    """The checksum of a message. It detects a flipped bit, not tampering."""
    return crc32(body, crc32(f"{name}\0{context or ''}".encode(errors="replace")))


@dataclass(frozen=True, slots=True)
class Lease:
    """A message in a consumer's hands. ``token`` rises each time it is handed out: use it to fence effects."""

    id: str
    body: bytes
    context: str | None
    priority: int
    attempt: int
    token: int
    seq: int
    age: float
    """Seconds since it was put, by the database's clock."""
    damaged: bool = False
    """Whether it no longer matches its checksum; ``claim`` hands out no such message."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt: when (the database's wall clock), its number, and why it failed."""

    at: float
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. ``history`` holds its last failures, oldest first; the last one is why it is dead."""

    id: str
    body: bytes
    context: str | None
    priority: int
    attempts: int
    seq: int
    put: float
    history: tuple[Attempt, ...]

    @property
    def reason(self) -> str:
        return self.history[-1].reason if self.history else ""


@dataclass(frozen=True, slots=True)
class Depth:
    """How many messages are in which state, and how old the oldest is that has not ended."""

    ready: int = 0
    waiting: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    done: int = 0
    oldest: float = 0.0

    @property
    def live(self) -> int:
        """Those that have not ended, which the bound counts."""
        return self.ready + self.waiting + self.delayed + self.leased
