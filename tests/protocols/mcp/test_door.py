"""The MCP door, driven by the official client in both eras, over HTTP and stdio, and by plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import aiohttp
import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from starlette.types import Scope

from agent3.env import SeededEnv
from agent3.errors import AccessError, Unauthenticated
from agent3.model import Done, Part, Principal
from agent3.observe.metrics import METRICS
from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor, Tool, Transport
from agent3.protocols.mcp.door.results import to_tool_result
from tests.support.mcp_serving import MODERN, served
from tests.support.mcp_toy import PARTS, SECRET, Toys

TOY = Path(__file__).parents[2] / "support" / "mcp_toy.py"
Way = tuple[Literal["http", "stdio"], str]
WAYS: list[Way] = [("http", MODERN), ("http", "legacy"), ("stdio", MODERN), ("stdio", "legacy")]
HTTP: list[Way] = WAYS[:2]
# Starting a process costs seconds, so over stdio only what the transport could break.
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
over_http = pytest.mark.parametrize("way", HTTP, ids=lambda way: f"{way[0]}-{way[1]}")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


@asynccontextmanager
async def talking(way: Way, **options: Any) -> AsyncIterator[Client]:
    """The official client at the far end of one transport, in one era."""
    transport, mode = way
    if transport == "stdio":
        script = StdioServerParameters(command=sys.executable, args=[str(TOY)])
        async with Client(script, mode=mode, **options) as client:
            yield client
        return
    async with (
        served(MCPDoor(Toys(), DoorOptions(instructions="Play."))) as url,
        Client(url, mode=mode, **options) as client,
    ):
        yield client


def modern(way: Way) -> bool:
    return way[1] == MODERN


def text(result: wire.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, wire.TextContent))


class Person:
    """Somebody who answers what is asked, from a list."""

    def __init__(self, *replies: wire.ElicitResult) -> None:
        self.asked: list[wire.ElicitRequestParams] = []
        self._replies: Iterator[wire.ElicitResult] = iter(replies)

    async def __call__(self, context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        self.asked.append(params)
        return next(self._replies)

    def forms(self) -> dict[str, dict[str, Any]]:
        return {
            one.message: one.requested_schema for one in self.asked if isinstance(one, wire.ElicitRequestFormParams)
        }


def yes(**content: Any) -> wire.ElicitResult:
    return wire.ElicitResult(action="accept", content=content)


@over_http
def test_tools_are_listed_by_name_with_their_hints(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            listed = await client.list_tools()
            names = [tool.name for tool in listed.tools]
            assert names == sorted(names)
            assert len(names) > 10
            echo = next(tool for tool in listed.tools if tool.name == "echo")
            assert echo.input_schema["required"] == ["text"]
            assert echo.annotations is not None
            assert (echo.annotations.read_only_hint, echo.annotations.open_world_hint) == (True, False)
            assert echo.meta == {"io.agent3/version": "1"}
            if modern(way):
                assert (listed.ttl_ms, listed.cache_scope) == (30_000, "private")

    run(story())


@over_http
def test_an_object_comes_as_structured_content_and_as_one_text(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            await client.list_tools()
            result = await client.call_tool("echo", {"text": "hä?"})
            assert result.structured_content == {"text": "hä?", "odd": None}
            assert len(result.content) == 1
            assert json.loads(text(result)) == {"text": "hä?", "odd": None}
            assert not result.is_error
            assert result.meta is not None
            assert result.meta["io.agent3/cost"] == 1

    run(story())


@over_http
def test_a_list_is_wrapped_where_the_era_wants_objects_and_its_schema_with_it(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            await client.list_tools()  # so that the client validates the result by the schema
            result = await client.call_tool("numbers", {})
            assert result.structured_content == ([1, 2, 3] if modern(way) else {"result": [1, 2, 3]})

    run(story())


@over_http
def test_an_unknown_tool_is_a_protocol_error_with_the_nearest_names(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            with pytest.raises(MCPError) as caught:
                await client.call_tool("ecko", {})
            assert (caught.value.code, caught.value.message) == (-32602, "Unknown tool: ecko")
            assert caught.value.data["nearest"][0] == "echo"

    run(story())


@over_http
def test_refusals_and_failures_are_results_with_a_machine_form(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            invalid = await client.call_tool("strict", {})
            assert invalid.is_error
            assert invalid.structured_content["code"] == "invalid_input"
            assert [fault["path"] for fault in invalid.structured_content["errors"]] == ["/to", "/n"]
            assert text(invalid).startswith("Missing required parameter: to\n")
            assert "n must be a number" in text(invalid)

            busy = await client.call_tool("busy", {})
            assert busy.is_error
            assert busy.structured_content == {
                "code": "rate_limited",
                "message": "Too many calls",
                "retryable": True,
                "retry_after": 2.5,
                "data": {"limit": 3},
            }

            broken = await client.call_tool("broken", {})
            assert broken.is_error
            assert broken.structured_content["code"] == "unavailable"
            assert "30 s" in text(broken)

            partial = await client.call_tool("partial", {})
            assert partial.is_error
            assert text(partial) == "It took too long\nthe first half"

            inside = await client.call_tool("nested_not_found", {})
            assert inside.is_error, "only the tool itself may be unknown to the protocol"
            assert inside.structured_content["code"] == "capability_not_found"
            assert "Nearest: bake" in text(inside)

    run(story())


@over_http
def test_a_crash_inside_tells_nothing_of_the_inside(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            for name, code in (("crash", "internal"), ("cut", "canceled")):
                result = await client.call_tool(name, {})
                assert result.is_error
                assert result.structured_content["code"] == code
                assert SECRET not in result.model_dump_json()
            assert not (await client.call_tool("echo", {"text": "still here"})).is_error

    run(story())


@every_way
def test_questions_go_to_the_person_turn_after_turn_and_come_back_as_answers(way: Way) -> None:
    async def story() -> None:
        person = Person(yes(answer="large"), yes(answer="quick"), yes(cheese=True, count=2))
        async with talking(way, elicitation_callback=person) as client:
            result = await client.call_tool("pizza", {"for": "two"})
            assert not result.is_error
            assert result.structured_content == {"extras": {"cheese": True, "count": 2}}
            assert "pizza:2 done" in text(result)
            noted = (await client.call_tool("seen", {})).structured_content["noted"]
        forms = person.forms()
        assert forms["Which size?"]["properties"] == {"answer": {"type": "string", "enum": ["small", "large"]}}
        assert forms["Which size?"]["required"] == ["answer"]
        assert forms["Anything else?"]["properties"] == {"answer": {"type": "string"}}
        assert set(forms["Which extras?"]["properties"]) == {"cheese", "count"}
        said = {"large", "quick"}
        assert noted[0].startswith("pizza:1 ")
        assert all(word in noted[0] for word in said)
        assert noted[1] == "pizza:2 [('extras', 'accept', {'cheese': True, 'count': 2})]"

    run(story())


@over_http
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_a_no_reaches_the_tool_as_a_no(way: Way, action: Literal["decline", "cancel"]) -> None:
    async def story() -> None:
        no = wire.ElicitResult(action=action)
        person = Person(no, no)
        async with talking(way, elicitation_callback=person) as client:
            result = await client.call_tool("pizza", {})
            assert result.is_error
            assert result.structured_content["code"] == "declined"
            noted = (await client.call_tool("seen", {})).structured_content["noted"]
            assert f"('size', '{action}', None)" in noted[0]
            assert "'note'" in noted[0]
            assert len(person.asked) == (2 if modern(way) else 1), "in place, a no ends the asking"

    run(story())


@over_http
def test_a_question_with_a_url_sends_the_person_there(way: Way) -> None:
    async def story() -> None:
        person = Person(wire.ElicitResult(action="accept"))
        async with talking(way, elicitation_callback=person) as client:
            result = await client.call_tool("login", {})
            assert result.structured_content == {"auth": None}
            assert "login-job done" in text(result), "without a state the job is the state"
        asked = person.asked[0]
        assert isinstance(asked, wire.ElicitRequestURLParams)
        assert asked.url == "https://example.com/login"

    run(story())


@over_http
def test_an_answer_too_deep_for_a_form_is_asked_for_as_json(way: Way) -> None:
    async def story() -> None:
        person = Person(yes(answer='{"street": {"number": 5}}'))
        async with talking(way, elicitation_callback=person) as client:
            result = await client.call_tool("address", {})
            assert result.structured_content == {"where": {"street": {"number": 5}}}
        field = person.forms()["Where to?"]["properties"]["answer"]
        assert field["type"] == "string"
        assert "street" in field["description"]

    run(story())


@over_http
def test_a_client_that_cannot_ask_gets_the_question_as_text(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            result = await client.call_tool("pizza", {})
            assert result.is_error
            for words in ("Which size?", '"enum":["small","large"]', "Job: j1", 'calling "pizza" again'):
                assert words in text(result)
            form = result.structured_content
            assert (form["code"], form["job"], form["turn"]) == ("input_required", "j1", 1)
            assert [question["id"] for question in form["questions"]] == ["size", "note"]

    run(story())


@over_http
def test_a_client_whose_person_cannot_be_reached_gets_the_text_or_its_own_error(way: Way) -> None:
    async def unreachable(context: Any, params: wire.ElicitRequestParams) -> wire.ErrorData:
        return wire.ErrorData(code=-32000, message="nobody there")

    async def story() -> None:
        async with talking(way, elicitation_callback=unreachable) as client:
            if modern(way):  # the client's own loop gives up, the server is not asked again
                with pytest.raises(MCPError, match="nobody there"):
                    await client.call_tool("pizza", {})
            else:
                assert "Which size?" in text(await client.call_tool("pizza", {}))

    run(story())


@every_way
def test_progress_arrives_in_order_and_before_the_result(way: Way) -> None:
    async def story() -> None:
        heard: list[tuple[float, float | None, str | None]] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            heard.append((progress, total, message))

        async with talking(way) as client:
            result = await client.call_tool("slow", {}, progress_callback=on_progress)
            assert text(result) == "slow but done"
        assert [message for _, _, message in heard] == ["at 0", "at 50", "at 100", "almost", "a piece"]
        assert [(done, total) for done, total, _ in heard[:3]] == [(0, 100), (50, 100), (100, 100)]
        figures = [done for done, _, _ in heard]
        assert all(before < after for before, after in itertools.pairwise(figures))

    run(story())


@every_way
def test_log_lines_arrive_from_the_level_that_the_client_asked_for(way: Way) -> None:
    async def story() -> None:
        heard: list[Any] = []
        loud = asyncio.Event()

        async def on_log(params: wire.LoggingMessageNotificationParams) -> None:
            heard.append((params.level, params.data))
            loud.set()

        options: dict[str, Any] = {"log_level": "info"} if modern(way) else {}
        async with talking(way, logging_callback=on_log, **options) as client:
            if not modern(way):
                await client.call_tool("slow", {})
                assert heard == [], "nobody asked yet"
                request = wire.SetLevelRequest(params=wire.SetLevelRequestParams(level="info"))
                await client.session.send_request(request, wire.EmptyResult)
            await client.call_tool("slow", {})
            await asyncio.wait_for(loud.wait(), 60)
        assert heard == [("warning", "loud")]

    run(story())


@every_way
def test_a_client_that_gives_up_cancels_the_call_once_and_lets_it_clean_up(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            call = asyncio.create_task(client.call_tool("hang", {}))
            await client.call_tool("seen", {"until": "hanging"})
            call.cancel()
            seen = await client.call_tool("seen", {"until": "cleaned"})
            assert seen.structured_content == {"noted": ["cleaned up"]}

    run(story())


@over_http
def test_work_that_goes_on_is_told_with_its_job(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            result = await client.call_tool("background", {})
            assert not result.is_error
            assert result.structured_content == {"job": "j9", "status": "working", "poll": 5.0}
            assert "The dough is rising" in text(result)

    run(story())


@over_http
def test_each_kind_of_part_has_its_kind_of_content(way: Way) -> None:
    async def story() -> None:
        async with talking(way) as client:
            words, image, audio, blob, link, artifact, inner = (await client.call_tool("parts", {})).content
        assert isinstance(words, wire.TextContent)
        assert isinstance(image, wire.ImageContent)
        assert (base64.b64decode(image.data), image.mime_type) == (b"png", "image/png")
        assert isinstance(audio, wire.AudioContent)
        assert isinstance(blob, wire.EmbeddedResource)
        assert isinstance(blob.resource, wire.BlobResourceContents)
        assert base64.b64decode(blob.resource.blob) == b"zip"
        assert blob.resource.uri == "agent3://parts/all%20of%20it.zip"
        assert isinstance(link, wire.ResourceLink)
        assert (link.uri, link.name, link.mime_type) == ("https://example.com/x", "x", "text/html")
        assert isinstance(artifact, wire.ResourceLink)
        assert (artifact.uri, artifact.meta) == ("agent3://artifacts/sha256%3Aabc", {"io.agent3/size": 9})
        assert isinstance(inner, wire.TextContent)
        assert inner.text == "in the artifact"

    run(story())


def test_the_oldest_clients_get_links_and_sound_in_the_forms_they_know() -> None:
    result = to_tool_result(Done(PARTS), "2024-11-05")
    wire.methods.validate_server_result("tools/call", "2024-11-05", result.model_dump(by_alias=True, exclude_none=True))
    assert [type(block).__name__ for block in result.content[2:]] == [
        "EmbeddedResource",
        "EmbeddedResource",
        "TextContent",
        "TextContent",
    ]
    assert "x: https://example.com/x" in text(result)


@every_way
def test_the_tool_set_learns_who_calls_and_how(way: Way) -> None:
    async def story() -> None:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        async with talking(way, elicitation_callback=Person()) as client:
            assert client.instructions in ("Play.", None)
            meta: Any = {"traceparent": trace, "io.agent3/key": "k1"}
            known = (await client.call_tool("who", {}, meta=meta)).structured_content
        assert known["id"] == "local"
        assert known["era"] == ("modern" if modern(way) else "legacy")
        assert known["can_elicit"] is True
        assert known["traceparent"] == trace
        assert known["meta"] == {"traceparent": trace, "io.agent3/key": "k1"}

    run(story())


def test_a_client_left_to_itself_chooses_the_modern_era() -> None:
    async def story() -> None:
        async with talking(("http", "auto")) as client:
            assert client.protocol_version == MODERN
            assert client.server_info is not None
            assert client.server_info.name == "agent3"
            assert client.instructions == "Play."

    run(story())


# What a modern client carries between two turns


@asynccontextmanager
async def asked(door: MCPDoor) -> AsyncIterator[tuple[Client, str]]:
    """A modern client that was just asked about its pizza, and the state it carries."""
    async with served(door) as url, Client(url, mode=MODERN, elicitation_callback=Person()) as client:
        first = await client.session.call_tool("pizza", {"for": "two"}, allow_input_required=True)
        assert isinstance(first, wire.InputRequiredResult)
        assert set(first.input_requests or {}) == {"size", "note"}
        assert first.request_state is not None
        yield client, first.request_state


async def reply(client: Client, state: str, tool: str = "pizza", answers: Sequence[str] = ("size", "note")) -> Any:
    responses: Any = {name: yes(answer="large") for name in answers}
    return await client.session.call_tool(
        tool, {"for": "two"}, input_responses=responses, request_state=state, allow_input_required=True
    )


def flipped(state: str) -> str:
    raw = bytearray(base64.urlsafe_b64decode(state))
    raw[-20] ^= 1
    return base64.urlsafe_b64encode(bytes(raw)).decode()


SPOILERS: dict[str, Callable[[str], str]] = {
    "one bit": flipped,
    "empty": lambda _: "",
    "no base64": lambda _: "?",
    "no ascii": lambda _: "äö",
    "cut": lambda state: state[:40],
}


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS.keys())
def test_a_state_that_was_changed_is_refused(spoil: Callable[[str], str]) -> None:
    async def story() -> None:
        toys = Toys()
        async with asked(MCPDoor(toys)) as (client, state):
            with pytest.raises(MCPError, match="Invalid or expired requestState") as caught:
                await reply(client, spoil(state))
            assert caught.value.code == -32602
            assert toys.noted == [], "no answer reached the tool"
            assert isinstance(await reply(client, state), wire.InputRequiredResult), "the true one still works"

    run(story())


def test_a_state_serves_neither_another_tool_nor_another_caller_nor_a_late_answer() -> None:
    async def story() -> None:
        who = [Principal("alice")]
        env = SeededEnv()
        async with asked(MCPDoor(Toys(), DoorOptions(principal=lambda _: who[0], answer_within=60), env=env)) as (
            client,
            state,
        ):
            with pytest.raises(MCPError, match="requestState"):
                await reply(client, state, tool="address")
            for stranger in (Principal("bob"), Principal("alice", tenant="other")):
                who[0] = stranger
                with pytest.raises(MCPError, match="requestState"):
                    await reply(client, state)
            who[0] = Principal("alice")
            assert isinstance(await reply(client, state), wire.InputRequiredResult)
            env.advance(61)
            with pytest.raises(MCPError, match="requestState"):
                await reply(client, state)

    run(story())


def test_a_state_is_good_at_another_replica_with_the_same_key() -> None:
    async def story() -> None:
        key = b"k" * 32
        async with asked(MCPDoor(Toys(), DoorOptions(key=key))) as (_, state):
            async with asked(MCPDoor(Toys(), DoorOptions(key=key))) as (there, _):
                assert isinstance(await reply(there, state), wire.InputRequiredResult)
            async with asked(MCPDoor(Toys())) as (elsewhere, _):
                with pytest.raises(MCPError, match="requestState"):
                    await reply(elsewhere, state)

    run(story())


def test_questions_left_open_are_asked_again() -> None:
    async def story() -> None:
        toys = Toys()
        async with asked(MCPDoor(toys)) as (client, state):
            again = await reply(client, state, answers=["size"])
            assert isinstance(again, wire.InputRequiredResult)
            assert set(again.input_requests or {}) == {"size", "note"}
            assert toys.noted == []

    run(story())


# Lists


def test_a_long_list_comes_in_pages_that_survive_changes() -> None:
    class Many(Toys):
        names = [f"t{number}" for number in range(7)]

        async def tools(self, principal: Principal) -> list[Tool]:
            return [Tool(name=name) for name in self.names]

    async def story() -> None:
        many = Many()
        async with served(MCPDoor(many, DoorOptions(page_size=3))) as url, Client(url, mode=MODERN) as client:
            first = await client.list_tools()
            assert [tool.name for tool in first.tools] == ["t0", "t1", "t2"]
            many.names.remove("t2")
            second = await client.list_tools(cursor=first.next_cursor)
            assert [tool.name for tool in second.tools] == ["t3", "t4", "t5"]
            third = await client.list_tools(cursor=second.next_cursor)
            assert ([tool.name for tool in third.tools], third.next_cursor) == (["t6"], None)
            with pytest.raises(MCPError, match="cursor"):
                await client.list_tools(cursor="!!!")

    run(story())


@over_http
def test_a_list_that_fails_is_an_error_without_inner_words(way: Way) -> None:
    class Closed(Toys):
        error: Exception = RuntimeError(SECRET)

        async def tools(self, principal: Principal) -> list[Tool]:
            raise self.error

    async def story() -> None:
        closed = Closed()
        async with served(MCPDoor(closed)) as url, Client(url, mode=way[1]) as client:
            with pytest.raises(MCPError) as caught:
                await client.list_tools()
            assert caught.value.code == -32603
            assert SECRET not in str(caught.value)
            closed.error = AccessError("Not for you")
            with pytest.raises(MCPError, match="Not for you") as refused:
                await client.list_tools()
            assert refused.value.code == AccessError.rpc_code
            assert refused.value.data["code"] == "forbidden"

    run(story())


def test_an_argument_that_is_copied_to_a_header_must_agree_with_it() -> None:
    async def story() -> None:
        async with served(MCPDoor(Toys())) as url, Client(url, mode=MODERN) as client, aiohttp.ClientSession() as http:
            await client.list_tools()
            assert text(await client.call_tool("region", {"region": "eu"})) == "eu"
            call = modern_call("region", {"region": "eu"}, **{"Mcp-Param-Region": "us"})
            async with http.post(url, **call) as response:
                assert response.status == 400
                assert (await response.json())["error"]["code"] == -32020

    run(story())


# Plain HTTP


def modern_call(name: str, arguments: dict[str, Any], **headers: str) -> dict[str, Any]:
    meta = {wire.PROTOCOL_VERSION_META_KEY: MODERN, wire.CLIENT_CAPABILITIES_META_KEY: {}}
    params = {"name": name, "arguments": arguments, "_meta": meta}
    routing = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": name}
    accept = {"Accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return {"json": body, "headers": {**routing, **accept, **headers}}


def legacy_hello(**headers: str) -> dict[str, Any]:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    return {"json": body, "headers": {"Accept": "application/json, text/event-stream", **headers}}


async def post(url: str, request: dict[str, Any]) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as http, http.post(url, **request) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_a_foreign_host_or_origin_is_refused(era: str) -> None:
    def request(**headers: str) -> dict[str, Any]:
        return modern_call("echo", {"text": "x"}, **headers) if era == "modern" else legacy_hello(**headers)

    async def story() -> None:
        async with served(MCPDoor(Toys())) as url, aiohttp.ClientSession() as http:
            expected = [
                ({}, 200),
                ({"Origin": "http://localhost:3000"}, 200),
                ({"Origin": "https://evil.example"}, 403),
                ({"Origin": "http://localhost.evil.example"}, 403),
                ({"Host": "evil.example"}, 421),
            ]
            for headers, status in expected:
                async with http.post(url, **request(**headers)) as response:
                    assert (headers, response.status) == (headers, status)

    run(story())


def test_hosts_and_origins_are_those_of_the_configuration() -> None:
    async def story() -> None:
        door = MCPDoor(Toys(), DoorOptions(allowed_hosts=["agents.example"], allowed_origins=["https://app.example"]))
        async with served(door) as url, aiohttp.ClientSession() as http:
            good = {"Host": "agents.example", "Origin": "https://app.example"}
            async with http.post(url, **modern_call("echo", {"text": "x"}, **good)) as response:
                assert response.status == 200
            async with http.post(url, **modern_call("echo", {"text": "x"})) as response:
                assert response.status == 421
        async with served(MCPDoor(Toys(), DoorOptions(allowed_hosts=["*"]))) as url:
            status, _ = await post(url, modern_call("echo", {"text": "x"}, Host="any.example"))
            assert status == 200

    run(story())


def by_header(scope: Scope) -> Principal:
    name = dict(scope["headers"]).get(b"x-client")
    if name is None:
        raise Unauthenticated("Who are you? Send X-Client", retry_after=1)
    return Principal(name.decode())


def test_a_caller_who_cannot_be_told_is_refused_before_anything_else() -> None:
    async def story() -> None:
        async with served(MCPDoor(Toys(), DoorOptions(principal=by_header))) as url, aiohttp.ClientSession() as http:
            async with http.post(url, **modern_call("who", {})) as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"]
                assert response.headers["Retry-After"] == "1"
                assert (await response.json())["error"]["data"]["code"] == "unauthenticated"
            async with http.post(url, **modern_call("who", {}, **{"X-Client": "alice"})) as response:
                assert (await response.json())["result"]["structuredContent"]["id"] == "alice"

    run(story())


def test_a_hidden_tool_looks_like_one_that_is_not_there() -> None:
    async def story() -> None:
        async with served(MCPDoor(Toys(), DoorOptions(principal=by_header))) as url:
            _, body = await post(url, modern_call("echo", {"text": "x"}, **{"X-Client": "stranger"}))
            error = json.loads(body)["error"]
            assert (error["code"], error["message"]) == (-32602, "Unknown tool: echo")
            assert "echo" not in error["data"]["nearest"]

    run(story())


def test_a_legacy_session_serves_only_the_caller_who_opened_it() -> None:
    async def story() -> None:
        async with served(MCPDoor(Toys(), DoorOptions(principal=by_header))) as url, aiohttp.ClientSession() as http:
            async with http.post(url, **legacy_hello(**{"X-Client": "alice"})) as response:
                session = response.headers["Mcp-Session-Id"]
            note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            for name, status in (("bob", 404), ("alice", 202)):
                headers = {**legacy_hello()["headers"], "X-Client": name, "Mcp-Session-Id": session}
                async with http.post(url, json=note, headers=headers) as response:
                    assert (name, response.status) == (name, status)

    run(story())


@pytest.mark.parametrize("key", [{"id": 2}, {}], ids=["request", "notification"])
@pytest.mark.parametrize("begun", [False, True], ids=["before-it-is-read", "before-it-is-taken"])
def test_a_message_that_arrives_while_its_session_ends_is_dropped_and_counted(
    key: dict[str, int], begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "method": "ping" if key else "notifications/x", **key}).encode()
    named = {**legacy_hello()["headers"], "Content-Type": "application/json", "Mcp-Session-Id": "s1"}
    headers = [(name.lower().encode(), value.encode()) for name, value in named.items()]
    scope: Any = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}

    async def story() -> None:
        transport, sent, answered = Transport("s1"), list[Any](), asyncio.Event()
        bodies = [body]

        async def receive() -> Any:
            if not bodies:
                await asyncio.Event().wait()
            if not begun:
                await transport.terminate()
            return {"type": "http.request", "body": bodies.pop()}

        async def send(message: Any) -> None:
            sent.append(message)
            answered.set()

        dropped = METRICS.events_dropped.series(("messages of an ended MCP session",))
        before = dropped.value
        async with transport.connect():  # and nobody reads
            posting = asyncio.create_task(transport.handle_request(scope, receive, send))
            await answered.wait()
            if begun:
                await transport.terminate()
            await posting
        assert sent[0]["status"] == ((200 if key else 202) if begun else 404)
        assert sent[-1]["type"] == "http.response.body"
        assert not sent[-1].get("more_body")
        assert dropped.value == before + 1

    with caplog.at_level("ERROR"):
        run(story())
    assert not caplog.records


def test_a_body_beyond_the_limit_is_refused() -> None:
    async def story() -> None:
        async with served(MCPDoor(Toys(), DoorOptions(max_body=2000))) as url:
            status, _ = await post(url, modern_call("echo", {"text": "x" * 3000}))
            assert status == 413

    run(story())


def test_a_door_that_is_not_running_says_so_and_can_run_again() -> None:
    async def story() -> None:
        door = MCPDoor(Toys())
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        await door.asgi()({"type": "http", "method": "POST", "headers": []}, receive, send)
        assert sent[0]["status"] == 503
        for _ in range(2):
            async with served(door) as url, Client(url, mode=MODERN) as client:
                assert not (await client.call_tool("echo", {"text": "x"})).is_error

    run(story())


def test_a_modern_client_that_hangs_up_cancels_the_call() -> None:
    async def story() -> None:
        toys = Toys()
        async with served(MCPDoor(toys)) as url:
            async with aiohttp.ClientSession() as http:
                calling = asyncio.create_task(http.post(url, **modern_call("hang", {})).__aenter__())
                await asyncio.wait_for(toys.hanging.wait(), 60)
                calling.cancel()
                await asyncio.wait({calling})
            await asyncio.wait_for(toys.cleaned.wait(), 60)
            assert toys.noted == ["cleaned up"]

    run(story())


def test_text_alone_has_no_structured_content() -> None:
    assert to_tool_result(Done((Part(text="x"),)), MODERN).structured_content is None
