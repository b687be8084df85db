"""How agents are: asked by probes, said by their leases, and seen in how their calls went.

``HealthMonitor`` puts the three together and says which of them led to its verdict. It changes nothing: an agent whose
lease has run out is not discovered any more, and one that keeps failing is left alone by its circuit, with or without
somebody looking.
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
"""Asks an agent whether it is there; it raises when it is not."""

_ROWS = 200
_GOOD = 0.95
_FAILURES = 3
_UNAVAILABLE = frozenset({"unavailable", "timeout", "circuit_open", "malformed_response"})


class Passive(Struct, frozen=True):
    """How the calls of an agent went lately, from the ledger. Seconds are of the whole call; None without any."""

    calls: int = 0
    failures: int = 0
    success_rate: float | None = None
    p50: float | None = None
    p95: float | None = None
    last_call: float | None = None
    last_error: str | None = None


class Health(Struct, frozen=True):
    """How an agent is, and why one thinks so."""

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


class _Probed(Struct):
    failures: int = 0
    seconds: float | None = None
    at: float | None = None
    error: str = ""


class HealthMonitor:
    """Watches the agents of a registry. Safe from any thread.

        monitor = HealthMonitor(registry, executor=watchman)
        monitor.start(every=10)
        monitor.report("hotel").state

    Probes go as messages from ``executor``, or by ``probe`` for agents that are reached in another way. Calls are those
    that the ``core`` made within the last ``window`` seconds.
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
        self._executor = executor
        self._core = core or (executor.core if executor is not None else None)
        self._probe = probe or (self._ping if executor is not None else None)
        self._timeout = timeout
        self._window = window
        self._on_change = on_change
        self._env = env
        self._probed: dict[str, _Probed] = {}
        self._states: dict[str, State] = {}
        self._watching: asyncio.Task[None] | None = None

    def report(self, agent_id: str) -> Health:
        """How one agent is; AgentNotFound when it is not registered."""
        return bridge.run(self._report(agent_id))

    def report_all(self) -> list[Health]:
        """How all agents are, in whichever state of their life."""
        return bridge.run(self._report_all())

    def check(self) -> list[Health]:
        """Probe all agents in service once, at the same time, and say how all are."""
        return bridge.run(self._round())

    def start(self, every: float = 10.0) -> None:
        """Probe them over and over, until ``stop``; ``on_change`` hears of each whose state changes."""
        bridge.run(self._start(every))

    def stop(self) -> None:
        """Probe no more."""
        bridge.run(self._stop())

    async def _start(self, every: float) -> None:
        await self._stop()
        self._watching = asyncio.get_running_loop().create_task(self._watch(every), name="a2a health")
        if self._core is not None:
            self._core.on_close(self._stop)

    async def _stop(self) -> None:
        task, self._watching = self._watching, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self, every: float) -> None:
        while True:
            try:
                await self._round()
            except Agent3Error as wrong:
                log.warning("the agents could not be looked at, which is tried again: %s", wrong)
            await asyncio.sleep(every)

    async def _round(self) -> list[Health]:
        if self._probe is None:
            raise SetupError("To probe agents, give the monitor an executor or a probe.")
        cards = await self._registry.cards()
        await asyncio.gather(*(self._ask(card, self._probe) for card in cards))
        found = await self._report_all()
        self._tell(found)
        return found

    async def _ask(self, card: AgentCard, probe: Probe) -> None:
        known = self._probed.setdefault(card.agent_id, _Probed())
        began = self._env.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                await probe(card)
        except TimeoutError:
            known.failures += 1
            known.error = f"no answer within {self._timeout:g} s"
        except Exception as wrong:  # noqa: BLE001 - whatever a probe dies of, it is the agent that is not well
            known.failures += 1
            known.error = f"{type(wrong).__name__}: {wrong}"[:200]
        else:
            known.failures, known.error = 0, ""
            known.seconds = self._env.monotonic() - began
        known.at = self._env.now()

    async def _ping(self, card: AgentCard) -> None:
        assert self._executor is not None
        await self._executor.ask(card.agent_id, PING, timeout=self._timeout)

    async def _report_all(self) -> list[Health]:
        return [await self._report(one.agent_id) for one in await self._registry.everybody()]

    async def _report(self, agent_id: str) -> Health:
        card, lease = await self._registry.known(agent_id)
        if card is None:
            raise AgentNotFound(f"There is no agent {agent_id[:100]!r} in the registry that is watched.")
        probed = self._probed.get(agent_id, _Probed())
        rows = await self._rows(agent_id)
        circuits = await self._circuits(rows)
        passive = _passive(rows)
        state, reasons = _verdict(card, lease, probed, circuits, passive)
        return Health(
            agent=agent_id,
            state=state,
            reasons=reasons,
            status=card.status,
            lease_left=lease,
            probe_failures=probed.failures,
            probe_seconds=probed.seconds,
            last_probe=probed.at,
            circuits=circuits,
            passive=passive,
        )

    async def _rows(self, agent_id: str) -> Sequence[Row]:
        """The latest calls. In memory two agents may bear one name, so there their ids end in a number."""
        if self._core is None:
            return []
        house = await self._core.house()
        await house.ledger.flush()
        return await house.database.all(
            "SELECT at, status, code, message, seconds, route FROM calls "
            "WHERE (agent = ? OR agent LIKE ? ESCAPE '!') AND at > ? AND status IN ('done', 'failed') "
            "ORDER BY at DESC LIMIT ?",
            agent_id,
            f"{_escaped(agent_id)}#%",
            self._env.now() - self._window,
            _ROWS,
        )

    async def _circuits(self, rows: Sequence[Row]) -> dict[str, str]:
        if self._core is None:
            return {}
        breakers = (await self._core.house()).parts.breakers
        return {route: breakers.state(route) for route in sorted({row["route"] for row in rows if row["route"]})}

    def _tell(self, found: list[Health]) -> None:
        for one in found:
            before = self._states.get(one.agent)
            self._states[one.agent] = one.state
            if before == one.state or self._on_change is None:
                continue
            try:
                self._on_change(one)
            except Exception:
                log.exception("who wanted to hear of %s failed", one.agent)


def _escaped(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _passive(rows: Sequence[Row]) -> Passive:
    if not rows:
        return Passive()
    seconds = sorted(row["seconds"] for row in rows)
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 19
    wrong = [row for row in rows if row["status"] == "failed" and row["code"] in _UNAVAILABLE]
    return Passive(
        calls=len(rows),
        failures=len(wrong),
        success_rate=round(1 - len(wrong) / len(rows), 4),
        p50=cuts[9],
        p95=cuts[18],
        last_call=rows[0]["at"],
        last_error=f"{wrong[0]['code']}: {wrong[0]['message']}" if wrong else None,
    )


def _verdict(
    card: AgentCard, lease: float | None, probed: _Probed, circuits: dict[str, str], passive: Passive
) -> tuple[State, tuple[str, ...]]:
    """The worst that anything says, and everything that says so."""
    broken = [f"circuit of {route} is open" for route, state in circuits.items() if state == "open"]
    if lease == 0.0:
        broken.append("its lease has run out")
    if probed.failures >= _FAILURES:
        broken.append(f"{probed.failures} probes in a row failed, the last with {probed.error}")
    if card.status in ("suspended", "retired"):
        broken.append(f"it is {card.status}")
    if broken:
        return "unhealthy", tuple(broken)
    doubts = [f"probe failed with {probed.error}"] if probed.failures else []
    doubts += [f"circuit of {route} is half-open" for route, state in circuits.items() if state == "half-open"]
    if passive.success_rate is not None and passive.success_rate < _GOOD:
        doubts.append(f"{passive.failures} of {passive.calls} calls could not be made")
    if doubts:
        return "degraded", tuple(doubts)
    if lease is None and probed.at is None and not passive.calls:
        return "unknown", ("nobody has asked or called it, and it has no lease",)
    return "healthy", ()
