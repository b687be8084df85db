"""Finding an agent's card, and whether somebody signed it.

People give the address of a card, of an agent or of a site. A card is looked for at the address itself where that looks
like one, else at the well-known paths below it and at its origin, the newer name first. What was found is kept as it
came beside what was understood, since a signature is over the former.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from agent3 import jsonrpc
from agent3.definitions import AgentCard
from agent3.errors import (
    Agent3Error,
    MalformedResponse,
    ParseError,
    SecurityError,
    TargetError,
    TargetRefused,
    TooLarge,
    Unavailable,
    ValidationError,
)
from agent3.identity.secrets import Secret
from agent3.protocols.a2a.cards import cards
from agent3.protocols.a2a.cards import signatures as signing
from agent3.protocols.a2a.peer.bindings import LIMITS
from agent3.protocols.a2a.peer.credentials import Carried, plain
from agent3.security.outbound import Gate, Response

__all__ = ["Found", "changed_hands", "find", "places_of", "signature_of"]

_PATHS: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_KEYS: Final = "/.well-known/jwks.json"
_SECONDS: Final = 15.0


class Found(Struct, frozen=True, kw_only=True):
    """A card: where it lies, the document as it came, what it says, and by what its next version is told apart."""

    url: str
    document: dict[str, Any]
    card: AgentCard
    etag: str | None = None


def places_of(address: str) -> Iterator[str]:
    """Where the card of an address may lie, the likeliest first. The query of the address goes along."""
    bare, question, query = address.partition("?")
    parts = urlsplit(bare)
    if parts.path.endswith(".json") or "/.well-known/" in parts.path:
        yield address
        return
    origin = f"{parts.scheme}://{parts.netloc}"
    below = bare.rstrip("/")
    for path in _PATHS:
        for base in dict.fromkeys((below, origin)):
            yield f"{base}{path}{question}{query}"
    yield address


async def find(
    gate: Gate, address: str, secret: Secret | None = None, header: str | None = None, known: Found | None = None
) -> Found:
    """The card of an address; ``known``, if that is still the one that is served.

    TargetRefused where it is not shown to us; TargetError where there is none, or none that can be understood.
    """
    wrong: Agent3Error | None = None
    for url in [known.url] if known is not None else places_of(address):
        try:
            found = await _fetched(gate, url, secret, header, known)
        except (MalformedResponse, TargetRefused) as no_card:
            wrong = wrong or no_card
            continue
        if found is not None:
            return found
    raise wrong or TargetError(f"{_who(address)} shows no A2A agent card. Give the address of the card itself.")


async def _fetched(
    gate: Gate, url: str, secret: Secret | None, header: str | None, known: Found | None
) -> Found | None:
    """The card at a place; None where there is nothing."""
    fresh = {"If-None-Match": known.etag} if known is not None and known.etag else {}
    answer = await _got(gate, url, Carried(), fresh)
    if answer.status in (401, 403) and secret is not None:
        answer = await _got(gate, url, plain(secret, header, answer), fresh)
    if answer.status == 304 and known is not None:
        return known
    if answer.status in (401, 403):
        status = answer.status
        raise TargetRefused(
            f"{_who(url)} shows its card only to whom it knows (HTTP {status}).", data={"status": status}
        )
    if answer.status in (429, 503):
        raise Unavailable(f"{_who(url)} is too busy to show its card (HTTP {answer.status}).")
    if answer.status != 200:
        return None
    return _read(answer, url)


async def _got(gate: Gate, url: str, carried: Carried, more: Mapping[str, str]) -> Response:
    headers = {"Accept": "application/json", **carried.headers, **more}
    return await gate.request("GET", url, headers=headers, timeout=_SECONDS, max_bytes=LIMITS.body, follow=True)


def _read(answer: Response, url: str) -> Found:
    try:
        document = jsonrpc.decode(answer.body, LIMITS)
        card = cards.from_wire(document)
    except (ParseError, TooLarge, ValidationError) as wrong:
        raise MalformedResponse(f"What {_who(url)} shows is no agent card: {wrong.message}") from None
    if not cards.interfaces(card):
        raise MalformedResponse(
            f"The card of {_who(url)} names no address at which A2A 0.1, 0.2, 0.3 or 1.0 is spoken over JSON-RPC, REST "
            "or gRPC."
        )
    return Found(url=url, document=document, card=card, etag=answer.headers.get("ETag"))


def _who(address: str) -> str:
    return urlsplit(address).netloc


# Signatures


async def signature_of(gate: Gate, found: Found) -> dict[str, Any]:
    """Whether the card is signed, and if so with which keys of the agent's own host: what is stored and shown of it."""
    wanted = signing.wanted(found.document)
    if not wanted:
        return {"status": "unsigned"}
    places = dict.fromkeys(one.jku or f"{_origin(found.url)}{_KEYS}" for one in wanted)
    trusted = [one for one in places if signing.may_speak_for(one, found.url)]
    if not trusted:
        return {"status": "unverified", "why": "its keys lie at another host, which cannot speak for it"}
    keys: dict[str, Any] = {}
    for place in trusted:
        keys |= await _keys(gate, place)
    try:
        held = signing.verify(found.document, keys)
    except SecurityError as wrong:
        return {"status": "invalid" if keys else "unverified", "why": wrong.message}
    return {
        "status": "verified",
        "keys": sorted({one.thumbprint for one in held}),
        "readings": sorted({one.reading for one in held}),
    }


async def _keys(gate: Gate, url: str) -> dict[str, Any]:
    try:
        answer = await gate.request("GET", url, timeout=_SECONDS)
        return dict(signing.read_jwks(msgspec.json.decode(answer.body))) if answer.status == 200 else {}
    except (Agent3Error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def changed_hands(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Why a new card is not to be taken for the old one's: none of the keys that signed it signs any more."""
    keys = before.get("keys") or ()
    if before.get("status") != "verified" or set(keys) & set(now.get("keys") or ()):
        return None
    return f"its card was signed with a key that is gone, and the new one is {now.get('status') or 'unsigned'}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
