"""Free ports on loopback."""

from __future__ import annotations

import socket
from contextlib import ExitStack

__all__ = ["find_free_ports"]


def find_free_ports(count: int) -> list[int]:
    """So many ports that are free now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
