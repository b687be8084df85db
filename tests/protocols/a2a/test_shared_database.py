"""Agents of several programs on one database: messages, late answers, topics, artifacts, plans and cards."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
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
from agent3.queue.messages import checksum
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


@pytest.mark.requirement("RF-013-26", "RF-013-27")
def test_with_a_master_key_messages_are_encrypted_and_one_of_a_stranger_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing but the key is given: neither encryption nor identity nor verifier."""
    file = tmp_path / "sealed.db"
    settings = Settings(storage=Storage(url=f"sqlite:///{file}"), server=Server(shutdown_seconds=0.1))

    def bodies() -> list[tuple[str, bytes]]:
        with closing(sqlite3.connect(file)) as raw:
            return raw.execute("SELECT id, body FROM queue_messages ORDER BY seq").fetchall()

    monkeypatch.setenv("KEY", "a-master-key-of-the-operator")
    monkeypatch.setenv("AGENT3_STORAGE_SEAL", "env:KEY")
    core, done = Standalone(settings), list[str]()
    try:
        with (
            AgentExecutor(AgentCard(agent_id="bank", name="Bank"), core=core) as bank,
            AgentExecutor(AgentCard(agent_id="shop", name="Shop"), core=core) as shop,
        ):
            shop.send_message("bank", MessageType.REQUEST, "pay", {"to": "the-baker"})
            ((_, body),) = bodies()
            assert b"baker" not in body
            forged = A2AMessage(
                from_agent="shop",
                to_agent="bank",
                message_type=MessageType.EVENT,
                capability="pay",
                content={"to": "me"},
            )
            plain = forged.model_dump_json().encode()
            with closing(sqlite3.connect(file)) as raw:
                raw.execute(
                    "INSERT INTO queue_messages (id, queue, priority, state, due, put, body, checksum) "
                    "SELECT ?, queue, 9, 'ready', due, put, ?, ? FROM queue_messages",
                    (forged.message_id, plain, checksum(forged.message_id, None, plain)),
                )
                raw.commit()
            bank.register_capability("pay", lambda to: done.append(to))
            until(lambda: done == ["the-baker"] and bool(bank.dead_letters()))
            assert [letter.message_id for letter in bank.dead_letters()] == [forged.message_id]
    finally:
        core.close()
    assert "senders not verified" not in caplog.text
    monkeypatch.delenv("AGENT3_STORAGE_SEAL")
    open_core = Standalone(Settings(storage=Storage(url=f"sqlite:///{tmp_path}/open.db")))
    try:
        with AgentExecutor(AgentCard(agent_id="bank", name="Bank"), core=open_core):
            assert "not encrypted, and their senders not verified" in caplog.text
    finally:
        open_core.close()
