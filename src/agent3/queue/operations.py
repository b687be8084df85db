"""What can be asked of a queue within one transaction, and what is answered: data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast

from agent3.errors import Agent3Error
from agent3.queue.messages import Lease, Message

__all__ = ["Ack", "Answer", "Claim", "Ending", "Extend", "Nack", "Operation", "Put", "Release", "Turn"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Put:
    """Put a message; the answer is its id."""

    message: Message


@dataclass(frozen=True, slots=True)
class Claim:
    """Hand out up to ``most`` messages for some seconds; the answer is a list of leases."""

    most: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ack:
    """It is done; the answer says whether the lease was still good."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Nack:
    """It failed: try again after ``delay``, or give it up if ``delay`` is None or the attempts are used up."""

    lease: Lease
    reason: str
    delay: float | None


@dataclass(frozen=True, slots=True)
class Release:
    """It was not tried at all: give it back, and do not count the attempt."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Extend:
    """It takes longer."""

    lease: Lease
    seconds: float


Ending: TypeAlias = Ack | Nack | Release | Extend
Operation: TypeAlias = Put | Claim | Ending


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A value, or the error that this operation alone met."""

    value: T | None = None
    error: Agent3Error | None = None

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


@dataclass(slots=True)
class Turn:
    """What one transaction did."""

    answers: dict[int, Answer[Any]] = field(default_factory=dict)
    depth: int | None = None
    """Messages that have not ended; None when nobody had to know."""
    rings: bool = False
    """Whether a message may have become ready."""
    died: int = 0
