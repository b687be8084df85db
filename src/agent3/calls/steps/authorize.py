"""``authorize``: asks the rules once, and leaves only the routes that they allow."""

from __future__ import annotations

from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Parts, Stage, Step
from agent3.errors import AccessError, CapabilityNotFound
from agent3.model import Call

__all__ = ["Authorize", "unknown"]


def unknown(agent: str, capability: str) -> CapabilityNotFound:
    """What a caller is told of a capability that is not there, and of one that it may not call."""
    return CapabilityNotFound(
        f"Agent {agent!r} has no capability {capability!r} that you may call. Use agent3_search to find one."
    )


class Authorize(Step):
    """Asks ``Access``. A cancel always passes: it only ends what is there."""

    name = "authorize"

    def __init__(self, parts: Parts):
        self.access = parts.access

    def idle(self, aim: Aim) -> bool:
        # A start that may go by every route needs no more looking at; the chain is compiled anew when rules change.
        routes = aim.capability.routes
        if aim.entry != "start" or aim.agent is None or not routes:
            return aim.entry == "cancel"
        return self.access.narrow(aim.principal, aim.agent.id, aim.capability.name, routes) is routes

    def bind(self, aim: Aim) -> Stage:
        return _Authorize(self, aim)


class _Authorize(Stage):
    def __init__(self, step: Authorize, aim: Aim):
        self._access = step.access
        self._starts = aim.entry == "start"
        # A start goes by the routes of the capability, so the rules are asked once for all its calls.
        self._routes = aim.capability.routes
        self._allowed = step.access.narrow(
            aim.principal, aim.agent.id if aim.agent else "", aim.capability.name, aim.capability.routes
        )

    def enter(self, call: Call) -> Entered:
        if call.entry == "cancel":
            return call
        if self._starts and call.routes is self._routes:
            wanted, allowed = self._routes, self._allowed
        else:
            # A conversation stays on its route, so that one is what it needs to be allowed.
            wanted = (call.route,) if not self._starts and call.route is not None else call.routes
            allowed = self._access.narrow(call.principal, call.agent, call.capability, wanted)
        if allowed is wanted:
            return call
        if not allowed:
            if self._access.shows(call.principal, call.agent, call.capability, wanted):
                text = f"{call.principal.id} may see {call.agent}.{call.capability} but not call it."
                return failed_by(AccessError(text))
            call.live.denied = "forbidden"  # for operators: its caller is told that it is not there
            return failed_by(unknown(call.agent, call.capability))
        return replace(call, routes=allowed)
