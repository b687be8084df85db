"""A server behind a gateway: the same suite, against ``/agents/{id}/mcp`` of a real ``agent3 serve``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from queue import Empty, Queue
from typing import IO

from conformance.mcp_suite import STARTING, fixture_server

__all__ = ["AGENT", "through_gateway"]

AGENT = "fixture"
CONFIG = """
[outbound]
allow_loopback = true

[calls]
ledger = "batched"
"""


@contextmanager
def through_gateway(server: str | None = None) -> Iterator[str]:
    """A gateway on a data folder of its own, and the address of a server behind it, by default of the fixture."""
    with (
        fixture_server() if server is None else nullcontext(server) as fixture,
        tempfile.TemporaryDirectory(prefix="agent3-gateway-") as folder,
    ):
        settings = Path(folder) / "agent3.toml"
        settings.write_text(CONFIG, "utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
        environment = {**kept, "AGENT3_DATA": folder, "COLUMNS": "200"}
        # The kit has the server change its tools, and wants to hear of it: that of a server that is trusted with that.
        _run(["add", fixture, "--name", AGENT, "--changes", "trust", "--config", str(settings)], environment)
        with _serving(["serve", "--port", "0", "--config", str(settings)], environment) as url:
            yield f"{url.replace('127.0.0.1', 'localhost')}/agents/{AGENT}/mcp"


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "agent3", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise SystemExit(f"agent3 {arguments[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")


@contextmanager
def _serving(arguments: list[str], environment: dict[str, str]) -> Iterator[str]:
    command = [sys.executable, "-m", "agent3", *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield _address(process.stdout)
        finally:
            process.terminate()
            process.wait(30)


def _address(output: IO[str]) -> str:
    """The address in the first line of the greeting; what is printed later is read and let go."""
    lines: Queue[str] = Queue()

    def read() -> None:
        for line in output:
            lines.put(line)

    threading.Thread(target=read, daemon=True).start()
    try:
        return lines.get(timeout=STARTING).split()[-1]
    except (Empty, IndexError):
        raise SystemExit(f"The gateway did not say within {STARTING} s where it serves.") from None
