"""50,000 puts into a queue of 10,000 without a consumer: exactly 40,000 refusals, and then all 10,000 come out."""

from __future__ import annotations

import asyncio
import tempfile

from agent3.observe.metrics import Metrics
from agent3.queue import Queue, QueueFull
from agent3.storage import open_database
from faults._postgres import postgres
from faults.registry import Result, fault

PUTS = 50_000
PUTTERS = 64


@fault("full-queue")
def full_queue(_: int, puts: int = PUTS) -> Result:
    """50,000 puts into 10,000 places, on both databases: exactly 40,000 refusals, then all 10,000 are delivered."""
    with tempfile.TemporaryDirectory(prefix="agent3-full-queue-") as name, postgres() as server:
        urls = {"sqlite": f"sqlite:///{name}/house.db", "postgres": server.url}
        results = {kind: asyncio.run(asyncio.wait_for(flood(url, puts), 180)) for kind, url in urls.items()}
    return {"ok": all(one["ok"] for one in results.values()), **results}


async def flood(url: str, puts: int = PUTS) -> Result:
    """Put more than fits, from many tasks at once, then take everything out."""
    database = await open_database(url)
    queue = Queue(database, "full", metrics=Metrics())
    refused = unexplained = 0
    accepted: set[str] = set()

    async def putter(number: int) -> None:
        nonlocal refused, unexplained
        for _ in range(number, puts, PUTTERS):
            try:
                accepted.add(await queue.put(b"x" * 300))
            except QueueFull as full:
                refused += 1
                unexplained += not full.retry_after

    await asyncio.gather(*(putter(number) for number in range(PUTTERS)))
    delivered = await _all_out(queue)
    await database.aclose()
    expected = min(puts, queue.rules.bound)
    ok = refused == puts - expected and delivered == accepted and len(accepted) == expected and not unexplained
    return {"ok": ok, "puts": puts, "refused": refused, "accepted": len(accepted), "delivered": len(delivered)}


async def _all_out(queue: Queue) -> set[str]:
    out: list[str] = []
    while leases := await queue.claim(500):
        done = await asyncio.gather(*(queue.ack(lease) for lease in leases))
        out += [lease.id for lease, was in zip(leases, done, strict=True) if was]
    await queue.aclose()
    return set(out) if len(out) == len(set(out)) else set()
