"""MCPServer and MCPClient as documented: synchronous, from any thread, under all the steps of a call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent3 import MCPClient, MCPServer, ToolDefinition, ToolParameter, ValidationError
from agent3.errors import CapabilityNotFound, Conflict, RateLimited, SetupError
from agent3.model import Done, Failed, Needs, Principal
from agent3.observe.metrics import METRICS

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
    assert told == {"status": "success", "result": [{"from": "NYC", "to": "Paris", "cabin": "economy"}]}
    assert counted("search_flights", "success") == before + 1


@pytest.mark.requirement("RF-013-03")
def test_a_missing_parameter_has_its_exact_words_and_the_tool_is_not_run(client: MCPClient) -> None:
    with pytest.raises(ValidationError) as refusal:
        client.invoke_tool("search_flights", {"origin": "NYC"})
    assert str(refusal.value) == "Missing required parameter: destination"


def test_a_value_outside_of_an_enum_is_refused_with_the_nearest(client: MCPClient) -> None:
    with pytest.raises(ValidationError, match="business"):
        client.invoke_tool("search_flights", {"origin": "NYC", "destination": "Paris", "cabin": "busines"})


def test_a_value_of_another_type_and_an_unknown_parameter_are_refused(client: MCPClient) -> None:
    with pytest.raises(ValidationError, match="origin"):
        client.invoke_tool("search_flights", {"origin": 5, "destination": "Paris"})
    with pytest.raises(ValidationError, match="destination"):
        client.invoke_tool("search_flights", {"origin": "NYC", "destination": "Paris", "destinaton": "x"})


def test_an_unknown_tool_gets_the_nearest_name(server: MCPServer, client: MCPClient) -> None:
    with pytest.raises(CapabilityNotFound, match="Did you mean 'search_flights'") as refusal:
        client.invoke_tool("search_flight")
    assert refusal.value.data == {"nearest": ["search_flights"]}
    with pytest.raises(CapabilityNotFound, match="Did you mean 'search_flights'"):
        server.call_tool("serch_flights", {})
    with pytest.raises(CapabilityNotFound, match="There are 0 tools"):
        MCPClient().invoke_tool("x")


def test_a_name_is_given_once(server: MCPServer) -> None:
    with pytest.raises(Conflict, match="has a tool 'search_flights' already"):
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


def test_a_tool_that_takes_too_long_is_cut_off(server: MCPServer, client: MCPClient) -> None:
    async def sleeper() -> None:
        await asyncio.sleep(30)

    server.register_tool(ToolDefinition(name="sleeper", timeout=0.05), sleeper)
    began = time.monotonic()
    told = client.invoke_tool("sleeper")
    assert (told["status"], told["error"]["code"]) == ("error", "timeout")
    assert time.monotonic() - began < 5


def test_a_tool_that_asks_tells_its_question(server: MCPServer, client: MCPClient) -> None:
    @server.tool
    async def order(ctx: Any) -> str:
        """Order something."""
        return f"a {await ctx.ask('Which size?')} one"

    told = client.invoke_tool("order")
    assert (told["status"], told["questions"]) == ("needs", ["Which size?"])
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
    assert client.invoke_tool(kind) == {"status": "success", "result": "ab"}


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


def test_only_servers_of_this_process_can_be_connected() -> None:
    with pytest.raises(SetupError, match="takes an MCPServer of this process, got str"):
        MCPClient().connect_to_server("http://example.com")  # type: ignore[arg-type]


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
