"""A2A 1.0: the shapes as they are, on JSON-RPC and REST.

The internal model is 1.0, so reading is one typed decode and writing one encode. What is ours alone in the shapes
(``stream``, ``task_alias``, ``after``, ``final``) is neither taken from the wire nor written to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from agent3.errors import Agent3Error, MethodNotFound, ParseError, ValidationError
from agent3.protocols.a2a.wire import errors as faults
from agent3.protocols.a2a.wire.decoding import (
    Reader,
    answer,
    check_count,
    check_id,
    check_item,
    check_message,
    check_page,
    check_push,
    fault,
    utc,
    wrong,
)
from agent3.protocols.a2a.wire.routes import Route
from agent3.protocols.a2a.wire.types import (
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

__all__ = ["METHODS", "ROUTES", "V10", "Value"]

Value = Task | Message | TaskPage | Push | PushPage | dict[str, Any] | None
"""What a request is answered with; the dict is a card."""

PAGE: Final = 100
_NOTHING: Final = Sending()


class _Shape(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    pass


class _Send(_Shape):
    message: Message
    configuration: Sending | None = None
    metadata: dict[str, Any] | None = None
    tenant: str | None = None


class _Named(_Shape):
    id: str
    tenant: str | None = None
    metadata: dict[str, Any] | None = None


class _GetPush(_Shape):
    task_id: str
    id: str
    tenant: str | None = None


class _StatusUpdate(_Shape):
    task_id: str
    context_id: str
    status: Status
    metadata: dict[str, Any] | None = None


class _Answer(_Shape):
    """A reply or an item of a stream: one of its members."""

    task: Task | None = None
    message: Message | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None


# Requests, read

_send = Reader(_Send, spellings=True)
_get = Reader(GetTask, spellings=True)
_list = Reader(ListTasks, spellings=True)
_named = Reader(_Named, spellings=True)
_push = Reader(Push, spellings=True)
_get_push = Reader(_GetPush, spellings=True)
_list_push = Reader(ListPush, spellings=True)
_card = Reader(GetCard, spellings=True)
_search = Reader(Search)


def read_send(params: Any, stream: bool = False) -> Send:
    """A message to send."""
    sent = _send(params)
    configuration = sent.configuration or _NOTHING
    if configuration is not _NOTHING:
        check_count(configuration.history_length, "configuration.historyLength")
        check_push(configuration.push, "configuration.taskPushNotificationConfig")
    return Send(
        message=check_message(sent.message),
        configuration=configuration,
        metadata=sent.metadata,
        tenant=sent.tenant or None,
        stream=stream,
    )


def read_get(params: Any, lax: bool = False) -> GetTask:
    """A task to read."""
    asked = _get(params, lax=lax)
    check_id(asked.id)
    check_count(asked.history_length, "historyLength")
    return asked


def read_list(params: Any, lax: bool = False) -> ListTasks:
    """Tasks to list."""
    asked = _list(params, lax=lax)
    check_count(asked.page_size, "pageSize", 1, PAGE)
    check_count(asked.history_length, "historyLength")
    if asked.status_timestamp_after:
        after = utc(asked.status_timestamp_after, "statusTimestampAfter")
        asked = msgspec.structs.replace(asked, status_timestamp_after=after)
    return asked


def read_search(params: Any) -> Search:
    """Words to find tasks by."""
    asked = _search(params)
    check_id(asked.query, "query")
    check_count(asked.page_size, "pageSize", 1, PAGE)
    return asked


def read_cancel(params: Any) -> CancelTask:
    """A task to stop."""
    asked = _named(params)
    check_id(asked.id)
    return CancelTask(id=asked.id, tenant=asked.tenant, metadata=asked.metadata)


def read_subscribe(params: Any) -> Subscribe:
    """A task to hear of."""
    asked = _named(params)
    check_id(asked.id)
    return Subscribe(id=asked.id, tenant=asked.tenant, metadata=asked.metadata)


def read_create_push(params: Any) -> CreatePush:
    """Somebody to tell."""
    push = _push(params)
    check_push(push, "params")
    check_id(push.task_id or "", "taskId")
    return CreatePush(task_id=push.task_id or "", config=push, tenant=push.tenant)


def read_get_push(params: Any) -> GetPush:
    """A configuration to read."""
    asked = _get_push(params)
    check_id(asked.task_id, "taskId")
    check_id(asked.id)
    return GetPush(task_id=asked.task_id, id=asked.id, tenant=asked.tenant)


def read_delete_push(params: Any) -> DeletePush:
    """A configuration to remove."""
    asked = read_get_push(params)
    return DeletePush(task_id=asked.task_id, id=asked.id or "", tenant=asked.tenant)


def read_list_push(params: Any, lax: bool = False) -> ListPush:
    """Configurations to list."""
    asked = _list_push(params, lax=lax)
    check_id(asked.task_id, "taskId")
    check_count(asked.page_size, "pageSize")
    return asked


METHODS: Final[dict[str, Callable[[Any], Request]]] = {
    "SendMessage": read_send,
    "SendStreamingMessage": lambda params: read_send(params, stream=True),
    "GetTask": read_get,
    "ListTasks": read_list,
    "CancelTask": read_cancel,
    "SubscribeToTask": read_subscribe,
    "CreateTaskPushNotificationConfig": read_create_push,
    "GetTaskPushNotificationConfig": read_get_push,
    "ListTaskPushNotificationConfigs": read_list_push,
    "DeleteTaskPushNotificationConfig": read_delete_push,
    "GetExtendedAgentCard": _card,
    "tasks/search": read_search,
}
_NAMES: Final[dict[type[Any], str]] = {
    GetTask: "GetTask",
    ListTasks: "ListTasks",
    CancelTask: "CancelTask",
    Subscribe: "SubscribeToTask",
    CreatePush: "CreateTaskPushNotificationConfig",
    GetPush: "GetTaskPushNotificationConfig",
    ListPush: "ListTaskPushNotificationConfigs",
    DeletePush: "DeleteTaskPushNotificationConfig",
    GetCard: "GetExtendedAgentCard",
    Search: "tasks/search",
}
ROUTES: Final = (
    Route("POST", "/message:send", "SendMessage"),
    Route("POST", "/message:stream", "SendStreamingMessage"),
    Route("GET", "/tasks", "ListTasks"),
    Route("GET", "/tasks/{id}", "GetTask"),
    Route("POST", "/tasks/{id}:cancel", "CancelTask"),
    Route("POST", "/tasks/{id}:subscribe", "SubscribeToTask"),
    Route("GET", "/tasks/{id}:subscribe", "SubscribeToTask"),
    Route("POST", "/tasks/{taskId}/pushNotificationConfigs", "CreateTaskPushNotificationConfig"),
    Route("GET", "/tasks/{taskId}/pushNotificationConfigs", "ListTaskPushNotificationConfigs"),
    Route("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}", "GetTaskPushNotificationConfig"),
    Route("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}", "DeleteTaskPushNotificationConfig"),
    Route("GET", "/extendedAgentCard", "GetExtendedAgentCard"),
)

# Answers, written

_encode = msgspec.json.Encoder().encode
_WRAPPERS: Final[dict[type[Any], bytes]] = {
    Task: b'{"task":',
    Message: b'{"message":',
    StatusUpdate: b'{"statusUpdate":',
    ArtifactUpdate: b'{"artifactUpdate":',
}


def write_result(request: Request, value: Value) -> bytes:
    """The JSON of a result. What was deleted is answered with google.protobuf.Empty."""
    if isinstance(request, Send):
        return _WRAPPERS[type(value)] + _encode(value) + b"}"
    return b"{}" if value is None else _encode(value)


def write_item(item: Item) -> bytes:
    """The JSON of one item of a stream, or of a push notification."""
    value = (
        _StatusUpdate(task_id=item.task_id, context_id=item.context_id, status=item.status, metadata=item.metadata)
        if isinstance(item, StatusUpdate)
        else item
    )
    return _WRAPPERS[type(item)] + _encode(value) + b"}"


# Requests, written


def parameters(request: Request) -> dict[str, Any]:
    """The params of a request."""
    wire: Any = request
    if isinstance(request, Send):
        wire = _Send(
            message=request.message,
            configuration=None if request.configuration == _NOTHING else request.configuration,
            metadata=request.metadata,
            tenant=request.tenant,
        )
    elif isinstance(request, Subscribe):
        wire = _Named(id=request.id, tenant=request.tenant)
    elif isinstance(request, CreatePush):
        wire = msgspec.structs.replace(
            request.config, task_id=request.task_id, tenant=request.tenant or request.config.tenant
        )
    written: dict[str, Any] = msgspec.to_builtins(wire)
    if isinstance(request, GetTask):
        written.pop("metadata", None)
    return written


def method_of(request: Request) -> str:
    """The name of a request's method."""
    if isinstance(request, Send):
        return "SendStreamingMessage" if request.stream else "SendMessage"
    return _NAMES[type(request)]


# Answers, read

_answer = Reader(_Answer, "answer")
_task = Reader(Task, "answer")
_message = Reader(Message, "answer")
_task_page = Reader(TaskPage, "answer")
_push_page = Reader(PushPage, "answer")
_push_read = Reader(Push, "answer")
_dict = Reader(dict[str, Any], "answer")


def read_item(result: Any) -> Item:
    """An item of a stream, or the reply to a message; MalformedResponse when it is none."""
    try:
        found = _answer(result)
        members = [found.task, found.message, found.status_update, found.artifact_update]
        item = next((one for one in members if one is not None), None)
        if item is None or sum(one is not None for one in members) != 1:
            item = _bare(result)
        return check_item(item)
    except (ValidationError, ParseError) as reason:
        raise answer(reason) from None


def _bare(result: Any) -> Item:
    """Some agents of 1.0 forget the wrapper around a task or message."""
    plain = _dict(result)
    if "status" in plain and "id" in plain:
        return _task(plain)
    if "parts" in plain:
        return _message(plain)
    raise wrong([fault("", "The answer must have exactly one of task, message, statusUpdate and artifactUpdate")])


def read_value(request: Request, result: Any) -> Value:
    """What a request other than a message was answered with."""
    try:
        match request:
            case GetTask() | CancelTask():
                return check_item(_task(result))  # type: ignore[return-value]
            case ListTasks() | Search():
                return check_page(_task_page(result))
            case CreatePush() | GetPush():
                return _push_read(result)
            case ListPush():
                return _push_page(result)
            case DeletePush():
                return None
            case _:
                return _dict(result)
    except (ValidationError, ParseError) as reason:
        raise answer(reason) from None


class V10:
    """The codec of 1.0 on JSON-RPC."""

    generation: Generation = "1.0"

    def request(self, method: str, params: Any) -> Request:
        """What is asked. ``params`` is JSON in bytes, or decoded. MethodNotFound, ValidationError."""
        read = METHODS.get(method)
        if read is None:
            raise MethodNotFound(f"There is no method {method[:100]!r} in A2A 1.0; there are {', '.join(METHODS)}")
        return read({} if params is None else params)

    def result(self, request: Request, value: Value) -> bytes:
        """The JSON of ``result``."""
        return write_result(request, value)

    def item(self, item: Item, request: Request) -> bytes:
        """The JSON of ``result`` of one event of a stream."""
        return write_item(item)

    def error(self, wrong: Agent3Error) -> dict[str, Any]:
        """The JSON-RPC error object."""
        return faults.rpc(wrong, "1.0")

    def ask(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The method and params of a request."""
        return method_of(request), parameters(request)

    def read(self, request: Request, result: Any) -> Value:
        """What a request was answered with. MalformedResponse when it is not what was asked for."""
        if not isinstance(request, Send):
            return read_value(request, result)
        item = read_item(result)
        if not isinstance(item, (Task, Message)):
            raise answer(wrong([fault("", "The answer to a message must be a task or a message")]))
        return item

    def read_item(self, result: Any) -> Item:
        """One event of a stream."""
        return read_item(result)

    def read_error(self, error: Any) -> Agent3Error:
        """The error that a JSON-RPC error object stands for."""
        return faults.read_rpc(error, "1.0")
