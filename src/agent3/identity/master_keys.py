"""The master keys, which seal the secrets that are kept in a database.

They come from a setting (``env:NAME``, ``file:PATH`` or ``keyring:NAME``), or from a file beside the embedded database
that is made when it is first needed, and never where the database already holds what a lost one sealed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
import sys
from pathlib import Path

from agent3.errors import SetupError
from agent3.identity.secrets import Vault
from agent3.storage.connect import sqlite_path
from agent3.storage.sqlite import count_rows

__all__ = ["MasterKeys"]

_SHORTEST = 16
_KEYRING_SECONDS = 20.0
_SEALED = ("kept_secrets", "sign_ins", "own_keys")
"""The tables whose rows are lost with the key."""


class MasterKeys:
    """The keys for one database. ``reference`` is that of a secret with several keys, separated by spaces.

    A file is read again when it has changed, so that running gateways follow ``agent3 vault rotate``.
    """

    def __init__(self, reference: str, database: str, vault: Vault):
        self._reference = reference
        self._url = database
        self._vault = vault
        self._keys: list[bytes] = []
        self._read: tuple[int, int, int] | None = None
        """What the file was when it was read: inode, time and size."""

    @property
    def is_set(self) -> bool:
        """Whether the operator named a key, rather than leaving it to the file beside the database."""
        return bool(self._reference)

    @property
    def file(self) -> Path | None:
        """The file that holds the keys, if one does."""
        if self._reference:
            scheme, _, place = self._reference.partition(":")
            return Path(place).expanduser() if scheme == "file" and place else None
        path = None if not self._url.startswith("sqlite:") else sqlite_path(self._url)
        return None if path is None else path.with_name(f"{path.name}.seal")

    def check_file(self) -> None:
        """SetupError where the file beside the database is lost: a new key would open nothing that is sealed."""
        file = self.file
        if (
            self._reference
            or file is None
            or file.exists()
            or not (count := count_rows(sqlite_path(self._url), _SEALED))
        ):
            return
        raise SetupError(
            f"The master key file {file} is missing, and {count} values in the database are encrypted with it. Put the "
            "file back (a backup does not contain it). To give up those secrets and keys, make a new one: "
            f"(umask 077; openssl rand -hex 32 > {file})"
        )

    async def keys(self) -> list[bytes]:
        """The newest first; SetupError where there are none and no place to make one. The list is the same one each
        time, also after a change."""
        file = self.file
        if file is not None:
            self._read_file(file)
        elif not self._keys:
            self._keys[:] = await self._load()
        return self._keys

    def add(self) -> None:
        """Put a new key before the others in the file; SetupError where the keys are not in a file."""
        self._rewrite([secrets.token_hex(32), *self._words()])

    def drop_former(self) -> None:
        """Leave only the newest key in the file."""
        self._rewrite(self._words()[:1])

    async def _load(self) -> list[bytes]:
        if self._reference:
            scheme, _, name = self._reference.partition(":")
            text = (
                await _ask_keyring(name) if scheme == "keyring" else (await self._vault.get(self._reference)).reveal()
            )
            return _parse(text)
        if self._url.startswith(("sqlite:", ":memory:")):
            return [secrets.token_bytes(32)]  # in memory: what is sealed ends with the process
        raise SetupError(
            "Gateways on PostgreSQL need one shared master key. Set AGENT3_STORAGE_SEAL to env:NAME, "
            "file:PATH or keyring:NAME on each of them, with the same key."
        )

    def _read_file(self, file: Path) -> None:
        try:
            if not self._reference and not file.exists():
                self.check_file()
                _make_key(file)
            found = file.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._read and self._keys:
                return
            if self._reference and os.name != "nt" and stat.S_IMODE(found.st_mode) & 0o077:
                raise SetupError(
                    f"Other users of this machine can read the master key in {file}. Run: chmod 600 {file}"
                )
            text = file.read_text(encoding="utf-8")
            self._keys[:] = _parse(text) if self._reference else [bytes.fromhex(word) for word in text.split()]
            if not self._keys:
                raise ValueError("it is empty")
            self._read = seen
        except FileNotFoundError:
            raise SetupError(
                f"The master key file {file} does not exist. Restore it, or make one for a new database: "
                f"(umask 077; openssl rand -hex 32 > {file})"
            ) from None
        except (OSError, ValueError) as error:
            raise SetupError(f"Cannot read the master key from {file}: {error}.") from None

    def _words(self) -> list[str]:
        file = self.file
        if file is None:
            raise SetupError(
                "The master key is not in a file, so no new one is made here. Put a new key before the old "
                "one in the place that storage.seal names, separated by a space, restart the gateways, and "
                "run this again."
            )
        self._read_file(file)
        return file.read_text(encoding="utf-8").split()

    def _rewrite(self, words: list[str]) -> None:
        file = self.file
        assert file is not None
        draft = _write_draft(file, "\n".join(words))
        try:
            draft.replace(file)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise SetupError(f"Cannot write the master key to {file}: {error}.") from None


def _parse(text: str) -> list[bytes]:
    keys = [word.encode() for word in text.split()]
    if not keys or min(map(len, keys)) < _SHORTEST:
        raise SetupError(f"The secret of storage.seal is too short. Use at least {_SHORTEST} characters.")
    return keys


def _make_key(file: Path) -> None:
    """A new key in a new file. Of two processes that make it at once, one wins."""
    draft = _write_draft(file, secrets.token_hex(32))
    try:
        os.link(draft, file)  # unlike a rename, it never replaces the key of a faster process
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _write_draft(file: Path, text: str) -> Path:
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
    except OSError as error:
        raise SetupError(f"Cannot write the master key beside {file}: {error}.") from None
    return draft


async def _ask_keyring(name: str) -> str:
    """The secret of a name in the keyring of this system, by the program that comes with it."""
    if sys.platform == "darwin":
        words = ["security", "find-generic-password", "-s", "agent3", "-a", name, "-w"]
        how = f"security add-generic-password -s agent3 -a {name} -w"
    else:
        words = ["secret-tool", "lookup", "service", "agent3", "name", name]
        how = f"secret-tool store --label=agent3 service agent3 name {name}"
    if shutil.which(words[0]) is None:
        raise SetupError(
            f"storage.seal names a secret in the keyring, but the program {words[0]} is not installed. "
            "Install it, or use env:NAME or file:PATH."
        )
    asking = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_KEYRING_SECONDS):
            output, _ = await asking.communicate()
    except TimeoutError:
        asking.kill()
        await asking.wait()
        raise SetupError(f"The keyring did not answer within {_KEYRING_SECONDS:g} s. Unlock it first.") from None
    if asking.returncode or not output.strip():
        raise SetupError(f"The keyring has no secret {name!r} for agent3. Store one: {how}")
    return output.decode("utf-8", "replace").strip()
