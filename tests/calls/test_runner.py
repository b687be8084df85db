"""The Runner: inline and as jobs, answers, cancelling, closing, recovering, and two of them on one database."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from agent3.calls.jobs import Jobs
from agent3.calls.order import Chain
from agent3.calls.runner import converse
from agent3.env import REAL, SeededEnv
from agent3.errors import AgentNotFound, Conflict, Corrupt, JobNotFound, StorageError, TurnTaken
from agent3.model import (
    Answer,
    Call,
    Capability,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Part,
    Principal,
    Question,
    Working,
    text_of,
    value_of,
)
from agent3.protocols.functions import LocalAgent
from agent3.protocols.functions.functions import Context, SyncContext
from agent3.settings import Calls, Limits, Server, Settings
from agent3.storage import Database, open_database
from tests.support.home import CLIENT, QUIET, home, job_of, run, said, until
from tests.support.rig import DONE, DOWN, Script, hang, rig

BOB = Principal("bob", "client")


class Toy:
    """An agent of many ways, with what a test wants to know of it."""

    def __init__(self) -> None:
        self.agent = agent = LocalAgent("toy")
        self.runs: list[str] = []
        self.entered, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @agent.capability
        async def echo(text: str) -> str:
            self.runs.append("echo")
            return text

        @agent.capability
        async def choose(ctx: Context) -> str:
            self.runs.append("choose")
            ctx.status("before")
            size = await ctx.ask("Which size?", Literal["s", "l"])
            ctx.status(f"after {size}")
            count = await ctx.ask("How many?", int)
            return f"{count}{size}"

        agent.add(choose, name="choose_again", replay=True)

        @agent.capability
        async def wait(ctx: Context) -> str:
            self.runs.append("wait")
            await ctx.once("ref", lambda: self.runs.append("once"))
            for number in range(3):
                ctx.progress(number, 3)
            self.entered.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "waited"

        agent.add(wait, name="wait_again", replay=True)

        @agent.capability
        def book(ctx: SyncContext, flight: str) -> str:
            self.runs.append("book")
            ref = ctx.once("ref", lambda: f"R{len(self.runs)}")
            return f"{ref} {ctx.ask('Seat?')} {flight}"


def test_a_plain_answer_leaves_no_job() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            assert value_of((await _done(here.call("echo", {"text": "hi"}))).parts) == "hi"
            assert await here.rows("jobs") == []
            assert [row["status"] for row in await here.rows()] == ["done"]

    run(story())


async def _done(awaited: Any) -> Done:
    outcome = await awaited
    assert isinstance(outcome, Done), outcome
    return outcome


def test_a_question_makes_a_job_and_answers_end_it(url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=url) as here:
            first = await here.call("choose", {})
            assert isinstance(first, Needs)
            assert first.state is None
            assert (first.turn, [one.id for one in first.questions]) == (1, ["q1"])
            second = await here.answer(first, q1="l")
            assert isinstance(second, Needs)
            assert second.job == first.job
            last = await _done(here.answer(second, q2=3))
            assert value_of(last.parts) == "3l"
            job = await here.job(first)
            assert (job.status, job.turn, job.answers) == ("done", 3, said(q1="l", q2=3))
            assert toy.runs == ["choose"], "the frame went on and was not run again"
            assert [row["turn"] for row in sorted(await here.rows(), key=lambda row: row["turn"])] == [1, 2, 3]
            events = await here.followed(job.id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [(event.kind, event.turn) for event in events] == [
                ("turn", 1),
                ("status", 2),
                ("turn", 2),
                ("turn", 3),
            ]
            assert await here.followed(job.id, events[1].seq) == events[2:]

    run(story())


def test_an_answer_must_be_for_the_turn_and_the_question_that_wait() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            first = await here.call("choose", {})
            job = job_of(first)
            with pytest.raises(TurnTaken, match="Turn 7"):
                await here.runner.answer(CLIENT, job, said(q1="s"), turn=7)
            with pytest.raises(JobNotFound):
                await here.runner.answer(BOB, job, said(q1="s"))
            early = await here.runner.answer(CLIENT, job, said(q1="s", q2="not a number", q9=1), turn=1)
            assert isinstance(early, Needs), "an answer in advance must not pass its question by"
            assert (await here.job(job)).answers == said(q1="s")
            await _done(here.runner.answer(CLIENT, job, said(q1="l", q2=2)))
            assert (await here.job(job)).answers == said(q1="s", q2=2), "what was answered is not answered again"
            with pytest.raises(TurnTaken, match="is not waiting for an answer"):
                await here.answer(first, q1="s")

    run(story())


def test_of_two_answers_at_once_one_goes_on(url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=url) as here:
            first = await here.call("choose", {})
            job, given = job_of(first), said(q1="s")
            answers = (here.runner.answer(CLIENT, job, given, turn=1) for _ in range(4))
            both = await asyncio.gather(*answers, return_exceptions=True)
            assert sorted(type(one).__name__ for one in both) == ["Needs", "TurnTaken", "TurnTaken", "TurnTaken"]
            assert toy.runs == ["choose"]

    run(story())


def test_detached_work_goes_on_without_its_caller(url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=url) as here:
            told = await here.call("wait", {}, detach=True)
            assert isinstance(told, Working)
            job = job_of(told)
            assert (await here.job(job)).status == "working", "it is on disk before it is told"
            await asyncio.wait_for(toy.entered.wait(), 60)
            assert isinstance(await here.runner.wait(CLIENT, job, 0.01), Working)
            follower = asyncio.create_task(here.followed(job))
            toy.go.set()
            assert isinstance(await here.runner.wait(CLIENT, job, 60), Done)
            assert [event.kind for event in await follower] == ["progress"] * 3 + ["turn"]
            assert [event.seq for event in here.events] == [1, 2, 3], "a listener hears the numbers of the log"

    run(story())


def test_one_key_is_one_run_whose_outcome_all_get() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            toy.go.set()
            outcomes = await asyncio.gather(*(here.call("wait", {}, key="k") for _ in range(5)))
            assert toy.runs == ["wait", "once"]
            assert [value_of(one.parts) for one in outcomes if isinstance(one, Done)] == ["waited"] * 5
            assert isinstance(await here.call("wait", {}, key="k", detach=True), Done)
            with pytest.raises(Conflict):
                await here.call("echo", {"text": "x"}, key="k")
            assert isinstance(await here.call("wait", {}, key="k", principal=BOB), Done)
            assert toy.runs == ["wait", "once"] * 2

    run(story())


def test_joining_detached_work_by_its_key_does_not_wait() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            first = await here.call("wait", {}, key="k", detach=True)
            again = await asyncio.wait_for(here.call("wait", {}, key="k", detach=True), 60)
            assert job_of(again) == job_of(first)
            toy.go.set()
            assert isinstance(await here.runner.wait(CLIENT, job_of(first), 60), Done)

    run(story())


def test_a_refused_call_can_be_made_again_with_its_key() -> None:
    settings = Settings(calls=QUIET.calls, limits=Limits(per_minute=1, burst=1), server=QUIET.server)

    async def story() -> None:
        toy, world = Toy(), SeededEnv(time=REAL.now())
        async with home(toy.agent, settings=settings, env=world) as here:
            await here.call("echo", {"text": "1"})
            refused = await here.call("echo", {"text": "2"}, key="k")
            assert isinstance(refused, Failed)
            assert refused.code == "rate_limited"
            assert refused.retry_after is not None
            world.advance(refused.retry_after + 0.01)
            assert isinstance(await here.call("echo", {"text": "2"}, key="k"), Done)

    run(story())


def test_once_makes_an_inline_turn_a_job_that_can_be_seen_and_cancelled(url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=url) as here:
            calling = asyncio.create_task(here.call("wait", {}))
            await asyncio.wait_for(toy.entered.wait(), 60)
            (job,) = await here.jobs.list_latest("alice")
            assert (job.status, job.kept) == ("working", {"ref": None})
            outcome = await here.runner.cancel(CLIENT, job.id)
            assert isinstance(outcome, Failed)
            assert outcome.code == "canceled"
            assert await calling == outcome, "the caller hears it as an outcome; its own task is not cancelled"
            assert toy.cancelled.is_set()
            assert calling.cancelling() == 0

    run(story())


def test_a_caller_that_goes_away_ends_the_job_its_turn_became() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            calling = asyncio.create_task(here.call("wait", {}))
            await asyncio.wait_for(toy.entered.wait(), 60)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            (job,) = await here.jobs.list_latest("alice")
            assert job.status == "canceled"
            assert not here.runner.inlined

    run(story())


def test_many_things_done_once_at_once_open_one_job() -> None:
    agent = LocalAgent("a")

    @agent.capability
    async def many(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.once(f"n{one}", partial(int, one)) for one in range(5))))

    async def story() -> None:
        async with home(agent) as here:
            assert value_of((await _done(here.call("many", {}))).parts) == [0, 1, 2, 3, 4]
            (job,) = await here.jobs.list_latest("alice")
            assert job.kept == {f"n{one}": one for one in range(5)}

    run(story())


def test_cancelling_a_running_job_reaches_its_function() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            job = job_of(await here.call("wait", {}, detach=True))
            await asyncio.wait_for(toy.entered.wait(), 60)
            with pytest.raises(JobNotFound):
                await here.runner.cancel(BOB, job)
            outcome = await here.runner.cancel(CLIENT, job)
            assert isinstance(outcome, Failed)
            assert outcome.code == "canceled"
            assert toy.cancelled.is_set()
            assert (await here.job(job)).status == "canceled"
            assert await here.runner.cancel(CLIENT, job) == outcome, "an ended job stays as it is"
            assert [row["status"] for row in await here.rows()] == ["canceled"]

    run(story())


def test_a_paused_job_is_cancelled_by_a_turn_even_when_its_agent_is_gone() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            first = await here.call("choose", {})
            assert len(here.core.parts.park) == 1
            toy.agent.remove("choose")
            with pytest.raises(Exception, match="no capability"):
                await here.answer(first, q1="s")
            outcome = await here.runner.cancel(CLIENT, job_of(first))
            assert isinstance(outcome, Failed)
            assert outcome.code == "canceled"
            assert (await here.job(first)).status == "canceled"
            assert len(here.core.parts.park) == 0, "its frame is still there"
            assert sorted(row["entry"] for row in await here.rows()) == ["cancel", "start"]

    run(story())


def test_cancelling_a_done_job_tells_how_it_ended() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            job = job_of(await here.call("wait", {}, detach=True))
            toy.go.set()
            done = await here.runner.wait(CLIENT, job, 60)
            assert isinstance(done, Done)
            assert await here.runner.cancel(CLIENT, job) == done

    run(story())


def test_a_cancelled_caller_cancels_its_keyed_turn() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            calling = asyncio.create_task(here.call("wait", {}, key="k"))
            await asyncio.wait_for(toy.entered.wait(), 60)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            assert toy.cancelled.is_set()
            assert [job.status for job in await here.jobs.list_latest("alice")] == ["canceled"]

    run(story())


def test_a_listener_that_fails_does_not_break_the_call() -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        heard.append(event)
        raise RuntimeError("I cannot listen")

    async def story() -> None:
        toy = Toy()
        toy.go.set()
        async with home(toy.agent) as here:
            for key in (None, "k"):
                target = await here.lookup("toy", "wait")
                call = Call(id=REAL.id(), principal=CLIENT, agent="toy", capability="wait", input={}, key=key)
                assert isinstance(await here.runner.start(call, target, listener=broken), Done)
            assert len(heard) == 2, "after its first failure it is left alone"
            job = (await here.jobs.list_latest("alice"))[0]
            assert len([event for event in await here.followed(job.id) if event.kind == "progress"]) == 3

    run(story())


def test_what_is_emitted_after_the_end_is_heard_by_nobody() -> None:
    heard: list[Event] = []
    late: list[Call] = []

    async def hasty(call: Call) -> Outcome:
        late.append(call)
        call.emit(Event("status", text="in time"))
        return DONE

    async def story() -> None:
        async with rig(Script(hasty)) as it:
            target = (it.agent, it.capability)
            await it.runner.start(it.a_call(), target, listener=heard.append)
            await it.runner.start(it.a_call(key="k"), target, listener=heard.append)
            for call in late:
                call.emit(Event("status", text="too late"))
            assert [event.text for event in heard] == ["in time"] * 2

    run(story())


# Working elsewhere


def test_work_elsewhere_is_looked_at_until_it_is_done() -> None:
    async def story() -> None:
        remote = Script(Working("ref 1", 0.0), Working("ref 2", 0.001), Working("ref 2", 0.001, text="half"), DONE)
        async with rig(remote) as it:
            told = await it.call()
            assert isinstance(told, Working)
            assert told.state is None
            assert isinstance(await it.runner.wait(CLIENT, job_of(told), 60), Done)
            assert [call.entry for call in remote.calls] == ["start", "attach", "attach", "attach"]
            assert [call.state for call in remote.calls] == [None, "ref 1", "ref 2", "ref 2"]
            assert all(call.route == it.capability.routes[0] for call in remote.calls)
            await until(lambda: not it.runner.tasks)

    run(story())


def test_work_elsewhere_can_end_in_a_question_and_go_on() -> None:
    async def story() -> None:
        ask = Needs((Question("q1", "Sure?"),), state="ref")
        remote = Script(Working("ref", 0.0), ask, Working("ref", 0.0), DONE)
        async with rig(remote) as it:
            job = job_of(await it.call(key="k"))
            assert isinstance(await it.runner.wait(CLIENT, job, 60), Needs)
            assert isinstance(await it.runner.answer(CLIENT, job, said(q1="yes")), Working)
            assert isinstance(await it.runner.wait(CLIENT, job, 60), Done)
            assert [call.entry for call in remote.calls] == ["start", "attach", "answer", "attach"]

    run(story())


def test_work_elsewhere_is_cancelled_there_also_between_two_looks() -> None:
    async def story() -> None:
        remote = Script(Working("ref", 60.0), Failed("canceled", "stopped over there"))
        async with rig(remote) as it:
            job = job_of(await it.call())
            outcome = await it.runner.cancel(CLIENT, job)
            assert isinstance(outcome, Failed)
            assert outcome.message == "stopped over there"
            assert [call.entry for call in remote.calls] == ["start", "cancel"]
            assert remote.calls[1].state == "ref"

    run(story())


def test_a_job_is_cancelled_also_when_its_target_cannot_be_told() -> None:
    async def story() -> None:
        async with rig(Script(Working("ref", 60.0), Failed("unavailable", "It is down."))) as it:
            outcome = await it.runner.cancel(CLIENT, job_of(await it.call()))
            assert isinstance(outcome, Failed)
            assert outcome.code == "canceled"
            assert "It is down." in outcome.message

    run(story())


def test_work_elsewhere_does_not_hold_up_closing_and_is_taken_over(lasting_url: str) -> None:
    async def story() -> None:
        first = Script(Working("ref", 60.0))
        async with rig(first, url=lasting_url) as it:
            job = job_of(await it.call())
            await asyncio.wait_for(it.runner.aclose(3_600.0), 60)
        second = Script(DONE)
        async with rig(second, url=lasting_url) as it:
            await it.database.many("UPDATE jobs SET outcome = ?", [(b'{"outcome":"working","poll":0.0}',)])
            assert await it.runner.recover() == 1
            assert isinstance(await it.runner.wait(CLIENT, job, 60), Done)
            assert [(call.entry, call.state) for call in second.calls] == [("attach", "ref")]

    run(story())


# Closing and recovering


def test_a_replayable_job_goes_on_after_a_restart_with_its_answers(lasting_url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            first = await here.call("choose_again", {})
            second = await here.answer(first, q1="l")
            running = job_of(await here.call("wait_again", {}, detach=True))
            await asyncio.wait_for(toy.entered.wait(), 60)
        assert toy.cancelled.is_set()
        toy.go.set()
        async with home(toy.agent, url=lasting_url) as here:
            assert (await here.job(running)).status == "working"
            assert await here.runner.recover() == 1
            assert isinstance(await here.runner.wait(CLIENT, running, 60), Done)
            assert value_of((await _done(here.answer(second, q2=2))).parts) == "2l"
            assert toy.runs.count("once") == 1, "what is done once is not done again after a restart"
            events = await here.followed(running)
            numbers = [event.seq for event in events]
            assert numbers == sorted(set(numbers))
            assert events[-1].kind == "turn"

    run(story())


def test_a_job_that_may_not_be_repeated_is_interrupted_cleanly(lasting_url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            paused = await here.call("choose", {})
            running = job_of(await here.call("wait", {}, detach=True))
            await asyncio.wait_for(toy.entered.wait(), 60)
        async with home(toy.agent, url=lasting_url) as here:
            assert await here.runner.recover() == 1
            outcome = await here.runner.wait(CLIENT, running, 60)
            assert isinstance(outcome, Failed)
            assert outcome.code == "interrupted"
            assert toy.runs.count("wait") == 1
            again = await here.answer(paused, q1="s")
            assert isinstance(again, Failed)
            assert again.code == "interrupted"
            assert await here.runner.recover() == 0

    run(story())


def test_a_plain_function_waits_for_its_answer_over_any_restart(lasting_url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            paused = await here.call("book", {"flight": "A1"})
        async with home(toy.agent, url=lasting_url) as here:
            assert await here.runner.recover() == 0
            assert value_of((await _done(here.answer(paused, q1="12"))).parts) == "R1 12 A1"
            assert toy.runs == ["book", "book"]

    run(story())


def test_a_message_is_resolved_again_when_an_answer_runs_the_function_anew() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            paused = await here.call("book", message="B2")
            assert value_of((await _done(here.answer(paused, q1="12"))).parts) == "R1 12 B2"

    run(story())


def test_recovered_calls_are_not_charged_again(lasting_url: str) -> None:
    strict = Settings(server=Server(shutdown_seconds=0.05), limits=Limits(per_minute=0.001, burst=3, concurrent=6))

    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url, settings=strict) as here:
            jobs = [job_of(await here.call("wait_again", {}, detach=True)) for _ in range(3)]
            await until(lambda: toy.runs.count("wait") == 3)
        toy.go.set()
        strictest = Settings(
            server=Server(shutdown_seconds=0.05), limits=Limits(per_minute=0.001, burst=1, concurrent=1)
        )
        async with home(toy.agent, url=lasting_url, settings=strictest) as here:
            assert await here.runner.recover() == 3
            for job in jobs:
                assert isinstance(await here.runner.wait(CLIENT, job, 60), Done)

    run(story())


def test_a_damaged_job_keeps_no_other_from_being_taken_over(lasting_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            jobs = [job_of(await here.call("wait", {}, detach=True)) for _ in range(2)]
        async with home(toy.agent, url=lasting_url) as here:
            leases = here.runner.takeover._jobs.leases
            first = (await leases.list_abandoned())[0]
            find = leases.find_abandoned

            async def find_whole(job_id: str) -> Any:
                if job_id == first:
                    raise Corrupt("A value was moved from another row.")
                return await find(job_id)

            monkeypatch.setattr(leases, "find_abandoned", find_whole)
            assert await here.runner.recover() == 1
            (other,) = {*jobs} - {first}
            assert isinstance(await here.runner.wait(CLIENT, other, 60), Failed)
            monkeypatch.undo()
            assert await here.runner.recover() == 1

    run(story())


def test_a_job_is_left_for_a_process_that_has_its_agent_and_failed_when_none_has(lasting_url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            running = job_of(await here.call("wait_again", {}, detach=True))
            await asyncio.wait_for(toy.entered.wait(), 60)
        toy.agent.remove("wait_again")
        async with home(toy.agent, url=lasting_url) as here:
            before = await here.job(running)
            assert await here.runner.recover() == 0
            assert await here.job(running) == before, "who does not have the agent touches nothing"
            long_ago = REAL.now() - 3_700
            await here.core.database.many("UPDATE jobs SET lease = ?, updated = ?", [(long_ago, long_ago)])
            assert await here.runner.recover() == 1
            outcome = await here.runner.wait(CLIENT, running, 60)
            assert isinstance(outcome, Failed)
            assert outcome.code == "capability_not_found"

    run(story())


def test_closing_lets_a_turn_finish_that_needs_only_a_little_longer() -> None:
    settings = Settings(server=Server(shutdown_seconds=5), calls=QUIET.calls, limits=QUIET.limits)

    async def story() -> None:
        toy = Toy()
        database = await open_database(":memory:")
        async with home(toy.agent, settings=settings, database=database) as here:
            job = job_of(await here.call("wait", {}, detach=True))
            await asyncio.wait_for(toy.entered.wait(), 60)
            asyncio.get_running_loop().call_later(0.05, toy.go.set)
        row = await database.one("SELECT status FROM jobs WHERE id = ?", job)
        assert row is not None
        assert row["status"] == "done"
        await database.aclose()

    run(story())


def test_two_processes_share_one_database(lasting_url: str) -> None:
    async def story() -> None:
        one, two = Toy(), Toy()
        async with home(one.agent, url=lasting_url) as here, home(two.agent, url=lasting_url) as there:
            job = job_of(await here.call("wait_again", {}, detach=True))
            await asyncio.wait_for(one.entered.wait(), 60)
            assert await there.runner.recover() == 0, "a job that is worked on was taken away"
            here.runner.takeover.start()
            other = job_of(await here.call("wait", {}, detach=True))
            assert isinstance(ended := await there.runner.cancel(CLIENT, other), Failed)
            assert ended.code == "canceled"
            assert one.cancelled.is_set(), "it was stopped where it ran"
            paused = await here.call("book", {"flight": "A1"})
            assert isinstance(await there.answer(paused, q1="12"), Done), "any process may take the next turn"
            follower = asyncio.create_task(there.followed(job))
            joined = asyncio.create_task(there.runner.wait(CLIENT, job, 60))
            one.go.set()
            assert isinstance(await joined, Done)
            assert (await follower)[-1].kind == "turn"
            again = await asyncio.gather(
                *(each.call("echo", {"text": "x"}, key="k") for each in (here, there) for _ in range(3))
            )
            assert all(isinstance(outcome, Done) for outcome in again)
            assert one.runs.count("echo") + two.runs.count("echo") == 1

    run(story())


def test_the_background_duty_renews_leases(lasting_url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            inline = asyncio.create_task(here.call("wait", {}))
            await asyncio.wait_for(toy.entered.wait(), 60)
            await here.call("wait_again", {}, detach=True)
            await here.core.database.many("UPDATE jobs SET lease = ?", [(1.0,)])
            here.runner.takeover.start(0.02)
            async with asyncio.timeout(60):
                while any((one.lease or 0) < REAL.now() for one in await here.jobs.list_latest("alice")):
                    await asyncio.sleep(0.01)
            toy.go.set()
            assert isinstance(await inline, Done)

    run(story())


def test_the_background_duty_takes_over_what_is_lost(lasting_url: str) -> None:
    async def story() -> None:
        one, two = Toy(), Toy()
        two.go.set()
        async with home(one.agent, url=lasting_url) as here, home(two.agent, url=lasting_url) as there:
            job = job_of(await here.call("wait_again", {}, detach=True))
            await asyncio.wait_for(one.entered.wait(), 60)
            await here.core.database.many("UPDATE jobs SET node = 'dead/1/x', lease = ? WHERE id = ?", [(1.0, job)])
            there.runner.takeover.start(0.02, trust_after=0.0)
            assert isinstance(await there.runner.wait(CLIENT, job, 60), Done)

    run(story())


def test_conversing_asks_and_answers_until_nothing_more_is_needed() -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent) as here:
            replies: dict[str, Any] = {"q1": "s", "q2": 4}

            async def ask(needs: Needs) -> dict[str, Answer]:
                return said(**{one.id: replies[one.id] for one in needs.questions})

            async def answer(job: str, answers: Any) -> Outcome:
                return await here.runner.answer(CLIENT, job, answers)

            outcome = await converse(await here.call("choose", {}), answer, ask)
            assert isinstance(outcome, Done)
            assert value_of(outcome.parts) == "4s"

    run(story())


def test_an_answer_for_a_missing_agent_leaves_the_job_waiting() -> None:
    async def story() -> None:
        async with rig(Script(Needs((Question("q1", "?"),)), DONE)) as it:
            needs = await it.call()
            found = it.runner._lookup

            async def gone(agent: str, name: str) -> Any:
                raise AgentNotFound("gone")

            it.runner._lookup = gone
            with pytest.raises(AgentNotFound):
                await it.runner.answer(CLIENT, job_of(needs), said(q1="x"))
            it.runner._lookup = found
            assert isinstance(await it.runner.answer(CLIENT, job_of(needs), said(q1="x")), Done)

    run(story())


def test_the_answer_is_shown_with_its_files() -> None:
    async def story() -> None:
        target = Script(Needs((Question("q1", "?"),)), DONE)
        async with rig(target) as it:
            needs = await it.call()
            reply = (Part(raw=b"file", name="a.txt"),)
            await it.runner.answer(CLIENT, job_of(needs), said(q1="x"), reply=reply)
            assert target.calls[1].reply == reply
            assert target.calls[1].input == {}

    run(story())


def test_a_hanging_target_is_cut_off_and_the_job_says_so() -> None:
    async def story() -> None:
        async with rig(Script(hang), calls=Calls(timeout=0.05)) as it:
            outcome = await it.call(key="k")
            assert isinstance(outcome, Failed)
            assert outcome.code == "timeout"
            assert [row["status"] for row in await it.rows("jobs")] == ["failed"]

    run(story())


def test_a_down_target_fails_the_job() -> None:
    async def story() -> None:
        async with rig(Script(DOWN)) as it:
            outcome = await it.call(key="k", retries=0)
            assert isinstance(outcome, Failed)
            assert outcome.code == "unavailable"

    run(story())


# Never twice, never lost


def test_a_key_does_not_make_a_call_repeatable_after_a_restart(lasting_url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            running = job_of(await here.call("wait", {}, key="k", detach=True))
            await asyncio.wait_for(toy.entered.wait(), 60)
        async with home(toy.agent, url=lasting_url) as here:
            assert await here.runner.recover() == 1
            outcome = await here.runner.wait(CLIENT, running, 60)
            assert isinstance(outcome, Failed)
            assert outcome.code == "interrupted"
            assert await here.call("wait", {}, key="k") == outcome
            assert toy.runs.count("wait") == 1

    run(story())


def test_a_target_that_refuses_in_our_words_is_not_asked_again_by_its_key() -> None:
    async def story() -> None:
        target = Script(Failed("conflict", "the parcel left, and then the printer failed"))
        async with rig(target) as it:
            outcomes = [await it.call(key="k") for _ in range(3)]
            assert len(target.calls) == 1
            assert outcomes[0] == outcomes[2]

    run(story())


class Broken:
    """A database that refuses writes while it is told to."""

    def __init__(self, database: Database):
        self._database = database
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, work: Any, **how: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise StorageError("The disk hiccups.")
        return await self._database.write(work, **how)


@pytest.mark.parametrize("detach", [True, False])
def test_an_end_that_storage_does_not_take_is_written_later(detach: bool) -> None:
    broken: list[Broken] = []

    def wrap(database: Database) -> Any:
        broken.append(Broken(database))
        return broken[0]

    async def refuse(call: Call) -> Outcome:
        call.emit(Event("status", text="done, but not written"))
        broken[0].refusals = 3
        return DONE

    async def story() -> None:
        target = Script(refuse)
        async with rig(target, wrap=wrap) as it:
            call = it.a_call(key="k")
            starting = it.runner.start(call, (it.agent, it.capability), detach=detach)
            if detach:
                assert isinstance(await starting, Working)
            else:
                with pytest.raises(StorageError):
                    await starting
            assert isinstance(await it.runner.wait(CLIENT, call.id, 60), Done)
            assert len(target.calls) == 1
            events = [event async for event in it.runner.follow(CLIENT, call.id)]
            assert [event.kind for event in events] == ["status", "turn"]
            await until(lambda: not it.runner.tasks)

    run(story())


def test_a_job_outlasts_a_database_that_goes_away() -> None:
    """It runs again where nothing was sent; one whose storage stays away is interrupted at its deadline."""
    failures: list[int] = []

    async def story() -> None:
        class Away(Chain):
            async def __call__(self, call: Call) -> Outcome:
                if failures:
                    failures.pop()
                    raise StorageError("The connection was lost.")
                return await super().__call__(call)

        target = Script(*[DONE] * 3)
        async with rig(target, chain=Away) as it:
            failures[:] = [1, 1]
            assert isinstance(await it.call(key="k"), Done)
            assert len(target.calls) == 1
            failures[:] = [1] * 1_000
            outcome = await it.call(key="l", timeout=0.3)
            assert isinstance(outcome, Failed)
            assert outcome.code == "interrupted"
            assert sorted(row["status"] for row in await it.rows("jobs")) == ["done", "failed"]
            with pytest.raises(StorageError):
                await it.call()

    run(story())


def test_a_caller_gets_the_outcome_of_a_job_that_another_process_ended() -> None:
    async def story() -> None:
        entered, go = asyncio.Event(), asyncio.Event()

        async def slow(_: Call) -> Outcome:
            entered.set()
            await go.wait()
            return DONE

        async with rig(Script(slow)) as it:
            calling = asyncio.create_task(it.call(key="k"))
            await asyncio.wait_for(entered.wait(), 60)
            (row,) = await it.rows("jobs")
            job = await it.runner.get(CLIENT, row["id"])
            other = Jobs(it.runner._jobs._database, REAL)
            taken = await other.take_over(job)
            assert taken is not None
            elsewhere = Done((Part(text="elsewhere"),))
            await other.end_turn(taken, elsewhere, None)
            go.set()
            assert await calling == elsewhere, "never turn_taken"

    run(story())


def test_one_job_that_cannot_be_taken_over_does_not_stop_the_others(lasting_url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            jobs = [job_of(await here.call("wait_again", {}, detach=True)) for _ in range(3)]
            await until(lambda: toy.runs.count("wait") == 3)
        toy.go.set()
        async with home(toy.agent, url=lasting_url) as here:
            await here.core.database.many("UPDATE jobs SET call = ? WHERE id = ?", [(b"{}", jobs[0])])
            found = here.runner._lookup
            failures = iter([RuntimeError("a bug")])

            async def lookup(agent: str, name: str) -> Any:
                for failure in failures:
                    raise failure
                return await found(agent, name)

            here.runner._lookup = lookup
            assert await here.runner.recover() == 1
            assert await here.runner.recover() == 1
            for job in jobs[1:]:
                assert isinstance(await here.runner.wait(CLIENT, job, 60), Done)

    run(story())


@pytest.mark.parametrize(("key", "detach"), [("k", False), (None, True)])
def test_nothing_is_kept_of_a_call_that_comes_too_often(key: str | None, detach: bool) -> None:
    async def story() -> None:
        target = Script()
        async with rig(target, limits=Limits(per_minute=0.001, burst=2)) as it:
            assert isinstance(await it.call(key="first"), Done)
            await it.call()
            refused = await it.runner.start(it.a_call(key=key), (it.agent, it.capability), door="test", detach=detach)
            assert isinstance(refused, Failed)
            assert refused.code == "rate_limited"
            assert isinstance(await it.call(key="first"), Done), "to hear again what was answered costs nothing"
            assert len(await it.rows("jobs")) == 1
            assert [row["status"] for row in await it.rows()] == ["done", "done", "refused"]
            assert len(target.calls) == 2

    run(story())


def test_a_kept_call_still_counts_among_those_that_run_at_once() -> None:
    async def story() -> None:
        toy = Toy()
        limits = Limits(per_minute=0, concurrent=1)
        async with home(toy.agent, settings=Settings(server=QUIET.server, limits=limits)) as here:
            running = job_of(await here.call("wait", {}, detach=True))
            await asyncio.wait_for(toy.entered.wait(), 60)
            busy = await here.call("wait", {}, key="k")
            assert isinstance(busy, Failed)
            assert busy.code == "rate_limited"
            toy.go.set()
            assert isinstance(await here.runner.wait(CLIENT, running, 60), Done)
            assert isinstance(await here.call("wait", {}, key="k"), Done)

    run(story())


async def _flood(call: Call) -> Outcome:
    for number in range(1_000):
        call.emit(Event("status", text=f"{number} {'x' * 100}"))
        await asyncio.sleep(0)
    return DONE


async def _swallow(call: Call) -> Outcome:
    try:
        return await _flood(call)
    except asyncio.CancelledError:
        return DONE


async def _burst(call: Call) -> Outcome:
    for number in range(1_000):
        call.emit(Event("status", text=f"{number} {'x' * 100}"))
    return DONE


@pytest.mark.parametrize("target", [_flood, _swallow, _burst])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("bounds", [Calls(events=10), Calls(event_bytes=1_500)])
def test_a_turn_that_tells_too_much_is_ended(target: Any, key: str | None, bounds: Calls) -> None:
    async def story() -> None:
        heard: list[Event] = []
        async with rig(Script(target), calls=bounds) as it:
            outcome = await it.runner.start(it.a_call(key=key), (it.agent, it.capability), listener=heard.append)
            assert isinstance(outcome, Failed)
            assert outcome.code == "too_large"
            assert 8 < len(heard) <= 12
            stored = [row["kind"] for row in await it.rows("job_events")]
            assert stored == ([*["status"] * len(heard), "turn"] if key else [])
            assert 'agent3_events_dropped_total{reason="too many events in one turn"}' in _page(it)
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            await asyncio.sleep(0)

    run(story())


def _page(it: Any) -> str:
    return str(it.metrics.render()[0].decode())


def test_an_event_that_is_not_json_is_left_out_of_the_log() -> None:
    async def odd(call: Call) -> Outcome:
        call.emit(Event("log", text="fine"))
        call.emit(Event("log", data=object()))
        call.emit(Event("log", text="fine again"))
        return DONE

    async def story() -> None:
        async with rig(Script(odd)) as it:
            assert isinstance(await it.call(key="k"), Done)
            assert [row["seq"] for row in await it.rows("job_events")] == [1, 2, 3]
            assert 'agent3_events_dropped_total{reason="not JSON"} 1.0' in _page(it)

    run(story())


def test_who_lost_a_job_stops_and_writes_nothing(lasting_url: str) -> None:
    async def story() -> None:
        one, two = Toy(), Toy()
        two.go.set()
        async with home(one.agent, url=lasting_url) as here, home(two.agent, url=lasting_url) as there:
            inline = asyncio.create_task(here.call("wait_again", {}))
            await asyncio.wait_for(one.entered.wait(), 60)
            one.entered.clear()
            keyed = asyncio.create_task(here.call("wait_again", {}, key="k"))
            await asyncio.wait_for(one.entered.wait(), 60)
            await here.core.database.many("UPDATE jobs SET lease = ?", [(1.0,)])
            assert await there.runner.recover() == 2
            await here.runner.takeover._round()
            assert {type(await told) for told in (inline, keyed)} <= {Working, Done}
            assert one.cancelled.is_set()
            for job in await there.jobs.list_latest("alice"):
                assert isinstance(await there.runner.wait(CLIENT, job.id, 60), Done)
                turns = [event for event in await there.followed(job.id) if event.kind == "turn"]
                assert len(turns) == 1
            await until(lambda: not here.runner.tasks and not here.runner.lost)

    run(story())


def test_events_that_are_no_longer_ours_to_write_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent3.calls.runner._ELSEWHERE", 0.01)  # there is nobody who ends the job

    async def story() -> None:
        lost, go = asyncio.Event(), asyncio.Event()

        async def tell(call: Call) -> Outcome:
            await lost.wait()
            call.emit(Event("status", text="nobody will read this"))
            await go.wait()
            return DONE

        async with rig(Script(tell)) as it:
            told = await it.runner.start(it.a_call(), (it.agent, it.capability), detach=True)
            assert isinstance(told, Working)
            await it.database.many("UPDATE jobs SET generation = 7", [()])
            lost.set()
            await until(lambda: 'agent3_events_dropped_total{reason="not written"} 1.0' in _page(it))
            go.set()
            await until(lambda: not it.runner.tasks)

    run(story())


def test_a_job_between_two_processes_can_be_cancelled(lasting_url: str) -> None:
    async def story() -> None:
        toy = Toy()
        async with home(toy.agent, url=lasting_url) as here:
            running = job_of(await here.call("wait", {}, detach=True))
            await asyncio.wait_for(toy.entered.wait(), 60)
        async with home(toy.agent, url=lasting_url) as here:
            outcome = await here.runner.cancel(CLIENT, running)
            assert isinstance(outcome, Failed)
            assert outcome.code == "canceled"
            assert await here.runner.recover() == 0

    run(story())


def test_a_job_whose_question_was_what_it_is_for_starts_again_after_a_restart(tmp_path: Path) -> None:
    """The process dies when the answer is written down, and before it has begun to do what it says."""
    agent = LocalAgent("desk")

    @agent.capability(read_only=True)
    async def rate(text: str) -> str:
        return f"rate of {text}"

    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def story() -> None:
        call = Call(id=REAL.id(), principal=CLIENT, agent="desk", capability="", parts=(Part(text="of gold"),))
        async with home(agent, url=url) as it:
            target = agent.agent, Capability(name="")
            asked = await it.runner.ask(call, target, Needs((Question("capability", "Which?"),)), "test")
            job = await it.job(asked)
            begun = replace(call, capability="rate", routes=agent.agent.capabilities[0].routes)
            claimed = await it.jobs.claim(job, {}, call=begun)
            assert (claimed.outcome, claimed.questions, claimed.state) == (None, (), None)
        async with home(agent, url=url) as it:
            assert await it.runner.recover() == 1
            outcome = await it.runner.wait(CLIENT, call.id, 60)
            assert isinstance(outcome, Done), outcome
            assert text_of(outcome.parts) == "rate of of gold"

    run(story(), 120)
