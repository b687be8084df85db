"""Connections of strangers: what uvicorn does, a bound on how long and how much a request may take to begin, and a
short way for the requests that come most.

Without the bound a connection that never finishes its headers is kept for ever, and two thousand of them close the door
for everybody. How long a body may take is the business of whoever reads it.

The short way: a POST that arrived whole and that a fast lane can answer is answered without ASGI between the two,
which takes as long as all of MCP. Where its head is one that was answered before, it is not parsed either. Whatever the
lane does not want goes to the parser and the app, as if nothing had been tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agent3.calls.coroutines import Left
from agent3.gateway.lanes import Guest, Lane, Reply
from agent3.observe.logs import get as logger
from agent3.server.request_heads import Heads

__all__ = ["patient"]

log = logger("server")

_MOST_HEADERS = 65_536
_AT_ONCE = 1.0
"""Seconds for which a body is waited for before whoever reads it is asked to."""
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 44\r\nconnection: close\r\n\r\nThe headers of a request are 64 KiB at most."
)
_FAILED = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 21\r\nconnection: close\r\n\r\nInternal Server Error"
)


Lanes = Callable[[str], Lane | None]
"""The lane of a path, if it has one."""


def patient(seconds: float, lanes: Lanes = lambda path: None) -> type[HttpToolsProtocol]:
    """The protocol for ``uvicorn.Config(http=…)``: it waits this long for the headers of a request."""
    own = {"seconds": seconds, "lanes": staticmethod(lanes), "heads": Heads[Guest]()}
    return type("Connection", (_Connection,), own)


async def _hung_up(cycle: RequestResponseCycle) -> None:
    while not cycle.disconnected:
        cycle.message_event.clear()
        await cycle.message_event.wait()


class _Connection(HttpToolsProtocol):
    """One connection. Its clock runs while nothing is being answered and something has begun to arrive, or nothing
    ever has; a connection that rests between two requests is uvicorn's to close."""

    seconds: float
    lanes: Lanes
    heads: Heads[Guest]
    _clock: asyncio.TimerHandle | None = None
    _rested: float | None = None
    _in_headers = False
    _ended = False
    _received = 0
    _arriving = 0
    _running: RequestResponseCycle | None = None
    _between = True
    """Whether the parser has seen the end of all that it saw the beginning of."""
    _raw: bytes | None = None
    """What has arrived, where it begins with the request that is parsed now."""
    _visit: asyncio.Task[None] | None = None
    """What answers a request without the parser's help."""
    _begun: bytes | None = None
    """The beginning of a request of a known head, whose body has not all come."""
    _behind = b""
    _gone: asyncio.Event | None = None
    _last = False
    _told: MutableMapping[str, Any] | None = None

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
        if self._visit is not None:
            self._behind = b""
            self._gone = self._gone or asyncio.Event()
            self._gone.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._begun is not None:
            data, self._begun = self._begun + data, None
        if self._visit is not None:
            self._wait_behind(data)
        elif not self._between or self._answering() or not self._received_by_guest(data):
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        self._arriving, self._ended = len(data), False
        self._raw = data if self._between else None
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
        self._in_headers, self._received, self._between = True, 0, False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        # One read may bring more than the limit at once; its body must not count, so then they are counted exactly.
        if self._received + self._arriving > _MOST_HEADERS and self._weight() > _MOST_HEADERS:
            raise ValueError("too many headers")  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._ended = self._between = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        raw, self._raw = self._raw, None
        scope = cast("Scope", cycle.scope)
        if self._told is not None:  # a guest's, whose lane has done what it can
            told, self._told = self._told, None
            scope.update(told)
            super()._start_asgi_task(cycle, app)
            return
        lane = self.lanes(scope["path"]) if scope["method"] == "POST" and app is self.app else None
        if lane is None:
            super()._start_asgi_task(cycle, app)
            return
        self.tasks.add(self.loop.create_task(self._quickly(lane, cycle, app, raw)))

    async def _quickly(self, lane: Lane, cycle: RequestResponseCycle, app: Any, raw: bytes | None) -> None:
        """Answer by the lane, else by the app. A body that came with its headers is here by now, in one piece."""
        try:
            reply = None
            if cycle.more_body and not cycle.waiting_for_100_continue:
                await self._rest_of(cycle)
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
                self._write(reply, keep_alive=cycle.keep_alive)
                cycle.response_started = cycle.response_complete = True
                cycle.message_event.set()
                self.on_response_complete()
                self._learn(raw, lane, cycle)
        except Left:
            return
        except Exception:
            log.exception("POST %s failed", cycle.scope["path"])
            await cycle.send_500_response()
        finally:
            self.tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _rest_of(self, cycle: RequestResponseCycle) -> None:
        """A body that comes right behind its headers; one that takes long, or is large, is the app's to read."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_AT_ONCE, self.seconds)):
                while cycle.more_body and not cycle.disconnected and len(cycle.body) < _MOST_HEADERS:
                    cycle.message_event.clear()
                    await cycle.message_event.wait()

    def _learn(self, raw: bytes | None, lane: Lane, cycle: RequestResponseCycle) -> None:
        if raw is None or not cycle.keep_alive:
            return
        scope = cast("Scope", cycle.scope)
        if (guest := lane.guest(scope)) is not None:
            self.heads.learn(raw, scope["headers"], guest)

    def _write(self, reply: Reply, *, keep_alive: bool) -> None:
        more = b""
        for name, value in self.server_state.default_headers:
            more += b"%b: %b\r\n" % (name, value)
        if reply.session:
            more += b"mcp-session-id: %b\r\n" % reply.session
        if not keep_alive:
            more += b"connection: close\r\n"
        self.transport.write(_ANSWER % (len(reply.body), more, reply.body))
        if not keep_alive:
            self.transport.close()

    # Requests of a known head, which neither the parser nor the app sees

    def _received_by_guest(self, data: bytes) -> bool:
        """Have a request answered by whom its head is known to be from; whether it is that."""
        found = self.heads.find(data)
        if found is None or self._crowded():
            return False
        guest, start, missing = found
        self._rested = None
        if missing:
            return self._waited_for(data, missing)
        self._stop()
        self._visit = self.loop.create_task(self._visited(guest, data, start))
        self.tasks.add(self._visit)
        return True

    def _waited_for(self, data: bytes, missing: int) -> bool:
        """Many clients send the body behind the head. Who takes long with it, or sends much, is parsed after all."""
        if len(data) + missing > _MOST_HEADERS:
            return False
        self._begun = data
        if self._clock is None:
            self._clock = self.loop.call_later(min(_AT_ONCE, self.seconds), self._ring)
        return True

    def _parse_begun(self) -> None:
        data, self._begun = self._begun, None
        if data is not None:
            self._parse(data)

    def _crowded(self) -> bool:
        most = self.limit_concurrency
        return most is not None and (len(self.tasks) >= most or len(self.connections) >= most)

    async def _visited(self, guest: Guest, data: bytes, start: int) -> None:
        """Answer, or hand the request to the parser after all."""
        told: dict[str, Any] = {}
        try:
            reply = await guest.reply(told, data[start:], self._left)
            if self.flow.write_paused and self._gone is None:
                await self.flow.drain()
        except Left:
            self._end_visit()
        except Exception:
            log.exception("a POST whose head is known failed")
            self._end_visit()
            self._close_with(_FAILED)
        except BaseException:
            self._end_visit()
            self.transport.close()
            raise
        else:
            self._end_visit()
            if not self.transport.is_closing():
                self._leave(reply, told, data)

    def _end_visit(self) -> None:
        self.tasks.discard(cast("asyncio.Task[None]", self._visit))
        self._visit = None

    def _leave(self, reply: Reply | None, told: dict[str, Any], data: bytes) -> None:
        """The end of a visit: the answer, or the ordinary way, and then whatever came meanwhile."""
        if reply is not None:
            self._write(reply, keep_alive=not self._last)
            self.on_response_complete()
        else:
            self._told = told or None
            self._parse(data)
            if self._last:
                super().shutdown()
        if self._behind and not self.transport.is_closing():
            behind, self._behind = self._behind, b""
            self.data_received(behind)

    def _wait_behind(self, data: bytes) -> None:
        self._behind += data
        if len(self._behind) > _MOST_HEADERS:
            self.flow.pause_reading()

    async def _left(self) -> None:
        self._gone = self._gone or asyncio.Event()
        await self._gone.wait()

    def shutdown(self) -> None:
        self._parse_begun()
        if self._visit is not None:
            self._last = True
        else:
            super().shutdown()

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
        self._close_with(_TOO_LARGE)

    def _close_with(self, answer: bytes) -> None:
        self.transport.write(answer)
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
        if self._begun is not None:
            self._parse_begun()
        elif not self._answering() and not self.transport.is_closing():
            log.debug("a connection of %s sent no whole request in %g s and is closed", self.client, self.seconds)
            self.transport.close()
