"""The Runner: all that the doors see of a call. Start, answer, wait, follow, cancel, recover.

A turn that can neither be detached nor repeated by key runs inline, without a row of its own, and becomes a job only
when it pauses, goes on elsewhere, or does something once that must not be done twice. All others are jobs from the
start: durable before they are told, events in the log, taken over by another process when this one dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from agent3.calls.jobs.jobs import LEASE, Job, Jobs
from agent3.calls.outcomes import failed_by
from agent3.calls.policy import RECOVERY
from agent3.calls.turn import Bounds, Listener, Turn, noticed
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
from agent3.settings import Calls
from agent3.storage.leases import Leases

__all__ = ["Charge", "Listener", "Runner", "Sweep", "Target", "converse", "repeatable"]

log = logger("jobs")

Target = tuple[Agent, Capability]
Lookup = Callable[[str, str], Awaitable[Target]]
Charge = Callable[[Call], Awaitable[Outcome | None]]
"""Charges the caller of a first turn before anything of it is kept: the refusal, already recorded, or None."""
Sweep = Callable[[], Awaitable[Mapping[str, int]]]
"""Removes what is past its time; how many of each kind."""

_PATIENCE = 30.0
"""Seconds that a cancelled turn gets to clean up before its cancelling stops waiting for it."""
_FORSAKEN = 3_600.0
"""Seconds after which a job is failed that no process took over, since none has its agent."""
_SWEEP = 600.0
"""Seconds between two rounds that remove what is past its time."""
_COUNT = 30.0
"""Seconds between two counts of all jobs, which read all of them."""
_HEED = 0.2
"""Seconds between two looks at what another process was asked to stop, where nobody calls."""
_HEED_CALLED = 5.0
"""Likewise where the database carries the call, which may be lost."""
_HANDING = 2.0
"""Seconds within which a process must take a turn that it was handed."""
_HAND_LOOK = 0.02
_LATEST = 10.0
"""Longest pause between two tries to write down how a turn ended."""


class Runner:
    """Runs turns through the chain. One for each gateway; ``aclose`` leaves running jobs for the next process."""

    def __init__(
        self,
        handler: Handler,
        jobs: Jobs,
        lookup: Lookup,
        env: Env,
        metrics: Metrics,
        *,
        settings: Calls | None = None,
        charge: Charge | None = None,
        sweep: Sweep | None = None,
        leases: Leases | None = None,
        unpark: Callable[[str], None] = lambda _: None,
    ):
        how = settings or Calls()
        self._handler = handler
        self._jobs = jobs
        self._lookup = lookup
        self._env = env
        self._metrics = metrics
        self._bounds = Bounds(how.events, how.event_bytes, metrics)
        self._charge = charge
        self._sweep = sweep
        self._leases = leases
        self._unpark = unpark
        self._heeding: dict[str, asyncio.Task[None]] = {}
        self._trusting = float("-inf")
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._inlined: dict[str, Turn] = {}
        self._lost: set[str] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._closing = False

    def start(
        self,
        call: Call,
        target: Target,
        *,
        listener: Listener | None = None,
        door: str = "library",
        detach: bool = False,
        by: Handler | None = None,
    ) -> Coroutine[Any, Any, Outcome]:
        """The first turn. With ``detach`` it answers ``Working`` as soon as the job is on disk.

        A call with a key that was seen before gets the outcome of that job. Cancelling the caller cancels the turn,
        except a detached one. A listener that raises hears no more; the call goes on. Nothing is kept of a call that
        comes too often. ``by`` answers in place of the whole chain a call that is neither keyed nor detached.
        """
        if call.key is None and not detach:
            return self._inline(call, target, listener, door, by=by)
        return self._start(call, target, listener, door, detach)

    def first(
        self,
        call: Call,
        target: Target,
        *,
        opened: Callable[[Job], None],
        listener: Listener | None = None,
        door: str = "library",
        by: Handler | None = None,
    ) -> Coroutine[Any, Any, Outcome]:
        """The first turn, inline also with a key: for who has looked for the key, and itself keeps what ends at once.

        As soon as it has to wait for anything it is a job, of which ``opened`` hears. Cancelling the caller cancels it.
        ``by`` answers in place of the whole chain.
        """
        return self._inline(call, target, listener, door, opened, by)

    async def _start(self, call: Call, target: Target, listener: Listener | None, door: str, detach: bool) -> Outcome:
        """The first turn of a call that is a job from the beginning."""
        if (known := await self._jobs.known(call)) is not None:
            return _told(known) if detach else await self._join(known, call)
        if (refusal := await self._charged(call, target, door)) is not None:
            return refusal
        job, new = await self._jobs.open(call)
        if not new:
            return _told(job) if detach else await self._join(job, call)
        task = self._spawn(job, call, target, listener, door, charged=self._charge is not None)
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
        said: tuple[Event, ...] = (),
        listener: Listener | None = None,
        door: str = "library",
        detach: bool = False,
    ) -> Outcome:
        """The turn that brings answers. Of two at once one wins; the other is told so by TurnTaken.

        Only what was asked can be answered: answers to anything else are left out. ``said`` is written to the log in
        the same commit that takes the turn.
        """
        job = await self._jobs.get(principal.id, job_id)
        if turn is not None and turn != job.turn:
            raise TurnTaken(f"Turn {turn} of job {job.id} is over; it stands at {job.turn}. Read it again.")
        if job.status != "needs":
            raise TurnTaken(f"Job {job.id} is {job.status} and waits for no answer.")
        target = await self._lookup(job.call.agent, job.call.capability)
        asked = {one.id: answers[one.id] for one in job.questions if one.id in answers}
        holder = await self._holder(job, target[1]) if not reply else None
        claimed = await self._jobs.claim(job, {**job.answers, **asked}, hand_to=holder, said=said)
        if holder is not None and (claimed := await self._handed_over(claimed)).node == holder:
            return Working(job=job.id, turn=claimed.turn) if detach else await self._listened(claimed, listener)
        if job.node != self._jobs.node:
            self._unpark(job.id)
        call = replace(self._next(claimed, principal, "answer"), reply=reply)
        task = self._spawn(claimed, call, target, listener, door)
        if detach:
            return Working(job=job.id, turn=claimed.turn)
        return await self._attached(task)

    async def target(self, agent: str, capability: str) -> Target:
        """What a call of these names reaches; NotFound where that is nothing."""
        return await self._lookup(agent, capability)

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
        """Cancel it: a running turn as a task, a waiting job by a turn of its own. An ended job stays as it is.

        A turn that runs in another process is stopped there, and waited for; where that process is silent, the job is
        taken from it when its lease is over.
        """
        job = await self._jobs.get(principal.id, job_id)
        if not job.ended:
            job = await self._stop(job)
        if job.status == "working" and job.node not in (None, self._jobs.node):
            job = await self._stop_elsewhere(job)
        if job.ended:
            return _told(job)
        claimed = await self._claim_to_cancel(job)
        call = self._next(claimed, principal, "cancel")
        return await self._spawn(claimed, call, await self._last_known(job), None, door)

    async def recover(self) -> int:
        """Take over jobs whose process is gone: go on where that is safe, else end them as interrupted.

        A job whose agent is not here is left for a process that has it; after an hour it is failed. One job that
        cannot be taken over does not keep the others from it.
        """
        taken = 0
        for job_id in await self._jobs.abandoned(silent=self._env.monotonic() >= self._trusting):
            if job_id in self._tasks or job_id in self._inlined:
                continue
            try:
                taken += await self._take_over(job_id)
            except Exception:
                log.exception("job %s: it could not be taken over; the next round tries again", job_id)
        return taken

    def keep_house(self, every: float = LEASE / 3, sweep_every: float = _SWEEP, *, take_over: bool = True) -> None:
        """Start the background duties: leases renewed, lost jobs taken over, other processes heeded; and, more slowly,
        old rows removed, by one process of all. Without ``take_over`` only the leases are renewed.
        """
        if not take_over:
            self._keep_up(self._beat, every, "leases")
            return
        self._jobs.news.listen()
        self._keep_up(self._round, every, "jobs", first=0.0)
        self._keep_up(self._count, _COUNT, "count", first=0.0)
        self._keep_up(self._heed, _HEED, "stops")
        if self._sweep is not None:  # a task of its own: leases must not wait for a large sweep
            self._keep_up(partial(self._clear_away, self._sweep, sweep_every), sweep_every, "sweep")

    def _keep_up(
        self, work: Callable[[], Awaitable[None]], every: float, name: str, first: float | None = None
    ) -> None:
        keeping = self._repeat(work, every, every if first is None else first)
        self._keepers.append(asyncio.get_running_loop().create_task(keeping, name=name))

    async def aclose(self, seconds: float = 10.0) -> None:
        """Let running turns finish for a while, then stop; what is left is taken over by the next process."""
        self._stopping.set()
        keepers = [*self._keepers, *self._heeding.values()]
        for keeper in keepers:
            keeper.cancel()
        if keepers:
            await asyncio.wait(keepers)
        await self._let_finish(seconds)
        self._closing = True
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        try:
            await self._jobs.leave()
            if self._leases is not None:
                await self._leases.leave()
        except StorageError as wrong:
            log.warning("jobs: %s; what is left is taken over when its lease has run out", wrong)
        await self._jobs.news.aclose()

    async def _let_finish(self, seconds: float) -> None:
        """Wait for what runs. Meanwhile its leases are renewed, so that nobody takes over what is about to end."""
        clock = asyncio.get_running_loop().time  # as real as the waiting itself
        until = clock() + seconds
        while self._tasks and (left := until - clock()) > 0:
            with suppress(StorageError):
                await self._beat()
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=min(left, LEASE / 3))

    # Inside

    async def _charged(self, call: Call, target: Target, door: str) -> Outcome | None:
        if self._charge is None:
            return None
        return await self._charge(replace(call, live=Live(*target, door=door)))

    async def _inline(
        self,
        call: Call,
        target: Target,
        listener: Listener | None,
        door: str,
        opened: Callable[[Job], None] | None = None,
        by: Handler | None = None,
    ) -> Outcome:
        live = Live(*target, door=door)
        turn = Turn(self._jobs, None, live, listener, call, self._bounds, partial(self._enlist, opened=opened))
        turn.task = asyncio.current_task()
        try:
            handler = by or self._handler
            running = handler(replace(call, live=live, routes=call.routes or target[1].routes))
            outcome = await (running if opened is None else noticed(running, turn))
            if turn.flooded:
                outcome = await self._calmed(turn)
        except asyncio.CancelledError:
            if turn.flooded:
                outcome = turn.calm()
            elif await self._called_off(turn, live):
                outcome = _called_off()
            else:
                raise
        except Agent3Error as wrong:
            if turn.job is None:
                raise
            outcome = _broken(turn.job, wrong)
        finally:
            live.listener = None
            if turn.job is not None:
                self._inlined.pop(turn.job.id, None)
        if turn.job is None and not isinstance(outcome, (Needs, Working)):
            return outcome
        return await self._become_job(turn, live, outcome)

    async def _calmed(self, turn: Turn) -> Failed:
        """What a turn ends with that told too much; its cancellation may have been swallowed, or not have come yet."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return turn.calm()
        return turn.calm()

    async def _called_off(self, turn: Turn, live: Live) -> bool:
        """Whether it was the job of an inline turn that was cancelled, and not its caller; a caller's job ends here."""
        if turn.job is None or self._closing:
            return False
        if turn.called_off and turn.task is not None:
            turn.task.uncancel()
            return True
        await self._end(turn, live, _called_off())
        return False

    def _enlist(self, turn: Turn, opened: Callable[[Job], None] | None = None) -> None:
        """Know an inline turn that became a job, so that its lease is renewed and it can be cancelled."""
        assert turn.job is not None
        self._inlined[turn.job.id] = turn
        if opened is not None:
            opened(turn.job)

    async def _become_job(self, turn: Turn, live: Live, outcome: Outcome) -> Outcome:
        if turn.job is not None:
            job = await self._end(turn, live, outcome)
        else:
            assert isinstance(outcome, (Needs, Working))
            job = await self._jobs.adopt(turn.call, outcome, live.route, turn.early())
        return self._go_on(job, live)

    def _go_on(self, job: Job, live: Live) -> Outcome:
        """How a job stands after a turn; work that goes on elsewhere is followed, if it is still this process's."""
        if self._mine(job):
            self._pursue(job, _target_of(live), live.door)
        return _told(job)

    def _mine(self, job: Job) -> bool:
        return job.status == "working" and job.node == self._jobs.node

    async def _holder(self, job: Job, capability: Capability) -> str | None:
        """The other process in whose memory a conversation waits that cannot be replayed here, if it lives."""
        if job.node in (None, self._jobs.node) or repeatable(capability) or self._leases is None:
            return None
        return job.node if await self._leases.held(_alive(job.node)) else None

    async def _handed_over(self, job: Job) -> Job:
        """The job when its other process has taken the turn, or this one, since that did not."""
        clock = asyncio.get_running_loop().time
        until, now = clock() + _HANDING, job
        while now.generation == job.generation and clock() < until:
            await asyncio.sleep(_HAND_LOOK)
            now = await self._jobs.get(job.owner, job.id)
        if now.generation != job.generation:
            return now
        return await self._jobs.seize(job) or await self._jobs.get(job.owner, job.id)

    async def _listened(self, job: Job, listener: Listener | None) -> Outcome:
        """How a turn ends that runs in another process; its events are told here."""
        async for event in self._jobs.follow(job.owner, job.id, job.seq):
            if listener is not None and event.kind != "turn":
                listener(event)
        return _told(await self._jobs.get(job.owner, job.id))

    async def _join(self, job: Job, call: Call) -> Outcome:
        if job.status == "working":
            job = await self._jobs.wait(job.owner, job.id, call.timeout or 30.0)
        return _told(job)

    def _spawn(
        self, job: Job, call: Call, target: Target, listener: Listener | None, door: str, *, charged: bool = False
    ) -> asyncio.Task[Outcome]:
        live = Live(*target, door=door)
        live.charged = charged
        turn = Turn(self._jobs, job, live, listener, call, self._bounds)
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
            self._lost.discard(job_id)
        if not task.cancelled() and (wrong := task.exception()) is not None:
            log.error("job %s: %s", job_id, wrong)

    async def _attached(self, task: asyncio.Task[Outcome]) -> Outcome:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise

    async def _run(self, call: Call, live: Live, turn: Turn) -> Outcome:
        return self._go_on(await self._to_its_end(call, live, turn), live)

    async def _to_its_end(self, call: Call, live: Live, turn: Turn) -> Job:
        """Run a turn of a job until its end is on disk. Closing leaves it as it is, for the next process."""
        try:
            outcome = await self._handled(call, turn)
        except asyncio.CancelledError:
            if self._closing:
                raise
            outcome = _called_off()
        if call.entry == "cancel":
            outcome = _called_off(outcome)
        return await self._end(turn, live, outcome)

    async def _handled(self, call: Call, turn: Turn) -> Outcome:
        """What the chain answers. A turn that told too much ends so, whatever its target makes of being cancelled."""
        turn.task = asyncio.current_task()
        try:
            outcome = await self._handler(call)
            return await self._calmed(turn) if turn.flooded else outcome
        except asyncio.CancelledError:
            if not turn.flooded:
                raise
            return turn.calm()
        except Agent3Error as wrong:
            if turn.job is None:
                raise
            return _broken(turn.job, wrong)

    async def _end(self, turn: Turn, live: Live, outcome: Outcome) -> Job:
        """Write down how a turn ended; of a job that another process has taken, nothing is written."""
        job = turn.job
        assert job is not None
        events = await turn.settle()
        if job.id in self._lost:
            self._lost.discard(job.id)
            self._bounds.dropped("not written", len(events))
            return await self._jobs.get(job.owner, job.id)
        work = partial(
            self._jobs.end_turn,
            job,
            outcome,
            live.route,
            live.answers,
            events,
            live.kept,
            turn.seq,
            attempted=live.attempts > 0,
        )
        ending = asyncio.ensure_future(self._ended(job, live, work))
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:  # it comes too late: what has ended is written down
            await asyncio.wait([ending])
            ending.exception()
            raise

    async def _ended(self, job: Job, live: Live, work: Callable[[], Awaitable[Job]]) -> Job:
        try:
            return await work()
        except StorageError as wrong:
            log.error("job %s: its end is written as soon as storage takes it: %s", job.id, wrong)
            self._watch(job.id, self._end_later(job, live, work))
            raise

    async def _end_later(self, job: Job, live: Live, work: Callable[[], Awaitable[Job]]) -> Outcome:
        """Try again until the end of a turn is on disk: what has been done must neither be lost nor done again."""
        pause = 0.25
        while True:
            await asyncio.sleep(pause)
            try:
                return self._go_on(await work(), live)
            except TurnTaken:
                return _told(await self._jobs.get(job.owner, job.id))
            except StorageError:
                pause = min(2 * pause, _LATEST)

    def _pursue(self, job: Job, target: Target, door: str) -> None:
        """Go on asking a target that works elsewhere, until it has ended or needs something."""

        async def pursued() -> Outcome:
            now: Job | None = job
            while now is not None and self._mine(now):
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
        turn = Turn(self._jobs, taken, live, None, taken.call, self._bounds)
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

    async def _stop_elsewhere(self, job: Job) -> Job:
        """Let the process that works on a job stop it; the job as it stands then."""
        await self._jobs.ask_to_stop(job)
        return await self._jobs.wait(job.owner, job.id, _PATIENCE)

    async def _claim_to_cancel(self, job: Job) -> Job:
        if job.status == "needs":
            return await self._jobs.claim(job)
        if job.node not in (None, self._jobs.node) and await self._jobs.stray(job.id) is None:
            raise Conflict(
                f"Job {job.id} runs in another process, which was asked to stop it and has not done so yet. Read it"
                " again in a while."
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
        earlier = job.outcome.answered if isinstance(job.outcome, Needs) else ()
        return replace(
            job.call,
            id=self._env.id(),
            principal=principal,
            entry=entry,
            job=job.id,
            turn=job.turn,
            answers=job.answers,
            questions=(*earlier, *job.questions),
            state=job.state,
            route=job.route,
            routes=job.call.routes or ((job.route,) if job.route is not None else ()),
        )

    async def _take_over(self, job_id: str) -> bool:
        job = await self._jobs.stray(job_id)
        if job is None:
            return False
        try:
            target = await self._lookup(job.call.agent, job.call.capability)
        except NotFound as wrong:
            return await self._give_up(job, wrong)
        taken = await self._jobs.seize(job)
        if taken is None:
            return False
        if await self._jobs.stop_asked(job.id):
            self._spawn(taken, self._next(taken, taken.call.principal, "cancel"), target, None, RECOVERY)
        else:
            await self._revive(taken, target)
        return True

    async def _give_up(self, job: Job, wrong: NotFound) -> bool:
        """Fail a job whose agent no process has had for long; until then it is left alone."""
        if max(job.lease or 0.0, job.updated or 0.0) > self._env.now() - _FORSAKEN:
            log.debug("job %s: left for a process that has its agent: %s", job.id, wrong)
            return False
        taken = await self._jobs.seize(job)
        if taken is None:
            return False
        log.warning("job %s: no process has its agent: %s", job.id, wrong)
        await self._jobs.end_turn(taken, failed_by(wrong), taken.route)
        return True

    async def _revive(self, job: Job, target: Target) -> None:
        """Go on with a job of another process. A key does not make it repeatable: its target never saw that key."""
        if isinstance(job.outcome, Working):
            self._pursue(job, target, RECOVERY)
        elif repeatable(target[1]):
            entry = "answer" if job.turn > 1 else "start"
            log.info("job %s: turn %d runs again after a restart", job.id, job.turn)
            self._spawn(job, self._next(job, job.call.principal, entry), target, None, RECOVERY)
        else:
            log.warning("job %s: interrupted by a restart", job.id)
            text = (
                "The gateway was restarted in the middle, and this capability may not be repeated unasked. Call again."
            )
            await self._jobs.end_turn(job, failed_by(Interrupted(text)), job.route)

    def _let_go(self, lost: Sequence[str]) -> None:
        """Stop work on jobs that another process has taken, without a word to storage: they are its to write now."""
        for job_id in lost:
            turn, task = self._inlined.get(job_id), self._tasks.get(job_id)
            if turn is not None and turn.task is not None:
                turn.called_off, task = True, turn.task
            if task is not None and not task.done():
                log.warning("job %s: another process has taken it, so this one stops", job_id)
                self._lost.add(job_id)
                task.cancel()

    async def _heed(self) -> None:
        """Stop what another process was asked to stop. It calls, where the database carries that; else this looks."""
        news = self._jobs.news
        called = await _rings_within(self._jobs.called, _HEED_CALLED) if news.live else self._jobs.called.is_set()
        self._jobs.called.clear()
        if self._tasks or self._inlined:
            for job_id in await self._jobs.to_stop():
                self._stop_soon(job_id)
        for job in await self._jobs.handed():
            await self._take_handed(job)
        if called:  # perhaps somebody has left his jobs to the others
            await self.recover()

    async def _take_handed(self, job: Job) -> None:
        """Go on with a conversation that waits here, and was answered elsewhere."""
        try:
            target = await self._lookup(job.call.agent, job.call.capability)
        except NotFound:
            return  # whoever handed it over takes it back
        if (taken := await self._jobs.seize(job)) is not None:
            self._spawn(taken, self._next(taken, taken.call.principal, "answer"), target, None, RECOVERY)

    def _stop_soon(self, job_id: str) -> None:
        if job_id in self._heeding or (job_id not in self._tasks and job_id not in self._inlined):
            return
        task = asyncio.get_running_loop().create_task(self._stop_for_another(job_id), name=f"stop {job_id}")
        self._heeding[job_id] = task
        task.add_done_callback(lambda _: self._heeding.pop(job_id, None))

    async def _stop_for_another(self, job_id: str) -> None:
        try:
            job = await self._jobs.mine(job_id)
            if job is not None:
                log.info("job %s: another process was asked to cancel it", job_id)
                await self.cancel(job.call.principal, job_id)
        except Agent3Error as wrong:
            log.warning("job %s: it could not be cancelled: %s", job_id, wrong)

    async def _repeat(self, work: Callable[[], Awaitable[None]], every: float, first: float) -> None:
        await asyncio.sleep(first)
        while True:
            try:
                await work()
            except Exception:
                log.exception("jobs: the round failed and is made again in %g s", every)
            await asyncio.sleep(every)

    async def _beat(self) -> None:
        if mine := [*self._tasks, *self._inlined]:
            self._let_go(await self._jobs.heartbeat(mine))

    async def _round(self) -> None:
        try:
            await self._show_life()
            await self._beat()
        except StorageError:
            # Who could not say that it lives must not conclude from silence that the others do not.
            self._trusting = self._env.monotonic() + LEASE
            raise
        await self.recover()

    async def _count(self) -> None:
        for status, count in (await self._jobs.counts()).items():
            self._metrics.jobs.set((status,), count)

    async def _show_life(self) -> None:
        if self._leases is not None:
            await self._leases.take(_alive(self._jobs.node), LEASE)

    async def _clear_away(self, sweep: Sweep, every: float) -> None:
        """A round of sweeping, unless another process has this duty."""
        if self._leases is not None and not await self._leases.take("sweep", 2 * every):
            return
        if removed := {name: count for name, count in (await sweep()).items() if count}:
            log.info("past their time and removed: %s", ", ".join(f"{n} {name}" for name, n in removed.items()))


def _target_of(live: Live) -> Target:
    assert live.agent is not None
    assert live.capability is not None
    return live.agent, live.capability


def _alive(node: str | None) -> str:
    """The name of the lease by which a process shows that it lives."""
    return f"alive {node}"


def repeatable(capability: Capability) -> bool:
    """Whether its author allows it to be run again where nobody knows how far it came."""
    hints = capability.hints
    return hints.replay or hints.idempotent or hints.read_only


def _broken(job: Job, wrong: Agent3Error) -> Outcome:
    """What becomes of a job's turn whose storage failed under it: what had come, if that is known."""
    log.error("job %s: %s", job.id, wrong)
    came = wrong.outcome if isinstance(wrong, StorageError) else None
    return failed_by(wrong) if came is None else came


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
