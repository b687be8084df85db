"""Readiness: whether a gateway accepts new calls, and whether load balancers have noticed that it no longer does.

Load balancers probe ``/readyz`` at intervals and send calls in between. They take a stopping gateway out of their list
only after the next probe; until then it goes on answering, so that no call is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from agent3.env import REAL, Env
from agent3.errors import Agent3Error, Unavailable

__all__ = ["Probe", "Readiness"]

LONGEST = 15.0
"""Seconds that a stopping gateway waits at most to be noticed."""
_REGULAR = 3
"""Probes within half a minute that make a habit; a person who looks once is not waited for."""
_MARGIN = 0.25
"""Seconds for calls that were sent just before their sender noticed."""


_PROMPT = 0.05
"""Seconds that a page waits for a probe; after them the last verdict is told in its place."""
_FRESH = 5.0
"""Seconds for which a verdict counts, and for which the very first one is waited for."""


class Probe:
    """Asks something of the database, one question at a time, for pages that have to answer soon in every state.

    Under load a question may wait behind many others. Then the last verdict counts for a while.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]], env: Env = REAL):
        self._ask = ask
        self._env = env
        self._running: asyncio.Task[None] | None = None
        self._verdict: Agent3Error | None = None
        self._told: float | None = None

    async def check(self) -> None:
        """Return if all is well, as far as is known; the Agent3Error if not."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="probe")
        await asyncio.wait({self._running}, timeout=_PROMPT if self._told is not None else _FRESH)
        if self._told is None or self._env.monotonic() - self._told > _FRESH:
            raise Unavailable(f"The database has not answered for {_FRESH:g} s.")
        if self._verdict is not None:
            raise self._verdict

    async def _run(self) -> None:
        verdict: Agent3Error | None = None
        try:
            await self._ask()
        except Agent3Error as error:
            verdict = error
        finally:
            self._running = None
        self._verdict, self._told = verdict, self._env.monotonic()


class Readiness:
    """Records probes and their intervals, by the monotonic clock of the process."""

    def __init__(self, env: Env = REAL):
        self._env = env
        self._probes: deque[float] = deque(maxlen=16)
        self._stopped: float | None = None
        self._was_probed_since = False

    def note_probe(self) -> None:
        """A probe came."""
        if self._stopped is None:
            self._probes.append(self._env.monotonic())
        else:
            self._was_probed_since = True

    def stop(self) -> None:
        """Answer no from now on. Calling it again does not restart the wait."""
        if self._stopped is None:
            self._stopped = self._env.monotonic()

    @property
    def is_stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopped is not None

    def is_noticed(self) -> bool:
        """Whether everyone who probes regularly must know that it stops.

        That is so when twice the longest interval has passed and at least one probe was answered, or three times that
        interval without any. Without regular probes there is nobody to wait for.
        """
        stopped = self._stopped
        if stopped is None:
            return False
        recent = [probe for probe in self._probes if stopped - probe < 2 * LONGEST]
        enough = 0.0
        if len(recent) >= _REGULAR:
            interval = max(later - probe for probe, later in zip(recent, [*recent[1:], stopped], strict=True))
            enough = interval * (2 if self._was_probed_since else 3) + _MARGIN
        return self._env.monotonic() - stopped >= min(enough, LONGEST)
