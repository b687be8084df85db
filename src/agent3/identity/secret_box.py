"""Sealing short texts, so that what must wait in a database cannot be read there.

AES-256-GCM under a key that is derived from a secret of the operator's. What a text belongs to is authenticated with
it, so that it opens nowhere else. Where secrets come from and what is sealed is not known here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agent3.env import Env
from agent3.errors import SetupError

__all__ = ["seal", "unseal"]

_NONCE = 12
_PURPOSE = b"agent3 sealed text 1"


def seal(key: bytes, text: str, belongs_to: str, env: Env) -> str:
    """The text in a form that only the holder of the key can read, and only for what it belongs to."""
    nonce = env.random_bytes(_NONCE)
    closed = AESGCM(_derive(key)).encrypt(nonce, text.encode(), belongs_to.encode())
    return base64.urlsafe_b64encode(nonce + closed).decode()


def unseal(keys: Sequence[bytes], sealed: str, belongs_to: str) -> str:
    """The text, by the first key that fits; SetupError when none does: the secret was changed, or the text was."""
    try:
        raw = base64.urlsafe_b64decode(sealed)
    except (binascii.Error, ValueError):
        raw = b""
    for key in keys:
        try:
            return AESGCM(_derive(key)).decrypt(raw[:_NONCE], raw[_NONCE:], belongs_to.encode()).decode()
        except (InvalidTag, ValueError):
            continue
    raise SetupError(
        "A sealed text cannot be opened: the secret it was sealed with is no longer the one that is set. "
        "Keep the old one behind the new one, separated by a space, until nothing sealed with it is left."
    )


def _derive(key: bytes) -> bytes:
    """A key for this purpose alone: the secret itself also signs, and one key must not do both."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(key)
