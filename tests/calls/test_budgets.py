"""Prices, budgets, cost standards, rates and bodies: through every step of a real core, on every database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.calls.core import Core
from agent3.calls.history import History
from agent3.calls.outcomes import NOTICES, read_usage, response
from agent3.calls.runner import Target
from agent3.env import REAL, Env, SeededEnv
from agent3.errors import ValidationError
from agent3.model import (
    LOCAL,
    Agent,
    Answer,
    Call,
    Capability,
    Connector,
    Done,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Price,
    Principal,
    Question,
    Route,
    Traits,
    Usage,
    Working,
)
from agent3.observe.metrics import Metrics
from agent3.protocols.a2a.peer.connector import A2AConnector
from agent3.protocols.functions.functions import LocalConnector
from agent3.protocols.mcp.client.connector import MCPConnector
from agent3.protocols.nlweb.connector import NLWebConnector
from agent3.settings import Budget, Calls, Costs, Limits, PriceRule, Rate, Server, Settings
from agent3.storage import Database, open_database
from tests.support.rig import Script

ALICE, BOB = Principal("alice"), Principal("bob")
DONE = Done((Part(text="fine"),))
DAY = 86_400.0


TRAITS = {
    "mcp": MCPConnector.traits,
    "a2a": A2AConnector.traits,
    "nlweb": NLWebConnector.traits,
    "local": LocalConnector.traits,
}


class _As:
    """A script, with targets that are like those of a protocol."""

    def __init__(self, script: Script, traits: Traits):
        self.traits = traits
        self.describe, self.call, self.aclose = script.describe, script.call, script.aclose


class House:
    """A core with one agent of each protocol, all of which answer by the same script."""

    def __init__(
        self, database: Database, settings: Settings, env: Env, script: Script, schema: dict[str, Any], hints: Hints
    ):
        self.script = script
        self.schema = schema
        self.hints = hints
        self.metrics = Metrics()
        self.database = database
        connectors: dict[str, Connector] = {name: _As(script, traits) for name, traits in TRAITS.items()}

        async def lookup(agent: str, capability: str) -> Target:
            return self.target(agent, capability)

        self.core = Core.build(settings, database, connectors, lookup, env=env, metrics=self.metrics)

    def target(self, agent: str, name: str = "do", price: Price = Price()) -> Target:  # noqa: B008 - frozen
        strict = {"type": "object", "required": ["x"]} if name == "strict" else self.schema
        routes = (Route(agent, f"{agent}:x"),)
        capability = Capability(name=name, routes=routes, price=price, input_schema=strict, hints=self.hints)
        return Agent(id=agent, name=agent, capabilities=(capability,)), capability

    async def call(
        self,
        who: Principal = ALICE,
        agent: str = "mcp",
        name: str = "do",
        price: Price = Price(),  # noqa: B008 - frozen
        **more: Any,
    ) -> Outcome:
        target = self.target(agent, name, price)
        call = Call(
            id=REAL.id(), principal=who, agent=agent, capability=name, input={}, routes=target[1].routes, **more
        )
        return await self.core.runner.start(call, target)

    async def codes(self, count: int, who: Principal = ALICE, **more: Any) -> list[str]:
        """How some calls ended, one after the other."""
        ended = [await self.call(who, **more) for _ in range(count)]
        return [one.code if isinstance(one, Failed) else "done" for one in ended]

    async def ask(self, words: str) -> Needs:
        """A call in words that leave something open."""
        target = self.target("mcp")
        call = Call(id=REAL.id(), principal=ALICE, agent="mcp", capability="do", parts=(Part(text=words),))
        asked = await self.core.runner.start(call, target)
        assert isinstance(asked, Needs)
        return asked

    async def spent(self) -> list[float]:
        """What the budgets have counted, settled."""
        await self.core.parts.budgets.aclose()
        rows = await self.database.all("SELECT usd FROM budget_spent ORDER BY key, period")
        return [row["usd"] for row in rows]

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def house(
    url: str,
    *answers: Any,
    env: Env = REAL,
    schema: dict[str, Any] | None = None,
    hints: Hints = Hints(),  # noqa: B008 - frozen
    **settings: Any,
) -> AsyncIterator[House]:
    database = await open_database(url)
    chosen = {"limits": Limits(per_minute=0), "calls": Calls(breaker_failures=1_000), **settings}
    it = House(database, Settings(**chosen), env, Script(*(answers or (DONE,))), schema or {}, hints)
    try:
        yield it
    finally:
        await it.core.aclose()
        await database.aclose()


def run(story: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


# Prices


@pytest.mark.requirement("AC-19")
def test_a_price_is_what_the_operator_set_else_the_settings_else_the_agents_own(url: str) -> None:
    async def story() -> None:
        rules = (PriceRule(agent="m*", capability="do", call=0.2), PriceRule(agent="a2a", second=1.0))
        async with house(url, prices=rules) as it:
            own = Price(call=0.7)

            async def cost(agent: str, name: str = "do") -> float:
                ended = await it.call(agent=agent, name=name, price=own)
                assert isinstance(ended, Done)
                assert ended.usage is not None
                assert response(ended, 0.0)["metadata"].get("costEstimated") is True
                return ended.usage.cost

            assert [await cost("mcp"), await cost("mcp", "other"), await cost("local")] == [0.2, 0.7, 0.7]
            prices = it.core.parts.prices
            await prices.set("mcp", None, Price(call=0.3))
            assert [await cost("mcp"), await cost("mcp", "other")] == [0.3, 0.3]
            await prices.set("mcp", "do", Price(call=0.4))
            assert [await cost("mcp"), await cost("mcp", "other")] == [0.4, 0.3]
            await prices.set("mcp", "do", None)
            await prices.set("mcp", None, None)
            assert await cost("mcp") == 0.2
            with pytest.raises(ValidationError, match="from 0 to"):
                await prices.set("mcp", None, Price(call=-1.0))

    run(story)


def test_a_price_that_another_process_set_counts_after_the_next_look(tmp_path: Any) -> None:
    async def story() -> None:
        url = f"sqlite:///{tmp_path / 'two.db'}"
        async with house(url) as one, house(url) as other:
            await one.core.parts.prices.set("mcp", None, Price(call=0.5))
            ended = await other.call()
            assert isinstance(ended, Done)
            assert ended.usage is not None
            assert ended.usage.cost == 0.0
            await other.core.parts.prices.refresh()
            ended = await other.call()
            assert isinstance(ended, Done)
            assert ended.usage is not None
            assert ended.usage.cost == 0.5

    run(story)


@pytest.mark.parametrize(
    ("given", "usage"),
    [
        ({"cost": 0.25}, Usage(0, 0.25)),
        ({"usage": {"cost": 1, "totalTokens": 7}}, Usage(7, 1.0)),
        ({"usage": {"input_tokens": 3, "output_tokens": 4}}, Usage(7, 0.0)),
        ({"usage": {"tokens": 5, "total_tokens": 9}}, Usage(5, 0.0)),
        ({"cost": "0.25"}, None),
        ({"cost": True}, None),
        ({"usage": {"tokens": float("inf")}}, None),
        ({}, None),
        (None, None),
        ("cost", None),
    ],
)
def test_what_a_target_says_that_it_cost_is_read_where_it_is_a_number(given: Any, usage: Usage | None) -> None:
    assert read_usage(given) == usage


# Budgets


@pytest.mark.requirement("AC-19", "AC-26")
def test_a_budget_that_refuses_is_never_overdrawn_by_calls_at_once(url: str) -> None:
    world = SeededEnv(time=20 * DAY - 100.0)

    async def story() -> None:
        budgets = (Budget(usd=0.05, principal="alice", action="refuse"),)
        async with house(url, env=world, budgets=budgets, prices=(PriceRule(call=0.01),)) as it:
            ended = await asyncio.gather(*(it.call() for _ in range(20)))
            refused = [one for one in ended if isinstance(one, Failed)]
            assert len(refused) == 15
            assert len(it.script.calls) == 5
            assert {one.code for one in refused} == {"budget_exceeded"}
            assert {one.retry_after for one in refused} == {100.0}
            assert "$0.05 of $0.05 today" in refused[0].message
            assert response(refused[0], 0.0)["metadata"]["statusCode"] == 402
            assert it.value("agent3_budgets_exceeded_total", action="refuse", whose="alice") >= 15
            assert await it.codes(1, BOB) == ["done"]
            world.advance(101.0)
            assert await it.codes(6) == ["done"] * 5 + ["budget_exceeded"]

    run(story)


def test_two_processes_spend_one_budget(tmp_path: Any) -> None:
    async def story() -> None:
        url = f"sqlite:///{tmp_path / 'two.db'}"
        settings: dict[str, Any] = {
            "budgets": (Budget(usd=1.0, each="all", per="all", action="refuse"),),
            "prices": (PriceRule(call=0.1),),
        }
        async with house(url, **settings) as one, house(url, **settings) as other:
            first, second = await asyncio.gather(one.codes(8), other.codes(8, BOB))
            assert (first + second).count("done") == 10

    run(story)


def test_what_a_call_really_cost_is_counted_and_what_failed_before_it_was_sent_is_given_back(url: str) -> None:
    async def story() -> None:
        budgets = (Budget(usd=1.0, action="refuse"),)
        given = Done((Part(text="fine"),), usage=Usage(10, 0.6))
        async with house(url, given, budgets=budgets) as it:
            assert await it.codes(2) == ["done", "done"]  # nobody knew before that they would cost so much
            await it.core.parts.budgets.aclose()
            assert await it.codes(1) == ["budget_exceeded"]
        async with house(":memory:", budgets=budgets, prices=(PriceRule(call=0.5),)) as it:
            for _ in range(5):
                refused = await it.call(name="strict")
                assert isinstance(refused, Failed)
                assert refused.code == "invalid_input"
                await it.core.parts.budgets.aclose()
            assert it.script.calls == []
            assert await it.codes(3) == ["done", "done", "budget_exceeded"]

    run(story)


def test_a_detached_call_is_counted_once(url: str) -> None:
    async def story() -> None:
        budgets = (Budget(usd=0.5, action="refuse", each="agent"),)
        async with house(url, budgets=budgets, prices=(PriceRule(call=0.1),)) as it:
            for number in range(5):
                assert isinstance(await it.call(key=f"k{number}"), Done)
            assert isinstance(await it.call(key="k0"), Done)  # a repeated key is the same call
            refused = await it.call(key="k5")
            assert isinstance(refused, Failed)
            assert refused.code == "budget_exceeded"
            assert isinstance(await it.call(agent="local"), Done)

    run(story)


def test_a_budget_that_warns_says_so_in_the_answer_the_log_and_a_metric(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with house(url, budgets=(Budget(usd=0.2, each="pair"),), prices=(PriceRule(call=0.1),)) as it:
            notes = []
            for _ in range(3):
                ended = await it.call(agent="local")
                assert isinstance(ended, Done)
                notes.append(ended.meta.get(NOTICES))
                await it.core.parts.budgets.aclose()
            assert notes[0] is None
            assert notes[2] == ["Budget of alice at local: $0.3 of $0.2 spent today."]
            assert response(await it.call(agent="local"), 0.0)["metadata"]["notices"][0].startswith("Budget of alice")
            assert it.value("agent3_budgets_exceeded_total", action="warn", whose="alice at local") == 3
            assert caplog.text.count("Budget of alice at local") == 1

    run(story)


# What is spent, whatever becomes of the caller


ONE: dict[str, Any] = {
    "budgets": (Budget(usd=10.0, per="all", action="refuse"),),
    "prices": (PriceRule(call=1.0),),
}


def a_stuck_target() -> tuple[Callable[[Call], Any], asyncio.Event]:
    """A target that never answers, and when it was asked."""
    asked = asyncio.Event()

    async def wait(_: Call) -> Outcome:
        asked.set()
        await asyncio.Event().wait()
        return DONE

    return wait, asked


def test_a_caller_that_hangs_up_pays_for_what_was_sent(url: str) -> None:
    async def story() -> None:
        target, asked = a_stuck_target()
        async with house(url, target, **ONE) as it:
            for _ in range(2):
                asked.clear()
                calling = asyncio.create_task(it.call())
                await asked.wait()
                calling.cancel()
                await asyncio.wait([calling])
            assert await it.spent() == [2.0]
            await it.core.ledger.flush()
            rows = await it.database.all("SELECT status, attempts, cost FROM calls")
            assert [tuple(row.values()) for row in map(dict, rows)] == [("canceled", 1, 1.0)] * 2

    run(story)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_job_that_runs_when_the_gateway_stops_is_paid_once(tmp_path: Any, repeatable: bool) -> None:
    async def story() -> None:
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
        target, asked = a_stuck_target()
        hints = Hints(read_only=repeatable, idempotent=repeatable)
        async with house(url, target, hints=hints, server=Server(shutdown_seconds=0), **ONE) as it:
            calling = asyncio.create_task(it.call(key="k"))
            await asked.wait()
            await it.core.runner.aclose(0)
            await asyncio.wait([calling])
        async with house(url, hints=hints, **ONE) as it:
            assert await it.spent() == [1.0]
            assert await it.core.runner.recover() == 1
            ended = await it.call(key="k")
            assert isinstance(ended, Done) is repeatable
            assert await it.spent() == [1.0]
            await it.core.ledger.flush()
            assert sum(row["cost"] for row in await it.database.all("SELECT cost FROM calls")) == 1.0

    run(story)


def test_one_key_is_paid_once_however_often_it_comes_at_once(url: str) -> None:
    async def story() -> None:
        async with house(url, **ONE) as it:
            ended = await asyncio.gather(*(it.call(key="k") for _ in range(4)))
            assert all(isinstance(one, Done) for one in ended)
            assert len(it.script.calls) == 1
            assert await it.spent() == [1.0]

    run(story)


def test_of_two_answers_at_once_to_what_a_job_is_for_one_is_paid(url: str) -> None:
    async def story() -> None:
        async with house(url, **ONE) as it:
            runner, target = it.core.runner, it.target("mcp")
            call = Call(id=REAL.id(), principal=ALICE, agent="mcp", capability="do", input={}, routes=target[1].routes)
            unsaid = replace(call, capability="", routes=())
            asked = await runner.ask(
                unsaid, (target[0], Capability(name="")), Needs((Question("q", "Which?"),)), "test"
            )
            assert isinstance(asked, Needs)
            both = asyncio.Barrier(2)

            async def choose(*_: Any) -> tuple[Call, Target]:
                await both.wait()
                return call, target

            given = {"q": Answer(data="do")}
            ended = await asyncio.gather(
                *(runner.answer(ALICE, str(asked.job), given, choose=choose) for _ in range(2)), return_exceptions=True
            )
            assert sorted(type(one).__name__ for one in ended) == ["Done", "TurnTaken"]
            assert await it.spent() == [1.0]

    run(story)


def test_what_a_target_says_neither_undoes_a_set_price_nor_locks_its_callers_out(url: str) -> None:
    async def story() -> None:
        cheap = Done((Part(text="x"),), usage=Usage(1, 1e-9))
        async with house(url, cheap, **ONE) as it:
            assert await it.codes(11) == ["done"] * 10 + ["budget_exceeded"]
        dear = Done((Part(text="x"),), usage=Usage(1, 1e11))
        async with house(":memory:", dear, costs=Costs(reported_per_call=2.0), **ONE) as it:
            ended = await it.call(agent="local")
            assert _meta(ended)[NOTICES] == ["local reports a cost of $1e+11 for this call; $2 are counted."]
            assert await it.spent() == [2.0]
            assert it.value("agent3_reported_costs_capped_total", agent="local") == 1
            assert await it.codes(1, agent="a2a") == ["done"]

    run(story)


BOOK = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "day": {"type": "string", "format": "date"}},
    "required": ["city", "day"],
}


def test_what_was_asked_yesterday_is_given_back_to_yesterday(url: str) -> None:
    async def story() -> None:
        world = SeededEnv(time=20 * DAY + 100.0)
        budgets = (Budget(usd=3.0, action="refuse"),)
        async with house(url, env=world, budgets=budgets, prices=(PriceRule(call=1.0),), schema=BOOK) as it:
            asked = [await it.ask("book a room") for _ in range(3)]
            assert await it.spent() == [3.0]
            world.advance(DAY)
            declined = {question.id: Answer("decline") for question in asked[0].questions}
            assert isinstance(await it.core.runner.answer(ALICE, str(asked[0].job), declined), Failed)
            await it.core.runner.cancel(ALICE, str(asked[1].job))
            assert await it.spent() == [1.0], "nothing of it was sent"
            assert it.script.calls == []
            rows = await it.database.all("SELECT attempts, cost FROM calls WHERE entry = 'cancel'")
            assert [dict(row) for row in rows] == [{"attempts": 0, "cost": 0.0}]
            world.advance(8 * DAY)
            assert await it.core.jobs.expire() == 3
            assert await it.spent() == [0.0], "the last one is never answered"

    run(story)


def test_a_job_that_was_sent_costs_also_when_it_is_cancelled(url: str) -> None:
    async def story() -> None:
        asks = Needs((Question("q", "Which one?"),))
        async with house(url, asks, Failed("canceled", "stopped"), **ONE) as it:
            ended = await it.call()
            assert isinstance(ended, Needs)
            assert isinstance(await it.core.runner.cancel(ALICE, str(ended.job)), Failed)
            assert [call.entry for call in it.script.calls] == ["start", "cancel"]
            assert await it.spent() == [1.0]

    run(story)


def test_the_seconds_of_all_turns_of_a_job_cost(url: str) -> None:
    async def story() -> None:
        world = SeededEnv(time=20 * DAY)

        async def at_work(_: Call) -> Outcome:
            world.advance(100.0)
            return Working(poll=0.0, state="there") if len(it.script.calls) < 3 else DONE

        async with house(url, at_work, env=world, prices=(PriceRule(second=0.01),)) as it:
            ended = await it.call()
            assert isinstance(ended, Working)
            done = await it.core.runner.wait(ALICE, str(ended.job), 10_000)  # of its own clock
            assert isinstance(done, Done)
            assert done.usage is not None
            assert done.usage.cost == pytest.approx(3.0)

    run(story)


def test_what_could_not_be_sent_costs_nothing(url: str) -> None:
    async def story() -> None:
        async with house(url, Failed("unavailable", "refused", sent=False), calls=Calls(retries=0), **ONE) as it:
            assert await it.codes(1) == ["unavailable"]
            assert await it.spent() == [0.0]

    run(story)


# RT-014's cost standards


@pytest.mark.requirement("RT-014-C01", "RT-014-C02", "RT-014-C03")
@pytest.mark.parametrize(
    ("agent", "price", "count", "standard"),
    [
        ("mcp", 0.001, 100, None),
        ("mcp", 0.00101, 100, "tools_per_hundred"),
        ("a2a", 0.0, 10, None),
        ("a2a", 0.0001, 1, "agents_per_call"),
        ("nlweb", 0.02, 60, None),
        ("nlweb", 0.021, 1, "web_per_call"),
        ("local", 5.0, 3, None),
    ],
)
def test_the_cost_standards_of_rt_014_warn_by_default(
    agent: str, price: float, count: int, standard: str | None
) -> None:
    async def story() -> None:
        async with house(":memory:", prices=(PriceRule(call=price),)) as it:
            ended = [await it.call(agent=agent) for _ in range(count)][-1]
            assert isinstance(ended, Done)
            missed = it.metrics.cost_standards_missed
            if standard is None:
                assert NOTICES not in ended.meta
                assert not missed._children
            else:
                assert f"Cost standard {standard}: " in ended.meta[NOTICES][0]
                assert it.value("agent3_cost_standards_missed_total", standard=standard) == 1

    run(story)


@pytest.mark.requirement("RT-014-C03")
def test_fifty_sequences_that_are_each_cheap_enough_may_still_be_too_much_together() -> None:
    async def story() -> None:
        costs = Costs(web_per_call=1.0)
        async with house(":memory:", prices=(PriceRule(call=0.0201),), costs=costs) as it:
            for _ in range(49):
                assert NOTICES not in _meta(await it.call(agent="nlweb"))
            assert "the last 50 calls cost $1.005" in _meta(await it.call(agent="nlweb"))[NOTICES][0]
        async with house(
            ":memory:", prices=(PriceRule(call=9.0),), costs=Costs(web_per_call=-1, web_per_fifty=-1)
        ) as it:
            assert NOTICES not in _meta(await it.call(agent="nlweb"))

    run(story)


def _meta(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome, Done)
    return outcome.meta


# Rates


@pytest.mark.requirement("AC-18")
def test_an_agent_has_a_rate_that_all_callers_share_and_says_when_to_come_back(url: str) -> None:
    async def story() -> None:
        async with house(url, rates=(Rate(per_minute=1, burst=3, agent="mcp"),)) as it:
            assert await it.codes(2) == ["done", "done"]
            assert await it.codes(1, LOCAL) == ["done"]
            refused = await it.call(BOB)
            assert isinstance(refused, Failed)
            assert (refused.code, refused.retryable) == ("rate_limited", True)
            assert refused.retry_after is not None
            assert 0 < refused.retry_after <= 60
            assert "Agent 'mcp' accepts 1 calls per minute in total" in refused.message
            assert await it.codes(5, agent="a2a") == ["done"] * 5
            assert len(it.script.calls) == 8

    run(story)


@pytest.mark.requirement("AC-18")
def test_a_rate_of_a_capability_counts_each_one_and_each_client_where_it_says_so(url: str) -> None:
    async def story() -> None:
        rates = (Rate(per_minute=1, burst=2, capability="d*", each="client"),)
        async with house(url, rates=rates) as it:
            assert await it.codes(3) == ["done", "done", "rate_limited"]
            assert await it.codes(1, name="dig") == ["done"]
            assert await it.codes(1, BOB) == ["done"]
            assert await it.codes(4, name="eat") == ["done"] * 4

    run(story)


@pytest.mark.requirement("AC-18")
def test_two_processes_share_the_rate_of_an_agent(tmp_path: Any) -> None:
    async def story() -> None:
        url = f"sqlite:///{tmp_path / 'two.db'}"
        rates = (Rate(per_minute=1, burst=6),)
        async with house(url, rates=rates) as one, house(url, rates=rates) as other:
            first, second = await asyncio.gather(one.codes(6), other.codes(6, BOB))
            assert (first + second).count("done") == 6

    run(story)


# Bodies


@pytest.mark.requirement("AC-20")
@pytest.mark.parametrize("kind", ["off", "hashed", "full"])
def test_bodies_are_kept_as_the_settings_say_and_never_with_a_secret(url: str, kind: Any) -> None:
    async def story() -> None:
        async with house(url, calls=Calls(bodies=kind, body_bytes=200)) as it:
            await it.call(parts=(Part(text='my order, "password": "hunter22" and more'), Part(raw=b"\x00\x01")))
            await it.call(parts=(Part(text="x" * 1_000),))
            await it.core.parts.bodies.aclose()
            rows = await it.database.all("SELECT id FROM calls ORDER BY at")
            found = [await History(it.database, REAL).get(LOCAL, row["id"]) for row in rows]
            bodies = [one["turns"][0].get("body") for one in found]
            if kind == "off":
                assert bodies == [None, None]
                assert await it.database.all("SELECT * FROM call_bodies") == []
                return
            assert [body["kind"] for body in bodies] == [kind, kind]
            if kind == "hashed":
                assert all(body["request"].startswith("sha256:") and len(body["request"]) == 71 for body in bodies)
                assert bodies[0]["request"] != bodies[1]["request"]
                assert bodies[0]["response"] == bodies[1]["response"]
            else:
                assert "my order" in bodies[0]["request"]
                assert "hunter22" not in bodies[0]["request"]
                assert "<2 bytes" in bodies[0]["request"]
                assert bodies[0]["response"] == '{"parts":[{"text":"fine"}]}'
                assert bodies[1]["request"].endswith("… (cut)")
                assert len(bodies[1]["request"]) < 220

    run(story)


def test_bodies_are_removed_after_their_days() -> None:
    async def story() -> None:
        world = SeededEnv()
        async with house(":memory:", env=world, calls=Calls(bodies="full", body_days=2)) as it:
            await it.call()
            await it.core.parts.bodies.aclose()
            sweep = it.core.runner.takeover._sweep
            assert sweep is not None
            assert (await sweep())["bodies"] == 0
            world.advance(3 * DAY)
            assert (await sweep())["bodies"] == 1

    run(story)


def test_bodies_that_wait_are_bounded_in_bytes_and_a_bad_one_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with house(":memory:", calls=Calls(bodies="full")) as it:
            bodies = it.core.parts.bodies
            monkeypatch.setattr("agent3.calls.bodies._WAITING_BYTES", 3_000)
            for _ in range(5):
                await it.call(parts=(Part(raw=b"x" * 1_000),))
            await bodies.aclose()
            assert len(await it.database.all("SELECT id FROM call_bodies")) == 2
            assert it.value("agent3_events_dropped_total", reason="call body") == 3
            await it.call()
            bad = Call(id="bad", principal=ALICE, agent="mcp", capability="do", answers={"q": Answer(data=object())})
            bodies.keep(bad, None, 0)
            await it.call()
            await bodies.aclose()
            assert len(await it.database.all("SELECT id FROM call_bodies")) == 4
            assert it.value("agent3_events_dropped_total", reason="call body") == 4

    run(story)
