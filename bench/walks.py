"""``python -m bench.walks``: how far a reader walks to follow one call, traced.

One warm ``agent3_call`` at ``/mcp`` of a whole gateway in this process, over a real connection, to each kind of target:

    function    an async Python function of the gateway
    mcp         an MCP server over HTTP, in a process of its own
    a2a         an A2A agent, generation 1.0 over JSON-RPC without a stream, in a process of its own
    website     an action of the example shop in a real Chromium; left out where there is none

Counted are Python calls into ``agent3``, distinct functions, files, switches from one file to another, and rooms. Of
several calls the shortest counts, since a background task may run in between. ``--list WALK`` names every function in
the order in which it is entered; ``--json`` prints one object.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

import agent3
from agent3.errors import Agent3Error
from agent3.observe.metrics import Metrics
from agent3.protocols.functions import LocalAgent
from agent3.server.app import app
from agent3.server.build import Server, build
from agent3.server.connection import make_connection_class
from agent3.settings import Calls, Outbound, Settings, Storage
from agent3.testing.websites import Website
from bench.harness import ROOT, clean_environment, free_port
from bench.load import HOST
from bench.mcp import META

__all__ = ["Walk", "main", "walk"]

ROUNDS = 30
READY_SECONDS = 60.0
_HOME = str(Path(agent3.__file__).parent)
_RESUMED = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


@dataclass(frozen=True, slots=True)
class Walk:
    """What one call entered, in order: file and function."""

    steps: tuple[tuple[str, str], ...]

    def figures(self) -> dict[str, int]:
        """The walk in numbers."""
        files = [file for file, _ in self.steps]
        return {
            "calls": len(self.steps),
            "functions": len(set(self.steps)),
            "files": len(set(files)),
            "switches": sum(before != after for before, after in pairwise(files)),
            "rooms": len({"/".join(file.split("/")[: 2 if file.startswith("protocols/") else 1]) for file in files}),
        }


async def walk(call: Callable[[], Awaitable[Any]], rounds: int = ROUNDS) -> Walk:
    """The shortest of several calls."""
    best: list[tuple[str, str]] | None = None
    for _ in range(rounds):
        entered: list[tuple[str, str]] = []
        begun: set[int] = set()
        held: list[FrameType] = []  # so that no other frame gets the id of one that has ended

        def note(
            frame: FrameType,
            event: str,
            _: Any,
            entered: list[tuple[str, str]] = entered,
            begun: set[int] = begun,
            held: list[FrameType] = held,
        ) -> None:
            code = frame.f_code
            if event != "call" or not code.co_filename.startswith(_HOME):
                return
            if code.co_flags & _RESUMED:  # a coroutine that goes on is not entered anew
                if id(frame) in begun:
                    return
                begun.add(id(frame))
                held.append(frame)
            entered.append((code.co_filename[len(_HOME) + 1 :], code.co_qualname))

        sys.setprofile(note)
        try:
            await call()
        finally:
            sys.setprofile(None)
        if best is None or len(entered) < len(best):
            best = entered
        await asyncio.sleep(0.01)
    return Walk(tuple(best or ()))


# The gateway, and who calls it


async def say(message: str) -> str:
    """Say it again."""
    return message


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[Server, int]]:
    """A gateway that serves in this loop, with an agent of its own, and its port."""
    own = LocalAgent("own")
    own.add(say)
    settings = Settings(
        storage=Storage(url=f"sqlite:///{folder / 'walks.db'}"),
        calls=Calls(ledger="batched"),
        outbound=Outbound(allow_loopback=True),
    )
    async with build(settings, [own], metrics=Metrics()) as server:
        doors = app(server)
        http = make_connection_class(settings.server.body_seconds, doors.lane, pool=doors.pool)
        port = free_port()
        config = uvicorn.Config(doors, host=HOST, port=port, http=http, ws="none", log_config=None, access_log=False)
        serving = uvicorn.Server(config)
        serving.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        running = asyncio.create_task(serving._serve())
        while not serving.started:
            await asyncio.sleep(0.01)
        try:
            yield server, port
        finally:
            serving.should_exit = True
            await running


@asynccontextmanager
async def calling(port: int, **arguments: Any) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """An ``agent3_call`` that can be made again and again over one connection."""
    params = {"name": "agent3_call", "arguments": arguments, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        f"Mcp-Method: tools/call\r\nMcp-Name: agent3_call\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(HOST, port)

    async def once() -> None:
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        lower = answer.lower()
        if b"content-length: " in lower:
            answer += await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]))
        else:  # the first answers may come as a stream, by the other lane
            answer += await reader.readuntil(b"0\r\n\r\n")
        if b'"success":true' not in answer.replace(b'\\"', b'"').replace(b": true", b":true"):
            raise RuntimeError(f"{arguments['agentId']} did not answer: {answer[-500:].decode()}")

    try:
        for _ in range(5):
            await once()
        yield once
    finally:
        writer.close()


@contextmanager
def elsewhere() -> Iterator[int]:
    """Another gateway with the demo agents, as an MCP server and an A2A agent; its port."""
    port = free_port()
    command = [sys.executable, "-m", "agent3", "serve", "--demo", "--port", str(port), "--db", ":memory:"]
    with tempfile.TemporaryDirectory(prefix="walks-") as folder:
        environment = {**clean_environment(), "AGENT3_DATA": folder, "PYTHONPATH": str(ROOT / "src")}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield port
        finally:
            process.terminate()
            process.wait(30)


async def walks(folder: Path, port: int, site: str | None) -> dict[str, Walk]:
    """All walks, with an MCP server and an A2A agent at the port, and the shop at an address."""
    found: dict[str, Walk] = {}
    async with gateway(folder) as (server, own):
        for name, place in (("tools", "mcp"), ("peer", "a2a")):
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    with suppress(Agent3Error):
                        await server.registration.add(f"http://{HOST}:{port}/agents/echo/{place}", name)
                        break
                    await asyncio.sleep(0.2)
        targets: dict[str, dict[str, Any]] = {
            "function": {"agentId": "own", "message": "hello"},
            "mcp": {"agentId": "tools", "message": "hello"},
            "a2a": {"agentId": "peer", "message": "hello"},
        }
        if site is not None:
            interface = (ROOT / "examples" / "shop" / "shop.yaml").read_text("utf-8")
            file = folder / "shop.yaml"
            base = next(line for line in interface.splitlines() if line.startswith("base_url:"))
            file.write_text(interface.replace(base, f"base_url: {site}"), "utf-8")
            await server.registration.add(str(file), "shop")
            targets["website"] = {
                "agentId": "shop",
                "capability": "search_products",
                "input": {"query": "mug"},
                "metadata": {"timeout": 60_000},
            }
        for name, arguments in targets.items():
            async with calling(own, **arguments) as once:
                found[name] = await walk(once, ROUNDS if name != "website" else 3)
    return found


def main() -> None:
    """Trace and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.walks", description="How far a reader walks in one call.")
    parser.add_argument("--list", metavar="WALK", help="name every function that a walk enters")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-website", action="store_true", help="leave the website out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walks-") as folder, elsewhere() as port:
        if options.no_website:
            found = asyncio.run(walks(Path(folder), port, None))
        else:
            with Website(ROOT / "examples" / "shop" / "site") as site:
                found = asyncio.run(walks(Path(folder), port, site.url))
    figures = {name: walk.figures() for name, walk in found.items()}
    if options.list:
        for file, function in found[options.list].steps:
            print(f"{file:50} {function}")
    if options.json:
        print(json.dumps(figures))
        return
    columns = ("calls", "functions", "files", "switches", "rooms")
    print(f"{'walk':10}", *(f"{column:>9}" for column in columns))
    for name, row in figures.items():
        print(f"{name:10}", *(f"{row[column]:>9}" for column in columns))


if __name__ == "__main__":
    main()
