"""What happens when one of several gateways goes: killed, silent, or stopped in good order."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from msgspec.structs import replace

from agent3.connections import Pool
from agent3.env import SeededEnv
from agent3.errors import StorageError
from agent3.model import Done, Failed
from agent3.protocols.functions import LocalAgent
from agent3.protocols.functions.functions import Context
from agent3.server.build import build
from agent3.server.readiness import LONGEST, Readiness
from agent3.server.run import _Uvicorn
from agent3.storage import Database, open_database
from agent3.storage.leases import Leases
from tests.support.home import CLIENT, QUIET, home, job_of, run, until
from tests.support.machines import eventually, machines, start
from tests.support.postgres import new_database_url
from tests.support.storage import using


@pytest.fixture(params=["sqlite-file", pytest.param("postgres", marks=pytest.mark.postgres)])
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_database_url() if request.param == "postgres" else f"sqlite:///{tmp_path}/core.db"


class Worker(NamedTuple):
    agent: LocalAgent
    go: asyncio.Event
    recorded: list[str]
    """What of it is in the database, and therefore is not done again."""


def worker(done: list[str]) -> Worker:
    """An agent whose work goes on when the event is set; what it did is in the list."""
    agent, go, recorded = LocalAgent("worker"), asyncio.Event(), list[str]()

    async def work(ctx: Context) -> str:
        """Two steps, each done once."""
        await ctx.once("first", lambda: done.append("first"))
        recorded.append("first")
        await go.wait()
        await ctx.once("second", lambda: done.append("second"))
        return "worked"

    agent.add(work, name="again", replay=True)
    agent.add(work, name="once_only")
    return Worker(agent, go, recorded)


async def expire(database: Database) -> None:
    """Every lease is over, as the database's clock sees it."""
    await database.many("UPDATE jobs SET lease = lease - ?", [(1_000.0,)])


# Killed


@pytest.mark.requirement("RF-013-36")
def test_jobs_of_a_killed_gateway_are_taken_over_by_the_other(lasting_url: str, tmp_path: Path) -> None:
    with machines(tmp_path, lasting_url) as pair:
        here, there = pair.door(0), pair.door(1)
        ended = start(here, "echo", text="before")
        replayed = start(here, "steps", name="r", seconds=2.0)
        unrepeated = start(here, "slow", name="u", seconds=90.0)
        waiting = start(here, "choose_again", name="q")
        before = here.get(f"/v1/calls/{ended}?wait=15").json
        eventually(lambda: len([1 for _, what in pair.diary() if what.startswith("step")]) >= 3)
        pair.gateways[0].stop(signal.SIGKILL)
        for job in (replayed, unrepeated):
            eventually(lambda job=job: there.get(f"/v1/calls/{job}?wait=5").json["status"] != "working", 90)  # type: ignore[misc]
        assert there.get(f"/v1/calls/{replayed}").json["result"] == "r"
        assert there.get(f"/v1/calls/{unrepeated}").json["errorCode"] == "interrupted"
        assert there.get(f"/v1/calls/{ended}").json == before, "what has ended never changes"
        assert there.post(f"/v1/calls/{waiting}/answer", {"message": "a"}).json["status"] == "needs"
        steps = [what for _, what in pair.diary() if what.startswith("step")]
        assert len(set(steps)) == 10
        assert len(steps) <= 11, "only the step that the kill struck may have been done again"


# Silent


def test_what_a_silent_process_writes_late_is_refused(lasting_url: str) -> None:
    async def story() -> None:
        done: list[str] = []
        one, other = worker(done), worker(done)
        async with home(one[0], url=lasting_url) as here, home(other[0], url=lasting_url) as there:
            jobs = [job_of(await here.call(name, {}, detach=True)) for name in ("again", "once_only")]
            await until(lambda: one.recorded == ["first", "first"], 60)
            await expire(here.core.database)
            assert await there.runner.recover() == 2
            other[1].set()
            assert isinstance(await there.runner.wait(CLIENT, jobs[0], 60), Done)
            before = [await there.runner.get(CLIENT, job) for job in jobs]
            one[1].set()  # the silent one wakes up and wants to go on
            await until(lambda: not here.runner.tasks, 60)
            assert [await there.runner.get(CLIENT, job) for job in jobs] == before
            assert isinstance(before[1].outcome, Failed)
            assert before[1].outcome.code == "interrupted"
            assert done.count("first") == 2, "the checkpoint of the silent one held"

    run(story(), 100)


def test_a_job_of_a_silent_process_can_be_cancelled(lasting_url: str) -> None:
    async def story() -> None:
        one, other = worker([]), worker([])
        async with home(one[0], url=lasting_url) as here, home(other[0], url=lasting_url) as there:
            job = job_of(await here.call("again", {}, detach=True))
            there.runner.takeover.start(0.05, trust_after=0.0)
            cancelling = asyncio.create_task(there.runner.cancel(CLIENT, job))
            await asyncio.sleep(0.2)
            assert not cancelling.done(), "it has been asked, and its lease is not over"
            await expire(here.core.database)
            outcome = await asyncio.wait_for(cancelling, 60)
            assert isinstance(outcome, Failed)
            assert outcome.code == "canceled"

    run(story(), 100)


def test_who_could_not_say_that_it_lives_does_not_take_from_the_others(lasting_url: str) -> None:
    async def story() -> None:
        one, other = worker([]), worker([])
        async with home(one[0], url=lasting_url) as here, home(other[0], url=lasting_url) as there:
            job_of(await here.call("again", {}, detach=True))
            await expire(here.core.database)

            async def broken(*_: Any) -> list[str]:
                raise StorageError("The database is away.")

            there.runner.takeover._leases.take = broken  # type: ignore[union-attr, method-assign]
            with pytest.raises(StorageError):
                await there.runner.takeover._round()
            assert await there.runner.recover() == 0, "the others were cut off as well, and live"
            one[1].set()

    run(story(), 100)


def test_who_has_just_started_does_not_take_silent_processes_for_gone(lasting_url: str) -> None:
    """The database has just come back, perhaps, and the others have yet to renew their leases."""

    async def story() -> None:
        one, other = worker([]), worker([])
        async with home(one[0], url=lasting_url) as here, home(other[0], url=lasting_url) as there:
            job = job_of(await here.call("once_only", {}, detach=True))
            await until(lambda: one.recorded == ["first"], 60)
            await expire(here.core.database)
            assert await there.runner.takeover.recover(silent=False) == 0
            there.runner.takeover.start(1_000.0)
            assert await there.runner.recover() == 0
            one[1].set()
            assert isinstance(await there.runner.wait(CLIENT, job, 60), Done)

    run(story(), 100)


def test_who_could_renew_its_leases_only_late_does_not_take_from_the_others(lasting_url: str) -> None:
    """A database that stood still for a while answers all at once, and some hear it later than others."""

    async def story() -> None:
        one, other = worker([]), worker([])
        async with home(one[0], url=lasting_url) as here, home(other[0], url=lasting_url) as there:
            job_of(await here.call("again", {}, detach=True))
            takeover, env = there.runner.takeover, SeededEnv(seed=1)
            takeover._env = env
            await takeover._round()
            take = takeover._leases.take  # type: ignore[union-attr]

            async def slow(*given: Any) -> bool:
                env.advance(12.0)
                return await take(*given)

            takeover._leases.take = slow  # type: ignore[union-attr, method-assign]
            await expire(here.core.database)
            await takeover._round()
            assert not there.runner.tasks
            assert await there.runner.recover() == 0, "the others stood still as well, and live"
            env.advance(20.0)
            assert await there.runner.recover() == 1, "by now they had time to say that they live"
            one[1].set()
            other[1].set()

    run(story(), 100)


def test_a_duty_that_the_database_fails_is_told_once_and_again_when_it_works(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        monkeypatch.setattr("agent3.calls.takeover._AGAIN", 0.001)
        tries, over = itertools.count(), asyncio.Event()

        async def work() -> None:
            number = next(tries)
            if number == 5:
                over.set()
            if number < 4:
                raise StorageError("The database is away.")

        async with home(worker([]).agent) as here:
            here.runner.takeover._repeat(work, 0.001, "looking")
            await asyncio.wait_for(over.wait(), 60)

    run(story(), 100)
    lines = [record for record in caplog.records if "looking" in record.getMessage()]
    assert [line.getMessage() for line in lines] == [
        "the duty 'looking' failed, and is tried until it works: The database is away.",
        "the duty 'looking' works again",
    ]
    assert not any(line.exc_info for line in lines)


# In good order


def test_who_leaves_is_followed_at_once(lasting_url: str) -> None:
    async def story() -> None:
        done: list[str] = []
        one, other = worker(done), worker(done)
        async with home(other[0], url=lasting_url) as there:
            there.runner.takeover.start()
            async with home(one[0], url=lasting_url) as here:
                job = job_of(await here.call("again", {}, detach=True))
                await until(lambda: one.recorded == ["first"], 60)
                # Its lease lasts for hours, so that the other can take the job only because this one gave it up.
                await here.core.database.many("UPDATE jobs SET lease = lease + ?", [(10_000.0,)])
            other[1].set()
            assert isinstance(await there.runner.wait(CLIENT, job, 60), Done)
            assert done == ["first", "second"]

    run(story(), 100)


@contextmanager
def a_gateway(tmp_path: Path) -> Iterator[Any]:
    with machines(tmp_path, f"sqlite:///{tmp_path}/core.db", many=1) as alone:
        yield alone.gateways[0]


def test_a_gateway_that_nobody_watches_stops_at_once(tmp_path: Path) -> None:
    with a_gateway(tmp_path) as process:
        assert process.get("/readyz").status == 200
        os.kill(process.process.pid, signal.SIGTERM)
        assert process.process.wait(60) == 0


def test_a_gateway_that_is_watched_says_first_that_it_stops(tmp_path: Path) -> None:
    with a_gateway(tmp_path) as process:
        for pause in (2.0, 0.0, 0.0, 0.0):  # so it waits for twice two seconds, until those who ask have heard it
            assert process.get("/readyz").status == 200
            time.sleep(pause)
        os.kill(process.process.pid, signal.SIGTERM)
        eventually(lambda: process.get("/readyz").status == 503)
        assert process.process.wait(60) == 0


def test_twice_the_longest_pause_of_those_who_ask_is_waited_for() -> None:
    world = SeededEnv()
    readiness = Readiness(world)
    for pause in (1.0, 2.0, 1.0, 1.0):
        readiness.note_probe()
        world.advance(pause)
    assert not readiness.is_noticed(), "it does not stop yet"
    readiness.stop()
    assert not readiness.is_noticed()
    world.advance(1.0)
    readiness.note_probe()
    world.advance(2.5)
    assert not readiness.is_noticed(), "another who asks every two seconds may not know it"
    world.advance(1.0)
    assert readiness.is_noticed()


@pytest.mark.parametrize(("asked", "seconds"), [(0, 0.0), (1, 0.0), (2, 0.0), (20, LONGEST)])
def test_nobody_is_waited_for_for_ever(asked: int, seconds: float) -> None:
    world = SeededEnv()
    readiness = Readiness(world)
    for _ in range(asked):
        readiness.note_probe()
        world.advance(9.0)
    readiness.stop()
    waited = next(step for step in itertools.count() if readiness.is_noticed() or world.advance(0.5)) * 0.5  # type: ignore[func-returns-value]
    assert waited == seconds


# Duties


def test_a_duty_is_one_process_s_until_it_leaves_or_is_silent(lasting_url: str) -> None:
    async def story(database: Database) -> None:
        one, two = Leases(database, "one"), Leases(database, "two")
        assert await one.take("sweep", 60)
        assert not await two.take("sweep", 60)
        assert await one.take("sweep", 60), "taken again, it is prolonged"
        assert await two.take("another", 60)
        await database.many("UPDATE leases SET until = until - ?", [(61.0,)])
        assert await two.take("sweep", 60)
        assert not await one.take("sweep", 60)
        await two.leave()
        assert await one.take("sweep", 60)
        await database.many("UPDATE leases SET until = until - ?", [(100_000.0,)])
        assert await one.expire() == 1

    using(lasting_url, story)


def test_of_several_processes_one_sweeps(lasting_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Leases.take

    async def story() -> None:
        async with home(url=lasting_url) as here, home(url=lasting_url) as there:
            swept: list[str] = []
            asked: list[str] = []

            def counting(name: str) -> Any:
                async def sweep() -> dict[str, int]:
                    swept.append(name)
                    return {}

                return sweep

            async def take_for_long(self: Leases, name: str, seconds: float) -> bool:
                """The duty outlasts the test, however slow the machine is: only its holder may sweep."""
                asked.append(self._holder)
                return await take(self, name, 3_600.0)

            monkeypatch.setattr(Leases, "take", take_for_long)
            for name, core in (("here", here), ("there", there)):
                core.runner.takeover._sweep = counting(name)
                core.runner.takeover.start(60, 0.01)
            await until(lambda: len(swept) >= 4 and min(map(asked.count, set(asked))) >= 4 and len(set(asked)) == 2, 60)
            assert len(set(swept)) == 1, swept

    run(story(), 100)


def test_two_open_one_new_database_at_the_same_time(lasting_url: str) -> None:
    async def story() -> None:
        opened = await asyncio.gather(*(open_database(lasting_url) for _ in range(3)))
        for one in opened:
            await one.aclose()

    run(story(), 100)


def test_requests_and_jobs_have_the_same_time_to_finish_and_not_one_after_the_other() -> None:
    hours = replace(QUIET, server=replace(QUIET.server, shutdown_seconds=10_000.0))

    async def story() -> None:
        one = worker([])
        async with home(one.agent, settings=hours) as here:
            job = job_of(await here.call("again", {}, detach=True))
            await until(lambda: one.recorded == ["first"], 60)
            here.core.begin_leaving()
            assert here.core._leaves_at is not None
            here.core._leaves_at -= 10_000.0  # so long did the requests take
            await asyncio.wait_for(here.core.aclose(), 60)
            left = await here.core.database.one("SELECT status, node FROM jobs WHERE id = ?", job)
            assert left is not None
            assert (left["status"], left["node"]) == ("working", None)

    run(story(), 100)


def test_the_time_that_jobs_have_begins_when_a_server_waits_for_its_requests(tmp_path: Path) -> None:
    async def story() -> None:
        settings = replace(QUIET, storage=replace(QUIET.storage, url=f"sqlite:///{tmp_path}/core.db"))
        async with build(settings) as server:
            assert server.core._leaves_at is None
            http = _Uvicorn(uvicorn.Config(lambda: None), server, Pool())
            http.servers, http.lifespan = [], Quiet()
            await http.shutdown()
            assert server.core._leaves_at is not None

    run(story(), 100)


class Quiet:
    async def shutdown(self) -> None:
        """Nothing was started."""
