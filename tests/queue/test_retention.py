"""What queues keep no longer goes, also where nobody uses the queue any more."""

from __future__ import annotations

import asyncio

from agent3.observe.metrics import Metrics
from agent3.queue import Queue, Rules, sweep
from agent3.storage import Database
from tests.support.queues import on_queue, one, pass_time
from tests.support.rig import rig

BRIEFLY = Rules(attempts=1, keep_done=100.0, keep_dead=1_000.0, keep_keys=100.0)


def test_dead_and_archived_messages_and_keys_go_when_their_time_is_over(url: str) -> None:
    async def story(queue: Queue, database: Database) -> None:
        for body in (b"dead", b"done", b"held"):
            await queue.put(body, key=body.decode())
        await queue.nack(await one(queue), "poison")
        await queue.ack(await one(queue))
        held = await one(queue)
        assert await sweep(database) == 0
        await pass_time(database, 200.0)
        assert await sweep(database) == 4, "the archived one and three keys"
        assert [letter.body for letter in await queue.dead()] == [b"dead"]
        await pass_time(database, 1_000.0)
        assert await sweep(database) == 1
        assert await queue.dead() == []
        assert await queue.ack(held)
        assert (await Queue(database, queue.name, metrics=Metrics()).depth()).live == 0

    on_queue(url, story, BRIEFLY)


def test_a_gateway_sweeps_its_queues_with_everything_else() -> None:
    async def story() -> None:
        async with rig() as gateway:
            queue = Queue(gateway.database, "stories", BRIEFLY, metrics=Metrics())
            await queue.put(b"dead")
            await queue.nack(await one(queue), "poison")
            await pass_time(gateway.database, 2_000.0)
            assert gateway.core.runner.takeover._sweep is not None
            assert (await gateway.core.runner.takeover._sweep())["messages and keys"] == 1
            assert await queue.dead() == []
            await queue.aclose()

    asyncio.run(story())
