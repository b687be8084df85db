"""OAuth as MCP asks for it: a token for the authorization server that a server names when it refuses a request.

What MCP adds to OAuth (protected-resource metadata, scopes in a challenge, client metadata documents, older servers
without any of them) is done by the SDK's providers. They are driven by hand, over the outbound gate and only when a
token is missing: the SDK itself would hold one lock over a whole request, so that a slow call stopped all others, and
would bring an HTTP client that the gate cannot judge.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, TokenStorage
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.utils import extract_scope_from_www_auth
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel
from pydantic import ValidationError as WireError

from agent3.env import REAL, Env
from agent3.errors import Agent3Error, CallTimeout, TargetRefused, Unavailable
from agent3.identity.authorization import Refusal
from agent3.identity.dpop import ALGORITHM, ProofKey, read_nonce
from agent3.identity.oauth import EARLY, LOOPBACK, MAX_ANSWER, RETRY_AFTER, Grant, SignIn, mark_unsent
from agent3.identity.secrets import Secret
from agent3.model import place_of
from agent3.observe.logs import get as logger
from agent3.security.outbound import Gate

__all__ = [
    "Memory",
    "OAuth",
    "TokenStorage",
    "authorization_code",
    "client_credentials",
    "identity_assertion",
    "private_key",
    "token_exchange",
    "workload_identity",
]

log = logger("mcp")

Assertion: TypeAlias = Callable[[str, str], Awaitable[str]]
"""Gives the assertion of an identity provider, for an issuer and a resource."""
Method: TypeAlias = Literal["client_secret_basic", "client_secret_post"]

_PAST = 1.0
"""A time of expiry that has passed by any clock; 0 would mean to the provider that there is none."""
_BOUND = "DPoP"
"""The scheme of a token that is bound to our key."""
_NOT_SENT = frozenset({"host", "content-length", "connection"})
_NOT_READ = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class Memory:
    """The SDK's ``TokenStorage`` in memory."""

    def __init__(self, client: OAuthClientInformationFull | None = None):
        self._client = client
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """The last tokens."""
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep them."""
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Who we are at the authorization server."""
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep it."""
        self._client = client_info


class OAuth:
    """The access token for one server. Requests that need a new one at the same time get it together.

    ``provider`` is one of the SDK's. A token is refreshed before it ends. Scopes that a server asks for are added to
    those that were granted, each request for scopes once: a server that is never content is refused in the end.
    """

    def __init__(self, provider: httpx2.Auth, address: str, env: Env = REAL):
        self._provider = provider
        # The provider of an identity assertion has none, and keeps its token to itself.
        self._context = provider.context if isinstance(provider, OAuthClientProvider) else None
        self._address = address
        self._place = place_of(address)
        self._env = env
        self._lock = asyncio.Lock()
        self._header: str | None = None
        self._until = 0.0
        self._version: str | None = None
        self._requested_scopes: set[str | None] = set()
        # Tokens that are bound to a key (DPoP): asked for where the authorization server says that it gives such.
        self._key: ProofKey | None = None
        self._token_endpoint: str | None = None
        self._is_bound = False
        self._server_nonce: str | None = None
        self._nonce: str | None = None

    def __repr__(self) -> str:
        return f"OAuth({self._place!r})"

    @property
    def header(self) -> str | None:
        """What the last request carried as ``Authorization``, if it carried anything."""
        return self._header

    @property
    def due(self) -> bool:
        """Whether the token is to be renewed before its next use."""
        return self._env.now() >= self._until

    def grant(self) -> Grant | None:
        """What to keep of it; None where no token is known."""
        context = self._context
        if context is None or context.current_tokens is None:
            return None
        return Grant(
            _dump(context.current_tokens) or {},
            context.token_expiry_time,
            _dump(context.client_info),
            _dump(context.oauth_metadata),
            _dump(context.protected_resource_metadata),
            self._key.pem if self._key is not None and self._is_bound else None,
        )

    def prove(self, method: str, url: str, sent: Mapping[str, str]) -> Mapping[str, str]:
        """The proof that a request carries beside a token that is bound to our key."""
        scheme, _, token = sent.get("Authorization", "").partition(" ")
        if self._key is None or scheme != _BOUND:
            return {}
        return {"DPoP": self._key.prove(method, url, token=token, nonce=self._nonce)}

    def take_nonce(self, answered: Mapping[str, str]) -> bool:
        """Keep the nonce that the server wants in the next proof; True if it is another than before."""
        nonce = read_nonce(answered)
        if nonce is None or nonce == self._nonce:
            return False
        self._nonce = nonce
        return True

    async def resume(self, grant: Grant) -> None:
        """Go on with what was kept. The token endpoint is taken from there too, and not discovered again."""
        context = self._context
        if context is None:
            raise TypeError("the token for an identity assertion is requested again, not stored")
        async with self._lock:
            context.current_tokens = OAuthToken.model_validate(grant.tokens)
            context.token_expiry_time = grant.until
            await context.storage.set_tokens(context.current_tokens)
            if grant.client is not None:
                context.client_info = OAuthClientInformationFull.model_validate(grant.client)
                await context.storage.set_client_info(context.client_info)
            if grant.server is not None:
                context.oauth_metadata = OAuthMetadata.model_validate(grant.server)
            if grant.key is not None:
                self._key, self._is_bound = ProofKey(self._env, grant.key), True
                self._token_endpoint = str((grant.server or {}).get("token_endpoint") or "") or None
            if grant.resource is not None:
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(grant.resource)
            self._take(f"Bearer {context.current_tokens.access_token}")

    async def refresh(self, gate: Gate) -> bool:
        """Exchange the refresh token now; False where there is none or it is no longer taken."""
        context = self._context
        if context is None:
            return False
        async with self._lock:
            if not context.can_refresh_token():
                return False
            ends, context.token_expiry_time = context.token_expiry_time, _PAST
            try:
                self._take(await self._run_flow(gate))
            except Agent3Error:
                context.token_expiry_time = ends
                raise
        return self._header is not None

    async def headers(self, gate: Gate) -> Mapping[str, str]:
        """What a request carries now; nothing where no token is known yet."""
        if self.due:
            async with self._lock:
                if self.due:
                    await self._refresh_ahead(gate)
        return {} if self._header is None else {"Authorization": self._header}

    async def renew(self, gate: Gate, sent: Mapping[str, str], refused: Refusal) -> bool:
        """Get a better token after a refusal. False if it would not help; TargetRefused if none is to be had."""
        answer = httpx2.Response(refused.status, headers=_without_framing(refused.headers))
        async with self._lock:
            if sent.get("Authorization") != self._header:
                return True
            if refused.status == 401:
                self._requested_scopes.clear()
            else:
                scope = extract_scope_from_www_auth(answer)
                if scope in self._requested_scopes:
                    return False
                self._requested_scopes.add(scope)
            self._version = sent.get("MCP-Protocol-Version")
            self._take(await self._run_flow(gate, answer))
        return True

    async def _refresh_ahead(self, gate: Gate) -> None:
        """Take up what is stored, or refresh what is about to end. A good token outlasts a dead server."""
        context = self._context
        ends = context.token_expiry_time if context is not None else None
        if context is not None and ends and context.can_refresh_token():
            context.token_expiry_time = _PAST
        try:
            self._take(await self._run_flow(gate))
        except (Unavailable, CallTimeout) as error:
            if context is None or not ends or ends <= self._env.now():
                raise
            log.warning("%s: the token could not be refreshed: %s", self._place, error)
            context.token_expiry_time = ends
            self._until = min(ends, self._env.now() + RETRY_AFTER)

    def _take(self, header: str | None) -> None:
        if header is not None and self._is_bound:
            header = f"{_BOUND} {header.partition(' ')[2]}"
        self._header, self._until = header, math.inf
        if header is not None and self._context is not None and (ends := self._context.token_expiry_time):
            left = ends - self._env.now()
            self._until = ends - min(EARLY, left / 10) if self._context.can_refresh_token() else ends

    async def _run_flow(self, gate: Gate, refused: httpx2.Response | None = None) -> str | None:
        """Lead the provider to where it would send the request, past a refusal if there was one; the header there."""
        # From 2025-06-18 on tokens are requested by resource, even where the server has no metadata of its own.
        headers = {} if self._version is None else {"MCP-Protocol-Version": self._version}
        request = httpx2.Request("POST", self._address, headers=headers)
        flow = self._provider.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    answer = await self._send(gate, outgoing)
                elif refused is not None:
                    answer, refused = refused, None
                else:
                    return request.headers.get("Authorization")
                answer.request = outgoing
                outgoing = await flow.asend(answer)
        except StopAsyncIteration:
            return None
        except (OAuthFlowError, WireError, ValueError) as error:
            reason = "an answer could not be read" if isinstance(error, WireError) else str(error)[:300]
            raise mark_unsent(TargetRefused(f"{self._place} could not be authorized: {reason}")) from None
        except Agent3Error as error:
            mark_unsent(error)
            raise
        finally:
            await flow.aclose()

    async def _send(self, gate: Gate, request: httpx2.Request) -> httpx2.Response:
        """Send a request of the provider. One for tokens carries a proof, where these can be bound to our key."""
        url = str(request.url)
        if request.method != "POST":
            answer = await _send(gate, request)
            described = _read_object(answer)
            if isinstance(endpoint := described.get("token_endpoint"), str):
                algorithms = described.get("dpop_signing_alg_values_supported")
                gives_bound = isinstance(algorithms, list) and ALGORITHM in algorithms
                self._token_endpoint = endpoint if gives_bound else None
            return answer
        if url != self._token_endpoint:
            answer = await _send(gate, request)
            if "access_token" in _read_object(answer):
                self._is_bound = False
            return answer
        if self._key is None:
            self._key = ProofKey(self._env)
        before = self._server_nonce
        answer = await self._send_proved(gate, request, self._key)
        wants_nonce = answer.status_code in (400, 401) and _read_object(answer).get("error") == "use_dpop_nonce"
        if wants_nonce and self._server_nonce != before:
            answer = await self._send_proved(gate, request, self._key)
        given = _read_object(answer)
        if answer.status_code == 200 and isinstance(given.get("access_token"), str):
            # The provider knows bearer tokens only; by which scheme it is sent is decided here.
            self._is_bound = str(given.get("token_type")).lower() == "dpop"
            if self._is_bound:
                body = json.dumps({**given, "token_type": "Bearer"}).encode()
                answer = httpx2.Response(200, headers=_without_framing(answer.headers), content=body)
        return answer

    async def _send_proved(self, gate: Gate, request: httpx2.Request, key: ProofKey) -> httpx2.Response:
        request.headers["DPoP"] = key.prove(request.method, str(request.url), nonce=self._server_nonce)
        answer = await _send(gate, request)
        self._server_nonce = read_nonce(answer.headers) or self._server_nonce
        return answer


def _read_object(answer: httpx2.Response) -> dict[str, Any]:
    """The JSON object of an answer; an empty one for anything else."""
    try:
        found = json.loads(answer.content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _dump(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


async def _send(gate: Gate, request: httpx2.Request) -> httpx2.Response:
    url = request.url
    if url.scheme != "https" and url.host not in LOOPBACK:
        raise OAuthFlowError(f"{url.scheme}://{url.host} does not use https, and secrets are sent over https only")
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _NOT_SENT}
    body = await request.aread()
    answer = await gate.request(request.method, str(url), headers=headers, body=body or None, max_bytes=MAX_ANSWER)
    if request.method == "POST" and answer.status in (502, 503, 504):
        # Taken for a no by the provider, this would cost a person's consent.
        raise Unavailable(f"{place_of(str(url))} issues no tokens at the moment (HTTP {answer.status}).")
    return httpx2.Response(answer.status, headers=_without_framing(answer.headers), content=answer.body)


def _without_framing(headers: Mapping[str, str]) -> dict[str, str]:
    """Without those that describe the body as it travelled: it is decoded by now."""
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_READ}


# Grant types


def client_credentials(
    address: str,
    client_id: str,
    secret: Secret,
    *,
    issuer: str,
    scope: str | None = None,
    method: Method = "client_secret_basic",
    storage: TokenStorage | None = None,
) -> OAuth:
    """As this gateway, by its secret. That goes to ``issuer`` alone, whatever server the resource names."""
    provider = ClientCredentialsOAuthProvider(
        address, storage or Memory(), client_id, secret.reveal(), method, scope, issuer
    )
    return OAuth(provider, address)


def private_key(
    address: str,
    client_id: str,
    key: Secret,
    *,
    issuer: str,
    algorithm: str = "RS256",
    scope: str | None = None,
    storage: TokenStorage | None = None,
) -> OAuth:
    """As this gateway, by signing with a private key (PEM), which never leaves it."""
    signing = SignedJWTParameters(
        issuer=client_id, subject=client_id, signing_key=key.reveal(), signing_algorithm=algorithm
    )
    provider = PrivateKeyJWTOAuthProvider(
        address, storage or Memory(), client_id, signing.create_assertion_provider(), scope, issuer
    )
    return OAuth(provider, address)


def identity_assertion(
    address: str,
    client_id: str,
    secret: Secret,
    assertion: Assertion,
    *,
    issuer: str,
    scope: str | None = None,
    method: Method = "client_secret_basic",
    storage: TokenStorage | None = None,
) -> OAuth:
    """For a person, by an assertion of their identity provider (RFC 7523), without asking them."""
    provider = IdentityAssertionOAuthProvider(
        address, storage or Memory(), client_id, secret.reveal(), issuer, assertion, scope, method
    )
    return OAuth(provider, address)


def workload_identity(
    address: str,
    client_id: str,
    assertion: Assertion,
    *,
    issuer: str,
    scope: str | None = None,
    storage: TokenStorage | None = None,
) -> OAuth:
    """As this program, by the token that its platform gives it (RFC 7523), without a secret of its own.

    ``assertion`` gives that token, which must be meant for ``issuer``, and goes to nobody else. A refusal is final.
    """
    return OAuth(_Workload(address, storage or Memory(), client_id, assertion, issuer, scope), address)


class _Workload(IdentityAssertionOAuthProvider):
    """The SDK's provider for assertions, for a client that has no secret."""

    def __init__(
        self, address: str, storage: TokenStorage, client_id: str, assertion: Assertion, issuer: str, scope: str | None
    ):
        super().__init__(address, storage, client_id, "none", issuer, assertion, scope)
        self._client = self._client.model_copy(update={"client_secret": None, "token_endpoint_auth_method": "none"})

    def _build_token_request(self, scope: str | None, assertion: str) -> httpx2.Request:
        assert self._token_endpoint is not None
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": assertion,
            "client_id": str(self._client.client_id),
            "resource": self._resource,
            **({"scope": scope} if scope else {}),
        }
        return httpx2.Request("POST", self._token_endpoint, data=form)


def token_exchange(gate: Gate, endpoint: str, client_id: str, identity: Secret) -> Assertion:
    """Assertions of an identity provider that gives them for an identity token (RFC 8693), a new one each time."""

    async def assertion(audience: str, resource: str) -> str:
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "subject_token": identity.reveal(),
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "audience": audience,
            "resource": resource,
            "client_id": client_id,
        }
        answer = await _send(gate, httpx2.Request("POST", endpoint, data=form))
        if answer.status_code != 200:
            raise OAuthFlowError(f"the identity provider answered the exchange with HTTP status {answer.status_code}")
        found = json.loads(answer.content)
        if not isinstance(found, dict) or not isinstance(found.get("access_token"), str):
            raise OAuthFlowError("the identity provider answered the exchange without a token")
        return str(found["access_token"])

    return assertion


def authorization_code(
    address: str,
    sign_in: SignIn,
    *,
    redirect: str,
    client_id: str | None = None,
    secret: Secret | None = None,
    metadata_url: str | None = None,
    issuer: str | None = None,
    storage: TokenStorage | None = None,
) -> OAuth:
    """For a person, who is sent to agree (PKCE). ``redirect`` is where they come back to.

    The client is the one that is stored or given here, else the document at ``metadata_url`` where the authorization
    server takes such, else a newly registered one. A client with an ``issuer`` is shown to that one alone.
    """
    client: OAuthClientInformationFull | None = None
    if client_id is not None:
        client = OAuthClientInformationFull(
            client_id=client_id,
            client_secret=None if secret is None else secret.reveal(),
            redirect_uris=[AnyUrl(redirect)],
            token_endpoint_auth_method="none" if secret is None else "client_secret_basic",
            issuer=issuer,
        )
    came_back = ""

    # The SDK sends a person out and fetches them back in two steps, ``sign_in`` does both.
    async def send(url: str) -> None:
        nonlocal came_back
        came_back = await sign_in(url)

    async def read_code() -> AuthorizationCodeResult:
        answer = {name: values[0] for name, values in parse_qs(urlsplit(came_back).query).items()}
        if "code" not in answer:
            raise OAuthFlowError(f"the authorization server refused: {answer.get('error', 'no reason given')[:100]}")
        return AuthorizationCodeResult(code=answer["code"], state=answer.get("state"), iss=answer.get("iss"))

    provider = OAuthClientProvider(
        address,
        OAuthClientMetadata(
            client_name="agent3",
            redirect_uris=[AnyUrl(redirect)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        storage or Memory(client),
        send,
        read_code,
        metadata_url,
    )
    return OAuth(provider, address)
