"""The queue's promises, on every database."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent3.errors import Conflict, StorageError, StorageFull, TooLarge, ValidationError
from agent3.observe.metrics import Metrics
from agent3.queue import Depth, Lease, Queue, QueueFull, Rules
from agent3.storage import Database, Transaction, open_database
from tests.support.postgres import new_database_url
from tests.support.queues import on_queue, one, pass_time

SMALL = Rules(bound=3, attempts=2, lease=1_000.0, first_delay=8.0)
"""Leases run by the database's own clock, so they are long, and ``pass_time`` ends them."""


@pytest.mark.requirement("RF-013-29")
def test_what_is_put_is_handed_out_once_and_gone_when_it_is_acknowledged(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        ids = [await queue.put(body) for body in (b"a", b"b")]
        leases = await queue.claim(5)
        assert [(lease.id, lease.body, lease.attempt) for lease in leases] == [(ids[0], b"a", 1), (ids[1], b"b", 1)]
        assert await queue.claim(5) == []
        depth = await queue.depth()
        assert replace(depth, oldest=0.0) == Depth(leased=2)
        assert 0 <= depth.oldest < 30
        assert [await queue.ack(lease) for lease in leases] == [True, True]
        assert [await queue.ack(lease) for lease in leases] == [False, False]
        assert await queue.depth() == Depth()

    on_queue(url, story)


@pytest.mark.requirement("RF-013-30")
def test_a_high_priority_overtakes_a_low_one_between_contexts_but_not_within_one(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        for body, context, priority in (
            (b"low", None, 0),
            (b"a1", "a", 1),
            (b"a2", "a", 9),
            (b"b1", "b", 5),
            (b"c1", "c", 5),
            (b"lowest", None, -1),
        ):
            await queue.put(body, context=context, priority=priority)
        first = await queue.claim(10)
        assert [lease.body for lease in first] == [b"b1", b"c1", b"a1", b"low", b"lowest"]
        assert await queue.ack(first[2])
        assert (await one(queue)).body == b"a2"

    on_queue(url, story)


def test_the_order_of_a_context_survives_retries(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        for body in (b"1", b"2", b"3"):
            await queue.put(body, context="c")
        assert await queue.nack(await one(queue), "not yet", delay=60) == "retry"
        assert await queue.claim(5) == []
        await pass_time(database, 61)
        seen = []
        while leases := await queue.claim(5):
            seen += [lease.body for lease in leases]
            assert await queue.ack(leases[0])
        assert seen == [b"1", b"2", b"3"]

    on_queue(url, story)


@pytest.mark.requirement("RF-013-37")
def test_a_poison_message_is_dead_after_exactly_its_attempts_with_reason_and_history(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"poison", context="c", priority=2)
        await queue.put(b"next", context="c")
        assert await queue.nack(await one(queue), "boom \0 one", delay=0) == "retry"
        assert await queue.nack(await one(queue), "boom two", delay=0) == "dead"
        (letter,) = await queue.dead()
        assert (letter.body, letter.context, letter.priority, letter.attempts) == (b"poison", "c", 2, 2)
        assert [(one.number, one.reason) for one in letter.history] == [(1, "boom   one"), (2, "boom two")]
        assert letter.reason == "boom two"
        assert 0 <= letter.history[1].at - letter.history[0].at < 30
        assert (await one(queue)).body == b"next"  # the dead one no longer stands in the way
        assert await queue.dead(after=letter.seq) == []
        assert (await queue.depth()).dead == 1

    on_queue(url, story, SMALL)


@pytest.mark.requirement("RF-013-37")
def test_dead_letters_are_replayed_with_all_their_attempts_or_dropped(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        ids = [await queue.put(bytes([number])) for number in range(3)]
        for lease in await queue.claim(3):
            assert await queue.bury(lease, "never")
        assert [letter.id for letter in await queue.dead(limit=2)] == ids[:2]
        assert await queue.replay([*ids[:2], "unknown"]) == 2
        assert await queue.drop(ids) == 1
        again = await queue.claim(5)
        assert [(lease.id, lease.attempt) for lease in again] == [(ids[0], 1), (ids[1], 1)]
        assert all(lease.token > 1 for lease in again)  # the fence goes on rising
        assert await queue.replay(ids) == 0

    on_queue(url, story, SMALL)


async def dropped(queue: Queue) -> None:
    """Wait until what is too much has been dropped."""
    if queue._dropper is not None:
        await queue._dropper


def test_of_too_many_dead_letters_the_oldest_go_and_it_is_counted_and_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(queue: Queue, database: Database) -> None:
        metrics = Metrics()
        mine = Queue(database, queue.name, Rules(attempts=1, dead=3), metrics=metrics)
        for number in range(5):
            await mine.put(b"%d" % number)
            assert await mine.nack(await one(mine), "poison") == "dead"
            await dropped(mine)
        assert [letter.body for letter in await mine.dead()] == [b"2", b"3", b"4"]
        assert b'agent3_dead_letters_dropped_total{place="stories"} 2.0' in metrics.render()[0]
        assert "oldest dead letters: it keeps 3" in caplog.text
        assert (await mine.depth()).live == 0
        later = Queue(database, queue.name, Rules(attempts=1, dead=1_000), metrics=metrics)
        later._died = 0
        await later.put(b"5")
        await later.nack(await one(later), "poison")
        assert len(await later.dead()) == 4, "not looked at for every one"

        async def bury(tx: Transaction) -> None:
            for lease in await mine.claim(3, tx=tx):
                assert await mine.bury(lease, "within", tx=tx)

        for body in (b"6", b"7", b"8"):
            await mine.put(body)
        await database.write(bury)
        await mine.put(b"9")
        await dropped(mine)
        assert [letter.body for letter in await mine.dead()] == [b"6", b"7", b"8"], "those of a caller count too"
        await mine.aclose()
        await later.aclose()

    on_queue(url, story)


def test_letters_that_cannot_be_dropped_do_not_fail_what_was_asked_for(url: str) -> None:
    class Stuck(FullDisk):
        async def write(self, work: Any, *, frees: bool = False, calm: bool = False) -> Any:
            if work.__qualname__.startswith("Queue._drop_oldest"):
                raise StorageError("The disk is slow.")
            return await self._database.write(work, frees=frees, calm=calm)

        async def statement(self, sql: str, *params: object) -> Any:
            return await self._database.statement(sql, *params)

    async def story(queue: Queue, database: Database) -> None:
        stuck = Queue(Stuck(database), "stories", Rules(attempts=1, dead=1), metrics=Metrics())
        for body in (b"1", b"2"):
            await stuck.put(body)
            assert await stuck.nack(await one(stuck), "poison") == "dead"
            await dropped(stuck)
        assert len(await stuck.dead()) == 2
        await stuck.aclose()

    on_queue(url, story)


def test_a_replay_that_does_not_fit_does_nothing(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        first = await queue.put(b"dead")
        assert await queue.bury(await one(queue), "never")
        for _number in range(3):
            await queue.put(b"x")
        with pytest.raises(QueueFull):
            await queue.replay([first])
        assert [letter.id for letter in await queue.dead()] == [first]

    on_queue(url, story, SMALL)


def test_the_archive_keeps_what_is_done_for_a_while_and_replays_it(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        done = await queue.put(b"again")
        assert await queue.ack(await one(queue))
        assert await queue.depth() == Depth(done=1)
        assert await queue.replay([done], state="done") == 1
        assert (await one(queue)).body == b"again"

    on_queue(url, story, Rules(keep_done=60))


@pytest.mark.requirement("RF-013-29")
def test_a_full_queue_refuses_aloud_and_counts_it(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        for number in range(3):
            await queue.put(bytes([number]), context="c")
        with pytest.raises(QueueFull, match=r"'stories' is full .3 messages") as refused:
            await queue.put(b"one too many", key="k")
        assert refused.value.retry_after == 1.0
        assert refused.value.http_status == 429
        (lease,) = await queue.claim()
        with pytest.raises(QueueFull):
            await queue.put(b"taken is not done")
        assert await queue.ack(lease)
        assert await queue.put(b"one too many", key="k")  # a refused put leaves nothing behind, also not its key
        assert queue.size == 3
        text = queue._metrics.render()[0].decode()
        assert 'agent3_refusals_total{code="rate_limited"} 2.0' in text

    on_queue(url, story, SMALL)


def test_many_puts_at_once_fill_the_queue_to_the_last_place_and_no_further(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        answers = await asyncio.gather(*(queue.put(b"x") for _ in range(250)), return_exceptions=True)
        assert sum(isinstance(answer, QueueFull) for answer in answers) == 150
        assert (await queue.depth()).ready == 100

    on_queue(url, story, Rules(bound=100))


def test_a_key_is_put_once_and_another_body_under_it_is_a_conflict(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        answers = await asyncio.gather(*(queue.put(b"same", key="k") for _ in range(5)))
        assert len(set(answers)) == 1
        assert (await queue.depth()).ready == 1
        with pytest.raises(Conflict, match="'k' was already used for a different message"):
            await queue.put(b"other", key="k")
        assert await queue.ack(await one(queue))
        assert await queue.put(b"same", key="k") == answers[0]  # also when it is done
        assert await queue.claim() == []
        other = Queue(database, "another queue")
        assert await other.put(b"other", key="k")

    on_queue(url, story)


def test_two_bodies_under_one_key_at_once_are_one_message_and_one_conflict(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        answers = await asyncio.gather(queue.put(b"a", key="k"), queue.put(b"b", key="k"), return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "str"]
        assert (await queue.depth()).ready == 1

    on_queue(url, story)


def test_an_ended_lease_goes_to_another_and_its_first_holder_is_refused(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"x", context="c")
        late = await one(queue)
        await pass_time(database, 1_001)
        other = await one(queue)
        assert (other.id, other.attempt, other.token) == (late.id, 2, late.token + 1)
        assert await queue.ack(late) is False
        assert await queue.extend(late) is False
        assert await queue.release(late) is False
        assert await queue.bury(late, "late") is False
        assert await queue.nack(late, "late") == "lost"
        assert await queue.ack(other) is True

    on_queue(url, story, SMALL)


def test_a_late_ack_is_taken_while_nobody_else_has_the_message(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        for body in (b"x", b"y", b"z"):
            await queue.put(body)
        late = await queue.claim(3)
        await pass_time(database, 1_001)
        assert [await queue.ack(lease) for lease in late[:2]] == [True, True]  # the first ack takes back all others
        assert await queue.extend(late[2]) is True
        assert await queue.ack(late[0]) is False
        assert await queue.claim() == []

    on_queue(url, story, SMALL)


def test_what_was_given_back_is_nobodys(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        await queue.put(b"x")
        released = await one(queue)
        assert await queue.release(released)
        assert await queue.ack(released) is False
        failed = await one(queue)
        assert await queue.nack(failed, "no", delay=0.0) == "retry"
        assert await queue.ack(failed) is False
        assert await queue.ack(await one(queue)) is True

    on_queue(url, story, SMALL)


def test_what_is_replayed_from_the_archive_is_not_ended_by_its_old_holder(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        name = await queue.put(b"x")
        old = await one(queue)
        assert await queue.ack(old)
        assert await queue.replay([name], state="done") == 1
        assert await queue.ack(old) is False
        assert await queue.ack(await one(queue)) is True

    on_queue(url, story, Rules(keep_done=60.0))


def test_a_consumer_that_never_answers_uses_up_the_attempts(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"crash", context="c")
        await queue.put(b"next", context="c")
        for _ in range(2):
            assert (await one(queue)).body == b"crash"
            await pass_time(database, 1_001)
        assert (await one(queue)).body == b"next"
        (letter,) = await queue.dead()
        assert [attempt.number for attempt in letter.history] == [1, 2]
        assert "lease expired" in letter.reason
        assert 'dead_letters_total{code="queue"} 1.0' in queue._metrics.render()[0].decode()

    on_queue(url, story, SMALL)


def test_an_extended_lease_stays(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"x")
        lease = await one(queue)
        await pass_time(database, 900)
        assert await queue.extend(lease, 2_000)
        await pass_time(database, 1_500)
        assert await queue.claim() == []
        assert await queue.ack(lease)

    on_queue(url, story, SMALL)


def test_a_released_message_is_handed_out_again_and_the_attempt_is_not_counted(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        await queue.put(b"x", context="c")
        for _again in range(5):
            lease = await one(queue)
            assert lease.attempt == 1
            assert await queue.release(lease)

    on_queue(url, story, SMALL)


def test_retries_wait_for_a_random_share_of_an_ever_longer_time(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        shares: dict[int, list[float]] = {
            attempt: [queue._backoff(attempt) for _ in range(200)] for attempt in (1, 2, 9)
        }
        for attempt, ceiling in ((1, 8), (2, 16), (9, 300)):
            assert 0 <= min(shares[attempt]) < ceiling / 4
            assert ceiling * 3 / 4 < max(shares[attempt]) <= ceiling
        await queue.put(b"x")
        assert await queue.nack(await one(queue), "later") == "retry"
        assert (await queue.depth()).delayed == 1

    on_queue(url, story, SMALL)


def test_a_scheduled_message_comes_when_it_is_due_and_those_behind_it_wait(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"later", context="c", delay=100)
        await queue.put(b"behind", context="c")
        await queue.put(b"soon", delay=50)
        assert await queue.claim(5) == []
        assert replace(await queue.depth(), oldest=0.0) == Depth(delayed=2, waiting=1)
        await pass_time(database, 51)
        assert (await one(queue)).body == b"soon"
        await pass_time(database, 50)
        later = await one(queue)
        assert later.body == b"later"
        assert await queue.ack(later)
        assert (await one(queue)).body == b"behind"

    on_queue(url, story)


def test_a_message_commits_with_the_callers_transaction_or_not_at_all(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        async def with_state(tx: Transaction) -> str:
            await tx.run("INSERT INTO counters (name, value) VALUES ('state', 1)")
            return await queue.put(b"with state", context="c", tx=tx)

        async def undone(tx: Transaction) -> None:
            await queue.put(b"undone", context="c", tx=tx)
            raise ValueError("undo")

        posted = await database.write(with_state)
        with pytest.raises(ValueError, match="undo"):
            await database.write(undone)
        await queue.put(b"after", context="c")
        assert (await queue.depth()).live == 2
        lease = await one(queue)
        assert (lease.id, lease.body) == (posted, b"with state")
        assert queue.size == 2

        async def effect(tx: Transaction) -> bool:
            await tx.run("UPDATE counters SET value = 2 WHERE name = 'state'")
            return await queue.ack(lease, tx=tx)

        assert await database.write(effect) is True
        assert (await one(queue)).body == b"after"

    on_queue(url, story)


def test_a_put_inside_a_transaction_knows_keys_and_the_bound(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        first = await database.write(lambda tx: queue.put(b"a", key="k", tx=tx))
        assert await database.write(lambda tx: queue.put(b"a", key="k", tx=tx)) == first
        assert await queue.put(b"a", key="k") == first
        with pytest.raises(Conflict):
            await database.write(lambda tx: queue.put(b"b", key="k", tx=tx))
        for _ in range(2):
            await database.write(lambda tx: queue.put(b"x", tx=tx))
        with pytest.raises(QueueFull):
            await database.write(lambda tx: queue.put(b"too many", tx=tx))
        with pytest.raises(QueueFull):
            await queue.put(b"too many")
        assert len(await queue.claim(5)) == 3

    on_queue(url, story, SMALL)


def test_the_count_stays_right_while_puts_inside_and_outside_of_transactions_mix(lasting_url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        async def outside(number: int) -> None:
            for turn in range(15):
                await queue.put(b"x", context=f"c{(number + turn) % 5}")

        async def inside(number: int) -> None:
            for turn in range(15):
                await database.write(lambda tx, turn=turn: queue.put(b"x", context=f"c{turn % 5}", tx=tx))  # type: ignore[misc]
                if not (number + turn) % 4:
                    for lease in await queue.claim(2):
                        assert await queue.ack(lease)

        await asyncio.gather(*(outside(number) for number in range(6)), *(inside(number) for number in range(6)))
        for lease in await queue.claim(1):
            assert await queue.ack(lease)
        assert queue.size == (await queue.depth()).live > 0

    on_queue(lasting_url, story)


def test_a_replay_counts_what_was_put_inside_a_transaction(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        first = await queue.put(b"dead")
        assert await queue.bury(await one(queue), "never")
        await queue.put(b"x")
        await queue.put(b"x")
        await database.write(lambda tx: queue.put(b"not yet counted", tx=tx))
        with pytest.raises(QueueFull):
            await queue.replay([first])

    on_queue(url, story, SMALL)


def test_claim_nack_and_release_join_a_transaction_too(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"x")
        (lease,) = await database.write(lambda tx: queue.claim(tx=tx))
        assert await database.write(lambda tx: queue.extend(lease, 5, tx=tx))
        assert await database.write(lambda tx: queue.release(lease, tx=tx))
        lease = await one(queue)
        assert await database.write(lambda tx: queue.nack(lease, "no", delay=0, tx=tx)) == "retry"
        lease = await one(queue)
        assert await database.write(lambda tx: queue.bury(lease, "no", tx=tx))

    on_queue(url, story)


def test_a_waiting_consumer_is_woken_at_once(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        for posted in (False, True):
            waiting = asyncio.create_task(queue.claim(wait=50))
            while not queue._wakeups._waiters:
                await asyncio.sleep(0.001)
            if posted:
                await database.write(lambda tx: queue.put(b"x", tx=tx))
            else:
                await queue.put(b"x")
            (lease,) = await waiting  # woken: it would not look by itself within an hour
            assert await queue.ack(lease)

    on_queue(url, story, Rules(poll=3_600.0))


def test_a_consumer_of_another_process_finds_it_by_itself(lasting_url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        elsewhere = await open_database(lasting_url)
        waiting = asyncio.create_task(queue.claim(wait=50))
        while not queue._wakeups._waiters:
            await asyncio.sleep(0.001)
        await Queue(elsewhere, queue.name).put(b"x")
        assert len(await waiting) == 1
        await elsewhere.aclose()

    on_queue(lasting_url, story, Rules(poll=0.05))


@pytest.mark.postgres
def test_postgresql_wakes_consumers_of_other_processes_without_polling() -> None:
    url = new_database_url()

    async def story(queue: Queue, _: Database) -> None:
        elsewhere = await open_database(url)
        waiting = asyncio.create_task(queue.claim(wait=50))
        sessions = "SELECT COUNT(*) AS n FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        while (row := await elsewhere.one(sessions)) is None or not row["n"]:
            await asyncio.sleep(0.01)
        for body in (b"x", b"y"):  # the first may be found by the look that follows the start of listening
            await Queue(elsewhere, queue.name).put(body)
            assert [lease.body for lease in await waiting] == [body]
            waiting = asyncio.create_task(queue.claim(wait=50))
        waiting.cancel()
        await asyncio.wait([waiting])
        await elsewhere.aclose()

    on_queue(url, story, Rules(poll=3_600.0))


def test_a_waiting_consumer_gets_a_message_when_it_is_due(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        await queue.put(b"x", delay=0.2)
        (lease,) = await queue.claim(wait=50)
        assert lease.age >= 0.19
        assert await queue.claim(wait=0.01) == []

    on_queue(url, story, Rules(poll=3_600.0))


def test_what_a_cancelled_claim_was_given_goes_back(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        await queue.put(b"x")
        claiming = asyncio.create_task(queue.claim())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its transaction is under way
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        await queue._batcher.aclose()
        assert (await one(queue)).attempt == 1

    on_queue(url, story)


def test_eight_workers_keep_the_order_of_every_context_with_failures(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        contexts = 7
        for number in range(140):
            await queue.put(str(number).encode(), context=f"c{number % contexts}", priority=number % 3)
        done: dict[str, list[int]] = {f"c{number}": [] for number in range(contexts)}
        left = 140

        async def worker(turn: int) -> None:
            nonlocal left
            while left:
                for lease in await queue.claim(3, wait=0.5):
                    turn += 1
                    if turn % 10 == 0:
                        assert await queue.nack(lease, "now and then", delay=0.0) == "retry"
                        continue
                    assert lease.context is not None
                    done[lease.context].append(int(lease.body))
                    assert await queue.ack(lease)
                    left -= 1

        await asyncio.gather(*(worker(number) for number in range(8)))
        assert all(seen == sorted(seen) and len(seen) == 20 for seen in done.values())

    on_queue(url, story, Rules(attempts=100))


def test_old_keys_archived_messages_and_leases_from_the_future_are_tidied(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        for number in range(3):
            await queue.put(b"x", key=f"k{number}")
        for lease in await queue.claim(2):
            assert await queue.ack(lease)
        assert await queue.bury(await one(queue), "no")
        await pass_time(database, 100)
        await queue.put(b"young", key="young")
        held = await one(queue)
        await pass_time(database, -9_000)  # the clock was set back
        await pass_time(database, 0)
        queue._untidied = 5_000
        await database.write(lambda tx: tx.run("UPDATE queue_keys SET expires = expires - 9000"))
        await database.write(lambda tx: tx.run("UPDATE queue_messages SET due = due - 9000 WHERE state <> 'leased'"))
        await queue.put(b"y", key="another")
        keys = {row["key"] for row in await database.all("SELECT key FROM queue_keys")}
        assert keys == {"young", "another"}
        depth = await queue.depth()
        assert (depth.done, depth.dead) == (0, 0)
        await pass_time(database, 31)  # the lease that would not have ended is as long as any other now
        again = await queue.claim(5)
        assert held.id in {lease.id for lease in again}

    on_queue(url, story, Rules(keep_done=50, keep_dead=50, keep_keys=50))


def test_a_clock_set_back_holds_up_nobody(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        for body in (b"0", b"1", b"2", b"3"):
            await queue.put(body, context="c")
        held = await one(queue)
        await pass_time(database, -86_400)
        assert await queue.claim() == []
        assert await queue.ack(held)  # its holder has a lease like any other
        forgotten = await one(queue)  # it was due when it was put, whatever the clock says now
        assert forgotten.body == b"1"
        await pass_time(database, -86_400)
        assert await queue.claim() == []
        await pass_time(database, 31)
        again = await one(queue)
        assert (again.id, again.token) == (forgotten.id, forgotten.token + 1)
        assert not await queue.ack(forgotten)
        assert await queue.bury(again, "no")
        await pass_time(database, -86_400)
        assert await queue.replay([again.id]) == 1
        assert [(await one(queue)).body for _ in range(1)] == [b"2"]

    on_queue(url, story)


def test_a_waiting_consumer_notices_that_the_clock_was_set_back(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        put = await queue.put(b"x")
        await one(queue)
        await pass_time(database, -86_400)
        (lease,) = await queue.claim(wait=50)
        assert (lease.id, lease.attempt) == (put, 2)

    on_queue(url, story, Rules(lease=0.2, poll=0.1))


def test_puts_in_one_statement_count_and_are_refused_like_any_other(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        results = await asyncio.gather(*(queue.put(bytes([n]), priority=n % 2) for n in range(8)))
        assert queue.size == 8
        assert len(set(results)) == 8
        await database.write(lambda tx: queue.put(b"posted", tx=tx))
        told = await asyncio.gather(*(queue.put(b"late") for _ in range(3)), return_exceptions=True)
        assert [isinstance(one, QueueFull) for one in told] == [False, True, True]
        delayed = await queue.depth()
        assert (delayed.live, queue.size) == (10, 10)
        bodies = [lease.body for lease in await queue.claim(20)]
        assert bodies == [b"\1", b"\3", b"\5", b"\7", b"\0", b"\2", b"\4", b"\6", b"posted", b"late"]

    on_queue(url, story, Rules(bound=10))


def test_puts_with_a_delay_wait_whoever_they_come_with(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"first")  # the queue is known
        await asyncio.gather(queue.put(b"now"), queue.put(b"later", delay=60.0))
        assert [lease.body for lease in await queue.claim(5)] == [b"first", b"now"]
        await pass_time(database, 61)
        assert b"later" in {lease.body for lease in await queue.claim(5)}

    on_queue(url, story)


async def put_or_not(queue: Queue, body: bytes) -> str | None:
    try:
        return await queue.put(body)
    except StorageFull:
        return None


@pytest.mark.parametrize("column", ["body", "id"])
def test_a_message_whose_bytes_have_changed_is_buried_and_never_handed_out(url: str, column: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"first", context="c")
        await queue.put(b"second", context="c")
        damaged: dict[str, object] = {"body": b"firsu", "id": "another"}
        await database.write(
            lambda tx: tx.run(f"UPDATE queue_messages SET {column} = ? WHERE seq = 1", damaged[column])
        )
        assert [lease.body for lease in await queue.claim(5)] == []
        (letter,) = await queue.dead()
        assert "does not match its checksum" in letter.reason
        assert await queue.replay([letter.id]) == 1
        second = await one(queue)  # what was buried made way for it
        assert second.body == b"second"
        assert await queue.ack(second)
        assert await database.write(lambda tx: queue.claim(5, tx=tx)) == []
        assert [again.id for again in await queue.dead()] == [letter.id]

    on_queue(url, story)


def test_messages_of_the_version_before_have_no_checksum_and_are_handed_out(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"old")
        await database.write(lambda tx: tx.run("UPDATE queue_messages SET checksum = NULL"))
        assert (await one(queue)).body == b"old"

    on_queue(url, story)


def test_a_full_database_refuses_puts_and_can_be_emptied(tmp_path: Path) -> None:
    async def story() -> None:
        database = await open_database(f"sqlite:///{tmp_path}/small.db", max_bytes=2 * 1024**2)
        queue = Queue(database, "small", Rules(bound=100_000), metrics=Metrics())
        body = b"x" * 4_000
        told = [await put_or_not(queue, body) for _ in range(600)]
        put = [one for one in told if one is not None]
        assert 50 < len(put) < 600
        with pytest.raises(StorageFull, match=r"storage\.max_bytes"):
            await queue.put(body)
        with pytest.raises(StorageFull, match="was not put into queue 'small'"):
            await database.write(lambda tx: queue.put(body, tx=tx))
        for _ in put:
            assert await queue.ack(await one(queue))
        assert await queue.put(b"x" * 4_000)
        await queue.aclose()
        await database.aclose()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_what_no_database_can_keep_is_refused_before_it_gets_there(url: str) -> None:
    async def story(queue: Queue, _: Database) -> None:
        for wrong in ({"context": "a\0b"}, {"key": ""}, {"id": "x" * 1001}, {"context": "\ud800"}):
            with pytest.raises(ValidationError, match=next(iter(wrong))):
                await queue.put(b"x", **wrong)  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match="Priority"):
            await queue.put(b"x", priority=2**70)
        with pytest.raises(ValidationError, match="delay"):
            await queue.put(b"x", delay=float("inf"))
        with pytest.raises(TooLarge, match="11 bytes"):
            await queue.put(b"x" * 11)
        with pytest.raises(ValidationError, match="most"):
            await queue.claim(0)
        with pytest.raises(ValidationError, match="lease"):
            await queue.claim(lease=1e9)
        assert (await queue.depth()).live == 0
        await queue.put("é€".encode() + b"\0\xff", context="é€", key="é€", id="é€")
        lease = await one(queue)
        assert (lease.id, lease.body, lease.context) == ("é€", "é€".encode() + b"\0\xff", "é€")

    on_queue(url, story, Rules(largest=10))


@pytest.mark.parametrize("wrong", [{"bound": 0}, {"attempts": 0}, {"lease": 7200.0}, {"poll": 0}])
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Rules(**wrong)  # type: ignore[arg-type]


def test_two_queues_in_one_database_do_not_see_each_other(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        other = Queue(database, "other", SMALL, metrics=Metrics())
        await queue.put(b"mine", context="c")
        await other.put(b"theirs", context="c")
        mine, theirs = await one(queue), await one(other)
        assert (mine.body, theirs.body) == (b"mine", b"theirs")
        assert await other.ack(mine) is False
        assert await queue.ack(mine) is True

    on_queue(url, story)


def test_messages_outlive_the_process(lasting_url: str) -> None:
    async def before(queue: Queue, _: Database) -> Lease:
        await queue.put(b"1", context="c")
        await queue.put(b"2", context="c")
        return await one(queue)

    async def after(queue: Queue, _: Database) -> None:
        assert await queue.claim() == []
        assert await queue.ack(held)
        assert (await one(queue)).body == b"2"

    held = on_queue(lasting_url, before)
    on_queue(lasting_url, after)


def test_a_closed_database_is_told_to_every_caller(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        await queue.put(b"x")
        await database.aclose()
        answers = await asyncio.gather(queue.put(b"a"), queue.claim(), queue.put(b"b"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [StorageError] * 3

    on_queue(url, story)


class FullDisk:
    """A database on a disk that is full: it writes only what frees room."""

    def __init__(self, database: Database):
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, work: Any, *, frees: bool = False, calm: bool = False) -> Any:
        if not frees:
            raise StorageFull("The disk is full.")
        return await self._database.write(work, frees=frees, calm=calm)

    async def statement(self, sql: str, *params: object) -> Any:
        raise StorageFull("The disk is full.")


def test_on_a_full_disk_acks_do_not_fail_for_the_puts_beside_them(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        for body in (b"1", b"2", b"3"):
            await queue.put(body)
        first, second = await queue.claim(2)
        full = Queue(FullDisk(database), "stories", SMALL, metrics=Metrics())
        told = await asyncio.gather(
            full.put(b"4"), full.ack(first), full.put(b"5"), full.claim(), full.ack(second), return_exceptions=True
        )
        assert [type(one) for one in told] == [StorageFull, bool, StorageFull, list, bool]
        assert (told[1], told[4]) == (True, True)
        assert [lease.body for lease in told[3]] == [b"3"]  # type: ignore[union-attr]
        await full.aclose()

    on_queue(url, story, SMALL)
