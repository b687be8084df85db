"""A gateway of several workers under steady load, of which one is killed again and again, and all are rolled once.

Witnesses outside of the gateway: the agent writes down, with fsync, each call that it begins and each that it ends; the
clients write down what they sent and what they were told. Then both are compared. A call that was in flight on a worker
that dies may be lost by its client, whose connection breaks; no other connection may break, and every call is answered,
however long a busy machine takes. No call may have been done twice unless it may be repeated, and every call that was
told as done was done. Jobs that were acknowledged all end: done, or interrupted where they must not be repeated.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from faults._gateway import Gateway, ask, asking, gateway
from faults._postgres import postgres
from faults.registry import Result, fault

WORKERS = 2
CALLERS = 12
SECONDS = float(os.environ.get("FAULT_SECONDS", "20"))
"""How long it goes on; 600 for the long run."""
DATABASES = os.environ.get("FAULT_DATABASES", "sqlite postgresql").split()
"""On which, one after the other."""
EVERY = min(20.0, SECONDS / 4)
"""Seconds between two kills."""
LOAD = 0.8
PROBE_LIMIT = 5.0
ANSWER_SECONDS = 180.0
"""Within which every call is answered. It finds calls that are never answered: no promise is about a busy machine."""
WORKERS_SECONDS = 300.0
"""How long a new worker may take to come on a machine that is busy elsewhere. No promise is about it."""
AGENT = '''
import asyncio, os
from agent3 import Context, LocalAgent

agent = LocalAgent("served")
diary = os.open("diary", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(line):
    os.write(diary, f"{os.getpid()} {line}\\n".encode())
    os.fsync(diary)


@agent.capability
async def unrepeated(name: str, seconds: float) -> str:
    """Must be done once at most."""
    note(f"begin {name}")
    await asyncio.sleep(seconds)
    note(f"end {name}")
    return f"{os.getpid()} {name}"


agent.add(unrepeated, name="repeated", idempotent=True)
'''


@dataclass(slots=True)
class _Seen:
    """What clients were told."""

    told: dict[str, str] = field(default_factory=dict)
    broken: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    """Calls whose connection broke: when they were sent, when that was seen, and whether they ask for a job."""
    why: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)
    killed: dict[int, tuple[float, float]] = field(default_factory=dict)
    """When each process that was killed was, and when it was gone."""
    refused: Counter[str] = field(default_factory=Counter)
    jobs: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    slowest_probe: float = 0.0

    def note_failure(self, name: str, began: float, is_job: bool, error: Exception) -> None:
        """A call got no answer: its connection broke, or nothing came in all the time it was given."""
        if isinstance(error, TimeoutError):
            self.unanswered.append(name)
        else:
            self.broken[name] = began, time.monotonic(), is_job
            self.why[f"{type(error).__name__}: {error}"[:100]] += 1


@fault("workers-die")
def workers_die(seed: int, seconds: float = SECONDS) -> Result:
    """One of two workers is killed again and again at 80 % load, and all are rolled: nothing acknowledged is lost."""
    found: Result = {"ok": True}
    for name in DATABASES:
        with tempfile.TemporaryDirectory(prefix="agent3-workers-") as folder:
            if name == "sqlite":
                result = _run(Path(folder), "", seed, seconds)
            else:
                with postgres() as server:
                    result = _run(Path(folder), server.url, seed, seconds)
        found["ok"] = found["ok"] and result["ok"]
        found[name] = result
    return found


def _run(folder: Path, database: str, seed: int, seconds: float) -> Result:
    with gateway(folder, "--workers", str(WORKERS), agent=AGENT, database=database) as door:
        try:
            seen = asyncio.run(
                asyncio.wait_for(_suffer(door, random.Random(seed), seconds), seconds + 2 * WORKERS_SECONDS)
            )
        finally:
            door.process.terminate()
            door.process.wait(60)
    diary = (folder / "diary").read_text().splitlines()
    return judge(seen, diary)


async def _suffer(door: Gateway, dice: random.Random, seconds: float) -> _Seen:
    seen, over = _Seen(), asyncio.Event()
    async with asking(ANSWER_SECONDS) as session:
        await _wait_for_workers(session, door.url)
        rate = LOAD * await _capacity(session, door.url)
        pause = CALLERS / max(1.0, rate)
        tasks = [
            asyncio.create_task(_call(session, door.url, seen, over, f"{number}", pause, random.Random(dice.random())))
            for number in range(CALLERS)
        ]
        tasks.append(asyncio.create_task(_probe(session, door.url, seen, over)))
        await _kill(session, door, seen, seconds)
        over.set()
        await asyncio.gather(*tasks)
        for name, job in list(seen.jobs.items()):
            seen.told[name] = await _follow(session, door.url, job)
    return seen


async def _capacity(session: aiohttp.ClientSession, url: str) -> float:
    """Calls per second of callers that wait for their answers; the agent's own time is in it."""
    done, until = 0, time.monotonic() + 2.0

    async def caller(number: int) -> None:
        nonlocal done
        while time.monotonic() < until:
            name = f"warm-{number}-{done}"
            done += (await ask(session, url, "repeated", {"name": name, "seconds": 0.01})).status == 200

    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return done / 2.0


async def _call(
    session: aiohttp.ClientSession,
    url: str,
    seen: _Seen,
    over: asyncio.Event,
    who: str,
    pause: float,
    dice: random.Random,
) -> None:
    """Calls and jobs of both kinds, at a steady pace."""
    number = 0
    while not over.is_set():
        began, number = time.monotonic(), number + 1
        name, kind = f"{who}-{number}", dice.choice(("repeated", "unrepeated"))
        seen.kinds[name] = kind
        given = {"name": name, "seconds": dice.choice((0.0, 0.01, 0.1))}
        is_job = number % 3 == 0
        body = {"agentId": "served", "capability": kind, "input": given}
        headers = {"Prefer": "respond-async"} if is_job else {}
        try:
            async with session.post(f"{url}/v1/call", json=body, headers=headers) as answer:
                answered = await answer.json()
            if is_job and answer.status == 202:
                seen.jobs[name] = str(answered["job"])
            elif not is_job and answer.status == 200:
                seen.told[name] = "done"
            else:
                seen.refused[f"{answer.status} {answered.get('errorCode') or answered.get('error')}"[:200]] += 1
        except (aiohttp.ClientError, OSError) as error:
            seen.note_failure(name, began, is_job, error)
        await asyncio.sleep(max(0.0, began + pause - time.monotonic()))


async def _probe(session: aiohttp.ClientSession, url: str, seen: _Seen, over: asyncio.Event) -> None:
    while not over.is_set():
        for page in ("/healthz", "/readyz", "/metrics"):
            began = time.monotonic()
            try:
                async with session.get(url + page) as answer:
                    await answer.read()
            except (aiohttp.ClientError, OSError):
                continue  # it was asked on a connection of the one that died
            seen.slowest_probe = max(seen.slowest_probe, time.monotonic() - began)
        await asyncio.sleep(0.2)


async def _kill(session: aiohttp.ClientSession, door: Gateway, seen: _Seen, seconds: float) -> None:
    """Kill a worker every few seconds; in the middle, roll all of them."""
    until, rolled = time.monotonic() + seconds, False
    while time.monotonic() < until:
        await asyncio.sleep(EVERY)
        if not rolled and time.monotonic() > until - seconds / 2:
            door.process.send_signal(signal.SIGHUP)
            rolled = True
            continue
        told = await ask(session, door.url, "repeated", {"name": "pid", "seconds": 0.0})
        if told.status == 200:
            process, killed = int(str(told.body["result"]).split()[0]), time.monotonic()
            os.kill(process, signal.SIGKILL)
            # On a busy machine it takes its time to die, and its connections are open until then.
            with suppress(ProcessLookupError):
                while True:
                    os.kill(process, 0)
                    await asyncio.sleep(0.01)
            seen.killed[process] = killed, time.monotonic()
            await _wait_for_workers(session, door.url)


async def _wait_for_workers(session: aiohttp.ClientSession, url: str) -> None:
    until = time.monotonic() + WORKERS_SECONDS
    while time.monotonic() < until:
        try:
            async with session.get(f"{url}/metrics") as answer:
                found = re.search(r"^agent3_workers (\d+)", await answer.text(), re.MULTILINE)
        except (aiohttp.ClientError, OSError):
            found = None
        if found is not None and int(found[1]) == WORKERS:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"not all workers were there again within {WORKERS_SECONDS:g} s")


async def _follow(session: aiohttp.ClientSession, url: str, job: str) -> str:
    """How a job ended."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            async with session.get(f"{url}/v1/calls/{job}?wait=10") as answer:
                told: dict[str, Any] = json.loads(await answer.text())
        except (aiohttp.ClientError, OSError, ValueError):
            continue
        if told.get("status") != "working":
            return "done" if told.get("success") else f"{told.get('status')} {told.get('errorCode')}"
    return "working"


def judge(seen: _Seen, diary: list[str]) -> Result:
    """Compare what clients were told with what the agent wrote down."""
    begun, ended, by = Counter[str](), Counter[str](), dict[str, int]()
    for line in diary:
        process, what, name = line.split()
        (begun if what == "begin" else ended)[name] += 1
        by[name] = int(process)

    def was_killed(name: str) -> bool:
        """Whether a call was in flight on a worker while that was killed; one that did not begin may have been."""
        sent, broke, is_job = seen.broken[name]
        if is_job or name not in by:  # a job may have been taken over, so who did it says nothing
            times = list(seen.killed.values())
        else:
            times = [seen.killed[by[name]]] if by[name] in seen.killed else []
        return any(sent <= gone and broke >= at for at, gone in times)

    faults = {
        "told_done_but_not_done": sum(what == "done" and not ended[name] for name, what in seen.told.items()),
        "done_twice": sum(count > 1 for name, count in begun.items() if seen.kinds.get(name) == "unrepeated"),
        "jobs_lost": sum(seen.told.get(name) not in ("done", "failed interrupted") for name in seen.jobs),
        "repeatable_jobs_interrupted": sum(
            seen.told.get(name) != "done" for name in seen.jobs if seen.kinds[name] == "repeated"
        ),
        "refused": sum(seen.refused.values()),
        "broken_beyond_those_in_flight": sum(not was_killed(name) for name in seen.broken),
        "unanswered": len(seen.unanswered),
        "slow_probes": int(seen.slowest_probe > PROBE_LIMIT),
    }
    return {
        "ok": not any(faults.values()) and bool(seen.killed) and bool(seen.told) and bool(seen.jobs),
        "calls": len(seen.kinds),
        "jobs": len(seen.jobs),
        "kills": len(seen.killed),
        "broken": len(seen.broken),
        "broken_by": dict(seen.why),
        "slowest_probe": round(seen.slowest_probe, 3),
        "interrupted": sum(what.endswith("interrupted") for what in seen.told.values()),
        **faults,
        "refusals": dict(seen.refused),
    }
