"""Standard Webhooks: how a delivery is signed, and how its receiver tells that it is genuine and new.

``verify`` is for receivers; it needs nothing but the secret and the request, or the public keys of the sender instead
of a secret. See https://www.standardwebhooks.com for the form of secret, headers and signature, which other libraries
can check as well. It knows nothing of calls, queues or the network.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping
from typing import Any

from agent3.errors import SetupError, Unauthenticated
from agent3.identity.own_keys import OwnKey, is_signed_with

__all__ = ["ID", "SIGNATURE", "TIMESTAMP", "keys_of", "signed", "signed_by", "verify", "verify_by"]

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"

_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
_VERSION = "v1,"
_PUBLIC = "v1a,"
"""The form of a signature with two keys, Ed25519."""


def keys_of(secret: str) -> list[bytes]:
    """The keys of a secret: one, or several with the newest first, separated by spaces, while they are being changed.

    SetupError when it has another form; the error does not show it.
    """
    keys = [_key(one) for one in secret.split()]
    if not keys:
        raise SetupError(f"The secret for webhooks is empty. {_HOW}")
    return keys


_HOW = "Give whsec_ and 24 to 64 random bytes in base64: echo whsec_$(openssl rand -base64 32)"


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _SHORTEST <= len(key) <= _LONGEST:
        raise SetupError(f"The secret for webhooks has a wrong form. {_HOW}")
    return key


def signed(secret: str, delivery: str, at: float, body: bytes) -> dict[str, str]:
    """The three headers of a delivery that is sent at this moment; one signature for each key of the secret."""
    seconds = str(int(at))
    signatures = [_VERSION + _signature(key, delivery, seconds, body) for key in keys_of(secret)]
    return {ID: delivery, TIMESTAMP: seconds, SIGNATURE: " ".join(signatures)}


def signed_by(key: OwnKey, delivery: str, at: float, body: bytes) -> dict[str, str]:
    """The three headers of a delivery that is signed with a key whose public half everybody may have."""
    seconds = str(int(at))
    signature = base64.b64encode(key.sign(_content(delivery, seconds, body))).decode()
    return {ID: delivery, TIMESTAMP: seconds, SIGNATURE: _PUBLIC + signature}


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: float = 300.0, now: float | None = None
) -> str:
    """The id of a delivery that is genuine and fresh; Unauthenticated for any other.

    ``body`` is the request's, byte for byte. Signatures are compared in constant time. A delivery may come more than
    once: its id tells, so remember ids for as long as you act on them. Names of headers are found in any case.
    """
    given = _given(headers, tolerance, now)
    wanted = [_signature(key, given[ID], given[TIMESTAMP], body) for key in keys_of(secret)]
    if not _agree(wanted, given[SIGNATURE]):
        raise Unauthenticated("The webhook's signature does not fit its content and the secret.")
    return given[ID]


def verify_by(
    keys: Iterable[Mapping[str, Any]],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> str:
    """Likewise by the public keys of the sender: the ``keys`` of the set at its ``/.well-known/jwks.json``."""
    given = _given(headers, tolerance, now)
    content = _content(given[ID], given[TIMESTAMP], body)
    offered = [_raw(one.removeprefix(_PUBLIC)) for one in given[SIGNATURE].split()[:20] if one.startswith(_PUBLIC)]
    if not any(is_signed_with(key, one, content) for key in keys for one in offered):
        raise Unauthenticated("The webhook's signature does not fit its content and the keys of its sender.")
    return given[ID]


def _given(headers: Mapping[str, str], tolerance: float, now: float | None) -> dict[str, str]:
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not given.get(name)]
    if missing:
        raise Unauthenticated(f"The webhook lacks the header {missing[0]}.")
    _check_time(given[TIMESTAMP], tolerance, time.time() if now is None else now)
    return given


def _raw(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _check_time(text: str, tolerance: float, now: float) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise Unauthenticated(f"The header {TIMESTAMP} must hold whole seconds since 1970.")
    if abs(now - int(text)) > tolerance:
        raise Unauthenticated(
            f"The webhook is {abs(now - int(text)):.0f} s away from this clock, and {tolerance:g} s are allowed."
        )


def _agree(wanted: list[str], given: str) -> bool:
    """Whether one of the signatures is right; all are compared, so that the time tells nothing."""
    offered = [one.removeprefix(_VERSION).encode() for one in given.split()[:20] if one.startswith(_VERSION)]
    right = [hmac.compare_digest(mine.encode(), theirs) for mine in wanted for theirs in offered]
    return any(right)


def _signature(key: bytes, delivery: str, seconds: str, body: bytes) -> str:
    return base64.b64encode(hmac.digest(key, _content(delivery, seconds, body), hashlib.sha256)).decode()


def _content(delivery: str, seconds: str, body: bytes) -> bytes:
    return f"{delivery}.{seconds}.".encode() + body
