"""What MCP servers answer, in the words of the house: results and errors to outcomes, input requests to questions.

Pure functions over decoded JSON. What a server says is not trusted to have the shape it should: a block that cannot
be read is a malformed response, never a crash.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from agent3.errors import (
    Agent3Error,
    CapabilityNotFound,
    MalformedResponse,
    RateLimited,
    TargetError,
    TargetRefused,
    Unavailable,
    ValidationError,
)
from agent3.mcp.channels import Refused, params_of
from agent3.model import Answer, Call, Done, Event, Failed, Needs, Outcome, Part, Question, Working, text_of

__all__ = ["error_of", "event_of", "outcome_of", "question_of", "response_of", "task_of", "url_needs"]

_OWN_META = "io.modelcontextprotocol/"
_FEWEST_POLL, _MOST_POLL = 0.05, 60.0


# Results


def outcome_of(result: Mapping[str, Any], call: Call) -> Outcome:
    """The outcome that the result of ``tools/call`` stands for."""
    kind = result.get("resultType", "complete")
    if kind == "input_required":
        return needs_of(result, call, {"state": result.get("requestState")})
    if kind == "task":
        return task_of(result, call)
    if kind != "complete":
        raise MalformedResponse(f"{call.agent} answered with a result of the unknown type {str(kind)[:64]!r}.")
    parts = parts_of(result, call.agent)
    if result.get("isError"):
        return Failed("target_failed", text_of(parts)[:2_000] or f"{call.agent} says that it failed.", parts=parts)
    meta = result.get("_meta")
    kept = {key: one for key, one in meta.items() if not key.startswith(_OWN_META)} if isinstance(meta, dict) else {}
    return Done(parts, meta=kept)


def parts_of(result: Mapping[str, Any], who: str) -> tuple[Part, ...]:
    """The content as parts, structured content as the last; a text that only repeats it is left out."""
    content = result.get("content") or []
    try:
        parts = [_part(block) for block in content]
    except (AttributeError, KeyError, TypeError, ValueError) as wrong:
        raise MalformedResponse(f"{who} answered with content that cannot be read: {wrong!r}.") from None
    structured = result.get("structuredContent")
    if structured is None:
        return tuple(parts)
    return (*(part for part in parts if not _repeats(part, structured)), Part(data=structured))


def _repeats(part: Part, structured: Any) -> bool:
    """Whether a text says just what the structured content says; a plain value is wrapped there as ``result``."""
    if part.text is not None and structured == {"result": part.text}:
        return True
    if part.text is None or not part.text or part.text[0] not in '{["0123456789-tfn':
        return False
    try:
        return bool(msgspec.json.decode(part.text) == structured)
    except (msgspec.DecodeError, RecursionError):
        return False


def _part(block: Mapping[str, Any]) -> Part:
    kind = block["type"]
    meta = _meta(block)
    if kind == "text":
        return Part(text=_text(block["text"]), meta=meta)
    if kind in ("image", "audio"):
        return Part(raw=base64.b64decode(block["data"], validate=True), media_type=_kind(block), meta=meta)
    if kind == "resource_link":
        described = {key: block[key] for key in ("title", "description", "size") if block.get(key) is not None}
        name = _text(block.get("name") or block["uri"])
        return Part(url=_text(block["uri"]), name=name, media_type=_kind(block), meta={**described, **meta})
    if kind == "resource":
        return _embedded(block["resource"], meta)
    raise ValueError(f"a block of the unknown type {str(kind)[:64]!r}")


def _embedded(resource: Mapping[str, Any], meta: dict[str, Any]) -> Part:
    uri = _text(resource["uri"])
    kind, told = _kind(resource), {**meta, "uri": uri}
    if "blob" in resource:
        return Part(raw=base64.b64decode(resource["blob"], validate=True), media_type=kind, name=uri, meta=told)
    return Part(text=_text(resource["text"]), media_type=kind, name=uri, meta=told)


def _meta(block: Mapping[str, Any]) -> dict[str, Any]:
    found = block.get("_meta") or {}
    if annotations := block.get("annotations"):
        return {**found, "annotations": annotations}
    return dict(found)


def _kind(block: Mapping[str, Any]) -> str | None:
    kind = block.get("mimeType")
    return None if kind is None else _text(kind)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is of the type {type(value).__name__}")
    return value


# Questions


def needs_of(result: Mapping[str, Any], call: Call, state: dict[str, Any]) -> Needs:
    """The questions of an input_required result, with what it takes to go on.

    A server may use the same key in every round; the ids of questions are unique over the job.
    """
    requests = result.get("inputRequests") or {}
    if not isinstance(requests, dict):
        raise MalformedResponse(f"{call.agent} asks for input, but what it asks cannot be read.")
    keys: dict[str, str] = {}
    questions = []
    for key, request in requests.items():
        name = key if key not in call.answers else f"{key}-{call.turn}"
        keys[name] = key
        questions.append(_asked(name, request, call))
    return Needs(tuple(questions), state={"mcp": "input", "keys": keys, **state})


def _asked(name: str, request: Any, call: Call) -> Question:
    method = request.get("method") if isinstance(request, dict) else None
    if method != "elicitation/create":
        raise TargetError(f"{call.agent} asks for {str(method)[:64]!r}, which this gateway does not offer to servers.")
    return question_of(name, params_of(request))


def question_of(name: str, params: Mapping[str, Any]) -> Question:
    """The question in an ``elicitation/create``: a form with its schema, or an address to go to."""
    text = str(params.get("message") or "The server asks for input.")
    if params.get("mode") == "url":
        return Question(name, text, url=str(params.get("url") or ""))
    schema = params.get("requestedSchema")
    return Question(name, text, schema if isinstance(schema, dict) else None)


def response_of(answer: Answer | None) -> dict[str, Any]:
    """What a server is told: an ElicitResult."""
    if answer is None:
        return {"action": "cancel"}
    if answer.action != "accept":
        return {"action": answer.action}
    return {"action": "accept", "content": answer.data} if isinstance(answer.data, dict) else {"action": "accept"}


def responses_of(call: Call) -> dict[str, Any]:
    """The inputResponses of a turn that brings answers."""
    keys = call.state.get("keys") or {}
    return {key: response_of(call.answers.get(name)) for name, key in keys.items()}


def url_needs(refused: Refused) -> Needs | None:
    """The questions in an error that says "go there first" (-32042), or None for any other."""
    data = refused.data if isinstance(refused.data, dict) else {}
    wanted = data.get("elicitations") if refused.code == -32042 else None
    if not isinstance(wanted, list):
        return None
    questions = (
        question_of(str(one.get("elicitationId") or number), {**one, "mode": "url"})
        for number, one in enumerate(wanted, 1)
        if isinstance(one, dict)
    )
    return Needs(tuple(questions), state={"mcp": "again"})


# Tasks


def task_of(task: Mapping[str, Any], call: Call) -> Outcome:
    """How a task stands, as an outcome."""
    state = {"mcp": "task", "task": task.get("taskId")}
    status, text = task.get("status"), task.get("statusMessage")
    if not isinstance(state["task"], str):
        raise MalformedResponse(f"{call.agent} answered with a task that has no id.")
    if status == "completed":
        result = task.get("result")
        return outcome_of({**(result if isinstance(result, dict) else {}), "resultType": "complete"}, call)
    if status == "failed":
        wrong = task.get("error")
        code, words = (wrong.get("code"), wrong.get("message")) if isinstance(wrong, dict) else (None, None)
        raise error_of(Refused(code if isinstance(code, int) else None, str(words or text or "It failed.")), call.agent)
    if status == "cancelled":
        return Failed("canceled", str(text or f"{call.agent} says that the task was cancelled."))
    if status == "input_required":
        return needs_of(task, call, state)
    poll = task.get("pollIntervalMs")
    seconds = float(poll) / 1000 if isinstance(poll, int | float) and not isinstance(poll, bool) else 1.0
    told = text if isinstance(text, str) else None
    return Working(state, poll=min(max(seconds, _FEWEST_POLL), _MOST_POLL), text=told)


# Notifications and errors


def event_of(method: str, params: Mapping[str, Any]) -> Event | None:
    """The event that a notification stands for, or None for one that is nobody's business."""
    if method == "notifications/progress":
        text = params.get("message")
        done, total = _number(params.get("progress")), _number(params.get("total"))
        return Event("progress", text=text if isinstance(text, str) else None, done=done, total=total)
    if method == "notifications/message":
        data = params.get("data")
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        return Event("log", text=text[:2_000], name=str(params.get("level") or "info"), data=params.get("logger"))
    return None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


_CODES: dict[int, type[Agent3Error]] = {
    -32001: TargetRefused,
    -32003: TargetRefused,
    -32005: RateLimited,
    -32011: Unavailable,
}


def error_of(refused: Refused, who: str) -> Agent3Error:
    """The error that a server's error stands for."""
    said = f"{who} answered: {refused.message[:1_000]}"
    data = refused.data if isinstance(refused.data, dict) else {}
    after = data.get("retry_after")
    kind = _CODES.get(refused.code or 0, TargetError)
    if refused.code == -32602:
        kind = CapabilityNotFound if _unknown_tool(refused.message) else ValidationError
    error = kind(said, retry_after=float(after) if isinstance(after, int | float) else None)
    if refused.status is not None and refused.status < 500:
        error.sent = False  # turned away at the door: no tool has run
    return error


def _unknown_tool(message: str) -> bool:
    words = message.lower()
    return "tool" in words and any(
        word in words for word in ("unknown", "not found", "no tool", "no such", "not exist")
    )
