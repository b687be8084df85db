"""Readiness: whether a gateway accepts new calls, and whether load balancers have noticed that it no longer does.

Load balancers probe ``/readyz`` at intervals and send calls in between. They take a stopping gateway out of their list
only after the next probe; until then it goes on answering, so that no call is refused.
"""

from __future__ import annotations

from collections import deque

from agent3.env import REAL, Env

__all__ = ["Readiness"]

LONGEST = 15.0
"""Seconds that a stopping gateway waits at most to be noticed."""
_REGULAR = 3
"""Probes within half a minute that make a habit; a person who looks once is not waited for."""
_MARGIN = 0.25
"""Seconds for calls that were sent just before their sender noticed."""


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
