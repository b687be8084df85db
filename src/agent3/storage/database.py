"""The Database port: what every database behind it promises.

SQL is written once, with ``?`` for parameters, and runs unchanged on both. To keep that true:

- a parameter whose type cannot be inferred needs a cast, as in ``CAST(? AS TEXT) IS NULL``;
- PostgreSQL takes only ``str`` for TEXT, ``int`` for BIGINT and ``bytes`` for blobs; SQLite is more lenient;
- ``LIKE`` is case-sensitive on PostgreSQL only: compare ``lower(…)``;
- ``ON CONFLICT … DO NOTHING|UPDATE`` and ``RETURNING`` work on both; locks such as ``FOR UPDATE`` are not needed, since
  writes are serializable on both.

What does differ is asked of ``Database.syntax``.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from agent3.storage.syntax import Dialect, Syntax

__all__ = ["Database", "Dialect", "Notifier", "Row", "Transaction", "Work"]

T = TypeVar("T")


class Row(Protocol):
    """One row: ``row["column"]``; ``dict(row)`` gives all columns."""

    def __getitem__(self, column: str, /) -> Any: ...

    def keys(self) -> Iterable[str]: ...


class Transaction(Protocol):
    """What a work sees: statements that all take effect or none.

    A failed statement fails the whole work, even if the work catches the error: every later statement raises the same
    error again and nothing is kept. (PostgreSQL aborts the transaction; SQLite does the same here, so that code which
    passes on one passes on the other.) For a row that may already exist, use ``ON CONFLICT DO NOTHING``.
    """

    async def all(self, sql: str, *params: object) -> list[Row]:
        """Every row of a query, or of a statement with RETURNING."""

    async def one(self, sql: str, *params: object) -> Row | None:
        """The first row, or None."""

    async def run(self, sql: str, *params: object) -> int:
        """Run a statement; return the number of rows that it changed."""

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row of parameters."""


Work: TypeAlias = Callable[[Transaction], Awaitable[T]]


class Database(Protocol):
    """A database that is open and migrated. Safe to use from several tasks, event loops and threads at once.

    Every method raises ``StorageError`` (retryable), ``StorageFull``, ``Corrupt``, or ``Conflict`` for a violated
    constraint. What returned survives a power cut; what raised was not stored, unless it raised ``StorageUnsure``.
    """

    dialect: Dialect
    syntax: Syntax
    url: str

    async def write(self, work: Work[T], *, frees: bool = False, calm: bool = False) -> T:
        """Run ``work`` in one serializable transaction; durable when this returns.

        An exception in ``work`` undoes only that work, and is raised here. ``work`` may run on another thread and
        more than once, so it must have no side effects and await nothing but its transaction. If the caller is
        cancelled, its work takes effect completely or not at all.

        ``frees`` marks a work that frees at least as much space as it takes: on a full database it may use the
        reserve, where others get StorageFull. ``calm`` marks a work that needs no more isolation than the locks of the
        rows it changes: PostgreSQL then runs it as READ COMMITTED, so that it does not collide with others.
        """

    async def statement(self, sql: str, *params: object) -> Row | None:
        """Run one statement as a transaction of its own, as ``calm`` as ``write`` can be; return its first row.

        It costs one round trip to a server instead of three. What the statement reads holds until it is done only
        through the locks of the rows that it changes.
        """

    async def gather(self, sql: str, key: str, *params: object, many: str = "") -> Row | None:
        """Run one statement in one commit with those that others give meanwhile; return its row.

        ``many`` is the rest of a statement that does the same for every row of a table ``given``, whose columns ``p1``,
        ``p2`` and so on are the parameters. PostgreSQL runs it in place of a statement for each.

        The statement returns at most one row, whose column ``id`` is ``key``. It is as ``calm`` as ``write`` can be,
        and fails for itself alone.
        """

    async def all(self, sql: str, *params: object) -> list[Row]:
        """Every row of a query, from a read-only connection that sees everything acknowledged."""

    async def one(self, sql: str, *params: object) -> Row | None:
        """The first row of a query, or None."""

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row, all or none, in one durable transaction: the fast path for appending."""

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        """Insert rows of strings, numbers and None, all or none, skipping those that exist already; how many are new.

        For thousands of rows beside busy callers; for one row ``many`` costs less. A value of another type raises
        ``RequestError``.
        """

    async def shrink(self) -> int:
        """Give a small piece of what is free within the database back to the disk; its bytes, 0 when all is well.

        PostgreSQL does that by itself. A SQLite file that an earlier release made keeps its size, and uses it again.
        """

    async def check(self, *, thorough: bool = False) -> dict[str, object]:
        """Report the database's health, without raising: ``ok``, ``integrity``, ``size``, ``version``, ``schema``, …

        A file is checked for integrity at the first call and then at most every ten minutes, unless ``thorough``.
        """

    async def aclose(self) -> None:
        """Finish what was accepted, then release threads and connections. Safe to call again."""


@runtime_checkable
class Notifier(Protocol):
    """A database that carries short texts between the processes that use it (PostgreSQL's LISTEN and NOTIFY)."""

    def listen(self, channel: str, on_text: Callable[[str], None]) -> AbstractAsyncContextManager[Future[None]]:
        """Call ``on_text`` for each text sent to the channel; the future is done when the connection is lost."""

    async def notify(self, channel: str, text: str) -> None:
        """Send a text of at most 8,000 bytes to every listener of the channel."""
