"""What is said to a model and what it says back, and the one method that a model has.

Data only: no vendor's spelling, no network. A second model is a second class with ``complete``.
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
    "plain",
    "tool_calls",
]

Finish: TypeAlias = Literal["stop", "tool_calls", "length", "refused", "other"]
"""Why a model ended: it was done, it wants tools, it ran out of tokens, it will not, or none of these."""


class Text(Struct, frozen=True, tag="text"):
    """A piece of text."""

    text: str


class Image(Struct, frozen=True, tag="image", omit_defaults=True):
    """A picture: its bytes, or the address it can be fetched from."""

    data: bytes = b""
    url: str = ""
    media_type: str = "image/png"


Content: TypeAlias = str | tuple[Text | Image, ...]


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """What the model asks for. ``fault`` says why its arguments could not be read; ``arguments`` is then empty."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    fault: str = ""


class System(Struct, frozen=True, tag="system"):
    """Instructions that stand above the conversation."""

    text: str


class User(Struct, frozen=True, tag="user"):
    """What the person says or shows."""

    content: Content


class Assistant(Struct, frozen=True, tag="assistant", omit_defaults=True):
    """What the model said. ``kept`` is what its vendor wants to see again unread, such as signed thoughts."""

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
    """Something the model may ask for. Any name will do: what a vendor cannot spell is mapped there and back."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}


class Price(Struct, frozen=True, omit_defaults=True):
    """US dollars per million tokens. ``cached`` is for input that the vendor had kept; without it, that of input."""

    input: float
    output: float
    cached: float | None = None

    def of(self, usage: Usage) -> float:
        """What the tokens cost."""
        kept = self.input if self.cached is None else self.cached
        fresh = usage.input - usage.cached
        return (fresh * self.input + usage.cached * kept + usage.output * self.output) / 1_000_000


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens in and out; ``cached`` is part of ``input``. ``cost`` is None where nobody knows the price."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """In and out together."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        # An unknown cost makes the sum unknown: a cap that counts only what it knows is no cap.
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Usage(self.input + other.input, self.output + other.output, self.cached + other.cached, cost)

    def priced(self, price: Price | None) -> Usage:
        """With its cost, unless the vendor told one or there is no price."""
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
        """The reply as a message of the conversation that goes on."""
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
        """One answer. With ``on_text`` it is streamed, and each piece of text is told as it comes.

        Raises TargetRefused (its authentication said no), RateLimited, Unavailable, CallTimeout, MalformedResponse,
        RequestError or one below it (the request is wrong), SetupError. What has told text is never asked again.
        """
        ...


def complete_sync(llm: LLM, messages: Sequence[Message], tools: Sequence[Tool] = (), **options: Any) -> Reply:
    """``llm.complete`` for synchronous code, from any thread."""
    return bridge.run(llm.complete(messages, tools, **options))


def plain(content: Content) -> str:
    """The text of some content, without the pictures."""
    if isinstance(content, str):
        return content
    return "\n".join(one.text for one in content if isinstance(one, Text))


# --- what models write where arguments should stand -------------------------------------------------------------------


def tool_calls(asked: Sequence[tuple[str, str, Any]]) -> tuple[ToolCall, ...]:
    """Calls from ids, names and arguments as a vendor sent them. Ids that are missing or there twice are made."""
    seen: set[str] = set()
    found: list[ToolCall] = []
    for number, (key, name, written) in enumerate(asked):
        if not key or key in seen:
            key = f"call_{number}_{key}"[:40]
        seen.add(key)
        arguments, fault = _arguments(written)
        found.append(ToolCall(key, name, arguments, fault))
    return tuple(found)


def _arguments(written: Any) -> tuple[dict[str, Any], str]:
    try:
        value = _decoded(written)
        check_shape(value, what="arguments")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return {}, f"The arguments are not valid JSON ({error}): {_shown(written)}"
    except Agent3Error as error:
        return {}, error.message
    if not isinstance(value, dict):
        return {}, f"The arguments are {_kind(value)}, not an object: {_shown(written)}"
    return value, ""


def _decoded(written: Any) -> Any:
    # No arguments come as nothing, as "" or as null; some servers send the object itself, or JSON within JSON.
    for _ in range(2):
        if not isinstance(written, str):
            break
        written = msgspec.json.decode(written) if written.strip() else {}
    return {} if written is None else written


def _kind(value: Any) -> str:
    return {list: "an array", str: "a text", bool: "a boolean"}.get(type(value), "a number")


def _shown(written: Any) -> str:
    text = str(written)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
