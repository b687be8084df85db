"""Lists in pages: which tasks a request asks for, and opaque tokens for the next page.

A token is the position at which a page ended, so a list goes on in its place however many tasks have come meanwhile. It
is no secret: it gives access to nothing that its bearer could not list.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Final

import msgspec

from agent3.calls.jobs import JobFilter, Status
from agent3.errors import ValidationError
from agent3.protocols.a2a.wire.types import ListTasks, State

__all__ = ["TASK", "check_page_size", "decode_token", "encode_token", "jobs_query"]

TASK: Final = "task"
"""The kind of jobs that are tasks."""
_DEFAULT_SIZE: Final = 50
_MOST: Final = 100
_REJECTED: Final = ("rejected", "declined")
_STATES: Final[dict[State, tuple[Status, tuple[str, ...], bool]]] = {
    State.WORKING: ("working", (), False),
    State.COMPLETED: ("done", ("message",), True),
    State.FAILED: ("failed", _REJECTED, True),
    State.REJECTED: ("failed", _REJECTED, False),
    State.CANCELED: ("canceled", (), False),
    State.INPUT_REQUIRED: ("needs", ("authorization",), True),
    State.AUTH_REQUIRED: ("needs", ("authorization",), False),
}
"""What each state is in the table of jobs: its status, and the details that it has, or with True does not have."""


def jobs_query(request: ListTasks, agent: str | None) -> JobFilter | None:
    """The jobs that a request lists; None where no task can be in the state that it asks for."""
    status: Status | None = None
    details: tuple[str, ...] = ("message",)
    other = True
    if request.status is not None and request.status is not State.UNSPECIFIED:
        if request.status not in _STATES:
            return None
        status, details, other = _STATES[request.status]
    since: float | None = None
    if text := request.status_timestamp_after:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            expected = f"must be a time such as 2026-01-31T10:00:00Z, got {text[:40]!r}"
            raise _invalid("statusTimestampAfter", expected) from None
        since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    return JobFilter(
        kind=TASK,
        agent=agent,
        context=request.context_id or None,
        status=status,
        details=details,
        exclude_details=other,
        since=since,
        before=decode_token(request.page_token) if request.page_token else None,
    )


def check_page_size(asked: int | None) -> int:
    """The size of a page; ValidationError beyond what is allowed."""
    if asked is None:
        return _DEFAULT_SIZE
    if not 1 <= asked <= _MOST:
        raise _invalid("pageSize", f"must be 1 to {_MOST}, got {asked}")
    return asked


def encode_token(updated: float, task: str) -> str:
    """The token of the page after this task."""
    return base64.urlsafe_b64encode(msgspec.json.encode((updated, task))).decode().rstrip("=")


def decode_token(token: str) -> tuple[float, str]:
    """The position at which the page before ended. ValidationError for a token that is not ours."""
    try:
        raw = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
        return msgspec.json.decode(raw, type=tuple[float, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise _invalid("pageToken", "is not a token of this list; begin without one") from None


def _invalid(field: str, text: str) -> ValidationError:
    return ValidationError(f"{field} {text}.", errors=[{"path": field, "message": text}])
