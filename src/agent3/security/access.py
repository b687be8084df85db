"""Who may call what: the rules of the settings, asked the same way by list, search and call."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from agent3.model import Principal, Route
from agent3.settings import Rule

__all__ = ["Access"]


class Access:
    """Decides by the first rule that matches. Without any rule, every authenticated caller may call everything."""

    def __init__(self, rules: Sequence[Rule] = ()):
        self._rules = tuple(rules)

        @lru_cache(maxsize=10_000)
        def decide(principal: str, scopes: frozenset[str], agent: str, capability: str, protocol: str) -> bool:
            for rule in self._rules:
                if rule.scope and rule.scope not in scopes:
                    continue
                given = (principal, agent, capability, protocol)
                patterns = (rule.principal, rule.agent, rule.capability, rule.protocol)
                if all(fnmatchcase(value, pattern) for value, pattern in zip(given, patterns, strict=True)):
                    return rule.effect == "allow"
            return False

        self._decide = decide

    def allows(self, principal: Principal, agent: str, capability: str, protocol: str) -> bool:
        """Whether the principal may call this capability over this protocol."""
        if not self._rules:
            return True
        return self._decide(principal.id, principal.scopes, agent, capability, protocol)

    def narrow(self, principal: Principal, agent: str, capability: str, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        """The routes that the principal may take; the same tuple if it may take all."""
        if not self._rules:
            return routes
        if len(routes) == 1:
            return routes if self.allows(principal, agent, capability, routes[0].protocol) else ()
        kept = tuple(route for route in routes if self.allows(principal, agent, capability, route.protocol))
        return routes if len(kept) == len(routes) else kept
