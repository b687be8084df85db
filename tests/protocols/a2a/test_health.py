"""Health: probes, leases and how calls went, and what is made of them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from agent3 import AgentCard, AgentExecutor, AgentRegistry, HealthMonitor, MessageType
from agent3.env import SeededEnv
from agent3.errors import AgentNotFound, SetupError, Unavailable
from agent3.protocols.a2a.agents.health import Health
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Calls, Settings


@pytest.fixture
def core() -> Iterator[Standalone]:
    made = Standalone(Settings(calls=Calls(ledger="batched", breaker_failures=3, retries=0)))
    yield made
    made.close()


@pytest.fixture
def watchman(core: Standalone) -> Iterator[AgentExecutor]:
    with AgentExecutor(AgentCard(agent_id=f"watchman-{uuid.uuid4()}", name="Watchman"), core=core) as made:
        yield made


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.005)


def named(name: str) -> AgentCard:
    return AgentCard(agent_id=name, name=name)


@pytest.mark.requirement("RF-013-39")
def test_probes_tell_who_answers_and_who_does_not(core: Standalone, watchman: AgentExecutor) -> None:
    registry = AgentRegistry()
    with AgentExecutor(named("well"), core=core, registry=registry) as well:
        well.start()
        (report,) = HealthMonitor(registry, executor=watchman, timeout=60).check()
        assert (report.agent, report.state, report.probe_failures) == ("well", "healthy", 0)
        assert report.probe_seconds is not None
    lonely = AgentRegistry()
    lonely.register_agent(named("gone"))
    monitor = HealthMonitor(lonely, executor=watchman, timeout=0.05)
    assert monitor.report("gone").state == "unknown"
    assert [monitor.check()[0].state for _ in range(3)] == ["degraded", "degraded", "unhealthy"]
    gone = monitor.report("gone")
    assert (gone.probe_failures, gone.last_probe is not None) == (3, True)
    assert gone.reasons == ("3 probes in a row failed, the last with no answer within 0.05 s",)


@pytest.mark.requirement("RF-013-39")
def test_an_agent_whose_lease_runs_out_is_unhealthy_and_not_discovered() -> None:
    env = SeededEnv()
    registry = AgentRegistry(env=env)
    monitor = HealthMonitor(registry, env=env)
    registry.register_agent(named("a"), lease=30)
    registry.register_agent(named("b"))
    assert monitor.report("a").state == "healthy"
    env.advance(20)
    assert registry.lease_left("a") == pytest.approx(10)
    registry.heartbeat("a")
    env.advance(20)
    assert [found.agent_id for found in registry.discover_agents()] == ["a", "b"]
    env.advance(11)
    assert [found.agent_id for found in registry.discover_agents()] == ["b"]
    assert (registry.lease_left("a"), registry.lease_left("b"), registry.lease_left("x")) == (0.0, None, None)
    report = monitor.report("a")
    assert (report.state, report.reasons) == ("unhealthy", ("its lease has expired",))
    registry.heartbeat("a")
    assert monitor.report("a").state == "healthy"


@pytest.mark.requirement("RF-013-39")
def test_how_calls_went_is_seen_without_asking(core: Standalone, watchman: AgentExecutor) -> None:
    registry = AgentRegistry()
    with AgentExecutor(named("hotel"), core=core) as hotel:
        registry.register_agent(hotel.card)
        well = True

        def search() -> str:
            if not well:
                raise Unavailable("its database is down")
            return "rooms"

        hotel.register_capability("search", search)
        monitor = HealthMonitor(registry, core=core)
        for _ in range(3):
            watchman.request("hotel", "search", timeout=60)
        seen = monitor.report("hotel")
        assert (seen.state, seen.passive.calls, seen.passive.success_rate) == ("healthy", 3, 1.0)
        assert seen.passive.p50 is not None
        assert seen.passive.p95 is not None
        assert seen.passive.p95 >= seen.passive.p50 > 0
        well = False
        watchman.request("hotel", "search", timeout=60)
        seen = monitor.report("hotel")
        assert (seen.state, seen.reasons) == ("degraded", ("1 of 4 calls failed",))
        assert seen.passive.last_error == "unavailable: its database is down"
        for _ in range(2):
            watchman.request("hotel", "search", timeout=60)
        seen = monitor.report("hotel")
        assert seen.state == "unhealthy"
        assert list(seen.circuits.values()) == ["open"]
        assert "is open" in seen.reasons[0]


@pytest.mark.requirement("RF-013-39")
def test_the_monitor_watches_by_itself_and_tells_of_changes(core: Standalone, watchman: AgentExecutor) -> None:
    registry = AgentRegistry()
    heard: list[tuple[str, str]] = []
    both = threading.Event()

    def changed(health: Health) -> None:
        heard.append((health.agent, health.state))
        if len(heard) == 2:
            both.set()
        raise RuntimeError("whoever listens may fail")

    with AgentExecutor(named("hotel"), core=core) as hotel:
        registry.register_agent(hotel.card)
        hotel.start()
        monitor = HealthMonitor(registry, executor=watchman, on_change=changed, timeout=60)
        monitor.start(every=0.02)
        until(lambda: heard == [("hotel", "healthy")])
        registry.set_status("hotel", "suspended")
        assert both.wait(60)
        monitor.stop()
        assert heard == [("hotel", "healthy"), ("hotel", "unhealthy")]
        assert monitor.report_all()[0].reasons == ("it is suspended",)


def test_agents_that_are_reached_otherwise_are_probed_otherwise() -> None:
    registry = AgentRegistry()
    registry.register_agent(named("web"))

    async def probe(card: AgentCard) -> None:
        raise ConnectionRefusedError(card.agent_id)

    (report,) = HealthMonitor(registry, probe=probe).check()
    assert (report.state, report.reasons) == ("degraded", ("probe failed with ConnectionRefusedError: web",))
    with pytest.raises(SetupError, match="pass an executor or a probe"):
        HealthMonitor(registry).check()
    with pytest.raises(AgentNotFound):
        HealthMonitor(registry).report("nobody")


def test_an_agent_says_how_it_is_even_when_it_takes_no_work(core: Standalone, watchman: AgentExecutor) -> None:
    with AgentExecutor(named("hotel"), core=core) as hotel:
        hotel.start()
        report = watchman.request("hotel", "a2a.ping", timeout=60)
        assert report.content == {"status": "success", "result": {"status": "active", "running": 0}}
        watchman.send_message("hotel", MessageType.EVENT, "a2a.ping")


def test_a_heartbeat_goes_on_while_the_executor_lives(monkeypatch: pytest.MonkeyPatch, core: Standalone) -> None:
    monkeypatch.setattr("agent3.protocols.a2a.agents.consumer.LEASE", 0.03)
    registry = AgentRegistry()
    beats: list[str] = []
    beat = registry.beat

    async def counted(agent_id: str, seconds: float = 30.0) -> None:
        beats.append(agent_id)
        await beat(agent_id, seconds)

    monkeypatch.setattr(registry, "beat", counted)
    with AgentExecutor(named("hotel"), core=core, registry=registry):
        until(lambda: len(beats) >= 3)
    count = len(beats)
    time.sleep(0.05)
    assert len(beats) == count
