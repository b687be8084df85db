"""A2A over gRPC: requests and answers of 1.0 and 0.3 as protobuf, and errors as Google's status with its details.

Everything but the bytes is done by the codecs of the same generation's JSON. 0.3 names resources instead of ids.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from agent3 import card_formats as cardwire
from agent3 import jsonrpc
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    Canceled,
    MalformedResponse,
    MethodNotFound,
    RequestError,
    TargetError,
    TargetRefused,
    TooLarge,
    Unavailable,
    ValidationError,
)
from agent3.protocols.a2a.grpc.messages import STATUS, V03, V10
from agent3.protocols.a2a.grpc.protobuf import Schema
from agent3.protocols.a2a.wire import CODECS, Value
from agent3.protocols.a2a.wire import errors as faults
from agent3.protocols.a2a.wire.decoding import check_count, fault, wrong
from agent3.protocols.a2a.wire.errors import Profile
from agent3.protocols.a2a.wire.routes import Route
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
    Request,
    Send,
    Subscribe,
)
from agent3.protocols.a2a.wire.v03_rest import Rest03

__all__ = ["CODES", "GRPCS", "GrpcCodec", "Rpc", "read_status", "write_status"]

_MOST = 1_024
"""Characters of an error's text, and bytes of a list of wrong fields: all of it must fit into headers."""


class Rpc(NamedTuple):
    """A call: the messages of its request and answer, and whether the answer streams."""

    name: str
    request: str
    answer: str
    streams: bool = False


class GrpcCodec(Protocol):
    """A generation on gRPC."""

    generation: Generation
    service: str
    rpcs: Mapping[str, Rpc]

    def request(self, rpc: Rpc, data: bytes, limits: jsonrpc.Limits) -> Request:
        """What is asked. RequestError, ValidationError, TooLarge."""

    def result(self, rpc: Rpc, request: Request, value: Value) -> bytes:
        """The message of an answer."""

    def item(self, item: Item, request: Request) -> bytes:
        """The message of one item of a stream."""

    def ask(self, request: Request) -> tuple[Rpc, bytes]:
        """The call that a request makes. MethodNotFound for one that gRPC has not."""

    def read(self, rpc: Rpc, request: Request, data: bytes, limits: jsonrpc.Limits) -> Value:
        """What a request was answered with. MalformedResponse."""

    def read_item(self, data: bytes, limits: jsonrpc.Limits) -> Item:
        """One item of a stream."""


def _table(*rpcs: Rpc) -> dict[str, Rpc]:
    return {one.name: one for one in rpcs}


def _decoded(schema: Schema, message: str, data: bytes, limits: jsonrpc.Limits) -> dict[str, Any]:
    return schema.decode(message, data, depth=limits.depth, nodes=limits.nodes)


def _answered(schema: Schema, message: str, data: bytes, limits: jsonrpc.Limits) -> dict[str, Any]:
    try:
        return _decoded(schema, message, data, limits)
    except RequestError as reason:
        raise MalformedResponse(f"The agent's answer breaks its protocol: {reason.message}") from None


class Grpc10:
    """1.0: calls are named as on JSON-RPC, and messages have the members of its JSON."""

    generation: Generation = "1.0"
    service: str = "lf.a2a.v1.A2AService"
    rpcs: Mapping[str, Rpc] = _table(
        Rpc("SendMessage", "SendMessageRequest", "StreamResponse"),
        Rpc("SendStreamingMessage", "SendMessageRequest", "StreamResponse", streams=True),
        Rpc("GetTask", "GetTaskRequest", "Task"),
        Rpc("ListTasks", "ListTasksRequest", "ListTasksResponse"),
        Rpc("CancelTask", "CancelTaskRequest", "Task"),
        Rpc("SubscribeToTask", "SubscribeToTaskRequest", "StreamResponse", streams=True),
        Rpc("CreateTaskPushNotificationConfig", "TaskPushNotificationConfig", "TaskPushNotificationConfig"),
        Rpc("GetTaskPushNotificationConfig", "GetTaskPushNotificationConfigRequest", "TaskPushNotificationConfig"),
        Rpc(
            "ListTaskPushNotificationConfigs",
            "ListTaskPushNotificationConfigsRequest",
            "ListTaskPushNotificationConfigsResponse",
        ),
        Rpc("DeleteTaskPushNotificationConfig", "GetTaskPushNotificationConfigRequest", "Empty"),
        Rpc("GetExtendedAgentCard", "GetExtendedAgentCardRequest", "AgentCard"),
    )
    _json = CODECS["1.0"]

    def request(self, rpc: Rpc, data: bytes, limits: jsonrpc.Limits) -> Request:
        """What is asked. An empty tenant is none, as are other texts that protobuf cannot leave out."""
        given = _decoded(V10, rpc.request, data, limits)
        if not given.get("tenant", ""):
            given.pop("tenant", None)
        return self._json.request(rpc.name, given)

    def result(self, rpc: Rpc, request: Request, value: Value) -> bytes:
        """The message of an answer."""
        return V10.encode(rpc.answer, msgspec.json.decode(self._json.result(request, value)))

    def item(self, item: Item, request: Request) -> bytes:
        """The message of one item of a stream."""
        return V10.encode("StreamResponse", msgspec.json.decode(self._json.item(item, request)))

    def ask(self, request: Request) -> tuple[Rpc, bytes]:
        """The call that a request makes."""
        method, params = self._json.ask(request)
        rpc = self.rpcs.get(method)
        if rpc is None:
            raise MethodNotFound(f"There is no {method} in the gRPC binding; ask over JSON-RPC")
        return rpc, V10.encode(rpc.request, params)

    def read(self, rpc: Rpc, request: Request, data: bytes, limits: jsonrpc.Limits) -> Value:
        """What a request was answered with."""
        return self._json.read(request, _answered(V10, rpc.answer, data, limits))

    def read_item(self, data: bytes, limits: jsonrpc.Limits) -> Item:
        """One item of a stream."""
        return self._json.read_item(_answered(V10, "StreamResponse", data, limits))


# 0.3

_NAME: Final = re.compile(r"tasks?/(?P<task>.+?)(?:/pushNotificationConfigs(?:/(?P<id>.*))?)?")


def _named(name: str, path: str = "name") -> tuple[str, str | None]:
    """Task and configuration of a resource."""
    found = _NAME.fullmatch(name)
    if found is None:
        expected = "tasks/ID or tasks/ID/pushNotificationConfigs/ID"
        raise wrong([fault(path, f"must be {expected}, got {name[:100]!r}", expected, repr(name[:40]))])
    return found["task"], found["id"] or None


def _get_task(given: dict[str, Any]) -> Request:
    check_count(given.get("historyLength"), "historyLength")
    return GetTask(id=_named(given["name"])[0], history_length=given.get("historyLength") or None)


def _get_push(given: dict[str, Any]) -> Request:
    task, config = _named(given["name"])
    return GetPush(task_id=task, id=config)


def _delete_push(given: dict[str, Any]) -> Request:
    task, config = _named(given["name"])
    if config is None:
        raise wrong([fault("name", "names no configuration; say tasks/ID/pushNotificationConfigs/ID")])
    return DeletePush(task_id=task, id=config)


def _list_push(given: dict[str, Any]) -> Request:
    check_count(given.get("pageSize"), "pageSize")
    size, token = given.get("pageSize") or None, given.get("pageToken") or None
    return ListPush(task_id=_named(given["parent"], "parent")[0], page_size=size, page_token=token)


_THIRD: Final[dict[str, Callable[[dict[str, Any]], Request]]] = {
    "GetTask": _get_task,
    "CancelTask": lambda given: CancelTask(id=_named(given["name"])[0]),
    "TaskSubscription": lambda given: Subscribe(id=_named(given["name"])[0]),
    "GetTaskPushNotificationConfig": _get_push,
    "ListTaskPushNotificationConfig": _list_push,
    "DeleteTaskPushNotificationConfig": _delete_push,
    "GetAgentCard": lambda given: GetCard(),
}
_OF_JSON: Final = {
    name: Route("POST", "", operation)
    for name, operation in (
        ("SendMessage", "message/send"),
        ("SendStreamingMessage", "message/stream"),
        ("CreateTaskPushNotificationConfig", "tasks/pushNotificationConfig/set"),
    )
}
"""Calls whose request is read as the body of that generation's REST."""
_ASKED: Final[dict[type[Any], str]] = {
    GetTask: "GetTask",
    CancelTask: "CancelTask",
    Subscribe: "TaskSubscription",
    CreatePush: "CreateTaskPushNotificationConfig",
    GetPush: "GetTaskPushNotificationConfig",
    ListPush: "ListTaskPushNotificationConfig",
    DeletePush: "DeleteTaskPushNotificationConfig",
    GetCard: "GetAgentCard",
}


class Grpc03:
    """0.3: the messages of its REST, with names of resources where that has paths."""

    generation: Generation = "0.3"
    service: str = "a2a.v1.A2AService"
    rpcs: Mapping[str, Rpc] = _table(
        Rpc("SendMessage", "SendMessageRequest", "StreamResponse"),
        Rpc("SendStreamingMessage", "SendMessageRequest", "StreamResponse", streams=True),
        Rpc("GetTask", "GetTaskRequest", "Task"),
        Rpc("CancelTask", "Named", "Task"),
        Rpc("TaskSubscription", "Named", "StreamResponse", streams=True),
        Rpc(
            "CreateTaskPushNotificationConfig", "CreateTaskPushNotificationConfigRequest", "TaskPushNotificationConfig"
        ),
        Rpc("GetTaskPushNotificationConfig", "Named", "TaskPushNotificationConfig"),
        Rpc(
            "ListTaskPushNotificationConfig",
            "ListTaskPushNotificationConfigRequest",
            "ListTaskPushNotificationConfigResponse",
        ),
        Rpc("DeleteTaskPushNotificationConfig", "Named", "Empty"),
        Rpc("GetAgentCard", "Empty", "AgentCard"),
    )
    _json = Rest03()

    def request(self, rpc: Rpc, data: bytes, limits: jsonrpc.Limits) -> Request:
        """What is asked."""
        given = _decoded(V03, rpc.request, data, limits)
        if rpc.name in _THIRD:
            return _THIRD[rpc.name](given)
        values = {"taskId": _named(given["parent"], "parent")[0]} if "parent" in given else {}
        return self._json.request(_OF_JSON[rpc.name], values, {}, msgspec.json.encode(given))

    def result(self, rpc: Rpc, request: Request, value: Value) -> bytes:
        """The message of an answer."""
        if isinstance(value, dict):
            return V03.encode(rpc.answer, _old_card(value))
        return V03.encode(rpc.answer, msgspec.json.decode(self._json.result(request, value)))

    def item(self, item: Item, request: Request) -> bytes:
        """The message of one item of a stream."""
        return V03.encode("StreamResponse", msgspec.json.decode(self._json.item(item, request)))

    def ask(self, request: Request) -> tuple[Rpc, bytes]:
        """The call that a request makes."""
        if isinstance(request, Send):
            rpc = self.rpcs["SendStreamingMessage" if request.stream else "SendMessage"]
        else:
            rpc = self.rpcs.get(_ASKED.get(type(request), ""))  # type: ignore[assignment]
        if rpc is None:
            raise MethodNotFound(f"{type(request).__name__} is not in the gRPC binding of 0.3; ask over JSON-RPC")
        return rpc, V03.encode(rpc.request, self._asked(request))

    def _asked(self, request: Request) -> Mapping[str, Any]:
        match request:
            case Send() | CreatePush():
                body: Mapping[str, Any] = msgspec.json.decode(self._json.ask(request)[3] or b"{}")
                return body
            case GetTask():
                return {"name": f"tasks/{request.id}", "historyLength": request.history_length}
            case CancelTask() | Subscribe():
                return {"name": f"tasks/{request.id}"}
            case GetPush() | DeletePush():
                return {"name": f"tasks/{request.task_id}/pushNotificationConfigs/{request.id or ''}"}
            case ListPush():
                page = {"pageSize": request.page_size, "pageToken": request.page_token}
                return {"parent": f"tasks/{request.task_id}", **page}
            case _:
                return {}

    def read(self, rpc: Rpc, request: Request, data: bytes, limits: jsonrpc.Limits) -> Value:
        """What a request was answered with. A card is given as 0.3 writes it in JSON."""
        plain = _answered(V03, rpc.answer, data, limits)
        return _flat_card(plain) if isinstance(request, GetCard) else self._json.read(request, plain)

    def read_item(self, data: bytes, limits: jsonrpc.Limits) -> Item:
        """One item of a stream."""
        return self._json.read_item(_answered(V03, "StreamResponse", data, limits))


def _old_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """A card of 0.3 as its protobuf has it: schemes below their kind, and requirements below ``schemes``."""
    schemes = {name: cardwire.wrapped_scheme(one) for name, one in card.get("securitySchemes", {}).items()}
    skills = [{**one, "security": _wrapped(one.get("security", ()))} for one in card.get("skills", ())]
    return {**card, "securitySchemes": schemes, "security": _wrapped(card.get("security", ())), "skills": skills}


def _wrapped(security: Any) -> list[dict[str, Any]]:
    return [{"schemes": {name: {"list": scopes} for name, scopes in one.items()}} for one in security]


def _flat_card(card: Mapping[str, Any]) -> dict[str, Any]:
    schemes = {name: cardwire.flat_scheme(one) for name, one in card.get("securitySchemes", {}).items()}
    skills = [{**one, "security": _flat(one.get("security", ()))} for one in card.get("skills", ())]
    return {**card, "securitySchemes": schemes, "security": _flat(card.get("security", ())), "skills": skills}


def _flat(security: Any) -> list[dict[str, Any]]:
    return [{name: one.get("list", []) for name, one in entry.get("schemes", {}).items()} for entry in security]


GRPCS: Final[dict[Generation, GrpcCodec]] = {"1.0": Grpc10(), "0.3": Grpc03()}


# Errors: google.rpc.Status, which travels in the trailers

CODES: Final = {
    name: number
    for number, name in enumerate(
        "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED "
        "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS "
        "UNAUTHENTICATED".split()
    )
}
_TYPES: Final = "type.googleapis.com/google.rpc."
_BY_CODE: Final[dict[str, type[Agent3Error]]] = {
    "CANCELLED": Canceled,
    "INVALID_ARGUMENT": RequestError,
    "DEADLINE_EXCEEDED": CallTimeout,
    "PERMISSION_DENIED": TargetRefused,
    "UNAUTHENTICATED": TargetRefused,
    "RESOURCE_EXHAUSTED": Unavailable,
    "UNIMPLEMENTED": MethodNotFound,
    "UNAVAILABLE": Unavailable,
}


def write_status(problem: Agent3Error, generation: Generation, profile: Profile) -> tuple[str, str, bytes]:
    """The status of an error: its name, its text, and google.rpc.Status in bytes. 0.3 says its name in the text."""
    name = faults.grpc_status(problem, profile)
    text = problem.message[:_MOST]
    if generation != "1.0":
        text = f"{faults.of(type(problem)).name}: {text}"
    details = [_any(one) for one in faults.details(problem)]
    details[1:] = [one for one in details[1:] if len(one["value"]) <= _MOST]
    return name, text, STATUS.encode("Status", {"code": CODES[name], "message": text, "details": details})


def _any(detail: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(detail["@type"])
    return {"typeUrl": kind, "value": STATUS.encode(kind.removeprefix(_TYPES), detail)}


def read_status(code: str, text: str, details: bytes | None, limits: jsonrpc.Limits = jsonrpc.LIMITS) -> Agent3Error:
    """The error that an agent answered with: by its details, by its name in the text as in 0.3, or by its code."""
    info, violations = _details(details, limits)
    word, _, rest = text.partition(": ")
    reason = info.get("reason") or (faults.Fault(word, 0, 0, "").reason if word.endswith("Error") else "")
    if reason:
        made = faults.read_reason(str(reason), text if info else rest, info.get("metadata") or {})
        if isinstance(made, ValidationError):
            made.errors.extend(violations)
        if type(made) is not TargetError:
            return made
    kind = _BY_CODE.get(code, TargetError)
    return kind(text or f"The agent answered with {code}", data={"grpc_status": code})


def _details(data: bytes | None, limits: jsonrpc.Limits) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    info: Mapping[str, Any] = {}
    violations: list[dict[str, Any]] = []
    try:
        for one in _decoded(STATUS, "Status", data or b"", limits).get("details", ()):
            kind, value = one.get("typeUrl", "").removeprefix(_TYPES), base64.b64decode(one.get("value", ""))
            if kind == "ErrorInfo":
                info = _decoded(STATUS, kind, value, limits)
            elif kind == "BadRequest":
                named = _decoded(STATUS, kind, value, limits).get("fieldViolations", ())
                violations += [{"path": v.get("field", ""), "message": v.get("description", "")} for v in named]
    except (RequestError, TooLarge):
        return {}, []
    return info, violations
