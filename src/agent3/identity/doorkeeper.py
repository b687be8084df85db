"""Who calls at a network door: on loopback without clients it is the local person; everyone else shows a key or an
access token, or signs the request.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
from collections import Counter
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3.env import REAL, Env
from agent3.errors import AccessError, Agent3Error, SetupError, Unauthenticated
from agent3.identity.access_tokens import TokenVerifier
from agent3.identity.certificates import CERTIFICATE, PeerCertificate
from agent3.identity.clients import StoredClients
from agent3.identity.nonces import Nonces
from agent3.identity.signed_requests import ACCEPT, Key, Request, Verifier, secret_bytes
from agent3.jsonrpc import ClientLeft, read_body
from agent3.listener import PASSED_ON
from agent3.model import LOCAL, Principal
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.settings import Client, Server, Settings
from agent3.storage import Database
from agent3.storage.audit import ACTOR, record

__all__ = ["KNOWN", "Doorkeeper", "KnownCallers", "SignedRequests", "is_loopback", "principal_of"]

log = logger("auth")

SIGNED = "agent3.signed"
"""The key in the ASGI scope under which SignedRequests leaves who signed, or the error to raise."""
_STRANGERS_BODY = 16_384
"""Bytes of a stranger's body that are read."""
_FORWARDED = (
    "This request was forwarded by a proxy, but this gateway has no clients and serves its own machine "
    "only. The operator can add clients with agent3 client add, or set server.local_key."
)
_COUNTED = "agent3.refused"
KNOWN = "agent3.known_caller"
"""The key in a scope of who was found to call, and what SIGNED was then."""
_HOW = (
    "Send a key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'. The operator can create one with agent3 client add."
)


def is_loopback(host: str) -> bool:
    """Whether an address to bind to can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def principal_of(client: Client) -> Principal:
    """A client of the settings as rules see it."""
    return Principal(client.id, "client", frozenset(client.scopes), client.tenant or None)


class Doorkeeper:
    """Tells who calls from an ASGI scope. Refuses to be built for an open door without clients.

    ``signing`` holds the keys of the clients that may sign, ``tokens`` judges access tokens where there are issuers;
    with either of them the doors stand behind SignedRequests, and ``judges`` is true. ``stored`` are the clients of the
    database, which come and go while the gateway runs.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        environment: Mapping[str, str] = os.environ,
        *,
        stored: StoredClients | None = None,
    ):
        known = bool(settings.clients or settings.oauth.issuers or settings.server.local_key)
        known = known or (stored is not None and stored.count > 0)
        if not known and not is_loopback(settings.server.host):
            raise SetupError(
                f"The gateway would listen on {settings.server.host} without any clients. Add a client and "
                "give it the printed key:\n  agent3 client add me\n(or add [[clients]] to agent3.toml), or "
                "listen on 127.0.0.1."
            )
        if not known and (names := [name for name in settings.server.allowed_hosts if not _is_own_name(name)]):
            raise SetupError(
                f"server.allowed_hosts contains {names[0]}, under which other machines reach this gateway, "
                "but it has no clients, so every caller would be the local user. Add a client and give it "
                "the printed key:\n  agent3 client add me\nor set server.local_key, or remove the name."
            )
        rights = {client.id: (frozenset(client.scopes), client.tenant) for client in settings.clients}
        for client in settings.clients:
            if rights[client.id] != (frozenset(client.scopes), client.tenant):
                raise SetupError(
                    f"clients: {client.id!r} occurs more than once, with different scopes or tenants. A second key of "
                    "a client repeats both; another client needs an id of its own."
                )
        for client in settings.clients:
            if client.id in ("", LOCAL.id):
                raise SetupError(f"clients: {client.id!r} cannot be the id of a client. Choose another.")
            if not client.key and not client.signing and not client.certificate:
                raise SetupError(
                    f'clients: {client.id!r} needs key = "env:NAME", signing = "env:NAME", or a certificate.'
                )
            if client.certificate and not settings.server.tls_client_ca:
                raise SetupError(f"clients: the certificate of {client.id!r} needs server.tls_client_ca to verify it.")
            if client.require_signature and not client.signing:
                raise SetupError(
                    f'clients: {client.id!r} must sign, but has no signing secret. Add signing = "env:NAME".'
                )
        self._metrics = metrics
        self._stored = stored
        self._everybody_is_local = not known
        self.tokens = TokenVerifier(settings) if settings.oauth.issuers else None
        self._how = _HOW
        if self.tokens is not None:
            self._how = (
                'Send a key or an access token as "Authorization: Bearer ..." (keys also as "X-API-Key: '
                f'KEY"). Tokens are issued by {", ".join(settings.oauth.issuers)}, for '
                f"{self.tokens.resource}."
            )
        self._must_sign = {client.id for client in settings.clients if client.require_signature}
        # Found by their hashes, in a dict that is seeded anew in every process: the time it takes tells nothing.
        self._clients: dict[bytes, Principal] = {}
        self._certificates: dict[str, Principal] = {}
        self._refused: Counter[str] = Counter()
        if settings.server.local_key:
            self._clients[_local_digest(Path(settings.server.local_key).expanduser())] = LOCAL
        self.signing: list[Key] = []
        for client in settings.clients:
            principal = principal_of(client)
            if client.certificate:
                self._certificates[_certificate_name(client)] = principal
            if client.key:
                known_to = self._clients.setdefault(_key_digest(client, environment), principal)
                if known_to.id != client.id:
                    raise SetupError(
                        f"clients: {client.id!r} has the same key as {known_to.id!r}. Use a separate key for each."
                    )
            if client.signing:
                kind, _, name = client.signing.partition(":")
                if kind != "env" or not name:
                    raise SetupError(
                        f"clients: the signing secret of {client.id!r} must be env:NAME, not the secret itself."
                    )
                what = f"clients: {name}, the signing secret of {client.id!r},"
                self.signing.append(Key(client.id, secret_bytes(environment.get(name, ""), what), principal))

    @property
    def knows_all(self) -> bool:
        """Whether everybody who calls is the local person.

        With the first client everybody needs a key, and that stays so until the gateway is started again: removing the
        last client must not let everybody in.
        """
        if self._everybody_is_local and self._stored is not None and self._stored.count:
            self._everybody_is_local = False
        return self._everybody_is_local

    @property
    def judges(self) -> bool:
        """Whether some requests are judged before they reach a door, because that takes time."""
        return bool(self.signing) or self.tokens is not None

    def token(self, scope: MutableMapping[str, Any]) -> str | None:
        """The access token of a request; None where it has none, or the key of a client."""
        if self.tokens is None or any(name == b"x-api-key" for name, _ in scope.get("headers", ())):
            return None
        key = _key(scope.get("headers", ()))
        if not key or self._match(hashlib.sha256(key).digest()) is not None:
            return None
        text = key.decode("latin-1")
        return text if self.tokens.is_token(text) else None

    def __call__(self, scope: MutableMapping[str, Any]) -> Principal:
        """The principal of an ASGI scope; Unauthenticated, counted once for a scope, when the caller is unknown, and
        AccessError for the key of a client that is stopped."""
        signed, known = scope.get(SIGNED), scope.get(KNOWN)
        # Several layers ask for the caller of one request.
        principal: Principal
        if known is not None and known[0] is signed:
            principal = known[1]
        else:
            principal = self._identify(scope)
            scope[KNOWN] = (signed, principal)
        ACTOR.set(principal.id)
        return principal

    def _identify(self, scope: MutableMapping[str, Any]) -> Principal:
        if self.knows_all:
            for name, _ in scope.get("headers", ()):
                if name in PASSED_ON:
                    raise self._refusal(scope, Unauthenticated(_FORWARDED))
            return LOCAL
        signed = scope.get(SIGNED)
        if isinstance(signed, Principal):
            return signed
        if isinstance(signed, Agent3Error):
            raise self._refusal(scope, signed)
        key = _key(scope.get("headers", ()))
        found = self._match(hashlib.sha256(key).digest()) if key else self._by_certificate(scope)
        if found is None:
            stopped = self._stored.find_stopped(hashlib.sha256(key).digest()) if key and self._stored else None
            if stopped is not None:
                raise AccessError(f"Client {stopped} was stopped by the operator.")
            raise self._refusal(scope, Unauthenticated(f"{'Unknown key' if key else 'No key'}. {self._how}"))
        if found.id in self._must_sign:
            why = (
                f"Client {found.id} must sign its requests; its key alone is not enough. See docs/reference/signing.md."
            )
            raise self._refusal(scope, Unauthenticated(why))
        return found

    def is_over(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether the key is not good any more that a request was let in with; False for what was let in otherwise."""
        if KNOWN not in scope or scope.get(SIGNED) is not None or self.knows_all:
            return False
        key = _key(scope.get("headers", ()))
        return key is not None and self._match(hashlib.sha256(key).digest()) is None

    def has_credential(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether a scope shows anything to know its caller by. One that does not is no failed attempt."""
        shown = SIGNED in scope or KNOWN in scope or CERTIFICATE in scope
        return shown or bool(_key(scope.get("headers", ())))

    def _refusal(self, scope: MutableMapping[str, Any], error: Agent3Error) -> Agent3Error:
        if isinstance(error, Unauthenticated) and not scope.get(_COUNTED):
            scope[_COUNTED] = True
            self._metrics.mcp_auth_failures.inc()
            self._refused["credential" if self.has_credential(scope) else "none"] += 1
        return error

    async def record_refusals(self, database: Database, env: Env) -> None:
        """Note in the audit how many requests came without a credential, or with one that is not good, since the last
        time. One record for all of them: who is not known must not be able to fill the database."""
        counted, self._refused = self._refused, Counter()
        if not counted:
            return
        try:
            await database.write(lambda tx: record(tx, env, "change", "unknown callers refused", dict(counted)))
        except Agent3Error as error:
            self._refused.update(counted)
            log.warning("refusals of unknown callers will be recorded later: %s", error)

    def _by_certificate(self, scope: MutableMapping[str, Any]) -> Principal | None:
        shown = scope.get(CERTIFICATE)
        if not isinstance(shown, PeerCertificate):
            return None
        by_print = self._certificates.get(f"sha256:{shown.fingerprint}")
        return by_print or (self._certificates.get(f"subject:{shown.subject}") if shown.subject else None)

    def _match(self, digest: bytes) -> Principal | None:
        return self._clients.get(digest) or (self._stored.find(digest) if self._stored is not None else None)


def _key(headers: Any) -> bytes | None:
    for name, value in headers:
        if name == b"x-api-key":
            return bytes(value)
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return bytes(value[7:].strip())
    return None


def _is_own_name(name: str) -> bool:
    """Whether a Host header can only come from this machine."""
    host = name.removesuffix(":*")
    host = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    return is_loopback(host) or host.lower().endswith(".localhost")


def _local_digest(path: Path) -> bytes:
    """Of the key in a file of its owner alone, which is made where there is none."""
    try:
        with suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        mode, key = path.stat().st_mode, path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"server.local_key: {path} cannot be used: {error}") from None
    if mode & 0o077:
        raise SetupError(
            f"server.local_key: other users can read {path}. Run: chmod 600 {path}, or remove it to get a new one."
        )
    if len(key) < 16:
        raise SetupError(f"server.local_key: the key in {path} must have at least 16 characters.")
    return hashlib.sha256(key.encode()).digest()


def _certificate_name(client: Client) -> str:
    kind, _, rest = client.certificate.partition(":")
    if kind == "sha256" and re.fullmatch("[0-9a-f]{64}", digits := rest.replace(":", "").lower()):
        return f"sha256:{digits}"
    if kind == "subject" and rest.strip():
        return f"subject:{rest.strip()}"
    raise SetupError(f"clients: the certificate of {client.id!r} must be sha256:HEX with 64 digits, or subject:NAME.")


def _key_digest(client: Client, environment: Mapping[str, str]) -> bytes:
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
            except ClientLeft:
                return
            if body is not None:
                receive = _replay(body, receive)
        elif (token := self._doorkeeper.token(scope)) is not None:
            assert self._doorkeeper.tokens is not None
            try:
                scope[SIGNED] = await self._doorkeeper.tokens.principal(scope, token)
            except Agent3Error as error:
                log.warning("An access token was refused: %s", error.message)
                scope[SIGNED] = error

        async def send_challenges(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = self._with_challenges(scope, message)
            await send(message)

        await self._app(scope, receive, send_challenges)

    def _request(self, scope: Scope) -> Request:
        headers: dict[str, str] = {}
        for raw, value in scope["headers"]:  # repeated ones are joined (RFC 9421, section 2.1)
            name, text = raw.decode("latin-1").lower(), value.decode("latin-1").strip()
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        request = Request(
            scope["method"],
            headers.get("host", ""),
            path.partition(b"?")[0].decode("latin-1"),
            scope["query_string"].decode("latin-1"),
            headers,
            scope.get("scheme", "http"),
        )
        host = request.host()
        bare = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._hosts and not self._hosts & {host, bare}:
            # A request to another gateway, where the client has the same secret, could else be replayed here.
            raise Unauthenticated("The request was signed for another host. Add that name to server.allowed_hosts.")
        return request

    def _with_challenges(self, scope: Scope, message: Message) -> Message:
        """A refusal with what would be taken instead: a signature, and over what; a token, and from where."""
        status, tokens = message["status"], self._doorkeeper.tokens
        challenges: list[tuple[bytes, bytes]] = []
        headers = list(message.get("headers", ()))
        if tokens is not None and (status == 401 or (status == 403 and tokens.lacks_scope(scope))):
            challenges.append((b"www-authenticate", tokens.challenge(scope).encode("latin-1")))
            # A door's own ``Bearer`` alone says less.
            headers = [pair for pair in headers if (pair[0].lower(), pair[1]) != (b"www-authenticate", b"Bearer")]
        if self._doorkeeper.signing and status == 401:
            challenges += [(b"www-authenticate", b"Signature"), (b"accept-signature", ACCEPT.encode())]
        return {**message, "headers": [*headers, *challenges]} if challenges else message


class KnownCallers:
    """An ASGI app around the doors that refuses large bodies of strangers before they are read.

    Most doors read a request before they say who may not send it, in the words of its protocol. Of a stranger only so
    much is kept.
    """

    def __init__(self, app: ASGIApp, doorkeeper: Doorkeeper, open_paths: tuple[str, ...] = ()):
        self._app = app
        self._doorkeeper = doorkeeper
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or self._doorkeeper.knows_all
            or not _is_large(scope)
            or scope["path"].startswith(self._open)
        ):
            await self._app(scope, receive, send)
            return
        try:
            self._doorkeeper(scope)
        except Agent3Error as error:
            body = msgspec.json.encode({"error": error.to_dict()})
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
                *([(b"www-authenticate", b"Bearer")] if error.http_status == 401 else []),
            ]
            await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, send)


def _is_large(scope: Scope) -> bool:
    """Whether a body is, or may be, larger than what is kept of a stranger's. A packed one may be."""
    for name, value in scope["headers"]:
        if name in (b"transfer-encoding", b"content-encoding"):
            return True
        if name == b"content-length" and (len(value) > 9 or not value.isdigit() or int(value) > _STRANGERS_BODY):
            return True
    return False


def _hosts(settings: Server) -> frozenset[str]:
    """The host names of this gateway; empty where none is configured, which admits every name."""
    if not settings.allowed_hosts and not is_loopback(settings.host):
        return frozenset()
    bound = f"[{settings.host}]" if ":" in settings.host else settings.host
    names = ("127.0.0.1", "localhost", "[::1]", bound, *settings.allowed_hosts)
    return frozenset(name.lower().removesuffix(":*") for name in names)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more for the app inside, and then whatever comes after it."""
    waiting = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": waiting.pop(), "more_body": False} if waiting else await receive()

    return replay
