"""KnownHeads that were seen before, and all that looks like one and is not."""

from __future__ import annotations

import pytest

from agent3.server.connection import KnownHeads

LINES = [b"POST /agents/echo/mcp HTTP/1.1", b"Host: x", b"Authorization: Bearer key", b"Content-Length: %d"]


def request(body: bytes, *more: bytes, lines: list[bytes] = LINES, end: bytes = b"\r\n") -> bytes:
    head = end.join([*lines, *more]) + end * 2
    return head.replace(b"%d", b"%d" % len(body)) + body


def headers(raw: bytes) -> list[tuple[bytes, bytes]]:
    """As a parser reads them."""
    lines = raw.partition(b"\r\n\r\n")[0].replace(b"\r\n ", b" ").splitlines()[1:]
    split = [line.partition(b":") for line in lines]
    return [(name.lower(), value.strip()) for name, _, value in split]


def learned(raw: bytes) -> KnownHeads[str]:
    heads: KnownHeads[str] = KnownHeads()
    heads.learn(raw, headers(raw), "alice")
    return heads


@pytest.mark.parametrize("again", [b"hello", b"another", b"x" * 100_000, b"", b"\r\n\r\n"])
def test_a_head_is_known_again_with_any_body(again: bytes) -> None:
    raw = request(again)
    assert learned(request(b"hello")).find(raw) == ("alice", len(raw) - len(again), 0, None)


@pytest.mark.parametrize("came", [0, 1, 4])
def test_a_head_is_known_before_its_body_is_here(came: int) -> None:
    raw = request(b"hello")
    assert learned(raw).find(raw[: len(raw) - 5 + came]) == ("alice", len(raw) - 5, 5 - came, None)


def test_a_name_in_small_letters_is_as_good() -> None:
    lines = [line.lower() if line.startswith(b"Content") else line for line in LINES]
    raw = request(b"hello!", lines=lines)
    assert learned(request(b"hello", lines=lines)).find(raw) == ("alice", len(raw) - 6, 0, None)


def test_one_byte_makes_another_head() -> None:
    heads = learned(request(b"hello"))
    whole = request(b"hello")
    length = whole.index(b": 5") + 2  # another length may be as good
    for place in set(range(whole.index(b"\r\n\r\n") + 4)) - {length}:
        other = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        assert heads.find(other) is None, other
        assert heads.find(whole) is not None  # and the same byte behind one that was found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        b"POST",
        request(b"")[:-1],
        request(b"hello") + b"x",
        request(b"hello") * 2,
        request(b"hello").replace(b": 5", b": +5"),
        request(b"hello").replace(b": 5", b": 5 "),
        request(b"hello").replace(b": 5", b": 5, 5"),
        request(b"hello").replace(b": 5", b": 0x5"),
        request(b"hello").replace(b": 5", b": " + b"0" * 20 + b"5"),
        request(b"hello").replace(b": 5", b": "),
        request(b"hello", b"Content-Length: 5"),
        request(b"hello", b"Transfer-Encoding: chunked"),
        b"\r\n" + request(b"hello"),
    ],
)
def test_anything_but_one_request_of_that_head_is_left_to_the_parser(data: bytes) -> None:
    heads = learned(request(b"hello"))
    assert heads.find(data) is None
    assert heads.find(request(b"hello")) is not None
    assert heads.find(data) is None, "right behind a request of that head"


@pytest.mark.parametrize(
    "raw",
    [
        request(b"hello", b"Connection: close"),
        request(b"hello", b"Transfer-Encoding: chunked"),
        request(b"hello", b"Expect: 100-continue"),
        request(b"hello", b"Upgrade: h2c"),
        request(b"hello", b"Content-Length: 5"),
        request(b"hello", b"X-A: 1", b"X-A: 2"),
        request(b"hello", b"X-Folded: 1\r\n more"),
        request(b"hello", b"X-Odd: 1\rX-B: 2"),
        request(b"hello", b"X: " + b"y" * 5_000),
        request(b"hello", lines=LINES[:-1]),
        request(b"hello", lines=[b"GET / HTTP/1.1", *LINES[1:]]),
        b"\r\n\r\n" + request(b"hello"),
        request(b"hello", end=b"\n"),
    ],
)
def test_what_must_be_read_each_time_is_not_learned(raw: bytes) -> None:
    assert len(learned(raw)) == 0


def test_a_head_whose_length_stands_elsewhere_is_not_learned() -> None:
    """The parser has the last word on what the length is."""
    heads: KnownHeads[str] = KnownHeads()
    raw = request(b"hello")
    heads.learn(raw, [(name, b"6" if name == b"content-length" else value) for name, value in headers(raw)], "alice")
    assert len(heads) == 0


def test_only_so_many_are_known_and_the_oldest_go() -> None:
    heads: KnownHeads[int] = KnownHeads(limit=2)
    for number in range(3):
        raw = request(b"hello", b"X-Number: %d0" % number)
        heads.learn(raw, headers(raw), number)
    assert len(heads) == 2
    assert heads.find(request(b"hello", b"X-Number: 00")) is None
    assert heads.find(request(b"", b"X-Number: 20")) == (2, len(request(b"", b"X-Number: 20")), 0, None)


def test_a_head_that_is_learned_anew_is_not_mistaken_for_what_it_was() -> None:
    heads, raw, other = learned(request(b"hello")), request(b"hello"), request(b"hello", b"X-A: 1")
    heads.learn(other, headers(other), "bob")
    for _ in range(2):
        assert heads.find(raw) == ("alice", len(raw) - 5, 0, None)
        assert heads.find(other) == ("bob", len(other) - 5, 0, None)
    heads.learn(other, headers(other), "carol")
    assert heads.find(other) == ("carol", len(other) - 5, 0, None)


def trace(number: int) -> bytes:
    return b"00-%032x-%016x-01" % (number, number)


@pytest.mark.parametrize("name", [b"traceparent", b"Traceparent"])
@pytest.mark.parametrize("last", [True, False])
def test_a_head_is_known_again_with_any_trace_and_without(name: bytes, last: bool) -> None:
    def traced(number: int) -> bytes:
        line = name + b": " + trace(number)
        return request(b"hello", line) if last else request(b"hello", lines=[*LINES[:2], line, *LINES[2:]])

    heads, plain = learned(traced(1)), request(b"hello")
    for number in (1, 2, 3):
        raw = traced(number)
        assert heads.find(raw) == ("alice", len(raw) - 5, 0, trace(number))
        assert heads.find(plain) == ("alice", len(plain) - 5, 0, None)


@pytest.mark.parametrize(
    "line",
    [
        b"traceparent: " + trace(2) + b"0",
        b"traceparent: " + trace(0xAB).upper(),
        b"traceparent: " + trace(2)[:-1],
        b"traceparent:" + trace(2),
        b"tracepar-nt: " + trace(2),
        b"traceparent: " + trace(2) + b"\r\ntraceparent: " + trace(3),
        b"traceparent: " + trace(2) + b"\r\nX-A: 1",
    ],
)
def test_a_trace_that_is_not_as_usual_is_left_to_the_parser(line: bytes) -> None:
    heads = learned(request(b"hello", b"traceparent: " + trace(1)))
    assert heads.find(request(b"hello", line)) is None
