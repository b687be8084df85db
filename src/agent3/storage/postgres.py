"""PostgreSQL behind the Database port, and the only door to its driver.

Each event loop has its own connections, since a connection belongs to the loop that made it: a few that write,
serializable, a few for single statements that need no more than their locks, and a few that only read. PostgreSQL
groups commits by itself; what is gathered here are the one-row appends of ``many``, where it pays sixfold
(docs/decisions/0005-postgres-driver.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias, TypeVar, cast

import asyncpg

from agent3 import failpoints
from agent3.env import Env
from agent3.errors import (
    Agent3Error,
    Conflict,
    Corrupt,
    RequestError,
    SetupError,
    StorageError,
    StorageFull,
    StorageUnsure,
)
from agent3.storage.database import Dialect, Row, Work
from agent3.storage.migration import apply_next, shipped
from agent3.storage.placeholders import numbered

__all__ = ["PostgresDatabase"]

T = TypeVar("T")
_Kind: TypeAlias = Literal["writer", "single", "reader"]
WRITERS = 8
SINGLES = 2
READERS = 4
TRIES = 12
GATHERED = 512
CONNECT_SECONDS = 10.0
WAIT_SECONDS = 10.0
COMMAND_SECONDS = 30.0
_MIGRATION_LOCK = 0x6167656E743300  # "agent3" in ASCII
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, UnicodeError)
_AGAIN = ("40001", "40P01")  # serialization failure, deadlock
_BEGIN_CALM = "BEGIN ISOLATION LEVEL READ COMMITTED"


class _Again(Exception):
    """Nothing of the attempt was kept, and the next one may succeed."""


def translated(error: BaseException) -> Agent3Error:
    """Our error for one of the driver's or the server's; details, which hold values, are left out."""
    state = str(getattr(error, "sqlstate", None) or "")
    if state == "53100":
        return StorageFull("The database server has no room left on its disk. Free some space there.")
    if state in ("XX001", "XX002"):
        return Corrupt(f"The database server found damaged data ({error}). Restore it from a backup.")
    if state.startswith("23"):
        return Conflict(f"The database refused it: {error}.")
    if state.startswith("22") or isinstance(error, asyncpg.DataError | ValueError):
        return RequestError(f"A value cannot be stored: {error}.")
    if isinstance(error, TimeoutError):
        return StorageError("The database server did not answer in time. Try again.", retry_after=1.0)
    if _is_loss(error):
        return StorageError("The connection to the database server was lost. Try again.", retry_after=1.0)
    return StorageError(f"The database failed: {error}.")


def _is_loss(error: BaseException) -> bool:
    """Whether the connection is gone. The driver tells it in several ways, one of them being an internal error when the
    server's last words arrive together with our next ones.
    """
    state = str(getattr(error, "sqlstate", None) or "")
    closed = isinstance(error, asyncpg.InterfaceError) and "closed" in str(error)
    return closed or state.startswith(("08", "57P")) or isinstance(error, OSError | asyncpg.InternalClientError)


class _Statements:
    """A Transaction on a PostgreSQL connection."""

    __slots__ = ("_connection", "_error", "repeat")

    def __init__(self, connection: Any):
        self._connection = connection
        self._error: Exception | None = None
        self.repeat = False

    async def all(self, sql: str, *params: object) -> list[Row]:
        return cast("list[Row]", await self._do(lambda: self._connection.fetch(numbered(sql), *params)))

    async def one(self, sql: str, *params: object) -> Row | None:
        rows = await self.all(sql, *params)
        return rows[0] if rows else None

    async def run(self, sql: str, *params: object) -> int:
        return _changed(await self._do(lambda: self._connection.execute(numbered(sql), *params)))

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._do(lambda: self._connection.executemany(numbered(sql), rows))

    def end(self) -> None:
        """Close the door behind the work; raises the error that the work swallowed, if any."""
        error, self._error = self._error, StorageError("This transaction is over. Use it only inside its work.")
        if error is not None:
            raise error

    async def _do(self, statement: Callable[[], Awaitable[T]]) -> T:
        if self._error is not None:
            raise self._error
        try:
            return await statement()
        except _FAILURES as error:
            self.repeat = getattr(error, "sqlstate", None) in _AGAIN
            self._error = translated(error)
            raise self._error from error


def _changed(status: str) -> int:
    """The rows that a command's status tells, as in ``UPDATE 3`` and ``INSERT 0 1``; none for ``CREATE TABLE``."""
    count = status.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0


class _Connections:
    """At most ``size`` connections of one loop, made when needed and kept; the last one used is the next one taken."""

    def __init__(self, size: int, connect: Callable[[], Awaitable[Any]]):
        self._size = size
        self._connect = connect
        self._idle: list[Any] = []
        self._free = asyncio.Semaphore(size)

    @property
    def busy(self) -> bool:
        """Whether all of them are lent."""
        return self._free.locked()

    @asynccontextmanager
    async def lend(self, *, fresh: bool = False) -> AsyncIterator[Any]:
        """A connection without a transaction, a new one if ``fresh``. One that comes back in doubt is thrown away."""
        async with self._turn():
            connection = await (self._connect() if fresh else self._take())
            try:
                yield connection
            except BaseException as error:
                if not isinstance(error, Exception) or _is_loss(error) or _inside(connection):
                    connection.terminate()
                raise
            finally:
                if not connection.is_closed():
                    self._idle.append(connection)

    async def aclose(self) -> None:
        """Wait for what is lent, then close all."""
        for _ in range(self._size):
            await self._free.acquire()
        while self._idle:
            with contextlib.suppress(*_FAILURES):
                await self._idle.pop().close(timeout=CONNECT_SECONDS)

    def abandon(self) -> None:
        """Let go without a loop that could say goodbye."""
        while self._idle:
            with contextlib.suppress(RuntimeError):
                self._idle.pop().terminate()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise StorageError("Every connection to the database is busy. Try again.", retry_after=1.0) from None
        try:
            yield
        finally:
            self._free.release()

    async def _take(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await self._connect()


class _Gathering:
    """Appends of one statement from many callers, sent as one while the one before is under way."""

    def __init__(self, send: Callable[[str, Sequence[Sequence[object]]], Awaitable[None]], sql: str):
        self._send = send
        self._sql = sql
        self._waiting: list[tuple[Sequence[Sequence[object]], asyncio.Future[None]]] = []
        self.task: asyncio.Task[None] | None = None

    async def add(self, rows: Sequence[Sequence[object]]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, future))
        if self.task is None:
            self.task = asyncio.create_task(self._flush())
        await future

    async def _flush(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:GATHERED], self._waiting[GATHERED:]
                await self._together(group)
        finally:
            self.task = None

    async def _together(self, group: Sequence[tuple[Sequence[Sequence[object]], asyncio.Future[None]]]) -> None:
        try:
            await self._send(self._sql, [row for rows, _ in group for row in rows])
        except Agent3Error as error:
            if len(group) > 1 and not error.retryable and not isinstance(error, StorageUnsure):
                for one in group:  # one of them is at fault: the others must not fail for it
                    await self._together([one])
                return
            _tell(group, error)
        except BaseException as error:
            _tell(group, StorageError("The database was closed while writing. Open it again and repeat."))
            raise error from None
        else:
            _tell(group, None)


def _tell(group: Sequence[tuple[Any, asyncio.Future[None]]], error: Agent3Error | None) -> None:
    for _, future in group:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(type(error)(error.message, data=error.data, retry_after=error.retry_after))


class _Room:
    """What one event loop has of the database: its connections, and the works that run on them."""

    def __init__(self, connect: Callable[[_Kind], Awaitable[Any]], env: Env):
        self._env = env
        self._writers = _Connections(WRITERS, lambda: connect("writer"))
        self._singles = _Connections(SINGLES, lambda: connect("single"))
        self._readers = _Connections(READERS, lambda: connect("reader"))
        self._repeating = asyncio.Lock()
        self._gatherings: dict[str, _Gathering] = {}
        self._stay = self._until_the_loop_ends()

    async def enter(self) -> None:
        """Take the room for the running loop."""
        await anext(self._stay)

    async def write(self, work: Work[T], *, calm: bool) -> T:
        begin = _BEGIN_CALM if calm else "BEGIN"
        result, error = await self._until_done(lambda: self._attempt(work, begin))
        if error is not None:
            raise error
        return cast("T", result)

    async def statement(self, sql: str, params: Sequence[object]) -> Row | None:
        return await self._until_done(lambda: self._single(sql, params))

    async def all(self, sql: str, params: Sequence[object]) -> list[Row]:
        async def read(fresh: bool) -> list[Row]:
            async with self._readers.lend(fresh=fresh) as connection:
                return cast("list[Row]", await connection.fetch(numbered(sql), *params))

        return await _ours(lambda: _once_more_if_lost(read))

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        if sql not in self._gatherings:
            self._gatherings[sql] = _Gathering(self._append, sql)
        await self._gatherings[sql].add(rows)

    async def say(self, channel: str, words: str) -> None:
        async def speak() -> None:
            async with self._writers.lend() as connection:
                await connection.execute(_SAY, channel, words)

        await _ours(speak)

    async def aclose(self) -> None:
        """Finish what was accepted, then close the connections."""
        await self._stay.aclose()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """A loop closes its generators before it closes itself: so one that nobody told goodbye leaks no sockets."""
        try:
            yield
        finally:
            tasks = [one.task for one in self._gatherings.values() if one.task is not None]
            await asyncio.gather(*tasks, return_exceptions=True)
            for connections in (self._writers, self._singles, self._readers):
                await connections.aclose()

    def abandon(self) -> None:
        for connections in (self._writers, self._singles, self._readers):
            connections.abandon()

    async def _until_done(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until nothing collides. Repeated attempts of one loop go one by one: they collide with fewer."""
        try:
            return await _ours(attempt)
        except _Again:
            pass
        async with self._repeating:
            for number in range(1, TRIES):
                try:
                    return await _ours(attempt)
                except _Again:
                    await asyncio.sleep(self._env.jitter(min(0.002 * 2**number, 0.2)))
        raise StorageError(f"Other writers were in the way {TRIES} times in a row. Try again.", retry_after=1.0)

    async def _attempt(self, work: Work[T], begin: str) -> tuple[T | None, Exception | None]:
        """The work's value or its own exception, which is not ours to translate. Raises when the database failed."""
        async with self._writers.lend() as connection:
            await _begin(connection, begin)
            tx = _Statements(connection)
            try:
                result = await work(tx)
                tx.end()
            except Exception as error:
                await _roll_back(connection)
                if tx.repeat:
                    raise _Again from error
                return None, error
            await _commit(connection)
            return result, None

    async def _single(self, sql: str, params: Sequence[object]) -> Row | None:
        """One implicit transaction: sending the statement is the commit.

        Where others hold all connections for that, waiting for a lock perhaps, it goes the long way among the writers.
        """
        if self._singles.busy:
            value, wrong = await self._attempt(lambda tx: tx.one(sql, *params), _BEGIN_CALM)
            if wrong is not None:
                raise wrong
            return value
        async with self._singles.lend() as connection:
            await failpoints.reach("postgres.commit")
            try:
                rows = await connection.fetch(numbered(sql), *params)
            except _FAILURES as error:
                if _is_loss(error):
                    connection.terminate()
                raise _unsure(error) from error
            await failpoints.reach("postgres.committed")
            return cast("Row", rows[0]) if rows else None

    async def _append(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        async def append() -> None:
            async with self._writers.lend() as connection:
                try:
                    await failpoints.reach("postgres.commit")
                    await connection.executemany(numbered(sql), rows)  # one implicit transaction
                    await failpoints.reach("postgres.committed")
                except asyncpg.PostgresError as error:
                    if error.sqlstate in _AGAIN:
                        raise _Again from error
                    raise

        await self._until_done(append)


class PostgresDatabase:
    """A PostgreSQL database. Made by ``open``, which also migrates it.

    Writes are serializable, as they are on SQLite: a work that collided with another is undone and run again, so it
    must have no side effects. A lost connection is a StorageError, and the next use connects again.
    """

    dialect: Dialect = "postgres"

    def __init__(self, dsn: str, url: str, env: Env):
        self.url = url
        self._dsn = dsn
        self._env = env
        self._rooms: dict[asyncio.AbstractEventLoop, _Room] = {}
        self._door = threading.Lock()
        self._closed = False

    @classmethod
    async def open(cls, dsn: str, url: str, *, env: Env) -> PostgresDatabase:
        """Connect and migrate. SetupError when the server refuses us or the database is of a newer version."""
        database = cls(dsn, url, env)
        await database._migrate()
        return database

    async def write(self, work: Work[T], *, frees: bool = False, calm: bool = False) -> T:
        return await (await self._room()).write(work, calm=calm)

    async def statement(self, sql: str, *params: object) -> Row | None:
        return await (await self._room()).statement(sql, params)

    async def all(self, sql: str, *params: object) -> list[Row]:
        return await (await self._room()).all(sql, params)

    async def one(self, sql: str, *params: object) -> Row | None:
        rows = await self.all(sql, *params)
        return rows[0] if rows else None

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await (await self._room()).many(sql, rows)

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        marks = ", ".join("?" * len(columns))
        await self.many(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING", rows)

    async def check(self, *, thorough: bool = False) -> dict[str, object]:
        report: dict[str, object] = {"ok": False, "dialect": self.dialect, "url": self.url}
        try:
            row = await self.write(lambda tx: tx.one(_HEALTH))
            report |= dict(cast("Any", row))
            faults = report.pop("checksum_failures")
            report |= {"ok": not faults, "integrity": f"{faults} checksum failures" if faults else "ok"}
        except Agent3Error as error:
            report |= {"error": error.message, "integrity": "unknown"}
        return report

    @asynccontextmanager
    async def listen(self, channel: str, heard: Callable[[str], None]) -> AsyncIterator[asyncio.Future[None]]:
        """Call ``heard`` with each word that somebody says on the channel (NOTIFY), over a connection of its own.

        The future is done when the connection is gone: words said afterwards are not heard. StorageError when there
        is no connection to be had.
        """
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection = await _ours(lambda: self._connect("reader"))
        connection.add_termination_listener(lambda _: None if gone.done() else gone.set_result(None))
        try:
            await _ours(lambda: connection.add_listener(channel, lambda *said: heard(said[-1])))
            yield gone
        finally:
            with contextlib.suppress(*_FAILURES):
                await connection.close(timeout=CONNECT_SECONDS)

    async def say(self, channel: str, words: str) -> None:
        """Say something to all who listen on the channel, at most 8,000 bytes.

        It is not waited for on disk: what is said is heard at once or never.
        """
        await (await self._room()).say(channel, words)

    async def aclose(self) -> None:
        with self._door:
            self._closed = True
            rooms, self._rooms = self._rooms, {}
        for loop, room in rooms.items():
            if loop is asyncio.get_running_loop():
                await room.aclose()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(room.aclose(), loop))
            else:
                room.abandon()

    async def _room(self) -> _Room:
        loop = asyncio.get_running_loop()
        room = self._rooms.get(loop)
        if room is None:
            room = self._new_room(loop)
            await room.enter()
        return room

    def _new_room(self, loop: asyncio.AbstractEventLoop) -> _Room:
        with self._door:
            if self._closed:
                raise StorageError("The database is closed. Open it again to use it.")
            for gone in [one for one in self._rooms if one.is_closed()]:
                self._rooms.pop(gone).abandon()
            return self._rooms.setdefault(loop, _Room(self._connect, self._env))

    async def _connect(self, kind: _Kind) -> Any:
        connection = await asyncpg.connect(
            self._dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={
                "application_name": "agent3",
                "synchronous_commit": "on",
                "default_transaction_isolation": "serializable" if kind == "writer" else "read committed",
                "default_transaction_read_only": "on" if kind == "reader" else "off",
            },
        )
        # SUM and AVG of BIGINT are NUMERIC; SQLite gives int and float, and so do we.
        await connection.set_type_codec("numeric", schema="pg_catalog", encoder=str, decoder=_number, format="text")
        return connection

    async def _migrate(self) -> None:
        """Under a lock of the session, which another starter waits for; closing the connection frees it."""
        try:
            connection = await self._connect("writer")
        except (*_FAILURES, ValueError) as error:
            raise SetupError(f"{self.url} cannot be opened: {error}. Check the address and the account.") from error
        try:
            await connection.execute("SELECT pg_advisory_lock($1)", _MIGRATION_LOCK, timeout=2 * COMMAND_SECONDS)
            while await self._migrate_once(connection):
                pass
        except _FAILURES as error:
            raise translated(error) from error
        finally:
            with contextlib.suppress(*_FAILURES):
                await connection.close(timeout=CONNECT_SECONDS)

    async def _migrate_once(self, connection: Any) -> bool:
        async with connection.transaction():
            return await apply_next(_Statements(connection), self.dialect, shipped(), self._env.now()) is not None


_SAY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"

_HEALTH = """
SELECT split_part(version(), ' ', 2) AS version, pg_database_size(current_database()) AS size,
       (SELECT MAX(version) FROM schema_migrations) AS schema,
       (SELECT COALESCE(MAX(checksum_failures), 0) FROM pg_stat_database WHERE datname = current_database())
           AS checksum_failures
"""


async def _ours(attempt: Callable[[], Awaitable[T]]) -> T:
    """The attempt, with the driver's errors as ours."""
    try:
        return await attempt()
    except _FAILURES as error:
        raise translated(error) from error


async def _begin(connection: Any, statement: str) -> None:
    """Begin; a connection that died while idle shows it here, where nothing has been done yet."""
    try:
        await connection.execute(statement)
    except _FAILURES as error:
        connection.terminate()
        if _is_loss(error) and not isinstance(error, TimeoutError):
            raise _Again from error
        raise


async def _commit(connection: Any) -> None:
    await failpoints.reach("postgres.commit")
    try:
        await connection.execute("COMMIT")
        await failpoints.reach("postgres.committed")
    except _FAILURES as error:
        await _roll_back(connection)
        raise _unsure(error) from error


def _unsure(error: Exception) -> Exception:
    """What an error during a commit means: nothing was kept, or nobody knows."""
    if getattr(error, "sqlstate", None) in _AGAIN:
        return _Again()
    if not _is_loss(error):
        return translated(error)
    return StorageUnsure(
        "The connection to the database was lost during the commit: it may have happened or not. Look before you"
        " repeat it."
    )


async def _roll_back(connection: Any) -> None:
    try:
        if _inside(connection):
            await connection.execute("ROLLBACK")
    except _FAILURES:
        connection.terminate()


def _inside(connection: Any) -> bool:
    """Whether it is in a transaction; the driver cannot tell of one that is closed."""
    return not connection.is_closed() and bool(connection.is_in_transaction())


async def _once_more_if_lost(read: Callable[[bool], Awaitable[T]]) -> T:
    """Reading twice does no harm, so a connection that died while idle costs the caller nothing."""
    try:
        return await read(False)
    except _FAILURES as error:
        if not _is_loss(error) or isinstance(error, TimeoutError):
            raise
        return await read(True)


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)
