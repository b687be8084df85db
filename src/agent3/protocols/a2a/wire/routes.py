"""Paths of the REST bindings: which of them is meant, and what stands in it.

A custom verb follows the id after a colon, as in ``/tasks/{id}:cancel``; in 1.0 a tenant may stand before everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from agent3.errors import MethodNotAllowed, MethodNotFound

__all__ = ["Match", "Route", "Routes"]


class Route(NamedTuple):
    """An HTTP method and path, and the operation that they name."""

    http: str
    path: str
    operation: str

    def filled(self, values: dict[str, str]) -> str:
        """The path with its places filled, in the encoding of URLs."""
        return re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]], safe=""), self.path)


class Match(NamedTuple):
    """A route that was found, and what its places hold, decoded."""

    route: Route
    values: dict[str, str]


class Routes:
    """A table of routes, asked by method and raw path."""

    def __init__(self, routes: Sequence[Route], *, tenants: bool):
        self.routes = tuple(routes)
        prefix = r"(?:/(?P<tenant>[^/]+))?" if tenants else ""
        self._patterns = [(re.compile(prefix + _pattern(one.path)), one) for one in routes]

    def match(self, http: str, path: str) -> Match:
        """The route of a path as it came, before percent-decoding.

        MethodNotFound where no route has the path, MethodNotAllowed with ``data["allow"]`` where one has it for another
        method. Of two readings of a path the one without a tenant holds.
        """
        found = [(match, route) for pattern, route in self._patterns if (match := pattern.fullmatch(path))]
        if not found:
            raise MethodNotFound(f"There is nothing at {path[:200]!r}; see the agent's card for what is served here")
        # Of a task "1:cancel" and the verb cancel of the task "1" it is always the verb that is meant.
        found.sort(key=lambda one: (bool(one[0].groupdict().get("tenant")), -len(one[1].path)))
        meant = [(match, route) for match, route in found if route.path == found[0][1].path]
        fitting = [(match, route) for match, route in meant if route.http == http]
        if not fitting:
            allow = ", ".join(sorted({route.http for _, route in meant}))
            raise MethodNotAllowed(f"{path[:200]!r} does not take {http[:20]}; it takes {allow}", data={"allow": allow})
        match, route = fitting[0]
        return Match(route, {name: unquote(one) for name, one in match.groupdict().items() if one is not None})


def _pattern(path: str) -> str:
    pieces = re.split(r"\{(\w+)\}", path)
    return "".join(f"(?P<{one}>[^/]+)" if number % 2 else re.escape(one) for number, one in enumerate(pieces))
