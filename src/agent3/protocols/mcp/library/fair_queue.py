"""A fair queue for a busy server: so many calls at once, and those that wait are served in turn by caller, not by call.

One caller with a thousand calls and one with a single call each get every second place. Waiting is bounded in number
and in time; who is turned away is told when to come back. A queue belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from agent3.env import REAL, Env
from agent3.errors import RateLimited, SetupError

__all__ = ["FairQueue"]

_held: ContextVar[tuple[FairQueue, ...]] = ContextVar("agent3_places_held", default=())
"""Queues in which the current work has its place already: what it calls in turn must not wait for itself."""


class FairQueue:
    """At most ``most`` at once, ``waiting`` in the queue, none there for longer than ``patience`` seconds."""

    def __init__(self, most: int, *, waiting: int = 1_000, patience: float = 30.0, env: Env = REAL):
        if most < 1 or waiting < 0:
            raise SetupError(f"At least 1 call must be able to run and 0 to wait, got {most} and {waiting}.")
        self._most = most
        self._most_waiting = waiting
        self._patience = patience
        self._env = env
        self._running = 0
        self._waiting = 0
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._usual_seconds = 0.0

    @asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[None]:
        """One place for the length of a block; RateLimited if none can be had."""
        if self in _held.get():
            yield
            return
        if self._running < self._most and not self._waiting:
            self._running += 1
        else:
            await self._wait(caller)
        token = _held.set((*_held.get(), self))
        began = self._env.monotonic()
        try:
            yield
        finally:
            _held.reset(token)
            self._usual_seconds += 0.1 * (self._env.monotonic() - began - self._usual_seconds)
            self._release()

    async def _wait(self, caller: str) -> None:
        if self._waiting >= self._most_waiting:
            # Turn away the latest call of the caller that has most in the queue; if that is this one, then this.
            longest = max(self._queues, key=lambda name: len(self._queues[name]), default=caller)
            if len(self._queues.get(caller, ())) + 1 >= len(self._queues.get(longest, ())):
                raise self._busy_error()
            latest = self._queues[longest].pop()
            self._waiting -= 1
            if not latest.done():
                latest.set_exception(self._busy_error())
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, deque()).append(place)
        self._waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await place
        except TimeoutError:
            self._leave_queue(caller, place)
            raise self._busy_error() from None
        except BaseException:
            self._leave_queue(caller, place)
            raise

    def _release(self) -> None:
        """Hand the place to the next caller in the round, to its oldest call."""
        while self._queues:
            caller, queue = next(iter(self._queues.items()))
            place = queue.popleft()
            self._waiting -= 1
            self._queues.move_to_end(caller)
            if not queue:
                del self._queues[caller]
            if not place.done():
                place.set_result(None)
                return
        self._running -= 1

    def _leave_queue(self, caller: str, place: asyncio.Future[None]) -> None:
        queue = self._queues.get(caller)
        if queue is not None and place in queue:
            queue.remove(place)
            self._waiting -= 1
            if not queue:
                del self._queues[caller]
        elif place.done() and not place.cancelled() and place.exception() is None:
            self._release()  # it was handed over at this very moment, so it goes on to the next

    def _busy_error(self) -> RateLimited:
        wait = max(1.0, self._usual_seconds * (self._waiting + 1) / self._most)
        text = (
            f"The server is busy: {self._most} calls are running and {self._waiting} waiting. Try again in "
            f"{wait:.0f} s."
        )
        return RateLimited(text, retry_after=wait)
