"""PostgreSQL behind the Database port, and the only module that imports its driver.

Each event loop has its own connections, since a connection belongs to the loop that made it: a few that write,
serializable, a few for single statements that need no more than row locks, and a few that only read. PostgreSQL groups
commits by itself; what is batched here are the one-row appends of ``many``, where it pays sixfold
(docs/decisions/0005-postgres-driver.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
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
from agent3.storage.migration import apply_next, load_migrations
from agent3.storage.syntax import SYNTAX, number_placeholders

__all__ = ["PostgresDatabase"]

T = TypeVar("T")
_Kind: TypeAlias = Literal["writer", "single", "reader"]
_Rows: TypeAlias = Sequence[Sequence[object]]
WRITERS = 8
SINGLES = 2
GATHERERS = 2
READERS = 4
ATTEMPTS = 12
BATCH = 512
GATHERED = 64
CONNECT_SECONDS = 10.0
WAIT_SECONDS = 10.0
COMMAND_SECONDS = 30.0
IDLE_SECONDS = 10.0
"""Seconds of silence within a transaction after which the server undoes it. A process that was stopped in the middle of
one holds no rows longer than that: whoever takes its jobs over would wait for them. Less than the lease of a job."""
_MIGRATION_LOCK = 0x6167656E743300  # "agent3" in ASCII
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, UnicodeError)
_READ_ONLY = "25006"
_COLLISIONS = ("40001", "40P01", "25P03")  # serialization failure, deadlock, silent for too long: all is undone
_BEGIN = "BEGIN"  # serializable: the default of a writer's connection
_BEGIN_CALM = "BEGIN ISOLATION LEVEL READ COMMITTED"
# Not durable on purpose: a notification is heard at once or never, so it need not wait for the disk.
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
_HEALTH = """
SELECT split_part(version(), ' ', 2) AS version, pg_database_size(current_database()) AS size,
       (SELECT MAX(version) FROM schema_migrations) AS schema,
       (SELECT COALESCE(MAX(checksum_failures), 0) FROM pg_stat_database WHERE datname = current_database())
           AS checksum_failures
"""


# --- errors -----------------------------------------------------------------------------------------------------------


class _TryAgain(Exception):
    """Nothing of the attempt was kept, and the next one may succeed."""


def _translate_error(error: BaseException) -> Agent3Error:
    """Our error for one of the driver's or the server's, without its details, which hold values."""
    state = str(getattr(error, "sqlstate", None) or "")
    if state == "53100":
        return StorageFull("The database server's disk is full. Free some space there.")
    if state in ("XX001", "XX002"):
        return Corrupt(f"The database server found damaged data ({error}). Restore it from a backup.")
    if state == _READ_ONLY:
        text = "The database server can only be read now: searching and reading go on. Is it a standby?"
        return StorageError(text, retry_after=5.0)
    if state.startswith("23"):
        return Conflict(f"The database rejected the statement: {error}.")
    if state.startswith("22") or isinstance(error, asyncpg.DataError | ValueError):
        return RequestError(f"A value cannot be stored: {error}.")
    if isinstance(error, TimeoutError):
        return StorageError("The database server did not answer in time. Try again.", retry_after=1.0)
    if _is_lost(error):
        return StorageError("The connection to the database server was lost. Try again.", retry_after=1.0)
    return StorageError(f"The database failed: {error}.")


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise _translate_error(error) from error


def _translate_commit_error(error: Exception) -> Exception:
    """What an error during a commit means: nothing was kept, or it cannot be known."""
    if getattr(error, "sqlstate", None) in _COLLISIONS:
        return _TryAgain()
    if not _is_lost(error):
        return _translate_error(error)
    return StorageUnsure(
        "The connection to the database was lost during the commit, which may or may not have happened. "
        "Check before you repeat it."
    )


def _is_lost(error: BaseException) -> bool:
    """Whether the connection is gone.

    The driver reports this in several ways, among them an internal error when the server's last message arrives
    together with our next one.
    """
    state = str(getattr(error, "sqlstate", None) or "")
    closed = isinstance(error, asyncpg.InterfaceError) and "closed" in str(error)
    return closed or state.startswith(("08", "57P")) or isinstance(error, OSError | asyncpg.InternalClientError)


def _is_spent(error: BaseException) -> bool:
    """Whether a connection is of no more use: it is gone, or its server has become one that takes no writes."""
    return _is_lost(error) or getattr(error, "sqlstate", None) == _READ_ONLY


# --- connections ------------------------------------------------------------------------------------------------------


class _Statements:
    """A Transaction on a PostgreSQL connection."""

    __slots__ = ("_connection", "_error", "collided")

    def __init__(self, connection: Any):
        self._connection = connection
        self._error: Exception | None = None
        self.collided = False

    async def all(self, sql: str, *params: object) -> list[Row]:
        return cast("list[Row]", await self._do(lambda: self._connection.fetch(number_placeholders(sql), *params)))

    async def one(self, sql: str, *params: object) -> Row | None:
        rows = await self.all(sql, *params)
        return rows[0] if rows else None

    async def run(self, sql: str, *params: object) -> int:
        status = await self._do(lambda: self._connection.execute(number_placeholders(sql), *params))
        count = status.rpartition(" ")[2]  # as in "UPDATE 3" and "INSERT 0 1"; "CREATE TABLE" has none
        return int(count) if count.isdigit() else 0

    async def many(self, sql: str, rows: _Rows) -> None:
        await self._do(lambda: self._connection.executemany(number_placeholders(sql), rows))

    def end(self) -> None:
        """Refuse further statements; raises the error that the work swallowed, if any."""
        error, self._error = self._error, StorageError("This transaction is over. Use it only inside its function.")
        if error is not None:
            raise error

    async def _do(self, statement: Callable[[], Awaitable[T]]) -> T:
        if self._error is not None:
            raise self._error
        try:
            return await statement()
        except _FAILURES as error:
            self.collided = getattr(error, "sqlstate", None) in _COLLISIONS
            self._error = _translate_error(error)
            if _is_spent(error):
                self._connection.terminate()
            raise self._error from error


class _Pool:
    """At most ``size`` connections of one loop, made when needed and kept; the last one used is the next one taken."""

    def __init__(self, size: int, connect: Callable[[], Awaitable[Any]]):
        self._size = size
        self._connect = connect
        self._idle: list[Any] = []
        self._free = asyncio.Semaphore(size)

    @property
    def is_busy(self) -> bool:
        """Whether all connections are lent."""
        return self._free.locked()

    @asynccontextmanager
    async def lend(self, *, fresh: bool = False) -> AsyncIterator[Any]:
        """A connection without a transaction, a new one if ``fresh``. One that comes back in doubt is closed."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise StorageError("All connections to the database are busy. Try again.", retry_after=1.0) from None
        try:
            connection: Any = None
            while connection is None and self._idle and not fresh:
                connection = self._idle.pop()
                if connection.is_closed():
                    connection = None
            if connection is None:
                connection = await self._connect()
            try:
                yield connection
            except BaseException as error:
                # Cancelled in the middle, lost, or still inside a transaction: no one can know its state.
                if not isinstance(error, Exception) or _is_spent(error) or _in_transaction(connection):
                    connection.terminate()
                raise
            finally:
                if not connection.is_closed():
                    self._idle.append(connection)
        finally:
            self._free.release()

    async def aclose(self) -> None:
        """Wait for what is lent, then close all."""
        for _ in range(self._size):
            await self._free.acquire()
        while self._idle:
            with contextlib.suppress(*_FAILURES):
                await self._idle.pop().close(timeout=CONNECT_SECONDS)

    def abandon(self) -> None:
        """Close without a loop that could say goodbye to the server."""
        while self._idle:
            with contextlib.suppress(RuntimeError):
                self._idle.pop().terminate()


def _in_transaction(connection: Any) -> bool:
    # The driver cannot be asked about a closed connection.
    return not connection.is_closed() and bool(connection.is_in_transaction())


async def _roll_back(connection: Any) -> None:
    try:
        if _in_transaction(connection):
            await connection.execute("ROLLBACK")
    except _FAILURES:
        connection.terminate()


class _Batcher:
    """Appends of one statement from many callers, sent as one while the previous batch is under way."""

    def __init__(self, send: Callable[[str, _Rows], Awaitable[None]], sql: str):
        self._send = send
        self._sql = sql
        self._waiting: list[tuple[_Rows, asyncio.Future[None]]] = []
        self.task: asyncio.Task[None] | None = None

    async def add(self, rows: _Rows) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, future))
        if self.task is None:
            self.task = asyncio.create_task(self._flush())
        await future

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                await self._send_batch(batch)
        finally:
            self.task = None

    async def _send_batch(self, batch: Sequence[tuple[_Rows, asyncio.Future[None]]]) -> None:
        try:
            await self._send(self._sql, [row for rows, _ in batch for row in rows])
        except Agent3Error as error:
            if len(batch) > 1 and not error.retryable and not isinstance(error, StorageUnsure):
                for entry in batch:  # one caller's rows are bad: the others must not fail for them
                    await self._send_batch([entry])
                return
            _settle(batch, error)
        except BaseException as error:  # the loop is closing: no caller may be left waiting
            _settle(batch, StorageError("The database was closed during a write. Open it again and repeat."))
            raise error from None
        else:
            _settle(batch, None)


class _Gatherer:
    """Statements of one kind from many callers, in one commit while the one before is under way; each gets its row."""

    def __init__(self, send: Callable[[str, _Rows, str], Awaitable[list[Row]]], sql: str, many: str):
        self._send = send
        self._sql = sql
        self._many = many
        self._waiting: list[tuple[str, Sequence[object], asyncio.Future[Row | None]]] = []
        self.task: asyncio.Task[None] | None = None

    async def add(self, key: str, params: Sequence[object]) -> Row | None:
        future: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, params, future))
        if self.task is None:
            self.task = asyncio.create_task(self._flush())
        return await future

    async def _flush(self) -> None:
        try:
            while self._waiting:
                batch: dict[str, tuple[Sequence[object], asyncio.Future[Row | None]]] = {}
                later = []
                for key, params, future in self._waiting:
                    # Of two for one row the second goes with the next batch: their rows could not be told apart.
                    if key in batch or len(batch) >= GATHERED:
                        later.append((key, params, future))
                    else:
                        batch[key] = (params, future)
                self._waiting = later
                await self._send_batch(batch)
        finally:
            self.task = None

    async def _send_batch(self, batch: dict[str, tuple[Sequence[object], asyncio.Future[Row | None]]]) -> None:
        error: Agent3Error
        try:
            rows = {
                row["id"]: row
                for row in await self._send(self._sql, [params for params, _ in batch.values()], self._many)
            }
        except Agent3Error as failed:
            if len(batch) > 1 and not failed.retryable and not isinstance(failed, StorageUnsure):
                for key, entry in batch.items():  # one of them is at fault: the others must not fail for it
                    await self._send_batch({key: entry})
                return
            error = failed
        except BaseException as failed:  # the loop is closing: no caller may be left waiting
            error = StorageError("The database was closed during a write. Open it again and repeat.")
            for _, future in batch.values():
                if not future.done():
                    future.set_exception(error)
            raise failed from None
        else:
            for key, (_, future) in batch.items():
                if not future.done():
                    future.set_result(rows.get(key))
            return
        for _, future in batch.values():
            if not future.done():
                future.set_exception(type(error)(error.message, data=error.data, retry_after=error.retry_after))


def _settle(batch: Sequence[tuple[_Rows, asyncio.Future[None]]], error: Agent3Error | None) -> None:
    for _, future in batch:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:  # each caller gets an exception of its own, since raising one adds to its traceback
            future.set_exception(type(error)(error.message, data=error.data, retry_after=error.retry_after))


class _LoopClient:
    """What one event loop has of the database: its connections, and the works that run on them."""

    def __init__(self, connect: Callable[[_Kind], Awaitable[Any]], env: Env):
        self._env = env
        self._writers = _Pool(WRITERS, lambda: connect("writer"))
        self._singles = _Pool(SINGLES, lambda: connect("single"))
        self._readers = _Pool(READERS, lambda: connect("reader"))
        self._gathering = _Pool(GATHERERS, lambda: connect("single"))
        self._retrying = asyncio.Lock()
        self._gatherers: dict[str, _Gatherer] = {}
        self._batchers: dict[str, _Batcher] = {}
        self._givens: dict[str, str] = {}
        self._lifetime = self._live()

    async def enter(self) -> None:
        """Attach to the running loop."""
        await anext(self._lifetime)

    async def aclose(self) -> None:
        """Finish what was accepted, then close the connections."""
        await self._lifetime.aclose()

    async def _live(self) -> AsyncGenerator[None, None]:
        # A loop closes its async generators before it closes itself. So a loop that ends without ``aclose``, as
        # asyncio.run does, still closes these sockets.
        try:
            yield
        finally:
            tasks = [batcher.task for batcher in self._batchers.values() if batcher.task is not None]
            tasks += [gatherer.task for gatherer in self._gatherers.values() if gatherer.task is not None]
            await asyncio.gather(*tasks, return_exceptions=True)
            for pool in (self._writers, self._singles, self._gathering, self._readers):
                await pool.aclose()

    def abandon(self) -> None:
        for pool in (self._writers, self._singles, self._gathering, self._readers):
            pool.abandon()

    async def write(self, work: Work[T], *, calm: bool) -> T:
        begin = _BEGIN_CALM if calm else _BEGIN
        result, error = await self._retry(lambda: self._attempt(work, begin))
        if error is not None:
            raise error
        return cast("T", result)

    async def statement(self, sql: str, params: Sequence[object]) -> Row | None:
        async def attempt() -> Row | None:
            if self._singles.is_busy:
                # Others hold these connections, perhaps waiting for a lock: go the long way, among the writers.
                row, error = await self._attempt(lambda tx: tx.one(sql, *params), _BEGIN_CALM)
                if error is not None:
                    raise error
                return row
            async with self._singles.lend() as connection:
                await failpoints.reach("postgres.commit")
                try:
                    # One implicit transaction: sending the statement is the commit.
                    rows = await connection.fetch(number_placeholders(sql), *params)
                except _FAILURES as error:
                    if _is_spent(error):
                        connection.terminate()
                    raise _translate_commit_error(error) from error
                await failpoints.reach("postgres.committed")
                return cast("Row", rows[0]) if rows else None

        return await self._retry(attempt)

    async def gather(self, sql: str, key: str, params: Sequence[object], many: str) -> Row | None:
        if sql not in self._gatherers:
            self._gatherers[sql] = _Gatherer(self._gather, sql, many)
        return await self._gatherers[sql].add(key, params)

    async def _gather(self, sql: str, rows: _Rows, many: str) -> list[Row]:
        async def attempt() -> list[Row]:
            async with self._gathering.lend() as connection:
                together = many and len(rows) > 1
                given = await self._name_given(connection, sql) if together else ""
                await failpoints.reach("postgres.commit")
                try:
                    # One implicit transaction, in one round trip: sending it is the commit.
                    if together:
                        found = await connection.fetch(given + many, *zip(*rows, strict=True))
                    else:
                        found = await connection.fetchmany(number_placeholders(sql), rows)
                except _FAILURES as error:
                    if _is_spent(error):
                        connection.terminate()
                    raise _translate_commit_error(error) from error
                await failpoints.reach("postgres.committed")
                return cast("list[Row]", found)

        return await self._retry(attempt)

    async def _name_given(self, connection: Any, sql: str) -> str:
        """The beginning of a statement for many rows at once: a table ``given`` of the parameters of this one.

        A statement for each row costs the server several times as much as its share of one for all of them.
        """
        if sql not in self._givens:
            statement = await connection.prepare(number_placeholders(sql))
            types = [f"{parameter.schema}.{parameter.name}" for parameter in statement.get_parameters()]
            names = ", ".join(f"p{number}" for number in range(1, len(types) + 1))
            arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(types, 1))
            self._givens[sql] = f"WITH given ({names}) AS (SELECT * FROM unnest({arrays}))"
        return self._givens[sql]

    async def all(self, sql: str, params: Sequence[object]) -> list[Row]:
        async def read(*, fresh: bool) -> list[Row]:
            async with self._readers.lend(fresh=fresh) as connection:
                return cast("list[Row]", await connection.fetch(number_placeholders(sql), *params))

        with _translate_errors():
            try:
                return await read(fresh=False)
            except _FAILURES as error:
                if not _is_lost(error) or isinstance(error, TimeoutError):
                    raise
                # Reading twice does no harm, so a connection that died while idle costs the caller nothing.
                return await read(fresh=True)

    async def many(self, sql: str, rows: _Rows) -> None:
        if sql not in self._batchers:
            self._batchers[sql] = _Batcher(self._append, sql)
        await self._batchers[sql].add(rows)

    async def append(self, table: str, columns: Sequence[str], rows: _Rows) -> int:
        """Insert rows by one statement, all or none, but for those that exist; how many are new."""
        names, end = ", ".join(columns), "ON CONFLICT DO NOTHING RETURNING 1"
        sql = f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))}) {end}"

        async def run(connection: Any) -> Any:
            if len(rows) == 1:
                return await connection.fetch(number_placeholders(sql), *rows[0])
            given = await self._name_given(connection, sql)
            return await connection.fetch(
                f"{given} INSERT INTO {table} ({names}) SELECT * FROM given {end}", *zip(*rows, strict=True)
            )

        return await self._run_many(run)

    async def _append(self, sql: str, rows: _Rows) -> None:
        await self._run_many(lambda connection: connection.executemany(number_placeholders(sql), rows))

    async def _run_many(self, run: Callable[[Any], Awaitable[Any]]) -> int:
        """Run something in one implicit transaction; how many rows it returned."""

        async def attempt() -> int:
            async with self._writers.lend() as connection:
                try:
                    await failpoints.reach("postgres.commit")
                    rows = await run(connection)
                    await failpoints.reach("postgres.committed")
                    return len(rows or ())
                except asyncpg.PostgresError as error:
                    if error.sqlstate in _COLLISIONS:
                        raise _TryAgain from error
                    raise

        return await self._retry(attempt)

    async def notify(self, channel: str, text: str) -> None:
        with _translate_errors():
            async with self._writers.lend() as connection:
                await connection.execute(_NOTIFY, channel, text)

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until nothing collides. Repetitions of one loop run one by one, so that they collide with fewer."""
        try:
            with _translate_errors():
                return await attempt()
        except _TryAgain:
            pass
        async with self._retrying:
            for number in range(1, ATTEMPTS):
                try:
                    with _translate_errors():
                        return await attempt()
                except _TryAgain:
                    await asyncio.sleep(self._env.jitter(min(0.002 * 2**number, 0.2)))
        raise StorageError(
            f"The transaction conflicted with others {ATTEMPTS} times in a row. Try again.", retry_after=1.0
        )

    async def _attempt(self, work: Work[T], begin: str) -> tuple[T | None, Exception | None]:
        """Run the work in one transaction; return its value, or its own exception, which must not be translated.

        Raises when the database failed.
        """
        async with self._writers.lend() as connection:
            try:
                await connection.execute(begin)
            except _FAILURES as error:
                # A connection that died while idle shows it here, where nothing has been done yet.
                connection.terminate()
                if _is_lost(error) and not isinstance(error, TimeoutError):
                    raise _TryAgain from error
                raise
            tx = _Statements(connection)
            try:
                result = await work(tx)
                tx.end()
            except Exception as error:
                await _roll_back(connection)
                if tx.collided:
                    raise _TryAgain from error
                return None, error
            await failpoints.reach("postgres.commit")
            try:
                await connection.execute("COMMIT")
                await failpoints.reach("postgres.committed")
            except _FAILURES as error:
                await _roll_back(connection)
                raise _translate_commit_error(error) from error
            return result, None


# --- the database -----------------------------------------------------------------------------------------------------


class PostgresDatabase:
    """A PostgreSQL database. Made by ``open``, which also migrates it.

    Writes are serializable, as they are on SQLite: a work that collided with another is undone and run again, so it
    must have no side effects. A lost connection is a StorageError, and the next use connects again.
    """

    dialect: Dialect = "postgres"
    syntax = SYNTAX["postgres"]

    def __init__(self, dsn: str, url: str, env: Env):
        self.url = url
        self._dsn = dsn
        self._env = env
        self._clients: dict[asyncio.AbstractEventLoop, _LoopClient] = {}
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    async def open(cls, dsn: str, url: str, *, env: Env) -> PostgresDatabase:
        """Connect and migrate. SetupError when the server refuses us or the database is of a newer version."""
        database = cls(dsn, url, env)
        try:
            connection = await database._connect("writer")
        except (*_FAILURES, ValueError) as error:
            raise SetupError(f"{url} cannot be opened: {error}. Check the address and the account.") from error
        try:
            with _translate_errors():
                # A lock of the session, for which other starters wait; closing the connection releases it.
                await connection.execute("SELECT pg_advisory_lock($1)", _MIGRATION_LOCK, timeout=2 * COMMAND_SECONDS)
                migrating = True
                while migrating:
                    async with connection.transaction():
                        migrating = (
                            await apply_next(_Statements(connection), cls.dialect, load_migrations(), env.now())
                            is not None
                        )
        finally:
            with contextlib.suppress(*_FAILURES):
                await connection.close(timeout=CONNECT_SECONDS)
        return database

    async def write(self, work: Work[T], *, frees: bool = False, calm: bool = False) -> T:
        return await (await self._client()).write(work, calm=calm)

    async def statement(self, sql: str, *params: object) -> Row | None:
        return await (await self._client()).statement(sql, params)

    async def gather(self, sql: str, key: str, *params: object, many: str = "") -> Row | None:
        return await (await self._client()).gather(sql, key, params, many)

    async def all(self, sql: str, *params: object) -> list[Row]:
        return await (await self._client()).all(sql, params)

    async def one(self, sql: str, *params: object) -> Row | None:
        rows = await self.all(sql, *params)
        return rows[0] if rows else None

    async def many(self, sql: str, rows: _Rows) -> None:
        await (await self._client()).many(sql, rows)

    async def append(self, table: str, columns: Sequence[str], rows: _Rows) -> int:
        if not rows:
            return 0
        return await (await self._client()).append(table, columns, rows)

    async def shrink(self) -> int:
        return 0

    async def check(self, *, thorough: bool = False) -> dict[str, object]:
        report: dict[str, object] = {"ok": False, "dialect": self.dialect, "url": self.url}
        try:
            row = await self.write(lambda tx: tx.one(_HEALTH))
            report |= dict(cast("Any", row))
            failures = report.pop("checksum_failures")
            report |= {"ok": not failures, "integrity": f"{failures} checksum failures" if failures else "ok"}
        except Agent3Error as error:
            report |= {"error": error.message, "integrity": "unknown"}
        return report

    @asynccontextmanager
    async def listen(self, channel: str, on_text: Callable[[str], None]) -> AsyncIterator[asyncio.Future[None]]:
        """Call ``on_text`` for each text sent to the channel, over a connection of its own.

        The future is done when the connection is lost: later texts are not received. StorageError when it cannot
        connect.
        """
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with _translate_errors():
            connection = await self._connect("reader")
        connection.add_termination_listener(lambda _: None if lost.done() else lost.set_result(None))
        try:
            with _translate_errors():
                await connection.add_listener(channel, lambda *message: on_text(message[-1]))
            yield lost
        finally:
            with contextlib.suppress(*_FAILURES):
                await connection.close(timeout=CONNECT_SECONDS)

    async def notify(self, channel: str, text: str) -> None:
        """Send a text of at most 8,000 bytes to every listener of the channel; listeners to come do not get it."""
        await (await self._client()).notify(channel, text)

    async def aclose(self) -> None:
        with self._lock:
            self._closed = True
            clients, self._clients = self._clients, {}
        # Connections can be closed politely only by the loop that made them, if it still runs.
        for loop, client in clients.items():
            if loop is asyncio.get_running_loop():
                await client.aclose()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.aclose(), loop))
            else:
                client.abandon()

    async def _client(self) -> _LoopClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            with self._lock:
                if self._closed:
                    raise StorageError("The database is closed. Open it again to use it.")
                for gone in [known for known in self._clients if known.is_closed()]:
                    self._clients.pop(gone).abandon()
                client = self._clients.setdefault(loop, _LoopClient(self._connect, self._env))
            await client.enter()
        return client

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
                "idle_in_transaction_session_timeout": str(int(IDLE_SECONDS * 1000)),
            },
        )
        # SUM and AVG of BIGINT are NUMERIC; SQLite gives int and float, and so do we.
        await connection.set_type_codec(
            "numeric", schema="pg_catalog", encoder=str, decoder=_parse_number, format="text"
        )
        return connection


def _parse_number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)
