"""For how long things are kept, on every database."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent3.calls.artifacts import ArtifactStore
from agent3.calls.dead_letters import DeadLetters
from agent3.calls.jobs import Jobs
from agent3.calls.retention import Retention
from agent3.env import REAL, SeededEnv
from agent3.errors import NotFound
from agent3.model import Call, Capability, Done, Failed, Principal, Turn
from agent3.observe.metrics import Metrics
from agent3.settings import Calls, Settings
from agent3.storage import Blobs, Database
from tests.support.home import home, run
from tests.support.storage import using

DAY = 86_400.0


def a_call(owner: str = "alice") -> Call:
    return Call(id=REAL.id(), principal=Principal(owner), agent="target", capability="do")


async def aged(database: Database, table: str, world: SeededEnv, days: float, rows: int = 1) -> None:
    at = world.now() - days * DAY
    await database.many(f"INSERT INTO {table} (id, at) VALUES (?, ?)", [(REAL.id(), at) for _ in range(rows)])


async def count(database: Database, table: str) -> int:
    row = await database.one(f"SELECT COUNT(*) AS n FROM {table}")
    assert row is not None
    return int(row["n"])


def retention(database: Database, world: SeededEnv, blobs: Blobs, settings: Calls) -> Retention:
    jobs = Jobs(database, world, keep_days=settings.job_days)
    return Retention(database, jobs, ArtifactStore(database, blobs, world, settings.job_days), world, settings)


def test_what_is_past_its_time_goes_and_is_counted(url: str) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        keeping = retention(database, world, Blobs(None), Calls(ledger_days=90, dead_letter_days=30))
        await aged(database, "calls", world, 91, rows=1_201)
        await aged(database, "calls", world, 89)
        await aged(database, "dead_letters", world, 31)
        await aged(database, "dead_letters", world, 29)
        jobs = Jobs(database, world)
        job, _ = await jobs.open(a_call())
        await jobs.end_turn(job, Done(), None)
        removed = await keeping.sweep()
        assert {name: count for name, count in removed.items() if count} == {"ledger rows": 1_201, "dead letters": 1}
        assert (await count(database, "calls"), await count(database, "dead_letters")) == (1, 1)
        world.advance(8 * DAY)
        assert (await keeping.sweep())["jobs"] == 1
        assert await count(database, "job_events") == 0

    using(url, story)


def test_of_too_many_dead_letters_the_oldest_go_and_it_is_counted_and_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        metrics = Metrics()
        letters = DeadLetters(database, world, 3, metrics)
        for number in range(5):
            world.advance(1.0)
            await letters.bury(
                replace(a_call(), live=Turn(None, Capability(name="do"))), Failed("unavailable", f"{number}")
            )
        assert [letter.message for letter in await letters.latest()] == ["4", "3", "2"]
        assert b'agent3_dead_letters_dropped_total{place="calls"} 2.0' in metrics.render()[0]
        assert "oldest dead letters of calls; 3 are kept" in caplog.text
        many = DeadLetters(database, world, 0, metrics)
        await many.bury(replace(a_call(), live=Turn(None, Capability(name="do"))), Failed("unavailable", "5"))
        assert len(await many.latest()) == 4

    using(url, story)


def test_no_days_keep_for_ever() -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        keeping = retention(database, world, Blobs(None), Calls(ledger_days=0, dead_letter_days=0))
        await aged(database, "calls", world, 4_000)
        await aged(database, "dead_letters", world, 4_000)
        assert not any((await keeping.sweep()).values())

    using(":memory:", story)


def test_bytes_go_with_the_last_artifact_that_needs_them(url: str, tmp_path: Path) -> None:
    world = SeededEnv()

    async def story(database: Database) -> None:
        blobs = Blobs(tmp_path / "blobs")
        store = ArtifactStore(database, blobs, world, keep_days=7)
        first = await store.store(a_call(), b"same", None, "text/plain")
        alone = await store.store(a_call(), b"alone", None, "text/plain")
        world.advance(4 * DAY)
        second = await store.store(a_call("bob"), b"same", None, "text/plain")
        unused(blobs)
        world.advance(4 * DAY)
        assert await store.expire() == 2
        for gone in (first, alone):
            with pytest.raises(NotFound):
                await store.get("alice", gone)
        assert (await store.get("bob", second)).body == b"same"
        assert files(blobs) == 1
        world.advance(4 * DAY)
        assert await store.expire() == 1
        assert files(blobs) == 0

    using(url, story)


def unused(blobs: Blobs) -> None:
    """Let every file look as if nobody had put it for two hours."""
    assert blobs.folder is not None
    for file in blobs.folder.rglob("*"):
        if file.is_file():
            then = file.stat().st_mtime - 7_200
            os.utime(file, (then, then))


def files(blobs: Blobs) -> int:
    assert blobs.folder is not None
    return sum(file.is_file() for file in blobs.folder.rglob("*"))


def test_the_background_duty_sweeps() -> None:
    async def story() -> None:
        world = SeededEnv()
        async with home(settings=Settings(calls=Calls(ledger_days=1)), env=world) as here:
            await aged(here.core.database, "calls", world, 2)
            here.runner.takeover.start(60, 0.01)
            async with asyncio.timeout(60):
                while await count(here.core.database, "calls"):
                    await asyncio.sleep(0.01)

    run(story())
