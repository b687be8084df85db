"""How much memory processes take, as this system tells; where it does not, nothing is known and nothing is done."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

__all__ = ["end_renderer", "memory_of", "own_bytes", "parent_of", "too_heavy"]

_PROC = Path("/proc")
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_OWN = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
_PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)


def memory_of(processes: Iterable[int]) -> int:
    """The bytes that some processes take together, pages that they share counted once; 0 where nobody tells."""
    total = 0
    for pid in processes:
        found = _PSS.search(_read(pid, "smaps_rollup"))
        total += int(found[1]) * 1024 if found else 0
    return total


def own_bytes(pid: int) -> int:
    """What one process has filled itself: quick to tell, and without the program that all share."""
    return sum(int(one) for one in _OWN.findall(_read(pid, "status"))) * 1024


def parent_of(pid: int) -> int | None:
    """The process that started another, or None where nobody tells."""
    found = _PARENT.search(_read(pid, "status"))
    return int(found[1]) if found else None


def too_heavy(sizes: dict[int, int], page: int, whole: int) -> list[int]:
    """Which processes of pages take too much: more than one page may, or, of all that do together, the most.

    A page that takes no more than a quarter of what it may is never to blame: then there are only many of them.
    """
    found = [pid for pid, size in sizes.items() if size > page]
    if not found and sum(sizes.values()) > whole:
        found = [pid for pid in sizes if sizes[pid] == max(sizes.values()) and sizes[pid] > page // 4][:1]
    return found


def end_renderer(pid: int) -> bool:
    """Kill the process of a page; whether it was one."""
    if "--type=renderer" not in _read(pid, "cmdline"):
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
