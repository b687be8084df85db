"""Timeouts by the thousand: like ``asyncio.timeout``, for the price of an entry in a dict.

A timer of the loop costs more than the rest of a short call, and nearly all of them are stopped before they ring. So
timeouts of one length share a queue: they end in the order in which they began, and one timer rings for the oldest.
"""

from __future__ import annotations

import asyncio

__all__ = ["Timeout", "Timeouts"]


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
