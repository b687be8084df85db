"""What MCP servers answer, translated to the gateway's model: results and errors to outcomes, requests to questions.

Pure functions over decoded JSON. A server is not trusted to send what it should: a block that cannot be read is passed
on as the JSON that it is. By then the tool has done its work, and the rest of the result must not be lost with it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from agent3.calls.outcomes import HTTP_STATUS, read_usage
from agent3.errors import (
    Agent3Error,
    CapabilityNotFound,
    Declined,
    LoopDetected,
    MalformedResponse,
    RateLimited,
    TargetError,
    TargetRefused,
    Unavailable,
    ValidationError,
)
from agent3.model import Answer, Call, Done, Event, Failed, Needs, Outcome, Part, Question, Working, text_of
from agent3.protocols.mcp.client.channels import ServerError, params_of
from agent3.protocols.mcp.meta_keys import BLOCK, ELICITATION, PASSED, REQUEST, RESERVED, STRUCTURED

__all__ = ["block_to_part", "content_to_parts", "decode_base64", "encode_elicit_result", "encode_responses",
           "error_to_needs", "handshake_task_to_outcome", "notification_to_event", "request_to_question",
           "requests_to_needs", "result_to_outcome", "server_error_to_error", "task_to_outcome",
           "unwrap_result"]  # fmt: skip

_SHORTEST_POLL, _LONGEST_POLL = 0.05, 60.0
_LONGEST_PAUSE = 3_600.0
"""Seconds after which we try again, even if the server asks for a longer pause."""


# Results


def result_to_outcome(result: Mapping[str, Any], call: Call) -> Outcome:
    """The outcome that the result of ``tools/call`` stands for."""
    kind = result.get("resultType", "complete")
    if kind == "input_required":
        return requests_to_needs(result, call, {"state": result.get("requestState")})
    if kind == "task":
        # The announcement need not include the questions, and a client that follows tasks is asked when it polls.
        polled = PASSED in call.meta or not result.get("inputRequests")
        waiting = result.get("status") == "input_required" and polled
        return task_to_outcome({**result, "status": "working"} if waiting else result, call)
    if kind != "complete":
        raise MalformedResponse(f"{call.agent} answered with a result of the unknown type {str(kind)[:64]!r}.")
    passed = PASSED in call.meta
    if passed:
        structured = result.get("structuredContent")
        last = () if structured is None else (Part(data=structured, meta={STRUCTURED: True}),)
        parts = (*map(block_to_part, _blocks_in(result)), *last)
    else:
        parts = content_to_parts(result)
    meta = result.get("_meta")
    kept = {key: value for key, value in meta.items() if not key.startswith(RESERVED)} if isinstance(meta, dict) else {}
    if result.get("isError"):
        text = text_of(parts)[:2_000] or f"{call.agent} reports that it failed."
        data = {PASSED: {"meta": kept}} if passed else {}
        return Failed("target_failed", text, parts=parts, data=data, usage=read_usage(meta))
    return Done(parts, meta=kept, usage=read_usage(meta))


def unwrap_result(result: dict[str, Any], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The result of a legacy call as the modern era has it, whose ``schema`` was listed.

    Structured content of the handshake era is always an object; a server of both wraps everything else.
    """
    structured = result.get("structuredContent")
    if not isinstance(structured, dict) or structured.keys() != {"result"}:
        return result
    if schema:
        wrapped = isinstance(schema.get("type"), str) and schema["type"] != "object"
    else:  # then its text tells: it has the value alone
        texts = [block.get("text") for block in _blocks_in(result) if isinstance(block, dict)]
        value = structured["result"]
        wrapped = len(texts) == 1 and (texts[0] == value or _repeats(Part(text=texts[0]), value))
    return {**result, "structuredContent": structured["result"]} if wrapped else result


_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)
_PLAIN_KEYS = {"text": {"type", "text"}, "image": {"type", "data", "mimeType"}, "audio": {"type", "data", "mimeType"}}
"""Keys of a block that a plain part can express by itself."""


def _blocks_in(result: Mapping[str, Any]) -> list[Any]:
    """The content of a result; a single block, and a mere text, where a server gives no list."""
    content = result.get("content")
    if content is None:
        return []
    return content if isinstance(content, list) else [content]


def block_to_part(block: Any) -> Part:
    """A content block as a part that can be turned back into it: what a plain part cannot say is kept in its meta."""
    block = _drop_nulls(block)
    try:
        part = _read_block(block)
    except _UNREADABLE:
        return _show_block(block)
    bare = Part(text=part.text, raw=part.raw, url=part.url, name=part.name, media_type=part.media_type)
    kind = block["type"]
    is_typed = bare.media_type is None or bare.media_type.startswith(kind)
    if block.keys() <= _PLAIN_KEYS.get(kind, set()) and is_typed:
        return bare
    if kind == "resource":
        # An empty payload stays, to tell text from bytes.
        inner = {key: "" if key in ("text", "blob") else value for key, value in block["resource"].items()}
        frame = {**block, "resource": inner}
    elif kind == "resource_link":
        frame = {**block, "name": part.name}
    else:
        frame = {key: value for key, value in block.items() if key not in ("text", "data")}
    return replace(bare, meta={BLOCK: frame})


def _drop_nulls(block: Any) -> Any:
    """The block without the optional keys that some servers send as null, of its resource too."""
    if not isinstance(block, dict):
        return block
    return {
        key: {name: inner for name, inner in value.items() if inner is not None}
        if key == "resource" and isinstance(value, dict)
        else value
        for key, value in block.items()
        if value is not None
    }


def content_to_parts(result: Mapping[str, Any]) -> tuple[Part, ...]:
    """The content as parts, structured content last; texts that only repeat it are left out."""
    parts = [_to_part(block) for block in _blocks_in(result)]
    structured = result.get("structuredContent")
    if structured is None:
        return tuple(parts)
    # A list is often wrapped as {"result": [...]}, with each of its items as a text beside it.
    items = structured.get("result") if isinstance(structured, dict) and len(structured) == 1 else None
    if (
        isinstance(items, list)
        and len(items) == len(parts)
        and all(
            _repeats(part, {"result": item}) or _repeats(part, item) for part, item in zip(parts, items, strict=True)
        )
    ):
        return (Part(data=structured),)
    said = {one for one in structured.values() if isinstance(one, str) and one} if isinstance(structured, dict) else ()
    return (
        *(part for part in parts if part.text not in said and not _is_json(part, structured)),
        Part(data=structured),
    )


def _repeats(part: Part, structured: Any) -> bool:
    """Whether a text says only what the structured content says too: all of it as JSON, or one of its values."""
    if part.text and isinstance(structured, dict) and part.text in structured.values():
        return True
    return _is_json(part, structured)


def _is_json(part: Part, structured: Any) -> bool:
    if part.text is None or not part.text or part.text[0] not in '{["0123456789-tfn':
        return False
    wrapped = isinstance(structured, dict) and structured.keys() == {"result"}
    try:
        return msgspec.json.decode(part.text) in (structured, structured["result"] if wrapped else structured)
    except (msgspec.DecodeError, RecursionError):
        return False


def _to_part(block: Any) -> Part:
    """The part that a block stands for."""
    block = _drop_nulls(block)
    try:
        return _read_block(block)
    except _UNREADABLE:
        return _show_block(block)


def _show_block(block: Any) -> Part:
    """A block that cannot be read, as it is: a mere text as one, anything else as JSON."""
    return Part(text=block if isinstance(block, str) else msgspec.json.encode(block).decode())


def _read_block(block: Mapping[str, Any]) -> Part:
    kind = block["type"]
    meta = dict(block.get("_meta") or {})
    if annotations := block.get("annotations"):
        meta["annotations"] = annotations
    if kind == "text":
        text = block.get("text", "")
        return Part(text=text if isinstance(text, str) else msgspec.json.encode(text).decode(), meta=meta)
    if kind in ("image", "audio"):
        return Part(raw=decode_base64(block["data"]), media_type=_media_type(block), meta=meta)
    if kind == "resource_link":
        described = {key: block[key] for key in ("title", "description", "size") if block.get(key) is not None}
        name = _check_text(block.get("name") or block["uri"])
        uri = _check_text(block["uri"])
        return Part(url=uri, name=name, media_type=_media_type(block), meta={**described, **meta})
    if kind == "resource":
        resource = block["resource"]
        uri = _check_text(resource["uri"])
        media_type, meta = _media_type(resource), {**meta, "uri": uri}
        if "blob" in resource:
            raw = decode_base64(resource["blob"])
            return Part(raw=raw, media_type=media_type, name=uri, meta=meta)
        return Part(text=_check_text(resource["text"]), media_type=media_type, name=uri, meta=meta)
    raise ValueError(f"a block of the unknown type {str(kind)[:64]!r}")


def decode_base64(text: str) -> bytes:
    """The bytes in base64 as servers write it: also in lines, as a data: URL, in the alphabet of URLs, or unpadded.

    ValueError for anything else.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        bare = "".join((text.partition(",")[2] if text.startswith("data:") else text).split()).rstrip("=")
        return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars="-_", validate=True)


def _media_type(block: Mapping[str, Any]) -> str | None:
    value = block.get("mimeType")
    return None if value is None else _check_text(value)


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is of the type {type(value).__name__}")
    return value


# Questions


def requests_to_needs(result: Mapping[str, Any], call: Call, state: dict[str, Any]) -> Needs:
    """The questions of an input_required result, with the state that is needed to continue.

    A server may use the same key in every round; the ids of questions are unique within a job.
    """
    requests = result.get("inputRequests") or {}
    if not isinstance(requests, dict):
        raise MalformedResponse(f"{call.agent} asks for input, but its inputRequests cannot be read.")
    keys: dict[str, str] = {}
    questions = []
    for key, request in requests.items():
        name = key if key not in call.answers else f"{key}-{call.turn}"
        keys[name] = key
        questions.append(request_to_question(name, request, call))
    raw = [question.id for question in questions if REQUEST in (question.schema or {})]
    return Needs(tuple(questions), state={"mcp": "input", "keys": keys, "raw": raw, **state})


def request_to_question(name: str, request: Any, call: Call) -> Question:
    """The question in a request of a server: for the person, or for the client's own model or folders."""
    method = request.get("method") if isinstance(request, dict) else None
    if method in ("sampling/createMessage", "roots/list") and PASSED in call.meta:
        return Question(name, f"{call.agent} asks for {method}", {"type": "object", REQUEST: request})
    if method != "elicitation/create":
        raise TargetError(f"{call.agent} asks for {str(method)[:64]!r}, which this gateway does not support.")
    question = _elicitation_to_question(name, params_of(request))
    own = params_of(request).get("elicitationId")
    if question.url is not None and isinstance(own, str) and PASSED in call.meta:
        return replace(question, schema={ELICITATION: own})
    return question


def _elicitation_to_question(name: str, params: Mapping[str, Any]) -> Question:
    """The question in an ``elicitation/create``: a form with its schema, or an address to open."""
    text = str(params.get("message") or "The server asks for input.")
    if params.get("mode") == "url":
        return Question(name, text, url=str(params.get("url") or ""))
    schema = params.get("requestedSchema")
    return Question(name, text, schema if isinstance(schema, dict) else None)


def encode_elicit_result(answer: Answer | None) -> dict[str, Any]:
    if answer is None:
        return {"action": "cancel"}
    if answer.action != "accept":
        return {"action": answer.action}
    return {"action": "accept", "content": answer.data} if isinstance(answer.data, dict) else {"action": "accept"}


def encode_responses(call: Call) -> dict[str, Any]:
    """The inputResponses of a turn that brings answers.

    Declined if the client refused a request to its own model or folders: those have no result that says no.
    """
    keys = call.state.get("keys") or {}
    raw = call.state.get("raw") or ()
    responses: dict[str, Any] = {}
    for name, key in keys.items():
        answer = call.answers.get(name)
        if name not in raw:
            responses[key] = encode_elicit_result(answer)
        elif answer is None or answer.action != "accept":
            raise Declined("The client declined a request of the server for its model or folders.")
        else:
            responses[key] = answer.data
    return responses


def error_to_needs(error: ServerError) -> Needs | None:
    """The questions in an error that says "open this address first" (-32042); None for any other."""
    data = error.data if isinstance(error.data, dict) else {}
    elicitations = data.get("elicitations") if error.code == -32042 else None
    if not isinstance(elicitations, list):
        return None
    questions = (
        _elicitation_to_question(str(params.get("elicitationId") or number), {**params, "mode": "url"})
        for number, params in enumerate(elicitations, 1)
        if isinstance(params, dict)
    )
    return Needs(tuple(questions), state={"mcp": "again"})


# Tasks


def task_to_outcome(task: Mapping[str, Any], call: Call) -> Outcome:
    state = {"mcp": "task", "task": task.get("taskId")}
    status, text = task.get("status"), task.get("statusMessage")
    if not isinstance(state["task"], str):
        raise MalformedResponse(f"{call.agent} answered with a task that has no id.")
    if status == "completed":
        result = task.get("result")
        return result_to_outcome({**(result if isinstance(result, dict) else {}), "resultType": "complete"}, call)
    if status == "failed":
        given = task.get("error")
        error = given if isinstance(given, dict) else {}
        code, message = error.get("code"), str(error.get("message") or text or "It failed.")
        failure = ServerError(code if isinstance(code, int) else None, message, error.get("data"))
        raise server_error_to_error(failure, call.agent, passed=PASSED in call.meta)
    if status == "cancelled":
        return Failed("canceled", str(text or f"{call.agent} reports that the task was cancelled."))
    if status == "input_required":
        return requests_to_needs(task, call, state)
    shown = text if isinstance(text, str) else None
    return Working(state, poll=_poll(task.get("pollIntervalMs")), text=shown)


def handshake_task_to_outcome(task: Mapping[str, Any], call: Call) -> Outcome:
    """The outcome of a task of 2025-11-25: its result, and whatever it asks, is fetched by a request of its own."""
    task_id, status, text = task.get("taskId"), task.get("status"), task.get("statusMessage")
    if not isinstance(task_id, str):
        raise MalformedResponse(f"{call.agent} answered with a task that has no id.")
    if status == "cancelled":
        return Failed("canceled", str(text or f"{call.agent} reports that the task was cancelled."))
    state = {"mcp": "task", "task": task_id, "era": "legacy", "status": status}
    return Working(state, poll=_poll(task.get("pollInterval")), text=text if isinstance(text, str) else None)


def _poll(milliseconds: Any) -> float:
    """The seconds until a task is looked at again."""
    is_number = isinstance(milliseconds, int | float) and not isinstance(milliseconds, bool)
    return min(max(float(milliseconds) / 1000 if is_number else 1.0, _SHORTEST_POLL), _LONGEST_POLL)


# Notifications and errors


def notification_to_event(method: str, params: Mapping[str, Any]) -> Event | None:
    """The event that a notification stands for; None for one that is not for callers."""
    if method == "notifications/progress":
        text = params.get("message")
        done, total = _number(params.get("progress")), _number(params.get("total"))
        return Event("progress", text=text if isinstance(text, str) else None, done=done, total=total)
    if method == "notifications/message":
        data, source = params.get("data"), params.get("logger")
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        kept = None if source is None and isinstance(data, str) else {"logger": source, "data": data}
        return Event("log", text=text[:2_000], name=str(params.get("level") or "info"), data=kept)
    return None


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


_ERRORS: dict[int, type[Agent3Error]] = {
    -32001: TargetRefused,
    -32003: TargetRefused,
    -32005: RateLimited,
    -32011: Unavailable,
}


def server_error_to_error(error: ServerError, who: str, *, passed: bool = False) -> Agent3Error:
    """Our error for a server's; ``passed`` keeps the original in its data, for an MCP client that is to see it."""
    data = error.data if isinstance(error.data, dict) else {}
    after = data.get("retry_after")
    kind = LoopDetected if data.get("code") == LoopDetected.code else _ERRORS.get(error.code or 0, TargetError)
    if error.code == -32602:
        # The protocol has one code for an unknown tool and for invalid arguments; only the text tells them apart.
        text = error.message.lower()
        unknown = any(phrase in text for phrase in ("unknown", "not found", "no tool", "no such", "not exist"))
        kind = CapabilityNotFound if "tool" in text and unknown else ValidationError
    found = kind(
        f"{who} answered: {error.message[:1_000]}",
        retry_after=float(min(after, _LONGEST_PAUSE)) if isinstance(after, int | float) else None,
    )
    if passed and error.code is not None:
        found.data[PASSED] = {"error": {"code": error.code, "message": error.message, "data": error.data}}
    if error.status is not None:
        found.data[HTTP_STATUS] = error.status
    if kind is RateLimited or (error.status is not None and error.status < 500):
        found.sent = False  # refused at the door: no tool has run
    return found
