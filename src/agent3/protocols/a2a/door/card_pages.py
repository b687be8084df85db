"""Cards over HTTP: the same document for every generation, with the addresses that the reader can use.

What the well-known paths tell strangers may be cached; a card that was made for one caller is for that caller alone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.types import Scope

from agent3.definitions import AgentCard, AgentFeatures, AgentInterface
from agent3.env import REAL, Env
from agent3.errors import NotFound, Unauthenticated, ValidationError
from agent3.model import Principal
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards.extensions import Extensions, schemas_of
from agent3.protocols.a2a.door.http import JSON, Headers, Talk, address_of, answer, one_of, query_of
from agent3.protocols.a2a.door.tasks import Host
from agent3.protocols.a2a.wire import version_of
from agent3.protocols.a2a.wire.errors import ExtendedCardNotConfigured, UnsupportedOperation
from agent3.protocols.a2a.wire.types import Generation

__all__ = ["CARD_PATHS", "KEYS_PATH", "CardDesk", "Keys"]

CARD_PATHS: Final = frozenset({"/.well-known/agent-card.json", "/.well-known/agent.json"})
"""Where 0.3 and 1.0 look, and where those before them did."""
_SPOKEN: Final = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"))
_SECONDS = 300
_DATED = 1_000
"""Documents of which it is known since when they are as they are."""

KEYS_PATH: Final = "/.well-known/jwks.json"
"""Where the keys are by which cards and push notifications are verified."""


class Keys(Protocol):
    """What signs the cards of an endpoint, and shows by which keys."""

    def sign(self, card: AgentCard, jku: str) -> AgentCard:
        """A card that is complete, signed; its readers find the keys at ``jku``."""
        ...

    def jwks(self) -> dict[str, Any]:
        """The public keys, as they are shown there."""
        ...


class CardDesk:
    """Shows the cards of a host. ``address`` is where clients find it; by default as they wrote it themselves.

    ``keys_at`` is the path of the host at which its keys are shown; below the address of the agent by default.
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
        self.grpc_port: int | None = None
        self._env = env
        self._since: OrderedDict[str, float] = OrderedDict()

    async def serve(self, talk: Talk) -> None:
        """The card at a well-known path; who shows who it is gets its own."""
        visitor = self._visitor(talk)
        card = await self._host.card(visitor, talk.tenant)
        if card is None:
            raise NotFound("There is no agent at this address.")
        document = self._told(talk, card, self._format(talk))
        body = msgspec.json.encode(document)
        headers = self._caching(_tag(document), visitor)
        if _unchanged(talk.scope, headers[0][1].decode()):
            await answer(talk.send, 304, b"", JSON, headers)
        else:
            await answer(talk.send, 200, body, JSON, headers)

    async def show_keys(self, talk: Talk) -> None:
        """The public keys, for everybody; NotFound where nothing is signed."""
        if self._keys is None:
            raise NotFound("Nothing is signed here.")
        body = msgspec.json.encode(self._keys.jwks())
        await answer(talk.send, 200, body, JSON, ((b"cache-control", b"public, max-age=%d" % _SECONDS),))

    async def extended(self, talk: Talk, principal: Principal, tenant: str | None) -> dict[str, Any]:
        """The card that this caller may see, in the words of its generation."""
        if not self._features.extended_agent_card:
            kind = UnsupportedOperation if talk.words == "1.0" else ExtendedCardNotConfigured
            raise kind("This agent has no extended card. Its public card says all.")
        card = await self._host.card(principal, tenant, extended=True)
        if card is None:
            raise ExtendedCardNotConfigured("This agent has no extended card for you. Its public card says all.")
        return self._told(talk, card, talk.words)

    async def open(self, talk: Talk, principal: Principal) -> dict[str, Any]:
        """The extended card where there is one, else the public one: 0.3 has a single call for both on gRPC."""
        card = await self._host.card(principal, talk.tenant, extended=self._features.extended_agent_card)
        if card is None:
            raise NotFound("There is no agent at this address.")
        return self._told(talk, card, talk.words)

    def _format(self, talk: Talk) -> str | None:
        """The generation of the card that is wanted: asked for by query, or by the version that the client names."""
        asked = dict(query_of(talk.scope["query_string"])).get("format")
        return asked or version_of(talk.heard.version) or self._written

    def _visitor(self, talk: Talk) -> Principal | None:
        try:
            return self._who(talk.scope)
        except Unauthenticated:
            if not self._public:
                raise
            return None

    def _told(self, talk: Talk, card: AgentCard, wanted: str | None) -> dict[str, Any]:
        """A card as it is told. What is signed are the words of 1.0, so a document without them bears no signature."""
        url = self._address + talk.base if self._address else address_of(talk.scope, talk.base)
        whole = self._complete(talk, card, url)
        if self._keys is not None and wanted in (None, "1.0"):
            whole = self._keys.sign(whole, self._jku(url))
        return _written(whole, wanted)

    def _complete(self, talk: Talk, card: AgentCard, url: str) -> AgentCard:
        """The card with what the door knows: addresses and features."""
        spoken = [AgentInterface(url=url, protocolBinding=one, protocolVersion=two) for one, two in _SPOKEN]
        spoken += self._over_grpc(url, talk.tenant)
        extensions = [*self._features.extensions, *schemas_of(card)]
        return card.model_copy(
            update={
                "url": card.url or url,
                "interfaces": card.interfaces or spoken,
                "features": self._features.model_copy(update={"extensions": extensions}),
            }
        )

    def _jku(self, url: str) -> str:
        if self._keys_at is None:
            return url.rstrip("/") + KEYS_PATH
        place = urlsplit(url)
        return f"{place.scheme}://{place.netloc}{self._keys_at}"

    def _over_grpc(self, url: str, tenant: str | None) -> Iterator[AgentInterface]:
        """The port of gRPC at the same host. An agent among others is its tenant, of which 0.3 knows nothing."""
        if self.grpc_port is not None:
            place = f"{_host(url)}:{self.grpc_port}"
            yield AgentInterface(url=place, protocolBinding="GRPC", protocolVersion="1.0", tenant=tenant)
            if tenant is None:
                yield AgentInterface(url=place, protocolBinding="GRPC", protocolVersion="0.3")

    def _caching(self, tag: str, visitor: Principal | None) -> Headers:
        since = self._since.setdefault(tag, self._env.now())
        if len(self._since) > _DATED:
            self._since.popitem(last=False)
        own = visitor is not None and visitor.kind != "local"
        return (
            (b"etag", tag.encode()),
            (b"cache-control", b"%b, max-age=%d" % (b"private" if own else b"public", _SECONDS)),
            (b"last-modified", formatdate(since, usegmt=True).encode()),
            (b"vary", b"Authorization, X-API-Key, A2A-Version"),
        )


def _tag(document: dict[str, Any]) -> str:
    """What a document is told apart by: what it says, and who signed it.

    Not the signatures themselves: those of ECDSA are others each time, and the card is the same in every process.
    """
    signed = [one.get("protected") for one in document.get("signatures", ())]
    said = {**document, "signatures": signed}
    return f'"{hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:32]}"'


def _host(url: str) -> str:
    host = urlsplit(url).hostname or "localhost"
    return f"[{host}]" if ":" in host else host


def _written(card: AgentCard, wanted: str | None) -> dict[str, Any]:
    """One document for all generations, or the one of a generation that is asked for by name."""
    if wanted is None:
        return cards.document(card)
    if wanted not in ("0.1", "0.3", "1.0"):
        raise ValidationError(f"There is no card in format {wanted[:40]!r}. There are 0.1, 0.3 and 1.0.")
    generation: Generation = wanted  # type: ignore[assignment]
    return card.to_wire(generation)


def _unchanged(scope: Scope, tag: str) -> bool:
    given = one_of(scope["headers"], b"if-none-match")
    return given is not None and (
        given.strip() == "*" or tag in {one.strip().removeprefix("W/") for one in given.split(",")}
    )
