"""A2AEncryption as documented, and the keyring beyond it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from agent3 import A2AEncryption, A2AKeyring, A2AMessage, A2AMessageQueue, AgentCard, AgentExecutor, MessageType
from agent3.errors import SecurityError, SetupError
from agent3.protocols.a2a.agents.encryption import Cipher
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Settings, Storage

SECRET = "the guest pays with card 4111"


def message(**more: object) -> A2AMessage:
    given = {"from_agent": "flight", "to_agent": "hotel", "message_type": "request", "content": {"note": SECRET}}
    return A2AMessage.model_validate(given | more)


@pytest.mark.requirement("RF-013-26", "RT-014-S05")
def test_a_message_survives_encryption_unchanged_and_nobody_reads_it_on_the_way() -> None:
    key = Fernet.generate_key()
    cipher = A2AEncryption(key)
    sent = message(context_id="c", priority=3)
    sealed = cipher.encrypt_message(sent)
    assert SECRET.encode() not in sealed
    assert A2AEncryption(encryption_key=key).decrypt_message(sealed) == sent
    # It is Fernet: others read what we wrote, and we read what others wrote.
    assert A2AMessage.model_validate_json(Fernet(key).decrypt(sealed)) == sent
    assert cipher.decrypt_message(Fernet(key).encrypt(sent.model_dump_json().encode())) == sent


def broken(sealed: bytes) -> bytes:
    middle = len(sealed) // 2
    return sealed[:middle] + bytes([sealed[middle] ^ 1]) + sealed[middle + 1 :]


@pytest.mark.requirement("RF-013-26")
@pytest.mark.parametrize("cipher", [A2AEncryption(A2AEncryption.key()), A2AKeyring({"a": A2AKeyring.key()})])
def test_what_was_changed_or_is_not_encrypted_is_refused(cipher: Cipher) -> None:
    sealed = cipher.encrypt_message(message())
    for bad in (
        broken(sealed),
        b"",
        b"{}",
        b'{"alg":"\xff"}',
        b"[" * 9_999,
        message().model_dump_json().encode(),
        sealed[:-4],
    ):
        with pytest.raises(SecurityError):
            cipher.decrypt_message(bad)


def test_a_stranger_with_another_key_reads_nothing() -> None:
    sealed = A2AEncryption(A2AEncryption.key()).encrypt_message(message())
    with pytest.raises(SecurityError):
        A2AEncryption(A2AEncryption.key()).decrypt_message(sealed)


def test_fernet_keys_are_changed_one_after_the_other() -> None:
    old, new = A2AEncryption.key(), A2AEncryption.key()
    sealed = A2AEncryption(old).encrypt_message(message())
    both = A2AEncryption([new, old])
    assert both.decrypt_message(sealed).content == {"note": SECRET}
    assert A2AEncryption(new).decrypt_message(both.rotate(sealed)).content == {"note": SECRET}
    with pytest.raises(SecurityError):
        A2AEncryption(new).rotate(sealed)


@pytest.mark.parametrize("key", [b"short", b"x" * 44, "ü" * 44])
def test_what_is_no_key_is_said_to_be_none(key: bytes) -> None:
    with pytest.raises(SetupError, match="32 bytes"):
        A2AEncryption(key)


@pytest.mark.requirement("RF-013-26")
@pytest.mark.parametrize(
    ("name", "value"), [("id", "other"), ("from", "eve"), ("to", "eve"), ("kid", "b"), ("alg", "none")]
)
def test_id_sender_recipient_and_key_are_sealed_with_the_message(name: str, value: str) -> None:
    ring = A2AKeyring({"b": A2AKeyring.key(), "a": A2AKeyring.key()})
    sealed = json.loads(ring.encrypt_message(message()))
    assert (sealed["kid"], sealed["from"], sealed["to"]) == ("a", "flight", "hotel")
    with pytest.raises(SecurityError):
        ring.decrypt_message(json.dumps({**sealed, name: value}).encode())


@pytest.mark.requirement("RF-013-26")
def test_keys_have_names_and_are_changed_without_losing_a_message() -> None:
    first, second = A2AKeyring.key(), A2AKeyring.key()
    writer, reader = A2AKeyring({"2026-01": first}), A2AKeyring({"2026-01": first})
    under_first = writer.encrypt_message(message())
    reader.add("2026-02", second)
    writer.add("2026-02", second)
    writer.use("2026-02")
    under_second = writer.encrypt_message(message())
    assert reader.decrypt_message(under_first).content == reader.decrypt_message(under_second).content
    reader.use("2026-02")
    reader.remove("2026-01")
    with pytest.raises(SecurityError, match="no key '2026-01'"):
        reader.decrypt_message(under_first)
    with pytest.raises(SetupError, match="in use"):
        reader.remove("2026-02")
    with pytest.raises(SetupError):
        A2AKeyring({})
    with pytest.raises(SetupError, match="'x' must have 32 bytes"):
        A2AKeyring({"x": b"short"})
    assert A2AKeyring({"f": A2AEncryption.key()}).encrypt_message(message())


def test_no_two_messages_look_alike() -> None:
    ring = A2AKeyring({"a": A2AKeyring.key()})
    sent = message()
    assert ring.encrypt_message(sent) != ring.encrypt_message(sent)


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


@pytest.mark.requirement("RF-013-26")
def test_with_encryption_no_message_and_no_answer_can_be_read_in_the_database(tmp_path: Path) -> None:
    ring = A2AKeyring({"a": A2AKeyring.key()})
    core = Standalone(Settings(storage=Storage(url=f"sqlite:///{tmp_path}/house.db")))
    flight = AgentExecutor(AgentCard(agent_id="flight", name="Flight"), core=core, encryption=ring)
    try:
        asked = flight.send_message("hotel", MessageType.REQUEST, "book", {"note": SECRET})
        flight.receive_message(asked.reply({"status": "success", "result": SECRET}))
        assert SECRET.encode() not in bytes_on_disk(tmp_path)
        assert b"hotel" in bytes_on_disk(tmp_path)
        assert flight.wait_for_response(asked, 60).content["result"] == SECRET
    finally:
        flight.close()
        core.close()


@pytest.mark.requirement("RF-013-V2")
def test_an_agent_that_encrypts_takes_no_plain_message() -> None:
    ring = A2AKeyring({"a": A2AKeyring.key()})
    with (
        AgentExecutor(AgentCard(agent_id="sealed hotel", name="Hotel"), encryption=ring) as hotel,
        AgentExecutor(AgentCard(agent_id="sealed flight", name="Flight"), encryption=ring) as flight,
        AgentExecutor(AgentCard(agent_id="plain flight", name="Plain")) as plain,
    ):
        hotel.register_capability("book", lambda: "booked")
        assert flight.request("sealed hotel", "book", timeout=60).content["result"] == "booked"
        plain.send_message("sealed hotel", MessageType.REQUEST, "book")
        while not (dead := hotel.dead_letters()):
            assert hotel.waiting() or hotel.dead_letters()
        assert "Plain messages are refused" in dead[0].reason


def test_the_queue_keeps_what_is_encrypted() -> None:
    async def story() -> None:
        queue = A2AMessageQueue(encryption=A2AKeyring({"a": A2AKeyring.key()}))
        sent = message()
        await queue.send_message(sent)
        assert await queue.receive_message(5) == sent
        assert await queue.dead_letters() == []
        assert await queue.replay(["nothing"]) == 0

    asyncio.run(story())
