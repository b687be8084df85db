"""The gateway: search, select, invoke, call, feedback.

It knows the directory and the Runner, and no protocol: every door hands it the caller and gets plain answers. What a
caller may not call it does not see either, here as in every list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from agent3 import schema
from agent3.calls.callbacks import CALLBACK, Callbacks
from agent3.calls.core import House
from agent3.calls.jobs.jobs import Job
from agent3.calls.keeping import StoredArtifact
from agent3.calls.outbox import Receipt
from agent3.calls.policy import unknown
from agent3.calls.responses import response
from agent3.calls.runner import Listener, Target
from agent3.directory import Directory, Hit, Rating, Reputation
from agent3.directory.search import Index
from agent3.errors import (
    Agent3Error,
    AgentNotFound,
    CapabilityNotFound,
    JobNotFound,
    RateLimited,
    SetupError,
    ValidationError,
)
from agent3.gateway.cards import card_of
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Outcome,
    Part,
    Principal,
    Question,
)
from agent3.schema import nearest
from agent3.schema.coercion import from_words
from agent3.security.limits import RateLimiter

__all__ = ["UNREACHABLE", "CallRequest", "Caller", "Gateway", "OnUse", "response", "status_of"]

UNREACHABLE = "unreachable"
"""The key in an agent's ``meta`` under which stands since when and why it could not be reached, while that is so."""

_LONGEST_TIMEOUT = 3_600.0
_MOST_RETRIES = 10
_MOST_NAMED = 20
_QUESTIONS_PER_CALL = 10
"""How much oftener than call a client may search, look, answer and rate."""


OnUse = Callable[[Agent, Outcome | None], None]


class Caller(Struct, frozen=True):
    """Who calls, through which door, and who listens meanwhile."""

    principal: Principal
    door: str = "library"
    listener: Listener | None = None
    traceparent: str | None = None


class CallRequest(Struct, frozen=True, kw_only=True):
    """What ``agent3_call`` takes, in our words. ``timeout`` is in seconds. A call with a ``callback`` is detached."""

    agent: str
    message: str = ""
    capability: str | None = None
    input: Any = None
    input_mode: str = "text/plain"
    timeout: float | None = None
    retries: int | None = None
    key: str | None = None
    context: str | None = None
    detach: bool = False
    user_agent_id: str | None = None
    callback: dict[str, Any] | None = None


class Gateway:
    """The five verbs, for every door."""

    def __init__(self, house: House, directory: Directory, reputation: Reputation):
        self.house = house
        self.directory = directory
        self.reputation = reputation
        limits = house.settings.limits
        self.on_use: OnUse | None = None
        """Hears of every agent that was looked at or called, with how the call ended."""
        self.sign_in: Callable[[Agent], Awaitable[dict[str, Any] | None]] | None = None
        """Tells how somebody is signed in for an agent, where the agent asks for that."""
        self.heals: Callable[[Agent], Awaitable[list[dict[str, Any]]]] | None = None
        """Tells which selectors of a website did not fit any more, and what is taken in their place."""
        more = _QUESTIONS_PER_CALL
        self._meter = RateLimiter(limits.per_minute * more, limits.burst * more, env=house.env)

    async def search(self, caller: Caller, query: str, limit: int = 10) -> dict[str, Any]:
        """The agents that fit a query, the best first, each with what it can do and how it was rated."""
        self._metered(caller)
        hits = await self.directory.search(query, max(1, min(limit, 50)), self._visible(caller.principal))
        ratings = await self.reputation.all([hit.agent.id for hit in hits])
        found = [self._summary(hit, ratings[hit.agent.id], caller.principal) for hit in hits]
        return {"query": query, "agents": found, "count": len(found)}

    async def select(self, caller: Caller, agent_id: str) -> dict[str, Any]:
        """Everything one needs to decide whether and how to call an agent."""
        self._metered(caller)
        agent = await self.directory.get(agent_id, self._visible(caller.principal))
        self._used(agent)
        rating = await self.reputation.of(agent.id)
        signed = None if self.sign_in is None else await self.sign_in(agent)
        healed = [] if self.heals is None else await self.heals(agent)
        signature = agent.meta.get("signature")
        return {
            "id": agent.id,
            "name": agent.name,
            "description": agent.description,
            "version": agent.version,
            "provider": agent.provider,
            "status": status_of(agent),
            "tags": list(agent.tags),
            "rating": msgspec.to_builtins(rating),
            "capabilities": [self._detail(one) for one in self._callable(agent, caller.principal)],
            **({} if signed is None else {"signIn": signed}),
            **({"signature": signature} if isinstance(signature, dict) else {}),
            **({"heals": healed} if healed else {}),
        }

    async def invoke(self, caller: Caller, agent_id: str) -> dict[str, Any]:
        """The agent's raw card. No network is touched and no credential is in it."""
        self._metered(caller)
        agent = await self.directory.get(agent_id, self._visible(caller.principal))
        self._used(agent)
        return card_of(agent, self._callable(agent, caller.principal))

    async def call(self, caller: Caller, request: CallRequest) -> Outcome:
        """Call an agent. Refusals that come before there is a target are recorded like any other, then raised."""
        try:
            agent, capability = await self._target(caller.principal, request)
            meta = await self._meta(caller.principal, request)
        except Agent3Error as refusal:
            await self._record_refusal(caller, request, refusal)
            raise
        call = Call(
            id=self.house.env.id(),
            principal=caller.principal,
            agent=agent.id,
            capability=capability.name,
            input=request.input,
            parts=(Part(text=request.message),) if request.message else (),
            input_mode=request.input_mode,
            context=request.context,
            key=request.key,
            timeout=_bounded("timeout", request.timeout, 0.0, _LONGEST_TIMEOUT),
            retries=_bounded("retries", request.retries, 0, _MOST_RETRIES),
            routes=capability.routes,
            traceparent=caller.traceparent,
            meta=meta,
        )
        detach = request.detach or request.callback is not None
        outcome = await self.house.runner.start(
            call, (agent, capability), listener=caller.listener, door=caller.door, detach=detach
        )
        self._used(agent, outcome)
        return outcome

    async def answer(
        self,
        caller: Caller,
        job: str,
        answers: Mapping[str, Answer],
        turn: int | None = None,
        *,
        detach: bool = False,
    ) -> Outcome:
        """The next turn of a job that asked. With ``detach`` it answers ``Working`` as soon as the answers are kept."""
        self._metered(caller)
        return await self.house.runner.answer(
            caller.principal, job, answers, turn=turn, listener=caller.listener, door=caller.door, detach=detach
        )

    async def reply(self, caller: Caller, job: str, said: str | Mapping[str, Any], agent: str | None = None) -> Outcome:
        """Likewise for a caller that says it in plain words: a text answers the first open question, a mapping by id.

        With ``agent``, only a job of that agent is answered.
        """
        waiting = await self.house.runner.get(caller.principal, job)
        _same_agent(waiting, agent)
        if isinstance(said, str):
            given: Mapping[str, Any] = {waiting.questions[0].id: said} if waiting.questions else {}
        else:
            given = said
        answers = {question.id: _answer(given, question) for question in waiting.questions if question.id in given}
        return await self.answer(caller, job, answers)

    async def wait(self, caller: Caller, job: str, seconds: float, agent: str | None = None) -> Outcome:
        """How a job stands when it pauses or ends, or that it still works when the time is over."""
        _same_agent(await self.house.runner.get(caller.principal, job), agent)
        return await self.house.runner.wait(caller.principal, job, seconds)

    async def callbacks(self, caller: Caller, job: str) -> list[Receipt]:
        """What the caller was told of a job, and what became of each delivery."""
        found = await self.house.runner.get(caller.principal, job)
        return await self._callbacks().of(found)

    async def artifact(self, caller: Caller, artifact: str) -> StoredArtifact:
        """A large result of this caller's; NotFound for anybody else's."""
        self._metered(caller)
        return await self.house.artifacts.get(caller.principal.id, artifact)

    async def feedback(self, caller: Caller, agent_id: str, rating: int, comment: str = "") -> dict[str, Any]:
        """Rate an agent from 1 to 5; the latest word of each caller counts, and is the only one kept."""
        self._metered(caller)
        agent = await self.directory.get(agent_id, self._visible(caller.principal))
        await self.reputation.rate(agent.id, caller.principal.id, rating, comment)
        await self._forget_earlier_ratings(agent.id, caller.principal.id)
        return {
            "agentId": agent.id,
            "recorded": True,
            "rating": msgspec.to_builtins(await self.reputation.of(agent.id)),
        }

    async def lookup(self, agent_id: str, name: str) -> Target:
        """The agent and capability of a job that goes on."""
        agent = await self.directory.get(agent_id)
        capability = agent.capability(name)
        if capability is None:
            raise unknown(agent_id, name)
        return agent, capability

    # Inside

    def _used(self, agent: Agent, outcome: Outcome | None = None) -> None:
        if self.on_use is not None:
            self.on_use(agent, outcome)

    def _metered(self, caller: Caller) -> None:
        """What is no call is free, but not without end: each of these verbs reads or writes the database."""
        principal = caller.principal
        if principal.kind != "local" and (wait := self._meter.take(principal.id)):
            raise RateLimited(
                f"Client {principal.id} searches, looks, answers or rates too often. Come back in {wait:.1f} s.",
                retry_after=wait,
            )

    async def _forget_earlier_ratings(self, agent: str, principal: str) -> None:
        latest = "SELECT id FROM feedback WHERE agent = ? AND principal = ? ORDER BY at DESC, id DESC LIMIT 1"
        await self.house.database.many(
            f"DELETE FROM feedback WHERE agent = ? AND principal = ? AND id <> ({latest})",
            [(agent, principal, agent, principal)],
        )

    def _visible(self, principal: Principal) -> Callable[[Agent], bool]:
        return lambda agent: bool(self._callable(agent, principal)) or not agent.capabilities

    def _callable(self, agent: Agent, principal: Principal) -> list[Capability]:
        narrow = self.house.access.narrow
        return [one for one in agent.capabilities if narrow(principal, agent.id, one.name, one.routes)]

    async def _target(self, principal: Principal, request: CallRequest) -> Target:
        agent = await self.directory.get(request.agent, self._visible(principal))
        if agent.status in ("suspended", "retired"):
            raise AgentNotFound(f"Agent {agent.id!r} is {agent.status} and takes no calls. Use agent3_search.")
        return agent, self._choose(agent, principal, request)

    def _choose(self, agent: Agent, principal: Principal, request: CallRequest) -> Capability:
        """The capability that was named; else the only one, the one that takes commands, or whose words fit best."""
        offered = self._callable(agent, principal)
        names = [one.name for one in offered]
        if request.capability is not None:
            return self._named(agent, request.capability, names)
        if len(offered) == 1:
            return offered[0]
        if not offered:
            raise CapabilityNotFound(f"Agent {agent.id!r} offers nothing that can be called.")
        reader = next((one for one in offered if one.meta.get("reads") == "commands"), None)
        if reader is not None and request.message and request.input is None:
            return reader
        if best := _best(offered, request.message):
            return best
        raise ValidationError(
            f"Agent {agent.id!r} can do several things and the message does not say which. "
            f"Name one as capability: {', '.join(sorted(names)[:_MOST_NAMED])}"
        )

    def _named(self, agent: Agent, name: str, names: list[str]) -> Capability:
        found = agent.capability(name)
        if found is not None and name in names:
            return found
        raise _not_offered(agent.id, name, names) if names else unknown(agent.id, name)

    def _callbacks(self) -> Callbacks:
        if self.house.callbacks is None:
            raise SetupError("This gateway was built without callbacks. Wait for the job, or follow its events.")
        return self.house.callbacks

    async def _meta(self, principal: Principal, request: CallRequest) -> dict[str, Any]:
        """What a call keeps beside its input."""
        meta: dict[str, Any] = {"userAgentId": request.user_agent_id} if request.user_agent_id else {}
        if request.callback is not None:
            meta[CALLBACK] = await self._callbacks().register(principal, request.callback)
        return meta

    async def _record_refusal(self, caller: Caller, request: CallRequest, refusal: Agent3Error) -> None:
        """A call to nowhere is recorded too."""
        from_nowhere = Call(
            id=self.house.env.id(),
            principal=caller.principal,
            agent=request.agent[:200],
            capability=(request.capability or "")[:200],
            traceparent=caller.traceparent,
        )
        await self.house.refuse(from_nowhere, refusal, caller.door)

    def _summary(self, hit: Hit, rating: Rating, principal: Principal) -> dict[str, Any]:
        agent = hit.agent
        return {
            "id": agent.id,
            "name": agent.name,
            "description": agent.description,
            "status": status_of(agent),
            "score": hit.score,
            "rating": rating.mean,
            "capabilities": [
                {"name": one.name, "description": one.description} for one in self._callable(agent, principal)
            ],
        }

    def _detail(self, one: Capability) -> dict[str, Any]:
        return {
            "name": one.name,
            "description": one.description,
            "inputSchema": one.input_schema,
            "outputSchema": one.output_schema,
            "examples": list(one.examples),
            "price": msgspec.to_builtins(one.price),
            "hints": msgspec.to_builtins(one.hints),
            "protocols": [route.protocol for route in one.routes],
        }


def status_of(agent: Agent) -> str:
    """How the agent stands: what the directory says, unless nobody could reach it when last asked."""
    return "unreachable" if agent.status == "active" and UNREACHABLE in agent.meta else agent.status


def _bounded(name: str, value: Any, least: float, most: float) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValidationError(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
    return value


def _not_offered(agent: str, name: str, names: list[str]) -> CapabilityNotFound:
    """What a caller hears of a capability that it cannot call, with those that it can."""
    near = nearest(name, names)
    hint = f"Did you mean {near!r}? " if near else ""
    more = ", and more: use agent3_select" if len(names) > _MOST_NAMED else ""
    return CapabilityNotFound(
        f"Agent {agent!r} has no capability {name[:100]!r} that you can call. "
        f"{hint}It has {', '.join(sorted(names)[:_MOST_NAMED])}{more}.",
        data={"nearest": [near]} if near else None,
    )


def _same_agent(job: Job, agent: str | None) -> None:
    if agent is not None and job.call.agent != agent:
        raise JobNotFound(f"Agent {agent[:100]!r} has no job {job.id}. Give the agent that asked.")


def _answer(given: Mapping[str, Any], question: Question) -> Answer:
    said = given[question.id]
    if (
        isinstance(said, dict)
        and set(said) <= {"action", "data"}
        and said.get("action") in ("accept", "decline", "cancel")
    ):
        return Answer(said["action"], said.get("data"))
    return Answer("accept", _typed(said, question) if isinstance(said, str) else said)


def _typed(text: str, question: Question) -> Any:
    """A text for a question that wants something else, such as a number or a yes, is taken for that where it fits."""
    if question.schema is None or _fits(text, question.schema):
        return text
    value = from_words(question.schema, text)
    return value if _fits(value, question.schema) else text


def _fits(value: Any, definition: dict[str, Any]) -> bool:
    try:
        schema.compile(definition).check(value, what="answer")
    except Agent3Error:
        return False
    return True


def _best(offered: list[Capability], message: str) -> Capability | None:
    from_words = {one.name: Agent(id=one.name, name=one.name, capabilities=(one,)) for one in offered}
    ranked = Index(from_words).search(message)
    if not ranked or (len(ranked) > 1 and ranked[0][1] < 1.15 * ranked[1][1]):
        return None
    return from_words[ranked[0][0]].capabilities[0]
