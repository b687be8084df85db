"""fsync fails with EIO for a while: what was acknowledged is there, what was refused is not, and writing goes on.

The errors are injected by strace into a child that writes; where strace is missing, the fault says so and fails.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from agent3.errors import StorageError
from agent3.storage import open_database
from faults.registry import Result, fault

ROUNDS = 6
WRITES = 40
OPENING = 8  # fsyncs, which opening takes at most; the errors come after them


@fault("broken-fsync")
def broken_fsync(seed: int) -> Result:
    """fsync fails for a while: no acknowledged row is missing, no refused row appears, writing goes on."""
    if shutil.which("strace") is None:
        return {"ok": False, "reason": "strace is not installed; install the package strace"}
    chance = random.Random(seed)
    rounds = [_round(first := OPENING + chance.randint(1, 20), first + chance.randint(0, 8)) for _ in range(ROUNDS)]
    return {
        "ok": all(one["ok"] for one in rounds) and any(one["refused"] for one in rounds),
        "acknowledged": sum(one["acknowledged"] for one in rounds),
        "refused": sum(one["refused"] for one in rounds),
        "failed_rounds": [one for one in rounds if not one["ok"]],
    }


def _round(first: int, last: int) -> Result:
    inject = f"inject=fdatasync,fsync:error=EIO:when={first}..{last}"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", inject]
    with tempfile.TemporaryDirectory(prefix="agent3-broken-fsync-") as folder:
        asyncio.run(_migrated(folder))
        child = [sys.executable, "-m", "faults.broken_fsync", folder]
        done = subprocess.run(
            [*command, *child], cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, timeout=60, check=True
        )
    return {"fsyncs": f"{first}..{last}", **json.loads(done.stdout)}


async def _migrated(folder: str) -> None:
    """The database is made before: each migration is a commit, and there are ever more."""
    await (await open_database(f"sqlite:///{folder}/house.db")).aclose()


async def _write(folder: Path) -> Result:
    database = await open_database(f"sqlite:///{folder}/house.db")
    acknowledged, refused = [], []
    for number in range(WRITES):
        name = f"{number:04}"
        try:
            await database.many("INSERT INTO counters (name, value) VALUES (?, ?)", [(name, number)])
            acknowledged.append(name)
        except StorageError:
            refused.append(name)
    stored = [row["name"] for row in await database.all("SELECT name FROM counters ORDER BY name")]
    check = await database.check(thorough=True)
    await database.aclose()
    ok = stored == acknowledged and check["integrity"] == "ok" and acknowledged[-1] == f"{WRITES - 1:04}"
    return {"ok": ok, "acknowledged": len(acknowledged), "refused": len(refused), "integrity": check["integrity"]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_write(Path(sys.argv[1])))))
