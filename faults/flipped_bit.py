"""One bit of a database or of an artifact is turned: it is found and named, and what was damaged is never served.

SQLite keeps no checksums of its pages. What its integrity check cannot see, the bytes inside a row, is found by the
checksum of a message, of an agent, of a job and its events; an artifact is known by its hash. Each round turns one bit
anywhere in the file, and everything that a user could be served is read and compared with what was stored.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from agent3.calls.jobs import Job, Jobs
from agent3.calls.outcomes import describe_job
from agent3.directory import Directory
from agent3.env import REAL
from agent3.errors import Agent3Error, Corrupt, JobNotFound
from agent3.model import Agent, Call, Done, Event, Part, Principal, Route
from agent3.observe.metrics import Metrics
from agent3.queue import Queue, Rules
from agent3.storage import Blobs, Database, open_database
from faults.registry import Result, fault

ROUNDS = 150
MESSAGES = 120
AGENTS = 60
JOBS = 120
ARTIFACTS = 40
RULES = Rules(bound=100_000, lease=600.0)
ALICE = Principal("alice")
ROUTE = Route("local", "target", "do")


@fault("flipped-bit")
def flipped_bit(seed: int, rounds: int = ROUNDS) -> Result:
    """A bit is turned in a database 150 times, and in 40 artifacts: found and named, nothing damaged is served."""
    chance = random.Random(seed)
    logging.getLogger("agent3").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="agent3-flipped-bit-") as name:
        database = asyncio.run(asyncio.wait_for(_in_database(Path(name), chance, rounds), 80))
        artifacts = asyncio.run(asyncio.wait_for(_in_artifacts(Path(name, "artifacts"), chance), 20))
    return {"ok": database["ok"] and artifacts["ok"], "database": database, "artifacts": artifacts}


def flip(file: Path, chance: random.Random) -> None:
    """Turn one bit."""
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


@dataclass(slots=True)
class Known:
    """What was stored, as a user would be served it."""

    messages: dict[str, bytes] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    jobs: dict[str, object] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)


@dataclass(slots=True)
class Look:
    """What one look at a damaged database found."""

    named: int = 0
    """Errors and log lines that tell of the damage."""
    missing: int = 0
    """What was stored and is not there, without an error at its place."""
    wrong: list[str] = field(default_factory=list)
    """What was served and is not what was stored."""

    def verdict(self, *, checked: bool) -> str:
        if self.wrong:
            return f"served damaged: {self.wrong[0]}"
        if checked:
            return "named by the check"
        if self.named:
            return "named when read"
        return "lost without a word" if self.missing else "harmless"


async def _in_database(folder: Path, chance: random.Random, rounds: int) -> Result:
    whole, file = folder / "whole.db", folder / "flipped.db"
    known = await filled(whole, chance)
    found: Counter[str] = Counter()
    for _ in range(rounds):
        for tail in ("-wal", "-shm"):
            file.with_name(file.name + tail).unlink(missing_ok=True)
        shutil.copyfile(whole, file)
        flip(file, chance)
        found.update([await looked_at(file, known)])
    good = sum(found[word] for word in ("not opened", "named by the check", "named when read", "harmless"))
    return {"ok": good == rounds and found["named when read"] > 0, "rounds": rounds, **found}


async def filled(file: Path, chance: random.Random) -> Known:
    """A database with rows of every kind that somebody is served, and what they are."""
    database = await open_database(f"sqlite:///{file}")
    known = Known()
    queue = Queue(database, "letters", RULES, metrics=Metrics())
    for number in range(MESSAGES):
        body = chance.randbytes(chance.randrange(50, 3_000))
        known.messages[await queue.put(body, context=f"c{number}" if number % 2 else None)] = body
    directory = Directory(database, REAL, Metrics())
    for number in range(AGENTS):
        agent = Agent(id=f"agent{number}", name=_text(chance), description=_text(chance))
        await directory.add(agent)
        known.agents[agent.id] = agent
    jobs = Jobs(database, REAL, metrics=Metrics())
    for _ in range(JOBS):
        job = await _a_job(jobs, chance)
        known.jobs[job.id] = describe_job(job)
        known.events[job.id] = [line.event for line in await jobs.log.read(job.id)]
    await jobs.leases.release_all()
    await queue.aclose()
    await database.aclose()
    return known


async def _a_job(jobs: Jobs, chance: random.Random) -> Job:
    """One that ended, after it had told something."""
    call = Call(
        id=REAL.id(), principal=ALICE, agent="target", capability="do", input={"text": _text(chance)}, key=REAL.id()
    )
    job, _ = await jobs.open(call)
    events = [Event("log", text=_text(chance), seq=number, turn=1) for number in (1, 2, 3)]
    await jobs.append(job, events)
    return await jobs.end_turn(job, Done((Part(text=_text(chance)),)), ROUTE, written=3)


def _text(chance: random.Random) -> str:
    return chance.randbytes(chance.randrange(20, 400)).hex()


async def looked_at(file: Path, known: Known) -> str:
    """What became of the damage, in a few words."""
    try:
        database = await open_database(f"sqlite:///{file}")
    except Agent3Error:
        return "not opened"
    look, checked = Look(), False
    try:
        checked = (await database.check(thorough=True))["integrity"] != "ok"
        await _served_agents(database, known, look)
        await _served_jobs(database, known, look)
        await _served_messages(database, known, look)
    except Agent3Error:
        look.named += 1
    finally:
        await database.aclose()
    return look.verdict(checked=checked)


async def _served_agents(database: Database, known: Known, look: Look) -> None:
    metrics = Metrics()
    for agent in await Directory(database, REAL, metrics).everything():
        if known.agents.get(agent.id) != agent:
            look.wrong.append(f"agent {agent.id}")
        look.missing -= 1
    look.missing += len(known.agents)
    look.named += "undecodable row" in metrics.render()[0].decode()


async def _served_jobs(database: Database, known: Known, look: Look) -> None:
    metrics = Metrics()
    jobs = Jobs(database, REAL, metrics=metrics)
    for name, stored in known.jobs.items():
        try:
            if describe_job(await jobs.get(ALICE.id, name)) != stored:
                look.wrong.append(f"job {name}")
            _compare_events(name, [line.event for line in await jobs.log.read(name)], known, look)
        except Corrupt as error:
            look.named += name in error.message
        except JobNotFound:
            look.missing += 1
    look.named += "undecodable row" in metrics.render()[0].decode()


def _compare_events(name: str, events: list[Event], known: Known, look: Look) -> None:
    """An event that cannot be read is told in its place as one that says so."""
    stored = {event.seq: event for event in known.events[name]}
    look.missing += len(stored) - len(events)
    for event in events:
        if event != stored.get(event.seq) and "cannot be read" not in (event.text or ""):
            look.wrong.append(f"event {name}/{event.seq}")


async def _served_messages(database: Database, known: Known, look: Look) -> None:
    queue = Queue(database, "letters", RULES, metrics=Metrics())
    served: set[str] = set()
    try:
        while leases := await queue.claim(100):
            look.wrong += [f"message {one.id}" for one in leases if known.messages.get(one.id) != one.body]
            if served & {one.id for one in leases}:  # an index that no longer fits its table: it would go on for ever
                look.missing += 1
                return
            served |= {one.id for one in leases}
        look.named += len(await queue.dead())
        look.missing += len(known.messages.keys() - served)
    finally:
        await queue.aclose()


async def _in_artifacts(folder: Path, chance: random.Random) -> Result:
    blobs = Blobs(folder)
    stored = {await blobs.put(data): data for data in (chance.randbytes(5_000) for _ in range(ARTIFACTS))}
    hurt = set(chance.sample(sorted(stored), ARTIFACTS // 2))
    for file in folder.rglob("*"):
        if file.name in hurt:
            flip(file, chance)
    told = {name: await _got(blobs, name) for name in stored}
    faults = {
        "served_damaged": sum(isinstance(told[name], bytes) for name in hurt),
        "not_named": sum(name not in str(told[name]) for name in hurt),
        "whole_and_not_served": sum(told[name] != stored[name] for name in stored.keys() - hurt),
        "not_mended_by_storing_again": sum([await blobs.put(stored[name]) != name for name in hurt]),
    }
    healed = [await _got(blobs, name) == stored[name] for name in hurt]
    return {"ok": all(healed) and not any(faults.values()), "flipped": len(hurt), **faults}


async def _got(blobs: Blobs, name: str) -> bytes | str:
    try:
        return await blobs.get(name)
    except Corrupt as error:
        return error.message
