"""``load``: 200 callers at once for a minute, over a mix of targets, each answer checked against what that caller said.

One ``agent3 serve`` (a key, a rule, limits, metrics, the ledger in a SQLite file) with a function, a function that
asks, one that fails, and an echo behind it over MCP, A2A and OpenAPI. Every call brings words of its own. Without
options it takes a minute; ``--seconds`` and ``--connections`` choose otherwise.

    gateway   ``wrong`` are answers that were not the caller's own; ``lost_rows`` are calls without a row in the ledger.
              Both must be 0. ``grown_mb`` is resident memory at the end less that after a sixth of the calls' time.
              ``shed`` are requests that it refused before it began, having too much to do; they are sent again.
    bare      the bare call path, by the same callers in the same run: aiohttp hands the call to the same server

``above_bare_ms`` is CPU per call of the gateway's process less that of the bare one; ``aim`` is 0.5 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from bench import ours
from bench.harness import (
    APPS,
    HEALTHY,
    Options,
    Result,
    Row,
    Server,
    bench,
    clean_environment,
    cpu_seconds,
    ratio,
    resident_mb,
    say,
    serving,
)
from bench.load import HOST, percentile, read_answer

__all__ = ["AIM_MS", "MIX", "Crowd", "House", "house", "run"]

AIM_MS = 0.5
SHED_SECONDS = 1.0
"""After so long a request that was refused for want of time is sent again, as its Retry-After says."""
CALLERS, SECONDS = 200, 60.0
BARE_SHARE = 6
"""The bare call path gets this part of the time."""
ADD_SECONDS = 200
READY_SECONDS = 400.0
"""Also for adding the agents before it starts. No figure depends on it."""
ANSWER_SECONDS = 60.0
FLUSH_SECONDS = 30.0
MIX = ("function",) * 40 + ("mcp",) * 19 + ("a2a",) * 15 + ("openapi",) * 15 + ("question",) * 10 + ("error",)
"""A hundred calls of a caller, in an order that differs from caller to caller."""
_STRIDE = 37
"""Prime to the length of the mix, so that its kinds are spread."""


@dataclass(slots=True)
class Crowd:
    """What callers got. ``turns`` counts requests that the ledger must have a row of."""

    turns: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    broken: int = 0
    shed: int = 0
    """Requests that were refused for want of time, with 503, and sent again."""
    latencies: array[float] = field(default_factory=lambda: array("d"))

    @property
    def calls(self) -> int:
        """Calls that were answered as they should be."""
        return sum(self.kinds.values())

    async def drive(self, port: int, callers: int, *, seconds: float | None = None, each: int = sys.maxsize,
                    bare: bool = False) -> None:  # fmt: skip
        """Let so many callers call at once: for some seconds, or a number of calls each."""
        until = time.perf_counter() + (seconds if seconds is not None else 3_600.0)
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(self._caller(port, number, until, each, bare))

    async def _caller(self, port: int, number: int, until: float, each: int, bare: bool) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)

        async def post(path: str, body: Any) -> Any:
            raw = json.dumps(body).encode()
            while (answer := await send(path, raw)) is None:
                self.shed += 1
                await asyncio.sleep(SHED_SECONDS)
            self.turns += 1
            return answer

        async def send(path: str, raw: bytes) -> Any:
            """An answer, or None where the gateway has too much to do and did not begin: such a request has no row."""
            head = f"POST {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nAuthorization: Bearer {ours.KEY}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
            async with asyncio.timeout(ANSWER_SECONDS):
                status, raw = await read_answer(reader)
            answer = json.loads(raw)
            return None if status == HTTPStatus.SERVICE_UNAVAILABLE and "success" not in answer else answer

        try:
            for count in range(each):
                began = time.perf_counter()
                if began >= until:
                    break
                kind = "function" if bare else MIX[(number + count * _STRIDE) % len(MIX)]
                words = f"caller {number} call {count}"
                fault = await (_call_bare(post, words) if bare else _CALLS[kind](post, words))
                self.latencies.append(time.perf_counter() - began)
                if fault is None:
                    self.kinds[kind] += 1
                else:
                    self.wrong.append(f"{kind}: {words!r} got {fault}")
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            self.broken += 1
            say(f"caller {number}: {type(error).__name__} {error}")
        finally:
            writer.close()


def _differs(answer: Any, expected: Any) -> str | None:
    return None if answer.get("success") and answer.get("result") == expected else json.dumps(answer)[:300]


def _ask(agent: str, capability: str, words: str) -> dict[str, Any]:
    return {"agentId": agent, "capability": capability, "input": {"text": words}}


async def _call_bare(post: Any, words: str) -> str | None:
    return _differs(await post("/bare", _ask("crowd", "say", words)), words)


async def _call_function(post: Any, words: str) -> str | None:
    return _differs(await post("/v1/call", _ask("crowd", "say", words)), words)


async def _call_mcp(post: Any, words: str) -> str | None:
    return _differs(await post("/v1/call", _ask("mcp", "say", words)), words)


async def _call_a2a(post: Any, words: str) -> str | None:
    body = {"agentId": "a2a", "capability": "say", "message": words}
    return _differs(await post("/v1/call", body), words)


async def _call_openapi(post: Any, words: str) -> str | None:
    return _differs(await post("/v1/call", _ask("openapi", "say", words)), {"text": words})


async def _call_question(post: Any, words: str) -> str | None:
    asked = await post("/v1/call", _ask("crowd", "seat", words))
    if asked.get("status") != "needs":
        return json.dumps(asked)[:300]
    seat = f"seat of {words}"
    return _differs(await post(f"/v1/calls/{asked['job']}/answer", {"message": seat}), f"{words} {seat}")


async def _call_error(post: Any, words: str) -> str | None:
    told = await post("/v1/call", _ask("crowd", "fail", words))
    right = told.get("errorCode") == "target_failed" and f"no {words}" in told.get("error", "")
    return None if right else json.dumps(told)[:300]


_CALLS = {
    "function": _call_function,
    "mcp": _call_mcp,
    "a2a": _call_a2a,
    "openapi": _call_openapi,
    "question": _call_question,
    "error": _call_error,
}


@dataclass(frozen=True, slots=True)
class House:
    """The gateway, the bare path beside it, and where the gateway keeps its ledger."""

    gateway: Server
    bare: Server
    database: Path

    def rows(self, expected: int) -> int:
        """Rows in the ledger, when there are as many as expected, or after a while: they are written in batches."""
        until = time.perf_counter() + FLUSH_SECONDS
        with contextlib.closing(sqlite3.connect(self.database, timeout=FLUSH_SECONDS)) as database:
            while True:
                found: int = database.execute("SELECT COUNT(*) FROM calls").fetchone()[0]
                if found >= expected or time.perf_counter() > until:
                    return found
                time.sleep(0.1)


@contextlib.contextmanager
def house() -> Iterator[House]:
    """The gateway with all of its targets, until the block ends."""
    databases: list[Path] = []

    def upstream(port: int, _: Path) -> list[str]:
        return [sys.executable, str(APPS / "crowd_upstream.py"), str(port)]

    with serving(upstream, HEALTHY, ready_seconds=READY_SECONDS) as behind:
        url = f"http://{HOST}:{behind.port}"

        def gateway(port: int, folder: Path) -> list[str]:
            options = ours.written(folder, "batched")
            for name, at in (("mcp", "/mcp"), ("a2a", "/a2a"), ("openapi", "/openapi.json")):
                add = [sys.executable, "-m", "agent3", "add", f"{url}{at}", "--name", name, *options]
                environment = {**clean_environment(), **ours.ENVIRONMENT}
                told = subprocess.run(
                    add, capture_output=True, text=True, timeout=ADD_SECONDS, env=environment, check=False
                )
                if told.returncode:
                    raise RuntimeError(f"agent3 add {at} ended with {told.returncode}: {told.stderr[-300:]}")
            databases.append(folder / "bench.db")
            return ours.serve("bench.apps.crowd_agent:agent")(port, folder)

        def bare(port: int, _: Path) -> list[str]:
            return [sys.executable, str(APPS / "forward.py"), str(port), url]

        with (
            serving(gateway, HEALTHY, environment=ours.ENVIRONMENT, ready_seconds=READY_SECONDS) as running,
            serving(bare, HEALTHY, ready_seconds=READY_SECONDS) as beside,
        ):
            yield House(running, beside, databases[-1])


@bench("load", "200 callers at once for a minute over every kind of target: wrong answers, lost rows, memory, CPU")
def run(options: Options) -> Result:
    """Load the gateway and, for a part of the time, the bare call path."""
    plain = Options()
    seconds = SECONDS if options.seconds == plain.seconds else options.seconds
    callers = CALLERS if options.connections == plain.connections else options.connections
    with house() as it:
        crowd = Crowd()
        asyncio.run(crowd.drive(it.gateway.port, 10, each=len(MIX)))  # warm, and everything once; counted as calls
        warm = len(crowd.latencies)
        begun = crowd.turns
        pid = it.gateway.process.pid
        before = cpu_seconds(pid)
        asyncio.run(crowd.drive(it.gateway.port, callers, seconds=seconds / 6))
        early = resident_mb(pid)
        asyncio.run(crowd.drive(it.gateway.port, callers, seconds=seconds * 5 / 6))
        after, late = cpu_seconds(pid), resident_mb(pid)
        rows = it.rows(crowd.turns)
        floor = Crowd()
        bare_before = cpu_seconds(it.bare.process.pid)
        asyncio.run(floor.drive(it.bare.port, callers, seconds=seconds / BARE_SHARE, bare=True))
        bare_after = cpu_seconds(it.bare.process.pid)
    for one in crowd.wrong[:5]:
        say(one)
    turns = crowd.turns - begun
    ours_ms = None if before is None or after is None else (after - before) * 1e3 / max(turns, 1)
    bare_ms = (
        None if bare_before is None or bare_after is None else (bare_after - bare_before) * 1e3 / max(floor.turns, 1)
    )
    lost = crowd.turns - rows
    above = None if ours_ms is None or bare_ms is None else ours_ms - bare_ms
    extra = {
        "calls": crowd.calls,
        "wrong": len(crowd.wrong),
        "lost_rows": lost,
        "shed": crowd.shed,
        "grown_mb": None if early is None or late is None else late - early,
        "resident_mb": late,
        "above_bare_ms": above,
        "aim": f"{AIM_MS:g} ms",
        "aim_met": above is not None and above <= AIM_MS,
    }
    rows_shown = [
        _row("gateway", crowd, crowd.latencies[warm:], turns / seconds, ours_ms, abs(lost), extra),
        _row("bare", floor, floor.latencies, floor.turns * BARE_SHARE / seconds, bare_ms, 0, {"calls": floor.calls}),
    ]
    return Result(rows_shown, {"gateway_vs_bare_cpu": ratio(bare_ms, ours_ms)})


def _row(name: str, crowd: Crowd, laps: array[float], rate: float, cpu: float | None, lost: int, extra: Any) -> Row:
    ordered = sorted(laps)
    p50, p99 = percentile(ordered, 0.5) * 1e3, percentile(ordered, 0.99) * 1e3
    return Row(name, rate, p50, p99, cpu, len(crowd.wrong) + crowd.broken + lost, extra)
