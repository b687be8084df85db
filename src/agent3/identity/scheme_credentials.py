"""What a request carries to show who sends it: one secret, in the way of a security scheme.

Schemes are written as in OpenAPI, by an A2A card or by an OpenAPI document; the operator gives one secret. An API key
goes into the header, query or cookie that the scheme says, a token into ``Authorization``; ``user:password`` is for
HTTP Basic, and ``client:secret`` gets a token where the scheme is OAuth 2 client credentials or OpenID Connect. The
token of a sign-in is renewed by its ``Authorization``. Schemes that need a client certificate are not supported.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from agent3.env import REAL, Env
from agent3.errors import SecurityError, TargetRefused
from agent3.identity.authorization import Refused, RenewableSecret
from agent3.identity.oauth import EARLY, Client, fetch_metadata, origin_of, request_tokens
from agent3.identity.secrets import Secret
from agent3.observe.metrics import METRICS
from agent3.security.outbound import Gate, Response

__all__ = ["Carried", "Scheme", "SchemeCredential", "carry_plainly", "is_usable", "scheme_origins"]

_DEFAULT_LIFE: Final = 300.0
"""Seconds that a token is used whose server does not say for how long it is good."""
_RECENT: Final = 8
"""Tokens that may still be carried by a request that is under way."""


class Carried(NamedTuple):
    """Headers and parameters of the query that one request carries."""

    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}


_NOTHING: Final = Carried()


class Scheme(NamedTuple):
    """A scheme as OpenAPI writes it, and the scopes that are asked for."""

    definition: Mapping[str, Any]
    scopes: tuple[str, ...]


def carry_plainly(secret: Secret | None, header: str | None, refused: Response | None = None) -> Carried:
    """What goes to a server whose schemes are not known yet: the header of the operator's choice, else a token.

    ``refused`` is an answer that asks for more: a server that wants HTTP Basic gets that.
    """
    if secret is None or isinstance(secret, RenewableSecret):
        return _NOTHING  # a sign-in is for the agent, not for the host that describes it
    if header:
        return Carried({header: secret.reveal()})
    asked = (refused.headers.get("WWW-Authenticate") or "").lower() if refused is not None else ""
    return _basic(secret) if asked.startswith("basic") else _bearer(secret.reveal())


class SchemeCredential:
    """One secret for one server, where ``home`` is whose description names the scheme; without a scheme it goes into
    ``header``, else it is a token. With ``origins``, those that were confirmed when the server was added, it goes to no
    other, whatever the description names by now. It belongs to the event loop it is used in; a token is got once for
    all requests, and given up only when it is the one that was refused.
    """

    def __init__(
        self,
        scheme: Scheme | None,
        secret: Secret | None,
        header: str | None,
        gate: Gate,
        home: str,
        env: Env = REAL,
        origins: Collection[str] | None = None,
    ):
        self._secret = secret
        self._confirmed = None if origins is None else frozenset((origin_of(home), *origins))
        self._header = header
        self._scheme = scheme
        self._gate = gate
        self._home = urlsplit(home)
        self._origins = (secret.origins if isinstance(secret, RenewableSecret) else ()) or (origin_of(home),)
        self._env = env
        self._token: Secret | None = None
        self._until = 0.0
        self._recent: deque[Secret] = deque(maxlen=_RECENT)
        self._getting = asyncio.Lock()

    async def carry(self, url: str) -> Carried:
        """What a request to an address of the agent carries.

        SecurityError where the secret would travel in the clear, or what a person agreed to would go elsewhere than
        they agreed; TargetRefused where the authorization server gives no token.
        """
        if self._secret is None:
            return _NOTHING
        self._check_tls(url)
        if isinstance(self._secret, RenewableSecret):
            # A person agreed to one server: a description that moves, or is changed, does not take the token along.
            if origin_of(url) not in self._origins:
                raise SecurityError(
                    f"The sign-in was made for {', '.join(self._origins)}, but the description of "
                    f"{self._home.hostname} now names {origin_of(url)}, so the token was not sent. If that "
                    "is correct, sign in again: agent3 add ADDRESS --sign-in"
                )
            return Carried(await self._secret.authorization.headers(self._gate))
        self._check_confirmed(url)
        if self._scheme is None:
            return carry_plainly(self._secret, self._header)
        definition, value = self._scheme.definition, self._secret.reveal()
        kind = definition.get("type")
        if kind == "apiKey":
            name = str(definition["name"])
            if definition["in"] == "query":
                return Carried(query={name: value})
            if definition["in"] == "cookie":
                return Carried({"Cookie": f"{name}={quote(value, safe='')}"})
            return Carried({name: value})
        if kind == "http" and str(definition.get("scheme", "")).lower() == "basic":
            return _basic(self._secret)
        if kind in ("oauth2", "openIdConnect") and ":" in value:
            return _bearer((await self._current_token(self._scheme, value)).reveal())
        return _bearer(value)

    async def renew(self, sent: Mapping[str, str], refused: TargetRefused) -> bool:
        """Whether there is, or will be, another token than the one that was refused, so that a retry is worthwhile."""
        if isinstance(self._secret, RenewableSecret):
            status = refused.data.get("status")
            refusal = Refused(status if isinstance(status, int) else 401)
            return await self._secret.authorization.renew(self._gate, sent, refusal)
        if not self._recent:
            return False
        if self._token is not None and sent == _bearer(self._token.reveal()).headers:
            self._token = None
        return True

    def hidden(self) -> tuple[Secret, ...]:
        """The latest tokens that were got: they must not come back in an answer."""
        return tuple(self._recent)

    async def _current_token(self, scheme: Scheme, value: str) -> Secret:
        async with self._getting:
            if self._token is None or self._env.monotonic() >= self._until:
                self._token = await self._request_token(scheme, value)
                self._recent.append(self._token)
            return self._token

    async def _request_token(self, scheme: Scheme, value: str) -> Secret:
        """A token for ``client:secret``, by client credentials."""
        if scheme.definition.get("type") == "oauth2":
            endpoint = scheme.definition["flows"]["clientCredentials"]["tokenUrl"]
            self._check_confirmed(str(endpoint))
        else:
            where = self._check_tls(str(scheme.definition["openIdConnectUrl"]))
            self._check_confirmed(where)  # which itself says where its tokens are
            endpoint = (await fetch_metadata(self._gate, where, follow=True)).get("token_endpoint") or ""
        form = {"grant_type": "client_credentials"}
        if scheme.scopes:
            form["scope"] = " ".join(scheme.scopes)
        client_id, _, client_secret = value.partition(":")
        client = Client(client_id, client_secret)
        tokens = await request_tokens(self._gate, self._check_tls(str(endpoint)), client, form)
        life = _DEFAULT_LIFE if tokens.expires_in is None else tokens.expires_in
        self._until = self._env.monotonic() + max(1.0, life - EARLY)
        return Secret(tokens.access_token)

    def _check_confirmed(self, url: str) -> None:
        """SecurityError for an address that was not confirmed when the server was added."""
        if self._confirmed is None or origin_of(url) in self._confirmed:
            return
        METRICS.secrets_withheld.inc()
        error = SecurityError(
            f"The description of {self._home.hostname} sends its secret to {origin_of(url)}, which was not "
            "confirmed when it was added, so nothing was sent. See agent3 show AGENT --changes and agent3 "
            "approve AGENT."
        )
        error.sent = False
        raise error

    def _check_tls(self, url: str) -> str:
        """The address, if it may get the secret: over TLS, or at the agent's own host as the card itself came."""
        parts = urlsplit(url)
        if parts.scheme == "https" or (parts.scheme == self._home.scheme and parts.hostname == self._home.hostname):
            return url
        raise SecurityError(
            f"The description of {self._home.hostname} sends its secret to {parts.hostname or 'nowhere'} without TLS, "
            "so it was not sent. Ask its provider for an https address, or give a token."
        )


def is_usable(scheme: Scheme) -> bool:
    """Whether one secret is enough for a scheme."""
    definition = scheme.definition
    kind = definition.get("type")
    if kind == "apiKey":
        return isinstance(definition.get("name"), str) and definition.get("in") in ("header", "query", "cookie")
    if kind == "http":
        return str(definition.get("scheme", "")).lower() in ("bearer", "basic")
    if kind == "oauth2":
        flow = (definition.get("flows") or {}).get("clientCredentials")
        return isinstance(flow, Mapping) and bool(flow.get("tokenUrl"))
    return kind == "openIdConnect" and bool(definition.get("openIdConnectUrl"))


def scheme_origins(definition: Mapping[str, Any]) -> Iterator[str]:
    """The origins that a scheme sends a client's id and secret to."""
    flows = definition.get("flows")
    for flow in flows.values() if isinstance(flows, Mapping) else ():
        if isinstance(flow, Mapping):
            yield from (origin_of(str(flow[name])) for name in ("tokenUrl", "refreshUrl") if flow.get(name))
    if definition.get("openIdConnectUrl"):
        yield origin_of(str(definition["openIdConnectUrl"]))


def _bearer(token: str) -> Carried:
    return Carried({"Authorization": f"Bearer {token}"}) if token else _NOTHING


def _basic(secret: Secret) -> Carried:
    """``user:password``; anything else is taken for what was encoded already."""
    value = secret.reveal()
    encoded = base64.b64encode(value.encode()).decode() if ":" in value else value
    return Carried({"Authorization": f"Basic {encoded}"})
