"""An MCPServer for other programs: on its own port, mounted, over stdio, with the official client in both eras."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as wire
import pytest
import uvicorn
from mcp.client.client import Client
from mcp.client.session import MessageHandlerFnT
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from agent3 import MCPRateLimiter, MCPSecurityManager, MCPServer, ToolDefinition, ToolParameter
from agent3.calls.steps.cache import CACHED
from agent3.definitions import ToolDeprecation
from agent3.env import REAL
from agent3.errors import SetupError
from agent3.model import Artifact, Part, Principal
from agent3.protocols.mcp.door.handlers import RequestHandlers
from agent3.protocols.mcp.library.server import DEPRECATED, TRACE
from tests.support.mcp_serving import MODERN, modern_request

ERAS = [MODERN, "legacy"]
every_era = pytest.mark.parametrize("era", ERAS)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100_000)
KEY = "an api key of thirty-two bytes, or more"


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 240))


@pytest.fixture
def server() -> Iterator[MCPServer]:
    server = MCPServer(name="travel", description="Ask me for trips.", version="7")

    @server.tool(read_only=True)
    async def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @server.tool
    def shout(text: str) -> str:
        """Say it loud."""
        return text.upper()

    yield server
    server.close()


@asynccontextmanager
async def around(app: ASGIApp) -> AsyncIterator[str]:
    """Some app behind a real server in this loop."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    web = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="on", timeout_graceful_shutdown=2))
    serving = asyncio.create_task(web.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        web.should_exit = True
        await asyncio.wait_for(serving, 60)
        listener.close()


async def use(url: str, era: str) -> None:
    async with Client(url, mode=era) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "shout"]
        for _ in range(2):
            result = await client.call_tool("add", {"a": 2})
            assert result.structured_content == (3 if era == MODERN else {"result": 3})
        assert isinstance((await client.call_tool("shout", {"text": "hi"})).content[0], wire.TextContent)
        wrong = await client.call_tool("add", {"a": "two"})
        assert wrong.is_error
        assert "'a'" in str(wrong.content)
        with pytest.raises(MCPError, match="Unknown tool: ad"):
            await client.call_tool("ad", {})


@every_era
def test_what_is_called_over_the_wire_is_recorded_with_its_door(server: MCPServer, era: str) -> None:
    server.call_tool("shout", {"text": "hi"})
    with server.listening() as url:
        run(use(url, era))

    async def doors() -> list[tuple[str, str, str]]:
        house = await server._core.call_core()
        await house.ledger.flush()
        sql = "SELECT capability, status, door FROM calls WHERE agent = ? ORDER BY at"
        rows = await house.database.all(sql, server._agent.id)
        return [(row["capability"], row["status"], row["door"]) for row in rows]

    found = server._core.run(doors())
    assert found[0] == ("shout", "done", "library")
    assert {door for _, _, door in found[1:]} == {"mcp"}
    assert ("ad", "refused", "mcp") in found


# Where it is served


@every_era
def test_it_listens_on_a_port_of_its_own(server: MCPServer, era: str) -> None:
    with server.listening() as url:
        run(use(url, era))
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])), 5):
        pass


@every_era
def test_it_is_an_app_for_any_asgi_server(server: MCPServer, era: str) -> None:
    async def story() -> None:
        async with around(server.asgi()) as base:
            await use(f"{base}/mcp", era)
            async with aiohttp.ClientSession() as http, http.get(f"{base}/elsewhere") as answer:
                assert (answer.status, "/mcp" in await answer.text()) == (404, True)

    run(story())


MOUNTS: dict[str, tuple[str, Callable[[MCPServer], ASGIApp]]] = {
    "mounted": ("/tools/mcp", lambda server: Starlette(routes=[Mount("/tools", app=server.asgi())])),
    "a route": ("/agents", lambda server: Starlette(routes=[Route("/agents", server.asgi("/agents"))])),
    "mounted at its own path": ("/mcp/", lambda server: Starlette(routes=[Mount("/mcp", app=server.asgi("/"))])),
}


@pytest.mark.parametrize("how", MOUNTS)
@every_era
def test_it_is_mounted_without_a_lifespan_of_its_own(server: MCPServer, era: str, how: str) -> None:
    path, make = MOUNTS[how]

    async def story() -> None:
        app = make(server)
        for _ in range(2):  # one app may be served again
            async with around(app) as base:
                await use(base + path, era)

    run(story())


def test_one_app_is_served_in_two_loops_at_once_and_after_each_other(server: MCPServer) -> None:
    app = server.asgi()
    both = threading.Barrier(2)

    async def story() -> None:
        async with around(app) as base:
            await asyncio.to_thread(both.wait, 30)
            await use(f"{base}/mcp", MODERN)

    other = threading.Thread(target=lambda: run(story()))
    other.start()
    run(story())
    other.join(30)
    assert not other.is_alive()
    assert len(app._doors) <= 1


def test_an_app_around_may_end_it_in_good_order(server: MCPServer) -> None:
    endpoint = server.asgi()

    async def story() -> None:
        app = Starlette(routes=[Mount("/tools", app=endpoint)], lifespan=endpoint.lifespan)
        async with around(app) as base:
            await use(f"{base}/tools/mcp", MODERN)
            assert endpoint._doors
        assert not endpoint._doors

    run(story())


SCRIPT = """
import asyncio, sys
from agent3 import MCPServer

server = MCPServer(name="script")

@server.tool
def add(a: int, b: int = 1) -> int:
    "Add two numbers."
    print("words of a tool must not disturb the protocol")
    return a + b

@server.tool
def shout(text: str) -> str:
    "Say it loud."
    return text.upper()

@server.tool
def grow() -> None:
    "Have one more tool."
    server.register_tool(__import__("agent3").ToolDefinition(name="new"), lambda: "new")

if sys.argv[1:] == ["async"]:
    asyncio.run(server.run_async("stdio"))
else:
    server.run(*sys.argv[1:2], port=0)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT, "utf-8")
    return file


@pytest.mark.parametrize("how", ["stdio", "async"])
@every_era
def test_it_is_served_over_stdio(script: Path, era: str, how: str) -> None:
    news: asyncio.Queue[str] = asyncio.Queue()

    async def story() -> None:
        parameters = StdioServerParameters(command=sys.executable, args=[str(script), how])
        async with Client(parameters, mode=era, message_handler=hearing(news)) as client:
            assert (await client.call_tool("add", {"a": 2})).content
            if era == "legacy":
                await client.call_tool("grow", {})
                assert await asyncio.wait_for(news.get(), 60) == "notifications/tools/list_changed"
            assert not (await client.call_tool("shout", {"text": "hi"})).is_error

    run(story())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_program_serves_until_it_is_told_to_stop(script: Path, name: str) -> None:
    with subprocess.Popen([sys.executable, str(script), "http"], stderr=subprocess.PIPE, text=True) as process:
        bound = threading.Timer(240, process.kill)
        bound.start()
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("script serves at http://127.0.0.1:")

            async def story() -> None:
                async with Client(line.split()[-1], mode=MODERN) as client:
                    assert (await client.call_tool("add", {"a": 2})).structured_content == 3

            run(story())
            os.kill(process.pid, getattr(signal, name))
            assert process.wait(120) == 0
            # On a busy machine it may say that the call took longer than its target, and nothing else.
            left = process.stderr.read().splitlines()
            assert [told for told in left if not re.fullmatch(r"invoke_tool_simple took .*", told)] == []
        finally:
            bound.cancel()
            process.kill()


def test_it_serves_from_a_coroutine_until_that_is_cancelled(
    server: MCPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        serving = asyncio.create_task(server.run_async(port=0))
        while not (said := capsys.readouterr().err):
            await asyncio.sleep(0.01)
        await use(said.split()[-1], MODERN)
        serving.cancel()
        await asyncio.wait([serving])
        assert serving.cancelled()

    run(story())


# Who may come in


def test_a_door_to_other_machines_needs_somebody_who_says_who_calls(server: MCPServer) -> None:
    with pytest.raises(SetupError, match="callers are not identified"):
        server.listening("0.0.0.0")

    def by_token(scope: Any) -> Principal:
        return Principal(dict(scope["headers"])[b"x-token"].decode())

    async def story(url: str) -> None:
        token: dict[str, Any] = {"X-Token": "desk"}
        asked = modern_request("tools/call", {"name": "add", "arguments": {"a": 1}}, **token)
        async with aiohttp.ClientSession() as http, http.post(url, **asked) as answer:
            assert answer.status == 200

    with server.listening("0.0.0.0", principal=by_token) as url:
        run(story(url.replace("0.0.0.0", "127.0.0.1")))


def test_a_taken_port_is_one_clear_sentence(server: MCPServer) -> None:
    with server.listening() as url:
        port = int(url.split(":")[2].split("/")[0])
        with pytest.raises(SetupError, match=f"Cannot listen on 127.0.0.1:{port}"), server.listening(port=port):
            pass


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("192.0.2.7", {}, 401),
        ("", {}, 401),
        ("127.0.0.1", {"host": "evil.example"}, 421),
        ("127.0.0.1", {"origin": "https://evil.example"}, 403),
        ("127.0.0.1", {"x-forwarded-for": "192.0.2.7"}, 401),
        ("127.0.0.1", {"forwarded": "for=192.0.2.7"}, 401),
        ("127.0.0.1", {"via": "1.1 proxy"}, 401),
    ],
)
def test_without_security_only_this_machine_is_served(
    server: MCPServer, peer: str, headers: dict[str, str], status: int
) -> None:
    assert run_request(server.asgi(), peer, headers) == status


def run_request(app: ASGIApp, peer: str, more: dict[str, str]) -> int:
    """One tools/list straight into the app, with a peer of our choice; the status of its answer."""
    asked = modern_request("tools/list", {})
    body = wire.jsonrpc_message_adapter.validate_python(asked["json"]).model_dump_json(by_alias=True, exclude_none=True)
    named = {"host": "localhost", "content-type": "application/json", **asked["headers"], **more}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "client": (peer, 5) if peer else None,
        "headers": [(key.lower().encode(), value.encode()) for key, value in named.items()],
    }
    said: list[Any] = []

    async def story() -> None:
        told = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if told.is_set():
                await asyncio.Event().wait()
            told.set()
            return {"type": "http.request", "body": body.encode(), "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        await app(scope, receive, send)

    run(story())
    status: int = said[0]["status"]
    return status


@every_era
@pytest.mark.requirement("RF-013-04")
def test_clients_prove_who_they_are_and_have_their_own_tools(era: str) -> None:
    security = MCPSecurityManager(KEY, {"desk": ["add"], "chief": ["*"]})
    server = MCPServer(name="guarded", security=security)
    server.register_tool(ToolDefinition(name="add"), lambda: "added")
    server.register_tool(ToolDefinition(name="addresses"), lambda: "secret")

    def signed(client: str) -> dict[str, str]:
        now = str(int(REAL.now()))
        signature = hmac.new(KEY.encode(), f"{client}:{now}".encode(), hashlib.sha256).hexdigest()
        return {"X-Client-Id": client, "X-Timestamp": now, "X-Signature": signature}

    async def story(url: str) -> None:
        async with as_client(url, era, signed("desk")) as desk:
            assert [tool.name for tool in (await desk.list_tools()).tools] == ["add"]
            assert text(await desk.call_tool("add", {})) == "added"
            for hidden in ("addresses", "addresses@1", "adresse"):
                with pytest.raises(MCPError, match="Unknown tool") as refusal:
                    await desk.call_tool(hidden, {})
                assert "addresses" not in str(refusal.value.error.data)
        async with as_client(url, era, signed("chief")) as chief:
            assert len((await chief.list_tools()).tools) == 2
            assert text(await chief.call_tool("addresses", {})) == "secret"
        async with aiohttp.ClientSession() as http:
            wrong: list[dict[str, Any]] = [{}, {**signed("desk"), "X-Client-Id": "chief"}]
            for headers in wrong:
                async with http.post(url, **modern_request("tools/list", {}, **headers)) as answer:
                    assert answer.status == 401

    try:
        with server.listening() as url:
            run(story(url))
    finally:
        server.close()


@asynccontextmanager
async def as_client(url: str, era: str, headers: dict[str, str]) -> AsyncIterator[Client]:
    async with (
        create_mcp_http_client(headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=era) as client,
    ):
        yield client


def text(result: wire.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, wire.TextContent))


def test_a_client_that_comes_too_often_hears_when_to_come_back() -> None:
    server = MCPServer(name="counted", rate_limiter=MCPRateLimiter(3))
    server.register_tool(ToolDefinition(name="ping"), lambda: "pong")

    async def story(url: str) -> None:
        async with Client(url, mode=MODERN) as client:
            results = [await client.call_tool("ping", {}) for _ in range(4)]
            assert [one.is_error for one in results] == [False, False, False, True]
            assert results[3].structured_content is not None
            assert results[3].structured_content["code"] == "rate_limited"
            assert 50 < results[3].structured_content["retry_after"] <= 60

    try:
        with server.listening() as url:
            run(story(url))
    finally:
        server.close()


# What clients see


def hearing(news: asyncio.Queue[str]) -> MessageHandlerFnT:
    async def hear(message: Any) -> None:
        method = getattr(message, "method", None) or getattr(getattr(message, "root", None), "method", None)
        if method:
            news.put_nowait(method)

    return hear


@pytest.mark.requirement("RF-013-16")
def test_a_legacy_session_hears_of_tools_that_come_and_go(server: MCPServer) -> None:
    news: asyncio.Queue[str] = asyncio.Queue()

    async def story(url: str) -> None:
        async with Client(url, mode="legacy", message_handler=hearing(news)) as client:
            while news.empty():  # what is told before the client's stream stands is lost
                server.register_tool(ToolDefinition(name="probe"), lambda: "here")
                server.unregister("probe")
                await asyncio.sleep(0.1)
            for change, left in (
                (lambda: server.register_tool(ToolDefinition(name="new"), lambda: "here"), ["add", "new", "shout"]),
                (lambda: server.unregister("new"), ["add", "shout"]),
            ):
                threading.Thread(target=change).start()
                names: list[str] = []
                while names != left:
                    assert await asyncio.wait_for(news.get(), 60) == "notifications/tools/list_changed"
                    names = [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]

    with server.listening() as url:
        run(story(url))


@pytest.mark.requirement("RF-013-16")
@pytest.mark.parametrize("mounted", [False, True])
def test_a_modern_stream_hears_of_tools_that_come_and_go(server: MCPServer, mounted: bool) -> None:
    async def story(url: str) -> None:
        async with Client(url, mode=MODERN) as client, client.listen(tools_list_changed=True) as stream:
            server.register_tool(ToolDefinition(name="new"), lambda: "here")
            async with asyncio.timeout(60):
                event = await anext(aiter(stream))
            assert "Tools" in type(event).__name__
            names = [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]
            assert names == ["add", "new", "shout"]
            assert text(await client.call_tool("new", {})) == "here"

    async def inside() -> None:
        async with around(Starlette(routes=[Mount("/tools", app=server.asgi())])) as base:
            await story(f"{base}/tools/mcp")

    if mounted:
        run(inside())
        return
    with server.listening() as url:
        run(story(url))


@every_era
@pytest.mark.requirement("RF-013-13")
def test_results_come_as_text_images_links_and_large_ones_as_resources(server: MCPServer, era: str) -> None:
    link = Part(url="https://example.com/report", name="report", media_type="text/html")
    server.register_tool(ToolDefinition(name="several"), lambda: ("See:", PNG, link, Artifact("a", parts=(link,))))
    server.register_tool(ToolDefinition(name="large"), lambda: "y" * 100_000)
    server.register_tool(ToolDefinition(name="table"), lambda: {"rows": [1, 2]})

    async def story(url: str) -> None:
        async with Client(url, mode=era) as client:
            several = (await client.call_tool("several", {})).content
            kinds = [wire.TextContent, wire.ImageContent, wire.ResourceLink, wire.ResourceLink]
            assert [type(block) for block in several] == kinds
            assert isinstance(several[1], wire.ImageContent)
            assert several[1].mime_type == "image/png"
            assert len(several[1].data) > len(PNG)
            assert (await client.call_tool("table", {})).structured_content == {"rows": [1, 2]}
            large = (await client.call_tool("large", {})).content[0]
            assert isinstance(large, wire.ResourceLink)
            found = (await client.read_resource(large.uri)).contents[0]
            assert isinstance(found, wire.TextResourceContents)
            assert found.text == "y" * 100_000
            with pytest.raises(MCPError, match="does not exist for you"):
                await client.read_resource("agent3://artifacts/other")
            with pytest.raises(MCPError, match="no resource"):
                await client.read_resource("file:///etc/passwd")

    with server.listening() as url:
        run(story(url))


@every_era
@pytest.mark.requirement("RF-013-17", "RF-013-18", "RF-013-20")
def test_versions_deprecation_and_traces_are_on_the_wire(server: MCPServer, era: str) -> None:
    told = {"since": "2026-01-01", "sunset": "2999-01-01", "replacement": "add"}
    for version in ("1", "2"):
        definition = ToolDefinition(
            name="plus", description="Add.", version=version, deprecated=ToolDeprecation(**told), consequential=True
        )
        server.register_tool(definition, lambda version=version: version)
    digest = server.versions("plus")[1].digest

    async def story(url: str) -> None:
        async with Client(url, mode=era) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            plus = tools["plus"]
            assert plus.meta is not None
            assert plus.meta["io.agent3/version"] == "2"
            assert plus.meta["io.agent3/versions"] == ["2", "1"]
            assert plus.meta["io.agent3/digest"].startswith("sha256:")
            assert plus.meta[DEPRECATED] == told
            note = "Add.\n\nDeprecated since 2026-01-01, removed on 2999-01-01. Use add instead."
            assert plus.description == note
            assert plus.annotations is not None
            assert plus.annotations.destructive_hint
            assert tools["add"].annotations is not None
            assert tools["add"].annotations.read_only_hint
            for asked, version in (("plus", "2"), ("plus@1", "1"), (f"plus@{digest}", "1")):
                result = await client.call_tool(asked, {})
                assert text(result) == version
                assert result.meta is not None
                assert result.meta[DEPRECATED] == told
                assert len(result.meta[TRACE]) == 32
            changed = await client.call_tool("plus@sha256:0", {})
            assert changed.is_error
            assert "has changed since you pinned it" in text(changed)

    with server.listening() as url:
        run(story(url))


@every_era
@pytest.mark.requirement("RF-013-15")
def test_a_result_that_was_given_before_says_so_on_the_wire(server: MCPServer, era: str) -> None:
    runs = itertools.count(1)
    server.register_tool(ToolDefinition(name="rate", read_only=True, cache_ttl=60), lambda: str(next(runs)))

    async def story(url: str) -> None:
        async with Client(url, mode=era) as client:
            seen = []
            for _ in range(3):
                result = await client.call_tool("rate", {})
                seen.append((text(result), (result.meta or {}).get(CACHED, False)))
                if len(seen) == 2:
                    server.invalidate("rate")
            assert seen == [("1", False), ("1", True), ("2", False)]

    with server.listening() as url:
        run(story(url))


def test_a_retired_tool_tells_its_replacement_to_whoever_still_calls_it(server: MCPServer) -> None:
    gone = ToolDeprecation(sunset="2020-01-01", replacement="add")
    server.register_tool(ToolDefinition(name="plus", deprecated=gone), lambda: 1)

    async def story(url: str) -> None:
        async with Client(url, mode=MODERN) as client:
            assert "plus" not in [tool.name for tool in (await client.list_tools()).tools]
            result = await client.call_tool("plus", {})
            assert result.is_error
            assert "Use 'add' instead." in text(result)

    with server.listening() as url:
        run(story(url))


def test_a_tool_asks_the_person_at_the_client_and_tells_how_far_it_is(server: MCPServer) -> None:
    heard: list[float] = []

    @server.tool
    async def order(ctx: Any) -> str:
        """Order something."""
        ctx.progress(1, 2)
        return f"a {await ctx.ask('Which size?')} one"

    async def person(context: Any, params: wire.ElicitRequestParams) -> wire.ElicitResult:
        return wire.ElicitResult(action="accept", content={"answer": "large"})

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async def story() -> None:
        async with around(server.asgi()) as base:
            for era in ERAS:
                async with Client(f"{base}/mcp", mode=era, elicitation_callback=person) as client:
                    result = await client.call_tool("order", {}, progress_callback=hear)
                    assert text(result) == "a large one"

    run(story())
    assert heard == [1, 1]


@pytest.mark.parametrize("mounted", [False, True])
@pytest.mark.requirement("RF-013-09")
def test_a_client_that_leaves_cancels_its_call(server: MCPServer, mounted: bool) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    server.register_tool(ToolDefinition(name="hang", timeout=60), hang)

    async def story(url: str) -> None:
        async with aiohttp.ClientSession() as http:
            async with http.post(url, **modern_request("tools/list", {})) as answer:
                await answer.read()
            asked = modern_request("tools/call", {"name": "hang", "arguments": {}})
            call = asyncio.create_task(http.post(url, **asked).__aenter__())
            assert await asyncio.to_thread(begun.wait, 60)
            call.cancel()
            await asyncio.wait([call])
        assert await asyncio.to_thread(cancelled.wait, 60)

    async def inside() -> None:
        async with around(server.asgi()) as base:
            await story(f"{base}/mcp")

    if mounted:
        run(inside())
        return
    with server.listening() as url:
        run(story(url))


def test_thousands_of_tools_come_in_pages_that_are_made_once(
    server: MCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings: list[Any] = []
    make = RequestHandlers.list_tools

    async def list_tools(self: RequestHandlers, ctx: Any, params: Any) -> wire.ListToolsResult:
        listings.append(params)
        return await make(self, ctx, params)

    monkeypatch.setattr(RequestHandlers, "list_tools", list_tools)
    parameters = [ToolParameter(name="origin", required=True)]
    for number in range(2_000):
        server.register_tool(ToolDefinition(name=f"tool_{number:05d}", parameters=parameters), lambda origin: origin)

    async def pages(http: aiohttp.ClientSession, url: str) -> list[str]:
        names: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            async with http.post(url, **modern_request("tools/list", cursor)) as answer:
                body = await answer.json()
            names += [tool["name"] for tool in body["result"]["tools"]]
            if "nextCursor" not in body["result"]:
                return names
            cursor = {"cursor": body["result"]["nextCursor"]}

    async def story(url: str) -> None:
        # A connection for each page: one that is kept ends after five seconds of silence, which a slow machine reaches.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
            first = await pages(http, url)
            made = len(listings)
            assert made == 5
            assert len(set(first)) == 2_002
            assert await pages(http, url) == first
            assert len(listings) == made
            server.unregister("tool_00000")
            assert len(await pages(http, url)) == 2_001

    with server.listening() as url:
        run(story(url))
