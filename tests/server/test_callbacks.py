"""Callbacks: whoever calls and leaves is told, by REST and MCP, also when the gateway dies in between."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import client as official
from mcp.client.streamable_http import streamable_http_client

from agent3 import Context, LocalAgent
from agent3.calls.webhooks import verify, verify_by
from agent3.errors import Unauthenticated
from agent3.settings import Callbacks, Client, Limits, Settings, Storage
from tests.support.gateway import Door, Hosted, gateway, hosted, run_agent3
from tests.support.machines import eventually
from tests.support.postgres import new_database_url
from tests.support.receiver import SECRET, Receiver, Webhook, receiving

KEYS = {"alice": "key-of-alice-0123456789", "bob": "key-of-bob-0123456789"}
TOKEN = "token-that-nobody-sees-42"
OPEN = Callbacks(
    secret="env:HOOK_SECRET",
    schemes=("https", "http"),
    allow_loopback=True,
    attempts=3,
    first_delay=0.01,
    longest_delay=0.05,
    timeout=5.0,
)


class Worker:
    """An agent that does what callbacks tell of."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.agent = LocalAgent("Worker", description="Works for tests")
        for one in (self.double, self.fail, self.order, self.hold, self.much):
            self.agent.capability(one)

    async def open(self) -> None:
        self.gate.set()

    def double(self, number: int) -> int:
        """Double a number."""
        return 2 * number

    def fail(self) -> None:
        """Fail."""
        raise RuntimeError("the oven is cold")

    async def order(self, ctx: Context) -> str:
        """Ask and order."""
        return f"ordered {await ctx.ask('Which size?')}"

    async def hold(self, ctx: Context) -> str:
        """Tell of progress until the gate opens."""
        ctx.progress(1, 3, "began")
        for done in range(100):
            ctx.status(f"holding {done}")
        await self.gate.wait()
        return "held"

    def much(self) -> list[str]:
        """Give more than a callback carries."""
        return ["x" * 60_000 for _ in range(30)]


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker()


@pytest.fixture(scope="module")
def house(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    clients = tuple(Client(name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}") for name, key in KEYS.items())
    settings = Settings(clients=clients, limits=Limits(per_minute=0), callbacks=OPEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOOK_SECRET", SECRET)
        with hosted(tmp_path_factory.mktemp("callbacks"), [worker.agent], settings) as running:
            yield running


@pytest.fixture
def alice(house: Hosted) -> Door:
    return house.as_(KEYS["alice"])


@pytest.fixture
def bob(house: Hosted) -> Door:
    return house.as_(KEYS["bob"])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def begin(door: Door, receiver: Receiver, capability: str, given: Any = None, **callback: Any) -> str:
    """Call with a callback; the job."""
    metadata = {"callback": {"url": f"{receiver.url}/hook", **callback}}
    more = {"input": given} if given is not None else {}
    started = door.call("worker", capability=capability, metadata=metadata, **more)
    assert started.status == 202, started.raw
    assert started.headers["location"] == f"/v1/calls/{started.json['job']}"
    assert started.json["status"] == "working"
    return str(started.json["job"])


def receipts(door: Door, job: str, *states: str, seconds: float = 60.0) -> list[dict[str, Any]]:
    """What the job's owner was told, as soon as it stands as wanted."""
    until = time.monotonic() + seconds
    while True:
        shown = door.get(f"/v1/calls/{job}/callbacks").json
        found: list[dict[str, Any]] = shown["callbacks"]
        if [one["status"] for one in found] == list(states):
            assert shown["job"] == job
            return found
        assert time.monotonic() < until, found
        time.sleep(0.02)


@pytest.mark.requirement("AC-24")
def test_a_caller_is_told_the_result_and_can_tell_that_it_is_genuine(alice: Door, receiver: Receiver) -> None:
    job = begin(alice, receiver, "double", {"number": 21}, token=TOKEN)
    (got,) = receiver.wait()
    assert verify(SECRET, got.headers, got.body) == got.id
    assert got.headers["authorization"] == f"Bearer {TOKEN}"
    body = got.json
    assert (body["type"], body["data"]["id"]) == ("call.done", job)
    (receipt,) = receipts(alice, job, "delivered")
    assert receipt == {
        "id": got.id,
        "event": "done",
        "url": f"{receiver.url}/hook",
        "status": "delivered",
        "attempts": 1,
        "created": receipt["created"],
        "delivered": receipt["delivered"],
    }
    shown = alice.get(f"/v1/calls/{job}").json
    assert body["data"] == shown
    assert shown["result"] == 42


def test_a_call_that_fails_or_is_cancelled_tells_so(alice: Door, receiver: Receiver, worker: Worker) -> None:
    worker.gate.clear()
    job = begin(alice, receiver, "fail")
    (failed,) = receiver.wait()
    assert (failed.json["type"], failed.json["data"]["errorCode"]) == ("call.failed", "target_failed")
    held = begin(alice, receiver, "hold")
    alice.post(f"/v1/calls/{held}/cancel")
    canceled = receiver.wait(2)[1]
    assert (canceled.json["type"], canceled.json["data"]["id"]) == ("call.canceled", held)
    assert receipts(alice, job, "delivered")[0]["event"] == "failed"


def test_a_call_that_asks_tells_its_question_and_after_the_answer_its_end(alice: Door, receiver: Receiver) -> None:
    job = begin(alice, receiver, "order")
    (asks,) = receiver.wait()
    assert (asks.json["type"], asks.json["data"]["questions"][0]["text"]) == ("call.needs", "Which size?")
    alice.post(f"/v1/calls/{job}/answer", {"message": "large"})
    done = receiver.wait(2)[1]
    assert (done.json["type"], done.json["data"]["result"]) == ("call.done", "ordered large")
    assert [one["event"] for one in receipts(alice, job, "delivered", "delivered")] == ["needs", "done"]


def test_progress_is_told_where_it_is_wanted_and_not_by_the_hundred(
    alice: Door, receiver: Receiver, house: Hosted, worker: Worker
) -> None:
    worker.gate.clear()
    begin(alice, receiver, "hold", events=["progress", "done"])
    (progress,) = receiver.wait()
    assert progress.json["type"] == "call.progress"
    assert progress.json["data"]["status"] == "working"
    assert progress.json["data"]["text"].startswith("holding")
    house.run(worker.open())
    assert [one.json["type"] for one in receiver.wait(2)] == ["call.progress", "call.done"]


def test_only_what_was_asked_for_is_told(alice: Door, receiver: Receiver) -> None:
    silent = begin(alice, receiver, "double", {"number": 1}, events=["failed"])
    assert alice.get(f"/v1/calls/{silent}?wait=20").json["status"] == "done"
    begin(alice, receiver, "fail", events=["failed"])
    assert [one.json["type"] for one in receiver.wait()] == ["call.failed"]
    receipts(alice, silent)


def test_a_large_result_is_told_by_its_reference(alice: Door, receiver: Receiver) -> None:
    begin(alice, receiver, "much")
    (got,) = receiver.wait()
    assert len(got.body) < 10_000
    reference = got.json["data"]["result"]["artifact"]
    assert len(alice.get(f"/v1/artifacts/{reference}").json) == 30


def test_one_key_calls_back_once(alice: Door, receiver: Receiver) -> None:
    metadata = {"idempotencyKey": "told-once", "callback": {"url": receiver.url}}
    first = alice.call("worker", capability="double", input={"number": 4}, metadata=metadata).json
    receiver.wait()
    again = alice.call("worker", capability="double", input={"number": 4}, metadata=metadata).json
    assert again["result"] == 8
    receipts(alice, first["job"], "delivered")
    begin(alice, receiver, "double", {"number": 5})
    assert [one.json["data"]["result"] for one in receiver.wait(2)] == [8, 10]


def test_the_token_stands_in_no_table_no_listing_and_no_log(
    alice: Door, house: Hosted, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), receiving(lambda _: 500) as broken:
        job = begin(alice, broken, "fail", token=TOKEN)
        (receipt,) = receipts(alice, job, "dead")
        assert receipt["reason"] == "it answered 500"
        assert [one.headers["authorization"] for one in broken.got] == [f"Bearer {TOKEN}"] * 3
        tables = ("jobs", "job_events", "deliveries", "queue_messages", "queue_keys", "calls", "dead_letters")
        assert TOKEN not in repr([house.rows(table) for table in tables])
        for path in ("", "/callbacks", "/events"):
            assert TOKEN.encode() not in alice.get(f"/v1/calls/{job}{path}").raw
        bad = {"url": broken.url, "token": f"{TOKEN} "}
        refused = alice.call("worker", capability="double", input={"number": 1}, metadata={"callback": bad})
        assert (refused.status, refused.error["code"]) == (422, "invalid_input")
        assert TOKEN.encode() not in refused.raw
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("url", "status", "code", "says"),
    [
        ("http://10.0.0.7/hook", 403, "blocked", "callbacks.allow_private"),
        ("http://169.254.169.254/", 403, "blocked", "metadata"),
        ("ftp://127.0.0.1/", 403, "blocked", "scheme"),
        ("", 422, "invalid_input", "url"),
    ],
)
def test_an_address_that_is_closed_is_refused_before_anything_runs(
    alice: Door, house: Hosted, url: str, status: int, code: str, says: str
) -> None:
    before = len(house.rows("jobs"))
    refused = alice.call("worker", capability="double", input={"number": 1}, metadata={"callback": {"url": url}})
    assert (refused.status, refused.error["code"]) == (status, code)
    assert says in refused.error["message"]
    assert len(house.rows("jobs")) == before
    if status == 403:
        assert house.rows("calls")[-1]["code"] == "blocked"


def test_the_callbacks_of_another_are_not_there(alice: Door, bob: Door, receiver: Receiver) -> None:
    job = begin(alice, receiver, "double", {"number": 1})
    theirs = bob.get(f"/v1/calls/{job}/callbacks")
    assert (theirs.status, theirs.error["code"]) == (404, "job_not_found")


def test_without_a_secret_callbacks_are_signed_with_a_key_that_everybody_may_read(
    tmp_path: Path, receiver: Receiver
) -> None:
    how = Callbacks(schemes=("https", "http"), allow_loopback=True)
    with hosted(tmp_path, [Worker().agent], Settings(callbacks=how)) as bare:
        metadata = {"callback": {"url": receiver.url, "token": "my-own"}}
        assert bare.call("worker", capability="double", input={"number": 1}, metadata=metadata).status in (200, 202)
        (came,) = receiver.wait(1)
        keys = bare.get("/.well-known/jwks.json").json["keys"]
    assert verify_by(keys, came.headers, came.body) == came.id
    assert came.headers["authorization"] == "Bearer my-own"
    with pytest.raises(Unauthenticated):
        verify_by(keys, came.headers, came.body + b" ")


@pytest.mark.postgres
def test_where_nothing_can_be_kept_secret_there_are_no_callbacks(tmp_path: Path, receiver: Receiver) -> None:
    with hosted(tmp_path, [Worker().agent], Settings(storage=Storage(url=new_database_url()))) as bare:
        metadata = {"callback": {"url": receiver.url}}
        refused = bare.call("worker", capability="double", input={"number": 1}, metadata=metadata)
        assert (refused.status, refused.error["code"]) == (500, "setup")
        assert "callbacks.secret" in refused.error["message"]
        assert "AGENT3_STORAGE_SEAL" in refused.error["message"]


def test_a_model_that_calls_over_mcp_is_answered_at_once_and_told_later(
    alice: Door, receiver: Receiver, house: Hosted, worker: Worker
) -> None:
    worker.gate.clear()
    arguments = {"agentId": "worker", "capability": "hold", "metadata": {"callback": {"url": receiver.url}}}

    async def call() -> Any:
        async with (
            httpx2.AsyncClient(headers=alice.headers, timeout=240) as http,
            official.Client(streamable_http_client(f"{house.url}/mcp", http_client=http), mode="2026-07-28") as client,
        ):
            return (await client.call_tool("agent3_call", arguments)).structured_content

    told = asyncio.run(asyncio.wait_for(call(), 60))
    assert told["status"] == "working"
    assert receiver.got == []
    house.run(worker.open())
    (got,) = receiver.wait()
    assert (got.json["data"]["id"], got.json["data"]["result"]) == (told["job"], "held")


def test_what_became_of_callbacks_is_counted(alice: Door, receiver: Receiver, house: Hosted) -> None:
    def delivered() -> float:
        lines = house.get("/metrics").raw.decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if 'webhooks_total{result="delivered"}' in line)

    before = delivered()
    receipts(alice, begin(alice, receiver, "double", {"number": 1}), "delivered")
    eventually(lambda: delivered() >= before + 1)  # counted just after the receipt is written


CONFIG = """
[callbacks]
secret = "env:HOOK_SECRET"
schemes = ["http"]
allow_loopback = true
timeout = {timeout}
attempts = {attempts}
first_delay = 0.01
"""


def test_a_gateway_that_is_killed_while_it_tells_tells_again_under_the_same_id(tmp_path: Path) -> None:
    config = CONFIG.format(timeout=0.5, attempts=9)
    release = threading.Event()

    def hangs(_: Webhook) -> int:
        release.wait(60)
        return 204

    with receiving(hangs) as receiver:
        with gateway(tmp_path, "--demo", config=config, HOOK_SECRET=SECRET) as first:
            metadata = {"callback": {"url": receiver.url}}
            job = first.call("echo", "still here", metadata=metadata).json["job"]
            receiver.wait()
            first.stop(signal.SIGKILL)
        release.set()
        seen = len(receiver.got)
        with gateway(tmp_path, "--demo", config=config, HOOK_SECRET=SECRET) as second:
            again = receiver.wait(seen + 1)
            receipts(second, job, "delivered")
    assert len({one.id for one in again}) == 1
    assert again[-1].json["data"]["result"] == "still here"
    verify(SECRET, again[-1].headers, again[-1].body)


def test_what_could_not_be_delivered_is_a_dead_letter_for_the_operator(tmp_path: Path) -> None:
    config = CONFIG.format(timeout=5, attempts=2)
    with (
        receiving(lambda _: 500) as receiver,
        gateway(tmp_path, "--demo", config=config, HOOK_SECRET=SECRET) as running,
    ):
        metadata = {"callback": {"url": receiver.url, "token": TOKEN}}
        job = running.call("echo", "hello", metadata=metadata).json["job"]
        (receipt,) = receipts(running, job, "dead")
        listed = json.loads(run_agent3(tmp_path, "dlq", "list", "--json").stdout)
        letter = f"queue:webhooks:{receipt['id']}"
        assert letter in json.dumps(listed)
        shown = run_agent3(tmp_path, "dlq", "show", letter, "--json").stdout
        assert "it answered 500" in shown
        assert TOKEN not in shown
        receiver.reply = lambda _: 204
        assert run_agent3(tmp_path, "dlq", "replay", letter).returncode == 0
        receipts(running, job, "delivered")
        assert receiver.wait(3)[-1].headers["authorization"] == f"Bearer {TOKEN}"
