"""What strangers send: taken where the documents are loose, and refused in words where they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent3.errors import MalformedResponse, MethodNotAllowed, MethodNotFound, ParseError, ValidationError
from agent3.protocols.a2a.wire import CODECS, RESTS
from agent3.protocols.a2a.wire.types import (
    GetTask,
    ListTasks,
    Part,
    Role,
    Search,
    Send,
    State,
    Status,
    StatusUpdate,
    Subscribe,
    Task,
    TaskPage,
)

FIXTURES = Path(__file__).parent / "fixtures"
TEXT = {"text": "hi"}


def message(**more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [TEXT], **more}}


def older(**more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}], **more}}


def sent(generation: Any, method: str, params: Any) -> Send:
    request = CODECS[generation].read_request(method, params)
    assert isinstance(request, Send)
    return request


def paths(wrong: ValidationError) -> list[str]:
    return [entry["path"] for entry in wrong.errors]


# What is printed in the documents


@pytest.mark.requirement("SL-14")
def test_the_message_of_the_slides_is_understood_as_it_stands() -> None:
    printed = json.loads((FIXTURES / "slides_listing_2.txt").read_text())
    found = sent("0.3", "message/send", {"message": printed}).message
    assert (found.message_id, found.role, found.context_id) == ("msg-123", Role.USER, "ctx-789")
    data = {"budget": 3000, "preferences": ["museos", "comida local"]}
    assert found.parts == (
        Part(text="Planifica un viaje a Tokio en octubre."),
        Part(data=data, media_type="application/json"),
    )


@pytest.mark.requirement("SP-15")
def test_wrong_params_are_the_error_that_the_study_plan_prints() -> None:
    printed = (FIXTURES / "study_plan_error.txt").read_text()
    with pytest.raises(ValidationError) as caught:
        CODECS["0.1"].read_request("tasks/send", {"id": "1"})
    error = CODECS["0.1"].write_error(caught.value)
    assert f'"code": {error["code"]},' in printed
    assert isinstance(error["message"], str)
    assert isinstance(error["data"], dict)
    assert all(f'"{member}"' in printed for member in error)


# Loose where the documents are


@pytest.mark.parametrize(
    "part",
    [
        {"kind": "text", "text": "hi"},
        {"type": "text", "text": "hi"},
        {"text": "hi"},
        {"kind": "TextPart", "text": "hi", "unknown": 1},
        {"kind": "text", "text": "hi", "file": None, "metadata": None},
    ],
)
def test_the_tag_of_a_part_may_be_missing_or_of_another_generation(part: dict[str, Any]) -> None:
    assert sent("0.3", "message/send", older(parts=[part])).message.parts == (Part(text="hi"),)
    assert sent("0.1", "tasks/send", {"id": "t", "message": {"role": "user", "parts": [part]}}).message.parts == (
        Part(text="hi"),
    )


@pytest.mark.parametrize(("text", "content"), [("-_8", b"\xfb\xff"), ("+/8=", b"\xfb\xff"), ("", b"")])
def test_base64_is_read_in_both_alphabets(text: str, content: bytes) -> None:
    assert sent("1.0", "SendMessage", message(parts=[{"raw": text}])).message.parts[0].raw == content
    file = {"kind": "file", "file": {"bytes": text}}
    assert sent("0.3", "message/send", older(parts=[file])).message.parts[0].raw == content


def test_null_is_as_good_as_nothing_but_in_data() -> None:
    params = message(contextId=None, extensions=None, parts=[{"data": {"a": None}, "text": None}])
    found = sent("1.0", "SendMessage", params | {"configuration": None, "metadata": None})
    assert found.message.parts == (Part(data={"a": None}),)
    assert found.message.extensions == ()


def test_names_of_1_0_may_be_spelt_as_in_protobuf_but_nothing_deeper() -> None:
    push = {"task_id": "t1", "id": "c1", "url": "https://example.com/"}
    asked = CODECS["1.0"].read_request("CreateTaskPushNotificationConfig", json.dumps(push).encode())
    assert asked.task_id == "t1"  # type: ignore[union-attr]
    said = {"message_id": "m", "role": "ROLE_USER", "parts": [{"data": {"a_b": 1}, "media_type": "x/y"}]}
    body = json.dumps({"message": said, "metadata": {"c_d": 2}}).encode()
    sent = CODECS["1.0"].read_request("SendMessage", body)
    assert isinstance(sent, Send)
    assert sent.message.parts == (Part(data={"a_b": 1}, media_type="x/y"),)
    assert sent.metadata == {"c_d": 2}
    route, values = RESTS["1.0"].match("GET", "/tasks")
    assert RESTS["1.0"].read_request(route, values, {"page_size": "7"}, b"") == ListTasks(page_size=7)


def test_a_message_of_0_1_gets_an_id_that_a_retry_gets_too() -> None:
    def asked(text: str, task: str = "t") -> str:
        params = {"id": task, "sessionId": "s", "message": {"role": "user", "parts": [{"type": "text", "text": text}]}}
        found = sent("0.1", "tasks/send", params)
        assert (found.task_alias, found.message.context_id, found.configuration.history_length) == (task, "s", 0)
        return found.message.message_id

    assert asked("one") == asked("one") != asked("two")
    assert asked("one") != asked("one", task="u")


def test_blocking_is_the_default_and_each_generation_has_its_word_for_the_contrary() -> None:
    assert not sent("1.0", "SendMessage", message()).configuration.return_immediately
    assert sent(
        "1.0", "SendMessage", message() | {"configuration": {"returnImmediately": True}}
    ).configuration.return_immediately
    assert not sent("0.3", "message/send", older() | {"configuration": {}}).configuration.return_immediately
    assert sent(
        "0.3", "message/send", older() | {"configuration": {"blocking": False}}
    ).configuration.return_immediately


def test_what_is_ours_alone_is_not_taken_from_the_wire() -> None:
    params = message() | {"stream": True, "taskAlias": "x"}
    found = sent("1.0", "SendMessage", params)
    assert (found.stream, found.task_alias) == (False, None)
    assert CODECS["1.0"].read_request("SubscribeToTask", {"id": "t", "after": 5}) == Subscribe(id="t")
    assert sent("1.0", "SendStreamingMessage", msgspec.json.encode(params)).stream


def test_times_are_made_alike() -> None:
    for given in ("2025-10-28T10:30:00Z", "2025-10-28T12:30:00.000+02:00", "2025-10-28T10:30:00.000123"):
        asked = CODECS["1.0"].read_request("ListTasks", {"statusTimestampAfter": given})
        assert asked == ListTasks(status_timestamp_after="2025-10-28T10:30:00.000Z")
    task = {"id": "t", "status": {"state": "working", "timestamp": "2025-10-28T12:30:00+02:00"}}
    read = CODECS["0.3"].read_result(GetTask(id="t"), task)
    assert isinstance(read, Task)
    assert read.status.timestamp == "2025-10-28T10:30:00.000Z"


def test_lists_and_searches_are_asked_in_the_words_of_each_generation() -> None:
    assert CODECS["0.3"].read_request("tasks/list", {"status": "auth-required"}) == ListTasks(
        status=State.AUTH_REQUIRED
    )
    for generation in ("0.1", "0.3", "1.0"):
        assert CODECS[generation].read_request("tasks/search", {"query": "tea"}) == Search(query="tea")


# Refused in words


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({}, "message"),
        (message(role="ROLE_BOSS"), "message.role"),
        (message(role="user"), "message.role"),
        (message(messageId=""), "message.messageId"),
        (message(messageId=5), "message.messageId"),
        (message(parts=[]), "message.parts"),
        (message(parts=[TEXT, {}]), "message.parts[1]"),
        (message(parts=[{"text": "a", "url": "b"}]), "message.parts[0]"),
        (message(parts=[{"text": 5}]), "message.parts[0].text"),
        (message(parts=[{"raw": "%%%"}]), "message.parts[0].raw"),
        (message(parts="hi"), "message.parts"),
        (message(metadata=[1]), "message.metadata"),
        (message() | {"configuration": {"historyLength": -1}}, "configuration.historyLength"),
        (message() | {"configuration": {"historyLength": 10**30}}, "configuration.historyLength"),
        (message() | {"configuration": {"historyLength": "3"}}, "configuration.historyLength"),
        (
            message() | {"configuration": {"taskPushNotificationConfig": {"url": ""}}},
            "configuration.taskPushNotificationConfig.url",
        ),
    ],
)
def test_each_fault_of_a_message_of_1_0_has_its_path(params: Any, path: str) -> None:
    for given in (params, msgspec.json.encode(params)):
        with pytest.raises(ValidationError) as caught:
            CODECS["1.0"].read_request("SendMessage", given)
        assert paths(caught.value) == [path]
        assert path in caught.value.message


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ({"kind": "text"}, "message.parts[0]"),
        ({"kind": "text", "data": {}}, "message.parts[0]"),
        ({"kind": "text", "text": "a", "data": {}}, "message.parts[0]"),
        ({"kind": "video", "text": "a"}, "message.parts[0].kind"),
        ({"kind": "file", "file": {}}, "message.parts[0].file"),
        ({"kind": "file", "file": {"bytes": "aaaa", "uri": "x"}}, "message.parts[0].file"),
        ({"kind": "file", "file": {"bytes": "*"}}, "message.parts[0].file.bytes"),
        (7, "message.parts[0]"),
    ],
)
def test_each_fault_of_a_part_of_0_3_has_its_path(part: Any, path: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CODECS["0.3"].read_request("message/send", older(parts=[part]))
    assert paths(caught.value) == [path]


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        CODECS["1.0"].read_request("SendMessage", message(messageId=1, role="x", parts=[{"text": 1}, TEXT, {"url": 2}]))
    assert set(paths(caught.value)) == {
        "message.messageId", "message.role", "message.parts[0].text", "message.parts[2].url"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("generation", "method", "params", "path"),
    [
        ("0.3", "message/send", older(messageId=""), "message.messageId"),
        ("0.3", "message/send", older(role="boss"), "message.role"),
        ("0.3", "tasks/get", {"id": ""}, "id"),
        ("0.3", "tasks/get", {"id": "t", "historyLength": -5}, "historyLength"),
        ("0.3", "tasks/pushNotificationConfig/delete", {"id": "t"}, "pushNotificationConfigId"),
        ("0.3", "tasks/pushNotificationConfig/set", {"taskId": "t"}, "pushNotificationConfig"),
        ("0.1", "tasks/send", {"id": "", "message": {"role": "user", "parts": [TEXT]}}, "id"),
        ("0.1", "tasks/get", {}, "id"),
        ("1.0", "ListTasks", {"pageSize": 150}, "pageSize"),
        ("1.0", "ListTasks", {"pageSize": 0}, "pageSize"),
        ("1.0", "ListTasks", {"status": "TASK_STATE_RUNNING"}, "status"),
        ("1.0", "ListTasks", {"statusTimestampAfter": "yesterday"}, "statusTimestampAfter"),
        ("1.0", "GetTaskPushNotificationConfig", {"taskId": "t"}, "id"),
        ("1.0", "tasks/search", {"query": ""}, "query"),
    ],
)
def test_other_requests_are_checked_too(generation: Any, method: str, params: Any, path: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CODECS[generation].read_request(method, params)
    assert paths(caught.value) == [path]


def test_params_that_are_no_object_or_no_json_are_refused() -> None:
    for codec, method in (
        (CODECS["1.0"], "SendMessage"),
        (CODECS["0.3"], "message/send"),
        (CODECS["0.1"], "tasks/send"),
    ):
        with pytest.raises(ValidationError):
            codec.read_request(method, [1])
        with pytest.raises(ParseError):
            codec.read_request(method, b'{"message":')
        with pytest.raises(MethodNotFound, match="no method"):
            codec.read_request("message/sing", {})


@pytest.mark.parametrize("generation", ["0.1", "0.3", "1.0"])
@pytest.mark.parametrize(
    "result", [None, 5, [], {}, {"task": {"id": 1}}, {"kind": "poem"}, {"id": "t", "status": "done"}]
)
def test_an_answer_that_is_none_is_named_as_malformed(generation: Any, result: Any) -> None:
    codec = CODECS[generation]
    for read in (codec.read_item, lambda value: codec.read_result(GetTask(id="t"), value)):
        with pytest.raises(MalformedResponse, match="violates the protocol"):
            read(result)


def test_an_answer_of_1_0_without_its_wrapper_is_understood() -> None:
    task = {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}
    read = CODECS["1.0"].read_result(sent("1.0", "SendMessage", message()), task)
    assert isinstance(read, Task)
    assert (read.id, read.context_id) == ("t", "")


def test_an_agent_may_leave_out_what_is_empty() -> None:
    codec = CODECS["1.0"]
    assert codec.read_result(ListTasks(), {}) == TaskPage()
    assert codec.write_result(ListTasks(), TaskPage()) == b'{"tasks":[],"nextPageToken":"","pageSize":0,"totalSize":0}'
    update = {"taskId": "t", "status": {"state": "TASK_STATE_WORKING"}}
    assert codec.read_item({"statusUpdate": update}) == StatusUpdate(task_id="t", status=Status(state=State.WORKING))


# Paths


@pytest.mark.parametrize(
    ("http", "path", "operation", "values"),
    [
        ("POST", "/message:send", "SendMessage", {}),
        ("POST", "/acme/message:stream", "SendStreamingMessage", {"tenant": "acme"}),
        ("GET", "/tasks/a%2Fb", "GetTask", {"id": "a/b"}),
        ("GET", "/tasks", "ListTasks", {}),
        ("GET", "/acme/tasks", "ListTasks", {"tenant": "acme"}),
        ("GET", "/tasks/tasks", "GetTask", {"id": "tasks"}),
        ("POST", "/tasks/1:cancel", "CancelTask", {"id": "1"}),
        ("GET", "/tasks/1:subscribe", "SubscribeToTask", {"id": "1"}),
        ("POST", "/t/tasks/1:subscribe", "SubscribeToTask", {"id": "1", "tenant": "t"}),
        (
            "DELETE",
            "/tasks/1/pushNotificationConfigs/2",
            "DeleteTaskPushNotificationConfig",
            {"taskId": "1", "id": "2"},
        ),
    ],
)
def test_paths_of_1_0(http: str, path: str, operation: str, values: dict[str, str]) -> None:
    found = RESTS["1.0"].match(http, path)
    assert (found.route.method, found.values) == (operation, values)


def test_a_wrong_path_and_a_wrong_method_are_told_apart() -> None:
    for rest in RESTS.values():
        with pytest.raises(MethodNotFound):
            rest.match("GET", "/nothing/here/at/all")
    with pytest.raises(MethodNotAllowed) as caught:
        RESTS["1.0"].match("GET", "/tasks/1:cancel")
    assert caught.value.data["allow"] == "POST"
    with pytest.raises(MethodNotAllowed):
        RESTS["0.3"].match("DELETE", "/v1/tasks")


def test_a_query_has_texts_for_numbers_and_truths() -> None:
    rest = RESTS["1.0"]
    query = {"pageSize": "3", "includeArtifacts": "true", "status": "TASK_STATE_WORKING", "historyLength": "0"}
    found = rest.read_request(*rest.match("GET", "/acme/tasks"), query, b"")
    assert found == ListTasks(
        tenant="acme", page_size=3, include_artifacts=True, status=State.WORKING, history_length=0
    )
    for wrong, path in (
        ({"pageSize": "many"}, "pageSize"),
        ({"pageSize": "101"}, "pageSize"),
        ({"status": "x"}, "status"),
    ):
        with pytest.raises(ValidationError) as caught:
            rest.read_request(*rest.match("GET", "/tasks"), wrong, b"")
        assert paths(caught.value) == [path]


def test_the_path_outweighs_the_body() -> None:
    rest = RESTS["1.0"]
    found = rest.read_request(
        *rest.match("POST", "/a/message:send"), {}, msgspec.json.encode(message() | {"tenant": "b"})
    )
    assert isinstance(found, Send)
    assert found.tenant == "a"
    body = msgspec.json.encode({"taskId": "2", "url": "https://x.example"})
    push = rest.read_request(*rest.match("POST", "/tasks/1/pushNotificationConfigs"), {}, body)
    assert push.task_id == "1"  # type: ignore[union-attr]


def test_a_configuration_of_0_3_rest_without_blocking_does_not_block() -> None:
    rest = RESTS["0.3"]
    route = rest.match("POST", "/v1/message:send")
    words = {"message": {"messageId": "m", "role": "ROLE_USER", "content": [TEXT]}}
    assert not rest.read_request(*route, {}, msgspec.json.encode(words)).configuration.return_immediately  # type: ignore[union-attr]
    more = msgspec.json.encode(words | {"configuration": {"accepted_output_modes": ["text"]}})
    found = rest.read_request(*route, {}, more)
    assert isinstance(found, Send)
    assert found.configuration.return_immediately
    assert found.configuration.accepted_output_modes == ("text",)


def test_each_form_of_a_push_configuration_of_0_3_rest_is_taken() -> None:
    rest = RESTS["0.3"]
    route = rest.match("POST", "/v1/tasks/t/pushNotificationConfigs")
    flat: dict[str, Any] = {"url": "https://x.example", "id": "p"}
    for body in (
        flat,
        {"pushNotificationConfig": flat},
        {"config": {"push_notification_config": flat}, "config_id": "p"},
        {"configId": "p", "config": {"pushNotificationConfig": {"url": "https://x.example"}}},
    ):
        found = rest.read_request(*route, {}, msgspec.json.encode(body))
        assert (found.task_id, found.config.url, found.config.id) == ("t", "https://x.example", "p")  # type: ignore[union-attr]
