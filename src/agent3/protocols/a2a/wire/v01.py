"""A2A 0.1: the client names the task, every answer is a task, and artifacts have numbers instead of ids.

What that generation cannot say is approximated: a plain message becomes a completed task with that message, a rejected
task is ``failed`` and a missing authorization ``input-required``, both with the state in the metadata. A message has no
id on the wire and gets one from its task and content, so that the same message sent twice has one id.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from agent3.protocols.a2a.wire.codec import Codec, Value
from agent3.protocols.a2a.wire.decoding import Reader, check_count, check_id, check_push, fault, invalid
from agent3.protocols.a2a.wire.dialect import ROLE_WORDS, STATE_WORDS, Dialect, read_push, write_push
from agent3.protocols.a2a.wire.errors import UnsupportedOperation
from agent3.protocols.a2a.wire.operations import Operation, method_of
from agent3.protocols.a2a.wire.tables import V01 as TABLE
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
from agent3.protocols.a2a.wire.v10 import read_search

__all__ = ["V01"]

Stated = TypeVar("Stated", Task, StatusUpdate)

_STATE: Final = "a2a.state"
"""Where the metadata of a task or event name a state that 0.1 has no word for."""
_NEAREST: Final = {State.REJECTED: State.FAILED, State.AUTH_REQUIRED: State.INPUT_REQUIRED}
_REMEMBERED_TASKS: Final = 4_096

_dialect: Final = Dialect(TABLE, ROLE_WORDS, STATE_WORDS, tag="type")
_encode: Final = msgspec.json.Encoder().encode
_sorted: Final = msgspec.json.Encoder(order="deterministic").encode
_object: Final = Reader(dict[str, Any], "answer")


def _complete(given: dict[str, Any], task: str) -> dict[str, Any]:
    """Fill in the ids of messages and the numbers of artifacts that a decoded message of 0.1 does not have."""
    messages = [given.get("message"), (given.get("status") or {}).get("message"), *(given.get("history") or ())]
    for message in messages:
        if message is not None and not message.get("messageId"):
            content = b"%s\0%s" % (task.encode(), _sorted(message))
            message["messageId"] = hashlib.sha256(content).hexdigest()[:32]
    for number, artifact in enumerate(given.get("artifacts") or [given.get("artifact") or {}]):
        if artifact.get("index") is None:
            artifact["index"] = number
    return given


def _restore_state(item: Stated) -> Stated:
    """A task or update in the state that its metadata name, where that says more than the word."""
    metadata = item.metadata or {}
    word = metadata.get(_STATE)
    if word is None:
        return item
    status = item.status
    meant = STATE_WORDS.get(word) if isinstance(word, str) else None
    if meant is not None and _NEAREST.get(meant) is status.state:
        status = replace(status, state=meant)
    rest = {name: value for name, value in metadata.items() if name != _STATE}
    return replace(item, status=status, metadata=rest or None)


def _approximate_state(item: Stated) -> Stated:
    """A task or update in a state that 0.1 has a word for."""
    state = item.status.state
    if state not in _NEAREST:
        return item
    word = next(word for word, known in STATE_WORDS.items() if known is state)
    status = replace(item.status, state=_NEAREST[state])
    return replace(item, status=status, metadata={**(item.metadata or {}), _STATE: word})


def _write_task(task: Task, name: str | None = None) -> dict[str, Any]:
    """A task under the name that its client gave it, with its artifacts numbered in their order."""
    numbered = tuple(replace(artifact, artifact_id=str(n)) for n, artifact in enumerate(task.artifacts))
    return _dialect.write(_approximate_state(replace(task, id=name or task.id, artifacts=numbered)))


def _as_task(message: Message, name: str | None) -> Task:
    """A plain message as the completed task that it is in a generation without plain messages."""
    return Task(
        id=name or message.task_id or message.message_id,
        context_id=message.context_id or "",
        status=Status(state=State.COMPLETED, message=message),
    )


def _task_name(request: Request) -> str | None:
    """What the client calls the task that it asked about."""
    if isinstance(request, Send):
        return request.task_alias
    if isinstance(request, (CreatePush, GetPush)):
        return request.task_id
    return request.id if isinstance(request, (GetTask, CancelTask, Subscribe)) else None


class V01(Codec):
    """The codec of 0.1 on JSON-RPC.

    Artifacts are numbered in the order in which a task's stream brings them. As a stream is written one item at a
    time, the codec remembers that order, for the tasks written last.
    """

    generation: Generation = "0.1"

    def __init__(self) -> None:
        super().__init__()
        self._orders: OrderedDict[str, list[str]] = OrderedDict()

    # Requests

    def _reader_of(self, operation: Operation) -> Callable[[Any], Request]:
        readers: dict[type[Any], Callable[[Any], Request]] = {
            Send: partial(self._read_send, stream=operation.streaming),
            GetTask: self._read_get,
            CreatePush: lambda params: _dialect.read_create_push(params, "id"),
            Search: read_search,
        }
        return readers.get(operation.request) or partial(_dialect.read_request, operation.request)

    def _read_send(self, params: Any, stream: bool) -> Send:
        sent = _dialect.decode("SendMessageRequest", params)
        check_id(sent["id"])
        check_count(sent.get("historyLength"), "historyLength")
        push = sent.get("pushNotification")
        configuration = Sending(
            accepted_output_modes=tuple(sent.get("acceptedOutputModes") or ()),
            history_length=sent.get("historyLength") or 0,
            push=None if push is None else read_push(push),
        )
        check_push(configuration.push, "pushNotification")
        message = _dialect.read("Message", _complete(sent, sent["id"])["message"], "message")
        return Send(
            message=replace(message, context_id=sent.get("sessionId") or None),
            configuration=configuration,
            metadata=sent.get("metadata"),
            stream=stream,
            task_alias=sent["id"],
        )

    def _read_get(self, params: Any) -> GetTask:
        """No history unless it is asked for: that was the default of 0.1."""
        asked: GetTask = _dialect.read_request(GetTask, params)
        return replace(asked, history_length=asked.history_length or 0)

    def write_request(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The method and params of a request. UnsupportedOperation for what 0.1 cannot ask."""
        method = method_of(request, "0.1")
        if method is None:
            raise UnsupportedOperation(f"A2A 0.1 has no {type(request).__name__}, and the agent speaks only 0.1.")
        params: Any
        match request:
            case Send():
                message, wanted = request.message, request.configuration
                optional = {
                    "sessionId": message.context_id,
                    "acceptedOutputModes": wanted.accepted_output_modes or None,
                    "pushNotification": None if wanted.push is None else write_push(wanted.push, named=False),
                    "historyLength": wanted.history_length,
                    "metadata": request.metadata,
                }
                params = {
                    # A task that we name has the id of its first message, so that a retry means the same task.
                    "id": request.task_alias or message.task_id or message.message_id,
                    "message": _dialect.write(message),
                    **{name: value for name, value in optional.items() if value is not None},
                }
            case CreatePush():
                params = {"id": request.task_id, "pushNotificationConfig": write_push(request.config, named=False)}
            case Search():
                params = request
            case _:
                params = _dialect.write(request)
        return method, msgspec.to_builtins(params)

    # Answers

    def write_result(self, request: Request, value: Value) -> bytes:
        """The JSON of an answer; the task has the name that its client gave it."""
        name = _task_name(request)
        match value:
            case Task():
                return _encode(_write_task(value, name))
            case Message():
                return _encode(_write_task(_as_task(value, name)))
            case Push():
                push = write_push(value, named=False)
                return _encode({"id": name or value.task_id or "", "pushNotificationConfig": push})
            case TaskPage():
                return _encode({"tasks": [_write_task(task) for task in value.tasks]})
            case PushPage():
                return _encode([write_push(push, named=False) for push in value.configs])
            case _:
                return _encode(value)

    def write_item(self, item: Item, request: Request) -> bytes:
        name = _task_name(request)
        if isinstance(item, ArtifactUpdate):
            numbered = self._number(item.task_id, item.artifact)
            written = _dialect.write(replace(item, task_id=name or item.task_id, artifact=numbered))
            written["artifact"] |= {"append": True} if item.append else {}
            written["artifact"]["lastChunk"] = item.last_chunk
            return _encode(written)
        if isinstance(item, Message):
            item = _as_task(item, name)
        if isinstance(item, StatusUpdate):
            task, update = item.task_id, item
        else:
            task = item.id
            update = StatusUpdate(
                task_id=task, status=item.status, metadata=item.metadata, final=item.status.state in TERMINAL
            )
        written = _dialect.write(_approximate_state(replace(update, task_id=name or task)))
        if isinstance(item, Task):
            # No document has artifacts here. With them the first event of a stream can be the task as it stands.
            written["sessionId"] = item.context_id
            if item.artifacts:
                written["artifacts"] = [_dialect.write(self._number(task, artifact)) for artifact in item.artifacts]
        if update.final:
            self._orders.pop(task, None)
        return _encode(written)

    def _number(self, task: str, artifact: Artifact) -> Artifact:
        order = self._orders.setdefault(task, [])
        self._orders.move_to_end(task)
        if artifact.artifact_id not in order:
            order.append(artifact.artifact_id)
        while len(self._orders) > _REMEMBERED_TASKS:
            self._orders.popitem(last=False)
        return replace(artifact, artifact_id=str(order.index(artifact.artifact_id)))

    def _read(self, request: Request, result: Any) -> Value:
        if isinstance(request, (CreatePush, GetPush)):
            given = _dialect.decode("TaskPushNotificationConfig", result, "answer")
            return read_push(given["pushNotificationConfig"], given["id"])
        if isinstance(request, Search):
            found = _dialect.decode("TaskPage", result, "answer").get("tasks") or ()
            tasks = tuple([_read_task(task) for task in found])
            return TaskPage(tasks=tasks, page_size=len(tasks), total_size=len(tasks))
        return _read_task(_dialect.decode("Task", result, "answer"))

    def _read_item(self, result: Any) -> Item:
        plain = _object(result)
        if "final" not in plain and "artifact" not in plain and ("artifacts" in plain or "history" in plain):
            return _read_task(_dialect.decode("Task", plain, "answer"))
        if plain.get("status") is not None:
            given = _dialect.decode("TaskStatusUpdateEvent", plain, "answer")
            update: StatusUpdate = _dialect.read("TaskStatusUpdateEvent", _complete(given, given["id"]))
            return _restore_state(update)
        if plain.get("artifact") is None:
            raise invalid([fault("", "An event must have a status or an artifact")])
        given = _dialect.decode("TaskArtifactUpdateEvent", plain, "answer")
        piece: ArtifactUpdate = _dialect.read("TaskArtifactUpdateEvent", _complete(given, given["id"]))
        artifact = given["artifact"]
        return replace(piece, append=artifact.get("append") is True, last_chunk=artifact.get("lastChunk") is True)


def _read_task(given: dict[str, Any]) -> Task:
    task: Task = _dialect.read("Task", _complete(given, given["id"]))
    return _restore_state(task)
