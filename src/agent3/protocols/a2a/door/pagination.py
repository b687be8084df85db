"""Lists in pages: what a request asks for, and opaque tokens by which the next page is found.

A token is where the last page ended, so a list goes on in its place however many tasks have come meanwhile. It is no
secret: it opens nothing that its bearer could not list.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Final

import msgspec

from agent3.calls.jobs.jobs import Status, Wanted
from agent3.errors import ValidationError
from agent3.protocols.a2a.wire.types import ListTasks, State

__all__ = ["TASK", "cursor", "size_of", "token_of", "wanted"]

TASK: Final = "task"
"""The kind of jobs that are tasks."""
_USUAL: Final = 50
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
"""What each state is in the table of jobs: its status, and the details that it has, or with True has not."""


def wanted(request: ListTasks, agent: str | None) -> Wanted | None:
    """What a list is to show; None where no task can be in that state."""
    status: Status | None = None
    details: tuple[str, ...] = ("message",)
    other = True
    if request.status is not None and request.status is not State.UNSPECIFIED:
        if request.status not in _STATES:
            return None
        status, details, other = _STATES[request.status]
    return Wanted(
        kind=TASK,
        agent=agent,
        context=request.context_id or None,
        status=status,
        details=details,
        other=other,
        since=_moment(request.status_timestamp_after) if request.status_timestamp_after else None,
        before=cursor(request.page_token) if request.page_token else None,
    )


def size_of(asked: int | None) -> int:
    """How many fit on a page; ValidationError beyond what is allowed."""
    if asked is None:
        return _USUAL
    if not 1 <= asked <= _MOST:
        raise _wrong("pageSize", f"must be 1 to {_MOST}, got {asked}")
    return asked


def token_of(updated: float, task: str) -> str:
    """The token of the page after this task."""
    return base64.urlsafe_b64encode(msgspec.json.encode((updated, task))).decode().rstrip("=")


def cursor(token: str) -> tuple[float, str]:
    """Where the page before ended; ValidationError for what is no token of ours."""
    try:
        raw = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
        return msgspec.json.decode(raw, type=tuple[float, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise _wrong("pageToken", "is not one that was given out here; begin without it") from None


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(
            "statusTimestampAfter", f"must be a time such as 2026-01-31T10:00:00Z, got {text[:40]!r}"
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _wrong(field: str, text: str) -> ValidationError:
    return ValidationError(f"{field} {text}.", errors=[{"path": field, "message": text}])
