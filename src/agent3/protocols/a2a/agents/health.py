"""The health of agents: from probes, from their leases, and from how their calls went.

``HealthMonitor`` combines the three and says what led to its verdict. It changes nothing: an agent whose lease has
ended is no longer discovered, and one that keeps failing is left alone by its circuit breaker, with or without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from statistics import quantiles
from typing import Literal, TypeAlias

from msgspec import Struct

from agent3 import bridge
from agent3.definitions import AgentCard
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, AgentNotFound, SetupError
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.agents.executor import PING, AgentExecutor
from agent3.protocols.a2a.agents.registry import AgentRegistry
from agent3.protocols.functions.standalone import Standalone
from agent3.storage import Row

__all__ = ["Health", "HealthMonitor", "Passive", "Probe"]

log = logger("a2a.health")

State: TypeAlias = Literal["healthy", "degraded", "unhealthy", "unknown"]
Probe: TypeAlias = Callable[[AgentCard], Awaitable[None]]
"""Asks an agent whether it is there; raises if it is not."""

_MOST_CALLS = 200
_GOOD_RATE = 0.95
_FAILED_PROBES = 3
_UNAVAILABLE = frozenset({"unavailable", "timeout", "circuit_open", "malformed_response"})


class Passive(Struct, frozen=True):
    """How the calls of an agent went lately, from the ledger. Seconds are of whole calls; None without any call."""

    calls: int = 0
    failures: int = 0
    success_rate: float | None = None
    p50: float | None = None
    p95: float | None = None
    last_call: float | None = None
    last_error: str | None = None


class Health(Struct, frozen=True):
    """The state of an agent's health, and the reasons for it."""

    agent: str
    state: State
    reasons: tuple[str, ...]
    status: str
    lease_left: float | None
    probe_failures: int
    probe_seconds: float | None
    last_probe: float | None
    circuits: dict[str, str]
    passive: Passive


class _ProbeResult(Struct):
    failures: int = 0
    seconds: float | None = None
    at: float | None = None
    error: str = ""


class HealthMonitor:
    """Watches the agents of a registry. Safe from any thread.

        monitor = HealthMonitor(registry, executor=watchman)
        monitor.start(every=10)
        monitor.report("hotel").state

    Probes are messages from ``executor``, or calls of ``probe`` for agents that are reached in another way. Calls are
    those that the ``core`` made within the last ``window`` seconds.
    """

    def __init__(
        self,
        registry: AgentRegistry,
        *,
        executor: AgentExecutor | None = None,
        core: Standalone | None = None,
        probe: Probe | None = None,
        timeout: float = 5.0,
        window: float = 300.0,
        on_change: Callable[[Health], None] | None = None,
        env: Env = REAL,
    ):
        self._registry = registry
        self._core = core or (executor.core if executor is not None else None)
        self._probe = probe
        if probe is None and executor is not None:

            async def ping(card: AgentCard) -> None:
                await executor.ask(card.agent_id, PING, timeout=timeout)

            self._probe = ping
        self._timeout = timeout
        self._window = window
        self._on_change = on_change
        self._env = env
        self._probes: dict[str, _ProbeResult] = {}
        self._states: dict[str, State] = {}
        self._watching: asyncio.Task[None] | None = None

    def report(self, agent_id: str) -> Health:
        """The health of one agent; AgentNotFound if it is not registered."""
        return bridge.run(self._report(agent_id))

    def report_all(self) -> list[Health]:
        """The health of all agents, in whichever state of their life."""
        return bridge.run(self._report_all())

    def check(self) -> list[Health]:
        """Probe all agents in service once, at the same time, and report all."""
        return bridge.run(self._check())

    def start(self, every: float = 10.0) -> None:
        """Probe again and again until ``stop``; ``on_change`` is called for each agent whose state changes."""

        async def watch() -> None:
            while True:
                try:
                    await self._check()
                except Agent3Error as error:
                    log.warning("the agents could not be checked, retrying: %s", error)
                await asyncio.sleep(every)

        async def start() -> None:
            await self._stop()
            self._watching = asyncio.get_running_loop().create_task(watch(), name="a2a health")
            if self._core is not None:
                self._core.on_close(self._stop)

        bridge.run(start())

    def stop(self) -> None:
        """Stop probing."""
        bridge.run(self._stop())

    # In the bridge's loop

    async def _stop(self) -> None:
        task, self._watching = self._watching, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _check(self) -> list[Health]:
        """Probe, report, and call ``on_change`` for what has changed."""
        probe = self._probe
        if probe is None:
            raise SetupError("To probe agents, pass an executor or a probe to the monitor.")

        async def probe_one(card: AgentCard) -> None:
            result = self._probes.setdefault(card.agent_id, _ProbeResult())
            began = self._env.monotonic()
            try:
                async with asyncio.timeout(self._timeout):
                    await probe(card)
            except TimeoutError:
                result.failures += 1
                result.error = f"no answer within {self._timeout:g} s"
            except Exception as error:  # noqa: BLE001 - whatever a probe raises, the agent is not well
                result.failures += 1
                result.error = f"{type(error).__name__}: {error}"[:200]
            else:
                result.failures, result.error = 0, ""
                result.seconds = self._env.monotonic() - began
            result.at = self._env.now()

        await asyncio.gather(*(probe_one(card) for card in await self._registry.cards()))
        reports = await self._report_all()
        for health in reports:
            before = self._states.get(health.agent)
            self._states[health.agent] = health.state
            if before == health.state or self._on_change is None:
                continue
            try:
                self._on_change(health)
            except Exception:
                log.exception("on_change failed for %s", health.agent)
        return reports

    async def _report_all(self) -> list[Health]:
        return [await self._report(card.agent_id) for card in await self._registry.all_cards()]

    async def _report(self, agent_id: str) -> Health:
        card, lease = await self._registry.find(agent_id)
        if card is None:
            raise AgentNotFound(f"Agent {agent_id[:100]!r} is not in the watched registry.")
        probe = self._probes.get(agent_id, _ProbeResult())
        calls: Sequence[Row] = []
        circuits: dict[str, str] = {}
        if self._core is not None:
            call_core = await self._core.call_core()
            await call_core.ledger.flush()
            # In memory two agents may have one name, so a core adds # and a number to their ids.
            pattern = agent_id.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "#%"
            calls = await call_core.database.all(
                "SELECT at, status, code, message, seconds, route FROM calls "
                "WHERE (agent = ? OR agent LIKE ? ESCAPE '!') AND at > ? AND status IN ('done', 'failed') "
                "ORDER BY at DESC LIMIT ?",
                agent_id,
                pattern,
                self._env.now() - self._window,
                _MOST_CALLS,
            )
            routes = sorted({row["route"] for row in calls if row["route"]})
            circuits = {route: call_core.parts.breakers.state(route) for route in routes}
        passive = _summarize(calls)
        state, reasons = _judge(card, lease, probe, circuits, passive)
        return Health(
            agent=agent_id,
            state=state,
            reasons=reasons,
            status=card.status,
            lease_left=lease,
            probe_failures=probe.failures,
            probe_seconds=probe.seconds,
            last_probe=probe.at,
            circuits=circuits,
            passive=passive,
        )


def _summarize(calls: Sequence[Row]) -> Passive:
    if not calls:
        return Passive()
    seconds = sorted(row["seconds"] for row in calls)
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 19
    failed = [row for row in calls if row["status"] == "failed" and row["code"] in _UNAVAILABLE]
    return Passive(
        calls=len(calls),
        failures=len(failed),
        success_rate=round(1 - len(failed) / len(calls), 4),
        p50=cuts[9],
        p95=cuts[18],
        last_call=calls[0]["at"],
        last_error=f"{failed[0]['code']}: {failed[0]['message']}" if failed else None,
    )


def _judge(
    card: AgentCard, lease: float | None, probe: _ProbeResult, circuits: dict[str, str], passive: Passive
) -> tuple[State, tuple[str, ...]]:
    """The worst state that anything speaks for, and everything that speaks for it."""
    broken = [f"circuit of {route} is open" for route, state in circuits.items() if state == "open"]
    if lease == 0.0:
        broken.append("its lease has expired")
    if probe.failures >= _FAILED_PROBES:
        broken.append(f"{probe.failures} probes in a row failed, the last with {probe.error}")
    if card.status in ("suspended", "retired"):
        broken.append(f"it is {card.status}")
    if broken:
        return "unhealthy", tuple(broken)
    doubts = [f"probe failed with {probe.error}"] if probe.failures else []
    doubts += [f"circuit of {route} is half-open" for route, state in circuits.items() if state == "half-open"]
    if passive.success_rate is not None and passive.success_rate < _GOOD_RATE:
        doubts.append(f"{passive.failures} of {passive.calls} calls failed")
    if doubts:
        return "degraded", tuple(doubts)
    if lease is None and probe.at is None and not passive.calls:
        return "unknown", ("it was never probed or called, and it has no lease",)
    return "healthy", ()
