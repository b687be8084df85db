"""What every database behind the port promises; each test runs on SQLite in a file, in memory, and on PostgreSQL."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agent3.errors import Conflict, RequestError, StorageError
from agent3.storage import Database, Transaction, open_database
from agent3.storage.counters import increase
from agent3.storage.migration import load_migrations
from tests.support.storage import PUT, put, using


async def names(database: Database) -> list[str]:
    return [row["name"] for row in await database.all("SELECT name FROM counters ORDER BY name")]


def test_what_was_written_is_read_back_as_it_was(url: str) -> None:
    async def story(database: Database) -> None:
        values = ("a?'ä\n", b"\x00\xff", 1.25, None)
        await database.write(
            lambda tx: tx.run("INSERT INTO agents (id, body, added, updated) VALUES (?, ?, ?, ?)", *values)
        )
        row = await database.one("SELECT id, body, added, updated FROM agents WHERE added > ?", 1)
        assert row is not None
        assert (row["id"], bytes(row["body"]), row["added"], row["updated"]) == values
        assert list(row.keys()) == ["id", "body", "added", "updated"]
        assert await database.one("SELECT id FROM agents WHERE id = ?", "nobody") is None

    using(url, story)


def test_a_work_returns_its_value_and_sees_its_own_writes(url: str) -> None:
    async def work(tx: Transaction) -> tuple[int, int, list[str], object]:
        await tx.many(PUT, [("a", 1), ("b", 2), ("c", 3)])
        changed = await tx.run("UPDATE counters SET value = value + ? WHERE value >= ?", 10, 2)
        missed = await tx.run("DELETE FROM counters WHERE name = ?", "z")
        back = await tx.one("INSERT INTO counters (name, value) VALUES ('d', 4) RETURNING name, value")
        rows = await tx.all("SELECT name FROM counters WHERE value > ? ORDER BY name LIMIT ?", 10, 5)
        return changed, missed, [row["name"] for row in rows], back and back["value"]

    async def story(database: Database) -> None:
        assert await database.write(work) == (2, 0, ["b", "c"], 4)

    using(url, story)


def test_an_exception_undoes_only_its_own_work(url: str) -> None:
    async def bad(tx: Transaction) -> None:
        await tx.run(PUT, "bad", 1)
        raise KeyError("mine")

    async def story(database: Database) -> None:
        good = [database.write(put(f"good{i}", i)) for i in range(20)]
        failures = [database.write(bad) for _ in range(5)]
        answers = await asyncio.gather(*good[:10], *failures, *good[10:], return_exceptions=True)
        assert [answer for answer in answers if answer == 1] == [1] * 20
        assert [str(answer) for answer in answers if isinstance(answer, KeyError)] == ["'mine'"] * 5
        assert await names(database) == sorted(f"good{i}" for i in range(20))

    using(url, story)


@pytest.mark.parametrize("error", [OSError("theirs"), ValueError("theirs"), Conflict("theirs")])
def test_the_exception_of_a_work_arrives_as_it_was_raised(url: str, error: Exception) -> None:
    async def bad(tx: Transaction) -> None:
        await tx.run(PUT, "bad", 1)
        raise error

    async def story(database: Database) -> None:
        with pytest.raises(type(error)) as caught:
            await database.write(bad)
        assert caught.value is error
        assert await names(database) == []

    using(url, story)


def test_a_row_that_is_there_already_is_a_conflict(url: str) -> None:
    async def story(database: Database) -> None:
        await database.many(PUT, [("a", 1)])
        with pytest.raises(Conflict):
            await database.write(put("a", 2))
        with pytest.raises(Conflict):
            await database.write(lambda tx: tx.run("INSERT INTO counters (name) VALUES (?)", "no value"))
        skipped = await database.write(lambda tx: tx.run(f"{PUT} ON CONFLICT DO NOTHING", "a", 2))
        assert skipped == 0
        assert await names(database) == ["a"]

    using(url, story)


def test_a_swallowed_error_still_undoes_the_work(url: str) -> None:
    async def work(tx: Transaction) -> str:
        await tx.run(PUT, "b", 1)
        try:
            await tx.run(PUT, "a", 2)
        except Conflict:
            return "went on"
        return "no conflict"

    async def insists(tx: Transaction) -> None:
        with pytest.raises(Conflict):
            await tx.run(PUT, "a", 2)
        await tx.run(PUT, "c", 3)

    async def story(database: Database) -> None:
        await database.many(PUT, [("a", 1)])
        for swallowing in (work, insists):
            with pytest.raises(Conflict):
                await database.write(swallowing)
        assert await names(database) == ["a"]

    using(url, story)


def test_a_transaction_ends_with_its_work(url: str) -> None:
    kept: list[Transaction] = []

    async def work(tx: Transaction) -> None:
        kept.append(tx)

    async def story(database: Database) -> None:
        await database.write(work)
        with pytest.raises(StorageError, match="over"):
            await kept[0].run(PUT, "late", 1)
        assert await names(database) == []

    using(url, story)


def test_many_rows_are_written_all_or_none(url: str) -> None:
    async def story(database: Database) -> None:
        await database.many(PUT, [("a", 1), ("b", 2)])
        with pytest.raises(Conflict):
            await database.many(PUT, [("c", 3), ("a", 1)])
        await database.many(PUT, [])
        assert await names(database) == ["a", "b"]

    using(url, story)


def test_a_statement_of_its_own_is_done_when_it_answers_and_meets_the_others(url: str) -> None:
    raised = "UPDATE counters SET value = value + ? WHERE name = ? AND value < ? RETURNING value"

    async def story(database: Database) -> None:
        assert await database.statement(PUT, "a", 0) is None
        rows = await asyncio.gather(*(database.statement(raised, 1, "a", 20) for _ in range(30)))
        assert sorted(row["value"] for row in rows if row is not None) == list(range(1, 21))
        with pytest.raises(Conflict):
            await database.statement(PUT, "a", 0)
        assert [row["value"] for row in await database.all("SELECT value FROM counters")] == [20]

    using(url, story)


def test_rows_are_appended_by_the_thousand_and_those_that_are_there_stay(url: str) -> None:
    async def story(database: Database) -> None:
        await database.many(PUT, [("7", 1)])
        assert await database.append("counters", ("name", "value"), [(str(i), i) for i in range(3_000)]) == 2_999
        assert await database.append("counters", ("name", "value"), []) == 0
        rows = await database.all("SELECT name, value FROM counters")
        assert {row["name"]: row["value"] for row in rows} == {str(i): i for i in range(3_000)} | {"7": 1}

    using(url, story)


def test_texts_and_numbers_are_appended_as_they_are(url: str) -> None:
    async def story(database: Database) -> None:
        awkward = "a'\"\\?ä\n\U0001f600"
        columns = (
            *("id", "job", "turn", "at", "principal", "agent", "capability", "door", "entry", "trace", "status"),
            *("seconds", "attempts", "hops", "cached", "tokens", "cost", "bytes_in", "bytes_out", "message"),
        )
        row = (awkward, "j", 1, 1.25, "p", "a", "c", "d", "start", "t", "done", 0.1, 1, 0, 0, 2**40, 1e-9, 1, 2, None)
        await database.append("calls", columns, [row])
        found = await database.one("SELECT * FROM calls")
        assert found is not None
        assert tuple(found[column] for column in columns) == row

    using(url, story)


@pytest.mark.parametrize("value", ["\ud800", object()])
def test_what_cannot_be_appended_is_refused_and_takes_the_others_with_it(url: str, value: object) -> None:
    async def story(database: Database) -> None:
        with pytest.raises(RequestError):
            await database.append("counters", ("name", "value"), [("a", 1), (value, 2)])
        assert await names(database) == []

    using(url, story)


def test_one_bad_append_among_many_callers_fails_alone(url: str) -> None:
    async def story(database: Database) -> None:
        await database.many(PUT, [("taken", 1)])
        rows = [("taken" if i == 20 else f"n{i:02}", i) for i in range(64)]
        answers = await asyncio.gather(*(database.many(PUT, [row]) for row in rows), return_exceptions=True)
        assert [i for i, answer in enumerate(answers) if answer is not None] == [20]
        assert isinstance(answers[20], Conflict)
        assert len(await names(database)) == 64

    using(url, story)


def test_a_read_cannot_write(url: str) -> None:
    async def story(database: Database) -> None:
        with pytest.raises(StorageError):
            await database.all("INSERT INTO counters (name, value) VALUES ('a', 1) RETURNING name")
        await database.many(PUT, [("b", 1)])
        assert await names(database) == ["b"]

    using(url, story)


def test_a_statement_that_is_wrong_is_a_storage_error(url: str) -> None:
    async def story(database: Database) -> None:
        with pytest.raises(StorageError):
            await database.all("SELECT * FROM nowhere")
        with pytest.raises(StorageError):
            await database.write(lambda tx: tx.run("INSERT INTO nowhere VALUES (?)", 1))

    using(url, story)


@pytest.mark.parametrize("value", [2**70, "\ud800", object()])
def test_a_value_that_no_column_holds_is_refused_by_name(url: str, value: object) -> None:
    async def story(database: Database) -> None:
        column = "value" if isinstance(value, int) else "name"
        sql = f"UPDATE counters SET {column} = ?"
        with pytest.raises(RequestError, match="cannot be stored"):
            await database.write(lambda tx: tx.run(sql, value))
        with pytest.raises(RequestError, match="cannot be stored"):
            await database.many(sql, [[value]])
        with pytest.raises(RequestError, match="cannot be stored"):
            await database.all(f"SELECT value FROM counters WHERE {column} = ?", value)

    using(url, story)


def test_updates_that_read_first_are_never_lost(url: str) -> None:
    async def add_one(tx: Transaction) -> None:
        row = await tx.one("SELECT value FROM counters WHERE name = ?", "n")
        assert row is not None
        await tx.run("UPDATE counters SET value = ? WHERE name = ?", row["value"] + 1, "n")

    async def caller(database: Database) -> None:
        for _ in range(10):
            await database.write(add_one)

    async def story(database: Database) -> None:
        await database.many(PUT, [("n", 0)])
        await asyncio.gather(*(caller(database) for _ in range(16)))
        row = await database.one("SELECT value FROM counters")
        assert row is not None
        assert row["value"] == 160

    using(url, story)


def test_sums_are_whole_numbers_and_averages_are_not(url: str) -> None:
    async def story(database: Database) -> None:
        await database.many(PUT, [("a", 1), ("b", 4)])
        row = await database.one("SELECT SUM(value) AS total, AVG(value) AS middle, COUNT(*) AS rows FROM counters")
        assert row is not None
        assert (row["total"], row["middle"], row["rows"]) == (5, 2.5, 2)
        assert (type(row["total"]), type(row["middle"])) == (int, float)

    using(url, story)


def test_a_question_mark_in_a_string_is_no_parameter(url: str) -> None:
    async def story(database: Database) -> None:
        row = await database.one("SELECT 'really?' AS a, CAST(? AS TEXT) AS b, 'it''s ?' AS c -- ?", "yes")
        assert row is not None
        assert (row["a"], row["b"], row["c"]) == ("really?", "yes", "it's ?")

    using(url, story)


def test_a_cancelled_caller_leaves_all_of_its_work_or_none(url: str) -> None:
    async def story(database: Database) -> None:
        def pair(i: int) -> asyncio.Task[None]:
            async def work(tx: Transaction) -> None:
                await tx.run(PUT, f"{i}-first", i)
                await tx.run(PUT, f"{i}-second", i)

            return asyncio.create_task(database.write(work))

        tasks = [pair(i) for i in range(60)]
        await tasks[0]
        for task in tasks[1::2]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        kept = set(await names(database))
        assert {name.split("-")[0] for name in kept if name.endswith("first")} == {
            name.split("-")[0] for name in kept if name.endswith("second")
        }
        assert all(f"{i}-first" in kept for i, answer in enumerate(answers) if answer is None)
        await database.many(PUT, [("after", 1)])

    using(url, story)


def test_several_loops_use_one_database(url: str) -> None:
    async def caller(database: Database, who: int) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(database.write(put(f"{who}-{i}", i)) for i in range(20)))
            await database.many(PUT, [(f"{who}-many", 1)])
            assert f"{who}-many" in await names(database)

    async def elsewhere(database: Database, who: int, others: threading.Barrier) -> None:
        await caller(database, who)
        await asyncio.to_thread(others.wait, 30)  # all loops are alive while all are used

    async def story(database: Database) -> None:
        together = threading.Barrier(4)
        await asyncio.gather(
            *(asyncio.to_thread(asyncio.run, elsewhere(database, who, together)) for who in range(3)),
            elsewhere(database, 3, together),
        )
        assert len(await names(database)) == 4 * 21

    using(url, story)


def test_check_tells_its_health(url: str) -> None:
    async def story(database: Database) -> None:
        for thorough in (False, True):
            report = await database.check(thorough=thorough)
            assert report["ok"] is True
            assert report["integrity"] == "ok"
            assert report["schema"] == len(load_migrations())
            assert isinstance(report["size"], int)
            assert report["size"] > 0
            assert str(report["version"])[0].isdigit()

    using(url, story)


def test_a_closed_database_says_so_and_closes_twice(url: str) -> None:
    async def story(database: Database) -> None:
        await database.aclose()
        await database.aclose()
        with pytest.raises(StorageError, match="closed"):
            await database.write(put("a", 1))
        with pytest.raises(StorageError, match="closed"):
            await database.all("SELECT 1")
        with pytest.raises(StorageError, match="closed"):
            await database.many(PUT, [("a", 1)])
        assert (await database.check())["ok"] is False

    using(url, story)


def test_closing_finishes_what_was_accepted(lasting_url: str) -> None:
    async def story() -> list[str]:
        database = await open_database(lasting_url)
        writes = [asyncio.create_task(database.write(put(f"{i}", i))) for i in range(50)]
        appends = [asyncio.create_task(database.many(PUT, [(f"many{i}", i)])) for i in range(50)]
        await asyncio.sleep(0)  # let each of them get as far as the database
        await database.aclose()
        answers = await asyncio.gather(*writes, *appends)
        assert len(answers) == 100
        again = await open_database(lasting_url)
        try:
            return await names(again)
        finally:
            await again.aclose()

    assert len(asyncio.run(story())) == 100


def test_what_was_acknowledged_is_there_after_opening_again(lasting_url: str) -> None:
    async def write(database: Database) -> None:
        await database.many(PUT, [("a", 1)])

    using(lasting_url, write)
    assert using(lasting_url, names) == ["a"]


def test_a_counter_gives_every_number_once(url: str) -> None:
    async def story(database: Database) -> None:
        async def count() -> int:
            return await database.write(lambda tx: increase(tx, "tickets"))

        numbers = await asyncio.gather(*(count() for _ in range(20)))
        assert sorted(numbers) == list(range(1, 21))
        assert await database.write(lambda tx: increase(tx, "others")) == 1

    using(url, story)
