"""Two gateways on one PostgreSQL: one is killed, one is stopped past its lease, and both are restarted under load.

Whatever the first had begun, the second goes on with where that is allowed, and says that it was interrupted where it
is not; what has ended never changes, also when the stopped one wakes up and wants to write. A client that sends its
calls to a gateway that says that it is ready sees none fail while both are restarted, one after the other.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from faults._gateway import ask, asking
from faults._postgres import postgres
from faults.registry import Result, fault

JOBS = 6
CALLERS = 16
PAUSE = 22.0
"""Seconds, longer than the 20 that an attempt has."""
AGENT = '''
import asyncio, os
from agent3 import Context, LocalAgent

agent = LocalAgent("served")


def note(line):
    with open("diary", "a") as diary:
        diary.write(f"{os.getpid()} {line}\\n")


async def _steps(ctx: Context, name: str, seconds: float) -> str:
    """Ten steps, each done once."""
    for number in range(10):
        await ctx.once(str(number), lambda number=number: note(f"{name}/{number}"))
        await asyncio.sleep(seconds / 10)
    return name


agent.add(_steps, name="replayed", replay=True)
agent.add(_steps, name="unrepeated")


@agent.capability
async def asked(ctx: Context, name: str, seconds: float) -> str:
    """Asks, and waits."""
    return f"{name} {await ctx.ask('And?', str)}"


agent.add(asked, name="asked_again", replay=True)


@agent.capability
async def quick(name: str, seconds: float) -> str:
    """Ends soon."""
    await asyncio.sleep(seconds)
    return name
'''


@dataclass(slots=True)
class _Machine:
    """A gateway that serves, and what it is called by."""

    url: str
    process: subprocess.Popen[str]


@dataclass(slots=True)
class _Pair:
    """The folder, the database, and the client of both."""

    folder: Path
    database: str
    session: aiohttp.ClientSession
    wrong: Counter[str] = field(default_factory=Counter)

    def serve(self) -> _Machine:
        """One more gateway."""
        command = [sys.executable, "-m", "agent3", "serve", "served:agent", "--port", "0", "--db", self.database]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
        environment = {**kept, "AGENT3_DATA": str(self.folder), "NO_COLOR": "1"}
        with (self.folder / "serve.log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"agent3 serve ended by itself: {(self.folder / 'serve.log').read_text()[-500:]}")
        return _Machine(line.split()[-1], process)

    @contextmanager
    def serving(self) -> Iterator[_Machine]:
        machine = self.serve()
        try:
            yield machine
        finally:
            end(machine)

    async def start(self, machine: _Machine, capability: str, name: str, seconds: float) -> str:
        """A detached call; its job."""
        body = {"agentId": "served", "capability": capability, "input": {"name": name, "seconds": seconds}}
        headers = {"Prefer": "respond-async"}
        async with self.session.post(f"{machine.url}/v1/call", json=body, headers=headers) as answer:
            return str((await answer.json())["job"])

    async def get(self, machine: _Machine, job: str, wait: int = 0) -> dict[str, Any]:
        async with self.session.get(f"{machine.url}/v1/calls/{job}?wait={wait}") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def answer(self, machine: _Machine, job: str, text: str) -> dict[str, Any]:
        async with self.session.post(f"{machine.url}/v1/calls/{job}/answer", json={"message": text}) as answer:
            found: dict[str, Any] = await answer.json()
            return found

    def steps(self) -> Counter[str]:
        """How often each step was done, by any process."""
        diary = self.folder / "diary"
        return Counter(line.split()[1] for line in diary.read_text().splitlines()) if diary.exists() else Counter()

    def expect(self, true: object, what: str) -> None:
        self.wrong[what] += not true


def end(machine: _Machine) -> None:
    """Kill it, also when it is stopped."""
    machine.process.kill()
    machine.process.wait(60)
    if machine.process.stdout is not None:
        machine.process.stdout.close()


@fault("two-gateways")
def two_gateways(seed: int) -> Result:
    """Two gateways on one PostgreSQL: one killed, one stopped past its lease, both restarted under load."""
    chance = random.Random(seed)
    with postgres() as server:
        results = {name: told(server.url, story, chance) for name, story in STORIES.items()}
    held = [one.pop("ok") for one in results.values()]
    return {"ok": all(held), **results}


def told(database: str, story: Callable[[_Pair, random.Random], Awaitable[Result]], chance: random.Random) -> Result:
    """One story in a folder of its own, within bounds."""

    async def run() -> Result:
        async with _pair(database) as pair:
            result = await story(pair, chance)
            wrong = {what: count for what, count in pair.wrong.items() if count}
            return {"ok": not wrong, **result, "wrong": wrong}

    return asyncio.run(asyncio.wait_for(run(), 240))


@asynccontextmanager
async def _pair(database: str) -> AsyncIterator[_Pair]:
    with tempfile.TemporaryDirectory(prefix="agent3-two-gateways-") as name:
        folder = Path(name)
        (folder / "served.py").write_text(AGENT)
        async with asking(90) as session:
            yield _Pair(folder, database, session)


# One is killed


async def killed(pair: _Pair, chance: random.Random) -> Result:
    """kill -9 of one in the middle of jobs of every kind."""
    with pair.serving() as first, pair.serving() as second:
        done = [await pair.start(first, "quick", f"done{number}", 0) for number in range(JOBS)]
        before = [await pair.get(first, job, 5) for job in done]
        jobs = {
            kind: [await pair.start(first, kind, f"{kind}{number}", 3.0) for number in range(JOBS)]
            for kind in ("replayed", "unrepeated", "asked_again")
        }
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        end(first)
        began, at_kill = time.monotonic(), pair.steps()
        ends = {kind: [await pair.get(second, job, 30) for job in jobs[kind]] for kind in ("replayed", "unrepeated")}
        took = time.monotonic() - began
        for number, job in enumerate(jobs["asked_again"]):
            told = await pair.answer(second, job, "blue")
            pair.expect(told.get("result") == f"asked_again{number} blue", "a question that waited was lost")
        for number, one in enumerate(ends["replayed"]):
            pair.expect(one.get("result") == f"replayed{number}", "a job that may be repeated did not go on")
        for one in ends["unrepeated"]:
            pair.expect(one.get("errorCode") == "interrupted", "a job that may not be repeated was not told so")
        pair.expect([await pair.get(second, job) for job in done] == before, "a job changed after its end")
        _judge_steps(pair, at_kill)
    return {"jobs": 4 * JOBS, "taken_over_and_done_s": round(took, 2)}


def _judge_steps(pair: _Pair, at_kill: Counter[str]) -> None:
    """Of each job at most the step that the kill struck is done again: it had not been written down."""
    again = Counter(name.split("/")[0] for name, times in pair.steps().items() if times > 1)
    pair.expect(all(times == 1 for times in again.values()), "a step was done again that had been written down")
    pair.expect(all(name.startswith("replayed") for name in again), "a job went on that may not be repeated")
    pair.expect(at_kill, "the kill came before anything was done")


# One is stopped


async def stopped(pair: _Pair, chance: random.Random) -> Result:
    """SIGSTOP of one until its lease is over, then it wakes up and wants to write."""
    with pair.serving() as first, pair.serving() as second:
        kinds = ("replayed", "unrepeated")
        jobs = {
            kind: [await pair.start(first, kind, f"{kind}{number}", 2.0) for number in range(JOBS)] for kind in kinds
        }
        await asyncio.sleep(chance.uniform(0.3, 1.0))
        asleep = [
            asyncio.create_task(ask(pair.session, first.url, "quick", {"name": "x", "seconds": 8})) for _ in range(JOBS)
        ]
        await asyncio.sleep(0.3)
        first.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        before = {job: await pair.get(second, job, 50) for kind in kinds for job in jobs[kind]}
        took = time.monotonic() - began
        await asyncio.sleep(max(0.0, PAUSE - took))
        first.process.send_signal(signal.SIGCONT)
        await asyncio.gather(*asleep)  # too late for their callers, which is not their agent's fault
        woken = [await ask(pair.session, first.url, "quick", {"name": "x", "seconds": 0}) for _ in range(JOBS)]
        pair.expect(
            all(told.status == 200 for told in woken), "the one that woke up blames its agent for its own sleep"
        )
        await asyncio.sleep(3.0)  # long enough for every turn of the first to end
        after = {job: await pair.get(second, job) for job in before}
        pair.expect(after == before, "a late write of the stopped one was taken")
        for kind, code in (("replayed", None), ("unrepeated", "interrupted")):
            ended = [before[job].get("errorCode") == code and before[job]["status"] != "working" for job in jobs[kind]]
            pair.expect(all(ended), f"{kind} jobs did not end as they should")
        pair.expect({job: await pair.get(first, job) for job in before} == before, "the one that woke up tells another")
        refused = (pair.folder / "serve.log").read_text().count("another process has taken it")
    return {"jobs": 2 * JOBS, "taken_over_after_s": round(took, 2), "given_up_by_the_stopped_one": refused}


# Both are restarted


@dataclass(slots=True)
class _Balancer:
    """A client's list of gateways: it asks each whether it is ready, and sends calls to those that are."""

    pair: _Pair
    machines: list[_Machine]
    ready: list[str] = field(default_factory=list)

    async def look(self) -> None:
        while True:
            asked = await asyncio.gather(*(self._is_ready(machine.url) for machine in self.machines))
            self.ready = [one.url for one, ready in zip(self.machines, asked, strict=False) if ready]
            await asyncio.sleep(0.2)

    async def _is_ready(self, url: str) -> bool:
        try:
            async with self.pair.session.get(f"{url}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


async def restarted(pair: _Pair, chance: random.Random) -> Result:
    """A rolling restart under a load of calls: none fails."""
    machines = [pair.serve(), pair.serve()]
    balancer = _Balancer(pair, machines)
    looking = asyncio.create_task(balancer.look())
    results: Counter[str] = Counter()
    stop = asyncio.Event()
    callers = [asyncio.create_task(_calls(pair, balancer, results, stop, chance)) for _ in range(CALLERS)]
    try:
        await asyncio.sleep(1.5)
        stops = [await _restart(pair, balancer, place) for place in (0, 1)]
        await asyncio.sleep(0.5)
    finally:
        stop.set()
        await asyncio.gather(*callers)
        looking.cancel()
        await asyncio.wait([looking])
        for machine in machines:
            end(machine)
    pair.expect(results["failed"] == 0, "a call failed")
    pair.expect(results["done"] > 100, "there was hardly a load")
    pair.expect(all(code == 0 for code, _ in stops), "a gateway did not end well")
    return {"calls": results["done"], "failed": results["failed"], "stopped_after_s": [took for _, took in stops]}


async def _calls(
    pair: _Pair, balancer: _Balancer, results: Counter[str], stop: asyncio.Event, chance: random.Random
) -> None:
    while not stop.is_set():
        if not balancer.ready:
            await asyncio.sleep(0.01)
            continue
        given = {"name": "x", "seconds": chance.uniform(0.0, 0.2)}
        told = await ask(pair.session, chance.choice(balancer.ready), "quick", given)
        results["done" if told.status == 200 else "failed"] += 1


async def _restart(pair: _Pair, balancer: _Balancer, place: int) -> tuple[int, float]:
    """Stop one as an operator would, and put a new one in its place; its exit code and how long it took to go."""
    old = balancer.machines[place]
    old.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    code = await asyncio.to_thread(old.process.wait, 30)
    took = time.monotonic() - began
    end(old)
    balancer.machines[place] = await asyncio.to_thread(pair.serve)
    await asyncio.sleep(1.0)
    return code, round(took, 2)


STORIES: dict[str, Callable[[_Pair, random.Random], Awaitable[Result]]] = {
    "killed": killed,
    "stopped": stopped,
    "restarted": restarted,
}
