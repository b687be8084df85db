"""An MCP server of both eras whose tools ask, on the SDK's usual server. Run as a script it serves over stdio.

``order`` asks by a request of its own, as most tools do; ``look`` does the same and only reads; ``wish`` asks by its
result, as only the modern era can. ``notes`` gets a line whenever a tool begins.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mcp_types as wire
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

__all__ = ["build", "command"]

ROOT = Path(__file__).parents[2]
SIZE: dict[str, Any] = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}


class Size(BaseModel):
    size: str


def build(notes: Path, version: str = "1") -> MCPServer:
    server = MCPServer("asking", version=version)

    def begin(tool: str, ctx: Context) -> None:
        with notes.open("a") as file:
            file.write(f"{tool} {'modern' if ctx.request_context.protocol_version > '2026' else 'legacy'}\n")

    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Which size?", Size)
        return f"{answer.action} {answer.data.size if answer.action == 'accept' else None}"

    @server.tool()
    async def order(ctx: Context) -> str:
        begin("order", ctx)
        return await ask(ctx)

    @server.tool(annotations=wire.ToolAnnotations(read_only_hint=True))
    async def look(ctx: Context) -> str:
        begin("look", ctx)
        return await ask(ctx)

    @server.tool()
    async def wish(ctx: Context) -> str | wire.InputRequiredResult:
        begin("wish", ctx)
        if ctx.input_responses is None:
            form = wire.ElicitRequestFormParams(message="Which size?", requested_schema=SIZE)
            return wire.InputRequiredResult(input_requests={"size": wire.ElicitRequest(params=form)})
        answer = ctx.input_responses["size"]
        assert isinstance(answer, wire.ElicitResult)
        return f"{answer.action} {(answer.content or {}).get('size')} {ctx.request_state}"

    @server.tool()
    async def plain(ctx: Context) -> str:
        begin("plain", ctx)
        return "plain"

    return server


def command(notes: Path) -> dict[str, Any]:
    """The command that runs the server over stdio."""
    return {"command": sys.executable, "args": ["-m", "tests.support.mcp_asking", str(notes)], "cwd": str(ROOT)}


if __name__ == "__main__":
    build(Path(sys.argv[1])).run("stdio")
