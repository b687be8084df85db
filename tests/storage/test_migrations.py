"""Migrations on every database that lasts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent3.errors import SetupError, StorageError
from agent3.storage import Database, open_database
from agent3.storage.migration import Migration, apply_next, shipped
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
    "schema_migrations",
]
SHIPPED = [migration.version for migration in shipped()]
NEXT = len(SHIPPED) + 1


async def applied(database: Database) -> list[int]:
    return [row["version"] for row in await database.all("SELECT version FROM schema_migrations ORDER BY version")]


def test_every_shipped_migration_is_numbered_without_gaps() -> None:
    assert [migration.version for migration in shipped()] == list(range(1, len(shipped()) + 1))


def test_a_new_database_has_every_table(url: str) -> None:
    async def story(database: Database) -> None:
        for table in TABLES:
            await database.all(f"SELECT COUNT(*) AS n FROM {table}")
        assert await applied(database) == [migration.version for migration in shipped()]

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
            await database.write(lambda tx: apply_next(tx, database.dialect, (*shipped(), broken), 0.0))
        assert await applied(database) == SHIPPED
        done = await database.write(lambda tx: apply_next(tx, database.dialect, (*shipped(), whole), 0.0))
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
    migration = shipped()[0]
    assert replace(migration, text=migration.text.replace("\n", "\r\n")).checksum == migration.checksum


def test_a_statement_without_its_end_is_named() -> None:
    with pytest.raises(SetupError, match="semicolon"):
        list(Migration(7, "torn", "CREATE TABLE a (b TEXT);\nCREATE TABLE").statements("sqlite"))
