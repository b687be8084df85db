"""Agents of several programs on one database: messages, late answers, topics, artifacts, plans and cards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent3 import (
    A2AIdentityVerifier,
    A2AMessage,
    AgentCapability,
    AgentCard,
    AgentExecutor,
    AgentIdentity,
    AgentRegistry,
    Coordinator,
    HealthMonitor,
    MessageType,
)
from agent3.errors import CallTimeout, NotFound
from agent3.protocols.a2a.agents import mailboxes
from agent3.protocols.a2a.agents.coordination import step
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Limits, Server, Settings, Storage
from tests.support.postgres import new_database_url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def cores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Standalone, Standalone]]:
    """Two cores on one database, as two programs would have them."""
    url = f"sqlite:///{tmp_path}/house.db" if request.param == "sqlite" else new_database_url()
    storage = Storage(url=url, artifacts=str(tmp_path / "artifacts"))
    settings = Settings(storage=storage, limits=Limits(per_minute=0), server=Server(shutdown_seconds=0.1))
    made = Standalone(settings), Standalone(settings)
    yield made
    for core in made:
        core.close()


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.01)


@pytest.mark.requirement("RF-013-22", "RF-013-28", "RF-013-33", "RF-013-36")
def test_agents_of_two_programs_work_together(
    cores: tuple[Standalone, Standalone], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "_TRIM_EVERY", 1)
    here, there = cores
    registry = AgentRegistry(core=here)
    card = AgentCard(agent_id="hotel", name="Hotel", capabilities=[AgentCapability(name="search", tags=["rooms"])])
    with ExitStack() as stack:
        flight = stack.enter_context(AgentExecutor(AgentCard(agent_id="flight", name="Flight"), core=here))
        coordinator = Coordinator(flight)
        asked = flight.send_message("hotel", MessageType.REQUEST, "search", {"city": "Rome"})
        with pytest.raises(CallTimeout):
            flight.wait_for_response(asked, 0.01)

        hotel = stack.enter_context(AgentExecutor(card, core=there, registry=AgentRegistry(core=there)))
        heard: list[int] = []
        hotel.register_capability("search", lambda city: f"rooms in {city}")
        hotel.subscribe("prices.*", lambda n: heard.append(n))
        hotel.start()
        assert flight.wait_for_response(asked, 60).content["result"] == "rooms in Rome"

        assert flight.broadcast("prices.rome", {"n": 1}).sent == ("hotel",)
        until(lambda: heard == [1])
        until(lambda: [found.agent_id for found in registry.discover_agents("search", tag="rooms")] == ["hotel"])
        assert coordinator.run([step("a", "hotel", "search", {"city": "Oslo"})]).result("a") == "rooms in Oslo"

        offer = flight.create_artifact("offer")
        with pytest.raises(NotFound):
            hotel.artifacts.read(offer.artifact_id)
        flight.share_artifact(offer.artifact_id, "hotel")
        assert hotel.artifacts.read(offer.artifact_id).body == b"offer"
        assert hotel.artifacts.open(flight.artifacts.link(offer.artifact_id)).body == b"offer"

        health = HealthMonitor(registry, executor=flight, core=there).check()
        assert [(each.agent, each.state) for each in health] == [("hotel", "healthy")]
        assert health[0].lease_left is not None
        assert health[0].passive.calls == 3
        assert hotel.unsubscribe() == 1


def test_a_copy_of_a_message_is_known_in_both_programs(cores: tuple[Standalone, Standalone]) -> None:
    identity = AgentIdentity("flight")
    sent = A2AMessage(from_agent="flight", to_agent="hotel", message_type=MessageType.EVENT)
    accepted = []
    for core in cores:
        verifier = A2AIdentityVerifier(core=core)
        verifier.register_agent("flight", identity.public_key)
        accepted.append(verifier.verify_message_signature(sent, identity.sign(sent)))
    assert accepted == [True, False]
