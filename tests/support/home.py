"""A whole call core with agents written in Python, on any database, that can be left and entered again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from agent3.calls import Core
from agent3.calls.jobs import Job
from agent3.calls.runner import Target
from agent3.calls.steps.authorize import unknown
from agent3.env import REAL, Env
from agent3.model import Answer, Call, Event, Needs, Outcome, Part, Principal, Working
from agent3.observe.metrics import Metrics
from agent3.protocols.functions import LocalAgent, LocalConnector
from agent3.settings import Calls, Limits, Server, Settings
from agent3.storage import Database, open_database

__all__ = ["CLIENT", "QUIET", "Home", "home", "job_of", "run", "said", "until"]

T = TypeVar("T")
CLIENT = Principal("alice", "client")
QUIET = Settings(
    server=Server(shutdown_seconds=0.05),
    calls=Calls(timeout=60.0, backoff=0.001, backoff_max=0.002),
    limits=Limits(per_minute=0),
)


def run(story: Coroutine[Any, Any, T], seconds: float = 100.0) -> T:
    """Tell a story in a loop of its own, within bounds."""
    return asyncio.run(asyncio.wait_for(story, seconds))


async def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.002)


def said(**answers: Any) -> dict[str, Answer]:
    """Accepted answers by the id of their question."""
    return {name: Answer("accept", value) for name, value in answers.items()}


def job_of(outcome: Outcome) -> str:
    """The job that an outcome refers to."""
    assert isinstance(outcome, Needs | Working), outcome
    assert outcome.job is not None
    return outcome.job


class Home:
    """The core, and the calls that a test makes."""

    def __init__(self, core: Core, agents: dict[str, LocalAgent]):
        self.core = core
        self.runner = core.runner
        self.jobs = core.jobs
        self._agents = agents
        self.events: list[Event] = []

    async def lookup(self, agent_id: str, name: str) -> Target:
        agent = self._agents.get(agent_id)
        function = agent.functions.get(name) if agent is not None else None
        if agent is None or function is None:
            raise unknown(agent_id, name)
        return agent.agent, function.capability

    async def call(
        self,
        name: str,
        given: Any = None,
        *,
        message: str = "",
        principal: Principal = CLIENT,
        detach: bool = False,
        **more: Any,
    ) -> Outcome:
        """A first turn of a capability of the first agent; what it emits is kept in ``events``."""
        agent = next(iter(self._agents))
        parts = (Part(text=message),) if message else ()
        call = Call(id=REAL.id(), principal=principal, agent=agent, capability=name, input=given, parts=parts, **more)
        target = await self.lookup(agent, name)
        return await self.runner.start(call, target, listener=self.events.append, door="test", detach=detach)

    async def answer(self, needs: Outcome, principal: Principal = CLIENT, **answers: Any) -> Outcome:
        """The next turn, with accepted answers by id."""
        return await self.runner.answer(principal, job_of(needs), said(**answers), listener=self.events.append)

    async def job(self, outcome: Outcome | str) -> Job:
        return await self.runner.get(CLIENT, outcome if isinstance(outcome, str) else job_of(outcome))

    async def rows(self, table: str = "calls") -> list[dict[str, Any]]:
        await self.core.ledger.flush()
        return [dict(row) for row in await self.core.database.all(f"SELECT * FROM {table}")]

    async def followed(self, job: str, after: int = 0) -> list[Event]:
        return [event async for event in self.runner.follow(CLIENT, job, after)]


@asynccontextmanager
async def home(
    *agents: LocalAgent,
    url: str = ":memory:",
    settings: Settings = QUIET,
    env: Env = REAL,
    database: Database | None = None,
) -> AsyncIterator[Home]:
    """Enter it; leaving stops running turns as a shutdown does, and keeps their jobs for who enters next."""
    opened = database if database is not None else await open_database(url)
    connector = LocalConnector()
    for agent in agents:
        connector.add(agent)
    by_id = {agent.id: agent for agent in agents}

    async def lookup(agent_id: str, name: str) -> Target:
        return await entered.lookup(agent_id, name)

    core = Core.build(settings, opened, {"local": connector}, lookup, env=env, metrics=Metrics())
    entered = Home(core, by_id)
    try:
        yield entered
    finally:
        await core.aclose()
        if database is None:
            await opened.aclose()
