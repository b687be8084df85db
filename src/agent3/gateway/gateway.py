"""The gateway: search, select, invoke, call, feedback, and the jobs behind calls. Every door speaks to it.

It is the only way from a door into the call core, and knows no protocol: a door hands it the caller and gets plain
answers. What a caller may not call it does not see either, here as in every list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3 import schema
from agent3.calls.approvals import QUESTION
from agent3.calls.artifacts import StoredArtifact
from agent3.calls.callbacks import CALLBACK
from agent3.calls.core import Core
from agent3.calls.jobs import Job
from agent3.calls.outbox import Receipt
from agent3.calls.outcomes import describe_job, failed_by, response
from agent3.calls.runner import Listener, Target
from agent3.calls.steps.authorize import unknown
from agent3.directory import Accept, Directory, Hit, Reputation
from agent3.directory.beside import Beside
from agent3.directory.reputation import check_rating
from agent3.errors import (
    AccessError,
    Agent3Error,
    AgentNotFound,
    CapabilityNotFound,
    Declined,
    JobNotFound,
    RateLimited,
    SetupError,
    ValidationError,
)
from agent3.gateway.cards import card_of
from agent3.gateway.hits import NEAR, TOKENS_PER_HIT, Detail, arrange, fit, matches_filters, render
from agent3.gateway.input_modes import TEXT, check_modes, read_files, read_message, read_mode
from agent3.gateway.which import (
    MOST_LISTED,
    ask_again,
    ask_which,
    is_undecided,
    listed_in,
    read_choice,
    refuses,
    said_in,
    starts_at_once,
    takes_any,
    undecided,
)
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    own_routes,
    text_of,
)
from agent3.schema import nearest
from agent3.schema.coercion import in_words
from agent3.security.access import may_operate
from agent3.security.limits import RateLimiter
from agent3.sentences.answers import find_listed
from agent3.sentences.lexicon import detect_language
from agent3.sentences.questions import AGAIN, decline
from agent3.storage.audit import record_change

__all__ = ["UNREACHABLE", "CallRequest", "Caller", "Gateway", "OnUse", "response", "status_of"]

UNREACHABLE = "unreachable"
"""The key in an agent's ``meta`` under which stands since when and why it could not be reached, while that is so."""

_LONGEST_TIMEOUT = 3_600.0
_MOST_RETRIES = 10
_MOST_NAMED = 20
_QUESTIONS_PER_CALL = 10
"""How much oftener than call a client may search, look, answer and rate."""
_NOTHING_FOUND = "No match. Use other words or a more general description; an empty query lists the agents."
_NOTHING_THERE = (
    "Nothing matches these filters. Remove some, or have an agent added with agent3 add: an MCP server, an "
    "A2A agent or a website."
)
_ONLY_NEAR = "None of these matches your words closely. Check the match before you call it, or search with other words."
_INDEXING = "Indexing: {} of {} agents are searchable so far. Search again in a moment."
_APPROVES = Question(QUESTION, "Approve it?", {"type": "boolean"})
_KNOWN = 200
"""Callers of whom it is remembered what they may call of an agent."""
_Who: TypeAlias = tuple[str, frozenset[str], str | None]

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
    files: Sequence[Mapping[str, Any]] = ()


class Gateway:
    """The verbs, for every door."""

    def __init__(self, core: Core, directory: Directory, reputation: Reputation):
        self.core = core
        self.directory = directory
        self.reputation = reputation
        self.on_use: OnUse | None = None
        """Hears of every agent that was looked at or called, with how the call ended."""
        self.renewing: frozenset[str] = frozenset()
        """The protocols whose agents are asked again what they can do: ``on_use`` hears of calls to these."""
        self.notes: Callable[[Agent], Awaitable[dict[str, Any]]] | None = None
        """Tells what the protocol of an agent knows of it beyond the directory."""
        limits, more = core.settings.limits, _QUESTIONS_PER_CALL
        self._meter = RateLimiter(limits.per_minute * more, limits.burst * more, env=core.env)
        self._offered: Beside[Agent, dict[_Who, Sequence[Capability]]] = Beside()

    # Finding

    async def search(
        self,
        caller: Caller,
        query: str,
        limit: int = 5,
        *,
        filters: Mapping[str, Any] | None = None,
        detail: Detail = "signature",
        max_tokens: int | None = None,
    ) -> dict[str, Any]:
        """The capabilities that fit a query, the best first, in about so many tokens; without a query, the agents.

        Soon after the start of a large gateway it is answered from what is indexed so far, and a hint says so.
        """
        self.count_question(caller.principal)
        limit = max(1, min(limit, 50))
        accept = self.accepts(caller.principal, filters)
        if (protocol := (filters or {}).get("protocol")) is not None and protocol not in self.core.connectors:
            raise ValidationError(
                f"Unknown protocol {protocol!r}. Known are {', '.join(sorted(self.core.connectors))}."
            )
        media_types: set[str] = set()
        if (media_type := (filters or {}).get("mediaType")) is not None:
            accept = self._noting_media_types(caller.principal, accept, media_types)
        # Some more than are shown: among those that fit almost equally well, what is known of the agents decides.
        candidates = await self.directory.search(query, 2 * limit + 10 if query.strip() else limit, accept, whole=False)
        known = list(dict.fromkeys(hit.agent.id for hit in candidates))
        ratings, prices = await self.reputation.all(known), self.core.parts.prices.of
        weights = await self.reputation.weights(known) if query.strip() else {}
        agents = {hit.agent.id: hit.agent for hit in candidates}
        offered = {agent_id: self.offered(agent, caller.principal) for agent_id, agent in agents.items()}
        status = {agent_id: self.health_of(agent) for agent_id, agent in agents.items()}

        def show() -> list[dict[str, Any]]:
            found: Sequence[Hit] = candidates
            if query.strip():
                found = arrange(candidates, weights, prices, lambda agent: status[agent.id], limit)
            return [
                render(hit, offered[one], ratings[one], status[one], prices, detail)
                for hit, one in ((hit, hit.agent.id) for hit in found)
            ]

        shown = await self.directory.work(show)
        answer: dict[str, Any] = {"query": query, "agents": shown, "count": len(shown)}
        if candidates.indexing is not None:
            answer["hint"] = _INDEXING.format(*candidates.indexing)
        elif not shown:
            answer["hint"] = _NOTHING_FOUND if query.strip() and not filters else _NOTHING_THERE
            if media_types and media_type not in media_types:
                only = ", ".join(sorted(media_types))
                answer["hint"] = f"No match accepts or returns {media_type!r}, only {only}. {_NOTHING_THERE}"
        elif query.strip() and all(hit["why"] == NEAR for hit in shown):
            answer["hint"] = _ONLY_NEAR
        if not shown:
            return answer
        return fit(answer, max_tokens or limit * TOKENS_PER_HIT[detail])

    async def find_agents(self, caller: Caller, query: str = "", limit: int = 10) -> dict[str, Any]:
        """The agents that fit a query, each with what it can do and how it was rated; without a query, all, by id."""
        self.count_question(caller.principal)
        accept = self.accepts(caller.principal)
        found = await self.directory.find_agents(query, max(1, min(limit, 50)), accept)
        ratings = await self.reputation.all([hit.agent.id for hit in found])
        agents = [
            {
                "id": hit.agent.id,
                "name": hit.agent.name,
                "description": hit.agent.description,
                "status": self.health_of(hit.agent),
                "score": hit.score,
                "rating": ratings[hit.agent.id].mean,
                "capabilities": [
                    {"name": capability.name, "description": capability.description}
                    for capability in self.offered(hit.agent, caller.principal)
                ],
            }
            for hit in found
        ]
        return {"query": query, "agents": agents, "count": len(agents)}

    def health_of(self, agent: Agent) -> str:
        """How an agent stands now: ``stopped`` by the operator, ``status_of``, or ``failing`` while every way to it is
        closed after failures."""
        if agent.id in self.core.parts.stops.agents:
            return "stopped"
        status, breakers = status_of(agent), self.core.parts.breakers
        if status != "active" or not breakers.circuits:
            return status
        keys = {route.key for capability in agent.capabilities for route in capability.routes}
        return "failing" if keys and all(breakers.state(key) == "open" for key in keys) else status

    def accepts(self, principal: Principal, filters: Mapping[str, Any] | None = None) -> Accept:
        """Whether a caller may see a capability, and wants it."""

        def accept(agent: Agent, capability: Capability | None) -> bool:
            offered = self.offered(agent, principal)
            some = capability is not None and len(offered) < len(agent.capabilities)  # else it is one of them
            if some and all(one is not capability for one in offered):
                return False
            return not filters or matches_filters(agent, capability, filters, self.core.parts.prices.of)

        return accept

    def _noting_media_types(self, principal: Principal, accept: Accept, into: set[str]) -> Accept:
        """The same, which notes some of the media types of what the caller may see."""
        visible = self.accepts(principal)

        def note_modes(agent: Agent, capability: Capability | None) -> bool:
            if capability is not None and len(into) < _MOST_NAMED and visible(agent, capability):
                into.update(islice((*capability.input_modes, *capability.output_modes), _MOST_NAMED))
            return accept(agent, capability)

        return note_modes

    async def select(self, caller: Caller, agent_id: str) -> dict[str, Any]:
        """Everything one needs to decide whether and how to call an agent."""
        agent = await self._look(caller, agent_id)
        rating = await self.reputation.of(agent.id)
        notes = {} if self.notes is None else await self.notes(agent)
        signature = agent.meta.get("signature")
        return {
            "id": agent.id,
            "name": agent.name,
            "description": agent.description,
            "version": agent.version,
            "provider": agent.provider,
            "status": self.health_of(agent),
            "tags": list(agent.tags),
            "rating": msgspec.to_builtins(rating),
            "capabilities": [
                {
                    "name": capability.name,
                    "description": capability.description,
                    "inputSchema": capability.input_schema,
                    "outputSchema": capability.output_schema,
                    "examples": list(capability.examples),
                    "price": msgspec.to_builtins(self.core.parts.prices.of(agent.id, capability)),
                    "hints": msgspec.to_builtins(capability.hints),
                    "protocols": [route.protocol for route in own_routes(capability)],
                    **self._routes_of(agent, capability, caller.principal),
                }
                for capability in self.offered(agent, caller.principal)
            ],
            **({"signature": signature} if isinstance(signature, dict) else {}),
            **notes,
        }

    def _routes_of(self, agent: Agent, capability: Capability, principal: Principal) -> dict[str, Any]:
        """The routes of a capability that a caller may take, in order, where it has several; the first that is not
        paused serves now."""
        if len(capability.routes) < 2:
            return {}
        found: list[dict[str, Any]] = []
        for route in self.core.access.narrow(principal, agent.id, capability.name, capability.routes):
            other = route.stand_in
            circuit = self.core.parts.breakers.state(route.key)
            found.append(
                {
                    "agent": agent.id if other is None else other.agent,
                    "capability": capability.name if other is None else other.capability,
                    "protocol": route.protocol,
                    "state": "paused" if circuit == "open" else "ready",
                    "serves": circuit != "open" and not any(one["serves"] for one in found),
                }
            )
        return {"routes": found}

    async def invoke(self, caller: Caller, agent_id: str) -> dict[str, Any]:
        """The agent's raw card. No network is touched and no credential is in it."""
        agent = await self._look(caller, agent_id)
        return card_of(agent, self.offered(agent, caller.principal))

    async def card(self, caller: Caller, agent_id: str) -> dict[str, Any] | None:
        """The card of an agent that was just called; None if it is gone."""
        try:
            agent = await self.directory.get(agent_id, self.visible_to(caller.principal))
        except AgentNotFound:
            return None
        return card_of(agent, self.offered(agent, caller.principal))

    async def feedback(self, caller: Caller, agent_id: str, rating: int, comment: str = "") -> dict[str, Any]:
        """Rate an agent from 1 to 5, after a call of it. The latest word of each caller counts, and is the only one."""
        self.count_question(caller.principal)
        agent = await self.directory.get(agent_id, self.visible_to(caller.principal))
        check_rating(rating)
        await self.core.ledger.flush()  # the call that it speaks of may have ended just now
        call = await self.reputation.may_rate(agent, caller.principal)
        await self.reputation.rate(agent.id, caller.principal.id, rating, comment, call)
        rated = await self.reputation.of(agent.id)
        return {"agentId": agent.id, "recorded": True, "rating": msgspec.to_builtins(rated)}

    # Who may call what

    def offered(self, agent: Agent, principal: Principal) -> Sequence[Capability]:
        """What a caller may call or see of an agent. Found out once for as long as the agent stays the same object."""
        who = (principal.id, principal.scopes, principal.tenant)
        known = self._offered.get(agent)
        if known is None:
            known = self._offered.put(agent, {})
        if (found := known.get(who)) is not None:
            return found
        shows = self.core.access.shows
        offered = tuple(
            capability
            for capability in agent.capabilities
            if shows(principal, agent.id, capability.name, capability.routes)
        )
        if len(known) >= _KNOWN:
            known.clear()
        known[who] = offered
        return offered

    def may_call(self, principal: Principal, agent: Agent, capability: Capability) -> bool:
        """Whether the rules let a caller call a capability by any of its routes."""
        routes = capability.routes
        return bool(self.core.access.narrow(principal, agent.id, capability.name, routes)) or not routes

    def may_see(self, principal: Principal, agent: Agent, capability: Capability) -> bool:
        """Whether a capability is there for a caller. What it may see and not call, the step ``authorize`` refuses."""
        routes = capability.routes
        return self.core.access.shows(principal, agent.id, capability.name, routes) or not routes

    def visible_to(self, principal: Principal) -> Callable[[Agent], bool]:
        """Whether a caller sees an agent: it may call something of it, or there is nothing to call."""
        return lambda agent: bool(self.offered(agent, principal)) or not agent.capabilities

    async def agent(self, principal: Principal, agent_id: str, visible: Callable[[Agent], bool] | None = None) -> Agent:
        """An agent that takes calls; AgentNotFound for one that is not there, not visible, or does not."""
        try:
            agent = await self.directory.get(agent_id, visible or self.visible_to(principal))
        except AgentNotFound:
            self.require_rights(principal)
            raise
        _check_takes_calls(agent)
        return agent

    def require_rights(self, principal: Principal) -> None:
        """AccessError for a caller that no rule lets call anything.

        That says who the caller is, and nothing of what there is. What a caller with some rights may not call is not
        there for it: a refusal that told the two apart would show what it must not see.
        """
        if not self.core.access.allows_anything(principal):
            raise AccessError(f"Client {principal.id} may not call anything at this gateway: no rule allows it.")

    def count_question(self, principal: Principal) -> None:
        """What is no call is free, but bounded: each of these verbs reads or writes the database."""
        if principal.kind != "local" and (wait := self._meter.take(principal.id)):
            raise RateLimited(
                f"Client {principal.id} searches, reads, answers or rates too often. Try again in {wait:.1f} s.",
                retry_after=wait,
            )

    # Calling

    async def aim(
        self, principal: Principal, agent_id: str, name: str | None = None, *, message: str = "", given: Any = None
    ) -> Target:
        """The agent and capability that a call means: the named one, else what ``choose`` says."""
        agent = await self.agent(principal, agent_id)
        offered = self.offered(agent, principal)
        if name is not None:
            return agent, self._find_named(agent, name, offered)
        return agent, await self.choose(agent, offered, message, given)

    async def choose(self, agent: Agent, offered: Sequence[Capability], message: str, given: Any = None) -> Capability:
        """What a message that names no capability means: the only one, or the one that fits best. Where that is not
        clear it is the one that takes commands, or ``undecided``, and ``start`` asks the caller.

        The only one is asked about as well, if the message does not speak of it and would yet start it: "hello" to an
        agent that deletes.
        """
        if len(offered) == 1:
            return await self._choose_only(agent, offered, message, given)
        if not offered:
            raise CapabilityNotFound(f"Agent {agent.id!r} has no capability that can be called.")
        actions = [capability for capability in offered if capability.meta.get("reads") != "commands"]
        if best := await self.directory.choose(agent, actions, message):
            return best
        if message and given is None and len(actions) < len(offered):
            return next(capability for capability in offered if capability not in actions)
        listed = await self.directory.closest(agent, actions, message, MOST_LISTED)
        return undecided(listed, len(actions) - len(listed))

    async def _choose_only(self, agent: Agent, offered: Sequence[Capability], message: str, given: Any) -> Capability:
        only = offered[0]
        if given is not None or takes_any(only, message) or await self.directory.choose(agent, offered, message):
            return only
        # One that lacks something asks for it by itself, and what is forbidden is refused there.
        starts = await asyncio.to_thread(starts_at_once, agent, only, message, self.core.env.now())
        return undecided(offered) if starts else only

    async def call(self, caller: Caller, request: CallRequest) -> Outcome:
        """Call an agent. Refusals that come before there is a target are recorded like any other, then raised."""
        principal = caller.principal
        try:
            mode = read_mode(request.input_mode)
            parts = read_message(request.message, mode)
            target = await self.aim(
                principal, request.agent, request.capability, message=text_of(parts), given=request.input
            )
            if request.files:
                store, reader = self.core.artifacts, principal.id
                parts += await read_files(request.files, lambda artifact: store.get(reader, artifact))
            self._check_modes(principal, target, parts, mode)
            meta: dict[str, Any] = {"userAgentId": request.user_agent_id} if request.user_agent_id else {}
            if request.callback is not None:
                if self.core.callbacks is None:
                    raise _no_callbacks()
                meta[CALLBACK] = await self.core.callbacks.register(principal, request.callback)
        except Agent3Error as refusal:
            await self.refuse(caller, request.agent, request.capability or "", refusal)
            raise
        agent, capability = target
        call = Call(
            id=self.core.env.id(),
            principal=principal,
            agent=agent.id,
            capability=capability.name,
            input=request.input,
            parts=parts,
            input_mode=mode,
            context=request.context,
            key=request.key,
            timeout=_check_bounds("timeout", request.timeout, 0.0, _LONGEST_TIMEOUT),
            retries=_check_bounds("retries", request.retries, 0, _MOST_RETRIES),
            routes=capability.routes,
            traceparent=caller.traceparent,
            meta=meta,
        )
        detach = request.detach or request.callback is not None
        return await self.start(caller, call, target, detach=detach)

    def _check_modes(self, principal: Principal, target: Target, parts: Sequence[Part], mode: str) -> None:
        """ValidationError for what the capability does not take; while it is undecided, for what none of them takes."""
        agent, capability = target
        if not is_undecided(capability):
            return check_modes(agent.id, capability, parts, mode)
        refusal: ValidationError | None = None
        for one in self.offered(agent, principal):
            try:
                return check_modes(agent.id, one, parts, mode)
            except ValidationError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return None

    def start(
        self,
        caller: Caller,
        call: Call,
        target: Target,
        *,
        detach: bool = False,
        opened: Callable[[Job], None] | None = None,
    ) -> Coroutine[Any, Any, Outcome]:
        """Run the first turn of a call that a door has put together; see ``Runner.start``.

        One whose target is undecided becomes a job that asks which capability is meant.
        """
        if is_undecided(target[1]):
            return self._ask_which(caller, call, target)
        running = self.core.runner.start(
            call, target, listener=caller.listener, door=caller.door, detach=detach, opened=opened
        )
        if self.on_use is not None:
            for route in target[1].routes:
                if route.protocol in self.renewing:
                    return self._start_and_tell(running, target[0], self.on_use)
        return running

    @staticmethod
    async def _start_and_tell(running: Coroutine[Any, Any, Outcome], agent: Agent, on_use: OnUse) -> Outcome:
        outcome = await running
        on_use(agent, outcome)
        return outcome

    async def _ask_which(self, caller: Caller, call: Call, target: Target) -> Outcome:
        self.count_question(caller.principal)  # no call yet, and so not charged as one
        self.core.metrics.sentences.inc(("which",))
        question = ask_which(*target, text_of(call.parts))
        return await self.core.runner.ask(call, target, question, caller.door)

    async def _read_choice(self, job: Job, answers: Mapping[str, Answer]) -> tuple[Call, Target] | Needs | Failed:
        """What the answer to the question of ``start`` chooses; the question again, where that is not clear."""
        call, question = job.call, job.questions[0]
        answer = answers.get(question.id)
        said = said_in(answer) if answer is not None else ""
        if answer is not None and (answer.action != "accept" or refuses(question, said)):
            return failed_by(Declined(f"{call.agent}: {decline(question, detect_language(question.text))}"))
        known: dict[str, Target] = {}
        listed = listed_in(job.state)
        if (place := find_listed(listed, said)) is not None:  # of what was shown, whatever may still be called
            said = listed[place]
        for name in (said, *listed):  # said may name one that was not listed
            with suppress(CapabilityNotFound):
                target = await self.core.runner.target(call.agent, name)
                if self.may_call(call.principal, *target):
                    known[name] = target
        choice = read_choice([capability for _, capability in known.values()], said, self.core.env.now())
        if choice is None:
            return ask_again(question, said, job.state)
        capability, added = choice
        agent, _ = known[capability.name]
        _check_takes_calls(agent)
        parts = (*call.parts, *added)
        check_modes(agent.id, capability, parts, call.input_mode or TEXT)
        begun = replace(call, capability=capability.name, parts=parts, routes=capability.routes)
        return begun, (agent, capability)

    def run(
        self, caller: Caller, call: Call, target: Target, work: Callable[[Call], Awaitable[Outcome]]
    ) -> Coroutine[Any, Any, Outcome]:
        """Run something that is no capability, such as the read of a resource, under every step all the same."""
        return self.core.run(call, target, work, door=caller.door)

    async def check(self, caller: Caller, call: Call, target: Target) -> Outcome | None:
        """What is wrong with the input of a call that is about to start; None where nothing is."""
        if is_undecided(target[1]):
            return None
        return await self.core.check(call, target, caller.door)

    async def refuse(self, caller: Caller, agent: str, capability: str, refusal: Agent3Error) -> None:
        """Record a call that is refused before it has a target."""
        call = Call(
            id=self.core.env.id(),
            principal=caller.principal,
            agent=agent[:200],
            capability=capability[:200],
            traceparent=caller.traceparent,
        )
        await self.core.refuse(call, refusal, caller.door)

    # Jobs

    async def answer(
        self,
        caller: Caller,
        job: str,
        answers: Mapping[str, Answer],
        turn: int | None = None,
        *,
        reply: tuple[Part, ...] = (),
        said: tuple[Event, ...] = (),
        detach: bool = False,
    ) -> Outcome:
        """The next turn of a job that asked. With ``detach`` it answers ``Working`` as soon as the answers are kept."""
        self.count_question(caller.principal)
        return await self.core.runner.answer(
            caller.principal,
            job,
            answers,
            turn=turn,
            reply=reply,
            said=said,
            listener=caller.listener,
            door=caller.door,
            detach=detach,
            choose=self._read_choice,
        )

    async def reply(
        self,
        caller: Caller,
        job: str,
        said: str | Mapping[str, Any],
        agent: str | None = None,
        capability: str | None = None,
    ) -> Outcome:
        """Likewise for a caller that says it in plain words: a text answers the first open question, a mapping by id.

        A mapping that names none of the questions answers the first as a whole, such as the input that it asks for.

        With ``agent``, only a job of that agent is answered, with ``capability`` only a call of that. A job of
        somebody else that waits for an approval is answered with yes or no by who may approve it.
        """
        try:
            waiting = await self.job(caller, job, agent)
        except JobNotFound:
            approval = await self.core.parts.approvals.find_waiting(caller.principal, job)
            if approval is None:
                raise
            return await self._approve_by_answer(caller, approval, said)
        if capability and waiting.call.capability not in ("", capability):
            raise ValidationError(
                f"Job {waiting.id} is a call of {waiting.call.capability!r}, not of {capability[:100]!r}: nothing was "
                "answered. Leave the capability out to answer it, or the job to begin a call."
            )
        given: Mapping[str, Any]
        if isinstance(said, str) or not any(question.id in said for question in waiting.questions):
            if isinstance(said, dict) and waiting.questions:
                _check_is_answer(said, waiting.questions)
            given = {waiting.questions[0].id: said} if waiting.questions else {}
        else:
            given = said
        answers = {
            question.id: _answer(given[question.id], question, named=given is said)
            for question in waiting.questions
            if question.id in given
        }
        return await self.answer(caller, job, answers)

    async def _approve_by_answer(self, caller: Caller, approval: str, said: str | Mapping[str, Any]) -> Outcome:
        self.count_question(caller.principal)
        given = _answer(said.get(QUESTION, said) if isinstance(said, Mapping) else said, _APPROVES)
        yes = given.data is True and given.action == "accept"
        if not yes and not (given.action != "accept" or given.data is False):
            raise ValidationError("Answer yes or no.")
        found = await self.core.parts.approvals.decide(caller.principal, approval, approve=yes)
        return Done((Part(data=found),))

    async def approvals(self, caller: Caller, *, waiting: bool = True, limit: int = 50) -> dict[str, Any]:
        """The approvals that this caller asked for, or may decide."""
        self.count_question(caller.principal)
        found = await self.core.parts.approvals.list(caller.principal, waiting=waiting, limit=limit)
        return {"approvals": found, "count": len(found)}

    async def approval(self, caller: Caller, approval: str) -> dict[str, Any]:
        """One of them, with what the call would do."""
        self.count_question(caller.principal)
        return await self.core.parts.approvals.show(caller.principal, approval)

    async def decide(self, caller: Caller, approval: str, *, approve: bool, reason: str = "") -> dict[str, Any]:
        """Approve or deny a call that waits; it goes on, or ends, in the background."""
        self.count_question(caller.principal)
        return await self.core.parts.approvals.decide(caller.principal, approval, approve=approve, reason=reason)

    async def job(self, caller: Caller, job: str, agent: str | None = None) -> Job:
        """A job of this caller as it stands; JobNotFound for any other, and for one of another ``agent``."""
        found = await self.core.runner.get(caller.principal, job)
        if agent is not None and found.call.agent != agent:
            raise JobNotFound(f"Job {found.id} does not belong to agent {agent[:100]!r}. Name the agent that asked.")
        return found

    async def wait(self, caller: Caller, job: str, seconds: float, agent: str | None = None) -> Outcome:
        """How a job stands when it pauses or ends, or that it still works when the time is over."""
        if agent is not None:
            await self.job(caller, job, agent)
        return await self.core.runner.wait(caller.principal, job, seconds)

    def follow(self, caller: Caller, job: str, after: int = 0) -> AsyncIterator[Event]:
        """The events of a job past a number, until it pauses or ends."""
        return self.core.runner.follow(caller.principal, job, after)

    async def cancel(self, caller: Caller, job: str) -> Outcome:
        """Cancel a job, down to its target."""
        return await self.core.runner.cancel(caller.principal, job, caller.door)

    async def give_up(self, caller: Caller, job: str) -> None:
        """Cancel a job whose caller left while it waited for it.

        Not where this gateway stops, which leaves its callers as well: the next one goes on with the job.
        """
        if not self.core.parts.ledger.is_stopping:
            with suppress(Agent3Error):
                await self.cancel(caller, job)

    async def cancel_any(self, caller: Caller, job: str) -> dict[str, Any]:
        """Cancel a job of this caller's, or as an operator one of anybody; how it stands then.

        What an operator does to others is recorded first, and tells nothing of what the job was given or gave.
        """
        runner = self.core.runner
        try:
            await self.cancel(caller, job)
            return describe_job(await self.job(caller, job))
        except JobNotFound:
            if not may_operate(caller.principal):
                raise
        found = await runner.get_of_anyone(job)
        if not found.ended:
            who, env = caller.principal.id, self.core.env
            await self.core.database.write(lambda tx: record_change(tx, env, "job cancelled", found.id, None, who))
            # As its caller: what a target is told is told in the name and with the credentials of who asked it.
            await runner.cancel(found.call.principal, found.id, caller.door)
        return _describe_for_operator(await runner.get_of_anyone(found.id))

    async def open_jobs(self, caller: Caller, limit: int = 50) -> dict[str, Any]:
        """Jobs that are working or wait for an answer: the caller's own, or for an operator those of all."""
        self.count_question(caller.principal)
        owner = None if may_operate(caller.principal) else caller.principal.id
        jobs = await self.core.runner.list_open(owner, limit)
        return {"jobs": [_describe_for_operator(job) for job in jobs]}

    async def callbacks(self, caller: Caller, job: str) -> list[Receipt]:
        """What the caller was told of a job, and what became of each delivery."""
        found = await self.core.runner.get(caller.principal, job)
        if self.core.callbacks is None:
            raise _no_callbacks()
        return await self.core.callbacks.of(found)

    async def artifact(self, caller: Caller, artifact: str) -> StoredArtifact:
        """A large result of this caller's; NotFound for any other."""
        self.count_question(caller.principal)
        return await self.core.artifacts.get(caller.principal.id, artifact)

    async def lookup(self, agent_id: str, name: str) -> Target:
        """The agent and capability of a job that goes on."""
        agent = await self.directory.get(agent_id)
        capability = agent.capability(name)
        if capability is None:
            raise unknown(agent_id, name)
        return agent, capability

    # Inside

    async def _look(self, caller: Caller, agent_id: str) -> Agent:
        self.count_question(caller.principal)
        try:
            agent = await self.directory.get(agent_id, self.visible_to(caller.principal))
        except AgentNotFound:
            self.require_rights(caller.principal)
            raise
        if self.on_use is not None:
            self.on_use(agent, None)
        return agent

    def _find_named(self, agent: Agent, name: str, offered: Sequence[Capability]) -> Capability:
        for capability in offered:
            if capability.name == name:
                return capability
        if not offered:
            raise unknown(agent.id, name)
        names = sorted(capability.name for capability in offered)
        near = nearest(name, names)
        hint = f"Did you mean {near!r}? " if near else ""
        more = ", and more: see agent3_select" if len(names) > _MOST_NAMED else ""
        raise CapabilityNotFound(
            f"Agent {agent.id!r} has no capability {name[:100]!r} that you may call. {hint}It has "
            f"{', '.join(names[:_MOST_NAMED])}{more}.",
            data={"nearest": [near]} if near else None,
        )


def _check_takes_calls(agent: Agent) -> None:
    if agent.status in ("suspended", "retired"):
        raise AgentNotFound(
            f"Agent {agent.id!r} is {agent.status} and accepts no calls. Use agent3_search to find another."
        )


def status_of(agent: Agent) -> str:
    """How the agent stands: what the directory says, unless it could not be reached when last asked."""
    return "unreachable" if agent.status == "active" and UNREACHABLE in agent.meta else agent.status


def _no_callbacks() -> SetupError:
    return SetupError("This gateway does not support callbacks. Wait for the job, or follow its events.")


def _check_bounds(name: str, value: Any, least: float, most: float) -> Any:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValidationError(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")
    return value


def _answer(said: Any, question: Question, *, named: bool = False) -> Answer:
    """An answer as it was given: with an action, as words (``{"said": "…"}``), or the data alone.

    A text for a question that wants something else, such as a number or a yes, is taken for that where it fits. With
    ``named`` it was given by the id of its question, as input.
    """
    if isinstance(said, dict) and said and set(said) <= {"action", "data"}:
        action = said.get("action")
        if action in ("accept", "decline", "cancel"):
            return Answer(action, said.get("data"), exact=True)
    if isinstance(said, dict) and set(said) == {"said"} and isinstance(said["said"], str):
        said, named = said["said"], False
    if isinstance(said, str) and question.schema is not None and not _fits(said, question.schema):
        answer = in_words(question.schema, said)
        if _fits(answer.data, question.schema):
            return replace(answer, exact=named)
    return Answer("accept", said, exact=named)


def _check_is_answer(said: dict[str, Any], questions: Sequence[Question]) -> None:
    """ValidationError for answers by ids that are none, to a question that asks for no object."""
    wanted = questions[0].schema
    if (
        set(said) <= {"action", "data"}
        or wanted is None
        or _fits(said, wanted)
        or wanted.get("type") in (None, "object")
        or questions[0].id == AGAIN  # which takes the input as well
    ):
        return
    unknown = ", ".join(repr(name[:50]) for name in sorted(said)[:5])
    asked = ", ".join(question.id for question in questions)
    raise ValidationError(f"This job has no question {unknown}. Its questions are: {asked}.")


def _fits(value: Any, definition: dict[str, Any]) -> bool:
    try:
        schema.compile(definition).check(value, what="answer")
    except Agent3Error:
        return False
    return True


def _describe_for_operator(job: Job) -> dict[str, Any]:
    """A job without its content."""
    return {
        "id": job.id,
        "caller": job.owner,
        "agent": job.call.agent,
        "capability": job.call.capability,
        "status": job.status,
        "turn": job.turn,
        "created": job.created,
        "updated": job.updated,
    }
