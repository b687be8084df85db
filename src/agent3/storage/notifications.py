"""News: short words between the processes that use one database, such as that a job changed or an agent was added.

A word is a hint and never the truth: it is said after the commit it speaks of, and may be lost. Whoever waits for one
also looks by itself now and then, more often while nobody can be heard. SQLite carries no words; there, looking is all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol, runtime_checkable

from agent3.errors import StorageError
from agent3.storage.database import Database

__all__ = ["News"]

CHANNEL = "agent3_news"
TOGETHER = 0.004
"""Seconds for which words are gathered. PostgreSQL lets one speak at a time, so many words go as one."""
MOST = 7_900
"""Bytes said at once; PostgreSQL takes 8,000."""
LONGEST = 200
"""Letters of one word; nobody would know a longer one again, and it costs him a look."""
AGAIN_SECONDS = 1.0

Heard = Callable[[str], None]


@runtime_checkable
class _Carrier(Protocol):
    """A database that carries words between its users."""

    def listen(self, channel: str, heard: Heard) -> AbstractAsyncContextManager[asyncio.Future[None]]: ...

    async def say(self, channel: str, words: str) -> None: ...


class News:
    """The words of one process. It belongs to the event loop it is used in.

    ``live`` is whether the others can be heard now. ``tell`` works without ``listen``: a passing command has something
    to say, but does not stay for an answer.
    """

    def __init__(self, database: Database, name: str):
        self._carrier = database if isinstance(database, _Carrier) else None
        self._name = name
        self._ears: dict[str, list[Heard]] = {}
        self._words: dict[str, None] = {}
        self._speaking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self.live = False

    def on(self, topic: str, heard: Heard) -> None:
        """Call ``heard`` with what another process tells on a topic; with nothing when words may have been missed."""
        self._ears.setdefault(topic, []).append(heard)

    def tell(self, topic: str, what: str = "") -> None:
        """Tell the other processes, soon; this one is not told. Neither part holds a line break."""
        if self._carrier is None:
            return
        self._words[f"{topic} {what}"[:LONGEST]] = None
        if self._speaking is None or self._speaking.done():
            self._speaking = asyncio.get_running_loop().create_task(self._speak(self._carrier), name="news")

    def listen(self) -> None:
        """Begin to hear the others, for as long as this lives."""
        if self._carrier is not None and self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._hear_for_ever(self._carrier), name="news")

    async def aclose(self) -> None:
        """Say what is left to say, and hear no more."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if self._speaking is not None:
            await asyncio.wait([self._speaking])

    async def _speak(self, carrier: _Carrier) -> None:
        while self._words:
            await asyncio.sleep(TOGETHER)
            with suppress(StorageError):  # a hint: the others will look by themselves
                await carrier.say(CHANNEL, self._sentence())

    def _sentence(self) -> str:
        """The oldest words that fit, below this process's name."""
        said, size = [self._name], len(self._name.encode())
        while self._words and size < MOST - 4 * LONGEST:
            word = next(iter(self._words))
            del self._words[word]
            said.append(word)
            size += len(word.encode()) + 1
        return "\n".join(said)

    async def _hear_for_ever(self, carrier: _Carrier) -> None:
        while True:
            try:
                async with carrier.listen(CHANNEL, self._heard) as lost:
                    self.live = True
                    self._missed()
                    await lost
            except StorageError:
                pass  # nobody to be heard: once more, in a while
            finally:
                self.live = False  # however it ended: whoever waits must look by itself again
            await asyncio.sleep(AGAIN_SECONDS)

    def _heard(self, sentence: str) -> None:
        speaker, *words = sentence.split("\n")
        if speaker == self._name:
            return
        for word in words:
            topic, _, what = word.partition(" ")
            for heard in self._ears.get(topic, ()):
                heard(what)

    def _missed(self) -> None:
        """Nobody listened for a while: whoever waits should look."""
        for ears in self._ears.values():
            for heard in ears:
                heard("")
