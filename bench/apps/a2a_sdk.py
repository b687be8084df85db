"""The official A2A SDK at its best: one agent that ends each task with its first event, by JSON-RPC and REST.

Tasks are kept in memory, or with BENCH_DB, an address of SQLAlchemy, in a database. A message "wait" begins a task that
asks for input, "hold" one that tells a word each time that somebody gets /tell. Also answers GET /healthz.
"""

from __future__ import annotations

import asyncio
import os

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore
from a2a.types import a2a_pb2 as wire
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

STATES = {"wait": wire.TASK_STATE_INPUT_REQUIRED, "hold": wire.TASK_STATE_WORKING}


class Echo(AgentExecutor):
    """Answers the text of a message as the artifact of a task."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str] = asyncio.Queue()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """One task in one event, unless it is to be held."""
        assert context.message is not None
        text = context.message.parts[0].text
        state = STATES.get(text, wire.TASK_STATE_COMPLETED)
        task = wire.Task(id=context.task_id, context_id=context.context_id, status=wire.TaskStatus(state=state))
        if state == wire.TASK_STATE_COMPLETED:
            task.artifacts.add(artifact_id="result", parts=[wire.Part(text=text)])
        await event_queue.enqueue_event(task)
        while state == wire.TASK_STATE_WORKING:
            word = await self.words.get()
            said = wire.Message(message_id=word, role=wire.ROLE_AGENT, parts=[wire.Part(text=word)])
            await event_queue.enqueue_event(
                wire.TaskStatusUpdateEvent(
                    task_id=context.task_id,
                    context_id=context.context_id,
                    status=wire.TaskStatus(state=state, message=said),
                )
            )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing here is cancelled."""
        raise RuntimeError("nobody cancels in a bench")


def _store() -> TaskStore:
    address = os.environ.get("BENCH_DB")
    if address is None:
        return InMemoryTaskStore()
    from sqlalchemy.ext.asyncio import create_async_engine

    return DatabaseTaskStore(create_async_engine(address))


async def _healthy(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


async def _tell(_: Request) -> JSONResponse:
    echo.words.put_nowait("a word")
    return JSONResponse({"status": "ok"})


echo = Echo()
card = wire.AgentCard(
    name="echo",
    description="Says it back",
    version="1",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=wire.AgentCapabilities(streaming=True),
    skills=[wire.AgentSkill(id="say", name="say", description="Says it back", tags=["echo"])],
    supported_interfaces=[wire.AgentInterface(url="/", protocol_binding="JSONRPC", protocol_version="1.0")],
)
handler = DefaultRequestHandler(echo, _store(), card)
app = Starlette(
    routes=[
        Route("/healthz", _healthy),
        Route("/tell", _tell, methods=["POST"]),
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True, path_prefix="/rest"),
    ]
)
