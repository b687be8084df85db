"""Who stands at a network door: loopback without clients is the local person, everybody else shows a key or a token,
or signs.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3.env import REAL, Env
from agent3.errors import Agent3Error, SetupError, Unauthenticated
from agent3.identity.access_tokens import Tokens
from agent3.identity.nonces import Nonces
from agent3.identity.signed_requests import ACCEPT, Key, Request, Verifier, secret_bytes
from agent3.jsonrpc import read_body
from agent3.model import LOCAL, Principal
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.settings import Client, Server, Settings
from agent3.storage import Database

__all__ = ["Doorkeeper", "SignedRequests", "is_loopback"]

log = logger("auth")

SIGNED = "agent3.signed"
"""The key in the ASGI scope under which SignedRequests leaves who signed, or the error to be told."""
_COUNTED = "agent3.refused"
_HOW = "Send a key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'; the operator adds clients in agent3.toml."


def is_loopback(host: str) -> bool:
    """Whether an address to bind to can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Doorkeeper:
    """Tells who calls from an ASGI scope. Refuses to be built for an open door without clients.

    ``signing`` holds the keys of the clients that may sign, ``tokens`` judges access tokens where there are issuers;
    with either of them the doors stand behind SignedRequests, and ``judges`` is true.
    """

    def __init__(self, settings: Settings, metrics: Metrics, environment: Mapping[str, str] = os.environ):
        known = bool(settings.clients or settings.oauth.issuers)
        if not known and not is_loopback(settings.server.host):
            raise SetupError(
                f"The gateway would listen on {settings.server.host} for everybody. Add a client to agent3.toml:\n"
                '  [[clients]]\n  id = "me"\n  key = "env:MY_AGENT3_KEY"\n'
                "then set MY_AGENT3_KEY in the environment, or listen on 127.0.0.1."
            )
        for client in settings.clients:
            _check(client)
        self._metrics = metrics
        self._everybody_is_local = not known
        self.tokens = Tokens(settings) if settings.oauth.issuers else None
        self._how = _HOW if self.tokens is None else _how_with_tokens(settings.oauth.issuers, self.tokens.resource)
        self._clients = [(_digest(one, environment), _principal(one)) for one in settings.clients if one.key]
        self._must_sign = {one.id for one in settings.clients if one.require_signature}
        self.signing = [
            Key(one.id, _secret(one, environment), _principal(one)) for one in settings.clients if one.signing
        ]

    @property
    def judges(self) -> bool:
        """Whether some requests are judged before they reach a door, because that takes time."""
        return bool(self.signing) or self.tokens is not None

    def token(self, scope: MutableMapping[str, Any]) -> str | None:
        """The access token that a request shows, if it shows one and that is no key of a client."""
        if self.tokens is None or any(name == b"x-api-key" for name, _ in scope.get("headers", ())):
            return None
        key = _key(scope.get("headers", ()))
        if not key or self._match(hashlib.sha256(key).digest()) is not None:
            return None
        text = key.decode("latin-1")
        return text if self.tokens.is_token(text) else None

    def __call__(self, scope: MutableMapping[str, Any]) -> Principal:
        """The principal of an ASGI scope; Unauthenticated, counted once for a scope, when it proves nobody we know."""
        if self._everybody_is_local:
            return LOCAL
        signed = scope.get(SIGNED)
        if isinstance(signed, Principal):
            return signed
        if isinstance(signed, Agent3Error):
            raise self._refusal(scope, signed)
        key = _key(scope.get("headers", ()))
        found = self._match(hashlib.sha256(key).digest()) if key else None
        if found is None:
            raise self._refusal(scope, Unauthenticated(f"{'Unknown key' if key else 'No key'}. {self._how}"))
        if found.id in self._must_sign:
            why = f"Client {found.id} must sign its requests, its key alone is not enough: docs/reference/signing.md."
            raise self._refusal(scope, Unauthenticated(why))
        return found

    def _refusal(self, scope: MutableMapping[str, Any], error: Agent3Error) -> Agent3Error:
        if isinstance(error, Unauthenticated) and not scope.get(_COUNTED):
            scope[_COUNTED] = True
            self._metrics.mcp_auth_failures.inc()
        return error

    def _match(self, digest: bytes) -> Principal | None:
        """Every client is compared, so that the time tells nothing."""
        found = None
        for known, principal in self._clients:
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def _how_with_tokens(issuers: Iterable[str], resource: str) -> str:
    return (
        'Send a key or an access token as "Authorization: Bearer ..." (keys also as "X-API-Key: KEY"). '
        f"Tokens come from {', '.join(issuers)}, for {resource}."
    )


def _key(headers: Any) -> bytes | None:
    for name, value in headers:
        if name == b"x-api-key":
            return bytes(value)
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return bytes(value[7:].strip())
    return None


def _principal(client: Client) -> Principal:
    return Principal(client.id, "client", frozenset(client.scopes))


def _check(client: Client) -> None:
    if not client.key and not client.signing:
        raise SetupError(f'clients: {client.id!r} needs key = "env:NAME", signing = "env:NAME", or both.')
    if client.require_signature and not client.signing:
        raise SetupError(f'clients: {client.id!r} must sign and has nothing to sign with. Add signing = "env:NAME".')


def _digest(client: Client, environment: Mapping[str, str]) -> bytes:
    kind, _, rest = client.key.partition(":")
    if kind == "sha256" and re.fullmatch("[0-9a-fA-F]{64}", rest):
        return bytes.fromhex(rest)
    if kind != "env":
        raise SetupError(
            f"clients: the key of {client.id!r} must be env:NAME or sha256:HEX with 64 digits, not the key itself."
        )
    if len(key := environment.get(rest, "")) < 16:
        raise SetupError(f"clients: {rest}, the key of {client.id!r}, must be set and have at least 16 characters.")
    return hashlib.sha256(key.encode()).digest()


def _secret(client: Client, environment: Mapping[str, str]) -> bytes:
    kind, _, name = client.signing.partition(":")
    if kind != "env" or not name:
        raise SetupError(f"clients: the signing secret of {client.id!r} must be env:NAME, not the secret itself.")
    return secret_bytes(environment.get(name, ""), f"clients: {name}, the signing secret of {client.id!r},")


class SignedRequests:
    """An ASGI app around the doors that judges signed requests and access tokens before they do.

    It leaves its verdict in the scope, for the doorkeeper to tell in the words of each door. A signed request's body
    is held whole, within the bounds of the settings, and given on unchanged; an unsigned request passes untouched.
    """

    def __init__(self, app: ASGIApp, doorkeeper: Doorkeeper, database: Database, settings: Server, env: Env = REAL):
        self._app = app
        self._doorkeeper = doorkeeper
        self._verifier = Verifier(doorkeeper.signing, Nonces(database, env=env), env=env)
        self._settings = settings
        self._hosts = _hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if any(name == b"signature" or name == b"signature-input" for name, _ in scope["headers"]):
            body: bytes | None = None
            try:
                checked = self._verifier.check(self._request(scope))
                body = await read_body(receive, self._settings.max_body, self._settings.body_seconds)
                scope[SIGNED] = await self._verifier.admit(checked, body)
            except Agent3Error as error:
                log.warning("A signed request was refused: %s", error.message)
                scope[SIGNED] = error
            except ConnectionResetError:
                return
            if body is not None:
                receive = _again(body, receive)
        elif (token := self._doorkeeper.token(scope)) is not None:
            await self._judge(scope, token)
        await self._app(scope, receive, _asking(self._doorkeeper, scope, send))

    async def _judge(self, scope: Scope, token: str) -> None:
        assert self._doorkeeper.tokens is not None
        try:
            scope[SIGNED] = await self._doorkeeper.tokens.principal(scope, token)
        except Agent3Error as error:
            log.warning("An access token was refused: %s", error.message)
            scope[SIGNED] = error

    def _request(self, scope: Scope) -> Request:
        headers = _joined(scope["headers"])
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        request = Request(
            scope["method"],
            headers.get("host", ""),
            path.partition(b"?")[0].decode("latin-1"),
            scope["query_string"].decode("latin-1"),
            headers,
            scope.get("scheme", "http"),
        )
        if self._hosts and not self._hosts & {request.host(), _without_port(request.host())}:
            # Else a request for another gateway, where the client has the same secret, could be taken there and here.
            raise Unauthenticated("The request was signed for another host. Add the name to server.allowed_hosts.")
        return request


def _hosts(settings: Server) -> frozenset[str]:
    """The names that are ours; none where nobody told us, and then every name is."""
    if not settings.allowed_hosts and not is_loopback(settings.host):
        return frozenset()
    bound = f"[{settings.host}]" if ":" in settings.host else settings.host
    names = ("127.0.0.1", "localhost", "[::1]", bound, *settings.allowed_hosts)
    return frozenset(name.lower().removesuffix(":*") for name in names)


def _without_port(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Repeated headers joined as RFC 9421, section 2.1, wants them."""
    found: dict[str, str] = {}
    for raw, value in headers:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1").strip()
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more for those inside, and then whatever comes after it."""
    waiting = [body]

    async def replayed() -> Message:
        return {"type": "http.request", "body": waiting.pop(), "more_body": False} if waiting else await receive()

    return replayed


def _asking(doorkeeper: Doorkeeper, scope: Scope, send: Send) -> Send:
    """Tell with every refusal what else would be taken: a signature, and over what; a token, and whence."""

    async def asked(message: Message) -> None:
        if message["type"] == "http.response.start" and (ways := _ways(doorkeeper, scope, message["status"])):
            kept = [one for one in message.get("headers", ()) if not _superseded(one, ways)]
            message = {**message, "headers": [*kept, *ways]}
        await send(message)

    return asked


def _ways(doorkeeper: Doorkeeper, scope: Scope, status: int) -> list[tuple[bytes, bytes]]:
    ways: list[tuple[bytes, bytes]] = []
    tokens = doorkeeper.tokens
    if tokens is not None and (status == 401 or (status == 403 and tokens.lacks_scope(scope))):
        ways.append((b"www-authenticate", tokens.challenge(scope).encode("latin-1")))
    if doorkeeper.signing and status == 401:
        ways += [(b"www-authenticate", b"Signature"), (b"accept-signature", ACCEPT.encode())]
    return ways


def _superseded(header: tuple[bytes, bytes], ways: list[tuple[bytes, bytes]]) -> bool:
    """Whether a header says less than one of ours: ``Bearer`` alone, where we say whence a token comes."""
    bare = header[0].lower() == b"www-authenticate" and header[1] == b"Bearer"
    return bare and any(value.startswith(b"Bearer ") for _, value in ways)
