from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import socket
import threading
import typing
from collections.abc import AsyncIterator, Generator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent3 import schema
from agent3.errors import Agent3Error, SetupError, TooLarge, ValidationError
from agent3.schema import Limits, arguments, check_shape, from_function, nearest
from agent3.schema.coercion import choices, from_words
from agent3.schema.explain import explain

TRIP = {
    "type": "object",
    "properties": {
        "origin": {"type": "string"},
        "destination": {"type": "string"},
        "seats": {"type": "integer", "minimum": 1},
        "price": {"type": "number"},
        "cabin": {"enum": ["economy", "business"]},
        "items": {"type": "array", "items": {"type": "object", "properties": {"price": {"minimum": 0}}}},
    },
    "required": ["origin", "destination"],
    "additionalProperties": False,
}
GOOD = {"origin": "NYC", "destination": "PAR"}


def message(definition: dict[str, Any], value: object, **options: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        schema.compile(definition).check(value, **options)
    return caught.value.message


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


# Messages


@pytest.mark.requirement("RF-013-03")
def test_a_missing_parameter_is_named_in_the_exact_words() -> None:
    assert message(TRIP, {"origin": "NYC"}) == "Missing required parameter: destination"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("x", "string"),
        (True, "boolean"),
        ([], "array"),
        ({}, "object"),
        (None, "null"),
        (1, "integer"),
        (1.5, "number"),
    ],
)
def test_a_wrong_type_is_named_as_json_names_it(value: object, got: str) -> None:
    definition = {"type": "number" if isinstance(value, str) else "string"}
    told = f"Parameter 'x' has invalid type. Expected {definition['type']}, got {got}"
    assert message(of(x=definition), {"x": value}) == told


def test_a_value_outside_an_enum_is_named_in_the_exact_words_and_the_nearest_is_data() -> None:
    assert message(of(x={"enum": ["a", "b"]}), {"x": "z"}) == "Parameter 'x' must be one of ['a', 'b']"
    (fault,) = schema.compile(TRIP).faults({**GOOD, "cabin": "buisness"})
    assert fault.nearest == "business"


def test_an_unknown_parameter_comes_with_the_nearest_name() -> None:
    text = message(TRIP, {**GOOD, "destnation": "x"})
    assert text == "Unknown parameter: destnation. Did you mean 'destination'?"
    assert message(TRIP, {**GOOD, "zzz": "x"}) == "Unknown parameter: zzz"


def test_all_faults_are_told_at_once_and_missing_ones_first_in_the_order_of_the_schema() -> None:
    with pytest.raises(ValidationError) as caught:
        schema.compile(TRIP).check({"seats": 0, "destnation": "x"})
    assert caught.value.message == (
        "Missing required parameter: origin; Missing required parameter: destination; "
        "Parameter 'seats' must be at least 1, got 0; "
        "Unknown parameter: destnation. Did you mean 'destination'?"
    )
    assert [one["path"] for one in caught.value.errors] == ["origin", "destination", "seats", "destnation"]
    assert caught.value.errors[2] == {
        "path": "seats",
        "message": "Parameter 'seats' must be at least 1, got 0",
        "expected": "at least 1",
        "got": "0",
    }
    assert caught.value.errors[3]["nearest"] == "destination"


def test_beyond_ten_faults_the_rest_is_counted() -> None:
    definition = {"type": "object", "required": [f"p{number}" for number in range(13)]}
    text = message(definition, {})
    assert text.endswith("; Missing required parameter: p9; and 3 more")


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ({"minimum": 1}, 0, "must be at least 1, got 0"),
        ({"maximum": 1}, 2, "must be at most 1, got 2"),
        ({"exclusiveMinimum": 1}, 1, "must be greater than 1, got 1"),
        ({"exclusiveMaximum": 1}, 1, "must be less than 1, got 1"),
        ({"multipleOf": 5}, 7, "must be a multiple of 5, got 7"),
        ({"minLength": 2}, "a", "must have at least 2 characters, got 1"),
        ({"maxLength": 2}, "abc", "must have at most 2 characters, got 3"),
        ({"pattern": "^a"}, "b", "must match the pattern '^a', got 'b'"),
        ({"minItems": 1}, [], "must have at least 1 items, got 0"),
        ({"maxItems": 1}, [1, 2], "must have at most 1 items, got 2"),
        ({"uniqueItems": True}, [1, 1.0], "must not contain the same item twice"),
        ({"minProperties": 1}, {}, "must have at least 1 properties, got 0"),
        ({"maxProperties": 0}, {"a": 1}, "must have at most 0 properties, got 1"),
        ({"const": 3}, 4, "must be 3, got 4"),
        ({"const": 1}, True, "must be 1, got True"),
        ({"type": ["string", "null"]}, 3, "has invalid type. Expected string or null, got integer"),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            3,
            "has invalid type. Expected string or null, got integer",
        ),
        ({"anyOf": [{"minimum": 5}, {"maximum": 1}]}, 3, "matches none of its 2 alternatives, got 3"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 5}]}, 3, "matches 2 of its 2 alternatives, but must match exactly one"),
        ({"not": {"type": "string"}}, "a", "must not match 'a'"),
        ({"contains": {"type": "string"}}, [1], "must contain at least 1 matching items, got 0"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "a", "must have at least 2 characters, got 1"),
        ({"allOf": [{"minimum": 2}]}, 1, "must be at least 2, got 1"),
    ],
)
def test_every_keyword_has_a_readable_message(part: dict[str, Any], value: object, problem: str) -> None:
    assert message(of(x=part), {"x": value}) == f"Parameter 'x' {problem}"


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ({"properties": {"b": False}}, {"b": 1}, "Parameter 'x.b' is not allowed here"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "Parameter 'x.ab' has a name that is not allowed"),
        ({"patternProperties": {"^s": {"type": "string"}}}, {"s1": 1}, "Parameter 'x.s1' has invalid type"),
        ({"additionalProperties": {"type": "string"}}, {"q": 1}, "Parameter 'x.q' has invalid type"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "Missing required parameter: x.b (needed with 'a')"),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], "Parameter 'x[1]' is not allowed here"),
        (
            {"allOf": [{"properties": {"first": {}}}], "unevaluatedProperties": False},
            {"frist": 1},
            "Unknown parameter: x.frist. Did you mean 'first'?",
        ),
    ],
)
def test_keywords_of_parts_name_the_part(part: dict[str, Any], value: object, text: str) -> None:
    assert message(of(x=part), {"x": value}).startswith(text)


def test_a_fault_deep_inside_is_named_by_its_path() -> None:
    text = message(TRIP, {**GOOD, "items": [{"price": 1}, {"price": 2}, {"price": -1}]})
    assert text == "Parameter 'items[2].price' must be at least 0, got -1"


def test_the_alternative_that_was_meant_is_explained() -> None:
    circle = {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["r"]}
    square = {"type": "object", "properties": {"kind": {"const": "square"}, "a": {"type": "number"}}, "required": ["a"]}
    definition = of(shape={"anyOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/s"}]}) | {
        "$defs": {"c": circle, "s": square}
    }
    assert message(definition, {"shape": {"kind": "square", "r": 1}}) == "Missing required parameter: shape.a"


def test_values_in_messages_are_shortened() -> None:
    text = message(of(x={"pattern": "^a"}), {"x": "b" * 10_000})
    assert len(text) < 200
    big = {"x": {str(number): "v" * 1_000 for number in range(500)}}
    (fault,) = schema.compile(of(x={"not": {}})).faults(big)
    assert len(fault.got) <= 80


def test_another_noun_is_used_for_what_is_no_input() -> None:
    assert message(TRIP, {"origin": 3, "destination": ""}, what="output") == (
        "Output 'origin' has invalid type. Expected string, got integer"
    )
    assert message(TRIP, [], what="output") == "Output has invalid type. Expected object, got array"


def test_a_verdict_without_explanation_still_says_what_failed() -> None:
    definition = {"prefixItems": [True], "unevaluatedItems": False}
    assert message(definition, [1, 2]) == "Input does not match its schema"


# Verdicts


@pytest.mark.parametrize(
    ("type_", "value", "verdict"),
    [
        ("number", True, False),
        ("integer", False, False),
        ("integer", 1.0, True),
        ("integer", 1.5, False),
        ("integer", 2**63, True),
        ("array", (1, 2), True),
        ("string", "x", True),
    ],
)
def test_types_are_those_of_json_schema(type_: str, value: object, verdict: bool) -> None:
    one = schema.compile({"type": type_})
    assert one.valid(value) is verdict
    assert (one.faults(value) == []) is verdict


def test_what_fits_passes_without_a_word() -> None:
    one = schema.compile(TRIP)
    one.check(GOOD)
    one.check(GOOD, shape=False)
    assert one.valid(GOOD)
    assert one.faults(GOOD) == []


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"x": datetime.datetime(2026, 1, 1)}, "datetime"),
        ({"x": {1, 2}}, "set"),
        ({"x": {1: 2}}, "key"),
        ({"x": "\ud800"}, "Unicode"),
        ({"x": float("nan")}, "nan"),
    ],
)
def test_what_json_cannot_carry_is_a_fault_and_no_crash(value: object, word: str) -> None:
    assert word in message(of(x={"enum": ["a"]}), value)


def test_a_format_is_an_annotation_in_every_draft() -> None:
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"):
        assert schema.compile({"$schema": draft, "format": "date-time"}).valid("tomorrow")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.sampled_from(["", "a", "ab", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
parts: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "number", "integer", "boolean", "array", "object", "null"]),
            "enum": st.lists(json_values, min_size=1, max_size=3),
            "const": json_values,
            "minimum": st.integers(-2, 2),
            "maxLength": st.integers(0, 2),
            "pattern": st.sampled_from(["^a", "b$"]),
            "minItems": st.integers(0, 2),
            "uniqueItems": st.booleans(),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": st.booleans(),
            "maxProperties": st.integers(0, 2),
        },
    )
    | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "contains": inner,
            "propertyNames": inner,
            "additionalProperties": inner,
        },
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(parts, json_values)
def test_the_explanation_agrees_with_the_verdict(part: Any, value: Any) -> None:
    one = schema.compile({"allOf": [part]})
    assert (explain(one.definition, {}, value) == []) is one.valid(value)


# Compiling


@pytest.mark.requirement("RT-014-P04")
def test_a_schema_is_compiled_once_and_independent_of_its_source() -> None:
    source = {"type": "object", "properties": {"a": {"type": "string"}}}
    one = schema.compile(source)
    assert schema.compile({"properties": {"a": {"type": "string"}}, "type": "object"}) is one
    source["properties"]["a"]["type"] = "integer"  # type: ignore[index]
    assert one.valid({"a": "x"})
    other = schema.compile(source)
    assert other is not one
    assert other.valid({"a": 1})
    assert not other.valid({"a": "x"})
    assert len(one.hash) == 64


def test_compiling_is_safe_from_many_threads() -> None:
    made: list[schema.Schema] = []
    definition = {"type": "object", "title": "many threads"}
    threads = [threading.Thread(target=lambda: made.append(schema.compile(dict(definition)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {one.hash for one in made} == {made[0].hash}
    assert len(made) == 8


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"properties": {"a": {"type": "strng"}}}, ["properties.a.type", "'strng'", "integer"]),
        ({"required": "a"}, ["required"]),
        ({"pattern": "(?=a)b"}, ["(?=a)b", "look-around"]),
        ({"patternProperties": {"(?!x)": {}}}, ["(?!x)", "look-around"]),
        ({"pattern": "(((a{100}){100}){100})"}, ["too large"]),
        ({"pattern": "("}, ["not a regular expression"]),
        ({"$ref": "https://example.com/schema"}, ["nothing is fetched"]),
        ({"$ref": "file:///etc/hostname"}, ["nothing is fetched"]),
        ({"$ref": "#/$defs/none"}, ["/$defs/none"]),
        ({"$schema": "https://example.com/meta"}, ["https://example.com/meta"]),
        ({"default": object()}, ["JSON cannot represent"]),
        ([], ["must be an object"]),
    ],
)
def test_a_bad_schema_is_refused_with_its_reason(definition: Any, words: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        schema.compile(definition)
    for word in words:
        assert word in caught.value.message


def test_nothing_is_read_or_fetched_for_a_reference(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}')
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        for address in (file.as_uri(), f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"):
            with pytest.raises(ValidationError, match="nothing is fetched"):
                schema.compile({"$ref": address})
        with pytest.raises(BlockingIOError):
            server.accept()


def deep_schema(depth: int) -> dict[str, Any]:
    definition: dict[str, Any] = {}
    for _ in range(depth):
        definition = {"items": definition}
    return definition


@pytest.mark.parametrize(
    "definition",
    [
        {"description": "x" * 70_000},
        deep_schema(40),
        deep_schema(50_000),
        {"allOf": [{"$ref": "#/$defs/a"}] * 201, "$defs": {"a": {}}},
        {"pattern": "a" * 1_001},
        {"patternProperties": {"a" * 1_001: {}}},
        {"allOf": [{"pattern": f"a{number}"} for number in range(201)]},
    ],
    ids=["size", "depth", "abyss", "refs", "pattern", "pattern name", "patterns"],
)
def test_a_schema_beyond_a_cap_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(TooLarge):
        schema.compile(definition)


def doubling(levels: int, end: dict[str, Any], anchor: str = "", prefix: str = "#/$defs/d") -> dict[str, Any]:
    def level(number: int) -> dict[str, Any]:
        name = {anchor: f"d{number}"} if anchor else {}
        return name | {"allOf": [{"$ref": f"{prefix}{number + 1}"}, {"$ref": f"{prefix}{number + 1}"}]}

    last = end | ({anchor: f"d{levels}"} if anchor else {})
    return {
        "$ref": f"{prefix}0",
        "$defs": {f"d{number}": level(number) for number in range(levels)} | {f"d{levels}": last},
    }


@pytest.mark.parametrize(
    "definition",
    [
        doubling(32, {"type": "object"}),
        doubling(32, {"type": "object"}, "$anchor", "#d"),
        doubling(32, {"type": "object"}, "$id", "d") | {"$id": "https://example.com/"},
        doubling(32, {"properties": {"a": {"$ref": "#/$defs/d0"}}}),
        doubling(9, {"properties": {"a": {"$ref": "#/$defs/d0"}}}),
        {
            "items": {"$ref": "#/$defs/d0"},
            "$defs": doubling(9, {"properties": {"a": {"$ref": "#/$defs/d0"}}})["$defs"],
        },
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{number}": {"allOf": [{"properties": {"a": {"$ref": f"#/$defs/d{(number + 1) % 30}"}}}] * 2}
                for number in range(30)
            },
        },
    ],
    ids=["pointers", "anchors", "ids", "loop", "small loop", "small loop below", "loop over properties"],
)
def test_a_bomb_of_references_is_refused_at_once(definition: dict[str, Any]) -> None:
    with pytest.raises(TooLarge, match="references multiply"):
        schema.compile(definition)


def test_a_value_too_large_for_a_schema_of_many_references_is_refused() -> None:
    one = schema.compile({"items": {"$ref": "#/$defs/d0"}, "$defs": doubling(12, {"type": "object"})["$defs"]})
    one.check([{}])
    with pytest.raises(TooLarge, match="too expensive"):
        schema.compile(
            {
                "items": {"$ref": "#/$defs/d0"},
                "$defs": doubling(6, {"properties": {"a": {"$ref": "#/$defs/d0"}}})["$defs"],
            }
        ).check([{}] * 9_000)


def tree() -> dict[str, Any]:
    node = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "children": {"items": {"$ref": "#/$defs/node"}}},
        "required": ["value"],
    }
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def test_a_recursive_schema_works_and_explains_its_depths() -> None:
    one = schema.compile(tree())
    one.check({"value": 1, "children": [{"value": 2}]})
    text = message(tree(), {"value": 1, "children": [{"value": 2, "children": [{}]}]})
    assert text == "Missing required parameter: children[0].children[0].value"


def test_explaining_a_nested_union_stays_within_its_budget() -> None:
    kinds = [{"$ref": f"#/$defs/k{number}"} for number in range(30)]
    definitions = {
        f"k{number}": of(inner={"$ref": "#/$defs/any"}, kind={"const": number}) | {"required": ["kind"]}
        for number in range(30)
    }
    one = schema.compile({"$ref": "#/$defs/any", "$defs": {"any": {"anyOf": kinds}, **definitions}})
    value: Any = "wrong"
    for _ in range(30):
        value = {"inner": value, "kind": 3}
    (fault,) = one.faults(value)
    assert fault.path.count("inner") == 30


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ({"required": [f"r{number}" for number in range(2_000)]}, {f"k{number}": "v" for number in range(9_000)}),
        (
            of(**{f"k{number}": {} for number in range(3_000)}) | {"additionalProperties": False},
            dict.fromkeys(map(str, range(5_000))),
        ),
        ({"items": {"enum": [f"option {number}" for number in range(3_000)]}}, ["option 2999"] * 9_000 + ["z"]),
        ({"items": {"anyOf": [of(k={"const": number}) for number in range(50)]}}, [{"k": "a"}] * 4_000),
    ],
    ids=["missing", "unknown", "enum", "union"],
)
def test_explaining_a_large_value_stays_within_its_budget(definition: dict[str, Any], value: Any) -> None:
    faults = schema.compile(definition).faults(value)
    assert 1 <= len(faults) <= 100


def test_where_the_budget_ends_the_verdict_stands_without_its_reasons() -> None:
    union = {"items": {"anyOf": [of(k={"const": number}) for number in range(50)]}}
    value: list[Any] = [{"k": 49} for _ in range(4_900)]
    assert (
        message(union, [*value[:10], {"k": 50}])
        == "Parameter '[10]' matches none of its 50 alternatives, got {'k': 50}"
    )
    assert message(union, [*value, {"k": 50}]) == "Input does not match its schema"


def test_the_pattern_engine_is_linear() -> None:
    assert not schema.compile({"pattern": "^(a+)+$"}).valid("a" * 50_000 + "!")


# Shape


def test_what_is_nested_50000_deep_is_refused_and_does_not_crash() -> None:
    abyss = nested(50_000)
    one = schema.compile({})
    with pytest.raises(TooLarge, match="deeper than 64"):
        check_shape(abyss)
    with pytest.raises(TooLarge):
        one.check(abyss)
    with pytest.raises(TooLarge):
        one.faults(abyss)
    assert not one.valid(abyss)
    assert not one.valid({"a": abyss})


def test_depth_is_counted_in_containers() -> None:
    check_shape(nested(64))
    with pytest.raises(TooLarge):
        check_shape(nested(65))
    check_shape({"a": 1}, Limits(depth=1))
    with pytest.raises(TooLarge, match="at 'a' is nested deeper than 1"):
        check_shape({"a": {}}, Limits(depth=1))


def test_a_list_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TooLarge):
        check_shape(loop)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0] * 10_001, "more than 10000 values"),
        ([[0] * 200] * 200, "more than 10000 values"),
        ({"a": [{"b": "x" * 300_000}]}, "a[0].b"),
        ({"n": 10**64}, "64 digits"),
        ({"n": -(10**64)}, "64 digits"),
    ],
)
def test_what_is_too_large_is_refused_with_path_and_limit(value: object, words: str) -> None:
    with pytest.raises(TooLarge) as caught:
        check_shape(value, what="answer")
    assert words in caught.value.message
    assert caught.value.message.startswith("The answer")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    with pytest.raises(ValidationError, match="not allowed in JSON"):
        check_shape({"a": [value]})


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.tuples(inner, inner)))
def test_check_shape_raises_only_errors_of_ours(value: object) -> None:
    with contextlib.suppress(Agent3Error):
        check_shape(value, Limits(depth=3, nodes=10, string=5, digits=3))


def test_nearest_is_a_likely_name_or_none() -> None:
    assert nearest("destnation", ["origin", "destination"]) == "destination"
    assert nearest("Origin", ["origin", "destination"]) == "origin"
    assert nearest("zzz", ["origin"]) is None
    assert nearest("x" * 10_000, ["x" * 10_000]) is None
    for slip, known in [
        ("creatNote", "create_note"),
        ("list_note", "list_notes"),
        ("cty", "city"),
        ("dubble", "double"),
    ]:
        assert nearest(slip, [known]) == known
    opposites = [("createNote", "deleteNote"), ("lock_door", "unlock_door"), ("get_x", "set_x"), ("import", "export")]
    for wanted, opposite in opposites:
        assert nearest(wanted, [opposite]) is None


# Functions


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Options(typing.TypedDict):
    depth: int
    label: typing.NotRequired[str]


class Order(pydantic.BaseModel):
    title: str
    at: Point | None = None


class Reading(msgspec.Struct):
    value: float
    when: datetime.datetime


class Context: ...


def test_plain_parameters_become_a_closed_object() -> None:
    def search(query: str, limit: int = 10, tags: list[str] | None = None, mode: Literal["a", "b"] = "a") -> None:
        """Find things."""

    assert from_function(search).input == {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "default": 10},
            "tags": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": None},
            "mode": {"enum": ["a", "b"], "type": "string", "default": "a"},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert from_function(search).converters.keys() == {"limit"}
    assert from_function(search).output is None


def test_rich_types_are_described_without_titles_and_converted() -> None:
    def book(  # type: ignore[no-untyped-def]
        color: Color,
        place: Point,
        options: Options,
        order: Order,
        reading: Reading,
        when: datetime.datetime,
        day: datetime.date,
        pair: tuple[int, str],
        ids: set[int],
        raw: bytes,
        orders: dict[str, list[Order]],
        anything: Any,
        free,
    ) -> Order:
        raise AssertionError

    function = from_function(book)
    assert '"title"' in repr(function.input).replace("'", '"')
    assert function.input["$defs"]["Order"]["properties"]["title"] == {"type": "string"}
    assert "title" not in function.input["properties"]["place"]
    given_input = {
        "color": "blue",
        "place": {"x": 1},
        "options": {"depth": 2},
        "order": {"title": "t", "at": {"x": 3}},
        "reading": {"value": 1.5, "when": "2026-01-02T03:04:05Z"},
        "when": "2026-01-02T03:04:05Z",
        "day": "2026-01-02",
        "pair": [1, "b"],
        "ids": [1, 2],
        "raw": "abc",
        "orders": {"a": [{"title": "u"}]},
        "anything": [None],
        "free": {"a": 1},
    }
    schema.compile(function.input).check(given_input)
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert arguments(function, given_input) == {
        "color": Color.BLUE,
        "place": Point(1),
        "options": {"depth": 2},
        "order": Order(title="t", at=Point(3)),
        "reading": Reading(1.5, when),
        "when": when,
        "day": datetime.date(2026, 1, 2),
        "pair": (1, "b"),
        "ids": {1, 2},
        "raw": b"abc",
        "orders": {"a": [Order(title="u")]},
        "anything": [None],
        "free": {"a": 1},
    }
    assert function.input["properties"]["free"] == {}
    assert function.output is not None
    assert schema.compile(function.output).valid({"title": "x", "at": None})


def test_two_types_of_one_name_do_not_share_a_definition() -> None:
    def make(kind: type) -> type[pydantic.BaseModel]:
        inner = pydantic.create_model("Inner", value=(kind, ...))
        return pydantic.create_model("Outer", inner=(inner, ...))

    def both(a: Any, b: Any) -> None: ...

    both.__annotations__.update({"a": make(int), "b": make(str)})
    one = schema.compile(from_function(both).input)
    assert one.valid({"a": {"inner": {"value": 1}}, "b": {"inner": {"value": "x"}}})
    assert not one.valid({"a": {"inner": {"value": 1}}, "b": {"inner": {"value": 1}}})


def test_what_fits_the_schema_and_makes_no_value_is_a_validation_error() -> None:
    def at(when: datetime.date) -> None: ...

    with pytest.raises(ValidationError, match="Parameter 'when' has an invalid value"):
        arguments(from_function(at), {"when": "2026-02-31"})


def test_defaults_are_json_and_left_out_where_a_caller_could_not_send_them() -> None:
    def paint(color: Color = Color.RED, when: datetime.date = None, spot: Point = Point(1, 2)) -> None: ...  # type: ignore[assignment]  # noqa: B008, RUF013

    properties = from_function(paint).input["properties"]
    assert properties["color"]["default"] == "red"
    assert "default" not in properties["when"]
    assert properties["spot"]["default"] == {"x": 1, "y": 2}
    assert "required" not in from_function(paint).input


def test_the_context_is_found_by_name_or_type_and_left_out() -> None:
    def by_name(ctx, a: int) -> None: ...  # type: ignore[no-untyped-def]
    def by_type(a: int, run: Context) -> None: ...
    def without(a: int) -> None: ...

    assert from_function(by_name).context == "ctx"
    assert from_function(by_type).context == "run"
    assert not from_function(without).takes_context
    for function in (by_name, by_type, without):
        assert list(from_function(function).input["properties"]) == ["a"]


def test_async_and_streaming_functions_are_told_apart() -> None:
    async def asynchronous() -> int:
        return 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    def generator() -> Generator[str, None, int]:
        yield "x"
        return 1

    flags = {fn.__name__: from_function(fn) for fn in (asynchronous, stream, generator)}
    assert {name: (one.is_async, one.streams) for name, one in flags.items()} == {
        "asynchronous": (True, False),
        "stream": (True, True),
        "generator": (False, True),
    }
    assert flags["asynchronous"].output == {"type": "integer"}
    assert flags["stream"].output is None
    assert flags["generator"].output == {"type": "integer"}


def test_methods_partials_and_callable_objects_are_read() -> None:
    class Shop:
        def buy(self, item: str) -> None: ...
        def __call__(self, item: str) -> None: ...

    def pay(amount: int, item: str) -> None: ...

    for function in (Shop().buy, Shop(), partial(pay, 3)):
        assert from_function(function).input["required"] == ["item"], function


def test_extra_keywords_open_the_object() -> None:
    def any_of(a: int, **rest: Any) -> None: ...

    assert from_function(any_of).input["additionalProperties"] is True
    assert list(from_function(any_of).input["properties"]) == ["a"]


def test_an_annotation_that_cannot_be_resolved_takes_anything() -> None:
    def odd(a: Nowhere, b: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert from_function(odd).input["properties"] == {"a": {}, "b": {"type": "integer"}}


def test_what_cannot_be_called_by_name_or_said_in_json_is_refused() -> None:
    class Strange: ...

    def star(*items: int) -> None: ...
    def positional(a: int, /) -> None: ...
    def strange(a: Any) -> None: ...

    strange.__annotations__["a"] = Strange
    for function, word in ((star, r"\*items"), (positional, "'a'"), (strange, "Strange")):
        with pytest.raises(SetupError, match=word):
            from_function(function)


GOOGLE = """Find a flight
that fits.

More words.

Args:
    origin (str): Where it starts,
        with a second line.
    seats: How many: at least one.

Returns:
    nothing: really
"""
REST = """Find a flight
that fits.

:param str origin: Where it starts,
    with a second line.
:param seats: How many: at least one.
:returns: nothing
"""
NUMPY = """Find a flight
that fits.

Parameters
----------
origin : str
    Where it starts,
    with a second line.
seats
    How many: at least one.

Returns
-------
nothing
    really
"""


@pytest.mark.parametrize("text", [GOOGLE, REST, NUMPY], ids=["google", "rest", "numpy"])
def test_docstrings_of_three_styles_describe_function_and_parameters(text: str) -> None:
    def find(origin: str, seats: Annotated[int, "Annotated wins"]) -> None: ...

    find.__doc__ = text
    function = from_function(find)
    assert function.description == "Find a flight that fits."
    assert function.parameters == {
        "origin": "Where it starts, with a second line.",
        "seats": "How many: at least one.",
    }
    assert function.input["properties"]["origin"]["description"] == "Where it starts, with a second line."
    assert function.input["properties"]["seats"]["description"] == "Annotated wins"


@pytest.mark.parametrize(
    ("definition", "said", "meant"),
    [
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, " sí. ", True),
        ({"type": "boolean"}, "n", False),
        ({"type": "boolean"}, "Yes, please.", True),
        ({"type": "boolean"}, "no thanks", False),
        ({"type": "boolean"}, "please", "please"),
        ({"type": "boolean"}, "perhaps", "perhaps"),
        ({"type": "integer"}, "3", 3),
        ({"type": "string"}, "3", "3"),
        ({"type": ["string", "null"]}, "no", "no"),
        ({"enum": ["Large", 2]}, "large", "Large"),
        ({"type": "integer", "enum": [1, 2]}, "2", 2),
        ({"type": "string", "enum": ["a"]}, "b", "b"),
        ({"type": "object", "properties": {"ok": {"type": "boolean"}}}, "yes", {"ok": True}),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, "yes", "yes"),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object", "properties": {"a": True}}, "x", {"a": "x"}),
        ({"type": "object", "properties": 5, "required": 5}, "x", "x"),
        ({}, "as it is", "as it is"),
    ],
)
def test_words_become_what_a_schema_asks_for_where_that_is_no_guess(
    definition: dict[str, Any], said: str, meant: Any
) -> None:
    value = from_words(definition, said)
    assert (value, type(value)) == (meant, type(meant))


def test_a_person_is_told_what_can_be_said() -> None:
    assert list(choices({"type": "boolean"})) == ["yes", "no"]
    assert list(choices({"type": "object", "properties": {"size": {"enum": ["s", "l"]}}})) == ["s", "l"]
    assert list(choices({"type": "object", "properties": {"a": True}})) == []
    assert list(choices({"type": "string"})) == list(choices(None)) == []


def test_null_for_an_optional_parameter_that_takes_none_is_left_out() -> None:
    definition = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "size": {"enum": ["S", "L"]},
            "nothing": {"type": ["string", "null"]},
            "more": {"type": "object", "properties": {"seconds": {"$ref": "#/$defs/seconds"}}},
            "items": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["text"],
        "$defs": {"seconds": {"type": "integer"}},
    }
    compiled = schema.compile(definition)
    given = {"text": "x", "size": None, "nothing": None, "more": {"seconds": None}}
    assert compiled.without_nulls(given) == {"text": "x", "nothing": None, "more": {}}
    fine = {"text": "x", "nothing": None}
    assert compiled.without_nulls(fine) is fine
    # Neither what is required nor an item of a list can be left out.
    kept = {"text": None, "items": [None]}
    assert compiled.without_nulls(kept) is kept or compiled.without_nulls(kept) == kept
    assert compiled.without_nulls({"text": None, "size": None}) == {"text": None}
