"""The threads in which plain functions run: many in all, a few for each agent.

A thread cannot be cancelled. A function that hangs keeps its thread for as long as it likes, so the number of threads
that one agent can lose that way is bounded, and other agents are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from agent3.errors import Unavailable
from agent3.observe.logs import get as logger

__all__ = ["Threads"]

log = logger("threads")

T = TypeVar("T")


class _Room:
    """What one agent has of the threads."""

    def __init__(self, agent: str, places: int):
        self.agent = agent
        self.free = asyncio.Semaphore(places)
        self.guests = 0
        self.stuck = 0


@dataclass(slots=True)
class _Visit:
    """One run in one thread, until the thread is free again; ``left`` when its caller did not wait for that."""

    room: _Room
    left: bool = False


class Threads:
    """``total`` threads, of which the functions of one agent take at most ``each``. Used from one loop at a time.

    A burst beyond that waits for its turn. Where every thread that an agent may have is held by a function that did
    not return although its caller is gone, the next call is refused at once: waiting would only end in a timeout.
    """

    def __init__(self, total: int, each: int):
        self._total = total
        self._each = each
        self._rooms: dict[str, _Room] = {}
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, agent: str, work: Callable[[], T]) -> T:
        """The result of ``work`` in a thread; ``Unavailable``, and nothing sent, where hung functions hold them all.

        Cancelled, it goes on without the thread, which comes back when ``work`` returns.
        """
        room = self._rooms.setdefault(agent, _Room(agent, self._each))
        if room.stuck >= self._each:
            held = f"All {room.stuck} threads that {agent!r} may use are"
        elif sum(other.stuck for other in self._rooms.values()) >= self._total:
            held = f"All {self._total} threads for plain functions are"
        else:
            held = ""
        if held:
            error = Unavailable(
                f"{held} blocked by functions that did not return after their timeout. Give what they wait "
                "for a timeout of its own, or restart the process."
            )
            error.sent = False
            raise error
        room.guests += 1
        try:
            await room.free.acquire()
        except BaseException:
            self._leave(room)
            raise
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._total, thread_name_prefix="agent3-function")
        visit, loop = _Visit(room), asyncio.get_running_loop()

        def on_end(_: Future[T]) -> None:  # called in the thread
            with suppress(RuntimeError):  # a loop that is closed has nothing left to keep count of
                loop.call_soon_threadsafe(self._end, visit)

        future = self._pool.submit(work)
        future.add_done_callback(on_end)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                visit.left = True
                room.stuck += 1
                if room.stuck == self._each:
                    log.warning("%s: its %d threads are all blocked by functions without a caller", agent, self._each)
            raise

    def close(self) -> None:
        """Let the threads go; a function that still runs in one is not waited for."""
        pool, self._pool, self._rooms = self._pool, None, {}
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _end(self, visit: _Visit) -> None:
        visit.room.stuck -= visit.left
        visit.room.free.release()
        self._leave(visit.room)

    def _leave(self, room: _Room) -> None:
        room.guests -= 1
        if not room.guests and self._rooms.get(room.agent) is room:
            del self._rooms[room.agent]
