"""Timeouts by the thousand: like ``asyncio.timeout``, for the price of an entry in a dict.

Every call has two of them, and hardly any ever expires. Timeouts of equal length expire in the order in which they
began, so one timer of the loop serves all of one length: it waits for the oldest and is set anew for the next.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

__all__ = ["Timeout", "Timeouts"]


class _Queue:
    """The running timeouts of one length in one loop, the oldest first."""

    __slots__ = ("loop", "running", "seconds", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float):
        self.loop = loop
        self.seconds = seconds
        self.running: dict[Timeout, float] = {}
        self.timer: asyncio.TimerHandle | None = None

    def add(self, one: Timeout) -> None:
        until = self.loop.time() + self.seconds
        self.running[one] = until
        if self.timer is None:
            self.timer = self.loop.call_at(until, self.look)

    def look(self) -> None:
        """Expire those whose time is over, and wait for the next."""
        self.timer = None
        now = self.loop.time()
        while self.running:
            oldest, until = next(iter(self.running.items()))
            if until > now:
                self.timer = self.loop.call_at(until, self.look)
                return
            del self.running[oldest]
            oldest.expire()


class Timeout:
    """``with`` this around what may take so long. TimeoutError when it took longer; ``expired`` says that it was us."""

    __slots__ = ("_before", "_queue", "_task", "expired")

    def __init__(self, queue: _Queue):
        self._queue = queue
        self._task: asyncio.Task[object] | None = None
        self._before = 0
        self.expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout runs inside a task")
        self._task, self._before = task, task.cancelling()
        self._queue.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._queue.running.pop(self, None)
        if not self.expired or self._task is None:
            return
        # Somebody else may have cancelled the task as well: then it stays cancelled.
        if self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """The time is over: interrupt the task."""
        self.expired = True
        if self._task is not None:
            self._task.cancel()


class Timeouts:
    """Where timeouts come from. Timers that nobody needs any more are not cancelled; they find nothing to do."""

    def __init__(self) -> None:
        self._queues: dict[tuple[asyncio.AbstractEventLoop, float], _Queue] = {}

    def after(self, seconds: float) -> Timeout:
        """A timeout of that length in the running loop."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get((loop, seconds))
        if queue is None:
            self._sweep()
            queue = self._queues[loop, seconds] = _Queue(loop, seconds)
        return Timeout(queue)

    def _sweep(self) -> None:
        """Forget lengths that are out of use: callers may name any."""
        if len(self._queues) >= 100:
            self._queues = {key: queue for key, queue in self._queues.items() if queue.running}
