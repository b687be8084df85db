"""The official MCP SDK at its best: the low-level server with one echo tool and JSON answers.

Stateless, unless BENCH_SESSIONS is set: then its legacy era hands out sessions. ``get_tool_input_schema`` is given,
because without it the SDK lists the tools again inside every call. Also answers GET /healthz, so that its start can be
timed like ours.
"""

from __future__ import annotations

import os
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

SCHEMA = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}


async def _list(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=SCHEMA)])


async def _call(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    text = str((params.arguments or {})["message"])
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def _healthy(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


server = Server(
    "echo", version="1", on_list_tools=_list, on_call_tool=_call, get_tool_input_schema={"echo": SCHEMA}.get
)
app = server.streamable_http_app(
    json_response=True,
    stateless_http="BENCH_SESSIONS" not in os.environ,
    custom_starlette_routes=[Route("/healthz", _healthy)],
)
