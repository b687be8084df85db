"""What a server's result becomes: nothing is said twice."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from agent3.model import ANONYMOUS, Call, Done, Failed, Part, Usage, value_of
from agent3.protocols.mcp.client.answers import content_to_parts, request_to_question, result_to_outcome, unwrap_result
from agent3.protocols.mcp.door.questions import to_request
from agent3.protocols.mcp.door.results import to_tool_result
from agent3.protocols.mcp.meta_keys import PASSED

CALL = Call(id="1", principal=ANONYMOUS, agent="a", capability="c")
CALL_OF_A_CLIENT = Call(id="1", principal=ANONYMOUS, agent="a", capability="c", meta={PASSED: {"can": ()}})


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("content", "structured", "value"),
    [
        ([text("3")], {"result": 3}, {"result": 3}),
        ([text("HELLO")], {"result": "HELLO"}, {"result": "HELLO"}),
        ([text('"3"')], {"result": "3"}, {"result": "3"}),
        ([text("true")], {"result": True}, {"result": True}),
        ([text('{"a": 1}')], {"a": 1}, {"a": 1}),
        ([text("1"), text("2")], {"result": [1, 2]}, {"result": [1, 2]}),
        ([text("a"), text('{"b": 2}')], {"result": ["a", {"b": 2}]}, {"result": ["a", {"b": 2}]}),
        ([text("hello there")], {"content": "hello there"}, {"content": "hello there"}),
        ([text("hello")], {"content": "hello", "size": 5}, {"content": "hello", "size": 5}),
        ([], {"result": []}, {"result": []}),
        ([text("3")], None, "3"),
    ],
)
def test_a_text_that_repeats_the_structured_content_is_left_out(content: Any, structured: Any, value: Any) -> None:
    assert value_of(content_to_parts({"content": content, "structuredContent": structured})) == value


@pytest.mark.parametrize("said", ["4", "about 3", "[3]"])
def test_a_text_that_says_something_else_stays(said: str) -> None:
    found = content_to_parts({"content": [text(said)], "structuredContent": {"result": 3}})
    assert found == (Part(text=said), Part(data={"result": 3}))


@pytest.mark.requirement("AC-19")
@pytest.mark.parametrize("wrong", [False, True])
def test_what_a_server_says_that_a_call_cost_is_taken_over(wrong: bool) -> None:
    result = {"content": [text("fine")], "isError": wrong, "_meta": {"cost": 0.25, "usage": {"totalTokens": 9}}}
    outcome = result_to_outcome(result, CALL)
    assert isinstance(outcome, Failed if wrong else Done)
    assert outcome.usage == Usage(9, 0.25)
    assert result_to_outcome({"content": []}, CALL) == Done()


@pytest.mark.parametrize(
    ("structured", "text", "schema", "value"),
    [
        ({"result": 5}, "5", {"type": "integer"}, 5),
        ({"result": 5}, "5", {"type": "object"}, {"result": 5}),
        ({"result": "hi"}, "hi", None, "hi"),
        ({"result": 5}, '{"result": 5}', None, {"result": 5}),
        ({"result": 5, "more": 1}, "5", {"type": "integer"}, {"result": 5, "more": 1}),
    ],
)
def test_a_value_that_the_handshake_era_wraps_is_taken_out(structured: Any, text: str, schema: Any, value: Any) -> None:
    result = {"content": [{"type": "text", "text": text}], "structuredContent": structured}
    assert unwrap_result(result, schema)["structuredContent"] == value


PNG = base64.b64encode(b"\x89PNG" + bytes(80)).decode()
RAW = base64.b64decode(PNG)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ()),
        ("just words", (Part(text="just words"),)),
        (text("one block"), (Part(text="one block"),)),
        (["a", 5], (Part(text="a"), Part(text="5"))),
        ([{**text("x"), "annotations": None, "_meta": None}], (Part(text="x"),)),
        ([{"type": "text", "text": None}, {"type": "text", "text": 42}], (Part(text=""), Part(text="42"))),
        (
            [text("paid"), {"type": "hologram", "data": 1}],
            (Part(text="paid"), Part(text='{"type":"hologram","data":1}')),
        ),
        (
            [{"type": "image", "data": "!?", "mimeType": "image/png"}],
            (Part(text='{"type":"image","data":"!?","mimeType":"image/png"}'),),
        ),
        *(
            ([{"type": "image", "data": data, "mimeType": "image/png"}], (Part(raw=RAW, media_type="image/png"),))
            for data in (
                f"{PNG[:76]}\n{PNG[76:]}\n",
                f"data:image/png;base64,{PNG}",
                PNG.rstrip("="),
                base64.urlsafe_b64encode(RAW).decode(),
            )
        ),
    ],
)
def test_what_a_server_writes_oddly_is_read_and_what_cannot_be_read_is_shown(content: Any, parts: Any) -> None:
    assert content_to_parts({"content": content}) == parts
    passed = result_to_outcome({"content": content}, CALL_OF_A_CLIENT)
    assert isinstance(passed, Done)
    assert passed.parts == parts


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (
            {"type": "resource_link", "uri": "https://e.com/x", "name": None, "mimeType": None},
            {"type": "resource_link", "uri": "https://e.com/x", "name": "https://e.com/x"},
        ),
        (
            {"type": "resource", "resource": {"uri": "x://a", "text": "inner", "blob": None, "mimeType": None}},
            {"type": "resource", "resource": {"uri": "x://a", "text": "inner"}},
        ),
        (
            {"type": "resource", "resource": {"uri": "x://a", "text": None, "blob": PNG}},
            {"type": "resource", "resource": {"uri": "x://a", "blob": PNG}},
        ),
        ({**text("x"), "annotations": {"audience": "user", "priority": 9}}, text("x")),
    ],
)
def test_a_client_gets_what_the_protocol_allows_of_an_odd_block(version: str, block: Any, shown: Any) -> None:
    passed, own = (result_to_outcome({"content": [block]}, call) for call in (CALL_OF_A_CLIENT, CALL))
    assert isinstance(passed, Done)
    assert isinstance(own, Done)
    (found,) = to_tool_result(passed, version).content
    assert found.model_dump(mode="json", by_alias=True, exclude_none=True) == shown
    assert len(to_tool_result(own, version).content) == 1


def test_a_page_keeps_the_servers_own_id_by_which_its_end_is_told() -> None:
    params = {"mode": "url", "message": "Sign in", "url": "https://example.com/in", "elicitationId": "own-7"}
    request = {"method": "elicitation/create", "params": params}

    def asked(meta: dict[str, Any]) -> Any:
        call = Call(id="c", principal=ANONYMOUS, agent="a", capability="b", meta=meta)
        return to_request(request_to_question("q1", request, call)).params

    assert asked({PASSED: {"can": ["url"]}}).elicitation_id == "own-7"
    assert asked({}).elicitation_id == "q1", "who hears nothing of the server itself has the id of the question"
