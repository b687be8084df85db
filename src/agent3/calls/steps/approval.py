"""``approval``: lets a call that needs somebody's yes pause until it is there.

No step waits for a person: the turn ends with a question that others have to answer, and the decision is the next turn.
What was approved is what runs: the input is kept with the question, and checked again.
"""

from __future__ import annotations

from msgspec.structs import replace

from agent3 import schema
from agent3.calls.approvals import QUESTION, Approvals, Request, find_request
from agent3.calls.outcomes import failed_by
from agent3.calls.step import Aim, Entered, Parts, Stage, Step
from agent3.errors import AccessError, Agent3Error, Declined, NotApproved
from agent3.model import Call, Failed, Outcome
from agent3.security.arguments import fits, translate
from agent3.security.sensitive import find_sensitive

__all__ = ["Approval"]


class Approval(Step):
    """Asks ``Approvals`` of starts, and of turns that come back to such a question."""

    name = "approval"

    def __init__(self, parts: Parts):
        self.approvals = parts.approvals

    def idle(self, aim: Aim) -> bool:
        if aim.entry == "start":
            return not self.approvals.match(aim.principal, aim.agent.id if aim.agent else "", aim.capability)
        return aim.entry != "answer"

    def bind(self, aim: Aim) -> Stage:
        return _Approval(self.approvals, aim)


class _Approval(Stage):
    def __init__(self, approvals: Approvals, aim: Aim):
        self._approvals = approvals
        # Under the names of what may stand in for it, too.
        stand_ins = [route.stand_in.input for route in aim.capability.routes if route.stand_in is not None]
        self._names: list[dict[str, str]] = [{}, *stand_ins]
        self._sensitive = find_sensitive(aim.capability)
        self._rules = approvals.match(aim.principal, aim.agent.id if aim.agent else "", aim.capability)

    def enter(self, call: Call) -> Entered:
        if call.entry == "answer" and (request := find_request(call.state)) is not None:
            return self._return(call, request)
        if call.entry != "start":
            return call
        for rule in self._rules:
            # Of arguments that cannot be judged nobody can say that they need no approval.
            if all(fits(rule.arguments, translate(call.input, names)) is False for names in self._names):
                continue
            if not call.live.can_pause:
                text = f"{call.agent}.{call.capability} needs approval, which is not possible here."
                return failed_by(AccessError(f"{text} Call it as a capability of its agent."))
            return self._approvals.ask(rule, call, self._sensitive)
        return call

    async def _return(self, call: Call, request: Request) -> Call | Outcome:
        """The turn after the question. What counts is what was decided, whoever answers and whatever the answer is."""
        answer = call.answers.get(QUESTION)
        status, who, reason = await self._approvals.read_status(request)
        if status == "waiting" and answer is not None:
            if answer.action != "accept" or (request.itself and answer.data is not True):
                await self._approvals.decide_own(request, call, approve=False)
                return failed_by(Declined(f"{call.agent}: the call was dropped before it was approved."))
            if request.itself and await self._approvals.decide_own(request, call, approve=True):
                return self._start(call, request)
            status, who, reason = await self._approvals.read_status(request)
        if status == "waiting":
            return self._approvals.ask_again(request, call, self._sensitive)
        if status == "approved":
            return self._start(call, request)
        why = f": {reason}" if reason else "."
        text = f"denied by {who or 'an approver'}{why}" if status == "denied" else "it was not approved in time."
        return failed_by(NotApproved(f"{call.agent}.{call.capability} was not done: {text}"))

    def _start(self, call: Call, request: Request) -> Call | Failed:
        definition = call.live.capability.input_schema
        if definition and request.input is not None:
            try:  # the capability may have changed since it was asked for
                schema.compile(definition).check(request.input)
            except Agent3Error as error:
                return failed_by(error)
        route = call.route or (call.routes[0] if len(call.routes) == 1 else None)
        # Nothing of this turn goes along: what is said now was not there when it was approved.
        first = replace(call, entry="start", input=request.input, state=None, questions=(), answers={}, reply=())
        return replace(first, route=route)
