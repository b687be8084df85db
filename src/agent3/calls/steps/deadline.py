"""``deadline``: bounds all attempts and routes of a turn together.

``Timeouts`` are like ``asyncio.timeout``, for the price of an entry in a dict. A timer of the loop costs more than the
rest of a short call, and nearly all of them are stopped before they ring. So timeouts of one length share a queue: they
end in the order in which they began, and one timer rings for the oldest.
"""

from __future__ import annotations

import asyncio

from agent3.calls.outcomes import failed_by
from agent3.calls.step import Entered, Left, Parts, Step
from agent3.errors import CallTimeout
from agent3.model import Call, Outcome

__all__ = ["Deadline", "Timeout", "Timeouts", "timed_out"]


class _Queue:
    """Timeouts of one length, the oldest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float):
        self.loop = loop
        self.seconds = seconds
        self.running: dict[Timeout, float] = {}
        self.timer: asyncio.TimerHandle | None = None

    def add(self, timeout: Timeout) -> None:
        until = self.loop.time() + self.seconds
        self.running[timeout] = until
        if self.timer is None:
            self.timer = self.loop.call_at(until, self.ring)

    def ring(self) -> None:
        """Expire those whose time is over, and wait for the next."""
        self.timer = None
        now = self.loop.time()
        while self.running:
            oldest, until = next(iter(self.running.items()))
            if until > now:
                self.timer = self.loop.call_at(until, self.ring)
                return
            del self.running[oldest]
            oldest.expire()


class Timeout:
    """A running timeout of the current task. It cancels the task when its time is over, until ``stop`` is called."""

    __slots__ = ("_cancelling", "_queue", "_task", "expired")

    def __init__(self, queue: _Queue):
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout runs inside a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._queue = queue
        self.expired = False
        queue.add(self)

    def stop(self, error: BaseException | None = None) -> bool:
        """End it. Whether ``error`` is the cancellation that it caused, and nothing else's."""
        self._queue.running.pop(self, None)
        if not self.expired:
            return False
        # The task may have been cancelled from elsewhere as well: then it stays cancelled.
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)

    def expire(self) -> None:
        """The time is over: interrupt the task."""
        self.expired = True
        self._task.cancel()


class Timeouts:
    """Where timeouts come from. A timer that is no longer needed is not cancelled; it finds nothing to do."""

    def __init__(self) -> None:
        self._queues: dict[tuple[asyncio.AbstractEventLoop, float], _Queue] = {}

    def start(self, seconds: float) -> Timeout:
        """A timeout of that length for the current task."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get((loop, seconds))
        if queue is None:
            # Callers may name any length, so lengths that are out of use are forgotten.
            if len(self._queues) >= 100:
                self._queues = {key: queue for key, queue in self._queues.items() if queue.running}
            queue = self._queues[loop, seconds] = _Queue(loop, seconds)
        return Timeout(queue)


def timed_out(call: Call, seconds: float) -> CallTimeout:
    """What a caller is told of a target that took too long."""
    waited = max(seconds, 0.001)
    return CallTimeout(
        f"{call.agent}/{call.capability} did not answer within {waited:g} s. Increase timeout or try later."
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
