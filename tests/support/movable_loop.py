"""An event loop whose clock a test can move: what waits for minutes is over at once, however slow the machine is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

__all__ = ["MovableLoop", "advance", "run_movable"]

_LONGEST = 240.0
"""Seconds after which a story is ended; by the wall clock, since that of the loop is moved."""


class MovableLoop(asyncio.SelectorEventLoop):
    """The usual loop, with ``ahead`` seconds added to its clock."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def advance(seconds: float) -> None:
    """Move the clock of the running loop; timers that are due by then fire in its next round."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovableLoop)
    loop.ahead += seconds


def run_movable(story: Coroutine[Any, Any, None]) -> None:
    """Run a story on such a loop."""

    async def bounded() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(story)
        bound = threading.Timer(_LONGEST, lambda: loop.call_soon_threadsafe(task.cancel, "the story took too long"))
        bound.start()
        try:
            await task
        finally:
            bound.cancel()

    with asyncio.Runner(loop_factory=MovableLoop) as runner:
        runner.run(bounded())
