"""The background duties of a Runner among several processes: leases, takeover, handed turns, retention.

A process shows that it lives by a lease, and renews the leases of its jobs. Jobs whose process is gone are taken over:
they go on where that is safe, else they end as interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from agent3.calls.jobs import Jobs, may_repeat
from agent3.calls.jobs.changes import wait_until_set
from agent3.calls.jobs.leases import LEASE
from agent3.calls.outcomes import failed_by
from agent3.calls.step import RECOVERY
from agent3.env import Env
from agent3.errors import Agent3Error, Corrupt, Interrupted, NotFound, StorageError
from agent3.model import Entry, Working
from agent3.observe.logs import Outage
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.storage.leases import Leases

if TYPE_CHECKING:
    from agent3.calls.runner import Runner

__all__ = ["Sweep", "Takeover", "liveness_lease"]

log = logger("jobs")

Sweep: TypeAlias = Callable[[], Awaitable[Mapping[str, int]]]
"""Removes what is past its time; how many of each kind."""

_ORPHANED = 3_600.0
"""Seconds after which a job fails that no process took over, since none has its agent."""
_SWEEP = 600.0
"""Seconds between two rounds of retention."""
_LATE = 2 / 3
"""Share of a lease after which its renewal is late: others that renewed theirs at other moments may have lost them."""
_AGAIN = 1.0
"""Seconds, at least, after which a duty is tried again that storage failed."""
_COUNT = 30.0
"""Seconds between two counts of all jobs, each of which reads the whole table."""
_REQUESTS = 0.2
"""Seconds between two looks for requests of other processes, where none can wake this one."""
_REQUESTS_NOTIFIED = 5.0
"""Likewise where the database notifies: a notification may be lost."""


def liveness_lease(node: str | None) -> str:
    """The name of the lease by which a process shows that it lives."""
    return f"alive {node}"


class Takeover:
    """What one process does for the jobs of all. ``start`` begins it, ``aclose`` ends it."""

    def __init__(
        self,
        runner: Runner,
        jobs: Jobs,
        env: Env,
        metrics: Metrics,
        *,
        sweep: Sweep | None = None,
        leases: Leases | None = None,
        duties: Mapping[str, tuple[Callable[[], Awaitable[object]], float]] | None = None,
    ):
        self._runner = runner
        self._jobs = jobs
        self._env = env
        self._metrics = metrics
        self._sweep = sweep
        self._leases = leases
        self._others = duties or {}
        self._duties: list[asyncio.Task[None]] = []
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._trust_silence_after = float("-inf")
        self._renewed = float("inf")
        """When the leases of this process were last renewed."""

    def start(
        self,
        every: float = LEASE / 3,
        sweep_every: float = _SWEEP,
        *,
        take_over: bool = True,
        trust_after: float = LEASE,
    ) -> None:
        """Renew leases, take over lost jobs and serve requests of other processes; more rarely, remove old rows.

        Old rows are removed by one process of all. Without ``take_over`` only the leases are renewed. For
        ``trust_after`` seconds nobody is taken for gone because it is silent: the database may just have come back,
        and others have yet to renew their leases.
        """
        self._renewed = self._env.monotonic()
        self._trust_silence_after = self._renewed + trust_after
        if not take_over:
            self._repeat(self.renew_leases, every, "leases", first=every)
            return
        self._jobs.news.listen()
        self._repeat(self._round, every, "jobs")
        self._repeat(self._count, _COUNT, "count")
        self._repeat(self._serve_requests, _REQUESTS, "requests", first=_REQUESTS)
        for name, (duty, seconds) in self._others.items():
            self._repeat(duty, seconds, name)
        if self._sweep is not None:  # a task of its own: leases must not wait for a large sweep
            work = partial(self._sweep_once, self._sweep, sweep_every)
            self._repeat(work, sweep_every, "sweep", first=sweep_every)

    async def aclose(self) -> None:
        """Stop the duties."""
        tasks = [*self._duties, *self._stops.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def recover(self, *, silent: bool = True) -> int:
        """Take over jobs whose process is gone: go on where that is safe, else end them as interrupted; how many.

        A job whose agent is not here is left for a process that has it; after an hour it fails. One job that cannot
        be taken over does not keep the others from it. Without ``silent`` only jobs of processes that are certainly
        gone are taken, not those of silent ones.
        """
        taken = 0
        runner = self._runner
        silent = silent and self._env.monotonic() >= self._trust_silence_after
        for job_id in await self._jobs.leases.list_abandoned(silent=silent):
            if job_id in runner.tasks or job_id in runner.inlined:
                continue
            try:
                taken += await self._take_over(job_id)
            except Corrupt as error:
                log.error("job %s: it could not be taken over; retrying in the next round: %s", job_id, error)
            except StorageError:
                raise  # as it would for the others
            except Exception:
                log.exception("job %s: it could not be taken over; retrying in the next round", job_id)
        return taken

    async def renew_leases(self) -> None:
        """Renew the leases of all jobs that run here; stop those that another process has taken."""
        runner = self._runner
        own = [*runner.tasks, *runner.inlined]
        if not own:
            return
        for job_id in await self._jobs.leases.renew(own):
            if job_id in runner.lost:  # it is stopped already, and waits for how the other one ends it
                continue
            turn, task = runner.inlined.get(job_id), runner.tasks.get(job_id)
            if turn is not None and turn.task is not None:
                turn.called_off, task = True, turn.task
            if task is not None and not task.done():
                log.warning("job %s: another process has taken it over, so it is stopped here", job_id)
                runner.lost.add(job_id)
                task.cancel()

    def _repeat(self, work: Callable[[], Awaitable[object]], every: float, name: str, first: float = 0.0) -> None:
        outage = Outage(log, f"the duty {name!r}")

        async def repeat() -> None:
            await asyncio.sleep(first)
            while True:
                pause = every
                try:
                    await work()
                except StorageError as error:
                    outage.failed(error)
                    self._metrics.events_dropped.inc(("duty while storage is away",))
                    pause = max(every, _AGAIN)
                except Exception:
                    log.exception("jobs: %s failed, tried again in %g s", name, every)
                else:
                    outage.worked()
                await asyncio.sleep(pause)

        self._duties.append(asyncio.get_running_loop().create_task(repeat(), name=name))

    async def _round(self) -> None:
        try:
            if self._leases is not None:
                await self._leases.take(liveness_lease(self._jobs.node), LEASE)
            await self.renew_leases()
        except StorageError:
            # A process that could not renew its own leases, or only late, must not conclude from expired ones that
            # others are gone: the same outage, or the same stall of the database, may have kept them from it.
            self._trust_silence_after = self._env.monotonic() + LEASE
            raise
        now = self._env.monotonic()
        if now - self._renewed > _LATE * LEASE:
            self._trust_silence_after = now + LEASE
        self._renewed = now
        await self.recover()

    async def _count(self) -> None:
        for status, count in (await self._jobs.count_by_status()).items():
            self._metrics.jobs.set((status,), count)

    async def _sweep_once(self, sweep: Sweep, every: float) -> None:
        """One round of retention, unless another process has this duty."""
        if self._leases is not None and not await self._leases.take("sweep", 2 * every):
            return
        if removed := {name: count for name, count in (await sweep()).items() if count}:
            log.info("expired and removed: %s", ", ".join(f"{n} {name}" for name, n in removed.items()))

    async def _serve_requests(self) -> None:
        """Stop the jobs that other processes ask to stop, and begin the turns that they handed over."""
        leases, runner = self._jobs.leases, self._runner
        if self._jobs.news.live:
            woken = await wait_until_set(leases.wakeup, _REQUESTS_NOTIFIED)
        else:
            woken = leases.wakeup.is_set()
        leases.wakeup.clear()
        if runner.tasks or runner.inlined:
            for job_id in await leases.list_stop_requests():
                if job_id not in self._stops and (job_id in runner.tasks or job_id in runner.inlined):
                    # In a task of its own: a turn may take long to stop, and the others need not wait for it.
                    task = asyncio.get_running_loop().create_task(self._stop(job_id), name=f"stop {job_id}")
                    self._stops[job_id] = task
                    task.add_done_callback(lambda _, job_id=job_id: self._stops.pop(job_id, None))  # type: ignore[misc]
        for job in await leases.list_handed_over():
            try:
                target = await runner.target(job.call.agent, job.call.capability)
            except NotFound:
                continue  # the process that handed it over takes it back
            if (taken := await self._jobs.take_over(job)) is not None:
                call = runner.next_turn(taken, taken.call.principal, "answer")
                runner.spawn(taken, call, target, None, RECOVERY)
        if woken:  # another process may have given up its jobs
            await self.recover()

    async def _stop(self, job_id: str) -> None:
        try:
            job = await self._jobs.leases.find_own(job_id)
            if job is not None:
                log.info("job %s: cancelled at the request of another process", job_id)
                await self._runner.cancel(job.call.principal, job_id)
        except Agent3Error as error:
            log.warning("job %s: it could not be cancelled: %s", job_id, error)

    async def _take_over(self, job_id: str) -> bool:
        job = await self._jobs.leases.find_abandoned(job_id)
        if job is None:
            return False
        runner = self._runner
        try:
            target = await runner.target(job.call.agent, job.call.capability)
        except NotFound as error:
            if max(job.lease or 0.0, job.updated or 0.0) > self._env.now() - _ORPHANED:
                log.debug("job %s: left for a process that has its agent: %s", job.id, error)
                return False
            taken = await self._jobs.take_over(job)
            if taken is None:
                return False
            log.warning("job %s: no process has its agent: %s", job.id, error)
            await runner.end_abandoned(taken, failed_by(error), RECOVERY)
            return True
        taken = await self._jobs.take_over(job)
        if taken is None:
            return False
        principal = taken.call.principal
        if await self._jobs.leases.is_stop_requested(job.id):
            runner.spawn(taken, runner.next_turn(taken, principal, "cancel"), target, None, RECOVERY)
        elif isinstance(taken.outcome, Working):
            runner.pursue(taken, target, RECOVERY)
        elif may_repeat(target[1]):
            log.info("job %s: turn %d runs again after a restart", taken.id, taken.turn)
            # A later turn also starts, where the one before it only asked what to start.
            entry: Entry = "start" if taken.outcome is None else "answer"
            runner.spawn(taken, runner.next_turn(taken, principal, entry), target, None, RECOVERY)
        else:
            # A key does not make it repeatable: its target never saw that key.
            log.warning("job %s: interrupted by a restart", taken.id)
            text = (
                "The gateway was restarted during this call, and the capability may not be repeated automatically. "
                "Find out whether it was done; call it again if it was not."
            )
            await runner.end_abandoned(taken, failed_by(Interrupted(text)), RECOVERY)
        return True
