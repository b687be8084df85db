"""The park: turns a handler that *asks* into one that *returns* ``Needs``.

No step ever waits for a person. When an interactive handler asks, its frame stays here, suspended, while the turn
ends with the question; the turn that brings the answer wakes the frame up. Frames are bounded in number and age, and
a frame that is gone is no loss by itself: the connector is then entered with all answers and replays, or says that it
was interrupted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from types import CoroutineType

from msgspec.structs import replace

from agent3.calls.coroutines import as_coroutine
from agent3.calls.outcomes import failed_by
from agent3.env import Env
from agent3.errors import Canceled
from agent3.model import Answer, Call, Handler, Needs, Outcome, Question, Turn
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics

__all__ = ["Park"]

log = logger("park")

_GRACE = 0.5
"""Seconds that a turn waits for its cancelled handler; after that it cleans up on its own."""
_PATIENCE = 10.0
"""Seconds that cancelled handlers get to clean up when the gateway closes."""
_SPARE = 100
"""Frames held of functions that may be run again from the top instead."""
_BREATHS = 3
"""Rounds of the loop that an answered handler gets before a question that waits already ends its turn."""


@dataclass(slots=True, eq=False)
class _Frame:
    """A handler in the middle of its work, and the questions it waits for."""

    live: Turn
    task: asyncio.Task[Outcome] | None = None
    signal: asyncio.Future[None] | None = None
    asked: dict[str, tuple[Question, asyncio.Future[Answer]]] = field(default_factory=dict)
    returned: frozenset[str] = frozenset()
    """Ids of the questions that a turn has ended with: these, and no others, the next turn answers."""
    gone: bool = False
    since: float = 0.0

    async def ask(self, question: Question) -> Answer:
        """Called from inside the handler: end this turn with a question and wait for the next."""
        if self.gone:
            raise Canceled("The caller no longer waits for this.")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.asked[question.id] = question, answer
        self._wake()
        return await answer

    def give(self, answers: Mapping[str, Answer]) -> None:
        """Give the handler its answers; a question that was returned and not answered counts as cancelled."""
        for name in self.returned & self.asked.keys():
            _, answer = self.asked.pop(name)
            if not answer.done():
                answer.set_result(answers.get(name, Answer("cancel")))
        self.returned = frozenset()

    def on_end(self, task: asyncio.Task[Outcome]) -> None:
        """The handler returned, raised or was cancelled."""
        self._wake()
        if not task.cancelled():
            task.exception()  # retrieved, so that a frame that ends while parked does not complain at exit

    async def turn(self) -> Outcome:
        """Run until the handler asks or ends."""
        assert self.task is not None
        for _ in range(_BREATHS if self._has_question() else 0):
            await asyncio.sleep(0)
        while not self.task.done() and not self._has_question():
            self.signal = asyncio.get_running_loop().create_future()
            await self.signal
        if self.task.done():
            return self.task.result()
        self.returned = frozenset(self.asked)
        return Needs(tuple(question for question, _ in self.asked.values()))

    def attach(self, turn: Turn) -> None:
        """What the handler emits and keeps belongs to this turn from now on."""
        self.live.forward = turn

    def detach(self) -> None:
        """Belong to no turn: held on to, an ended one would stay in memory for as long as a person thinks."""
        self.live.forward = None

    def cancel(self) -> None:
        """Cancel the handler; nothing that it still says or asks reaches a caller."""
        assert self.task is not None
        self.gone = True
        self.detach()
        self.task.cancel()

    def _has_question(self) -> bool:
        """Whether a question waits; one that the handler itself gave up, by a timeout of its own, does not."""
        self.asked = {name: asked for name, asked in self.asked.items() if not asked[1].done()}
        return bool(self.asked)

    def _wake(self) -> None:
        if self.signal is not None and not self.signal.done():
            self.signal.set_result(None)


class Park:
    """The frames of all jobs that wait for an answer."""

    def __init__(self, env: Env, metrics: Metrics, most: int = 10_000, seconds: float = 3600.0):
        self._env = env
        self._metrics = metrics
        self._most = most
        self._seconds = seconds
        self._frames: OrderedDict[str, _Frame] = OrderedDict()
        self._spare: OrderedDict[str, None] = OrderedDict()
        self._leaving: set[asyncio.Task[Outcome]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def around(self, inner: Handler) -> Handler:
        """Run ``inner`` in a frame of its own, for capabilities that may ask."""

        def handle(call: Call) -> Awaitable[Outcome]:
            return turn(call) if call.live.capability.interactive else inner(call)

        async def turn(call: Call) -> Outcome:
            job = call.job or call.id
            frame = self._frames.pop(job, None)
            self._spare.pop(job, None)
            self._count()
            if call.entry == "cancel" and frame is not None:
                await self._stop(frame, job)
                return failed_by(Canceled("The job was cancelled while it waited for an answer."))
            if call.entry == "answer" and frame is not None:
                frame.attach(call.live)
                frame.give(call.answers)
                return await self._run(frame, job)
            if frame is not None:
                await self._stop(frame, job)
            return await self._begin(inner, call, job)

        return handle

    def forget(self, job: str) -> None:
        """Release a frame: another process has taken the conversation further, of which this one knows nothing."""
        self._spare.pop(job, None)
        if (frame := self._frames.pop(job, None)) is not None:
            log.info("job %s: its frame was dropped, since another process continues it", job)
            self._release(frame)
            self._count()

    def drop(self, job: str) -> None:
        """Cancel the frame of a question that is not put after all."""
        self._spare.pop(job, None)
        if (frame := self._frames.pop(job, None)) is not None:
            self._release(frame)
            self._count()

    async def aclose(self) -> None:
        """Release every frame, and wait a while for those that still clean up; their jobs stay in storage."""
        frames = list(self._frames.values())
        self._frames.clear()
        self._spare.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for frame in frames:
            self._release(frame)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_PATIENCE)

    async def _begin(self, inner: Handler, call: Call, job: str) -> Outcome:
        # A live part of its own: a frame that outlives its attempt must not ask or speak in the next one's name.
        frame = _Frame(call.live.fork())
        frame.live.ask = frame.ask
        running = inner(replace(call, live=frame.live))
        # A person may think for long, and thousands of them at once: each frame less is memory.
        work = running if isinstance(running, CoroutineType) else as_coroutine(running)
        frame.task = asyncio.get_running_loop().create_task(work, name=f"frame {job}")
        frame.task.add_done_callback(frame.on_end)
        return await self._run(frame, job)

    async def _run(self, frame: _Frame, job: str) -> Outcome:
        """One turn of a frame. A cancelled turn cancels the handler, and waits a moment for it."""
        try:
            outcome = await frame.turn()
        except asyncio.CancelledError:
            await self._stop(frame, job)
            raise
        if isinstance(outcome, Needs) and frame.task is not None and not frame.task.done():
            frame.since = self._env.monotonic()
            frame.detach()
            self._frames[job] = frame
            if frame.live.capability.hints.replay:
                # Few are held that can be rebuilt: a person may think for days, and the answers so far are in the job.
                self._spare[job] = None
                while len(self._spare) > _SPARE:
                    oldest, _ = self._spare.popitem(last=False)
                    if (spare := self._frames.pop(oldest, None)) is not None:
                        self._release(spare)
            self._evict()
        return outcome

    async def _stop(self, frame: _Frame, job: str) -> None:
        """Release a frame. One that does not end holds up neither the deadline nor the caller that cancelled it."""
        task = self._release(frame)
        await asyncio.wait([task], timeout=_GRACE)
        if not task.done():
            self._metrics.events_dropped.inc(("frame outlived its turn",))
            log.warning("job %s: its function was cancelled but is still running after %g s", job, _GRACE)

    def _release(self, frame: _Frame) -> asyncio.Task[Outcome]:
        """Cancel a frame, and hold its task until it ends: the loop itself keeps only a weak reference."""
        assert frame.task is not None
        frame.cancel()
        self._leaving.add(frame.task)
        frame.task.add_done_callback(self._leaving.discard)
        return frame.task

    def _evict(self, by_timer: bool = False) -> None:
        """Release the oldest frames beyond the bound, and those that waited too long."""
        if by_timer:
            self._timer = None
        oldest = self._env.monotonic() - self._seconds
        while self._frames:
            job, frame = next(iter(self._frames.items()))
            if len(self._frames) <= self._most and frame.since > oldest:
                break
            del self._frames[job]
            self._spare.pop(job, None)
            self._metrics.events_dropped.inc(("parked frame dropped",))
            log.info("job %s: its frame was dropped; an answer will replay it or find it interrupted", job)
            self._release(frame)
        if self._frames and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(self._seconds, 0.01), self._evict, True)
        self._count()

    def _count(self) -> None:
        self._metrics.parked.set((), len(self._frames))
