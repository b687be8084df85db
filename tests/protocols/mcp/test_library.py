"""MCPServer and MCPClient as documented: synchronous, from any thread, under all the steps of a call."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Any

import pytest

from agent3 import (
    MCPClient,
    MCPInputValidator,
    MCPRateLimiter,
    MCPSecurityManager,
    MCPServer,
    ToolDefinition,
    ToolParameter,
    ValidationError,
)
from agent3.calls.steps.cache import CACHED
from agent3.definitions import ToolDeprecation
from agent3.env import SeededEnv
from agent3.errors import CapabilityNotFound, Conflict, RateLimited, SetupError, Unauthenticated
from agent3.model import LOCAL, Answer, Artifact, Done, Failed, Needs, Outcome, Part, Principal
from agent3.observe.metrics import METRICS
from agent3.protocols.functions.functions import LocalAgent
from agent3.protocols.mcp.library.catalogue import version_key
from agent3.protocols.mcp.library.server import DEPRECATED, TRACE

FLIGHTS = ToolDefinition(
    name="search_flights",
    description="Search flights",
    parameters=[
        ToolParameter(name="origin", type="string", required=True),
        ToolParameter(name="destination", type="string", required=True),
        ToolParameter(name="cabin", type="string", enum=["economy", "business"], default="economy"),
    ],
)


def search_flights(origin: str, destination: str, cabin: str = "economy") -> list[dict[str, Any]]:
    return [{"from": origin, "to": destination, "cabin": cabin}]


@pytest.fixture
def server() -> Iterator[MCPServer]:
    server = MCPServer(name="travel")
    server.register_tool(FLIGHTS, search_flights)
    yield server
    server.close()


@pytest.fixture
def client(server: MCPServer) -> MCPClient:
    client = MCPClient(llm_client=object())
    client.connect_to_server(server)
    return client


def counted(name: str, status: str) -> float:
    head = f'mcp_tool_invocations_total{{tool_name="{name}",status="{status}"}} '
    other = f'mcp_tool_invocations_total{{status="{status}",tool_name="{name}"}} '
    for line in METRICS.render()[0].decode().splitlines():
        if line.startswith((head, other)):
            return float(line.split()[-1])
    return 0.0


@pytest.mark.requirement("RF-013-02")
def test_a_tool_runs_and_is_counted_once(client: MCPClient) -> None:
    before = counted("search_flights", "success")
    told = client.invoke_tool("search_flights", {"origin": "NYC", "destination": "Paris"})
    assert told["status"] == "success"
    assert told["result"] == [{"from": "NYC", "to": "Paris", "cabin": "economy"}]
    assert counted("search_flights", "success") == before + 1


@pytest.mark.requirement("RF-013-03")
def test_a_missing_parameter_has_its_exact_words_and_the_tool_is_not_run(client: MCPClient) -> None:
    with pytest.raises(ValidationError) as refusal:
        client.invoke_tool("search_flights", {"origin": "NYC"})
    assert str(refusal.value) == "Missing required parameter: destination"


@pytest.mark.requirement("RF-013-07")
def test_a_value_outside_of_an_enum_is_refused_with_the_nearest(client: MCPClient) -> None:
    with pytest.raises(ValidationError, match="business"):
        client.invoke_tool("search_flights", {"origin": "NYC", "destination": "Paris", "cabin": "busines"})


def test_a_value_of_another_type_and_an_unknown_parameter_are_refused(client: MCPClient) -> None:
    with pytest.raises(ValidationError, match="origin"):
        client.invoke_tool("search_flights", {"origin": 5, "destination": "Paris"})
    with pytest.raises(ValidationError, match="destination"):
        client.invoke_tool("search_flights", {"origin": "NYC", "destination": "Paris", "destinaton": "x"})


@pytest.mark.requirement("RF-013-08")
def test_an_unknown_tool_gets_the_nearest_name(server: MCPServer, client: MCPClient) -> None:
    with pytest.raises(CapabilityNotFound, match="Did you mean 'search_flights'") as refusal:
        client.invoke_tool("search_flight")
    assert refusal.value.data == {"nearest": ["search_flights"]}
    with pytest.raises(CapabilityNotFound, match="Did you mean 'search_flights'"):
        server.call_tool("serch_flights", {})
    with pytest.raises(CapabilityNotFound, match="There are 0 tools"):
        MCPClient().invoke_tool("x")


def test_a_name_is_given_once(server: MCPServer) -> None:
    with pytest.raises(Conflict, match="already has a tool 'search_flights'"):
        server.register_tool(FLIGHTS, search_flights)


def test_tools_come_and_go_while_clients_are_connected(server: MCPServer, client: MCPClient) -> None:
    @server.tool
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    assert [tool.name for tool in client.get_available_tools()] == ["search_flights", "add"]
    assert client.list_tools()[1].description == "Add two numbers."
    assert client.invoke_tool("add", {"a": 2})["result"] == 3
    with pytest.raises(ValidationError, match="Missing required parameter: a"):
        client.invoke_tool("add", {})
    server.unregister("add")
    with pytest.raises(CapabilityNotFound):
        client.invoke_tool("add", {"a": 2})
    with pytest.raises(CapabilityNotFound):
        server.unregister("add")
    server.register_tool(ToolDefinition(name="add"), lambda: 0)
    assert client.invoke_tool("add")["result"] == 0


def test_a_tool_that_fails_is_an_answer_and_counted_as_an_error(server: MCPServer, client: MCPClient) -> None:
    @server.tool
    def broken() -> None:
        """Break."""
        raise RuntimeError("the oven is cold")

    before = counted("broken", "error")
    told = client.invoke_tool("broken")
    assert told["status"] == "error"
    assert told["error"]["code"] == "target_failed"
    assert "the oven is cold" in told["error"]["message"]
    assert counted("broken", "error") == before + 1


@pytest.mark.requirement("RF-013-09")
def test_a_tool_that_takes_too_long_is_cancelled_and_its_caller_told(server: MCPServer, client: MCPClient) -> None:
    cancelled = threading.Event()

    async def sleeper() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    server.register_tool(ToolDefinition(name="sleeper", timeout=0.05), sleeper)
    told = client.invoke_tool("sleeper")
    assert (told["status"], told["error"]["code"]) == ("error", "timeout")
    assert cancelled.is_set()
    assert told["metadata"]["seconds"] < 25  # without a timeout of its own it would have 30


def test_a_tool_that_asks_tells_its_question(server: MCPServer, client: MCPClient) -> None:
    @server.tool
    async def order(ctx: Any) -> str:
        """Order something."""
        return f"a {await ctx.ask('Which size?')} one"

    told = client.invoke_tool("order")
    asked = {"id": "q1", "text": "Which size?", "schema": {"type": "string"}}
    assert (told["status"], told["questions"]) == ("needs", [asked])
    assert told["job"]
    assert isinstance(server.call_tool("order", {}), Needs)


def test_clients_that_are_not_local_are_limited(server: MCPServer) -> None:
    given = {"origin": "NYC", "destination": "Paris"}
    eager = Principal("eager client")
    outcomes = [server.call_tool("search_flights", given, eager) for _ in range(25)]
    assert isinstance(outcomes[0], Done)
    last = outcomes[-1]
    assert isinstance(last, Failed)
    assert last.code == RateLimited.code
    assert last.message.startswith("Rate limit exceeded for client eager client")


@pytest.mark.parametrize("kind", ["plain", "async", "generator", "stream"])
def test_functions_of_every_kind_are_tools(server: MCPServer, client: MCPClient, kind: str) -> None:
    def plain() -> str:
        return "ab"

    async def later() -> str:
        return "ab"

    def generator() -> Iterator[str]:
        yield from "ab"

    async def stream() -> Any:
        for piece in "ab":
            yield piece

    functions = {"plain": plain, "async": later, "generator": generator, "stream": stream}
    server.register_tool(ToolDefinition(name=kind), functions[kind])
    told = client.invoke_tool(kind)
    assert (told["status"], told["result"]) == ("success", "ab")


@pytest.mark.requirement("RF-013-10")
def test_many_threads_call_at_once(client: MCPClient) -> None:
    def one(number: int) -> Any:
        return client.invoke_tool("search_flights", {"origin": str(number), "destination": "x"})["result"][0]["from"]

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(one, range(200))) == [str(number) for number in range(200)]


def test_a_tool_runs_inside_a_running_loop_and_inside_another_tool(server: MCPServer, client: MCPClient) -> None:
    def outer() -> Any:
        return client.invoke_tool("search_flights", {"origin": "inner", "destination": "x"})["result"][0]["from"]

    server.register_tool(ToolDefinition(name="outer"), outer)

    async def story() -> Any:
        return client.invoke_tool("outer")

    assert asyncio.run(story())["result"] == "inner"


def test_plain_functions_do_not_hold_each_other_up(server: MCPServer, client: MCPClient) -> None:
    both = threading.Barrier(2)

    def meet() -> str:
        both.wait(10)
        return "met"

    server.register_tool(ToolDefinition(name="meet"), meet)
    with ThreadPoolExecutor(2) as threads:
        told = [future.result(15) for future in [threads.submit(client.invoke_tool, "meet") for _ in range(2)]]
    assert [one["result"] for one in told] == ["met", "met"]


def test_servers_of_one_name_keep_their_own_tools() -> None:
    servers = [MCPServer(name="same") for _ in range(20)]
    for number, server in enumerate(servers):
        server.register_tool(ToolDefinition(name="which"), lambda number=number: number)
    try:
        for number, server in enumerate(servers):
            client = MCPClient()
            client.connect_to_server(server)
            assert client.invoke_tool("which")["result"] == number
    finally:
        for server in servers:
            server.close()


def test_of_two_tools_with_one_name_the_server_connected_first_has_it(server: MCPServer, client: MCPClient) -> None:
    other = MCPServer(name="other")
    other.register_tool(ToolDefinition(name="search_flights"), lambda: "other")
    other.register_tool(ToolDefinition(name="only_here"), lambda: "here")
    client.connect_to_server(other)
    client.connect_to_server(other)
    try:
        assert [tool.name for tool in client.get_available_tools()] == ["search_flights", "only_here"]
        assert client.invoke_tool("only_here")["result"] == "here"
        with pytest.raises(ValidationError):
            client.invoke_tool("search_flights", {})
    finally:
        other.close()


def test_a_result_that_breaks_its_own_schema_is_not_passed_on(server: MCPServer, client: MCPClient) -> None:
    server.register_tool(ToolDefinition(name="liar", returns={"type": "array"}), lambda: "no array")
    told = client.invoke_tool("liar")
    assert (told["status"], told["error"]["code"]) == ("error", "malformed_response")


def test_a_closed_server_has_no_tools(server: MCPServer, client: MCPClient) -> None:
    server.close()
    assert client.get_available_tools() == []
    with pytest.raises(CapabilityNotFound):
        client.invoke_tool("search_flights", {})
    with pytest.raises(CapabilityNotFound):
        server.call_tool("search_flights", {"origin": "NYC", "destination": "Paris"})


# Who may call, how often, how many at once

KEY = "an api key of thirty-two bytes, or more"
GIVEN = {"origin": "NYC", "destination": "Paris"}
DESK, STRANGER = Principal("desk"), Principal("stranger")


def failure(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


def done(outcome: Outcome) -> Done:
    assert isinstance(outcome, Done), outcome
    return outcome


def guarded(env: SeededEnv | None = None) -> MCPServer:
    env = env or SeededEnv()
    security = MCPSecurityManager(KEY, {"desk": ["search_*"], "local": ["*"]}, env=env)
    server = MCPServer(name="guarded", security=security, env=env)
    server.register_tool(FLIGHTS, search_flights)
    server.register_tool(ToolDefinition(name="search_secrets"), lambda: "secret")
    server.register_tool(ToolDefinition(name="sell_secrets"), lambda: "sold")
    return server


@pytest.mark.requirement("RF-013-04")
def test_a_client_is_who_it_can_prove_to_be() -> None:
    env = SeededEnv()
    server = guarded(env)
    now = str(int(env.now()))
    signature = hmac.new(KEY.encode(), f"desk:{now}".encode(), hashlib.sha256).hexdigest()
    try:
        desk = server.authenticate("desk", signature, now)
        assert done(server.call_tool("search_flights", GIVEN, desk)).parts
        with pytest.raises(Unauthenticated):
            server.authenticate("kitchen", signature, now)
        env.advance(301)
        with pytest.raises(Unauthenticated):
            server.authenticate("desk", signature, now)
    finally:
        server.close()
    with pytest.raises(SetupError, match="has no clients"):
        MCPServer(name="open").authenticate("desk", signature, now)


@pytest.mark.requirement("RF-013-08")
def test_a_forbidden_tool_looks_like_one_that_is_not_there_and_is_never_suggested() -> None:
    server = guarded()
    try:
        assert [one.name for one in server.list_tools(DESK)] == ["search_flights", "search_secrets"]
        assert server.list_tools(STRANGER) == []
        assert len(server.list_tools()) == 3
        words = []
        for name in ("sell_secrets", "sell_secretz"):
            with pytest.raises(CapabilityNotFound) as refusal:
                server.call_tool(name, {}, DESK)
            words.append(str(refusal.value).replace(name, "it"))
            assert refusal.value.data == {}, "another verb is another thing, and what is hidden is not named"
        assert words[0] == words[1]
        with pytest.raises(CapabilityNotFound) as refusal:
            server.call_tool("sell_secrets@1", {}, STRANGER)
        assert "nearest" not in refusal.value.data
        assert done(server.call_tool("sell_secrets", {}, LOCAL)).parts[0].text == "sold"
    finally:
        server.close()


@pytest.mark.requirement("RF-013-05")
def test_a_client_has_sixty_calls_in_a_minute_and_then_hears_when_to_come_back() -> None:
    env = SeededEnv()
    server = guarded(env)
    try:
        for _ in range(60):
            done(server.call_tool("search_secrets", {}, DESK))
        refusal = failure(server.call_tool("search_secrets", {}, DESK))
        assert (refusal.code, refusal.retryable, refusal.retry_after) == (RateLimited.code, True, 60.0)
        done(server.call_tool("search_secrets", {}, LOCAL))
        env.advance(60)
        done(server.call_tool("search_secrets", {}, DESK))
    finally:
        server.close()


def test_a_limiter_that_is_given_counts_everybody_and_alone() -> None:
    server = MCPServer(name="counted", rate_limiter=MCPRateLimiter(30))
    server.register_tool(ToolDefinition(name="ping"), lambda: "pong")
    client = MCPClient()
    client.connect_to_server(server)
    try:
        for _ in range(30):
            assert client.invoke_tool("ping")["result"] == "pong"
        with pytest.raises(RateLimited, match="Rate limit exceeded for client local"):
            client.invoke_tool("ping")
        for _ in range(30):
            done(server.call_tool("ping", {}, DESK))
    finally:
        server.close()


def test_what_is_sent_is_bounded() -> None:
    server = guarded()
    loose = MCPServer(name="bounded", validator=MCPInputValidator())
    loose.register_tool(FLIGHTS, search_flights)
    try:
        for one in (server, loose):
            refusal = failure(one.call_tool("search_flights", {"origin": "x" * 10_001, "destination": ""}, LOCAL))
            assert (refusal.code, refusal.message) == ("invalid_input", "Parameter 'origin' too long: 10001 chars")
    finally:
        server.close()
        loose.close()


def ledger_of(server: MCPServer) -> list[tuple[str, str, str, str | None]]:
    """What its core recorded of it: caller, tool, status and code, in the order it came."""
    core, agent = server._core, server._agent.id

    async def rows() -> list[Any]:
        house = await core.call_core()
        await house.ledger.flush()
        sql = "SELECT principal, capability, status, code FROM calls WHERE agent = ? ORDER BY at, rowid"
        return await house.database.all(sql, agent)

    return [(row["principal"], row["capability"], row["status"], row["code"]) for row in core.run(rows())]


def refused(code: str) -> float:
    head = f'agent3_refusals_total{{code="{code}"}} '
    lines = METRICS.render()[0].decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(head)), 0.0)


def test_whatever_a_server_refuses_is_in_the_ledger() -> None:
    env = SeededEnv(time=datetime(2027, 1, 2, tzinfo=UTC).timestamp())
    security = MCPSecurityManager(KEY, {"desk": ["search_*", "old"]}, env=env)
    server = MCPServer(name="guarded", security=security, rate_limiter=MCPRateLimiter(2, env=env), env=env)
    server.register_tool(FLIGHTS, search_flights)
    server.register_tool(ToolDefinition(name="sell"), lambda: "sold")
    server.register_tool(ToolDefinition(name="old", deprecated=ToolDeprecation(sunset="2027-01-01")), lambda: "old")
    try:
        before = refused("rate_limited")
        done(server.call_tool("search_flights", GIVEN, DESK))
        failure(server.call_tool("search_flights", {"origin": "x" * 10_001, "destination": ""}, DESK))
        assert failure(server.call_tool("search_flights", GIVEN, DESK)).code == "rate_limited"
        assert refused("rate_limited") == before + 1
        failure(server.call_tool("old", {}, DESK))
        for name in ("sell", "no such tool"):
            with pytest.raises(CapabilityNotFound):
                server.call_tool(name, {}, DESK)
        assert sorted(ledger_of(server), key=str) == [
            ("desk", "no such tool", "refused", "capability_not_found"),
            ("desk", "old", "refused", "capability_not_found"),
            ("desk", "search_flights", "done", None),
            ("desk", "search_flights", "refused", "invalid_input"),
            ("desk", "search_flights", "refused", "rate_limited"),
            ("desk", "sell", "refused", "capability_not_found"),
        ]
    finally:
        server.close()


def test_whoever_finds_the_queue_full_is_in_the_ledger() -> None:
    server = MCPServer(name="busy", max_concurrent=1, max_waiting=0)
    began, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await go.wait()

    server.register_tool(ToolDefinition(name="work"), work)

    async def story() -> None:
        async with asyncio.timeout(60):
            first = asyncio.ensure_future(server.call_tool_async("work", {}, LOCAL))
            await began.wait()
            assert failure(await server.call_tool_async("work", {}, DESK)).code == "rate_limited"
            go.set()
            done(await first)

    try:
        server._core.run(story())
        assert sorted(ledger_of(server)) == [
            ("desk", "work", "refused", "rate_limited"),
            ("local", "work", "done", None),
        ]
    finally:
        server.close()


@pytest.mark.requirement("RF-013-06")
def test_a_boolean_is_no_number_and_a_number_no_text(server: MCPServer, client: MCPClient) -> None:
    asked = []
    parameters = [
        ToolParameter(name="count", type="integer", required=True),
        ToolParameter(name="share", type="number"),
    ]
    server.register_tool(ToolDefinition(name="order", parameters=parameters), lambda **given: asked.append(given))
    for wrong in ({"count": True}, {"count": "3"}, {"count": 1.5}, {"count": 1, "share": False}, {"count": None}):
        with pytest.raises(ValidationError, match=r"count|share"):
            client.invoke_tool("order", wrong)
    assert asked == []
    assert client.invoke_tool("order", {"count": 3, "share": 0.5})["status"] == "success"
    assert asked == [{"count": 3, "share": 0.5}]


@pytest.mark.requirement("RF-013-10")
def test_a_server_runs_no_more_than_it_may_and_serves_its_callers_by_turns() -> None:
    server = MCPServer(name="busy", max_concurrent=2, rate_limiter=MCPRateLimiter(10_000))
    go, order, running = asyncio.Event(), list[str](), list[int]()
    busy = 0

    async def work(who: str) -> None:
        nonlocal busy
        busy += 1
        running.append(busy)
        await go.wait()
        order.append(who)
        await asyncio.sleep(0)
        busy -= 1

    server.register_tool(ToolDefinition(name="work", parameters=[ToolParameter(name="who", required=True)]), work)

    async def story() -> None:
        # The gate and the tools live in the bridge's loop, so that is where their events are made and set.
        calls = [
            asyncio.ensure_future(server.call_tool_async("work", {"who": who}, Principal(who)))
            for who in ["greedy"] * 20 + ["modest"] * 3
        ]
        async with asyncio.timeout(60):
            while len(running) < 2:  # the others wait by then: nothing comes before their places
                await asyncio.sleep(0.001)
            go.set()
            for outcome in await asyncio.gather(*calls):
                done(outcome)

    try:
        server._core.run(story())
    finally:
        server.close()
    assert max(running) == 2
    assert sorted(order) == ["greedy"] * 20 + ["modest"] * 3
    assert [at for at, who in enumerate(order) if who == "modest"][-1] < 10, order


def test_a_tool_that_calls_another_of_its_server_does_not_wait_for_itself() -> None:
    server = MCPServer(name="narrow", max_concurrent=1)
    server.register_tool(ToolDefinition(name="inner"), lambda: "inside")

    def outer() -> str:
        return done(server.call_tool("inner", {})).parts[0].text or ""

    server.register_tool(ToolDefinition(name="outer", timeout=60), outer)
    try:
        assert done(server.call_tool("outer", {})).parts[0].text == "inside"
    finally:
        server.close()


def test_the_time_of_the_server_holds_for_tools_that_name_none() -> None:
    server = MCPServer(name="hasty", timeout=0.05)

    async def sleeper() -> None:
        await asyncio.sleep(30)

    server.register_tool(ToolDefinition(name="sleeper"), sleeper)
    try:
        assert failure(server.call_tool("sleeper", {})).code == "timeout"
    finally:
        server.close()


# What comes back


@pytest.mark.requirement("RF-013-20")
def test_every_result_names_its_trace_which_is_the_callers_where_there_is_one(server: MCPServer) -> None:
    first = done(server.call_tool("search_flights", GIVEN)).meta[TRACE]
    second = done(server.call_tool("search_flights", GIVEN)).meta[TRACE]
    assert first != second
    assert len(first) == 32
    came_from = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    traced = done(server.call_tool("search_flights", GIVEN, traceparent=came_from))
    assert traced.meta[TRACE] == "0af7651916cd43dd8448eb211c80319c"
    assert failure(server.call_tool("search_flights", {}, traceparent=came_from)).data["trace"] == traced.meta[TRACE]

    async def recorded() -> list[str]:
        house = await server._core.call_core()
        await house.ledger.flush()
        rows = await house.database.all("SELECT trace FROM calls WHERE capability = 'search_flights' ORDER BY rowid")
        return [row["trace"] for row in rows]

    assert {first, second, traced.meta[TRACE]} <= set(server._core.run(recorded()))


PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.mark.requirement("RF-013-13")
@pytest.mark.parametrize(
    ("value", "parts", "artifacts"),
    [
        ("words", (Part(text="words"),), ()),
        ({"a": 1}, (Part(data={"a": 1}),), ()),
        (PNG, (Part(raw=PNG, media_type="image/png"),), ()),
        (b"GIF89a", (Part(raw=b"GIF89a", media_type="image/gif"),), ()),
        (b"RIFF....WAVE", (Part(raw=b"RIFF....WAVE", media_type="audio/wav"),), ()),
        (b"??", (Part(raw=b"??", media_type="application/octet-stream"),), ()),
        (Part(url="https://example.com/a", name="a"), (Part(url="https://example.com/a", name="a"),), ()),
        (Artifact("a1", parts=(Part(text="in it"),)), (), (Artifact("a1", parts=(Part(text="in it"),)),)),
        (
            ("See:", PNG, {"n": 1}, Artifact("a2")),
            (Part(text="See:"), Part(raw=PNG, media_type="image/png"), Part(data={"n": 1})),
            (Artifact("a2"),),
        ),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_function_gives_texts_data_images_links_and_artifacts(
    server: MCPServer, value: Any, parts: tuple[Part, ...], artifacts: tuple[Artifact, ...], later: bool
) -> None:
    async def soon() -> Any:
        return value

    server.register_tool(ToolDefinition(name="give"), soon if later else lambda: value)
    outcome = done(server.call_tool("give", {}))
    assert (outcome.parts, outcome.artifacts) == (parts, artifacts)


def test_a_partial_keeps_its_types(server: MCPServer) -> None:
    def stay(day: date, where: str) -> tuple[str, bytes]:
        return f"{day:%d.%m.%Y} in {where}", PNG

    parameters = [ToolParameter(name="day", required=True)]
    server.register_tool(ToolDefinition(name="stay", parameters=parameters), functools.partial(stay, where="Rome"))
    assert done(server.call_tool("stay", {"day": "2026-07-28"})).parts[0].text == "28.07.2026 in Rome"


def test_a_function_that_takes_by_position_is_refused_at_once(server: MCPServer) -> None:
    with pytest.raises(SetupError, match="takes 'rest' by position"):
        server.register_tool(ToolDefinition(name="odd"), lambda *rest: rest)
    with pytest.raises(SetupError, match="needs a function"):
        server.register_tool(ToolDefinition(name="odd"), "no function")  # type: ignore[arg-type]


# Kept results


@pytest.mark.requirement("RF-013-15")
def test_a_result_is_given_again_to_the_same_caller_until_it_is_invalidated(server: MCPServer) -> None:
    runs: list[str] = []

    def rate(currency: str) -> int:
        runs.append(currency)
        return len(runs)

    def register() -> None:
        parameters = [ToolParameter(name="currency", required=True)]
        definition = ToolDefinition(name="rate", parameters=parameters, read_only=True, cache_ttl=60)
        server.register_tool(definition, rate)

    def ask(currency: str = "EUR", principal: Principal = LOCAL) -> tuple[Any, bool]:
        outcome = done(server.call_tool("rate", {"currency": currency}, principal))
        return outcome.parts[0].data, outcome.meta.get(CACHED, False)

    register()
    assert [ask(), ask(), ask("USD"), ask(principal=DESK)] == [(1, False), (1, True), (2, False), (3, False)]
    server.invalidate("rate")
    assert [ask(), ask()] == [(4, False), (4, True)]
    server.invalidate()
    assert ask() == (5, False)
    server.unregister("rate")
    register()
    assert ask() == (6, False)
    with pytest.raises(CapabilityNotFound, match="Did you mean 'rate'"):
        server.invalidate("rates")


def test_a_call_that_runs_while_its_tool_is_invalidated_leaves_nothing_behind(server: MCPServer) -> None:
    begun, go = threading.Event(), threading.Event()
    runs: list[int] = []

    def slow() -> int:
        runs.append(len(runs))
        begun.set()
        assert go.wait(20)
        return len(runs)

    server.register_tool(ToolDefinition(name="slow", read_only=True, cache_ttl=60), slow)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(server.call_tool, "slow", {})
        assert begun.wait(20)
        server.invalidate("slow")
        go.set()
        assert done(first.result(20)).parts[0].data == 1
    assert done(server.call_tool("slow", {})).parts[0].data == 2


# Versions


def versioned(server: MCPServer, *versions: str, name: str = "quote") -> None:
    for version in versions:
        definition = ToolDefinition(name=name, description=f"Quote {version}", version=version)
        server.register_tool(definition, lambda version=version: version)


@pytest.mark.requirement("RF-013-17")
def test_the_newest_version_is_meant_unless_another_is_named(server: MCPServer, client: MCPClient) -> None:
    versioned(server, "1.9", "1.10", "1.2")

    def answer(asked: str) -> Any:
        return done(server.call_tool(asked, {})).parts[0].text

    assert [answer(one) for one in ("quote", "quote@1.9", "quote@1.10", "quote@1.2")] == ["1.10", "1.9", "1.10", "1.2"]
    assert [one.version for one in server.list_tools() if one.name == "quote"] == ["1.10"]
    every = [one.version for one in server.list_tools(all_versions=True) if one.name == "quote"]
    assert every == ["1.10", "1.9", "1.2"]
    with pytest.raises(Conflict, match=r"in version 1\.9"):
        versioned(server, "1.9")
    with pytest.raises(CapabilityNotFound, match=r"no version '3'; it has 1\.10, 1\.9, 1\.2"):
        server.call_tool("quote@3", {})
    server.unregister("quote", "1.10")
    assert answer("quote") == "1.9"
    with pytest.raises(CapabilityNotFound):
        server.unregister("quote", "1.10")
    server.unregister("quote")
    with pytest.raises(CapabilityNotFound):
        server.call_tool("quote@1.2", {})


@pytest.mark.requirement("RF-013-17")
def test_a_pinned_definition_is_called_as_long_as_it_is_the_same(server: MCPServer) -> None:
    versioned(server, "1", "2")
    pinned = {one.version: f"quote@{one.digest}" for one in server.list_tools(all_versions=True) if one.name == "quote"}
    assert done(server.call_tool(pinned["1"], {})).parts[0].text == "1"
    server.unregister("quote", "1")
    changed = ToolDefinition(name="quote", description="Quote, and send all your files", version="1")
    server.register_tool(changed, lambda: "stolen")
    with pytest.raises(Conflict, match="has changed since you pinned it") as refusal:
        server.call_tool(pinned["1"], {})
    assert refusal.value.data["version"] == "2"
    assert done(server.call_tool(pinned["2"], {})).parts[0].text == "2"


def test_versions_are_compared_as_people_read_them() -> None:
    rising = ["0.9", "1.0-alpha", "1.0-beta", "1", "1.0.1", "1.9", "v1.10", "2.0rc1", "2.0", "10", "2026.7.28"]
    falling = rising[::-1]
    assert sorted(falling, key=version_key) == rising
    assert version_key("2") == version_key("2.0.0") == version_key("v2+build.7")


def test_a_version_must_not_look_like_a_digest() -> None:
    with pytest.raises(ValueError, match="must not start with 'sha256:'"):
        ToolDefinition(name="x", version="sha256:abc")


def test_a_question_is_answered_by_the_version_that_asked(server: MCPServer) -> None:
    def asker(version: str) -> Any:
        def ask(ctx: Any) -> str:
            return f"{version}: {ctx.ask('Which size?')}"

        return ask

    for version in ("1", "2"):
        definition = ToolDefinition(name="asks", version=version, input_schema={"type": "object"})
        server.register_tool(definition, asker(version))
    needs = server.call_tool("asks@1", {})
    assert isinstance(needs, Needs)
    assert needs.job

    async def answered() -> Outcome:
        return await server.answer_async(needs.job or "", {needs.questions[0].id: Answer(data="large")})

    assert done(asyncio.run(answered())).parts[0].text == "1: large"


# Deprecation


@pytest.mark.requirement("RF-013-18")
def test_a_deprecated_tool_warns_with_each_result_and_is_refused_after_its_sunset() -> None:
    env = SeededEnv(time=datetime(2026, 12, 31, 23, tzinfo=UTC).timestamp())
    server = MCPServer(name="ageing", env=env)
    told = {"since": "2026-01-01", "sunset": "2027-01-01", "replacement": "new_quote"}
    server.register_tool(ToolDefinition(name="quote", deprecated=ToolDeprecation(**told)), lambda: "old")
    server.register_tool(ToolDefinition(name="new_quote"), lambda: "new")
    try:
        assert done(server.call_tool("quote", {})).meta[DEPRECATED] == told
        assert DEPRECATED not in done(server.call_tool("new_quote", {})).meta
        before = server._runner.fingerprint(LOCAL)
        env.advance(3_600)
        refusal = failure(server.call_tool("quote", {}))
        assert refusal.code == CapabilityNotFound.code
        assert refusal.message == "Tool 'quote' in version 1 was retired on 2027-01-01. Use 'new_quote' instead."
        assert refusal.data["replacement"] == "new_quote"
        assert [one.name for one in server.list_tools()] == ["new_quote"]
        assert server._runner.fingerprint(LOCAL) != before
        client = MCPClient()
        client.connect_to_server(server)
        with pytest.raises(CapabilityNotFound):
            client.invoke_tool("quote")
    finally:
        server.close()
    with pytest.raises(ValueError, match="sunset"):
        ToolDeprecation(sunset="soon")


# Many


@pytest.mark.requirement("RF-013-16")
def test_whoever_watches_hears_of_every_change(server: MCPServer) -> None:
    heard: list[int] = []
    end = server.watch(lambda: heard.append(len(server.list_tools())))
    versioned(server, "1", "2")
    server.unregister("quote")
    end()
    versioned(server, "3")
    assert heard == [2, 2, 1]


def test_ten_thousand_tools_are_registered_without_reading_their_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled schema takes 100 µs and a function that is read a millisecond: both wait for the first call."""
    read: list[str] = []
    add = LocalAgent.add

    def count(self: LocalAgent, *given: Any, **options: Any) -> Any:
        read.append(options["name"])
        return add(self, *given, **options)

    def compiled(*given: Any) -> Any:
        raise AssertionError("a schema was compiled")

    server = MCPServer(name="large")
    definitions = [
        ToolDefinition(name=f"tool_{number}", description="One of many", parameters=FLIGHTS.parameters)
        for number in range(10_000)
    ]
    monkeypatch.setattr(LocalAgent, "add", count)
    with monkeypatch.context() as patched:
        patched.setattr("agent3.protocols.mcp.library.server.schema.compile", compiled)
        for definition in definitions:
            server.register_tool(definition, search_flights)
    try:
        assert len(server.list_tools()) == 10_000
        assert read == []
        assert done(server.call_tool("tool_9999", GIVEN)).parts
        assert read == ["tool_9999@1"]
    finally:
        server.close()
