"""An MCP server behind a bad network: every call through the gateway is answered, truly, and nothing is done twice.

The server is one of the official SDK in a process of its own, and writes a line for everything that it does. Between
it and ``agent3 serve`` stands the fault proxy of ``agent3.testing``, which refuses, cuts, resets and silences
connections. One tool may be repeated and says so; the other does not, and may be done once at most.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agent3.testing import FaultProxy, Faults
from faults._gateway import Gateway, Told, ask, asking, gateway, run_agent3
from faults.registry import Result, fault

CALLS = 300
CALLERS = 12
STRIKE_SECONDS = 0.15
LONGEST_SECONDS = 8.0
TOOLS = ("once", "again")
BAD = Faults(refuse=0.1, cut=0.2, reset=0.2, silence=0.05, within=4_000, delay=0.004)
CONFIG = """
[outbound]
allow_loopback = true

[calls]
timeout = 5.0
attempt_timeout = 1.5
breaker_failures = 10
breaker_seconds = 0.2
"""

Answers = list[tuple[str, str, Told]]


@fault("flaky-peer")
def flaky_peer(seed: int, calls: int = CALLS) -> Result:
    """An MCP server whose connections break: every call is answered truly, none done twice that may not be."""
    with tempfile.TemporaryDirectory(prefix="agent3-flaky-peer-") as name:
        folder = Path(name)
        with _peer(folder) as port:
            answers, after, fates = asyncio.run(asyncio.wait_for(_through_it_all(folder, port, seed, calls), 85))
        lines = (folder / "done").read_text().splitlines()
        return judge(answers, after, lines, _written(folder)) | {"fates": dict(Counter(fates))}


async def _through_it_all(folder: Path, port: int, seed: int, calls: int) -> tuple[Answers, list[Told], Sequence[str]]:
    async with FaultProxy("127.0.0.1", port, seed=seed) as proxy:
        (folder / "agent3.toml").write_text(CONFIG)
        await asyncio.to_thread(run_agent3, folder, "add", f"{proxy.url}/mcp", "--name", "peer")
        with gateway(folder, config=CONFIG) as door:
            proxy.faults = BAD
            striking = asyncio.create_task(_strike(proxy, random.Random(seed)))
            answers = await _called(door, calls)
            striking.cancel()
            proxy.faults = Faults()
            proxy.drop_all()
            return answers, await _recovered(door), proxy.fates


async def _strike(proxy: FaultProxy, chance: random.Random) -> None:
    """Connections are kept, and one that lived through its beginning would live for ever."""
    while True:
        await asyncio.sleep(chance.uniform(0.0, 2 * STRIKE_SECONDS))
        proxy.strike(chance.choice(("cut", "reset", "cut", "reset", "silence")))


async def _called(door: Gateway, calls: int) -> Answers:
    names = iter([(tool, f"{tool}-{number}") for number in range(calls) for tool in TOOLS])
    answers: Answers = []

    async def caller(session: Any) -> None:
        for tool, name in names:
            told = await ask(session, door.url, tool, {"name": name}, agent="peer")
            answers.append((tool, name, told))
            await asyncio.sleep(0.1 if told.status == 503 else 0.0)

    async with asking() as session:
        await asyncio.gather(*(caller(session) for _ in range(CALLERS)))
    return answers


async def _recovered(door: Gateway) -> list[Told]:
    """Calls over a good network, once the circuit may close again."""
    async with asking() as session:
        until = time.monotonic() + 10
        while (await ask(session, door.url, "again", {"name": "knock"}, agent="peer")).status != 200:
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.1)
        return [await ask(session, door.url, "again", {"name": "after"}, agent="peer") for _ in range(20)]


def _written(folder: Path) -> Counter[str]:
    with closing(sqlite3.connect(folder / "house.db")) as connection:
        rows = connection.execute("SELECT capability, status FROM calls")
        return Counter(f"{capability} {status}" for capability, status in rows)


def judge(answers: Answers, after: Sequence[Told], lines: Sequence[str], written: Counter[str]) -> Result:
    """What was told against what was done."""
    done = Counter(lines)
    good = [(tool, name) for tool, name, told in answers if _is_good(told, name)]
    failed = [told for _, name, told in answers if not _is_good(told, name)]
    faults = {
        "unanswered": sum(told.status == 0 for told in failed),
        "wrong_answers": sum(told.status == 200 for told in failed),
        "failed_without_a_reason": sum(told.status > 200 and not told.body.get("error") for told in failed),
        "too_slow": sum(told.seconds > LONGEST_SECONDS for _, _, told in answers),
        "told_done_and_not_done": sum(not done[name] for _, name in good),
        "done_twice": sum(count > 1 for name, count in done.items() if name.startswith("once-")),
        "not_in_ledger": sum(tool == "once" for tool, _ in good) - written["once done"],
        "still_failing_afterwards": sum(told.status != 200 for told in after),
    }
    return {
        "ok": bool(good) and bool(failed) and not any(faults.values()),
        "calls": len(answers),
        "good": {tool: sum(one == tool for one, _ in good) for tool in TOOLS},
        "statuses": dict(Counter(told.status for _, _, told in answers)),
        "repeated": sum(count > 1 for name, count in done.items() if name.startswith("again-")),
        **faults,
    }


def _is_good(told: Told, name: str) -> bool:
    return told.status == 200 and told.body.get("success") is True and told.body.get("result") == name


# The server behind it


@contextmanager
def _peer(folder: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handle = listener.fileno()
        command = [sys.executable, "-m", "faults.flaky_peer", str(handle), str(folder / "done")]
        with subprocess.Popen(command, cwd=Path(__file__).parent.parent, pass_fds=[handle]) as child:
            try:
                yield listener.getsockname()[1]
            finally:
                child.kill()


def _serve(handle: int, file: str) -> None:
    import mcp_types as types
    import uvicorn
    from mcp.server.lowlevel import Server

    lines = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    hints = {"once": None, "again": types.ToolAnnotations(idempotent_hint=True)}

    async def listed(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(name=name, input_schema=schema, annotations=hint) for name, hint in hints.items()]
        )

    async def called(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        name = str((params.arguments or {})["name"])
        os.write(lines, f"{name}\n".encode())
        return types.CallToolResult(content=[types.TextContent(type="text", text=name)])

    server = Server("peer", version="1", on_list_tools=listed, on_call_tool=called)
    uvicorn.run(server.streamable_http_app(json_response=True, stateless_http=True), fd=handle, log_level="error")


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
