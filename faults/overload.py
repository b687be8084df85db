"""Five times as many calls as the gateway can take: it goes on with what it can, and refuses the rest at once.

The agent works for a fixed time and may do so much at once, so its capacity is known; it is measured all the same,
by callers that wait for their answers. Then calls come at five times that rate whether answers come or not. Who is
refused is told so by the agent's limit (429) or, where the gateway itself falls behind, by the gateway (503).

``overload-requests`` has no such agent: there it is the processor that is too slow. One client sends over hundreds of
connections again as soon as it is answered, whatever it was told; another asks for a little. What the gateway does is
counted by the processor time that it got, since the clients, in a process of their own, have the same cores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import os
import re
import selectors
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from faults._gateway import Gateway, Told, ask, asking, gateway, queued
from faults.registry import Result, fault

AT_ONCE = 10
WORK_SECONDS = 0.2
TIMES = 5
SECONDS = 10.0
GOODPUT = 0.9
PROMPT_SECONDS = 1.0
AGENT = f'''
import asyncio
from agent3 import LocalAgent

agent = LocalAgent("Served", agent_id="served")

@agent.capability
async def work(name: str) -> str:
    """Works for a while."""
    await asyncio.sleep({WORK_SECONDS})
    return name
'''
CONFIG = f"[limits]\nconcurrent = {AT_ONCE}\n"
FLOOD, FEW = 1_000, 32
"""Connections of the client that is too many, and those with which the gateway is as busy as it can be."""
KEPT = 0.9
BUSY_SECONDS, PATIENCE = 6.0, 120.0
"""Seconds of the gateway's processor time in each phase, and seconds by the clock after which it ends all the same."""
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
PLAIN = '''
from agent3 import LocalAgent

agent = LocalAgent("Served", agent_id="served")

@agent.capability(read_only=True)
async def work(name: str) -> str:
    """What was given."""
    return name
'''
CLIENTS = "[limits]\nper_minute = 1e9\nburst = 1000000\nconcurrent = 100000\n" + "".join(
    f'[[clients]]\nid = "{name}"\nkey = "env:{name.upper()}_KEY"\n' for name in ("many", "modest")
)


@fault("overload")
def overload(_: int, seconds: float = SECONDS) -> Result:
    """Calls at five times the capacity for 10 s: at least 90 % of it is still done, the rest refused at once."""
    with (
        tempfile.TemporaryDirectory(prefix="agent3-overload-") as name,
        gateway(Path(name), agent=AGENT, config=CONFIG) as door,
    ):
        return asyncio.run(asyncio.wait_for(_overloaded(door, seconds), 80))


@fault("overload-requests")
def overload_requests(_: int, seconds: float = BUSY_SECONDS) -> Result:
    """A client sends far more than the processor can answer: 90 % of the work goes on, another client is served."""
    keys = {"MANY_KEY": "many-0123456789abcdef", "MODEST_KEY": "modest-0123456789abcdef"}
    with (
        tempfile.TemporaryDirectory(prefix="agent3-overload-") as name,
        gateway(Path(name), agent=PLAIN, config=CLIENTS, **keys) as door,
        multiprocessing.get_context("spawn").Pool(2) as clients,
    ):
        port, pid = int(door.url.rsplit(":", 1)[1]), door.process.pid

        def phase(connections: int) -> Flood:
            busy = _cpu_seconds(pid)
            until = pid, busy + seconds
            many = clients.apply_async(send_all_the_time, (port, keys["MANY_KEY"], connections, until, 0.0))
            modest = clients.apply_async(send_all_the_time, (port, keys["MODEST_KEY"], 4, until, 0.1))
            told = many.get(), modest.get()
            good = sum(one.get(200, 0) for one in told)
            return Flood(good / max(0.01, _cpu_seconds(pid) - busy), *told)

        return judge_requests(phase(FEW), phase(FLOOD))


async def _overloaded(door: Gateway, seconds: float) -> Result:
    async with asking() as session:
        capacity = await _capacity(session, door.url)
        flood = await _flood(session, door, TIMES * capacity, seconds)
        after = await ask(session, door.url, "work", {"name": "after"})
    return judge(capacity, flood, seconds, after)


async def _capacity(session: Any, url: str) -> float:
    """Calls per second of as many patient callers as may work at once."""

    async def caller(until: float) -> int:
        done = 0
        while time.monotonic() < until:
            done += (await ask(session, url, "work", {"name": "patient"})).status == 200
        return done

    began = time.monotonic()
    done = await asyncio.gather(*(caller(began + 2.0) for _ in range(AT_ONCE)))
    return sum(done) / (time.monotonic() - began)


async def _flood(session: Any, door: Gateway, rate: float, seconds: float) -> list[Told]:
    """Calls at a rate that no answer slows down, each with the time that it took."""

    async def call() -> Told:
        # Not the time for which the gateway waited for a processor, or its client did: the longer of both.
        waits = [queued(pid) for pid in (door.process.pid, os.getpid())]
        told = await ask(session, door.url, "work", {"name": "flood"})
        waited = max(queued(pid) - before for pid, before in zip((door.process.pid, os.getpid()), waits, strict=True))
        return dataclasses.replace(told, seconds=max(0.0, told.seconds - waited))

    began = time.monotonic()
    tasks: list[asyncio.Task[Told]] = []
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * rate) - len(tasks)
        tasks += [asyncio.create_task(call()) for _ in range(due)]
        await asyncio.sleep(0.005)
    return list(await asyncio.gather(*tasks))


def judge(capacity: float, flood: Sequence[Told], seconds: float, after: Told) -> Result:
    """Goodput against capacity, and whether everybody was told something true, soon."""
    good = [one for one in flood if one.status == 200]
    refused = [one for one in flood if one.status in (429, 503)]
    goodput = len(good) / seconds
    slowest = sorted(one.seconds for one in refused)[int(len(refused) * 0.99) :]
    faults = {
        "neither_done_nor_refused": len(flood) - len(good) - len(refused),
        "refused_without_retry_after": sum(not one.retry_after for one in refused),
        "wrong_answers": sum(one.body.get("result") != "flood" for one in good),
    }
    prompt = bool(slowest) and slowest[0] <= PROMPT_SECONDS
    return {
        "ok": goodput >= GOODPUT * capacity and prompt and not any(faults.values()) and after.status == 200,
        "capacity": round(capacity, 1),
        "offered": round(len(flood) / seconds, 1),
        "goodput": round(goodput, 1),
        "share": round(goodput / capacity, 3) if capacity else 0.0,
        "refused": len(refused),
        "refusal_p99": round(slowest[0], 3) if slowest else None,
        **faults,
        "statuses": dict(Counter(one.status for one in flood)),
    }


class Flood(NamedTuple):
    """Good answers for each second of processor time, and what each client was told, by status."""

    rate: float
    many: dict[int, int]
    modest: dict[int, int]


def send_all_the_time(port: int, key: str, connections: int, until: tuple[int, float], pause: float) -> dict[int, int]:
    """Send a call on each connection as soon as the last one is answered, or after a pause; the answers by status.

    ``until`` is a process, and the processor time after which it ends.
    """
    body = b'{"agentId":"served","capability":"work","input":{"name":"flood"}}'
    head = f"POST /v1/call HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
    request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    latest, told, waiting = time.monotonic() + PATIENCE, Counter[int](), list[tuple[float, socket.socket]]()
    parts: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            connection = socket.create_connection(("127.0.0.1", port), 30)
            selector.register(connection, selectors.EVENT_READ)
            connection.sendall(request)
        while (now := time.monotonic()) < latest and _cpu_seconds(until[0]) < until[1]:
            for key_of, _ in selector.select(0.02):
                connection = key_of.fileobj  # type: ignore[assignment]
                try:
                    if more := connection.recv(65_536):
                        answer = parts.pop(connection, b"") + more
                        if not _is_whole(answer):
                            parts[connection] = answer
                            continue
                        told[int(answer[9:12])] += 1
                        if not pause:
                            connection.sendall(request)
                        else:
                            waiting.append((now + pause, connection))
                        continue
                except (OSError, ValueError):
                    pass
                told[0] += 1
                selector.unregister(connection)
                connection.close()
            while waiting and waiting[0][0] <= now:
                waiting.pop(0)[1].sendall(request)
    return dict(told)


def _is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return bool(found) and length is not None and len(body) >= int(length[1])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def judge_requests(capacity: Flood, overload: Flood) -> Result:
    """Work done for each second of processor time, and whether the client that asks for little was served."""
    share = overload.rate / capacity.rate if capacity.rate else 0.0
    served = overload.modest.get(200, 0) / max(1, sum(overload.modest.values()))
    refused = overload.many.get(503, 0)
    broken = sum(count for told in (*overload[1:], *capacity[1:]) for status, count in told.items() if not status)
    return {
        "ok": share >= KEPT and served >= KEPT and refused > 0 and not broken,
        "capacity": round(capacity.rate, 1),
        "goodput": round(overload.rate, 1),
        "share": round(share, 3),
        "refused": refused,
        "modest_served": round(served, 3),
        "broken": broken,
        "statuses": {"many": overload.many, "modest": overload.modest},
    }
