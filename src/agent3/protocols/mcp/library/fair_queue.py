"""A fair queue for a busy server: so many calls at once, and those that wait are served in turn by caller, not by call.

One caller with a thousand calls and one with a single call each get every second place. Waiting is bounded in number
and in time; who is turned away is told when to come back. A queue belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from agent3.env import REAL, Env
from agent3.errors import RateLimited, SetupError
from agent3.security.fair_slots import FairSlots

__all__ = ["FairQueue"]

_held: ContextVar[tuple[FairQueue, ...]] = ContextVar("agent3_places_held", default=())
"""Queues in which the current work has its place already: what it calls in turn must not wait for itself."""


class FairQueue:
    """At most ``most`` at once, ``waiting`` in the queue, none there for longer than ``patience`` seconds."""

    def __init__(self, most: int, *, waiting: int = 1_000, patience: float = 30.0, env: Env = REAL):
        if most < 1 or waiting < 0:
            raise SetupError(f"At least 1 call must be able to run and 0 to wait, got {most} and {waiting}.")
        self._most = most
        self._slots = FairSlots(most, waiting, refuse=self._busy_error, replaces=True)
        self._patience = patience
        self._env = env
        self._usual_seconds = 0.0

    @asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[None]:
        """One place for the length of a block; RateLimited if none can be had."""
        if self in _held.get():
            yield
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._slots.acquire(caller)
        except TimeoutError:
            raise self._busy_error(self._slots.waiting) from None
        token = _held.set((*_held.get(), self))
        began = self._env.monotonic()
        try:
            yield
        finally:
            _held.reset(token)
            self._usual_seconds += 0.1 * (self._env.monotonic() - began - self._usual_seconds)
            self._slots.release()

    def _busy_error(self, waiting: int, mine: int = 0) -> RateLimited:
        wait = max(1.0, self._usual_seconds * (waiting + 1) / self._most)
        text = f"The server is busy: {self._most} calls are running and {waiting} waiting. Try again in {wait:.0f} s."
        return RateLimited(text, retry_after=wait)
