"""One running turn: it gives its events their numbers, bounds what may be told, and writes them down in batches.

A turn belongs to a job from the start, becomes one as soon as it must, or never does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, TypeAlias

from msgspec.structs import replace

from agent3.calls.coroutines import noticing
from agent3.calls.jobs.jobs import Job, Jobs
from agent3.calls.outcomes import failed_by
from agent3.errors import Agent3Error, StorageError, TooLarge, TurnTaken
from agent3.model import Call, Event, Failed, Live, Outcome, encode
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics

__all__ = ["Bounds", "Listener", "Turn", "noticed"]

log = logger("jobs")

Listener: TypeAlias = Callable[[Event], None]
_FLUSH = 0.01
_PENDING = 1_000
_FLOOD = "more than a turn may tell"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one turn may tell, and where it is counted when it tells more."""

    events: int
    size: int
    metrics: Metrics

    def dropped(self, reason: str, events: int = 1) -> None:
        """Count events that nobody will see."""
        if events:
            self.metrics.events_dropped.inc((reason,), events)


class Turn:
    """One running turn: gives its events their numbers and writes them in batches, if it is a job's."""

    # What most turns never change stands here once, instead of in each of them.
    task: asyncio.Task[Any] | None = None
    called_off = False
    flooded = False
    seq = 0
    _told = 0
    _weight = 0
    _opening: asyncio.Lock | None = None
    _opener: asyncio.Task[Job] | None = None
    _pending: list[Event]
    _writer: asyncio.Task[None] | None = None
    _writing = False

    def __init__(
        self,
        jobs: Jobs,
        job: Job | None,
        live: Live,
        listener: Listener | None,
        call: Call,
        bounds: Bounds,
        opened: Callable[[Turn], None] | None = None,
    ):
        self.job = job
        self._bounds = bounds
        self._jobs = jobs
        self._listener = listener
        self.call = call
        self._live = live
        self._opened = opened
        self._pending = []
        live.listener = self.hear
        live.keep = self.keep
        if job is not None:
            self.seq = job.seq
            if job.kept:
                live.kept = dict(job.kept)

    def hear(self, event: Event) -> None:
        """Take an event: write it down if this is a job, and tell the caller that is there.

        An event beyond the bounds of a turn is dropped and ends the turn.
        """
        if (reason := self._refusal(event)) is not None:
            self._bounds.dropped(reason)
            return
        if self.job is not None or self.call.key is not None:
            self.seq += 1
            event = replace(event, seq=self.seq, turn=self.call.turn if self.job is None else self.job.turn)
            self._pending.append(event)
            self._write_soon()
        if self._listener is not None and event.kind != "state":
            self._tell(self._listener, event)

    def calm(self) -> Failed:
        """Undo the cancellation that a flood brought on; what the turn ends with instead."""
        if self.task is not None and self.task.uncancel() > 0:
            raise asyncio.CancelledError
        text = (
            f"{self.call.agent}/{self.call.capability} told more than {self._bounds.events} events or "
            f"{self._bounds.size} bytes in one turn. Let it tell less, or raise calls.events and calls.event_bytes."
        )
        return replace(failed_by(TooLarge(text)), asked=True)

    def early(self) -> list[Event]:
        """What an inline turn told that may yet become a job, for its log."""
        early, self._pending = self._pending, []
        return early

    def open_soon(self) -> None:
        """Make a job of an inline turn that has to wait for something: others may want to see or to stop it.

        For its row in the ledger it may wait without: it has ended, and there is nothing left to stop.
        """
        if not self._live.answered:
            self._opener = asyncio.get_running_loop().create_task(self.open(), name=f"open {self.call.id}")

    @property
    def opening(self) -> bool:
        """Whether it is about to become a job, or has been since."""
        return self._opener is not None

    async def opened(self) -> None:
        """Wait until it is a job, if it is about to become one. One that cannot be written goes on without."""
        if self._opener is not None:
            await asyncio.wait([self._opener])
            if not self._opener.cancelled() and (wrong := self._opener.exception()) is not None:
                log.warning("%s/%s: it runs without a job: %s", self.call.agent, self.call.capability, wrong)

    async def open(self) -> Job:
        """The job of this turn, made if there is none yet."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self.job is None:
                job, new = await self._jobs.open(self.call)
                if not new:
                    raise TurnTaken(f"Another process answers message {self.call.key} already, as job {job.id}.")
                self.job = job
                self._write_soon()
                if self._opened is not None:
                    self._opened(self)
        return self.job

    def _write_soon(self) -> None:
        if self.job is not None and self._pending and (self._writer is None or self._writer.done()):
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def keep(self, name: str, value: Any) -> None:
        """Remember durably that something was done; an inline turn becomes a job by it."""
        job = await self.open()
        self._live.kept[name] = value
        await self._jobs.keep(job, self._live.kept)

    async def settle(self) -> list[Event]:
        """Hear no more; what is still to be written goes with the end of the turn."""
        self._live.listener = None
        if self._writer is not None:
            if not self._writing:
                self._writer.cancel()
            await asyncio.wait([self._writer])
        pending, self._pending = self._pending, []
        return pending

    def _refusal(self, event: Event) -> str | None:
        """Why an event is not taken: it cannot be kept, or the turn has told too much, which cancels it."""
        if self.flooded:
            return _FLOOD
        weight = _weight(event)
        if weight is None and (self.job is not None or self.call.key is not None):
            return "not JSON"
        self._told += 1
        self._weight += weight or 0
        if self._told <= self._bounds.events and self._weight <= self._bounds.size:
            return None
        self.flooded = True
        if self.task is not None:
            self.task.cancel()
        return _FLOOD

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
                self._bounds.dropped("not written", len(batch))
                return
            finally:
                self._writing = False


async def noticed(running: Awaitable[Outcome], turn: Turn) -> Outcome:
    """Await a turn that becomes a job as soon as it waits for anything."""
    coro = running if isinstance(running, CoroutineType) else _coroutine(running)
    try:
        return await noticing(coro, turn.open_soon)
    finally:
        if turn.opening:
            await turn.opened()


async def _coroutine(running: Awaitable[Outcome]) -> Outcome:
    return await running


def _weight(event: Event) -> int | None:
    """The bytes that an event takes; None when it is not JSON and so cannot be kept."""
    try:
        return len(encode(event))
    except (TypeError, ValueError, RecursionError):
        return None
