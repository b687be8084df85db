"""The documented data classes, with the fields that the requirement documents use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import ValidationError

from agent3 import schema
from agent3.definitions import (
    A2AMessage,
    ActionType,
    AgentCapability,
    AgentCard,
    ExtractField,
    MessageType,
    NLWebAction,
    NLWebInterface,
    ToolDefinition,
    ToolParameter,
)
from agent3.errors import ValidationError as Refused

# Tools


def test_a_tool_becomes_a_schema() -> None:
    tool = ToolDefinition(
        name="search",
        description="Search flights",
        parameters=[
            ToolParameter(name="destination", type="string", required=True, description="Where to"),
            ToolParameter(name="class", type="string", enum=["a", "b"], default="a"),
            ToolParameter(name="days", type="array", items={"type": "integer"}),
            ToolParameter(name="odd", type="money"),
        ],
    )
    definition = tool.to_schema()
    assert definition["required"] == ["destination"]
    assert definition["properties"]["class"] == {"type": "string", "enum": ["a", "b"], "default": "a"}
    assert definition["properties"]["odd"] == {}, "a type that JSON Schema does not know is left open"
    compiled = schema.compile(definition)
    compiled.check({"destination": "Rome", "days": [1], "odd": object.__name__})
    with pytest.raises(Exception, match=r"^Missing required parameter: destination$"):
        compiled.check({})
    assert ToolDefinition(name="own", input_schema={"type": "object"}).to_schema() == {"type": "object"}
    assert ToolDefinition.model_validate_json(tool.model_dump_json()) == tool


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "has space"},
        {"name": "x" * 129},
        {"name": "a", "unknown": 1},
        {"name": "a", "timeout": 0},
        {"name": "a", "cost": -1},
        {"name": "a", "parameters": [{"name": "x"}, {"name": "x"}]},
        {"name": "a", "parameters": [{"name": ""}]},
        {"name": "a", "version": ""},
        {"name": "a", "version": "1 beta"},
        {"name": "a", "version": "a@b"},
        {"name": "a", "cache_ttl": 60},
    ],
)
def test_a_bad_tool_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ToolDefinition(**bad)


@pytest.mark.parametrize(
    ("given", "meant"), [("strng", "string"), ("int", "integer"), ("float", "number"), ("list", "array")]
)
def test_a_misspelt_type_is_refused_with_the_one_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(ValidationError, match=f"'{given}' is not a JSON type; did you mean '{meant}'"):
        ToolParameter(name="a", type=given)


@pytest.mark.parametrize("own", ["date", "money", "any", "file", "uri"])
def test_a_type_of_ones_own_is_taken(own: str) -> None:
    assert ToolParameter(name="a", type=own).to_schema() == {}


def test_a_double_parameter_is_named() -> None:
    with pytest.raises(ValidationError, match="'x' is defined twice"):
        ToolDefinition(name="a", parameters=[ToolParameter(name="x"), ToolParameter(name="x")])


# Messages


def a_message(**more: Any) -> A2AMessage:
    return A2AMessage(**{"from_agent": "a", "to_agent": "b", "message_type": MessageType.REQUEST, **more})


def test_a_message_has_an_id_and_a_naive_local_time_of_its_own() -> None:
    first, second = a_message(), a_message()
    assert first.message_id != second.message_id
    assert first.timestamp.tzinfo is None
    assert timedelta(0) <= datetime.now() - first.timestamp < timedelta(seconds=60)


@given(some.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)), some.dictionaries(some.text(), some.integers()))
def test_a_message_survives_json(moment: datetime, content: dict[str, Any]) -> None:
    message = a_message(timestamp=moment, expires_at=moment, content=content, priority=5)
    assert A2AMessage.model_validate_json(message.model_dump_json()) == message


def test_time_carries_its_offset_on_the_wire_and_comes_back_local() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=9)))
    message = a_message(timestamp=moment)
    assert message.timestamp == moment.astimezone().replace(tzinfo=None)
    wire = datetime.fromisoformat(message.model_dump(mode="json")["timestamp"])
    assert wire.tzinfo is not None
    assert wire.astimezone(UTC) == moment.astimezone(UTC)
    assert a_message().model_dump(mode="json")["expires_at"] is None


def test_a_reply_goes_back_and_is_correlated() -> None:
    message = a_message(context_id="c", task_id="t", capability="x", priority=3, traceparent="tp")
    reply = message.reply({"ok": True})
    assert (reply.from_agent, reply.to_agent, reply.correlation_id) == ("b", "a", message.message_id)
    assert (reply.context_id, reply.task_id, reply.priority, reply.message_type) == ("c", "t", 3, "response")
    assert reply.message_id != message.message_id
    assert message.reply({}, MessageType.ERROR).message_type is MessageType.ERROR


@pytest.mark.parametrize(
    "bad", [{"priority": 101}, {"message_type": "shout"}, {"from_agent": ""}, {"surprise": 1}, {"message_id": ""}]
)
def test_a_bad_message_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        a_message(**bad)


# Cards


def test_a_card_reads_the_documents_and_the_protocols() -> None:
    ours = AgentCard(agent_id="a1", name="Agent", capabilities=[AgentCapability(name="book", description="Books")])
    assert ours.capability("book") is not None
    theirs = AgentCard.model_validate(
        {
            "name": "Their Agent",
            "protocolVersion": "0.3.0",
            "capabilities": {"streaming": True, "pushNotifications": True},
            "skills": [{"id": "s1", "name": "Book", "inputModes": ["text/plain"]}],
            "supportedInterfaces": [{"url": "https://example.com", "protocolBinding": "JSONRPC"}],
            "defaultInputModes": ["application/json"],
        }
    )
    assert theirs.agent_id == "their-agent"
    assert theirs.features.streaming
    assert theirs.capability("s1") is theirs.capability("Book") is theirs.capabilities[0]
    assert theirs.capability("nothing") is None
    assert theirs.interfaces[0].url == "https://example.com"
    assert AgentCard.model_validate_json(theirs.model_dump_json()) == theirs
    assert AgentCard.model_validate_json(theirs.model_dump_json(by_alias=True)) == theirs


def test_a_capability_states_its_input_in_any_way() -> None:
    assert AgentCapability(name="a").to_schema() == {"type": "object"}
    assert AgentCapability(name="a", input_schema={"type": "array"}).to_schema() == {"type": "array"}
    listed = AgentCapability(name="a", parameters=[ToolParameter(name="x", required=True)])
    assert listed.to_schema()["required"] == ["x"]


# Websites


def test_steps_that_cannot_work_are_refused_where_they_are_written() -> None:
    alone = ("navigate", "extract", "wait", "scroll", "press", "screenshot", "dialog", "back", "close", "tool")
    for kind in ActionType:
        if kind in alone:
            NLWebAction(action_type=kind, value="https://example.com")
        else:
            needs = "steps" if kind in ("if", "repeat") else "a selector"
            with pytest.raises(ValidationError, match=f"a {kind.value} step needs {needs}"):
                NLWebAction(action_type=kind)
    with pytest.raises(ValidationError, match="needs a value"):
        NLWebAction(action_type=ActionType.NAVIGATE)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"action_type": "if", "steps": [{"action_type": "back"}]}, "needs when"),
        ({"action_type": "fill", "selector": "form"}, "needs fields"),
        ({"action_type": "click", "selector": "a", "until": {"text": "x"}}, "until is only for repeat and wait steps"),
        (
            {"action_type": "click", "selector": "a", "steps": [{"action_type": "back"}]},
            "steps is only for if and repeat",
        ),
        ({"action_type": "type", "selector": "a", "next": ".next"}, "next is only for extract steps"),
        ({"action_type": "wait", "until": {}}, "must say what to check"),
        ({"action_type": "wait", "until": {"at_least": 2}}, "must say what to check"),
        ({"action_type": "wait", "until": {"count": "li"}}, "at_least or at_most"),
        ({"action_type": "wait", "until": {"variable": "x"}}, "needs equals"),
        ({"action_type": "repeat", "steps": [{"action_type": "back"}], "times": 0}, "greater than or equal to 1"),
        ({"action_type": "back", "save_as": "not a name"}, "match pattern"),
    ],
)
def test_what_a_kind_of_step_cannot_use_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NLWebAction.model_validate(fields)


@pytest.mark.requirement("RF-013-41")
def test_a_fault_of_an_interface_names_its_step() -> None:
    steps = [
        {"action_type": "navigate", "value": "/"},
        {"action_type": "if", "when": {"visible": "#a"}, "steps": [{"action_type": "back"}, {"action_type": "type"}]},
        {"action_type": "clik", "selector": "#a"},
    ]
    document = {"interface_id": "a", "name": "A", "base_url": "https://a.example", "actions": {"search": steps}}
    with pytest.raises(Refused) as caught:
        NLWebInterface.from_document(document)
    assert "step 2.2 of 'search': a type step needs a selector" in caught.value.message
    assert "step 3 of 'search' (action_type): it must be" in caught.value.message
    assert [one["path"] for one in caught.value.errors] == ["actions/search/1/steps/1", "actions/search/2/action_type"]
    with pytest.raises(Refused, match=r"base_url: base_url 'ftp://x' must start"):
        NLWebInterface.from_document({**document, "actions": {}, "base_url": "ftp://x"})


def test_an_action_without_end_is_refused() -> None:
    deep = NLWebAction(action_type=ActionType.BACK)
    for _ in range(6):
        deep = NLWebAction(action_type=ActionType.REPEAT, steps=[deep])
    for steps in ([deep], [NLWebAction(action_type=ActionType.BACK)] * 501):
        with pytest.raises(ValidationError, match="at most 500, 6 deep"):
            NLWebInterface(interface_id="a", name="A", base_url="https://a.example", actions={"x": steps})


def test_an_interface_survives_json_and_knows_its_actions() -> None:
    fields: dict[str, str | ExtractField] = {"name": ".name", "price": ExtractField(selector=".price", type="price")}
    interface = NLWebInterface(
        interface_id="airline",
        name="Airline",
        base_url="https://airline.com",
        actions={"search": [NLWebAction(action_type=ActionType.EXTRACT, selector=".card", extract_schema=fields)]},
    )
    assert NLWebInterface.model_validate_json(interface.model_dump_json()) == interface
    with pytest.raises(ValidationError, match="must start with"):
        NLWebInterface(interface_id="x", name="X", base_url="ftp://airline.com")
    with pytest.raises(ValidationError, match="'pay'"):
        NLWebInterface.model_validate({**interface.model_dump(), "info": {"pay": {}}})
