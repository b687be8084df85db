"""procrastinate putting jobs: 64 callers at a time, bodies of 300 letters, for some seconds; prints what it measured.

    python procrastinate_puts.py CONNECTION SECONDS

Runs in an environment of its own, where procrastinate is installed and agent3 is not. A job is durable when
``defer_async`` returns, as a message of ours is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

CALLERS = 64
CONNECTIONS = 8
BODY = "x" * 300
WARM_SECONDS = 0.3


async def main(connection: str, seconds: float) -> None:
    """Measure once and print one JSON object."""
    app = App(connector=PsycopgConnector(conninfo=connection, min_size=CONNECTIONS, max_size=CONNECTIONS))

    @app.task(name="work")  # type: ignore[untyped-decorator]
    async def work(body: str) -> None:
        raise RuntimeError(f"nobody is here to work on {len(body)} letters")

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        await _laps(work, WARM_SECONDS)
        busy, began = time.process_time(), time.perf_counter()
        laps = sorted(await _laps(work, seconds))
        took, busy = time.perf_counter() - began, time.process_time() - busy
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


async def _laps(work: object, seconds: float) -> list[float]:
    laps: list[float] = []
    until = time.perf_counter() + seconds

    async def caller() -> None:
        while (lap := time.perf_counter()) < until:
            await work.defer_async(body=BODY)  # type: ignore[attr-defined]
            laps.append(time.perf_counter() - lap)

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())
    return laps


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
