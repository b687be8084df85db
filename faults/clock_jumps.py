"""Clocks that jump a day, forwards and backwards, while work is under way.

A gateway's own clock is that of its ``Env``, which jumps every few milliseconds here: it may only be used for what is
shown and kept. Leases live by the clock of the database, and no test may set that of a machine: so the rows are moved
instead, which is the same seen from inside. Clocks that never jump (monotonic ones) do not.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent3.env import Env
from agent3.gateway import Caller, CallRequest
from agent3.model import LOCAL, Done, Outcome, Working, value_of
from agent3.observe.metrics import Metrics
from agent3.protocols.functions import LocalAgent
from agent3.queue import Lease, Queue, Rules
from agent3.server.build import build
from agent3.settings import Settings, Storage
from agent3.storage import Database, Transaction, open_database
from faults._postgres import postgres
from faults.registry import Result, fault

DAY = 86_400.0
CALLS = 300
MESSAGES = 300
HELD = 20
RULES = Rules(lease=1.0, attempts=20)


@fault("clock-jumps")
def clock_jumps(seed: int, calls: int = CALLS) -> Result:
    """Clocks jump a day both ways, of a gateway and of both databases: nothing lost, nothing twice, nothing stuck."""
    logging.getLogger("agent3.queue").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="agent3-clock-jumps-") as name, postgres() as server:
        results = {"gateway": asyncio.run(asyncio.wait_for(jumpy(Path(name), seed, calls), 40))}
        for kind, url in (("sqlite", f"sqlite:///{name}/queue.db"), ("postgres", server.url)):
            for word, seconds in (("forwards", DAY), ("backwards", -DAY)):
                results[f"{kind}_{word}"] = asyncio.run(asyncio.wait_for(jumped(url, word, seconds), 20))
    return {"ok": all(one["ok"] for one in results.values()), **results}


# The clock of the gateway


@dataclass(slots=True)
class JumpingEnv(Env):
    """The real world, except that its wall clock is wrong by ``wrong`` seconds."""

    wrong: float = 0.0

    def now(self) -> float:
        return time.time() + self.wrong


async def jumpy(folder: Path, seed: int, calls: int = CALLS) -> Result:
    """Calls, jobs and repeated keys on a gateway whose clock is never right for long."""
    env = JumpingEnv()
    done: Counter[str] = Counter()
    agent = LocalAgent("Served", agent_id="served")

    @agent.capability
    async def work(name: str) -> str:
        """Works for a while."""
        await asyncio.sleep(0.2)
        done[name] += 1
        return name

    settings = Settings(storage=Storage(url=f"sqlite:///{folder}/house.db"))
    async with build(settings, [agent], env=env, metrics=Metrics()) as server:
        caller = Caller(LOCAL)
        jumping = asyncio.create_task(_jump(env, random.Random(seed)))

        async def call(name: str, *, detach: bool = False) -> Outcome:
            request = CallRequest(agent="served", capability="work", input={"name": name}, key=name, detach=detach)
            outcome = await server.gateway.call(caller, request)
            while isinstance(outcome, Working):
                outcome = await server.gateway.wait(caller, outcome.job or "", 10.0)
            return outcome

        names = [f"n{number}" for number in range(calls)]
        first = await _in_turns([call(name, detach=number % 2 == 1) for number, name in enumerate(names)])
        again = await _in_turns([call(name) for name in names])
        jumping.cancel()
    faults = {
        "not_answered": sum(_said(one) != name for one, name in zip(first, names, strict=True)),
        "answered_otherwise_again": sum(_said(one) != name for one, name in zip(again, names, strict=True)),
        "not_done_once": sum(done[name] != 1 for name in names),
    }
    return {"ok": not any(faults.values()), "calls": calls, **faults}


async def _jump(env: JumpingEnv, chance: random.Random) -> None:
    while True:
        env.wrong = chance.choice((-DAY, 0.0, DAY))
        await asyncio.sleep(0.01)


async def _in_turns(calls: Sequence[object]) -> list[Outcome]:
    """All of them, fifty at a time."""
    gate = asyncio.Semaphore(50)

    async def one(call: object) -> Outcome:
        async with gate:
            return await call  # type: ignore[misc, no-any-return]

    return list(await asyncio.gather(*(one(call) for call in calls)))


def _said(outcome: Outcome) -> object:
    return value_of(outcome.parts) if isinstance(outcome, Done) else outcome


# The clock of the database


async def jumped(url: str, name: str, seconds: float) -> Result:
    """Half of what one consumer holds is ended after the jump, half is forgotten; another does the rest."""
    database = await open_database(url)
    first, second = (Queue(database, name, RULES, metrics=Metrics()) for _ in range(2))
    put = {await first.put(b"x", context=f"c{number % 30}" if number % 2 else None) for number in range(MESSAGES)}
    held = await first.claim(HELD)
    await _jump_database(database, name, seconds)
    early = await _acked(first, held[: HELD // 2])
    taken: Counter[str] = Counter()
    while (leases := await second.claim(50, wait=0.3)) or (await second.depth()).live:
        taken.update(await _acked(second, leases))
    late = await _acked(first, held[HELD // 2 :])
    await first.aclose()
    await second.aclose()
    await database.aclose()
    taken.update(early)
    faults = {
        "lost": len(put - set(taken)),
        "twice": sum(count > 1 for count in taken.values()),
        "late_acks_taken": len(late),
        "early_acks_refused": HELD // 2 - len(early),
    }
    return {"ok": not any(faults.values()), "messages": len(put), **faults}


async def _acked(queue: Queue, leases: Sequence[Lease]) -> list[str]:
    return [lease.id for lease in leases if await queue.ack(lease)]


async def _jump_database(database: Database, queue: str, seconds: float) -> None:
    """Let the database's clock jump, as far as this queue can tell."""

    async def work(tx: Transaction) -> None:
        await tx.run("UPDATE queue_messages SET due = due - ?, put = put - ? WHERE queue = ?", seconds, seconds, queue)

    await database.write(work)
