"""``build``: puts a gateway together from settings, from the database up."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agent3.calls.callbacks import Callbacks
from agent3.calls.core import Core
from agent3.calls.outbox import Outbox
from agent3.calls.runner import Target
from agent3.directory import Directory, Reputation
from agent3.directory.meaning import load_encoder
from agent3.env import REAL, Env
from agent3.gateway import Gateway
from agent3.gateway.departures import Departures
from agent3.gateway.pins import PENDING
from agent3.gateway.protocol import Protocol, Services
from agent3.gateway.registration import Registration
from agent3.gateway.renewal import Renewals
from agent3.identity.clients import StoredClients
from agent3.identity.data_keys import OpenDatabase, open_stored
from agent3.identity.gateway_id import gateway_id, scope_key
from agent3.identity.kept_secrets import KeptSecrets
from agent3.identity.key_rotation import ANOTHER_KEY, describe_foreign
from agent3.identity.logins import Logins
from agent3.identity.master_keys import MasterKeys
from agent3.identity.own_keys import OwnKeys
from agent3.identity.secret_refs import missing_references
from agent3.identity.secrets import EnvironmentVault
from agent3.identity.sign_ins import SignIns
from agent3.model import Agent
from agent3.observe import traces
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.functions import LocalAgent
from agent3.protocols.functions.protocol import Functions
from agent3.protocols.functions.standalone import blob_folder, blob_store
from agent3.security.caller_scope import CallerScope
from agent3.security.outbound import Policy
from agent3.server.peers import Peers
from agent3.server.protocols import load_protocols
from agent3.server.readiness import Readiness
from agent3.settings import Settings, database_url
from agent3.storage import Database
from agent3.storage.notifications import News

if TYPE_CHECKING:
    from agent3.llm import Anthropic, OpenAICompatible

__all__ = ["Server", "build"]

log = logger("server")


@dataclass(slots=True)
class Server:
    """A gateway with all it stands on."""

    services: Services
    gateway: Gateway
    protocols: Mapping[str, Protocol]
    registration: Registration
    renewals: Renewals
    readiness: Readiness
    language_model: Anthropic | OpenAICompatible | None = None
    peers: Peers | None = None
    """The other worker processes, if there are any."""
    ready: bool = False

    def stop(self) -> None:
        """Want no new calls: ``/readyz`` says so, and everything else goes on."""
        self.ready = False
        self.readiness.stop()

    @property
    def settings(self) -> Settings:
        return self.services.settings

    @property
    def database(self) -> Database:
        return self.services.database

    @property
    def env(self) -> Env:
        return self.services.env

    @property
    def metrics(self) -> Metrics:
        return self.services.metrics

    @property
    def core(self) -> Core:
        return self.gateway.core

    @property
    def directory(self) -> Directory:
        return self.gateway.directory


@asynccontextmanager
async def build(
    settings: Settings,
    agents: Sequence[LocalAgent] = (),
    *,
    env: Env = REAL,
    metrics: Metrics | None = None,
    take_over: bool = True,
    process: str = "",
) -> AsyncIterator[Server]:
    """A running gateway: database open and migrated, lost jobs taken over; closed in order at the end.

    Without ``take_over`` lost jobs are left alone: a passing command does not have their agents, and could only fail
    them. Nor does it renew cards, for it is gone before they come.
    """
    url = database_url(settings)
    stored = await open_stored(settings, url=url, env=env)
    database = stored.database
    try:
        own_id = await gateway_id(database, env)
        chosen = METRICS if metrics is None else metrics
        scope = CallerScope(await scope_key(database, env))
        server = _assemble(settings, stored, url, own_id, scope, agents, env, chosen, take_over, process)
        core = server.core
        departures = Departures(server.directory, server.protocols)
        try:
            for protocol in server.protocols.values():
                await protocol.start()
            await core.parts.prices.refresh()
            await core.parts.stops.refresh()
            await server.services.clients.refresh()
            if take_over:
                if foreign := await describe_foreign(database, server.services.master_keys):
                    log.error("the master key: %s. %s", foreign, ANOTHER_KEY)
                server.services.clients.follow()
                server.gateway.on_use = server.renewals.used
                server.gateway.renewing = frozenset(
                    name for name, protocol in server.protocols.items() if type(protocol).renews is not Protocol.renews
                )
                if taken := await core.runner.takeover.recover(silent=False):
                    log.info("%d jobs of an earlier process were taken over", taken)
                for hidden in await server.directory.find_hidden():
                    log.warning(
                        "the added agent %r is not served: this gateway has one of its own by that id. Add it again "
                        "with another --name, and remove this one while the gateway is stopped",
                        hidden,
                    )
                if core.callbacks is not None:
                    core.callbacks.start()
                departures.start()
            core.runner.takeover.start(take_over=take_over)
            server.ready = True
            yield server
        finally:
            server.ready = False
            await departures.aclose()
            await server.services.clients.aclose()
            await server.renewals.aclose()
            await server.directory.aclose()
            await core.aclose()
            if server.language_model is not None:
                await server.language_model.aclose()
    finally:
        await database.aclose()


def _assemble(
    settings: Settings,
    stored: OpenDatabase,
    url: str,
    own_id: str,
    scope: CallerScope,
    agents: Sequence[LocalAgent],
    env: Env,
    metrics: Metrics,
    lasting: bool,
    process: str,
) -> Server:
    """The gateway, not started yet. Parts that need one that is made later reach it through ``services``."""
    database = stored.database
    plain = EnvironmentVault()
    master_keys = MasterKeys(settings.storage.seal, url, plain)
    master_keys.check_file()
    kept = KeptSecrets(database, plain, master_keys, env)
    sign_ins = SignIns(database, kept, master_keys, env)
    logins = Logins(database, env)
    own_keys = OwnKeys(database, master_keys, env)
    news = News(database, env.id())
    files = blob_folder(settings, url)
    outbox = Outbox(settings, database, sign_ins, env, metrics, own_keys)
    llm = proposals = None
    if settings.llm.model:  # it is loaded only where there is one
        from agent3.llm.configured import load_model
        from agent3.llm.proposals import Proposals

        how = settings.llm
        llm = load_model(how, sign_ins)
        assert llm is not None
        proposals = Proposals(
            llm, seconds=how.timeout, per_day=how.per_day, max_tokens=how.max_tokens, env=env, metrics=metrics
        )
    services = Services(
        settings=settings,
        env=env,
        metrics=metrics,
        database=database,
        policy=Policy.of(settings.outbound, own_id),
        vault=sign_ins,
        master_keys=master_keys,
        own_keys=own_keys,
        clients=StoredClients(database, env, news),
        news=news,
        outbox=outbox,
        files=files,
        scope=scope,
        lasting=lasting,
        process=process or env.random_bytes(8).hex(),
        llm=llm,
        proposals=proposals,
    )
    protocols = {kind.name: kind(services) for kind in load_protocols()}
    sign_ins.new_token = {name: protocol.new_token for name, protocol in protocols.items()}
    functions = protocols[Functions.name]
    assert isinstance(functions, Functions)
    encoder = load_encoder() if settings.search.semantic else None
    directory = Directory(database, env, metrics, news, settings.routes, encoder)
    for agent in agents:
        functions.connector.add(agent)
        directory.host(agent.agent)

    async def lookup(agent_id: str, capability: str) -> Target:
        return await services.gateway.lookup(agent_id, capability)

    # OpenTelemetry, where the environment asks for it in the standard way.
    wanted = any(os.environ.get(f"OTEL_EXPORTER_OTLP{kind}_ENDPOINT") for kind in ("", "_TRACES"))
    core = Core.build(
        settings,
        database,
        {name: protocol.connector for name, protocol in protocols.items() if protocol.connector is not None},
        lookup,
        blobs=blob_store(settings, url, database, stored.cipher),
        vault=sign_ins,
        tracer=traces.otel() if wanted else None,
        env=env,
        metrics=metrics,
        news=news,
        callbacks=Callbacks(outbox, env),
        own_agents=functions.connector.agents,
        propose=proposals,
        logins=logins,
        scope=scope,
        audit_key=partial(own_keys.key, "audit"),
        gateway=services.policy.gateway,
    )
    services.gateway = gateway = Gateway(core, directory, Reputation(database, env))
    core.statistics.learn = gateway.reputation.learn
    services.renewals = renewals = Renewals(
        directory,
        protocols,
        vault=sign_ins,
        card_seconds=settings.calls.card_seconds,
        env=env,
        metrics=metrics,
        duty=core.leases.take,
        changes=settings.calls.changes,
    )

    async def notes(agent: Agent) -> dict[str, Any]:
        signed = await sign_ins.about(agent)
        found: dict[str, Any] = {} if signed is None else {"signIn": signed}
        if missing := await missing_references(agent, kept):
            found["missing"] = missing
        if waiting := agent.meta.get(PENDING):
            found["pending"] = {name: waiting[name] for name in ("since", "hash", "why")}
        for protocol in protocols.values():
            found |= await protocol.notes(agent)
        return found

    gateway.notes = notes
    registration = Registration(directory, protocols, sign_ins, kept, core.parts.prices, services.policy, logins)
    return Server(services, gateway, protocols, registration, renewals, Readiness(env), llm)
