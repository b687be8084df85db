"""Databases of every earlier version, with rows in every table: each opens, ends at the newest shape, and keeps all.

The old databases are made from the migrations themselves, whose text never changes, on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from agent3.observe.metrics import Metrics
from agent3.queue import Queue
from agent3.storage import Database, open_database
from agent3.storage.database import Dialect
from agent3.storage.migration import load_migrations
from faults._postgres import postgres
from faults.registry import Result, fault

ROWS = 20
NEWEST = len(load_migrations())
RECORDS = (
    "CREATE TABLE schema_migrations (version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL,"
    " applied DOUBLE PRECISION NOT NULL)"
)

Values: TypeAlias = tuple[Any, ...]
Do: TypeAlias = Callable[[str, Values], Awaitable[Any]]
Tables: TypeAlias = dict[str, tuple[Sequence[str], list[Values]]]
"""The columns and the rows of each table."""


@fault("upgrade")
def upgrade(seed: int) -> Result:
    """Databases of each earlier version with rows in every table, on both: they open, and every row is as it was."""
    with tempfile.TemporaryDirectory(prefix="agent3-upgrade-") as name, postgres() as server:
        results = {
            f"{kind}_from_{version}": asyncio.run(
                asyncio.wait_for(upgraded(kind, version, seed, Path(name), server.url), 30)
            )
            for kind in ("sqlite", "postgres")
            for version in range(1, NEWEST + 1)
        }
    return {"ok": all(one["ok"] for one in results.values()), "newest": NEWEST, **results}


async def upgraded(kind: str, version: int, seed: int, folder: Path, server: str) -> Result:
    """One old database, opened by the code of today."""
    make = _old_sqlite if kind == "sqlite" else _old_postgres
    url, before = await make(version, random.Random(f"{seed}/{version}"), folder, server)
    first = await _opened(url, before)
    again = await _opened(url, before)  # there is nothing left to do
    works = await _works(url)
    ok = bool(before) and works and first == again == {"changed": [], "schema": NEWEST, "integrity": "ok"}
    return {"ok": ok, "tables": len(before), "works": works, **first}


async def _opened(url: str, before: Tables) -> Result:
    database = await open_database(url)
    try:
        changed = [table for table, (columns, rows) in before.items() if await _rows(database, table, columns) != rows]
        check = await database.check(thorough=True)
        return {"changed": changed, "schema": check["schema"], "integrity": check["integrity"]}
    finally:
        await database.aclose()


async def _rows(database: Database, table: str, columns: Sequence[str]) -> list[Values]:
    found = await database.all(f"SELECT {', '.join(columns)} FROM {table}")
    return sorted((tuple(row[column] for column in columns) for row in found), key=repr)


async def _works(url: str) -> bool:
    """Whether today's code can work with it."""
    database = await open_database(url)
    queue = Queue(database, "upgraded", metrics=Metrics())
    put = await queue.put(b"x", context="c")
    (lease,) = await queue.claim()
    done = await queue.ack(lease)
    await queue.aclose()
    await database.aclose()
    return done and lease.id == put


# Old databases


async def _old_sqlite(version: int, chance: random.Random, folder: Path, _: str) -> tuple[str, Tables]:
    file = folder / f"from{version}.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:

        async def do(sql: str, values: Values) -> Any:
            return connection.execute(sql, values).fetchall()

        await _migrated(do, "sqlite", version)
        names = await do("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'", ())
        shapes = {name: await do("SELECT name, type, pk FROM pragma_table_info(?)", (name,)) for (name,) in names}
        return f"sqlite:///{file}", await _filled(do, shapes, chance, "?")


async def _old_postgres(version: int, chance: random.Random, _: Path, server: str) -> tuple[str, Tables]:
    import asyncpg

    schema = f"from{version}"
    connection = await asyncpg.connect(server)
    try:

        async def do(sql: str, values: Values) -> Any:
            return [tuple(row) for row in await connection.fetch(sql, *values)]

        await do(f"CREATE SCHEMA {schema}", ())
        await do(f"SET search_path = {schema}", ())
        await _migrated(do, "postgres", version)
        found = await do(
            "SELECT table_name, column_name, data_type, column_default LIKE 'nextval%'"
            " FROM information_schema.columns WHERE table_schema = $1 ORDER BY table_name, ordinal_position",
            (schema,),
        )
        shapes: dict[str, list[Values]] = {}
        for table, column, kind, serial in found:
            shapes.setdefault(table, []).append((column, kind, serial))
        return f"{server}&search_path={schema}", await _filled(do, shapes, chance, "$")
    finally:
        await connection.close()


async def _migrated(do: Do, dialect: Dialect, version: int) -> None:
    await do(RECORDS, ())
    for migration in load_migrations()[:version]:
        for statement in migration.statements(dialect):
            await do(statement, ())
        record = f"VALUES ({migration.version}, '{migration.name}', '{migration.checksum}', 0)"
        await do(f"INSERT INTO schema_migrations {record}", ())


async def _filled(do: Do, shapes: dict[str, list[Values]], chance: random.Random, mark: str) -> Tables:
    """Rows in every table; what is in them makes no sense and must be kept all the same."""
    tables: Tables = {}
    for table, shape in shapes.items():
        if table == "schema_migrations":
            continue
        columns = [column for column, kind, own in shape if not (own and kind == "INTEGER") and own is not True]
        kinds = [kind for column, kind, _ in shape if column in columns]
        rows = [tuple(_value(kind, number, chance) for kind in kinds) for number in range(ROWS)]
        marks = ", ".join("?" if mark == "?" else f"${place}" for place in range(1, len(columns) + 1))
        for row in rows:
            await do(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", row)
        tables[table] = (columns, sorted(rows, key=repr))
    return tables


def _value(kind: str, number: int, chance: random.Random) -> object:
    """A value that differs from row to row, since some columns allow no other."""
    word = kind.upper()
    if word in ("BLOB", "BYTEA"):
        return chance.randbytes(40)
    if word.startswith("DOUBLE"):
        return number + chance.randrange(1_000) / 8
    return number if word in ("BIGINT", "INTEGER") else f"text {number} ÄÖÜ {chance.randrange(1_000)}"
