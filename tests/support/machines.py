"""Two gateways on one database, as real processes, with an agent whose actions can be read from a file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gateway import Door, Process, gateway

__all__ = ["SECRET", "Machines", "eventually", "key_of", "machines", "start", "watch"]

SECRET = "the secret with which desk signs its requests"
NAMES = ("alice", "bob", "carol", "dave", "erin")
WORKER = '''
import asyncio, os, time
from agent3 import Context, LocalAgent

agent = LocalAgent("worker", description="Works for tests")
DIARY = os.environ["DIARY"]


def note(line):
    with open(DIARY, "a") as diary:
        diary.write(f"{os.getpid()} {line}\\n")


@agent.capability
async def echo(text: str) -> str:
    """Say it again."""
    return text


@agent.capability
async def slow(ctx: Context, name: str, seconds: float) -> str:
    """Take a while: ten parts in a second, each telling when it begins."""
    note(f"slow {name}")
    try:
        for _ in range(round(10 * seconds)):
            ctx.status(f"{time.time():.6f}")
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        note(f"cancelled {name}")
        raise
    return name


@agent.capability
async def patient(ctx: Context, name: str) -> str:
    """Say so, and work until the file of that name is there."""
    ctx.status("working")
    while not os.path.exists(name):
        await asyncio.sleep(0.02)
    return name


async def _steps(ctx: Context, name: str, seconds: float) -> str:
    """Ten steps, each done once."""
    for number in range(10):
        await ctx.once(f"step {number}", lambda number=number: note(f"step {name} {number}"))
        await asyncio.sleep(seconds / 10)
    return name


agent.add(_steps, name="steps", replay=True)


@agent.capability
async def choose(ctx: Context, name: str) -> str:
    """Ask twice; it cannot be replayed, so it must go on where it waits."""
    note(f"choose {name}")
    first = await ctx.ask("First?", str)
    second = await ctx.ask("Second?", str)
    return f"{name}: {first} {second}"


agent.add(choose, name="choose_again", replay=True)
'''


@dataclass
class Machines:
    """Gateways on one database. ``diary`` is what their agent did: the process, and what."""

    url: str
    folder: Path
    gateways: list[Process]

    def door(self, number: int, client: str = "alice") -> Door:
        """One of them, for a client."""
        return self.gateways[number].as_(key_of(client))

    def diary(self) -> list[tuple[int, str]]:
        file = self.folder / "diary"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(pid), what) for pid, _, what in (line.partition(" ") for line in lines)]

    def did(self, what: str) -> list[int]:
        """The processes that did something, in order."""
        return [pid for pid, done in self.diary() if done == what]

    @contextmanager
    def serving(self, number: int) -> Iterator[Process]:
        """One more gateway on the same database."""
        data = self.folder / f"gateway-{number}"
        diary, arguments = str(self.folder / "diary"), ("worker:agent", "--db", self.url)
        with gateway(data, *arguments, cwd=self.folder, config=_config(), DIARY=diary, DESK_SECRET=SECRET) as process:
            yield process


@contextmanager
def machines(folder: Path, url: str, many: int = 2) -> Iterator[Machines]:
    """Some gateways on the database at ``url``, until the end of the block."""
    (folder / "worker.py").write_text(WORKER)
    house = Machines(url, folder, [])
    with ExitStack() as stack:
        for number in range(many):
            house.gateways.append(stack.enter_context(house.serving(number)))
        yield house


def key_of(client: str) -> str:
    return f"the key of {client} 0123456789"


def _config() -> str:
    lines = ["[limits]", "per_minute = 60", "burst = 20"]
    for name in NAMES:
        digest = hashlib.sha256(key_of(name).encode()).hexdigest()
        lines += ["[[clients]]", f'id = "{name}"', f'key = "sha256:{digest}"']
    lines += ["[[clients]]", 'id = "desk"', 'signing = "env:DESK_SECRET"']
    return "\n".join(lines)


def start(door: Door, capability: str, **given: Any) -> str:
    """A detached call of the worker; its job."""
    reply = door.call("worker", prefer="respond-async", capability=capability, input=given)
    assert reply.status in (200, 202), reply.raw
    job: str = reply.json["job"]
    return job


def eventually(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it did not come to hold in time"
        time.sleep(0.01)


def watch(door: Door, job: str, after: int = 0) -> Iterator[dict[str, Any]]:
    """The events of a job as a stream brings them."""
    connection = door.connect(60.0)
    try:
        connection.request("GET", f"/v1/calls/{job}/events?after={after}", headers=door.headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        while line := answer.readline():
            if line.startswith(b"data:"):
                yield json.loads(line[5:])
    finally:
        connection.close()
