"""The fast lane: regular requests answered straight from bytes, everything else handed to the official SDK.

A request is regular when it is complete in itself: ``tools/call`` without progress, log level or answers,
``tools/list``, ``server/discover`` and ``ping``, with the headers the protocol asks for. Both lanes end in the same
tool set, so a caller cannot tell them apart but by the clock. Whatever is irregular, wrong or unknown is not judged
here: it goes to the SDK untouched, which knows the right refusal. Lists are the SDK's own answers, remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3.calls.driving import Left, watched
from agent3.calls.outcomes import failed_by
from agent3.env import REAL, Env
from agent3.errors import Agent3Error
from agent3.jsonrpc import SSEParser, check_bytes
from agent3.mcp.offers import Caller
from agent3.mcp.protocol import OUTCOME, MCPDoor, failure_form, failure_text
from agent3.mcp.requests import powers_in
from agent3.model import Done, Event, Failed, Outcome, Part, Principal
from agent3.observe.logs import get as logger

__all__ = ["FastLane"]

log = logger("mcp")

MODERN = b"2026-07-28"
LEGACY = frozenset({b"2025-03-26", b"2025-06-18", b"2025-11-25"})
REFRESH = 600.0
"""Seconds after which one request of a legacy session goes to the SDK again, whose idle timer would else run out."""
PAGES = 1_000
SESSIONS = 10_000


class _Meta(Struct):
    version: str | None = msgspec.field(name="io.modelcontextprotocol/protocolVersion", default=None)
    capabilities: dict[str, Any] | None = msgspec.field(name="io.modelcontextprotocol/clientCapabilities", default=None)
    info: dict[str, Any] | UnsetType = msgspec.field(name="io.modelcontextprotocol/clientInfo", default=UNSET)
    level: Raw | UnsetType = msgspec.field(name="io.modelcontextprotocol/logLevel", default=UNSET)
    progress: Raw | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    traceparent: str | UnsetType = UNSET


class _Params(Struct):
    name: str | None = None
    arguments: dict[str, Any] | None = None
    cursor: str | None = None
    meta: _Meta | None = msgspec.field(name="_meta", default=None)
    responses: Raw | UnsetType = msgspec.field(name="inputResponses", default=UNSET)
    state: Raw | UnsetType = msgspec.field(name="requestState", default=UNSET)
    task: Raw | UnsetType = UNSET


class _Request(Struct):
    jsonrpc: str
    id: int | str
    method: str
    params: _Params = msgspec.field(default_factory=_Params)


class _Answer(Struct):
    """An answer of the SDK's, of which the result is kept as bytes."""

    result: Raw | UnsetType = UNSET


class _Heard:
    """What the fast lane reads of a request's headers, in one pass."""

    __slots__ = ("host", "method", "name", "origin", "plain", "session", "version")

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]):
        self.version = self.method = self.name = self.session = self.host = b""
        self.origin = False
        accepts = json = False
        self.plain = True
        for key, value in headers:
            if key == b"mcp-protocol-version":
                self.version = value
            elif key == b"mcp-method":
                self.method = value
            elif key == b"mcp-name":
                self.name = value
            elif key == b"mcp-session-id":
                self.session = value
            elif key == b"host":
                self.host = value
            elif key == b"origin":
                self.origin = True
            elif key == b"accept":
                accepts = b"application/json" in value and b"text/event-stream" in value
            elif key == b"content-type":
                json = value.split(b";", 1)[0].strip() == b"application/json"
            elif key.startswith(b"mcp-param-") or key == b"last-event-id" or key == b"content-encoding":
                self.plain = False
        self.plain = self.plain and accepts and json


class FastLane:
    """An ASGI app in front of a door, which keeps whatever is not regular."""

    def __init__(self, door: MCPDoor, *, env: Env = REAL):
        self._door = door
        self._slow: ASGIApp = door.asgi()
        self._toolset = door.toolset
        self._principal = door.principal
        self._max_body = door.max_body
        self._env = env
        self._hosts: dict[bytes, bool] = {}
        info = {"io.modelcontextprotocol/serverInfo": {"name": door.name, "version": door.version}}
        self._server_info = msgspec.json.encode(info)
        self._pages: OrderedDict[Hashable, bytes] = OrderedDict()
        self._sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._forward(scope, receive, send)
            return
        heard = _Heard(scope["headers"])
        if not heard.plain or heard.origin or not self._known(heard.host):
            await self._forward(scope, receive, send)
            return
        body = await _body(receive, self._max_body)
        if body is None:
            return
        request = _parse(body) if len(body) <= self._max_body else None
        if request is None or not await self._answered(request, heard, scope, receive, send):
            more = len(body) > self._max_body
            await self._remembering(request, heard, scope, _again(body, receive, more=more), send)

    # What is regular

    async def _answered(self, request: _Request, heard: _Heard, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer it here if it is regular; False where the SDK has to."""
        modern = heard.version == MODERN
        if not (_is_modern(request, heard) if modern else self._is_legacy(request, heard)):
            return False
        principal = self._principal_of(scope, heard, modern)
        if principal is None:
            return False
        if request.method == "tools/call":
            if not self._door.regular(
                request.params.name or "", session=heard.session.decode("latin-1"), can=_can(request)
            ):
                return False
            return await self._call(request, principal, modern, scope, receive, send)
        page = self._pages.get(self._page_key(request, heard.version, principal))
        if page is None:
            return False
        await _send(send, _envelope(request.id, page), heard.session)
        return True

    def _known(self, host: bytes) -> bool:
        known = self._hosts.get(host)
        if known is None:
            known = self._door.answers_to(host.decode("latin-1"))
            if len(self._hosts) < 1_000:
                self._hosts[host] = known
        return known

    def _is_legacy(self, request: _Request, heard: _Heard) -> bool:
        if heard.version not in LEGACY or request.method not in ("tools/call", "tools/list", "ping"):
            return False
        meta = request.params.meta
        if meta is not None and not (isinstance(meta.progress, UnsetType) and isinstance(meta.level, UnsetType)):
            return False
        return heard.session in self._sessions and isinstance(request.params.task, UnsetType)

    def _principal_of(self, scope: Scope, heard: _Heard, modern: bool) -> Principal | None:
        """Who calls; None sends the request to the other lane, which refuses in the protocol's words."""
        try:
            principal = self._principal(scope)
        except Agent3Error:
            return None
        if modern:
            return principal
        owner, since = self._sessions[heard.session]
        if owner != principal.id or self._env.monotonic() - since > REFRESH:
            return None
        return principal

    # tools/call

    async def _call(
        self, request: _Request, principal: Principal, modern: bool, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        params = request.params
        trace = params.meta.traceparent if params.meta is not None else UNSET
        can = _can(request)
        caller = Caller(
            principal=principal,
            listener=_ignore,
            era="modern" if modern else "legacy",
            can_elicit="form" in can,
            traceparent=trace if isinstance(trace, str) else None,
            can=can,
        )
        assert params.name is not None
        turn = self._turn(params.name, params.arguments or {}, caller)
        # A modern client that hangs up cancels; a legacy one only lets go.
        try:
            outcome = await watched(turn, lambda: _hung_up(receive)) if modern else await turn
        except Left:
            return True
        if isinstance(outcome, Done | Failed) and (result := self._result(outcome, modern)) is not None:
            await _send(send, _envelope(request.id, result), b"")
            return True
        scope[OUTCOME] = outcome
        return False

    async def _turn(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """What goes wrong is an outcome. The tool itself is there: only those that were listed are regular."""
        try:
            return await self._toolset.call(name, arguments, caller)
        except Agent3Error as error:
            return failed_by(error)
        except Exception:
            log.exception("The tool %s failed inside the gateway", name)
            return Failed("internal", f"{name} failed inside the gateway; its log says why")

    def _result(self, outcome: Done | Failed, modern: bool) -> bytes | None:
        """The result as the SDK would write it; None for content that only the SDK's types can carry."""
        if outcome.artifacts or len(outcome.parts) > 1:
            return None
        body: dict[str, Any] = {}
        if isinstance(outcome, Failed):
            if outcome.parts and not isinstance(outcome.parts[0].data, dict):
                return None
            body["content"] = [{"type": "text", "text": failure_text(outcome)}]
            body["structuredContent"] = outcome.parts[0].data if outcome.parts else failure_form(outcome)
        elif outcome.meta or not _fill(body, outcome.parts, modern):
            return None
        body["isError"] = isinstance(outcome, Failed)
        if modern:
            body |= {"resultType": "complete", "_meta": Raw(self._server_info)}
        return _encode(body)

    # Lists: the SDK's own answers, remembered

    def _page_key(self, request: _Request, version: bytes, principal: Principal) -> Hashable:
        if request.method != "tools/list":
            return (request.method, version)
        fingerprint = getattr(self._toolset, "fingerprint", None)
        if fingerprint is None:
            return object()
        return (request.method, version, request.params.cursor, fingerprint(principal))

    async def _remembering(
        self, request: _Request | None, heard: _Heard, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Hand it to the SDK, and keep what it says where it will say the same again."""
        key: Hashable | None = None
        if request is not None and request.method in ("tools/list", "server/discover", "ping"):
            key = self._key_if_regular(request, heard, scope)
        if key is None:
            await self._forward(scope, receive, send)
            return
        recorder = _Recorder(send)
        await self._forward(scope, receive, recorder)
        if (result := recorder.result()) is not None:
            self._pages[key] = result
            if len(self._pages) > PAGES:
                self._pages.popitem(last=False)

    def _key_if_regular(self, request: _Request, heard: _Heard, scope: Scope) -> Hashable | None:
        modern = heard.version == MODERN
        if not (_is_modern(request, heard) if modern else self._is_legacy(request, heard)):
            return None
        principal = self._principal_of(scope, heard, modern)
        return self._page_key(request, heard.version, principal) if principal is not None else None

    # The SDK's lane

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the SDK; legacy sessions that it opens or closes are noted on the way."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, message)
            await send(message)

        await self._slow(scope, receive, noting)

    def _note(self, scope: Scope, message: Message) -> None:
        session = next((value for key, value in message["headers"] if key.lower() == b"mcp-session-id"), b"")
        if scope["method"] == "DELETE" or message["status"] >= 400:
            given = next((value for key, value in scope["headers"] if key == b"mcp-session-id"), b"")
            self._sessions.pop(given, None)
            return
        if session:
            try:
                owner = self._principal(scope).id
            except Agent3Error:
                return
            self._sessions[session] = (owner, self._env.monotonic())
            self._sessions.move_to_end(session)
            if len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)


class _Recorder:
    """Passes an answer on and keeps its body."""

    def __init__(self, send: Send):
        self._send = send
        self._status = 0
        self._stream = False
        self._body: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            kind = next((value for key, value in message["headers"] if key.lower() == b"content-type"), b"")
            self._stream = kind.startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            self._body.append(message.get("body", b""))
        await self._send(message)

    def result(self) -> bytes | None:
        """The bytes of its result, if it has one."""
        body = b"".join(self._body)
        if self._status != 200:
            return None
        if self._stream:
            frames = [frame.data for frame in SSEParser().feed(body) if frame.data]
            body = frames[0] if len(frames) == 1 else b""
        try:
            result = msgspec.json.decode(body, type=_Answer).result
        except msgspec.DecodeError:
            return None
        return bytes(result) if isinstance(result, Raw) else None


_decoder = msgspec.json.Decoder(_Request)
_encode = msgspec.json.encode


def _parse(body: bytes) -> _Request | None:
    """The request, if it has a regular shape."""
    try:
        check_bytes(body)
        request = _decoder.decode(body)
    except (msgspec.DecodeError, Agent3Error, RecursionError, UnicodeDecodeError):
        return None
    return request if request.jsonrpc == "2.0" and not isinstance(request.id, bool) else None


_NOTHING: frozenset[str] = frozenset()


def _can(request: _Request) -> frozenset[str]:
    """What the client of a modern request says it can do."""
    meta = request.params.meta
    return powers_in(meta.capabilities) if meta is not None and meta.capabilities else _NOTHING


def _is_modern(request: _Request, heard: _Heard) -> bool:
    method, params = request.method, request.params
    if method not in ("tools/call", "tools/list", "server/discover") or heard.method != method.encode():
        return False
    if method == "tools/call" and (params.name is None or heard.name != params.name.encode()):
        return False
    meta = params.meta
    if meta is None or meta.version != "2026-07-28" or meta.capabilities is None or heard.session:
        return False
    unset = (meta.progress, meta.level, params.responses, params.state, params.task)
    return all(isinstance(one, UnsetType) for one in unset)


def _fill(body: dict[str, Any], parts: tuple[Part, ...], modern: bool) -> bool:
    """Content and structured content of at most one part; False for parts that are neither text nor data."""
    if not parts:
        body["content"] = []
        return True
    part = parts[0]
    if part.meta or part.name or part.media_type:
        return False
    if part.text is not None:
        body["content"] = [{"type": "text", "text": part.text}]
        return True
    if isinstance(part.data, UnsetType):
        return False
    body["content"] = [{"type": "text", "text": _encode(part.data).decode()}]
    body["structuredContent"] = part.data if modern or isinstance(part.data, dict) else {"result": part.data}
    return True


def _envelope(key: int | str, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + _encode(key) + b',"result":' + result + b"}"


async def _send(send: Send, body: bytes, session: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if session:
        headers.append((b"mcp-session-id", session))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The body, or the first ``limit`` bytes and a little more of it; None when the client left."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        if not chunks and not message.get("more_body", False):
            return bytes(chunk)
        chunks.append(chunk)
        size += len(chunk)
        if not message.get("more_body", False) or size > limit:
            return b"".join(chunks)


def _again(body: bytes, receive: Receive, *, more: bool) -> Receive:
    """A receive that tells the body once more, then goes on with the real one."""
    told = False

    async def replay() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": more}

    return replay


async def _hung_up(receive: Receive) -> None:
    message = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()


def _ignore(event: Event) -> None:
    return
