"""The life of an agent: which state follows which, and what each of them means."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import pytest

from agent3 import A2AMessage, AgentCard, AgentExecutor, AgentRegistry, MessageType
from agent3.errors import AgentNotFound, Conflict
from agent3.protocols.a2a.agents.lifecycle import NEXT, Status, check_transition, find_refusal

STATES: tuple[Status, ...] = get_args(Status)


@pytest.fixture
def hotel() -> Iterator[AgentExecutor]:
    with AgentExecutor(AgentCard(agent_id=f"hotel-{uuid.uuid4()}", name="Hotel")) as made:
        made.register_capability("search", lambda: "rooms")
        yield made


@pytest.fixture
def flight() -> Iterator[AgentExecutor]:
    with AgentExecutor(AgentCard(agent_id=f"flight-{uuid.uuid4()}", name="Flight")) as made:
        yield made


def ask(agent: AgentExecutor) -> dict[str, Any]:
    reply = agent.receive_message(
        A2AMessage(from_agent="x", to_agent=agent.card.agent_id, message_type=MessageType.REQUEST, capability="search")
    )
    assert reply is not None
    return reply.content


@pytest.mark.requirement("RF-013-35")
@pytest.mark.parametrize(("now", "then"), list(product(STATES, STATES)))
def test_each_step_is_judged(now: Status, then: Status) -> None:
    if then == now or then in NEXT[now]:
        assert check_transition("hotel", now, then) == then
    else:
        with pytest.raises(Conflict, match=f"is {now} and cannot become {then}"):
            check_transition("hotel", now, then)


def test_only_what_is_in_service_takes_new_work() -> None:
    assert [state for state in STATES if find_refusal("hotel", state) is None] == ["registered", "active"]


@pytest.mark.requirement("RF-013-35")
@pytest.mark.parametrize("state", ["draining", "suspended", "retired"])
def test_out_of_service_a_request_is_refused_and_messages_wait(
    state: Status, hotel: AgentExecutor, flight: AgentExecutor
) -> None:
    hotel.set_status(state)
    content = ask(hotel)
    assert content["error"]["code"] == "unavailable"
    assert f"is {state} and accepts no new work" in content["error"]["message"]
    sent = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search")
    assert flight.waiting(hotel.card.agent_id) == 1
    if state == "retired":
        with pytest.raises(Conflict):
            hotel.set_status("active")
    else:
        hotel.set_status("active")
        assert flight.wait_for_response(sent, 60).content["result"] == "rooms"


@pytest.mark.requirement("RF-013-35")
def test_a_draining_agent_finishes_what_runs_with_what_it_needs_from_others(
    hotel: AgentExecutor, flight: AgentExecutor
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def book() -> Any:
        begun.set()
        assert go_on.wait(60)
        return hotel.request(flight.card.agent_id, "seats", timeout=60).content["result"]

    flight.register_capability("seats", lambda: 3)
    hotel.register_capability("book", book)
    running = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "book")
    assert begun.wait(60)
    assert hotel.drain(timeout=0.05) is False
    waiting = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search")
    go_on.set()
    assert hotel.drain(timeout=60) is True
    assert flight.wait_for_response(running, 60).content["result"] == 3
    assert (hotel.status, hotel.waiting()) == ("draining", 1)
    hotel.set_status("active")
    assert flight.wait_for_response(waiting, 60).content["result"] == "rooms"


@pytest.mark.requirement("RF-013-35")
def test_the_registry_leads_an_agent_through_its_life() -> None:
    registry = AgentRegistry()
    registry.register_agent(AgentCard(agent_id="a", name="A", status="registered"))
    assert registry.set_status("a", "active").status == "active"
    registry.set_status("a", "draining")
    assert registry.discover_agents() == []
    card = registry.get_agent("a")
    assert card is not None
    assert card.status == "draining"
    registry.set_status("a", "retired")
    with pytest.raises(Conflict, match="Allowed is nothing"):
        registry.set_status("a", "active")
    with pytest.raises(AgentNotFound, match="Did you mean 'a'"):
        registry.set_status("A", "active")


def test_an_executor_tells_its_registry() -> None:
    registry = AgentRegistry()
    with AgentExecutor(AgentCard(agent_id=f"h-{uuid.uuid4()}", name="H"), registry=registry) as hotel:
        assert [found.agent_id for found in registry.discover_agents()] == [hotel.card.agent_id]
        hotel.set_status("suspended")
        assert registry.discover_agents() == []
        hotel.set_status("active")
        assert len(registry.discover_agents()) == 1
        hotel.close()
        hotel.close()
