"""What study plan, slides and the design of ``agent3_call`` promise of A2A, from end to end over real connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agent3.a2a
from agent3 import AgentCapability, AgentCard, AgentExecutor, AgentRegistry, Context, LocalAgent
from agent3.errors import SecurityError, Unauthenticated
from agent3.model import Part as Piece
from agent3.model import Principal
from agent3.observe import traces
from agent3.protocols.a2a.agents.authoring import message_in
from agent3.protocols.a2a.door.push import SENSITIVITY
from agent3.protocols.a2a.peer.client import SyncA2AClient
from agent3.protocols.a2a.wire.types import Message, Part, Push, Role, State, Task
from agent3.protocols.functions.standalone import Standalone
from agent3.security.outbound import _verified_tls
from agent3.settings import Callbacks, Calls, Client, Limits, Rule, Settings, Storage
from tests.support.a2a_toy import V1, codes, message, rpc, toy, unary
from tests.support.gateway import Door, hosted
from tests.support.receiver import receiving
from tests.support.registration import add
from tests.support.tls import certificate

SOON = 60.0


@pytest.fixture
def core() -> Iterator[Standalone]:
    made = Standalone()
    yield made
    made.close()


def text(task: Any) -> str:
    return "".join(part.text or "" for artifact in task.artifacts for part in artifact.parts)


def echo(text: str) -> str:
    """Say it again."""
    return text


# Asking again and again


@pytest.mark.requirement("SP-03")
def test_a_task_is_polled_until_it_is_done_in_every_generation(core: Standalone) -> None:
    gate = threading.Event()

    def slow(text: str) -> str:
        """Take a while."""
        gate.wait(SOON)
        return f"done: {text}"

    def polled(method: str, read: Any, version: str) -> Any:
        until = time.monotonic() + SOON
        while time.monotonic() < until:
            task = unary(rpc(door, method, {"id": read}, a2a_version=version))
            if task["status"]["state"] in ("TASK_STATE_COMPLETED", "completed"):
                return task
            time.sleep(0.02)
        raise AssertionError("it never ended")

    old = {"role": "user", "messageId": "m2", "kind": "message", "parts": [{"kind": "text", "text": "two"}]}
    first = {"id": "mine", "message": {"role": "user", "parts": [{"type": "text", "text": "three"}]}}
    with agent3.a2a.listening(slow, core=core) as url:
        door = Door(url)
        at_once = {"returnImmediately": True}
        newest = unary(rpc(door, "SendMessage", {"message": message("one", None), "configuration": at_once}))["task"]
        third = unary(rpc(door, "message/send", {"message": old, "configuration": {"blocking": False}}, a2a_version=""))
        assert (newest["status"]["state"], third["status"]["state"]) == ("TASK_STATE_WORKING", "working")
        assert unary(rpc(door, "GetTask", {"id": newest["id"]}))["status"]["state"] == "TASK_STATE_WORKING"
        gate.set()
        assert polled("GetTask", newest["id"], "1.0")["artifacts"][0]["parts"] == [{"text": "done: one"}]
        assert polled("tasks/get", third["id"], "")["artifacts"][0]["parts"][0]["text"] == "done: two"
        unary(rpc(door, "tasks/send", first, a2a_version=""))
        assert polled("tasks/get", "mine", "")["artifacts"][0]["parts"][0]["text"] == "done: three"


# What a card says


@pytest.mark.requirement("SP-07")
def test_skills_have_tags_examples_and_modes_in_every_generation(core: Standalone) -> None:
    skill = AgentCapability(
        id="convert",
        name="Convert",
        description="Converts currencies",
        tags=["money", "exchange"],
        examples=["How much is 10 USD in INR?"],
        inputModes=["text/plain"],
        outputModes=["text/plain", "application/json"],
    )
    bank = AgentExecutor(AgentCard(agent_id="bank", name="Bank", capabilities=[skill]), core=core)
    bank.register_capability("Convert", echo)
    with agent3.a2a.listening(bank) as url:
        for generation in ("0.1", "0.3", "1.0"):
            (shown,) = Door(url).get(f"/.well-known/agent-card.json?format={generation}").json["skills"]
            assert (shown["id"], shown["tags"]) == ("convert", ["money", "exchange"])
            assert shown["examples"] == ["How much is 10 USD in INR?"]
            assert (shown["inputModes"], shown["outputModes"]) == (skill.input_modes, skill.output_modes)
        task = unary(rpc(Door(url), "SendMessage", {"message": message("by its id", "convert")}))["task"]
        assert task["artifacts"][0]["parts"] == [{"text": "by its id"}]
    bank.close()


# In transit


@contextmanager
def over_tls(app: Any, context: ssl.SSLContext) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    config.load()
    config.ssl = context
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(SOON)
        listener.close()


@pytest.mark.requirement("SP-10", "SL-08")
def test_certificates_are_verified_and_tls_is_modern(
    core: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, authority = certificate(tmp_path, "localhost")
    assert _verified_tls().minimum_version >= ssl.TLSVersion.TLSv1_2
    with over_tls(agent3.a2a.asgi(echo, core=core, principal=lambda _: Principal("ada")), context) as port:
        with pytest.raises(SecurityError, match="certificate"):
            SyncA2AClient.connect(f"https://localhost:{port}")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        _verified_tls.cache_clear()  # a process reads it once
        with SyncA2AClient.connect(f"https://localhost:{port}") as client:
            assert client.card.url == f"https://localhost:{port}"
            assert text(client.send("sealed in transit")) == "sealed in transit"
        with pytest.raises(SecurityError, match="certificate"):
            SyncA2AClient.connect(f"https://127.0.0.1:{port}")  # the certificate is for another name
    _verified_tls.cache_clear()


# Who may do what


@pytest.mark.requirement("SP-14", "SP-24")
def test_a_caller_may_call_some_skills_sees_its_own_data_and_not_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ada", "bob"):
        monkeypatch.setenv(f"{name.upper()}_KEY", f"{name}-key-of-sixteen")
    settings = Settings(
        clients=(Client(id="ada", key="env:ADA_KEY"), Client(id="bob", key="env:BOB_KEY")),
        rules=(Rule("allow", "ada"), Rule("allow", "bob", "toy", "echo")),
        limits=Limits(per_minute=1.0, burst=3),
    )
    with hosted(tmp_path, [toy()], settings) as gateway:
        ada, bob = (gateway.as_(f"{name}-key-of-sixteen") for name in ("ada", "bob"))
        path = "/agents/toy/a2a"
        assert [skill["id"] for skill in bob.get(f"{path}/.well-known/agent-card.json").json["skills"]] == ["echo"]
        task = unary(rpc(ada, "SendMessage", {"message": message("Rome", "echo")}, path))["task"]["id"]
        assert unary(rpc(bob, "SendMessage", {"message": message("hi", "echo")}, path))["task"]
        assert codes(rpc(bob, "SendMessage", {"message": message("hi", "book")}, path))[1] == -32602
        assert codes(rpc(bob, "GetTask", {"id": task}, path)) == (200, -32001)
        assert task not in str(bob.get("/a2a/tasks", **V1).json)
        replies = [rpc(ada, "SendMessage", {"message": message("again", "echo")}, path) for _ in range(4)]
        assert "Rate limit exceeded for client ada" in replies[-1].json["error"]["message"]
        assert replies[0].json.get("result")


# Conversations


@pytest.mark.requirement("SL-04", "SL-02")
def test_an_ended_task_stays_as_it_is_and_a_new_one_refers_to_it(core: Standalone) -> None:
    seen: list[Any] = []
    agent = LocalAgent("painter")

    @agent.capability
    async def paint(ctx: Context, message: str) -> str:
        said = message_in(ctx)
        assert said is not None
        seen.append(said.reference_task_ids)
        return f"painted {message}"

    with agent3.a2a.listening(agent, core=core) as url, SyncA2AClient.connect(url) as client:
        first = client.send("a boat")
        assert isinstance(first, Task)
        assert first.status.state is State.COMPLETED, first.status
        refused = rpc(Door(url), "SendMessage", {"message": {**message("red", None), "taskId": first.id}})
        assert codes(refused)[1] == -32004
        assert codes(rpc(Door(url), "CancelTask", {"id": first.id}))[1] == -32002
        again = Message(
            message_id="m2",
            role=Role.USER,
            parts=(Part(text="the boat red"),),
            context_id=first.context_id,
            reference_task_ids=(first.id,),
        )
        second = client.send(again)
        assert isinstance(second, Task)
        assert (second.id != first.id, second.context_id) == (True, first.context_id)
        assert second.history[0].reference_task_ids == (first.id,)
        assert client.get(first.id) == first
        assert {artifact.artifact_id for artifact in (*first.artifacts, *second.artifacts)} == {"result"}
    assert seen == [(), (first.id,)]


@pytest.mark.requirement("SL-09", "SP-24")
def test_one_trace_leads_over_the_network_and_context_and_task_find_every_record(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracer = traces.otel(SimpleSpanProcessor(exporter))
    here, away = Standalone(tracer=tracer), Standalone(tracer=tracer)
    hotel = LocalAgent("hotel")
    hotel.add(lambda city: f"a room in {city}", name="find")
    with agent3.a2a.listening(hotel, core=away) as url:
        registry = AgentRegistry()
        registry.register_agent(AgentCard(agent_id="hotel", name="Hotel", url=url))
        with AgentExecutor(AgentCard(agent_id="agency", name="Agency"), core=here, registry=registry) as agency:

            async def trip(city: str) -> Any:
                return (await agency.ask("hotel", "find", {"city": city}, timeout=SOON)).content["result"]

            agency.register_capability("trip", trip)
            with agent3.a2a.listening(agency) as desk, SyncA2AClient.connect(desk) as client:
                task = client.send({"city": "Rome"}, context="trip-7")
                assert isinstance(task, Task)
                assert text(task) == "a room in Rome"
                assert [each.id for each in client.list(context_id="trip-7").tasks] == [task.id]
            rows = here.run(_ledger(here))
    here.close()
    away.close()
    tracer.close()
    spans = {span.name.partition("/")[2]: span for span in exporter.get_finished_spans()}
    assert len({span.context.trace_id for span in spans.values()}) == 1, list(spans)
    (mine,) = [row for row in rows if row["job"] == task.id]
    assert (mine["context"], mine["capability"]) == ("trip-7", "trip")
    assert {row["trace"] for row in rows} == {mine["trace"]}


async def _ledger(core: Standalone) -> list[dict[str, Any]]:
    house = await core.call_core()
    await house.ledger.flush()
    return [dict(row) for row in await house.database.all("SELECT * FROM calls")]


# Privacy


@pytest.mark.requirement("SL-08")
def test_what_is_sensitive_stays_with_its_task(tmp_path: Path) -> None:
    agent = LocalAgent("doctor")
    marks: list[Any] = []

    @agent.capability
    async def diagnose(ctx: Context, message: str) -> Any:
        marks.extend(part.meta.get(SENSITIVITY) for part in ctx.parts)
        return [Piece(text="see you on Monday"), Piece(text="a rare illness", meta={SENSITIVITY: "health"})]

    symptom = (Part(text="my secret symptom", metadata={SENSITIVITY: "health"}),)
    core = Standalone(Settings(callbacks=Callbacks(allow_loopback=True, schemes=("http",))))
    with (
        receiving() as receiver,
        agent3.a2a.listening(agent, core=core) as url,
        SyncA2AClient.connect(url) as client,
    ):
        task = client.send(symptom, history_length=0)
        assert isinstance(task, Task)
        assert task.history == ()  # no more is told than was asked for
        assert client.list(include_artifacts=False).tasks[0].artifacts == ()
        assert "a rare illness" in text(task)
        client.send(symptom, push=Push(url=receiver.url))
        pushed = b"".join(hook.body for hook in receiver.wait(3, SOON))
        rows = core.run(_ledger(core))
    core.close()
    assert marks == ["health", "health"]
    for hidden in (b"rare illness", b"secret symptom"):
        assert hidden not in pushed
        assert hidden.decode() not in str(rows)
    assert b"Monday" in pushed
    assert b'"withheld":true' in pushed


@pytest.mark.requirement("SL-08")
def test_a_task_is_gone_when_its_time_is_over_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    short = Settings(calls=Calls(job_days=1e-6, ledger_days=1e-6), storage=Storage(url=f"sqlite:///{tmp_path}/t.db"))
    core = Standalone(msgspec.structs.replace(short, callbacks=Callbacks(allow_loopback=True, schemes=("http",))))

    async def swept() -> dict[str, int]:
        house = await core.call_core()
        await house.ledger.flush()
        await house.runner.takeover._sweep()  # type: ignore[misc]
        tables = ("jobs", "job_events", "a2a_pushes", "deliveries", "calls", "a2a_replies")
        found = [await house.database.one(f"SELECT COUNT(*) AS n FROM {table}") for table in tables]
        return {table: row["n"] for table, row in zip(tables, found, strict=True) if row is not None}

    with receiving() as receiver, agent3.a2a.listening(echo, core=core) as url, SyncA2AClient.connect(url) as client:
        task = client.send("remember me", push=Push(url=receiver.url))
        assert isinstance(task, Task)
        receiver.wait(3, SOON)
        until = time.monotonic() + SOON
        while any((left := core.run(swept())).values()) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(left.values()), left
        assert codes(rpc(Door(url), "GetTask", {"id": task.id}))[1] == -32001
    core.close()


# agent3_call


@pytest.mark.requirement("AC-07", "AC-08")
def test_a_call_takes_address_form_and_authentication_from_the_card(
    core: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_KEY", "key-of-the-bank-42")
    came: list[str] = []

    def who(scope: Any) -> Principal:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        came.append(f"{scope['method']} {headers.get('x-bank-key')}")
        if headers.get("x-bank-key") != "key-of-the-bank-42":
            raise Unauthenticated("Send the key of the bank.")
        return Principal("gateway", "client")

    def convert(amount: float, currency: str) -> str:
        """Convert an amount to a currency."""
        return f"{amount:g} {currency}"

    card = AgentCard(
        agent_id="bank",
        name="Bank",
        description="Converts money",
        securitySchemes={"key": {"type": "apiKey", "in": "header", "name": "X-Bank-Key"}},
        security=[{"key": []}],
    )
    bank = AgentExecutor(card, core=core)
    bank.register_capability("convert", convert, read_only=True)
    with (
        agent3.a2a.listening(bank, principal=who) as url,
        hosted(tmp_path) as gateway,
    ):
        gateway.run(add(gateway.server, url, credential="env:BANK_KEY"))
        good = gateway.call("bank", capability="convert", input={"amount": 5, "currency": "EUR"})
        assert (good.status, good.json["result"]) == (200, "5 EUR")
        assert came[-1] == "POST key-of-the-bank-42"
        before = len(came)
        wrong = gateway.call("bank", capability="convert", input={"amount": "much"})
        assert (wrong.status, len(came)) == (422, before), wrong.json
        assert {"amount", "currency"} <= set(str(wrong.json).replace("'", " ").replace('"', " ").split())
        assert "key-of-the-bank" not in str(gateway.get("/v1/agents/bank").json)
    bank.close()


@pytest.mark.requirement("SP-13")
def test_a_second_credential_is_asked_for_within_the_task(core: Standalone) -> None:
    agent = LocalAgent("mailer")

    @agent.capability
    async def send(ctx: Context, message: str) -> str:
        await ctx.ask("Agree that I use your mailbox.", url="https://mail.example/agree")
        return f"sent {message}"

    with agent3.a2a.listening(agent, core=core) as url, SyncA2AClient.connect(url) as client:
        task = client.send("a letter")
        assert isinstance(task, Task)
        assert task.status.state is State.AUTH_REQUIRED
        assert task.status.message is not None
        assert "https://mail.example/agree" in str(task.status.message)
        assert text(client.send("I have agreed", task=task.id)) == "sent a letter"
