"""What a website's interface may reach: the rules on addresses, and the guard that applies them to every connection.

``NLWebSandbox`` judges an address before a navigation; ``Guard`` judges what the browser really connects to, by name
and by resolved address, on behalf of the proxy. The guard is the boundary: a browser reads addresses in more ways than
any check in Python foresees. Neither knows a browser.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from agent3.definitions import ActionType, NLWebAction, NLWebInterface
from agent3.errors import SecurityError, SetupError, Unavailable
from agent3.observe.metrics import METRICS
from agent3.security.outbound import Policy, judge, parse_url

__all__ = ["Guard", "NLWebSandbox", "Overrides", "Resolver", "Rule", "host_and_port", "is_loopback", "resolve"]

Address = tuple[str, int]
Resolver = Callable[[str, int], Awaitable[Sequence[Address]]]
"""From a host and port to the addresses and ports to connect to."""

_LONGEST_URL = 8_192
_WEB_PORTS = frozenset({80, 443})
_SHOWN = 200
"""Characters of an address that an error shows."""
_WEB = Policy(setting="sandbox")
_VOUCHED = Policy(allow_loopback=True, allow_private=True)
"""For addresses given by the operator. Metadata services and reserved ranges stay closed even so."""


class Executor(Protocol):
    """What a sandbox needs of an executor."""

    def _execute_single_action(self, action: NLWebAction) -> Any: ...


def host_and_port(url: str) -> Address:
    """The host and port of a web address, normalised; SecurityError if two parsers could disagree about them."""
    if len(url) > _LONGEST_URL:
        raise SecurityError(f"The URL is longer than {_LONGEST_URL} characters")
    target = parse_url(url, _WEB)
    return target.host or "", target.port or 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A host that may be reached: on the port it names, or on 80 and 443."""

    host: str
    port: int | None = None
    subdomains: bool = False

    @classmethod
    def parse(cls, text: str, *, subdomains: bool = False) -> Rule:
        """From ``airline.com``, ``airline.com:8443``, ``[::1]:8080`` or a whole address."""
        url = text if "://" in text else f"https://{text}"
        try:
            host, port = host_and_port(url)
        except SecurityError as error:
            raise SetupError(
                f"{text!r} cannot be an allowed host: {error}. Write it as airline.com or airline.com:8443."
            ) from None
        return cls(host, port if urlsplit(url).port else None, subdomains)

    def covers(self, host: str, port: int) -> bool:
        """Whether that host and port match. A subdomain begins at a dot: evilairline.com is not part of airline.com."""
        if self.port != port and (self.port is not None or port not in _WEB_PORTS):
            return False
        return host == self.host or (
            self.subdomains and host.endswith(f".{self.host}") and _parse_literal(host) is None
        )

    def includes(self, other: Rule) -> bool:
        """Whether this rule covers everything that another one does."""
        if other.subdomains and not self.subdomains:
            return False
        if other.port is None:  # 80 and 443
            return self.port is None and self.covers(other.host, 443)
        return self.covers(other.host, other.port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{'*.' if self.subdomains else ''}{host}{port}"


class NLWebSandbox:
    """An allow-list of domains, with their subdomains at a label boundary.

    Given to an executor it decides what the pages may reach; without one an executor allows exactly the hosts of its
    interface. An entry without a port means the ports 80 and 443.
    """

    ALLOWED_DOMAINS: Sequence[str] = ["airline.com", "hotel.com", "booking.com"]

    def __init__(self, allowed_domains: Iterable[str] | None = None, *, subdomains: bool = True):
        if allowed_domains is not None:
            self.ALLOWED_DOMAINS = list(allowed_domains)
        self.subdomains = subdomains

    @classmethod
    def of(cls, interface: NLWebInterface) -> Self:
        """The sandbox of an interface: the host of its base_url and those in its allowed_hosts."""
        return cls([interface.base_url, *interface.allowed_hosts], subdomains=interface.allow_subdomains)

    def validate_url(self, url: str) -> bool:
        return self.objection(url) is None

    def objection(self, url: str) -> str | None:
        """Why a page may not go there, or None."""
        try:
            host, port = host_and_port(url)
        except SecurityError as error:
            return error.message
        return None if self.allows(host, port) else f"{host}:{port} is not an allowed host"

    def allows(self, host: str, port: int) -> bool:
        """Whether that host and port are on the list. The list is read each time, so that it may be changed."""
        rules = (Rule.parse(domain, subdomains=self.subdomains) for domain in self.ALLOWED_DOMAINS)
        return any(rule.covers(host, port) for rule in rules)

    def require(self, url: str) -> None:
        """SecurityError unless a page may go there."""
        if reason := self.objection(url):
            METRICS.outbound_blocked.inc(("browser_navigation",))
            raise SecurityError(f"Navigation to {url[:_SHOWN]} blocked", data={"reason": reason})

    def execute_with_sandbox(self, executor: Executor, action: NLWebAction) -> Any:
        """Run one step if this sandbox allows it; SecurityError if it would navigate elsewhere.

        What the page then connects to is judged by the executor's own sandbox, connection by connection. (Headers such
        as Content-Security-Policy, which the requirements set here, only bind if a *server* sends them.)
        """
        if action.action_type is ActionType.NAVIGATE:
            self.require(action.value or "")
        return executor._execute_single_action(action)  # noqa: SLF001 - the documented name


@dataclass(frozen=True, slots=True)
class Overrides:
    """Hosts whose addresses are given by hand, for tests and intranets, and keys that may sign for them.

    ``AGENT3_HOSTS="airline.com=127.0.0.1:8443,intra.example:80=10.0.0.7"`` lists them: a host with or without its
    port, then the address, whose port defaults to the requested one. The operator vouches for these addresses, so
    private ones are allowed. ``AGENT3_HOST_KEYS`` holds base64 SHA-256 digests of public keys, as in HTTP pinning.

    Of the ways to make Chromium accept a self-made certificate this is the narrowest. ``ignore_https_errors`` turns
    checking off for every host of the page, and a certificate in the user's own store outlives the run. A digest only
    vouches for the owner of that very key; every other certificate is checked as always.
    """

    hosts: Mapping[str, tuple[str, int | None]]
    keys: tuple[str, ...] = ()

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Overrides:
        """From the environment; SetupError names an entry that cannot be parsed."""
        hosts: dict[str, tuple[str, int | None]] = {}
        for entry in _split(environ.get("AGENT3_HOSTS", "")):
            host, _, address = entry.partition("=")
            try:
                parts = urlsplit(f"//{address.strip()}")
                hosts[host.strip().lower()] = str(ipaddress.ip_address(parts.hostname or "")), parts.port
            except ValueError:
                raise SetupError(
                    f"AGENT3_HOSTS: {entry!r} cannot be read. Write host=address or host=address:port, "
                    "such as airline.com=127.0.0.1:8443, with an IP address on the right."
                ) from None
        return cls(hosts, tuple(_split(environ.get("AGENT3_HOST_KEYS", ""))))

    def find(self, host: str, port: int) -> Address | None:
        """The address given for a host, or None."""
        found = self.hosts.get(f"{host}:{port}") or self.hosts.get(host)
        return found and (found[0], found[1] or port)


async def resolve(host: str, port: int) -> Sequence[Address]:
    """The addresses of a host by the system's resolver; Unavailable if it has none."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"{host} could not be resolved: {(error.strerror or str(error)).lower()}") from None
    return list(dict.fromkeys((str(sockaddr[0]), port) for *_, sockaddr in found))


class Guard:
    """Decides for each connection of a browser whether it is made, and to which address.

    A name is resolved here, once, and all its addresses are judged before any is used: a name that resolves differently
    the second time (DNS rebinding) gains nothing. Loopback is allowed for a base_url that is itself loopback; private
    addresses only where a resolver given in code or AGENT3_HOSTS returns them, because their author vouches for them.
    Metadata services and the like stay closed for everyone.
    """

    def __init__(
        self,
        sandbox: NLWebSandbox,
        *,
        base_url: str,
        resolver: Resolver | None = None,
        overrides: Overrides | None = None,
    ):
        self._sandbox = sandbox
        self._resolver = resolver
        self._overrides = overrides or Overrides({})
        host = (urlsplit(base_url).hostname or "").lower()
        self._loopback_host = host if is_loopback(host) else None

    async def admit(self, host: str, port: int) -> Sequence[Address]:
        """The judged addresses to connect to; SecurityError if the host or one of its addresses is refused."""
        if not self._sandbox.allows(host, port):
            METRICS.outbound_blocked.inc(("browser_host",))
            raise SecurityError(f"{host}:{port} is not an allowed host of this interface")
        policy = _VOUCHED
        addresses: Sequence[Address]
        if given := self._overrides.find(host, port):
            addresses = [given]
        elif self._resolver:
            addresses = await self._resolver(host, port)
        else:
            addresses = await resolve(host, port)
            policy = Policy(allow_loopback=host == self._loopback_host)
        for address, _ in addresses:
            if rule := judge(address, policy):
                METRICS.outbound_blocked.inc(("browser_address",))
                raise SecurityError(f"{host} resolves to a {rule} address")
        return addresses


def is_loopback(host: str) -> bool:
    """Whether a host name says by itself that it is this machine: ``localhost``, or a loopback address."""
    literal = _parse_literal(host)
    return host == "localhost" or (literal is not None and literal.is_loopback)


def _parse_literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _split(entries: str) -> list[str]:
    return [entry.strip() for entry in entries.split(",") if entry.strip()]
