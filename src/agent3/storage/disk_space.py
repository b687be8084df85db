"""Room for a SQLite database: its ceiling, and what is kept back above it and on the disk for writes that free some.

A full database can be emptied only by writing to it. So a file of some megabytes lies beside it, which is emptied when
the disk is full and filled again when there is room; while it is empty, only writes that free room are let in. Whether
it is empty is read from the file itself: the processes that share a database need not tell each other.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from agent3.observe.logs import get as logger

__all__ = ["RESERVE", "Room"]

log = logger("storage")

RESERVE = 8 * 1024**2
"""Bytes on the disk: the log grows to 4 MiB before its pages go into the file, which may grow by as much."""
ABOVE_CEILING = 1024**2
_SLACK = 1024**2


class Room:
    """The room of one database file; of one in memory there is only the ceiling. For the one thread that writes."""

    def __init__(self, path: Path | None, max_bytes: int):
        self._max_bytes = max_bytes
        self._page = 4_096
        self._reserve = None if path is None else path.with_name(f"{path.name}-reserve")

    def prepare(self, connection: sqlite3.Connection, patiently: Callable[[Callable[[], int]], int]) -> None:
        """Set the ceiling of a new connection."""
        self._page = patiently(lambda: int(connection.execute("PRAGMA page_size").fetchone()[0]))
        patiently(lambda: self._set_ceiling(connection, self._max_bytes))

    def keep_back(self) -> None:
        """Take the reserve if the disk has room for it. Where it never had, all is written until the disk is full."""
        if self._reserve is None:
            return
        known = self._reserve.exists()
        if self._take(self._reserve):
            return
        log.warning("%s: the disk has no room to keep %d MiB back", self._reserve, RESERVE // 1024**2)
        if not known:
            self._reserve.unlink(missing_ok=True)

    def is_short(self) -> bool:
        """Whether the reserve is in use, and cannot be had back yet."""
        if self._reserve is None:
            return False
        try:
            if self._reserve.stat().st_size >= RESERVE:
                return False
        except OSError:  # there never was one
            return False
        return not self._take(self._reserve)

    @contextlib.contextmanager
    def all_of_it(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Let the connection use what is kept back: above the ceiling for as long as this lasts, on the disk until
        there is room again.
        """
        if self._reserve is not None and _free(self._reserve) < _SLACK:
            self._give(self._reserve)
        # A connection that the disk failed under is replaced meanwhile: nothing is to be done for it.
        with contextlib.suppress(sqlite3.Error):
            self._set_ceiling(connection, self._max_bytes + ABOVE_CEILING)
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._set_ceiling(connection, self._max_bytes)  # or the pages that there are, if they are more

    def _set_ceiling(self, connection: sqlite3.Connection, size: int) -> int:
        return int(connection.execute(f"PRAGMA max_page_count = {max(1, size // self._page)}").fetchone()[0])

    def _give(self, reserve: Path) -> None:
        with contextlib.suppress(OSError):
            if reserve.stat().st_size:
                os.truncate(reserve, 0)
                log.warning("%s: the disk is full; only what frees room is written until there is some", reserve.parent)

    def _take(self, reserve: Path) -> bool:
        try:
            handle = os.open(reserve, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return False
        try:
            return _allocated(handle, _free(reserve))
        finally:
            os.close(handle)


def _allocated(handle: int, free: int) -> bool:
    """Whether the file has all its bytes now, really and not as a hole. If not, it takes none."""
    if (size := os.fstat(handle).st_size) >= RESERVE:
        return True
    try:
        if free >= RESERVE - size + _SLACK:
            _fill(handle)
            return True
    except OSError:
        pass
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
    return False


def _fill(handle: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, RESERVE)
        return
    for _ in range(RESERVE // 65_536):  # bytes that no file system packs into nothing
        os.write(handle, os.urandom(65_536))


def _free(place: Path) -> int:
    """Bytes that the disk has free for us."""
    try:
        found = os.statvfs(place.parent) if hasattr(os, "statvfs") else None
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize if found is not None else 2**62
