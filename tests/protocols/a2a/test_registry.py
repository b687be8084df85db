"""AgentRegistry as documented."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent3 import AgentCapability, AgentCard, AgentRegistry
from agent3.directory import Directory
from agent3.env import REAL
from agent3.errors import AgentNotFound
from agent3.model import Agent, Capability
from agent3.protocols.a2a.agents.registry import to_card
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Settings, Storage
from agent3.storage import open_database


def card(agent_id: str, *capabilities: str, **more: object) -> AgentCard:
    offered = [AgentCapability(name=name, description="Does it") for name in capabilities]
    return AgentCard.model_validate({"agent_id": agent_id, "name": agent_id.title(), "capabilities": offered, **more})


@pytest.mark.requirement("RF-013-21")
def test_agents_are_found_by_what_they_can_do() -> None:
    registry = AgentRegistry()
    assert registry.discover_agents() == []
    for name, capability in [("flight", "search_flights"), ("hotel", "search_hotels"), ("activity", "find_activities")]:
        registry.register_agent(card(name, capability))
    found = registry.discover_agents()
    assert [each.agent_id for each in found] == ["flight", "hotel", "activity"]
    assert all(each.name and each.capabilities for each in found)
    assert [each.agent_id for each in registry.discover_agents(capability_required="search_flights")] == ["flight"]
    assert registry.discover_agents("nothing") == []


def test_registering_again_replaces_the_card_in_its_place() -> None:
    registry = AgentRegistry()
    registry.register_agent(card("a", "old"))
    registry.register_agent(card("b"))
    registry.register_agent(card("a", "new"))
    assert [each.agent_id for each in registry.discover_agents()] == ["a", "b"]
    assert registry.discover_agents("old") == []
    assert [each.agent_id for each in registry.discover_agents("new")] == ["a"]


def test_an_agent_that_left_is_gone_and_leaving_twice_is_an_error() -> None:
    registry = AgentRegistry()
    registry.register_agent(card("a"))
    registry.unregister_agent("a")
    assert registry.get_agent("a") is None
    with pytest.raises(AgentNotFound, match="Agent 'a' is not in this registry"):
        registry.unregister_agent("a")


@pytest.mark.parametrize(
    ("status", "found"),
    [("registered", True), ("active", True), ("draining", False), ("suspended", False), ("retired", False)],
)
def test_only_agents_in_service_are_discovered_but_every_card_can_be_read(status: str, found: bool) -> None:
    registry = AgentRegistry()
    registry.register_agent(card("a", status=status))
    assert bool(registry.discover_agents()) is found
    assert registry.get_agent("a") is not None


def test_many_threads_register_at_once() -> None:
    registry = AgentRegistry()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: registry.register_agent(card(f"a{number}", "x")), range(200)))
    assert len(registry.discover_agents("x")) == 200


@contextmanager
def stored(folder: Path) -> Iterator[AgentRegistry]:
    core = Standalone(Settings(storage=Storage(url=f"sqlite:///{folder}/house.db")))
    try:
        yield AgentRegistry(core=core)
    finally:
        core.close()


@pytest.fixture(params=["memory", "database"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentRegistry]:
    if request.param == "memory":
        yield AgentRegistry()
        return
    with stored(tmp_path) as made:
        yield made


@pytest.mark.requirement("RF-013-21")
def test_the_registry_is_the_same_in_memory_and_in_a_database(registry: AgentRegistry) -> None:
    registry.register_agent(card("flight", "search_flights"))
    registry.register_agent(card("hotel", "search_hotels", url="https://hotel.example.com", version="2"))
    assert {each.agent_id for each in registry.discover_agents()} == {"flight", "hotel"}
    (found,) = registry.discover_agents(capability_required="search_hotels")
    assert found == card("hotel", "search_hotels", url="https://hotel.example.com", version="2")
    assert registry.set_status("hotel", "suspended").status == "suspended"
    assert registry.discover_agents("search_hotels") == []
    registry.set_status("hotel", "active")
    registry.unregister_agent("flight")
    assert registry.get_agent("flight") is None
    with pytest.raises(AgentNotFound):
        registry.unregister_agent("flight")
    with pytest.raises(AgentNotFound):
        registry.set_status("nobody", "active")


@pytest.mark.requirement("SL-05")
def test_agents_are_found_by_skill_tag_provider_media_type_and_words(registry: AgentRegistry) -> None:
    registry.register_agent(card("plain", "search", provider={"organization": "Acme"}, tags=["travel"]))
    picture = AgentCapability(name="draw", description="Draws maps", tags=["maps"], outputModes=["image/png"])
    usage = {"extensions": [{"uri": "urn:usage"}]}
    registry.register_agent(card("artist", features=usage).model_copy(update={"capabilities": [picture]}))

    def found(**wanted: str) -> list[str]:
        return [each.agent_id for each in registry.discover_agents(**wanted)]

    assert found(tag="travel") == found(provider="acme") == found(capability_required="search") == ["plain"]
    assert found(tag="maps") == found(output_mode="image/png") == found(extension="urn:usage") == ["artist"]
    assert found(text="somebody who draws maps")[0] == "artist"
    assert found(tag="maps", provider="acme") == found(capability_required="search", output_mode="image/png") == []
    assert sorted(found(input_mode="text/plain")) == ["artist", "plain"]


@pytest.mark.requirement("RF-013-39")
def test_a_lease_in_a_database_is_kept_by_heartbeats(registry: AgentRegistry) -> None:
    registry.register_agent(card("a"), lease=600)
    registry.register_agent(card("b"), lease=0.01)
    until = time.monotonic() + 60
    while len(registry.discover_agents()) > 1:
        assert time.monotonic() < until
    assert [each.agent_id for each in registry.discover_agents()] == ["a"]
    registry.heartbeat("b")
    assert len(registry.discover_agents()) == 2
    left = registry.lease_left("b")
    assert left is not None
    assert 0 < left <= 30


@pytest.mark.requirement("RF-013-21", "RF-013-36")
def test_with_a_database_cards_outlive_the_process_and_a_gateway_on_it_finds_them(tmp_path: Path) -> None:
    with stored(tmp_path) as before:
        before.register_agent(card("hotel", "search_hotels", url="https://hotel.example.com"))
    with stored(tmp_path) as after:
        assert [each.agent_id for each in after.discover_agents("search_hotels")] == ["hotel"]

    async def seen() -> Agent:
        database = await open_database(f"sqlite:///{tmp_path}/house.db")
        try:
            (hit,) = await Directory(database, REAL).search("search hotels")
            return hit.agent
        finally:
            await database.aclose()

    agent = asyncio.run(seen())
    assert (agent.id, agent.capabilities[0].routes[0].address) == ("hotel", "https://hotel.example.com")
    assert to_card(agent).agent_id == "hotel"


def test_an_agent_that_came_by_another_way_has_a_card_too() -> None:
    tool = Capability(name="add", description="Adds", input_schema={"type": "object"}, tags=("maths",))
    made = to_card(Agent(id="calc", name="Calculator", capabilities=(tool,), card={"tools": []}))
    assert (made.agent_id, made.capabilities[0].name, made.capabilities[0].tags) == ("calc", "add", ["maths"])
    broken = to_card(Agent(id="x", name="X", card={"no": "card"}, meta={"registry": True}))
    assert broken.name == "X"
