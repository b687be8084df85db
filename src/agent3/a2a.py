"""Agent to agent: ``serve`` and ``asgi`` put an agent on the network, in every generation of the protocol.

They are loaded on first use, because they bring the web server along.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent3.protocols.a2a.agents.serving import asgi, listening, serve

__all__ = ["asgi", "listening", "serve"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'agent3.a2a' has no attribute {name!r}")
    return getattr(import_module("agent3.protocols.a2a.agents.serving"), name)
