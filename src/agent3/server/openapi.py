"""The OpenAPI document of the REST door, made from the same schemas that check its requests."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Struct

from agent3._version import __version__
from agent3.calls.callbacks import EVENTS
from agent3.calls.history import Wanted
from agent3.calls.statistics import StatisticsWanted
from agent3.gateway import output_schemas
from agent3.gateway.agent_book import AGENT_SCHEMA, APPROVAL_SCHEMA
from agent3.gateway.routes import ROUTE_SCHEMA
from agent3.gateway.tool_texts import TOOLS

__all__ = ["document"]

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "retryable": {"type": "boolean"},
                "nextStep": {"type": "string"},
                "retry_after": {"type": "number"},
                "data": {"type": "object"},
            },
            "required": ["code", "message", "retryable"],
        }
    },
    "required": ["error"],
}
_RESPONSE = {
    **output_schemas.CALL,
    "description": "The result of a call, the question it asks (status needs), or the job that continues.",
}
_ANSWER = {
    "type": "object",
    "properties": {"answers": {"type": "object"}, "message": {"type": "string"}},
    "additionalProperties": False,
}
_APPROVAL_ANSWER = {
    "type": "object",
    "properties": {"reason": {"type": "string"}},
    "additionalProperties": False,
}
_CALLBACKS = {
    "type": "object",
    "properties": {
        "job": {"type": "string"},
        "callbacks": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "event": {"enum": list(EVENTS)},
                    "url": {"type": "string"},
                    "status": {"enum": ["waiting", "sending", "delivered", "dead", "gone", "refused", "dropped"]},
                    "attempts": {"type": "integer"},
                    "created": {"type": "number"},
                    "delivered": {"type": "number"},
                    "nextAttempt": {"type": "number"},
                    "reason": {"type": "string"},
                },
                "required": ["id", "event", "url", "status", "attempts", "created"],
            },
        },
    },
    "required": ["job", "callbacks"],
}


_PRICE = {
    "type": "object",
    "properties": {
        "agentId": {"type": "string"},
        "capability": {"type": "string"},
        "price": {
            "type": ["object", "null"],
            "properties": {name: {"type": "number", "minimum": 0} for name in ("call", "second", "tokens")},
        },
    },
    "required": ["agentId"],
    "additionalProperties": False,
}


_ADDED = {
    "type": "object",
    "properties": {
        "added": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "id": {"type": "string"},
                    "capabilities": {"type": "array", "items": {"type": "string"}},
                    "error": {"type": "object"},
                },
                "required": ["name"],
            },
        }
    },
    "required": ["added"],
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    summary: str,
    body: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None,
    done: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": done or {"description": "Done", "content": _json(answer or {"type": "object"})},
            "default": {"description": "An error", "content": _json({"$ref": "#/components/schemas/Error"})},
        },
        **more,
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query(name: str, most: int) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": most}}


def _filters(kind: type[Struct], *more: str) -> list[dict[str, Any]]:
    names = [name.replace("_", "-") for name in kind.__struct_fields__]
    return [{"name": name, "in": "query", "schema": {"type": "string"}} for name in (*names, *more)]


def _header(name: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": {"type": "string"}, "example": example}


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """The whole document."""
    body = {text.name: text.input_schema for text in TOOLS}
    agent, job, artifact = [_path("agent_id")], [_path("job_id")], [_path("artifact_id")]
    words = [{"name": "query", "in": "query", "schema": {"type": "string"}}, _query("limit", 50)]
    capability, also = ({"name": name, "in": "query", "schema": {"type": "string"}} for name in ("capability", "also"))
    return {
        "openapi": "3.1.0",
        "x-agent3-gateway": True,
        "info": {
            "title": "agent3",
            "version": __version__,
            "description": "Any agent, any tool, any website, one call.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/agents": {
                "get": _operation("List or search agents", parameters=words),
                "post": _describe_adding("Add an agent, or update one", AGENT_SCHEMA),
            },
            "/v1/agents/{agent_id}": {
                "get": _operation("Show an agent", parameters=agent),
                "delete": _operation("Remove an added agent", parameters=agent),
            },
            "/v1/agents/{agent_id}/card": {"get": _operation("Show the raw card of an agent", parameters=agent)},
            "/v1/agents/{agent_id}/changes": {
                "get": _operation("Show the changes to its description that wait for approval", parameters=agent)
            },
            "/v1/agents/{agent_id}/approve": {
                "post": _operation("Approve its changed description", APPROVAL_SCHEMA, parameters=agent)
            },
            "/v1/approvals": {
                "get": _operation(
                    "List calls that wait for approval; with status=all, also decided ones",
                    parameters=[
                        _query("limit", 1_000),
                        {"name": "status", "in": "query", "schema": {"enum": ["waiting", "all"]}},
                    ],
                )
            },
            "/v1/approvals/{approval_id}": {
                "get": _operation("Show an approval, with the input of its call", parameters=[_path("approval_id")])
            },
            "/v1/approvals/{approval_id}/approve": {
                "post": _operation("Approve the call", _APPROVAL_ANSWER, parameters=[_path("approval_id")])
            },
            "/v1/approvals/{approval_id}/deny": {
                "post": _operation("Deny the call", _APPROVAL_ANSWER, parameters=[_path("approval_id")])
            },
            "/v1/search": {"post": _operation("Find agents", body["agent3_search"])},
            "/v1/call": {
                "post": _call("Call an agent", body["agent3_call"], [_header("Prefer", "respond-async")], streams=True)
            },
            "/v1/calls": {
                "get": _operation("List calls of the ledger, page by page", parameters=_filters(Wanted, "format"))
            },
            "/v1/calls/stats": {"get": _operation("Statistics of calls", parameters=_filters(StatisticsWanted))},
            "/v1/calls/open": {
                "get": _operation("List jobs that work or wait for an answer", parameters=[_query("limit", 1_000)])
            },
            "/v1/calls/{job_id}": {"get": _operation("A job", parameters=[*job, _query("wait", 60)])},
            "/v1/calls/{job_id}/record": {
                "get": _operation("Show everything recorded about a call, with all its turns", parameters=job)
            },
            "/v1/calls/{job_id}/events": {
                "get": _operation(
                    "Follow the events of a call as a stream; resumes after Last-Event-ID",
                    done={"description": "A stream", "content": {"text/event-stream": {}}},
                    parameters=[*job, _query("after", 2**53), _header("Last-Event-ID", "7")],
                )
            },
            "/v1/calls/{job_id}/callbacks": {
                "get": _operation("The result of a call, or its status", answer=_CALLBACKS, parameters=job)
            },
            "/v1/calls/{job_id}/answer": {"post": _call("Answer its question", _ANSWER, job)},
            "/v1/calls/{job_id}/cancel": {"post": _operation("Cancel it; operators cancel any", parameters=job)},
            "/v1/prices": {"post": _operation("Set the price of an agent's calls", _PRICE)},
            "/v1/feedback": {"post": _operation("Rate an agent", body["agent3_feedback"])},
            "/v1/routes": {
                "get": _operation("List the stand-ins of capabilities", parameters=[capability]),
                "put": _operation("Let one capability stand in for another", ROUTE_SCHEMA),
                "delete": _operation("Remove stand-ins", parameters=[{**capability, "required": True}, also]),
            },
            "/v1/data/{principal}": {
                "get": _operation(
                    "Everything stored about a caller, as JSON lines",
                    done={"description": "The lines", "content": {"application/jsonl": {}}},
                    parameters=[_path("principal")],
                ),
                "delete": _operation("Erase everything stored about a caller", parameters=[_path("principal")]),
            },
            "/v1/artifacts/{artifact_id}": {
                "get": _operation(
                    "Download a large result",
                    done={"description": "The bytes", "content": {"*/*": {}}},
                    parameters=artifact,
                )
            },
        },
        "components": {
            "schemas": {"Error": _ERROR, "CallResponse": _RESPONSE},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _describe_adding(summary: str, body: dict[str, Any]) -> dict[str, Any]:
    """What was added (201), or of several things none (200); as a stream for a caller who wants to see progress."""
    operation = _operation(summary, body, _ADDED)
    where = {"Location": {"description": "The agent, if it is one", "schema": {"type": "string"}}}
    content = {**_json(_ADDED), "text/event-stream": {}}
    operation["responses"]["201"] = {"description": "Added", "headers": where, "content": content}
    return operation


def _call(
    summary: str, body: dict[str, Any], parameters: list[dict[str, Any]], *, streams: bool = False
) -> dict[str, Any]:
    """A turn of a call: done, asking, going on (202), or failed with the status of what went wrong."""
    told = {"$ref": "#/components/schemas/CallResponse"}
    refused = {"$ref": "#/components/schemas/Error"}
    operation = _operation(summary, body, told, parameters=parameters)
    if streams:
        operation["responses"]["200"]["content"]["text/event-stream"] = {}
    where = {"Location": {"description": "The job", "schema": {"type": "string"}}}
    operation["responses"]["202"] = {"description": "It continues as a job", "headers": where, "content": _json(told)}
    operation["responses"]["default"]["content"] = _json({"anyOf": [refused, told]})
    return operation
