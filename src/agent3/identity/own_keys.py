"""The gateway's own keys: made when first needed, sealed in the database, and the same in every process on it.

Others recognise by them what comes from this gateway, such as its agent cards. They need no configuration.
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
from agent3.identity.secrets import EnvironmentVault
from agent3.storage import Database, Row, Transaction

__all__ = ["OwnKey", "OwnKeys", "is_signed_with", "open_own_keys"]

_SELECT = "SELECT sealed FROM own_keys WHERE name = ?"
_INSERT = "INSERT INTO own_keys (name, sealed, created) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


class OwnKey:
    """An Ed25519 key of this gateway. ``master_keys`` seal what only this gateway has to read again."""

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
    """Whether the Ed25519 key of a key set signed these bytes; False for any other kind of key."""
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
        if name in self._known:
            return self._known[name]
        keys = await self._master_keys.keys()
        place = f"own key {name}"

        async def make(tx: Transaction) -> Row | None:
            new = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
            # Of two processes that make it at once one wins, and both use its key.
            await tx.run(_INSERT, name, seal(keys[0], new, place, self._env), self._env.now())
            return await tx.one(_SELECT, name)

        row = await self._database.one(_SELECT, name) or await self._database.write(make)
        assert row is not None
        try:
            pem = unseal(keys, row["sealed"], place)
        except SetupError:
            raise SetupError(
                f"The gateway's own key {name!r} cannot be opened: it was encrypted with another secret. "
                "Restore the .seal file beside the database, or put the former secret of storage.seal after "
                "the new one, separated by a space."
            ) from None
        return self._known.setdefault(name, OwnKey(name, pem, keys))


def open_own_keys(database: Database, seal_reference: str, url: str, env: Env) -> OwnKeys:
    """The keys of a database, for a program that is no gateway."""
    return OwnKeys(database, MasterKeys(seal_reference, url, EnvironmentVault()), env)
