"""The adapter for OpenAI's Chat Completions and everything that speaks it: Azure, Ollama, vLLM, OpenRouter.

The servers differ in small ways, and each tolerance here is for one that does so: usage in a last chunk without
choices, arguments as an object, calls without ids or all with the index 0, errors inside an answer of status 200.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from agent3 import bridge
from agent3.errors import MalformedResponse
from agent3.identity.secrets import Secret, Vault
from agent3.jsonrpc import Frame
from agent3.llm.endpoint import Endpoint, ToldNo, decoded, trouble_of
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
    plain,
    tool_calls,
)
from agent3.llm.tools import Names, parameters, shortened

if TYPE_CHECKING:
    from agent3.security.outbound import Gate

__all__ = ["OpenAICompatible"]

_DESCRIPTION = 1024
"""Characters; OpenAI refuses the whole request for one more."""


class OpenAICompatible:
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
        self.model = model
        self.price = price
        self._options = dict(options or {})
        self._portable = portable_schemas
        self._azure = api_version is not None
        self._path = _azure_path(base_url, model, api_version) if api_version is not None else "/chat/completions"
        self._endpoint = Endpoint(
            base_url,
            key=key,
            header=_api_key if self._azure else _bearer,
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
        body: dict[str, Any] = {"model": self.model, "messages": _messages(messages, names)}
        if tools:
            body["tools"] = [self._tool(tool, names) for tool in tools]
        body |= _given({self._limit: max_tokens, "temperature": temperature, "stop": list(stop or ()) or None})
        body |= self._options

        def read(answer: bytes) -> Reply:
            return self._read(answer, names)

        if on_text is None:
            return await self._endpoint.send(self._path, body, read)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        pieces = _Pieces.factory(self._endpoint.place, names, self.price)
        return await self._endpoint.stream(self._path, body, read, pieces, on_text)

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

    @property
    def _limit(self) -> str:
        # OpenAI's reasoning models refuse max_tokens; most of the others know nothing else.
        host = urlsplit(self._endpoint.url).hostname
        return "max_completion_tokens" if self._azure or host == "api.openai.com" else "max_tokens"

    def _tool(self, tool: Tool, names: Names) -> dict[str, Any]:
        function: dict[str, Any] = {
            "name": names.wire(tool.name),
            "parameters": parameters(tool, text=_DESCRIPTION, portable=self._portable),
        }
        if tool.description:
            function["description"] = shortened(tool.description, _DESCRIPTION)
        return {"type": "function", "function": function}

    def _read(self, answer: bytes, names: Names) -> Reply:
        place = self._endpoint.place
        whole = _checked(decoded(answer, _Answer, place))
        if not whole.choices or whole.choices[0].message is None:
            raise MalformedResponse(f"{place} answered without a choice; check that it speaks Chat Completions.")
        pieces = _Pieces(place, names, self.price)
        pieces.take(whole)
        return pieces.reply()


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _api_key(key: str) -> dict[str, str]:
    return {"api-key": key}


def _azure_path(base_url: str, deployment: str, version: str) -> str:
    there = "/openai/deployments/" in base_url
    path = "" if there else f"/openai/deployments/{quote(deployment, safe='')}"
    return f"{path}/chat/completions?api-version={quote(version, safe='')}"


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


# --- what is sent -----------------------------------------------------------------------------------------------------


def _messages(messages: Sequence[Message], names: Names) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    pictures: list[Image] = []
    for message in messages:
        if pictures and not isinstance(message, ToolResult):
            sent.append(_shown(pictures))
            pictures = []
        if isinstance(message, ToolResult):
            pictures += _images(message)
        sent.append(_message(message, names))
    return [*sent, _shown(pictures)] if pictures else sent


def _message(message: Message, names: Names) -> dict[str, Any]:
    match message:
        case System(text):
            return {"role": "system", "content": text}
        case User(content):
            return {"role": "user", "content": content if isinstance(content, str) else [*map(_part, content)]}
        case ToolResult(call, _, content):
            note = "[The picture follows.]" if _images(message) else ""
            return {"role": "tool", "tool_call_id": call, "content": "\n".join(filter(None, [plain(content), note]))}
        case Assistant():
            return _assistant(message, names)


def _assistant(message: Assistant, names: Names) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.calls else "")}
    if message.calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": names.wire(call.name), "arguments": msgspec.json.encode(call.arguments).decode()},
            }
            for call in message.calls
        ]
    return said


def _images(message: ToolResult) -> list[Image]:
    return [] if isinstance(message.content, str) else [one for one in message.content if isinstance(one, Image)]


def _shown(pictures: Sequence[Image]) -> dict[str, Any]:
    """Pictures of tools, in the mouth of the user: a message of the role ``tool`` may hold text only."""
    return {"role": "user", "content": [{"type": "text", "text": "Pictures of the tools:"}, *map(_part, pictures)]}


def _part(part: Text | Image) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    url = part.url or f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


# --- what comes back --------------------------------------------------------------------------------------------------


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


def _checked(answer: _Answer) -> _Answer:
    if answer.error is not None:
        raise ToldNo(trouble_of(answer.error))
    return answer


_FINISH: dict[str, Finish] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refused",
}


class _Pieces:
    """The reply so far."""

    def __init__(self, place: str, names: Names, price: Price | None):
        self.ended = False
        self._place = place
        self._names = names
        self._price = price
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._usage = Usage()
        self._finish: str | None = None
        self._refused = False
        self._model = ""

    @classmethod
    def factory(cls, place: str, names: Names, price: Price | None) -> Callable[[], _Pieces]:
        return lambda: cls(place, names, price)

    def feed(self, frame: Frame) -> str:
        if frame.data.strip() == b"[DONE]":
            self.ended = True
            return ""
        return self.take(_checked(decoded(frame.data, _Answer, self._place))) if frame.data else ""

    def take(self, answer: _Answer) -> str:
        """Add an answer or a chunk; the text in it."""
        self._model = answer.model or self._model
        if answer.usage is not None:
            self._usage = _counted(answer.usage)
        return "".join([self._choice(choice) for choice in (answer.choices or ())[:1]])

    def _choice(self, choice: _Choice) -> str:
        if choice.finish_reason:
            self._finish = choice.finish_reason
            self.ended = True  # not every server says [DONE]
        said = choice.delta or choice.message
        if said is None:
            return ""
        for call in said.tool_calls or ():
            self._add(call)
        self._refused = self._refused or bool(said.refusal)
        text = _text_of(said.content) or (said.refusal or "")
        self._text.append(text)
        return text

    def _add(self, piece: _Call) -> None:
        call = self._same(piece)
        if call is None:
            self._calls.append(_Call(piece.index, piece.id, piece.function or _Function()))
            return
        function, more = call.function, piece.function
        if function is None or more is None:
            return
        function.name = function.name or more.name
        if isinstance(more.arguments, str):
            function.arguments = (function.arguments or "") + more.arguments

    def _same(self, piece: _Call) -> _Call | None:
        """The call that this piece continues. An id of its own begins another one, whatever its index says."""
        fits: Iterable[_Call] = reversed(self._calls)
        if piece.index is not None:
            fits = (call for call in fits if call.index == piece.index)
        found = next(iter(fits), None)
        return None if found is None or (piece.id and piece.id != found.id) else found

    def reply(self) -> Reply:
        calls = tool_calls([self._asked(call) for call in self._calls])
        finish = _FINISH.get(self._finish or "stop", "other")
        if self._refused:
            finish = "refused"
        elif calls and finish == "stop":  # some servers end a turn of calls with "stop"
            finish = "tool_calls"
        return Reply("".join(self._text), calls, self._usage.priced(self._price), finish, self._model)

    def _asked(self, call: _Call) -> tuple[str, str, Any]:
        function = call.function or _Function()
        return call.id or "", self._names.real(function.name or ""), function.arguments


def _text_of(content: Any) -> str:
    if isinstance(content, list):  # some servers answer in parts
        return "".join(one["text"] for one in content if isinstance(one, dict) and isinstance(one.get("text"), str))
    return content if isinstance(content, str) else ""


def _counted(usage: _Usage) -> Usage:
    cached = (usage.prompt_tokens_details.cached_tokens or 0) if usage.prompt_tokens_details else 0
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens or 0, cached, usage.cost)
