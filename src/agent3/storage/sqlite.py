"""SQLite behind the Database port: WAL, synchronous=FULL, one writer thread, and readers in threads.

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
from contextlib import closing
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast

from agent3.env import Env
from agent3.errors import Agent3Error, Corrupt, SetupError, StorageError
from agent3.storage.database import Dialect, Row, Transaction, Work
from agent3.storage.disk_space import DiskSpace
from agent3.storage.migration import apply_next, load_migrations
from agent3.storage.sqlite_writer import (
    BUSY_SECONDS,
    Statements,
    Writer,
    primary_code,
    retry_while_busy,
    translate_error,
)
from agent3.storage.syntax import SYNTAX

__all__ = ["SqliteDatabase", "count_rows"]

T = TypeVar("T")
DEFAULT_MAX_BYTES = 4 * 1024**3
READERS = 3
_READER_KIB = 512
"""Pages that a reader keeps: who reads a whole catalogue once should not fill memory with it."""
CHECK_SECONDS = 600.0
_REFUSED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
_PRAGMAS = (
    "synchronous = FULL",
    "fullfsync = ON",  # on macOS a plain fsync does not reach the disk
    "checkpoint_fullfsync = ON",
    "foreign_keys = ON",
    f"journal_size_limit = {64 * 1024**2}",
)
_INCREMENTAL = 2
"""The mode of a file whose free pages can be given back some at a time. Only a new file can be given it."""
_GIVEN_BACK = 128
"""Pages that are given back together."""
_SLACK = 1_024
"""Free pages that are left for what is written next."""
_MOST_TOGETHER = 512
"""Rows of one INSERT."""
# For NULL and bytes the driver looks for an adapter each time, and where there is none it raises and drops an error
# inside, which takes longer than storing them. These adapters give back what they are given.
_THE_SAME: Any = {}.get
sqlite3.register_adapter(NoneType, _THE_SAME)
sqlite3.register_adapter(bytes, bytes)
_FREE = """
SELECT page_count AS pages, freelist_count AS free, page_size AS size, auto_vacuum AS vacuum
FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size(), pragma_auto_vacuum()
"""
_SIZES = """
SELECT page_count * page_size AS size, freelist_count * page_size AS free,
       (SELECT MAX(version) FROM schema_migrations) AS schema
FROM pragma_page_count(), pragma_page_size(), pragma_freelist_count()
"""


class SqliteDatabase:
    """A SQLite file, or memory when ``path`` is None. Made by ``open``, which also migrates it."""

    dialect: Dialect = "sqlite"
    syntax = SYNTAX["sqlite"]

    def __init__(self, path: Path | None, url: str, env: Env, max_bytes: int | None):
        self.url = url
        self._path = path
        self._env = env
        self._max_bytes = DEFAULT_MAX_BYTES if max_bytes is None else max_bytes
        self._space = DiskSpace(path, self._max_bytes)
        self._integrity = ""
        self._checked_at = 0.0

    @classmethod
    async def open(cls, path: Path | None, url: str, *, env: Env, max_bytes: int | None = None) -> SqliteDatabase:
        """Open and migrate. SetupError when the file cannot be used as a database of this version."""
        database = cls(path, url, env, max_bytes)
        await asyncio.to_thread(database._start)

        async def migrate(tx: Transaction) -> bool:
            return await apply_next(tx, cls.dialect, load_migrations(), env.now()) is not None

        try:
            while await database.write(migrate):
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

    async def gather(self, sql: str, key: str, *params: object, many: str = "") -> Row | None:
        return await self.statement(sql, *params)  # the writer gathers whatever waits

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._writer.write(lambda tx: tx.many(sql, rows))

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        if not rows:
            return 0
        # INSERTs of many rows each, and their parameters. Beside busy callers the writer thread waits up to 5 ms for
        # the interpreter lock after each statement, so a statement for every row could not keep up. The columns that
        # are the same in all rows, as most are, go in once. A statement has room for a power of two of rows and takes
        # as many as there are, so that few texts serve, which the connection keeps compiled.
        across = list(zip(*rows, strict=True))
        same = [column.count(column[0]) == len(column) for column in across]
        if all(same):
            same[0] = False
        alike = [column[0] for column, is_alike in zip(across, same, strict=True) if is_alike]
        differing = list(
            zip(*[column for column, is_alike in zip(across, same, strict=True) if not is_alike], strict=True)
        )
        places = itertools.count(1)
        chosen = ", ".join("?" if is_alike else f"column{next(places)}" for is_alike in same)
        width = len(differing[0])
        start = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {chosen} FROM (VALUES "
        row = f"({', '.join('?' * width)})"
        statements: list[tuple[str, list[object]]] = []
        for first in range(0, len(differing), _MOST_TOGETHER):
            some = differing[first : first + _MOST_TOGETHER]
            room = 1 << (len(some) - 1).bit_length()
            sql = f"{start}{', '.join([row] * room)}) WHERE true LIMIT ? ON CONFLICT DO NOTHING"
            unused = [0] * ((room - len(some)) * width)  # which is bound faster than None
            statements.append((sql, [*alike, *itertools.chain.from_iterable(some), *unused, len(some)]))

        async def work(tx: Transaction) -> int:
            return sum([await tx.run(sql, *values) for sql, values in statements])

        return await self._writer.write(work)

    async def shrink(self) -> int:
        sizes = await self.one(_FREE)
        if sizes is None or sizes["vacuum"] != _INCREMENTAL or sizes["free"] <= max(_SLACK, sizes["pages"] // 40):
            return 0

        async def work(tx: Transaction) -> None:
            await tx.all(f"PRAGMA incremental_vacuum({_GIVEN_BACK})")

        await self.write(work, frees=True)
        left = await self.one(_FREE)
        return 0 if left is None else max(0, sizes["pages"] - left["pages"]) * int(left["size"])

    async def check(self, *, thorough: bool = False) -> dict[str, object]:
        report: dict[str, object] = {
            "ok": False,
            "dialect": self.dialect,
            "url": self.url,
            "version": sqlite3.sqlite_version,
            "max_bytes": self._max_bytes,
        }

        async def nothing(_: Transaction) -> None:
            """An empty work shows that the writer runs and that the file can be locked."""

        try:
            await self.write(nothing)
            report |= dict(cast("Any", await self.one(_SIZES)))
            now = self._env.monotonic()
            if thorough or not self._integrity or now - self._checked_at >= CHECK_SECONDS:
                rows = await self.all(f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(10)")
                self._integrity = "; ".join(str(value) for row in rows for value in dict(cast("Any", row)).values())
                self._checked_at = now
            report |= {"integrity": self._integrity, "ok": self._integrity == "ok"}
        except Agent3Error as error:
            report |= {"error": error.message, "integrity": "damaged" if isinstance(error, Corrupt) else "unknown"}
        return report

    async def aclose(self) -> None:
        try:
            await asyncio.to_thread(self._stop)
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            self._stop()

    def _start(self) -> None:
        try:
            if self._path is not None:
                _create_file(self._path)
            connection = self._connect()
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            if isinstance(error, OSError) or primary_code(error) in _REFUSED:
                raise SetupError(
                    f"{self.url} cannot be opened: {error}. Choose a file in a folder that you can write to."
                ) from error
            ours = translate_error(error)
            raise type(ours)(f"{self.url}: {ours.message}") from error
        self._space.reserve()
        self._writer = Writer(self._connect, connection, self._space, reopens=self._path is not None)
        self._readers = None if self._path is None else _Readers(self._path)

    def _stop(self) -> None:
        # Readers first: the last connection to close merges the WAL into the file, which a read-only one cannot.
        if self._readers is not None:
            self._readers.stop()
        self._writer.stop()

    def _connect(self) -> sqlite3.Connection:
        connection = _connect(":memory:" if self._path is None else f"{self._path.as_uri()}?mode=rw", timeout=0)
        try:
            # Of a new file, before everything else in it.
            retry_while_busy(lambda: connection.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}"))
            # Changing to WAL does not wait for a lock by itself, whatever the busy timeout says.
            retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone())
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")
            self._space.limit(connection, retry_while_busy)
        except BaseException:
            connection.close()
            raise
        return connection


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
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                connection = _connect(self._address, timeout=BUSY_SECONDS)
                connection.execute(f"PRAGMA cache_size = -{_READER_KIB}")
            try:
                rows = connection.execute(sql, cast("Sequence[Any]", params)).fetchall()
            except BaseException:
                connection.close()  # whatever was wrong with it, the next reader opens a new one
                raise
            self._idle.put(connection)
            return rows
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise translate_error(error) from error


def count_rows(path: Path | None, tables: Sequence[str]) -> int:
    """The rows of some tables of a file, without opening it as a database; 0 where it or they are not there yet."""
    if path is None or not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as file:
            return sum(file.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables)
    except sqlite3.Error:
        return 0


def _connect(address: str, *, timeout: float) -> sqlite3.Connection:
    # isolation_level=None: transactions are ours, not the driver's. A connection is used by one thread at a time, but
    # not always by the same one, hence check_same_thread=False.
    connection = sqlite3.connect(
        address, timeout=timeout, isolation_level=None, check_same_thread=False, cached_statements=256, uri=True
    )
    connection.row_factory = sqlite3.Row
    return connection


def _create_file(path: Path) -> None:
    """Create the file, readable by its owner only.

    An existing file must never be opened here: closing it again would drop the locks that this process may hold on it
    through another connection (sqlite.org/howtocorrupt.html, section 2.2).
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
