"""Events by topic: subscriptions, and one message in the mailbox of each subscriber.

Subscriptions are stored in the core's database beside the mailboxes. A subscriber may therefore run in another process,
or in none at the moment, and a broadcast is in all mailboxes or in none; only full ones are left out, and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from msgspec import Struct

from agent3.env import REAL
from agent3.errors import ValidationError
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.agents.mailboxes import Envelope, Mailboxes
from agent3.queue import QueueFull
from agent3.storage import Transaction

__all__ = ["Broadcast", "Subscription", "Topics"]

log = logger("a2a.events")

_TOPIC = re.compile(r"[\w.:/\-]{1,200}")
_PATTERN = re.compile(r"[\w.:/\-*]{1,200}")


class Subscription(Struct, frozen=True):
    """An agent, the topic it listens to, and the capability that gets the events."""

    topic: str
    agent: str
    capability: str


class Broadcast(Struct, frozen=True):
    """What became of an event: its id, the agents that get it, and those whose mailbox was full."""

    id: str
    topic: str
    sent: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class Topics:
    """The topics of one core. Only for the bridge's loop."""

    def __init__(self, mailboxes: Mailboxes):
        self._mailboxes = mailboxes

    async def subscribe(self, subscription: Subscription) -> None:
        """Subscribe an agent from now on; ``*`` in the topic stands for anything."""
        topic = subscription.topic
        if _PATTERN.fullmatch(topic) is None:
            raise ValidationError(
                f"{topic[:100]!r} is not a topic: use letters, digits and . : / - _, with * for anything."
            )
        database = await self._mailboxes.database()
        sql = "INSERT INTO a2a_subscriptions (topic, agent, capability, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        await database.many(sql, [(topic, subscription.agent, subscription.capability, REAL.now())])

    async def unsubscribe(self, agent: str, topic: str | None = None) -> int:
        """Unsubscribe an agent from one topic, or from all; how many subscriptions there were."""
        database = await self._mailboxes.database()
        sql = "DELETE FROM a2a_subscriptions WHERE agent = ? AND (CAST(? AS TEXT) IS NULL OR topic = ?)"
        return await database.write(lambda tx: tx.run(sql, agent, topic, topic))

    async def subscribers(self, topic: str) -> list[Subscription]:
        """The subscriptions that match a topic, in the order in which they were made."""
        database = await self._mailboxes.database()
        rows = await database.all("SELECT topic, agent, capability FROM a2a_subscriptions ORDER BY at, agent")
        subscriptions = [Subscription(row["topic"], row["agent"], row["capability"]) for row in rows]
        return [each for each in subscriptions if fnmatchcase(topic, each.topic)]

    async def broadcast(self, topic: str, event: str, seal: Callable[[Subscription], Envelope]) -> Broadcast:
        """Put an event into the mailbox of each subscriber, all in one transaction."""
        if _TOPIC.fullmatch(topic) is None:
            raise ValidationError(f"{topic[:100]!r} is not a topic: use letters, digits and . : / - _, without *.")
        subscriptions = await self.subscribers(topic)
        # One event for each agent and capability, also if several of its patterns match; its oldest place counts.
        unique = {(each.agent, each.capability): each for each in reversed(subscriptions)}
        envelopes = [seal(each) for each in reversed(unique.values())]
        queues = [await self._mailboxes.open(envelope.box) for envelope in envelopes]

        async def work(tx: Transaction | None) -> tuple[list[str], list[str]]:
            sent, refused = [], []
            for envelope, queue in zip(envelopes, queues, strict=True):
                try:
                    await envelope.put(queue, tx)
                    sent.append(envelope.to)
                except QueueFull:
                    refused.append(envelope.to)
            return sent, refused

        sent, refused = await self._mailboxes.write_together(work) if envelopes else ([], [])
        if refused:
            log.warning(
                "topic %s: the mailboxes of %s are full and will miss event %s", topic, ", ".join(refused), event
            )
        return Broadcast(event, topic, tuple(sent), tuple(refused))
