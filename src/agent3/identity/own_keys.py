"""The house's own keys: made at the first need, sealed in the database, and the same in every process on it.

By them others know what comes from this house, such as its agent cards. Nobody has to set anything up for that.
"""

from __future__ import annotations

import base64
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from agent3.env import Env
from agent3.errors import SetupError
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secret_box import seal, unseal
from agent3.storage import Database, Transaction

__all__ = ["OwnKey", "OwnKeys", "is_signed_with"]

_READ = "SELECT sealed FROM own_keys WHERE name = ?"
_MADE = "INSERT INTO own_keys (name, sealed, created) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


class OwnKey:
    """An Ed25519 key of the house. ``master_keys`` seal what only this gateway has to read again."""

    def __init__(self, name: str, pem: str, master_keys: list[bytes]):
        key = load_pem_private_key(pem.encode(), None)
        assert isinstance(key, Ed25519PrivateKey)
        self.name = name
        self.pem = pem
        self.master_keys = master_keys
        self._key = key

    def sign(self, content: bytes) -> bytes:
        """The signature of some bytes."""
        return self._key.sign(content)

    def jwk(self) -> dict[str, Any]:
        """The public half, as it stands in a key set."""
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        return {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": f"{self.name}-{x[:16]}", "alg": "EdDSA", "use": "sig"}


def is_signed_with(jwk: Any, signature: bytes, content: bytes) -> bool:
    """Whether a signature over some bytes is by the Ed25519 key of a key set; False for what is no such key."""
    if not isinstance(jwk, dict) or jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519":
        return False
    try:
        raw = base64.urlsafe_b64decode(jwk["x"] + "=" * (-len(jwk["x"]) % 4))
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, content)
    except (InvalidSignature, ValueError, TypeError, KeyError):
        return False
    return True


class OwnKeys:
    """The keys of one database. It belongs to the event loop it is used in."""

    def __init__(self, database: Database, master_keys: MasterKeys, env: Env):
        self._database = database
        self._master_keys = master_keys
        self._env = env
        self._known: dict[str, OwnKey] = {}

    async def key(self, name: str) -> OwnKey:
        """The key of a name, made where there is none. SetupError where nothing can be sealed or opened."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = await self._read(name)
        return found

    async def _read(self, name: str) -> OwnKey:
        keys = await self._master_keys.keys()
        row = await self._database.one(_READ, name)
        if row is None:
            row = await self._database.write(lambda tx: self._make(tx, name, keys[0]))
        assert row is not None
        try:
            return OwnKey(name, unseal(keys, row["sealed"], _place(name)), keys)
        except SetupError:
            raise SetupError(
                f"The key {name!r} of this house cannot be opened: it was sealed with another secret. Put back the "
                "file that ends in .seal beside the database, or the former secret of storage.seal behind the new "
                "one, separated by a space."
            ) from None

    async def _make(self, tx: Transaction, name: str, key: bytes) -> Any:
        """Of two processes that make it at once one wins, and both take that one's."""
        new = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        await tx.run(_MADE, name, seal(key, new, _place(name), self._env), self._env.now())
        return await tx.one(_READ, name)


def _place(name: str) -> str:
    return f"own key {name}"
