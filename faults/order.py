"""Order within contexts: with one, fifty and a thousand of them, eight workers, and a tenth of all work failing.

Two processes would show no more: the order is in the rows. The workers share nothing but the database, each has a queue
of its own, and notes what it begins and ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from collections import defaultdict

from agent3.observe.metrics import Metrics
from agent3.queue import Lease, Queue, Rules
from agent3.storage import Database, open_database
from faults._postgres import postgres
from faults.registry import Result, fault

CONTEXTS = (1, 50, 1_000)
MESSAGES = {1: 300, 50: 2_000, 1_000: 3_000}
WORKERS = 8
FAILURES = 0.1
HIGH = 20
RULES = Rules(attempts=50, first_delay=0.005, longest_delay=0.01)


@fault("order")
def order(seed: int, contexts: tuple[int, ...] = CONTEXTS) -> Result:
    """1, 50 and 1,000 contexts, 8 workers, a tenth of the work fails, both databases: nothing out of order."""
    logging.getLogger("agent3.queue").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="agent3-order-") as name, postgres() as server:
        urls = {"sqlite": f"sqlite:///{name}/house.db", "postgres": server.url}
        results = {kind: asyncio.run(asyncio.wait_for(ordered(url, seed, contexts), 80)) for kind, url in urls.items()}
    return {"ok": all(one["ok"] for one in results.values()), **results}


async def ordered(url: str, seed: int, contexts: tuple[int, ...] = CONTEXTS) -> Result:
    """All runs on one database, and the race of the priorities."""
    database = await open_database(url)
    try:
        runs = {f"{count}_contexts": await _run(database, seed, count) for count in contexts}
        overtaken = await _overtaking(database)
    finally:
        await database.aclose()
    wrong = {name: run for name, run in runs.items() if run["violations"] or run["missing"] or not run["failures"]}
    return {"ok": not wrong and overtaken == HIGH, **runs, "high_before_low": overtaken}


async def _run(database: Database, seed: int, contexts: int) -> Result:
    chance = random.Random(f"{seed}/{contexts}")
    queues = [_queue(database, f"order-{contexts}") for _ in range(WORKERS)]
    total = MESSAGES[contexts]
    for number in range(total):
        context = f"c{number % contexts}"
        await queues[0].put(str(number).encode(), context=context, priority=chance.randrange(3))
    witness = _Witness()
    await asyncio.gather(*(_work(queue, witness, random.Random(f"{seed}/{n}")) for n, queue in enumerate(queues)))
    for queue in queues:
        await queue.aclose()
    return {"violations": witness.violations, "missing": total - witness.done, "failures": witness.failures}


class _Witness:
    """Sees every begin and end. A context may have one message out at a time, and only ever the next one."""

    def __init__(self) -> None:
        self.violations = self.done = self.failures = 0
        self._last: dict[str, int] = defaultdict(lambda: -1)
        self._out: set[str] = set()

    def begins(self, lease: Lease) -> None:
        assert lease.context is not None
        self.violations += lease.context in self._out or int(lease.body) <= self._last[lease.context]
        self._out.add(lease.context)

    def ends(self, lease: Lease, *, well: bool) -> None:
        assert lease.context is not None
        self._out.discard(lease.context)
        self.failures += not well
        if well:
            self.done += 1
            self._last[lease.context] = int(lease.body)


async def _work(queue: Queue, witness: _Witness, chance: random.Random) -> None:
    while (leases := await queue.claim(8, wait=0.2)) or (await queue.depth()).live:
        for lease in leases:
            witness.begins(lease)
        await asyncio.gather(*(_one(queue, lease, witness, well=chance.random() >= FAILURES) for lease in leases))


async def _one(queue: Queue, lease: Lease, witness: _Witness, *, well: bool) -> None:
    await asyncio.sleep(0)
    witness.ends(lease, well=well)  # before the word is given: afterwards another may have the next one already
    if well:
        await queue.ack(lease)
    else:
        await queue.nack(lease, "now and then")


async def _overtaking(database: Database) -> int:
    """How many of the important messages, put last, are handed out before all others."""
    queue = _queue(database, "priorities")
    for number in range(200):
        await queue.put(b"low", context=f"low{number % 7}" if number % 2 else None)
    for number in range(HIGH):
        await queue.put(b"high", context=f"high{number}" if number % 2 else None, priority=5)
    first = [lease.body for _ in range(HIGH) for lease in await queue.claim()]
    await queue.aclose()
    return first.count(b"high")


def _queue(database: Database, name: str) -> Queue:
    return Queue(database, name, RULES, metrics=Metrics())
