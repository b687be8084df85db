"""kill -9 in the middle of migrations: the database always opens again, ends at the newest shape, and keeps every row.

A large database of the first version is copied for each round. One process, or two at once, migrate it and are killed
at a random moment; whatever they leave is looked at with SQLite itself, and opened again until it is done.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from agent3.storage import open_database
from agent3.storage.migration import load_migrations
from faults.registry import Result, fault

ROUNDS = 30
ROWS = 150_000
TRIES = 40
NEWEST = len(load_migrations())
RECORDS = (
    "CREATE TABLE schema_migrations (version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL,"
    " applied DOUBLE PRECISION NOT NULL)"
)


@fault("kill-migrations")
def kill_migrations(seed: int, rounds: int = ROUNDS, rows: int = ROWS) -> Result:
    """kill -9 while a large database of the first version is migrated, 30 times: it ends whole, with every row."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="agent3-kill-migrations-") as name:
        folder = Path(name)
        old = folder / "old.db"
        expected = _first_version(old, rows)
        seconds = _measured(folder, old)
        wrong: Counter[str] = Counter()
        left: Counter[str] = Counter()
        kills = 0
        for number in range(rounds):
            file = folder / "live.db"
            _fresh(old, file)
            kills += _round(file, 1 + number % 3 // 2, seconds, expected, chance, wrong, left)
        return {
            "ok": not wrong and kills >= rounds // 2 and len(left) > 1,
            "kills": kills,
            "rows": sum(expected.values()),
            "whole_migration": round(seconds, 2),
            "left_at": dict(sorted(left.items())),
            "wrong": dict(wrong),
        }


def _round(
    file: Path,
    processes: int,
    seconds: float,
    expected: dict[str, int],
    chance: random.Random,
    wrong: Counter[str],
    left: Counter[str],
) -> int:
    """Open and kill until it is done; how often it was killed in the middle."""
    kills = 0
    for _ in range(TRIES):
        # After three kills it is let alone: a round must end.
        patience = chance.uniform(0.0, 1.1 * seconds) if kills < 3 else 60.0
        killed, failed = _live_and_die(file, processes, patience)
        version, faults = _looked_at(file, expected)
        wrong.update(faults + (["did not open"] if failed else []))
        if killed:
            left[f"version {version}"] += 1
            kills += 1
        if version == NEWEST and not killed:
            break
    else:
        wrong["never done"] += 1
    if asyncio.run(_opened(file)) != "ok":
        wrong["not whole at the end"] += 1
    return kills


def _live_and_die(file: Path, processes: int, patience: float) -> tuple[bool, bool]:
    """Whether they were killed before their end, and whether one ended badly by itself."""
    command = [sys.executable, "-m", "faults.kill_migrations", str(file)]
    here = Path(__file__).parent.parent
    children = [subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()  # it is about to open
        until = time.monotonic() + patience
        while time.monotonic() < until and any(child.poll() is None for child in children):
            time.sleep(0.001)
        ends = [child.poll() for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return None in ends, any(end not in (None, 0) for end in ends)


def _looked_at(file: Path, expected: dict[str, int]) -> tuple[int, list[str]]:
    """The version that a killed one left, and what is wrong with it, as SQLite itself sees it."""
    with closing(sqlite3.connect(file)) as connection:
        versions = [row[0] for row in connection.execute("SELECT version FROM schema_migrations ORDER BY version")]
        counts = {table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in expected}
        sound = connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
    faults = [] if sound else ["damaged"]
    if counts != expected:
        faults.append("rows lost or doubled")
    if versions != list(range(1, len(versions) + 1)):
        faults.append("a migration left out")
    return len(versions), faults


async def _opened(file: Path) -> str:
    database = await open_database(f"sqlite:///{file}")
    try:
        check = await database.check(thorough=True)
        return str(check["integrity"]) if check["schema"] == NEWEST else f"version {check['schema']}"
    finally:
        await database.aclose()


def _measured(folder: Path, old: Path) -> float:
    """Seconds that a migration takes which nobody disturbs, without the start of its process."""
    file = folder / "live.db"
    _fresh(old, file)
    started = time.monotonic()
    asyncio.run(_migrate(file))
    return time.monotonic() - started


def _fresh(old: Path, file: Path) -> None:
    for tail in ("-wal", "-shm"):
        file.with_name(file.name + tail).unlink(missing_ok=True)
    shutil.copyfile(old, file)


def _first_version(file: Path, rows: int) -> dict[str, int]:
    """A database as the first migration made it, with many rows; how many in each table."""
    first = load_migrations()[0]
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(RECORDS)
        for statement in first.statements("sqlite"):
            connection.execute(statement)
        connection.execute("INSERT INTO schema_migrations VALUES (1, ?, ?, 0)", (first.name, first.checksum))
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO jobs (id, owner, status, turn, call, node, lease, expires)"
            " VALUES (?, 'me', 'working', 1, ?, 'n', 1.0, ?)",
            ((f"job{number}", b"x" * 100, float(number)) for number in range(rows)),
        )
        connection.executemany(
            "INSERT INTO job_aliases (owner, alias, job) VALUES ('me', ?, ?)",
            ((f"alias{number}", f"job{number}") for number in range(rows)),
        )
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = DELETE")
    return {"jobs": rows, "job_aliases": rows}


async def _migrate(file: Path) -> None:
    database = await open_database(f"sqlite:///{file}")
    await database.aclose()


if __name__ == "__main__":
    print("opening", flush=True)
    asyncio.run(_migrate(Path(sys.argv[1])))
