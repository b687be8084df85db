"""An MCP door behind a real server, and plain requests to it, for tests that look at the wire."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as wire
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from agent3.protocols.mcp import MCPDoor

__all__ = ["MODERN", "modern_request", "served"]

MODERN = "2026-07-28"
NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


@asynccontextmanager
async def served(door: MCPDoor) -> AsyncIterator[str]:
    """The door behind a real server on loopback; gives the address of its endpoint."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with door.running():
            yield

    app = Starlette(routes=[Route("/mcp", endpoint=door.asgi())], lifespan=lifespan)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_config=None, ws="none", lifespan="on", timeout_graceful_shutdown=1, timeout_keep_alive=300
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 60)
        listener.close()


def modern_request(
    method: str, params: dict[str, Any], capabilities: dict[str, Any] | None = None, **headers: str
) -> dict[str, Any]:
    """What aiohttp posts for one request of the modern era; ``headers`` win over those that belong to it."""
    meta = {wire.PROTOCOL_VERSION_META_KEY: MODERN, wire.CLIENT_CAPABILITIES_META_KEY: capabilities or {}}
    named = {"Mcp-Name": params[NAMED[method]]} if method in NAMED else {}
    routing = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **named}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    accept = {"Accept": "application/json, text/event-stream"}
    return {"json": body, "headers": {**routing, **accept, **headers}}
