"""One server with an echo in three protocols: MCP at /mcp, A2A at /a2a, OpenAPI at /openapi.json; and bare at /bare.

Each does what no server can avoid, so that what is measured is what calls it. Run with a port.
"""

from __future__ import annotations

import sys
from typing import Any

import uvloop
from aiohttp import web

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOL = {"name": "say", "description": "Say the text back.", "inputSchema": TEXT, "annotations": {"readOnlyHint": True}}
SAID = {"description": "Said", "content": {"application/json": {"schema": TEXT}}}
OPENAPI = {
    "openapi": "3.1.0",
    "info": {"title": "Echo", "version": "1"},
    "paths": {
        "/say": {
            "get": {
                "operationId": "say",
                "summary": "Say the text back.",
                "parameters": [{"name": "text", "in": "query", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": SAID},
            }
        }
    },
}


async def _mcp(request: web.Request) -> web.Response:
    asked = await request.json()
    if "id" not in asked:
        return web.Response(status=202)
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
    match asked["method"]:
        case "initialize":
            about = {"name": "echo", "version": "1"}
            version = asked["params"]["protocolVersion"]
            body["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            body["result"] = {"tools": [TOOL]}
        case "tools/call":
            body["result"] = {"content": [{"type": "text", "text": asked["params"]["arguments"]["text"]}]}
        case "ping":
            body["result"] = {}
        case _:
            body["error"] = {"code": -32601, "message": "Unknown method"}
    return web.json_response(body)


async def _card(request: web.Request) -> web.Response:
    url = f"http://{request.host}/a2a"
    modes = ["text/plain"]
    skill = {"id": "say", "name": "say", "description": "Say the text back.", "tags": [], "inputModes": modes}
    return web.json_response(
        {
            "name": "Echo",
            "description": "Says it back.",
            "version": "1",
            "supportedInterfaces": [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
            "capabilities": {},
            "defaultInputModes": modes,
            "defaultOutputModes": modes,
            "skills": [skill],
        }
    )


async def _a2a(request: web.Request) -> web.Response:
    asked = await request.json()
    said = asked["params"]["message"]
    text = next(part["text"] for part in said["parts"] if "text" in part)
    task = {
        "id": said["messageId"],
        "contextId": said["messageId"],
        "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [{"artifactId": "result", "parts": [{"text": text}]}],
    }
    return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": {"task": task}})


async def _openapi(_: web.Request) -> web.Response:
    return web.json_response(OPENAPI)


async def _say(request: web.Request) -> web.Response:
    return web.json_response({"text": request.query["text"]})


async def _bare(request: web.Request) -> web.Response:
    asked = await request.json()
    return web.json_response({"success": True, "result": asked["input"]["text"]})


async def _healthy(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def main(port: int) -> None:
    """Serve on loopback until a signal comes."""
    app = web.Application()
    app.router.add_get("/healthz", _healthy)
    app.router.add_post("/mcp", _mcp)
    app.router.add_get("/a2a/.well-known/agent-card.json", _card)
    app.router.add_post("/a2a", _a2a)
    app.router.add_get("/openapi.json", _openapi)
    app.router.add_get("/say", _say)
    app.router.add_post("/bare", _bare)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main(int(sys.argv[1]))
