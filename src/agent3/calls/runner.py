"""The Runner: all that the doors see of a call. Start, answer, wait, follow, cancel, recover.

A turn that can neither be detached nor repeated by key runs inline, without a row of its own, and becomes a job only
when it pauses, goes on elsewhere, or does something once that must not be done twice. All others are jobs from the
start: durable before they are told, events in the log, taken over by another process when this one dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from msgspec.structs import replace

from agent3.calls.jobs import LEASE, Job, Jobs
from agent3.calls.outcomes import failed_by
from agent3.env import Env
from agent3.errors import Agent3Error, Canceled, Conflict, Interrupted, NotFound, StorageError, TurnTaken
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Event,
    Failed,
    Handler,
    Live,
    Needs,
    Outcome,
    Part,
    Principal,
    Working,
)
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics

__all__ = ["Listener", "Runner", "Target", "converse"]

log = logger("jobs")

Listener = Callable[[Event], None]
Target = tuple[Agent, Capability]
Lookup = Callable[[str, str], Awaitable[Target]]

_FLUSH = 0.01
_PENDING = 1_000
_PATIENCE = 30.0
"""Seconds that a cancelled turn gets to clean up before its cancelling stops waiting for it."""
_RECOVERY = "recovery"


class _Turn:
    """One running turn: gives its events their numbers and writes them in batches, if it is a job's."""

    def __init__(
        self,
        jobs: Jobs,
        job: Job | None,
        live: Live,
        listener: Listener | None,
        call: Call,
        opened: Callable[[_Turn], None] | None = None,
    ):
        self.job = job
        self.seq = job.seq if job is not None else 0
        self.task: asyncio.Task[Any] | None = None
        self.called_off = False
        self._jobs = jobs
        self._listener = listener
        self.call = call
        self._live = live
        self._opened = opened
        self._opening: asyncio.Lock | None = None
        self._pending: list[Event] = []
        self._writer: asyncio.Task[None] | None = None
        self._writing = False
        live.listener = self.hear
        live.keep = self.keep
        if job is not None and job.kept:
            live.kept = dict(job.kept)

    def hear(self, event: Event) -> None:
        """Take an event: write it down if this is a job, and tell the caller that is there."""
        if self.job is not None:
            self.seq += 1
            event = replace(event, seq=self.seq, turn=self.job.turn)
            self._pending.append(event)
            if self._writer is None or self._writer.done():
                self._writer = asyncio.get_running_loop().create_task(self._write())
        if self._listener is not None and event.kind != "state":
            self._tell(self._listener, event)

    async def keep(self, name: str, value: Any) -> None:
        """Remember durably that something was done; an inline turn becomes a job by it."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self.job is None:
                self.job, _ = await self._jobs.open(self.call)
                if self._opened is not None:
                    self._opened(self)
        self._live.kept[name] = value
        await self._jobs.keep(self.job, self._live.kept)

    async def settle(self) -> list[Event]:
        """Hear no more; what is still to be written goes with the end of the turn."""
        self._live.listener = None
        if self._writer is not None:
            if not self._writing:
                self._writer.cancel()
            await asyncio.wait([self._writer])
        pending, self._pending = self._pending, []
        return pending

    def _tell(self, listener: Listener, event: Event) -> None:
        try:
            listener(event)
        except Exception:
            # Whoever listens is not part of the call: it loses its events, and the call goes on.
            log.exception("%s/%s: its listener failed and hears no more", self.call.agent, self.call.capability)
            self._listener = None

    async def _write(self) -> None:
        while self._pending:
            await asyncio.sleep(_FLUSH)
            batch, self._pending = self._pending[:_PENDING], self._pending[_PENDING:]
            assert self.job is not None
            self._writing = True
            try:
                await self._jobs.append(self.job, batch)
            except StorageError as wrong:
                log.warning("job %s: %d events are written later: %s", self.job.id, len(batch), wrong)
                self._pending = batch + self._pending
                return
            except Agent3Error as wrong:
                log.warning("job %s: %d events not written: %s", self.job.id, len(batch), wrong)
                return
            finally:
                self._writing = False


class Runner:
    """Runs turns through the chain. One for each gateway; ``aclose`` leaves running jobs for the next process."""

    def __init__(self, handler: Handler, jobs: Jobs, lookup: Lookup, env: Env, metrics: Metrics):
        self._handler = handler
        self._jobs = jobs
        self._lookup = lookup
        self._env = env
        self._metrics = metrics
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._inlined: dict[str, _Turn] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._closing = False

    async def start(
        self,
        call: Call,
        target: Target,
        *,
        listener: Listener | None = None,
        door: str = "library",
        detach: bool = False,
    ) -> Outcome:
        """The first turn. With ``detach`` it answers ``Working`` as soon as the job is on disk.

        A call with a key that was seen before gets the outcome of that job. Cancelling the caller cancels the turn,
        except a detached one. A listener that raises hears no more; the call goes on.
        """
        if call.key is None and not detach:
            return await self._inline(call, target, listener, door)
        job, new = await self._jobs.open(call)
        if not new:
            return _told(job) if detach else await self._join(job, call)
        task = self._spawn(job, call, target, listener, door)
        if detach:
            return Working(job=job.id, turn=job.turn)
        return await self._attached(task)

    async def answer(
        self,
        principal: Principal,
        job_id: str,
        answers: Mapping[str, Answer],
        *,
        turn: int | None = None,
        reply: tuple[Part, ...] = (),
        listener: Listener | None = None,
        door: str = "library",
        detach: bool = False,
    ) -> Outcome:
        """The turn that brings answers. Of two at once one wins; the other is told so by TurnTaken.

        Only what was asked can be answered: answers to anything else are left out.
        """
        job = await self._jobs.get(principal.id, job_id)
        if turn is not None and turn != job.turn:
            raise TurnTaken(f"Turn {turn} of job {job.id} is over; it stands at {job.turn}. Read it again.")
        if job.status != "needs":
            raise TurnTaken(f"Job {job.id} is {job.status} and waits for no answer.")
        target = await self._lookup(job.call.agent, job.call.capability)
        asked = {one.id: answers[one.id] for one in job.questions if one.id in answers}
        claimed = await self._jobs.claim(job, {**job.answers, **asked})
        call = replace(self._next(claimed, principal, "answer"), reply=reply)
        task = self._spawn(claimed, call, target, listener, door)
        if detach:
            return Working(job=job.id, turn=claimed.turn)
        return await self._attached(task)

    async def wait(self, principal: Principal, job_id: str, seconds: float) -> Outcome:
        """How the job stands when it pauses or ends, or ``Working`` when the time is over."""
        return _told(await self._jobs.wait(principal.id, job_id, seconds))

    async def get(self, principal: Principal, job_id: str) -> Job:
        """The job as it stands."""
        return await self._jobs.get(principal.id, job_id)

    def follow(self, principal: Principal, job_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Its events past a sequence number; ends when the job pauses or ends. Any number may follow."""
        return self._jobs.follow(principal.id, job_id, after)

    async def cancel(self, principal: Principal, job_id: str, door: str = "library") -> Outcome:
        """Cancel it: a running turn as a task, a waiting job by a turn of its own. An ended job stays as it is."""
        job = await self._jobs.get(principal.id, job_id)
        if not job.ended:
            job = await self._stop(job)
        if job.ended:
            return _told(job)
        claimed = await self._claim_to_cancel(job)
        call = self._next(claimed, principal, "cancel")
        return await self._spawn(claimed, call, await self._last_known(job), None, door)

    async def recover(self) -> int:
        """Take over jobs whose process is gone: go on where that is safe, else end them as interrupted."""
        taken = 0
        for job in await self._jobs.abandoned():
            if job.id in self._tasks or job.id in self._inlined:
                continue
            if (mine := await self._jobs.seize(job)) is not None:
                taken += 1
                await self._revive(mine)
        return taken

    def keep_house(self, every: float = LEASE / 3) -> None:
        """Start the background duty: leases renewed, lost jobs taken over, old ones removed."""
        self._keeper = asyncio.get_running_loop().create_task(self._duty(every), name="jobs")

    async def aclose(self, seconds: float = 10.0) -> None:
        """Let running turns finish for a while, then stop; what is left is taken over by the next process."""
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)
        self._closing = True
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        try:
            await self._jobs.leave()
        except StorageError as wrong:
            log.warning("jobs: %s; what is left is taken over when its lease has run out", wrong)

    # Inside

    async def _inline(self, call: Call, target: Target, listener: Listener | None, door: str) -> Outcome:
        live = Live(*target, door=door)
        turn = _Turn(self._jobs, None, live, listener, call, self._enlist)
        turn.task = asyncio.current_task()
        try:
            outcome = await self._handler(replace(call, live=live, routes=call.routes or target[1].routes))
        except asyncio.CancelledError:
            if not await self._called_off(turn, live):
                raise
            outcome = _called_off()
        finally:
            live.listener = None
            if turn.job is not None:
                self._inlined.pop(turn.job.id, None)
        if turn.job is None and not isinstance(outcome, Needs | Working):
            return outcome
        return await self._become_job(turn, live, outcome)

    async def _called_off(self, turn: _Turn, live: Live) -> bool:
        """Whether it was the job of an inline turn that was cancelled, and not its caller; a caller's job ends here."""
        if turn.job is None or self._closing:
            return False
        if turn.called_off and turn.task is not None:
            turn.task.uncancel()
            return True
        await self._end(turn, live, _called_off())
        return False

    def _enlist(self, turn: _Turn) -> None:
        """Know an inline turn that became a job, so that its lease is renewed and it can be cancelled."""
        assert turn.job is not None
        self._inlined[turn.job.id] = turn

    async def _become_job(self, turn: _Turn, live: Live, outcome: Outcome) -> Outcome:
        if turn.job is not None:
            job = await self._end(turn, live, outcome)
        else:
            assert isinstance(outcome, Needs | Working)
            job = await self._jobs.adopt(turn.call, outcome, live.route)
        if job.status == "working":
            self._pursue(job, _target_of(live), live.door)
        return _told(job)

    async def _join(self, job: Job, call: Call) -> Outcome:
        if job.status == "working":
            job = await self._jobs.wait(job.owner, job.id, call.timeout or 30.0)
        return _told(job)

    def _spawn(
        self, job: Job, call: Call, target: Target, listener: Listener | None, door: str
    ) -> asyncio.Task[Outcome]:
        live = Live(*target, door=door)
        live.charged = door == _RECOVERY
        turn = _Turn(self._jobs, job, live, listener, call)
        running = replace(call, live=live, routes=call.routes or target[1].routes, job=job.id)
        return self._watch(job.id, self._run(running, live, turn))

    def _watch(self, job_id: str, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(work, name=f"job {job_id}")
        self._tasks[job_id] = task
        task.add_done_callback(lambda done: self._forget(job_id, done))
        return task

    def _forget(self, job_id: str, task: asyncio.Task[Outcome]) -> None:
        if self._tasks.get(job_id) is task:
            del self._tasks[job_id]
        if not task.cancelled() and (wrong := task.exception()) is not None:
            log.error("job %s: %s", job_id, wrong)

    async def _attached(self, task: asyncio.Task[Outcome]) -> Outcome:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise

    async def _run(self, call: Call, live: Live, turn: _Turn) -> Outcome:
        job = await self._to_its_end(call, live, turn)
        if job.status == "working":
            self._pursue(job, _target_of(live), live.door)
        return _told(job)

    async def _to_its_end(self, call: Call, live: Live, turn: _Turn) -> Job:
        """Run a turn of a job until its end is on disk. Closing leaves it as it is, for the next process."""
        try:
            outcome = await self._handler(call)
        except asyncio.CancelledError:
            if self._closing:
                raise
            outcome = _called_off()
        if call.entry == "cancel":
            outcome = _called_off(outcome)
        return await self._end(turn, live, outcome)

    async def _end(self, turn: _Turn, live: Live, outcome: Outcome) -> Job:
        assert turn.job is not None
        events = await turn.settle()
        work = self._jobs.end_turn(turn.job, outcome, live.route, live.answers, events, live.kept, turn.seq)
        ending = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:  # it comes too late: what has ended is written down
            await asyncio.wait([ending])
            raise

    def _pursue(self, job: Job, target: Target, door: str) -> None:
        """Go on asking a target that works elsewhere, until it has ended or needs something."""

        async def pursued() -> Outcome:
            now: Job | None = job
            while now is not None and now.status == "working":
                poll = now.outcome.poll if isinstance(now.outcome, Working) else None
                if await _rings_within(self._stopping, 1.0 if poll is None else poll):
                    break
                now = await self._attach(now, target, door)
            return _told(await self._jobs.get(job.owner, job.id))

        self._watch(job.id, pursued())

    async def _attach(self, job: Job, target: Target, door: str) -> Job | None:
        taken = await self._jobs.seize(job)
        if taken is None:
            return None
        live = Live(*target, door=door)
        turn = _Turn(self._jobs, taken, live, None, taken.call)
        call = replace(self._next(taken, taken.call.principal, "attach"), live=live)
        return await self._to_its_end(call, live, turn)

    async def _stop(self, job: Job) -> Job:
        """Stop whatever this process does for a job; the job as it stands then."""
        if (turn := self._inlined.get(job.id)) is not None and turn.task is not None:
            turn.called_off = True
            turn.task.cancel()
            return await self._jobs.wait(job.owner, job.id, _PATIENCE)
        if (task := self._tasks.get(job.id)) is not None:
            task.cancel()
            await asyncio.wait([task], timeout=_PATIENCE)
            return await self._jobs.get(job.owner, job.id)
        return job

    async def _claim_to_cancel(self, job: Job) -> Job:
        if job.status == "needs":
            return await self._jobs.claim(job)
        if job.node != self._jobs.node:
            raise Conflict(
                f"Job {job.id} runs in another process. Cancel it there, or wait until that process is gone."
            )
        taken = await self._jobs.seize(job)
        if taken is None:
            raise TurnTaken(f"Job {job.id} has just moved on. Read it again.")
        return taken

    async def _last_known(self, job: Job) -> Target:
        """The target of a job, or what is left of it: a job can be cancelled also when its agent is gone."""
        try:
            return await self._lookup(job.call.agent, job.call.capability)
        except NotFound:
            return (
                Agent(id=job.call.agent, name=job.call.agent),
                Capability(name=job.call.capability, interactive=True),
            )

    def _next(self, job: Job, principal: Principal, entry: str) -> Call:
        return replace(
            job.call,
            id=self._env.id(),
            principal=principal,
            entry=entry,
            job=job.id,
            turn=job.turn,
            answers=job.answers,
            questions=job.questions,
            state=job.state,
            route=job.route,
            routes=job.call.routes or ((job.route,) if job.route is not None else ()),
        )

    async def _revive(self, job: Job) -> None:
        try:
            target = await self._lookup(job.call.agent, job.call.capability)
        except Agent3Error as wrong:
            await self._jobs.end_turn(job, failed_by(wrong), job.route)
            return
        if isinstance(job.outcome, Working):
            self._pursue(job, target, _RECOVERY)
        elif _repeatable(target[1]) or job.call.key is not None:
            entry = "answer" if job.turn > 1 else "start"
            log.info("job %s: turn %d runs again after a restart", job.id, job.turn)
            self._spawn(job, self._next(job, job.call.principal, entry), target, None, _RECOVERY)
        else:
            log.warning("job %s: interrupted by a restart", job.id)
            text = (
                "The gateway was restarted in the middle, and this capability may not be repeated unasked. Call again."
            )
            await self._jobs.end_turn(job, failed_by(Interrupted(text)), job.route)

    async def _duty(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                if mine := [*self._tasks, *self._inlined]:
                    await self._jobs.heartbeat(mine)
                await self.recover()
                await self._jobs.expire()
                for status, count in (await self._jobs.counts()).items():
                    self._metrics.jobs.set((status,), count)
            except Exception:
                log.exception("jobs: the round failed and is made again in %g s", every)


def _target_of(live: Live) -> Target:
    assert live.agent is not None
    assert live.capability is not None
    return live.agent, live.capability


def _repeatable(capability: Capability) -> bool:
    hints = capability.hints
    return hints.replay or hints.idempotent or hints.read_only


def _called_off(outcome: Outcome | None = None) -> Failed:
    """A job that was cancelled is cancelled, also where its target could not be told."""
    if isinstance(outcome, Failed) and outcome.code == "canceled":
        return outcome
    untold = f" Its target could not be told: {outcome.message}" if isinstance(outcome, Failed) else ""
    return failed_by(Canceled(f"The job was cancelled.{untold}"))


async def _rings_within(bell: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await bell.wait()
    except TimeoutError:
        return False


def _told(job: Job) -> Outcome:
    """The outcome as the caller hears it: with the job it can come back to."""
    outcome = job.outcome
    if job.status == "working" or outcome is None:
        text = outcome.text if isinstance(outcome, Working) else None
        poll = outcome.poll if isinstance(outcome, Working) else None
        return Working(poll=poll, text=text, job=job.id, turn=job.turn)
    if isinstance(outcome, Needs):
        return Needs(outcome.questions, parts=outcome.parts, job=job.id, turn=job.turn)
    return outcome


async def converse(
    outcome: Outcome,
    answer: Callable[[str, Mapping[str, Answer]], Awaitable[Outcome]],
    ask: Callable[[Needs], Awaitable[Mapping[str, Answer]]],
) -> Outcome:
    """For callers who answer in place: ask and answer until nothing more is needed."""
    while isinstance(outcome, Needs) and outcome.job is not None:
        outcome = await answer(outcome.job, await ask(outcome))
    return outcome
