"""Jobs and their events as rows: what is kept of a call and its outcomes, and how it is read back.

It knows columns, JSON and checksums, but runs no SQL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from agent3.calls.budgets import Bill
from agent3.calls.outcomes import REFUSALS
from agent3.errors import Conflict, Corrupt, ValidationError
from agent3.model import (
    Answer,
    Call,
    Done,
    Event,
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
from agent3.observe.logs import get as logger
from agent3.observe.metrics import Metrics
from agent3.storage import Row
from agent3.storage.checksums import append_checksum, whole

__all__ = [
    "META_ALIAS",
    "META_KIND",
    "META_RESULT",
    "Job",
    "KeyReused",
    "RowReader",
    "Status",
    "as_event_data",
    "decode_job",
    "detail_of",
    "digest_of",
    "encode_call",
    "encode_column",
    "encode_outcome",
    "encode_state",
    "match_key",
    "never_ran",
    "status_of",
]

log = logger("jobs")

Status = Literal["working", "needs", "done", "failed", "canceled"]
META_KIND = "kind"
"""The key in a call's ``meta`` of the kind of its job, such as ``task``, by which jobs are listed."""
META_ALIAS = "alias"
"""The key in a call's ``meta`` of another id by which its owner may ask for the job."""
META_RESULT = "a2a"
"""The key in the ``meta`` of a Done of the kind of its result: ``message`` if it is an answer and no task."""

_STATUSES = frozenset(get_args(Status))
_ENDED = frozenset({"done", "failed", "canceled"})
_COVERED = ("status", "id", "turn", "seq", "created", "updated")
"""Columns of an ended job that the checksum of its outcome covers."""
_UNREADABLE = (msgspec.MsgspecError, TypeError, ValueError, AttributeError)
_MAX_REPORTED = 10_000
_NO_BILL = Bill(sent=True)
"""Of a job that had ended when it was written, or was written by an earlier release: nobody knows what was sent."""

_answers: msgspec.json.Decoder[dict[str, Answer]] = msgspec.json.Decoder(dict[str, Answer])
_questions: msgspec.json.Decoder[tuple[Question, ...]] = msgspec.json.Decoder(tuple[Question, ...])
_route: msgspec.json.Decoder[Route] = msgspec.json.Decoder(Route)
_bill: msgspec.json.Decoder[Bill] = msgspec.json.Decoder(Bill)
_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
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
    bill: Bill = _NO_BILL

    @property
    def ended(self) -> bool:
        """Whether it will never change again."""
        return self.status in _ENDED


class KeyReused(Conflict):
    """A key came again with another call."""

    def __init__(self, key: str | None):
        super().__init__(f"Key {key!r} was already used for a different call. Use a new key for each call.")


# From a call to a row


def digest_of(call: Call) -> str | None:
    """The digest of what the key of a call stands for; None without a key."""
    if call.key is None:
        return None
    content = (call.agent, call.capability, call.input, call.parts)
    return hashlib.sha256(_encode_given(_sorted.encode, content)).hexdigest()


def encode_call(call: Call) -> bytes:
    """A call for its column; ValidationError if its input has no JSON form."""
    return append_checksum(_encode_given(encode, call))


def _encode_given(encoder: Callable[[Any], bytes], value: Any) -> bytes:
    try:
        return encoder(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"The input cannot be stored: {error}. Send JSON values only.") from None


def encode_column(value: Any) -> bytes:
    """Any value as JSON with its checksum."""
    return append_checksum(encode(value))


def encode_outcome(outcome: Outcome, *beside: object) -> bytes:
    """An outcome for its column. An ended job never changes, so its checksum also covers what is stored beside it."""
    status = status_of(outcome)
    return append_checksum(encode(outcome), status, *beside) if status in _ENDED else encode_column(outcome)


def encode_state(state: Any, kept: Mapping[str, Any]) -> bytes | None:
    """The connector's reference and the results of ``ctx.once``, for their column; None if there are neither."""
    return encode_column({"state": state, "kept": dict(kept)}) if state is not None or kept else None


def status_of(outcome: Outcome) -> Status:
    """The status of a job whose turn ends with this outcome."""
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
        return "authorization" if any(question.wants_authorization for question in outcome.questions) else None
    kind = outcome.meta.get(META_RESULT) if isinstance(outcome, Done) else None
    return kind if isinstance(kind, str) else None


def as_event_data(outcome: Outcome) -> Any:
    """An outcome for readers of the log: without the connector's state, and with open questions only."""
    if isinstance(outcome, Needs | Working) and outcome.state is not None:
        outcome = msgspec.structs.replace(outcome, state=None)
    if isinstance(outcome, Needs) and outcome.answered:
        outcome = msgspec.structs.replace(outcome, answered=())
    return msgspec.to_builtins(outcome)


def never_ran(job: Job, outcome: Outcome, attempted: bool) -> bool:
    """Whether a job ended without reaching its target, so that its key may be used again."""
    # A code alone proves nothing, since targets fail with any. And once a job has a second generation, nobody knows
    # what the process of the first one sent.
    if not isinstance(outcome, Failed) or job.generation > 1:
        return False
    return not outcome.sent or (not attempted and outcome.code in REFUSALS)


# From a row to a job


def match_key(row: Row, call: Call, digest: str | None) -> Job:
    """The job of a row with the key of a call; KeyReused if it was another call."""
    if row["key_hash"] != digest:
        raise KeyReused(call.key)
    return decode_job(row)


def decode_job(row: Row) -> Job:
    """The job of a row; Corrupt if it cannot be read."""

    def read(column: str, *beside: object) -> bytes | None:
        return whole(bytes(row[column]), f"Job {row['id']}, {column},", *beside) if row[column] is not None else None

    try:
        if row["status"] not in _STATUSES:
            raise ValueError(f"{row['status']!r} is not a status")
        columns = ("call", "route", "state", "answers", "questions", "bill")
        call, route, state, answers, questions, bill = map(read, columns)
        outcome = read("outcome", *(row[column] for column in _COVERED) if row["status"] in _ENDED else ())
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
            bill=_bill.decode(bill) if bill is not None else _NO_BILL,
        )
    except _UNREADABLE as error:
        raise Corrupt(f"Job {row['id']} cannot be read: {error}") from None


class RowReader:
    """Reads rows of which some may be damaged. Each damaged one is logged and counted once, and hides no other."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._reported: set[str] = set()

    def find_job(self, row: Row) -> Job | None:
        """The job of a row; None if it cannot be read."""
        try:
            return decode_job(row)
        except Corrupt as error:
            self._report(row["id"], error.message)
            return None

    def get_bill(self, row: Row) -> Bill:
        """What a row of a job says that it owes; nothing is known of one that cannot be read."""
        try:
            return _NO_BILL if row["bill"] is None else _bill.decode(whole(bytes(row["bill"]), "its bill"))
        except (*_UNREADABLE, Corrupt) as error:
            self._report(row["id"], f"Job {row['id']} cannot be read: {error}")
            return _NO_BILL

    def get_event(self, job_id: str, row: Row) -> Event:
        """The event of a row of the log; if it cannot be read, one in its place that says so."""
        try:
            event = _event.decode(whole(bytes(row["body"]), "it", job_id, row["seq"]))
            return msgspec.structs.replace(event, seq=row["seq"])
        except (*_UNREADABLE, Corrupt) as error:
            self._report(f"{job_id}/{row['seq']}", f"Event {row['seq']} of job {job_id} cannot be read: {error}")
            return Event("log", text="This event is damaged and cannot be read.", seq=row["seq"], turn=row["turn"] or 0)

    def _report(self, name: str, text: str) -> None:
        if name in self._reported:
            return
        if len(self._reported) < _MAX_REPORTED:
            self._reported.add(name)
        log.error("jobs: %s; skipped", text)
        self._metrics.events_dropped.inc(("undecodable row",))
