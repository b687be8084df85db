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

from agent3.calls.coroutines import Left, run_watched
from agent3.gateway.lanes import Reply
from agent3.server.connection import make_connection_class

SECONDS = 0.4


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, or after a while at /slow; it never reads a body."""
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * SECONDS)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def serving(app: Any, http: Any) -> Iterator[tuple[int, uvicorn.Server]]:
    """A server of its own thread, until the end of the block."""
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, http=http, ws="none")
    )
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


def begin_to_stop(server: uvicorn.Server) -> None:
    """Until it listens no more; in the same round of its loop it asks its connections to end."""
    server.should_exit = True
    end = time.monotonic() + 60
    while any(one.is_serving() for one in server.servers):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(application, make_connection_class(SECONDS)) as (number, _):
        yield number


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=240) as connection:
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
    started = time.monotonic()
    with connected(port) as connection:
        connection.sendall(begun)
        assert connection.recv(1000) == b""
        assert time.monotonic() - started > SECONDS * 0.9


@pytest.mark.parametrize("piece", [b"X-A: b\r\n", b"a"])
def test_dripping_does_not_help(port: int, piece: bytes) -> None:
    with connected(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert drip(connection, piece, 60.0)


def test_dripping_blank_lines_or_a_body_nobody_reads_does_not_help_after_a_response(port: int) -> None:
    for head, piece in (
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b"x"),
    ):
        with connected(port) as connection:
            connection.sendall(head)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
            assert drip(connection, piece, 60.0)


def test_an_honest_connection_is_kept_between_and_during_its_requests(port: int) -> None:
    with connected(port) as connection:
        for path in (b"/", b"/slow", b"/"):
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000).endswith(b"ok")
            time.sleep(1.5 * SECONDS)  # what is under test is that this much silence changes nothing


def test_headers_that_come_in_two_pieces_are_one_request() -> None:
    with serving(application, make_connection_class(60.0)) as (port, _), connected(port) as connection:
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
    """Answers, hesitates or waits as the body says; ``left`` is set when the client was seen to hang up.

    ``asked`` counts the requests that were parsed, ``visits`` those whose head was known.
    """

    server: uvicorn.Server

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self.release = threading.Event()
        self.left = threading.Event()
        self.asked = 0
        self.visits = 0

    async def reply(self, scope: Any, body: bytes, hung_up: Any) -> Reply | None:
        self.asked += 1
        return await self.answer(body, hung_up)

    def guest(self, scope: Any) -> Visitor:
        return Visitor(self)

    async def answer(self, body: bytes, hung_up: Any) -> Reply | None:
        async def work() -> Reply | None:
            await asyncio.sleep(0.01)
            while body.startswith(b"hold") and not self.release.is_set():
                self.waiting.set()
                await asyncio.sleep(0.001)
            return None if body.startswith(b"app") else Reply(b'{"by":"lane"}')

        async def for_ever() -> Reply | None:
            self.waiting.set()
            await asyncio.sleep(60)
            return None

        try:
            return await run_watched(for_ever() if body.startswith(b"wait") else work(), hung_up)
        except Left:
            self.left.set()
            raise


class Visitor:
    """Whose head the lane has answered."""

    who = "visitor"

    def __init__(self, lane: Lane):
        self.lane = lane

    async def reply(self, told: Any, body: bytes, hung_up: Any) -> Reply | None:
        self.lane.visits += 1
        if body.startswith(b"told"):
            told["test.told"] = b" as told"
            return None
        if body.startswith(b"fail"):
            raise RuntimeError("on purpose")
        return await self.lane.answer(body, hung_up)


async def echoing(scope: Any, receive: Any, send: Any) -> None:
    """Says how long the body was that it read."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    answer = b"app read %d%b" % (size, scope.get("test.told", b""))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def laned() -> Iterator[tuple[int, Lane]]:
    lane = Lane()
    with serving(echoing, make_connection_class(60.0, lambda path: lane if path == "/lane" else None)) as (
        number,
        lane.server,
    ):
        yield number, lane


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
    assert lane.left.wait(60)


def test_a_hang_up_is_noticed_while_another_request_waits_behind(laned: tuple[int, Lane]) -> None:
    port, lane = laned
    with connected(port) as connection:
        connection.sendall(post(b"wait") + post(b"lane"))
        assert lane.waiting.wait(60)
    assert lane.left.wait(60)


def test_headers_that_begin_behind_a_large_body_are_not_counted_with_it(laned: tuple[int, Lane]) -> None:
    with connected(laned[0]) as connection:
        first, second = post(b"app" * 40_000), post(b"app!")
        connection.sendall(first + second[:30])
        answered(connection, b"app read 120000")
        connection.sendall(second[30:])
        answered(connection, b"app read 4")


# Heads that are known


@contextmanager
def known(laned: tuple[int, Lane]) -> Iterator[socket.socket]:
    """A connection whose next POST to the lane has a head that was answered before."""
    port, lane = laned
    with connected(port) as connection:
        connection.sendall(post(b"lane"))
        answered(connection, b'{"by":"lane"}')
        assert (lane.asked, lane.visits) == (1, 0)
        yield connection


def test_a_known_head_is_not_parsed_again_whatever_the_length_of_its_body(laned: tuple[int, Lane]) -> None:
    lane = laned[1]
    with known(laned) as connection:
        for size in (4, 5, 40_000):
            connection.sendall(post(b"x" * size))
            answer = answered(connection, b'{"by":"lane"}')
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"\r\ndate: " in answer
        assert lane.visits >= 2  # a large body may come in pieces, and is parsed then
    with connected(laned[0]) as other:
        before = lane.visits
        other.sendall(post(b"lane"))
        answered(other, b'{"by":"lane"}')
        assert lane.visits == before + 1


def test_a_body_that_comes_after_its_head_is_waited_for(
    laned: tuple[int, Lane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent3.server.connection._BODY_SECONDS", 60.0)
    lane = laned[1]
    with known(laned) as connection:
        whole = post(b"lane!")
        for piece in (whole[:-5], whole[-5:-2], whole[-2:]):
            connection.sendall(piece)
            time.sleep(0.02)  # so that they arrive one by one
        answered(connection, b'{"by":"lane"}')
        assert (lane.asked, lane.visits) == (1, 1)
        for piece in (post(b"app" * 100_000)[:1_000], post(b"app" * 100_000)[1_000:]):
            connection.sendall(piece)
        answered(connection, b"app read 300000")


def test_a_body_that_takes_long_is_left_to_who_reads_it() -> None:
    lane = Lane()
    http = make_connection_class(SECONDS, lambda path: lane if path == "/lane" else None)
    with serving(echoing, http) as (number, server), known((number, lane)) as connection:
        whole = post(b"app")
        connection.sendall(whole[:-1])
        time.sleep(1.5 * SECONDS)  # what is under test is that this much silence makes it a request like others
        connection.sendall(whole[-1:])
        answered(connection, b"app read 3")
        assert lane.visits == 0
        connection.sendall(post(b"app!!")[:-1])
        time.sleep(0.05)
        begin_to_stop(server)
        connection.sendall(b"!")
        assert b"connection: close" in answered(connection, b"app read 5")


def test_what_a_guest_hands_back_is_parsed_and_read_by_the_app(laned: tuple[int, Lane]) -> None:
    with known(laned) as connection:
        connection.sendall(post(b"app" * 10))
        assert answered(connection, b"app read 30").endswith(b"app read 30")
        assert (laned[1].asked, laned[1].visits) == (2, 1)
        connection.sendall(post(b"lane"))
        answered(connection, b'{"by":"lane"}')


def test_what_a_guest_has_to_tell_is_in_the_scope_and_the_lane_is_not_asked_twice(laned: tuple[int, Lane]) -> None:
    with known(laned) as connection:
        connection.sendall(post(b"told"))
        answered(connection, b"app read 4 as told")
        assert laned[1].asked == 1
        connection.sendall(post(b"app"))
        assert answered(connection, b"app read 3").endswith(b"app read 3")


def test_a_hang_up_is_noticed_by_a_guest(laned: tuple[int, Lane]) -> None:
    lane = laned[1]
    with known(laned) as connection:
        connection.sendall(post(b"wait"))
        assert lane.waiting.wait(60)
        assert lane.visits == 1
    assert lane.left.wait(60)


def test_what_comes_while_a_guest_is_answered_waits_behind(laned: tuple[int, Lane]) -> None:
    lane = laned[1]
    with known(laned) as connection:
        connection.sendall(post(b"hold"))
        assert lane.waiting.wait(60)
        for piece in (post(b"app"), post(b"app12")[:20], post(b"app12")[20:] + post(b"app4567")):
            connection.sendall(piece)
            time.sleep(0.01)  # so that they arrive one by one, most of the time
        lane.release.set()
        found = answered(connection, b"app read 7")
        places = [found.index(one) for one in (b'{"by":"lane"}', b"app read 3", b"app read 5", b"app read 7")]
        assert places == sorted(places)


def test_a_guest_that_fails_is_a_500_and_the_end_of_the_connection(
    laned: tuple[int, Lane], caplog: pytest.LogCaptureFixture
) -> None:
    with known(laned) as connection:
        connection.sendall(post(b"fail"))
        answer = answered(connection, b"Internal Server Error\r\n")
        assert answer.startswith(b"HTTP/1.1 500 ")
        while connection.recv(1000):
            pass
    assert "on purpose" in caplog.text


def test_a_server_that_stops_lets_a_guest_finish(laned: tuple[int, Lane]) -> None:
    lane = laned[1]
    with known(laned) as connection:
        connection.sendall(post(b"hold"))
        assert lane.waiting.wait(60)
        begin_to_stop(lane.server)
        lane.release.set()
        answer = answered(connection, b'{"by":"lane"}')
        assert b"connection: close\r\n" in answer
        assert connection.recv(1000) == b""


@pytest.mark.parametrize("header", [b"x-more: 1", b"connection: keep-alive", b"transfer-encoding: chunked"])
def test_another_head_is_another_request(laned: tuple[int, Lane], header: bytes) -> None:
    lane = laned[1]
    with known(laned) as connection:
        other = post(b"lane").replace(b"host: x", b"host: x\r\n" + header)
        if header.endswith(b"chunked"):
            head = other.replace(b"content-length: 4\r\n", b"").removesuffix(b"lane")
            other = head + b"4\r\nlane\r\n0\r\n\r\n"
        connection.sendall(other)
        answered(connection, b'{"by":"lane"}')
        assert lane.visits == 0
