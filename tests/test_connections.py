"""Crowds, slow clients and strangers: who has to leave, and who must not notice."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from agent3 import connections
from agent3.connections import Overload, Pool, guard_class

MOST = 32
HELD = threading.Event()
STARTED = threading.Semaphore(0)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once; at /hold when it is let go; at /read with the size of the body; at /large with very much."""
    body, size = b"ok", 0
    if scope["path"] == "/hold":
        STARTED.release()
        while not HELD.is_set():
            await asyncio.sleep(0.01)
    if scope["path"] == "/read":
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        body = b"%d" % size
    if scope["path"] == "/large":
        body = b"x" * 50_000_000
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def served(http: Any) -> Iterator[int]:
    server = uvicorn.Server(
        uvicorn.Config(application, lifespan="off", log_config=None, access_log=False, http=http, ws="none")
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=500)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        HELD.set()
        server.should_exit = True
        thread.join(60)
        listener.close()


def connect(stack: ExitStack, port: int, sent: bytes = b"") -> socket.socket:
    made = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=240))
    made.sendall(sent)
    return made


def request(path: str, *more: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *more, "", ""]).encode()


def read(connection: socket.socket) -> bytes:
    """All that comes until nothing more does for now, or the other side closes."""
    data = connection.recv(65_536)
    while data and (b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < _length(data)):
        more = connection.recv(65_536)
        if not more:
            break
        data += more
    return data


def _length(data: bytes) -> int:
    return int(data.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)


PARTS = {
    "silent": b"",
    "a byte": b"G",
    "a head": request("/")[:-2],
    "a body": b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx",
}


def test_many_that_never_finish_a_request_lock_nobody_out() -> None:
    counted: Counter[str] = Counter()
    pool = Pool(MOST, spare=["/healthz"], count=lambda what: counted.update([what]))
    with served(guard_class(60.0, pool)) as port, ExitStack() as stack:
        polite = connect(stack, port, request("/"))
        assert read(polite).endswith(b"ok")
        for round_of in range(4):
            for part in PARTS.values():
                for _ in range(MOST):
                    connect(stack, port, part)
            # A client that was there before, and that has been served, keeps its connection.
            polite.sendall(request("/"))
            assert read(polite).endswith(b"ok"), round_of
            # And a new one gets in.
            assert read(connect(stack, port, request("/"))).endswith(b"ok")
        assert counted["evicted"] >= 4 * MOST
        assert set(counted) == {"evicted"}


def test_health_is_answered_while_all_places_are_taken_by_work_and_others_are_told_when_to_come_back() -> None:
    HELD.clear()
    with served(guard_class(60.0, Pool(MOST, spare=["/healthz"]))) as port, ExitStack() as stack:
        busy = [connect(stack, port, request("/hold")) for _ in range(MOST)]
        for _ in busy:
            assert STARTED.acquire(timeout=240)
        for _ in range(3 * connections._RESERVE):  # strangers that take the reserve, too
            connect(stack, port)
        refused = read(connect(stack, port, request("/")))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in refused
        for _ in range(3):
            assert read(connect(stack, port, request("/healthz"))).endswith(b"ok")
        HELD.set()
        for one in busy:  # nobody who was being answered had to leave
            assert read(one).endswith(b"ok")


def test_a_body_has_a_deadline_whoever_reads_it() -> None:
    counted: Counter[str] = Counter()
    with served(guard_class(0.2, Pool(count=lambda what: counted.update([what])))) as port, ExitStack() as stack:
        waiting = connect(stack, port, PARTS["a body"])
        answer = read(waiting)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"too_slow"' in answer
        assert waiting.recv(100) == b""
        # A body in pieces that comes in time is read.
        whole = connect(stack, port, PARTS["a body"])
        whole.sendall(b"x" * 99)
        assert read(whole).endswith(b"100")
    assert counted == {"slow_body": 1}


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_READ_SECONDS", 0.3)
    counted: Counter[str] = Counter()
    done = threading.Event()

    def count(what: str) -> None:
        counted[what] += 1
        done.set()

    with served(guard_class(0.2, Pool(count=count))) as port, ExitStack() as stack:
        connect(stack, port, request("/large"))
        assert done.wait(60)
    assert counted == {"slow_reader": 1}


def test_one_address_has_a_share_and_this_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_own, kept in ((True, 8), (False, 2)):
        monkeypatch.setattr(connections, "_is_own", lambda address, is_own=is_own: is_own)
        counted: Counter[str] = Counter()
        refused = threading.Semaphore(0)

        def count(what: str, counted: Counter[str] = counted, refused: threading.Semaphore = refused) -> None:
            counted[what] += 1
            refused.release()

        pool = Pool(MOST, 2, count=count)
        HELD.clear()
        with served(guard_class(60.0, pool)) as port, ExitStack() as stack:
            answers = [connect(stack, port, request("/hold")) for _ in range(8)]
            for _ in range(kept):
                assert STARTED.acquire(timeout=240)
            for _ in range(8 - kept):  # before the others are answered and make room
                assert refused.acquire(timeout=240)
            HELD.set()
            told = [read(one).partition(b"\r\n")[0] for one in answers]
        assert told.count(b"HTTP/1.1 200 OK") == kept
        assert told.count(b"HTTP/1.1 503 Service Unavailable") == 8 - kept
        assert counted["address"] == 8 - kept


def test_requests_beyond_what_the_loop_can_do_are_refused_on_connections_that_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_FEW", 0)
    monkeypatch.setattr(connections, "_SURE", 0)
    pool = Pool(spare=["/healthz"], identify=lambda scope: scope["path"])
    with served(guard_class(60.0, pool)) as port, ExitStack() as stack:
        connection = connect(stack, port)
        pool.overload.tick(1.0, 1.0)
        told = []
        for path in ("/a", "/a", "/healthz", "/b"):  # the last one waits until the rest after the refusal is over
            connection.sendall(request(path))
            told.append(read(connection))
        assert [one.partition(b" ")[2][:3] for one in told] == [b"200", b"503", b"200", b"200"]
        assert b"retry-after: 1\r\n" in told[1]
        pool.overload.rest = 3_600.0
        for path, status in (("/b", b"503"), ("/c", b"200")):  # two callers share it: one does not make the other wait
            connection.sendall(request(path))
            assert read(connection).partition(b" ")[2][:3] == status


def test_one_that_another_process_answers_is_neither_closed_for_room_nor_for_a_slow_body() -> None:
    connection: Any = object.__new__(guard_class(60.0, Pool()))
    connection.cycle = SimpleNamespace(response_complete=False, response_started=False, more_body=True)
    connection.flow = SimpleNamespace(read_paused=False)
    connection.transport = SimpleNamespace(is_closing=lambda: False)  # nothing can be written
    assert connection.rank() == 1
    connection._is_evicted = True
    assert connection.rank() == 0
    connection._on_timeout()


def increase(counted: Counter[str], what: str) -> None:
    counted[what] += 1


def simulate(capacity: int, offers: dict[str, int], ticks: int) -> tuple[Counter[str], int]:
    """A loop that can do so many requests per tick, and callers that send so many; what was done, and how it waits."""
    overload, done, backlog, worst = Overload(), Counter[str](), 0, 0
    for tick in range(ticks):
        for who, many in offers.items():
            for _ in range(many):
                if not overload.is_on or overload.enter(who, backlog):
                    backlog += 1
                    if tick >= ticks // 2:
                        done[who] += 1
        backlog = max(0, backlog - capacity)
        late = backlog / capacity * 0.05
        overload.tick(late, capacity)
        worst = max(worst, backlog) if tick >= ticks // 2 else 0
    return done, worst


@pytest.mark.parametrize("times", [1, 2, 5, 20])
def test_goodput_stays_near_capacity_and_the_queue_short_however_much_comes(times: int) -> None:
    done, worst = simulate(400, {"a": 400 * times}, 400)
    assert done["a"] >= 0.9 * 400 * 200
    assert worst <= 2 * 400


def test_a_slow_machine_with_little_to_do_refuses_nobody() -> None:
    overload = Overload()
    for _ in range(100):
        overload.tick(5.0, 0.0)
        assert all(overload.enter("a", running) for running in range(200))


def test_refused_connections_wait_longer_the_more_is_refused_and_not_any_more_when_that_is_over() -> None:
    overload, rests = Overload(), []
    for late, many in ((1.0, 1), (1.0, 1_000), (0.0, 1)):
        for _ in range(400):
            overload.tick(late, 100)
            for _ in range(many if overload.is_on else 0):
                overload.enter("a", 1_000)
        rests.append(overload.rest)
    assert rests == [1, 8, 1]


def test_who_asks_for_little_gets_it_while_another_asks_for_everything() -> None:
    done, _ = simulate(400, {"greedy": 4_000, "modest": 80, "other": 1_000}, 400)
    assert done["modest"] >= 0.95 * 80 * 200
    assert done["greedy"] == pytest.approx(done["other"], rel=0.2)
    assert done.total() >= 0.9 * 400 * 200


def test_who_asks_for_little_gets_it_on_a_machine_that_does_next_to_nothing() -> None:
    done, _ = simulate(4, {"greedy": 1_000, "modest": 3}, 400)
    assert done["modest"] >= 0.95 * 3 * 200
    assert done["greedy"] <= 2 * 200
