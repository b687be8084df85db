"""Dates, times, money and numbers as people write them in English and Spanish."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any

import pytest

from agent3.sentences.spans import find_spans

NOW = datetime(2026, 11, 16, 10, 0)  # a Monday


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("on 2027-02-03", "date", date(2027, 2, 3)),
        ("December 15th, 2027", "date", date(2027, 12, 15)),
        ("the 3rd of March", "date", date(2027, 3, 3)),
        ("el 15 de diciembre de 2027", "date", date(2027, 12, 15)),
        ("tomorrow", "date", date(2026, 11, 17)),
        ("pasado mañana", "date", date(2026, 11, 18)),
        ("next friday", "date", date(2026, 11, 20)),
        ("el próximo lunes", "date", date(2026, 11, 23)),
        ("in three days", "date", date(2026, 11, 19)),
        ("dentro de dos semanas", "date", date(2026, 11, 30)),
        ("in a month", "date", date(2026, 12, 16)),
        ("at 7pm", "time", time(19)),
        ("12:26 AM", "time", time(0, 26)),
        ("a las 7 de la tarde", "time", time(19)),
        ("$1,299.50", "money", 1299.5),
        ("1.299,50 €", "money", 1299.5),
        ("200 euros", "money", 200),
        ("twelve", "number", 12),
        ("veinte", "number", 20),
        ("twenty-five", "number", 25),
        ("two hundred and fifty", "number", 250),
        ("eight and a half", "number", 8.5),
        ("mil quinientos", "number", 1500),
        ("treinta y cinco", "number", 35),
        ("1,5 millones", "number", 1_500_000),
        ("cien euros", "money", 100),
        ("a quarter to nine in the evening", "time", time(20, 45)),
        ("a las nueve y veinte de la noche", "time", time(21, 20)),
        ("at seven", "time", time(7)),
        ("write to ana@example.com", "email", "ana@example.com"),
        ("see https://example.com/a.", "url", "https://example.com/a"),
        ("say “hello there”", "quote", "hello there"),
    ],
)
def test_a_span_has_its_value(text: str, kind: str, value: Any) -> None:
    assert [(span.kind, span.value) for span in find_spans(text, NOW) if span.unit != "article"] == [(kind, value)]


def test_a_verb_is_no_month_and_guests_are_no_day() -> None:
    found = find_spans("I may book a table for 2 tomorrow at 7pm", NOW)
    assert [(span.kind, span.value) for span in found] == [
        ("number", 2),
        ("date", date(2026, 11, 17)),
        ("time", time(19)),
    ]


def test_the_end_of_a_short_month_is_kept() -> None:
    (found,) = find_spans("in a month", datetime(2027, 1, 31))
    assert found.value == date(2027, 2, 28)
