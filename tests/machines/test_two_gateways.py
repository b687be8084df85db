"""Two real gateways on one PostgreSQL behave as one: what is done on one is seen, answered and stopped on the other."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent3.directory.directory import Directory
from agent3.env import SeededEnv
from agent3.identity.signed_requests import sign
from agent3.model import Agent
from agent3.storage import Database, open_database
from agent3.storage.leases import Leases
from agent3.storage.notifications import News
from tests.support.gateway import Door, Reply, run_agent3
from tests.support.machines import SECRET, Machines, eventually, machines, start, watch
from tests.support.postgres import new_database_url
from tests.support.storage import using

pytestmark = pytest.mark.postgres
TOOL = """
from mcp.server import MCPServer
server = MCPServer("added")
@server.tool()
def shout(text: str) -> str:
    return text.upper()
server.run("stdio")
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("machines"), new_database_url()) as running:
        yield running


def job_of(door: Door, job: str, wait: int = 0) -> dict[str, Any]:
    reply = door.get(f"/v1/calls/{job}?wait={wait}")
    assert reply.status == 200, reply.raw
    found: dict[str, Any] = reply.json
    return found


def pid(machines: Machines, number: int) -> int:
    return machines.gateways[number].process.pid


def test_an_agent_added_beside_one_is_callable_on_both_at_once(pair: Machines, tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(TOOL)
    doors = [pair.door(number, "erin") for number in (0, 1)]
    assert [door.get("/v1/agents/added").status for door in doors] == [404, 404]
    stop = threading.Event()

    def asking(door: Door) -> None:
        """Ask until the agent is seen, all the time, so that the memory of the gateway is always fresh."""
        while door.get("/v1/agents/added").status != 200:
            assert not stop.wait(0.1)

    with ThreadPoolExecutor() as pool:
        seen = [pool.submit(asking, door) for door in doors]
        try:
            command = f"{sys.executable} {tmp_path / 'tool.py'}"
            added = run_agent3(tmp_path, "add", command, "--name", "added", "--db", pair.url)
            assert added.returncode == 0, added.stderr
            for each in seen:
                each.result(60)
        finally:
            stop.set()
    for door in doors:
        reply = door.call("added", "", capability="shout", input={"text": "hello"})
        assert reply.status == 200, reply.raw
        assert "HELLO" in reply.raw.decode()


def test_a_directory_learns_at_once_what_another_process_added() -> None:
    async def story(database: Database) -> None:
        here, there = News(database, "here"), News(database, "there")
        # Its clock stands still, so that it never looks by itself: what it learns, it was told.
        listening = Directory(database, SeededEnv(), news=there)
        there.listen()
        try:
            while not there.live:
                await asyncio.sleep(0.01)
            assert await listening.everything() == []
            await Directory(database, SeededEnv(), news=here).add(Agent(id="added", name="Added"))
            while not await listening.everything():
                await asyncio.sleep(0.01)
        finally:
            await there.aclose()
            await here.aclose()

    using(new_database_url(), story)


def test_a_clients_limit_holds_over_both_together(pair: Machines) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        calls = [
            pool.submit(pair.door(number % 2, "bob").call, "worker", capability="echo", input={"text": "x"})
            for number in range(60)
        ]
        replies = [each.result(60) for each in calls]
    took = time.monotonic() - began
    taken = [reply for reply in replies if reply.status == 200]
    refused = [reply for reply in replies if reply.status == 429]
    assert len(taken) + len(refused) == 60
    assert 20 <= len(taken) <= 20 + took + 1, f"{len(taken)} in {took:.1f} s"
    assert all(float(reply.headers["retry-after"]) >= 1 for reply in refused)


def test_a_signed_request_is_good_for_one_gateway_only_once(pair: Machines) -> None:
    body = json.dumps({"agentId": "worker", "message": "", "capability": "echo", "input": {"text": "x"}}).encode()
    here, there = pair.gateways
    headers = {
        "content-type": "application/json",
        **sign("POST", f"{here.url}/v1/call", body, key_id="desk", key=SECRET),
    }
    host = here.url.removeprefix("http://")

    def sent(door: Door) -> Reply:
        return door.ask("POST", "/v1/call", body, host=host, **headers)

    assert sent(here).status == 200
    replayed = sent(there)
    assert replayed.status == 401
    assert "nonce" in replayed.raw.decode().lower()


def test_an_event_of_one_is_streamed_from_the_other_while_the_work_goes_on(pair: Machines) -> None:
    file = pair.folder / "streamed"
    job = start(pair.door(0), "patient", name=str(file))
    for event in watch(pair.door(1), job):
        if event["kind"] == "status":
            assert job_of(pair.door(0), job)["status"] == "working"
            file.touch()
    assert job_of(pair.door(1), job)["status"] == "done"


@pytest.mark.requirement("RF-013-31")
def test_an_answer_that_came_after_the_time_to_wait_is_kept_and_can_be_read(pair: Machines) -> None:
    job = start(pair.door(0), "patient", name=str(pair.folder / "late"))
    assert job_of(pair.door(1), job, wait=1)["status"] == "working", "the time is over, and the work is not"
    (pair.folder / "late").touch()
    eventually(lambda: job_of(pair.door(1), job, wait=5)["status"] == "done")
    results = [job_of(pair.door(number), job)["result"] for number in (1, 0, 1)]
    assert results == [str(pair.folder / "late")] * 3, "as often as one likes"


def test_any_number_follow_from_any_number_on_either(pair: Machines) -> None:
    job = start(pair.door(0), "slow", name="followed", seconds=1.5)

    def numbers(after: int) -> list[int]:
        return [event["seq"] for event in watch(pair.door(after % 2), job, after)]

    with ThreadPoolExecutor(9) as pool:
        followers = [pool.submit(numbers, number) for number in range(9)]
        seen = [follower.result(60) for follower in followers]
    whole = seen[0]
    assert len(whole) > 9
    assert whole == sorted(set(whole))
    assert seen == [[seq for seq in whole if seq > after] for after in range(9)]


def test_what_runs_on_one_is_cancelled_from_the_other(pair: Machines) -> None:
    job = start(pair.door(0), "slow", name="stopped", seconds=90)
    eventually(lambda: pair.did("slow stopped") != [])
    reply = pair.door(1).post(f"/v1/calls/{job}/cancel")
    assert reply.json["status"] == "canceled", reply.raw
    assert pair.did("cancelled stopped") == [pid(pair, 0)]
    assert job_of(pair.door(0), job)["status"] == "canceled"


@pytest.mark.parametrize("capability", ["choose", "choose_again"])
def test_a_question_asked_on_one_is_answered_on_the_other(pair: Machines, capability: str) -> None:
    name = f"asked by {capability}"
    job = start(pair.door(0), capability, name=name)
    eventually(lambda: job_of(pair.door(1), job, wait=5)["status"] == "needs")
    first = pair.door(1).post(f"/v1/calls/{job}/answer", {"message": "red"})
    assert first.json["status"] == "needs", first.raw
    second = pair.door(0).post(f"/v1/calls/{job}/answer", {"message": "blue"})
    assert second.json.get("result") == f"{name}: red blue", second.raw
    runs = pair.did(f"choose {name}")
    if capability == "choose":
        assert runs == [pid(pair, 0)], "what cannot be replayed goes on where it waits"
    else:
        assert runs == [pid(pair, 0), pid(pair, 1), pid(pair, 0)], "no old frame is woken up again"


def test_a_key_is_one_call_on_both(pair: Machines) -> None:
    body: dict[str, Any] = {
        "capability": "slow",
        "input": {"name": "keyed", "seconds": 0.5},
        "metadata": {"idempotencyKey": "k1"},
    }
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(pair.door(number % 2, "carol").call, "worker", **body) for number in range(6)]
        assert {each.result(60).json["result"] for each in calls} == {"keyed"}
    assert len(pair.did("slow keyed")) == 1


def test_one_of_them_has_the_duty_of_sweeping(pair: Machines) -> None:
    async def story() -> tuple[bool, bool, bool]:
        database = await open_database(pair.url)
        try:
            one, two = Leases(database, "one"), Leases(database, "two")
            first = await one.take("sweep", 60), await two.take("sweep", 60)
            await one.leave()
            return (*first, await two.take("sweep", 60))
        finally:
            await database.aclose()

    assert asyncio.run(asyncio.wait_for(story(), 60)) == (True, False, True)
