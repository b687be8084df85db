"""A job and its event log as a task of A2A: its messages, artifacts and states, and the items of its streams.

A ``Projection`` folds the log of one job, line by line. Every line gives the items that a stream carries, and at any
point there is the task as it stands. So a resumed stream has the same items as one that never broke, and a task that is
read after a restart is the one that was shown before it. Nothing here waits or writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from agent3.calls.jobs import META_ALIAS, META_RESULT, Job, Line
from agent3.calls.outcomes import is_refusal
from agent3.model import SAID, Answer, Call, Capability, Done, Event, Failed, Needs, Outcome, Question, Working
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
from agent3.schema.coercion import in_words

__all__ = [
    "EXTENSIONS",
    "META",
    "META_ABOUT",
    "META_SAID_WITH",
    "META_UPDATE",
    "Growing",
    "Link",
    "Projection",
    "agent_message",
    "answer_kind",
    "answers_to",
    "first_message",
    "format_time",
    "is_message",
    "is_same_content",
    "item_number",
    "latest_messages",
    "parts_in",
    "parts_out",
    "project_finished",
    "read_message",
    "split_number",
    "stored_in",
    "to_state",
]

META: Final = "a2a"
"""The key in a call's ``meta`` of what only A2A knows of it, and in a capability's of how it answers."""
META_SAID: Final = "said"
"""The key in a result's ``meta`` of what the agent said when it was done, beside the result."""
META_SAID_WITH: Final = "a2a.said_with"
"""The same of the metadata of what it said; also in the ``data`` of a status."""
META_UPDATE: Final = "a2a.update"
"""The key in the ``data`` of a status or of progress of what the agent said beside its status."""
META_ABOUT: Final = "a2a.about"
"""The key in a result's ``meta``, and in the ``data`` of its pieces, of its id, name, description and metadata."""
EXTENSIONS: Final = "a2a.extensions"
"""The key in an artifact's ``meta`` of the extensions that it is written by."""
_WIDTH: Final = 10
"""Bits of a number that tell the items of one event apart."""
_REJECTED: Final = frozenset({"rejected", "declined"})
_INTERRUPTED: Final = frozenset({State.INPUT_REQUIRED, State.AUTH_REQUIRED})
_RESULT: Final = "result"
_BARE_RESULT: Final = Made(_RESULT)
_NOTHING_SAID: Final = (None, None, ())
"""Of an artifact without a description, metadata and extensions."""
_ACTIONS: Final = ("accept", "decline", "cancel")
_STORED: Final = "artifact:"
_outcomes: Any = Done | Failed | Needs | Working

Link = Callable[[str], str]
"""The address of a stored part by its handle."""


# Parts and messages


def parts_in(parts: Iterable[Part]) -> tuple[Piece, ...]:
    """The parts of a message as parts of the model."""
    return tuple(
        [
            Piece(
                text=part.text,
                data=part.data,
                raw=part.raw,
                url=part.url,
                media_type=part.media_type,
                name=part.filename,
                meta=part.metadata or {},
            )
            for part in parts
        ]
    )


def is_same_content(pieces: tuple[Piece, ...], parts: tuple[Part, ...]) -> bool:
    """Whether these pieces are exactly the parts of a message."""
    if len(pieces) == 1 == len(parts) and parts[0].text is not None:  # most messages, and cheaper than to convert them
        piece, part = pieces[0], parts[0]
        same = piece.text is part.text and piece.media_type == part.media_type and piece.name == part.filename
        return same and piece.data is part.data and piece.meta == (part.metadata or {})
    return pieces == parts_in(parts)


def parts_out(parts: Iterable[Piece], link: Link | None = None) -> tuple[Part, ...]:
    """Parts of the model as parts of a message. A part that lies in the store has its address."""
    address = link or _STORED.__add__
    return tuple(
        [
            Part(
                text=part.text,
                data=part.data,
                raw=part.raw,
                url=part.url if part.artifact is None else address(part.artifact),
                media_type=part.media_type,
                filename=part.name,
                metadata=part.meta or None,
            )
            for part in parts
        ]
    )


def stored_in(part: Part) -> str | None:
    """The handle of a part that lies in the store and has no address of its own."""
    return part.url.removeprefix(_STORED) if part.url is not None and part.url.startswith(_STORED) else None


def format_time(seconds: float) -> str:
    """A time as A2A writes it: UTC with milliseconds."""
    whole, rest = divmod(int(seconds * 1000), 1000)
    return f"{_format_second(whole)}.{rest:03d}Z"


@lru_cache(maxsize=1024)
def _format_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")[:19]


def agent_message(job: str, context: str | None, seq: int, parts: tuple[Part, ...], **more: Any) -> Message:
    """A message of the agent. Its id is its position in the log, so that it is the same for every reader."""
    return Message(message_id=f"{job}-{seq}", role=Role.AGENT, parts=parts, context_id=context, task_id=job, **more)


def read_message(event: Event) -> Message | None:
    """The caller's message of a later turn; None where the event has none that can be read."""
    try:
        return replace(msgspec.convert(event.data, Message), parts=parts_out(event.parts))
    except msgspec.ValidationError:
        return None


def first_message(call: Call) -> Message:
    """The message that a task began with; made from the call, where that came through another door."""
    return _first_message(call, call.meta.get(META_ALIAS) or call.job or call.id, call.context)


def _first_message(call: Call, task: str, context: str | None) -> Message:
    kept = call.meta.get(META, {})
    try:
        message = msgspec.convert(kept.get("message"), Message)
    except msgspec.ValidationError:
        message = Message(message_id=call.id, role=Role.USER, parts=())
    parts = message.parts or parts_out(call.parts)
    if not parts and call.input is not None:
        parts = (Part(data=call.input),)
    return replace(message, parts=parts, task_id=task, context_id=context)


# Outcomes


def to_state(outcome: Outcome) -> State:
    """The state of a task whose turn ended with this outcome."""
    if isinstance(outcome, Done):
        return State.COMPLETED
    if isinstance(outcome, Working):
        return State.WORKING
    if isinstance(outcome, Needs):
        waits = any(question.wants_authorization for question in outcome.questions)
        return State.AUTH_REQUIRED if waits else State.INPUT_REQUIRED
    if outcome.code == "canceled":
        return State.CANCELED
    return State.REJECTED if outcome.code in _REJECTED or is_refusal(outcome) else State.FAILED


def answer_kind(capability: Capability) -> str:
    """How a capability answers: with a ``task``, with a ``message``, or ``hybrid``, which only its result tells."""
    own = capability.meta.get(META)
    kind = own.get("answer") if isinstance(own, Mapping) else None
    return kind if kind in ("message", "hybrid") else "task"


def is_message(call: Call, outcome: Outcome | None) -> bool:
    """Whether a result is a plain message and no task: its author says so of it, or of the capability."""
    if not isinstance(outcome, Done):
        return False
    return outcome.meta.get(META_RESULT) == "message" or call.meta.get(META, {}).get("answer") == "message"


def _status_message(
    outcome: Outcome, is_plain: bool, link: Link | None
) -> tuple[tuple[Part, ...], dict[str, Any] | None]:
    """The parts and metadata of the message that goes with the status of an outcome; no parts for no message."""
    if isinstance(outcome, Failed):
        return (Part(text=outcome.message),), {"code": outcome.code, "retryable": outcome.retryable}
    if isinstance(outcome, Needs):
        # A2A has no form for questions: each is a text for people, and then data for programs (see ``answers_to``).
        texts = tuple(Part(text=question.text) for question in outcome.questions)
        forms = []
        for question in outcome.questions:
            form = {"id": question.id, "schema": question.schema, "url": question.url, "by": question.by}
            forms.append(Part(data={name: value for name, value in form.items() if value is not None}))
        return (*parts_out(outcome.parts, link), *texts, *forms), None
    if isinstance(outcome, Working):
        return (Part(text=outcome.text),) if outcome.text else (), None
    if is_plain:
        return parts_out(outcome.parts, link), None
    said = outcome.meta.get(META_SAID)
    return (Part(text=said),) if isinstance(said, str) and said else (), _metadata_of(outcome.meta, META_SAID_WITH)


def answers_to(questions: Sequence[Question], message: Message) -> dict[str, Answer]:
    """The answers in a message, by question. Questions without an answer are asked again.

    An answer may be data by the ids of questions, ``{"q1": "large"}``; data with an action,
    ``{"id": "q1", "action": "decline"}``; any other data; or text, which is converted to what the schema asks for where
    that needs no guessing.
    """
    ids = {question.id for question in questions}
    data = [part.data for part in message.parts if not isinstance(part.data, UnsetType)]
    found: dict[str, Answer] = {}
    for entry in data:
        if not isinstance(entry, Mapping):
            continue
        if isinstance(named := entry.get("id"), str) and named in ids:
            action = entry.get("action", "accept")
            value = next((entry[key] for key in ("answer", "data", "value") if key in entry), None)
            found[named] = Answer(action if action in _ACTIONS else "accept", value, exact=True)
        else:
            found |= {name: Answer(data=value, exact=True) for name, value in entry.items() if name in ids}
    if found or not questions:
        return found
    # Nothing names a question, so the message as a whole answers the first one.
    question = questions[0]
    if question.wants_authorization:
        return {question.id: Answer()}
    if data:
        return {question.id: Answer(data=data[0], exact=True)}
    text = "\n".join(part.text for part in message.parts if part.text)
    return {question.id: in_words(question.schema, text)}


def project_finished(job: Job, link: Link | None, history_length: int | None) -> Task | None:
    """The task of a job that has nothing but its result, in its first turn; None for any other.

    It is what a ``Projection`` would give, without the steps in between: most tasks are such.
    """
    outcome, call = job.outcome, job.call
    if job.seq != 1 or job.turn != 1 or not isinstance(outcome, Done) or is_message(call, outcome):
        return None
    if META_SAID in outcome.meta or META_ABOUT in outcome.meta:
        return None
    name: str = call.meta.get(META_ALIAS) or job.id
    context = call.context or job.id
    made = {artifact.id: _artifact(artifact, link) for artifact in outcome.artifacts}
    if outcome.parts:
        made[_RESULT] = Artifact(artifact_id=_RESULT, parts=parts_out(outcome.parts, link))
    return Task(
        id=name,
        context_id=context,
        status=Status(state=State.COMPLETED, timestamp=format_time(job.updated)),
        artifacts=tuple(made.values()),
        history=() if history_length == 0 else (_first_message(call, name, context),),
    )


# Numbers


def item_number(seq: int, index: int = 0) -> int:
    """The number of an item in a stream: that of its event, and its index among the event's items."""
    return seq << _WIDTH | min(index, (1 << _WIDTH) - 1)


def split_number(given: int) -> tuple[int, int]:
    """The event of an item's number, and how many of the event's items were sent with it."""
    return given >> _WIDTH, (given & (1 << _WIDTH) - 1) + 1


# The fold


class _Chunks:
    """The text that was streamed of an artifact, without keeping it: its length and its digest."""

    def __init__(self) -> None:
        self.only_text = True
        self.ended = False
        """Whether its last chunk was said to be that."""
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
        """What the whole text has beyond what was streamed; None where it is another text."""
        if not self.only_text or len(parts) != 1 or parts[0].text is None:
            return None
        start = parts[0].text[: self._length].encode("utf-8", "surrogatepass")
        same = hashlib.blake2b(start, digest_size=16).digest() == self._digest.digest()
        return parts[0].text[self._length :] if same else None


class Growing:
    """An artifact that comes in pieces. It is joined when it is read, not with each piece, which would be quadratic."""

    __slots__ = ("_artifact", "_pieces")

    def __init__(self, artifact: Artifact):
        self._artifact = artifact
        self._pieces = [artifact.parts]

    @property
    def about(self) -> tuple[Any, ...]:
        """What is said of it."""
        return self._artifact.description, self._artifact.metadata, self._artifact.extensions

    def add(self, piece: Artifact) -> None:
        """Add a piece."""
        self._pieces.append(piece.parts)
        if piece.name and not self._artifact.name:
            self._artifact = replace(self._artifact, name=piece.name)

    def whole(self) -> Artifact:
        """All of it so far; a text goes on where the last one ended."""
        if len(self._pieces) > 1:
            parts: list[Part] = []
            tail: list[str] = []
            for piece in self._pieces:
                rest = piece
                if parts and piece and parts[-1].text is not None and piece[0].text is not None:
                    tail.append(piece[0].text)
                    rest = piece[1:]
                if rest:
                    _append_text(parts, tail)
                    parts.extend(rest)
            _append_text(parts, tail)
            self._artifact = replace(self._artifact, parts=tuple(parts))
            self._pieces = [self._artifact.parts]
        return self._artifact


def _append_text(parts: list[Part], tail: list[str]) -> None:
    """Let the last part, which is a text, go on."""
    if tail:
        parts[-1] = replace(parts[-1], text="".join([parts[-1].text or "", *tail]))
        tail.clear()


class Projection:
    """One task, folded from the log of its job. ``apply`` takes the lines in order.

    One that stands ``apart`` has not seen the lines before, and believes a piece that says that it continues another.
    """

    def __init__(self, job: Job, link: Link | None = None, *, apart: bool = False):
        call = job.call
        self.id: str = call.meta.get(META_ALIAS) or job.id
        self.context = call.context or job.id
        self.history: list[Message] = [first_message(replace(call, job=job.id, context=self.context))]
        self._artifacts: dict[str, Growing] = {}
        self.status = Status(state=State.SUBMITTED, timestamp=format_time(job.created))
        self._job = job
        self._link = link
        self._apart = apart
        self._streamed: dict[str, _Chunks] = {}
        self._main = _RESULT
        """The id of the artifact that is the result."""

    def start(self) -> Item:
        """Begin to work; gives the update that follows the first snapshot of a task."""
        self.status = Status(state=State.WORKING, timestamp=self.status.timestamp)
        return self._update()

    def apply(self, line: Line) -> list[Item]:
        """Take one line; gives the items of a stream for it."""
        event, at = line
        if event.kind == "artifact":
            return [self._apply_piece(event)]
        if event.kind in ("status", "progress"):
            return [self._apply_progress(event, at)]
        if event.kind == "message":
            message = read_message(event)
            self._become(State.WORKING, None, at)
            if message is not None:
                self.history.append(replace(message, task_id=self.id, context_id=self.context))
            return [self._update()]
        if event.kind == "turn":
            return self._apply_outcome(msgspec.convert(event.data, _outcomes), event.seq, at)
        return []

    def settle(self, job: Job) -> None:
        """Come to the state in the row of the job, where the lines did not lead there."""
        if job.status == "working":
            if self.status.state is not State.WORKING:
                self._become(State.WORKING, None, job.updated)
        elif job.outcome is not None and (state := to_state(job.outcome)) is not self.status.state:
            self._apply_outcome(job.outcome, job.seq, job.updated)
            assert self.status.state is state

    def only_message(self, line: Line) -> Message | None:
        """The answer, where a line says that the result is a plain message."""
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
            artifacts=tuple(artifact.whole() for artifact in self._artifacts.values()) if artifacts else (),
            history=latest_messages(self.history, history_length),
        )

    def answer(self, outcome: Done, seq: int) -> Message:
        """A result that is a plain message. It names no task, because there is none to ask for."""
        parts = parts_out(outcome.parts, self._link) or (Part(text=""),)
        made = tuple(part for artifact in outcome.artifacts for part in parts_out(artifact.parts, self._link))
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
        """Change the status. The message of an interrupted one, a question, is history now."""
        if self.status.state in _INTERRUPTED and self.status.message is not None:
            self.history.append(self.status.message)
        self.status = Status(state=state, message=message, timestamp=format_time(at))

    def _apply_progress(self, event: Event, at: float) -> Item:
        beside = event.data if isinstance(event.data, dict) else {}
        message = None
        if event.text:
            parts, said_with = (Part(text=event.text),), _metadata_of(beside, META_SAID_WITH)
            message = agent_message(self.id, self.context, event.seq, parts, metadata=said_with)
        self._become(State.WORKING, message, at)
        metadata = _metadata_of(beside, META_UPDATE)
        if event.kind == "progress":
            counts = {"done": event.done, "total": event.total}
            steps = {name: count for name, count in counts.items() if count is not None}
            metadata = {**(metadata or {}), "progress": steps}
        update = self._update(metadata)
        if event.data == SAID and message is not None:  # said to the caller, and not just a status that passes
            self.history.append(message)
            self.status = replace(self.status, message=None)
        return update

    def _apply_piece(self, event: Event) -> ArtifactUpdate:
        made = replace(_result_of(event.data), name=event.name, parts=event.parts)
        if event.artifact:
            made = replace(made, id=event.artifact)
        else:
            self._main = made.id
        name = made.id
        known = self._artifacts.get(name)
        continues = event.append and (known is not None or self._apart)
        chunks = self._streamed[name] = self._streamed.get(name) or _Chunks() if continues else _Chunks()
        chunks.add(event.parts)
        chunks.ended = event.last
        piece = _artifact(made, self._link)
        if known is not None and continues:
            known.add(piece)
        else:
            self._artifacts[name] = Growing(piece)
        return ArtifactUpdate(
            task_id=self.id, context_id=self.context, artifact=piece, append=continues, last_chunk=event.last
        )

    def _apply_outcome(self, outcome: Outcome, seq: int, at: float) -> list[Item]:
        items: list[Item] = []
        is_plain = is_message(self._job.call, outcome)
        if isinstance(outcome, (Done, Failed)) and not is_plain:
            main = _result_of(outcome.meta) if isinstance(outcome, Done) else Made(self._main)
            whole = (replace(main, parts=outcome.parts),) if outcome.parts else ()
            # Clients of ours take the one called ``result`` for that, else the first.
            order = (*outcome.artifacts, *whole) if main.id == _RESULT else (*whole, *outcome.artifacts)
            for made in order:
                items += self._complete_artifact(made)
        parts, metadata = _status_message(outcome, is_plain, self._link)
        message = agent_message(self.id, self.context, seq, parts, metadata=metadata) if parts else None
        self._become(to_state(outcome), message, at)
        return [*items, self._update()]

    def _complete_artifact(self, made: Made) -> list[Item]:
        """What a stream has yet to tell of an artifact that is complete now: all of it, its end, or nothing.

        There is no empty chunk just to say that it was the last: that ends streams of which clients take the last text.
        """
        artifact = _artifact(made, self._link)
        known, chunks = self._artifacts.get(made.id), self._streamed.get(made.id)
        rest = chunks.rest_of(made.parts) if chunks is not None else None
        is_bare = (known.about if known is not None else _NOTHING_SAID) == Growing(artifact).about
        told = rest == "" or (chunks is not None and chunks.ended and known is not None and _is_same(known, artifact))
        self._artifacts[made.id] = Growing(artifact)
        if told and is_bare:
            return []
        update = ArtifactUpdate(task_id=self.id, context_id=self.context, artifact=artifact, last_chunk=True)
        if rest and is_bare:  # all but the end of it was streamed already
            return [replace(update, artifact=replace(artifact, parts=(Part(text=rest),)), append=True)]
        return [update]


def _metadata_of(kept: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """Metadata that an agent gave, where it is kept under this key."""
    found = kept.get(key)
    return found if isinstance(found, dict) else None


def _is_same(known: Growing, artifact: Artifact) -> bool:
    return known.whole().parts == artifact.parts


def _result_of(meta: Any) -> Made:
    """The result without its parts, as ``meta`` says that it is called and described.

    An MCP server writes into ``meta`` what it likes: what has another form says nothing.
    """
    about = meta.get(META_ABOUT) if isinstance(meta, dict) else None
    if isinstance(about, dict):
        with suppress(msgspec.ValidationError):
            return replace(msgspec.convert({"id": _RESULT, **about}, Made), parts=())
    return _BARE_RESULT


def _artifact(made: Made, link: Link | None) -> Artifact:
    metadata = {name: value for name, value in made.meta.items() if name != EXTENSIONS}
    extensions = made.meta.get(EXTENSIONS)
    return Artifact(
        artifact_id=made.id,
        name=made.name,
        description=made.description,
        parts=parts_out(made.parts, link),
        metadata=metadata or None,
        extensions=tuple(one for one in extensions if isinstance(one, str)) if isinstance(extensions, list) else (),
    )


def latest_messages(history: Iterable[Message], length: int | None) -> tuple[Message, ...]:
    """The latest messages, as many as are wanted; by default all."""
    whole = tuple(history)
    if length is None or length >= len(whole):
        return whole
    return whole[len(whole) - length :] if length > 0 else ()
