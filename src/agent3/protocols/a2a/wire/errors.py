"""What can go wrong in A2A, and how each generation and binding says so.

``Fault`` is one row: a name of the specification with its codes. ``of`` finds the row of any error of ours, so that
engines raise errors and codecs write numbers; ``rpc``, ``rest`` and ``details`` write them, and ``read_rpc`` and
``read_rest`` read what a foreign agent wrote. The same number means different things in different generations
(-32007 is a missing login in 0.1 and a missing card in 0.3), which is why nothing else here knows numbers.
"""

from __future__ import annotations

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
    "DOMAIN",
    "ContentTypeNotSupported",
    "ExtendedCardNotConfigured",
    "ExtensionRequired",
    "Fault",
    "InvalidTaskState",
    "Profile",
    "PushNotSupported",
    "StreamingNotSupported",
    "TaskNotCancelable",
    "UnsupportedOperation",
    "VersionNotSupported",
    "details",
    "grpc_status",
    "http_status",
    "of",
    "read_reason",
    "read_rest",
    "read_rpc",
    "rest",
    "rpc",
]

Profile: TypeAlias = Literal["1.0.1", "1.0.0"]
"""Whose table of HTTP and gRPC statuses holds. 1.0.1 changed six of them; the official test kit still knows 1.0.0."""

DOMAIN: Final = "a2a-protocol.org"
_OWN_DOMAIN: Final = "agent3.dev"
_TYPES: Final = "type.googleapis.com/google.rpc."


class TaskNotCancelable(Conflict):
    """The task has ended, or cannot be stopped any more."""


class PushNotSupported(RequestError):
    """This agent tells nobody of its tasks."""


class UnsupportedOperation(RequestError):
    """This agent does not do that, or not with this task."""


class InvalidTaskState(UnsupportedOperation):
    """The task is not in a state for this: a message to one that has ended."""


class StreamingNotSupported(UnsupportedOperation):
    """This agent does not stream."""


class ContentTypeNotSupported(RequestError):
    """A media type that this agent or skill does not take."""


class ExtendedCardNotConfigured(RequestError):
    """There is no other card than the public one."""


class ExtensionRequired(RequestError):
    """The card says that an extension is required, and the client did not activate it."""


class VersionNotSupported(RequestError):
    """A version of A2A that is not spoken here."""


class Fault(NamedTuple):
    """An error as the specification names it: JSON-RPC codes by generation, statuses of HTTP and gRPC by profile."""

    name: str
    rpc: int
    http: int
    grpc: str
    old_http: int = 0
    old_grpc: str = ""
    first: int = 0
    """The code of 0.1, where that is another."""
    native: bool = True
    """Whether the specification has it; the others are ours, in the range that is left to servers."""

    @property
    def reason(self) -> str:
        """The name as ErrorInfo writes it: TASK_NOT_FOUND for TaskNotFoundError."""
        words = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in self.name[1:])
        return f"{self.name[0]}{words}".replace("J_S_O_N", "JSON").removesuffix("_ERROR")

    def code(self, generation: Generation) -> int:
        """The JSON-RPC code in a generation."""
        return (self.first if generation == "0.1" else 0) or self.rpc


_TABLE: Final[dict[type[Agent3Error], Fault]] = {
    # What the specification names, section 5.4 of 1.0.1
    JobNotFound: Fault("TaskNotFoundError", -32001, 404, "NOT_FOUND"),
    TaskNotCancelable: Fault("TaskNotCancelableError", -32002, 400, "FAILED_PRECONDITION", 409),
    PushNotSupported: Fault(
        "PushNotificationNotSupportedError", -32003, 400, "FAILED_PRECONDITION", 0, "UNIMPLEMENTED"
    ),
    UnsupportedOperation: Fault("UnsupportedOperationError", -32004, 400, "FAILED_PRECONDITION", 0, "UNIMPLEMENTED"),
    InvalidTaskState: Fault(
        "UnsupportedOperationError", -32004, 400, "FAILED_PRECONDITION", 0, "UNIMPLEMENTED", first=-32009
    ),
    StreamingNotSupported: Fault(
        "UnsupportedOperationError", -32004, 400, "FAILED_PRECONDITION", 0, "UNIMPLEMENTED", first=-32006
    ),
    ContentTypeNotSupported: Fault("ContentTypeNotSupportedError", -32005, 400, "INVALID_ARGUMENT", 415),
    MalformedResponse: Fault("InvalidAgentResponseError", -32006, 500, "INTERNAL", 502, first=-32603),
    ExtendedCardNotConfigured: Fault(
        "ExtendedAgentCardNotConfiguredError", -32007, 400, "FAILED_PRECONDITION", first=-32004
    ),
    ExtensionRequired: Fault("ExtensionSupportRequiredError", -32008, 400, "FAILED_PRECONDITION", first=-32004),
    VersionNotSupported: Fault(
        "VersionNotSupportedError", -32009, 400, "FAILED_PRECONDITION", 0, "UNIMPLEMENTED", first=-32600
    ),
    # What JSON-RPC names
    ParseError: Fault("JSONParseError", -32700, 400, "INVALID_ARGUMENT"),
    RequestError: Fault("InvalidRequestError", -32600, 400, "INVALID_ARGUMENT"),
    MethodNotFound: Fault("MethodNotFoundError", -32601, 404, "UNIMPLEMENTED"),
    ValidationError: Fault("InvalidParamsError", -32602, 400, "INVALID_ARGUMENT"),
    Agent3Error: Fault("InternalError", -32603, 500, "INTERNAL"),
    # What only we and the first generation name
    Unauthenticated: Fault("AuthenticationRequiredError", -32050, 401, "UNAUTHENTICATED", first=-32007, native=False),
    AccessError: Fault("AuthorizationFailedError", -32051, 403, "PERMISSION_DENIED", first=-32008, native=False),
    RateLimited: Fault("RateLimitExceededError", -32052, 429, "RESOURCE_EXHAUSTED", first=-32010, native=False),
    Unavailable: Fault("ResourceUnavailableError", -32053, 503, "UNAVAILABLE", first=-32011, native=False),
    StorageError: Fault("ResourceUnavailableError", -32053, 503, "UNAVAILABLE", first=-32011, native=False),
    CallTimeout: Fault("DeadlineExceededError", -32054, 504, "DEADLINE_EXCEEDED", native=False),
    Conflict: Fault("ConflictError", -32055, 409, "ABORTED", native=False),
    Canceled: Fault("CanceledError", -32056, 409, "CANCELLED", native=False),
    TargetError: Fault("AgentFailedError", -32603, 502, "INTERNAL", native=False),
    NotFound: Fault("NotFoundError", -32602, 404, "NOT_FOUND", native=False),
    TooLarge: Fault("TooLargeError", -32600, 413, "RESOURCE_EXHAUSTED", native=False),
    TooSlow: Fault("TooSlowError", -32600, 408, "DEADLINE_EXCEEDED", native=False),
    MethodNotAllowed: Fault("MethodNotAllowedError", -32600, 405, "UNIMPLEMENTED", native=False),
}


def of(kind: type[Agent3Error]) -> Fault:
    """The row of an error, or of the nearest of its ancestors that has one."""
    return next(_TABLE[one] for one in kind.__mro__ if one in _TABLE)


def http_status(wrong: Agent3Error, profile: Profile = "1.0.1") -> int:
    """The HTTP status of an error in the REST binding."""
    fault = of(type(wrong))
    return (fault.old_http if profile == "1.0.0" else 0) or fault.http


def grpc_status(wrong: Agent3Error, profile: Profile = "1.0.1") -> str:
    """The name of the gRPC status of an error."""
    fault = of(type(wrong))
    return (fault.old_grpc if profile == "1.0.0" else "") or fault.grpc


# Writing


def rpc(wrong: Agent3Error, generation: Generation) -> dict[str, Any]:
    """The JSON-RPC error object of a generation."""
    data: Any = details(wrong) if generation == "1.0" else _free(wrong)
    return {"code": of(type(wrong)).code(generation), "message": wrong.message, "data": data}


def rest(wrong: Agent3Error, generation: Generation, profile: Profile = "1.0.1") -> tuple[int, dict[str, Any]]:
    """The HTTP status and body of the REST binding.

    0.3 left the body open: ``type`` is where the official SDK looks for the name and ``error`` where the test kit does.
    """
    status = http_status(wrong, profile)
    if generation != "1.0":
        fault = of(type(wrong))
        named = {"error": fault.name, "type": fault.name, "code": fault.code("0.3")}
        return status, {**named, "message": wrong.message, "data": _free(wrong)}
    body = {"code": status, "status": grpc_status(wrong, profile), "message": wrong.message}
    return status, {"error": {**body, "details": details(wrong)}}


def details(wrong: Agent3Error) -> list[dict[str, Any]]:
    """The typed details of 1.0: who says what went wrong, and which fields were wrong."""
    fault = of(type(wrong))
    domain = DOMAIN if fault.native else _OWN_DOMAIN
    info = {"@type": f"{_TYPES}ErrorInfo", "reason": fault.reason, "domain": domain, "metadata": _metadata(wrong)}
    violations = [
        {"field": str(one.get("path", "")), "description": str(one.get("message", ""))}
        for one in getattr(wrong, "errors", ())
    ]
    return [info, {"@type": f"{_TYPES}BadRequest", "fieldViolations": violations}] if violations else [info]


def _metadata(wrong: Agent3Error) -> dict[str, str]:
    """ErrorInfo takes only texts; what is no scalar stays behind."""
    plain = {key: str(one) for key, one in wrong.data.items() if isinstance(one, (str, int, float))}
    plain["code"] = wrong.code
    if wrong.retryable:
        plain["retryable"] = "true"
    if wrong.retry_after is not None:
        plain["retryAfter"] = f"{wrong.retry_after:.3f}"
    return plain


def _free(wrong: Agent3Error) -> dict[str, Any]:
    body = wrong.to_dict()
    del body["message"]
    return body


# Reading what a foreign agent wrote. Its trouble with us is ours to name; its trouble with itself is a TargetError.

_BY_REASON: Final[dict[str, type[Agent3Error]]] = {fault.reason: kind for kind, fault in reversed(_TABLE.items())}
_AT_THE_OTHER_END: Final[dict[type[Agent3Error], type[Agent3Error]]] = {
    Unauthenticated: TargetRefused,
    AccessError: TargetRefused,
    RateLimited: Unavailable,
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
    429: Unavailable,
    501: MethodNotFound,
    502: Unavailable,
    503: Unavailable,
    504: CallTimeout,
}


def _by_code(generation: Generation) -> dict[int, type[Agent3Error]]:
    """Of rows with one code the first stands: the specification's own come before ours."""
    rows = {fault.code(generation): kind for kind, fault in reversed(_TABLE.items())}
    return rows | {-32600: RequestError, -32603: Agent3Error}


_GENERATIONS: Final[tuple[Generation, ...]] = ("0.1", "0.3", "1.0")
_CODES: Final = {generation: _by_code(generation) for generation in _GENERATIONS}


def read_rpc(error: Any, generation: Generation) -> Agent3Error:
    """The error that a JSON-RPC error object of a generation stands for; never raises."""
    if not isinstance(error, Mapping) or not isinstance(error.get("code"), int):
        return MalformedResponse("The agent answered with an error that is no JSON-RPC error object")
    code = error["code"]
    info = _info(error.get("data"))
    kind = _BY_REASON.get(str(info.get("reason"))) or _CODES[generation].get(code, TargetError)
    return _made(kind, error.get("message"), info, error.get("data"), {"rpc_code": code})


def read_rest(status: int, body: Any, retry_after: float | None = None) -> Agent3Error:
    """The error that an HTTP status and its decoded body stand for, in 0.3 and 1.0; never raises."""
    error = body.get("error") if isinstance(body, Mapping) else None
    found: Mapping[str, Any] = error if isinstance(error, Mapping) else body if isinstance(body, Mapping) else {}
    info = _info(found.get("details"))
    name = found.get("type") or found.get("error")
    reason = info.get("reason") or (Fault(name, 0, 0, "").reason if isinstance(name, str) and name else "")
    kind = _BY_REASON.get(str(reason)) or _BY_STATUS.get(status, TargetError)
    made = _made(kind, found.get("message"), info, found.get("details"), {"http_status": status})
    made.retry_after = made.retry_after if retry_after is None else retry_after
    return made


def read_reason(reason: str, message: str, metadata: Mapping[str, str] | None = None) -> Agent3Error:
    """The error of an ErrorInfo, as gRPC carries it."""
    return _made(_BY_REASON.get(reason, TargetError), message, {"metadata": metadata or {}}, None, {"reason": reason})


def _info(data: Any) -> Mapping[str, Any]:
    """The ErrorInfo among typed details, or the free object of an older generation."""
    if isinstance(data, Mapping):
        return {"metadata": data}
    entries = data if isinstance(data, list) else ()
    return next((one for one in entries if isinstance(one, Mapping) and "reason" in one), {})


def _made(
    kind: type[Agent3Error], message: Any, info: Mapping[str, Any], data: Any, seen: dict[str, Any]
) -> Agent3Error:
    kind = _AT_THE_OTHER_END.get(kind, kind)
    text = message if isinstance(message, str) and message else f"The agent answered with {kind.__name__}"
    more = info.get("metadata")
    after = _seconds(more.get("retryAfter", more.get("retry_after"))) if isinstance(more, Mapping) else None
    if issubclass(kind, ValidationError):
        return kind(text, errors=_violations(data), data=seen, retry_after=after)
    return kind(text, data=seen, retry_after=after)


def _seconds(value: Any) -> float | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < 1e9 else None


def _violations(data: Any) -> list[dict[str, Any]]:
    """The wrong fields that typed details name."""
    entries = data if isinstance(data, list) else ()
    named = (one.get("fieldViolations") for one in entries if isinstance(one, Mapping))
    return [
        {"path": str(one.get("field", "")), "message": str(one.get("description", ""))}
        for violations in named
        for one in (violations if isinstance(violations, list) else ())
        if isinstance(one, Mapping)
    ]
