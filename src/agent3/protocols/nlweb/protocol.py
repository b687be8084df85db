"""NLWeb as a protocol of the gateway: websites by interface files, sites that answer questions, our ``/ask``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from agent3.definitions import NLWebInterface
from agent3.errors import AgentNotFound, SetupError
from agent3.gateway.protocol import Door, Found, Given, Protocol, Services
from agent3.identity.secrets import Vault
from agent3.llm.proposals import BoundedModel
from agent3.model import Agent, Capability, Principal, Route, agent_id
from agent3.protocols.nlweb.ask.door import AskDoor
from agent3.protocols.nlweb.ask.sites import ASK, Sites
from agent3.protocols.nlweb.authoring.files import load
from agent3.protocols.nlweb.authoring.modelling import Helper
from agent3.protocols.nlweb.authoring.workbench import drive_session
from agent3.protocols.nlweb.commands import Meaning, understand
from agent3.protocols.nlweb.connector import NLWebConnector, agent_of, interface_of
from agent3.protocols.nlweb.driver import Confirm, Driven
from agent3.protocols.nlweb.healing import ElementStore, Healer
from agent3.protocols.nlweb.healing.review import list_heals
from agent3.protocols.nlweb.steps.snapshots import Snapshots
from agent3.protocols.nlweb.visit.page_session import Session
from agent3.protocols.nlweb.visit.robots import Robots
from agent3.protocols.nlweb.visit.secret_grants import Grants, scope_of
from agent3.protocols.nlweb.visit.stored_sessions import Sessions
from agent3.protocols.nlweb.visit.visits import Visits
from agent3.sentences import Ask, Forbidden, Understood

__all__ = ["NLWeb"]

_INTERFACE = Route("nlweb", "an interface")


class NLWeb(Protocol):
    """Websites. No browser starts before the first visit; without the extra ``browser`` only the visits fail."""

    name = "nlweb"
    connector: NLWebConnector

    def __init__(self, services: Services):
        super().__init__(services)
        self._store = ElementStore(services.database, services.env)
        self._sites = Sites(services.policy)
        web, folder = services.settings.web, services.files
        snapshots = None if folder is None else folder.with_name("snapshots")
        visits = Visits(
            sessions=Sessions(services.database, services.master_keys.keys, env=services.env),
            vault=services.vault,
            grants=Grants.read(web.secrets),
            robots=Robots(web.robots, env=services.env),
            # Elements that have moved are found again by what earlier visits saw.
            finder=lambda interface: Healer(interface, self._store, metrics=services.metrics, env=services.env),
            snapshots=None if snapshots is None else lambda: Snapshots(snapshots),
            llm=BoundedModel(services.proposals)
            if services.proposals is not None and services.settings.llm.reads_pages
            else None,
            metrics=services.metrics,
        )

        def may_call(principal: Principal, agent: Agent, name: str) -> bool:
            capability = agent.capability(name)
            return capability is not None and services.gateway.may_call(principal, agent, capability)

        self.connector = NLWebConnector(
            visits,
            understand=self._understand,
            load=load,
            find=lambda agent: services.gateway.directory.get(agent),
            may=may_call,
            charge=lambda call, action: services.gateway.core.chain.charge_as(call, action),
            sites=self._sites,
            drive=self._act_on_page if web.acts_on_pages else None,
            env=services.env,
        )

    async def _act_on_page(self, session: Session, sentence: str, owner: str, confirm: Confirm) -> Driven:
        """By the rules, and where the settings have a model by what it proposes. What worked is the owner's alone."""
        services, helper = self.services, None
        if services.proposals is not None:
            folder = (
                None
                if services.files is None
                else services.files.with_name("learnt") / sha256(owner.encode()).hexdigest()
            )
            helper = Helper(services.proposals.complete, folder)
        return await drive_session(session, sentence, confirm=confirm, helper=helper)

    async def _understand(
        self, text: str, agent: Agent, offered: Sequence[Capability], previous: Sequence[str]
    ) -> Meaning:
        """What a sentence means; the language model of the settings is asked where words leave it open."""
        directory = self.services.gateway.directory
        found = await understand(text, agent, offered, previous, choose=directory.choose)
        proposals = self.services.proposals
        if proposals is not None and found.action is None and isinstance(found.reading, Ask):
            chosen = await proposals.choose(offered, text)
            found = found if chosen is None else await understand(text, agent, [chosen])
        if proposals is not None and found.action is not None and isinstance(found.reading, Ask):
            found = Meaning(found.action, await proposals(found.action, text, found.reading) or found.reading)
        result = {Understood: "understood", Ask: "asked", Forbidden: "forbidden"}[type(found.reading)]
        self.services.metrics.sentences.inc((result,))
        return found

    # agent3 add

    def read(self, given: Given) -> Sequence[Found]:
        if given.file is not None and given.file.suffix in (".yaml", ".yml"):
            return [Found(_INTERFACE, given.name, load(given.file))]
        document = given.document
        if isinstance(document, Mapping) and {"base_url", "actions"} <= set(document):
            return [Found(_INTERFACE, given.name, NLWebInterface.from_document(dict(document)))]
        return ()

    def likelihood(self, address: str) -> float:
        return 0.1

    def knows_better(self, agent: Agent) -> bool:
        """An MCP server whose tool is NLWeb's own: its site may answer the same questions at ``/ask``."""
        asks = agent.capability(ASK)
        return (
            asks is not None
            and agent.card.get("protocol") == "mcp"
            and "query" in (asks.input_schema.get("properties") or {})
        )

    async def register(self, found: Found, vault: Vault) -> Agent:
        interface = found.document
        if interface is None:
            if found.route.credential is not None:
                raise SetupError("A website that answers questions needs no credential.")
            return await self._sites.describe(found.route.address, bool(found.route.meta.get("registered")))
        if found.name is not None:
            interface = interface.model_copy(update={"interface_id": agent_id(found.name), "name": found.name})
        Grants.read(self.services.settings.web.secrets).require(interface)
        return agent_of(interface)

    async def on_added(self, agent: Agent) -> None:
        await self.services.gateway.directory.routes.define_for_website(agent)

    async def on_removed(self, agent: Agent) -> None:
        """What other websites of the directory share with it stays: sessions of the same scope, elements of an id."""
        try:
            interface = interface_of(agent)
        except AgentNotFound:
            return
        scopes, ids = set(), set()
        async for other in self.services.gateway.directory.each():
            if other.card.get("protocol") == "nlweb" and "interface" in other.card:
                one = interface_of(other)
                scopes.add(scope_of(one))
                ids.add(one.interface_id)
                await asyncio.sleep(0)  # each is some milliseconds of work
        if scope_of(interface) not in scopes:
            await Sessions(self.services.database).forget(site=scope_of(interface))
        if interface.interface_id not in ids:
            await self._store.forget(interface.interface_id)

    async def notes(self, agent: Agent) -> dict[str, Any]:
        healed = await list_heals(self._store, agent)
        return {"heals": healed} if healed else {}

    def doors(self) -> Sequence[Door]:
        return [Door(routes=AskDoor(self.services).routes(), about=[("NLWeb", "/ask, /who")])]
