"""Which secret may go to which website: the operator's decision, never the interface's.

An interface names the environment variables of its secrets. It may be a stranger's file, and what it types it sends:
a file that named ``AWS_SECRET_ACCESS_KEY`` would carry it to its own site. A variable is therefore given only to the
websites that the operator listed with it (``web.secrets``), and only to an interface whose pages reach nothing else.
Sessions that a password opened are protected in the same way. It knows no browser and reads no secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

from agent3.definitions import NLWebInterface
from agent3.errors import SetupError
from agent3.protocols.nlweb.browser.sandbox import Rule
from agent3.protocols.nlweb.visit.login import REFERENCE, Login
from agent3.protocols.nlweb.visit.throttle import site_of

__all__ = ["Grants", "scope_of", "variables_of"]


def variables_of(interface: NLWebInterface) -> set[str]:
    """The environment variables from which an interface takes secrets, for its steps and for its login."""
    login = Login.of(interface)
    declared = interface.metadata.get("secrets")
    references = [str(value) for value in declared.values()] if isinstance(declared, Mapping) else []
    own = {reference.removeprefix(REFERENCE) for reference in references if reference.startswith(REFERENCE)}
    return own | (login.variables if login else set())


def scope_of(interface: NLWebInterface) -> str:
    """What a session belongs to: the site, and a digest of all that the interface's pages reach and of its secrets.

    A page that can go elsewhere can carry away what it reads. An interface therefore finds a session of another one
    only if both reach the same hosts and take the same secrets.
    """
    reach = sorted({str(rule) for rule in _list_reach(interface)})
    mark = msgspec.json.encode([reach, sorted(variables_of(interface))])
    return f"{site_of(interface.base_url)} {hashlib.sha256(mark).hexdigest()[:16]}"


class Grants:
    """The secrets that the operator grants. Without entries no interface gets any."""

    def __init__(self, rules: Mapping[str, tuple[Rule, ...]] | None = None):
        self._rules = dict(rules or {})

    @classmethod
    def read(cls, entries: Iterable[str]) -> Self:
        """From ``NAME@host``, ``NAME@host:port`` or ``NAME@*.host``; SetupError for any other entry."""
        rules: dict[str, tuple[Rule, ...]] = {}
        for entry in entries:
            name, at, host = entry.strip().rpartition("@")
            if not at or not name.isidentifier():
                raise SetupError(
                    f"web.secrets: {entry!r} cannot be read. Write NAME@host, with the name of an "
                    "environment variable and the website that may get it, such as "
                    "SHOP_PASSWORD@shop.example."
                )
            rule = Rule.parse(host.removeprefix("*."), subdomains=host.startswith("*."))
            rules[name] = (*rules.get(name, ()), rule)
        return cls(rules)

    def require(self, interface: NLWebInterface, variables: Iterable[str] | None = None) -> None:
        """SetupError unless these variables, or all that it names, may go wherever the interface's pages can."""
        wanted = variables_of(interface) if variables is None else set(variables)
        if missing := self._find_missing(interface, wanted):
            raise SetupError(
                f"{interface.name!r} asks for secrets that its website may not have: "
                f"{', '.join(dict.fromkeys(missing))}. If you trust it with them, add these entries to "
                "web.secrets in agent3.toml, or to AGENT3_WEB_SECRETS."
            )

    def covers(self, interface: NLWebInterface) -> bool:
        """Whether an interface may have all the secrets that it names, and therefore what they opened before."""
        return not self._find_missing(interface, variables_of(interface))

    def _find_missing(self, interface: NLWebInterface, wanted: set[str]) -> list[str]:
        """The entries that ``web.secrets`` would need."""
        reach = _list_reach(interface)
        return [
            f"{name}@{place}"
            for name in sorted(wanted)
            for place in reach
            if not any(rule.includes(place) for rule in self._rules.get(name, ()))
        ]


def _list_reach(interface: NLWebInterface) -> list[Rule]:
    """All that the pages of an interface can reach."""
    hosts = (interface.base_url, *interface.allowed_hosts)
    return [Rule.parse(host, subdomains=interface.allow_subdomains) for host in hosts]
