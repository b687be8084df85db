"""The documented MCP security classes: alone, and around the tools of a real server."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import aiohttp
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

from agent3 import MCPInputValidator, MCPRateLimiter, MCPSecurityManager, ToolDefinition, ToolParameter
from agent3.env import REAL, Env, SeededEnv
from agent3.errors import SetupError, Unauthenticated, ValidationError
from agent3.observe.metrics import Metrics
from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor
from agent3.protocols.mcp.library.security import GuardedTools
from agent3.security.access import Access
from agent3.settings import Rule
from tests.support.mcp_toy import Toys

KEY = "an api key of thirty-two bytes, or more"
MODERN = "2026-07-28"


def signature(client: str, timestamp: object, key: str = KEY) -> str:
    return hmac.new(key.encode(), f"{client}:{timestamp}".encode(), hashlib.sha256).hexdigest()


def count(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("mcp_auth_failures_total") or 0.0


# Who


@pytest.mark.parametrize("age", [0, 300, -300])
def test_a_client_that_has_the_key_is_authenticated(age: int) -> None:
    env = SeededEnv()
    timestamp = str(int(env.now()) - age)
    assert MCPSecurityManager(KEY, env=env).authenticate_client("desk", signature("desk", timestamp), timestamp)


@pytest.mark.parametrize("age", [301, -301, 10**6])
def test_a_signature_of_another_time_is_refused(age: int, caplog: pytest.LogCaptureFixture) -> None:
    env = SeededEnv()
    timestamp = str(int(env.now()) - age)
    with caplog.at_level("WARNING", logger="agent3"):
        assert not MCPSecurityManager(KEY, env=env).authenticate_client("desk", signature("desk", timestamp), timestamp)
    assert f"Request timestamp too old: {timestamp}" in caplog.text


def test_another_client_another_time_and_another_key_are_refused_and_counted() -> None:
    env, metrics = SeededEnv(), Metrics()
    now = str(int(env.now()))
    manager = MCPSecurityManager(KEY, env=env, metrics=metrics)
    assert not manager.authenticate_client("desk", signature("other", now), now)
    assert not manager.authenticate_client("desk", signature("desk", now), str(int(now) + 1))
    assert not manager.authenticate_client("desk", signature("desk", now, "another key of many bytes"), now)
    assert not manager.authenticate_client("desk", signature("desk", now).upper(), now)
    assert count(metrics) == 4


@pytest.mark.parametrize(
    "timestamp", ["", "now", "1.5", "1e9", " 1700000000", "1_700_000_000", "\u0661" * 10, "9" * 5_000]
)
def test_a_timestamp_that_is_none_is_false_and_no_exception(timestamp: str) -> None:
    metrics = Metrics()
    manager = MCPSecurityManager(KEY, env=SeededEnv(), metrics=metrics)
    assert manager.authenticate_client("desk", signature("desk", timestamp), timestamp) is False
    assert count(metrics) == 1


@given(st.text(), st.text(), st.one_of(st.text(), st.just("1700000000")))
def test_nothing_that_is_sent_brings_an_exception(client: str, given: str, timestamp: str) -> None:
    manager = MCPSecurityManager(KEY, env=SeededEnv(), metrics=Metrics())
    assert manager.authenticate_client(client, given, timestamp) is False


def test_texts_that_are_none_are_refused() -> None:
    manager = MCPSecurityManager(KEY, metrics=Metrics())
    nothing: Any = None
    assert manager.authenticate_client("desk\udc80", "\udc80é", str(int(REAL.now()))) is False
    assert manager.authenticate_client("desk", nothing, nothing) is False


def test_the_log_of_a_refusal_holds_neither_key_nor_signature(caplog: pytest.LogCaptureFixture) -> None:
    given = signature("desk", 1)
    with caplog.at_level("DEBUG", logger="agent3"):
        MCPSecurityManager(KEY, metrics=Metrics()).authenticate_client("desk\nforged line", given, "1")
    assert KEY not in caplog.text
    assert given not in caplog.text
    assert len(caplog.text.splitlines()) == 1


def test_a_key_of_few_bytes_is_refused() -> None:
    with pytest.raises(SetupError, match="at least 16 bytes"):
        MCPSecurityManager("too short")


# Which tools


def test_a_client_has_the_tools_it_was_given() -> None:
    manager = MCPSecurityManager(KEY, {"desk": ["search_*", "book"], "night-*": ["ping"], "*": ["help"]})
    tools = ["search_flights", "book", "cancel", "help", "ping"]
    assert manager.visible("desk", tools) == ["search_flights", "book", "help"]
    assert manager.visible("night-7", tools) == ["help", "ping"]
    for client in ("desk", "night-7", "stranger"):
        assert manager.visible(client, tools) == [one for one in tools if manager.authorize_tool_access(client, one)]


def test_tools_are_shown_as_what_they_were_given_as() -> None:
    definitions = [ToolDefinition(name="book"), ToolDefinition(name="cancel")]
    assert MCPSecurityManager(KEY, {"desk": ["book"]}).visible("desk", definitions) == definitions[:1]


def test_without_permissions_no_client_has_any_tool() -> None:
    manager = MCPSecurityManager(KEY)
    assert not manager.authorize_tool_access("desk", "book")
    assert manager.visible("desk", ["book"]) == []


def test_the_rules_of_the_settings_decide_where_they_are_given() -> None:
    rules = [Rule("deny", capability="cancel"), Rule("allow", principal="desk", agent="travel", protocol="mcp")]
    for source in (rules, Access(rules)):
        manager = MCPSecurityManager(KEY, rules=source, server="travel")
        assert manager.visible("desk", ["book", "cancel"]) == ["book"]
        assert not manager.authorize_tool_access("stranger", "book")
    assert not MCPSecurityManager(KEY, rules=rules, server="kitchen").authorize_tool_access("desk", "book")


def test_permissions_and_rules_together_are_refused() -> None:
    with pytest.raises(SetupError, match="not both"):
        MCPSecurityManager(KEY, {}, [])


def test_permissions_may_come_from_anywhere() -> None:
    class FromDatabase(MCPSecurityManager):
        def _get_client_permissions(self, client_id: str) -> list[str]:
            return ["book"] if client_id == "desk" else []

    manager = FromDatabase(KEY)
    assert manager.authorize_tool_access("desk", "book")
    assert not manager.authorize_tool_access("desk", "b*")
    assert manager.visible("other", ["book"]) == []


# What may be sent

FLIGHTS = ToolDefinition(
    name="search_flights",
    parameters=[
        ToolParameter(name="to", type="string", required=True),
        ToolParameter(name="seats", type="number"),
        ToolParameter(name="stops", type="integer"),
        ToolParameter(name="direct", type="boolean"),
        ToolParameter(name="tags", type="array"),
        ToolParameter(name="more", type="object"),
        ToolParameter(name="seat_class", type="string", enum=["economy", "business"]),
        ToolParameter(name="code", type="code", enum=[1, 2]),
        ToolParameter(name="when", type="date"),
    ],
)


def fault(parameters: dict[str, Any], definition: ToolDefinition = FLIGHTS) -> str | None:
    try:
        MCPInputValidator().validate_tool_invocation(definition, parameters)
    except ValidationError as wrong:
        return wrong.message
    return None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({f"p{number}": 1 for number in range(50)}, "Too many parameters: 51"),
        ({"to": "x" * 10_001}, "Parameter 'to' too long: 10001 chars"),
        ({"tags": [["x", {"deep": ["y" * 20_000]}]]}, "Parameter 'tags' too long: 20000 chars"),
        ({"more": {"k" * 10_002: 1}}, "Parameter 'more' too long: 10002 chars"),
        ({"to": 7}, "Parameter 'to' has invalid type. Expected string, got int"),
        ({"to": None}, "Parameter 'to' has invalid type. Expected string, got NoneType"),
        ({"seats": "2"}, "Parameter 'seats' has invalid type. Expected number, got str"),
        ({"seats": True}, "Parameter 'seats' has invalid type. Expected number, got bool"),
        ({"stops": 1.5}, "Parameter 'stops' has invalid type. Expected integer, got float"),
        ({"stops": False}, "Parameter 'stops' has invalid type. Expected integer, got bool"),
        ({"direct": 1}, "Parameter 'direct' has invalid type. Expected boolean, got int"),
        ({"tags": "a"}, "Parameter 'tags' has invalid type. Expected array, got str"),
        ({"more": []}, "Parameter 'more' has invalid type. Expected object, got list"),
        ({"seat_class": "first"}, "Parameter 'seat_class' must be one of ['economy', 'business']"),
        ({"code": True}, "Parameter 'code' must be one of [1, 2]"),
    ],
)
def test_what_does_not_fit_is_told_in_the_documented_words(more: dict[str, Any], message: str) -> None:
    assert fault({"to": "Rome", **more}) == message


def test_a_missing_parameter_is_named() -> None:
    assert fault({}) == "Missing required parameter: to"


def test_what_fits_passes() -> None:
    whole = {"to": "R" * 10_000, "seats": 1.5, "stops": 2.0, "direct": False, "tags": [1], "more": {"a": None}}
    assert fault({**whole, "seat_class": "economy", "code": 2, "when": object()}) is None
    assert fault({"to": "Rome", **{f"p{number}": 1 for number in range(49)}}) is None


def test_a_value_that_holds_itself_or_goes_very_deep_is_no_trouble() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert fault({"to": "Rome", "tags": circle}) is None
    assert fault({"to": "Rome", "tags": deep}) is None


def test_a_tool_that_states_a_schema_is_checked_against_it() -> None:
    definition = ToolDefinition(
        name="x", input_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    )
    assert fault({"n": 1}, definition) is None
    assert fault({}, definition) == "Missing required parameter: n"
    assert fault({"n": "x" * 10_001}, definition) == "Parameter 'n' too long: 10001 chars"


def test_the_limits_can_be_others_for_a_subclass() -> None:
    class Small(MCPInputValidator):
        MAX_PARAM_LENGTH = 3
        MAX_PARAMS_COUNT = 1

    with pytest.raises(ValidationError, match="Too many parameters: 2"):
        Small().validate_tool_invocation(FLIGHTS, {"to": "x", "seats": 1})
    with pytest.raises(ValidationError, match="too long: 4 chars"):
        Small().validate_tool_invocation(FLIGHTS, {"to": "Rome"})
    assert (MCPInputValidator.MAX_PARAM_LENGTH, MCPInputValidator.MAX_PARAMS_COUNT) == (10_000, 50)


# How often


def test_sixty_in_any_minute_and_not_one_more() -> None:
    env = SeededEnv()
    limiter = MCPRateLimiter(env=env)
    taken: list[float] = []
    for _ in range(600):
        env.advance(0.5)
        if limiter.allow_request("desk"):
            taken.append(env.now())
    assert all(sum(at - 60 < other <= at for other in taken) <= 60 for at in taken)
    assert len(taken) == 5 * 60  # every minute to the full, so refusals cost nothing


def test_a_refusal_says_when_to_come_back_and_then_it_is_so() -> None:
    env = SeededEnv()
    limiter = MCPRateLimiter(requests_per_minute=2, env=env)
    assert limiter.retry_after("desk") == 0.0
    assert limiter.allow_request("desk")
    env.advance(10)
    assert limiter.allow_request("desk")
    for _ in range(100):
        assert not limiter.allow_request("desk")
    assert limiter.retry_after("desk") == pytest.approx(50)
    assert limiter.allow_request("another")
    env.advance(limiter.retry_after("desk"))
    assert limiter.retry_after("desk") == 0.0
    assert limiter.allow_request("desk")
    assert not limiter.allow_request("desk")


def test_a_wall_clock_that_jumps_changes_nothing() -> None:
    class Jumping(Env):
        wall = 1_700_000_000.0

        def now(self) -> float:
            return self.wall

        def monotonic(self) -> float:
            return 100.0

    env = Jumping()
    limiter = MCPRateLimiter(requests_per_minute=1, env=env)
    assert limiter.allow_request("desk")
    env.wall -= 86_400
    assert 0 < limiter.retry_after("desk") <= 60
    env.wall += 10 * 86_400
    assert not limiter.allow_request("desk")


def test_the_history_can_be_read_and_holds_what_counts() -> None:
    limiter = MCPRateLimiter(requests_per_minute=2)
    assert limiter.request_history["nobody"] == []
    assert [limiter.allow_request("desk") for _ in range(3)] == [True, True, False]
    history = limiter.request_history["desk"]
    assert len(history) == 2
    assert all(timedelta(0) <= datetime.now() - at < timedelta(seconds=300) for at in history)


def test_clients_that_are_remembered_are_bounded() -> None:
    limiter = MCPRateLimiter(max_clients=100)
    for number in range(1_000):
        assert limiter.allow_request(str(number))
    assert list(limiter.request_history) == [str(number) for number in range(900, 1_000)]


def test_many_threads_take_no_more_than_there_is() -> None:
    limiter = MCPRateLimiter(requests_per_minute=500)
    with ThreadPoolExecutor(8) as threads:
        taken = sum(threads.map(lambda _: limiter.allow_request("desk"), range(4_000)))
    assert taken == 500


def test_a_limit_of_none_is_refused() -> None:
    with pytest.raises(SetupError, match="at least 1"):
        MCPRateLimiter(0)


def test_the_three_classes_load_no_sdk() -> None:
    code = "import sys, agent3; agent3.MCPSecurityManager, agent3.MCPRateLimiter; print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "False\n"


# Around the tools of a real server


class Shop:
    """A server of one's own, as somebody would put it together, and a client that signs."""

    def __init__(self, url: str, http: aiohttp.ClientSession):
        self.url = url
        self.http = http

    async def ask(self, method: str, client: str = "desk", name: str = "", **more: Any) -> tuple[int, Any, Any]:
        timestamp = str(int(REAL.now()))
        signed = {"X-Client-Id": client, "X-Timestamp": timestamp, "X-Signature": signature(client, timestamp)}
        signed |= more.pop("headers", {})
        routing = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **({"Mcp-Name": name} if name else {})}
        accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
        params = {**({"name": name} if name else {}), **more, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        async with self.http.post(self.url, data=body, headers={**signed, **routing, **accept}) as response:
            return response.status, response.headers, await response.json()

    async def call(self, name: str, client: str = "desk", **arguments: Any) -> dict[str, Any]:
        _, _, answer = await self.ask("tools/call", client, name, arguments=arguments)
        found: dict[str, Any] = answer.get("result") or answer["error"]
        return found


@asynccontextmanager
async def shop(limiter: MCPRateLimiter) -> AsyncIterator[Shop]:
    security = MCPSecurityManager(KEY, {"desk": ["echo", "who"], "kitchen": ["*"]}, metrics=Metrics())
    echo = ToolDefinition(name="echo", parameters=[ToolParameter(name="text", type="string", required=True)])
    door = MCPDoor(GuardedTools(Toys(), security, limiter, [echo]), DoorOptions(principal=security.principal))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with door.running():
            yield

    app = Starlette(routes=[Route("/mcp", endpoint=door.asgi())], lifespan=lifespan)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="on", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with aiohttp.ClientSession() as http:
            yield Shop(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", http)
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 60)
        listener.close()


def in_shop(story: Callable[[Shop], Awaitable[None]], limiter: MCPRateLimiter | None = None) -> None:
    async def told() -> None:
        async with asyncio.timeout(240), shop(limiter or MCPRateLimiter()) as running:
            await story(running)

    asyncio.run(told())


@pytest.mark.requirement("RF-013-04", "RT-014-S01")
def test_a_server_serves_clients_with_the_key_and_nobody_else() -> None:
    async def story(running: Shop) -> None:
        status, _, answer = await running.ask("tools/call", name="who", arguments={})
        assert (status, answer["result"]["structuredContent"]["id"]) == (200, "desk")
        old = str(int(REAL.now()) - 301)
        for wrong in (
            {"X-Signature": "0" * 64},
            {"X-Client-Id": "kitchen"},
            {"X-Timestamp": old, "X-Signature": signature("desk", old)},
            {"X-Timestamp": "today"},
            {"X-Signature": "é"},
        ):
            status, headers, _ = await running.ask("tools/call", name="who", arguments={}, headers=wrong)
            assert (status, bool(headers["WWW-Authenticate"])) == (401, True), wrong

    in_shop(story)


def test_the_short_form_is_taken_from_this_machine_only() -> None:
    now = str(int(REAL.now()))
    headers = [(b"x-client-id", b"desk"), (b"x-timestamp", now.encode())]
    headers.append((b"x-signature", signature("desk", now).encode()))
    manager = MCPSecurityManager(KEY)
    for peer in ("127.0.0.1", "::1"):
        assert manager.principal({"headers": headers, "client": (peer, 1)}).id == "desk"
    for other in (("192.168.1.5", 1), None):
        with pytest.raises(Unauthenticated, match="loopback only"):
            manager.principal({"headers": headers, "client": other})


@pytest.mark.requirement("RT-014-S02")
def test_a_forbidden_tool_is_not_listed_and_called_looks_like_an_unknown_one() -> None:
    async def story(running: Shop) -> None:
        _, _, mine = await running.ask("tools/list")
        _, _, theirs = await running.ask("tools/list", "kitchen")
        assert [tool["name"] for tool in mine["result"]["tools"]] == ["echo", "who"]
        assert len(theirs["result"]["tools"]) > 10
        forbidden, unknown = await running.call("numbers"), await running.call("nothing")
        assert forbidden["message"].replace("numbers", "nothing") == unknown["message"]
        assert forbidden["code"] == unknown["code"]
        assert "numbers" not in json.dumps(forbidden.get("data"))
        assert (await running.call("numbers", "kitchen"))["content"]

    in_shop(story)


@pytest.mark.requirement("RT-014-S03")
def test_input_that_does_not_fit_never_reaches_the_tool() -> None:
    async def story(running: Shop) -> None:
        for arguments, words in (
            ({}, "Missing required parameter: text"),
            ({"text": 7}, "Parameter 'text' has invalid type. Expected string, got int"),
            ({"text": "x" * 10_001}, "Parameter 'text' too long: 10001 chars"),
            ({"text": "x", **{str(number): 1 for number in range(50)}}, "Too many parameters: 51"),
        ):
            result = await running.call("echo", **arguments)
            assert result["isError"]
            assert words in json.dumps(result)
        assert (await running.call("echo", text="fits"))["structuredContent"]["text"] == "fits"

    in_shop(story)


@pytest.mark.requirement("RF-013-05", "RT-014-S04")
def test_a_client_has_its_sixty_per_minute_and_is_told_when_to_come_back() -> None:
    env = SeededEnv()

    async def story(running: Shop) -> None:
        results = [await running.call("who") for _ in range(61)]
        assert [bool(result.get("isError")) for result in results] == [False] * 60 + [True]
        told = json.dumps(results[-1])
        assert "Rate limit exceeded for client desk" in told
        assert '"retry_after": 60.0' in told.replace("\\", "")
        assert not (await running.call("who", "kitchen")).get("isError")
        env.advance(60)
        assert not (await running.call("who")).get("isError")

    in_shop(story, MCPRateLimiter(env=env))
