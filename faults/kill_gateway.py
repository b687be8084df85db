"""kill -9 of ``agent3 serve`` under sixteen producers and four consumers, who all speak HTTP to it.

A message is a call with a key, to a function that asks a question and waits. It is acknowledged by the answer to the
question, with which the call ends. A producer repeats its call under the same key until it was told the job; consumers
answer each job with a word of their own, some jobs two of them at once. The parent kills the gateway, starts it again,
and at the end compares the database with what producers and consumers were told.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from agent3.calls.jobs import Job, Jobs
from agent3.env import REAL
from agent3.errors import JobNotFound
from agent3.model import LOCAL, Done, value_of
from agent3.storage import open_database
from faults._gateway import asking, environment, options, queued
from faults.registry import Result, fault

KILLS = 100
PRODUCERS = 16
CONSUMERS = 4
EACH_LIFE = 202
"""Messages that a life sees at least, so that there are 20,000."""
BEHIND = 100
"""Messages that may wait for a consumer before producers wait for them."""
SECONDS = 2_400.0
"""In which it must end, on a busy machine too: two cores with a load of 12 took 1,550."""
PATIENCE = 240.0
"""Seconds that anything may take before it is taken for hung."""
SLACK = 1.0
PLAIN_STARTS = 3
AGENT = '''
from agent3 import Context, LocalAgent

agent = LocalAgent("served")


@agent.capability(replay=True)
async def message(ctx: Context, name: str) -> str:
    """Waits for its acknowledgement."""
    return await ctx.ask(name, str)
'''


@fault("kill-gateway")
def kill_gateway(seed: int, kills: int = KILLS, each: int = EACH_LIFE) -> Result:
    """kill -9 of agent3 serve under 16 producers and 4 consumers over HTTP, 100 times: nothing lost or acked twice."""
    with tempfile.TemporaryDirectory(prefix="agent3-kill-gateway-") as name:
        return asyncio.run(_story(Path(name), random.Random(seed), kills, each))


async def _story(folder: Path, chance: random.Random, kills: int, each: int) -> Result:
    (folder / "served.py").write_text(AGENT)
    (folder / "agent3.toml").write_text("")
    plain = [await _plain_start(folder) for _ in range(PLAIN_STARTS)]
    async with asking() as session:
        crowd = Crowd(session)
        until = time.monotonic() + SECONDS
        starts = await _lives(folder, crowd, chance, kills, each, until)
        await _last_life(folder, crowd)
    plain += [await _plain_start(folder) for _ in range(PLAIN_STARTS)]
    judged = await judge(folder, crowd)
    timed = [one for one in starts if one is not None]
    late = sum(one > statistics.median(plain) + SLACK for one in timed)
    return judged | {
        "ok": judged["ok"] and not late and len(starts) == kills,
        "kills": len(starts),
        "plain_start_s": round(statistics.median(plain), 2),
        "slowest_plain_start_s": round(max(plain), 2),
        "start_after_kill_s": round(statistics.median(timed), 2) if timed else None,
        "slowest_start_after_kill_s": round(max(timed), 2) if timed else None,
        "started_late": late,
    }


# The gateway


async def _serve(folder: Path) -> asyncio.subprocess.Process:
    with (folder / "serve.log").open("a") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent3", "serve", "served:agent", "--port", "0", *options(folder)),
            cwd=folder,
            env=environment(folder),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )


async def _address(process: asyncio.subprocess.Process, folder: Path) -> str:
    """Where it serves, as soon as it does."""
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    if not line:
        raise RuntimeError(f"agent3 serve ended by itself: {(folder / 'serve.log').read_text()[-500:]}")
    return line.decode().split()[-1]


async def _ready(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        with suppress(aiohttp.ClientError):
            async with session.get(f"{url}/readyz") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.01)


@asynccontextmanager
async def _living(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await _serve(folder)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _plain_start(folder: Path) -> float:
    """The seconds that a start takes when the one before was stopped in good order."""
    began = time.monotonic()
    async with asking() as session, _living(folder) as process:
        await asyncio.wait_for(_ready(session, await _address(process, folder)), PATIENCE)
        took = time.monotonic() - began - queued(process.pid)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), PATIENCE)
    return took


async def _lives(
    folder: Path, crowd: Crowd, chance: random.Random, kills: int, each: int, until: float
) -> list[float | None]:
    """Kill it again and again; the seconds of each start, None for those that it did not survive."""
    starts: list[float | None] = []
    async with crowd.busy():
        while len(starts) < kills and time.monotonic() < until:
            starts.append(await _life(folder, crowd, chance, len(starts), each))
            if len(starts) % 10 == 0:
                print(f"kill-gateway: {len(starts)} kills, {crowd}", file=sys.stderr, flush=True)
    return starts


async def _life(folder: Path, crowd: Crowd, chance: random.Random, number: int, each: int) -> float | None:
    began = time.monotonic()
    async with _living(folder) as process:
        if number % 5 == 4:  # at any moment of its start
            await asyncio.sleep(chance.uniform(0.1, 1.0))
            return None
        url = await _address(process, folder)
        await asyncio.wait_for(_ready(crowd.session, url), PATIENCE)
        took = time.monotonic() - began - queued(process.pid)
        enough = len(crowd.accepted) + each * 5 // 4
        with crowd.meets(url):
            async with asyncio.timeout(PATIENCE):
                while len(crowd.accepted) < enough:
                    await asyncio.sleep(0.005)
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            process.kill()
        return took


async def _last_life(folder: Path, crowd: Crowd) -> None:
    """Nobody kills it any more: what is under way is brought to its end."""
    async with _living(folder) as process:
        with crowd.meets(await _address(process, folder)):
            await asyncio.wait_for(crowd.finish(), PATIENCE)
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), PATIENCE)


# Producers and consumers


class Gone(Exception):
    """The gateway did not answer."""


@dataclass(eq=False)
class Crowd:
    """All who speak to the gateway, and what each was told."""

    session: aiohttp.ClientSession
    accepted: dict[str, str] = field(default_factory=dict)
    """Keys that were put, and the job that each was told."""
    acked: dict[str, list[str]] = field(default_factory=dict)
    """Jobs, and the words with which consumers were told that they had acknowledged them."""
    second_jobs: int = 0
    """Keys that were told another job the second time."""
    odd: dict[str, int] = field(default_factory=dict)
    """Answers that nobody expects."""

    def __post_init__(self) -> None:
        self._url: str | None = None
        self._up = asyncio.Event()
        self._waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def __str__(self) -> str:
        return f"{len(self.accepted)} accepted, {len(self.acked)} acknowledged"

    def meets(self, url: str) -> _Meeting:
        return _Meeting(self, url)

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Producers and consumers at work; what is under way at the end goes on in ``finish``."""
        producers = [asyncio.create_task(self._produce(number)) for number in range(PRODUCERS)]
        consumers = [asyncio.create_task(self._consume(number)) for number in range(CONSUMERS)]
        self._tasks = [*producers, *consumers]
        try:
            yield
        finally:
            self._stopping = True

    async def finish(self) -> None:
        """The last puts, and then every message that was put."""
        await asyncio.gather(*self._tasks[:PRODUCERS])
        await self._waiting.join()
        for task in self._tasks[PRODUCERS:]:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _produce(self, who: int) -> None:
        chance = random.Random(who)
        turn = 0
        while not self._stopping:
            if self._waiting.qsize() > BEHIND:
                await asyncio.sleep(0.01)
                continue
            key = f"{who}-{turn}"
            job = await self._put(key, in_background=bool(who % 2))
            if chance.random() < 0.05 and await self._put(key, in_background=bool(turn % 2)) != job:
                self.second_jobs += 1
            self.accepted[key] = job
            for word in ("a", "b") if chance.random() < 0.1 else ("a",):
                self._waiting.put_nowait((job, f"{key}/{word}"))
            turn += 1

    async def _put(self, key: str, *, in_background: bool) -> str:
        body = {
            "agentId": "served",
            "capability": "message",
            "input": {"name": key},
            "metadata": {"idempotencyKey": key},
        }
        headers = {"Prefer": "respond-async"} if in_background else {}
        while True:
            told = await self._patiently("POST", "/v1/call", body, headers)
            if "job" in told:
                return str(told["job"])
            self._note("put", told)

    async def _consume(self, _: int) -> None:
        while True:
            job, word = await self._waiting.get()
            await self._ack(job, word)
            self._waiting.task_done()

    async def _ack(self, job: str, word: str) -> None:
        """Answer it, until it is answered, by us or by another. Its question may not have been asked yet."""
        while True:
            with suppress(Gone):
                told = await self._once("POST", f"/v1/calls/{job}/answer", {"message": word})
                if told.get("success") and told.get("result") == word:
                    self.acked.setdefault(job, []).append(word)
                    return
                self._note("ack", told)
            seen = await self._patiently("GET", f"/v1/calls/{job}?wait=5")
            if seen.get("status") == "done":
                if seen.get("result") == word:  # ours was taken, but the gateway died before it told us
                    self.acked.setdefault(job, []).append(word)
                return
            self._note("wait", seen)

    def _note(self, what: str, told: dict[str, Any]) -> None:
        error = told.get("error")
        code = told.get("errorCode") or (error.get("code") if isinstance(error, dict) else None) or told.get("status")
        self.odd[f"{what}: {code}"] = self.odd.get(f"{what}: {code}", 0) + 1

    async def _patiently(self, method: str, path: str, body: Any = None, headers: Any = None) -> dict[str, Any]:
        while True:
            with suppress(Gone):
                return await self._once(method, path, body, headers)

    async def _once(self, method: str, path: str, body: Any = None, headers: Any = None) -> dict[str, Any]:
        await self._up.wait()
        try:
            async with self.session.request(method, f"{self._url}{path}", json=body, headers=headers) as answer:
                told: dict[str, Any] = await answer.json()
                return told
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Gone from error


@dataclass(slots=True)
class _Meeting:
    """The time in which the crowd can reach a gateway."""

    crowd: Crowd
    url: str

    def __enter__(self) -> None:
        self.crowd._url = self.url
        self.crowd._up.set()

    def __exit__(self, *_: object) -> None:
        self.crowd._up.clear()


# The judge


async def judge(folder: Path, crowd: Crowd) -> Result:
    """The database against what everybody was told."""
    database = await open_database(f"sqlite:///{folder}/house.db")
    try:
        jobs = Jobs(database, REAL)
        found = {key: await _found(jobs, job) for key, job in crowd.accepted.items()}
        rows = await database.all("SELECT COUNT(*) AS jobs, COUNT(DISTINCT key) AS keys FROM jobs")
        check = await database.check(thorough=True)
    finally:
        await database.aclose()
    result = compared(crowd, found) | {"doubled": rows[0]["jobs"] - rows[0]["keys"], "integrity": check["integrity"]}
    return result | {"ok": result["ok"] and not result["doubled"] and check["integrity"] == "ok"}


async def _found(jobs: Jobs, job: str) -> Job | None:
    try:
        return await jobs.get(LOCAL.id, job)
    except JobNotFound:
        return None


def compared(crowd: Crowd, found: dict[str, Job | None]) -> Result:
    """What was told against what is there, by key."""
    told = {key: crowd.acked.get(job, []) for key, job in crowd.accepted.items()}
    faults = {
        "lost": sum(job is None for job in found.values()),
        "acked_twice": sum(len(words) > 1 for words in told.values()),
        "never_acked": sum(not words for words in told.values()),
        "acks_undone": sum(_word(found[key]) not in words for key, words in told.items() if words),
        "second_jobs": crowd.second_jobs,
    }
    return {
        "ok": bool(told) and not any(faults.values()),
        "accepted": len(crowd.accepted),
        "acknowledged": len(crowd.acked),
        **faults,
        "odd_answers": crowd.odd,
    }


def _word(job: Job | None) -> object:
    """With which word the job was acknowledged."""
    return value_of(job.outcome.parts) if job is not None and isinstance(job.outcome, Done) else None
