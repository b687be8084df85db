"""Readiness: whether a gateway wants new calls, and whether those who ask have heard that it no longer does.

Load balancers ask ``/readyz`` every so often and send calls in between. A gateway that stops is taken out of their list
only when they have asked again; until then it goes on answering, so that no call meets a closed door.
"""

from __future__ import annotations

from collections import deque

from agent3.env import REAL, Env

__all__ = ["Readiness"]

LONGEST = 15.0
"""Seconds that a gateway waits at most for those who ask to hear that it stops."""
_REGULAR = 3
"""Questions within half a minute that make a habit; a person who looks once is not waited for."""
_MARGIN = 0.25
"""Seconds for calls that were sent just before their sender heard it."""


class Readiness:
    """Notes who asks, and how often. All times are of the process's own steady clock."""

    def __init__(self, env: Env = REAL):
        self._env = env
        self._asked: deque[float] = deque(maxlen=16)
        self._stopping: float | None = None
        self._told = 0.0

    def asked(self) -> None:
        """Somebody asks."""
        now = self._env.monotonic()
        if self._stopping is None:
            self._asked.append(now)
        elif not self._told:
            self._told = now

    def stop(self) -> None:
        """From now on the answer is no; asked again, it stays when it began."""
        if self._stopping is None:
            self._stopping = self._env.monotonic()

    @property
    def stopping(self) -> bool:
        """Whether the answer is no for good."""
        return self._stopping is not None

    def heard(self) -> bool:
        """Whether all who ask regularly know it: twice their longest pause has passed, and one at least was told."""
        if self._stopping is None:
            return False
        since = self._env.monotonic() - self._stopping
        pause = self._pause()
        enough = pause * (2 if self._told else 3) + _MARGIN if pause is not None else 0.0
        return since >= min(enough, LONGEST)

    def _pause(self) -> float | None:
        """The longest pause between two of the latest questions; None where nobody asks regularly."""
        assert self._stopping is not None
        recent = [one for one in self._asked if self._stopping - one < 2 * LONGEST]
        if len(recent) < _REGULAR:
            return None
        return max(later - one for one, later in zip(recent, [*recent[1:], self._stopping], strict=True))
