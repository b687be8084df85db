"""A2A 0.3 on REST: the JSON of its protobuf, which is not that of its JSON-RPC.

Content instead of parts, states in capitals with two L in CANCELLED, names of resources instead of ids, and no
difference between false and left out. Clients write both spellings of a name, as ProtoJSON allows: they are read as
one, inside what the protocol itself names and nowhere deeper. Operations have the names that they have on JSON-RPC.
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
    camel_name,
    check_count,
    check_id,
    check_message,
    check_push,
    fault,
    utc,
    wrong,
)
from agent3.protocols.a2a.wire.routes import Match, Route, Routes
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
    Part,
    Push,
    PushPage,
    Request,
    Role,
    Send,
    Sending,
    State,
    Status,
    StatusUpdate,
    Subscribe,
    Task,
    TaskPage,
)
from agent3.protocols.a2a.wire.v0_common import STATES, OldPush, Shape, old_push, read_push
from agent3.protocols.a2a.wire.v10 import Value

__all__ = ["ROUTES", "Rest03"]

_WRAPPED: Final = "data_part_compat"
_CANCELLED: Final = "TASK_STATE_CANCELLED"


class _File(Shape):
    name: str | None = None
    mime_type: str | None = None
    file_with_uri: str | None = None
    file_with_bytes: bytes | None = None


class _Data(Shape):
    data: Any | UnsetType = UNSET


class _Part(Shape):
    text: str | None = None
    file: _File | None = None
    data: _Data | None = None
    metadata: dict[str, Any] | None = None


class _Message(Shape):
    role: Role
    message_id: str = ""
    content: tuple[_Part, ...] = ()
    context_id: str | None = None
    task_id: str | None = None
    extensions: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None


class _Status(Shape):
    state: str
    message: _Message | None = None
    timestamp: str | None = None


class _Artifact(Shape):
    artifact_id: str
    parts: tuple[_Part, ...] = ()
    name: str | None = None
    description: str | None = None
    extensions: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None


class _Task(Shape):
    id: str
    status: _Status
    context_id: str | None = None
    artifacts: tuple[_Artifact, ...] = ()
    history: tuple[_Message, ...] = ()
    metadata: dict[str, Any] | None = None


class _StatusUpdate(Shape):
    task_id: str
    status: _Status
    context_id: str | None = None
    final: bool = False
    metadata: dict[str, Any] | None = None


class _ArtifactUpdate(Shape):
    task_id: str
    artifact: _Artifact
    context_id: str | None = None
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] | None = None


class _Answer(Shape):
    task: _Task | None = None
    message: _Message | None = None
    status_update: _StatusUpdate | None = None
    artifact_update: _ArtifactUpdate | None = None


class _Sending(Shape):
    accepted_output_modes: tuple[str, ...] = ()
    push_notification: OldPush | None = None
    history_length: int = 0
    blocking: bool = False


class _Send(Shape):
    message: _Message
    configuration: _Sending | None = None
    metadata: dict[str, Any] | None = None


class _TaskPush(Shape):
    push_notification_config: OldPush
    name: str = ""


class _PushPage(Shape):
    configs: tuple[_TaskPush, ...] = ()
    next_page_token: str = ""


class _TaskPage(Shape, omit_defaults=False):
    tasks: tuple[_Task, ...] = ()
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0


# Both spellings of a name

_OPAQUE: Final = frozenset({"metadata", "data", "params"})


def _camel(value: Any) -> Any:
    if isinstance(value, list):
        return [_camel(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {_spelt(name): one if name in _OPAQUE else _camel(one) for name, one in value.items()}


def _spelt(name: str) -> str:
    plain = camel_name(name)
    return _RENAMED.get(plain, plain)


_RENAMED: Final = {"request": "message", "msg": "message", "update": "message"}
"""Names of fields that have another name in JSON."""


# From the wire to the shapes


def _part(given: _Part, path: str) -> Part:
    there = [name for name in ("text", "file", "data") if getattr(given, name) is not None]
    if len(there) != 1:
        raise wrong(
            [fault(path, f"has {' and '.join(there) or 'nothing'}; a part has exactly one of text, file and data")]
        )
    if given.file is not None:
        return _file(given.file, given.metadata, path)
    if given.data is not None:
        return _data(given.data.data, given.metadata)
    return Part(text=given.text, metadata=given.metadata)


def _file(file: _File, metadata: dict[str, Any] | None, path: str) -> Part:
    if (file.file_with_uri is None) == (file.file_with_bytes is None):
        raise wrong([fault(f"{path}.file", "must have exactly one of fileWithUri and fileWithBytes")])
    return Part(
        raw=file.file_with_bytes,
        url=file.file_with_uri,
        filename=file.name or None,
        media_type=file.mime_type or None,
        metadata=metadata,
    )


def _data(data: Any, metadata: dict[str, Any] | None) -> Part:
    if data is UNSET:
        data = {}
    if metadata and metadata.get(_WRAPPED) is True and isinstance(data, dict) and "value" in data:
        data = data["value"]
        metadata = {name: one for name, one in metadata.items() if name != _WRAPPED} or None
    return Part(data=data, metadata=metadata)


def _message(given: _Message, path: str = "message") -> Message:
    message = Message(
        message_id=given.message_id,
        role=given.role,
        parts=tuple([_part(one, f"{path}.content[{n}]") for n, one in enumerate(given.content)]),
        context_id=given.context_id,
        task_id=given.task_id,
        metadata=given.metadata,
        extensions=given.extensions,
    )
    return check_message(message, path)


def _state(word: str) -> State:
    plain = "TASK_STATE_CANCELED" if word == _CANCELLED else word
    try:
        return State(plain)
    except ValueError:
        raise wrong([fault("status.state", f"is no state of a task: {word[:40]!r}", "a state")]) from None


def _status(given: _Status) -> Status:
    return Status(
        state=_state(given.state),
        message=None if given.message is None else _message(given.message, "status.message"),
        timestamp=None if given.timestamp is None else utc(given.timestamp, "status.timestamp"),
    )


def _artifact(given: _Artifact, path: str = "artifact") -> Artifact:
    return Artifact(
        artifact_id=given.artifact_id,
        parts=tuple([_part(one, f"{path}.parts[{n}]") for n, one in enumerate(given.parts)]),
        name=given.name or None,
        description=given.description or None,
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


def _item(given: _Answer) -> Item:
    if given.task is not None:
        return _task(given.task)
    if given.message is not None:
        return _message(given.message)
    if (status := given.status_update) is not None:
        return StatusUpdate(
            task_id=status.task_id,
            context_id=status.context_id or "",
            status=_status(status.status),
            final=status.final,
            metadata=status.metadata,
        )
    if (update := given.artifact_update) is not None:
        return ArtifactUpdate(
            task_id=update.task_id,
            context_id=update.context_id or "",
            artifact=_artifact(update.artifact),
            append=update.append,
            last_chunk=update.last_chunk,
            metadata=update.metadata,
        )
    raise wrong([fault("", "The answer must have one of task, message, statusUpdate and artifactUpdate")])


# From the shapes to the wire


def _old_part(part: Part) -> _Part:
    if part.text is not None:
        return _Part(text=part.text, metadata=part.metadata)
    if part.data is UNSET:
        file = _File(name=part.filename, mime_type=part.media_type, file_with_uri=part.url, file_with_bytes=part.raw)
        return _Part(file=file, metadata=part.metadata)
    if isinstance(part.data, dict):
        return _Part(data=_Data(data=part.data), metadata=part.metadata)
    return _Part(data=_Data(data={"value": part.data}), metadata={**(part.metadata or {}), _WRAPPED: True})


def _old_message(message: Message) -> _Message:
    return _Message(
        role=message.role,
        message_id=message.message_id,
        content=tuple([_old_part(one) for one in message.parts]),
        context_id=message.context_id,
        task_id=message.task_id,
        extensions=message.extensions,
        metadata=message.metadata,
    )


def _old_status(status: Status) -> _Status:
    return _Status(
        state=_CANCELLED if status.state is State.CANCELED else status.state.value,
        message=None if status.message is None else _old_message(status.message),
        timestamp=status.timestamp,
    )


def _old_artifact(artifact: Artifact) -> _Artifact:
    return _Artifact(
        artifact_id=artifact.artifact_id,
        parts=tuple([_old_part(one) for one in artifact.parts]),
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
        artifacts=tuple([_old_artifact(one) for one in task.artifacts]),
        history=tuple([_old_message(one) for one in task.history]),
        metadata=task.metadata,
    )


def _old_item(item: Item) -> _Answer:
    match item:
        case Task():
            return _Answer(task=_old_task(item))
        case Message():
            return _Answer(message=_old_message(item))
        case StatusUpdate():
            status = _StatusUpdate(
                task_id=item.task_id,
                context_id=item.context_id,
                status=_old_status(item.status),
                final=item.final,
                metadata=item.metadata,
            )
            return _Answer(status_update=status)
        case ArtifactUpdate():
            update = _ArtifactUpdate(
                task_id=item.task_id,
                context_id=item.context_id,
                artifact=_old_artifact(item.artifact),
                append=item.append,
                last_chunk=item.last_chunk,
                metadata=item.metadata,
            )
            return _Answer(artifact_update=update)


def _old_task_push(push: Push, request: Request) -> _TaskPush:
    task = push.task_id or getattr(request, "task_id", "")
    return _TaskPush(
        name=f"tasks/{task}/pushNotificationConfigs/{push.id or ''}", push_notification_config=old_push(push)
    )


# Requests, read

_object = Reader(dict[str, Any], "body")
_send = Reader(_Send, "body")
_push = Reader(_TaskPush, "body")


def _body(body: bytes) -> dict[str, Any]:
    plain: dict[str, Any] = _camel(_object(body or b"{}"))
    return plain


def _read_send(values: Mapping[str, str], query: Mapping[str, str], body: bytes, stream: bool = False) -> Send:
    sent = _send(_body(body))
    message = _message(sent.message)
    return Send(message=message, configuration=_sending(sent.configuration), metadata=sent.metadata, stream=stream)


def _sending(given: _Sending | None) -> Sending:
    """Where there is a configuration, ``blocking`` is false unless it says true: protobuf does not write false."""
    if given is None:
        return Sending()
    check_count(given.history_length, "configuration.historyLength")
    push = None if given.push_notification is None else read_push(given.push_notification)
    check_push(push, "configuration.pushNotification")
    return Sending(
        accepted_output_modes=given.accepted_output_modes,
        return_immediately=not given.blocking,
        history_length=given.history_length or None,
        push=push,
    )


def _read_create(values: Mapping[str, str], query: Mapping[str, str], body: bytes) -> CreatePush:
    """The body is the whole request, its ``config``, or the configuration itself: all three are in use."""
    given = _body(body)
    config = given["config"] if isinstance(given.get("config"), dict) else given
    if "pushNotificationConfig" not in config and "url" in config:
        config = {"pushNotificationConfig": config}
    read = _push(config)
    push = read_push(read.push_notification_config, values["taskId"])
    check_push(push, "pushNotificationConfig")
    if push.id is None and (name := given.get("configId") or read.name.rpartition("/pushNotificationConfigs/")[2]):
        push = msgspec.structs.replace(push, id=str(name))
    return CreatePush(task_id=values["taskId"], config=push)


def _read_list(values: Mapping[str, str], query: Mapping[str, str], body: bytes) -> ListTasks:
    given = {_spelt(name): one for name, one in query.items()}
    state = STATES.get(given.get("status", ""))  # type: ignore[call-overload]
    if state is not None or given.get("status") == _CANCELLED:
        given["status"] = (state or State.CANCELED).value
    return v10.read_list(given, lax=True)


_Read = Callable[[Mapping[str, str], Mapping[str, str], bytes], Request]
_READ: Final[dict[str, _Read]] = {
    "message/send": _read_send,
    "message/stream": lambda values, query, body: _read_send(values, query, body, stream=True),
    "tasks/get": lambda values, query, body: v10.read_get(
        {**{_spelt(name): one for name, one in query.items()}, **values}, lax=True
    ),
    "tasks/list": _read_list,
    "tasks/cancel": lambda values, query, body: CancelTask(id=values["id"], metadata=_body(body).get("metadata")),
    "tasks/resubscribe": lambda values, query, body: Subscribe(id=values["id"]),
    "tasks/pushNotificationConfig/set": _read_create,
    "tasks/pushNotificationConfig/get": lambda values, query, body: GetPush(task_id=values["taskId"], id=values["id"]),
    "tasks/pushNotificationConfig/list": lambda values, query, body: ListPush(task_id=values["taskId"]),
    "tasks/pushNotificationConfig/delete": lambda values, query, body: DeletePush(
        task_id=values["taskId"], id=values["id"]
    ),
    "agent/getAuthenticatedExtendedCard": lambda values, query, body: GetCard(),
}
ROUTES: Final = (
    Route("POST", "/v1/message:send", "message/send"),
    Route("POST", "/v1/message:stream", "message/stream"),
    Route("GET", "/v1/tasks", "tasks/list"),
    Route("GET", "/v1/tasks/{id}", "tasks/get"),
    Route("POST", "/v1/tasks/{id}:cancel", "tasks/cancel"),
    Route("POST", "/v1/tasks/{id}:subscribe", "tasks/resubscribe"),
    Route("GET", "/v1/tasks/{id}:subscribe", "tasks/resubscribe"),
    Route("POST", "/v1/tasks/{taskId}/pushNotificationConfigs", "tasks/pushNotificationConfig/set"),
    Route("GET", "/v1/tasks/{taskId}/pushNotificationConfigs", "tasks/pushNotificationConfig/list"),
    Route("GET", "/v1/tasks/{taskId}/pushNotificationConfigs/{id}", "tasks/pushNotificationConfig/get"),
    Route("DELETE", "/v1/tasks/{taskId}/pushNotificationConfigs/{id}", "tasks/pushNotificationConfig/delete"),
    Route("GET", "/v1/card", "agent/getAuthenticatedExtendedCard"),
)
_OPERATIONS: Final[dict[type[Any], str]] = {
    GetTask: "tasks/get",
    ListTasks: "tasks/list",
    CancelTask: "tasks/cancel",
    Subscribe: "tasks/resubscribe",
    CreatePush: "tasks/pushNotificationConfig/set",
    GetPush: "tasks/pushNotificationConfig/get",
    ListPush: "tasks/pushNotificationConfig/list",
    DeletePush: "tasks/pushNotificationConfig/delete",
    GetCard: "agent/getAuthenticatedExtendedCard",
}

# Answers, read

_answer = Reader(_Answer, "answer")
_task_read = Reader(_Task, "answer")
_push_answer = Reader(_TaskPush, "answer")
_push_page = Reader(_PushPage, "answer")
_task_page = Reader(_TaskPage, "answer")
_plain = Reader(dict[str, Any], "answer")


def _read_item(result: Any) -> Item:
    return _item(_answer(_camel(_plain(result))))


def _read_value(request: Request, result: Any) -> Value:
    if isinstance(request, DeletePush):
        return None
    plain = _plain(result)
    if isinstance(request, GetCard):
        return plain
    spelt = _camel(plain)
    match request:
        case Send():
            item = _item(_answer(spelt))
            if isinstance(item, (Task, Message)):
                return item
            raise wrong([fault("", "The answer to a message must be a task or a message")])
        case CreatePush() | GetPush():
            return _read_push(_push_answer(spelt))
        case ListPush():
            page = _push_page(spelt)
            return PushPage(
                configs=tuple([_read_push(one) for one in page.configs]), next_page_token=page.next_page_token
            )
        case ListTasks():
            tasks = _task_page(spelt)
            return TaskPage(
                tasks=tuple([_task(one) for one in tasks.tasks]),
                next_page_token=tasks.next_page_token,
                page_size=tasks.page_size,
                total_size=tasks.total_size,
            )
        case _:
            return _task(_task_read(spelt))


def _read_push(given: _TaskPush) -> Push:
    task = given.name.removeprefix("tasks/").partition("/")[0]
    return read_push(given.push_notification_config, task or None)


_encode = msgspec.json.Encoder().encode


class Rest03:
    """The codec of 0.3 on REST."""

    generation: Generation = "0.3"

    def __init__(self) -> None:
        self._routes = Routes(ROUTES, tenants=False)
        self.routes = self._routes.routes
        self._by_operation = {one.operation: one for one in reversed(ROUTES)}

    def match(self, http: str, path: str) -> Match:
        """The route of a raw path below the agent's address. MethodNotFound, MethodNotAllowed."""
        return self._routes.match(http, path)

    def request(self, route: Route, values: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Request:
        """What is asked. ParseError, ValidationError."""
        for name, one in values.items():
            check_id(one, name)
        return _READ[route.operation](values, query, body)

    def result(self, request: Request, value: Value) -> bytes:
        """The body of an answer."""
        match value:
            case None:
                return b"{}"
            case Task() | Message() if isinstance(request, Send):
                return _encode(_old_item(value))
            case Task():
                return _encode(_old_task(value))
            case Push():
                return _encode(_old_task_push(value, request))
            case PushPage():
                configs = tuple([_old_task_push(one, request) for one in value.configs])
                return _encode(_PushPage(configs=configs, next_page_token=value.next_page_token))
            case TaskPage():
                tasks = tuple([_old_task(one) for one in value.tasks])
                page = _TaskPage(
                    tasks=tasks,
                    next_page_token=value.next_page_token,
                    page_size=value.page_size,
                    total_size=value.total_size,
                )
                return _encode(page)
            case _:
                return _encode(value)

    def item(self, item: Item, request: Request) -> bytes:
        """The data of one event."""
        return _encode(_old_item(item))

    def error(self, wrong: Agent3Error) -> tuple[int, dict[str, Any]]:
        """HTTP status and body."""
        return faults.rest(wrong, "0.3")

    def ask(self, request: Request) -> tuple[str, str, dict[str, str], bytes | None]:
        """HTTP method, path, query and body of a request."""
        operation = "message/stream" if isinstance(request, Send) and request.stream else "message/send"
        route = self._by_operation.get(operation if isinstance(request, Send) else _OPERATIONS.get(type(request), ""))
        if route is None:
            raise MethodNotFound(f"{type(request).__name__} has no path in the REST binding of 0.3; ask over JSON-RPC")
        places = {name: str(getattr(request, key, None) or "") for name, key in (("id", "id"), ("taskId", "task_id"))}
        return route.http, route.filled(places), _query(request), _asked(request)

    def read(self, request: Request, result: Any) -> Value:
        """What a request was answered with. MalformedResponse."""
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

    def read_error(self, status: int, body: Any) -> Agent3Error:
        """The error that a status and its decoded body stand for."""
        return faults.read_rest(status, body)


def _query(request: Request) -> dict[str, str]:
    if isinstance(request, GetTask):
        return {} if request.history_length is None else {"historyLength": str(request.history_length)}
    if isinstance(request, ListTasks):
        given = msgspec.to_builtins(request)
        return {name: str(one).lower() if isinstance(one, bool) else str(one) for name, one in given.items()}
    return {}


def _asked(request: Request) -> bytes | None:
    if isinstance(request, Send):
        given = request.configuration
        configuration = _Sending(
            accepted_output_modes=given.accepted_output_modes,
            push_notification=None if given.push is None else old_push(given.push),
            history_length=given.history_length or 0,
            blocking=not given.return_immediately,
        )
        message = _old_message(request.message)
        return _encode(_Send(message=message, configuration=configuration, metadata=request.metadata))
    if isinstance(request, CreatePush):
        config = _old_task_push(msgspec.structs.replace(request.config, task_id=request.task_id), request)
        parent = f"tasks/{request.task_id}"
        return _encode({"parent": parent, "configId": request.config.id or "", "config": config})
    return b"{}" if isinstance(request, CancelTask) else None
