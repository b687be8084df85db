"""The Runner: starts turns, answers, waits, follows and cancels. Everything that runs a call comes through here.

A turn that is neither detached nor repeatable by key runs inline, without a row of its own, and becomes a job only when
it pauses, goes on elsewhere, or does something once that must not be done twice. All others are jobs from the start:
durable before they are told, events in the log, taken over by another process when this one dies (takeover.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from agent3.calls.budgets import Bill
from agent3.calls.jobs import LEASE, Job, Jobs, may_repeat
from agent3.calls.jobs.changes import wait_until_set
from agent3.calls.order import Chain
from agent3.calls.outcomes import error_of, failed_by
from agent3.calls.takeover import Sweep, Takeover, liveness_lease
from agent3.calls.turn import Bounds, Listener, RunningTurn
from agent3.env import Env
from agent3.errors import (
    Agent3Error,
    Canceled,
    Conflict,
    Interrupted,
    NotFound,
    StorageError,
    StorageFull,
    StorageUnsure,
    TurnTaken,
)
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Entry,
    Event,
    Failed,
    Needs,
    Outcome,
    Part,
    Principal,
    Turn,
    Working,
)
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.security import via
from agent3.settings import Calls
from agent3.storage.leases import Leases

__all__ = ["Listener", "Runner", "Sweep", "Target", "converse", "with_path"]

log = logger("jobs")

Target: TypeAlias = tuple[Agent, Capability]
Lookup: TypeAlias = Callable[[str, str], Awaitable[Target]]
Choose: TypeAlias = Callable[[Job, Mapping[str, Answer]], Awaitable[tuple[Call, Target] | Needs | Failed]]
"""What the answers to a job say that it is for: the call and its target, or what to end the turn with instead."""

_DECIDED = "approval"
"""The door of turns that go on because somebody else decided."""
_PATIENCE = 30.0
"""Seconds that a cancelled turn gets to clean up before its cancelling stops waiting for it."""
_HANDING = 2.0
"""Seconds within which a process must take a turn that it was handed."""
_HAND_LOOK = 0.02
_OUTAGE = 600.0
"""Seconds for which a turn without a time limit waits for a database that went away."""
_ELSEWHERE = 30.0
"""Seconds for which a call without a time limit waits for another process that has taken its job."""
_LATEST = 10.0
"""Longest pause between two tries to write down how a turn ended."""


class Runner:
    """Runs turns through the chain. One for each core; ``aclose`` leaves running jobs for the next process."""

    def __init__(
        self,
        chain: Chain,
        jobs: Jobs,
        lookup: Lookup,
        env: Env,
        metrics: Metrics,
        *,
        settings: Calls | None = None,
        sweep: Sweep | None = None,
        leases: Leases | None = None,
        unpark: Callable[[str], None] = lambda _: None,
        duties: Mapping[str, tuple[Callable[[], Awaitable[object]], float]] | None = None,
    ):
        how = settings or Calls()
        self._chain = chain
        self._run = chain.__call__
        self._jobs = jobs
        self._lookup = lookup
        self._env = env
        self._bounds = Bounds(how.events, how.event_bytes, metrics)
        self._leases = leases
        self._unpark = unpark
        self.tasks: dict[str, asyncio.Task[Outcome]] = {}
        """The turns of jobs that run in tasks of their own, by job."""
        self.inlined: dict[str, RunningTurn] = {}
        """Turns that became jobs while they ran in the task of their caller."""
        self.lost: set[str] = set()
        """Jobs that another process took while they ran here: of these nothing more is written."""
        self._stopping = asyncio.Event()
        self._closing = False
        self.takeover = Takeover(self, jobs, env, metrics, sweep=sweep, leases=leases, duties=duties)

    # What the doors ask for

    def start(
        self,
        call: Call,
        target: Target,
        *,
        listener: Listener | None = None,
        door: str = "library",
        detach: bool = False,
        opened: Callable[[Job], None] | None = None,
    ) -> Coroutine[Any, Any, Outcome]:
        """The first turn. With ``detach`` it answers ``Working`` as soon as the job is on disk.

        A call with a key that was seen before gets the outcome of that job. Cancelling the caller cancels the turn,
        except a detached one. A listener that raises hears no more; the call goes on. Nothing is kept of a call that
        comes too often.

        With ``opened`` the caller itself has looked for the key, and itself keeps what ends at once: the turn runs
        inline also with a key, and is a job, of which ``opened`` hears, as soon as it has to wait for anything.
        """
        call = with_path(call)
        if detach or (call.key is not None and opened is None):
            return self._start_job(call, target, listener, door, detach)
        return self._start_inline(call, target, listener, door, opened)

    async def ask(self, call: Call, target: Target, question: Needs, door: str) -> Outcome:
        """A job that asks before there is anything to run: what it is for, where the caller did not say.

        ``answer`` starts it. It is recorded like every turn; a key that was seen before gets the job of that.
        """
        if (job := await self._jobs.find_by_key(call)) is None:
            asked = await self._chain.bound(call, question)
            await self._chain.record(replace(call, live=Turn(*target, door=door)), asked)
            if isinstance(asked, Failed):
                return asked
            try:
                job = await self._jobs.open_with_outcome(call, question, None)
            except Conflict:  # the same key came twice at once
                if (job := await self._jobs.find_by_key(call)) is None:
                    raise
        return outcome_of(job)

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
        choose: Choose | None = None,
    ) -> Outcome:
        """The turn that brings answers. Of two at once one wins; the other is told so by TurnTaken.

        Only what was asked can be answered: answers to anything else are left out. ``said`` is written to the log in
        the same commit that takes the turn. Where the question was what the job is for, ``choose`` reads the answer;
        what it chose is admitted like any new call, and its refusal is raised, with the question still open.
        """
        job = await self._jobs.get(principal.id, job_id)
        if turn is not None and turn != job.turn:
            raise TurnTaken(f"Turn {turn} of job {job.id} is over; the job is at turn {job.turn}. Read the job again.")
        if job.status != "needs":
            raise TurnTaken(f"Job {job.id} is {job.status} and is not waiting for an answer.")
        asked = {question.id: answers[question.id] for question in job.questions if question.id in answers}
        if not job.call.capability and choose is not None:
            chosen = await choose(job, asked)
            if isinstance(chosen, (Needs, Failed)):
                claimed = await self._jobs.claim(job, said=said)
                return outcome_of(await self._end_unstarted(claimed, principal, chosen, door))
            call, target = chosen
            live = Turn(*target, door=door)
            asks = replace(call, id=self._env.id(), job=job.id, turn=job.turn + 1, principal=principal, live=live)
            if (refusal := await self._chain.admit(asks)) is not None:
                assert isinstance(refusal, Failed)
                raise error_of(refusal)
            try:
                claimed = await self._jobs.claim(job, {}, said=said, call=call, bill=Bill(live.reserved))
            except Agent3Error:
                self._chain.dismiss(asks)
                raise
            first = self.next_turn(claimed, principal, "start")
            task = self.spawn(claimed, first, target, listener, door, charged=True)
            return Working(job=job.id, turn=claimed.turn) if detach else await _join(task)
        target = await self._lookup(job.call.agent, job.call.capability)
        # Another process may hold the frame that waits for this answer. It is needed where the turn cannot be replayed.
        elsewhere = job.node not in (None, self._jobs.node) and not reply and not may_repeat(target[1])
        held = elsewhere and self._leases is not None and await self._leases.held(liveness_lease(job.node))
        holder = job.node if held else None
        claimed = await self._jobs.claim(job, {**job.answers, **asked}, hand_to=holder, said=said)
        if holder is not None and (claimed := await self._hand_over(claimed)).node == holder:
            # The frame waits in another process, which has taken the turn: here it is only followed.
            if detach:
                return Working(job=job.id, turn=claimed.turn)
            async for event in self._jobs.follow(claimed.owner, claimed.id, claimed.seq):
                if listener is not None and event.kind != "turn":
                    listener(event)
            return outcome_of(await self._jobs.get(claimed.owner, claimed.id))
        if job.node != self._jobs.node:
            self._unpark(job.id)
        call = replace(self.next_turn(claimed, principal, "answer"), reply=reply)
        task = self.spawn(claimed, call, target, listener, door)
        if detach:
            return Working(job=job.id, turn=claimed.turn)
        return await _join(task)

    async def go_on(self, job: Job) -> None:
        """Start the next turn of a job that waited for others than its caller, who have decided."""
        accepted = {question.id: Answer(data=True) for question in job.questions}
        await self.answer(job.call.principal, job.id, accepted, turn=job.turn, door=_DECIDED, detach=True)

    async def target(self, agent: str, capability: str) -> Target:
        """What a call of these names reaches; NotFound where that is nothing."""
        return await self._lookup(agent, capability)

    async def wait(self, principal: Principal, job_id: str, seconds: float) -> Outcome:
        """How the job stands when it pauses or ends, or ``Working`` when the time is over."""
        return outcome_of(await self._jobs.wait(principal.id, job_id, seconds))

    async def get(self, principal: Principal, job_id: str) -> Job:
        """The job as it stands."""
        return await self._jobs.get(principal.id, job_id)

    async def get_of_anyone(self, job_id: str) -> Job:
        """A job of any caller, for operators."""
        return await self._jobs.get_of_anyone(job_id)

    async def list_open(self, owner: str | None, limit: int) -> list[Job]:
        """Jobs that are working or wait for an answer, of one caller or of all."""
        return await self._jobs.list_open(owner, limit)

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
            if (turn := self.inlined.get(job.id)) is not None and turn.task is not None:
                turn.called_off = True
                turn.task.cancel()
                job = await self._jobs.wait(job.owner, job.id, _PATIENCE)
            elif (task := self.tasks.get(job.id)) is not None:
                task.cancel()
                await asyncio.wait([task], timeout=_PATIENCE)
                job = await self._jobs.get(job.owner, job.id)
        if job.status == "working" and job.node not in (None, self._jobs.node):
            await self._jobs.leases.request_stop(job.id)
            job = await self._jobs.wait(job.owner, job.id, _PATIENCE)
        if job.ended:
            return outcome_of(job)
        claimed: Job | None
        if job.status == "needs":
            claimed = await self._jobs.claim(job)
        elif job.node not in (None, self._jobs.node) and await self._jobs.leases.find_abandoned(job.id) is None:
            raise Conflict(
                f"Job {job.id} runs in another process, which has not stopped it yet. Read the job again later."
            )
        elif (claimed := await self._jobs.take_over(job)) is None:
            raise TurnTaken(f"Job {job.id} has just changed. Read it again.")
        if not job.call.capability or (job.status == "needs" and not job.bill.sent):  # there is nobody to tell
            return outcome_of(await self._end_unstarted(claimed, principal, _cancel_outcome(), door, "cancel"))
        call = self.next_turn(claimed, principal, "cancel")
        try:
            target = await self._lookup(job.call.agent, job.call.capability)
        except NotFound:  # a job can be cancelled also when its agent is gone
            agent, name = job.call.agent, job.call.capability
            target = Agent(id=agent, name=agent), Capability(name=name, interactive=True)
        return await self.spawn(claimed, call, target, None, door)

    async def recover(self) -> int:
        """Take over jobs whose process is gone; how many."""
        return await self.takeover.recover()

    async def aclose(self, seconds: float = 10.0) -> None:
        """Let running turns finish for a while, then stop; what is left is taken over by the next process."""
        self._stopping.set()
        await self.takeover.aclose()
        clock = asyncio.get_running_loop().time  # as real as the waiting itself
        until = clock() + seconds
        while self.tasks and (left := until - clock()) > 0:
            # Meanwhile the leases are renewed, so that no process takes over what is about to end.
            with suppress(StorageError):
                await self.takeover.renew_leases()
            if self.tasks:
                await asyncio.wait(self.tasks.values(), timeout=min(left, LEASE / 3))
        self._closing = True
        left_over = list(self.tasks.values())
        for task in left_over:
            task.cancel()
        if left_over:
            await asyncio.wait(left_over)
        try:
            await self._jobs.leases.release_all()
            if self._leases is not None:
                await self._leases.leave()
        except StorageError as error:
            log.warning("jobs: %s; the rest is taken over when its lease expires", error)
        await self._jobs.news.aclose()

    # A first turn

    async def _start_job(
        self, call: Call, target: Target, listener: Listener | None, door: str, detach: bool
    ) -> Outcome:
        """The first turn of a call that is a job from the beginning."""
        job = await self._jobs.find_by_key(call)
        if job is None:
            asks = replace(call, live=Turn(*target, door=door))
            if (refusal := await self._chain.admit(asks)) is not None:
                return refusal
            try:
                job, new = await self._jobs.open(call, Bill(asks.live.reserved))
            except Agent3Error:
                self._chain.dismiss(asks)
                raise
            if not new:  # the same key came twice at once, and is paid once
                self._chain.dismiss(asks)
            else:
                task = self.spawn(job, call, target, listener, door, charged=True)
                return Working(job=job.id, turn=job.turn) if detach else await _join(task)
        # The same key came before: its job is the answer, also while it still runs.
        if job.status == "working" and not detach:
            job = await self._jobs.wait(job.owner, job.id, call.timeout or 30.0)
        return outcome_of(job)

    async def _start_inline(
        self,
        call: Call,
        target: Target,
        listener: Listener | None,
        door: str,
        opened: Callable[[Job], None] | None,
    ) -> Outcome:
        """The first turn of a call that may never become a job, in the task of its caller."""
        turn = RunningTurn(
            self._jobs, None, target, listener, door, call, self._bounds, self._enlist, self._is_handed_on
        )
        turn.opened = opened
        turn.task = asyncio.current_task()
        try:
            routes = call.routes or target[1].routes
            # A start by one route has it from here; of several, one is chosen by the step ``fallback``.
            route = routes[0] if len(routes) == 1 else None
            running = self._run(replace(call, live=turn, routes=routes, route=route))
            outcome = await (running if opened is None else turn.run(running))
            if turn.flooded:
                outcome = await turn.end_flood()
        except asyncio.CancelledError:
            if turn.flooded:
                outcome = turn.flood_outcome()
            elif turn.job is None or self._closing:
                raise
            elif turn.called_off and turn.task is not None:  # the job was cancelled, and not its caller
                turn.task.uncancel()
                outcome = _cancel_outcome()
            else:
                await self._end(turn, _cancel_outcome())
                raise
        except Agent3Error as error:
            if turn.job is None:
                raise
            outcome = _storage_outcome(turn.job, error)
        finally:
            turn.closed = True
            if turn.job is not None:
                self.inlined.pop(turn.job.id, None)
        if turn.job is not None:
            job = await self._end(turn, outcome)
        elif isinstance(outcome, (Needs, Working)):
            job = await self._jobs.open_with_outcome(call, outcome, turn.route, turn.take_pending(), turn.bill)
        else:
            return outcome
        return self._pursue_if_working(job, target, door)

    def _enlist(self, turn: RunningTurn) -> None:
        """Know an inline turn that became a job, so that its lease is renewed and it can be cancelled."""
        assert turn.job is not None
        self.inlined[turn.job.id] = turn
        if turn.opened is not None:
            turn.opened(turn.job)

    # A turn of a job

    def spawn(
        self, job: Job, call: Call, target: Target, listener: Listener | None, door: str, *, charged: bool = False
    ) -> asyncio.Task[Outcome]:
        """Run a turn of a job in a task of its own."""
        turn = self._next_running(job, target, listener, door, call)
        turn.charged = charged
        routes = call.routes or target[1].routes
        route = routes[0] if call.entry == "start" and len(routes) == 1 else call.route
        running = replace(call, live=turn, routes=routes, route=route, job=job.id)

        async def run() -> Outcome:
            return self._pursue_if_working(await self._run_to_end(running, turn), target, door)

        return self._watch(job.id, run())

    def _next_running(self, job: Job, target: Target, listener: Listener | None, door: str, call: Call) -> RunningTurn:
        return RunningTurn(self._jobs, job, target, listener, door, call, self._bounds, is_handed_on=self._is_handed_on)

    def _is_handed_on(self, job_id: str) -> bool:
        return self._closing or job_id in self.lost

    async def _run_to_end(self, call: Call, turn: RunningTurn) -> Job:
        """Run a turn of a job until its end is on disk. Closing leaves it as it is, for the next process."""
        assert turn.job is not None
        turn.task = asyncio.current_task()
        until = self._env.monotonic() + (call.timeout or _OUTAGE)
        pause = 0.1
        while True:
            outcome = await self._run_once(call, turn)
            if not _is_lost(outcome, turn):
                break
            ended = await self._outlast(turn, until, pause)
            pause = min(2 * pause, _LATEST)
            if ended is not None:
                outcome = ended
                break
            turn.charged = True
            call = replace(call, id=self._env.id())  # a row of the ledger of its own
        if call.entry == "cancel":
            outcome = _cancel_outcome(outcome)
        assert outcome is not None
        return await self._end(turn, outcome)

    async def _run_once(self, call: Call, turn: RunningTurn) -> Outcome | None:
        """Run a turn through the steps; None where storage failed before anything had come."""
        assert turn.job is not None
        try:
            outcome = await self._run(call)
            # Where it told too much it ends so, whatever its target made of being cancelled.
            return await turn.end_flood() if turn.flooded else outcome
        except asyncio.CancelledError:
            if turn.flooded:
                return turn.flood_outcome()
            if self._closing:
                raise
            return _cancel_outcome()
        except StorageFull as error:
            return _storage_outcome(turn.job, error)
        except StorageError as error:
            log.error("job %s: %s", turn.job.id, error)
            came: Outcome | None = error.outcome
            return came
        except Agent3Error as error:
            return _storage_outcome(turn.job, error)

    async def _outlast(self, turn: RunningTurn, until: float, pause: float) -> Outcome | None:
        """Wait for storage that went away under a turn, as long as its call has time; None if it is to run again.

        It runs again where nothing was sent, or its capability may be repeated; else it is interrupted, and says so.
        """
        job = turn.job
        assert job is not None
        found: Job | None = None
        while found is None:
            if self._env.monotonic() >= until:
                text = "The database went away during this call and did not come back in time. "
                sent = turn.bill.sent
                text += "Find out whether it was done; call it again if it was not." if sent else "Call it again."
                return failed_by(Interrupted(text))
            try:
                await asyncio.sleep(pause)
                found = await self._jobs.get(job.owner, job.id)
            except asyncio.CancelledError:
                if self._closing:
                    raise
                return _cancel_outcome()
            except StorageError:
                pause = min(2 * pause, _LATEST)
        if found.generation == job.generation and (turn.attempts <= turn.unsent or may_repeat(turn.capability)):
            log.warning("job %s: turn %d runs again, since the database became unavailable during it", job.id, job.turn)
            return None
        text = (
            "The database went away during this call, and the capability may not be repeated automatically. "
            "Find out whether it was done; call it again if it was not."
        )
        return failed_by(Interrupted(text))

    async def _end_unstarted(
        self, job: Job, principal: Principal, outcome: Needs | Failed, door: str, entry: Entry = "answer"
    ) -> Job:
        """Record and end a turn of a job of which nothing was sent, or nobody has said yet what it is for."""
        await self._record_turn(job, self.next_turn(job, principal, entry), outcome, door)
        return await self._jobs.end_turn(job, outcome, None)

    async def end_abandoned(self, job: Job, outcome: Failed, door: str) -> None:
        """Record and end a turn that an earlier process left: it may have been sent, so it costs."""
        call = self.next_turn(job, job.call.principal, "attach")
        await self._record_turn(replace(job, bill=replace(job.bill, sent=True)), call, outcome, door)
        await self._jobs.end_turn(job, outcome, job.route)

    async def _record_turn(self, job: Job, call: Call, outcome: Needs | Failed, door: str) -> None:
        target = Agent(id=call.agent, name=call.agent), Capability(name=call.capability)
        if call.capability:
            with suppress(NotFound):
                target = await self._lookup(call.agent, call.capability)
        await self._chain.record(replace(call, live=self._next_running(job, target, None, door, call)), outcome)

    async def _end(self, turn: RunningTurn, outcome: Outcome) -> Job:
        """Write down how a turn ended; of a job that another process has taken, nothing is written."""
        job = turn.job
        assert job is not None
        pending = await turn.close()
        if job.id in self.lost:
            self._bounds.count_dropped("not written", len(pending))
            try:
                return await self._wait_elsewhere(turn, job)
            finally:
                self.lost.discard(job.id)
        work = partial(
            self._jobs.end_turn,
            job,
            outcome,
            turn.route,
            turn.answers,
            pending,
            turn.kept,
            turn.seq,
            attempted=turn.attempts > 0,
            bill=turn.bill,
        )

        async def write() -> Job:
            try:
                return await work()
            except TurnTaken as error:  # it was taken over, and whoever has it ends it
                log.warning("job %s: %s", job.id, error)
                self._bounds.count_dropped("not written", len(pending))
                return await self._wait_elsewhere(turn, job)
            except StorageError as error:
                log.error("job %s: its end will be written when storage is available: %s", job.id, error)
                self._watch(job.id, self._end_later(job, turn, work))
                raise

        # A cancellation that comes now comes too late: what has ended is written down.
        task, ending = asyncio.current_task(), asyncio.ensure_future(write())
        is_own = task is not None and self.tasks.get(job.id) is task
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])
            failed = ending.exception() is not None
            if task is not None and is_own and (failed or not self._is_mine(ending.result())):
                # Whoever waits for the task of a job was not cancelled, and hears how it ended.
                task.uncancel()
                return ending.result()
            raise

    async def _wait_elsewhere(self, turn: RunningTurn, job: Job) -> Job:
        """The job as another process ended it, if it does so in time: its caller waits for the outcome, not for us."""
        return await self._jobs.wait(job.owner, job.id, turn.call.timeout or _ELSEWHERE)

    async def _end_later(self, job: Job, turn: Turn, work: Callable[[], Awaitable[Job]]) -> Outcome:
        """Try again until the end of a turn is on disk: what has been done must neither be lost nor done again."""
        pause = 0.25
        while True:
            await asyncio.sleep(pause)
            try:
                assert turn.agent is not None
                return self._pursue_if_working(await work(), (turn.agent, turn.capability), turn.door)
            except TurnTaken:
                return outcome_of(await self._jobs.get(job.owner, job.id))
            except StorageError:
                pause = min(2 * pause, _LATEST)

    def _pursue_if_working(self, job: Job, target: Target, door: str) -> Outcome:
        """How a job stands after a turn; work that goes on elsewhere is followed, if it is still this process's."""
        if self._is_mine(job):
            self.pursue(job, target, door)
        return outcome_of(job)

    def pursue(self, job: Job, target: Target, door: str) -> None:
        """Go on asking a target that works elsewhere, until it has ended or needs something."""

        async def attach() -> Outcome:
            now: Job | None = job
            while now is not None and self._is_mine(now):
                poll = now.outcome.poll if isinstance(now.outcome, Working) else None
                if await wait_until_set(self._stopping, 1.0 if poll is None else poll):
                    break
                taken = await self._jobs.take_over(now)
                if taken is None:
                    break
                turn = self._next_running(taken, target, None, door, taken.call)
                call = replace(self.next_turn(taken, taken.call.principal, "attach"), live=turn)
                now = await self._run_to_end(call, turn)
            return outcome_of(await self._jobs.get(job.owner, job.id))

        self._watch(job.id, attach())

    def next_turn(self, job: Job, principal: Principal, entry: Entry) -> Call:
        """The call of the next turn of a job."""
        answered = job.outcome.answered if isinstance(job.outcome, Needs) else ()
        return replace(
            job.call,
            id=self._env.id(),
            principal=principal,
            entry=entry,
            job=job.id,
            turn=job.turn,
            answers=job.answers,
            questions=(*answered, *job.questions),
            state=job.state,
            route=job.route,
            routes=job.call.routes or ((job.route,) if job.route is not None else ()),
        )

    def _is_mine(self, job: Job) -> bool:
        return job.status == "working" and job.node == self._jobs.node

    def _watch(self, job_id: str, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(work, name=f"job {job_id}")
        self.tasks[job_id] = task

        def forget(done: asyncio.Task[Outcome]) -> None:
            if self.tasks.get(job_id) is done:
                del self.tasks[job_id]
                self.lost.discard(job_id)
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("job %s: %s", job_id, error)

        task.add_done_callback(forget)
        return task

    # Several processes

    async def _hand_over(self, job: Job) -> Job:
        """The job when its other process has taken the turn, or this one, since that did not."""
        clock = asyncio.get_running_loop().time
        until, now = clock() + _HANDING, job
        while now.generation == job.generation and clock() < until:
            await asyncio.sleep(_HAND_LOOK)
            now = await self._jobs.get(job.owner, job.id)
        if now.generation != job.generation:
            return now
        return await self._jobs.take_over(job) or await self._jobs.get(job.owner, job.id)


async def _join(task: asyncio.Task[Outcome]) -> Outcome:
    """Wait for a turn. A caller that is cancelled cancels the turn, and waits until it has cleaned up."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise


def _is_lost(outcome: Outcome | None, turn: RunningTurn) -> bool:
    """Whether a turn ended for want of our own storage: nothing had come, or nothing was sent."""
    if outcome is None:
        return True
    is_storage = isinstance(outcome, Failed) and outcome.code in (StorageError.code, StorageUnsure.code)
    return is_storage and turn.attempts <= turn.unsent


def _storage_outcome(job: Job, error: Agent3Error) -> Outcome:
    """What becomes of a job's turn whose storage failed under it: what had come, if that is known."""
    log.error("job %s: %s", job.id, error)
    came = error.outcome if isinstance(error, StorageError) else None
    return failed_by(error) if came is None else came


def _cancel_outcome(outcome: Outcome | None = None) -> Failed:
    """A job that was cancelled is cancelled, also where its target could not be told."""
    if isinstance(outcome, Failed) and outcome.code == "canceled":
        return outcome
    untold = f" Its target could not be notified: {outcome.message}" if isinstance(outcome, Failed) else ""
    return failed_by(Canceled(f"The job was cancelled.{untold}"))


def with_path(call: Call) -> Call:
    """The call with the marks of those that it is made inside of: kept in it, so that another process knows them."""
    marks = via.inside()
    return replace(call, path=marks) if marks and not call.path else call


def outcome_of(job: Job) -> Outcome:
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
