"""Events for whoever wants to hear of them: topics, subscribers, and one message for each in its letter box.

Subscriptions live in the core's database beside the boxes. So a subscriber may be in another process, or in none at the
moment, and a broadcast is in all boxes or in none; only a box that is full is passed over, and told of.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from msgspec import Struct

from agent3.env import REAL
from agent3.errors import ValidationError
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.agents.mailboxes import Letter, Post
from agent3.protocols.a2a.agents.memory_queue import Box
from agent3.queue import QueueFull
from agent3.storage import Transaction

__all__ = ["Broadcast", "Subscription", "Topics"]

log = logger("a2a.events")

_TOPIC = re.compile(r"[\w.:/\-]{1,200}")
_PATTERN = re.compile(r"[\w.:/\-*]{1,200}")


class Subscription(Struct, frozen=True):
    """That an agent wants to hear of a topic by one of its capabilities."""

    topic: str
    agent: str
    capability: str


class Broadcast(Struct, frozen=True):
    """What became of an event: its id, who will hear of it, and whose box was full."""

    id: str
    topic: str
    sent: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class Topics:
    """The topics of one core. Inside the bridge's loop."""

    def __init__(self, post: Post):
        self._post = post

    async def subscribe(self, wish: Subscription) -> None:
        """Have an agent told of a topic from now on; ``*`` in it stands for anything."""
        if _PATTERN.fullmatch(wish.topic) is None:
            raise ValidationError(f"{wish.topic[:100]!r} is no topic: letters, digits and . : / - _, with * for any.")
        database = await self._post.database()
        sql = "INSERT INTO a2a_subscriptions (topic, agent, capability, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        await database.many(sql, [(wish.topic, wish.agent, wish.capability, REAL.now())])

    async def unsubscribe(self, agent: str, topic: str | None = None) -> int:
        """Have an agent told no more, of one topic or of all; how many subscriptions there were."""
        database = await self._post.database()
        sql = "DELETE FROM a2a_subscriptions WHERE agent = ? AND (CAST(? AS TEXT) IS NULL OR topic = ?)"
        return await database.write(lambda tx: tx.run(sql, agent, topic, topic))

    async def subscribers(self, topic: str) -> list[Subscription]:
        """Who would hear of a topic now, in the order in which they subscribed."""
        database = await self._post.database()
        rows = await database.all("SELECT topic, agent, capability FROM a2a_subscriptions ORDER BY at, agent")
        every = [Subscription(row["topic"], row["agent"], row["capability"]) for row in rows]
        return [one for one in every if fnmatchcase(topic, one.topic)]

    async def broadcast(self, topic: str, event: str, letter: Callable[[Subscription], Letter]) -> Broadcast:
        """Put the letter for each subscriber into its box, all in one transaction."""
        if _TOPIC.fullmatch(topic) is None:
            raise ValidationError(f"{topic[:100]!r} is no topic: letters, digits and . : / - _, without *.")
        letters = [letter(one) for one in _each_once(await self.subscribers(topic))]
        boxes = [(one, await self._post.box(one.box)) for one in letters]

        async def work(tx: Transaction | None) -> list[bool]:
            return [await _put(one, box, tx) for one, box in boxes]

        put = await self._post.together(work) if boxes else []
        ended = list(zip((one.to for one in letters), put, strict=True))
        refused = tuple(agent for agent, kept in ended if not kept)
        if refused:
            log.warning("topic %s: the boxes of %s are full, event %s is not in them", topic, ", ".join(refused), event)
        return Broadcast(event, topic, tuple(agent for agent, kept in ended if kept), refused)


def _each_once(wishes: list[Subscription]) -> list[Subscription]:
    """One for each agent and capability, also where several of its patterns fit."""
    return list({(one.agent, one.capability): one for one in reversed(wishes)}.values())[::-1]


async def _put(letter: Letter, box: Box, tx: Transaction | None) -> bool:
    try:
        await letter.put(box, tx)
    except QueueFull:
        return False
    return True
