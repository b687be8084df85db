"""``agent3 serve --workers``: several processes behind one port act as one gateway, and are replaced unnoticed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.test_tls import Authority, context
from tests.support.workers import Workers, serving

WHO = {"agentId": "served", "capability": "who", "input": {}}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "served__who", "arguments": {}}}


def run_async(test: Callable[[Workers], Coroutine[Any, Any, None]]) -> Callable[[Workers], None]:
    def run(workers: Workers) -> None:
        asyncio.run(asyncio.wait_for(test(workers), 180))

    return run


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("workers")
    with serving(folder, f"sqlite:///{folder}/agent3.db") as gateway:
        yield gateway


async def fill(url: str, count: int = 24) -> tuple[list[httpx.AsyncClient], dict[str, httpx.AsyncClient]]:
    """Clients with a connection each, and one of them for each worker."""
    clients = [httpx.AsyncClient(base_url=url, timeout=240) for _ in range(count)]
    answers = await asyncio.gather(*(client.post("/v1/call", json=WHO) for client in clients))
    return clients, {answer.json()["result"]: client for client, answer in zip(clients, answers, strict=True)}


def open_session(client: httpx.Client, url: str) -> str:
    answer = client.post(f"{url}/mcp", json=INITIALIZE, headers=ACCEPT)
    session = answer.headers["mcp-session-id"]
    headers = {**ACCEPT, "Mcp-Session-Id": session}
    client.post(f"{url}/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    return session


def in_session(client: httpx.Client, url: str, session: str) -> httpx.Response:
    headers = {**ACCEPT, "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-06-18"}
    return client.post(f"{url}/mcp", json=CALL, headers=headers)


def find_pid(answer: httpx.Response) -> int:
    """The process that served a call in a session, which answers as JSON or as an event."""
    found = re.search(r'"text":"(\d+)"', answer.text)
    assert found is not None, answer.text
    return int(found[1])


def test_a_legacy_session_works_on_every_connection(workers: Workers) -> None:
    with httpx.Client(timeout=240) as first:
        session = open_session(first, workers.url)
        told = {find_pid(in_session(first, workers.url, session))}
        for _ in range(10):  # each on a connection of its own, which any worker may accept
            with httpx.Client(timeout=240) as other:
                answer = in_session(other, workers.url, session)
                assert answer.status_code == 200
                told.add(find_pid(answer))
                assert in_session(other, workers.url, session).status_code == 200  # and again on the same connection
        assert len(told) == 1, "one worker holds the session, and all get there"


def test_a_session_works_on_every_connection_with_tls_for_who_shows_its_certificate_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("localhost")
    shown = {name: context(authority, authority.issue(name)[0]) for name in ("robot", "clerk")}
    (tmp_path / "agent3.toml").write_text(
        f'[limits]\nper_minute = 0\n[server]\ntls_certificate = "{certificate}"\ntls_client_ca = "{authority.file}"\n'
        + "".join(f'[[clients]]\nid = "{name}"\ncertificate = "subject:{name}"\n' for name in shown)
    )
    with (
        serving(tmp_path, f"sqlite:///{tmp_path}/agent3.db", verify=shown["robot"]) as workers,
        httpx.Client(timeout=240, verify=shown["robot"]) as first,
    ):
        assert workers.url.startswith("https:")
        session = open_session(first, workers.url)
        told = {find_pid(in_session(first, workers.url, session))}
        for _ in range(40):  # until one of them has been relayed
            with httpx.Client(timeout=240, verify=shown["robot"]) as other:
                for _ in range(2):
                    told.add(find_pid(in_session(other, workers.url, session)))
            if workers.metric("agent3_connections_handed_over_total"):
                break
        else:
            raise AssertionError("no connection came to the other worker")
        assert len(told) == 1
        # Another client's certificate goes with its connection: the session is not there for it.
        for _ in range(6):
            with httpx.Client(timeout=240, verify=shown["clerk"]) as other:
                assert in_session(other, workers.url, session).status_code == 404
            with httpx.Client(timeout=240, verify=context(authority)) as nobody:
                assert in_session(nobody, workers.url, session).status_code == 401


def test_a_session_goes_on_when_its_worker_is_gone(workers: Workers) -> None:
    restarts = workers.metric("agent3_worker_restarts_total")
    with httpx.Client(timeout=240) as client:
        session = open_session(client, workers.url)
        answer = in_session(client, workers.url, session)
        pid = find_pid(answer)
        os.kill(pid, signal.SIGKILL)
    workers.wait_until("agent3_worker_restarts_total", restarts + 1)

    def ask_again(_: int) -> httpx.Response:
        with httpx.Client(timeout=240) as other:
            return in_session(other, workers.url, session)

    with ThreadPoolExecutor(8) as threads:  # all at once: none comes before the session is open again
        for answer in threads.map(ask_again, range(8)):
            assert answer.status_code == 200
            assert '"isError":false' in answer.text
    with httpx.Client(timeout=240) as client:
        answer = in_session(client, workers.url, session)
        assert answer.status_code == 200
        assert '"isError":false' in answer.text
        assert str(pid) not in answer.text
    with httpx.Client(timeout=240) as stranger:
        forged = session[:-4] + ("0000" if session[-4:] != "0000" else "1111")
        assert in_session(stranger, workers.url, forged).status_code == 404
    workers.wait_until("agent3_workers", 2)


@run_async
async def test_a_roll_fails_no_call(workers: Workers) -> None:
    over, wrong, told = asyncio.Event(), [], 0
    before = workers.metric("agent3_worker_restarts_total")

    async def call(number: int) -> None:
        nonlocal told
        async with httpx.AsyncClient(base_url=workers.url, timeout=240) as client:
            while not over.is_set():
                body = WHO if number % 4 else {"agentId": "served", "capability": "slow", "input": {"seconds": 0.3}}
                try:
                    answer = await client.post("/v1/call", json=body)
                except httpx.HTTPError as error:
                    wrong.append(repr(error))
                else:
                    told += 1
                    if answer.status_code != 200:
                        wrong.append(answer.text)
                await asyncio.sleep(0.05)

    callers = [asyncio.create_task(call(number)) for number in range(8)]
    await asyncio.sleep(0.5)
    workers.roll()
    await asyncio.to_thread(workers.wait_until, "agent3_worker_restarts_total", before + 2)
    over.set()
    await asyncio.gather(*callers)
    assert not wrong, (told, wrong[:3])
    assert told


@run_async
async def test_a_question_is_answered_and_a_job_followed_on_any_worker(workers: Workers) -> None:
    await asyncio.to_thread(workers.wait_until, "agent3_workers", 2)
    clients, by_worker = await fill(workers.url)
    try:
        one, other = (list(by_worker.values()) * 2)[:2]
        body = {"agentId": "served", "capability": "asked", "input": {"name": "Ada"}}
        job = (await one.post("/v1/call", json=body)).json()["job"]
        answer = await other.post(f"/v1/calls/{job}/answer", json={"message": "blue"})
        assert answer.json()["result"] == "Ada blue"
        body = {"agentId": "served", "capability": "slow", "input": {"seconds": 50.0}}
        job = (await one.post("/v1/call", json=body, headers={"Prefer": "respond-async"})).json()["job"]
        assert (await other.get(f"/v1/calls/{job}")).json()["status"] == "working"
        await other.post(f"/v1/calls/{job}/cancel")
        assert (await one.get(f"/v1/calls/{job}?wait=30")).json()["status"] == "canceled"
    finally:
        await asyncio.gather(*(client.aclose() for client in clients))


@run_async
async def test_the_page_of_metrics_is_that_of_all(workers: Workers) -> None:
    before = workers.metric("agent3_calls_total")
    clients, by_worker = await fill(workers.url)
    await asyncio.gather(*(client.aclose() for client in clients))
    await asyncio.to_thread(workers.wait_until, "agent3_calls_total", before + len(clients))
    assert workers.metric("agent3_workers") == 2
    assert by_worker


def test_one_that_is_stopped_keeps_nobody_waiting_and_is_replaced_when_it_dies(workers: Workers) -> None:
    pid = workers.pid_of_one()
    os.kill(pid, signal.SIGSTOP)
    try:
        answers = {httpx.post(f"{workers.url}/v1/call", json=WHO, timeout=240).json()["result"] for _ in range(5)}
        assert str(pid) not in answers
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "none"], "a number from 1 to 256, or auto"),
        (["--workers", "2", "--db", "sqlite:///:memory:"], "one in memory is visible to one process only"),
        (["--workers", "2", "--reload", "served.py:agent"], "--reload runs a single process"),
    ],
)
def test_what_cannot_be_is_said(options: list[str], words: str, tmp_path: Path) -> None:
    environment = {**os.environ, "AGENT3_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "agent3", "serve", "--port", "0", *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())
