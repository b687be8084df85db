"""The words of the house: frozen, encoded without what must not be encoded, and heard while they live."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from agent3.identity.secrets import Secret
from agent3.model import (
    LOCAL,
    Agent,
    Answer,
    Artifact,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Route,
    Turn,
    Usage,
    Working,
    decode_call,
    decode_outcome,
    encode,
    text_of,
    value_of,
)


def a_call(**more: Any) -> Call:
    return Call(**{"id": "1", "principal": LOCAL, "agent": "a", "capability": "b", **more})


json_values = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**63), 2**63)
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)
parts = some.one_of(
    some.builds(Part, text=some.text()),
    some.builds(Part, data=json_values),
    some.builds(Part, raw=some.binary(), media_type=some.just("image/png")),
    some.builds(Part, url=some.just("https://example.com"), name=some.text()),
)
several = some.lists(parts, max_size=3).map(tuple)
outcomes = some.one_of(
    some.builds(Done, several, artifacts=some.lists(some.builds(Artifact, some.text(), parts=several)).map(tuple)),
    some.builds(Failed, some.text(), some.text(), some.booleans(), data=some.dictionaries(some.text(), json_values)),
    some.builds(Needs, some.lists(some.builds(Question, some.text(), some.text())).map(tuple), json_values, several),
    some.builds(Working, json_values, some.floats(0, 10), some.text()),
)


@given(outcomes)
def test_outcomes_survive_encoding(outcome: Outcome) -> None:
    assert decode_outcome(encode(outcome)) == outcome


@given(json_values, several, some.dictionaries(some.text(), some.builds(Answer, data=json_values), max_size=2))
def test_calls_survive_encoding(value: Any, given_parts: tuple[Part, ...], answers: dict[str, Answer]) -> None:
    call = a_call(
        input=value,
        parts=given_parts,
        answers=answers,
        principal=Principal("alice", scopes=frozenset({"x"}), tenant="t"),
        route=Route("mcp", "https://example.com", meta={"a": 1}),
        key="k",
    )
    assert decode_call(encode(call)) == call


def test_an_absent_datum_is_not_a_null_datum() -> None:
    assert decode_outcome(encode(Done((Part(data=None), Part(text="a"))))) == Done((Part(data=None), Part(text="a")))
    assert encode(Part(data=None)) == b'{"data":null}'
    assert encode(Part(text="a")) == b'{"text":"a"}'


def test_a_call_is_encoded_without_its_live_part_and_never_with_a_secret() -> None:
    assert decode_call(encode(a_call(live=Turn(None, Capability(name="b"))))) == a_call()
    with pytest.raises(TypeError, match="sealed"):
        encode(a_call(secret=Secret("pizza-token")))


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_outcome(b'{"outcome":"maybe"}')


def test_everything_is_frozen() -> None:
    for one in (Part(text="a"), a_call(), Done(), Agent(id="a", name="A"), Capability(name="b"), Event("status")):
        with pytest.raises(AttributeError):
            one.meta = {}  # type: ignore[union-attr, misc, unused-ignore]


def test_mutable_defaults_are_not_shared() -> None:
    first, second = Part(), Part()
    first.meta["a"] = 1
    assert second.meta == {}


def test_a_call_is_idempotent_by_its_capability() -> None:
    assert not a_call().idempotent
    for hints, expected in ((Hints(), False), (Hints(idempotent=True), True), (Hints(read_only=True), True)):
        assert a_call(live=Turn(None, Capability(name="b", hints=hints))).idempotent is expected


def test_events_pass_the_filters_and_count_as_content() -> None:
    heard: list[Event] = []
    live = Turn(None, Capability(name="b"), heard.append)
    live.filters = (lambda event: msgspec.structs.replace(event, text=f"{event.text}!"),)
    call = a_call(live=live)
    call.emit(Event("status", text="a"))
    call.emit(Event("artifact", text="b"))
    assert [event.text for event in heard] == ["a!", "b!"]
    assert live.content == 1
    a_call().emit(Event("status"))


def test_a_frame_that_goes_on_in_a_later_turn_is_heard_there() -> None:
    first, second, third = [], [], []  # type: ignore[var-annotated]
    one, two, three = (
        Turn(None, Capability(name="b"), first.append),
        Turn(None, Capability(name="b"), second.append),
        Turn(None, Capability(name="b"), third.append),
    )
    one.forward, two.forward = two, three
    one.emit(Event("artifact"))
    assert (len(first), len(second), len(third)) == (0, 0, 1)
    assert (one.content, three.content) == (0, 1)
    assert one.now() is three


def test_values_and_texts_of_parts() -> None:
    assert value_of(()) is None
    assert value_of((Part(text="a"),)) == "a"
    assert value_of((Part(data={"a": 1}),)) == {"a": 1}
    assert value_of((Part(data=None),)) is None
    assert value_of((Part(text="a"), Part(data=1), Part(url="u"))) == ["a", 1, {"url": "u"}]
    assert text_of((Part(text="a"), Part(data=[1]), Part(raw=b"x"))) == "a\n[1]"


def test_a_route_is_known_by_protocol_and_address() -> None:
    assert Route("mcp", "https://example.com/mcp", "tool").key == "mcp:https://example.com/mcp"


def test_an_agent_finds_its_capability() -> None:
    agent = Agent(id="a", name="A", capabilities=(Capability(name="x"), Capability(name="y")))
    found = agent.capability("y")
    assert found is not None
    assert found.name == "y"
    assert agent.capability("z") is None


def test_usage_is_small_on_the_wire() -> None:
    assert encode(Done(usage=Usage(tokens=3))) == b'{"outcome":"done","usage":{"tokens":3}}'
