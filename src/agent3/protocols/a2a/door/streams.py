"""Streams of a task: the task as it stands, and then everything as it happens.

A stream is a reader of the job's log with a position in it, and holds nothing else: any number may read, in any
process, from any position. The number of an item is its position, so a client that lost its stream can resume it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from agent3.calls.jobs import Job, Jobs, Line
from agent3.protocols.a2a.door.projection import Link, Projection, item_number, split_number
from agent3.protocols.a2a.wire.types import Item

__all__ = ["Follower", "Items", "after_event", "fold", "lines_until"]

Items: TypeAlias = AsyncGenerator[tuple[int, Item], None]
_ALL = 1 << 30


def after_event(seq: int) -> int:
    """The number of the last item of an event."""
    return item_number(seq, _ALL)


def fold(job: Job, lines: Sequence[Line], link: Link | None = None) -> Projection:
    """The task of a job with its log. A job that only has its result needs no log: its row has everything."""
    projection = Projection(job, link)
    projection.start()
    for line in lines:
        projection.apply(line)
    projection.settle(job)
    return projection


async def lines_until(jobs: Jobs, job: str, seq: int) -> list[Line]:
    """The log of a job up to an event."""
    found: list[Line] = []
    while found[-1].event.seq < seq if found else seq > 0:
        some = await jobs.log.read(job, found[-1].event.seq if found else 0)
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
        """A task from its beginning. With ``waits``, nothing is sent until it is known whether there is a task at all.

        A result that is a plain message is the only item of its stream. ``log`` is the whole log of a job that is not
        in the table.
        """
        projection = Projection(job, self._link)
        begun = not waits
        if begun:
            for opening in _opening_items(projection):
                yield opening
        async with aclosing(self._trail(job.id, 0, False, log)) as trail:
            async for line in trail:
                if not begun:
                    if (message := projection.only_message(line)) is not None:
                        yield item_number(line.event.seq), message
                        return
                    begun = True
                    for opening in _opening_items(projection):
                        yield opening
                for index, item in enumerate(projection.apply(line)):
                    yield item_number(line.event.seq, index), item

    async def follow(
        self, job: Job, *, after: int | None = None, through: bool = False, log: Sequence[Line] | None = None
    ) -> Items:
        """A task as it was at an item, by default as it is now, and everything after that.

        It ends when the task ends or pauses, and with ``through`` only when it ends. An item that this task never had,
        such as one of another task, is no position: then the stream begins with the task as it is now.
        """
        if after is not None and split_number(after)[0] > job.seq:
            after = None
        seq, sent = (job.seq, _ALL) if after is None else split_number(after)
        projection = Projection(job, self._link)
        begun = seq > 0 or sent > 1
        if begun:
            projection.start()
        left: list[Item] = []
        if log is None:
            past = await lines_until(self._jobs, job.id, seq)
        else:
            past = [line for line in log if line.event.seq <= seq]
        for line in past:
            items = projection.apply(line)
            left = items[sent:] if line.event.seq == seq else []
        yield after if after is not None else after_event(seq), projection.task()
        if not begun:
            yield item_number(0, 1), projection.start()
        for index, item in enumerate(left):
            yield item_number(seq, sent + index), item
        async with aclosing(self._trail(job.id, seq, through, log)) as trail:
            async for line in trail:
                for index, item in enumerate(projection.apply(line)):
                    yield item_number(line.event.seq, index), item

    def _trail(self, job: str, after: int, through: bool, log: Sequence[Line] | None) -> AsyncGenerator[Line, None]:
        return self._jobs.follow_lines(job, after, through_pauses=through) if log is None else _read_log(log, after)


async def _read_log(log: Sequence[Line], after: int) -> AsyncGenerator[Line, None]:
    for line in log:
        if line.event.seq > after:
            yield line


def _opening_items(projection: Projection) -> list[tuple[int, Item]]:
    """The task as it was submitted, and the update that it is being worked on."""
    return [(item_number(0, 0), projection.task()), (item_number(0, 1), projection.start())]
