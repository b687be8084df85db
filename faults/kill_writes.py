"""kill -9 while sixteen writers write: what was acknowledged is there afterwards, and nothing is there by halves.

The child writes a line to a witness file after each acknowledged write. The parent kills it at random moments, also
while it opens and migrates, and at the end compares the database with the witness. (A killed process keeps the page
cache of the system, so this speaks of our own order of things and not of power cuts.)
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent3.storage import Transaction, open_database
from faults.registry import Result, fault

KILLS = 20
WRITERS = 16
PUT = "INSERT INTO counters (name, value) VALUES (?, ?)"


@fault("kill-writes")
def kill_writes(seed: int, kills: int = KILLS) -> Result:
    """kill -9 during writes, 20 times: every acknowledged row is there, the file is whole."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="agent3-kill-writes-") as name:
        folder = Path(name)
        for number in range(kills):
            _live_and_die(folder, number, chance)
        return asyncio.run(_compare(folder)) | {"kills": kills}


def _live_and_die(folder: Path, number: int, chance: random.Random) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "faults.kill_writes", str(folder), str(number)],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
    )
    with child:
        try:
            assert child.stdout is not None
            # Every fourth one is killed at any moment of its start; the others after their first acknowledged write.
            if number % 4 == 3:
                time.sleep(chance.uniform(0.0, 0.8))
            elif child.stdout.readline() == b"writing\n":
                time.sleep(chance.uniform(0.0, 0.4))
            else:
                raise RuntimeError(f"Writer {number} ended by itself with code {child.wait(10)}.")
        finally:
            child.kill()


async def _compare(folder: Path) -> Result:
    """The database against the witness."""
    started = time.monotonic()
    database = await open_database(_address(folder))
    try:
        opened = time.monotonic() - started
        stored = {row["name"] for row in await database.all("SELECT name FROM counters")}
        check = await database.check(thorough=True)
        await database.many(PUT, [("still writable", 1)])
    finally:
        await database.aclose()
    # A line without its end was cut off by the kill: its write was acknowledged, but nobody was told of it.
    acknowledged = {line.strip() for line in (folder / "witness").read_text().splitlines(True) if line.endswith("\n")}
    lost = sorted(name for name in acknowledged if not {f"{name}/1", f"{name}/2"} <= stored)
    halves = [name for name in stored if name[:-1] + ("2" if name.endswith("1") else "1") not in stored]
    return {
        "ok": bool(acknowledged) and not lost and not halves and check["integrity"] == "ok",
        "acknowledged": len(acknowledged),
        "lost": len(lost),
        "halves": len(halves),
        "integrity": check["integrity"],
        "reopened_in": round(opened, 3),
    }


def _address(folder: Path) -> str:
    return f"sqlite:///{folder}/house.db"


async def _write_until_killed(folder: Path, number: int) -> None:
    database = await open_database(_address(folder))
    witness = os.open(folder / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def caller(writer: int) -> None:
        for turn in range(1_000_000):
            name = f"{number}-{writer}-{turn}"
            rows = [(f"{name}/1", turn), (f"{name}/2", turn)]
            if turn % 2:
                await database.many(PUT, rows)
            else:
                await database.write(lambda tx, rows=rows: _both(tx, rows))  # type: ignore[misc]
            os.write(witness, f"{name}\n".encode())
            if not turn and not writer:
                print("writing", flush=True)

    await asyncio.gather(*(caller(writer) for writer in range(WRITERS)))


async def _both(tx: Transaction, rows: list[tuple[str, int]]) -> None:
    for row in rows:
        await tx.run(PUT, *row)


if __name__ == "__main__":
    asyncio.run(_write_until_killed(Path(sys.argv[1]), int(sys.argv[2])))
