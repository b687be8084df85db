"""A running turn: its events are numbered, bounded, told to the caller, and written to the job's log in batches.

A turn belongs to a job from the start, becomes one as soon as it must, or never does. Until it is a job nothing is
written; what was told until then is kept for the log where the call has a key, since it may yet become one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec.structs import replace

from agent3.calls.budgets import Bill
from agent3.calls.coroutines import drive
from agent3.calls.jobs import Job, Jobs
from agent3.calls.outcomes import failed_by
from agent3.errors import Agent3Error, StorageError, TooLarge, TurnTaken
from agent3.model import Agent, Call, Capability, Event, Failed, Outcome, Turn, encode
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics

__all__ = ["Bounds", "Listener", "RunningTurn"]

log = logger("jobs")

Listener: TypeAlias = Callable[[Event], None]
_FLUSH = 0.01
_PENDING = 1_000
_FLOOD = "too many events in one turn"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many events and bytes one turn may tell, and where the rest is counted."""

    events: int
    size: int
    metrics: Metrics

    def count_dropped(self, reason: str, events: int = 1) -> None:
        """Count events that will not be seen."""
        if events:
            self.metrics.events_dropped.inc((reason,), events)


class RunningTurn(Turn):
    """One turn while the Runner runs it. ``job`` is the job that it belongs to, once there is one."""

    # Most turns never change these, so they stand here once instead of in each of them.
    task: asyncio.Task[Any] | None = None
    opened: Callable[[Job], None] | None = None
    """Hears when an inline turn becomes a job."""
    called_off = False
    """The job was cancelled, not the caller."""
    flooded = False
    closed = False
    seq = 0
    _told = 0
    _weight = 0
    _opening: asyncio.Lock | None = None
    _opener: asyncio.Task[Job] | None = None
    _writer: asyncio.Task[None] | None = None
    _writing = False
    _pending: list[Event] | None = None

    def __init__(
        self,
        jobs: Jobs,
        job: Job | None,
        target: tuple[Agent, Capability],
        listener: Listener | None,
        door: str,
        call: Call,
        bounds: Bounds,
        on_open: Callable[[RunningTurn], None] | None = None,
        is_handed_on: Callable[[str], bool] = lambda _: False,
    ):
        self.agent, self.capability = target
        self.listener = listener
        self.door = door
        self.kept = {}
        self.job = job
        self.call = call
        self._bounds = bounds
        self._jobs = jobs
        self._on_open = on_open
        self._is_handed_on = is_handed_on
        if job is not None:
            self.seq = job.seq
            bill = job.bill
            self.reserved, self.seconds_before, self.sent_before = bill.reserved, bill.seconds, bill.sent
            if job.kept:
                self.kept.update(job.kept)

    @property
    def heard(self) -> bool:
        return True

    @property
    def can_pause(self) -> bool:
        return True

    @property
    def handed_on(self) -> bool:
        return self.job is not None and self._is_handed_on(self.job.id)

    @property
    def bill(self) -> Bill:
        """What its job owes so far."""
        sent = self.sent_before or self.attempts > self.unsent
        return Bill(self.reserved, self.seconds_before + self.seconds, sent)

    def hear(self, event: Event) -> None:
        """Take an event: write it down if this is a job, and tell the caller that is there.

        An event beyond the bounds of a turn is dropped and ends the turn.
        """
        if self.closed:
            return
        if (reason := self._refusal(event)) is not None:
            self._bounds.count_dropped(reason)
            return
        if self.job is not None or self.call.key is not None:
            self.seq += 1
            event = replace(event, seq=self.seq, turn=self.call.turn if self.job is None else self.job.turn)
            if self._pending is None:
                self._pending = []
            self._pending.append(event)
            self._write_soon()
        if self.listener is not None and event.kind != "state":
            try:
                self.listener(event)
            except Exception:
                # The listener is not part of the call: it loses its events, and the call goes on.
                log.exception(
                    "%s/%s: its listener failed and receives no more events", self.call.agent, self.call.capability
                )
                self.listener = None

    async def run(self, running: Awaitable[Outcome]) -> Outcome:
        """Await a turn that becomes a job as soon as it has to wait for anything.

        For its row in the ledger it may wait without: it has ended, and there is nothing left to see or to stop.
        """

        def open_soon() -> None:
            if not self.answered:
                self._opener = asyncio.get_running_loop().create_task(self.open(), name=f"open {self.call.id}")

        try:
            return await drive(running, open_soon)
        finally:
            if self._opener is not None:
                await asyncio.wait([self._opener])
                if not self._opener.cancelled() and (error := self._opener.exception()) is not None:
                    log.warning("%s/%s: runs without a job: %s", self.call.agent, self.call.capability, error)

    async def open(self) -> Job:
        """The job of this turn, made if there is none yet."""
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self.job is None:
                job, new = await self._jobs.open(self.call, self.bill)
                if not new:
                    raise TurnTaken(f"Another process is already answering message {self.call.key}, as job {job.id}.")
                self.job = job
                self._write_soon()
                if self._on_open is not None:
                    self._on_open(self)
        return self.job

    async def keep(self, name: str, value: Any) -> None:
        """Remember durably that something was done; an inline turn becomes a job by it."""
        job = await self.open()
        self.kept[name] = value
        await self._jobs.save_kept(job, self.kept)

    def take_pending(self) -> list[Event]:
        """What an inline turn told before it became a job, for its log."""
        pending, self._pending = self._pending, None
        return pending or []

    async def close(self) -> list[Event]:
        """Hear no more. What is still to be written goes with the end of the turn."""
        self.closed = True
        if self._writer is not None:
            if not self._writing:
                self._writer.cancel()
            await asyncio.wait([self._writer])
        return self.take_pending()

    async def end_flood(self) -> Failed:
        """What a turn ends with that told too much. Undoes the cancellation that the flood brought on.

        The target may have swallowed that cancellation, or it may not have come yet.
        """
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        return self.flood_outcome()

    def flood_outcome(self) -> Failed:
        """Likewise, where the cancellation has come."""
        if self.task is not None and self.task.uncancel() > 0:
            raise asyncio.CancelledError
        text = (
            f"{self.call.agent}/{self.call.capability} emitted more than {self._bounds.events} events or "
            f"{self._bounds.size} bytes in one turn. Emit less, or raise calls.events and calls.event_bytes."
        )
        return replace(failed_by(TooLarge(text)), asked=True)

    def _refusal(self, event: Event) -> str | None:
        """Why an event is not taken: it cannot be kept, or the turn has told too much, which cancels it."""
        if self.flooded:
            return _FLOOD
        try:
            weight = len(encode(event))
        except (TypeError, ValueError, RecursionError):
            if self.job is not None or self.call.key is not None:
                return "not JSON"
            weight = 0
        self._told += 1
        self._weight += weight
        if self._told <= self._bounds.events and self._weight <= self._bounds.size:
            return None
        self.flooded = True
        if self.task is not None:
            self.task.cancel()
        return _FLOOD

    def _write_soon(self) -> None:
        if self.job is not None and self._pending and (self._writer is None or self._writer.done()):
            self._writer = asyncio.get_running_loop().create_task(self._write(self.job))

    async def _write(self, job: Job) -> None:
        while self._pending:
            await asyncio.sleep(_FLUSH)
            batch, self._pending = self._pending[:_PENDING], self._pending[_PENDING:]
            self._writing = True
            try:
                await self._jobs.append(job, batch)
            except StorageError as error:
                log.warning("job %s: %d events will be written later: %s", job.id, len(batch), error)
                self._pending = batch + (self._pending or [])
                return
            except Agent3Error as error:
                log.warning("job %s: %d events were not written: %s", job.id, len(batch), error)
                self._bounds.count_dropped("not written", len(batch))
                return
            finally:
                self._writing = False
