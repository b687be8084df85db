"""What a tool set offers besides tools: resources, prompts, completion, news, tasks, streams that can be resumed."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import aiohttp
import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.client.session import MessageHandlerFnT
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from agent3 import MCPServer
from agent3.errors import NotFound
from agent3.model import Done, Needs, Outcome, Part, Principal
from agent3.protocols.mcp.door import fast_lane
from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor
from agent3.protocols.mcp.door.requests import parse_features
from agent3.protocols.mcp.door.toolset import (
    ANNOTATIONS,
    Caller,
    FilledPrompt,
    Prompt,
    Resource,
    ResourceTemplate,
    Tool,
)
from conformance.mcp_fixture import opened
from tests.support.mcp_serving import MODERN, modern_request, served
from tests.support.mcp_toy import Toys

ERAS = [MODERN, "legacy"]
both_eras = pytest.mark.parametrize("mode", ERAS)
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


@asynccontextmanager
async def fixture() -> AsyncIterator[tuple[MCPDoor, str]]:
    async with opened() as door, served(door) as url:
        yield door, url


@asynccontextmanager
async def talking(mode: str, **options: Any) -> AsyncIterator[Client]:
    async with fixture() as (_, url), Client(url, mode=mode, **options) as client:
        yield client


@both_eras
def test_resources_are_listed_and_read_as_what_they_are(mode: str) -> None:
    async def story() -> None:
        async with talking(mode) as client:
            listed = await client.list_resources()
            assert [one.uri for one in listed.resources] == sorted(one.uri for one in listed.resources)
            templates = await client.list_resource_templates()
            assert [one.uri_template for one in templates.resource_templates] == ["test://template/{id}/data"]
            words = (await client.read_resource("test://static-text")).contents[0]
            assert isinstance(words, wire.TextResourceContents)
            assert (words.uri, words.mime_type) == ("test://static-text", "text/plain")
            image = (await client.read_resource("test://static-binary")).contents[0]
            assert isinstance(image, wire.BlobResourceContents)
            filled = (await client.read_resource("test://template/7/data")).contents[0]
            assert isinstance(filled, wire.TextResourceContents)
            assert '"id": "7"' in filled.text

    run(story())


@both_eras
def test_a_resource_that_is_not_there_is_an_error_with_its_address(mode: str) -> None:
    async def story() -> None:
        async with talking(mode) as client:
            with pytest.raises(MCPError, match="Resource not found") as caught:
                await client.read_resource("test://nowhere")
            assert (caught.value.code, caught.value.data) == (-32602, {"uri": "test://nowhere"})

    run(story())


@both_eras
def test_prompts_are_filled_in_and_wrong_arguments_are_named(mode: str) -> None:
    async def story() -> None:
        async with talking(mode) as client:
            names = [one.name for one in (await client.list_prompts()).prompts]
            assert names == sorted(names)
            made = await client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
            assert made.messages[0].content == wire.TextContent(text="Prompt with arguments: arg1='a', arg2='b'")
            with pytest.raises(MCPError, match="arg2") as caught:
                await client.get_prompt("test_prompt_with_arguments", {"arg1": "a"})
            assert caught.value.code == -32602
            with pytest.raises(MCPError, match="no prompt"):
                await client.get_prompt("nonsense")

    run(story())


@both_eras
def test_a_prompt_may_ask_before_it_is_filled_in(mode: str) -> None:
    async def tell(context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        return wire.ElicitResult(action="accept", content={"context": "tea"})

    async def story() -> None:
        async with talking(mode, elicitation_callback=tell) as client:
            made = await client.get_prompt("test_input_required_result_prompt")
            assert made.messages[0].content == wire.TextContent(text="Use the following context: tea")
        async with talking(mode) as client:
            with pytest.raises(MCPError) as caught:
                await client.get_prompt("test_input_required_result_prompt")
            assert caught.value.code == wire.MISSING_REQUIRED_CLIENT_CAPABILITY
            assert "elicitation" in caught.value.data["requiredCapabilities"]

    run(story())


@both_eras
def test_arguments_are_completed(mode: str) -> None:
    async def story() -> None:
        async with talking(mode) as client:
            ref = wire.PromptReference(name="test_prompt_with_arguments")
            done = (await client.complete(ref, {"name": "arg1", "value": "par"})).completion
            assert (done.values, done.total, done.has_more) == (["paris", "park", "party"], 3, False)

    run(story())


@both_eras
def test_a_client_is_asked_for_its_model_and_its_folders(mode: str) -> None:
    async def sample(context: Any, params: wire.CreateMessageRequestParams) -> wire.CreateMessageResult:
        said = wire.TextContent(text="Paris, of course")
        return wire.CreateMessageResult(role="assistant", content=said, model="m")

    async def folders(context: Any) -> wire.ListRootsResult:
        return wire.ListRootsResult(
            roots=[wire.Root.model_validate({"uri": uri}) for uri in ("file:///a", "file:///b")]
        )

    async def story() -> None:
        async with talking(mode, sampling_callback=sample, list_roots_callback=folders) as client:
            said = await client.call_tool("test_input_required_result_sampling", {})
            assert said.content == [wire.TextContent(text="Model said: Paris, of course")]
            shown = await client.call_tool("test_input_required_result_list_roots", {})
            assert shown.content == [wire.TextContent(text="Client exposed 2 root(s).")]

    run(story())


# News


async def heard(news: asyncio.Queue[str], wanted: str, cause: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Cause something until the news of it comes: a stream that is not open yet loses what is told."""
    for _ in range(60):
        await cause()
        try:
            async with asyncio.timeout(1):
                while await news.get() != wanted:
                    continue
                return
        except TimeoutError:
            continue
    raise AssertionError(f"{wanted} never came")


def listener(news: asyncio.Queue[str]) -> MessageHandlerFnT:
    async def handle(message: Any) -> None:
        uri = getattr(getattr(message, "params", None), "uri", "")
        news.put_nowait(f"{message.method} {uri}".strip())

    return handle


def test_a_legacy_session_hears_of_lists_and_of_the_resources_it_waits_for() -> None:
    async def story() -> None:
        news: asyncio.Queue[str] = asyncio.Queue()
        async with fixture() as (door, url), Client(url, mode="legacy", message_handler=listener(news)) as client:
            assert client.server_capabilities.tools is not None
            assert client.server_capabilities.tools.list_changed
            await heard(
                news, "notifications/tools/list_changed", lambda: client.call_tool("test_trigger_tool_change", {})
            )
            subscribe = wire.SubscribeRequest(params=wire.SubscribeRequestParams(uri="test://watched-resource"))
            await client.session.send_request(subscribe, wire.EmptyResult)

            async def change() -> None:
                door.notify_change("resources", "test://static-text")
                door.notify_change("resources", "test://watched-resource")

            await heard(news, "notifications/resources/updated test://watched-resource", change)
            unsubscribe = wire.UnsubscribeRequest(params=wire.UnsubscribeRequestParams(uri="test://watched-resource"))
            await client.session.send_request(unsubscribe, wire.EmptyResult)
            while not news.empty():
                news.get_nowait()
            await change()
            await heard(
                news, "notifications/prompts/list_changed", lambda: client.call_tool("test_trigger_prompt_change", {})
            )
            assert not any("static-text" in told for told in list(news._queue))  # type: ignore[attr-defined]

    run(story())


def test_a_modern_stream_brings_what_was_asked_for_and_no_more() -> None:
    async def story() -> None:
        async with fixture() as (door, url), Client(url, mode=MODERN) as client:
            wanted = client.listen(tools_list_changed=True, resource_subscriptions=["test://watched-resource"])
            async with wanted as stream:
                door.notify_change("prompts")
                door.notify_change("resources", "test://static-text")
                door.notify_change("resources", "test://watched-resource")
                first = await asyncio.wait_for(anext(aiter(stream)), 60)
                assert getattr(first, "uri", None) == "test://watched-resource"
                await client.call_tool("test_trigger_tool_change", {})
                second = await asyncio.wait_for(anext(aiter(stream)), 60)
                assert type(second).__name__ == "ToolsListChanged"
                names = {tool.name for tool in (await client.list_tools()).tools}
                assert "test_dynamic_tool" in names

    run(story())


@both_eras
def test_news_comes_over_stdio_too(mode: str) -> None:
    async def story() -> None:
        script = StdioServerParameters(command=sys.executable, args=["-m", "conformance.mcp_fixture"])
        news: asyncio.Queue[str] = asyncio.Queue()
        async with Client(script, mode=mode, message_handler=listener(news)) as client:
            if mode == MODERN:
                async with client.listen(tools_list_changed=True) as stream:
                    await client.call_tool("test_trigger_tool_change", {})
                    await asyncio.wait_for(anext(aiter(stream)), 60)
            else:
                changed = "notifications/tools/list_changed"
                await heard(news, changed, lambda: client.call_tool("test_trigger_tool_change", {}))

    run(story())


def test_a_burst_of_changes_is_told_once_and_from_any_thread() -> None:
    async def story() -> None:
        async with (
            fixture() as (door, url),
            Client(url, mode=MODERN) as client,
            client.listen(tools_list_changed=True, prompts_list_changed=True) as stream,
        ):

            def burst() -> None:
                for _ in range(1000):
                    door.notify_change("tools")

            thread = threading.Thread(target=burst)
            thread.start()
            thread.join()  # the loop stands still meanwhile, so the burst is one however slow the machine is
            first = await asyncio.wait_for(anext(aiter(stream)), 60)
            door.notify_change("prompts")
            second = await asyncio.wait_for(anext(aiter(stream)), 60)
            assert [type(one).__name__ for one in (first, second)] == ["ToolsListChanged", "PromptsListChanged"]

    run(story())


def test_a_session_that_ended_is_not_told_any_more() -> None:
    async def story() -> None:
        async with fixture() as (door, url):
            async with Client(url, mode="legacy") as client:
                await client.list_tools()
                assert len(door.handlers.changes._sessions) == 1
            async with asyncio.timeout(60):
                while door.handlers.changes._sessions:
                    await asyncio.sleep(0.01)

    run(story())


def test_a_door_that_does_not_run_may_be_told_of_changes() -> None:
    MCPDoor(Toys()).notify_change("tools")


class Library(Toys):
    """Many books, of which a stranger has none."""

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        return [Resource(uri=f"book://{number:02}", name=f"{number}") for number in range(7)]

    async def templates(self, principal: Principal) -> Sequence[ResourceTemplate]:
        return [ResourceTemplate(uri_template=f"shelf://{number}/{{book}}", name=f"{number}") for number in range(7)]

    async def prompts(self, principal: Principal) -> Sequence[Prompt]:
        return [Prompt(name=f"p{number}") for number in range(7)]

    async def prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> FilledPrompt | Needs:
        raise RuntimeError("a word that must stay inside")

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        return Done((Part(text="x", meta={ANNOTATIONS: {"priority": 0.5}}),))

    async def watch(self, uri: str, principal: Principal) -> None:
        if uri == "book://secret":
            raise NotFound("There is no such book")


@both_eras
def test_every_list_has_pages(mode: str) -> None:
    async def story() -> None:
        async with served(MCPDoor(Library(), DoorOptions(page_size=3))) as url, Client(url, mode=mode) as client:
            for listing, field in (
                (client.list_resources, "resources"),
                (client.list_resource_templates, "resource_templates"),
                (client.list_prompts, "prompts"),
            ):
                pages: list[Any] = []
                cursor: str | None = None
                for _ in range(5):
                    page = await listing(cursor=cursor)
                    pages.append(len(getattr(page, field)))
                    cursor = page.next_cursor
                    if cursor is None:
                        break
                assert pages == [3, 3, 1]
            with pytest.raises(MCPError, match="cursor") as caught:
                await client.list_prompts(cursor="?")
            assert caught.value.code == -32602

    run(story())


def test_a_prompt_that_breaks_tells_nothing_of_the_inside() -> None:
    async def story() -> None:
        async with served(MCPDoor(Library())) as url, Client(url, mode="legacy") as client:
            with pytest.raises(MCPError) as caught:
                await client.get_prompt("p1")
            assert caught.value.code == -32603
            assert "inside" not in caught.value.message.replace("inside the gateway", "")

    run(story())


def test_nobody_hears_of_a_resource_that_is_not_theirs() -> None:
    async def story() -> None:
        books = ["book://secret", "book://01"]
        async with (
            served(MCPDoor(Library())) as url,
            Client(url, mode=MODERN) as client,
            client.listen(resource_subscriptions=books) as stream,
        ):
            assert stream.honored.resource_subscriptions == ["book://01"]

    run(story())


# Demands of a tool


@both_eras
def test_a_tool_that_needs_more_of_a_client_is_refused_before_it_runs(mode: str) -> None:
    ran: list[str] = []

    class Demanding(Toys):
        async def tools(self, principal: Principal) -> Sequence[Tool]:
            return [Tool(name="paint", requires=frozenset({"sampling", "form"}))]

        async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
            ran.append(name)
            return Done()

    async def story() -> None:
        async with served(MCPDoor(Demanding())) as url, Client(url, mode=mode) as client:
            with pytest.raises(MCPError, match="paint") as caught:
                await client.call_tool("paint", {})
            assert caught.value.code == wire.MISSING_REQUIRED_CLIENT_CAPABILITY
            assert caught.value.data == {"requiredCapabilities": {"sampling": {}, "elicitation": {"form": {}}}}
        assert ran == []

    run(story())


def test_headers_are_compared_also_before_anybody_listed_and_without_the_blanks_around_them() -> None:
    async def story() -> None:
        async with served(MCPDoor(Toys())) as url, aiohttp.ClientSession() as http:
            call = {"name": "region", "arguments": {"region": "eu"}}
            for said, status in (("us", 400), ("  eu  ", 200)):
                headers = {"Mcp-Param-Region": said, "Mcp-Name": "  region "}
                async with http.post(url, **modern_request("tools/call", call, {}, **headers)) as response:
                    assert (said, response.status) == (said, status)

    run(story())


def test_an_app_in_front_is_told_which_calls_it_may_answer_itself() -> None:
    async def story() -> None:
        async with fixture() as (door, url):
            assert not door.handlers.is_regular("greet"), "nobody knows yet what it demands"
            async with Client(url, mode="legacy") as client:
                await client.list_tools()
                assert door.handlers.is_regular("greet")
                assert not door.handlers.is_regular("test_missing_capability")
                assert not door.handlers.is_regular("test_x_mcp_header")
                assert not door.handlers.is_regular("greet", can=parse_features(TASKS))
                assert door.handlers.is_regular("greet", can=parse_features({"elicitation": {}, "sampling": {}}))
                level = wire.SetLevelRequest(params=wire.SetLevelRequestParams(level="info"))
                await client.session.send_request(level, wire.EmptyResult)
                (session,) = door.handlers._levels
                assert not door.handlers.is_regular("greet", session=session)
                door.notify_change("tools")
                assert not door.handlers.is_regular("greet")

    run(story())


def test_what_a_request_declares_is_what_its_client_can() -> None:
    assert parse_features({"elicitation": {}, "sampling": {}, "roots": {}, **TASKS}) == {
        "form",
        "sampling",
        "roots",
        "tasks",
    }
    assert parse_features({"elicitation": {"url": {}}}) == {"url"}
    assert parse_features({"elicitation": 7}) == frozenset()


# Tasks


class Wire:
    """Plain requests of a client that can follow tasks."""

    def __init__(self, http: aiohttp.ClientSession, url: str, capabilities: dict[str, Any]):
        self._http = http
        self._url = url
        self._capabilities = capabilities

    async def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        request = modern_request(method, params, self._capabilities)
        async with self._http.post(self._url, **request) as response:
            answer = await response.json()
            told: dict[str, Any] = answer.get("result") or answer["error"]
            return told

    async def until(self, task: str, *statuses: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while (told := await self("tasks/get", taskId=task))["status"] not in statuses:
                await asyncio.sleep(0.02)
            return told


@asynccontextmanager
async def following(capabilities: dict[str, Any] = TASKS) -> AsyncIterator[Wire]:
    async with fixture() as (_, url), aiohttp.ClientSession() as http:
        yield Wire(http, url, capabilities)


def test_a_call_that_goes_on_is_a_task_with_the_result_of_the_call() -> None:
    async def story() -> None:
        async with following() as say:
            made = await say("tools/call", name="slow_compute", arguments={"seconds": 0.3, "label": "it"})
            assert (made["resultType"], made["status"]) == ("task", "working")
            assert made["ttlMs"] > 0
            assert not {"result", "error", "inputRequests", "requestState", "content"} & made.keys()
            done = await say.until(made["taskId"], "completed")
            assert done["resultType"] == "complete"
            assert done["result"]["content"] == [{"type": "text", "text": "Computed it in 0.3 s"}]
            assert done["createdAt"] == made["createdAt"]

    run(story())


def test_the_same_call_waits_for_a_client_that_cannot_follow_tasks() -> None:
    async def story() -> None:
        async with following({}) as say:
            done = await say("tools/call", name="slow_compute", arguments={"seconds": 0.1, "label": "it"})
            assert done["content"] == [{"type": "text", "text": "Computed it in 0.1 s"}]
            assert (await say("tasks/get", taskId="x"))["code"] == wire.MISSING_REQUIRED_CLIENT_CAPABILITY
            needed = await say("tools/call", name="failing_job", arguments={})
            assert needed["data"]["requiredCapabilities"] == TASKS

    run(story())


def test_a_task_that_failed_says_whose_fault_it_was() -> None:
    async def story() -> None:
        async with following() as say:
            tool = await say("tools/call", name="failing_job", arguments={})
            server = await say("tools/call", name="protocol_error_job", arguments={})
            broken = await say.until(server["taskId"], "failed")
            assert broken["error"]["code"] == -32603
            assert "result" not in broken
            failed = await say.until(tool["taskId"], "completed")
            assert failed["result"]["isError"] is True

    run(story())


def test_a_task_asks_and_takes_answers_one_by_one() -> None:
    async def story() -> None:
        async with following({**TASKS, "elicitation": {}}) as say:
            task = (await say("tools/call", name="multi_input", arguments={}))["taskId"]
            asked = (await say.until(task, "input_required"))["inputRequests"]
            assert {one["method"] for one in asked.values()} == {"elicitation/create"}
            first, second = asked

            async def answer(key: str, content: Any) -> dict[str, Any]:
                return await say("tasks/update", taskId=task, inputResponses={key: content})

            assert (await answer("unknown", {"odd": 1}))["resultType"] == "complete"
            assert (await answer(first, 7))["code"] == -32602
            await answer(first, {"action": "accept", "content": {"name": "Ann"}})
            left = await say("tasks/get", taskId=task)
            assert (left["status"], list(left["inputRequests"])) == ("input_required", [second])
            await answer(second, {"action": "accept", "content": {"name": "Bob"}})
            done = await say.until(task, "completed")
            assert done["result"]["content"][0]["text"] == "Got Ann and Bob"

    run(story())


def test_a_task_is_cancelled_and_stays_so() -> None:
    async def story() -> None:
        async with following() as say:
            task = (await say("tools/call", name="slow_compute", arguments={"seconds": 30}))["taskId"]
            for _ in range(2):
                ack = await say("tasks/cancel", taskId=task)
                assert {key for key in ack if key != "_meta"} == {"resultType"}
            assert (await say("tasks/get", taskId=task))["status"] == "cancelled"
            assert (await say("tasks/cancel", taskId="nobody's"))["code"] == -32602

    run(story())


def test_questions_before_the_work_come_first_and_the_work_becomes_a_task() -> None:
    async def story() -> None:
        async with following({**TASKS, "elicitation": {}}) as say:
            call: dict[str, Any] = {"name": "test_tool_with_task", "arguments": {}}
            asked = await say("tools/call", **call)
            assert asked["resultType"] == "input_required"
            (key,) = asked["inputRequests"]
            answers = {key: {"action": "accept", "content": {"name": "Ann"}}}
            made = await say("tools/call", **call, inputResponses=answers, requestState=asked["requestState"])
            assert made["resultType"] == "task"
            done = await say.until(made["taskId"], "completed")
            assert done["result"]["content"][0]["text"] == "Hello, Ann!"

    run(story())


def test_a_task_belongs_to_who_made_it() -> None:
    async def story() -> None:
        async with opened() as door:
            who = [Principal("ann")]
            door.principal = lambda _: who[0]
            async with served(door) as url, aiohttp.ClientSession() as http:
                say = Wire(http, url, TASKS)
                task = (await say("tools/call", name="slow_compute", arguments={"seconds": 30}))["taskId"]
                who[0] = Principal("bob")
                for method in ("tasks/get", "tasks/cancel"):
                    assert (await say(method, taskId=task))["code"] == -32602
                who[0] = Principal("ann")
                assert (await say("tasks/get", taskId=task))["status"] == "working"

    run(story())


def test_older_clients_know_no_tasks() -> None:
    async def story() -> None:
        async with talking("legacy") as client:
            assert client.server_capabilities.extensions is None
            asked = wire.Request[Any, Any](method="tasks/get", params={"taskId": "x"})
            with pytest.raises(MCPError) as caught:
                await client.session.send_request(asked, wire.EmptyResult)
            assert caught.value.code == -32601

    run(story())


# Streams that are taken up again


async def frames(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    frame: dict[str, str] = {}
    async for line in response.content:
        words = line.decode().rstrip("\r\n")
        if not words and frame:
            yield frame
            frame = {}
        elif words and not words.startswith(":"):
            name, _, value = words.partition(":")
            frame[name] = value.strip()


async def hello(http: aiohttp.ClientSession, url: str, **capabilities: Any) -> dict[str, str]:
    about = {"name": "t", "version": "1"}
    info = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": about}
    accept = {"Accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}
    async with http.post(url, json=body, headers=accept) as response:
        session = response.headers["Mcp-Session-Id"]
    headers = {**accept, "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    async with http.post(url, json=note, headers=headers) as response:
        assert response.status == 202
    return headers


def test_a_lost_stream_is_taken_up_by_its_own_session_only() -> None:
    async def story() -> None:
        async with fixture() as (_, url), aiohttp.ClientSession() as http:
            mine, other = await hello(http, url), await hello(http, url)
            call = {
                "jsonrpc": "2.0",
                "id": 5,
                "method": "tools/call",
                "params": {"name": "test_reconnection", "arguments": {}},
            }
            async with http.post(url, json=call, headers=mine) as response:
                seen = [frame async for frame in frames(response)]
            assert seen[0]["retry"] == "100"
            assert not any("Reconnection test completed" in frame.get("data", "") for frame in seen)
            last = {"Last-Event-ID": seen[-1]["id"]}
            async with http.get(url, headers={**other, **last}) as foreign:
                async with http.get(url, headers={**mine, **last}) as response, asyncio.timeout(60):
                    rest = await anext(data async for frame in frames(response) if (data := frame.get("data")))
                assert "Reconnection test completed" in rest
                assert b"Reconnection test completed" not in foreign.content.read_nowait()  # which was asked first

    run(story())


def test_a_long_call_without_a_progress_token_has_a_stream_that_is_taken_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_lane, "STREAM_AFTER", 0.01)
    server, lost, runs = MCPServer(name="slow"), threading.Event(), []

    @server.tool
    def work() -> str:
        """Work until the client is gone."""
        runs.append(1)
        return "late" if lost.wait(60) else "never"

    async def story(url: str) -> None:
        async with aiohttp.ClientSession() as http:
            headers = await hello(http, url)
            listing = {"jsonrpc": "2.0", "id": 4, "method": "tools/list"}  # a tool is regular once it has been seen
            async with http.post(url, json=listing, headers=headers) as response:
                assert response.status == 200
            call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "work", "arguments": {}}}
            async with http.post(url, json=call, headers=headers) as response:
                assert response.content_type == "text/event-stream"
                first = await anext(frames(response))
                assert not first.get("data")
                response.close()
            lost.set()
            last = {"Last-Event-ID": first["id"]}
            rest = ""
            async with asyncio.timeout(60):
                while not rest:  # as clients do: the server may not have noticed yet that the first stream is lost
                    async with http.get(url, headers={**headers, **last}) as response:
                        rest = await anext((data async for one in frames(response) if (data := one.get("data"))), "")
            told = json.loads(rest)
            assert (told["id"], told["result"]["content"][0]["text"]) == (5, "late")
            assert len(runs) == 1

    with closing(server), server.listening() as url:
        run(story(url))
