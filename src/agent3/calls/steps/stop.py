"""``stop``: refuses calls of agents and clients that were stopped, and ends those that run."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Left, Parts, Step
from agent3.errors import AccessError
from agent3.model import Call, Done, Outcome

__all__ = ["Stop"]


class Stop(Step):
    """Asks ``Stops``. A cancel always passes: it only ends what is there."""

    name = "stop"
    for_waits = True

    def __init__(self, parts: Parts):
        self._stops = parts.stops
        self._gateway = parts.gateway

    def idle(self, aim: Aim) -> bool:
        return aim.entry == "cancel" or not self._gateway

    def enter(self, call: Call) -> Entered:
        stops = self._stops
        if (not stops.agents and not stops.clients) or call.entry == "cancel":
            return call
        if stops.concerns(call):
            return failed_by(AccessError(stops.explain(call)))
        # What stands in is called too.
        kept = tuple(one for one in call.routes if one.stand_in is None or one.stand_in.agent not in stops.agents)
        return call if len(kept) == len(call.routes) else replace(call, routes=kept)

    def wait(self, call: Call) -> None:
        if call.entry != "cancel":
            self._stops.watch(call)

    def leave(self, call: Call, outcome: Outcome) -> Left:
        # What is done is done, also if it was to be ended.
        if self._stops.forget(call) and not isinstance(outcome, Done):
            return failed_by(AccessError(self._stops.explain(call)))
        return outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        if not self._stops.forget(call) or not isinstance(error, asyncio.CancelledError):
            return error
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        return failed_by(AccessError(self._stops.explain(call)))
