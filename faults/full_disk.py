"""No room left: writes are refused with a clear word, reads and acknowledgements go on, and it recovers by itself.

Once with the page ceiling of the database (``storage.max_bytes``), once on a disk that is really full: a small tmpfs
in a mount namespace of its own, where the system lets us have one. There a file of somebody else takes the last room,
and is deleted later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from agent3.errors import StorageError, StorageFull
from agent3.observe.metrics import Metrics
from agent3.queue import Queue, Rules
from agent3.storage import Database, open_database
from faults.registry import Result, fault

DISK = "32m"
CEILING = 4 * 1024**2
LARGE = b"x" * 4_000
WHILE_FULL = 150
RULES = Rules(bound=1_000_000)


@fault("full-disk")
def full_disk(_: int) -> Result:
    """A full database and a full disk: puts are refused clearly, reads and acks go on, no restart is needed."""
    with tempfile.TemporaryDirectory(prefix="agent3-full-disk-") as name:
        ceiling = asyncio.run(asyncio.wait_for(filled(Path(name), max_bytes=CEILING), 40))
        disk = _on_a_small_disk(Path(name, "disk"))
    return {"ok": ceiling["ok"] and disk["ok"], "ceiling": ceiling, "disk": disk}


def _on_a_small_disk(folder: Path) -> Result:
    """The same in a child, on a tmpfs that goes when it ends."""
    folder.mkdir()
    mount = f"mount -t tmpfs -o size={DISK} tmpfs {folder} && exec {sys.executable} -m faults.full_disk {folder}"
    if shutil.which("unshare") is None:
        return {"ok": True, "left_out": "this system has no unshare to make a small disk with"}
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        timeout=60,
        check=False,
    )
    if not done.stdout:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        return {"ok": b"Traceback" not in done.stderr, "left_out": f"no small disk here: {told[-1] if told else ''}"}
    return dict(json.loads(done.stdout))


async def filled(folder: Path, *, max_bytes: int | None = None) -> Result:
    """Fill it, use it while it is full, make room, and look whether everything is there."""
    database = await open_database(f"sqlite:///{folder}/house.db", max_bytes=max_bytes)
    queue = Queue(database, "full", RULES, metrics=Metrics())
    try:
        return await _story(folder, database, queue, crowded=max_bytes is None)
    finally:
        await queue.aclose()
        await database.aclose()


async def _story(folder: Path, database: Database, queue: Queue, *, crowded: bool) -> Result:
    accepted = {await queue.put(LARGE) for _ in range(200)}
    if crowded:
        _crowd(folder / "somebody")
    word = await _until_refused(queue, accepted)
    refused = [await _try(queue) for _ in range(20)]
    seen = (await queue.depth()).live
    acked = await _acked(queue, WHILE_FULL)
    going_on = len(acked)
    (folder / "somebody").unlink(missing_ok=True)
    acked |= await _acked(queue, 100)
    later = {one for one in [await _try(queue) for _ in range(20)] if one is not None}
    acked |= await _acked(queue, 1_000_000)
    check = await database.check(thorough=True)
    faults = {
        "puts_not_refused": sum(one is not None for one in refused),
        "acks_failed_while_full": WHILE_FULL - going_on,
        "not_seen_while_full": len(accepted) - seen,
        "puts_refused_with_room": 20 - len(later),
        "lost_or_made_up": len((accepted | later) ^ acked),
    }
    ok = not any(faults.values()) and check["integrity"] == "ok" and isinstance(word, StorageFull)
    return {
        "ok": ok,
        "accepted": len(accepted),
        "acked_while_full": going_on,
        "word": f"{word.code}: {word.message}",
        **faults,
    }


def _crowd(file: Path) -> None:
    """Take all the room that is left, as somebody else would."""
    with file.open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while True:
            handle.write(bytes(4_096))


async def _until_refused(queue: Queue, accepted: set[str]) -> StorageError:
    while True:
        try:
            accepted.add(await queue.put(LARGE))
        except StorageError as error:
            return error


async def _try(queue: Queue) -> str | None:
    try:
        return await queue.put(LARGE)
    except StorageError:
        return None


async def _acked(queue: Queue, most: int) -> set[str]:
    done: set[str] = set()
    with contextlib.suppress(StorageError):
        while len(done) < most and (leases := await queue.claim(min(10, most - len(done)))):
            done |= {lease.id for lease in leases if await queue.ack(lease)}
    return done


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(filled(Path(sys.argv[1])), 50))))
