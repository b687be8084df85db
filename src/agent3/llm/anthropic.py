"""The adapter for Anthropic's Messages API.

Instructions stand beside the conversation, results of tools come from the user, and the tokens of an answer must be
bounded. Blocks of thought are carried along unread, since the vendor wants them back after a tool's result.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agent3.identity.secrets import Secret, Vault
from agent3.jsonrpc import Frame
from agent3.llm.port import (
    Assistant,
    Content,
    Finish,
    Message,
    Price,
    Reply,
    System,
    Text,
    Tool,
    ToolResult,
    Usage,
    User,
    parse_tool_calls,
)
from agent3.llm.tools import Names, encode_parameters, shorten
from agent3.llm.vendor import GrowingReply, VendorModel
from agent3.llm.vendor_http import VendorFailure, decode, parse_vendor_error

if TYPE_CHECKING:
    from agent3.security.outbound import Gate

__all__ = ["Anthropic"]

_LONGEST_DESCRIPTION = 8192
_VERSION = "2026-10-21"
_WITH_TEMPERATURE = "2023-06-01"
"""The last version of the API that takes a temperature; both are served side by side."""
_MAX_TOKENS = 4096


class Anthropic(VendorModel):
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
        super().__init__(
            model,
            base_url,
            key=key,
            header=lambda secret: {"x-api-key": secret},
            price=price,
            options=options,
            headers=headers,
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
        """One reply; see ``LLM.complete``."""
        names = Names.of(tools, messages)
        # The conversation in turns: all results of one turn must stand in the one message that follows it.
        turns: list[dict[str, Any]] = []
        for message in messages:
            if isinstance(message, System):
                continue
            role = "assistant" if isinstance(message, Assistant) else "user"
            blocks = _encode_blocks(message, names)
            if not blocks:  # an empty turn is refused
                continue
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += blocks
            else:
                turns.append({"role": role, "content": blocks})
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens or _MAX_TOKENS,
            "messages": turns,
        }
        if system := "\n\n".join(message.text for message in messages if isinstance(message, System)):
            body["system"] = system
        if tools:
            body["tools"] = [_encode_tool(tool, names) for tool in tools]
        version = _VERSION
        if temperature is not None:
            body["temperature"], version = temperature, _WITH_TEMPERATURE
        if stop:
            body["stop_sequences"] = list(stop)
        body |= self._options
        if on_text is not None:
            body["stream"] = True
        return await self._endpoint.post(
            "/v1/messages",
            body,
            lambda: _Reply(self._endpoint.place, names, self.price),
            on_text,
            {"anthropic-version": version},
        )


# --- encoding ---------------------------------------------------------------------------------------------------------


def _encode_tool(tool: Tool, names: Names) -> dict[str, Any]:
    schema = encode_parameters(tool, longest=_LONGEST_DESCRIPTION)
    encoded: dict[str, Any] = {"name": names.wire(tool.name), "input_schema": schema}
    if tool.description:
        encoded["description"] = shorten(tool.description, _LONGEST_DESCRIPTION)
    return encoded


def _encode_blocks(message: User | Assistant | ToolResult, names: Names) -> list[dict[str, Any]]:
    match message:
        case User(content):
            return _encode_content(content)
        case ToolResult(call, _, content, error):
            result = {"type": "tool_result", "tool_use_id": call, "content": _encode_content(content)}
            return [{**result, "is_error": True} if error else result]
        case Assistant(text, calls, kept):
            uses = [
                {"type": "tool_use", "id": call.id, "name": names.wire(call.name), "input": call.arguments}
                for call in calls
            ]
            if not kept:
                return [*_encode_content(text), *uses]
            # Thoughts are signed together with their order, so the calls go back to where they stood.
            waiting = iter(uses)
            return [next(waiting, block) if block.get("type") == "tool_use" else block for block in kept]


def _encode_content(content: Content) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    for part in (Text(content),) if isinstance(content, str) else content:
        if isinstance(part, Text):
            if part.text.strip():  # blank text is refused
                encoded.append({"type": "text", "text": part.text})
        elif part.url:
            encoded.append({"type": "image", "source": {"type": "url", "url": part.url}})
        else:
            data = base64.b64encode(part.data).decode()
            source = {"type": "base64", "media_type": part.media_type, "data": data}
            encoded.append({"type": "image", "source": source})
    return encoded


# --- decoding ---------------------------------------------------------------------------------------------------------


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
_READ = ("text", "tool_use")


class _Reply(GrowingReply):
    """The reply so far: the content blocks by their index."""

    def __init__(self, place: str, names: Names, price: Price | None):
        super().__init__(place, names, price)
        self._blocks: dict[int, dict[str, Any]] = {}
        self._usage = _Usage()

    def parse(self, body: bytes) -> Reply:
        self._begin(decode(body, _Message, self._place))
        return self.reply()

    def feed(self, frame: Frame) -> str:
        if not frame.data:
            return ""
        event = decode(frame.data, _Event, self._place)
        match event.type:
            case "error":
                raise VendorFailure(parse_vendor_error(event.error))
            case "message_start" if event.message is not None:
                self._begin(event.message)
            case "content_block_start" if event.content_block is not None:
                self._blocks[event.index] = event.content_block
                return str(event.content_block.get("text", ""))
            case "content_block_delta" if (delta := event.delta) is not None:
                block = self._blocks.setdefault(event.index, {"type": "text", "text": ""})
                for key, more in (("text", delta.text), ("thinking", delta.thinking), ("signature", delta.signature)):
                    if more:
                        block[key] = block.get(key, "") + more
                if delta.partial_json:  # the input begins as {} and is then sent as text
                    written = block.get("input")
                    block["input"] = (written if isinstance(written, str) else "") + delta.partial_json
                return delta.text
            case "message_delta":
                self._count(event.usage)
                self._finish = event.delta.stop_reason if event.delta else None
            case "message_stop":
                self.ended = True
        return ""  # pings, and whatever the vendor may add

    def _begin(self, message: _Message) -> None:
        self._blocks.update(enumerate(message.content))
        self._model = message.model
        self._finish = message.stop_reason
        self._count(message.usage)

    def _count(self, usage: _Usage | None) -> None:
        """Each count replaces the one before: they are totals, not increments."""
        for name in _Usage.__struct_fields__:
            if usage is not None and (count := getattr(usage, name)) is not None:
                setattr(self._usage, name, count)

    def reply(self) -> Reply:
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        calls = parse_tool_calls(
            [(str(use.get("id", "")), self._names.real(str(use.get("name", ""))), use.get("input")) for use in uses]
        )
        text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
        kept: tuple[dict[str, Any], ...] = ()
        if any(block.get("type") not in _READ for block in blocks):
            # Of a call only its place is kept: its name and arguments are those of the reply.
            kept = tuple(
                {"type": "tool_use"} if block.get("type") == "tool_use" else block
                for block in blocks
                if block.get("text") != ""
            )
        # Unlike others, this vendor does not count cached tokens among the input.
        usage, cached = self._usage, self._usage.cache_read_input_tokens or 0
        given = (usage.input_tokens or 0) + (usage.cache_creation_input_tokens or 0) + cached
        cost = Usage(given, usage.output_tokens or 0, cached).with_cost(self._price)
        return Reply(text, calls, cost, _FINISH.get(self._finish or "", "other"), self._model, kept)
