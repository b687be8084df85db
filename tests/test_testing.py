"""The fakes for authors: a conversation in memory, with or without a restart at every turn."""

from __future__ import annotations

import pytest

from agent3 import testing
from agent3.errors import CapabilityNotFound
from agent3.model import Answer, Done, Failed, Needs, value_of
from agent3.protocols.functions import Context, LocalAgent, SyncContext
from tests.support.home import run

agent = LocalAgent("shop")
runs: list[str] = []


@agent.capability(replay=True)
async def order(ctx: Context, message: str) -> str:
    """Order something."""
    runs.append("order")
    size = await ctx.ask("Which size?")
    count = await ctx.ask("How many?", int)
    return f"{message} {count}{size}"


@agent.capability
def pay(ctx: SyncContext, amount: int = 1) -> str:
    """Pay for it."""
    return f"{amount} {ctx.ask('Sure?', bool)}"


def test_questions_are_answered_by_id_or_by_text() -> None:
    answers = {"Which size?": "l", "q2": 3}
    for how, expected in ((testing.call, 1), (testing.restarting, 3)):
        runs.clear()
        outcome = run(how(agent, "order", {"message": "pizza"}, answers=answers))
        assert isinstance(outcome, Done)
        assert value_of(outcome.parts) == "pizza 3l"
        assert len(runs) == expected


def test_a_message_is_enough_where_one_text_is_wanted() -> None:
    outcome = run(testing.restarting(agent, "order", message="pasta", answers={"q1": "s", "q2": 1}))
    assert isinstance(outcome, Done)
    assert value_of(outcome.parts) == "pasta 1s"


def test_the_conversation_ends_where_answers_end() -> None:
    outcome = run(testing.call(agent, "order", {"message": "x"}, answers={"q1": "l"}))
    assert isinstance(outcome, Needs)
    assert [one.text for one in outcome.questions] == ["How many?"]


def test_an_answer_that_is_not_taken_ends_the_conversation() -> None:
    outcome = run(testing.call(agent, "order", {"message": "x"}, answers={"q1": "l", "q2": "many"}), 10)
    assert isinstance(outcome, Needs)
    assert "invalid: " in outcome.questions[0].text


def test_an_answer_may_be_a_no() -> None:
    outcome = run(testing.call(agent, "pay", answers={"Sure?": Answer("decline")}))
    assert isinstance(outcome, Failed)
    assert outcome.code == "declined"


def test_input_is_checked_as_everywhere() -> None:
    outcome = run(testing.call(agent, "pay", {"amount": "much"}))
    assert isinstance(outcome, Failed)
    assert outcome.code == "invalid_input"


def test_an_unknown_capability_is_named() -> None:
    with pytest.raises(CapabilityNotFound, match="'nothing'"):
        run(testing.call(agent, "nothing"))


def test_the_seeded_world_is_there_for_authors() -> None:
    assert testing.SeededEnv(seed=1).id() == testing.SeededEnv(seed=1).id()
