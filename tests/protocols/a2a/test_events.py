"""Events: broadcast to whoever subscribed, here and in other processes, and heard without anybody waiting."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent3 import AgentCard, AgentExecutor, MessageType
from agent3.errors import ValidationError
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Rules
from agent3.settings import Limits, Settings, Storage


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.005)


@contextmanager
def executor(name: str, **more: Any) -> Iterator[AgentExecutor]:
    """An executor under an id that no other test has."""
    with AgentExecutor(AgentCard(agent_id=f"{name}-{uuid.uuid4()}", name=name), **more) as made:
        try:
            yield made
        finally:
            made.unsubscribe()


@contextmanager
def core(folder: Path) -> Iterator[Standalone]:
    made = Standalone(Settings(storage=Storage(url=f"sqlite:///{folder}/house.db"), limits=Limits(per_minute=0)))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.requirement("RF-013-28")
def test_an_event_reaches_everybody_who_subscribed_and_nobody_else() -> None:
    topic = f"prices.{uuid.uuid4()}"
    heard: dict[str, list[int]] = {"hotel": [], "flight": [], "other": []}
    with ExitStack() as stack:
        source, hotel, flight, other = (stack.enter_context(executor(name)) for name in ("s", "h", "f", "o"))
        hotel.subscribe(topic, lambda n: heard["hotel"].append(n))
        flight.subscribe(f"{topic.rpartition('.')[0]}.*", lambda n: heard["flight"].append(n))
        other.subscribe("weather.*", lambda n: heard["other"].append(n))
        broadcasts = [source.broadcast(topic, {"n": number}) for number in range(5)]
        until(lambda: len(heard["hotel"]) == len(heard["flight"]) == 5)
        assert set(broadcasts[0].sent) == {hotel.card.agent_id, flight.card.agent_id}
        assert broadcasts[0].refused == ()
        assert heard == {"hotel": [0, 1, 2, 3, 4], "flight": [0, 1, 2, 3, 4], "other": []}
        assert hotel.unsubscribe(topic) == 1
        assert source.broadcast(topic, {"n": 9}).sent == (flight.card.agent_id,)


@pytest.mark.requirement("RF-013-28")
def test_a_capability_can_hear_and_two_patterns_that_fit_are_one_subscription() -> None:
    heard: list[str] = []
    with executor("source") as source, executor("ear") as ear:
        ear.register_capability("listen", lambda text: heard.append(text))
        topic = f"t.{uuid.uuid4()}"
        assert ear.subscribe(topic, "listen") == "listen"
        ear.subscribe(f"{topic}*", "listen")
        assert source.broadcast(topic, {"text": "once"}).sent == (ear.card.agent_id,)
        until(lambda: heard == ["once"])


def test_a_full_box_is_passed_over_and_told_of() -> None:
    topic = f"t.{uuid.uuid4()}"
    with executor("source") as source, executor("full", rules=Rules(bound=1)) as full, executor("free") as free:
        full.subscribe(topic, lambda: None)
        full.set_status("suspended")
        heard = threading.Event()
        free.subscribe(topic, heard.set)
        assert set(source.broadcast(topic).sent) == {full.card.agent_id, free.card.agent_id}
        again = source.broadcast(topic)
        assert (again.sent, again.refused) == ((free.card.agent_id,), (full.card.agent_id,))
        assert heard.wait(60)


@pytest.mark.parametrize("topic", ["", "a b", "x" * 201, "a\nb"])
def test_what_is_no_topic_is_refused(topic: str) -> None:
    with executor("source") as source:
        with pytest.raises(ValidationError, match="is not a topic"):
            source.broadcast(topic)
        with pytest.raises(ValidationError, match="is not a topic"):
            source.subscribe(topic, "x")
        with pytest.raises(ValidationError):
            source.broadcast("all.*")


def test_nobody_there_is_nobody_told() -> None:
    with executor("source") as source:
        assert source.broadcast(f"t.{uuid.uuid4()}").sent == ()


LISTENER = """
import sys, threading
from agent3 import AgentCard, AgentExecutor
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Rules
from agent3.settings import Settings, Storage
core = Standalone(Settings(storage=Storage(url=sys.argv[1])))
over = threading.Event()
ear = AgentExecutor(AgentCard(agent_id="remote ear", name="Ear"), core=core, rules=Rules(lease=3.0))
def hear(n):
    print("heard", n, flush=True)
    if n == 2:
        over.set()
ear.subscribe("prices.*", hear)
print("ready", flush=True)
assert over.wait(120)
ear.close()
core.close()
"""


@pytest.mark.requirement("RF-013-28", "RF-013-32")
def test_a_subscriber_in_another_process_hears_of_it_also_when_it_was_away(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LISTENER, f"sqlite:///{tmp_path}/house.db"]
    with core(tmp_path) as house, executor("source", core=house) as source:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "ready\n"
            assert source.broadcast("prices.rome", {"n": 1}).sent == ("remote ear",)
            assert first.stdout.readline() == "heard 1\n"
            first.kill()
        source.broadcast("prices.rome", {"n": 2})  # while nobody is there
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
        assert "heard 2" in done.stdout


@pytest.mark.requirement("RF-013-32")
def test_nobody_waits_for_an_event_and_a_slow_ear_holds_up_no_other() -> None:
    gate, quick, done = threading.Event(), threading.Event(), list[str]()
    with executor("source") as source, executor("slow") as slow, executor("quick") as fast:

        def hear_slowly() -> None:
            assert gate.wait(60)
            done.append("slow")

        slow.register_capability("hear", hear_slowly)
        fast.register_capability("hear", lambda: quick.set())
        sent = [source.send_message(each.card.agent_id, MessageType.EVENT, "hear") for each in (slow, fast)]
        assert quick.wait(60)
        assert done == []  # sending did not wait for it, and neither did the other
        gate.set()
        until(lambda: slow.waiting() == 0)
        assert source._mailboxes._awaited == {}
        assert len({each.message_id for each in sent}) == 2


@pytest.mark.requirement("RF-013-32")
@pytest.mark.parametrize("kind", ["plain", "async", "generator"])
def test_every_kind_of_function_hears_events(kind: str) -> None:
    heard: list[str] = []

    def plain(text: str) -> None:
        heard.append(text)

    async def later(text: str) -> None:
        heard.append(text)

    def updates(text: str) -> Iterator[str]:
        yield "…"
        heard.append(text)

    with executor("source") as source, executor("ear") as ear:
        ear.register_capability("hear", {"plain": plain, "async": later, "generator": updates}[kind])
        source.send_message(ear.card.agent_id, MessageType.EVENT, "hear", {"text": kind})
        until(lambda: heard == [kind])
