"""How often and how much at once: a token bucket for each caller, rates and a ceiling for each agent.

``RateLimiter`` and ``Ceiling`` count in this process only; ``SharedLimiter`` is one bucket for all processes on a
database, and ``shared_ceiling.SharedCeiling`` one ceiling. A refusal says when to come back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Protocol, TypeAlias

import msgspec

from agent3.env import REAL, Env
from agent3.errors import StorageError
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.settings import Limits, Rate
from agent3.storage import Database, Transaction
from agent3.storage.rests import delete_in_pieces

__all__ = [
    "COUNTED",
    "Ceiling",
    "FairShares",
    "Limiter",
    "Metered",
    "RateLimiter",
    "Rates",
    "ReadMeter",
    "SharedLimiter",
    "expire_buckets",
]

log = logger("limits")


class Limiter(Protocol):
    """What charges callers."""

    def take(self, key: str) -> float:
        """Take a token that is at hand, without waiting: 0.0 when there was one. Otherwise ``charge`` decides."""

    async def charge(self, key: str) -> float:
        """Take a token, fetching it if needed. 0.0 when there was one, else the seconds until there will be."""


class RateLimiter:
    """A token bucket per key: ``burst`` at once, refilled at ``per_minute``. Keys are bounded; the idlest go first."""

    def __init__(self, per_minute: float, burst: int, *, env: Env = REAL, max_keys: int = 100_000):
        self._rate = per_minute / 60.0
        self._burst = float(max(burst, 1))
        self._env = env
        self._max_keys = max_keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Take a token. 0.0 when there was one, else the seconds until there will be."""
        if self._rate <= 0:
            return 0.0
        buckets, now = self._buckets, self._env.monotonic()
        tokens, at = buckets.get(key, (self._burst, now))
        tokens += (now - at) * self._rate
        if tokens > self._burst:
            tokens = self._burst
        taken = tokens >= 1.0
        buckets[key] = (tokens - 1.0 if taken else tokens, now)
        buckets.move_to_end(key)
        if len(buckets) > self._max_keys:
            buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - tokens) / self._rate

    async def charge(self, key: str) -> float:
        """The same as ``take``."""
        return self.take(key)


COUNTED = "agent3.counted"
"""The key in an ASGI scope of a request that was counted already."""
_REQUESTS_PER_CALL = 20
"""How much oftener than call a client may send requests."""
_AHEAD = 0.25
"""Seconds of the rate that a process fetches in advance: what it may hold while another one runs dry."""
_UNKNOWN = 0.001
"""The wait of a caller of whom only the database knows."""
_WARN_EVERY = 60.0
# Updating the row locks it until the commit, so that two processes never spend one token.
_GET_BUCKET = """
INSERT INTO limits (key, tokens, at) VALUES (?, ?, {now})
ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING tokens, at, {now} AS now
"""
_SET_BUCKET = "UPDATE limits SET tokens = ?, at = ? WHERE key = ?"


@dataclass(slots=True)
class _Purse:
    """The tokens that this process has fetched for one caller."""

    tokens: float = 0.0
    stale: float = 0.0
    """When unspent tokens expire."""
    empty: float = float("-inf")
    """Until when the bucket is known to be empty."""
    wanted: int = 0
    """Callers waiting for a token."""
    fetching: asyncio.Task[None] | None = None


class SharedLimiter:
    """A token bucket per key in the database, one for all processes: never more than the burst and the rate.

    Tokens are fetched a few at a time: as many as are waited for, and at most a quarter of a second of the rate more. A
    refused caller is refused from memory until there can be a token again. So a caller costs a few writes per second,
    however often it calls. While the database does not answer, each process counts for itself. On a database in
    memory, which no other process can use, nothing is fetched.
    """

    def __init__(self, database: Database, per_minute: float, burst: int, *, env: Env = REAL, max_keys: int = 100_000):
        self._alone = RateLimiter(per_minute, burst, env=env, max_keys=max_keys)
        self._rate = per_minute / 60.0
        self._burst = float(max(burst, 1))
        self._ahead = float(int(min(max(1.0, self._rate * _AHEAD), self._burst)))
        self._database = database
        self._shared = database.url != "sqlite://"
        self._get_bucket = database.syntax.fill(_GET_BUCKET)
        self._env = env
        self._max_keys = max_keys
        self._purses: OrderedDict[str, _Purse] = OrderedDict()
        self._warned = float("-inf")

    def take(self, key: str) -> float:
        """Take a token that is at hand, without waiting: 0.0 when there was one. Otherwise ``charge`` decides."""
        if not self._shared or self._rate <= 0:
            return self._alone.take(key)
        purse = self._purses.get(key)
        now = self._env.monotonic()
        if purse is None or purse.tokens < 1.0 or now >= purse.stale:
            return max(purse.empty - now, _UNKNOWN) if purse is not None else _UNKNOWN
        purse.tokens -= 1.0
        return 0.0

    async def charge(self, key: str) -> float:
        """Take a token, fetching it if needed. 0.0 when there was one, else the seconds until there will be."""
        if not self._shared or self._rate <= 0:
            return self._alone.take(key)
        purse = self._purses.setdefault(key, _Purse())
        self._purses.move_to_end(key)
        if len(self._purses) > self._max_keys:
            self._purses.popitem(last=False)
        while wait := self.take(key):
            if self._env.monotonic() < purse.empty:
                return wait
            # All who wait for tokens of one caller share one fetch. Shielded: one who is cancelled must not end it.
            purse.wanted += 1
            loop = asyncio.get_running_loop()
            if purse.fetching is None or purse.fetching.done() or purse.fetching.get_loop() is not loop:
                purse.fetching = loop.create_task(self._fetch(key, purse), name="limits")
            try:
                await asyncio.shield(purse.fetching)
            except StorageError as error:
                now = self._env.monotonic()
                if now - self._warned > _WARN_EVERY:
                    self._warned = now
                    log.warning("limits: each process counts by itself until the database answers: %s", error)
                return self._alone.take(key)
        return 0.0

    @property
    def idle(self) -> float:
        """Seconds after which a bucket that nobody used has long been full: a new one is the same."""
        return 2 * self._burst / self._rate + 60.0 if self._rate > 0 else 0.0

    async def _fetch(self, key: str, purse: _Purse) -> None:
        await asyncio.sleep(0)  # let callers of the same moment join
        wanted, purse.wanted = max(float(purse.wanted), self._ahead), 0

        async def work(tx: Transaction) -> tuple[float, float]:
            """Take as many whole tokens as there are; return them, and the seconds until there is one more."""
            row = await tx.one(self._get_bucket, key, self._burst)
            assert row is not None
            tokens = min(self._burst, row["tokens"] + max(row["now"] - row["at"], 0.0) * self._rate)
            # Whole tokens only; the small share makes up for rounding, by which 0.9999999 would never become 1.
            granted = min(float(int(wanted)), float(int(tokens + 1e-6)))
            left = tokens - granted
            await tx.run(_SET_BUCKET, left, row["now"], key)
            return granted, max(1.0 - left, 0.001) / self._rate

        # Calm: the row's lock is enough, while serializable transactions would collide on it.
        granted, wait = await self._database.write(work, calm=True)
        now = self._env.monotonic()
        purse.tokens = granted + (purse.tokens if now < purse.stale else 0.0)
        purse.stale = now + max(granted / self._rate, 1.0)
        if granted < wanted:
            purse.empty = now + wait


async def expire_buckets(database: Database, env: Env, limiters: Sequence[SharedLimiter]) -> int:
    """Delete the buckets that are full by the slowest of the limiters: they are all in one table."""
    idle = max((limiter.idle for limiter in limiters), default=0.0)
    if not idle:
        return 0
    old = f"at < {database.syntax.now} - CAST(? AS DOUBLE PRECISION)"
    return await delete_in_pieces(database, env, "limits", old, idle, key="key")


Metered: TypeAlias = tuple[SharedLimiter, str, Rate]
"""A bucket that a call takes a token from: its limiter, its key, and the rate."""


class Rates:
    """The rates of agents and capabilities in the settings, each a bucket for all processes on the database."""

    def __init__(self, rates: Sequence[Rate], database: Database, *, env: Env = REAL):
        self.limiters = [SharedLimiter(database, rate.per_minute, rate.burst, env=env) for rate in rates]
        pairs = [pair for pair in zip(rates, self.limiters, strict=True) if pair[0].per_minute > 0]

        @lru_cache(maxsize=10_000)
        def match(principal: str, agent: str, capability: str) -> tuple[Metered, ...]:
            found = []
            for rate, limiter in pairs:
                patterns = ((principal, rate.principal), (agent, rate.agent), (capability, rate.capability))
                if all(fnmatchcase(value, pattern) for value, pattern in patterns):
                    named = capability if rate.capability != "*" else ""
                    client = principal if rate.each == "client" else ""
                    key = ("rate", rate.agent, rate.capability, rate.principal, agent, named, client)
                    found.append((limiter, msgspec.json.encode(key).decode(), rate))
            return tuple(found)

        self.match = match
        """The buckets that a call takes a token from: limiter, key, and the rate itself."""


class ReadMeter:
    """A bucket of requests for each client, beside that of its calls. The local user has no limit."""

    def __init__(self, limits: Limits, env: Env = REAL):
        per_minute = limits.requests_per_minute or limits.per_minute * _REQUESTS_PER_CALL
        self._bucket = RateLimiter(per_minute, max(limits.burst * _REQUESTS_PER_CALL, int(per_minute / 60)), env=env)

    def take(self, principal: Principal) -> float:
        """Count one request: 0.0 where it may be answered, else the seconds until one may."""
        return 0.0 if principal.kind == "local" else self._bucket.take(principal.id)


class FairShares:
    """How much of something that ``most`` may have at once each owner has: half of what the others leave, or ``each``.

    So there is always something left for a newcomer, whoever was there before. It counts in this process only.
    """

    def __init__(self, most: int, each: int = 0):
        self._most = most
        self._each = each
        self._total: dict[str, int] = {}
        self._owned: dict[tuple[str, str], int] = {}

    def enter(self, key: str, owner: str) -> bool:
        """Whether this owner may have one more; each True must be followed by one ``leave``."""
        pair = (key, owner)
        mine, total = self._owned.get(pair, 0), self._total.get(key, 0)
        if mine >= self._each if self._each else mine and 2 * mine >= self._most - (total - mine):
            return False
        self._owned[pair], self._total[key] = mine + 1, total + 1
        return True

    def leave(self, key: str, owner: str) -> None:
        """Give one back."""
        pair = (key, owner)
        if mine := self._owned[pair] - 1:
            self._owned[pair] = mine
        else:
            del self._owned[pair]
        if total := self._total[key] - 1:
            self._total[key] = total
        else:
            del self._total[key]


class Ceiling:
    """How many may run at once under one key, in this process."""

    def __init__(self, most: int):
        self._most = most
        self._running: dict[str, int] = {}

    def enter(self, key: str) -> bool:
        """Whether there was room at hand; each True must be followed by one ``leave``."""
        running = self._running.get(key, 0)
        if running >= self._most:
            return False
        self._running[key] = running + 1
        return True

    async def admit(self, key: str) -> bool:
        """The same as ``enter``; a shared ceiling may fetch room."""
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
