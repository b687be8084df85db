"""A gateway of several worker processes on a database, and what one can do to it."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

__all__ = ["Workers", "serving"]

AGENT = '''
import asyncio, os
from agent3 import Context, LocalAgent

agent = LocalAgent("served")


@agent.capability(read_only=True)
async def who() -> str:
    """The process that serves."""
    return str(os.getpid())


@agent.capability
async def slow(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return str(os.getpid())


@agent.capability
async def asked(ctx: Context, name: str) -> str:
    """Asks, and waits."""
    return f"{name} {await ctx.ask('And?', str)}"
'''


@dataclass(slots=True)
class Workers:
    """The supervisor, and where its gateway answers."""

    url: str
    process: subprocess.Popen[str]
    verify: ssl.SSLContext | bool = True

    def roll(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def pid_of_one(self) -> int:
        """A worker that answers."""
        body = {"agentId": "served", "capability": "who", "input": {}}
        return int(httpx.post(f"{self.url}/v1/call", json=body, timeout=240, verify=self.verify).json()["result"])

    def metric(self, name: str) -> float:
        """The sum of a metric's series on the page."""
        lines = httpx.get(f"{self.url}/metrics", timeout=240, verify=self.verify).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def wait_until(self, what: str, least: float) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self.metric(what) >= least:
                return
            time.sleep(0.1)
        raise TimeoutError(f"{what} is not {least} after a minute")


@contextmanager
def serving(
    folder: Path, database: str, count: int = 2, *more: str, verify: ssl.SSLContext | bool = True
) -> Iterator[Workers]:
    """So many workers, all ready."""
    (folder / "served.py").write_text(AGENT)
    command = [sys.executable, "-m", "agent3", "serve", "served:agent", "--port", "0", "--db", database]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT3_")}
    environment = {**kept, "AGENT3_DATA": str(folder), "NO_COLOR": "1"}
    with (folder / "serve.log").open("a") as log:
        process = subprocess.Popen(
            [*command, "--workers", str(count), *more],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "serve.log").read_text()[-2_000:]
        workers = Workers(line.split()[-1], process, verify)
        workers.wait_until("agent3_workers", count)
        yield workers
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
