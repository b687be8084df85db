"""The call core for the documented classes when no gateway is around: in memory, one for the whole process.

A tool in a script then runs under the same steps as a remote agent behind a gateway. Nothing survives the process,
and the log says so once. Memory is not for ever either: of ledger and dead letters the latest rows are kept, of ended
jobs those of a day. A core with a database of its own (``storage.url``) keeps what it does, and takes up the jobs that
an earlier process left behind.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from agent3 import bridge
from agent3.calls.core import House
from agent3.calls.keeping import StoredArtifact
from agent3.calls.policy import unknown
from agent3.calls.runner import Target
from agent3.env import REAL
from agent3.errors import Agent3Error, Conflict, StorageError
from agent3.model import LOCAL, Agent, Call, Capability, Connector, Event, Outcome, Part, Principal
from agent3.observe.logs import get as logger
from agent3.observe.traces import Tracer
from agent3.protocols.functions.functions import LocalAgent, LocalConnector
from agent3.settings import Calls, Settings, data_folder
from agent3.storage import Blobs, Database, Transaction, open_database

__all__ = ["Standalone", "blob_folder", "shared"]

log = logger("standalone")

T = TypeVar("T")

_KEPT = {"calls": 10_000, "dead_letters": 1_000}
"""Rows that stay when it is tidied."""
_EVERY = 1_000
"""Calls after which it is tidied."""
_MOST_BYTES = 268_435_456
_DAYS = 1.0
"""Days that an ended job can still be read."""
_AT_EXIT = 3.0
"""Seconds that the end of a program may take for closing what it left open."""


class Standalone:
    """A call core, in memory unless ``settings.storage.url`` says otherwise, with a synchronous face.

    Safe from any thread. Agents with jobs to take up must be hosted before the first call.
    """

    def __init__(self, settings: Settings | None = None, *, tracer: Tracer | None = None):
        self._tracer = tracer
        self._leaving: list[Callable[[], Awaitable[None]]] = []
        self._settings = settings or Settings(calls=Calls(ledger="batched", job_days=_DAYS))
        self._connector = LocalConnector()
        self._connectors: dict[str, Connector] = {"local": self._connector}
        self._adopted: dict[str, Agent] = {}
        self._opening: asyncio.Future[House] | None = None
        self._numbers = itertools.count(1)
        self._untidied = 0

    @property
    def durable(self) -> bool:
        """Whether what it is given outlives the process."""
        return bool(self._settings.storage.url)

    @property
    def in_use(self) -> bool:
        """Whether it is open, in a loop that still runs."""
        return self._opening is not None and self._opening.done() and self._opening.get_loop().is_running()

    def on_close(self, leave: Callable[[], Awaitable[None]]) -> None:
        """Have something done in the bridge's loop before the core is closed, once; for what works on its database."""
        self._leaving.append(leave)

    def host(self, agent: LocalAgent) -> None:
        """Make an agent callable, under an id of its own: two servers in one script may bear one name.

        Where jobs outlive the process the name is the id, since the next process must find the agent by it.
        """
        if not self._settings.storage.url:
            agent.id = f"{agent.id}#{next(self._numbers)}"
        elif agent.id in self._connector.agents:
            raise Conflict(f"There is an agent {agent.id!r} in this core already. Give each a name of its own.")
        self._connector.add(agent)

    def reach(self, protocol: str, connector: Connector) -> Connector:
        """Make routes of one more protocol callable; the connector in force, which is the first that was given.

        The core closes it when it is closed itself, and may use it again afterwards.
        """
        return self._connectors.setdefault(protocol, connector)

    def adopt(self, agent: Agent) -> Agent:
        """Make an agent of elsewhere callable; the agent under an id that is free here. Its protocol must be in reach.

        The same agents in the same order get the same ids, so that the next process finds them by these.
        """
        wanted = itertools.chain([agent.id], (f"{agent.id}-{number}" for number in itertools.count(2)))
        free = next(one for one in wanted if one not in self._adopted and one not in self._connector.agents)
        return self.renew(replace(agent, id=free))

    def renew(self, agent: Agent) -> Agent:
        """Bring an agent of elsewhere up to date."""
        self._adopted[agent.id] = agent
        return agent

    def disown(self, agent: Agent) -> None:
        """Forget an agent of elsewhere."""
        self._adopted.pop(agent.id, None)

    def drop(self, agent: LocalAgent) -> None:
        """Forget an agent."""
        self._connector.agents.pop(agent.id, None)

    def call(
        self, agent: LocalAgent | Agent, capability: Capability, given: Any, principal: Principal = LOCAL, **more: Any
    ) -> Outcome:
        """One call through all steps; waits for its outcome."""
        return bridge.run(self.call_async(agent, capability, given, principal, **more))

    async def call_async(
        self,
        agent: LocalAgent | Agent,
        capability: Capability,
        given: Any,
        principal: Principal = LOCAL,
        *,
        message: str = "",
        traceparent: str | None = None,
        context: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
        listener: Callable[[Event], None] | None = None,
        detach: bool = False,
        door: str = "library",
    ) -> Outcome:
        """Likewise inside the bridge's loop. ``door`` is where the ledger says that it came in."""
        house = await self.house()
        whole = agent.agent if isinstance(agent, LocalAgent) else agent
        call = Call(
            id=house.env.id(),
            principal=principal,
            agent=agent.id,
            capability=capability.name,
            input=given,
            parts=(Part(text=message),) if message else (),
            routes=capability.routes,
            traceparent=traceparent,
            context=context,
            key=key,
            timeout=timeout,
        )
        try:
            return await house.runner.start(call, (whole, capability), listener=listener, detach=detach, door=door)
        finally:
            await self._tidy(house)

    async def refuse(
        self,
        agent: LocalAgent | Agent,
        capability: str,
        principal: Principal,
        refusal: Agent3Error,
        *,
        traceparent: str | None = None,
        door: str = "library",
    ) -> None:
        """Record a call that was refused before it came here. Inside the bridge's loop."""
        house = await self.house()
        call = Call(
            id=house.env.id(), principal=principal, agent=agent.id, capability=capability, traceparent=traceparent
        )
        try:
            await house.refuse(call, refusal, door)
        finally:
            await self._tidy(house)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something in the bridge's loop."""
        return bridge.run(work)

    async def take_over(self) -> int:
        """Go on with jobs that an earlier process left behind and whose agents are here now; how many."""
        return await (await self.house()).runner.recover()

    async def keep(self, principal: Principal, body: bytes, media_type: str) -> str:
        """Store some bytes for a caller; the handle by which that caller alone reads them."""
        house = await self.house()
        call = Call(id=house.env.id(), principal=principal, agent="", capability="")
        return await house.artifacts.store(call, body, None, media_type)

    async def kept(self, principal: Principal, handle: str) -> StoredArtifact:
        """What was stored for a caller, also the large part of a result; NotFound for anything else."""
        return await (await self.house()).artifacts.get(principal.id, handle)

    def close(self) -> None:
        """``aclose`` for synchronous code."""
        bridge.run(self.aclose())

    async def aclose(self) -> None:
        """Close the core; it opens anew when it is used again."""
        leaving, self._leaving = self._leaving, []
        for leave in leaving:
            await leave()
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.wait([opening])
        if opening is not None and not _failed(opening):
            house = opening.result()
            await house.aclose()
            await house.database.aclose()
            return
        for connector in self._connectors.values():
            await connector.aclose()

    async def house(self) -> House:
        """The core itself, opened when it is first asked for. Inside the bridge's loop.

        One that could not be opened is tried again by whoever asks next.
        """
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Future[House]) -> None:
        if not _failed(opening):
            _in_use.add(self)
        elif self._opening is opening:
            self._opening = None

    async def _open(self) -> House:
        url = self._settings.storage.url
        if not url:
            log.info("no database was given: jobs and ledger live in memory and end with the process")
        most = self._settings.storage.max_bytes if url else _MOST_BYTES
        database = await open_database(url or ":memory:", env=REAL, max_bytes=most)
        try:
            return await self._moved_in(database, url)
        except BaseException:
            await database.aclose()
            raise

    async def _moved_in(self, database: Database, url: str) -> House:
        """The core on a database, with the jobs that an earlier process left there."""
        blobs = Blobs(blob_folder(self._settings, url)) if url else None
        house = House.build(self._settings, database, self._connectors, self._lookup, blobs=blobs, tracer=self._tracer)
        if url and (taken := await house.runner.recover()):
            log.info("%d jobs of an earlier process were taken over", taken)
        house.runner.keep_house()
        return house

    async def tidy(self) -> None:
        """Count a call that was made past this face, so that the rows in memory stay few. Inside the bridge's loop."""
        await self._tidy(await self.house())

    async def _tidy(self, house: House) -> None:
        """Now and then, on the way out of a call: by the clock alone a busy script would outrun it."""
        self._untidied += 1
        if self._untidied < _EVERY or self._settings.storage.url:
            return
        self._untidied = 0
        try:
            await house.ledger.flush()
            await house.database.write(_forget_oldest)
        except StorageError as wrong:
            log.warning("the rows in memory were not tidied, which is tried again: %s", wrong)

    async def _lookup(self, agent_id: str, name: str) -> Target:
        adopted = self._adopted.get(agent_id)
        if adopted is not None and (capability := adopted.capability(name)) is not None:
            return adopted, capability
        agent = self._connector.agents.get(agent_id)
        function = agent.functions.get(name) if agent is not None else None
        if agent is None or function is None:
            raise unknown(agent_id, name)
        return agent.agent, function.capability


def _failed(opening: asyncio.Future[House]) -> bool:
    return opening.cancelled() or opening.exception() is not None


def blob_folder(settings: Settings, url: str) -> Path | None:
    """Where large results lie: as set, else beside the database, else in the data folder; None for memory."""
    if settings.storage.artifacts:
        return Path(settings.storage.artifacts)
    if url.startswith("sqlite:///") and not url.endswith(("///", ":memory:")):
        return Path(url.removeprefix("sqlite:///")).expanduser().parent / "artifacts"
    return data_folder() / "artifacts" if url.startswith("postgres") else None


async def _forget_oldest(tx: Transaction) -> None:
    for table, kept in _KEPT.items():
        oldest = f"SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1 OFFSET {kept}"
        await tx.run(f"DELETE FROM {table} WHERE rowid <= ({oldest})")


_in_use: WeakSet[Standalone] = WeakSet()
_shared = Standalone()


def _close_all() -> None:
    """What a program leaves open when it ends is closed in order, within a bounded time: rows written, sockets shut."""
    left = [core for core in _in_use if core.in_use]
    if not left:
        return
    try:
        bridge.run(_closed(left), _AT_EXIT)
    except Exception as wrong:  # noqa: BLE001 - nobody is left to hear it
        log.warning("the core was not closed in order: %s", wrong)


# Where the interpreter still lends threads, which it no longer does when it comes to ``atexit``.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


async def _closed(cores: Sequence[Standalone]) -> None:
    for ended in await asyncio.gather(*(core.aclose() for core in cores), return_exceptions=True):
        if isinstance(ended, BaseException):
            log.warning("the core was not closed in order: %s", ended)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_use.clear)


def shared() -> Standalone:
    """The one of this process."""
    return _shared
