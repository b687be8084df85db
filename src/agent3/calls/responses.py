"""What a caller is shown of an outcome and of a job: plain JSON values, the same at every door and in callbacks."""

from __future__ import annotations

from typing import Any

import msgspec

from agent3.calls.jobs import Job
from agent3.calls.outcomes import HEALS, NOTICES, UNTRUSTED
from agent3.errors import by_code
from agent3.model import Done, Failed, Needs, Outcome, Working, text_of, value_of

__all__ = ["SOURCES", "response", "shown"]

SOURCES = "io.agent3/sources"
"""In the meta of a result: how each part of it was read from a website."""


def response(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """An outcome as the design's Agent3CallResponse."""
    usage = outcome.usage if isinstance(outcome, (Done, Failed)) else None
    metadata: dict[str, Any] = {
        "responseTime": round(seconds * 1000, 3),
        "tokensUsed": usage.tokens if usage is not None else None,
        "cost": round(usage.cost, 6) if usage is not None else None,
        "statusCode": _status(outcome),
        "retryCount": usage.retries if usage is not None else 0,
    }
    body: dict[str, Any] = {"success": isinstance(outcome, Done)}
    if isinstance(outcome, Done):
        body["result"] = _result(outcome)
        metadata["sources"] = outcome.meta.get(SOURCES)
        metadata["heals"] = outcome.meta.get(HEALS)
        metadata["notices"] = outcome.meta.get(NOTICES)
        metadata["untrusted"] = outcome.meta.get(UNTRUSTED)
    elif isinstance(outcome, Failed):
        body |= {"error": outcome.message, "errorCode": outcome.code, "retryable": outcome.retryable}
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
        if outcome.text:
            body["text"] = outcome.text
    return body | {"metadata": {key: value for key, value in metadata.items() if value is not None}}


def shown(job: Job) -> dict[str, Any]:
    """A job as its owner sees it; the connector's own state stays inside."""
    told: dict[str, Any] = {
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
        told["questions"] = msgspec.to_builtins(job.questions)
    elif job.outcome is not None and job.status != "working":
        told |= response(job.outcome, job.updated - job.created)
    return told


def _status(outcome: Outcome) -> int:
    if isinstance(outcome, Failed):
        return by_code(outcome.code).http_status
    return 202 if isinstance(outcome, Working) else 200


def _result(outcome: Done | Failed) -> Any:
    value = value_of(outcome.parts)
    if not outcome.artifacts:
        return value
    return {"value": value, "artifacts": msgspec.to_builtins(outcome.artifacts)}
