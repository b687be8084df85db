"""Jobs that are kept only when they have ended, on every database: as readable as any other, once for each key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent3.calls.jobs import Jobs
from agent3.env import REAL
from agent3.errors import Conflict, StorageError
from agent3.model import Call, Done, Event, Failed, Part, Principal
from agent3.storage import Database
from tests.support.storage import using

ALICE = Principal("alice")
DONE = Done((Part(text="yes"),))


def a_call(**more: Any) -> Call:
    return Call(**{"id": REAL.id(), "principal": ALICE, "agent": "target", "capability": "do", "input": {}, **more})


def on(url: str, story: Callable[[Jobs, Database], Awaitable[None]]) -> None:
    async def told(database: Database) -> None:
        await story(Jobs(database, REAL), database)

    using(url, told)


def test_it_is_read_back_as_it_was_with_its_log(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        told = [Event("status", text="half", seq=1, turn=1)]
        job = await jobs.ended.add(a_call(key="k", context="c", meta={"kind": "task"}), DONE, told)
        assert (job.status, job.seq, job.outcome) == ("done", 2, DONE)
        assert await jobs.get("alice", job.id) == job
        assert [line.event.kind for line in await jobs.log.read(job.id)] == ["status", "turn"]
        assert await jobs.find_by_key(a_call(key="k")) == job

    on(url, story)


def test_one_that_told_nothing_but_its_end_is_read_from_its_row_alone(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        job, other = [await jobs.ended.add(a_call(key=key), DONE, []) for key in ("k", "l")]
        assert await database.all("SELECT job FROM job_events") == []
        for lines in (await jobs.log.read(job.id), (await jobs.log.read_all([other.id, job.id]))[job.id]):
            assert [(line.event.kind, line.event.seq, line.event.turn) for line in lines] == [("turn", 1, 1)]
            assert lines[0].event.data["parts"][0]["text"] == "yes"
            assert lines[0].at == job.updated
        assert [event.kind async for event in jobs.follow("alice", job.id)] == ["turn"]
        assert await jobs.log.read(job.id, after=1) == []
        assert await jobs.log.read("nobody's") == []

    on(url, story)


@pytest.mark.parametrize("count", [1, 3, 63, 200, 201])
def test_any_number_of_them_is_kept_together(url: str, count: int) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        put = await asyncio.gather(*(jobs.ended.add(a_call(key=str(n)), DONE, []) for n in range(count)))
        rows = await database.all("SELECT id FROM jobs")
        assert {row["id"] for row in rows} == {job.id for job in put}
        assert len(rows) == count

    on(url, story)


def test_a_key_has_one_job_however_many_end_at_once(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        put = [jobs.ended.add(a_call(key="k"), Done((Part(text=str(n)),)), []) for n in range(20)]
        others = [jobs.ended.add(a_call(key=f"k{n}"), DONE, []) for n in range(20)]
        same, other = await asyncio.gather(asyncio.gather(*put), asyncio.gather(*others))
        assert len({job.id for job in same}) == 1
        assert len({job.outcome.parts[0].text for job in same if isinstance(job.outcome, Done)}) == 1
        assert len({job.id for job in other}) == 20
        rows = await database.all("SELECT job FROM job_events WHERE job NOT IN (SELECT id FROM jobs)")
        assert rows == []
        with pytest.raises(Conflict, match="was already used for a different call"):
            await jobs.ended.add(a_call(key="k", input={"other": 1}), DONE, [])

    on(url, story)


def test_a_call_that_reached_nobody_leaves_its_key_free(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        await jobs.ended.add(a_call(key="k"), Failed("unavailable", "down", sent=False), [])
        again = await jobs.ended.add(a_call(key="k"), DONE, [])
        assert again.outcome == DONE
        assert await jobs.find_by_key(a_call(key="k")) == again

    on(url, story)


def test_all_that_wait_hear_that_storage_failed_and_the_next_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        write, broken = database.write, True

        async def failing(*given: Any, **more: Any) -> Any:
            if broken:
                raise StorageError("the disk is gone")
            return await write(*given, **more)

        monkeypatch.setattr(database, "write", failing)
        put = [jobs.ended.add(a_call(key=f"k{n}"), DONE, []) for n in range(3)]
        heard = await asyncio.gather(*put, return_exceptions=True)
        assert [type(one) for one in heard] == [StorageError] * 3
        broken = False
        assert (await jobs.ended.add(a_call(key="k0"), DONE, [])).status == "done"

    on(":memory:", story)


def test_whoever_leaves_spoils_it_for_nobody(url: str) -> None:
    async def story(jobs: Jobs, database: Database) -> None:
        leaving = asyncio.ensure_future(jobs.ended.add(a_call(key="left"), DONE, []))
        staying = asyncio.ensure_future(jobs.ended.add(a_call(key="stayed"), DONE, []))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).key == "stayed"

    on(url, story)
