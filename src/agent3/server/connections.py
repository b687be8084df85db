"""Connections of strangers: what uvicorn does, a bound on how long and how much a request may take to begin, and a
short way for the requests that come most.

Without the bound a connection that never finishes its headers is kept for ever, and two thousand of them close the door
for everybody. How long a body may take is the business of whoever reads it.

The short way: a POST that arrived whole and that a fast lane can answer is answered without ASGI between the two,
which takes as long as all of MCP. Whatever the lane does not want goes to the app, as if nothing had been tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agent3.calls.driving import Left
from agent3.mcp.fastlane import HungUp, Reply
from agent3.observe.logs import get as logger

__all__ = ["Lane", "patient"]

log = logger("server")

_MOST_HEADERS = 65_536
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 44\r\nconnection: close\r\n\r\nThe headers of a request are 64 KiB at most."
)


class Lane(Protocol):
    """What may answer a whole POST without ASGI; None where it does not want to, as where a proxy says who calls."""

    async def reply(self, scope: Scope, body: bytes, hung_up: HungUp) -> Reply | None: ...


Lanes = Callable[[str], Lane | None]
"""The lane of a path, if it has one."""


def patient(seconds: float, lanes: Lanes = lambda path: None) -> type[HttpToolsProtocol]:
    """The protocol for ``uvicorn.Config(http=…)``: it waits this long for the headers of a request."""
    return type("Connection", (_Connection,), {"seconds": seconds, "lanes": staticmethod(lanes)})


async def _hung_up(cycle: RequestResponseCycle) -> None:
    while not cycle.disconnected:
        cycle.message_event.clear()
        await cycle.message_event.wait()


class _Connection(HttpToolsProtocol):
    """One connection. Its clock runs while nothing is being answered and something has begun to arrive, or nothing
    ever has; a connection that rests between two requests is uvicorn's to close."""

    seconds: float
    lanes: Lanes
    _clock: asyncio.TimerHandle | None = None
    _rested: float | None = None
    _in_headers = False
    _ended = False
    _received = 0
    _arriving = 0
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wind()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        # Of requests that were sent one behind the other, uvicorn tells the last, which has not begun.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._arriving, self._ended = len(data), False
        super().data_received(data)
        # A request that began behind another in this read is counted from the next one on.
        self._received = 0 if self._in_headers and self._ended else self._received + len(data)
        if self._in_headers and self._received > _MOST_HEADERS:
            self._refuse()
        elif self._answering() or self.transport.is_closing():
            self._stop()
        elif self._clock is None:
            self._wind()

    def on_message_begin(self) -> None:
        self._in_headers, self._received = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        # One read may bring more than the limit at once; its body must not count, so then they are counted exactly.
        if self._received + self._arriving > _MOST_HEADERS and self._weight() > _MOST_HEADERS:
            raise ValueError("too many headers")  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._ended = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        scope = cycle.scope
        lane = self.lanes(scope["path"]) if scope["method"] == "POST" and app is self.app else None
        if lane is None:
            super()._start_asgi_task(cycle, app)
            return
        self.tasks.add(self.loop.create_task(self._quickly(lane, cycle, app)))

    async def _quickly(self, lane: Lane, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer by the lane, else by the app. A body that came with its headers is here by now, in one piece."""
        try:
            reply = None
            if not cycle.more_body and not cycle.waiting_for_100_continue:
                scope = cast("Scope", cycle.scope)
                self.flow.resume_reading()  # a large body stopped it, and a hang-up must be heard
                reply = await lane.reply(scope, bytes(cycle.body), lambda: _hung_up(cycle))
            if reply is None:
                cycle.message_event.set()  # the body is still to be read by the app, whoever waited for a hang-up
                await cycle.run_asgi(app)
                return
            if self.flow.write_paused and not cycle.disconnected:
                await self.flow.drain()
            if not cycle.disconnected:
                self._write(cycle, reply)
        except Left:
            return
        except Exception:
            log.exception("POST %s failed", cycle.scope["path"])
            await cycle.send_500_response()
        finally:
            self.tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _write(self, cycle: RequestResponseCycle, reply: Reply) -> None:
        more = b""
        for name, value in self.server_state.default_headers:
            more += b"%b: %b\r\n" % (name, value)
        if reply.session:
            more += b"mcp-session-id: %b\r\n" % reply.session
        if not cycle.keep_alive:
            more += b"connection: close\r\n"
        cycle.response_started = cycle.response_complete = True
        self.transport.write(_ANSWER % (len(reply.body), more, reply.body))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    # One timer for a connection at rest, looked after when it rings, instead of one for every request.

    def _unset_keepalive_if_required(self) -> None:
        self._rested = None

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._rested = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._watch_rest(self.timeout_keep_alive)

    def _watch_rest(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._rest_is_over)

    def _rest_is_over(self) -> None:
        self.timeout_keep_alive_task = None
        if self._rested is None:
            return
        left = self._rested + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._watch_rest(left)
        else:
            self.timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        if self.headers and self._weight() > _MOST_HEADERS:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _weight(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse(self) -> None:
        self._stop()
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _wind(self) -> None:
        self._clock = self.loop.call_later(self.seconds, self._ring)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _ring(self) -> None:
        self._clock = None
        if not self._answering() and not self.transport.is_closing():
            log.debug("a connection of %s sent no whole request in %g s and is closed", self.client, self.seconds)
            self.transport.close()
