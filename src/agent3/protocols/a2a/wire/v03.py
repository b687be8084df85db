"""A2A 0.2 and 0.3 on JSON-RPC: everything is tagged with ``kind``, and words are in lower case.

Read loosely, as ``words`` says, and written strictly: with every tag, and with ``final`` at every status. Versions
0.2.0 to 0.3.0 only ever added to each other, so one codec speaks them all.
"""

from __future__ import annotations

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
from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    CancelTask,
    CreatePush,
    DeletePush,
    Generation,
    GetCard,
    GetPush,
    GetTask,
    Item,
    ListPush,
    ListTasks,
    Message,
    Push,
    PushPage,
    Request,
    Search,
    Send,
    Sending,
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

__all__ = ["METHODS", "V03"]


class _Message(Shape):
    role: RoleWord
    parts: tuple[OldPart, ...]
    message_id: str = ""
    kind: str | None = None
    context_id: str | None = None
    task_id: str | None = None
    reference_task_ids: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None


class _Status(Shape):
    state: StateWord
    message: _Message | None = None
    timestamp: str | None = None


class _Artifact(Shape):
    artifact_id: str
    parts: tuple[OldPart, ...]
    name: str | None = None
    description: str | None = None
    extensions: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None


class _Task(Shape):
    id: str
    status: _Status
    context_id: str | UnsetType = UNSET
    kind: str | None = None
    artifacts: tuple[_Artifact, ...] = ()
    history: tuple[_Message, ...] = ()
    metadata: dict[str, Any] | None = None


class _StatusUpdate(Shape):
    task_id: str
    status: _Status
    context_id: str | UnsetType = UNSET
    kind: str | None = None
    final: bool | UnsetType = UNSET
    metadata: dict[str, Any] | None = None


class _ArtifactUpdate(Shape):
    task_id: str
    artifact: _Artifact
    context_id: str | UnsetType = UNSET
    kind: str | None = None
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] | None = None


class _TaskPush(Shape):
    push_notification_config: OldPush
    task_id: str = ""
    id: str = ""
    """What the earliest 0.2 calls the task."""


class _Sending(Shape):
    accepted_output_modes: tuple[str, ...] = ()
    blocking: bool | None = None
    history_length: int | None = None
    push_notification_config: OldPush | None = None


class _Send(Shape):
    message: _Message
    configuration: _Sending | None = None
    metadata: dict[str, Any] | None = None


class _Query(Shape):
    id: str
    history_length: int | None = None
    metadata: dict[str, Any] | None = None


class _PushQuery(Shape):
    id: str
    push_notification_config_id: str | None = None
    metadata: dict[str, Any] | None = None


class _TaskPage(Shape, omit_defaults=False):
    tasks: tuple[_Task, ...]
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0


# From the wire to the shapes


def _message(given: _Message, path: str = "message") -> Message:
    message = Message(
        message_id=given.message_id,
        role=ROLES[given.role],
        parts=read_parts(given.parts, f"{path}.parts"),
        context_id=given.context_id,
        task_id=given.task_id,
        metadata=given.metadata,
        extensions=given.extensions,
        reference_task_ids=given.reference_task_ids,
    )
    return check_message(message, path)


def _status(given: _Status) -> Status:
    message = None if given.message is None else _message(given.message, "status.message")
    timestamp = None if given.timestamp is None else utc(given.timestamp, "status.timestamp")
    return Status(state=STATES[given.state], message=message, timestamp=timestamp)


def _artifact(given: _Artifact, path: str = "artifact") -> Artifact:
    return Artifact(
        artifact_id=given.artifact_id,
        parts=read_parts(given.parts, f"{path}.parts"),
        name=given.name,
        description=given.description,
        metadata=given.metadata,
        extensions=given.extensions,
    )


def _task(given: _Task) -> Task:
    return Task(
        id=given.id,
        context_id=given.context_id or "",
        status=_status(given.status),
        artifacts=tuple([_artifact(one, f"artifacts[{n}]") for n, one in enumerate(given.artifacts)]),
        history=tuple([_message(one, f"history[{n}]") for n, one in enumerate(given.history)]),
        metadata=given.metadata,
    )


def _status_update(given: _StatusUpdate) -> StatusUpdate:
    return StatusUpdate(
        task_id=given.task_id,
        context_id=given.context_id or "",
        status=_status(given.status),
        metadata=given.metadata,
        final=given.final is True,
    )


def _artifact_update(given: _ArtifactUpdate) -> ArtifactUpdate:
    return ArtifactUpdate(
        task_id=given.task_id,
        context_id=given.context_id or "",
        artifact=_artifact(given.artifact),
        append=given.append,
        last_chunk=given.last_chunk,
        metadata=given.metadata,
    )


# From the shapes to the wire


def _old_message(message: Message) -> _Message:
    return _Message(
        role=ROLE_WORDS[message.role],
        parts=tuple([old_part(one, "kind") for one in message.parts]),
        message_id=message.message_id,
        kind="message",
        context_id=message.context_id,
        task_id=message.task_id,
        reference_task_ids=message.reference_task_ids,
        extensions=message.extensions,
        metadata=message.metadata,
    )


def _old_status(status: Status) -> _Status:
    message = None if status.message is None else _old_message(status.message)
    return _Status(state=STATE_WORDS[status.state], message=message, timestamp=status.timestamp)


def _old_artifact(artifact: Artifact) -> _Artifact:
    return _Artifact(
        artifact_id=artifact.artifact_id,
        parts=tuple([old_part(one, "kind") for one in artifact.parts]),
        name=artifact.name,
        description=artifact.description,
        extensions=artifact.extensions,
        metadata=artifact.metadata,
    )


def _old_task(task: Task) -> _Task:
    return _Task(
        id=task.id,
        context_id=task.context_id,
        status=_old_status(task.status),
        kind="task",
        artifacts=tuple([_old_artifact(one) for one in task.artifacts]),
        history=tuple([_old_message(one) for one in task.history]),
        metadata=task.metadata,
    )


def _old_status_update(update: StatusUpdate) -> _StatusUpdate:
    return _StatusUpdate(
        task_id=update.task_id,
        context_id=update.context_id,
        status=_old_status(update.status),
        kind="status-update",
        final=update.final,
        metadata=update.metadata,
    )


def _old_artifact_update(update: ArtifactUpdate) -> _ArtifactUpdate:
    return _ArtifactUpdate(
        task_id=update.task_id,
        context_id=update.context_id,
        artifact=_old_artifact(update.artifact),
        kind="artifact-update",
        append=update.append,
        last_chunk=update.last_chunk,
        metadata=update.metadata,
    )


_OLD: Final[dict[type[Any], Callable[[Any], Any]]] = {
    Task: _old_task,
    Message: _old_message,
    StatusUpdate: _old_status_update,
    ArtifactUpdate: _old_artifact_update,
    TaskPage: lambda page: _TaskPage(
        tasks=tuple([_old_task(one) for one in page.tasks]),
        next_page_token=page.next_page_token,
        page_size=page.page_size,
        total_size=page.total_size,
    ),
}

_encode = msgspec.json.Encoder().encode


# Requests, read

_send = Reader(_Send)
_query = Reader(_Query)
_set_push = Reader(_TaskPush)
_push_query = Reader(_PushQuery)
_object = Reader(dict[str, Any])


def _read_send(params: Any, stream: bool = False) -> Send:
    sent = _send(params)
    message = _message(sent.message)
    return Send(message=message, configuration=_sending(sent.configuration), metadata=sent.metadata, stream=stream)


def _sending(given: _Sending | None) -> Sending:
    if given is None:
        return Sending()
    check_count(given.history_length, "configuration.historyLength")
    push = None if given.push_notification_config is None else read_push(given.push_notification_config)
    check_push(push, "configuration.pushNotificationConfig")
    return Sending(
        accepted_output_modes=given.accepted_output_modes,
        return_immediately=given.blocking is False,
        history_length=given.history_length,
        push=push,
    )


def _read_query(params: Any) -> _Query:
    asked = _query(params)
    check_id(asked.id)
    check_count(asked.history_length, "historyLength")
    return asked


def _read_get(params: Any) -> GetTask:
    asked = _read_query(params)
    return GetTask(id=asked.id, history_length=asked.history_length, metadata=asked.metadata)


def _read_cancel(params: Any) -> CancelTask:
    asked = _read_query(params)
    return CancelTask(id=asked.id, metadata=asked.metadata)


def _read_subscribe(params: Any) -> Subscribe:
    asked = _read_query(params)
    return Subscribe(id=asked.id, metadata=asked.metadata)


def _read_set_push(params: Any) -> CreatePush:
    asked = _set_push(params)
    task = asked.task_id or asked.id
    check_id(task, "taskId")
    push = read_push(asked.push_notification_config, task)
    check_push(push, "pushNotificationConfig")
    return CreatePush(task_id=task, config=push)


def _read_push_query(params: Any) -> _PushQuery:
    asked = _push_query(params)
    check_id(asked.id)
    return asked


def _read_get_push(params: Any) -> GetPush:
    asked = _read_push_query(params)
    return GetPush(task_id=asked.id, id=asked.push_notification_config_id)


def _read_list_push(params: Any) -> ListPush:
    return ListPush(task_id=_read_push_query(params).id)


def _read_delete_push(params: Any) -> DeletePush:
    asked = _read_push_query(params)
    check_id(asked.push_notification_config_id or "", "pushNotificationConfigId")
    return DeletePush(task_id=asked.id, id=asked.push_notification_config_id or "")


def _read_list(params: Any) -> ListTasks:
    given = _object(params)
    word = given.get("status")
    state = STATES.get(word) if isinstance(word, str) else None  # type: ignore[call-overload]
    return v10.read_list(given | {"status": state.value} if state else given)


def _read_card(params: Any) -> GetCard:
    _object(params)
    return GetCard()


METHODS: Final[dict[str, Callable[[Any], Request]]] = {
    "message/send": _read_send,
    "message/stream": lambda params: _read_send(params, stream=True),
    "tasks/get": _read_get,
    "tasks/list": _read_list,
    "tasks/cancel": _read_cancel,
    "tasks/resubscribe": _read_subscribe,
    "tasks/pushNotificationConfig/set": _read_set_push,
    "tasks/pushNotificationConfig/get": _read_get_push,
    "tasks/pushNotificationConfig/list": _read_list_push,
    "tasks/pushNotificationConfig/delete": _read_delete_push,
    "agent/getAuthenticatedExtendedCard": _read_card,
    "tasks/search": v10.read_search,
}
_NAMES: Final[dict[type[Any], str]] = {
    GetTask: "tasks/get",
    ListTasks: "tasks/list",
    CancelTask: "tasks/cancel",
    Subscribe: "tasks/resubscribe",
    CreatePush: "tasks/pushNotificationConfig/set",
    GetPush: "tasks/pushNotificationConfig/get",
    ListPush: "tasks/pushNotificationConfig/list",
    DeletePush: "tasks/pushNotificationConfig/delete",
    GetCard: "agent/getAuthenticatedExtendedCard",
    Search: "tasks/search",
}


# Requests, written


def _parameters(request: Request) -> Any:
    match request:
        case Send():
            return _Send(
                message=_old_message(request.message),
                configuration=_old_sending(request.configuration),
                metadata=request.metadata,
            )
        case GetTask():
            return _Query(id=request.id, history_length=request.history_length, metadata=request.metadata)
        case CancelTask() | Subscribe():
            return _Query(id=request.id, metadata=request.metadata)
        case CreatePush():
            return _TaskPush(task_id=request.task_id, push_notification_config=old_push(request.config))
        case GetPush() | DeletePush():
            return _PushQuery(id=request.task_id, push_notification_config_id=request.id)
        case ListPush():
            return _PushQuery(id=request.task_id)
        case _:
            return request


def _old_sending(given: Sending) -> _Sending:
    return _Sending(
        accepted_output_modes=given.accepted_output_modes,
        blocking=not given.return_immediately,
        history_length=given.history_length,
        push_notification_config=None if given.push is None else old_push(given.push),
    )


# Answers, read

_KINDS: Final[dict[str, tuple[Reader[Any], Callable[[Any], Item]]]] = {
    "task": (Reader(_Task, "answer"), _task),
    "message": (Reader(_Message, "answer"), _message),
    "status-update": (Reader(_StatusUpdate, "answer"), _status_update),
    "artifact-update": (Reader(_ArtifactUpdate, "answer"), _artifact_update),
}
_MARKS: Final = {"parts": "message", "artifact": "artifact-update", "taskId": "status-update", "status": "task"}
"""What tells an answer without its tag, in the order of asking."""
_task_push = Reader(_TaskPush, "answer")
_task_pushes = Reader(tuple[_TaskPush, ...], "answer")
_page = Reader(_TaskPage, "answer")
_card = Reader(dict[str, Any], "answer")


def _read_item(result: Any) -> Item:
    plain = _card(result)
    kind = plain.get("kind") or next((kind for mark, kind in _MARKS.items() if mark in plain), None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise wrong([fault("kind", f"must be one of {', '.join(_KINDS)}, got {str(kind)[:40]!r}")])
    read, shape = _KINDS[kind]
    return shape(read(plain))


def _read_value(request: Request, result: Any) -> Value:
    match request:
        case Send() | GetTask() | CancelTask():
            item = _read_item(result)
            if isinstance(item, Task) or (isinstance(item, Message) and isinstance(request, Send)):
                return item
            raise wrong([fault("kind", "must be a task, or a message in answer to a message")])
        case ListTasks() | Search():
            page = _page(result)
            return TaskPage(
                tasks=tuple([_task(one) for one in page.tasks]),
                next_page_token=page.next_page_token,
                page_size=page.page_size,
                total_size=page.total_size,
            )
        case CreatePush() | GetPush():
            return _read_task_push(_task_push(result))
        case ListPush():
            return PushPage(configs=tuple([_read_task_push(one) for one in _task_pushes(result)]))
        case DeletePush():
            return None
        case _:
            return _card(result)


def _read_task_push(given: _TaskPush) -> Push:
    return read_push(given.push_notification_config, given.task_id or given.id or None)


class V03:
    """The codec of 0.2 and 0.3 on JSON-RPC."""

    generation: Generation = "0.3"

    def request(self, method: str, params: Any) -> Request:
        """What is asked. ``params`` is JSON in bytes, or decoded. MethodNotFound, ValidationError."""
        read = METHODS.get(method)
        if read is None:
            raise MethodNotFound(f"There is no method {method[:100]!r} in A2A 0.3; there are {', '.join(METHODS)}")
        return read({} if params is None else params)

    def result(self, request: Request, value: Value) -> bytes:
        """The JSON of ``result``."""
        if isinstance(value, Push):
            return _encode(_old_task_push(value, request))
        if isinstance(value, PushPage):
            return _encode([_old_task_push(one, request) for one in value.configs])
        if value is None or isinstance(value, Mapping):
            return _encode(value)
        return _encode(_OLD[type(value)](value))

    def item(self, item: Item, request: Request) -> bytes:
        """The JSON of ``result`` of one event of a stream."""
        return _encode(_OLD[type(item)](item))

    def error(self, wrong: Agent3Error) -> dict[str, Any]:
        """The JSON-RPC error object."""
        return faults.rpc(wrong, "0.3")

    def ask(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The method and params of a request."""
        name = _NAMES.get(type(request)) or ("message/stream" if getattr(request, "stream", False) else "message/send")
        return name, msgspec.to_builtins(_parameters(request))

    def read(self, request: Request, result: Any) -> Value:
        """What a request was answered with. MalformedResponse when it is not what was asked for."""
        try:
            return _read_value(request, result)
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
        return faults.read_rpc(error, "0.3")


def _old_task_push(push: Push, request: Request) -> _TaskPush:
    task = push.task_id or getattr(request, "task_id", None)
    return _TaskPush(task_id=task or "", push_notification_config=old_push(push))
