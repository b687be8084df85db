"""Everything is slow at once: the disk or the database, the agent, and the network of the clients.

Each commit is delayed by 0.3 s, each attempt by 0.05 s, the agent takes its time, and clients are behind a proxy that
delays every piece both ways. Witnesses outside of the gateway: the agent writes down with fsync what it did, clients
what they were told. Nothing may be lost, done twice or refused for being slow; searches and the gateway's own pages,
which need no commit, do not wait for one.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from agent3.testing import FaultProxy, Faults
from faults._gateway import Gateway, Told, ask, asking, gateway
from faults._postgres import postgres
from faults.registry import Result, fault

CALLERS = 16
EACH = 4
JOBS = 8
COMMIT = "300ms"
DELAY = 0.1
FREE_SECONDS = 2.0
"""Seconds in which what needs no commit has to come, at the median."""
POINTS = f"storage.commit=delay:{COMMIT},postgres.commit=delay:{COMMIT},call.before_send=delay:50ms"
AGENT = '''
import asyncio, os
from agent3 import LocalAgent

agent = LocalAgent("served")
diary = os.open("diary", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@agent.capability
async def work(name: str) -> str:
    """Slow work, to be done once."""
    os.write(diary, f"{name}\\n".encode())
    os.fsync(diary)
    await asyncio.sleep(0.5)
    return name
'''


@fault("slow-everything")
def slow_everything(seed: int) -> Result:
    """Commits, attempts, the agent and the network are slow at once: all is done once and told, pages answer."""
    found: Result = {"ok": True}
    for name in ("sqlite", "postgresql"):
        with tempfile.TemporaryDirectory(prefix="agent3-slow-") as folder:
            if name == "sqlite":
                result = _run(Path(folder), "", seed)
            else:
                with postgres() as server:
                    result = _run(Path(folder), server.url, seed)
        found["ok"] = found["ok"] and result["ok"]
        found[name] = result
    return found


def _run(folder: Path, database: str, seed: int) -> Result:
    with gateway(folder, agent=AGENT, database=database, AGENT3_FAILPOINTS=POINTS) as door:
        told, jobs, free, after = asyncio.run(asyncio.wait_for(_crawl(door, seed), 180))
    diary = (folder / "diary").read_text().split()
    return judge(told, jobs, free, after, Counter(diary))


async def _crawl(door: Gateway, seed: int) -> tuple[dict[str, Told], dict[str, str], list[tuple[str, float]], Told]:
    where, told, jobs = urlsplit(door.url), dict[str, Told](), dict[str, str]()
    free: list[tuple[str, float]] = []
    over = asyncio.Event()
    assert where.hostname is not None
    assert where.port is not None
    async with (
        FaultProxy(where.hostname, where.port, seed=seed, faults=Faults(delay=DELAY)) as proxy,
        asking() as session,
    ):
        slow = f"http://{proxy.host}:{proxy.port}"

        async def call(who: int) -> None:
            for number in range(EACH):
                name = f"call-{who}-{number}"
                told[name] = await ask(session, slow, "work", {"name": name})

        async def start(number: int) -> None:
            name = f"job-{number}"
            body = {"agentId": "served", "capability": "work", "input": {"name": name}}
            async with session.post(f"{slow}/v1/call", json=body, headers={"Prefer": "respond-async"}) as answer:
                job = (await answer.json())["job"]
            jobs[name] = "working"
            while jobs[name] == "working":
                async with session.get(f"{slow}/v1/calls/{job}?wait=10") as answer:
                    jobs[name] = str((await answer.json())["status"])

        looking = asyncio.create_task(_look(session, door.url, free, over))
        await asyncio.gather(*(call(who) for who in range(CALLERS)), *(start(number) for number in range(JOBS)))
        over.set()
        await looking
        after = await ask(session, door.url, "work", {"name": "after"})
    return told, jobs, free, after


async def _look(session: aiohttp.ClientSession, url: str, free: list[tuple[str, float]], over: asyncio.Event) -> None:
    """What needs no commit: the pages of the gateway, and a search."""
    while not over.is_set():
        for page in ("/healthz", "/readyz", "/metrics", "/v1/agents"):
            began = time.monotonic()
            async with session.get(url + page) as answer:
                await answer.read()
                free.append((f"{page} {answer.status}", time.monotonic() - began))
        await asyncio.sleep(0.1)


def judge(
    told: dict[str, Told], jobs: dict[str, str], free: list[tuple[str, float]], after: Told, diary: Counter[str]
) -> Result:
    """Everything was done once, and told; nothing that needs no commit waited for one."""
    median = statistics.median(seconds for _, seconds in free) if free else None
    faults = {
        "calls_not_done": sum(one.status != 200 for one in told.values()),
        "jobs_not_done": sum(status != "done" for status in jobs.values()),
        "told_but_not_done": sum(one.status == 200 and not diary[name] for name, one in told.items()),
        "done_twice": sum(count > 1 for count in diary.values()),
        "pages_failed": sum(not what.endswith(" 200") for what, _ in free),
    }
    return {
        "ok": median is not None and median <= FREE_SECONDS and not any(faults.values()) and after.status == 200,
        "calls": len(told),
        "jobs": len(jobs),
        "slowest_call": round(max((one.seconds for one in told.values()), default=0.0), 2),
        "pages": len(free),
        "page_median": None if median is None else round(median, 3),
        "page_slowest": round(max((seconds for _, seconds in free), default=0.0), 3),
        **faults,
        "statuses": dict(Counter(one.status for one in told.values())),
    }
