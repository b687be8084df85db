"""``/agents/{id}/mcp``: one agent as an MCP server of its own, whatever era client and server speak.

What a call there promises, that of the same capability as a tool of its own at ``/mcp`` promises too.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as wire
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import FileUrl
from starlette.responses import Response

from agent3.model import Answer, Done, Needs, Outcome, Part, Principal, Question
from agent3.protocols.functions import LocalAgent
from agent3.protocols.mcp.door import agent_endpoints as agentdoor
from agent3.protocols.mcp.door.agent_endpoints import AgentEndpoints, agent_in
from agent3.protocols.mcp.door.door import DoorOptions, MCPDoor, Tool
from agent3.protocols.mcp.door.passthrough import Passthrough
from agent3.protocols.mcp.door.toolset import (
    Caller,
    Completion,
    CompletionResult,
    FilledPrompt,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
)
from agent3.protocols.mcp.protocol import MCP
from agent3.security import via
from agent3.server.apps import App
from agent3.server.build import Server, build
from agent3.settings import Calls, Rule, Settings, Storage
from agent3.settings import Client as Known
from agent3.settings import Server as Serving
from tests.support import registration as adding
from tests.support.gateway import AGENT3, Hosted, environment, hosted
from tests.support.mcp_serving import modern_request, served
from tests.support.mcp_upstream import Site
from tests.support.mcp_upstream import served as upstream

MODERN = "2026-07-28"
KEYS = {"cook": "the-key-of-the-cook", "guest": "the-key-of-the-guest"}
kitchen = LocalAgent("kitchen", description="Cooks what is asked")
BIG = b"\x89PNG" + bytes(range(256)) * 1_000


@kitchen.capability
async def cook(dish: str) -> str:
    """Cook a dish."""
    return f"Here is your {dish}"


@kitchen.capability
async def recite(dish: str) -> str:
    """Read a long recipe out."""
    return dish * 100_000


@kitchen.capability
async def burn(dish: str) -> str:
    """Burn a dish."""
    raise RuntimeError(f"The {dish} is on fire")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """A gateway with two MCP servers, one of each era, and an agent of its own."""
    folder = tmp_path_factory.mktemp("agents")
    with (
        upstream(folder / "modern") as new,
        upstream(folder / "legacy", "--legacy") as old,
        hosted(
            folder, [kitchen], Settings(calls=Calls(ledger="batched"), server=Serving(direct_tools=1_000))
        ) as running,
    ):
        for name, site in (("modern", new), ("legacy", old)):
            running.run(adding.add(running.server, site.url, name, changes="trust"))
        running.sites = {"modern": new, "legacy": old}  # type: ignore[attr-defined]
        yield running


def site(house: Hosted, name: str) -> Site:
    found: Site = house.sites[name]  # type: ignore[attr-defined]
    return found


def talk(house: Hosted, agent: str, mode: str, **options: Any) -> Client:
    return Client(f"{house.url}/agents/{agent}/mcp", mode=mode, **options)


def plain(result: Any) -> dict[str, Any]:
    """A result without what every server says of itself."""
    body: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    meta = {key: one for key, one in body.pop("_meta", {}).items() if not key.startswith("io.modelcontextprotocol/")}
    kept = {key: one for key, one in body.items() if key not in ("ttlMs", "cacheScope")}
    return {**kept, **({"_meta": meta} if meta else {})}


every_place = pytest.mark.parametrize(
    ("path", "prefix"), [("/agents/{}/mcp", ""), ("/mcp", "{}__")], ids=["agent", "gateway"]
)
"""The agent's own door with its own names, and the gateway's, where its tools stand among all."""
every_client = pytest.mark.parametrize("mode", ["auto", "legacy"])
every_server = pytest.mark.parametrize("agent", ["modern", "legacy"])


# A server is shown as itself


@every_client
@every_server
@pytest.mark.parametrize(
    ("tool", "given"), [("parts", {}), ("echo", {"text": "hi"}), ("summary", {}), ("fail", {}), ("count", {})]
)
def test_a_result_is_the_one_that_the_server_gives(
    house: Hosted, mode: str, agent: str, tool: str, given: dict[str, Any]
) -> None:
    async def story() -> None:
        direct_mode = MODERN if agent == "modern" else "legacy"
        async with Client(site(house, agent).url, mode=direct_mode) as direct:
            expected = plain(await direct.call_tool(tool, given))
        async with talk(house, agent, mode) as client:
            assert plain(await client.call_tool(tool, given)) == expected
            assert plain(await client.call_tool(tool, given)) == expected  # now by the fast lane

    run(story())


@every_client
@every_server
def test_tools_and_the_server_itself_are_told_as_they_are(house: Hosted, mode: str, agent: str) -> None:
    async def story() -> None:
        async with Client(site(house, agent).url, mode=MODERN if agent == "modern" else "legacy") as direct:
            theirs = {one.name: plain(one) for one in (await direct.list_tools()).tools}
        async with talk(house, agent, mode) as client:
            ours = {one.name: plain(one) for one in (await client.list_tools()).tools}
            assert client.instructions == "Use it for tests."
            assert client.server_info is not None
            assert (client.server_info.name, client.server_info.version) == ("Test Server", "7")
        theirs.pop("bad_header", None)  # breaks the protocol, so nobody could call it
        assert ours == theirs

    run(story())


@every_client
def test_an_error_of_the_server_is_passed_on_as_it_is(house: Hosted, mode: str) -> None:
    async def story() -> None:
        async with talk(house, "modern", mode) as client:
            with pytest.raises(MCPError) as limited:
                await client.call_tool("limited", {})
            assert (limited.value.error.code, limited.value.error.message) == (-32005, "Too many")
            assert limited.value.error.data == {"retry_after": 2.5}
            with pytest.raises(MCPError) as unknown:
                await client.call_tool("nothing", {})
            assert (unknown.value.error.code, unknown.value.error.message) == (-32602, "Unknown tool: nothing")

    run(story())


@every_client
@every_server
@every_place
def test_questions_and_progress_cross_the_eras(house: Hosted, mode: str, agent: str, path: str, prefix: str) -> None:
    asked: list[str] = []
    heard: list[tuple[float, float | None, str | None]] = []

    async def person(context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        asked.append(params.message)
        return wire.ElicitResult(action="accept", content={"size": "L"})

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async def story() -> None:
        url, name = house.url + path.format(agent), prefix.format(agent)
        async with Client(url, mode=mode, elicitation_callback=person) as client:
            answer = await client.call_tool(f"{name}ask", {})
            assert isinstance(answer.content[0], wire.TextContent)
            assert "accept {'size': 'L'}" in answer.content[0].text
            await client.call_tool(f"{name}steps", {"number": 2}, progress_callback=note)

    run(story())
    # A server of both eras is spoken to in that of the client.
    modern = agent == "modern" and mode != "legacy"
    assert asked == (["Which size?", "Which size?"] if modern else ["Which size?", "Sure?"])
    assert heard == [(1.0, 2.0, "step 1"), (2.0, 2.0, "step 2")]


@every_client
def test_a_legacy_server_reaches_the_model_and_the_folders_of_a_client_that_has_them(house: Hosted, mode: str) -> None:
    async def model(context: Any, params: wire.CreateMessageRequestParams) -> wire.CreateMessageResult:
        asked = params.messages[0].content
        assert isinstance(asked, wire.TextContent)
        assert (asked.text, params.max_tokens) == ("Who are you?", 9)
        return wire.CreateMessageResult(role="assistant", content=wire.TextContent(text="A model"), model="m1")

    async def folders(context: Any) -> wire.ListRootsResult:
        return wire.ListRootsResult(roots=[wire.Root(uri=FileUrl("file:///work"), name="work")])

    async def story() -> None:
        before = site(house, "legacy").noted().count("undeclared")
        options: dict[str, Any] = {"sampling_callback": model, "list_roots_callback": folders}
        async with talk(house, "legacy", mode, **options) as client:
            assert "'text': 'A model'" in _text(await client.call_tool("sample", {}))
            assert "file:///work" in _text(await client.call_tool("folders", {}))
        assert site(house, "legacy").noted().count("undeclared") == before
        async with talk(house, "legacy", mode) as plain_client:
            for tool in ("sample", "folders"):
                assert _text(await plain_client.call_tool(tool, {})).startswith("-32601")
        assert site(house, "legacy").noted().count("undeclared") == before + 1

    run(story())


def test_a_no_of_the_client_is_told_to_the_server_that_asked_its_model(house: Hosted) -> None:
    async def unwilling(context: Any, params: wire.CreateMessageRequestParams) -> wire.ErrorData:
        return wire.ErrorData(code=-1, message="User rejected sampling request")

    async def story() -> None:
        async with talk(house, "legacy", "legacy", sampling_callback=unwilling) as client:
            assert _text(await client.call_tool("sample", {})) == "-1 User rejected sampling request"

    run(story())


def _text(result: Any) -> str:
    assert isinstance(result.content[0], wire.TextContent)
    return result.content[0].text


def test_a_legacy_server_is_asked_for_the_log_lines_that_a_client_wants(house: Hosted) -> None:
    lines: list[Any] = []

    async def heard(params: wire.LoggingMessageNotificationParams) -> None:
        lines.append((params.level, params.logger, params.data))

    async def story() -> None:
        async with talk(house, "legacy", "legacy", logging_callback=heard) as client:
            await client.session.send_request(_level("debug"), wire.EmptyResult)
            await client.call_tool("log", {})
            await _until(lambda: len(lines) == 1)
            assert "level debug" in site(house, "legacy").noted()
            await client.session.send_request(_level("error"), wire.EmptyResult)
            await client.call_tool("log", {})
            await client.call_tool("count", {})
        assert lines == [("info", "brain", "thinking")]
        assert [one for one in site(house, "legacy").noted() if one.startswith("level")] == ["level debug"]

    run(story())


def _level(level: Any) -> wire.SetLevelRequest:
    return wire.SetLevelRequest(params=wire.SetLevelRequestParams(level=level))


@every_place
def test_a_client_that_hangs_up_cancels_the_tool_at_the_server(house: Hosted, path: str, prefix: str) -> None:
    async def story() -> None:
        before = site(house, "modern").noted()
        address, tool = house.url + path.format("modern"), f"{prefix.format('modern')}hang"
        async with aiohttp.ClientSession() as session:
            request = asyncio.ensure_future(
                session.post(address, **modern_request("tools/call", {"name": tool, "arguments": {}}))
            )
            await _until(lambda: site(house, "modern").noted().count("hanging") > before.count("hanging"))
            request.cancel()
            await _until(lambda: site(house, "modern").noted().count("cancelled") > before.count("cancelled"))

    run(story())


@every_server
def test_a_legacy_client_cancels_the_tool_at_the_server_without_a_progress_token(house: Hosted, agent: str) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}

    async def story() -> None:
        address = f"{house.url}/agents/{agent}/mcp"
        noted = site(house, agent).noted
        hanging, cancelled = noted().count("hanging"), noted().count("cancelled")
        async with aiohttp.ClientSession() as session:

            async def post(method: str, key: int | None, params: Any, **headers: str) -> aiohttp.ClientResponse:
                body = {"jsonrpc": "2.0", "method": method, "params": params, **({"id": key} if key else {})}
                async with session.post(address, json=body, headers={**accept, **headers}) as answer:
                    await answer.read()
                    return answer

            opened = await post("initialize", 1, hello)
            headers = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
            await post("notifications/initialized", None, {}, **headers)
            await post("tools/list", 2, {}, **headers)
            call = asyncio.ensure_future(post("tools/call", 7, {"name": "hang", "arguments": {}}, **headers))
            await _until(lambda: noted().count("hanging") > hanging)
            assert (await post("notifications/cancelled", None, {"requestId": 7}, **headers)).status == 202
            await _until(lambda: noted().count("cancelled") > cancelled)
            await call

    run(story())


def test_a_rest_client_and_a_command_that_are_gone_cancel_the_tool_at_the_server(house: Hosted, tmp_path: Path) -> None:
    noted = site(house, "legacy").noted

    async def story() -> None:
        hanging, cancelled = noted().count("hanging"), noted().count("cancelled")
        body = {"agentId": "legacy", "capability": "hang", "input": {}, "metadata": {"timeout": 120_000}}
        async with aiohttp.ClientSession() as session:
            request = asyncio.ensure_future(session.post(f"{house.url}/v1/call", json=body))
            await _until(lambda: noted().count("hanging") > hanging)
            request.cancel()
            await _until(lambda: noted().count("cancelled") > cancelled)
        command = await asyncio.create_subprocess_exec(
            *(AGENT3, "call", "legacy", "--capability", "hang", "--input", "{}", "--timeout", "120"),
            *("--server", house.url),
            env=environment(tmp_path),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await _until(lambda: noted().count("hanging") > hanging + 1)
        command.send_signal(signal.SIGINT)
        assert await command.wait() == 130
        await _until(lambda: noted().count("cancelled") > cancelled + 1)

    run(story())


@every_place
@pytest.mark.parametrize("progress", [False, True], ids=["fast-lane", "sdk-lane"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_a_call_that_is_given_up_cancels_the_task_that_the_server_made_of_it(
    house: Hosted, path: str, prefix: str, progress: bool, era: str
) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}

    async def story() -> None:
        address = house.url + path.format("modern")
        call: dict[str, Any] = {"name": f"{prefix.format('modern')}task", "arguments": {"endless": True}}
        before = set(site(house, "modern").noted())

        def new(word: str) -> set[str]:
            return {note.rsplit(" ", 1)[-1] for note in site(house, "modern").noted() if note.startswith(word)} - {
                note.rsplit(" ", 1)[-1] for note in before
            }

        async with aiohttp.ClientSession() as session:

            async def post(method: str, key: int | None, params: Any, **headers: str) -> aiohttp.ClientResponse:
                body = {"jsonrpc": "2.0", "method": method, "params": params, **({"id": key} if key else {})}
                async with session.post(address, json=body, headers={**accept, **headers}) as answer:
                    await answer.read()
                    return answer

            if era == "modern":
                request = modern_request("tools/call", call)
                if progress:
                    request["json"]["params"]["_meta"]["progressToken"] = 1
                calling = asyncio.ensure_future(session.post(address, **request))
                await _until(lambda: bool(new("looked at")))
                calling.cancel()
            else:
                opened = await post("initialize", 1, hello)
                headers = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
                await post("notifications/initialized", None, {}, **headers)
                await post("tools/list", 2, {}, **headers)
                # The first call teaches the gateway in which era this tool can be called.
                await post("tools/call", 3, {**call, "arguments": {}}, **headers)
                before.update(site(house, "modern").noted())
                meta = {"_meta": {"progressToken": 1}} if progress else {}
                answering = asyncio.ensure_future(post("tools/call", 7, {**call, **meta}, **headers))
                await _until(lambda: bool(new("looked at")))
                await post("notifications/cancelled", None, {"requestId": 7}, **headers)
                await answering
            await _until(lambda: new("cancelled") == new("looked at"))

    run(story())


@every_client
@every_server
def test_what_others_put_into_meta_passes_both_ways(house: Hosted, mode: str, agent: str) -> None:
    async def story() -> None:
        meta: Any = {"com.example/x": "kept"}
        async with talk(house, agent, mode) as client:
            seen = await client.call_tool("who", {}, meta=meta)
            assert seen.structured_content is not None
            assert seen.structured_content["meta"]["com.example/x"] == "kept"
            answer = await client.call_tool("parts", {}, meta=meta)
            assert (answer.meta or {})["example.com/cost"] == 2

    run(story())


@every_place
def test_a_task_of_the_server_is_a_task_of_the_gateway(house: Hosted, path: str, prefix: str) -> None:
    can: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}

    async def story() -> None:
        address, tool = house.url + path.format("modern"), f"{prefix.format('modern')}task"
        async with aiohttp.ClientSession() as session:

            async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
                async with session.post(address, **modern_request(method, params, can)) as answer:
                    body: dict[str, Any] = await answer.json()
                    result: dict[str, Any] = body["result"]
                    return result

            made = await ask("tools/call", {"name": tool, "arguments": {"asking": True}})
            assert made["resultType"] == "task"
            task = {"taskId": made["taskId"]}
            asked = await _status(lambda: ask("tasks/get", task), "input_required")
            assert asked["inputRequests"]["sure"]["params"]["message"] == "Sure?"
            said = {"sure": {"action": "accept", "content": {"size": "XL"}}}
            await ask("tasks/update", {**task, "inputResponses": said})
            done = await _status(lambda: ask("tasks/get", task), "completed")
            assert done["result"]["content"] == [{"type": "text", "text": "baked {'size': 'XL'}"}]
            ended = {"taskId": (await ask("tools/call", {"name": tool, "arguments": {"asking": True}}))["taskId"]}
            await ask("tasks/cancel", ended)
            assert (await ask("tasks/get", ended))["status"] == "cancelled"

    run(story())


@every_client
@every_server
def test_a_tool_at_the_gateway_is_the_one_at_the_door_of_its_agent(house: Hosted, mode: str, agent: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("parts", {}),
        ("echo", {"text": "hi"}),
        ("summary", {}),
        ("fail", {}),
        ("count", {}),
    ]

    async def story() -> None:
        async with talk(house, agent, mode) as own, Client(f"{house.url}/mcp", mode=mode) as gateway:
            listed = {one.name: plain(one) for one in (await gateway.list_tools()).tools}
            for tool in (await own.list_tools()).tools:
                ours, theirs = listed[f"{agent}__{tool.name}"], plain(tool)
                mark = {via.META: house.server.services.policy.gateway}  # every tool of the gateway's own door has it
                assert ours == {**theirs, "name": ours["name"], "_meta": {**theirs.get("_meta", {}), **mark}}
            for tool_name, given in calls:
                expected = plain(await own.call_tool(tool_name, given))
                for _ in range(2):
                    assert plain(await gateway.call_tool(f"{agent}__{tool_name}", given)) == expected

    run(story())


async def _status(get: Callable[[], Coroutine[Any, Any, dict[str, Any]]], wanted: str) -> dict[str, Any]:
    while (found := await get())["status"] != wanted:
        assert found["status"] == "working", found
        await asyncio.sleep(0.05)
    return found


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


@every_client
def test_a_new_tool_of_the_server_is_told_and_can_be_called(house: Hosted, mode: str) -> None:
    async def story() -> None:
        told = asyncio.Event()

        async def heard(message: Any) -> None:
            if isinstance(message, wire.ToolListChangedNotification):
                told.set()

        async with talk(house, "modern", mode, message_handler=heard) as client:
            before = {one.name for one in (await client.list_tools()).tools}

            async def grow() -> set[str]:
                await client.call_tool("grow", {})
                return {one.name for one in (await client.list_tools(cache_mode="bypass")).tools}

            if mode == "legacy":
                async with asyncio.timeout(60):
                    while not told.is_set():  # what is told before the client's stream stands is lost
                        await grow()
                        with suppress(TimeoutError):
                            await asyncio.wait_for(told.wait(), 60)
            else:
                async with client.listen(tools_list_changed=True) as news:
                    await grow()
                    async with asyncio.timeout(60):
                        await anext(aiter(news))
            after = {one.name for one in (await client.list_tools(cache_mode="bypass")).tools}
            new = max(after - before)
            assert not (await client.call_tool(new, {})).is_error

    run(story())


# Resources, prompts and completions


class Shelf:
    """An MCP server of our own with all that a server can have, and a large image."""

    def __init__(self) -> None:
        self.text = "once upon a time"

    async def tools(self, principal: Principal) -> Sequence[Tool]:
        return [Tool(name="picture"), Tool(name="sample")]

    async def call(self, name: str, arguments: dict[str, Any], caller: Caller) -> Outcome:
        return Done((Part(text="Here"), Part(raw=BIG, media_type="image/png")))

    async def answer(self, state: str, answers: dict[str, Answer], caller: Caller) -> Outcome:
        return Done()

    async def resources(self, principal: Principal) -> Sequence[Resource]:
        marks = {"audience": ["user"], "priority": 0.5}
        icon = {"src": "https://example.com/icon.png", "mimeType": "image/png"}
        return [Resource(uri="shelf://tale", name="tale", media_type="text/plain", annotations=marks, icons=(icon,))]

    async def templates(self, principal: Principal) -> Sequence[Any]:
        return []

    async def read(self, uri: str, caller: Caller) -> Done | Needs:
        return Done((Part(text=self.text, media_type="text/plain"), Part(raw=b"\x00\x01")))

    async def prompts(self, principal: Principal) -> Sequence[Prompt]:
        return [Prompt(name="retell", arguments=(PromptArgument(name="style", required=True),))]

    async def prompt(self, name: str, arguments: dict[str, str], caller: Caller) -> FilledPrompt | Needs:
        if "mood" not in caller.answers:
            return Needs(
                (Question("mood", "Which mood?", {"type": "object", "properties": {"m": {"type": "string"}}}),)
            )
        mood = caller.answers["mood"].data["m"]
        return FilledPrompt((PromptMessage("assistant", Part(text=f"{arguments['style']} and {mood}")),), "A tale")

    async def complete(self, completion: Completion, principal: Principal) -> CompletionResult:
        return CompletionResult((f"{completion.kind} {completion.value}lyric", "epic"), 17, True)


class OldDoor(MCPDoor):
    """Knows nothing of the modern era."""

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        if (b"mcp-protocol-version", MODERN.encode()) in scope["headers"]:
            await Response(status_code=400)(scope, receive, send)
        else:
            await super().serve(scope, receive, send)


@asynccontextmanager
async def shelf(folder: Path, kind: type[MCPDoor] = MCPDoor) -> AsyncIterator[tuple[Hosted, MCPDoor]]:
    """The gateway in front of such a server."""
    behind = kind(Shelf(), DoorOptions(name="shelf", about={"title": "The shelf", "websiteUrl": "https://example.com"}))
    async with served(behind) as url:
        with hosted(folder, settings=Settings(calls=Calls(ledger="batched"))) as running:
            await asyncio.to_thread(running.run, adding.add(running.server, url, "shelf"))
            yield running, behind


def test_a_stopped_server_is_asked_nothing_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with shelf(tmp_path) as (running, _), talk(running, "shelf", "auto") as client:
            ref = wire.PromptReference(name="retell")
            asks: list[Callable[[], Awaitable[Any]]] = [
                client.list_resources,
                client.list_resource_templates,
                client.list_prompts,
                lambda: client.complete(ref, {"name": "style", "value": "l"}),
                lambda: client.read_resource("shelf://tale"),
            ]
            await asks[0]()
            await asyncio.to_thread(running.run, running.server.core.parts.stops.stop("shelf", "it lies"))
            for ask in asks:
                with pytest.raises(MCPError, match="stopped by the operator: it lies"):
                    await ask()

    asyncio.run(story())


@every_client
@pytest.mark.parametrize("kind", [MCPDoor, OldDoor])
def test_resources_prompts_and_completions_are_those_of_the_server(
    tmp_path: Path, mode: str, kind: type[MCPDoor]
) -> None:
    async def person(context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        return wire.ElicitResult(action="accept", content={"m": "sad"})

    async def story() -> None:
        async with (
            shelf(tmp_path, kind) as (running, _),
            talk(running, "shelf", mode, elicitation_callback=person) as client,
        ):
            (tale,) = (await client.list_resources()).resources
            assert tale.annotations is not None
            assert (tale.annotations.priority, tale.icons is not None) == (0.5, True)
            assert (await client.list_resource_templates()).resource_templates == []
            read = await client.read_resource("shelf://tale")
            assert [plain(one) for one in read.contents] == [
                {"uri": "shelf://tale", "mimeType": "text/plain", "text": "once upon a time"},
                {"uri": "shelf://tale", "blob": "AAE="},
            ]
            (retell,) = (await client.list_prompts()).prompts
            assert [(one.name, one.required) for one in retell.arguments or ()] == [("style", True)]
            filled = await client.get_prompt("retell", {"style": "short"})
            assert plain(filled)["messages"] == [
                {"role": "assistant", "content": {"type": "text", "text": "short and sad"}}
            ]
            ref = wire.PromptReference(name="retell")
            found = (await client.complete(ref, {"name": "style", "value": "l"})).completion
            assert (found.values, found.total, found.has_more) == (["prompt llyric", "epic"], 17, True)
            assert client.server_info is not None
            assert client.server_info.title == "The shelf"
            rows = await asyncio.to_thread(running.rows, "calls")
            recorded = {(row["capability"], row["door"], row["agent"]) for row in rows}
            assert recorded >= {("resources/read", "mcp", "shelf"), ("prompts/get", "mcp", "shelf")}

    run(story())


@every_client
def test_a_large_image_comes_whole(tmp_path: Path, mode: str) -> None:
    async def story() -> None:
        async with shelf(tmp_path) as (running, _), talk(running, "shelf", mode) as client:
            result = await client.call_tool("picture", {})
            (_, image) = result.content
            assert isinstance(image, wire.ImageContent)
            assert len(image.data) == len(BIG) * 4 // 3 + 4 - (len(BIG) * 4 // 3) % 4
            assert image.mime_type == "image/png"

    run(story())


@pytest.mark.parametrize("kind", [MCPDoor, OldDoor])
def test_a_change_of_a_resource_or_a_prompt_is_passed_on(tmp_path: Path, kind: type[MCPDoor]) -> None:
    async def story() -> None:
        async with (
            shelf(tmp_path, kind) as (running, behind),
            talk(running, "shelf", "auto") as client,
            client.listen(resource_subscriptions=["shelf://tale"], prompts_list_changed=True) as news,
        ):
            behind.notify_change("resources", "shelf://tale")
            async with asyncio.timeout(60):
                assert "shelf://tale" in repr(await anext(aiter(news)))
            behind.notify_change("prompts")
            async with asyncio.timeout(60):
                assert "Prompts" in repr(await anext(aiter(news)))

    run(story())


@pytest.mark.filterwarnings("ignore:resources.(un)?subscribe is removed")
@pytest.mark.parametrize("ending", ["stream", "unsubscribe", "session"])
def test_who_stops_listening_takes_no_room_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    kept: list[tuple[str, str]] = []
    watch, unwatch = Passthrough.watch, Passthrough.unwatch

    async def watched(self: Passthrough, uri: str, client: str, **options: Any) -> None:
        await watch(self, uri, client, **options)
        kept.append((uri, client))

    def left(self: Passthrough, uri: str, client: str) -> None:
        kept.remove((uri, client))
        unwatch(self, uri, client)

    monkeypatch.setattr(Passthrough, "watch", watched)
    monkeypatch.setattr(Passthrough, "unwatch", left)

    async def story() -> None:
        async with shelf(tmp_path) as (running, _):
            async with talk(running, "shelf", "auto" if ending == "stream" else "legacy") as client:
                if ending == "stream":
                    async with client.listen(resource_subscriptions=["shelf://tale"]):
                        assert kept == [("shelf://tale", "local")]
                else:
                    await client.subscribe_resource("shelf://tale")
                    await client.subscribe_resource("shelf://tale")
                    assert kept == [("shelf://tale", "local")]
                if ending == "unsubscribe":
                    await client.unsubscribe_resource("shelf://tale")
                if ending != "session":
                    await _until(lambda: not kept)
            await _until(lambda: not kept)

    run(story())


# Any other agent


@every_client
def test_an_agent_of_any_kind_has_its_capabilities_as_tools(house: Hosted, mode: str) -> None:
    async def story() -> None:
        async with talk(house, "kitchen", mode) as client:
            assert {one.name for one in (await client.list_tools()).tools} == {"cook", "burn", "recite"}
            assert client.instructions == "Cooks what is asked"
            for _ in range(2):
                done = await client.call_tool("cook", {"dish": "soup"})
                assert done.content == [wire.TextContent(text="Here is your soup")]
            wrong = await client.call_tool("cook", {"dish": 3})
            assert wrong.is_error
            assert wrong.structured_content is not None
            assert wrong.structured_content["code"] == "invalid_input"
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool("cok", {})

    run(story())
    rows = [row for row in house.rows("calls") if row["agent"] == "kitchen"]
    assert {row["door"] for row in rows} == {"mcp"}
    assert {row["capability"] for row in rows} == {"cook", "cok"}


@every_client
def test_a_large_result_is_read_on_the_same_connection(house: Hosted, mode: str) -> None:
    async def story() -> None:
        async with talk(house, "kitchen", mode) as client:
            (link,) = (await client.call_tool("recite", {"dish": "ab"})).content
            assert isinstance(link, wire.ResourceLink)
            (content,) = (await client.read_resource(link.uri)).contents
            assert isinstance(content, wire.TextResourceContents)
            assert content.text == "ab" * 100_000
            assert (await client.list_resources()).resources == []
            with pytest.raises(MCPError, match="does not exist"):
                await client.read_resource("file:///etc/passwd")

    run(story())


def test_a_large_result_of_a_tool_that_promises_data_is_its_structured_content(tmp_path: Path) -> None:
    pantry = App("pantry")

    @pantry.capability
    def stock(count: int) -> dict[str, str]:
        """What is in stock."""
        return {"flour": "x" * count}

    async def story() -> None:
        with hosted(tmp_path, [pantry]) as running:
            async with talk(running, "pantry", "auto") as client:
                (tool,) = (await client.list_tools()).tools
                assert tool.output_schema
                assert (await client.call_tool("stock", {"count": 100_000})).structured_content == stock(100_000)

    run(story())


def test_a_request_that_is_too_large_is_refused_in_the_words_of_the_protocol(house: Hosted) -> None:
    request = modern_request("tools/call", {"name": "cook", "arguments": {"dish": "x" * (1 << 20)}})["json"]
    answer = house.post("/agents/kitchen/mcp", request, content_type="application/json")
    assert (answer.status, answer.json["jsonrpc"]) == (413, "2.0")
    assert "at most 1048576 bytes" in answer.json["error"]["message"]


# Who gets in


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    digests = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    settings = Settings(
        clients=tuple(Known(name, f"sha256:{digest}") for name, digest in digests.items()),
        rules=(Rule("deny", principal="guest"), Rule("deny", capability="burn"), Rule("allow")),
    )
    with hosted(tmp_path_factory.mktemp("guarded"), [kitchen], settings) as running:
        yield running


def _listed(door: Hosted, agent: str, key: str | None, **headers: str) -> Any:
    asked = modern_request("tools/list", {})
    named = {name.replace("-", "_").lower(): value for name, value in asked["headers"].items()}
    mine = {"authorization": f"Bearer {key}"} if key else {}
    return door.post(f"/agents/{agent}/mcp", asked["json"], content_type="application/json", **named, **mine, **headers)


def test_what_one_may_not_call_looks_like_what_is_not_there(guarded: Hosted) -> None:
    denied, absent = (_listed(guarded, name, KEYS["guest"]) for name in ("kitchen", "nowhere"))
    # The guest has no right to anything, which says nothing of what is there.
    assert denied.status == absent.status == 403
    assert denied.raw == absent.raw
    assert absent.json["error"]["data"]["code"] == "forbidden"
    assert absent.json["jsonrpc"] == "2.0"


def test_only_permitted_tools_are_listed_and_called(guarded: Hosted) -> None:
    mine = _listed(guarded, "kitchen", KEYS["cook"])
    assert [one["name"] for one in mine.json["result"]["tools"]] == ["cook", "recite"]
    refused = guarded.as_(KEYS["cook"]).post(
        "/agents/kitchen/mcp",
        modern_request("tools/call", {"name": "burn", "arguments": {"dish": "x"}})["json"],
        content_type="application/json",
        accept="application/json, text/event-stream",
        mcp_protocol_version=MODERN,
        mcp_method="tools/call",
        mcp_name="burn",
    )
    assert refused.json["error"]["message"] == "Unknown tool: burn"
    assert [row["code"] for row in guarded.rows("calls") if row["capability"] == "burn"] == ["capability_not_found"]


def test_a_large_result_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    clients = tuple(Known(name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") for name, key in KEYS.items())

    def ask(door: Hosted, key: str, method: str, named: str, **params: Any) -> Any:
        headers = {"mcp_protocol_version": MODERN, "mcp_method": method, "mcp_name": named}
        body = modern_request(method, params)["json"]
        kinds = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
        return door.as_(KEYS[key]).post("/agents/kitchen/mcp", body, **kinds, **headers).json

    with hosted(tmp_path, [kitchen], Settings(clients=clients, rules=(Rule("allow"),))) as door:
        (link,) = ask(door, "cook", "tools/call", "recite", name="recite", arguments={"dish": "a"})["result"]["content"]
        mine, theirs = (ask(door, key, "resources/read", link["uri"], uri=link["uri"]) for key in ("cook", "guest"))
        assert mine["result"]["contents"][0]["text"] == "a" * 100_000
        assert "does not exist for you" in theirs["error"]["message"]


class Echo(BaseHTTPRequestHandler):
    """An MCP server that repeats its request, credential and all, in everything that it says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - as it is called there
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = f"you sent {self.headers.get('Authorization')} to {self.path}"
        results: dict[str, dict[str, Any]] = {
            "server/discover": {
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "completions": {}},
                "serverInfo": {"name": "echo", "version": "1"},
            },
            "tools/list": {"tools": [_tool_of("pub", said), _tool_of("adm", said)]},
            "resources/list": {"resources": [{"uri": "x://pay", "name": "pay", "description": said}]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "x://{a}", "name": said}]},
            "resources/read": {
                "contents": [
                    {"uri": "x://pay", "text": said},
                    {"uri": "x://pay", "blob": base64.b64encode(said.encode()).decode()},
                ]
            },
            "prompts/list": {"prompts": [{"name": "greet", "description": said}]},
            "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]},
            "completion/complete": {"completion": {"values": [said]}},
        }
        answer: dict[str, Any] = {"error": {"code": -32000, "message": f"{said} \u202e\u0007", "data": {"why": said}}}
        if asked["method"] in results and "boom" not in json.dumps(asked["params"]):
            fixed = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            answer = {"result": {**fixed, **results[asked["method"]]}}
        body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), **answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _tool_of(name: str, said: str) -> dict[str, Any]:
    return {"name": name, "description": said, "inputSchema": {"type": "object"}}


TOKEN, IN_QUERY, IN_PATH = "s3cr3t-Value-9988", "correct-horse", "battery-staple"


@contextmanager
def echoing(folder: Path, *rules: Rule) -> Iterator[Hosted]:
    """The gateway in front of such a server, which gets a secret in its header, its path and its query."""
    digests = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in KEYS.items()}
    settings = Settings(clients=tuple(Known(name, f"sha256:{digest}") for name, digest in digests.items()), rules=rules)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        with hosted(folder, settings=settings) as running:
            address = f"http://127.0.0.1:{server.server_port}/s/${{ACME_PLACE}}/mcp?api_key=env:ACME"
            running.run(adding.add(running.server, address, "echo", "env:ACME_TOKEN"))
            yield running
    finally:
        server.shutdown()
        serving.join(10)
        server.server_close()


def _asked(door: Hosted, method: str, params: dict[str, Any], key: str = KEYS["guest"]) -> dict[str, Any]:
    request = modern_request(method, params)
    headers = {**request["headers"], "Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    body: dict[str, Any] = door.ask("POST", "/agents/echo/mcp", request["json"], **headers).json
    return body


COMPLETING = {"argument": {"name": "a", "value": ""}}
EVERYTHING: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("tools/call", {"name": "pub", "arguments": {}}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "x://pay"}),
    ("resources/read", {"uri": "x://boom"}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "greet"}),
    ("prompts/get", {"name": "boom"}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "greet"}, **COMPLETING}),
    ("completion/complete", {"ref": {"type": "ref/prompt", "name": "boom"}, **COMPLETING}),
]


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACME_TOKEN", TOKEN), ("ACME", IN_QUERY), ("ACME_PLACE", IN_PATH)):
        monkeypatch.setenv(name, value)


def test_no_secret_comes_back_from_a_server_that_repeats_its_request(tmp_path: Path, acme: None) -> None:
    """Neither to a client nor into the database, and its words are cleaned also where they are an error."""
    with echoing(tmp_path) as running:
        for method, params in EVERYTHING:
            told = json.dumps(_asked(running, method, params), ensure_ascii=False)
            assert "you sent" in told or "blob" in told, (method, told)
            for hidden in (TOKEN, IN_QUERY, IN_PATH, "\u202e", "\u0007", "\\u0007"):
                assert hidden not in told, (method, told)
        text, blob = _asked(running, "resources/read", {"uri": "x://pay"})["result"]["contents"]
        assert text["text"] == "you sent Bearer *** to /s/***/mcp?api_key=***"
        assert base64.b64decode(blob["blob"]).decode() == text["text"]
        rows = running.rows("calls")
        assert {row["capability"] for row in rows} >= {"resources/read", "prompts/get", "pub"}
        stored = str([*rows, *running.rows("agents")])
        assert not [hidden for hidden in (TOKEN, IN_QUERY, IN_PATH, "\\u202e", "\\x07") if hidden in stored]


def test_rules_decide_on_resources_and_prompts_under_the_names_of_the_ledger(tmp_path: Path, acme: None) -> None:
    rules = (Rule("allow", capability="pub"), Rule("allow", principal="cook", capability="resources/read"))
    with echoing(tmp_path, *rules) as running:
        for method, params in EVERYTHING:
            told = _asked(running, method, params)
            if method.startswith("tools/"):
                assert "you sent" in json.dumps(told)
            else:
                assert "you sent" not in json.dumps(told), told
        assert _asked(running, "resources/list", {})["result"]["resources"] == []
        assert _asked(running, "prompts/list", {})["result"]["prompts"] == []
        refused = _asked(running, "resources/read", {"uri": "x://pay"})["error"]
        assert (refused["code"], refused["data"]) == (-32602, {"uri": "x://pay"})
        assert {row["code"] for row in running.rows("calls") if row["capability"] == "resources/read"} == {"forbidden"}
        assert _asked(running, "resources/list", {}, KEYS["cook"])["result"]["resources"]
        assert "contents" in _asked(running, "resources/read", {"uri": "x://pay"}, KEYS["cook"])["result"]
        assert "error" in _asked(running, "prompts/get", {"name": "greet"}, KEYS["cook"])


def test_who_may_only_read_gets_in_and_has_no_tools(tmp_path: Path, acme: None) -> None:
    with echoing(tmp_path, Rule("allow", principal="guest", capability="resources/*")) as running:
        assert _asked(running, "tools/list", {})["result"]["tools"] == []
        assert _asked(running, "resources/list", {})["result"]["resources"]
        assert _asked(running, "tools/list", {}, KEYS["cook"])["error"]["data"]["code"] == "forbidden"


def test_a_forbidden_resource_is_not_watched_either(tmp_path: Path) -> None:
    async def story() -> None:
        async with served(MCPDoor(Shelf(), DoorOptions(name="shelf"))) as url:
            rules = (Rule("deny", capability="resources/read"), Rule("allow"))
            with hosted(tmp_path, settings=Settings(rules=rules)) as running:
                await asyncio.to_thread(running.run, adding.add(running.server, url, "shelf"))
                async with (
                    talk(running, "shelf", "auto") as client,
                    client.listen(resource_subscriptions=["shelf://tale"], prompts_list_changed=True) as news,
                ):
                    assert news.honored.resource_subscriptions in (None, [])
                    assert news.honored.prompts_list_changed

    run(story())


def endpoints(
    server: Server, who: Callable[[Any], Principal] = lambda scope: Principal("me", "local"), **bounds: Any
) -> AgentEndpoints:
    """The doors of all agents, for callers that are known by ``who``."""
    mcp = server.protocols["mcp"]
    assert isinstance(mcp, MCP)
    server.services.doorkeeper = who  # type: ignore[assignment]
    return AgentEndpoints(server.services, mcp.connector, MCPDoor(Shelf()), mcp.door, **bounds)


def test_lists_are_not_shared_by_callers_of_one_name_with_other_scopes(tmp_path: Path) -> None:
    async def story() -> None:
        rules = (Rule("deny", capability="burn", scope="careful"), Rule("allow"))
        settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'doors.db'}"), rules=rules)
        who = [Principal("me")]
        async with build(settings, [kitchen]) as server:
            doors = endpoints(server, lambda scope: who[-1])
            async with doors.running():
                for scopes in ((), ("careful",), (), ("careful",)):
                    who.append(Principal("me", scopes=frozenset(scopes)))
                    names = {one["name"] for one in (await _tools(doors, "kitchen"))["result"]["tools"]}
                    assert names == ({"cook", "recite"} if scopes else {"cook", "burn", "recite"})

    run(story())


def test_a_fault_that_nobody_foresaw_is_an_error_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fault(*arguments: Any) -> Any:
        raise RuntimeError("a fault of ours")

    async def story() -> None:
        async with shelf(tmp_path) as (running, _), talk(running, "shelf", "auto") as client:
            monkeypatch.setattr("agent3.protocols.mcp.door.passthrough.Passthrough.read", fault)
            with pytest.raises(MCPError, match="See the log of the gateway"):
                await client.read_resource("shelf://tale")

    run(story())


def test_without_a_key_or_from_a_foreign_page_nobody_gets_in(guarded: Hosted) -> None:
    for agent in ("kitchen", "nowhere"):
        assert _listed(guarded, agent, None).status == 401
        assert _listed(guarded, agent, KEYS["cook"], host="evil.example.com").status == 421
    assert _listed(guarded, "kitchen", KEYS["cook"], origin="https://evil.example.com").status == 403


# Doors come and go


def test_a_path_names_an_agent_or_none() -> None:
    assert agent_in("/agents/pizza/mcp") == "pizza"
    for other in ("/mcp", "/agents//mcp", "/agents/mcp", "/agents/a/b/mcp", "/agents/a/a2a", "/agents/a/mcp/"):
        assert agent_in(other) is None


def test_doors_are_bounded_and_close_when_their_agent_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentdoor, "_LOOK", 0.01)
    others = [LocalAgent(name) for name in ("one", "two", "three")]
    for one in others:
        one.add(cook, name="cook")

    async def story() -> None:
        settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'doors.db'}"))
        async with build(settings, others) as server:
            doors = endpoints(server, most=2)
            async with doors.running():
                for one in others:
                    assert await _get(doors, one.id) == 200
                assert len(doors) == 2
                assert await _get(doors, "four") == 404
                stored = server.directory._hosted.pop("three")  # hosted agents never leave by themselves
                await _until(lambda: len(doors) == 1)
                assert await _get(doors, "three") == 404
                server.directory.host(stored)
                assert await _get(doors, "three") == 200
            assert len(doors) == 0

    run(story())


def test_a_door_that_nobody_uses_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agentdoor, "_LOOK", 0.01)

    async def story() -> None:
        settings = Settings(storage=Storage(url=f"sqlite:///{tmp_path / 'doors.db'}"))
        async with build(settings, [kitchen]) as server:
            doors = endpoints(server, idle=0.05)
            async with doors.running():
                assert await _get(doors, "kitchen") == 200
                await _until(lambda: len(doors) == 0)
                assert await _get(doors, "kitchen") == 200

    run(story())


async def _get(doors: AgentEndpoints, agent: str) -> int:
    """The status of a tools/list, spoken to the app itself."""
    return (await _answer(doors, agent))[0]


async def _tools(doors: AgentEndpoints, agent: str) -> dict[str, Any]:
    """What it answers."""
    body: dict[str, Any] = json.loads((await _answer(doors, agent))[1])
    return body


async def _answer(doors: AgentEndpoints, agent: str) -> tuple[int, bytes]:
    asked = modern_request("tools/list", {}, Host="127.0.0.1")
    headers = [(name.lower().encode(), value.encode()) for name, value in asked["headers"].items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/agents/{agent}/mcp",
        "raw_path": b"",
        "query_string": b"",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [*headers, (b"content-type", b"application/json")],
    }
    waiting = [{"type": "http.request", "body": json.dumps(asked["json"]).encode(), "more_body": False}]
    statuses: list[int] = []
    pieces: list[bytes] = []

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        pieces.append(message.get("body", b""))

    await doors(scope, receive, send)
    return statuses[0], b"".join(pieces)
