"""Any agent, any tool, any website, one call.

The documented names are importable from here and loaded on first use: ``import agent3`` loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3 import former_paths
from agent3._version import __version__
from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.client.client import AsyncClient, Client
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
    from agent3.protocols.a2a.agents.coordination import Coordinator
    from agent3.protocols.a2a.agents.encryption import A2AEncryption, A2AKeyring
    from agent3.protocols.a2a.agents.executor import AgentExecutor
    from agent3.protocols.a2a.agents.health import HealthMonitor
    from agent3.protocols.a2a.agents.identity import A2AIdentityVerifier, AgentIdentity
    from agent3.protocols.a2a.agents.message_queue import A2AMessageQueue
    from agent3.protocols.a2a.agents.registry import AgentRegistry
    from agent3.protocols.a2a.peer.client import A2AClient, SyncA2AClient
    from agent3.protocols.functions.functions import Context, LocalAgent, SyncContext
    from agent3.protocols.functions.standalone import Standalone
    from agent3.protocols.mcp.library.client import MCPClient
    from agent3.protocols.mcp.library.security import MCPInputValidator, MCPRateLimiter, MCPSecurityManager
    from agent3.protocols.mcp.library.server import MCPServer
    from agent3.protocols.nlweb.browser.sandbox import NLWebSandbox
    from agent3.protocols.nlweb.executor import NLWebExecutor
    from agent3.server.apps import App

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
    "App",
    "AsyncClient",
    "Client",
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
    "Standalone",
    "SyncA2AClient",
    "SyncContext",
    "ToolDefinition",
    "ToolParameter",
    "ValidationError",
    "__version__",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agent3.client.client": ("AsyncClient", "Client"),
        "agent3.protocols.a2a.peer.client": ("A2AClient", "SyncA2AClient"),
        "agent3.protocols.a2a.agents.coordination": ("Coordinator",),
        "agent3.protocols.a2a.agents.encryption": ("A2AEncryption", "A2AKeyring"),
        "agent3.protocols.a2a.agents.executor": ("AgentExecutor",),
        "agent3.protocols.a2a.agents.health": ("HealthMonitor",),
        "agent3.protocols.a2a.agents.identity": ("A2AIdentityVerifier", "AgentIdentity"),
        "agent3.protocols.a2a.agents.message_queue": ("A2AMessageQueue",),
        "agent3.protocols.a2a.agents.registry": ("AgentRegistry",),
        "agent3.protocols.functions.functions": ("Context", "LocalAgent", "SyncContext"),
        "agent3.protocols.functions.standalone": ("Standalone",),
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
        "agent3.server.apps": ("App",),
        "agent3.observe.performance": ("MCPPerformanceMonitor", "NLWebPerformanceMonitor"),
    },
)
former_paths.install()
