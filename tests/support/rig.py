"""A call core in memory with scripted targets, for tests of the steps and of the Runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from agent3.calls.core import Core
from agent3.calls.order import ORDER, Chain
from agent3.calls.runner import Runner, Target
from agent3.calls.step import Aim, Step
from agent3.env import REAL, Env
from agent3.identity.secrets import Secret
from agent3.model import (
    Agent,
    Call,
    Capability,
    Done,
    Failed,
    Handler,
    Hints,
    Outcome,
    Part,
    Principal,
    Route,
)
from agent3.observe.metrics import Metrics
from agent3.settings import Calls, Limits, Settings
from agent3.storage import Database, open_database

CLIENT = Principal("alice", "client")
Answer = Outcome | Callable[[Call], Awaitable[Outcome]]

DONE = Done((Part(data={"ok": True}),))
DOWN = Failed("unavailable", "It is down.", retryable=True)


async def hang(call: Call) -> Outcome:
    """A target that never answers."""
    await asyncio.sleep(60)
    return DONE


class Script:
    """A target that answers by a list; the last answer repeats. ``calls`` is what reached it."""

    def __init__(self, *answers: Answer):
        self.answers = list(answers) or [DONE]
        self.calls: list[Call] = []

    async def describe(self, address: str) -> Agent:
        return Agent(id=address, name=address)

    async def call(self, call: Call) -> Outcome:
        self.calls.append(call)
        answer = self.answers[min(len(self.calls), len(self.answers)) - 1]
        return await answer(call) if callable(answer) else answer

    async def aclose(self) -> None:
        return


class OneSecret:
    """A vault with one secret in it."""

    def __init__(self, value: str):
        self.secret = Secret(value)

    async def get(self, reference: str) -> Secret:
        return self.secret


Order = Sequence[type[Step]]


def moved(step: str, *, before: str | None = None, after: str | None = None) -> Order:
    """The order with one step somewhere else."""
    (chosen,) = (one for one in ORDER if one.name == step)
    rest = [one for one in ORDER if one is not chosen]
    names = [one.name for one in rest]
    place = names.index(before) if before is not None else names.index(after or "") + 1
    return (*rest[:place], chosen, *rest[place:])


class Nested(Chain):
    """The chain without anything left out or folded: every step in a frame of its own."""

    def compile(self, aim: Aim, target: Handler | None = None) -> Handler:
        return self.nest(aim, target)


FORM: ContextVar[type[Chain]] = ContextVar("form", default=Chain)
"""Which form of the chain the rigs of a test are made with."""
PLAIN = Hints()
UNLIMITED = Limits(per_minute=0)
QUICK = Calls(timeout=60.0, attempt_timeout=50.0, backoff=0.001, backoff_max=0.002)


class Rig:
    """One capability ``do`` of one agent ``target``, reached by routes to scripted targets."""

    def __init__(self, core: Core, capability: Capability, runner: Runner, database: Database):
        self.core = core
        self.capability = capability
        self.runner = runner
        self.database = database
        self.agent = Agent(id="target", name="Target", capabilities=(capability,))

    @property
    def metrics(self) -> Metrics:
        return self.core.metrics

    def a_call(self, **more: Any) -> Call:
        plain: dict[str, Any] = {
            "id": REAL.id(),
            "principal": CLIENT,
            "agent": "target",
            "capability": self.capability.name,
            "input": {},
            "routes": self.capability.routes,
        }
        return Call(**{**plain, **more})

    async def call(self, *, capability: Capability | None = None, **more: Any) -> Outcome:
        chosen = capability or self.capability
        given = {"capability": chosen.name, "routes": chosen.routes, **more}
        return await self.runner.start(self.a_call(**given), (self.agent, chosen), door="test")

    async def rows(self, table: str = "calls") -> list[dict[str, Any]]:
        await self.core.ledger.flush()
        found = await self.database.all(f"SELECT * FROM {table}")
        return [dict(row) for row in found]

    async def everything_stored(self) -> bytes:
        """Every value of every table, to look for what must not be there."""
        tables = ("calls", "jobs", "job_events", "dead_letters", "artifacts")
        return b"\n".join([repr(await self.rows(table)).encode() for table in tables])


@asynccontextmanager
async def rig(
    *targets: Script,
    order: Order = ORDER,
    hints: Hints = PLAIN,
    settings: Settings | None = None,
    calls: Calls = QUICK,
    limits: Limits = UNLIMITED,
    vault: Any = None,
    url: str = ":memory:",
    wrap: Callable[[Database], Database] = lambda database: database,
    chain: type[Chain] | None = None,
    env: Env = REAL,
    others: Sequence[Agent] = (),
    **capability: Any,
) -> AsyncIterator[Rig]:
    """A rig with one route for each target, in the protocols ``a``, ``b``, ``c``; ``others`` may stand in.

    Its calls go through the steps in ``order``, compiled as in a gateway unless ``chain`` does otherwise.
    """
    database = await open_database(url)
    connectors = dict(zip("abc", targets, strict=False))
    routes = tuple(Route(name, f"{name}.test", "do") for name in connectors)
    chosen = Capability(**{"name": "do", "hints": hints, "routes": routes, **capability})
    agent = Agent(id="target", name="Target", capabilities=(chosen,))

    async def lookup(agent_id: str, name: str) -> Target:
        return next(((one, one.capabilities[0]) for one in others if one.id == agent_id), (agent, chosen))

    core = Core.build(
        settings or Settings(calls=calls, limits=limits),
        wrap(database),
        connectors,
        lookup,
        vault=vault,
        metrics=Metrics(),
        order=order,
        chain=chain or FORM.get(),
        env=env,
    )
    try:
        yield Rig(core, chosen, core.runner, database)
    finally:
        await core.runner.aclose(0.1)
        await core.aclose()
        await database.aclose()
