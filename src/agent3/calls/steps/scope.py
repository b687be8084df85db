"""``scope``: gives the target ids of a conversation and of an order that are this caller's alone."""

from __future__ import annotations

from msgspec.structs import replace

from agent3.calls.step import Aim, Entered, Parts, Step
from agent3.model import Call

__all__ = ["Scope"]

_HERE = "local"
"""The protocol of functions of this process. They are told who calls, and the caller's own words."""


class Scope(Step):
    """Derives ``context`` and ``key`` from the caller for all that leaves this process.

    Nothing is turned back on the way out: what a target answers is matched to its call, and never named by these ids.
    """

    name = "scope"

    def __init__(self, parts: Parts):
        self._scope = parts.scope

    def idle(self, aim: Aim) -> bool:
        return self._scope is None or all(route.protocol == _HERE for route in aim.capability.routes)

    def enter(self, call: Call) -> Entered:
        context, key, scope = call.context, call.key, self._scope
        if (context is None and key is None) or scope is None or call.route is None or call.route.protocol == _HERE:
            return call
        if context is not None:
            context = scope.derive(call.principal, "context", context)
        if key is not None:
            key = scope.derive(call.principal, "key", f"{call.agent}\0{call.capability}\0{key}")
        return replace(call, context=context, key=key)
