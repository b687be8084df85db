"""Who may see and call what: the rules of the settings, asked the same way by list, search and call."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

from agent3.errors import AccessError
from agent3.model import Principal, Route
from agent3.security.arguments import check_conditions, fits, translate
from agent3.settings import Rule

__all__ = ["OPERATE", "Access", "may_operate", "require_operator"]

OPERATE = "agent3:operate"
"""The scope of clients that see what all callers did, and change agents, routes and prices."""
_UNREAD = object()
"""In place of arguments that are not known yet: of a list, or of a message that nobody has read."""


def may_operate(principal: Principal) -> bool:
    """Whether a caller runs this gateway, and so sees the calls, statistics and costs of all.

    A client of a tenant never does: it would see what other tenants do.
    """
    return principal.kind == "local" or (OPERATE in principal.scopes and principal.tenant is None)


def require_operator(principal: Principal, doing: str) -> None:
    """AccessError for every other caller; ``doing`` is what only operators do."""
    if not may_operate(principal):
        raise AccessError(f"Only operators may {doing}: the local person, and clients with the scope {OPERATE}.")


class Access:
    """Decides by the first rule that matches. Without any rule, every authenticated caller may call everything, unless
    the ``default`` for clients is to deny."""

    def __init__(self, rules: Sequence[Rule] = (), default: Literal["allow", "deny"] = "allow"):
        self._rules = tuple(rules)
        self._default = default
        self._open = not self._rules and default == "allow"
        for number, rule in enumerate(self._rules, 1):
            check_conditions(rule.arguments, f"rules, rule {number}")

        @lru_cache(maxsize=10_000)
        def match(
            principal: str, scopes: frozenset[str], tenant: str, agent: str, capability: str, protocol: str
        ) -> tuple[int, ...]:
            """The rules that may decide, in order, up to the first one that does so whatever the arguments are."""
            found: list[int] = []
            given = (principal, tenant, agent, capability, protocol)
            for number, rule in enumerate(self._rules):
                if rule.scope and rule.scope not in scopes:
                    continue
                patterns = (rule.principal, rule.tenant, rule.agent, rule.capability, rule.protocol)
                if all(fnmatchcase(value, pattern) for value, pattern in zip(given, patterns, strict=True)):
                    found.append(number)
                    if not rule.arguments:
                        break
            return tuple(found)

        self._match = match

    def _decide(
        self, principal: Principal, agent: str, capability: str, protocol: str, given: Any = _UNREAD
    ) -> tuple[Literal["allow", "see", "deny"], int | None]:
        """What is decided, and by which rule. Of unknown arguments, the most that some arguments would be let do."""
        if not self._rules:
            return ("allow" if self._default == "allow" or principal.kind == "local" else "deny"), None
        possible: int | None = None
        numbers = self._match(principal.id, principal.scopes, principal.tenant or "", agent, capability, protocol)
        for number in numbers:
            rule = self._rules[number]
            if not rule.arguments:
                if possible is not None and rule.effect != "allow":
                    return "allow", possible
                return rule.effect, number
            if given is _UNREAD:
                if rule.effect == "allow" and possible is None:
                    possible = number
                continue
            fit = fits(rule.arguments, given, every=rule.effect == "allow")
            if fit or (fit is None and rule.effect != "allow"):
                return rule.effect, number
        return ("deny", None) if possible is None else ("allow", possible)

    def allows(self, principal: Principal, agent: str, capability: str, protocol: str) -> bool:
        """Whether the principal may call this capability over this protocol, with some arguments at least."""
        return self._open or self._decide(principal, agent, capability, protocol)[0] == "allow"

    def shows(self, principal: Principal, agent: str, capability: str, routes: tuple[Route, ...]) -> bool:
        """Whether the principal sees a capability: it may call it by one of its routes, or a rule shows it."""
        if self._open:
            return bool(routes)
        return any(self._decide(principal, agent, capability, route.protocol)[0] != "deny" for route in routes)

    def looks_at_arguments(self, principal: Principal, agent: str, capability: str, routes: tuple[Route, ...]) -> bool:
        """Whether the arguments of a call may make a difference."""
        if not any(rule.arguments for rule in self._rules):
            return False
        who = (principal.id, principal.scopes, principal.tenant or "")
        names = [(agent, capability, route.protocol) for route in routes]
        names += [
            (one.agent, one.capability, route.protocol) for route in routes if (one := route.stand_in) is not None
        ]
        return any(self._rules[number].arguments for name in names for number in self._match(*who, *name))

    def explain(self, principal: Principal, agent: str, capability: str, protocol: str) -> str:
        """Why it is allowed or not, for people: the rule that decides, counted from 1."""
        if not self._rules and self._default == "deny" and principal.kind != "local":
            return 'there are no rules, and access.default = "deny" denies what no rule allows'
        if not self._rules:
            return "there are no rules, so every known client may call everything"
        effect, number = self._decide(principal, agent, capability, protocol)
        if number is None:
            return "no rule matches, and access.default denies it"
        verb = {"allow": "allows it", "see": "makes it visible but not callable", "deny": "denies it"}[effect]
        some = ", with some arguments" if self._rules[number].arguments else ""
        return f"rule {number + 1} {verb}{some}"

    def allows_anything(self, principal: Principal) -> bool:
        """Whether any rule could let the principal call or see something. Says nothing of what there is to call."""
        for rule in self._rules:
            if (rule.scope and rule.scope not in principal.scopes) or not fnmatchcase(principal.id, rule.principal):
                continue
            if not fnmatchcase(principal.tenant or "", rule.tenant):
                continue
            if rule.effect != "deny":
                return True
            if rule.agent == rule.capability == rule.protocol == "*" and not rule.arguments:
                return False
        return not self._rules and (self._default == "allow" or principal.kind == "local")

    def narrow(
        self,
        principal: Principal,
        agent: str,
        capability: str,
        routes: tuple[Route, ...],
        given: Any = _UNREAD,
    ) -> tuple[Route, ...]:
        """The routes that the principal may take; the same tuple if it may take all. With ``given``, for these
        arguments."""
        if self._open:
            return routes
        kept = tuple(route for route in routes if self._may_take(principal, agent, capability, route, given))
        return routes if len(kept) == len(routes) else kept

    def _may_take(self, principal: Principal, agent: str, capability: str, route: Route, given: Any) -> bool:
        """Whether a route may be taken. That of a stand-in is a call of the stand-in too, and is judged as such."""
        if self._decide(principal, agent, capability, route.protocol, given)[0] != "allow":
            return False
        other = route.stand_in
        if other is None:
            return True
        its = given if given is _UNREAD else translate(given, other.input)
        return self._decide(principal, other.agent, other.capability, route.protocol, its)[0] == "allow"
