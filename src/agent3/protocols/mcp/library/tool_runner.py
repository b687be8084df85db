"""Where the tools of one server are run: who has which, how many at once, under the steps of a call core.

Finding and listing is safe from any thread; what is a coroutine belongs to the loop of the core. It knows no wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.result_cache import EPOCH
from agent3.definitions import ToolDefinition
from agent3.env import Env
from agent3.errors import AccessError, Agent3Error, CapabilityNotFound, RateLimited, RequestError
from agent3.model import Answer, Capability, Deprecation, Done, Event, Failed, Outcome, Price, Principal
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.observe.traces import new, parse
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone
from agent3.protocols.mcp.library.catalogue import Catalogue, Version
from agent3.protocols.mcp.library.fair_queue import Turns
from agent3.protocols.mcp.library.return_values import giving
from agent3.protocols.mcp.library.security import MCPInputValidator, MCPRateLimiter, MCPSecurityManager
from agent3.schema import nearest

__all__ = ["DEPRECATED", "TRACE", "Rules", "Workshop"]

log = logger("mcp")

TRACE = "io.agent3/trace"
"""The key in the ``meta`` of a result under which its trace id stands; a failure has it in its data, as ``trace``."""
DEPRECATED = "io.agent3/deprecated"
"""The key in the ``meta`` of a tool and of each of its results: since, sunset, replacement."""

_USUAL = 30.0
"""Seconds that the core gives a call as a whole, where nobody names another time."""
_LONGEST_NAME = 200
"""Characters that the ledger keeps of a name that a stranger made up."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a server asks of a call before it runs. ``spares_local``: the local person is not counted."""

    security: MCPSecurityManager | None = None
    limiter: MCPRateLimiter | None = None
    validator: MCPInputValidator | None = None
    turns: Turns | None = None
    timeout: float | None = None
    spares_local: bool = False


class Workshop:
    """Runs the tools in a catalogue, as the capabilities of one local agent."""

    def __init__(self, name: str, agent: LocalAgent, core: Standalone, rules: Rules, env: Env):
        self.catalogue = Catalogue(name)
        self._name = name
        self._agent = agent
        self._core = core
        self._rules = rules
        self._env = env
        self._made: dict[Version, Any] = {}
        core.host(agent)
        agent.functions = _Functions(self._lookup)

    # Who has what

    def offered(self, principal: Principal, *, all_versions: bool = False) -> Sequence[Version]:
        """The tools that a caller has, without those whose time is over: of each the newest version, or all."""
        found = self.catalogue.all() if all_versions else self.catalogue.newest()
        now = self._env.now()
        if self.catalogue.ended(now):
            found = [one for one in found if not one.retired(now)]
        security = self._rules.security
        return found if security is None else security.visible(principal.id, found)

    def fingerprint(self, principal: Principal) -> tuple[Any, ...]:
        """Something that stays the same as long as ``offered`` does."""
        who = principal.id if self._rules.security is not None else None
        return (self.catalogue.revision, self.catalogue.ended(self._env.now()), who)

    def found(self, asked: str, principal: Principal) -> Version:
        """What a caller means by a name. What it may not call, it cannot tell from what is not there."""
        security = self._rules.security
        if security is None or security.authorize_tool_access(principal.id, asked.partition("@")[0]):
            version = self.catalogue.find(asked)
            if version is not None:
                return version
        raise self.unknown(asked, principal)

    def unknown(self, asked: str, principal: Principal) -> CapabilityNotFound:
        """What a caller hears of a tool that it does not have, with the nearest that it has."""
        near = nearest(asked.partition("@")[0], (one.name for one in self.offered(principal)))
        hint = f" Did you mean {near!r}?" if near else ""
        data = {"nearest": [near]} if near else None
        return CapabilityNotFound(f"Server {self._name!r} has no tool {asked[:100]!r}.{hint}", data=data)

    # Running

    async def call(self, asked: str, arguments: Mapping[str, Any], principal: Principal, **options: Any) -> Outcome:
        """One call through all steps, counted. CapabilityNotFound is raised; other refusals are outcomes.

        Whatever came of it, the ledger has a row of it.
        """
        began = self._env.monotonic()
        label, word = "unknown", "error"
        try:
            version = await self._sought(asked, principal, options)
            label = version.name
            outcome = await self._turn(version, dict(arguments), principal, **options)
            word = _word(outcome)
            return outcome
        finally:
            METRICS.mcp_tool_invocations.inc((label, word))
            METRICS.mcp_latency.observe(("invoke_tool",), self._env.monotonic() - began)

    async def answer(
        self,
        job: str,
        answers: Mapping[str, Answer],
        principal: Principal,
        listener: Callable[[Event], None] | None = None,
        door: str = "library",
    ) -> Outcome:
        """The next turn of a call that asked something."""
        runner = (await self._core.house()).runner
        async with self._place(principal):
            outcome = await runner.answer(principal, job, answers, listener=listener, door=door)
        return _named(outcome, self._agent, self._name)

    def forget(self, versions: Iterable[Version]) -> None:
        """Let go of what was made for versions that are gone."""
        for one in versions:
            self._made.pop(one, None)

    async def _sought(self, asked: str, principal: Principal, options: Mapping[str, Any]) -> Version:
        """``found``, with a row in the ledger for whoever asks for what it does not have."""
        try:
            return self.found(asked, principal)
        except (RequestError, AccessError) as refusal:
            door = options.get("door", "library")
            await self._refused(asked[:_LONGEST_NAME], principal, refusal, options.get("traceparent"), door)
            raise

    async def _turn(
        self,
        version: Version,
        arguments: dict[str, Any],
        principal: Principal,
        *,
        traceparent: str | None = None,
        timeout: float | None = None,
        door: str = "library",
        **options: Any,
    ) -> Outcome:
        trace = parse(traceparent)
        if trace is None:
            trace = new(self._env)
            traceparent = trace.header()
        try:
            self._admit(version, arguments, principal)
            async with self._place(principal):
                capability = self._capability(version)
                whole = timeout or _whole(capability)
                options |= {"traceparent": traceparent, "timeout": whole, "door": door}
                outcome = await self._core.call_async(self._agent, capability, arguments, principal, **options)
        except (RequestError, AccessError) as refusal:
            outcome = await self._refused(version.name, principal, refusal, traceparent, door)
        return _marked(_named(outcome, self._agent, version.name), version, trace.trace_id)

    async def _refused(
        self, tool: str, principal: Principal, refusal: Agent3Error, traceparent: str | None, door: str
    ) -> Failed:
        """The outcome of a call that was refused before the steps, recorded as theirs are."""
        log.info("%s may not call %s now: %s", principal.id, tool, refusal.message)
        await self._core.refuse(self._agent, tool, principal, refusal, traceparent=traceparent, door=door)
        return failed_by(refusal)

    def _admit(self, version: Version, arguments: dict[str, Any], principal: Principal) -> None:
        """Raise unless it may run: the tool is not past its time, the caller not too eager, the input in bounds."""
        if version.retired(self._env.now()):
            raise _past(version)
        rules, client = self._rules, principal.id
        counted = rules.limiter is not None and not (rules.spares_local and principal.kind == "local")
        if counted and rules.limiter is not None and not rules.limiter.allow_request(client):
            wait = rules.limiter.retry_after(client)
            text = f"Rate limit exceeded for client {client}. The next call is taken in {wait:.1f} s."
            raise RateLimited(text, retry_after=wait)
        if rules.validator is not None:
            rules.validator.validate_tool_invocation(version.definition, arguments)

    def _place(self, principal: Principal) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._rules.turns is None else self._rules.turns.turn(principal.id)

    # Tools as capabilities

    def _capability(self, version: Version) -> Capability:
        """The capability of a version: under the plain name in rules and ledger, on a route to just this function."""
        capability: Capability = self._function(version).capability
        return replace(capability, name=version.name, meta={EPOCH: version.epoch})

    def _function(self, version: Version) -> Any:
        made = self._made.get(version)
        if made is None:
            made = self._made[version] = self._make(version)
        return made

    def _make(self, version: Version) -> Any:
        """Read the function, which costs up to a millisecond: ten thousand tools would else take ten seconds."""
        definition = version.definition
        maker = LocalAgent(self._agent.name, agent_id=self._agent.id)
        target = f"{version.name}@{version.version}"
        maker.add(
            giving(version.function),
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
            deprecated=_deprecation(definition),
        )
        return maker.functions[target]

    def _lookup(self, target: str) -> Any:
        """The function of a route, or of a job that an earlier process began."""
        try:
            version = self.catalogue.find(target)
        except Agent3Error:
            return None
        return None if version is None else self._function(version)


class _Functions(dict[str, Any]):
    """The functions of an agent, each made when it is wanted."""

    def __init__(self, lookup: Callable[[str], Any]):
        super().__init__()
        self._lookup = lookup

    def get(self, key: str, default: Any = None) -> Any:
        """The function behind a name."""
        found = self._lookup(key)
        return default if found is None else found


def _deprecation(definition: ToolDefinition) -> Deprecation | None:
    told = definition.deprecated
    return None if told is None else Deprecation(told.since, told.sunset, told.replacement)


def _whole(capability: Capability) -> float | None:
    """Time for the whole call of a tool that may take longer than calls usually may; None for the usual time."""
    one = capability.timeout
    return None if one is None or one < _USUAL else one + 1.0


def _past(version: Version) -> CapabilityNotFound:
    deprecated = version.definition.deprecated
    assert deprecated is not None
    instead = f" Use {deprecated.replacement!r} instead." if deprecated.replacement else ""
    data = {"sunset": deprecated.sunset, "replacement": deprecated.replacement}
    text = f"Tool {version.name!r} in version {version.version} is gone since {deprecated.sunset}.{instead}"
    return CapabilityNotFound(text, data={key: one for key, one in data.items() if one is not None})


def _named(outcome: Outcome, agent: LocalAgent, tool: str) -> Outcome:
    """A failure by the name that its caller knows: the id that a core gives to a server means nothing to anybody."""
    if not isinstance(outcome, Failed) or not outcome.message.startswith((f"{agent.id}/", f"{agent.id} ")):
        return outcome
    said = outcome.message.removeprefix(agent.id)
    name = "" if said.startswith("/") else tool if said.startswith(" failed: ") else agent.name
    return replace(outcome, message=name + said.removeprefix("/"))


def _marked(outcome: Outcome, version: Version, trace: str) -> Outcome:
    """The outcome with its trace, and with the warning of a tool that will go."""
    if isinstance(outcome, Failed):
        return replace(outcome, data={**outcome.data, "trace": trace})
    if not isinstance(outcome, Done):
        return outcome
    meta = {**outcome.meta, TRACE: trace}
    if version.definition.deprecated is not None:
        meta[DEPRECATED] = version.definition.deprecated.model_dump(exclude_none=True)
    return replace(outcome, meta=meta)


def _word(outcome: Outcome) -> str:
    return "success" if isinstance(outcome, Done) else "error" if isinstance(outcome, Failed) else "working"
