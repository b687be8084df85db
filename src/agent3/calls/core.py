"""The call core put together: every step with its parts, in the one order, and the Runner in front.

The gateway and the documented classes both build theirs here, so a tool in a script runs under the same steps as a
remote agent behind the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent3.calls.approvals import LOOK_EVERY, Approvals
from agent3.calls.artifacts import ArtifactStore
from agent3.calls.bodies import Bodies
from agent3.calls.budgets import Budgets, Standards
from agent3.calls.dead_letters import DeadLetters
from agent3.calls.jobs import Jobs
from agent3.calls.order import Chain
from agent3.calls.outcomes import failed_by
from agent3.calls.parking import Park
from agent3.calls.prices import EVERY, Prices
from agent3.calls.retention import Retention
from agent3.calls.runner import Runner, Target, with_path
from agent3.calls.statistics import COUNT_EVERY, Statistics
from agent3.calls.step import Aim, Parts, Step
from agent3.calls.steps.breaker import Breakers
from agent3.calls.steps.cache import ResultCache
from agent3.calls.steps.ledger import FRACTIONS, Ledger
from agent3.calls.steps.resolve import Propose
from agent3.calls.stops import LOOK_EVERY as LOOK_FOR_STOPS
from agent3.calls.stops import Stops
from agent3.env import REAL, Env
from agent3.errors import Agent3Error
from agent3.identity.logins import Logins
from agent3.identity.secrets import EnvironmentVault, Vault
from agent3.model import Call, Capability, Connector, Handler, Outcome, Turn
from agent3.observe.metrics import METRICS, Metrics
from agent3.observe.traces import Tracer
from agent3.queue import sweep
from agent3.security.access import Access
from agent3.security.caller_scope import CallerScope
from agent3.security.limits import Ceiling, FairShares, Rates, SharedLimiter, expire_buckets
from agent3.security.shared_ceiling import SharedCeiling
from agent3.settings import Settings
from agent3.storage import Blobs, BlobStore, Database
from agent3.storage.audit import Segment, Signer
from agent3.storage.leases import Leases
from agent3.storage.notifications import News

if TYPE_CHECKING:  # it brings the HTTP client along, which a tool in a script has no use for
    from agent3.calls.callbacks import Callbacks

__all__ = ["Core"]

_SIGN_EVERY = 60.0
"""Seconds between signed heads of the audit chain, where there are new rows."""


@dataclass(slots=True)
class Core:
    """The call core of one gateway or documented class. ``aclose`` leaves the database open: it came from outside."""

    parts: Parts
    database: Database
    chain: Chain
    jobs: Jobs
    leases: Leases
    callbacks: Callbacks | None
    runner: Runner
    statistics: Statistics
    # The parts that are asked for most. Plain attributes, since every call reads some of them.
    settings: Settings = field(init=False)
    env: Env = field(init=False)
    metrics: Metrics = field(init=False)
    connectors: Mapping[str, Connector] = field(init=False)
    access: Access = field(init=False)
    ledger: Ledger = field(init=False)
    dead_letters: DeadLetters = field(init=False)
    artifacts: ArtifactStore = field(init=False)
    _leaves_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        parts = self.parts
        self.settings, self.env, self.metrics = parts.settings, parts.env, parts.metrics
        self.connectors = parts.connectors
        self.access, self.ledger = parts.access, parts.ledger
        self.dead_letters, self.artifacts = parts.dead_letters, parts.artifacts

    @classmethod
    def build(
        cls,
        settings: Settings,
        database: Database,
        connectors: Mapping[str, Connector],
        lookup: Callable[[str, str], Awaitable[Target]],
        *,
        blobs: BlobStore | None = None,
        vault: Vault | None = None,
        tracer: Tracer | None = None,
        env: Env = REAL,
        metrics: Metrics = METRICS,
        news: News | None = None,
        callbacks: Callbacks | None = None,
        own_agents: Container[str] = (),
        order: Sequence[type[Step]] | None = None,
        chain: type[Chain] = Chain,
        propose: Propose | None = None,
        logins: Logins | None = None,
        scope: CallerScope | None = None,
        audit_key: Callable[[], Awaitable[Signer]] | None = None,
        audited: bool = True,
        gateway: str = "",
    ) -> Core:
        """Everything from settings, a database, the connectors, and a way to look a capability up by its names.

        ``own_agents`` live in this process, so that how many of their calls run at once is counted in it alone.
        Unless it is not ``audited``, its rows are linked, and heads are signed with ``audit_key`` where there is one.
        """
        how = settings.calls
        jobs = Jobs(database, env, keep_days=how.job_days, metrics=metrics, callbacks=callbacks, news=news)
        leases = Leases(database, jobs.node)
        limiter = SharedLimiter(database, settings.limits.per_minute, settings.limits.burst, env=env)
        rates = Rates(settings.rates, database, env=env)
        prices = Prices(database, settings.prices)
        statistics = Statistics(database, env, how.statistics_days)
        ceiling = Ceiling(settings.limits.concurrent)
        if database.dialect == "postgres" and settings.limits.concurrent >= 1:
            most, alone = settings.limits.concurrent, own_agents.__contains__
            ceiling = SharedCeiling(most, leases, jobs.news, alone=alone, env=env)
        approvals = Approvals(database, env, metrics, settings.approvals, how.job_days)
        jobs.add_observer(approvals)
        stops = Stops(database, env)
        segment = Segment(database, env, audit_key, FRACTIONS) if audited else None
        parts = Parts(
            settings=settings,
            env=env,
            metrics=metrics,
            tracer=tracer,
            connectors=connectors,
            ledger=Ledger(database, how.ledger, env, metrics, segment),
            access=Access(settings.rules, settings.access.default),
            approvals=approvals,
            stops=stops,
            limiter=limiter,
            rates=rates,
            prices=prices,
            budgets=Budgets(settings.budgets, database, env, metrics),
            standards=Standards(settings.costs, connectors, env, metrics),
            bodies=Bodies(database, env, metrics, how.bodies, how.body_bytes),
            ceiling=ceiling,
            shares=FairShares(settings.limits.concurrent, settings.limits.concurrent_each),
            cache=ResultCache(how.cache_entries, env),
            artifacts=ArtifactStore(
                database,
                blobs if blobs is not None else Blobs(None),
                env,
                how.job_days,
                most=settings.limits.artifacts,
                most_bytes=settings.limits.artifact_bytes,
            ),
            dead_letters=DeadLetters(database, env, how.dead_letters, metrics),
            breakers=Breakers(how, env, metrics, news=jobs.news),
            vault=vault or EnvironmentVault(),
            park=Park(env, metrics, how.parked, how.parked_seconds),
            lookup=lookup,
            count_waiting=jobs.count_waiting,
            propose=propose,
            logins=logins,
            scope=scope,
            gateway=gateway,
        )
        jobs.news.on("job", parts.park.forget)
        jobs.give_back = parts.budgets.give_back
        steps = chain(parts, order)
        prices.on_change = steps.drop
        others: dict[str, Callable[[], Awaitable[int]]] = {
            "full buckets": lambda: expire_buckets(database, env, [limiter, *rates.limiters]),
            "statistics": statistics.expire,
            "old leases": leases.expire,
            "approvals": partial(approvals.expire, how.ledger_days),
            "messages and keys": partial(sweep, database),
        }
        signer = None if segment is None else segment.load_signer
        retention = Retention(database, jobs, parts.artifacts, env, how, others, signer)
        runner = Runner(
            steps,
            jobs,
            lookup,
            env,
            metrics,
            settings=how,
            sweep=retention.sweep,
            leases=leases,
            unpark=parts.park.forget,
            duties={
                "prices": (prices.refresh, EVERY),
                "statistics": (statistics.count, COUNT_EVERY),
                "stops": (stops.refresh, LOOK_FOR_STOPS),
                "approvals": (approvals.settle, LOOK_EVERY),
                "audit heads": (parts.ledger.sign_head, _SIGN_EVERY),
            },
        )
        approvals.on_decision = runner.go_on
        return cls(parts, database, steps, jobs, leases, callbacks, runner, statistics)

    async def refuse(self, call: Call, refusal: Agent3Error, door: str) -> None:
        """Record a call that was refused before it had a target: the ledger alone has something to say of it."""
        live = Turn(None, Capability(name=call.capability), door=door)
        await self.chain.record(replace(call, live=live), failed_by(refusal))

    async def run(self, call: Call, target: Target, work: Handler, door: str) -> Outcome:
        """Run something that no connector does under every step, as if it were a capability of the target."""
        call = with_path(call)
        aim = Aim(*target, call.principal, door, call.entry)
        route = call.routes[0] if len(call.routes) == 1 else None
        return await self.chain.compile(aim, work)(replace(call, live=Turn(*target, door=door), route=route))

    async def check(self, call: Call, target: Target, door: str) -> Outcome | None:
        """What is wrong with the input of a call that is about to start; None where nothing is."""
        return await self.chain.check(replace(call, live=Turn(*target, door=door)))

    def begin_leaving(self) -> None:
        """The time that running turns have to finish begins now: the doors wait for their requests as long."""
        self._leaves_at = asyncio.get_running_loop().time() + self.settings.server.shutdown_seconds

    def cut_off(self) -> None:
        """What is cancelled from now on is cancelled because this gateway stops, and recorded so."""
        self.parts.ledger.is_stopping = True

    async def aclose(self) -> None:
        """Let running turns finish for a while, write what is left, and close the connectors."""
        if self._leaves_at is None:
            self.begin_leaving()
        assert self._leaves_at is not None
        self.cut_off()
        await self.runner.aclose(max(0.0, self._leaves_at - asyncio.get_running_loop().time()))
        await self.parts.ceiling.aclose()
        if self.callbacks is not None:
            await self.callbacks.aclose()
        await self.parts.park.aclose()
        await self.parts.ledger.aclose()
        await self.parts.budgets.aclose()
        await self.parts.bodies.aclose()
        for connector in self.parts.connectors.values():
            await connector.aclose()
