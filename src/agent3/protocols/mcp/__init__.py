"""The Model Context Protocol, and the only room that knows its SDK.

``client`` reaches MCP servers, ``door`` serves MCP clients, ``library`` holds the documented classes, and ``protocol``
is what the gateway knows of all this. Imports point from ``protocol`` and ``library`` to ``door`` to ``client``. The
names that other rooms may use are loaded on first use: the SDK takes most of a second to load, and ``MCPServer`` does
without it until it serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.mcp.client.connector import MCPConnector
    from agent3.protocols.mcp.client.processes import Command
    from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor
    from agent3.protocols.mcp.door.toolset import Caller, Tool, ToolSet
    from agent3.protocols.mcp.library.client import MCPClient
    from agent3.protocols.mcp.library.security import MCPInputValidator, MCPRateLimiter, MCPSecurityManager
    from agent3.protocols.mcp.library.server import MCPServer
    from agent3.protocols.mcp.protocol import MCP

__all__ = ["MCP", "Caller", "Command", "DoorOptions", "MCPClient", "MCPConnector", "MCPDoor", "MCPInputValidator",
           "MCPRateLimiter", "MCPSecurityManager", "MCPServer", "Tool", "ToolSet"]  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agent3.protocols.mcp.protocol": ("MCP",),
        "agent3.protocols.mcp.client.connector": ("MCPConnector",),
        "agent3.protocols.mcp.client.processes": ("Command",),
        "agent3.protocols.mcp.door.door": (
            "DoorOptions",
            "MCPDoor",
        ),
        "agent3.protocols.mcp.door.toolset": (
            "Caller",
            "Tool",
            "ToolSet",
        ),
        "agent3.protocols.mcp.library.client": ("MCPClient",),
        "agent3.protocols.mcp.library.security": (
            "MCPInputValidator",
            "MCPRateLimiter",
            "MCPSecurityManager",
        ),
        "agent3.protocols.mcp.library.server": ("MCPServer",),
    },
)
