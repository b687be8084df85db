"""OpenAPI as a protocol of the gateway: services by their documents, from an address or a file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from msgspec.structs import replace

from agent3.errors import Agent3Error, MalformedResponse, SetupError, TargetError, TargetRefused
from agent3.gateway.protocol import Found, Given, Protocol, Services
from agent3.gateway.registration import named_credential
from agent3.identity.oauth import check_flow, confirm_with_issuer, origin_of
from agent3.identity.redaction import redact_agent, redact_error
from agent3.identity.scheme_credentials import scheme_origins
from agent3.identity.secret_refs import open_route
from agent3.identity.secrets import Vault
from agent3.identity.sign_ins import SignInEntry, SignInWish
from agent3.model import Agent, Principal, Route, own_routes
from agent3.protocols.openapi.connector import Artifacts, OpenAPIConnector, sign_in_flow
from agent3.protocols.openapi.document import MOST_BYTES, Document, looks_like_openapi, parse, read
from agent3.protocols.openapi.http_request import File

__all__ = ["OpenAPI"]

_WELL_KNOWN = "openapi.json"
_PAGES = frozenset({"", "/", "/docs", "/docs/", "/redoc"})
"""Paths of a service below which its document is looked for too."""


class OpenAPI(Protocol):
    """Services that describe themselves by an OpenAPI document."""

    name = "openapi"
    connector: OpenAPIConnector

    def __init__(self, services: Services):
        super().__init__(services)
        self.connector = OpenAPIConnector(
            services.policy, artifacts=_Stored(services), env=services.env, scope=services.scope
        )

    # agent3 add

    def read(self, given: Given) -> Sequence[Found]:
        """A document as JSON, or a file of YAML that begins like one."""
        document: Any = given.document
        if isinstance(document, Mapping):
            if "openapi" not in document and "swagger" not in document:
                return ()
        elif given.file is None or given.file.suffix not in (".yaml", ".yml") or not _begins_like_one(given.file):
            return ()
        else:
            document = given.file
        header, reference = named_credential(given.credential)
        meta = {"secret_header": header} if header else {}
        return [Found(Route(self.name, "", credential=reference, meta=meta), given.name, document)]

    def likelihood(self, address: str) -> float:
        path = urlsplit(address).path.lower()
        if path.endswith((".json", ".yaml", ".yml")):
            return 0.95 if "openapi" in path or "swagger" in path else 0.6
        return 0.3

    async def register(self, found: Found, vault: Vault) -> Agent:
        route = found.route
        if found.document is not None:
            document = await asyncio.to_thread(_read_given, found.document)
            return await self.connector.describe_document(document, route, None)
        address = str(route.meta.get("document") or route.address)
        if urlsplit(address).path not in _PAGES:
            return await self._describe_at(route, address, vault)
        bare, question, query = address.partition("?")
        below = f"{urljoin(bare, '/')}{_WELL_KNOWN}{question}{query}"
        return await self._describe_at(route, below, vault)

    async def describe(self, route: Route, vault: Vault) -> Agent:
        return await self._describe_at(route, str(route.meta.get("document") or route.address), vault)

    async def _describe_at(self, route: Route, address: str, vault: Vault) -> Agent:
        """The service whose document is at an address, which is kept as it was given."""
        kept = {key: route.meta[key] for key in ("secret_header", "registered") if key in route.meta}
        pattern = replace(route, address=address, target=None, meta={**kept, "document": address})
        opened = await open_route(pattern, vault)
        try:
            document = await self.connector.fetch(opened.route, opened.secret)
            agent = await self.connector.describe_document(document, pattern, opened.route.address)
        except Agent3Error as error:
            raise redact_error(error, opened.hidden) from None
        return redact_agent(agent, opened.hidden)

    async def sign_in(self, found: Found, wish: SignInWish, refusal: TargetRefused | None) -> SignInEntry | None:
        """As the document says. A machine has a credential instead."""
        if refusal is not None:
            raise refusal
        if wish.way == "machine":
            raise SetupError(
                "For a machine sign-in to a service, use --credential env:NAME, with CLIENT:SECRET as the "
                "value of NAME."
            )
        document, address = found.document, None
        if document is None:
            address = found.route.address
            if urlsplit(address).path in _PAGES:
                address = urljoin(address, f"/{_WELL_KNOWN}")
            document = await self.connector.fetch(replace(found.route, address=address), None)
        else:
            document = await asyncio.to_thread(_read_given, document)
        agent = await self.connector.describe_document(document, found.route, address)
        route = agent.capabilities[0].routes[0]
        flow = sign_in_flow(document, f"{route.address}/")
        if flow is None:
            return None
        gate = self.connector.gate(route)
        if wish.issuer:
            flow = await confirm_with_issuer(flow, gate, wish.issuer)
        check_flow(flow, wish.issuer, has_secret=wish.secret is not None)
        return SignInEntry(found.route, flow, gate)

    def speaks_at(self, agent: Agent, address: str) -> bool:
        return origin_of(str(agent.source)) == origin_of(address)

    def secret_origins(self, agent: Agent) -> frozenset[str]:
        """Those of its servers, and of whoever gives tokens for them."""
        operations = (route.meta.get("operation") for one in agent.capabilities for route in own_routes(one))
        schemes = (one.get("scheme") for one in operations if isinstance(one, dict))
        tokens = {origin for scheme in schemes if isinstance(scheme, dict) for origin in scheme_origins(scheme)}
        return super().secret_origins(agent) | tokens

    def renews(self, route: Route) -> bool:
        return "document" in route.meta

    def renewal_refusal(self, before: Agent, now: Agent) -> str | None:
        """A document that sends calls, and the credential with them, to another server than before is for a person."""
        known, named = ({origin_of(server) for server in agent.card.get("servers", ())} for agent in (before, now))
        if known and named - known:
            return f"its document now names the server {', '.join(sorted(named - known))}"
        return None


class _Stored(Artifacts):
    """The artifacts of the gateway: a caller reads its own alone."""

    def __init__(self, services: Services):
        self._services = services

    async def get(self, principal: Principal, artifact: str) -> File:
        found = await self._services.gateway.core.artifacts.get(principal.id, artifact)
        return File(found.body, found.name, found.media_type)


def _begins_like_one(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return looks_like_openapi(opened.read(64 << 10))
    except OSError:
        return False  # whoever reads it next says what is wrong


def _read_given(given: Any) -> Document:
    try:
        if isinstance(given, Path):
            if given.stat().st_size > MOST_BYTES:
                raise SetupError(f"{given.name} is larger than {MOST_BYTES} bytes, the maximum.")
            return parse(given.read_bytes(), given.name)
        return read(dict(given), "The given document")
    except OSError as error:
        raise SetupError(f"Cannot read {given}: {error.strerror}.") from None
    except (MalformedResponse, TargetError) as error:
        raise SetupError(error.message) from None
