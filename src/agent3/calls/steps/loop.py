"""``loop``: a capability does not call itself, by however many others, and calls are nested only so deep.

What is sent while a call runs carries the marks of the calls that it is made inside of; see ``security.via``.
"""

from __future__ import annotations

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Left, Parts, Stage, Step
from agent3.errors import LoopDetected
from agent3.model import Call, Outcome
from agent3.security import via

__all__ = ["Loop"]


class Loop(Step):
    """Refuses a call that is already under way further out, and marks what this one does. A cancel always passes."""

    name = "loop"

    def __init__(self, parts: Parts):
        self.gateway = parts.gateway

    def idle(self, aim: Aim) -> bool:
        # In a script, which is no gateway, a function may well call itself; it only carries on what it was given.
        return aim.entry == "cancel" or aim.agent is None or not self.gateway

    def bind(self, aim: Aim) -> Stage:
        return _Loop(via.mark_of(self.gateway, aim.agent.id if aim.agent else "", aim.capability.name))


class _Loop(Stage):
    def __init__(self, mark: str):
        self._mark = mark
        self._alone = (mark,)

    def enter(self, call: Call) -> Entered:
        path = call.path
        if not path:
            via.set_inside(self._alone)
            return call
        try:
            via.check_calls(path, self._mark)
        except LoopDetected as error:
            return failed_by(error)
        via.set_inside((*path, self._mark))
        return call

    # Set rather than reset: what was entered in one context may be left in another.

    def leave(self, call: Call, outcome: Outcome) -> Left:
        via.set_inside(call.path)
        return outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        via.set_inside(call.path)
        return error
