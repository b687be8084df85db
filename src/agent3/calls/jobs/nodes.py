"""Nodes: the name of a process that holds jobs, and whether such a process is certainly gone.

Where a process number cannot be compared - another machine, another container, no ``/proc`` - nothing is certain, and
the lease of a job decides.
"""

from __future__ import annotations

import os
import socket
import weakref
from pathlib import Path

from agent3.env import Env

__all__ = ["dead", "enter", "leave"]

_here: weakref.WeakValueDictionary[str, object] = weakref.WeakValueDictionary()
"""The nodes of this very process that have not left."""


def enter(env: Env, owner: object) -> str:
    """A name for this process as ``owner`` sees it; it is here until the owner leaves or is gone."""
    name = f"{socket.gethostname()}/{_numbering()}/{os.getpid()}/{env.id()[:16]}"
    _here[name] = owner
    return name


def leave(node: str) -> None:
    """Be here no more."""
    _here.pop(node, None)


def dead(node: str | None, me: str) -> bool:
    """Whether a node is certainly gone: it left, or its number, which means the same to ``me``, is free."""
    if node is None:
        return True
    if node == me or not _comparable(node, me):
        return False
    pid = node.split("/")[2]
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return pid == str(os.getpid()) and node not in _here


def _comparable(node: str, me: str) -> bool:
    """Whether both count their processes in one numbering: one host, one boot, one namespace, and all are known."""
    theirs, mine = node.split("/"), me.split("/")
    return len(theirs) == 4 and theirs[:2] == mine[:2] and bool(mine[1]) and theirs[2].isdigit()


def _numbering() -> str:
    """Where process numbers are unique: one boot of one kernel, one pid namespace; empty where nobody can tell.

    Containers of one machine may bear one host name, and each has a process 1.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except (OSError, ValueError):
        return ""
