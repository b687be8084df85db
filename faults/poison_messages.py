"""Messages that nobody can work on: each is dead after exactly the allowed attempts, and the others do not suffer.

Afterwards the workers are mended, and a replay delivers every dead letter.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field

from agent3.observe.metrics import Metrics
from agent3.queue import Letter, Queue, Rules
from agent3.storage import open_database
from faults._postgres import postgres
from faults.registry import Result, fault

MESSAGES = 1_000
CONTEXTS = 20
WORKERS = 8
SHARE = 0.1
RULES = Rules(attempts=4, first_delay=0.01, longest_delay=0.05)


@dataclass(slots=True)
class Seen:
    """How often each message was handed out, and how often it was done."""

    tried: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)


@fault("poison-messages")
def poison_messages(seed: int, messages: int = MESSAGES) -> Result:
    """A tenth of 1,000 messages always fails, on both databases: dead after exactly 4 attempts, replay delivers all."""
    logging.getLogger("agent3.queue").setLevel(logging.ERROR)  # it says of every dead letter that it is one
    with tempfile.TemporaryDirectory(prefix="agent3-poison-") as name, postgres() as server:
        urls = {"sqlite": f"sqlite:///{name}/house.db", "postgres": server.url}
        results = {kind: asyncio.run(asyncio.wait_for(poisoned(url, seed, messages), 80)) for kind, url in urls.items()}
    return {"ok": all(one["ok"] for one in results.values()), **results}


async def poisoned(url: str, seed: int, messages: int = MESSAGES) -> Result:
    """Put them, work until only dead letters are left, mend the workers, replay, and work again."""
    chance = random.Random(seed)
    database = await open_database(url)
    queue = Queue(database, "poison", RULES, metrics=Metrics())
    bad = {f"m{number}" for number in range(messages) if chance.random() < SHARE}
    names = [f"m{number}" for number in range(messages)]
    await asyncio.gather(
        *(
            queue.put(b"x", id=name, context=f"c{number % CONTEXTS}" if number % 2 else None)
            for number, name in enumerate(names)
        )
    )
    first = await _worked(queue, bad)
    letters = await _letters(queue)
    replayed = await queue.replay([letter.id for letter in letters])
    second = await _worked(queue, set())
    depth = await queue.depth()
    await queue.aclose()
    await database.aclose()
    faults = {
        "good_not_done_once": sum(first.done[name] != 1 for name in names if name not in bad),
        "bad_not_tried_as_often_as_allowed": sum(first.tried[name] != RULES.attempts for name in bad),
        "dead_and_not_bad": len({letter.id for letter in letters} ^ bad),
        "dead_without_history": sum(len(letter.history) != RULES.attempts or not letter.reason for letter in letters),
        "not_replayed": len(bad) - replayed,
        "replayed_and_not_done_once": sum(second.done[name] != 1 for name in bad),
        "left": depth.live + depth.dead,
    }
    return {"ok": bool(bad) and not any(faults.values()), "messages": messages, "poisonous": len(bad), **faults}


async def _worked(queue: Queue, bad: set[str]) -> Seen:
    """Workers until nothing is left that has not ended."""
    seen = Seen()

    async def worker() -> None:
        while (leases := await queue.claim(4, wait=0.3)) or (await queue.depth()).live:
            for lease in leases:
                seen.tried[lease.id] += 1
                if lease.id in bad:
                    await queue.nack(lease, "it cannot be worked on")
                elif await queue.ack(lease):
                    seen.done[lease.id] += 1

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    return seen


async def _letters(queue: Queue) -> list[Letter]:
    found: list[Letter] = []
    while page := await queue.dead(after=found[-1].seq if found else 0):
        found += page
    return found
