"""DBOS putting workflows on a queue: 64 callers, bodies of 300 letters, for some seconds; prints what it measured.

    python dbos_puts.py CONNECTION SECONDS

Runs in an environment of its own, where dbos is installed and agent3 is not. A workflow is durable when
``enqueue_async`` returns, as a message of ours is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from dbos import DBOS, DBOSClient  # type: ignore[import-not-found]

CALLERS = 64
BODY = "x" * 300
WARM_SECONDS = 0.3
WANTED = {"queue_name": "work", "workflow_name": "work"}


async def main(connection: str, seconds: float) -> None:
    """Measure once and print one JSON object."""
    client = DBOSClient(system_database_url=connection)
    try:
        await _laps(client, WARM_SECONDS)
        busy, began = time.process_time(), time.perf_counter()
        laps = sorted(await _laps(client, seconds))
        took, busy = time.perf_counter() - began, time.process_time() - busy
    finally:
        client.destroy()
    middle, late = laps[len(laps) // 2], laps[int(len(laps) * 0.99)]
    print(
        json.dumps(
            {
                "rate": len(laps) / took,
                "p50_ms": middle * 1e3,
                "p99_ms": late * 1e3,
                "cpu_ms_per_call": busy * 1e3 / len(laps),
                "calls": len(laps),
            }
        )
    )


async def _laps(client: DBOSClient, seconds: float) -> list[float]:
    laps: list[float] = []
    until = time.perf_counter() + seconds

    async def caller() -> None:
        while (lap := time.perf_counter()) < until:
            await client.enqueue_async(WANTED, BODY)
            laps.append(time.perf_counter() - lap)

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())
    return laps


def prepare(connection: str) -> None:
    """Make the tables, which the client expects to be there."""
    DBOS(config={"name": "bench", "system_database_url": connection, "run_admin_server": False})
    DBOS.launch()
    DBOS.destroy()


if __name__ == "__main__":
    prepare(sys.argv[1])
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
