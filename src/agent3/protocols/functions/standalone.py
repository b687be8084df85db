"""A gateway without a server, for the documented classes: in memory, one for the whole process.

A tool in a script then runs under the same steps as a remote agent behind a gateway. Nothing survives the process,
and the log says so once. Memory is bounded too: the latest rows of ledger and dead letters are kept, and ended jobs for
a day. With a database of its own (``storage.url``) it keeps what it does, and takes up the jobs that an earlier
process left behind.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from agent3 import bridge
from agent3.calls.artifacts import StoredArtifact
from agent3.calls.core import Core
from agent3.calls.runner import Target
from agent3.calls.steps.authorize import unknown
from agent3.directory import Directory, Reputation
from agent3.env import REAL
from agent3.errors import Agent3Error, Conflict, SetupError, StorageError
from agent3.gateway import Caller, Gateway
from agent3.model import LOCAL, Agent, Call, Capability, Connector, Event, Outcome, Part, Principal
from agent3.observe.logs import get as logger
from agent3.observe.traces import Tracer
from agent3.protocols.functions.functions import LocalAgent, LocalConnector
from agent3.settings import Calls, Settings, data_folder
from agent3.storage import Blobs, BlobStore, Database, Transaction, open_database
from agent3.storage.at_rest import Cipher, encrypt_blobs
from agent3.storage.audit import Signer
from agent3.storage.shared_blobs import Bucket, DatabaseBlobs, ObjectBlobs, is_shared

__all__ = ["Standalone", "blob_folder", "shared"]

log = logger("standalone")

T = TypeVar("T")

_KEPT = {"calls": 10_000, "dead_letters": 1_000}
"""Rows that stay when the tables in memory are trimmed."""
_EVERY = 1_000
"""Calls after which they are trimmed."""
_MOST_BYTES = 268_435_456
_DAYS = 1.0
"""Days that an ended job can still be read."""
_AT_EXIT = 3.0
"""Seconds that the end of a program may take for closing what it left open."""


class Standalone:
    """A gateway, in memory unless ``settings.storage.url`` says otherwise, with a synchronous face.

    Safe from any thread. Agents with jobs to take up must be hosted before the first call.
    """

    def __init__(self, settings: Settings | None = None, *, tracer: Tracer | None = None):
        self._tracer = tracer
        self._on_close: list[Callable[[], Awaitable[None]]] = []
        self._settings = settings or Settings(calls=Calls(ledger="batched", job_days=_DAYS))
        storage, seal = self._settings.storage, os.environ.get("AGENT3_STORAGE_SEAL", "")
        if storage.url and seal and not storage.seal:
            self._settings = replace(self._settings, storage=replace(storage, seal=seal))
        self._connector = LocalConnector()
        self._connectors: dict[str, Connector] = {"local": self._connector}
        self._adopted: dict[str, Agent] = {}
        self._opening: asyncio.Future[Gateway] | None = None
        self._numbers = itertools.count(1)
        self._untrimmed = 0

    @property
    def durable(self) -> bool:
        """Whether what it is given outlives the process."""
        return bool(self._settings.storage.url)

    @property
    def sealed(self) -> bool:
        """Whether what it keeps is encrypted, under a master key that its operator named."""
        return self.durable and bool(self._settings.storage.seal)

    @property
    def in_use(self) -> bool:
        """Whether it is open, in a loop that still runs."""
        return self._opening is not None and self._opening.done() and self._opening.get_loop().is_running()

    def on_close(self, leave: Callable[[], Awaitable[None]]) -> None:
        """Have something done in the bridge's loop before it is closed, once; for what works on its database."""
        self._on_close.append(leave)

    def host(self, agent: LocalAgent) -> None:
        """Make an agent callable, under an id of its own: two servers in one script may bear one name.

        Where jobs outlive the process the name is the id, since the next process must find the agent by it.
        """
        if not self.durable:
            agent.id = f"{agent.id}#{next(self._numbers)}"
        elif agent.id in self._connector.agents:
            raise Conflict(f"Agent {agent.id!r} already exists in this core. Give each its own name.")
        self._connector.add(agent)

    def reach(self, protocol: str, connector: Connector) -> Connector:
        """Make routes of one more protocol callable; the connector in force, which is the first that was given.

        It is closed with this gateway, and may be used again afterwards.
        """
        return self._connectors.setdefault(protocol, connector)

    def adopt(self, agent: Agent) -> Agent:
        """Make an agent of elsewhere callable; the agent under an id that is free here. Its protocol must be in reach.

        The same agents in the same order get the same ids, so that the next process finds them by these.
        """
        wanted = itertools.chain([agent.id], (f"{agent.id}-{number}" for number in itertools.count(2)))
        free = next(name for name in wanted if name not in self._adopted and name not in self._connector.agents)
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
        meta: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Likewise inside the bridge's loop. ``door`` is where the ledger says that it came in, and ``meta`` what came
        with it beside its content."""
        gateway = await self.gateway()
        call = Call(
            id=REAL.id(),
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
            meta=dict(meta) if meta else {},
        )
        target = agent.agent if isinstance(agent, LocalAgent) else agent, capability
        caller = Caller(principal, door, listener, traceparent)
        try:
            return await gateway.start(caller, call, target, detach=detach)
        finally:
            await self.trim()

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
        caller = Caller(principal, door, None, traceparent)
        try:
            await (await self.gateway()).refuse(caller, agent.id, capability, refusal)
        finally:
            await self.trim()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something in the bridge's loop."""
        return bridge.run(work)

    async def take_over(self) -> int:
        """Go on with jobs that an earlier process left behind and whose agents are here now; how many."""
        return await (await self.gateway()).core.runner.recover()

    async def keep(self, principal: Principal, body: bytes, media_type: str) -> str:
        """Store some bytes for a caller; the handle by which that caller alone reads them."""
        core = (await self.gateway()).core
        call = Call(id=REAL.id(), principal=principal, agent="", capability="")
        return await core.artifacts.store(call, body, None, media_type)

    async def kept(self, principal: Principal, handle: str) -> StoredArtifact:
        """What was stored for a caller, also the large part of a result; NotFound for anything else."""
        return await (await self.gateway()).core.artifacts.get(principal.id, handle)

    def close(self) -> None:
        """``aclose`` for synchronous code."""
        bridge.run(self.aclose())

    async def aclose(self) -> None:
        """Close it; it opens anew when it is used again."""
        leaving, self._on_close = self._on_close, []
        for leave in leaving:
            await leave()
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.wait([opening])
        if opening is not None and not _has_failed(opening):
            core = opening.result().core
            await core.aclose()
            await core.database.aclose()
            return
        for connector in self._connectors.values():
            await connector.aclose()

    async def gateway(self) -> Gateway:
        """The gateway itself, opened when it is first asked for. Inside the bridge's loop.

        One that could not be opened is tried again for the next caller.
        """
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(self._on_open)
        if self._opening.done():
            return self._opening.result()
        return await asyncio.shield(self._opening)

    async def call_core(self) -> Core:
        """The call core of the gateway."""
        return (await self.gateway()).core

    def _on_open(self, opening: asyncio.Future[Gateway]) -> None:
        if not _has_failed(opening):
            _in_use.add(self)
        elif self._opening is opening:
            self._opening = None

    async def _open(self) -> Gateway:
        settings, url = self._settings, self._settings.storage.url
        if not url:
            log.info("no database was given: jobs and ledger are kept in memory and end with the process")
        most = settings.storage.max_bytes if url else _MOST_BYTES
        database, blobs = await _open_database(settings, url, most)
        try:
            core = Core.build(
                settings,
                database,
                self._connectors,
                self._lookup,
                blobs=blobs,
                tracer=self._tracer,
                own_agents=self._connector.agents,
                audited=bool(url),  # rows in memory are trimmed as they come
                audit_key=partial(_load_audit_key, database, settings, url),
            )
            if url and (taken := await core.runner.takeover.recover(silent=False)):
                log.info("%d jobs of an earlier process were taken over", taken)
            core.runner.takeover.start()
            return Gateway(core, Directory(database, REAL), Reputation(database, REAL))
        except BaseException:
            await database.aclose()
            raise

    async def trim(self) -> None:
        """Count a call, and now and then remove the oldest rows in memory. Inside the bridge's loop.

        Done on the way out of a call: by the clock alone a busy script would outrun it.
        """
        self._untrimmed += 1
        if self._untrimmed < _EVERY or self.durable:
            return
        self._untrimmed = 0
        core = (await self.gateway()).core

        async def forget_oldest(tx: Transaction) -> None:
            for table, kept in _KEPT.items():
                oldest = f"SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1 OFFSET {kept}"
                await tx.run(f"DELETE FROM {table} WHERE rowid <= ({oldest})")

        try:
            await core.ledger.flush()
            await core.database.write(forget_oldest)
        except StorageError as error:
            log.warning("the rows in memory were not trimmed, retrying: %s", error)

    async def _lookup(self, agent_id: str, name: str) -> Target:
        adopted = self._adopted.get(agent_id)
        if adopted is not None and (capability := adopted.capability(name)) is not None:
            return adopted, capability
        agent = self._connector.agents.get(agent_id)
        function = agent.functions.get(name) if agent is not None else None
        if agent is None or function is None:
            raise unknown(agent_id, name)
        return agent.agent, function.capability


def _has_failed(opening: asyncio.Future[Gateway]) -> bool:
    return opening.cancelled() or opening.exception() is not None


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""What begins an address, and no path: a drive of Windows has one letter."""


def blob_folder(settings: Settings, url: str) -> Path | None:
    """Where large results lie: as set, else beside the database, else in the data folder; None for memory."""
    where = settings.storage.artifacts
    if where and not is_shared(where):
        if _SCHEME.match(where):
            raise SetupError(
                f"storage.artifacts cannot be {where[:100]!r}. Write a folder, database, or s3://BUCKET/PREFIX. A "
                "folder whose name has a colon is written with ./ in front."
            )
        return Path(where)
    if url.startswith("sqlite:///") and not url.endswith(("///", ":memory:")):
        return Path(url.removeprefix("sqlite:///")).expanduser().parent / "artifacts"
    return data_folder() / "artifacts" if url.startswith("postgres") else None


def blob_store(settings: Settings, url: str, database: Database, cipher: Cipher | None = None) -> BlobStore:
    """Where large results are, as the settings say, encrypted where there is a cipher; SetupError where that cannot be.

    ``database`` is one that encrypts by itself then.
    """
    how = settings.storage
    if how.artifacts == "database":
        return DatabaseBlobs(database)
    store = _outside_store(settings, url, database)
    return store if cipher is None else encrypt_blobs(store, cipher)


def _outside_store(settings: Settings, url: str, database: Database) -> BlobStore:
    how = settings.storage
    if how.artifacts.startswith("s3://"):
        key_id, secret = (os.environ.get(name, "") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        return ObjectBlobs(database, Bucket.of(how.artifacts, how.object_endpoint, how.object_region, key_id, secret))
    return Blobs(blob_folder(settings, url))


_in_use: WeakSet[Standalone] = WeakSet()
_shared = Standalone()


def _close_all() -> None:
    """What a program leaves open when it ends is closed in order, within a bounded time: rows written, sockets shut."""
    left = [core for core in _in_use if core.in_use]
    if not left:
        return
    try:
        bridge.run(_aclose_all(left), _AT_EXIT)
    except Exception as error:  # noqa: BLE001 - the program ends: there is no caller to raise it to
        log.warning("the core was not closed properly: %s", error)


# Where the interpreter still lends threads, which it no longer does when it comes to ``atexit``.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


async def _aclose_all(cores: Sequence[Standalone]) -> None:
    for ended in await asyncio.gather(*(core.aclose() for core in cores), return_exceptions=True):
        if isinstance(ended, BaseException):
            log.warning("the core was not closed properly: %s", ended)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_use.clear)


def shared() -> Standalone:
    """The one of this process."""
    return _shared


async def _open_database(settings: Settings, url: str, most: int) -> tuple[Database, BlobStore | None]:
    """The database, and where large results go; both encrypted where a master key is set. Memory never is."""
    if not url:
        return await open_database(":memory:", env=REAL, max_bytes=most), None
    from agent3.identity.data_keys import open_stored  # cryptography takes its time, and most scripts store nothing

    stored = await open_stored(settings, url=url, max_bytes=most)
    return stored.database, blob_store(settings, url, stored.database, stored.cipher)


async def _load_audit_key(database: Database, settings: Settings, url: str) -> Signer:
    from agent3.identity.own_keys import open_own_keys  # cryptography takes its time, and few scripts sign anything

    return await open_own_keys(database, settings.storage.seal, url, REAL).key("audit")
