"""AgentRegistry as documented."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from agent3 import AgentCapability, AgentCard, AgentRegistry
from agent3.errors import AgentNotFound


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
    assert [one.agent_id for one in found] == ["flight", "hotel", "activity"]
    assert all(one.name and one.capabilities for one in found)
    assert [one.agent_id for one in registry.discover_agents(capability_required="search_flights")] == ["flight"]
    assert registry.discover_agents("nothing") == []


def test_registering_again_replaces_the_card_in_its_place() -> None:
    registry = AgentRegistry()
    registry.register_agent(card("a", "old"))
    registry.register_agent(card("b"))
    registry.register_agent(card("a", "new"))
    assert [one.agent_id for one in registry.discover_agents()] == ["a", "b"]
    assert registry.discover_agents("old") == []
    assert [one.agent_id for one in registry.discover_agents("new")] == ["a"]


def test_an_agent_that_left_is_gone_and_leaving_twice_is_an_error() -> None:
    registry = AgentRegistry()
    registry.register_agent(card("a"))
    registry.unregister_agent("a")
    assert registry.get_agent("a") is None
    with pytest.raises(AgentNotFound, match="no agent 'a'"):
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
