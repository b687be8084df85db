"""SIGTERM while a hundred calls run: each is answered, each is in the ledger, and the process ends well.

The agent writes a line when a call begins, so the signal comes when all of them are under way. Calls that come after
it are refused: at the door, or because there is no door any more, and none of them begins.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from faults._gateway import Gateway, Told, ask, asking, gateway
from faults.registry import Result, fault

CALLS = 100
LATE = 20
AGENT = '''
import asyncio, os
from agent3 import LocalAgent

agent = LocalAgent("Served", agent_id="served")
begun = os.open("begun", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@agent.capability
async def work(name: str, seconds: float) -> str:
    """Works for a while."""
    os.write(begun, f"{name}\\n".encode())
    await asyncio.sleep(seconds)
    return name
'''
CONFIG = "[limits]\nconcurrent = 1000\n"


@fault("graceful-stop")
def graceful_stop(seed: int, calls: int = CALLS) -> Result:
    """SIGTERM with 100 calls in flight: all are answered and written down, later ones refused, it ends with 0."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="agent3-graceful-stop-") as name:
        folder = Path(name)
        with gateway(folder, agent=AGENT, config=CONFIG) as door:
            told, late = asyncio.run(asyncio.wait_for(_stopped(folder, door, calls, chance), 60))
            code = door.process.wait(120)
        return judge(told, late, _written(folder), (folder / "begun").read_text().split(), code)


async def _stopped(folder: Path, door: Gateway, calls: int, chance: random.Random) -> tuple[list[Told], list[Told]]:
    """The answers to the calls that ran when the signal came, and to those that came after it."""
    async with asking() as session:
        running = [
            asyncio.create_task(
                ask(session, door.url, "work", {"name": f"early{number}", "seconds": chance.uniform(1.5, 3.0)})
            )
            for number in range(calls)
        ]
        await _until_begun(folder / "begun", calls)
        door.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        late = [ask(session, door.url, "work", {"name": f"late{number}", "seconds": 0.0}) for number in range(LATE)]
        refused = await asyncio.gather(*late)
        return list(await asyncio.gather(*running)), list(refused)


async def _until_begun(file: Path, count: int) -> None:
    until = time.monotonic() + 20
    while not file.exists() or len(file.read_text().splitlines()) < count:
        if time.monotonic() > until:
            raise RuntimeError(f"Not all of {count} calls began within 20 s.")
        await asyncio.sleep(0.01)


def _written(folder: Path) -> Counter[str]:
    """How the calls ended, as the ledger tells."""
    with closing(sqlite3.connect(folder / "house.db")) as connection:
        return Counter(status for (status,) in connection.execute("SELECT status FROM calls"))


def judge(told: list[Told], late: list[Told], written: Counter[str], begun: list[str], code: int) -> Result:
    """What everybody was told against what was done."""
    answered = [one for one in told if one.status == 200 and one.body.get("success") is True]
    taken = [one for one in late if one.status == 200]
    faults = {
        "unanswered": len(told) - len(answered),
        "not_in_ledger": len(answered) + len(taken) - written["done"],
        "begun_and_not_told": len(begun) - len(answered) - len(taken),
    }
    return {
        "ok": bool(told) and not any(faults.values()) and code == 0,
        "calls": len(told),
        "late": dict(Counter(one.status or "no door" for one in late)),
        **faults,
        "exit_code": code,
    }
