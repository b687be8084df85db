"""The texts that a model reads: names, descriptions and schemas of the five tools, apart from the code."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from agent3.calls.callbacks import EVENTS
from agent3.gateway.hits import DETAILS
from agent3.gateway.input_modes import MOST_FILES
from agent3.gateway.output_schemas import CALL, CARD, FEEDBACK, SEARCH, SELECT

__all__ = ["ARTIFACT_NAME", "ARTIFACT_TEXT", "INSTRUCTIONS", "MOST_CALLS", "TOOLS", "ToolText"]

MOST_CALLS = 20
"""Calls in one batch."""

INSTRUCTIONS = (
    "agent3 reaches agents, tools and websites for you. If a tool named AGENT__CAPABILITY fits, call it "
    "directly. Otherwise find one with agent3_search and call it with agent3_call; agent3_select shows an "
    "agent in detail."
)

ARTIFACT_NAME = "Large result"
ARTIFACT_TEXT = "A part that was too large for the result, which links to it. Only the caller of the tool can read it."


_UNTOLD = frozenset({"minLength", "maxLength", "minItems", "maxItems", "exclusiveMinimum", "additionalProperties"})
"""Keywords that a model does without: it is told when it goes beyond them."""
_TOLD_LEVELS = 2
"""Levels of properties that a model is shown; what is below is in the description above it."""


class ToolText(Struct, frozen=True, kw_only=True):
    """The texts and the schema of one tool."""

    name: str
    title: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    read_only: bool

    def shown_schema(self) -> dict[str, Any]:
        """The schema as a model reads it, in every conversation: shorter, and never narrower than what is checked."""
        return _shorten(self.input_schema, 0)


def _shorten(given: dict[str, Any], level: int) -> dict[str, Any]:
    shown = {key: value for key, value in given.items() if key not in _UNTOLD}
    if "properties" in shown:
        inner = shown.pop("properties")
        required = shown.pop("required", None)
        if level < _TOLD_LEVELS:
            shown["properties"] = {name: _shorten(value, level + 1) for name, value in inner.items()}
            if required:
                shown["required"] = required
    if "items" in shown:
        shown["items"] = _shorten(shown["items"], _TOLD_LEVELS)
    return shown


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    shape = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**shape, "required": required} if required else shape


_AGENT = {"type": "string", "minLength": 1, "maxLength": 256, "description": "Id of the agent, from agent3_search"}

_CALLBACK = {
    "type": "object",
    "description": (
        "Send a POST to url when the call ends or asks a question, with token as Bearer; returns at once, with the job"
    ),
    "properties": {
        "url": {"type": "string", "minLength": 1, "maxLength": 2048, "description": "Address that gets the POST"},
        "token": {"type": "string", "description": "Sent as Authorization: Bearer"},
        "events": {
            "type": "array",
            "items": {"enum": list(EVENTS)},
            "minItems": 1,
            "maxItems": len(EVENTS),
            "default": list(EVENTS[:-1]),
            "description": "Events to send",
        },
    },
    "required": ["url"],
    "additionalProperties": False,
}
_FILES = {
    "type": "array",
    "maxItems": MOST_FILES,
    "description": "Files: each has artifact (id from a result), uri (a data URI) or bytes (base64); mediaType, name",
    "items": {
        "type": "object",
        "properties": {
            "artifact": {"type": "string", "maxLength": 256, "description": "Id of an artifact from a result"},
            "uri": {"type": "string", "description": "A data URI"},
            "bytes": {"type": "string", "description": "The content in base64"},
            "mediaType": {"type": "string", "maxLength": 256},
            "name": {"type": "string", "maxLength": 256},
        },
        "additionalProperties": False,
    },
}
_METADATA = {
    "type": "object",
    "description": "Options of the call",
    "properties": {
        "userAgentId": {"type": "string", "maxLength": 256, "description": "Your own agent id, for reputation"},
        "timeout": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 3_600_000,
            "default": 30_000,
            "description": "Timeout of the call in milliseconds",
        },
        "streaming": {"type": "boolean", "description": "Send pieces of the result as they arrive"},
        "retries": {
            "type": "integer",
            "minimum": 0,
            "maximum": 10,
            "default": 1,
            "description": "Repeats of a failed attempt, if safe",
        },
        "idempotencyKey": {
            "type": "string",
            "maxLength": 256,
            "description": "A call with the same key never runs twice",
        },
        "contextId": {"type": "string", "maxLength": 256, "description": "Groups related calls"},
        "agentCard": {"type": "boolean", "default": False, "description": "Include the agent's card in the answer"},
        "job": {
            "type": "string",
            "maxLength": 256,
            "description": "Continue this job with message or answers; without them, read its status or result",
        },
        "answers": {"type": "object", "description": "Answers to the job's questions, by question id"},
        "callback": _CALLBACK,
    },
    "additionalProperties": False,
}
_FILTERS = {
    "type": "object",
    "description": "All filters must match",
    "properties": {
        "agent": {"type": "string", "maxLength": 256, "description": "Agent id"},
        "protocol": {"type": "string", "maxLength": 64, "description": "Such as mcp, a2a, nlweb"},
        "tag": {"type": "string", "maxLength": 256, "description": "Tag of the capability or its agent"},
        "provider": {"type": "string", "maxLength": 256, "description": "Provider of the agent"},
        "maxPrice": {
            "type": "number",
            "minimum": 0,
            "maximum": 1_000_000,
            "description": "Maximum price per call, in US dollars",
        },
        "readOnly": {"type": "boolean", "description": "Whether it is read-only"},
        "mediaType": {"type": "string", "maxLength": 256, "description": "Media type it accepts or returns"},
    },
    "additionalProperties": False,
}

TOOLS: tuple[ToolText, ...] = (
    ToolText(
        name="agent3_search",
        output_schema=SEARCH,
        title="Find agents",
        description=(
            "Find agents, tools and websites for a task. Each hit has the agent's id, the capability, and "
            "how to call it."
        ),
        input_schema=_object(
            ["query"],
            query={"type": "string", "maxLength": 1000, "description": "What you need, in a few words"},
            limit={
                "type": "integer",
                "minimum": 1,
                "maximum": 50,
                "default": 5,
                "description": "Maximum number of hits",
            },
            detail={
                "type": "string",
                "enum": list(DETAILS),
                "default": "signature",
                "description": "How much of the input to show",
            },
            filters=_FILTERS,
            maxTokens={
                "type": "integer",
                "minimum": 100,
                "maximum": 50_000,
                "description": "Maximum size of the answer",
            },
        ),
        read_only=True,
    ),
    ToolText(
        name="agent3_select",
        output_schema=SELECT,
        title="Inspect an agent",
        description="Show an agent's capabilities with input schemas, examples, prices and rating.",
        input_schema=_object(["agentId"], agentId=_AGENT),
        read_only=True,
    ),
    ToolText(
        name="agent3_invoke",
        output_schema=CARD,
        title="Show an agent's card",
        description="Show an agent's raw card, for debugging only. To call an agent, use agent3_call.",
        input_schema=_object(["agentId"], agentId=_AGENT),
        read_only=True,
    ),
    ToolText(
        name="agent3_call",
        output_schema=CALL,
        title="Call an agent",
        description=(
            "Call an agent, tool or website: in plain words, or with capability and input if you know its schema."
        ),
        input_schema=_object(
            [],  # no combination of schemas at the top, which some models' APIs refuse; the verb itself checks
            agentId={**_AGENT, "description": "Id of the agent, from agent3_search"},
            message={"type": "string", "maxLength": 200_000, "description": "The task, in natural language"},
            inputMode={
                "type": "string",
                "maxLength": 256,
                "default": "text/plain",
                "description": "Media type of the message",
            },
            capability={
                "type": "string",
                "maxLength": 256,
                "description": "Which capability to call, if the agent has several",
            },
            input={"type": "object", "description": "Structured input, matching the capability's schema"},
            files=_FILES,
            metadata=_METADATA,
            calls={
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_CALLS,
                "items": {"type": "object"},
                "description": "Several calls at once, in place of one: each with agentId, message …",
            },
        ),
        read_only=False,
    ),
    ToolText(
        name="agent3_feedback",
        output_schema=FEEDBACK,
        title="Rate an agent",
        description="Rate an agent after a call, to help others choose.",
        input_schema=_object(
            ["agentId", "rating"],
            agentId=_AGENT,
            rating={"type": "integer", "minimum": 1, "maximum": 5, "description": "1 is bad, 5 is excellent"},
            comment={"type": "string", "maxLength": 2000, "description": "Why"},
        ),
        read_only=False,
    ),
)
