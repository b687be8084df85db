"""``arguments``: asks the rules again where they look at the arguments of a call, once these are read and valid."""

from __future__ import annotations

from msgspec.structs import replace

from agent3.calls.approvals import find_request
from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Parts, Step
from agent3.errors import AccessError
from agent3.model import Call, Capability, Principal

__all__ = ["Arguments"]


class Arguments(Step):
    """Asks ``Access`` with what the call was given. ``authorize`` has asked without."""

    name = "arguments"

    def __init__(self, parts: Parts):
        self._access = parts.access

    def idle(self, aim: Aim) -> bool:
        if aim.entry not in ("start", "answer"):
            return True
        return not self.matter(aim.principal, aim.agent.id if aim.agent else "", aim.capability)

    def matter(self, principal: Principal, agent: str, capability: Capability) -> bool:
        """Whether what a caller may do with a capability depends on its arguments."""
        return self._access.looks_at_arguments(principal, agent, capability.name, capability.routes)

    def enter(self, call: Call) -> Entered:
        waited = find_request(call.state) if call.entry == "answer" else None
        if call.entry != "start" and waited is None:
            return call
        given = call.input if waited is None else waited.input
        allowed = self._access.narrow(call.principal, call.agent, call.capability, call.routes, given)
        if allowed is call.routes:
            return call
        if not allowed:
            text = f"{call.principal.id} may not call {call.agent}.{call.capability} with these arguments."
            return failed_by(AccessError(text))
        return replace(call, routes=allowed)
