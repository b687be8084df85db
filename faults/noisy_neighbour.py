"""A client with a key calls while others attack: by connections that send one byte, by taking all slots, by floods.

The first attack and the second flood are of anybody, without a key; the others of a client with one. How fast the
well-behaved client is alone is measured before and after each of them, and the slower one counts: the attackers run on
the same machine. A flood comes from a process of the lowest priority, as fast as it gets answers: what counts is what
the gateway does for it, told as its CPU time for each refused request, not that both share two processors.
"""

from __future__ import annotations

import ast
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
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
    """Four attacks beside a well-behaved client, which keeps at least 80 % of its rate."""
    environment = {f"{name.upper()}_KEY": key for name, key in KEYS.items()}
    with (
        tempfile.TemporaryDirectory(prefix="agent3-noisy-") as name,
        gateway(Path(name), agent=AGENT, config=CONFIG, **environment) as door,
    ):
        return asyncio.run(asyncio.wait_for(_compare(door, seconds), 12 * seconds + 60))


async def _compare(door: Gateway, seconds: float) -> Result:
    result: dict[str, Any] = {}
    attacks: dict[str, Callable[[str], AbstractAsyncContextManager[dict[str, int]]]] = {
        "one byte": _one_byte,
        "all slots": _all_slots,
        "flood over a limit": partial(_flood, key=KEYS["bad"]),
        "flood without a key": partial(_flood, key="of-nobody"),
    }
    for name, attack in attacks.items():
        alone = await _rate(door.url, seconds)
        async with attack(door.url) as counted:
            used = _cpu_seconds(door.process.pid)
            beside = await _rate(door.url, seconds)
            used = _cpu_seconds(door.process.pid) - used
        alone = min(alone, await _rate(door.url, seconds))
        result[name] = {"alone": round(alone, 1), "beside": round(beside, 1), "kept": round(beside / alone, 2)}
        if refused := counted.get("refused"):
            result[name] |= {"refused": refused, "cpu_us_each": round(used * 1e6 / refused), **counted}
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
async def _one_byte(url: str) -> AsyncIterator[dict[str, int]]:
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
        yield {}
    finally:
        for writer in writers:
            writer.close()


@asynccontextmanager
async def _all_slots(url: str) -> AsyncIterator[dict[str, int]]:
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
        yield {}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


FLOODERS = 20
FLOOD = """
import asyncio, os, sys

host, port, key, count = sys.argv[1:]
body = b'{"agentId": "served", "capability": "work", "input": {"name": "x"}}'
head = f"POST /v1/call HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nAuthorization: Bearer {key}\\r\\n"
ask = (head + f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n").encode() + body
told = {}

async def go_on():
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            while True:
                writer.write(ask)
                answer = await reader.readuntil(b"\\r\\n\\r\\n")
                length = int(answer.lower().partition(b"content-length:")[2].partition(b"\\r\\n")[0])
                await reader.readexactly(length)
                status = answer[9:12].decode()
                told[status] = told.get(status, 0) + 1
        except (OSError, ValueError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.1)

async def main():
    flooders = [asyncio.create_task(go_on()) for _ in range(int(count))]
    await asyncio.to_thread(sys.stdin.readline)
    told.clear()
    await asyncio.to_thread(sys.stdin.readline)
    print(told, flush=True)
    os._exit(0)

os.nice(19)
asyncio.run(main())
"""


@asynccontextmanager
async def _flood(url: str, key: str) -> AsyncIterator[dict[str, int]]:
    """Requests that are refused, one after the other on each of some connections. What came back, by status."""
    place = urlsplit(url)
    flooding = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FLOOD, str(place.hostname), str(place.port), key, str(FLOODERS),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert flooding.stdin is not None
    counted: dict[str, int] = {}
    try:
        await asyncio.sleep(2.0)  # until its limit is used up
        flooding.stdin.write(b"count\n")
        yield counted
        output, _ = await flooding.communicate(b"end\n")
        counted |= ast.literal_eval(output.decode() or "{}")
        counted["refused"] = sum(count for status, count in counted.items() if status.startswith("4"))
    finally:
        if flooding.returncode is None:
            flooding.kill()
            await flooding.wait()


def _cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
