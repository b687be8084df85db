"""Commands to actions: patterns, words, meaning, the model, slots in two languages, and questions."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from agent3.definitions import ActionType, NLWebAction, NLWebActionInfo, NLWebInterface
from agent3.llm import Scripted, ToolCall
from agent3.protocols.nlweb.commands import Resolution, resolve, resolve_with_model

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


def read(command: str, interface: NLWebInterface = AIR) -> Resolution:
    return resolve(command, interface, now=NOW)


@pytest.mark.requirement("RF-013-51")
@pytest.mark.parametrize(
    ("command", "action", "slots"),
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
            "busca vuelos de Madrid a París el 15 de diciembre para dos pasajeros por menos de 200 euros",
            "search_flights",
            {"origin": "Madrid", "destination": "París", "date": "2026-12-15", "passengers": 2, "max_price": 200},
        ),
        (
            "find me a hotel in Lisbon from december 3 to december 7 for 2 guests",
            "search_hotels",
            {"city": "Lisbon", "check_in": "2026-12-03", "check_out": "2026-12-07", "guests": 2},
        ),
        ("cancel booking code XK34", "cancel_booking", {"code": "XK34"}),
        ("cancela la reserva con code XK34", "cancel_booking", {"code": "XK34"}),
        ("check_status", "check_status", {}),
    ],
)
def test_a_command_becomes_an_action_with_its_parameters(command: str, action: str, slots: dict[str, Any]) -> None:
    found = read(command)
    assert (found.action, found.slots, found.missing, found.question) == (action, slots, [], None)


@pytest.mark.requirement("RF-013-51")
def test_without_a_schema_the_placeholders_of_the_steps_are_filled() -> None:
    assert read("search for red running shoes", SHOP).slots == {"query": "red running shoes"}
    assert read('add "Blue Mug" to the cart', SHOP).slots == {"product": "Blue Mug"}


@pytest.mark.requirement("RF-013-52")
def test_a_missing_parameter_is_asked_for_and_never_made_up() -> None:
    found = read("flights from Madrid to Paris")
    assert found.action == "search_flights"
    assert found.slots == {"origin": "Madrid", "destination": "Paris"}
    assert found.missing == ["date"]
    assert found.question == "To search flights I still need: date."


@pytest.mark.requirement("RF-013-52")
def test_an_ambiguous_command_is_answered_with_the_best_candidates() -> None:
    found = read("search something nice")
    assert found.action is None
    assert {candidate.action for candidate in found.candidates[:2]} == {"search_flights", "search_hotels"}
    assert found.question is not None
    assert "search flights" in found.question


@pytest.mark.requirement("RF-013-52")
def test_the_question_is_in_the_language_of_the_command() -> None:
    found = read("quiero cancelar mi reserva")
    assert found.question == "Para cancel booking me falta: code."
    nothing = read("quiero pedir una pizza con queso")
    assert nothing.action is None
    assert nothing.question is not None
    assert nothing.question.startswith("No sé hacer eso aquí.")


@pytest.mark.requirement("RF-013-52")
def test_a_date_that_can_be_read_in_two_ways_is_asked_about() -> None:
    found = read("flights to Rome from Oslo on 03/04/2027")
    assert found.missing == ["date"]
    assert "date" not in found.slots
    assert found.question == "Is date 2027-03-04 or 2027-04-03?"
    spanish = read("vuelos de Oslo a Roma el 03/04/2027")
    assert spanish.slots["date"] == "2027-04-03"


def test_a_command_that_nothing_fits_is_not_forced_onto_an_action() -> None:
    found = read("order a pizza")
    assert found.action is None
    assert found.score < 0.2


class _Meaning:
    """Vectors by hand: sleeping and hotels point the same way."""

    def embed(self, texts: Any) -> Any:
        import numpy

        rows = [[1.0, 0.0] if "sleep" in text or "hotel" in text else [0.0, 1.0] for text in texts]
        return numpy.array(rows)


def test_meaning_decides_where_words_do_not() -> None:
    command = "I need somewhere to sleep in Porto next friday"
    assert read(command).action is None
    found = resolve(command, AIR, semantic=_Meaning(), now=NOW)
    assert (found.action, found.how) == ("search_hotels", "meaning")
    assert found.slots == {"city": "Porto", "check_in": "2026-11-20"}


def test_the_model_is_asked_last_and_what_it_makes_up_is_dropped() -> None:
    model = Scripted(ToolCall("1", "cancel_booking", {"code": "ZZ9", "card": "4111"}))
    found = asyncio.run(resolve_with_model("get me out of ZZ9", AIR, model, now=NOW))
    assert (found.action, found.slots, found.how) == ("cancel_booking", {"code": "ZZ9"}, "model")
    sure = Scripted()
    assert asyncio.run(resolve_with_model("cancel booking code XK34", AIR, sure, now=NOW)).how == "words"
    assert sure.asked == []


def test_a_model_that_asks_is_the_question() -> None:
    async def ask() -> Resolution:
        return await resolve_with_model("do the thing", AIR, Scripted("Which booking?"), now=NOW)

    found = asyncio.run(ask())
    assert (found.action, found.question) == (None, "Which booking?")
