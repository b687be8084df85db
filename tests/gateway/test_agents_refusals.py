"""What an agent answers when it does not serve: told apart in every protocol, in words, with the agent's own status."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent3 import errors
from agent3.errors import RateLimited
from agent3.protocols.a2a.grpc import connect
from agent3.protocols.a2a.wire.types import GetTask
from agent3.security.outbound import Gate, Policy
from agent3.settings import Calls, Settings
from tests.support.a2a_peers import first, official
from tests.support.gateway import Hosted, Reply, hosted
from tests.support.mcp_upstream import App, Upstream, build
from tests.support.registration import add
from tests.support.sites import Answer, Site

JSON = {"Content-Type": "application/json"}
CLASSES = {kind.__name__ for kind in errors.family() if kind.__name__ != "Agent3Error"}

Refuse = Callable[[int, dict[str, str], bytes], None]
"""Makes an agent answer every further call with this status, headers and body."""


@contextmanager
def a2a(**how: Any) -> Iterator[tuple[str, Refuse]]:
    with first() if how.pop("oldest", False) else official(**how) as made:
        peer = made[0] if isinstance(made, tuple) else made

        def refuse(status: int, headers: dict[str, str], body: bytes) -> None:
            def answer(path: str, _: dict[str, str]) -> Response | None:
                return None if "well-known" in path else Response(body, status, headers)

            peer.refuse = answer

        yield peer.url, refuse


@contextmanager
def mcp(*, legacy: bool) -> Iterator[tuple[str, Refuse]]:
    """A server of the official SDK, with a guard in front that may refuse calls of tools."""
    inner = App(build(Upstream(None)), legacy=legacy, json=False, key=None, path=None)
    refusal: list[Response] = []

    def refuse(status: int, headers: dict[str, str], body: bytes) -> None:
        refusal[:] = [Response(body, status, headers)]

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        refused = refusal and scope["type"] == "http" and scope["method"] == "POST"
        await (refusal[0] if refused else inner)(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(guard, log_config=None, lifespan="on", ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", refuse
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()


@contextmanager
def nlweb() -> Iterator[tuple[str, Refuse]]:
    answer = {"_meta": {"response_type": "Answer", "version": "0.54"}, "results": []}
    with Site({"/ask": Answer(json.dumps(answer), headers=JSON)}) as site:

        def refuse(status: int, headers: dict[str, str], body: bytes) -> None:
            site.pages["/ask"] = Answer(body.decode(), status, headers)

        yield site.url, refuse


@contextmanager
def openapi() -> Iterator[tuple[str, Refuse]]:
    text = {"name": "text", "in": "query", "schema": {"type": "string"}}
    with Site({"/echo": Answer("{}", 201, JSON)}) as site:
        paths = {"/echo": {"get": {"operationId": "echo", "parameters": [text], "responses": {}}}}
        document = {"openapi": "3.1.0", "info": {"title": "Echo", "version": "1"}, "paths": paths}
        site.pages["/openapi.json"] = Answer(json.dumps(document), headers=JSON)

        def refuse(status: int, headers: dict[str, str], body: bytes) -> None:
            site.pages["/echo"] = Answer(body.decode(), status, headers)

        yield f"{site.url}/openapi.json", refuse


AGENTS: dict[str, Callable[[], Any]] = {
    "A2A 1.0 JSON-RPC": lambda: a2a(binding="JSONRPC", version="1.0"),
    "A2A 0.3 REST": lambda: a2a(binding="HTTP+JSON", version="0.3"),
    "A2A 0.1": lambda: a2a(oldest=True),
    "MCP 2026-07-28": lambda: mcp(legacy=False),
    "MCP 2025-11-25": lambda: mcp(legacy=True),
    "NLWeb": nlweb,
    "OpenAPI": openapi,
}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    settings = Settings(calls=Calls(retries=0, breaker_failures=1_000))
    with hosted(tmp_path_factory.mktemp("refusals"), [], settings) as running:
        yield running


def call(door: Hosted, agent: str) -> Reply:
    shown = door.get(f"/v1/agents/{agent}").json
    more = {"capability": "echo", "input": {"text": "hi"}} if len(shown["capabilities"]) > 1 else {"message": "hi"}
    return door.post("/v1/call", {"agentId": agent, **more, "metadata": {"retries": 0, "timeout": 20_000}})


@pytest.mark.requirement("AC-25")
@pytest.mark.parametrize("protocol", AGENTS)
def test_refusals_are_told_apart_with_the_agents_own_status(door: Hosted, protocol: str) -> None:
    with AGENTS[protocol]() as (url, refuse):
        name = re.sub(r"\W+", "-", protocol).lower()
        agent = door.run(add(door.server, url, name)).id
        answered = call(door, agent).json
        assert answered["success"] is True
        assert answered["metadata"]["statusCode"] == (201 if protocol == "OpenAPI" else 200)
        for status, headers, code, ours in (
            (429, {"Retry-After": "7"}, "rate_limited", 429),
            (401, {}, "target_refused", 502),
            (403, {}, "target_refused", 502),
            (503, {"Retry-After": "3"}, "unavailable", 503),
        ):
            refuse(status, headers, b"")
            reply = call(door, agent)
            body = reply.json
            assert (body["success"], body["errorCode"], reply.status) == (False, code, ours), body
            assert body["metadata"]["statusCode"] == status
            assert body["nextStep"]
            assert not re.search(rf"\b({'|'.join(CLASSES)})\b", body["error"]), body["error"]
            if "Retry-After" in headers:
                assert body["metadata"]["retryAfter"] == float(headers["Retry-After"])
                assert reply.headers["retry-after"] == headers["Retry-After"]


@pytest.mark.requirement("AC-25")
@pytest.mark.parametrize("protocol", AGENTS)
def test_an_answer_that_is_no_answer_is_malformed(door: Hosted, protocol: str) -> None:
    with AGENTS[protocol]() as (url, refuse):
        agent = door.run(add(door.server, url, "odd-" + re.sub(r"\W+", "-", protocol).lower())).id
        answered = call(door, agent).json
        assert answered["success"] is True
        assert answered["metadata"]["statusCode"] == (201 if protocol == "OpenAPI" else 200)
        refuse(200, {"Content-Type": "application/json"}, b"this is not JSON")
        body = call(door, agent).json
        assert (body["errorCode"], body["retryable"]) == ("malformed_response", False)
        assert "agent" in body["nextStep"]


@pytest.mark.requirement("AC-25")
@pytest.mark.parametrize(
    ("trailers", "seconds"), [((("retry-after", "7"),), 7.0), ((), None), ("info", 2.5)], ids=["header", "none", "info"]
)
def test_an_exhausted_resource_over_grpc_is_a_rate_limit(trailers: Any, seconds: float | None) -> None:
    from google.protobuf.duration_pb2 import Duration  # type: ignore[import-untyped]
    from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

    if trailers == "info":
        status = status_pb2.Status(code=8, message="slow down")
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000)))
        trailers = (("grpc-status-details-bin", status.SerializeToString()),)

    class Exhausted(grpc.GenericRpcHandler):
        def service(self, _: Any) -> Any:
            async def refuse(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", trailers)

            return grpc.unary_unary_rpc_method_handler(refuse)

    async def story() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Exhausted(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        gate = Gate(Policy(allow_loopback=True))
        channel = await connect(gate, f"http://127.0.0.1:{port}", "1.0")
        try:
            with pytest.raises(RateLimited, match="slow down") as caught:
                await channel.ask(GetTask(id="x"), timeout=20)
            assert (caught.value.retry_after, caught.value.sent) == (seconds, False)
        finally:
            await channel.aclose()
            await gate.aclose()
            await server.stop(0)

    asyncio.run(asyncio.wait_for(story(), 60))
