"""What a server's result becomes: nothing is said twice."""

from __future__ import annotations

from typing import Any

import pytest

from agent3.model import ANONYMOUS, Call, Done, Failed, Part, Usage, value_of
from agent3.protocols.mcp.client.answers import content_to_parts, result_to_outcome, unwrap_result


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
    assert value_of(content_to_parts({"content": content, "structuredContent": structured}, "it")) == value


@pytest.mark.parametrize("said", ["4", "about 3", "[3]"])
def test_a_text_that_says_something_else_stays(said: str) -> None:
    found = content_to_parts({"content": [text(said)], "structuredContent": {"result": 3}}, "it")
    assert found == (Part(text=said), Part(data={"result": 3}))


@pytest.mark.requirement("AC-19")
@pytest.mark.parametrize("wrong", [False, True])
def test_what_a_server_says_that_a_call_cost_is_taken_over(wrong: bool) -> None:
    call = Call(id="1", principal=ANONYMOUS, agent="a", capability="c")
    result = {"content": [text("fine")], "isError": wrong, "_meta": {"cost": 0.25, "usage": {"totalTokens": 9}}}
    outcome = result_to_outcome(result, call)
    assert isinstance(outcome, Failed if wrong else Done)
    assert outcome.usage == Usage(9, 0.25)
    assert result_to_outcome({"content": []}, call) == Done()


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
