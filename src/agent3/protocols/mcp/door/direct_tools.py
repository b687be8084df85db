"""The tools at ``/mcp``: the gateway's own and, for a caller that may see only few capabilities, each of these too.

A model that has the tools before it needs no search; with many, their descriptions would fill its context. A tool
of a capability is the one that ``/agents/ID/mcp`` offers, under the name ``AGENT__CAPABILITY``, and is called through
the same ``AgentTools``.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agent3.errors import Agent3Error
from agent3.gateway import Gateway
from agent3.model import Agent, Answer, Needs, Outcome, Principal, Working
from agent3.observe.logs import get as logger
from agent3.protocols.mcp.door import door
from agent3.protocols.mcp.door.agent_tools import AgentTools, arguments_of_answer
from agent3.protocols.mcp.door.gateway_tools import GatewayTools
from agent3.protocols.mcp.door.toolset import Caller, Capabilities, Task, Tool

__all__ = ["DirectTools", "how_to_answer", "tool_name"]

log = logger("mcp")

LONGEST = 64
"""Characters that the APIs of models take for the name of a tool."""
_LONGEST_AGENT = 24
_DIGEST = 8
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_DIGESTED = re.compile(rf"_[0-9a-f]{{{_DIGEST}}}")
_LOOK = 0.25
"""Seconds between two looks at whether a list has changed."""
_KNOWN = 1_000
"""Callers of whom it is remembered what they see, and agents whose tools are kept."""
_AT_ONCE = 200
"""Capabilities that are counted before others may run."""
_OF = "@"
"""Between a job and its agent, in the state of a question and the id of a task: jobs are hexadecimal."""


def tool_name(agent: str, capability: str) -> str:
    """``AGENT__CAPABILITY``, in letters that every client takes, and unlike that of any other capability.

    One that would be too long, have other characters, or could be read as that of another agent ends with a digest.
    """
    name = f"{agent}__{capability}"
    clear = "__" not in agent and not agent.endswith("_") and not _DIGESTED.fullmatch(name[-_DIGEST - 1 :])
    if clear and len(name) <= LONGEST and _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(f"{agent}\0{capability}".encode()).hexdigest()[:_DIGEST]
    agent, capability = (re.sub(r"[^A-Za-z0-9_-]+", "_", text) for text in (agent, capability))
    if len(agent) + len(capability) + _DIGEST + 3 > LONGEST:
        agent = agent[:_LONGEST_AGENT]
    return f"{f'{agent}__{capability}'[: LONGEST - _DIGEST - 1]}_{digest}"


def how_to_answer(tool: str, needs: Needs) -> str:
    """The hint for a client that cannot ask its person: the tools of capabilities have no room for answers."""
    _, _, agent = str(needs.state or "").partition(_OF)
    if not agent:
        return door.how_to_answer(tool, needs)
    return f"Ask the user, then answer by calling agent3_call with {arguments_of_answer(agent, needs)}"


class _View(Struct, frozen=True):
    """What one caller sees, as of a generation of the directory."""

    generation: int
    counts: Mapping[str, int]
    """How many capabilities of an agent it may call: of every agent, or of enough to be too many."""
    is_whole: bool
    edition: int
    """The generation since which the tools are these."""
    tools: tuple[Tool, ...] = ()
    """Those of capabilities; none where there are too many."""
    names: Mapping[str, tuple[str, str]] = {}
    """The agent and capability of every tool that was listed last: a client may hold on to a list that has grown."""


class DirectTools:
    """``five``, and beside them up to ``most`` tools of capabilities; 0 for none.

    A caller that may see more than that has the five alone. What a caller sees is found out once, and then follows the
    changes of the directory one by one: a request costs the same, however many agents there are.
    """

    def __init__(self, five: GatewayTools, gateway: Gateway, most: int, door: str = "mcp"):
        self._five = five
        self._gateway = gateway
        self._directory = gateway.directory
        self._most = most
        self._door = door
        self._views: OrderedDict[tuple[str, frozenset[str], str | None], tuple[Principal, _View]] = OrderedDict()
        self._told: dict[tuple[str, frozenset[str], str | None], int] = {}
        """The edition that each of these callers was last told of."""
        self._agents: OrderedDict[str, AgentTools] = OrderedDict()
        self.capabilities = Capabilities(
            resources=five,
            subscriptions=five,
            tasks=self,
            fingerprint=self.fingerprint,
            streaming=five.streaming,
            on_listed=five.on_listed,
        )

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """The five, and those of capabilities where they are few."""
        five = await self._five.tools(principal)
        if not self._most:
            return five
        return [*five, *(await self._view(principal)).tools]

    def fingerprint(self, principal: Principal) -> Hashable | None:
        """Since when this caller's tools are what they are; None while that would have to be found out."""
        if not self._most:
            return "five"
        known = self._views.get((principal.id, principal.scopes, principal.tenant))
        if known is None or known[1].generation != self._directory.peek_generation():
            return None
        return known[1].edition, principal.id, principal.scopes, principal.tenant

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """One of the five, or one turn of a capability: the same call as at the agent's own door."""
        found = await self._find(name, caller.principal) if self._most and "__" in name else None
        if found is None:
            return await self._five.call(name, arguments, caller)
        tools, capability = found
        return _with_agent(await tools.call(capability, arguments, caller), tools.agent.id, caller)

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        """The next turn, in the form of the tool that asked."""
        job, _, agent = state.partition(_OF)
        if not agent:
            return await self._five.answer(job, answers, caller)
        outcome = await (await self._agent_tools(agent)).answer(job, answers, caller)
        return _with_agent(outcome, agent, caller)

    # Calls that take long, as tasks

    async def task(self, job: str, caller: Caller) -> Task:
        """How a job stands; what it ends with has the form of the tool that began it."""
        bare, _, agent = job.partition(_OF)
        if not agent:
            return await self._five.task(job, caller)
        return replace(await (await self._agent_tools(agent)).task(bare, caller), id=job)

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        await self._five.update(job.partition(_OF)[0], answers, caller)

    async def cancel(self, job: str, caller: Caller) -> None:
        await self._five.cancel(job.partition(_OF)[0], caller)

    # What a caller sees

    @asynccontextmanager
    async def watching(self, changed: Callable[[], None]) -> AsyncIterator[None]:
        """Call ``changed`` meanwhile whenever the list of a caller that has asked for it is another one."""
        watch = asyncio.get_running_loop().create_task(self._watch(changed), name="direct tools")
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    async def _watch(self, changed: Callable[[], None]) -> None:
        failing = False
        while True:
            await asyncio.sleep(_LOOK)
            try:
                for key, (principal, _) in list(self._views.items()):
                    edition = (await self._view(principal)).edition
                    if self._told.get(key, edition) != edition:
                        self._told[key] = edition
                        changed()
                    await asyncio.sleep(0)
                failing = False
            except Exception as error:
                if not failing:  # once, not four times a second while the database is away
                    expected = isinstance(error, Agent3Error)
                    log.warning("clients are not notified of changed tools: %s", error, exc_info=not expected)
                failing = True

    async def _view(self, principal: Principal) -> _View:
        key = (principal.id, principal.scopes, principal.tenant)
        _, view = self._views.get(key, (principal, None))
        if view is not None and view.generation == self._directory.peek_generation():
            return view
        generation = await self._directory.generation()
        if view is not None and view.generation == generation:
            return view
        view = await self._renew_view(view, generation, principal)
        self._views[key] = principal, view
        self._views.move_to_end(key)
        self._told.setdefault(key, view.edition)
        if len(self._views) > _KNOWN:
            gone, _ = self._views.popitem(last=False)
            del self._told[gone]
        return view

    async def _renew_view(self, view: _View | None, generation: int, principal: Principal) -> _View:
        changed = self._directory.changed_since(view.generation) if view is not None else None
        if view is None or changed is None:
            counts, is_whole = await self._look_at_all(principal)
            touched = True
        else:
            counts, is_whole, touched = dict(view.counts), view.is_whole, False
            for number, agent_id in enumerate(changed):
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
                offered = (
                    self._count(self._directory.find(agent_id), principal) if is_whole or agent_id in counts else 0
                )
                touched |= counts.pop(agent_id, 0) > 0 or offered > 0
                if offered:
                    counts[agent_id] = offered
            if not is_whole and sum(counts.values()) <= self._most:
                counts, is_whole = await self._look_at_all(principal)
        if view is not None and not touched:
            return replace(view, generation=generation)
        tools: tuple[Tool, ...] = ()
        names = view.names if view is not None else {}
        if sum(counts.values()) <= self._most:
            tools, names = await self._tools_of(counts, principal)
        edition = view.edition if view is not None and tools == view.tools else generation
        return _View(generation, counts, is_whole, edition, tools, names)

    async def _look_at_all(self, principal: Principal) -> tuple[dict[str, int], bool]:
        """How many capabilities of each agent a caller may call, until they are too many; whether it saw them all."""
        counts: dict[str, int] = {}
        total = 0
        async for agent in self._directory.each():
            if offered := self._count(agent, principal):
                counts[agent.id] = offered
                total += offered
                if total > self._most:
                    return counts, False
        return counts, True

    def _count(self, agent: Agent | None, principal: Principal) -> int:
        if agent is None or agent.status in ("suspended", "retired"):
            return 0
        return len(self._gateway.offered(agent, principal))

    async def _tools_of(
        self, counts: Mapping[str, int], principal: Principal
    ) -> tuple[tuple[Tool, ...], dict[str, tuple[str, str]]]:
        tools: dict[str, Tool] = {}
        names: dict[str, tuple[str, str]] = {}
        for agent_id in sorted(counts):
            if (agent := self._directory.find(agent_id)) is not None:
                for tool in await self._renewed_tools(agent).tools(principal):
                    name = tool_name(agent_id, tool.name)
                    if name in tools:
                        log.warning("%s/%s has no tool of its own at /mcp: %s is taken.", agent_id, tool.name, name)
                        continue
                    tools[name] = replace(tool, name=name)
                    names[name] = agent_id, tool.name
        return tuple(tools.values()), names

    async def _find(self, name: str, principal: Principal) -> tuple[AgentTools, str] | None:
        """The tools of the agent that a tool belongs to, and its name there; None for one that was not listed."""
        agent_id, capability = (await self._view(principal)).names.get(name, ("", ""))
        agent = self._directory.find(agent_id)
        return (self._renewed_tools(agent), capability) if agent is not None and self._count(agent, principal) else None

    async def _agent_tools(self, agent_id: str) -> AgentTools:
        return self._renewed_tools(await self._directory.get(agent_id))

    def _renewed_tools(self, agent: Agent) -> AgentTools:
        """The tools of an agent as it is now."""
        known = self._agents.get(agent.id)
        if known is None:
            known = self._agents[agent.id] = AgentTools(self._gateway, agent, door=self._door)
            if len(self._agents) > _KNOWN:
                self._agents.popitem(last=False)
        elif known.agent is not agent:
            known.renew(agent)
        return known


def _with_agent(outcome: Outcome, agent: str, caller: Caller) -> Outcome:
    """What comes back for a question or a task names the agent, whose tools then give the answer."""
    if isinstance(outcome, Needs) and outcome.job is not None:
        return replace(outcome, state=f"{outcome.job}{_OF}{agent}")
    if isinstance(outcome, Working) and outcome.job is not None and "tasks" in caller.can:
        return replace(outcome, job=f"{outcome.job}{_OF}{agent}")
    return outcome
