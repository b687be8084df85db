"""Who may call what: the rules of the settings, asked the same way by list, search and call."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from agent3.errors import AccessError
from agent3.model import Principal, Route
from agent3.settings import Rule

__all__ = ["OPERATE", "Access", "may_operate", "require_operator"]

OPERATE = "agent3:operate"
"""The scope of clients that see what all callers did, and change agents, routes and prices."""


def may_operate(principal: Principal) -> bool:
    """Whether a caller runs this gateway, and so sees the calls, statistics and costs of all."""
    return principal.kind == "local" or OPERATE in principal.scopes


def require_operator(principal: Principal, doing: str) -> None:
    """AccessError for every other caller; ``doing`` is what only operators do."""
    if not may_operate(principal):
        raise AccessError(f"Only operators {doing}: the local person, and clients with the scope {OPERATE}.")


class Access:
    """Decides by the first rule that matches. Without any rule, every authenticated caller may call everything."""

    def __init__(self, rules: Sequence[Rule] = ()):
        self._rules = tuple(rules)

        @lru_cache(maxsize=10_000)
        def decide(principal: str, scopes: frozenset[str], agent: str, capability: str, protocol: str) -> int | None:
            for number, rule in enumerate(self._rules):
                if rule.scope and rule.scope not in scopes:
                    continue
                given = (principal, agent, capability, protocol)
                patterns = (rule.principal, rule.agent, rule.capability, rule.protocol)
                if all(fnmatchcase(value, pattern) for value, pattern in zip(given, patterns, strict=True)):
                    return number
            return None

        self._find_rule = decide

    def allows(self, principal: Principal, agent: str, capability: str, protocol: str) -> bool:
        """Whether the principal may call this capability over this protocol."""
        if not self._rules:
            return True
        number = self._find_rule(principal.id, principal.scopes, agent, capability, protocol)
        return number is not None and self._rules[number].effect == "allow"

    def explain(self, principal: Principal, agent: str, capability: str, protocol: str) -> str:
        """Why it is allowed or not, for people: the rule that decides, counted from 1."""
        if not self._rules:
            return "there are no rules, so every known client may call everything"
        number = self._find_rule(principal.id, principal.scopes, agent, capability, protocol)
        if number is None:
            return "no rule matches, and what no rule allows is denied"
        return f"rule {number + 1} {'allows' if self._rules[number].effect == 'allow' else 'denies'} it"

    def allows_anything(self, principal: Principal) -> bool:
        """Whether any rule could let the principal call something. Says nothing of what there is to call."""
        for rule in self._rules:
            if (rule.scope and rule.scope not in principal.scopes) or not fnmatchcase(principal.id, rule.principal):
                continue
            if rule.effect == "allow":
                return True
            if rule.agent == rule.capability == rule.protocol == "*":
                return False
        return not self._rules

    def narrow(self, principal: Principal, agent: str, capability: str, routes: tuple[Route, ...]) -> tuple[Route, ...]:
        """The routes that the principal may take; the same tuple if it may take all."""
        if not self._rules:
            return routes
        if len(routes) == 1 and routes[0].stand_in is None:
            return routes if self.allows(principal, agent, capability, routes[0].protocol) else ()
        kept = tuple(route for route in routes if self._may_take(principal, agent, capability, route))
        return routes if len(kept) == len(routes) else kept

    def _may_take(self, principal: Principal, agent: str, capability: str, route: Route) -> bool:
        """Whether a route may be taken. That of a stand-in is a call of the stand-in too, and is judged as such."""
        if not self.allows(principal, agent, capability, route.protocol):
            return False
        other = route.stand_in
        return other is None or self.allows(principal, other.agent, other.capability, route.protocol)
