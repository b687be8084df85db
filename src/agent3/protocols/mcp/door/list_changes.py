"""Change notifications for clients: that a list changed, or a resource that they watch.

Legacy clients get them on their session, modern ones on the streams that they opened with ``subscriptions/listen``. A
notification is a hint to look again: a burst is sent once, and a client that does not read loses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import mcp_types as wire
from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
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
from agent3.protocols.mcp.door.requests import Context, client_features, era_of, missing_features_error, principal_of

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


class ChangeNotifier:
    """Who is to be notified of what. ``publish`` is safe from any thread; the rest belongs to one loop."""

    def __init__(self, may_watch: MayWatch, unwatch: Unwatch = lambda uri, principal: None):
        self._may_watch = may_watch
        self._unwatch = unwatch
        self._bus = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._bus)
        self._watches: dict[Connection, dict[str, Principal]] = {}
        """Legacy sessions, with the resources that each watches."""
        self._waiting: dict[ServerEvent, None] = {}
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

    def publish(self, kind: Kind, uri: str | None = None) -> None:
        """A list changed, or with an address one resource of it."""
        event = ResourceUpdated(uri) if uri is not None else _LIST_EVENTS[kind]

        def gather() -> None:
            self._waiting[event] = None
            if self._sender is None or self._sender.done():
                self._sender = asyncio.ensure_future(self._send_waiting())

        for loop in self._loops[-1:]:
            with suppress(RuntimeError):  # closed by now: then nobody listens
                loop.call_soon_threadsafe(gather)

    # Handlers of requests

    async def on_initialized(self, ctx: Context, params: wire.NotificationParams | None) -> None:
        """A legacy client is there: from now on it is notified of lists, until its session ends."""
        if era_of(ctx) == "legacy":
            self._watches_of(ctx)

    async def subscribe(self, ctx: Context, params: wire.SubscribeRequestParams) -> wire.EmptyResult:
        """resources/subscribe, of legacy clients."""
        watches, principal = self._watches_of(ctx), principal_of(ctx)
        if params.uri not in watches and await self._may_watch(params.uri, principal):
            ended = not any(known is watches for known in self._watches.values())
            if ended or params.uri in watches:  # the session ended meanwhile, or it asked twice at once
                self._unwatch(params.uri, principal)
            else:
                watches[params.uri] = principal
        return wire.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: wire.UnsubscribeRequestParams) -> wire.EmptyResult:
        """resources/unsubscribe, of legacy clients."""
        if (principal := self._watches_of(ctx).pop(params.uri, None)) is not None:
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
            return await self._streams(ctx, params.model_copy(update={"notifications": wanted}))
        finally:
            for uri in granted:
                self._unwatch(uri, principal)

    def _watches_of(self, ctx: Context) -> dict[str, Principal]:
        """The resources that a legacy session watches; registers the session."""
        # The SDK offers a handler no way to its connection, and only that lives as long as the session.
        connection = ctx.session._connection  # noqa: SLF001
        if connection not in self._watches:
            self._watches[connection] = {}

            def forget() -> None:
                for uri, principal in self._watches.pop(connection, {}).items():
                    self._unwatch(uri, principal)

            connection.exit_stack.callback(forget)
        return self._watches[connection]

    # Sending

    async def _send_waiting(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER)
            events, self._waiting = list(self._waiting), {}
            for event in events:
                await self._bus.publish(event)
                uri = event.uri if isinstance(event, ResourceUpdated) else None
                sessions = [session for session, uris in self._watches.items() if uri is None or uri in uris]
                await asyncio.gather(*(self._send(session, event) for session in sessions))

    async def _send(self, session: Connection, event: ServerEvent) -> None:
        note = event_to_notification(event, {}).model_dump(by_alias=True, mode="json", exclude_none=True)
        params = {key: value for key, value in note.get("params", {}).items() if key != "_meta"}
        try:
            async with asyncio.timeout(PATIENCE):
                await session.notify(note["method"], params or None)
        except Exception as error:  # noqa: BLE001 - one client that cannot be told must not hold up the others
            log.debug("A client could not be told of a change: %s", type(error).__name__)
