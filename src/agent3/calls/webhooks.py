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

_HOW = "Use whsec_ and 24 to 64 random bytes in base64: echo whsec_$(openssl rand -base64 32)"
_SHARED = "v1,"
"""The form of a signature with a shared secret, HMAC-SHA256."""
_PUBLIC = "v1a,"
"""The form of a signature with a key pair, Ed25519."""
_MOST = 20
"""Signatures of one delivery that are looked at."""


def keys_of(secret: str) -> list[bytes]:
    """The keys of a secret: one, or several with the newest first, separated by spaces, while they are being changed.

    SetupError when it has another form; the error does not show it.
    """
    keys = []
    for text in secret.split():
        key = _decode(text.removeprefix("whsec_"))
        if not text.startswith("whsec_") or not 24 <= len(key) <= 64:
            raise SetupError(f"The webhook secret is malformed. {_HOW}")
        keys.append(key)
    if not keys:
        raise SetupError(f"The webhook secret is empty. {_HOW}")
    return keys


def signed(secret: str, delivery: str, at: float, body: bytes) -> dict[str, str]:
    """The three headers of a delivery that is sent at this moment; one signature for each key of the secret."""
    seconds = str(int(at))
    signatures = [_SHARED + _signature(key, delivery, seconds, body) for key in keys_of(secret)]
    return {ID: delivery, TIMESTAMP: seconds, SIGNATURE: " ".join(signatures)}


def signed_by(key: OwnKey, delivery: str, at: float, body: bytes) -> dict[str, str]:
    """The three headers of a delivery that is signed with a key whose public half is open to all."""
    seconds = str(int(at))
    signature = base64.b64encode(key.sign(_content(delivery, seconds, body))).decode()
    return {ID: delivery, TIMESTAMP: seconds, SIGNATURE: _PUBLIC + signature}


def verify(
    secret: str, headers: Mapping[str, str], body: bytes, *, tolerance: float = 300.0, now: float | None = None
) -> str:
    """The id of a delivery that is genuine and fresh; Unauthenticated for any other.

    ``body`` is the request's, byte for byte. A delivery may come more than once: its id tells, so remember ids for as
    long as you act on them. Names of headers are found in any case.
    """
    delivery, seconds, signatures = _read_headers(headers, tolerance, now)
    expected = [_signature(key, delivery, seconds, body).encode() for key in keys_of(secret)]
    given = [text.removeprefix(_SHARED).encode() for text in signatures if text.startswith(_SHARED)]
    # A list, so that all are compared and the time tells nothing.
    if not any([hmac.compare_digest(ours, theirs) for ours in expected for theirs in given]):  # noqa: C419
        raise Unauthenticated("The webhook signature does not match its content and the secret.")
    return delivery


def verify_by(
    keys: Iterable[Mapping[str, Any]],
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = 300.0,
    now: float | None = None,
) -> str:
    """Likewise by the public keys of the sender: the ``keys`` of the set at its ``/.well-known/jwks.json``."""
    delivery, seconds, signatures = _read_headers(headers, tolerance, now)
    content = _content(delivery, seconds, body)
    given = [_decode(text.removeprefix(_PUBLIC)) for text in signatures if text.startswith(_PUBLIC)]
    if not any(is_signed_with(key, signature, content) for key in keys for signature in given):
        raise Unauthenticated("The webhook signature does not match its content and the sender's keys.")
    return delivery


def _read_headers(headers: Mapping[str, str], tolerance: float, now: float | None) -> tuple[str, str, list[str]]:
    """Id, seconds and signatures of a delivery; Unauthenticated if one is missing or the time is not now."""
    given = {name.lower(): value for name, value in headers.items()}
    for name in (ID, TIMESTAMP, SIGNATURE):
        if not given.get(name):
            raise Unauthenticated(f"The webhook lacks the header {name}.")
    seconds = given[TIMESTAMP]
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) <= 12):
        raise Unauthenticated(f"The header {TIMESTAMP} must be whole seconds since 1970.")
    away = abs((time.time() if now is None else now) - int(seconds))
    if away > tolerance:
        raise Unauthenticated(
            f"The webhook's time differs from this clock by {away:.0f} s; {tolerance:g} s are allowed."
        )
    return given[ID], seconds, given[SIGNATURE].split()[:_MOST]


def _signature(key: bytes, delivery: str, seconds: str, body: bytes) -> str:
    return base64.b64encode(hmac.digest(key, _content(delivery, seconds, body), hashlib.sha256)).decode()


def _content(delivery: str, seconds: str, body: bytes) -> bytes:
    return f"{delivery}.{seconds}.".encode() + body


def _decode(text: str) -> bytes:
    """Base64; empty if it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
