"""The tale of the demo: a trip is planned, the flight agent is killed, the trip is planned again.

It is told over a ``Client``, to whoever prints it; a test listens to the same tale.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from agent3.client.client import Client
from agent3.demo import planner, stage
from agent3.errors import Unavailable

__all__ = ["Scene", "tell"]

TRIP = {"origin": "Madrid", "destination": "Lisbon", "day": "2027-03-04", "nights": 3}
_READY = 180.0
"""Seconds that the processes of the demo have to come up; a busy machine needs some."""
_BROWSER = 10.0
"""Seconds that are spent on waiting for a browser."""
_SECONDS = 180.0
_LOOK = 0.5


@dataclass(frozen=True)
class Scene:
    """What happens: its title alone while it runs, and with lines when it is over."""

    title: str
    lines: tuple[str, ...] = ()


def tell(gateway: Client) -> Generator[Scene, None, dict[str, Any]]:
    """The scenes as they happen, and at last everything that was found out, as JSON."""
    parts = yield from _wait_for_parts(gateway)
    browser = parts["websites"]
    lines = [f"flights: {parts['flights']}, over A2A", f"hotels: {parts['hotels']}, over MCP"]
    lines.append("websites: up, in a real browser" if browser == "up" else f"websites: skipped. {browser}")
    yield Scene("What is running", tuple(lines))

    queries = ("flights to Lisbon", "hotels")
    found = {query: dict.fromkeys(hit.id for hit in gateway.search(query, limit=3)) for query in queries}
    yield Scene(
        "Search finds them by what they do", tuple(f"{query}: {', '.join(ids)}" for query, ids in found.items())
    )

    first = yield from _plan(gateway)
    yield Scene("The planner finds them and plans a trip", tuple(_describe(first)))

    yield Scene("Killing the flight agent")
    killed = gateway.call(stage.ID, capability="take_down", input={"part": "flights", "seconds": 300.0}).text
    yield Scene("The flight agent is killed", (killed,))

    second = yield from _plan(gateway)
    yield Scene("The same trip, planned again", tuple(_describe(second)))

    yield Scene("Restarting the flight agent")
    back = gateway.call(stage.ID, capability="bring_back", input={"part": "flights"}, timeout=_READY).text
    used = sorted({served["agent"] for plan in (first, second) for served in plan["served"].values()})
    ratings = {agent: gateway.select(agent).rating for agent in used}
    rated = [f"{agent}: {rating.mean} by {rating.count}" for agent, rating in ratings.items()]
    yield Scene("The planner has rated them; the next search shows it", (back, *rated))
    return {
        "gateway": gateway.url,
        "parts": parts,
        "search": found,
        "first": first,
        "killed": killed,
        "second": second,
        "ratings": {agent: {"mean": rating.mean, "count": rating.count} for agent, rating in ratings.items()},
    }


def _wait_for_parts(gateway: Client) -> Generator[Scene, None, dict[str, str]]:
    began = time.monotonic()
    while True:
        parts: dict[str, str] = gateway.call(stage.ID, capability="parts").value
        waiting = [name for name in ("flights", "hotels") if parts[name] == "starting"]
        waited = time.monotonic() - began
        if not waiting and (parts["websites"] == "up" or waited > _BROWSER):
            return parts
        if waited > _READY:
            raise Unavailable(f"The demo's {' and '.join(waiting)} did not start within {_READY:g} s.")
        yield Scene(f"Waiting for {' and '.join(waiting) or 'a browser'}")
        time.sleep(_LOOK)


def _plan(gateway: Client) -> Generator[Scene, None, dict[str, Any]]:
    events = gateway.stream(planner.ID, capability="plan", input=TRIP, timeout=_SECONDS)
    for event in events:
        if event.kind == "status" and event.text:
            yield Scene(event.text)
    plan: dict[str, Any] = events.result().value
    return plan


def _describe(plan: dict[str, Any]) -> Iterator[str]:
    def by(what: str) -> str:
        served = plan["served"].get(what)
        return f" ({served['agent']}, by {served['route']})" if served else ""

    yield plan["trip"]
    if (journey := plan["journey"]) is not None:
        yield f"{journey['number']}, {journey['leaves']} to {journey['arrives']}, {journey['price']:g} €{by('journey')}"
    if (hotel := plan["hotel"]) is not None:
        yield f"{hotel['name']}, {hotel['stars']} stars, {hotel['price']:g} €{by('hotel')}"
    if plan["activities"]:
        yield f"{', '.join(one['title'] for one in plan['activities'])}{by('activities')}"
    yield f"{plan['total']:g} € for travel and hotel"
    yield from plan["notes"]
