"""The five verbs, without a door in front."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from agent3 import Context, LocalAgent
from agent3.errors import AgentNotFound, CapabilityNotFound, JobNotFound, RateLimited, ValidationError
from agent3.gateway import Caller, CallRequest, Gateway, response
from agent3.model import (
    LOCAL,
    Agent,
    Artifact,
    Call,
    Capability,
    Done,
    Failed,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Route,
    Usage,
    Working,
    value_of,
)
from agent3.server.build import Server, build
from agent3.settings import Limits, Rule, Settings, Storage
from tests.support.home import until

ME = Caller(LOCAL, "test")


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story, 100)

    asyncio.run(bounded())


@asynccontextmanager
async def opened(*agents: LocalAgent, rules: tuple[Rule, ...] = ()) -> AsyncIterator[Server]:
    settings = Settings(storage=Storage(url="sqlite://"), rules=rules)
    async with build(settings, agents) as server:
        yield server


def travel() -> LocalAgent:
    agent = LocalAgent("Travel", description="Books journeys")

    @agent.capability(read_only=True)
    def search_flights(query: str) -> str:
        """Search for flights between two cities."""
        return f"flights: {query}"

    @agent.capability
    def book_hotel(message: str) -> str:
        """Book a room in a hotel."""
        return f"hotel: {message}"

    @agent.capability(replay=True)
    async def survey(ctx: Context) -> dict[str, Any]:
        """Ask many things."""
        many = await ctx.ask("How many?", int)
        sure = await ctx.ask("Sure?", bool)
        which = await ctx.ask("Which?", list[str])
        name = await ctx.ask("Name?", str)
        return {"many": many, "sure": sure, "which": which, "name": name}

    return agent


async def call(gateway: Gateway, agent: str, message: str = "", **more: Any) -> Outcome:
    return await gateway.call(ME, CallRequest(agent=agent, message=message, **more))


async def used(server: Server, agent: str, *principals: Principal) -> None:
    """Each of them has called the agent before: only so may they rate it."""
    rows = [(f"{agent} {who.id}", 1.0, who.id, agent, "done", 0.1, 1) for who in principals]
    columns = ("id", "at", "principal", "agent", "status", "seconds", "attempts")
    await server.database.append("calls", columns, rows)


def test_the_capability_is_the_one_whose_words_fit_best() -> None:
    async def story() -> None:
        async with opened(travel()) as server:
            flights = await call(server.gateway, "travel", "search flights to Paris")
            assert isinstance(flights, Done)
            assert value_of(flights.parts) == "flights: Paris"
            hotel = await call(server.gateway, "travel", "a room in a nice hotel")
            assert isinstance(hotel, Done)
            assert value_of(hotel.parts).startswith("hotel:")
            asked = await call(server.gateway, "travel", "hm")
            assert isinstance(asked, Needs)
            assert asked.questions[0].schema == {"type": "string", "enum": ["search_flights", "book_hotel", "survey"]}

    run(story())


def test_a_capability_can_be_named_and_a_wrong_name_gets_the_nearest() -> None:
    async def story() -> None:
        async with opened(travel()) as server:
            named = await call(server.gateway, "travel", "a room in Rome", capability="book_hotel")
            assert isinstance(named, Done)
            with pytest.raises(CapabilityNotFound, match="Did you mean 'book_hotel'") as refusal:
                await call(server.gateway, "travel", "hm", capability="book_hotl")
            assert refusal.value.data == {"nearest": ["book_hotel"]}
            with pytest.raises(CapabilityNotFound, match="It has book_hotel, search_flights, survey") as other:
                await call(server.gateway, "travel", "hm", capability="zzz")
            assert other.value.data == {}

    run(story())


def test_an_agent_without_capabilities_says_so() -> None:
    async def story() -> None:
        async with opened(LocalAgent("Empty")) as server:
            with pytest.raises(CapabilityNotFound, match="no capability that can be called"):
                await call(server.gateway, "empty", "x")

    run(story())


@pytest.mark.parametrize("status", ["suspended", "retired"])
def test_an_agent_out_of_service_takes_no_calls(status: Any) -> None:
    async def story() -> None:
        async with opened() as server:
            capability = Capability(name="do", routes=(Route("local", "gone", "do"),))
            await server.directory.add(Agent(id="gone", name="Gone", status=status, capabilities=(capability,)))
            with pytest.raises(AgentNotFound, match=status):
                await call(server.gateway, "gone", "x")

    run(story())


def test_texts_answer_questions_of_every_kind() -> None:
    async def story() -> None:
        async with opened(travel()) as server:
            asked = await call(server.gateway, "travel", capability="survey")
            for said in ("3", "true", '["a", "b"]', "42"):
                assert isinstance(asked, Needs)
                assert asked.job is not None
                assert "invalid: " not in asked.questions[0].text
                asked = await server.gateway.reply(ME, asked.job, said)
            assert isinstance(asked, Done)
            assert value_of(asked.parts) == {"many": 3, "sure": True, "which": ["a", "b"], "name": "42"}

    run(story())


def test_several_questions_can_be_answered_one_after_the_other() -> None:
    heard: list[tuple[list[str], dict[str, Any]]] = []

    class Form:
        """Asks three things at once, and says what it was told."""

        async def describe(self, address: str) -> Agent:
            return Agent(id=address, name=address)

        async def call(self, given: Call) -> Outcome:
            if given.entry == "start":
                names = {"name": "string", "age": "integer", "sure": "boolean"}
                return Needs(tuple(Question(one, f"{one}?", {"type": kind}) for one, kind in names.items()))
            said = {key: answer.data for key, answer in given.answers.items()}
            heard.append(([one.id for one in given.questions], said))
            return Done((Part(data=said),))

        async def aclose(self) -> None:
            pass

    async def story() -> None:
        async with opened() as server:
            cast("dict[str, Any]", server.core.connectors)["form"] = Form()
            capability = Capability(name="fill", routes=(Route("form", "form", "fill"),))
            await server.directory.add(Agent(id="form", name="Form", capabilities=(capability,)))
            outcome = await call(server.gateway, "form", "x")
            for said, left in (("Ann", 2), ("seven", 2), ("7", 1)):
                assert isinstance(outcome, Needs)
                outcome = await server.gateway.reply(ME, str(outcome.job), said)
                assert isinstance(outcome, Needs)
                assert len(outcome.questions) == left
                assert ("invalid: " in outcome.questions[0].text) == (said == "seven")
            assert isinstance(outcome, Needs)
            outcome = await server.gateway.reply(ME, str(outcome.job), "Yes.")
            assert isinstance(outcome, Done)
            assert heard == [(["name", "age", "sure"], {"name": "Ann", "age": 7, "sure": True})]

    run(story())


def test_a_question_can_be_declined_or_answered_by_id() -> None:
    async def story() -> None:
        async with opened(travel()) as server:
            asked = await call(server.gateway, "travel", capability="survey")
            assert isinstance(asked, Needs)
            assert asked.job is not None
            with pytest.raises(ValidationError, match="Its questions are: q1"):
                await server.gateway.reply(ME, asked.job, {"nobody asked this": 1})
            asked = await server.gateway.reply(ME, asked.job, {"q1": 3})
            assert isinstance(asked, Needs)
            declined = await server.gateway.reply(ME, str(asked.job), {"q2": {"action": "decline"}})
            assert isinstance(declined, Failed)
            assert declined.code == "declined"

    run(story())


def test_a_job_belongs_to_its_agent_and_its_owner() -> None:
    async def story() -> None:
        async with opened(travel()) as server:
            asked = await call(server.gateway, "travel", capability="survey")
            assert isinstance(asked, Needs)
            job = str(asked.job)
            with pytest.raises(JobNotFound, match="other"):
                await server.gateway.reply(ME, job, "3", "other")
            with pytest.raises(JobNotFound):
                await server.gateway.reply(Caller(Principal("stranger")), job, "3")
            with pytest.raises(JobNotFound):
                await server.gateway.wait(Caller(Principal("stranger")), job, 0.1)
            assert isinstance(await server.gateway.wait(ME, job, 0.1, "travel"), Needs)

    run(story())


def test_rules_narrow_what_is_seen_selected_and_called() -> None:
    rules = (Rule("deny", principal="guest", capability="book_*"), Rule("allow"))
    guest = Caller(Principal("guest"))

    async def story() -> None:
        async with opened(travel(), rules=rules) as server:
            found = await server.gateway.search(guest, "travel")
            assert {one["capability"] for one in found["agents"]} == {"search_flights", "survey"}
            listed = await server.gateway.find_agents(guest)
            assert [one["name"] for one in listed["agents"][0]["capabilities"]] == ["search_flights", "survey"]
            shown = await server.gateway.select(guest, "travel")
            assert [one["name"] for one in shown["capabilities"]] == ["search_flights", "survey"]
            card = await server.gateway.invoke(guest, "travel")
            assert [one["id"] for one in card["skills"]] == ["search_flights", "survey"]
            with pytest.raises(CapabilityNotFound) as refusal:
                await server.gateway.call(guest, CallRequest(agent="travel", capability="book_hotel"))
            assert "book_hotel" not in str(refusal.value.data)
            rows = await server.database.all("SELECT principal, capability, status, code, door FROM calls")
            assert [dict(row) for row in rows] == [
                {
                    "principal": "guest",
                    "capability": "book_hotel",
                    "status": "refused",
                    "code": "capability_not_found",
                    "door": "library",
                }
            ]

    run(story())


def test_the_card_an_agent_came_with_is_shown_as_it_is_unless_it_would_tell_too_much() -> None:
    rules = (Rule("deny", principal="guest", capability="secret"), Rule("allow"))
    route = (Route("local", "carded", "x", credential="env:TOKEN"),)
    both = (Capability(name="plain", routes=route), Capability(name="secret", routes=route))

    async def story() -> None:
        async with opened(rules=rules) as server:
            await server.directory.add(
                Agent(id="carded", name="C", capabilities=both, card={"skills": ["plain", "secret"]})
            )
            assert await server.gateway.invoke(ME, "carded") == {"skills": ["plain", "secret"]}
            narrowed = await server.gateway.invoke(Caller(Principal("guest")), "carded")
            assert [one["id"] for one in narrowed["skills"]] == ["plain"]
            assert "TOKEN" not in str(narrowed)

    run(story())


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:pw@host.test:8443/mcp/v1?key=hidden#hidden", "https://host.test:8443/mcp/v1"),
        ("https://[::1]:80/x?hidden", "https://[::1]:80/x"),
        ('stdio:{"command":"/opt/bin/server","args":["--token","hidden"],"env":{"K":"hidden"}}', "stdio:server"),
        ('stdio:{"command":"C:\\\\bin\\\\server.exe","args":["hidden"]}', "stdio:server.exe"),
        ("stdio:hidden hidden", "stdio:"),
        ("http://[hidden", ""),
        ("travel", "travel"),
    ],
)
def test_a_card_made_here_tells_where_but_no_credential(address: str, shown: str) -> None:
    async def story() -> None:
        async with opened() as server:
            capability = Capability(name="do", routes=(Route("mcp", address, "do"),))
            await server.directory.add(Agent(id="a", name="A", capabilities=(capability,)))
            card = await server.gateway.invoke(ME, "a")
            assert card["skills"][0]["interfaces"] == [{"protocol": "mcp", "address": shown}]
            assert "hidden" not in str(card)
            assert "pw" not in str(card)

    run(story())


def test_a_caller_has_one_rating_of_an_agent_in_storage() -> None:
    async def story() -> None:
        async with opened(travel(), LocalAgent("Other")) as server:
            await used(server, "travel", ME.principal, Principal("you"))
            await used(server, "other", ME.principal)
            for rating in (1, 2, 3, 4):
                await server.gateway.feedback(ME, "travel", rating, f"word {rating}")
                await server.gateway.feedback(Caller(Principal("you")), "travel", 5)
            await server.gateway.feedback(ME, "other", 2)
            rows = await server.database.all("SELECT agent, principal, rating FROM feedback ORDER BY agent, principal")
            assert [(row["agent"], row["principal"], row["rating"]) for row in rows] == [
                ("other", LOCAL.id, 2),
                ("travel", LOCAL.id, 4),
                ("travel", "you", 5),
            ]

    run(story())


def test_verbs_that_are_no_calls_share_one_generous_meter_for_each_client() -> None:
    client = Caller(Principal("greedy", "client"))
    settings = Settings(storage=Storage(url="sqlite://"), limits=Limits(per_minute=1, burst=1))

    async def story() -> None:
        async with build(settings, [travel()]) as server:
            gateway = server.gateway
            verbs: list[Callable[[], Awaitable[Any]]] = [
                lambda: gateway.search(client, "travel"),
                lambda: gateway.select(client, "travel"),
                lambda: gateway.invoke(client, "travel"),
                lambda: gateway.feedback(client, "travel", 5),
                lambda: gateway.answer(client, "any", {}),
            ]
            await used(server, "travel", client.principal)
            for number in range(10):
                await verbs[number % 4]()
            for verb in verbs:
                with pytest.raises(RateLimited, match="greedy") as refusal:
                    await verb()
                assert refusal.value.retry_after
            assert (await gateway.search(Caller(Principal("modest", "client")), ""))["count"] == 1
            for _ in range(30):
                await gateway.search(ME, "travel")

    run(story())


def test_bounds_hold_for_callers_without_a_schema_in_front() -> None:
    async def story() -> None:
        async with opened(travel()) as server:
            for wrong in ({"timeout": -1}, {"timeout": 1e9}, {"retries": 11}, {"retries": True}):
                with pytest.raises(ValidationError, match="must be a number from"):
                    await call(server.gateway, "travel", "hm", capability="book_hotel", **wrong)
            with pytest.raises(ValidationError, match="1 to 5"):
                await server.gateway.feedback(ME, "travel", 9)

    run(story())


def test_ratings_show_in_search_and_count_once_for_each_caller() -> None:
    async def story() -> None:
        async with opened(travel()) as server:
            await used(server, "travel", ME.principal, Principal("other"))
            await server.gateway.feedback(ME, "travel", 1, "bad")
            await server.gateway.feedback(ME, "travel", 4, "better")
            told = await server.gateway.feedback(Caller(Principal("other")), "travel", 5)
            assert told["rating"] == {"count": 2, "mean": 4.5}
            assert (await server.gateway.search(ME, ""))["agents"][0]["rating"] == {"mean": 4.5, "count": 2}

    run(story())


OUTCOMES: list[tuple[Outcome, dict[str, Any], int]] = [
    (Done((Part(data={"a": 1}),)), {"success": True, "result": {"a": 1}}, 200),
    (Done(), {"success": True, "result": None}, 200),
    (
        Failed("unavailable", "It is down", retryable=True, retry_after=2.5, data={"x": 1}, parts=(Part(text="half"),)),
        {"success": False, "error": "It is down", "errorCode": "unavailable", "details": {"x": 1}, "result": "half"},
        503,
    ),
    (Failed("their own code", "Odd"), {"success": False, "errorCode": "their own code", "retryable": False}, 502),
    (Needs((Question("q1", "Which?"),), job="j"), {"success": False, "status": "needs", "job": "j"}, 200),
    (Working(job="j", text="baking"), {"success": False, "status": "working", "job": "j", "text": "baking"}, 202),
]


@pytest.mark.parametrize(("outcome", "expected", "status"), OUTCOMES)
def test_every_outcome_has_the_form_of_the_design(outcome: Outcome, expected: dict[str, Any], status: int) -> None:
    body = response(outcome, 0.0123)
    assert {key: body[key] for key in expected} == expected
    assert body["metadata"]["responseTime"] == 12.3
    assert body["metadata"]["statusCode"] == status


def test_usage_and_artifacts_are_told() -> None:
    usage = Usage(tokens=12, cost=0.0000014, retries=2)
    done = Done((Part(text="x"),), artifacts=(Artifact("a", parts=(Part(text="y"),)),), usage=usage)
    body = response(done, 1.0)
    assert body["result"]["value"] == "x"
    assert body["result"]["artifacts"][0]["id"] == "a"
    assert {key: body["metadata"][key] for key in ("tokensUsed", "cost", "retryCount")} == {
        "tokensUsed": 12,
        "cost": 0.000001,
        "retryCount": 2,
    }


def test_agents_that_were_looked_at_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.directory.packed._HELD", 5)

    def alive() -> int:
        gc.collect()
        return sum(isinstance(one, Agent) and one.id.startswith("many-") for one in gc.get_objects())

    capability = Capability(name="do", routes=(Route("mcp", "https://tools.example.com/mcp", "do"),))

    async def story() -> None:
        async with opened() as server:
            for number in range(40):
                await server.gateway.directory.add(Agent(id=f"many-{number}", name="Many", capabilities=(capability,)))
            for caller in (ME, Caller(Principal("other", "client"), "test")):
                for number in range(40):
                    assert (await server.gateway.select(caller, f"many-{number}"))["id"] == f"many-{number}"
            await until(lambda: alive() < 15)  # what is being renewed is held meanwhile

    run(story())
