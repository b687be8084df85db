"""A step that is added to ``ORDER`` is in force at every door of a gateway, wherever in the order it stands."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agent3.errors import Agent3Error
from agent3.protocols.a2a.grpc import connect
from agent3.protocols.a2a.wire.types import Generation, Message, Part, Role, Send
from agent3.security.outbound import Gate, Policy
from agent3.settings import Calls, Limits, Server, Settings
from tests.support.a2a_toy import message, rpc
from tests.support.gateway import Hosted, hosted
from tests.support.mcp_serving import modern_request
from tests.support.probe import AROUND, ENTER, PROBE, WORDS, Target, places, probing

MCP = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
FORWARDED = {"x_forwarded_proto": "http"}
"""What a proxy has touched has to come by the app, past the short way."""


@dataclass
class House:
    door: Hosted
    target: Target


@pytest.fixture(
    scope="module",
    params=[*((place, ENTER) for place in places()), *((place, AROUND) for place in places(few=True))],
    ids=lambda given: f"{given[1].__name__}-{given[0]}",
)
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway with the probe at one place."""
    target = Target()
    settings = Settings(
        calls=Calls(ledger="batched", retries=0), limits=Limits(per_minute=0), server=Server(grpc_port=0)
    )
    with probing(*request.param), hosted(tmp_path_factory.mktemp("doors"), target.agents, settings) as running:
        yield House(running, target)


# The doors, each as a function that calls the target and gives what the caller got


Door = Callable[[Hosted], str]


def modern(path: str, *, fast: bool) -> Door:
    name, arguments = _tool(path)

    def call(door: Hosted) -> str:
        request = modern_request("tools/call", {"name": name, "arguments": arguments})
        body, headers = request["json"], request["headers"]
        if not fast:  # progress is for the SDK to tell
            body["params"]["_meta"]["progressToken"] = "p"
        more = {key.replace("-", "_"): value for key, value in headers.items()}
        return door.post(path, body, content_type="application/json", **more).raw.decode()

    return call


def legacy(path: str, *, fast: bool) -> Door:
    name, arguments = _tool(path)

    def call(door: Hosted) -> str:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        session = door.post(path, hello, **MCP).headers["mcp-session-id"]
        known = {**MCP, "mcp_session_id": session, "mcp_protocol_version": "2025-11-25"}
        door.post(path, {"jsonrpc": "2.0", "method": "notifications/initialized"}, **known)
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if not fast:
            params["_meta"] = {"progressToken": "p"}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        return door.post(path, body, **known).raw.decode()

    return call


def _tool(path: str) -> tuple[str, dict[str, Any]]:
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


DOORS: dict[str, Door] = {
    "REST": rest,
    "REST with a key": rest_with_a_key,
    "REST detached": rest_detached,
    "NLWeb": ask(streaming=False),
    "NLWeb stream": ask(streaming=True),
    **{
        f"MCP {path} {era.__name__} {'fast' if fast else 'SDK'}": era(path, fast=fast)
        for path in ("/mcp", "/agents/target/mcp")
        for era in (modern, legacy)
        for fast in (True, False)
    },
    **{
        f"A2A {path} {method} {'long' if headers else 'short'}": a2a_rpc(path, method, version, **headers)
        for path in ("/a2a", "/agents/target/a2a")
        for method, version in (
            ("tasks/send", "0.1"),
            ("tasks/sendSubscribe", "0.1"),
            ("message/send", "0.3"),
            ("message/stream", "0.3"),
            ("SendMessage", "1.0"),
            ("SendStreamingMessage", "1.0"),
        )
        for headers in ({}, FORWARDED)
    },
    **{
        f"A2A REST {path}": a2a_rest(path, version)
        for base in ("/a2a", "/agents/target/a2a")
        for verb in ("send", "stream")
        for path, version in ((f"{base}/v1/message:{verb}", "0.3"), (f"{base}/message:{verb}", "1.0"))
    },
    "A2A gRPC 0.3": a2a_grpc("0.3", stream=False),
    "A2A gRPC 0.3 stream": a2a_grpc("0.3", stream=True),
    "A2A gRPC 1.0": a2a_grpc("1.0", stream=False),
    "A2A gRPC 1.0 stream": a2a_grpc("1.0", stream=True),
}


@pytest.mark.parametrize("name", DOORS)
def test_a_step_that_refuses_is_asked_and_obeyed(house: House, name: str) -> None:
    PROBE.clear(refuses=True)
    before = house.target.runs
    told = DOORS[name](house.door)
    assert WORDS in told, told
    # Our own gRPC client says of a foreign PERMISSION_DENIED that its target refused.
    assert "forbidden" in told.lower() or "target_refused" in told, told
    assert house.target.runs == before
    assert PROBE.entered


@pytest.mark.parametrize("name", DOORS)
def test_a_step_that_only_looks_sees_every_turn_once(house: House, name: str) -> None:
    PROBE.clear()
    before = house.target.runs
    told = DOORS[name](house.door)
    assert "said hi" in told, told
    assert house.target.runs == before + 1
    assert len(PROBE.entered) == len(PROBE.left) == 1
