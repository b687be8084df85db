"""The short way through the steps, for the calls that come most: one route, nothing cached, nothing asked, no secret.

Each step is a frame of its own, and for a function that answers in microseconds the frames are most of the cost. Here
the same checks stand in one function, in the order of the chain. It only ever ends a call well: whatever is refused,
fails, asks, goes on or is large goes through the chain itself, which is handed what the target has already said as its
first attempt. So there is one place for every refusal, retry, fallback and dead letter, and this is not it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from msgspec.structs import replace

from agent3 import failpoints
from agent3.calls.outcomes import failed_by
from agent3.calls.policy import RECOVERY, understood
from agent3.calls.resilience import Breakers, late
from agent3.calls.results import clean_event, has_large, malformed
from agent3.calls.timeouts import Timeouts
from agent3.env import Env
from agent3.errors import Agent3Error
from agent3.model import Call, Capability, Connector, Done, First, Handler, Live, Outcome, Route
from agent3.observe.metrics import Metrics
from agent3.schema.cache import compiled
from agent3.security.access import Access
from agent3.security.limits import Ceiling, Limiter
from agent3.security.sanitize import clean_outcome
from agent3.settings import Calls

__all__ = ["Express"]


class Express:
    """A handler in front of the chain without its ledger; what does not suit it goes to the chain untouched.

    ``after`` is the part of the chain that deals with what a target said.
    """

    def __init__(
        self,
        chain: Handler,
        after: Handler,
        connectors: Mapping[str, Connector],
        access: Access,
        limiter: Limiter,
        ceiling: Ceiling,
        breakers: Breakers,
        settings: Calls,
        env: Env,
        metrics: Metrics,
    ):
        self._chain = chain
        self._after = after
        self._connectors = connectors
        self._access = access
        self._limiter = limiter
        self._ceiling = ceiling
        self._breakers = breakers
        self._settings = settings
        self._env = env
        self._metrics = metrics
        self._timeouts = Timeouts()

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        routes = call.routes
        if len(routes) == 1 and call.entry == "start" and failpoints.armed is None:
            try:
                whole = understood(call, routes[0])
            except Agent3Error:
                return self._chain(call)
            if self._suits(whole, routes[0]):
                return self._run(whole, routes[0])
        return self._chain(call)

    def _suits(self, call: Call, route: Route) -> bool:
        """Whether nothing stands in its way. Only the last question costs something: whoever passes has paid."""
        live = call.live
        capability: Capability = live.capability
        principal = call.principal
        if capability.interactive or capability.cache_ttl or route.credential is not None:
            return False
        if not capability.input_schema or live.door == RECOVERY or route.protocol not in self._connectors:
            return False
        if not self._access.allows(principal, call.agent, call.capability, route.protocol):
            return False
        if not self._breakers.untroubled(route.key):
            return False
        if not compiled(capability.input_schema).valid(call.input):
            return False
        if not live.charged and principal.kind != "local" and self._limiter.take(principal.id):
            return False
        live.charged = True
        return True

    async def _run(self, call: Call, route: Route) -> Outcome:
        live = call.live
        ceiling = self._ceiling
        if not ceiling.enter(call.agent):
            return await self._chain(call)
        try:
            outcome = await self._tried(call, live, route)
            if type(outcome) is Done and not self._wants_more(outcome, live.capability):
                self._breakers.succeeded(route.key)
                self._metrics.attempts.inc((route.protocol, "answered"))
                return clean_outcome(outcome, self._settings.result_bytes)
            return await self._by_the_chain(call, live, outcome)
        finally:
            ceiling.leave(call.agent)

    async def _tried(self, call: Call, live: Any, route: Route) -> Outcome | BaseException:
        """What the target says, or what it raises."""
        capability: Capability = live.capability
        whole = call.timeout if call.timeout is not None else self._settings.timeout
        seconds = min(whole, capability.timeout or self._settings.attempt_timeout)
        live.expires = self._env.monotonic() + whole
        live.attempts, live.route = 1, route
        before, live.filters = live.filters, (clean_event, *live.filters)
        limit = self._timeouts.after(seconds)
        try:
            with limit:
                going = call if call.route is route else replace(call, route=route)
                return await self._connectors[route.protocol].call(going)
        except BaseException as wrong:  # noqa: BLE001 - the chain raises it again, where it is understood
            late_now = limit.expired and isinstance(wrong, TimeoutError)
            return failed_by(late(call, seconds)) if late_now else wrong
        finally:
            live.filters = before

    def _wants_more(self, outcome: Done, capability: Capability) -> bool:
        """Whether it breaks its schema, or is so large that it must be stored."""
        if capability.output_schema is not None and malformed(outcome, capability):
            return True
        return has_large(outcome, self._settings.artifact_bytes)

    def _by_the_chain(self, call: Call, live: Live, said: Outcome | BaseException) -> Awaitable[Outcome]:
        """The steps after the checks, with what the target said as its first attempt, and no more time than is left.

        The checks are not made again: a target may have changed its input, and was asked in any case.
        """
        live.first, live.content = First(said, live.content), 0
        live.attempts, live.route = 0, None
        return self._after(replace(call, route=None))
