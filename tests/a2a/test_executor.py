"""AgentExecutor as documented: sending, receiving, answering, within one process."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from agent3 import A2AMessage, AgentCapability, AgentCard, AgentExecutor, MessageType
from agent3.a2a import executor as module
from agent3.errors import CallTimeout, RateLimited

HOTELS = AgentCapability(
    name="search_hotels",
    description="Search",
    input_schema={
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
        "additionalProperties": False,
    },
)


@contextmanager
def executor(name: str, *capabilities: AgentCapability) -> Iterator[AgentExecutor]:
    """An executor under an id that no other test has."""
    made = AgentExecutor(AgentCard(agent_id=f"{name}-{uuid.uuid4()}", name=name, capabilities=list(capabilities)))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def hotel() -> Iterator[AgentExecutor]:
    with executor("hotel", HOTELS) as made:
        made.register_capability("search_hotels", lambda location: [{"name": f"Hotel {location}", "price": 200}])
        yield made


@pytest.fixture
def flight() -> Iterator[AgentExecutor]:
    with executor("flight") as made:
        yield made


def request(to: AgentExecutor, capability: str | None, content: dict[str, Any], **more: Any) -> A2AMessage:
    plain = {"message_type": MessageType.REQUEST, **more}
    return A2AMessage(from_agent="somebody", to_agent=to.card.agent_id, capability=capability, content=content, **plain)


@pytest.mark.requirement("RF-013-23")
def test_a_request_is_answered_by_a_correlated_response(hotel: AgentExecutor) -> None:
    asked = request(hotel, "search_hotels", {"location": "Paris"}, context_id="trip-1")
    told = hotel.receive_message(asked)
    assert told is not None
    assert (told.message_type, told.correlation_id, told.context_id) == (
        MessageType.RESPONSE,
        asked.message_id,
        "trip-1",
    )
    assert (told.from_agent, told.to_agent) == (hotel.card.agent_id, "somebody")
    assert told.content == {"status": "success", "result": [{"name": "Hotel Paris", "price": 200}]}


def error_of(told: A2AMessage | None) -> dict[str, Any]:
    assert told is not None
    assert told.content["status"] == "error"
    error: dict[str, Any] = told.content["error"]
    return error


def test_what_cannot_be_done_is_answered_with_a_status_of_error(hotel: AgentExecutor) -> None:
    unknown = error_of(hotel.receive_message(request(hotel, "search_hotel", {})))
    assert unknown["code"] == "capability_not_found"
    assert "Did you mean 'search_hotels'?" in unknown["message"]
    assert error_of(hotel.receive_message(request(hotel, None, {})))["code"] == "capability_not_found"
    wrong = error_of(hotel.receive_message(request(hotel, "search_hotels", {})))
    assert (wrong["code"], wrong["message"]) == ("invalid_input", "Missing required parameter: location")

    def broken() -> None:
        raise RuntimeError("no rooms")

    hotel.register_capability("broken", broken)
    failed = error_of(hotel.receive_message(request(hotel, "broken", {})))
    assert failed["code"] == "target_failed"
    assert "no rooms" in failed["message"]


def test_a_capability_without_a_card_is_checked_by_its_signature(flight: AgentExecutor) -> None:
    def book(seat: int) -> int:
        return seat

    flight.register_capability("book", book)
    assert error_of(flight.receive_message(request(flight, "book", {"seat": "x"})))["code"] == "invalid_input"
    assert error_of(flight.receive_message(request(flight, "book", {})))["message"] == (
        "Missing required parameter: seat"
    )


def test_an_event_is_processed_and_answered_by_nothing(hotel: AgentExecutor, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    hotel.register_capability("price_changed", lambda city: heard.append(city))
    event = request(hotel, "price_changed", {"city": "Rome"}, message_type=MessageType.EVENT)
    assert hotel.receive_message(event) is None
    assert heard == ["Rome"]
    with caplog.at_level(logging.WARNING):
        unknown = request(hotel, "nothing", {}, message_type=MessageType.EVENT)
        assert hotel.receive_message(unknown) is None
    assert "was not processed" in caplog.text


def test_a_question_comes_back_as_what_is_needed(hotel: AgentExecutor) -> None:
    async def book(ctx: Any) -> str:
        return str(await ctx.ask("Which room?"))

    hotel.register_capability("book", book)
    told = hotel.receive_message(request(hotel, "book", {}))
    assert told is not None
    assert (told.content["status"], told.content["questions"]) == ("needs", ["Which room?"])


def test_a_message_that_expired_is_not_processed(hotel: AgentExecutor) -> None:
    old = request(hotel, "search_hotels", {"location": "x"}, expires_at=datetime.now() - timedelta(seconds=1))
    assert error_of(hotel.receive_message(old))["code"] == "timeout"


def test_a_message_to_an_executor_of_this_process_is_delivered_and_answered(
    flight: AgentExecutor, hotel: AgentExecutor
) -> None:
    sent = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": "Oslo"})
    told = flight.wait_for_response(sent, timeout=10)
    assert told.correlation_id == sent.message_id
    assert told.content["result"] == [{"name": "Hotel Oslo", "price": 200}]
    assert not flight.outbox


def test_two_executors_ask_each_other_in_the_middle(flight: AgentExecutor, hotel: AgentExecutor) -> None:
    def plan(city: str) -> Any:
        asked = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": city})
        return flight.wait_for_response(asked, 10).content["result"]

    flight.register_capability("plan", plan)
    told = flight.receive_message(request(flight, "plan", {"city": "Bern"}))
    assert told is not None
    assert told.content["result"] == [{"name": "Hotel Bern", "price": 200}]


def test_an_answer_that_is_late_is_a_timeout_and_then_still_there(flight: AgentExecutor, hotel: AgentExecutor) -> None:
    gate = threading.Event()

    def slow() -> str:
        gate.wait(10)
        return "at last"

    hotel.register_capability("slow", slow)
    sent = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "slow")
    with pytest.raises(CallTimeout, match="did not answer message"):
        flight.wait_for_response(sent, timeout=0.05)
    gate.set()
    assert flight.wait_for_response(sent, timeout=10).content["result"] == "at last"
    with pytest.raises(TimeoutError):
        flight.wait_for_response(sent, timeout=0.01)


def test_a_response_that_was_received_is_kept_for_who_waits(flight: AgentExecutor) -> None:
    sent = flight.send_message("elsewhere", MessageType.REQUEST, "x")
    assert flight.receive_message(sent.reply({"status": "success"})) is None
    assert flight.wait_for_response(sent, 0.1).content == {"status": "success"}


def test_messages_to_agents_elsewhere_wait_in_a_bounded_outbox(
    flight: AgentExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OUTBOX", 3)
    sent = [flight.send_message("elsewhere", MessageType.REQUEST, "x", {"n": n}, priority=n) for n in range(3)]
    with pytest.raises(RateLimited, match="3 messages wait"):
        flight.send_message("elsewhere", MessageType.REQUEST, "x")
    assert list(flight.outbox) == sent


def test_replies_that_nobody_reads_are_bounded(flight: AgentExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPLIES", 2)
    sent = [flight.send_message("elsewhere", MessageType.REQUEST, "x") for _ in range(3)]
    for one in sent:
        flight.receive_message(one.reply({}))
    assert flight.wait_for_response(sent[2], 0.01).correlation_id == sent[2].message_id
    with pytest.raises(CallTimeout):
        flight.wait_for_response(sent[0], 0.01)


def test_an_executor_that_left_gets_nothing_more(flight: AgentExecutor) -> None:
    with executor("gone") as gone:
        address = gone.card.agent_id
    sent = flight.send_message(address, MessageType.REQUEST, "x")
    assert list(flight.outbox) == [sent]


def test_a_new_executor_of_the_same_card_takes_its_place(flight: AgentExecutor) -> None:
    card = AgentCard(agent_id=f"twin-{uuid.uuid4()}", name="Twin")
    first, second = AgentExecutor(card), AgentExecutor(card)
    try:
        first.register_capability("who", lambda: "first")
        second.register_capability("who", lambda: "second")
        first.close()
        sent = flight.send_message(card.agent_id, MessageType.REQUEST, "who")
        assert flight.wait_for_response(sent, 10).content["result"] == "second"
    finally:
        second.close()


def test_messages_are_processed_inside_a_running_loop(hotel: AgentExecutor) -> None:
    async def story() -> A2AMessage | None:
        return hotel.receive_message(request(hotel, "search_hotels", {"location": "Rome"}))

    told = asyncio.run(story())
    assert told is not None
    assert told.content["status"] == "success"


def test_an_async_capability_that_would_wait_for_itself_is_told_so_at_once(
    flight: AgentExecutor, hotel: AgentExecutor
) -> None:
    async def plan() -> Any:
        asked = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": "Bern"})
        return flight.wait_for_response(asked, 10).content

    flight.register_capability("plan", plan)
    assert error_of(flight.receive_message(request(flight, "plan", {})))["code"] == "setup"

    async def outside() -> A2AMessage:
        asked = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": "Bern"})
        return flight.wait_for_response(asked, 10)

    assert asyncio.run(outside()).content["status"] == "success"


def test_one_agent_coordinates_many(flight: AgentExecutor) -> None:
    with ExitStack() as stack:
        others = [stack.enter_context(executor(f"helper{number}")) for number in range(10)]
        for number, one in enumerate(others):
            one.register_capability("do", lambda number=number: number)
        sent = [flight.send_message(one.card.agent_id, MessageType.REQUEST, "do") for one in others]
        assert [flight.wait_for_response(one, 10).content["result"] for one in sent] == list(range(10))
