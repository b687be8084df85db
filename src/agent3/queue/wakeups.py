"""Waking consumers when a message becomes ready: those of this process at once, those of others by the database.

A wake-up is a hint, never the truth: a waiting consumer also polls, so a lost one costs only time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from threading import Lock
from weakref import WeakKeyDictionary

from agent3.errors import StorageError
from agent3.storage.database import Database, Notifier

__all__ = ["Wakeups", "channel_of", "get_wakeups", "listen_for_wakeups"]

RECONNECT_SECONDS = 1.0


class Wakeups:
    """The waiting consumers of one queue in this process. ``wake`` is safe from any thread."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = Lock()

    @contextmanager
    def subscribe(self) -> Iterator[asyncio.Event]:
        """An event of the running loop that ``wake`` sets, for as long as the block lasts."""
        event = asyncio.Event()
        with self._lock:
            self._waiters[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                del self._waiters[event]

    def wake(self) -> None:
        """Wake every waiting consumer."""
        if not self._waiters:
            return
        with self._lock:
            waiters = [(event, loop) for event, loop in self._waiters.items() if not event.is_set()]
        for event, loop in waiters:
            with suppress(RuntimeError):  # the loop is closed: no one waits there any more
                loop.call_soon_threadsafe(event.set)


_known: WeakKeyDictionary[Database, dict[str, Wakeups]] = WeakKeyDictionary()
_known_lock = Lock()


def get_wakeups(database: Database, name: str) -> Wakeups:
    """The wake-ups of a queue, shared by all who use it over this database in this process."""
    with _known_lock:
        return _known.setdefault(database, {}).setdefault(name, Wakeups())


def channel_of(name: str) -> str:
    """The database's notification channel of a queue; channel names are short and plain, queue names need not be."""
    return f"agent3_queue_{sha256(name.encode()).hexdigest()[:16]}"


async def listen_for_wakeups(database: Notifier, name: str, own: str, wakeups: Wakeups) -> None:
    """Wake the consumers of this process when another one says so, until cancelled; reconnects when needed.

    ``own`` is the text that this process sends: it has woken its consumers already.
    """

    def receive(text: str) -> None:
        if text != own:
            wakeups.wake()

    while True:
        with suppress(StorageError):
            async with database.listen(channel_of(name), receive) as lost:
                wakeups.wake()  # for what was sent before we listened
                await lost
        await asyncio.sleep(RECONNECT_SECONDS)
