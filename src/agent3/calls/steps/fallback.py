"""``fallback``: takes the next route when one is down. A conversation that has begun stays on its route.

Routes of the capability itself come first, then those of its stand-ins. What a stand-in is asked is a call of its own
agent: in its words, checked by its schema, bounded by its ceiling and its rates, repeated only by its hints, and paid
at its price on its budgets, and on no others. One whose budget is spent is not asked. What it answers must be what the
capability promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from agent3.calls.budgets import Account
from agent3.calls.outcomes import FALLBACK, ROUTE, failed_by
from agent3.calls.step import Aim, Parts, Step
from agent3.calls.steps.limit import charge_rates
from agent3.directory.stand_ins import translate
from agent3.errors import Agent3Error, MalformedResponse, RateLimited, Unavailable, ValidationError
from agent3.model import Call, Capability, Done, Failed, Handler, Outcome, Part, Route, StandIn, value_of
from agent3.observe.logs import get as logger
from agent3.schema.bounds import RESULTS
from agent3.schema.compiler import compiled

__all__ = ["Fallback"]

log = logger("calls")

_HOPS = frozenset(
    {"unavailable", "rate_limited", "circuit_open", "malformed_response", "target_refused", "element_missing"}
)
"""Failures after which another route may do better."""
_MOST_TOLD = 300


class _Taken(NamedTuple):
    """How a route ended. ``asked`` is False where its target never was. ``harmless`` says that asking another agent can
    do nothing twice; a key does not make it so, since only the one that got it knows it."""

    outcome: Outcome
    asked: bool = True
    harmless: bool = True


class Fallback(Step):
    """Chooses the route of each attempt."""

    name = "fallback"

    def __init__(self, parts: Parts):
        self._metrics = parts.metrics
        self._lookup = parts.lookup
        self._ceiling = parts.ceiling
        self._rates = parts.rates
        self._prices = parts.prices
        self._budgets = parts.budgets

    def idle(self, aim: Aim) -> bool:
        # A capability with one route has none to fall back on, and the Runner gives a start its only route.
        routes = aim.capability.routes
        return aim.entry == "start" and len(routes) == 1 and routes[0].stand_in is None

    def around(self, inner: Handler) -> Handler:
        async def handle(call: Call) -> Outcome:
            live = call.live
            if call.entry != "start" and call.route is not None:
                return (await self._take(inner, call, call.route)).outcome
            failed: list[dict[str, Any]] = []
            taken: _Taken | None = None
            before: Route | None = None
            for route in call.routes:
                if taken is not None and before is not None:
                    if route.stand_in is not None and not taken.harmless:
                        break
                    live.hops += 1
                    self._metrics.fallbacks.inc((before.protocol, route.protocol))
                    log.warning("%s/%s: %s failed, taking %s", call.agent, call.capability, before.key, route.key)
                before = route
                now = await self._take(inner, call, route)
                outcome = now.outcome
                if not isinstance(outcome, Failed):
                    return _told(outcome, call, route, failed)
                failed.append({**_name(call, route), "code": outcome.code, "message": outcome.message[:_MOST_TOLD]})
                if now.asked or taken is None:
                    taken = now
                if not now.asked:
                    continue  # it could not stand in for this call; the failure that led to it stays the answer
                if not outcome.repeatable:
                    break
                if outcome.code not in _HOPS and not (outcome.code == "timeout" and now.harmless):
                    break
            if taken is not None:
                return _told(taken.outcome, call, None, failed)
            error = Unavailable(
                f"Agent {call.agent!r} has no route for {call.capability!r}. Add the agent again with agent3 add."
            )
            error.sent = False
            return failed_by(error)

        return handle

    async def _take(self, inner: Handler, call: Call, route: Route) -> _Taken:
        live = call.live
        if route.stand_in is None:
            outcome = await inner(replace(call, route=route))
            return _Taken(outcome, harmless=_is_harmless(outcome, call))
        other = route.stand_in
        admitted = ""
        own = live.agent, live.capability
        try:
            try:
                agent, capability = await self._lookup(other.agent, other.capability)
                if agent.status in ("suspended", "retired"):
                    raise Unavailable(f"Agent {agent.id!r} is {agent.status} and accepts no calls.")
                asked = _in_words_of(capability, call, other)
                price, accounts = (
                    self._prices.of(agent.id, capability),
                    self._budgets.match(call.principal.id, agent.id),
                )
                least = price.call if accounts else 0.0
                if call.entry == "start":
                    if not (self._ceiling.enter(agent.id) or await self._ceiling.admit(agent.id)):
                        text = f"Agent {agent.id!r} is busy: it has reached its maximum of concurrent calls."
                        raise RateLimited(text, retry_after=1.0)
                    admitted = agent.id
                    rates = self._rates.match(call.principal.id, agent.id, capability.name)
                    if (refusal := await charge_rates(rates, agent.id, capability.name)) is not None:
                        return _Taken(refusal, asked=False)
                    await self._pay(call, accounts, least)
            except Agent3Error as error:
                error.sent = False
                return _Taken(failed_by(error), asked=False)
            live.agent, live.capability = agent, capability
            live.price, live.accounts, live.served_by = price, accounts, agent.id
            theirs = replace(asked, agent=agent.id, capability=capability.name, route=route)
            outcome = await inner(theirs)
            return _Taken(_in_words_for(own[1], outcome, other), harmless=_is_harmless(outcome, theirs))
        finally:
            live.agent, live.capability = own
            if admitted:
                self._ceiling.leave(admitted)

    async def _pay(self, call: Call, accounts: Sequence[Account], usd: float) -> None:
        """Count a call on the budgets of who is asked now instead of those that it was counted on; BudgetExceeded."""
        live, budgets = call.live, self._budgets
        if usd or live.reserved is not None or not budgets.is_open(accounts):
            live.reserved = await budgets.reserve(accounts, usd, live.reserved)


def _is_harmless(outcome: Outcome, call: Call) -> bool:
    return not isinstance(outcome, Failed) or not outcome.sent or call.idempotent


def _in_words_of(theirs: Capability, call: Call, other: StandIn) -> Call:
    """The call with input as a stand-in takes it. ValidationError where it does not take such input."""
    if call.input is None:
        if call.entry == "start" and theirs.meta.get("reads") != "messages":
            raise ValidationError(f"{other.agent}/{other.capability} does not accept plain words.")
        return call
    given = call.input
    if isinstance(given, dict):
        given = translate(given, other.input, theirs)
    if call.entry == "start":
        compiled(theirs.input_schema).check(given)
    # The words that the input was made of are in the names of the other; files go along.
    return replace(call, input=given, parts=tuple(part for part in call.parts if part.text is None))


def _in_words_for(ours: Capability, outcome: Outcome, other: StandIn) -> Outcome:
    """The outcome as the capability gives it for which another one answered."""
    if not isinstance(outcome, Done):
        return outcome
    if other.output is not None and not any(part.raw is not None for part in outcome.parts):
        outcome = replace(outcome, parts=(Part(data={other.output: value_of(outcome.parts)}),))
    if ours.output_schema is not None:
        data = [part.data for part in outcome.parts if part.data is not UNSET]
        try:
            result = data[0] if len(data) == 1 else value_of(outcome.parts)
            compiled(ours.output_schema).check(result, what="result", limits=RESULTS)
        except Agent3Error as error:
            text = (
                f"{other.agent}/{other.capability} stood in, but its answer does not match what {ours.name} "
                f"promises: {error.message}"
            )
            return replace(failed_by(MalformedResponse(text, data=error.data)), asked=True)
    return outcome


def _name(call: Call, route: Route) -> dict[str, Any]:
    other = route.stand_in
    return {
        "agent": call.agent if other is None else other.agent,
        "capability": call.capability if other is None else other.capability,
        "protocol": route.protocol,
    }


def _told(outcome: Outcome, call: Call, route: Route | None, failed: list[dict[str, Any]]) -> Outcome:
    """The outcome with which route served, and why not those before it."""
    if isinstance(outcome, Done) and route is not None and len(call.routes) > 1:
        said = {ROUTE: _name(call, route), **({FALLBACK: failed} if failed else {})}
        return replace(outcome, meta={**outcome.meta, **said})
    if isinstance(outcome, Failed) and len(failed) > 1:
        return replace(outcome, data={**outcome.data, "routes": failed})
    return outcome
