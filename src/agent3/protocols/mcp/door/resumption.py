"""Legacy streams that can be resumed: a client that lost one comes back with the id of the last event it saw."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCMessage

__all__ = ["SessionEvents", "SessionManager"]

MOST_EVENTS = 100
"""Events that one session keeps; a client that comes back too late misses older ones."""


class SessionEvents(EventStore):
    """The latest events of one session, numbered."""

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
    could ask for the events of another.
    """

    def __init__(self, *args: Any, make_store: Callable[[], EventStore] | None, **options: Any):
        self._make_store = make_store
        super().__init__(*args, **options)

    @property
    def event_store(self) -> EventStore | None:
        """Read by the SDK once for each session that is opened."""
        return self._make_store() if self._make_store is not None else None

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None:
        """What the SDK's constructor sets is not used."""
