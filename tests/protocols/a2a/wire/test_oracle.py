"""What we write, the official SDK reads as what was meant, and the other way round; and 0.1 by its own rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as pb03
from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as types03
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.message import Message as Proto  # type: ignore[import-untyped, unused-ignore]
from msgspec.structs import replace
from pydantic import BaseModel

from agent3.protocols.a2a.wire import CODECS, RESTS
from agent3.protocols.a2a.wire.types import (
    CreatePush,
    GetTask,
    Item,
    ListTasks,
    Message,
    Part,
    PushPage,
    Send,
    State,
    Status,
    StatusUpdate,
    Task,
    TaskPage,
)
from tests.protocols.a2a.wire import making
from tests.protocols.a2a.wire.making import ITEMS, MESSAGE, PUSH, SEND, TASK

V10, V03, V01 = CODECS["1.0"], CODECS["0.3"], CODECS["0.1"]
ALIASED = Send(message=MESSAGE, task_alias="mine")


def read(data: bytes | Any, into: Proto) -> dict[str, Any]:
    """Through the SDK's protobuf and back; strictly, so that a name that it does not know is a failure."""
    plain = msgspec.json.decode(data) if isinstance(data, bytes) else data
    found: dict[str, Any] = MessageToDict(ParseDict(plain, into))
    return found


# 1.0


@pytest.mark.parametrize("item", ITEMS)
def test_items_of_1_0_go_through_the_official_protobuf_unchanged(item: Item) -> None:
    written = V10.write_item(item, SEND)
    assert V10.read_item(read(written, pb.StreamResponse())) == item
    assert RESTS["1.0"].write_item(item, SEND) == written


def test_a_request_of_1_0_goes_through_the_official_protobuf_unchanged() -> None:
    method, params = V10.write_request(SEND)
    assert V10.read_request(method, read(params, pb.SendMessageRequest())) == SEND


def test_other_answers_of_1_0_go_through_the_official_protobuf_unchanged() -> None:
    page = TaskPage(tasks=(TASK,), next_page_token="n", page_size=50, total_size=1)
    assert V10.read_result(ListTasks(), read(V10.write_result(ListTasks(), page), pb.ListTasksResponse())) == page
    asked = CreatePush(task_id="t1", config=PUSH)
    assert V10.read_result(asked, read(V10.write_result(asked, PUSH), pb.TaskPushNotificationConfig())) == PUSH
    pushes = PushPage(configs=(PUSH,))
    read(V10.write_result(asked, pushes), pb.ListTaskPushNotificationConfigsResponse())
    read(V10.write_request(asked)[1], pb.TaskPushNotificationConfig())
    listing = ListTasks(context_id="c", status=State.WORKING, page_size=3, history_length=0, include_artifacts=True)
    assert V10.read_request("ListTasks", read(V10.write_request(listing)[1], pb.ListTasksRequest())) == listing


@pytest.mark.parametrize("data", [None, 5, "text", [1, 2], {"a": None}])
def test_any_json_is_data_in_1_0(data: Any) -> None:
    message = Message(message_id="m", role=making.MESSAGE.role, parts=(Part(data=data),))
    assert V10.read_item(read(V10.write_item(message, SEND), pb.StreamResponse())) == message


# 0.3 on JSON-RPC

RESULTS03: dict[str, type[BaseModel]] = {
    "task": types03.Task,
    "message": types03.Message,
    "status-update": types03.TaskStatusUpdateEvent,
    "artifact-update": types03.TaskArtifactUpdateEvent,
}


@pytest.mark.parametrize("item", ITEMS)
def test_items_of_0_3_are_valid_by_the_official_types(item: Item) -> None:
    written = msgspec.json.decode(V03.write_item(item, SEND))
    model = RESULTS03[written["kind"]].model_validate(written)
    assert V03.read_item(model.model_dump(mode="json", by_alias=True, exclude_none=True)) == item


def test_a_task_means_the_same_to_the_official_conversion_from_0_3() -> None:
    model = types03.Task.model_validate_json(V03.write_result(GetTask(id="t1"), TASK))
    assert V10.read_item({"task": MessageToDict(conversions.to_core_task(model))}) == TASK


@pytest.mark.parametrize("data", [None, 5, "text", [1, 2]])
def test_data_that_is_no_object_is_wrapped_as_the_official_sdk_does(data: Any) -> None:
    message = Message(message_id="m", role=making.MESSAGE.role, parts=(Part(data=data, metadata={"k": 1}),))
    core = ParseDict(msgspec.json.decode(V10.write_item(message, SEND)), pb.StreamResponse()).message
    theirs = conversions.to_compat_message(core).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert V03.read_item(theirs) == message
    assert msgspec.json.decode(V03.write_item(message, SEND))["parts"] == theirs["parts"]


def test_requests_of_0_3_are_valid_by_the_official_types() -> None:
    method, params = V03.write_request(SEND)
    model = types03.MessageSendParams.model_validate(params)
    assert V03.read_request(method, model.model_dump(mode="json", by_alias=True, exclude_none=True)) == SEND
    asked = CreatePush(task_id="t1", config=PUSH)
    types03.TaskPushNotificationConfig.model_validate(V03.write_request(asked)[1])
    types03.TaskPushNotificationConfig.model_validate_json(V03.write_result(asked, PUSH))
    assert msgspec.json.decode(V03.write_result(asked, PushPage(configs=(PUSH,))))[0]["taskId"] == "t1"


# 0.3 on REST


@pytest.mark.parametrize("item", ITEMS)
def test_items_of_0_3_rest_go_through_its_protobuf_unchanged(item: Item) -> None:
    written = RESTS["0.3"].write_item(item, SEND)
    expected = replace(item, reference_task_ids=()) if isinstance(item, Message) else item
    if isinstance(item, Task):
        expected = replace(item, history=tuple(replace(message, reference_task_ids=()) for message in item.history))
    assert RESTS["0.3"].read_item(read(written, pb03.StreamResponse())) == expected


@pytest.mark.parametrize("proto_names", [True, False])
def test_requests_of_0_3_rest_are_read_in_both_spellings(proto_names: bool) -> None:
    rest = RESTS["0.3"]
    http, path, query, body = rest.write_request(SEND)
    proto = ParseDict(msgspec.json.decode(body or b""), pb03.SendMessageRequest())
    theirs = msgspec.json.encode(MessageToDict(proto, preserving_proto_field_name=proto_names))
    assert (b'"request"' in theirs) == proto_names
    back = rest.read_request(*rest.match(http, path), query, theirs)
    assert back == replace(SEND, message=replace(MESSAGE, reference_task_ids=()))


def test_push_configurations_of_0_3_rest_go_through_its_protobuf() -> None:
    rest = RESTS["0.3"]
    asked = CreatePush(task_id="t1", config=PUSH)
    http, path, query, body = rest.write_request(asked)
    proto = ParseDict(msgspec.json.decode(body or b""), pb03.CreateTaskPushNotificationConfigRequest())
    for names in (True, False):
        theirs = msgspec.json.encode(MessageToDict(proto, preserving_proto_field_name=names))
        assert rest.read_request(*rest.match(http, path), query, theirs) == asked
    assert rest.read_result(asked, read(rest.write_result(asked, PUSH), pb03.TaskPushNotificationConfig())) == PUSH


def test_a_canceled_task_has_two_l_in_0_3_rest_alone() -> None:
    task = Task(id="t", context_id="c", status=Status(state=State.CANCELED))
    asked = GetTask(id="t")
    assert b"TASK_STATE_CANCELLED" in RESTS["0.3"].write_result(asked, task)
    assert b"TASK_STATE_CANCELED" in RESTS["1.0"].write_result(asked, task)
    assert b'"canceled"' in V03.write_result(asked, task)
    assert RESTS["0.3"].read_result(asked, RESTS["0.3"].write_result(asked, task)) == task


# 0.1 has no SDK: what its schema requires, by hand

STATES01 = {"submitted", "working", "input-required", "completed", "canceled", "failed", "unknown"}


def check_part(part: dict[str, Any]) -> None:
    assert part["type"] in ("text", "file", "data")
    assert set(part) <= {"type", part["type"], "metadata"}
    if part["type"] == "file":
        assert set(part["file"]) <= {"name", "mimeType", "bytes", "uri"}
        assert ("bytes" in part["file"]) != ("uri" in part["file"])
    if part["type"] == "data":
        assert isinstance(part["data"], dict)


def check_message(message: dict[str, Any]) -> None:
    assert set(message) <= {"role", "parts", "metadata"}
    assert message["role"] in ("user", "agent")
    for part in message["parts"]:
        check_part(part)


def check_status(status: dict[str, Any]) -> None:
    assert set(status) <= {"state", "message", "timestamp"}
    assert status["state"] in STATES01
    if "message" in status:
        check_message(status["message"])


def check_artifact(artifact: dict[str, Any]) -> None:
    assert set(artifact) <= {"name", "description", "parts", "index", "append", "lastChunk", "metadata"}
    assert isinstance(artifact["index"], int)
    for part in artifact["parts"]:
        check_part(part)


@pytest.mark.requirement("SP-01")
@pytest.mark.parametrize("state", list(State))
def test_tasks_of_0_1_are_valid_by_its_schema(state: State) -> None:
    task = replace(TASK, status=Status(state=state, message=making.ANSWER, timestamp=making.TIME))
    written = msgspec.json.decode(V01.write_result(ALIASED, task))
    assert set(written) <= {"id", "sessionId", "status", "artifacts", "history", "metadata"}
    assert (written["id"], written["sessionId"]) == ("mine", "c1")
    check_status(written["status"])
    for artifact in written["artifacts"]:
        check_artifact(artifact)
    for message in written["history"]:
        check_message(message)


@pytest.mark.requirement("SP-04")
def test_events_of_0_1_name_the_task_as_the_client_did_and_number_artifacts_in_order() -> None:
    stream = V01.read_request(
        "tasks/sendSubscribe", {"id": "mine", "message": {"role": "user", "parts": [{"text": "go"}]}}
    )
    first, second = making.ARTIFACT, replace(making.ARTIFACT, artifact_id="other")
    update = making.ARTIFACT_UPDATE
    items: list[Item] = [
        Task(id="srv", context_id="c1", status=Status(state=State.SUBMITTED)),
        replace(update, task_id="srv", artifact=second, append=False, last_chunk=False),
        replace(update, task_id="srv", artifact=first, append=False),
        replace(update, task_id="srv", artifact=second),
        StatusUpdate(task_id="srv", context_id="c1", status=Status(state=State.COMPLETED), final=True),
    ]
    written = [msgspec.json.decode(V01.write_item(item, stream)) for item in items]
    assert {event["id"] for event in written} == {"mine"}
    assert [event["artifact"]["index"] for event in written if "artifact" in event] == [0, 1, 0]
    assert [event.get("final") for event in written] == [False, None, None, None, True]
    assert (written[3]["artifact"]["append"], written[3]["artifact"]["lastChunk"]) == (True, True)
    for event in written:
        check_artifact(event["artifact"]) if "artifact" in event else check_status(event["status"])


def test_a_resumed_stream_of_0_1_goes_on_numbering_where_the_task_stands() -> None:
    stream = V01.read_request("tasks/resubscribe", {"id": "mine"})
    task = replace(TASK, id="srv2", status=Status(state=State.WORKING))
    more = replace(making.ARTIFACT_UPDATE, task_id="srv2", artifact=replace(making.ARTIFACT, artifact_id="new"))
    assert [artifact["index"] for artifact in msgspec.json.decode(V01.write_item(task, stream))["artifacts"]] == [0]
    assert msgspec.json.decode(V01.write_item(more, stream))["artifact"]["index"] == 1


def test_a_plain_message_is_a_completed_task_in_0_1() -> None:
    written = msgspec.json.decode(V01.write_result(ALIASED, making.ANSWER))
    assert (written["id"], written["status"]["state"]) == ("mine", "completed")
    check_message(written["status"]["message"])
    event = msgspec.json.decode(V01.write_item(making.ANSWER, ALIASED))
    assert (event["id"], event["final"]) == ("mine", True)
