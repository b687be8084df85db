"""A2A agents for tests of the client side: those of the official SDK, and a raw one of the first generation.

All do the same: they echo, tell a story in pieces, ask back, fail, refuse and hang, as their message says. The first
word of the message chooses.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as wire
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["First", "Peer", "first", "official", "over_grpc"]

Middleware = Callable[[Scope], Response | None]


class Peer:
    """An agent that is served, and what it was sent."""

    def __init__(self, url: str):
        self.url = url
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refuse: Callable[[str, dict[str, str]], Response | None] = lambda path, headers: None
        """What is answered instead; it hears the path and the headers of each request."""


class _Watched:
    """The app of a peer, which notes what comes and may be told to refuse it."""

    def __init__(self, app: ASGIApp):
        self.app = app
        self.peer = Peer("")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = scope["query_string"].decode()
        path = scope["path"] + (f"?{query}" if query else "")
        self.peer.headers.append(headers)
        self.peer.paths.append(f"{scope['method']} {path}")
        refused = self.peer.refuse(path, headers)
        await (self.app if refused is None else refused)(scope, receive, send)


@contextmanager
def _served(make: Callable[[str], ASGIApp]) -> Iterator[Peer]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does it only for sockets of its own
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    watched = _Watched(make(url))
    watched.peer.url = url
    server = uvicorn.Server(
        uvicorn.Config(watched, log_config=None, lifespan="off", timeout_graceful_shutdown=1, ws="none")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield watched.peer
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()


# The official SDK


class _Executor(AgentExecutor):
    """The agent itself."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        words = context.get_user_input()
        verb, _, rest = words.partition(" ")
        if verb == "chat":
            await event_queue.enqueue_event(new_text_message(f"hi, {rest}"))
            return
        task = context.current_task
        if task is None:
            assert context.message is not None
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await self._done(verb, rest, words, context, updater)

    async def _done(self, verb: str, rest: str, words: str, context: RequestContext, updater: TaskUpdater) -> None:
        def said(text: str) -> wire.Message:
            return updater.new_agent_message([wire.Part(text=text)])

        await updater.start_work(said("on it"))
        match verb:
            case "ask":
                await updater.requires_input(said("Which size?"))
            case "login":
                await updater.requires_auth(said("Please agree at https://login.example/agree first."))
            case "fail":
                await updater.failed(said("it broke"))
            case "reject":
                await updater.reject(said("not my trade"))
            case "hang":
                await asyncio.sleep(60)
            case "story":
                pieces = ("Once ", "upon ", rest)
                for number, piece in enumerate(pieces):
                    await updater.add_artifact(
                        [wire.Part(text=piece)],
                        artifact_id="tale",
                        append=number > 0,
                        last_chunk=number == len(pieces) - 1,
                    )
                await updater.complete()
            case "file":
                assert context.message is not None
                given = next(one for one in context.message.parts if one.HasField("raw"))
                back = wire.Part(raw=given.raw[::-1], filename="back.bin", media_type="application/octet-stream")
                await updater.add_artifact([back], name="back")
                await updater.complete()
            case _:
                await updater.add_artifact([wire.Part(text=f"echo: {words}")], name="answer")
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _card(url: str, spoken: list[tuple[str, str, str]], streaming: bool) -> wire.AgentCard:
    skill = wire.AgentSkill(id="talk", name="Talk", description="Talk about pizza and more", tags=["talk"])
    return wire.AgentCard(
        name="Official Agent",
        description="An agent of the official SDK",
        version="3",
        supported_interfaces=[
            wire.AgentInterface(url=f"{url}{path}", protocol_binding=binding, protocol_version=version)
            for binding, version, path in spoken
        ],
        capabilities=wire.AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain", "application/octet-stream"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )


@contextmanager
def official(binding: str = "JSONRPC", version: str = "1.0", *, streaming: bool = True) -> Iterator[Peer]:
    """An agent of the SDK whose card offers one binding in one version."""

    def make(url: str) -> ASGIApp:
        path = "/rpc" if binding == "JSONRPC" else "/rest"
        card = _card(url, [(binding, version, path)], streaming)
        handler = DefaultRequestHandler(agent_executor=_Executor(), task_store=InMemoryTaskStore(), agent_card=card)
        old = version != "1.0"
        return Starlette(
            routes=[
                *create_agent_card_routes(card),
                *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=old),
                *create_rest_routes(handler, enable_v0_3_compat=old, path_prefix="/rest"),
            ]
        )

    with _served(make) as peer:
        yield peer


@asynccontextmanager
async def over_grpc() -> AsyncIterator[dict[str, Any]]:
    """An agent of the SDK on gRPC alone, in the loop of the test; its card."""
    from a2a.server.request_handlers import GrpcHandler

    aio, stubs, as_json = map(import_module, ("grpc.aio", "a2a.types.a2a_pb2_grpc", "google.protobuf.json_format"))
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    card = _card("127.0.0.1", [("GRPC", "1.0", f":{port}")], True)
    handler = DefaultRequestHandler(agent_executor=_Executor(), task_store=InMemoryTaskStore(), agent_card=card)
    stubs.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    await server.start()
    try:
        document: dict[str, Any] = as_json.MessageToDict(card)
        yield document
    finally:
        await server.stop(0)


# The first generation, which no SDK speaks any more


class First:
    """An agent of 0.1, written from its specification alone."""

    def __init__(self, url: str, streaming: bool = True):
        self.url = url
        self.streaming = streaming
        self.tasks: dict[str, dict[str, Any]] = {}
        self.drop_after: int | None = None
        """Cut the next stream off after so many events."""
        self.rude = False
        """Cut it off without an end."""

    def app(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route("/.well-known/agent.json", self.card),
                Route("/a2a", self.rpc, methods=["POST"]),
            ]
        )

    async def card(self, request: Request) -> Response:
        card = {
            "name": "First Agent",
            "description": "An agent of the first generation",
            "url": f"{self.url}/a2a",
            "version": "1",
            "authentication": {"schemes": []},
            "capabilities": {"streaming": self.streaming, "pushNotifications": False},
            "skills": [{"id": "talk", "name": "Talk", "description": "Talk about pizza and more"}],
        }
        tag = f'"{hash(json.dumps(card)):x}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304)
        return JSONResponse(card, headers={"etag": tag})

    async def rpc(self, request: Request) -> Response:
        body = await request.json()
        method, params, key = body["method"], body.get("params") or {}, body["id"]
        if method in ("tasks/send", "tasks/sendSubscribe"):
            events = self.events(params)
            if method == "tasks/send":
                for _ in events:
                    pass
                if self.tasks[params["id"]]["status"]["state"] == "working":
                    await asyncio.sleep(60)
                return self._answer(key, self.tasks[params["id"]])
            return StreamingResponse(self._told(key, events, params["id"]), media_type="text/event-stream")
        task = self.tasks.get(params.get("id", ""))
        if method not in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
            return self._wrong(key, -32601, "Method not found")
        if task is None:
            return self._wrong(key, -32001, "Task not found")
        if method == "tasks/cancel":
            task["status"] = {"state": "canceled"}
        if method == "tasks/resubscribe":
            last = {"id": task["id"], "status": task["status"], "final": True}
            told = [{"id": task["id"], "artifact": one} for one in task["artifacts"]]
            return StreamingResponse(self._told(key, iter([*told, last]), task["id"]), media_type="text/event-stream")
        return self._answer(key, task)

    def events(self, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Do it, and tell; the task is done when all is told."""
        task = self.tasks.setdefault(
            params["id"], {"id": params["id"], "sessionId": params.get("sessionId"), "artifacts": [], "status": {}}
        )
        words = params["message"]["parts"][0]["text"]
        verb, _, rest = words.partition(" ")
        yield self._status(task, "working", "on it")
        if verb in ("ask", "fail", "hang"):
            state, text = {"ask": ("input-required", "Which size?"), "fail": ("failed", "it broke")}.get(
                verb, ("working", "still at it")
            )
            yield self._status(task, state, text)
            return
        pieces = ("Once ", "upon ", rest) if verb == "story" else (f"echo: {words}",)
        whole = ""
        for number, piece in enumerate(pieces):
            whole += piece
            part = [{"type": "text", "text": piece}]
            last = number == len(pieces) - 1
            task["artifacts"] = [{"index": 0, "parts": [{"type": "text", "text": whole}]}]
            artifact = {"index": 0, "parts": part, "append": number > 0, "lastChunk": last}
            yield {"id": task["id"], "artifact": artifact}
        yield self._status(task, "completed")

    def _status(self, task: dict[str, Any], state: str, text: str | None = None) -> dict[str, Any]:
        said = {"message": {"role": "agent", "parts": [{"type": "text", "text": text}]}} if text else {}
        task["status"] = {"state": state, **said}
        final = state not in ("working", "submitted")
        return {"id": task["id"], "status": task["status"], "final": final}

    async def _told(self, key: Any, events: Iterator[dict[str, Any]], task: str) -> AsyncIterator[bytes]:
        drop, self.drop_after = self.drop_after, None
        for number, event in enumerate(events):
            if drop is not None and number >= drop:
                for _ in events:
                    pass
                if self.rude:
                    raise ConnectionResetError("on purpose")
                return
            yield b"data: " + json.dumps({"jsonrpc": "2.0", "id": key, "result": event}).encode() + b"\n\n"
        if self.tasks[task]["status"]["state"] == "working":
            await asyncio.sleep(60)

    def _answer(self, key: Any, result: Any) -> Response:
        return JSONResponse({"jsonrpc": "2.0", "id": key, "result": result})

    def _wrong(self, key: Any, code: int, message: str) -> Response:
        return JSONResponse({"jsonrpc": "2.0", "id": key, "error": {"code": code, "message": message}})


@contextmanager
def first(*, streaming: bool = True) -> Iterator[tuple[Peer, First]]:
    """The agent of the first generation."""
    made: list[First] = []

    def make(url: str) -> ASGIApp:
        made.append(First(url, streaming))
        return made[0].app()

    with _served(make) as peer:
        yield peer, made[0]
