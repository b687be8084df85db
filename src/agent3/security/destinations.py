"""Which destinations may be reached: a policy, a verdict on every IP address, and URLs in one exact form.

Nothing here connects to anything: see ``outbound`` for the gate that does.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import quote, urlsplit

import idna
from yarl import URL

from agent3.errors import SecurityError, SetupError
from agent3.settings import Outbound

__all__ = ["SWITCHES", "Policy", "judge", "parse_url", "refusal"]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MIB = 1024 * 1024
NO_SETTING = "No setting allows this."


def refusal(rule: str, what: str, remedy: str = NO_SETTING, **data: Any) -> SecurityError:
    """The error for a destination that ``rule`` forbids; nothing was sent."""
    error = SecurityError(f"{what} (rule {rule!r}). {remedy}", data={"rule": rule, **data})
    error.sent = False
    return error


@dataclass(frozen=True)
class Policy:
    """What may be reached, and how much of it. ``setting`` is the name under which error texts refer to it.

    ``allow_hosts`` holds what the operator registered, each exactly as ``host`` or ``host:port``: such a host may be
    on loopback or in a private network. Metadata services, link-local, multicast and reserved addresses are closed
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
    gateway: str = ""
    """The id of the gateway that sends, which requests carry so that none comes back to it; see ``security.via``."""

    @classmethod
    def of(cls, settings: Outbound, gateway: str = "") -> Policy:
        """The policy of the settings."""
        return cls(
            gateway=gateway,
            allow_loopback=settings.allow_loopback,
            allow_private=settings.allow_private,
            allow_hosts=frozenset(settings.allow_hosts),
        )

    def registering(self, url: str) -> Policy:
        """This policy, with the host of an address that the operator chose."""
        parts = parse_url(url, self)
        host = f"[{parts.host}]" if ":" in (parts.host or "") else parts.host
        return replace(self, allow_hosts=self.allow_hosts | {f"{host}:{parts.port}"})

    def __post_init__(self) -> None:
        hosts = set()
        for entry in self.allow_hosts:
            host = entry.strip().lower()
            if not host or "/" in host or "@" in host:
                raise SetupError(
                    f"{self.setting}.allow_hosts contains {host!r}; write a host or host:port, such as "
                    "'localhost:8080'."
                )
            try:
                IPv6Address(host)
            except ValueError:
                hosts.add(host)
            else:
                hosts.add(f"[{host}]")
        object.__setattr__(self, "allow_hosts", frozenset(hosts))

    def is_registered(self, host: str, port: int) -> bool:
        """Whether the operator registered this host, with this port or without one."""
        name = f"[{host}]" if ":" in host else host
        return name in self.allow_hosts or f"{name}:{port}" in self.allow_hosts

    def toward(self, host: str, port: int) -> Policy:
        """The policy for one host: wider if the operator registered it."""
        return _widen(self) if self.allow_hosts and self.is_registered(host, port) else self


@lru_cache(maxsize=64)
def _widen(policy: Policy) -> Policy:
    return replace(policy, allow_loopback=True, allow_private=True)


# --- addresses --------------------------------------------------------------------------------------------------------


def _networks(texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts.split())


# The first rule that matches gives the name. Metadata stands before private, since opening private networks must not
# open the cloud's credentials. ``ipaddress.is_global`` alone is not enough: on 3.11 it is True for 192.0.0.8,
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
SWITCHES = {"loopback": "allow_loopback", "private": "allow_private"}
"""The field of ``Policy`` that opens what a rule forbids; the other rules have none."""

_GLOBAL_V6 = IPv6Network("2000::/3")
_TEREDO = IPv6Network("2001::/32")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_LOW_BITS = _networks("::/96 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)


def judge(address: str | Address, policy: Policy) -> str | None:
    """None if the address may be reached, else the name of the rule that forbids it.

    IPv6 addresses that embed an IPv4 address are judged by that address too, since that is where the packets end.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return "address"
    for target in [ip] if isinstance(ip, IPv4Address) else _packet_targets(ip):
        rule = next((name for name, networks in _RULES if any(target in network for network in networks)), None)
        if rule is None:
            strange = isinstance(target, IPv6Address) and target not in _GLOBAL_V6
            if not strange and target.is_global and not target.is_multicast and not target.is_reserved:
                continue
            rule = "reserved"
        if not (rule in SWITCHES and getattr(policy, SWITCHES[rule])):
            return rule
    return None


def _packet_targets(ip: IPv6Address) -> list[Address]:
    """Every address where a packet to ``ip`` may end, by the transition mechanisms that embed IPv4 in IPv6."""
    number = int(ip)  # without the scope id (fe80::1%eth0), which is no part of the verdict
    bare = IPv6Address(number)
    isatap = number >> 32 & 0xFFFF_FFFF in _ISATAP
    embedded: list[int] = []
    if number <= 1:  # :: and ::1 lie inside ::/96, but they mean themselves
        pass
    elif bare in _TEREDO:
        embedded = [number >> 64, ~number]  # the relay's server, and the client behind it, stored inverted
    elif bare in _SIX_TO_FOUR:
        embedded = [number >> 80]
    elif bare in _LOCAL_NAT64:  # RFC 6052 puts the address after a /48, or at the end of a /96
        spread = (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF
        embedded = [value for value in (number & 0xFFFF_FFFF, spread) if value]
    elif isatap or any(bare in network for network in _LOW_BITS):
        embedded = [number]
    # Local-use NAT64 and ISATAP prefixes are networks in their own right; the others mean only what they embed.
    itself = [bare] if not embedded or bare in _LOCAL_NAT64 or isatap else []
    return [*itself, *(IPv4Address(value & 0xFFFF_FFFF) for value in embedded)]


# --- URLs -------------------------------------------------------------------------------------------------------------

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:@/?#]+))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_](?:[a-z0-9_-]{0,62}))*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff\\]|\s")
_KEPT = "/%:@!$&'()*+,;=~?-._[]"
_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=512)
def parse_url(url: str, policy: Policy) -> URL:
    """The URL in its one exact form, or ``SecurityError`` naming the rule and the setting that would allow it.

    Whatever two parsers could read differently is refused: backslashes, user names, control characters, white space,
    a host that is not its own IDNA form. Odd spellings of IPv4 (``0x7f.1``, ``2130706433``) become the dotted form,
    so that they are judged by the address they mean.
    """
    if _UNSAFE.search(url):
        raise refusal("url", "The URL contains a backslash, white space or a control character")
    try:
        parts = urlsplit(url)
    except ValueError:  # raised only for the brackets or the letters of the host
        raise refusal("host", "The host and port of the URL cannot be read") from None
    if parts.scheme not in policy.schemes or parts.scheme not in _PORTS:
        what = f"The scheme {parts.scheme[:32]!r} of the URL is not allowed; use {', '.join(policy.schemes)}"
        remedy = f"Add it to {policy.setting}.schemes." if parts.scheme in _PORTS else NO_SETTING
        raise refusal("scheme", what, remedy)
    if not parts.netloc:
        raise refusal("url", "The URL has no host")
    if "@" in parts.netloc:
        raise refusal("userinfo", "The URL contains a user name or password; use a credential reference instead")
    found = _AUTHORITY.fullmatch(parts.netloc)
    if found is None:
        raise refusal("host", "The host and port of the URL cannot be read")
    port = int(found["port"]) if found["port"] else _PORTS[parts.scheme]
    if not 0 < port < 65536:
        raise refusal("port", f"Port {port} does not exist")
    if found["v6"]:
        try:
            host = str(IPv6Address(found["v6"]))
        except ValueError:
            raise refusal("host", f"[{found['v6']}] is not an IPv6 address") from None
    else:
        host = _normalize_host(found["name"].lower().removesuffix("."))
    if policy.ports is not None and port not in policy.ports:
        raise refusal("port", f"Port {port} of {host} is not allowed", f"Add it to {policy.setting}.ports.", host=host)
    # Percent-encoded bytes stay as they are: a server may tell %2F from a slash, and a signature covers them.
    path, query = (quote(piece, safe=_KEPT) for piece in (parts.path or "/", parts.query))
    name = f"[{host}]" if ":" in host else host
    return URL(f"{parts.scheme}://{name}:{port}{path}{'?' if query else ''}{query}", encoded=True)


def _normalize_host(name: str) -> str:
    """The host in ASCII, an IPv4 address in its dotted form."""
    host = name
    if not name.isascii():
        try:
            host = idna.encode(name).decode()
            exact = idna.decode(host) == name
        except idna.IDNAError:
            exact = False
        if not exact:
            raise refusal("host", "The host of the URL is not in its IDNA form; write it in ASCII")
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        pass
    # A name that ends in a number is an address to some parsers and a name to others.
    if not _NAME.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise refusal("host", f"{host[:80]!r} is neither a host name nor an address")
    return host
