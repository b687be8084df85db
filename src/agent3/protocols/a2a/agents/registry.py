"""``AgentRegistry``: the documented registry of agents, by their cards.

Without a core it lives in memory, without a thread or a database, so that it can also be used inside the bridge's loop.
With one it is the directory in the core's database: the same that a gateway on it searches, and that every process on
it sees within half a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError as PydanticError

from agent3 import bridge
from agent3.definitions import AgentCapability, AgentCard
from agent3.directory import Directory
from agent3.directory.search import Index
from agent3.env import REAL, Env
from agent3.errors import AgentNotFound
from agent3.model import Agent, Capability, Hints, Price, Route
from agent3.protocols.a2a.agents.lifecycle import IN_SERVICE, Status, check_transition
from agent3.protocols.functions.standalone import Standalone
from agent3.schema import nearest
from agent3.storage import Database
from agent3.storage.leases import NOW, Leases

__all__ = ["LEASE", "AgentRegistry", "to_agent", "to_card"]

T = TypeVar("T")

LEASE = 30.0
"""Seconds for which a heartbeat is good."""


class AgentRegistry:
    """Cards of agents. Safe from any thread; with a core, not from inside the bridge's loop.

        registry = AgentRegistry()
        registry.register_agent(card)
        registry.discover_agents(capability_required="search_flights")

    In memory they come in the order of their registration, from a database in the order of their ids.
    """

    def __init__(self, *, core: Standalone | None = None, env: Env = REAL):
        self._store: _Store = _MemoryStore(env) if core is None else _DatabaseStore(core, env)
        # Nothing in memory ever waits, so it is finished on the spot.
        self._run: Callable[[Coroutine[Any, Any, Any]], Any] = bridge.finish if core is None else bridge.run
        self._cards: dict[str, tuple[Agent, AgentCard]] = {}

    def register_agent(self, card: AgentCard, *, lease: float | None = None) -> None:
        """Add a card, or replace the one of the same agent.

        With a ``lease`` the agent is found only while it sends a ``heartbeat`` at least every so many seconds.
        """

        async def register() -> None:
            agent = to_agent(card)
            if lease is not None:
                agent.meta["lease"] = lease
                await self._store.beat(card.agent_id, lease)
            await self._store.put(agent)

        self._run(register())

    def unregister_agent(self, agent_id: str) -> None:
        """Remove a card; AgentNotFound if there is none."""
        self._run(self._store.remove(agent_id))

    def get_agent(self, agent_id: str) -> AgentCard | None:
        """The card of one agent, in whichever state it is, or None."""
        agent = self._run(self._store.get(agent_id))
        return self._card_of(agent) if agent is not None else None

    def discover_agents(
        self,
        capability_required: str | None = None,
        *,
        text: str | None = None,
        tag: str | None = None,
        provider: str | None = None,
        input_mode: str | None = None,
        output_mode: str | None = None,
        extension: str | None = None,
    ) -> list[AgentCard]:
        """The cards of all agents in service that meet every condition; a capability is required by name or id.

        With a ``text`` the best matches come first. An agent whose lease has ended is not in service.
        """

        def matches(card: AgentCard) -> bool:
            """Whether one skill of the card meets all conditions on skills, and the card all others."""
            wanted = capability_required
            skills = [skill for skill in card.capabilities if wanted is None or wanted in (skill.name, skill.id)]
            if tag is not None and tag not in card.tags:
                skills = [skill for skill in skills if tag in skill.tags]
                if not skills:
                    return False
            if input_mode is not None:
                skills = [skill for skill in skills if input_mode in (skill.input_modes or card.default_input_modes)]
            if output_mode is not None:
                skills = [skill for skill in skills if output_mode in (skill.output_modes or card.default_output_modes)]
            if provider is not None and (
                card.provider is None or card.provider.organization.lower() != provider.lower()
            ):
                return False
            if extension is not None and all(each.uri != extension for each in card.features.extensions):
                return False
            return bool(skills) or (wanted is None and input_mode is None and output_mode is None)

        cards: list[AgentCard] = [card for card in self._run(self.cards()) if matches(card)]
        if text is None:
            return cards
        by_id = {card.agent_id: card for card in cards}
        ranked = Index({agent_id: to_agent(card) for agent_id, card in by_id.items()}).search(text)
        return [by_id[agent_id] for agent_id, _ in ranked]

    def set_status(self, agent_id: str, status: Status) -> AgentCard:
        """Change the state of an agent; Conflict if it cannot follow the present one, AgentNotFound if none."""

        async def change() -> AgentCard:
            agent = await self._store.get(agent_id)
            if agent is None:
                raise _unknown_agent(agent_id, [each.id for each in await self._store.all()])
            card = to_card(agent).model_copy(update={"status": check_transition(agent_id, agent.status, status)})
            changed = to_agent(card)
            changed.meta.update(agent.meta)
            await self._store.put(changed)
            return card

        card: AgentCard = self._run(change())
        return card

    def heartbeat(self, agent_id: str, seconds: float = LEASE) -> None:
        """Renew the lease of an agent for so many seconds."""
        self._run(self._store.beat(agent_id, seconds))

    def lease_left(self, agent_id: str) -> float | None:
        """Seconds left of the lease of an agent; 0 if it has ended, None if there never was one."""
        _, left = self._run(self.find(agent_id))
        return left if left is None else float(left)

    # For async code in the bridge's loop

    async def cards(self) -> list[AgentCard]:
        """The cards of all agents in service."""
        left = await self._store.leases()
        return [
            self._card_of(agent)
            for agent in await self._store.all()
            if agent.status in IN_SERVICE and (not agent.meta.get("lease") or left.get(agent.id, 0.0) > 0)
        ]

    async def all_cards(self) -> list[AgentCard]:
        """The cards of all agents, in whichever state."""
        return [self._card_of(agent) for agent in await self._store.all()]

    async def find(self, agent_id: str) -> tuple[AgentCard | None, float | None]:
        """The card of an agent, if there is one, and the seconds left of its lease, if it has one."""
        agent = await self._store.get(agent_id)
        if agent is None:
            return None, None
        left = (await self._store.leases()).get(agent_id)
        leased = left is not None or agent.meta.get("lease")
        return self._card_of(agent), max(0.0, left or 0.0) if leased else None

    async def beat(self, agent_id: str, seconds: float = LEASE) -> None:
        """``heartbeat``."""
        await self._store.beat(agent_id, seconds)

    def _card_of(self, agent: Agent) -> AgentCard:
        """The card of an agent, parsed once for as long as the agent does not change."""
        known = self._cards.get(agent.id)
        if known is None or known[0] is not agent:
            known = self._cards[agent.id] = (agent, to_card(agent))
        return known[1]


def _unknown_agent(agent_id: str, known: Sequence[str]) -> AgentNotFound:
    near = nearest(agent_id, known)
    hint = f" Did you mean {near!r}?" if near else ""
    return AgentNotFound(f"Agent {agent_id[:100]!r} is not in this registry.{hint}")


# Cards and agents


def to_agent(card: AgentCard) -> Agent:
    """The agent of a card, as the directory knows it."""
    address = card.url or (card.interfaces[0].url if card.interfaces else None)
    return Agent(
        id=card.agent_id,
        name=card.name,
        description=card.description,
        version=card.version,
        provider=card.provider.organization if card.provider is not None else None,
        tags=tuple(card.tags),
        capabilities=tuple(
            Capability(
                name=skill.name,
                description=skill.description,
                version=skill.version,
                input_schema=skill.to_schema(),
                output_schema=skill.output_schema,
                examples=tuple(skill.examples),
                tags=tuple(skill.tags),
                input_modes=tuple(skill.input_modes or card.default_input_modes),
                output_modes=tuple(skill.output_modes or card.default_output_modes),
                price=Price(call=skill.cost),
                hints=Hints(skill.read_only, skill.idempotent, skill.consequential),
                routes=(Route("a2a", address, skill.id or skill.name),) if address else (),
            )
            for skill in card.capabilities
        ),
        status=card.status,
        source=card.url,
        card=card.model_dump(mode="json", exclude_defaults=True),
        meta={"registry": True},
    )


def to_card(agent: Agent) -> AgentCard:
    """The card of an agent in the directory: the registered one, else one made from what is known."""
    if agent.meta.get("registry"):
        try:
            return AgentCard.model_validate({**agent.card, "status": agent.status})
        except PydanticError:  # stored by a version with other fields
            pass
    return AgentCard(
        agent_id=agent.id,
        name=agent.name,
        description=agent.description,
        version=agent.version,
        tags=list(agent.tags),
        status=agent.status,
        capabilities=[
            AgentCapability.model_validate(
                {
                    "name": capability.name,
                    "description": capability.description,
                    "version": capability.version,
                    "tags": list(capability.tags),
                    "examples": list(capability.examples),
                    "input_schema": capability.input_schema,
                    "output_schema": capability.output_schema,
                    "input_modes": list(capability.input_modes),
                    "output_modes": list(capability.output_modes),
                    "cost": capability.price.call,
                    "read_only": capability.hints.read_only,
                    "idempotent": capability.hints.idempotent,
                    "consequential": capability.hints.consequential,
                }
            )
            for capability in agent.capabilities
        ],
    )


# Where they are kept


class _Store(Protocol):
    async def put(self, agent: Agent) -> None: ...
    async def get(self, agent_id: str) -> Agent | None: ...
    async def all(self) -> list[Agent]: ...
    async def remove(self, agent_id: str) -> None: ...
    async def beat(self, agent_id: str, seconds: float) -> None: ...
    async def leases(self) -> dict[str, float]: ...


class _MemoryStore:
    """In this process."""

    def __init__(self, env: Env) -> None:
        self._agents: dict[str, Agent] = {}
        self._lease_ends: dict[str, float] = {}
        self._lock = threading.Lock()
        self._env = env

    async def put(self, agent: Agent) -> None:
        with self._lock:
            self._agents[agent.id] = agent

    async def get(self, agent_id: str) -> Agent | None:
        return self._agents.get(agent_id)

    async def all(self) -> list[Agent]:
        with self._lock:
            return list(self._agents.values())

    async def remove(self, agent_id: str) -> None:
        with self._lock:
            self._lease_ends.pop(agent_id, None)
            if self._agents.pop(agent_id, None) is None:
                raise _unknown_agent(agent_id, list(self._agents))

    async def beat(self, agent_id: str, seconds: float) -> None:
        self._lease_ends[agent_id] = self._env.monotonic() + seconds

    async def leases(self) -> dict[str, float]:
        now = self._env.monotonic()
        return {agent_id: end - now for agent_id, end in list(self._lease_ends.items())}


class _DatabaseStore:
    """In a core's database."""

    def __init__(self, core: Standalone, env: Env):
        self._core = core
        self._env = env
        self._holder = f"registry {env.id()}"
        self._known: tuple[Database, Directory] | None = None

    async def put(self, agent: Agent) -> None:
        await (await self._directory()).add(agent)

    async def get(self, agent_id: str) -> Agent | None:
        try:
            return await (await self._directory()).get(agent_id)
        except AgentNotFound:
            return None

    async def all(self) -> list[Agent]:
        return await (await self._directory()).everything()

    async def remove(self, agent_id: str) -> None:
        await (await self._directory()).remove(agent_id)

    async def beat(self, agent_id: str, seconds: float) -> None:
        """Of several processes that serve an agent one holds its lease; when it dies, another's beat takes it over."""
        await Leases((await self._core.call_core()).database, self._holder).take(f"agent {agent_id}", seconds)

    async def leases(self) -> dict[str, float]:
        database = (await self._core.call_core()).database
        now = NOW[database.dialect]
        rows = await database.all(f"SELECT name, until - {now} AS seconds FROM leases WHERE name LIKE 'agent %'")
        return {row["name"].removeprefix("agent "): row["seconds"] for row in rows}

    async def _directory(self) -> Directory:
        """The directory in the core's present database: a core that was closed and used again has another one."""
        database = (await self._core.call_core()).database
        if self._known is None or self._known[0] is not database:
            self._known = (database, Directory(database, self._env))
        return self._known[1]
