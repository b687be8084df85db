"""What a request to an agent carries to show who sends it: the secret of a route, in the way that its card asks for.

A card names its schemes; the operator gives one secret. An API key goes into the header, query or cookie that the card
says, a token into ``Authorization``; ``user:password`` is for HTTP Basic, and ``client:secret`` gets a token where the
card names OAuth 2 client credentials or OpenID Connect. What a person signed in to is renewed by whoever keeps it; a
scheme that needs a certificate is not for here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from agent3.definitions import AgentCard
from agent3.env import REAL, Env
from agent3.errors import MalformedResponse, SecurityError, TargetRefused
from agent3.identity.secrets import Secret
from agent3.security.outbound import Gate, Response

__all__ = ["Carried", "Credential", "Refusal", "Renewal", "origin", "plain"]

_EARLY: Final = 30.0
"""Seconds before its end at which a token is renewed."""
_PORTS: Final = {"https": 443, "http": 80}
_USUAL: Final = 300.0
"""Seconds that a token is used whose server does not say for how long it is good."""


class Carried(NamedTuple):
    """Headers and parameters of the query that one request carries."""

    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}


_NOTHING: Final = Carried()


class Refusal(NamedTuple):
    """An answer that refuses a credential, as far as whoever renews it needs to know."""

    status: int


class Renewal(Protocol):
    """Keeps a credential that changes. It may serve many requests at once."""

    @property
    def origins(self) -> tuple[str, ...]:
        """Those that it was made for; none where only the place of the agent's card is."""
        ...

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        """What the next request carries."""
        ...

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Any) -> bool:
        """Get a better one after a request with these headers was refused; True if it is worth another try."""
        ...


class _Scheme(NamedTuple):
    """A scheme of a card, as 0.3 and OpenAPI write it, and the scopes that the card asks for."""

    definition: Mapping[str, Any]
    scopes: tuple[str, ...]


def origin(url: str) -> str:
    """Scheme, host and port of an address, each always written the same way; a port that is none counts as none."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" if port in (None, _PORTS.get(parts.scheme)) else f"{parts.scheme}://{host}:{port}"


def plain(secret: Secret | None, header: str | None, refused: Response | None = None) -> Carried:
    """What goes to an agent whose card is not known yet: the header of the operator's choice, else a token.

    ``refused`` is an answer that asks for more: a server that wants HTTP Basic gets that.
    """
    if secret is None or getattr(secret, "authorization", None) is not None:
        return _NOTHING  # a sign-in was made by a card for everybody, and is for the agent, not for who shows cards
    if header:
        return Carried({header: secret.reveal()})
    asked = (refused.headers.get("WWW-Authenticate") or "").lower() if refused is not None else ""
    return _basic(secret) if asked.startswith("basic") else _bearer(secret.reveal())


class Credential:
    """One secret for one agent. It belongs to the event loop it is used in; a token is got once for all requests."""

    def __init__(
        self, card: AgentCard, secret: Secret | None, header: str | None, gate: Gate, home: str, env: Env = REAL
    ):
        self._secret = secret
        self._header = header
        # A secret that changes brings along who renews it, as that of a sign-in does.
        self._renewal: Renewal | None = getattr(secret, "authorization", None)
        self._scheme = next(_usable(card), None) if secret is not None and not header else None
        self._gate = gate
        self._home = urlsplit(home)
        self._origins: tuple[str, ...] = getattr(self._renewal, "origins", ()) or (origin(home),)
        self._env = env
        self._token: Secret | None = None
        self._until = 0.0

    async def carried(self, url: str) -> Carried:
        """What a request to an address of the agent carries.

        SecurityError where the secret would travel in the clear, or what a person agreed to would go elsewhere than
        they agreed; TargetRefused where a token is not given to us.
        """
        if self._secret is None:
            return _NOTHING
        self._trusted(url)
        if self._renewal is not None:
            self._meant_for(url)
            return Carried(await self._renewal.headers(self._gate))
        if self._scheme is None:
            return plain(self._secret, self._header)
        kind, inside = self._scheme.definition.get("type"), self._scheme.definition
        if kind == "apiKey":
            return _api_key(inside, self._secret)
        if kind == "http" and str(inside.get("scheme", "")).lower() == "basic":
            return _basic(self._secret)
        if kind in ("oauth2", "openIdConnect") and ":" in self._secret.reveal():
            return _bearer(await self._granted(kind))
        return _bearer(self._secret.reveal())

    async def renewed(self, sent: Mapping[str, str], refused: TargetRefused) -> bool:
        """Whether there is, or will be, another token than the one that was refused, so that asking again is of use."""
        if self._renewal is not None:
            status = refused.data.get("status")
            return await self._renewal.renew(self._gate, sent, Refusal(status if isinstance(status, int) else 401))
        had, self._token = self._token, None
        return had is not None

    def hidden(self) -> tuple[Secret, ...]:
        """Secrets that were got meanwhile and must not come back in an answer."""
        return () if self._token is None else (self._token,)

    async def _granted(self, kind: str) -> str:
        if self._token is None or self._env.monotonic() >= self._until:
            endpoint = await self._endpoint(kind)
            self._token, seconds = await self._exchange(endpoint)
            self._until = self._env.monotonic() + max(1.0, seconds - _EARLY)
        return self._token.reveal()

    async def _endpoint(self, kind: str) -> str:
        assert self._scheme is not None
        definition = self._scheme.definition
        if kind == "oauth2":
            return self._trusted(str((definition.get("flows") or {})["clientCredentials"].get("tokenUrl") or ""))
        found = await self._gate.request("GET", self._trusted(str(definition["openIdConnectUrl"])), follow=True)
        return self._trusted(str(_body(found).get("token_endpoint") or ""))

    def _trusted(self, url: str) -> str:
        """An address that may get the secret: over TLS, or at the agent's own host as the card itself came."""
        parts = urlsplit(url)
        if parts.scheme == "https" or (parts.scheme == self._home.scheme and parts.hostname == self._home.hostname):
            return url
        raise SecurityError(
            f"The card of {self._home.hostname} sends its secret to {parts.hostname or 'nowhere'} without TLS, so it "
            "was not sent. Ask its provider for an https address, or give a token."
        )

    def _meant_for(self, url: str) -> None:
        """What a person agreed to is for one agent: a card that moves, or is changed, does not take it along."""
        if origin(url) not in self._origins:
            raise SecurityError(
                f"The sign-in was made for {', '.join(self._origins)}, and the card of {self._home.hostname} now names "
                f"{origin(url)}, so it was not sent. If that is right, sign in again: agent3 add ADDRESS --sign-in"
            )

    async def _exchange(self, endpoint: str) -> tuple[Secret, float]:
        assert self._secret is not None
        assert self._scheme is not None
        client, _, secret = self._secret.reveal().partition(":")
        form = {"grant_type": "client_credentials"}
        if self._scheme.scopes:
            form["scope"] = " ".join(self._scheme.scopes)
        headers = {
            "Authorization": f"Basic {_base64(':'.join(quote(one, safe='') for one in (client, secret)))}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        answer = await self._gate.request("POST", endpoint, headers=headers, body=urlencode(form).encode())
        place = urlsplit(endpoint).hostname
        if answer.status != 200:
            raise TargetRefused(f"{place} gave no token for our client credentials (HTTP {answer.status}).")
        granted = _body(answer)
        token, seconds = granted.get("access_token"), granted.get("expires_in")
        if not isinstance(token, str) or not token:
            raise MalformedResponse(f"{place} answered without an access token.")
        return Secret(token), float(seconds) if isinstance(seconds, (int, float)) else _USUAL


def _usable(card: AgentCard) -> Iterator[_Scheme]:
    """The schemes that one secret is enough for, those that the card requires first, in its own order."""
    document = card.to_wire("0.3")
    schemes: Mapping[str, Any] = document.get("securitySchemes") or {}
    required = [one for one in document.get("security") or () if len(one) == 1]
    named = [(name, tuple(scopes)) for one in required for name, scopes in one.items()]
    for name, scopes in (*named, *((name, ()) for name in schemes)):
        definition = schemes.get(name)
        if isinstance(definition, Mapping) and _speaks(definition):
            yield _Scheme(definition, scopes)


def _speaks(definition: Mapping[str, Any]) -> bool:
    kind = definition.get("type")
    if kind == "apiKey":
        return isinstance(definition.get("name"), str) and definition.get("in") in ("header", "query", "cookie")
    if kind == "http":
        return str(definition.get("scheme", "")).lower() in ("bearer", "basic")
    if kind == "oauth2":
        flow = (definition.get("flows") or {}).get("clientCredentials")
        return isinstance(flow, Mapping) and bool(flow.get("tokenUrl"))
    return kind == "openIdConnect" and bool(definition.get("openIdConnectUrl"))


def _api_key(definition: Mapping[str, Any], secret: Secret) -> Carried:
    name, place = str(definition["name"]), definition["in"]
    if place == "query":
        return Carried(query={name: secret.reveal()})
    if place == "cookie":
        return Carried({"Cookie": f"{name}={quote(secret.reveal(), safe='')}"})
    return Carried({name: secret.reveal()})


def _bearer(token: str) -> Carried:
    return Carried({"Authorization": f"Bearer {token}"}) if token else _NOTHING


def _basic(secret: Secret) -> Carried:
    """``user:password``; anything else is taken for what was encoded already."""
    value = secret.reveal()
    return Carried({"Authorization": f"Basic {_base64(value) if ':' in value else value}"})


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _body(answer: Response) -> dict[str, Any]:
    place = urlsplit(answer.url).hostname
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedResponse(f"{place} answered with something that is not a JSON object.") from None
