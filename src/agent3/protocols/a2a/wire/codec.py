"""What every codec can do: the wire of one generation and binding on one side, ``wire.types`` on the other.

A codec serves both ends. A server uses ``read_request``, ``write_result``, ``write_item`` and ``write_error``; a client
``write_request``, ``read_result``, ``read_item`` and ``read_error``. Codecs hold no task and reach no network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from agent3.errors import Agent3Error, MethodNotFound, ParseError, ValidationError
from agent3.protocols.a2a.wire.decoding import as_malformed, fault, invalid
from agent3.protocols.a2a.wire.errors import Profile, read_rest, read_rpc, write_rest, write_rpc
from agent3.protocols.a2a.wire.operations import METHODS, Match, Operation, Route, Routes
from agent3.protocols.a2a.wire.types import Generation, Item, Message, Push, PushPage, Reply, Request, Task, TaskPage

__all__ = ["Answers", "Codec", "RestCodec", "Value", "check_reply"]

Value: TypeAlias = Task | Message | TaskPage | Push | PushPage | dict[str, Any] | None
"""What a request is answered with; the dict is a card."""


class Answers(ABC):
    """Reading what an agent answered, which is the same on JSON-RPC and REST."""

    generation: Generation

    def read_result(self, request: Request, result: Any) -> Value:
        """The answer to a request; ``result`` is JSON in bytes, or decoded. MalformedResponse."""
        try:
            return self._read(request, result)
        except (ValidationError, ParseError) as error:
            raise as_malformed(error) from None

    def read_item(self, result: Any) -> Item:
        """One item of a stream. MalformedResponse."""
        try:
            return self._read_item(result)
        except (ValidationError, ParseError) as error:
            raise as_malformed(error) from None

    @abstractmethod
    def _read(self, request: Request, result: Any) -> Value: ...

    @abstractmethod
    def _read_item(self, result: Any) -> Item: ...

    @abstractmethod
    def write_result(self, request: Request, value: Value) -> bytes:
        """The JSON of an answer."""

    @abstractmethod
    def write_item(self, item: Item, request: Request) -> bytes:
        """The JSON of one item of a stream."""


class Codec(Answers):
    """A generation on JSON-RPC."""

    def __init__(self) -> None:
        methods = METHODS[self.generation]
        self._readers = {method: self._reader_of(operation) for method, operation in methods.items()}

    def read_request(self, method: str, params: Any) -> Request:
        """The request of a method; ``params`` is JSON in bytes (or ``msgspec.Raw``), or decoded.

        MethodNotFound, ValidationError, ParseError.
        """
        read = self._readers.get(method)
        if read is None:
            known = ", ".join(self._readers)
            raise MethodNotFound(f"A2A {self.generation} has no method {method[:100]!r}. It has {known}.")
        return read({} if params is None else params)

    @abstractmethod
    def _reader_of(self, operation: Operation) -> Callable[[Any], Request]:
        """What reads the params of an operation."""

    @abstractmethod
    def write_request(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The method and params of a request."""

    def write_error(self, error: Agent3Error) -> dict[str, Any]:
        """The JSON-RPC error object."""
        return write_rpc(error, self.generation)

    def read_error(self, error: Any) -> Agent3Error:
        """The error that a decoded JSON-RPC error object stands for."""
        return read_rpc(error, self.generation)


class RestCodec(Answers):
    """A generation on REST; ``profile`` says whose table of HTTP statuses holds."""

    def __init__(self, profile: Profile = "1.0.1") -> None:
        self._profile = profile
        self._routes = Routes(self.generation)
        self.routes = self._routes.routes

    def match(self, http: str, path: str) -> Match:
        """The route of a raw path below the agent's address. MethodNotFound, MethodNotAllowed."""
        return self._routes.match(http, path)

    @abstractmethod
    def read_request(self, route: Route, values: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Request:
        """The request at a route. ParseError, ValidationError."""

    @abstractmethod
    def write_request(self, request: Request) -> tuple[str, str, dict[str, str], bytes | None]:
        """HTTP method, path, query and body of a request."""

    def _route_of(self, request: Request) -> Route:
        route = self._routes.find(request)
        if route is None:
            name = type(request).__name__
            raise MethodNotFound(f"{name} has no path in the REST binding of A2A {self.generation}. Use JSON-RPC.")
        return route

    def write_error(self, error: Agent3Error) -> tuple[int, dict[str, Any]]:
        """HTTP status and body."""
        return write_rest(error, self.generation, self._profile)

    def read_error(self, status: int, body: Any) -> Agent3Error:
        """The error that a status and its decoded body stand for."""
        return read_rest(status, body)


def check_reply(item: Item) -> Reply:
    """Require the answer to a message to be a task or a message. ValidationError."""
    if isinstance(item, (Task, Message)):
        return item
    raise invalid([fault("", "The answer to a message must be a task or a message")])
