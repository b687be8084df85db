"""The secret of an A2A agent, in the way that its card asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agent3.definitions import AgentCard
from agent3.env import REAL, Env
from agent3.identity.oauth import origin_of
from agent3.identity.scheme_credentials import Scheme, SchemeCredential, is_usable, scheme_origins
from agent3.identity.secrets import Secret
from agent3.protocols.a2a.cards.cards import address_of, interfaces
from agent3.security.outbound import Gate

__all__ = ["ORIGINS", "Credential", "named_origins", "security_schemes"]

ORIGINS = "origins"
"""The key in a route's ``meta`` that holds the origins which may get its secret."""


def security_schemes(card: AgentCard, *, alone: bool = False) -> Iterator[Scheme]:
    """The schemes of a card in its own order, those that it requires first.

    With ``alone``, a scheme that it requires together with another one does not come first.
    """
    document = card.to_wire("0.3")
    schemes: Mapping[str, Any] = document.get("securitySchemes") or {}
    required = [wanted for wanted in document.get("security") or () if not alone or len(wanted) == 1]
    named = [(name, tuple(scopes)) for wanted in required for name, scopes in wanted.items()]
    for name, scopes in (*named, *((name, ()) for name in schemes)):
        definition = schemes.get(name)
        if isinstance(definition, Mapping):
            yield Scheme(definition, scopes)


def named_origins(card: AgentCard) -> list[str]:
    """All origins to which a card sends a secret: its interfaces, and those that give tokens."""
    found = {origin_of(address_of(each)) for each, _ in interfaces(card)}
    for scheme in security_schemes(card):
        found.update(scheme_origins(scheme.definition))
    return sorted(found)


class Credential(SchemeCredential):
    """One secret for one agent: by the first scheme of its card for which one secret is enough."""

    def __init__(
        self,
        card: AgentCard,
        secret: Secret | None,
        header: str | None,
        gate: Gate,
        home: str,
        env: Env = REAL,
        origins: Collection[str] | None = None,
    ):
        scheme: Scheme | None = None
        if secret is not None and not header:
            scheme = next((scheme for scheme in security_schemes(card, alone=True) if is_usable(scheme)), None)
        super().__init__(scheme, secret, header, gate, home, env, origins)
