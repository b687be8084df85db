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
