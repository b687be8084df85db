"""Agent to agent: ``serve`` and ``asgi`` put an agent on the network, in every generation of the protocol.

They are loaded on first use, because they bring the web server along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent3.lazy import lazy

if TYPE_CHECKING:
    from agent3.protocols.a2a import asgi, listening, serve

__all__ = ["asgi", "listening", "serve"]

__getattr__, __dir__ = lazy(__name__, {"agent3.protocols.a2a": __all__})
