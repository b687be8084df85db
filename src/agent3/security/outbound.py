"""The one outbound gate: every request of the house to somewhere else leaves through a ``Gate``.

A name is resolved once, every address it has is judged, and the connection goes to a judged address and no other;
the TLS name stays the host. Checking a URL and then connecting would be check-then-use: between the two a hostile
name server answers differently. The gate knows addresses, sizes and times. It knows neither protocols nor principals,
and it never repeats what was refused.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
import idna
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from agent3.errors import (
    Agent3Error,
    CallTimeout,
    MalformedResponse,
    SecurityError,
    SetupError,
    TooLarge,
    Unavailable,
)
from agent3.settings import Outbound

__all__ = ["Gate", "Policy", "Resolver", "Response", "Stream", "judge", "parse_url"]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolver = Callable[[str, int], Awaitable[list[str]]]

MIB = 1024 * 1024
_NO_SETTING = "No setting allows this."


@dataclass(frozen=True)
class Policy:
    """What may be reached, and how much of it. ``setting`` is the name under which error texts speak of it.

    ``allow_hosts`` holds what the operator registered, each exactly as ``host`` or ``host:port``: such a host may be
    on loopback or in a private network. Metadata services, link-local, multicast and reserved addresses stay closed
    for everyone.
    """

    allow_loopback: bool = False
    allow_private: bool = False
    allow_hosts: frozenset[str] = frozenset()
    schemes: tuple[str, ...] = ("https", "http")
    ports: frozenset[int] | None = None
    max_redirects: int = 3
    max_bytes: int = 8 * MIB
    total_timeout: float = 30.0
    connect_timeout: float = 5.0
    setting: str = "outbound"

    @classmethod
    def of(cls, settings: Outbound) -> Policy:
        """What the settings allow."""
        return cls(
            allow_loopback=settings.allow_loopback,
            allow_private=settings.allow_private,
            allow_hosts=frozenset(settings.allow_hosts),
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow_hosts", frozenset(map(self._entry, self.allow_hosts)))

    def _entry(self, entry: str) -> str:
        entry = entry.strip().lower()
        if not entry or "/" in entry or "@" in entry:
            raise SetupError(
                f"{self.setting}.allow_hosts holds {entry!r}; write a host or host:port, such as 'localhost:8080'."
            )
        return f"[{entry}]" if _is_ipv6(entry) else entry

    def registered(self, host: str, port: int) -> bool:
        """Whether the operator named this host, with this port or with none."""
        name = f"[{host}]" if ":" in host else host
        return name in self.allow_hosts or f"{name}:{port}" in self.allow_hosts

    def toward(self, host: str, port: int) -> Policy:
        """This policy as it stands for one host: wider if the operator registered it."""
        return _widened(self) if self.allow_hosts and self.registered(host, port) else self


@lru_cache(maxsize=64)
def _widened(policy: Policy) -> Policy:
    return replace(policy, allow_loopback=True, allow_private=True)


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


# --- addresses --------------------------------------------------------------------------------------------------------


def _networks(texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts.split())


# The first rule that holds gives the name; metadata stands before private, since opening private networks must not
# open the cloud's credentials. `ipaddress.is_global` alone is not enough: on 3.11 it is True for 192.0.0.8,
# 224.0.0.1, fec0::1 and 168.63.129.16, and its answers change between patch releases.
_RULES: tuple[tuple[str, tuple[Network, ...]], ...] = (
    (
        "metadata",
        _networks(
            "169.254.169.254/32 169.254.170.0/24 168.63.129.16/32 100.100.100.200/32 192.0.0.192/32"
            " fd00:ec2::/32 fd20:ce::/32"
        ),
    ),
    ("unspecified", _networks("0.0.0.0/8 ::/128")),
    ("loopback", _networks("127.0.0.0/8 ::1/128")),
    ("link-local", _networks("169.254.0.0/16 fe80::/10")),
    (
        "private",
        _networks("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10 64:ff9b:1::/48"),
    ),
    ("multicast", _networks("224.0.0.0/4 ff00::/8")),
    (
        "reserved",
        _networks(
            "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4"
            " 2001::/23 2001:db8::/32 3fff::/20"
        ),
    ),
)
_SWITCHES = {"loopback": "allow_loopback", "private": "allow_private"}

_GLOBAL_V6 = IPv6Network("2000::/3")
_TEREDO = IPv6Network("2001::/32")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_LOW_BITS = _networks("::/96 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


def judge(address: str | Address, policy: Policy) -> str | None:
    """None if the address may be reached, else the name of the rule that forbids it.

    IPv6 forms that carry an IPv4 address are judged by what they carry, since that is where the packets end.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return "address"
    for one in _targets(ip):
        rule = _rule(one)
        if rule is not None and not (rule in _SWITCHES and getattr(policy, _SWITCHES[rule])):
            return rule
    return None


def _rule(ip: Address) -> str | None:
    for name, networks in _RULES:
        if any(ip in network for network in networks):
            return name
    strange = isinstance(ip, IPv6Address) and ip not in _GLOBAL_V6
    return "reserved" if strange or not ip.is_global or ip.is_multicast or ip.is_reserved else None


def _targets(ip: Address) -> Iterator[Address]:
    """Every address a packet to ``ip`` may end at."""
    if isinstance(ip, IPv4Address):
        yield ip
        return
    number = int(ip)  # a scope id (fe80::1%eth0) is no part of the judgement
    bare = IPv6Address(number)
    carried = _carried(bare, number)
    # Local-use NAT64 and ISATAP prefixes are networks in their own right; the others mean only what they carry.
    if not carried or bare in _LOCAL_NAT64 or _is_isatap(number):
        yield bare
    yield from carried


def _carried(ip: IPv6Address, number: int) -> list[IPv4Address]:
    if number <= 1:  # :: and ::1 lie inside ::/96, but they mean themselves
        return []
    if ip in _TEREDO:
        return [_v4(number >> 64), _v4(~number)]  # the relay's server, and the client behind it, stored inverted
    if ip in _SIX_TO_FOUR:
        return [_v4(number >> 80)]
    if ip in _LOCAL_NAT64:  # RFC 6052 puts the address after a /48, or at the end of a /96
        spread = (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF
        return [_v4(one) for one in (number & 0xFFFF_FFFF, spread) if one]
    if any(ip in network for network in _LOW_BITS) or _is_isatap(number):
        return [_v4(number)]
    return []


def _is_isatap(number: int) -> bool:
    return number >> 32 & 0xFFFF_FFFF in _ISATAP


def _v4(number: int) -> IPv4Address:
    return IPv4Address(number & 0xFFFF_FFFF)


# --- URLs -------------------------------------------------------------------------------------------------------------

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:@/?#]+))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_](?:[a-z0-9_-]{0,62}))*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff\\]|\s")
_KEPT = "/%:@!$&'()*+,;=~?-._[]"
_PORTS = {"http": 80, "https": 443}


def _refusal(rule: str, what: str, remedy: str = _NO_SETTING, **data: Any) -> SecurityError:
    error = SecurityError(f"{what} (rule {rule!r}). {remedy}", data={"rule": rule, **data})
    error.sent = False
    return error


@lru_cache(maxsize=512)
def parse_url(url: str, policy: Policy) -> URL:
    """The URL in its one exact form, or ``SecurityError`` naming the rule and the setting that would allow it.

    Whatever two parsers could read differently is refused: backslashes, user names, control characters, white space,
    a host that is not its own IDNA form. Odd spellings of IPv4 (``0x7f.1``, ``2130706433``) become the dotted form,
    so that they are judged by the address they mean.
    """
    if _UNSAFE.search(url):
        raise _refusal("url", "The URL holds a backslash, white space or a control character")
    try:
        parts = urlsplit(url)
    except ValueError:  # only ever about the brackets or the letters of the host
        raise _refusal("host", "The URL's host and port cannot be read") from None
    if parts.scheme not in policy.schemes or parts.scheme not in _PORTS:
        raise _scheme_refusal(parts.scheme, policy)
    host, port = _authority(parts.netloc, _PORTS[parts.scheme])
    if policy.ports is not None and port not in policy.ports:
        raise _refusal("port", f"Port {port} of {host} is not open", f"Add it to {policy.setting}.ports.", host=host)
    path, query = (quote(piece, safe=_KEPT) for piece in (parts.path or "/", parts.query))
    name = f"[{host}]" if ":" in host else host
    return URL(f"{parts.scheme}://{name}:{port}{path}{'?' if query else ''}{query}", encoded=True)


def _scheme_refusal(scheme: str, policy: Policy) -> SecurityError:
    what = f"The URL has the scheme {scheme[:32]!r}; open are {', '.join(policy.schemes)}"
    return _refusal("scheme", what, f"Add it to {policy.setting}.schemes." if scheme in _PORTS else _NO_SETTING)


def _authority(netloc: str, default: int) -> tuple[str, int]:
    if not netloc:
        raise _refusal("url", "The URL names no host")
    if "@" in netloc:
        raise _refusal("userinfo", "The URL carries a user name or password; give a credential reference instead")
    found = _AUTHORITY.fullmatch(netloc)
    if found is None:
        raise _refusal("host", "The URL's host and port cannot be read")
    port = int(found["port"]) if found["port"] else default
    if not 0 < port < 65536:
        raise _refusal("port", f"There is no port {port}")
    return _literal_v6(found["v6"]) if found["v6"] else _host(found["name"]), port


def _literal_v6(text: str) -> str:
    try:
        return str(IPv6Address(text))
    except ValueError:
        raise _refusal("host", f"[{text}] is not an IPv6 address") from None


def _host(name: str) -> str:
    host = _ascii(name.lower().removesuffix("."))
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        pass
    # A name that ends in a number is an address to some parsers and a name to others.
    if not _NAME.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise _refusal("host", f"{host[:80]!r} is neither a host name nor an address")
    return host


def _ascii(name: str) -> str:
    if name.isascii():
        return name
    try:
        encoded = idna.encode(name).decode()
        if idna.decode(encoded) == name:
            return encoded
    except idna.IDNAError:
        pass
    raise _refusal("host", "The URL's host is written in letters that are not its own IDNA form; write it in ASCII")


# --- the gate ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; ``headers`` are found in any case, ``url`` is where it came from after redirects."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


@dataclass(slots=True)
class _Trip:
    """What is known of one request on its way: the next hop, its limits, and whether anything has left yet."""

    method: str
    url: URL
    headers: dict[str, str]
    body: bytes | None
    follow: bool
    max_bytes: int
    idle: float
    sent: bool = False
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def place(self) -> str:
        """Host and port, for people: never the path or query, which may hold a credential."""
        return f"{self.url.host}:{self.url.port}"


class Stream:
    """An answer that is still arriving: iterate over it for its bytes, once."""

    def __init__(self, response: aiohttp.ClientResponse, trip: _Trip, deadline: float | None, told: _Told):
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.url = str(trip.url)
        self._response = response
        self._trip = trip
        self._deadline = deadline
        self._told = told
        self._size = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        content = self._response.content
        with self._told(self._trip):
            chunk = content.read_nowait()  # a small answer is here with its head: no timer for it
            if not chunk and not content.at_eof():
                async with asyncio.timeout_at(self._deadline):
                    chunk = await content.readany()
        if not chunk:
            raise StopAsyncIteration
        self._size += len(chunk)
        if self._size > self._trip.max_bytes:
            self._response.close()
            raise _too_large(self._trip)
        return chunk


_Told = Callable[[_Trip], Any]


class Gate:
    """The way out: a pooled client that reaches judged addresses only. It belongs to the event loop it is used in.

    Proxy variables and ``.netrc`` are never read, certificates are always verified, cookies are not kept, and unix
    sockets cannot be named. Failures come as ``Unavailable``, ``CallTimeout``, ``MalformedResponse``, ``TooLarge`` or
    ``SecurityError``, each with an attribute ``sent`` that is False only if nothing of the request left the house.
    ``on_block`` hears the rule of every refusal. ``resolver`` and ``ssl_context`` are there for tests; a context that
    does not verify is refused.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        resolver: Resolver | None = None,
        on_block: Callable[[str], None] | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ):
        if ssl_context is not None and not (ssl_context.check_hostname and ssl_context.verify_mode & ssl.CERT_REQUIRED):
            raise SetupError("The gate takes no TLS context that leaves certificates or host names unverified.")
        self.policy = policy or Policy()
        self._judged = _JudgedResolver(self.policy, resolver or _system_addresses)
        self._on_block = on_block
        self._tls = ssl_context
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        max_bytes: int | None = None,
        follow: bool = False,
    ) -> Response:
        """Send it and read the whole answer, all redirects and bytes within ``timeout`` seconds.

        An answer with an error status is an answer. Redirects are answers too, unless ``follow``.
        """
        total = self.policy.total_timeout if timeout is None else timeout
        async with self.stream(
            method, url, headers=headers, body=body, timeout=total, idle=total, max_bytes=max_bytes, follow=follow
        ) as answer:
            content = b"".join([chunk async for chunk in answer])
        return Response(answer.status, answer.headers, content, answer.url)

    async def check(self, url: str) -> None:
        """Raise unless the URL could be reached now: its form, and every address of its name. Nothing is sent.

        For what strangers leave behind to be reached later; a request judges again, since names change.
        """
        await self.addresses(url)

    async def addresses(self, url: str) -> list[str]:
        """The addresses of a URL's host, all of them judged, for what connects by itself and must go to no other."""
        trip = self._depart("GET", url, None, None, False, 0, self.policy.connect_timeout)
        host, port = trip.url.raw_host or "", trip.url.port or 0
        with self._told(trip):
            async with asyncio.timeout(self.policy.connect_timeout):
                return await self._resolved(host, port)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        idle: float | None = None,
        max_bytes: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Stream]:
        """Send it and read the answer as it comes.

        The head must arrive within ``timeout`` or the policy's total; then each chunk within ``idle`` seconds of the
        last, and all of it within ``timeout`` if one is given. Leaving early closes the connection.
        """
        head = self.policy.total_timeout if timeout is None else timeout
        limits = (self.policy.max_bytes if max_bytes is None else max_bytes, head if idle is None else idle)
        trip = self._depart(method, url, headers, body, follow, *limits)
        with self._told(trip):
            async with asyncio.timeout_at(trip.began + head):
                response = await self._travel(trip)
        try:
            if trip.method != "HEAD" and (response.content_length or 0) > trip.max_bytes:
                raise _too_large(trip)
            yield Stream(response, trip, None if timeout is None else trip.began + timeout, self._told)
        finally:
            response.close()  # a connection whose answer was read to its end is back in the pool already

    async def aclose(self) -> None:
        """Close every connection; the gate takes no more requests."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _depart(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        follow: bool,
        max_bytes: int,
        idle: float,
    ) -> _Trip:
        try:
            if method.upper() not in _METHODS:
                raise _refusal("method", f"The method {method[:32]!r} is none of {', '.join(sorted(_METHODS))}")
            place = parse_url(url, self.policy)
            return _Trip(method.upper(), place, _checked(headers or {}), body, follow, max_bytes, idle)
        except SecurityError as error:
            self._count(error)
            raise

    async def _travel(self, trip: _Trip) -> aiohttp.ClientResponse:
        for _ in range(self.policy.max_redirects + 1):
            response = await self._send(trip)
            location = response.headers.get("Location") if response.status in _REDIRECTS else None
            if location is None or not trip.follow:
                return response
            response.close()
            self._turn(trip, response.status, location)
        raise MalformedResponse(
            f"{trip.place} was reached by more than {self.policy.max_redirects} redirects. "
            f"Use the final address, or raise {self.policy.setting}.max_redirects."
        )

    async def _send(self, trip: _Trip) -> aiohttp.ClientResponse:
        host, port = trip.url.raw_host or "", trip.url.port or 0
        if _is_address(host):
            self._judged.clear(host, port, [host])
        connect = min(self.policy.connect_timeout, trip.idle)
        return await self._opened().request(
            trip.method,
            trip.url,
            headers=trip.headers,
            data=trip.body,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=connect, sock_read=trip.idle),
            trace_request_ctx=trip,
        )

    async def _resolved(self, host: str, port: int) -> list[str]:
        """Judge a host as a request to it would be."""
        if _is_address(host):
            self._judged.clear(host, port, [host])
            return [host]
        try:
            return [one["host"] for one in await self._judged.resolve(host, port)]
        except OSError:
            raise Unavailable(f"The name {host} does not resolve; check its spelling and the name server.") from None

    def _turn(self, trip: _Trip, status: int, location: str) -> None:
        """Point the trip at where a redirect leads, without what belongs to the origin it leaves."""
        old = trip.url
        new = parse_url(urljoin(str(old), location), self.policy)
        if old.scheme == "https" and new.scheme == "http":
            raise _refusal("redirect", f"{trip.place} redirects from https to http", host=new.host)
        if new.origin() != old.origin():
            self._check_borrowed(old, new)
            trip.headers = {name: value for name, value in trip.headers.items() if name.lower() in _PORTABLE}
        if (status == 303 and trip.method != "HEAD") or (status in (301, 302) and trip.method == "POST"):
            trip.method, trip.body = "GET", None
            trip.headers = {name: value for name, value in trip.headers.items() if name.lower() != "content-type"}
        trip.url = new

    def _check_borrowed(self, old: URL, new: URL) -> None:
        """A registered host is open to whoever calls it directly; a stranger may not send us there by a redirect."""
        known = self.policy.registered
        if known(new.host or "", new.port or 0) and not known(old.host or "", old.port or 0):
            what = f"{old.host} redirects to {new.host}:{new.port}, which is registered for direct calls only"
            raise _refusal("redirect", what, "Register the final address.", host=new.host)

    def _opened(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise SetupError("This gate is closed; make a new one.")
        if self._session is None:
            self._loop, self._session = loop, self._open()
        elif self._loop is not loop:
            raise SetupError("A gate belongs to the event loop it was first used in; make one for each loop.")
        return self._session

    def _open(self) -> aiohttp.ClientSession:
        tls = self._tls or _verified_tls()
        connector = aiohttp.TCPConnector(resolver=self._judged, ssl=tls, limit=_CONNECTIONS)
        watch = aiohttp.TraceConfig()
        watch.on_request_headers_sent.append(_mark_sent)
        return aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "agent3"},
            trace_configs=[watch],
        )

    @contextmanager
    def _told(self, trip: _Trip) -> Iterator[None]:
        """Translate what the client library raises, once; its own texts may hold the whole URL and are left behind."""
        try:
            yield
        except (Agent3Error, TimeoutError, aiohttp.ClientError, OSError) as error:
            ours = error if isinstance(error, Agent3Error) else _translated(error, trip)
            ours.sent = trip.sent
            self._count(ours)
            raise ours from None

    def _count(self, error: Agent3Error) -> None:
        if self._on_block is not None and isinstance(error, SecurityError):
            self._on_block(error.data.get("rule", "other"))


def _is_address(host: str) -> bool:
    """Whether aiohttp asks no resolver, by its own test."""
    return ":" in host or host.replace(".", "").isdigit()


class _JudgedResolver(AbstractResolver):
    """What aiohttp asks for addresses: it gets judged ones or a refusal, so it can connect to nothing else."""

    def __init__(self, policy: Policy, resolver: Resolver):
        self._policy = policy
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._resolver(host, port)
        if not addresses:
            raise OSError(f"{host} has no address")
        self.clear(host, port, addresses)
        return [_result(host, address, port) for address in addresses]

    def clear(self, host: str, port: int, addresses: list[str]) -> None:
        """Raise unless every address may be reached: one bad address among good ones is how a rebinding looks."""
        policy = self._policy.toward(host, port)
        for address in addresses:
            rule = judge(address, policy)
            if rule is not None:
                raise _refusal(rule, f"{host} leads to a {rule} address", self._remedy(rule, host, port), host=host)

    def _remedy(self, rule: str, host: str, port: int) -> str:
        if rule not in _SWITCHES:
            return _NO_SETTING
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        setting = self._policy.setting
        return f"If it is yours, add {name!r} to {setting}.allow_hosts, or set {setting}.{_SWITCHES[rule]}."

    async def close(self) -> None:
        """Nothing is held."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=socket.IPPROTO_TCP, flags=socket.AI_NUMERICHOST
    )


_CONNECTIONS = 1000
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What may follow a redirect to another origin. A list of what to keep, since any name may be that of a credential.
_PORTABLE = frozenset(
    {"accept", "accept-language", "content-type", "user-agent", "traceparent", "mcp-protocol-version", "a2a-version"}
)
# Set by the client itself; a second one lets two readers of the request disagree about it.
_RESERVED_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise _refusal("header", f"The header {name[:64]!r} holds characters that no header may hold")
        if name.lower() in _RESERVED_HEADERS:
            raise _refusal("header", f"The header {name!r} is written by the gate itself; leave it out")
    return dict(headers)


async def _system_addresses(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


@cache
def _verified_tls() -> ssl.SSLContext:
    # Reading the certificate store takes tens of milliseconds, so the process does it once.
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _mark_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    context.trace_request_ctx.sent = True


def _too_large(trip: _Trip) -> TooLarge:
    error = TooLarge(
        f"The answer of {trip.place} is larger than the {trip.max_bytes} bytes this call takes; it was cut off. "
        "Ask for less, or raise max_bytes."
    )
    error.sent = True
    return error


def _translated(error: Exception, trip: _Trip) -> Agent3Error:
    """The house's error for one of the client library's, naming host and cause but nothing of the request."""
    place = trip.place
    match error:
        case aiohttp.ConnectionTimeoutError():
            return CallTimeout(f"{place} did not accept a connection in time; see whether it is up and reachable.")
        case TimeoutError():
            waited = asyncio.get_running_loop().time() - trip.began
            return CallTimeout(f"{place} did not finish its answer in time ({waited:.1f} s so far).")
        case aiohttp.ClientConnectorDNSError():
            return Unavailable(f"The name {trip.url.host} does not resolve; check its spelling and the name server.")
        case aiohttp.ClientConnectorCertificateError():
            cause = getattr(error.certificate_error, "verify_message", "") or "not valid"
            return _refusal("certificate", f"The certificate of {place} was not accepted: {cause}", host=trip.url.host)
        case aiohttp.ClientConnectorSSLError():
            return Unavailable(f"No TLS connection with {place} came about; it must speak TLS 1.2 or later.")
        case aiohttp.ClientConnectorError():
            # Not the error's own text: it may show an address of the inner network to a stranger.
            cause = os.strerror(error.os_error.errno) if error.os_error.errno else "no connection"
            return Unavailable(f"{place} cannot be reached ({cause}); see whether it is up.")
        case aiohttp.InvalidURL():
            return _refusal("url", f"The URL of {place} cannot be used")
        case _:
            return _broken_answer(error, place)


def _broken_answer(error: Exception, place: str) -> Agent3Error:
    if isinstance(error, aiohttp.ClientResponseError):
        return MalformedResponse(f"{place} answered with something that is not HTTP.")
    if isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError):
        return MalformedResponse(f"{place} answered with a compressed body that cannot be unpacked.")
    if isinstance(error, aiohttp.ClientPayloadError):
        return Unavailable(f"{place} broke off in the middle of its answer.")
    return Unavailable(f"{place} closed the connection before it answered.")
