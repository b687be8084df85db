"""Push notifications: signed, in order, without a secret in sight, and only where the gate lets them go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agent3.errors import (
    JobNotFound,
    ParseError,
    RateLimited,
    SecurityError,
    SetupError,
    Unauthenticated,
    ValidationError,
)
from agent3.model import Principal
from agent3.protocols.a2a.door.push import TOKEN, verify
from agent3.protocols.a2a.door.tasks import Caller
from agent3.protocols.a2a.wire.errors import PushNotSupported
from agent3.protocols.a2a.wire.types import (
    ArtifactUpdate,
    Authentication,
    CreatePush,
    DeletePush,
    GetPush,
    ListPush,
    Push,
    State,
    StatusUpdate,
    Task,
)
from agent3.protocols.functions.functions import Context, LocalAgent
from agent3.settings import Callbacks, Calls, Limits, Settings
from tests.support.a2a_engine import ALICE, BOB, Bench, a_bench, say
from tests.support.postgres import new_database_url
from tests.support.receiver import SECRET, Receiver, Webhook, receiving

OPEN: dict[str, Any] = {
    "secret": "env:A2A_HOOK",
    "schemes": ("https", "http"),
    "allow_loopback": True,
    "timeout": 60.0,
    "first_delay": 0.01,
    "longest_delay": 0.05,
}
SOON = 60.0
SECRETS = ("t0p-token", "s3cret-credentials")


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_HOOK", SECRET)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def settings(**callbacks: Any) -> Settings:
    how = Callbacks(**{**OPEN, **callbacks})
    return Settings(calls=Calls(ledger="batched"), limits=Limits(per_minute=0), callbacks=how)


def an_agent() -> LocalAgent:
    agent = LocalAgent("target")

    @agent.capability
    async def order(ctx: Context, message: str) -> str:
        ctx.artifact("menu", id="menu")
        return f"{await ctx.ask('Which size?')} {message}"

    return agent


def a_push(url: str, **more: Any) -> Push:
    way = Authentication(scheme="Bearer", credentials=SECRETS[1])
    return Push(**{"url": url, "token": SECRETS[0], "authentication": way, **more})


def kinds(came: list[Webhook]) -> list[str]:
    """What was told, in short."""
    told = []
    for webhook in came:
        item = verify(webhook.headers, webhook.body, secret=SECRET).item
        if isinstance(item, ArtifactUpdate):
            told.append(item.artifact.artifact_id)
        elif isinstance(item, (Task, StatusUpdate)):
            told.append(f"{type(item).__name__} {item.status.state.value.removeprefix('TASK_STATE_')}")
    return told


async def waited(receiver: Receiver, count: int) -> list[Webhook]:
    return await asyncio.to_thread(receiver.wait, count, SOON)


async def delivered(bench: Bench, task: str, count: int) -> list[Any]:
    async with asyncio.timeout(SOON):
        while True:
            receipts = [receipt for receipt in await bench.pushes.receipts(task) if receipt.status == "delivered"]
            if len(receipts) >= count:
                return receipts
            await asyncio.sleep(0.01)


@pytest.mark.requirement("SP-05", "SP-16")
@pytest.mark.parametrize("kind", ["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_task_is_told_from_its_beginning_to_its_end_in_order(receiver: Receiver, kind: str) -> None:
    url = ":memory:" if kind == "memory" else new_database_url()

    async def main() -> None:
        async with a_bench(an_agent(), url, settings=settings(), deliver=True) as bench:
            task = await bench.engine.send(ALICE, say("pizza", push=a_push(receiver.url)))
            assert isinstance(task, Task)
            await bench.engine.send(ALICE, say("large", task_id=task.id))
            came = await waited(receiver, 6)
            assert kinds(came) == [
                "Task SUBMITTED",
                "menu",
                "StatusUpdate INPUT_REQUIRED",
                "StatusUpdate WORKING",
                "result",
                "StatusUpdate COMPLETED",
            ]
            for webhook in came:
                assert webhook.headers[TOKEN.lower()] == SECRETS[0]
                assert webhook.headers["authorization"] == f"Bearer {SECRETS[1]}"
                assert webhook.headers["content-type"] == "application/a2a+json"
            assert came[-1].json["statusUpdate"]["taskId"] == task.id
            assert "final" not in came[-1].json["statusUpdate"]
            assert len({webhook.id for webhook in came}) == 6
            receipts = await delivered(bench, task.id, 6)
            assert [receipt.event for receipt in receipts][:2] == ["task", "artifact"]

    asyncio.run(main())


def test_clients_before_1_0_are_told_the_task(receiver: Receiver) -> None:
    async def main() -> None:
        older = Caller(principal=Principal("alice"), generation="0.3")
        async with a_bench(an_agent(), settings=settings(), deliver=True) as bench:
            task = await bench.engine.send(older, say("pizza", push=a_push(receiver.url)))
            assert isinstance(task, Task)
            came = await waited(receiver, 3)
            assert [webhook.json["kind"] for webhook in came] == ["task"] * 3
            last = verify(came[-1].headers, came[-1].body, token=SECRETS[0])
            assert last.generation == "0.3"
            assert isinstance(last.item, Task)
            assert last.item.status.state is State.INPUT_REQUIRED
            assert [artifact.artifact_id for artifact in last.item.artifacts] == ["menu"]

    asyncio.run(main())


def test_clients_before_1_0_are_not_told_the_whole_task_with_every_piece(receiver: Receiver) -> None:
    async def main() -> None:
        agent, old = LocalAgent("target"), Caller(principal=Principal("alice", "client"), generation="0.3")

        @agent.capability
        async def tale(message: str) -> AsyncIterator[str]:
            for _ in range(50):
                yield "piece "
                await asyncio.sleep(0.002)  # so that they are written one after the other

        async with a_bench(agent, settings=settings(), deliver=True) as bench:
            task = await bench.engine.send(old, say("x", push=a_push(receiver.url)))
            assert isinstance(task, Task)
            receipts = await delivered(bench, task.id, 2)
            assert len(await bench.pushes.receipts(task.id)) == len(receipts) == 2  # its beginning and its end
            last = receiver.wait(2, SOON)[-1].json
            assert last["status"]["state"] == "completed"
            assert last["artifacts"][0]["parts"][0]["text"] == "piece " * 50

    asyncio.run(main())


def test_a_configuration_of_0_3_without_a_name_is_the_default_one_and_set_anew(receiver: Receiver) -> None:
    async def main() -> None:
        older = Caller(principal=Principal("alice"), generation="0.3")
        async with a_bench(an_agent(), settings=settings()) as bench:
            task = await bench.engine.send(older, say("pizza"))
            assert isinstance(task, Task)
            for path in ("/one", "/two"):
                unnamed = Push(url=receiver.url + path)
                assert (
                    await bench.engine.create_push(older, CreatePush(task_id=task.id, config=unnamed))
                ).id == "default"
            read = await bench.engine.get_push(older, GetPush(task_id=task.id, id="default"))
            assert read.url.endswith("/two")
            assert len((await bench.engine.list_push(older, ListPush(task_id=task.id))).configs) == 1

    asyncio.run(main())


def test_no_secret_is_shown_or_kept_in_clear(receiver: Receiver) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), settings=settings()) as bench:
            task = await bench.engine.send(ALICE, say("pizza"))
            assert isinstance(task, Task)
            made = await bench.engine.create_push(ALICE, CreatePush(task_id=task.id, config=a_push(receiver.url)))
            assert made.id
            assert (made.token, made.authentication) == (None, Authentication(scheme="Bearer"))
            assert made == await bench.engine.get_push(ALICE, GetPush(task_id=task.id, id=made.id))
            assert made == await bench.engine.get_push(ALICE, GetPush(task_id=task.id))
            tables = ("a2a_pushes", "queue_messages", "deliveries", "jobs", "job_events")
            for table in tables:
                rows = [dict(row) for row in await bench.database.all(f"SELECT * FROM {table}")]
                assert not any(secret in str(rows) for secret in SECRETS), table

    asyncio.run(main())


def test_several_configurations_are_kept_listed_in_pages_and_deleted(receiver: Receiver) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), settings=settings()) as bench:
            task = await bench.engine.send(ALICE, say("pizza"))
            assert isinstance(task, Task)
            for name in ("a", "b", "c"):
                await bench.engine.create_push(
                    ALICE, CreatePush(task_id=task.id, config=Push(url=f"{receiver.url}/{name}", id=name))
                )
            again = Push(url=f"{receiver.url}/new", id="b")
            await bench.engine.create_push(ALICE, CreatePush(task_id=task.id, config=again))
            first = await bench.engine.list_push(ALICE, ListPush(task_id=task.id, page_size=2))
            rest = await bench.engine.list_push(
                ALICE, ListPush(task_id=task.id, page_size=2, page_token=first.next_page_token)
            )
            assert [entry.id for entry in (*first.configs, *rest.configs)] == ["a", "b", "c"]
            assert first.configs[1].url.endswith("/new")
            assert rest.next_page_token == ""
            for _ in range(2):
                await bench.engine.delete_push(ALICE, DeletePush(task_id=task.id, id="a"))
            with pytest.raises(JobNotFound):
                await bench.engine.get_push(ALICE, GetPush(task_id=task.id, id="a"))
            with pytest.raises(JobNotFound):
                await bench.engine.list_push(BOB, ListPush(task_id=task.id))

    asyncio.run(main())


def test_a_message_that_comes_again_registers_no_second_push(receiver: Receiver) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), settings=settings(), deliver=True) as bench:
            first = await bench.engine.send(ALICE, say("pizza", "m-1", push=a_push(receiver.url)))
            again = await bench.engine.send(ALICE, say("pizza", "m-1", push=a_push(receiver.url)))
            other = await bench.engine.send(ALICE, say("pasta", "m-1", push=a_push(receiver.url)))
            assert isinstance(first, Task)
            assert isinstance(again, Task)
            assert isinstance(other, Task)
            assert first.id == again.id != other.id
            tasks = sorted([first.id, other.id])
            pushes = await bench.database.all("SELECT job FROM a2a_pushes")
            assert sorted(row["job"] for row in pushes) == tasks
            deliveries = await bench.database.all("SELECT subject FROM deliveries")
            assert sorted({row["subject"] for row in deliveries}) == tasks

    asyncio.run(main())


def test_one_of_the_most_configurations_can_be_set_anew_and_its_id_has_a_bound(receiver: Receiver) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), settings=settings()) as bench:
            task = await bench.engine.send(ALICE, say("pizza"))
            assert isinstance(task, Task)

            async def put(name: str) -> Push:
                request = CreatePush(task_id=task.id, config=Push(url=receiver.url, id=name))
                return await bench.engine.create_push(ALICE, request)

            for number in range(20):
                await put(f"p{number}")
            assert (await put("p3")).id == "p3"
            with pytest.raises(RateLimited):
                await put("one more")
            # Of a longer one the ids of notifications would be cut off, and the second be taken for the first.
            with pytest.raises(ValidationError, match=r"pushNotificationConfig\.id"):
                await put("p" * 201)

    asyncio.run(main())


def test_a_receiver_that_fails_is_told_again_and_its_receipt_says_so() -> None:
    async def main() -> None:
        answers = iter([500, 503])
        with receiving(lambda _: next(answers, 204)) as receiver:
            async with a_bench(an_agent(), settings=settings(), deliver=True) as bench:
                task = await bench.engine.send(ALICE, say("pizza"))
                assert isinstance(task, Task)
                await bench.engine.create_push(ALICE, CreatePush(task_id=task.id, config=a_push(receiver.url)))
                came = await waited(receiver, 3)
                assert len({webhook.id for webhook in came}) == 1
                receipts = await delivered(bench, task.id, 1)
                assert receipts[0].attempts == 3

    asyncio.run(main())


@pytest.mark.requirement("SP-06")
@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "http://127.0.0.1:9/x", "ftp://x.example/"])
def test_an_address_that_is_closed_is_refused_and_begins_no_task(url: str) -> None:
    async def main() -> None:
        closed = settings(allow_loopback=False, schemes=("https",))
        async with a_bench(an_agent(), settings=closed) as bench:
            with pytest.raises(SecurityError):
                await bench.engine.send(ALICE, say("pizza", push=Push(url=url)))
            rows = await bench.database.all("SELECT id FROM jobs")
            assert not rows
            assert not await bench.database.all("SELECT id FROM a2a_pushes")

    asyncio.run(main())


def test_what_no_header_can_hold_is_refused(receiver: Receiver) -> None:
    async def main() -> None:
        async with a_bench(an_agent(), settings=settings()) as bench:
            for wrong in (
                a_push(receiver.url, token="a\r\nb"),
                a_push(receiver.url, authentication=Authentication(scheme="Be arer", credentials="x")),
                a_push(receiver.url, authentication=Authentication(scheme="Bearer", credentials="x\n")),
            ):
                with pytest.raises(ValidationError, match="pushNotificationConfig"):
                    await bench.engine.send(ALICE, say("pizza", push=wrong))

    asyncio.run(main())


def test_an_engine_without_pushes_says_so() -> None:
    async def main() -> None:
        async with a_bench(an_agent()) as bench:
            bench.engine._push = None
            with pytest.raises(PushNotSupported):
                await bench.engine.list_push(ALICE, ListPush(task_id="x"))
            with pytest.raises(PushNotSupported):
                await bench.engine.send(ALICE, say("pizza", push=Push(url="https://x.example")))

    asyncio.run(main())


def test_a_large_artifact_is_told_by_its_name(receiver: Receiver) -> None:
    async def main() -> None:
        agent = LocalAgent("target")

        @agent.capability
        async def much(ctx: Context, message: str) -> None:
            ctx.artifact("x" * 2_000_000, id="much")

        async with a_bench(agent, settings=settings(), deliver=True) as bench:
            await bench.engine.send(ALICE, say("go", push=Push(url=receiver.url)))
            came = await waited(receiver, 3)
            part = came[1].json["artifactUpdate"]["artifact"]["parts"][0]
            assert part["metadata"]["truncated"] is True
            assert len(came[1].body) < 10_000

    asyncio.run(main())


# The receiving side

BODY = json.dumps(
    {"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}}
).encode()


@pytest.mark.requirement("SP-06", "SL-13")
def test_only_what_is_genuine_is_believed() -> None:
    given = {"x-a2a-notification-token": "abc", "Authorization": "Bearer xyz"}
    assert verify(given, BODY, token="abc", authorization="Bearer xyz").generation == "1.0"
    wrong: list[dict[str, Any]] = [{"token": "abd"}, {"authorization": "Bearer abc"}, {"secret": SECRET}]
    for entry in wrong:
        with pytest.raises(Unauthenticated):
            verify(given, BODY, **entry)
    with pytest.raises(SetupError):
        verify(given, BODY)
    with pytest.raises(ParseError):
        verify(given, b"[", token="abc")
