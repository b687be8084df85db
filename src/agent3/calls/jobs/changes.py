"""Changes of jobs inside one process: wakes those who wait for one, and lets them share what they read.

It knows neither the database nor other processes; a change there is told to it by ``notify``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["Changes", "wait_until_set"]

T = TypeVar("T")


async def wait_until_set(event: asyncio.Event, seconds: float) -> bool:
    """Whether an event is set before the time is over."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Changes:
    """The waiting readers of all jobs. It belongs to the event loop it is used in."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._counts: dict[str, int] = {}
        """How often each job that is waited for has changed."""
        self._reads: dict[tuple[object, ...], asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def watch(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the job changes."""
        changed = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(changed)
        try:
            yield changed
        finally:
            self._waiting[job_id].discard(changed)
            if not self._waiting[job_id]:
                del self._waiting[job_id]
                self._counts.pop(job_id, None)

    def notify(self, job_id: str) -> None:
        """Wake those who wait for a job; without an id all of them, since notifications may have been missed."""
        for name in [job_id] if job_id else list(self._waiting):
            if name in self._waiting:
                self._counts[name] = self._counts.get(name, 0) + 1
                for changed in self._waiting[name]:
                    changed.set()

    async def read_once(self, job_id: str, what: object, read: Callable[[], Awaitable[T]]) -> T:
        """Read for all who ask for the same since the job last changed: a thousand may follow one job."""
        key = (job_id, what, self._counts.get(job_id, 0))
        if (reading := self._reads.get(key)) is None:
            reading = self._reads[key] = asyncio.ensure_future(read())
            reading.add_done_callback(lambda _: self._reads.pop(key, None))
        # Shielded: one reader that leaves must not take the result from the others.
        return await asyncio.shield(reading)
