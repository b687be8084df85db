"""The agent-to-agent protocol, in every generation and binding.

``wire`` has the messages and their codecs, ``grpc`` their protobuf; ``door`` serves agents, ``peer`` calls agents
elsewhere, ``cards`` reads and signs what agents say of themselves, and ``agents`` are the classes for programs. The
names below are for other packages, and are loaded on first use: a gateway needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.a2a.agents.authoring import build_agent, can_be_agent
    from agent3.protocols.a2a.agents.coordination import Coordinator
    from agent3.protocols.a2a.agents.encryption import A2AEncryption, A2AKeyring
    from agent3.protocols.a2a.agents.executor import AgentExecutor
    from agent3.protocols.a2a.agents.health import HealthMonitor
    from agent3.protocols.a2a.agents.identity import A2AIdentityVerifier, AgentIdentity
    from agent3.protocols.a2a.agents.message_queue import A2AMessageQueue
    from agent3.protocols.a2a.agents.registry import AgentRegistry
    from agent3.protocols.a2a.agents.serving import asgi, listening, serve
    from agent3.protocols.a2a.peer.client import A2AClient, SyncA2AClient
    from agent3.protocols.a2a.protocol import A2A

__all__ = [
    "A2A",
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
    "asgi",
    "build_agent",
    "can_be_agent",
    "listening",
    "serve",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agent3.protocols.a2a.agents.authoring": ("build_agent", "can_be_agent"),
        "agent3.protocols.a2a.agents.coordination": ("Coordinator",),
        "agent3.protocols.a2a.agents.encryption": ("A2AEncryption", "A2AKeyring"),
        "agent3.protocols.a2a.agents.executor": ("AgentExecutor",),
        "agent3.protocols.a2a.agents.health": ("HealthMonitor",),
        "agent3.protocols.a2a.agents.identity": ("A2AIdentityVerifier", "AgentIdentity"),
        "agent3.protocols.a2a.agents.message_queue": ("A2AMessageQueue",),
        "agent3.protocols.a2a.agents.registry": ("AgentRegistry",),
        "agent3.protocols.a2a.agents.serving": ("asgi", "listening", "serve"),
        "agent3.protocols.a2a.peer.client": ("A2AClient", "SyncA2AClient"),
        "agent3.protocols.a2a.protocol": ("A2A",),
    },
)
