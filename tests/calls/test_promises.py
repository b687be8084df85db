"""The fourteen promises of the order. Each holds in the order as it is, and fails when its steps are moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from agent3.calls.approvals import APPROVE
from agent3.calls.order import ORDER, Chain
from agent3.errors import Conflict
from agent3.model import (
    Agent,
    Answer,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Price,
    Principal,
    Question,
    Route,
    StandIn,
    text_of,
)
from agent3.settings import ApprovalRule, Budget, Calls, Limits, PriceRule, Rule, Settings
from tests.support.rig import (
    CLIENT,
    DONE,
    DOWN,
    FORM,
    QUICK,
    UNLIMITED,
    Nested,
    OneSecret,
    Order,
    Rig,
    Script,
    hang,
    moved,
    rig,
)

Promise = Callable[[Order], Coroutine[Any, Any, None]]

IDEMPOTENT = Hints(idempotent=True)
FORM_OF_ONE = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
ONE_CALL = Limits(per_minute=0.001, burst=1)


async def denied_is_recorded_but_neither_charged_nor_sent(order: Order) -> None:
    rules = (Rule("deny", capability="secret"), Rule("allow"))
    target = Script()
    async with rig(target, order=order, settings=Settings(calls=QUICK, limits=ONE_CALL, rules=rules)) as it:
        hidden = Capability(name="secret", routes=it.capability.routes)
        refused = await it.call(capability=hidden)
        assert isinstance(refused, Failed)
        assert not target.calls
        assert [(row["status"], row["code"]) for row in await it.rows()] == [("denied", "forbidden")]
        assert isinstance(await it.call(), Done), "the denied call took the caller's only token"


async def charged_once(order: Order) -> None:
    async with rig(Script(DOWN), Script(DOWN, DONE), order=order, hints=IDEMPOTENT, limits=ONE_CALL) as it:
        assert isinstance(await it.call(), Done)


async def authorized_once_and_for_every_route(order: Order) -> None:
    settings = Settings(calls=QUICK, rules=(Rule("deny", protocol="b"), Rule("allow")))
    forbidden = Script()
    async with rig(Script(DOWN), forbidden, order=order, hints=IDEMPOTENT, settings=settings) as it:
        asked = 0
        narrow = it.core.access.narrow

        def counted(*given: object) -> tuple[Route, ...]:
            nonlocal asked
            asked += 1
            return narrow(*given)  # type: ignore[arg-type]

        it.core.access.narrow = counted  # type: ignore[assignment, method-assign]
        outcome = await it.call()
        assert isinstance(outcome, Failed)
        assert not forbidden.calls
        assert asked <= 2, "it was asked for every route or attempt"


async def invalid_input_never_arrives(order: Order) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 5}}, "required": ["text"]}
    target = Script()
    async with rig(target, order=order, input_schema=schema) as it:
        too_long = await it.call(input=None, parts=(Part(text="too long for the model"),))
        assert isinstance(too_long, Failed)
        assert too_long.code == "invalid_input"
        assert not target.calls
        assert isinstance(await it.call(input=None, parts=(Part(text="short"),)), Done)


async def one_deadline_for_all(order: Order) -> None:
    def slowly(outcome: Outcome) -> Callable[[Call], Awaitable[Outcome]]:
        async def answer(call: Call) -> Outcome:
            await asyncio.sleep(0.15)
            return outcome

        return answer

    retried = [Script(slowly(DOWN), slowly(DONE))]
    rerouted = [Script(slowly(DOWN)), Script(slowly(DONE))]
    for targets, retries in ((retried, 1), (rerouted, 0)):
        quick = Calls(timeout=0.25, attempt_timeout=2.0, backoff=0.001, retries=retries)
        async with rig(*targets, order=order, hints=IDEMPOTENT, calls=quick) as it:
            outcome = await it.call()
            assert isinstance(outcome, Failed), "two tries took more time than the call had"
            assert outcome.code == "timeout"


async def out_of_time_is_buried_and_a_hop_is_not(order: Order) -> None:
    async with rig(Script(hang), order=order, calls=Calls(timeout=0.05, attempt_timeout=5.0)) as it:
        await it.call()
        assert [row["code"] for row in await it.rows("dead_letters")] == ["timeout"]
    async with rig(Script(DOWN), Script(DONE), order=order, hints=IDEMPOTENT) as it:
        assert isinstance(await it.call(), Done)
        assert await it.rows("dead_letters") == []


async def breaker_sees_each_attempt(order: Order) -> None:
    target = Script(hang)
    calls = Calls(attempt_timeout=0.03, backoff=0.001, breaker_failures=2, retries=0)
    async with rig(target, order=order, calls=calls) as it:
        for _ in range(2):
            await it.call()
        refused = await it.call(retries=3)
        assert isinstance(refused, Failed)
        assert refused.code == "circuit_open"
        assert len(target.calls) == 2, "an open circuit was tried again"
    patient = Calls(timeout=0.03, attempt_timeout=20, breaker_failures=2, retries=0)
    async with rig(Script(hang), order=order, calls=patient) as it:
        for _ in range(2):
            await it.call()
        assert it.core.parts.breakers.state("a:a.test") == "open", "a hang that the deadline ended was not seen"
    failing = Script(DOWN)
    async with rig(failing, order=order, hints=IDEMPOTENT, calls=calls) as it:
        await it.call(retries=1)
        assert it.core.parts.breakers.state("a:a.test") == "open", "the breaker did not see both attempts"


async def emitted_content_is_final(order: Order) -> None:
    async def half(call: Call) -> Outcome:
        call.emit(Event("artifact", artifact="result", parts=(Part(text="half of it"),)))
        return DOWN

    first, second = Script(half), Script(DONE)
    async with rig(first, second, order=order, hints=IDEMPOTENT) as it:
        assert isinstance(await it.call(retries=2), Failed)
        assert (len(first.calls), len(second.calls)) == (1, 0)
    silent = Script(DOWN)
    async with rig(silent, Script(DONE), order=order, hints=IDEMPOTENT) as it:
        assert isinstance(await it.call(retries=2), Done)
        assert len(silent.calls) == 3


async def only_the_harmless_is_repeated(order: Order) -> None:
    sent, unsent = DOWN, Failed("unavailable", "It is down.", retryable=True, sent=False)
    cases = [
        (sent, Hints(), None, {}, 1),
        (unsent, Hints(), None, {}, 2),
        (sent, IDEMPOTENT, None, {}, 2),
        (sent, Hints(), "key", {}, 1),
        (sent, Hints(), "key", {"keys": True}, 2),
    ]
    for failure, hints, key, meta, expected in cases:
        target = Script(failure, DONE)
        async with rig(target, order=order, hints=hints) as it:
            await it.call(key=key, routes=(Route("a", "a.test", "do", meta=meta),))
            assert len(target.calls) == expected, (failure.sent, hints, key, meta)


async def validated_then_sanitized_then_stored(order: Order) -> None:
    deceptive = {"mark": "a\u202eb", "text": "a\u202eb" * 40_000}
    target = Script(Done((Part(data=deceptive),)))
    as_it_came = {"type": "object", "properties": {"mark": {"const": "a\u202eb"}}, "required": ["mark"]}
    async with rig(target, order=order, output_schema=as_it_came) as it:
        outcome = await it.call()
        assert isinstance(outcome, Done), outcome
        (part,) = outcome.parts
        assert part.artifact is not None
        stored = await it.core.artifacts.get(CLIENT.id, part.artifact)
        assert "\u202e" not in stored.body.decode()


async def secrets_enter_last(order: Order) -> None:
    secret = "s3cr3t-pizza-token"
    seen: list[str] = []

    async def leaky(call: Call) -> Outcome:
        seen.append(call.secret.reveal() if call.secret is not None else "")
        call.emit(Event("status", text=f"using {secret}"))
        return Failed("unavailable", f"refused {secret}")

    async with rig(Script(leaky), order=order, vault=OneSecret(secret)) as it:
        routes = (Route("a", "a.test", "do", credential="env:TOKEN"),)
        outcome = await it.call(routes=routes, key="so that it is a job")
        assert isinstance(outcome, Failed)
        assert seen == [secret]
        assert len(await it.rows("dead_letters")) == 1
        assert secret not in outcome.message
        assert secret.encode() not in await it.everything_stored()


async def written_once_per_turn(order: Order) -> None:
    async with rig(Script(DOWN), Script(DOWN, DONE), order=order, hints=IDEMPOTENT, price=Price(call=0.5)) as it:
        try:
            assert isinstance(await it.call(), Done)
        except Conflict as twice:
            raise AssertionError("one turn was written twice") from twice
        (row,) = await it.rows()
        assert (row["attempts"], row["hops"], row["cost"]) == (4, 1, 0.5)
        page = it.metrics.render()[0].decode()
        assert 'agent3_calls_total{agent="target",code="",door="test",protocol="b",status="done"} 1.0' in page
        assert 'agent3_cost_usd_total{agent="target"} 0.5' in page


async def durable_before_told(order: Order) -> None:
    target = Script(DONE)
    async with rig(target, order=order, hints=IDEMPOTENT, cache_ttl=60.0) as it:
        written = 0
        for turn in (1, 2):
            assert isinstance(await it.call(), Done)
            written = len(await it.database.all("SELECT id FROM calls"))
            assert written == turn, "an answer was told that is not in the ledger"
        assert len(target.calls) == 1


async def cancellation_arrives_and_a_pause_is_cancelled_by_a_turn(order: Order) -> None:
    arrived, cancelled = asyncio.Event(), asyncio.Event()

    async def busy(call: Call) -> Outcome:
        arrived.set()
        try:
            return await hang(call)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with rig(Script(busy), order=order, interactive=True) as it:
        task = asyncio.create_task(it.call())
        await asyncio.wait_for(arrived.wait(), 60)
        task.cancel()
        await asyncio.wait([task])
        assert cancelled.is_set()

    async def curious(call: Call) -> Outcome:
        assert call.live.ask is not None
        await call.live.ask(Question("q1", "Which?"))
        return DONE

    async with rig(Script(curious), order=order, interactive=True) as it:
        paused = await it.call()
        assert isinstance(paused, Needs)
        assert paused.job is not None
        ended = await it.runner.cancel(CLIENT, paused.job)
        assert isinstance(ended, Failed)
        assert ended.code == "canceled"
        rows = sorted((row["turn"], row["entry"], row["status"]) for row in await it.rows())
        assert rows == [(1, "start", "needs"), (2, "cancel", "canceled")]


async def only_what_is_valid_is_put_up_for_approval_and_nothing_is_sent_before(order: Order) -> None:
    rules = (ApprovalRule(capability="do"),)
    target = Script(DONE)
    settings = Settings(calls=QUICK, limits=UNLIMITED, approvals=rules)
    async with rig(target, order=order, settings=settings, input_schema=FORM_OF_ONE) as it:
        refused = await it.call(input={"amount": "much"})
        assert isinstance(refused, Failed)
        assert refused.code == "invalid_input"
        asked = await it.call(input={"amount": 1})
        assert isinstance(asked, Needs)
        assert not target.calls
        assert asked.job is not None
        rows = await it.database.all("SELECT id FROM approvals")
        assert len(rows) == 1
        chief = Principal("chief", scopes=frozenset({APPROVE}))
        await it.core.parts.approvals.decide(chief, rows[0]["id"], approve=True)
        assert isinstance(await it.runner.wait(CLIENT, asked.job, 60), Done)
        assert len(target.calls) == 1


PROMISES: dict[int, tuple[Promise, list[Order]]] = {
    1: (
        denied_is_recorded_but_neither_charged_nor_sent,
        [moved("ledger", after="authorize"), moved("limit", before="authorize")],
    ),
    2: (charged_once, [moved("limit", after="fallback"), moved("limit", after="retry")]),
    3: (authorized_once_and_for_every_route, [moved("authorize", after="fallback"), moved("authorize", after="retry")]),
    4: (invalid_input_never_arrives, [moved("validate", before="resolve")]),
    5: (one_deadline_for_all, [moved("deadline", after="fallback"), moved("deadline", after="retry")]),
    6: (
        out_of_time_is_buried_and_a_hop_is_not,
        [moved("dead_letter", after="deadline"), moved("dead_letter", after="fallback")],
    ),
    7: (breaker_sees_each_attempt, [moved("attempt", before="breaker"), moved("breaker", before="retry")]),
    8: (emitted_content_is_final, [moved("attempt", before="retry"), moved("attempt", before="fallback")]),
    9: (only_the_harmless_is_repeated, [moved("attempt", before="retry")]),
    10: (validated_then_sanitized_then_stored, [moved("artifacts", after="sanitize")]),
    11: (secrets_enter_last, [moved("route_secrets", before="ledger"), moved("route_secrets", before="dead_letter")]),
    12: (written_once_per_turn, [moved("ledger", after="fallback"), moved("ledger", after="retry")]),
    13: (durable_before_told, [moved("cache", before="ledger")]),
    14: (
        cancellation_arrives_and_a_pause_is_cancelled_by_a_turn,
        [],  # the park is inside all steps, wherever these stand
    ),
    15: (
        only_what_is_valid_is_put_up_for_approval_and_nothing_is_sent_before,
        [moved("approval", before="validate")],
    ),
}
BROKEN = [(number, order) for number, (_, orders) in PROMISES.items() for order in orders]


@pytest.fixture(params=[Chain, Nested], ids=["compiled", "nested"], autouse=True)
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here holds for both forms of the chain."""
    token = FORM.set(request.param)
    yield
    FORM.reset(token)


@pytest.mark.parametrize("number", PROMISES)
def test_the_promise_holds(number: int) -> None:
    asyncio.run(asyncio.wait_for(PROMISES[number][0](ORDER), 60))


@pytest.mark.parametrize(("number", "order"), BROKEN, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BROKEN)])
def test_the_promise_fails_when_its_steps_are_moved(number: int, order: Order) -> None:
    """It is enough to see it once: on a busy machine a time limit may hide what the wrong order does."""

    def try_often() -> None:
        for _ in range(5):
            asyncio.run(asyncio.wait_for(PROMISES[number][0](order), 60))

    with pytest.raises(AssertionError):
        try_often()


# Stand-ins

OWN = Route("a", "a.test", "do")
STAND_IN = Route("b", "b.test", "do", stand_in=StandIn("other", "do"))
OTHER = Agent(id="other", name="Other", capabilities=(Capability(name="do", hints=IDEMPOTENT, price=Price(call=0.3)),))


def _spending(*budgets: Budget, **more: Any) -> dict[str, Any]:
    """A capability for 0.1 dollars, and what stands in for it for 0.3."""
    settings = Settings(calls=QUICK, limits=UNLIMITED, budgets=budgets, **more)
    routes = OWN, STAND_IN
    return {
        "settings": settings,
        "hints": IDEMPOTENT,
        "price": Price(call=0.1),
        "routes": routes,
        "others": [OTHER],
    }


async def _spent(it: Rig) -> list[float]:
    """What the budgets have counted when all is settled, in the order of the settings."""
    await it.core.parts.budgets.aclose()
    rows = {row["key"]: round(row["usd"], 6) for row in await it.rows("budget_spent")}
    budgets = it.core.settings.budgets
    keys = [account.key for agent in ("target", "other") for account in it.core.parts.budgets.match("alice", agent)]
    return [rows.get(key, 0.0) for key in dict.fromkeys(keys)][: len(budgets)]


def test_what_a_stand_in_did_is_charged_once_at_its_price_and_on_its_budgets() -> None:
    async def story() -> None:
        budgets = (Budget(usd=10.0), Budget(usd=10.0, agent="target"), Budget(usd=10.0, agent="other"))
        async with rig(Script(DOWN), Script(DONE), **_spending(*budgets)) as it:
            outcome = await it.call()
            assert isinstance(outcome, Done)
            assert outcome.usage is not None
            assert outcome.usage.cost == pytest.approx(0.3)
            # Of all callers at all agents; at the one that was meant; at the one that served.
            assert await _spent(it) == [0.3, 0.0, 0.3]
            assert [round(row["cost"], 6) for row in await it.rows()] == [0.3]
        # The price that the operator set for it counts, and not the one that it gives itself.
        prices = (PriceRule(agent="other", call=0.05),)
        async with rig(Script(DOWN), Script(DONE), **_spending(*budgets, prices=prices)) as it:
            await it.call()
            assert await _spent(it) == [0.05, 0.0, 0.05]

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_stand_in_whose_budget_is_spent_is_not_asked_and_nothing_is_counted_on_it() -> None:
    async def story() -> None:
        for budget in (Budget(usd=0.2, agent="other", action="refuse"), Budget(usd=0.2, action="refuse")):
            other = Script(DONE)
            async with rig(Script(DOWN, DOWN, DOWN), other, **_spending(budget)) as it:
                outcome = await it.call()
                assert isinstance(outcome, Failed)
                assert outcome.code == "unavailable", "the failure that led to it stays the answer"
                assert [one["code"] for one in outcome.data["routes"]] == ["unavailable", "budget_exceeded"]
                assert not other.calls
                # The one that was asked, and failed, is paid as ever; no more.
                assert await _spent(it) == ([0.1] if budget.agent == "*" else [0.0])

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_call_that_asks_in_the_middle_is_counted_once() -> None:
    async def story() -> None:
        asks = Needs((Question("q1", "Which?"),))
        async with rig(Script(asks, DONE), **{**_spending(Budget(usd=10.0)), "routes": (OWN,)}) as it:
            asked = await it.call()
            assert isinstance(asked, Needs)
            assert await _spent(it) == [0.1], "it is reserved while a person thinks"
            assert asked.job is not None
            assert isinstance(await it.runner.answer(CLIENT, asked.job, {"q1": Answer(data="this")}), Done)
            assert await _spent(it) == [0.1]
        async with rig(Script(DOWN), Script(asks, DONE), **_spending(Budget(usd=10.0, agent="other"))) as it:
            asked = await it.call()
            assert isinstance(asked, Needs)
            assert asked.job is not None
            assert isinstance(await it.runner.answer(CLIENT, asked.job, {"q1": Answer(data="this")}), Done)
            assert await _spent(it) == [0.3]

    asyncio.run(asyncio.wait_for(story(), 60))


def test_every_step_stands_in_the_order_once() -> None:
    assert len({step.name for step in ORDER}) == len(ORDER)


def test_text_of_parts_is_readable() -> None:
    assert text_of((Part(text="a"), Part(data={"b": 1}))) == 'a\n{"b":1}'
