"""A model that says what it was told to say: for tests of whatever uses a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agent3.errors import SetupError
from agent3.llm.port import Message, Reply, Tool, ToolCall, Usage

__all__ = ["Asked", "Line", "Scripted"]


class Asked(Struct, frozen=True):
    """One request that a ``Scripted`` model got."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    options: dict[str, Any]


Said: TypeAlias = str | ToolCall | Sequence[ToolCall] | Reply | Exception
Line: TypeAlias = Said | Callable[[Asked], Said]

_USAGE = Usage(10, 5, cost=0.0)


class Scripted:
    """An ``LLM`` of fixed lines: a text, calls, a whole reply, an exception to raise, or a function of the request.

    ``asked`` holds every request. When the lines are used up, it raises SetupError.
    """

    def __init__(self, *lines: Line, usage: Usage = _USAGE):
        self._lines = list(lines)
        self._usage = usage
        self.asked: list[Asked] = []

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        on_text: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Reply:
        """The next line."""
        asked = Asked(tuple(messages), tuple(tools), options)
        self.asked.append(asked)
        if len(self.asked) > len(self._lines):
            raise SetupError(f"The script has {len(self._lines)} lines and was asked for one more; add a line.")
        line = self._lines[len(self.asked) - 1]
        reply = self._reply(line(asked) if callable(line) else line)
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    def _reply(self, said: Said) -> Reply:
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Reply):
            return said
        if isinstance(said, str):
            return Reply(said, usage=self._usage, model="scripted")
        calls = (said,) if isinstance(said, ToolCall) else tuple(said)
        named = tuple(one if one.id else replace(one, id=self._id(place)) for place, one in enumerate(calls))
        return Reply(calls=named, usage=self._usage, finish="tool_calls", model="scripted")

    def _id(self, place: int) -> str:
        return f"call_{len(self.asked)}_{place}"
