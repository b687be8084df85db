"""How often and how much at once: a token bucket for each caller, a ceiling for each agent.

``RateLimiter`` and ``Ceiling`` count in this process only; ``SharedLimiter`` is one bucket for all processes on a
database, and ``ceilings.SharedCeiling`` one ceiling. A refusal says when to come back, and nobody is ever locked out
for a burst.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from agent3.env import REAL, Env
from agent3.errors import StorageError
from agent3.observe.logs import get as logger
from agent3.storage import Database, Transaction
from agent3.storage.leases import NOW

__all__ = ["Ceiling", "Limiter", "RateLimiter", "SharedLimiter"]

log = logger("limits")


class Limiter(Protocol):
    """What charges callers."""

    def take(self, key: str) -> float:
        """Take a token that is at hand: 0.0 when there was one. Anything else is settled by ``charge``."""

    async def charge(self, key: str) -> float:
        """Take one token, also one that must be fetched. 0.0 when there was one, else the seconds until there will."""


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

    async def charge(self, key: str) -> float:
        """The same; nothing needs to be fetched."""
        return self.take(key)


_AHEAD = 0.25
"""Seconds of its rate that a process fetches at once for a caller: what it may hold while another runs dry."""
_UNKNOWN = 0.001
"""What a caller would wait of whom only the database knows."""
_COMPLAIN = 60.0
# Touching the row locks it until the commit, so that two processes never spend one token.
_BUCKET = """
INSERT INTO limits (key, tokens, at) VALUES (?, ?, {now})
ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING tokens, at, {now} AS now
"""
_SPEND = "UPDATE limits SET tokens = ?, at = ? WHERE key = ?"


@dataclass(slots=True)
class _Purse:
    """What this process has fetched for one caller, and until when fetching more is in vain."""

    tokens: float = 0.0
    stale: float = 0.0
    empty: float = float("-inf")
    wanted: int = 0
    trip: asyncio.Task[None] | None = None


class SharedLimiter:
    """A token bucket per key in the database, one for all processes on it: never more than the burst and the rate.

    Tokens are fetched a few at a time, as many as are waited for and at most a quarter of a second of the rate beyond;
    a refused caller is refused from memory until there can be a token again. So a caller costs a few writes per second
    however often it comes. While the database does not answer, each process counts for itself. In memory, where there
    is no other process, nothing is fetched.
    """

    def __init__(self, database: Database, per_minute: float, burst: int, *, env: Env = REAL, max_keys: int = 100_000):
        self._alone = RateLimiter(per_minute, burst, env=env, max_keys=max_keys)
        self._rate = per_minute / 60.0
        self._burst = float(max(burst, 1))
        self._ahead = float(int(min(max(1.0, self._rate * _AHEAD), self._burst)))
        self._database = database
        self._shared = database.url != "sqlite://"
        self._env = env
        self._max_keys = max_keys
        self._purses: OrderedDict[str, _Purse] = OrderedDict()
        self._complained = float("-inf")

    def take(self, key: str) -> float:
        """Take a token that is at hand: 0.0 when there was one. Anything else is settled by ``charge``."""
        if not self._shared or self._rate <= 0:
            return self._alone.take(key)
        purse = self._purses.get(key)
        now = self._env.monotonic()
        if purse is None or purse.tokens < 1.0 or now >= purse.stale:
            return max(purse.empty - now, _UNKNOWN) if purse is not None else _UNKNOWN
        purse.tokens -= 1.0
        return 0.0

    async def charge(self, key: str) -> float:
        """Take one token, also one that must be fetched. 0.0 when there was one, else the seconds until there will."""
        if not self._shared or self._rate <= 0:
            return self._alone.take(key)
        purse = self._purse(key)
        while wait := self.take(key):
            if self._env.monotonic() < purse.empty:
                return wait
            try:
                await self._fetched(key, purse)
            except StorageError as wrong:
                self._complain(wrong)
                return self._alone.take(key)
        return 0.0

    async def expire(self) -> int:
        """Remove buckets that have long been full: they say nothing that a new one would not."""
        if self._rate <= 0:
            return 0
        idle = 2 * self._burst / self._rate + 60.0
        old = f"DELETE FROM limits WHERE at < {NOW[self._database.dialect]} - CAST(? AS DOUBLE PRECISION)"
        return await self._database.write(lambda tx: tx.run(old, idle))

    def _purse(self, key: str) -> _Purse:
        purse = self._purses.setdefault(key, _Purse())
        self._purses.move_to_end(key)
        if len(self._purses) > self._max_keys:
            self._purses.popitem(last=False)
        return purse

    async def _fetched(self, key: str, purse: _Purse) -> None:
        """Wait for tokens; all who wait for those of one caller share the way."""
        purse.wanted += 1
        if purse.trip is None or purse.trip.done() or purse.trip.get_loop() is not asyncio.get_running_loop():
            purse.trip = asyncio.get_running_loop().create_task(self._fetch(key, purse), name="limits")
        await asyncio.shield(purse.trip)

    async def _fetch(self, key: str, purse: _Purse) -> None:
        await asyncio.sleep(0)  # who comes in the same moment goes along
        wanted, purse.wanted = max(float(purse.wanted), self._ahead), 0
        granted, wait = await self._grant(key, wanted)
        now = self._env.monotonic()
        purse.tokens = granted + (purse.tokens if now < purse.stale else 0.0)
        purse.stale = now + max(granted / self._rate, 1.0)
        if granted < wanted:
            purse.empty = now + wait

    async def _grant(self, key: str, wanted: float) -> tuple[float, float]:
        """Whole tokens out of the bucket, as many as there are of those that are wanted; and when there is one more."""

        async def work(tx: Transaction) -> tuple[float, float]:
            row = await tx.one(_BUCKET.replace("{now}", NOW[self._database.dialect]), key, self._burst)
            assert row is not None
            tokens = min(self._burst, row["tokens"] + max(row["now"] - row["at"], 0.0) * self._rate)
            granted = min(float(int(wanted)), float(int(tokens + 1e-6)))
            left = tokens - granted
            await tx.run(_SPEND, left, row["now"], key)
            return granted, max(1.0 - left, 0.001) / self._rate

        return await self._database.write(work, calm=True)  # the row's lock is enough, serializable would collide on it

    def _complain(self, wrong: StorageError) -> None:
        """Say once in a while that the limits are not shared."""
        now = self._env.monotonic()
        if now - self._complained > _COMPLAIN:
            self._complained = now
            log.warning("limits: each process counts for itself until the database answers: %s", wrong)


class Ceiling:
    """How many may run at once under one key, in this process."""

    def __init__(self, most: int):
        self._most = most
        self._running: dict[str, int] = {}

    def enter(self, key: str) -> bool:
        """Whether there was room at hand; each True is answered by one ``leave``."""
        running = self._running.get(key, 0)
        if running >= self._most:
            return False
        self._running[key] = running + 1
        return True

    async def admit(self, key: str) -> bool:
        """The same, also where room must be fetched."""
        return self.enter(key)

    def leave(self, key: str) -> None:
        """Give the room back."""
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]

    async def aclose(self) -> None:
        """Nothing of it outlives the process."""
