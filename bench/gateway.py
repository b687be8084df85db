"""``gateway``: an echo server of the official SDK, called directly and through gateways, one process each.

    direct           the SDK's low-level server in the modern era, no gateway: its CPU is that of a server itself
    forward_aiohttp  aiohttp hands the request on, and does nothing else: what no gateway in Python can do without
    ours_agent       ``agent3 serve`` with a key, a rule, a rate limit, validation, metrics and the ledger (batched);
                     the server was added with ``agent3 add`` and is called at /agents/upstream/mcp
    ours_call        likewise, but with the tool agent3_call at /mcp

The figure is CPU per good call of the gateway's process alone, without that of the server behind it, which is the same
process for all. ``limit`` is 1 ms, ``aim`` 0.5 ms.

Ratios, above 1 where ours is better:

    ours_agent_vs_forward_cpu, ours_call_vs_forward_cpu    CPU per call of forward_aiohttp / that of ours
    ours_agent_vs_direct, forward_vs_direct                rate through the gateway / rate without it
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bench import ours
from bench.harness import (
    APPS,
    HEALTHY,
    Options,
    Result,
    Row,
    Target,
    bench,
    clean_environment,
    ratio,
    serving,
    side_by_side,
    uvicorn,
    with_extra,
)
from bench.load import HOST
from bench.mcp import FAST, call

__all__ = ["AIM_MS", "LIMIT_MS", "gateways", "run", "targets", "upstream"]

LIMIT_MS = 1.0
AIM_MS = 0.5
ADD_SECONDS = 200
NAME = "upstream"
OURS = ("ours_agent", "ours_call")
ECHO = call("echo", {"message": "hello"}, modern=True)
ASKED = call("agent3_call", {"agentId": NAME, "message": "hello"}, modern=True)


def upstream(port: int, _: Path) -> list[str]:
    return uvicorn("sdk", port, *FAST)


def _with_upstream(url: str, python: str) -> ours.Command:
    """What adds the server to a fresh database, and then starts the gateway on it."""

    def command(port: int, folder: Path) -> list[str]:
        options = ours.written(folder, "batched")
        add = [python, "-m", "agent3", "add", f"{url}/mcp", "--name", NAME, *options]
        environment = {**clean_environment(), **ours.ENVIRONMENT}
        told = subprocess.run(add, capture_output=True, text=True, timeout=ADD_SECONDS, env=environment, check=False)
        if told.returncode:
            raise RuntimeError(f"agent3 add ended with status {told.returncode}: {told.stderr[-300:]}")
        return ours.serve()(port, folder)

    return command


def targets(url: str) -> list[Target]:
    """The server without a gateway, and each gateway in front of the one at ``url``."""

    def forward(port: int, _: Path) -> list[str]:
        return [sys.executable, str(APPS / "forward.py"), str(port), url]

    return [Target("direct", upstream, ECHO), Target("forward_aiohttp", forward, ECHO), *gateways(url)]


def gateways(url: str, python: str = sys.executable) -> list[Target]:
    """Ours in front of the server at ``url``."""
    command, at_agent = _with_upstream(url, python), replace(ECHO, path=f"/agents/{NAME}/mcp")
    return [
        Target("ours_agent", command, ours.with_key(at_agent), environment=ours.ENVIRONMENT),
        Target("ours_call", command, ours.with_key(ASKED), environment=ours.ENVIRONMENT),
    ]


@bench("gateway", "a call through a gateway to an echo server: none, a bare aiohttp forward, ours")
def run(options: Options) -> Result:
    """Load the four in turn, in front of one server."""
    with serving(upstream, HEALTHY) as behind:
        rows = side_by_side(targets(f"http://{HOST}:{behind.port}"), options)
    by_name = {row.target: row for row in rows}
    direct, forward = by_name["direct"], by_name["forward_aiohttp"]
    ratios = {f"{name}_vs_forward_cpu": ratio(forward.cpu_ms_per_call, by_name[name].cpu_ms_per_call) for name in OURS}
    ratios["ours_agent_vs_direct"] = ratio(by_name["ours_agent"].rate, direct.rate)
    ratios["forward_vs_direct"] = ratio(forward.rate, direct.rate)
    return Result([_judged(row) for row in rows], ratios)


def _judged(row: Row) -> Row:
    if row.target not in OURS:
        return row
    busy = row.cpu_ms_per_call
    met, reached = busy is not None and busy <= LIMIT_MS, busy is not None and busy <= AIM_MS
    return with_extra(row, limit=f"{LIMIT_MS:g} ms", met=met, aim=f"{AIM_MS:g} ms", aim_met=reached)
