"""Legacy streams that can be taken up again: a client that lost one comes back with the last event it saw."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCMessage

__all__ = ["SessionEvents", "Sessions"]

EVENTS = 100
"""Events that one session keeps; older ones are lost to a client that comes back too late."""


class SessionEvents(EventStore):
    """The latest events of one session, each with a number of its own."""

    def __init__(self, most: int = EVENTS) -> None:
        self._events: deque[tuple[int, str, JSONRPCMessage | None]] = deque(maxlen=most)
        self._last = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event; None stands for the one that opens a stream."""
        self._last += 1
        self._events.append((self._last, stream_id, message))
        return str(self._last)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what came later on the stream of that event; None where it is not known any more."""
        after = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 19 else 0
        stream = next((stream for number, stream, _ in self._events if number == after), None)
        if stream is None:
            return None
        for number, where, message in list(self._events):
            if number > after and where == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


class Sessions(StreamableHTTPSessionManager):
    """The SDK's manager, with a store of events for each session instead of one for all.

    Streams are named by the ids of requests, which two clients choose alike, and any client of a shared store could
    ask for the events of another.
    """

    def __init__(self, *args: Any, events: Callable[[], EventStore] | None, **options: Any):
        self._events = events
        super().__init__(*args, **options)

    @property
    def event_store(self) -> EventStore | None:
        """Read once for each session that is opened."""
        return self._events() if self._events is not None else None

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None:
        """What the SDK's constructor sets is not used."""
