"""A2A over gRPC: requests and answers of 1.0 and 0.3 as protobuf, and errors as Google's status with its details.

Everything but the bytes is done by the JSON codecs of the same generation. 0.3 names resources instead of ids.
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from agent3 import card_formats, jsonrpc
from agent3.errors import (
    Agent3Error,
    CallTimeout,
    Canceled,
    MalformedResponse,
    MethodNotFound,
    RateLimited,
    RequestError,
    TargetError,
    TargetRefused,
    TooLarge,
    Unavailable,
    ValidationError,
)
from agent3.protocols.a2a.grpc.protobuf import ERROR_DETAILS, V03, V10, Schema
from agent3.protocols.a2a.wire import CODECS, Value, errors
from agent3.protocols.a2a.wire.decoding import check_count, fault, invalid
from agent3.protocols.a2a.wire.errors import Profile
from agent3.protocols.a2a.wire.operations import METHODS, Operation
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


class Rpc(NamedTuple):
    """A call: its operation, and the messages of its request and answer."""

    name: str
    operation: Operation
    request: str
    answer: str

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream."""
        return self.operation.streaming or self.operation.request is Subscribe


# The messages of each call's request and answer. DeleteTaskPushNotificationConfigRequest has the fields of Get….
_CALLS_10: Final = """
SendMessage                       SendMessageRequest                      StreamResponse
SendStreamingMessage              SendMessageRequest                      StreamResponse
GetTask                           GetTaskRequest                          Task
ListTasks                         ListTasksRequest                        ListTasksResponse
CancelTask                        CancelTaskRequest                       Task
SubscribeToTask                   SubscribeToTaskRequest                  StreamResponse
CreateTaskPushNotificationConfig  TaskPushNotificationConfig              TaskPushNotificationConfig
GetTaskPushNotificationConfig     GetTaskPushNotificationConfigRequest    TaskPushNotificationConfig
ListTaskPushNotificationConfigs   ListTaskPushNotificationConfigsRequest  ListTaskPushNotificationConfigsResponse
DeleteTaskPushNotificationConfig  GetTaskPushNotificationConfigRequest    Empty
GetExtendedAgentCard              GetExtendedAgentCardRequest             AgentCard
"""
_CALLS_03: Final = """
SendMessage                       SendMessageRequest                       StreamResponse
SendStreamingMessage              SendMessageRequest                       StreamResponse
GetTask                           GetTaskRequest                           Task
CancelTask                        Named                                    Task
TaskSubscription                  Named                                    StreamResponse
CreateTaskPushNotificationConfig  CreateTaskPushNotificationConfigRequest  TaskPushNotificationConfig
GetTaskPushNotificationConfig     Named                                    TaskPushNotificationConfig
ListTaskPushNotificationConfig    ListTaskPushNotificationConfigRequest    ListTaskPushNotificationConfigResponse
DeleteTaskPushNotificationConfig  Named                                    Empty
GetAgentCard                      Empty                                    AgentCard
"""
_RENAMED_03: Final = {
    "TaskSubscription": "SubscribeToTask",
    "ListTaskPushNotificationConfig": "ListTaskPushNotificationConfigs",
    "GetAgentCard": "GetExtendedAgentCard",
}
"""What 1.0 calls the calls of 0.3 that have another name there."""


def _rpcs(table: str) -> dict[str, Rpc]:
    rows = (line.split() for line in table.strip().splitlines())
    return {
        name: Rpc(name, METHODS["1.0"][_RENAMED_03.get(name, name)], request, answer) for name, request, answer in rows
    }


class GrpcCodec(ABC):
    """A generation on gRPC."""

    generation: Generation
    service: str
    rpcs: Mapping[str, Rpc]
    _schema: Schema

    @abstractmethod
    def read_request(self, rpc: Rpc, data: bytes, limits: jsonrpc.Limits) -> Request:
        """The request of a call. RequestError, ValidationError, TooLarge."""

    @abstractmethod
    def write_result(self, rpc: Rpc, request: Request, value: Value) -> bytes:
        """The message of an answer."""

    @abstractmethod
    def write_item(self, item: Item, request: Request) -> bytes:
        """The message of one item of a stream."""

    @abstractmethod
    def write_request(self, request: Request) -> tuple[Rpc, bytes]:
        """The call of a request. MethodNotFound for a request that gRPC does not have."""

    @abstractmethod
    def read_result(self, rpc: Rpc, request: Request, data: bytes, limits: jsonrpc.Limits) -> Value:
        """The answer to a request. MalformedResponse."""

    @abstractmethod
    def read_item(self, data: bytes, limits: jsonrpc.Limits) -> Item:
        """One item of a stream. MalformedResponse."""

    def _rpc_of(self, request: Request) -> Rpc:
        operation = (type(request), getattr(request, "stream", False))
        rpc = next((rpc for rpc in self.rpcs.values() if rpc.operation == operation), None)
        if rpc is None:
            name = type(request).__name__
            raise MethodNotFound(f"{name} is not in the gRPC binding of A2A {self.generation}. Use JSON-RPC.")
        return rpc

    def _decode(self, message: str, data: bytes, limits: jsonrpc.Limits) -> dict[str, Any]:
        return self._schema.decode(message, data, depth=limits.depth, nodes=limits.nodes)

    def _decode_answer(self, message: str, data: bytes, limits: jsonrpc.Limits) -> dict[str, Any]:
        try:
            return self._decode(message, data, limits)
        except RequestError as error:
            raise MalformedResponse(f"The agent's answer violates the protocol: {error.message}") from None


class Grpc10(GrpcCodec):
    """1.0: calls are named as on JSON-RPC, and messages have the members of its JSON."""

    generation: Generation = "1.0"
    service = "lf.a2a.v1.A2AService"
    rpcs = _rpcs(_CALLS_10)
    _schema = V10
    _json = CODECS["1.0"]

    def read_request(self, rpc: Rpc, data: bytes, limits: jsonrpc.Limits) -> Request:
        given = self._decode(rpc.request, data, limits)
        if not given.get("tenant"):
            given.pop("tenant", None)  # some clients write the empty text
        return self._json.read_request(rpc.name, given)

    def write_result(self, rpc: Rpc, request: Request, value: Value) -> bytes:
        return V10.encode(rpc.answer, msgspec.json.decode(self._json.write_result(request, value)))

    def write_item(self, item: Item, request: Request) -> bytes:
        return V10.encode("StreamResponse", msgspec.json.decode(self._json.write_item(item, request)))

    def write_request(self, request: Request) -> tuple[Rpc, bytes]:
        rpc = self._rpc_of(request)
        return rpc, V10.encode(rpc.request, self._json.write_request(request)[1])

    def read_result(self, rpc: Rpc, request: Request, data: bytes, limits: jsonrpc.Limits) -> Value:
        return self._json.read_result(request, self._decode_answer(rpc.answer, data, limits))

    def read_item(self, data: bytes, limits: jsonrpc.Limits) -> Item:
        return self._json.read_item(self._decode_answer("StreamResponse", data, limits))


# 0.3

_RESOURCE: Final = re.compile(r"tasks?/(?P<task>.+?)(?:/pushNotificationConfigs(?:/(?P<id>.*))?)?")
"""The name of a task or of a push configuration."""


class Grpc03(GrpcCodec):
    """0.3: the messages of its REST binding, with names of resources where that has paths."""

    generation: Generation = "0.3"
    service = "a2a.v1.A2AService"
    rpcs = _rpcs(_CALLS_03)
    _schema = V03
    _json = Rest03()

    def read_request(self, rpc: Rpc, data: bytes, limits: jsonrpc.Limits) -> Request:
        given = self._decode(rpc.request, data, limits)
        kind = rpc.operation.request
        if kind is Send or kind is GetCard:
            return self._json.read_call(rpc.operation, {}, {}, given)
        path = "parent" if "parent" in given else "name"
        named = _RESOURCE.fullmatch(given[path])
        if named is None:
            expected, name = "tasks/ID or tasks/ID/pushNotificationConfigs/ID", given[path][:100]
            raise invalid([fault(path, f"must be {expected}, got {name!r}", expected, repr(name[:40]))])
        task, config = named["task"], named["id"] or None
        if kind is GetPush:
            return GetPush(task_id=task, id=config)
        if kind is ListPush:
            check_count(given.get("pageSize"), "pageSize")
            size, token = given.get("pageSize") or None, given.get("pageToken") or None
            return ListPush(task_id=task, page_size=size, page_token=token)
        if kind is DeletePush:
            if config is None:
                raise invalid([fault("name", "must name a configuration, as in tasks/ID/pushNotificationConfigs/ID")])
            return DeletePush(task_id=task, id=config)
        values = {"taskId": task} if kind is CreatePush else {"id": task}
        # Protobuf does not write 0, so it is no length.
        query = {"historyLength": given["historyLength"]} if given.get("historyLength") else {}
        return self._json.read_call(rpc.operation, values, query, given)

    def write_result(self, rpc: Rpc, request: Request, value: Value) -> bytes:
        written = _wrap_card(value) if isinstance(value, dict) else self._json.plain_value(request, value)
        return V03.encode(rpc.answer, written)

    def write_item(self, item: Item, request: Request) -> bytes:
        return V03.encode("StreamResponse", self._json.plain_item(item))

    def write_request(self, request: Request) -> tuple[Rpc, bytes]:
        rpc = self._rpc_of(request)
        message: Mapping[str, Any]
        match request:
            case Send() | CreatePush():
                message = self._json.plain_body(request) or {}
            case GetTask():
                message = {"name": f"tasks/{request.id}", "historyLength": request.history_length}
            case CancelTask() | Subscribe():
                message = {"name": f"tasks/{request.id}"}
            case GetPush() | DeletePush():
                message = {"name": f"tasks/{request.task_id}/pushNotificationConfigs/{request.id or ''}"}
            case ListPush():
                page = {"pageSize": request.page_size, "pageToken": request.page_token}
                message = {"parent": f"tasks/{request.task_id}", **page}
            case _:
                message = {}
        return rpc, V03.encode(rpc.request, message)

    def read_result(self, rpc: Rpc, request: Request, data: bytes, limits: jsonrpc.Limits) -> Value:
        """The answer to a request. A card comes back as 0.3 writes it in JSON."""
        plain = self._decode_answer(rpc.answer, data, limits)
        return _unwrap_card(plain) if isinstance(request, GetCard) else self._json.read_result(request, plain)

    def read_item(self, data: bytes, limits: jsonrpc.Limits) -> Item:
        return self._json.read_item(self._decode_answer("StreamResponse", data, limits))


def _wrap_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """A card of 0.3 as its protobuf has it: schemes below their kind, and requirements below ``schemes``."""

    def wrap(security: Any) -> list[dict[str, Any]]:
        return [{"schemes": {name: {"list": scopes} for name, scopes in entry.items()}} for entry in security]

    schemes = {name: card_formats.wrap_scheme(scheme) for name, scheme in card.get("securitySchemes", {}).items()}
    skills = [{**skill, "security": wrap(skill.get("security", ()))} for skill in card.get("skills", ())]
    return {**card, "securitySchemes": schemes, "security": wrap(card.get("security", ())), "skills": skills}


def _unwrap_card(card: Mapping[str, Any]) -> dict[str, Any]:
    def unwrap(security: Any) -> list[dict[str, Any]]:
        return [{n: scopes.get("list", []) for n, scopes in entry.get("schemes", {}).items()} for entry in security]

    schemes = {name: card_formats.flatten_scheme(scheme) for name, scheme in card.get("securitySchemes", {}).items()}
    skills = [{**skill, "security": unwrap(skill.get("security", ()))} for skill in card.get("skills", ())]
    return {**card, "securitySchemes": schemes, "security": unwrap(card.get("security", ())), "skills": skills}


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
_MOST: Final = 1_024
"""Characters of an error's text, and bytes of a list of invalid fields: all of it must fit into headers."""
_TYPES: Final = "type.googleapis.com/google.rpc."
_BY_CODE: Final[dict[str, type[Agent3Error]]] = {
    "CANCELLED": Canceled,
    "INVALID_ARGUMENT": RequestError,
    "DEADLINE_EXCEEDED": CallTimeout,
    "PERMISSION_DENIED": TargetRefused,
    "UNAUTHENTICATED": TargetRefused,
    "RESOURCE_EXHAUSTED": RateLimited,
    "UNIMPLEMENTED": MethodNotFound,
    "UNAVAILABLE": Unavailable,
}


def write_status(error: Agent3Error, generation: Generation, profile: Profile) -> tuple[str, str, bytes]:
    """The status of an error: its code, its text, which in 0.3 names the error, and google.rpc.Status in bytes."""
    name = errors.grpc_status(error, profile)
    text = error.message[:_MOST]
    if generation != "1.0":
        text = f"{errors.row_of(type(error)).name}: {text}"
    details: list[dict[str, Any]] = []
    for detail in errors.details_of(error):
        kind = str(detail["@type"])
        value = ERROR_DETAILS.encode(kind.removeprefix(_TYPES), detail)
        if not details or len(value) <= _MOST:  # the ErrorInfo, which comes first, is always sent
            details.append({"typeUrl": kind, "value": value})
    return name, text, ERROR_DETAILS.encode("Status", {"code": CODES[name], "message": text, "details": details})


def read_status(code: str, text: str, details: bytes | None, limits: jsonrpc.Limits = jsonrpc.LIMITS) -> Agent3Error:
    """The error that an agent answered with: by its details, by its name in the text as in 0.3, or by its code."""
    info: Mapping[str, Any] = {}
    violations: list[dict[str, Any]] = []
    pause: float | None = None
    bounds = {"depth": limits.depth, "nodes": limits.nodes}
    try:
        for detail in ERROR_DETAILS.decode("Status", details or b"", **bounds).get("details", ()):
            kind, value = detail.get("typeUrl", "").removeprefix(_TYPES), base64.b64decode(detail.get("value", ""))
            if kind == "ErrorInfo":
                info = ERROR_DETAILS.decode(kind, value, **bounds)
            elif kind == "BadRequest":
                fields = ERROR_DETAILS.decode(kind, value, **bounds).get("fieldViolations", ())
                violations += [{"path": f.get("field", ""), "message": f.get("description", "")} for f in fields]
            elif kind == "RetryInfo":
                delay = ERROR_DETAILS.decode(kind, value, **bounds).get("retryDelay") or {}
                pause = max(0.0, float(delay.get("seconds", 0)) + float(delay.get("nanos", 0)) / 1e9)
    except (RequestError, TooLarge):
        info, violations, pause = {}, [], None  # details that cannot be read are as good as none
    name, _, rest = text.partition(": ")
    reason = info.get("reason") or (errors.reason_of(name) if name.endswith("Error") else "")
    if reason:
        made = errors.read_reason(str(reason), text if info else rest, info.get("metadata") or {})
        if isinstance(made, ValidationError):
            made.errors.extend(violations)
        made.retry_after = pause if made.retry_after is None else made.retry_after
        if type(made) is not TargetError:
            return made
    by_code = _BY_CODE.get(code, TargetError)
    if by_code is RateLimited and "larger than max" in text:
        by_code = TooLarge  # gRPC has one code for both
    words = text or f"The agent reports an error (gRPC status {code})"
    return by_code(words, data={"grpc_status": code}, retry_after=pause)
