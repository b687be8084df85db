"""The adapter for Anthropic's Messages API.

Instructions stand beside the conversation, results of tools are words of the user, and the tokens of an answer must
be bounded. Blocks of thought are carried along unread, since the vendor wants them back when a tool has answered.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from agent3 import bridge
from agent3.identity.secrets import Secret, Vault
from agent3.jsonrpc import Frame
from agent3.llm.endpoint import Endpoint, ToldNo, decoded, trouble_of
from agent3.llm.port import (
    Assistant,
    Content,
    Finish,
    Image,
    Message,
    Price,
    Reply,
    System,
    Text,
    Tool,
    ToolResult,
    Usage,
    User,
    tool_calls,
)
from agent3.llm.tools import Names, parameters, shortened

if TYPE_CHECKING:
    from agent3.security.outbound import Gate

__all__ = ["Anthropic"]

_DESCRIPTION = 8192
_VERSION = "2026-10-21"
_WITH_TEMPERATURE = "2023-06-01"
"""The last version of the API that takes a temperature; both are served side by side."""
_MAX_TOKENS = 4096


class Anthropic:
    """An ``LLM`` behind Anthropic's Messages API.

    ``key`` is a reference such as ``env:ANTHROPIC_API_KEY``, or a Secret. An answer without ``max_tokens`` is bounded
    at 4096; one with a ``temperature`` is asked of the older version of the API, the last that takes it. ``options``
    go into every request as they are. ``timeout`` bounds a completion with all its ``retries``.
    Close it with ``aclose`` or ``async with`` in each event loop that used it.
    """

    def __init__(
        self,
        model: str,
        key: str | Secret | None = "env:ANTHROPIC_API_KEY",
        *,
        base_url: str = "https://api.anthropic.com",
        price: Price | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 120.0,
        retries: int = 2,
        vault: Vault | None = None,
        gate: Gate | None = None,
    ):
        self.model = model
        self.price = price
        self._options = dict(options or {})
        self._endpoint = Endpoint(
            base_url,
            key=key,
            header=lambda secret: {"x-api-key": secret},
            headers=headers or {},
            timeout=timeout,
            retries=retries,
            vault=vault,
            gate=gate,
        )

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
        """One answer; see ``LLM.complete``."""
        names = Names.of(tools, messages)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens or _MAX_TOKENS,
            "messages": _messages(messages, names),
        }
        if system := "\n\n".join(one.text for one in messages if isinstance(one, System)):
            body["system"] = system
        if tools:
            body["tools"] = [_tool(tool, names) for tool in tools]
        version = _VERSION
        if temperature is not None:
            body["temperature"], version = temperature, _WITH_TEMPERATURE
        if stop:
            body["stop_sequences"] = list(stop)
        body |= self._options

        def read(answer: bytes) -> Reply:
            return _Pieces(self._endpoint.place, names, self.price).whole(answer)

        def pieces() -> _Pieces:
            return _Pieces(self._endpoint.place, names, self.price)

        headers = {"anthropic-version": version}
        if on_text is None:
            return await self._endpoint.send("/v1/messages", body, read, headers)
        body["stream"] = True
        return await self._endpoint.stream("/v1/messages", body, read, pieces, on_text, headers)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._endpoint.aclose()

    def close(self) -> None:
        """Close the connections that synchronous calls opened."""
        bridge.run(self.aclose())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r} at {self._endpoint.place})"


# --- what is sent -----------------------------------------------------------------------------------------------------


def _tool(tool: Tool, names: Names) -> dict[str, Any]:
    made: dict[str, Any] = {"name": names.wire(tool.name), "input_schema": parameters(tool, text=_DESCRIPTION)}
    if tool.description:
        made["description"] = shortened(tool.description, _DESCRIPTION)
    return made


def _messages(messages: Sequence[Message], names: Names) -> list[dict[str, Any]]:
    """The conversation in turns: all results of one turn must stand in the one message that follows it."""
    sent: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, System):
            continue
        role = "assistant" if isinstance(message, Assistant) else "user"
        blocks = _blocks(message, names)
        if not blocks:  # an empty turn is refused
            continue
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += blocks
        else:
            sent.append({"role": role, "content": blocks})
    return sent


def _blocks(message: User | Assistant | ToolResult, names: Names) -> list[dict[str, Any]]:
    match message:
        case User(content):
            return _parts(content)
        case ToolResult(call, _, content, error):
            result = {"type": "tool_result", "tool_use_id": call, "content": _parts(content)}
            return [{**result, "is_error": True} if error else result]
        case Assistant(text, calls, kept):
            uses = [
                {"type": "tool_use", "id": one.id, "name": names.wire(one.name), "input": one.arguments}
                for one in calls
            ]
            return _in_place(kept, uses) if kept else [*_parts(text), *uses]


def _in_place(kept: Sequence[dict[str, Any]], uses: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a turn in their own order, which thoughts are signed for, with the calls where they stood."""
    waiting = iter(uses)
    return [next(waiting, one) if one.get("type") == "tool_use" else one for one in kept]


def _parts(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = (Text(content),)
    return [_part(one) for one in content if not isinstance(one, Text) or one.text.strip()]  # blank text is refused


def _part(part: Text | Image) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    data = base64.b64encode(part.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}}


# --- what comes back --------------------------------------------------------------------------------------------------


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(Struct):
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    usage: _Usage | None = None
    model: str = ""


class _Delta(Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Event(Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: dict[str, Any] | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: Any = None


_FINISH: dict[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}
_OURS = ("text", "tool_use")


class _Pieces:
    """The reply so far: the content blocks by their index."""

    def __init__(self, place: str, names: Names, price: Price | None):
        self.ended = False
        self._place = place
        self._names = names
        self._price = price
        self._blocks: dict[int, dict[str, Any]] = {}
        self._usage = _Usage()
        self._finish: str | None = None
        self._model = ""

    def whole(self, answer: bytes) -> Reply:
        """The reply of an answer that came in one piece."""
        self._begin(decoded(answer, _Message, self._place))
        return self.reply()

    def feed(self, frame: Frame) -> str:
        if not frame.data:
            return ""
        event = decoded(frame.data, _Event, self._place)
        match event.type:
            case "error":
                raise ToldNo(trouble_of(event.error))
            case "message_start" if event.message is not None:
                self._begin(event.message)
            case "content_block_start" if event.content_block is not None:
                self._blocks[event.index] = event.content_block
                return str(event.content_block.get("text", ""))
            case "content_block_delta" if event.delta is not None:
                return self._grow(event.index, event.delta)
            case "message_delta":
                self._count(event.usage)
                self._finish = event.delta.stop_reason if event.delta else None
            case "message_stop":
                self.ended = True
        return ""  # pings, and whatever the vendor adds some day

    def _begin(self, message: _Message) -> None:
        self._blocks.update(enumerate(message.content))
        self._model = message.model
        self._finish = message.stop_reason
        self._count(message.usage)

    def _grow(self, index: int, delta: _Delta) -> str:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        for key, more in (("text", delta.text), ("thinking", delta.thinking), ("signature", delta.signature)):
            if more:
                block[key] = block.get(key, "") + more
        if delta.partial_json:  # input begins as {} and is told as text
            written = block.get("input")
            block["input"] = (written if isinstance(written, str) else "") + delta.partial_json
        return delta.text

    def _count(self, usage: _Usage | None) -> None:
        """Each count that is told replaces the one before: they are sums, not steps."""
        for name in _Usage.__struct_fields__:
            if usage is not None and (told := getattr(usage, name)) is not None:
                setattr(self._usage, name, told)

    def reply(self) -> Reply:
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        calls = tool_calls([self._asked(one) for one in blocks if one.get("type") == "tool_use"])
        text = "".join(str(one.get("text", "")) for one in blocks if one.get("type") == "text")
        strange = any(one.get("type") not in _OURS for one in blocks)
        kept = tuple(_stub(one) for one in blocks if one.get("text") != "") if strange else ()
        finish = _FINISH.get(self._finish or "", "other")
        return Reply(text, calls, self._counted().priced(self._price), finish, self._model, kept)

    def _asked(self, block: Mapping[str, Any]) -> tuple[str, str, Any]:
        return str(block.get("id", "")), self._names.real(str(block.get("name", ""))), block.get("input")

    def _counted(self) -> Usage:
        # Unlike others, the vendor does not count cached tokens among the input.
        cached, usage = self._usage.cache_read_input_tokens or 0, self._usage
        given = (usage.input_tokens or 0) + (usage.cache_creation_input_tokens or 0) + cached
        return Usage(given, usage.output_tokens or 0, cached)


def _stub(block: dict[str, Any]) -> dict[str, Any]:
    """A call only keeps its place: its name and arguments are those of the reply."""
    return {"type": "tool_use"} if block.get("type") == "tool_use" else block
