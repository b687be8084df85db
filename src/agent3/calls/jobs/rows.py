"""How a job lies in its row: what is kept of a call and its outcome, and the way back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from agent3.calls.outcomes import REFUSALS
from agent3.errors import Conflict, Corrupt, ValidationError
from agent3.model import (
    Answer,
    Call,
    Done,
    Failed,
    Needs,
    Outcome,
    Question,
    Route,
    Working,
    decode_call,
    decode_outcome,
    encode,
)
from agent3.storage import Row
from agent3.storage.checksums import append_checksum, whole

__all__ = [
    "ALIAS",
    "KIND",
    "RESULT",
    "UNDECODABLE",
    "Job",
    "Status",
    "detail_of",
    "digest_of",
    "ending",
    "job_of",
    "kept",
    "never_ran",
    "same",
    "shown",
    "state_of",
    "status_of",
    "stored",
]

Status = Literal["working", "needs", "done", "failed", "canceled"]
KIND = "kind"
"""The key in a call's ``meta`` of what its door names the job, by which it is listed."""
RESULT = "a2a"
"""The key in the ``meta`` of a Done of what sort of result its author means it to be: ``message`` for a mere answer."""
ALIAS = "alias"
"""The key in a call's ``meta`` of another name that its owner may call the job by."""

_answers: msgspec.json.Decoder[dict[str, Answer]] = msgspec.json.Decoder(dict[str, Answer])
_questions: msgspec.json.Decoder[tuple[Question, ...]] = msgspec.json.Decoder(tuple[Question, ...])
_route: msgspec.json.Decoder[Route] = msgspec.json.Decoder(Route)
_sorted = msgspec.json.Encoder(order="deterministic")


class Job(Struct, frozen=True, kw_only=True):
    """One row. ``kept`` is what ``ctx.once`` did, ``state`` the connector's own reference."""

    id: str
    owner: str
    status: Status
    turn: int
    call: Call
    key: str | None = None
    key_hash: str | None = None
    route: Route | None = None
    state: Any = None
    kept: dict[str, Any] = {}
    outcome: Outcome | None = None
    answers: dict[str, Answer] = {}
    questions: tuple[Question, ...] = ()
    seq: int = 0
    node: str | None = None
    lease: float | None = None
    generation: int = 0
    created: float = 0.0
    updated: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether it will never change again."""
        return self.status in _ENDED


class KeyReused(Conflict):
    """A key came again with another call."""

    def __init__(self, key: str | None):
        super().__init__(f"key {key!r} was used for another call; give each call a key of its own")


def digest_of(call: Call) -> str | None:
    """What a key stands for; None without a key."""
    if call.key is None:
        return None
    asked = (call.agent, call.capability, call.input, call.parts)
    return hashlib.sha256(kept(_sorted.encode, asked)).hexdigest()


def kept(write: Callable[[Any], bytes], what: Any) -> bytes:
    """The bytes that a call is kept as; what has no JSON form cannot be kept."""
    try:
        return write(what)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise ValidationError(f"The input cannot be kept: {wrong}. Give JSON values only.") from None


def same(row: Row, call: Call, digest: str | None) -> Job:
    """The job that a key stands for; Conflict when the call is another."""
    if row["key_hash"] != digest:
        raise KeyReused(call.key)
    return job_of(row)


def never_ran(job: Job, outcome: Outcome, attempted: bool) -> bool:
    """Whether a job ends without having reached its target: its key then stands for nothing and may be used again.

    A code is no proof, since targets fail with any; and of a later generation nobody knows what the earlier ones sent.
    """
    if not isinstance(outcome, Failed) or job.generation > 1:
        return False
    return not outcome.sent or (not attempted and outcome.code in REFUSALS)


def shown(outcome: Outcome) -> Any:
    """An outcome for readers of the log: without the connector's own state, and with what is still asked."""
    if isinstance(outcome, Needs | Working) and outcome.state is not None:
        outcome = msgspec.structs.replace(outcome, state=None)
    if isinstance(outcome, Needs) and outcome.answered:
        outcome = msgspec.structs.replace(outcome, answered=())
    return msgspec.to_builtins(outcome)


def status_of(outcome: Outcome) -> Status:
    """The status of a job whose turn ends so."""
    if isinstance(outcome, Done):
        return "done"
    if isinstance(outcome, Failed):
        return "canceled" if outcome.code == "canceled" else "failed"
    return "needs" if isinstance(outcome, Needs) else "working"


def detail_of(outcome: Outcome) -> str | None:
    """What an outcome adds to its status, for lists: why it failed, what it needs, or the kind of its result."""
    if isinstance(outcome, Failed):
        return outcome.code
    if isinstance(outcome, Needs):
        return "authorization" if any(one.url for one in outcome.questions) else None
    kind = outcome.meta.get(RESULT) if isinstance(outcome, Done) else None
    return kind if isinstance(kind, str) else None


def state_of(state: Any, kept: Mapping[str, Any]) -> bytes | None:
    """The connector's reference and what was done once, to store."""
    return stored({"state": state, "kept": dict(kept)}) if state is not None or kept else None


def stored(what: Any) -> bytes:
    """JSON with its checksum."""
    return append_checksum(encode(what))


def ending(outcome: Outcome, *beside: object) -> bytes:
    """An outcome to store. Of an ended job what stands beside it never changes either, so one checksum covers both."""
    status = status_of(outcome)
    return append_checksum(encode(outcome), status, *beside) if status in _ENDED else stored(outcome)


UNDECODABLE = (msgspec.MsgspecError, TypeError, ValueError, AttributeError)
_STATUSES = frozenset(get_args(Status))
_ENDED = frozenset({"done", "failed", "canceled"})
_BESIDE = ("status", "id", "turn", "seq", "created", "updated")


def job_of(row: Row) -> Job:
    """The job of a row; Corrupt when it cannot be read."""
    try:
        return _decoded(row)
    except UNDECODABLE as wrong:
        raise Corrupt(f"Job {row['id']} cannot be read: {wrong}") from None


def _decoded(row: Row) -> Job:
    if row["status"] not in _STATUSES:
        raise ValueError(f"{row['status']!r} is no status")

    def bytes_of(column: str, *beside: object) -> bytes | None:
        return whole(bytes(row[column]), f"Job {row['id']}, {column},", *beside) if row[column] is not None else None

    call, route, state, answers, questions = map(bytes_of, ("call", "route", "state", "answers", "questions"))
    beside = [row[one] for one in _BESIDE] if row["status"] in _ENDED else ()
    outcome = bytes_of("outcome", *beside)
    inner = msgspec.json.decode(state) if state is not None else {}
    return Job(
        id=row["id"],
        owner=row["owner"],
        status=row["status"],
        turn=row["turn"],
        call=decode_call(call or b""),
        key=row["key"],
        key_hash=row["key_hash"],
        route=_route.decode(route) if route is not None else None,
        state=inner.get("state"),
        kept=inner.get("kept", {}),
        outcome=decode_outcome(outcome) if outcome is not None else None,
        answers=_answers.decode(answers) if answers is not None else {},
        questions=_questions.decode(questions) if questions is not None else (),
        seq=row["seq"],
        node=row["node"],
        lease=row["lease"],
        generation=row["generation"],
        created=row["created"],
        updated=row["updated"],
    )
