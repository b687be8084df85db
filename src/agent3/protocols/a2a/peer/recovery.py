"""Finds tasks at remote agents again whose turn was cut off, in this process or in an earlier one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from agent3.errors import StorageError
from agent3.model import Call
from agent3.observe.logs import get as logger

__all__ = ["KEPT_TASK", "LostTasks", "TaskKeeper"]

log = logger("a2a.client")

KEPT_TASK: Final = "a2a.task"
"""The name under which a job keeps the id of the task it started."""
_KEEP_AFTER: Final = 0.2
"""Seconds after which a task is worth a write."""
_MOST_LOST: Final = 10_000


class LostTasks:
    """Tasks that ran out of time, by the message that started them: they go on, and a repeated call finds them."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, str] = OrderedDict()

    def add(self, message: str, task: str) -> None:
        """Remember a task; the oldest ones beyond the bound are forgotten."""
        self._tasks[message] = task
        while len(self._tasks) > _MOST_LOST:
            self._tasks.popitem(last=False)

    def find(self, message: str) -> str | None:
        """The task that a message has already started, if it is lost."""
        return self._tasks.get(message)

    def discard(self, message: str) -> None:
        """The task was found again, or is gone."""
        self._tasks.pop(message, None)


class TaskKeeper:
    """Keeps the id of a task with its job, so that another process can go on with it.

    An async context around the time that a task is followed. A task that ends within a moment is not written.
    """

    def __init__(self, call: Call):
        self._live = call.live.now()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> TaskKeeper:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def keep_soon(self, task: str) -> None:
        """Write the id if the task is still running in a moment. Only the first call counts: ids do not change."""
        live = self._live
        if self._timer is not None or live.kept.get(KEPT_TASK) == task:
            return
        loop = asyncio.get_running_loop()

        async def write() -> None:
            try:
                await live.keep(KEPT_TASK, task)
            except StorageError as error:
                log.warning("a task id could not be stored and would be lost with this process: %s", error)

        def begin() -> None:
            self._writing = loop.create_task(write())

        self._timer = loop.call_later(_KEEP_AFTER, begin)
