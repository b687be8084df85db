"""Signing in by a card: a person agrees at the page that an agent's card names, and we get a token for them.

The authorization code flow of OAuth 2.1 with PKCE, by the addresses of the card's ``oauth2`` scheme or of what its
``openIdConnect`` scheme leads to. Everything goes through the outbound gate and over TLS, loopback aside. How a person
is sent to a page, and where tokens are kept, is not known here.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from agent3.definitions import AgentCard
from agent3.errors import Agent3Error, MalformedResponse, SetupError, TargetRefused, Unavailable
from agent3.security.network import Gate, Response

__all__ = ["Asking", "Client", "Flow", "Tokens", "asking", "exchanged", "flow_of", "refreshed", "registered"]

K = TypeVar("K")
_HOMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ANSWER: Final = 1 << 20
_BASIC: Final = "client_secret_basic"


class Flow(Struct, frozen=True, omit_defaults=True):
    """Where a person agrees, where tokens are got, and where a client that nobody knows yet may introduce itself."""

    authorize: str
    token: str
    refresh: str = ""
    register: str = ""
    issuer: str = ""
    scopes: tuple[str, ...] = ()


class Client(Struct, frozen=True, omit_defaults=True):
    """Who we are at the authorization server."""

    client_id: str
    client_secret: str = ""
    token_endpoint_auth_method: str = ""


class Tokens(Struct, frozen=True, omit_defaults=True):
    """What an authorization server gave."""

    access_token: str
    refresh_token: str = ""
    expires_in: float | None = None


class Asking(NamedTuple):
    """One request for consent: the page to be opened, and what its answer is held against."""

    url: str
    state: str
    verifier: str


async def flow_of(card: AgentCard, gate: Gate) -> Flow | None:
    """How a person signs in, by the first scheme of a card that has a way for one; None where none has.

    TargetRefused where a scheme leads to something that is not https, MalformedResponse where it leads to nothing.
    """
    for definition, scopes in _schemes(card):
        if definition.get("type") == "openIdConnect" and definition.get("openIdConnectUrl"):
            return await _discovered(gate, str(definition["openIdConnectUrl"]), scopes or ("openid",))
        flow = (definition.get("flows") or {}).get("authorizationCode")
        if definition.get("type") == "oauth2" and isinstance(flow, Mapping):
            return await _declared(gate, definition, flow, scopes)
    return None


def _schemes(card: AgentCard) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """The schemes of a card as 0.3 and OpenAPI write them, those that it requires first, with the scopes it asks."""
    document = card.to_wire("0.3")
    schemes: Mapping[str, Any] = document.get("securitySchemes") or {}
    required = [(name, tuple(scopes)) for one in document.get("security") or () for name, scopes in one.items()]
    for name, scopes in (*required, *((name, ()) for name in schemes)):
        if isinstance(schemes.get(name), Mapping):
            yield schemes[name], scopes


async def _declared(gate: Gate, scheme: Mapping[str, Any], flow: Mapping[str, Any], scopes: tuple[str, ...]) -> Flow:
    about: Mapping[str, Any] = {}
    if where := scheme.get("oauth2MetadataUrl"):
        about = await _about(gate, str(where))
    return Flow(
        authorize=_safe(flow.get("authorizationUrl")),
        token=_safe(flow.get("tokenUrl")),
        refresh=_safe(flow["refreshUrl"]) if flow.get("refreshUrl") else "",
        register=_safe(about["registration_endpoint"]) if about.get("registration_endpoint") else "",
        issuer=str(about.get("issuer") or ""),
        scopes=scopes or tuple(flow.get("scopes") or ()),
    )


async def _discovered(gate: Gate, where: str, scopes: tuple[str, ...]) -> Flow:
    about = await _about(gate, where)
    return Flow(
        authorize=_safe(about.get("authorization_endpoint")),
        token=_safe(about.get("token_endpoint")),
        register=_safe(about["registration_endpoint"]) if about.get("registration_endpoint") else "",
        issuer=str(about.get("issuer") or ""),
        scopes=scopes,
    )


async def _about(gate: Gate, where: str) -> Mapping[str, Any]:
    """What an authorization server says of itself."""
    answer = await gate.request("GET", _safe(where), headers={"Accept": "application/json"}, max_bytes=_ANSWER)
    if answer.status != 200:
        raise TargetRefused(f"{_who(where)} does not say how one signs in (HTTP {answer.status}).")
    return _read(answer, dict[str, Any])


async def registered(flow: Flow, gate: Gate, redirect: str) -> Client:
    """Introduce ourselves to the authorization server (RFC 7591); SetupError where it takes nobody it does not know."""
    if not flow.register:
        back = urlsplit(redirect)
        raise SetupError(
            f"{_who(flow.authorize)} wants to know which client asks, and has no place to register one. Register "
            f"agent3 there with the redirect address {back.scheme}://{back.hostname}{back.path} on any port, and say "
            "what it is called: --client-id ID"
        )
    wish = {
        "client_name": "agent3",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    answer = await gate.request(
        "POST", flow.register, headers=headers, body=msgspec.json.encode(wish), max_bytes=_ANSWER
    )
    if answer.status not in (200, 201):
        raise TargetRefused(f"{_who(flow.register)} does not register us (HTTP {answer.status}). Give a --client-id.")
    return _read(answer, Client)


def asking(flow: Flow, client: Client, redirect: str) -> Asking:
    """A new request for consent."""
    state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    query = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect,
        "state": state,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
    }
    if flow.scopes:
        query["scope"] = " ".join(flow.scopes)
    sign = "&" if urlsplit(flow.authorize).query else "?"
    return Asking(f"{flow.authorize}{sign}{urlencode(query)}", state, verifier)


async def exchanged(flow: Flow, gate: Gate, client: Client, redirect: str, asked: Asking, came: str) -> Tokens:
    """The tokens for what a person was sent back with; TargetRefused where they said no, or it is not from there."""
    said = {name: values[0] for name, values in parse_qs(urlsplit(came).query).items()}
    place = _who(flow.authorize)
    if not secrets.compare_digest(said.get("state", "").encode(), asked.state.encode()):
        raise TargetRefused(f"What came back does not belong to this sign-in to {place}.")
    if "error" in said:
        raise TargetRefused(f"{place} gave no consent: {said.get('error_description') or said['error']}"[:300])
    if flow.issuer and said.get("iss", flow.issuer) != flow.issuer:
        raise TargetRefused(f"What came back is from another authorization server than {flow.issuer} (RFC 9207).")
    if not said.get("code"):
        raise TargetRefused(f"{place} sent the person back without a code.")
    form = {
        "grant_type": "authorization_code",
        "code": said["code"],
        "redirect_uri": redirect,
        "code_verifier": asked.verifier,
    }
    return await _tokens(gate, flow.token, client, form)


async def refreshed(flow: Flow, gate: Gate, client: Client, refresh: str) -> Tokens:
    """New tokens for a refresh token, which goes on where the server gives no other; TargetRefused if it is over."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh}
    found = await _tokens(gate, flow.refresh or flow.token, client, form)
    return found if found.refresh_token else msgspec.structs.replace(found, refresh_token=refresh)


async def _tokens(gate: Gate, url: str, client: Client, form: dict[str, str]) -> Tokens:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if client.client_secret and (client.token_endpoint_auth_method or _BASIC) == _BASIC:
        pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        form = {**form, "client_id": client.client_id}
        if client.client_secret:
            form["client_secret"] = client.client_secret
    try:
        answer = await gate.request("POST", url, headers=headers, body=urlencode(form).encode(), max_bytes=_ANSWER)
    except Agent3Error as wrong:
        wrong.sent = False  # what left was about the token, not the call
        raise
    if answer.status >= 500 or answer.status == 429:
        # To take this for a no would cost a person's consent.
        raise _unsent(Unavailable(f"{_who(url)} gives no tokens at the moment (HTTP {answer.status})."))
    if answer.status != 200:
        raise _unsent(
            TargetRefused(f"{_who(url)} gave no token (HTTP {answer.status}).", data={"status": answer.status})
        )
    return _read(answer, Tokens)


def _unsent(wrong: Agent3Error) -> Agent3Error:
    wrong.sent = False
    return wrong


def _read(answer: Response, kind: type[K]) -> K:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _unsent(MalformedResponse(f"{_who(answer.url)} answered with something that cannot be read.")) from None


def _safe(url: Any) -> str:
    """An address that may see a code, a token or a person."""
    parts = urlsplit(str(url or ""))
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _HOMES):
        return str(url)
    raise _unsent(
        TargetRefused(
            f"The card has one sign in at {str(url or 'no address')[:200]!r}, which is not https. It was not used."
        )
    )


def _who(url: str) -> str:
    return urlsplit(url).netloc
