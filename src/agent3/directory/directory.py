"""The directory: add, get, remove and search the agents that can be called.

Agents are in the database, shared by every process on it; those written in Python are only in the process that hosts
them, and come before stored ones of the same id. Reads come from memory, which follows the database by its version:
only what changed is read again and indexed, and what takes long does so in a thread. Stored agents are kept packed;
an agent is an object while somebody uses it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import ChainMap, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.arrays import NDArray, np
from agent3.directory.choice import Choices, closest, index_capabilities
from agent3.directory.documents import documents_of, explain
from agent3.directory.meaning import WIDTH, Encoder, Vectors, encode_agent, fingerprint
from agent3.directory.names import LONGEST, Names, fold
from agent3.directory.packed import Packed, PackedAgents, pack
from agent3.directory.routes import Routes
from agent3.directory.search import Index, Match, Ranking, rank_agents
from agent3.directory.segments import paced, release_memory
from agent3.directory.stand_ins import bare
from agent3.env import Env
from agent3.errors import Agent3Error, AgentNotFound, Corrupt, StorageError
from agent3.model import Agent, Capability, encode
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.schema import nearest
from agent3.settings import StandInRoute
from agent3.storage import Database, Row, Transaction
from agent3.storage.audit import ACTOR, record_change
from agent3.storage.checksums import append_checksum, whole
from agent3.storage.counters import increase
from agent3.storage.notifications import News

__all__ = ["Accept", "Directory", "Hit", "Hits"]

log = logger("directory")
T = TypeVar("T")

_decoder: msgspec.json.Decoder[Agent] = msgspec.json.Decoder(Agent)
_FRESH = 0.5
"""Seconds for which memory is trusted without a look at the version in the database."""
_AHEAD = 0.25
"""Seconds after which it is looked at beforehand, as long as somebody asks."""
_PATIENCE = 2.0
"""Seconds for which a look at that version may take; then memory is served."""
_PAGE = 200
"""Agents that are read from the database at a time."""
_DECODED_HERE = 50_000
"""Bytes of cards that are decoded in the event loop: a fraction of a millisecond. More is done in a thread."""
_LARGE, _GROWN = 2_000, 1.1
_NEVER = 1_000_000_000
_RANKED_HERE = 20_000
"""Capabilities up to which a query is answered in the event loop: it takes less than going to a thread and back."""
_INDEXED_HERE = 20
"""Capabilities of one agent that are indexed in the event loop, for a message that names none of them."""
_CHOSEN = 500
"""Agents whose capabilities are kept indexed for that."""
_AT_ONCE = 200
"""Matches that are looked at before others may run."""
_ENCODED = 8
"""Capabilities whose texts are encoded together."""
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds after which vectors that could not be read or kept are tried again: at first, and at most."""
_NEAR = 100
"""Ids on each side of an unknown one among which that is looked for that was meant."""
_HINTS = 3
"""Of these, how many are tried until the caller may see one."""
_TOGETHER = 50
"""Agents that are unpacked in a thread at a time."""
_INDEXED_TOGETHER = 100
"""Agents that are indexed before others may write the index, and its segments are tidied."""
_FEW = 500
"""Capabilities that every search waits for until they are indexed; where there are more, one may answer without."""
_MOST_NAMED = 1_000
"""New agents with one name that a search looks at."""
_MOMENT = 0.1
"""Seconds after which it looks again whether that is so."""
_REMEMBERED = 10_000
"""Changes that ``changed_since`` knows of."""
_OF_AGENTS = ("agent_vectors", "prices", "feedback", "agent_use", "reputation")
"""Tables with rows of single agents, which go with them."""
_REMOVALS = 10_000
"""Versions for which a removal is remembered. A process that is further behind reads everything again."""

Accept: TypeAlias = Callable[[Agent, Capability | None], bool]
"""Whether a capability is wanted, and may be seen; None stands for an agent that offers none."""


class Hit(Struct, frozen=True):
    """A capability that was found, how well it fits, from 0 to 1, and the words of the query by their terms.

    ``capability`` is None for an agent that offers none, and in a list of agents. The ``score`` of an exact name is 1;
    ``fit`` is what the words alone say, which tells the capabilities of an agent apart that was named exactly.
    """

    agent: Agent
    capability: Capability | None
    score: float
    wanted: Mapping[str, str] = {}
    fit: float = 1.0

    @property
    def why(self) -> Mapping[str, Sequence[str]]:
        """Which words of the query are in which field: found out each time, from all texts of the capability."""
        return explain(self.agent, self.capability, self.wanted) if self.wanted else {}


class Hits(list[Hit]):
    """What was found, the best first."""

    indexing: tuple[int, int] | None = None
    """How many agents of how many it was looked for in, where that was not all of them."""


class _Change(NamedTuple):
    """A change that the index does not know yet. Each is an object of its own: the latest of an agent is the one."""

    weight: int
    named: Packed | None
    """Its names, where they are looked for already; None for a removal."""


class Directory:
    """All agents of one gateway.

    What another process adds is seen at once where the database notifies, by a search, and by whoever asks for its id.
    What is changed or removed follows everywhere within half a second. A stored agent that cannot be read is logged,
    counted and left out; it does not affect the others.
    """

    def __init__(
        self,
        database: Database,
        env: Env,
        metrics: Metrics = METRICS,
        news: News | None = None,
        routes: Sequence[StandInRoute] = (),
        encoder: Encoder | None = None,
    ):
        self._database = database
        self._env = env
        self._metrics = metrics
        self._hosted: dict[str, Agent] = {}
        self._stored = PackedAgents()
        self._version = -1
        self._away = False
        self._checked = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._writes = 0
        self._index = Index()
        self._changes: dict[str, _Change] = {}
        """What the index does not know yet."""
        self._new_names = Names()
        """By what that is named exactly."""
        self._behind = 0
        """How many capabilities that is, with those that are being indexed."""
        self._unread = 0
        """How many agents of the database have not been read yet, while they are."""
        self._generation = 0
        self._changed: deque[str] = deque(maxlen=_REMEMBERED)
        """The agents that the latest changes were of, one for each of the last generations."""
        self._vectors = Vectors(encoder) if encoder is not None else None
        self._unembedded: dict[str, _Change] = {}
        self._departed: deque[str] = deque(maxlen=_REMEMBERED)
        """Addresses at which no stored agent is reached any more, in the order in which they were left."""
        self._departures = 0
        self._embedding: asyncio.Task[None] | None = None
        self._chosen: dict[str, tuple[Agent, Choices]] = {}
        """What messages to single agents are compared with, for as long as these stay the same."""
        self._lock = asyncio.Lock()
        self._indexing = asyncio.Lock()
        self._tidying: asyncio.Task[None] | None = None
        self._spared = 0
        """How large the catalogue was when the garbage collector was last kept from it."""
        self._following: asyncio.Task[None] | None = None
        self._is_begun = False
        self._news = news
        if news is not None:
            news.on("directory", lambda _: self._forget_check())
        agents = ChainMap(self._hosted, self._stored)
        self.routes = Routes(database, routes, self._refresh, self._announce, lambda: agents)
        """Whose capabilities stand in for whose: what is given out by ``get`` and the others has their routes."""

    def host(self, agent: Agent) -> None:
        """Show an agent that lives in this process, for as long as it lives."""
        self._hosted[agent.id] = agent
        self._change(agent.id, pack(agent))
        self.routes.drop()
        self._changed.clear()  # stand-ins may come and go with it
        self._generation += 1

    async def find_hidden(self) -> list[str]:
        """Ids of stored agents that nobody sees here, because one that lives in this process has the same."""
        hosted = [*self._hosted]
        if not hosted:
            return []
        marks = ", ".join("?" * len(hosted))
        rows = await self._database.all(f"SELECT id FROM agents WHERE id IN ({marks}) ORDER BY id", *hosted)
        return [row["id"] for row in rows]

    async def add(self, agent: Agent) -> None:
        """Store an agent, or a new state of it."""
        agent, now, who = bare(agent), self._env.now(), ACTOR.get()

        async def work(tx: Transaction) -> None:
            version = await increase(tx, "directory")
            await tx.run(
                "INSERT INTO agents (id, body, added, updated, version) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) "
                "DO UPDATE SET body = excluded.body, updated = excluded.updated, version = excluded.version",
                agent.id,
                append_checksum(encode(agent)),
                now,
                now,
                version,
            )
            await tx.run("DELETE FROM agents_removed WHERE id = ?", agent.id)
            await record_change(tx, self._env, "agent stored", agent.id, encode(agent), who)

        await self._database.write(work)
        self._announce()

    async def renew(self, before: Agent, now: Agent) -> bool:
        """Store a new state of an agent, if it is still as it was; what was changed or removed meanwhile stays so."""
        at, known, who = self._env.now(), bare(before), ACTOR.get()

        async def work(tx: Transaction) -> bool:
            row = await tx.one("SELECT id, body FROM agents WHERE id = ?", before.id)
            if row is None or self._read(row) != known:
                return False
            version, body = await increase(tx, "directory"), append_checksum(encode(bare(now)))
            await tx.run(
                "UPDATE agents SET body = ?, updated = ?, version = ? WHERE id = ?", body, at, version, before.id
            )
            await record_change(tx, self._env, "agent renewed", before.id, encode(bare(now)), who)
            return True

        if renewed := await self._database.write(work):
            self._announce()
        return renewed

    async def remove(self, agent_id: str) -> None:
        """Forget a stored agent; AgentNotFound when there is none."""
        who = ACTOR.get()

        async def work(tx: Transaction) -> int:
            gone = await tx.run("DELETE FROM agents WHERE id = ?", agent_id)
            if gone:
                version = await increase(tx, "directory")
                await tx.run(
                    "INSERT INTO agents_removed (id, version) VALUES (?, ?) "
                    "ON CONFLICT (id) DO UPDATE SET version = excluded.version",
                    agent_id,
                    version,
                )
                await tx.run("DELETE FROM agents_removed WHERE version < ?", version - _REMOVALS)
                for table in _OF_AGENTS:
                    await tx.run(f"DELETE FROM {table} WHERE agent = ?", agent_id)
                await tx.run("DELETE FROM routes WHERE agent = ? OR by_agent = ?", agent_id, agent_id)
                own = f",{msgspec.json.encode(agent_id).decode()}]"  # the end of a key, of a budget for each agent
                await tx.run("DELETE FROM budget_spent WHERE substr(key, length(key) - ? + 1) = ?", len(own), own)
                await increase(tx, "prices")
                await record_change(tx, self._env, "agent removed", agent_id, None, who)
            return gone

        if not await self._database.write(work):
            raise AgentNotFound(f"Agent {agent_id[:100]!r} is not a stored agent, so it cannot be removed.")
        self._announce()

    async def get(self, agent_id: str, visible: Callable[[Agent], bool] = lambda agent: True) -> Agent:
        """The agent of that id; AgentNotFound names the nearest one that the caller may see."""
        try:
            await self._refresh()
        except StorageError:
            if agent_id not in self._hosted:  # what lives here needs no database, only its stand-ins do
                raise
        found = self.find(agent_id)
        if found is None:
            # Another process may have added it within the last half second, and said so to whoever calls now.
            await self._refresh(since=self._env.monotonic())
            found = self.find(agent_id)
        if found is not None and visible(found):
            return found
        near = self._find_near(agent_id, visible)
        hint = f"Did you mean {near!r}?" if near else "Use agent3_search to find one."
        raise AgentNotFound(
            f"Agent {agent_id[:100]!r} does not exist. {hint}", data={"nearest": [near]} if near else None
        )

    def _find_near(self, agent_id: str, visible: Callable[[Agent], bool]) -> str | None:
        """The id that was probably meant, among those beside it: of these, only one that the caller may see."""
        pool = dict.fromkeys([*self._stored.around(agent_id, _NEAR), *islice(self._hosted, 2 * _NEAR)])
        for _ in range(_HINTS):
            near = nearest(agent_id, pool)
            if near is None:
                break
            if (agent := self.find(near)) is not None and visible(agent):
                return near
            del pool[near]
        return None

    def peek(self, agent_id: str) -> Agent | None:
        """The agent of that id from memory; None if the database would have to be asked.

        Whoever peeks has the database asked before that is so, and meanwhile goes on by what is known.
        """
        age = self._env.monotonic() - self._checked
        if age >= _FRESH:
            return None
        if age >= _AHEAD and self._looking is None:
            self._looking = asyncio.create_task(self._refresh(age=_AHEAD))
            self._looking.add_done_callback(self._end_looking)
        return self.find(agent_id)

    def _end_looking(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # it comes again to the first who waits for the database

    def find(self, agent_id: str) -> Agent | None:
        """The agent of that id, as of the last look at the database."""
        return self.routes.backed().get(agent_id) or self._hosted.get(agent_id) or self._stored.get(agent_id)

    async def generation(self) -> int:
        """A number that grows with every change of what this process knows, hosted agents and stand-ins among it."""
        await self._refresh()
        return self._generation

    def peek_generation(self) -> int | None:
        """Likewise from memory; None if the database would have to be asked."""
        return self._generation if self._is_fresh() else None

    def changed_since(self, generation: int) -> set[str] | None:
        """The agents that were added, changed or removed since; None where that was too long ago to know."""
        count = self._generation - generation
        return set(islice(reversed(self._changed), count)) if count <= len(self._changed) else None

    async def each(self) -> AsyncIterator[Agent]:
        """All agents, by id; some at a time are looked up and unpacked in a thread, so that nobody waits for it."""
        await self._refresh()
        after = ""
        while some := self._ids_after(after):
            after = some[-1]
            packed = [one for one in some if one not in self._hosted]
            fresh = {}
            if packed:
                fresh = await asyncio.to_thread(lambda: {one: self._stored.unpack(one) for one in paced(packed, 4)})  # noqa: B023
            backed = self.routes.backed()
            for agent_id in some:
                found = backed.get(agent_id) or self._hosted.get(agent_id) or fresh.get(agent_id)
                if found is not None:
                    yield found

    def _ids_after(self, after: str) -> list[str]:
        """The next ids in their order."""
        hosted = sorted(one for one in self._hosted if one > after)
        return list(islice(dict.fromkeys(merge(hosted, self._stored.after(after, _TOGETHER))), _TOGETHER))

    async def everything(self) -> list[Agent]:
        """All agents, by id, as objects. Of a large directory that is much: ``each`` gives them one by one."""
        return [agent async for agent in self.each()]

    async def having(self, capability: str) -> list[str]:
        """The ids of the agents that have a capability of this name."""
        await self._catch_up(whole=True)
        return [one for one in self._index.having(capability) if self.find(one) is not None]

    async def reached_at(self, address: str) -> list[Agent]:
        """The stored agents that are reached at an address."""
        await self._refresh()
        found = map(self.find, self._stored.reached_at(address))
        return [agent for agent in found if agent is not None]

    def departed_since(self, number: int) -> tuple[int, set[str]]:
        """Addresses that no stored agent has any more and some had; a number for the next time that this is asked."""
        count = min(self._departures - number, len(self._departed))
        return self._departures, self.departed(islice(reversed(self._departed), count))

    def departed(self, addresses: Iterable[str]) -> set[str]:
        """Those of some addresses that no stored agent has."""
        return {address for address in addresses if not self._stored.reached_at(address)}

    async def version(self) -> int:
        """A number that grows with every change of the stored agents, in whichever process it is made."""
        await self._refresh()
        return self._version

    # Searching

    async def search(
        self,
        query: str,
        limit: int = 10,
        accept: Accept = lambda agent, capability: True,
        *,
        whole: bool = True,
    ) -> Hits:
        """The capabilities that fit best. An exact name comes first; an empty query lists the agents, by id.

        The ranking is read until enough was accepted, so that what a search costs does not grow with what is below.
        Unless it is to be of the ``whole`` directory, it does not wait until many new agents are indexed; of these it
        then finds those that are named exactly.
        """
        if not query.strip():
            return Hits(await self._list(limit, accept))
        indexing = await self._catch_up(whole)
        named: dict[tuple[str, str | None], Match] = {}
        if indexing is not None and len(query) <= LONGEST:
            await self._read_early(query.strip())
            # Before the ranking: what is no longer among the changes then is in the index.
            named = self._find_new(query)
        ranking = await self._rank(query, limit)
        matches = chain(named.values(), (match for match in ranking if match[:2] not in named))
        found = await self._walk(matches, limit, accept)
        wanted = ranking.query.words
        hits = Hits(Hit(agent, capability, match.score, wanted, match.fit) for agent, capability, match in found)
        hits.indexing = indexing
        return hits

    async def work(self, of_hits: Callable[[], T]) -> T:
        """What is to be done with some hits: in a thread where there are so many that their texts may be long."""
        return await asyncio.to_thread(of_hits) if len(self._index) > _RANKED_HERE else of_hits()

    async def find_agents(
        self, query: str, limit: int = 10, accept: Accept = lambda agent, capability: True
    ) -> list[Hit]:
        """The agents that fit best, by their best capability and a little of their others."""
        if not query.strip():
            return await self._list(limit, accept)
        await self._catch_up(whole=True)
        most = max(100, 10 * limit)
        found = await self._walk(await self._rank(query, most), most, accept)
        agents = {agent.id: agent for agent, _, _ in found}
        return [Hit(agents[one], None, score) for one, score in rank_agents(match for *_, match in found)[:limit]]

    async def choose(self, agent: Agent, offered: Sequence[Capability], message: str) -> Capability | None:
        """The offered capability of an agent that a message clearly means, by words, and by meaning where an encoder is
        installed and has read the agent; None where that is not clear, or where none comes near.
        """
        now = self._env.now()
        # Always in a thread: where words do not decide, the message is read for some of them, word by word.
        known = await self._find_choices(agent)
        return await asyncio.to_thread(known.choose, offered, message, now)

    async def closest(self, agent: Agent, offered: Sequence[Capability], message: str, most: int) -> list[Capability]:
        """The offered capabilities that come closest to a message, so many at most."""
        known = await self._find_choices(agent)
        if len(offered) <= _INDEXED_HERE:
            return closest(known.index, offered, message, most)
        return await asyncio.to_thread(closest, known.index, offered, message, most)

    async def _find_choices(self, agent: Agent) -> Choices:
        """What is known of the capabilities of one agent; found out in a thread where they are many, or encoded."""
        known = self._chosen.get(agent.id)
        vectors = None if self._vectors is None else self._vectors.take(self._index.numbers_of(agent.id))
        if vectors is not None and len(vectors) != len(agent.capabilities):
            vectors = None  # of another state of the agent
        if known is None or known[0] is not agent or (vectors is not None and known[1].encoder is None):
            encoder = None if self._vectors is None else self._vectors.encoder
            if len(agent.capabilities) <= _INDEXED_HERE and vectors is None:
                known = agent, Choices(agent.capabilities)
            else:
                index = await asyncio.to_thread(index_capabilities, paced(agent.capabilities, every=4))
                known = agent, await asyncio.to_thread(Choices, agent.capabilities, encoder, vectors, index)
            if len(self._chosen) >= _CHOSEN:
                self._chosen.pop(next(iter(self._chosen)))
            self._chosen[agent.id] = known
        return known[1]

    def _progress(self) -> tuple[int, int] | None:
        """How many agents of how many can be found, while the others are so many that a search need not wait."""
        if not self._is_begun or self._behind + self._unread <= _FEW:
            return None
        there = len(self._hosted) + len(self._stored) + self._unread
        return min(self._index.agents, there), there

    def _find_new(self, query: str) -> dict[tuple[str, str | None], Match]:
        """The capabilities that the index does not know yet and that are named exactly."""
        found: dict[tuple[str, str | None], Match] = {}
        for agent_id, wanted in islice(self._new_names.find(query), _MOST_NAMED):
            change = self._changes.get(agent_id)
            if change is not None and change.named is not None:
                names = change.named.names or (None,)
                chosen = (name for name in names if wanted in (None, name and fold(name)))
                found |= {(agent_id, name): Match(agent_id, name, 1.0) for name in chosen}
        return found

    async def _rank(self, query: str, most: int) -> Ranking:
        """What fits a query; in a thread where that is much, with the agents that are likely to be looked at."""
        vectors = self._vectors if self._vectors is not None and len(self._vectors) else None
        if vectors is None and len(self._index) <= _RANKED_HERE and not self._behind:
            return self._index.rank(query)

        def rank() -> tuple[Ranking, list[tuple[Packed, Agent]]]:
            ranking = self._index.rank(query)
            if vectors is not None:
                ranking = vectors.fuse(query, ranking)
            likely = dict.fromkeys(match.agent for match in islice(ranking, most))
            return ranking, self._stored.unpack_new(paced(likely, every=4))

        ranking, unpacked = await asyncio.to_thread(rank)
        self._stored.take_new(unpacked)
        return ranking

    async def _walk(
        self, ranking: Iterable[Match], limit: int, accept: Accept
    ) -> list[tuple[Agent, Capability | None, Match]]:
        found: list[tuple[Agent, Capability | None, Match]] = []
        for number, match in enumerate(ranking):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            agent = self.find(match.agent)
            if agent is None:
                continue
            capability = agent.capability(match.capability) if match.capability is not None else None
            if (capability is None) is (match.capability is None) and accept(agent, capability):
                found.append((agent, capability, match))
                if len(found) >= limit:
                    break
        return found

    async def _list(self, limit: int, accept: Accept) -> list[Hit]:
        await self._refresh(self._env.monotonic(), needed=False)
        found: list[Hit] = []
        async for agent in self.each():
            if any(accept(agent, capability) for capability in agent.capabilities or (None,)):
                found.append(Hit(agent, None, 0.0))
                if len(found) >= limit:
                    break
        return found

    def begin_indexing(self) -> None:
        """Index what there is from now on. A search that comes meanwhile need not wait for all of it."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("the first search will index the agents: %s", error)

        self._is_begun = True
        self._follow().add_done_callback(ended)

    async def _catch_up(self, whole: bool) -> tuple[int, int] | None:
        """Wait until what was written before can be found; unless ``whole``, only for a moment where that is much.

        Where it did not wait: how many agents of how many can be found.
        """
        since = self._env.monotonic()
        if not self._behind and self._following is None and await self._is_current(since):
            return None
        for _ in range(2):  # the one that runs may have looked at the database too early
            if self._is_as_of(since) and not self._behind:
                break
            runs = self._following is not None
            following = self._following or self._follow(since)
            while not following.done():
                if not whole and (indexing := self._progress()) is not None:
                    return indexing
                await asyncio.wait({following}, timeout=_MOMENT)
            following.result()
            if not runs:
                break
        return None

    def _is_as_of(self, since: float) -> bool:
        """Whether memory is as the database was then; while that is away, as of its last look."""
        return self._is_fresh() if self._away else self._checked >= since

    async def _is_current(self, since: float) -> bool:
        """Whether memory is as the database is now, as it mostly is: one value tells."""
        if self._is_as_of(since) or self._version < 0:
            return self._is_as_of(since)
        began, writes = self._env.monotonic(), self._writes
        version = await self._read_version(None)
        if version is not None and (version != self._version or writes != self._writes):
            return False
        self._checked = began
        return not self._behind

    def _follow(self, since: float | None = None) -> asyncio.Task[None]:
        """Read what the database has and index it, a part while the next one is read."""

        async def follow() -> None:
            reading = asyncio.create_task(self._refresh(since, needed=False))
            try:
                with _beside_the_loop():
                    while not reading.done():
                        await asyncio.wait({reading}, timeout=_MOMENT)
                        await self._update_index()
                    await reading
                    await self._update_index()
                    if not self._changes:  # a dict that was large stays so
                        self._changes, self._new_names = {}, Names()
                    self._spare_collector()
            finally:
                reading.cancel()

        def ended(task: asyncio.Task[None]) -> None:
            self._following = None
            if not task.cancelled():
                task.exception()  # whoever waited has it; nobody may have

        self._following = asyncio.create_task(follow())
        self._following.add_done_callback(ended)
        return self._following

    async def _update_index(self) -> None:
        """Let the index know what changed: a thread reads the texts, and pauses for the event loop."""
        while self._changes:
            async with self._indexing:
                changes = dict(islice(self._changes.items(), _INDEXED_TOGETHER))
                await asyncio.to_thread(_index_changes, self._index, changes, self._find_bare, self._vectors)
                # Only now: what is cancelled is indexed again, and whoever waits for this sees that it is not done.
                for agent_id, change in changes.items():
                    if self._changes[agent_id] is change:  # else it changed again
                        self._forget_change(agent_id)
            if self._vectors is not None:
                for agent_id, change in changes.items():
                    self._unembedded.pop(agent_id, None)
                    if change.named is not None:
                        self._unembedded[agent_id] = change
                if self._unembedded and self._embedding is None:
                    self._embedding = asyncio.create_task(self._embed(self._vectors))
            if self._tidying is None and self._index.plan():
                self._tidying = asyncio.create_task(self._tidy())

    async def _tidy(self) -> None:
        try:
            with _beside_the_loop():
                while plan := self._index.plan():
                    built = await asyncio.to_thread(self._index.build, plan)
                    async with self._indexing:
                        await asyncio.to_thread(self._index.swap, plan, built)
                    del plan, built
                    if len(self._index) > _RANKED_HERE:
                        await asyncio.to_thread(release_memory)
                self._spare_collector()
        finally:
            self._tidying = None

    def _spare_collector(self) -> None:
        """Keep the garbage collector from walking through a large catalogue: it would hold the event loop for 0.1 s.

        Only where it has grown since: whatever cycles are garbage at the moment are never freed.
        """
        size = len(self._index) + len(self._stored)
        if size > max(_LARGE, _GROWN * self._spared):
            self._spared = size
            gc.freeze()

    async def embed(self) -> None:
        """Wait until every agent that is known now can be found by its meaning; searches do so without waiting."""
        await self._refresh()
        await self._update_index()
        while self._embedding is not None:
            await asyncio.shield(self._embedding)

    async def aclose(self) -> None:
        """End what goes on in the background. A thread at work ends by itself."""
        running = [
            task for task in (self._following, self._tidying, self._embedding, self._looking) if task is not None
        ]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _embed(self, vectors: Vectors) -> None:
        """Give the capabilities of new agents their vectors, until all have them.

        One that fails does not hold up the others: while the database is away it is tried again, later each time.
        """
        pause = _PAUSE
        try:
            while self._unembedded:
                agent_id, change = next(iter(self._unembedded.items()))
                try:
                    await self._embed_agent(vectors, agent_id, change)
                except Agent3Error as error:
                    log.warning("search by meaning is delayed: %s. Search by words works.", error)
                    self._metrics.events_dropped.inc(("search vectors",))
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    if self._unembedded.get(agent_id) is change:  # to the end
                        self._unembedded[agent_id] = self._unembedded.pop(agent_id)
                    continue
                except Exception:  # of the encoder: it would fail again
                    log.exception("%s cannot be found by meaning; search by words still finds it.", agent_id)
                    self._metrics.events_dropped.inc(("search vectors",))
                pause = _PAUSE
                if self._unembedded.get(agent_id) is change:  # else it changed meanwhile
                    del self._unembedded[agent_id]
        finally:
            self._embedding = None

    async def _embed_agent(self, vectors: Vectors, agent_id: str, change: _Change) -> None:
        """Its vectors are those that are kept, else from the encoder."""
        agent = await asyncio.to_thread(self._find_bare, agent_id)
        if agent is None:
            return
        mark = await asyncio.to_thread(fingerprint, agent)
        row = await self._database.one(
            "SELECT body FROM agent_vectors WHERE agent = ? AND fingerprint = ?", agent.id, mark
        )
        kept = (
            bytes(row["body"])
            if row is not None and len(row["body"]) == max(1, len(agent.capabilities)) * WIDTH
            else None
        )
        made = await asyncio.to_thread(_vectors_of, vectors, agent, kept)
        is_same = self._unembedded.get(agent_id) is change and agent_id not in self._changes
        if kept is None and is_same and agent_id not in self._hosted:
            await self._keep_vectors(agent.id, mark, made.tobytes())
        async with self._indexing:
            numbers = self._index.numbers_of(agent.id)
            is_same = self._unembedded.get(agent_id) is change and agent_id not in self._changes
            if is_same and len(numbers) == len(made):
                await asyncio.to_thread(vectors.put, numbers, made)

    async def _keep_vectors(self, agent_id: str, mark: str, body: bytes) -> None:
        async def work(tx: Transaction) -> None:
            if await tx.one("SELECT id FROM agents WHERE id = ?", agent_id) is not None:
                await tx.run(
                    "INSERT INTO agent_vectors (agent, fingerprint, body) VALUES (?, ?, ?) "
                    "ON CONFLICT (agent) DO UPDATE SET fingerprint = excluded.fingerprint, body = excluded.body",
                    agent_id,
                    mark,
                    body,
                )

        await self._database.write(work)

    # Following the database

    def _is_fresh(self) -> bool:
        return self._env.monotonic() - self._checked < _FRESH

    async def _refresh(self, since: float | None = None, age: float = _FRESH, *, needed: bool = True) -> None:
        """Follow the database, unless it was looked at in the last half second, or after ``since``.

        Where what is newer than memory is not ``needed``, memory does while the database is away.
        """
        if self._away and not needed:
            since = None
        if since is None and self._env.monotonic() - self._checked < age:
            return
        async with self._lock:
            if self._checked > (self._env.monotonic() - age if since is None else since):
                return
            began, writes = self._env.monotonic(), self._writes
            version = await self._read_version(since if needed else None)
            if version is None:
                self._checked = self._env.monotonic()
                return
            if version != self._version:
                generation = self._generation
                try:
                    if 0 <= self._version < version <= self._version + _REMOVALS:
                        self._unread = version - self._version
                        await self._read_changes()
                    else:  # for the first time, from a restored backup, or after a long pause
                        row = await self._database.one("SELECT COUNT(*) AS agents FROM agents")
                        self._unread = row["agents"] if row is not None else 0
                        await self._read_everything()
                finally:
                    self._unread = 0
                self._note_changes(await self.routes.load(self.changed_since(generation)))
                self._version = version
            if writes == self._writes:  # else what was written meanwhile would be seen half a second later
                self._checked = began

    async def _read_version(self, since: float | None) -> int | None:
        """The version in the database; None where it is away, and what is known here must do until it is back.

        StorageError where nothing is known here yet, or something newer than memory is wanted.
        """
        known = self._version >= 0 and since is None
        try:
            async with asyncio.timeout(_PATIENCE if known else None):
                row = await self._database.one("SELECT value FROM counters WHERE name = 'directory'")
        except (StorageError, TimeoutError) as error:
            if not known or isinstance(error, Corrupt):
                raise
            if not self._away:
                log.warning("the directory is served from memory, since the database is unavailable: %s", error)
            self._away = True
            self._metrics.events_dropped.inc(("directory not followed",))
            return None
        self._away = False
        return row["value"] if row is not None else 0

    async def _read_changes(self) -> None:
        # Removals first: an agent that is added again in between is then found by the second query.
        for row in await self._database.all("SELECT id FROM agents_removed WHERE version > ?", self._version):
            self._keep(row["id"], None)
        after = self._version
        while rows := await self._database.all(
            f"SELECT id, body, version FROM agents WHERE version > ? ORDER BY version LIMIT {_PAGE}", after
        ):
            after = rows[-1]["version"]
            for agent_id, packed in await self._decode(rows):
                self._keep(agent_id, packed)

    async def _read_everything(self) -> None:
        left, after = set(self._stored), ""
        while rows := await self._database.all(
            f"SELECT id, body FROM agents WHERE id > ? ORDER BY id LIMIT {_PAGE}", after
        ):
            after = rows[-1]["id"]
            for agent_id, packed in await self._decode(rows):
                left.discard(agent_id)
                self._keep(agent_id, packed)
        for agent_id in left:
            self._keep(agent_id, None)

    async def _read_early(self, agent_id: str) -> None:
        """Read an agent before its turn, while everything is read."""
        if self._unread:
            rows = await self._database.all(
                "SELECT id, body FROM agents WHERE id IN (?, ?)", agent_id, agent_id.casefold()
            )
            for found, packed in await self._decode(rows):
                if packed is not None and found not in self._stored:
                    self._keep(found, packed)

    def _keep(self, agent_id: str, packed: Packed | None) -> None:
        before = self._stored.describe(agent_id)
        if packed is None:
            if before is None:
                return
            del self._stored[agent_id]
        else:
            self._stored.put(agent_id, packed)
        for address in () if before is None else before.addresses:
            if not self._stored.reached_at(address):
                self._departed.append(address)
                self._departures += 1
        self._unread = max(0, self._unread - 1)
        if agent_id not in self._hosted:
            self._change(agent_id, packed)
            self._note_changes([agent_id])

    def _change(self, agent_id: str, packed: Packed | None) -> None:
        if agent_id in self._changes:
            self._forget_change(agent_id)
        change = self._changes[agent_id] = _Change(max(1, len(packed.names)) if packed is not None else 1, packed)
        self._behind += change.weight
        if packed is not None:
            self._new_names.put(agent_id, packed.title, packed.names)

    def _forget_change(self, agent_id: str) -> None:
        change = self._changes.pop(agent_id)
        self._behind -= change.weight
        if change.named is not None:
            self._new_names.remove(agent_id, change.named.title)

    def _find_bare(self, agent_id: str) -> Agent | None:
        """The agent of that id by its own routes alone, in any thread."""
        return self._hosted.get(agent_id) or self._stored.unpack(agent_id)

    def _note_changes(self, agents: Iterable[str]) -> None:
        for agent_id in agents:
            self._changed.append(agent_id)
            self._generation += 1

    async def _decode(self, rows: Sequence[Row]) -> list[tuple[str, Packed | None]]:
        def decode() -> list[tuple[str, Packed | None]]:
            return [(row["id"], self._pack(row)) for row in paced(rows, every=4)]

        if sum(len(row["body"]) for row in rows) <= _DECODED_HERE:
            return [(row["id"], self._pack(row)) for row in rows]
        return await asyncio.to_thread(decode)

    def _pack(self, row: Row) -> Packed | None:
        agent = self._read(row)
        return None if agent is None else pack(agent, whole(bytes(row["body"]), "It"))

    def _read(self, row: Row) -> Agent | None:
        try:
            agent = _decoder.decode(whole(bytes(row["body"]), "It"))
            if agent.id != row["id"]:
                raise Corrupt(f"That is the card of {agent.id!r}.")
            return agent
        except (msgspec.MsgspecError, ValueError, TypeError, Corrupt) as error:
            log.error("ignoring agent %s, which cannot be read: %s. Add it again, or remove it.", row["id"], error)
            self._metrics.events_dropped.inc(("undecodable row",))
            return None

    def _announce(self) -> None:
        self._forget_check()
        if self._news is not None:
            self._news.tell("directory")

    def _forget_check(self) -> None:
        self._writes += 1
        self._checked = float("-inf")


_busy: list[Any] = [0, (), 0.0]
"""How many read or index a catalogue, and the thresholds of the collector and the switch interval from before."""
_YOUNG = 500
"""New objects that it looks at together meanwhile: most of them stay, so that each look takes its full time."""
_SWITCH = 0.0005
"""Seconds after which a thread gives the interpreter to another that wants it. By default they are 5 ms, and with
several threads at work the event loop waited for up to 12."""


@contextmanager
def _beside_the_loop() -> Iterator[None]:
    """While threads read and index a large catalogue, keep them and the garbage collector from holding the event loop:
    each walk of the collector through objects that have survived it would do so for up to 0.1 s.
    """
    _busy[0] += 1
    if _busy[0] == 1:
        _busy[1:] = (first, second, _), _ = gc.get_threshold(), sys.getswitchinterval()
        gc.set_threshold(min(first, _YOUNG), second, _NEVER)
        sys.setswitchinterval(_SWITCH)
    try:
        yield
    finally:
        _busy[0] -= 1
        if not _busy[0]:
            gc.set_threshold(*_busy[1])
            sys.setswitchinterval(_busy[2])


def _index_changes(
    index: Index,
    changes: Mapping[str, _Change],
    find: Callable[[str], Agent | None],
    vectors: Vectors | None,
) -> None:
    """For a thread, one at a time."""
    for agent_id, change in changes.items():
        if vectors is not None:
            vectors.remove(index.numbers_of(agent_id))
        agent = find(agent_id)
        if agent is None:
            index.remove(agent_id)
        else:
            index.put(agent, paced(documents_of(agent), every=4), change.named and change.named.names)


def _vectors_of(vectors: Vectors, agent: Agent, kept: bytes | None) -> NDArray[np.int8]:
    """For a thread: what was kept, or some capabilities at a time from the encoder, with pauses."""
    if kept is not None:
        return np.frombuffer(kept, np.int8).reshape(-1, WIDTH)
    parts = []
    for start in range(0, max(1, len(agent.capabilities)), _ENCODED):
        some = replace(agent, capabilities=agent.capabilities[start : start + _ENCODED])
        parts.append(encode_agent(vectors.encoder, some))
        time.sleep(0.001)  # the encoder is partly Python: the event loop comes first
    return np.concatenate(parts)
