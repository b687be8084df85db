"""Callbacks in one process: what is kept of them, who is told, and which are known for ours."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from agent3.errors import NotFound
from agent3.protocols.a2a.peer import push_receiver as module
from agent3.protocols.a2a.peer.push_receiver import PushReceiver, PushTrust

ADDRESS = "https://gateway.example/callbacks/a2a"
SECRET = b"s" * 32
BODY = b'{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'


def test_the_ids_of_notices_take_little_room_however_long_they_are() -> None:
    async def main() -> None:
        push_receiver = PushReceiver(ADDRESS, SECRET)
        key = push_receiver.key_for("message")
        push_receiver.expect(key)
        tracemalloc.start()
        try:
            for number in range(64):
                assert push_receiver.take(key, {"webhook-id": f"{number:05}" + "x" * 15_000}, BODY) == "taken"
            assert tracemalloc.get_traced_memory()[0] < 100_000
        finally:
            tracemalloc.stop()
        assert push_receiver.take(key, {"webhook-id": "00063" + "x" * 15_000}, BODY) == "repeated"

    asyncio.run(main())


def test_any_process_of_the_house_answers_for_an_address_of_ours() -> None:
    async def main() -> None:
        ours, other, stranger = (
            PushReceiver(ADDRESS, SECRET),
            PushReceiver(ADDRESS, SECRET),
            PushReceiver(ADDRESS, b"t" * 32),
        )
        key = ours.key_for("message")
        ours.expect(key)
        assert ours.challenge(key, "abc") == other.challenge(key, "abc") == "abc"
        for push_receiver, name in ((stranger, key), (other, "0" * 32), (other, key[:-1] + "g"), (other, "")):
            with pytest.raises(NotFound):
                push_receiver.challenge(name, "abc")

    asyncio.run(main())


def test_the_other_processes_are_not_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PASS_ON_EVERY", 0.05)

    async def main() -> None:
        passed: list[str] = []
        again = asyncio.Event()

        def pass_on(key: str) -> bool:
            passed.append(key)
            if len(passed) == 2:
                again.set()
            return True

        push_receiver = PushReceiver(ADDRESS, SECRET, pass_on=pass_on)
        key = push_receiver.key_for("message")
        assert {push_receiver.take(key, {"webhook-id": str(number)}, BODY) for number in range(50)} == {"passed"}
        assert passed == [key]
        assert push_receiver.take(key, {"webhook-id": "7"}, BODY) == "repeated"
        await asyncio.wait_for(again.wait(), 60)  # what came meanwhile is told once, and not lost
        assert passed == [key, key]

    asyncio.run(main())


def test_a_push_that_comes_late_has_come() -> None:
    async def main() -> None:
        push_receiver = PushReceiver(ADDRESS, SECRET)
        for late in (lambda key: push_receiver.take(key, {}, BODY), push_receiver.wake):
            key = push_receiver.key_for(repr(late))
            wait = push_receiver.expect(key, repr(late))
            push_receiver.end(key)
            assert not wait.trust.reliable
            late(key)
            assert wait.trust.reliable

    asyncio.run(main())


def test_words_that_may_have_been_missed_are_no_push() -> None:
    async def main() -> None:
        push_receiver = PushReceiver(ADDRESS, SECRET)
        wait = push_receiver.expect(push_receiver.key_for("message"), "agent")
        push_receiver.wake("")
        assert await wait.wait(0.0)
        assert not wait.trust.reliable

    asyncio.run(main())


def test_an_agent_is_asked_to_push_again_after_a_while_or_when_a_push_comes() -> None:
    trust = PushTrust()
    assert [trust.record_miss(5.0) for _ in range(3)] == [False, False, True]
    assert not trust.may_ask(604.0)
    assert trust.may_ask(605.0)
    trust.confirm()
    assert trust.may_ask(6.0)
    assert trust.reliable
