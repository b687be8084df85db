"""From outcomes and parts to the protocol's results and content, for every version of it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import mcp_types as wire
import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS, is_version_at_least
from msgspec import UnsetType
from pydantic import TypeAdapter, ValidationError

from agent3.model import Done, Failed, Needs, Part, Working, encode
from agent3.protocols.mcp.door.toolset import FilledPrompt
from agent3.protocols.mcp.meta_keys import ANNOTATIONS, BLOCK, PASSED, STRUCTURED, URI

__all__ = ["failure_text", "failure_to_dict", "passed_error", "questions_as_text", "to_contents", "to_json_value",
           "to_prompt_result", "to_tool_result"]  # fmt: skip

Contents = wire.TextResourceContents | wire.BlobResourceContents
_content_block: TypeAdapter[wire.ContentBlock] = TypeAdapter(wire.ContentBlock)
_OWN_KEYS = frozenset({URI, ANNOTATIONS, BLOCK, STRUCTURED})


# Results of calls


def to_tool_result(outcome: Done | Failed | Working, version: str) -> wire.CallToolResult:
    """The result of a tools/call for a client of this version; MCPError for an upstream's error that is passed on."""
    if isinstance(outcome, Working):
        data: dict[str, Any] = {"job": outcome.job, "status": "working"}
        if outcome.poll is not None:
            data["poll"] = outcome.poll
        text = outcome.text or "The work continues in the background."
        return wire.CallToolResult(content=[_text(f"{text}\nJob: {outcome.job}")], structured_content=data)
    parts = [*outcome.parts, *(part for artifact in outcome.artifacts for part in artifact.parts)]
    if isinstance(outcome, Done):
        return wire.CallToolResult(
            content=_to_blocks(parts, version),
            structured_content=_structured_content(parts, version),
            _meta=outcome.meta or None,
        )
    if (error := passed_error(outcome)) is not None:
        raise MCPError(error["code"], error["message"], error.get("data"))
    if PASSED in outcome.data:
        return wire.CallToolResult(
            content=_to_blocks(parts, version),
            structured_content=_structured_content(parts, version),
            is_error=True,
            _meta=outcome.data[PASSED].get("meta") or None,
        )
    message = _text(failure_text(outcome))
    if len(parts) == 1 and isinstance(parts[0].data, dict):
        # The tool has a form of its own for failures, which replaces ours.
        return wire.CallToolResult(content=[message], structured_content=to_json_value(parts[0].data), is_error=True)
    return wire.CallToolResult(
        content=[message, *_to_blocks(parts, version)], structured_content=failure_to_dict(outcome), is_error=True
    )


def questions_as_text(needs: Needs, hint: str) -> wire.CallToolResult:
    """The questions for a client that cannot ask its user: the model reads them and asks."""
    waits = all(question.by is not None for question in needs.questions)
    lines = [
        "This waits for an approval or another event, and continues by itself."
        if waits
        else "This cannot continue without an answer."
    ]
    for question in needs.questions:
        lines.append(f"Question {question.id}: {question.text}")
        if question.schema is not None:
            lines.append(f"JSON Schema of the answer: {encode(question.schema).decode()}")
        if question.url is not None:
            lines.append(f"Open: {question.url}")
    if needs.job:
        lines.append(f"Job: {needs.job}")
    text = _text("\n".join([*lines, hint]))
    for part in needs.parts:
        if STRUCTURED in part.meta:  # the tool has a form of its own for questions, which is no error
            return wire.CallToolResult(content=[text], structured_content=to_json_value(part.data))
    data = {
        "code": "input_required",
        "message": " ".join(question.text for question in needs.questions),
        "retryable": False,
        "status": "needs",
        "job": needs.job,
        "turn": needs.turn,
        "questions": needs.questions,
    }
    # An error: what a tool promises to answer with, it has not answered yet.
    return wire.CallToolResult(content=[text], structured_content=to_json_value(data), is_error=True)


# Failures


def failure_to_dict(failed: Failed) -> dict[str, Any]:
    """As ``Agent3Error.to_dict``, with the errors of an input beside ``data`` instead of inside it."""
    data = dict(failed.data)
    errors = data.pop("errors", None)
    found: dict[str, Any] = {"code": failed.code, "message": failed.message, "retryable": failed.retryable}
    if failed.retry_after is not None:
        found["retry_after"] = round(failed.retry_after, 3)
    if errors:
        found["errors"] = errors
    if data:
        found["data"] = data
    encoded: dict[str, Any] = to_json_value(found)
    return encoded


def passed_error(failed: Failed) -> dict[str, Any] | None:
    """The error of an upstream server that is to be passed on as one; None for every other failure."""
    passed = failed.data.get(PASSED)
    error = passed.get("error") if isinstance(passed, dict) else None
    return error if isinstance(error, dict) else None


def failure_text(failed: Failed) -> str:
    """What a model reads of a failure: the message, and what may help it to do better."""
    lines = [failed.message]
    lines.extend(
        f"- {fault['message']}"
        for fault in failed.data.get("errors") or ()
        if isinstance(fault, Mapping) and fault.get("message") and fault["message"] not in failed.message
    )
    if failed.data.get("nearest"):
        lines.append(f"Nearest: {', '.join(map(str, failed.data['nearest']))}")
    own = failed.parts[0].data if len(failed.parts) == 1 else None
    if isinstance(own, dict) and "nextStep" in own:
        lines.append(str(own["nextStep"]))
    elif failed.retryable:
        after = failed.retry_after
        lines.append(f"Try again in {after:.0f} s." if after else "It may work later.")
    return "\n".join(lines)


def to_json_value(value: Any) -> Any:
    """The value as JSON has it: no structs, dates or NaN, which the SDK would not send or a client could not read."""
    return msgspec.json.decode(encode(value))


# Resources and prompts


def to_contents(parts: Sequence[Part], uri: str) -> list[Contents]:
    """The contents of a resource; a part may name another address, as the files of a folder do."""
    return [_to_contents(part, uri, _own_meta(part)) for part in parts]


def to_prompt_result(prompt: FilledPrompt, version: str) -> wire.GetPromptResult:
    messages = [
        wire.PromptMessage(role=message.role, content=_to_block(message.part, number, version))
        for number, message in enumerate(prompt.messages, 1)
    ]
    return wire.GetPromptResult(description=prompt.description, messages=messages, _meta=prompt.meta or None)


# Content


def _structured_content(parts: Sequence[Part], version: str) -> Any:
    values = [to_json_value(part.data) for part in parts if not isinstance(part.data, UnsetType)]
    if not values:
        return None
    value = values[0] if len(values) == 1 else values
    # Legacy versions know objects only.
    return value if isinstance(value, dict) or version in MODERN_PROTOCOL_VERSIONS else {"result": value}


def _to_blocks(parts: Sequence[Part], version: str) -> list[wire.ContentBlock]:
    visible = (part for part in parts if STRUCTURED not in part.meta)
    return [_to_block(part, number, version) for number, part in enumerate(visible, 1)]


def _to_block(part: Part, number: int, version: str) -> wire.ContentBlock:
    if BLOCK in part.meta and part.artifact is None:
        with suppress(ValidationError):  # what the protocol does not allow is left out of the block
            return _restore_block(part, part.meta[BLOCK])
    meta = _own_meta(part)
    block: wire.ContentBlock
    if isinstance(part.meta.get(URI), str) and part.url is None and part.artifact is None:
        block = wire.EmbeddedResource(resource=_to_contents(part, part.meta[URI]), _meta=meta)
    elif part.text is not None:
        block = _text(part.text, meta)
    elif not isinstance(part.data, UnsetType):
        block = _text(encode(part.data).decode(), meta)
    elif part.raw is not None:
        data = base64.b64encode(part.raw).decode()
        kind = part.media_type or "application/octet-stream"
        if kind.startswith("image/"):
            block = wire.ImageContent(data=data, mime_type=kind, _meta=meta)
        elif kind.startswith("audio/") and is_version_at_least(version, "2025-03-26"):
            block = wire.AudioContent(data=data, mime_type=kind, _meta=meta)
        else:
            uri = f"agent3://parts/{quote(part.name or str(number), safe='')}"
            blob = wire.BlobResourceContents(uri=uri, mime_type=kind, blob=data)
            block = wire.EmbeddedResource(resource=blob, _meta=meta)
    else:
        uri = part.url or f"agent3://artifacts/{quote(part.artifact or '', safe='')}"
        name = part.name or uri
        if is_version_at_least(version, "2025-06-18"):
            block = wire.ResourceLink(name=name, uri=uri, mime_type=part.media_type, _meta=meta)
        else:  # links are newer than the oldest versions
            block = _text(name if name == uri else f"{name}: {uri}", meta)
    if ANNOTATIONS in part.meta:
        with suppress(ValidationError):
            block.annotations = wire.Annotations.model_validate(part.meta[ANNOTATIONS])
    return block


def _restore_block(part: Part, frame: dict[str, Any]) -> wire.ContentBlock:
    """The block that an upstream server sent, with the payload as it is now."""
    payload = base64.b64encode(part.raw).decode() if part.raw is not None else part.text
    if frame["type"] == "resource":
        inner = {key: payload if key in ("text", "blob") else value for key, value in frame["resource"].items()}
        return _content_block.validate_python({**frame, "resource": inner}, by_name=False)
    if frame["type"] == "resource_link":
        return _content_block.validate_python({**frame, "uri": part.url}, by_name=False)
    key = "text" if frame["type"] == "text" else "data"
    return _content_block.validate_python({**frame, key: payload}, by_name=False)


def _to_contents(part: Part, uri: str, meta: dict[str, Any] | None = None) -> Contents:
    uri = part.meta.get(URI, uri)
    if part.raw is not None:
        blob = base64.b64encode(part.raw).decode()
        return wire.BlobResourceContents(uri=uri, mime_type=part.media_type, blob=blob, _meta=meta)
    if part.text is not None:
        return wire.TextResourceContents(uri=uri, mime_type=part.media_type, text=part.text, _meta=meta)
    text = encode(part.data).decode() if not isinstance(part.data, UnsetType) else part.url or part.artifact or ""
    return wire.TextResourceContents(uri=uri, mime_type=part.media_type or "application/json", text=text)


def _own_meta(part: Part) -> dict[str, Any] | None:
    return {key: value for key, value in part.meta.items() if key not in _OWN_KEYS} or None


def _text(text: str, meta: dict[str, Any] | None = None) -> wire.TextContent:
    return wire.TextContent(text=text, _meta=meta)
