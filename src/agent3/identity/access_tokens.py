"""Access tokens: the gateway as a resource server of OAuth 2.1.

It announces where tokens come from (RFC 9728), judges those it is shown (JWT, RFC 9068: issuer, audience, time,
signature, scopes), and fetches the issuers' keys through the outbound gate. It gives no tokens out, and keeps none.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping
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
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.security.outbound import Gate, Policy
from agent3.settings import Settings

__all__ = ["Tokens", "routes"]

log = logger("auth")

WELL_KNOWN = "/.well-known/oauth-protected-resource"
_DOOR = re.compile(r"(?:/agents/[^/\\\s\"\x00-\x1f\x7f]+)?/(?:mcp\Z|a2a(?=/|\Z))")
"""With whatever an agent's id may hold; never what could end a header or a word in it."""
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
"""By kind of key. Shared secrets are not among them: whoever can check such a token can make one."""
_TYPES = frozenset({"at+jwt", "application/at+jwt", "jwt"})
_MALFORMED = (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading something that a stranger wrote may raise."""
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class _Judged(Struct, frozen=True):
    """A good token: who shows it, what it is for, and until when that need not be asked again."""

    principal: Principal
    audience: frozenset[str]
    until: float


class Tokens:
    """Tells who shows an access token. For one event loop; nothing is fetched before the first token comes."""

    def __init__(self, settings: Settings, env: Env = REAL):
        oauth = settings.oauth
        self.resource = _checked_resource(oauth.resource)
        _check_scopes(oauth.scopes)
        self._oauth = oauth
        self._env = env
        policy = Policy.of(settings.outbound)
        self._keys = {one: _Keys(_checked_issuer(one), policy, env) for one in oauth.issuers}
        self._known: OrderedDict[bytes, _Judged] = OrderedDict()

    def is_token(self, bearer: str) -> bool:
        """Whether what came as Bearer has the form of a token; a client's key has not."""
        return len(bearer) <= _LONGEST and _TOKEN.fullmatch(bearer) is not None

    async def principal(self, scope: MutableMapping[str, Any], token: str) -> Principal:
        """Who shows a token at this door; Unauthenticated or AccessError says what is wrong with it."""
        try:
            return self._at(scope, await self._judged(token))
        except AccessError as error:
            # For the header of the answer, which speaks OAuth's own words.
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

    # Inside

    def _at(self, scope: Mapping[str, Any], judged: _Judged) -> Principal:
        """A token for one door is good at that door only; one for the gateway at all of them."""
        good = {self.resource, self.resource + "/", self.resource + _door(scope["path"]), *self._oauth.audience}
        if not good & judged.audience:
            raise Unauthenticated(f"The access token is for another audience. Ask for one for {self.resource}.")
        if missing := set(self._oauth.scopes) - judged.principal.scopes:
            raise AccessError(f"The access token lacks the scopes: {', '.join(sorted(missing))}.")
        return judged.principal

    async def _judged(self, token: str) -> _Judged:
        digest = hashlib.sha256(token.encode()).digest()
        found = self._known.get(digest)
        if found is None or found.until <= self._env.now():
            found = await self._judge(token)
            self._known[digest] = found
            self._known.move_to_end(digest)
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return found

    async def _judge(self, token: str) -> _Judged:
        header, issuer = _unverified(token)
        keys = self._keys.get(issuer)
        if keys is None:
            raise Unauthenticated("The access token comes from an issuer that is not trusted here.")
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
            raise Unauthenticated("The access token has expired. Ask for a new one.") from None
        except _MALFORMED as wrong:
            raise Unauthenticated(f"The access token is not valid: {wrong}") from None
        until = min(ends, self._env.now() + _KNOWN_FOR)
        audience = claims["aud"]
        named = frozenset([audience]) if isinstance(audience, str) else _words(audience)
        return _Judged(_principal(claims, issuer), named, until)


def _unverified(token: str) -> tuple[dict[str, Any], str]:
    """The header and the issuer, only to choose the key by: nothing of it is believed before the signature is."""
    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except _MALFORMED:
        raise Unauthenticated("The access token cannot be read.") from None
    if not isinstance(header.get("alg"), str) or "crit" in header:
        raise Unauthenticated("The access token is not signed in a way that is known here.")
    if str(header.get("typ", "JWT")).lower() not in _TYPES:
        raise Unauthenticated("What was sent is a token for something else, and no access token.")
    return header, str(claims.get("iss"))


def _principal(claims: Mapping[str, Any], issuer: str) -> Principal:
    """Who it is: the subject, with the issuer behind it, so that no subject can pass for a client of ours."""
    subject = claims.get("sub") or claims.get("client_id")
    if not isinstance(subject, str) or len(subject) > 256 or not subject.isprintable():
        raise Unauthenticated("The access token names no subject.")
    scopes = _words(claims.get("scope")) | _words(claims.get("scp"))
    return Principal(f"{subject}@{issuer.partition('://')[2]}", "client", scopes)


def _words(claim: Any) -> frozenset[str]:
    """What a claim names: a list of words, or a text of them."""
    if isinstance(claim, str):
        return frozenset(claim.split())
    return frozenset(one for one in claim if isinstance(one, str)) if isinstance(claim, list) else frozenset()


class _Keys:
    """The keys of one issuer, fetched when they are needed. Old ones serve on while the issuer cannot be reached."""

    def __init__(self, issuer: str, policy: Policy, env: Env):
        parts = urlsplit(issuer)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        schemes = ("https",) if parts.scheme == "https" else policy.schemes
        # The operator named the issuer, so it may be inside the house; where its keys are is only the issuer's word.
        self._policy = changed(policy, allow_hosts=policy.allow_hosts | {f"{host}:{port}"}, schemes=schemes)
        self._issuer = issuer
        self._env = env
        self._keys: list[dict[str, Any]] = []
        self._fetched = float("-inf")
        self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """The key that a token was signed with. One that is known is not kept waiting by an issuer that hangs."""
        found = self._fitting(header)
        if found is None:
            await self._fetched_anew(_PATIENCE)
            found = self._fitting(header)
        elif self._fetching is None and self._env.monotonic() - self._fetched > _KEYS_FOR:
            # Whoever begins a fetch sees what came of it, if it came at once: a key that was taken back is refused
            # also where nobody asked for hours. The fetch goes on, and those who come meanwhile do not wait.
            await self._fetched_anew(_BRIEFLY)
            found = self._fitting(header)
        if found is None and not self._keys:
            raise Unavailable(f"The keys of {self._issuer} could not be fetched; the log of the gateway says why.")
        if found is None:
            raise Unauthenticated("The access token is signed with a key that its issuer does not name.")
        return found

    def _fitting(self, header: Mapping[str, Any]) -> jwt.PyJWK | None:
        kid, algorithm = header.get("kid"), header.get("alg")
        fitting = [
            one
            for one in self._keys
            if algorithm in _ALGORITHMS.get(str(one.get("kty")), ())
            and one.get("alg", algorithm) == algorithm
            and (kid is None or one.get("kid") == kid)
        ]
        if len(fitting) != 1:
            return None
        try:
            return jwt.PyJWK(fitting[0], str(algorithm))
        except _MALFORMED as wrong:
            log.warning("a key of %s cannot be used: %s", self._issuer, wrong)
            return None

    async def _fetched_anew(self, seconds: float) -> None:
        """Wait so long for newer keys, unless they were just fetched; all who come meanwhile wait for one fetch."""
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
        except Agent3Error as wrong:
            log.warning("the keys of %s could not be fetched: %s", self._issuer, wrong)
        except Exception:
            log.exception("the keys of %s could not be fetched", self._issuer)
        finally:
            await gate.aclose()
            self._tried = self._env.monotonic()
            self._fetching = None

    async def _read(self, gate: Gate) -> list[dict[str, Any]]:
        metadata = await self._metadata(gate)
        found = await _json(gate, str(metadata.get("jwks_uri"))) or {}
        keys = found.get("keys")
        usable = [one for one in keys if _for_signatures(one)] if isinstance(keys, list) else []
        if not usable:
            raise Unavailable("its key set holds no key that can be used")
        return usable

    async def _metadata(self, gate: Gate) -> dict[str, Any]:
        """What the issuer says of itself, at the places of RFC 8414 and of OpenID Connect."""
        for url in _places(self._issuer):
            found = await _json(gate, url)
            if found is not None and found.get("issuer") == self._issuer and isinstance(found.get("jwks_uri"), str):
                return found
        raise Unavailable("it has no metadata that name it as issuer, and where its keys are")


def _for_signatures(key: Any) -> bool:
    return isinstance(key, dict) and str(key.get("kty")) in _ALGORITHMS and key.get("use", "sig") == "sig"


def _places(issuer: str) -> list[str]:
    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return [
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}{path}/.well-known/openid-configuration",
    ]


async def _json(gate: Gate, url: str) -> dict[str, Any] | None:
    """The object at an address; None where there is none."""
    answer = await gate.request(
        "GET", url, headers={"Accept": "application/json"}, timeout=_PATIENCE, max_bytes=1 << 20
    )
    if answer.status != 200:
        return None
    try:
        body = msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return None
    return body if isinstance(body, dict) else None


# Settings


def _checked_resource(resource: str) -> str:
    parts = urlsplit(resource)
    clean = resource.isascii() and resource.isprintable() and '"' not in resource
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment or not clean:
        raise SetupError(
            "oauth.resource must be the address of this gateway as its clients write it, such as "
            f"'https://gateway.example.com'; it is {resource!r}."
        )
    return resource.rstrip("/")


def _checked_issuer(issuer: str) -> str:
    parts = urlsplit(issuer)
    inside = parts.hostname in ("127.0.0.1", "localhost", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and inside):
        raise SetupError(f"oauth.issuers holds {issuer!r}; an issuer's address begins with https://.")
    if not parts.netloc or "@" in issuer or parts.query or parts.fragment:
        raise SetupError(f"oauth.issuers holds {issuer!r}; an issuer is an address without user, query and fragment.")
    return issuer


def _check_scopes(scopes: Iterable[str]) -> None:
    if wrong := [one for one in scopes if not _SCOPE.fullmatch(one)]:
        raise SetupError(f"oauth.scopes holds {wrong[0]!r}; a scope is one word of ASCII letters, digits and signs.")


# Doors


def _door(path: str) -> str:
    """The door that a path leads to, as its address is written; empty for whatever has no metadata of its own.

    The path is a stranger's word, unescaped: without being escaped again it would be in the header as it came.
    """
    door = _DOOR.match(path)
    return quote(door[0], safe=_PLAIN, errors="replace") if door is not None else ""


def routes(settings: Settings, env: Env) -> list[Route]:
    """The metadata of the gateway and of its doors; nothing where no issuer is configured."""
    if not settings.oauth.issuers:
        return []
    tokens = Tokens(settings, env)

    async def metadata(request: Request) -> Response:
        path = "/" + request.path_params.get("path", "")
        prefix = urlsplit(tokens.resource).path
        below = path.removeprefix(prefix) if prefix else path
        door = _door(below)
        if not door and below not in ("", "/"):
            return JSONResponse({"error": {"code": "not_found", "message": "No such resource."}}, 404)
        return JSONResponse(tokens.metadata(door), headers={"Cache-Control": "max-age=3600"})

    return [Route(WELL_KNOWN, metadata, methods=["GET"]), Route(WELL_KNOWN + "/{path:path}", metadata, methods=["GET"])]
