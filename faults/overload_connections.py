"""Crowds and slow clients in every state: the gateway goes on serving those who behave, and its pages answer.

Witnesses outside of the gateway: patient callers that write down what they were told, and a prober of ``/healthz``,
``/readyz`` and ``/metrics``. The crowd is more connections than may be open, of four kinds: those that say nothing,
those that send a head one byte at a time, those that never finish a body, and those that do not read their answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp

from faults._gateway import Gateway, Told, ask, asking, gateway
from faults.registry import Result, fault

CROWD = int(os.environ.get("FAULT_CONNECTIONS", "900"))
MOST = CROWD // 3
SECONDS = 10.0
CALLERS = 8
PROBES = ("/healthz", "/readyz", "/metrics")
SLOW_PROBE = 0.1
"""Seconds within which most of the pages have to come; single ones may wait for a machine that is busy elsewhere."""
LONGEST_PROBE = 5.0
BUSY_MARGIN = 0.1
AGENT = '''
from agent3 import LocalAgent

agent = LocalAgent("served")


@agent.capability(read_only=True)
async def echo(name: str) -> str:
    """What was given."""
    return name


@agent.capability(read_only=True)
async def much(name: str) -> str:
    """A long answer."""
    return "x" * 60_000
'''
CONFIG = f"[server]\nmax_connections = {MOST}\nbody_seconds = 3.0\nhealth_port = {{port}}\n"
RESERVED_SHARE = 0.99
"""Share of the pages at the port for health alone that have to come in time, on a machine that others use as well."""


@fault("overload-connections")
def overload_connections(seed: int, seconds: float = SECONDS) -> Result:
    """Three times as many connections as may be open, all slow: callers are served, health and metrics answer."""
    port = _free_port()
    with (
        tempfile.TemporaryDirectory(prefix="agent3-crowd-") as name,
        gateway(Path(name), agent=AGENT, config=CONFIG.format(port=port)) as door,
    ):
        return asyncio.run(asyncio.wait_for(_crowded(door, port, random.Random(seed), seconds), 120))


async def _crowded(door: Gateway, health: int, dice: random.Random, seconds: float) -> Result:
    over = asyncio.Event()
    host, port = door.url.removeprefix("http://").rsplit(":", 1)
    crowd = multiprocessing.get_context("spawn").Process(
        target=run_crowd, args=(host, int(port), dice.randrange(1 << 30), seconds + 2.0), daemon=True
    )
    crowd.start()  # in a process of its own, so that the witnesses do not wait for it
    async with asking() as session:
        told: list[Told] = []
        probes: list[tuple[int, float]] = []
        reserved: list[tuple[int, float]] = []
        await asyncio.sleep(2.0)  # until it has come
        callers = [asyncio.create_task(_call(session, door.url, told, over)) for _ in range(CALLERS)]
        bare: list[tuple[int, float]] = []
        control = multiprocessing.get_context("spawn").Process(
            target=run_control, args=(free := _free_port(),), daemon=True
        )
        control.start()
        probers = [
            asyncio.create_task(_probe(f"http://127.0.0.1:{free}", bare, over)),
            asyncio.create_task(_probe(door.url, probes, over)),
            asyncio.create_task(_probe(f"http://127.0.0.1:{health}", reserved, over)),
        ]
        await asyncio.sleep(seconds)
        over.set()
        await asyncio.gather(*callers, *probers)
        await asyncio.to_thread(crowd.join, 30)
        crowd.kill()
        control.kill()
        after = await ask(session, door.url, "echo", {"name": "after"})
    return judge(told, probes, reserved, after, bare)


def run_crowd(host: str, port: int, seed: int, seconds: float) -> None:
    """The crowd, for a while."""

    async def come() -> None:
        over, dice = asyncio.Event(), random.Random(seed)
        asyncio.get_running_loop().call_later(seconds, over.set)
        await asyncio.gather(
            *(_loiter(host, port, dice.randrange(4), over) for _ in range(CROWD)), return_exceptions=True
        )

    asyncio.run(come())


async def _loiter(host: str, port: int, kind: int, over: asyncio.Event) -> None:
    """One of the crowd; it comes again when it is sent away."""
    head = b"POST /v1/call HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 70\r\n\r\n"
    body = b'{"agentId": "served", "capability": "much", "input": {"name": "x"}}   '
    while not over.is_set():
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=1_024)
        except OSError:
            await asyncio.sleep(0.5)
            continue
        try:
            if kind == 1:
                for byte in head:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.5)
                    if over.is_set():
                        break
            elif kind >= 2:
                writer.write(head + (body[:20] if kind == 2 else body))
                await writer.drain()
            if kind == 3:
                await over.wait()  # reads nothing of what it asked for
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2.0):
                        await reader.read(100)
                await asyncio.sleep(0.5)
        except OSError:
            await asyncio.sleep(0.2)
        finally:
            writer.close()


async def _call(session: aiohttp.ClientSession, url: str, told: list[Told], over: asyncio.Event) -> None:
    while not over.is_set():
        told.append(await ask(session, url, "echo", {"name": "patient"}))
        await asyncio.sleep(0.05)


async def _probe(url: str, probes: list[tuple[int, float]], over: asyncio.Event) -> None:
    while not over.is_set():
        for page in PROBES:
            began = time.monotonic()
            try:
                # Each on a connection of its own, as probes come.
                async with aiohttp.ClientSession() as session, session.get(url + page) as answer:
                    await answer.read()
                    probes.append((answer.status, time.monotonic() - began))
            except (aiohttp.ClientError, OSError):
                probes.append((0, time.monotonic() - began))
        await asyncio.sleep(0.05)


def run_control(port: int) -> None:
    """What the machine itself lets wait: a server that does nothing but answer, probed in the same way."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            came, _ = listener.accept()
            with came, contextlib.suppress(OSError):
                came.recv(65_536)
                came.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _share_in_time(probes: list[tuple[int, float]]) -> float:
    good = [seconds for status, seconds in probes if status]
    return sum(seconds <= SLOW_PROBE for seconds in good) / len(good) if good else 0.0


def judge(
    told: list[Told],
    probes: list[tuple[int, float]],
    reserved: list[tuple[int, float]],
    after: Told,
    bare: list[tuple[int, float]],
) -> Result:
    """Callers were served or told when to come again; pages answered."""
    good = [one for one in told if one.status == 200 and one.body.get("result") == "patient"]
    faults = {
        "refused_without_retry_after": sum(one.status == 503 and not one.retry_after for one in told),
        "wrong_answers": sum(one.status not in (0, 200, 503) for one in told),
        "probes_failed": sum(status != 200 for status, _ in probes),
        "reserved_probes_failed": sum(status != 200 for status, _ in reserved),
        "probes_too_slow": sum(seconds > LONGEST_PROBE for _, seconds in probes),
    }
    share = len(good) / len(told) if told else 0.0
    median = statistics.median(seconds for _, seconds in probes) if probes else None
    in_time, bare_in_time = _share_in_time(reserved), _share_in_time(bare)
    if bare_in_time >= RESERVED_SHARE:
        prompt = median is not None and median <= SLOW_PROBE and in_time >= RESERVED_SHARE
    else:  # the machine lets even a bare server wait: no more can be asked than about as much
        prompt = in_time >= bare_in_time - BUSY_MARGIN
    return {
        "ok": share >= 0.9 and prompt and not any(faults.values()) and after.status == 200,
        "calls": len(told),
        "share_served": round(share, 3),
        "probes": len(probes),
        "probe_median": None if median is None else round(median, 4),
        "probe_slowest": round(max((seconds for _, seconds in probes), default=0.0), 3),
        "reserved_probes": len(reserved),
        "reserved_share_in_time": round(in_time, 4),
        "reserved_slowest": round(max((seconds for _, seconds in reserved), default=0.0), 3),
        "bare_share_in_time": round(bare_in_time, 4),
        "bare_slowest": round(max((seconds for _, seconds in bare), default=0.0), 3),
        **faults,
        "statuses": dict(Counter(one.status for one in told)),
    }
