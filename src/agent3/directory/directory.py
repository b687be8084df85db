"""The directory: add, get, remove and search the agents that can be called.

Agents are in the database, shared by every process on it; those written in Python are only in the process that hosts
them, and come before stored ones of the same id. Reads come from memory, which follows the database by its version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from agent3.directory.search import Index
from agent3.env import Env
from agent3.errors import AgentNotFound, Corrupt
from agent3.model import Agent, encode
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.schema import nearest
from agent3.storage import Database, Row, Transaction
from agent3.storage.checksums import summed, whole
from agent3.storage.notifications import News

__all__ = ["Directory", "Hit"]

log = logger("directory")

_decoder: msgspec.json.Decoder[Agent] = msgspec.json.Decoder(Agent)
_FRESH = 0.5
"""Seconds for which memory is trusted without a look at the version in the database."""


class Hit(Struct, frozen=True):
    """An agent that was found, and how well it fits, from 0 to 1."""

    agent: Agent
    score: float


class Directory:
    """All agents of one gateway.

    What another process adds is seen at once where the database notifies, and everywhere within half a second. A stored
    agent that cannot be read is logged, counted and left out; it does not affect the others.
    """

    def __init__(self, database: Database, env: Env, metrics: Metrics = METRICS, news: News | None = None):
        self._database = database
        self._env = env
        self._metrics = metrics
        self._hosted: dict[str, Agent] = {}
        self._stored: dict[str, Agent] = {}
        self._version = -1
        self._checked = float("-inf")
        self._writes = 0
        self._index: Index | None = None
        self._lock = asyncio.Lock()
        self._news = news
        if news is not None:
            news.on("directory", lambda _: self._forget_check())

    def host(self, agent: Agent) -> None:
        """Show an agent that lives in this process, for as long as it lives."""
        self._hosted[agent.id] = agent
        self._index = None

    async def add(self, agent: Agent) -> None:
        """Store an agent, or a new state of it."""
        now = self._env.now()

        async def work(tx: Transaction) -> None:
            await tx.run(
                "INSERT INTO agents (id, body, added, updated) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET body = excluded.body, updated = excluded.updated",
                agent.id,
                summed(encode(agent)),
                now,
                now,
            )
            await _next_version(tx)

        await self._database.write(work)
        self._announce()

    async def renew(self, before: Agent, now: Agent) -> bool:
        """Store a new state of an agent, if it is still as it was; what was changed or removed meanwhile stays so."""
        at = self._env.now()

        async def work(tx: Transaction) -> bool:
            row = await tx.one("SELECT id, body FROM agents WHERE id = ?", before.id)
            if row is None or self._read(row) != before:
                return False
            body = summed(encode(now))
            await tx.run("UPDATE agents SET body = ?, updated = ? WHERE id = ?", body, at, before.id)
            await _next_version(tx)
            return True

        if renewed := await self._database.write(work):
            self._announce()
        return renewed

    async def remove(self, agent_id: str) -> None:
        """Forget a stored agent; AgentNotFound when there is none."""

        async def work(tx: Transaction) -> int:
            gone = await tx.run("DELETE FROM agents WHERE id = ?", agent_id)
            await _next_version(tx)
            return gone

        if not await self._database.write(work):
            raise AgentNotFound(f"There is no stored agent {agent_id[:100]!r} to remove.")
        self._announce()

    async def get(self, agent_id: str, visible: Callable[[Agent], bool] = lambda agent: True) -> Agent:
        """The agent of that id; AgentNotFound names the nearest one that the caller may see."""
        found = self._hosted.get(agent_id)
        if found is None:
            await self._refresh()
            found = self._stored.get(agent_id)
        if found is not None and visible(found):
            return found
        near = nearest(agent_id, [agent.id for agent in self._all() if visible(agent)])
        hint = f"Did you mean {near!r}?" if near else "Use agent3_search to find one."
        raise AgentNotFound(f"There is no agent {agent_id[:100]!r}. {hint}", data={"nearest": [near]} if near else None)

    def peek(self, agent_id: str) -> Agent | None:
        """The agent of that id from memory; None if the database would have to be asked."""
        found = self._hosted.get(agent_id)
        if found is None and self._env.monotonic() - self._checked < _FRESH:
            found = self._stored.get(agent_id)
        return found

    async def everything(self) -> list[Agent]:
        """All agents, by id."""
        await self._refresh()
        return sorted(self._all(), key=lambda agent: agent.id)

    async def search(
        self, query: str, limit: int = 10, visible: Callable[[Agent], bool] = lambda agent: True
    ) -> list[Hit]:
        """The agents that fit best. An exact name comes first; an empty query lists what there is."""
        await self._refresh()
        everything = {agent.id: agent for agent in self._all()}
        if self._index is None:
            self._index = Index(everything)
        ranked = self._index.search(query) if query.strip() else [(agent_id, 0.0) for agent_id in sorted(everything)]
        hits = (Hit(everything[agent_id], round(score, 4)) for agent_id, score in ranked)
        return [hit for hit in hits if visible(hit.agent)][:limit]

    def _all(self) -> Iterable[Agent]:
        return {**self._stored, **self._hosted}.values()

    async def _refresh(self) -> None:
        if self._env.monotonic() - self._checked < _FRESH:
            return
        async with self._lock:
            if self._env.monotonic() - self._checked < _FRESH:
                return
            writes = self._writes
            row = await self._database.one("SELECT value FROM counters WHERE name = 'directory'")
            version = row["value"] if row is not None else 0
            if version != self._version:
                rows = await self._database.all("SELECT id, body FROM agents")
                stored = map(self._read, rows)
                self._stored = {agent.id: agent for agent in stored if agent is not None}
                self._version, self._index = version, None
            if writes == self._writes:  # else what was written meanwhile would be seen half a second later
                self._checked = self._env.monotonic()

    def _read(self, row: Row) -> Agent | None:
        try:
            agent = _decoder.decode(whole(bytes(row["body"]), "It"))
            if agent.id != row["id"]:
                raise Corrupt(f"It is the card of {agent.id!r}.")
            return agent
        except (msgspec.MsgspecError, ValueError, TypeError, Corrupt) as error:
            log.error("agent %s cannot be read and is left out: %s. Add it again, or remove it.", row["id"], error)
            self._metrics.events_dropped.inc(("undecodable row",))
            return None

    def _announce(self) -> None:
        self._forget_check()
        if self._news is not None:
            self._news.tell("directory")

    def _forget_check(self) -> None:
        self._writes += 1
        self._checked = float("-inf")


async def _next_version(tx: Transaction) -> None:
    await tx.run(
        "INSERT INTO counters (name, value) VALUES ('directory', 1) "
        "ON CONFLICT (name) DO UPDATE SET value = counters.value + 1"
    )
