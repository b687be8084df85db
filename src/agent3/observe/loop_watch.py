"""A watch over the event loop: whatever holds it is counted, timed and logged, with the place in the code.

Nothing that grows with a stranger's input may run in the loop: while it does, nobody else is answered. A task of the
loop notes how late it wakes. A thread looks meanwhile where the loop is, so that the log can name the place. Both cost
some microseconds, a few times a second. Where the loop did not run because the machine had no time for it, or another
thread worked, that is told apart: ``work`` is what the loop did itself, ``starved`` that it did nothing.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable

from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics

__all__ = ["HELD_SECONDS", "TICK_SECONDS", "LoopWatch"]

log = logger("loop")

HELD_SECONDS = 0.1
"""How long the loop may be held without being counted."""
TICK_SECONDS = 0.05
_IDLE_TICK_SECONDS = 0.1
"""The same while there is nothing to do: each time wakes a process that would sleep."""
_LOG_PAUSE = 10.0
"""Seconds between two lines about it; in between it is only counted."""
_FRAMES = 6


class LoopWatch:
    """Watches the loop that ``run`` is awaited in.

    ``on_tick`` is told, ten to twenty times a second, how late it is, and says whether the loop is busy.
    """

    def __init__(self, metrics: Metrics, on_tick: Callable[[float], bool] = lambda late: True):
        self._metrics = metrics
        self._on_tick = on_tick
        self.longest = 0.0
        """Seconds that the loop worked without a pause, at most."""
        self._ticked = 0.0
        self._pause = TICK_SECONDS
        self._place = ""
        self._logged = float("-inf")
        self._unlogged = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        loop_thread, over = threading.get_ident(), threading.Event()
        self._ticked = time.monotonic()
        spy = threading.Thread(target=self._look, args=(loop_thread, over), name="agent3-loop-watch", daemon=True)
        spy.start()
        try:
            while True:
                worked = time.thread_time()
                await asyncio.sleep(self._pause)
                now = time.monotonic()
                late = max(0.0, now - self._ticked - self._pause)
                self._ticked = now
                if late > HELD_SECONDS:
                    self._note(late, time.thread_time() - worked)
                self._pause = TICK_SECONDS if self._on_tick(late) else _IDLE_TICK_SECONDS
        finally:
            over.set()

    def _note(self, late: float, worked: float) -> None:
        cause = "work" if worked > HELD_SECONDS else "starved"
        self.longest = max(self.longest, worked)
        self._metrics.loop_held.observe((cause,), late)
        place, self._place = self._place, ""
        if cause == "starved":
            return
        now = time.monotonic()
        if now - self._logged < _LOG_PAUSE:
            self._unlogged += 1
            return
        more = f"; {self._unlogged} more since the last line" if self._unlogged else ""
        self._logged, self._unlogged = now, 0
        log.warning("the event loop was blocked for %.2f s%s%s", late, f", in {place}" if place else "", more)

    def _look(self, loop_thread: int, over: threading.Event) -> None:
        """In a thread of its own: where the loop is, once it has been held for long."""
        while not over.wait(HELD_SECONDS):
            if self._place or time.monotonic() - self._ticked < HELD_SECONDS + self._pause:
                continue
            frame = sys._current_frames().get(loop_thread)  # noqa: SLF001 - documented, for debuggers
            if frame is not None:
                # The innermost functions of a stack, the outer ones first. No values: they may be secret.
                found = traceback.extract_stack(frame, limit=_FRAMES * 3)
                names = [f"{one.filename.rpartition('/')[2]}:{one.lineno} {one.name}" for one in found]
                self._place = " > ".join(names[-_FRAMES:])
