"""Health, readiness and metrics on a port of their own, answered by a thread of their own in every state.

What the event loop is busy with, and how many wait to be accepted at the port of the gateway, does not delay it: it
tells what the loop last said of itself, and that the loop says nothing any more. It reads one short request for each
connection, keeps few of them open and none for long, and speaks no TLS: the port is for probes, not for callers.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from agent3._version import __version__
from agent3.errors import Agent3Error
from agent3.gateway.dead_letters import measure
from agent3.observe.logs import get as logger
from agent3.server.build import Server
from agent3.server.readiness import Probe

__all__ = ["HealthPort"]

log = logger("server")

_LOOK_SECONDS = 1.0
"""Seconds between two times that the loop looks whether it is ready."""
_STALE = 10.0
"""Seconds after which what it said last does not count any more."""
_MOST = 64
"""Connections that are open at once; beyond them the oldest is closed."""
_SECONDS = 5.0
"""Seconds in which a request must have arrived and its answer be read."""
_LONGEST = 8_192
_SWITCH_SECONDS = 0.001
"""Seconds after which a thread that computes lets another one that waits have its turn, in place of Python's 5 ms: an
answer takes some ten turns, one for each question to the system."""
_REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_JSON = "application/json"


class _Answer(NamedTuple):
    status: int
    body: bytes
    kind: str = _JSON

    def encode(self) -> bytes:
        again = "retry-after: 1\r\n" if self.status == 503 else ""
        head = (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\ncontent-type: {self.kind}\r\n"
            f"content-length: {len(self.body)}\r\n{again}connection: close\r\n\r\n"
        )
        return head.encode("ascii") + self.body


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    until: float
    arrived: bytes = b""
    leaves: memoryview = field(default_factory=lambda: memoryview(b""))
    awaits: int = 0
    """What the selector was asked to tell of it."""


class HealthPort:
    """Answers at a listening socket from ``start`` to ``aclose``. The socket stays its owner's to close.

    ``refuses`` says what is wrong with the Host of a request, as at the port of the gateway.
    """

    def __init__(
        self,
        server: Server,
        listener: socket.socket,
        refuses: Callable[[list[tuple[bytes, bytes]]], Agent3Error | None],
    ):
        self._server = server
        self._listener = listener
        self._refuses = refuses
        self._database = Probe(lambda: server.database.one("SELECT 1 AS fine"), server.env)
        self._measured = Probe(lambda: measure(server.database, server.env, server.metrics), server.env)
        self._measuring: asyncio.Task[None] | None = None
        self._trouble: str | None = "starting"
        self._told = time.monotonic()
        self._open: dict[int, _Connection] = {}
        self._ends = False
        self._looking: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._serve, name="agent3-health", daemon=True)

    async def start(self) -> None:
        """Answer from now on."""
        self._loop = asyncio.get_running_loop()
        await self._look()
        self._looking = asyncio.create_task(self._keep_looking(), name="health")
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        self._thread.start()

    async def aclose(self) -> None:
        """Answer no more; wait for what is being answered."""
        if self._looking is not None:
            self._looking.cancel()
            self._ends = True
            await asyncio.to_thread(self._thread.join, _SECONDS)

    # In the loop

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        try:
            await self._database.check()
            self._trouble = None
        except Agent3Error as error:
            self._trouble = error.message
        self._told = time.monotonic()

    def _note_probe(self) -> None:
        self._server.readiness.note_probe()
        if self._server.peers is not None:
            self._server.peers.tell_probe()

    def _begin_measuring(self) -> None:
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure(), name="measuring")

    async def _measure(self) -> None:
        with suppress(Agent3Error):  # what cannot be counted now keeps its last value
            await self._measured.check()

    # In the thread

    def _serve(self) -> None:
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ends:
                for key, _ in selector.select(0.2):
                    if key.data is None:
                        self._accept(selector)
                    elif key.data.socket.fileno() >= 0:  # else it was closed for one that was accepted just now
                        self._go_on(selector, key.data)
                now = time.monotonic()
                for one in [one for one in self._open.values() if one.until < now]:
                    self._close(selector, one)
            for one in list(self._open.values()):
                self._close(selector, one)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            came, _ = self._listener.accept()
        except BlockingIOError:  # another worker was faster
            return
        except OSError as error:
            log.warning("the health port cannot accept connections at the moment: %s", error)
            time.sleep(0.05)  # too many files are open, perhaps; that passes
            return
        came.setblocking(False)
        if len(self._open) >= _MOST:
            self._server.metrics.connections_closed.inc(("health_port",))
            self._close(selector, next(iter(self._open.values())))
        one = self._open[came.fileno()] = _Connection(came, time.monotonic() + _SECONDS)
        self._go_on(selector, one)  # mostly its request is there already, and an answer fits into one packet

    def _go_on(self, selector: selectors.BaseSelector, one: _Connection) -> None:
        try:
            if not one.leaves:
                piece = one.socket.recv(_LONGEST)
                one.arrived += piece
                if not piece:
                    self._close(selector, one)
                    return
                if b"\r\n\r\n" not in one.arrived and len(one.arrived) < _LONGEST:
                    self._await(selector, one, selectors.EVENT_READ)
                    return
                one.leaves = memoryview(self._answer(one.arrived).encode())
            one.leaves = one.leaves[one.socket.send(one.leaves) :]
            if one.leaves:
                self._await(selector, one, selectors.EVENT_WRITE)
            else:
                self._close(selector, one)
        except BlockingIOError:
            self._await(selector, one, selectors.EVENT_WRITE if one.leaves else selectors.EVENT_READ)
        except OSError:
            self._close(selector, one)
        except Exception:  # a page that fails must not end the thread
            log.exception("the health port could not answer")
            self._close(selector, one)

    def _await(self, selector: selectors.BaseSelector, one: _Connection, what: int) -> None:
        if one.awaits != what:
            (selector.modify if one.awaits else selector.register)(one.socket, what, one)
            one.awaits = what

    def _close(self, selector: selectors.BaseSelector, one: _Connection) -> None:
        self._open.pop(one.socket.fileno(), None)
        if one.awaits:
            selector.unregister(one.socket)
        with suppress(OSError):
            one.socket.shutdown(socket.SHUT_WR)
        one.socket.close()

    # Pages

    def _answer(self, arrived: bytes) -> _Answer:
        head, ended, _ = arrived.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        method, _, rest = first.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if not ended or method not in (b"GET", b"HEAD"):
            return _refuse(400, "invalid", "Send GET /healthz, /readyz or /metrics.")
        fields = [line.partition(b":") for line in lines]
        if (refusal := self._refuses([(name.strip().lower(), value.strip()) for name, _, value in fields])) is not None:
            return _refuse(403, refusal.code, refusal.message)
        page = {b"/healthz": self._healthz, b"/readyz": self._readyz, b"/metrics": self._metrics}.get(path)
        if page is None:
            return _refuse(404, "not_found", "This port has /healthz, /readyz and /metrics only.")
        try:
            answer = page()
        except Exception:  # a page that fails must not end the thread, and with it the port
            log.exception("%s could not be answered at the health port", path.decode("latin-1"))
            answer = _refuse(500, "internal", "This page could not be made at the moment. The log tells why.")
        return answer if method == b"GET" else answer._replace(body=b"")

    def _healthz(self) -> _Answer:
        return _Answer(200, _encode({"status": "ok", "version": __version__}))

    def _readyz(self) -> _Answer:
        with suppress(RuntimeError):  # the loop has just ended
            self._loop.call_soon_threadsafe(self._note_probe)
        silent = time.monotonic() - self._told
        if silent > _STALE:
            return _not_ready("gateway", f"its event loop has not answered for {silent:.0f} s")
        if self._trouble is not None:
            return _not_ready("database", self._trouble)
        if not self._server.ready:
            return _not_ready("gateway", "starting or stopping")
        return _Answer(200, _encode({"status": "ready"}))

    def _metrics(self) -> _Answer:
        server = self._server
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin_measuring)  # counts for the next one
        body, kind = server.metrics.render() if server.peers is None else server.peers.render()
        return _Answer(200, body, kind)


def _encode(body: object) -> bytes:
    return msgspec.json.encode(body)


def _not_ready(what: str, why: str) -> _Answer:
    return _Answer(503, _encode({"status": "not ready", what: why}))


def _refuse(status: int, code: str, message: str) -> _Answer:
    return _Answer(status, _encode({"error": {"code": code, "message": message, "retryable": False}}))
