"""``attempt``: one try: its own time, every exception turned into an outcome, and whether it may be repeated.

It is the only step that saw the try itself, so it alone judges whether it may be repeated; the others read its verdict.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from agent3 import failpoints
from agent3.calls.outcomes import failed_by, failed_by_any
from agent3.calls.step import Entered, Left, Parts, Step
from agent3.calls.steps.deadline import Timeouts, timed_out
from agent3.errors import Agent3Error, Unavailable
from agent3.model import Call, Done, Failed, Outcome, Working
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Number
from agent3.security.sanitize import clean_outcome
from agent3.security.sensitive import find_sensitive

__all__ = ["Attempt"]

log = logger("calls")


class Attempt(Step):
    """Counts, times and judges each try."""

    name = "attempt"

    def __init__(self, parts: Parts):
        self._seconds = parts.settings.calls.attempt_timeout
        self._attempts = parts.metrics.attempts
        self._answered: dict[str, Number] = {}
        """By protocol where an attempt that is Done is counted."""
        self._timeouts = Timeouts()

    def enter(self, call: Call) -> Entered:
        live = call.live
        live.attempts += 1
        live.seen = live.content
        return call if failpoints.armed is None else self._fail_before(call)

    def wait(self, call: Call) -> None:
        live = call.live
        if live.attempt is None:
            live.attempt = self._timeouts.start(live.capability.timeout or self._seconds)

    def leave(self, call: Call, outcome: Outcome) -> Left:
        live = call.live
        if live.attempt is not None:
            live.attempt.stop()
            live.attempt = None
        if failpoints.armed is not None:
            return self._fail_after(call, outcome)
        if type(outcome) is Done:
            protocol = "" if call.route is None else call.route.protocol
            answered = self._answered.get(protocol)
            if answered is None:
                answered = self._answered[protocol] = self._attempts.series((protocol, "answered"))
            answered.inc()
            return outcome
        return self._judge(call, outcome)

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        live, late = call.live, False
        if live.attempt is not None:
            late = live.attempt.stop(error)
            live.attempt = None
        if late:
            outcome = failed_by(timed_out(call, live.capability.timeout or self._seconds))
        elif isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is None or task.cancelling() > 0:
                return error
            # Nobody cancelled this task: something that the target waited for was cancelled.
            outcome = Failed("target_failed", f"{call.agent} failed: an operation it waited for was cancelled.")
        elif isinstance(error, KeyboardInterrupt | GeneratorExit):
            return error  # somebody stops the gateway, or the coroutine is being thrown away
        else:
            # An error of ours says all in its message; of any other only the stack says where it comes from.
            known = isinstance(error, (Agent3Error, TimeoutError))
            level = logging.DEBUG if known else logging.ERROR
            # A traceback may quote what the function was given.
            told = None if find_sensitive(call.live.capability) is not None else error
            log.log(level, "%s/%s raised in call %s", call.agent, call.capability, call.id, exc_info=told)
            cleaned = clean_outcome(failed_by_any(error, call.agent))
            assert isinstance(cleaned, Failed)
            outcome = cleaned
        return self._judge(call, outcome)

    def _judge(self, call: Call, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Failed):
            live, route = call.live, call.route
            live.unsent += not outcome.sent
            # Doing it again cannot do it twice: it was never sent, is idempotent by nature, or carries a key. A key
            # helps only where the route says that its target gets it and honours it.
            harmless = not outcome.sent or call.idempotent
            if not harmless and call.key is not None and route is not None:
                harmless = bool(route.meta.get("keys"))
            # What the caller has seen of the result cannot be taken back.
            repeatable = harmless and live.content == live.seen
            outcome = replace(outcome, repeatable=repeatable, asked=outcome.sent)
            word = outcome.code
        else:
            word = "working" if isinstance(outcome, Working) else "answered"
        self._attempts.inc((call.route.protocol if call.route else "", word))
        return outcome

    async def _fail_before(self, call: Call) -> Call | Outcome:
        """The failpoint for what is cut off before it was sent."""
        try:
            await failpoints.reach("call.before_send", Unavailable)
        except Unavailable as error:
            error.sent = False
            return self._judge(call, failed_by(error))
        return call

    async def _fail_after(self, call: Call, outcome: Outcome) -> Outcome:
        """The failpoint for what is cut off when it was done."""
        try:
            await failpoints.reach("call.after_send", Unavailable)
        except Unavailable as error:
            outcome = failed_by(error)
        return self._judge(call, outcome)
