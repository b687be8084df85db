"""Agent to agent: put an agent on the network with ``serve`` or ``asgi``, call others with ``A2AClient``.

The names are loaded on first use, because some bring the web server along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.a2a.agents.adapters import adapt
    from agent3.protocols.a2a.agents.authoring import message_in
    from agent3.protocols.a2a.agents.coordination import PlanResult, Undo, step
    from agent3.protocols.a2a.agents.serving import asgi, listening, serve
    from agent3.protocols.a2a.cards.extensions import Extensions
    from agent3.protocols.a2a.door.push import verify
    from agent3.protocols.a2a.peer.client import A2AClient, SyncA2AClient
    from agent3.protocols.a2a.wire.types import ArtifactUpdate, Task

__all__ = [
    "A2AClient",
    "ArtifactUpdate",
    "Extensions",
    "PlanResult",
    "SyncA2AClient",
    "Task",
    "Undo",
    "adapt",
    "asgi",
    "listening",
    "message_in",
    "serve",
    "step",
    "verify",
]

__path__: list[str] = []  # so that agent3.a2a.client and others are asked for: see former_paths

__getattr__, __dir__ = lazy(
    __name__,
    {
        "agent3.protocols.a2a.agents.adapters": ("adapt",),
        "agent3.protocols.a2a.agents.authoring": ("message_in",),
        "agent3.protocols.a2a.agents.coordination": ("PlanResult", "Undo", "step"),
        "agent3.protocols.a2a.agents.serving": ("asgi", "listening", "serve"),
        "agent3.protocols.a2a.cards.extensions": ("Extensions",),
        "agent3.protocols.a2a.door.push": ("verify",),
        "agent3.protocols.a2a.peer.client": ("A2AClient", "SyncA2AClient"),
        "agent3.protocols.a2a.wire.types": ("ArtifactUpdate", "Task"),
    },
)
