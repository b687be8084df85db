"""The travel planner: an ``App`` that finds what it needs by search, calls it, and rates it. It knows no agent by name.

It uses the gateway as any program does, by a ``Client``. What it calls must be of the demo, must say that it changes
nothing, and must ask for no more than a plan knows. When one cannot be reached the next one that fits is taken.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from agent3.client.client import AsyncClient
from agent3.client.types import CapabilityInfo, Result
from agent3.errors import Agent3Error, TargetError
from agent3.protocols.functions import Context
from agent3.server.apps import App

__all__ = ["ID", "TAG", "Plan", "make_planner"]

ID = "travel-planner"

TAG = "demo"
"""What the agents of the demo are tagged with. Others, which somebody may pay for, are left alone."""
_PROTOCOLS = {"a2a": "A2A", "mcp": "MCP", "nlweb": "website", "local": "Python"}
"""Routes as people call them."""
_SECONDS = 60.0


@dataclass(frozen=True)
class _Want:
    """Something a trip needs: what to search for, and the word that what is found must have in its description."""

    what: str
    query: str
    word: str


_WANTS = {
    "journey": (
        _Want("journey", "find flights from one city to another", "flight"),
        _Want("journey", "find trains from one city to another", "train"),
    ),
    "hotel": (_Want("hotel", "find hotels in a city", "hotel"),),
    "activities": (_Want("activities", "find activities in a city", "activities"),),
}


class Served(TypedDict):
    """Who gave a part of the plan, and by which route."""

    agent: str
    route: str


class Plan(TypedDict):
    """A trip."""

    trip: str
    journey: dict[str, Any] | None
    hotel: dict[str, Any] | None
    activities: list[dict[str, Any]]
    total: float
    served: dict[str, Served]
    notes: list[str]


def make_planner(gateway: AsyncClient) -> App:
    """The planner, for the gateway that it searches in."""
    app = App("Travel planner", agent_id=ID, description="Plans a whole trip.", tags=(TAG,))

    @app.capability(timeout=180.0)
    async def plan(
        ctx: Context,
        origin: str,
        destination: str,
        day: datetime.date,
        nights: int = 2,
        prefer: Literal["cheapest", "earliest"] = "cheapest",
    ) -> Plan:
        """Plan a trip: how to get there, where to stay, what to do. Rates those that it used.

        Args:
            origin: City to start from.
            destination: City to go to.
            day: Day of departure.
            nights: How many nights to stay.
            prefer: Which way of getting there to take.
        """
        route = {"origin": origin, "destination": destination, "date": day.isoformat()}
        trip = _Trip(gateway, ctx, {**route, "city": destination, "nights": nights})
        async with asyncio.TaskGroup() as group:
            for what in _WANTS:
                group.create_task(trip.find(what))
        await trip.rate()
        journeys = sorted(trip.found["journey"], key=lambda one: one["price" if prefer == "cheapest" else "leaves"])
        hotels = sorted(trip.found["hotel"], key=lambda one: one["price"])
        chosen = [*journeys[:1], *hotels[:1]]
        return Plan(
            trip=f"{origin} to {destination} on {day.isoformat()}, {nights} nights",
            journey=journeys[0] if journeys else None,
            hotel=hotels[0] if hotels else None,
            activities=trip.found["activities"],
            total=round(sum(float(one["price"]) for one in chosen), 2),
            served=trip.served,
            notes=trip.notes,
        )

    return app


class _Trip:
    """One plan in the making."""

    def __init__(self, gateway: AsyncClient, ctx: Context, facts: Mapping[str, Any]):
        self._gateway = gateway
        self._ctx = ctx
        self._facts = facts
        self._ratings: dict[str, tuple[int, str]] = {}
        self.found: dict[str, list[dict[str, Any]]] = {what: [] for what in _WANTS}
        self.served: dict[str, Served] = {}
        self.notes: list[str] = []

    async def find(self, what: str) -> None:
        """Ask whoever fits, one after the other, until one answers with something."""
        for want in _WANTS[what]:
            hits = await self._gateway.search(want.query, limit=10, filters={"tag": TAG})
            # A browser is the slowest way: what has another one is asked first.
            hits.sort(key=lambda hit: hit.raw.get("protocol") == "nlweb")
            for agent in dict.fromkeys(hit.id for hit in hits):
                info = await self._gateway.select(agent)
                fitting = [one for one in info.capabilities if TAG in info.tags and self._fits(one, want)]
                if not fitting:
                    continue
                self._ctx.status(f"Asking {info.id} for the {what}")
                try:
                    rows = await self._ask(what, info.id, fitting[0])
                except TargetError as error:
                    self._ratings[info.id] = (1, f"Could not be reached: {error.code}")
                    self.notes.append(f"{info.id} cannot be reached ({error.code}).")
                    continue
                if rows:
                    self.found[what] = rows
                    return
        self.notes.append(f"Nothing found for the {what}.")

    def _fits(self, capability: CapabilityInfo, want: _Want) -> bool:
        required = (capability.input_schema or {}).get("required") or ()
        harmless = bool((capability.raw.get("hints") or {}).get("read_only"))
        return (
            harmless and bool(required) and set(required) <= self._facts.keys() and want.word in capability.description
        )

    async def _ask(self, what: str, agent: str, capability: CapabilityInfo) -> list[dict[str, Any]]:
        taken = (capability.input_schema or {}).get("properties") or {}
        given = {name: value for name, value in self._facts.items() if name in taken}
        result = await self._gateway.call(agent, capability=capability.name, input=given, timeout=_SECONDS)
        rows = result.value.get("result") if isinstance(result.value, dict) else result.value
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "price" in row for row in rows):
            self.notes.append(f"{agent} did not answer with a list of offers.")
            return []
        usual, route = _PROTOCOLS.get(capability.protocols[0], capability.protocols[0]), _route_of(result, capability)
        if route == usual:
            self._ratings[agent] = (5, "Answered")
        else:
            self._ratings[agent] = (3, f"No answer by {usual}; {route} stood in")
            self.notes.append(f"{agent} did not answer by {usual}: its {route} stood in.")
        self.served[what] = Served(agent=agent, route=route)
        return rows

    async def rate(self) -> None:
        """Rate those that were asked, by how it went."""
        for agent, (rating, comment) in self._ratings.items():
            try:
                await self._gateway.feedback(agent, rating, comment)
            except Agent3Error as error:
                self.notes.append(f"{agent} could not be rated ({error.code}).")


def _route_of(result: Result, capability: CapabilityInfo) -> str:
    """How the answer came: as the gateway says, else as it shows. What a browser read bears its sources."""
    told = result.metadata.get("route")
    protocol = told.get("protocol") if isinstance(told, Mapping) else told
    if not isinstance(protocol, str):
        protocol = "nlweb" if "sources" in result.metadata else capability.protocols[0]
    return _PROTOCOLS.get(protocol, protocol)
