"""The OAuth 2.1 client: server metadata, registration, consent by authorization code with PKCE, and tokens.

Every request goes through the outbound gate and over TLS, loopback aside. A description of an authorization server may
be hostile: what a person gets at one origin goes to no other, unless that origin, or the operator's issuer, names it.
How a person is sent to a page, where tokens are kept, and how a protocol leads to an authorization server is not known
here.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent3.errors import Agent3Error, MalformedResponse, SetupError, TargetRefused, Unavailable
from agent3.security.outbound import Gate, Response

__all__ = [
    "EARLY",
    "LOOPBACK",
    "MAX_ANSWER",
    "RETRY_AFTER",
    "Client",
    "ConsentRequest",
    "Flow",
    "Grant",
    "SignIn",
    "Tokens",
    "check_endpoint",
    "check_flow",
    "confirm_with_issuer",
    "fetch_metadata",
    "flow_from_metadata",
    "issuer_of",
    "mark_unsent",
    "metadata_urls",
    "origin_of",
    "redeem_code",
    "refresh_tokens",
    "register_client",
    "request_consent",
    "request_tokens",
]

K = TypeVar("K")
ErrorT = TypeVar("ErrorT", bound=Agent3Error)

SignIn: TypeAlias = Callable[[str], Awaitable[str]]
"""Sends a person to an address to agree, and gives the address that they were sent back to."""

EARLY: Final = 30.0
"""Seconds before its end at which a token is renewed, or a tenth of its life where that is less."""
RETRY_AFTER: Final = 5.0
"""Seconds until a refresh that failed is tried again."""
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts that may be reached without TLS."""
MAX_ANSWER: Final = 1 << 20
"""Bytes that an authorization server may answer."""
_PORTS: Final = {"https": 443, "http": 80}
_BASIC: Final = "client_secret_basic"
_ADDRESS: Final = re.compile(r"[A-Za-z0-9\-._~:/?\[\]!$&'()*+,;=%]+")
"""The characters of RFC 3986, without those of user information and of a fragment."""
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")


class Flow(Struct, frozen=True, omit_defaults=True):
    """The authorization code flow of one server: its endpoints, and what the token is for."""

    authorize: str
    token: str
    refresh: str = ""
    """Empty where tokens are refreshed at the token endpoint."""
    register: str = ""
    """Where an unknown client may register; empty where it may not."""
    issuer: str = ""
    """The authorization server that names these endpoints itself; empty where only a third party does."""
    scopes: tuple[str, ...] = ()
    signs: bool = False
    """Whether the redirect back names the issuer (RFC 9207)."""
    resource: str = ""
    """What the token is for (RFC 8707)."""
    origins: tuple[str, ...] = ()
    """Where the token may be sent."""


class Client(Struct, frozen=True, omit_defaults=True):
    """The client that the authorization server knows."""

    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None


class Tokens(Struct, frozen=True, omit_defaults=True):
    """What a token endpoint gave. ``expires_in`` is None where it did not say."""

    access_token: str
    refresh_token: str = ""
    expires_in: float | None = None


class _TokenAnswer(Struct, frozen=True):
    """Tokens on the wire. Servers write null for what they do not give, and seconds as a text."""

    access_token: str
    token_type: str | None = None
    refresh_token: str | None = None
    expires_in: Any = None


class Grant(Struct, frozen=True, omit_defaults=True):
    """All that it takes to go on with a sign-in in another process. It holds secrets: keep it sealed or not at all."""

    tokens: dict[str, Any]
    until: float | None = None
    """When the access token ends, in Unix seconds; None where the server did not say."""
    client: dict[str, Any] | None = None
    server: dict[str, Any] | None = None
    resource: dict[str, Any] | None = None
    key: str | None = None
    """The private key (PEM) that the tokens are bound to, where they are (DPoP)."""

    @property
    def renews(self) -> bool:
        """Whether it outlasts its access token."""
        return bool(self.tokens.get("refresh_token"))


class ConsentRequest(NamedTuple):
    """One request for consent: the page to open, and what the redirect back is checked against."""

    url: str
    state: str
    verifier: str


def origin_of(url: str) -> str:
    """Scheme, host and port in one canonical spelling. An invalid port gives an origin that no valid URL has."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" if port in (None, _PORTS.get(parts.scheme)) else f"{parts.scheme}://{host}:{port}"


def check_endpoint(url: Any) -> str:
    """The address, if it may see a code, a token or a person, and a terminal may show it; else TargetRefused."""
    text = str(url or "")
    try:
        parts = urlsplit(text)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host = "", None
    if host and _ADDRESS.fullmatch(text) and (scheme == "https" or (scheme == "http" and host in LOOPBACK)):
        return text
    raise mark_unsent(
        TargetRefused(
            f"The sign-in address {(text or 'no address')[:200]!r} is not a plain https address, so it was not used."
        )
    )


# Metadata of an authorization server


async def fetch_metadata(gate: Gate, url: str, *, follow: bool = False) -> dict[str, Any]:
    """What an authorization server says of itself; TargetRefused where it says nothing."""
    headers = {"Accept": "application/json"}
    answer = await gate.request("GET", url, headers=headers, max_bytes=MAX_ANSWER, follow=follow)
    if answer.status != 200:
        raise TargetRefused(f"{_host(url)} does not publish how to sign in (HTTP {answer.status}).")
    return _decode(answer, dict[str, Any])


def flow_from_metadata(metadata: Mapping[str, Any], scopes: tuple[str, ...]) -> Flow:
    """The flow of an authorization server by its own description; whose that is must be checked apart."""
    register = metadata.get("registration_endpoint")
    return Flow(
        authorize=check_endpoint(metadata.get("authorization_endpoint")),
        token=check_endpoint(metadata.get("token_endpoint")),
        register=check_endpoint(register) if register else "",
        scopes=scopes,
        signs=metadata.get("authorization_response_iss_parameter_supported") is True,
    )


def issuer_of(metadata: Mapping[str, Any], where: str) -> str:
    """The issuer that a description found at ``where`` proves; empty where it proves none.

    It must lie where that issuer's own description lies (RFC 8414, 3.3): anyone can write another's name.
    """
    try:
        issuer = check_endpoint(metadata.get("issuer"))
    except TargetRefused:
        return ""
    return issuer if where in metadata_urls(issuer) else ""


async def confirm_with_issuer(flow: Flow, gate: Gate, issuer: str) -> Flow:
    """The flow as the issuer that the operator named describes it; TargetRefused where the two differ."""
    for where in metadata_urls(check_endpoint(issuer)):
        try:
            metadata = await fetch_metadata(gate, where)
        except (TargetRefused, MalformedResponse):
            continue  # nothing there, or a site that has a page for every address
        if _same_url(str(metadata.get("issuer")), issuer):
            break
    else:
        raise mark_unsent(TargetRefused(f"{_host(issuer)} publishes neither the issuer {issuer} nor how to sign in."))
    confirmed = flow_from_metadata(metadata, flow.scopes)
    for said, known in ((flow.authorize, confirmed.authorize), (flow.token, confirmed.token)):
        if not _same_url(said, known):
            raise mark_unsent(
                TargetRefused(f"For sign-in, the agent names {said} but {issuer} names {known}. Neither was used.")
            )
    return replace(confirmed, issuer=str(metadata["issuer"]), resource=flow.resource, origins=flow.origins)


def check_flow(flow: Flow, issuer: str | None, *, has_secret: bool = False) -> None:
    """Refuse a flow that could take a code or a secret to the wrong place. ``issuer`` is whom the operator trusts.

    A code is good only where it was given, so an endpoint that gets it must be of the origin at which the person
    agrees, or be named by that origin. A client secret is for its issuer, which only the operator knows.
    """
    if issuer:
        if not _same_url(flow.issuer, issuer):
            raise mark_unsent(
                TargetRefused(
                    f"{issuer} does not confirm the sign-in address that the agent names, so it was not used."
                )
            )
        return
    if has_secret:
        raise SetupError(
            "A client secret is sent only to the server that issued it. Name that server: --issuer https://…"
        )
    home = origin_of(flow.authorize)
    others = {origin_of(url) for url in (flow.token, flow.refresh, flow.register) if url} - {home}
    if others and origin_of(flow.issuer) != home:
        raise mark_unsent(
            TargetRefused(
                f"The agent asks for consent at {home} but sends the result to {', '.join(sorted(others))}, "
                f"which {home} does not confirm. If both belong to one authorization server, name it: "
                "--issuer https://…"
            )
        )


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """Where an issuer describes itself, by RFC 8414 and by OpenID Connect."""
    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return (
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}{path}/.well-known/openid-configuration",
    )


def _same_url(left: str, right: str) -> bool:
    return left.rstrip("/") == right.rstrip("/")


# Registration and consent


async def register_client(flow: Flow, gate: Gate, redirect: str) -> Client:
    """Register with the authorization server (RFC 7591); SetupError where it takes only clients that it knows."""
    if not flow.register:
        back = urlsplit(redirect)
        raise SetupError(
            f"{_host(flow.authorize)} accepts only registered clients and has no registration endpoint. "
            f"Register agent3 there with the redirect address {back.scheme}://{back.hostname}{back.path} on "
            "any port, then pass the client id: --client-id ID"
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
        "POST", flow.register, headers=headers, body=msgspec.json.encode(wish), max_bytes=MAX_ANSWER
    )
    if answer.status not in (200, 201):
        raise TargetRefused(
            f"{_host(flow.register)} refused to register a client (HTTP {answer.status}). Use --client-id."
        )
    client = _decode(answer, Client)
    if not client.client_id:
        raise mark_unsent(MalformedResponse(f"{_host(flow.register)} registered a client without an id."))
    return client


def request_consent(flow: Flow, client: Client, redirect: str) -> ConsentRequest:
    """A new request for consent, with a state and a PKCE verifier of its own."""
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
    query |= _resource_indicator(flow)
    sign = "&" if urlsplit(flow.authorize).query else "?"
    return ConsentRequest(f"{flow.authorize}{sign}{urlencode(query)}", state, verifier)


def _resource_indicator(flow: Flow) -> dict[str, str]:
    """What the token is for (RFC 8707), so that it is of no use elsewhere."""
    # Scopes that are URLs name the resource already, and Entra ID refuses to get both (AADSTS9010010).
    if not flow.resource or any("://" in scope for scope in flow.scopes):
        return {}
    return {"resource": flow.resource}


# Tokens


async def redeem_code(
    flow: Flow, gate: Gate, client: Client, redirect: str, consent: ConsentRequest, came_back: str
) -> Tokens:
    """The tokens for the code in a redirect back; TargetRefused where there is none, or it is not for ``consent``."""
    answer = {name: values[0] for name, values in parse_qs(urlsplit(came_back).query).items()}
    place = _host(flow.authorize)
    if not secrets.compare_digest(answer.get("state", "").encode(), consent.state.encode()):
        raise TargetRefused(f"The redirect does not belong to this sign-in to {place}.")
    if "error" in answer:
        reason = answer.get("error_description") or answer["error"]
        # It goes to a terminal, which obeys control characters.
        shown = "".join(character if character.isprintable() else " " for character in reason[:300])
        raise TargetRefused(f"{place} did not give consent: {shown}")
    if flow.issuer and answer.get("iss", "" if flow.signs else flow.issuer) != flow.issuer:
        raise TargetRefused(f"The redirect did not come from the authorization server {flow.issuer} (RFC 9207).")
    if not answer.get("code"):
        raise TargetRefused(f"{place} redirected back without a code.")
    form = {
        "grant_type": "authorization_code",
        "code": answer["code"],
        "redirect_uri": redirect,
        "code_verifier": consent.verifier,
        **_resource_indicator(flow),
    }
    return await request_tokens(gate, flow.token, client, form)


async def refresh_tokens(flow: Flow, gate: Gate, client: Client, refresh_token: str) -> Tokens:
    """New tokens. The refresh token is kept where the server gives no other; TargetRefused where it is not taken."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, **_resource_indicator(flow)}
    found = await request_tokens(gate, flow.refresh or flow.token, client, form)
    return found if found.refresh_token else replace(found, refresh_token=refresh_token)


async def request_tokens(gate: Gate, url: str, client: Client, form: Mapping[str, str]) -> Tokens:
    """Send a form to a token endpoint, as ``client``.

    TargetRefused where the server says no; Unavailable where it may say yes later; MalformedResponse for what is no
    bearer token. None of them counts the call for which the token is as sent.
    """
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if client.client_secret and (client.token_endpoint_auth_method or _BASIC) == _BASIC:
        pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    else:
        form = {**form, "client_id": client.client_id}
        if client.client_secret:
            form["client_secret"] = client.client_secret
    try:
        answer = await gate.request("POST", url, headers=headers, body=urlencode(form).encode(), max_bytes=MAX_ANSWER)
    except Agent3Error as error:
        mark_unsent(error)
        raise
    place = _host(url)
    if answer.status >= 500 or answer.status == 429:
        # Taken for a no, this would cost a person's consent.
        raise mark_unsent(Unavailable(f"{place} issues no tokens at the moment (HTTP {answer.status})."))
    if answer.status != 200:
        raise mark_unsent(
            TargetRefused(f"{place} issued no token (HTTP {answer.status}).", data={"status": answer.status})
        )
    found = _decode(answer, _TokenAnswer)
    if (found.token_type or "bearer").lower() != "bearer":
        raise mark_unsent(MalformedResponse(f"{place} issued a token that is not a bearer token."))
    if not _VISIBLE.fullmatch(found.access_token):  # it goes into a header
        raise mark_unsent(MalformedResponse(f"{place} issued an access token with invalid characters."))
    try:
        life = float(found.expires_in)
    except (TypeError, ValueError, OverflowError):
        life = math.inf
    return Tokens(found.access_token, found.refresh_token or "", max(0.0, life) if math.isfinite(life) else None)


def mark_unsent(error: ErrorT) -> ErrorT:
    """The error, of which the call knows that it was not sent itself: what was sent was about its token."""
    error.sent = False
    return error


def _decode(answer: Response, kind: type[K]) -> K:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        error = MalformedResponse(f"{_host(answer.url)} did not answer with the expected JSON object.")
        raise mark_unsent(error) from None


def _host(url: str) -> str:
    return urlsplit(url).netloc
