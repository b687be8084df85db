"""``AgentRegistry``: the documented register of agents, by their cards; a view of the directory.

Without a core it lives in memory. With one it is the directory in the core's database: the same that a gateway on it
searches, seen by every process within half a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError as Malformed

from agent3 import bridge
from agent3.definitions import AgentCapability, AgentCard
from agent3.directory import Directory
from agent3.directory.search import Index
from agent3.env import REAL, Env
from agent3.errors import AgentNotFound
from agent3.model import Agent, Capability, Hints, Price, Route
from agent3.protocols.a2a.agents.lifecycle import IN_SERVICE, Status, step
from agent3.protocols.functions.standalone import Standalone
from agent3.schema import nearest
from agent3.storage import Database
from agent3.storage.leases import NOW, Leases

__all__ = ["AgentRegistry", "agent_of", "card_of"]

T = TypeVar("T")

LEASE = 30.0
"""Seconds that a heartbeat is good for."""


class AgentRegistry:
    """Cards of agents. Safe from any thread; with a core, not from inside the bridge's loop.

        registry = AgentRegistry()
        registry.register_agent(card)
        registry.discover_agents(capability_required="search_flights")

    In memory they come in the order of their registration, from a database by their ids.
    """

    def __init__(self, *, core: Standalone | None = None, env: Env = REAL):
        self._shelf: _Shelf = _Memory(env) if core is None else _Stored(core, env)
        self._run: Callable[[Coroutine[Any, Any, Any]], Any] = bridge.finish if core is None else bridge.run
        self._cards: dict[str, tuple[Agent, AgentCard]] = {}

    def register_agent(self, card: AgentCard, *, lease: float | None = None) -> None:
        """Add a card, or replace the one of the same agent.

        With a ``lease`` the agent is found only while it sends a ``heartbeat`` at least every so many seconds.
        """
        self._run(self._register(card, lease))

    def unregister_agent(self, agent_id: str) -> None:
        """Remove a card; AgentNotFound when there is none."""
        self._run(self._shelf.remove(agent_id))

    def get_agent(self, agent_id: str) -> AgentCard | None:
        """The card of one agent, in whichever state it is, or None."""
        found = self._run(self._shelf.get(agent_id))
        return self._card(found) if found is not None else None

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
        """All cards of agents in service, or those that have a capability of that name or id, and all else asked for.

        With a ``text`` the best come first. An agent whose lease has run out is not in service.
        """
        wanted = (capability_required, tag, provider, input_mode, output_mode, extension)
        cards: list[AgentCard] = self._run(self.cards())
        fitting = [card for card in cards if _fits(card, *wanted)]
        return fitting if text is None else _ranked(fitting, text)

    def set_status(self, agent_id: str, status: Status) -> AgentCard:
        """Lead an agent to its next state; Conflict when that cannot follow, AgentNotFound when there is none."""
        card: AgentCard = self._run(self._step(agent_id, status))
        return card

    def heartbeat(self, agent_id: str, seconds: float = LEASE) -> None:
        """Say that an agent is there, for so many seconds."""
        self._run(self._shelf.beat(agent_id, seconds))

    def lease_left(self, agent_id: str) -> float | None:
        """Seconds for which an agent said that it is there; 0 when that is over, None when it never said so."""
        _, left = self._run(self.known(agent_id))
        return left if left is None else float(left)

    # For async code in the bridge's loop

    async def cards(self) -> list[AgentCard]:
        """The cards of all agents in service."""
        left = await self._shelf.leases()
        return [self._card(one) for one in await self._shelf.all() if one.status in IN_SERVICE and _leased(one, left)]

    async def everybody(self) -> list[AgentCard]:
        """The cards of all agents, in whichever state."""
        return [self._card(one) for one in await self._shelf.all()]

    async def known(self, agent_id: str) -> tuple[AgentCard | None, float | None]:
        """A card, if there is one, and the seconds left of its lease, if it has one."""
        agent = await self._shelf.get(agent_id)
        if agent is None:
            return None, None
        left = (await self._shelf.leases()).get(agent_id)
        leased = left is not None or agent.meta.get("lease")
        return self._card(agent), max(0.0, left or 0.0) if leased else None

    async def beat(self, agent_id: str, seconds: float = LEASE) -> None:
        """``heartbeat``."""
        await self._shelf.beat(agent_id, seconds)

    async def _register(self, card: AgentCard, lease: float | None) -> None:
        agent = agent_of(card)
        if lease is not None:
            agent.meta["lease"] = lease
            await self._shelf.beat(card.agent_id, lease)
        await self._shelf.put(agent)

    def _card(self, agent: Agent) -> AgentCard:
        """The card of an agent, read once for as long as the agent stays as it is."""
        known = self._cards.get(agent.id)
        if known is None or known[0] is not agent:
            known = self._cards[agent.id] = (agent, card_of(agent))
        return known[1]

    async def _step(self, agent_id: str, status: Status) -> AgentCard:
        agent = await self._shelf.get(agent_id)
        if agent is None:
            raise _unknown(agent_id, [one.id for one in await self._shelf.all()])
        card = card_of(agent).model_copy(update={"status": step(agent_id, agent.status, status)})
        changed = agent_of(card)
        changed.meta.update(agent.meta)
        await self._shelf.put(changed)
        return card


def _leased(agent: Agent, left: dict[str, float]) -> bool:
    return not agent.meta.get("lease") or left.get(agent.id, 0.0) > 0


def _fits(
    card: AgentCard,
    capability: str | None,
    tag: str | None,
    provider: str | None,
    input_mode: str | None,
    output_mode: str | None,
    extension: str | None,
) -> bool:
    skills = [one for one in card.capabilities if capability is None or capability in (one.name, one.id)]
    if tag is not None and tag not in card.tags:
        skills = [one for one in skills if tag in one.tags]
        if not skills:
            return False
    if input_mode is not None:
        skills = [one for one in skills if input_mode in (one.input_modes or card.default_input_modes)]
    if output_mode is not None:
        skills = [one for one in skills if output_mode in (one.output_modes or card.default_output_modes)]
    if provider is not None and (card.provider is None or card.provider.organization.lower() != provider.lower()):
        return False
    if extension is not None and all(one.uri != extension for one in card.features.extensions):
        return False
    return bool(skills) or (capability is None and input_mode is None and output_mode is None)


def _ranked(cards: list[AgentCard], text: str) -> list[AgentCard]:
    by_id = {card.agent_id: card for card in cards}
    ranked = Index({name: agent_of(card) for name, card in by_id.items()}).search(text)
    return [by_id[name] for name, _ in ranked]


def _unknown(agent_id: str, known: list[str]) -> AgentNotFound:
    near = nearest(agent_id, known)
    hint = f" Did you mean {near!r}?" if near else ""
    return AgentNotFound(f"There is no agent {agent_id[:100]!r} in this registry.{hint}")


# Cards and agents


def agent_of(card: AgentCard) -> Agent:
    """What the directory knows of an agent by its card."""
    return Agent(
        id=card.agent_id,
        name=card.name,
        description=card.description,
        version=card.version,
        provider=card.provider.organization if card.provider is not None else None,
        tags=tuple(card.tags),
        capabilities=tuple(_capability(card, one) for one in card.capabilities),
        status=card.status,
        source=card.url,
        card=card.model_dump(mode="json", exclude_defaults=True),
        meta={"registry": True},
    )


def _capability(card: AgentCard, one: AgentCapability) -> Capability:
    address = card.url or (card.interfaces[0].url if card.interfaces else None)
    return Capability(
        name=one.name,
        description=one.description,
        version=one.version,
        input_schema=one.to_schema(),
        output_schema=one.output_schema,
        examples=tuple(one.examples),
        tags=tuple(one.tags),
        input_modes=tuple(one.input_modes or card.default_input_modes),
        output_modes=tuple(one.output_modes or card.default_output_modes),
        price=Price(call=one.cost),
        hints=Hints(one.read_only, one.idempotent, one.consequential),
        routes=(Route("a2a", address, one.id or one.name),) if address else (),
    )


def card_of(agent: Agent) -> AgentCard:
    """The card of an agent of the directory: the one that it was registered with, else one made from what is known."""
    if agent.meta.get("registry"):
        try:
            return AgentCard.model_validate({**agent.card, "status": agent.status})
        except Malformed:  # of a version that knew other fields
            pass
    return AgentCard(
        agent_id=agent.id,
        name=agent.name,
        description=agent.description,
        version=agent.version,
        tags=list(agent.tags),
        status=agent.status,
        capabilities=[_skill(one) for one in agent.capabilities],
    )


def _skill(one: Capability) -> AgentCapability:
    return AgentCapability.model_validate(
        {
            "name": one.name,
            "description": one.description,
            "version": one.version,
            "tags": list(one.tags),
            "examples": list(one.examples),
            "input_schema": one.input_schema,
            "output_schema": one.output_schema,
            "input_modes": list(one.input_modes),
            "output_modes": list(one.output_modes),
            "cost": one.price.call,
            "read_only": one.hints.read_only,
            "idempotent": one.hints.idempotent,
            "consequential": one.hints.consequential,
        }
    )


# Where they are kept


class _Shelf(Protocol):
    async def put(self, agent: Agent) -> None: ...
    async def get(self, agent_id: str) -> Agent | None: ...
    async def all(self) -> list[Agent]: ...
    async def remove(self, agent_id: str) -> None: ...
    async def beat(self, agent_id: str, seconds: float) -> None: ...
    async def leases(self) -> dict[str, float]: ...


class _Memory:
    """In this process. Nothing here ever waits, so that it can be finished on the spot."""

    def __init__(self, env: Env) -> None:
        self._agents: dict[str, Agent] = {}
        self._leases: dict[str, float] = {}
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
            self._leases.pop(agent_id, None)
            if self._agents.pop(agent_id, None) is None:
                raise _unknown(agent_id, list(self._agents))

    async def beat(self, agent_id: str, seconds: float) -> None:
        self._leases[agent_id] = self._env.monotonic() + seconds

    async def leases(self) -> dict[str, float]:
        now = self._env.monotonic()
        return {name: until - now for name, until in list(self._leases.items())}


class _Stored:
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
        """One process of several that serve an agent keeps its lease; when it dies, another's beat takes it over."""
        await Leases((await self._core.house()).database, self._holder).take(f"agent {agent_id}", seconds)

    async def leases(self) -> dict[str, float]:
        database = (await self._core.house()).database
        now = NOW[database.dialect]
        rows = await database.all(f"SELECT name, until - {now} AS seconds FROM leases WHERE name LIKE 'agent %'")
        return {row["name"].removeprefix("agent "): row["seconds"] for row in rows}

    async def _directory(self) -> Directory:
        database = (await self._core.house()).database
        if self._known is None or self._known[0] is not database:
            self._known = (database, Directory(database, self._env))
        return self._known[1]
