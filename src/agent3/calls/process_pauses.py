"""Whether this process ran at all: one that was stopped, suspended or starved cannot blame others for silence.

It looks at the loop's clock twice a second; a gap means that nobody was there to hear an answer. It knows no calls.
"""

from __future__ import annotations

import asyncio

from agent3.env import Env
from agent3.observe.logs import get as logger

__all__ = ["Wakefulness"]

log = logger("calls")

EVERY = 0.5
ASLEEP = 2.0
"""Seconds beyond the usual after which the process was away, and not merely busy."""


class Wakefulness:
    """Notices, in the loop that it is used in, when the process was away. ``woke`` is by the ``Env``'s steady clock."""

    def __init__(self, env: Env):
        self._env = env
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen = 0.0
        self.woke = float("-inf")

    def watch(self) -> None:
        """Look from now on, in the running loop and for as long as it runs. Saying so again costs next to nothing."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._seen = loop, loop.time()
            loop.call_later(EVERY, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:  # its calls have moved to another loop
            return
        away = loop.time() - self._seen - EVERY
        if away > ASLEEP:
            self.woke = self._env.monotonic()
            log.warning("this process did not run for %.0f s; what failed meanwhile is not held against anybody", away)
        self._seen = loop.time()
        loop.call_later(EVERY, self._look, loop)
