"""The fast lane: regular requests answered straight from bytes, everything else handed to the official SDK.

A request is regular when it is complete in itself: ``tools/call`` without progress, log level or answers,
``tools/list``, ``server/discover`` and ``ping``, with the headers the protocol asks for. Both lanes end in the same
tool set, so a caller cannot tell them apart but by the clock. Whatever is irregular, wrong or unknown is not judged
here: it goes to the SDK untouched, which knows the right refusal. Lists are the SDK's own answers, remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3.calls.coroutines import Left, watched
from agent3.calls.outcomes import failed_by
from agent3.env import REAL, Env
from agent3.errors import Agent3Error
from agent3.jsonrpc import SSEParser, check_bytes
from agent3.model import Done, Event, Failed, Part, Principal
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.door.door import OUTCOME, MCPDoor, failure_form, failure_text
from agent3.protocols.mcp.door.requests import powers_in
from agent3.protocols.mcp.door.toolset import PASSED, STRUCTURED, Caller

__all__ = ["FastLane", "HungUp", "Reply", "Visitor"]

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
    capabilities: dict[str, Any] | None = None


class _Request(Struct):
    jsonrpc: str
    id: int | str
    method: str
    params: _Params = msgspec.field(default_factory=_Params)


class _Answer(Struct):
    """An answer of the SDK's, of which the result is kept as bytes."""

    result: Raw | UnsetType = UNSET


HungUp = Callable[[], Coroutine[Any, Any, Any]]


class Reply(NamedTuple):
    """A body of JSON that answers with status 200, and the legacy session it belongs to."""

    body: bytes
    session: bytes = b""


class _Session(NamedTuple):
    """A legacy session: whose it is, when the SDK last saw it, and what its client can do, where that was heard."""

    owner: str
    since: float
    can: frozenset[str] | None


class _Heard:
    """What the fast lane reads of a request's headers. A header that comes twice makes the request irregular."""

    __slots__ = ("forwarded", "host", "method", "name", "origin", "plain", "session", "version")

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]):
        found = dict(headers)
        self.version = found.get(b"mcp-protocol-version", b"")
        self.method = found.get(b"mcp-method", b"")
        self.name = found.get(b"mcp-name", b"")
        self.session = found.get(b"mcp-session-id", b"")
        self.host = found.get(b"host", b"")
        self.origin = b"origin" in found
        self.plain = (
            len(found) == len(headers)
            and _is_plain(found.get(b"accept", b""), found.get(b"content-type", b""))
            and b"last-event-id" not in found
            and b"content-encoding" not in found
            and b"mcp-param-" not in (names := b" ".join(found))
        )
        self.forwarded = not self.plain or b"x-forwarded-" in names
        """Whether a proxy says who the client is, which the server judges on the way to an app."""


@lru_cache(maxsize=256)
def _is_plain(accept: bytes, content_type: bytes) -> bool:
    if len(accept) + len(content_type) > 1_000:
        return False
    json = content_type.split(b";", 1)[0].strip() == b"application/json"
    return json and b"application/json" in accept and b"text/event-stream" in accept


class Visitor:
    """Who sends the same headers again and again: what they say, and who it is, was found out once."""

    __slots__ = ("_heard", "_lane", "_principal")

    def __init__(self, lane: FastLane, heard: _Heard, principal: Principal):
        self._lane = lane
        self._heard = heard
        self._principal = principal

    def reply(self, told: MutableMapping[str, Any], body: bytes, hung_up: HungUp) -> Awaitable[Reply | None]:
        """The answer to a request with this body; None for what is not regular, which then has to come by ASGI.

        An outcome that only the other lane can tell is left in ``told``, for the scope of that request.
        """
        return self._lane.answer(body, self._heard, self._principal, told, hung_up)


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
        self._info = {"io.modelcontextprotocol/serverInfo": door.info}
        self._server_info = Raw(_encode(self._info))
        self._ends = (
            b'"isError":false}',
            b'"isError":false,"resultType":"complete","_meta":%b}' % _encode(self._info),
        )
        """How results without more to say end, of the legacy and of the modern era."""
        self._pages: OrderedDict[Hashable, bytes] = OrderedDict()
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._forward(scope, receive, send)
            return
        heard = _Heard(scope["headers"])
        if OUTCOME in scope or not heard.plain or heard.origin or not self._known(heard.host):
            await self._forward(scope, receive, send)
            return
        body = await _body(receive, self._max_body)
        if body is None:
            return
        request = _parse(body) if len(body) <= self._max_body else None
        try:
            reply = await self._answer(request, heard, scope, lambda: _hung_up(receive)) if request else None
        except Left:
            return
        if reply is not None:
            await _send(send, reply)
            return
        more = len(body) > self._max_body
        await self._remembering(request, heard, scope, _again(body, receive, more=more), send)

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a whole POST, without ASGI; None for what is not regular, which then has to come by ASGI.

        For a server that has both at hand. ``hung_up`` returns when the client does; then this raises ``Left``.
        """
        visitor = self.visitor(scope)
        return await visitor.reply(scope, body, hung_up) if visitor is not None else None

    def visitor(self, scope: Scope) -> Visitor | None:
        """Who sends these headers, for this request and any further one; None where each must come by ASGI."""
        heard = _Heard(scope["headers"])
        if heard.forwarded or heard.origin or not self._known(heard.host):
            return None
        principal = self._principal_of(scope)
        return Visitor(self, heard, principal) if principal is not None else None

    def guest(self, scope: Scope) -> Visitor | None:
        """The same, for a server that knows by the head of a request whose it is."""
        return self.visitor(scope)

    async def answer(
        self, body: bytes, heard: _Heard, principal: Principal, told: MutableMapping[str, Any], hung_up: HungUp
    ) -> Reply | None:
        """What a visitor is answered."""
        request = _parse(body) if len(body) <= self._max_body else None
        if request is None:
            return None
        known = self._regular(request, heard, principal)
        return await self._call(request, known, told, hung_up) if isinstance(known, Caller) else known

    # What is regular

    async def _answer(self, request: _Request, heard: _Heard, scope: Scope, hung_up: HungUp) -> Reply | None:
        """Answer it here if it is regular; None where the SDK has to."""
        principal = self._principal_of(scope)
        known = self._regular(request, heard, principal) if principal is not None else None
        return await self._call(request, known, scope, hung_up) if isinstance(known, Caller) else known

    def _regular(self, request: _Request, heard: _Heard, principal: Principal) -> Caller | Reply | None:
        """Who calls a tool, or the answer to anything else; None for what is not regular."""
        modern = heard.version == MODERN
        if not (_is_modern(request, heard) if modern else self._is_legacy(request, heard, principal)):
            return None
        if request.method == "tools/call":
            can = _can(request) if modern else self._sessions[heard.session].can
            if can is None or not self._door.regular(
                request.params.name or "", session=heard.session.decode("latin-1"), can=can
            ):
                return None
            return _caller(request, principal, can, modern)
        key = self._page_key(request, heard.version, principal)
        page = self._pages.get(key) if key is not None else None
        return None if page is None else Reply(_envelope(request.id, page), heard.session)

    def _known(self, host: bytes) -> bool:
        known = self._hosts.get(host)
        if known is None:
            known = self._door.answers_to(host.decode("latin-1"))
            if len(self._hosts) < 1_000:
                self._hosts[host] = known
        return known

    def _is_legacy(self, request: _Request, heard: _Heard, principal: Principal) -> bool:
        if heard.version not in LEGACY or request.method not in ("tools/call", "tools/list", "ping"):
            return False
        params = request.params
        meta = params.meta
        if meta is not None and (meta.progress is not UNSET or meta.level is not UNSET):
            return False
        session = self._sessions.get(heard.session)
        return session is not None and params.task is UNSET and self._is_of(session, principal)

    def _is_of(self, session: _Session, principal: Principal) -> bool:
        """Whether a session is this caller's, and was seen by the SDK not too long ago."""
        return session.owner == principal.id and self._env.monotonic() - session.since <= REFRESH

    def _principal_of(self, scope: Scope) -> Principal | None:
        """Who calls; None sends the request to the other lane, which refuses in the protocol's words."""
        try:
            return self._principal(scope)
        except Agent3Error:
            return None

    # tools/call

    async def _call(
        self, request: _Request, caller: Caller, told: MutableMapping[str, Any], hung_up: HungUp
    ) -> Reply | None:
        params, modern = request.params, caller.era == "modern"
        assert params.name is not None
        turn = self._toolset.call(params.name, params.arguments or {}, caller)
        try:
            # A modern client that hangs up cancels; a legacy one only lets go.
            outcome = await watched(turn, hung_up) if modern else await turn
        except Left:
            raise
        except Exception as error:  # noqa: BLE001 - logged where it is told
            outcome = _gone_wrong(params.name, error)
        if isinstance(outcome, (Done, Failed)) and (result := self._result(outcome, modern)) is not None:
            return Reply(_envelope(request.id, result))
        told[OUTCOME] = outcome
        return None

    def _result(self, outcome: Done | Failed, modern: bool) -> bytes | None:
        """The result as the SDK would write it; None for content that only the SDK's types can carry."""
        if type(outcome) is Done and (text := _only_text(outcome)) is not None:
            return b'{"content":[{"type":"text","text":%b}],%b' % (_encode(text), self._ends[modern])
        if outcome.artifacts:
            return None
        body: dict[str, Any] = {}
        if isinstance(outcome, Failed):
            if len(outcome.parts) > 1 or PASSED in outcome.data:
                return None
            if outcome.parts and not isinstance(outcome.parts[0].data, dict):
                return None
            body["content"] = [{"type": "text", "text": failure_text(outcome)}]
            body["structuredContent"] = outcome.parts[0].data if outcome.parts else failure_form(outcome)
        elif not _fill(body, outcome.parts, modern):
            return None
        elif outcome.meta:
            body["_meta"] = outcome.meta
        body["isError"] = isinstance(outcome, Failed)
        if modern:
            body["resultType"] = "complete"
            body["_meta"] = {**body["_meta"], **self._info} if "_meta" in body else self._server_info
        return _encode(body)

    # Lists: the SDK's own answers, remembered

    def _page_key(self, request: _Request, version: bytes, principal: Principal) -> Hashable | None:
        """What a page is remembered by; None for a list of which nobody says when it changes."""
        if request.method != "tools/list":
            return (request.method, version)
        fingerprint = getattr(self._toolset, "fingerprint", None)
        if fingerprint is None:
            return None
        return (request.method, version, request.params.cursor, fingerprint(principal))

    async def _remembering(
        self, request: _Request | None, heard: _Heard, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Hand it to the SDK, and keep what it says where it will say the same again."""
        key: Hashable | None = None
        if request is not None and request.method in ("tools/list", "server/discover", "ping"):
            key = self._key_if_regular(request, heard, scope)
        if key is None:
            await self._forward(scope, receive, send, _greeting(request))
            return
        recorder = _Recorder(send)
        await self._forward(scope, receive, recorder)
        if (result := recorder.result()) is not None:
            self._pages[key] = result
            if len(self._pages) > PAGES:
                self._pages.popitem(last=False)

    def _key_if_regular(self, request: _Request, heard: _Heard, scope: Scope) -> Hashable | None:
        principal = self._principal_of(scope)
        if principal is None:
            return None
        modern = heard.version == MODERN
        regular = _is_modern(request, heard) if modern else self._is_legacy(request, heard, principal)
        return self._page_key(request, heard.version, principal) if regular else None

    # The SDK's lane

    async def _forward(self, scope: Scope, receive: Receive, send: Send, can: frozenset[str] | None = None) -> None:
        """To the SDK; legacy sessions that it opens or closes are noted on the way."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(scope, message, can)
            await send(message)

        await self._slow(scope, receive, noting)

    def _note(self, scope: Scope, message: Message, can: frozenset[str] | None) -> None:
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
            known = self._sessions.get(session)
            can = known.can if can is None and known is not None else can
            self._sessions[session] = _Session(owner, self._env.monotonic(), can)
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
_MARKED = {STRUCTURED: True}


def _caller(request: _Request, principal: Principal, can: frozenset[str], modern: bool) -> Caller:
    meta = request.params.meta
    trace = meta.traceparent if meta is not None else UNSET
    return Caller(
        principal=principal,
        listener=_ignore,
        era="modern" if modern else "legacy",
        can_elicit="form" in can,
        traceparent=trace if isinstance(trace, str) else None,
        can=can,
    )


def _can(request: _Request) -> frozenset[str]:
    """What the client of a modern request says it can do."""
    meta = request.params.meta
    return powers_in(meta.capabilities) if meta is not None and meta.capabilities else _NOTHING


def _gone_wrong(name: str, error: Exception) -> Failed:
    """What goes wrong is an outcome. The tool itself is there: only those that were listed are regular."""
    if isinstance(error, Agent3Error):
        return failed_by(error)
    log.error("The tool %s failed inside the gateway", name, exc_info=error)
    return Failed("internal", f"{name} failed inside the gateway; its log says why")


def _greeting(request: _Request | None) -> frozenset[str] | None:
    """What the client of an ``initialize`` can do; legacy clients do not follow tasks."""
    if request is None or request.method != "initialize":
        return None
    return powers_in(request.params.capabilities or {}) - {"tasks"}


def _is_modern(request: _Request, heard: _Heard) -> bool:
    method, params = request.method, request.params
    if method not in ("tools/call", "tools/list", "server/discover") or heard.method != method.encode():
        return False
    if method == "tools/call" and (params.name is None or heard.name != params.name.encode()):
        return False
    meta = params.meta
    if meta is None or meta.version != "2026-07-28" or meta.capabilities is None or heard.session:
        return False
    return (
        meta.progress is UNSET
        and meta.level is UNSET
        and params.responses is UNSET
        and params.state is UNSET
        and params.task is UNSET
    )


def _only_text(outcome: Done) -> str | None:
    """The text of the usual outcome, which has nothing else."""
    if len(outcome.parts) != 1 or outcome.artifacts or outcome.meta:
        return None
    part = outcome.parts[0]
    return None if part.meta or part.name or part.media_type else part.text


def _fill(body: dict[str, Any], parts: tuple[Part, ...], modern: bool) -> bool:
    """Content and structured content of plain texts or one datum; False for what only the SDK's types can carry."""
    texts = [part for part in parts if part.meta != _MARKED]
    if len(texts) < len(parts) or len(texts) != 1:
        return _fill_texts(body, texts, parts[len(texts) :], modern)
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


def _fill_texts(body: dict[str, Any], texts: list[Part], marked: Sequence[Part], modern: bool) -> bool:
    """Texts as a server gave them, with its structured content beside them."""
    if len(marked) > 1 or any(one.text is None or one.meta or one.name or one.media_type for one in texts):
        return False
    body["content"] = [{"type": "text", "text": one.text} for one in texts]
    for one in marked:
        body["structuredContent"] = one.data if modern or isinstance(one.data, dict) else {"result": one.data}
    return True


def _envelope(key: int | str, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + _encode(key) + b',"result":' + result + b"}"


async def _send(send: Send, reply: Reply) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply.body))]
    if reply.session:
        headers.append((b"mcp-session-id", reply.session))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


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
