"""What can be asked of an agent: the name of each operation in every generation, and its path on REST.

A custom verb follows the id after a colon, as in ``/tasks/{id}:cancel``; in 1.0 a tenant may stand before everything.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, get_args
from urllib.parse import quote, unquote

from agent3.errors import MethodNotAllowed, MethodNotFound
from agent3.protocols.a2a.wire.types import Generation, Request

__all__ = ["METHODS", "NAMES", "OWNERS", "Match", "Operation", "Route", "Routes", "method_of"]


class Operation(NamedTuple):
    """The type of a request, and whether it is the streaming form of ``Send``."""

    request: type[Any]
    streaming: bool = False


# The request, and its method on JSON-RPC in 0.1, 0.3 and 1.0. gRPC 1.0 has the names of JSON-RPC 1.0.
_METHODS: Final = """
Send          tasks/send                  message/send                         SendMessage
Send+stream   tasks/sendSubscribe         message/stream                       SendStreamingMessage
GetTask       tasks/get                   tasks/get                            GetTask
ListTasks     -                           tasks/list                           ListTasks
CancelTask    tasks/cancel                tasks/cancel                         CancelTask
Subscribe     tasks/resubscribe           tasks/resubscribe                    SubscribeToTask
CreatePush    tasks/pushNotification/set  tasks/pushNotificationConfig/set     CreateTaskPushNotificationConfig
GetPush       tasks/pushNotification/get  tasks/pushNotificationConfig/get     GetTaskPushNotificationConfig
ListPush      -                           tasks/pushNotificationConfig/list    ListTaskPushNotificationConfigs
DeletePush    -                           tasks/pushNotificationConfig/delete  DeleteTaskPushNotificationConfig
GetCard       -                           agent/getAuthenticatedExtendedCard   GetExtendedAgentCard
Search        tasks/search                tasks/search                         tasks/search
"""

# The paths of 1.0. Those of 0.3 begin with /v1, and its card is at /v1/card. Search is an extension of JSON-RPC alone.
_ROUTES: Final = """
Send          POST    /message:send
Send+stream   POST    /message:stream
ListTasks     GET     /tasks
GetTask       GET     /tasks/{id}
CancelTask    POST    /tasks/{id}:cancel
Subscribe     POST    /tasks/{id}:subscribe
Subscribe     GET     /tasks/{id}:subscribe
CreatePush    POST    /tasks/{taskId}/pushNotificationConfigs
ListPush      GET     /tasks/{taskId}/pushNotificationConfigs
GetPush       GET     /tasks/{taskId}/pushNotificationConfigs/{id}
DeletePush    DELETE  /tasks/{taskId}/pushNotificationConfigs/{id}
GetCard       GET     /extendedAgentCard
"""
_REQUESTS: Final[dict[str, type[Any]]] = {request.__name__: request for request in get_args(Request)}
_GENERATIONS: Final[tuple[Generation, ...]] = ("0.1", "0.3", "1.0")


def _rows(table: str) -> list[tuple[Operation, list[str]]]:
    rows = [line.split() for line in table.strip().splitlines()]
    return [(Operation(_REQUESTS[name.removesuffix("+stream")], "+" in name), rest) for name, *rest in rows]


METHODS: Final[dict[Generation, dict[str, Operation]]] = {
    generation: {names[column]: operation for operation, names in _rows(_METHODS) if names[column] != "-"}
    for column, generation in enumerate(_GENERATIONS)
}
"""The methods of each generation."""
OWNERS: Final[dict[str, Generation | None]] = {}
"""The generation of each method; None for a method that several generations share."""
for _generation, _methods in METHODS.items():
    for _method in _methods:
        OWNERS[_method] = None if _method in OWNERS else _generation
NAMES: Final[dict[Generation, dict[tuple[type[Any], bool], str]]] = {
    generation: {operation: name for name, operation in methods.items()} for generation, methods in METHODS.items()
}
"""The name of each operation in each generation."""


def method_of(request: Request, generation: Generation) -> str | None:
    """The name of a request's method in a generation; None where that generation has none."""
    return NAMES[generation].get((type(request), getattr(request, "stream", False)))


class Route(NamedTuple):
    """An HTTP method and path, the operation behind them, and its name on JSON-RPC."""

    http: str
    path: str
    operation: Operation
    method: str

    def fill(self, values: dict[str, str]) -> str:
        """The path with its places filled, percent-encoded."""
        return re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]], safe=""), self.path)


class Match(NamedTuple):
    """A route that was found, and what its places hold, decoded."""

    route: Route
    values: dict[str, str]


class Routes:
    """The REST paths of a generation."""

    def __init__(self, generation: Generation):
        old = generation == "0.3"
        self.routes = tuple(
            Route(
                http,
                ("/v1" + path.replace("extendedAgentCard", "card")) if old else path,
                operation,
                NAMES[generation][operation],
            )
            for operation, (http, path) in _rows(_ROUTES)
        )
        tenant = "" if old else r"(?:/(?P<tenant>[^/]+))?"
        self._patterns = [
            (re.compile(tenant + re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(route.path))), route)
            for route in self.routes
        ]

        # Paths without a place in them, such as that of a message, are found without trying all patterns.
        self._plain = {
            (route.http, route.path): self._search(route.http, route.path).route
            for route in self.routes
            if "{" not in route.path
        }

    def find(self, request: Request) -> Route | None:
        """The first route of a request; None for one that has none."""
        operation = (type(request), getattr(request, "stream", False))
        return next((route for route in self.routes if route.operation == operation), None)

    def match(self, http: str, path: str) -> Match:
        """The route of a path as it came, before percent-decoding.

        MethodNotFound where no route has the path, MethodNotAllowed with ``data["allow"]`` where one has it for another
        method. Of two readings of a path the one without a tenant holds.
        """
        if (route := self._plain.get((http, path))) is not None:
            return Match(route, {})
        return self._search(http, path)

    def _search(self, http: str, path: str) -> Match:
        found = [(match, route) for pattern, route in self._patterns if (match := pattern.fullmatch(path))]
        if not found:
            raise MethodNotFound(f"{path[:200]!r} does not exist here. The agent's card has the addresses.")
        # "/tasks/1:cancel" is the verb cancel of the task "1", never the task "1:cancel": the longer pattern wins.
        found.sort(key=lambda pair: (bool(pair[0].groupdict().get("tenant")), -len(pair[1].path)))
        same_path = [(match, route) for match, route in found if route.path == found[0][1].path]
        for match, route in same_path:
            if route.http == http:
                values = {name: unquote(value) for name, value in match.groupdict().items() if value is not None}
                return Match(route, values)
        allow = ", ".join(sorted({route.http for _, route in same_path}))
        raise MethodNotAllowed(
            f"{path[:200]!r} does not support {http[:20]}. It supports {allow}.", data={"allow": allow}
        )
