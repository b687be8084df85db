"""The task engine: tasks on the durable layer, in every state, told to any number and resumed from anywhere."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from agent3.errors import CapabilityNotFound, Conflict, JobNotFound, Rejected, ValidationError
from agent3.model import Done, Principal
from agent3.model import Part as Piece
from agent3.protocols.a2a.door.tasks import Caller
from agent3.protocols.a2a.wire.errors import ContentTypeNotSupported, InvalidTaskState, TaskNotCancelable
from agent3.protocols.a2a.wire.types import (
    ArtifactUpdate,
    CancelTask,
    GetCard,
    GetTask,
    Item,
    ListTasks,
    Message,
    Part,
    Role,
    Search,
    Send,
    State,
    StatusUpdate,
    Subscribe,
    Task,
    TaskPage,
)
from agent3.protocols.functions.functions import Context, LocalAgent, SyncContext
from tests.support.a2a_engine import ALICE, BOB, a_bench, heard, say
from tests.support.postgres import new_database_url

SOON = 60.0


def an_agent() -> LocalAgent:
    agent = LocalAgent("target")

    @agent.capability
    async def echo(message: str) -> str:
        return message

    @agent.capability
    async def order(ctx: Context, message: str) -> str:
        ctx.say("Welcome.")
        size = await ctx.ask("Which size?", Literal["small", "large"])
        return f"{size} {message}"

    @agent.capability
    def book(ctx: SyncContext, message: str) -> str:
        ctx.artifact("ticket", id="ticket", name="Ticket")
        return f"{message} {ctx.ask('Seat?')} {ctx.ask('Meal?')}"

    @agent.capability
    async def login(ctx: Context, message: str) -> str:
        await ctx.ask("Sign in there.", url="https://login.example")
        return "welcome"

    @agent.capability
    async def story(message: str) -> AsyncIterator[str]:
        for word in ("once", " upon", " a time"):
            yield word

    @agent.capability
    async def report(ctx: Context, message: str) -> None:
        ctx.artifact("a", id="r", name="Report", last=False)
        ctx.artifact("b", id="r", append=True, last=False)
        ctx.artifact("c", id="r", append=True)

    @agent.capability
    async def fail(message: str) -> str:
        raise RuntimeError("broken inside")

    @agent.capability
    async def reject(message: str) -> str:
        raise Rejected("Not on Sundays.")

    @agent.capability
    async def slow(ctx: Context, message: str) -> str:
        ctx.status("thinking")
        await asyncio.Event().wait()
        return "never"

    agent.add(_talk, name="talk", meta={"a2a": {"answer": "message"}})
    agent.add(_either, name="either", meta={"a2a": {"answer": "hybrid"}})
    agent.add(_echo, name="former", input_modes=("text", "file"), output_modes=("text",))
    agent.add(_echo, name="picky", input_modes=("image/*",), output_modes=("text/html",))
    return agent


async def _talk(message: str) -> str:
    return f"you said {message}"


async def _either(message: str) -> Any:
    return Done((Piece(text="hi"),), meta={"a2a": "message"}) if message == "hello" else "a task"


async def _echo(message: str) -> str:
    return message


def skill(name: str) -> dict[str, Any]:
    return {"metadata": {"skillId": name}}


def states(items: list[tuple[int, Item]]) -> list[str]:
    """What a stream told, in short."""
    return [_short(item) for _, item in items]


def _short(item: Item) -> str:
    if isinstance(item, ArtifactUpdate):
        return f"{item.artifact.artifact_id}{'+' if item.append else ''}{'.' if item.last_chunk else ''}"
    if isinstance(item, Message):
        return "message"
    kind = "task" if isinstance(item, Task) else "status"
    return f"{kind} {item.status.state.value.removeprefix('TASK_STATE_').lower()}"


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ":memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'tasks.db'}"


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.postgres)])
def every_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """For what the databases do differently."""
    if request.param == "postgres":
        return new_database_url()
    return ":memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'tasks.db'}"


def as_task(reply: Any) -> Task:
    assert isinstance(reply, Task), reply
    return reply


# Sending


@pytest.mark.requirement("SL-02")
def test_a_message_becomes_a_task_that_can_be_read_again(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("hello", "m1")))
            assert task.status.state is State.COMPLETED
            assert [artifact.artifact_id for artifact in task.artifacts] == ["result"]
            assert task.artifacts[0].parts == (Part(text="hello"),)
            assert [(message.message_id, message.role) for message in task.history] == [("m1", Role.USER)]
            assert task.context_id
            assert await bench.engine.get(ALICE, GetTask(id=task.id)) == task
            assert await bench.engine.get(ALICE, GetTask(id=task.id, history_length=0)) != task
            assert await bench.engine.generation(ALICE, task.id) == "1.0"
            assert await bench.engine.generation(ALICE.principal, "nothing") is None

    asyncio.run(main())


def test_the_same_message_gets_the_same_task_and_another_under_its_id_a_new_one(every_url: str) -> None:
    async def main() -> None:
        agent = LocalAgent("target")
        ran: list[str] = []

        @agent.capability
        async def count(message: str) -> str:
            ran.append(message)
            await asyncio.sleep(0)
            return f"{len(ran)}"

        agent.capability(name="other")(count)

        def to_count(text: str, **more: Any) -> Send:
            return say(text, "m1", **{**skill("count"), **more})

        async with a_bench(agent, every_url) as bench:
            both = await asyncio.gather(*(bench.engine.send(ALICE, to_count("x")) for _ in range(3)))
            again = await bench.engine.send(ALICE, to_count("x"))
            streamed = await heard(bench.engine.stream(ALICE, to_count("x")))
            assert {as_task(entry).id for entry in (*both, again, streamed[0][1])} == {as_task(again).id}
            assert ran == ["x"]
            other = as_task(await bench.engine.send(ALICE, to_count("y")))
            assert as_task(await bench.engine.send(ALICE, to_count("y"))).id == other.id
            elsewhere = as_task(await bench.engine.send(ALICE, to_count("x", context_id="another")))
            stranger = as_task(await bench.engine.send(BOB, to_count("x")))
            assert len({as_task(again).id, other.id, elsewhere.id, stranger.id}) == 4
            assert ran == ["x", "y", "x", "x"]
            with pytest.raises(Conflict, match="m1"):  # the same words, for something else
                await bench.engine.send(ALICE, to_count("x", **skill("other")))

    asyncio.run(main())


def test_without_idempotence_every_message_is_a_new_one(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url, idempotent=False) as bench:
            first = as_task(await bench.engine.send(ALICE, say("x", "m1")))
            second = as_task(await bench.engine.send(ALICE, say("x", "m1")))
            other = as_task(await bench.engine.send(ALICE, say("y", "m1")))
            assert len({first.id, second.id, other.id}) == 3
            asked = as_task(await bench.engine.send(ALICE, say("x", "m1", **skill("order"))))
            assert asked.status.state is State.INPUT_REQUIRED
            done = as_task(await bench.engine.send(ALICE, say("large", "m1", task_id=asked.id)))
            assert done.status.state is not State.INPUT_REQUIRED

    asyncio.run(main())


def test_before_1_0_the_context_of_the_task_stands_whatever_the_message_says(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            asked = as_task(await bench.engine.send(ALICE, say("x", **skill("order"))))
            elsewhere = say("large", task_id=asked.id, context_id="elsewhere")
            with pytest.raises(ValidationError, match="belongs to context"):
                await bench.engine.send(ALICE, elsewhere)
            older = Caller(principal=ALICE.principal, generation="0.3")
            done = as_task(await bench.engine.send(older, elsewhere))
            assert (done.id, done.context_id) == (asked.id, asked.context_id)

    asyncio.run(main())


def test_a_strangers_task_is_not_there(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("x", **skill("order"))))
            for ask in (
                bench.engine.get(BOB, GetTask(id=task.id)),
                bench.engine.cancel(BOB, CancelTask(id=task.id)),
                bench.engine.send(BOB, say("large", task_id=task.id)),
                heard(bench.engine.subscribe(BOB, Subscribe(id=task.id))),
            ):
                with pytest.raises(JobNotFound, match="not found"):
                    await ask
            assert (await bench.engine.list(BOB, ListTasks())).tasks == ()

    asyncio.run(main())


def test_refusals_are_errors_and_leave_no_task(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            wrong = say("", parts=(Part(data={"message": 7}),), **skill("echo"))
            with pytest.raises(ValidationError):
                await bench.engine.send(ALICE, wrong)
            with pytest.raises(ValidationError):
                await heard(bench.engine.stream(ALICE, wrong))
            with pytest.raises(CapabilityNotFound):
                await bench.engine.send(ALICE, say("x", **skill("none")))
            with pytest.raises(ContentTypeNotSupported):
                await bench.engine.send(ALICE, say("", parts=(Part(raw=b"x", media_type="audio/x"),), **skill("picky")))
            with pytest.raises(ContentTypeNotSupported):
                await bench.engine.send(ALICE, say("x", accepted_output_modes=("image/png",), **skill("picky")))
            assert (await bench.engine.list(ALICE, ListTasks())).total_size == 0

    asyncio.run(main())


def test_kinds_of_parts_in_place_of_media_types_mean_what_they_say(url: str) -> None:
    """Cards of the first agents, and of many since, say ``text``."""

    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            said = (Part(text="x", media_type="text/plain"),)
            for accepted in (("text/plain",), ("text",), ("text/*", "image/png"), ("*/*",)):
                wish = say("", parts=said, accepted_output_modes=accepted, **skill("former"))
                assert as_task(await bench.engine.send(ALICE, wish)).status.state is State.COMPLETED
            with pytest.raises(ContentTypeNotSupported, match="former returns text/plain, but you accept image/png"):
                await bench.engine.send(ALICE, say("x", accepted_output_modes=("image/png",), **skill("former")))

    asyncio.run(main())


@pytest.mark.parametrize(("name", "state"), [("fail", State.FAILED), ("reject", State.REJECTED)])
def test_what_goes_wrong_in_the_work_is_told_by_the_task(url: str, name: str, state: State) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("x", **skill(name))))
            assert task.status.state is state
            assert task.status.message is not None
            assert task.status.message.parts[0].text
            with pytest.raises(InvalidTaskState):
                await bench.engine.send(ALICE, say("again", task_id=task.id))
            assert await bench.engine.get(ALICE, GetTask(id=task.id)) == task

    asyncio.run(main())


@pytest.mark.requirement("SL-03")
def test_agents_answer_with_messages_with_tasks_or_with_either(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            reply = await bench.engine.send(ALICE, say("hi", "m1", **skill("talk")))
            assert isinstance(reply, Message)
            assert (reply.parts, reply.role, reply.task_id) == ((Part(text="you said hi"),), Role.AGENT, None)
            assert reply.context_id
            assert await bench.engine.send(ALICE, say("hi", "m1", **skill("talk"))) == reply
            assert states(await heard(bench.engine.stream(ALICE, say("hi", **skill("talk"))))) == ["message"]
            assert isinstance(await bench.engine.send(ALICE, say("hello", **skill("either"))), Message)
            assert isinstance(await bench.engine.send(ALICE, say("work", **skill("either"))), Task)
            assert states(await heard(bench.engine.stream(ALICE, say("hello", **skill("either"))))) == ["message"]
            told = states(await heard(bench.engine.stream(ALICE, say("work", **skill("either")))))
            assert told == ["task submitted", "status working", "result.", "status completed"]
            assert (await bench.engine.list(ALICE, ListTasks())).total_size == 2

    asyncio.run(main())


def test_who_does_not_wait_gets_the_task_at_once_and_cancels_it(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("x", return_immediately=True, **skill("slow"))))
            assert task.status.state is State.WORKING
            with pytest.raises(InvalidTaskState, match="accepts no message"):
                await bench.engine.send(ALICE, say("more", task_id=task.id))
            stopped = await bench.engine.cancel(ALICE, CancelTask(id=task.id))
            assert stopped.status.state is State.CANCELED
            with pytest.raises(TaskNotCancelable):
                await bench.engine.cancel(ALICE, CancelTask(id=task.id))
            assert (await bench.engine.get(ALICE, GetTask(id=task.id))).status == stopped.status

    asyncio.run(main())


def test_a_send_that_waits_can_be_seen_and_stopped_by_its_owner(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            sending = asyncio.ensure_future(bench.engine.send(ALICE, say("x", **skill("slow"))))
            async with asyncio.timeout(SOON):
                while not (page := await bench.engine.list(ALICE, ListTasks(status=State.WORKING))).tasks:
                    await asyncio.sleep(0.01)
            await bench.engine.cancel(ALICE, CancelTask(id=page.tasks[0].id))
            assert as_task(await sending).status.state is State.CANCELED

    asyncio.run(main())


def test_a_durable_task_goes_on_when_its_caller_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        agent, entered, leave = LocalAgent("target"), asyncio.Event(), asyncio.Event()

        @agent.capability
        async def work(message: str) -> str:
            entered.set()
            await leave.wait()
            return "done all the same"

        async with a_bench(agent, f"sqlite:///{tmp_path / 'a.db'}") as bench:
            sending = asyncio.ensure_future(bench.engine.send(ALICE, say("x", "m1")))
            await asyncio.wait_for(entered.wait(), SOON)
            sending.cancel()
            await asyncio.wait([sending])
            leave.set()
            task = as_task(await bench.engine.send(ALICE, say("x", "m1")))
            assert task.artifacts[0].parts == (Part(text="done all the same"),)

    asyncio.run(main())


# Turns


def test_a_question_is_answered_by_the_next_message(every_url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), every_url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("pizza", "m1", **skill("order"))))
            assert task.status.state is State.INPUT_REQUIRED
            wrong = as_task(await bench.engine.send(ALICE, say("huge", "m2", task_id=task.id)))
            assert wrong.status.state is State.INPUT_REQUIRED
            done = as_task(await bench.engine.send(ALICE, say("large", "m3", task_id=task.id)))
            assert done.status.state is State.COMPLETED
            assert done.context_id == task.context_id
            assert done.artifacts[0].parts == (Part(text="large pizza"),)
            said = [(message.role, message.parts[0].text) for message in done.history]
            assert said[:3] == [(Role.USER, "pizza"), (Role.AGENT, "Welcome."), (Role.AGENT, "Which size?")]
            assert (said[3], said[5]) == ((Role.USER, "huge"), (Role.USER, "large"))
            assert as_task(await bench.engine.send(ALICE, say("large", "m3", task_id=task.id))) == done
            with pytest.raises(InvalidTaskState):  # another one under its id, and nothing is asked any more
                await bench.engine.send(ALICE, say("small", "m3", task_id=task.id))

    asyncio.run(main())


def test_a_context_of_another_task_is_refused_and_ones_own_is_inferred(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("x", context_id="mine", **skill("order"))))
            assert task.context_id == "mine"
            with pytest.raises(ValidationError, match="context"):
                await bench.engine.send(ALICE, say("large", task_id=task.id, context_id="other"))
            done = as_task(await bench.engine.send(ALICE, say("large", task_id=task.id)))
            assert done.history[-1].context_id == "mine"
            other = as_task(await bench.engine.send(ALICE, say("x", context_id="mine", reference_task_ids=(task.id,))))
            assert other.history[0].reference_task_ids == (task.id,)
            page = await bench.engine.list(ALICE, ListTasks(context_id="mine"))
            assert {found.id for found in page.tasks} == {task.id, other.id}

    asyncio.run(main())


@pytest.mark.requirement("SP-13")
def test_an_authorization_that_is_needed_is_a_state_of_its_own(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("x", **skill("login"))))
            assert task.status.state is State.AUTH_REQUIRED
            assert task.status.message is not None
            assert task.status.message.parts[1].data == {"id": "q1", "url": "https://login.example"}
            listed = await bench.engine.list(ALICE, ListTasks(status=State.AUTH_REQUIRED))
            assert [found.id for found in listed.tasks] == [task.id]
            assert (await bench.engine.list(ALICE, ListTasks(status=State.INPUT_REQUIRED))).tasks == ()
            done = as_task(await bench.engine.send(ALICE, say("I have", task_id=task.id)))
            assert done.status.state is State.COMPLETED

    asyncio.run(main())


def test_a_plain_function_makes_its_artifact_once_however_often_it_is_run(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("flight", **skill("book"))))
            for text in ("12A", "soup"):
                task = as_task(await bench.engine.send(ALICE, say(text, task_id=task.id)))
            assert task.status.state is State.COMPLETED
            assert [artifact.artifact_id for artifact in task.artifacts] == ["ticket", "result"]
            assert task.artifacts[0].parts == (Part(text="ticket"),)
            assert task.artifacts[1].parts == (Part(text="flight 12A soup"),)
            told = states(await heard(bench.engine.subscribe(ALICE, Subscribe(id=task.id, after=0))))
            assert told.count("ticket.") == 1

    asyncio.run(main())


def test_a_waiting_task_is_cancelled_by_a_turn_of_its_own(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("x", **skill("order"))))
            assert (await bench.engine.cancel(ALICE, CancelTask(id=task.id))).status.state is State.CANCELED

    asyncio.run(main())


@pytest.mark.requirement("SP-22")
def test_files_go_in_and_come_out(url: str) -> None:
    async def main() -> None:
        agent = LocalAgent("target")

        @agent.capability
        async def double(ctx: Context) -> Any:
            return [Piece(raw=part.raw * 2, name=part.name) for part in ctx.parts if part.raw is not None]

        async with a_bench(agent, url) as bench:
            file = Part(raw=b"\x00ab", filename="a.bin", media_type="application/x")
            task = as_task(await bench.engine.send(ALICE, say("", parts=(Part(text="this"), file))))
            assert task.artifacts[0].parts == (Part(raw=b"\x00ab\x00ab", filename="a.bin"),)
            assert task.history[0].parts == (Part(text="this"), file)

    asyncio.run(main())


def test_a_client_of_the_first_generation_names_its_task_itself(every_url: str) -> None:
    async def main() -> None:
        old = Caller(principal=Principal("alice"), generation="0.1")
        async with a_bench(an_agent(), every_url) as bench:
            task = as_task(await bench.engine.send(old, say("pizza", task_alias="my task", **skill("order"))))
            assert task.id == "my task"
            assert task.status.state is State.INPUT_REQUIRED
            assert await bench.engine.generation(old, "my task") == "0.1"
            done = as_task(await bench.engine.send(old, say("large", task_alias="my task")))
            assert done.status.state is State.COMPLETED
            assert done.artifacts[0].parts == (Part(text="large pizza"),)
            assert await bench.engine.get(old, GetTask(id="my task")) == done
            book = as_task(await bench.engine.send(old, say("x", "a", task_alias="t2", **skill("book"))))
            assert as_task(await bench.engine.send(old, say("x", "a", task_alias="t2"))) == book
            for _ in range(2):  # the same words, and so the same message, answer two questions
                book = as_task(await bench.engine.send(old, say("aisle", "b", task_alias="t2")))
            assert book.artifacts[-1].parts == (Part(text="x aisle aisle"),)
            other = as_task(await bench.engine.send(BOB, say("x", task_alias="my task", **skill("echo"))))
            assert other.artifacts[0].parts == (Part(text="x"),)

    asyncio.run(main())


# Streams


def test_a_stream_begins_with_the_task_and_ends_with_its_end(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            items = await heard(bench.engine.stream(ALICE, say("x", **skill("story"))))
            assert states(items) == [
                "task submitted",
                "status working",
                "result",
                "result+",
                "result+",
                "status completed",
            ]  # and no empty piece at the end
            numbers = [number for number, _ in items]
            assert numbers == sorted(set(numbers))
            text = "".join(item.artifact.parts[0].text or "" for _, item in items if isinstance(item, ArtifactUpdate))
            assert text == "once upon a time"
            items = await heard(bench.engine.stream(ALICE, say("x", **skill("report"))))
            assert states(items)[2:] == ["r", "r+", "r+.", "status completed"]

    asyncio.run(main())


def test_a_stream_resumes_after_any_of_its_items_without_loss_or_repetition(every_url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), every_url) as bench:
            whole = await heard(bench.engine.stream(ALICE, say("x", **skill("story"))))
            task = whole[0][1]
            assert isinstance(task, Task)
            for place, (number, _) in enumerate(whole):
                rest = await heard(bench.engine.subscribe(ALICE, Subscribe(id=task.id, after=number)))
                assert isinstance(rest[0][1], Task)
                assert rest[1:] == whole[place + 1 :]
            with pytest.raises(InvalidTaskState):
                await heard(bench.engine.subscribe(ALICE, Subscribe(id=task.id)))

    asyncio.run(main())


def test_subscribers_follow_a_task_through_its_questions_to_its_end(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("pizza", **skill("order"))))
            subscribers = [
                asyncio.ensure_future(heard(bench.engine.subscribe(ALICE, Subscribe(id=task.id)))) for _ in range(5)
            ]
            older = Caller(principal=ALICE.principal, generation="0.3")
            assert states(await heard(bench.engine.subscribe(older, Subscribe(id=task.id)))) == ["task input_required"]
            turn = await heard(bench.engine.stream(ALICE, say("large", task_id=task.id)))
            assert states(turn) == ["task input_required", "status working", "result.", "status completed"]
            for reply in await asyncio.gather(*subscribers):
                assert states(reply) == states(turn)
                assert reply[1:] == turn[1:]

    asyncio.run(main())


def test_a_stream_of_a_question_ends_when_it_is_asked(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            items = await heard(bench.engine.stream(ALICE, say("x", **skill("order"))))
            assert states(items) == ["task submitted", "status working", "status working", "status input_required"]
            last = items[-1][1]
            assert isinstance(last, StatusUpdate)
            assert last.final

    asyncio.run(main())


# Lists


def test_tasks_are_listed_in_pages_the_latest_first(every_url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), every_url) as bench:
            tasks = [as_task(await bench.engine.send(ALICE, say(f"n{i}", **skill("echo")))) for i in range(3)]
            tasks += [as_task(await bench.engine.send(ALICE, say("x", **skill("order")))) for _ in range(2)]
            found: list[Task] = []
            token = ""
            while True:
                page = await bench.engine.list(ALICE, ListTasks(page_size=2, page_token=token or None))
                assert (page.page_size, page.total_size) == (2, 5)
                found.extend(page.tasks)
                if not (token := page.next_page_token):
                    break
            assert [entry.id for entry in found] == [task.id for task in reversed(tasks)]
            assert all(not entry.artifacts for entry in found)
            done = await bench.engine.list(ALICE, ListTasks(status=State.COMPLETED, include_artifacts=True))
            assert list(done.tasks) == list(reversed(tasks[:3]))
            assert (await bench.engine.list(ALICE, ListTasks(status=State.SUBMITTED))).tasks == ()
            since = tasks[1].status.timestamp
            later = await bench.engine.list(ALICE, ListTasks(status_timestamp_after=since))
            assert {task.id for task in later.tasks} >= {task.id for task in tasks[1:]}
            found_by_word = await bench.engine.search(ALICE, Search(query="N1"))
            assert [task.id for task in found_by_word.tasks] == [tasks[1].id]

    asyncio.run(main())


def test_failures_and_rejections_are_told_apart_in_lists(url: str) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), url) as bench:
            failed = as_task(await bench.engine.send(ALICE, say("x", **skill("fail"))))
            refused = as_task(await bench.engine.send(ALICE, say("x", **skill("reject"))))
            for state, task in ((State.FAILED, failed), (State.REJECTED, refused)):
                page = await bench.engine.list(ALICE, ListTasks(status=state))
                assert [found.id for found in page.tasks] == [task.id]

    asyncio.run(main())


def test_an_engine_of_one_agent_shows_no_tasks_of_others() -> None:
    async def main() -> None:
        async with a_bench(an_agent(), agent="another") as bench:
            task = as_task(await bench.engine.send(ALICE, say("x")))
            with pytest.raises(JobNotFound):
                await bench.engine.get(ALICE, GetTask(id=task.id))
            assert (await bench.engine.list(ALICE, ListTasks())).tasks == ()

    asyncio.run(main())


def test_every_request_has_its_answer_by_one_door() -> None:
    async def main() -> None:
        async with a_bench(an_agent()) as bench:
            task = as_task(await bench.engine.handle(ALICE, say("x")))
            assert isinstance(await bench.engine.handle(ALICE, GetTask(id=task.id)), Task)
            assert isinstance(await bench.engine.handle(ALICE, ListTasks()), TaskPage)
            assert isinstance(await bench.engine.handle(ALICE, Search(query="x")), TaskPage)
            card: Any = await bench.engine.handle(ALICE, GetCard())
            assert card.agent_id == "target"
            stream = await bench.engine.handle(ALICE, say("x", stream=True))
            assert states(await heard(stream))[-1] == "status completed"

    asyncio.run(main())


# Restarts


@pytest.mark.requirement("SP-21")
@pytest.mark.requirement("RF-013-36")
def test_a_task_outlives_kill_9_its_stream_resumes_and_its_result_comes_once(tmp_path: Path) -> None:
    """A real process is killed in the middle of a task; the next one goes on, and the client where it was."""
    database = f"sqlite:///{tmp_path / 'tasks.db'}"
    first = subprocess.Popen(
        [sys.executable, "-m", "tests.support.a2a_victim", database], stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    try:
        task, seen = first.stdout.readline().split()
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait(SOON)
        first.stdout.close()

    from tests.support.a2a_victim import an_agent as the_agent

    async def main() -> None:
        async with a_bench(the_agent(), database, recover=True) as bench:
            items = await heard(bench.engine.subscribe(ALICE, Subscribe(id=task, after=int(seen))))
            told = states(items)
            assert told[0].startswith("task")
            assert told.count("status completed") == 1
            assert told[-1] == "status completed"
            assert all(number > int(seen) for number, _ in items[1:])
            done = await bench.engine.get(ALICE, GetTask(id=task))
            assert [artifact.artifact_id for artifact in done.artifacts] == ["result"]
            assert done.artifacts[0].parts == (Part(text="0 1 2 "),)
            assert as_task(await bench.engine.send(ALICE, say("go", "m1"))) == done

    asyncio.run(main())


def test_a_waiting_task_is_answered_in_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path / 'tasks.db'}"
        async with a_bench(an_agent(), url) as bench:
            task = as_task(await bench.engine.send(ALICE, say("flight", **skill("book"))))
        async with a_bench(an_agent(), url) as bench:
            assert (await bench.engine.get(ALICE, GetTask(id=task.id))) == task
            for text in ("12A", "soup"):
                task = as_task(await bench.engine.send(ALICE, say(text, task_id=task.id)))
            assert task.artifacts[-1].parts == (Part(text="flight 12A soup"),)

    asyncio.run(main())


# What is held meanwhile


def test_waiting_tasks_that_can_be_rebuilt_hold_no_frames_and_are_answered_all_the_same() -> None:
    async def main() -> None:
        agent = LocalAgent("target")

        async def order(ctx: Context, message: str) -> str:
            return f"{await ctx.ask('Which size?')} {message}"

        agent.add(order, replay=True)
        async with a_bench(agent) as bench:
            tasks = [as_task(await bench.engine.send(ALICE, say(f"n{i}"))) for i in range(120)]
            assert len(bench.core.parts.park) <= 100
            done = as_task(await bench.engine.send(ALICE, say("large", task_id=tasks[0].id)))
            assert done.artifacts[0].parts == (Part(text="large n0"),)

    asyncio.run(main())


def test_a_large_result_comes_with_its_content_whatever_lies_in_the_store() -> None:
    async def main() -> None:
        agent = LocalAgent("target")

        @agent.capability
        async def much(message: str) -> Any:
            return [Piece(text="x" * 3_000_000), Piece(raw=b"y" * 3_000_000), Piece(data={"z": "z" * 3_000_000})]

        async with a_bench(agent) as bench:
            bench.engine._fetch = bench.core.artifacts.get
            task = as_task(await bench.engine.send(ALICE, say("go")))
            text, raw, data = task.artifacts[0].parts
            assert (text.text, raw.raw) == ("x" * 3_000_000, b"y" * 3_000_000)
            assert data.data == {"z": "z" * 3_000_000}
            rows = await bench.database.all("SELECT id FROM artifacts")
            assert len(rows) == 3
            assert await bench.engine.get(ALICE, GetTask(id=task.id)) == task
            bench.engine._fetch = None
            url = (await bench.engine.get(ALICE, GetTask(id=task.id))).artifacts[0].parts[0].url
            assert url is not None
            assert url.startswith("artifact:")

    asyncio.run(main())


def test_in_memory_the_latest_tasks_are_kept_and_older_ones_forgotten() -> None:
    async def main() -> None:
        async with a_bench(an_agent()) as bench:
            shelf = bench.engine._shelf
            assert shelf is not None
            shelf._most = 3
            tasks = [as_task(await bench.engine.send(ALICE, say(f"n{i}"))) for i in range(5)]
            assert len(shelf) == 3
            assert (await bench.engine.list(ALICE, ListTasks())).total_size == 3
            with pytest.raises(JobNotFound):
                await bench.engine.get(ALICE, GetTask(id=tasks[0].id))
            assert await bench.engine.get(ALICE, GetTask(id=tasks[4].id)) == tasks[4]
            assert not await bench.database.all("SELECT id FROM jobs")

    asyncio.run(main())
