"""Four agents plan a trip: they find each other, agree, book, take back what failed, and tell of it."""

from __future__ import annotations

import sys

from agent3 import AgentCapability, AgentCard, AgentExecutor, AgentRegistry, Coordinator, Standalone
from agent3.a2a import PlanResult, Undo, step
from agent3.settings import Settings, Storage


def agent(name: str, registry: AgentRegistry, core: Standalone) -> AgentExecutor:
    """An agent that books and cancels; the car rental has no cars in winter."""
    books = AgentCapability(name=f"book_{name}", description=f"Books a {name}", tags=["travel"])
    made = AgentExecutor(
        AgentCard(agent_id=name, name=name.title(), capabilities=[books]), core=core, registry=registry
    )

    def book(city: str, month: str) -> dict[str, str]:
        if name == "car" and month == "january":
            raise RuntimeError("no cars in january")
        return {"reference": f"{name}-{city}-{month}"}

    def cancel(reference: str = "") -> None:
        print(f"  {name}: cancelled {reference}")

    made.register_capability(f"book_{name}", book)
    made.register_capability("cancel", cancel)
    return made


def plan(coordinator: Coordinator, registry: AgentRegistry, month: str) -> PlanResult:
    """Everything that can be booked, found in the registry; each step knows how it is taken back."""
    steps = [
        step(
            card.agent_id,
            card.agent_id,
            card.capabilities[0].name,
            {"city": "Rome", "month": month},
            undo=Undo("cancel", {"reference": f"${{{card.agent_id}.reference}}"}),
        )
        for card in registry.discover_agents(tag="travel")
    ]
    return coordinator.run(steps)


def main(database: str = "") -> None:
    """Plan a trip in May, which works, and one in January, which does not. Given a database, all of it is kept."""
    core = Standalone(Settings(storage=Storage(url=database)))
    registry = AgentRegistry(core=core)
    agency = AgentExecutor(AgentCard(agent_id="agency", name="Agency"), core=core)
    coordinator = Coordinator(agency)
    agents = [agent(name, registry, core) for name in ("flight", "hotel", "car")]
    agents[0].subscribe("trips.*", lambda city, status: print(f"  flight heard: {city} is {status}"))
    for month in ("may", "january"):
        told = plan(coordinator, registry, month)
        print(f"{month}: {told.status}", *(one.result["reference"] for one in told.steps if one.status == "success"))
        agency.broadcast("trips.rome", {"city": "Rome", "status": told.status})
    offer = agency.create_artifact({"city": "Rome", "month": "may"}, name="offer.json")
    agency.share_artifact(offer.artifact_id, "hotel")
    print("hotel reads:", agents[1].artifacts.read(offer.artifact_id).body.decode())
    for one in agents:
        one.drain()
    for one in (*agents, agency):
        one.close()
    core.close()


if __name__ == "__main__":
    main(*sys.argv[1:2])
