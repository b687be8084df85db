"""The client side of A2A: calls to agents elsewhere, in every generation and binding of the protocol.

``A2AConnector`` serves the gateway, ``A2AClient`` and ``SyncA2AClient`` serve programs. Their layers, from the top:
connector and client, then ``peers`` (interfaces, credentials, broken connections), then ``bindings`` (one exchange).
``translation`` turns calls into messages and tasks into outcomes. The names below are loaded on first use, because
they bring the HTTP client along.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent3.protocols.a2a.peer.card_discovery import explain_key_change
    from agent3.protocols.a2a.peer.client import A2AClient, SyncA2AClient
    from agent3.protocols.a2a.peer.connector import A2AConnector
    from agent3.protocols.a2a.peer.push_receiver import PushReceiver
    from agent3.protocols.a2a.peer.translation import GIVEN, SIGNATURE

__all__ = ["GIVEN", "SIGNATURE", "A2AClient", "A2AConnector", "PushReceiver", "SyncA2AClient", "explain_key_change"]

_MODULES = {
    "A2AClient": "client",
    "A2AConnector": "connector",
    "GIVEN": "translation",
    "PushReceiver": "push_receiver",
    "SIGNATURE": "translation",
    "SyncA2AClient": "client",
    "explain_key_change": "card_discovery",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
