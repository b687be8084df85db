"""Migrations on every database that lasts."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent3.errors import SetupError, StorageError
from agent3.storage import Database, open_database
from agent3.storage.migration import Migration, apply_next, load_migrations
from tests.support.storage import using

TABLES = [
    "agents",
    "artifacts",
    "calls",
    "counters",
    "dead_letters",
    "feedback",
    "job_aliases",
    "job_events",
    "jobs",
    "nonces",
    "queue_messages",
    "queues",
    "schema_migrations",
]
SHIPPED = [migration.version for migration in load_migrations()]
NEXT = len(SHIPPED) + 1


async def applied(database: Database) -> list[int]:
    return [row["version"] for row in await database.all("SELECT version FROM schema_migrations ORDER BY version")]


def test_every_shipped_migration_is_numbered_without_gaps() -> None:
    assert [migration.version for migration in load_migrations()] == list(range(1, len(load_migrations()) + 1))


def test_a_new_database_has_every_table(url: str) -> None:
    async def story(database: Database) -> None:
        for table in TABLES:
            await database.all(f"SELECT COUNT(*) AS n FROM {table}")
        assert await applied(database) == [migration.version for migration in load_migrations()]

    using(url, story)


def test_opening_again_changes_nothing(lasting_url: str) -> None:
    async def story(database: Database) -> list[int]:
        return await applied(database)

    assert using(lasting_url, story) == using(lasting_url, story)


def test_many_starters_at_once_migrate_once(lasting_url: str) -> None:
    async def story() -> None:
        databases = await asyncio.gather(*(open_database(lasting_url) for _ in range(6)))
        for database in databases:
            assert await applied(database) == SHIPPED
            await database.aclose()

    asyncio.run(story())


def test_a_migration_that_fails_leaves_nothing_behind(url: str) -> None:
    broken = Migration(NEXT, "broken", "CREATE TABLE half (a TEXT);\nINSERT INTO nowhere VALUES (1);\n")
    whole = Migration(NEXT, "whole", "CREATE TABLE half (id {serial}, a {blob});\n-- done; really\n")

    async def story(database: Database) -> None:
        with pytest.raises(StorageError):
            await database.write(lambda tx: apply_next(tx, database.dialect, (*load_migrations(), broken), 0.0))
        assert await applied(database) == SHIPPED
        done = await database.write(lambda tx: apply_next(tx, database.dialect, (*load_migrations(), whole), 0.0))
        assert done == whole
        assert await applied(database) == [*SHIPPED, NEXT]
        row = await database.write(lambda tx: tx.one("INSERT INTO half (a) VALUES (?) RETURNING id", b"a"))
        assert row is not None
        assert row["id"] == 1

    using(url, story)


def test_a_database_of_a_newer_version_is_refused(lasting_url: str) -> None:
    async def age(database: Database) -> None:
        sql = "INSERT INTO schema_migrations (version, name, checksum, applied) VALUES (?, ?, ?, ?)"
        await database.many(sql, [(9000, "future", "x", 0.0)])

    using(lasting_url, age)
    with pytest.raises(SetupError, match=r"9000 \(future\).*newer"):
        asyncio.run(open_database(lasting_url))


def test_a_migration_that_was_changed_afterwards_is_refused(lasting_url: str) -> None:
    async def change(database: Database) -> None:
        await database.write(lambda tx: tx.run("UPDATE schema_migrations SET checksum = 'other' WHERE version = 1"))

    using(lasting_url, change)
    with pytest.raises(SetupError, match=r"0001 \(house\).*changed"):
        asyncio.run(open_database(lasting_url))


def test_the_checksum_does_not_mind_line_ends() -> None:
    migration = load_migrations()[0]
    assert replace(migration, text=migration.text.replace("\n", "\r\n")).checksum == migration.checksum


def test_a_statement_without_its_end_is_named() -> None:
    with pytest.raises(SetupError, match="semicolon"):
        list(Migration(7, "torn", "CREATE TABLE a (b TEXT);\nCREATE TABLE").statements("sqlite"))


OPEN = (
    "import asyncio, sys\nfrom agent3.storage import open_database\n"
    "async def main():\n"
    "    database = await open_database(sys.argv[1])\n"
    "    await database.aclose()\n"
    "asyncio.run(main())\n"
)


def first_version(file: Path, rows: int = 200) -> None:
    """A database as the first migration made it, with rows in it."""
    first = load_migrations()[0]
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(
        "CREATE TABLE schema_migrations (version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL,"
        " applied DOUBLE PRECISION NOT NULL)"
    )
    for statement in first.statements("sqlite"):
        connection.execute(statement)
    connection.execute("INSERT INTO schema_migrations VALUES (1, ?, ?, 0)", (first.name, first.checksum))
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO counters VALUES (?, 1)", [(str(number),) for number in range(rows)])
    connection.execute("COMMIT")
    connection.close()


def state(file: Path) -> tuple[list[int], int]:
    """Which migrations are recorded, and how many rows there are, as SQLite itself sees it."""
    connection = sqlite3.connect(file)
    versions = [row[0] for row in connection.execute("SELECT version FROM schema_migrations ORDER BY version")]
    (count,) = connection.execute("SELECT COUNT(*) FROM counters").fetchone()
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    return versions, count


@pytest.mark.parametrize("place", ["migration.statement", "storage.commit", "storage.committed"])
def test_a_migration_that_is_killed_is_done_again_by_the_next_to_open(tmp_path: Path, place: str) -> None:
    file = tmp_path / "old.db"
    first_version(file)
    seen = []
    # Each start is killed one passing later than it could go on from, so every place of every migration is visited.
    for passing in (1, 2, 3, 5, 8, 13, 21):
        environment = {**os.environ, "AGENT3_FAILPOINTS": f"{place}=kill:#{passing}"}
        done = subprocess.run(
            [sys.executable, "-c", OPEN, f"sqlite:///{file}"], env=environment, timeout=240, check=False
        )
        versions, rows = state(file)
        assert (versions, rows) == (list(range(1, len(versions) + 1)), 200)
        seen.append(done.returncode)
        if done.returncode == 0:
            break
    assert seen[0] == -signal.SIGKILL
    using(f"sqlite:///{file}", applied)
    assert state(file) == (SHIPPED, 200)


def test_two_processes_migrate_one_database_together(tmp_path: Path) -> None:
    file = tmp_path / "old.db"
    first_version(file)
    command = [sys.executable, "-c", OPEN, f"sqlite:///{file}"]
    slowly = {**os.environ, "AGENT3_FAILPOINTS": "migration.statement=delay:5ms"}
    children = [subprocess.Popen(command, env=slowly) for _ in range(2)]
    try:
        assert [child.wait(60) for child in children] == [0, 0]
    finally:
        for child in children:
            child.kill()
    assert state(file) == (SHIPPED, 200)
