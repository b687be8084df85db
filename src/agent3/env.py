"""Clock, ids and randomness, in one place that a test can control.

Everything that would differ between two runs comes from an ``Env``, so that a seeded one replays a run. It knows
nothing of storage or calls.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

__all__ = ["REAL", "Env", "SeededEnv"]

_AT_ONCE = 256

_tails: list[str] = []
"""The random parts of the next ids: the system is asked for many at once, since asking costs more than an id."""

if hasattr(os, "register_at_fork"):  # otherwise a forked process would use the same ids as its parent
    os.register_at_fork(after_in_child=_tails.clear)


@dataclass(slots=True)
class Env:
    """The real world: wall clock, monotonic clock, and the operating system's randomness."""

    chance: random.Random = field(default_factory=random.SystemRandom)

    if TYPE_CHECKING:

        def now(self) -> float:
            """Seconds since 1970, for what is stored or shown."""

        def monotonic(self) -> float:
            """Seconds that never jump, for every timeout and every duration."""

    else:  # every call asks several times: the clock itself, without a frame around it
        now = staticmethod(time.time)
        monotonic = staticmethod(time.monotonic)

    def id(self, prefix: str = "") -> str:
        """A new id that sorts by time: 48 bits of milliseconds and 80 random bits, in 32 hexadecimal digits.

        That is also the form of a W3C trace id, so a call that starts a trace uses its own id for it.
        """
        return f"{prefix}{int(self.now() * 1000):012x}{self._tail()}"

    def _tail(self) -> str:
        """The random part of an id."""
        while True:
            try:
                return _tails.pop()
            except IndexError:  # also when another thread took the last one
                _tails.extend(os.urandom(10 * _AT_ONCE).hex(" ", 10).split())

    def random_bytes(self, count: int) -> bytes:
        """Unpredictable bytes."""
        return os.urandom(count)

    def jitter(self, ceiling: float) -> float:
        """A uniform share of ``ceiling`` (full jitter)."""
        return self.chance.uniform(0.0, ceiling)


@dataclass(slots=True)
class SeededEnv(Env):
    """An environment that repeats itself: the clock moves only by ``advance``, every id follows from the seed."""

    seed: int = 0
    time: float = 1_700_000_000.0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - repeatable on purpose

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def random_bytes(self, count: int) -> bytes:
        return self.chance.randbytes(count)

    def _tail(self) -> str:
        return self.random_bytes(10).hex()

    def advance(self, seconds: float) -> None:
        self.time += seconds


REAL = Env()
