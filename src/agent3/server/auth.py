"""Who stands at a network door: loopback without clients is the local person, everybody else shows a key."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import Any

from agent3.errors import SetupError, Unauthenticated
from agent3.model import LOCAL, Principal
from agent3.observe.metrics import Metrics
from agent3.settings import Client, Settings

__all__ = ["Doorkeeper", "is_loopback"]

_HOW = "Send a key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'; the operator adds clients in agent3.toml."


def is_loopback(host: str) -> bool:
    """Whether an address to bind to can be reached from this machine only."""
    return host in ("localhost", "::1") or host.startswith("127.")


class Doorkeeper:
    """Tells who calls from the headers of a request. Refuses to be built for an open door without clients."""

    def __init__(self, settings: Settings, metrics: Metrics, environment: Mapping[str, str] = os.environ):
        if not settings.clients and not is_loopback(settings.server.host):
            raise SetupError(
                f"The gateway would listen on {settings.server.host} for everybody. Add a client to agent3.toml:\n"
                '  [[clients]]\n  id = "me"\n  key = "env:MY_AGENT3_KEY"\n'
                "then set MY_AGENT3_KEY in the environment, or listen on 127.0.0.1."
            )
        self._metrics = metrics
        self._clients = [(_digest(client, environment), _principal(client)) for client in settings.clients]

    def __call__(self, scope: Mapping[str, Any]) -> Principal:
        """The principal of an ASGI scope; Unauthenticated, and counted, when the key is missing or unknown."""
        if not self._clients:
            return LOCAL
        key = _key(scope.get("headers", ()))
        found = self._match(hashlib.sha256(key).digest()) if key else None
        if found is None:
            self._metrics.mcp_auth_failures.inc()
            raise Unauthenticated(f"{'Unknown key' if key else 'No key'}. {_HOW}")
        return found

    def _match(self, digest: bytes) -> Principal | None:
        """Every client is compared, so that the time tells nothing."""
        found = None
        for known, principal in self._clients:
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def _key(headers: Any) -> bytes | None:
    for name, value in headers:
        if name == b"x-api-key":
            return bytes(value)
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return bytes(value[7:].strip())
    return None


def _principal(client: Client) -> Principal:
    return Principal(client.id, "client", frozenset(client.scopes))


def _digest(client: Client, environment: Mapping[str, str]) -> bytes:
    kind, _, rest = client.key.partition(":")
    if kind == "sha256" and len(rest) == 64:
        return bytes.fromhex(rest)
    if kind != "env":
        raise SetupError(f"clients: the key of {client.id!r} must be env:NAME or sha256:HEX, not the key itself.")
    if len(key := environment.get(rest, "")) < 16:
        raise SetupError(f"clients: {rest}, the key of {client.id!r}, must be set and have at least 16 characters.")
    return hashlib.sha256(key.encode()).digest()
