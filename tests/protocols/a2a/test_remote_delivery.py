"""Messages to agents that are known by an address alone: over A2A to our own endpoint and to the official SDK."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

import agent3.a2a
from agent3 import A2AEncryption, AgentCapability, AgentCard, AgentExecutor, AgentRegistry, MessageType
from agent3.errors import CallTimeout, Unauthenticated
from agent3.model import Principal
from agent3.protocols.a2a.agents import mailboxes
from agent3.protocols.a2a.cards.negotiation import Wants
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Rules
from agent3.settings import Calls, Settings, Storage
from tests.support.a2a_peers import official

SOON = 60.0
QUICK = Calls(backoff=0.001, backoff_max=0.002, retries=0, breaker_failures=100)


@pytest.fixture
def core() -> Iterator[Standalone]:
    made = Standalone(Settings(calls=QUICK))
    yield made
    made.close()


class Hotel:
    """An agent on the network, in a core of its own."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.came = threading.Event()
        self.gate = threading.Event()
        self.agent = LocalAgent("hotel", description="Rooms")
        for function in (self.book, self.hold, self.note, self.fail):
            self.agent.add(function)

    def book(self, city: str, nights: int) -> dict[str, Any]:
        """Book a room."""
        return {"city": city, "nights": nights}

    def hold(self, city: str) -> str:
        """Wait until it is let."""
        self.heard.append(city)
        self.came.set()
        self.gate.wait(SOON)
        return f"held in {city}"

    def note(self, text: str) -> None:
        """Take a note."""
        self.heard.append(text)
        self.came.set()

    def fail(self) -> None:
        """Fail."""
        raise RuntimeError("no rooms at all")


@pytest.fixture
def hotel() -> Hotel:
    return Hotel()


@pytest.fixture
def url(hotel: Hotel) -> Iterator[str]:
    away = Standalone()
    with agent3.a2a.listening(hotel.agent, core=away) as address:
        yield address
    hotel.gate.set()
    away.close()


def elsewhere(url: str, **more: Any) -> AgentCard:
    return AgentCard(agent_id="hotel", name="Hotel", url=url, **more)


def agency(core: Standalone, *known: AgentCard, **more: Any) -> AgentExecutor:
    registry = AgentRegistry(core=core if core.durable else None)
    for card in known:
        registry.register_agent(card)
    return AgentExecutor(AgentCard(agent_id="agency", name="Agency"), core=core, registry=registry, **more)


@pytest.mark.requirement("RF-013-22", "RF-013-31")
def test_an_agent_known_by_its_address_is_asked_and_answers(core: Standalone, url: str) -> None:
    with agency(core, elsewhere(url)) as sender:
        reply = sender.request("hotel", "book", {"city": "Rome", "nights": 2}, timeout=SOON)
        assert (reply.message_type, reply.from_agent) == (MessageType.RESPONSE, "hotel")
        assert reply.content == {"status": "success", "result": {"city": "Rome", "nights": 2}}
        wrong = sender.request("hotel", "bok", {}, timeout=SOON).content
        assert (wrong["error"]["code"], "book" in wrong["error"]["message"]) == ("capability_not_found", True)
        failed = sender.request("hotel", "fail", {}, timeout=SOON).content
        assert "no rooms at all" in failed["error"]["message"]
        assert sender.negotiate("hotel", Wants(versions=("1.0",)), timeout=SOON).version == "1.0"
        assert sender.dead_letters() == []


def test_an_agent_of_the_official_sdk_is_asked_in_words(core: Standalone) -> None:
    with official("HTTP+JSON", "1.0") as peer, agency(core, elsewhere(peer.url)) as sender:
        reply = sender.request("hotel", "talk", {"message": "a room, please"}, timeout=SOON)
        assert reply.content == {"status": "success", "result": "echo: a room, please"}
        asked = sender.request("hotel", "talk", {"message": "ask me"}, timeout=SOON).content
        assert (asked["status"], asked["questions"]) == ("needs", ["Which size?"])


def test_an_event_is_broadcast_to_an_agent_elsewhere(core: Standalone, hotel: Hotel, url: str) -> None:
    with agency(core, elsewhere(url)) as sender:
        sender.subscribe_agent("hotel", "trips.*", "note")
        broadcast = sender.broadcast("trips.rome", {"text": "to Rome"})
        assert broadcast.sent == ("hotel",)
        assert hotel.came.wait(SOON)
        assert hotel.heard == ["to Rome"]


def test_a_late_answer_can_be_read(core: Standalone, hotel: Hotel, url: str) -> None:
    with agency(core, elsewhere(url)) as sender:
        sent = sender.send_message("hotel", MessageType.REQUEST, "hold", {"city": "Rome"})
        with pytest.raises(CallTimeout):
            sender.wait_for_response(sent, 0.1)
        hotel.gate.set()
        assert sender.wait_for_response(sent, SOON).content["result"] == "held in Rome"


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_what_does_not_arrive_is_tried_again(core: Standalone, hotel: Hotel) -> None:
    port, away = a_free_port(), Standalone()
    with agency(core, elsewhere(f"http://127.0.0.1:{port}")) as sender:
        patient = Rules(attempts=1_000, first_delay=0.01, longest_delay=0.05)
        sender._mailboxes.set_rules(sender._delivery.box_for("hotel"), patient)
        sent = sender.send_message("hotel", MessageType.REQUEST, "book", {"city": "Rome", "nights": 1})
        with pytest.raises(CallTimeout):
            sender.wait_for_response(sent, 0.1)
        assert sender.waiting("hotel") == 1
        with agent3.a2a.listening(hotel.agent, port=port, core=away):
            assert sender.wait_for_response(sent, SOON).content["status"] == "success"
        assert sender.waiting("hotel") == 0
    away.close()


@pytest.mark.requirement("RF-013-37")
def test_what_never_arrives_is_a_dead_letter_and_is_replayed(core: Standalone, hotel: Hotel) -> None:
    port, away = a_free_port(), Standalone()
    with agency(core, elsewhere(f"http://127.0.0.1:{port}")) as sender:
        sender._mailboxes.set_rules(
            sender._delivery.box_for("hotel"), Rules(attempts=2, first_delay=0.01, longest_delay=0.02)
        )
        failed = sender.request("hotel", "book", {"city": "Rome", "nights": 1}, timeout=SOON)
        assert failed.content["error"]["code"] == "unavailable"
        (letter,) = sender.dead_letters()
        assert (letter.message_id, letter.attempts) == (failed.correlation_id, 2)
        with agent3.a2a.listening(hotel.agent, port=port, core=away):
            assert sender.replay_dead_letters(letter.message_id) == 1
            again = core.run(sender._mailboxes.read_answer("agency", f"{letter.message_id} hotel", SOON))
            assert again is not None
            assert b'"success"' in again
        assert sender.dead_letters() == []
    away.close()


@pytest.mark.requirement("SP-12")
def test_a_credential_goes_along_in_a_header_and_is_named_by_reference(
    core: Standalone, hotel: Hotel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTEL_KEY", "got-from-the-hotel-itself")

    def who(scope: Any) -> Principal:
        if dict(scope["headers"]).get(b"authorization") != b"Bearer got-from-the-hotel-itself":
            raise Unauthenticated("Send the key that we gave you.")
        return Principal("agency", "client")

    away = Standalone()
    guarded = AgentCard(
        agent_id="hotel",
        name="Hotel",
        capabilities=[AgentCapability(name="book", description="Book a room")],
        securitySchemes={"key": {"type": "http", "scheme": "bearer"}},
        security=[{"key": []}],
    )
    with agent3.a2a.listening(hotel.agent, core=away, principal=who, card=guarded) as url:
        card = elsewhere(url, capabilities=guarded.capabilities)
        with agency(core, card, credentials={"hotel": "env:HOTEL_KEY"}) as known:
            given = {"city": "Rome", "nights": 1}
            assert known.request("hotel", "book", given, timeout=SOON).content["status"] == "success"
        with agency(core, card) as stranger:
            refused = stranger.request("hotel", "book", {"city": "Rome", "nights": 1}, timeout=SOON).content
            assert refused["status"] == "error"
            assert "got-from-the-hotel-itself" not in str(refused)
    hotel.gate.set()
    away.close()


@pytest.mark.requirement("RF-013-36")
def test_what_was_sent_before_the_process_ended_is_delivered_by_the_next(tmp_path: Path, hotel: Hotel) -> None:
    url = f"sqlite:///{tmp_path}/mail.db"
    key = Fernet.generate_key()
    here = Standalone(Settings(calls=QUICK, storage=Storage(url=url)))
    dead = elsewhere("http://127.0.0.1:9", capabilities=[AgentCapability(name="note", description="n")])
    sender = agency(here, dead, encryption=A2AEncryption(key))
    sender.send_message("hotel", MessageType.EVENT, "note", {"text": "from the first process"})
    sender.close()
    here.close()
    assert b"from the first process" not in (tmp_path / "mail.db").read_bytes()
    away = Standalone()
    with agent3.a2a.listening(hotel.agent, core=away) as address:
        again = Standalone(Settings(calls=QUICK, storage=Storage(url=url)))
        with agency(again, elsewhere(address), encryption=A2AEncryption(key)):
            assert hotel.came.wait(SOON)
        again.close()
    assert hotel.heard == ["from the first process"]
    hotel.gate.set()
    away.close()


@pytest.mark.requirement("RF-013-36")
def test_what_is_being_delivered_when_the_core_is_closed_is_finished(
    tmp_path: Path, hotel: Hotel, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, waited = threading.Event(), list[bool]()
    close_all = mailboxes.Mailboxes._close

    async def close(boxes: mailboxes.Mailboxes) -> None:
        ending = asyncio.ensure_future(close_all(boxes))
        waited.append(not (await asyncio.wait([ending], timeout=0.5))[0])
        closing.set()
        await ending

    monkeypatch.setattr(mailboxes, "_GRACE", SOON)
    monkeypatch.setattr(mailboxes.Mailboxes, "_close", close)
    settings = Settings(calls=QUICK, storage=Storage(url=f"sqlite:///{tmp_path}/mail.db"))
    here = Standalone(settings)
    sender = agency(here, elsewhere(url))
    sender.send_message("hotel", MessageType.EVENT, "hold", {"city": "Rome"})
    assert hotel.came.wait(SOON)
    sender.close()
    leaving = threading.Thread(target=here.close)
    leaving.start()
    assert closing.wait(SOON)
    hotel.gate.set()
    leaving.join(SOON)
    assert not leaving.is_alive()
    assert waited == [True]
    again = Standalone(settings)
    with agency(again, elsewhere(url)) as next_sender:
        assert (next_sender.waiting("hotel"), next_sender.dead_letters()) == (0, [])
    again.close()
    assert hotel.heard == ["Rome"]
