"""Encryption of what is stored, under the master key.

A database that is opened with a master key of the operator's has one data key, sealed in its table ``data_keys``; each
process derives a key of its own from it, and names it in whatever it encrypts. Replacing the master key seals the data
key anew, and nothing else. A database that has a data key is not opened without the master key.
"""

from __future__ import annotations

import os
import threading

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agent3.env import REAL, Env
from agent3.errors import Corrupt, SetupError
from agent3.identity.master_keys import MasterKeys
from agent3.identity.secret_box import derive, seal, unseal
from agent3.identity.secrets import EnvironmentVault
from agent3.observe.logs import get as logger
from agent3.settings import Settings, database_url
from agent3.storage import Database, Row, Transaction, open_database
from agent3.storage.at_rest import TABLES, Cipher, encrypt_database

__all__ = ["DataCipher", "OpenDatabase", "load_cipher", "open_stored"]

log = logger("storage")

_MARK, _BARE = b"\x00a3e2", b"\x00a3e1"
"""How encrypted bytes begin, with their place and without: JSON never does."""
_SALT, _NONCE, _LENGTH = 16, 12, 2
_HEAD = len(_MARK) + _SALT + _NONCE
_STRICT = "bound"
_PURPOSE = b"agent3 stored bytes 1"
_MOST_KEYS = 4_096
_NAME = "rows"


class DataCipher:
    """AES-256-GCM under keys that are derived from one data key. Safe to use from several threads at once.

    Each process draws a salt, and with it a key of its own, so that random nonces stay far from their limit.
    """

    def __init__(self, data_key: bytes, *, strict: bool = False):
        self.strict = strict
        self._data_key = data_key
        self._salt = os.urandom(_SALT)
        self._own = AESGCM(derive(data_key, _PURPOSE, self._salt))
        self._known = {self._salt: self._own}
        self._lock = threading.Lock()

    def encrypt(self, plain: bytes, place: bytes = b"") -> bytes:
        nonce, mark = os.urandom(_NONCE), _MARK if place else _BARE
        beside = len(place).to_bytes(_LENGTH) + place if place else b""
        return b"".join((mark, self._salt, nonce, beside, self._own.encrypt(nonce, plain, mark + beside)))

    def is_closed(self, stored: bytes) -> bool:
        return stored.startswith((_MARK, _BARE))

    def decrypt(self, stored: bytes) -> tuple[bytes, bytes]:
        if not self.is_closed(stored):
            return stored, b""
        mark, start = stored[: len(_MARK)], _HEAD
        if mark == _MARK:
            start += _LENGTH + int.from_bytes(stored[_HEAD : _HEAD + _LENGTH])
        beside = stored[_HEAD:start]
        try:
            salt = stored[len(_MARK) : len(_MARK) + _SALT]
            key = self._known.get(salt)
            if key is None:
                with self._lock:
                    if len(self._known) >= _MOST_KEYS:
                        self._known = {self._salt: self._own}
                    key = self._known[salt] = AESGCM(derive(self._data_key, _PURPOSE, salt))
            nonce = stored[_HEAD - _NONCE : _HEAD]
            return key.decrypt(nonce, stored[start:], mark + beside), beside[_LENGTH:]
        except (InvalidTag, ValueError):
            raise Corrupt(
                "Encrypted data is damaged, or was encrypted for another database. Restore it from a backup."
            ) from None


class OpenDatabase:
    """An open database, and the cipher of what is stored in it and beside it; None where that is not encrypted."""

    __slots__ = ("cipher", "database")

    def __init__(self, database: Database, cipher: Cipher | None):
        self.database = database
        self.cipher = cipher


async def open_stored(
    settings: Settings, *, url: str = "", env: Env = REAL, max_bytes: int | None = None
) -> OpenDatabase:
    """Open the database of the settings, encrypted where they name a master key.

    SetupError where it is encrypted and the key is missing or another one.
    """
    place = url or database_url(settings)
    inner = await open_database(place, env=env, max_bytes=max_bytes or settings.storage.max_bytes)
    try:
        master_keys = MasterKeys(settings.storage.seal, place, EnvironmentVault())
        cipher = await load_cipher(inner, master_keys, env)
    except BaseException:
        await inner.aclose()
        raise
    return OpenDatabase(inner if cipher is None else encrypt_database(inner, cipher), cipher)


async def load_cipher(database: Database, master_keys: MasterKeys, env: Env) -> DataCipher | None:
    """The cipher of a database; one without a data key gets it where the operator named a master key."""
    row = await database.one("SELECT sealed FROM data_keys WHERE id = ?", _NAME)
    if row is None and not master_keys.is_set:
        return None
    if not master_keys.is_set:
        raise SetupError(
            "This database is encrypted, and no master key is set. Set storage.seal (AGENT3_STORAGE_SEAL) "
            "to env:NAME, file:PATH or keyring:NAME, where the key is. Without it, messages, jobs and "
            "results cannot be read."
        )
    keys = await master_keys.keys()
    if row is None:
        row = await _make(database, keys[0], env)
    try:
        key, _, form = unseal(keys, row["sealed"], f"data key {_NAME}").partition(" ")
        if form != _STRICT:
            log.info("this database was used before it was encrypted, so unencrypted contents in it are still read")
        return DataCipher(bytes.fromhex(key), strict=form == _STRICT)
    except SetupError:
        raise SetupError(
            "This database is encrypted with a different master key than that of storage.seal. Restore the "
            "former key, or put it after the new one, separated by a space."
        ) from None


async def _make(database: Database, key: bytes, env: Env) -> Row:
    async def work(tx: Transaction) -> Row:
        # Whether something was there before is sealed with the key: who writes to the database cannot say otherwise.
        held = [await tx.one(f"SELECT 1 AS held FROM {table} LIMIT 1") for table in TABLES]
        text = os.urandom(32).hex() + ("" if any(held) else f" {_STRICT}")
        sealed = seal(key, text, f"data key {_NAME}", env)
        # Of two processes that make it at once one wins, and both use its key.
        sql = "INSERT INTO data_keys (id, sealed, created) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        await tx.run(sql, _NAME, sealed, env.now())
        row = await tx.one("SELECT sealed FROM data_keys WHERE id = ?", _NAME)
        assert row is not None
        return row

    return await database.write(work)
