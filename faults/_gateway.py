"""``agent3 serve`` as a process of its own, with an agent written down for the purpose, and a client that asks it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

__all__ = ["Gateway", "Told", "ask", "asking", "environment", "gateway", "options", "queued", "run_agent3"]

SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """One that serves."""

    url: str
    process: subprocess.Popen[str]


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one request: its status (0 when the connection broke), its body, and how long it took."""

    status: int
    body: dict[str, Any]
    seconds: float
    retry_after: str | None = None


@contextmanager
def gateway(
    folder: Path, *arguments: str, agent: str = "", config: str = "", database: str = "", **more: str
) -> Iterator[Gateway]:
    """``agent3 serve`` on a free port of loopback; ``agent`` is the text of a module whose ``agent`` it serves."""
    (folder / "agent3.toml").write_text(config)
    if agent:
        (folder / "served.py").write_text(agent)
        arguments = ("served:agent", *arguments)
    command = [sys.executable, "-m", "agent3", "serve", *arguments, "--port", "0", *options(folder, database)]
    with (
        (folder / "serve.log").open("a") as log,
        subprocess.Popen(
            command, cwd=folder, env=environment(folder, **more), stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                raise RuntimeError(f"agent3 serve ended with code {process.wait(10)}: {_tail(folder)}")
            yield Gateway(line.split()[-1], process)
        finally:
            process.kill()


def run_agent3(folder: Path, *arguments: str) -> str:
    """One command on the database of the same folder; what it printed. RuntimeError when it failed."""
    command = [sys.executable, "-m", "agent3", *arguments, *options(folder)]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise RuntimeError(f"agent3 {arguments[0]} ended with code {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def options(folder: Path, database: str = "") -> list[str]:
    """The settings and the database of a folder, as every command takes them; ``database`` is another one."""
    return ["--config", str(folder / "agent3.toml"), "--db", database or f"sqlite:///{folder / 'house.db'}"]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Ours, without what would change agent3's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
    return {**kept, "AGENT3_DATA": str(folder), "NO_COLOR": "1", **more}


def _tail(folder: Path) -> str:
    return (folder / "serve.log").read_text()[-500:]


def queued(pid: int) -> float:
    """Seconds that a process has waited for a processor so far, where the system says it: others' load is not its own.

    Of its main thread: what is asked of gateways here is done by that.
    """
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def asking(seconds: float = SECONDS) -> aiohttp.ClientSession:
    """A client with as many connections as it wants."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=seconds), trust_env=False
    )


async def ask(session: aiohttp.ClientSession, url: str, capability: str, given: dict[str, Any], **more: Any) -> Told:
    """One call of a capability of the agent ``served``, or of ``agent``; never raises."""
    body = {"agentId": more.pop("agent", "served"), "capability": capability, "input": given, **more}
    began = time.monotonic()
    try:
        async with session.post(f"{url}/v1/call", json=body) as answer:
            told = await answer.json()
            return Told(answer.status, told, time.monotonic() - began, answer.headers.get("Retry-After"))
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Told(0, {"error": f"{type(error).__name__}: {error}"}, time.monotonic() - began)
