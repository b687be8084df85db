"""Encrypted messages: ``A2AEncryption`` as documented, and ``A2AKeyring`` with named keys that can be rotated.

``A2AEncryption`` is Fernet, whose keys and tokens other programs can read and write. ``A2AKeyring`` is AES-256-GCM;
sender, recipient and id of a message stand outside and are authenticated with it, so that it can be routed without
being opened, and opens under no other name. Both turn a message into bytes; where those go is not known here.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct
from pydantic import ValidationError as PydanticError

from agent3.definitions import A2AMessage
from agent3.errors import SecurityError, SetupError, ValidationError
from agent3.security.canonical import canonical

__all__ = ["A2AEncryption", "A2AKeyring", "Cipher"]

_NONCE = 12
_KEY = 32
_ALGORITHM = "A256GCM"


class Cipher(Protocol):
    """Turns messages into bytes that only holders of a key can read, and back."""

    def encrypt_message(self, message: A2AMessage) -> bytes:
        """The encrypted message."""
        ...

    def decrypt_message(self, encrypted_data: bytes) -> A2AMessage:
        """The message; SecurityError for what was not encrypted with a known key, or was changed since."""
        ...


class A2AEncryption:
    """Messages under a Fernet key, as documented. Of several keys the first encrypts, and all decrypt.

        cipher = A2AEncryption(Fernet.generate_key())
        assert cipher.decrypt_message(cipher.encrypt_message(message)) == message

    Safe from any thread.
    """

    def __init__(self, encryption_key: bytes | str | Sequence[bytes]):
        keys = [encryption_key] if isinstance(encryption_key, (bytes, str)) else list(encryption_key)
        try:
            self.cipher = MultiFernet([Fernet(key) for key in keys])
        except (ValueError, TypeError, binascii.Error):
            raise SetupError(
                "A Fernet key has 32 bytes in URL-safe base64. Create one with A2AEncryption.key()."
            ) from None

    @staticmethod
    def key() -> bytes:
        """A new key."""
        return Fernet.generate_key()

    def encrypt_message(self, message: A2AMessage) -> bytes:
        """Encrypt A2A message."""
        return self.cipher.encrypt(message.model_dump_json().encode())

    def decrypt_message(self, encrypted_data: bytes) -> A2AMessage:
        """Decrypt A2A message; SecurityError if it was not encrypted with one of the keys, or was changed since."""
        try:
            text = self.cipher.decrypt(encrypted_data)
        except (InvalidToken, TypeError):
            raise SecurityError("The message was not encrypted with this key, or was changed in transit.") from None
        return _parse_message(text)

    def rotate(self, encrypted_data: bytes) -> bytes:
        """The same message encrypted with the first key."""
        try:
            return self.cipher.rotate(encrypted_data)
        except (InvalidToken, TypeError):
            raise SecurityError("The message was not encrypted with any of these keys.") from None


class _Sealed(Struct, frozen=True, forbid_unknown_fields=True, rename={"from_agent": "from", "to_agent": "to"}):
    """An encrypted message. All fields but the last two are readable, and authenticated with the text."""

    alg: str
    kid: str
    id: str
    from_agent: str
    to_agent: str
    nonce: bytes
    text: bytes

    @property
    def associated_data(self) -> bytes:
        return canonical([self.alg, self.kid, self.id, self.from_agent, self.to_agent])


class A2AKeyring:
    """Messages under named keys: AES-256-GCM, bound to message id, sender and recipient.

    ``current`` encrypts, all decrypt. To change a key, ``add`` the new one at every reader, ``use`` it at every writer,
    and ``remove`` the old one once the last message under it has been read. Safe from any thread.
    """

    def __init__(self, keys: Mapping[str, bytes], current: str | None = None):
        self._keys = {name: _decode_key(name, key) for name, key in keys.items()}
        if not self._keys:
            raise SetupError("A keyring needs a key: A2AKeyring({'2026-01': A2AKeyring.key()}).")
        self.current = current or next(reversed(self._keys))
        self._get_key(self.current)

    @staticmethod
    def key() -> bytes:
        """A new key."""
        return os.urandom(_KEY)

    def add(self, name: str, key: bytes) -> None:
        """Also decrypt with this key."""
        self._keys = {**self._keys, name: _decode_key(name, key)}

    def use(self, name: str) -> None:
        """Encrypt with this key from now on."""
        self._get_key(name)
        self.current = name

    def remove(self, name: str) -> None:
        """Decrypt with this key no more."""
        if name == self.current:
            raise SetupError(f"Key {name!r} is in use. Call use() with another one first.")
        self._keys = {known: key for known, key in self._keys.items() if known != name}

    def encrypt_message(self, message: A2AMessage) -> bytes:
        """The message encrypted with the current key."""
        kid, nonce = self.current, os.urandom(_NONCE)
        sealed = _Sealed(_ALGORITHM, kid, message.message_id, message.from_agent, message.to_agent, nonce, b"")
        text = AESGCM(self._get_key(kid)).encrypt(nonce, message.model_dump_json().encode(), sealed.associated_data)
        return msgspec.json.encode(msgspec.structs.replace(sealed, text=text))

    def decrypt_message(self, encrypted_data: bytes) -> A2AMessage:
        """The message; SecurityError if its key is unknown, or any part of it was changed."""
        try:
            sealed = msgspec.json.decode(encrypted_data, type=_Sealed)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise SecurityError(
                "This message was not encrypted with a keyring. Plain messages are refused here."
            ) from None
        if sealed.alg != _ALGORITHM:
            raise SecurityError(f"A message under {sealed.alg[:40]!r} is refused; only {_ALGORITHM} is accepted.")
        try:
            text = AESGCM(self._get_key(sealed.kid)).decrypt(sealed.nonce, sealed.text, sealed.associated_data)
        except (InvalidTag, ValueError, ValidationError):
            raise SecurityError(
                f"Message {sealed.id[:100]!r} was changed in transit, or belongs to another message."
            ) from None
        message = _parse_message(text)
        if (message.message_id, message.from_agent, message.to_agent) != (
            sealed.id,
            sealed.from_agent,
            sealed.to_agent,
        ):
            raise SecurityError(f"Message {sealed.id[:100]!r} differs from its envelope in id, sender or recipient.")
        return message

    def _get_key(self, name: str) -> bytes:
        key = self._keys.get(name)
        if key is None:
            raise SecurityError(f"This keyring has no key {name[:100]!r}. Add it, or send under another one.")
        return key


def _decode_key(name: str, key: bytes) -> bytes:
    """A key of 32 bytes, plain or as a Fernet key, which is 32 bytes in base64."""
    if len(key) == _KEY:
        return key
    try:
        plain = base64.urlsafe_b64decode(key)
    except (ValueError, binascii.Error):
        plain = b""
    if len(plain) != _KEY:
        raise SetupError(
            f"Key {name!r} must have {_KEY} bytes, plain or in URL-safe base64. Create one with A2AKeyring.key()."
        )
    return plain


def _parse_message(text: bytes) -> A2AMessage:
    try:
        return A2AMessage.model_validate_json(text)
    except PydanticError as error:
        raise ValidationError(f"The decrypted content is not a message: {error.error_count()} errors.") from None
