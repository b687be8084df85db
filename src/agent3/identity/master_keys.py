"""``Seals``: where the keys come from that seal what is kept secret in a database.

Those of a setting, or of a file beside the embedded database that is made at the first need. What is sealed with them,
and why, is not known here.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agent3.errors import SetupError
from agent3.identity.secrets import Vault
from agent3.storage.connect import sqlite_path

__all__ = ["MasterKeys"]

_LEAST = 16


class MasterKeys:
    """The keys that seal what is kept: those of a setting, else of a file beside the embedded database."""

    def __init__(self, reference: str, database: str, vault: Vault):
        self._reference = reference
        self._url = database
        self._vault = vault
        self._found: list[bytes] = []

    async def keys(self) -> list[bytes]:
        """The newest first; SetupError where there are none and no place to make one."""
        if not self._found:
            self._found = await self._named() if self._reference else [self._of_file()]
        return self._found

    async def _named(self) -> list[bytes]:
        keys = [one.encode() for one in (await self._vault.get(self._reference)).reveal().split()]
        if not keys or min(map(len, keys)) < _LEAST:
            raise SetupError(f"The secret of storage.seal is too short. Take one of {_LEAST} characters or more.")
        return keys

    def _of_file(self) -> bytes:
        if not self._url.startswith(("sqlite:", ":memory:")):
            raise SetupError(
                "Gateways on PostgreSQL need one key to seal what they keep. Set AGENT3_STORAGE_SEAL to env:NAME on "
                "each of them, with the same value in NAME."
            )
        path = None if self._url == ":memory:" else sqlite_path(self._url)
        return secrets.token_bytes(32) if path is None else _key_in(path.with_name(f"{path.name}.seal"))


def _key_in(file: Path) -> bytes:
    """The key in a file, which is made where there is none; of two who make it at once one wins."""
    try:
        if not file.exists():
            _make(file)
        return bytes.fromhex(file.read_text(encoding="ascii"))
    except (OSError, ValueError) as wrong:
        raise SetupError(f"The key that seals secrets cannot be read from {file}: {wrong}.") from None


def _make(file: Path) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as new:
        new.write(secrets.token_hex(32))
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # somebody else was first, and theirs counts
    finally:
        draft.unlink()
