"""A2A 1.0 on REST: the JSON of 1.0 with parameters in path and query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

import agent3.protocols.a2a.wire.v10 as v10
from agent3.errors import Agent3Error, MalformedResponse, MethodNotFound
from agent3.protocols.a2a.wire import errors as faults
from agent3.protocols.a2a.wire.decoding import Reader, camel
from agent3.protocols.a2a.wire.errors import Profile
from agent3.protocols.a2a.wire.routes import Match, Route, Routes
from agent3.protocols.a2a.wire.types import Generation, Item, Message, Request, Send, Task
from agent3.protocols.a2a.wire.v10 import Value

__all__ = ["Rest10"]

_object = Reader(dict[str, Any], "body")
_TEXTS: Final[dict[str, Callable[..., Request]]] = {
    "ListTasks": v10.read_list,
    "GetTask": v10.read_get,
    "ListTaskPushNotificationConfigs": v10.read_list_push,
}
"""Operations whose numbers come as texts."""


class Rest10:
    """The codec of 1.0 on REST; ``profile`` says whose table of statuses holds."""

    generation: Generation = "1.0"

    def __init__(self, profile: Profile = "1.0.1"):
        self.profile = profile
        self._routes = Routes(v10.ROUTES, tenants=True)
        self.routes = self._routes.routes
        self._by_operation = {one.operation: one for one in reversed(v10.ROUTES)}

    def match(self, http: str, path: str) -> Match:
        """The route of a raw path below the agent's address. MethodNotFound, MethodNotAllowed."""
        return self._routes.match(http, path)

    def request(self, route: Route, values: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Request:
        """What is asked. Path outweighs query and body. ParseError, ValidationError."""
        if route.operation in ("SendMessage", "SendStreamingMessage"):
            sent = v10.read_send(body or b"{}", route.operation == "SendStreamingMessage")
            return msgspec.structs.replace(sent, tenant=values["tenant"]) if "tenant" in values else sent
        if route.operation in _TEXTS:
            return _TEXTS[route.operation]({**query, **values}, lax=True)
        given = camel(_object(body)) if body and route.http == "POST" else query
        return v10.METHODS[route.operation]({**given, **values})

    def result(self, request: Request, value: Value) -> bytes:
        """The body of an answer."""
        return v10.write_result(request, value)

    def item(self, item: Item, request: Request) -> bytes:
        """The data of one event."""
        return v10.write_item(item)

    def error(self, wrong: Agent3Error) -> tuple[int, dict[str, Any]]:
        """HTTP status and body."""
        return faults.rest(wrong, "1.0", self.profile)

    def ask(self, request: Request) -> tuple[str, str, dict[str, str], bytes | None]:
        """HTTP method, path, query and body of a request."""
        route = self._by_operation.get(v10.method_of(request))
        if route is None:
            raise MethodNotFound(f"{type(request).__name__} has no path in the REST binding; ask over JSON-RPC")
        given = v10.parameters(request)
        tenant = given.pop("tenant", None)
        places = {name: str(given.pop(name)) for name in ("id", "taskId") if f"{{{name}}}" in route.path}
        path = (f"/{tenant}" if tenant else "") + route.filled(places)
        if route.http == "POST":
            return route.http, path, {}, msgspec.json.encode(given)
        return route.http, path, {name: _text(one) for name, one in given.items()}, None

    def read(self, request: Request, result: Any) -> Value:
        """What a request was answered with. MalformedResponse."""
        if not isinstance(request, Send):
            return v10.read_value(request, result)
        item = v10.read_item(result)
        if isinstance(item, (Task, Message)):
            return item
        raise MalformedResponse("The agent's answer to a message is neither a task nor a message")

    def read_item(self, result: Any) -> Item:
        """One event of a stream."""
        return v10.read_item(result)

    def read_error(self, status: int, body: Any) -> Agent3Error:
        """The error that a status and its decoded body stand for."""
        return faults.read_rest(status, body)


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
