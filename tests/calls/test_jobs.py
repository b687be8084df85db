"""Jobs on every database: idempotency, turns, the event log, fencing, and what survives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from agent3.calls.jobs import LEASE, Job, Jobs
from agent3.env import REAL, Env, SeededEnv
from agent3.errors import Conflict, Corrupt, JobNotFound, TurnTaken, ValidationError
from agent3.model import (
    Answer,
    Call,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Route,
    Working,
    encode,
)
from agent3.observe.metrics import Metrics
from agent3.storage import Database, Transaction, open_database
from tests.support.home import run
from tests.support.storage import using

ALICE, BOB = Principal("alice"), Principal("bob")
ROUTE = Route("local", "target", "do")
DONE = Done((Part(text="yes"),))
ASK = Needs((Question("q1", "Which?", {"type": "string"}),), state={"at": 1})


def a_call(principal: Principal = ALICE, **more: Any) -> Call:
    return Call(**{"id": REAL.id(), "principal": principal, "agent": "target", "capability": "do", "input": {}, **more})


def on(url: str, story: Callable[[Jobs, Database], Awaitable[None]], env: Env = REAL) -> None:
    async def told(database: Database) -> None:
        await story(Jobs(database, env), database)

    using(url, told)


def test_one_key_opens_one_job_however_many_ask_at_once(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        opened = await asyncio.gather(*(jobs.open(a_call(key="k", input={"a": 1})) for _ in range(20)))
        assert sum(new for _, new in opened) == 1
        assert len({job.id for job, _ in opened}) == 1
        _, other = await jobs.open(a_call(BOB, key="k", input={"a": 1}))
        assert other, "a key belongs to its owner"

    on(url, story)


def test_one_key_with_another_body_is_a_conflict(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        await jobs.open(a_call(key="k", input={"a": 1, "b": 2}))
        _, new = await jobs.open(a_call(key="k", input={"b": 2, "a": 1}))
        assert not new, "the order of keys is no difference"
        others: tuple[dict[str, Any], ...] = (
            {"input": {"a": 2}},
            {"capability": "else"},
            {"agent": "x"},
            {"parts": (Part(text="hi"),)},
        )
        for other in others:
            with pytest.raises(Conflict, match="different call"):
                await jobs.open(a_call(key="k", **{"input": {"a": 1, "b": 2}, **other}))

    on(url, story)


REFUSED = Failed("rate_limited", "later")
UNSENT = Failed("unavailable", "down", sent=False)


@pytest.mark.parametrize(("refusal", "attempted"), [(REFUSED, False), (UNSENT, True)])
def test_a_call_that_never_ran_gives_its_key_back(url: str, refusal: Failed, attempted: bool) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        first, _ = await jobs.open(a_call(key="k"))
        await jobs.end_turn(first, refusal, None, attempted=attempted)
        second, new = await jobs.open(a_call(key="k"))
        assert new
        await jobs.end_turn(second, Failed("unavailable", "perhaps it ran"), None)
        assert not (await jobs.open(a_call(key="k")))[1], "what may have run must not run again by its key"

    on(url, story)


@pytest.mark.parametrize("code", ["conflict", "rate_limited", "invalid_input", "blocked"])
def test_a_target_that_fails_with_the_code_of_a_refusal_keeps_the_key(url: str, code: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job, _ = await jobs.open(a_call(key="k"))
        await jobs.end_turn(job, Failed(code, "it ran, and failed so"), None, attempted=True)
        assert not (await jobs.open(a_call(key="k")))[1]

    on(url, story)


def test_what_an_earlier_turn_or_process_may_have_sent_keeps_the_key(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        asked, _ = await jobs.open(a_call(key="turn"))
        answered = await jobs.claim(await jobs.end_turn(asked, ASK, ROUTE))
        await jobs.end_turn(answered, UNSENT, ROUTE)
        seized = await jobs.take_over((await jobs.open(a_call(key="process")))[0])
        assert seized is not None
        await jobs.end_turn(seized, REFUSED, ROUTE, attempted=False)
        for key in ("turn", "process"):
            assert not (await jobs.open(a_call(key=key)))[1]

    on(url, story)


def test_a_refused_job_is_kept_only_briefly(url: str) -> None:
    world = SeededEnv()

    async def story(jobs: Jobs, database: Database) -> None:
        refused, _ = await jobs.open(a_call())
        await jobs.end_turn(refused, REFUSED, None, attempted=False)
        failed, _ = await jobs.open(a_call())
        await jobs.end_turn(failed, REFUSED, None, attempted=True)
        assert (await jobs.get("alice", refused.id)).outcome == REFUSED
        world.advance(3_601)
        assert await jobs.expire() == 1
        assert [one.id for one in await jobs.list_latest("alice")] == [failed.id]

    on(url, story, world)


def test_input_without_a_json_form_cannot_be_a_job() -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        deep: list[Any] = []
        deep.append(deep)
        for key in (None, "k"):
            for bad in (object(), deep, "\ud800"):
                with pytest.raises(ValidationError, match="cannot be stored"):
                    await jobs.open(a_call(key=key, input={"a": bad}))

    on(":memory:", story)


def test_what_is_not_yours_is_not_there(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job, _ = await jobs.open(a_call())
        await database.many("INSERT INTO job_aliases (owner, alias, job) VALUES (?, ?, ?)", [("alice", "mine", job.id)])
        assert (await jobs.get("alice", job.id)).id == (await jobs.get("alice", "mine")).id == job.id
        for name in (job.id, "mine", "nothing"):
            with pytest.raises(JobNotFound):
                await jobs.get("bob", name)
            with pytest.raises(JobNotFound):
                await jobs.wait("bob", name, 0.1)
            with pytest.raises(JobNotFound):
                await anext(jobs.follow("bob", name))
        assert [one.id for one in await jobs.list_latest("alice")] == [job.id]
        assert await jobs.list_latest("bob") == []

    on(url, story)


def test_of_two_answers_at_once_one_wins(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job = await jobs.open_with_outcome(a_call(), ASK, ROUTE)
        assert (job.status, job.turn, job.state, job.questions) == ("needs", 1, {"at": 1}, ASK.questions)
        claims = [jobs.claim(job, {"q1": Answer("accept", number)}) for number in range(5)]
        results = await asyncio.gather(*claims, return_exceptions=True)
        (won,) = [one for one in results if isinstance(one, Job)]
        assert sum(isinstance(one, TurnTaken) for one in results) == 4
        assert (won.turn, won.status) == (2, "working")
        assert (await jobs.get("alice", job.id)).answers == won.answers

    on(url, story)


ENDS: list[Outcome] = [DONE, Failed("target_failed", "no"), Failed("canceled", "stopped")]


@pytest.mark.parametrize("end", ENDS, ids=["done", "failed", "canceled"])
def test_an_ended_job_never_changes(url: str, end: Outcome) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        working, _ = await jobs.open(a_call())
        await jobs.append(working, [Event("status", text="on it", seq=1, turn=1)])
        await jobs.end_turn(working, end, ROUTE, written=1)
        before = [dict(row) for row in await database.all("SELECT * FROM jobs")]
        log = [line.event for line in await jobs.log.read(working.id)]
        for change in (
            lambda: jobs.end_turn(working, DONE, ROUTE),
            lambda: jobs.append(working, [Event("status", text="late", seq=9)]),
            lambda: jobs.save_kept(working, {"a": 1}),
            lambda: jobs.claim(working),
        ):
            with pytest.raises(TurnTaken):
                await change()
        assert await jobs.take_over(working) is None
        await jobs.leases.renew([working.id])
        assert [dict(row) for row in await database.all("SELECT * FROM jobs")] == before
        assert [line.event for line in await jobs.log.read(working.id)] == log

    on(url, story)


def test_who_lost_a_job_can_no_longer_write_to_it(url: str) -> None:
    async def story(old: Jobs, database: Database) -> None:
        new = Jobs(database, REAL)
        job, _ = await old.open(a_call())
        await old.append(job, [Event("status", text="first", seq=1)])
        seized = await new.take_over(job)
        assert seized is not None
        assert seized.generation == job.generation + 1
        assert await old.take_over(job) is None, "a generation is taken once"
        for change in (
            lambda: old.append(job, [Event("status", text="late", seq=2)]),
            lambda: old.end_turn(job, DONE, ROUTE),
            lambda: old.save_kept(job, {"a": 1}),
        ):
            with pytest.raises(TurnTaken):
                await change()
        assert seized.seq > 1_000, "what the old process told but did not write must not get the numbers of new events"
        await new.end_turn(seized, DONE, ROUTE)
        assert [line.event.kind for line in await new.log.read(job.id)] == ["status", "turn"]

    on(url, story)


def test_a_job_in_every_state_survives_closing_and_opening(lasting_url: str) -> None:
    kept: dict[str, Job] = {}

    async def write(jobs: Jobs, database: Database) -> None:
        for end in (*ENDS, ASK, Working(state="ref", poll=2.0, text="elsewhere"), None):
            job, _ = await jobs.open(a_call(key=f"key {len(kept)}", context="c", parts=(Part(raw=b"\x00\xff"),)))
            await jobs.append(job, [Event("progress", done=1, total=2, seq=1, turn=1)])
            await jobs.save_kept(job, {"ref": [1, None, "ä"]})
            if end is not None:
                answers = {"q0": Answer("decline")}
                job = await jobs.end_turn(job, end, ROUTE, answers, (), {"ref": [1, None, "ä"]}, 1)
            kept[job.id] = await jobs.get("alice", job.id)

    async def read(jobs: Jobs, _: Database) -> None:
        assert len(kept) == 6
        for job in kept.values():
            assert await jobs.get("alice", job.id) == job
            assert job.kept == {"ref": [1, None, "ä"]}
            again, new = await jobs.open(a_call(key=job.key, parts=(Part(raw=b"\x00\xff"),)))
            assert (again.id, new) == (job.id, False)
            numbers = [line.event.seq for line in await jobs.log.read(job.id)]
            assert numbers == ([1, 2] if job.outcome is not None else [1])
        assert {job.status for job in kept.values()} == {"done", "failed", "canceled", "needs", "working"}

    on(lasting_url, write)
    on(lasting_url, read)


def test_followers_lose_and_double_nothing_while_events_are_appended(url: str) -> None:
    most = 1_200

    async def story(jobs: Jobs, database: Database) -> None:
        job, _ = await jobs.open(a_call())
        elsewhere = Jobs(database, REAL)  # another process: it does not hear the bell and has to look

        async def append() -> None:
            number = 0
            while number < most:
                size = 1 + number % 100
                batch = [
                    Event("status", text=str(one), seq=one, turn=1) for one in range(number + 1, number + size + 1)
                ]
                await jobs.append(job, batch)
                number += size
                await asyncio.sleep(0)
            await jobs.end_turn(job, DONE, ROUTE, written=number)

        async def follow(store: Jobs, after: int) -> list[int]:
            return [event.seq async for event in store.follow("alice", job.id, after)]

        starts = [0, 0, 1, 57, 600]
        writing = asyncio.create_task(append())
        seen = await asyncio.gather(*(follow(jobs, after) for after in starts), follow(elsewhere, 0))
        await writing
        last = (await jobs.get("alice", job.id)).seq
        for after, numbers in zip([*starts, 0], seen, strict=True):
            assert numbers == list(range(after + 1, last + 1))
        assert not jobs._changes, "a follower left something behind"

    on(url, story)


def test_a_connectors_own_state_is_never_shown(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job, _ = await jobs.open(a_call())
        await jobs.append(job, [Event("state", data="remote-task-7", seq=1), Event("status", text="on it", seq=2)])
        await jobs.end_turn(job, Needs(ASK.questions, state="remote-task-7"), ROUTE, written=2)
        shown = [event async for event in jobs.follow("alice", job.id)]
        assert [event.kind for event in shown] == ["status", "turn"]
        assert "remote-task-7" not in repr(shown)
        assert (await jobs.get("alice", job.id)).state == "remote-task-7"

    on(url, story)


def test_waiting_ends_when_the_turn_does_or_the_time(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job, _ = await jobs.open(a_call())
        assert (await jobs.wait("alice", job.id, 0.02)).status == "working"
        waiting = [asyncio.create_task(one.wait("alice", job.id, 20)) for one in (jobs, Jobs(database, REAL))]
        await asyncio.sleep(0.01)
        await jobs.end_turn(job, DONE, ROUTE)
        assert [one.status for one in await asyncio.gather(*waiting)] == ["done", "done"]

    on(url, story)


def test_only_jobs_of_silent_or_dead_processes_are_abandoned(url: str) -> None:
    world = SeededEnv(seed=1)

    async def story(jobs: Jobs, database: Database) -> None:
        async def pass_time(seconds: float) -> None:
            """The clock of the database runs ahead, as far as leases can tell; that of this process counts nothing."""
            await database.many("UPDATE jobs SET lease = lease - ?", [(seconds,)])

        running, _ = await jobs.open(a_call())
        await jobs.open_with_outcome(a_call(), ASK, ROUTE)
        neighbour = Jobs(database, SeededEnv(seed=2, time=world.time + 1_000_000))
        assert await neighbour.leases.list_abandoned() == [], "it lives, in this very process"
        await pass_time(LEASE - 5)
        await jobs.leases.renew([running.id])
        await pass_time(LEASE - 5)
        assert await jobs.leases.list_abandoned() == []
        await pass_time(6)
        assert await jobs.leases.list_abandoned(silent=False) == []
        assert await jobs.leases.list_abandoned() == [running.id]
        await jobs.leases.renew([running.id])
        host, numbering, _, _ = jobs.node.split("/")
        await database.many("UPDATE jobs SET node = ?", [(f"{host}/{numbering}/4194999/x",)])
        assert await jobs.leases.list_abandoned() == [running.id], "no process has that number"
        assert await jobs.leases.find_abandoned(running.id) is not None
        for other in ("elsewhere/1/x", f"{host}/another boot or container/4194999/x", f"{host}//4194999/x"):
            await database.many("UPDATE jobs SET node = ? WHERE id = ?", [(other, running.id)])
            assert await jobs.leases.list_abandoned() == [], "where numbers mean something else, the lease decides"
            assert await jobs.leases.find_abandoned(running.id) is None

    on(url, story, world)


def test_who_leaves_gives_its_jobs_up_at_once(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job, _ = await jobs.open(a_call())
        await jobs.leases.release_all()
        assert await Jobs(database, REAL).leases.list_abandoned() == [job.id]
        left = await jobs.get("alice", job.id)
        assert left.lease == pytest.approx(REAL.now(), abs=10), "when it left is known to who has to judge how long ago"

    on(url, story)


def test_old_jobs_go_with_their_events_and_names(url: str) -> None:
    world = SeededEnv()

    async def story(jobs: Jobs, database: Database) -> None:
        working, _ = await jobs.open(a_call())
        done = await jobs.open_with_outcome(a_call(), ASK, ROUTE)
        await database.many("INSERT INTO job_aliases (owner, alias, job) VALUES (?, ?, ?)", [("alice", "a", done.id)])
        world.advance(7 * 86_400 - 1)
        assert await jobs.expire() == 0
        world.advance(2)
        assert await jobs.expire() == 1
        with pytest.raises(JobNotFound):
            await jobs.get("alice", done.id)
        assert await jobs.log.read(done.id) == []
        assert await database.all("SELECT * FROM job_aliases") == []
        assert (await jobs.get("alice", working.id)).status == "working", "what is worked on is never removed"
        assert await jobs.count_by_status() == {"working": 1}

    on(url, story, world)


def test_a_poll_without_news_is_no_event(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job = await jobs.open_with_outcome(a_call(), Working(state="ref", poll=0.0), ROUTE)
        for _ in range(3):
            taken = await jobs.take_over(job)
            assert taken is not None
            job = await jobs.end_turn(taken, Working(state="ref", poll=0.0), ROUTE)
        assert len(await jobs.log.read(job.id)) == 1
        taken = await jobs.take_over(job)
        assert taken is not None
        assert taken.seq < 100, "entering one's own job again leaves no gap"
        await jobs.end_turn(taken, Working(state="ref", text="half"), ROUTE)
        assert [line.event.data.get("text") for line in await jobs.log.read(job.id)] == [None, "half"]

    on(url, story)


def test_a_follower_that_stops_leaves_nothing_behind() -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job, _ = await jobs.open(a_call())
        await jobs.append(job, [Event("status", text="x", seq=1)])
        stream = jobs.follow("alice", job.id)
        assert (await anext(stream)).seq == 1
        await stream.aclose()  # type: ignore[attr-defined]
        assert not jobs._changes

    on(":memory:", story)


def test_two_cannot_hold_one_id() -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        call = a_call()
        await jobs.open(call)
        with pytest.raises(Conflict, match="already exists"):
            await jobs.open(call)
        with pytest.raises(Conflict, match="already exists"):
            await jobs.open_with_outcome(call, ASK, ROUTE)

    on(":memory:", story)


def test_nodes_of_one_process_are_told_apart() -> None:
    async def story() -> None:
        database = await open_database(":memory:")
        world = SeededEnv(seed=3)
        assert Jobs(database, world).node != Jobs(database, world).node
        await database.aclose()

    run(story())


def test_a_job_that_cannot_be_read_does_not_hide_the_others(url: str) -> None:
    async def story(_: Jobs, database: Database) -> None:
        metrics = Metrics()
        jobs = Jobs(database, REAL, metrics=metrics)
        good, _new = await jobs.open(a_call())
        bad, _new = await jobs.open(a_call())
        await database.many("UPDATE jobs SET call = ?, lease = 0 WHERE id = ?", [(b'{"id":1}', bad.id)])
        assert [one.id for one in await jobs.list_latest("alice")] == [good.id]
        assert await jobs.leases.list_abandoned() == [bad.id]
        assert await jobs.leases.find_abandoned(bad.id) is None
        with pytest.raises(Corrupt, match=bad.id):
            await jobs.get("alice", bad.id)
        assert 'agent3_events_dropped_total{reason="undecodable row"} 1.0' in metrics.render()[0].decode()

    on(url, story)


def test_an_event_that_cannot_be_read_leaves_a_note_in_its_place(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job, _ = await jobs.open(a_call())
        await jobs.append(job, [Event("status", text=str(number), seq=number, turn=1) for number in (1, 2, 3)])
        await database.many("UPDATE job_events SET body = ? WHERE seq = 2", [(b'{"kind":"of tomorrow"}',)])
        await jobs.end_turn(job, DONE, ROUTE, written=3)
        seen = [event async for event in jobs.follow("alice", job.id)]
        assert [(event.seq, event.kind) for event in seen] == [(1, "status"), (2, "log"), (3, "status"), (4, "turn")]

    on(url, story)


def test_abandoned_jobs_are_found_behind_any_number_of_healthy_ones(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        call = encode(a_call())
        healthy = [(f"live{number}", call, 1.0, REAL.now() + 900, jobs.node) for number in range(1_500)]
        await database.many(
            "INSERT INTO jobs (id, owner, status, turn, call, updated, lease, node) "
            "VALUES (?, 'alice', 'working', 1, ?, ?, ?, ?)",
            [*healthy, ("silent", call, 2.0, 0.0, "x/1/y"), ("left", call, 3.0, REAL.now() + 900, None)],
        )
        assert await jobs.leases.list_abandoned() == ["silent", "left"]

    on(url, story)


def test_a_heartbeat_tells_what_was_lost(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        mine, _ = await jobs.open(a_call())
        ended, _ = await jobs.open(a_call())
        await jobs.end_turn(ended, DONE, ROUTE)
        taken, _ = await jobs.open(a_call())
        assert await Jobs(database, REAL).take_over(taken) is not None
        others = [f"nobody knows {number}" for number in range(600)]
        lost = await jobs.leases.renew([mine.id, taken.id, ended.id, *others])
        assert lost == [taken.id, *others], "what ended here is not lost"

    on(url, story)


def test_many_old_jobs_go_in_small_transactions(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        await database.many(
            "INSERT INTO jobs (id, owner, status, turn, call, expires) VALUES (?, 'alice', 'done', 1, ?, ?)",
            [(f"old{number}", b"{}", float(number)) for number in range(250)],
        )
        assert await jobs.expire(most=140) == 150, "a round is bounded"
        assert await jobs.expire() == 100
        assert await jobs.expire() == 0

    on(url, story)


class Counting:
    """A database that remembers what was read."""

    def __init__(self, database: Database):
        self._database = database
        self.read: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def one(self, sql: str, *params: object) -> Any:
        self.read.append(sql)
        return await self._database.one(sql, *params)

    async def all(self, sql: str, *params: object) -> Any:
        self.read.append(sql)
        return await self._database.all(sql, *params)


def test_followers_of_a_silent_job_read_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    paused = asyncio.Event()

    async def pause(changed: asyncio.Event, seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 3:
            paused.set()
            await changed.wait()
        return False

    monkeypatch.setattr("agent3.calls.jobs.jobs.wait_until_set", pause)

    async def story(_: Jobs, database: Database) -> None:
        counting = Counting(database)
        here, there = Jobs(counting, REAL), Jobs(counting, REAL)
        job, _new = await here.open(a_call())

        async def follow(jobs: Jobs) -> tuple[list[float], list[str]]:
            pauses.clear()
            paused.clear()
            counting.read.clear()
            following = asyncio.ensure_future(anext(aiter(jobs.follow("alice", job.id))))
            await paused.wait()
            following.cancel()
            await asyncio.wait([following])
            return list(pauses), counting.read[-2:]

        progress = "SELECT status, seq, node FROM jobs WHERE id = ?"
        pauses_here, reads_here = await follow(here)
        assert min(pauses_here) >= 1.0, "it is woken by changes of its own jobs"
        pauses_there, reads_there = await follow(there)
        assert 0.05 <= min(pauses_there) < 1.0
        assert reads_here == reads_there == [progress, progress], "the log is read only when it has grown"

    on(":memory:", story)


def test_a_key_is_known_only_with_its_call(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        assert await jobs.find_by_key(a_call()) is None
        assert await jobs.find_by_key(a_call(key="k")) is None
        job, _ = await jobs.open(a_call(key="k"))
        assert await jobs.find_by_key(a_call(key="k")) == job
        assert await jobs.find_by_key(a_call(BOB, key="k")) is None
        with pytest.raises(Conflict, match="different call"):
            await jobs.find_by_key(a_call(key="k", input={"else": 1}))

    on(url, story)


def test_only_an_ended_job_gives_its_key_away_and_stays_as_it_was(url: str) -> None:
    async def story(jobs: Jobs, _: Database) -> None:
        job, _new = await jobs.open(a_call(key="k"))
        await jobs.release_key(job)
        assert await jobs.find_by_key(a_call(key="k")) == job, "it still runs"
        ended = await jobs.end_turn(job, Done(), None)
        await jobs.release_key(ended)
        after = await jobs.get(ALICE.id, job.id)
        assert msgspec.structs.replace(after, key="k") == ended
        again, new = await jobs.open(a_call(key="k"))
        assert (new, again.id == job.id) == (True, False)
        await jobs.release_key(ended)
        assert (await jobs.find_by_key(a_call(key="k"))) == again, "what the key stands for now is not its business"

    on(url, story)


def test_a_key_that_is_freed_while_it_is_looked_for_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(jobs: Jobs, _: Database) -> None:
        await jobs.open(a_call(key="k"))
        insert = Jobs._insert

        async def late(self: Jobs, tx: Transaction, *given: Any, **more: Any) -> Any:
            row = await insert(self, tx, *given, **more)
            await tx.run("UPDATE jobs SET key = NULL")  # as another does between two statements
            return row

        monkeypatch.setattr(Jobs, "_insert", late)
        _job, new = await jobs.open(a_call(key="k"))
        assert new

    on(":memory:", story)
