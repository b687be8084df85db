"""Being a polite guest: how often and how many at once a website is visited, over all sessions of a process.

The defaults are those of a careful person; an interface may ask for more room in its metadata, ``pace: {seconds: 2,
at_once: 1}``. A site's own wishes count for more: its ``Crawl-delay``, and the ``Retry-After`` of an answer 429 or 503.
This machine's own sites need no pace. It knows no browser.
"""

from __future__ import annotations

import asyncio
import copy
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.robotparser import RobotFileParser

from agent3.definitions import NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import SetupError, Unavailable
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.nlweb.browser.fair_slots import Places
from agent3.protocols.nlweb.visit import retry_after as retrying

__all__ = ["FREE", "Pace", "Throttle", "crawl_delay", "site_of"]

log = logger("nlweb")

NAME = "agent3"
"""What a robots.txt may call us."""
_MOST_SITES = 1_000
_LONGEST_DELAY = 60.0
"""What a robots.txt may ask for between two pages; one that wants more wants nobody."""
_LONGEST_BAN = 3_600.0
_BAN = 20
"""For how many pages' time a site is left alone that says it is too much and not for how long."""
_REREAD = 86_400.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How a site is visited."""

    seconds: float = 0.5
    """Between two pages."""
    at_once: int = 4
    """Sequences of steps at the same time."""
    patience: float = 20.0
    """The longest that a page waits for its turn."""

    @classmethod
    def of(cls, interface: NLWebInterface) -> Pace:
        """What the interface asks for; SetupError for what cannot be read."""
        asked = interface.metadata.get("pace")
        if asked is None:
            return FREE if _is_here(interface.base_url) else cls()
        return cls(**_numbers(interface.name, asked))


FREE = Pace(0.0, 1_000)
"""No pace: for this machine's own sites."""


def _numbers(name: str, asked: Any) -> dict[str, Any]:
    kinds = {"seconds": float, "at_once": int, "patience": float}
    if isinstance(asked, Mapping) and set(asked) <= set(kinds):
        with suppress(TypeError, ValueError):
            found = {key: kinds[key](value) for key, value in asked.items()}
            if all(value >= 0 for value in found.values()) and found.get("at_once", 1) >= 1:
                return found
    raise SetupError(
        f"The pace of {name!r} cannot be read: {asked!r}. Write seconds (between two pages), at_once (1 or more) and "
        "patience, each a number."
    )


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def site_of(url: str) -> str:
    """What a site is known by: its scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def crawl_delay(robots: str) -> float:
    """The seconds between two pages that a robots.txt asks of us; 0 if it asks for none."""
    rules = RobotFileParser()
    rules.parse(robots.splitlines())
    delay = rules.crawl_delay(NAME)
    return min(float(delay), _LONGEST_DELAY) if delay is not None else 0.0


@dataclass(slots=True)
class _Site:
    places: Places
    at_once: int
    seconds: float
    next: float = 0.0
    delay: float = 0.0
    asked: float | None = None
    """When its robots.txt was read."""
    inside: int = field(default=0)


Asking = Callable[[bool], None]
"""Hears whether a site is being waited for from now on: it was asked for a page, and none came yet."""


class Throttle:
    """The pace of all sites. It belongs to the event loop it is used in."""

    def __init__(self, *, env: Env = REAL, metrics: Metrics = METRICS):
        self._env = env
        self._metrics = metrics
        self._sites: OrderedDict[str, _Site] = OrderedDict()
        self.asking: Asking | None = None

    def told_to(self, asking: Asking) -> Throttle:
        """The same throttle of the same sites, for one visit that wants to know whether it waits for its site."""
        same = copy.copy(self)
        same.asking = asking
        return same

    @asynccontextmanager
    async def visit(self, site: str, pace: Pace, owner: str = "") -> AsyncIterator[None]:
        """A place among those who work on a site at the same time. Owners take turns, as in ``Places``.

        Unavailable if too many wait already.
        """
        found = self._site(site, pace)
        found.inside += 1
        try:
            await found.places.enter(owner)
            try:
                yield
            finally:
                found.places.leave()
        finally:
            found.inside -= 1

    async def turn(self, site: str, pace: Pace) -> float:
        """Wait until the next page of a site may be asked for, and give the seconds that this took.

        Unavailable, with the seconds to wait, if that is longer than the pace's patience.
        """
        found = self._site(site, pace)
        self._tell(False)
        now = self._env.monotonic()
        wait = max(0.0, found.next - now)
        if wait > pace.patience:
            raise Unavailable(
                f"{site} asked to be left alone for another {wait:.0f} s. Come back then.", retry_after=wait
            )
        found.next = max(now, found.next) + max(pace.seconds, found.delay)
        if wait:
            self._metrics.nlweb_throttled.inc(("pace",))
            await asyncio.sleep(wait)
        self._tell(True)
        return wait

    def came(self, site: str, pace: Pace) -> None:
        """A page came, by a click or by the page itself: the next that we ask for keeps its distance."""
        self._tell(False)
        found = self._site(site, pace)
        found.next = max(found.next, self._env.monotonic() + max(pace.seconds, found.delay))

    def told(self, site: str, status: int, retry_after: str | None) -> None:
        """A site answered that it is too much: leave it alone for as long as it says."""
        found = self._sites.get(site)
        if found is None or status not in (429, 503) or (status == 503 and retry_after is None):
            return
        asked = retrying.retry_after(retry_after, self._env.now())
        seconds = min(_BAN * found.seconds if asked is None else asked, _LONGEST_BAN)
        found.next = max(found.next, self._env.monotonic() + seconds)
        self._metrics.nlweb_throttled.inc(("site",))
        log.warning("%s answered %d and is left alone for %.0f s", site, status, seconds)

    def wants_robots(self, site: str, pace: Pace) -> bool:
        """Whether its robots.txt is to be read, at this page or never today."""
        found = self._site(site, pace)
        now = self._env.monotonic()
        if pace.seconds == 0 or (found.asked is not None and now - found.asked < _REREAD):
            return False
        found.asked = now
        return True

    def robots(self, site: str, text: str) -> None:
        """What its robots.txt says."""
        if (found := self._sites.get(site)) is not None:
            found.delay = crawl_delay(text)

    def _tell(self, asking: bool) -> None:
        if self.asking is not None:
            self.asking(asking)

    def _site(self, site: str, pace: Pace) -> _Site:
        found = self._sites.get(site)
        if found is None or (found.at_once != pace.at_once and not found.inside):
            kept = found or _Site(Places(1), 0, 0.0)
            found = _Site(Places(pace.at_once), pace.at_once, pace.seconds, kept.next, kept.delay, kept.asked)
            self._sites[site] = found
        self._sites.move_to_end(site)
        if len(self._sites) > _MOST_SITES:
            self._forget_one()
        return found

    def _forget_one(self) -> None:
        quiet = next((name for name, one in self._sites.items() if not one.inside), None)
        if quiet is not None:
            del self._sites[quiet]
