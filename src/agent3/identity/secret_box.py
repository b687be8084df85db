"""Sealing short texts, so that what must wait in a database cannot be read there.

Envelope encryption with AES-256-GCM: each text has a data key of its own, and the data key is encrypted under a key
that is derived from a secret of the operator's. So that secret can be replaced without touching the texts. What a text
belongs to is authenticated with it, so that it opens nowhere else. Where secrets come from and what is sealed is not
known here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agent3.env import Env
from agent3.errors import SetupError

__all__ = ["derive", "is_sealed_with", "key_id", "prefix_of", "rewrap", "seal", "unseal"]

_NONCE = 12
_PURPOSE = b"agent3 sealed text 1"
_WRAPPING = b"agent3 data key 2"
_VERSION = "2"
_CLOSED = (
    "An encrypted text cannot be opened: its secret is no longer set. Keep the old secret after the new "
    "one, separated by a space, until nothing encrypted with it is left."
)


def seal(key: bytes, text: str, belongs_to: str, env: Env) -> str:
    """The text in a form that only the holder of the key can read, and only for what it belongs to."""
    data_key = env.random_bytes(32)
    closed = _encrypt(data_key, text.encode(), belongs_to.encode(), env)
    return ".".join((_VERSION, key_id(key), _wrap(key, data_key, env), closed))


def unseal(keys: Sequence[bytes], sealed: str, belongs_to: str) -> str:
    """The text, by the first key that fits; SetupError when none does: the secret was changed, or the text was."""
    version, _, rest = sealed.partition(".")
    try:
        if version == _VERSION and rest:
            return _decrypt(_unwrap(keys, rest), rest.rpartition(".")[2], belongs_to.encode()).decode()
        return _unseal_former(keys, sealed, belongs_to)
    except (InvalidTag, ValueError):
        raise SetupError(_CLOSED) from None


def is_sealed_with(key: bytes, sealed: str) -> bool:
    """Whether a text is sealed under this key, by what it says of itself."""
    return sealed.startswith(prefix_of(key))


def prefix_of(key: bytes | None) -> str:
    """What every text begins with that is sealed under this key, or under any."""
    return f"{_VERSION}." if key is None else f"{_VERSION}.{key_id(key)}."


def rewrap(keys: Sequence[bytes], sealed: str, env: Env) -> str | None:
    """The same sealed text under the first of the keys. The text itself is not opened.

    None for one of an earlier release, which has no data key: it must be unsealed and sealed again. SetupError when no
    key fits.
    """
    version, _, rest = sealed.partition(".")
    if version != _VERSION or not rest:
        return None
    try:
        data_key = _unwrap(keys, rest)
    except (InvalidTag, ValueError):
        raise SetupError(_CLOSED) from None
    return ".".join((_VERSION, key_id(keys[0]), _wrap(keys[0], data_key, env), rest.rpartition(".")[2]))


def key_id(key: bytes) -> str:
    """A short name by which a key is found again. It says nothing of the key."""
    return sha256(derive(key, b"agent3 key id")).hexdigest()[:12]


def derive(key: bytes, purpose: bytes, salt: bytes | None = None) -> bytes:
    """A key for one purpose alone: a secret may also sign, and one key must not do both."""
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=purpose).derive(key)


def _wrap(key: bytes, data_key: bytes, env: Env) -> str:
    return _encrypt(derive(key, _WRAPPING), data_key, _WRAPPING, env)


def _unwrap(keys: Sequence[bytes], rest: str) -> bytes:
    """The data key of ``KEY.WRAPPED.TEXT``."""
    name, wrapped, _ = rest.split(".")
    for key in keys:
        if key_id(key) == name:
            return _decrypt(derive(key, _WRAPPING), wrapped, _WRAPPING)
    raise InvalidTag


def _encrypt(key: bytes, content: bytes, beside: bytes, env: Env) -> str:
    nonce = env.random_bytes(_NONCE)
    return base64.urlsafe_b64encode(nonce + AESGCM(key).encrypt(nonce, content, beside)).decode()


def _decrypt(key: bytes, closed: str, beside: bytes) -> bytes:
    raw = base64.urlsafe_b64decode(closed)
    return AESGCM(key).decrypt(raw[:_NONCE], raw[_NONCE:], beside)


def _unseal_former(keys: Sequence[bytes], sealed: str, belongs_to: str) -> str:
    """A text that was sealed before texts had data keys of their own."""
    try:
        raw = base64.urlsafe_b64decode(sealed)
    except (binascii.Error, ValueError):
        raw = b""
    for key in keys:
        try:
            opened = AESGCM(derive(key, _PURPOSE)).decrypt(raw[:_NONCE], raw[_NONCE:], belongs_to.encode())
        except (InvalidTag, ValueError):
            continue
        return opened.decode()
    raise InvalidTag
