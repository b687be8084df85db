"""Who is woken when a message becomes ready: waiting consumers of this process at once, of others by the database.

A bell is a hint and never the truth: whoever waits also looks by himself now and then, and a lost bell costs only time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from hashlib import sha256
from threading import Lock
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from agent3.errors import StorageError
from agent3.storage import Database

__all__ = ["Bells", "Carrier", "bells_of", "channel_of", "hear_for_ever"]

AGAIN_SECONDS = 1.0


@runtime_checkable
class Carrier(Protocol):
    """A database that carries words between the processes that use it."""

    def listen(self, channel: str, heard: Callable[[str], None]) -> AbstractAsyncContextManager[asyncio.Future[None]]:
        """Call ``heard`` with each word on the channel; the future is done when the connection is gone."""


class Bells:
    """The bells of one queue in this process. ``ring`` is safe from any thread."""

    def __init__(self) -> None:
        self._bells: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = Lock()

    @contextmanager
    def hung(self) -> Iterator[asyncio.Event]:
        """A bell of the running loop, for as long as the block lasts."""
        bell = asyncio.Event()
        with self._lock:
            self._bells[bell] = asyncio.get_running_loop()
        try:
            yield bell
        finally:
            with self._lock:
                del self._bells[bell]

    def ring(self) -> None:
        """Wake everyone who waits."""
        if not self._bells:
            return
        with self._lock:
            bells = [(bell, loop) for bell, loop in self._bells.items() if not bell.is_set()]
        for bell, loop in bells:
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(bell.set)


_known: WeakKeyDictionary[Database, dict[str, Bells]] = WeakKeyDictionary()
_door = Lock()


def bells_of(database: Database, name: str) -> Bells:
    """The bells of a queue, the same for all who use it over this database in this process."""
    with _door:
        return _known.setdefault(database, {}).setdefault(name, Bells())


def channel_of(name: str) -> str:
    """The channel on which the database tells of a queue; its names are short and plain."""
    return f"agent3_queue_{sha256(name.encode()).hexdigest()[:16]}"


async def hear_for_ever(database: Carrier, name: str, own: str, bells: Bells) -> None:
    """Ring when another process says so; connect again when the connection is lost."""

    def heard(word: str) -> None:
        if word != own:  # this process has rung its bells by itself
            bells.ring()

    while True:
        with suppress(StorageError):
            async with database.listen(channel_of(name), heard) as lost:
                bells.ring()  # what was said while nobody listened
                await lost
        await asyncio.sleep(AGAIN_SECONDS)
