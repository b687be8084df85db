"""A real MCP server on the official SDK for the tests of the client side: both eras, both transports, many tools.

Run as a script it serves ``--stdio`` or a port of its choice; ``--legacy`` knows nothing of the modern era,
``--json`` answers without streams, ``--shelf`` adds a resource whose changes only the session hears that made them.
What the tools did is written to ``--notes FILE``, one word per line, where a test
reads it also after the server was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import mcp_types as wire
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import Receive, Scope, Send

from tests.support.forks import FORKS

__all__ = ["Site", "build", "command", "eventually", "notes", "served"]

ROOT = Path(__file__).parents[2]
Context = ServerRequestContext[Any, Any]
ANY: dict[str, Any] = {"type": "object"}
TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SIZE: dict[str, Any] = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}
REGION: dict[str, Any] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "$defs": {"kept": {"type": "integer"}},
}
BAD_HEADER: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "number", "x-mcp-header": "A"}}}


def text(words: str, **more: Any) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(text=words)], **more)


def tool(name: str, schema: dict[str, Any] = ANY, **more: Any) -> wire.Tool:
    return wire.Tool(name=name, description=f"The tool {name}", input_schema=schema, **more)


class Upstream:
    """The tools, each a method. ``noted`` goes to the file of notes."""

    def __init__(self, file: Path | None, page: int = 100):
        self.file = file
        self.page = page
        self.bus = InMemorySubscriptionBus()
        self.tasks: dict[str, dict[str, Any]] = {}
        self.silent_calls = 0
        self.together = asyncio.Event()
        reading = wire.ToolAnnotations(read_only_hint=True, title="Says it back")
        self.tools = [
            tool("echo", TEXT, output_schema=TEXT, annotations=reading, title="Echo"),
            tool("region", REGION),
            tool("bad_header", BAD_HEADER),
            *(
                tool(name)
                for name in ("parts", "fail", "crash", "count", "steps", "hang", "ask", "go", "log", "who", "grow")
            ),
            *(
                tool(name)
                for name in ("task", "silent", "summary", "limited", "reconnect", "sample", "folders", "aside")
            ),
        ]

    def note(self, word: str) -> None:
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(word + "\n")

    # A shelf: what one session does there is news for that session alone

    def add_shelf(self, server: Server[Any]) -> None:
        self.tools += [tool("touch"), tool("murmur"), tool("finish")]
        self.readers: dict[str, set[str]] = {}
        server.add_request_handler("resources/list", wire.PaginatedRequestParams, self.list_resources)
        server.add_request_handler("resources/subscribe", wire.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", wire.UnsubscribeRequestParams, self.unsubscribe)

    async def finish(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        await ctx.session.send_elicit_complete("e1")
        return text("finished")

    async def list_resources(self, ctx: Context, params: Any) -> wire.ListResourcesResult:
        return wire.ListResourcesResult(resources=[wire.Resource(uri="shelf://tale", name="tale")])

    async def subscribe(self, ctx: Context, params: wire.SubscribeRequestParams) -> wire.EmptyResult:
        self.note(f"subscribe {params.uri}")
        self.readers.setdefault(_session(ctx), set()).add(params.uri)
        return wire.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: wire.UnsubscribeRequestParams) -> wire.EmptyResult:
        self.note(f"unsubscribe {params.uri}")
        self.readers[_session(ctx)].discard(params.uri)
        return wire.EmptyResult()

    async def touch(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        for uri in self.readers.get(_session(ctx), ()):
            await ctx.session.send_resource_updated(uri)
        return text("touched")

    async def murmur(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        """Logs a line once the call has ended."""

        async def say() -> None:
            await asyncio.sleep(0.1)
            said = wire.LoggingMessageNotificationParams(level="info", data=(params.arguments or {}).get("text"))
            await ctx.session.send_notification(wire.LoggingMessageNotification(params=said))

        self.murmuring = asyncio.create_task(say())
        return text("later")

    async def list(self, ctx: Context, params: wire.PaginatedRequestParams | None) -> wire.ListToolsResult:
        self.note("listed")
        start = int(params.cursor) if params is not None and params.cursor else 0
        more = str(start + self.page) if start + self.page < len(self.tools) else None
        return wire.ListToolsResult(tools=self.tools[start : start + self.page], next_cursor=more, ttl_ms=60_000)

    async def call(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        if params.name.startswith("_") or not any(one.name == params.name for one in self.tools):
            raise wire_error(-32602, f"Unknown tool: {params.name}")
        self.note(f"{params.name}")
        return await getattr(self, params.name, self.echo)(ctx, params)

    async def echo(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        said = (params.arguments or {}).get("text", "")
        return wire.CallToolResult(
            content=[wire.TextContent(text=f'{{"text":"{said}"}}')], structured_content={"text": said}
        )

    async def summary(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        return text("Sunny, as always", structured_content={"degrees": 20})

    async def region(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        header = ctx.request.headers.get("mcp-param-region") if ctx.request is not None else None
        return text(f"{header}")

    async def parts(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        link = wire.ResourceLink(name="x", uri="https://example.com/x", mime_type="text/html", size=3)
        inner = wire.TextResourceContents(uri="test://inner", mime_type="text/plain", text="inside")
        blob = wire.BlobResourceContents(uri="test://blob", mime_type="application/zip", blob="emlw")
        return wire.CallToolResult(
            content=[
                wire.TextContent(text="words"),
                wire.ImageContent(data="cG5n", mime_type="image/png"),
                wire.AudioContent(data="d2F2", mime_type="audio/wav"),
                link,
                wire.EmbeddedResource(resource=inner),
                wire.EmbeddedResource(resource=blob),
            ],
            structured_content={"n": 1},
            _meta={"example.com/cost": 2},
        )

    async def fail(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        return text("The oven is cold", is_error=True)

    async def limited(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        raise wire_error(-32005, "Too many", {"retry_after": 2.5})

    async def crash(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        sys.stderr.write("the last words\n")
        sys.stderr.flush()
        os._exit(3)

    async def count(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        return text("counted")

    async def steps(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        given = params.arguments or {}
        number, pause = int(given.get("number", 3)), float(given.get("pause", 0.0))
        for step in range(number):
            await ctx.session.report_progress(step + 1, number, f"step {step + 1}")
            await asyncio.sleep(pause)
        return text("all steps done")

    async def silent(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        """Says nothing for some seconds, or until so many calls of it run together."""
        given = params.arguments or {}
        await asyncio.sleep(float(given.get("seconds", 0)))
        if together := int(given.get("together", 0)):
            self.silent_calls += 1
            if self.silent_calls >= together:
                self.together.set()
            await self.together.wait()
        return text("awake")

    async def reconnect(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        """Closes the stream in the middle; a client that resumes it gets the answer."""
        if ctx.close_sse_stream is not None:
            await ctx.close_sse_stream()
            await asyncio.sleep(0.2)
        return text("after the gap")

    async def hang(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        try:
            self.note("hanging")
            await asyncio.Event().wait()
        finally:
            self.note("cancelled")

    async def ask(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return self._asked_modern(params)
        first = await ctx.session.elicit_form("Which size?", SIZE, related_request_id=ctx.request_id)
        second = await ctx.session.elicit_form("Sure?", SIZE, related_request_id=ctx.request_id)
        return text(f"{first.action} {first.content} {second.action} {second.content}")

    async def aside(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        """Tells how far it is, and asks, on the connection that all calls share."""
        token = (ctx.meta or {}).get("progress_token")
        if token is not None:
            told = wire.ProgressNotificationParams(progress_token=token, progress=1, total=2, message="halfway")
            await ctx.session.send_notification(wire.ProgressNotification(params=told))
        try:
            answer = await ctx.session.elicit_form("Which size?", SIZE)
        except asyncio.CancelledError:
            self.note("aside cancelled")
            raise
        self.note(f"aside {answer.action}")
        return text(f"{answer.action} {answer.content}")

    def _asked_modern(self, params: wire.CallToolRequestParams) -> Any:
        request = wire.ElicitRequest(params=wire.ElicitRequestFormParams(message="Which size?", requested_schema=SIZE))
        if params.input_responses is None:
            return wire.InputRequiredResult(input_requests={"size": request}, request_state="round-1")
        if params.request_state == "round-1":
            return wire.InputRequiredResult(input_requests={"size": request}, request_state="round-2")
        answer = params.input_responses["size"]
        assert isinstance(answer, wire.ElicitResult)
        return text(f"{params.request_state} {answer.action} {answer.content}")

    async def go(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return text("gone")
        wanted = {"mode": "url", "elicitationId": "e1", "url": "https://example.com/login", "message": "Log in"}
        if (params.arguments or {}).get("never") is None and self.file is not None and notes(self.file).count("go") > 1:
            return text("gone")
        raise wire_error(-32042, "Log in first", {"elicitations": [wanted]})

    async def log(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        said = wire.LoggingMessageNotificationParams(level="info", data="thinking", logger="brain")
        await ctx.session.send_notification(wire.LoggingMessageNotification(params=said), ctx.request_id)
        return text("logged")

    async def set_level(self, ctx: Context, params: wire.SetLevelRequestParams) -> wire.EmptyResult:
        self.note(f"level {params.level}")
        return wire.EmptyResult()

    async def sample(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        """Asks the client's model, on the stream of the request; of who cannot it says so."""
        if not ctx.session.check_client_capability(wire.ClientCapabilities(sampling=wire.SamplingCapability())):
            self.note("undeclared")
        message = wire.SamplingMessage(role="user", content=wire.TextContent(text="Who are you?"))
        asked = wire.CreateMessageRequest(params=wire.CreateMessageRequestParams(messages=[message], max_tokens=9))
        return text(await self._said(ctx, asked, wire.CreateMessageResult, ctx.request_id))

    async def folders(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        """Asks for the client's folders, on the stream that belongs to no request."""
        return text(await self._said(ctx, wire.ListRootsRequest(), wire.ListRootsResult, None))

    async def _said(self, ctx: Context, asked: Any, kind: Any, related: Any) -> str:
        try:
            metadata = None if related is None else ServerMessageMetadata(related_request_id=related)
            reply = await ctx.session.send_request(asked, kind, metadata=metadata)
        except MCPError as wrong:
            return f"{wrong.code} {wrong.message}"
        return str(reply.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def who(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        headers = dict(ctx.request.headers) if ctx.request is not None else {}
        seen = {
            "pid": os.getpid(),
            "authorization": headers.get("authorization"),
            "port": ctx.request.client.port if ctx.request is not None and ctx.request.client is not None else None,
            "session": headers.get("mcp-session-id"),
            "environment": dict(os.environ) if not headers else {},
            "meta": {key: value for key, value in (ctx.meta or {}).items() if isinstance(value, str)},
        }
        return wire.CallToolResult(content=[], structured_content=seen)

    async def grow(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        self.tools.append(tool(f"grown{len(self.tools)}"))
        await self.bus.publish(ToolsListChanged())
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await ctx.session.send_tool_list_changed()
        return text("grown")

    # The tasks extension

    async def task(self, ctx: Context, params: wire.CallToolRequestParams) -> Any:
        name = f"t{len(self.tasks) + 1}"
        given = params.arguments or {}
        asking, endless = bool(given.get("asking")), bool(given.get("endless"))
        self.tasks[name] = {
            "polls": 0,
            "asking": asking,
            "answer": None,
            "cancelled": False,
            "last": 1_000_000 if endless else 2,
        }
        return {"resultType": "task", **self._state(name)}

    def _state(self, name: str) -> dict[str, Any]:
        found = self.tasks[name]
        body: dict[str, Any] = {"taskId": name, "ttlMs": 60_000, "pollIntervalMs": 100}
        if found["cancelled"]:
            return {**body, "status": "cancelled"}
        if found["asking"] and found["answer"] is None:
            form = {"message": "Sure?", "requestedSchema": SIZE, "mode": "form"}
            asked = {"sure": {"method": "elicitation/create", "params": form}}
            return {**body, "status": "input_required", "inputRequests": asked}
        if found["polls"] < found["last"]:
            return {**body, "status": "working", "statusMessage": "kneading"}
        done = text(f"baked {found['answer']}").model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**body, "status": "completed", "result": done}

    async def get_task(self, ctx: Context, params: Any) -> Any:
        if params.task_id not in self.tasks:
            raise wire_error(-32602, "No such task")
        self.tasks[params.task_id]["polls"] += 1
        self.note(f"looked at {params.task_id}")
        return {"resultType": "complete", **self._state(params.task_id)}

    async def update_task(self, ctx: Context, params: Any) -> Any:
        self.tasks[params.task_id]["answer"] = params.input_responses["sure"]["content"]
        return {"resultType": "complete"}

    async def cancel_task(self, ctx: Context, params: Any) -> Any:
        self.tasks[params.task_id]["cancelled"] = True
        self.note(f"cancelled {params.task_id}")
        return {"resultType": "complete"}


def _session(ctx: Context) -> str:
    return str(ctx.request.headers.get("mcp-session-id")) if ctx.request is not None else ""


class UpdateTask(wire.RequestParams):
    task_id: str
    input_responses: dict[str, Any]


def wire_error(code: int, message: str, data: Any = None) -> Exception:
    from mcp.shared.exceptions import MCPError

    return MCPError(code, message, data)


def build(upstream: Upstream) -> Server[Any]:
    server: Server[Any] = Server(
        "Test Server",
        version="7",
        instructions="Use it for tests.",
        on_list_tools=upstream.list,
        on_call_tool=upstream.call,
        on_subscriptions_listen=ListenHandler(upstream.bus),
        get_tool_input_schema={one.name: one.input_schema for one in upstream.tools}.get,
    )
    server.extensions = {"io.modelcontextprotocol/tasks": {}}
    server.add_request_handler("logging/setLevel", wire.SetLevelRequestParams, upstream.set_level)
    server.add_request_handler("tasks/get", wire.GetTaskRequestParams, upstream.get_task)
    server.add_request_handler("tasks/update", UpdateTask, upstream.update_task)
    server.add_request_handler("tasks/cancel", wire.CancelTaskRequestParams, upstream.cancel_task)
    return server


class Store(EventStore):
    """Events of legacy streams, so that they can be resumed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.events.append((stream_id, message))
        return str(len(self.events))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        stream = self.events[int(last_event_id) - 1][0]
        for number, (one, message) in enumerate(self.events, 1):
            if number > int(last_event_id) and one == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


class App:
    """The ASGI app: the manager of the SDK, with a guard in front."""

    def __init__(self, server: Server[Any], *, legacy: bool, json: bool, key: str | None, path: str | None):
        self.manager = StreamableHTTPSessionManager(
            server, json_response=json, event_store=Store() if legacy else None, retry_interval=50 if legacy else None
        )
        self.legacy = legacy
        self.key = key
        self.path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        headers = dict(scope["headers"])
        if self.key is not None and headers.get(b"authorization") != f"Bearer {self.key}".encode():
            await _plain(send, 401)
        elif self.path is not None and scope["path"] != self.path:
            await _plain(send, 404)
        elif scope["path"] == "/busy":
            await _plain(send, 429, (b"retry-after", b"7"))
        elif self.legacy and headers.get(b"mcp-protocol-version", b"").decode() in MODERN_PROTOCOL_VERSIONS:
            await _plain(send, 400)
        else:
            await self.manager.handle_request(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.manager.run():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


async def _plain(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), *headers]})
    await send({"type": "http.response.body", "body": b""})


async def over_stdio(server: Server[Any], legacy: bool) -> None:
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (incoming, outgoing):
        if legacy:
            async with server.lifespan(server) as state:
                await serve_loop(server, incoming, outgoing, lifespan_state=state, init_options=options)
        else:
            await server.run(incoming, outgoing, options)


def main(arguments: Sequence[str] | None = None, listener: socket.socket | None = None) -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--stdio", action="store_true")
    options.add_argument("--legacy", action="store_true")
    options.add_argument("--json", action="store_true")
    options.add_argument("--notes", type=Path)
    options.add_argument("--key")
    options.add_argument("--path", help="answer at this path only")
    options.add_argument("--page", type=int, default=100)
    options.add_argument("--child", action="store_true", help="start a process that outlives us")
    options.add_argument("--deaf", action="store_true", help="ignore the end of input and SIGTERM")
    options.add_argument("--shelf", action="store_true", help="have a resource that can be watched")
    given = options.parse_args(arguments)
    upstream = Upstream(given.notes, given.page)
    upstream.note(f"pid {os.getpid()}")
    if given.child:
        child = subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        upstream.note(f"child {child.pid}")
    if given.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = build(upstream)
    if given.shelf:
        upstream.add_shelf(server)
    if given.stdio:
        asyncio.run(over_stdio(server, given.legacy))
        if given.deaf:
            time.sleep(300)
    else:
        app = App(server, legacy=given.legacy, json=given.json, key=given.key, path=given.path)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on")
        uvicorn.Server(config).run(sockets=[listener or socket.create_server(("127.0.0.1", 0))])


# What the tests use


def command(notes_file: Path, *options: str) -> dict[str, Any]:
    """The command that runs the server over stdio, as a client config has it."""
    arguments = ["-m", "tests.support.mcp_upstream", "--stdio", "--notes", str(notes_file), *options]
    return {"command": sys.executable, "args": arguments, "cwd": str(ROOT)}


def notes(file: Path) -> list[str]:
    """What the server did so far."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


async def eventually(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until another process has done something."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


class Site:
    """The server over HTTP, in a process of its own that can be killed and started again on the same port."""

    def __init__(self, notes_file: Path, *options: str):
        self.notes_file = notes_file
        self.options = options
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/mcp"
        self._process: BaseProcess | None = None

    def start(self) -> None:
        # The listening socket is ours and outlives the process: a request that comes too early waits.
        arguments = ["--notes", str(self.notes_file), *self.options]
        self._process = FORKS.Process(target=main, args=(arguments, self._listener), daemon=True)
        self._process.start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        self.kill()
        self._listener.close()

    def noted(self) -> list[str]:
        return notes(self.notes_file)


@contextmanager
def served(notes_file: Path, *options: str) -> Iterator[Site]:
    """The server over HTTP until the end of the block."""
    site = Site(notes_file, *options)
    site.start()
    try:
        yield site
    finally:
        site.stop()


if __name__ == "__main__":
    main()
