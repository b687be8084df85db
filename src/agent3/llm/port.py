"""The port to a language model: messages, replies, and the one method that a model has.

Data only: no vendor's wire format, no network. Another model is another class with ``complete``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from agent3 import bridge
from agent3.errors import Agent3Error
from agent3.schema import check_shape

__all__ = [
    "LLM",
    "Assistant",
    "Finish",
    "Image",
    "Message",
    "Price",
    "Reply",
    "System",
    "Text",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Usage",
    "User",
    "complete_sync",
    "parse_tool_calls",
    "plain",
]

Finish: TypeAlias = Literal["stop", "tool_calls", "length", "refused", "other"]
"""Why a model stopped: it was done, it wants tools, it ran out of tokens, it refused, or another reason."""


class Text(Struct, frozen=True, tag="text"):
    """A piece of text."""

    text: str


class Image(Struct, frozen=True, tag="image", omit_defaults=True):
    """A picture: its bytes, or the URL it can be fetched from."""

    data: bytes = b""
    url: str = ""
    media_type: str = "image/png"


Content: TypeAlias = str | tuple[Text | Image, ...]


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A call that the model asks for. ``fault`` says why its arguments could not be read; they are then empty."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    fault: str = ""


class System(Struct, frozen=True, tag="system"):
    """Instructions above the conversation."""

    text: str


class User(Struct, frozen=True, tag="user"):
    """What the user says or shows."""

    content: Content


class Assistant(Struct, frozen=True, tag="assistant", omit_defaults=True):
    """What the model said. ``kept`` is what its vendor wants back unchanged, such as signed thoughts."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    kept: tuple[dict[str, Any], ...] = ()


class ToolResult(Struct, frozen=True, tag="tool", omit_defaults=True):
    """The answer to one ``ToolCall``, by its id."""

    call: str
    name: str
    content: Content = ""
    error: bool = False


Message: TypeAlias = System | User | Assistant | ToolResult


class Tool(Struct, frozen=True, omit_defaults=True):
    """Something the model may call. Any name will do: a name that a vendor does not allow is mapped there and back."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}


class Price(Struct, frozen=True, omit_defaults=True):
    """US dollars per million tokens. ``cached`` is for input from the vendor's cache; by default that of ``input``."""

    input: float
    output: float
    cached: float | None = None

    def of(self, usage: Usage) -> float:
        """What the tokens cost."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input - usage.cached
        return (fresh * self.input + usage.cached * cached + usage.output * self.output) / 1_000_000


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens in and out; ``cached`` is part of ``input``. ``cost`` is None if the price is unknown."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """In and out together."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        # An unknown cost makes the sum unknown: a cap that counts only known costs would be none.
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Usage(self.input + other.input, self.output + other.output, self.cached + other.cached, cost)

    def with_cost(self, price: Price | None) -> Usage:
        """With its cost, unless the vendor gave one or there is no price."""
        if self.cost is not None or price is None:
            return self
        return msgspec.structs.replace(self, cost=price.of(self))


class Reply(Struct, frozen=True, omit_defaults=True):
    """One answer of a model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: Finish = "stop"
    model: str = ""
    kept: tuple[dict[str, Any], ...] = ()

    def message(self) -> Assistant:
        """The reply as a message of the conversation."""
        return Assistant(self.text, self.calls, self.kept)


class LLM(Protocol):
    """A language model. Safe to use from several tasks at once."""

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """One reply. With ``on_text`` it is streamed, and ``on_text`` gets each piece of text as it comes.

        Raises TargetRefused (its authentication said no), RateLimited, Unavailable, CallTimeout, MalformedResponse,
        RequestError or a subclass (the request is wrong), SetupError. After the first text nothing is retried.
        """
        ...


def complete_sync(llm: LLM, messages: Sequence[Message], tools: Sequence[Tool] = (), **options: Any) -> Reply:
    """``llm.complete`` for synchronous code, from any thread."""
    return bridge.run(llm.complete(messages, tools, **options))


def plain(content: Content) -> str:
    """The text of some content, without the pictures."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, Text))


def parse_tool_calls(given: Sequence[tuple[str, str, Any]]) -> tuple[ToolCall, ...]:
    """Calls from ids, names and arguments as a vendor sent them; ids that are missing or repeated are made up."""
    seen: set[str] = set()
    calls: list[ToolCall] = []
    for number, (key, name, written) in enumerate(given):
        if not key or key in seen:
            key = f"call_{number}_{key}"[:40]
        seen.add(key)
        try:
            # No arguments come as nothing, "" or null; some servers send the object itself, or JSON within JSON.
            arguments = written
            for _ in range(2):
                if isinstance(arguments, str):
                    arguments = msgspec.json.decode(arguments) if arguments.strip() else {}
            arguments = {} if arguments is None else arguments
            check_shape(arguments, what="arguments")
            fault = ""
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            arguments, fault = {}, f"The arguments are not valid JSON ({error}): {_excerpt(written)}"
        except Agent3Error as error:
            arguments, fault = {}, error.message
        if not isinstance(arguments, dict):
            kind = {list: "an array", str: "a string", bool: "a boolean"}.get(type(arguments), "a number")
            arguments, fault = {}, f"The arguments are {kind}, not an object: {_excerpt(written)}"
        calls.append(ToolCall(key, name, arguments, fault))
    return tuple(calls)


def _excerpt(written: Any) -> str:
    text = str(written)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
