"""``build``: the only place that knows the concrete classes, and puts a gateway together from settings."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from agent3.calls import Core
from agent3.calls.callbacks import Callbacks
from agent3.calls.outbox import KEY, Outbox
from agent3.calls.runner import Target
from agent3.directory import Directory, Reputation
from agent3.env import REAL, Env
from agent3.errors import SetupError
from agent3.gateway import Gateway
from agent3.identity.master_keys import Seals
from agent3.identity.own_keys import Safe
from agent3.identity.secrets import EnvironmentVault
from agent3.model import Connector
from agent3.observe import traces
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.a2a.cards.signatures import CardKey, HouseKeys
from agent3.protocols.a2a.door.push import Pushes
from agent3.protocols.functions import LocalAgent, LocalConnector
from agent3.protocols.functions.standalone import blob_folder
from agent3.protocols.nlweb.healing import StoredBook
from agent3.protocols.nlweb.healing.review import of_agent
from agent3.protocols.nlweb.websites import websites
from agent3.security.outbound import Policy
from agent3.server.readiness import Readiness
from agent3.server.renewal import Renewals
from agent3.server.secret_refs import ReferringA2AConnector, ReferringConnector
from agent3.server.sign_ins import SignIns
from agent3.settings import Settings, data_folder
from agent3.storage import Blobs, Database, open_database
from agent3.storage.notifications import News

__all__ = ["Server", "blob_folder", "build", "database_url"]

log = logger("server")


@dataclass(slots=True)
class Server:
    """A gateway with all it stands on."""

    settings: Settings
    database: Database
    core: Core
    directory: Directory
    gateway: Gateway
    metrics: Metrics
    env: Env
    renewals: Renewals
    readiness: Readiness
    sign_ins: SignIns
    pushes: Pushes | None = None
    """What tells of A2A tasks; None where there is nothing to sign deliveries with."""
    keys: HouseKeys | None = None
    """What signs agent cards, and the public keys of all that is signed."""
    ready: bool = False

    def stop(self) -> None:
        """Want no new calls: ``/readyz`` says so, and everything else goes on."""
        self.ready = False
        self.readiness.stop()


def database_url(settings: Settings) -> str:
    """Where state lives: as set, else a file in the data folder."""
    if settings.storage.url:
        return settings.storage.url
    folder = data_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # the ledger is nobody else's business
    except OSError as wrong:
        raise SetupError(f"Cannot use the data folder {folder}: {wrong.strerror}. Set AGENT3_DATA or --db.") from None
    return f"sqlite:///{folder / 'agent3.db'}"


def _tracer() -> traces.Tracer | None:
    """OpenTelemetry when the environment asks for it in the standard way."""
    wanted = any(os.environ.get(f"OTEL_EXPORTER_OTLP{kind}_ENDPOINT") for kind in ("", "_TRACES"))
    return traces.otel() if wanted else None


async def _take_over(core: Core) -> None:
    if taken := await core.runner.recover():
        log.info("%d jobs of an earlier process were taken over", taken)
    core.runner.takeover.keep_house()
    if core.callbacks is not None:
        core.callbacks.start()


def _vault(settings: Settings, database: Database, url: str, env: Env) -> tuple[SignIns, Seals]:
    plain = EnvironmentVault()
    seals = Seals(settings.storage.seal, url, plain)
    return SignIns(database, plain, seals, env), seals


async def _keys(settings: Settings, safe: Safe) -> HouseKeys | None:
    """By which others know what comes from this gateway; None where nothing can be kept secret."""
    how, own = settings.server, None
    if how.sign_cards and how.card_key:
        own = CardKey((await EnvironmentVault().get(how.card_key)).reveal())
    return await HouseKeys.of(safe, KEY, key=own, sign=how.sign_cards)


def _tells(settings: Settings, keys: HouseKeys | None) -> bool:
    """Whether there is anything by which somebody knows that what it is told is from us."""
    secrets = (settings.callbacks.secret, *(one.callback_secret for one in settings.clients))
    return keys is not None or any(secrets)


class _Works:
    """Puts the parts of one gateway together, from the database up. What is made last is reached through this."""

    def __init__(self, settings: Settings, database: Database, url: str, env: Env, metrics: Metrics, lasting: bool):
        self.settings = settings
        self.database = database
        self.env = env
        self.metrics = metrics
        self._lasting = lasting
        self._policy = Policy.of(settings.outbound)
        self._blobs = blob_folder(settings, url)
        self._local = LocalConnector()
        self._news = News(database, env.id())
        self._vault, self._seals = _vault(settings, database, url, env)
        self._safe = Safe(database, self._seals, env)
        self.directory = Directory(database, env, metrics, self._news)

    async def server(self, agents: Sequence[LocalAgent]) -> Server:
        """The gateway, which nobody may use yet."""
        for agent in agents:
            self._local.add(agent)
            self.directory.host(agent.agent)
        # A passing command shows no card and delivers nothing: it makes no keys.
        keys = await _keys(self.settings, self._safe) if self._lasting else None
        connectors = self._connectors()
        outbox = Outbox(self.settings, self.database, self._vault, self.env, self.metrics, self._safe)
        self.core = self._core(connectors, outbox)
        self.gateway = Gateway(self.core, self.directory, Reputation(self.database, self.env))
        self.gateway.sign_in = self._vault.about
        self.gateway.heals = partial(of_agent, StoredBook(self.database, self.env))
        self.renewals = self._renewals(connectors)
        return Server(
            settings=self.settings,
            database=self.database,
            core=self.core,
            directory=self.directory,
            gateway=self.gateway,
            metrics=self.metrics,
            env=self.env,
            renewals=self.renewals,
            readiness=Readiness(self.env),
            sign_ins=self._vault,
            pushes=self._pushes(outbox, keys),
            keys=keys,
        )

    def _connectors(self) -> dict[str, Connector]:
        """How each kind of agent is reached."""
        mcp = ReferringConnector(
            self._vault,
            self._policy,
            idle=self.settings.calls.attempt_timeout,
            on_change=self._changed,
            env=self.env,
        )
        web = websites(
            self.database,
            self.directory,
            lambda: self.core.access,
            self._seals,
            self._vault,
            self._policy,
            self.settings.web,
            self.env,
            self.metrics,
            self._blobs and self._blobs.with_name("snapshots"),
        )
        a2a = ReferringA2AConnector(self._vault, self._policy, env=self.env)
        return {"local": self._local, "mcp": mcp, "a2a": a2a, "nlweb": web}

    def _core(self, connectors: dict[str, Connector], outbox: Outbox) -> Core:
        return Core.build(
            self.settings,
            self.database,
            connectors,
            self._lookup,
            blobs=Blobs(self._blobs),
            vault=self._vault,
            tracer=_tracer(),
            env=self.env,
            metrics=self.metrics,
            news=self._news,
            callbacks=Callbacks(outbox, self.env),
            own_agents=self._local.agents,
        )

    def _renewals(self, connectors: dict[str, Connector]) -> Renewals:
        return Renewals(
            self.directory,
            connectors,
            vault=self._vault,
            card_seconds=self.settings.calls.card_seconds,
            env=self.env,
            metrics=self.metrics,
            duty=self.core.leases.take,
        )

    def _pushes(self, outbox: Outbox, keys: HouseKeys | None) -> Pushes | None:
        if not _tells(self.settings, keys):
            return None
        return Pushes(outbox, self.core.jobs, self.database, self.env)

    async def _lookup(self, agent_id: str, capability: str) -> Target:
        return await self.gateway.lookup(agent_id, capability)

    def _changed(self, address: str) -> None:
        if self._lasting:
            self.renewals.changed(address)


@asynccontextmanager
async def build(
    settings: Settings,
    agents: Sequence[LocalAgent] = (),
    *,
    env: Env = REAL,
    metrics: Metrics | None = None,
    take_over: bool = True,
) -> AsyncIterator[Server]:
    """A running gateway: database open and migrated, lost jobs taken over; closed in order at the end.

    Without ``take_over`` lost jobs are left alone: a passing command does not have their agents, and could only fail
    them. Nor does it renew cards, for it is gone before they come.
    """
    url = database_url(settings)
    database = await open_database(url, env=env, max_bytes=settings.storage.max_bytes)
    try:
        works = _Works(settings, database, url, env, METRICS if metrics is None else metrics, take_over)
        server = await works.server(agents)
        try:
            if take_over:
                server.gateway.on_use = server.renewals.used
                await _take_over(server.core)
            else:
                server.core.runner.takeover.keep_house(take_over=False)
            server.ready = True
            yield server
        finally:
            server.ready = False
            await server.renewals.aclose()
            await server.core.aclose()
    finally:
        await database.aclose()
