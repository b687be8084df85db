"""One ceiling for all processes on a database: how many calls may run at once on one agent, whichever gateway got them.

Each process leases bundles of slots as it needs them, counts within them in memory, and gives back what it does not
need: at once when another process is short, else after a while. So a call costs no trip to the database; only growth
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from agent3.env import REAL, Env
from agent3.errors import StorageError
from agent3.observe.logs import get as logger
from agent3.security.limits import Ceiling
from agent3.storage.leases import Leases
from agent3.storage.notifications import News

__all__ = ["SharedCeiling"]

log = logger("limits")

SECONDS = 15.0
"""How long a process that died, or sleeps, keeps its slots from the others."""
_BUNDLES = 16
"""About how many bundles the slots are divided into; a small ceiling has bundles of one."""
_TOPIC = "slots"
_TRIES = 4
_PAUSE = 0.05
"""Seconds that the other processes get to give back what they do not need."""
_SHORT = 0.25
"""Seconds for which calls are refused from memory after no bundle was free."""
_ALONE_SECONDS = 5.0
"""Seconds for which a process counts for itself after the database did not answer."""
_IDLE_ROUNDS = 12
"""Rounds of renewal for which one bundle is kept of an agent that is not called, since the next call may be near."""
_AT_ONCE = 500


@dataclass(slots=True)
class _Share:
    """What this process has of the slots of one agent."""

    bundles: set[int] = field(default_factory=set)
    """The numbers of the bundles that it has leased."""
    slots: int = 0
    """How many slots they are together."""
    running: int = 0
    peak: int = 0
    """The most that ran at once since the last renewal."""
    idle: int = 0
    """Rounds of renewal without a call."""
    short_until: float = float("-inf")
    alone_until: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedCeiling(Ceiling):
    """How many may run at once under one key, in all processes together. It belongs to the event loop it is used in.

    Exact while every process renews its leases; one that slept past them may still have that many calls under way
    when others take its slots. While the database does not answer, each process counts for itself. Keys that are
    ``alone`` are counted in this process only: agents that live in it.
    """

    def __init__(self, most: int, leases: Leases, news: News, *, alone: Callable[[str], bool], env: Env = REAL):
        super().__init__(most)
        self._size = max(1, most // _BUNDLES)
        self._numbers = range(-(-most // self._size))
        self._leases = leases
        self._news = news
        self._alone = alone
        self._env = env
        self._shares: dict[str, _Share] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._trimming: set[asyncio.Task[None]] = set()
        news.on(_TOPIC, self._give_back)

    def enter(self, key: str) -> bool:
        """Whether there was room at hand; each True must be followed by one ``leave``."""
        if self._alone(key):
            return super().enter(key)
        share = self._shares.get(key)
        if share is None:
            return False
        if share.running >= share.slots and not (
            share.running < self._most and self._env.monotonic() < share.alone_until
        ):
            return False
        share.running += 1
        share.peak = max(share.peak, share.running)
        return True

    async def admit(self, key: str) -> bool:
        """The same as ``enter``; leases another bundle if needed, waiting a fifth of a second for it at most."""
        if self.enter(key):
            return True
        if self._alone(key):
            return False
        share = self._shares.setdefault(key, _Share())
        async with share.lock:
            while not self.enter(key):
                if self._env.monotonic() < share.short_until or not await self._grow(key, share):
                    return False
        return True

    def leave(self, key: str) -> None:
        """Give the room back."""
        if (share := self._shares.get(key)) is None:
            super().leave(key)
        else:
            share.running -= 1

    async def aclose(self) -> None:
        """Stop renewing. The bundles go with the other leases of this process."""
        tasks = [*self._trimming, *([self._renewing] if self._renewing is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _grow(self, key: str, share: _Share) -> bool:
        """Lease one more bundle; whether there is more room than before."""
        if len(share.bundles) == len(self._numbers):
            return False
        names = {_lease_name(key, number): number for number in self._numbers}
        try:
            for _ in range(_TRIES):
                taken = await self._leases.held_of(names)
                for name, number in names.items():
                    if name not in taken and await self._leases.take(name, SECONDS):
                        share.bundles.add(number)
                        self._count_slots(share)
                        if self._renewing is None or self._renewing.done():
                            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="slots")
                        return True
                self._news.tell(_TOPIC, key)
                await asyncio.sleep(_PAUSE)
        except StorageError as error:
            self._count_alone(share, error)
            return share.running < self._most
        share.short_until = self._env.monotonic() + _SHORT
        return False

    def _count_alone(self, share: _Share, error: StorageError) -> None:
        now = self._env.monotonic()
        if now >= share.alone_until:
            log.warning("limits.concurrent: each process counts by itself until the database answers: %s", error)
        share.alone_until = now + _ALONE_SECONDS

    def _count_slots(self, share: _Share) -> None:
        # The last bundle may be smaller than the others.
        share.slots = sum(min(self._size, self._most - number * self._size) for number in share.bundles)

    def _give_back(self, key: str) -> None:
        """Another process is short of slots: give back what is not in use."""
        share = self._shares.get(key)
        if share is not None and share.bundles:
            task = asyncio.get_running_loop().create_task(self._trim(key, share, share.running), name="slots")
            self._trimming.add(task)
            task.add_done_callback(self._trimming.discard)

    async def _trim(self, key: str, share: _Share, needed: int) -> None:
        """Give back the bundles without which there is still room for as many as are needed."""
        for number in sorted(share.bundles, reverse=True):
            without = share.slots - min(self._size, self._most - number * self._size)
            if without < max(needed, share.running):
                continue
            share.bundles.discard(number)  # here first, so that no call enters by a slot that is another's already
            self._count_slots(share)
            try:
                await self._leases.give_up(_lease_name(key, number))
            except StorageError as error:
                log.info("limits.concurrent: slots of %s are freed when their lease expires: %s", key, error)

    async def _renew(self) -> None:
        while any(share.bundles for share in self._shares.values()):
            await asyncio.sleep(SECONDS / 3)
            await self._renew_once()

    async def _renew_once(self) -> None:
        """Give back what was not used since the last time, and renew the rest."""
        for key, share in list(self._shares.items()):
            share.idle = 0 if share.peak else share.idle + 1
            await self._trim(key, share, share.peak or int(share.idle < _IDLE_ROUNDS))
            share.peak = share.running
            if not share.bundles and not share.running and not share.lock.locked():
                del self._shares[key]
        leased = {
            _lease_name(key, number): (share, number) for key, share in self._shares.items() for number in share.bundles
        }
        names = list(leased)
        try:
            for start in range(0, len(names), _AT_ONCE):
                some = names[start : start + _AT_ONCE]
                for name in set(some) - await self._leases.prolong(some, SECONDS):
                    share, number = leased[name]
                    share.bundles.discard(number)  # this process slept, and another has it now
                    self._count_slots(share)
        except StorageError as error:
            for share in self._shares.values():
                self._count_alone(share, error)


def _lease_name(key: str, number: int) -> str:
    return f"slots {number} {key}"
