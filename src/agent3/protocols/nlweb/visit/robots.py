"""robots.txt (RFC 9309): what a site asks of programs, and who keeps to it.

A robots.txt addresses crawlers, programs that find their own way. Learning a page is such work, and keeps to it. What a
person or agent requests by name is an errand, as in any browser: it is paced (``throttle``) but not refused, unless the
operator sets ``web.robots = "obey"``. The file is read through the outbound gate, at most half a megabyte, once a day.
Parsing and matching are Protego's. It knows no browser.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urljoin, urlsplit

from agent3.definitions import NLWebInterface
from agent3.env import REAL, Env
from agent3.errors import Agent3Error, MissingExtra, SecurityError, Unavailable
from agent3.protocols.nlweb.browser.sandbox import Guard, NLWebSandbox, Overrides, Resolver, host_and_port
from agent3.protocols.nlweb.visit.throttle import FREE, Pace, site_of
from agent3.security.outbound import Gate, Policy

if TYPE_CHECKING:
    from protego import Protego

__all__ = ["Mode", "Robots", "RobotsSandbox", "Rules"]

Mode = Literal["obey", "pace", "ignore"]

NAME = "agent3"
"""Our product token: what a robots.txt calls us."""
_MAX_BYTES = 512_000
"""RFC 9309, 2.5: at least 500 KiB; the rest of a longer file is ignored."""
_LONGEST_DELAY = 60.0
"""The longest Crawl-delay that is respected; a site that asks for more wants no visits at all."""
_FETCH_SECONDS = 5.0
_MAX_REDIRECTS = 5
_DAY = 86_400.0
_RETRY_SECONDS = 60.0
"""A file that could not be read is requested again after so long."""
_MAX_SITES = 1_000
_USER_AGENT = re.compile(r"[\s\ufeff]*user[-\s]*agent[\s:]+([^\s/#]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rules:
    """The robots.txt of one site; without a parser everything is allowed. ``trouble`` is why it could not be read."""

    parser: Protego | None = None
    trouble: str = ""

    @classmethod
    def parse(cls, text: str) -> Rules:
        """Keep the groups that name us, and those for everybody; MissingExtra without Protego."""
        try:
            from protego import Protego
        except ImportError:
            raise MissingExtra("robots.txt", "browser") from None

        # Protego takes every group name that is a prefix of ours for us, and does not drop a version from a name. With
        # all other names made one it also stays linear for a file of thousands of names followed by thousands of rules.
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if match := _USER_AGENT.match(line):
                name = match[1].lower()
                lines[number] = f"User-agent: {name if name in (NAME, '*') else 'other'}"
        return cls(Protego.parse("\n".join(lines)))

    @property
    def crawl_delay(self) -> float:
        """The seconds between two pages that the site asks for; 0 if none."""
        delay = self.parser.crawl_delay(NAME) if self.parser else None
        return min(delay or 0.0, _LONGEST_DELAY)

    def allows(self, url: str) -> bool:
        """Whether the site lets us open the address: the longest matching rule decides, and ``allow`` wins a tie."""
        return self.parser is None or self.parser.can_fetch(url, NAME)

    def check(self, url: str) -> None:
        """SecurityError if the page is disallowed, Unavailable while the rules are unknown."""
        site = site_of(url)
        if self.trouble:
            raise Unavailable(
                f"The robots.txt of {site} could not be read, so it is unknown what it allows: "
                f"{self.trouble.rstrip('.')}. Try again later.",
                retry_after=_RETRY_SECONDS,
            )
        if not self.allows(url):
            raise SecurityError(
                f"The robots.txt of {site} asks programs not to open {urlsplit(url).path or '/'}. If the "
                "site is yours or allows it, change web.robots (AGENT3_WEB_ROBOTS): ignore does not read "
                "the file, pace allows requested actions.",
                data={"reason": "robots.txt"},
            )


class Robots:
    """The robots.txt of all sites. It belongs to the event loop it is used in.

    A site without one (any 4xx but 429) allows everything. While it cannot be read (429, 5xx, no answer) nothing is
    known, and callers that keep to it must wait: it is requested again after a minute.
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
        self._known: OrderedDict[str, tuple[Rules, float]] = OrderedDict()

    async def sandbox(self, interface: NLWebInterface) -> NLWebSandbox:
        """The sandbox for a visit; in mode ``obey`` it also keeps to the site's rules."""
        if self.mode != "obey" or Pace.of(interface) == FREE:
            return NLWebSandbox.of(interface)
        sandbox = RobotsSandbox.of(interface)
        sandbox.obey(site_of(interface.base_url), await self._load(interface))
        return sandbox

    async def crawl_delay(self, interface: NLWebInterface) -> float:
        """The seconds between two pages that the site asks for. In mode ``ignore`` it is not asked."""
        return 0.0 if self.mode == "ignore" else (await self._load(interface)).crawl_delay

    async def require(self, interface: NLWebInterface, url: str) -> None:
        """For a program that finds its own way: SecurityError if disallowed, Unavailable while unknown.

        Sites on this machine are not asked, and none is in mode ``ignore``.
        """
        if self.mode != "ignore" and Pace.of(interface) != FREE:
            (await self._load(interface)).check(url)

    async def _load(self, interface: NLWebInterface) -> Rules:
        site, now = site_of(interface.base_url), self._env.monotonic()
        rules, expires = self._known.get(site, (Rules(), -math.inf))
        if expires < now:
            rules, expires = Rules(), now + _DAY
            try:
                status, text = await self._fetch(interface, f"{site}/robots.txt")
                if status == 429 or status >= 500:
                    rules, expires = Rules(trouble=f"it answered with status {status}"), now + _RETRY_SECONDS
                elif 200 <= status < 300:
                    rules = Rules.parse(text)
            except SecurityError:
                pass  # redirected to where we may not go: it counts as absent (RFC 9309, 2.3.1.2)
            except MissingExtra:
                raise
            except Agent3Error as error:
                rules, expires = Rules(trouble=error.message), now + _RETRY_SECONDS
            self._known[site] = rules, expires
        self._known.move_to_end(site)
        while len(self._known) > _MAX_SITES:
            self._known.popitem(last=False)
        return rules

    async def _fetch(self, interface: NLWebInterface, url: str) -> tuple[int, str]:
        """Status and text of a robots.txt, after redirects within what the interface may reach."""
        sandbox = NLWebSandbox.of(interface)
        guard = Guard(sandbox, base_url=interface.base_url, resolver=self._resolver, overrides=self._overrides)
        for _ in range(_MAX_REDIRECTS + 1):
            sandbox.require(url)
            host, port = host_and_port(url)
            if self._overrides.find(host, port) and url.startswith("https:"):
                return 404, ""  # only the browser was told to accept the certificate of such a host
            addresses = await guard.admit(host, port)
            if any(moved != port for _, moved in addresses):
                return 404, ""  # the gate cannot connect to another port than the one in the address

            async def resolve(_: str, __: int, found: tuple[str, ...] = tuple(ip for ip, _ in addresses)) -> list[str]:
                return list(found)

            # The guard has judged the addresses, and knows for which private ones the operator vouches.
            gate = Gate(Policy(allow_loopback=True, allow_private=True), resolver=resolve)
            headers = {"User-Agent": NAME, "Accept": "text/plain"}
            body = b""
            try:
                # Without a limit of the gate's own: a longer file is cut, not refused.
                async with gate.stream("GET", url, headers=headers, timeout=_FETCH_SECONDS, max_bytes=1 << 40) as reply:
                    async for chunk in reply:
                        body += chunk
                        if len(body) >= _MAX_BYTES:
                            break
                    status, location = reply.status, reply.headers.get("Location")
            finally:
                await gate.aclose()
            if not 300 <= status < 400 or not location:
                return status, body[:_MAX_BYTES].decode("utf-8", "replace")
            url = urljoin(url, location)
        return 404, ""


class RobotsSandbox(NLWebSandbox):
    """A sandbox whose steps open no page that the site's robots.txt disallows.

    It judges where a step goes by address. Where a click leads is the site's own doing.
    """

    _site = ""
    _rules = Rules()

    def obey(self, site: str, rules: Rules) -> None:
        """Keep to these rules on that site."""
        self._site, self._rules = site, rules

    def require(self, url: str) -> None:
        """SecurityError unless a page may go there, Unavailable while the site's rules are unknown."""
        super().require(url)
        if site_of(url) == self._site:
            self._rules.check(url)
