"""Who may run when a server is busy: so many at once, and those who wait take turns by caller, not by call.

One caller with a thousand calls and one with a single call each get every second place. Waiting is bounded in number
and in time; whoever is turned away is told when to come back. It belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from agent3.env import REAL, Env
from agent3.errors import RateLimited, SetupError

__all__ = ["Turns"]

_held: ContextVar[tuple[Turns, ...]] = ContextVar("agent3_turns_held", default=())
"""Where the work at hand has its place already: what it calls in turn must not wait for itself."""


class Turns:
    """At most ``most`` at once, ``waiting`` in the queue, none there for longer than ``patience`` seconds."""

    def __init__(self, most: int, *, waiting: int = 1_000, patience: float = 30.0, env: Env = REAL):
        if most < 1 or waiting < 0:
            raise SetupError(f"At least 1 must be able to run and 0 to wait, got {most} and {waiting}.")
        self._most = most
        self._room = waiting
        self._patience = patience
        self._env = env
        self._running = 0
        self._queued = 0
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._usual = 0.0

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """One place, for as long as the block runs; RateLimited where there is none to be had."""
        if self in _held.get():
            yield
            return
        await self._enter(who)
        token = _held.set((*_held.get(), self))
        began = self._env.monotonic()
        try:
            yield
        finally:
            _held.reset(token)
            self._usual += 0.1 * (self._env.monotonic() - began - self._usual)
            self._leave()

    async def _enter(self, who: str) -> None:
        if self._running < self._most and not self._queued:
            self._running += 1
            return
        if self._queued >= self._room:
            self._make_room(who)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(who, deque()).append(place)
        self._queued += 1
        try:
            async with asyncio.timeout(self._patience):
                await place
        except TimeoutError:
            self._give_up(who, place)
            raise self._busy() from None
        except BaseException:
            self._give_up(who, place)
            raise

    def _leave(self) -> None:
        """Hand the place to the next caller in the round, to its oldest call."""
        while self._queues:
            who, queue = next(iter(self._queues.items()))
            place = queue.popleft()
            self._queued -= 1
            self._queues.move_to_end(who)
            if not queue:
                del self._queues[who]
            if not place.done():
                place.set_result(None)
                return
        self._running -= 1

    def _give_up(self, who: str, place: asyncio.Future[None]) -> None:
        """Leave the queue; a place that was handed over at this very moment goes on to the next."""
        queue = self._queues.get(who)
        if queue is not None and place in queue:
            queue.remove(place)
            self._queued -= 1
            if not queue:
                del self._queues[who]
        elif place.done() and not place.cancelled() and place.exception() is None:
            self._leave()

    def _make_room(self, who: str) -> None:
        """Turn away the latest of whoever has most in the queue; if that is this caller, then this one."""
        longest = max(self._queues, key=lambda one: len(self._queues[one]), default=who)
        mine = len(self._queues.get(who, ()))
        if mine + 1 >= len(self._queues.get(longest, ())):
            raise self._busy()
        place = self._queues[longest].pop()
        self._queued -= 1
        if not place.done():
            place.set_exception(self._busy())

    def _busy(self) -> RateLimited:
        wait = max(1.0, self._usual * (self._queued + 1) / self._most)
        text = f"The server runs {self._most} calls at once and {self._queued} wait. Try again in {wait:.0f} s."
        return RateLimited(text, retry_after=wait)
