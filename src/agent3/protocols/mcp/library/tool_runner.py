"""Runs the tools of one server: who has which, how many at once, under the steps of a call core.

Finding and listing is safe from any thread. Calls may come from any event loop and run in that of the core. It knows
no wire protocol: ``serving`` offers it to MCP clients, ``server`` to Python programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from agent3 import bridge
from agent3.calls.outcomes import failed_by
from agent3.calls.steps.cache import EPOCH
from agent3.env import Env
from agent3.errors import AccessError, Agent3Error, Canceled, CapabilityNotFound, RequestError
from agent3.gateway import Caller as GatewayCaller
from agent3.gateway import Gateway
from agent3.model import (
    LOCAL,
    Answer,
    Capability,
    Deprecation,
    Done,
    Event,
    Failed,
    Outcome,
    Price,
    Principal,
    Working,
)
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.observe.performance import MCPPerformanceMonitor
from agent3.observe.traces import new, parse
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone
from agent3.protocols.mcp.library.catalogue import Catalogue, Version
from agent3.protocols.mcp.library.fair_queue import FairQueue
from agent3.protocols.mcp.library.offers import Offers
from agent3.protocols.mcp.library.returns import adapt, convert_result
from agent3.protocols.mcp.library.security import (
    MCPInputValidator,
    MCPRateLimiter,
    MCPSecurityManager,
    rate_limit_error,
)
from agent3.schema import nearest

__all__ = ["DEPRECATED", "TRACE", "CallOptions", "Listener", "Rules", "ToolRunner"]

log = logger("mcp")

T = TypeVar("T")
Listener = Callable[[Event], None]
Kind: TypeAlias = Literal["tools", "resources", "prompts"]
OnChange: TypeAlias = Callable[[Kind, str | None], None]
"""Hears that a list changed, or with an address that one resource did."""

TRACE = "io.agent3/trace"
"""The key of the trace id in the ``meta`` of a result; a failure has it in its data, as ``trace``."""
DEPRECATED = "io.agent3/deprecated"
"""The key in the ``meta`` of a tool and of each of its results: since, sunset, replacement."""

_USUAL_TIMEOUT = 30.0
"""Seconds that the core gives a call as a whole by default."""
_LONGEST_TASK = 30 * 86_400.0
"""Seconds for which a task holds its place."""
_LONGEST_NAME = 200
"""Characters that the ledger keeps of an unknown name."""


class CallOptions(TypedDict, total=False):
    """What a call may bring besides its input."""

    timeout: float | None
    key: str | None
    traceparent: str | None
    listener: Listener | None
    door: str
    meta: Mapping[str, Any] | None
    detach: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """What is checked before a call runs. ``spares_local``: the rate limit does not count the local person."""

    security: MCPSecurityManager | None = None
    limiter: MCPRateLimiter | None = None
    validator: MCPInputValidator | None = None
    queue: FairQueue | None = None
    timeout: float | None = None
    spares_local: bool = False


class ToolRunner:
    """Runs the tools in a catalogue, as the capabilities of one local agent."""

    def __init__(self, agent: LocalAgent, core: Standalone, rules: Rules, env: Env):
        self.name = agent.name
        self.description = agent.description
        self.version = agent.version
        self.security = rules.security
        self.catalogue = Catalogue(agent.name)
        self.offers = Offers(agent.name)
        self._agent = agent
        self._core = core
        self._rules = rules
        self._env = env
        self._functions: dict[Version, Any] = {}
        self._capabilities: dict[Version, Capability] = {}
        self._watchers: list[OnChange] = []
        self._apart: set[asyncio.Task[None]] = set()
        self._core_loop: asyncio.AbstractEventLoop | None = None
        core.host(agent)
        agent.functions = _LazyFunctions(self._find_function)

    # Listing

    def list_versions(self, principal: Principal, *, all_versions: bool = False) -> Sequence[Version]:
        """The tools that a caller has and that are not retired: of each the newest version, or all.

        The same sequence as long as nothing changes.
        """
        found = self.catalogue.all() if all_versions else self.catalogue.newest()
        now = self._env.now()
        if self.catalogue.count_retired(now):
            found = [version for version in found if not version.is_retired(now)]
        return found if self.security is None else self.security.visible(principal.id, found)

    def fingerprint(self, principal: Principal) -> tuple[Any, ...]:
        """A value that stays the same as long as ``list_versions`` does."""
        client = principal.id if self.security is not None else None
        return (self.catalogue.revision, self.catalogue.count_retired(self._env.now()), client)

    def find(self, wanted: str, principal: Principal) -> Version:
        """What a caller means by a name. It cannot tell a tool that it may not call from one that does not exist."""
        if self.security is None or self.security.authorize_tool_access(principal.id, wanted.partition("@")[0]):
            version = self.catalogue.find(wanted)
            if version is not None:
                return version
        raise self.unknown_tool_error(wanted, principal)

    def unknown_tool_error(self, wanted: str, principal: Principal) -> CapabilityNotFound:
        """The error for a tool that a caller does not have, with the nearest that it has."""
        names = (version.name for version in self.list_versions(principal))
        near = nearest(wanted.partition("@")[0], names)
        hint = f" Did you mean {near!r}?" if near else ""
        data = {"nearest": [near]} if near else None
        return CapabilityNotFound(f"Server {self.name!r} has no tool {wanted[:100]!r}.{hint}", data=data)

    def visible(self, principal: Principal, version: Version) -> bool:
        """Whether a caller has something that is offered beside tools, by a name such as ``resource/weather``."""
        return self.security is None or self.security.authorize_tool_access(principal.id, version.name)

    def watch(self, on_change: OnChange) -> Callable[[], None]:
        """Call a function, on any thread, whenever a list or a resource changes; call the result to stop."""
        self._watchers.append(on_change)

        def stop() -> None:
            with suppress(ValueError):
                self._watchers.remove(on_change)

        return stop

    def notify_change(self, kind: Kind = "tools", uri: str | None = None) -> None:
        """Tell the watchers that a list changed, or with an address that one resource did."""
        for on_change in list(self._watchers):
            on_change(kind, uri)

    def forget(self, versions: Iterable[Version]) -> None:
        """Drop what was made for versions that are gone."""
        for version in versions:
            self._functions.pop(version, None)
            self._capabilities.pop(version, None)

    # Calling, from any loop

    async def call(
        self,
        wanted: str,
        arguments: Mapping[str, Any],
        principal: Principal = LOCAL,
        **options: Unpack[CallOptions],
    ) -> Outcome:
        """One call through all steps. CapabilityNotFound is raised; other refusals are outcomes."""
        options["listener"] = self._listen_here(options.get("listener"))
        return await self.run_anywhere(self.call_in_core(wanted, arguments, principal, **options))

    async def call_offer(
        self, version: Version, arguments: dict[str, Any], principal: Principal, **options: Unpack[CallOptions]
    ) -> Outcome:
        """One call, through all steps, of what is offered beside tools; refusals are outcomes."""
        options["listener"] = self._listen_here(options.get("listener"))
        return await self.run_anywhere(self._run(version, arguments, principal, **options))

    async def refuse(
        self, name: str, principal: Principal, refusal: Agent3Error, traceparent: str | None, door: str
    ) -> None:
        """Record a request for something that the caller does not have."""
        await self.run_anywhere(self._record_refusal(name[:_LONGEST_NAME], principal, refusal, traceparent, door))

    async def answer(
        self,
        job: str,
        answers: Mapping[str, Answer],
        principal: Principal = LOCAL,
        listener: Listener | None = None,
        *,
        door: str = "library",
        follows: bool = False,
    ) -> Outcome:
        """The next turn of a call that asked. Of a tool that may be a task, it is one for a client that ``follows``."""

        async def answer_in_core(listener: Listener | None) -> Outcome:
            gateway = await self._core.gateway()
            who = GatewayCaller(principal, door, listener)
            if follows and await self._may_be_task(gateway, who, job):
                outcome = await self._begin_apart(who, lambda who: gateway.answer(who, job, answers, detach=True))
            else:
                async with self._place(principal):
                    outcome = await gateway.answer(who, job, answers)
            return self._with_own_name(outcome, self.name)

        return await self.run_anywhere(answer_in_core(self._listen_here(listener)))

    async def use_gateway(self, use: Callable[[Gateway, str], Coroutine[Any, Any, T]]) -> T:
        """Do something with the gateway behind, and the id that this server has there, in its loop."""

        async def use_in_core() -> T:
            return await use(await self._core.gateway(), self._agent.id)

        return await self.run_anywhere(use_in_core())

    async def artifact(self, handle: str, principal: Principal = LOCAL) -> tuple[bytes, str]:
        """The bytes of a large result and their media type; NotFound for what is not this caller's."""
        stored = await self.run_anywhere(self._core.kept(principal, handle))
        return stored.body, stored.media_type

    async def run_here(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in this loop, which is that of the core, and remember it."""
        self._core_loop = asyncio.get_running_loop()
        return await work

    async def run_anywhere(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop of the core: this one, or the bridge's."""
        if asyncio.get_running_loop() is self._core_loop:
            return await work
        return await asyncio.wrap_future(bridge.get_shared().spawn(self.run_here(work)))

    def _listen_here(self, listener: Listener | None) -> Listener | None:
        """A listener that is called in this loop, wherever events arise."""
        here = asyncio.get_running_loop()
        if listener is None or here is self._core_loop:
            return listener

        def listen(event: Event) -> None:
            here.call_soon_threadsafe(listener, event)

        return listen

    # Running, in the loop of the core

    async def call_in_core(
        self,
        wanted: str,
        arguments: Mapping[str, Any],
        principal: Principal = LOCAL,
        **options: Unpack[CallOptions],
    ) -> Outcome:
        """``call`` inside the loop of the core. Whatever comes of it, the ledger has a row and a metric counts it."""
        began = self._env.monotonic()
        try:
            version = self.find(wanted, principal)
        except (RequestError, AccessError) as refusal:
            traceparent, door = options.get("traceparent"), options.get("door", "library")
            await self._record_refusal(wanted[:_LONGEST_NAME], principal, refusal, traceparent, door)
            self._measure("unknown", "error", began)
            raise
        return await self._run(version, dict(arguments), principal, **options)

    async def _run(
        self,
        version: Version,
        given: dict[str, Any],
        principal: Principal,
        *,
        timeout: float | None = None,
        key: str | None = None,
        traceparent: str | None = None,
        listener: Listener | None = None,
        door: str = "library",
        meta: Mapping[str, Any] | None = None,
        detach: bool = False,
    ) -> Outcome:
        """Run one version. Whatever comes of it, the ledger has a row and a metric counts it."""
        began, status = self._env.monotonic(), "error"
        try:
            trace = parse(traceparent)
            if trace is None:
                trace = new(self._env)
                traceparent = trace.header()

            def begin(listener: Listener | None, timeout: float | None) -> Coroutine[Any, Any, Outcome]:
                return self._core.call_async(
                    self._agent,
                    capability,
                    given,
                    principal,
                    traceparent=traceparent,
                    timeout=timeout or None,
                    key=key,
                    listener=listener,
                    door=door,
                    meta=meta,
                    detach=detach,
                )

            try:
                self._check(version, given, principal)
                capability = self._capability(version)
                if not timeout and capability.timeout is not None and capability.timeout >= _USUAL_TIMEOUT:
                    timeout = capability.timeout + 1.0  # the call as a whole must not end before the tool does
                if detach:
                    who = GatewayCaller(principal, door, listener, traceparent)
                    outcome = await self._begin_apart(who, lambda who: begin(who.listener, timeout))
                else:
                    async with self._place(principal):
                        outcome = await begin(listener, timeout)
            except (RequestError, AccessError) as refusal:
                await self._record_refusal(version.name, principal, refusal, traceparent, door)
                outcome = failed_by(refusal)
            outcome = self._with_own_name(outcome, version.name)
            if isinstance(outcome, Failed):
                return replace(outcome, data={**outcome.data, "trace": trace.trace_id})
            if not isinstance(outcome, Done):
                status = "working"
                return outcome
            status = "success"
            told = {**outcome.meta, TRACE: trace.trace_id}
            if version.definition.deprecated is not None:
                told[DEPRECATED] = version.definition.deprecated.model_dump(exclude_none=True)
            return replace(outcome, meta=told)
        finally:
            self._measure(version.name, status, began)

    def _measure(self, label: str, status: str, began: float) -> None:
        METRICS.mcp_tool_invocations.inc((label, status))
        MCPPerformanceMonitor.record("invoke_tool_simple", self._env.monotonic() - began, METRICS, warn_every=60.0)

    # Calls that go on as tasks

    async def _may_be_task(self, gateway: Gateway, who: GatewayCaller, job: str) -> bool:
        """Whether the next turns of a job may be followed as a task. JobNotFound for one of another server."""
        found = await gateway.job(who, job, self._agent.id)
        versions = self.catalogue.versions(found.call.capability)
        return bool(versions) and bool(versions[0].definition.task)

    async def _begin_apart(
        self, who: GatewayCaller, begin: Callable[[GatewayCaller], Coroutine[Any, Any, Outcome]]
    ) -> Outcome:
        """Begin a turn that goes on by itself; it keeps its place until it pauses or ends.

        A caller that gives up while it begins cancels it.
        """
        loop = asyncio.get_running_loop()
        began: asyncio.Future[Outcome] = loop.create_future()
        listener = who.listener

        def hear(event: Event) -> None:
            # A job that goes on must not speak to a caller that has its answer.
            if listener is not None:
                listener(event)

        async def run() -> None:
            try:
                async with self._place(who.principal):
                    outcome = await begin(replace(who, listener=hear))
                    began.set_result(outcome)
                    if self._rules.queue is not None and isinstance(outcome, Working) and outcome.job is not None:
                        with suppress(Agent3Error):
                            gateway = await self._core.gateway()
                            await gateway.wait(who, outcome.job, _LONGEST_TASK)
            except BaseException as error:
                if began.done():
                    raise
                began.set_exception(error if isinstance(error, Exception) else Canceled("The server was stopped."))

        task = loop.create_task(run())
        self._apart.add(task)
        task.add_done_callback(self._apart.discard)
        try:
            return await asyncio.shield(began)
        except asyncio.CancelledError:
            with suppress(Agent3Error):
                begun = await began
                if isinstance(begun, Working) and begun.job is not None:
                    await (await self._core.gateway()).cancel(who, begun.job)
            raise
        finally:
            listener = None

    async def _record_refusal(
        self, tool: str, principal: Principal, refusal: Agent3Error, traceparent: str | None, door: str
    ) -> None:
        """Record a call that was refused before the steps, as those record theirs."""
        log.info("%s may not call %s now: %s", principal.id, tool, refusal.message)
        await self._core.refuse(self._agent, tool, principal, refusal, traceparent=traceparent, door=door)

    def _check(self, version: Version, arguments: dict[str, Any], principal: Principal) -> None:
        """Raise unless the call may run: tool not retired, caller within its rate, input within bounds."""
        deprecated = version.definition.deprecated
        if deprecated is not None and version.is_retired(self._env.now()):
            instead = f" Use {deprecated.replacement!r} instead." if deprecated.replacement else ""
            data = {"sunset": deprecated.sunset, "replacement": deprecated.replacement}
            raise CapabilityNotFound(
                f"Tool {version.name!r} in version {version.version} was retired on {deprecated.sunset}.{instead}",
                data={key: value for key, value in data.items() if value is not None},
            )
        limiter, client = self._rules.limiter, principal.id
        spared = self._rules.spares_local and principal.kind == "local"
        if limiter is not None and not spared and not limiter.allow_request(client):
            raise rate_limit_error(limiter, client)
        if self._rules.validator is not None:
            self._rules.validator.validate_tool_invocation(version.definition, arguments)

    def _place(self, principal: Principal) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._rules.queue is None else self._rules.queue.place(principal.id)

    def _with_own_name(self, outcome: Outcome, tool: str) -> Outcome:
        """A failure under the name that its caller knows: the id that a core gives to a server means nothing to it."""
        agent = self._agent
        if not isinstance(outcome, Failed) or not outcome.message.startswith((f"{agent.id}/", f"{agent.id} ")):
            return outcome
        text = outcome.message.removeprefix(agent.id)
        name = "" if text.startswith("/") else tool if text.startswith(" failed: ") else agent.name
        return replace(outcome, message=name + text.removeprefix("/"))

    # Tools as capabilities

    def _capability(self, version: Version) -> Capability:
        """The capability of a version: under the plain name in rules and ledger, on a route to just this version.

        The same object until its epoch changes, since what the steps compiled is known by it.
        """
        known = self._capabilities.get(version)
        if known is None or known.meta[EPOCH] != version.epoch:
            function = self._function(version)
            known = replace(function.capability, name=version.name, meta={EPOCH: version.epoch})
            self._capabilities[version] = known
        return known

    def _function(self, version: Version) -> Any:
        """The function of a version. Made on first use: reading a signature takes up to a millisecond, and servers
        may have ten thousand tools."""
        function = self._functions.get(version)
        if function is not None:
            return function
        definition, deprecated = version.definition, version.definition.deprecated
        agent = LocalAgent(self._agent.name, agent_id=self._agent.id)
        target = f"{version.name}@{version.version}"
        agent.add(
            adapt(version.function, convert_result),
            name=target,
            description=definition.description,
            title=definition.title,
            input_schema=definition.to_schema(),
            output_schema=definition.returns,
            read_only=definition.read_only,
            idempotent=definition.idempotent,
            consequential=definition.consequential,
            timeout=definition.timeout or self._rules.timeout,
            cache_ttl=definition.cache_ttl,
            price=Price(call=definition.cost),
            tags=tuple(definition.tags),
            examples=tuple(definition.examples),
            version=version.version,
            deprecated=None
            if deprecated is None
            else Deprecation(deprecated.since, deprecated.sunset, deprecated.replacement),
        )
        function = self._functions[version] = agent.functions[target]
        return function

    def _find_function(self, target: str) -> Any:
        """The function of a route, or of a job that an earlier process began."""
        catalogue = self.offers.catalogue if "/" in target.partition("@")[0] else self.catalogue
        try:
            version = catalogue.find(target)
        except Agent3Error:
            return None
        return None if version is None else self._function(version)


class _LazyFunctions(dict[str, Any]):
    """The functions of an agent, each made on first use."""

    def __init__(self, find: Callable[[str], Any]):
        super().__init__()
        self._find = find

    def get(self, key: str, default: Any = None) -> Any:
        found = self._find(key)
        return default if found is None else found
