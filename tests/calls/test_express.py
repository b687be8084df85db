"""The short way through the steps against the steps themselves: whoever looks from outside sees no difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from agent3.calls.express import Express
from agent3.errors import Agent3Error, Unavailable
from agent3.model import (
    LOCAL,
    Call,
    Done,
    Event,
    Failed,
    Hints,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Route,
    decode_call,
)
from agent3.settings import Calls, Limits, Rule, Settings
from tests.support.home import run
from tests.support.rig import CLIENT, DONE, DOWN, QUICK, Rig, Script, hang, rig

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
OUTPUT = {"type": "object", "required": ["ok"]}
OFTEN = Hints(idempotent=True)
TOLD = "status code attempts hops tokens cost cached route message entry door".split()


async def raises(call: Call) -> Outcome:
    raise KeyError("nothing here")


async def refuses(call: Call) -> Outcome:
    raise Unavailable("gone", retry_after=0.001)


async def speaks_then_fails(call: Call) -> Outcome:
    call.emit(Event("artifact", artifact="a", parts=(Part(text="one"),)))
    return DOWN


async def speaks(call: Call) -> Outcome:
    call.emit(Event("progress", text="half\u202eway", done=1, total=2))
    return DONE


async def waits_in_vain(call: Call) -> Outcome:
    task = asyncio.get_running_loop().create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return DONE


LARGE = Done((Part(text="x" * 100_000),))
HOSTILE = Done((Part(text="a\u202eb\x1b[31m"),))
ASKS = Needs((Question("q", "Which?"),), state={"n": 1})
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "done": ([DONE], {}),
    "cleaned": ([HOSTILE], {}),
    "large": ([LARGE], {}),
    "fits its schema": ([DONE], {"output_schema": OUTPUT}),
    "breaks its schema": ([Done((Part(data={"no": 1}),))], {"output_schema": OUTPUT}),
    "down, then up": ([DOWN, DONE], {"hints": OFTEN}),
    "down for good": ([DOWN], {"hints": OFTEN}),
    "down and not to be repeated": ([DOWN], {}),
    "not sent": ([replace(DOWN, sent=False), DONE], {}),
    "refuses by an exception": ([refuses, DONE], {"hints": OFTEN}),
    "raises": ([raises], {}),
    "a failure of its own": ([Failed("target_failed", "No.")], {}),
    "a refusal of its own": ([Failed("invalid_input", "No.")], {}),
    "asks": ([ASKS], {}),
    "hangs": ([hang], {"timeout": 0.05}),
    "hangs and may be repeated": ([hang, DONE], {"timeout": 0.05, "hints": OFTEN}),
    "speaks": ([speaks], {}),
    "speaks, then fails": ([speaks_then_fails, DONE], {"hints": OFTEN}),
    "waits for something cancelled": ([waits_in_vain], {}),
}


@asynccontextmanager
async def both(answers: list[Any], **more: Any) -> AsyncIterator[tuple[tuple[Rig, Script], tuple[Rig, Script]]]:
    one, other = Script(*answers), Script(*answers)
    async with (
        rig(one, short=True, **{"input_schema": SCHEMA, **more}) as short,
        rig(other, **{"input_schema": SCHEMA, **more}) as long,
    ):
        yield (short, one), (long, other)


async def seen(it: Rig, target: Script, work: Callable[[Rig], Awaitable[Outcome]]) -> dict[str, Any]:
    """All that can be seen of a call from outside."""
    try:
        outcome: Any = await work(it)
    except Agent3Error as error:
        outcome = (type(error), error.message)
    if isinstance(outcome, Needs):
        outcome = replace(outcome, job=None)
    rows = [{name: row[name] for name in TOLD} for row in await it.rows()]
    samples = {
        (one.name, *sorted(one.labels.items())): one.value
        for family in it.metrics.registry.collect()
        for one in family.samples
        if one.name.startswith("agent3_") and one.name.endswith("_total")
    }
    dead = [(row["code"], row["agent"]) for row in await it.rows("dead_letters")]
    sizes = [len(part.text or "") for part in getattr(outcome, "parts", ())] if isinstance(outcome, Done) else []
    text = outcome if not any(part.artifact for part in getattr(outcome, "parts", ())) else "an artifact"
    attempts = [call.attempt for call in target.calls]
    return {"outcome": text, "sizes": sizes, "rows": rows, "metrics": samples, "dead": dead, "attempts": attempts}


def compared(answers: list[Any], work: Callable[[Rig], Awaitable[Outcome]], **more: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def story() -> None:
        async with both(answers, **more) as sides:
            found.extend([await seen(it, target, work) for it, target in sides])

    run(story())
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("case", CASES)
def test_the_short_way_ends_as_the_steps_do(case: str) -> None:
    answers, more = CASES[case]
    compared(answers, lambda it: it.call(input={"x": 1}), **more)


async def spoils_its_input(call: Call) -> Outcome:
    call.input["x"] = "no longer a number"
    return DOWN


def test_a_target_that_changes_its_input_and_fails_has_failed() -> None:
    found = compared([spoils_its_input], lambda it: it.call(input={"x": 1}))
    assert found["rows"][0]["code"] == "unavailable"
    assert found["dead"] == [("unavailable", "target")]


def test_a_dead_letter_holds_the_time_that_the_caller_gave() -> None:
    times: list[Any] = []

    async def story() -> None:
        async with both([DOWN]) as sides:
            for it, _ in sides:
                await it.call(input={"x": 1}, timeout=1.5)
                (letter,) = await it.rows("dead_letters")
                times.append(decode_call(bytes(letter["call"])).timeout)

    run(story())
    assert times == [1.5, 1.5]


def test_one_success_closes_the_book_on_failures_that_ran_beside_it() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def in_turns(call: Call) -> Outcome:
            number = call.input["x"]
            await gate.wait()
            return DONE if number % 2 else DOWN

        for short in (True, False):
            gate.clear()
            async with rig(Script(in_turns), short=short, input_schema=SCHEMA) as it:
                tasks = [asyncio.create_task(as_coroutine(it.call(input={"x": n}))) for n in range(20)]
                await asyncio.sleep(0.05)
                gate.set()
                await asyncio.gather(*tasks)
                assert it.house.breakers.state("a:a.test") == "closed"

    run(story())


@pytest.mark.parametrize(
    "settings",
    [
        Settings(calls=QUICK, rules=(Rule("deny"),), limits=Limits(per_minute=0)),
        Settings(calls=QUICK, limits=Limits(per_minute=60, burst=1)),
        Settings(calls=replace(QUICK, breaker_failures=1), limits=Limits(per_minute=0)),
    ],
    ids=["denied", "too often", "a breaker that opens"],
)
def test_refusals_are_those_of_the_steps(settings: Settings) -> None:
    async def thrice(it: Rig) -> Outcome:
        for _ in range(2):
            await it.call(input={"x": 1})
        return await it.call(input={"x": 1})

    def told(found: dict[str, Any]) -> None:
        for row in found["rows"]:
            if row["message"]:
                row["message"] = row["message"].split(" in ")[0]

    found: list[dict[str, Any]] = []

    async def story() -> None:
        async with both([DOWN], settings=settings) as sides:
            for it, target in sides:
                one = await seen(it, target, thrice)
                told(one)
                found.append({name: one[name] for name in ("rows", "metrics", "dead", "attempts")})

    run(story())
    assert found[0] == found[1]


@pytest.mark.parametrize("given", [{"x": "no"}, {"x": True}, None, [1]])
def test_input_that_does_not_fit_is_refused_alike_and_never_sent(given: Any) -> None:
    found = compared([DONE], lambda it: it.call(input=given, parts=(Part(text="5"),)))
    assert given is None or not found["attempts"]


def test_the_person_at_this_machine_is_not_charged_and_a_client_once() -> None:
    async def four(it: Rig) -> Outcome:
        for who in (LOCAL, LOCAL, CLIENT):
            await it.call(input={"x": 1}, principal=who)
        return await it.call(input={"x": 1}, principal=Principal("bob"))

    found = compared([DONE], four, settings=Settings(calls=QUICK, limits=Limits(per_minute=60, burst=1)))
    assert [row["status"] for row in found["rows"]] == ["done"] * 4


def test_a_caller_that_leaves_cancels_the_target_and_is_recorded() -> None:
    async def leaves(it: Rig) -> Outcome:
        task = asyncio.get_running_loop().create_task(as_coroutine(it.call(input={"x": 1})))
        await asyncio.sleep(0.02)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return Failed("canceled", "as it should")

    found = compared([hang], leaves)
    assert [row["status"] for row in found["rows"]] == ["canceled"]


async def as_coroutine(work: Awaitable[Outcome]) -> Outcome:
    return await work


def test_the_deadline_of_the_whole_call_is_kept_when_the_chain_takes_over() -> None:
    async def slow(call: Call) -> Outcome:
        await asyncio.sleep(0.2)
        return DOWN

    calls = Calls(timeout=0.3, attempt_timeout=2.0, retries=5, backoff=0.001, backoff_max=0.002)
    found = compared([slow], lambda it: it.call(input={"x": 1}), calls=calls, hints=OFTEN)
    assert len(found["attempts"]) == 2


def test_no_more_run_at_once_than_may() -> None:
    running: list[int] = []

    async def story() -> None:
        gate = asyncio.Event()

        async def counted(call: Call) -> Outcome:
            running.append(1)
            await gate.wait()
            return DONE

        settings = Settings(calls=QUICK, limits=Limits(per_minute=0, concurrent=2))
        async with rig(Script(counted), short=True, settings=settings, input_schema=SCHEMA) as it:
            tasks = [asyncio.create_task(as_coroutine(it.call(input={"x": n}))) for n in range(5)]
            await asyncio.sleep(0.05)
            gate.set()
            outcomes = await asyncio.gather(*tasks)
        assert len(running) == 2
        assert [one.code for one in outcomes if isinstance(one, Failed)] == ["rate_limited"] * 3

    run(story())


def test_most_calls_do_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Call] = []
    inner = Express._run

    def noted(self: Express, call: Call, route: Route) -> Coroutine[Any, Any, Outcome]:
        taken.append(call)
        return inner(self, call, route)

    monkeypatch.setattr(Express, "_run", noted)

    async def story() -> None:
        async with rig(Script(DONE), short=True, input_schema=SCHEMA) as it:
            await it.call(input={"x": 1})

    run(story())
    assert len(taken) == 1
