"""A2AMessageQueue as documented, without its silent loss."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from agent3.definitions import A2AMessage, MessageType
from agent3.errors import Conflict, RateLimited, ValidationError
from agent3.observe.metrics import Metrics
from agent3.protocols.a2a.agents import message_queue as module
from agent3.protocols.a2a.agents.message_queue import A2AMessageQueue
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import QueueFull
from agent3.settings import Settings, Storage

T = TypeVar("T")


def message(number: int = 0, **more: object) -> A2AMessage:
    given = {"from_agent": "a", "to_agent": "b", "message_type": MessageType.REQUEST, "content": {"n": number}}
    return A2AMessage.model_validate(given | more)


def run(story: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(120):
            return await story()

    return asyncio.run(bounded())


async def settled(queue: A2AMessageQueue, depth: int) -> None:
    """Wait until that many are left: what was received is acknowledged behind the caller's back."""
    while await queue.depth() != depth:
        await asyncio.sleep(0.005)


@pytest.mark.requirement("RT-014-M02", "RF-013-29")
def test_messages_come_out_in_the_order_in_which_they_went_in() -> None:
    async def story() -> None:
        queue = A2AMessageQueue(max_size=10000)
        sent = [message(number) for number in range(5)]
        assert [await queue.send_message(each) for each in sent] == [each.message_id for each in sent]
        assert [await queue.receive_message(timeout=60) for _ in range(5)] == sent
        assert await queue.receive_message(timeout=0.01) is None
        assert len(queue.latency_stats) == 5

    run(story)


@pytest.mark.requirement("RT-014-M02")
def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    async def story() -> None:
        queue = A2AMessageQueue(max_size=2)
        for number in range(2):
            await queue.send_message(message(number))
        with pytest.raises(QueueFull, match="2 messages") as refused:
            await queue.send_message(message(2))
        assert isinstance(refused.value, RateLimited)
        assert refused.value.retry_after
        with pytest.raises(ValidationError, match="takes an A2AMessage, got dict"):
            await queue.send_message({"n": 1})  # type: ignore[arg-type]
        received = [await queue.receive_message(60) for _ in range(2)]
        assert [each.content["n"] for each in received if each] == [0, 1]
        await settled(queue, 0)
        await queue.send_message(message(2))

    run(story)


@pytest.mark.requirement("RF-013-30")
def test_a_higher_priority_goes_first_and_a_context_keeps_its_order() -> None:
    async def story() -> None:
        queue = A2AMessageQueue()
        for number, priority, context in ((0, 0, None), (1, 1, "c"), (2, 50, "c"), (3, 9, None)):
            await queue.send_message(message(number, priority=priority, context_id=context))
        numbers = []
        while (received := await queue.receive_message(0.2)) is not None:
            numbers.append(received.content["n"])
        assert numbers == [3, 1, 2, 0]

    run(story)


def test_a_receiver_waits_for_a_message_of_another_task() -> None:
    async def story() -> None:
        queue = A2AMessageQueue()
        waiting = asyncio.create_task(queue.receive_message(timeout=60))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await queue.send_message(message(7))
        received = await waiting
        assert received is not None
        assert received.content == {"n": 7}

    run(story)


def test_every_loop_sees_the_same_queue() -> None:
    queue = A2AMessageQueue()
    for number in range(3):
        run(lambda number=number: queue.send_message(message(number)))  # type: ignore[misc]
    received = [run(lambda: queue.receive_message(60)) for _ in range(3)]
    assert [each.content["n"] for each in received if each] == [0, 1, 2]
    run(lambda: settled(queue, 0))


def test_a_cancelled_receiver_takes_nothing_with_it() -> None:
    async def story() -> None:
        queue = A2AMessageQueue()
        for _ in range(20):
            waiting = asyncio.create_task(queue.receive_message(timeout=10))
            await asyncio.sleep(0.002)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await queue.send_message(message(1))
        assert await queue.receive_message(timeout=60) is not None

    run(story)


def test_a_key_sends_once() -> None:
    async def story() -> None:
        queue = A2AMessageQueue()
        first = message(1, idempotency_key="k")
        assert await queue.send_message(first) == await queue.send_message(first) == first.message_id
        with pytest.raises(Conflict):
            await queue.send_message(message(2, idempotency_key="k"))
        assert await queue.depth() == 1

    run(story)


@pytest.mark.requirement("RT-014-M02")
def test_the_metric_shows_the_depth_and_latencies_are_bounded() -> None:
    async def story() -> None:
        metrics = Metrics()
        queue = A2AMessageQueue(agent_id="hotel", metrics=metrics)
        for number in range(3):
            await queue.send_message(message(number))
        assert 'a2a_message_queue_depth{agent_id="hotel"} 3.0' in metrics.render()[0].decode()
        while await queue.receive_message(0.01) is not None:
            pass
        await settled(queue, 0)
        while 'a2a_message_queue_depth{agent_id="hotel"} 0.0' not in metrics.render()[0].decode():
            await asyncio.sleep(0.005)
        assert queue.latency_stats.maxlen == 1_000

    run(story)


@pytest.mark.requirement("RT-014-M02")
def test_what_took_too_long_is_logged_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SEND_SECONDS", 0.0)
    monkeypatch.setattr(module, "RECEIVE_SECONDS", -60.0)
    metrics = Metrics()

    async def story() -> None:
        queue = A2AMessageQueue(metrics=metrics)
        await queue.send_message(message())
        await queue.receive_message(60)

    with caplog.at_level(logging.WARNING, logger="agent3.protocols.a2a.agents.message_queue"):
        run(story)
    assert [record.getMessage().split(" took ")[0] for record in caplog.records] == ["Message send", "Message receive"]
    assert 'missed_targets_total{operation="send_message"} 1.0' in metrics.render()[0].decode()


@contextmanager
def core(folder: Path) -> Iterator[Standalone]:
    made = Standalone(Settings(storage=Storage(url=f"sqlite:///{folder}/house.db")))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.requirement("RF-013-29")
def test_with_a_database_the_next_process_receives_what_this_one_did_not(tmp_path: Path) -> None:
    sent = message(5, context_id="c", priority=3)
    with core(tmp_path) as before:
        run(lambda: A2AMessageQueue(agent_id="hotel", core=before).send_message(sent))
    with core(tmp_path) as after:
        queue = A2AMessageQueue(agent_id="hotel", core=after)
        assert run(lambda: queue.receive_message(60)) == sent
        run(lambda: settled(queue, 0))


def test_a_core_that_was_closed_and_opened_again_is_used_on(tmp_path: Path) -> None:
    with core(tmp_path) as opened:
        queue = A2AMessageQueue(agent_id="hotel", core=opened)
        run(lambda: queue.send_message(message(1)))
        opened.close()
        assert run(lambda: queue.receive_message(60)) is not None
        run(lambda: settled(queue, 0))


_PROGRAM = """
import asyncio, sys
from agent3.protocols.a2a.agents.message_queue import A2AMessageQueue
from agent3.protocols.functions.standalone import Standalone
from agent3.definitions import A2AMessage, MessageType
from agent3.settings import Settings, Storage

core = Standalone(Settings(storage=Storage(url=sys.argv[1])))
queue = A2AMessageQueue(core=core)
message = A2AMessage(from_agent="a", to_agent="b", message_type=MessageType.REQUEST, content={})
print(asyncio.run(queue.send_message(message) if sys.argv[2] == "send" else queue.receive_message(0.0)))
core.close()
"""


def test_a_queue_without_a_name_gets_no_messages_of_another_program(tmp_path: Path) -> None:
    def program(what: str) -> str:
        command = [sys.executable, "-c", _PROGRAM, f"sqlite:///{tmp_path}/house.db", what]
        return subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout

    assert program("send") != "None\n"
    assert program("receive") == "None\n"
