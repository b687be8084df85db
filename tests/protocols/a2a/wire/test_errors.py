"""Errors have the numbers of their generation and binding, and mean the same again when they are read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from a2a.client.transports.rest import _parse_rest_error
from a2a.utils import errors as official
from jsonrpc.jsonrpc2 import JSONRPC20Response  # type: ignore[import-untyped, unused-ignore]

from agent3 import errors
from agent3.errors import (
    AccessError,
    Agent3Error,
    AgentNotFound,
    CallTimeout,
    CircuitOpen,
    JobNotFound,
    MalformedResponse,
    MethodNotFound,
    ParseError,
    RateLimited,
    RequestError,
    TargetError,
    TargetRefused,
    Unauthenticated,
    Unavailable,
    ValidationError,
)
from agent3.protocols.a2a.wire import CODECS, RESTS, rest_codecs
from agent3.protocols.a2a.wire import errors as wire_errors
from agent3.protocols.a2a.wire.errors import (
    ContentTypeNotSupported,
    ExtendedCardNotConfigured,
    ExtensionRequired,
    InvalidTaskState,
    PushNotSupported,
    StreamingNotSupported,
    TaskNotCancelable,
    UnsupportedOperation,
    VersionNotSupported,
)

# Error, code in 0.1, in 0.3, in 1.0, HTTP and gRPC of 1.0.1, and the same of 1.0.0
TABLE = [
    (JobNotFound, -32001, -32001, -32001, 404, "NOT_FOUND", 404, "NOT_FOUND"),
    (TaskNotCancelable, -32002, -32002, -32002, 400, "FAILED_PRECONDITION", 409, "FAILED_PRECONDITION"),
    (PushNotSupported, -32003, -32003, -32003, 400, "FAILED_PRECONDITION", 400, "UNIMPLEMENTED"),
    (UnsupportedOperation, -32004, -32004, -32004, 400, "FAILED_PRECONDITION", 400, "UNIMPLEMENTED"),
    (InvalidTaskState, -32009, -32004, -32004, 400, "FAILED_PRECONDITION", 400, "UNIMPLEMENTED"),
    (StreamingNotSupported, -32006, -32004, -32004, 400, "FAILED_PRECONDITION", 400, "UNIMPLEMENTED"),
    (ContentTypeNotSupported, -32005, -32005, -32005, 400, "INVALID_ARGUMENT", 415, "INVALID_ARGUMENT"),
    (MalformedResponse, -32603, -32006, -32006, 500, "INTERNAL", 502, "INTERNAL"),
    (ExtendedCardNotConfigured, -32004, -32007, -32007, 400, "FAILED_PRECONDITION", 400, "FAILED_PRECONDITION"),
    (ExtensionRequired, -32004, -32008, -32008, 400, "FAILED_PRECONDITION", 400, "FAILED_PRECONDITION"),
    (VersionNotSupported, -32600, -32009, -32009, 400, "FAILED_PRECONDITION", 400, "UNIMPLEMENTED"),
    (ParseError, -32700, -32700, -32700, 400, "INVALID_ARGUMENT", 400, "INVALID_ARGUMENT"),
    (RequestError, -32600, -32600, -32600, 400, "INVALID_ARGUMENT", 400, "INVALID_ARGUMENT"),
    (MethodNotFound, -32601, -32601, -32601, 404, "UNIMPLEMENTED", 404, "UNIMPLEMENTED"),
    (ValidationError, -32602, -32602, -32602, 400, "INVALID_ARGUMENT", 400, "INVALID_ARGUMENT"),
    (AgentNotFound, -32602, -32602, -32602, 404, "NOT_FOUND", 404, "NOT_FOUND"),
    (Unauthenticated, -32007, -32050, -32050, 401, "UNAUTHENTICATED", 401, "UNAUTHENTICATED"),
    (AccessError, -32008, -32051, -32051, 403, "PERMISSION_DENIED", 403, "PERMISSION_DENIED"),
    (RateLimited, -32010, -32052, -32052, 429, "RESOURCE_EXHAUSTED", 429, "RESOURCE_EXHAUSTED"),
    (Unavailable, -32011, -32053, -32053, 503, "UNAVAILABLE", 503, "UNAVAILABLE"),
    (CircuitOpen, -32011, -32053, -32053, 503, "UNAVAILABLE", 503, "UNAVAILABLE"),
    (Agent3Error, -32603, -32603, -32603, 500, "INTERNAL", 500, "INTERNAL"),
]


@pytest.mark.requirement("SP-15")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0].__name__)
def test_each_error_has_its_numbers(row: tuple[Any, ...]) -> None:
    kind, first, third, current, http, grpc, old_http, old_grpc = row
    wrong = kind("It went wrong.")
    for generation, code in (("0.1", first), ("0.3", third), ("1.0", current)):
        error = CODECS[generation].write_error(wrong)  # type: ignore[index]
        assert (error["code"], error["message"]) == (code, "It went wrong.")
        assert isinstance(error["data"], list if generation == "1.0" else dict)
    assert (wire_errors.http_status(wrong), wire_errors.grpc_status(wrong)) == (http, grpc)
    assert (wire_errors.http_status(wrong, "1.0.0"), wire_errors.grpc_status(wrong, "1.0.0")) == (old_http, old_grpc)
    status, body = RESTS["1.0"].write_error(wrong)
    assert (status, body["error"]["code"], body["error"]["status"]) == (http, http, grpc)
    assert rest_codecs("1.0.0")["1.0"].write_error(wrong)[0] == old_http


def test_every_error_of_ours_has_a_row() -> None:
    for kind in errors.family():
        assert wire_errors.row_of(kind).code < 0


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0].__name__)
def test_the_official_sdk_reads_the_same_error_from_1_0(row: tuple[Any, ...]) -> None:
    kind, code = row[0], row[3]
    theirs = {number: error for error, number in official.JSON_RPC_ERROR_CODE_MAP.items()}
    if code not in theirs or code == -32603:
        return
    error = CODECS["1.0"].write_error(kind("no"))
    JSONRPC20Response(error=error, _id=1)
    read = _parse_rest_error(RESTS["1.0"].write_error(kind("no"))[1], "")
    if not wire_errors.row_of(kind).ours and code != -32700:
        assert type(read) is theirs[code]


@pytest.mark.parametrize("generation", ["0.1", "0.3", "1.0"])
def test_what_was_written_is_read_as_the_same(generation: Any) -> None:
    codec = CODECS[generation]
    said = {"0.1": {ExtendedCardNotConfigured, ExtensionRequired, VersionNotSupported, MalformedResponse}}
    less = said.get(generation, {InvalidTaskState, StreamingNotSupported})
    ours = {
        Unauthenticated: TargetRefused,
        AccessError: TargetRefused,
        Agent3Error: TargetError,
    }
    for kind, *_ in TABLE:
        if kind in less or kind in (AgentNotFound, CircuitOpen):
            continue
        wrong = kind("It went wrong.", retry_after=2.5)
        back = codec.read_error(msgspec.json.decode(msgspec.json.encode(codec.write_error(wrong))))
        assert type(back) is ours.get(kind, kind)
        assert (back.message, back.retry_after) == ("It went wrong.", 2.5)


def test_the_same_number_is_another_error_in_another_generation() -> None:
    error = {"code": -32007, "message": "no"}
    assert type(CODECS["0.1"].read_error(error)) is TargetRefused
    assert type(CODECS["0.3"].read_error(error)) is ExtendedCardNotConfigured
    assert type(CODECS["0.1"].read_error({"code": -32006, "message": "no"})) is StreamingNotSupported
    assert type(CODECS["1.0"].read_error({"code": -32006, "message": "no"})) is MalformedResponse


def test_wrong_fields_are_listed_as_violations_and_read_again() -> None:
    with pytest.raises(ValidationError) as caught:
        CODECS["1.0"].read_request("SendMessage", {"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}})
    error = CODECS["1.0"].write_error(caught.value)
    info, bad = error["data"]
    assert info["reason"] == "INVALID_PARAMS"
    assert all(isinstance(value, str) for value in info["metadata"].values())
    assert [entry["field"] for entry in bad["fieldViolations"]] == ["message.parts"]
    back = CODECS["1.0"].read_error(error)
    assert isinstance(back, ValidationError)
    assert back.errors[0]["path"] == "message.parts"


@pytest.mark.parametrize("generation", ["0.3", "1.0"])
def test_rest_errors_are_read_as_the_same(generation: Any) -> None:
    rest = RESTS[generation]
    for kind in (
        JobNotFound,
        TaskNotCancelable,
        PushNotSupported,
        ContentTypeNotSupported,
        VersionNotSupported,
        CallTimeout,
    ):
        status, body = rest.write_error(kind("no"))
        assert type(rest.read_error(status, msgspec.json.decode(msgspec.json.encode(body)))) is kind


def test_an_http_error_without_a_body_of_ours_is_read_by_its_status() -> None:
    rest = RESTS["1.0"]
    assert type(rest.read_error(404, "<html>")) is MethodNotFound
    assert type(rest.read_error(401, None)) is TargetRefused
    assert type(rest.read_error(503, {})) is Unavailable
    assert type(rest.read_error(418, {"error": "tea"})) is TargetError


@pytest.mark.parametrize(
    "error", [None, 5, {}, {"code": "x"}, {"code": 1, "message": 5, "data": {"retryAfter": "soon"}}]
)
def test_an_error_that_is_none_is_one_too(error: Any) -> None:
    for codec in CODECS.values():
        assert isinstance(codec.read_error(error), TargetError)
