"""The doors of a gateway that has an agent ``target``, each as a function: it calls the agent and gives what it got."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from agent3.errors import Agent3Error
from agent3.protocols.a2a.grpc import connect
from agent3.protocols.a2a.wire.types import Generation, Message, Part, Role, Send
from agent3.security.outbound import Gate, Policy
from tests.support.a2a_toy import message, rpc
from tests.support.gateway import Hosted
from tests.support.mcp_serving import modern_request

__all__ = [
    "Door",
    "a2a_grpc",
    "a2a_rest",
    "a2a_rpc",
    "ask",
    "legacy",
    "modern",
    "rest",
    "rest_detached",
    "rest_with_a_key",
]

MCP = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


Door = Callable[[Hosted], str]


def modern(path: str, *, fast: bool, direct: bool = False) -> Door:
    name, arguments = _tool(path, direct)

    def post(door: Hosted, method: str, params: dict[str, Any]) -> str:
        request = modern_request(method, params)
        if not fast:  # progress is for the SDK to tell
            request["json"]["params"]["_meta"]["progressToken"] = "p"
        headers = {key.replace("-", "_"): value for key, value in request["headers"].items()}
        return door.post(path, request["json"], content_type="application/json", **headers).raw.decode()

    def call(door: Hosted) -> str:
        post(door, "tools/list", {})  # only calls of tools that were listed take the short way
        return post(door, "tools/call", {"name": name, "arguments": arguments})

    return call


def legacy(path: str, *, fast: bool, direct: bool = False) -> Door:
    name, arguments = _tool(path, direct)

    def call(door: Hosted) -> str:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        session = door.post(path, hello, **MCP).headers["mcp-session-id"]
        known = {**MCP, "mcp_session_id": session, "mcp_protocol_version": "2025-11-25"}
        door.post(path, {"jsonrpc": "2.0", "method": "notifications/initialized"}, **known)
        door.post(path, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, **known)
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if not fast:
            params["_meta"] = {"progressToken": "p"}
        body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
        return door.post(path, body, **known).raw.decode()

    return call


def _tool(path: str, direct: bool) -> tuple[str, dict[str, Any]]:
    if direct:  # at the gateway's own door, as a tool of its own
        return "target__say", {"text": "hi"}
    if path == "/mcp":
        return "agent3_call", {"agentId": "target", "message": "hi"}
    return "say", {"text": "hi"}


def a2a_rpc(path: str, method: str, version: str, **headers: str) -> Door:
    def call(door: Hosted) -> str:
        return rpc(door, method, _a2a_params(version), path, a2a_version=version, **headers).raw.decode()

    return call


def a2a_rest(path: str, version: str) -> Door:
    def call(door: Hosted) -> str:
        body = _a2a_params("1.0")
        if version == "0.3":
            said = body["message"]
            body = {"message": {**said, "content": [{"text": "hi"}]}}
            del body["message"]["parts"]
        return door.post(path, body, content_type="application/json", a2a_version=version).raw.decode()

    return call


def _a2a_params(version: str) -> dict[str, Any]:
    if version == "1.0":
        return {"message": message("hi", "say")}
    metadata = {"skillId": "say"}
    if version == "0.1":
        said = {"role": "user", "parts": [{"type": "text", "text": "hi"}], "metadata": metadata}
        return {"id": str(uuid.uuid4()), "message": said}
    said = {"kind": "message", "role": "user", "parts": [{"kind": "text", "text": "hi"}], "metadata": metadata}
    return {"message": {**said, "messageId": str(uuid.uuid4())}}


def a2a_grpc(generation: Generation, *, stream: bool) -> Door:
    def call(door: Hosted) -> str:
        card = door.get("/.well-known/agent-card.json").json
        (place,) = {one["url"] for one in card["supportedInterfaces"] if one["protocolBinding"] == "GRPC"}

        async def story() -> str:
            way_out = Gate(Policy(allow_loopback=True))
            channel = await connect(way_out, place, generation)
            said = Message(
                message_id=str(uuid.uuid4()),
                role=Role.USER,
                parts=(Part(text="hi"),),
                metadata={"skillId": "say"},
            )
            try:
                async with asyncio.timeout(60):
                    if not stream:
                        return repr(await channel.ask(Send(message=said)))
                    return repr([item async for item in channel.stream(Send(message=said, stream=True))])
            except Agent3Error as error:
                return f"{error.code}: {error.message}"
            finally:
                await channel.aclose()
                await way_out.aclose()

        return asyncio.run(story())

    return call


def ask(*, streaming: bool) -> Door:
    def call(door: Hosted) -> str:
        body = {"query": {"text": "hi", "site": "target"}, "prefer": {"streaming": streaming}}
        return door.post("/ask", body).raw.decode()

    return call


def rest(door: Hosted) -> str:
    return door.call("target", "hi").raw.decode()


def rest_with_a_key(door: Hosted) -> str:
    metadata = {"idempotencyKey": uuid.uuid4().hex}
    return door.call("target", "hi", metadata=metadata).raw.decode()


def rest_detached(door: Hosted) -> str:
    job = door.call("target", "hi", prefer="respond-async").json["job"]
    return door.get(f"/v1/calls/{job}?wait=60").raw.decode()
