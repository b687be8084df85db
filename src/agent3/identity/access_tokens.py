"""Access tokens: the gateway as a resource server of OAuth 2.1.

It publishes where tokens come from (RFC 9728), verifies those that requests carry (JWT, RFC 9068: issuer, audience,
time, signature, scopes), and fetches the issuers' keys through the outbound gate. It issues no tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from dataclasses import replace as changed
from typing import Any
from urllib.parse import quote, urlsplit

import jwt
import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent3.env import REAL, Env
from agent3.errors import AccessError, Agent3Error, SetupError, Unauthenticated, Unavailable
from agent3.identity.oauth import LOOPBACK, MAX_ANSWER, metadata_urls
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.security.outbound import Gate, Policy
from agent3.settings import OAuth, Settings

__all__ = ["TokenVerifier", "metadata_routes"]

log = logger("auth")

WELL_KNOWN = "/.well-known/oauth-protected-resource"
_DOOR = re.compile(r"(?:/agents/[^/\\\s\"\x00-\x1f\x7f]+)?/(?:mcp\Z|a2a(?=/|\Z))")
"""The paths of doors. An agent's id may hold anything but what could end a header or a quoted word in it."""
_PLAIN = "/:@+,;="
"""What may stand in a path as it is."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_ERROR = "agent3.token_error"
_LONGEST = 16_384
_LEEWAY = 30.0
"""Seconds by which the clocks of issuer and gateway may differ."""
_KNOWN_FOR = 60.0
"""Seconds for which a token that was judged is not judged again."""
_KNOWN = 10_000
_KEYS_FOR = 3_600.0
"""Seconds after which an issuer's keys are fetched again."""
_KEYS_APART = 10.0
"""Least seconds between two fetches, so that tokens with invented keys cost the issuer nothing."""
_PATIENCE = 10.0
"""Seconds that a fetch may take."""
_BRIEFLY = 1.0
"""Seconds that a token waits for newer keys, where there is one that fits already."""
_ALGORITHMS: dict[str, frozenset[str]] = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
"""By kind of key. Shared secrets are not among them: who can check such a token can make one."""
_TYPES = frozenset({"at+jwt", "application/at+jwt", "jwt"})
_ID_TOKEN_CLAIMS = frozenset({"nonce", "at_hash", "c_hash"})
"""What only ID tokens of OpenID Connect have."""
_MALFORMED = (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What decoding a malformed token may raise."""
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class _Judged(Struct, frozen=True):
    """A good token: whose it is, what it is for, and until when it need not be verified again."""

    principal: Principal
    audience: frozenset[str]
    until: float


class TokenVerifier:
    """Says whose an access token is. For one event loop; nothing is fetched before the first token comes."""

    def __init__(self, settings: Settings, env: Env = REAL):
        oauth = settings.oauth
        self.resource = oauth.resource.rstrip("/")
        _check_settings(oauth)
        self._oauth = oauth
        self._env = env
        policy = Policy.of(settings.outbound)
        self._keys = {issuer: _IssuerKeys(issuer, policy, env) for issuer in oauth.issuers}
        self._known: OrderedDict[bytes, _Judged] = OrderedDict()

    def is_token(self, bearer: str) -> bool:
        """Whether a bearer value has the form of a token, and not of a client's key."""
        return len(bearer) <= _LONGEST and _TOKEN.fullmatch(bearer) is not None

    async def principal(self, scope: MutableMapping[str, Any], token: str) -> Principal:
        """Whose the token is that came to this door; Unauthenticated or AccessError says what is wrong with it."""
        try:
            judged = await self._judge(token)
            # A token for one door is good at that door only; one for the gateway at all of them.
            good = {self.resource, self.resource + "/", self.resource + _door(scope["path"]), *self._oauth.audience}
            if not good & judged.audience:
                raise Unauthenticated(f"The access token is for another audience. Request one for {self.resource}.")
            if missing := set(self._oauth.scopes) - judged.principal.scopes:
                raise AccessError(f"The access token lacks the scopes: {', '.join(sorted(missing))}.")
            return judged.principal
        except AccessError as error:
            # For ``challenge``, which says it in OAuth's own words.
            scope[_ERROR] = "invalid_token" if isinstance(error, Unauthenticated) else "insufficient_scope"
            raise

    def challenge(self, scope: Mapping[str, Any]) -> str:
        """The value of WWW-Authenticate for an answer to this request (RFC 6750, RFC 9728)."""
        words = [f'resource_metadata="{self.metadata_url(_door(scope["path"]))}"']
        if error := scope.get(_ERROR):
            words.append(f'error="{error}"')
        if self._oauth.scopes:
            words.append(f'scope="{" ".join(self._oauth.scopes)}"')
        return f"Bearer {', '.join(words)}"

    def lacks_scope(self, scope: Mapping[str, Any]) -> bool:
        """Whether the request was refused for a scope that its token has not."""
        return scope.get(_ERROR) == "insufficient_scope"

    def metadata_url(self, door: str) -> str:
        """Where the metadata of a door stands: its path behind the well-known one."""
        parts = urlsplit(self.resource)
        return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}{door}"

    def metadata(self, door: str) -> dict[str, Any]:
        """The protected resource metadata of a door; that of the whole gateway where it is empty."""
        document: dict[str, Any] = {
            "resource": self.resource + door,
            "authorization_servers": list(self._oauth.issuers),
            "bearer_methods_supported": ["header"],
            "resource_name": "agent3",
        }
        if self._oauth.scopes:
            document["scopes_supported"] = list(self._oauth.scopes)
        return document

    async def _judge(self, token: str) -> _Judged:
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None and known.until > self._env.now():
            return known
        # Header and issuer only choose the key: nothing in the token is believed before its signature is.
        try:
            header = jwt.get_unverified_header(token)
            issuer = str(jwt.decode(token, options={"verify_signature": False}).get("iss"))
        except _MALFORMED:
            raise Unauthenticated("The access token cannot be read.") from None
        if not isinstance(header.get("alg"), str) or "crit" in header:
            raise Unauthenticated("The access token is signed with an unsupported algorithm.")
        if str(header.get("typ", "JWT")).lower() not in _TYPES:
            raise Unauthenticated("The token is not an access token.")
        keys = self._keys.get(issuer)
        if keys is None:
            raise Unauthenticated("This gateway does not trust the issuer of the access token.")
        key = await keys.find(header)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[header["alg"]],
                issuer=issuer,
                leeway=_LEEWAY,
                options={"require": ["exp", "iss", "aud"], "verify_aud": False},
            )
            ends = float(claims["exp"]) + _LEEWAY
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("The access token has expired. Request a new one.") from None
        except _MALFORMED as error:
            raise Unauthenticated(f"The access token is not valid: {error}") from None
        if "at+jwt" not in str(header.get("typ", "")).lower() and (
            not _ID_TOKEN_CLAIMS.isdisjoint(claims) or claims.get("token_use") == "id"
        ):
            raise Unauthenticated("This is an ID token. Send the access token instead.")
        subject = claims.get("sub") or claims.get("client_id")
        if not isinstance(subject, str) or len(subject) > 256 or not subject.isprintable():
            raise Unauthenticated("The access token has no subject.")
        scopes = _words(claims.get("scope")) | _words(claims.get("scp"))
        # With the issuer behind it no subject can pass for a client of this gateway.
        principal = Principal(f"{subject}@{issuer.partition('://')[2]}", "client", scopes)
        audience = claims["aud"]
        named = frozenset([audience]) if isinstance(audience, str) else _words(audience)
        judged = _Judged(principal, named, min(ends, self._env.now() + _KNOWN_FOR))
        self._known[digest] = judged
        self._known.move_to_end(digest)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return judged


def _words(claim: Any) -> frozenset[str]:
    """What a claim names: a list of words, or a text of them."""
    if isinstance(claim, str):
        return frozenset(claim.split())
    return frozenset(word for word in claim if isinstance(word, str)) if isinstance(claim, list) else frozenset()


class _IssuerKeys:
    """The keys of one issuer, fetched when they are needed. Old ones serve on while the issuer cannot be reached."""

    def __init__(self, issuer: str, policy: Policy, env: Env):
        parts = urlsplit(issuer)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        schemes = ("https",) if parts.scheme == "https" else policy.schemes
        # The operator named the issuer, so it may be on a private network; its keys' address is only its own word.
        self._policy = changed(policy, allow_hosts=policy.allow_hosts | {f"{host}:{port}"}, schemes=schemes)
        self._issuer = issuer
        self._env = env
        self._keys: list[dict[str, Any]] = []
        self._fetched = float("-inf")
        self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """The key that a token was signed with. One that is known is not kept waiting by an issuer that hangs."""
        found = self._match(header)
        if found is None:
            await self._refetch(_PATIENCE)
            found = self._match(header)
        elif self._fetching is None and self._env.monotonic() - self._fetched > _KEYS_FOR:
            # The request that starts a fetch waits a moment for it, so that a revoked key is refused even after hours
            # without a request. The fetch goes on beside it, and later requests do not wait.
            await self._refetch(_BRIEFLY)
            found = self._match(header)
        if found is None and not self._keys:
            raise Unavailable(f"The keys of {self._issuer} could not be fetched. See the log of the gateway.")
        if found is None:
            raise Unauthenticated("The access token is signed with a key that its issuer does not list.")
        return found

    def _match(self, header: Mapping[str, Any]) -> jwt.PyJWK | None:
        kid, algorithm = header.get("kid"), header.get("alg")
        matches = [
            key
            for key in self._keys
            if algorithm in _ALGORITHMS.get(str(key.get("kty")), ())
            and key.get("alg", algorithm) == algorithm
            and (kid is None or key.get("kid") == kid)
        ]
        if len(matches) != 1:
            return None
        try:
            return jwt.PyJWK(matches[0], str(algorithm))
        except _MALFORMED as error:
            log.warning("a key of %s cannot be used: %s", self._issuer, error)
            return None

    async def _refetch(self, seconds: float) -> None:
        """Wait up to so many seconds for newer keys, unless they were just fetched. All callers share one fetch."""
        if self._fetching is None:
            if self._env.monotonic() - self._tried < _KEYS_APART:
                return
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(), name=f"keys of {self._issuer}")
        await asyncio.wait([self._fetching], timeout=seconds)

    async def _fetch(self) -> None:
        gate = Gate(self._policy)
        try:
            async with asyncio.timeout(_PATIENCE):
                self._keys = await self._read(gate)
            self._fetched = self._env.monotonic()
        except TimeoutError:
            log.warning("the keys of %s could not be fetched: no answer within %g s", self._issuer, _PATIENCE)
        except Agent3Error as error:
            log.warning("the keys of %s could not be fetched: %s", self._issuer, error)
        except Exception:
            log.exception("the keys of %s could not be fetched", self._issuer)
        finally:
            await gate.aclose()
            self._tried = self._env.monotonic()
            self._fetching = None

    async def _read(self, gate: Gate) -> list[dict[str, Any]]:
        """The issuer's signature keys, by its metadata at the places of RFC 8414 and of OpenID Connect."""
        for url in metadata_urls(self._issuer):
            metadata = await _fetch_json(gate, url) or {}
            if metadata.get("issuer") == self._issuer and isinstance(metadata.get("jwks_uri"), str):
                break
        else:
            raise Unavailable("none of its metadata documents names it as issuer with a key set")
        keys = (await _fetch_json(gate, metadata["jwks_uri"]) or {}).get("keys")
        usable = [
            key
            for key in (keys if isinstance(keys, list) else ())
            if isinstance(key, dict) and str(key.get("kty")) in _ALGORITHMS and key.get("use", "sig") == "sig"
        ]
        if not usable:
            raise Unavailable("its key set contains no usable key")
        return usable


async def _fetch_json(gate: Gate, url: str) -> dict[str, Any] | None:
    """The object at an address; None where there is none."""
    answer = await gate.request(
        "GET", url, headers={"Accept": "application/json"}, timeout=_PATIENCE, max_bytes=MAX_ANSWER
    )
    if answer.status != 200:
        return None
    try:
        body = msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return None
    return body if isinstance(body, dict) else None


def _check_settings(oauth: OAuth) -> None:
    """Raise SetupError for what cannot be published, or would fetch keys without TLS."""
    parts = urlsplit(oauth.resource)
    clean = oauth.resource.isascii() and oauth.resource.isprintable() and '"' not in oauth.resource
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment or not clean:
        raise SetupError(
            "oauth.resource must be the address of this gateway as clients use it, such as "
            f"'https://gateway.example.com'; it is {oauth.resource!r}."
        )
    for scope in oauth.scopes:
        if not _SCOPE.fullmatch(scope):
            raise SetupError(
                f"oauth.scopes contains {scope!r}; a scope is one word of ASCII letters, digits and punctuation."
            )
    for issuer in oauth.issuers:
        parts = urlsplit(issuer)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
            raise SetupError(f"oauth.issuers contains {issuer!r}; an issuer must start with https://.")
        if not parts.netloc or "@" in issuer or parts.query or parts.fragment:
            raise SetupError(f"oauth.issuers contains {issuer!r}; an issuer must have no user, query or fragment.")


# Doors


def _door(path: str) -> str:
    """The door that a path leads to, as its address is written; empty for whatever has no metadata of its own.

    The path comes from outside, unescaped. It is escaped again because it goes into a header.
    """
    door = _DOOR.match(path)
    return quote(door[0], safe=_PLAIN, errors="replace") if door is not None else ""


def metadata_routes(settings: Settings, env: Env) -> list[Route]:
    """The metadata of the gateway and of its doors; nothing where no issuer is configured."""
    if not settings.oauth.issuers:
        return []
    tokens = TokenVerifier(settings, env)

    async def metadata(request: Request) -> Response:
        path = "/" + request.path_params.get("path", "")
        prefix = urlsplit(tokens.resource).path
        below = path.removeprefix(prefix) if prefix else path
        door = _door(below)
        if not door and below not in ("", "/"):
            return JSONResponse({"error": {"code": "not_found", "message": "No such resource."}}, 404)
        return JSONResponse(tokens.metadata(door), headers={"Cache-Control": "max-age=3600"})

    return [Route(WELL_KNOWN, metadata, methods=["GET"]), Route(WELL_KNOWN + "/{path:path}", metadata, methods=["GET"])]
