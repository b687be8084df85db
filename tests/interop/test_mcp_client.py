"""The official MCP client against a real gateway: over HTTP to ``agent3 serve``, over stdio to ``agent3 mcp``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.support.gateway import AGENT3, Process, environment, gateway

MODERN = "2026-07-28"
Way = tuple[Literal["http", "stdio"], str]
WAYS: list[Way] = [("http", MODERN), ("http", "legacy"), ("stdio", MODERN), ("stdio", "legacy")]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
# Starting a process costs seconds: over stdio only what that transport could break, and most of it in one era.
over_stdio_once = pytest.mark.parametrize("way", WAYS[:3], ids=lambda way: f"{way[0]}-{way[1]}")
over_http = pytest.mark.parametrize("way", WAYS[:2], ids=lambda way: f"{way[0]}-{way[1]}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with gateway(tmp_path_factory.mktemp("interop"), "--demo") as running:
        yield running


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 100)

    asyncio.run(bounded())


@asynccontextmanager
async def talking(way: Way, served: Process, **options: Any) -> AsyncIterator[Client]:
    """The official client; over stdio its host starts ``agent3 mcp`` on the database of the running gateway."""
    transport, mode = way
    if transport == "http":
        async with Client(f"{served.url}/mcp", mode=mode, **options) as client:
            yield client
        return
    script = StdioServerParameters(
        command=AGENT3, args=["mcp", "--demo"], env=environment(served.data), cwd=str(served.data)
    )
    async with Client(script, mode=mode, **options) as client:
        yield client


def text(result: wire.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, wire.TextContent))


def body(result: wire.CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict)
    return result.structured_content


class Person:
    """Answers every question from a list, and remembers what was asked."""

    def __init__(self, *said: Any):
        self.asked: list[str] = []
        self._said = iter(said)

    async def __call__(self, context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        self.asked.append(params.message)
        said = next(self._said)
        if isinstance(said, wire.ElicitResult):
            return said
        return wire.ElicitResult(action="accept", content={"answer": said})


@pytest.mark.requirement("AC-01", "AC-05", "AC-06")
@every_way
def test_search_call_with_a_question_and_feedback(way: Way, served: Process) -> None:
    person = Person("large")

    async def story() -> None:
        async with talking(way, served, elicitation_callback=person) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            own = sorted(name for name in tools if "__" not in name)
            assert own == [f"agent3_{verb}" for verb in ("call", "feedback", "invoke", "search", "select")]
            found = body(await client.call_tool("agent3_search", {"query": "pizza order"}))
            agent = found["agents"][0]["id"]
            assert agent == "pizza"
            called = await client.call_tool("agent3_call", {"agentId": agent, "message": "I want a pepperoni pizza"})
            answer = body(called)
            assert not called.is_error
            assert answer["success"] is True
            assert (answer["result"]["status"], answer["result"]["size"]) == ("confirmed", "large")
            assert set(answer["metadata"]) >= {"responseTime", "tokensUsed", "cost", "statusCode", "retryCount"}
            rated = body(await client.call_tool("agent3_feedback", {"agentId": agent, "rating": 5, "comment": "Great"}))
            assert rated["recorded"] is True

    run(story())
    assert person.asked == ["Which size: small, medium or large?"]


@pytest.mark.requirement("AC-01", "AC-04", "AC-06")
@over_http
def test_the_tools_have_the_parameters_of_the_design(way: Way, served: Process) -> None:
    async def story() -> None:
        async with talking(way, served) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            call = tools["agent3_call"].input_schema
            assert {"agentId", "message", "inputMode", "metadata"} <= set(call["properties"])
            metadata = call["properties"]["metadata"]["properties"]
            assert call["properties"]["inputMode"]["default"] == "text/plain"
            assert {"userAgentId", "timeout", "streaming", "retries"} <= set(metadata)
            assert (metadata["timeout"]["default"], metadata["retries"]["default"]) == (30_000, 1)
            assert tools["agent3_search"].input_schema["required"] == ["query"]
            assert tools["agent3_feedback"].input_schema["required"] == ["agentId", "rating"]
            hints = {name: tool.annotations.read_only_hint for name, tool in tools.items() if tool.annotations}
            assert {name: hint for name, hint in hints.items() if "__" not in name} == {
                "agent3_call": False,
                "agent3_feedback": False,
                "agent3_invoke": True,
                "agent3_search": True,
                "agent3_select": True,
            }

    run(story())


@over_http
def test_the_options_of_the_design_are_taken(way: Way, served: Process) -> None:
    async def story() -> None:
        async with talking(way, served) as client:
            options = {"userAgentId": "my-bot-456", "timeout": 15_000, "streaming": True, "retries": 3}
            arguments = {"agentId": "echo", "message": "hi", "inputMode": "text/plain", "metadata": options}
            assert body(await client.call_tool("agent3_call", arguments))["result"] == "hi"

    run(story())


@pytest.mark.requirement("AC-02", "AC-03")
@over_http
def test_select_and_invoke_show_an_agent(way: Way, served: Process) -> None:
    async def story() -> None:
        async with talking(way, served) as client:
            shown = body(await client.call_tool("agent3_select", {"agentId": "pizza"}))
            assert [one["name"] for one in shown["capabilities"]] == ["order", "menu"]
            card = body(await client.call_tool("agent3_invoke", {"agentId": "pizza"}))
            assert card["skills"][0]["inputSchema"]["required"] == ["message"]

    run(story())


@over_stdio_once
def test_without_elicitation_the_question_comes_as_text_and_is_answered_by_job(way: Way, served: Process) -> None:
    async def story() -> None:
        async with talking(way, served) as client:
            arguments: dict[str, Any] = {"agentId": "pizza", "message": "a pizza"}
            asked = await client.call_tool("agent3_call", arguments)
            assert not asked.is_error
            assert "Which size" in text(asked)
            job = re.search(r"^Job: (\w+)$", text(asked), re.MULTILINE)
            assert job is not None
            arguments["metadata"] = {"job": job[1], "answers": {"q1": "small"}}
            asked = await client.call_tool("agent3_call", arguments)
            assert "Which topping?" in text(asked)
            arguments["metadata"] = {"job": job[1], "answers": {"q2": "tuna"}}
            answer = body(await client.call_tool("agent3_call", arguments))
            assert (answer["result"]["size"], answer["result"]["topping"]) == ("small", "tuna")

    run(story())


@over_http
def test_a_person_who_declines_ends_the_call_in_the_same_form(way: Way, served: Process) -> None:
    person = Person(wire.ElicitResult(action="decline"))

    async def story() -> None:
        async with talking(way, served, elicitation_callback=person) as client:
            result = await client.call_tool("agent3_call", {"agentId": "pizza", "message": "a pizza"})
            assert result.is_error
            assert (body(result)["success"], body(result)["errorCode"]) == (False, "declined")

    run(story())


@over_http
def test_a_wrong_answer_is_asked_again_of_the_same_person(way: Way, served: Process) -> None:
    person = Person("gigantic", "small")

    async def story() -> None:
        async with talking(way, served, elicitation_callback=person) as client:
            result = await client.call_tool("agent3_call", {"agentId": "pizza", "message": "tuna pizza"})
            assert body(result)["result"]["size"] == "small"

    run(story())
    assert "invalid: " in person.asked[1]


@pytest.mark.requirement("AC-16")
@over_stdio_once
def test_a_story_is_told_as_progress_before_it_is_whole(way: Way, served: Process) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async def story() -> None:
        async with talking(way, served) as client:
            arguments = {"agentId": "story", "message": "tell of a cat", "metadata": {"streaming": True}}
            result = await client.call_tool("agent3_call", arguments, progress_callback=hear)
            whole = body(result)["result"]
            assert whole.startswith("Once upon a time")
            assert "".join(message or "" for _, message in heard) == whole
            figures = [figure for figure, _ in heard]
            assert figures == sorted(set(figures))

    run(story())


FAILURES: list[tuple[dict[str, Any], str, int, str]] = [
    ({"agentId": "calculator", "message": "1 / 0"}, "invalid_input", 422, "division by zero"),
    ({"agentId": "calculator", "input": {"expression": "__import__('os')"}}, "invalid_input", 422, "not arithmetic"),
    ({"agentId": "piza", "message": "x"}, "agent_not_found", 404, "Did you mean 'pizza'?"),
    ({"agentId": "pizza", "capability": "ordr"}, "capability_not_found", 404, "Did you mean 'order'?"),
    ({"message": "x"}, "invalid_input", 422, "Missing required parameter: agentId"),
    ({"agentId": "echo", "mesage": "x"}, "invalid_input", 422, "message"),
    ({"agentId": "echo", "input": {}}, "invalid_input", 422, "Missing required parameter: message"),
    ({"agentId": "echo", "metadata": {"job": "nope"}}, "job_not_found", 404, "nope"),
]


@pytest.mark.requirement("AC-05")
@over_http
def test_every_failed_call_has_the_form_of_the_design(way: Way, served: Process) -> None:
    async def story() -> None:
        async with talking(way, served) as client:
            for arguments, code, status, words in FAILURES:
                result = await client.call_tool("agent3_call", arguments)
                answer = body(result)
                assert result.is_error, arguments
                assert answer["success"] is False
                assert words in answer["error"], answer
                assert words in text(result)
                assert (answer["errorCode"], answer["metadata"]["statusCode"]) == (code, status)
                assert answer["metadata"]["responseTime"] >= 0

    run(story())


@over_http
def test_the_other_tools_refuse_with_a_reason(way: Way, served: Process) -> None:
    async def story() -> None:
        async with talking(way, served) as client:
            missing = await client.call_tool("agent3_search", {"qery": "x"})
            assert missing.is_error
            assert "query" in text(missing)
            unknown = await client.call_tool("agent3_select", {"agentId": "ehco"})
            assert unknown.is_error
            assert "echo" in text(unknown)
            with pytest.raises(MCPError, match="Unknown tool: agent3_serch"):
                await client.call_tool("agent3_serch", {"query": "x"})

    run(story())


def test_a_job_begun_over_stdio_goes_on_over_http(served: Process) -> None:
    jobs: list[str] = []

    async def begin() -> None:
        async with talking(("stdio", MODERN), served) as client:
            asked = await client.call_tool("agent3_call", {"agentId": "pizza", "message": "a tuna pizza"})
            jobs.append(body(asked)["job"])

    run(begin())
    done = served.post(f"/v1/calls/{jobs[0]}/answer", {"message": "medium"}).json
    assert done["result"]["size"] == "medium"


def test_standard_output_of_the_stdio_server_is_the_protocol_alone_and_it_ends_with_its_input(tmp_path: Path) -> None:
    async def story() -> None:
        process = await asyncio.create_subprocess_exec(
            AGENT3,
            "mcp",
            "--demo",
            env=environment(tmp_path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        hello = (
            b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
            b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
        )
        out, _ = await process.communicate(hello)
        assert process.returncode == 0
        assert all(line.startswith(b'{"jsonrpc"') for line in out.splitlines())

    run(story())
