"""One registered agent as a set of MCP tools, unprefixed: what ``/agents/{id}/mcp`` opens to.

Every call goes through all steps of the call core, whatever the agent speaks. An MCP server is shown as itself: its
resources, prompts and completions beside its tools, and its answers passed on unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.policy import unknown
from agent3.calls.prepared import Prepared, prepare
from agent3.errors import Agent3Error, JobNotFound, NotFound, RateLimited
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Done,
    Failed,
    Live,
    Needs,
    Outcome,
    Part,
    Principal,
    Working,
    encode,
)
from agent3.protocols.mcp.door.job_tasks import JobTasks
from agent3.protocols.mcp.door.passthrough import Passthrough as Mirror
from agent3.protocols.mcp.door.passthrough import passthrough_meta as passing
from agent3.protocols.mcp.door.toolset import (
    BLOCK,
    STRUCTURED,
    Caller,
    Completed,
    Completion,
    Prompt,
    Prompted,
    Resource,
    Task,
    Template,
    Tool,
)
from agent3.security.limits import RateLimiter
from agent3.server.build import Server

__all__ = ["DOOR", "AgentTools", "callable_by", "how_to_answer", "offers"]

DOOR = "mcp"
"""The door by which the ledger knows these calls."""
PATIENCE = 300.0
"""Seconds for which a client that cannot follow tasks waits for work that goes on elsewhere."""
_DAY = 86_400.0
_MOST_PREPARED = 1_000
READ, PROMPT = "resources/read", "prompts/get"
"""What the rules and the ledger call a look at resources and at prompts; lists, news and completions go with it."""
_RULED = {"resources": READ, "prompts": PROMPT}

T = TypeVar("T")


def callable_by(server: Server, agent: Agent, principal: Principal) -> bool:
    """Whether the rules let a caller have anything of an agent; what it may not call it does not see either."""
    access = server.house.access
    besides = [_RULED[one] for one in offers(agent) & _RULED.keys()]
    if not agent.capabilities and not besides:
        return access.allows(principal, agent.id, "", "mcp")
    if any(access.narrow(principal, agent.id, one.name, one.routes) for one in agent.capabilities):
        return True
    return any(access.allows(principal, agent.id, one, "mcp") for one in besides)


def offers(agent: Agent) -> frozenset[str]:
    """What an MCP server has besides tools: resources, prompts, completions. Nothing for any other agent."""
    capabilities = agent.card.get("capabilities") if agent.card.get("protocol") == "mcp" else None
    known = capabilities if isinstance(capabilities, dict) else {}
    return frozenset(known) & {"resources", "prompts", "completions"}


def how_to_answer(agent: str) -> Callable[[str, Needs], str]:
    """What a client that cannot ask its person is told; the agent's own tools have no room for answers."""

    def hint(tool: str, needs: Needs) -> str:
        answers = {question.id: "<your answer>" for question in needs.questions}
        arguments = encode({"agentId": agent, "metadata": {"job": needs.job, "answers": answers}}).decode()
        return f"Ask the person, then answer at the gateway's own door, /mcp, by calling agent3_call with {arguments}"

    return hint


class AgentTools:
    """The tools of ``agent``, as the directory has it now. ``mirror`` shows the rest of an MCP server.

    Resources, prompts and completions are there only where the server has them, for the door announces what is there.
    """

    def __init__(self, server: Server, agent: Agent, meter: RateLimiter, mirror: Mirror | None = None):
        self._house = server.house
        self._env = server.env
        self._metrics = server.metrics
        self._meter = meter
        self._tasks = JobTasks(self._house.runner, self._house.settings.calls.job_days * _DAY, DOOR)
        self._generation = 0
        self._all: dict[str, Tool] = {}
        self._prepared: dict[tuple[str, str, frozenset[str]], Prepared | None] = {}
        self.renew(agent)
        if mirror is not None:
            self._show(mirror, offers(agent))

    def renew(self, agent: Agent) -> bool:
        """The agent as it is from now on; whether that is another list of tools."""
        before = self._all
        self.agent = agent
        self._capabilities = {one.name: one for one in agent.capabilities}
        made = {one.name: _tool(one) for one in agent.capabilities}
        # Those that stayed as they were stay the same object, which the door has looked at already.
        self._all = {name: before[name] if before.get(name) == tool else tool for name, tool in made.items()}
        self._passes = agent.card.get("protocol") == "mcp"
        self._generation += 1
        self._prepared.clear()
        return before != self._all

    # Tools

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """Those that the caller may call."""
        return [tool for name, tool in self._all.items() if self._may(principal, self._capabilities[name])]

    def fingerprint(self, principal: Principal) -> Hashable:
        """Changes with the agent, and with all of a caller that rules can ask for."""
        return self._generation, principal.id, principal.scopes

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """One turn of a capability, through all steps."""
        started = self._env.monotonic()
        status = "error"
        try:
            prepared = self._prepared_for(name, caller.principal) if caller.traceparent is None else None
            outcome = await prepared(arguments) if prepared is not None else None
            if type(outcome) is not Done:
                outcome = await self._start(name, arguments, caller, outcome)
            status = "error" if isinstance(outcome, Failed) else "success"
            return outcome
        finally:
            known = name if name in self._capabilities else "unknown"
            self._metrics.mcp_tool_invocations.inc((known, status))
            self._metrics.mcp_latency.observe(("invoke_tool",), self._env.monotonic() - started)

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        """The next turn of a job that asked."""
        self._metered(caller.principal)
        await self._own(state, caller)
        outcome = await self._house.runner.answer(caller.principal, state, answers, listener=caller.listener, door=DOOR)
        return await self._to_its_end(outcome, caller)

    def _prepared_for(self, name: str, principal: Principal) -> Prepared | None:
        key = name, principal.id, principal.scopes
        try:
            return self._prepared[key]
        except KeyError:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            capability = self._capabilities.get(name)
            if capability is None:
                return None
            made = self._prepared[key] = prepare(self._house, principal, self.agent, capability, DOOR)
            return made

    async def _start(
        self, name: str, arguments: dict[str, Any], caller: Caller, outcome: Outcome | None = None
    ) -> Outcome:
        """What becomes of a call, and of one that a prepared call has begun but not ended."""
        if outcome is None:
            outcome = await self._by_all_steps(name, arguments, caller)
        return await self._to_its_end(outcome, caller)

    async def _by_all_steps(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        capability = self._capabilities.get(name)
        call = Call(
            id=self._env.id(),
            principal=caller.principal,
            agent=self.agent.id,
            capability=name[:200],
            input=arguments,
            timeout=capability.timeout if capability is not None else None,
            routes=capability.routes if capability is not None else (),
            traceparent=caller.traceparent,
            meta=passing(caller) if self._passes else {},
        )
        if capability is None or not self._may(caller.principal, capability):
            refusal = unknown(self.agent.id, name[:200])
            await self._house.refuse(call, refusal, DOOR)
            raise refusal
        target = self.agent, capability
        return await self._house.runner.start(call, target, listener=caller.listener, door=DOOR)

    async def _to_its_end(self, outcome: Outcome, caller: Caller) -> Outcome:
        """Wait for work that goes on elsewhere, unless the client follows tasks; large parts come back whole."""
        if isinstance(outcome, Working) and outcome.job is not None and "tasks" not in caller.can:
            outcome = await self._followed(outcome.job, caller)
        if isinstance(outcome, (Done, Failed)) and any(part.artifact for part in outcome.parts):
            parts = [await self._whole(part, caller.principal) for part in outcome.parts]
            return replace(outcome, parts=tuple(parts))
        return outcome

    async def _followed(self, job: str, caller: Caller) -> Outcome:
        runner = self._house.runner
        try:
            async with asyncio.timeout(PATIENCE):
                told = (await runner.get(caller.principal, job)).seq
                async for event in runner.follow(caller.principal, job, told):
                    if event.kind not in ("state", "turn"):
                        caller.listener(event)
        except TimeoutError:
            pass
        return await runner.wait(caller.principal, job, 0.0)

    async def _whole(self, part: Part, principal: Principal) -> Part:
        """What an MCP server sent in one piece is not for us to cut in two."""
        if part.artifact is None or not self._passes:
            return part
        kept = await self._house.artifacts.get(principal.id, part.artifact)
        meta = {key: one for key, one in part.meta.items() if key in (BLOCK, STRUCTURED)}
        if STRUCTURED in meta:
            return Part(data=msgspec.json.decode(kept.body), meta=meta)
        if _is_text(part, meta.get(BLOCK)):
            media = part.media_type if BLOCK in meta else None
            return Part(text=kept.body.decode(), media_type=media, name=part.name, meta=meta)
        return Part(raw=kept.body, media_type=part.media_type, name=part.name, meta=meta)

    def _may(self, principal: Principal, capability: Capability) -> bool:
        return bool(self._house.access.narrow(principal, self.agent.id, capability.name, capability.routes))

    # Tasks

    async def task(self, job: str, caller: Caller) -> Task:
        """How a call that goes on stands."""
        await self._own(job, caller)
        task = await self._tasks.task(job, caller)
        return task if isinstance(task.outcome, Working) else replace(task, outcome=await self._ended(task, caller))

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        """Answer it."""
        await self._own(job, caller)
        await self._tasks.update(job, answers, caller)

    async def cancel(self, job: str, caller: Caller) -> None:
        """Cancel it."""
        await self._own(job, caller)
        await self._tasks.cancel(job, caller)

    async def _ended(self, task: Task, caller: Caller) -> Outcome:
        return await self._to_its_end(task.outcome, caller)

    async def _own(self, job: str, caller: Caller) -> None:
        """Refuse jobs of other agents: this door is not theirs."""
        found = await self._house.runner.get(caller.principal, job)
        if found.call.agent != self.agent.id:
            raise JobNotFound(f"Agent {self.agent.id!r} has no job {job[:100]!r} of yours.")

    # What an MCP server has besides

    def _show(self, mirror: Mirror, offered: frozenset[str]) -> None:
        self._mirror = mirror
        if "resources" in offered:
            self.resources, self.templates = self._resources, self._templates
            self.read, self.watch, self.unwatch = self._read, self._watch, self._unwatch
        if "prompts" in offered:
            self.prompts, self.prompt = self._prompts, self._prompt
        if "completions" in offered:
            self.complete = self._complete

    async def _resources(self, principal: Principal) -> Sequence[Resource]:
        if not self._may_see(principal, READ):
            return []
        return await self._timed("resources/list", principal, self._mirror.resources)

    async def _templates(self, principal: Principal) -> Sequence[Template]:
        if not self._may_see(principal, READ):
            return []
        return await self._timed("resources/templates/list", principal, self._mirror.templates)

    async def _prompts(self, principal: Principal) -> Sequence[Prompt]:
        if not self._may_see(principal, PROMPT):
            return []
        return await self._timed("prompts/list", principal, self._mirror.prompts)

    async def _complete(self, completion: Completion, principal: Principal) -> Completed:
        if not self._may_see(principal, READ if completion.kind == "resource" else PROMPT):
            return Completed(())
        return await self._timed("completion/complete", principal, lambda: self._mirror.complete(completion))

    async def _watch(self, uri: str, principal: Principal) -> None:
        self._check(principal, READ, uri)
        await self._timed("resources/subscribe", principal, lambda: self._mirror.watch(uri, principal.id))

    def _unwatch(self, uri: str, principal: Principal) -> None:
        self._mirror.unwatch(uri, principal.id)

    async def _read(self, uri: str, caller: Caller) -> Done | Needs:
        return await self._recorded(READ, uri, caller, lambda: self._mirror.read(uri, caller))

    async def _prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> Prompted | Needs:
        return await self._recorded(PROMPT, name, caller, lambda: self._mirror.prompt(name, arguments, caller))

    def _may_see(self, principal: Principal, method: str) -> bool:
        return self._house.access.allows(principal, self.agent.id, method, "mcp")

    def _check(self, principal: Principal, method: str, name: str) -> None:
        """What is forbidden is told as what is not there."""
        if not self._may_see(principal, method):
            what = "prompt" if method == PROMPT else "resource"
            raise NotFound(f"There is no {what} {name[:200]!r} here. List what is.")

    async def _timed(self, method: str, principal: Principal, work: Callable[[], Awaitable[T]]) -> T:
        started = self._env.monotonic()
        try:
            self._metered(principal)
            return await work()
        finally:
            self._metrics.mcp_latency.observe((method,), self._env.monotonic() - started)

    async def _recorded(self, method: str, name: str, caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
        """Likewise for what gives content away: the ledger has a row of it, under the name of the method."""
        made: list[T] = []
        wrong: list[Agent3Error] = []

        async def permitted() -> T:
            self._check(caller.principal, method, name)
            return await work()

        async def handler(_: Call) -> Outcome:
            try:
                made.append(await self._timed(method, caller.principal, permitted))
            except Agent3Error as error:
                wrong.append(error)
                return failed_by(error)
            return Done()

        call = Call(
            id=self._env.id(),
            principal=caller.principal,
            agent=self.agent.id,
            capability=method,
            input={"name": name[:2_000]},
            traceparent=caller.traceparent,
            live=Live(self.agent, Capability(name=method), door=DOOR),
        )
        outcome = await self._house.steps["ledger"](handler)(call)
        if made:
            return made[0]
        if wrong:
            raise wrong[0]
        # Something that nobody foresaw: the ledger has logged it, and says so in words fit for the caller.
        raise Agent3Error(outcome.message if isinstance(outcome, Failed) else "Internal error.")

    def _metered(self, principal: Principal) -> None:
        """What is no call is free, but not without end."""
        if principal.kind != "local" and (wait := self._meter.take(principal.id)):
            raise RateLimited(
                f"Client {principal.id} lists, reads and answers too often. Come back in {wait:.1f} s.",
                retry_after=wait,
            )


def _is_text(part: Part, husk: Mapping[str, Any] | None) -> bool:
    if husk is None:
        return part.media_type == "text/plain"
    return husk["type"] == "text" or (husk["type"] == "resource" and "text" in husk["resource"])


def _tool(one: Capability) -> Tool:
    kept = one.meta
    hints = {"readOnlyHint": one.hints.read_only, "idempotentHint": one.hints.idempotent}
    own = any(route.protocol == "mcp" for route in one.routes)
    return Tool(
        name=one.name,
        title=one.title,
        description=one.description,
        input_schema=one.input_schema,
        output_schema=one.output_schema,
        annotations=kept.get("annotations") or {} if own else {**hints, "destructiveHint": one.hints.consequential},
        icons=tuple(kept.get("icons") or ()),
        meta=kept.get("_meta") or {},
    )
