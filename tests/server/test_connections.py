"""Connections that do not get on with their request, and honest ones that must not notice."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from agent3.calls.driving import Left, watched
from agent3.mcp.fastlane import Reply
from agent3.server.connections import patient

SECONDS = 0.4


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, or after a while at /slow; it never reads a body."""
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    config = uvicorn.Config(
        application, lifespan="off", log_config=None, access_log=False, http=patient(SECONDS), ws="none"
    )
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    listener.close()


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        yield connection


def drip(connection: socket.socket, piece: bytes, seconds: float) -> bool:
    """Send a piece every now and then; whether the other side closed within the time."""
    connection.settimeout(0.05)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            connection.sendall(piece)
            if connection.recv(1000) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /he", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ", b"\r\n"],
    ids=["silent", "line", "header", "blank"],
)
def test_a_connection_that_does_not_finish_its_headers_is_closed(port: int, begun: bytes) -> None:
    with connected(port) as connection:
        started = time.monotonic()
        connection.sendall(begun)
        assert connection.recv(1000) == b""
        assert SECONDS * 0.9 < time.monotonic() - started < SECONDS + 2


@pytest.mark.parametrize("piece", [b"X-A: b\r\n", b"a"])
def test_dripping_does_not_help(port: int, piece: bytes) -> None:
    with connected(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert drip(connection, piece, 5.0)


def test_dripping_blank_lines_or_a_body_nobody_reads_does_not_help_after_a_response(port: int) -> None:
    for head, piece in (
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b"x"),
    ):
        with connected(port) as connection:
            connection.sendall(head)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            assert drip(connection, piece, 5.0)


def test_an_honest_connection_is_kept_between_and_during_its_requests(port: int) -> None:
    with connected(port) as connection:
        for path in (b"/", b"/slow", b"/"):
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000).endswith(b"ok")
            time.sleep(1.5 * SECONDS)  # what is under test is that this much silence changes nothing


def test_headers_that_come_in_two_pieces_are_one_request(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHo")
        time.sleep(0.05)
        connection.sendall(b"st: x\r\n\r\n")
        assert connection.recv(1000).endswith(b"ok")


@pytest.mark.parametrize("whole", [True, False])
def test_headers_beyond_64_kib_are_refused(port: int, whole: bool) -> None:
    many = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1000) for number in range(80))
    with connected(port) as connection:
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + many + (b"\r\n" if whole else b""))
            answer = connection.recv(1000)
        except ConnectionError:
            return  # closed while we still sent, which is as good
        assert answer.startswith(b"HTTP/1.1 431 "), answer
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(body) in head


def test_a_large_body_does_not_count_as_headers(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + b"z" * 200_000)
        assert connection.recv(1000).endswith(b"ok")


# The short way: a lane beside the app


class Lane:
    """Answers, hesitates or waits as the body says; ``left`` is set when the client was seen to hang up."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.left = threading.Event()

    async def reply(self, scope: Any, body: bytes, hung_up: Any) -> Reply | None:
        async def work() -> Reply | None:
            await asyncio.sleep(0.01)
            return None if body.startswith(b"app") else Reply(b'{"by":"lane"}')

        async def for_ever() -> Reply | None:
            self.waiting.set()
            await asyncio.sleep(60)
            return None

        try:
            return await watched(for_ever() if body.startswith(b"wait") else work(), hung_up)
        except Left:
            self.left.set()
            raise


async def echoing(scope: Any, receive: Any, send: Any) -> None:
    """Says how long the body was that it read."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    answer = b"app read %d" % size
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def laned() -> Iterator[tuple[int, Lane]]:
    lane = Lane()
    http = patient(5.0, lambda path: lane if path == "/lane" else None)
    server = uvicorn.Server(
        uvicorn.Config(echoing, lifespan="off", log_config=None, access_log=False, http=http, ws="none")
    )
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1], lane
    server.should_exit = True
    thread.join(10)
    listener.close()


def post(body: bytes, path: str = "/lane") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def answered(connection: socket.socket, until: bytes) -> bytes:
    found = b""
    while until not in found:
        piece = connection.recv(100_000)
        assert piece, found
        found += piece
    return found


def test_a_lane_answers_one_request_after_the_other(laned: tuple[int, Lane]) -> None:
    with connected(laned[0]) as connection:
        for _ in range(3):
            connection.sendall(post(b"lane"))
            assert answered(connection, b'{"by":"lane"}').startswith(b"HTTP/1.1 200 OK\r\n")
        connection.sendall(post(b"lane") * 3)
        found = b""
        while found.count(b'{"by":"lane"}') < 3:
            found += connection.recv(100_000)


def test_what_the_lane_hands_back_after_a_while_is_still_read_by_the_app(laned: tuple[int, Lane]) -> None:
    with connected(laned[0]) as connection:
        connection.sendall(post(b"app" * 10))
        answered(connection, b"app read 30")
        connection.sendall(post(b"app" * 100_000))
        answered(connection, b"app read 300000")


@pytest.mark.parametrize("size", [10, 80_000])
def test_a_hang_up_is_noticed_on_the_short_way(laned: tuple[int, Lane], size: int) -> None:
    port, lane = laned
    for _ in range(20):  # a large body may come in pieces, and then goes to the app
        with connected(port) as connection:
            connection.sendall(post(b"wait" + b"." * size))
            if lane.waiting.wait(0.5):
                break
    assert lane.waiting.is_set()
    assert lane.left.wait(5)


def test_a_hang_up_is_noticed_while_another_request_waits_behind(laned: tuple[int, Lane]) -> None:
    port, lane = laned
    with connected(port) as connection:
        connection.sendall(post(b"wait") + post(b"lane"))
        assert lane.waiting.wait(5)
    assert lane.left.wait(5)


def test_headers_that_begin_behind_a_large_body_are_not_counted_with_it(laned: tuple[int, Lane]) -> None:
    with connected(laned[0]) as connection:
        first, second = post(b"app" * 40_000), post(b"app!")
        connection.sendall(first + second[:30])
        answered(connection, b"app read 120000")
        connection.sendall(second[30:])
        answered(connection, b"app read 4")
