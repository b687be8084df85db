"""Politeness towards websites: how often and how many at once a site is visited, over all sessions of a process.

The defaults are those of a careful person; an interface may set others in its metadata, ``pace: {seconds: 2, at_once:
1}``. A site's own wishes take precedence: its ``Crawl-delay`` (read by ``robots``), and the ``Retry-After`` of a 429 or
503. Sites on this machine need no pace. It knows no browser.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from agent3.definitions import NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import RateLimited, SetupError
from agent3.jsonrpc import parse_retry_after
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.nlweb.browser.sandbox import is_loopback
from agent3.security.fair_slots import FairSlots

__all__ = ["FREE", "Pace", "Throttle", "site_of"]

log = logger("nlweb")

_MAX_SITES = 1_000
_LONGEST_BAN = 3_600.0
_BAN_PAGES = 20
"""A site that answers 429 without saying for how long is left alone for the time of so many pages."""
_FIELDS = {"seconds": float, "at_once": int, "patience": float}


@dataclass(frozen=True, slots=True)
class Pace:
    """How a site is visited."""

    seconds: float = 0.5
    """Between two pages."""
    at_once: int = 4
    """Visits at the same time."""
    patience: float = 20.0
    """The longest that a page waits for its turn."""

    @classmethod
    def of(cls, interface: NLWebInterface) -> Pace:
        """The pace of an interface; SetupError if its metadata cannot be read."""
        given = interface.metadata.get("pace")
        if given is None:
            return FREE if is_loopback(urlsplit(interface.base_url).hostname or "") else cls()
        if isinstance(given, Mapping) and set(given) <= set(_FIELDS):
            with suppress(TypeError, ValueError):
                values = {key: _FIELDS[key](value) for key, value in given.items()}
                if all(value >= 0 for value in values.values()) and values.get("at_once", 1) >= 1:
                    return cls(**values)
        raise SetupError(
            f"The pace of {interface.name!r} cannot be read: {given!r}. Write seconds (between two pages), at_once (1 "
            "or more) and patience, each a number."
        )


FREE = Pace(0.0, 1_000)
"""No pace, for sites on this machine."""


def site_of(url: str) -> str:
    """The site of an address: its scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


@dataclass(slots=True)
class _Site:
    slots: FairSlots
    at_once: int
    seconds: float
    next_page: float = 0.0
    """The earliest moment for another page."""
    visits: int = 0
    """Visits that run or wait."""


class Throttle:
    """The pace of all sites. It belongs to the event loop it is used in."""

    def __init__(self, *, env: Env = REAL, metrics: Metrics = METRICS):
        self._env = env
        self._metrics = metrics
        self._sites: OrderedDict[str, _Site] = OrderedDict()

    @asynccontextmanager
    async def visit(self, site: str, pace: Pace, owner: str = "") -> AsyncIterator[None]:
        """Hold one of the site's slots while the block runs. Owners take turns, as in ``FairSlots``.

        Unavailable if too many wait already.
        """
        found = self._site(site, pace)
        found.visits += 1
        try:
            await found.slots.acquire(owner)
            try:
                yield
            finally:
                found.slots.release()
        finally:
            found.visits -= 1

    async def wait_for_turn(self, site: str, pace: Pace) -> float:
        """Wait until the next page of a site may be requested; the seconds waited.

        RateLimited, with the seconds to wait, if they exceed the pace's patience.
        """
        found = self._site(site, pace)
        now = self._env.monotonic()
        wait = max(0.0, found.next_page - now)
        if wait > pace.patience:
            limited = RateLimited(f"{site} asked us to wait; try again in {wait:.0f} s.", retry_after=wait)
            limited.sent = False
            raise limited
        # Reserved before the wait, so that those who come meanwhile queue up behind.
        found.next_page = max(now, found.next_page) + pace.seconds
        if wait:
            self._metrics.nlweb_throttled.inc(("pace",))
            await asyncio.sleep(wait)
        return wait

    def note_page(self, site: str, pace: Pace) -> None:
        """A page came, also by a click or by the page itself: the next one keeps its distance from it."""
        found = self._site(site, pace)
        found.next_page = max(found.next_page, self._env.monotonic() + pace.seconds)

    def note_overload(self, site: str, status: int, header: str | None) -> None:
        """A site answered with 429 or 503: leave it alone for as long as its ``Retry-After`` says."""
        found = self._sites.get(site)
        if found is None or status not in (429, 503) or (status == 503 and header is None):
            return
        asked = parse_retry_after(header, self._env.now(), _LONGEST_BAN)
        seconds = min(_BAN_PAGES * found.seconds, _LONGEST_BAN) if asked is None else asked
        found.next_page = max(found.next_page, self._env.monotonic() + seconds)
        self._metrics.nlweb_throttled.inc(("site",))
        log.warning("%s answered %d and is not called for %.0f s", site, status, seconds)

    def _site(self, site: str, pace: Pace) -> _Site:
        found = self._sites.get(site)
        # Another at_once takes effect once nobody holds or awaits one of the old slots.
        if found is None or (found.at_once != pace.at_once and not found.visits):
            next_page = found.next_page if found else 0.0
            found = self._sites[site] = _Site(FairSlots(pace.at_once), pace.at_once, pace.seconds, next_page)
        self._sites.move_to_end(site)
        if len(self._sites) > _MAX_SITES:
            idle = next((name for name, known in self._sites.items() if not known.visits), None)
            if idle is not None:
                del self._sites[idle]
        return found
