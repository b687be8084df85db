"""The one writer of a SQLite database: a thread that commits in groups.

Everything that waits when a transaction begins goes into it, each work behind its own savepoint, so that one fsync
pays for many and one bad work spoils none. It knows works and futures; what a connection looks like is told to it.
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
from typing import Any, TypeAlias, TypeVar, cast

from agent3 import failpoints
from agent3.errors import Agent3Error, Conflict, Corrupt, RequestError, StorageError, StorageFull
from agent3.storage.database import Row, Work
from agent3.storage.disk_space import Room

__all__ = ["BUSY_SECONDS", "Statements", "Writer", "patiently", "primary", "translated"]

T = TypeVar("T")
GROUP = 512
BUSY_SECONDS = 10.0
_BROKEN = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN)
_UNFIT = (sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError, UnicodeError)


def primary(error: BaseException) -> int:
    """SQLite's primary result code of an error, 0 when it has none."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def translated(error: Exception) -> Agent3Error:
    """Our error for one of SQLite's."""
    code = primary(error)
    if code == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StorageFull("The database is full. Delete old data, free disk space, or raise its size limit.")
    # SQLite quotes the damaged bytes in its message, which Python then cannot read.
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or isinstance(error, UnicodeDecodeError):
        return Corrupt(f"The database file is damaged ({error}). Restore it from a backup.")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return Conflict(f"The database refused it: {error}.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError("Another process keeps the database locked. Try again.", retry_after=1.0)
    if isinstance(error, _UNFIT):
        return RequestError(f"A value cannot be stored: {error}.")
    return StorageError(f"The database failed: {error}.")


def patiently(step: Callable[[], T]) -> T:
    """Do what another process may be in the way of, again until it is done or BUSY_SECONDS have passed.

    SQLite's own busy handler sleeps ever longer, up to 0.1 s: beside a process that writes without a pause, the worst
    wait was 108 ms with it and 24 ms with these short and uneven naps. The clock is the real one, since the other
    process lives by no other.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
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
        """Close the door behind the work; raises the error that the work swallowed, if any."""
        error, self._error = self._error, StorageError("This transaction is over. Use it only inside its work.")
        if error is not None:
            raise error

    def _do(self, statement: Callable[[], T]) -> T:
        if self._error is not None:
            raise self._error
        try:
            return statement()
        except (sqlite3.Error, *_UNFIT) as error:
            self._error = translated(error)
            raise self._error from error


@dataclass(slots=True, eq=False)
class _Waiting:
    work: Work[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    frees: bool = False


@dataclass(slots=True)
class _Answer:
    value: Any = None
    error: BaseException | None = None


_Told: TypeAlias = list[tuple["asyncio.Future[Any]", _Answer]]


class _Undone(Exception):
    """SQLite rolled the whole transaction back under one work's error."""


class Writer:
    """Runs works on one connection in one thread; ``connect`` makes another one when the disk has failed under it."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], connection: sqlite3.Connection, room: Room, *, reopens: bool
    ):
        self._connect = connect
        self._connection = connection
        self._room = room
        self._reopens = reopens
        self._suspect = False
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._closing = False
        self._door = threading.Lock()
        self._thread = threading.Thread(target=self._live, name="agent3-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Work[T], *, frees: bool = False) -> T:
        """Hand the work to the thread and wait until it is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._door:  # nothing may be queued behind the last word
            if self._closing:
                raise StorageError("The database is closed. Open it again to use it.")
            self._queue.put(_Waiting(work, loop, future, frees))
        return await future

    def stop(self) -> None:
        """Finish what is queued, close the connection and wait for the thread. Blocks; safe to call again."""
        with self._door:
            if not self._closing:
                self._closing = True
                self._queue.put(None)
        self._thread.join()

    def _live(self) -> None:
        while (group := self._take()) is not None:
            self._serve(group)
        _close(self._connection)

    def _take(self) -> list[_Waiting] | None:
        """All that wait, at least one and at most GROUP; None when it is over."""
        first = self._queue.get()
        group = []
        while first is not None:
            group.append(first)
            if len(group) == GROUP:
                return group
            try:
                first = self._queue.get_nowait()
            except queue.Empty:
                return group
        if group:
            self._queue.put(None)  # the last word, which nothing follows: for the next round
        return group or None

    def _serve(self, group: Sequence[_Waiting]) -> None:
        wanted = [one for one in group if not one.future.cancelled()]
        if wanted and self._room.is_short():
            _settle(away := [one for one in wanted if not one.frees], [_Answer(error=_no_room()) for _ in away])
            wanted = [one for one in wanted if one.frees]
        if wanted:
            _settle(wanted, self._with_all_room(wanted, self._done(wanted)))

    def _done(self, group: Sequence[_Waiting]) -> list[_Answer]:
        try:
            return self._together(group)
        except _Undone:
            # The innocent must not fail for their neighbour. Works may be run again, so each gets its own transaction.
            return [self._together([one])[0] for one in group]

    def _with_all_room(self, group: Sequence[_Waiting], answers: list[_Answer]) -> list[_Answer]:
        """The answers, after what frees room and found none was done again with what is kept back for it."""
        full = [one.frees and isinstance(answer.error, StorageFull) for one, answer in zip(group, answers, strict=True)]
        if not any(full):
            return answers
        with self._room.all_of_it(self._connection):
            again = iter(self._done([one for one, wants in zip(group, full, strict=True) if wants]))
        return [next(again) if wants else answer for answer, wants in zip(answers, full, strict=True)]

    def _together(self, group: Sequence[_Waiting]) -> list[_Answer]:
        """Run the group in one transaction. Either it is committed, or every answer is an error."""
        try:
            connection = self._begin()
            answers = [self._run(connection, one.work, alone=len(group) == 1) for one in group]
            if connection.in_transaction:
                failpoints.hit("storage.commit")
                connection.execute("COMMIT")
                failpoints.hit("storage.committed")
        except _Undone:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody may be left waiting
            self._recover(error)
            return [_Answer(error=_caused(error)) for _ in group]
        return answers

    def _begin(self) -> sqlite3.Connection:
        if self._suspect:
            self._renew()
        connection = self._connection
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        return connection

    def _run(self, connection: sqlite3.Connection, work: Work[Any], *, alone: bool) -> _Answer:
        """One work behind its savepoint; a work that is alone has the whole transaction for it."""
        begin, keep, undo = ("", "", "ROLLBACK") if alone else ("SAVEPOINT work", "RELEASE work", "ROLLBACK TO work")
        if begin:
            connection.execute(begin)
        try:
            answer = _Answer(_drive(work, Statements(connection)))
        except BaseException as error:  # it belongs to the caller, who gets it
            self._note(error)
            if not connection.in_transaction and not alone:
                raise _Undone from error
            if connection.in_transaction:
                connection.execute(undo)
            answer = _Answer(error=error)
        if keep:
            connection.execute(keep)
        return answer

    def _note(self, error: BaseException) -> None:
        """A work that met a broken disk tells so by its error's cause."""
        cause = error.__cause__
        if isinstance(cause, sqlite3.Error) and primary(cause) in _BROKEN:
            raise cause

    def _recover(self, error: Exception) -> None:
        """Leave no transaction behind; after an I/O error trust the connection no more: its cache may be wrong."""
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._suspect = self._reopens and primary(error) in _BROKEN

    def _renew(self) -> None:
        """Take a new connection, and only then let go of the old one.

        Were the old one closed first, it could be the last: the next to open the file would recover the log, find
        the frames whose fsync failed, and bring back a write that its caller was told had failed.
        """
        old, self._connection = self._connection, self._connect()
        self._suspect = False
        _close(old)


def _no_room() -> StorageFull:
    return StorageFull(
        "The disk is full, and the little room that is left is for deleting. Free disk space; no restart is needed.",
        retry_after=1.0,
    )


def _close(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def _caused(error: Exception) -> Agent3Error:
    ours = translated(error)
    ours.__cause__ = error
    return ours


def _drive(work: Work[T], tx: Statements) -> T:
    """Run a coroutine to its end without a loop; all that it may await is already done."""
    steps = work(tx).__await__()
    try:
        next(steps)
    except StopIteration as done:
        tx.end()
        return cast("T", done.value)
    except RuntimeError as error:
        if str(error) != "no running event loop":
            raise
        raise _stray() from error
    steps.close()
    raise _stray()


def _stray() -> Exception:
    return RuntimeError(
        "A work awaited something other than its transaction. Await that before or after Database.write; nothing of"
        " this work was kept."
    )


def _settle(group: Sequence[_Waiting], answers: Sequence[_Answer]) -> None:
    """Wake every caller on its own loop, with one call for each loop."""
    told: defaultdict[asyncio.AbstractEventLoop, _Told] = defaultdict(list)
    for one, answer in zip(group, answers, strict=True):
        told[one.loop].append((one.future, answer))
    for loop, pairs in told.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_tell, pairs)


def _tell(pairs: Iterable[tuple[asyncio.Future[Any], _Answer]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if answer.error is None:
            future.set_result(answer.value)
        else:
            future.set_exception(answer.error)
