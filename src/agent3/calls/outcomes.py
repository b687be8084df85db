"""Outcomes: what an error stands for inside the chain, and what a caller is shown of an outcome and of a job.

Inside the chain a refusal is an outcome, at the edges it is an exception. What is shown are plain JSON values, the same
at every door and in callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from agent3.errors import Agent3Error, CallTimeout, TargetError, ValidationError, by_code
from agent3.model import Done, Failed, Needs, Outcome, Usage, text_of, value_of
from agent3.observe.logs import hide_secrets

if TYPE_CHECKING:
    from agent3.calls.jobs import Job

__all__ = [
    "FALLBACK",
    "HEALS",
    "HTTP_STATUS",
    "NOTICES",
    "REFUSALS",
    "ROUTE",
    "SOURCES",
    "UNDERSTOOD",
    "UNTRUSTED",
    "describe_job",
    "error_of",
    "error_of_target",
    "failed_by",
    "failed_by_any",
    "is_refusal",
    "read_usage",
    "response",
]

SOURCES = "io.agent3/sources"
"""In the meta of a result: how each part of it was read from a website."""
NOTICES = "io.agent3/notices"
"""In the meta of a result: what was done or met on the way that the caller ought to know."""
HEALS = "io.agent3/heals"
"""In the meta of a result: which selectors of a website did not fit any more, and what was taken in their place."""
UNDERSTOOD = "io.agent3/understood"
"""In the meta of a result: the input that the caller's words were read as, and what of it was guessed."""
UNTRUSTED = "io.agent3/untrusted"
"""In the meta of a result: the tools of a page itself that it came by, whose words nobody vouches for."""
HTTP_STATUS = "http_status"
"""In the data of a failure: the HTTP status that the agent itself answered with."""
ROUTE = "io.agent3/route"
"""In the meta of a result of a capability with several routes: the agent, capability and protocol that served."""
FALLBACK = "io.agent3/fallback"
"""In the meta of a result: the routes that were asked before, and why they did not serve."""
REFUSALS = frozenset(
    {
        "invalid_input",
        "invalid_request",
        "too_large",
        "not_found",
        "agent_not_found",
        "capability_not_found",
        "job_not_found",
        "conflict",
        "turn_taken",
        "forbidden",
        "unauthenticated",
        "rate_limited",
        "budget_exceeded",
        "blocked",
    }
)
"""Codes that say no to the caller. Targets fail with any code, so it is a refusal only where none was asked."""


_LONGEST = 2000
"""Characters of the words of an exception."""


def is_refusal(outcome: Outcome) -> bool:
    """Whether the gateway refused before the target was asked."""
    return isinstance(outcome, Failed) and outcome.code in REFUSALS and not outcome.asked


def failed_by(error: Agent3Error) -> Failed:
    """The outcome that an error of ours stands for."""
    return Failed(
        error.code,
        error.message,
        retryable=error.retryable,
        retry_after=error.retry_after,
        sent=error.sent,
        data=error.data,
    )


def failed_by_any(error: BaseException, agent: str) -> Failed:
    """Likewise for any exception of a target: its type and words, without its stack and what looks like a secret."""
    return failed_by(error_of_target(error, agent))


def error_of_target(error: BaseException, agent: str) -> Agent3Error:
    """Any exception of a target as one of ours."""
    if isinstance(error, Agent3Error):
        return error
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    kind = CallTimeout if isinstance(error, TimeoutError) else TargetError
    return kind(f"{agent} failed: {hide_secrets(words, _LONGEST, '')}")


def read_usage(given: Any) -> Usage | None:
    """What a target says that a call consumed, in its own metadata; None where it does not say.

    There is no one form for it: ``cost`` is a number of US dollars, ``usage`` an object with ``cost`` and counts of
    tokens under the names that models' vendors use. Whether the numbers can be is judged by the step ``ledger``.
    """
    if not isinstance(given, Mapping):
        return None
    inner = given.get("usage")
    usage = inner if isinstance(inner, Mapping) else {}
    costs = _numbers(given, "cost") or _numbers(usage, "cost")
    tokens = _numbers(usage, "tokens", "totalTokens", "total_tokens")[:1]
    tokens = (
        tokens or _numbers(usage, "inputTokens", "outputTokens") or _numbers(usage, "input_tokens", "output_tokens")
    )
    if not costs and not tokens:
        return None
    try:
        return Usage(int(sum(tokens)), float(sum(costs)))
    except (OverflowError, ValueError):
        return None


def _numbers(given: Mapping[str, Any], *names: str) -> list[float]:
    found = [given.get(name) for name in names]
    return [value for value in found if isinstance(value, (int, float)) and not isinstance(value, bool)]


def error_of(failed: Failed) -> Agent3Error:
    """The exception that an outcome stands for, for callers who want to be told by ``raise``."""
    kind = by_code(failed.code)
    if kind is ValidationError:
        return ValidationError(failed.message, errors=failed.data.get("errors"), retry_after=failed.retry_after)
    error = kind.__new__(kind)
    Agent3Error.__init__(error, failed.message, data=failed.data, retry_after=failed.retry_after)
    error.sent = failed.sent
    return error


def response(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """An outcome as the design's Agent3CallResponse."""
    usage = outcome.usage if isinstance(outcome, (Done, Failed)) else None
    metadata: dict[str, Any] = {
        "responseTime": round(seconds * 1000, 3),
        "tokensUsed": usage.tokens if usage is not None else None,
        "cost": round(usage.cost, 6) if usage is not None else None,
        "statusCode": _status_code(outcome),
        "retryCount": usage.retries if usage is not None else 0,
        # Of what costs nothing there is nothing to estimate.
        "costEstimated": True if usage is not None and usage.estimated and usage.cost else None,
    }
    body: dict[str, Any] = {"success": isinstance(outcome, Done)}
    if isinstance(outcome, Done):
        body["result"] = _result(outcome)
        metadata["understood"] = outcome.meta.get(UNDERSTOOD)
        metadata["sources"] = outcome.meta.get(SOURCES)
        metadata["heals"] = outcome.meta.get(HEALS)
        metadata["notices"] = outcome.meta.get(NOTICES)
        metadata["untrusted"] = outcome.meta.get(UNTRUSTED)
        metadata["route"] = outcome.meta.get(ROUTE)
        metadata["fallback"] = outcome.meta.get(FALLBACK)
    elif isinstance(outcome, Failed):
        body |= {"error": outcome.message, "errorCode": outcome.code, "retryable": outcome.retryable}
        if step := by_code(outcome.code).next_step:
            body["nextStep"] = step
        if outcome.retry_after is not None:
            metadata["retryAfter"] = round(outcome.retry_after, 3)
        if outcome.data:
            body["details"] = outcome.data
        if outcome.parts:
            body["result"] = _result(outcome)
    elif isinstance(outcome, Needs):
        body |= {"job": outcome.job, "status": "needs", "questions": msgspec.to_builtins(outcome.questions)}
        if outcome.parts:
            body["result"] = text_of(outcome.parts)
    else:
        body |= {"job": outcome.job, "status": "working"}
        metadata["statusCode"] = 202
        if outcome.text:
            body["text"] = outcome.text
    return body | {"metadata": {key: value for key, value in metadata.items() if value is not None}}


def _status_code(outcome: Outcome) -> int:
    """The HTTP status that the agent itself answered with, else the one that our code stands for."""
    own = outcome.meta.get(HTTP_STATUS) if isinstance(outcome, Done) else None
    ours = 200
    if isinstance(outcome, Failed):
        own, ours = outcome.data.get(HTTP_STATUS), by_code(outcome.code).http_status
    return own if isinstance(own, int) else ours


def describe_job(job: Job) -> dict[str, Any]:
    """A job as its owner sees it; the connector's own state stays inside."""
    body: dict[str, Any] = {
        "id": job.id,
        "status": job.status,
        "turn": job.turn,
        "agent": job.call.agent,
        "capability": job.call.capability,
        "created": job.created,
        "updated": job.updated,
        "seq": job.seq,
    }
    if isinstance(job.outcome, Needs) and job.status == "needs":
        body["questions"] = msgspec.to_builtins(job.questions)
    elif job.outcome is not None and job.status != "working":
        body |= response(job.outcome, job.updated - job.created)
    return body


def _result(outcome: Done | Failed) -> Any:
    value = value_of(outcome.parts)
    if not outcome.artifacts:
        return value
    return {"value": value, "artifacts": msgspec.to_builtins(outcome.artifacts)}
