"""``security``: what it costs to guard a call, in this process: CPU per call, with the thread that writes the audit.

A client with a key, a rule that allows it, a rate that is never reached, shares and a ceiling, a schema, and the audit
chain in a SQLite file, as a gateway has them. Rows, the best round counting:

    together           the caller known by its key, then the steps ledger, authorize, loop, limit and validate around a
                       handler that only returns, compiled as they are served; ``limit`` 60 µs
    together_nested    likewise, with a frame for every step and the rules asked each time: nothing left out
    authenticate       the caller known by its key alone
    authorize, limit, validate
                       that step alone, with a frame of its own around the handler that only returns
    audit              the ledger alone: its row, linked and on disk within 50 ms
    nothing            the handler that only returns, and a new call for it: what each of the others has in it too

Ratios, above 1 where it stays below the limit:

    limit_vs_together  60 µs / CPU per call of ``together``
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvloop

from agent3.calls import Core
from agent3.calls.order import Chain
from agent3.calls.step import Aim, Step
from agent3.calls.steps.authorize import Authorize
from agent3.calls.steps.ledger import Record
from agent3.calls.steps.limit import Limit
from agent3.calls.steps.loop import Loop
from agent3.calls.steps.validate import Validate
from agent3.env import REAL
from agent3.identity.doorkeeper import Doorkeeper
from agent3.model import Agent, Call, Capability, Done, Handler, Outcome, Part, Principal, Turn
from agent3.observe.metrics import METRICS
from agent3.protocols.functions import LocalAgent, LocalConnector
from agent3.settings import Calls, Client, Limits, Rule, Settings
from agent3.storage import open_database
from bench.harness import Options, Result, Row, bench, ratio, say

__all__ = ["LIMIT_US", "run"]

LIMIT_US = 60.0
GUARDS: tuple[type[Step], ...] = (Record, Authorize, Loop, Limit, Validate)
WARM = 0.2
YIELD = 100
"""Calls after which the loop turns: a call that never suspends would keep the ledger from its flushes."""
KEY = "a key that is only good in this process"
CLIENT = Client("bench", f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}")
SETTINGS = Settings(
    calls=Calls(ledger="batched"),
    limits=Limits(per_minute=1e9, burst=1_000_000, concurrent=1_000),
    clients=(CLIENT,),
    rules=(Rule("deny", principal="somebody else"), Rule("allow", principal="bench")),
)
HEADERS = [
    (b"host", b"127.0.0.1"),
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"authorization", f"Bearer {KEY}".encode()),
    (b"content-length", b"120"),
]
Once = Callable[[], Awaitable[object]]


async def echo(message: str) -> str:
    """Say it again."""
    return message


async def nothing(_: Call) -> Outcome:
    """The handler inside."""
    return Done((Part(text="hello"),))


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A call core, the agent in it, and who is at its door."""

    core: Core
    target: tuple[Agent, Capability]
    doorkeeper: Doorkeeper

    def identify(self) -> Principal:
        """Who calls, of a request that nobody has looked at before."""
        scope: MutableMapping[str, Any] = {"type": "http", "headers": HEADERS}
        return self.doorkeeper(scope)

    def aim(self) -> Aim:
        """What all calls here are for."""
        return Aim(*self.target, self.identify(), "mcp", "start")

    def compiled(self, *order: type[Step]) -> Handler:
        """These steps around nothing, as they are served."""
        return Chain(self.core.parts, order).compile(self.aim(), nothing)

    def nested(self, *order: type[Step]) -> Handler:
        """The same with a frame for each, and none left out."""
        return Chain(self.core.parts, order).nest(self.aim(), nothing)

    def call(self, principal: Principal) -> Call:
        """A new call of the echo."""
        agent, capability = self.target
        return Call(
            id=REAL.id(),
            principal=principal,
            agent=agent.id,
            capability=capability.name,
            input={"message": "hello"},
            routes=capability.routes,
            route=capability.routes[0],
            live=Turn(agent, capability, door="mcp"),
        )

    def around(self, handler: Handler, *, identified: bool = False) -> Once:
        """One call through a handler; with ``identified`` its caller is known anew each time."""
        known = self.identify()

        async def once() -> None:
            outcome = await handler(self.call(self.identify() if identified else known))
            if type(outcome) is not Done:
                raise RuntimeError(f"a call that may pass did not: {outcome}")

        return once

    def plan(self) -> dict[str, Once]:
        """What is measured, by name."""

        async def authenticate() -> None:
            self.identify()

        return {
            "together": self.around(self.compiled(*GUARDS), identified=True),
            "together_nested": self.around(self.nested(*GUARDS), identified=True),
            "authenticate": authenticate,
            "authorize": self.around(self.nested(Authorize)),
            "limit": self.around(self.compiled(Limit)),
            "validate": self.around(self.compiled(Validate)),
            "audit": self.around(self.compiled(Record)),
            "nothing": self.around(nothing),
        }


@asynccontextmanager
async def _guarded(folder: str) -> AsyncIterator[_Guarded]:
    local, connector = LocalAgent("echo"), LocalConnector()
    local.add(echo)
    connector.add(local)
    target = (local.agent, local.agent.capabilities[0])

    async def lookup(_: str, __: str) -> tuple[Agent, Capability]:
        return target

    database = await open_database(f"sqlite:///{folder}/security.db")
    core = Core.build(SETTINGS, database, {"local": connector}, lookup, gateway="bench")
    try:
        yield _Guarded(core, target, Doorkeeper(SETTINGS, METRICS, {}))
    finally:
        await core.aclose()
        await database.aclose()


@bench("security", "what guards a call, by CPU: authenticate, authorize, limit, validate and the chained audit row")
def run(options: Options) -> Result:
    """Measure every row once per round and keep the best of each."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        best = runner.run(_rounds(options))
    together = best["together"]
    micros = together["us_per_call"]
    rows = [
        Row(
            name,
            cpu_ms_per_call=one["us_per_call"] / 1e3,
            extra={**one, **({"limit": f"{LIMIT_US:g} µs", "met": micros < LIMIT_US} if name == "together" else {})},
        )
        for name, one in best.items()
    ]
    return Result(rows, {"limit_vs_together": ratio(LIMIT_US, micros)})


async def _rounds(options: Options) -> dict[str, dict[str, float]]:
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with _guarded(folder) as guarded:
            for turn in range(options.rounds):
                for name, once in guarded.plan().items():
                    await _timed(guarded, once, WARM)
                    row = await _timed(guarded, once, options.seconds)
                    say(f"round {turn + 1}/{options.rounds} {name}: {row['us_per_call']:.1f} µs")
                    if name not in best or row["us_per_call"] < best[name]["us_per_call"]:
                        best[name] = row
    return best


async def _timed(guarded: _Guarded, once: Once, seconds: float) -> dict[str, float]:
    """CPU per call of the whole process, until the last row of the audit is on disk."""
    calls, until, busy = 0, time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < until:
        for _ in range(YIELD):
            await once()
        calls += YIELD
        await asyncio.sleep(0)
    await guarded.core.ledger.flush()
    return {"calls": calls, "us_per_call": (time.process_time() - busy) * 1e6 / calls}
