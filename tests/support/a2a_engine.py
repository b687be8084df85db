"""An A2A engine over one local agent, in memory or on a file, for tests of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agent3.calls.core import Core
from agent3.calls.outbox import Outbox
from agent3.calls.runner import Target
from agent3.calls.steps.authorize import unknown
from agent3.definitions import AgentCard
from agent3.directory import Directory, Reputation
from agent3.env import REAL, Env
from agent3.gateway import Gateway
from agent3.identity.secrets import EnvironmentVault
from agent3.model import Principal
from agent3.observe.metrics import Metrics
from agent3.protocols.a2a.door.projection import parts_in
from agent3.protocols.a2a.door.push import Pushes
from agent3.protocols.a2a.door.tasks import Aim, Caller, Engine
from agent3.protocols.a2a.wire.types import Item, Message, Part, Role, Send, Sending
from agent3.protocols.functions.functions import LocalAgent, LocalConnector
from agent3.settings import Calls, Limits, Settings
from agent3.storage import Database, open_database

ALICE = Caller(principal=Principal("alice", "client"))
BOB = Caller(principal=Principal("bob", "client"))
SETTINGS = Settings(calls=Calls(ledger="batched", backoff=0.001, backoff_max=0.002), limits=Limits(per_minute=0))


class OneAgent:
    """Serves the capabilities of one agent: the one that metadata names, else the first."""

    def __init__(self, agent: LocalAgent):
        self.agent = agent

    async def aim(self, principal: Principal, message: Message, tenant: str | None) -> Aim:
        name = (message.metadata or {}).get("skillId") or next(iter(self.agent.functions))
        function = self.agent.functions.get(name)
        if function is None:
            raise unknown(self.agent.id, name)
        data = next((part.data for part in message.parts if isinstance(part.data, dict)), None)
        return Aim(self.agent.agent, function.capability, data, parts_in(message.parts))

    async def card(
        self, principal: Principal | None, tenant: str | None = None, extended: bool = False
    ) -> AgentCard | None:
        return AgentCard(agent_id=self.agent.id, name=self.agent.name)


class Bench:
    """One process: an engine and what it stands on."""

    def __init__(self, engine: Engine, core: Core, database: Database, pushes: Pushes, outbox: Outbox):
        self.engine = engine
        self.core = core
        self.database = database
        self.pushes = pushes
        self.outbox = outbox


@asynccontextmanager
async def a_bench(
    agent: LocalAgent,
    url: str = ":memory:",
    /,
    *,
    settings: Settings = SETTINGS,
    env: Env = REAL,
    recover: bool = False,
    deliver: bool = False,
    **options: Any,
) -> AsyncIterator[Bench]:
    """An engine until the end of the block."""
    database = await open_database(url, env=env)
    local = LocalConnector()
    local.add(agent)

    async def lookup(agent_id: str, name: str) -> Target:
        function = agent.functions.get(name)
        if agent_id != agent.id or function is None:
            raise unknown(agent_id, name)
        return agent.agent, function.capability

    metrics = Metrics()
    core = Core.build(settings, database, {"local": local}, lookup, env=env, metrics=metrics)
    outbox = Outbox(settings, database, EnvironmentVault(), env, metrics)
    pushes = Pushes(outbox, core.jobs, database, env)
    gateway = Gateway(core, Directory(database, env), Reputation(database, env))
    engine = Engine(gateway, OneAgent(agent), push=pushes, **options)
    if recover:
        await core.runner.recover()
    core.runner.takeover.start()
    if deliver:
        outbox.start()
    try:
        yield Bench(engine, core, database, pushes, outbox)
    finally:
        await core.aclose()
        await outbox.aclose(1.0)
        await database.aclose()


def say(text: str, message_id: str | None = None, **more: Any) -> Send:
    """A message as a request; what is not of the message goes to its configuration."""
    how = {name: more.pop(name) for name in Sending.__struct_fields__ if name in more}
    outer = {name: more.pop(name) for name in ("stream", "task_alias", "metadata_of_request") if name in more}
    parts = more.pop("parts", (Part(text=text),))
    message = Message(message_id=message_id or REAL.id(), role=Role.USER, parts=parts, **more)
    return Send(message=message, configuration=Sending(**how), **outer)


async def heard(items: Any, seconds: float = 60.0) -> list[tuple[int, Item]]:
    """Everything that a stream tells."""
    async with asyncio.timeout(seconds):
        return [item async for item in items]
