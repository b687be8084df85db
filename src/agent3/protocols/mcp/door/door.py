"""The MCP protocol in front of a tool set: both eras, over Streamable HTTP and stdio.

The official low-level server does the protocol; this room alone knows it. ``MCPDoor`` connects it to a ``ToolSet``: the
handlers translate requests and outcomes, and the transports are served here. The door knows nothing of agents,
directories or storage.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import anyio
import mcp_types as wire
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext, authorization_context
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from agent3._version import __version__
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, ParseError, RequestError
from agent3.model import LOCAL, Needs, Principal, encode
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.protocols.mcp.door.handlers import Hint, RequestHandlers, to_icons
from agent3.protocols.mcp.door.list_changes import Kind
from agent3.protocols.mcp.door.questions import StateTokens
from agent3.protocols.mcp.door.requests import PRINCIPAL, add_principal
from agent3.protocols.mcp.door.session_ids import SessionIds
from agent3.protocols.mcp.door.toolset import Caller, Capabilities, Tool, ToolSet

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import ReadStream, WriteStream

__all__ = ["LOOPBACK_HOSTS", "LOOPBACK_ORIGINS", "OPENING", "Caller", "CheckedInput", "DoorOptions", "MCPDoor",
           "SessionEvents", "SessionManager", "Tool", "ToolSet", "Transport", "how_to_answer", "refusal"]  # fmt: skip

LOOPBACK_HOSTS = ("127.0.0.1", "127.0.0.1:*", "localhost", "localhost:*", "[::1]", "[::1]:*")
LOOPBACK_ORIGINS = tuple(f"{scheme}://{host}" for scheme in ("http", "https") for host in LOOPBACK_HOSTS)
CACHEABLE: tuple[CacheableMethod, ...] = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)


def how_to_answer(tool: str, needs: Needs) -> str:
    """The default hint for clients that cannot elicit: call the tool again, with the answers."""
    answers = {question.id: "<your answer>" for question in needs.questions}
    metadata = encode({"job": needs.job, "answers": answers}).decode()
    return f'Ask the user, then answer by calling "{tool}" again with the same arguments and "metadata": {metadata}'


@dataclass(frozen=True, kw_only=True)
class DoorOptions:
    """How a door presents itself, whom it serves, and its bounds."""

    name: str = "agent3"
    version: str = __version__
    instructions: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else the server says of itself, by the protocol's names: title, description, websiteUrl, icons."""
    principal: Callable[[Scope], Principal] = lambda _: LOCAL
    """Reads who calls from the ASGI scope; may raise ``AccessError``. Over stdio it is always ``LOCAL``."""
    allowed_hosts: Sequence[str] = LOOPBACK_HOSTS
    """Accepted Host headers. A trailing ``:*`` stands for any port; ``"*"`` turns off this check and that of Origin."""
    allowed_origins: Sequence[str] = LOOPBACK_ORIGINS
    key: bytes | None = None
    """Signs what a modern client carries between two turns. Replicas must share it; by default it is random."""
    process: str = ""
    """The name of this process among replicas. With it and a key, they continue each other's legacy sessions."""
    answer_within: float = 86_400.0
    """Seconds for which a question can be answered."""
    list_ttl: float = 30.0
    """Seconds for which clients may cache lists."""
    page_size: int = 500
    max_body: int = 1 << 20
    resumable: bool = True
    """Whether legacy clients can resume a lost stream."""
    retry: float = 1.0
    """Seconds that a legacy client waits before it resumes a lost stream."""
    count_read: Callable[[Principal], float] = lambda _: 0.0
    """Counts a request that is no call; more than 0.0 if its caller has to wait."""
    sessions: int = 0
    """Legacy sessions that one caller may have open; 0 for no limit."""
    hint: Hint = how_to_answer
    gateway: str = ""
    """The id of the gateway that serves, by which it recognises requests that came from itself."""
    marks_tools: bool = False
    """Whether its tools are those of the gateway itself and say so, wherever they are listed again."""


class MCPDoor:
    """One MCP server: ``asgi()`` for HTTP, to be used within ``running()``, and ``stdio()``."""

    def __init__(self, toolset: ToolSet, options: DoorOptions | None = None, *, env: Env = REAL):
        options = options or DoorOptions()
        self.toolset = toolset
        self.capabilities = Capabilities.of(toolset)
        self.principal = options.principal
        self.count_read = options.count_read
        self.most_sessions = options.sessions
        self.max_body = options.max_body
        self._options = options
        tokens = StateTokens(options.key or env.random_bytes(32), options.answer_within, env)
        self.handlers = RequestHandlers(
            toolset,
            self.capabilities,
            tokens,
            page_size=options.page_size,
            hint=options.hint,
            gateway=options.gateway,
            marks_tools=options.marks_tools,
        )
        self._changes = self.handlers.changes
        self._session_ids = SessionIds(options.key, options.process, env) if options.key and options.process else None
        self._manager: SessionManager | None = None
        about = options.about
        cache_hint = CacheHint(ttl_ms=int(options.list_ttl * 1000), scope="private")
        self._server = _Server(
            options.name,
            version=options.version,
            instructions=options.instructions,
            title=about.get("title"),
            description=about.get("description"),
            website_url=about.get("websiteUrl"),
            icons=to_icons(about.get("icons") or ()),
            cache_hints=dict.fromkeys(CACHEABLE, cache_hint),
            # Without it the SDK runs tools/list inside every tools/call, to compare headers with arguments.
            get_tool_input_schema=self.handlers.schema_with_headers,
        )
        # Not by the constructor, whose parameters for legacy methods warn of deprecation at every start.
        self.handlers.register(self._server)
        self.info: dict[str, Any] = self._server.server_info_stamp

    def asgi(self) -> _Endpoint:
        """The ASGI app of one path: POST for both eras, GET and DELETE for legacy sessions."""
        return _Endpoint(self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve HTTP during a block: to be entered by the lifespan of the app around. Leaving it ends all requests."""
        # The SDK's manager runs only once, so each run gets its own.
        manager = SessionManager(
            self._server,
            make_store=SessionEvents if self._options.resumable else None,
            ids=self._session_ids,
            retry_interval=int(self._options.retry * 1000),
            security_settings=TransportSecuritySettings(
                enable_dns_rebinding_protection="*" not in self._options.allowed_hosts,
                allowed_hosts=list(self._options.allowed_hosts),
                allowed_origins=list(self._options.allowed_origins),
            ),
            max_request_body_size=self.max_body,
        )
        async with manager.run(), self._changes.running():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def stdio(self) -> None:
        """Serve the host at standard input and output until it closes its end; prints go to stderr meanwhile."""
        async with stdio_server() as (incoming, outgoing), self._changes.running():
            checked = CheckedInput(incoming, outgoing)
            await self._server.run(checked, outgoing, self._server.create_initialization_options())

    def notify_change(self, kind: Kind, uri: str | None = None, caller: str = "") -> None:
        """Notify clients of both eras that a list changed, or with ``uri`` that one resource did. From any thread.

        ``caller`` is the only one whom it concerns, where it is not all.
        """
        if kind == "tools":
            self.handlers.forget_tools()
        self._changes.publish(kind, uri, caller)

    def has_session(self, caller: str) -> bool:
        """Whether a caller has a legacy session here."""
        return self._changes.has_session(caller)

    def tell(self, caller: str, method: str, params: dict[str, Any]) -> None:
        """Send a notification that belongs to no request to the legacy sessions of a caller. From any thread."""
        self._changes.tell(caller, method, params)

    def answers_to(self, host: str) -> bool:
        """Whether a Host header names this server."""
        allowed = self._options.allowed_hosts
        return "*" in allowed or host in allowed or f"{host.rsplit(':', 1)[0]}:*" in allowed

    def read_session(self, session: str, principal: Principal) -> dict[str, Any] | None:
        """How the client introduced itself that opened a session at another process; None if that is not known."""
        return None if self._session_ids is None else self._session_ids.read(session, principal.id)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is None:
            await Response("The MCP endpoint is not running", 503)(scope, receive, send)
            return
        try:
            principal = self.principal(scope)
        except Agent3Error as error:
            response = refusal(error)
            if error.http_status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            if error.retry_after is not None:
                response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
            await response(scope, receive, send)
            return
        await self._manager.handle_request(add_principal(scope, principal), receive, send)


def refusal(error: Agent3Error) -> Response:
    """The answer to a request that is refused before its message is read."""
    fault = {"code": error.rpc_code, "message": error.message, "data": error.to_dict()}
    body = encode({"jsonrpc": "2.0", "id": None, "error": fault})
    return Response(body, error.http_status, media_type="application/json")


class _Endpoint:
    """An instance rather than a function, because Starlette's Route takes functions for views of a request."""

    def __init__(self, door: MCPDoor):
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._door.serve(scope, receive, send)


class _Server(Server[Any]):
    """The SDK's server, which also tells legacy clients that lists may change. Tasks are for modern clients only."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changing = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        made = super().create_initialization_options(changing, experimental_capabilities, extensions)
        return made.model_copy(update={"capabilities": made.capabilities.model_copy(update={"extensions": None})})


MOST_EVENTS = 100
"""Events that one session keeps; a client that comes back too late misses older ones."""


class SessionEvents(EventStore):
    """The latest events of one session, numbered: a client that lost its stream comes back with the last it saw."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._events: deque[tuple[int, str, JSONRPCMessage | None]] = deque(maxlen=most)
        self._last = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event; None stands for the one that opens a stream."""
        self._last += 1
        self._events.append((self._last, stream_id, message))
        return str(self._last)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what came later on the stream of that event; None if the event is no longer known."""
        after = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 19 else 0
        stream = next((stream for number, stream, _ in self._events if number == after), None)
        if stream is None:
            return None
        for number, where, message in list(self._events):
            if number > after and where == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's manager, with one event store for each session instead of one for all.

    Streams are named by the ids of requests, which two clients may choose alike, and any client of a shared store
    could ask for the events of another. With ``ids``, sessions of other processes are opened again here.
    """

    def __init__(
        self,
        *args: Any,
        make_store: Callable[[], EventStore] | None,
        ids: SessionIds | None = None,
        **options: Any,
    ):
        self._make_store = make_store
        self._ids = ids
        self._reopening: dict[str, asyncio.Event] = {}
        super().__init__(*args, **options)

    async def _handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        ids = self._ids
        if ids is None:
            await super()._handle_stateful_request(scope, receive, send)
            return
        session = next((value.decode("latin-1") for name, value in scope["headers"] if name == _SESSION), None)
        subject = scope[PRINCIPAL].id
        new_id = None
        if session is None:
            new_id = ids.issue(scope.get(OPENING), subject)
        elif (opening := self._reopening.get(session)) is not None:
            await opening.wait()  # before it knows who its client is, it would refuse this
        elif session not in self._server_instances and (params := ids.read(session, subject)) is not None:
            opening = self._reopening[session] = asyncio.Event()
            try:
                await self._reopen(session, params, scope)
            finally:
                del self._reopening[session]
                opening.set()
        token = _new_id.set(new_id)
        try:
            await super()._handle_stateful_request(scope, receive, send)
        finally:
            _new_id.reset(token)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        """The SDK's own, with a transport that takes the end of its session quietly, and the id that is wanted."""
        if self.max_sessions is not None and len(self._server_instances) >= self.max_sessions:
            return None
        session = _new_id.get() or uuid4().hex
        transport = Transport(
            mcp_session_id=session,
            is_json_response_enabled=self.json_response,
            event_store=self.event_store,
            security_settings=self.security_settings,
            retry_interval=self.retry_interval,
            idle_timeout=self.session_idle_timeout,
        )
        if requestor is not None:
            self._session_owners[session] = requestor
        self._server_instances[session] = transport
        return transport

    async def _reopen(self, session: str, params: Mapping[str, Any], scope: Scope) -> None:
        """Open a session of another process here: the client's own introduction is given to the SDK once more."""
        user = scope.get("user")
        requestor = authorization_context(user) if isinstance(user, AuthenticatedUser) else None
        async with self._session_creation_lock:
            if session in self._server_instances:
                return
            token = _new_id.set(session)
            try:
                transport = self._admit_session(requestor)
            finally:
                _new_id.reset(token)
        if transport is None:
            return
        host = [(name, value) for name, value in scope["headers"] if name in (b"host", b"authorization")]
        common = [*host, (b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
        initialize = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        opening = {**scope, "method": "POST", "headers": common}
        await self._serve_opening_request(transport, opening, _say(initialize), _hear_nothing)
        if session in self._server_instances:
            headers = [*common, (_SESSION, session.encode("latin-1"))]
            initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await transport.handle_request({**opening, "headers": headers}, _say(initialized), _hear_nothing)

    @property
    def event_store(self) -> EventStore | None:
        """Read by the SDK once for each session that is opened."""
        return self._make_store() if self._make_store is not None else None

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None:
        """What the SDK's constructor sets is not used."""


class _Ended(BaseException):
    """The session ended under a message. Not an Exception: the SDK would log each, and answer with status 500."""


class _Incoming:
    """Where a transport puts the messages of its client, which raises ``_Ended`` once nobody takes them any more."""

    def __init__(self, stream: WriteStream[SessionMessage | Exception]):
        self._stream = stream

    async def send(self, item: SessionMessage | Exception, /) -> None:
        try:
            await self._stream.send(item)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise _Ended from None

    async def aclose(self) -> None:
        await self._stream.aclose()


class Transport(StreamableHTTPServerTransport):
    """The SDK's transport of one session, in which a message that arrives while the session ends is no fault."""

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        async with super().connect() as streams:
            assert self._read_stream_writer is not None
            self._read_stream_writer = cast("Any", _Incoming(self._read_stream_writer))
            yield streams

    async def _handle_post_request(self, scope: Scope, request: Request, receive: Receive, send: Send) -> None:
        begun, complete = False, False

        async def note(message: Message) -> None:
            nonlocal begun, complete
            if not begun and self.is_terminated:
                raise _Ended
            begun = True
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await super()._handle_post_request(scope, request, receive, note)
        except* _Ended:
            METRICS.events_dropped.inc(("messages of an ended MCP session",))
            if not begun:
                fault = {"code": wire.INVALID_REQUEST, "message": "Not Found: Session has been terminated"}
                body = encode({"jsonrpc": "2.0", "id": None, "error": fault})
                await Response(body, 404, media_type="application/json")(scope, receive, send)
            elif not complete:
                await send({"type": "http.response.body", "body": b""})


OPENING = "agent3.mcp.opening"
"""The key in the ASGI scope for the body of a request outside of any session."""
_SESSION = b"mcp-session-id"
_new_id: ContextVar[str | None] = ContextVar("agent3_mcp_session", default=None)
"""The id that the session gets which is opened now."""


def _say(message: Mapping[str, Any]) -> Receive:
    body: bytes | None = encode(message)

    async def receive() -> Message:
        nonlocal body
        if body is None:
            await asyncio.Event().wait()  # nobody hangs up
        said, body = body, None
        return {"type": "http.request", "body": said, "more_body": False}

    return receive


async def _hear_nothing(message: Message) -> None:
    """The client has had this answer from the process that it first met."""


log = logger("mcp.stdio")


class CheckedInput:
    """The incoming stream of a server. Lines that are not messages are logged, answered without an id and skipped.

    The SDK's server drops such a line, logged at a level that is never shown; the sender would wait for ever.
    """

    def __init__(self, incoming: ReadStream[SessionMessage | Exception], outgoing: WriteStream[SessionMessage]):
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def last_context(self) -> Context | None:
        context: Context | None = getattr(self._incoming, "last_context", None)
        return context

    async def receive(self) -> SessionMessage | Exception:
        while isinstance(item := await self._incoming.receive(), Exception):
            refusal: RequestError
            if not isinstance(item, ValidationError):
                refusal = RequestError(f"A line of standard input was not understood: {type(item).__name__}.")
            elif (fault := item.errors(include_url=False)[0])["type"] != "json_invalid":
                refusal = RequestError(
                    "A line of standard input is JSON, but not a JSON-RPC message. Send one message on each line."
                )
            elif not str(fault["input"]).strip():
                continue
            else:
                refusal = ParseError(
                    f"A line of standard input is not JSON: {fault['ctx']['error']}. Send one message on each line."
                )
            log.warning("%s", refusal.message)
            error = wire.ErrorData(code=refusal.rpc_code, message=refusal.message)
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the host no longer reads
                await self._outgoing.send(SessionMessage(wire.JSONRPCError(jsonrpc="2.0", id=None, error=error)))
        return item

    async def aclose(self) -> None:
        await self._incoming.aclose()

    def __aiter__(self) -> CheckedInput:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> CheckedInput:
        await self._incoming.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._incoming.__aexit__(kind, error, trace)
