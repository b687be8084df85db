"""The demo agents, each called through all steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent3 import testing
from agent3.model import Done, Failed, Needs, value_of
from agent3.server.demo import agents

ECHO, PIZZA, CALCULATOR, STORY, IMAGES = agents()


def run(agent: Any, capability: str, **more: Any) -> Any:
    return asyncio.run(testing.call(agent, capability, **more))


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2 * (3 + 4)", 14), ("7 // 2 - -1", 4), ("2 ** 10", 1024), ("2 ** -1", 0.5), ("10 % 4 / 4", 0.5), ("+3", 3)],
)
def test_the_calculator_calculates(expression: str, value: float) -> None:
    outcome = run(CALCULATOR, "calculate", given={"expression": expression})
    assert isinstance(outcome, Done)
    assert value_of(outcome.parts) == value


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "not arithmetic"),
        ("2 +", "not arithmetic"),
        ("1 / 0", "division by zero"),
        ("1e308 * 10", "too large"),
        ("(-8) ** 0.5", "not real"),
        ("9 ** 9 ** 9 ** 9", "too large"),
        ("__import__('os').system('x')", "Call is not arithmetic"),
        ("a + 1", "Name is not arithmetic"),
        ("'a' * 9", "Constant is not arithmetic"),
        ("True + 1", "Constant is not arithmetic"),
        ("1 << 99", "LShift is not supported"),
        ("1\x00", "1\\x00"),
        ("(" * 5000, "'((("),
        ("-" * 100_000 + "1", "cannot be evaluated"),
    ],
)
def test_the_calculator_says_what_it_cannot_do(expression: str, words: str) -> None:
    outcome = run(CALCULATOR, "calculate", given={"expression": expression})
    assert isinstance(outcome, Failed)
    assert outcome.code == "invalid_input"
    assert words in outcome.message
    assert len(outcome.message) < 300


def test_a_pizza_is_ordered_once_however_often_the_process_restarts() -> None:
    answers = {"q1": "small", "q2": "olives"}
    outcome = asyncio.run(testing.restarting(PIZZA, "order", message="a pizza", answers=answers))
    assert isinstance(outcome, Done)
    order = value_of(outcome.parts)
    assert (order["size"], order["topping"], order["status"]) == ("small", "olives", "confirmed")


def test_what_was_said_is_not_asked() -> None:
    outcome = run(PIZZA, "order", message="I want to order a large pepperoni pizza")
    assert isinstance(outcome, Done)
    assert value_of(outcome.parts)["topping"] == "pepperoni"


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ("a large pizza without pepperoni", "topping"),
        ("a large pizza, no pepperoni", "topping"),
        ("a small or large pepperoni pizza", "size"),
        ("una pizza grande", "topping"),
    ],
)
def test_what_is_left_out_or_named_twice_is_asked(message: str, asked: str) -> None:
    outcome = run(PIZZA, "order", message=message)
    assert isinstance(outcome, Needs)
    assert asked in outcome.questions[0].text


def test_no_pizza_is_made_of_a_message_that_forbids_asks_or_wants_several() -> None:
    codes = {"I don't want a large pepperoni pizza": "declined", "how much is a large pepperoni pizza?": "declined",
             "two large pepperoni pizzas": "invalid_input"}  # fmt: skip
    for message, code in codes.items():
        outcome = run(PIZZA, "order", message=message)
        assert isinstance(outcome, Failed)
        assert outcome.code == code


def test_the_guessing_game_ends() -> None:
    answers = {"q1": 1, "q2": 2, "q3": 3}
    for how in (testing.call, testing.restarting):
        outcome = asyncio.run(how(STORY, "guess", answers=answers))
        assert isinstance(outcome, Done)
        assert "Right, it was" in value_of(outcome.parts)


def test_the_echo_and_the_story_tell() -> None:
    assert value_of(run(ECHO, "say", message="hä?").parts) == "hä?"
    assert "a cat" in value_of(run(STORY, "tell", message="a cat").parts)
    assert "there was a robot," in value_of(run(STORY, "tell", message="tell me a story about a robot").parts)
    assert value_of(run(CALCULATOR, "calculate", message="what is 2 plus 3 times 4?").parts) == 14
