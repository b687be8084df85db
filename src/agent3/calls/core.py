"""The call core put together: every step with its parts, in the one order, and the Runner in front.

The gateway and the documented classes both build theirs here, so a tool in a script runs under the same steps as a
remote agent behind the gateway.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent3.calls.express import Express
from agent3.calls.jobs.jobs import Jobs
from agent3.calls.keeping import ArtifactStore, DeadLetters, Retention
from agent3.calls.ledger import Ledger, ledger
from agent3.calls.order import AFTER, ORDER, chain, dispatch
from agent3.calls.outcomes import failed_by
from agent3.calls.policy import authorize, limit, resolve, toll, validate
from agent3.calls.resilience import Breakers, attempt, breaker, dead_letter, deadline, fallback, retry
from agent3.calls.results import ResultCache, artifacts, cache, sanitize
from agent3.calls.runner import Charge, Runner, Target
from agent3.calls.steps.park import Park
from agent3.calls.steps.sealing import sealing
from agent3.env import REAL, Env
from agent3.errors import Agent3Error
from agent3.identity.secrets import EnvironmentVault, Vault
from agent3.model import Call, Capability, Connector, Handler, Live, Outcome, Step
from agent3.observe.metrics import METRICS, Metrics
from agent3.observe.traces import NoTracer, Tracer
from agent3.protocols.functions.functions import LocalConnector
from agent3.queue import sweep
from agent3.security.access import Access
from agent3.security.limits import Ceiling, Limiter, SharedLimiter
from agent3.security.shared_ceiling import SharedCeiling
from agent3.settings import Calls, Settings
from agent3.storage import Blobs, Database
from agent3.storage.leases import Leases
from agent3.storage.notifications import News

if TYPE_CHECKING:  # it brings the HTTP client along, which a tool in a script has no use for
    from agent3.calls.callbacks import Callbacks

__all__ = ["House"]


@dataclass(slots=True)
class House:
    """The call core of one gateway or documented class. ``aclose`` leaves the database open: it came from outside."""

    settings: Settings
    database: Database
    connectors: Mapping[str, Connector]
    env: Env
    metrics: Metrics
    ledger: Ledger
    access: Access
    limiter: Limiter
    ceiling: Ceiling
    breakers: Breakers
    cache: ResultCache
    park: Park
    jobs: Jobs
    leases: Leases
    dead_letters: DeadLetters
    artifacts: ArtifactStore
    callbacks: Callbacks | None
    steps: Mapping[str, Step]
    charge: Charge
    handler: Handler
    after: Handler
    """The steps that deal with what a target said, without the ledger."""
    traced: bool
    """Whether calls have spans."""
    runner: Runner

    @classmethod
    def build(
        cls,
        settings: Settings,
        database: Database,
        connectors: Mapping[str, Connector],
        lookup: Callable[[str, str], Awaitable[Target]],
        *,
        blobs: Blobs | None = None,
        vault: Vault | None = None,
        tracer: Tracer | None = None,
        env: Env = REAL,
        metrics: Metrics = METRICS,
        news: News | None = None,
        callbacks: Callbacks | None = None,
    ) -> House:
        """Everything from settings, a database, the connectors, and a way to look a capability up by its names."""
        how = settings.calls
        book = Ledger(database, how.ledger, env, metrics)
        access = Access(settings.rules)
        breakers = Breakers(how, env, metrics)
        results = ResultCache(how.cache_entries, env)
        park = Park(env, metrics, how.parked, how.parked_seconds)
        letters = DeadLetters(database, env, how.dead_letters, metrics)
        store = ArtifactStore(database, blobs if blobs is not None else Blobs(None), env, how.job_days)
        limiter = SharedLimiter(database, settings.limits.per_minute, settings.limits.burst, env=env)
        jobs = Jobs(database, env, keep_days=how.job_days, metrics=metrics, teller=callbacks, news=news)
        jobs.news.on("job", park.forget)
        leases = Leases(database, jobs.node)
        ceiling = _ceiling(settings, database, connectors, leases, jobs.news, env)
        steps = _steps(
            settings, book, tracer, access, limiter, ceiling, results, store, letters, breakers, vault, park, metrics
        )
        inner = chain(steps, dispatch(connectors), ORDER[1:])
        after = chain(steps, dispatch(connectors), AFTER)
        express = Express(inner, after, connectors, access, limiter, ceiling, breakers, how, env, metrics)
        handler = steps["ledger"](express)
        charge = _charge(limiter, steps["ledger"])
        retention = _retention(database, jobs, store, env, how, limiter, leases)
        return cls(
            settings=settings,
            database=database,
            connectors=connectors,
            env=env,
            metrics=metrics,
            ledger=book,
            access=access,
            limiter=limiter,
            ceiling=ceiling,
            breakers=breakers,
            cache=results,
            park=park,
            jobs=jobs,
            leases=leases,
            dead_letters=letters,
            artifacts=store,
            callbacks=callbacks,
            steps=steps,
            charge=charge,
            handler=handler,
            after=after,
            traced=tracer is not None and not isinstance(tracer, NoTracer),
            runner=Runner(
                handler,
                jobs,
                lookup,
                env,
                metrics,
                settings=how,
                charge=charge,
                sweep=retention.sweep,
                leases=leases,
                unpark=park.forget,
            ),
        )

    async def refuse(self, call: Call, refusal: Agent3Error, door: str) -> None:
        """Record a call that was refused before it had a target: the ledger alone has something to say of it."""
        live = Live(None, Capability(name=call.capability), door=door)

        async def refused(_: Call) -> Outcome:
            return failed_by(refusal)

        await self.steps["ledger"](refused)(replace(call, live=live))

    async def aclose(self) -> None:
        """Let running turns finish for a while, write what is left, and close the connectors."""
        await self.runner.aclose(self.settings.server.shutdown_seconds)
        await self.ceiling.aclose()
        if self.callbacks is not None:
            await self.callbacks.aclose()
        await self.park.aclose()
        await self.ledger.aclose()
        for connector in self.connectors.values():
            await connector.aclose()


def _retention(
    database: Database,
    jobs: Jobs,
    store: ArtifactStore,
    env: Env,
    how: Calls,
    limiter: SharedLimiter,
    leases: Leases,
) -> Retention:
    """What is removed when its time is over, of everything that the house keeps."""
    others: dict[str, Callable[[], Awaitable[int]]] = {
        "full buckets": limiter.expire,
        "old leases": leases.expire,
        "messages and keys": partial(sweep, database),
    }
    return Retention(database, jobs, store, env, how, others)


def _ceiling(
    settings: Settings,
    database: Database,
    connectors: Mapping[str, Connector],
    leases: Leases,
    news: News,
    env: Env,
) -> Ceiling:
    """One for all gateways on a server; agents that live in this process have their ceiling in it."""
    most, local = settings.limits.concurrent, connectors.get("local")
    if database.dialect != "postgres" or most < 1:
        return Ceiling(most)
    here = local.agents if isinstance(local, LocalConnector) else {}
    return SharedCeiling(most, leases, news, alone=here.__contains__, env=env)


def _steps(
    settings: Settings,
    book: Ledger,
    tracer: Tracer | None,
    access: Access,
    limiter: Limiter,
    ceiling: Ceiling,
    results: ResultCache,
    store: ArtifactStore,
    letters: DeadLetters,
    breakers: Breakers,
    vault: Vault | None,
    park: Park,
    metrics: Metrics,
) -> dict[str, Step]:
    """Every step by its name; their order is the chain's."""
    how, env = settings.calls, book.env
    return {
        "ledger": ledger(book, tracer),
        "authorize": authorize(access),
        "limit": limit(limiter, ceiling),
        "cache": cache(results, metrics),
        "artifacts": artifacts(store.store, how.artifact_bytes),
        "resolve": resolve(),
        "validate": validate(),
        "dead_letter": dead_letter(letters.bury, metrics),
        "deadline": deadline(how, env),
        "fallback": fallback(metrics),
        "retry": retry(how, env, metrics),
        "breaker": breaker(breakers),
        "attempt": attempt(how, metrics),
        "sanitize": sanitize(how.result_bytes),
        "sealing": sealing(vault or EnvironmentVault()),
        "park": park,
    }


def _charge(limiter: Limiter, record: Step) -> Charge:
    """Charge a caller before anything of its call is kept; a refusal is recorded as if the chain had refused."""

    async def charge(call: Call) -> Outcome | None:
        refusal = await toll(limiter, call)
        if refusal is None:
            return None

        async def refused(_: Call) -> Outcome:
            return refusal

        return await record(refused)(call)

    return charge
