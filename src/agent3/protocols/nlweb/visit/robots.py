"""What a site asks of programs in its robots.txt (RFC 9309), and who listens to it.

A robots.txt speaks to crawlers: programs that find their own way. Learning a page is such work, and keeps to it. What a
person or agent asks for by name is an errand, as with any browser: it is paced (``throttle``) but not turned away,
unless the operator says so with ``web.robots = "obey"``. The file is read through the house's gate, at most half a
megabyte, once a day. It knows no browser.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote_to_bytes, urljoin, urlsplit

from agent3.definitions import NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, SecurityError, Unavailable
from agent3.protocols.nlweb.browser.sandbox import Guard, NLWebSandbox, Overrides, Resolver, place
from agent3.protocols.nlweb.visit.throttle import FREE, NAME, Pace, Throttle, site_of
from agent3.security.outbound import Gate, Policy

__all__ = ["Mode", "Polite", "Robots", "Rules", "read_rules"]

Mode = Literal["obey", "pace", "ignore"]

_MOST_BYTES = 512_000
"""RFC 9309, 2.5: at least 500 KiB; the rest of a longer one is not read."""
_SECONDS = 5.0
_MOST_REDIRECTS = 5
_AGE = 86_400.0
_SOON = 60.0
"""Seconds until one that could not be read is asked for again."""
_MOST_SITES = 1_000
_MOST_RULES = 5_000
_LINE = re.compile(r"^\s*([A-Za-z-]+)\s*:\s*([^#]*)")


@dataclass(frozen=True, slots=True)
class Rules:
    """What the group that speaks to us says; ``text`` is the whole file. Without rules everything is allowed."""

    paths: tuple[tuple[bool, str], ...] = ()
    text: str = ""

    def allows(self, url: str) -> bool:
        """Whether the address may be asked for: the longest rule that fits decides, and of two alike the kinder."""
        parts = urlsplit(url)
        asked = _plain(f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}")
        if asked == "/robots.txt":
            return True
        fitting = [(len(path), allowed) for allowed, path in self.paths if _fits(asked, path)]
        return max(fitting, default=(0, True))[1]


def read_rules(text: str) -> Rules:
    """Those of the groups that name us, else of the groups for everybody."""
    groups: dict[str, list[tuple[bool, str]]] = {}
    names: list[str] = []
    speaking = False
    for line in text.splitlines():
        found = _LINE.match(line.lstrip("\ufeff"))
        if found is None:
            continue
        key, value = found[1].lower(), found[2].strip()
        if key == "user-agent":
            names = [*(names if not speaking else ()), _token(value)]
            speaking = False
            groups.setdefault(names[-1], [])
        elif key in ("allow", "disallow"):
            speaking = True
            for name in names if value else ():
                groups[name].append((key == "allow", _plain(value)))
    return Rules(tuple(groups.get(NAME, groups.get("*", []))[:_MOST_RULES]), text)


def _token(value: str) -> str:
    """The name of a program without its version."""
    return value.partition("/")[0].strip().lower()


def _plain(path: str) -> str:
    """One spelling for all: what is not ASCII escaped, and what needs no escape plain."""
    return quote(unquote_to_bytes(path.replace("%2f", "%2F").replace("%2F", "%252F")), safe="/*$?&=;:@!'(),+%~")


def _fits(asked: str, path: str) -> bool:
    """Whether a path begins as a rule says, with ``*`` for anything and ``$`` for the end; in linear time."""
    ends = path.endswith("$")
    first, *rest = path.removesuffix("$").split("*")
    if not asked.startswith(first):
        return False
    at = len(first)
    for number, piece in enumerate(rest):
        if ends and number == len(rest) - 1:
            return len(asked) - len(piece) >= at and asked.endswith(piece)
        if (found := asked.find(piece, at)) < 0:
            return False
        at = found + len(piece)
    return not ends or at == len(asked)


@dataclass(frozen=True, slots=True)
class _Read:
    rules: Rules
    until: float
    trouble: str = ""
    """Why it could not be read."""


class Robots:
    """The robots.txt of all sites. It belongs to the event loop it is used in.

    A site without one (any answer 4xx but 429) allows everything. Where it cannot be read (429, 5xx, no answer)
    nothing is known, and who keeps to it waits: it is asked for again after a minute.
    """

    def __init__(
        self,
        mode: Mode = "pace",
        *,
        resolver: Resolver | None = None,
        overrides: Overrides | None = None,
        env: Env = REAL,
    ):
        self.mode = mode
        self._resolver = resolver
        self._overrides = overrides or Overrides.read()
        self._env = env
        self._known: OrderedDict[str, _Read] = OrderedDict()

    async def prepare(self, interface: NLWebInterface, throttle: Throttle) -> NLWebSandbox:
        """Before a visit: let the site's delay count, and give the sandbox that keeps to its rules if we do."""
        pace = Pace.of(interface)
        site = site_of(interface.base_url)
        wanted = throttle.wants_robots(site, pace)
        if self.mode == "ignore" or pace == FREE:
            return NLWebSandbox.of(interface)
        found = await self._read(interface)
        if wanted:
            throttle.robots(site, found.rules.text)
        if self.mode == "pace":
            return NLWebSandbox.of(interface)
        polite = Polite.of(interface)
        polite.keep_to(site, found.rules, found.trouble)
        return polite

    async def text(self, interface: NLWebInterface) -> str:
        """What the site's robots.txt says; empty where there is none, or it could not be read."""
        return (await self._read(interface)).rules.text

    async def require(self, interface: NLWebInterface, url: str) -> None:
        """For a program that finds its own way: SecurityError if the page is disallowed, Unavailable if nobody knows.

        Nothing is asked of this machine's own sites, and nothing in mode ``ignore``.
        """
        if self.mode == "ignore" or Pace.of(interface) == FREE:
            return
        found = await self._read(interface)
        _judge(url, found.rules, found.trouble)

    # Inside

    async def _read(self, interface: NLWebInterface) -> _Read:
        site = site_of(interface.base_url)
        known = self._known.get(site)
        if known is None or known.until < self._env.monotonic():
            known = await self._fetched(interface, site)
            self._known[site] = known
        self._known.move_to_end(site)
        while len(self._known) > _MOST_SITES:
            self._known.popitem(last=False)
        return known

    async def _fetched(self, interface: NLWebInterface, site: str) -> _Read:
        now = self._env.monotonic()
        try:
            status, text = await self._asked(interface, f"{site}/robots.txt")
        except SecurityError:  # a redirect to where we may not go: it has none for us (RFC 9309, 2.3.1.2)
            return _Read(Rules(), now + _AGE)
        except Agent3Error as wrong:
            return _Read(Rules(), now + _SOON, wrong.message)
        if status == 429 or status >= 500:
            return _Read(Rules(), now + _SOON, f"it answered with status {status}")
        return _Read(read_rules(text) if 200 <= status < 300 else Rules(), now + _AGE)

    async def _asked(self, interface: NLWebInterface, url: str) -> tuple[int, str]:
        """The status and text of a robots.txt, after redirects within what the interface may reach."""
        sandbox = NLWebSandbox.of(interface)
        guard = Guard(sandbox, base_url=interface.base_url, resolver=self._resolver, overrides=self._overrides)
        for _ in range(_MOST_REDIRECTS + 1):
            sandbox.require(url)
            host, port = place(url)
            if self._overrides.find(host, port) and url.startswith("https:"):
                return 404, ""  # given by hand, with a certificate that only the browser was told to believe
            addresses = await guard.admit(host, port)
            if any(at != port for _, at in addresses):
                return 404, ""  # likewise, and behind another port
            status, text, location = await _got(url, [address for address, _ in addresses])
            if not 300 <= status < 400 or not location:
                return status, text
            url = urljoin(url, location)
        return 404, ""


async def _got(url: str, addresses: Sequence[str]) -> tuple[int, str, str | None]:
    """One answer from judged addresses: as much of its text as counts, and where it sends us."""

    async def judged(_: str, __: int) -> list[str]:
        return list(addresses)

    # The guard has judged already, and knows which private addresses the operator vouches for. No redirect is followed.
    gate = Gate(Policy(allow_loopback=True, allow_private=True), resolver=judged)
    headers = {"User-Agent": NAME, "Accept": "text/plain"}
    kept = b""
    try:
        async with gate.stream("GET", url, headers=headers, timeout=_SECONDS, max_bytes=1 << 40) as answer:
            async for chunk in answer:
                kept += chunk
                if len(kept) >= _MOST_BYTES:
                    break
            return answer.status, kept[:_MOST_BYTES].decode("utf-8", "replace"), answer.headers.get("Location")
    finally:
        await gate.aclose()


class Polite(NLWebSandbox):
    """A sandbox in which a step goes to no page that the site's robots.txt disallows.

    Where a click leads is the site's own doing and not judged; where a step goes by address is.
    """

    _site = ""
    _rules = Rules()
    _trouble = ""

    def keep_to(self, site: str, rules: Rules, trouble: str = "") -> None:
        """Keep to these rules on that site; with ``trouble`` to none of its pages."""
        self._site, self._rules, self._trouble = site, rules, trouble

    def require(self, url: str) -> None:
        """SecurityError unless a page may go there, Unavailable while nobody knows."""
        super().require(url)
        if site_of(url) == self._site:
            _judge(url, self._rules, self._trouble)


def _judge(url: str, rules: Rules, trouble: str) -> None:
    site = site_of(url)
    if trouble:
        raise Unavailable(
            f"The robots.txt of {site} could not be read, so nobody knows what it allows: {trouble.rstrip('.')}. Try "
            "again later.",
            retry_after=_SOON,
        )
    if not rules.allows(url):
        raise SecurityError(
            f"The robots.txt of {site} asks programs not to open {urlsplit(url).path or '/'}. If the site is yours, or "
            "lets you, set web.robots (AGENT3_WEB_ROBOTS): ignore does not read it, and pace lets errands through.",
            data={"reason": "robots.txt"},
        )
