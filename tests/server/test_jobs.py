"""Jobs over REST: detached calls, their events as a stream, cancelling, artifacts; each owner sees only its own."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from mcp.client import client as official
from mcp.client.streamable_http import streamable_http_client

from agent3 import Context, LocalAgent
from agent3.security.access import OPERATE
from agent3.server import call_stream
from agent3.settings import Client, Limits, Settings
from tests.support.gateway import Door, Hosted, hosted
from tests.support.machines import eventually

KEYS = {
    "alice": "key-of-alice-0123456789",
    "bob": "key-of-bob-0123456789",
    "operator": "key-of-operator-0123456789",
}


def _clients() -> tuple[Client, ...]:
    return tuple(
        Client(
            name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", scopes=(OPERATE,) if name == "operator" else ()
        )
        for name, key in KEYS.items()
    )


class Worker:
    """An agent whose work ends when the test says so."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.holding = threading.Event()
        self.ended: list[str] = []
        self.agent = LocalAgent("Worker", description="Works for tests")
        self.agent.capability(self.hold)
        self.agent.capability(self.count)
        self.agent.capability(self.big)
        self.agent.capability(self.fail)

    async def open(self) -> None:
        self.gate.set()

    async def hold(self, ctx: Context, message: str) -> str:
        """Hold until the gate opens."""
        ctx.status("holding")
        self.holding.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        return message

    async def count(self) -> AsyncIterator[str]:
        """Count to three."""
        for number in "123":
            yield number

    def big(self, text: str) -> str:
        """Give much."""
        return text * 100_000

    def fail(self) -> None:
        """Fail."""
        raise RuntimeError("the oven is cold")


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker()


@pytest.fixture(scope="module")
def house(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    settings = Settings(clients=_clients(), limits=Limits(per_minute=0))
    with hosted(tmp_path_factory.mktemp("jobs"), [worker.agent], settings) as running:
        yield running


@pytest.fixture
def alice(house: Hosted, worker: Worker) -> Iterator[Door]:
    worker.gate.clear()
    yield house.as_(KEYS["alice"])
    house.run(worker.open())


@pytest.fixture
def bob(house: Hosted) -> Door:
    return house.as_(KEYS["bob"])


def begin(door: Door, capability: str, **more: Any) -> str:
    started = door.call("worker", capability=capability, prefer="respond-async", **more)
    assert started.status == 202
    job: str = started.json["job"]
    assert started.headers["location"] == f"/v1/calls/{job}"
    assert (started.json["status"], started.json["metadata"]["statusCode"]) == ("working", 202)
    return job


def frames(raw: bytes) -> list[dict[str, str]]:
    """The frames of an event stream, as fields."""
    blocks = [block for block in raw.decode().split("\n\n") if block.strip()]
    return [dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")) for block in blocks]


def test_a_detached_call_is_told_where_to_look_and_can_be_waited_for(
    alice: Door, house: Hosted, worker: Worker
) -> None:
    job = begin(alice, "hold", message="slowly")
    shown = alice.get(f"/v1/calls/{job}").json
    assert (shown["status"], shown["agent"], shown["capability"]) == ("working", "worker", "hold")
    assert "result" not in shown
    house.run(worker.open())
    done = alice.get(f"/v1/calls/{job}?wait=20").json
    assert (done["status"], done["success"], done["result"]) == ("done", True, "slowly")
    assert done["metadata"]["responseTime"] > 0


def test_waiting_ends_with_its_time_while_the_job_goes_on(alice: Door) -> None:
    job = begin(alice, "hold", message="x")
    assert alice.get(f"/v1/calls/{job}?wait=1").json["status"] == "working"


def test_a_detached_call_that_fails_says_why_when_it_is_looked_at(alice: Door) -> None:
    job = begin(alice, "fail")
    failed = alice.get(f"/v1/calls/{job}?wait=20").json
    assert (failed["status"], failed["errorCode"]) == ("failed", "target_failed")
    assert "the oven is cold" in failed["error"]


def test_a_detached_call_to_nowhere_is_refused_at_once(alice: Door) -> None:
    refused = alice.call("wroker", "x", prefer="respond-async")
    assert (refused.status, refused.error["code"]) == (404, "agent_not_found")
    wrong = alice.post("/v1/call", {"message": "x"}, prefer="respond-async")
    assert (wrong.status, wrong.error["code"]) == (422, "invalid_input")


def test_the_same_key_runs_once_and_gives_the_same_answer(alice: Door) -> None:
    options = {"idempotencyKey": "only-once"}
    job = begin(alice, "count", metadata=options)
    alice.get(f"/v1/calls/{job}?wait=20")
    again = alice.call("worker", capability="count", metadata=options, prefer="respond-async")
    assert (again.status, again.json["result"]) == (200, "123")
    other = alice.call("worker", "x", capability="hold", metadata=options)
    assert (other.status, other.error["code"]) == (409, "conflict")


def test_events_come_as_a_stream_with_numbers_and_resume_after_one(alice: Door) -> None:
    job = begin(alice, "count")
    alice.get(f"/v1/calls/{job}?wait=20")
    stream = alice.get(f"/v1/calls/{job}/events")
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"
    all_of_it = frames(stream.raw)
    numbers = [int(frame["id"]) for frame in all_of_it]
    assert numbers == sorted(set(numbers))
    assert [frame["event"] for frame in all_of_it] == ["artifact"] * 3 + ["turn"]
    assert [json.loads(frame["data"])["parts"][0]["text"] for frame in all_of_it[:3]] == ["1", "2", "3"]
    rest = frames(alice.get(f"/v1/calls/{job}/events", last_event_id=str(numbers[1])).raw)
    assert rest == all_of_it[2:]
    assert frames(alice.get(f"/v1/calls/{job}/events?after={numbers[1]}").raw) == rest


@pytest.mark.parametrize("last", ["x", "-1", "²".encode().decode("latin-1"), "9" * 30, "9" * 5000])
def test_a_last_event_that_is_no_number_is_refused(alice: Door, last: str) -> None:
    job = begin(alice, "count")
    reply = alice.get(f"/v1/calls/{job}/events", last_event_id=last)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")


def test_events_are_heard_while_the_job_runs(alice: Door, house: Hosted, worker: Worker) -> None:
    job = begin(alice, "hold", message="x")
    connection = alice.connect()
    try:
        connection.request("GET", f"/v1/calls/{job}/events", headers=alice.headers)
        answer: http.client.HTTPResponse = connection.getresponse()
        first = b"".join(iter(answer.readline, b"\n"))
        assert json.loads(frames(first)[0]["data"])["text"] == "holding"
        house.run(worker.open())
        assert frames(answer.read())[-1]["event"] == "turn"
    finally:
        connection.close()


def test_a_stream_that_breaks_leaves_a_call_with_a_key_to_its_end(alice: Door, house: Hosted, worker: Worker) -> None:
    worker.ended.clear()
    metadata = {"idempotencyKey": "broken-stream"}
    body = {"agentId": "worker", "capability": "hold", "input": {"message": "kept"}, "metadata": metadata}
    connection = alice.connect()
    headers = {**alice.headers, "Content-Type": "application/json", "Accept": "text/event-stream"}
    connection.request("POST", "/v1/call", json.dumps(body), headers)
    answer = connection.getresponse()
    assert any(line.strip() == b"event: status" for line in answer)
    answer.close()
    connection.close()
    eventually(lambda: bool(call_stream._left))  # the gateway has seen that its reader is gone
    house.run(worker.open())
    assert alice.post("/v1/call", body).json["result"] == "kept"
    assert worker.ended == []


def test_a_running_job_is_cancelled_down_to_its_function(alice: Door, worker: Worker) -> None:
    worker.ended.clear()
    job = begin(alice, "hold", message="x")
    assert frames_until(alice, job, "status")
    cancelled = alice.post(f"/v1/calls/{job}/cancel").json
    assert (cancelled["status"], cancelled["success"]) == ("canceled", False)
    assert worker.ended == ["cancelled"]


def frames_until(door: Door, job: str, kind: str) -> bool:
    """Whether an event of a kind came."""
    connection = door.connect()
    try:
        connection.request("GET", f"/v1/calls/{job}/events", headers=door.headers)
        return any(line.strip() == f"event: {kind}".encode() for line in connection.getresponse())
    finally:
        connection.close()


def test_an_operator_finds_and_cancels_the_job_of_another_caller_and_that_is_recorded(
    house: Hosted, alice: Door, bob: Door, worker: Worker
) -> None:
    before = len(worker.ended)
    worker.holding.clear()
    job = begin(alice, "hold", message="a secret of alice")
    assert worker.holding.wait(10)
    operator = house.as_(KEYS["operator"])
    (shown,) = (one for one in operator.get("/v1/calls/open").json["jobs"] if one["id"] == job)
    assert (shown["caller"], shown["capability"], shown["status"]) == ("alice", "hold", "working")
    assert job in {one["id"] for one in alice.get("/v1/calls/open").json["jobs"]}
    assert job not in {one["id"] for one in bob.get("/v1/calls/open").json["jobs"]}
    assert bob.post(f"/v1/calls/{job}/cancel").status == 404
    cancelled = operator.post(f"/v1/calls/{job}/cancel")
    assert cancelled.json["status"] == "canceled"
    assert "secret of alice" not in json.dumps(cancelled.json)
    assert len(worker.ended) == before + 1
    assert alice.get(f"/v1/calls/{job}").json["status"] == "canceled"
    (record,) = (one for one in house.rows("audit") if one["what"] == "job cancelled")
    assert (record["who"], json.loads(record["detail"])["name"]) == ("operator", job)
    assert operator.get(f"/v1/calls/{job}/events").status == 404  # it may end it, not read it


def test_a_modern_client_that_gives_up_cancels_down_to_the_function(house: Hosted, worker: Worker) -> None:
    worker.gate.clear()
    worker.holding.clear()
    worker.ended.clear()
    headers = {"Authorization": f"Bearer {KEYS['alice']}"}

    async def story() -> None:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=240) as http,
            official.Client(streamable_http_client(f"{house.url}/mcp", http_client=http), mode="2026-07-28") as client,
        ):
            arguments = {"agentId": "worker", "capability": "hold", "message": "x"}
            calling = asyncio.create_task(client.call_tool("agent3_call", arguments))
            assert await asyncio.to_thread(worker.holding.wait, 60)
            calling.cancel()
            await asyncio.wait([calling])
            async with asyncio.timeout(60):
                while not worker.ended:
                    await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(story(), 100))
    assert worker.ended == ["cancelled"]
    assert [row["status"] for row in house.rows("calls") if row["door"] == "mcp"] == ["canceled"]


def test_a_large_result_is_an_artifact_that_only_its_owner_can_fetch(alice: Door, bob: Door) -> None:
    answer = alice.call("worker", capability="big", input={"text": "ab"}).json
    reference = answer["result"]["artifact"]
    fetched = alice.get(f"/v1/artifacts/{reference}")
    assert fetched.raw == b"ab" * 100_000
    assert fetched.headers["content-type"].startswith("text/plain")
    assert (fetched.headers["x-content-type-options"], fetched.headers["content-disposition"]) == (
        "nosniff",
        "attachment",
    )
    assert bob.get(f"/v1/artifacts/{reference}").error["code"] == "not_found"


def test_the_jobs_of_another_client_are_not_there(alice: Door, bob: Door) -> None:
    job = begin(alice, "hold", message="x")
    for method, path, body in [
        ("GET", "", None),
        ("GET", "?wait=1", None),
        ("GET", "/events", None),
        ("POST", "/answer", {"message": "x"}),
        ("POST", "/cancel", None),
    ]:
        theirs = bob.ask(method, f"/v1/calls/{job}{path}", body)
        nobodys = bob.ask(method, f"/v1/calls/{'0' * 32}{path}", body)
        assert (theirs.status, theirs.error["code"]) == (404, "job_not_found")
        assert theirs.error["message"].replace(job, "0" * 32) == nobodys.error["message"]
    continued = bob.call("worker", metadata={"job": job})
    assert continued.error["code"] == "job_not_found"
    assert alice.get(f"/v1/calls/{job}").json["status"] == "working"


def test_two_clients_with_one_idempotency_key_do_not_meet(alice: Door, bob: Door) -> None:
    options = {"idempotencyKey": "shared"}
    mine = begin(alice, "count", metadata=options)
    theirs = begin(bob, "count", metadata=options)
    assert mine != theirs
