"""Waiting for a push: agents that do not stream tell the gateway when there is something to read."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from agent3 import Context, LocalAgent
from agent3.a2a import listening
from agent3.protocols.a2a.door.endpoint import FEATURES
from agent3.protocols.a2a.door.push import TOKEN
from agent3.protocols.a2a.peer import connector
from agent3.protocols.a2a.peer.connector import A2AConnector
from agent3.protocols.a2a.peer.push_receiver import PushReceiver, PushTrust, PushWait
from agent3.protocols.functions.standalone import Standalone
from agent3.settings import Callbacks, Calls, Limits, OAuth, Server, Settings, Storage
from tests.support.a2a_peers import _card, _Executor, _served
from tests.support.gateway import Door, Hosted, hosted
from tests.support.postgres import new_database_url
from tests.support.receiver import SECRET, Receiver, Webhook, receiving
from tests.support.registration import add

SOON = 60.0
OTHER = b'{"statusUpdate":{"taskId":"other","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'
"""A notice of a task that nobody waits for."""
OPEN = Callbacks(
    secret="env:A2A_HOOK", schemes=("https", "http"), allow_loopback=True, first_delay=0.01, longest_delay=0.05
)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_HOOK", SECRET)
    monkeypatch.setenv("A2A_SEAL", "one-secret-that-both-gateways-have")


class Kitchen:
    """An agent that is done when the test says so; what it was asked, and how often it was read."""

    def __init__(self) -> None:
        self.begun, self.ready = threading.Event(), threading.Event()

    def agent(self) -> LocalAgent:
        agent = LocalAgent("kitchen", description="Bakes slowly")

        @agent.capability
        async def bake(ctx: Context, what: str) -> str:
            """Bake something."""
            self.begun.set()
            await asyncio.to_thread(self.ready.wait, SOON)
            return f"baked {what}"

        @agent.capability
        async def order(ctx: Context, what: str) -> str:
            """Order something, after one question."""
            return f"{await ctx.ask('Which size?')} {what}"

        return agent


@contextmanager
def kitchen(callbacks: Callbacks = OPEN, **features: Any) -> Iterator[tuple[Kitchen, str]]:
    """An agent of ours that pushes and does not stream."""
    made = Kitchen()
    core = Standalone(Settings(calls=Calls(ledger="batched"), limits=Limits(per_minute=0), callbacks=callbacks))
    shown = FEATURES.model_copy(update={"streaming": False, "extended_agent_card": False, **features})
    try:
        with listening(made.agent(), core=core, features=shown) as url:
            yield made, url
    finally:
        made.ready.set()
        core.close()


@contextmanager
def public(folder: Path, url: str = "", front: Receiver | None = None) -> Iterator[tuple[Hosted, Receiver]]:
    """A gateway behind an address that everybody knows, and what comes there on its way to it."""
    with ExitStack() as stack:
        before = front or stack.enter_context(receiving())
        settings = Settings(
            server=Server(shutdown_seconds=0.1),
            storage=Storage(url=url, seal="env:A2A_SEAL"),
            oauth=OAuth(resource=origin(before)),
            calls=Calls(attempt_timeout=SOON),
            limits=Limits(per_minute=0),
        )
        gateway = stack.enter_context(hosted(folder, settings=settings))
        before.reply = lambda hook: forwarded(gateway, hook)
        yield gateway, before


def origin(front: Receiver) -> str:
    parts = urlsplit(front.url)
    return f"{parts.scheme}://{parts.netloc}"


def forwarded(door: Door, hook: Webhook) -> int:
    """Hand on what came."""
    own = ("content-type", "authorization", TOKEN.lower(), "webhook-id")
    return door.ask(
        "POST", hook.path, hook.body, **{name: hook.headers[name] for name in own if name in hook.headers}
    ).status


def push_receiver(gateway: Hosted) -> PushReceiver:
    connector = gateway.server.core.connectors["a2a"]
    assert isinstance(connector, A2AConnector)
    assert connector.push_receiver is not None
    return connector.push_receiver


def waits(gateway: Hosted) -> list[PushWait]:
    return list(push_receiver(gateway)._waits.values())


def trust(gateway: Hosted, agent: str) -> PushTrust:
    """What the gateway knows of the pushes of an agent."""
    found = gateway.run(gateway.server.directory.get(agent))
    return push_receiver(gateway).trust_of(found.meta["route"]["address"])


def added(gateway: Hosted, url: str) -> str:
    agent = gateway.run(add(gateway.server, url))
    return str(agent.id)


class Calling(threading.Thread):
    """A call under way."""

    def __init__(self, gateway: Door, agent: str, what: str = "bread", capability: str = "bake", **more: Any):
        super().__init__()
        self._door = gateway
        self._asked = {"agent": agent, "capability": capability, "input": {"what": what}} | more
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        self.answer = self._door.call(**self._asked).json

    def answered(self) -> Any:
        self.join(SOON)
        assert not self.is_alive()
        return self.answer


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def eventually(gateway: Door, job: str) -> dict[str, Any]:
    """A job when it has ended."""
    ends = time.monotonic() + SOON
    while (found := gateway.get(f"/v1/calls/{job}?wait=5").json).get("status") == "working":
        assert time.monotonic() < ends, found
    return dict(found)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns leave a task that goes on to later turns after a moment, although their call has much time."""
    monkeypatch.setattr(connector, "_PUSH_SHARE", 0.01)
    monkeypatch.setattr(connector, "_LONGEST_POLL", 0.2)


@pytest.mark.requirement("RF-013-32")
def test_an_agent_that_does_not_stream_is_waited_for_by_its_push(tmp_path: Path) -> None:
    with kitchen() as (made, url), public(tmp_path) as (gateway, front):
        push_receiver(gateway).poll_after = 600.0  # nothing is read unless somebody knocks
        agent = added(gateway, url)
        call = Calling(gateway, agent)
        until(lambda: push_receiver(gateway).results["taken"] > 0)
        made.ready.set()
        assert call.answered()["result"] == "baked bread"
        until(
            lambda: push_receiver(gateway).results.total() == 3
        )  # how it stood at first, the bread, and that it is done
        assert set(push_receiver(gateway).results) <= {"taken", "late"}
        assert {urlsplit(hook.path).path.rpartition("/")[0] for hook in front.got} == {"/callbacks/a2a"}
        assert len(push_receiver(gateway)) == 0
        said = [hook.headers for hook in front.got]
        assert all(headers[TOKEN.lower()] == headers["authorization"].removeprefix("Bearer ") for headers in said)


def test_a_push_that_is_lost_loses_nothing(tmp_path: Path) -> None:
    with kitchen() as (made, url), public(tmp_path) as (gateway, front):
        front.reply = lambda _: 204  # it never gets there
        push_receiver(gateway).poll_after = 0.2
        call = Calling(gateway, added(gateway, url))
        assert made.begun.wait(SOON)
        made.ready.set()
        assert call.answered()["result"] == "baked bread"
        assert not push_receiver(gateway).results


@pytest.mark.usefixtures("impatient")
def test_a_job_that_goes_on_is_entered_when_somebody_knocks(tmp_path: Path) -> None:
    with kitchen() as (made, url), public(tmp_path) as (gateway, _):
        agent = added(gateway, url)
        call = Calling(gateway, agent, metadata=LONG)
        working = call.answered()
        assert working.get("status") == "working", working
        made.ready.set()
        assert eventually(gateway, working["job"])["result"] == "baked bread"
        until(lambda: push_receiver(gateway).results.total() >= 2)


def test_a_question_and_its_answer_go_by_push_too(tmp_path: Path) -> None:
    with kitchen() as (_, url), public(tmp_path) as (gateway, _):
        push_receiver(gateway).poll_after = 600.0
        asked = Calling(gateway, added(gateway, url), capability="order").answered()
        assert asked.get("status") == "needs", asked
        name = asked["questions"][0]["id"]
        done = gateway.post(f"/v1/calls/{asked['job']}/answer", {"answers": {name: "large"}}).json
        if done.get("status") == "working":
            done = eventually(gateway, asked["job"])
        assert done["result"] == "large bread"


def test_an_agent_that_refuses_our_address_is_asked_instead(tmp_path: Path) -> None:
    with kitchen(Callbacks(secret="env:A2A_HOOK")) as (made, url), public(tmp_path) as (gateway, front):
        call = Calling(gateway, added(gateway, url))
        assert made.begun.wait(SOON)
        made.ready.set()
        assert call.answered()["result"] == "baked bread"
        assert not front.got
        assert len(push_receiver(gateway)) == 0


def test_agents_that_stream_or_do_not_push_are_followed_as_ever(tmp_path: Path) -> None:
    with public(tmp_path) as (gateway, front):
        for feature, has in (("streaming", True), ("push_notifications", False)):
            with kitchen(OPEN, **{feature: has}) as (made, url):
                made.ready.set()
                agent = added(gateway, url)
                assert Calling(gateway, agent).answered()["result"] == "baked bread"
                gateway.run(gateway.server.directory.remove(agent))
        assert not front.got


class _Unhurried(_Executor):
    """An agent of the SDK that goes on when the test says so."""

    def __init__(self, ready: threading.Event):
        self._ready = ready

    async def _done(self, verb: str, rest: str, words: str, context: RequestContext, updater: TaskUpdater) -> None:
        await asyncio.to_thread(self._ready.wait, SOON)
        await super()._done(verb, rest, words, context, updater)


@contextmanager
def official(version: str, ready: threading.Event) -> Iterator[str]:
    """An agent of the official SDK that pushes and does not stream."""

    def make(url: str) -> ASGIApp:
        card = _card(url, [("JSONRPC", version, "/rpc")], False)
        card.capabilities.push_notifications = True
        store = InMemoryPushNotificationConfigStore()
        client = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0))
        handler = DefaultRequestHandler(
            agent_executor=_Unhurried(ready),
            task_store=InMemoryTaskStore(),
            agent_card=card,
            push_config_store=store,
            push_sender=BasePushNotificationSender(client, store),
        )
        spoken = create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=version == "0.3")
        return Starlette(routes=[*create_agent_card_routes(card), *spoken])

    with _served(make) as peer:
        yield peer.url


@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_the_official_agent_is_waited_for_by_its_push(tmp_path: Path, version: str) -> None:
    ready = threading.Event()
    with official(version, ready) as url, public(tmp_path) as (gateway, front):
        push_receiver(gateway).poll_after = 600.0
        agent = added(gateway, url)
        for _ in range(2):  # asked to push when its task is known, then with the message
            ready.clear()
            call = Calling(gateway, agent, capability="talk", input={"message": "story time"})
            until(lambda: any(wait.registered for wait in waits(gateway)))
            ready.set()
            assert call.answered()["result"] == ["Once ", "upon ", "time"]
            until(lambda: trust(gateway, agent).reliable)
        assert front.wait(1)[0].headers[TOKEN.lower()]


# Agents that push badly


class Clerk:
    """An agent of the second generation that says it pushes, and works for ever; what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.push: dict[str, Any] = {}
        self.errors: dict[str, int] = {}
        """Methods that it answers with an error, and its code."""

    def count(self, method: str) -> int:
        return self.asked.count(method)

    def app(self, url: str) -> ASGIApp:
        skill = {"id": "pay", "name": "pay", "description": "Pays", "tags": ["x"]}
        card = {"protocolVersion": "0.3.0", "name": "clerk", "description": "Pays", "version": "1", "url": f"{url}/"}
        modes = {"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"]}
        shown = {**card, **modes, "capabilities": {"pushNotifications": True}, "skills": [skill]}

        async def show(_: Request) -> JSONResponse:
            return JSONResponse(shown)

        async def talk(request: Request) -> JSONResponse:
            return JSONResponse(self.said(await request.json()))

        return Starlette(
            routes=[Route("/.well-known/agent-card.json", show), Route("/", talk, methods=["POST"])],
        )

    def said(self, asked: dict[str, Any]) -> dict[str, Any]:
        method, params = asked["method"], asked["params"]
        self.asked.append(method)
        answer = {"jsonrpc": "2.0", "id": asked["id"]}
        if method in self.errors:
            return {**answer, "error": {"code": self.errors[method], "message": "paid, but I do not like it"}}
        if method == "tasks/pushNotificationConfig/set":
            self.push = params["pushNotificationConfig"]
            return {**answer, "result": params}
        return {**answer, "result": WORKING}


LONG = {"timeout": 60_000}
"""Time for a call, in milliseconds, that nothing here uses up."""
WORKING = {"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": "working"}}
SEND, SET, READ = "message/send", "tasks/pushNotificationConfig/set", "tasks/get"


@contextmanager
def clerk(folder: Path) -> Iterator[tuple[Clerk, Hosted, str]]:
    made = Clerk()
    with _served(made.app) as peer, public(folder) as (gateway, _):
        yield made, gateway, added(gateway, peer.url)


def paid(gateway: Hosted, agent: str, **more: Any) -> Any:
    return Calling(gateway, agent, capability="pay", input={"message": "ten"}, **more).answered()


def test_a_message_that_may_have_been_taken_is_not_sent_again(tmp_path: Path) -> None:
    with clerk(tmp_path) as (made, gateway, agent):
        made.errors[SEND] = -32602
        assert paid(gateway, agent)["errorCode"] == "invalid_input"
        assert made.count(SEND) == 1
        trust(gateway, agent).confirm()
        assert paid(gateway, agent)["errorCode"] == "invalid_input"
        assert made.count(SEND) == 2
        assert not trust(gateway, agent).reliable  # if it was about the configuration, the next goes without
        assert len(push_receiver(gateway)) == 0


def test_a_message_that_was_refused_for_its_configuration_goes_without_it(tmp_path: Path) -> None:
    with clerk(tmp_path) as (made, gateway, agent):
        made.errors[SEND] = -32003
        trust(gateway, agent).confirm()
        assert paid(gateway, agent)["errorCode"] == "target_failed"
        assert made.count(SEND) == 2


@pytest.mark.usefixtures("impatient")
def test_an_agent_that_will_not_push_is_asked_again_only_after_a_while(tmp_path: Path) -> None:
    with clerk(tmp_path) as (made, gateway, agent):
        made.errors[SET] = -32602
        for _ in range(2):
            assert paid(gateway, agent, metadata=LONG)["status"] == "working"
        assert made.count(SET) == 1
        assert not trust(gateway, agent).may_ask(time.monotonic())
        assert trust(gateway, agent).may_ask(time.monotonic() + 601)


@pytest.mark.usefixtures("impatient")
def test_one_hiccup_does_not_end_the_pushes_of_an_agent(tmp_path: Path) -> None:
    with clerk(tmp_path) as (made, gateway, agent):
        made.errors[SET] = -32053  # not now
        assert paid(gateway, agent, metadata=LONG)["status"] == "working"
        assert trust(gateway, agent).may_ask(time.monotonic())
        made.errors.clear()
        assert paid(gateway, agent, metadata=LONG)["status"] == "working"
        until(lambda: any(wait.registered for wait in waits(gateway)))


@pytest.mark.usefixtures("impatient")
def test_an_agent_that_knocks_and_knocks_drives_nothing(tmp_path: Path) -> None:
    with clerk(tmp_path) as (made, gateway, agent):
        assert paid(gateway, agent, metadata=LONG)["status"] == "working"
        until(lambda: bool(made.push))
        path, token = urlsplit(made.push["url"]).path, made.push["token"]
        before, rows, began = made.count(READ), len(gateway.rows("calls")), time.monotonic()
        for number in range(200):
            body = json.dumps({**WORKING, "metadata": {"number": number}}).encode()
            assert gateway.ask("POST", path, body, **{TOKEN: token}).status == 200
        reads, written = made.count(READ) - before, len(gateway.rows("calls")) - rows
        lasted = time.monotonic() - began
        assert reads <= 10 + lasted  # after 0.02 s, 0.04 s, ... 1 s
        assert written <= 2 + lasted


@pytest.mark.usefixtures("impatient")
def test_a_job_whose_agent_turns_out_not_to_push_is_read_now_and_then(tmp_path: Path) -> None:
    with clerk(tmp_path) as (made, gateway, agent):
        assert paid(gateway, agent, metadata=LONG)["status"] == "working"
        trust(gateway, agent).suspend(time.monotonic())
        until(lambda: len(push_receiver(gateway)) == 0)
        before, began = made.count(READ), time.monotonic()
        until(lambda: made.count(READ) - before >= 3)
        reads = made.count(READ) - before
        assert reads <= 2 + time.monotonic() - began  # one a second


def test_an_agent_whose_pushes_never_come_is_asked_as_before(tmp_path: Path) -> None:
    with kitchen() as (made, url), public(tmp_path) as (gateway, front):
        front.reply = lambda _: 204
        push_receiver(gateway).poll_after = 600.0
        agent = added(gateway, url)
        for number in range(3):
            made.begun.clear()
            made.ready.clear()
            call = Calling(gateway, agent, what=f"loaf {number}")
            assert made.begun.wait(SOON)
            until(lambda: any(wait.registered for wait in waits(gateway)))
            made.ready.set()
            assert call.answered()["result"] == f"baked loaf {number}"
        assert not trust(gateway, agent).may_ask(time.monotonic())


def test_after_one_missed_push_an_agent_is_asked_until_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[tuple[bool, bool]] = []
    wait_to_read = PushWait.wait_to_read

    async def watched(wait: PushWait, poll_after: float, left: float) -> bool:
        trusted = wait.is_trusted
        pushed = await wait_to_read(wait, poll_after, left)
        waited.append((trusted, pushed))
        return pushed

    monkeypatch.setattr(PushWait, "wait_to_read", watched)
    with kitchen() as (made, url), public(tmp_path) as (gateway, front):
        push_receiver(gateway).poll_after = 0.5
        agent = added(gateway, url)
        call = Calling(gateway, agent)
        until(lambda: any(wait.is_trusted for wait in waits(gateway)))
        front.reply = lambda _: 204  # from now on nothing gets there
        until(lambda: waited[-1:] == [(True, False)])  # it was relied on, in vain
        made.ready.set()
        assert call.answered()["result"] == "baked bread"
        until(lambda: not trust(gateway, agent).reliable)
        push_receiver(gateway).poll_after = 600.0
        assert Calling(gateway, agent, what="cake").answered()["result"] == "baked cake"
        front.reply = lambda hook: forwarded(gateway, hook)
        assert Calling(gateway, agent, what="pie").answered()["result"] == "baked pie"
        until(lambda: trust(gateway, agent).reliable)


# Who else comes to the address


def test_what_is_not_genuine_is_refused_and_counted(tmp_path: Path) -> None:
    with kitchen() as (made, url), public(tmp_path) as (gateway, front):
        call = Calling(gateway, added(gateway, url))
        genuine = front.wait(1)[0]
        key = genuine.path.rpartition("/")[2]
        until(lambda: getattr(push_receiver(gateway).find(key), "task", None) is not None)
        token, other = genuine.headers[TOKEN.lower()], hashlib.md5(b"x", usedforsecurity=False).hexdigest()

        def post(path: str, body: bytes = genuine.body, token: str | None = token, **headers: str) -> int:
            shown = {} if token is None else {TOKEN: token}
            return gateway.ask("POST", path, body, **shown, **headers).status

        assert post("/callbacks/a2a/nobody") == 404
        assert post(f"/callbacks/a2a/{other}") == 401
        assert post(genuine.path, token=None) == post(genuine.path, token="a" * 64) == 401
        assert post(genuine.path, token=None, authorization="Bearer no") == 401
        assert post(genuine.path, b"{") == 400
        assert post(genuine.path, OTHER) == 422
        assert post(genuine.path, b"x" * 2_000_000) == 413
        counts = {"unknown": 1, "forged": 4, "malformed": 3}
        assert {name: push_receiver(gateway).results[name] for name in counts} == counts
        assert b'agent3_a2a_callbacks_total{result="forged"} ' in gateway.get("/metrics").raw
        shown = {TOKEN: token}
        repeated = gateway.ask("POST", genuine.path, genuine.body, **shown, **{"webhook-id": genuine.id})
        assert (repeated.status, repeated.json) == (200, {"status": "repeated"})
        assert gateway.get(f"{genuine.path}?validationToken=abc").raw == b"abc"
        assert gateway.get(f"/callbacks/a2a/{other}?validationToken=abc").status == 404
        made.ready.set()
        assert call.answered()["result"] == "baked bread"
        late = gateway.ask("POST", genuine.path, genuine.body, **shown)
        assert (late.status, late.json) == (200, {"status": "late"})


def test_without_a_public_address_there_is_no_such_door(tmp_path: Path) -> None:
    with hosted(tmp_path) as gateway:
        assert gateway.post("/callbacks/a2a/x", {}).status == 404
        connector = gateway.server.core.connectors["a2a"]
        assert isinstance(connector, A2AConnector)
        assert connector.push_receiver is None


def test_a_callback_outlives_the_gateway_that_asked_for_it(tmp_path: Path) -> None:
    with kitchen() as (made, url), receiving() as front:
        with public(tmp_path, front=front) as (gateway, _):
            job = Calling(gateway, added(gateway, url), prefer="respond-async").answered()["job"]
            until(lambda: any("a2a.task" in str(row["state"]) for row in gateway.rows("jobs")))
        with public(tmp_path, front=front) as (again, _):
            push_receiver(again).poll_after = 600.0
            until(lambda: len(push_receiver(again)) > 0)
            made.ready.set()
            done = eventually(again, job)
            assert done.get("result") == "baked bread", done.get("error")
            until(lambda: push_receiver(again).results.total() > 0)
            assert set(push_receiver(again).results) <= {"taken", "late"}


@pytest.mark.postgres
def test_a_push_that_comes_to_another_gateway_is_passed_on(tmp_path: Path) -> None:
    database = new_database_url()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with kitchen() as (made, url), public(tmp_path / "a", database) as (gateway, front):  # noqa: SIM117
        with public(tmp_path / "b", database) as (other, _):
            front.reply = lambda hook: forwarded(other, hook)
            push_receiver(gateway).poll_after = 600.0
            agent = added(gateway, url)
            until(lambda: gateway.server.core.jobs.news.live and other.server.core.jobs.news.live)
            call = Calling(gateway, agent)
            until(lambda: push_receiver(other).results["passed"] > 0)
            made.ready.set()
            assert call.answered()["result"] == "baked bread"
            assert push_receiver(other).results["passed"] >= 1
            assert not push_receiver(gateway).results
