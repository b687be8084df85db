"""Canonical JSON: the examples of RFC 8785, and what has no form."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent3.errors import ValidationError
from agent3.security.canonical import canonical

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (333333333.33333329, "333333333.3333333"),
        (1e30, "1e+30"),
        (4.50, "4.5"),
        (2e-3, "0.002"),
        (1e-27, "1e-27"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (0.000001, "0.000001"),
        (1e-7, "1e-7"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (-1.5, "-1.5"),
        (100.0, "100"),
        ('\u20ac$\u000f\u000aA\'B"\\\\"/', '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'),
    ],
)
def test_numbers_and_texts_are_written_as_the_specification_prints_them(value: Any, text: str) -> None:
    assert canonical(value).decode() == text


def test_names_are_sorted_by_their_utf16_units() -> None:
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert list(json.loads(canonical(value))) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("value", [2**53, -(2**53), math.nan, math.inf, "\ud800", {1: 2}, b"x", object()])
def test_what_programs_would_read_differently_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        canonical({"value": value})


@given(VALUES)
def test_reading_and_writing_again_changes_nothing(value: Any) -> None:
    once = canonical(value)
    assert canonical(json.loads(once, parse_int=float)) == once
