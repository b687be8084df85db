"""The flight agent of the demo: ``python -m agent3.demo.flights PORT`` serves it over A2A until its input ends."""

from __future__ import annotations

import datetime
import json
from typing import TypedDict

from agent3.demo.child import serve_until_input_ends
from agent3.demo.interfaces import SITES
from agent3.protocols.a2a.agents.serving import listening
from agent3.server.apps import App

__all__ = ["app"]

app = App("Flight desk", description="Finds flights between cities.")


class Flight(TypedDict):
    """One flight."""

    number: str
    leaves: str
    arrives: str
    price: float


@app.capability(read_only=True)
def find_flights(origin: str, destination: str, date: datetime.date) -> list[Flight]:
    """Find flights from one city to another on a day.

    Args:
        origin: City to fly from.
        destination: City to fly to.
        date: Day of departure.
    """
    flights = json.loads((SITES / "airline" / "flights.json").read_text("utf-8"))  # what the airline's website shows
    return [
        Flight(number=one["number"], leaves=one["leaves"], arrives=one["arrives"], price=one["price"])
        for one in flights
        if (one["origin"].lower(), one["destination"].lower()) == (origin.lower(), destination.lower())
    ]


if __name__ == "__main__":
    serve_until_input_ends(lambda port: listening(app, port=port))
