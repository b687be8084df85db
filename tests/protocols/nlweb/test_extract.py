from __future__ import annotations

from typing import Any

import pytest

from agent3.definitions import ExtractField
from agent3.errors import MalformedResponse
from agent3.protocols.nlweb.steps.extraction import parse_amount, parse_price, typed_row


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42.0),
        ("-3.5", -3.5),
        ("\u22127", -7.0),
        ("1,299.50", 1299.5),
        ("1.299,50", 1299.5),
        ("1.234.567", 1234567.0),
        ("1,234,567", 1234567.0),
        ("1,299", 1299.0),
        ("1.299", 1.299),
        ("12,5", 12.5),
        ("12'345.67", 12345.67),
        ("1\u202f299,00", 1299.0),
        ("about 7 stops, 2 hours", 7.0),
        ("none", None),
    ],
)
def test_numbers_are_read_in_either_notation(text: str, value: float | None) -> None:
    assert parse_amount(text) == value


@pytest.mark.parametrize(
    ("text", "value", "currency"),
    [
        ("€ 1.299,00", 1299.0, "EUR"),
        ("22,90 €", 22.9, "EUR"),
        ("EUR 1.299", 1299.0, "EUR"),
        ("$499.50", 499.5, "USD"),
        ("CHF 1'200", 1200.0, "CHF"),
        ("500", 500.0, None),
    ],
)
def test_prices_have_an_amount_and_a_currency(text: str, value: float, currency: str | None) -> None:
    assert parse_price(text) == {"amount": value, "currency": currency}


@pytest.mark.parametrize(
    ("field", "raw", "value"),
    [
        (ExtractField(type="text"), " a ", " a "),
        (ExtractField(type="integer"), "1.299 seats", 1299),
        (ExtractField(type="date"), "2027-03-04", "2027-03-04"),
        (ExtractField(type="date"), "2027-03-04T10:00", "2027-03-04T10:00:00"),
        (ExtractField(type="date"), "03/04/2027", None),
        (ExtractField(type="date"), "31/04/2027", None),
        (ExtractField(type="date"), "04/03/2027 or so", None),
        (ExtractField(type="date"), "25/12/2027", "2027-12-25"),
        (ExtractField(type="date"), "12/25/2027", "2027-12-25"),
        (ExtractField(type="date"), "03.04.2027", "2027-04-03"),
        (ExtractField(type="date"), "Thu, 4 March 2027", "2027-03-04"),
        (ExtractField(type="date"), "March 4th, 2027 at 9:05", "2027-03-04T09:05:00"),
        (ExtractField(type="date"), "Mar 4, 2027 12:30 am", "2027-03-04T00:30:00"),
        (ExtractField(type="date"), "4 March 2027, 9:05 p.m.", "2027-03-04T21:05:00"),
        (ExtractField(type="date"), "4 de marzo de 2027", "2027-03-04"),
        (ExtractField(type="date"), "jueves 4 sept. 2027", "2027-09-04"),
        (ExtractField(type="date"), "maybe 4 2027", None),
        (ExtractField(type="date"), "tomorrow", None),
        (ExtractField(type="link"), "https://airline.com/x", "https://airline.com/x"),
        (ExtractField(type="link"), "javascript:alert(1)", None),
        (ExtractField(type="boolean"), "Yes", True),
        (ExtractField(type="boolean"), "no", False),
        (ExtractField(type="boolean"), None, False),
        (ExtractField(type="boolean", attribute="disabled"), "", True),
        (ExtractField(type="price"), "sold out", None),
        (ExtractField(type="number", many=True), ["1", "2"], [1.0, 2.0]),
        (ExtractField(many=True), None, []),
        (ExtractField(fields={"n": ExtractField(type="number")}), {"n": "3"}, {"n": 3.0}),
        (ExtractField(fields={"n": "b"}), None, None),
    ],
)
def test_raw_texts_become_values_of_their_type(field: ExtractField, raw: Any, value: Any) -> None:
    assert typed_row({"it": raw}, {"it": field}) == {"it": value}


def test_a_required_field_that_is_not_there_is_named() -> None:
    with pytest.raises(MalformedResponse, match=r"no price for the required field 'cost' at '\.p'"):
        typed_row({"cost": "ask us"}, {"cost": ExtractField(selector=".p", type="price", required=True)})
