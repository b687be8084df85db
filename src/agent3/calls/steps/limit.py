"""``limit``: charges the caller once for a call, and keeps an agent from being flooded.

A call takes a token of its client, one of each rate that its agent or capability has, and counts on its budgets. Which
these are is known when the handler is compiled: a call that has none pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import RECOVERY, Aim, Entered, Left, Parts, Stage, Step
from agent3.errors import BudgetExceeded, RateLimited
from agent3.model import Call, Capability, Failed, Needs, Outcome, Principal
from agent3.security.limits import Metered

__all__ = ["Limit", "charge_rates"]


_SOON = 60.0
"""Seconds after which a caller with too many open questions may have answered some."""


class Limit(Step):
    """Rate per caller, rates, budgets and concurrency per agent. Only the turn that starts a job is counted, and only
    its question is held to how many of one caller may be open."""

    name = "limit"

    def __init__(self, parts: Parts):
        self.limiter = parts.limiter
        self.rates = parts.rates
        self.budgets = parts.budgets
        self.prices = parts.prices
        self.ceiling = parts.ceiling
        self.shares = parts.shares
        self._parts = parts

    def idle(self, aim: Aim) -> bool:
        return aim.entry != "start" or aim.door == RECOVERY

    def bind(self, aim: Aim) -> Stage:
        if self.idle(aim):
            return Stage()
        agent = aim.agent.id if aim.agent is not None else ""
        return _Limit(self, aim.principal, agent, aim.capability)

    async def bound(self, call: Call, asked: Needs) -> Needs | Failed:
        """A question, or the end of its call where too many of its caller wait for an answer."""
        most = self._parts.settings.limits.questions
        if not most or await self._parts.count_waiting(call.principal.id, most) < most:
            return asked
        self._parts.park.drop(call.job or call.id)
        self._parts.metrics.open_questions_refused.inc((call.agent,))
        text = f"{most} of your calls wait for an answer, as many as may. Answer or cancel some, and call again."
        return failed_by(RateLimited(text, retry_after=_SOON))

    async def charge(self, call: Call) -> Failed | None:
        """Charge the caller of a call; the refusal of one that comes too often or has spent its budget."""
        return await _Limit(self, call.principal, call.agent, call.live.capability).charge(call)

    async def charge_as(self, call: Call, capability: Capability) -> Failed | None:
        """Charge a call as one of another capability of its agent, which its words turned out to mean.

        It pays that price instead of its own, and a token of each rate that it has not paid. Once, however often it is
        attempted.
        """
        live, principal, agent = call.live, call.principal.id, call.agent
        if live.acts_as == capability.name:
            return None
        paid = self.rates.match(principal, agent, call.capability)
        rates = [one for one in self.rates.match(principal, agent, capability.name) if one not in paid]
        if (refusal := await charge_rates(rates, agent, capability.name)) is not None:
            return replace(refusal, sent=False)
        price = self.prices.of(agent, capability)
        accounts = self.budgets.match(principal, agent) if live.accounts is None else live.accounts
        if accounts:
            try:
                live.reserved = await self.budgets.reserve(accounts, price.call, live.reserved)
            except BudgetExceeded as error:
                return failed_by(error)
        live.price, live.acts_as = price, capability.name
        return None


class _Limit(Stage):
    def __init__(self, step: Limit, principal: Principal, agent: str, capability: Capability):
        self._step = step
        self._limiter = step.limiter
        self._ceiling = step.ceiling
        self._shares = step.shares
        self._budgets = step.budgets
        self._rates = step.rates.match(principal.id, agent, capability.name)
        self._accounts = step.budgets.match(principal.id, agent)
        self._price = step.prices.of(agent, capability).call if self._accounts else 0.0
        self._free = not self._rates and not self._accounts
        # The local person has no rate of its own.
        self._payer = principal.id if principal.kind != "local" else None

    def enter(self, call: Call) -> Entered:
        live, payer = call.live, self._payer
        # A job has paid before it was written down.
        if not live.charged and (not self._free or (payer is not None and self._limiter.take(payer))):
            return self._admit(call, paid=False)
        if payer is not None and not self._shares.enter(call.agent, payer):
            return self._refuse_share(call)
        if not self._ceiling.enter(call.agent):
            self._leave_share(call)
            return self._admit(call, paid=True)
        live.admitted = True
        return call

    def leave(self, call: Call, outcome: Outcome) -> Left:
        live = call.live
        if live.admitted:
            live.admitted = False
            self._ceiling.leave(call.agent)
            if self._payer is not None:
                self._shares.leave(call.agent, self._payer)
        return self._step.bound(call, outcome) if type(outcome) is Needs else outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        if call.live.admitted:
            call.live.admitted = False
            self._ceiling.leave(call.agent)
            self._leave_share(call)
        return error

    def _leave_share(self, call: Call) -> None:
        if self._payer is not None:
            self._shares.leave(call.agent, self._payer)

    def _refuse_share(self, call: Call) -> Failed:
        text = f"Client {self._payer} has reached its share of concurrent calls to agent {call.agent!r}."
        return failed_by(RateLimited(f"{text} Try again.", retry_after=1.0))

    async def charge(self, call: Call) -> Failed | None:
        """Charge the caller; the refusal, if it is one. The budget comes last: a call that is refused costs nothing."""
        if self._payer is not None and (wait := await self._limiter.charge(self._payer)):
            return _too_often(f"Rate limit exceeded for client {self._payer}.", wait)
        if (refusal := await charge_rates(self._rates, call.agent, call.capability)) is not None:
            return refusal
        if self._accounts and (self._price or not self._budgets.is_open(self._accounts)):
            try:
                call.live.reserved = await self._budgets.reserve(self._accounts, self._price)
            except BudgetExceeded as error:
                return failed_by(error)
        return None

    async def _admit(self, call: Call, *, paid: bool) -> Call | Failed:
        """The same where the database may have to be asked."""
        if not paid and (refusal := await self.charge(call)) is not None:
            return refusal
        if self._payer is not None and not self._shares.enter(call.agent, self._payer):
            return self._refuse_share(call)
        try:
            has_room = self._ceiling.enter(call.agent) or await self._ceiling.admit(call.agent)
        except BaseException:
            self._leave_share(call)
            raise
        if not has_room:
            self._leave_share(call)
            return failed_by(
                RateLimited(
                    (f"Agent {call.agent!r} is busy: it has reached its maximum of concurrent calls. Try again."),
                    retry_after=1.0,
                )
            )
        call.live.admitted = True
        return call


async def charge_rates(rates: Sequence[Metered], agent: str, capability: str) -> Failed | None:
    """Take a token of each rate of an agent; the refusal of the first that has none."""
    for limiter, key, rate in rates:
        if wait := await limiter.charge(key):
            what = f"{agent}/{capability}" if rate.capability != "*" else f"Agent {agent!r}"
            whose = "from each client" if rate.each == "client" else "in total"
            return _too_often(
                f"{what} accepts {rate.per_minute:g} calls per minute {whose}; the limit is reached.", wait
            )
    return None


def _too_often(text: str, wait: float) -> Failed:
    return failed_by(RateLimited(f"{text} Try again in {wait:.1f} s.", retry_after=wait))
