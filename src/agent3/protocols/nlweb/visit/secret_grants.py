"""Which secret may go to which website: what the operator says, never what an interface says of itself.

An interface names the environment variables that its secrets come from. It may be somebody else's file, and what it
types it sends: a file that named ``AWS_SECRET_ACCESS_KEY`` would carry it to its own site. So a variable is opened only
for the websites that the operator listed with it (``web.secrets``), and an interface gets it only if all that its pages
can reach is listed. What a password opened is guarded in the same way. It knows no browser and reads no secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

from agent3.definitions import NLWebInterface
from agent3.errors import SetupError
from agent3.protocols.nlweb.browser.sandbox import Rule
from agent3.protocols.nlweb.visit.login import Login
from agent3.protocols.nlweb.visit.throttle import site_of

__all__ = ["Grants", "scope_of", "variables_of"]

_REFERENCE = "env:"


def variables_of(interface: NLWebInterface) -> set[str]:
    """The environment variables that an interface takes secrets from: those of its steps, and those of its login."""
    login = Login.of(interface)
    named = interface.metadata.get("secrets")
    said = [*(named.values() if isinstance(named, Mapping) else ()), *(login.parameters.values() if login else ())]
    return {str(one).removeprefix(_REFERENCE) for one in said if str(one).startswith(_REFERENCE)}


def scope_of(interface: NLWebInterface) -> str:
    """What a session at its website belongs to: the site, and a mark of all that its pages reach and of its secrets.

    A page that can go elsewhere can carry away what it reads. So an interface finds no session that another one made,
    unless both reach the same and take the same secrets.
    """
    reach = sorted({_shown(place) for place in _reach(interface)})
    mark = msgspec.json.encode([reach, sorted(variables_of(interface))])
    return f"{site_of(interface.base_url)} {hashlib.sha256(mark).hexdigest()[:16]}"


class Grants:
    """What the operator allows. Without entries no interface gets any secret."""

    def __init__(self, rules: Mapping[str, tuple[Rule, ...]] | None = None):
        self._rules = dict(rules or {})

    @classmethod
    def read(cls, entries: Iterable[str]) -> Self:
        """From ``NAME@host``, ``NAME@host:port`` or ``NAME@*.host``; SetupError names one that cannot be read."""
        rules: dict[str, tuple[Rule, ...]] = {}
        for entry in entries:
            name, at, host = entry.strip().rpartition("@")
            if not at or not name.isidentifier():
                raise SetupError(
                    f"web.secrets: {entry!r} cannot be read. Write NAME@host, with the name of an environment variable "
                    "and the website that may get it, such as SHOP_PASSWORD@shop.example."
                )
            rule = Rule.read(host.removeprefix("*."), subdomains=host.startswith("*."))
            rules[name] = (*rules.get(name, ()), rule)
        return cls(rules)

    def require(self, interface: NLWebInterface, variables: Iterable[str] | None = None) -> None:
        """SetupError unless all these variables, or all that it names, may go wherever the interface's pages can."""
        wanted = variables_of(interface) if variables is None else set(variables)
        if missing := self._missing(interface, wanted):
            raise SetupError(
                f"{interface.name!r} wants secrets from the environment that its website may not have: "
                f"{', '.join(dict.fromkeys(missing))}. If you trust this interface with them, add these entries to "
                "web.secrets in agent3.toml, or to AGENT3_WEB_SECRETS."
            )

    def cover(self, interface: NLWebInterface) -> bool:
        """Whether an interface may have all the secrets that it names, and so what they opened before."""
        return not self._missing(interface, variables_of(interface))

    def _missing(self, interface: NLWebInterface, wanted: set[str]) -> list[str]:
        reach = _reach(interface)
        return [f"{name}@{_shown(place)}" for name in sorted(wanted) for place in reach if not self._fit(name, place)]

    def _fit(self, name: str, place: Rule) -> bool:
        return any(_within(place, rule) for rule in self._rules.get(name, ()))


def _reach(interface: NLWebInterface) -> list[Rule]:
    """All that the pages of an interface can reach."""
    hosts = (interface.base_url, *interface.allowed_hosts)
    return [Rule.read(one, subdomains=interface.allow_subdomains) for one in hosts]


def _within(place: Rule, rule: Rule) -> bool:
    """Whether all that ``place`` means is meant by ``rule``."""
    if place.subdomains and not rule.subdomains:
        return False
    if place.port is None:  # both ports of the web
        return rule.port is None and rule.covers(place.host, 443)
    return rule.covers(place.host, place.port)


def _shown(place: Rule) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    port = "" if place.port is None else f":{place.port}"
    return f"{'*.' if place.subdomains else ''}{host}{port}"
