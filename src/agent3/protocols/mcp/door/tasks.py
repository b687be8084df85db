"""The tasks extension, ``io.modelcontextprotocol/tasks`` (SEP-2663): a long call is followed by polling.

The SDK lacks it. A task is a job under the protocol's name, so nothing is stored here: the tool set is asked for the
state of a job, which is then written as the extension wants it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import mcp_types as wire
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from pydantic import Field

from agent3.errors import Agent3Error, NotFound, by_code
from agent3.model import Failed, Needs, Working
from agent3.protocols.mcp.door.questions import parse_reply, to_answer, to_request
from agent3.protocols.mcp.door.requests import (
    Context,
    client_features,
    era_of,
    missing_features_error,
    principal_of,
    to_mcp_error,
)
from agent3.protocols.mcp.door.results import failure_to_dict, passed_error, to_json_value, to_tool_result
from agent3.protocols.mcp.door.toolset import Caller, Task, Tasks, ignore_event
from agent3.protocols.mcp.meta_keys import TASKS

__all__ = ["TaskHandlers"]

POLL = 1.0
"""Seconds between two polls, where the job does not say."""


class _TaskParams(wire.RequestParams):
    task_id: str = Field(alias="taskId")


class _UpdateParams(_TaskParams):
    input_responses: dict[str, Any] = Field(alias="inputResponses")


class TaskHandlers:
    """Serves tasks/get, tasks/update and tasks/cancel for a tool set that has tasks."""

    def __init__(self, tasks: Tasks):
        self._tasks = tasks

    def register(self, server: Server[Any]) -> None:
        """Announce the extension and serve its methods."""
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", _TaskParams, self.get)
        server.add_request_handler("tasks/update", _UpdateParams, self.update)
        server.add_request_handler("tasks/cancel", _TaskParams, self.cancel)

    async def create(self, working: Working, caller: Caller, version: str) -> dict[str, Any] | None:
        """The result of a call that goes on as a task; None where its job is not known here."""
        if working.job is None:
            return None
        try:
            task = await self._tasks.task(working.job, caller)
        except NotFound:
            return None
        created = {"resultType": "task", **encode_task(task, version)}
        for key in ("result", "error", "inputRequests"):
            created.pop(key, None)
        return created

    async def get(self, ctx: Context, params: _TaskParams) -> dict[str, Any]:
        caller = _check_request(ctx, params.task_id)
        try:
            task = await self._tasks.task(params.task_id, caller)
        except Agent3Error as error:
            raise to_mcp_error(error) from error
        return {"resultType": "complete", **encode_task(task, ctx.protocol_version)}

    async def update(self, ctx: Context, params: _UpdateParams) -> dict[str, Any]:
        """tasks/update. Takes what answers an open question and ignores the rest, as the extension demands."""
        caller = _check_request(ctx, params.task_id)
        responses = params.input_responses
        try:
            task = await self._tasks.task(params.task_id, caller)
            questions = task.outcome.questions if isinstance(task.outcome, Needs) else ()
            answers = {
                question.id: to_answer(question, parse_reply(question, responses[question.id]))
                for question in questions
                if question.id in responses
            }
            if answers:
                await self._tasks.update(params.task_id, answers, caller)
        except Agent3Error as error:
            raise to_mcp_error(error) from error
        return {"resultType": "complete"}

    async def cancel(self, ctx: Context, params: _TaskParams) -> dict[str, Any]:
        caller = _check_request(ctx, params.task_id)
        try:
            await self._tasks.cancel(params.task_id, caller)
        except Agent3Error as error:
            raise to_mcp_error(error) from error
        return {"resultType": "complete"}


def _check_request(ctx: Context, task_id: str) -> Caller:
    """The caller. Refuses legacy clients, clients that do not know tasks, and a header that names another task."""
    if era_of(ctx) == "legacy":
        raise MCPError(wire.METHOD_NOT_FOUND, "Method not found", ctx.method)
    features = client_features(ctx)
    if "tasks" not in features:
        raise missing_features_error(frozenset({"tasks"}), ctx.method)
    if ctx.request is not None and decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER)) != task_id:
        raise MCPError(wire.HEADER_MISMATCH, f"The Mcp-Name header must be the taskId, {task_id!r}")
    return Caller(principal_of(ctx), ignore_event, "modern", "form" in features, can=features)


def encode_task(task: Task, version: str) -> dict[str, Any]:
    """A task on the wire, with what belongs to its status."""
    outcome = task.outcome
    poll = outcome.poll if isinstance(outcome, Working) and outcome.poll is not None else POLL
    encoded: dict[str, Any] = {
        "taskId": task.id,
        "status": "working",
        "createdAt": _timestamp(task.created),
        "lastUpdatedAt": _timestamp(task.updated),
        "ttlMs": max(1, int(task.ttl * 1000)) if task.ttl is not None else None,
        "pollIntervalMs": max(1, int(poll * 1000)),
    }
    if isinstance(outcome, Working):
        return encoded | ({"statusMessage": outcome.text} if outcome.text else {})
    if isinstance(outcome, Needs):
        requests = {question.id: _dump(to_request(question)) for question in outcome.questions}
        return encoded | {"status": "input_required", "inputRequests": requests}
    if isinstance(outcome, Failed):
        if outcome.code == "canceled":
            return encoded | {"status": "cancelled", "statusMessage": outcome.message}
        error: dict[str, Any] | None = None
        if (passed := passed_error(outcome)) is not None:
            error = {key: value for key, value in passed.items() if value is not None}
        elif by_code(outcome.code).rpc_code == wire.INTERNAL_ERROR:
            # A tool that failed has a result that says so; this is a failure of the gateway itself.
            error = {"code": wire.INTERNAL_ERROR, "message": outcome.message, "data": failure_to_dict(outcome)}
        if error is not None:
            return encoded | {"status": "failed", "statusMessage": outcome.message, "error": error}
    return encoded | {"status": "completed", "result": _dump(to_tool_result(outcome, version))}


def _dump(model: Any) -> Any:
    return to_json_value(model.model_dump(by_alias=True, mode="json", exclude_none=True))


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
