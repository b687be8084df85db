"""A2A as a protocol of the gateway: agents elsewhere by their cards, ``/a2a``, and every agent as an A2A agent."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlsplit

from starlette.types import Scope

from agent3.calls.outbox import KEY
from agent3.definitions import AgentCard
from agent3.errors import Agent3Error, MissingExtra, SetupError, TargetRefused
from agent3.gateway.protocol import Door, Found, Given, Listening, Protocol, Services
from agent3.gateway.registration import named_credential
from agent3.identity.oauth import check_flow, confirm_with_issuer
from agent3.identity.redaction import redact_agent, redact_error
from agent3.identity.secret_refs import check_query, open_route
from agent3.identity.secrets import Vault
from agent3.identity.sign_ins import SignInEntry, SignInWish
from agent3.model import Agent, Route
from agent3.protocols.a2a.cards.cards import address_of, interfaces
from agent3.protocols.a2a.cards.signatures import CardKey, SigningKeys
from agent3.protocols.a2a.door.push import Pushes
from agent3.protocols.a2a.gateway_routes import CALLBACKS, A2ADoors
from agent3.protocols.a2a.grpc import check_installed
from agent3.protocols.a2a.peer.bindings import spoken
from agent3.protocols.a2a.peer.card_discovery import explain_key_change
from agent3.protocols.a2a.peer.connector import GIVEN, SIGNATURE, A2AConnector
from agent3.protocols.a2a.peer.credentials import named_origins

__all__ = ["A2A"]

_CARD_PATH = re.compile(r"\.json$|/\.well-known/|/a2a/?$")
"""Paths at which an A2A agent is likelier than anything else."""


class A2A(Protocol):
    """Agents that speak A2A in any generation, and the gateway as one of them."""

    name = "a2a"
    media_types = {"application/a2a-agent-card+json": True, "application/agent-card+json": True}
    connector: A2AConnector

    def __init__(self, services: Services):
        super().__init__(services)
        self.connector = A2AConnector(services.policy, env=services.env, metrics=services.metrics)

    # agent3 add

    def read(self, given: Given) -> Sequence[Found]:
        """An agent card as JSON."""
        card = given.document
        if not isinstance(card, Mapping) or "name" not in card:
            return ()
        if "supportedInterfaces" not in card and not ("url" in card and "skills" in card):
            return ()
        read = AgentCard.from_wire(card)
        offered = interfaces(read, spoken())
        if not offered and interfaces(read):
            raise MissingExtra(f"{read.name}, which is only reached over gRPC,", "grpc")
        if not offered:
            raise SetupError(f"{given.where} is a card without an A2A address.")
        header, reference = named_credential(given.credential)
        meta = {"secret_header": header} if header else {}
        route = Route("a2a", check_query(address_of(offered[0][0])), credential=reference, meta=meta)
        return [Found(route, given.name, dict(card))]

    def likelihood(self, address: str) -> float:
        return 0.9 if _CARD_PATH.search(urlsplit(address).path) else 0.4

    async def register(self, found: Found, vault: Vault) -> Agent:
        if found.document is not None:
            return self.connector.describe_card(found.document, found.route)
        try:
            return await super().register(found, vault)
        except TargetRefused as error:
            error.data["signIn"] = False  # how one signs in stands in its card, which it does not show
            raise

    async def describe(self, route: Route, vault: Vault) -> Agent:
        opened = await open_route(route, vault)
        try:
            agent = await self.connector.describe(opened.route.address, secret=opened.secret, route=route)
        except Agent3Error as error:
            raise redact_error(error, opened.hidden) from None
        return redact_agent(agent, opened.hidden)

    def secret_origins(self, agent: Agent) -> frozenset[str]:
        """Those of its interfaces, and of whoever gives tokens for them."""
        return frozenset(named_origins(AgentCard.from_wire(agent.card)))

    def speaks_at(self, agent: Agent, address: str) -> bool:
        offered = {address_of(interface).rstrip("/") for interface, _ in interfaces(AgentCard.from_wire(agent.card))}
        return address.partition("?")[0].rstrip("/") in offered

    async def sign_in(self, found: Found, wish: SignInWish, refusal: TargetRefused | None) -> SignInEntry | None:
        """As the card of the agent says."""
        if refusal is not None:
            raise refusal
        flow, gate = await self.connector.find_sign_in(found.route, found.document)
        if flow is None:
            return None
        if wish.way == "machine":
            raise SetupError(
                "For a machine sign-in to an A2A agent, use --credential env:NAME, with CLIENT:SECRET as "
                "the value of NAME."
            )
        if wish.issuer:
            flow = await confirm_with_issuer(flow, gate, wish.issuer)
        check_flow(flow, wish.issuer, has_secret=wish.secret is not None)
        return SignInEntry(found.route, flow, gate)

    def renews(self, route: Route) -> bool:
        return GIVEN not in route.meta

    def renewal_refusal(self, before: Agent, now: Agent) -> str | None:
        return explain_key_change(before.meta.get(SIGNATURE) or {}, now.meta.get(SIGNATURE) or {})

    # Doors

    async def start(self) -> None:
        """Make the keys that sign our cards, and what tells others of their tasks. A passing command needs neither."""
        services = self.services
        if not services.lasting:
            return
        settings, own = services.settings.server, await self._load_card_key()
        self.keys = await SigningKeys.of(services.own_keys, KEY, key=own, sign=settings.sign_cards)
        secrets = (services.settings.callbacks.secret, *(one.callback_secret for one in services.settings.clients))
        if self.keys is not None or any(secrets):
            core = services.gateway.core
            self.pushes = Pushes(services.outbox, core.jobs, services.database, services.env)

    async def _load_card_key(self) -> CardKey | None:
        settings = self.services.settings.server
        if not settings.sign_cards or not settings.card_key:
            return None
        return CardKey((await self.services.vault.get(settings.card_key)).reveal())

    async def check(self) -> None:
        await self._load_card_key()
        if self.services.settings.server.grpc_port is not None:
            check_installed()

    keys: SigningKeys | None = None
    pushes: Pushes | None = None

    def doors(self) -> Sequence[Door]:
        doors = A2ADoors(self.services, self.connector, keys=self.keys, pushes=self.pushes)
        grpc = self.services.settings.server.grpc_port

        async def listen(url: str, judge: Callable[[Scope], Awaitable[None]]) -> Listening | None:
            return None if grpc is None else await doors.speak_grpc(grpc, url, judge)

        about = [("A2A", "/a2a, and /agents/ID/a2a for one agent")]
        return [
            Door(
                routes=doors.routes(),
                app=doors,
                takes=doors.takes,
                lane=doors.lane,
                listen=listen,
                open_paths=(CALLBACKS + "/",),
                about=about,
            )
        ]
