"""What only a server can get wrong: lost connections, collisions, and a driver that is not there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from agent3.errors import MissingExtra, SetupError, StorageError
from agent3.storage import Database, Transaction, open_database
from tests.support.postgres import new_database_url
from tests.support.storage import PUT, put, using

pytestmark = pytest.mark.postgres
END_THE_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'agent3' AND pid <> pg_backend_pid()"
)


async def cut(url: str) -> None:
    """End every connection that agent3 has to this database, from the server's side."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(END_THE_OTHERS)
    finally:
        await connection.close()


def test_connections_that_died_while_idle_cost_nobody_anything() -> None:
    url = new_database_url()

    async def story(database: Database) -> None:
        await asyncio.gather(*(database.write(put(f"{i}", i)) for i in range(20)))
        await asyncio.gather(*(database.all("SELECT 1") for _ in range(20)))
        await cut(url)
        await asyncio.gather(*(database.write(put(f"later{i}", i)) for i in range(20)))
        assert len(await database.all("SELECT name FROM counters")) == 40

    using(url, story)


def test_a_server_that_takes_no_more_writes_is_named_and_its_connections_are_made_anew() -> None:
    """As where the primary has become a standby: the next connection finds the one that was promoted."""
    demoted = "SELECT pg_backend_pid() AS pid, raise_read_only()"

    async def story(database: Database) -> None:
        await database.write(
            lambda tx: tx.run(
                "CREATE FUNCTION raise_read_only() RETURNS int LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'cannot execute INSERT in a read-only transaction' "
                "USING ERRCODE = '25006'; END $$"
            )
        )

        async def pid() -> int:
            row = await database.statement("SELECT pg_backend_pid() AS pid")
            assert row is not None
            return int(row["pid"])

        async def pid_in_work() -> int:
            row = await database.write(lambda tx: tx.one("SELECT pg_backend_pid() AS pid"))
            assert row is not None
            return int(row["pid"])

        async def refuse(work: Awaitable[object], ask: Callable[[], Awaitable[int]]) -> None:
            before = await ask()
            with pytest.raises(StorageError, match="can only be read") as caught:
                await work
            assert caught.value.retry_after
            assert await ask() != before

        await refuse(database.statement(demoted), pid)
        await refuse(database.write(lambda tx: tx.one(demoted)), pid_in_work)
        await refuse(database.many("SELECT raise_read_only(), CAST(? AS BIGINT)", [(1,)]), pid_in_work)

    using(new_database_url(), story)


def test_a_connection_lost_inside_a_work_is_a_storage_error_and_the_next_use_connects_again() -> None:
    url = new_database_url()

    async def work(tx: Transaction) -> None:
        await tx.run(PUT, "a", 1)
        await cut(url)
        await tx.run(PUT, "b", 2)

    async def story(database: Database) -> None:
        with pytest.raises(StorageError) as caught:
            await database.write(work)
        assert caught.value.retryable
        assert await database.all("SELECT name FROM counters") == []
        await database.many(PUT, [("a", 1)])

    using(url, story)


def test_a_connection_lost_during_a_statement_of_its_own_leaves_it_open_what_happened() -> None:
    url = new_database_url()

    async def asleep(database: Database) -> None:
        while not await database.all("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
            await asyncio.sleep(0.005)

    async def story(database: Database) -> None:
        slow = "INSERT INTO counters (name, value) SELECT ?, 1 FROM pg_sleep(30) RETURNING name"
        statement = asyncio.create_task(database.statement(slow, "a"))
        await asleep(database)
        await cut(url)
        with pytest.raises(StorageError, match="may or may not have happened") as caught:
            await statement
        assert not caught.value.retryable, "whoever repeats it may do it twice"
        assert await database.statement(PUT, "b", 2) is None
        assert [row["name"] for row in await database.all("SELECT name FROM counters")] == ["b"]

    using(url, story)


def test_statements_that_wait_for_a_lock_do_not_keep_others_from_theirs() -> None:
    add = "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value"

    async def story(database: Database) -> None:
        await database.many(PUT, [("held", 0), ("free", 0)])
        held, go = asyncio.Event(), asyncio.Event()

        async def hold(tx: Transaction) -> None:
            await tx.run(add, "held")
            held.set()
            await go.wait()

        holding = asyncio.create_task(database.write(hold, calm=True))
        await held.wait()
        waiting = [asyncio.create_task(database.statement(add, "held")) for _ in range(3)]
        while not await database.all("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' OFFSET 2"):
            await asyncio.sleep(0.005)
        row = await database.statement(add, "free")
        assert row is not None
        assert row["value"] == 1
        assert not any(one.done() for one in waiting)
        go.set()
        await holding
        assert sorted(row["value"] for row in await asyncio.gather(*waiting) if row is not None) == [2, 3, 4]

    using(new_database_url(), story)


def test_a_process_that_stops_inside_a_transaction_holds_up_the_others_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent3.storage.postgres.IDLE_SECONDS", 0.5)
    add = "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value"

    async def story(database: Database) -> None:
        await database.many(PUT, [("held", 0)])
        held, go = asyncio.Event(), asyncio.Event()

        async def hold(tx: Transaction) -> None:
            await tx.run(add, "held")
            held.set()
            await go.wait()
            await tx.run(add, "held")

        holding = asyncio.create_task(database.write(hold, calm=True))
        await held.wait()
        row = await database.statement(add, "held")
        assert row is not None
        assert row["value"] == 1, "nothing of the stopped transaction was kept"
        go.set()
        (late,) = await asyncio.gather(holding, return_exceptions=True)
        (found,) = await database.all("SELECT value FROM counters")
        assert found["value"] == (1 if isinstance(late, StorageError) else 3)

    using(new_database_url(), story)


def test_a_deadlock_is_resolved_by_running_one_work_again() -> None:
    url = new_database_url()
    runs: list[str] = []

    async def story(database: Database) -> None:
        await database.many(PUT, [("a", 0), ("b", 0)])
        both = asyncio.Barrier(2)

        def crossing(first: str, second: str) -> asyncio.Task[None]:
            async def work(tx: Transaction) -> None:
                runs.append(first)
                await tx.run("UPDATE counters SET value = value + 1 WHERE name = ?", first)
                if runs.count(first) == 1:
                    await both.wait()
                await tx.run("UPDATE counters SET value = value + 1 WHERE name = ?", second)

            return asyncio.create_task(database.write(work))

        await asyncio.gather(crossing("a", "b"), crossing("b", "a"))
        assert [row["value"] for row in await database.all("SELECT value FROM counters")] == [2, 2]
        assert len(runs) > 2

    using(url, story)


def test_the_address_is_shown_without_its_password() -> None:
    async def story(database: Database) -> None:
        assert "secret" not in database.url
        assert database.url.startswith("postgresql://postgres@/postgres?host=")
        assert "secret" not in str(await database.check())

    using(new_database_url(), story)


def test_a_server_that_is_not_there_is_a_setup_error_without_the_password() -> None:
    with pytest.raises(SetupError, match="cannot be opened") as caught:
        asyncio.run(open_database("postgresql://me:secret@127.0.0.1:1/none"))
    assert "secret" not in str(caught.value)


def test_without_the_driver_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "agent3.storage.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(MissingExtra, match=r"agent3\[postgres\]"):
        asyncio.run(open_database("postgresql://localhost/none"))
