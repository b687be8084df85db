"""The official MCP SDK with 10,000 tools: its low-level server, which slices a list that was built beforehand.

Stateless, JSON answers, a cursor that is simply an index. Also answers GET /healthz.
"""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.apps.catalogue import COUNT, PAGE, description, name, schema

TOOLS = [
    types.Tool(name=name(number), description=description(number), input_schema=schema(number))
    for number in range(COUNT)
]


async def _list(_: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    start = int(params.cursor) if params is not None and params.cursor else 0
    after = start + PAGE
    return types.ListToolsResult(tools=TOOLS[start:after], next_cursor=str(after) if after < COUNT else None)


async def _healthy(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


app = Server("catalogue", version="1", on_list_tools=_list).streamable_http_app(
    json_response=True, stateless_http=True, custom_starlette_routes=[Route("/healthz", _healthy)]
)
