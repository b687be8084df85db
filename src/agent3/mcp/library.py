"""The documented ``MCPServer``: a synchronous face over the call core.

A registered tool runs under the same steps as everything else in the house. This module knows no wire and no SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from agent3.calls.functions import LocalAgent
from agent3.calls.standalone import Standalone, shared
from agent3.definitions import ToolDefinition
from agent3.errors import CapabilityNotFound, Conflict
from agent3.model import LOCAL, Capability, Done, Failed, Outcome, Price, Principal
from agent3.observe.metrics import METRICS
from agent3.observe.performance import MCPPerformanceMonitor
from agent3.schema import from_function, nearest

__all__ = ["MCPServer"]

F = TypeVar("F", bound=Callable[..., Any])


class MCPServer:
    """A set of tools under one name. Safe from any thread, and inside a running loop.

    server = MCPServer(name="travel")
    server.register_tool(ToolDefinition(name="search_flights", parameters=[…]), search_flights)
    """

    def __init__(self, name: str, *, description: str = "", version: str = "1", core: Standalone | None = None):
        self.name = name
        self._core = core or shared()
        self._agent = LocalAgent(name, description=description, version=version)
        self._core.host(self._agent)
        self._definitions: dict[str, ToolDefinition] = {}

    def register_tool(self, definition: ToolDefinition, function: Callable[..., Any]) -> None:
        """Offer a tool; Conflict when the name is taken."""
        if definition.name in self._definitions:
            raise Conflict(f"Server {self.name!r} has a tool {definition.name!r} already. Unregister it first.")
        self._agent.add(
            function,
            name=definition.name,
            description=definition.description,
            input_schema=definition.to_schema(),
            output_schema=definition.returns,
            read_only=definition.read_only,
            idempotent=definition.idempotent,
            consequential=definition.consequential,
            timeout=definition.timeout,
            cache_ttl=definition.cache_ttl,
            price=Price(call=definition.cost),
            tags=tuple(definition.tags),
            examples=tuple(definition.examples),
            version=definition.version,
        )
        self._definitions[definition.name] = definition

    @overload
    def tool(self, function: F) -> F: ...

    @overload
    def tool(self, function: None = None, **options: Any) -> Callable[[F], F]: ...

    def tool(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Offer a function as a tool; its signature and docstring are the definition."""
        if function is None:
            return lambda given: self.tool(given, **options)
        self.register_tool(_definition_of(function, options), function)
        return function

    def unregister(self, name: str) -> None:
        """Take a tool back."""
        if self._definitions.pop(name, None) is None:
            raise self._unknown(name)
        self._agent.remove(name)

    @MCPPerformanceMonitor.enforce_latency("list_tools")
    def list_tools(self) -> list[ToolDefinition]:
        """All tools, in the order of their registration."""
        return list(self._definitions.values())

    def call_tool(self, name: str, arguments: Mapping[str, Any], principal: Principal = LOCAL) -> Outcome:
        """One call through all steps; waits for its outcome."""
        outcome = self._core.call(self._agent, self._capability(name), dict(arguments), principal)
        METRICS.mcp_tool_invocations.inc((name, _word(outcome)))
        return outcome

    def close(self) -> None:
        """Forget the server and its tools."""
        self._core.drop(self._agent)
        self._agent.functions.clear()
        self._definitions.clear()

    def _capability(self, name: str) -> Capability:
        function = self._agent.functions.get(name)
        if function is None:
            METRICS.mcp_tool_invocations.inc(("unknown", "error"))
            raise self._unknown(name)
        return function.capability

    def _unknown(self, name: str) -> CapabilityNotFound:
        near = nearest(name, self._definitions)
        hint = f" Did you mean {near!r}?" if near else ""
        data = {"nearest": [near]} if near else None
        return CapabilityNotFound(f"Server {self.name!r} has no tool {name[:100]!r}.{hint}", data=data)


def _definition_of(function: Callable[..., Any], options: Mapping[str, Any]) -> ToolDefinition:
    signature = from_function(function)
    plain = {"name": function.__name__, "description": signature.description, "input_schema": signature.input}
    return ToolDefinition(**{**plain, **options})


def _word(outcome: Outcome) -> str:
    return "success" if isinstance(outcome, Done) else "error" if isinstance(outcome, Failed) else "working"
