"""A2A 0.3 on REST: the JSON of its protobuf, which is not that of its JSON-RPC.

Content instead of parts, states in capitals with two L in CANCELLED, names of resources instead of ids, and no
difference between false and missing. Clients write the names of the .proto file as well, as ProtoJSON allows. Messages
are also given and taken as plain dicts, for gRPC, which has the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agent3.protocols.a2a.wire.codec import RestCodec, Value, check_reply
from agent3.protocols.a2a.wire.decoding import (
    Reader,
    camel_case,
    camel_keys,
    check_id,
    check_push,
    fault,
    invalid,
)
from agent3.protocols.a2a.wire.dialect import STATE_WORDS, Dialect, read_push, write_push
from agent3.protocols.a2a.wire.operations import Operation, Route
from agent3.protocols.a2a.wire.tables import V03_REST
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
    Role,
    Send,
    State,
    StatusUpdate,
    Task,
    TaskPage,
)
from agent3.protocols.a2a.wire.v10 import read_get, read_list

__all__ = ["Rest03"]

_STATES: Final = {"TASK_STATE_CANCELLED": State.CANCELED, **{state.value: state for state in State}}
_RENAMED: Final = {"request": "message", "msg": "message", "update": "message"}
"""Fields whose name in the .proto file is not just the JSON name in snake case."""
_IDS: Final = {"id": "id", "task_id": "taskId"}
_MEMBERS: Final[dict[str, str]] = {
    "task": "Task",
    "message": "Message",
    "statusUpdate": "TaskStatusUpdateEvent",
    "artifactUpdate": "TaskArtifactUpdateEvent",
}
_ITEMS: Final[dict[type[Any], str]] = {
    Task: "task",
    Message: "message",
    StatusUpdate: "statusUpdate",
    ArtifactUpdate: "artifactUpdate",
}

_dialect: Final = Dialect(
    V03_REST, {role.value: role for role in Role}, _STATES, raw="fileWithBytes", url="fileWithUri"
)
_encode: Final = msgspec.json.Encoder().encode
_body: Final = Reader(dict[str, Any], "body")
_object: Final = Reader(dict[str, Any], "answer")


def _json_name(name: str) -> str:
    plain = camel_case(name)
    return _RENAMED.get(plain, plain)


class Rest03(RestCodec):
    """The codec of 0.3 on REST."""

    generation: Generation = "0.3"

    # Requests

    def read_request(self, route: Route, values: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Request:
        for name, value in values.items():
            check_id(value, name)
        plain: dict[str, Any] = {}
        if body and route.operation.request in (Send, CreatePush, CancelTask):  # any other body is ignored
            plain = camel_keys(_body(body), _json_name)
        return self.read_call(route.operation, values, {_json_name(name): text for name, text in query.items()}, plain)

    def read_call(
        self, operation: Operation, values: Mapping[str, str], query: Mapping[str, Any], body: dict[str, Any]
    ) -> Request:
        """The request of an operation, with the ids of its path and with the names of JSON in query and body."""
        kind = operation.request
        if kind is Send:
            return _dialect.read_send(body, "body", push="pushNotification", stream=operation.streaming)
        if kind is CreatePush:
            return self._read_create_push(values["taskId"], body)
        if kind is GetTask:
            return read_get({**query, **values}, lax=True)
        if kind is ListTasks:
            state = STATE_WORDS.get(query.get("status", "")) or _STATES.get(query.get("status", ""))
            return read_list({**query, "status": state.value} if state is not None else query, lax=True)
        if kind is CancelTask:
            return CancelTask(id=values["id"], metadata=body.get("metadata"))
        # Any other request has nothing but the ids of its path.
        ids = {attribute: name for attribute, name in _IDS.items() if attribute in kind.__struct_fields__}
        request: Request = kind(**{attribute: values[name] for attribute, name in ids.items()})
        return request

    def _read_create_push(self, task: str, body: dict[str, Any]) -> CreatePush:
        """The body is the whole request, its ``config``, or the configuration itself: all three are in use."""
        config = body["config"] if isinstance(body.get("config"), dict) else body
        if "pushNotificationConfig" not in config and "url" in config:
            config = {"pushNotificationConfig": config}
        given = _dialect.decode("TaskPushNotificationConfig", config, "body")
        push = read_push(given["pushNotificationConfig"], task)
        check_push(push, "pushNotificationConfig")
        name = body.get("configId") or (given.get("name") or "").rpartition("/pushNotificationConfigs/")[2]
        if push.id is None and name:
            push = msgspec.structs.replace(push, id=str(name))
        return CreatePush(task_id=task, config=push)

    def write_request(self, request: Request) -> tuple[str, str, dict[str, str], bytes | None]:
        route = self._route_of(request)
        query: dict[str, str] = {}
        if isinstance(request, GetTask) and request.history_length is not None:
            query = {"historyLength": str(request.history_length)}
        elif isinstance(request, ListTasks):
            given = msgspec.to_builtins(request)
            query = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in given.items()}
        body = self.plain_body(request)
        places = {"id": getattr(request, "id", None) or "", "taskId": getattr(request, "task_id", None) or ""}
        return route.http, route.fill(places), query, None if body is None else _encode(body)

    def plain_body(self, request: Request) -> dict[str, Any] | None:
        """The body of a request as a dict; None for one that has none."""
        if isinstance(request, Send):
            return _dialect.write_send(request, push="pushNotification")
        if isinstance(request, CreatePush):
            push = msgspec.structs.replace(request.config, task_id=request.task_id)
            name = request.config.id or ""
            return {"parent": f"tasks/{request.task_id}", "configId": name, "config": _write_task_push(push, request)}
        return {} if isinstance(request, CancelTask) else None

    # Answers

    def write_result(self, request: Request, value: Value) -> bytes:
        return _encode(self.plain_value(request, value))

    def write_item(self, item: Item, request: Request) -> bytes:
        return _encode(self.plain_item(item))

    def plain_item(self, item: Item) -> dict[str, Any]:
        """One item of a stream as a dict."""
        return {_ITEMS[type(item)]: _dialect.write(item)}

    def plain_value(self, request: Request, value: Value) -> dict[str, Any]:
        """An answer as a dict."""
        match value:
            case None:
                return {}
            case Task() | Message() if isinstance(request, Send):
                return self.plain_item(value)
            case Push():
                return _write_task_push(value, request)
            case PushPage():
                configs = [_write_task_push(push, request) for push in value.configs]
                page = {"configs": configs, "nextPageToken": value.next_page_token}
                return {name: entry for name, entry in page.items() if entry}
            case Task() | TaskPage() | Message():
                return _dialect.write(value)
            case _:
                return value

    def _read(self, request: Request, result: Any) -> Value:
        if isinstance(request, DeletePush):
            return None
        if isinstance(request, GetCard):
            return _object(result)
        if isinstance(request, Send):
            return check_reply(self._read_item(result))
        plain = camel_keys(_object(result), _json_name)
        if isinstance(request, (CreatePush, GetPush)):
            return _read_task_push(_dialect.decode("TaskPushNotificationConfig", plain, "answer"))
        if isinstance(request, ListPush):
            page = _dialect.decode("ListTaskPushNotificationConfigResponse", plain, "answer")
            configs = tuple([_read_task_push(push) for push in page.get("configs") or ()])
            return PushPage(configs=configs, next_page_token=page.get("nextPageToken") or "")
        name = "TaskPage" if isinstance(request, ListTasks) else "Task"
        value: Value = _dialect.read(name, _dialect.decode(name, plain, "answer"))
        return value

    def _read_item(self, result: Any) -> Item:
        given = _dialect.decode("StreamResponse", camel_keys(_object(result), _json_name), "answer")
        for member, name in _MEMBERS.items():
            if given.get(member) is not None:
                item: Item = _dialect.read(name, given[member])
                return item
        raise invalid([fault("", "The answer must have one of task, message, statusUpdate and artifactUpdate")])


def _read_task_push(given: Mapping[str, Any]) -> Push:
    task = (given.get("name") or "").removeprefix("tasks/").partition("/")[0]
    return read_push(given["pushNotificationConfig"], task or None)


def _write_task_push(push: Push, request: Request) -> dict[str, Any]:
    task = push.task_id or getattr(request, "task_id", "")
    name = f"tasks/{task}/pushNotificationConfigs/{push.id or ''}"
    return {"name": name, "pushNotificationConfig": write_push(push)}
