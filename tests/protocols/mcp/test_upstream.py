"""Programs and connections: no orphans, restarts with measure, idle ones let go, sessions lost in the middle."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from agent3.directory import Directory
from agent3.env import REAL, SeededEnv
from agent3.errors import SetupError, TargetError, Unavailable
from agent3.gateway.departures import Departures
from agent3.gateway.protocol import Protocol
from agent3.model import Agent, Capability, Route
from agent3.observe.metrics import METRICS
from agent3.protocols.mcp.client import channels
from agent3.protocols.mcp.client.channels import PendingRequest, ServerError
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.mcp.client.processes import Command, Restarts, StdioChannel, Watchdog, environment
from agent3.protocols.mcp.client.upstream import Upstream, Upstreams
from agent3.storage import Database
from tests.support.mcp_upstream import ROOT, command, eventually, notes
from tests.support.storage import using


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program wrote before it ended arrives, however slow the machine is."""
    monkeypatch.setattr("agent3.protocols.mcp.client.processes._LAST_LINES", 30.0)


ECHO = {"name": "echo", "arguments": {"text": "hi"}}


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 240)

    asyncio.run(bounded())


@asynccontextmanager
async def pool(**options: Any) -> AsyncIterator[Upstreams]:
    found = Upstreams(**options)
    try:
        yield found
    finally:
        await found.aclose()


async def echo(upstream: Upstream) -> Any:
    result = await upstream.request("tools/call", ECHO, PendingRequest)
    return result["structuredContent"]["text"]


def numbers(file: Path, word: str) -> list[int]:
    return [int(line.split()[1]) for line in notes(file) if line.startswith(f"{word} ")]


def runs(pid: int) -> bool:
    """Whether a process is there and not just waiting to be buried."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_closing_ends_a_program_and_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.protocols.mcp.client.processes._GRACE", 0.3)  # it is deaf, and would use all of it
    file = tmp_path / "notes"
    address = Command(**command(file, "--child", "--deaf")).address

    async def story() -> None:
        async with pool() as upstreams:
            assert await echo(upstreams.get(address)) == "hi"
            (pid,), (child,) = numbers(file, "pid"), numbers(file, "child")
            assert os.getpgid(pid) == pid != os.getpgid(0)
            assert runs(pid)
            assert runs(child)
        await eventually(lambda: not runs(pid) and not runs(child))

    run(story())


GATEWAY = """
import asyncio, sys
from agent3.protocols.mcp.client.upstream import Upstreams
from agent3.protocols.mcp.client.channels import PendingRequest

async def main():
    upstream = Upstreams().get(sys.argv[1])
    await upstream.request("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, PendingRequest)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_no_program_outlives_a_gateway_that_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    address = Command(**command(file, "--child", "--deaf")).address
    with subprocess.Popen([sys.executable, "-c", GATEWAY, address], stdout=subprocess.PIPE, cwd=ROOT) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"ready\n"
        pids = [*numbers(file, "pid"), *numbers(file, "child")]
        assert len(pids) == 2
        assert all(map(runs, pids))
        gateway.send_signal(signal.SIGKILL)
        gateway.wait(60)
    asyncio.run(eventually(lambda: not any(map(runs, pids))))


def test_a_program_that_nobody_uses_is_ended_and_comes_back_on_demand(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    address = Command(**command(file)).address

    async def story() -> None:
        async with pool(idle=0.3) as upstreams:
            assert await echo(upstreams.get(address)) == "hi"
            (first,) = numbers(file, "pid")
            await eventually(lambda: len(upstreams) == 0 and not runs(first))
            assert await echo(upstreams.get(address)) == "hi"
            assert len(numbers(file, "pid")) == 2

    run(story())


def test_a_program_that_works_is_not_idle(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    address = Command(**command(file)).address

    async def story() -> None:
        async with pool(idle=0.3) as upstreams:
            slow = {"name": "silent", "arguments": {"seconds": 0.8}}
            result = await upstreams.get(address).request("tools/call", slow, PendingRequest)
            assert result["content"][0]["text"] == "awake"

    run(story())


def test_a_crashed_program_is_started_again_but_not_without_end(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    address = Command(**command(file)).address

    async def crash(upstream: Upstream) -> Unavailable:
        with pytest.raises(Unavailable) as caught:
            await upstream.request("tools/call", {"name": "crash"}, PendingRequest)
        return caught.value

    async def story() -> None:
        async with pool(env=SeededEnv()) as upstreams:  # whose clock stands still: no pause passes meanwhile
            upstream = upstreams.get(address)
            first = await crash(upstream)
            assert first.sent
            assert "exit code 3" in first.message
            assert "the last words" in first.message
            second = await crash(upstream)  # a new process, at once
            assert second.sent
            third = await crash(upstream)
            assert not third.sent
            assert "keeps exiting" in third.message
            assert third.retry_after is not None
            assert len(numbers(file, "pid")) == 2

    run(story())


def test_restarts_become_slower_and_are_forgiven() -> None:
    env = SeededEnv()
    restarts = Restarts(env.monotonic)
    waits = []
    for _ in range(10):
        restarts.record_crash()
        waits.append(restarts.wait())
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == 30
    env.advance(61)
    assert restarts.wait() == 0


def test_words_on_standard_error_are_logged_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    chatter = Command(
        "sh", ("-c", "for i in $(seq 1000); do echo line $i >&2; done; head -c 100000 /dev/zero >&2; cat")
    )

    async def story() -> None:
        watchdog = Watchdog()
        channel = await StdioChannel.start(chatter, {}, watchdog)
        await eventually(lambda: any("writes a lot" in one.message for one in caplog.records))
        await channel.aclose()
        watchdog.close()

    with caplog.at_level(logging.INFO, logger="agent3.mcp.process"):
        run(story())
    said = [one.message for one in caplog.records if one.name == "agent3.mcp.process"]
    assert "sh: line 1" in said
    assert "sh: line 20" in said
    assert "sh: line 21" not in said
    assert len(said) <= 21


def test_a_program_that_falls_over_is_logged_with_its_last_words(caplog: pytest.LogCaptureFixture) -> None:
    said = "echo npm error 404 gone >&2; echo retried >&2; echo See the log. >&2"
    traceback = Command("sh", ("-c", f"for i in $(seq 100); do echo frame $i >&2; done; {said}; exit 3"))

    async def story() -> None:
        watchdog = Watchdog()
        channel = await StdioChannel.start(traceback, {}, watchdog)
        await eventually(lambda: any("exit code 3" in one.message for one in caplog.records))
        await channel.aclose()
        watchdog.close()

    with caplog.at_level(logging.INFO, logger="agent3.mcp.process"):
        run(story())
    (ended,) = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert ended == "The program 'sh' ended with exit code 3. Its last output: npm error 404 gone | See the log."
    assert len(caplog.records) <= 22


def test_a_promised_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(SetupError, match=r"WEATHER_KEY.*NOT_THERE"):
        environment(Command("weather", env={"WEATHER_KEY": "env:NOT_THERE"}), {}, {"PATH": "/bin"})


SILENT = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        hello = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {"name": "old"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": hello}), flush=True)
    elif message.get("method") == "tools/call":
        print("not a message at all", flush=True)
        result = {"structuredContent": {"text": "hi"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    elif message.get("method") == "server/discover" and len(sys.argv) > 1:
        sys.exit(1)
"""


@pytest.mark.parametrize("dies", [False, True])
def test_old_programs_that_ignore_or_hate_the_modern_question_are_reached(tmp_path: Path, dies: bool) -> None:
    script = tmp_path / "old.py"
    script.write_text(SILENT)
    address = Command(sys.executable, (str(script), *(["dies"] if dies else []))).address

    async def story() -> None:
        async with pool() as upstreams:
            assert await echo(upstreams.get(address)) == "hi"
            assert (await upstreams.get(address).session()).era == "legacy"

    run(story())


class Lossy:
    """A legacy site that says in the middle of an answer that it lost the session. Counts what it was asked."""

    def __init__(self) -> None:
        self.sessions = 0
        self.calls = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode().lower().split("\r\n")
            size = next((int(one.split(":")[1]) for one in lines if one.startswith("content-length")), 0)
            message = json.loads(await reader.readexactly(size) or b"{}")
            status, body = self.answer(message, lines[0])
            raw = json.dumps(body).encode() if body is not None else b""
            extra = b"mcp-session-id: s%d\r\n" % self.sessions if message.get("method") == "initialize" else b""
            writer.write(
                b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
                % (status, extra, len(raw))
            )
            writer.write(raw)
            await writer.drain()

    def answer(self, message: dict[str, Any], line: str) -> tuple[int, Any]:
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": message.get("id")}
        if not line.startswith("post"):
            return 405, None
        if message["method"] == "initialize":
            self.sessions += 1
            return 200, {**body, "result": {"protocolVersion": "2025-06-18", "capabilities": {}}}
        if message["method"] == "tools/call":
            self.calls += 1
            if self.calls == 1:
                return 200, {**body, "error": {"code": -32600, "message": "Session not found"}}
            return 200, {**body, "result": {"structuredContent": {"text": "hi"}}}
        return (202, None) if "id" not in message else (400, None)


@pytest.mark.parametrize("harmless", [False, True])
def test_what_may_have_run_when_the_session_was_lost_is_repeated_only_if_harmless(harmless: bool) -> None:
    async def story() -> None:
        site = Lossy()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await site.serve(reader, writer)
            except asyncio.IncompleteReadError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with pool() as upstreams:
            upstream = upstreams.get(url, None, {"registered": True})
            if harmless:
                result = await upstream.request("tools/call", ECHO, PendingRequest, harmless=True)
                assert result["structuredContent"]["text"] == "hi"
            else:
                with pytest.raises(Unavailable, match="not repeated") as caught:
                    await upstream.request("tools/call", ECHO, PendingRequest)
                assert caught.value.sent
                assert site.calls == 1
                assert await echo(upstream) == "hi"  # the next call finds a new session
            assert site.sessions == 2
        server.close()
        await server.wait_closed()

    run(story())


class Caller:
    """A legacy site that asks on the stream of no request, which takes a moment to open; unheard if nobody listens."""

    def __init__(self, hang_ups: int = 0) -> None:
        self.hang_ups = hang_ups  # so many answers find that the connection is closed
        self.streams: dict[str, web.StreamResponse] = {}
        self.asked: dict[str, asyncio.Future[Any]] = {}
        self.ended: dict[str, asyncio.Event] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/mcp", self.listen), web.post("/mcp", self.post), web.delete("/mcp", self.over)])
        return app

    async def listen(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.1)  # a slow way: a call that does not wait for it is here first
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        session = request.headers["mcp-session-id"]
        self.streams[session] = stream
        await self.ended.setdefault(session, asyncio.Event()).wait()
        return stream

    async def over(self, request: web.Request) -> web.Response:
        self.ended.setdefault(request.headers["mcp-session-id"], asyncio.Event()).set()
        return web.Response()

    async def post(self, request: web.Request) -> web.Response:
        message = await request.json()
        if "method" not in message and self.hang_ups and request.transport is not None:
            self.hang_ups -= 1
            request.transport.close()
        elif "method" not in message:
            self.asked[message["id"]].set_result(message["result"])
        if "method" not in message or "id" not in message:
            return web.Response(status=202)
        session = request.headers.get("mcp-session-id", "")
        if not session and message["method"] != "initialize":
            return web.Response(status=400)
        if message["method"] == "initialize":
            hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            return self.answer(message, hello, {"Mcp-Session-Id": f"s{id(message)}"})
        return self.answer(message, await self.ask(session))

    def answer(self, message: dict[str, Any], result: Any, headers: dict[str, str] | None = None) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    async def ask(self, session: str) -> dict[str, Any]:
        if session not in self.streams:
            return {"structuredContent": {"text": "nobody there"}}
        key = f"q{len(self.asked)}"
        answered = self.asked[key] = asyncio.get_running_loop().create_future()
        question = {"jsonrpc": "2.0", "id": key, "method": "elicitation/create", "params": {"message": "?"}}
        await self.streams[session].write(f"data: {json.dumps(question)}\n\n".encode())
        return {"structuredContent": {"text": (await answered)["content"]["text"]}}


@asynccontextmanager
async def standing(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("hang_ups", [0, 2])
def test_a_question_that_belongs_to_no_request_is_heard_by_the_first_call_too_and_its_answer_arrives(
    monkeypatch: pytest.MonkeyPatch, hang_ups: int
) -> None:
    monkeypatch.setattr("agent3.protocols.mcp.client.upstream._STREAM_WAIT", 60.0)

    async def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"action": "accept", "content": {"text": "here"}}

    async def story() -> None:
        async with standing(Caller(hang_ups).app()) as url, pool() as upstreams:
            upstream = upstreams.get(url, None, {"registered": True})
            result = await upstream.request("tools/call", ECHO, lambda: PendingRequest(on_request=answer))
            assert result["structuredContent"]["text"] == "here"

    run(story())


@pytest.mark.parametrize("named", [True, False])
def test_a_version_that_is_refused_and_named_is_offered_once_more(named: bool) -> None:
    methods: list[str] = []

    async def post(request: web.Request) -> web.Response:
        message = await request.json()
        methods.append(message["method"])
        head = {"jsonrpc": "2.0", "id": message["id"]}
        if len(methods) == 1:
            data = {"supported": ["2026-07-28" if named else "2099-01-01"]}
            return web.json_response({**head, "error": {"code": -32022, "message": "no", "data": data}}, status=400)
        hello = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
        return web.json_response({**head, "result": hello if methods[-1] == "server/discover" else {}})

    async def story() -> None:
        app = web.Application()
        app.add_routes([web.post("/mcp", post)])
        async with standing(app) as url, pool() as upstreams:
            upstream = upstreams.get(url, None, {"registered": True})
            if named:
                await upstream.request("tools/list", {}, PendingRequest)
                assert methods == ["server/discover", "server/discover", "tools/list"]
            else:
                with pytest.raises(TargetError, match="is not an MCP server"):
                    await upstream.session()
                assert methods == ["server/discover"]

    run(story())


def test_errors_of_the_server_come_as_it_said_them(tmp_path: Path) -> None:
    address = Command(**command(tmp_path / "notes")).address

    async def story() -> None:
        async with pool() as upstreams:
            with pytest.raises(ServerError) as caught:
                await upstreams.get(address).request("no/such/method", {}, PendingRequest)
            assert caught.value.code == -32601

    run(story())


def test_a_server_that_is_added_again_is_not_closed_while_it_is_asked(tmp_path: Path) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def post(request: web.Request) -> web.Response:
        message = await request.json()
        result: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        if message["method"] == "tools/list":
            asked.set()
            await go.wait()
            result = {"tools": []}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def story(database: Database) -> None:
        app = web.Application()
        app.add_routes([web.post("/mcp", post)])
        directory, connector = Directory(database, REAL), MCPConnector()
        departures = Departures(directory, {"mcp": cast("Protocol", connector)})
        async with asyncio.timeout(60), standing(app) as url:
            await directory.add(
                Agent(id="a", name="A", capabilities=(Capability(name="x", routes=(Route("mcp", url),)),))
            )
            await directory.version()
            asking = asyncio.create_task(connector.describe(url, registered=True))
            await asked.wait()
            await directory.remove("a")
            await departures.look()
            go.set()
            assert (await asking).card["protocol"] == "mcp"
            assert connector.connected() == {url}
            await departures.look()  # nobody added it after all
            assert not connector.connected()
            await connector.aclose()

    using(f"sqlite:///{tmp_path}/a.db", story)


def test_a_flood_of_one_server_leaves_turns_to_others_and_what_it_asks_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "_MOST_ASKED", 20)
    monkeypatch.setattr(channels, "_HELD_BACK", 0.0)
    note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
    question = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {"message": "?"}}
    news = {"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": {"elicitationId": "e1"}}
    heard: list[tuple[str, dict[str, Any]]] = []

    async def post(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": hello}
        if message["method"] == "server/discover":
            return web.Response(status=404)
        if message["method"] != "tools/call":
            return web.json_response(answer)
        frames = [*[note] * 2_000, *[question] * 30, news, answer]
        body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)
        return web.Response(text=body, content_type="text/event-stream")

    async def story() -> None:
        turn, in_turn = 0, Counter[int]()

        async def others() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async def never(method: str, params: dict[str, Any]) -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        def hear(method: str, params: dict[str, Any]) -> None:
            in_turn[turn] += 1

        app = web.Application()
        app.add_routes([web.post("/mcp", post)])
        dropped = METRICS.events_dropped.series(("requests of an MCP server",)).value
        async with standing(app) as url, pool() as upstreams:
            upstreams.on_note = lambda address, method, params, caller: heard.append((method, params))
            upstream = upstreams.get(url, None, {"registered": True})
            await upstream.session()
            busy = asyncio.create_task(others())
            await upstream.request("tools/call", ECHO, lambda: PendingRequest(hear, never))
            busy.cancel()
        assert heard == [(news["method"], news["params"])], "what is said with a call and is not of it"
        assert in_turn.total() == 2_001
        assert max(in_turn.values()) <= 64
        assert METRICS.events_dropped.series(("requests of an MCP server",)).value - dropped == 10

    run(story())
