"""A2A 1.0 on JSON-RPC and REST.

The structs of ``wire.types`` are the messages of 1.0, so reading is one typed decode and writing one encode. What only
we have in them (``stream``, ``task_alias``, ``after``, ``final``) is neither taken from the wire nor written to it.
This is the hot path of every message: no table stands between the bytes and the structs here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from agent3.protocols.a2a.wire.codec import Answers, Codec, RestCodec, Value, check_reply
from agent3.protocols.a2a.wire.decoding import (
    Reader,
    camel_keys,
    check_count,
    check_id,
    check_item,
    check_message,
    check_page,
    check_push,
    fault,
    invalid,
    to_utc,
)
from agent3.protocols.a2a.wire.operations import NAMES, Operation, Route
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

__all__ = ["V10", "Rest10", "read_list", "read_search"]

_MOST_TASKS: Final = 100
_NAMES: Final = NAMES["1.0"]
_DEFAULTS: Final = Sending()


class _Send(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    message: Message
    configuration: Sending | None = None
    metadata: dict[str, Any] | None = None
    tenant: str | None = None


class _StatusUpdate(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    task_id: str
    context_id: str
    status: Status
    metadata: dict[str, Any] | None = None


class _Answer(Struct, kw_only=True, rename="camel"):
    """A reply or an item of a stream: exactly one of these members."""

    task: Task | None = None
    message: Message | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None


# Reading requests

_send = Reader(_Send, snake_case=True)
_get = Reader(GetTask, snake_case=True)
_list = Reader(ListTasks, snake_case=True)
_cancel = Reader(CancelTask, snake_case=True)
_push = Reader(Push, snake_case=True)
_named_push = Reader(DeletePush, snake_case=True)
_list_push = Reader(ListPush, snake_case=True)
_search = Reader(Search)


def _read_send(params: Any, stream: bool = False) -> Send:
    sent = _send(params)
    configuration = sent.configuration or _DEFAULTS
    if configuration is not _DEFAULTS:
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
    """A task to read; ``lax`` where numbers come as texts, as in a query."""
    asked = _get(params, lax=lax)
    check_id(asked.id)
    check_count(asked.history_length, "historyLength")
    return asked


def read_list(params: Any, lax: bool = False) -> ListTasks:
    """Tasks to list."""
    asked = _list(params, lax=lax)
    check_count(asked.page_size, "pageSize", 1, _MOST_TASKS)
    check_count(asked.history_length, "historyLength")
    if asked.status_timestamp_after:
        after = to_utc(asked.status_timestamp_after, "statusTimestampAfter")
        asked = msgspec.structs.replace(asked, status_timestamp_after=after)
    return asked


def read_search(params: Any) -> Search:
    """Words to find tasks by; the extension has one form in every generation."""
    asked = _search(params)
    check_id(asked.query, "query")
    check_count(asked.page_size, "pageSize", 1, _MOST_TASKS)
    return asked


def _read_cancel(params: Any) -> CancelTask:
    asked = _cancel(params)
    check_id(asked.id)
    return asked


def _read_subscribe(params: Any) -> Subscribe:
    asked = _read_cancel(params)  # the same members; a Reader of Subscribe would take "after" from the wire
    return Subscribe(id=asked.id, tenant=asked.tenant, metadata=asked.metadata)


def _read_create_push(params: Any) -> CreatePush:
    push = _push(params)
    check_push(push, "params")
    check_id(push.task_id or "", "taskId")
    return CreatePush(task_id=push.task_id or "", config=push, tenant=push.tenant)


def _read_delete_push(params: Any) -> DeletePush:
    asked = _named_push(params)
    check_id(asked.task_id, "taskId")
    check_id(asked.id)
    return asked


def _read_get_push(params: Any) -> GetPush:
    asked = _read_delete_push(params)  # a Reader of GetPush would take one without an id, as older generations have it
    return GetPush(task_id=asked.task_id, id=asked.id, tenant=asked.tenant)


def _read_list_push(params: Any, lax: bool = False) -> ListPush:
    asked = _list_push(params, lax=lax)
    check_id(asked.task_id, "taskId")
    check_count(asked.page_size, "pageSize")
    return asked


_READERS: Final[dict[Operation, Callable[..., Request]]] = {
    Operation(Send): _read_send,
    Operation(Send, streaming=True): lambda params: _read_send(params, stream=True),
    Operation(GetTask): read_get,
    Operation(ListTasks): read_list,
    Operation(CancelTask): _read_cancel,
    Operation(Subscribe): _read_subscribe,
    Operation(CreatePush): _read_create_push,
    Operation(GetPush): _read_get_push,
    Operation(ListPush): _read_list_push,
    Operation(DeletePush): _read_delete_push,
    Operation(GetCard): Reader(GetCard, snake_case=True),
    Operation(Search): read_search,
}

# Writing requests


def _params(request: Request) -> dict[str, Any]:
    wire: Any = request
    if isinstance(request, Send):
        wire = _Send(
            message=request.message,
            configuration=None if request.configuration == _DEFAULTS else request.configuration,
            metadata=request.metadata,
            tenant=request.tenant,
        )
    elif isinstance(request, Subscribe):
        wire = CancelTask(id=request.id, tenant=request.tenant)
    elif isinstance(request, GetTask):
        wire = msgspec.structs.replace(request, metadata=None)
    elif isinstance(request, CreatePush):
        wire = msgspec.structs.replace(
            request.config, task_id=request.task_id, tenant=request.tenant or request.config.tenant
        )
    params: dict[str, Any] = msgspec.to_builtins(wire)
    return params


# Writing answers

_encode = msgspec.json.Encoder().encode
_WRAPPERS: Final[dict[type[Any], bytes]] = {
    Task: b'{"task":',
    Message: b'{"message":',
    StatusUpdate: b'{"statusUpdate":',
    ArtifactUpdate: b'{"artifactUpdate":',
}

# Reading answers

_answer = Reader(_Answer, "answer")
_task = Reader(Task, "answer")
_message = Reader(Message, "answer")
_task_page = Reader(TaskPage, "answer")
_push_page = Reader(PushPage, "answer")
_push_answer = Reader(Push, "answer")
_object = Reader(dict[str, Any], "answer")


class _Answers10(Answers):
    """Answers in JSON, which are the same on JSON-RPC and REST."""

    def write_result(self, request: Request, value: Value) -> bytes:
        if isinstance(request, Send):
            return _WRAPPERS[type(value)] + _encode(value) + b"}"
        return b"{}" if value is None else _encode(value)  # a deletion is answered with google.protobuf.Empty

    def write_item(self, item: Item, request: Request) -> bytes:
        value = (
            _StatusUpdate(task_id=item.task_id, context_id=item.context_id, status=item.status, metadata=item.metadata)
            if isinstance(item, StatusUpdate)
            else item
        )
        return _WRAPPERS[type(item)] + _encode(value) + b"}"

    def _read_item(self, result: Any) -> Item:
        found = _answer(result)
        members = (found.task, found.message, found.status_update, found.artifact_update)
        items = [member for member in members if member is not None]
        if len(items) == 1:
            return check_item(items[0])
        # Some agents forget the wrapper around a task or message.
        bare = _object(result)
        if "status" in bare and "id" in bare:
            return check_item(_task(bare))
        if "parts" in bare:
            return check_item(_message(bare))
        raise invalid([fault("", "The answer must have exactly one of task, message, statusUpdate and artifactUpdate")])

    def _read(self, request: Request, result: Any) -> Value:
        match request:
            case Send():
                return check_reply(self._read_item(result))
            case GetTask() | CancelTask():
                return check_item(_task(result))  # type: ignore[return-value]
            case ListTasks() | Search():
                return check_page(_task_page(result))
            case CreatePush() | GetPush():
                return _push_answer(result)
            case ListPush():
                return _push_page(result)
            case DeletePush():
                return None
            case _:
                return _object(result)


class V10(_Answers10, Codec):
    """The codec of 1.0 on JSON-RPC."""

    generation: Generation = "1.0"

    def _reader_of(self, operation: Operation) -> Callable[[Any], Request]:
        return _READERS[operation]

    def write_request(self, request: Request) -> tuple[str, dict[str, Any]]:
        return _NAMES[type(request), getattr(request, "stream", False)], _params(request)


class Rest10(_Answers10, RestCodec):
    """The codec of 1.0 on REST: the JSON of JSON-RPC, with parameters in path and query."""

    generation: Generation = "1.0"
    _body = Reader(dict[str, Any], "body")

    def read_request(self, route: Route, values: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Request:
        """The request at a route. The path outweighs query and body."""
        read = _READERS[route.operation]
        if route.operation.request is Send:
            sent = read(body or b"{}")
            return msgspec.structs.replace(sent, tenant=values["tenant"]) if "tenant" in values else sent
        if route.operation.request in (GetTask, ListTasks, ListPush):
            return read({**query, **values}, lax=True)
        given = camel_keys(self._body(body)) if body and route.http == "POST" else query
        return read({**given, **values})

    def write_request(self, request: Request) -> tuple[str, str, dict[str, str], bytes | None]:
        route = self._route_of(request)
        params = _params(request)
        tenant = params.pop("tenant", None)
        places = {name: str(params.pop(name)) for name in ("id", "taskId") if f"{{{name}}}" in route.path}
        path = (f"/{tenant}" if tenant else "") + route.fill(places)
        if route.http == "POST":
            return route.http, path, {}, msgspec.json.encode(params)
        query = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in params.items()}
        return route.http, path, query, None
