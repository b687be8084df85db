"""The fast lane: regular requests answered straight from bytes, everything else handed to the official SDK.

A request is regular when it is complete in itself: ``tools/call`` without progress, log level or answers,
``tools/list``, ``server/discover`` and ``ping``, with the headers the protocol asks for. Both lanes end in the same
tool set, so a caller cannot tell them apart except by speed. What is irregular, wrong or unknown is not judged here:
it goes to the SDK untouched, which knows the right refusal. Lists are the SDK's own answers, cached. A legacy call that
takes long is handed to the SDK while it runs: its stream can be taken up again when the connection is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Hashable, MutableMapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from mcp.server.streamable_http_manager import DEFAULT_SESSION_IDLE_TIMEOUT
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3.calls.coroutines import Left, run_watched, start_task, wait_for_task
from agent3.calls.outcomes import failed_by
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, Canceled, NotFound, RateLimited, TooLarge, TooSlow
from agent3.gateway.lanes import HungUp, Reply
from agent3.jsonrpc import SSEParser, check_bytes, error_of
from agent3.model import Done, Failed, Outcome, Principal
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.door.door import OPENING, MCPDoor, refusal
from agent3.protocols.mcp.door.handlers import OUTCOME, Turn
from agent3.protocols.mcp.door.odd_requests import WholeAnswer, mend_body, mend_headers
from agent3.protocols.mcp.door.requests import DEPARTURE, WHOLE, parse_features
from agent3.protocols.mcp.door.results import failure_text, failure_to_dict
from agent3.protocols.mcp.door.rpc_batches import VERSIONS, parse_batch, serve_batch
from agent3.protocols.mcp.door.toolset import Caller, Overheard, ignore_event
from agent3.protocols.mcp.meta_keys import PASSED, RESERVED, STRUCTURED
from agent3.security import via
from agent3.security.limits import COUNTED

__all__ = ["FastLane", "Visitor"]

log = logger("mcp")

MODERN = b"2026-07-28"
LEGACY = frozenset({b"2025-03-26", b"2025-06-18", b"2025-11-25"})
_VIA = via.HEADER.lower().encode()
REFRESH = 600.0
"""Seconds after which one request of a legacy session goes to the SDK again, to keep its idle timer from ending it."""
_BODY_SECONDS = 30.0
"""Seconds for a body, where the server has no deadline of its own; that of a gateway is ``server.body_seconds``."""
_BODY = "agent3.mcp.body"
"""The key in the ASGI scope for the body of a request in a session."""
STREAM_AFTER = 1.0
"""Seconds after which a legacy call under way is answered by a stream that can be resumed, instead of by JSON."""
GONE_AFTER = 15.0
"""Seconds without any connection after which the client of a legacy session is taken to be gone while it is asked."""
MOST_PAGES = 1_000
MOST_SESSIONS = 10_000
MOST_HOSTS = 1_000


class _Meta(Struct, forbid_unknown_fields=True):
    """The keys of ``_meta`` that are read here. What else a client sends is for the server behind the gateway."""

    version: str | None = msgspec.field(name="io.modelcontextprotocol/protocolVersion", default=None)
    capabilities: dict[str, Any] | None = msgspec.field(name="io.modelcontextprotocol/clientCapabilities", default=None)
    info: dict[str, Any] | UnsetType = msgspec.field(name="io.modelcontextprotocol/clientInfo", default=UNSET)
    level: Any = msgspec.field(name="io.modelcontextprotocol/logLevel", default=UNSET)
    progress: Any = msgspec.field(name="progressToken", default=UNSET)
    via: Any = msgspec.field(name=via.META, default=UNSET)
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


class _MarkedRequest(_Request):
    """A request with keys of ``_meta`` that are not ours to read."""

    others: dict[str, Any] = {}


class _OpenParams(_Params):
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)  # type: ignore[assignment]


class _OpenRequest(Struct):
    """A request with any ``_meta``."""

    jsonrpc: str
    id: int | str
    method: str
    params: _OpenParams


class _AnyRequest(Struct):
    """The id of any request."""

    id: int | str
    method: str


class _Cancellation(Struct):
    """``notifications/cancelled`` of a legacy client."""

    class Params(Struct):
        key: int | str = msgspec.field(name="requestId")

    method: Literal["notifications/cancelled"]
    params: Params


class _Answer(Struct):
    """An answer of the SDK; its result is kept as bytes."""

    result: Raw | UnsetType = UNSET


class _Session(NamedTuple):
    """A legacy session: its owner, when the SDK last saw it, and what its client can do, where that is known."""

    owner: str
    since: float
    can: frozenset[str] | None


class _Headers:
    """What the fast lane reads of a request's headers. A repeated header makes the request irregular."""

    __slots__ = (
        "host",
        "is_forwarded",
        "is_modern",
        "is_regular",
        "method",
        "name",
        "origin",
        "session",
        "session_id",
        "version",
    )

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]):
        found = dict(headers)
        self.version = found.get(b"mcp-protocol-version", b"")
        self.is_modern = self.version == MODERN
        # Whatever bytes they are, they equal a text of the body only where these are its UTF-8.
        self.method = found.get(b"mcp-method", b"").decode("utf-8", "surrogateescape")
        self.name = found.get(b"mcp-name", b"").decode("utf-8", "surrogateescape")
        self.session = found.get(b"mcp-session-id", b"")
        self.session_id = self.session.decode("latin-1")
        self.host = found.get(b"host", b"")
        self.origin = b"origin" in found
        self.is_regular = (
            len(found) == len(headers)
            and _takes_json(found.get(b"accept", b""), found.get(b"content-type", b""))
            and b"last-event-id" not in found
            and b"content-encoding" not in found
            and _VIA not in found
            and b"mcp-param-" not in (names := b" ".join(found))
        )
        self.is_forwarded = not self.is_regular or b"x-forwarded-" in names
        """Whether a proxy says who the client is, which the server judges on the way to an app."""


@lru_cache(maxsize=256)
def _takes_json(accept: bytes, content_type: bytes) -> bool:
    if len(accept) + len(content_type) > 1_000:  # keeps the cache small
        return False
    is_json = content_type.split(b";", 1)[0].strip() == b"application/json"
    return is_json and b"application/json" in accept and b"text/event-stream" in accept


class Visitor:
    """A client that repeats the same headers: what they mean, and who it is, was found out once."""

    __slots__ = ("_headers", "_lane", "_principal")

    def __init__(self, lane: FastLane, headers: _Headers, principal: Principal):
        self._lane = lane
        self._headers = headers
        self._principal = principal

    @property
    def who(self) -> str:
        """The id of its principal."""
        return self._principal.id

    def reply(self, scope: MutableMapping[str, Any], body: bytes, hung_up: HungUp) -> Coroutine[Any, Any, Reply | None]:
        """The answer to a request with this body; None for what is irregular and has to come by ASGI.

        An outcome that only the SDK can encode is left in ``scope``, which becomes part of that of the request.
        """
        lane = self._lane
        if len(body) > lane.max_body or not _is_bounded(body) or (request := _decode(body)) is None:
            return _irregular()
        return lane.answer(request, self._headers, self._principal, scope, hung_up)


class FastLane:
    """An ASGI app in front of a door, which serves whatever is irregular."""

    def __init__(self, door: MCPDoor, *, env: Env = REAL):
        self.max_body = door.max_body
        self._door = door
        self._slow_lane: ASGIApp = door.asgi()
        self._toolset = door.toolset
        self._is_regular_call = door.handlers.is_regular
        self._fingerprint = door.capabilities.fingerprint
        self._streaming = door.capabilities.streaming
        self._logs = door.capabilities.logs
        self._principal = door.principal
        self._count_read = door.count_read
        self._most_sessions = door.most_sessions
        self._owned: Counter[str] = Counter()
        """How many sessions each caller has."""
        self._env = env
        self._hosts: dict[bytes, bool] = {}
        self._info = {"io.modelcontextprotocol/serverInfo": door.info}
        self._info_bytes = Raw(_encode(self._info))
        self._endings = (
            b'"isError":false}',
            b'"isError":false,"resultType":"complete","_meta":%b}' % _encode(self._info),
        )
        """How plain results end, in the legacy and in the modern era."""
        self._calls: dict[tuple[bytes, int | str], asyncio.Task[Outcome]] = {}
        """The calls under way in legacy sessions, by session and id."""
        self._present: Counter[bytes] = Counter()
        """How many requests and streams of each legacy session the SDK serves now."""
        self._turns: WeakValueDictionary[tuple[bytes, str], asyncio.Lock] = WeakValueDictionary()
        """Held by the request that the SDK serves, by session and id; gone when nobody needs it."""
        self._pages: OrderedDict[Hashable, bytes] = OrderedDict()
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._forward(scope, receive, send)
            return
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _read_body(receive, self.max_body)
        except TimeoutError:
            error = TooSlow(f"The body did not arrive within {_BODY_SECONDS:g} s; send it faster, or send less")
            await refusal(error)(scope, receive, send)
            return
        if body is None:
            return  # the client left in the middle of it
        if len(body) > self.max_body:
            most = TooLarge(f"A request may have at most {self.max_body} bytes; send less")
            await refusal(most)(scope, receive, send)
            return
        body = body.removeprefix(b"\xef\xbb\xbf")  # some editors and shells write one before the first brace
        headers, takes = _Headers(scope["headers"]), "both"
        if not headers.is_regular:
            mended, takes = mend_headers(scope["headers"])
            scope = {**scope, "headers": mended}
            headers = _Headers(mended)
        is_bounded = _is_bounded(body)
        request = _decode(body) if is_bounded else None
        instead: bytes | None = None
        if is_bounded and (
            request is None or request.method == "initialize" or request.method.startswith("notifications/")
        ):
            try:
                mended_body, instead = mend_body(body)
            except Agent3Error as error:
                await refusal(error)(scope, receive, send)
                return
            if mended_body is not body:
                body, request = mended_body, _decode(mended_body)
        if takes == "json":
            scope[WHOLE] = True
        if takes == "json" or instead is not None:
            send = WholeAnswer(send, instead)
        replayed = False

        async def replay() -> Message:
            """Give the body once more, then go on with the real messages."""
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": len(body) > self.max_body}

        if not headers.session and len(body) <= self.max_body:
            scope[OPENING] = body
        elif is_bounded:
            scope[_BODY] = body
        # Only such a request can open a session, whatever else is odd about it.
        if not headers.session and headers.version != MODERN and (crowd := self._find_crowd(scope)) is not None:
            await refusal(crowd)(scope, receive, send)
            return
        if isinstance(scope.get(OUTCOME), Turn):  # it came by the connection, and may have to be given up
            await self._hand_over(scope, replay, send)
            return
        is_plain = headers.is_regular and takes != "stream" and not headers.origin
        if OUTCOME in scope or not is_plain or not self._is_own_host(headers.host):
            await self._forward(scope, replay, send)
            return
        in_session = bool(headers.session) and len(body) <= self.max_body
        if in_session and headers.version in VERSIONS and (batch := parse_batch(body)) is not None:
            await serve_batch(self, scope, batch, send)
            return
        if request is None and in_session and b"notifications/cancelled" in body:
            self._cancel(body, headers.session, scope)
        principal = self._find_principal(scope) if request is not None else None
        if request is not None and principal is not None:

            async def hung_up() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass

            try:
                reply = await self.answer(request, headers, principal, scope, hung_up)
            except Left:
                return
            if reply is not None:
                start = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply.body))]
                if reply.session:
                    start.append((b"mcp-session-id", reply.session))
                await send({"type": "http.response.start", "status": 200, "headers": start})
                await send({"type": "http.response.body", "body": reply.body})
                return
            if isinstance(scope.get(OUTCOME), Turn):
                await self._hand_over(scope, replay, send)
                return

        # To the SDK, whose answer is kept where the next one will be the same.
        key: Hashable | None = None
        can: frozenset[str] | None = None
        if request is not None and request.method == "initialize":
            can = parse_features(request.params.capabilities or {}) - {"tasks"}  # legacy clients follow none
        elif (
            request is not None
            and principal is not None
            and request.method != "tools/call"
            and self._is_regular(request, headers, principal)
        ):
            key = self._page_key(request, headers.version, principal)
        if key is None:
            await self._forward(scope, replay, send, can)
            return
        recorder = _Recorder(send)
        await self._forward(scope, replay, recorder)
        if (result := recorder.result()) is not None:
            self._pages[key] = result
            if len(self._pages) > MOST_PAGES:
                self._pages.popitem(last=False)

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None:
        """The answer to a whole POST without ASGI; None for what is irregular and has to come by ASGI.

        For a server that has both at hand. When ``hung_up`` returns first, this raises ``Left``.
        """
        visitor = self.visitor(scope)
        return await visitor.reply(scope, body, hung_up) if visitor is not None else None

    def visitor(self, scope: Scope) -> Visitor | None:
        """Who sends these headers, for this and further requests; None where each has to come by ASGI."""
        headers = _Headers(scope["headers"])
        if headers.is_forwarded or headers.origin or not self._is_own_host(headers.host):
            return None
        principal = self._find_principal(scope)
        return Visitor(self, headers, principal) if principal is not None else None

    guest = visitor
    """The same, by the name that a server uses which recognises requests by their head."""

    async def answer(
        self,
        request: _Request,
        headers: _Headers,
        principal: Principal,
        scope: MutableMapping[str, Any],
        hung_up: HungUp,
    ) -> Reply | None:
        """The answer to a regular request; None for what the SDK has to answer."""
        if not self._is_regular(request, headers, principal):
            return None
        if request.method != "tools/call":
            if COUNTED not in scope and self._count_read(principal):
                return None  # by ASGI, where it is refused
            key = self._page_key(request, headers.version, principal)
            page = self._pages.get(key) if key is not None else None
            return None if page is None else Reply(_envelope(request.id, page), headers.session)
        params = request.params
        name, arguments, meta = params.name or "", params.arguments or {}, params.meta
        heard: Overheard | None = None
        can: frozenset[str] | None
        if modern := headers.is_modern:
            can = parse_features(meta.capabilities) if meta is not None and meta.capabilities else _NOTHING
        else:
            # Legacy clients can be sent log messages in place of progress, which takes a stream.
            if self._streaming is not None and self._streaming(name, arguments):
                return None
            if WHOLE in scope:
                can = _NOTHING
            else:
                can = self._sessions[headers.session].can
                heard = Overheard() if self._logs else None
        if can is None or not self._is_regular_call(name, headers.session_id, can):
            return None
        caller = Caller(
            principal,
            heard or ignore_event,
            "modern" if modern else "legacy",
            "form" in can,
            None if meta is None or meta.traceparent is UNSET else meta.traceparent,
            request.others if type(request) is _MarkedRequest else {},
            can,
        )
        turn = self._toolset.call(name, arguments, caller)
        try:
            # A modern client that hangs up cancels the call; a legacy one only leaves, and cancels by a notification.
            begun: Outcome | Turn
            which = headers.session, request.id
            begun = await (run_watched(turn, hung_up) if modern else self._begin(turn, which, heard))
            if isinstance(begun, Turn):
                scope[OUTCOME] = begun
                return None
            outcome = begun
        except Left:
            if modern:
                raise
            return Reply(error_of(request.id, Canceled("The client cancelled this request.")))
        except NotFound as error:
            # Listed, but perhaps for another caller only: the SDK's lane refuses it as any tool that is not there.
            scope[OUTCOME] = error
            return None
        except Agent3Error as error:
            outcome = failed_by(error)
        except Exception:
            log.exception("The tool %s failed inside the gateway", name)
            outcome = Failed("internal", f"{name} failed inside the gateway. See the log of the gateway.")
        if isinstance(outcome, (Done, Failed)) and (result := self._encode_result(outcome, modern)) is not None:
            return Reply(_envelope(request.id, result))
        scope[OUTCOME] = outcome
        return None

    async def _begin(
        self, turn: Coroutine[Any, Any, Outcome], key: tuple[bytes, int | str], heard: Overheard | None
    ) -> Outcome | Turn:
        """The outcome of a legacy call, or the call itself if it takes long or logs, which takes a stream.

        Left if the client gave it up.
        """
        task = start_task(turn)
        if task.done():
            return Turn(task, heard) if heard is not None and heard.has_lines else task.result()
        self._calls[key] = task

        def forget(ended: asyncio.Task[Outcome]) -> None:
            if self._calls.get(key) is ended:
                del self._calls[key]
            if not ended.cancelled():
                ended.exception()  # mark it as seen: nobody waits for it where the client has left

        task.add_done_callback(forget)
        try:
            await asyncio.sleep(0)  # one turn of the loop, after which a call that waits for nothing is over
            if not task.done():
                await wait_for_task(task, STREAM_AFTER, None if heard is None else heard.notify)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done() or (heard is not None and heard.has_lines and not task.cancelled()):
            return Turn(task, heard)
        if task.cancelled():
            raise Left
        return task.result()

    async def _hand_over(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the SDK answer a call that is under way; one that never reached its handler is given up."""
        turn: Turn = scope[OUTCOME]
        try:
            await self._forward(scope, receive, send)
        finally:
            if not turn.is_taken:
                turn.task.cancel()

    def _cancel(self, body: bytes, session: bytes, scope: Scope) -> None:
        """Cancel the call that a legacy client no longer waits for; the SDK knows only those of its own lane."""
        principal, known = self._find_principal(scope), self._sessions.get(session)
        if principal is None or known is None or known.owner != principal.id:
            return
        try:
            cancelled = _cancellations.decode(body).params.key
        except msgspec.DecodeError:
            return
        if (task := self._calls.get((session, cancelled))) is not None:
            task.cancel()

    # What is regular

    def _is_regular(self, request: _Request, headers: _Headers, principal: Principal) -> bool:
        """Whether headers and parameters ask for nothing that only the SDK knows."""
        method, params = request.method, request.params
        meta = params.meta
        if headers.is_modern:
            if method not in ("tools/call", "tools/list", "server/discover") or headers.method != method:
                return False
            if method == "tools/call" and (params.name is None or headers.name != params.name):
                return False
            return (
                meta is not None
                and meta.version == "2026-07-28"
                and meta.capabilities is not None
                and not headers.session
                and meta.progress is UNSET
                and meta.level is UNSET
                and meta.via is UNSET
                and params.responses is UNSET
                and params.state is UNSET
                and params.task is UNSET
            )
        if headers.version not in LEGACY or method not in ("tools/call", "tools/list", "ping"):
            return False
        if meta is not None and not (meta.progress is meta.level is meta.via is UNSET):
            return False
        session = self._sessions.get(headers.session)
        return (
            session is not None
            and params.task is UNSET
            and session.owner == principal.id
            and self._env.monotonic() - session.since <= REFRESH
        )

    def _is_own_host(self, host: bytes) -> bool:
        known = self._hosts.get(host)
        if known is None:
            known = self._door.answers_to(host.decode("latin-1"))
            if len(self._hosts) < MOST_HOSTS:
                self._hosts[host] = known
        return known

    def _find_principal(self, scope: Scope) -> Principal | None:
        """Who calls; None sends the request to the SDK's lane, which refuses in the protocol's terms."""
        try:
            return self._principal(scope)
        except Agent3Error:
            return None

    def _page_key(self, request: _Request, version: bytes, principal: Principal) -> Hashable | None:
        """The key of a cached page; None for a list whose changes are not known."""
        if request.method != "tools/list":
            return (request.method, version)
        fingerprint = self._fingerprint(principal) if self._fingerprint is not None else None
        return None if fingerprint is None else (request.method, version, request.params.cursor, fingerprint)

    # Encoding

    def _encode_result(self, outcome: Done | Failed, modern: bool) -> bytes | None:
        """The result as the SDK would write it; None for content that only the SDK's types can carry."""
        parts = outcome.parts
        if type(outcome) is Done and len(parts) == 1 and not outcome.artifacts and not outcome.meta:
            part = parts[0]  # the usual outcome: one text and nothing else
            if part.text is not None and not (part.meta or part.name or part.media_type):
                return b'{"content":[{"type":"text","text":%b}],%b' % (_encode(part.text), self._endings[modern])
        if outcome.artifacts:
            return None
        body: dict[str, Any] = {}
        if isinstance(outcome, Failed):
            if len(parts) > 1 or PASSED in outcome.data or (parts and not isinstance(parts[0].data, dict)):
                return None
            body["content"] = [{"type": "text", "text": failure_text(outcome)}]
            body["structuredContent"] = parts[0].data if parts else failure_to_dict(outcome)
        else:
            # Plain texts, followed by structured content where a server gave one, or a single datum.
            shown = [part for part in parts if part.meta != _MARKED]
            structured = parts[len(shown) :]
            if len(structured) > 1 or any(part.meta or part.name or part.media_type for part in shown):
                return None
            if len(shown) == 1 and not structured and shown[0].text is None:
                if isinstance(shown[0].data, UnsetType):
                    return None
                body["content"] = [{"type": "text", "text": _encode(shown[0].data).decode()}]
                structured = parts
            elif any(part.text is None for part in shown):
                return None
            else:
                body["content"] = [{"type": "text", "text": part.text} for part in shown]
            for part in structured:
                is_object = modern or isinstance(part.data, dict)  # legacy versions know objects only
                body["structuredContent"] = part.data if is_object else {"result": part.data}
            if outcome.meta:
                body["_meta"] = outcome.meta
        body["isError"] = isinstance(outcome, Failed)
        if modern:
            body["resultType"] = "complete"
            body["_meta"] = {**body["_meta"], **self._info} if "_meta" in body else self._info_bytes
        return _encode(body)

    # The SDK's lane

    async def _forward(self, scope: Scope, receive: Receive, send: Send, can: frozenset[str] | None = None) -> None:
        """To the SDK, noting the legacy sessions that it opens or closes; ``can`` is for a session that it opens."""

        async def note_session(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)
                return
            if scope["method"] == "DELETE" or message["status"] >= 400:
                ended = next((value for key, value in scope["headers"] if key == b"mcp-session-id"), b"")
                self._drop(ended)
            else:
                session = next((value for key, value in message["headers"] if key.lower() == b"mcp-session-id"), b"")
                principal = self._find_principal(scope) if session else None
                if principal is not None:
                    known = self._sessions.get(session)
                    self._owned[principal.id] += known is None
                    features = known.can if can is None and known is not None else can
                    if known is None and can is None:  # a session that another process opened
                        opened = self._door.read_session(session.decode("latin-1"), principal)
                        if opened is not None and isinstance(about := opened.get("capabilities"), dict):
                            features = parse_features(about) - {"tasks"}
                    self._sessions[session] = _Session(principal.id, self._env.monotonic(), features)
                    self._sessions.move_to_end(session)
                    if len(self._sessions) > MOST_SESSIONS:
                        self._drop(next(iter(self._sessions)))
            await send(message)

        session = next((value for name, value in scope["headers"] if name == b"mcp-session-id"), b"")
        self._present[session] += 1
        try:
            if (key := _find_request(scope)) is None:
                await self._slow_lane(scope, receive, note_session)
                return
            scope[DEPARTURE] = partial(self._await_departure, session)
            # The SDK finds the stream of a request by its id: of two at once, the earlier one would never be answered.
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = asyncio.Lock()
            async with turn:
                await self._slow_lane(scope, receive, note_session)
        finally:
            self._present[session] -= 1
            if not self._present[session]:
                del self._present[session]

    async def _await_departure(self, session: bytes) -> None:
        """Return when a client had no connection for a while, which one that takes up its streams again would have."""
        missed = 0
        while missed < 2:
            await asyncio.sleep(GONE_AFTER / 2)
            missed = 0 if session in self._present else missed + 1

    def _find_crowd(self, scope: Scope) -> Agent3Error | None:
        """The refusal of a caller with too many sessions. Those that the SDK has ended for being idle are forgotten."""
        principal = self._find_principal(scope) if self._most_sessions else None
        if principal is None or principal.kind == "local" or self._owned[principal.id] < self._most_sessions:
            return None
        old = self._env.monotonic() - DEFAULT_SESSION_IDLE_TIMEOUT
        for session in [key for key, known in self._sessions.items() if known.since < old]:
            self._drop(session)
        if self._owned[principal.id] < self._most_sessions:
            return None
        text = (
            f"Client {principal.id} has {self._most_sessions} open sessions, the maximum. End some of them with DELETE."
        )
        return RateLimited(text, retry_after=60.0)

    def _drop(self, session: bytes) -> None:
        if (known := self._sessions.pop(session, None)) is not None:
            self._owned[known.owner] -= 1
            if not self._owned[known.owner]:
                del self._owned[known.owner]


class _Recorder:
    """Passes an answer on and keeps its body."""

    def __init__(self, send: Send):
        self._send = send
        self._status = 0
        self._is_stream = False
        self._body: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            kind = next((value for key, value in message["headers"] if key.lower() == b"content-type"), b"")
            self._is_stream = kind.startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            self._body.append(message.get("body", b""))
        await self._send(message)

    def result(self) -> bytes | None:
        """The bytes of its result, if it has one."""
        body = b"".join(self._body)
        if self._status != 200:
            return None
        if self._is_stream:
            frames = [frame.data for frame in SSEParser().feed(body) if frame.data]
            body = frames[0] if len(frames) == 1 else b""
        try:
            result = msgspec.json.decode(body, type=_Answer).result
        except msgspec.DecodeError:
            return None
        return bytes(result) if isinstance(result, Raw) else None


_decoder = msgspec.json.Decoder(_Request)
_open_decoder = msgspec.json.Decoder(_OpenRequest)
_cancellations = msgspec.json.Decoder(_Cancellation)
_any_decoder = msgspec.json.Decoder(_AnyRequest)
_META_KEYS = frozenset(field.encode_name for field in msgspec.structs.fields(_Meta))
_encode = msgspec.json.encode
_NOTHING: frozenset[str] = frozenset()
_MARKED = {STRUCTURED: True}


def _find_request(scope: Scope) -> tuple[bytes, str] | None:
    """The session and the id, as the SDK compares them, of a request in a session."""
    if (body := scope.get(_BODY)) is None:
        return None
    try:
        key = str(_any_decoder.decode(body).id)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return next((value for name, value in scope["headers"] if name == b"mcp-session-id"), b""), key


async def _irregular() -> Reply | None:
    return None


def _is_bounded(body: bytes) -> bool:
    try:
        check_bytes(body)
    except Agent3Error:
        return False
    return True


def _decode(body: bytes) -> _Request | None:
    """The request in a body within bounds, if it has a regular shape."""
    try:
        try:
            request = _decoder.decode(body)
        except msgspec.ValidationError:
            request = _split_meta(_open_decoder.decode(body))
    except (msgspec.DecodeError, Agent3Error, RecursionError, UnicodeDecodeError):
        return None
    return request if request.jsonrpc == "2.0" and not isinstance(request.id, bool) else None


def _split_meta(given: _OpenRequest) -> _Request:
    """The request, with those keys of ``_meta`` apart that belong to others."""
    params, meta = given.params, given.params.meta
    known = msgspec.convert({key: value for key, value in meta.items() if key in _META_KEYS}, _Meta)
    others = {key: value for key, value in meta.items() if key not in _META_KEYS and not key.startswith(RESERVED)}
    fields = {name: getattr(params, name) for name in _Params.__struct_fields__}
    return _MarkedRequest(given.jsonrpc, given.id, given.method, _Params(**{**fields, "meta": known}), others)


def _envelope(key: int | str, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + _encode(key) + b',"result":' + result + b"}"


async def _read_body(receive: Receive, limit: int) -> bytes | None:
    """The body, or its first ``limit`` bytes and a little more; None if the client left."""
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
