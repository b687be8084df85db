"""What a generation can say, it says and understands: each value comes back as it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from agent3.errors import Agent3Error
from agent3.protocols.a2a.wire import CODECS, RESTS
from agent3.protocols.a2a.wire.types import (
    Artifact,
    ArtifactUpdate,
    CancelTask,
    CreatePush,
    Generation,
    GetPush,
    GetTask,
    Item,
    Message,
    Part,
    Push,
    Request,
    Send,
    State,
    Status,
    StatusUpdate,
    Subscribe,
    Task,
)
from tests.protocols.a2a.wire import making

FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
_SENT = Send(message=making.MESSAGE, task_alias="t1")


def _older(part: Part) -> Part:
    """Before 1.0 only files had names and media types."""
    return replace(part, filename=None, media_type=None) if part.text is not None or part.data is not UNSET else part


def _said(item: Any, generation: Generation, rest: bool = False) -> Any:
    """What is left of a value in a generation."""
    match item:
        case Part():
            return _older(item)
        case Message():
            parts = tuple(_said(part, generation) for part in item.parts)
            return replace(item, parts=parts, reference_task_ids=() if rest else item.reference_task_ids)
        case Artifact():
            return replace(item, parts=tuple(_said(part, generation) for part in item.parts))
        case Status():
            return replace(item, message=None if item.message is None else _said(item.message, generation, rest))
        case Task():
            return replace(
                item,
                status=_said(item.status, generation, rest),
                artifacts=tuple(_said(artifact, generation) for artifact in item.artifacts),
                history=tuple(_said(message, generation, rest) for message in item.history),
            )
        case StatusUpdate():
            return replace(item, status=_said(item.status, generation, rest))
        case ArtifactUpdate():
            return replace(item, artifact=_said(item.artifact, generation))
        case _:
            raise AssertionError(item)


@FEW
@given(making.items)
def test_1_0_says_everything(item: Item) -> None:
    codec = CODECS["1.0"]
    expected = replace(item, final=False) if isinstance(item, StatusUpdate) else item
    assert codec.read_item(codec.write_item(item, _SENT)) == expected
    assert codec.read_item(msgspec.json.decode(codec.write_item(item, _SENT))) == expected
    assert RESTS["1.0"].read_item(RESTS["1.0"].write_item(item, _SENT)) == expected


@FEW
@given(making.items)
def test_0_3_says_everything_but_media_types_of_texts(item: Item) -> None:
    codec = CODECS["0.3"]
    assert codec.read_item(codec.write_item(item, _SENT)) == _said(item, "0.3")


@FEW
@given(making.items)
def test_0_3_rest_says_everything_but_references(item: Item) -> None:
    codec = RESTS["0.3"]
    assert codec.read_item(codec.write_item(item, _SENT)) == _said(item, "0.3", rest=True)


@FEW
@given(making.tasks)
def test_0_1_says_what_a_task_is_and_made(task: Task) -> None:
    codec = CODECS["0.1"]
    back = codec.read_result(GetTask(id=task.id), codec.write_result(GetTask(id=task.id), task))
    assert isinstance(back, Task)
    assert (back.id, back.context_id, back.metadata) == (task.id, task.context_id, task.metadata)
    assert (back.status.state, back.status.timestamp) == (task.status.state, task.status.timestamp)
    assert [artifact.artifact_id for artifact in back.artifacts] == [str(n) for n in range(len(task.artifacts))]
    for mine, theirs in zip(task.artifacts, back.artifacts, strict=True):
        assert theirs.parts == tuple(map(_older, mine.parts))
        assert (theirs.name, theirs.description, theirs.metadata) == (mine.name, mine.description, mine.metadata)
    for said, heard in zip(task.history, back.history, strict=True):
        assert (heard.role, heard.parts, heard.metadata) == (said.role, tuple(map(_older, said.parts)), said.metadata)


@FEW
@given(making.sends)
def test_a_message_is_asked_and_understood_in_each_generation(send: Send) -> None:
    for generation in ("1.0", "0.3"):
        codec = CODECS[generation]
        expected = send if generation == "1.0" else replace(send, message=_said(send.message, "0.3"))
        assert codec.read_request(*codec.write_request(send)) == expected
    first = CODECS["0.1"].read_request(*CODECS["0.1"].write_request(replace(send, task_alias="mine")))
    assert isinstance(first, Send)
    assert (first.task_alias, first.stream, first.metadata) == ("mine", send.stream, send.metadata)
    assert first.message.parts == tuple(map(_older, send.message.parts))
    for rest in (RESTS["1.0"], RESTS["0.3"]):
        http, path, query, body = rest.write_request(send)
        route, values = rest.match(http, path)
        back = rest.read_request(route, values, query, body or b"")
        assert isinstance(back, Send)
        assert (back.stream, back.metadata, back.message.message_id) == (
            send.stream,
            send.metadata,
            send.message.message_id,
        )
        assert back.configuration.return_immediately == send.configuration.return_immediately
        assert back.configuration.push == send.configuration.push


@FEW
@given(making.pushes)
def test_a_push_configuration_survives_every_wire(push: Push) -> None:
    named = replace(push, task_id="t1", id="p1")
    asked = CreatePush(task_id="t1", config=named)
    for codec in CODECS.values():
        expected = replace(named, id=None) if codec.generation == "0.1" else named
        assert codec.read_request(*codec.write_request(asked)) == replace(asked, config=expected)
        assert codec.read_result(asked, codec.write_result(asked, named)) == expected
    for rest in RESTS.values():
        assert rest.read_result(asked, rest.write_result(asked, named)) == named
        http, path, query, body = rest.write_request(asked)
        assert rest.read_request(*rest.match(http, path), query, body or b"") == asked


REQUESTS: tuple[Request, ...] = (
    GetTask(id="t/ä 1", history_length=3),
    CancelTask(id="t1"),
    Subscribe(id="t1"),
    GetPush(task_id="t1", id="p1"),
)


@pytest.mark.parametrize("request_", REQUESTS)
def test_what_is_asked_is_understood(request_: Request) -> None:
    for codec in CODECS.values():
        expected = GetPush(task_id="t1") if codec.generation == "0.1" and isinstance(request_, GetPush) else request_
        assert codec.read_request(*codec.write_request(request_)) == expected
    for rest in RESTS.values():
        http, path, query, body = rest.write_request(request_)
        assert rest.read_request(*rest.match(http, path), query, body or b"") == request_


_WORDS = """message parts role messageId id status state kind text file data task url artifact content timestamp raw
bytes pushNotificationConfig configuration history""".split()
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=5),
    max_leaves=12,
)
_METHODS = ("SendMessage", "message/send", "tasks/send", "GetTask", "tasks/get", "tasks/pushNotificationConfig/set")


def _refusal(ask: Callable[..., Any], *args: Any) -> Agent3Error | None:
    try:
        ask(*args)
    except Agent3Error as wrong:
        return wrong
    return None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(_ANYTHING)
def test_no_nonsense_ends_in_anything_but_an_error_of_ours(value: Any) -> None:
    body = msgspec.json.encode(value)
    for codec in CODECS.values():
        for method in _METHODS:
            assert (_refusal(codec.read_request, method, value) is None) == (
                _refusal(codec.read_request, method, body) is None
            )
        for wrong in (_refusal(codec.read_item, value), _refusal(codec.read_result, _SENT, value)):
            assert wrong is None or wrong.code == "malformed_response"
        assert isinstance(codec.read_error(value), Agent3Error)
    for rest in RESTS.values():
        for route in rest.routes:
            wrong = _refusal(rest.read_request, route, {"id": "1", "taskId": "1"}, {"pageSize": str(value)[:20]}, body)
            assert wrong is None or rest.write_error(wrong)[0] == 400
        assert isinstance(rest.read_error(500, value), Agent3Error)


def test_states_that_0_1_has_no_word_for_come_back_between_two_of_us() -> None:
    codec = CODECS["0.1"]
    for state, word in ((State.REJECTED, "failed"), (State.AUTH_REQUIRED, "input-required")):
        task = Task(id="t", context_id="c", status=Status(state=state))
        written = codec.write_result(GetTask(id="t"), task)
        assert msgspec.json.decode(written)["status"]["state"] == word
        back = codec.read_result(GetTask(id="t"), written)
        assert isinstance(back, Task)
        assert back.status.state is state
