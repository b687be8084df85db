"""The tasks extension, ``io.modelcontextprotocol/tasks``: a call that goes on is followed by polling.

The SDK lacks it. A task is a job under the protocol's name, so this module keeps nothing: it asks the tool set how a
job stands and writes that down as the extension wants it (SEP-2663).
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

import mcp_types as wire
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from pydantic import Field

from agent3.errors import Agent3Error, NotFound, by_code
from agent3.model import Answer, Done, Event, Failed, Needs, Working
from agent3.protocols.mcp.door.questions import answer_of, reply_of, request_of
from agent3.protocols.mcp.door.requests import TASKS, Context, era_of, lacking, powers_of, principal_of, protocol_error
from agent3.protocols.mcp.door.results import failure_error, failure_form, plain, result
from agent3.protocols.mcp.door.toolset import Caller, Task, Tasks

__all__ = ["Desk"]

POLL = 1.0
"""Seconds between two questions, where the job does not say."""


class _Named(wire.RequestParams):
    task_id: str = Field(alias="taskId")


class _Update(_Named):
    input_responses: dict[str, Any] = Field(alias="inputResponses")


class Desk:
    """Serves tasks/get, tasks/update and tasks/cancel for a tool set that has tasks."""

    def __init__(self, tasks: Tasks):
        self._tasks = tasks

    def install(self, server: Server[Any]) -> None:
        """Announce the extension and answer its methods."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", _Named, self._get)
        server.add_request_handler("tasks/update", _Update, self._update)
        server.add_request_handler("tasks/cancel", _Named, self._cancel)

    async def created(self, working: Working, caller: Caller, version: str) -> dict[str, Any] | None:
        """The result of a call that goes on; None where its job is not kept here."""
        if working.job is None:
            return None
        try:
            task = await self._tasks.task(working.job, caller)
        except NotFound:
            return None
        seed = _told(task, version)
        return {
            "resultType": "task",
            **{key: seed[key] for key in seed if key not in ("result", "error", "inputRequests")},
        }

    async def _get(self, ctx: Context, params: _Named) -> dict[str, Any]:
        caller = _checked(ctx, params.task_id)
        task = await _asked(self._tasks.task(params.task_id, caller))
        return {"resultType": "complete", **_told(task, ctx.protocol_version)}

    async def _update(self, ctx: Context, params: _Update) -> dict[str, Any]:
        """Takes what answers a question that is open now; anything else is ignored, as the extension wants it."""
        caller = _checked(ctx, params.task_id)
        task = await _asked(self._tasks.task(params.task_id, caller))
        answers = _answers(task, params.input_responses)
        if answers:
            await _asked(self._tasks.update(params.task_id, answers, caller))
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Context, params: _Named) -> dict[str, Any]:
        caller = _checked(ctx, params.task_id)
        await _asked(self._tasks.cancel(params.task_id, caller))
        return {"resultType": "complete"}


def _checked(ctx: Context, task_id: str) -> Caller:
    """Who asks; refused are older versions, clients that do not know tasks, and headers that name another task."""
    if era_of(ctx) == "legacy":
        raise MCPError(wire.METHOD_NOT_FOUND, "Method not found", ctx.method)
    powers = powers_of(ctx)
    if "tasks" not in powers:
        raise lacking(frozenset({"tasks"}), ctx.method)
    if ctx.request is not None and decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER)) != task_id:
        raise MCPError(wire.HEADER_MISMATCH, f"The Mcp-Name header must be the taskId, {task_id!r}")
    return Caller(principal_of(ctx), _unheard, "modern", "form" in powers, can=powers)


def _unheard(event: Event) -> None:
    return None


async def _asked(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except Agent3Error as error:
        raise protocol_error(error) from error


def _answers(task: Task, responses: dict[str, Any]) -> dict[str, Answer]:
    questions = task.outcome.questions if isinstance(task.outcome, Needs) else ()
    asked = [question for question in questions if question.id in responses]
    return {one.id: answer_of(one, reply_of(one, responses[one.id])) for one in asked}


def _told(task: Task, version: str) -> dict[str, Any]:
    """The task with what its status brings along."""
    outcome = task.outcome
    poll = outcome.poll if isinstance(outcome, Working) and outcome.poll is not None else POLL
    told: dict[str, Any] = {
        "taskId": task.id,
        "status": "working",
        "createdAt": _stamp(task.created),
        "lastUpdatedAt": _stamp(task.updated),
        "ttlMs": max(1, int(task.ttl * 1000)) if task.ttl is not None else None,
        "pollIntervalMs": max(1, int(poll * 1000)),
    }
    return told | _payload(outcome, version)


def _payload(outcome: Done | Failed | Needs | Working, version: str) -> dict[str, Any]:
    if isinstance(outcome, Working):
        return {"statusMessage": outcome.text} if outcome.text else {}
    if isinstance(outcome, Needs):
        asked = {one.id: _dump(request_of(one)) for one in outcome.questions}
        return {"status": "input_required", "inputRequests": asked}
    if isinstance(outcome, Failed) and outcome.code == "canceled":
        return {"status": "cancelled", "statusMessage": outcome.message}
    if isinstance(outcome, Failed) and (told := failure_error(outcome)) is not None:
        error = {key: one for key, one in told.items() if one is not None}
        return {"status": "failed", "statusMessage": outcome.message, "error": error}
    if isinstance(outcome, Failed) and by_code(outcome.code).rpc_code == wire.INTERNAL_ERROR:
        # A tool that failed has a result that says so; this is a failure of ours.
        error = {"code": wire.INTERNAL_ERROR, "message": outcome.message, "data": failure_form(outcome)}
        return {"status": "failed", "statusMessage": outcome.message, "error": error}
    return {"status": "completed", "result": _dump(result(outcome, version))}


def _dump(model: Any) -> Any:
    return plain(model.model_dump(by_alias=True, mode="json", exclude_none=True))


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
