"""One browser for many visits: a bounded number of contexts, shared fairly, in a browser that is replaced when worn.

A lease is the right to have one context open. Leases are granted through ``FairSlots``, so that an owner who wants a
hundred does not keep out one who wants a single one. A worn browser gets no new contexts, and the visits that run in it
finish in it. It knows nothing of websites.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agent3.errors import SetupError, Unavailable
from agent3.memory import find_free_memory
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.nlweb.browser.chromium import UNPROTECTED, Chrome, Wear, is_root
from agent3.security.fair_slots import FairSlots

__all__ = ["Pool", "default_size"]

log = logger("nlweb")

_PER_CORE = 2
"""Contexts that keep one core busy; more only cost memory."""
_CONTEXT_BYTES = 128 * 1024 * 1024
_START_ATTEMPTS = 3


def default_size() -> int:
    """How many contexts this machine can run at once, by its cores and the memory that is free now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = find_free_memory()
    return max(1, min(_PER_CORE * cores, _PER_CORE * cores if free is None else free // _CONTEXT_BYTES))


class _SharedBrowser:
    """A browser with the number of leases in it."""

    def __init__(self, chrome: Chrome):
        self.chrome = chrome
        self.leases = 0


class Pool:
    """Leases contexts in a browser that is started with the first lease.

    ``size`` contexts run at once. A browser that died, is old, has had many contexts, has grown large or slow is
    replaced before the next lease. It belongs to the event loop it is used in.
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        wear: Wear | None = None,
        make: Callable[[], Chrome] = Chrome,
        metrics: Metrics = METRICS,
    ):
        self.size = size or default_size()
        self.restarts = 0
        self.slots = FairSlots(self.size)
        self.wear = wear or Wear()
        self._make = make
        self._metrics = metrics
        self._current: _SharedBrowser | None = None
        self._retired: set[_SharedBrowser] = set()
        self._changing = asyncio.Lock()
        self._closed = False
        self._warned = False

    @property
    def chrome(self) -> Chrome | None:
        """The browser that the next lease would get, unless it is worn; None before the first."""
        return self._current.chrome if self._current else None

    @asynccontextmanager
    async def lease(self, owner: str) -> AsyncIterator[Chrome]:
        """A browser in which one context may be open for as long as the block runs."""
        sessions = self._metrics.nlweb_sessions
        sessions.inc(("waiting",), 1)
        try:
            await self.slots.acquire(owner)
        finally:
            sessions.inc(("waiting",), -1)
        sessions.inc(("working",), 1)
        try:
            shared = await self._acquire()
            try:
                yield shared.chrome
            finally:
                shared.leases -= 1
                if shared in self._retired and not shared.leases:
                    self._retired.discard(shared)
                    # Shielded: the lease may end because its visit is cancelled, and nobody else would close it.
                    await asyncio.shield(shared.chrome.aclose())
        finally:
            sessions.inc(("working",), -1)
            self.slots.release()

    async def aclose(self) -> None:
        """Close every browser, including those with leases."""
        self._closed = True
        async with self._changing:
            browsers = [*self._retired, *([self._current] if self._current else [])]
            self._retired.clear()
            self._current = None
        await asyncio.gather(*(shared.chrome.aclose() for shared in browsers))

    async def _acquire(self) -> _SharedBrowser:
        """The current browser with one more lease; a worn one is retired and replaced first."""
        async with self._changing:
            if self._closed:
                error = Unavailable("The browsers are closed: the gateway is stopping. Try again later.")
                error.sent = False
                raise error
            current = self._current
            if current is not None and (reason := await current.chrome.find_wear(self.wear)) is not None:
                log.info("replacing the browser: %s", reason)
                self.restarts += 1
                self._metrics.nlweb_browser_restarts.inc()
                self._metrics.nlweb_browsers_ended.inc((reason,))
                self._current = None
                if current.leases:
                    self._retired.add(current)
                else:
                    await current.chrome.aclose()
                current = None
            if current is None:
                current = self._current = _SharedBrowser(await self._start_browser())
            current.leases += 1
            return current

    async def _start_browser(self) -> Chrome:
        if is_root() and not self._warned:
            self._warned = True
            log.warning("%s", UNPROTECTED)
        for attempt in range(1, _START_ATTEMPTS + 1):
            chrome = self._make()
            try:
                await chrome.start()
            except (SetupError, Unavailable):
                # A browser that is killed while it starts looks like one that cannot run at all: try again.
                if attempt == _START_ATTEMPTS:
                    raise
            else:
                return chrome
        raise AssertionError("unreachable: the last attempt returns or raises")
