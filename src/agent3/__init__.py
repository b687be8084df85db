"""Any agent, any tool, any website, one call.

The documented names are importable from here and loaded on first use: ``import agent3`` itself loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent3._version import __version__

if TYPE_CHECKING:
    from agent3.a2a.client import A2AClient, SyncA2AClient
    from agent3.a2a.coordination import Coordinator
    from agent3.a2a.encryption import A2AEncryption, A2AKeyring
    from agent3.a2a.executor import AgentExecutor
    from agent3.a2a.health import HealthMonitor
    from agent3.a2a.identity import A2AIdentityVerifier, AgentIdentity
    from agent3.a2a.queue import A2AMessageQueue
    from agent3.a2a.registry import AgentRegistry
    from agent3.calls.functions import Context, LocalAgent, SyncContext
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
    from agent3.mcp.client import MCPClient
    from agent3.mcp.library import MCPServer
    from agent3.mcp.security import MCPInputValidator, MCPRateLimiter, MCPSecurityManager
    from agent3.nlweb.executor import NLWebExecutor
    from agent3.nlweb.sandbox import NLWebSandbox
    from agent3.observe.performance import MCPPerformanceMonitor, NLWebPerformanceMonitor

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
    "agent3.a2a.client": ("A2AClient", "SyncA2AClient"),
    "agent3.a2a.coordination": ("Coordinator",),
    "agent3.a2a.encryption": ("A2AEncryption", "A2AKeyring"),
    "agent3.a2a.executor": ("AgentExecutor",),
    "agent3.a2a.health": ("HealthMonitor",),
    "agent3.a2a.identity": ("A2AIdentityVerifier", "AgentIdentity"),
    "agent3.a2a.queue": ("A2AMessageQueue",),
    "agent3.a2a.registry": ("AgentRegistry",),
    "agent3.calls.functions": ("Context", "LocalAgent", "SyncContext"),
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
    "agent3.mcp.client": ("MCPClient",),
    "agent3.mcp.library": ("MCPServer",),
    "agent3.mcp.security": ("MCPInputValidator", "MCPRateLimiter", "MCPSecurityManager"),
    "agent3.nlweb.executor": ("NLWebExecutor",),
    "agent3.nlweb.sandbox": ("NLWebSandbox",),
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
