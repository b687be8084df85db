"""One ceiling for all processes on a database: how many calls may run at once on one agent, wherever they came in.

Each process leases bundles of slots as it needs them, counts within them from memory, and gives back what it has no
use for: at once where another is short of them, else after a while. So a call costs no journey to the database, only
the growth of what runs at once does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from agent3.env import REAL, Env
from agent3.errors import StorageError
from agent3.observe.logs import get as logger
from agent3.security.limits import Ceiling
from agent3.storage.leases import Leases
from agent3.storage.notifications import News

__all__ = ["SharedCeiling"]

log = logger("limits")

SECONDS = 15.0
"""How long a process that has died, or sleeps, keeps its slots from the others."""
_BUNDLES = 16
"""About as many bundles as slots are divided into; a small ceiling has bundles of one."""
_TOPIC = "slots"
_TRIES = 4
_PAUSE = 0.05
"""Seconds for the others to give back what they do not need."""
_SHORT = 0.25
"""Seconds for which calls are refused from memory when there was nothing to be had."""
_LOOSE = 5.0
"""Seconds for which each counts for itself when the database does not answer."""
_IDLE = 12
"""Rounds of renewal for which one bundle is kept of an agent that nobody calls, since the next call may be near."""
_AT_ONCE = 500


@dataclass(slots=True)
class _Share:
    """What this process has of the slots of one agent."""

    held: set[int] = field(default_factory=set)
    room: int = 0
    running: int = 0
    peak: int = 0
    idle: int = 0
    short: float = float("-inf")
    loose: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedCeiling(Ceiling):
    """How many may run at once under one key, in all processes together. It belongs to the event loop it is used in.

    Exact while every process renews its leases; one that slept past them may still have that many calls under way
    when others take its slots. While the database does not answer, each process counts for itself. What is ``alone``
    is counted in this process only: an agent that lives in it.
    """

    def __init__(self, most: int, leases: Leases, news: News, *, alone: Callable[[str], bool], env: Env = REAL):
        super().__init__(most)
        self._size = max(1, most // _BUNDLES)
        self._bundles = range(-(-most // self._size))
        self._leases = leases
        self._news = news
        self._alone = alone
        self._env = env
        self._shares: dict[str, _Share] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        news.on(_TOPIC, self._asked_for)

    def enter(self, key: str) -> bool:
        """Whether there was room at hand; each True is answered by one ``leave``."""
        if self._alone(key):
            return super().enter(key)
        share = self._shares.get(key)
        if share is None or not self._has_room(share):
            return False
        share.running += 1
        share.peak = max(share.peak, share.running)
        return True

    async def admit(self, key: str) -> bool:
        """The same, also where a bundle must be fetched, for which it waits a fifth of a second at most."""
        if self.enter(key):
            return True
        if self._alone(key):
            return False
        share = self._shares.setdefault(key, _Share())
        async with share.lock:
            while not self.enter(key):
                if self._env.monotonic() < share.short or not await self._grown(key, share):
                    return False
        return True

    def leave(self, key: str) -> None:
        """Give the room back."""
        if (share := self._shares.get(key)) is None:
            super().leave(key)
        else:
            share.running -= 1

    async def aclose(self) -> None:
        """Renew no more. What is held goes with the other leases of this process."""
        tasks = [*self._tasks, *([self._keeper] if self._keeper is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _has_room(self, share: _Share) -> bool:
        if share.running < share.room:
            return True
        return share.running < self._most and self._env.monotonic() < share.loose

    # More

    async def _grown(self, key: str, share: _Share) -> bool:
        """Whether there is more room than before."""
        if len(share.held) == len(self._bundles):
            return False
        try:
            for _ in range(_TRIES):
                if await self._take_one(key, share):
                    return True
                self._news.tell(_TOPIC, key)
                await asyncio.sleep(_PAUSE)
        except StorageError as wrong:
            self._count_alone(share, wrong)
            return share.running < self._most
        share.short = self._env.monotonic() + _SHORT
        return False

    async def _take_one(self, key: str, share: _Share) -> bool:
        names = {_name(key, number): number for number in self._bundles}
        taken = await self._leases.held_of(names)
        for name in [one for one in names if one not in taken]:
            if await self._leases.take(name, SECONDS):
                share.held.add(names[name])
                self._measure(share)
                self._keep()
                return True
        return False

    def _count_alone(self, share: _Share, wrong: StorageError) -> None:
        now = self._env.monotonic()
        if now >= share.loose:
            log.warning("limits.concurrent: each process counts for itself until the database answers: %s", wrong)
        share.loose = now + _LOOSE

    def _measure(self, share: _Share) -> None:
        share.room = sum(min(self._size, self._most - number * self._size) for number in share.held)

    # Less

    def _asked_for(self, key: str) -> None:
        """Another process is short of slots: give back what is not in use."""
        share = self._shares.get(key)
        if share is not None and share.held:
            self._spawn(self._trimmed(key, share, share.running))

    async def _trimmed(self, key: str, share: _Share, needed: int) -> None:
        """Give back the bundles without which there still is room for as many as are needed."""
        for number in sorted(share.held, reverse=True):
            without = share.room - min(self._size, self._most - number * self._size)
            if without < max(needed, share.running):
                continue
            share.held.discard(number)  # first here, so that nobody enters by what is another's already
            self._measure(share)
            try:
                await self._leases.give_up(_name(key, number))
            except StorageError as wrong:
                log.info("limits.concurrent: slots of %s are free when their lease is over: %s", key, wrong)

    # The same

    def _keep(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.get_running_loop().create_task(self._keep_up(), name="slots")

    async def _keep_up(self) -> None:
        """Renew what is held, and let go what was not used since the last time, until nothing is held."""
        while any(share.held for share in self._shares.values()):
            await asyncio.sleep(SECONDS / 3)
            for key, share in list(self._shares.items()):
                share.idle = 0 if share.peak else share.idle + 1
                await self._trimmed(key, share, share.peak or int(share.idle < _IDLE))
                share.peak = share.running
                if not share.held and not share.running and not share.lock.locked():
                    del self._shares[key]
            try:
                await self._prolong()
            except StorageError as wrong:
                for share in self._shares.values():
                    self._count_alone(share, wrong)

    async def _prolong(self) -> None:
        held = {_name(key, number): (share, number) for key, share in self._shares.items() for number in share.held}
        names = list(held)
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            for name in set(some) - await self._leases.prolong(some, SECONDS):
                share, number = held[name]
                share.held.discard(number)  # this process slept, and another has it
                self._measure(share)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="slots")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _name(key: str, number: int) -> str:
    return f"slots {number} {key}"
