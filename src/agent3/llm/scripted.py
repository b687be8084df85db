"""A model with a script: for tests of code that uses a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agent3.errors import SetupError
from agent3.llm.port import Message, Reply, Tool, ToolCall, Usage

__all__ = ["Asked", "Line", "Scripted"]


class Asked(Struct, frozen=True):
    """One request to a ``Scripted`` model."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    options: dict[str, Any]


Said: TypeAlias = str | ToolCall | Sequence[ToolCall] | Reply | Exception
Line: TypeAlias = Said | Callable[[Asked], Said]

_USAGE = Usage(10, 5, cost=0.0)


class Scripted:
    """An ``LLM`` with fixed lines: a text, calls, a whole reply, an exception to raise, or a function of the request.

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
            raise SetupError(f"The script has {len(self._lines)} lines, but one more was requested; add a line.")
        line = self._lines[len(self.asked) - 1]
        said = line(asked) if callable(line) else line
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Reply):
            reply = said
        elif isinstance(said, str):
            reply = Reply(said, usage=self._usage, model="scripted")
        else:
            calls = (said,) if isinstance(said, ToolCall) else tuple(said)
            step = len(self.asked)
            named = tuple(
                call if call.id else replace(call, id=f"call_{step}_{place}") for place, call in enumerate(calls)
            )
            reply = Reply(calls=named, usage=self._usage, finish="tool_calls", model="scripted")
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply
