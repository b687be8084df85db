"""Tools over the Model Context Protocol: offer them with ``MCPServer``, use them with ``MCPClient``.

The names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.mcp.library.client import MCPClient
    from agent3.protocols.mcp.library.security import (
        GuardedTools,
        MCPInputValidator,
        MCPRateLimiter,
        MCPSecurityManager,
    )
    from agent3.protocols.mcp.library.server import MCPServer

__all__ = ["GuardedTools", "MCPClient", "MCPInputValidator", "MCPRateLimiter", "MCPSecurityManager", "MCPServer"]

__path__: list[str] = []  # so that agent3.mcp.security is asked for: see former_paths

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agent3.protocols.mcp.library.client": ("MCPClient",),
        "agent3.protocols.mcp.library.security": (
            "GuardedTools",
            "MCPInputValidator",
            "MCPRateLimiter",
            "MCPSecurityManager",
        ),
        "agent3.protocols.mcp.library.server": ("MCPServer",),
    },
)
