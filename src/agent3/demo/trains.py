"""The trains of the demo: plain Python in the gateway itself, for when there is no flight."""

from __future__ import annotations

import datetime
from typing import Any

from agent3.server.apps import App

__all__ = ["app"]

app = App("Night trains", agent_id="demo-trains", description="Knows night trains.", tags=("demo",))


@app.capability(read_only=True)
def find_trains(origin: str, destination: str, date: datetime.date) -> list[dict[str, Any]]:
    """Find trains from one city to another on a day.

    Args:
        origin: City to start from.
        destination: City to go to.
        date: Day of departure.
    """
    minutes = 60 * (len(origin) + len(destination))
    arrives = f"{(21 + minutes // 60) % 24:02}:00"
    return [{"number": "NT 28", "leaves": "21:00", "arrives": arrives, "price": round(minutes / 12, 2)}]
