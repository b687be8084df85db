"""The official Python SDK 1.x, which speaks 1.0 and by its compatibility layer 0.3, over all three bindings."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.client.client import Client
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as wire
from starlette.applications import Starlette

WAIT = 30.0
aio, stubs = import_module("grpc.aio"), import_module("a2a.types.a2a_pb2_grpc")


class Talker(AgentExecutor):
    """The agent."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Echo, tell a story, or what else the first word says."""
        assert context.message is not None
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        verb, _, rest = context.get_user_input().partition(" ")
        if verb == "fail":
            await updater.failed(updater.new_agent_message([wire.Part(text="the oven is cold")]))
            return
        if verb == "ask":
            await updater.requires_input(updater.new_agent_message([wire.Part(text="Which size?")]))
            return
        if verb == "hang":
            _note("running")
            await asyncio.sleep(600)
        pieces = ("Once ", "upon ", rest) if verb == "story" else (f"echo: {context.get_user_input()}",)
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            await updater.add_artifact([wire.Part(text=piece)], artifact_id="tale", append=number > 0, last_chunk=last)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Stop hanging."""
        _note("cancelled")
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def _note(what: str) -> None:
    if notes := os.environ.get("INTEROP_NOTES"):
        with Path(notes).open("a") as file:
            file.write(f"{what}\n")


async def serve(port: int, grpc_port: int) -> None:
    """Serve 1.0 and 0.3 on one port, and gRPC on another."""
    url = f"http://127.0.0.1:{port}"
    spoken = [("JSONRPC", f"{url}/rpc"), ("HTTP+JSON", f"{url}/rest")]
    faces = [
        wire.AgentInterface(url=where, protocol_binding=binding, protocol_version=version)
        for version in ("1.0", "0.3")
        for binding, where in spoken
    ]
    faces.append(wire.AgentInterface(url=f"127.0.0.1:{grpc_port}", protocol_binding="GRPC", protocol_version="1.0"))
    card = wire.AgentCard(
        name="Talker",
        description="Echoes, and tells stories in pieces.",
        version="1",
        supported_interfaces=faces,
        capabilities=wire.AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[wire.AgentSkill(id="talk", name="Talk", description="Talks", tags=["talk"])],
    )
    handler = DefaultRequestHandler(Talker(), InMemoryTaskStore(), card)
    app = Starlette(
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
            *create_rest_routes(handler, enable_v0_3_compat=True, path_prefix="/rest"),
        ]
    )
    beside = aio.server()
    beside.add_insecure_port(f"127.0.0.1:{grpc_port}")
    stubs.add_A2AServiceServicer_to_server(GrpcHandler(handler), beside)
    await beside.start()
    await uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning")).serve()


async def ask(url: str, binding: str, version: str) -> dict[str, Any]:
    """Ask once, and once as a stream."""
    async with httpx.AsyncClient(timeout=WAIT) as http:
        card = parse_agent_card((await http.get(url)).raise_for_status().json())
        chosen = [
            one
            for one in card.supported_interfaces
            if (one.protocol_binding, one.protocol_version[:3]) == (binding, version)
        ]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(chosen)

        def client(streaming: bool) -> Client:
            return ClientFactory(
                ClientConfig(
                    streaming=streaming,
                    httpx_client=http,
                    supported_protocol_bindings=[binding],
                    grpc_channel_factory=aio.insecure_channel,
                )
            ).create(card)

        (reply,) = [one async for one in client(False).send_message(_asked("hello"))]
        told = [one async for one in client(True).send_message(_asked("story time"))]
    pieces = [_text([one.artifact_update.artifact]) for one in told if one.HasField("artifact_update")]
    return {"unary": _text(reply.task.artifacts), "stream": pieces}


def _asked(text: str) -> wire.SendMessageRequest:
    said = wire.Message(message_id=str(uuid.uuid4()), role=wire.ROLE_USER, parts=[wire.Part(text=text)])
    return wire.SendMessageRequest(message=said)


def _text(artifacts: Any) -> str:
    return "".join(part.text for one in artifacts for part in one.parts)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(int(sys.argv[2]), int(sys.argv[3])))
    else:
        sys.stdout.write(json.dumps(asyncio.run(ask(*sys.argv[2:5]))))
