"""The Model Context Protocol, and the only room that knows its SDK.

``client`` reaches MCP servers, ``door`` serves MCP clients, and ``library`` holds the documented classes. Imports point
from ``library`` to ``door`` to ``client`` to ``meta_keys``. The names that other rooms may use are importable from here
and loaded on first use: the SDK takes most of a second to load, and ``MCPServer`` does without it until it serves.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent3.protocols.mcp.client.channels import Changing
    from agent3.protocols.mcp.client.connector import MCPConnector, agent_id
    from agent3.protocols.mcp.client.processes import PREFIX, Command
    from agent3.protocols.mcp.client.upstream import place_of
    from agent3.protocols.mcp.door.agent_endpoints import AgentDoors, agent_in
    from agent3.protocols.mcp.door.door import LOOPBACK_HOSTS, LOOPBACK_ORIGINS, DoorOptions, MCPDoor
    from agent3.protocols.mcp.door.fast_lane import FastLane, HungUp, Reply
    from agent3.protocols.mcp.door.gateway_tools import GatewayTools
    from agent3.protocols.mcp.door.passthrough import purged
    from agent3.protocols.mcp.door.tool_texts import INSTRUCTIONS, TOOLS
    from agent3.protocols.mcp.door.toolset import ToolSet
    from agent3.protocols.mcp.library.client import MCPClient
    from agent3.protocols.mcp.library.security import MCPInputValidator, MCPRateLimiter, MCPSecurityManager
    from agent3.protocols.mcp.library.server import MCPServer

__all__ = [
    "INSTRUCTIONS",
    "LOOPBACK_HOSTS",
    "LOOPBACK_ORIGINS",
    "PREFIX",
    "TOOLS",
    "AgentDoors",
    "Changing",
    "Command",
    "DoorOptions",
    "FastLane",
    "GatewayTools",
    "HungUp",
    "MCPClient",
    "MCPConnector",
    "MCPDoor",
    "MCPInputValidator",
    "MCPRateLimiter",
    "MCPSecurityManager",
    "MCPServer",
    "Reply",
    "ToolSet",
    "agent_id",
    "agent_in",
    "place_of",
    "purged",
]

_HOMES = {
    "client.channels": ("Changing",),
    "client.connector": ("MCPConnector", "agent_id"),
    "client.processes": ("PREFIX", "Command"),
    "client.upstream": ("place_of",),
    "door.agent_endpoints": ("AgentDoors", "agent_in"),
    "door.door": ("LOOPBACK_HOSTS", "LOOPBACK_ORIGINS", "DoorOptions", "MCPDoor"),
    "door.fast_lane": ("FastLane", "HungUp", "Reply"),
    "door.gateway_tools": ("GatewayTools",),
    "door.passthrough": ("purged",),
    "door.tool_texts": ("INSTRUCTIONS", "TOOLS"),
    "door.toolset": ("ToolSet",),
    "library.client": ("MCPClient",),
    "library.security": ("MCPInputValidator", "MCPRateLimiter", "MCPSecurityManager"),
    "library.server": ("MCPServer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
