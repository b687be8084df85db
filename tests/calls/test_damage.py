"""A bit that turned on the disk: the row is named and not served, and the others are not the worse for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from msgspec.structs import replace

from agent3.calls.artifacts import ArtifactStore
from agent3.calls.dead_letters import DeadLetters
from agent3.calls.jobs import Jobs
from agent3.calls.outbox import Delivery, Outbox
from agent3.directory import Directory, Rating, Reputation
from agent3.env import REAL
from agent3.errors import Corrupt
from agent3.identity.secrets import EnvironmentVault
from agent3.model import Agent, Call, Capability, Done, Event, Failed, Part, Principal, Turn
from agent3.observe.metrics import Metrics
from agent3.settings import Settings
from agent3.storage import Blobs, Database
from agent3.storage.checksums import append_checksum
from tests.support.storage import using

ALICE = Principal("alice")


def a_call() -> Call:
    return Call(id=REAL.id(), principal=ALICE, agent="target", capability="do", input={"text": "as it was sent"})


async def turn_a_bit(database: Database, table: str, column: str, where: str, *values: object) -> None:
    """In the middle of a value."""
    row = await database.one(f"SELECT {column} AS bytes FROM {table} WHERE {where}", *values)
    assert row is not None
    damaged = bytearray(row["bytes"])
    damaged[len(damaged) // 2] ^= 1
    await database.many(f"UPDATE {table} SET {column} = ? WHERE {where}", [(bytes(damaged), *values)])


def on(story: Callable[[Database], Awaitable[None]]) -> None:
    using(":memory:", story)


async def ended(jobs: Jobs) -> str:
    job, _ = await jobs.open(a_call())
    await jobs.append(job, [Event("log", text="one", seq=1, turn=1), Event("log", text="two", seq=2, turn=1)])
    await jobs.end_turn(job, Done((Part(text="the result, at some length"),)), None, written=2)
    return job.id


@pytest.mark.parametrize("column", ["outcome", "call"])
def test_a_job_whose_bytes_have_changed_is_named_and_not_served(column: str) -> None:
    async def story(database: Database) -> None:
        jobs = Jobs(database, REAL, metrics=Metrics())
        bad, good = await ended(jobs), await ended(jobs)
        await turn_a_bit(database, "jobs", column, "id = ?", bad)
        with pytest.raises(Corrupt, match=bad):
            await jobs.get("alice", bad)
        assert (await jobs.get("alice", good)).status == "done"

    on(story)


@pytest.mark.parametrize(
    "change", ["turn = turn + 1", "updated = updated + 1", "created = created - 1", "seq = seq + 8"]
)
def test_what_is_shown_of_an_ended_job_beside_its_result_is_covered_too(change: str) -> None:
    async def story(database: Database) -> None:
        jobs = Jobs(database, REAL, metrics=Metrics())
        bad = await ended(jobs)
        await database.many(f"UPDATE jobs SET {change}", [()])
        with pytest.raises(Corrupt, match=bad):
            await jobs.get("alice", bad)

    on(story)


def test_a_status_that_is_none_is_damage() -> None:
    async def story(database: Database) -> None:
        jobs = Jobs(database, REAL, metrics=Metrics())
        bad = await ended(jobs)
        await database.many("UPDATE jobs SET status = ?", [("dole",)])
        with pytest.raises(Corrupt, match="dole"):
            await jobs.get("alice", bad)

    on(story)


def test_an_event_whose_bytes_have_changed_is_told_as_such_in_its_place() -> None:
    async def story(database: Database) -> None:
        jobs = Jobs(database, REAL, metrics=Metrics())
        name = await ended(jobs)
        await turn_a_bit(database, "job_events", "body", "job = ? AND seq = 2", name)
        told = [line.event for line in await jobs.log.read(name)]
        assert [event.seq for event in told] == [1, 2, 3]
        assert told[0].text == "one"
        assert "cannot be read" in (told[1].text or "")

    on(story)


def test_an_event_of_another_job_is_not_served_in_its_place() -> None:
    async def story(database: Database) -> None:
        jobs = Jobs(database, REAL, metrics=Metrics())
        mine, other = await ended(jobs), await ended(jobs)
        row = await database.one("SELECT body FROM job_events WHERE job = ? AND seq = 1", other)
        assert row is not None
        await database.many("UPDATE job_events SET body = ? WHERE job = ? AND seq = 1", [(row["body"], mine)])
        assert "cannot be read" in ((await jobs.log.read(mine))[0].event.text or "")

    on(story)


def test_an_agent_whose_bytes_have_changed_is_left_out_and_counted() -> None:
    async def story(database: Database) -> None:
        metrics = Metrics()
        directory = Directory(database, REAL, metrics)
        for name in ("bad", "good"):
            await directory.add(Agent(id=name, name=name, description="as it was when it was added"))
        await turn_a_bit(database, "agents", "body", "id = ?", "bad")
        assert [agent.id for agent in await Directory(database, REAL, metrics).everything()] == ["good"]
        assert 'agent3_events_dropped_total{reason="undecodable row"} 1.0' in metrics.render()[0].decode()

    on(story)


def test_an_agent_under_another_name_is_left_out() -> None:
    async def story(database: Database) -> None:
        directory = Directory(database, REAL, Metrics())
        await directory.add(Agent(id="one", name="One"))
        await database.many("UPDATE agents SET id = ?", [("two",)])
        assert await directory.everything() == []

    on(story)


def test_a_dead_letter_whose_bytes_have_changed_is_named() -> None:
    async def story(database: Database) -> None:
        letters = DeadLetters(database, REAL)
        await letters.bury(
            replace(a_call(), live=Turn(None, Capability(name="do"))), Failed("timeout", "It did not answer.")
        )
        (letter,) = await letters.latest()
        await turn_a_bit(database, "dead_letters", "call", "id = ?", letter.id)
        with pytest.raises(Corrupt, match=letter.id):
            await letters.get(letter.id)

    on(story)


def test_jobs_of_an_earlier_version_have_no_checksum_and_are_read() -> None:
    async def story(database: Database) -> None:
        jobs = Jobs(database, REAL, metrics=Metrics())
        name = await ended(jobs)
        row = await database.one("SELECT outcome FROM jobs WHERE id = ?", name)
        assert row is not None
        bare = bytes(row["outcome"]).rstrip()
        assert append_checksum(bare) != bare
        await database.many("UPDATE jobs SET outcome = ?", [(bare,)])
        assert (await jobs.get("alice", name)).status == "done"

    on(story)


@pytest.mark.parametrize("change", ["name = 'b.txt'", "media_type = 'text/html'", "owner = 'alice', sha256 = 'other'"])
def test_an_artifact_whose_row_has_changed_is_named_and_not_served(change: str) -> None:
    async def story(database: Database) -> None:
        store = ArtifactStore(database, Blobs(None), REAL)
        name = await store.store(a_call(), b"large", "a.txt", "text/plain")
        assert (await store.get("alice", name)).name == "a.txt"
        await database.many(f"UPDATE artifacts SET {change}", [()])
        with pytest.raises(Corrupt, match=name):
            await store.get("alice", name)

    on(story)


@pytest.mark.parametrize("change", ["rating = 1", "rating = NULL", "checksum = checksum + 1"])
def test_a_rating_that_has_changed_does_not_count_and_is_counted_as_lost(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(database: Database) -> None:
        metrics = Metrics()
        reputation = Reputation(database, REAL, metrics)
        await reputation.rate("pizza", "alice", 5)
        await reputation.rate("pizza", "bob", 3)
        await database.many(f"UPDATE feedback SET {change} WHERE principal = ?", [("alice",)])
        assert await reputation.of("pizza") == Rating(1, 3.0)
        assert "1 damaged ratings of agent pizza" in caplog.text
        assert b'agent3_events_dropped_total{reason="undecodable row"} 1.0' in metrics.render()[0]

    on(story)


def test_a_rating_of_an_earlier_version_has_no_checksum_and_counts() -> None:
    async def story(database: Database) -> None:
        reputation = Reputation(database, REAL, Metrics())
        await reputation.rate("pizza", "alice", 5)
        await database.many("UPDATE feedback SET checksum = NULL, rating = 4", [()])
        assert await reputation.of("pizza") == Rating(1, 4.0)

    on(story)


def test_a_delivery_that_has_changed_is_not_shown_and_its_end_may_change(caplog: pytest.LogCaptureFixture) -> None:
    async def story(database: Database) -> None:
        outbox = Outbox(Settings(), database, EnvironmentVault(), REAL, Metrics())
        delivery = Delivery("https://example.com/hook", "{}", "alice")
        for name in ("one", "two", "old"):
            await database.write(partial(outbox.post, delivery=delivery, id=name, subject="job", event="done"))
        await database.many("UPDATE deliveries SET url = 'https://evil.example' WHERE id = ?", [("one",)])
        await database.many("UPDATE deliveries SET delivered = 1.0, attempts = 2 WHERE id = ?", [("two",)])
        await database.many("UPDATE deliveries SET checksum = NULL, event = 'failed' WHERE id = ?", [("old",)])
        assert sorted((one.id, one.status) for one in await outbox.receipts("job")) == [
            ("old", "waiting"),
            ("two", "delivered"),
        ]
        assert "webhook one: its row is damaged" in caplog.text
        await outbox.aclose()

    on(story)
