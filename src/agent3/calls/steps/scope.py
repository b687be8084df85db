"""``scope``: gives the target ids of a conversation and of an order that are this caller's alone."""

from __future__ import annotations

from msgspec.structs import replace

from agent3.calls.step import Aim, Entered, Parts, Step
from agent3.model import Call, Route, traits_of

__all__ = ["Scope"]


class Scope(Step):
    """Derives ``context`` and ``key`` from the caller for all that leaves this process.

    What runs in it is told who calls, and gets the caller's own ids.

    Nothing is turned back on the way out: what a target answers is matched to its call, and never named by these ids.
    """

    name = "scope"

    def __init__(self, parts: Parts):
        self._scope = parts.scope
        self._connectors = parts.connectors

    def idle(self, aim: Aim) -> bool:
        return self._scope is None or all(self._stays(route) for route in aim.capability.routes)

    def enter(self, call: Call) -> Entered:
        context, key, scope = call.context, call.key, self._scope
        if (context is None and key is None) or scope is None or call.route is None or self._stays(call.route):
            return call
        if context is not None:
            context = scope.derive(call.principal, "context", context)
        if key is not None:
            key = scope.derive(call.principal, "key", f"{call.agent}\0{call.capability}\0{key}")
        return replace(call, context=context, key=key)

    def _stays(self, route: Route) -> bool:
        return traits_of(self._connectors.get(route.protocol)).in_process
