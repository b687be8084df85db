"""The worker processes of one gateway among each other, as one of them sees it.

They share the listening socket and the database. What else they tell each other goes through a folder that only their
user can open: each has a Unix socket there, by its token, and writes down what it counts. A connection whose next
request belongs to another worker, because that holds its MCP session, is handed to it with what was read of it; so is
every connection of a worker that leaves, so that no client notices.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent3.observe import shared_page
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics

__all__ = [
    "BEAT",
    "BEAT_SECONDS",
    "COUNTS",
    "FAILED",
    "READY",
    "RETIRE",
    "STOP",
    "Peers",
    "read_page",
    "say",
    "write_page",
]

log = logger("workers")

METRICS_SECONDS = 1.0
"""Seconds between two times that a worker writes down what it counts; one that is killed loses so much of it."""
COUNTS = ".metrics"
_SOCKET = ".sock"
_PATIENCE = 2.0
"""Seconds in which another worker must have taken a connection; else it is served here."""
_PAUSE = 0.2
BEAT_SECONDS = 1.0
READY, BEAT, FAILED = b"R", b".", b"F"
"""What a worker tells its supervisor; behind a failure comes its text."""
RETIRE, STOP = b"r", b"s"
"""What a supervisor tells a worker: to leave while the others go on, or that all stop."""
_HEAD = struct.Struct("!cI")
_CONNECTION, _RELAYED, _PROBE = b"C", b"R", b"P"
_ORIGIN = 4
"""Bytes of the length of where a relayed connection comes from."""
_TAKEN = b"+"
_MOST = 1 << 20
"""Bytes of a request that go along with its connection."""


def say(line: socket.socket, what: bytes) -> None:
    """Say something to the other end, which may be gone, or asleep and listening to nothing."""
    with suppress(OSError):
        line.send(what, socket.MSG_DONTWAIT)


def write_page(file: Path, page: shared_page.Page) -> None:
    """Replace a page at once: who reads it sees the old one or the new one."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps(page, separators=(",", ":")))
    beside.replace(file)


def read_page(file: Path) -> shared_page.Page:
    """A page that was written; empty if it is gone."""
    try:
        page: shared_page.Page = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return page


class Peers:
    """This worker and the others. ``take`` and ``on_probe`` are called in the loop that ``open`` was awaited in."""

    def __init__(self, folder: Path, token: str, metrics: Metrics):
        self.token = token
        self._folder = folder
        self._metrics = metrics
        self._listener: socket.socket | None = None
        self._writer: asyncio.Task[None] | None = None
        self.take: Callable[[socket.socket, bytes, bytes], None] | None = None
        """Serves a connection that another worker has given, with what that has read of it."""
        self.on_probe: Callable[[], None] = lambda: None
        """Another worker was asked whether it is ready."""

    # To others

    def owner_of(self, session: str) -> str | None:
        """The other worker that holds an MCP session; None if that is this one, or is gone, or is not known."""
        token, dot, _ = session.partition(".")
        if not dot or token == self.token or not token.isalnum():
            return None
        return token if (self._folder / (token + _SOCKET)).exists() else None

    def any_other(self) -> str | None:
        """One of the other workers that take connections."""
        try:
            names = [file.stem for file in self._folder.glob("*" + _SOCKET) if file.stem != self.token]
        except OSError:
            names = []
        return random.choice(names) if names else None  # noqa: S311 - a choice between equals

    async def give(self, token: str, handle: int, data: bytes, origin: bytes = b"") -> bool:
        """Give a connection to another worker; whether that took it. The caller closes its own handle in any case."""
        kind = _CONNECTION
        if origin:  # told apart by its kind, so that no client can claim one by what it sends
            kind, data = _RELAYED, len(origin).to_bytes(_ORIGIN) + origin + data
        if len(data) > _MOST:
            return False
        taken = await asyncio.to_thread(self._send, token, _HEAD.pack(kind, len(data)), data, handle)
        self._metrics.handovers.inc(("taken" if taken else "refused",))
        return taken

    def tell_probe(self) -> None:
        """Tell the others that this worker was asked whether it is ready."""
        others = [file.stem for file in self._folder.glob("*" + _SOCKET) if file.stem != self.token]

        def tell() -> None:
            for token in others:
                self._send(token, _HEAD.pack(_PROBE, 0), b"", None)

        if others:
            asyncio.get_running_loop().run_in_executor(None, tell)

    def _send(self, token: str, head: bytes, data: bytes, handle: int | None) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
                to.settimeout(_PATIENCE)
                to.connect(str(self._folder / (token + _SOCKET)))
                if handle is None:
                    to.sendall(head)
                else:
                    socket.send_fds(to, [head], [handle])
                to.sendall(data)
                return to.recv(1) == _TAKEN
        except OSError as error:
            log.debug("worker %s did not accept a connection: %s", token, error)
            return False

    # From others

    async def open(self) -> None:
        """Take connections of others from now on, and write down what is counted."""
        loop = asyncio.get_running_loop()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._folder / (self.token + _SOCKET)))
        listener.listen(512)
        self._listener = listener
        threading.Thread(target=self._accept, args=(loop, listener), name="agent3-peers", daemon=True).start()
        self._writer = asyncio.create_task(self._write_counts(), name="counts of this worker")

    def leave(self) -> None:
        """Take no more connections. Others find no socket here, and go on with the sessions of this worker."""
        with suppress(OSError):
            (self._folder / (self.token + _SOCKET)).unlink(missing_ok=True)
        if self._listener is not None:
            listener, self._listener = self._listener, None
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()

    async def aclose(self) -> None:
        """Leave, and write down the last counts."""
        self.leave()
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait({self._writer})
        self.write_counts()

    def write_counts(self) -> None:
        """Write down what was counted so far, for those who stay."""
        with suppress(OSError):
            write_page(self._folder / (self.token + COUNTS), shared_page.take(self._metrics))

    def _accept(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        """In a thread of its own: these sockets carry handles, which no event loop can read."""
        while True:
            try:
                came, _ = listener.accept()
            except OSError as error:
                if self._listener is not listener:
                    return  # closed
                log.warning("connections of other workers cannot be accepted at the moment: %s", error)
                time.sleep(_PAUSE)  # too many files are open, perhaps; that passes
                continue
            try:
                with came:
                    came.settimeout(_PATIENCE)
                    self._receive(loop, came)
            except (OSError, RuntimeError, struct.error) as error:
                log.debug("a connection of another worker could not be accepted: %s", error)

    def _receive(self, loop: asyncio.AbstractEventLoop, came: socket.socket) -> None:
        head, handles, _, _ = socket.recv_fds(came, _HEAD.size, 1)
        try:
            while 0 < len(head) < _HEAD.size:
                head += came.recv(_HEAD.size - len(head))
            kind, length = _HEAD.unpack(head)
            if kind == _PROBE:
                came.sendall(_TAKEN)
                loop.call_soon_threadsafe(self.on_probe)
            elif handles and self.take is not None and length <= _MOST:
                data = b""
                while len(data) < length and (more := came.recv(length - len(data))):
                    data += more
                if len(data) < length:
                    return
                origin = b""
                if kind == _RELAYED:
                    size = int.from_bytes(data[:_ORIGIN])
                    origin, data = data[_ORIGIN : _ORIGIN + size], data[_ORIGIN + size :]
                came.sendall(_TAKEN)  # fails where the other has waited too long and serves it itself
                given, handles = socket.socket(fileno=handles[0]), []
                loop.call_soon_threadsafe(self.take, given, data, origin)
        finally:
            for handle in handles:
                os.close(handle)

    # What all count

    async def _write_counts(self) -> None:
        file = self._folder / (self.token + COUNTS)
        while True:
            try:
                page = shared_page.take(self._metrics)
                await asyncio.to_thread(write_page, file, page)
            except OSError as error:
                log.warning("the counts of this worker could not be written: %s", error)
            await asyncio.sleep(METRICS_SECONDS)

    def render(self) -> tuple[bytes, str]:
        """The page of all workers, those that have ended included: of this one as of now, of the others as written."""
        own = self.token + COUNTS
        others: list[Any] = [read_page(file) for file in sorted(self._folder.glob("*" + COUNTS)) if file.name != own]
        return shared_page.render(shared_page.add([shared_page.take(self._metrics), *others]))
