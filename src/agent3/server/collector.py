"""The garbage collector, kept from holding the event loop.

It looks at everything that lives, and nothing else runs meanwhile: with thousands of sessions that takes 0.2 s, and it
would look again whenever there is a quarter more. Here, what has survived a long look is frozen: the next one sees only
what came since. Frozen objects that refer to each other in a circle are never freed, so everything is looked at once
more when four times as much is frozen as after the last look at everything.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Collector", "collect_less"]

_YOUNG = 5_000
"""New objects after which the garbage collector looks at them; by default 700."""
_MIDDLE, _OLD = 10, 4
"""So many looks at young objects make one at those that survived some, and so many of these one at everything that is
not frozen: some 200,000 objects, or 20 ms.
"""
_OLDEST = 2
"""The generation that has everything which is not frozen."""
_LONG = 0.02
"""Seconds of CPU of a look after which what is left is frozen."""
_AGAIN = 4
"""How many times as many objects are frozen before all are looked at again."""


class Collector:
    """A callback of the garbage collector (``gc.callbacks``), which is ``collector`` here."""

    def __init__(self, collector: Any = gc, clock: Callable[[], float] = time.thread_time):
        self._collector = collector
        self._clock = clock
        self._looked = 0
        """How many objects were frozen after the last look at everything."""
        self._began = 0.0
        self._at_all = False

    def start(self) -> None:
        """Freeze what there is: what start-up made lives as long as the process."""
        self._collector.freeze()
        self._looked = self._collector.get_freeze_count()
        if self not in self._collector.callbacks:
            self._collector.callbacks.append(self)

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._began = self._clock()
            self._at_all = self._collector.get_freeze_count() > _AGAIN * self._looked
            if self._at_all:
                self._collector.unfreeze()
        elif self._at_all or self._clock() - self._began > _LONG:
            self._collector.freeze()
            if self._at_all:
                self._looked = self._collector.get_freeze_count()


_OF_PROCESS = Collector()


def collect_less() -> None:
    """Start that of this process, and have new objects looked at when there are more than at any moment of usual work:
    what a call makes is mostly gone at its end.
    """
    _OF_PROCESS.start()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
