"""The ledger: one row for every turn, durable or soon, whatever became of the turn or the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agent3.calls.steps.ledger import COLUMNS, Ledger, trace_id
from agent3.env import REAL, SeededEnv
from agent3.errors import StorageError
from agent3.model import Call, Done, Event, Failed, Hints, Needs, Outcome, Part, Price, Question, Usage
from agent3.observe import logs
from agent3.observe.metrics import Metrics
from agent3.settings import Calls, Limits, Rule, Settings
from agent3.storage import Database
from tests.support.home import run, until
from tests.support.rig import CLIENT, DONE, DOWN, QUICK, Script, hang, rig
from tests.support.storage import using

BATCHED = Calls(ledger="batched", timeout=60.0, attempt_timeout=50.0, backoff=0.001, backoff_max=0.002)


class Moody:
    """A database that can be made to fail or to wait when rows of the ledger come."""

    def __init__(self, database: Database):
        self._database = database
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        if "INTO calls" in sql:
            await self._mood()
        await self._database.many(sql, rows)

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        await self._mood()
        return await self._database.append(table, columns, rows)

    async def _mood(self) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.broken:
            raise StorageError("the disk is gone")


def a_row(number: int) -> tuple[Any, ...]:
    return (f"{number:032}", *[None] * (len(COLUMNS) - 1))


async def stored(database: Database) -> list[str]:
    return [row["id"] for row in await database.all("SELECT id FROM calls ORDER BY id")]


def test_a_row_tells_all_of_a_turn() -> None:
    async def story() -> None:
        async with rig(Script(DOWN, DONE), hints=Hints(idempotent=True), price=Price(call=0.25)) as it:
            await it.call(input={"a": 1}, context="ctx", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
            (row,) = await it.rows()
            expected = {
                "turn": 1,
                "principal": "alice",
                "agent": "target",
                "capability": "do",
                "route": "a:a.test",
                "door": "test",
                "entry": "start",
                "context": "ctx",
                "trace": "a" * 32,
                "status": "done",
                "code": None,
                "attempts": 2,
                "hops": 0,
                "cached": 0,
                "cost": 0.25,
                "bytes_in": 7,
                "bytes_out": 11,
            }
            assert {name: row[name] for name in expected} == expected
            assert row["job"] == row["id"]
            assert 0 <= row["seconds"] < 5

    run(story())


def test_a_call_without_a_trace_lends_it_its_own_id() -> None:
    call = Call(id="c" * 32, principal=CLIENT, agent="a", capability="b")
    assert trace_id(call) == "c" * 32
    broken = Call(id="c" * 32, principal=CLIENT, agent="a", capability="b", traceparent="nonsense")
    assert trace_id(broken) == "c" * 32


@pytest.mark.parametrize(
    ("given", "price", "tokens", "cost", "estimated"),
    [
        (None, Price(), 4, 0.0, True),
        (None, Price(call=1.0, tokens=2.0), 4, 1.008, True),
        (Usage(tokens=500), Price(tokens=2.0), 500, 1.0, False),
        (Usage(tokens=500, cost=0.7), Price(call=9.0), 500, 0.7, False),
    ],
)
def test_tokens_and_cost_are_counted_or_estimated(
    given: Usage | None, price: Price, tokens: int, cost: float, estimated: bool
) -> None:
    async def story() -> None:
        async with rig(Script(Done((Part(text="x" * 10),), usage=given)), price=price) as it:
            outcome = await it.call(input={"a": 1})
            assert isinstance(outcome, Done)
            assert outcome.usage == Usage(tokens, cost, estimated)
            (row,) = await it.rows()
            assert (row["tokens"], row["cost"]) == (tokens, pytest.approx(cost))

    run(story())


def test_what_was_not_sent_or_came_from_the_cache_costs_nothing() -> None:
    async def story() -> None:
        async with rig(Script(), hints=Hints(read_only=True), cache_ttl=60.0, price=Price(call=1.0)) as it:
            await it.call()
            await it.call()
            rows = sorted(await it.rows(), key=lambda row: row["cached"])
            assert [(row["cached"], row["cost"], row["attempts"]) for row in rows] == [(0, 1.0, 1), (1, 0.0, 0)]
            assert 'agent3_cost_usd_total{agent="target"} 1.0' in it.metrics.render()[0].decode()
        refusing = Settings(calls=QUICK, limits=Limits(per_minute=0), rules=(Rule("deny"),))
        async with rig(Script(), settings=refusing, price=Price(call=1.0)) as it:
            await it.call(input={"long": "x" * 1000})
            (row,) = await it.rows()
            assert (row["status"], row["tokens"], row["cost"]) == ("denied", 0, 0.0)

    run(story())


def test_a_durable_row_is_on_disk_before_the_answer(url: str) -> None:
    async def story() -> None:
        async with rig(Script(DONE, DOWN, Needs((Question("q", "?"),))), url=url) as it:
            for number in (1, 2, 3):
                await it.call(retries=0)
                assert len(await it.database.all("SELECT id FROM calls")) == number

    run(story())


def test_batched_rows_come_by_themselves_and_refusals_at_once() -> None:
    schema = {"type": "object", "required": ["x"]}

    async def story() -> None:
        async with rig(Script(), calls=BATCHED, input_schema=schema) as it:
            refused = await it.call(input={})
            assert isinstance(refused, Failed)
            assert len(await stored(it.database)) == 1, "a refusal is durable also when the rest is batched"
            await it.call(input={"x": 1})
            async with asyncio.timeout(60):
                while len(await stored(it.database)) < 2:  # nobody asks for it
                    await asyncio.sleep(0.001)

    run(story())


def test_callers_that_never_pause_do_not_keep_rows_from_the_disk() -> None:
    async def story(database: Database) -> None:
        moody = Moody(database)
        book = Ledger(moody, "batched", REAL, Metrics())
        started = REAL.monotonic()
        number = 0
        while not moody.asked:
            await book.write(a_row(number), refusal=False)
            number += 1
            assert REAL.monotonic() - started < 60, "the flusher never got its turn"
        await book.aclose()
        assert len(await stored(database)) == number

    using(":memory:", story)


def test_rows_that_come_again_are_there_once(url: str) -> None:
    async def story(database: Database) -> None:
        book = Ledger(database, "batched", REAL, Metrics())
        for number in (*range(253), *range(100, 140)):  # a row whose fate was not heard of comes again
            await book.write(a_row(number), refusal=False)
        await book.aclose()
        assert await stored(database) == [f"{number:032}" for number in range(253)]

    using(url, story)


def test_a_failing_disk_loses_no_batched_row() -> None:
    async def story(database: Database) -> None:
        moody = Moody(database)
        book = Ledger(moody, "batched", REAL, Metrics())
        moody.broken = True
        for number in range(5):
            await book.write(a_row(number), refusal=False)
        await until(lambda: moody.asked > 0)
        with pytest.raises(StorageError):
            await book.flush()
        await book.write(a_row(5), refusal=False)
        moody.broken = False
        await book.flush()
        assert len(await stored(database)) == 6
        await book.aclose()

    using(":memory:", story)


def test_a_failing_disk_is_told_and_the_row_follows_when_it_is_back() -> None:
    async def story() -> None:
        moody: list[Moody] = []

        def wrap(database: Database) -> Database:
            moody.append(Moody(database))
            return moody[0]

        async with rig(Script(), wrap=wrap) as it:
            moody[0].broken = True
            with pytest.raises(StorageError):
                await it.call()
            moody[0].broken = False
            assert [row["status"] for row in await it.rows()] == ["done"], "what happened is recorded all the same"

    run(story())


def test_closing_gives_up_on_a_disk_that_stays_broken() -> None:
    async def story(database: Database) -> None:
        moody = Moody(database)
        metrics = Metrics()
        book = Ledger(moody, "batched", REAL, metrics)
        moody.broken = True
        await book.write(a_row(1), refusal=False)
        await until(lambda: moody.asked > 0)
        await asyncio.wait_for(book.aclose(), 60)
        assert 'agent3_events_dropped_total{reason="ledger row"} 1.0' in metrics.render()[0].decode()

    using(":memory:", story)


def test_flushing_waits_for_what_is_just_being_written() -> None:
    async def story(database: Database) -> None:
        moody = Moody(database)
        book = Ledger(moody, "batched", REAL, Metrics())
        moody.gate.clear()
        await book.write(a_row(1), refusal=False)
        await until(lambda: moody.asked > 0)
        flushing = asyncio.create_task(book.flush())
        await asyncio.sleep(0.01)
        assert not flushing.done()
        moody.gate.set()
        await asyncio.wait_for(flushing, 60)
        assert len(await stored(database)) == 1
        await book.aclose()

    using(":memory:", story)


def test_callers_wait_when_the_disk_cannot_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.calls.steps.ledger._BACKLOG", 10)

    async def story(database: Database) -> None:
        moody = Moody(database)
        book = Ledger(moody, "batched", REAL, Metrics())
        moody.gate.clear()
        await book.write(a_row(0), refusal=False)
        await until(lambda: moody.asked > 0)  # that row is on its way: the backlog is empty
        for number in range(1, 11):
            await book.write(a_row(number), refusal=False)
        waiting = asyncio.create_task(book.write(a_row(11), refusal=False))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        moody.gate.set()
        await asyncio.wait_for(waiting, 60)
        await book.aclose()
        assert len(await stored(database)) == 12

    using(":memory:", story)


def test_a_cancelled_caller_is_recorded_in_every_mode() -> None:
    async def story() -> None:
        for calls in (QUICK, BATCHED):
            target = Script(hang)
            async with rig(target, calls=calls) as it:
                calling = asyncio.create_task(it.call())
                await until(lambda reached=target.calls: bool(reached))  # type: ignore[misc]
                calling.cancel()
                await asyncio.wait([calling])
                assert [(row["status"], row["code"]) for row in await it.rows()] == [("canceled", "canceled")]

    run(story())


def test_a_caller_cancelled_while_its_row_is_written_is_recorded_once() -> None:
    async def story() -> None:
        moody: list[Moody] = []

        def wrap(database: Database) -> Database:
            moody.append(Moody(database))
            return moody[0]

        async with rig(Script(), wrap=wrap) as it:
            moody[0].gate.clear()
            calling = asyncio.create_task(it.call())
            await until(lambda: moody[0].asked > 0)
            calling.cancel()
            await asyncio.wait([calling])
            moody[0].gate.set()
            assert [row["status"] for row in await it.rows()] == ["done"]

    run(story())


def test_hostile_input_is_refused_and_recorded() -> None:
    async def story() -> None:
        deep: list[Any] = []
        for _ in range(50_000):
            deep = [deep]
        for hostile in (deep, {"a": object()}, {"a": "\ud800"}):
            async with rig(Script()) as it:
                outcome = await it.call(input=hostile)
                assert isinstance(outcome, Failed)
                assert [row["status"] for row in await it.rows()] == ["refused"]

    run(story())


def test_a_step_that_fails_is_an_internal_error_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with rig(Script()) as it:
            it.core.access.narrow = lambda *given: 1 / 0  # type: ignore[assignment, method-assign]
            outcome = await it.call()
            assert isinstance(outcome, Failed)
            assert outcome.code == "internal"
            assert "division" not in outcome.message
            assert [row["code"] for row in await it.rows()] == ["internal"]

    run(story())


def test_storage_that_fails_in_a_step_is_named_as_such_in_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with rig(Script(Done((Part(text="x" * 100_000),)))) as it:
            await it.database.write(lambda tx: tx.run("DROP TABLE artifacts"))
            outcome = await it.call()
            assert isinstance(outcome, Failed)
            assert outcome.code == "storage_failed"

    with caplog.at_level("INFO", logger="agent3"):
        run(story())
    (line,) = (one for one in caplog.records if one.name == "agent3.ledger")
    assert (line.levelname, line.__dict__["code"]) == ("INFO", "storage_failed")


def test_the_statuses_of_the_ledger() -> None:
    async def refuses(call: Call) -> Outcome:
        return Failed("invalid_input", "no")

    async def story() -> None:
        cases: list[tuple[Any, str]] = [
            (DONE, "done"),
            (DOWN, "failed"),
            (Failed("canceled", "x"), "canceled"),
            (refuses, "failed"),
            (Needs((Question("q", "?"),)), "needs"),
        ]
        for answer, status in cases:
            async with rig(Script(answer)) as it:
                await it.call(retries=0)
                assert [row["status"] for row in await it.rows()] == [status]
        async with rig(Script(DONE), input_schema={"type": "object", "required": ["x"]}) as it:
            await it.call()
            assert [row["status"] for row in await it.rows()] == ["refused"]

    run(story())


@pytest.mark.parametrize("mode", ["durable", "batched"])
def test_a_hostile_context_cannot_keep_its_call_out_of_the_ledger(mode: Any, url: str) -> None:
    async def story() -> None:
        async with rig(Script(DONE), url=url, calls=Calls(ledger=mode)) as it:
            for context in ("a\x00b", "fine", "\ud800"):
                await it.call(context=context)
            assert [row["context"] for row in await it.rows()] == ["a\ufffdb", "fine", "?"]

    run(story())


def test_a_storage_error_of_the_ledger_carries_what_had_come_of_the_call() -> None:
    class Broken:
        def __init__(self, inner: Any):
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def many(self, sql: str, rows: Any) -> None:
            raise StorageError("the disk is gone")

    async def story() -> None:
        async with rig(Script(DONE), wrap=Broken) as it:
            with pytest.raises(StorageError) as failed:
                await it.call()
            assert isinstance(failed.value.outcome, Done)

    run(story())


def test_log_lines_of_a_call_carry_its_ids() -> None:
    seen: list[logs.Ids] = []

    async def notes(call: Call) -> Outcome:
        seen.append(logs.current())
        return DONE

    async def story() -> None:
        async with rig(Script(notes)) as it:
            call = it.a_call(context="talk")
            await it.runner.start(call, (it.agent, it.capability))
            assert seen == [logs.Ids(call.id, None, "talk", call.id)]
            assert logs.current() == logs.Ids()

    run(story())


def test_events_and_outcome_of_a_cached_answer() -> None:
    """What was emitted once is not emitted again, but the result is whole."""
    heard: list[Event] = []

    async def emits(call: Call) -> Outcome:
        call.emit(Event("artifact", artifact="result", parts=(Part(text="x"),)))
        return DONE

    async def story() -> None:
        async with rig(Script(emits), hints=Hints(read_only=True), cache_ttl=5.0) as it:
            for _ in range(2):
                outcome = await it.runner.start(it.a_call(), (it.agent, it.capability), listener=heard.append)
                assert isinstance(outcome, Done)
                assert outcome.parts == DONE.parts
            assert len(heard) == 1

    run(story())


def test_seconds_and_time_come_from_the_world() -> None:
    world = SeededEnv(time=1_000.0)

    async def slow(call: Call) -> Outcome:
        world.advance(2.5)
        return DONE

    async def story() -> None:
        async with rig(Script(slow), env=world) as it:
            await it.call()
            (row,) = await it.rows()
            assert (row["at"], row["seconds"]) == (1_000.0, 2.5)

    run(story())
