"""Blobs: bytes stored under their own SHA-256, in files or in memory.

Storing the same bytes twice keeps one copy. Who may read a blob and how long it lives is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from agent3.errors import Corrupt, NotFound, RequestError, StorageError, StorageFull

__all__ = ["BlobStore", "Blobs", "check_hash"]

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
MEMORY_BYTES = 256 * 1024 * 1024


class BlobStore(Protocol):
    """What every store of blobs can do; ``Blobs`` says what it promises."""

    async def put(self, data: bytes) -> str: ...

    async def get(self, sha256: str) -> bytes: ...

    async def exists(self, sha256: str) -> bool: ...

    async def delete(self, sha256: str) -> bool: ...

    async def discard(self, sha256: str, unused: float) -> bool: ...


class Blobs:
    """A store of immutable bytes; ``folder=None`` keeps up to ``memory_bytes`` of them in memory instead.

    A blob is durable when ``put`` returns, and ``get`` never returns bytes that do not match their hash. Every method
    is safe to use from several tasks, threads and processes at once.
    """

    def __init__(self, folder: Path | None, *, memory_bytes: int = MEMORY_BYTES):
        self.folder = folder
        self._memory: dict[str, bytes] = {}
        self._last_put: dict[str, float] = {}
        self._free = memory_bytes

    async def put(self, data: bytes) -> str:
        """Store the bytes; return their SHA-256 in hexadecimal. StorageFull when there is no space."""
        if self.folder is not None:
            return await asyncio.to_thread(_save, self.folder, data)
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 not in self._memory:
            if len(data) > self._free:
                raise StorageFull("The blob store in memory is full. Delete blobs, or use a folder.")
            self._memory[sha256] = bytes(data)
            self._free -= len(data)
        self._last_put[sha256] = time.time()
        return sha256

    async def get(self, sha256: str) -> bytes:
        """The bytes of that hash. NotFound when absent, Corrupt when the stored bytes no longer match."""
        if self.folder is None:
            data = self._memory.get(check_hash(sha256))
        else:
            data = await asyncio.to_thread(_load, _path(self.folder, sha256))
        if data is None:
            raise NotFound(f"Blob {sha256} is not stored. It may have expired.")
        return data

    async def exists(self, sha256: str) -> bool:
        """Whether a blob of that hash is stored; its content is not checked."""
        if self.folder is None:
            return check_hash(sha256) in self._memory
        return await asyncio.to_thread(_path(self.folder, sha256).is_file)

    async def delete(self, sha256: str) -> bool:
        """Delete the blob; return whether it existed."""
        if self.folder is not None:
            return await asyncio.to_thread(_delete, _path(self.folder, sha256))
        data = self._memory.pop(check_hash(sha256), None)
        self._last_put.pop(sha256, None)
        self._free += len(data or b"")
        return data is not None

    async def discard(self, sha256: str, unused: float) -> bool:
        """Delete the blob if it was not put for ``unused`` seconds; return whether it is gone.

        However close together, a ``put`` that returns afterwards has its bytes stored.
        """
        if self.folder is not None:
            return await asyncio.to_thread(_discard, _path(self.folder, sha256), unused)
        if time.time() - self._last_put.get(check_hash(sha256), 0.0) < unused:
            return False
        return await self.delete(sha256)


def check_hash(sha256: str) -> str:
    """The hash itself; only a hash may become part of a path."""
    if not _SHA256.fullmatch(sha256):
        raise RequestError("Invalid name of a blob: it must be its SHA-256 as 64 hexadecimal digits.")
    return sha256


def _path(folder: Path, sha256: str) -> Path:
    check_hash(sha256)
    return folder / sha256[:2] / sha256[2:4] / sha256


def _save(folder: Path, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    path = _path(folder, sha256)
    with _translate_errors(sha256):
        try:
            os.utime(path)  # before reading: from here on ``_discard`` sees that the blob is in use
            intact = path.read_bytes() == data
        except FileNotFoundError:
            intact = False
        if intact:  # a damaged copy is overwritten below: storing the bytes again is the remedy
            return sha256
        # A rename is only as durable as its folder, so every new folder is synced into its parent.
        new = [parent for parent in (path.parent, *path.parent.parents) if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for parent in new:
            _sync_folder(parent.parent)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    return sha256


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no handle for a folder and writes its entries through
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _load(path: Path) -> bytes | None:
    with _translate_errors(path.name):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    if hashlib.sha256(data).hexdigest() != path.name:
        raise Corrupt(f"Blob {path.name} is damaged: its content does not match its hash. Store it again.")
    return data


def _delete(path: Path) -> bool:
    with _translate_errors(path.name):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True


def _discard(path: Path, unused: float) -> bool:
    # Rename first and look at the time afterwards: between the two, no ``put`` can touch the file.
    aside = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    with _translate_errors(path.name):
        try:
            path.rename(aside)
            if time.time() - aside.stat().st_mtime < unused:
                aside.replace(path)
                return False
            aside.unlink()
        except FileNotFoundError:
            return True
    return True


@contextmanager
def _translate_errors(sha256: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"No disk space left for blob {sha256}. Free some space and store it again.") from error
        raise StorageError(f"Blob {sha256}: {error.strerror or type(error).__name__}.") from error
