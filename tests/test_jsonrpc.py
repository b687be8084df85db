from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import Awaitable, MutableMapping
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from agent3 import jsonrpc
from agent3.errors import (
    Agent3Error,
    ParseError,
    RateLimited,
    RequestError,
    TooLarge,
    ValidationError,
)
from agent3.jsonrpc import Frame, Limits, Request, Response, SSEParser, decode, encode_event, parse

BATCHES = Limits(batch=3)
STRICT = Limits(strict=True)
T = TypeVar("T")


def run(work: Awaitable[T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(bounded())


def call(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m", **fields}).encode()


# Parsing


def test_a_call_a_notification_and_a_response_are_told_apart() -> None:
    assert parse(call(params={"a": [1]})) == Request("m", {"a": [1]}, 1)
    assert parse(b'{"jsonrpc":"2.0","method":"m"}') == Request("m", None, UNSET)
    assert parse(b'{"jsonrpc":"2.0","method":"m","id":null}') == Request("m", None, None)
    assert parse(b'{"jsonrpc":"2.0","id":"x","result":null}') == Response("x", None)
    failure = {"code": -1, "message": "no"}
    assert parse(json.dumps({"jsonrpc": "2.0", "id": 1, "error": failure}).encode()) == Response(1, UNSET, failure)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"a":NaN}',
        b"Infinity",
        b"1e999",
        b'"\xff"',
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"'a'",
    ],
)
def test_what_is_not_json_is_a_parse_error(body: bytes) -> None:
    with pytest.raises(ParseError) as caught:
        parse(body)
    assert caught.value.rpc_code == -32700


@pytest.mark.parametrize(
    "body",
    [
        b"1",
        b'"x"',
        b"null",
        b"{}",
        b'{"id":1,"method":"m"}',
        b'{"jsonrpc":2.0,"id":1,"method":"m"}',
        b'{"jsonrpc":"1.0","id":1,"method":"m"}',
        call(method=3),
        call(method=None),
        call(params=3),
        call(params=None),
        call(params="x"),
        call(id=True),
        call(id=1.5),
        call(id=[]),
        call(id={}),
        call(result=1),
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","result":1}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
        b'{"jsonrpc":"2.0","id":1,"error":"x"}',
        b"[]",
        b'[{"jsonrpc":"2.0","id":1,"method":"m"}]',
    ],
)
def test_a_wrong_envelope_is_an_invalid_request(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body)
    assert caught.value.rpc_code == -32600
    assert caught.value.http_status == 400


def test_a_wrong_message_whose_id_can_be_read_is_answered_with_it() -> None:
    with pytest.raises(RequestError) as caught:
        parse(call(id="x7", params=3))
    assert jsonrpc.id_of(caught.value) == "x7"
    with pytest.raises(RequestError) as unread:
        parse(call(id=[]))
    assert jsonrpc.id_of(unread.value) is None


def test_a_batch_is_taken_only_where_allowed_and_up_to_its_cap() -> None:
    one = json.loads(call())
    assert parse(json.dumps([one, 1]).encode(), BATCHES) != []
    messages = parse(json.dumps([one, 1]).encode(), BATCHES)
    assert isinstance(messages, list)
    assert messages[0] == Request("m", None, 1)
    assert isinstance(messages[1], RequestError)
    for body in (b"[]", json.dumps([one] * 4).encode()):
        with pytest.raises(RequestError) as caught:
            parse(body, BATCHES)
        assert caught.value.rpc_code == -32600


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 50_000,
        b'["\\"[",' + b"[" * 100_000,
        b"[" * 1_000_000,
        b"[" + b"0," * 10_000 + b"0]",
        b" " * (1 << 20) + b"1",
        b'{"a":' + b"1" * 65 + b"}",
        b"0." + b"1" * 100_000,
    ],
    ids=["65 deep", "50,000 deep", "after a tricky text", "a million", "many values", "long", "number", "fraction"],
)
def test_what_is_too_large_is_refused_before_it_is_decoded(body: bytes) -> None:
    with pytest.raises(TooLarge) as caught:
        parse(body)
    assert caught.value.rpc_code == -32600
    assert caught.value.http_status == 413


def test_a_number_that_is_too_long_is_found_wherever_it_stands() -> None:
    for before in range(140):
        with pytest.raises(TooLarge):
            jsonrpc.decode(b'["' + b"x" * before + b'",' + b"1" * 65 + b"]")
        assert jsonrpc.decode(b'["' + b"x" * before + b'",' + b"1" * 64 + b"]")


def test_brackets_commas_and_digits_in_texts_do_not_count() -> None:
    for text in ("[" * 5_000, "," * 50_000, "9" * 500, '\\"[' * 1_000, "{" * 100 + '"' * 3):
        assert jsonrpc.decode(json.dumps({"a": text}).encode()) == {"a": text}
    assert jsonrpc.decode(b"[" * 64 + b"]" * 64)
    assert jsonrpc.decode(b"1" * 64) == int("1" * 64)


@pytest.mark.parametrize("piece", [b'\\"', b'"', b'"[', b"e" * 64 + b"x", b"\\", b'"\\'])
def test_the_scan_is_linear_on_hostile_bytes(piece: bytes) -> None:
    body = b'["' + b"[" * 100 + piece * ((1 << 20) // len(piece) - 60)
    with pytest.raises(RequestError):
        parse(body)


def test_lenient_takes_a_byte_order_mark_and_halves_of_characters() -> None:
    lenient = Limits(lenient=True)
    for body, value in (
        (b'\xef\xbb\xbf["a"]', ["a"]),
        (rb'"cut \ud83d"', "cut \ufffd"),
        (rb'"\ude00 \ud83d\ud83d\ude00 \\ud83d"', "\ufffd \ufffd\U0001f600 \\ud83d"),
    ):
        assert decode(body, lenient) == value
        with pytest.raises(ParseError):
            decode(body)
    for body in (b"oops", rb'"\ud83d', rb'["\ud83d",'):
        with pytest.raises(ParseError):
            decode(body, lenient)


def test_strict_refuses_duplicate_keys_and_unsafe_integers() -> None:
    twice = b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1,"a":2}}'
    assert parse(twice) == Request("m", {"a": 2}, 1)
    for body in (twice, call(params=[2**53]), call(params=[-(2**53)])):
        with pytest.raises(RequestError) as caught:
            parse(body, STRICT)
        assert caught.value.rpc_code == -32600
    assert parse(call(params=[2**53 - 1]), STRICT) == Request("m", [2**53 - 1], 1)


@settings(max_examples=300)
@given(st.binary() | st.text().map(str.encode) | st.text(alphabet='[]{}",:\\0e-n').map(str.encode), st.booleans())
def test_parsing_random_bytes_raises_only_errors_of_ours(body: bytes, strict: bool) -> None:
    with contextlib.suppress(Agent3Error):
        parse(body, Limits(batch=2, strict=strict, depth=4, nodes=20))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    if isinstance(value, (list, dict)):
        return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)
    return 0


@given(json_values, st.integers(1, 5))
def test_the_scan_finds_exactly_the_depth_that_is_there(value: Any, depth: int) -> None:
    body = msgspec.json.encode(value)
    try:
        jsonrpc.check_bytes(body, Limits(depth=depth))
        fits = True
    except TooLarge:
        fits = False
    assert fits is (depth_of(value) <= depth)


# Answers


def test_answers_are_json_rpc() -> None:
    assert json.loads(jsonrpc.result(1, {"a": 1})) == {"jsonrpc": "2.0", "id": 1, "result": {"a": 1}}
    assert jsonrpc.result_raw('a"b', b'{"a":1}') == jsonrpc.result('a"b', {"a": 1})
    assert json.loads(jsonrpc.error(None, -32000, "no", [1])) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32000, "message": "no", "data": [1]},
    }
    assert parse(jsonrpc.request(1, "m", {"a": 1})) == Request("m", {"a": 1}, 1)
    assert parse(jsonrpc.notification("m")) == Request("m")


def test_an_error_of_ours_is_told_in_full() -> None:
    limited = json.loads(jsonrpc.error_of(1, RateLimited("slow down", retry_after=2.5, data={"limit": 3})))
    assert limited["error"] == {
        "code": -32005,
        "message": "slow down",
        "data": {"code": "rate_limited", "retryable": True, "retry_after": 2.5, "limit": 3},
    }
    wrong = json.loads(jsonrpc.error_of(1, ValidationError("bad", errors=[{"path": "x"}])))
    assert wrong["error"]["code"] == -32602
    assert wrong["error"]["data"]["errors"] == [{"path": "x"}]


def test_any_other_exception_leaks_nothing() -> None:
    answer = jsonrpc.error_of(1, RuntimeError("the password is 1234"))
    assert json.loads(answer)["error"] == {"code": -32603, "message": "Internal error"}


@pytest.mark.parametrize(
    ("body", "code", "key"),
    [
        (b"{", -32700, None),
        (b"[" * 1_000, -32600, None),
        (b"3", -32600, None),
        (call(jsonrpc="1.0"), -32600, 1),
        (b"[]", -32600, None),
    ],
)
def test_every_failure_of_parsing_is_answered_with_its_exact_code_and_id(body: bytes, code: int, key: object) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body, BATCHES)
    answer = json.loads(jsonrpc.error_of(jsonrpc.id_of(caught.value), caught.value))
    assert answer["error"]["code"] == code
    assert answer["id"] == key


# Server-sent events


def test_a_frame_has_its_fields_and_one_line_per_line() -> None:
    assert encode_event(b"a\nb", id="7", event="message", retry=500) == (
        b"retry: 500\nid: 7\nevent: message\ndata: a\ndata: b\n\n"
    )
    assert encode_event(b"") == b"data: \n\n"


@pytest.mark.parametrize("text", ["a\nb", "a\rdata: x", "a\0"])
def test_no_field_can_be_smuggled_through_id_or_event(text: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        encode_event(b"", id=text)
    with pytest.raises(ValueError, match="one line"):
        encode_event(b"", event=text)
    assert len(SSEParser().feed(encode_event(b"x\n\nid: 9\n\ndata: y"))) == 1


one_line = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"))
frames = st.builds(
    Frame,
    st.text(st.characters(codec="utf-8", exclude_characters="\r")).map(str.encode),
    st.none() | one_line,
    st.none() | one_line.filter(bool),
    st.none() | st.integers(0, 10**9),
)


def cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=200)
@given(
    st.lists(frames, max_size=4),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from([b"\n", b"\r", b"\r\n"]),
    st.booleans(),
)
def test_frames_survive_any_cutting_and_any_line_end(
    sent: list[Frame], places: list[int], end: bytes, bom: bool
) -> None:
    body = b"".join(encode_event(one.data, id=one.id, event=one.event, retry=one.retry) for one in sent)
    body = (b"\xef\xbb\xbf" if bom else b": hello\n") + body
    parser = SSEParser()
    got = [frame for piece in cut(body.replace(b"\n", end), places) for frame in parser.feed(piece)]
    assert got == sent


@given(st.lists(st.binary()))
def test_random_bytes_never_break_the_parser(pieces: list[bytes]) -> None:
    parser = SSEParser(limit=64)
    with contextlib.suppress(TooLarge):
        for piece in pieces:
            parser.feed(piece)


def test_comments_unknown_fields_and_empty_events_are_passed_over() -> None:
    body = b": ping\n\n\n\nfoo: bar\n\nevent: x\n\ndata\ndata:y\nid\n\nretry: soon\ndata: z\n\nid: 5\n\n"
    assert SSEParser().feed(body) == [Frame(b"\ny", ""), Frame(b"z"), Frame(b"", "5")]


@pytest.mark.parametrize("piece", [b"data: xxxx", b"data: xxxx\n", b": xxxx\n"])
def test_an_event_without_end_is_refused(piece: bytes) -> None:
    parser = SSEParser(limit=1_000)

    def flood() -> None:
        for _ in range(1_000):
            parser.feed(piece)

    with pytest.raises(TooLarge):
        flood()


# The ends of an exchange

Event = MutableMapping[str, Any]


class Client:
    """The receiving side of ASGI: what was sent, then whatever the test lets happen."""

    def __init__(self, *events: Event):
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        for event in events:
            self.events.put_nowait(event)

    async def receive(self) -> Event:
        return await self.events.get()

    def leave(self) -> None:
        self.events.put_nowait({"type": "http.disconnect"})


def piece(body: bytes, more: bool = False) -> Event:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_is_read_to_its_end() -> None:
    async def scene(*events: Event) -> bytes:
        return await jsonrpc.read_body(Client(*events).receive, 10)

    assert run(scene(piece(b"abc"))) == b"abc"
    assert run(scene(piece(b"abc", more=True), {"type": "http.request", "more_body": True}, piece(b"de"))) == b"abcde"
    with pytest.raises(TooLarge):
        run(scene(piece(b"x" * 6, more=True), piece(b"x" * 6, more=True)))
    with pytest.raises(jsonrpc.ClientLeft):
        run(scene(piece(b"abc", more=True), {"type": "http.disconnect"}))


def test_a_body_that_does_not_arrive_in_time_is_refused() -> None:
    async def scene() -> bytes:
        return await jsonrpc.read_body(Client(piece(b"a", more=True)).receive, timeout=0.01)

    with pytest.raises(RequestError) as caught:
        run(scene())
    assert caught.value.http_status == 408


def test_a_disconnect_is_waited_for() -> None:
    async def scene() -> bool:
        client = Client(piece(b"late"))
        gone = asyncio.create_task(jsonrpc.wait_for_disconnect(client.receive))
        while not client.events.empty():
            await asyncio.sleep(0)
        before = gone.done()
        client.leave()
        await gone
        return before

    assert run(scene()) is False


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), (" 1.5 ", 1.5), ("9" * 400, 3600.0), ("-5", 0.0), ("nan", None), ("soon", None), ("", None),
     (None, None), ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0), ("Thu, 01 Jan 1970 00:02:00 -0000", 20.0),
     ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0)],
)  # fmt: skip
def test_both_forms_of_retry_after_are_read_and_bounded(header: str | None, seconds: float | None) -> None:
    assert jsonrpc.parse_retry_after(header, now=100.0, longest=3600.0) == seconds


def test_an_event_stream_is_known_by_its_media_type() -> None:
    assert jsonrpc.is_event_stream("Text/Event-Stream; charset=utf-8")
    assert not any(map(jsonrpc.is_event_stream, (None, "", "application/json", "text/event-stream-not")))


@given(
    st.lists(st.sampled_from([b'"', b'""', b"\\", b'\\"', b"[", b",", b"a", b"1", b"{}"]), max_size=60).map(b"".join)
)
def test_strings_are_dropped_some_at_a_time_like_all_at_once(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonrpc, "_AT_ONCE", 0)
        patch.setattr(jsonrpc, "_SOME_STRINGS", re.compile(jsonrpc._SOME_STRINGS.pattern.replace(b"10000", b"2"), re.S))
        assert jsonrpc._drop_strings(body) == jsonrpc._STRINGS.sub(b"0", body)
