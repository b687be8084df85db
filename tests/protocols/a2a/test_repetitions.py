"""Messages that come twice or all at once, ids that nobody told, and much of everything: what is done is done once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent3.errors import TurnTaken, ValidationError
from agent3.protocols.a2a.door import tasks as engine
from agent3.protocols.a2a.wire.types import ListTasks, Search, State, StatusUpdate, Subscribe, Task
from agent3.protocols.functions.functions import Context, LocalAgent
from tests.support.a2a_engine import ALICE, a_bench, heard, say

TALKATIVE: dict[str, Any] = {"metadata": {"skillId": "talkative"}}


def an_agent() -> LocalAgent:
    agent = LocalAgent("target")

    @agent.capability
    async def order(ctx: Context, message: str) -> str:
        return f"{await ctx.ask('Which size?')} {message}"

    @agent.capability
    async def talkative(ctx: Context, message: str) -> str:
        for number in range(510):  # more than one page of the log
            ctx.say(f"word {number}")
        return f"{await ctx.ask('Really?')} {await ctx.ask('Certainly?')}"

    @agent.capability
    async def wait(ctx: Context, message: str) -> str:
        await ctx.ask("Go on?")
        return "went on"

    return agent


def as_task(reply: Any) -> Task:
    assert isinstance(reply, Task), reply
    return reply


def test_an_answer_that_comes_again_answers_no_further_question_however_much_was_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), f"sqlite:///{tmp_path / 'tasks.db'}") as bench:
            task = as_task(await bench.engine.send(ALICE, say("x", **TALKATIVE)))
            first = as_task(await bench.engine.send(ALICE, say("yes", "m-2", task_id=task.id)))
            again = as_task(await bench.engine.send(ALICE, say("yes", "m-2", task_id=task.id)))
            assert first.status.state is again.status.state is State.INPUT_REQUIRED
            done = as_task(await bench.engine.send(ALICE, say("quite", "m-2", task_id=task.id)))
            assert done.artifacts[0].parts[0].text == "yes quite"

    asyncio.run(main())


def test_an_answer_that_comes_thrice_at_once_is_one_answer() -> None:
    async def main() -> None:
        async with a_bench(an_agent()) as bench:
            task = as_task(await bench.engine.send(ALICE, say("pizza")))
            answers = (bench.engine.send(ALICE, say("large", "m-2", task_id=task.id)) for _ in range(3))
            told = [as_task(reply) for reply in await asyncio.gather(*answers)]
            assert [item.artifacts[0].parts[0].text for item in told] == ["large pizza"] * 3

    asyncio.run(main())


def test_of_two_answers_at_once_one_is_taken_and_the_other_is_told_so() -> None:
    async def main() -> None:
        async with a_bench(an_agent()) as bench:
            task = as_task(await bench.engine.send(ALICE, say("pizza")))
            answers = (bench.engine.send(ALICE, say(size, task_id=task.id)) for size in ("small", "large"))
            told = await asyncio.gather(*answers, return_exceptions=True)
            assert {type(item) for item in told} == {Task, TurnTaken}

    asyncio.run(main())


def test_who_names_an_event_that_was_never_told_misses_nothing() -> None:
    async def main() -> None:
        async with a_bench(an_agent()) as bench:
            task = as_task(await bench.engine.send(ALICE, say("x", metadata={"skillId": "wait"})))
            items = bench.engine.subscribe(ALICE, Subscribe(id=task.id, after=99_999_999_999_999_999))
            number, snapshot = await anext(items)
            assert number < 99_999_999_999_999_999
            assert as_task(snapshot).status.state is State.INPUT_REQUIRED
            await bench.engine.send(ALICE, say("tea", task_id=task.id))
            last = (await heard(items))[-1][1]
            assert isinstance(last, StatusUpdate)
            assert last.status.state is State.COMPLETED

    asyncio.run(main())


def test_who_says_something_new_hears_all_of_it_whatever_it_heard_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), f"sqlite:///{tmp_path / 'tasks.db'}") as bench:
            all_of_it = await heard(bench.engine.stream(ALICE, say("pizza", "m-1"), 99_999_999_999_999_999))
            assert len(all_of_it) == 3
            again = await heard(bench.engine.stream(ALICE, say("pizza", "m-1"), all_of_it[1][0]))
            assert again == all_of_it[2:]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("messageId", {"message_id": "m" * 501}),
        ("contextId", {"context_id": "c" * 501}),
        ("id", {"task_alias": "t" * 501}),
    ],
)
def test_an_id_that_is_too_long_to_be_remembered_is_refused(name: str, more: dict[str, Any]) -> None:
    async def main() -> None:
        async with a_bench(an_agent()) as bench:
            with pytest.raises(ValidationError, match=f"^{name} must have at most 500"):
                await bench.engine.send(ALICE, say("x", **more))
            short = {key: value[:500] for key, value in more.items()}
            assert as_task(await bench.engine.send(ALICE, say("x", **short))).status.state is State.INPUT_REQUIRED

    asyncio.run(main())


def test_the_logs_of_many_tasks_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(engine, "_AT_ONCE", 1_100)
        async with a_bench(an_agent(), f"sqlite:///{tmp_path / 'tasks.db'}") as bench:
            for number in range(3):
                await bench.engine.send(ALICE, say(f"tale {number}", **TALKATIVE))
            read: list[int] = []
            read_all = bench.core.jobs.log.read_all

            async def counted(jobs: Any) -> Any:
                read.append(len(jobs))
                return await read_all(jobs)

            monkeypatch.setattr(bench.core.jobs.log, "read_all", counted)
            page = await bench.engine.list(ALICE, ListTasks())
            assert [task.history[0].parts[0].text for task in page.tasks] == ["tale 2", "tale 1", "tale 0"]
            found = await bench.engine.search(ALICE, Search(query="TALE word 1"))
            assert [task.id for task in found.tasks] == [task.id for task in page.tasks]
            assert read == [2, 1, 2, 1]
            with pytest.raises(ValidationError, match="query"):
                await bench.engine.search(ALICE, Search(query="a " * 501))

    asyncio.run(main())
