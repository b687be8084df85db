"""A client with a key calls while others attack: connections that send one byte, and a caller that takes all slots.

The first attack is of anybody, without a key; the second of a client with one. How fast the well-behaved client is
alone is measured before and after each of them, and the slower one counts: the attackers run on the same machine.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faults._gateway import Gateway, ask, asking, gateway
from faults.registry import Result, fault

SECONDS = 6.0
CONNECTIONS = 400
CALLERS = 60
KEPT = 0.8
AGENT = '''
import asyncio
from agent3 import LocalAgent

agent = LocalAgent("Served", agent_id="served")

@agent.capability
async def work(name: str) -> str:
    """Works for a while."""
    await asyncio.sleep(0.02)
    return name

@agent.capability
async def hold(name: str) -> str:
    """Keeps a slot."""
    await asyncio.sleep(10)
    return name
'''
KEYS = {"good": "the-key-of-the-good-one", "bad": "the-key-of-the-bad-one"}
CONFIG = "[limits]\nper_minute = 6000\nburst = 1000\nconcurrent = 20\n" + "".join(
    f'[[clients]]\nid = "{name}"\nkey = "env:{name.upper()}_KEY"\n' for name in KEYS
)


@fault("noisy-neighbour")
def noisy_neighbour(_: int, seconds: float = SECONDS) -> Result:
    """Two attacks beside a well-behaved client, which keeps at least 80 % of its rate."""
    environment = {f"{name.upper()}_KEY": key for name, key in KEYS.items()}
    with (
        tempfile.TemporaryDirectory(prefix="agent3-noisy-") as name,
        gateway(Path(name), agent=AGENT, config=CONFIG, **environment) as door,
    ):
        return asyncio.run(asyncio.wait_for(_compare(door, seconds), 6 * seconds + 60))


async def _compare(door: Gateway, seconds: float) -> Result:
    result: dict[str, Any] = {}
    for name, attack in (("one byte", _one_byte), ("all slots", _all_slots)):
        alone = await _rate(door.url, seconds)
        async with attack(door.url):
            beside = await _rate(door.url, seconds)
        alone = min(alone, await _rate(door.url, seconds))
        result[name] = {"alone": round(alone, 1), "beside": round(beside, 1), "kept": round(beside / alone, 2)}
    return {"ok": all(one["kept"] >= KEPT for one in result.values()), **result}


async def _rate(url: str, seconds: float) -> float:
    """Calls per second of a client that waits 10 ms between two calls, as people and agents do."""
    done, began = 0, time.monotonic()
    async with asking() as session:
        session.headers["Authorization"] = f"Bearer {KEYS['good']}"
        while time.monotonic() - began < seconds:
            told = await ask(session, url, "work", {"name": "x"})
            done += told.status == 200
            await asyncio.sleep(0.01)
    return done / (time.monotonic() - began)


@asynccontextmanager
async def _one_byte(url: str) -> AsyncIterator[None]:
    """Connections that promise a body and send one byte of it."""
    place = urlsplit(url)
    fields = (
        "POST /mcp HTTP/1.1",
        f"Host: {place.netloc}",
        "Content-Type: application/json",
        "Content-Length: 1000000",
    )
    head = "\r\n".join((*fields, "", "{"))
    writers = []
    for _ in range(CONNECTIONS):
        with suppress(OSError):
            _, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(head.encode())
            writers.append(writer)
    try:
        yield
    finally:
        for writer in writers:
            writer.close()


@asynccontextmanager
async def _all_slots(url: str) -> AsyncIterator[None]:
    """Calls of another client that take as many slots of the agent as they get, and come again."""

    async def go_on() -> None:
        async with asking() as session:
            session.headers["Authorization"] = f"Bearer {KEYS['bad']}"
            while True:
                await ask(session, url, "hold", {"name": "x"})
                await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(go_on()) for _ in range(CALLERS)]
    await asyncio.sleep(1.0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
