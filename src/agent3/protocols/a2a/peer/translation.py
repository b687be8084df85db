"""Cards as agents of the directory, calls as A2A messages, and A2A tasks as outcomes and events.

Pure functions and one accumulator; nothing here reaches a network. The artifact named ``result`` of a task is its
result, else its first one; the others stay beside it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UnsetType
from msgspec.structs import replace

from agent3 import model
from agent3.calls.outcomes import read_usage
from agent3.definitions import AgentCapability, AgentCard
from agent3.errors import TargetError, ValidationError, by_code
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Hints,
    Needs,
    Outcome,
    Price,
    Question,
    Route,
    Usage,
    Working,
    agent_id,
    text_of,
)
from agent3.protocols.a2a.cards.extensions import DEADLINE, IDEMPOTENT, SCHEMAS, TRACEABILITY, USAGE
from agent3.protocols.a2a.door.projection import (
    EXTENSIONS,
    META,
    META_ABOUT,
    META_SAID,
    META_SAID_WITH,
    META_UPDATE,
    Growing,
    parts_in,
    parts_out,
)
from agent3.protocols.a2a.peer.credentials import ORIGINS, named_origins
from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    Item,
    Message,
    Part,
    Role,
    State,
    Status,
    Task,
)
from agent3.sentences import FREE_TEXT

__all__ = [
    "FREE_INPUT",
    "GIVEN",
    "SIGNATURE",
    "TaskFold",
    "build_answer",
    "build_message",
    "describe_agent",
    "given_message",
    "given_metadata",
    "message_id",
    "source_of",
    "to_outcome",
]

SIGNATURE: Final = "signature"
"""The key in an agent's ``meta`` that holds whether its card is signed, and by which keys."""
GIVEN: Final = "given"
"""The key in a route's ``meta`` that says that the card was given by hand, so that it is never fetched."""
_META: Final = "a2a"
_MOST_DESCRIPTION: Final = 2_000
FREE_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    FREE_TEXT: "message",
    "properties": {
        "message": {"type": "string", "description": "The message to the agent, in plain words."},
        "data": {"description": "Structured input, in addition to words or instead of them."},
        "files": {
            "type": "array",
            "description": "Files for the agent, as base64 or by address.",
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
"""The input schema of a skill whose card gives none: A2A itself only knows messages."""

_OF_ONE_WAY: Final = frozenset({DEADLINE, TRACEABILITY})
_RESULT: Final = "result"
_MOST_TEXT: Final = 2_000
"""Characters of an agent's words that an outcome quotes."""
_POLL_SECONDS: Final = 1.0
_FORM_FIELDS: Final = frozenset({"id", "schema", "url"})
_URL: Final = re.compile(r"https?://[^\s<>\"')\]]+")
_FAILURES: Final = {
    State.FAILED: ("target_failed", "reports that it failed"),
    State.REJECTED: ("rejected", "rejected the task"),
    State.CANCELED: ("canceled", "reports that the task was cancelled"),
}
"""Of each failed state the error code, and what is said of an agent that gives no reason."""


# From cards to agents


def describe_agent(
    card: AgentCard, document: dict[str, Any], pattern: Route, signature: dict[str, Any], timeout: float
) -> Agent:
    """The agent of a card. ``pattern`` is the route that each capability gets, with the skill as its target.

    A card without skills still takes messages, and gets one capability for them.
    """
    extensions = {each.uri: each.params for each in reversed(card.features.extensions)}
    if pattern.credential is not None:
        pattern = replace(pattern, meta={**pattern.meta, ORIGINS: named_origins(card)})
    if IDEMPOTENT in extensions:
        pattern = replace(pattern, meta={**pattern.meta, "keys": True})
    schemas = extensions.get(SCHEMAS, {}).get("skills")
    capabilities = []
    for skill in card.capabilities or [AgentCapability(name="message", description=card.description)]:
        name = skill.id or skill.name
        given = schemas.get(name) if isinstance(schemas, dict) else None
        known: Mapping[str, Any] = given if isinstance(given, dict) else {}
        input_schema = known.get("input") or skill.input_schema or (skill.to_schema() if skill.parameters else None)
        output_schema = known.get("output") or skill.output_schema
        hints: Any = known.get("hints") if isinstance(known.get("hints"), dict) else {}
        capabilities.append(
            Capability(
                name=name,
                title=skill.name,
                description=skill.description or card.description,
                version=skill.version,
                input_schema=input_schema if isinstance(input_schema, dict) else FREE_INPUT,
                output_schema=output_schema if isinstance(output_schema, dict) else None,
                phrases=tuple(example for example in skill.examples if isinstance(example, str)),
                tags=tuple(skill.tags),
                input_modes=tuple(skill.input_modes or card.default_input_modes),
                output_modes=tuple(skill.output_modes or card.default_output_modes),
                price=Price(call=skill.cost),
                hints=Hints(
                    read_only=skill.read_only or hints.get("readOnly") is True,
                    idempotent=skill.idempotent or hints.get("idempotent") is True,
                    consequential=skill.consequential or hints.get("consequential") is True,
                    replay=True,  # a restart finds the task again, or says that it was interrupted
                ),
                routes=(replace(pattern, target=name),),
                timeout=timeout,
                meta={_META: {"free": not isinstance(input_schema, dict)}},
            )
        )
    return Agent(
        id=agent_id(card.name, "a2a-agent"),
        name=card.name,
        description=card.description[:_MOST_DESCRIPTION],
        version=card.version,
        provider=card.provider.organization if card.provider is not None else None,
        tags=("a2a",),
        capabilities=tuple(capabilities),
        source=source_of(pattern.address),
        card=document,
        meta={"route": msgspec.to_builtins(pattern), SIGNATURE: signature},
    )


def source_of(address: str) -> str:
    """An address as it is shown: without its query, which may hold secrets."""
    return address.partition("?")[0]


# From calls to messages


def message_id(call: Call) -> str:
    """The id of a call's message: the same for each attempt, and for each call with the same key of one caller."""
    if call.key is None:
        return call.job or call.id
    identity = "\0".join((call.principal.id, call.agent, call.capability, call.key))
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def build_message(call: Call, skill: str | None) -> Message:
    """The message that begins a task. A skill with a schema gets its input as data; any other gets words."""
    if call.live.capability.meta.get(_META, {}).get("free", True):
        parts = _free_parts(call)
    else:
        text_and_files = parts_out(part for part in call.parts if isinstance(part.data, UnsetType))
        parts = (*text_and_files, Part(data=call.input or {}))
    if not parts:
        raise ValidationError(f"{call.agent}/{call.capability} got an empty message. Send some text.")
    given = given_message(call)
    metadata = {**((given.metadata if given is not None else None) or {}), **({"skillId": skill} if skill else {})}
    return Message(
        message_id=message_id(call),
        role=Role.USER,
        parts=parts,
        context_id=call.context,
        metadata=metadata or None,
        extensions=given.extensions if given is not None else (),
        reference_task_ids=given.reference_task_ids if given is not None else (),
    )


def given_message(call: Call) -> Message | None:
    """The message that began a call which came in by A2A; its parts may be in the call alone."""
    kept = call.meta.get(META, {}).get("message")
    if kept is None or isinstance(kept, Message):
        return kept
    try:
        return msgspec.convert(kept, Message)
    except msgspec.ValidationError:
        return None


def given_metadata(call: Call) -> dict[str, Any]:
    """What the caller said beside its message, but for what is said anew on each way."""
    given = call.meta.get(META, {}).get("metadata")
    return {name: value for name, value in given.items() if name not in _OF_ONE_WAY} if isinstance(given, dict) else {}


def _free_parts(call: Call) -> tuple[Part, ...]:
    """The parts of a call whose input fits ``FREE_INPUT``: its words, its other parts, its data and its files."""
    given = call.input if isinstance(call.input, dict) else {} if call.input is None else {"data": call.input}
    text = given.get("message")
    if text == text_of(call.parts) and call.parts:
        parts = [*parts_out(call.parts)]  # the caller's words exactly as they came, in as many parts
    else:
        parts = [Part(text=str(text))] if text else []
        parts += parts_out(part for part in call.parts if part.text is None or not text)
    rest = {name: value for name, value in given.items() if name not in FREE_INPUT["properties"]}
    data = given.get("data", rest or None)
    # A gateway door may have read the input from a data part, which is passed on already.
    if data is not None and all(part.data != data for part in parts):
        parts.append(Part(data=data))
    files = given.get("files")
    for file in files if isinstance(files, list) else ():
        try:
            parts.append(
                Part(
                    raw=msgspec.convert(file["bytes"], bytes) if "bytes" in file else None,
                    url=None if "bytes" in file else str(file["url"]),
                    filename=file.get("name"),
                    media_type=file.get("mediaType"),
                )
            )
        except (KeyError, TypeError, msgspec.ValidationError):
            raise ValidationError('Each of the files needs either "bytes" in base64 or a "url".') from None
    return tuple(parts)


def build_answer(call: Call) -> Message:
    """The message that answers what a task asked: as data by the agent's own question ids, in words without them."""
    asked: Mapping[str, str | None] = call.state.get("asked") or {}
    parts: list[Part] = []
    for name, question_id in asked.items():
        answer = call.answers.get(name) or Answer("cancel")
        data = answer.data
        # A form with a single field: the answer to a question in words is its value.
        value = next(iter(data.values())) if isinstance(data, dict) and len(data) == 1 else data
        if question_id is not None:
            if data is not None:
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                parts.append(Part(text=text))
            parts.append(Part(data={"id": question_id, "action": answer.action, "data": data}))
        elif answer.action != "accept":
            parts.append(Part(text="No."))
        elif data is None or data == "":
            parts.append(Part(text="Yes."))
        elif isinstance(value, str):
            parts.append(Part(text=value))
        else:
            parts.append(Part(data=data))
    return Message(
        message_id=f"{message_id(call)}-{call.turn}",
        role=Role.USER,
        parts=tuple(parts) or (Part(text="Continue."),),
        task_id=call.state["task"],
        context_id=call.state.get("context"),
    )


# From tasks to events


class TaskFold:
    """What has been heard of a task so far; ``add`` returns the events for those who listen to the call."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.message: Message | None = None
        self._artifacts: dict[str, Growing] = {}

    @property
    def count(self) -> int:
        """How many artifacts there are."""
        return len(self._artifacts)

    def add(self, item: Item) -> list[Event]:
        """Take the next item. A task replaces everything before it."""
        if isinstance(item, Message):
            self.message = item
            return []
        if isinstance(item, Task):
            new = [artifact for artifact in item.artifacts if artifact.artifact_id not in self._artifacts]
            self.task = item
            self._artifacts = {artifact.artifact_id: Growing(artifact) for artifact in item.artifacts}
            events = [self._to_event(artifact, append=False, last=True) for artifact in new]
            return events + _progress_events(item.status, item.metadata, {})
        if isinstance(item, ArtifactUpdate):
            return [self._add_artifact(item)]
        before = self.task or Task(id=item.task_id, context_id=item.context_id, status=item.status)
        metadata = {**(before.metadata or {}), **(item.metadata or {})}
        self.task = replace(before, status=item.status, metadata=metadata or None)
        return _progress_events(item.status, item.metadata, item.metadata or {})

    def result(self) -> Task | Message | None:
        """The message, or the task with all its artifacts; None if nothing has come."""
        if self.message is not None or self.task is None:
            return self.message
        return replace(self.task, artifacts=tuple(artifact.whole() for artifact in self._artifacts.values()))

    def _add_artifact(self, update: ArtifactUpdate) -> Event:
        if self.task is None:
            status = Status(state=State.WORKING)
            self.task = Task(id=update.task_id, context_id=update.context_id, status=status)
        piece = update.artifact
        known = self._artifacts.get(piece.artifact_id)
        append = known is not None and update.append
        if known is not None and append:
            known.add(piece)
        else:
            self._artifacts[piece.artifact_id] = Growing(piece)
        return self._to_event(piece, append=append, last=update.last_chunk)

    def _to_event(self, artifact: Artifact, *, append: bool, last: bool) -> Event:
        is_result = artifact.artifact_id in (_RESULT, next(iter(self._artifacts), artifact.artifact_id))
        return Event(
            "artifact",
            artifact=None if is_result else artifact.artifact_id,
            name=artifact.name,
            parts=parts_in(artifact.parts),
            append=append,
            last=last,
            data=_about(artifact) or None,
        )


def _progress_events(status: Status, metadata: Mapping[str, Any] | None, update: Mapping[str, Any]) -> list[Event]:
    """What an agent says while it works; what it says with a question or at the end is part of the outcome.

    ``update`` is what it says of this update alone, and not of the task as a whole.
    """
    if status.state not in (State.WORKING, State.SUBMITTED):
        return []
    text = _text(status.message)
    said_with = status.message.metadata if status.message is not None and text else None
    steps = (metadata or {}).get("progress")
    beside = {name: value for name, value in update.items() if name != "progress" or not isinstance(steps, Mapping)}
    kept = {name: value for name, value in {META_SAID_WITH: said_with, META_UPDATE: beside}.items() if value}
    if isinstance(steps, Mapping):
        done, total = _to_number(steps.get("done")), _to_number(steps.get("total"))
        return [Event("progress", text=text or None, done=done, total=total, data=kept or None)]
    return [Event("status", text=text or None, data=kept or None)] if text or kept else []


def _to_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# From tasks to outcomes


def to_outcome(result: Task | Message, call: Call) -> Outcome:
    """The outcome of a call that was answered with this message, or whose task stands like this."""
    if isinstance(result, Message):
        return Done(parts_in(result.parts), usage=_usage(result.metadata))
    status = result.status
    if status.state in (State.INPUT_REQUIRED, State.AUTH_REQUIRED):
        return _to_needs(result, call)
    if status.state is not State.COMPLETED and status.state not in _FAILURES:
        text = _text(status.message)[:_MOST_TEXT] or None
        return Working({"task": result.id, "context": result.context_id or None}, poll=_POLL_SECONDS, text=text)
    parts: tuple[model.Part, ...] = ()
    others: tuple[model.Artifact, ...] = ()
    about: dict[str, Any] = {}
    if result.artifacts:
        main = next((each for each in result.artifacts if each.artifact_id == _RESULT), result.artifacts[0])
        parts = parts_in(main.parts)
        about = _about(main)
        others = tuple(
            model.Artifact(
                each.artifact_id,
                name=each.name,
                description=each.description,
                parts=parts_in(each.parts),
                meta=_meta_of(each),
            )
            for each in result.artifacts
            if each is not main
        )
    usage = _usage(result.metadata)
    if status.state is State.COMPLETED:
        said = parts_in(status.message.parts) if status.message is not None else ()
        if said and parts and status.message is not None:
            with_it = {META_SAID_WITH: status.message.metadata} if status.message.metadata else {}
            about = {**about, META_SAID: text_of(said)[:_MOST_TEXT], **with_it}
        return Done(parts or said, others, usage=usage, meta=about)
    # Agents of ours also say by which error they failed; only errors that a target can cause are believed.
    code, reason = _FAILURES[status.state]
    told = (status.message.metadata if status.message is not None else None) or result.metadata or {}
    named = told.get("code")
    believed = isinstance(named, str) and issubclass(by_code(named), TargetError) and status.state is State.FAILED
    return Failed(
        str(named) if believed else code,
        _text(status.message)[:_MOST_TEXT] or f"{call.agent} {reason}.",
        retryable=believed and told.get("retryable") is True,
        data={"task": result.id},
        parts=parts,
        artifacts=others,
        usage=usage,
    )


def _about(artifact: Artifact) -> dict[str, Any]:
    """What the agent says of its result, beside the parts."""
    given = artifact.artifact_id if artifact.artifact_id != _RESULT else None
    about = {"id": given, "name": artifact.name, "description": artifact.description, "meta": _meta_of(artifact)}
    said = {name: value for name, value in about.items() if value}
    return {META_ABOUT: said} if said else {}


def _meta_of(artifact: Artifact) -> dict[str, Any]:
    own = {name: value for name, value in (artifact.metadata or {}).items() if name != EXTENSIONS}
    return {**own, EXTENSIONS: list(artifact.extensions)} if artifact.extensions else own


def _usage(metadata: Mapping[str, Any] | None) -> Usage | None:
    try:
        return msgspec.convert((metadata or {})[USAGE], Usage)
    except (KeyError, msgspec.ValidationError):
        return read_usage(metadata)


def _to_needs(task: Task, call: Call) -> Needs:
    """What an interrupted task asks, each question with a name that is unique within the job.

    Agents of ours send a form (a data part with ``id`` and ``schema`` or ``url``) for each question, and its words as
    one of the last texts; texts before those introduce the questions. Other agents ask one question in words.
    """
    parts = task.status.message.parts if task.status.message is not None else ()
    forms: list[dict[str, Any]] = [part.data for part in parts if _is_form(part) and isinstance(part.data, dict)]
    texts = [part.text for part in parts if part.text]
    others = tuple(part for part in parts if part.text is None and not _is_form(part))
    authorize_at = _find_url(task) if task.status.state is State.AUTH_REQUIRED else None
    asked: dict[str, str | None] = {}
    questions = []
    for number, form in enumerate(forms or [{}]):
        words = texts[len(texts) - len(forms) + number] if len(texts) >= len(forms) > 0 else "\n".join(texts)
        question_id, schema, url = form.get("id"), form.get("schema"), form.get("url")
        name = question_id or "input"
        if name in call.answers:  # asked and answered in an earlier turn
            name = f"{name}-{call.turn}"
        asked[name] = question_id
        questions.append(
            Question(
                name,
                (words or f"{call.agent} asks for input.")[:_MOST_TEXT],
                schema if isinstance(schema, dict) else None,
                url if isinstance(url, str) else authorize_at,
            )
        )
    introduction = texts[: len(texts) - len(forms)] if forms else []
    return Needs(
        tuple(questions),
        state={"task": task.id, "context": task.context_id or None, "asked": asked},
        parts=(*(model.Part(text=text) for text in introduction), *parts_in(others)),
    )


def _is_form(part: Part) -> bool:
    data = part.data
    return isinstance(data, dict) and isinstance(data.get("id"), str) and set(data) <= _FORM_FIELDS


def _find_url(task: Task) -> str:
    """Where a person is to authorize, as far as the agent says it: A2A does not define where that stands."""
    message = task.status.message
    parts = message.parts if message is not None else ()
    for part in parts:
        if part.url is not None:
            return part.url
    data = [part.data for part in parts if not isinstance(part.data, UnsetType)]
    documents = (data, message.metadata if message is not None else None, task.metadata)
    texts = [*(part.text or "" for part in parts), *(msgspec.json.encode(each).decode() for each in documents)]
    found = next((match[0] for text in texts if (match := _URL.search(text))), None)
    return found.rstrip(".,;:!?") if found is not None else "about:blank"


def _text(message: Message | None) -> str:
    return text_of(parts_in(message.parts)) if message is not None else ""
