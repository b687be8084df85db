"""How much memory is free here: of the machine, or of the container that this runs in."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["find_free_memory"]

_MACHINE = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def find_free_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not tell."""
    free: list[int] = []
    with suppress(OSError, ValueError, KeyError):
        free.append(_read_table(_MACHINE)["MemAvailable:"] * 1024)
    with suppress(OSError, ValueError, KeyError):  # without a limit it says "max"
        limit = int((_CONTAINER / "memory.max").read_text("ascii"))
        used = int((_CONTAINER / "memory.current").read_text("ascii"))
        # What was read from files counts as used, and is let go when memory is needed.
        kept = _read_table(_CONTAINER / "memory.stat")["inactive_file"]
        free.append(max(0, limit - used + kept))
    return min(free, default=None)


def _read_table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    return {words[0]: int(words[1]) for line in path.read_text("ascii").splitlines() if len(words := line.split()) > 1}
