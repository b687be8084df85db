"""News for clients: that a list changed, or a resource that they watch, and what belongs to no request.

Legacy clients get them on their session, modern ones on the streams that they opened with ``subscriptions/listen``. A
notification is a hint to look again: a burst is sent once, and a client that does not read loses it. Log lines, and
that a page is done with, go to legacy sessions alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import anyio.lowlevel
import mcp_types as wire
from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.subscriptions import event_to_notification

from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.door.requests import (
    Context,
    client_features,
    era_of,
    missing_features_error,
    principal_of,
    session_of,
)

__all__ = ["ChangeNotifier", "Kind"]

log = logger("mcp")

Kind = Literal["tools", "prompts", "resources"]
_LIST_EVENTS: dict[str, ServerEvent] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
}
GATHER = 0.02
"""Seconds for which changes are gathered, so that registering a thousand tools is notified once."""
PATIENCE = 5.0
"""Seconds that one client has to take a notification."""

MayWatch = Callable[[str, Principal], Coroutine[Any, Any, bool]]
Unwatch = Callable[[str, Principal], None]
"""Called once for each granted watch that has ended."""
FindLevel = Callable[[str], str | None]
"""The lowest level of the log lines that a legacy session gets, None for no lines."""

_LEVELS: tuple[str, ...] = get_args(wire.LoggingLevel)
_MOST_LINES = 256
"""Log lines that may wait to be sent; older ones are dropped."""
_listening: ContextVar[str] = ContextVar("agent3_mcp_listening", default="")
"""The id of who opens a stream."""


@dataclass(eq=False, slots=True)
class _Session:
    """A legacy session: its id, its owner, and the resources that it watches."""

    id: str
    owner: str
    uris: dict[str, Principal] = field(default_factory=dict)


class _Bus:
    """Gives events to the streams of modern clients; some concern the streams of one caller alone."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[str, Callable[[ServerEvent], None]]] = {}

    async def publish(self, event: ServerEvent, only: str = "") -> None:
        for owner, listener in list(self._listeners.values()):
            if only in ("", owner):
                listener(event)
        await anyio.lowlevel.checkpoint()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        token = object()
        self._listeners[token] = _listening.get(), listener

        def unsubscribe() -> None:
            self._listeners.pop(token, None)

        return unsubscribe


class ChangeNotifier:
    """Who is to be notified of what. ``publish`` is safe from any thread; the rest belongs to one loop."""

    def __init__(
        self,
        may_watch: MayWatch,
        unwatch: Unwatch = lambda uri, principal: None,
        find_level: FindLevel = lambda session: None,
    ):
        self._may_watch = may_watch
        self._unwatch = unwatch
        self._find_level = find_level
        self._bus = _Bus()
        self._streams = ListenHandler(self._bus)
        self._sessions: dict[Connection, _Session] = {}
        self._owned: dict[str, set[Connection]] = {}
        """The sessions of each owner."""
        self._waiting: dict[tuple[ServerEvent, str], None] = {}
        """Events, each with the only caller whom it concerns, or nobody's id if it concerns all."""
        self._lines: deque[tuple[str, str, dict[str, Any]]] = deque(maxlen=_MOST_LINES)
        """What is to be sent to the sessions of a caller: whose, method, parameters."""
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._sender: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Notify clients during a block; leaving it ends the streams."""
        loop = asyncio.get_running_loop()
        self._loops.append(loop)
        try:
            yield
        finally:
            self._loops.remove(loop)
            self._streams.close()
            if self._sender is not None:
                self._sender.cancel()

    def publish(self, kind: Kind, uri: str | None = None, only: str = "") -> None:
        """A list changed, or with an address one resource of it. ``only`` is the caller whom it concerns alone."""
        event = ResourceUpdated(uri) if uri is not None else _LIST_EVENTS[kind]
        self._send_soon(lambda: self._waiting.setdefault((event, only)))

    def has_session(self, owner: str) -> bool:
        """Whether a caller has a legacy session."""
        return owner in self._owned

    def tell(self, owner: str, method: str, params: dict[str, Any]) -> None:
        """Send a notification to the legacy sessions of one caller; a log line to those whose level it reaches."""
        self._send_soon(lambda: self._lines.append((owner, method, params)))

    def _send_soon(self, add: Callable[[], None]) -> None:
        def gather() -> None:
            add()
            if self._sender is None or self._sender.done():
                self._sender = asyncio.ensure_future(self._send_waiting())

        for loop in self._loops[-1:]:
            with suppress(RuntimeError):  # closed by now: then nobody listens
                loop.call_soon_threadsafe(gather)

    # Handlers of requests

    async def on_initialized(self, ctx: Context, params: wire.NotificationParams | None) -> None:
        """A legacy client is there: from now on it is notified of lists, until its session ends."""
        if era_of(ctx) == "legacy":
            self._session(ctx)

    async def subscribe(self, ctx: Context, params: wire.SubscribeRequestParams) -> wire.EmptyResult:
        """resources/subscribe, of legacy clients."""
        session, principal = self._session(ctx), principal_of(ctx)
        if params.uri not in session.uris and await self._may_watch(params.uri, principal):
            ended = not any(known is session for known in self._sessions.values())
            if ended or params.uri in session.uris:  # the session ended meanwhile, or it asked twice at once
                self._unwatch(params.uri, principal)
            else:
                session.uris[params.uri] = principal
        return wire.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: wire.UnsubscribeRequestParams) -> wire.EmptyResult:
        """resources/unsubscribe, of legacy clients."""
        if (principal := self._session(ctx).uris.pop(params.uri, None)) is not None:
            self._unwatch(params.uri, principal)
        return wire.EmptyResult()

    async def listen(
        self, ctx: Context, params: wire.SubscriptionsListenRequestParams
    ) -> wire.SubscriptionsListenResult:
        """subscriptions/listen, of modern clients. Tasks are polled, so their ids are accepted but not promised."""
        given = (ctx.params or {}).get("notifications")
        if isinstance(given, dict) and given.get("taskIds") and "tasks" not in client_features(ctx):
            raise missing_features_error(frozenset({"tasks"}), "Following tasks")
        wanted, principal = params.notifications, principal_of(ctx)
        granted: list[str] = []
        try:
            for uri in wanted.resource_subscriptions or ():
                if await self._may_watch(uri, principal):
                    granted.append(uri)  # noqa: PERF401 - one by one: whatever was granted is released below
            if wanted.resource_subscriptions:
                wanted = wanted.model_copy(update={"resource_subscriptions": granted})
            _listening.set(principal.id)
            return await self._streams(ctx, params.model_copy(update={"notifications": wanted}))
        finally:
            for uri in granted:
                self._unwatch(uri, principal)

    def _session(self, ctx: Context) -> _Session:
        """The legacy session of a request, noted until it ends."""
        # The SDK offers a handler no way to its connection, and only that lives as long as the session.
        connection = ctx.session._connection  # noqa: SLF001
        if connection not in self._sessions:
            noted = self._sessions[connection] = _Session(session_of(ctx), principal_of(ctx).id)
            owned = self._owned.setdefault(noted.owner, set())
            owned.add(connection)

            def forget() -> None:
                del self._sessions[connection]
                owned.discard(connection)
                if not owned and self._owned.get(noted.owner) is owned:
                    del self._owned[noted.owner]
                for uri, principal in noted.uris.items():
                    self._unwatch(uri, principal)

            connection.exit_stack.callback(forget)
        return self._sessions[connection]

    # Sending

    async def _send_waiting(self) -> None:
        while self._waiting or self._lines:
            await asyncio.sleep(GATHER)
            events, self._waiting = list(self._waiting), {}
            lines = list(self._lines)
            self._lines.clear()
            for event, only in events:
                await self._bus.publish(event, only)
                uri = event.uri if isinstance(event, ResourceUpdated) else None
                note = event_to_notification(event, {}).model_dump(by_alias=True, mode="json", exclude_none=True)
                params = {key: value for key, value in note.get("params", {}).items() if key != "_meta"}
                await self._send(
                    [
                        connection
                        for connection, session in self._sessions.items()
                        if only in ("", session.owner) and (uri is None or uri in session.uris)
                    ],
                    note["method"],
                    params,
                )
            for owner, method, params in lines:
                is_line, level = method == "notifications/message", str(params.get("level"))
                wanted = [
                    connection
                    for connection in self._owned.get(owner, ())
                    if not is_line or _is_wanted(level, self._find_level(self._sessions[connection].id))
                ]
                await self._send(wanted, method, params)

    async def _send(self, sessions: list[Connection], method: str, params: dict[str, Any]) -> None:
        await asyncio.gather(*(self._send_to(session, method, params) for session in sessions))

    async def _send_to(self, session: Connection, method: str, params: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await session.notify(method, params or None)
        except Exception as error:  # noqa: BLE001 - one client that cannot be told must not hold up the others
            log.debug("A client could not be notified of a change: %s", type(error).__name__)


def _is_wanted(level: str, lowest: str | None) -> bool:
    return level in _LEVELS and lowest in _LEVELS and _LEVELS.index(level) >= _LEVELS.index(lowest)
