"""Streams of a task: what has been told of it so far as one snapshot, and then everything as it comes.

A stream is a reader of the job's log with a place in it, and holds nothing else: any number may read, in any process,
from any place. The number of an item is that place, so a client that lost its stream goes on where it was.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from agent3.calls.jobs.jobs import Job, Jobs, Line
from agent3.protocols.a2a.door.projection import Link, Projection, number, seq_of
from agent3.protocols.a2a.wire.types import Item

__all__ = ["Follower", "Items", "after_event", "fold", "lines_until"]

Items: TypeAlias = AsyncGenerator[tuple[int, Item], None]
_ALL = 1 << 30


def after_event(seq: int) -> int:
    """The number of the last item of an event."""
    return number(seq, _ALL)


def fold(job: Job, lines: Sequence[Line], link: Link | None = None) -> Projection:
    """The task of a job with its log. Of one that told nothing but its end, the row says all."""
    seen = Projection(job, link)
    seen.start()
    for line in lines:
        seen.apply(line)
    seen.settle(job)
    return seen


async def lines_until(jobs: Jobs, job: str, seq: int) -> list[Line]:
    """The log of a job up to an event."""
    found: list[Line] = []
    while found[-1].event.seq < seq if found else seq > 0:
        some = await jobs.lines(job, found[-1].event.seq if found else 0)
        found.extend(line for line in some if line.event.seq <= seq)
        if not some or some[-1].event.seq >= seq:
            break
    return found


class Follower:
    """Reads the logs of jobs as streams of a task."""

    def __init__(self, jobs: Jobs, link: Link | None = None):
        self._jobs = jobs
        self._link = link

    async def fresh(self, job: Job, *, waits: bool = False, log: Sequence[Line] | None = None) -> Items:
        """A task from its beginning. With ``waits``, nothing is told until it is known whether it is one.

        A result that is a mere message is all that its stream tells. ``log`` is the whole log, where no table has it.
        """
        seen = Projection(job, self._link)
        begun = not waits
        if begun:
            for one in _opening(seen):
                yield one
        async with aclosing(self._trail(job.id, 0, False, log)) as trail:
            async for line in trail:
                if not begun and (message := seen.only_message(line)) is not None:
                    yield number(line.event.seq), message
                    return
                if not begun:
                    begun = True
                    for one in _opening(seen):
                        yield one
                for index, item in enumerate(seen.apply(line)):
                    yield number(line.event.seq, index), item

    async def follow(
        self, job: Job, *, after: int | None = None, through: bool = False, log: Sequence[Line] | None = None
    ) -> Items:
        """A task as it stood when an item was told, by default now, and everything after that.

        It ends when the task ends or pauses, and with ``through`` only when it ends. An item that this task never told,
        such as one of another task, is none to go on from: then as it stands now.
        """
        if after is not None and seq_of(after)[0] > job.seq:
            after = None
        seq, told = (job.seq, _ALL) if after is None else seq_of(after)
        seen = Projection(job, self._link)
        begun = seq > 0 or told > 1
        if begun:
            seen.start()
        left: list[Item] = []
        past = await lines_until(self._jobs, job.id, seq) if log is None else [x for x in log if x.event.seq <= seq]
        for line in past:
            items = seen.apply(line)
            left = items[told:] if line.event.seq == seq else []
        yield after if after is not None else after_event(seq), seen.task()
        if not begun:
            yield number(0, 1), seen.start()
        for index, item in enumerate(left):
            yield number(seq, told + index), item
        async with aclosing(self._trail(job.id, seq, through, log)) as trail:
            async for line in trail:
                for index, item in enumerate(seen.apply(line)):
                    yield number(line.event.seq, index), item

    def _trail(self, job: str, after: int, through: bool, log: Sequence[Line] | None) -> AsyncGenerator[Line, None]:
        return self._jobs.trail(job, after, through=through) if log is None else _read(log, after)


async def _read(log: Sequence[Line], after: int) -> AsyncGenerator[Line, None]:
    for line in log:
        if line.event.seq > after:
            yield line


def _opening(seen: Projection) -> list[tuple[int, Item]]:
    """A task as it was taken, and that it is being worked on."""
    return [(number(0, 0), seen.task()), (number(0, 1), seen.start())]
