"""The official Python SDK 0.3.x, over JSON-RPC and REST. Runs in an environment of its own."""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from a2a.client import ClientConfig, ClientFactory
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TextPart,
)
from a2a.utils import new_task

WAIT = 30.0


class Talker(AgentExecutor):
    """The agent."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Echo, tell a story, or what else the first word says."""
        task = context.current_task or new_task(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        verb, _, rest = context.get_user_input().partition(" ")
        if verb == "fail":
            await updater.failed(updater.new_agent_message([Part(root=TextPart(text="the oven is cold"))]))
            return
        if verb == "ask":
            await updater.requires_input(updater.new_agent_message([Part(root=TextPart(text="Which size?"))]))
            return
        if verb == "hang":
            _note("running")
            await asyncio.sleep(600)
        pieces = ("Once ", "upon ", rest) if verb == "story" else (f"echo: {context.get_user_input()}",)
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            part = Part(root=TextPart(text=piece))
            await updater.add_artifact([part], artifact_id="tale", append=number > 0, last_chunk=last)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Stop hanging."""
        _note("cancelled")
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _note(what: str) -> None:
    if notes := os.environ.get("INTEROP_NOTES"):
        with Path(notes).open("a") as file:
            file.write(f"{what}\n")


def serve(port: int) -> None:
    """Serve both bindings on one port."""
    url = f"http://127.0.0.1:{port}"
    card = AgentCard(
        name="Talker",
        description="Echoes, and tells stories in pieces.",
        version="1",
        url=f"{url}/rpc",
        preferred_transport="JSONRPC",
        additional_interfaces=[AgentInterface(url=f"{url}/rest", transport="HTTP+JSON")],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="talk", name="Talk", description="Talks", tags=["talk"])],
    )
    handler = DefaultRequestHandler(agent_executor=Talker(), task_store=InMemoryTaskStore())
    app = A2AStarletteApplication(card, handler).build(rpc_url="/rpc")
    app.mount("/rest", A2ARESTFastAPIApplication(card, handler).build())
    uvicorn.run(app, port=port, log_level="warning")


async def ask(url: str, binding: str, version: str) -> dict[str, Any]:
    """Ask once, and once as a stream."""
    async with httpx.AsyncClient(timeout=WAIT) as http:
        card = AgentCard.model_validate((await http.get(url)).raise_for_status().json())
        config = {"httpx_client": http, "supported_transports": [binding], "use_client_preference": True}
        quiet = ClientFactory(ClientConfig(streaming=False, **config)).create(card)
        replies = [one async for one in quiet.send_message(_asked("hello"))]
        streaming = ClientFactory(ClientConfig(streaming=True, **config)).create(card)
        # This SDK lets the first piece grow into the whole, so each is read when it comes.
        pieces = [_piece(one) async for one in streaming.send_message(_asked("story time"))]
    task = replies[-1][0]
    assert isinstance(task, Task), replies
    return {"unary": _text(task.artifacts), "stream": pieces}


def _asked(text: str) -> Message:
    return Message(message_id=str(uuid.uuid4()), role=Role.user, parts=[Part(root=TextPart(text=text))])


def _piece(told: Any) -> str:
    event = told[1] if isinstance(told, tuple) else None
    return _text([event.artifact]) if isinstance(event, TaskArtifactUpdateEvent) else ""


def _text(artifacts: Any) -> str:
    return "".join(part.root.text for one in artifacts or () for part in one.parts)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        sys.stdout.write(json.dumps(asyncio.run(ask(*sys.argv[2:5]))))
