"""Every error of agent3, in one tree.

Each class states once what every endpoint needs to know: a stable ``code`` for programs, the HTTP status, the JSON-RPC
code, and whether the same call may succeed later. The message is for people: it names the thing, says what was wrong
and what to do next. Nothing here knows a protocol, and no message ever holds a secret.

    Agent3Error                     internal
    ├── RequestError                invalid_request      the request itself is wrong; sending it again will not help
    │   ├── ParseError              parse_error
    │   ├── MethodNotFound          method_not_found
    │   ├── MethodNotAllowed        method_not_allowed
    │   ├── TooSlow                 too_slow
    │   ├── ValidationError         invalid_input
    │   ├── TooLarge                too_large
    │   ├── EncodingNotSupported    unsupported_encoding
    │   ├── NotFound                not_found
    │   │   ├── AgentNotFound       agent_not_found
    │   │   ├── CapabilityNotFound  capability_not_found
    │   │   └── JobNotFound         job_not_found
    │   └── Conflict                conflict
    │       └── TurnTaken           turn_taken
    ├── AccessError                 forbidden            the caller may not do this
    │   ├── Unauthenticated         unauthenticated
    │   ├── RateLimited             rate_limited         (retryable)
    │   ├── BudgetExceeded          budget_exceeded
    │   ├── NotApproved             not_approved         it needed approval and was not approved
    │   └── SecurityError           blocked
    ├── TargetError                 target_failed        the agent, tool or website at the other end
    │   ├── Unavailable             unavailable          (retryable)
    │   │   └── CircuitOpen         circuit_open
    │   ├── CallTimeout             timeout              (retryable)
    │   │   └── ElementMissing      element_missing      a website's page lacks the element
    │   │       └── NotOnPage       not_on_page          what the caller named is not on the page
    │   ├── MalformedResponse       malformed_response
    │   ├── TargetRefused           target_refused       its own authentication or authorization said no
    │   ├── Interrupted             interrupted          the work was cut off by a restart
    │   ├── Canceled                canceled
    │   ├── Declined                declined             a question was answered with no
    │   ├── Rejected                rejected             the agent refuses the task
    │   └── LoopDetected            loop_detected        the call would return to where it came from
    ├── StorageError                storage_failed       (retryable)
    │   ├── StorageFull             storage_full
    │   ├── StorageUnsure           storage_unsure
    │   └── Corrupt                 corrupt
    └── SetupError                  setup                this installation lacks or misconfigures something
        └── MissingExtra            missing_extra
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

__all__ = [
    "AccessError",
    "Agent3Error",
    "AgentNotFound",
    "BudgetExceeded",
    "CallTimeout",
    "Canceled",
    "CapabilityNotFound",
    "CircuitOpen",
    "Conflict",
    "Corrupt",
    "Declined",
    "ElementMissing",
    "EncodingNotSupported",
    "Interrupted",
    "JobNotFound",
    "LoopDetected",
    "MalformedResponse",
    "MethodNotAllowed",
    "MethodNotFound",
    "MissingExtra",
    "NotApproved",
    "NotFound",
    "NotOnPage",
    "ParseError",
    "RateLimited",
    "Rejected",
    "RequestError",
    "SecurityError",
    "SetupError",
    "StorageError",
    "StorageFull",
    "StorageUnsure",
    "TargetError",
    "TargetRefused",
    "TooLarge",
    "TooSlow",
    "TurnTaken",
    "Unauthenticated",
    "Unavailable",
    "ValidationError",
    "by_code",
    "family",
]


class Agent3Error(Exception):
    """The root. ``data`` is for programs and goes out on the wire: never put a secret or a local path in it."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    rpc_code: ClassVar[int] = -32603
    retryable: ClassVar[bool] = False
    next_step: ClassVar[str] = "See the log of the gateway. Calling again may not help."
    """What a model that reads the error can do about it, in one or two sentences; empty for nothing."""
    sent: bool = True
    """False only if it is certain that the target never saw the call."""

    def __init__(self, message: str, *, data: Mapping[str, Any] | None = None, retry_after: float | None = None):
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = dict(data or {})
        self.retry_after = retry_after

    def to_dict(self) -> dict[str, Any]:
        """The machine-readable form of an error, the same at every endpoint."""
        body: dict[str, Any] = {"code": self.code, "message": self.message, "retryable": self.retryable}
        if self.retry_after is not None:
            body["retry_after"] = round(self.retry_after, 3)
        if self.data:
            body["data"] = self.data
        return body


class RequestError(Agent3Error):
    """The request itself is wrong; sending it again unchanged will not help."""

    code = "invalid_request"
    next_step = "Correct the request and send it again."
    http_status = 400
    rpc_code = -32600


class ParseError(RequestError):
    """The bytes are not the JSON they claim to be."""

    code = "parse_error"
    rpc_code = -32700


class MethodNotFound(RequestError):
    """A JSON-RPC method that does not exist here."""

    code = "method_not_found"
    http_status = 404
    rpc_code = -32601


class MethodNotAllowed(RequestError):
    """An HTTP method that this path does not support."""

    code = "method_not_allowed"
    http_status = 405


class TooSlow(RequestError):
    """The request did not arrive in time."""

    code = "too_slow"
    http_status = 408


class ValidationError(RequestError):
    """The input does not match the schema; ``errors`` lists each error with path, expected, got and a suggestion."""

    code = "invalid_input"
    next_step = "Correct the input and call again. For a call, agent3_select shows the schema and examples."
    http_status = 422
    rpc_code = -32602

    def __init__(
        self,
        message: str,
        *,
        errors: list[dict[str, Any]] | None = None,
        data: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ):
        self.errors = errors or []
        merged = {**(data or {}), **({"errors": self.errors} if self.errors else {})}
        super().__init__(message, data=merged, retry_after=retry_after)


class TooLarge(RequestError):
    """A body, a nesting depth or a number of items beyond the limit."""

    code = "too_large"
    next_step = "Send less, or send it in parts."
    http_status = 413


class EncodingNotSupported(RequestError):
    """A body in a Content-Encoding that cannot be read here."""

    code = "unsupported_encoding"
    next_step = "Send the body without a Content-Encoding."
    http_status = 415


class NotFound(RequestError):
    """It does not exist or belongs to another caller; the two look the same on purpose."""

    code = "not_found"
    next_step = "Check the name."
    http_status = 404
    rpc_code = -32602


class AgentNotFound(NotFound):
    """No such agent for this caller; ``data["nearest"]`` holds names the caller may use."""

    code = "agent_not_found"
    next_step = "Find an agent with agent3_search, and use its id."


class CapabilityNotFound(NotFound):
    """The agent or server has no such capability or tool for this caller."""

    code = "capability_not_found"
    next_step = "Use agent3_select to see what the agent can do."


class JobNotFound(NotFound):
    """No such job for this caller."""

    code = "job_not_found"
    next_step = "Start again with a new call."


class Conflict(RequestError):
    """It conflicts with existing data, such as one key with two bodies."""

    code = "conflict"
    next_step = "Read the current state, then decide."
    http_status = 409
    rpc_code = -32009


class TurnTaken(Conflict):
    """Another answer came first, or the job has ended; read the job again."""

    code = "turn_taken"
    next_step = "Read the status of the job: agent3_call with metadata.job and no message."


class AccessError(Agent3Error):
    """The caller may not do this."""

    code = "forbidden"
    next_step = (
        "Calling again will not help unless the message says what to change. The operator of the gateway "
        "decides who may call what."
    )
    http_status = 403
    rpc_code = -32003


class Unauthenticated(AccessError):
    """The caller did not prove who it is."""

    code = "unauthenticated"
    next_step = "Send the key of a client of this gateway."
    http_status = 401
    rpc_code = -32001


class RateLimited(AccessError):
    """Too many calls; ``retry_after`` says when the next one will be accepted."""

    code = "rate_limited"
    next_step = "Wait for metadata.retryAfter seconds, then call again; or use another agent."
    http_status = 429
    rpc_code = -32005
    retryable = True


class BudgetExceeded(AccessError):
    """The budget is exhausted; ``retry_after`` says when it is renewed, if it is."""

    code = "budget_exceeded"
    http_status = 402
    rpc_code = -32006


class NotApproved(AccessError):
    """The call needed approval, which was denied or did not come in time."""

    code = "not_approved"
    next_step = "Ask an approver, then call again."
    rpc_code = -32046


class SecurityError(AccessError):
    """A security rule forbids it: an address, a scheme, a navigation."""

    code = "blocked"
    next_step = "A security rule forbids it, so calling again will not help."
    rpc_code = -32004


class TargetError(Agent3Error):
    """The agent, tool or website at the other end failed."""

    code = "target_failed"
    next_step = "The agent was reached but failed. Change the request, or use another agent."
    http_status = 502
    rpc_code = -32010


class Unavailable(TargetError):
    """It could not be reached, or reported that it is overloaded."""

    code = "unavailable"
    next_step = "Try again later, or find another agent with agent3_search."
    http_status = 503
    rpc_code = -32011
    retryable = True


class CircuitOpen(Unavailable):
    """It failed so often that it is not called for a while; ``retry_after`` says how long."""

    code = "circuit_open"
    rpc_code = -32012


class CallTimeout(TargetError, TimeoutError):
    """It did not answer in the time that the call had."""

    code = "timeout"
    next_step = (
        "The agent may still be working. If a repeat does no harm, call again with a larger "
        "metadata.timeout (milliseconds)."
    )
    http_status = 504
    rpc_code = -32013
    retryable = True


class ElementMissing(CallTimeout):
    """The page of a website lacks the element that a step waited for; the same call would fail again."""

    code = "element_missing"
    next_step = "The website has changed, so the same call would fail again. Use another agent."
    http_status = 502
    rpc_code = -32020
    retryable = False


class NotOnPage(ElementMissing):
    """What the call named, such as a product or a row, is not on the page; the interface itself still fits."""

    code = "not_on_page"
    next_step = "What was named is not on the page. Ask for something that is there."
    http_status = 404
    rpc_code = -32021


class MalformedResponse(TargetError):
    """Its answer violates its own schema or protocol."""

    code = "malformed_response"
    next_step = "This is a fault of the agent, so the same call would fail again. Use another agent."
    rpc_code = -32014


class TargetRefused(TargetError):
    """It refused our credentials, or does not allow them this action."""

    code = "target_refused"
    next_step = (
        "Calling again will not help: the operator of the gateway must give it a valid credential for the agent."
    )
    rpc_code = -32015


class Interrupted(TargetError):
    """The work was interrupted by a restart and must not be repeated without checking."""

    code = "interrupted"
    next_step = "Check whether it was done before you call again."
    http_status = 503
    rpc_code = -32016


class Canceled(TargetError):
    """It was cancelled."""

    code = "canceled"
    next_step = "Call again if it is still needed."
    http_status = 409
    rpc_code = -32017


class Declined(TargetError):
    """A question that the work depends on was declined."""

    code = "declined"
    next_step = "Call again if you want it after all."
    http_status = 409
    rpc_code = -32018


class Rejected(TargetError):
    """The agent refuses the task and says why; raised by its author before any work is done."""

    code = "rejected"
    next_step = "Change the request, or use another agent."
    http_status = 409
    rpc_code = -32019


class LoopDetected(TargetError):
    """The call would return to a gateway that it came through."""

    code = "loop_detected"
    http_status = 508
    rpc_code = -32045
    next_step = "The agent leads back to this gateway, so the same call would fail again. Use another agent."


class StorageError(Agent3Error):
    """The database failed; what was not acknowledged is not stored."""

    code = "storage_failed"
    next_step = "Try again later."
    http_status = 503
    retryable = True
    outcome: Any = None
    """The outcome of the call, if only recording it failed."""


class StorageUnsure(StorageError):
    """The connection was lost during the commit, which may or may not have happened."""

    code = "storage_unsure"
    next_step = "Check whether it was done before you call again."
    retryable = False


class StorageFull(StorageError):
    """No space left: writes are refused, reads continue."""

    code = "storage_full"
    next_step = "The operator of the gateway must free disk space."
    http_status = 507
    retryable = False


class Corrupt(StorageError):
    """Stored data is damaged; it is named in the message and not returned."""

    code = "corrupt"
    next_step = "The operator of the gateway must restore a backup."
    http_status = 500
    retryable = False


class SetupError(Agent3Error):
    """This installation lacks something or is misconfigured; the message says what to change."""

    code = "setup"
    next_step = "The operator of the gateway must correct its setup."


class MissingExtra(SetupError):
    """An optional part is not installed."""

    code = "missing_extra"
    http_status = 501

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs an optional part. Install it with: pip install 'agent3[{extra}]'")


def family(root: type[Agent3Error] = Agent3Error) -> Iterator[type[Agent3Error]]:
    """The class and everything below it."""
    yield root
    for child in root.__subclasses__():
        yield from family(child)


def by_code(code: str) -> type[Agent3Error]:
    """The class of a stable code; unknown codes, as from foreign agents, are target failures."""
    return _CODES.get(code, TargetError)


_CODES: dict[str, type[Agent3Error]] = {error.code: error for error in family()}
