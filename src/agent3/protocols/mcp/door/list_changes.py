"""News for clients: that a list changed, or a resource that somebody waits for.

Legacy clients hear it on their session, modern ones on the streams that they opened with ``subscriptions/listen``.
News is a hint to look again: what comes in a burst is told once, and a client that does not read loses it.
"""

from __future__ import annotations

import asyncio
import logging
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
from agent3.protocols.mcp.door.requests import Context, era_of, lacking, powers_of, principal_of

__all__ = ["Changes", "Kind"]

logger = logging.getLogger(__name__)

Kind = Literal["tools", "prompts", "resources"]
_LISTS: dict[str, ServerEvent] = {
    "tools": ToolsListChanged(),
    "prompts": PromptsListChanged(),
    "resources": ResourcesListChanged(),
}
TOGETHER = 0.02
"""Seconds for which news is gathered, so that registering a thousand tools is told once."""
PATIENCE = 5.0
"""Seconds that one client has to take its news."""

MayWatch = Callable[[str, Principal], Coroutine[Any, Any, bool]]
NoLonger = Callable[[str, Principal], None]
"""Hears, as often as one was let watch a resource, that it does so no longer."""


class Changes:
    """Who is to be told what. ``tell`` is safe from any thread; all else belongs to the loop of ``telling``."""

    def __init__(self, may_watch: MayWatch, no_longer: NoLonger = lambda uri, principal: None):
        self._may_watch = may_watch
        self._no_longer = no_longer
        self._bus = InMemorySubscriptionBus()
        self._streams = ListenHandler(self._bus)
        self._legacy: dict[Connection, dict[str, Principal]] = {}
        self._waiting: dict[ServerEvent, None] = {}
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._round: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Tell news meanwhile; leaving it ends the streams."""
        loop = asyncio.get_running_loop()
        self._loops.append(loop)
        try:
            yield
        finally:
            self._loops.remove(loop)
            self._streams.close()
            if self._round is not None:
                self._round.cancel()

    def tell(self, kind: Kind, uri: str | None = None) -> None:
        """A list changed, or with an address one resource of it. Nobody there to hear it is fine."""
        event = ResourceUpdated(uri) if uri is not None else _LISTS[kind]
        for loop in self._loops[-1:]:
            with suppress(RuntimeError):  # closed by now: then nobody listens
                loop.call_soon_threadsafe(self._gather, event)

    # What clients ask

    async def greet(self, ctx: Context, params: wire.NotificationParams | None) -> None:
        """A legacy client is there: it hears of lists from now on, until its session ends."""
        if era_of(ctx) == "legacy":
            self._wanted(ctx)

    async def subscribe(self, ctx: Context, params: wire.SubscribeRequestParams) -> wire.EmptyResult:
        """Legacy: tell this session when the resource changes."""
        wanted, who = self._wanted(ctx), principal_of(ctx)
        if params.uri not in wanted and await self._may_watch(params.uri, who):
            over = not any(one is wanted for one in self._legacy.values())
            if over or params.uri in wanted:  # the session ended meanwhile, or it asked twice at once
                self._no_longer(params.uri, who)
            else:
                wanted[params.uri] = who
        return wire.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: wire.UnsubscribeRequestParams) -> wire.EmptyResult:
        """Legacy: no longer."""
        if (who := self._wanted(ctx).pop(params.uri, None)) is not None:
            self._no_longer(params.uri, who)
        return wire.EmptyResult()

    async def listen(
        self, ctx: Context, params: wire.SubscriptionsListenRequestParams
    ) -> wire.SubscriptionsListenResult:
        """Modern: a stream of what was asked for. Tasks are polled, so their ids are taken and not promised."""
        asked = (ctx.params or {}).get("notifications")
        if isinstance(asked, dict) and asked.get("taskIds") and "tasks" not in powers_of(ctx):
            raise lacking(frozenset({"tasks"}), "Following tasks")
        wanted, who = params.notifications, principal_of(ctx)
        allowed: list[str] = []
        try:
            for uri in wanted.resource_subscriptions or ():
                if await self._may_watch(uri, who):
                    allowed.append(uri)  # noqa: PERF401 - one by one: what was granted is given back in any case
            if wanted.resource_subscriptions:
                wanted = wanted.model_copy(update={"resource_subscriptions": allowed})
            return await self._streams(ctx, params.model_copy(update={"notifications": wanted}))
        finally:
            for uri in allowed:
                self._no_longer(uri, who)

    def _wanted(self, ctx: Context) -> dict[str, Principal]:
        """The addresses that a legacy session waits for; it is known from here on."""
        # The SDK shows a handler no way to its connection, and only that lives as long as the session.
        connection = ctx.session._connection  # noqa: SLF001
        if connection not in self._legacy:
            self._legacy[connection] = {}
            connection.exit_stack.callback(self._leave, connection)
        return self._legacy[connection]

    def _leave(self, connection: Connection) -> None:
        for uri, who in self._legacy.pop(connection, {}).items():
            self._no_longer(uri, who)

    # Telling

    def _gather(self, event: ServerEvent) -> None:
        self._waiting[event] = None
        if self._round is None or self._round.done():
            self._round = asyncio.ensure_future(self._go_round())

    async def _go_round(self) -> None:
        while self._waiting:
            await asyncio.sleep(TOGETHER)
            events, self._waiting = list(self._waiting), {}
            for event in events:
                await self._bus.publish(event)
                await asyncio.gather(*(self._send(one, event) for one in self._concerned(event)))

    def _concerned(self, event: ServerEvent) -> list[Connection]:
        if isinstance(event, ResourceUpdated):
            return [connection for connection, uris in self._legacy.items() if event.uri in uris]
        return list(self._legacy)

    async def _send(self, connection: Connection, event: ServerEvent) -> None:
        note = event_to_notification(event, {}).model_dump(by_alias=True, mode="json", exclude_none=True)
        params = {key: value for key, value in note.get("params", {}).items() if key != "_meta"}
        try:
            async with asyncio.timeout(PATIENCE):
                await connection.notify(note["method"], params or None)
        except Exception as error:  # noqa: BLE001 - one client that cannot be told must not hold up the others
            logger.debug("A client could not be told of a change: %s", type(error).__name__)
