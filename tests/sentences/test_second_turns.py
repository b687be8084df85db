"""What is said to a question: words that drop the matter are no value, and a bare value starts nothing unasked."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from agent3 import Context, LocalAgent
from agent3.gateway import Caller, CallRequest
from agent3.model import LOCAL, Capability, Done, Failed, Needs, Outcome, Principal, Working
from agent3.sentences import Ask, Understood, read
from agent3.server.build import build
from agent3.settings import Limits, Settings, Storage

ME = Caller(LOCAL, "rest")
DROPPED = (
    "do not order it", "cancel", "stop", "I don't want it anymore", "nothing, forget it", "no quiero nada", "no",
    "nothing", "never mind", "olvídalo", "no gracias", "mejor no", "nada",
)  # fmt: skip


def shop(done: list[str]) -> LocalAgent:
    agent = LocalAgent("shop")

    @agent.capability(replay=True)
    async def order(ctx: Context, size: str) -> str:
        """Order a pizza."""
        done.append(topping := await ctx.ask("Which topping?"))
        return f"{size} {topping}"

    return agent


def test_the_open_questions_of_one_caller_are_bounded_and_counted() -> None:
    done: list[str] = []
    other = Caller(Principal("ada", "client"), "rest")
    order = CallRequest(agent="shop", capability="order", input={"size": "L"})

    async def story() -> None:
        settings = Settings(storage=Storage(url="sqlite://"), limits=Limits(questions=2))
        async with build(settings, [shop(done)]) as server:
            gateway = server.gateway
            first, _ = [await gateway.call(ME, order) for _ in range(2)]
            assert isinstance(first, Needs)
            assert first.job is not None
            for detach in (False, True):
                refused = await gateway.call(ME, replace(order, detach=detach))
                if isinstance(refused, Working) and refused.job is not None:
                    refused = await gateway.wait(ME, refused.job, 10)
                assert isinstance(refused, Failed)
                assert refused.code == "rate_limited"
            assert isinstance(await gateway.call(other, order), Needs)
            assert isinstance(await gateway.reply(ME, first.job, "ham"), Done)
            assert isinstance(await gateway.call(ME, order), Needs)
            count = gateway.core.metrics.registry.get_sample_value
            assert count("agent3_open_questions_refused_total", {"agent": "shop"}) == 2

    asyncio.run(story())


def files(done: list[str]) -> LocalAgent:
    agent = LocalAgent("files")

    @agent.capability
    def delete_file(path: str) -> str:
        """Delete a file."""
        done.append(path)
        return "deleted"

    return agent


@pytest.mark.parametrize("said", [*DROPPED, "mushrooms", '"nothing"'])
def test_an_answer_that_drops_the_matter_declines_the_question_of_a_function(said: str) -> None:
    done: list[str] = []

    async def story() -> Outcome:
        async with build(Settings(storage=Storage(url="sqlite://")), [shop(done)]) as server:
            asked = await server.gateway.call(ME, CallRequest(agent="shop", capability="order", input={"size": "L"}))
            assert isinstance(asked, Needs)
            assert asked.job is not None
            return await server.gateway.reply(ME, asked.job, said)

    outcome = asyncio.run(story())
    if said in DROPPED:
        assert isinstance(outcome, Failed)
        assert (outcome.code, done) == ("declined", [])
    else:
        assert isinstance(outcome, Done)
        assert done == [said]


@pytest.mark.parametrize("first", ["print /tmp/a.txt", "undelete /tmp/a.txt", "back up the file /tmp/a.txt"])
def test_a_bare_value_after_a_verb_that_was_not_understood_is_confirmed_with_what_will_be_done(first: str) -> None:
    done: list[str] = []

    async def story() -> None:
        async with build(Settings(storage=Storage(url="sqlite://")), [files(done)]) as server:
            asked = await server.gateway.call(ME, CallRequest(agent="files", message=first))
            assert isinstance(asked, Needs), asked
            assert asked.job is not None
            then = await server.gateway.reply(ME, asked.job, "/tmp/a.txt")
            assert isinstance(then, Needs), then
            assert "Delete a file" in then.questions[0].text
            assert done == []
            assert isinstance(await server.gateway.reply(ME, asked.job, "yes"), Done)
            assert done == ["/tmp/a.txt"]

    asyncio.run(story())


@pytest.mark.parametrize("message", ["send the file", "envía el informe", "submit the report", "send my letter"])
def test_a_thing_that_a_capability_has_nothing_to_do_with_stops_it(message: str) -> None:
    draft = Capability(name="send_draft", description="Send the last draft.", input_schema={"type": "object"})
    assert isinstance(read(draft, message, datetime(2026, 11, 16)), Ask)
    assert isinstance(read(draft, "send the draft", datetime(2026, 11, 16)), Understood)


@pytest.mark.parametrize(
    ("message", "understood"),
    [
        ("create user Ann but do not send the welcome mail", {"name": "Ann", "send_welcome_mail": False}),
        ("create user Ann. Don't send her the welcome mail.", {"name": "Ann", "send_welcome_mail": False}),
        ("create user Ann but don't tell Bob", None), ("crea el usuario Ann pero no se lo digas a Bob", None),
        ("create the user Ann quietly", None), ("create user Ann but don't do it yet", None),
        ("create user Ann and don't create user Bob", None),
        # A page is not searched for such clauses: that grows with the square of its length.
        (f"create user Ann{' ' * 2_000}but do not send the welcome mail", None),
    ],
)  # fmt: skip
def test_what_is_forbidden_beside_a_request_is_a_switch_or_stops_it(message: str, understood: Any) -> None:
    flag = {"type": "boolean", "description": "Send the welcome mail"}
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "send_welcome_mail": flag},
        "required": ["name"],
    }
    create = Capability(name="create_user", description="Create a user.", input_schema=schema)
    reading = read(create, message, datetime(2026, 11, 16))
    assert (reading.input if isinstance(reading, Understood) else None) == understood


def test_what_has_happened_is_not_put_into_the_future() -> None:
    day = {"type": "string", "format": "date", "description": "Day of the incident"}
    schema = {"type": "object", "properties": {"incident_date": day}, "required": ["incident_date"]}
    claim = Capability(name="file_claim", description="File an insurance claim.", input_schema=schema)
    now = datetime(2026, 11, 20)
    asked = read(claim, "file a claim for 14 November", now)
    assert isinstance(asked, Ask)
    assert asked.doubt == {"incident_date": ["'2027-11-14'", "'2026-11-14'"]}
    for said in ("yesterday", "14 November 2026"):
        assert isinstance(read(claim, f"file a claim for {said}", now), Understood)


def bank(done: list[tuple[str, float]]) -> LocalAgent:
    agent = LocalAgent("bank")

    @agent.capability
    def pay(payee: str, amount: float) -> str:
        """Pay an amount to somebody."""
        done.append((payee, amount))
        return "paid"

    return agent


@pytest.mark.parametrize("second", ["pay 20 euros to Bob", "who can I pay?"])
def test_a_new_sentence_or_a_question_is_no_value_of_what_was_asked(second: str) -> None:
    done: list[tuple[str, float]] = []

    async def story() -> None:
        async with build(Settings(storage=Storage(url="sqlite://")), [bank(done)]) as server:
            asked = await server.gateway.call(ME, CallRequest(agent="bank", capability="pay", message="pay 20"))
            assert isinstance(asked, Needs), asked
            assert asked.job is not None
            then = await server.gateway.reply(ME, asked.job, second)
            for answer in ("Bob", "yes"):
                if isinstance(then, Needs):
                    then = await server.gateway.reply(ME, asked.job, answer)
            assert isinstance(then, Done), then

    asyncio.run(story())
    assert done == [("Bob", 20)]


def test_a_question_as_an_answer_is_asked_again_and_drops_nothing() -> None:
    paid: list[tuple[float, str]] = []
    agent = LocalAgent("cashier")

    @agent.capability
    def pay(amount: float, person: str) -> str:
        """Pay a person an amount in euros."""
        paid.append((amount, person))
        return "paid"

    async def story() -> Outcome:
        async with build(Settings(storage=Storage(url="sqlite://")), [agent]) as server:
            outcome = await server.gateway.call(ME, CallRequest(agent="cashier", capability="pay", message="20 to him"))
            for said in ("what do you have?", "pay 20 euros to Bob"):
                assert isinstance(outcome, Needs), outcome
                assert outcome.job is not None
                assert paid == []
                outcome = await server.gateway.reply(ME, outcome.job, said)
            return outcome

    assert isinstance(outcome := asyncio.run(story()), Done), outcome
    assert paid == [(20.0, "Bob")]


@pytest.mark.parametrize(("said", "taken"), [("what do you have?", None), ("¿qué hay?", None), ('"what?"', '"what?"')])
def test_a_question_in_return_is_no_value_of_what_a_function_asks(said: str, taken: str | None) -> None:
    done: list[str] = []

    async def story() -> Outcome:
        async with build(Settings(storage=Storage(url="sqlite://")), [shop(done)]) as server:
            asked = await server.gateway.call(ME, CallRequest(agent="shop", capability="order", input={"size": "L"}))
            assert isinstance(asked, Needs)
            assert asked.job is not None
            then = await server.gateway.reply(ME, asked.job, said)
            if taken is None:
                assert isinstance(then, Needs), then
                assert then.questions[0].text.startswith("Which topping? (")
                assert done == []
                then = await server.gateway.reply(ME, asked.job, "ham")
            return then

    assert isinstance(outcome := asyncio.run(story()), Done), outcome
    assert done == [taken or "ham"]


def test_a_question_is_an_answer_where_a_text_is_asked_for() -> None:
    agent = LocalAgent("post")

    @agent.capability(replay=True)
    async def send(ctx: Context, to: str) -> str:
        """Send a message."""
        return str(await ctx.ask("Which message?"))

    async def story() -> Outcome:
        async with build(Settings(storage=Storage(url="sqlite://")), [agent]) as server:
            asked = await server.gateway.call(ME, CallRequest(agent="post", capability="send", input={"to": "Bob"}))
            assert isinstance(asked, Needs)
            assert asked.job is not None
            return await server.gateway.reply(ME, asked.job, "Where are you?")

    outcome = asyncio.run(story())
    assert isinstance(outcome, Done), outcome
    assert outcome.parts[0].text == "Where are you?"


def test_what_leaves_only_its_verb_open_is_confirmed() -> None:
    done: list[str] = []

    async def story() -> Outcome:
        async with build(Settings(storage=Storage(url="sqlite://")), [files(done)]) as server:
            asked = await server.gateway.call(
                ME, CallRequest(agent="files", capability="delete_file", message="the file /tmp/a.txt")
            )
            assert isinstance(asked, Needs), asked
            assert asked.job is not None
            assert asked.questions[0].text == "Delete a file: path /tmp/a.txt. Shall I do it?"
            assert done == []
            return await server.gateway.reply(ME, asked.job, "yes")

    assert isinstance(outcome := asyncio.run(story()), Done), outcome
    assert done == ["/tmp/a.txt"]
