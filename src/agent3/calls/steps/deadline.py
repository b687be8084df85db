"""``deadline``: bounds all attempts and routes of a turn together."""

from __future__ import annotations

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Entered, Left, Parts, Step
from agent3.calls.timeouts import Timeouts
from agent3.errors import CallTimeout
from agent3.model import Call, Outcome

__all__ = ["Deadline", "timed_out"]


def timed_out(call: Call, seconds: float) -> CallTimeout:
    """What a caller is told of a target that took too long."""
    return CallTimeout(
        f"{call.agent}/{call.capability} did not answer within {seconds:g} s. Give it more time (timeout) or try later."
    )


class Deadline(Step):
    """Sets ``expires``, which connectors and retries read, and cancels what is still running then."""

    name = "deadline"
    for_waits = True

    def __init__(self, parts: Parts):
        self._env = parts.env
        self._seconds = parts.settings.calls.timeout
        self._timeouts = Timeouts()

    def enter(self, call: Call) -> Entered:
        call.live.expires = self._env.monotonic() + (self._seconds if call.timeout is None else call.timeout)
        return call

    def wait(self, call: Call) -> None:
        live = call.live
        if live.deadline is None:
            assert live.expires is not None
            seconds = self._seconds if call.timeout is None else call.timeout
            # Almost always no time has passed yet; the whole length shares its queue with all others of that length.
            left = live.expires - self._env.monotonic()
            live.deadline = self._timeouts.start(seconds if seconds - left < 0.001 else max(0.0, left))

    def leave(self, call: Call, outcome: Outcome) -> Left:
        live = call.live
        if live.deadline is not None:
            live.deadline.stop()
            live.deadline = None
        return outcome

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        live = call.live
        if live.deadline is not None:
            timer, live.deadline = live.deadline, None
            if timer.stop(error):
                return failed_by(timed_out(call, self._seconds if call.timeout is None else call.timeout))
        return error
