"""What a new user gets wrong with MCPServer and MCPClient: it is said at once, with what to do about it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import aiohttp
import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from agent3 import MCPClient, MCPServer, ToolDefinition, ToolParameter, ValidationError
from agent3.errors import Interrupted, SetupError
from agent3.protocols.mcp.library.serving import MAX_BODY
from tests.support.mcp_serving import MODERN, modern_request

every_era = pytest.mark.parametrize("era", [MODERN, "legacy"])


@pytest.fixture
def server() -> Iterator[MCPServer]:
    server = MCPServer("shop")

    @server.tool
    def shout(text: str) -> str:
        """Say it loud."""
        return text.upper()

    @server.tool
    async def order(ctx: Any, article: str) -> str:
        """Order something."""
        size = await ctx.ask("Which size?", Literal["small", "large"])
        return f"{size} {article}"

    yield server
    server.close()


@pytest.fixture(params=["here", "there"])
def client(server: MCPServer, request: pytest.FixtureRequest) -> Iterator[MCPClient]:
    """Connected to the server as an object, and over HTTP."""
    with server.listening() as url, MCPClient() as client:
        client.connect_to_server(server if request.param == "here" else url)
        yield client


def run(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, 240))


# Definitions that cannot work


def takes_text(text: str) -> str:
    return text


def takes_ctx(ctx: Any, text: str = "") -> str:
    return text


def takes_all(**named: Any) -> str:
    return str(named)


TEXT = ToolParameter(name="text", required=True)


@pytest.mark.parametrize(
    ("options", "function", "message"),
    [
        (
            {"parameters": [ToolParameter(name="txt", required=True)]},
            takes_text,
            "no parameter 'txt'; did you mean 'te",
        ),
        ({"parameters": [TEXT, ToolParameter(name="size")]}, takes_text, "no parameter 'size'; it takes text"),
        ({}, takes_text, "requires 'text'"),
        ({"parameters": [ToolParameter(name="text", default="a")]}, takes_text, "requires 'text'"),
        ({"parameters": [ToolParameter(name="ctx", required=True)]}, takes_ctx, "no parameter 'ctx'"),
        ({"parameters": [TEXT], "returns": {"type": "strng"}}, takes_text, "its returns cannot be used.*'strng'"),
        ({"parameters": [TEXT], "returns": {"$ref": "#/$defs/gone"}}, takes_text, "its returns cannot be used"),
        ({"input_schema": {"type": 3}}, takes_all, "its input_schema cannot be used"),
    ],
)
def test_a_definition_that_cannot_work_is_refused_when_it_is_registered(
    server: MCPServer, options: dict[str, Any], function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message):
        server.register_tool(ToolDefinition(name="tool", **options), function)
    assert not server.versions("tool")


@pytest.mark.parametrize(
    ("options", "function"),
    [
        ({"parameters": [TEXT]}, takes_text),
        ({"parameters": [ToolParameter(name="text")]}, takes_ctx),
        ({"parameters": [TEXT]}, takes_all),
        ({}, takes_all),
        ({}, takes_ctx),
    ],
)
def test_a_definition_that_works_is_taken(
    server: MCPServer, options: dict[str, Any], function: Callable[..., Any]
) -> None:
    server.register_tool(ToolDefinition(name="tool", **options), function)
    assert server.versions("tool")


@pytest.mark.parametrize("name", ["", "  "])
def test_a_server_has_a_name(name: str) -> None:
    with pytest.raises(SetupError, match="needs a name"):
        MCPServer(name)


def test_a_misspelt_transport_is_refused_and_nothing_is_served(server: MCPServer) -> None:
    wrong: Any = "sdtio"
    with pytest.raises(SetupError, match=r"Unknown transport 'sdtio'\. Did you mean 'stdio'"):
        server.run(wrong, port=0)
    with pytest.raises(SetupError, match="Did you mean 'stdio'"):
        run(server.run_async(wrong, port=0))


# Calls in a form that nobody takes


def test_parameters_are_values_by_their_names(client: MCPClient) -> None:
    wrong: Any = ["x"]
    with pytest.raises(ValidationError, match="parameters of 'shout' must be a mapping from name to value, got list"):
        client.invoke_tool("shout", wrong)


@pytest.mark.parametrize("call", [("shout",), ("shout", ["x"]), "shout", 7, (7, {}), {"parameters": {}}])
def test_a_malformed_call_of_a_batch_is_named(client: MCPClient, call: Any) -> None:
    with pytest.raises(ValidationError, match="Call 1 of the batch is malformed"):
        client.invoke_batch([("shout", {"text": "a"}), call])


def test_a_batch_stops_in_known_ways_only(client: MCPClient) -> None:
    wrong: Any = "banana"
    with pytest.raises(ValidationError, match="'banana'"):
        client.invoke_batch([("shout", {"text": "a"})], stop_on_error=wrong)


def test_an_error_names_the_tool_and_not_the_number_of_its_server(server: MCPServer, client: MCPClient) -> None:
    @server.tool
    def boom() -> None:
        raise KeyError("tea")

    @server.tool(timeout=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    client.servers(look=True)
    for tool, said in (("boom", "boom failed: KeyError: 'tea'"), ("slow", "slow did not answer within 0.05 s")):
        message = client.invoke_tool(tool)["error"]["message"]
        assert said in message
        assert "shop#" not in message


# Questions


def test_a_question_is_told_and_answered_alike_wherever_the_server_is(client: MCPClient) -> None:
    told = client.invoke_tool("order", {"article": "tea"})
    asked = {"id": "q1", "text": "Which size?", "schema": {"type": "string", "enum": ["small", "large"]}}
    assert told["questions"] == [asked]
    assert client.answer(told["job"], {"q1": "large"})["result"] == "large tea"


def test_after_an_answer_that_was_refused_id_and_text_still_name_the_question(client: MCPClient) -> None:
    for name in ("q1", "Which size?"):
        told = client.invoke_tool("order", {"article": "tea"})
        again = client.answer(told["job"], {name: "huge"})
        assert (again["status"], again["questions"][0]["id"]) == ("needs", "q1")
        assert "invalid: " in again["questions"][0]["text"]
        assert client.answer(again["job"], {name: "small"})["result"] == "small tea"


@pytest.mark.parametrize("given", [["large"], "large"])
def test_answers_are_values_by_question(client: MCPClient, given: Any) -> None:
    told = client.invoke_tool("order", {"article": "tea"})
    with pytest.raises(ValidationError, match="Answers are a mapping from question id to value"):
        client.answer(told["job"], given)


def test_structure_is_answered_alike_wherever_the_server_is(server: MCPServer, client: MCPClient) -> None:
    @server.tool
    async def pack(ctx: Any) -> str:
        """Pack a bag."""
        return ", ".join(await ctx.ask("What goes in?", list[str]))

    client.servers(look=True)
    told = client.invoke_tool("pack")
    assert client.answer(told["job"], {"q1": ["tea", "cake"]})["result"] == "tea, cake"


def text_of(result: Any) -> str:
    block = result.content[0]
    assert isinstance(block, wire.TextContent)
    return block.text


def as_told(result: Any, answer: Any) -> dict[str, Any]:
    """The arguments that the text of a result tells its reader to send."""
    arguments: dict[str, Any] = json.loads(text_of(result).rpartition("with the arguments ")[2])
    (room,) = arguments.values()
    room["answers"] = dict.fromkeys(room["answers"], answer)
    return arguments


@every_era
@pytest.mark.parametrize("answer", ["large", {"action": "accept", "data": "large"}])
def test_a_client_that_cannot_elicit_answers_just_as_the_text_says(server: MCPServer, era: str, answer: Any) -> None:
    async def story(url: str) -> None:
        async with Client(url, mode=era) as client:
            asked = await client.call_tool("order", {"article": "tea"})
            assert asked.is_error
            assert "Which size?" in text_of(asked)
            refused = await client.call_tool("order", as_told(asked, "huge"))
            assert "invalid: " in text_of(refused)
            assert text_of(await client.call_tool("order", as_told(refused, answer))) == "large tea"
            over = await client.call_tool("order", as_told(refused, answer))
            assert "is not waiting for an answer" in text_of(over)
            asked = await client.call_tool("order", {"article": "tea"})
            no = await client.call_tool("order", {"article": "tea", **as_told(asked, {"action": "decline"})})
            assert no.is_error
            assert "declined" in text_of(no)

    with server.listening() as url:
        run(story(url))


def test_a_tool_with_metadata_of_its_own_keeps_it(server: MCPServer) -> None:
    @server.tool
    async def note(ctx: Any, metadata: dict[str, Any]) -> str:
        """Note something."""
        return f"{metadata['job']} {await ctx.ask('Sure?')}"

    mine = {"metadata": {"job": "cook", "answers": {}}}

    async def story(url: str) -> None:
        async with Client(url, mode=MODERN) as client:
            asked = await client.call_tool("note", mine)
            assert "Sure?" in text_of(asked)
            assert text_of(await client.call_tool("note", mine | as_told(asked, "yes"))) == "cook yes"

    with server.listening() as url:
        run(story(url))


# Plans


def test_a_step_that_was_cut_off_says_how_to_decide_and_done_steps_are_not_repeated() -> None:
    server = MCPServer("travel")
    runs: list[str] = []

    @server.tool
    def find(city: str) -> str:
        runs.append("find")
        return f"Grand Hotel {city}"

    @server.tool
    def book(hotel: str) -> str:
        runs.append("book")
        if runs.count("book") == 1:
            raise Interrupted("It was cut off.")
        return f"{hotel} is booked"

    @server.tool
    def tell(text: str) -> str:
        return text.upper()

    plan = [
        {"id": "found", "tool": "find", "input": {"city": "Rome"}},
        {"id": "booked", "tool": "book", "input": {"hotel": "${found}"}},
        {"id": "told", "tool": "tell", "input": {"text": "${booked}"}},
    ]
    with MCPClient() as client:
        client.connect_to_server(server)
        cut = client.run_plan(plan, key="cut off")
        assert cut["steps"][1]["error"]["code"] == "interrupted"
        assert "under another key" in cut["steps"][1]["error"]["message"]
        assert client.run_plan(plan, key="cut off") == cut, "the key stands for what happened"
        done = {one["id"]: one["result"] for one in cut["steps"] if one["status"] == "success"}
        happened = client.run_plan(plan, key="cut off, it had happened", done={**done, "booked": "room 7"})
        assert [one.get("result") for one in happened["steps"]] == ["Grand Hotel Rome", "room 7", "ROOM 7"]
        assert runs == ["find", "book"]
        for key in ("cut off, again", "cut off, again", None):
            again = client.run_plan(plan, key=key, done=done)
            assert (again["status"], again["steps"][2]["result"]) == ("success", "GRAND HOTEL ROME IS BOOKED")
        assert runs == ["find", "book", "book", "book"]
        with pytest.raises(ValidationError, match=r"'bookd' is given as done.*'booked'"):
            client.run_plan(plan, done={"bookd": 1})
    server.close()


# Requests that are none


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "too large": ({"data": b" " * (MAX_BODY + 1)}, 413, f"at most {MAX_BODY} bytes"),
    "no JSON": ({"data": b"{}", "headers": {"Content-Type": "text/plain"}}, 400, "application/json"),
    "another host": ({"data": b"{}", "headers": {"Host": "evil.example"}}, 421, "allowed_hosts="),
    "another site": ({"data": b"{}", "headers": {"Origin": "https://evil.example"}}, 403, "allowed_origins="),
}


@pytest.mark.parametrize("how", BAD)
def test_what_is_no_request_is_refused_in_the_words_of_the_protocol(server: MCPServer, how: str) -> None:
    given, status, words = BAD[how]
    sent = modern_request("tools/list", {})
    headers = {**sent["headers"], "Content-Type": "application/json", **given.get("headers", {})}

    async def story(url: str) -> None:
        body = io.BytesIO(given["data"])
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
            assert (answer.status, answer.content_type) == (status, "application/json")
            told = await answer.json()
            assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", None, wire.INVALID_REQUEST)
            assert words in told["error"]["message"]

    with server.listening() as url:
        run(story(url))


def test_the_wrong_path_below_a_mount_hears_the_right_one(server: MCPServer) -> None:
    web = TestClient(Starlette(routes=[Mount("/tools", app=server.asgi())]))
    answer = web.get("/tools/elsewhere")
    assert (answer.status_code, answer.json()["error"]) == (404, "Not found; MCP is at /tools/mcp.")


@every_era
def test_a_version_that_is_not_there_hears_which_are(server: MCPServer, era: str) -> None:
    for version in ("1.9", "1.10"):
        server.register_tool(ToolDefinition(name="quote", version=version), lambda: "a quote")

    async def story(url: str) -> None:
        async with Client(url, mode=era) as client:
            with pytest.raises(MCPError, match=r"Unknown tool: quote@2\. .*it has 1\.10, 1\.9") as wrong:
                await client.call_tool("quote@2", {})
            assert wrong.value.error.data == {"versions": ["1.10", "1.9"]}
            assert text_of(await client.call_tool("quote@1.9", {})) == "a quote"

    with server.listening() as url:
        run(story(url))
