"""Messages that are being answered without a row in the table of jobs: others of the same id wait for them.

It also remembers the latest messages that the table does know, so that these are looked for there, and no others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Final
from weakref import WeakKeyDictionary

from agent3.calls.jobs import Job, Jobs
from agent3.model import Call

__all__ = ["Flight", "Flights", "Key", "key_of"]

Key = tuple[str, str]
_KEYS: Final = 100_000


def key_of(call: Call) -> Key:
    """Who says it, and the id of what is said."""
    return call.principal.id, call.key or call.id


class Flight:
    """A message that is being answered, for the length of a block. ``is_job`` from when it waits for something."""

    __slots__ = ("_flights", "_key", "_waiting", "is_job")

    def __init__(self, flights: Flights, key: Key) -> None:
        self.is_job = False
        self._flights = flights
        self._key = key
        self._waiting: asyncio.Event | None = None

    def __enter__(self) -> Flight:
        self._flights.begun(self._key, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._flights.ended(self._key, self)
        if self._waiting is not None:
            self._waiting.set()

    def opened(self, job: Job | None = None) -> None:
        """It is a job of the table now."""
        self.is_job = True

    async def landed(self) -> None:
        """Wait until it is answered."""
        if self._waiting is None:
            self._waiting = asyncio.Event()
        await self._waiting.wait()


class Flights:
    """All of them in one process."""

    _known: WeakKeyDictionary[Jobs, Flights] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._flying: dict[Key, Flight] = {}
        self._in_table: OrderedDict[Key, None] = OrderedDict()
        self._aliases: set[Key] | None = set()
        """Owner and alias of the jobs of the table that have one; None when they are too many to remember."""

    @classmethod
    def of(cls, jobs: Jobs) -> Flights:
        """Those that belong to these jobs, whichever engine asks."""
        return cls._known.setdefault(jobs, cls())

    def flying(self, key: Key) -> Awaitable[None] | None:
        """What to wait for until a message under way is answered; None where there is none."""
        return self._wait_for(key) if key in self._flying else None

    async def _wait_for(self, key: Key) -> None:
        while (flying := self._flying.get(key)) is not None:
            await flying.landed()

    def in_table(self, key: Key) -> bool:
        """Whether it is for the table of jobs to know a message."""
        return key in self._in_table

    def remember(self, key: Key) -> None:
        """It is for the table of jobs to know it."""
        self._in_table[key] = None
        if len(self._in_table) > _KEYS:
            self._in_table.popitem(last=False)

    def may_have_alias(self, owner: str, alias: str) -> bool:
        """Whether a job that was begun here, and is in the table, may have this alias."""
        return self._aliases is None or (owner, alias) in self._aliases

    def remember_alias(self, owner: str, alias: str) -> None:
        """A job of the table has this alias, or will have it."""
        if self._aliases is not None:
            self._aliases.add((owner, alias))
            if len(self._aliases) > _KEYS:  # unlike a message, a task that waits must be found for ever
                self._aliases = None

    def flight(self, key: Key) -> Flight:
        """While a message is being answered, others of the same id wait for it."""
        return Flight(self, key)

    def begun(self, key: Key, flight: Flight) -> None:
        """A message is being answered."""
        self._flying[key] = flight

    def ended(self, key: Key, flight: Flight) -> None:
        """It has been."""
        del self._flying[key]
        if flight.is_job:
            self.remember(key)
