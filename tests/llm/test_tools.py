"""Names and schemas as vendors take them."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent3.errors import Conflict, SetupError
from agent3.llm import Assistant, Tool, ToolCall
from agent3.llm.tools import Names, encode_parameters, shorten


def schema_of(given: dict[str, Any], **options: Any) -> dict[str, Any]:
    return encode_parameters(Tool("t", input_schema=given), **options)


# --- names ------------------------------------------------------------------------------------------------------------


@given(st.sets(st.text(max_size=200), max_size=30))
@settings(max_examples=200, deadline=None)
def test_every_name_fits_is_unique_and_comes_back(names: set[str]) -> None:
    spelled = Names(names)
    wire = {spelled.wire(name) for name in names}
    assert len(wire) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", one) for one in wire)
    assert {spelled.real(one) for one in wire} == names


def test_a_name_that_fits_is_itself_and_any_other_is_the_same_in_every_request() -> None:
    assert Names(["get_weather"]).wire("get_weather") == "get_weather"
    alone, among = Names(["a.b"]), Names(["a.b", "a_b", "a/b", "z" * 99])
    assert alone.wire("a.b") == among.wire("a.b")
    assert alone.wire("a.b").startswith("a_b_")


def test_names_that_begin_alike_stay_apart() -> None:
    long = ["x" * 100 + "1", "x" * 100 + "2"]
    names = Names(long)
    assert names.wire(long[0]) != names.wire(long[1])


def test_a_name_that_looks_like_anothers_spelling_takes_nothing_from_it() -> None:
    taken = Names(["a.b"]).wire("a.b")
    names = Names(["a.b", taken])
    assert names.wire(taken) == taken
    assert names.real(taken) == taken
    assert names.wire("a.b") != taken
    assert names.real(names.wire("a.b")) == "a.b"


def test_a_name_of_the_conversation_is_spelled_though_its_tool_is_gone() -> None:
    names = Names.of([], [Assistant(calls=(ToolCall("1", "gone.tool"),))])
    assert names.real(names.wire("gone.tool")) == "gone.tool"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(Conflict, match="'same'"):
        Names.of([Tool("same"), Tool("same")])


def test_a_text_is_cut_at_a_word() -> None:
    assert shorten("short", 10) == "short"
    assert shorten("word " * 30, 22) == "word word word word…"
    assert len(shorten("x" * 99, 20)) == 20


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_references_are_written_out() -> None:
    made = schema_of(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "from": {"$ref": "#/$defs/place", "description": "Where it begins"},
                "to": {"$ref": "#/$defs/place"},
                "odd": {"$ref": "#/$defs/a~1b%20c"},
            },
            "$defs": {"place": {"type": "string", "description": "A city"}, "a/b c": {"type": "integer"}},
        }
    )
    assert made["properties"] == {
        "from": {"type": "string", "description": "Where it begins"},
        "to": {"type": "string", "description": "A city"},
        "odd": {"type": "integer"},
    }
    assert "$" not in json.dumps(made)


def test_what_contains_itself_is_cut_with_a_note() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    made = json.dumps(schema_of(tree))
    assert "$ref" not in made
    assert made.count('"children"') == 3
    assert "not repeated here" in made


def test_a_schema_that_doubles_at_every_level_stays_small() -> None:
    levels = {
        f"l{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/l{n + 1}"} for side in "ab"}}
        for n in range(40)
    }
    made = schema_of({"type": "object", "properties": {"top": {"$ref": "#/$defs/l0"}}, "$defs": levels})
    assert len(json.dumps(made)) < 2_000_000


@pytest.mark.parametrize("ref", ["https://example.org/x.json", "#/$defs/none", "#anchor"])
def test_what_cannot_be_looked_up_permits_anything_and_says_so(ref: str) -> None:
    made = schema_of({"type": "object", "properties": {"x": {"$ref": ref}}})
    assert made["properties"]["x"] == {"description": "Its schema is defined elsewhere."}


@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_a_union_at_the_top_becomes_one_object_and_a_sentence(key: str) -> None:
    by_id = {"properties": {"id": {"type": "integer"}, "kind": {"const": "id"}}, "required": ["kind", "id"]}
    by_name = {"properties": {"name": {"type": "string"}, "kind": {"const": "name"}}, "required": ["kind", "name"]}
    made = schema_of({"type": "object", "description": "Finds one.", key: [by_id, by_name]})
    assert made["type"] == "object"
    assert key not in made
    assert made["properties"]["kind"] == {"anyOf": [{"const": "id"}, {"const": "name"}]}
    assert made["required"] == ["kind"]
    assert made["description"] == "Finds one. (Pass one of these sets of fields: id, kind; or kind, name)"


def test_all_parts_of_a_top_hold_together() -> None:
    base = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    made = schema_of(
        {"allOf": [{"$ref": "#/$defs/base"}, {"required": ["b"], "properties": {"b": {}}}], "$defs": {"base": base}}
    )
    assert set(made["properties"]) == {"a", "b"}
    assert made["required"] == ["a", "b"]


@pytest.mark.parametrize("given", [{}, {"type": ["object", "null"]}, {"properties": {"a": {}}}, {"type": "object"}])
def test_the_top_is_always_an_object_with_properties(given: dict[str, Any]) -> None:
    made = schema_of(given)
    assert made["type"] == "object"
    assert isinstance(made["properties"], dict)


@pytest.mark.parametrize("given", [{"type": "string"}, {"type": "array"}, {"anyOf": [{"type": "integer"}]}])
def test_a_tool_that_takes_no_object_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match="'t'"):
        schema_of(given)


def test_an_array_always_says_of_what() -> None:
    made = schema_of({"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": ["array", "null"]}}})
    assert made["properties"]["a"]["items"] == made["properties"]["b"]["items"] == {}


def test_a_property_may_bear_the_name_of_a_keyword() -> None:
    fields = {"$ref": {"type": "string"}, "id": {"type": "string"}, "definitions": {"type": "string"}}
    made = schema_of({"type": "object", "properties": fields})
    assert made["properties"] == fields


def test_portable_schemas_say_in_words_what_they_may_not_say_as_rules() -> None:
    made = schema_of(
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 1, "default": 3, "description": "How many"},
                "u": {"oneOf": [{"const": "a"}, {"type": "null"}]},
            },
        },
        portable=True,
    )
    assert made["properties"]["n"] == {"type": "integer", "description": "How many (minimum: 1, default: 3)"}
    assert made["properties"]["u"] == {"anyOf": [{"enum": ["a"]}, {"type": "null"}]}


def test_descriptions_are_bounded() -> None:
    made = schema_of({"type": "object", "properties": {"a": {"description": "x" * 5000}}}, longest=100)
    assert len(made["properties"]["a"]["description"]) == 100


def test_the_schema_that_was_given_is_not_touched() -> None:
    given = {"type": "object", "allOf": [{"properties": {"a": {"items": [{}], "type": "array"}}}], "properties": {}}
    before = json.dumps(given)
    schema_of(given, portable=True)
    assert json.dumps(given) == before


SCHEMAS = st.recursive(
    st.sampled_from(
        [{}, True, False, {"type": "string", "minLength": 2}, {"const": 1}, {"$ref": "#/$defs/d"}, {"$ref": "#"}]
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=3), inner, max_size=3)}
        ),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2), "description": st.just("d")}),
    ),
    max_leaves=8,
)


@given(SCHEMAS, SCHEMAS, st.booleans())
@settings(max_examples=200, deadline=None)
def test_whatever_is_given_becomes_a_valid_schema_without_references(field: Any, other: Any, portable: bool) -> None:
    given = {"type": "object", "properties": {"f": field}, "$defs": {"d": other}}
    made = schema_of(given, portable=portable)
    jsonschema_rs.validator_for(made)
    assert '"$ref": "' not in json.dumps(made)
