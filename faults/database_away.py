"""The database goes away under load and comes back: nobody's acknowledged work fails for it.

Once PostgreSQL is stopped for some seconds; once the file of SQLite can only be read, as on a disk that was mounted so.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from faults._gateway import gateway
from faults._outage import watch_outage
from faults._postgres import postgres
from faults.registry import Result, fault

SECONDS = 4.0
CONFIG = "[limits]\nper_minute = 0\n[outbound]\nallow_loopback = true\n"


@fault("database-away")
def database_away(seed: int, seconds: float = SECONDS) -> Result:
    """PostgreSQL away for some seconds under load: no acknowledged job fails for it, keyed callers get outcomes."""
    chance = random.Random(seed)
    with postgres() as server:

        async def stop() -> None:
            await asyncio.to_thread(server.stop if chance.random() < 0.5 else server.kill)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(server.start)

        return under_load(server.url, stop)


def under_load(database: str, outage: Callable[[], Awaitable[None]]) -> Result:
    """A gateway on a database, and its callers while something happens to it."""
    with tempfile.TemporaryDirectory(prefix="agent3-outage-") as name:
        folder = Path(name)
        with gateway(folder, config=CONFIG, database=database) as served:
            return asyncio.run(asyncio.wait_for(watch_outage(folder, served.url, outage), 150))
