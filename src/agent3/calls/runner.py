"""The Runner: all that the doors see of a call. Start, answer, wait, follow, cancel, recover.

A turn that can neither be detached nor repeated by key runs inline, without a row of its own, and becomes a job only
when it pauses, goes on elsewhere, or does something once that must not be done twice. All others are jobs from the
start: durable before they are told, events in the log, taken over by another process when this one dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from msgspec.structs import replace

from agent3.calls.jobs import LEASE, Job, Jobs
from agent3.calls.outcomes import failed_by
from agent3.env import Env
from agent3.errors import Agent3Error, Canceled, Conflict, Interrupted, StorageError, TurnTaken
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


class _Turn:
    """One running turn of a job: gives its events their numbers and writes them in batches."""

    def __init__(self, jobs: Jobs, job: Job | None, live: Live, listener: Listener | None, call: Call):
        self.job = job
        self._jobs = jobs
        self._listener = listener
        self._call = call
        self._live = live
        self._pending: list[Event] = []
        self.seq = job.seq if job is not None else 0
        self._writer: asyncio.Task[None] | None = None
        live.listener = self.hear
        live.keep = self.keep
        live.kept = dict(job.kept) if job is not None else {}

    def hear(self, event: Event) -> None:
        """Take an event: tell the caller that is there, and write it down if this is a job."""
        if self._listener is not None:
            self._listener(event)
        if self.job is None:
            return
        self.seq += 1
        self._pending.append(replace(event, seq=self.seq, turn=self.job.turn))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def keep(self, name: str, value: Any) -> None:
        """Remember durably that something was done; an inline turn becomes a job by it."""
        if self.job is None:
            self.job, _ = await self._jobs.open(self._call)
        self._live.kept[name] = value
        await self._jobs.keep(self.job, self._live.kept)

    async def settle(self) -> list[Event]:
        """Stop writing; what is still to be written goes with the end of the turn."""
        if self._writer is not None:
            await asyncio.wait([self._writer])
        pending, self._pending = self._pending, []
        return pending

    async def _write(self) -> None:
        while self._pending:
            await asyncio.sleep(_FLUSH)
            batch, self._pending = self._pending[:_PENDING], self._pending[_PENDING:]
            assert self.job is not None
            try:
                await self._jobs.append(self.job, batch)
            except Agent3Error as wrong:
                log.warning("job %s: %d events not written: %s", self.job.id, len(batch), wrong)
                return


class Runner:
    """Runs turns through the chain. One for each gateway; ``aclose`` leaves running jobs for the next process."""

    def __init__(self, handler: Handler, jobs: Jobs, lookup: Lookup, env: Env, metrics: Metrics):
        self._handler = handler
        self._jobs = jobs
        self._lookup = lookup
        self._env = env
        self._metrics = metrics
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._keeper: asyncio.Task[None] | None = None
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
        except a detached one.
        """
        if call.key is None and not detach:
            return await self._inline(call, target, listener, door)
        job, new = await self._jobs.open(call)
        if not new:
            return await self._join(job, call)
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
        """The turn that brings answers. Of two at once one wins; the other is told so by TurnTaken."""
        job = await self._jobs.get(principal.id, job_id)
        if turn is not None and turn != job.turn:
            raise TurnTaken(f"Turn {turn} of job {job.id} is over; it stands at {job.turn}. Read it again.")
        if job.status != "needs":
            raise TurnTaken(f"Job {job.id} is {job.status} and waits for no answer.")
        target = await self._lookup(job.call.agent, job.call.capability)
        claimed = await self._jobs.claim(job, {**job.answers, **answers})
        call = replace(self._next(claimed, principal, "answer"), reply=reply, questions=job.questions)
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
        """Cancel it: a running turn as a task, a paused job by a turn of its own. An ended job stays as it is."""
        job = await self._jobs.get(principal.id, job_id)
        if job.ended:
            return _told(job)
        if (task := self._tasks.get(job.id)) is not None:
            task.cancel()
            await asyncio.wait([task])
            return _told(await self._jobs.get(principal.id, job.id))
        if job.status == "working":
            raise Conflict(
                f"Job {job.id} runs in another process. Cancel it there, or wait until that process is gone."
            )
        target = await self._lookup(job.call.agent, job.call.capability)
        claimed = await self._jobs.claim(job)
        return await self._spawn(claimed, self._next(claimed, principal, "cancel"), target, None, door)

    async def recover(self) -> int:
        """Take over jobs whose process is gone: go on where that is safe, else end them as interrupted."""
        taken = 0
        for job in await self._jobs.abandoned():
            if (mine := await self._jobs.seize(job)) is not None:
                taken += 1
                await self._revive(mine)
        return taken

    def keep_house(self, every: float = LEASE / 3) -> None:
        """Start the background duty: leases renewed, lost jobs taken over, old ones removed."""
        self._keeper = asyncio.get_running_loop().create_task(self._duty(every), name="jobs")

    async def aclose(self, seconds: float = 10.0) -> None:
        """Let running turns finish for a while, then stop; what is left is taken over by the next process."""
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

    # Inside

    async def _inline(self, call: Call, target: Target, listener: Listener | None, door: str) -> Outcome:
        live = Live(*target, door=door)
        turn = _Turn(self._jobs, None, live, listener, call)
        outcome = await self._handler(replace(call, live=live, routes=call.routes or target[1].routes))
        if turn.job is not None:
            return await self._end(turn, live, outcome)
        if isinstance(outcome, Needs | Working):
            job = await self._jobs.adopt(call, outcome, live.route)
            if isinstance(outcome, Working):
                self._pursue(job, target, door)
            return _told(job)
        return outcome

    async def _join(self, job: Job, call: Call) -> Outcome:
        if job.status == "working":
            job = await self._jobs.wait(job.owner, job.id, call.timeout or 30.0)
        return _told(job)

    def _spawn(
        self, job: Job, call: Call, target: Target, listener: Listener | None, door: str
    ) -> asyncio.Task[Outcome]:
        live = Live(*target, door=door)
        turn = _Turn(self._jobs, job, live, listener, call)
        running = replace(call, live=live, routes=call.routes or target[1].routes, job=job.id)
        task = asyncio.get_running_loop().create_task(self._run(running, live, turn), name=f"job {job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda done: self._forget(job.id, done))
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
        try:
            outcome = await self._handler(call)
        except asyncio.CancelledError:
            if self._closing:
                raise
            outcome = failed_by(Canceled("The job was cancelled."))
        if call.entry == "cancel" and not isinstance(outcome, Failed):
            outcome = failed_by(Canceled("The job was cancelled."))
        told = await self._end(turn, live, outcome)
        if isinstance(told, Working) and turn.job is not None:
            self._pursue(turn.job, (live.agent, live.capability), live.door)  # type: ignore[arg-type]
        return told

    async def _end(self, turn: _Turn, live: Live, outcome: Outcome) -> Outcome:
        assert turn.job is not None
        events = await turn.settle()
        ended = await self._jobs.end_turn(turn.job, outcome, live.route, live.answers, events, live.kept, turn.seq)
        return _told(ended)

    def _pursue(self, job: Job, target: Target, door: str) -> None:
        """Go on asking a target that works elsewhere, until it has ended or needs something."""

        async def attached() -> Outcome:
            current = job
            while not self._closing:
                outcome = current.outcome
                pause = outcome.poll if isinstance(outcome, Working) and outcome.poll is not None else 1.0
                await asyncio.sleep(pause)
                taken = await self._jobs.seize(await self._jobs.get(job.owner, job.id))
                if taken is None:
                    break
                live = Live(*target, door=door)
                turn = _Turn(self._jobs, taken, live, None, taken.call)
                call = replace(self._next(taken, taken.call.principal, "attach"), live=live)
                told = await self._run_once(call, live, turn)
                current = await self._jobs.get(job.owner, job.id)
                if not isinstance(told, Working):
                    return told
            return _told(await self._jobs.get(job.owner, job.id))

        task = asyncio.get_running_loop().create_task(attached(), name=f"job {job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda done: self._forget(job.id, done))

    async def _run_once(self, call: Call, live: Live, turn: _Turn) -> Outcome:
        try:
            outcome = await self._handler(call)
        except asyncio.CancelledError:
            if not self._closing:
                await self._end(turn, live, failed_by(Canceled("The job was cancelled.")))
            raise
        return await self._end(turn, live, outcome)

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
            self._pursue(job, target, "recovery")
        elif _repeatable(target[1]) or job.call.key is not None:
            entry = "answer" if job.turn > 1 else "start"
            log.info("job %s: turn %d runs again after a restart", job.id, job.turn)
            self._spawn(job, self._next(job, job.call.principal, entry), target, None, "recovery")
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
                if self._tasks:
                    await self._jobs.heartbeat(list(self._tasks))
                await self.recover()
                await self._jobs.expire()
                for status, count in (await self._jobs.counts()).items():
                    self._metrics.jobs.set((status,), count)
            except StorageError as wrong:
                log.error("jobs: %s", wrong)


def _repeatable(capability: Capability) -> bool:
    hints = capability.hints
    return hints.replay or hints.idempotent or hints.read_only


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
