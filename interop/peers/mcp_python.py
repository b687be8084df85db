"""An MCP server by whichever SDK this Python has: ``mcp`` 1.x or 2.x, or ``fastmcp``.

``stdio OUTCOME NOTES`` serves one server, ``http NOTES PORT …`` one for each outcome, each on a port of its own.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel

OUTCOMES = ("value", "error", "question", "stream", "cancel")
PIECES = ("Once ", "upon ", "a time")


class Size(BaseModel):
    """What is asked for."""

    size: str


def load() -> tuple[Any, Any, bool]:
    """The class of servers, that of contexts, and whether they are of fastmcp."""
    for module, name in (
        ("fastmcp", "FastMCP"),
        ("mcp.server.mcpserver", "MCPServer"),
        ("mcp.server.fastmcp", "FastMCP"),
    ):
        try:
            found = import_module(module)
        except ImportError:
            continue
        return getattr(found, name), found.Context, module == "fastmcp"
    raise SystemExit("there is no SDK")


def find_error() -> type[Exception]:
    """The error whose text a client is told."""
    for module in ("fastmcp.exceptions", "mcp.server.mcpserver.exceptions", "mcp.server.fastmcp.exceptions"):
        try:
            return import_module(module).ToolError
        except ImportError:
            continue
    return ValueError


SERVER, Context, IS_FAST = load()
ERROR = find_error()


def build(outcome: str, notes: Path) -> Any:
    """A server with one tool, which does one thing."""
    server = SERVER(f"python-{outcome}")
    annotations = {"readOnlyHint": True} if outcome in ("value", "error") else {"readOnlyHint": False}
    if not IS_FAST:
        annotations = import_module("mcp.types").ToolAnnotations(**annotations)

    def note(what: str) -> None:
        with notes.open("a") as file:
            file.write(f"{what}\n")

    @server.tool(name="say", description="Say it again", annotations=annotations)
    async def say(text: str, ctx: Context) -> str:
        if outcome == "error":
            raise ERROR("the oven is cold")
        if outcome == "question":
            asked = await (ctx.elicit("Which size?", str) if IS_FAST else ctx.elicit("Which size?", Size))
            answer = asked.data if isinstance(asked.data, str) else asked.data.size
            return f"said {text} {answer}"
        if outcome == "stream":
            for number, piece in enumerate(PIECES):
                await ctx.report_progress(number + 1, len(PIECES), piece)
            return "".join(PIECES)
        if outcome == "cancel":
            note("running")
            try:
                await asyncio.sleep(600)
            finally:
                note("cancelled")
        return f"said {text}"

    return server


async def serve(notes: Path, ports: list[int]) -> None:
    """All of them over HTTP."""
    uvicorn = import_module("uvicorn")
    servers = [build(outcome, notes) for outcome in OUTCOMES]
    apps = [server.http_app() if IS_FAST else server.streamable_http_app() for server in servers]
    listening = [
        uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=1))
        for app, port in zip(apps, ports, strict=True)
    ]
    await asyncio.gather(*(one.serve() for one in listening))


if __name__ == "__main__":
    if sys.argv[1] == "http":
        asyncio.run(serve(Path(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
    else:
        build(sys.argv[2], Path(sys.argv[3])).run(**({"show_banner": False} if IS_FAST else {}))
