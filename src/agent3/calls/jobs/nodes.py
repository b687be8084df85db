"""Nodes: the name of a process that holds jobs, and whether such a process is certainly gone.

Process ids of another machine, another container, or without ``/proc`` cannot be compared. There nothing is certain,
and the lease of a job decides.
"""

from __future__ import annotations

import os
import socket
import weakref
from pathlib import Path

from agent3.env import Env

__all__ = ["is_dead", "register_node", "unregister_node"]

_here: weakref.WeakValueDictionary[str, object] = weakref.WeakValueDictionary()
"""The nodes of this process that have not been unregistered, with their owners."""


def register_node(env: Env, owner: object) -> str:
    """A new node of this process. It lives until it is unregistered or its owner is garbage."""
    # A process id is unique within one boot of one kernel and one pid namespace: containers of one machine may share
    # a host name, and each has a process 1. Empty where that cannot be told.
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        scope = f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
    except (OSError, ValueError):
        scope = ""
    name = f"{socket.gethostname()}/{scope}/{os.getpid()}/{env.id()[:16]}"
    _here[name] = owner
    return name


def unregister_node(node: str) -> None:
    """Count a node of this process as dead from now on."""
    _here.pop(node, None)


def is_dead(node: str | None, me: str) -> bool:
    """Whether a node is certainly gone: unregistered, or with a free process id that means the same to ``me``."""
    if node is None:
        return True
    theirs, mine = node.split("/"), me.split("/")
    # Both must count processes alike: same host, same boot, same namespace, and known. Unknown is not equal to unknown.
    comparable = len(theirs) == 4 and theirs[:2] == mine[:2] and bool(mine[1]) and theirs[2].isdigit()
    if node == me or not comparable:
        return False
    pid = theirs[2]
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return pid == str(os.getpid()) and node not in _here
