"""The documented ``MCPClient``: finds and runs the tools of servers, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent3.calls.outcomes import REFUSALS, error_of
from agent3.definitions import ToolDefinition
from agent3.errors import CapabilityNotFound, SetupError
from agent3.mcp.library import MCPServer
from agent3.model import Done, Failed, Needs, Working, value_of
from agent3.schema import nearest

__all__ = ["MCPClient"]


class MCPClient:
    """Finds and runs the tools of the servers it is connected to. ``llm_client`` is kept for function calling."""

    def __init__(self, llm_client: Any = None):
        self.llm_client = llm_client
        self._servers: list[MCPServer] = []

    def connect_to_server(self, server: MCPServer) -> None:
        """Connect to a server of this process."""
        if not isinstance(server, MCPServer):
            raise SetupError(f"connect_to_server takes an MCPServer of this process, got {type(server).__name__}.")
        if server not in self._servers:
            self._servers.append(server)

    def get_available_tools(self) -> list[ToolDefinition]:
        """The tools of all connected servers. Where two bear one name, the server connected first has it."""
        found: dict[str, ToolDefinition] = {}
        for server in self._servers:
            for definition in server.list_tools():
                found.setdefault(definition.name, definition)
        return list(found.values())

    list_tools = get_available_tools

    def invoke_tool(self, name: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a tool: ``{"status": "success", "result": …}``, or ``"error"`` when the tool itself failed.

        What is refused before the tool is asked raises: ValidationError, CapabilityNotFound, RateLimited, ….
        """
        outcome = self._server_of(name).call_tool(name, parameters or {})
        if isinstance(outcome, Done):
            return {"status": "success", "result": value_of(outcome.parts)}
        if isinstance(outcome, Failed):
            return _failure(outcome)
        return _unfinished(outcome)

    def _server_of(self, name: str) -> MCPServer:
        for server in self._servers:
            if any(one.name == name for one in server.list_tools()):
                return server
        names = [one.name for one in self.get_available_tools()]
        near = nearest(name, names)
        hint = f"Did you mean {near!r}?" if near else f"There are {len(names)} tools."
        data = {"nearest": [near]} if near else None
        raise CapabilityNotFound(f"No connected server has a tool {name[:100]!r}. {hint}", data=data)


def _failure(failed: Failed) -> dict[str, Any]:
    if failed.code in REFUSALS:
        raise error_of(failed)
    error = {"code": failed.code, "message": failed.message, "retryable": failed.retryable}
    return {"status": "error", "error": error}


def _unfinished(outcome: Needs | Working) -> dict[str, Any]:
    if isinstance(outcome, Working):
        return {"status": "working", "job": outcome.job}
    return {"status": "needs", "job": outcome.job, "questions": [one.text for one in outcome.questions]}
