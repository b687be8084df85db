"""``fallback``: takes the next route when one is down. A conversation that has begun stays on its route."""

from __future__ import annotations

from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Parts, Step
from agent3.errors import Unavailable
from agent3.model import Call, Failed, Handler, Outcome, Route
from agent3.observe.logs import get as logger

__all__ = ["Fallback"]

log = logger("calls")

_HOPS = frozenset({"unavailable", "circuit_open", "malformed_response", "target_refused", "element_missing"})
"""Failures after which another route may do better."""


class Fallback(Step):
    """Chooses the route of each attempt."""

    name = "fallback"

    def __init__(self, parts: Parts):
        self._metrics = parts.metrics

    def idle(self, aim: Aim) -> bool:
        # A capability with one route has none to fall back on, and the Runner gives a start its only route.
        return aim.entry == "start" and len(aim.capability.routes) == 1

    def around(self, inner: Handler) -> Handler:
        async def handle(call: Call) -> Outcome:
            live = call.live
            if call.entry != "start" and call.route is not None:
                return await inner(call)
            outcome: Outcome | None = None
            before: Route | None = None
            for route in call.routes:
                if before is not None:
                    live.hops += 1
                    self._metrics.fallbacks.inc((before.protocol, route.protocol))
                    log.warning("%s/%s: %s failed, taking %s", call.agent, call.capability, before.key, route.key)
                before = route
                outcome = await inner(replace(call, route=route))
                if not isinstance(outcome, Failed) or not outcome.repeatable:
                    return outcome
                if outcome.code not in _HOPS and not (outcome.code == "timeout" and call.idempotent):
                    return outcome
            if outcome is not None:
                return outcome
            error = Unavailable(
                f"Agent {call.agent!r} has no route for {call.capability!r}. Add it again with agent3 add."
            )
            error.sent = False
            return failed_by(error)

        return handle
