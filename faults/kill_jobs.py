"""kill -9 while jobs of every kind run: none is lost, none is changed that has ended, and each goes on as it may.

Each child first takes over what the one before left, then starts jobs of every kind and writes a line to a witness
file after each acknowledgement. The parent kills it at random moments. At the end it takes over for the last time,
answers every question, and compares all jobs with the witness.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from agent3.calls import Core, Job
from agent3.calls.runner import Target
from agent3.env import REAL
from agent3.errors import JobNotFound
from agent3.model import LOCAL, Answer, Call, Done, Event, Failed, Needs, Outcome, Working, value_of
from agent3.protocols.functions import Context, LocalAgent, LocalConnector, SyncContext
from agent3.settings import Limits, Server, Settings
from agent3.storage import open_database
from faults.registry import Result, fault

KILLS = 20
SETTINGS = Settings(server=Server(shutdown_seconds=0.0), limits=Limits(per_minute=0, concurrent=1_000_000))
KINDS = ("done", "failed", "canceled", "needs", "replayed", "unrepeated")

worker = LocalAgent("worker")


@worker.capability
async def done(text: str) -> str:
    """Ends well."""
    return text


@worker.capability
async def failed(text: str) -> str:
    """Ends badly."""
    raise ValueError(text)


@worker.capability
def needs(ctx: SyncContext, text: str) -> str:
    """Asks, and keeps what it did before."""
    kept = ctx.once("kept", lambda: f"kept {text}")
    return f"{kept} {ctx.ask('And?')}"


async def _steps(ctx: Context, text: str) -> str:
    """Works for a while, step by step."""
    for number in range(5):
        ctx.progress(number, 5)
        await asyncio.sleep(0.1)
    return text


worker.add(_steps, name="replayed", replay=True)
worker.add(_steps, name="unrepeated")
worker.add(_steps, name="canceled")


@fault("kill-jobs")
def kill_jobs(seed: int, kills: int = KILLS) -> Result:
    """kill -9 while jobs of every kind run, 20 times: none is lost or changed, each goes on as it may."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="agent3-kill-jobs-") as name:
        folder = Path(name)
        for number in range(kills):
            _live_and_die(folder, number, chance)
        with _quietly():
            return asyncio.run(asyncio.wait_for(_judge(folder), 60)) | {"kills": kills}


@contextmanager
def _quietly() -> Iterator[None]:
    """Hundreds of jobs are interrupted here, as they should be, and nobody needs to read it."""
    log = logging.getLogger("agent3.jobs")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _live_and_die(folder: Path, number: int, chance: random.Random) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "faults.kill_jobs", str(folder), str(number)],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
    )
    with child:
        try:
            assert child.stdout is not None
            # Every fifth one is killed at any moment of its start, which is when it takes over.
            if number % 5 == 4:
                time.sleep(chance.uniform(0.3, 1.2))
            elif child.stdout.readline() == b"working\n":
                time.sleep(chance.uniform(0.0, 0.5))
            else:
                raise RuntimeError(f"Worker {number} ended by itself with code {child.wait(10)}.")
        finally:
            child.kill()


# The child


@asynccontextmanager
async def _house(folder: Path) -> AsyncIterator[Core]:
    connector = LocalConnector()
    connector.add(worker)

    async def lookup(agent: str, name: str) -> Target:
        return worker.agent, worker.functions[name].capability

    database = await open_database(f"sqlite:///{folder}/core.db")
    core = Core.build(SETTINGS, database, {"local": connector}, lookup)
    try:
        yield core
    finally:
        await core.aclose()
        await database.aclose()


async def _work_until_killed(folder: Path, number: int) -> None:
    witness = os.open(folder / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with _house(folder) as core:
        await core.runner.recover()
        for turn in range(1_000_000):
            for kind in KINDS:
                line = await _one(core, kind, f"{number}/{turn}")
                os.write(witness, f"{json.dumps(line)}\n".encode())
            if not turn:
                print("working", flush=True)


async def _one(core: Core, kind: str, text: str) -> list[Any]:
    """Start a job and bring it into its state; kind, id, text, and how it ended if it has."""
    capability = worker.functions[kind].capability
    call = Call(id=REAL.id(), principal=LOCAL, agent="worker", capability=kind, input={"text": text})
    await core.runner.start(call, (worker.agent, capability), detach=True)
    end: Outcome | None = None
    if kind == "canceled":
        end = await core.runner.cancel(LOCAL, call.id)
    elif kind in ("done", "failed", "needs"):
        end = await core.runner.wait(LOCAL, call.id, 10)
    return [kind, call.id, text, _words(end) if kind != "needs" else None]


def _words(outcome: Outcome | None) -> str | None:
    if isinstance(outcome, Done):
        return f"done {value_of(outcome.parts)}"
    return f"{outcome.code} {outcome.message}" if isinstance(outcome, Failed) else None


# The judge


async def _judge(folder: Path) -> Result:
    lines = (folder / "witness").read_text().splitlines(True)
    witness = [json.loads(line) for line in lines if line.endswith("\n")]
    async with _house(folder) as core:
        taken = await core.runner.recover()
        wrong: Counter[str] = Counter()
        ends: Counter[str] = Counter()
        for kind, job_id, text, end in witness:
            job = await _ended(core, job_id)
            if job is None:
                wrong["lost"] += 1
                continue
            ends[f"{kind}: {_code(job)}"] += 1
            wrong.update(_faults(kind, job, text, end, [line.event for line in await core.jobs.log.read(job_id)]))
        left = (await core.jobs.count_by_status()).get("working", 0)
        check = await core.database.check(thorough=True)
    ok = bool(witness) and not wrong and not left and check["integrity"] == "ok"
    return {
        "ok": ok and ends["unrepeated: interrupted"] > 0 and taken > 0,
        "jobs": len(witness),
        "ends": dict(sorted(ends.items())),
        "wrong": dict(wrong),
        "still_working": left,
        "integrity": check["integrity"],
    }


async def _ended(core: Core, job_id: str) -> Job | None:
    """The job when it has ended, its question answered; None if there is none."""
    try:
        outcome = await core.runner.wait(LOCAL, job_id, 20)
        if isinstance(outcome, Needs):
            await core.runner.answer(LOCAL, job_id, {"q1": Answer("accept", "answered")})
        return await core.runner.get(LOCAL, job_id)
    except JobNotFound:
        return None


def _code(job: Job) -> str:
    return job.outcome.code if isinstance(job.outcome, Failed) else job.status


def _faults(kind: str, job: Job, text: str, end: str | None, events: list[Event]) -> list[str]:
    """What is wrong with a job, by what its kind promises."""
    expected = {
        "done": {f"done {text}"},
        "needs": {f"done kept {text} answered"},
        "replayed": {f"done {text}"},
    }.get(kind)
    words = _words(job.outcome)
    faults = []
    if isinstance(job.outcome, Needs | Working) or not job.ended:
        faults.append("not ended")
    if end is not None and words != end:
        faults.append("changed after its end")
    if expected is not None and words not in expected:
        faults.append("wrong result")
    if kind == "unrepeated" and _code(job) not in ("done", "interrupted"):
        faults.append("neither done nor interrupted")
    if kind == "canceled" and _code(job) != "canceled":
        faults.append("not canceled")
    numbers = [event.seq for event in events]
    turns = [event.turn for event in events if event.kind == "turn"]
    if numbers != sorted(set(numbers)) or turns != list(range(1, job.turn + 1)):
        faults.append("events doubled or lost")
    if kind == "unrepeated" and len({event.done for event in events}) != len(events):
        faults.append("a step told twice")
    return faults


if __name__ == "__main__":
    with _quietly():
        asyncio.run(_work_until_killed(Path(sys.argv[1]), int(sys.argv[2])))
