"""The floor of A2A: an ASGI application that reads a SendMessage and answers the text in a completed task.

It does what no server can avoid (read, parse, find the text, encode), keeps nothing and knows nobody. Also answers GET
/healthz.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """One request; other kinds of scope (lifespan) are left to the server's own default."""
    if scope["type"] != "http":
        return
    if scope["path"] == "/healthz":
        await _reply(send, {"status": "ok"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    asked = json.loads(body)
    said = asked["params"]["message"]
    task = {
        "id": said["messageId"],
        "contextId": said["messageId"],
        "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [{"artifactId": "result", "parts": [{"text": said["parts"][0]["text"]}]}],
    }
    await _reply(send, {"jsonrpc": "2.0", "id": asked["id"], "result": {"task": task}})


async def _reply(send: Callable[[dict[str, Any]], Awaitable[None]], value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
