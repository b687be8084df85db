"""A job and its event log, seen as a task of A2A: messages, artifacts, states, and what a stream tells of them.

A ``Projection`` folds the log of one job, line by line; every line gives the items that a stream carries, and at any
point the task as it stands. So a stream that is resumed tells the same as one that never broke, and a task that is
read after a restart is the one that was told before it. Nothing here waits or writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from agent3.calls.jobs.jobs import ALIAS, RESULT, Job, Line
from agent3.calls.outcomes import is_refusal
from agent3.model import SAID, Call, Capability, Done, Event, Failed, Needs, Outcome, Question, Working
from agent3.model import Artifact as Made
from agent3.model import Part as Piece
from agent3.protocols.a2a.wire.types import (
    TERMINAL,
    Artifact,
    ArtifactUpdate,
    Item,
    Message,
    Part,
    Role,
    State,
    Status,
    StatusUpdate,
    Task,
)

__all__ = [
    "META",
    "Growing",
    "Link",
    "Projection",
    "answer_kind",
    "finished",
    "first_message",
    "is_message",
    "message_of",
    "number",
    "parts_in",
    "parts_out",
    "says_all",
    "seq_of",
    "shortened",
    "spoken",
    "stamp",
    "state_of",
    "stored_in",
]

META: Final = "a2a"
"""The key in a call's ``meta`` of what only A2A knows of it, and in a capability's of how it answers."""
_WIDTH: Final = 10
"""Bits of a number that tell the items of one event apart."""
_REJECTED: Final = frozenset({"rejected", "declined"})
_RESULT: Final = "result"
_outcomes: Any = Done | Failed | Needs | Working

Link = Callable[[str], str]
"""The address of a stored part by its handle."""


# Parts and messages


def parts_in(parts: Iterable[Part]) -> tuple[Piece, ...]:
    """What a message brings, in the words of the house."""
    return tuple(map(_part_in, parts))


def _part_in(part: Part) -> Piece:
    return Piece(
        text=part.text,
        data=part.data,
        raw=part.raw,
        url=part.url,
        media_type=part.media_type,
        name=part.filename,
        meta=part.metadata or {},
    )


def says_all(pieces: tuple[Piece, ...], parts: tuple[Part, ...]) -> bool:
    """Whether pieces are those of a message, all of them and no others."""
    if len(pieces) == 1 == len(parts) and parts[0].text is not None:
        one, said = pieces[0], parts[0]
        same = one.text is said.text and one.media_type == said.media_type and one.name == said.filename
        return same and one.data is said.data and one.meta == (said.metadata or {})
    return pieces == parts_in(parts)


def parts_out(parts: Iterable[Piece], link: Link | None = None) -> tuple[Part, ...]:
    """What the house has made, in the words of A2A. A part that lies in the store is named by its address."""
    return tuple([_part_out(one, link) for one in parts])


def _part_out(part: Piece, link: Link | None) -> Part:
    url = part.url
    if part.artifact is not None:
        url = link(part.artifact) if link is not None else f"{_STORED}{part.artifact}"
    return Part(
        text=part.text,
        data=part.data,
        raw=part.raw,
        url=url,
        media_type=part.media_type,
        filename=part.name,
        metadata=part.meta or None,
    )


_STORED: Final = "artifact:"


def stored_in(part: Part) -> str | None:
    """The handle of a part that lies in the store and has no address of its own."""
    return part.url.removeprefix(_STORED) if part.url is not None and part.url.startswith(_STORED) else None


def stamp(seconds: float) -> str:
    """A moment as A2A writes it: UTC with milliseconds."""
    whole, rest = divmod(int(seconds * 1000), 1000)
    return f"{_stamp(whole)}.{rest:03d}Z"


@lru_cache(maxsize=1024)
def _stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")[:19]


def spoken(job: str, context: str | None, seq: int, parts: tuple[Part, ...], **more: Any) -> Message:
    """What an agent says. Its id follows from where it stands in the log, so that it is the same for every reader."""
    return Message(message_id=f"{job}-{seq}", role=Role.AGENT, parts=parts, context_id=context, task_id=job, **more)


def message_of(event: Event) -> Message | None:
    """What a caller said in a later turn; None where that cannot be read."""
    try:
        return replace(msgspec.convert(event.data, Message), parts=parts_out(event.parts))
    except msgspec.ValidationError:
        return None


def first_message(call: Call) -> Message:
    """The message that a task began with; made from the call, where it came through another door."""
    return _begun(call, call.meta.get(ALIAS) or call.job or call.id, call.context)


def _begun(call: Call, task: str, context: str | None) -> Message:
    kept = call.meta.get(META, {})
    try:
        message = msgspec.convert(kept.get("message"), Message)
    except msgspec.ValidationError:
        message = Message(message_id=call.id, role=Role.USER, parts=())
    parts = message.parts or parts_out(call.parts) or _given(call)
    return replace(message, parts=parts, task_id=task, context_id=context)


def _given(call: Call) -> tuple[Part, ...]:
    return (Part(data=call.input),) if call.input is not None else ()


# Outcomes


def state_of(outcome: Outcome) -> State:
    """The state of a task whose turn ended so."""
    if isinstance(outcome, Done):
        return State.COMPLETED
    if isinstance(outcome, Working):
        return State.WORKING
    if isinstance(outcome, Needs):
        return State.AUTH_REQUIRED if any(one.url for one in outcome.questions) else State.INPUT_REQUIRED
    if outcome.code == "canceled":
        return State.CANCELED
    return State.REJECTED if outcome.code in _REJECTED or is_refusal(outcome) else State.FAILED


def answer_kind(capability: Capability) -> str:
    """How a capability answers: with a ``task``, with a ``message``, or ``hybrid``, which is seen when it has."""
    said = capability.meta.get(META)
    kind = said.get("answer") if isinstance(said, Mapping) else None
    return kind if kind in ("message", "hybrid") else "task"


def is_message(call: Call, outcome: Outcome | None) -> bool:
    """Whether a result is a mere message: its author says so of it, or of the capability."""
    if not isinstance(outcome, Done):
        return False
    return outcome.meta.get(RESULT) == "message" or call.meta.get(META, {}).get("answer") == "message"


def _question(question: Question) -> dict[str, Any]:
    told: dict[str, Any] = {"id": question.id, "schema": question.schema, "url": question.url}
    return {name: value for name, value in told.items() if value is not None}


def _asking(outcome: Needs, link: Link | None) -> tuple[Part, ...]:
    """The questions for people, and what a program needs to answer them."""
    texts = tuple(Part(text=one.text) for one in outcome.questions)
    forms = tuple(Part(data=_question(one)) for one in outcome.questions)
    return (*parts_out(outcome.parts, link), *texts, *forms)


class _Said(NamedTuple):
    """A status: what the agent says with it, if anything."""

    parts: tuple[Part, ...] = ()
    metadata: dict[str, Any] | None = None


def _said(outcome: Outcome, message: bool, link: Link | None) -> _Said:
    if isinstance(outcome, Failed):
        return _Said((Part(text=outcome.message),), {"code": outcome.code, "retryable": outcome.retryable})
    if isinstance(outcome, Needs):
        return _Said(_asking(outcome, link))
    if isinstance(outcome, Working):
        return _Said((Part(text=outcome.text),) if outcome.text else ())
    return _Said(parts_out(outcome.parts, link) if message else ())


def finished(job: Job, link: Link | None, history_length: int | None) -> Task | None:
    """The task of a job that said nothing but its result, in its first turn; None for any other.

    What a ``Projection`` of it would tell, without its steps in between: most tasks are such.
    """
    outcome, call = job.outcome, job.call
    if job.seq != 1 or job.turn != 1 or not isinstance(outcome, Done) or is_message(call, outcome):
        return None
    name: str = call.meta.get(ALIAS) or job.id
    context = call.context or job.id
    made = {one.id: _artifact(one, link) for one in outcome.artifacts}
    if outcome.parts:
        made[_RESULT] = Artifact(artifact_id=_RESULT, parts=parts_out(outcome.parts, link))
    return Task(
        id=name,
        context_id=context,
        status=Status(state=State.COMPLETED, timestamp=stamp(job.updated)),
        artifacts=tuple(made.values()),
        history=() if history_length == 0 else (_begun(call, name, context),),
    )


# Numbers


def number(seq: int, index: int = 0) -> int:
    """The number of an item in a stream: that of its event, and which of the event's items it is."""
    return seq << _WIDTH | min(index, (1 << _WIDTH) - 1)


def seq_of(given: int) -> tuple[int, int]:
    """The event of an item's number, and how many of the event's items were told with it."""
    return given >> _WIDTH, (given & (1 << _WIDTH) - 1) + 1


# The fold


class _Chunks:
    """The text that was streamed of an artifact, without holding it: its length and its digest."""

    def __init__(self) -> None:
        self.only_text = True
        self._length = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, parts: tuple[Piece, ...]) -> None:
        for part in parts:
            if part.text is None:
                self.only_text = False
                return
            self._length += len(part.text)
            self._digest.update(part.text.encode("utf-8", "surrogatepass"))

    def rest_of(self, parts: tuple[Piece, ...]) -> str | None:
        """What the whole has beyond what was streamed; None where it is another text."""
        if not self.only_text or len(parts) != 1 or parts[0].text is None:
            return None
        begun = parts[0].text[: self._length].encode("utf-8", "surrogatepass")
        same = hashlib.blake2b(begun, digest_size=16).digest() == self._digest.digest()
        return parts[0].text[self._length :] if same else None


class Growing:
    """An artifact that comes in pieces, put together when it is read: with each piece, it would be copied each time."""

    __slots__ = ("_artifact", "_pieces")

    def __init__(self, artifact: Artifact):
        self._artifact = artifact
        self._pieces = [artifact.parts]

    def add(self, piece: Artifact) -> None:
        """One more piece of it."""
        self._pieces.append(piece.parts)
        if piece.name and not self._artifact.name:
            self._artifact = replace(self._artifact, name=piece.name)

    def whole(self) -> Artifact:
        """All of it so far."""
        if len(self._pieces) > 1:
            self._artifact = replace(self._artifact, parts=_joined(self._pieces))
            self._pieces = [self._artifact.parts]
        return self._artifact


def _joined(pieces: Sequence[tuple[Part, ...]]) -> tuple[Part, ...]:
    """Pieces of an artifact as one: a text goes on where the last one ended."""
    parts: list[Part] = []
    more: list[str] = []
    for piece in pieces:
        rest = piece
        if parts and piece and parts[-1].text is not None and piece[0].text is not None:
            more.append(piece[0].text)
            rest = piece[1:]
        if rest:
            _lengthen(parts, more)
            parts.extend(rest)
    _lengthen(parts, more)
    return tuple(parts)


def _lengthen(parts: list[Part], more: list[str]) -> None:
    """Let the last text go on."""
    if more:
        parts[-1] = replace(parts[-1], text="".join([parts[-1].text or "", *more]))
        more.clear()


class Projection:
    """One task, folded from the log of its job. ``apply`` takes the lines in order.

    One that stands ``apart`` has not seen what came before, and takes a piece that goes on with something for that.
    """

    def __init__(self, job: Job, link: Link | None = None, *, apart: bool = False):
        call = job.call
        self.id: str = call.meta.get(ALIAS) or job.id
        self.context = call.context or job.id
        self.history: list[Message] = [first_message(replace(call, job=job.id, context=self.context))]
        self._artifacts: dict[str, Growing] = {}
        self.status = Status(state=State.SUBMITTED, timestamp=stamp(job.created))
        self._job = job
        self._link = link
        self._apart = apart
        self._streamed: dict[str, _Chunks] = {}

    def start(self) -> Item:
        """What follows the first snapshot of a task: it is being worked on."""
        self.status = Status(state=State.WORKING, timestamp=self.status.timestamp)
        return self._update()

    def apply(self, line: Line) -> list[Item]:
        """Take one line; the items that a stream tells of it."""
        event, at = line
        if event.kind == "artifact":
            return [self._piece(event)]
        if event.kind in ("status", "progress"):
            return [self._progress(event, at)]
        if event.kind == "message":
            return self._heard(event, at)
        if event.kind == "turn":
            return self._turn(msgspec.convert(event.data, _outcomes), event.seq, at)
        return []

    def settle(self, job: Job) -> None:
        """Come to where the row of the job says that it stands, as far as the lines did not say it."""
        if job.status == "working":
            if self.status.state is not State.WORKING:
                self._become(State.WORKING, None, job.updated)
        elif job.outcome is not None and (state := state_of(job.outcome)) is not self.status.state:
            self._turn(job.outcome, job.seq, job.updated)
            assert self.status.state is state

    def only_message(self, line: Line) -> Message | None:
        """The answer, where a line says that all there is to tell is a mere message."""
        if line.event.kind != "turn":
            return None
        outcome = msgspec.convert(line.event.data, _outcomes)
        return self.answer(outcome, line.event.seq) if is_message(self._job.call, outcome) else None

    def task(self, history_length: int | None = None, *, artifacts: bool = True) -> Task:
        """The task as it stands."""
        return Task(
            id=self.id,
            context_id=self.context,
            status=self.status,
            artifacts=tuple(one.whole() for one in self._artifacts.values()) if artifacts else (),
            history=shortened(self.history, history_length),
        )

    def answer(self, outcome: Done, seq: int) -> Message:
        """A result that is a mere message. It names no task, for there is none to ask for."""
        parts = parts_out(outcome.parts, self._link) or (Part(text=""),)
        made = tuple(part for one in outcome.artifacts for part in parts_out(one.parts, self._link))
        return Message(
            message_id=f"{self._job.id}-{seq}",
            role=Role.AGENT,
            parts=parts + made,
            context_id=self.context,
        )

    # Inside

    def _update(self, metadata: dict[str, Any] | None = None) -> StatusUpdate:
        final = self.status.state in TERMINAL or self.status.state in _INTERRUPTED
        return StatusUpdate(
            task_id=self.id, context_id=self.context, status=self.status, metadata=metadata, final=final
        )

    def _become(self, state: State, message: Message | None, at: float) -> None:
        """Change the status. What the agent asked or said with the one before belongs to the history now."""
        if self.status.state in _INTERRUPTED and self.status.message is not None:
            self.history.append(self.status.message)
        self.status = Status(state=state, message=message, timestamp=stamp(at))

    def _progress(self, event: Event, at: float) -> Item:
        text = (Part(text=event.text),) if event.text else ()
        message = spoken(self.id, self.context, event.seq, text) if text else None
        done = {"done": event.done, "total": event.total} if event.kind == "progress" else {}
        self._become(State.WORKING, message, at)
        update = self._update(
            {"progress": {name: one for name, one in done.items() if one is not None}} if done else None
        )
        if event.data == SAID and message is not None:
            self.history.append(message)
            self.status = replace(self.status, message=None)
        return update

    def _heard(self, event: Event, at: float) -> list[Item]:
        message = message_of(event)
        self._become(State.WORKING, None, at)
        if message is not None:
            self.history.append(replace(message, task_id=self.id, context_id=self.context))
        return [self._update()]

    def _piece(self, event: Event) -> ArtifactUpdate:
        called = event.artifact or _RESULT
        parts = parts_out(event.parts, self._link)
        known = self._artifacts.get(called)
        goes_on = event.append and (known is not None or self._apart)
        chunks = self._streamed[called] = self._streamed.get(called) or _Chunks() if goes_on else _Chunks()
        chunks.add(event.parts)
        piece = Artifact(artifact_id=called, name=event.name, parts=parts)
        if known is not None and goes_on:
            known.add(piece)
        else:
            self._artifacts[called] = Growing(piece)
        return ArtifactUpdate(
            task_id=self.id, context_id=self.context, artifact=piece, append=goes_on, last_chunk=event.last
        )

    def _turn(self, outcome: Outcome, seq: int, at: float) -> list[Item]:
        items: list[Item] = []
        message = is_message(self._job.call, outcome)
        if isinstance(outcome, (Done, Failed)) and not message:
            items.extend(self._made(outcome))
        parts, metadata = _said(outcome, message, self._link)
        said = spoken(self.id, self.context, seq, parts, metadata=metadata) if parts else None
        self._become(state_of(outcome), said, at)
        return [*items, self._update()]

    def _made(self, outcome: Done | Failed) -> Iterable[Item]:
        """The artifacts that come with the end: those beside the result, and the result itself."""
        for one in outcome.artifacts:
            yield self._whole(one)
        if not outcome.parts:
            return
        chunks = self._streamed.get(_RESULT)
        rest = chunks.rest_of(outcome.parts) if chunks is not None else None
        whole = self._whole(Made(_RESULT, parts=outcome.parts))
        if rest is None:
            yield whole
        else:  # all of it was told already, or all but the end
            last = replace(whole.artifact, parts=(Part(text=rest),))
            yield replace(whole, artifact=last, append=True)

    def _whole(self, made: Made) -> ArtifactUpdate:
        artifact = _artifact(made, self._link)
        self._artifacts[made.id] = Growing(artifact)
        return ArtifactUpdate(task_id=self.id, context_id=self.context, artifact=artifact, last_chunk=True)


def _artifact(made: Made, link: Link | None) -> Artifact:
    return Artifact(
        artifact_id=made.id,
        name=made.name,
        description=made.description,
        parts=parts_out(made.parts, link),
        metadata=made.meta or None,
    )


_INTERRUPTED: Final = frozenset({State.INPUT_REQUIRED, State.AUTH_REQUIRED})


def shortened(history: Iterable[Message], length: int | None) -> tuple[Message, ...]:
    """The latest messages, as many as are wanted; all, where nobody says."""
    whole = tuple(history)
    if length is None or length >= len(whole):
        return whole
    return whole[len(whole) - length :] if length > 0 else ()
