"""RF-013's criteria and RT-014's targets for A2A, as the documents word them; their bounds are their own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from agent3 import (
    A2AEncryption,
    A2AIdentityVerifier,
    A2AMessage,
    AgentCapability,
    AgentCard,
    AgentExecutor,
    AgentIdentity,
    AgentRegistry,
    MessageType,
)
from agent3.protocols.functions.standalone import Standalone


@pytest.fixture
def pair() -> Iterator[tuple[AgentExecutor, AgentExecutor]]:
    flight, hotel = (
        AgentExecutor(AgentCard(agent_id=f"{name}-{uuid.uuid4()}", name=name)) for name in ("flight", "hotel")
    )
    hotel.register_capability("search_hotels", lambda location: [{"name": f"Hotel {location}"}])
    hotel.start()
    yield flight, hotel
    flight.close()
    hotel.close()


def measured(work: Callable[[], object], times: int) -> tuple[float, float]:
    """The least seconds that it took, and how many a second that makes: a busy machine has no say in the best of many.

    How it does on average is measured by ``bench.a2a``.
    """
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took), 1 / min(took)


Pair = tuple[AgentExecutor, AgentExecutor]


def asked(hotel: AgentExecutor) -> A2AMessage:
    return A2AMessage(
        from_agent="flight",
        to_agent=hotel.card.agent_id,
        message_type=MessageType.REQUEST,
        capability="search_hotels",
        content={"location": "Paris"},
    )


@pytest.mark.requirement("RT-014-P05", "RF-013-V2")
def test_sending_takes_less_than_50_ms_and_does_200_a_second(pair: Pair) -> None:
    seconds, rate = measured(lambda: pair[0].send_message("nobody", MessageType.EVENT, "x", {"n": 1}), 100)
    assert (seconds < 0.05, rate >= 200) == (True, True), (seconds, rate)


@pytest.mark.requirement("RT-014-P06", "RF-013-V2")
def test_receiving_takes_less_than_100_ms_and_does_100_a_second(pair: Pair) -> None:
    seconds, rate = measured(lambda: pair[1].receive_message(asked(pair[1])), 100)
    assert (seconds < 0.1, rate >= 100) == (True, True), (seconds, rate)


@pytest.mark.requirement("RT-014-P07", "RF-013-V2")
def test_discovery_among_a_thousand_takes_less_than_200_ms_and_does_50_a_second() -> None:
    registry = AgentRegistry()
    for number in range(1_000):
        registry.register_agent(
            AgentCard(agent_id=f"a{number}", name="A", capabilities=[AgentCapability(name=f"c{number % 100}")])
        )
    seconds, rate = measured(lambda: registry.discover_agents(capability_required="c7"), 50)
    assert len(registry.discover_agents(capability_required="c7")) == 10
    assert (seconds < 0.2, rate >= 50) == (True, True), (seconds, rate)


@pytest.mark.requirement("RT-014-P08")
def test_creating_an_artifact_takes_less_than_100_ms_and_does_100_a_second(pair: Pair) -> None:
    seconds, rate = measured(lambda: pair[0].create_artifact({"offer": "x" * 1_000}), 100)
    assert (seconds < 0.1, rate >= 100) == (True, True), (seconds, rate)


@pytest.mark.requirement("RT-014-P09", "RF-013-V2")
def test_invoking_a_capability_takes_less_than_a_second_and_does_20_a_second(pair: Pair) -> None:
    flight, hotel = pair
    content = {"location": "Paris"}
    seconds, rate = measured(lambda: flight.request(hotel.card.agent_id, "search_hotels", content, 60), 50)
    assert (seconds < 1.0, rate >= 20) == (True, True), (seconds, rate)


@pytest.mark.requirement("RT-014-C02")
def test_messages_between_agents_cost_nothing() -> None:
    core = Standalone()
    with (
        AgentExecutor(AgentCard(agent_id="a", name="A"), core=core) as asker,
        AgentExecutor(AgentCard(agent_id="b", name="B"), core=core) as other,
    ):
        other.register_capability("do", lambda: "x" * 1_000)
        for _ in range(3):
            assert asker.request("b", "do", timeout=60).content["status"] == "success"

        async def spent() -> list[float]:
            house = await core.call_core()
            await house.ledger.flush()
            return [row["cost"] for row in await house.database.all("SELECT cost FROM calls")]

        assert core.run(spent()) == [0.0, 0.0, 0.0]
    core.close()


@pytest.mark.requirement("RF-013-V2")
def test_encryption_and_identity_together_let_a_message_through_and_nothing_else() -> None:
    key = A2AEncryption.key()
    names = [f"{name}-{uuid.uuid4()}" for name in ("flight", "hotel")]
    identities = [AgentIdentity(name) for name in names]
    verifier = A2AIdentityVerifier()
    for identity in identities:
        verifier.register_agent(identity.agent_id, identity.public_key)
    flight, hotel = (
        AgentExecutor(
            AgentCard(agent_id=who.agent_id, name="X"),
            encryption=A2AEncryption(key),
            identity=who,
            verifier=verifier,
        )
        for who in identities
    )
    with flight, hotel:
        hotel.register_capability("search", lambda: "rooms")
        assert flight.request(names[1], "search", timeout=60).content["result"] == "rooms"
        unsigned = asked(hotel).model_copy(update={"from_agent": names[0]})
        reply = hotel.receive_message(unsigned)
        assert reply is not None
        assert reply.content["error"]["code"] == "unauthenticated"
