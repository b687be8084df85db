"""The one writer of a SQLite database: a thread that commits in groups.

Everything that waits when a transaction begins goes into it, each work behind its own savepoint, so that one fsync
pays for many works and one failing work does not spoil the others. It knows works and futures; how a connection is
configured is up to its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from agent3 import failpoints
from agent3.errors import Agent3Error, Conflict, Corrupt, RequestError, StorageError, StorageFull
from agent3.storage.database import Row, Work
from agent3.storage.disk_space import DiskSpace

__all__ = ["BUSY_SECONDS", "Statements", "Writer", "primary_code", "retry_while_busy", "translate_error"]

T = TypeVar("T")
GROUP = 512
BUSY_SECONDS = 10.0
_BROKEN = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN)
_BAD_VALUE = (sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError, UnicodeError)


def primary_code(error: BaseException) -> int:
    """SQLite's primary result code of an error, 0 when it has none."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def translate_error(error: Exception) -> Agent3Error:
    """Our error for one of SQLite's."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StorageFull("The database is full. Delete old data, free disk space, or raise its size limit.")
    # SQLite quotes the damaged bytes in its message, which Python then cannot decode.
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or isinstance(error, UnicodeDecodeError):
        return Corrupt(f"The database file is damaged ({error}). Restore it from a backup.")
    if code == sqlite3.SQLITE_READONLY:
        text = (
            "The database is read-only at the moment: searching and reading still work. Let this process write "
            "to its file."
        )
        return StorageError(text, retry_after=5.0)
    if code == sqlite3.SQLITE_CONSTRAINT:
        return Conflict(f"The database rejected the statement: {error}.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError("Another process keeps the database locked. Try again.", retry_after=1.0)
    if isinstance(error, _BAD_VALUE):
        return RequestError(f"A value cannot be stored: {error}.")
    return StorageError(f"The database failed: {error}.")


def retry_while_busy(step: Callable[[], T]) -> T:
    """Repeat a step that another process's lock may block, until it succeeds or BUSY_SECONDS have passed.

    SQLite's own busy handler sleeps ever longer, up to 0.1 s: beside a process that writes without a pause, the worst
    wait was 108 ms with it and 24 ms with these short, uneven sleeps. The clock is the real one, since the other
    process runs by no other.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311 - spreads load, guards nothing


class Statements:
    """A Transaction on a SQLite connection; nothing in it suspends."""

    __slots__ = ("_connection", "_error")

    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        self._error: Exception | None = None

    async def all(self, sql: str, *params: object) -> list[Row]:
        return self._do(lambda: self._connection.execute(sql, params).fetchall())

    async def one(self, sql: str, *params: object) -> Row | None:
        rows = await self.all(sql, *params)
        return rows[0] if rows else None

    async def run(self, sql: str, *params: object) -> int:
        return self._do(lambda: max(self._connection.execute(sql, params).rowcount, 0))

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        self._do(lambda: self._connection.executemany(sql, cast("Sequence[Sequence[Any]]", rows)))

    def read(self, sql: str, params: Sequence[object]) -> list[Row]:
        """A query that cannot change anything, for a database whose only connection is the writer's."""
        self._connection.execute("PRAGMA query_only = ON")
        try:
            return self._do(lambda: self._connection.execute(sql, cast("Sequence[Any]", params)).fetchall())
        finally:
            self._connection.execute("PRAGMA query_only = OFF")

    def end(self) -> None:
        """Refuse further statements; raises the error that the work swallowed, if any."""
        error, self._error = self._error, StorageError("This transaction is over. Use it only inside its function.")
        if error is not None:
            raise error

    def _do(self, statement: Callable[[], T]) -> T:
        if self._error is not None:
            raise self._error
        try:
            return statement()
        except (sqlite3.Error, *_BAD_VALUE) as error:
            self._error = translate_error(error)
            raise self._error from error


@dataclass(slots=True, eq=False)
class _Job:
    """A work that waits for the writer, and who waits for it."""

    work: Work[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    frees: bool = False


@dataclass(slots=True)
class _Outcome:
    value: Any = None
    error: BaseException | None = None


class _RolledBack(Exception):
    """SQLite rolled the whole transaction back because of one work's error."""


class Writer:
    """Runs works on one connection in one thread; ``connect`` makes another one when the disk has failed under it."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        connection: sqlite3.Connection,
        space: DiskSpace,
        *,
        reopens: bool,
    ):
        self._connect = connect
        self._connection = connection
        self._space = space
        self._reopens = reopens
        self._suspect = False
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="agent3-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Work[T], *, frees: bool = False) -> T:
        """Hand the work to the thread and wait until it is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:  # nothing may be queued behind the None that ends the thread
            if self._closing:
                raise StorageError("The database is closed. Open it again to use it.")
            self._queue.put(_Job(work, loop, future, frees))
        return await future

    def stop(self) -> None:
        """Finish what is queued, close the connection and wait for the thread. Blocks; safe to call again."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (group := self._next_group()) is not None:
            wanted = [job for job in group if not job.future.cancelled()]
            if wanted and self._space.is_short():
                refused = [job for job in wanted if not job.frees]
                full = "The disk is full, and the reserve is kept for deletions. Free disk space; no restart is needed."
                _settle(refused, [_Outcome(error=StorageFull(full, retry_after=1.0)) for _ in refused])
                wanted = [job for job in wanted if job.frees]
            if wanted:
                outcomes = self._run_group(wanted)
                # A work that frees space and found none runs again with the reserve.
                again = [
                    place
                    for place, job in enumerate(wanted)
                    if job.frees and isinstance(outcomes[place].error, StorageFull)
                ]
                if again:
                    with self._space.use_reserve(self._connection):
                        repeated = self._run_group([wanted[place] for place in again])
                    for place, outcome in zip(again, repeated, strict=True):
                        outcomes[place] = outcome
                _settle(wanted, outcomes)
        _close(self._connection)

    def _next_group(self) -> list[_Job] | None:
        """All jobs that wait, at least one and at most GROUP; None when the writer was stopped."""
        job = self._queue.get()
        group = []
        while job is not None:
            group.append(job)
            if len(group) == GROUP:
                return group
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return group
        if group:
            self._queue.put(None)  # nothing follows it, so the next round finds it again
        return group or None

    def _run_group(self, group: Sequence[_Job]) -> list[_Outcome]:
        try:
            return self._commit(group)
        except _RolledBack:
            # The other works must not fail for one. Works may run more than once, so each gets its own transaction.
            return [self._commit([job])[0] for job in group]

    def _commit(self, group: Sequence[_Job]) -> list[_Outcome]:
        """Run the group in one transaction. Either it is committed, or every outcome is an error."""
        try:
            if self._suspect:
                # The new connection is opened before the old one is closed. Were the old one closed first, it could be
                # the last: the next to open the file would recover the WAL, find the frames whose fsync failed, and
                # bring back a write that its caller was told had failed.
                old, self._connection = self._connection, self._connect()
                self._suspect = False
                _close(old)
            connection = self._connection
            retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))
            outcomes = [self._run(connection, job.work, alone=len(group) == 1) for job in group]
            if connection.in_transaction:
                failpoints.hit("storage.commit")
                connection.execute("COMMIT")
                failpoints.hit("storage.committed")
        except _RolledBack:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, no caller may be left waiting
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            # After an I/O error the connection's page cache may be wrong, so it is not trusted any more.
            self._suspect = self._reopens and primary_code(error) in _BROKEN
            ours = [translate_error(error) for _ in group]
            for each in ours:
                each.__cause__ = error
            return [_Outcome(error=each) for each in ours]
        return outcomes

    def _run(self, connection: sqlite3.Connection, work: Work[Any], *, alone: bool) -> _Outcome:
        """Run one work behind its savepoint; a work that is alone has the whole transaction instead."""
        if not alone:
            connection.execute("SAVEPOINT work")
        try:
            outcome = _Outcome(_drive(work, Statements(connection)))
        except BaseException as error:  # it belongs to the caller, who gets it
            cause = error.__cause__
            if isinstance(cause, sqlite3.Error) and primary_code(cause) in _BROKEN:
                raise cause from None  # the disk failed: that concerns the whole group
            if not connection.in_transaction and not alone:
                raise _RolledBack from error
            if connection.in_transaction:
                connection.execute("ROLLBACK" if alone else "ROLLBACK TO work")
            outcome = _Outcome(error=error)
        if not alone:
            connection.execute("RELEASE work")
        return outcome


def _close(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def _drive(work: Work[T], tx: Statements) -> T:
    """Run a coroutine to its end without an event loop; whatever it may await is done already."""
    steps = work(tx).__await__()
    try:
        next(steps)
    except StopIteration as done:
        tx.end()
        return cast("T", done.value)
    except RuntimeError as error:
        # asyncio.sleep(1) and the like ask for the running loop first, and there is none in this thread.
        if str(error) != "no running event loop":
            raise
        raise _foreign_await() from error
    steps.close()
    raise _foreign_await()


def _foreign_await() -> Exception:
    return RuntimeError(
        "A function in a transaction awaited something other than its transaction. Await that before or "
        "after Database.write; nothing of this work was stored."
    )


def _settle(group: Sequence[_Job], outcomes: Sequence[_Outcome]) -> None:
    """Wake every caller on its own loop, with one call for each loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], _Outcome]]] = defaultdict(list)
    for job, outcome in zip(group, outcomes, strict=True):
        by_loop[job.loop].append((job.future, outcome))
    for loop, pairs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: no one waits there any more
            loop.call_soon_threadsafe(_resolve, pairs)


def _resolve(pairs: Iterable[tuple[asyncio.Future[Any], _Outcome]]) -> None:
    for future, outcome in pairs:
        if future.done():
            continue
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)
