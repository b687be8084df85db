"""A weather station that speaks JSON lines, with nothing but the standard library.

    python weather.py [PORT]

It prints every request that it gets. With WEATHER_KEY in its environment, it answers only those who show that key.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DAYS = {"enum": ["today", "tomorrow"]}
CARD = {
    "type": "card",
    "name": "Weather Station",
    "description": "Knows the weather and lends umbrellas.",
    "version": os.environ.get("WEATHER_VERSION", "1"),
    "capabilities": [
        {
            "name": "forecast",
            "description": "What the sky of a city will look like.",
            "input": CITY,
            "output": {"type": "object", "properties": {"city": {"type": "string"}, "sky": {"type": "string"}}},
            "idempotent": True,
        },
        {"name": "report", "description": "A weather report, read out piece by piece.", "input": CITY},
        {"name": "umbrella", "description": "Reserve an umbrella. Asks for the day.", "input": CITY},
        {"name": "measure", "description": "Measure the wind. The sensor is often busy.", "idempotent": True},
        {"name": "calibrate", "description": "Calibrate the sensor, which is sealed.", "idempotent": True},
    ],
}
measured: Counter[str] = Counter()


def answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The replies to a request: the last one ends it."""
    key = os.environ.get("WEATHER_KEY")
    if key and request.get("key") != key:
        yield {"type": "error", "code": "unauthenticated", "message": "Show the key of the station."}
        return
    city = (request.get("input") or {}).get("city")
    match request:
        case {"type": "hello"}:
            yield CARD
        case {"type": "call", "capability": "forecast"}:
            yield {"type": "result", "value": {"city": city, "sky": "clear"}}
        case {"type": "call", "capability": "report"}:
            yield {"type": "status", "text": "Looking at the sky"}
            for piece in (f"Good evening, {city}. ", "Tonight it is dry. ", "Tomorrow it rains."):
                yield {"type": "piece", "text": piece}
            yield {"type": "result"}
        case {"type": "call", "capability": "umbrella"}:
            # All that the next turn needs to know goes with the question and comes back with the answer.
            question = {"id": "day", "text": "For which day?", "schema": DAYS}
            yield {"type": "questions", "state": {"city": city}, "questions": [question]}
        case {"type": "answer", "state": {"city": where}, "answers": {"day": day}}:
            yield {"type": "result", "value": f"An umbrella waits in {where} {day}."}
        case {"type": "call", "capability": "measure"}:
            measured["wind"] += 1
            if measured["wind"] % 2:
                yield {"type": "error", "code": "unavailable", "message": "The sensor is busy.", "retryable": True}
            else:
                yield {"type": "result", "value": {"wind": 12}}
        case _:
            yield {"type": "error", "code": "rejected", "message": "The station does not do that."}


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = json.loads(await reader.readline())
    print(request["type"], request.get("capability", ""), flush=True)
    for reply in answer(request):
        writer.write(json.dumps(reply).encode() + b"\n")
    await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9000)
    print(f"jsonl://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
