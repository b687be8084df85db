"""Park: turns a handler that *asks* into one that *returns* ``Needs``.

No step ever waits for a person. When an interactive handler asks, its frame stays here, suspended, while the turn
ends with the question; the turn that brings the answer wakes the frame up. Frames are bounded in number and age, and
a frame that is gone is no loss by itself: the connector is then entered with all answers and replays, or says that it
was interrupted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from agent3.calls.outcomes import failed_by
from agent3.env import Env
from agent3.errors import Canceled
from agent3.model import Answer, Call, Handler, Live, Needs, Outcome, Question
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics

__all__ = ["Park"]

log = logger("park")


@dataclass(slots=True, eq=False)
class _Frame:
    """A handler in the middle of its work."""

    live: Live
    task: asyncio.Task[Outcome] | None = None
    signal: asyncio.Future[Question | None] | None = None
    answer: asyncio.Future[Answer] | None = None
    question: Question | None = None
    since: float = 0.0

    async def ask(self, question: Question) -> Answer:
        """Called from inside the handler: end this turn with a question and wait for the next."""
        loop = asyncio.get_running_loop()
        self.answer = loop.create_future()
        self.question = question
        if self.signal is not None and not self.signal.done():
            self.signal.set_result(question)
        return await self.answer

    def finished(self, task: asyncio.Task[Outcome]) -> None:
        """The handler returned, raised or was cancelled."""
        if self.signal is not None and not self.signal.done():
            self.signal.set_result(None)
        elif not task.cancelled():
            task.exception()  # retrieved, so that a frame cancelled while parked does not complain at exit

    async def turn(self) -> Outcome:
        """Run until the handler asks or ends. A cancelled turn cancels the handler and waits for it."""
        assert self.task is not None
        self.signal = asyncio.get_running_loop().create_future()
        if self.task.done():
            return self.task.result()
        try:
            question = await self.signal
        except asyncio.CancelledError:
            await self.stop()
            raise
        return self.task.result() if question is None else Needs((question,))

    async def stop(self) -> None:
        """Cancel the handler, and wait until it has cleaned up."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])


class Park:
    """The step, and the frames it holds, by job."""

    def __init__(self, env: Env, metrics: Metrics, most: int = 10_000, seconds: float = 3600.0):
        self._env = env
        self._metrics = metrics
        self._most = most
        self._seconds = seconds
        self._frames: OrderedDict[str, _Frame] = OrderedDict()

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
            if call.entry == "answer" and frame is not None and frame.question is not None:
                return await self._resume(frame, call, job)
            if frame is not None:
                await frame.stop()
            return await self._begin(inner, call, job)

        return parked

    async def aclose(self) -> None:
        """Let every frame go; their jobs stay in storage."""
        frames = list(self._frames.values())
        self._frames.clear()
        for frame in frames:
            await frame.stop()

    async def _begin(self, inner: Handler, call: Call, job: str) -> Outcome:
        frame = _Frame(call.live)
        call.live.ask = frame.ask
        frame.task = asyncio.get_running_loop().create_task(_coroutine(inner, call), name=f"frame {job}")
        frame.task.add_done_callback(frame.finished)
        return await self._run(frame, job)

    async def _resume(self, frame: _Frame, call: Call, job: str) -> Outcome:
        assert frame.question is not None
        assert frame.answer is not None
        frame.live.forward = call.live
        answer = call.answers.get(frame.question.id, Answer("cancel"))
        if not frame.answer.done():
            frame.answer.set_result(answer)
        return await self._run(frame, job)

    async def _run(self, frame: _Frame, job: str) -> Outcome:
        outcome = await frame.turn()
        if isinstance(outcome, Needs) and frame.task is not None and not frame.task.done():
            frame.since = self._env.monotonic()
            # Held on to, the turn that ended would chain its whole live part to every later one.
            frame.live.forward = None
            self._frames[job] = frame
            await self._evict()
            self._show()
        return outcome

    async def _evict(self) -> None:
        """Let go of the oldest frames beyond the bound, and of those that waited too long."""
        oldest = self._env.monotonic() - self._seconds
        while self._frames:
            job, frame = next(iter(self._frames.items()))
            if len(self._frames) <= self._most and frame.since > oldest:
                return
            del self._frames[job]
            self._metrics.events_dropped.inc(("parked frame let go",))
            log.info("job %s: its frame left memory; an answer will replay it or find it interrupted", job)
            await frame.stop()

    def _show(self) -> None:
        self._metrics.parked.set((), len(self._frames))


async def _coroutine(inner: Handler, call: Call) -> Outcome:
    return await inner(call)
