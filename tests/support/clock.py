"""Clocks of loops that the test holds, so that no time limit is a race with the machine.

``run_timeless`` is for code that waits for nothing but timers and other tasks: when all wait for timers, the clock
jumps to the next one. What comes from a thread or a socket would be overtaken; there a test gives a limit that no
machine reaches, waits for the event that it is about, and then says ``advance_loop``.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["advance_loop", "run_timeless"]

T = TypeVar("T")
_MOST = 1_000_000.0
"""Seconds of the clock after which a story is taken for one that never ends."""


class _Selector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if ready := super().select(0):
            return ready
        if timeout is None or self.now > _MOST:
            raise RuntimeError("everything waits, and for no timer: the story never ends")
        self.now += max(0.0, timeout)
        return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def advance_loop(seconds: float) -> None:
    """Set the clock of the running loop ahead: every timer of the next ``seconds`` rings now, bounds of tests too."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


def run_timeless(story: Coroutine[Any, Any, T]) -> T:
    """Tell a story in such a loop."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(story)
