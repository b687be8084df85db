"""SQLite behind the Database port: WAL, synchronous=FULL, one writer thread, and read connections in threads.

Several processes may share one file. A database in memory has one connection, which the writer uses for reads too.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from agent3.env import Env
from agent3.errors import Agent3Error, Corrupt, RequestError, SetupError, StorageError
from agent3.storage.database import Dialect, Row, Transaction, Work
from agent3.storage.disk_space import Room
from agent3.storage.migration import apply_next, shipped
from agent3.storage.sqlite_writer import BUSY_SECONDS, Statements, Writer, patiently, primary, translated

__all__ = ["SqliteDatabase"]

T = TypeVar("T")
DEFAULT_MAX_BYTES = 4 * 1024**3
READERS = 3
CHECK_SECONDS = 600.0
_REFUSED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)


class SqliteDatabase:
    """A SQLite file, or memory when ``path`` is None. Made by ``open``, which also migrates it."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path | None, url: str, env: Env, max_bytes: int | None):
        self.url = url
        self._path = path
        self._env = env
        self._max_bytes = DEFAULT_MAX_BYTES if max_bytes is None else max_bytes
        self._room = Room(path, self._max_bytes)
        self._integrity = ""
        self._checked = 0.0

    @classmethod
    async def open(cls, path: Path | None, url: str, *, env: Env, max_bytes: int | None = None) -> SqliteDatabase:
        """Open and migrate. SetupError when the file cannot be used as a database of this version."""
        database = cls(path, url, env, max_bytes)
        await asyncio.to_thread(database._start)
        try:
            while await database.write(database._migrate):
                pass
        except BaseException:
            await database.aclose()
            raise
        return database

    async def write(self, work: Work[T], *, frees: bool = False, calm: bool = False) -> T:
        return await self._writer.write(work, frees=frees)

    async def all(self, sql: str, *params: object) -> list[Row]:
        if self._readers is not None:
            return await self._readers.all(sql, params)

        async def read(tx: Transaction) -> list[Row]:
            return cast("Statements", tx).read(sql, params)

        return await self._writer.write(read)

    async def one(self, sql: str, *params: object) -> Row | None:
        rows = await self.all(sql, *params)
        return rows[0] if rows else None

    async def statement(self, sql: str, *params: object) -> Row | None:
        return await self.write(lambda tx: tx.one(sql, *params))

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._writer.write(lambda tx: tx.many(sql, rows))

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        if not rows:
            return
        try:
            sql, values = _appending(table, columns, rows)
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"A value cannot be stored: {error}.") from error
        await self._writer.write(lambda tx: tx.run(sql, *values))

    async def check(self, *, thorough: bool = False) -> dict[str, object]:
        report: dict[str, object] = {
            "ok": False,
            "dialect": self.dialect,
            "url": self.url,
            "version": sqlite3.sqlite_version,
            "max_bytes": self._max_bytes,
        }
        try:
            await self.write(_nothing)
            report |= dict(cast("Any", await self.one(_SIZES)))
            report["integrity"] = await self._look(thorough)
            report["ok"] = report["integrity"] == "ok"
        except Agent3Error as error:
            report |= {"error": error.message, "integrity": "damaged" if isinstance(error, Corrupt) else "unknown"}
        return report

    async def aclose(self) -> None:
        try:
            await asyncio.to_thread(self._stop)
        except RuntimeError:  # the interpreter ends, and lends no more threads
            self._stop()

    async def _look(self, thorough: bool) -> str:
        """SQLite's own verdict, ``ok`` or the first faults; not older than CHECK_SECONDS."""
        now = self._env.monotonic()
        if thorough or not self._integrity or now - self._checked >= CHECK_SECONDS:
            rows = await self.all(f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(10)")
            self._integrity = "; ".join(str(value) for row in rows for value in dict(cast("Any", row)).values())
            self._checked = now
        return self._integrity

    async def _migrate(self, tx: Transaction) -> bool:
        return await apply_next(tx, self.dialect, shipped(), self._env.now()) is not None

    def _start(self) -> None:
        connection = self._opened()
        self._room.keep_back()
        self._writer = Writer(self._connect, connection, self._room, reopens=self._path is not None)
        self._readers = None if self._path is None else _Readers(self._path)

    def _stop(self) -> None:
        # The last to close puts the log into the file and removes it, which one that only reads cannot.
        if self._readers is not None:
            self._readers.stop()
        self._writer.stop()

    def _opened(self) -> sqlite3.Connection:
        try:
            if self._path is not None:
                _create(self._path)
            return self._connect()
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            if isinstance(error, OSError) or primary(error) in _REFUSED:
                raise SetupError(
                    f"{self.url} cannot be opened: {error}. Choose a file in a folder that you may write to."
                ) from error
            ours = translated(error)
            raise type(ours)(f"{self.url}: {ours.message}") from error

    def _connect(self) -> sqlite3.Connection:
        connection = _connection(":memory:" if self._path is None else f"{self._path.as_uri()}?mode=rw", timeout=0)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Changing to WAL does not wait for a lock by itself, whatever the busy timeout says.
        patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone())
        for pragma in (
            "synchronous = FULL",
            "fullfsync = ON",  # on macOS a plain fsync does not reach the disk
            "checkpoint_fullfsync = ON",
            "foreign_keys = ON",
            f"journal_size_limit = {64 * 1024**2}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        self._room.prepare(connection, patiently)


def _appending(table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> tuple[str, list[object]]:
    """One statement for all rows, and its few values.

    So the writer asks for the interpreter once. Beside busy callers each time it asks takes up to 5 ms, and with a
    statement for every hundred rows it could not follow. What differs between the rows comes as one JSON text, which
    costs SQLite half a microsecond per row and column; what is the same in all of them, as most is, comes once.
    """
    across = list(zip(*rows, strict=True))
    same = [one.count(one[0]) == len(one) for one in across]
    if all(same):
        same[0] = False
    differing = [one for one, alike in zip(across, same, strict=True) if not alike]
    packed = msgspec.json.encode(list(zip(*differing, strict=True))).decode()
    places = itertools.count()
    chosen = ", ".join("?" if alike else f"value ->> {next(places)}" for alike in same)
    names = ", ".join(columns)
    sql = f"INSERT INTO {table} ({names}) SELECT {chosen} FROM json_each(?) WHERE true ON CONFLICT DO NOTHING"
    return sql, [one[0] for one, alike in zip(across, same, strict=True) if alike] + [packed]


_SIZES = """
SELECT page_count * page_size AS size, freelist_count * page_size AS free,
       (SELECT MAX(version) FROM schema_migrations) AS schema
FROM pragma_page_count(), pragma_page_size(), pragma_freelist_count()
"""


class _Readers:
    """Read-only connections, each used by one thread at a time."""

    def __init__(self, path: Path):
        self._address = f"{path.as_uri()}?mode=ro"
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="agent3-reader")
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()

    async def all(self, sql: str, params: Sequence[object]) -> list[Row]:
        try:
            reading = asyncio.get_running_loop().run_in_executor(self._threads, self._read, sql, params)
        except RuntimeError as error:
            raise StorageError("The database is closed. Open it again to use it.") from error
        return await reading

    def stop(self) -> None:
        self._threads.shutdown(wait=True)
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def _read(self, sql: str, params: Sequence[object]) -> list[Row]:
        try:
            connection = self._take()
            try:
                rows = connection.execute(sql, cast("Sequence[Any]", params)).fetchall()
            except BaseException:
                connection.close()  # whatever was wrong with it, the next reader starts afresh
                raise
            self._idle.put(connection)
            return rows
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise translated(error) from error

    def _take(self) -> sqlite3.Connection:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return _connection(self._address, timeout=BUSY_SECONDS)


def _connection(address: str, *, timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        address, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256, uri=True
    )
    connection.row_factory = sqlite3.Row
    return connection


def _create(path: Path) -> None:
    """Make the file, for its owner only.

    Never open a file that exists: closing it again would drop the locks that this process may hold on it through
    another connection (sqlite.org/howtocorrupt.html, section 2.2).
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return


async def _nothing(_: Transaction) -> None:
    """An empty work: it shows that the writer lives and that the file can be locked."""
