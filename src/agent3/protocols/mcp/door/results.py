"""From our outcomes and parts to the protocol's results and content, for every version of it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import mcp_types as wire
import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS, is_version_at_least
from msgspec import UnsetType
from pydantic import TypeAdapter

from agent3.errors import Agent3Error
from agent3.model import Done, Failed, Needs, Part, Working, encode
from agent3.protocols.mcp.door.toolset import ANNOTATIONS, BLOCK, PASSED, STRUCTURED, URI, Message, Prompted

__all__ = [
    "asked_in_text",
    "contents",
    "failure_error",
    "failure_form",
    "failure_text",
    "plain",
    "prompted",
    "refused",
    "result",
]


def refused(error: Agent3Error) -> Failed:
    """The outcome of a call that was refused."""
    return Failed(error.code, error.message, retryable=error.retryable, retry_after=error.retry_after, data=error.data)


_content: TypeAdapter[wire.ContentBlock] = TypeAdapter(wire.ContentBlock)


def result(outcome: Done | Failed | Working, version: str) -> wire.CallToolResult:
    """The result of a tools/call, as a client of this version can take it; MCPError for an error passed on as it is."""
    if isinstance(outcome, Done):
        return _done(outcome, version)
    if isinstance(outcome, Failed):
        return _failed(outcome, version)
    return _working(outcome)


def _done(done: Done, version: str) -> wire.CallToolResult:
    parts = [*done.parts, *(part for artifact in done.artifacts for part in artifact.parts)]
    return wire.CallToolResult(
        content=_blocks(parts, version), structured_content=_structured(parts, version), _meta=done.meta or None
    )


def _failed(failed: Failed, version: str) -> wire.CallToolResult:
    parts = [*failed.parts, *(part for artifact in failed.artifacts for part in artifact.parts)]
    if (error := failure_error(failed)) is not None:
        raise MCPError(error["code"], error["message"], error.get("data"))
    if PASSED in failed.data:
        meta = failed.data[PASSED].get("meta") or None
        structured = _structured(parts, version)
        return wire.CallToolResult(
            content=_blocks(parts, version), structured_content=structured, is_error=True, _meta=meta
        )
    text = _text(failure_text(failed))
    if len(parts) == 1 and isinstance(parts[0].data, dict):
        # The tool has a form of its own for failures; it takes the place of ours.
        return wire.CallToolResult(content=[text], structured_content=plain(parts[0].data), is_error=True)
    return wire.CallToolResult(
        content=[text, *_blocks(parts, version)], structured_content=failure_form(failed), is_error=True
    )


def failure_form(failed: Failed) -> dict[str, Any]:
    """As ``Agent3Error.to_dict``, with the faults of an input beside it instead of below ``data``."""
    data = dict(failed.data)
    errors = data.pop("errors", None)
    form: dict[str, Any] = {"code": failed.code, "message": failed.message, "retryable": failed.retryable}
    if failed.retry_after is not None:
        form["retry_after"] = round(failed.retry_after, 3)
    if errors:
        form["errors"] = errors
    if data:
        form["data"] = data
    made: dict[str, Any] = plain(form)
    return made


def failure_error(failed: Failed) -> dict[str, Any] | None:
    """The error of a server that is to be passed on as one; None for every other failure."""
    passed = failed.data.get(PASSED)
    error = passed.get("error") if isinstance(passed, dict) else None
    return error if isinstance(error, dict) else None


def failure_text(failed: Failed) -> str:
    """What a model reads of a failure."""
    return "\n".join([failed.message, *_advice(failed)])


def _advice(failed: Failed) -> Iterator[str]:
    """What a model should read besides the message."""
    for fault in failed.data.get("errors") or ():
        if isinstance(fault, Mapping) and fault.get("message") and fault["message"] not in failed.message:
            yield f"- {fault['message']}"
    if failed.data.get("nearest"):
        yield f"Nearest: {', '.join(map(str, failed.data['nearest']))}"
    if failed.retryable:
        yield f"It may work again in {failed.retry_after:.0f} s." if failed.retry_after else "It may work later."


def _working(working: Working) -> wire.CallToolResult:
    form: dict[str, Any] = {"job": working.job, "status": "working"}
    if working.poll is not None:
        form["poll"] = working.poll
    text = working.text or "This goes on in the background."
    return wire.CallToolResult(content=[_text(f"{text}\nJob: {working.job}")], structured_content=form)


def asked_in_text(needs: Needs, hint: str) -> wire.CallToolResult:
    """For a client that cannot ask its person: the model reads the question and asks."""
    lines = ["This cannot go on without an answer."]
    for question in needs.questions:
        lines.append(f"Question {question.id}: {question.text}")
        if question.schema is not None:
            lines.append(f"JSON Schema of the answer: {encode(question.schema).decode()}")
        if question.url is not None:
            lines.append(f"To be done at: {question.url}")
    lines += [f"Job: {needs.job}"] if needs.job else []
    message = " ".join(question.text for question in needs.questions)
    form = {"code": "input_required", "message": message, "retryable": False, "status": "needs"}
    asked = {"job": needs.job, "turn": needs.turn, "questions": needs.questions}
    text = _text("\n".join([*lines, hint]))
    return wire.CallToolResult(content=[text], structured_content=plain({**form, **asked}), is_error=True)


def contents(parts: Sequence[Part], uri: str) -> list[wire.TextResourceContents | wire.BlobResourceContents]:
    """What was read at an address; a part may name another, as the files of a folder do."""
    return [_contents(part, uri, _meta(part)) for part in parts]


def prompted(prompt: Prompted, version: str) -> wire.GetPromptResult:
    """A prompt filled in."""
    messages = [_message(message, number, version) for number, message in enumerate(prompt.messages, 1)]
    return wire.GetPromptResult(description=prompt.description, messages=messages, _meta=prompt.meta or None)


def plain(value: Any) -> Any:
    """The value as JSON has it: no structs, no dates, no NaN, which the SDK would not send or a client not read."""
    return msgspec.json.decode(encode(value))


def _message(message: Message, number: int, version: str) -> wire.PromptMessage:
    return wire.PromptMessage(role=message.role, content=_block(message.part, number, version))


def _structured(parts: Sequence[Part], version: str) -> Any:
    values = [plain(part.data) for part in parts if not isinstance(part.data, UnsetType)]
    if not values:
        return None
    value = values[0] if len(values) == 1 else values
    return value if isinstance(value, dict) or version in MODERN_PROTOCOL_VERSIONS else {"result": value}


def _blocks(parts: Sequence[Part], version: str) -> list[wire.ContentBlock]:
    shown = (part for part in parts if STRUCTURED not in part.meta)
    return [_block(part, number, version) for number, part in enumerate(shown, 1)]


def _block(part: Part, number: int, version: str) -> wire.ContentBlock:
    if BLOCK in part.meta and part.artifact is None:
        return _passed_block(part, part.meta[BLOCK])
    block = _bare_block(part, number, version)
    if ANNOTATIONS in part.meta:
        block.annotations = wire.Annotations.model_validate(part.meta[ANNOTATIONS])
    return block


def _bare_block(part: Part, number: int, version: str) -> wire.ContentBlock:
    if isinstance(part.meta.get(URI), str) and part.url is None and part.artifact is None:
        return wire.EmbeddedResource(resource=_contents(part, part.meta[URI]), _meta=_meta(part))
    if part.text is not None:
        return _text(part.text, _meta(part))
    if not isinstance(part.data, UnsetType):
        return _text(encode(part.data).decode(), _meta(part))
    if part.raw is not None:
        return _binary(part, part.raw, number, version)
    return _link(part, part.url or f"agent3://artifacts/{quote(part.artifact or '', safe='')}", version)


def _passed_block(part: Part, husk: dict[str, Any]) -> wire.ContentBlock:
    """The block that a server gave, with the payload as it is now."""
    payload = base64.b64encode(part.raw).decode() if part.raw is not None else part.text
    if husk["type"] == "resource":
        inside = {key: payload if key in ("text", "blob") else one for key, one in husk["resource"].items()}
        return _content.validate_python({**husk, "resource": inside}, by_name=False)
    if husk["type"] == "resource_link":
        return _content.validate_python({**husk, "uri": part.url}, by_name=False)
    key = "text" if husk["type"] == "text" else "data"
    return _content.validate_python({**husk, key: payload}, by_name=False)


_OURS = frozenset({URI, ANNOTATIONS, BLOCK, STRUCTURED})


def _meta(part: Part) -> dict[str, Any] | None:
    return {key: value for key, value in part.meta.items() if key not in _OURS} or None


def _text(text: str, meta: dict[str, Any] | None = None) -> wire.TextContent:
    return wire.TextContent(text=text, _meta=meta)


def _contents(
    part: Part, uri: str, meta: dict[str, Any] | None = None
) -> wire.TextResourceContents | wire.BlobResourceContents:
    uri = part.meta.get(URI, uri)
    if part.raw is not None:
        blob = base64.b64encode(part.raw).decode()
        return wire.BlobResourceContents(uri=uri, mime_type=part.media_type, blob=blob, _meta=meta)
    if part.text is not None:
        return wire.TextResourceContents(uri=uri, mime_type=part.media_type, text=part.text, _meta=meta)
    text = encode(part.data).decode() if not isinstance(part.data, UnsetType) else part.url or part.artifact or ""
    return wire.TextResourceContents(uri=uri, mime_type=part.media_type or "application/json", text=text)


def _binary(part: Part, raw: bytes, number: int, version: str) -> wire.ContentBlock:
    data = base64.b64encode(raw).decode()
    kind = part.media_type or "application/octet-stream"
    if kind.startswith("image/"):
        return wire.ImageContent(data=data, mime_type=kind, _meta=_meta(part))
    if kind.startswith("audio/") and is_version_at_least(version, "2025-03-26"):
        return wire.AudioContent(data=data, mime_type=kind, _meta=_meta(part))
    uri = f"agent3://parts/{quote(part.name or str(number), safe='')}"
    blob = wire.BlobResourceContents(uri=uri, mime_type=kind, blob=data)
    return wire.EmbeddedResource(resource=blob, _meta=_meta(part))


def _link(part: Part, uri: str, version: str) -> wire.ContentBlock:
    """Links are younger than the oldest versions, whose clients get them as text."""
    name = part.name or uri
    if not is_version_at_least(version, "2025-06-18"):
        return _text(name if name == uri else f"{name}: {uri}", _meta(part))
    return wire.ResourceLink(name=name, uri=uri, mime_type=part.media_type, _meta=_meta(part))
