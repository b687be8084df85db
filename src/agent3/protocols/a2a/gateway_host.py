"""What the gateway serves over A2A: every agent that the caller may call, by name, by skill, or by the words said."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from agent3._version import __version__
from agent3.definitions import AgentCapability, AgentCard
from agent3.errors import Agent3Error, AgentNotFound, Unauthenticated, ValidationError
from agent3.gateway import Caller, Gateway
from agent3.model import Agent, Capability, Principal
from agent3.protocols.a2a.agents.authoring import build_card, to_skill
from agent3.protocols.a2a.door.targeting import Intent, choose_target, read_intent
from agent3.protocols.a2a.door.tasks import Aim
from agent3.protocols.a2a.wire.types import Message
from agent3.settings import Settings

__all__ = ["DOOR", "GatewayHost"]

DOOR: Final = "a2a"
ASK: Final = "ask"
"""The skill of the gateway itself: whatever fits the words."""
_CLOSED = ("suspended", "retired")
_MOST_NAMED = 1_000
"""Agents with a skill of one name that are looked at."""
_MOST_SKILLS = 250
"""Skills in the card of the gateway. The others are found by searching, and in the pages of the list of agents."""
_MOST_CARDS = 16
"""Callers whose card of the gateway is kept."""
_PATIENCE = 0.5
"""Seconds that a caller waits for a new card, where there is an earlier one."""
_ABOUT = (
    "Any agent, any tool, any website, one call. Name a skill in the metadata of a message as skillId "
    "(agent/skill), or an agent as tenant; otherwise the message goes to the agent that matches its words "
    "best."
)
_MORE = (
    f" The first {_MOST_SKILLS} skills are shown; the others can be found by searching and are called in the same way."
)

_ASK_SKILL = AgentCapability(
    id=ASK,
    name="Ask for anything",
    description="Say what you need in plain words; the best matching agent is found and called.",
    tags=["routing", "search"],
    examples=["I want a pepperoni pizza"],
)


class _Kept(NamedTuple):
    """A card of the gateway, and the generation of the directory that it shows."""

    generation: int
    card: AgentCard


class GatewayHost:
    """Finds the target of a message, and makes the cards of the gateway and of its agents."""

    def __init__(self, gateway: Gateway, settings: Settings):
        self._gateway = gateway
        # How callers show who they are; nothing where everybody is the local person.
        self._schemes: dict[str, Any] = {}
        if settings.clients or settings.oauth.issuers:
            about = "A key of a client, or an access token"
            self._schemes["bearer"] = {"type": "http", "scheme": "bearer", "description": about}
        if settings.clients:
            self._schemes["apiKey"] = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        self._stranger_card = self._build_card([])
        self._kept: OrderedDict[Principal, _Kept] = OrderedDict()
        self._builds: dict[Principal, asyncio.Task[AgentCard]] = {}

    async def aim(self, principal: Principal, message: Message, tenant: str | None) -> Aim:
        """The agent and capability that a message means. Refusals are recorded like any other, then raised."""
        gateway, intent = self._gateway, read_intent(message)
        try:
            known = gateway.directory.peek(tenant) if tenant is not None else None
            if known is not None and gateway.offered(known, principal):
                agent = known
            else:
                gateway.require_rights(principal)
                agent, intent = await self._find_agent(principal, intent, tenant, message.metadata or {})
            if agent.status in _CLOSED:
                raise AgentNotFound(
                    f"Agent {agent.id!r} is {agent.status} and accepts no calls. Search for another one."
                )
            offered = gateway.offered(agent, principal)
            return await choose_target(gateway, agent, offered, intent)
        except Agent3Error as refusal:
            await gateway.refuse(Caller(principal, DOOR), tenant or "", intent.name or "", refusal)
            raise

    async def card(
        self, principal: Principal | None, tenant: str | None = None, extended: bool = False
    ) -> AgentCard | None:
        """The gateway's card with the skills that the caller may call; strangers see what it is, and how to come in.

        The card of an agent is for those who may call it.
        """
        if tenant is None:
            return self._stranger_card if principal is None else await self._own_card(principal)
        if principal is None:
            raise Unauthenticated("The cards of agents are only for clients of this gateway. Send a key.")
        agent = await self._get(tenant, principal)
        return self._secure(build_card(agent, self._gateway.offered(agent, principal)))

    def _secure(self, card: AgentCard) -> AgentCard:
        if not self._schemes:
            return card
        security: list[dict[str, list[str]]] = [{name: []} for name in self._schemes]
        return card.model_copy(update={"security_schemes": self._schemes, "security": security})

    async def _find_agent(
        self, principal: Principal, intent: Intent, tenant: str | None, metadata: dict[str, Any]
    ) -> tuple[Agent, Intent]:
        """The agent that is meant, and what is left of the intent."""
        directory, offered = self._gateway.directory, self._gateway.offered
        named = tenant or next(
            (metadata[key] for key in ("agentId", "agent") if isinstance(metadata.get(key), str)), None
        )
        if named is not None:
            return await self._get(named, principal), intent
        if intent.name is None or intent.name == ASK:
            hits = await directory.find_agents(intent.text, 1, self._gateway.accepts(principal))
            agent = hits[0].agent if hits else await self._find_only(principal)
            if agent is None:
                raise AgentNotFound(
                    "No agent matches this message. Name one as tenant, or a skill as skillId: agent/skill."
                )
            return agent, intent._replace(name=None)
        # A skill is named as in the card, or by itself where only one agent has it.
        name, found, skill = intent.name.partition("/")
        if found:
            return await self._get(name, principal), intent._replace(name=skill)
        there = [agent for one in (await directory.having(name))[:_MOST_NAMED] if (agent := directory.find(one))]
        having = [agent for agent in there if any(one.name == name for one in offered(agent, principal))]
        if len(having) == 1:
            return having[0], intent
        if having:
            names = ", ".join(f"{agent.id}/{name}" for agent in having[:20])
            raise ValidationError(f"Several agents have a skill {name[:100]!r}. Name one of them as skillId: {names}")
        return await self._get(name, principal), intent._replace(name=None)

    async def _find_only(self, principal: Principal) -> Agent | None:
        """The agent of a small directory that is the only one which the caller may call."""
        found: list[Agent] = []
        looked_at = 0
        async for agent in self._gateway.directory.each():
            looked_at += 1
            if agent.status not in _CLOSED and self._gateway.offered(agent, principal):
                found.append(agent)
            if len(found) > 1 or looked_at > _MOST_NAMED:
                return None
        return found[0] if found else None

    async def _get(self, agent: str, principal: Principal) -> Agent:
        return await self._gateway.directory.get(agent, lambda found: bool(self._gateway.offered(found, principal)))

    async def _own_card(self, principal: Principal) -> AgentCard:
        """The gateway's card for a caller: built once for each generation of the directory, the same object until then.

        Where building takes long, the earlier one is served meanwhile.
        """
        generation = await self._gateway.directory.generation()
        kept = self._kept.get(principal)
        if kept is not None and kept.generation == generation:
            self._kept.move_to_end(principal)
            return kept.card
        if (build := self._builds.get(principal)) is None:
            build = self._builds[principal] = asyncio.create_task(self._keep_card(principal, generation))
            build.add_done_callback(lambda _: self._builds.pop(principal))
        await asyncio.wait([build], timeout=None if kept is None else _PATIENCE)
        if kept is not None and not build.done():
            return kept.card
        return build.result()

    async def _keep_card(self, principal: Principal, generation: int) -> AgentCard:
        # The first capabilities that a caller may call, each with its agent.
        found: list[tuple[Agent, Capability]] = []
        async for agent in self._gateway.directory.each():
            if agent.status not in _CLOSED:
                found += [(agent, capability) for capability in self._gateway.offered(agent, principal)]
            if len(found) >= _MOST_SKILLS:
                break
        shown = found[:_MOST_SKILLS]
        card = await asyncio.to_thread(self._build_card, shown)
        self._kept[principal] = _Kept(generation, card)
        if len(self._kept) > _MOST_CARDS:
            self._kept.popitem(last=False)
        return card

    def _build_card(self, shown: Sequence[tuple[Agent, Capability]]) -> AgentCard:
        card = AgentCard(
            agent_id="agent3",
            name="agent3 gateway",
            description=_ABOUT + (_MORE if len(shown) == _MOST_SKILLS else ""),
            version=__version__,
            capabilities=[_ASK_SKILL, *(_name_skill(agent, capability) for agent, capability in shown)],
        )
        return self._secure(card)


def _name_skill(agent: Agent, capability: Capability) -> AgentCapability:
    """A capability as a skill of the gateway, named with its agent."""
    skill = to_skill(capability)
    tags = skill.tags if agent.id in skill.tags else [*skill.tags, agent.id]
    name = {"id": f"{agent.id}/{capability.name}", "name": f"{agent.name}: {skill.name}"}
    return skill.model_copy(update={**name, "tags": tags})
