"""A queue on a database, and a clock that can be pushed: leases live by the database's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent3.env import SeededEnv
from agent3.observe.metrics import Metrics
from agent3.queue import Lease, Queue, Rules
from agent3.storage import Database, Transaction
from tests.support.storage import using

__all__ = ["on_queue", "one", "pass_time"]

T = TypeVar("T")


def on_queue(url: str, story: Callable[[Queue, Database], Awaitable[T]], rules: Rules | None = None) -> T:
    """Run ``story`` with a queue of its own, within 100 seconds."""

    async def run(database: Database) -> T:
        queue = Queue(database, "stories", rules, env=SeededEnv(seed=3), metrics=Metrics())
        try:
            return await story(queue, database)
        finally:
            await queue.aclose()

    return using(url, run)


async def one(queue: Queue) -> Lease:
    """The one message that is claimed now."""
    (lease,) = await queue.claim()
    return lease


async def pass_time(database: Database, seconds: float, queue: str = "stories") -> None:
    """Let the database's clock run ahead, as far as this queue can tell."""

    async def work(tx: Transaction) -> None:
        await tx.run("UPDATE queue_messages SET due = due - ?, put = put - ? WHERE queue = ?", seconds, seconds, queue)
        await tx.run("UPDATE queue_keys SET expires = expires - ? WHERE queue = ?", seconds, queue)

    await database.write(work)
