"""One registered agent as a set of MCP tools, unprefixed: what ``/agents/{id}/mcp`` opens to.

Every call goes through all steps of the call core, whatever the agent speaks. An MCP server is shown as itself: its
resources, prompts and completions beside its tools, and its answers passed on unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from agent3.calls.outcomes import error_of
from agent3.calls.steps.authorize import unknown
from agent3.errors import Agent3Error, NotFound
from agent3.gateway import Caller as GatewayCaller
from agent3.gateway import Gateway
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Done,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Principal,
    Route,
    Working,
    encode,
    own_routes,
)
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Number
from agent3.observe.performance import MCPPerformanceMonitor
from agent3.protocols.mcp.client.connector import is_owned
from agent3.protocols.mcp.door.gateway_tools import WARN_EVERY, JobTasks, StoredResults
from agent3.protocols.mcp.door.passthrough import Passthrough
from agent3.protocols.mcp.door.toolset import (
    BLOCK,
    STRUCTURED,
    Caller,
    Capabilities,
    Completion,
    CompletionResult,
    FilledPrompt,
    Prompt,
    Resource,
    ResourceTemplate,
    Task,
    Tool,
    describe_client,
)

__all__ = ["AgentTools", "arguments_of_answer", "callable_by", "how_to_answer", "offers", "route_of"]

log = logger("mcp")

PATIENCE = 300.0
"""Seconds for which a client that cannot follow tasks waits for work that goes on elsewhere."""
READ, PROMPT = "resources/read", "prompts/get"
"""What the rules and the ledger call a look at resources and at prompts; lists, news and completions go with it."""
_RULED = {"resources": READ, "prompts": PROMPT}

T = TypeVar("T")


def callable_by(gateway: Gateway, agent: Agent, principal: Principal) -> bool:
    """Whether the rules let a caller have anything of an agent; what it may not call it does not see either."""
    access = gateway.core.access
    methods = [_RULED[feature] for feature in offers(agent) & _RULED.keys()]
    if not agent.capabilities and not methods:
        return access.allows(principal, agent.id, "", "mcp")
    if gateway.offered(agent, principal):
        return True
    return any(access.allows(principal, agent.id, method, "mcp") for method in methods)


def offers(agent: Agent) -> frozenset[str]:
    """What an MCP server has besides tools: resources, prompts, completions. Nothing for any other agent."""
    capabilities = agent.card.get("capabilities") if agent.card.get("protocol") == "mcp" else None
    known = capabilities if isinstance(capabilities, dict) else {}
    return frozenset(known) & {"resources", "prompts", "completions"}


def route_of(agent: Agent) -> Route | None:
    """How the MCP server that an agent is can be reached; None for any other agent."""
    if agent.card.get("protocol") != "mcp":
        return None
    for capability in agent.capabilities:
        for route in own_routes(capability):
            if route.protocol == "mcp":
                return replace(route, target=None)
    try:
        return msgspec.convert(agent.meta.get("route"), Route)
    except msgspec.ValidationError:
        return None


def how_to_answer(agent: str) -> Callable[[str, Needs], str]:
    """The hint for a client that cannot ask its person: the agent's own tools have no room for answers."""

    def hint(tool: str, needs: Needs) -> str:
        arguments = arguments_of_answer(agent, needs)
        return f"Ask the user, then answer at the gateway's own endpoint, /mcp, by calling agent3_call with {arguments}"

    return hint


def arguments_of_answer(agent: str, needs: Needs) -> str:
    """What ``agent3_call`` takes to answer the questions of an agent, as JSON to be filled in."""
    answers = {question.id: "<your answer>" for question in needs.questions}
    return encode({"agentId": agent, "metadata": {"job": needs.job, "answers": answers}}).decode()


def _operation(capability: Capability) -> str:
    """As what the performance monitor counts a call."""
    is_simple = all(route.protocol == "local" for route in capability.routes)
    return "invoke_tool_simple" if is_simple else "invoke_tool_complex"


_KNOWN = 10_000
"""Callers and tools of which it is remembered that they may."""
_MOST_DATA = 4 << 20
"""Data of a tool that promises some stands in its result up to this size, as images do."""


class _Offered(NamedTuple):
    """What a name stands for to one caller."""

    capability: Capability | None
    """None where it is no tool, or not one for this caller."""
    operation: str
    """As what it is measured."""
    label: str
    """As what it is counted."""
    tells: bool
    """Whether it is told of the client."""
    finished: bool
    """Whether an outcome of it that is Done is the answer as it stands."""


_UNKNOWN = _Offered(None, "invoke_tool_simple", "unknown", False, False)


class AgentTools:
    """The tools of ``agent``, as the directory has it now. ``passthrough`` shows the rest of an MCP server; the ledger
    knows its calls by ``door``.

    ``capabilities`` names what the door announces: prompts and completions only where the server has them, resources
    where it has them or where results can become links.
    """

    def __init__(self, gateway: Gateway, agent: Agent, passthrough: Passthrough | None = None, door: str = "mcp"):
        self._gateway = gateway
        self._door = door
        self._env = gateway.core.env
        self._metrics = gateway.core.metrics
        self._tasks = JobTasks(gateway, door, agent.id)
        self._generation = 0
        self._all: dict[str, Tool] = {}
        self._offered: dict[tuple[str, Principal], _Offered] = {}
        """The capabilities of the agent, as it is now, that a caller may call."""
        self._answered: dict[str, Number] = {}
        """By tool where a call that was answered is counted."""
        self.renew(agent)
        self._passthrough = passthrough
        offered = offers(agent) if passthrough is not None else frozenset()
        has_resources = "resources" in offered
        # What an MCP server answers comes back whole; the large results of any other agent are links.
        stored = None if self._passes else StoredResults(gateway, door)
        self.capabilities = Capabilities(
            resources=self if has_resources else stored,
            subscriptions=self if has_resources else stored,
            unwatch=self.unwatch if has_resources else None,
            prompts=self if "prompts" in offered else None,
            completions=self if "completions" in offered else None,
            tasks=self,
            fingerprint=self.fingerprint,
            on_listed=self.on_listed,
            logs=self._passes,
        )

    def renew(self, agent: Agent) -> bool:
        """The agent as it is from now on; whether that is another list of tools."""
        before = self._all
        self.agent = agent
        passes = agent.card.get("protocol") == "mcp"
        self._capabilities = {
            capability.name: _Offered(
                capability,
                _operation(capability),
                capability.name,
                passes or capability.meta.get("reads") == "context",
                not passes and capability.output_schema is None,
            )
            for capability in agent.capabilities
        }
        current = {capability.name: _tool(capability) for capability in agent.capabilities}
        # Those that stayed as they were stay the same object, which the door has looked at already.
        self._all = {name: before[name] if before.get(name) == tool else tool for name, tool in current.items()}
        self._passes = passes
        self._offered.clear()
        self._answered.clear()
        self._generation += 1
        return before != self._all

    # Tools

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        """Those that the caller may call or see."""
        return [self._all[capability.name] for capability in self._gateway.offered(self.agent, principal)]

    def on_listed(self, seconds: float) -> None:
        """Measure it."""
        MCPPerformanceMonitor.record("list_tools", seconds, self._metrics, warn_every=WARN_EVERY)

    def fingerprint(self, principal: Principal) -> Hashable:
        """Changes with the agent, and with all of a caller that rules can ask for."""
        return self._generation, principal.id, principal.scopes, principal.tenant

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        """One turn of a capability, through all steps."""
        clock = self._env.monotonic
        started = clock()
        principal, agent = caller.principal, self.agent
        who = GatewayCaller(principal, self._door, caller.listener, caller.traceparent)
        capability, operation, label, tells, finished = self._offered.get((name, principal)) or self._offer(
            name, principal
        )
        counted: Number | None = None
        try:
            if capability is None:
                refusal = unknown(agent.id, name[:200])
                await self._gateway.refuse(who, agent.id, name, refusal)
                raise refusal
            call = Call(
                id=self._env.id(),
                principal=principal,
                agent=agent.id,
                capability=name,
                input=arguments,
                timeout=capability.timeout,
                routes=capability.routes,
                traceparent=caller.traceparent,
                meta=describe_client(caller) if tells else {},
            )
            outcome = await self._gateway.start(who, call, (agent, capability))
            if not finished or type(outcome) is not Done:
                outcome = await self._finish(outcome, who, caller, name)
            if type(outcome) is not Failed:
                counted = self._answered.get(name) or self._count_answers(name)
            return outcome
        finally:
            if counted is None:
                counted = self._metrics.mcp_tool_invocations.series((label, "error"))
            counted.inc()
            MCPPerformanceMonitor.record(operation, clock() - started, self._metrics, warn_every=WARN_EVERY)

    def _offer(self, name: str, principal: Principal) -> _Offered:
        """Ask the rules, which do not change while a gateway runs, and remember what they allow."""
        known = self._capabilities.get(name, _UNKNOWN)
        if known.capability is None:
            return known
        if not self._gateway.may_see(principal, self.agent, known.capability):
            return known._replace(capability=None)
        if len(self._offered) >= _KNOWN:
            self._offered.clear()
        self._offered[name, principal] = known
        return known

    def _count_answers(self, name: str) -> Number:
        counted = self._answered[name] = self._metrics.mcp_tool_invocations.series((name, "success"))
        return counted

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        who = GatewayCaller(caller.principal, self._door, caller.listener, caller.traceparent)
        name = (await self._gateway.job(who, state, self.agent.id)).call.capability
        return await self._finish(await self._gateway.answer(who, state, answers), who, caller, name)

    async def _finish(self, outcome: Outcome, who: GatewayCaller, caller: Caller, name: str) -> Outcome:
        """Wait for work that goes on elsewhere, unless the client follows tasks; large parts come back whole."""
        if isinstance(outcome, Working) and outcome.job is not None and "tasks" not in caller.can:
            outcome = await self._wait_for_job(outcome.job, who, caller)
        if self._passes and isinstance(outcome, (Done, Failed)) and any(part.artifact for part in outcome.parts):
            # What an MCP server sent in one piece is not for us to cut in two.
            parts = []
            for part in outcome.parts:
                if part.artifact is not None:
                    stored = await self._gateway.core.artifacts.get(caller.principal.id, part.artifact)
                    part = _restore_part(part, stored.body)
                parts.append(part)
            return replace(outcome, parts=tuple(parts))
        capability = self._capabilities.get(name, _UNKNOWN).capability
        if isinstance(outcome, Done) and capability is not None and capability.output_schema is not None:
            return await self._with_data(outcome, caller.principal)
        return outcome

    async def _with_data(self, outcome: Done, principal: Principal) -> Outcome:
        """The result with its data in place, as far as it is not too large: clients hold a tool to its output schema,
        and take what has no structured content for a failure."""
        if not any(part.artifact for part in outcome.parts):
            return outcome
        parts = []
        for part in outcome.parts:
            size = part.meta.get("size")
            if part.artifact and part.media_type == "application/json" and isinstance(size, int) and size <= _MOST_DATA:
                with suppress(Agent3Error):  # it was removed, or storage is away: what was done stays done, with a link
                    stored = await self._gateway.core.artifacts.get(principal.id, part.artifact)
                    meta = {key: value for key, value in part.meta.items() if key != "size"}
                    data = await asyncio.to_thread(msgspec.json.decode, stored.body)
                    part = Part(data=data, name=part.name, meta=meta)
            parts.append(part)
        return replace(outcome, parts=tuple(parts))

    async def _wait_for_job(self, job: str, who: GatewayCaller, caller: Caller) -> Outcome:
        """How the job stands after a while. A caller that gives up meanwhile cancels it, down to its target.

        It asked for a call and knows of no job, so nobody else would.
        """
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    seen = (await self._gateway.job(who, job)).seq
                    async for event in self._gateway.follow(who, job, seen):
                        if event.kind not in ("state", "turn"):
                            caller.listener(event)
            return await self._gateway.wait(who, job, 0.0)
        except asyncio.CancelledError:
            await self._gateway.give_up(who, job)
            raise

    # Tasks

    async def task(self, job: str, caller: Caller) -> Task:
        """How a call that goes on stands."""
        task = await self._tasks.task(job, caller)
        if isinstance(task.outcome, Working):
            return task
        who = GatewayCaller(caller.principal, self._door, caller.listener, caller.traceparent)
        name = (await self._gateway.job(who, job, self.agent.id)).call.capability
        return replace(task, outcome=await self._finish(task.outcome, who, caller, name))

    async def update(self, job: str, answers: dict[str, Answer], caller: Caller) -> None:
        await self._tasks.update(job, answers, caller)

    async def cancel(self, job: str, caller: Caller) -> None:
        await self._tasks.cancel(job, caller)

    # What an MCP server has besides

    @property
    def _server(self) -> Passthrough:
        assert self._passthrough is not None, "only announced for an MCP server"
        return self._passthrough

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        """The resources of the server; none for a caller that may not read them."""
        if not self._may_see(principal, READ):
            return []
        return await self._measure("resources/list", principal, self._server.resources)

    async def templates(self, principal: Principal) -> Sequence[ResourceTemplate]:
        """The resource templates of the server, likewise."""
        if not self._may_see(principal, READ):
            return []
        return await self._measure("resources/templates/list", principal, self._server.templates)

    async def prompts(self, principal: Principal) -> Sequence[Prompt]:
        """The prompts of the server; none for a caller that may not get them."""
        if not self._may_see(principal, PROMPT):
            return []
        return await self._measure("prompts/list", principal, self._server.prompts)

    async def complete(self, completion: Completion, principal: Principal) -> CompletionResult:
        """What the server proposes for an argument."""
        if not self._may_see(principal, READ if completion.kind == "resource" else PROMPT):
            return CompletionResult(())
        return await self._measure("completion/complete", principal, lambda: self._server.complete(completion))

    async def watch(self, uri: str, principal: Principal) -> None:
        self._check(principal, READ, uri)
        owned = is_owned(principal)
        await self._measure(
            "resources/subscribe", principal, lambda: self._server.watch(uri, principal.id, owned=owned)
        )

    def unwatch(self, uri: str, principal: Principal) -> None:
        self._server.unwatch(uri, principal.id)

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        return await self._run_recorded(READ, uri, caller, lambda: self._server.read(uri, caller))

    async def prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> FilledPrompt | Needs:
        return await self._run_recorded(PROMPT, name, caller, lambda: self._server.prompt(name, arguments, caller))

    def _may_see(self, principal: Principal, method: str) -> bool:
        return self._gateway.core.access.allows(principal, self.agent.id, method, "mcp")

    def _check(self, principal: Principal, method: str, name: str) -> None:
        """NotFound for what is forbidden, as for what does not exist."""
        if not self._may_see(principal, method):
            what = "prompt" if method == PROMPT else "resource"
            raise NotFound(f"Unknown {what} {name[:200]!r}. List what this server has.")

    async def _measure(self, method: str, principal: Principal, work: Callable[[], Awaitable[T]]) -> T:
        started = self._env.monotonic()
        try:
            self._gateway.count_question(principal)
            self._gateway.core.parts.stops.require_started(self.agent.id)
            return await work()
        finally:
            self._metrics.mcp_latency.observe((method,), self._env.monotonic() - started)

    async def _run_recorded(self, method: str, name: str, caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
        """Give content away under every step, as a call of the method: it is recorded, allowed, limited and timed.

        The content itself is handed on as the server sent it: a document is not a result for us to clean or cut.
        """
        results: list[T] = []
        errors: list[Agent3Error] = []

        async def handler(_: Call) -> Outcome:
            started = self._env.monotonic()
            try:
                results.append(await work())
            except Agent3Error as error:
                errors.append(error)
                raise
            except Exception:
                log.exception("%s of %s failed", method, self.agent.id)
                errors.append(Agent3Error("Internal error. See the log of the gateway."))
                raise errors[-1] from None
            finally:
                self._metrics.mcp_latency.observe((method,), self._env.monotonic() - started)
            return Done()

        route = route_of(self.agent)
        routes = () if route is None else (replace(route, credential=None),)  # the passthrough asks the vault itself
        capability = Capability(name=method, hints=Hints(read_only=True), routes=routes)
        call = Call(
            id=self._env.id(),
            principal=caller.principal,
            agent=self.agent.id,
            capability=method,
            input={"name": name[:2_000]},
            traceparent=caller.traceparent,
            routes=routes,
        )
        who = GatewayCaller(caller.principal, self._door, caller.listener, caller.traceparent)
        outcome = await self._gateway.run(who, call, (self.agent, capability), handler)
        if isinstance(outcome, Done) and results:
            return results[-1]
        self._check(caller.principal, method, name)  # what is forbidden looks like what does not exist
        if errors:
            raise errors[-1]
        assert isinstance(outcome, Failed)
        raise error_of(outcome)


def _restore_part(part: Part, body: bytes) -> Part:
    """The part whose content was stored away, as the server sent it."""
    meta = {key: value for key, value in part.meta.items() if key in (BLOCK, STRUCTURED)}
    if STRUCTURED in meta:
        return Part(data=msgspec.json.decode(body), meta=meta)
    block = meta.get(BLOCK)
    if block is None:
        if part.media_type == "text/plain":
            return Part(text=body.decode(), name=part.name, meta=meta)
    elif block["type"] == "text" or (block["type"] == "resource" and "text" in block["resource"]):
        return Part(text=body.decode(), media_type=part.media_type, name=part.name, meta=meta)
    return Part(raw=body, media_type=part.media_type, name=part.name, meta=meta)


def _tool(capability: Capability) -> Tool:
    meta, hints = capability.meta, capability.hints
    annotations = {
        "readOnlyHint": hints.read_only,
        "idempotentHint": hints.idempotent,
        "destructiveHint": hints.consequential,
    }
    if any(route.protocol == "mcp" for route in own_routes(capability)):
        annotations = meta.get("annotations") or {}  # the server's own
    return Tool(
        name=capability.name,
        title=capability.title,
        description=capability.description,
        input_schema=capability.input_schema,
        output_schema=capability.output_schema,
        annotations=annotations,
        icons=tuple(meta.get("icons") or ()),
        meta=meta.get("_meta") or {},
    )
