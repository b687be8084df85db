"""Park: frames that wait for people, bounded, cancellable, and heard by the turn that runs."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from agent3.env import SeededEnv
from agent3.errors import Canceled, Unavailable
from agent3.model import Done, Event, Failed, Needs, value_of
from agent3.protocols.functions import LocalAgent
from agent3.protocols.functions.functions import Context
from agent3.settings import Calls, Settings
from tests.support.clock import advance_loop
from tests.support.home import CLIENT, QUIET, home, job_of, run, said, until


def asking(**options: Any) -> tuple[LocalAgent, list[str]]:
    """An agent that asks twice and writes down what becomes of its frame."""
    agent, log = LocalAgent("asker"), []

    async def ask(ctx: Context, then: str = "") -> str:
        log.append("run")
        try:
            first = await ctx.ask("First?")
            ctx.status(f"between {first}")
            if then == "raise":
                raise ValueError("after the answer")
            if then == "hang":
                await asyncio.sleep(60)
            second = await ctx.ask("Second?")
            ctx.send(f"chunk {second}")
        except asyncio.CancelledError:
            log.append("cancelled")
            raise
        return f"{first} {second}"

    agent.add(ask, **options)
    return agent, log


def settings(**calls: Any) -> Settings:
    return Settings(server=QUIET.server, limits=QUIET.limits, calls=Calls(**{"timeout": 60.0, **calls}))


def test_each_turn_hears_what_is_emitted_in_it() -> None:
    async def story() -> None:
        agent, _ = asking()
        async with home(agent) as here:
            first = await here.call("ask", {})
            heard: list[list[Event]] = [[], []]
            second = await here.runner.answer(CLIENT, job_of(first), said(q1="a"), listener=heard[0].append)
            await here.runner.answer(CLIENT, job_of(second), said(q2="b"), listener=heard[1].append)
            assert here.events == []
            assert [[event.kind for event in turn] for turn in heard] == [["status"], ["artifact"]]
            assert [event.turn for turn in heard for event in turn] == [2, 3]

    run(story())


def test_an_exception_after_an_answer_is_the_turns_failure() -> None:
    async def story() -> None:
        agent, log = asking()
        async with home(agent) as here:
            first = await here.call("ask", {"then": "raise"})
            outcome = await here.answer(first, q1="a")
            assert isinstance(outcome, Failed)
            assert outcome.message == "asker failed: ValueError: after the answer"
            assert (await here.job(first)).status == "failed"
            assert log == ["run"]
            assert len(here.core.parts.park) == 0

    run(story())


def test_an_exception_after_an_answer_is_retried_by_replay_where_that_is_allowed() -> None:
    agent = LocalAgent("asker")
    failures = [Unavailable("try again")]

    @agent.capability(idempotent=True)
    async def ask(ctx: Context) -> str:
        answer = await ctx.ask("First?")
        if failures:
            raise failures.pop()
        return str(answer)

    async def story() -> None:
        async with home(agent) as here:
            outcome = await here.answer(await here.call("ask", {}), q1="a")
            assert isinstance(outcome, Done), outcome
            assert value_of(outcome.parts) == "a"

    run(story())


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_frame_that_is_let_go_is_cancelled_where_it_waits(how: str) -> None:
    async def story() -> None:
        agent, log = asking()
        async with home(agent) as here:
            first = await here.call("ask", {})
            if how == "cancel":
                outcome = await here.runner.cancel(CLIENT, job_of(first))
                assert isinstance(outcome, Failed)
                assert outcome.code == "canceled"
            else:
                await here.core.parts.park.aclose()
                assert (await here.job(first)).status == "needs", "its job stays in storage"
            assert log == ["run", "cancelled"]
            assert len(here.core.parts.park) == 0

    run(story())


def test_cancelling_a_turn_that_runs_inside_a_frame_reaches_it() -> None:
    async def story() -> None:
        agent, log = asking()
        async with home(agent) as here:
            first = await here.call("ask", {"then": "hang"})
            answering = asyncio.create_task(here.answer(first, q1="a"))
            await until(lambda: bool(here.events))
            outcome = await here.runner.cancel(CLIENT, job_of(first))
            assert isinstance(outcome, Failed)
            assert outcome.code == "canceled"
            assert await answering == outcome
            assert log == ["run", "cancelled"]

    run(story())


def test_a_frame_that_takes_too_long_between_questions_times_out() -> None:
    async def story() -> None:
        agent, log = asking()
        async with home(agent, settings=settings(attempt_timeout=20.0)) as here:
            first = await here.call("ask", {"then": "hang"})
            advance_loop(21.0)  # a person may think for longer than an attempt may take
            heard: list[Event] = []
            answering = asyncio.create_task(
                here.runner.answer(CLIENT, job_of(first), said(q1="a"), listener=heard.append)
            )
            await until(lambda: bool(heard))
            advance_loop(21.0)
            outcome = await answering
            assert isinstance(outcome, Failed)
            assert outcome.code == "timeout"
            assert log == ["run", "cancelled"]

    run(story())


@pytest.mark.parametrize("replay", [True, False])
def test_the_oldest_frames_leave_memory_and_then_replay_or_are_interrupted(replay: bool) -> None:
    async def story() -> None:
        agent, log = asking(replay=replay)
        async with home(agent, settings=settings(parked=2)) as here:
            paused = [await here.call("ask", {}) for _ in range(4)]
            assert len(here.core.parts.park) == 2
            await until(lambda: log.count("cancelled") == 2)
            oldest, newest = await here.answer(paused[0], q1="a"), await here.answer(paused[3], q1="a")
            assert isinstance(newest, Needs)
            if replay:
                assert isinstance(oldest, Needs)
                assert log.count("run") == 5
            else:
                assert isinstance(oldest, Failed)
                assert oldest.code == "interrupted"
                assert "must not be replayed" in oldest.message

    run(story())


def test_frames_leave_memory_by_age_also_when_nothing_else_happens() -> None:
    world = SeededEnv()

    async def story() -> None:
        agent, log = asking()
        async with home(agent, settings=settings(parked_seconds=50.0), env=world) as here:
            await here.call("ask", {})
            assert len(here.core.parts.park) == 1
            world.advance(51.0)
            advance_loop(51.0)
            await until(lambda: log == ["run", "cancelled"])
            assert len(here.core.parts.park) == 0

    run(story())


def test_a_frame_whose_time_is_over_goes_when_the_next_is_parked() -> None:
    world = SeededEnv()

    async def story() -> None:
        agent, _ = asking()
        async with home(agent, settings=settings(parked_seconds=100.0), env=world) as here:
            await here.call("ask", {}, timeout=10.0)
            world.advance(101)
            await here.call("ask", {})
            assert len(here.core.parts.park) == 1

    run(story())


def test_an_evicted_frame_that_cleans_up_slowly_holds_nobody_up() -> None:
    agent, let_go = LocalAgent("slow"), asyncio.Event()

    @agent.capability
    async def ask(ctx: Context) -> str:
        try:
            return str(await ctx.ask("First?"))
        finally:
            await let_go.wait()

    async def story() -> None:
        async with home(agent, settings=settings(parked=1)) as here:
            for _ in range(3):
                await here.call("ask", {})
            let_go.set()

    run(story())


def test_several_questions_asked_at_once_are_one_turn() -> None:
    agent = LocalAgent("a")

    @agent.capability
    async def ask(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.ask("A?", int), ctx.ask("B?", str), ctx.ask("C?", bool)))

    async def story() -> None:
        async with home(agent) as here:
            first = await here.call("ask", {})
            assert isinstance(first, Needs)
            assert [one.text for one in first.questions] == ["A?", "B?", "C?"]
            again = await here.answer(first, q1=1, q2="b")
            assert isinstance(again, Needs)
            assert [one.id for one in again.questions] == ["q3"], "only what is missing is asked for again"
            last = await here.answer(again, q3=True)
            assert isinstance(last, Done)
            assert value_of(last.parts) == [1, "b", True]

    run(story())


def test_parked_frames_are_small() -> None:
    async def story() -> float:
        agent, _ = asking()
        async with home(agent) as here:
            await here.call("ask", {})
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(200):
                await here.call("ask", {})
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(here.core.parts.park) == 201
            return (after - before) / 200 / 1024

    each = run(story(), 60)
    print(f"{each:.1f} KiB for each parked frame")
    assert each < 20


def test_a_question_asked_while_another_waits_is_asked_in_the_next_turn() -> None:
    agent = LocalAgent("a")
    later = asyncio.Event()

    @agent.capability
    async def ask(ctx: Context) -> list[Any]:
        async def second() -> Any:
            await later.wait()
            return await ctx.ask("B?")

        return list(await asyncio.gather(ctx.ask("A?"), second()))

    async def story() -> None:
        async with home(agent) as here:
            first = await here.call("ask", {})
            assert isinstance(first, Needs)
            assert [one.text for one in first.questions] == ["A?"]
            later.set()
            await asyncio.sleep(0.01)
            again = await here.answer(first, q1="a")
            assert isinstance(again, Needs), again
            assert [one.text for one in again.questions] == ["B?"]
            last = await here.answer(again, q2="b")
            assert isinstance(last, Done)
            assert value_of(last.parts) == ["a", "b"]

    run(story())


def test_a_question_that_the_function_gave_up_is_not_asked_any_more() -> None:
    agent = LocalAgent("a")

    @agent.capability
    async def ask(ctx: Context) -> list[Any]:
        async def impatient() -> str:
            try:
                return str(await asyncio.wait_for(ctx.ask("Quick?"), 0.02))
            except TimeoutError:
                return "too late"

        hurried = asyncio.create_task(impatient())
        slow = await ctx.ask("Slow?")
        return [await hurried, slow, await ctx.ask("Last?")]

    async def story() -> None:
        async with home(agent) as here:
            first = await here.call("ask", {})
            assert isinstance(first, Needs)
            await asyncio.sleep(0.05)
            both = {one.id: "x" for one in first.questions}
            last = await here.runner.answer(CLIENT, job_of(first), said(**both))
            assert isinstance(last, Needs)
            assert [one.text for one in last.questions] == ["Last?"]
            done = await here.runner.answer(CLIENT, job_of(last), said(**{last.questions[0].id: "z"}))
            assert isinstance(done, Done)
            assert value_of(done.parts) == ["too late", "x", "z"]

    run(story())


def test_a_function_that_delays_its_cancellation_does_not_delay_the_deadline() -> None:
    agent = LocalAgent("stubborn")
    let_go, ended = asyncio.Event(), asyncio.Event()
    refused: list[Exception] = []

    @agent.capability
    async def ask(ctx: Context) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await let_go.wait()
        ctx.status("heard by nobody")
        try:
            await ctx.ask("Anybody?")
        except Canceled as wrong:
            refused.append(wrong)
        ended.set()
        return ""

    async def story() -> None:
        async with home(agent, settings=settings(timeout=0.1)) as here:
            outcome = await here.call("ask", {})
            assert isinstance(outcome, Failed)
            assert outcome.code == "timeout"
            page = here.core.metrics.render()[0].decode()
            assert 'agent3_events_dropped_total{reason="frame outlived its turn"} 1.0' in page
            gc.collect()  # only the park holds its task now
            let_go.set()
            await asyncio.wait_for(ended.wait(), 60)
            assert here.events == []
            assert len(refused) == 1

    run(story())


def test_a_frame_that_outlives_its_attempt_does_not_speak_in_the_next_one() -> None:
    agent, runs = LocalAgent("stubborn"), []
    ended = asyncio.Event()

    @agent.capability(idempotent=True, timeout=2.0)
    async def ask(ctx: Context) -> str:
        runs.append("run")
        if len(runs) > 1:
            await asyncio.wait_for(ended.wait(), 60)
            return str(await ctx.ask("Second?"))
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.52)
        ctx.send("from the first")
        ended.set()
        return "first"

    async def story() -> None:
        async with home(agent, settings=settings(timeout=120.0)) as here:
            outcome = await here.call("ask", {})
            assert isinstance(outcome, Needs), outcome
            assert [one.text for one in outcome.questions] == ["Second?"]
            assert runs == ["run", "run"]
            assert [event for event in here.events if event.kind == "artifact"] == []

    run(story())
