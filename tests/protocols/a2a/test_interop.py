"""The official SDK's client against our endpoint: every operation, in both of its generations and bindings."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.client.client import Client
from a2a.types import a2a_pb2 as wire
from a2a.utils.errors import TaskNotFoundError

from agent3.settings import Callbacks, Settings
from tests.support.a2a_toy import toy
from tests.support.gateway import Hosted, hosted

SPOKEN = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")]
WAIT = 60.0
Story = Callable[[Client], Awaitable[None]]

everything = pytest.mark.parametrize(("binding", "version"), SPOKEN)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOOKS", "whsec_" + "c2VjcmV0LW9mLXRoaXJ0eS10d28tYnl0ZXMtb3Itc28=")
        told = Callbacks(secret="env:HOOKS", allow_loopback=True, schemes=("http", "https"))
        with hosted(tmp_path_factory.mktemp("interop"), [toy()], Settings(callbacks=told)) as found:
            yield found


@asynccontextmanager
async def client(url: str, binding: str, version: str, streaming: bool) -> AsyncIterator[Client]:
    """A client of the SDK that has read our card and may use one interface of it."""
    async with httpx.AsyncClient(timeout=WAIT) as http:
        card = await A2ACardResolver(http, f"{url}/agents/toy/a2a").get_agent_card()
        chosen = [
            interface
            for interface in card.supported_interfaces
            if (interface.protocol_binding, interface.protocol_version) == (binding, version)
        ]
        assert len(chosen) == 1
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(chosen)
        config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
        made = ClientFactory(config).create(card)
        yield made


def tell(gateway: Hosted, binding: str, version: str, story: Story, *, streaming: bool = False) -> None:
    async def told() -> None:
        async with asyncio.timeout(WAIT), client(gateway.url, binding, version, streaming) as made:
            await story(made)

    asyncio.run(told())


def asked(text: str, skill: str, **more: Any) -> wire.SendMessageRequest:
    said = wire.Message(message_id=str(uuid.uuid4()), role=wire.ROLE_USER, parts=[wire.Part(text=text)], **more)
    said.metadata.update({"skillId": skill})
    return wire.SendMessageRequest(message=said)


async def sent(made: Client, text: str, skill: str, **more: Any) -> list[wire.StreamResponse]:
    return [reply async for reply in made.send_message(asked(text, skill, **more))]


def result(task: wire.Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


@everything
def test_the_sdk_sends_reads_and_lists(gateway: Hosted, binding: str, version: str) -> None:
    async def story(made: Client) -> None:
        (reply,) = await sent(made, "hello", "echo")
        assert reply.task.status.state == wire.TASK_STATE_COMPLETED
        assert result(reply.task) == "echo: hello"
        read = await made.get_task(wire.GetTaskRequest(id=reply.task.id))
        assert (read.id, result(read)) == (reply.task.id, "echo: hello")
        with pytest.raises(TaskNotFoundError):
            await made.get_task(wire.GetTaskRequest(id="no-such"))
        if version == "1.0":
            page = await made.list_tasks(wire.ListTasksRequest(context_id=reply.task.context_id))
            assert [task.id for task in page.tasks] == [reply.task.id]

    tell(gateway, binding, version, story)


@everything
def test_the_sdk_streams(gateway: Hosted, binding: str, version: str) -> None:
    async def story(made: Client) -> None:
        told = await sent(made, "time", "story")
        assert told[0].HasField("task")
        pieces = [item.artifact_update for item in told if item.HasField("artifact_update")]
        assert "".join(part.text for piece in pieces for part in piece.artifact.parts) == "Once upon time"
        assert told[-1].status_update.status.state == wire.TASK_STATE_COMPLETED

    tell(gateway, binding, version, story, streaming=True)


@everything
def test_the_sdk_answers_a_question(gateway: Hosted, binding: str, version: str) -> None:
    async def story(made: Client) -> None:
        (reply,) = await sent(made, "Rome", "book")
        assert reply.task.status.state == wire.TASK_STATE_INPUT_REQUIRED
        assert reply.task.status.message.parts[0].text == "Which seat?"
        (done,) = await sent(made, "12A", "book", task_id=reply.task.id, context_id=reply.task.context_id)
        assert result(done.task) == "Rome 12A"

    tell(gateway, binding, version, story)


@everything
def test_the_sdk_subscribes_and_cancels(gateway: Hosted, binding: str, version: str) -> None:
    async def story(made: Client) -> None:
        stream = made.send_message(asked("x", "hang"))
        task = (await anext(aiter(stream))).task.id
        heard: list[wire.StreamResponse] = []
        first = asyncio.Event()

        async def follow() -> None:
            async for item in made.subscribe(wire.SubscribeToTaskRequest(id=task)):
                heard.append(item)
                first.set()

        following = asyncio.create_task(follow())
        await first.wait()
        canceled = await made.cancel_task(wire.CancelTaskRequest(id=task))
        assert canceled.status.state == wire.TASK_STATE_CANCELED
        await following
        assert heard[0].HasField("task")
        assert heard[-1].status_update.status.state == wire.TASK_STATE_CANCELED

    tell(gateway, binding, version, story, streaming=True)


@everything
def test_the_sdk_keeps_push_configurations(gateway: Hosted, binding: str, version: str) -> None:
    async def story(made: Client) -> None:
        (reply,) = await sent(made, "Rome", "book")
        task = reply.task.id
        wanted = wire.TaskPushNotificationConfig(task_id=task, id="c1", url="http://127.0.0.1:9/hook", token="secret")
        assert (await made.create_task_push_notification_config(wanted)).id == "c1"
        read = await made.get_task_push_notification_config(
            wire.GetTaskPushNotificationConfigRequest(task_id=task, id="c1")
        )
        assert (read.url, read.token) == ("http://127.0.0.1:9/hook", "")
        if (binding, version) == ("HTTP+JSON", "0.3"):
            return  # the SDK's own client has neither list nor delete there
        listing = wire.ListTaskPushNotificationConfigsRequest(task_id=task)
        assert len((await made.list_task_push_notification_configs(listing)).configs) == 1
        gone = wire.DeleteTaskPushNotificationConfigRequest(task_id=task, id="c1")
        await made.delete_task_push_notification_config(gone)
        assert not (await made.list_task_push_notification_configs(listing)).configs

    tell(gateway, binding, version, story)


@everything
def test_the_sdk_reads_the_extended_card(gateway: Hosted, binding: str, version: str) -> None:
    async def story(made: Client) -> None:
        card = await made.get_extended_agent_card(wire.GetExtendedAgentCardRequest())
        assert card.name == "toy"
        assert {"echo", "story"} <= {skill.id for skill in card.skills}

    tell(gateway, binding, version, story)
