"""The supervisor of ``agent3 serve --workers``: several processes behind one port.

It binds the port once and lets every worker accept from it, so that nothing is lost with a worker that dies before it
has accepted. It starts those that die again, kills those that no longer move, and on SIGHUP replaces one after the
other by a new process with new settings and new code: the new one is ready before the old one leaves, and gets its
connections. It never touches a request itself.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

import msgspec

from agent3.client.announcement import announce, withdraw
from agent3.errors import Agent3Error, SetupError
from agent3.observe import logs, shared_page
from agent3.observe.metrics import Metrics
from agent3.server.peers import COUNTS, FAILED, READY, RETIRE, STOP, read_page, say, write_page
from agent3.server.readiness import LONGEST
from agent3.server.run import listen, listen_for_health
from agent3.settings import Settings, database_url

__all__ = ["Serve", "Work", "serve_with_workers", "share_of"]

log = logs.get("workers")

_MOST = 256
_TICK = 0.25
_START_SECONDS = 300.0
"""Seconds in which a worker must be ready; migrating a large database takes long."""
_SILENT_SECONDS = 60.0
"""Seconds without a heartbeat after which a worker is killed."""
_PATIENCE = 10.0
"""Seconds beyond the time for running calls that a worker has to leave before it is killed."""
_SOON, _LATE = 0.1, 10.0
"""Seconds before a worker is started again: twice as many each time that it did not last."""
_LASTED = 30.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker needs; it is sent to a new process."""

    settings: Settings
    references: Sequence[str]
    demo: bool
    listener: socket.socket
    health: socket.socket | None
    folder: Path
    token: str
    line: socket.socket
    greets: bool


Serve = Callable[[Work], None]
"""Serves in the new process until it is told otherwise; it must be importable by its name."""


@dataclass(slots=True)
class _Worker:
    slot: int
    token: str
    process: SpawnProcess
    line: socket.socket
    started: float
    heard: float
    is_ready: bool = False
    leaves_since: float | None = None
    text: bytes = b""
    """What it said of its failure."""


@dataclass(slots=True)
class _Slot:
    """A place for one worker, which is filled again whenever it gets empty."""

    worker: _Worker | None = None
    next: _Worker | None = None
    """The one that replaces it, while that starts."""
    retry_at: float | None = None
    pause: float = _SOON


def serve_with_workers(read: Callable[[], Settings], references: Sequence[str], demo: bool, serve: Serve) -> None:
    """Serve until a signal comes. ``read`` gives the settings, anew for each roll."""
    settings = read()
    logs.configure(settings.logs.level.upper(), settings.logs.format)
    if not 1 <= settings.server.workers <= _MOST:
        raise SetupError(f"--workers must be a number from 1 to {_MOST}, or auto.")
    if database_url(settings).endswith((":memory:", "sqlite://", "sqlite:///")):
        raise SetupError(
            "Workers need a shared database, and one in memory is visible to one process only. Name a file with --db."
        )
    settings = _choose_grpc_port(settings)
    with ExitStack() as stack:
        listener = stack.enter_context(listen(settings))
        if (health := listen_for_health(settings)) is not None:
            stack.enter_context(health)
        folder = stack.enter_context(_folder())
        host, port = listener.getsockname()[:2]
        scheme = "https" if settings.server.tls_certificate else "http"
        note = announce(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}", settings)
        try:
            _Supervisor(settings, read, references, demo, serve, listener, health, folder).run()
        finally:
            withdraw(note)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for this user alone, short enough for the name of a socket."""
    where = Path(tempfile.mkdtemp(prefix="agent3-"))
    if len(str(where)) > 70:
        shutil.rmtree(where)
        where = Path(tempfile.mkdtemp(prefix="agent3-", dir="/tmp"))
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


def _choose_grpc_port(settings: Settings) -> Settings:
    """All workers have one port for gRPC too; a free one is chosen once."""
    if settings.server.grpc_port != 0:
        return settings
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return msgspec.structs.replace(settings, server=msgspec.structs.replace(settings.server, grpc_port=port))


def run_work(serve: Serve, work: Work) -> None:
    """In the new process: serve, and tell the supervisor why that was not possible."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    if os.getppid() != parent.pid:
        return
    try:
        serve(work)
    except Agent3Error as error:
        say(work.line, FAILED + error.message.encode()[:2_000])
        raise SystemExit(1) from None
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor says it
        traceback.print_exc()
        say(work.line, FAILED + f"{type(error).__name__}: {error}".encode()[:2_000])
        raise SystemExit(1) from None


@dataclass(slots=True)
class _Supervisor:
    settings: Settings
    read: Callable[[], Settings]
    references: Sequence[str]
    demo: bool
    serve: Serve
    listener: socket.socket
    health: socket.socket | None
    folder: Path
    slots: list[_Slot] = field(default_factory=list)
    leaving: list[_Worker] = field(default_factory=list)
    to_roll: list[int] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    gone: shared_page.Page = field(default_factory=dict)
    """What workers that have ended had counted."""
    was_ready: bool = False
    stops_since: float | None = None
    is_asked_to_roll: bool = False

    def run(self) -> None:
        """Keep all slots filled until a signal comes, then let all workers stop."""
        awake, waker = socket.socketpair()
        for one in (awake, waker):
            one.setblocking(False)
        handlers = {
            signal.SIGTERM: self._on_stop,
            signal.SIGINT: self._on_stop,
            signal.SIGHUP: self._on_hangup,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        wakeup = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self.slots = [_Slot() for _ in range(self.settings.server.workers)]
        try:
            self._fill(0)
            while any(slot.worker or slot.next for slot in self.slots) or self.leaving or self.stops_since is None:
                self._wait(awake)
                self._look()
                self._write_counts()
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            for worker in self._workers():
                worker.process.kill()
            awake.close()
            waker.close()

    def _workers(self) -> list[_Worker]:
        both = [worker for slot in self.slots for worker in (slot.worker, slot.next) if worker is not None]
        return both + self.leaving

    # Signals

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.stops_since is None:
            self.stops_since = now
        self.to_roll.clear()
        for worker in self._workers():
            worker.leaves_since = worker.leaves_since or now
            say(worker.line, STOP)  # the second time, a worker no longer waits to be noticed

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self.is_asked_to_roll = True

    # What workers say

    def _wait(self, awake: socket.socket) -> None:
        workers = self._workers()
        lines = {worker.line: worker for worker in workers}
        watched: list[socket.socket | int] = [awake, *lines, *(worker.process.sentinel for worker in workers)]
        for one in wait(watched, _TICK):
            if one is awake:
                with suppress(BlockingIOError):
                    while awake.recv(512):
                        pass
            elif isinstance(one, socket.socket):
                self._hear(lines[one])

    def _hear(self, worker: _Worker) -> None:
        try:
            said = worker.line.recv(4_096)
        except OSError:
            return
        if worker.text or said.startswith(FAILED):
            worker.text += said
            return
        worker.heard = time.monotonic()
        if READY in said and not worker.is_ready:
            worker.is_ready = self.was_ready = True
            slot = self.slots[worker.slot]
            slot.pause = _SOON
            if slot.next is worker:  # it replaces one, which may leave now
                old, slot.worker, slot.next = slot.worker, worker, None
                if old is not None:
                    old.leaves_since = time.monotonic()
                    say(old.line, RETIRE)
                    self.leaving.append(old)

    # What is to be done

    def _look(self) -> None:
        now = time.monotonic()
        for worker in self._workers():
            if not worker.process.is_alive():
                self._bury(worker)
            elif (reason := self._find_hung(worker, now)) is not None:
                log.error("worker %d (process %d) %s: killing it", worker.slot, worker.process.pid, reason)
                self.metrics.worker_restarts.inc(("hung",))
                worker.process.kill()
        if self.stops_since is not None:
            return
        if self.was_ready:
            for number, slot in enumerate(self.slots):
                if slot.worker is None and slot.next is None and (slot.retry_at is None or now >= slot.retry_at):
                    self._fill(number)
        # Replace one worker after the other; each new one is ready before the old one leaves.
        if self.is_asked_to_roll:
            self.is_asked_to_roll = False
            self._read_again()
            self.to_roll = list(range(len(self.slots)))
        rolling = any(slot.next is not None for slot in self.slots) or self.leaving
        while self.to_roll and not rolling:
            slot = self.slots[number := self.to_roll.pop(0)]
            if slot.worker is not None:
                slot.next = self._start(number)
                rolling = True

    def _find_hung(self, worker: _Worker, now: float) -> str | None:
        how = self.settings.server
        if worker.leaves_since is not None:
            late = now - worker.leaves_since > how.shutdown_seconds + LONGEST + _PATIENCE
            return "did not exit in time" if late else None
        if not worker.is_ready:
            return "was not ready in time" if now - worker.started > _START_SECONDS else None
        return "has not responded for a minute" if now - worker.heard > _SILENT_SECONDS else None

    def _bury(self, worker: _Worker) -> None:
        """A worker has ended: what it counted is kept, its place is free, and if it died that is told."""
        self._hear(worker)
        worker.process.join()
        code = worker.process.exitcode
        worker.process.close()
        worker.line.close()
        (self.folder / f"{worker.token}.sock").unlink(missing_ok=True)
        counts = self.folder / (worker.token + COUNTS)
        self.gone = shared_page.add([self.gone, shared_page.keep_counts(read_page(counts))])
        counts.unlink(missing_ok=True)
        why = worker.text.removeprefix(FAILED).decode("utf-8", "replace")
        if worker in self.leaving:
            self.leaving.remove(worker)
            self.metrics.worker_restarts.inc(("rolled",))
            if not self.to_roll and not self.leaving and self.stops_since is None:
                log.info("rolled over: %d new workers serve", len(self.slots))
            return
        slot = self.slots[worker.slot]
        if slot.next is worker:
            slot.next = None
            self.to_roll.clear()
            log.error("a new worker did not start, so the old ones stay: %s", why or f"exit code {code}")
            return
        slot.worker = None
        if self.stops_since is not None:
            return
        if not self.was_ready:
            raise SetupError(why or f"No worker could be started: the first one exited with code {code}.")
        lasted = time.monotonic() - worker.started
        slot.retry_at = time.monotonic() + (0.0 if lasted > _LASTED else slot.pause)
        slot.pause = _SOON if lasted > _LASTED else min(2 * slot.pause, _LATE)
        self.metrics.worker_restarts.inc(("died",))
        log.error("worker %d ended (%s): starting another", worker.slot, why or f"exit code {code}")

    def _fill(self, number: int) -> None:
        worker, slot = self._start(number), self.slots[number]
        slot.worker, slot.retry_at = worker, None

    def _start(self, number: int) -> _Worker:
        token, (here, there) = secrets.token_hex(6), socket.socketpair()
        work = Work(
            self.settings,
            self.references,
            self.demo,
            self.listener,
            self.health,
            self.folder,
            token,
            there,
            greets=not self.was_ready,
        )
        process = multiprocessing.get_context("spawn").Process(
            target=run_work, args=(self.serve, work), name=f"agent3 worker {number}"
        )
        process.start()
        there.close()
        here.setblocking(False)
        now = time.monotonic()
        return _Worker(number, token, process, here, now, now)

    def _read_again(self) -> None:
        try:
            settings = self.read()
        except Agent3Error as error:
            log.error("the settings cannot be read, so the previous ones stay: %s", error.message)
            return
        old, new = self.settings.server, settings.server
        if (old.host, old.port, old.health_port, old.workers) != (new.host, new.port, new.health_port, new.workers):
            log.warning("changes of server.host, the ports and the number of workers need a restart")
        kept = msgspec.structs.replace(
            new,
            host=old.host,
            port=old.port,
            health_port=old.health_port,
            workers=old.workers,
            grpc_port=old.grpc_port,
        )
        self.settings = msgspec.structs.replace(settings, server=kept)
        log.info("rolling %d workers", len(self.slots))

    def _write_counts(self) -> None:
        ready = [slot for slot in self.slots if slot.worker is not None and slot.worker.is_ready]
        self.metrics.workers.set((), len(ready))
        page = shared_page.take(self.metrics)
        own = {name: page[name] for name in (self.metrics.workers.name, _plain(self.metrics.worker_restarts.name))}
        with suppress(OSError):
            write_page(self.folder / f"supervisor{COUNTS}", shared_page.add([self.gone, own]))


def _plain(name: str) -> str:
    """The name of a count's family, which the format writes without its end."""
    return name.removesuffix("_total")


def share_of(settings: Settings) -> Settings:
    """The settings of one worker: its share of the connections."""
    how = settings.server
    most = max(16, -(-how.max_connections // how.workers))
    return msgspec.structs.replace(settings, server=msgspec.structs.replace(how, max_connections=most))
