"""Finds the card of an agent, and checks whether it is signed.

People give the address of a card, an agent or a site. An address that looks like a card is fetched as it is; for any
other the well-known paths below it and at its origin are tried, the newer name first. The document is kept as it came
beside the parsed card, because signatures are over the document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3 import jsonrpc
from agent3.definitions import AgentCard
from agent3.env import REAL
from agent3.errors import (
    Agent3Error,
    LoopDetected,
    MalformedResponse,
    ParseError,
    RateLimited,
    SecurityError,
    TargetError,
    TargetRefused,
    TooLarge,
    Unavailable,
    ValidationError,
)
from agent3.identity.scheme_credentials import carry_plainly
from agent3.identity.secrets import Secret
from agent3.protocols.a2a.cards import cards, signatures
from agent3.protocols.a2a.peer.bindings import LIMITS
from agent3.security.outbound import Gate, Response

__all__ = ["FoundCard", "check_signature", "explain_key_change", "find_card", "keep_signed"]

_PATHS: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_JWKS_PATH: Final = "/.well-known/jwks.json"
_MOST_ADDRESSES: Final = 100
_TIMEOUT: Final = 15.0


class FoundCard(Struct, frozen=True, kw_only=True):
    """A card with the address it was found at, the document as it came, and the ETag of that version."""

    url: str
    document: dict[str, Any]
    card: AgentCard
    etag: str | None = None


async def find_card(
    gate: Gate,
    address: str,
    secret: Secret | None = None,
    header: str | None = None,
    known: FoundCard | None = None,
) -> FoundCard:
    """The card of an address; ``known`` itself if the agent still serves that version.

    TargetRefused if the agent does not show its card to us; TargetError if there is none, or none that can be read.
    """
    urls = [address if known is None else known.url]
    bare, question, query = address.partition("?")
    parts = urlsplit(bare)
    if known is None and not parts.path.endswith(".json") and "/.well-known/" not in parts.path:
        bases = dict.fromkeys((bare.rstrip("/"), f"{parts.scheme}://{parts.netloc}"))
        urls = [f"{base}{path}{question}{query}" for path in _PATHS for base in bases] + urls
    error: Agent3Error | None = None
    for url in urls:
        try:
            found = await _fetch(gate, url, secret, header, known)
        except (MalformedResponse, TargetRefused) as refused:
            error = error or refused
            continue
        if found is not None:
            return found
    raise error or TargetError(f"{_host(address)} serves no A2A agent card. Give the address of the card itself.")


async def _fetch(
    gate: Gate, url: str, secret: Secret | None, header: str | None, known: FoundCard | None
) -> FoundCard | None:
    """The card at a URL; None if there is nothing."""
    conditions = {"If-None-Match": known.etag} if known is not None and known.etag else {}

    async def get(credential: Mapping[str, str]) -> Response:
        headers = {"Accept": "application/json", **credential, **conditions}
        return await gate.request("GET", url, headers=headers, timeout=_TIMEOUT, max_bytes=LIMITS.body, follow=True)

    response = await get({})
    # Most cards are public, so the secret only goes to an agent that asks for one.
    if response.status in (401, 403) and secret is not None:
        response = await get(carry_plainly(secret, header, response).headers)
    status = response.status
    if status == 304 and known is not None:
        return known
    if status in (401, 403):
        raise TargetRefused(f"{_host(url)} requires credentials for its card (HTTP {status}).", data={"status": status})
    if status == LoopDetected.http_status:
        raise LoopDetected(f"{_host(url)} is this gateway itself, or leads back to it. A gateway does not call itself.")
    if status in (429, 503):
        wait = jsonrpc.parse_retry_after(response.headers.get("Retry-After"), REAL.now())
        text = f"{_host(url)} is too busy to serve its card (HTTP {status})."
        if status == 503:
            raise Unavailable(text, retry_after=wait)
        busy = RateLimited(text, retry_after=wait)
        busy.sent = False
        raise busy
    if status != 200:
        return None
    try:
        document, card = await asyncio.to_thread(_read, response.body)
    except (ParseError, TooLarge, ValidationError) as error:
        raise MalformedResponse(f"{_host(url)} does not serve a valid agent card: {error.message}") from None
    if not cards.interfaces(card):
        raise MalformedResponse(
            f"The card of {_host(url)} has no address for A2A 0.1, 0.2, 0.3 or 1.0 over JSON-RPC, REST or gRPC."
        )
    return FoundCard(url=url, document=document, card=card, etag=response.headers.get("ETag"))


def _read(body: bytes) -> tuple[Any, AgentCard]:
    document = jsonrpc.decode(body, LIMITS)
    card = AgentCard.from_wire(document)
    if len(card.interfaces) > _MOST_ADDRESSES or len(card.security_schemes or ()) > _MOST_ADDRESSES:
        raise TooLarge(f"it has more than {_MOST_ADDRESSES} addresses or ways to sign in")
    return document, card


def _host(address: str) -> str:
    return urlsplit(address).netloc


# Signatures


async def check_signature(gate: Gate, found: FoundCard) -> dict[str, Any]:
    """Whether a card is signed, and by which keys of the agent's own host; stored and shown as it is."""
    wanted = signatures.wanted_keys(found.document)
    if not wanted:
        return {"status": "unsigned"}
    parts = urlsplit(found.url)
    key_urls = dict.fromkeys(each.jku or f"{parts.scheme}://{parts.netloc}{_JWKS_PATH}" for each in wanted)
    trusted = [url for url in key_urls if signatures.may_speak_for(url, found.url)]
    if not trusted:
        return {"status": "unverified", "why": "its keys are at another host, which cannot vouch for it"}
    keys: dict[str, Any] = {}
    for url in trusted:
        try:
            response = await gate.request("GET", url, timeout=_TIMEOUT)
            if response.status == 200:
                keys |= signatures.read_jwks(msgspec.json.decode(response.body))
        except (Agent3Error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # keys that cannot be had verify nothing
    try:
        verified = signatures.verify(found.document, keys)
    except SecurityError as error:
        return {"status": "invalid" if keys else "unverified", "why": error.message}
    return {
        "status": "verified",
        "keys": sorted({each.thumbprint for each in verified}),
        "readings": sorted({each.reading for each in verified}),
    }


def keep_signed(found: FoundCard, signature: dict[str, Any]) -> tuple[FoundCard, dict[str, Any]]:
    """Of a verified card only what its keys signed: a field beside it is nobody's word, and could be anybody's.

    A card whose addresses nobody signed is not verified.
    """
    if signature.get("status") != "verified":
        return found, signature
    document = signatures.signed_part(found.document, signature["readings"])
    card = AgentCard.from_wire(document)
    if not cards.interfaces(card):
        return found, {"status": "unverified", "why": "its signatures do not cover its addresses"}
    return replace(found, document=document, card=card), signature


def explain_key_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Why a new card must not replace the old one: none of the keys that signed the old one signs the new one."""
    keys = before.get("keys") or ()
    if before.get("status") != "verified" or set(keys) & set(now.get("keys") or ()):
        return None
    return (
        f"its card was signed with a key that no longer exists, and the new card is {now.get('status') or 'unsigned'}"
    )
