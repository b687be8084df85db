"""Five times as many calls as the gateway can take: it goes on with what it can, and refuses the rest at once.

The agent works for a fixed time and may do so much at once, so its capacity is known; it is measured all the same,
by callers that wait for their answers. Then calls come at five times that rate whether answers come or not.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults._gateway import Gateway, Told, ask, asking, gateway
from faults.registry import Result, fault

AT_ONCE = 10
WORK_SECONDS = 0.2
TIMES = 5
SECONDS = 10.0
GOODPUT = 0.8
PROMPT_SECONDS = 1.0
AGENT = f'''
import asyncio
from agent3 import LocalAgent

agent = LocalAgent("Served", agent_id="served")

@agent.capability
async def work(name: str) -> str:
    """Works for a while."""
    await asyncio.sleep({WORK_SECONDS})
    return name
'''
CONFIG = f"[limits]\nconcurrent = {AT_ONCE}\n"


@fault("overload")
def overload(_: int, seconds: float = SECONDS) -> Result:
    """Calls at five times the capacity for 10 s: at least 80 % of it is still done, the rest refused at once."""
    with (
        tempfile.TemporaryDirectory(prefix="agent3-overload-") as name,
        gateway(Path(name), agent=AGENT, config=CONFIG) as door,
    ):
        return asyncio.run(asyncio.wait_for(_overloaded(door, seconds), 80))


async def _overloaded(door: Gateway, seconds: float) -> Result:
    async with asking() as session:
        capacity = await _capacity(session, door.url)
        flood = await _flood(session, door.url, TIMES * capacity, seconds)
        after = await ask(session, door.url, "work", {"name": "after"})
    return judge(capacity, flood, seconds, after)


async def _capacity(session: Any, url: str) -> float:
    """Calls per second of as many patient callers as may work at once."""

    async def caller(until: float) -> int:
        done = 0
        while time.monotonic() < until:
            done += (await ask(session, url, "work", {"name": "patient"})).status == 200
        return done

    began = time.monotonic()
    done = await asyncio.gather(*(caller(began + 2.0) for _ in range(AT_ONCE)))
    return sum(done) / (time.monotonic() - began)


async def _flood(session: Any, url: str, rate: float, seconds: float) -> list[Told]:
    """Calls at a rate that no answer slows down."""
    began = time.monotonic()
    tasks: list[asyncio.Task[Told]] = []
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * rate) - len(tasks)
        tasks += [asyncio.create_task(ask(session, url, "work", {"name": "flood"})) for _ in range(due)]
        await asyncio.sleep(0.005)
    return list(await asyncio.gather(*tasks))


def judge(capacity: float, flood: Sequence[Told], seconds: float, after: Told) -> Result:
    """Goodput against capacity, and whether everybody was told something true, soon."""
    good = [one for one in flood if one.status == 200]
    refused = [one for one in flood if one.status == 429]
    goodput = len(good) / seconds
    slowest = sorted(one.seconds for one in refused)[int(len(refused) * 0.99) :]
    faults = {
        "neither_done_nor_refused": len(flood) - len(good) - len(refused),
        "refused_without_retry_after": sum(not one.retry_after for one in refused),
        "wrong_answers": sum(one.body.get("result") != "flood" for one in good),
    }
    prompt = bool(slowest) and slowest[0] <= PROMPT_SECONDS
    return {
        "ok": goodput >= GOODPUT * capacity and prompt and not any(faults.values()) and after.status == 200,
        "capacity": round(capacity, 1),
        "offered": round(len(flood) / seconds, 1),
        "goodput": round(goodput, 1),
        "share": round(goodput / capacity, 3) if capacity else 0.0,
        "refused": len(refused),
        "refusal_p99": round(slowest[0], 3) if slowest else None,
        **faults,
        "statuses": dict(Counter(one.status for one in flood)),
    }
