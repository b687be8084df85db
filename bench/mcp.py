"""``mcp``: one tools/call that echoes a text, over HTTP, one server process each.

Targets: ``bare`` (raw ASGI under uvicorn), ``sdk_modern`` and ``sdk_legacy`` (the official SDK's low-level server in
its two eras, stateless; ``sdk_session`` is the legacy era with a session), ``ours_modern`` and ``ours_legacy``
(``agent3 serve --demo``: tool agent3_call to the demo agent ``echo``, through every step of a call, with the durable
ledger in a fresh SQLite file). A legacy server that hands out a session is loaded within that session.

Ratios, all above 1 where ours is better:

    ours_vs_sdk_modern      rate of ours_modern / rate of sdk_modern
    ours_vs_sdk_legacy      rate of ours_legacy / rate of sdk_legacy
    ours_vs_sdk_session     rate of ours_legacy / rate of sdk_session
    ours_vs_bare            rate of ours_modern / rate of bare
    sdk_modern_vs_bare      rate of sdk_modern / rate of bare
    NAME_cpu                the same pair by CPU per call, the other's / ours: the one to trust on a shared machine
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import Options, Result, Row, Target, ask, bench, ratio, side_by_side, uvicorn
from bench.load import Request

__all__ = ["TARGETS", "call", "in_session", "run"]

FAST = ("--loop", "uvloop", "--http", "httptools")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
PAIRS = {
    "ours_vs_sdk_modern": ("ours_modern", "sdk_modern"),
    "ours_vs_sdk_legacy": ("ours_legacy", "sdk_legacy"),
    "ours_vs_sdk_session": ("ours_legacy", "sdk_session"),
    "ours_vs_bare": ("ours_modern", "bare"),
    "sdk_modern_vs_bare": ("sdk_modern", "bare"),
}


def call(tool: str, arguments: Mapping[str, Any], *, modern: bool) -> Request:
    """A self-contained tools/call of either era whose answer must hold the text hello."""
    params: dict[str, Any] = {"name": tool, "arguments": dict(arguments)}
    headers = {**JSON, "MCP-Protocol-Version": "2025-11-25"}
    if modern:
        params["_meta"] = META
        headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool}
    tail = f', "method": "tools/call", "params": {json.dumps(params)}}}'
    return Request("/mcp", "hello", b'{"jsonrpc": "2.0", "id": ', headers, tail=tail.encode())


def in_session(port: int, request: Request) -> Request:
    """The request within a legacy session of its own, where the server hands one out; else as it is."""
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    _, headers, _ = ask(port, _message("initialize", client, request.headers, number=0))
    if (session := headers.get("Mcp-Session-Id")) is None:
        return request
    joined = replace(request, headers={**request.headers, "Mcp-Session-Id": session})
    ask(port, _message("notifications/initialized", {}, joined.headers))
    return joined


def _message(method: str, params: Mapping[str, Any], headers: Mapping[str, str], number: int | None = None) -> Request:
    message = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
    return Request("/mcp", "", json.dumps(message).encode(), headers)


def _bare(port: int, _: Path) -> list[str]:
    return uvicorn("bare", port, *FAST)


def _sdk(port: int, _: Path) -> list[str]:
    return uvicorn("sdk", port, *FAST)


def _ours(port: int, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "agent3", "serve", "--demo", "--port", str(port)]
    return [*command, "--db", f"sqlite:///{folder / 'bench.db'}"]


ECHO = {"message": "hello"}
OURS = {"agentId": "echo", "message": "hello"}
TARGETS = (
    Target("bare", _bare, call("echo", ECHO, modern=True)),
    Target("sdk_modern", _sdk, call("echo", ECHO, modern=True)),
    Target("sdk_legacy", _sdk, call("echo", ECHO, modern=False)),
    Target("sdk_session", _sdk, call("echo", ECHO, modern=False), in_session, {"BENCH_SESSIONS": "1"}),
    Target("ours_modern", _ours, call("agent3_call", OURS, modern=True)),
    Target("ours_legacy", _ours, call("agent3_call", OURS, modern=False), in_session),
)


@bench("mcp", "tools/call over HTTP: bare ASGI, the official SDK, ours")
def run(options: Options) -> Result:
    """Load the six servers in turn."""
    rows = side_by_side(TARGETS, options)
    return Result(rows, _ratios({row.target: row for row in rows}))


def _ratios(rows: Mapping[str, Row]) -> dict[str, float | None]:
    ratios = {name: ratio(rows[above].rate, rows[below].rate) for name, (above, below) in PAIRS.items()}
    for name, (above, below) in PAIRS.items():
        ratios[f"{name}_cpu"] = ratio(rows[below].cpu_ms_per_call, rows[above].cpu_ms_per_call)
    return ratios
