"""``calls``: what a call costs in this process, without any network: a loop on one core, and a SQLite file.

Rows, each for ``--seconds`` in every round, the best round counting:

    bare_function       the async function itself, awaited
    steps_noop          every step around a handler that only returns; the ledger batched. Under 30 µs
    steps_noop_unkept   likewise, but the ledger's rows go nowhere: what is left is the steps without the disk
    function_batched    the same function through the Runner and every step; the ledger batched. Over 10,000 per second
    function_durable_1  likewise, but each answer waits until its row is on disk; one caller at a time
    function_durable_64 likewise, 64 callers at a time share the commits

CPU counts the whole process, so also the thread that writes the ledger. ``us_per_call`` is the time from one answer to
the next.

Ratios, above 1 where the first is faster:

    bare_vs_function_batched    rate of bare_function / rate of function_batched: what the steps take
    batched_vs_durable          rate of function_batched / rate of function_durable_1: what waiting for the disk takes
    durable_64_vs_1             rate of function_durable_64 / rate of function_durable_1: what sharing commits gives
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import uvloop
from msgspec import structs

from agent3.calls import Core
from agent3.calls.order import Chain
from agent3.calls.step import Aim
from agent3.calls.steps.ledger import Ledger
from agent3.env import REAL
from agent3.model import LOCAL, Agent, Call, Capability, Done, Outcome, Part, Turn
from agent3.observe.metrics import METRICS
from agent3.protocols.functions import LocalAgent, LocalConnector
from agent3.settings import Calls, Settings
from agent3.storage import Database, open_database
from bench.harness import Options, Result, Row, bench, ratio, say
from bench.load import percentile

__all__ = ["run"]

LIMIT_US = 30.0
LIMIT_RATE = 10_000.0
WARM_SECONDS = 0.2
MANY = 64
YIELD = 100
"""Calls after which a caller lets the loop turn: a call that never suspends would keep the ledger from its flushes."""

Once = Callable[[], Awaitable[object]]


async def echo(message: str) -> str:
    """Say it again."""
    return message


@dataclass(frozen=True, slots=True)
class _Core:
    """A call core over a database of its own, with one agent in it."""

    core: Core
    target: tuple[Agent, Capability]

    def call(self) -> Call:
        """A new call of the echo."""
        agent, capability = self.target
        return Call(
            id=REAL.id(),
            principal=LOCAL,
            agent=agent.id,
            capability=capability.name,
            input={"message": "hello"},
            routes=capability.routes,
        )

    def noop(self, *, kept: bool = True) -> Once:
        """Every step around a handler that only returns; with the rows of the ledger ``kept``, or going nowhere."""
        done = Done((Part(text="hello"),))

        async def nothing(_: Call) -> Outcome:
            return done

        nowhere = Ledger(cast("Database", _Nowhere()), "batched", REAL, METRICS)
        parts = self.core.parts if kept else replace(self.core.parts, ledger=nowhere)
        handler = Chain(parts).compile(Aim(*self.target, LOCAL, "library", "start"), nothing)

        async def once() -> None:
            outcome = await handler(
                structs.replace(self.call(), live=Turn(*self.target), route=self.target[1].routes[0])
            )
            if not isinstance(outcome, Done):
                raise RuntimeError(f"the no-op did not answer: {outcome}")

        return once

    def function(self) -> Once:
        """The function through the Runner and every step."""

        async def once() -> None:
            outcome = await self.core.runner.start(self.call(), self.target)
            if not isinstance(outcome, Done) or outcome.parts[0].text != "hello":
                raise RuntimeError(f"the echo did not answer: {outcome}")

        return once


class _Nowhere:
    """A database for the ledger that keeps nothing."""

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
        """Take the rows and forget them."""
        return len(rows)


@asynccontextmanager
async def _core(folder: str, mode: Literal["durable", "batched"]) -> AsyncIterator[_Core]:
    local, connector = LocalAgent("echo"), LocalConnector()
    local.add(echo)
    connector.add(local)
    target = (local.agent, local.agent.capabilities[0])

    async def lookup(_: str, __: str) -> tuple[Agent, Capability]:
        return target

    database = await open_database(f"sqlite:///{folder}/{mode}.db")
    core = Core.build(Settings(calls=Calls(ledger=mode)), database, {"local": connector}, lookup)
    try:
        yield _Core(core, target)
    finally:
        await core.aclose()
        await database.aclose()


@bench("calls", "a call in this process: the bare function, every step, the ledger batched and durable")
def run(options: Options) -> Result:
    """Measure every row once per round and keep the best of each."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        best = runner.run(_rounds(options))
    rate = {name: row.rate for name, row in best.items()}
    ratios = {
        "bare_vs_function_batched": ratio(rate["bare_function"], rate["function_batched"]),
        "batched_vs_durable": ratio(rate["function_batched"], rate["function_durable_1"]),
        "durable_64_vs_1": ratio(rate["function_durable_64"], rate["function_durable_1"]),
    }
    return Result([_judged(row) for row in best.values()], ratios)


async def _rounds(options: Options) -> dict[str, Row]:
    best: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with _core(folder, "batched") as batched, _core(folder, "durable") as durable:
            plan: dict[str, tuple[Once, int]] = {
                "bare_function": (lambda: echo("hello"), 1),
                "steps_noop": (batched.noop(), 1),
                "steps_noop_unkept": (batched.noop(kept=False), 1),
                "function_batched": (batched.function(), 1),
                "function_durable_1": (durable.function(), 1),
                f"function_durable_{MANY}": (durable.function(), MANY),
            }
            for turn in range(options.rounds):
                for name, (once, callers) in plan.items():
                    await _timed(name, once, callers, WARM_SECONDS)
                    row = await _timed(name, once, callers, options.seconds)
                    await batched.core.ledger.flush()  # one row must not pay for the rows of another
                    say(f"round {turn + 1}/{options.rounds} {name}: {row.rate or 0:,.0f}/s")
                    if name not in best or (row.rate or 0) > (best[name].rate or 0):
                        best[name] = row
    return best


async def _timed(name: str, once: Once, callers: int, seconds: float) -> Row:
    laps = array("d")

    async def caller(until: float) -> None:
        while (lap := time.perf_counter()) < until:
            await once()
            laps.append(time.perf_counter() - lap)
            if not len(laps) % YIELD:
                await asyncio.sleep(0)

    busy, began = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller(began + seconds))
    took, busy = time.perf_counter() - began, time.process_time() - busy
    ordered = sorted(laps)
    extra: dict[str, Any] = {"calls": len(laps), "us_per_call": took * 1e6 / len(laps)}
    p50, p99 = percentile(ordered, 0.5) * 1e3, percentile(ordered, 0.99) * 1e3
    return Row(name, len(laps) / took, p50, p99, busy * 1e3 / len(laps), extra=extra)


def _judged(row: Row) -> Row:
    if row.target == "steps_noop":
        met = row.extra["us_per_call"] < LIMIT_US
        return replace(row, extra={**row.extra, "limit": f"{LIMIT_US:g} µs", "met": met})
    if row.target == "function_batched":
        met = (row.rate or 0) > LIMIT_RATE
        return replace(row, extra={**row.extra, "limit": f"{LIMIT_RATE:,.0f}/s", "met": met})
    return row
