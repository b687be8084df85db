"""Between a call of the house and a conversation in A2A: messages from calls, outcomes and events from what is told.

Pure functions and one fold; nothing here reaches a network. The first artifact of a task is its result, unless one is
called ``result``; the others stay beside it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from agent3.errors import MalformedResponse, TargetError, ValidationError, by_code
from agent3.model import (
    Answer,
    Call,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Question,
    Usage,
    Working,
    text_of,
)
from agent3.model import Artifact as Made
from agent3.model import Part as Piece
from agent3.protocols.a2a.cards.extensions import USAGE
from agent3.protocols.a2a.door.projection import Growing, parts_in, parts_out
from agent3.protocols.a2a.wire.types import (
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

__all__ = ["FREE", "Fold", "answer_message", "checked", "message_id", "message_of", "outcome_of"]

FREE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "What to say to the agent, in plain words."},
        "data": {"description": "Structured input beside or instead of words."},
        "files": {
            "type": "array",
            "description": "Files for the agent, by value in base64 or by address.",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "mediaType": {"type": "string"},
                    "bytes": {"type": "string", "contentEncoding": "base64"},
                    "url": {"type": "string"},
                },
            },
        },
    },
}
"""The input of a skill whose card says nothing of its form: A2A itself only knows messages."""

_MAIN: Final = "result"
_SHOWN: Final = 2_000
_POLL: Final = 1.0
_QUESTION: Final = frozenset({"id", "schema", "url"})
_ADDRESS: Final = re.compile(r"https?://[^\s<>\"')\]]+")


# What is said


def message_id(call: Call) -> str:
    """The id of a call's message: the same for each attempt, and for each call with the same key of one caller."""
    if call.key is None:
        return call.job or call.id
    whole = "\0".join((call.principal.id, call.agent, call.capability, call.key))
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def message_of(call: Call, skill: str | None, *, free: bool) -> Message:
    """The message that begins a task. A skill with a schema gets its input as data, any other its words."""
    parts = _free_parts(call) if free else _typed_parts(call)
    if not parts:
        raise ValidationError(f"{call.agent}/{call.capability} was given nothing to say. Give it a message.")
    return Message(
        message_id=message_id(call),
        role=Role.USER,
        parts=parts,
        context_id=call.context,
        metadata={"skillId": skill} if skill else None,
    )


def _free_parts(call: Call) -> tuple[Part, ...]:
    given = call.input if isinstance(call.input, dict) else {} if call.input is None else {"data": call.input}
    text = given.get("message")
    if text == text_of(call.parts) and call.parts:  # the words of the caller, as they came
        said = parts_out(call.parts)
    else:
        said = (Part(text=str(text)),) if text else ()
        said += parts_out(one for one in call.parts if one.text is None or not text)
    more = {name: one for name, one in given.items() if name not in FREE["properties"]}
    data = given.get("data", more or None)
    told = data is None or any(one.data == data for one in said)  # a door passes on the part that it was read from
    return (*said, *(() if told else (Part(data=data),)), *_files(given.get("files")))


def _typed_parts(call: Call) -> tuple[Part, ...]:
    return (*parts_out(one for one in call.parts if isinstance(one.data, UnsetType)), Part(data=call.input or {}))


def _files(given: Any) -> Iterable[Part]:
    for one in given if isinstance(given, list) else ():
        try:
            yield Part(
                raw=msgspec.convert(one["bytes"], bytes) if "bytes" in one else None,
                url=None if "bytes" in one else str(one["url"]),
                filename=one.get("name"),
                media_type=one.get("mediaType"),
            )
        except (KeyError, TypeError, msgspec.ValidationError):
            raise ValidationError('Each of the files needs either "bytes" in base64 or a "url".') from None


def answer_message(call: Call) -> Message:
    """The message that answers what a task asked: as data by the agent's own names, and in words where it has none."""
    asked: Mapping[str, Any] = call.state.get("asked") or {}
    said = [_answered(call.answers.get(name), one) for name, one in asked.items()]
    return Message(
        message_id=f"{message_id(call)}-{call.turn}",
        role=Role.USER,
        parts=tuple(part for parts in said for part in parts) or (Part(text="Go on."),),
        task_id=call.state["task"],
        context_id=call.state.get("context"),
    )


def _answered(answer: Answer | None, named: str | None) -> tuple[Part, ...]:
    answer = answer or Answer("cancel")
    if named is not None:
        told = {"id": named, "action": answer.action, "data": answer.data}
        words = (Part(text=_words(answer.data)),) if answer.data is not None else ()
        return (*words, Part(data=told))
    if answer.action != "accept":
        return (Part(text="No."),)
    if isinstance(answer.data, str) or answer.data is None:
        return (Part(text=answer.data or "Yes."),)
    value = _only_value(answer.data)
    return (Part(text=value),) if isinstance(value, str) else (Part(data=answer.data),)


def _only_value(data: Any) -> Any:
    """What a form with a single field holds: a person who was asked in words answers in words."""
    return next(iter(data.values())) if isinstance(data, dict) and len(data) == 1 else data


def _words(data: Any) -> str:
    value = _only_value(data)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# What is heard


class Fold:
    """What a task has told so far; ``take`` gives the events that whoever listens is told."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.message: Message | None = None
        self._artifacts: dict[str, Growing] = {}

    def take(self, item: Item) -> list[Event]:
        """One more item, in order. A task counts for everything before it."""
        if isinstance(item, Message):
            self.message = item
            return []
        if isinstance(item, Task):
            return self._snapshot(item)
        if isinstance(item, ArtifactUpdate):
            return [self._piece(item)]
        return self._status(item)

    def result(self) -> Task | Message | None:
        """What came of it."""
        if self.message is not None or self.task is None:
            return self.message
        return replace(self.task, artifacts=tuple(one.whole() for one in self._artifacts.values()))

    def _snapshot(self, task: Task) -> list[Event]:
        new = [one for one in task.artifacts if one.artifact_id not in self._artifacts]
        self.task = task
        self._artifacts = {one.artifact_id: Growing(one) for one in task.artifacts}
        return [self._event(one, append=False, last=True) for one in new] + _progress(task.status, task.metadata)

    def _status(self, update: StatusUpdate) -> list[Event]:
        before = self.task or Task(id=update.task_id, context_id=update.context_id, status=update.status)
        metadata = {**(before.metadata or {}), **(update.metadata or {})}
        self.task = replace(before, status=update.status, metadata=metadata or None)
        return _progress(update.status, update.metadata)

    def _piece(self, update: ArtifactUpdate) -> Event:
        if self.task is None:
            status = Status(state=State.WORKING)
            self.task = Task(id=update.task_id, context_id=update.context_id, status=status)
        piece = update.artifact
        known = self._artifacts.get(piece.artifact_id)
        if known is not None and update.append:
            known.add(piece)
        else:
            self._artifacts[piece.artifact_id] = Growing(piece)
        return self._event(piece, append=known is not None and update.append, last=update.last_chunk)

    def _event(self, artifact: Artifact, *, append: bool, last: bool) -> Event:
        first = next(iter(self._artifacts), artifact.artifact_id)
        called = None if artifact.artifact_id in (_MAIN, first) else artifact.artifact_id
        return Event(
            "artifact",
            artifact=called,
            name=artifact.name,
            parts=parts_in(artifact.parts),
            append=append,
            last=last,
        )


def _progress(status: Status, metadata: Mapping[str, Any] | None) -> list[Event]:
    """What is told meanwhile; what comes with the end or with a question is told by the outcome."""
    if status.state not in (State.WORKING, State.SUBMITTED):
        return []
    text = _text(status.message)
    steps = (metadata or {}).get("progress")
    if isinstance(steps, Mapping):
        return [
            Event("progress", text=text or None, done=_number(steps.get("done")), total=_number(steps.get("total")))
        ]
    return [Event("status", text=text)] if text else []


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# What came of it


def outcome_of(result: Task | Message, call: Call) -> Outcome:
    """The outcome that an answer stands for."""
    if isinstance(result, Message):
        return Done(parts_in(result.parts), usage=_usage(result.metadata))
    state = result.status.state
    if state is State.COMPLETED:
        return _done(result)
    if state in (State.INPUT_REQUIRED, State.AUTH_REQUIRED):
        return _needs(result, call)
    if state in _FAILURES:
        return _failed(result, call)
    text = _text(result.status.message)
    return Working(_state(result), poll=_POLL, text=text[:_SHOWN] or None)


def _state(task: Task) -> dict[str, Any]:
    return {"task": task.id, "context": task.context_id or None}


def _done(task: Task) -> Done:
    parts, others = _made(task)
    said = parts_in(task.status.message.parts) if task.status.message is not None else ()
    meta = {"said": text_of(said)[:_SHOWN]} if said and parts else {}
    return Done(parts or said, others, usage=_usage(task.metadata), meta=meta)


def _made(task: Task) -> tuple[tuple[Piece, ...], tuple[Made, ...]]:
    """The result, and the artifacts beside it."""
    if not task.artifacts:
        return (), ()
    main = next((one for one in task.artifacts if one.artifact_id == _MAIN), task.artifacts[0])
    others = tuple(_artifact(one) for one in task.artifacts if one is not main)
    return parts_in(main.parts), others


def _artifact(one: Artifact) -> Made:
    return Made(
        one.artifact_id,
        name=one.name,
        description=one.description,
        parts=parts_in(one.parts),
        meta=one.metadata or {},
    )


_FAILURES: Final = {
    State.FAILED: "target_failed",
    State.REJECTED: "rejected",
    State.CANCELED: "canceled",
}
_WORDS: Final = {
    State.FAILED: "says that it failed",
    State.REJECTED: "does not take this on",
    State.CANCELED: "says that the task was cancelled",
}


def _failed(task: Task, call: Call) -> Failed:
    """Why it failed, in the agent's words; an agent of ours also says by which error."""
    state, message = task.status.state, task.status.message
    told = (message.metadata if message is not None else None) or task.metadata or {}
    code = told.get("code")
    known = isinstance(code, str) and issubclass(by_code(code), TargetError) and state is State.FAILED
    parts, others = _made(task)
    return Failed(
        str(code) if known else _FAILURES[state],
        _text(message)[:_SHOWN] or f"{call.agent} {_WORDS[state]}.",
        retryable=known and told.get("retryable") is True,
        data={"task": task.id},
        parts=parts,
        artifacts=others,
        usage=_usage(task.metadata),
    )


def _usage(metadata: Mapping[str, Any] | None) -> Usage | None:
    try:
        return msgspec.convert((metadata or {})[USAGE], Usage)
    except (KeyError, msgspec.ValidationError):
        return None


# Questions


def _needs(task: Task, call: Call) -> Needs:
    """What a waiting task asks. The names of questions are unique over a job, whatever the agent calls them."""
    message = task.status.message
    parts = message.parts if message is not None else ()
    forms: list[dict[str, Any]] = [part.data for part in parts if _is_form(part) and isinstance(part.data, dict)]
    texts = [part.text for part in parts if part.text]
    others = tuple(part for part in parts if part.text is None and not _is_form(part))
    url = _where(task) if task.status.state is State.AUTH_REQUIRED else None
    asked: dict[str, str | None] = {}
    questions = []
    for number, form in enumerate(forms or [{}]):
        words = texts[len(texts) - len(forms) + number] if len(texts) >= len(forms) > 0 else "\n".join(texts)
        named = form.get("id")
        name = _free_name(named or "input", call)
        asked[name] = named
        questions.append(_question(name, words or f"{call.agent} asks for input.", form, url))
    before = texts[: len(texts) - len(forms)] if forms else []
    shown = (*(Piece(text=one) for one in before), *parts_in(others))
    return Needs(tuple(questions), state={**_state(task), "asked": asked}, parts=shown)


def _is_form(part: Part) -> bool:
    data = part.data
    return isinstance(data, dict) and isinstance(data.get("id"), str) and set(data) <= _QUESTION


def _free_name(name: str, call: Call) -> str:
    return name if name not in call.answers else f"{name}-{call.turn}"


def _question(name: str, text: str, form: Mapping[str, Any], url: str | None) -> Question:
    schema, where = form.get("schema"), form.get("url")
    return Question(
        name,
        text[:_SHOWN],
        schema if isinstance(schema, dict) else None,
        where if isinstance(where, str) else url,
    )


def _where(task: Task) -> str:
    """Where a person is to agree, as far as the agent says it: A2A leaves the place to the agents."""
    message = task.status.message
    parts = message.parts if message is not None else ()
    for part in parts:
        if part.url is not None:
            return part.url
    texts = [part.text or "" for part in parts]
    held = [one.data for one in parts if not isinstance(one.data, UnsetType)]
    told = [*texts, *(_plain(one) for one in (held, message.metadata if message is not None else None, task.metadata))]
    found = next((match[0] for text in told if (match := _ADDRESS.search(text))), None)
    return found.rstrip(".,;:!?") if found is not None else "about:blank"


def _plain(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text(message: Message | None) -> str:
    return text_of(parts_in(message.parts)) if message is not None else ""


def checked(result: Task | Message | None, call: Call) -> Task | Message:
    """The result of a fold; MalformedResponse where nothing was told."""
    if result is None:
        raise MalformedResponse(f"{call.agent} ended its answer without having said anything.")
    return result
