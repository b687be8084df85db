"""Blobs: bytes kept under their own SHA-256, in files or in memory.

Writing the same bytes twice keeps one copy. Who may read a blob, and for how long it lives, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import tempfile
import time
from pathlib import Path

from agent3.errors import Corrupt, NotFound, RequestError, StorageError, StorageFull

__all__ = ["Blobs"]

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
MEMORY_BYTES = 256 * 1024 * 1024


class Blobs:
    """A store of immutable bytes; ``folder=None`` keeps up to ``memory_bytes`` of them in memory instead.

    A blob is durable when ``put`` returns, and ``get`` never returns bytes that do not match their name. Every method
    is safe to use from several tasks, threads and processes at once.
    """

    def __init__(self, folder: Path | None, *, memory_bytes: int = MEMORY_BYTES):
        self.folder = folder
        self._held: dict[str, bytes] = {}
        self._put: dict[str, float] = {}
        self._room = memory_bytes

    async def put(self, data: bytes) -> str:
        """Keep the bytes; their SHA-256 in hexadecimal. StorageFull when there is no room."""
        if self.folder is None:
            return self._hold(hashlib.sha256(data).hexdigest(), data)
        return await asyncio.to_thread(_save, self.folder, data)

    async def get(self, sha256: str) -> bytes:
        """The bytes of that hash. NotFound when absent, Corrupt when what is stored no longer matches."""
        if self.folder is None:
            data = self._held.get(_checked(sha256))
        else:
            data = await asyncio.to_thread(_load, _path(self.folder, sha256))
        if data is None:
            raise NotFound(f"Blob {sha256} is not stored here. It may have expired.")
        return data

    async def exists(self, sha256: str) -> bool:
        """Whether a blob of that hash is stored; its content is not looked at."""
        if self.folder is None:
            return _checked(sha256) in self._held
        return await asyncio.to_thread(_path(self.folder, sha256).is_file)

    async def delete(self, sha256: str) -> bool:
        """Forget the blob; whether there was one."""
        if self.folder is None:
            data = self._held.pop(_checked(sha256), None)
            self._put.pop(sha256, None)
            self._room += len(data or b"")
            return data is not None
        return await asyncio.to_thread(_remove, _path(self.folder, sha256))

    async def discard(self, sha256: str, unused: float) -> bool:
        """Forget the blob if nobody has put it for ``unused`` seconds; whether it is gone.

        However close together, a ``put`` that returned afterwards has its bytes.
        """
        if self.folder is not None:
            return await asyncio.to_thread(_discard, _path(self.folder, sha256), unused)
        if time.time() - self._put.get(_checked(sha256), 0.0) < unused:
            return False
        return await self.delete(sha256)

    def _hold(self, sha256: str, data: bytes) -> str:
        if sha256 not in self._held:
            if len(data) > self._room:
                raise StorageFull("The blob store in memory is full. Delete blobs, or give it a folder.")
            self._held[sha256] = bytes(data)
            self._room -= len(data)
        self._put[sha256] = time.time()
        return sha256


def _checked(sha256: str) -> str:
    """The hash itself: nothing else can become a part of a path."""
    if not _SHA256.fullmatch(sha256):
        raise RequestError("That is not the name of a blob. A blob is named by its SHA-256 in 64 hexadecimal digits.")
    return sha256


def _path(folder: Path, sha256: str) -> Path:
    _checked(sha256)
    return folder / sha256[:2] / sha256[2:4] / sha256


def _save(folder: Path, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    path = _path(folder, sha256)
    try:
        # A damaged copy is written anew, so that storing the bytes again is the remedy.
        if not _intact(path, data):
            _make_folder(path.parent)
            _write(path, data)
    except OSError as error:
        raise _translated(error, sha256) from error
    return sha256


def _intact(path: Path, data: bytes) -> bool:
    try:
        os.utime(path)  # before anything else: from here on ``_discard`` sees that it is wanted
        return path.read_bytes() == data
    except FileNotFoundError:
        return False


def _make_folder(folder: Path) -> None:
    """Make the folder and write its name down in every parent that is new: a rename is no safer than its folder."""
    missing = [folder, *folder.parents]
    missing = missing[: next((i for i, one in enumerate(missing) if one.exists()), len(missing))]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for one in missing:
        _sync_folder(one.parent)


def _write(path: Path, data: bytes) -> None:
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


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows has no handle for a folder and writes its entries through
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _load(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _translated(error, path.name) from error
    if hashlib.sha256(data).hexdigest() != path.name:
        raise Corrupt(f"Blob {path.name} is damaged: its content no longer matches its hash. Store it again.")
    return data


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _translated(error, path.name) from error
    return True


def _discard(path: Path, unused: float) -> bool:
    """Take the file aside and only then look when it was last put: nobody can put it in between."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        path.rename(aside)
        if time.time() - aside.stat().st_mtime < unused:
            aside.replace(path)
            return False
        aside.unlink()
    except FileNotFoundError:
        return True
    except OSError as error:
        raise _translated(error, path.name) from error
    return True


def _translated(error: OSError, sha256: str) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"No room on disk for blob {sha256}. Free some space and store it again.")
    return StorageError(f"Blob {sha256}: {error.strerror or type(error).__name__}.")
