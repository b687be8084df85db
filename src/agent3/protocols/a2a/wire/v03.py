"""A2A 0.2 and 0.3 on JSON-RPC: messages are tagged with ``kind``, and roles and states are words in lower case.

Read loosely, as ``dialect`` says, and written strictly: with every tag, and with ``final`` at every status. Versions
0.2.0 to 0.3.0 only ever added to each other, so one codec speaks them all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from agent3.protocols.a2a.wire.codec import Codec, Value, check_reply
from agent3.protocols.a2a.wire.decoding import Reader, fault, invalid
from agent3.protocols.a2a.wire.dialect import ROLE_WORDS, STATE_WORDS, Dialect, read_push, write_push
from agent3.protocols.a2a.wire.operations import Operation, method_of
from agent3.protocols.a2a.wire.tables import V03 as TABLE
from agent3.protocols.a2a.wire.types import (
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
    Push,
    PushPage,
    Request,
    Search,
    Send,
    Task,
)
from agent3.protocols.a2a.wire.v10 import read_list, read_search

__all__ = ["V03"]

_KINDS: Final = {
    "Task": "task",
    "Message": "message",
    "TaskStatusUpdateEvent": "status-update",
    "TaskArtifactUpdateEvent": "artifact-update",
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_MARKS: Final = {"parts": "message", "artifact": "artifact-update", "taskId": "status-update", "status": "task"}
"""The members by which an answer without its tag is recognised, in this order."""

_dialect: Final = Dialect(TABLE, ROLE_WORDS, STATE_WORDS, kinds=_KINDS, tag="kind")
_encode: Final = msgspec.json.Encoder().encode
_params: Final = Reader(dict[str, Any])
_object: Final = Reader(dict[str, Any], "answer")
_list: Final = Reader(list[Any], "answer")


class V03(Codec):
    """The codec of 0.2 and 0.3 on JSON-RPC."""

    generation: Generation = "0.3"

    # Requests

    def _reader_of(self, operation: Operation) -> Callable[[Any], Request]:
        readers: dict[type[Any], Callable[[Any], Request]] = {
            Send: lambda params: _dialect.read_send(
                params, "value of params", push="pushNotificationConfig", stream=operation.streaming
            ),
            # The earliest 0.2 calls the task id.
            CreatePush: lambda params: _dialect.read_create_push(params, "taskId", "id"),
            ListTasks: self._read_list,
            Search: read_search,
        }
        return readers.get(operation.request) or partial(_dialect.read_request, operation.request)

    def _read_list(self, params: Any) -> ListTasks:
        """0.3 has no such method on JSON-RPC; ours takes the members of 1.0 with the states of 0.3."""
        given = _params(params)
        word = given.get("status")
        state = STATE_WORDS.get(word) if isinstance(word, str) else None
        return read_list(given | {"status": state.value} if state is not None else given)

    def write_request(self, request: Request) -> tuple[str, dict[str, Any]]:
        params: Any
        match request:
            case Send():
                params = _dialect.write_send(request, push="pushNotificationConfig")
            case CreatePush():
                params = {"taskId": request.task_id, "pushNotificationConfig": write_push(request.config)}
            case ListTasks() | Search() | GetCard():
                params = request
            case _:
                params = _dialect.write(request)
        return method_of(request, "0.3") or "", msgspec.to_builtins(params)

    # Answers

    def write_result(self, request: Request, value: Value) -> bytes:
        if isinstance(value, Push):
            return _encode(_write_task_push(value, request))
        if isinstance(value, PushPage):
            return _encode([_write_task_push(push, request) for push in value.configs])
        return _encode(value if value is None or isinstance(value, dict) else _dialect.write(value))

    def write_item(self, item: Item, request: Request) -> bytes:
        return _encode(_dialect.write(item))

    def _read(self, request: Request, result: Any) -> Value:
        match request:
            case Send():
                return check_reply(self._read_item(result))
            case GetTask() | CancelTask():
                item = self._read_item(result)
                if isinstance(item, Task):
                    return item
                raise invalid([fault("kind", "must be a task")])
            case ListTasks() | Search():
                page: Value = _dialect.read("TaskPage", _dialect.decode("TaskPage", result, "answer"))
                return page
            case CreatePush() | GetPush():
                return _read_task_push(result)
            case ListPush():
                return PushPage(configs=tuple([_read_task_push(push) for push in _list(result)]))
            case DeletePush():
                return None
            case _:
                return _object(result)

    def _read_item(self, result: Any) -> Item:
        plain = _object(result)
        kind = plain.get("kind") or next((kind for mark, kind in _MARKS.items() if mark in plain), None)
        if not isinstance(kind, str) or kind not in _NAMES:
            raise invalid([fault("kind", f"must be one of {', '.join(_NAMES)}, got {str(kind)[:40]!r}")])
        item: Item = _dialect.read(_NAMES[kind], _dialect.decode(_NAMES[kind], plain, "answer"))
        return item


def _read_task_push(result: Any) -> Push:
    given = _dialect.decode("TaskPushNotificationConfig", result, "answer")
    return read_push(given["pushNotificationConfig"], given.get("taskId") or given.get("id") or None)


def _write_task_push(push: Push, request: Request) -> dict[str, Any]:
    task = push.task_id or getattr(request, "task_id", None)
    return {**({"taskId": task} if task else {}), "pushNotificationConfig": write_push(push)}
