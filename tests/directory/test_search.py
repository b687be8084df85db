"""Words as search sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from agent3.directory.search import Index, words
from agent3.model import Agent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Book flights", ["book", "flight"]),
        ("bookFlight", ["book", "flight"]),
        ("get_weather-forecasts", ["get", "weather", "forecast"]),
        ("Cities, boxes & glass", ["city", "box", "glass"]),
        ("Crème BRÛLÉE", ["creme", "brulee"]),
        ("Straße", ["strasse"]),
        ("Москва 東京", ["москва", "東京"]),
        ("", []),
    ],
)
def test_words_are_without_case_accent_and_plural(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_of_a_long_query_only_the_beginning_is_looked_for() -> None:
    index = Index({name: Agent(id=name, name=name) for name in ("pizza", "pasta")})
    long = " ".join(f"w{number}" for number in range(100_000))
    assert [name for name, _ in index.search(f"a pizza {long} pasta")] == ["pizza"]
    assert [name for name, _ in index.search(f"{long} pasta")] == []


@given(some.text(max_size=200))
def test_any_text_has_words_that_are_found_again(text: str) -> None:
    assert all(word and word == word.casefold() for word in words(text))
    index = Index({"a": Agent(id="a", name="A", description=text), "b": Agent(id="b", name="B")})
    for agent_id, score in index.search(text):
        assert agent_id in ("a", "b")
        assert 0 < score <= 1


def test_an_empty_index_finds_nothing() -> None:
    assert Index({}).search("anything") == []
