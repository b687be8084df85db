"""The protocol itself: one JSON object per line, told apart by ``type``. Nothing here knows the gateway.

A connection carries one request. The caller sends it as one line; the agent replies with any number of ``status`` and
``piece`` lines and then with exactly one last line. Closing the connection earlier cancels the call.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

# Requests


class Request(Struct, frozen=True, omit_defaults=True, tag=str.lower, kw_only=True):
    """What a caller sends. Its ``type`` on the wire is the name of the class in small letters."""

    agent: str = ""
    """Which agent is meant, where several share an address."""
    key: str = ""
    """The secret of the caller, where the agent asks for one."""


class Hello(Request, frozen=True):
    """Asks who is there; answered by a ``Card``."""


class Call(Request, frozen=True):
    """Asks for work."""

    capability: str
    input: Any = None


class Answer(Request, frozen=True):
    """Answers questions by their ids, and brings back the ``state`` that came with them."""

    state: Any
    answers: dict[str, Any]


# Replies


class Reply(Struct, frozen=True, omit_defaults=True, tag=str.lower):
    """What an agent sends back."""


class Status(Reply, frozen=True):
    """What the agent is doing now. More lines follow."""

    text: str


class Piece(Reply, frozen=True):
    """The next piece of the result. More lines follow."""

    text: str


class Result(Reply, frozen=True):
    """The last line: it worked. Without a value, the pieces together are the result."""

    value: Any = None


class Question(Struct, frozen=True, omit_defaults=True):
    """Something that only the caller can say; ``schema`` is what the answer must fit."""

    id: str
    text: str
    schema: dict[str, Any] | None = None


class Questions(Reply, frozen=True):
    """The last line of this turn: the work goes on when an ``Answer`` comes."""

    state: Any
    questions: list[Question]


class Error(Reply, frozen=True):
    """The last line: it did not work. ``retryable`` says that the same request may work after so many seconds."""

    code: str
    message: str
    retryable: bool = False
    retry_after: float | None = None


class Capability(Struct, frozen=True, omit_defaults=True):
    """One thing that an agent does. ``idempotent`` promises that doing it twice is as good as once."""

    name: str
    description: str = ""
    input: dict[str, Any] = {}
    output: dict[str, Any] | None = None
    idempotent: bool = False


class Card(Reply, frozen=True):
    """The answer to ``Hello``: what the agent can do, or the agents of which the caller has to name one."""

    name: str
    description: str = ""
    version: str = "1"
    capabilities: list[Capability] = []
    agents: list[str] = []


AnyRequest: TypeAlias = Hello | Call | Answer
AnyReply: TypeAlias = Card | Status | Piece | Result | Questions | Error

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


def encode(message: Request | Reply) -> bytes:
    """One line."""
    return _encoder.encode(message) + b"\n"


async def read_message(reader: asyncio.StreamReader, decoder: msgspec.json.Decoder[T]) -> T | None:
    """The next message; None at the end. ValueError for a line that is too long, or is no such message."""
    line = await reader.readline()
    return decoder.decode(line) if line else None
