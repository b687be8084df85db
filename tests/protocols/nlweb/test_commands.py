"""Sentences to the actions of a website: which is meant, with what, what is asked, after what was said before."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.directory.choice import choose, index_capabilities
from agent3.model import Agent, Capability
from agent3.protocols.nlweb import commands
from agent3.protocols.nlweb.commands import Meaning, actions_of, is_follow_up, join_follow_up, understand
from agent3.protocols.nlweb.connector import agent_of
from agent3.sentences import Ask, Forbidden, Understood

NOW = datetime(2026, 11, 16)
GO = [NLWebAction(action_type=ActionType.NAVIGATE, value="/")]


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


TEXT = {"type": "string"}
DAY = {"type": "string", "format": "date"}
AIR = NLWebInterface(
    interface_id="air",
    name="Air",
    base_url="https://airline.com",
    actions=dict.fromkeys(("search_flights", "search_hotels", "cancel_booking", "check_status"), GO),
    info={
        "search_flights": NLWebActionInfo(
            description="Find flights between two cities",
            phrases=["flights from {origin} to {destination} on {date}"],
            input_schema=_schema(
                ["origin", "destination", "date"],
                origin=TEXT,
                destination=TEXT,
                date=DAY,
                passengers={"type": "integer"},
                cabin={"enum": ["economy", "business", "first"]},
                max_price={"type": "number"},
                nonstop={"type": "boolean"},
            ),
        ),
        "search_hotels": NLWebActionInfo(
            description="Find hotels in a city",
            input_schema=_schema(
                ["city", "check_in"], city=TEXT, check_in=DAY, check_out=DAY, guests={"type": "integer"}
            ),
        ),
        "cancel_booking": NLWebActionInfo(
            description="Cancel a reservation", input_schema=_schema(["code"], code=TEXT)
        ),
    },
)
SHOP = NLWebInterface(
    interface_id="shop",
    name="Shop",
    base_url="https://shop.example",
    actions={
        "search_products": [NLWebAction(action_type=ActionType.NAVIGATE, value="/s?q={query}")],
        "add_to_cart": [NLWebAction(action_type=ActionType.TYPE, selector="#q", value="{product}")],
    },
)


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


def read(text: str, interface: NLWebInterface = AIR, previous: list[str] | None = None) -> Meaning:
    agent = agent_of(interface)
    return asyncio.run(understand(text, agent, actions_of(agent), previous or (), now=NOW))


@pytest.mark.requirement("RF-013-51")
@pytest.mark.parametrize(
    ("text", "action", "given"),
    [
        (
            "Flights from Madrid to New York on December 15, please",
            "search_flights",
            {"origin": "Madrid", "destination": "New York", "date": "2026-12-15"},
        ),
        (
            "find nonstop flights from Oslo to Rome tomorrow for 2 passengers in business",
            "search_flights",
            {
                "origin": "Oslo",
                "destination": "Rome",
                "date": "2026-11-17",
                "passengers": 2,
                "cabin": "business",
                "nonstop": True,
            },
        ),
        (
            "busca vuelos de Madrid a París el 15 de diciembre para dos pasajeros",
            "search_flights",
            {"origin": "Madrid", "destination": "París", "date": "2026-12-15", "passengers": 2},
        ),
        ("check_status", "check_status", {}),
    ],
)
def test_a_sentence_becomes_an_action_with_its_parameters(text: str, action: str, given: dict[str, Any]) -> None:
    found = read(text)
    assert found.action is not None
    assert isinstance(found.reading, Understood)
    assert (found.action.name, found.input, found.questions) == (action, given, ())


@pytest.mark.requirement("RF-013-51")
def test_without_a_schema_the_placeholders_of_the_steps_are_filled() -> None:
    assert read("search for red running shoes", SHOP).input == {"query": "red running shoes"}
    assert read('add "Blue Mug" to the cart', SHOP).input == {"product": "Blue Mug"}


@pytest.mark.requirement("RF-013-51")
def test_a_phrase_says_where_its_values_stand() -> None:
    phrases = ["gimme {query}", "the usual"]
    schema = _schema(["query"], query=TEXT, size={"enum": ["small", "large"]})
    tea = AIR.model_copy(
        update={
            "actions": dict.fromkeys(("search_tea", "order_tea"), GO),
            "info": {"search_tea": NLWebActionInfo(description="Look for tea", phrases=phrases, input_schema=schema)},
        }
    )
    assert read("gimme a green one", tea).input == {"query": "green one"}
    assert read("gimme the green one", tea).input == {"query": "green one"}
    usual = read("the usual, please", tea)
    assert usual.action is not None
    assert usual.action.name == "search_tea"
    assert isinstance(usual.reading, Ask)
    assert usual.reading.missing == ("query",)


@pytest.mark.requirement("RF-013-52")
def test_a_missing_parameter_is_asked_for_and_never_made_up() -> None:
    found = read("flights from Madrid to Paris")
    assert found.action is not None
    assert (found.action.name, found.input) == ("search_flights", {"origin": "Madrid", "destination": "Paris"})
    (question,) = found.questions
    assert question.id == "date"
    assert question.text.startswith("Which date?")
    (spanish,) = read("quiero cancelar mi reserva").questions
    assert spanish.text.startswith("Falta code.")


def test_a_phrase_swallows_no_number_that_another_parameter_takes_and_no_second_thing() -> None:
    schema = _schema(["product"], product=TEXT, quantity={"type": "integer"})
    info = NLWebActionInfo(description="Fill the cart", phrases=["toss {product} in"], input_schema=schema)
    cart = AIR.model_copy(update={"actions": {"fill_cart": GO}, "info": {"fill_cart": info}})
    assert read("toss mugs in", cart).input == {"product": "mugs"}
    for text in ("toss 2 mugs in", "toss mugs and delete my account in"):
        assert isinstance(read(text, cart).reading, Ask)
    info.phrases.append("toss {quantity} {product} in")
    assert read("toss 2 blue mugs in", cart).input == {"product": "blue mugs", "quantity": 2}


@pytest.fixture(autouse=True)
def words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "load_encoder", lambda: None)


@pytest.mark.requirement("RF-013-52")
@pytest.mark.parametrize("text", ["search something nice", "order a pizza", "quiero pedir una pizza con queso"])
def test_a_sentence_that_no_action_fits_is_asked_about(text: str) -> None:
    found = read(text)
    assert (found.action, type(found.reading), found.questions) == (None, Ask, ())


@pytest.mark.requirement("RF-013-52")
@pytest.mark.parametrize(
    ("text", "left"),
    [("flights from Oslo to Rome tomorrow with my dog", "dog"), ("check status of the fridge", "fridge")],
)
def test_words_that_nothing_explains_are_asked_about(text: str, left: str) -> None:
    found = read(text)
    assert isinstance(found.reading, Ask)
    assert left in found.reading.left
    assert f"“{left}”" in found.questions[0].text


@pytest.mark.requirement("RF-013-52")
def test_a_date_that_can_be_read_in_two_ways_is_asked_about() -> None:
    found = read("flights to Rome from Oslo on 03/04/2027")
    assert "date" not in found.input
    assert "2027-03-04" in found.questions[0].text
    assert "2027-04-03" in found.questions[0].text
    assert read("vuelos de Oslo a Roma el 03/04/2027").input["date"] == "2027-04-03"


@pytest.mark.parametrize("text", ["do not search flights from Oslo to Rome", "cancel my booking if it rains"])
def test_what_is_forbidden_or_has_conditions_is_refused(text: str) -> None:
    found = read(text)
    assert (found.action, type(found.reading)) == (None, Forbidden)
    assert found.refusal is not None


class _Encoder:
    """Vectors by hand: lodging and hotels point the same way, everything else another."""

    def encode(self, texts: list[str]) -> Any:
        import numpy

        rows = numpy.zeros((len(texts), 512), numpy.float32)
        for row, text in zip(rows, texts, strict=True):
            row[: 256 if "hotel" in text or "lodging" in text else 0] = 1 / 16
            row[256:] = 0 if row[0] else 1 / 16
        return rows


def test_meaning_chooses_where_words_do_not_and_every_word_is_still_accounted_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read("lodging in Porto").action is None
    monkeypatch.setattr(commands, "load_encoder", _Encoder)
    found = read("lodging in Porto")
    assert found.action is not None
    assert (found.action.name, found.input) == ("search_hotels", {"city": "Porto"})
    assert isinstance(found.reading, Ask)
    assert found.reading.left == ("lodging",)


def test_the_number_of_actions_hardly_matters_since_a_sentence_is_read_once() -> None:
    """By CPU time in one run, ten times the actions beside one."""
    nouns = "flights hotels rooms cars trains tickets tables restaurants products orders events songs films books pens"
    verbs = "book search cancel list check update rate share track compare"
    took = []
    for count in (1, 10):
        names = [f"{verb}_{noun}" for verb in verbs.split()[:count] for noun in nouns.split()]
        described = NLWebActionInfo(input_schema=_schema(["city"], city=TEXT, date=DAY, guests={"type": "integer"}))
        site = AIR.model_copy(update={"actions": dict.fromkeys(names, GO), "info": dict.fromkeys(names, described)})
        agent, index = agent_of(site), index_capabilities(actions_of(agent_of(site)))

        async def chosen(_: Agent, offered: Any, text: str, index: Any = index) -> Capability | None:
            return choose(index, offered, text, NOW.timestamp())

        async def often(agent: Agent = agent, chosen: Any = chosen) -> None:
            for _ in range(20):
                found = await understand(
                    "book rooms in Lisbon on december 3 for 2 guests", agent, actions_of(agent), choose=chosen, now=NOW
                )
                assert found.input == {"city": "Lisbon", "date": "2026-12-03", "guests": 2}

        asyncio.run(often())  # forms and patterns are made once
        began = time.process_time()
        asyncio.run(often())
        took.append(time.process_time() - began)
    assert took[1] < 5 * took[0]


@pytest.mark.requirement("RF-013-51")
@pytest.mark.parametrize(
    ("previous", "text", "action", "given"),
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
    previous: list[str], text: str, action: str, given: dict[str, Any]
) -> None:
    found = read(text, TABLES, previous)
    assert found.action is not None
    assert isinstance(found.reading, Understood)
    assert (found.action.name, found.input) == (action, given)


def test_what_says_all_by_itself_or_has_nothing_to_do_with_it_stands_alone() -> None:
    before = ["book a table for 3 people tomorrow"]
    assert read("restaurants in Rome", TABLES, before).input == {"city": "Rome"}
    cancel = read("cancel my booking", TABLES, before)
    assert cancel.action is not None
    assert cancel.action.name == "cancel_booking"
    assert [question.id for question in cancel.questions] == ["number"]
    assert read("sing me a song", TABLES, before).action is None
    assert read("and do not book it", TABLES, before).refusal is not None


def test_what_is_still_open_after_both_is_asked() -> None:
    found = read("and for two people?", TABLES, ["book a table"])
    assert found.action is not None
    assert (found.action.name, found.input) == ("book_table", {"people": 2})
    assert [question.id for question in found.questions] == ["date"]
    strange = read("and with my dog?", TABLES, ["book a table for 3 people tomorrow"])
    assert isinstance(strange.reading, Ask)
    assert "dog" in strange.reading.left


def test_a_long_conversation_is_looked_at_as_far_as_it_matters() -> None:
    many = ["book a table for 3 people tomorrow", *["and thanks"] * 60]
    assert "date" not in read("and for two people?", TABLES, many).input
    assert read("and for two people?", TABLES, many[:4]).input == {"people": 2, "date": "2026-11-17"}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("and for two people?", "book a table tomorrow, for two people"),
        ("¿Y con terraza?", "book a table tomorrow, con terraza"),
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


def test_a_short_answer_is_asked_about_in_the_language_of_the_conversation() -> None:
    found = read("Lisboa", previous=["quiero reservar una mesa para mañana"])
    assert isinstance(found.reading, Ask)
    assert found.reading.language == "es"


def test_of_a_message_too_long_to_read_no_part_is_taken_for_the_whole() -> None:
    found = read("cancel my booking 4" + " " * 3_000 + "only if it is refunded")
    assert (found.action, isinstance(found.reading, Ask)) == (None, True)
