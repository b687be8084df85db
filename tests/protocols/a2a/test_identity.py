"""A2AIdentityVerifier as documented, with real signatures."""

from __future__ import annotations

import base64
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agent3 import A2AIdentityVerifier, A2AMessage, AgentCard, AgentExecutor, AgentIdentity, MessageType
from agent3.env import SeededEnv
from agent3.errors import Conflict, RequestError, SecurityError, SetupError, Unauthenticated
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Settings, Storage

FLIGHT = AgentIdentity("flight")


def message(sender: str = "flight", **more: Any) -> A2AMessage:
    given = {"from_agent": sender, "to_agent": "hotel", "message_type": "request", "content": {"n": 1.5, "ü": ["x"]}}
    return A2AMessage.model_validate(given | more)


def verifier(**more: Any) -> A2AIdentityVerifier:
    made = A2AIdentityVerifier(**more)
    made.register_agent("flight", FLIGHT.public_key)
    return made


@pytest.mark.requirement("RF-013-27", "RT-014-S06")
def test_a_message_of_the_agent_that_it_names_is_verified() -> None:
    sent = message()
    assert verifier().verify_message_signature(sent, FLIGHT.sign(sent)) is True


@pytest.mark.requirement("RF-013-27", "RT-014-S06")
@pytest.mark.parametrize("change", [{"content": {"n": 2}}, {"to_agent": "eve"}, {"priority": 9}, {"capability": "pay"}])
def test_a_message_that_was_changed_is_refused(change: dict[str, Any]) -> None:
    sent = message()
    forged = sent.model_copy(update=change)
    assert verifier().verify_message_signature(forged, FLIGHT.sign(sent)) is False


@pytest.mark.requirement("RF-013-27", "RT-014-S06")
def test_forged_unknown_unsigned_and_copied_messages_are_refused() -> None:
    judge = verifier()
    eve = AgentIdentity("flight")  # says that it is, with a key of its own
    sent = message()
    assert judge.verify_message_signature(sent, eve.sign(sent)) is False
    stranger = AgentIdentity("stranger")
    from_stranger = message("stranger")
    assert judge.verify_message_signature(from_stranger, stranger.sign(from_stranger)) is False
    for nonsense in ("", "AAAA", "not base64 at all !!", "ü"):
        assert judge.verify_message_signature(sent, nonsense) is False
    signature = FLIGHT.sign(sent)
    assert judge.verify_message_signature(sent, signature) is True
    assert judge.verify_message_signature(sent, signature) is False  # replayed


@pytest.mark.requirement("RF-013-27")
@pytest.mark.parametrize("shift", [timedelta(minutes=-6), timedelta(minutes=6)])
def test_a_message_out_of_its_time_is_refused(shift: timedelta) -> None:
    old = message()
    old = old.model_copy(update={"timestamp": old.timestamp + shift})
    assert verifier().verify_message_signature(old, FLIGHT.sign(old)) is False


def test_memory_is_given_back_when_a_copy_would_be_too_old_anyway() -> None:
    env = SeededEnv(time=message().timestamp.timestamp())
    judge = verifier(env=env)
    for number in range(3):
        env.time = time.time() + 1_000 * number
        sent = message()
        sent = sent.model_copy(update={"timestamp": sent.timestamp + timedelta(seconds=1_000 * number)})
        assert judge.verify_message_signature(sent, FLIGHT.sign(sent))
        assert len(judge._seen) == 1


@pytest.mark.requirement("RF-013-27")
def test_keys_are_pinned_and_belong_to_one_agent() -> None:
    judge = verifier()
    judge.register_agent("flight", FLIGHT.public_key)
    assert judge.trusted_agents == {"flight": FLIGHT.public_key}
    other = AgentIdentity("flight")
    with pytest.raises(Conflict, match="has another key"):
        judge.register_agent("flight", other.public_key)
    with pytest.raises(Conflict, match="already belongs to 'flight'"):
        judge.register_agent("hotel", FLIGHT.public_key)
    judge.register_agent("flight", other.public_key, replace=True)
    sent = message()
    assert judge.verify_message_signature(sent, FLIGHT.sign(sent)) is False
    assert judge.verify_message_signature(sent, other.sign(sent)) is True
    judge.remove_agent("flight")
    again = message()
    assert judge.verify_message_signature(again, other.sign(again)) is False


def test_keys_come_in_pem_or_as_their_bytes_and_nothing_else_is_one() -> None:
    raw = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    A2AIdentityVerifier().register_agent("a", base64.b64encode(raw).decode())
    A2AIdentityVerifier().register_agent("a", base64.urlsafe_b64encode(raw).decode().rstrip("="))
    rsa = generate_private_key(65537, 2048).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for bad in ("", "zzzz", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", rsa.decode()):
        with pytest.raises(SetupError):
            A2AIdentityVerifier().register_agent("a", bad)
    with pytest.raises(SetupError):
        AgentIdentity("a", "no key")


def test_an_identity_outlives_its_process_and_signs_only_for_itself() -> None:
    again = AgentIdentity("flight", FLIGHT.private_key())
    assert again.public_key == FLIGHT.public_key
    with pytest.raises(SecurityError, match="cannot sign"):
        again.sign(message("hotel"))


def test_a_signature_means_the_same_in_another_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        sent = FLIGHT.signed(message())
        text = sent.model_dump_json()
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
        arrived = A2AMessage.model_validate_json(text)
        assert arrived.timestamp != sent.timestamp
        assert verifier().verify_message_signature(arrived, arrived.signature or "")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.requirement("RF-013-27")
def test_names_that_stand_twice_and_numbers_beyond_all_programs_are_refused() -> None:
    sent = message()
    signature = FLIGHT.sign(sent)
    text = sent.model_dump_json(exclude={"signature"})
    twice = text.replace('"to_agent":"hotel"', '"to_agent":"eve","to_agent":"hotel"')
    with pytest.raises(RequestError):
        verifier().verify_json(twice.encode(), signature)
    with pytest.raises(RequestError):
        verifier().verify_json(text.replace('"n":1.5', f'"n":{2**60}').encode(), signature)
    with pytest.raises(SecurityError):
        verifier().verify_json(b"{}", signature)
    assert verifier().verify_json(text.encode(), signature) == sent
    large = message(content={"n": 2**60})
    with pytest.raises(RequestError):
        FLIGHT.sign(large)


@pytest.mark.requirement("RF-013-27")
def test_with_a_database_a_copy_is_known_in_the_next_process_too(tmp_path: Path) -> None:
    sent = message()
    accepted = []
    for _ in range(2):
        core = Standalone(Settings(storage=Storage(url=f"sqlite:///{tmp_path}/house.db")))
        try:
            accepted.append(verifier(core=core).verify_message_signature(sent, FLIGHT.sign(sent)))
        finally:
            core.close()
    assert accepted == [True, False]


@pytest.mark.requirement("RF-013-27", "RF-013-V2")
def test_an_executor_with_a_verifier_takes_only_what_is_signed_by_whom_it_names() -> None:
    names = [f"{name} {os.getpid()}" for name in ("signed flight", "signed hotel", "eve")]
    flight_id, hotel_id = AgentIdentity(names[0]), AgentIdentity(names[1])
    judge = A2AIdentityVerifier()
    for who in (flight_id, hotel_id):
        judge.register_agent(who.agent_id, who.public_key)
    with (
        AgentExecutor(AgentCard(agent_id=names[0], name="F"), identity=flight_id, verifier=judge) as flight,
        AgentExecutor(AgentCard(agent_id=names[1], name="H"), identity=hotel_id, verifier=judge) as hotel,
        AgentExecutor(AgentCard(agent_id=names[2], name="E")) as eve,
    ):
        ran: list[str] = []

        def book(who: str) -> str:
            ran.append(who)
            return "booked"

        hotel.register_capability("book", book)
        reply = flight.request(names[1], "book", {"who": "flight"}, 60)
        assert reply.content["result"] == "booked"
        assert reply.signature
        eve.send_message(names[1], MessageType.REQUEST, "book", {"who": "eve"})
        forged = A2AMessage(from_agent=names[0], to_agent=names[1], message_type=MessageType.REQUEST, capability="book")
        answer = hotel.receive_message(forged)
        assert answer is not None
        assert answer.content["error"]["code"] == "unauthenticated"
        while not (dead := hotel.dead_letters()):
            assert hotel.waiting() or hotel.dead_letters()
        assert "Unknown agent" in dead[0].reason
        assert ran == ["flight"]


def test_an_executor_cannot_sign_with_the_identity_of_another() -> None:
    with pytest.raises(SetupError, match="Give each agent its own"):
        AgentExecutor(AgentCard(agent_id="hotel", name="H"), identity=FLIGHT)


def test_the_signature_is_in_the_message_and_not_over_itself() -> None:
    signed = FLIGHT.signed(message())
    assert json.loads(signed.model_dump_json())["signature"] == signed.signature
    assert verifier().verify_message_signature(signed, signed.signature or "")


def test_too_many_messages_for_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.protocols.a2a.agents.identity._SEEN", 1)
    judge = verifier()
    first, second = message(), message()
    assert judge.verify_message_signature(first, FLIGHT.sign(first))
    with pytest.raises(Unauthenticated, match="Give it a core"):
        judge.verify_json(second.model_dump_json().encode(), FLIGHT.sign(second))
