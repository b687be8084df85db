"""One target of every kind for every outcome: foreign software but for the Python functions, in one process.

The agent ``KIND-OUTCOME`` has one capability and does one thing: give a value, fail, ask back, answer in pieces, or
hang until it is cancelled. What happened to those that hang is in ``Targets.noted``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as wire
import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from agent3 import Context, LocalAgent

__all__ = ["BROKEN", "KINDS", "OUTCOMES", "PIECES", "QUESTION", "Targets", "functions", "running"]

KINDS = ("python", "mcp", "a2a", "website", "nlweb", "openapi")
OUTCOMES = ("value", "error", "question", "stream", "cancel")
BROKEN = "the oven is cold"
QUESTION = "Which size?"
PIECES = ("Once ", "upon ", "a time")


@dataclass
class Targets:
    """Where they are, and what happened to those that hang."""

    url: str = ""
    noted: dict[str, list[str]] = field(default_factory=dict)

    def note(self, kind: str, what: str) -> None:
        self.noted.setdefault(kind, []).append(what)

    def wait(self, kind: str, what: str, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while what not in self.noted.get(kind, []):
            assert time.monotonic() < until, f"{kind}: nobody noted {what!r}, but {self.noted.get(kind)}"
            time.sleep(0.02)

    async def hang(self, kind: str) -> None:
        """Until somebody cancels."""
        self.note(kind, "running")
        try:
            await asyncio.Event().wait()
        finally:
            self.note(kind, "cancelled")


# Python


def functions(targets: Targets) -> list[LocalAgent]:
    agents = {outcome: LocalAgent(f"python-{outcome}", description="Says it again") for outcome in OUTCOMES}

    @agents["value"].capability(read_only=True)
    async def say(text: str) -> str:
        """Say it again."""
        return f"said {text}"

    @agents["error"].capability(name="say", read_only=True)
    async def fail(text: str) -> str:
        """Say it again."""
        raise RuntimeError(BROKEN)

    @agents["question"].capability(name="say")
    async def ask(ctx: Context, text: str) -> str:
        """Say it again, in some size."""
        return f"said {text} {await ctx.ask(QUESTION)}"

    @agents["stream"].capability(name="say")
    async def story(text: str) -> AsyncIterator[str]:
        """Say it again, in pieces."""
        for piece in PIECES:
            yield piece

    @agents["cancel"].capability(name="say")
    async def hang(text: str) -> str:
        """Never end."""
        await targets.hang("python")
        return text

    return list(agents.values())


# MCP, by the official SDK

_TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_SIZE: dict[str, Any] = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}


def _words(text: str, **more: Any) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(text=text)], **more)


def _mcp(outcome: str, targets: Targets) -> StreamableHTTPSessionManager:
    hints = wire.ToolAnnotations(read_only_hint=True) if outcome in ("value", "error") else None
    tool = wire.Tool(name="say", description="Say it again", input_schema=_TEXT, annotations=hints)

    async def tools(ctx: Any, params: Any) -> wire.ListToolsResult:
        return wire.ListToolsResult(tools=[tool])

    async def call(ctx: ServerRequestContext[Any, Any], params: wire.CallToolRequestParams) -> Any:
        text = (params.arguments or {}).get("text", "")
        match outcome:
            case "value":
                return _words(f"said {text}")
            case "error":
                return _words(BROKEN, is_error=True)
            case "question" if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                if params.input_responses is None:
                    form = wire.ElicitRequestFormParams(message=QUESTION, requested_schema=_SIZE)
                    return wire.InputRequiredResult(
                        input_requests={"size": wire.ElicitRequest(params=form)}, request_state="asked"
                    )
                answer = params.input_responses["size"]
                assert isinstance(answer, wire.ElicitResult)
                return _words(f"said {text} {(answer.content or {})['size']}")
            case "question":
                got = await ctx.session.elicit_form(QUESTION, _SIZE, related_request_id=ctx.request_id)
                return _words(f"said {text} {(got.content or {})['size']}")
            case "stream":
                for number, piece in enumerate(PIECES, 1):
                    await ctx.session.report_progress(number, len(PIECES), piece)
                return _words("".join(PIECES))
        await targets.hang("mcp")
        return _words(text)

    server: Server[Any] = Server(f"mcp-{outcome}", version="1", on_list_tools=tools, on_call_tool=call)
    return StreamableHTTPSessionManager(server)


# A2A, by the official SDK


class _Executor(AgentExecutor):
    def __init__(self, outcome: str, targets: Targets):
        self._outcome = outcome
        self._targets = targets

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        task, asked = context.current_task, context.current_task is not None
        if task is None:
            assert context.message is not None
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)

        def words(said: str) -> a2a_pb2.Message:
            return updater.new_agent_message([a2a_pb2.Part(text=said)])

        await updater.start_work(words("on it"))
        match self._outcome:
            case "error":
                await updater.failed(words(BROKEN))
                return
            case "question" if not asked:
                await updater.requires_input(words(QUESTION))
                return
            case "stream":
                for number, piece in enumerate(PIECES, 1):
                    last = number == len(PIECES)
                    await updater.add_artifact(
                        [a2a_pb2.Part(text=piece)], artifact_id="tale", append=number > 1, last_chunk=last
                    )
            case "cancel":
                await asyncio.sleep(1.0)  # a client that has not heard of its task yet cannot cancel it
                await self._targets.hang("a2a")
            case _:
                said = f"said apples {text}" if asked else f"said {text}"
                await updater.add_artifact([a2a_pb2.Part(text=said)], name="answer")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        self._targets.note("a2a", "cancelled")
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _a2a(outcome: str, targets: Targets) -> Mount:
    place = f"/a2a-{outcome}"
    skill = a2a_pb2.AgentSkill(id="say", name="Say", description="Says it again", tags=["talk"])
    card = a2a_pb2.AgentCard(
        name=f"a2a {outcome}",
        description="Says it again",
        version="1",
        supported_interfaces=[
            a2a_pb2.AgentInterface(url=f"{targets.url}{place}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=a2a_pb2.AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )
    handler = DefaultRequestHandler(
        agent_executor=_Executor(outcome, targets), task_store=InMemoryTaskStore(), agent_card=card
    )
    return Mount(place, routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])


# NLWeb


def _nlweb(outcome: str, targets: Targets) -> Mount:
    def reply(kind: str, **more: Any) -> dict[str, Any]:
        return {"_meta": {"response_type": kind, "version": "0.54", "session_context": {"state_token": "s1"}}, **more}

    async def ask(request: Request) -> Response:
        body = await request.json()
        text = body["query"]["text"] if isinstance(body["query"], dict) else body["query"]
        found = [{"@type": "Thing", "name": f"said {text}", "url": "https://x.example/", "score": 80}]
        if text == "hello" and outcome != "value":  # how the gateway finds out what this is
            return JSONResponse(reply("Answer", results=[]))
        match outcome:
            case "error":
                return JSONResponse(reply("Failure", error={"code": "INTERNAL_ERROR", "message": BROKEN}))
            case "question" if not body.get("meta", {}).get("session_context") and "large" not in text:
                questions = [{"id": "size", "text": QUESTION, "type": "text"}]
                return JSONResponse(reply("Elicitation", elicitation={"text": QUESTION, "questions": questions}))
            case "question":
                answered = json.dumps(body)
                size = "large" if "large" in answered else "nothing"
                return JSONResponse(
                    reply("Answer", results=[{"name": f"said apples {size}", "url": "https://x.example/"}])
                )
            case "stream":

                async def pieces() -> AsyncIterator[bytes]:
                    yield b"data: " + json.dumps({"_meta": reply("Answer")["_meta"]}).encode() + b"\n\n"
                    for piece in PIECES:
                        row = {"name": piece, "url": "https://x.example/"}
                        yield b"data: " + json.dumps({"results": [row]}).encode() + b"\n\n"

                return StreamingResponse(pieces(), media_type="text/event-stream")
            case "cancel":
                hanging = asyncio.ensure_future(targets.hang("nlweb"))
                while not await request.is_disconnected():
                    await asyncio.sleep(0.02)
                hanging.cancel()
        return JSONResponse(reply("Answer", results=found))

    return Mount(f"/nlweb-{outcome}", routes=[Route("/ask", ask, methods=["POST"])])


# OpenAPI, by FastAPI


def _openapi(outcome: str, targets: Targets) -> FastAPI:
    api = FastAPI(title=f"openapi {outcome}", servers=[{"url": f"{targets.url}/openapi-{outcome}"}])

    @api.get("/say", operation_id="say", summary="Say it again")
    async def say(request: Request, text: str, size: str = "") -> Any:
        match outcome:
            case "error":
                return JSONResponse({"detail": BROKEN}, 400)
            case "stream":
                return "".join(PIECES)
            case "cancel":
                hanging = asyncio.ensure_future(targets.hang("openapi"))
                while not await request.is_disconnected():
                    await asyncio.sleep(0.02)
                hanging.cancel()
        return f"said {text} {size}".strip()

    return api


# A website


def _page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(f"<!doctype html><html lang=en><title>{title}</title><body>{body}</body></html>")


def _website(targets: Targets) -> Mount:
    async def home(request: Request) -> Response:
        return _page("Say", '<form action="said"><input id="text" name="text"><button id="go">Say</button></form>')

    async def said(request: Request) -> Response:
        return _page("Said", f"<h1>said {request.query_params.get('text', '')}</h1>")

    async def hang(request: Request) -> Response:
        hanging = asyncio.ensure_future(targets.hang("website"))
        while not await request.is_disconnected():
            await asyncio.sleep(0.02)
        hanging.cancel()
        return _page("Late", "")

    return Mount("/website", routes=[Route("/", home), Route("/said", said), Route("/hang", hang)])


def interface(url: str, outcome: str) -> dict[str, Any]:
    """The website's file for an outcome."""
    home: dict[str, Any] = {"action_type": "navigate", "value": "/website/"}
    typed = {"action_type": "type", "selector": "#text", "value": "{text}"}
    shown = {"action_type": "extract", "selector": "h1"}
    steps: dict[str, list[dict[str, Any]]] = {
        "error": [home, {"action_type": "click", "selector": "#nowhere", "timeout": 1}],
        "cancel": [{"action_type": "navigate", "value": "/website/hang"}],
    }
    usual = [home, typed, {"action_type": "click", "selector": "#go"}, shown]
    schema = {"type": "object", "properties": {"text": {"type": "string", "minLength": 1}}, "required": ["text"]}
    info = {"description": "Say it again", "input_schema": schema, "phrases": ["say {text}"]}
    return {
        "interface_id": f"website-{outcome}",
        "name": f"website {outcome}",
        "base_url": url,
        "description": "Says it again",
        "actions": {"say": steps.get(outcome, usual)},
        "info": {"say": {**info, "hints": {"read_only": True}}},
    }


# All of them


class _Managed:
    def __init__(self, manager: StreamableHTTPSessionManager):
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.handle_request(scope, receive, send)


@contextmanager
def running() -> Iterator[Targets]:
    """All targets but the functions, until the end of the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    targets = Targets(f"http://127.0.0.1:{listener.getsockname()[1]}")
    managers = {outcome: _mcp(outcome, targets) for outcome in OUTCOMES}

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for manager in managers.values():
                await stack.enter_async_context(manager.run())
            yield

    app = Starlette(
        lifespan=lifespan,
        routes=[
            *(Mount(f"/mcp-{outcome}", _Managed(manager)) for outcome, manager in managers.items()),
            *(_a2a(outcome, targets) for outcome in OUTCOMES),
            *(_nlweb(outcome, targets) for outcome in OUTCOMES),
            *(Mount(f"/openapi-{outcome}", _openapi(outcome, targets)) for outcome in OUTCOMES),
            _website(targets),
        ],
    )
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield targets
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
