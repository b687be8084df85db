"""The way that a request came: the gateways it passed, and the calls it was made inside of. No loop goes on for ever.

Each gateway has an id, the same for all processes on its database, and writes it behind those that it was given: in the
header ``Agent3-Via`` of what it sends over HTTP, and in the ``_meta`` of MCP requests, which also pass a program that
only hands messages on. So a gateway is never added to itself either, by whatever way it is reached.

An agent may well call the gateway that called it, for another agent. So each call also leaves a mark of its own on what
is sent while it runs, by the gateway and by every client of ours that is used inside a function. A capability whose
mark is there already would call itself. A mark tells nobody which agent it stands for, except its own gateway.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from contextvars import ContextVar

from agent3.errors import LoopDetected

__all__ = ["HEADER", "META", "check_calls", "enter", "inside", "mark_of", "outgoing", "set_inside"]

HEADER = "Agent3-Via"
META = "io.agent3/via"
"""The key in the ``_meta`` of an MCP request; in that of a tool, the gateway whose own tool it is."""
_MOST = 16
"""Gateways that a request may come through, and calls that it may be made inside of."""
_LONGEST = 1_000
"""Characters of all ids and marks together."""
_MARK = "~"
"""What a mark begins with, so that it is not taken for a gateway."""
_MOST_NAMES = 10_000

_came_by: ContextVar[tuple[str, ...]] = ContextVar("agent3_via", default=())
_inside: ContextVar[tuple[str, ...]] = ContextVar("agent3_inside", default=())
_names: OrderedDict[str, str] = OrderedDict()
"""What the latest marks of this process stand for, for error texts."""


def enter(own: str, given: str) -> None:
    """Note the way of the request of the current task; LoopDetected if ``own`` is on it, or if it is too long."""
    steps = [step for part in given[: _LONGEST + 1].split(",") if (step := part.strip())]
    ids = tuple(step for step in steps if not step.startswith(_MARK))
    if own in ids:
        raise LoopDetected("The request came from this gateway itself, and a gateway does not call itself.")
    if len(ids) > _MOST or len(given) > _LONGEST:
        raise LoopDetected(f"The request came through more than {_MOST} gateways.")
    _came_by.set(ids)
    _inside.set(tuple(step for step in steps if step.startswith(_MARK)))


def outgoing(own: str) -> str:
    """What a request says of its way: one that leaves the gateway ``own``, or with "" a client outside of gateways.

    Such a client names no gateways: to call back the one that called is no loop, as long as the calls are others.
    """
    gateways = (*_came_by.get(), own) if own else ()
    return ", ".join((*gateways, *_inside.get()))


# Every call asks and sets them: the variable itself, without a frame around it.
inside = _inside.get
"""The marks of the calls that the current task is inside of, the outermost first."""
set_inside = _inside.set
"""Set them for what the current task does from now on."""


def mark_of(gateway: str, agent: str, capability: str) -> str:
    """The mark of a capability of a gateway."""
    digest = hashlib.sha256(f"{gateway}\n{agent}\n{capability}".encode("utf-8", "surrogatepass")).hexdigest()
    mark = f"{_MARK}{digest[:16]}"
    _names[mark] = f"{agent}/{capability}"
    _names.move_to_end(mark)
    if len(_names) > _MOST_NAMES:
        _names.popitem(last=False)
    return mark


def check_calls(marks: tuple[str, ...], own: str) -> None:
    """LoopDetected, with the path, if a call of the mark ``own`` would call itself, or is inside of too many."""
    if own in marks:
        why = "it would call itself"
    elif len(marks) >= _MOST:
        why = f"it is already inside {len(marks)} calls, of at most {_MOST}"
    else:
        return
    path = " → ".join(_names.get(mark, "an agent elsewhere") for mark in (*marks[-_MOST:], own))
    raise LoopDetected(f"{_names.get(own, 'The agent')} was not called, since {why}: {path}.")
