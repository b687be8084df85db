"""The errors of A2A, and how each generation and binding writes and reads them.

One table gives every error its name in the specification and its codes, so that engines raise exceptions and only this
module knows numbers. The same number means different things in different generations: -32007 is a missing login in 0.1
and a missing card in 0.3. ``write_rpc`` and ``write_rest`` write errors, ``read_rpc`` and ``read_rest`` read those of
other agents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from agent3.errors import (
    AccessError,
    Agent3Error,
    CallTimeout,
    Canceled,
    Conflict,
    JobNotFound,
    MalformedResponse,
    MethodNotAllowed,
    MethodNotFound,
    NotFound,
    ParseError,
    RateLimited,
    RequestError,
    StorageError,
    TargetError,
    TargetRefused,
    TooLarge,
    TooSlow,
    Unauthenticated,
    Unavailable,
    ValidationError,
)
from agent3.protocols.a2a.wire.types import Generation

__all__ = [
    "ContentTypeNotSupported",
    "ExtendedCardNotConfigured",
    "ExtensionRequired",
    "InvalidTaskState",
    "Profile",
    "PushNotSupported",
    "StreamingNotSupported",
    "TaskNotCancelable",
    "UnsupportedOperation",
    "VersionNotSupported",
    "details_of",
    "grpc_status",
    "http_status",
    "read_reason",
    "read_rest",
    "read_rpc",
    "reason_of",
    "row_of",
    "write_rest",
    "write_rpc",
]

Profile: TypeAlias = Literal["1.0.1", "1.0.0"]
"""Whose HTTP and gRPC statuses apply: 1.0.1 changed some of those of 1.0.0, which the official test kit still uses."""

_DOMAIN: Final = "a2a-protocol.org"
_OWN_DOMAIN: Final = "agent3.dev"
_TYPES: Final = "type.googleapis.com/google.rpc."


class TaskNotCancelable(Conflict):
    """The task has ended, or can no longer be canceled."""


class PushNotSupported(RequestError):
    """This agent sends no push notifications."""


class UnsupportedOperation(RequestError):
    """This agent does not support the operation, or not for this task."""


class InvalidTaskState(UnsupportedOperation):
    """The task is in the wrong state, such as a message to one that has ended."""


class StreamingNotSupported(UnsupportedOperation):
    """This agent does not stream."""


class ContentTypeNotSupported(RequestError):
    """A media type that this agent or skill does not accept."""


class ExtendedCardNotConfigured(RequestError):
    """This agent has no extended card."""


class ExtensionRequired(RequestError):
    """The client did not activate an extension that the card requires."""


class VersionNotSupported(RequestError):
    """A version of A2A that is not supported here."""


class _Row(NamedTuple):
    """An error as the specification names it. 0.3 and 1.0 share their JSON-RPC codes."""

    name: str
    code_01: int
    code: int
    http: int
    grpc: str
    http_100: int = 0
    """The HTTP status of profile 1.0.0, where that is another."""
    grpc_100: str = ""
    ours: bool = False
    """Whether the specification does not have it: then its code is in the range that is left to servers."""


_UNSUPPORTED: Final = (400, "FAILED_PRECONDITION", 0, "UNIMPLEMENTED")
_TABLE: Final[dict[type[Agent3Error], _Row]] = {
    # Section 5.4 of 1.0.1
    JobNotFound: _Row("TaskNotFoundError", -32001, -32001, 404, "NOT_FOUND"),
    TaskNotCancelable: _Row("TaskNotCancelableError", -32002, -32002, 400, "FAILED_PRECONDITION", 409),
    PushNotSupported: _Row("PushNotificationNotSupportedError", -32003, -32003, *_UNSUPPORTED),
    UnsupportedOperation: _Row("UnsupportedOperationError", -32004, -32004, *_UNSUPPORTED),
    InvalidTaskState: _Row("UnsupportedOperationError", -32009, -32004, *_UNSUPPORTED),
    StreamingNotSupported: _Row("UnsupportedOperationError", -32006, -32004, *_UNSUPPORTED),
    ContentTypeNotSupported: _Row("ContentTypeNotSupportedError", -32005, -32005, 400, "INVALID_ARGUMENT", 415),
    MalformedResponse: _Row("InvalidAgentResponseError", -32603, -32006, 500, "INTERNAL", 502),
    ExtendedCardNotConfigured: _Row("ExtendedAgentCardNotConfiguredError", -32004, -32007, 400, "FAILED_PRECONDITION"),
    ExtensionRequired: _Row("ExtensionSupportRequiredError", -32004, -32008, 400, "FAILED_PRECONDITION"),
    VersionNotSupported: _Row("VersionNotSupportedError", -32600, -32009, *_UNSUPPORTED),
    # JSON-RPC
    ParseError: _Row("JSONParseError", -32700, -32700, 400, "INVALID_ARGUMENT"),
    RequestError: _Row("InvalidRequestError", -32600, -32600, 400, "INVALID_ARGUMENT"),
    MethodNotFound: _Row("MethodNotFoundError", -32601, -32601, 404, "UNIMPLEMENTED"),
    ValidationError: _Row("InvalidParamsError", -32602, -32602, 400, "INVALID_ARGUMENT"),
    Agent3Error: _Row("InternalError", -32603, -32603, 500, "INTERNAL"),
    # Ours; 0.1 has numbers for the first of them
    Unauthenticated: _Row("AuthenticationRequiredError", -32007, -32050, 401, "UNAUTHENTICATED", ours=True),
    AccessError: _Row("AuthorizationFailedError", -32008, -32051, 403, "PERMISSION_DENIED", ours=True),
    RateLimited: _Row("RateLimitExceededError", -32010, -32052, 429, "RESOURCE_EXHAUSTED", ours=True),
    Unavailable: _Row("ResourceUnavailableError", -32011, -32053, 503, "UNAVAILABLE", ours=True),
    StorageError: _Row("ResourceUnavailableError", -32011, -32053, 503, "UNAVAILABLE", ours=True),
    CallTimeout: _Row("DeadlineExceededError", -32054, -32054, 504, "DEADLINE_EXCEEDED", ours=True),
    Conflict: _Row("ConflictError", -32055, -32055, 409, "ABORTED", ours=True),
    Canceled: _Row("CanceledError", -32056, -32056, 409, "CANCELLED", ours=True),
    TargetError: _Row("AgentFailedError", -32603, -32603, 502, "INTERNAL", ours=True),
    NotFound: _Row("NotFoundError", -32602, -32602, 404, "NOT_FOUND", ours=True),
    TooLarge: _Row("TooLargeError", -32600, -32600, 413, "RESOURCE_EXHAUSTED", ours=True),
    TooSlow: _Row("TooSlowError", -32600, -32600, 408, "DEADLINE_EXCEEDED", ours=True),
    MethodNotAllowed: _Row("MethodNotAllowedError", -32600, -32600, 405, "UNIMPLEMENTED", ours=True),
}


def row_of(kind: type[Agent3Error]) -> _Row:
    """The row of an error, or of the nearest of its ancestors that has one."""
    return next(_TABLE[base] for base in kind.__mro__ if base in _TABLE)


def reason_of(name: str) -> str:
    """An error's name as ErrorInfo writes it: TASK_NOT_FOUND for TaskNotFoundError."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", name.removesuffix("Error"))
    return "_".join(words).upper()


def http_status(error: Agent3Error, profile: Profile = "1.0.1") -> int:
    """The HTTP status of an error in the REST binding."""
    row = row_of(type(error))
    return (row.http_100 if profile == "1.0.0" else 0) or row.http


def grpc_status(error: Agent3Error, profile: Profile = "1.0.1") -> str:
    """The name of the gRPC status of an error."""
    row = row_of(type(error))
    return (row.grpc_100 if profile == "1.0.0" else "") or row.grpc


# Writing


def write_rpc(error: Agent3Error, generation: Generation) -> dict[str, Any]:
    """The JSON-RPC error object of a generation."""
    row = row_of(type(error))
    data: Any = details_of(error) if generation == "1.0" else _free_data(error)
    return {"code": row.code_01 if generation == "0.1" else row.code, "message": error.message, "data": data}


def write_rest(error: Agent3Error, generation: Generation, profile: Profile = "1.0.1") -> tuple[int, dict[str, Any]]:
    """The HTTP status and body of the REST binding."""
    status, row = http_status(error, profile), row_of(type(error))
    if generation != "1.0":
        # 0.3 left the body open: the official SDK looks for the name under "type", the test kit under "error".
        named = {"error": row.name, "type": row.name, "code": row.code}
        return status, {**named, "message": error.message, "data": _free_data(error)}
    body = {"code": status, "status": grpc_status(error, profile), "message": error.message}
    return status, {"error": {**body, "details": details_of(error)}}


def details_of(error: Agent3Error) -> list[dict[str, Any]]:
    """The typed details of 1.0: an ErrorInfo, and a BadRequest where fields were invalid."""
    row = row_of(type(error))
    # An ErrorInfo takes only texts; values that are not scalars are left out.
    metadata = {name: str(value) for name, value in error.data.items() if isinstance(value, (str, int, float))}
    metadata["code"] = error.code
    if error.retryable:
        metadata["retryable"] = "true"
    if error.retry_after is not None:
        metadata["retryAfter"] = f"{error.retry_after:.3f}"
    domain = _OWN_DOMAIN if row.ours else _DOMAIN
    info = {"@type": f"{_TYPES}ErrorInfo", "reason": reason_of(row.name), "domain": domain, "metadata": metadata}
    violations = [
        {"field": str(entry.get("path", "")), "description": str(entry.get("message", ""))}
        for entry in getattr(error, "errors", ())
    ]
    return [info, {"@type": f"{_TYPES}BadRequest", "fieldViolations": violations}] if violations else [info]


def _free_data(error: Agent3Error) -> dict[str, Any]:
    """The ``data`` of the generations before 1.0, which may be anything."""
    data = error.to_dict()
    del data["message"]
    return data


# Reading. An agent's problem with our request keeps its name; its problem with itself is a TargetError.

_BY_REASON: Final[dict[str, type[Agent3Error]]] = {reason_of(row.name): kind for kind, row in reversed(_TABLE.items())}
_THEIR_SIDE: Final[dict[type[Agent3Error], type[Agent3Error]]] = {
    Unauthenticated: TargetRefused,
    AccessError: TargetRefused,
    Agent3Error: TargetError,
}
_BY_STATUS: Final[dict[int, type[Agent3Error]]] = {
    400: RequestError,
    401: TargetRefused,
    403: TargetRefused,
    404: MethodNotFound,
    405: MethodNotAllowed,
    408: CallTimeout,
    413: TooLarge,
    415: ContentTypeNotSupported,
    422: ValidationError,
    429: RateLimited,
    501: MethodNotFound,
    502: Unavailable,
    503: Unavailable,
    504: CallTimeout,
}


# Of rows with the same code the first counts: those of the specification stand before ours.
_BY_CODE_01: Final = {row.code_01: kind for kind, row in reversed(_TABLE.items())}
_BY_CODE: Final = {row.code: kind for kind, row in reversed(_TABLE.items())}
for _codes in (_BY_CODE_01, _BY_CODE):
    _codes |= {-32600: RequestError, -32603: Agent3Error}


def read_rpc(error: Any, generation: Generation) -> Agent3Error:
    """The error that a JSON-RPC error object of a generation stands for; never raises."""
    if not isinstance(error, Mapping) or not isinstance(error.get("code"), int):
        return MalformedResponse("The agent answered with an error that is not a JSON-RPC error object.")
    code, data = error["code"], error.get("data")
    info = _find_info(data)
    codes = _BY_CODE_01 if generation == "0.1" else _BY_CODE
    kind = _BY_REASON.get(str(info.get("reason"))) or codes.get(code, TargetError)
    return _make(kind, error.get("message"), info, data, {"rpc_code": code})


def read_rest(status: int, body: Any, retry_after: float | None = None) -> Agent3Error:
    """The error that an HTTP status and its decoded body stand for, in 0.3 and 1.0; never raises."""
    error = body.get("error") if isinstance(body, Mapping) else None
    found: Mapping[str, Any] = error if isinstance(error, Mapping) else body if isinstance(body, Mapping) else {}
    info = _find_info(found.get("details"))
    name = found.get("type") or found.get("error")
    reason = info.get("reason") or (reason_of(name) if isinstance(name, str) else "")
    kind = _BY_REASON.get(str(reason)) or _BY_STATUS.get(status, TargetError)
    made = _make(kind, found.get("message"), info, found.get("details"), {"http_status": status})
    made.retry_after = made.retry_after if retry_after is None else retry_after
    return made


def read_reason(reason: str, message: str, metadata: Mapping[str, str] | None = None) -> Agent3Error:
    """The error of an ErrorInfo, as gRPC carries it."""
    return _make(_BY_REASON.get(reason, TargetError), message, {"metadata": metadata or {}}, None, {"reason": reason})


def _find_info(data: Any) -> Mapping[str, Any]:
    """The ErrorInfo among typed details, or the free object of an older generation."""
    if isinstance(data, Mapping):
        return {"metadata": data}
    entries = data if isinstance(data, list) else ()
    return next((entry for entry in entries if isinstance(entry, Mapping) and "reason" in entry), {})


_WITHOUT_WORDS: Final[dict[type[Agent3Error], str]] = {
    CallTimeout: "The agent reports that it ran out of time",
    Canceled: "The agent reports that the task was cancelled",
    ContentTypeNotSupported: "The agent does not accept this kind of content",
    JobNotFound: "The agent does not know the task",
    MalformedResponse: "The agent reports that it could not produce a valid answer",
    MethodNotFound: "The agent does not support this operation",
    RateLimited: "The agent accepts no more calls at the moment",
    RequestError: "The agent does not accept this request",
    TargetRefused: "The agent refused our credentials",
    TooLarge: "The request is too large for the agent",
    Unavailable: "The agent is not available at the moment",
    ValidationError: "The agent does not accept this input",
}
"""What is said for an agent that gives no reason."""


def _make(
    kind: type[Agent3Error], message: Any, info: Mapping[str, Any], details: Any, data: dict[str, Any]
) -> Agent3Error:
    kind = _THEIR_SIDE.get(kind, kind)
    text = message if isinstance(message, str) and message else _WITHOUT_WORDS.get(kind, "The agent reports an error")
    if text is not message and "http_status" in data:
        text += f" (HTTP {data['http_status']})"
    metadata = info.get("metadata")
    retry_after: float | None = None
    if isinstance(metadata, Mapping):
        try:
            retry_after = float(metadata.get("retryAfter", metadata.get("retry_after")))
        except (TypeError, ValueError):
            pass
        if retry_after is not None and not 0 <= retry_after < 1e9:
            retry_after = None
    if not issubclass(kind, ValidationError):
        made = kind(text, data=data, retry_after=retry_after)
        made.sent = kind is not RateLimited  # an agent that says "too often" did not take it
        return made
    entries = details if isinstance(details, list) else ()
    listed = [entry.get("fieldViolations") for entry in entries if isinstance(entry, Mapping)]
    violations = [
        {"path": str(violation.get("field", "")), "message": str(violation.get("description", ""))}
        for entry in listed
        for violation in (entry if isinstance(entry, list) else ())
        if isinstance(violation, Mapping)
    ]
    return kind(text, errors=violations, data=data, retry_after=retry_after)
