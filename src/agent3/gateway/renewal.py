"""Keeping cards fresh: an added server is asked again what it can do when it says that this changed, and when its card
is old at the time of its use.

Whoever uses an agent never waits for that: the card is served as it is, and renewed behind it. A server that cannot be
reached keeps its card and is marked, so that it is seen to be down and not to be empty; the mark goes when it answers.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from agent3.directory import Directory
from agent3.directory.beside import Beside
from agent3.directory.stand_ins import bare
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, TargetError
from agent3.gateway.gateway import UNREACHABLE
from agent3.gateway.pins import MODE, PENDING, SUSPENDED, Mode, hash_of, quarantine
from agent3.gateway.protocol import Protocol
from agent3.gateway.strangers import admit_described, needs_secret
from agent3.identity.secrets import EnvironmentVault, Vault
from agent3.model import Agent, Done, Failed, Outcome, Route, own_routes, place_of
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics

__all__ = ["Renewals"]

log = logger("server")

TOGETHER = 0.2
"""Seconds for which news of one server is gathered: what changes tool by tool is asked for once."""
APART = 2.0
"""Least seconds between two questions to one server, also to one that says without end that it changed."""
Duty = Callable[[str, float], Awaitable[bool]]
"""Whether something named is this process's to do for so many seconds, of all that share the directory."""
_DOWN = frozenset({"unavailable", "circuit_open", "timeout"})


class Renewals:
    """Renews what the directory holds of agents elsewhere. It belongs to the event loop it is used in.

    ``changed`` and ``used`` return at once; for one server at most one question is under way, and a new one waits a
    little. ``listeners`` hear the address of a server that said that it changed, when the directory has its new card;
    ``counts`` is how often each result came: ``renewed``, ``same``, ``quarantined``,
    ``unreachable`` or ``failed``. A change of what an agent can do waits for somebody to approve it; see ``pins``.
    """

    def __init__(
        self,
        directory: Directory,
        protocols: Mapping[str, Protocol],
        *,
        vault: Vault | None = None,
        card_seconds: float = 3_600.0,
        env: Env = REAL,
        metrics: Metrics = METRICS,
        duty: Duty | None = None,
        changes: Mode = "pin",
    ):
        self._changes = changes
        self._metrics = metrics
        self._duty = duty
        self._aged: set[str] = set()
        self.listeners: list[Callable[[str], None]] = []
        self.counts: Counter[str] = Counter()
        self._directory = directory
        self._protocols = protocols
        self._vault = vault or EnvironmentVault()
        self._card_seconds = card_seconds
        self._env = env
        self._addresses: Beside[Agent, frozenset[str]] = Beside()
        self._asked: dict[str, float] = {}
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._closed = False

    def changed(self, address: str) -> None:
        """A server says that its lists changed."""
        self._aged.discard(address)
        self._begin(address)

    def used(self, agent: Agent, outcome: Outcome | None = None) -> None:
        """Somebody looked at an agent, or called it with this outcome."""
        # Where its servers are; remembered, for a server may have thousands of tools and is called often.
        known = self._addresses.get(agent)
        if known is None:
            known = self._addresses.put(agent, frozenset(route.address for route in self._routes(agent)))
        for address in known:
            if _doubtful(agent, outcome):
                self._aged.discard(address)
                self._begin(address)
            elif self._old(address):
                if address not in self._rounds:
                    self._aged.add(address)
                self._begin(address)

    async def renew(self, address: str, vault: Vault | None = None) -> list[Agent]:
        """Ask a server what it can do, and store it for every agent that is reached there; those that changed."""
        changed = []
        found = False
        for agent in await self._directory.reached_at(address):
            route = next((route for route in self._routes(agent) if route.address == address), None)
            if route is not None:
                found = True
                now = await self._asked_again(agent, replace(route, target=None), vault or self._vault)
                changed += [now] if now is not None else []
        if found:
            self._asked[address] = self._env.monotonic()
        else:
            self._asked.pop(address, None)
        return changed

    async def aclose(self) -> None:
        """Stop; what is under way is given up."""
        self._closed = True
        rounds = list(self._rounds.values())
        for one in rounds:
            one.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)

    # Inside

    def _routes(self, agent: Agent) -> list[Route]:
        """Those of an agent that is asked again what it can do."""
        routes = (route for capability in agent.capabilities for route in own_routes(capability))
        return [
            route
            for route in routes
            if (protocol := self._protocols.get(route.protocol)) is not None and protocol.renews(route)
        ]

    def _old(self, address: str) -> bool:
        age = self._env.monotonic() - self._asked.get(address, float("-inf"))
        return 0 < self._card_seconds < age

    def _begin(self, address: str) -> None:
        if address in self._rounds:
            self._again.add(address)
        elif not self._closed:
            # Not in the name of the caller that gave the reason: it may have come from the very gateway that is asked.
            task = asyncio.get_running_loop().create_task(
                self._round(address), name="renewal", context=contextvars.Context()
            )
            self._rounds[address] = task
            task.add_done_callback(lambda _: self._rounds.pop(address, None))

    async def _round(self, address: str) -> None:
        while True:
            since = self._env.monotonic() - self._asked.get(address, float("-inf"))
            await asyncio.sleep(max(TOGETHER, APART - since))
            self._again.discard(address)
            try:
                if await self._elsewhere(address):
                    self._asked[address] = self._env.monotonic()
                else:
                    await self._renew_and_tell(address)
            except Exception:
                log.exception("%s could not be renewed", place_of(address))
            if address not in self._again:
                return

    async def _elsewhere(self, address: str) -> bool:
        """Whether another gateway sees to this card, and only its age gave reason to ask: one of all is enough."""
        if address not in self._aged or self._duty is None:
            return False
        self._aged.discard(address)
        return not await self._duty(f"card {address}", self._card_seconds)

    async def _renew_and_tell(self, address: str) -> None:
        try:
            await self.renew(address)
        except Agent3Error as wrong:
            self._count("failed")
            log.warning("%s could not be renewed: %s", place_of(address), wrong)
            self._asked[address] = self._env.monotonic()
        for listener in self.listeners:
            listener(address)

    async def _asked_again(self, agent: Agent, route: Route, vault: Vault) -> Agent | None:
        """The agent as it was stored anew; None where there was nothing to store."""
        try:
            described = await self._protocols[route.protocol].describe(route, vault)
            found = await asyncio.to_thread(admit_described, described, route)
        except TargetError as wrong:
            self._count("unreachable")
            log.warning("%s cannot be asked for its description, and keeps its card: %s", agent.id, wrong)
            return await self._store(agent, self._mark_unreachable(agent, wrong))
        except Agent3Error as wrong:
            # Such as a variable that is not set here: a fault of this gateway, and no news of the server.
            self._count("failed")
            log.warning("%s cannot be asked for its description: %s", agent.id, wrong)
            return None
        if why := self._protocols[route.protocol].renewal_refusal(agent, found):
            return await self._store(agent, self._suspend(agent, why))
        meta = {key: value for key, value in agent.meta.items() if key not in (UNREACHABLE, PENDING)}
        now = replace(found, id=agent.id, name=agent.name, status=agent.status, meta={**meta, **found.meta})
        # In a thread: a service may have thousands of operations.
        if why := await asyncio.to_thread(self._find_quarantine, agent, now, route):
            return await self._store(agent, self._quarantine(agent, now, why))
        self._count("same" if now == bare(agent) else "renewed")
        return await self._store(agent, now)

    def _find_quarantine(self, agent: Agent, now: Agent, route: Route) -> str | None:
        """Why a new description waits for somebody to approve it; None where it may be served."""
        if now == bare(agent) or hash_of(now) == hash_of(agent):
            return None
        protocol = self._protocols[route.protocol]
        if needs_secret(route) and (more := protocol.secret_origins(now) - protocol.secret_origins(agent)):
            return f"it would now send its secret to {', '.join(sorted(more))}"
        return None if self._mode(agent) == "trust" else "its description has changed"

    def _mode(self, agent: Agent) -> str:
        return str(agent.meta.get(MODE) or self._changes)

    def _quarantine(self, agent: Agent, now: Agent, why: str) -> Agent:
        """The agent as it was approved, with its change beside it; with ``ask`` it takes no calls either."""
        self._count("quarantined")
        kept = quarantine(agent, now, self._env.now(), why)
        if kept is not agent:
            log.warning(
                "%s is served as it was approved: %s. See agent3 show %s --changes and agent3 approve %s.",
                *(agent.id, why, agent.id, agent.id),
            )
        if self._mode(agent) == "ask" and kept.status == "active":
            mark = {"since": self._env.now(), "why": f"{why}, and the change is not approved"}
            kept = replace(kept, status="suspended", meta={**kept.meta, SUSPENDED: mark})
        return replace(kept, meta={key: value for key, value in kept.meta.items() if key != UNREACHABLE})

    def _count(self, result: str) -> None:
        self.counts[result] += 1
        self._metrics.renewals.inc((result,))

    def _mark_unreachable(self, agent: Agent, wrong: TargetError) -> Agent:
        if UNREACHABLE in agent.meta:
            return agent
        mark = {"since": self._env.now(), "why": wrong.message[:300]}
        return replace(agent, meta={**agent.meta, UNREACHABLE: mark})

    def _suspend(self, agent: Agent, why: str) -> Agent:
        """The agent as it was, which takes no calls until somebody looks at it and adds it again."""
        self._count("failed")
        log.error("%s was suspended: %s. If the change is correct, add it again.", agent.id, why)
        mark = {"since": self._env.now(), "why": why}
        return (
            agent
            if agent.status == "suspended"
            else replace(agent, status="suspended", meta={**agent.meta, SUSPENDED: mark})
        )

    async def _store(self, before: Agent, now: Agent) -> Agent | None:
        if now == bare(before) or not await self._directory.renew(before, now):
            return None  # nothing new, or somebody has added it anew or removed it meanwhile, and knows better
        log.info("%s was renewed: it has %d capabilities", now.id, len(now.capabilities))
        return now


def _doubtful(agent: Agent, outcome: Outcome | None) -> bool:
    """Whether a call gives reason to ask: a server is down that was not marked, or answers though it was."""
    if isinstance(outcome, Failed):
        return outcome.code in _DOWN and UNREACHABLE not in agent.meta
    return isinstance(outcome, Done) and UNREACHABLE in agent.meta
