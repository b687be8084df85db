"""Ours with 10,000 tools: ``MCPServer.asgi()``. Also answers GET /healthz."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from agent3 import MCPServer, ToolDefinition
from bench.apps.catalogue import COUNT, description, name, schema

server = MCPServer("catalogue")


async def look(query: str, limit: int = 10, kind: str = "new") -> str:
    """The function of all of them."""
    return f"{query} {limit} {kind}"


for number in range(COUNT):
    definition = ToolDefinition(name=name(number), description=description(number), input_schema=schema(number))
    server.register_tool(definition, look)


async def _healthy(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


tools = server.asgi()
app = Starlette(routes=[Route("/healthz", _healthy), Mount("/", tools)], lifespan=tools.lifespan)
