"""What MCP servers answer, in the words of the house: results and errors to outcomes, input requests to questions.

Pure functions over decoded JSON. What a server says is not trusted to have the shape it should: a block that cannot
be read is a malformed response, never a crash.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from agent3.errors import (
    Agent3Error,
    CapabilityNotFound,
    Declined,
    MalformedResponse,
    RateLimited,
    TargetError,
    TargetRefused,
    Unavailable,
    ValidationError,
)
from agent3.model import Answer, Call, Done, Event, Failed, Needs, Outcome, Part, Question, Working, text_of
from agent3.protocols.mcp.client.channels import Refused, params_of
from agent3.protocols.mcp.door.questions import REQUEST
from agent3.protocols.mcp.door.toolset import BLOCK, PASSED, STRUCTURED

__all__ = [
    "asked_of",
    "block_of",
    "error_of",
    "event_of",
    "needs_of",
    "outcome_of",
    "question_of",
    "reply_of",
    "response_of",
    "responses_of",
    "task_of",
    "url_needs",
]

_OWN_META = "io.modelcontextprotocol/"
_FEWEST_POLL, _MOST_POLL = 0.05, 60.0
_LONGEST_PAUSE = 3_600.0
"""Seconds after which we come again, whatever longer pause a server asks for."""


# Results


def outcome_of(result: Mapping[str, Any], call: Call) -> Outcome:
    """The outcome that the result of ``tools/call`` stands for."""
    kind = result.get("resultType", "complete")
    if kind == "input_required":
        return needs_of(result, call, {"state": result.get("requestState")})
    if kind == "task":
        # What is announced need not say what it asks for, and a client that follows tasks is to be asked by polling.
        polled = PASSED in call.meta or not result.get("inputRequests")
        waiting = result.get("status") == "input_required" and polled
        return task_of({**result, "status": "working"} if waiting else result, call)
    if kind != "complete":
        raise MalformedResponse(f"{call.agent} answered with a result of the unknown type {str(kind)[:64]!r}.")
    passed = PASSED in call.meta
    parts = blocks_of(result, call.agent) if passed else parts_of(result, call.agent)
    meta = result.get("_meta")
    kept = {key: one for key, one in meta.items() if not key.startswith(_OWN_META)} if isinstance(meta, dict) else {}
    if result.get("isError"):
        said = text_of(parts)[:2_000] or f"{call.agent} says that it failed."
        return Failed("target_failed", said, parts=parts, data={PASSED: {"meta": kept}} if passed else {})
    return Done(parts, meta=kept)


def blocks_of(result: Mapping[str, Any], who: str) -> tuple[Part, ...]:
    """Every block of the content as a part that can be turned back into it, structured content as the last."""
    structured = result.get("structuredContent")
    last = () if structured is None else (Part(data=structured, meta={STRUCTURED: True}),)
    return (*(block_of(block, who) for block in result.get("content") or ()), *last)


def block_of(block: Any, who: str) -> Part:
    """One block of a server's content, with everything that a plain part does not say beside it."""
    try:
        return _whole(block)
    except (AttributeError, KeyError, TypeError, ValueError) as wrong:
        raise MalformedResponse(f"{who} answered with content that cannot be read: {wrong!r}.") from None


_PAYLOADS = {"text": {"type", "text"}, "image": {"type", "data", "mimeType"}, "audio": {"type", "data", "mimeType"}}


def _whole(block: Mapping[str, Any]) -> Part:
    part = _part(block)
    bare = Part(text=part.text, raw=part.raw, url=part.url, name=part.name, media_type=part.media_type)
    return bare if _says_all(bare, block) else replace(bare, meta={BLOCK: _husk(block)})


def _says_all(part: Part, block: Mapping[str, Any]) -> bool:
    """Whether the bare part is enough to tell which block it was."""
    kind = block["type"]
    return block.keys() <= _PAYLOADS.get(kind, set()) and (part.media_type is None or part.media_type.startswith(kind))


def _husk(block: Mapping[str, Any]) -> dict[str, Any]:
    """The block without its payload; of a resource an empty one stays, to tell text from bytes."""
    if block["type"] == "resource":
        inside = {key: "" if key in ("text", "blob") else one for key, one in block["resource"].items()}
        return {**block, "resource": inside}
    return {key: one for key, one in block.items() if key not in ("text", "data")}


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
    if _repeat_each(parts, structured):
        return (Part(data=structured),)
    return (*(part for part in parts if not _repeats(part, structured)), Part(data=structured))


def _repeat_each(parts: Sequence[Part], structured: Any) -> bool:
    """Whether the texts are the items of a list that is wrapped there as ``result``."""
    items = structured.get("result") if isinstance(structured, dict) and len(structured) == 1 else None
    if not isinstance(items, list) or len(items) != len(parts):
        return False
    return all(
        _repeats(part, {"result": item}) or _repeats(part, item) for part, item in zip(parts, items, strict=True)
    )


def _repeats(part: Part, structured: Any) -> bool:
    """Whether a text says just what the structured content says; a plain value is wrapped there as ``result``."""
    if part.text is not None and structured == {"result": part.text}:
        return True
    if part.text is None or not part.text or part.text[0] not in '{["0123456789-tfn':
        return False
    try:
        return msgspec.json.decode(part.text) in (structured, _unwrapped(structured))
    except (msgspec.DecodeError, RecursionError):
        return False


def _unwrapped(structured: Any) -> Any:
    alone = isinstance(structured, dict) and structured.keys() == {"result"}
    return structured["result"] if alone else structured


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
        questions.append(asked_of(name, request, call))
    raw = [one.id for one in questions if REQUEST in (one.schema or {})]
    return Needs(tuple(questions), state={"mcp": "input", "keys": keys, "raw": raw, **state})


def asked_of(name: str, request: Any, call: Call) -> Question:
    """The question in a request of a server: for the person, or for the client's own model or folders."""
    method = request.get("method") if isinstance(request, dict) else None
    if method in ("sampling/createMessage", "roots/list") and PASSED in call.meta:
        return Question(name, f"{call.agent} asks for {method}", {"type": "object", REQUEST: request})
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
    raw = call.state.get("raw") or ()
    return {key: reply_of(call.answers.get(name), name in raw) for name, key in keys.items()}


def reply_of(answer: Answer | None, raw: bool) -> Any:
    """An ElicitResult, or what the client's own model or folders gave; Declined for a no, which they cannot say."""
    if not raw:
        return response_of(answer)
    if answer is None or answer.action != "accept":
        raise Declined("The client declined what the server asked of its model or folders.")
    return answer.data


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
        known = wrong if isinstance(wrong, dict) else {}
        code, words = known.get("code"), known.get("message")
        refused = Refused(
            code if isinstance(code, int) else None, str(words or text or "It failed."), known.get("data")
        )
        raise error_of(refused, call.agent, passed=PASSED in call.meta)
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
        data, who = params.get("data"), params.get("logger")
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        told = None if who is None and isinstance(data, str) else {"logger": who, "data": data}
        return Event("log", text=text[:2_000], name=str(params.get("level") or "info"), data=told)
    return None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


_CODES: dict[int, type[Agent3Error]] = {
    -32001: TargetRefused,
    -32003: TargetRefused,
    -32005: RateLimited,
    -32011: Unavailable,
}


def error_of(refused: Refused, who: str, *, passed: bool = False) -> Agent3Error:
    """The error that a server's error stands for; ``passed`` keeps it as it came, for a client that is to hear it."""
    said = f"{who} answered: {refused.message[:1_000]}"
    data = refused.data if isinstance(refused.data, dict) else {}
    after = data.get("retry_after")
    kind = _CODES.get(refused.code or 0, TargetError)
    if refused.code == -32602:
        kind = CapabilityNotFound if _unknown_tool(refused.message) else ValidationError
    error = kind(said, retry_after=float(min(after, _LONGEST_PAUSE)) if isinstance(after, int | float) else None)
    if passed and refused.code is not None:
        error.data[PASSED] = {"error": {"code": refused.code, "message": refused.message, "data": refused.data}}
    if refused.status is not None and refused.status < 500:
        error.sent = False  # turned away at the door: no tool has run
    return error


def _unknown_tool(message: str) -> bool:
    words = message.lower()
    return "tool" in words and any(
        word in words for word in ("unknown", "not found", "no tool", "no such", "not exist")
    )
