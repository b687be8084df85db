"""The master keys, which seal the secrets that are kept in a database.

They come from a setting, or from a file beside the embedded database that is made when it is first needed. What is
sealed with them is not known here.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agent3.errors import SetupError
from agent3.identity.secrets import Vault
from agent3.storage.connect import sqlite_path

__all__ = ["MasterKeys"]

_SHORTEST = 16


class MasterKeys:
    """The keys for one database. ``reference`` is that of a secret with several keys, separated by spaces."""

    def __init__(self, reference: str, database: str, vault: Vault):
        self._reference = reference
        self._url = database
        self._vault = vault
        self._keys: list[bytes] = []

    async def keys(self) -> list[bytes]:
        """The newest first; SetupError where there are none and no place to make one."""
        if self._keys:
            return self._keys
        if self._reference:
            keys = [key.encode() for key in (await self._vault.get(self._reference)).reveal().split()]
            if not keys or min(map(len, keys)) < _SHORTEST:
                raise SetupError(f"The secret of storage.seal is too short. Use {_SHORTEST} characters or more.")
        elif self._url.startswith(("sqlite:", ":memory:")):
            path = None if self._url == ":memory:" else sqlite_path(self._url)
            keys = [secrets.token_bytes(32) if path is None else _read_key(path.with_name(f"{path.name}.seal"))]
        else:
            raise SetupError(
                "Gateways on PostgreSQL need one shared key to seal what is kept. Set AGENT3_STORAGE_SEAL to env:NAME "
                "on each of them, with the same value in NAME."
            )
        self._keys = keys
        return keys


def _read_key(file: Path) -> bytes:
    """The key in a file, which is made if it does not exist. Of two processes that make it at once, one wins."""
    try:
        if not file.exists():
            draft = file.with_name(f"{file.name}.{os.getpid()}")
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as new:
                new.write(secrets.token_hex(32))
            try:
                os.link(draft, file)  # unlike a rename, it never replaces the key of a faster process
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        return bytes.fromhex(file.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise SetupError(f"The key that seals secrets cannot be read from {file}: {error}.") from None
