"""One bit of a database or of an artifact is turned: it is found and named, and what was damaged is never served.

SQLite keeps no checksums of its pages. What its integrity check cannot see, the bytes of a message, the queue finds by
the message's own checksum, and an artifact is known by its hash. Each round turns one bit anywhere in the file.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from agent3.errors import Agent3Error, Corrupt
from agent3.observe.metrics import Metrics
from agent3.queue import Queue, Rules
from agent3.storage import Blobs, Database, open_database
from faults.registry import Result, fault

ROUNDS = 150
MESSAGES = 400
ARTIFACTS = 40
RULES = Rules(bound=100_000, lease=600.0)


@fault("flipped-bit")
def flipped_bit(seed: int, rounds: int = ROUNDS) -> Result:
    """A bit is turned in a database 150 times, and in 40 artifacts: found and named, nothing damaged is served."""
    chance = random.Random(seed)
    logging.getLogger("agent3.queue").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="agent3-flipped-bit-") as name:
        database = asyncio.run(asyncio.wait_for(_in_database(Path(name), chance, rounds), 80))
        artifacts = asyncio.run(asyncio.wait_for(_in_artifacts(Path(name, "artifacts"), chance), 20))
    return {"ok": database["ok"] and artifacts["ok"], "database": database, "artifacts": artifacts}


def flip(file: Path, chance: random.Random) -> None:
    """Turn one bit."""
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


async def _in_database(folder: Path, chance: random.Random, rounds: int) -> Result:
    whole, file = folder / "whole.db", folder / "flipped.db"
    known = await _filled(whole, chance)
    found: Counter[str] = Counter()
    for _ in range(rounds):
        for tail in ("-wal", "-shm"):
            file.with_name(file.name + tail).unlink(missing_ok=True)
        shutil.copyfile(whole, file)
        flip(file, chance)
        found.update([await looked_at(file, known)])
    bad = found["served damaged"] + found["served twice"] + found["lost without a word"]
    return {"ok": not bad and sum(found.values()) == rounds and len(found) > 2, "rounds": rounds, **found}


async def _filled(file: Path, chance: random.Random) -> dict[str, bytes]:
    database = await open_database(f"sqlite:///{file}")
    queue = Queue(database, "letters", RULES, metrics=Metrics())
    bodies = [chance.randbytes(chance.randrange(50, 3_000)) for _ in range(MESSAGES)]
    known = {await queue.put(body, context=f"c{n}" if n % 2 else None): body for n, body in enumerate(bodies)}
    await queue.aclose()
    await database.aclose()
    return known


async def looked_at(file: Path, known: dict[str, bytes]) -> str:
    """What became of the damage, in a few words."""
    try:
        database = await open_database(f"sqlite:///{file}")
    except Agent3Error:
        return "not opened"
    try:
        named = (await database.check(thorough=True))["integrity"] != "ok"
        return await _drained(database, known, named=named)
    finally:
        await database.aclose()


async def _drained(database: Database, known: dict[str, bytes], *, named: bool) -> str:
    queue = Queue(database, "letters", RULES, metrics=Metrics())
    served: set[str] = set()
    refused = False
    try:
        while leases := await queue.claim(100):
            if any(known.get(lease.id) != lease.body for lease in leases):
                return "served damaged"
            if served & {
                lease.id for lease in leases
            }:  # an index that no longer fits its table: it would go on for ever
                return "named by the check" if named else "served twice"
            served |= {lease.id for lease in leases}
        buried = bool(await queue.dead())
    except Agent3Error:
        buried, refused = False, True
    finally:
        await queue.aclose()
    if named or refused:
        return "named by the check" if named else "refused"
    if served == set(known):
        return "harmless"
    return "buried" if buried else "lost without a word"


async def _in_artifacts(folder: Path, chance: random.Random) -> Result:
    blobs = Blobs(folder)
    stored = {await blobs.put(data): data for data in (chance.randbytes(5_000) for _ in range(ARTIFACTS))}
    hurt = set(chance.sample(sorted(stored), ARTIFACTS // 2))
    for file in folder.rglob("*"):
        if file.name in hurt:
            flip(file, chance)
    told = {name: await _got(blobs, name) for name in stored}
    faults = {
        "served_damaged": sum(isinstance(told[name], bytes) for name in hurt),
        "not_named": sum(name not in str(told[name]) for name in hurt),
        "whole_and_not_served": sum(told[name] != stored[name] for name in stored.keys() - hurt),
        "not_mended_by_storing_again": sum([await blobs.put(stored[name]) != name for name in hurt]),
    }
    healed = [await _got(blobs, name) == stored[name] for name in hurt]
    return {"ok": all(healed) and not any(faults.values()), "flipped": len(hurt), **faults}


async def _got(blobs: Blobs, name: str) -> bytes | str:
    try:
        return await blobs.get(name)
    except Corrupt as error:
        return error.message
