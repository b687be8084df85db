"""Cards over HTTP: one document for every generation, with the addresses at which its reader can call.

What the well-known paths show to everybody may be cached by anybody; a card made for one caller is private.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.types import Scope

from agent3.definitions import AgentCard, AgentFeatures, AgentInterface
from agent3.env import REAL, Env
from agent3.errors import NotFound, Unauthenticated, ValidationError
from agent3.model import Principal
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.extensions import Extensions, schemas_of
from agent3.protocols.a2a.door.http import JSON, Exchange, build_address, find_header, parse_query, send_response
from agent3.protocols.a2a.door.tasks import Host
from agent3.protocols.a2a.wire import version_of
from agent3.protocols.a2a.wire.errors import ExtendedCardNotConfigured, UnsupportedOperation
from agent3.protocols.a2a.wire.types import Generation

__all__ = ["CARD_PATHS", "KEYS_PATH", "CardPages", "Keys"]

T = TypeVar("T")
CARD_PATHS: Final = frozenset({"/.well-known/agent-card.json", "/.well-known/agent.json"})
"""Where 0.3 and 1.0 look for the card, and where clients before them did."""
KEYS_PATH: Final = "/.well-known/jwks.json"
"""Where the keys are by which cards and push notifications are verified."""
_OVER_HTTP_ALONE: Final = "/agent.json"
"""The end of the path of a card without gRPC: some clients take no card that names a port other than its own."""
_BINDINGS: Final = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"))
_MAX_AGE = 300
_MOST_DATED = 1_000
"""Documents of which the time of the last change is remembered."""
_FEW_SKILLS = 20
"""Skills of a card that is written on the event loop; one with more is written in a thread."""
_MOST_KEPT = 16
"""Documents that are kept as they were written."""


class _Page(NamedTuple):
    """A card as it is served, and the object that it was written from."""

    card: AgentCard
    body: bytes
    tag: str


class Keys(Protocol):
    """Signs the cards of an endpoint."""

    def sign(self, card: AgentCard, jku: str) -> AgentCard:
        """The card, signed; its readers find the keys at ``jku``."""
        ...

    def jwks(self) -> dict[str, Any]:
        """The public keys, as they are shown there."""
        ...


class CardPages:
    """The cards of a host. ``address`` is where clients find it; by default the one that they used.

    ``written`` is the generation of a card for which a client names none; by default one document is for all of them.
    ``keys_at`` is the path of the host at which its keys are shown; by default it is below the agent's address.
    With ``keep`` a card without a tenant is written once for each object that the host gives, which it never changes.
    """

    def __init__(
        self,
        host: Host,
        who: Callable[[Scope], Principal],
        features: AgentFeatures,
        extensions: Extensions,
        *,
        public: bool = True,
        address: str = "",
        written: Generation | None = None,
        keys: Keys | None = None,
        keys_at: str | None = None,
        keep: bool = False,
        env: Env = REAL,
    ):
        self._host = host
        self._who = who
        self._features = features.model_copy(update={"extensions": list(extensions.declared)})
        self._public = public
        self._address = address
        self._written = written
        self._keys = keys
        self._keys_at = keys_at
        self._keep = keep
        self._pages: OrderedDict[tuple[int, str, str | None, int | None], _Page] = OrderedDict()
        self.grpc_port: int | None = None
        self._env = env
        self._changed: OrderedDict[str, float] = OrderedDict()

    async def serve(self, exchange: Exchange) -> None:
        """Answer with the card of a well-known path; a caller who is authenticated gets its own."""
        try:
            visitor = self._who(exchange.scope)
        except Unauthenticated:
            if not self._public:
                raise
            visitor = None
        card = await self._host.card(visitor, exchange.tenant)
        if card is None:
            raise NotFound("No agent exists at this address.")
        asked = dict(parse_query(exchange.scope["query_string"])).get("format")
        written = asked or version_of(exchange.headers.version) or self._written
        over_grpc = None if exchange.scope["path"].endswith(_OVER_HTTP_ALONE) else self.grpc_port
        page = await self._find_page(exchange, card, written, over_grpc)
        tag = page.tag
        changed = self._changed.setdefault(tag, self._env.now())
        if len(self._changed) > _MOST_DATED:
            self._changed.popitem(last=False)
        private = visitor is not None and visitor.kind != "local"
        headers = (
            (b"etag", tag.encode()),
            (b"cache-control", b"%b, max-age=%d" % (b"private" if private else b"public", _MAX_AGE)),
            (b"last-modified", formatdate(changed, usegmt=True).encode()),
            (b"vary", b"Authorization, X-API-Key, A2A-Version"),
        )
        known = find_header(exchange.scope["headers"], b"if-none-match") or ""
        if known.strip() == "*" or tag in {entry.strip().removeprefix("W/") for entry in known.split(",")}:
            await send_response(exchange.send, 304, b"", JSON, headers)
        else:
            await send_response(exchange.send, 200, page.body, JSON, headers)

    async def serve_keys(self, exchange: Exchange) -> None:
        """Answer with the public keys; NotFound where nothing is signed."""
        if self._keys is None:
            raise NotFound("This address does not sign anything.")
        body = msgspec.json.encode(self._keys.jwks())
        await send_response(exchange.send, 200, body, JSON, ((b"cache-control", b"public, max-age=%d" % _MAX_AGE),))

    async def extended_card(self, exchange: Exchange, principal: Principal, tenant: str | None) -> dict[str, Any]:
        """The extended card for a caller, in the form of its generation."""
        if not self._features.extended_agent_card:
            kind = UnsupportedOperation if exchange.generation == "1.0" else ExtendedCardNotConfigured
            raise kind("This agent has no extended card. Read its public card.")
        card = await self._host.card(principal, tenant, extended=True)
        if card is None:
            raise ExtendedCardNotConfigured("This agent has no extended card for you. Read its public card.")
        url = self._address_of(exchange)
        return await _off_loop(card, self._write, card, url, exchange.tenant, exchange.generation, self.grpc_port)

    async def best_card(self, exchange: Exchange, principal: Principal) -> dict[str, Any]:
        """The extended card where there is one, else the public one: gRPC 0.3 has a single call for both."""
        card = await self._host.card(principal, exchange.tenant, extended=self._features.extended_agent_card)
        if card is None:
            raise NotFound("No agent exists at this address.")
        url = self._address_of(exchange)
        return await _off_loop(card, self._write, card, url, exchange.tenant, exchange.generation, self.grpc_port)

    async def _find_page(self, exchange: Exchange, card: AgentCard, wanted: str | None, grpc: int | None) -> _Page:
        """The page of a card: the kept one if there is one, else a new one."""
        url = self._address_of(exchange)
        key = (id(card), url, wanted, grpc)
        if (known := self._pages.get(key)) is not None and known.card is card:
            self._pages.move_to_end(key)
            return known
        page = await _off_loop(card, self._write_page, card, url, exchange.tenant, wanted, grpc)
        if self._keep and exchange.tenant is None:
            self._pages[key] = page
            if len(self._pages) > _MOST_KEPT:
                self._pages.popitem(last=False)
        return page

    def _write_page(self, card: AgentCard, url: str, tenant: str | None, wanted: str | None, grpc: int | None) -> _Page:
        document = self._write(card, url, tenant, wanted, grpc)
        # The tag covers who signed it, but not the signatures: those of ECDSA differ each time and in each process.
        signers = [signature.get("protected") for signature in document.get("signatures", ())]
        digest = hashlib.sha256(msgspec.json.encode({**document, "signatures": signers})).hexdigest()
        return _Page(card, msgspec.json.encode(document), f'"{digest[:32]}"')

    def _address_of(self, exchange: Exchange) -> str:
        return self._address + exchange.base if self._address else build_address(exchange.scope, exchange.base)

    def _write(
        self, card: AgentCard, url: str, tenant: str | None, wanted: str | None, grpc: int | None
    ) -> dict[str, Any]:
        """The document of a card with the addresses, features and signatures that only the door knows."""
        place = urlsplit(url)
        interfaces = [AgentInterface(url=url, protocolBinding=b, protocolVersion=version) for b, version in _BINDINGS]
        if grpc is not None:
            name = place.hostname or "localhost"
            target = f"{f'[{name}]' if ':' in name else name}:{grpc}"
            over_grpc = AgentInterface(url=target, protocolBinding="GRPC", protocolVersion="1.0", tenant=tenant)
            interfaces.append(over_grpc)
            if tenant is None:  # gRPC 0.3 knows no tenants
                interfaces.append(AgentInterface(url=target, protocolBinding="GRPC", protocolVersion="0.3"))
        extensions = [*self._features.extensions, *schemas_of(card)]
        card = card.model_copy(
            update={
                "url": card.url or url,
                "interfaces": card.interfaces or interfaces,
                "features": self._features.model_copy(update={"extensions": extensions}),
            }
        )
        # Signatures cover the fields of 1.0, so a document without them has none.
        if self._keys is not None and wanted in (None, "1.0"):
            at = f"{place.scheme}://{place.netloc}{self._keys_at}" if self._keys_at else url.rstrip("/") + KEYS_PATH
            card = self._keys.sign(card, at)
        if wanted is None:
            return cards.document(card)
        if wanted not in ("0.1", "0.3", "1.0"):
            raise ValidationError(f"Unknown card format {wanted[:40]!r}. Known are 0.1, 0.3 and 1.0.")
        generation: Generation = wanted  # type: ignore[assignment]
        return card.to_wire(generation)


async def _off_loop(card: AgentCard, write: Callable[..., T], *given: Any) -> T:
    """Write a card, in a thread if it is a large one."""
    if len(card.capabilities) <= _FEW_SKILLS:
        return write(*given)
    return await asyncio.to_thread(write, *given)
