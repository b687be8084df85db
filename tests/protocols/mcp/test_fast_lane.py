"""Both lanes give the same answers: the same requests are sent down each and compared."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from agent3.jsonrpc import SSEParser, check_bytes
from agent3.model import LOCAL, Principal
from agent3.observe.metrics import Metrics
from agent3.protocols.functions import Context, LocalAgent
from agent3.protocols.mcp.door import fast_lane
from agent3.protocols.mcp.door.door import MCPDoor
from agent3.protocols.mcp.door.fast_lane import FastLane
from agent3.protocols.mcp.door.gateway_tools import INSTRUCTIONS, GatewayTools
from agent3.protocols.mcp.door.rpc_batches import serve_batch
from agent3.protocols.mcp.protocol import MCP
from agent3.server.build import Server, build
from agent3.server.demo import agents
from agent3.settings import Settings, Storage

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
slow_agent = LocalAgent("Slow", agent_id="slow")
seen: dict[str, asyncio.Event] = {}
"""What happened to the call of the slow agent."""


@slow_agent.capability
async def wait(ctx: Context) -> str:
    """Wait for a long time."""
    seen["started"].set()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        seen["cancelled"].set()
        raise
    return "never"


class Counted:
    """A lane that counts what reaches it."""

    def __init__(self, inner: ASGIApp):
        self.inner = inner
        self.requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        await self.inner(scope, receive, send)


class Lanes:
    """The two lanes of one gateway."""

    def __init__(self, door: MCPDoor):
        self.door = door
        self.sdk = Counted(door.asgi())
        self.fast = FastLane(door)
        self.fast._slow_lane = self.sdk

    async def both(self, body: Any, headers: dict[str, str] | None = None) -> tuple[Any, Any]:
        """What each lane answers, without what differs between any two calls; the fast one must not ask the SDK."""
        slow = await ask(self.sdk, body, headers)
        before = self.sdk.requests
        fast = await ask(self.fast, body, headers)
        assert self.sdk.requests == before, "the request was not taken by the fast lane"
        return comparable(slow), comparable(fast)


def comparable(answer: tuple[int, dict[str, str], bytes]) -> Any:
    status, headers, body = answer
    if headers.get("content-type", "").startswith("text/event-stream"):
        body = next(frame.data for frame in SSEParser().feed(body) if frame.data)
    steady = re.sub(rb'(\\?"responseTime\\?":)[0-9.e-]+', rb"\g<1>0", body)
    found = msgspec.json.decode(steady)
    for block in found.get("result", {}).get("content", []):
        if block.get("text", "").startswith("{"):
            block["text"] = msgspec.json.decode(block["text"])
    return status, found


async def ask(
    lane: ASGIApp, body: Any, headers: dict[str, str] | None = None, *, gone: Callable[[], Any] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One POST, spoken in ASGI; ``gone`` is awaited before the client hangs up."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    plain = {"host": "127.0.0.1:8333", "content-type": "application/json"}
    plain |= {"accept": "application/json, text/event-stream"} | (headers or {})
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "server": ("127.0.0.1", 8333),
        "client": ("127.0.0.1", 40000),
        "headers": [(key.lower().encode(), value.encode()) for key, value in plain.items()],
    }
    said = [{"type": "http.request", "body": raw, "more_body": False}]
    heard: list[Message] = []
    over = asyncio.Event()

    async def receive() -> Message:
        if said:
            return said.pop()
        await (gone() if gone is not None else over.wait())
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        heard.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            over.set()

    await asyncio.wait_for(lane(scope, receive, send), 100)
    if not heard:
        return 0, {}, b""
    told = {key.decode().lower(): value.decode() for key, value in heard[0]["headers"]}
    return heard[0]["status"], told, b"".join(one.get("body", b"") for one in heard[1:])


def modern(method: str, key: Any = 1, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": {**params, "_meta": META}}, headers


def a_call(tool: str = "agent3_call", key: Any = 1, **arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
    return modern("tools/call", key, name=tool, arguments=arguments)


def mcp_of(server: Server) -> MCP:
    mcp = server.protocols["mcp"]
    assert isinstance(mcp, MCP)
    return mcp


@asynccontextmanager
async def lanes(principal: Callable[[Any], Principal] = lambda scope: LOCAL) -> AsyncIterator[Lanes]:
    settings = Settings(storage=Storage(url=":memory:"))
    async with build(settings, [*agents(), slow_agent], metrics=Metrics()) as server:
        door = mcp_of(server).door(GatewayTools(server.gateway), principal=principal, instructions=INSTRUCTIONS)
        async with door.running():
            both = Lanes(door)
            await ask(both.sdk, *modern("tools/list"))  # a tool is regular once it has been seen
            yield both


async def a_session(both: Lanes, capabilities: dict[str, Any] | None = None) -> dict[str, str]:
    can = capabilities or {}
    hello = {"protocolVersion": "2025-11-25", "capabilities": can, "clientInfo": {"name": "test", "version": "1"}}
    _, told, _ = await ask(both.fast, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    headers = {"mcp-session-id": told["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    await ask(both.fast, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    return headers


CALLS = [
    a_call(agentId="echo", message="hello"),
    a_call(agentId="echo", message="ünïcödé \u2028 \U0001f355", key="a string"),
    a_call(agentId="calculator", message="1/0"),
    a_call(agentId="ech", message="hello"),
    a_call(agentId="echo", message="hello", metadata={"timeout": -1}),
    a_call(agentId="echo"),
    a_call(nothing=True),
    a_call(agentId="pizza", capability="menu"),
    a_call("agent3_search", query="pizza"),
    a_call("agent3_search", query="pizza", limit=0),
    a_call("agent3_select", agentId="pizza"),
    a_call("agent3_select", agentId="nobody"),
    a_call("agent3_invoke", agentId="pizza"),
    a_call("agent3_feedback", agentId="pizza", rating=9),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_modern_call_is_answered_alike_by_both_lanes(number: int) -> None:
    async def story() -> None:
        async with lanes() as both:
            slow, fast = await both.both(*CALLS[number])
            assert fast == slow

    asyncio.run(story())


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_legacy_call_is_answered_alike_by_both_lanes(number: int) -> None:
    async def story() -> None:
        async with lanes() as both:
            headers = await a_session(both)
            body = CALLS[number][0]
            legacy = {**body, "params": {key: value for key, value in body["params"].items() if key != "_meta"}}
            slow, fast = await both.both(legacy, headers)
            assert fast == slow

    asyncio.run(story())


@pytest.mark.parametrize("method", ["tools/list", "server/discover"])
def test_lists_are_the_answers_of_the_sdk_remembered(method: str) -> None:
    async def story() -> None:
        async with lanes() as both:
            first = comparable(await ask(both.fast, *modern(method, 7)))
            slow, fast = await both.both(*modern(method, 7))
            assert first == slow == fast

    asyncio.run(story())


def test_a_legacy_ping_and_list_are_remembered_too() -> None:
    async def story() -> None:
        async with lanes() as both:
            headers = await a_session(both)
            for method in ("ping", "tools/list"):
                body = {"jsonrpc": "2.0", "id": 3, "method": method}
                await ask(both.fast, body, headers)
                slow, fast = await both.both(body, headers)
                assert fast == slow

    asyncio.run(story())


def _without(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    body, headers = a_call(agentId="echo", message="hello")
    return body, {key: value for key, value in headers.items() if key != name}


def _with(**more: Any) -> tuple[dict[str, Any], dict[str, str]]:
    body, headers = a_call(agentId="echo", message="hello")
    return {**body, "params": {**body["params"], **more}}, headers


IRREGULAR = [
    (b"not json", {}),
    (b"[" * 50_000, {}),
    ([], {}),
    _without("mcp-method"),
    _without("mcp-name"),
    _with(_meta={**META, "progressToken": 5}),
    _with(_meta={**META, "io.modelcontextprotocol/logLevel": "debug"}),
    _with(_meta={}),
    _with(requestState="x", inputResponses={}),
    _with(arguments=[1]),
    (a_call(agentId="echo", message="x")[0], {**a_call()[1], "host": "evil.example"}),
    (a_call(agentId="echo", message="x")[0], {**a_call()[1], "origin": "https://evil.example"}),
    (a_call(agentId="echo", message="x")[0], {**a_call()[1], "accept": "text/plain"}),
    (a_call(agentId="echo", message="x")[0], {**a_call()[1], "mcp-protocol-version": "2099-01-01"}),
    a_call("nothing_like_it"),
    modern("resources/list"),
    modern("no/such/method"),
    ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"mcp-session-id": "forged", "mcp-protocol-version": "2025-11-25"}),
]


@pytest.mark.parametrize("number", range(len(IRREGULAR)))
def test_what_is_irregular_is_the_sdks_to_answer(number: int) -> None:
    async def story() -> None:
        async with lanes() as both:
            slow = await ask(both.sdk, *IRREGULAR[number])
            before = both.sdk.requests
            fast = await ask(both.fast, *IRREGULAR[number])
            assert both.sdk.requests == before + 1
            assert fast[0] == slow[0]
            assert fast[2][:40] == slow[2][:40]

    asyncio.run(story())


PING = {"jsonrpc": "2.0", "id": 5, "method": "ping"}
TOLD = {"jsonrpc": "2.0", "id": "n", "method": "notifications/initialized"}


def test_requests_as_clients_really_send_them() -> None:
    """By headers and body: the kind of the answer, and its result or the code of its error."""

    async def story() -> None:
        async with lanes() as both:
            session = await a_session(both)
            await ask(both.fast, PING, session)  # what follows is remembered
            for headers, body, kind, wanted in (
                ({"accept": "application/json"}, {**PING, "params": None}, "application/json", {}),
                ({"accept": ""}, {**PING, "params": None}, "application/json", {}),
                ({"accept": "application/*"}, PING, "application/json", {}),
                ({"accept": "*/*"}, PING, "application/json", {}),
                ({"accept": "text/event-stream"}, PING, "text/event-stream", {}),
                ({"accept": "APPLICATION/JSON, Text/Event-Stream"}, PING, "application/json", {}),
                ({"content-type": "Application/JSON;charset=UTF-8"}, PING, "application/json", {}),
                ({}, b"\xef\xbb\xbf" + msgspec.json.encode(PING), "application/json", {}),
                ({}, {**PING, "id": 5.0}, "application/json", {}),
                ({}, TOLD, "application/json", {}),
                ({}, {**PING, "id": None}, "application/json", -32600),
                ({}, {**PING, "id": 5.5}, "application/json", -32600),
                ({}, {**PING, "id": True}, "application/json", -32600),
                ({}, {**PING, "params": []}, "application/json", -32600),
                ({}, {"id": 5, "method": "ping"}, "application/json", -32600),
            ):
                status, told, answer = await ask(both.fast, body, {**session, **headers})
                assert told["content-type"].partition(";")[0] == kind, (headers, body)
                message = comparable((status, told, answer))[1]
                assert (message["result"] if wanted == {} else message["error"]["code"]) == wanted, (headers, body)
                assert status == (200 if wanted == {} else 400)
            status, _, answer = await ask(both.fast, PING, {**session, "accept": "text/html"})
            assert status == 406

    asyncio.run(story())


@pytest.mark.parametrize("left_out", ["protocolVersion", "capabilities", "clientInfo", "version"])
def test_an_introduction_that_leaves_something_out_is_taken(left_out: str) -> None:
    async def story() -> None:
        about = {"name": "old"} if left_out == "version" else {"name": "old", "version": "1"}
        params = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": about} | {left_out: None}
        async with lanes() as both:
            body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            status, told, answer = await ask(both.fast, body, {"accept": "application/json"})
            assert (status, told["content-type"]) == (200, "application/json")
            version = msgspec.json.decode(answer)["result"]["protocolVersion"]
            assert version == ("2025-03-26" if left_out == "protocolVersion" else "2024-11-05")

    asyncio.run(story())


def test_a_call_that_asks_is_begun_once_and_finished_by_the_sdks_lane() -> None:
    async def story() -> None:
        async with lanes() as both:
            body, headers = a_call(agentId="pizza", message="a pepperoni pizza", capability="order")
            body["params"]["_meta"] = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
            status, _, raw = await ask(both.fast, body, headers)
            result = msgspec.json.decode(raw)["result"]
            assert (status, result["resultType"]) == (200, "input_required")
            jobs = await _jobs(both)
            assert jobs == 1

    asyncio.run(story())


@pytest.mark.parametrize("more", [{}, {"progressToken": 1}], ids=["fast lane", "SDK"])
def test_a_client_that_takes_no_stream_gets_the_question_as_a_result(more: dict[str, Any]) -> None:
    async def story() -> None:
        async with lanes() as both:
            session = {**await a_session(both, {"elicitation": {}}), "accept": "application/json"}
            body, _ = a_call(agentId="pizza", message="a pepperoni pizza", capability="order")
            body["params"]["_meta"] = more
            status, told, raw = await ask(both.fast, body, session)
            assert (status, told["content-type"]) == (200, "application/json")
            assert b"Ask the user" in raw
            assert await _jobs(both) == 1

    asyncio.run(story())


def test_a_body_with_too_many_values_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def check(body: bytes) -> None:
        checked.append(len(body))
        check_bytes(body)

    async def story() -> None:
        async with lanes() as both:
            session = await a_session(both)
            monkeypatch.setattr(fast_lane, "check_bytes", check)
            await ask(both.fast, {**PING, "params": {"arguments": [""] * 10_001}}, session)
            assert len(checked) == 1

    asyncio.run(story())


async def _jobs(both: Lanes) -> int:
    tools: Any = both.door.toolset
    rows = await tools._gateway.core.database.all("SELECT id FROM jobs")
    return len(rows)


def test_a_modern_client_that_hangs_up_cancels_the_call() -> None:
    async def story() -> None:
        seen.update(started=asyncio.Event(), cancelled=asyncio.Event())
        async with lanes() as both:
            body, headers = a_call(agentId="slow", input={})
            status, _, _ = await ask(both.fast, body, headers, gone=seen["started"].wait)
            assert status == 0
            await asyncio.wait_for(seen["cancelled"].wait(), 60)

    asyncio.run(story())


def test_a_legacy_session_belongs_to_who_opened_it() -> None:
    who = [Principal("alice")]

    async def story() -> None:
        async with lanes(lambda scope: who[0]) as both:
            headers = await a_session(both)
            body = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": CALLS[0][0]["params"]}
            assert (await ask(both.fast, body, headers))[0] == 200
            who[0] = Principal("mallory")
            assert (await ask(both.fast, body, headers))[0] == 404

    asyncio.run(story())


@pytest.mark.parametrize("by_stream", [False, True], ids=["json", "stream"])
def test_a_legacy_notification_cancels_a_call_without_a_progress_token(
    monkeypatch: pytest.MonkeyPatch, by_stream: bool
) -> None:
    monkeypatch.setattr(fast_lane, "STREAM_AFTER", 0.0 if by_stream else 3600.0)

    async def story() -> None:
        seen.update(started=asyncio.Event(), cancelled=asyncio.Event())
        async with lanes() as both:
            headers = await a_session(both)
            before = both.sdk.requests
            params = a_call(agentId="slow", input={})[0]["params"]
            body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {**params, "_meta": {}}}
            calling = asyncio.create_task(ask(both.fast, body, headers))
            await asyncio.wait_for(seen["started"].wait(), 60)
            while by_stream and both.sdk.requests == before:
                await asyncio.sleep(0.01)
            over = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            assert not seen["cancelled"].is_set()
            assert (await ask(both.fast, over, headers))[0] == 202
            await asyncio.wait_for(seen["cancelled"].wait(), 60)
            _, told, answer = await calling
            assert told["content-type"] == ("text/event-stream" if by_stream else "application/json")
            if not by_stream:
                assert msgspec.json.decode(answer)["error"]["data"]["code"] == "canceled"

    asyncio.run(story())


def test_each_of_several_requests_with_one_id_in_a_session_is_answered() -> None:
    async def story() -> None:
        async with lanes() as both, asyncio.timeout(60):
            headers = await a_session(both)
            before = both.sdk.requests

            async def call(number: int) -> bytes:
                params = a_call(agentId="echo", message=f"message {number}")[0]["params"]
                params = {**params, "_meta": {"progressToken": number}}  # which makes it one for the SDK
                key = 7 if number % 2 else "7"
                body = {"jsonrpc": "2.0", "id": key, "method": "tools/call", "params": params}
                return (await ask(both.fast, body, headers))[2]

            answers = await asyncio.gather(*map(call, range(6)))
            assert both.sdk.requests == before + 6
            for number, answer in enumerate(answers):
                assert b'"result":"%d"' % number in answer
            assert not both.fast._turns

    asyncio.run(story())


def test_a_long_legacy_call_that_is_refused_on_its_way_to_a_stream_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_lane, "STREAM_AFTER", 0.0)

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await Response(status_code=503)(scope, receive, send)

    async def story() -> None:
        seen.update(started=asyncio.Event(), cancelled=asyncio.Event())
        async with lanes() as both:
            headers = await a_session(both)
            both.fast._slow_lane = refuse
            params = a_call(agentId="slow", input={})[0]["params"]
            body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {**params, "_meta": {}}}
            assert (await ask(both.fast, body, headers))[0] == 503
            if seen["started"].is_set():  # else it was given up before
                await asyncio.wait_for(seen["cancelled"].wait(), 60)
            assert not both.fast._calls

    asyncio.run(story())


def test_keys_of_meta_that_belong_to_others_are_no_reason_to_be_slow() -> None:
    async def story() -> None:
        async with lanes() as both:
            body, headers = a_call(agentId="echo", message="hello")
            body["params"]["_meta"] = {**META, "com.example/x": {"deep": [1]}}
            slow, fast = await both.both(body, headers)
            assert fast == slow

    asyncio.run(story())


def test_the_version_that_has_batches_gets_them() -> None:
    def message(method: str, key: int | None = None, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "method": method, **({} if key is None else {"id": key}), "params": params}

    async def story() -> None:
        async with lanes() as both:
            headers = await a_session(both)
            del headers["mcp-protocol-version"]
            call = {"name": "agent3_call", "arguments": {"agentId": "echo", "message": "hi"}}
            batch = [
                message("ping", 1),
                message("notifications/cancelled", requestId=99),
                message("tools/call", 2, **call),
                message("no/such", 3),
                message("initialize", 4),
            ]
            status, told, answer = await ask(both.fast, batch, headers)
            assert (status, told["content-type"]) == (200, "application/json")
            answers = {one["id"]: one for one in msgspec.json.decode(answer)}
            assert answers.keys() == {1, 2, 3, 4}
            assert answers[1]["result"] == {}
            assert "hi" in answers[2]["result"]["content"][0]["text"]
            assert (answers[3]["error"]["code"], answers[4]["error"]["code"]) == (-32601, -32600)
            # What comes before a result comes as it happens.
            streamed = [message("tools/call", 5, **call, _meta={"progressToken": "p"}), message("ping", 6)]
            _, told, answer = await ask(both.fast, streamed, headers)
            assert {one["id"] for one in _messages(told, answer) if "result" in one} == {5, 6}
            assert (await ask(both.fast, [message("notifications/cancelled", requestId=9)], headers))[0] == 202
            assert (await ask(both.fast, [], headers))[0] == 400
            later = {**headers, "mcp-protocol-version": "2025-11-25"}
            assert (await ask(both.fast, batch, later))[0] == 400

    asyncio.run(story())


def test_a_message_of_a_batch_that_cannot_be_served_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked = msgspec.json.decode((await receive())["body"])
        if asked["method"] == "broken":
            raise RuntimeError("on purpose")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {}}
        await send({"type": "http.response.body", "body": msgspec.json.encode(answer)})

    async def story() -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        batch = [{"id": 1, "method": "ping"}, {"id": 2, "method": "broken"}, {"method": "broken"}]
        await serve_batch(app, {"headers": []}, [msgspec.json.encode(one) for one in batch], send)
        answers = {one["id"]: one for one in msgspec.json.decode(sent[-1]["body"])}
        assert answers.keys() == {1, 2}
        assert answers[2]["error"]["code"] == -32603

    asyncio.run(story())
    assert caplog.text.count("could not be served") == 2


def _messages(told: dict[str, str], body: bytes) -> list[dict[str, Any]]:
    if told["content-type"] == "application/json":
        found: list[dict[str, Any]] = msgspec.json.decode(body)
        return found
    return [msgspec.json.decode(frame.data) for frame in SSEParser().feed(body) if frame.data]
