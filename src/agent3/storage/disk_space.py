"""Disk space for a SQLite database: a ceiling for its size, and a reserve for the writes that free space.

A full database can be emptied only by writing to it. So a file of some megabytes lies beside the database: it is
emptied when the disk is full and filled again when there is space. While it is empty, only writes that free space are
let in. Whether it is empty is read from the file itself, so that processes sharing a database need not talk.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from agent3.observe.logs import get as logger

__all__ = ["RESERVE", "DiskSpace"]

log = logger("storage")

RESERVE = 8 * 1024**2
"""Bytes of the reserve: the WAL grows to 4 MiB before its pages go into the file, which may grow by as much."""
ABOVE_CEILING = 1024**2
_SLACK = 1024**2


class DiskSpace:
    """The space of one database file; a database in memory has only the ceiling. For the one thread that writes."""

    def __init__(self, path: Path | None, max_bytes: int):
        self._max_bytes = max_bytes
        self._page_size = 4_096
        self._reserve = None if path is None else path.with_name(f"{path.name}-reserve")

    def limit(self, connection: sqlite3.Connection, retry: Callable[[Callable[[], int]], int]) -> None:
        """Set the ceiling of a new connection; ``retry`` runs what another process may block for a moment."""
        self._page_size = retry(lambda: int(connection.execute("PRAGMA page_size").fetchone()[0]))
        retry(lambda: self._set_ceiling(connection, self._max_bytes))

    def reserve(self) -> None:
        """Fill the reserve if the disk has space for it. Without one, everything is written until the disk is full."""
        if self._reserve is None:
            return
        existed = self._reserve.exists()
        if self._fill(self._reserve):
            return
        log.warning("%s: not enough disk space to reserve %d MiB", self._reserve, RESERVE // 1024**2)
        if not existed:
            self._reserve.unlink(missing_ok=True)

    def is_short(self) -> bool:
        """Whether the reserve is in use and cannot be filled again yet."""
        if self._reserve is None:
            return False
        try:
            if self._reserve.stat().st_size >= RESERVE:
                return False
        except OSError:  # there never was one
            return False
        return not self._fill(self._reserve)

    @contextlib.contextmanager
    def use_reserve(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Let the connection use the reserve: above the ceiling within this block, on disk until there is space."""
        if self._reserve is not None and _free_bytes(self._reserve) < _SLACK:
            with contextlib.suppress(OSError):
                if self._reserve.stat().st_size:
                    os.truncate(self._reserve, 0)
                    log.warning("%s: the disk is full; only writes that free space are accepted", self._reserve.parent)
        # A connection under which the disk failed is about to be replaced: its errors do not matter.
        with contextlib.suppress(sqlite3.Error):
            self._set_ceiling(connection, self._max_bytes + ABOVE_CEILING)
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._set_ceiling(connection, self._max_bytes)  # SQLite never sets it below the pages in use

    def _set_ceiling(self, connection: sqlite3.Connection, size: int) -> int:
        return int(connection.execute(f"PRAGMA max_page_count = {max(1, size // self._page_size)}").fetchone()[0])

    def _fill(self, reserve: Path) -> bool:
        """Allocate all bytes of the reserve, not a sparse file; if that fails, leave it empty. Whether it is full."""
        try:
            handle = os.open(reserve, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return False
        try:
            if (size := os.fstat(handle).st_size) >= RESERVE:
                return True
            try:
                if _free_bytes(reserve) >= RESERVE - size + _SLACK:
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(handle, 0, RESERVE)
                    else:
                        for _ in range(RESERVE // 65_536):  # random bytes, which no file system compresses
                            os.write(handle, os.urandom(65_536))
                    return True
            except OSError:
                pass
            with contextlib.suppress(OSError):
                os.ftruncate(handle, 0)
            return False
        finally:
            os.close(handle)


def _free_bytes(path: Path) -> int:
    """Bytes of the disk that this process may still use."""
    try:
        found = os.statvfs(path.parent) if hasattr(os, "statvfs") else None
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize if found is not None else 2**62
