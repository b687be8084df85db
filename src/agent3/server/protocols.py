"""The protocols of this installation: our own, and those that other packages bring by an entry point."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from agent3.errors import SetupError
from agent3.gateway.protocol import Protocol
from agent3.observe.logs import get as logger

__all__ = ["GROUP", "load_protocols"]

log = logger("server")

GROUP = "agent3.protocols"
_OURS = (
    "agent3.protocols.functions.protocol:Functions",
    "agent3.protocols.mcp.protocol:MCP",
    "agent3.protocols.a2a.protocol:A2A",
    "agent3.protocols.openapi.protocol:OpenAPI",
    "agent3.protocols.nlweb.protocol:NLWeb",
)


def load_protocols() -> list[type[Protocol]]:
    """All of them, ours first. One of another package that cannot be loaded is logged and left out."""
    found: dict[str, type[Protocol]] = {}
    for place in _OURS:
        module, _, name = place.partition(":")
        kind = getattr(import_module(module), name)
        found[kind.name] = kind
    for entry in entry_points(group=GROUP):
        if entry.value in _OURS:
            continue
        try:
            kind = entry.load()
            if not (isinstance(kind, type) and issubclass(kind, Protocol)):
                raise SetupError(f"{entry.value} is not a subclass of agent3.gateway.protocol.Protocol.")
        except Exception:
            log.exception("ignoring the protocol %s (%s), which could not be loaded", entry.name, entry.value)
            continue
        if kind.name in found:
            log.error("ignoring the protocol %s (%s): a protocol of that name exists", kind.name, entry.value)
            continue
        found[kind.name] = kind
    return list(found.values())
