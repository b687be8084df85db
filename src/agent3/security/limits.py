"""How often and how much at once: a token bucket for each caller, a ceiling for each agent.

In this process only. A refusal says when to come back, and nobody is ever locked out for a burst.
"""

from __future__ import annotations

from collections import OrderedDict

from agent3.env import REAL, Env

__all__ = ["Ceiling", "RateLimiter"]


class RateLimiter:
    """A token bucket per key: ``burst`` at once, refilled at ``per_minute``. Keys are bounded; the idlest go first."""

    def __init__(self, per_minute: float, burst: int, *, env: Env = REAL, max_keys: int = 100_000):
        self._rate = per_minute / 60.0
        self._burst = float(max(burst, 1))
        self._env = env
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take one token. 0.0 when there was one, else the seconds until there will be."""
        if self._rate <= 0:
            return 0.0
        now = self._env.monotonic()
        tokens, at = self._buckets.get(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._rate)
        taken = tokens >= 1.0
        self._buckets[key] = (tokens - 1.0 if taken else tokens, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._max_keys:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - tokens) / self._rate


class Ceiling:
    """How many may run at once under one key."""

    def __init__(self, most: int):
        self._most = most
        self._running: dict[str, int] = {}

    def enter(self, key: str) -> bool:
        """Whether there was room; each True is answered by one ``leave``."""
        running = self._running.get(key, 0)
        if running >= self._most:
            return False
        self._running[key] = running + 1
        return True

    def leave(self, key: str) -> None:
        """Give the room back."""
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]
