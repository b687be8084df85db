"""Browsers for many at once: a bounded number of places, given out fairly, in a browser that is replaced when worn.

A place is the right to have one context open. Whoever waits stands in the line of its owner, and the owners take turns,
so that one who wants a hundred does not keep out one who wants a single one. A worn browser gets no new contexts; the
sequences that run in it end in it. It knows nothing of websites.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from agent3.errors import SetupError, Unavailable
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.nlweb.browser.chromium import UNPROTECTED, Chrome, Wear, is_root
from agent3.protocols.nlweb.browser.fair_slots import Places

__all__ = ["Pool", "places_here"]

log = logger("nlweb")

_PER_CORE = 2
"""Contexts that keep one core busy; more only cost memory."""
_CONTEXT_BYTES = 128 * 1024 * 1024
_STARTS = 3


def places_here() -> int:
    """How many contexts this machine can keep busy, by its cores and the memory that is free now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_PER_CORE * cores, _free_bytes() // _CONTEXT_BYTES))


def _free_bytes() -> int:
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return 2**62  # a system that does not tell is not asked to hold back


class _Holder:
    """A browser with the number of those who work in it."""

    def __init__(self, chrome: Chrome):
        self.chrome = chrome
        self.users = 0


class Pool:
    """Gives out contexts' places in a browser that is started when the first is wanted.

    ``size`` is how many run at once. A browser that died, is old, has had many contexts, has grown large or slow is
    replaced before the next place is given out. It belongs to the event loop it is used in.
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        wear: Wear | None = None,
        make: Callable[[], Chrome] = Chrome,
        metrics: Metrics = METRICS,
    ):
        self.size = size or places_here()
        self.restarts = 0
        self._places = Places(self.size)
        self._wear = wear or Wear()
        self._make = make
        self._metrics = metrics
        self._holder: _Holder | None = None
        self._retired: set[_Holder] = set()
        self._changing = asyncio.Lock()
        self._closed = False
        self._warned = False

    @asynccontextmanager
    async def lease(self, owner: str) -> AsyncIterator[Chrome]:
        """A browser to open one context in, for as long as the block runs."""
        self._show("waiting", 1)
        try:
            await self._places.enter(owner)
        finally:
            self._show("waiting", -1)
        self._show("working", 1)
        try:
            holder = await self._held()
            try:
                yield holder.chrome
            finally:
                await self._let_go(holder)
        finally:
            self._show("working", -1)
            self._places.leave()

    async def aclose(self) -> None:
        """End every browser, also those in which somebody still works."""
        self._closed = True
        async with self._changing:
            holders = [*self._retired, *([self._holder] if self._holder else [])]
            self._retired.clear()
            self._holder = None
        await asyncio.gather(*(one.chrome.aclose() for one in holders))

    async def _held(self) -> _Holder:
        """The browser in service, replaced first where it is worn, with one more user."""
        async with self._changing:
            if self._closed:
                raise _closed()
            holder = self._holder
            reason = await holder.chrome.worn(self._wear) if holder is not None else None
            if holder is None or reason is not None:
                if holder is not None:
                    await self._retire(holder, reason or "")
                holder = self._holder = await self._started()
            holder.users += 1
            return holder

    async def _started(self) -> _Holder:
        for _ in range(_STARTS - 1):
            with suppress(SetupError, Unavailable):  # one that is killed as it starts looks like one that is none
                return await self._start()
        return await self._start()

    async def _start(self) -> _Holder:
        chrome = self._make()
        await chrome.start()
        if is_root() and not self._warned:
            self._warned = True
            log.warning("%s", UNPROTECTED)
        return _Holder(chrome)

    async def _retire(self, holder: _Holder, reason: str) -> None:
        log.info("the browser is replaced: %s", reason)
        self.restarts += 1
        self._metrics.nlweb_browser_restarts.inc()
        self._metrics.nlweb_browsers_ended.inc((reason,))
        self._holder = None
        if holder.users:
            self._retired.add(holder)
        else:
            await holder.chrome.aclose()

    async def _let_go(self, holder: _Holder) -> None:
        holder.users -= 1
        if holder in self._retired and not holder.users:
            self._retired.discard(holder)
            await asyncio.shield(holder.chrome.aclose())

    def _show(self, state: str, change: int) -> None:
        self._metrics.nlweb_sessions.inc((state,), change)


def _closed() -> Unavailable:
    over = Unavailable("The browsers are closed: the gateway stops. Try again later.")
    over.sent = False
    return over
