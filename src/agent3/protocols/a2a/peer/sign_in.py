"""Signing in by a card: a person agrees at the page that an agent's card names, and we get a token for them.

The authorization code flow of OAuth 2.1 with PKCE, by the addresses of the card's ``oauth2`` scheme or of what its
``openIdConnect`` scheme leads to. Everything goes through the outbound gate and over TLS, loopback aside. A card may be
hostile: what a person gets at one place goes to no other, unless that place, or the operator's issuer, says so itself.
How a person is sent to a page, and where tokens are kept, is not known here.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.definitions import AgentCard
from agent3.errors import Agent3Error, MalformedResponse, SetupError, TargetRefused, Unavailable
from agent3.protocols.a2a.cards.cards import interfaces
from agent3.protocols.a2a.peer.bindings import grpc_url
from agent3.protocols.a2a.peer.credentials import origin
from agent3.security.outbound import Gate, Response

__all__ = [
    "Asking",
    "Client",
    "Flow",
    "Tokens",
    "asking",
    "check",
    "exchanged",
    "flow_of",
    "of_issuer",
    "refreshed",
    "registered",
]

K = TypeVar("K")
_HOMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ANSWER: Final = 1 << 20
_BASIC: Final = "client_secret_basic"
_ADDRESS: Final = re.compile(r"[A-Za-z0-9\-._~:/?\[\]!$&'()*+,;=%]+")
"""The characters of RFC 3986, without those of user information and of a fragment."""
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")


class Flow(Struct, frozen=True, omit_defaults=True):
    """Where a person agrees, where tokens are got, and where a client that nobody knows yet may introduce itself."""

    authorize: str
    token: str
    refresh: str = ""
    register: str = ""
    issuer: str = ""
    """The authorization server that names these addresses itself; empty where only a card does."""
    scopes: tuple[str, ...] = ()
    signs: bool = False
    """Whether who comes back says from which issuer (RFC 9207)."""
    resource: str = ""
    """The agent that the token is for (RFC 8707)."""
    origins: tuple[str, ...] = ()
    """Where the token may go."""


class Client(Struct, frozen=True, omit_defaults=True):
    """Who we are at the authorization server."""

    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


class Tokens(Struct, frozen=True, omit_defaults=True):
    """What an authorization server gave."""

    access_token: str
    refresh_token: str = ""
    expires_in: float | None = None


class _Given(Struct, frozen=True):
    """Tokens as they come. Servers write null for what they do not give, and seconds as a text."""

    access_token: str
    token_type: str | None = None
    refresh_token: str | None = None
    expires_in: Any = None


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
            found = await _discovered(gate, str(definition["openIdConnectUrl"]), scopes or ("openid",))
            return _for_agent(found, card)
        flow = (definition.get("flows") or {}).get("authorizationCode")
        if definition.get("type") == "oauth2" and isinstance(flow, Mapping):
            return _for_agent(await _declared(gate, definition, flow, scopes), card)
    return None


async def of_issuer(flow: Flow, gate: Gate, issuer: str) -> Flow:
    """The flow as the issuer that the operator named tells it; TargetRefused where a card says something else."""
    for where in _places(_safe(issuer)):
        answer = await gate.request("GET", where, headers={"Accept": "application/json"}, max_bytes=_ANSWER)
        try:
            about = _read(answer, dict[str, Any]) if answer.status == 200 else {}
        except MalformedResponse:
            about = {}  # a site that has a page for every address
        if _same(str(about.get("issuer")), issuer):
            break
    else:
        raise _unsent(
            TargetRefused(f"{_who(issuer)} does not say that it is the issuer {issuer}, nor how one signs in.")
        )
    named = _named(about, flow.scopes)
    for said, known in ((flow.authorize, named.authorize), (flow.token, named.token)):
        if not _same(said, known):
            raise _unsent(
                TargetRefused(
                    f"The card has one sign in at {said}, and {issuer} at {known}. Nothing was sent to either."
                )
            )
    return replace(named, issuer=str(about["issuer"]), resource=flow.resource, origins=flow.origins)


def check(flow: Flow, issuer: str | None, secret: bool = False) -> None:
    """Refuse a flow by which a card could get what is not for it. ``issuer`` is whom the operator trusts.

    A code is good only where it was given, so a place that gets it must be of the origin at which the person agrees,
    or be named by that origin. The ``secret`` of a client is for its issuer, which only the operator knows.
    """
    if issuer:
        if not _same(flow.issuer, issuer):
            raise _unsent(
                TargetRefused(f"What the card says of signing in is not told by {issuer}, so it was not used.")
            )
        return
    if secret:
        raise SetupError("The secret of a client goes only to who gave it. Say who that is: --issuer https://…")
    home = origin(flow.authorize)
    others = {origin(one) for one in (flow.token, flow.refresh, flow.register) if one} - {home}
    if others and origin(flow.issuer) != home:
        raise _unsent(
            TargetRefused(
                f"The card has a person agree at {home} and takes what they get to {', '.join(sorted(others))}, of "
                f"which {home} says nothing. If both are of one authorization server, name it: --issuer https://…"
            )
        )


def _for_agent(flow: Flow, card: AgentCard) -> Flow:
    """For the agent at the first address that is spoken to, and at other ports of its host that the card names."""
    places = [grpc_url(one.url) if one.protocol_binding.upper() == "GRPC" else one.url for one, _ in interfaces(card)]
    if not places:
        return flow
    host = urlsplit(places[0]).hostname
    near = dict.fromkeys(origin(one) for one in places if urlsplit(one).hostname == host)
    return replace(flow, resource=places[0].partition("#")[0], origins=tuple(near))


def _schemes(card: AgentCard) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """The schemes of a card as 0.3 and OpenAPI write them, those that it requires first, with the scopes it asks."""
    document = card.to_wire("0.3")
    schemes: Mapping[str, Any] = document.get("securitySchemes") or {}
    required = [(name, tuple(scopes)) for one in document.get("security") or () for name, scopes in one.items()]
    for name, scopes in (*required, *((name, ()) for name in schemes)):
        if isinstance(schemes.get(name), Mapping):
            yield schemes[name], scopes


async def _declared(gate: Gate, scheme: Mapping[str, Any], flow: Mapping[str, Any], scopes: tuple[str, ...]) -> Flow:
    said = Flow(
        authorize=_safe(flow.get("authorizationUrl")),
        token=_safe(flow.get("tokenUrl")),
        refresh=_safe(flow["refreshUrl"]) if flow.get("refreshUrl") else "",
        scopes=scopes or tuple(flow.get("scopes") or ()),
    )
    where = scheme.get("oauth2MetadataUrl")
    if not where:
        return said
    about = await _about(gate, str(where))
    issuer = _issuer(about, str(where))
    named = about.get("authorization_endpoint"), about.get("token_endpoint"), about.get("token_endpoint")
    if issuer and named == (said.authorize, said.token, said.refresh or said.token):
        return replace(_named(about, said.scopes), issuer=issuer)
    return replace(said, register=_registers(about))


async def _discovered(gate: Gate, where: str, scopes: tuple[str, ...]) -> Flow:
    about = await _about(gate, where)
    return replace(_named(about, scopes), issuer=_issuer(about, where))


def _named(about: Mapping[str, Any], scopes: tuple[str, ...]) -> Flow:
    """The flow of an authorization server by its own description."""
    return Flow(
        authorize=_safe(about.get("authorization_endpoint")),
        token=_safe(about.get("token_endpoint")),
        register=_registers(about),
        scopes=scopes,
        signs=about.get("authorization_response_iss_parameter_supported") is True,
    )


def _registers(about: Mapping[str, Any]) -> str:
    return _safe(about["registration_endpoint"]) if about.get("registration_endpoint") else ""


def _issuer(about: Mapping[str, Any], where: str) -> str:
    """Whom a description is of, if it lies where that one's lies (RFC 8414, 3.3); anybody can write another's name."""
    try:
        issuer = _safe(about.get("issuer"))
    except TargetRefused:
        return ""
    return issuer if where in _places(issuer) else ""


def _places(issuer: str) -> tuple[str, ...]:
    """Where an issuer describes itself, by RFC 8414 and by OpenID Connect."""
    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return (
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}{path}/.well-known/openid-configuration",
    )


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


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
    client = _read(answer, Client)
    if not client.client_id:
        raise _unsent(MalformedResponse(f"{_who(flow.register)} registered us without a name."))
    return client


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
    query |= _meant(flow)
    sign = "&" if urlsplit(flow.authorize).query else "?"
    return Asking(f"{flow.authorize}{sign}{urlencode(query)}", state, verifier)


def _meant(flow: Flow) -> dict[str, str]:
    """Whom the token is for (RFC 8707), so that it is of no use elsewhere.

    Scopes that are addresses say so already; who uses these (Entra ID) refuses to be told twice (AADSTS9010010).
    """
    return {"resource": flow.resource} if flow.resource and not any("://" in one for one in flow.scopes) else {}


async def exchanged(flow: Flow, gate: Gate, client: Client, redirect: str, asked: Asking, came: str) -> Tokens:
    """The tokens for what a person was sent back with; TargetRefused where they said no, or it is not from there."""
    said = {name: values[0] for name, values in parse_qs(urlsplit(came).query).items()}
    place = _who(flow.authorize)
    if not secrets.compare_digest(said.get("state", "").encode(), asked.state.encode()):
        raise TargetRefused(f"What came back does not belong to this sign-in to {place}.")
    if "error" in said:
        raise TargetRefused(f"{place} gave no consent: {_words(said.get('error_description') or said['error'])}")
    if flow.issuer and said.get("iss", "" if flow.signs else flow.issuer) != flow.issuer:
        raise TargetRefused(f"What came back is from another authorization server than {flow.issuer} (RFC 9207).")
    if not said.get("code"):
        raise TargetRefused(f"{place} sent the person back without a code.")
    form = {
        "grant_type": "authorization_code",
        "code": said["code"],
        "redirect_uri": redirect,
        "code_verifier": asked.verifier,
        **_meant(flow),
    }
    return await _tokens(gate, flow.token, client, form)


async def refreshed(flow: Flow, gate: Gate, client: Client, refresh: str) -> Tokens:
    """New tokens for a refresh token, which goes on where the server gives no other; TargetRefused if it is over."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh, **_meant(flow)}
    found = await _tokens(gate, flow.refresh or flow.token, client, form)
    return found if found.refresh_token else replace(found, refresh_token=refresh)


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
    return _given(answer)


def _given(answer: Response) -> Tokens:
    """The tokens of an answer; MalformedResponse for what cannot be a bearer's, and would go into a header."""
    found = _read(answer, _Given)
    if (found.token_type or "bearer").lower() != "bearer":
        raise _unsent(MalformedResponse(f"{_who(answer.url)} gave a token of a kind that is not known here."))
    if not _VISIBLE.fullmatch(found.access_token):
        raise _unsent(MalformedResponse(f"{_who(answer.url)} gave a token that is none."))
    return Tokens(found.access_token, found.refresh_token or "", _seconds(found.expires_in))


def _seconds(said: Any) -> float | None:
    try:
        seconds = float(said)
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _unsent(wrong: Agent3Error) -> Agent3Error:
    wrong.sent = False
    return wrong


def _read(answer: Response, kind: type[K]) -> K:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _unsent(MalformedResponse(f"{_who(answer.url)} answered with something that cannot be read.")) from None


def _safe(url: Any) -> str:
    """An address that may see a code, a token or a person, and that a terminal may show."""
    text = str(url or "")
    try:
        parts = urlsplit(text)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host = "", None
    if host and _ADDRESS.fullmatch(text) and (scheme == "https" or (scheme == "http" and host in _HOMES)):
        return text
    raise _unsent(
        TargetRefused(
            f"One would sign in at {(text or 'no address')[:200]!r}, which is not https, or no plain address. It was "
            "not used."
        )
    )


def _words(said: str) -> str:
    """What a stranger says, fit for a terminal."""
    return "".join(one if one.isprintable() else " " for one in said[:300])


def _who(url: str) -> str:
    return urlsplit(url).netloc
