"""From errors to outcomes and back: inside the chain a refusal is an outcome, at the edges it is an exception."""

from __future__ import annotations

from agent3.errors import Agent3Error, CallTimeout, TargetError, ValidationError, by_code
from agent3.model import Failed, Outcome

__all__ = ["HEALS", "NOTICES", "REFUSALS", "UNTRUSTED", "at_once", "error_of", "failed_by", "failed_by_any",
           "is_refusal"]  # fmt: skip

NOTICES = "io.agent3/notices"
"""In the meta of a result: what was done or met on the way that the caller ought to know."""
HEALS = "io.agent3/heals"
"""In the meta of a result: which selectors of a website did not fit any more, and what was taken in their place."""
UNTRUSTED = "io.agent3/untrusted"
"""In the meta of a result: the tools of a page itself that it came by, whose words nobody vouches for."""
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
        "blocked",
    }
)
"""Codes that say no to the caller. Targets fail with any code, so it is a refusal only where none was asked."""


def is_refusal(outcome: Outcome) -> bool:
    """Whether the house said no before the target was asked."""
    return isinstance(outcome, Failed) and outcome.code in REFUSALS and not outcome.asked


async def at_once(outcome: Outcome) -> Outcome:
    """An outcome that is known, for a step that hands on what is to be awaited."""
    return outcome


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


def failed_by_any(error: Exception, agent: str) -> Failed:
    """Likewise for any exception of a target: its type and words, without its stack."""
    if isinstance(error, Agent3Error):
        return failed_by(error)
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    kind = CallTimeout if isinstance(error, TimeoutError) else TargetError
    return failed_by(kind(f"{agent} failed: {words[:2000]}"))


def error_of(failed: Failed) -> Agent3Error:
    """The exception that an outcome stands for, for callers who want to be told by ``raise``."""
    kind = by_code(failed.code)
    if kind is ValidationError:
        return ValidationError(failed.message, errors=failed.data.get("errors"), retry_after=failed.retry_after)
    error = kind.__new__(kind)
    Agent3Error.__init__(error, failed.message, data=failed.data, retry_after=failed.retry_after)
    error.sent = failed.sent
    return error
