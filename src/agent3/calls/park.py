"""Park: turns a handler that *asks* into one that *returns* ``Needs``.

No step ever waits for a person. When an interactive handler asks, its frame stays here, suspended, while the turn
ends with the question; the turn that brings the answer wakes the frame up. Frames are bounded in number and age, and
a frame that is gone is no loss by itself: the connector is then entered with all answers and replays, or says that it
was interrupted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent3.calls.outcomes import failed_by
from agent3.env import Env
from agent3.errors import Canceled
from agent3.model import Answer, Call, Handler, Live, Needs, Outcome, Question
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics

__all__ = ["Park"]

log = logger("park")

_PATIENCE = 10.0
"""Seconds that a cancelled handler gets to clean up."""


@dataclass(slots=True, eq=False)
class _Frame:
    """A handler in the middle of its work, and the questions it waits for."""

    live: Live
    task: asyncio.Task[Outcome] | None = None
    signal: asyncio.Future[None] | None = None
    asked: dict[str, tuple[Question, asyncio.Future[Answer]]] = field(default_factory=dict)
    since: float = 0.0

    async def ask(self, question: Question) -> Answer:
        """Called from inside the handler: end this turn with a question and wait for the next."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.asked[question.id] = question, answer
        self._wake()
        return await answer

    def hear(self, answers: Mapping[str, Answer]) -> None:
        """Give the handler its answers; what was asked and not answered counts as cancelled."""
        asked, self.asked = self.asked, {}
        for name, (_, answer) in asked.items():
            if not answer.done():
                answer.set_result(answers.get(name, Answer("cancel")))

    def finished(self, task: asyncio.Task[Outcome]) -> None:
        """The handler returned, raised or was cancelled."""
        self._wake()
        if not task.cancelled():
            task.exception()  # retrieved, so that a frame that ends while parked does not complain at exit

    async def turn(self) -> Outcome:
        """Run until the handler asks or ends. A cancelled turn cancels the handler and waits for it."""
        assert self.task is not None
        self.signal = asyncio.get_running_loop().create_future()
        try:
            if not self.task.done():
                await self.signal
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self.task.done():
            return self.task.result()
        return Needs(tuple(question for question, _ in self.asked.values()))

    async def stop(self) -> None:
        """Cancel the handler, and wait a while for it to clean up."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task], timeout=_PATIENCE)

    def _wake(self) -> None:
        if self.signal is not None and not self.signal.done():
            self.signal.set_result(None)


class Park:
    """The step, and the frames it holds, by job."""

    def __init__(self, env: Env, metrics: Metrics, most: int = 10_000, seconds: float = 3600.0):
        self._env = env
        self._metrics = metrics
        self._most = most
        self._seconds = seconds
        self._frames: OrderedDict[str, _Frame] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def __call__(self, inner: Handler) -> Handler:
        async def parked(call: Call) -> Outcome:
            if not call.live.capability.interactive:
                return await inner(call)
            job = call.job or call.id
            frame = self._frames.pop(job, None)
            self._show()
            if call.entry == "cancel" and frame is not None:
                await frame.stop()
                return failed_by(Canceled("The job was cancelled while it waited for an answer."))
            if call.entry == "answer" and frame is not None:
                return await self._resume(frame, call, job)
            if frame is not None:
                await frame.stop()
            return await self._begin(inner, call, job)

        return parked

    async def aclose(self) -> None:
        """Let every frame go; their jobs stay in storage."""
        frames = list(self._frames.values())
        self._frames.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await asyncio.gather(*(frame.stop() for frame in frames))

    async def _begin(self, inner: Handler, call: Call, job: str) -> Outcome:
        frame = _Frame(call.live)
        call.live.ask = frame.ask
        frame.task = asyncio.get_running_loop().create_task(_coroutine(inner, call), name=f"frame {job}")
        frame.task.add_done_callback(frame.finished)
        return await self._run(frame, job)

    async def _resume(self, frame: _Frame, call: Call, job: str) -> Outcome:
        frame.live.forward = call.live
        frame.hear(call.answers)
        return await self._run(frame, job)

    async def _run(self, frame: _Frame, job: str) -> Outcome:
        outcome = await frame.turn()
        if isinstance(outcome, Needs) and frame.task is not None and not frame.task.done():
            frame.since = self._env.monotonic()
            # Held on to, the turn that ended would chain its whole live part to every later one.
            frame.live.forward = None
            self._frames[job] = frame
            self._evict()
        return outcome

    def _evict(self) -> None:
        """Let go of the oldest frames beyond the bound, and of those that waited too long; nobody waits for them."""
        oldest = self._env.monotonic() - self._seconds
        while self._frames:
            job, frame = next(iter(self._frames.items()))
            if len(self._frames) <= self._most and frame.since > oldest:
                break
            del self._frames[job]
            self._metrics.events_dropped.inc(("parked frame let go",))
            log.info("job %s: its frame left memory; an answer will replay it or find it interrupted", job)
            if frame.task is not None:
                frame.task.cancel()
        if self._frames and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(self._seconds, 0.01), self._look_again)
        self._show()

    def _look_again(self) -> None:
        self._timer = None
        self._evict()

    def _show(self) -> None:
        self._metrics.parked.set((), len(self._frames))


async def _coroutine(inner: Handler, call: Call) -> Outcome:
    return await inner(call)
