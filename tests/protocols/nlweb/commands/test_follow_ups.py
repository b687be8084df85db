"""Commands after other commands: what they leave out is what was said before."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.protocols.nlweb.commands.follow_ups import is_follow_up, join_follow_up, resolve_follow_up

NOW = datetime(2026, 11, 16, 9, 0)


def _action(description: str, phrases: list[str], required: list[str], **properties: Any) -> NLWebActionInfo:
    schema = {"type": "object", "properties": properties, "required": required}
    return NLWebActionInfo(description=description, phrases=phrases, input_schema=schema)


_DATE = {"type": "string", "format": "date"}
_PEOPLE = {"type": "integer", "description": "How many people"}
TABLES = NLWebInterface(
    interface_id="tables",
    name="Tables",
    base_url="https://tables.example",
    actions={
        name: [NLWebAction(action_type=ActionType.NAVIGATE, value="/")]
        for name in ("book_table", "search_restaurants", "cancel_booking")
    },
    info={
        "book_table": _action(
            "Book a table",
            ["book a table", "reserva una mesa"],
            ["people", "date"],
            people=_PEOPLE,
            date=_DATE,
            city={"type": "string"},
        ),
        "search_restaurants": _action(
            "Search restaurants", ["restaurants in {city}", "find a place to eat"], ["city"], city={"type": "string"}
        ),
        "cancel_booking": _action("Cancel a booking", ["cancel my booking"], ["number"], number={"type": "string"}),
    },
)


@pytest.mark.requirement("RF-013-51")
@pytest.mark.parametrize(
    ("previous", "text", "action", "slots"),
    [
        (["book a table for tomorrow"], "and for two people?", "book_table", {"people": 2, "date": "2026-11-17"}),
        (["book a table for 4 people tomorrow"], "for 2 people", "book_table", {"people": 2, "date": "2026-11-17"}),
        (["reserva una mesa para mañana"], "¿y para dos personas?", "book_table", {"people": 2, "date": "2026-11-17"}),
        (
            ["book a table for 3 people", "and tomorrow?"],
            "also, on December 24?",
            "book_table",
            {"people": 3, "date": "2026-12-24"},
        ),
        (["restaurants in Madrid"], "and in Paris?", "search_restaurants", {"city": "Paris"}),
        (
            ["restaurants in Madrid"],
            "book a table for 2 people tomorrow",
            "book_table",
            {"people": 2, "date": "2026-11-17"},
        ),
    ],
)
def test_a_sentence_that_leans_on_another_is_read_with_it(
    previous: list[str], text: str, action: str, slots: dict[str, Any]
) -> None:
    found = resolve_follow_up(text, previous, TABLES, now=NOW)
    assert (found.action, found.slots, found.missing) == (action, slots, [])


def test_what_says_all_by_itself_or_has_nothing_to_do_with_it_stands_alone() -> None:
    before = ["book a table for 3 people tomorrow"]
    assert resolve_follow_up("restaurants in Rome", before, TABLES, now=NOW).action == "search_restaurants"
    cancel = resolve_follow_up("cancel my booking", before, TABLES, now=NOW)
    assert (cancel.action, cancel.missing) == ("cancel_booking", ["number"])
    assert resolve_follow_up("sing me a song", before, TABLES, now=NOW).action is None
    assert resolve_follow_up("and for two people?", [], TABLES, now=NOW).action is None
    assert resolve_follow_up("and for two people?", ["sing me a song"], TABLES, now=NOW).action is None


def test_what_is_still_open_after_both_is_asked() -> None:
    found = resolve_follow_up("and for two people?", ["book a table"], TABLES, now=NOW)
    assert (found.action, found.slots, found.missing) == ("book_table", {"people": 2}, ["date"])
    assert found.question is not None
    assert "date" in found.question


def test_a_long_conversation_is_looked_at_as_far_as_it_matters() -> None:
    many = ["book a table for 3 people tomorrow", *["and thanks"] * 60]
    assert resolve_follow_up("and for two people?", many, TABLES, now=NOW).action is None
    assert resolve_follow_up("and for two people?", many[:4], TABLES, now=NOW).slots["people"] == 2


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("and for two people?", "book a table tomorrow, for two people?"),
        ("¿Y con terraza?", "book a table tomorrow, con terraza?"),
        ("at nine instead", "book a table tomorrow, at nine"),
        ("what is the weather?", "what is the weather?"),
        ("android phones", "android phones"),
        ("yoga classes", "yoga classes"),
    ],
)
def test_who_reads_one_sentence_only_gets_one_that_stands_by_itself(text: str, whole: str) -> None:
    assert join_follow_up(text, ["hello", "book a table tomorrow."]) == whole
    assert join_follow_up(text, []) == text
    assert is_follow_up(text) is (text != whole)
