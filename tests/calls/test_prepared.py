"""Prepared calls against the steps themselves: whoever looks from outside sees no difference."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from datetime import date
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.calls.prepared import Prepared, prepare
from agent3.env import REAL
from agent3.errors import Agent3Error, Unavailable
from agent3.model import (
    LOCAL,
    Artifact,
    Call,
    Done,
    Failed,
    Needs,
    Outcome,
    Part,
    Price,
    Principal,
    Question,
    Usage,
    Working,
)
from agent3.observe import logs
from agent3.protocols.functions import Context, LocalAgent
from agent3.settings import Calls, Limits, Rule, Settings
from tests.support.home import CLIENT, QUIET, Home, home, run

TOLD = (
    "turn principal tenant agent capability route door entry context status code message attempts hops cached tokens "
    "cost bytes_in bytes_out"
).split()
NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
PRICED = Price(call=0.5, tokens=1.0)


async def text(x: int) -> str:
    return f"It is {x}"


async def data(x: int) -> dict[str, Any]:
    return {"x": x, "more": [1, 2.5, None]}


async def nothing(x: int) -> None:
    return


async def raw(x: int) -> bytes:
    return bytes([x])


async def hostile(x: int) -> str:
    return "a\u202eb\x1b[31m"


async def hostile_data(x: int) -> dict[str, Any]:
    return {"a\u202eb": ["\x1b"]}


async def large(x: int) -> str:
    return "y" * 200_000


async def raises(x: int) -> str:
    raise KeyError("nothing here")


async def refuses(x: int) -> str:
    raise Unavailable("gone", retry_after=0.001)


async def fails(x: int) -> Outcome:
    return Failed("target_failed", "No.")


async def asks(x: int) -> Outcome:
    return Needs((Question("q", "Which?"),))


async def bills(x: int) -> Outcome:
    return Done((Part(text="dear"),), usage=Usage(tokens=7, cost=0.25))


async def names(x: int) -> Outcome:
    return Done((Part(text="here"),), (Artifact("a", parts=(Part(text="there"),)),), meta={"k": "v"})


async def slowly(x: int) -> str:
    await asyncio.sleep(0)
    return f"{x} at last"


async def never(x: int) -> str:
    await asyncio.sleep(60)
    return "never"


async def in_its_own_time(x: int) -> str:
    async with asyncio.timeout(0.01):
        await asyncio.sleep(60)
    return "never"


async def in_vain(x: int) -> str:
    task = asyncio.get_running_loop().create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return "never"


async def no_json(x: int) -> Any:
    return object()


async def on(x: int, day: date) -> str:
    return day.isoformat()


def inline(x: int) -> str:
    return f"at once {x}"


ALL: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (text, {}),
    (text, {"price": PRICED}),
    (text, {"output_schema": {"type": "object"}}),
    (data, {}),
    (data, {"output_schema": NUMBER}),
    (nothing, {}),
    (raw, {}),
    (hostile, {}),
    (hostile_data, {}),
    (large, {}),
    (raises, {}),
    (refuses, {}),
    (refuses, {"idempotent": True}),
    (fails, {}),
    (asks, {}),
    (bills, {}),
    (names, {}),
    (slowly, {}),
    (never, {"timeout": 0.05}),
    (in_its_own_time, {}),
    (in_vain, {}),
    (no_json, {}),
    (inline, {"inline": True}),
]


def agent_of(fn: Callable[..., Any], **options: Any) -> LocalAgent:
    agent = LocalAgent("A")
    agent.add(fn, name="do", **options)
    return agent


def prepared(it: Home, agent: LocalAgent, principal: Principal = CLIENT) -> Prepared | None:
    return prepare(it.house, principal, agent.agent, agent.functions["do"].capability, "test")


async def shortly(it: Home, agent: LocalAgent, given: Any, principal: Principal = CLIENT) -> Outcome:
    """By a prepared call, and by the steps where that has done nothing."""
    found = prepared(it, agent, principal)
    outcome = await found(given) if found is not None else None
    return outcome if outcome is not None else await by_steps(it, agent, given, principal)


async def by_steps(it: Home, agent: LocalAgent, given: Any, principal: Principal = CLIENT) -> Outcome:
    timeout = agent.functions["do"].capability.timeout
    return await it.call("do", given, principal=principal, timeout=timeout)


async def as_message(it: Home, agent: LocalAgent, given: Any, principal: Principal, *, ready: bool) -> Outcome:
    """A call that has an id, a key and a context already, as a message has; by the short way, if ``ready``."""
    capability = agent.functions["do"].capability
    call = Call(
        id=REAL.id(),
        principal=principal,
        agent=agent.id,
        capability="do",
        parts=(Part(text=given),) if isinstance(given, str) else (),
        input=None if isinstance(given, str) else given,
        context="a context",
        key="a key",
        timeout=capability.timeout,
        routes=capability.routes,
    )
    turn = partial(it.house.runner.first, call, (agent.agent, capability), opened=lambda _: None, door="test")
    found = prepared(it, agent, principal) if ready else None
    outcome = await found.message(call, turn) if found is not None else None
    return outcome if outcome is not None else await turn()


def _without_figures(value: Any) -> Any:
    return re.sub(r"\d+(\.\d+)? s", "some s", value) if isinstance(value, str) else value


async def seen(it: Home, work: Coroutine[Any, Any, Outcome]) -> dict[str, Any]:
    """All that can be seen of a call from outside."""
    try:
        outcome: Any = await work
    except Agent3Error as error:
        outcome = (type(error), error.message)
    if isinstance(outcome, (Needs, Working)):
        outcome = replace(outcome, job=None)
    if isinstance(outcome, Failed) and outcome.retry_after:  # to the millisecond, which no two have in common
        outcome = replace(outcome, retry_after=1.0, message=_without_figures(outcome.message))
    if any(part.artifact for part in getattr(outcome, "parts", ())):
        outcome = "an artifact"
    rows = [{name: _without_figures(row[name]) for name in TOLD} for row in await it.rows()]
    assert all(row["id"] == row["trace"] for row in await it.rows())
    samples = {
        (one.name, *sorted(one.labels.items())): one.value
        for family in it.house.metrics.registry.collect()
        for one in family.samples
        if one.name.startswith("agent3_") and one.name.endswith(("_total", "_count"))
    }
    dead = [(row["code"], row["agent"]) for row in await it.rows("dead_letters")]
    jobs = [row["status"] for row in await it.rows("jobs")]
    return {"outcome": outcome, "rows": rows, "metrics": samples, "dead": dead, "jobs": jobs}


def compared(
    agent: LocalAgent, given: Any, principal: Principal = CLIENT, settings: Settings = QUIET, times: int = 1
) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def story(way: Callable[..., Coroutine[Any, Any, Outcome]]) -> None:
        async with home(agent, settings=settings) as it:
            for _ in range(times - 1):
                await way(it, agent, given, principal)
            found.append(await seen(it, way(it, agent, given, principal)))

    for way, other in ((shortly, by_steps), (partial(as_message, ready=True), partial(as_message, ready=False))):
        found.clear()
        run(story(way))
        run(story(other))
        assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(("fn", "options"), ALL, ids=[f"{fn.__name__}-{'-'.join(more)}" for fn, more in ALL])
def test_a_prepared_call_ends_as_the_steps_do(fn: Callable[..., Any], options: dict[str, Any]) -> None:
    compared(agent_of(fn, **options), {"x": 1})


def test_the_usual_call_is_done_by_itself() -> None:
    async def story() -> None:
        agent = agent_of(text)
        async with home(agent) as it:
            ready = prepared(it, agent)
            assert ready is not None
            outcome = await ready({"x": 3})
            assert isinstance(outcome, Done)
            assert outcome.parts == (Part(text="It is 3"),)
            assert len(await it.rows()) == 1

    run(story())


async def echo(message: str) -> str:
    return message


def test_a_message_is_the_input_of_what_takes_one_text() -> None:
    async def story() -> None:
        agent = agent_of(echo)
        async with home(agent) as it:
            outcome = await as_message(it, agent, "hello", CLIENT, ready=True)
            assert isinstance(outcome, Done)
            assert outcome.parts == (Part(text="hello"),)
            (row,) = await it.rows()
            assert (row["context"], row["bytes_in"], row["status"]) == ("a context", 24, "done")

    run(story())


def test_what_waits_is_a_job_while_it_does_and_the_function_is_run_once() -> None:
    async def story() -> None:
        go, asked = asyncio.Event(), []

        async def stays(x: int) -> str:
            asked.append(x)
            await go.wait()
            return "at last"

        agent = agent_of(stays)
        async with home(agent) as it:
            running = asyncio.ensure_future(as_message(it, agent, {"x": 1}, CLIENT, ready=True))
            async with asyncio.timeout(10):
                while not await it.rows("jobs"):
                    await asyncio.sleep(0.001)
            (job,) = await it.rows("jobs")
            assert (job["status"], job["key"], job["context"]) == ("working", "a key", "a context")
            go.set()
            outcome = await running
            assert isinstance(outcome, Done)
            assert [row["status"] for row in await it.rows("jobs")] == ["done"]
            assert asked == [1]
            assert [row["status"] for row in await it.rows()] == ["done"]

    run(story())


@pytest.mark.parametrize("given", [{"x": "no"}, {"x": True}, {}, {"x": 1, "y": 2}])
def test_input_that_does_not_fit_is_refused_alike_and_never_sent(given: Any) -> None:
    found = compared(agent_of(text), given)
    assert found["rows"][0]["attempts"] == 0


@pytest.mark.parametrize("day", ["2026-02-03", "2026-02-31"])
def test_rich_types_are_made_of_input_alike(day: str) -> None:
    compared(agent_of(on), {"x": 1, "day": day})


@pytest.mark.parametrize(
    "settings",
    [
        replace(QUIET, rules=(Rule("deny"),)),
        replace(QUIET, limits=Limits(per_minute=0.001, burst=2)),
        replace(QUIET, limits=Limits(per_minute=0, concurrent=0)),
        replace(QUIET, calls=Calls(breaker_failures=1, timeout=10.0, backoff=0.001)),
        replace(QUIET, calls=Calls(ledger="batched")),
    ],
    ids=["denied", "too often", "too many", "a breaker that opens", "batched"],
)
def test_refusals_are_those_of_the_steps(settings: Settings) -> None:
    fn = refuses if settings.calls.breaker_failures == 1 else text
    found = compared(agent_of(fn), {"x": 1}, settings=settings, times=3)
    assert len(found["rows"]) == 3


def test_the_person_at_this_machine_is_not_charged() -> None:
    settings = replace(QUIET, limits=Limits(per_minute=0.001, burst=1))
    found = compared(agent_of(text), {"x": 1}, LOCAL, settings, times=3)
    assert [row["status"] for row in found["rows"]] == ["done"] * 3


def _interactive() -> LocalAgent:
    agent = LocalAgent("A")

    @agent.capability(name="do")
    async def do(ctx: Context, x: int) -> str:
        """Ask."""
        return str(await ctx.ask("Sure?"))

    return agent


async def _streams(x: int) -> Any:
    yield x


def test_what_wants_more_of_the_steps_is_not_prepared() -> None:
    async def story() -> None:
        wanting = [
            _interactive(),
            agent_of(_streams),
            agent_of(inline),
            agent_of(text, cache_ttl=5.0),
            agent_of(text, input_schema={}),
        ]
        for agent in wanting:
            async with home(agent) as it:
                assert prepared(it, agent) is None
        agent = agent_of(text)
        async with home(agent, settings=replace(QUIET, rules=(Rule("deny", principal="alice"), Rule("allow")))) as it:
            assert prepared(it, agent) is None
            assert prepared(it, agent, LOCAL) is not None

    run(story())


def test_a_function_that_was_taken_back_or_replaced_is_not_run() -> None:
    async def story() -> None:
        agent = agent_of(text)
        async with home(agent) as it:
            ready = prepared(it, agent)
            assert ready is not None
            agent.add(data, name="do")
            assert await ready({"x": 1}) is None
            agent.remove("do")
            assert await ready({"x": 1}) is None
            it.house.connectors["local"].agents.clear()  # type: ignore[attr-defined]
            assert await ready({"x": 1}) is None
            assert await it.rows() == []

    run(story())


def test_a_route_in_trouble_is_left_to_the_steps() -> None:
    async def story() -> None:
        agent = agent_of(text)
        async with home(agent) as it:
            ready = prepared(it, agent)
            assert ready is not None
            it.house.breakers.failed("local:a")
            assert await ready({"x": 1}) is None
            it.house.breakers.succeeded("local:a")
            assert isinstance(await ready({"x": 1}), Done)

    run(story())


def test_a_caller_that_leaves_is_recorded_and_the_function_is_stopped() -> None:
    async def story() -> None:
        began, stopped = asyncio.Event(), asyncio.Event()

        async def waits(x: int) -> str:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()
            return "never"

        agent = agent_of(waits)
        async with home(agent) as it:
            task = asyncio.create_task(shortly(it, agent, {"x": 1}))
            await asyncio.wait_for(began.wait(), 5)
            task.cancel()
            await asyncio.wait([task], timeout=5)
            assert task.cancelled()
            assert stopped.is_set()
            (row,) = await it.rows()
            assert (row["status"], row["code"]) == ("canceled", "canceled")
            assert it.house.ceiling.enter("a")  # its place is free again
            assert it.house.ceiling._running == {"a": 1}

    run(story())


def test_what_a_function_logs_bears_the_id_of_its_call(caplog: pytest.LogCaptureFixture) -> None:
    ids: list[logs.Ids] = []

    async def speaks(x: int) -> str:
        logging.getLogger("agent3.test").warning("here")
        ids.append(logs.current())
        await asyncio.sleep(0)
        ids.append(logs.current())
        return "said"

    async def story() -> None:
        agent = agent_of(speaks)
        async with home(agent) as it:
            await shortly(it, agent, {"x": 1})
            (row,) = await it.rows()
            assert [one.call for one in ids] == [row["id"]] * 2
            assert logs.current().call is None

    run(story())


def test_the_seconds_of_a_call_are_those_from_its_beginning_also_when_it_failed() -> None:
    async def breaks(x: int) -> str:
        await asyncio.sleep(0.05)
        raise KeyError("late")

    async def story() -> None:
        agent = agent_of(breaks)
        async with home(agent) as it:
            await shortly(it, agent, {"x": 1})
            (row,) = await it.rows()
            assert row["seconds"] >= 0.05

    run(story())
