"""The primary of two PostgreSQL servers is killed, and its standby promoted: what was acknowledged is there.

Both are from the wheel. The standby follows the primary by streaming replication, synchronously: without that, what was
acknowledged in the last moment may be on the killed one alone, and no gateway can know.
"""

from __future__ import annotations

import asyncio
import random

from faults._postgres import postgres, standby
from faults.database_away import under_load
from faults.registry import Result, fault


@fault("postgres-failover")
def postgres_failover(seed: int) -> Result:
    """The primary of PostgreSQL killed under load, its standby promoted: no acknowledged job is lost or failed."""
    chance = random.Random(seed)
    with postgres() as primary, standby(primary) as second:

        async def fail_over() -> None:
            await asyncio.to_thread(primary.kill)
            await asyncio.sleep(chance.uniform(0.5, 3.0))
            await asyncio.to_thread(second.promote)

        return under_load(second.both, fail_over)
