"""Tools, resources and prompts over the Model Context Protocol: ``MCPServer`` offers them, ``MCPClient`` uses tools.

The names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.functions.client_requests import Root, Sample
    from agent3.protocols.mcp.door.toolset import CompletionResult, FilledPrompt, PromptMessage
    from agent3.protocols.mcp.library.client import MCPClient
    from agent3.protocols.mcp.library.offers import assistant, embed, user
    from agent3.protocols.mcp.library.security import (
        GuardedTools,
        MCPInputValidator,
        MCPRateLimiter,
        MCPSecurityManager,
    )
    from agent3.protocols.mcp.library.server import MCPServer

__all__ = ["CompletionResult", "FilledPrompt", "GuardedTools", "MCPClient", "MCPInputValidator", "MCPRateLimiter",
           "MCPSecurityManager", "MCPServer", "PromptMessage", "Root", "Sample", "assistant", "embed",
           "user"]  # fmt: skip

__path__: list[str] = []  # so that agent3.mcp.security is asked for: see former_paths

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agent3.protocols.functions.client_requests": ("Root", "Sample"),
        "agent3.protocols.mcp.door.toolset": ("CompletionResult", "FilledPrompt", "PromptMessage"),
        "agent3.protocols.mcp.library.client": ("MCPClient",),
        "agent3.protocols.mcp.library.offers": ("assistant", "embed", "user"),
        "agent3.protocols.mcp.library.security": (
            "GuardedTools",
            "MCPInputValidator",
            "MCPRateLimiter",
            "MCPSecurityManager",
        ),
        "agent3.protocols.mcp.library.server": ("MCPServer",),
    },
)
