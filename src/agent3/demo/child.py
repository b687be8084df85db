"""A process of the demo: serves on a port, says where, and ends with whoever started it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from agent3.listener import Listening

__all__ = ["serve_until_input_ends"]


def serve_until_input_ends(listening: Callable[[int], Listening]) -> None:
    """Print the address and serve until standard input ends: the gateway holds it open, however the gateway ends."""
    with listening(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as url:
        print(url, flush=True)  # noqa: T201 - it is read by the one who started it
        sys.stdin.buffer.read()
