"""Tasks that are kept only when they have ended: what may be repeated costs one transaction, what may not keeps two."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent3.calls.jobs import Job
from agent3.env import REAL
from agent3.model import Artifact, Call, Done, Part, Principal
from agent3.protocols.a2a.door.projection import project_finished
from agent3.protocols.a2a.door.streams import fold
from agent3.protocols.a2a.wire.types import CancelTask, GetTask, ListTasks, Send, State, Task
from agent3.protocols.functions.functions import LocalAgent
from agent3.storage import Database
from tests.support.a2a_engine import ALICE, Bench, a_bench, say

WAIT = 60.0


class Desk(LocalAgent):
    """Counts what it is asked; ``note`` must not be done twice, ``look`` and ``stay`` may."""

    def __init__(self) -> None:
        super().__init__("desk")
        self.asked: list[str] = []
        self.seen: list[int] = []
        self.database: Database | None = None
        self.go = asyncio.Event()
        self.add(self.look, read_only=True)
        self.add(self.stay, read_only=True)
        self.add(self.note)

    async def look(self, message: str) -> str:
        self.asked.append(message)
        return message.upper()

    async def stay(self, message: str) -> str:
        self.asked.append(message)
        await self.go.wait()
        return message.upper()

    async def note(self, message: str) -> str:
        assert self.database is not None
        rows = await self.database.all("SELECT id FROM jobs WHERE status = 'working'")
        self.seen.append(len(rows))
        return message


def to(name: str, text: str, message_id: str | None = None) -> Send:
    return say(text, message_id, metadata={"skillId": name})


def on_file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tasks.db'}"


async def sent(bench: Bench, request: Send) -> Task:
    reply = await bench.engine.send(ALICE, request)
    assert isinstance(reply, Task)
    return reply


def text(task: Task) -> str | None:
    return task.artifacts[0].parts[0].text


def test_what_may_be_repeated_costs_one_transaction_and_no_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        desk = Desk()
        async with a_bench(desk, on_file(tmp_path)) as bench:
            await sent(bench, to("look", "warm"))
            await bench.core.ledger.flush()
            counted: list[str] = []
            for name in ("write", "all", "one"):
                kept = getattr(bench.database, name)

                def counting(*given: Any, _name: str = name, _kept: Any = kept, **more: Any) -> Any:
                    # What the house looks after meanwhile is not the call's: abandoned jobs, stops, counts.
                    own = "status = 'working'" not in str(given) and "GROUP BY status" not in str(given)
                    if ("jobs" in str(given) and own) or _name == "write":
                        counted.append(_name)
                    return _kept(*given, **more)

                monkeypatch.setattr(bench.database, name, counting)
            task = await sent(bench, to("look", "hello"))
            assert counted == ["write"]
            monkeypatch.undo()
            assert text(task) == "HELLO"
            assert await bench.engine.get(ALICE, GetTask(id=task.id)) == task
            assert (await bench.engine.list(ALICE, ListTasks())).total_size == 2

    asyncio.run(main())


def test_the_same_message_has_the_same_task_also_in_another_process(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk()
        async with a_bench(desk, on_file(tmp_path)) as bench, a_bench(desk, on_file(tmp_path)) as other:
            task = await sent(bench, to("look", "hello", "m1"))
            assert await sent(bench, to("look", "hello", "m1")) == task
            assert desk.asked == ["hello"], "this process knows the message"
            assert await sent(other, to("look", "hello", "m1")) == task
            another = await sent(bench, to("look", "something else", "m1"))
            assert await sent(other, to("look", "something else", "m1")) == another
            assert (await bench.engine.list(ALICE, ListTasks())).total_size == 2

    asyncio.run(main())


def test_of_two_at_once_one_is_asked(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk()
        async with asyncio.timeout(WAIT), a_bench(desk, on_file(tmp_path)) as bench:
            both = asyncio.gather(*(sent(bench, to("stay", "hello", "m1")) for _ in range(5)))
            while not desk.asked:
                await asyncio.sleep(0)
            desk.go.set()
            tasks = await both
            assert desk.asked == ["hello"]
            assert all(task == tasks[0] for task in tasks)

    asyncio.run(main())


def test_what_has_to_wait_is_seen_and_can_be_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk()
        async with asyncio.timeout(WAIT), a_bench(desk, on_file(tmp_path)) as bench:
            waiting = asyncio.ensure_future(sent(bench, to("stay", "hello")))
            while not (page := await bench.engine.list(ALICE, ListTasks())).tasks:
                await asyncio.sleep(0.01)
            assert page.tasks[0].status.state is State.WORKING
            await bench.engine.cancel(ALICE, CancelTask(id=page.tasks[0].id))
            assert (await waiting).status.state is State.CANCELED

    asyncio.run(main())


def test_what_may_not_be_repeated_is_on_disk_before_it_begins(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk()
        async with a_bench(desk, on_file(tmp_path)) as bench:
            desk.database = bench.database
            await sent(bench, to("note", "hello"))
            assert desk.seen == [1]

    asyncio.run(main())


@pytest.mark.parametrize(
    "outcome",
    [
        Done((Part(text="yes"),)),
        Done(()),
        Done((Part(data={"n": 1}),), artifacts=(Artifact("map", name="Map", parts=(Part(text="x"),)),)),
        Done((Part(text="new"),), artifacts=(Artifact("result", parts=(Part(text="old"),)),)),
        Done((Part(text="yes"),), meta={"a2a": "message"}),
    ],
)
@pytest.mark.parametrize("length", [None, 0, 1, 5])
def test_the_short_way_to_a_task_leads_to_the_same_task(outcome: Done, length: int | None) -> None:
    call = Call(
        id=REAL.id(), principal=Principal("p"), agent="a", capability="c", parts=(Part(text="hi"),), context="x"
    )
    job = Job(id=call.id, owner="p", status="done", turn=1, call=call, outcome=outcome, seq=1, created=5.0, updated=5.0)
    short = project_finished(job, None, length)
    if outcome.meta:
        assert short is None
    else:
        assert short == fold(job, ()).task(length)
