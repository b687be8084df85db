"""The Database port: what every database behind it promises, whichever it is.

SQL is written once, with ``?`` for parameters, and runs unchanged on both. To keep that true:

- a parameter whose type nothing else tells needs ``CAST(? AS TEXT)``, as in ``CAST(? AS TEXT) IS NULL``;
- PostgreSQL takes ``str`` for TEXT, ``int`` for BIGINT, ``bytes`` for blobs and nothing else, SQLite is more lenient;
- ``LIKE`` minds case on PostgreSQL only: compare ``lower(…)``;
- ``ON CONFLICT … DO NOTHING|UPDATE`` and ``RETURNING`` work on both; locks such as ``FOR UPDATE`` are not needed, since
  writes are serializable on both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

__all__ = ["Database", "Dialect", "Row", "Transaction", "Work"]

T = TypeVar("T")
Dialect: TypeAlias = Literal["sqlite", "postgres"]


class Row(Protocol):
    """One row: ``row["column"]``; ``dict(row)`` gives all of it."""

    def __getitem__(self, column: str, /) -> Any: ...

    def keys(self) -> Iterable[str]: ...


class Transaction(Protocol):
    """What a work sees: statements that all happen or none.

    After a statement has failed, the work is lost, also when it catches the error: every later statement raises the
    same error again and nothing of the work is kept. (PostgreSQL aborts the transaction; SQLite follows it, so that
    what passes on the one passes on the other.) Where a row may exist already, say ``ON CONFLICT DO NOTHING``.
    """

    async def all(self, sql: str, *params: object) -> list[Row]:
        """Every row of a query, or of a statement with RETURNING."""

    async def one(self, sql: str, *params: object) -> Row | None:
        """The first row, or None."""

    async def run(self, sql: str, *params: object) -> int:
        """Run a statement; the number of rows it changed."""

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row of parameters."""


Work: TypeAlias = Callable[[Transaction], Awaitable[T]]


class Database(Protocol):
    """A database that is open and migrated. Safe to use from several tasks, event loops and threads at once.

    Every method raises ``StorageError`` (retryable), ``StorageFull``, ``Corrupt``, or ``Conflict`` for a broken
    constraint. What returned is there after a power cut; what raised is not there, unless the error says that the
    connection to a server was lost during the commit itself.
    """

    dialect: Dialect
    url: str

    async def write(self, work: Work[T], *, frees: bool = False, calm: bool = False) -> T:
        """Run ``work`` in one serializable transaction; durable when this returns.

        An exception in ``work`` undoes only that work, and is raised here. ``work`` may run on another thread and
        more than once, so it has no side effects and awaits nothing but its transaction. A cancelled caller's work
        happens whole or not at all.

        ``frees`` says that it takes no more room than it gives back: when there is none left it may use what is kept
        back for that, where others get StorageFull. ``calm`` says that the locks of the rows it changes are all that
        it needs: PostgreSQL then lets it see what others commit meanwhile, instead of letting it collide with them.
        """

    async def statement(self, sql: str, *params: object) -> Row | None:
        """Run one statement as a transaction of its own, as calm as ``write`` can be; its first row, once durable.

        It costs a server one journey instead of three. The statement alone sees to it that what it reads holds until
        it is done: by locks of the rows that it changes.
        """

    async def all(self, sql: str, *params: object) -> list[Row]:
        """Every row of a query, from a read-only connection: it sees what has been acknowledged."""

    async def one(self, sql: str, *params: object) -> Row | None:
        """The first row of a query, or None."""

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row, all or none, in one durable transaction: the fast path for appending."""

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Insert rows of texts, numbers and None, all or none, passing over those that are there already.

        For rows by the thousand beside busy callers: ``many`` costs less for one of them. A value of another kind
        raises ``RequestError``.
        """

    async def check(self, *, thorough: bool = False) -> dict[str, object]:
        """The database's health, without raising: ``ok``, ``integrity``, ``size``, ``version``, ``schema`` and more.

        A file is checked for integrity at the first call and then at most every ten minutes, unless ``thorough``.
        """

    async def aclose(self) -> None:
        """Finish what was accepted, then let go of threads and connections. Safe to call again."""
