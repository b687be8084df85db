"""What a queue can be asked to do within one transaction, and what it answers: data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast

from msgspec import Struct

from agent3.errors import Agent3Error
from agent3.queue.messages import Lease, Message

__all__ = ["Ack", "Answer", "Claim", "Ending", "Extend", "Nack", "Operation", "Put", "Release", "Result"]

T = TypeVar("T")


class Put(Struct, frozen=True, gc=False):
    """Put a message; the answer is its id."""

    message: Message


class Claim(Struct, frozen=True):
    """Hand out up to ``most`` messages for some seconds; the answer is a list of leases."""

    most: int
    seconds: float


class Ack(Struct, frozen=True):
    """The message is done; the answer is whether the lease was still valid."""

    lease: Lease


class Nack(Struct, frozen=True):
    """It failed: retry after ``delay``, or give up if ``delay`` is None or no attempt is left; the answer is a Fate."""

    lease: Lease
    reason: str
    delay: float | None


class Release(Struct, frozen=True):
    """It was not tried: give it back without counting the attempt."""

    lease: Lease


class Extend(Struct, frozen=True):
    """It takes longer."""

    lease: Lease
    seconds: float


Ending: TypeAlias = Ack | Nack | Release | Extend
Operation: TypeAlias = Put | Claim | Ending


class Answer(Struct, Generic[T], frozen=True):
    """A value, or the error of this operation alone."""

    value: T | None = None
    error: Agent3Error | None = None

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


@dataclass(slots=True)
class Result:
    """What one transaction did."""

    answers: dict[int, Answer[Any]] = field(default_factory=dict)
    """By the number of the operation."""
    depth: int | None = None
    """Messages that have not ended; None if it was not counted."""
    wakes: bool = False
    """Whether a message may have become ready."""
    died: int = 0
    """Messages that became dead letters."""
