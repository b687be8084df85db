"""Memory of processes, read from ``/proc``. On a system without it nothing is known, and nothing is killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

__all__ = ["find_oversized", "find_parent", "kill_renderer", "own_bytes", "total_bytes"]

_PROC = Path("/proc")
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_OWN = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
_PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)


def total_bytes(pids: Iterable[int]) -> int:
    """The bytes that some processes take together, with shared pages counted once; 0 if unknown."""
    # Pss splits each shared page among its users. Summing Rss would count Chromium's code once for every process.
    found = (_PSS.search(_read(pid, "smaps_rollup")) for pid in pids)
    return sum(int(match[1]) * 1024 for match in found if match)


def own_bytes(pid: int) -> int:
    """The bytes that a process filled itself. Cheaper than ``total_bytes``, and without the shared program code."""
    return sum(int(kilobytes) for kilobytes in _OWN.findall(_read(pid, "status"))) * 1024


def find_parent(pid: int) -> int | None:
    """The process that started another, or None if unknown."""
    match = _PARENT.search(_read(pid, "status"))
    return int(match[1]) if match else None


def find_oversized(sizes: dict[int, int], page_limit: int, total_limit: int) -> list[int]:
    """The page processes to kill: those over ``page_limit``, or the largest if all together exceed ``total_limit``.

    A page below a quarter of ``page_limit`` is never killed for the total: then there are only many small ones.
    """
    oversized = [pid for pid, size in sizes.items() if size > page_limit]
    if not oversized and sum(sizes.values()) > total_limit:
        largest = max(sizes, key=sizes.__getitem__)
        oversized = [largest] if sizes[largest] > page_limit // 4 else []
    return oversized


def kill_renderer(pid: int) -> bool:
    """Kill the process of a page. False if it is not (or no longer) one: pids are reused."""
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
