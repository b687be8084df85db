"""AgentExecutor as documented: sending, receiving, answering, within one process."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent3 import A2AMessage, AgentCapability, AgentCard, AgentExecutor, MessageType
from agent3.errors import CallTimeout, RateLimited, Unavailable
from agent3.observe import traces
from agent3.protocols.a2a.agents import consumer, mailboxes
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Rules
from agent3.settings import Calls, Limits, Settings, Storage

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
def executor(name: str, *capabilities: AgentCapability, rules: Rules | None = None) -> Iterator[AgentExecutor]:
    """An executor under an id that no other test has."""
    card = AgentCard(agent_id=f"{name}-{uuid.uuid4()}", name=name, capabilities=list(capabilities))
    made = AgentExecutor(card, rules=rules)
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
    reply = hotel.receive_message(asked)
    assert reply is not None
    assert (reply.message_type, reply.correlation_id, reply.context_id) == (
        MessageType.RESPONSE,
        asked.message_id,
        "trip-1",
    )
    assert (reply.from_agent, reply.to_agent) == (hotel.card.agent_id, "somebody")
    assert reply.content == {"status": "success", "result": [{"name": "Hotel Paris", "price": 200}]}


def error_of(reply: A2AMessage | None) -> dict[str, Any]:
    assert reply is not None
    assert reply.content["status"] == "error"
    error: dict[str, Any] = reply.content["error"]
    return error


def test_what_cannot_be_done_is_answered_with_a_status_of_error(hotel: AgentExecutor) -> None:
    unknown = error_of(hotel.receive_message(request(hotel, "search_hotel", {})))
    assert unknown["code"] == "capability_not_found"
    assert "Did you mean 'search_hotels'?" in unknown["message"]
    assert error_of(hotel.receive_message(request(hotel, None, {})))["code"] == "capability_not_found"
    stray = request(hotel, "search_hotels", {"location": "Paris"}).model_copy(update={"to_agent": "motel"})
    assert error_of(hotel.receive_message(stray))["message"].startswith("The message is for 'motel'; this is 'hotel-")
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
    reply = hotel.receive_message(request(hotel, "book", {}))
    assert reply is not None
    assert (reply.content["status"], reply.content["questions"]) == ("needs", ["Which room?"])


def test_a_message_that_expired_is_not_processed(hotel: AgentExecutor) -> None:
    old = request(hotel, "search_hotels", {"location": "x"}, expires_at=datetime.now() - timedelta(seconds=1))
    assert error_of(hotel.receive_message(old))["code"] == "timeout"


def test_a_message_to_an_executor_of_this_process_is_delivered_and_answered(
    flight: AgentExecutor, hotel: AgentExecutor
) -> None:
    sent = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": "Oslo"})
    reply = flight.wait_for_response(sent, timeout=60)
    assert reply.correlation_id == sent.message_id
    assert reply.content["result"] == [{"name": "Hotel Oslo", "price": 200}]
    assert flight.waiting(hotel.card.agent_id) == 0


def test_two_executors_ask_each_other_in_the_middle(flight: AgentExecutor, hotel: AgentExecutor) -> None:
    def plan(city: str) -> Any:
        asked = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": city})
        return flight.wait_for_response(asked, 60).content["result"]

    flight.register_capability("plan", plan)
    reply = flight.receive_message(request(flight, "plan", {"city": "Bern"}))
    assert reply is not None
    assert reply.content["result"] == [{"name": "Hotel Bern", "price": 200}]


@pytest.mark.requirement("RF-013-31")
def test_an_answer_that_is_late_is_a_timeout_and_then_still_there(flight: AgentExecutor, hotel: AgentExecutor) -> None:
    gate = threading.Event()

    def slow() -> str:
        gate.wait(60)
        return "at last"

    hotel.register_capability("slow", slow)
    sent = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "slow")
    with pytest.raises(CallTimeout, match="did not answer message"):
        flight.wait_for_response(sent, timeout=0.05)
    gate.set()
    assert flight.wait_for_response(sent, timeout=60).content["result"] == "at last"
    with pytest.raises(TimeoutError):
        flight.wait_for_response(sent, timeout=0.01)


def test_a_response_that_was_received_is_kept_for_who_waits(flight: AgentExecutor) -> None:
    sent = flight.send_message("elsewhere", MessageType.REQUEST, "x")
    assert flight.receive_message(sent.reply({"status": "success"})) is None
    assert flight.wait_for_response(sent, 0.1).content == {"status": "success"}


def test_an_agent_that_was_not_asked_answers_nothing(flight: AgentExecutor, hotel: AgentExecutor) -> None:
    sent = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": "Oslo"})
    forged = sent.reply({"status": "success", "result": "pay me"}).model_copy(update={"from_agent": "stranger"})
    assert flight.receive_message(forged) is None
    assert flight.wait_for_response(sent, timeout=60).content["result"] == [{"name": "Hotel Oslo", "price": 200}]
    with pytest.raises(TimeoutError):
        flight.wait_for_response(sent, timeout=0.01)


@pytest.mark.requirement("RF-013-29", "RF-013-30")
def test_messages_wait_for_their_agent_in_a_bounded_box_and_the_urgent_ones_are_first(flight: AgentExecutor) -> None:
    with executor("late", rules=Rules(bound=3)) as late:
        late.set_status("suspended")
        name = late.card.agent_id
        for number in range(3):
            flight.send_message(name, MessageType.EVENT, "x", {"n": number}, priority=number)
        with pytest.raises(RateLimited, match="3 messages"):
            flight.send_message(name, MessageType.EVENT, "x")
        assert flight.waiting(name) == late.waiting() == 3
        heard: list[int] = []
        full = threading.Event()

        def hear(n: int) -> None:
            heard.append(n)
            if len(heard) == 3:
                full.set()

        late.register_capability("x", hear)
        consumer.AT_ONCE = 1
        try:
            late.set_status("active")
            assert full.wait(60)
        finally:
            consumer.AT_ONCE = 64
        assert heard == [2, 1, 0]


def test_replies_that_nobody_reads_are_bounded(flight: AgentExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "_MOST_ANSWERS", 2)
    monkeypatch.setattr(mailboxes, "_TRIM_EVERY", 1)
    sent = [flight.send_message("elsewhere", MessageType.REQUEST, "x") for _ in range(3)]
    for message in sent:
        flight.receive_message(message.reply({}))
    assert flight.wait_for_response(sent[2], 0.01).correlation_id == sent[2].message_id
    with pytest.raises(CallTimeout):
        flight.wait_for_response(sent[0], 0.01)


def test_an_executor_that_left_gets_nothing_more(flight: AgentExecutor) -> None:
    with executor("gone") as gone:
        address = gone.card.agent_id
    flight.send_message(address, MessageType.REQUEST, "x")
    assert flight.waiting(address) == 1


def test_a_new_executor_of_the_same_card_takes_its_place(flight: AgentExecutor) -> None:
    card = AgentCard(agent_id=f"twin-{uuid.uuid4()}", name="Twin")
    first, second = AgentExecutor(card), AgentExecutor(card)
    try:
        first.register_capability("who", lambda: "first")
        second.register_capability("who", lambda: "second")
        first.close()
        sent = flight.send_message(card.agent_id, MessageType.REQUEST, "who")
        assert flight.wait_for_response(sent, 60).content["result"] == "second"
    finally:
        second.close()


def test_messages_are_processed_inside_a_running_loop(hotel: AgentExecutor) -> None:
    async def story() -> A2AMessage | None:
        return hotel.receive_message(request(hotel, "search_hotels", {"location": "Rome"}))

    reply = asyncio.run(story())
    assert reply is not None
    assert reply.content["status"] == "success"


def test_an_async_capability_that_would_wait_for_itself_is_told_so_at_once(
    flight: AgentExecutor, hotel: AgentExecutor
) -> None:
    async def plan() -> Any:
        asked = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": "Bern"})
        return flight.wait_for_response(asked, 60).content

    flight.register_capability("plan", plan)
    assert error_of(flight.receive_message(request(flight, "plan", {})))["code"] == "setup"

    async def outside() -> A2AMessage:
        asked = flight.send_message(hotel.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": "Bern"})
        return flight.wait_for_response(asked, 60)

    assert asyncio.run(outside()).content["status"] == "success"


def test_one_agent_coordinates_many(flight: AgentExecutor) -> None:
    with ExitStack() as stack:
        others = [stack.enter_context(executor(f"helper{number}")) for number in range(10)]
        for number, helper in enumerate(others):
            helper.register_capability("do", lambda number=number: number)
        sent = [flight.send_message(helper.card.agent_id, MessageType.REQUEST, "do") for helper in others]
        assert [flight.wait_for_response(message, 60).content["result"] for message in sent] == list(range(10))


@contextmanager
def core(folder: Path, **calls: Any) -> Iterator[Standalone]:
    """A core on a file, as one process would have it."""
    made = Standalone(
        Settings(storage=Storage(url=f"sqlite:///{folder}/house.db"), calls=Calls(**calls), limits=Limits(per_minute=0))
    )
    try:
        yield made
    finally:
        made.close()


def named(name: str, house: Standalone, **more: Any) -> AgentExecutor:
    return AgentExecutor(AgentCard(agent_id=name, name=name), core=house, **more)


@pytest.mark.requirement("RF-013-22")
def test_sending_waits_for_nobody_and_says_so_in_time(flight: AgentExecutor) -> None:
    before = datetime.now()
    sent = flight.send_message("nobody", MessageType.REQUEST, "search_hotels")
    assert before <= sent.timestamp <= datetime.now()
    assert sent.from_agent == flight.card.agent_id


def test_async_code_of_any_loop_sends_and_asks(flight: AgentExecutor, hotel: AgentExecutor) -> None:
    async def outside() -> A2AMessage:
        return await flight.ask(hotel.card.agent_id, "search_hotels", {"location": "Bern"}, 60)

    assert asyncio.run(outside()).content["status"] == "success"

    async def inside() -> Any:
        return (await flight.ask(hotel.card.agent_id, "search_hotels", {"location": "Rome"}, 60)).content["result"]

    flight.register_capability("inside", inside)
    reply = flight.receive_message(request(flight, "inside", {}))
    assert reply is not None
    assert reply.content["result"] == [{"name": "Hotel Rome", "price": 200}]


def test_every_public_method_of_an_object_is_a_capability(hotel: AgentExecutor) -> None:
    class Desk:
        def check_in(self, guest: str) -> str:
            return f"welcome {guest}"

        async def check_out(self) -> str:
            return "bye"

        def _hidden(self) -> None: ...

    assert sorted(hotel.register_object(Desk())) == ["check_in", "check_out"]
    assert {capability.name for capability in hotel.full_card().capabilities} == {
        "search_hotels",
        "check_in",
        "check_out",
    }
    reply = hotel.receive_message(request(hotel, "check_in", {"guest": "Ann"}))
    assert reply is not None
    assert reply.content["result"] == "welcome Ann"


@pytest.mark.requirement("RF-013-36", "RF-013-31")
def test_messages_and_late_answers_outlive_their_process(tmp_path: Path) -> None:
    with core(tmp_path) as before, named("flight", before) as flight:
        sent = flight.send_message("hotel", MessageType.REQUEST, "search", {"city": "Rome"})
        with pytest.raises(CallTimeout):
            flight.wait_for_response(sent, 0.01)
    with core(tmp_path) as between, named("hotel", between) as hotel:
        hotel.register_capability("search", lambda city: f"rooms in {city}")
        hotel.start()
        until(lambda: hotel.waiting() == 0)
    with core(tmp_path) as after, named("flight", after) as flight:
        assert flight.wait_for_response(sent, 60).content == {"status": "success", "result": "rooms in Rome"}


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.005)


def test_a_message_that_is_delivered_twice_is_done_once(tmp_path: Path) -> None:
    done: list[int] = []
    with core(tmp_path) as house, named("hotel", house) as hotel:

        def book(n: int) -> int:
            done.append(n)
            return len(done)

        hotel.register_capability("book", book)
        asked = request(hotel, "book", {"n": 7})
        first, second = hotel.receive_message(asked), hotel.receive_message(asked)
        assert first is not None
        assert second is not None
        assert first.content == second.content == {"status": "success", "result": 1}
        changed = hotel.receive_message(asked.model_copy(update={"content": {"n": 8}}))
        assert error_of(changed)["code"] == "conflict"
    assert done == [7]


@pytest.mark.requirement("RF-013-32", "RF-013-37")
def test_an_event_that_fails_is_tried_again_and_then_lies_with_the_dead_letters(flight: AgentExecutor) -> None:
    with executor("shaky", rules=Rules(attempts=2, first_delay=0.001, longest_delay=0.001)) as shaky:
        tried: list[int] = []
        well = False
        over = threading.Event()

        def hear(n: int) -> None:
            tried.append(n)
            if not well:
                raise RuntimeError("no")
            over.set()

        shaky.register_capability("hear", hear)
        flight.send_message(shaky.card.agent_id, MessageType.EVENT, "hear", {"n": 1})
        until(lambda: len(shaky.dead_letters()) == 1)
        (letter,) = shaky.dead_letters()
        assert (tried, letter.attempts) == ([1, 1], 2)
        assert "RuntimeError: no" in letter.reason
        flight.send_message(shaky.card.agent_id, MessageType.EVENT, "hear", {"n": "x", "y": 1})
        until(lambda: len(shaky.dead_letters()) == 2)
        assert len(tried) == 2  # what can never be is not tried again
        well = True
        assert shaky.replay_dead_letters(letter.message_id) == 1
        assert over.wait(60)


@pytest.mark.requirement("RF-013-32")
def test_with_a_database_an_event_is_tried_again_too_and_no_more_when_it_worked(tmp_path: Path) -> None:
    tried: list[int] = []
    rules = Rules(first_delay=0.001, longest_delay=0.001)
    with core(tmp_path) as house, named("shaky", house, rules=rules) as shaky:

        def hear(n: int) -> None:
            tried.append(n)
            if len(tried) < 3:
                raise RuntimeError("not yet")

        shaky.register_capability("hear", hear)
        shaky.send_message("shaky", MessageType.EVENT, "hear", {"n": 1})
        until(lambda: len(tried) == 3 and shaky.waiting() == 0)
        assert shaky.dead_letters() == []


@pytest.mark.requirement("RF-013-38")
def test_an_agent_that_keeps_failing_is_left_alone_and_asked_again_later(tmp_path: Path) -> None:
    asked: list[int] = []
    well = False
    with core(tmp_path, breaker_failures=3, breaker_seconds=3.0, retries=0) as house, named("hotel", house) as hotel:

        def search() -> str:
            asked.append(1)
            if not well:
                raise Unavailable("the hotel's own database is down")
            return "rooms"

        hotel.register_capability("search", search)
        codes = [error_of(hotel.receive_message(request(hotel, "search", {})))["code"] for _ in range(5)]
        assert codes == ["unavailable"] * 3 + ["circuit_open"] * 2
        assert len(asked) == 3
        well = True

        def answered() -> bool:
            reply = hotel.receive_message(request(hotel, "search", {}))
            return reply is not None and reply.content["status"] == "success"

        until(answered)
        assert len(asked) == 4


@pytest.mark.requirement("RF-013-40")
def test_one_trace_leads_through_three_agents(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracer = traces.otel(SimpleSpanProcessor(exporter))
    house = Standalone(Settings(storage=Storage(url=f"sqlite:///{tmp_path}/house.db")), tracer=tracer)
    agency, flight, hotel = (named(name, house) for name in ("agency", "flight", "hotel"))
    try:
        hotel.register_capability("find", lambda: "room")
        flight.register_capability("book", lambda: flight.request("hotel", "find", timeout=60).content["result"])

        async def trip() -> Any:
            return (await agency.ask("flight", "book", timeout=60)).content["result"]

        agency.register_capability("trip", trip)
        asked = A2AMessage(from_agent="user", to_agent="agency", message_type=MessageType.REQUEST, capability="trip")
        reply = agency.receive_message(asked)
        assert reply is not None
        assert reply.content == {"status": "success", "result": "room"}
        rows = house.run(_trace_rows(house))
    finally:
        for agent in (agency, flight, hotel):
            agent.close()
        house.close()
        tracer.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"agency/trip", "flight/book", "hotel/find"}
    assert len({span.context.trace_id for span in spans.values()}) == 1
    parents = {name: span.parent.span_id for name, span in spans.items() if span.parent is not None}
    assert parents == {
        "flight/book": spans["agency/trip"].context.span_id,
        "hotel/find": spans["flight/book"].context.span_id,
    }
    trace = f"{spans['agency/trip'].context.trace_id:032x}"
    assert rows == {"agency": trace, "flight": trace, "hotel": trace}


async def _trace_rows(house: Standalone) -> dict[str, str]:
    inside = await house.call_core()
    await inside.ledger.flush()
    return {row["agent"]: row["trace"] for row in await inside.database.all("SELECT agent, trace FROM calls")}


@pytest.mark.requirement("RF-013-40")
def test_without_a_tracer_messages_still_carry_the_trace_of_their_call(tmp_path: Path) -> None:
    with core(tmp_path) as house, named("flight", house) as flight, named("hotel", house) as hotel:
        hotel.register_capability("find", lambda: "room")
        flight.register_capability("book", lambda: flight.request("hotel", "find", timeout=60).content["result"])
        began = flight.send_message("flight", MessageType.REQUEST, "book")
        assert began.traceparent is not None
        assert flight.wait_for_response(began, 60).content["result"] == "room"
        assert house.run(_trace_rows(house)) == dict.fromkeys(("flight", "hotel"), began.traceparent.split("-")[1])


def test_a_message_for_somebody_else_or_of_no_form_is_a_dead_letter(hotel: AgentExecutor) -> None:
    async def put(body: bytes) -> None:
        queue = await mailboxes.mailboxes_of(hotel.core).open(mailboxes.request_box(hotel.card.agent_id))
        await queue.put(body)

    hotel.core.run(put(b"{}"))
    stray = A2AMessage(from_agent="a", to_agent="another", message_type=MessageType.EVENT)
    hotel.core.run(put(stray.model_dump_json().encode()))
    until(lambda: len(hotel.dead_letters()) == 2)
    reasons = [letter.reason for letter in hotel.dead_letters()]
    assert "Not a valid message" in reasons[0]
    assert "is for 'another'" in reasons[1]


def test_what_the_card_promises_is_waited_for_until_it_is_registered(flight: AgentExecutor) -> None:
    with executor("slow", HOTELS, rules=Rules(attempts=200, first_delay=0.02, longest_delay=0.02)) as late:
        late.start()
        sent = flight.send_message(late.card.agent_id, MessageType.REQUEST, "search_hotels", {"location": "Rome"})
        late.register_capability("search_hotels", lambda location: location)
        assert flight.wait_for_response(sent, 60).content["status"] == "success"


def test_boxes_that_nobody_uses_are_forgotten_and_those_in_use_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "_MOST_QUEUES", 3)
    house = Standalone()
    with named("flight", house) as flight, named("hotel", house) as hotel:
        hotel.register_capability("x", lambda: 1)
        flight.send_message("nobody", MessageType.EVENT, "x")
        for number in range(20):
            assert flight.waiting(f"stranger {number}") == 0
        assert len(mailboxes.mailboxes_of(house)._queues) < 10
        assert flight.waiting("nobody") == 1
        assert flight.request("hotel", "x", timeout=60).content["result"] == 1
    house.close()


def test_an_executor_that_nobody_holds_takes_no_messages(flight: AgentExecutor) -> None:
    name = f"lost-{uuid.uuid4()}"
    lost = AgentExecutor(AgentCard(agent_id=name, name="Lost"))
    lost.register_capability("x", lambda: 1)
    lost.start()
    del lost
    gc.collect()
    until(lambda: name not in AgentExecutor._local[flight.core])
    flight.send_message(name, MessageType.EVENT, "x")
    assert flight.waiting(name) == 1
