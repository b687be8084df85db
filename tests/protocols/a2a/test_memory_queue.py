"""The box in memory keeps the manners of the durable queue: the same stories, told of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from agent3.errors import TooLarge
from agent3.protocols.a2a.agents.memory_queue import MemoryQueue, MessageQueue
from agent3.queue import Queue, QueueFull, Rules
from agent3.storage import open_database
from tests.support.home import run

Story = Callable[[MessageQueue], Awaitable[None]]


@asynccontextmanager
async def made(kind: str, rules: Rules) -> AsyncIterator[MessageQueue]:
    if kind == "memory":
        box = MemoryQueue("box", rules)
        yield box
        await box.aclose()
        return
    database = await open_database(":memory:")
    queue = Queue(database, "box", rules)
    try:
        yield queue
    finally:
        await queue.aclose()
        await database.aclose()


def tell(kind: str, story: Story, **rules: float) -> None:
    async def main() -> None:
        async with made(kind, Rules(**rules)) as box:  # type: ignore[arg-type]
            await story(box)

    run(main(), 120)


both = pytest.mark.parametrize("kind", ["memory", "durable"])


@both
def test_the_urgent_go_first_and_a_context_keeps_its_order(kind: str) -> None:
    async def story(box: MessageQueue) -> None:
        for number, priority, context in ((0, 0, None), (1, 1, "c"), (2, 50, "c"), (3, 9, None)):
            await box.put(b"%d" % number, priority=priority, context=context)
        order = []
        while leases := await box.claim():
            order.append(int(leases[0].body))
            assert await box.ack(leases[0])
        assert order == [3, 1, 2, 0]
        assert (await box.depth()).live == 0

    tell(kind, story)


@both
def test_of_a_context_one_is_out_at_a_time(kind: str) -> None:
    async def story(box: MessageQueue) -> None:
        for number in range(3):
            await box.put(b"%d" % number, context="c")
        (first,) = await box.claim(10)
        assert await box.claim(10) == []
        assert (await box.depth()).waiting == 2
        assert await box.release(first)
        (again,) = await box.claim(10)
        assert (again.body, again.attempt) == (b"0", 1)
        assert await box.extend(again)
        assert await box.ack(again)
        assert [lease.body for lease in await box.claim(10)] == [b"1"]

    tell(kind, story)


@both
def test_a_full_box_refuses_and_so_does_one_for_what_is_too_large(kind: str) -> None:
    async def story(box: MessageQueue) -> None:
        await box.put(b"1")
        await box.put(b"2")
        with pytest.raises(QueueFull, match="2 messages"):
            await box.put(b"3")
        with pytest.raises(TooLarge):
            await box.put(b"x" * 100)
        (lease,) = await box.claim()
        await box.ack(lease)
        await box.put(b"3")
        assert (await box.depth()).ready == 2

    tell(kind, story, bound=2, largest=10)


@both
def test_what_fails_is_tried_again_then_dead_and_can_be_replayed(kind: str) -> None:
    async def story(box: MessageQueue) -> None:
        await box.put(b"1", id="m", context="c")
        fates = []
        for _ in range(2):
            (lease,) = await box.claim(wait=60)
            fates.append(await box.nack(lease, "no luck"))
        assert fates == ["retry", "dead"]
        (letter,) = await box.dead()
        assert (letter.id, letter.attempts, letter.reason) == ("m", 2, "no luck")
        assert await box.replay(["m", "nobody"]) == 1
        (lease,) = await box.claim(wait=60)
        assert lease.attempt == 1
        assert await box.bury(lease, "never") is True
        assert [letter.reason for letter in await box.dead()] == ["never"]
        assert await box.bury(lease, "again") is False

    tell(kind, story, attempts=2, first_delay=0.001, longest_delay=0.001)


@both
def test_who_waits_is_woken_and_who_waits_in_vain_goes_on(kind: str) -> None:
    async def story(box: MessageQueue) -> None:
        assert await box.claim(wait=0.01) == []
        waiting = asyncio.create_task(box.claim(wait=60))
        await asyncio.sleep(0.01)
        await box.put(b"1")
        assert len(await waiting) == 1

    tell(kind, story)


def test_what_was_ended_cannot_be_ended_again() -> None:
    async def story(box: MessageQueue) -> None:
        await box.put(b"1")
        (lease,) = await box.claim()
        assert await box.ack(lease)
        assert not await box.ack(lease)
        assert not await box.release(lease)
        assert not await box.extend(lease)
        assert await box.nack(lease, "late") == "lost"

    tell("memory", story)


def test_dead_letters_are_bounded_and_a_replay_finds_room_or_does_nothing() -> None:
    async def story(box: MessageQueue) -> None:
        for number in range(3):
            await box.put(b"x", id=str(number))
            (lease,) = await box.claim()
            await box.bury(lease, "never")
        assert [letter.id for letter in await box.dead()] == ["1", "2"]
        await box.put(b"y")
        with pytest.raises(QueueFull):
            await box.replay(["1", "2"])
        assert len(await box.dead()) == 2

    tell("memory", story, bound=2)
