"""Notifications between the processes that share a database, such as that a job changed or an agent was added.

A notification is a hint, never the truth: it is sent after the commit that it speaks of, and may be lost. So a process
that waits for one also polls, more often while it cannot listen. SQLite carries none; there, polling is all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from agent3.errors import StorageError
from agent3.storage.database import Database, Notifier

__all__ = ["News"]

CHANNEL = "agent3_news"
GATHER_SECONDS = 0.004
"""How long notifications are gathered: PostgreSQL lets one session notify at a time, so many are sent as one."""
MAX_BYTES = 7_900
"""Bytes of one message; PostgreSQL takes 8,000."""
MAX_LINE = 200
"""Characters of one notification. A longer one is cut, which no reader recognises; it costs them a needless look."""
RECONNECT_SECONDS = 1.0

Handler = Callable[[str], None]


class News:
    """The notifications of one process. It belongs to the event loop it is used in.

    ``live`` says whether the other processes can be heard now. ``tell`` works without ``listen``: a short-lived
    command has something to say, but does not stay for an answer.
    """

    def __init__(self, database: Database, name: str):
        self._notifier = database if isinstance(database, Notifier) else None
        self._name = name
        self._handlers: dict[str, list[Handler]] = {}
        self._lines: dict[str, None] = {}  # an ordered set: the same notification is sent once
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self.live = False

    def on(self, topic: str, heard: Handler) -> None:
        """Call ``heard`` with what other processes tell on a topic; with "" when some of it may have been missed."""
        self._handlers.setdefault(topic, []).append(heard)

    def tell(self, topic: str, what: str = "") -> None:
        """Notify the other processes soon, not this one. Neither argument may hold a line break."""
        if self._notifier is None:
            return
        self._lines[f"{topic} {what}"[:MAX_LINE]] = None
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send(self._notifier), name="news")

    def listen(self) -> None:
        """Start to listen to the other processes, until ``aclose``."""
        if self._notifier is not None and self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen(self._notifier), name="news")

    async def aclose(self) -> None:
        """Send what is waiting, and stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        if self._sender is not None:
            await asyncio.wait([self._sender])

    async def _send(self, notifier: Notifier) -> None:
        while self._lines:
            await asyncio.sleep(GATHER_SECONDS)
            # The first line is this process's name, by which it ignores its own messages; then the oldest that fit.
            lines, size = [self._name], len(self._name.encode())
            while self._lines and size < MAX_BYTES - 4 * MAX_LINE:
                line = next(iter(self._lines))
                del self._lines[line]
                lines.append(line)
                size += len(line.encode()) + 1
            with suppress(StorageError):  # only a hint: the others poll as well
                await notifier.notify(CHANNEL, "\n".join(lines))

    async def _listen(self, notifier: Notifier) -> None:
        while True:
            try:
                async with notifier.listen(CHANNEL, self._receive) as lost:
                    self.live = True
                    for topic in self._handlers:  # what was sent before we listened was missed
                        self._dispatch(topic, "")
                    await lost
            except StorageError:
                pass  # no connection: try again below
            finally:
                self.live = False  # however it ended, those who wait must poll again
            await asyncio.sleep(RECONNECT_SECONDS)

    def _receive(self, text: str) -> None:
        sender, *lines = text.split("\n")
        if sender != self._name:
            for line in lines:
                topic, _, what = line.partition(" ")
                self._dispatch(topic, what)

    def _dispatch(self, topic: str, what: str) -> None:
        for handler in self._handlers.get(topic, ()):
            handler(what)
