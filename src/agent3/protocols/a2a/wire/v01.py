"""A2A 0.1: the client names the task, every answer is a task, and artifacts have numbers instead of ids.

What that generation cannot say is said in its own words: a plain message is a completed task with that message, a
rejected task is ``failed`` and a missing authorization is ``input-required``, both with the state in the metadata.
A message without an id, which is all of them, gets one from its task and content: the same send twice has one id.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

import agent3.protocols.a2a.wire.v10 as v10
from agent3.errors import Agent3Error, MethodNotFound, ParseError, ValidationError
from agent3.protocols.a2a.wire import errors as faults
from agent3.protocols.a2a.wire.decoding import (
    Reader,
    answer,
    check_count,
    check_id,
    check_message,
    check_push,
    fault,
    utc,
    wrong,
)
from agent3.protocols.a2a.wire.errors import UnsupportedOperation
from agent3.protocols.a2a.wire.types import (
    TERMINAL,
    Artifact,
    ArtifactUpdate,
    CancelTask,
    CreatePush,
    Generation,
    GetPush,
    GetTask,
    Item,
    Message,
    Push,
    PushPage,
    Request,
    Search,
    Send,
    Sending,
    State,
    Status,
    StatusUpdate,
    Subscribe,
    Task,
    TaskPage,
)
from agent3.protocols.a2a.wire.v0_common import (
    ROLE_WORDS,
    ROLES,
    STATE_WORDS,
    STATES,
    OldPart,
    OldPush,
    RoleWord,
    Shape,
    StateWord,
    old_part,
    old_push,
    read_parts,
    read_push,
)
from agent3.protocols.a2a.wire.v10 import Value

__all__ = ["METHODS", "STATE", "V01"]

STATE: Final = "a2a.state"
"""Where the metadata of a task or event says a state that 0.1 has no word for."""
_NEAREST: Final = {State.REJECTED: State.FAILED, State.AUTH_REQUIRED: State.INPUT_REQUIRED}
_REMEMBERED: Final = 4_096


class _Message(Shape):
    role: RoleWord
    parts: tuple[OldPart, ...]
    metadata: dict[str, Any] | None = None
    message_id: str | None = None


class _Status(Shape):
    state: StateWord
    message: _Message | None = None
    timestamp: str | None = None


class _Artifact(Shape):
    parts: tuple[OldPart, ...]
    name: str | None = None
    description: str | None = None
    index: int | UnsetType = UNSET
    append: bool | None = None
    last_chunk: bool | None = None
    metadata: dict[str, Any] | None = None


class _Task(Shape):
    id: str
    status: _Status
    session_id: str | None = None
    artifacts: tuple[_Artifact, ...] = ()
    history: tuple[_Message, ...] = ()
    metadata: dict[str, Any] | None = None


class _StatusUpdate(Shape):
    """``artifacts`` is in no document; with it the first event of a stream may be what the task has by then."""

    id: str
    status: _Status
    final: bool | UnsetType = UNSET
    session_id: str | None = None
    artifacts: tuple[_Artifact, ...] = ()
    metadata: dict[str, Any] | None = None


class _ArtifactUpdate(Shape):
    id: str
    artifact: _Artifact
    metadata: dict[str, Any] | None = None


class _Event(Shape):
    id: str
    status: _Status | None = None
    artifact: _Artifact | None = None
    final: bool = False
    session_id: str | None = None
    metadata: dict[str, Any] | None = None


class _Send(Shape):
    id: str
    message: _Message
    session_id: str | None = None
    accepted_output_modes: tuple[str, ...] = ()
    push_notification: OldPush | None = None
    history_length: int | None = None
    metadata: dict[str, Any] | None = None


class _Query(Shape):
    id: str
    history_length: int | None = None
    metadata: dict[str, Any] | None = None


class _TaskPush(Shape):
    id: str
    push_notification_config: OldPush


# From the wire to the shapes


def _message(given: _Message, path: str, task: str, session: str | None = None) -> Message:
    message = Message(
        message_id=given.message_id or _made_id(given, task),
        role=ROLES[given.role],
        parts=read_parts(given.parts, f"{path}.parts"),
        context_id=session or None,
        metadata=given.metadata,
    )
    return check_message(message, path)


def _made_id(given: _Message, task: str) -> str:
    return hashlib.sha256(b"%s\0%s" % (task.encode(), _encode(given))).hexdigest()[:32]


def _state(word: StateWord, metadata: Mapping[str, Any] | None) -> State:
    """The state that was meant, where the metadata says more than the word."""
    said = STATES.get((metadata or {}).get(STATE, ""))
    return said if said is not None and _NEAREST.get(said) is STATES[word] else STATES[word]


def _status(given: _Status, task: str, metadata: Mapping[str, Any] | None) -> Status:
    return Status(
        state=_state(given.state, metadata),
        message=None if given.message is None else _message(given.message, "status.message", task),
        timestamp=None if given.timestamp is None else utc(given.timestamp, "status.timestamp"),
    )


def _artifact(given: _Artifact, number: int, path: str) -> Artifact:
    index = number if given.index is UNSET else given.index
    return Artifact(
        artifact_id=str(index),
        parts=read_parts(given.parts, f"{path}.parts"),
        name=given.name,
        description=given.description,
        metadata=given.metadata,
    )


def _task(given: _Task) -> Task:
    return Task(
        id=given.id,
        context_id=given.session_id or "",
        status=_status(given.status, given.id, given.metadata),
        artifacts=tuple([_artifact(one, n, f"artifacts[{n}]") for n, one in enumerate(given.artifacts)]),
        history=tuple([_message(one, f"history[{n}]", given.id) for n, one in enumerate(given.history)]),
        metadata=_without_state(given.metadata),
    )


def _event(given: _Event) -> StatusUpdate | ArtifactUpdate:
    context = given.session_id or ""
    if given.status is not None:
        return StatusUpdate(
            task_id=given.id,
            context_id=context,
            status=_status(given.status, given.id, given.metadata),
            final=given.final,
            metadata=_without_state(given.metadata),
        )
    if given.artifact is None:
        raise wrong([fault("", "An event must have a status or an artifact")])
    return ArtifactUpdate(
        task_id=given.id,
        context_id=context,
        artifact=_artifact(given.artifact, 0, "artifact"),
        append=given.artifact.append is True,
        last_chunk=given.artifact.last_chunk is True,
        metadata=given.metadata,
    )


def _without_state(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    if not metadata or STATE not in metadata:
        return metadata
    return {name: one for name, one in metadata.items() if name != STATE} or None


# From the shapes to the wire


def _old_message(message: Message) -> _Message:
    parts = tuple([old_part(one, "type") for one in message.parts])
    return _Message(role=ROLE_WORDS[message.role], parts=parts, metadata=message.metadata)


def _old_status(status: Status) -> _Status:
    message = None if status.message is None else _old_message(status.message)
    word = STATE_WORDS[_NEAREST.get(status.state, status.state)]
    return _Status(state=word, message=message, timestamp=status.timestamp)


def _with_state(metadata: dict[str, Any] | None, state: State) -> dict[str, Any] | None:
    return {**(metadata or {}), STATE: STATE_WORDS[state]} if state in _NEAREST else metadata


def _old_artifact(artifact: Artifact, index: int, append: bool | None = None, last: bool | None = None) -> _Artifact:
    return _Artifact(
        parts=tuple([old_part(one, "type") for one in artifact.parts]),
        name=artifact.name,
        description=artifact.description,
        index=index,
        append=append,
        last_chunk=last,
        metadata=artifact.metadata,
    )


def _old_task(task: Task, name: str | None = None) -> _Task:
    return _Task(
        id=name or task.id,
        session_id=task.context_id or None,
        status=_old_status(task.status),
        artifacts=tuple([_old_artifact(one, index) for index, one in enumerate(task.artifacts)]),
        history=tuple([_old_message(one) for one in task.history]),
        metadata=_with_state(task.metadata, task.status.state),
    )


def _as_task(message: Message, name: str) -> Task:
    """A plain message in a generation that answers with tasks only."""
    return Task(
        id=name or message.task_id or message.message_id,
        context_id=message.context_id or "",
        status=Status(state=State.COMPLETED, message=message),
    )


def _name(request: Request) -> str | None:
    """What the client calls the task that it asked about."""
    match request:
        case Send():
            return request.task_alias
        case GetTask() | CancelTask() | Subscribe():
            return request.id
        case CreatePush() | GetPush():
            return request.task_id
        case _:
            return None


_encode = msgspec.json.Encoder().encode


# Requests, read

_send = Reader(_Send)
_query = Reader(_Query)
_set_push = Reader(_TaskPush)


def _read_send(params: Any, stream: bool = False) -> Send:
    sent = _send(params)
    check_id(sent.id)
    check_count(sent.history_length, "historyLength")
    push = None if sent.push_notification is None else read_push(sent.push_notification)
    check_push(push, "pushNotification")
    configuration = Sending(
        accepted_output_modes=sent.accepted_output_modes, history_length=sent.history_length or 0, push=push
    )
    return Send(
        message=_message(sent.message, "message", sent.id, sent.session_id),
        configuration=configuration,
        metadata=sent.metadata,
        stream=stream,
        task_alias=sent.id,
    )


def _read_query(params: Any) -> _Query:
    asked = _query(params)
    check_id(asked.id)
    check_count(asked.history_length, "historyLength")
    return asked


def _read_get(params: Any) -> GetTask:
    asked = _read_query(params)
    return GetTask(id=asked.id, history_length=asked.history_length or 0, metadata=asked.metadata)


def _read_cancel(params: Any) -> CancelTask:
    asked = _read_query(params)
    return CancelTask(id=asked.id, metadata=asked.metadata)


def _read_subscribe(params: Any) -> Subscribe:
    asked = _read_query(params)
    return Subscribe(id=asked.id, metadata=asked.metadata)


def _read_set_push(params: Any) -> CreatePush:
    asked = _set_push(params)
    check_id(asked.id)
    push = read_push(asked.push_notification_config, asked.id)
    check_push(push, "pushNotificationConfig")
    return CreatePush(task_id=asked.id, config=push)


METHODS: Final[dict[str, Callable[[Any], Request]]] = {
    "tasks/send": _read_send,
    "tasks/sendSubscribe": lambda params: _read_send(params, stream=True),
    "tasks/get": _read_get,
    "tasks/cancel": _read_cancel,
    "tasks/resubscribe": _read_subscribe,
    "tasks/pushNotification/set": _read_set_push,
    "tasks/pushNotification/get": lambda params: GetPush(task_id=_read_query(params).id),
    "tasks/search": v10.read_search,
}


# Requests, written


def _parameters(request: Request) -> tuple[str, Any]:
    match request:
        case Send():
            return "tasks/sendSubscribe" if request.stream else "tasks/send", _old_send(request)
        case GetTask():
            return "tasks/get", _Query(id=request.id, history_length=request.history_length, metadata=request.metadata)
        case CancelTask():
            return "tasks/cancel", _Query(id=request.id, metadata=request.metadata)
        case Subscribe():
            return "tasks/resubscribe", _Query(id=request.id, metadata=request.metadata)
        case CreatePush():
            push = old_push(request.config, named=False)
            return "tasks/pushNotification/set", _TaskPush(id=request.task_id, push_notification_config=push)
        case GetPush():
            return "tasks/pushNotification/get", _Query(id=request.task_id)
        case Search():
            return "tasks/search", request
        case _:
            raise UnsupportedOperation(f"A2A 0.1 has no word for {type(request).__name__}; the agent speaks only 0.1")


def _old_send(request: Send) -> _Send:
    """The task is named by its alias; for one that we named it is the id of the message, so that a retry is one."""
    configuration = request.configuration
    return _Send(
        id=request.task_alias or request.message.task_id or request.message.message_id,
        session_id=request.message.context_id,
        message=_old_message(request.message),
        accepted_output_modes=configuration.accepted_output_modes,
        push_notification=None if configuration.push is None else old_push(configuration.push, named=False),
        history_length=configuration.history_length,
        metadata=request.metadata,
    )


# Answers, read

_task_read = Reader(_Task, "answer")
_event_read = Reader(_Event, "answer")
_push_read = Reader(_TaskPush, "answer")
_dict = Reader(dict[str, Any], "answer")


def _read_item(result: Any) -> Item:
    plain = _dict(result)
    if "final" not in plain and "artifact" not in plain and ("artifacts" in plain or "history" in plain):
        return _task(_task_read(plain))
    return _event(_event_read(plain))


class V01:
    """The codec of 0.1 on JSON-RPC.

    Artifacts are numbered in the order in which a task's stream brings them. As a stream is written one item at a
    time, the codec remembers that order, for the tasks written last.
    """

    generation: Generation = "0.1"

    def __init__(self) -> None:
        self._orders: OrderedDict[str, list[str]] = OrderedDict()

    def request(self, method: str, params: Any) -> Request:
        """What is asked. ``params`` is JSON in bytes, or decoded. MethodNotFound, ValidationError."""
        read = METHODS.get(method)
        if read is None:
            raise MethodNotFound(f"There is no method {method[:100]!r} in A2A 0.1; there are {', '.join(METHODS)}")
        return read({} if params is None else params)

    def result(self, request: Request, value: Value) -> bytes:
        """The JSON of ``result``; the task has the name that the client gave it."""
        match value:
            case Task():
                return _encode(_old_task(value, _name(request)))
            case Message():
                return _encode(_old_task(_as_task(value, _name(request) or "")))
            case Push():
                push = old_push(value, named=False)
                return _encode(_TaskPush(id=_name(request) or value.task_id or "", push_notification_config=push))
            case TaskPage():
                return _encode({"tasks": [_old_task(one) for one in value.tasks]})
            case PushPage():
                return _encode([old_push(one, named=False) for one in value.configs])
            case _:
                return _encode(value)

    def item(self, item: Item, request: Request) -> bytes:
        """The JSON of ``result`` of one event of a stream."""
        if isinstance(item, ArtifactUpdate):
            return _encode(self._artifact_update(item, request))
        if isinstance(item, Message):
            item = _as_task(item, _name(request) or "")
        return _encode(self._status_update(item, request))

    def _artifact_update(self, update: ArtifactUpdate, request: Request) -> _ArtifactUpdate:
        index = self._index(update.task_id, update.artifact.artifact_id)
        artifact = _old_artifact(update.artifact, index, update.append or None, update.last_chunk)
        return _ArtifactUpdate(id=_name(request) or update.task_id, artifact=artifact, metadata=update.metadata)

    def _status_update(self, item: Task | StatusUpdate, request: Request) -> _StatusUpdate:
        task = isinstance(item, Task)
        name = item.id if isinstance(item, Task) else item.task_id
        artifacts = item.artifacts if isinstance(item, Task) else ()
        final = item.status.state in TERMINAL if isinstance(item, Task) else item.final
        numbered = tuple([_old_artifact(one, self._index(name, one.artifact_id)) for one in artifacts])
        if final:
            self._orders.pop(name, None)
        return _StatusUpdate(
            id=_name(request) or name,
            status=_old_status(item.status),
            final=final,
            session_id=item.context_id if task else None,
            artifacts=numbered,
            metadata=_with_state(item.metadata, item.status.state),
        )

    def _index(self, task: str, artifact: str) -> int:
        order = self._orders.setdefault(task, [])
        self._orders.move_to_end(task)
        if artifact not in order:
            order.append(artifact)
        while len(self._orders) > _REMEMBERED:
            self._orders.popitem(last=False)
        return order.index(artifact)

    def error(self, wrong: Agent3Error) -> dict[str, Any]:
        """The JSON-RPC error object."""
        return faults.rpc(wrong, "0.1")

    def ask(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The method and params of a request. UnsupportedOperation for what 0.1 cannot ask."""
        method, parameters = _parameters(request)
        return method, msgspec.to_builtins(parameters)

    def read(self, request: Request, result: Any) -> Value:
        """What a request was answered with. MalformedResponse when it is not what was asked for."""
        try:
            if isinstance(request, (CreatePush, GetPush)):
                given = _push_read(result)
                return read_push(given.push_notification_config, given.id)
            if isinstance(request, Search):
                tasks = tuple([_task(_task_read(one)) for one in _dict(result).get("tasks", ())])
                return TaskPage(tasks=tasks, next_page_token="", page_size=len(tasks), total_size=len(tasks))
            return _task(_task_read(result))
        except (ValidationError, ParseError) as reason:
            raise answer(reason) from None

    def read_item(self, result: Any) -> Item:
        """One event of a stream."""
        try:
            return _read_item(result)
        except (ValidationError, ParseError) as reason:
            raise answer(reason) from None

    def read_error(self, error: Any) -> Agent3Error:
        """The error that a JSON-RPC error object stands for."""
        return faults.read_rpc(error, "0.1")
