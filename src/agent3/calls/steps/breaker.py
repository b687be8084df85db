"""``breaker``: pauses a failing route for a while. The next route may be tried; an open circuit is not retried."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Left, Parts, Stage, Step
from agent3.errors import CircuitOpen
from agent3.model import Call, Failed, Outcome

__all__ = ["Breaker"]

_BREAKS = frozenset({"unavailable", "timeout", "malformed_response"})
"""Failures that are held against a route, if it was the target that was waited for."""


class Breaker(Step):
    """Asks and feeds the ``Breakers`` of the core, once for each attempt."""

    name = "breaker"

    def __init__(self, parts: Parts):
        self.breakers = parts.breakers

    def bind(self, aim: Aim) -> Stage:
        return _Breaker(self, aim)


class _Breaker(Stage):
    def __init__(self, step: Breaker, aim: Aim):
        self._breakers = step.breakers
        self._routes = aim.capability.routes  # held, so that no other route gets one of these ids
        self._keys = {id(route): route.key for route in self._routes}

    def enter(self, call: Call) -> Entered:
        call.live.route = call.route
        if (wait := self._breakers.refuse(self._key(call), call.id)) is not None:
            error = CircuitOpen(
                f"{call.agent} failed too often and is left alone for {wait:.0f} s. Try then, or use another agent.",
                retry_after=wait,
            )
            return replace(failed_by(error), sent=False, repeatable=True)
        call.live.asking = True
        return call

    def wait(self, call: Call) -> None:
        self._breakers.watch()

    def leave(self, call: Call, outcome: Outcome) -> Left:
        if type(outcome) is Failed and outcome.code in _BREAKS:
            self._breakers.missed(self._key(call), call, outcome.code)
        else:
            self._breakers.succeeded(self._key(call))
        return outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        if isinstance(error, asyncio.CancelledError):
            key = self._key(call)
            # A caller that goes away says nothing of the target; a deadline that it let pass does.
            if self._breakers.is_late(call):
                self._breakers.missed(key, call)
            else:
                self._breakers.abandoned(key, call.id)
        return error

    def _key(self, call: Call) -> str:
        route = call.route
        if route is None:
            return ""
        return self._keys.get(id(route)) or route.key
