"""Any agent, any tool, any website, one call.

The documented names are importable from here and loaded on first use: ``import agent3`` loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent3._version import __version__

if TYPE_CHECKING:
    from agent3.definitions import (
        A2AMessage,
        ActionType,
        AgentCapability,
        AgentCard,
        MessageType,
        NLWebAction,
        NLWebInterface,
        ToolDefinition,
        ToolParameter,
    )
    from agent3.errors import Agent3Error, SecurityError, ValidationError
    from agent3.observe.performance import MCPPerformanceMonitor, NLWebPerformanceMonitor
    from agent3.protocols.a2a import (
        A2AClient,
        A2AEncryption,
        A2AIdentityVerifier,
        A2AKeyring,
        A2AMessageQueue,
        AgentExecutor,
        AgentIdentity,
        AgentRegistry,
        Coordinator,
        HealthMonitor,
        SyncA2AClient,
    )
    from agent3.protocols.functions.functions import Context, LocalAgent, SyncContext
    from agent3.protocols.mcp.library.client import MCPClient
    from agent3.protocols.mcp.library.security import MCPInputValidator, MCPRateLimiter, MCPSecurityManager
    from agent3.protocols.mcp.library.server import MCPServer
    from agent3.protocols.nlweb.browser.sandbox import NLWebSandbox
    from agent3.protocols.nlweb.executor import NLWebExecutor

__all__ = [
    "A2AClient",
    "A2AEncryption",
    "A2AIdentityVerifier",
    "A2AKeyring",
    "A2AMessage",
    "A2AMessageQueue",
    "ActionType",
    "Agent3Error",
    "AgentCapability",
    "AgentCard",
    "AgentExecutor",
    "AgentIdentity",
    "AgentRegistry",
    "Context",
    "Coordinator",
    "HealthMonitor",
    "LocalAgent",
    "MCPClient",
    "MCPInputValidator",
    "MCPPerformanceMonitor",
    "MCPRateLimiter",
    "MCPSecurityManager",
    "MCPServer",
    "MessageType",
    "NLWebAction",
    "NLWebExecutor",
    "NLWebInterface",
    "NLWebPerformanceMonitor",
    "NLWebSandbox",
    "SecurityError",
    "SyncA2AClient",
    "SyncContext",
    "ToolDefinition",
    "ToolParameter",
    "ValidationError",
    "__version__",
]

_HOMES = {
    "agent3.protocols.a2a": (
        "A2AClient",
        "A2AEncryption",
        "A2AIdentityVerifier",
        "A2AKeyring",
        "A2AMessageQueue",
        "AgentExecutor",
        "AgentIdentity",
        "AgentRegistry",
        "Coordinator",
        "HealthMonitor",
        "SyncA2AClient",
    ),
    "agent3.protocols.functions.functions": ("Context", "LocalAgent", "SyncContext"),
    "agent3.definitions": (
        "A2AMessage",
        "ActionType",
        "AgentCapability",
        "AgentCard",
        "MessageType",
        "NLWebAction",
        "NLWebInterface",
        "ToolDefinition",
        "ToolParameter",
    ),
    "agent3.errors": ("Agent3Error", "SecurityError", "ValidationError"),
    "agent3.protocols.mcp.library.client": ("MCPClient",),
    "agent3.protocols.mcp.library.server": ("MCPServer",),
    "agent3.protocols.mcp.library.security": ("MCPInputValidator", "MCPRateLimiter", "MCPSecurityManager"),
    "agent3.protocols.nlweb.executor": ("NLWebExecutor",),
    "agent3.protocols.nlweb.browser.sandbox": ("NLWebSandbox",),
    "agent3.observe.performance": ("MCPPerformanceMonitor", "NLWebPerformanceMonitor"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'agent3' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
