"""The gateways that a request came through. A gateway that finds itself among them ends the loop at once.

Each gateway has an id, the same for all processes on its database, and writes it behind those that it was given: in the
header ``Agent3-Via`` of what it sends over HTTP, and in the ``_meta`` of MCP requests, which also pass a program that
only hands messages on. So a gateway is never added to itself either, by whatever way it is reached.
"""

from __future__ import annotations

from contextvars import ContextVar

from agent3.errors import LoopDetected

__all__ = ["HEADER", "META", "enter", "outgoing"]

HEADER = "Agent3-Via"
META = "io.agent3/via"
"""The key in the ``_meta`` of an MCP request; in that of a tool, the gateway whose own tool it is."""
_MOST = 16
"""Gateways that a request may come through."""
_LONGEST = 1_000
"""Characters of all their ids together."""

_came_by: ContextVar[tuple[str, ...]] = ContextVar("agent3_via", default=())


def enter(own: str, given: str) -> None:
    """Note which gateways the request of the current task came through; LoopDetected if ``own`` is one of them."""
    ids = tuple(name for part in given[: _LONGEST + 1].split(",") if (name := part.strip()))
    if own in ids:
        raise LoopDetected("This is the gateway that the request came from. A gateway does not call itself.")
    if len(ids) > _MOST or len(given) > _LONGEST:
        raise LoopDetected(f"The request came through more than {_MOST} gateways.")
    _came_by.set(ids)


def outgoing(own: str) -> str:
    """What a request that leaves the gateway ``own`` says of its way."""
    return ", ".join((*_came_by.get(), own))
