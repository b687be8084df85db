"""The adapter for OpenAI's Chat Completions and everything that speaks it: Azure, Ollama, vLLM, OpenRouter.

The servers differ in small ways, and each tolerance here is for one of them: usage in a last chunk without choices,
arguments as an object, calls without ids or all with the index 0, errors inside an answer of status 200.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from agent3.errors import MalformedResponse
from agent3.identity.secrets import Secret, Vault
from agent3.jsonrpc import Frame
from agent3.llm.port import (
    Assistant,
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
    parse_tool_calls,
    plain,
)
from agent3.llm.tools import Names, encode_parameters, shorten
from agent3.llm.vendor import GrowingReply, VendorModel
from agent3.llm.vendor_http import VendorFailure, decode, parse_vendor_error

if TYPE_CHECKING:
    from agent3.security.outbound import Gate

__all__ = ["OpenAICompatible"]

_LONGEST_DESCRIPTION = 1024
"""Characters; OpenAI refuses the whole request for one more."""


class OpenAICompatible(VendorModel):
    """An ``LLM`` behind an address that speaks Chat Completions.

    ``base_url`` ends where ``/chat/completions`` begins: ``https://api.openai.com/v1``, ``http://localhost:11434/v1``.
    ``key`` is a reference such as ``env:OPENAI_API_KEY``, or a Secret. With ``api_version`` it speaks Azure's form:
    ``base_url`` is the resource's address and ``model`` the deployment. ``options`` go into every request as they are.
    ``portable_schemas`` is for servers that refuse JSON Schema keywords they do not know. ``timeout`` bounds a
    completion with all its ``retries``. Close it with ``aclose`` or ``async with`` in each event loop that used it.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        key: str | Secret | None = None,
        *,
        api_version: str | None = None,
        price: Price | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        portable_schemas: bool = False,
        timeout: float = 120.0,
        retries: int = 2,
        vault: Vault | None = None,
        gate: Gate | None = None,
    ):
        azure = api_version is not None
        super().__init__(
            model,
            base_url,
            key=key,
            header=lambda secret: {"api-key": secret} if azure else {"Authorization": f"Bearer {secret}"},
            price=price,
            options=options,
            headers=headers,
            timeout=timeout,
            retries=retries,
            vault=vault,
            gate=gate,
        )
        self._portable = portable_schemas
        # OpenAI's reasoning models refuse max_tokens; most of the others know nothing else.
        modern = azure or urlsplit(base_url).hostname == "api.openai.com"
        self._limit = "max_completion_tokens" if modern else "max_tokens"
        self._path = "/chat/completions"
        if api_version is not None:
            self._path += f"?api-version={quote(api_version, safe='')}"
            if "/openai/deployments/" not in base_url:
                self._path = f"/openai/deployments/{quote(model, safe='')}{self._path}"

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
        body: dict[str, Any] = {"model": self.model, "messages": _encode_messages(messages, names)}
        if tools:
            body["tools"] = [_encode_tool(tool, names, portable=self._portable) for tool in tools]
        limits = {self._limit: max_tokens, "temperature": temperature, "stop": list(stop or ()) or None}
        body |= {key: value for key, value in limits.items() if value is not None}
        body |= self._options
        if on_text is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return await self._endpoint.post(
            self._path, body, lambda: _Reply(self._endpoint.place, names, self.price), on_text
        )


# --- encoding ---------------------------------------------------------------------------------------------------------


def _encode_tool(tool: Tool, names: Names, *, portable: bool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": names.wire(tool.name),
        "parameters": encode_parameters(tool, longest=_LONGEST_DESCRIPTION, portable=portable),
    }
    if tool.description:
        function["description"] = shorten(tool.description, _LONGEST_DESCRIPTION)
    return {"type": "function", "function": function}


def _encode_messages(messages: Sequence[Message], names: Names) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    pictures: list[Image] = []

    def show_pictures() -> None:
        # A message of the role "tool" may hold text only, so the pictures of tools follow in the user's name.
        if pictures:
            text = {"type": "text", "text": "Pictures of the tools:"}
            encoded.append({"role": "user", "content": [text, *map(_encode_part, pictures)]})
            pictures.clear()

    for message in messages:
        if not isinstance(message, ToolResult):
            show_pictures()
        match message:
            case System(text):
                encoded.append({"role": "system", "content": text})
            case User(content):
                parts: Any = content if isinstance(content, str) else [*map(_encode_part, content)]
                encoded.append({"role": "user", "content": parts})
            case ToolResult(call, _, content):
                images = [] if isinstance(content, str) else [part for part in content if isinstance(part, Image)]
                pictures += images
                lines = [plain(content), "[The picture follows.]" if images else ""]
                encoded.append({"role": "tool", "tool_call_id": call, "content": "\n".join(filter(None, lines))})
            case Assistant(text, calls):
                said: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
                if calls:
                    said["tool_calls"] = [
                        {
                            "id": asked.id,
                            "type": "function",
                            "function": {
                                "name": names.wire(asked.name),
                                "arguments": msgspec.json.encode(asked.arguments).decode(),
                            },
                        }
                        for asked in calls
                    ]
                encoded.append(said)
    show_pictures()
    return encoded


def _encode_part(part: Text | Image) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    url = part.url or f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


# --- decoding ---------------------------------------------------------------------------------------------------------


class _Function(Struct):
    name: str | None = None
    arguments: Any = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(Struct):
    content: Any = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    cost: float | None = None


class _Answer(Struct):
    """A whole answer, or one chunk of a stream: they differ in ``message`` and ``delta`` only."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


_FINISH: dict[str, Finish] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refused",
}


class _Reply(GrowingReply):
    """The reply so far."""

    def __init__(self, place: str, names: Names, price: Price | None):
        super().__init__(place, names, price)
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._usage = Usage()
        self._refused = False

    def parse(self, body: bytes) -> Reply:
        answer = decode(body, _Answer, self._place)
        self._take(answer)
        if not answer.choices or answer.choices[0].message is None:
            raise MalformedResponse(f"{self._place} answered without choices; check that it supports Chat Completions.")
        return self.reply()

    def feed(self, frame: Frame) -> str:
        if frame.data.strip() == b"[DONE]":
            self.ended = True
            return ""
        return self._take(decode(frame.data, _Answer, self._place)) if frame.data else ""

    def _take(self, answer: _Answer) -> str:
        """Add a whole answer or a chunk; return the text in it."""
        if answer.error is not None:
            raise VendorFailure(parse_vendor_error(answer.error))
        self._model = answer.model or self._model
        if (usage := answer.usage) is not None:
            cached = (usage.prompt_tokens_details.cached_tokens or 0) if usage.prompt_tokens_details else 0
            self._usage = Usage(usage.prompt_tokens or 0, usage.completion_tokens or 0, cached, usage.cost)
        if not answer.choices:
            return ""
        choice = answer.choices[0]
        if choice.finish_reason:
            self._finish = choice.finish_reason
            self.ended = True  # not every server says [DONE]
        said = choice.delta or choice.message
        if said is None:
            return ""
        for piece in said.tool_calls or ():
            self._add_call(piece)
        self._refused = self._refused or bool(said.refusal)
        text = said.content if isinstance(said.content, str) else ""
        if isinstance(said.content, list):  # some servers answer in parts
            parts = [part for part in said.content if isinstance(part, dict) and isinstance(part.get("text"), str)]
            text = "".join(part["text"] for part in parts)
        text = text or said.refusal or ""
        self._text.append(text)
        return text

    def _add_call(self, piece: _Call) -> None:
        # A piece continues the last call of its index. An id of its own begins another one, whatever the index says.
        fits: Iterable[_Call] = reversed(self._calls)
        if piece.index is not None:
            fits = (call for call in fits if call.index == piece.index)
        call = next(iter(fits), None)
        if call is None or (piece.id and piece.id != call.id):
            self._calls.append(_Call(piece.index, piece.id, piece.function or _Function()))
            return
        function, more = call.function, piece.function
        if function is None or more is None:
            return
        # The name comes once, usually in the first piece; the arguments come in pieces of JSON text.
        function.name = function.name or more.name
        if isinstance(more.arguments, str):
            function.arguments = (function.arguments or "") + more.arguments

    def reply(self) -> Reply:
        functions = [(call.id or "", call.function or _Function()) for call in self._calls]
        calls = parse_tool_calls(
            [(key, self._names.real(function.name or ""), function.arguments) for key, function in functions]
        )
        finish = _FINISH.get(self._finish or "stop", "other")
        if self._refused:
            finish = "refused"
        elif calls and finish == "stop":  # some servers end a turn of calls with "stop"
            finish = "tool_calls"
        return Reply("".join(self._text), calls, self._usage.with_cost(self._price), finish, self._model)
