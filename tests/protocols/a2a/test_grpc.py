"""A2A over gRPC: the tables against the official descriptors, our door and our channel against the official SDK."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.client.client import Client
from a2a.compat.v0_3 import a2a_v0_3_pb2 as third
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as wire
from a2a.types import a2a_pb2_grpc as wire_grpc
from a2a.utils.errors import TaskNotFoundError
from google.api import field_behavior_pb2  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict, ParseDict  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from agent3.definitions import AgentFeatures
from agent3.errors import (
    Agent3Error,
    JobNotFound,
    MissingExtra,
    RequestError,
    SecurityError,
    SetupError,
    TargetRefused,
    TooLarge,
    Unauthenticated,
    Unavailable,
    ValidationError,
)
from agent3.gateway.gateway import Caller, CallRequest
from agent3.identity.secrets import Secret
from agent3.model import LOCAL, Done, Principal, value_of
from agent3.protocols.a2a.agents.serving import listening
from agent3.protocols.a2a.grpc import connect
from agent3.protocols.a2a.grpc.channel import GrpcChannel
from agent3.protocols.a2a.grpc.codecs import read_status, write_status
from agent3.protocols.a2a.grpc.protobuf import V03, V10
from agent3.protocols.a2a.peer.client import A2AClient
from agent3.protocols.a2a.wire import tables
from agent3.protocols.a2a.wire.errors import PushNotSupported, VersionNotSupported
from agent3.protocols.a2a.wire.types import (
    CancelTask,
    CreatePush,
    Generation,
    GetCard,
    GetTask,
    ListTasks,
    Message,
    Part,
    Push,
    Role,
    Send,
    Sending,
    State,
    StatusUpdate,
    Subscribe,
    Task,
)
from agent3.protocols.functions.standalone import Standalone
from agent3.security.outbound import Gate, Policy
from agent3.server.build import build
from agent3.settings import Settings, Storage
from tests.support.a2a_toy import toy
from tests.support.gateway import Door, gateway
from tests.support.tls import certificate

WAIT = 60.0
Story = Callable[[GrpcChannel], Awaitable[None]]
both = pytest.mark.parametrize("generation", ["1.0", "0.3"])

# The tables

ALIKE = {
    "ApiKey": "APIKeySecurityScheme",
    "HttpAuth": "HTTPAuthSecurityScheme",
    "OAuth2": "OAuth2SecurityScheme",
    "OpenId": "OpenIdConnectSecurityScheme",
    "Mtls": "MutualTlsSecurityScheme",
    "Flows": "OAuthFlows",
    "CodeFlow": "AuthorizationCodeOAuthFlow",
    "TokenFlow": "ClientCredentialsOAuthFlow",
    "ImplicitFlow": "ImplicitOAuthFlow",
    "PasswordFlow": "PasswordOAuthFlow",
    "DeviceFlow": "DeviceCodeOAuthFlow",
    "Named": "CancelTaskRequest",
}
LATER = {"deviceCode", "pkceRequired"}
"""Fields of 1.0 that 0.3 has not, below messages that both share."""


@pytest.mark.parametrize(("schema", "official"), [(V10, wire), (V03, third)])
def test_every_field_of_the_tables_has_the_number_of_the_official_descriptors(schema: Any, official: Any) -> None:
    for name, message in schema.messages.items():
        found = getattr(official, ALIKE.get(name, name), None)
        if found is None:
            assert name in ("Empty", "DeviceFlow")
            continue
        ours = {field: number for field, number in message.numbers.items() if field not in LATER}
        theirs = {field.json_name: field.number for field in found.DESCRIPTOR.fields}
        assert ours == {name: number for name, number in theirs.items() if name not in LATER}, name


def test_every_field_of_1_0_is_marked_as_in_the_official_descriptors() -> None:
    for name, fields in tables.parse(tables.V10_PROTO).items():
        official = getattr(wire, ALIKE.get(name, name), None)
        theirs = {field.json_name: field for field in official.DESCRIPTOR.fields} if official is not None else {}
        for field in fields:
            behavior = theirs[field.name].GetOptions().Extensions[field_behavior_pb2.field_behavior]
            required = field_behavior_pb2.REQUIRED in behavior
            oneof = theirs[field.name].containing_oneof
            # "optional" of proto3 is an invisible oneof of one field.
            optional = oneof is not None and len(oneof.fields) == 1
            assert field.mark == ("!" if required else "?" if optional else ""), f"{name}.{field.name}"


RICH: dict[str, Any] = {
    "task": {
        "id": "t1",
        "contextId": "c1",
        "status": {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "timestamp": "2025-10-28T10:30:00.123Z",
            "message": {
                "messageId": "m1",
                "role": "ROLE_AGENT",
                "parts": [
                    {"text": ""},
                    {"raw": "AAECAw==", "filename": "x.bin", "mediaType": "application/octet-stream"},
                    {"data": {"a": [1, 2.5, None, True, "ü", {"b": {}}, []]}, "metadata": {"n": -3}},
                    {"data": None},
                    {"url": "https://example.com/x"},
                ],
                "extensions": ["urn:x"],
                "referenceTaskIds": ["t0"],
            },
        },
        "artifacts": [{"artifactId": "a", "parts": [{"data": "text"}], "name": "n"}],
        "metadata": {"deep": {"deeper": [[[1]]]}},
    }
}


def test_a_message_is_written_as_the_official_classes_read_it_and_read_as_they_write_it() -> None:
    ours = V10.encode("StreamResponse", RICH)
    theirs = ParseDict(RICH, wire.StreamResponse())
    assert wire.StreamResponse.FromString(ours) == theirs
    read = V10.decode("StreamResponse", theirs.SerializeToString())
    assert ParseDict(read, wire.StreamResponse()) == theirs
    assert MessageToDict(wire.StreamResponse.FromString(V10.encode("StreamResponse", read))) == RICH


def test_unknown_fields_are_read_over() -> None:
    known = V10.encode("GetTaskRequest", {"id": "t1", "historyLength": 3})
    strange = b"\xaa\x06\x03abc" + b"\xa0\x06\x07" + b"\xa9\x06" + bytes(8) + b"\xad\x06" + bytes(4)
    assert V10.decode("GetTaskRequest", strange + known) == {"id": "t1", "historyLength": 3}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x12\x05ab", "no end"),
        (b"\x12", "does not end"),
        (b"\xff" * 11, "does not end"),
        (b"\x12\x01\xff", "UTF-8"),
        (b"\x13\x00", "unknown wire type"),
    ],
)
def test_what_is_no_protobuf_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        V10.decode("GetTaskRequest", data)


def test_numbers_that_json_does_not_have_are_refused() -> None:
    strange = wire.Part()
    strange.data.number_value = float("inf")
    with pytest.raises(RequestError, match="finite"):
        V10.decode("Part", strange.SerializeToString())


def test_depth_and_number_of_values_are_bounded() -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(TooLarge, match="deep"):
        V10.decode("Part", V10.encode("Part", {"data": deep}))
    with pytest.raises(TooLarge, match="many"):
        V10.decode("Message", V10.encode("Message", {"parts": [{"text": "x"}] * 20_000}))


def test_noise_never_breaks_the_reader() -> None:
    chance = random.Random(7)
    good = V10.encode("StreamResponse", RICH)
    for _ in range(2_000):
        noise = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            noise[chance.randrange(len(noise))] = chance.randrange(256)
        try:
            V10.decode("StreamResponse", bytes(noise[: chance.randrange(1, len(noise))]))
        except RequestError:
            continue


def test_an_error_keeps_its_name_its_words_and_its_wrong_fields() -> None:
    wrong = ValidationError("two things", errors=[{"path": "a.b", "message": "is wrong"}])
    code, text, status = write_status(wrong, "1.0", "1.0.1")
    official = status_pb2.Status.FromString(status)
    assert (code, text, official.code) == ("INVALID_ARGUMENT", "two things", 3)
    info, fields = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert official.details[0].Unpack(info)
    assert official.details[1].Unpack(fields)
    assert (info.reason, info.domain) == ("INVALID_PARAMS", "a2a-protocol.org")
    assert fields.field_violations[0].field == "a.b"
    read = read_status(code, text, status)
    assert isinstance(read, ValidationError)
    assert read.errors == [{"path": "a.b", "message": "is wrong"}]


def test_an_error_of_0_3_is_known_by_its_name_in_the_text() -> None:
    code, text, _ = write_status(JobNotFound("gone"), "0.3", "1.0.1")
    assert (code, text) == ("NOT_FOUND", "TaskNotFoundError: gone")
    assert isinstance(read_status(code, text, None), JobNotFound)
    assert isinstance(read_status("UNAUTHENTICATED", "no", b"\xff\xff"), TargetRefused)


# The door


def known(scope: Any) -> Principal:
    shown = dict(scope["headers"]).get(b"authorization", b"")
    if shown == b"Bearer wrong":
        raise Unauthenticated("Unknown key.")
    assert scope["client"][0] in ("127.0.0.1", "::1")
    return Principal(shown.decode().removeprefix("Bearer "), "client") if shown else LOCAL


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[str, str]]:
    """The addresses of a toy agent: HTTP and gRPC."""
    core = Standalone()
    features = AgentFeatures(streaming=True, extendedAgentCard=True)
    with listening(toy(), grpc_port=0, core=core, principal=known, features=features) as url:
        card = Door(url).get("/.well-known/agent-card.json").json
        places = {
            interface["url"] for interface in card["supportedInterfaces"] if interface["protocolBinding"] == "GRPC"
        }
        assert len(places) == 1
        yield url, places.pop()
    core.close()


def gate(**more: Any) -> Gate:
    return Gate(Policy(allow_loopback=True, **more))


def tell(place: str, generation: Generation, story: Story) -> None:
    async def told() -> None:
        way_out = gate()
        channel = await connect(way_out, place, generation)
        try:
            async with asyncio.timeout(WAIT):
                await story(channel)
        finally:
            await channel.aclose()
            await way_out.aclose()

    asyncio.run(told())


def say(text: str, skill: str = "echo", *, stream: bool = False, **more: Any) -> Send:
    said = Message(
        message_id=str(uuid.uuid4()),
        role=Role.USER,
        parts=(Part(text=text),),
        metadata={"skillId": skill},
        **more,
    )
    return Send(message=said, stream=stream)


def result(task: Any) -> str:
    assert isinstance(task, Task), task
    return "".join(part.text or "" for artifact in task.artifacts for part in artifact.parts)


@both
def test_a_message_becomes_a_task_that_can_be_read(door: tuple[str, str], generation: Generation) -> None:
    async def story(channel: GrpcChannel) -> None:
        task = await channel.ask(say("hello"))
        assert result(task) == "echo: hello"
        assert isinstance(task, Task)
        read = await channel.ask(GetTask(id=task.id))
        assert (result(read), read.context_id) == ("echo: hello", task.context_id)  # type: ignore[union-attr]
        with pytest.raises(JobNotFound, match="not found"):
            await channel.ask(GetTask(id="no-such"))

    tell(door[1], generation, story)


@both
def test_a_stream_tells_the_task_its_pieces_and_its_end(door: tuple[str, str], generation: Generation) -> None:
    async def story(channel: GrpcChannel) -> None:
        told = [item async for item in channel.stream(say("time", "story", stream=True))]
        assert isinstance(told[0], Task)
        assert isinstance(told[-1], StatusUpdate)
        assert told[-1].status.state is State.COMPLETED

    tell(door[1], generation, story)


@both
def test_a_question_is_answered_in_a_second_turn(door: tuple[str, str], generation: Generation) -> None:
    async def story(channel: GrpcChannel) -> None:
        asked = await channel.ask(say("Rome", "book"))
        assert isinstance(asked, Task)
        assert asked.status.state is State.INPUT_REQUIRED
        done = await channel.ask(say("12A", "book", task_id=asked.id, context_id=asked.context_id))
        assert result(done) == "Rome 12A"

    tell(door[1], generation, story)


@both
def test_whoever_leaves_a_stream_leaves_the_task_at_work(door: tuple[str, str], generation: Generation) -> None:
    async def story(channel: GrpcChannel) -> None:
        left = channel.stream(say("x", "hang", stream=True))
        task = await anext(left)
        await left.aclose()
        assert isinstance(task, Task)
        followed = channel.stream(Subscribe(id=task.id))
        assert isinstance(await anext(followed), Task)
        canceled = await channel.ask(CancelTask(id=task.id))
        assert isinstance(canceled, Task)
        assert canceled.status.state is State.CANCELED
        rest = [item async for item in followed]
        assert isinstance(rest[-1], StatusUpdate)
        assert rest[-1].status.state is State.CANCELED

    tell(door[1], generation, story)


@both
def test_what_is_not_offered_is_refused_by_its_name(door: tuple[str, str], generation: Generation) -> None:
    async def story(channel: GrpcChannel) -> None:
        with pytest.raises(PushNotSupported):
            await channel.ask(CreatePush(task_id="t", config=Push(url="https://example.com/")))
        with pytest.raises(ValidationError):
            await channel.ask(Send(message=Message(message_id="", role=Role.USER, parts=(Part(text="x"),))))

    tell(door[1], generation, story)


@both
def test_the_card_comes_over_grpc_with_every_address(door: tuple[str, str], generation: Generation) -> None:
    async def story(channel: GrpcChannel) -> None:
        card = await channel.ask(GetCard())
        assert isinstance(card, dict)
        assert card["name"] == "toy"
        assert {"echo", "story"} <= {skill["id"] for skill in card["skills"]}
        listed = card["supportedInterfaces"] if generation == "1.0" else card["additionalInterfaces"]
        assert door[1] in {interface["url"] for interface in listed}
        assert door[0] in {card.get("url"), *(interface["url"] for interface in listed)}

    tell(door[1], generation, story)


def test_tasks_are_listed_in_1_0_alone(door: tuple[str, str]) -> None:
    async def story(channel: GrpcChannel) -> None:
        task = await channel.ask(say("listed"))
        page = await channel.ask(ListTasks(context_id=task.context_id))  # type: ignore[union-attr]
        assert [found.id for found in page.tasks] == [task.id]  # type: ignore[union-attr]

    tell(door[1], "1.0", story)

    async def before(channel: GrpcChannel) -> None:
        with pytest.raises(RequestError, match=r"not in the gRPC binding of A2A 0\.3"):
            await channel.ask(ListTasks())

    tell(door[1], "0.3", before)


@both
def test_a_version_that_the_package_does_not_speak_is_refused(door: tuple[str, str], generation: Generation) -> None:
    async def story(channel: GrpcChannel) -> None:
        for version in ("99.0", "0.3" if generation == "1.0" else "1.0"):
            with pytest.raises(VersionNotSupported):
                await channel.ask(say("x"), metadata={"A2A-Version": version})

    tell(door[1], generation, story)


def test_callers_are_told_apart_by_their_metadata(door: tuple[str, str]) -> None:
    async def story(channel: GrpcChannel) -> None:
        task = await channel.ask(say("mine"), metadata={"authorization": "Bearer alice"})
        assert isinstance(task, Task)
        with pytest.raises(JobNotFound):
            await channel.ask(GetTask(id=task.id), metadata={"authorization": "Bearer bob"})
        with pytest.raises(TargetRefused):
            await channel.ask(GetTask(id=task.id), metadata={"authorization": "Bearer wrong"})

    tell(door[1], "1.0", story)


def test_a_message_beyond_the_limit_is_refused(door: tuple[str, str]) -> None:
    async def story(channel: GrpcChannel) -> None:
        with pytest.raises(Agent3Error):
            await channel.ask(say("x" * 1_100_000))

    tell(door[1], "1.0", story)


def test_a_taken_port_is_one_clear_sentence(door: tuple[str, str]) -> None:
    port = int(door[1].rpartition(":")[2])
    with pytest.raises(SetupError, match=f"gRPC cannot listen on 127.0.0.1:{port}"), listening(toy(), grpc_port=port):
        pass


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.setitem(sys.modules, "grpc.aio", None)
    monkeypatch.delitem(sys.modules, "agent3.protocols.a2a.grpc.server", raising=False)
    monkeypatch.delitem(sys.modules, "agent3.protocols.a2a.grpc.channel", raising=False)
    with pytest.raises(MissingExtra, match=r"agent3\[grpc\]"), listening(toy(), grpc_port=0):
        pass
    with pytest.raises(MissingExtra):
        asyncio.run(connect(gate(), "127.0.0.1:1"))


# The channel


def test_a_channel_goes_where_the_gate_lets_it_and_nowhere_else(door: tuple[str, str]) -> None:
    async def refused() -> None:
        closed = Gate(Policy())
        with pytest.raises(SecurityError, match="loopback"):
            await connect(closed, door[1])
        await closed.aclose()

    asyncio.run(refused())


def test_an_agent_that_is_not_there_is_unavailable_and_nothing_was_sent() -> None:
    async def story(channel: GrpcChannel) -> None:
        with pytest.raises(Unavailable) as caught:
            await channel.ask(say("x"), timeout=WAIT)
        assert caught.value.sent is False

    tell("127.0.0.1:1", "1.0", story)


# The official SDK's client at our door


@asynccontextmanager
async def official(place: str, version: str, streaming: bool) -> AsyncIterator[Client]:
    card = wire.AgentCard(name="toy", version="1", capabilities=wire.AgentCapabilities(streaming=streaming))
    card.supported_interfaces.add(url=place, protocol_binding="GRPC", protocol_version=version)
    config = ClientConfig(
        streaming=streaming,
        supported_protocol_bindings=["GRPC"],
        grpc_channel_factory=grpc.aio.insecure_channel,
    )
    made = ClientFactory(config).create(card)
    try:
        yield made
    finally:
        await made.close()


def asked(text: str, skill: str) -> wire.SendMessageRequest:
    said = wire.Message(message_id=str(uuid.uuid4()), role=wire.ROLE_USER, parts=[wire.Part(text=text)])
    said.metadata.update({"skillId": skill})
    return wire.SendMessageRequest(message=said)


@both
@pytest.mark.parametrize("streaming", [False, True])
def test_the_sdks_client_is_at_home_here(door: tuple[str, str], generation: str, streaming: bool) -> None:
    async def told() -> None:
        async with asyncio.timeout(WAIT), official(door[1], generation, streaming) as made:
            replies = [reply async for reply in made.send_message(asked("time", "story"))]
            assert replies[0].HasField("task")
            task = replies[0].task
            read = await made.get_task(wire.GetTaskRequest(id=task.id))
            assert "".join(part.text for part in read.artifacts[0].parts) == "Once upon time"
            with pytest.raises(TaskNotFoundError):
                await made.get_task(wire.GetTaskRequest(id="no-such"))

    asyncio.run(told())


# Our channel at the official SDK's server


class Echo(AgentExecutor):
    """The SDK's way to write an agent."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        task = wire.Task(id=context.task_id, context_id=context.context_id)
        task.status.state = wire.TASK_STATE_SUBMITTED
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([wire.Part(text=f"echo: {context.get_user_input()}")], name="result")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise AssertionError("nobody cancels")


@asynccontextmanager
async def sdk_server(tls: grpc.ServerCredentials | None = None) -> AsyncIterator[int]:
    """An agent of the SDK on a port of loopback."""
    card = wire.AgentCard(name="sdk", version="1", capabilities=wire.AgentCapabilities(streaming=True))
    handler = DefaultRequestHandler(agent_executor=Echo(), task_store=InMemoryTaskStore(), agent_card=card)
    server = grpc.aio.server()
    wire_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)  # type: ignore[no-untyped-call]
    address = "127.0.0.1:0"
    port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def test_our_channel_is_at_home_with_the_sdks_server() -> None:
    async def told() -> None:
        async with asyncio.timeout(WAIT), sdk_server() as port:
            await spoken_to(f"127.0.0.1:{port}")

    asyncio.run(told())


async def spoken_to(address: str, **options: Any) -> None:
    way_out = gate()
    channel = await connect(way_out, address, **options)
    try:
        assert result(await channel.ask(say("hello"))) == "echo: hello"
        told = [item async for item in channel.stream(say("again", stream=True))]
        assert isinstance(told[0], Task)
        with pytest.raises(JobNotFound):
            await channel.ask(GetTask(id="no-such"))
    finally:
        await channel.aclose()
        await way_out.aclose()


def for_names(folder: Path, *names: str) -> tuple[grpc.ServerCredentials, bytes]:
    """What a server shows whose certificate is for these names, and the authority that signed it."""
    _, authority = certificate(folder, *names)
    pair = (folder / "site.key").read_bytes(), (folder / "site.pem").read_bytes()
    return grpc.ssl_server_credentials([pair]), authority.read_bytes()


@pytest.mark.parametrize("form", ["grpcs://localhost:{}", "https://localhost:{}"])
def test_over_tls_the_certificate_is_held_against_the_name(tmp_path: Path, form: str) -> None:
    shown, authority = for_names(tmp_path, "localhost")

    async def told() -> None:
        async with asyncio.timeout(WAIT), sdk_server(shown) as port:
            await spoken_to(form.format(port), roots=authority)

    asyncio.run(told())


def test_a_certificate_that_is_not_trusted_or_of_another_name_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    _, stranger = for_names(tmp_path / "other", "localhost")
    monkeypatch.setattr("agent3.protocols.a2a.grpc.channel._roots", lambda: stranger)

    async def told() -> None:
        for names, roots in ((("localhost",), None), (("elsewhere.example",), True)):
            shown, authority = for_names(tmp_path / "own", *names)
            async with asyncio.timeout(WAIT), sdk_server(shown) as port:
                with pytest.raises(Unavailable) as refused:
                    await spoken_to(f"grpcs://localhost:{port}", roots=authority if roots else None)
                assert not refused.value.sent

    asyncio.run(told())


def test_an_agent_of_a_card_is_spoken_to_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, authority = for_names(tmp_path, "localhost")
    monkeypatch.setattr("agent3.protocols.a2a.grpc.channel._roots", lambda: authority)

    async def told() -> None:
        async with asyncio.timeout(WAIT), sdk_server(shown) as port:
            place = {"url": f"grpcs://localhost:{port}", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
            card = {"name": "sdk", "version": "1", "skills": [], "supportedInterfaces": [place]}
            async with await A2AClient.connect(card, Secret("a-key-for-tls")) as client:
                assert result(await client.send("hello")) == "echo: hello"

    asyncio.run(told())


# The gateway

KEYED = """
[[clients]]
id = "ana"
key = "env:ANA"
scopes = ["*"]
"""


def test_a_gateway_speaks_grpc_beside_http(tmp_path: Path) -> None:
    key = "a-key-of-sixteen-or-more"
    with gateway(tmp_path / "gateway", "--grpc", "0", "--demo", config=KEYED, ANA=key) as served:
        http = Door(served.url, headers={"Authorization": f"Bearer {key}"})
        card = http.get("/agents/pizza/a2a/.well-known/agent-card.json").json
        (place,) = [interface for interface in card["supportedInterfaces"] if interface["protocolBinding"] == "GRPC"]
        assert place["tenant"] == "pizza"
        former = http.get("/agents/pizza/a2a/.well-known/agent.json").json["supportedInterfaces"]
        assert former == [one for one in card["supportedInterfaces"] if one is not place], "for clients without gRPC"
        assert f"gRPC at port {place['url'].rpartition(':')[2]}" in "\n".join(served.lines)

        async def story(channel: GrpcChannel) -> None:
            said = Message(message_id="m1", role=Role.USER, parts=(Part(text="I want a pepperoni pizza"),))
            wanted = Send(message=said, tenant="pizza", configuration=Sending(return_immediately=True))
            with pytest.raises(TargetRefused):
                await channel.ask(wanted)
            task = await channel.ask(wanted, metadata={"authorization": f"Bearer {key}"})
            assert isinstance(task, Task)
            read = http.post(
                "/agents/pizza/a2a",
                {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": task.id}},
                content_type="application/json",
                a2a_version="1.0",
            ).json
            assert read["result"]["id"] == task.id

        tell(place["url"], "1.0", story)


SIGNING = """
[[clients]]
id = "ana"
key = "env:ANA"
signing = "env:ANA_SECRET"
require_signature = true
"""


def test_who_must_sign_is_told_that_grpc_carries_no_signatures(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"ANA": "a-key-of-sixteen-or-more", "ANA_SECRET": "a-secret-of-thirty-two-characters"}
    with gateway(tmp_path / "gateway", "--grpc", "0", config=SIGNING, **keys) as served:
        line = next(line for line in served.lines if "gRPC at port" in line)

        async def story(channel: GrpcChannel) -> None:
            shown = {"authorization": f"Bearer {keys['ANA']}"}
            with pytest.raises(TargetRefused, match="gRPC carries no signatures"):
                await channel.ask(ListTasks(), metadata=shown)
            signed = {**shown, "signature-input": 'sig1=("@method");created=1', "signature": "sig1=:AAAA:"}
            with pytest.raises(TargetRefused, match="Signed requests are accepted over HTTP only"):
                await channel.ask(ListTasks(), metadata=signed)

        tell(f"127.0.0.1:{line.rpartition(' ')[2]}", "1.0", story)


# Cards that name gRPC first


def test_a_card_that_names_grpc_first_is_added_and_called_by_what_is_installed(
    door: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By gRPC where the extra is installed, else by the next address; without one, it is said what is missing."""
    skill = {"id": "add", "name": "Add", "description": "Add", "tags": []}
    over_http = {"url": door[0], "protocolBinding": "JSONRPC", "protocolVersion": "0.3"}
    file = tmp_path / "card.json"

    async def call(url: str, *others: dict[str, Any]) -> tuple[str, Any]:
        first = {"url": url, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
        about = {"name": "Grpc first", "description": "", "version": "1", "skills": [skill]}
        file.write_text(json.dumps({**about, "supportedInterfaces": [first, *others]}))
        async with build(Settings(storage=Storage(url=":memory:"))) as server:
            agent = await server.registration.add(str(file), None, None)
            request = CallRequest(agent=agent.id, input={"data": {"left": 2, "right": 3}})
            outcome = await server.gateway.call(Caller(LOCAL, "test"), request)
            assert isinstance(outcome, Done), outcome
            return agent.capabilities[0].routes[0].address, value_of(outcome.parts)

    assert asyncio.run(call(f"grpc://{door[1]}", over_http)) == (f"http://{door[1]}", {"sum": 5})
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert asyncio.run(call(door[1], over_http)) == (over_http["url"], {"sum": 5})
    with pytest.raises(MissingExtra, match=r"Grpc first, which is only reached over gRPC, .*agent3\[grpc\]"):
        asyncio.run(call(door[1]))
