"""JSON-RPC 2.0 on bytes, server-sent events, and the small HTTP pieces that every protocol needs.

Bytes are capped and scanned for depth before anything recursive decodes them, envelopes are checked strictly, and
every error carries the code that the specification assigns to it. It knows no methods, sessions or transports.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from agent3.errors import Agent3Error, ParseError, RequestError, TooLarge, TooSlow

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "LIMITS",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "ClientLeft",
    "Frame",
    "Id",
    "Limits",
    "Message",
    "Request",
    "Response",
    "SSEParser",
    "check_bytes",
    "decode",
    "decode_large",
    "encode_event",
    "error",
    "error_of",
    "id_of",
    "is_event_stream",
    "notification",
    "parse",
    "parse_retry_after",
    "read_body",
    "read_large",
    "request",
    "result",
    "result_raw",
    "wait_for_disconnect",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

T = TypeVar("T")

Id: TypeAlias = str | int | None


@dataclass(frozen=True)
class Limits:
    """What is accepted: bytes of a body, nesting depth, values in all, digits of a number, messages in a batch.

    ``batch`` 0 refuses batches. ``strict`` is for signed messages: it refuses duplicate keys and integers beyond
    ±(2^53 - 1), because different readers understand them differently. ``lenient`` is for answers, where the work is
    done: it takes a byte order mark, and U+FFFD for half of a character, as a text has that was cut in JavaScript.
    """

    body: int = 1 << 20
    depth: int = 64
    nodes: int = 10_000
    digits: int = 64
    batch: int = 0
    strict: bool = False
    lenient: bool = False


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Request:
    """A call; a notification if ``id`` is UNSET."""

    method: str
    params: dict[str, Any] | list[Any] | None = None
    id: Id | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Response:
    """A response: a result, or ``error`` with a code, a message and optional data."""

    id: Id
    result: Any = UNSET
    error: dict[str, Any] | None = None


Message: TypeAlias = Request | Response


# --- decoding ---------------------------------------------------------------------------------------------------------

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_SOME_STRINGS = re.compile(rb'(?:[^"]*+"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)){1,10000}+', re.DOTALL)
_ESCAPES = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""An escaped pair of surrogates; or one alone, as the group; or any other escape."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {code: 1 if code in b"[{" else -1 for code in b"[]{}"}
_MAX_SAFE_INTEGER = 2**53 - 1
_AT_ONCE = 128 << 10
"""Bytes that take no more than some milliseconds."""
_DIGITS = bytes(ord("0") if code in b"0123456789+.eE-" else ord(" ") for code in range(256))
_NOT_DIGITS = bytes(set(range(256)) - set(b"0123456789+.eE-"))


def check_bytes(body: bytes, limits: Limits = LIMITS) -> None:
    """Raise TooLarge for a body that is too long, too deep or holds too many values, without decoding it."""
    if len(body) > limits.body:
        raise TooLarge(f"The body has {len(body)} bytes, more than {limits.body}; send less, or an artifact")
    # Counting every bracket and comma, including those inside strings, can only overestimate. Almost every body passes
    # this cheap test; only the others pay for removing the strings and counting exactly.
    opened = body.count(b"[") + body.count(b"{")
    if opened > limits.depth or (len(body) >= limits.nodes and opened + body.count(b",") >= limits.nodes):
        bare = _drop_strings(body)
        if bare.count(b"[") + bare.count(b"{") + bare.count(b",") >= limits.nodes:
            raise TooLarge(f"The body holds more than {limits.nodes} values; send it in parts")
        brackets = bare.translate(None, _NOT_BRACKETS)
        if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > limits.depth:
            raise TooLarge(f"The body is nested deeper than {limits.depth} levels; flatten it")
    # Parsing an integer is quadratic in its digits. A run of number characters that is too long covers one of every
    # so many bytes: mostly none of these few is such a character. Otherwise ``translate`` and ``in``, at memory speed,
    # rule it out in almost every body.
    least = limits.digits + 1
    if not body[limits.digits :: least].translate(None, _NOT_DIGITS) or b"0" * least not in body.translate(_DIGITS):
        return
    long = _compile_long_number(least)
    if long.search(body) and long.search(_drop_strings(body)):
        raise TooLarge(f"The body holds a number of more than {limits.digits} characters; send it as a string")


def _drop_strings(body: bytes) -> bytes:
    """The body with 0 in the place of each string; of many, some at a time, since no thread runs meanwhile."""
    if len(body) <= _AT_ONCE:
        return _STRINGS.sub(b"0", body)
    pieces, at = [], 0
    while found := _SOME_STRINGS.match(body, at):
        pieces.append(_STRINGS.sub(b"0", found[0]))
        at = found.end()
    return b"".join([*pieces, body[at:]])


@lru_cache(maxsize=16)
def _compile_long_number(least: int) -> re.Pattern[bytes]:
    # The look-behind tries only the start of a run; otherwise many almost-too-long numbers would be scanned per digit.
    return re.compile(rb"(?<![0-9+.eE-])[0-9+.eE-]{%d}" % least)


def decode(body: bytes, limits: Limits = LIMITS) -> Any:
    """Decode JSON. Raises ParseError, or TooLarge before anything is decoded."""
    check_bytes(body, limits)
    try:
        value = _decode_leniently(body) if limits.lenient else msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as reason:
        raise ParseError(f"The body is not JSON: {reason}") from None
    except RecursionError:
        raise TooLarge("The body is nested too deeply; flatten it") from None
    if limits.strict:
        # msgspec keeps the last of two equal keys without a word, so the standard library checks a second time.
        json.loads(body.decode(), object_pairs_hook=_refuse_duplicates, parse_int=_parse_safe_integer)
    return value


def _decode_leniently(body: bytes) -> Any:
    body = body.removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise
        whole, at = bytearray(), 0
        for found in _ESCAPES.finditer(body):  # not by sub: it takes as long, and no other thread runs at its end
            if found[1] is not None:
                whole += body[at : found.start()]
                whole += b"\\ufffd"
                at = found.end()
        if not at:
            raise
        return msgspec.json.decode(whole + body[at:])


async def read_large(body: bytes, read: Callable[[], T]) -> T:
    """What is made of a body: of a large one in a thread, beside the event loop."""
    return read() if len(body) <= _AT_ONCE else await asyncio.to_thread(read)


async def decode_large(body: bytes, limits: Limits) -> Any:
    """``decode`` for those who take megabytes."""
    return await read_large(body, lambda: decode(body, limits))


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise RequestError(f"The key {twice[:64]!r} occurs twice in one object; a signed message must be unambiguous")
    return found


def _parse_safe_integer(text: str) -> int:
    number = int(text)
    if abs(number) > _MAX_SAFE_INTEGER:
        raise RequestError(f"The integer {text[:64]} is beyond ±(2^53 - 1) in a signed message; send it as a string")
    return number


# --- messages ---------------------------------------------------------------------------------------------------------


def parse(body: bytes, limits: Limits = LIMITS) -> Message | list[Message | RequestError]:
    """Parse a message, or a batch, in which an invalid message is represented by its error.

    Raises ParseError (-32700) for invalid JSON and RequestError (-32600) for invalid JSON-RPC 2.0, which includes
    TooLarge. ``id_of`` gives the id to answer them with.
    """
    value = decode(body, limits)
    if not isinstance(value, list):
        return _parse_message(value)
    if not limits.batch:
        raise RequestError("Batches are not accepted here; send one message per request")
    if not value:
        raise RequestError("The batch is empty; send at least one message")
    if len(value) > limits.batch:
        raise TooLarge(f"The batch has {len(value)} messages, more than {limits.batch}; send several batches")
    messages: list[Message | RequestError] = []
    for entry in value:
        try:
            messages.append(_parse_message(entry))
        except RequestError as error:
            messages.append(error)
    return messages


def _parse_message(value: Any) -> Message:
    if not isinstance(value, dict):
        raise RequestError(f"A message must be an object, got {type(value).__name__}")
    key = value.get("id", UNSET)
    if key is not UNSET and (isinstance(key, bool) or not isinstance(key, (str, int, type(None)))):
        raise RequestError(f"The id must be a string, an integer or null, got {type(key).__name__}")
    if value.get("jsonrpc") != "2.0":
        _refuse(key, 'The message must say "jsonrpc": "2.0"')

    if "method" in value:
        method, params = value["method"], value.get("params")
        if not isinstance(method, str):
            _refuse(key, f"The method must be a string, got {type(method).__name__}")
        if "params" in value and not isinstance(params, (dict, list)):
            _refuse(key, f"The params must be an object or an array, got {type(params).__name__}")
        if "result" in value or "error" in value:
            _refuse(key, "A message with a method must have neither a result nor an error")
        return Request(method, params, key)

    if isinstance(key, UnsetType) or ("result" in value) == ("error" in value):
        _refuse(key, "A message must have a method, or else an id and either a result or an error")
    failure = value.get("error")
    if "error" in value and not (
        isinstance(failure, dict)
        and isinstance(failure.get("code"), int)
        and not isinstance(failure["code"], bool)
        and isinstance(failure.get("message"), str)
    ):
        _refuse(key, "The error must be an object with an integer code and a message")
    return Response(key, value.get("result", UNSET), failure)


class _InvalidMessage(RequestError):
    """An invalid message whose id could be read."""

    def __init__(self, message: str, key: Id):
        super().__init__(message)
        self.key = key


def _refuse(key: Id | UnsetType, message: str) -> NoReturn:
    raise _InvalidMessage(message, None if isinstance(key, UnsetType) else key)


def id_of(error: RequestError) -> Id:
    """The id with which to answer an error of ``parse``; None if it could not be read."""
    return error.key if isinstance(error, _InvalidMessage) else None


# --- encoding ---------------------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()


def request(id: Id, method: str, params: Any = None) -> bytes:  # noqa: A002 - the specification's word
    """Encode a call."""
    body = {"jsonrpc": "2.0", "id": id, "method": method}
    return _encoder.encode(body if params is None else {**body, "params": params})


def notification(method: str, params: Any = None) -> bytes:
    """Encode a notification."""
    body = {"jsonrpc": "2.0", "method": method}
    return _encoder.encode(body if params is None else {**body, "params": params})


def result(id: Id, value: Any) -> bytes:  # noqa: A002
    """Encode a result; ``value`` is anything that msgspec can encode."""
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "result": value})


def result_raw(id: Id, raw: bytes) -> bytes:  # noqa: A002
    """Encode a result that is JSON already; ``raw`` is trusted to be valid."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encoder.encode(id), raw)


def error(id: Id, code: int, message: str, data: Any = None) -> bytes:  # noqa: A002
    """Encode an error."""
    body = {"code": code, "message": message}
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "error": body if data is None else {**body, "data": data}})


def error_of(id: Id, exc: BaseException) -> bytes:  # noqa: A002
    """Encode an exception: an ``Agent3Error`` in full, any other only as ``Internal error``."""
    if not isinstance(exc, Agent3Error):
        return error(id, INTERNAL_ERROR, "Internal error")
    known = exc.to_dict()
    message, extra = known.pop("message"), known.pop("data", {})
    return error(id, exc.rpc_code, message, {**extra, **known})


# --- server-sent events -----------------------------------------------------------------------------------------------

_LINE_ENDS = re.compile(rb"\r\n|\r|\n")


def encode_event(data: bytes, *, id: str | None = None, event: str | None = None, retry: int | None = None) -> bytes:  # noqa: A002
    """Encode one frame. A line break in ``id`` or ``event`` would start another field, so it raises ValueError."""
    lines = [b"data: " + line for line in _LINE_ENDS.split(data)]
    for name, text in (("event", event), ("id", id)):
        if text is None:
            continue
        if any(mark in text for mark in "\r\n\0"):
            raise ValueError(f"The {name} of an event must be one line without NUL, got {text[:64]!r}")
        lines.insert(0, f"{name}: {text}".encode())
    if retry is not None:
        lines.insert(0, b"retry: %d" % retry)
    return b"\n".join(lines) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as received; ``id`` belongs to this frame and is None if it has none."""

    data: bytes
    id: str | None = None
    event: str | None = None
    retry: int | None = None


class SSEParser:
    """Parses frames from bytes that arrive in arbitrary pieces, by the rules of the HTML standard.

    Frames without data are dropped, unless they carry an id or a retry, which a reader has to remember. An event
    that grows beyond ``limit`` bytes raises TooLarge.
    """

    def __init__(self, limit: int = 4 << 20):
        self._limit = limit
        self._rest = bytearray()
        self._start = True
        self._after_cr = False
        self._size = 0
        self._fields: dict[str, str] = {}
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take a piece; return the frames that it completes."""
        if self._after_cr and chunk:
            # The CR already ended a line; an LF at the start of the next piece belongs to it.
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        self._rest += chunk
        frames: list[Frame] = []
        if b"\n" in chunk or b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            *lines, last = _LINE_ENDS.split(bytes(self._rest))
            self._rest = bytearray(last)
            frames = [frame for line in lines if (frame := self._take_line(line)) is not None]
        self._check_size(len(self._rest))
        return frames

    def _take_line(self, line: bytes) -> Frame | None:
        if self._start:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._start = False
        if line:
            self._size += len(line)
            self._check_size(0)
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name in (b"event", b"id", b"retry"):
                self._fields[name.decode()] = value.decode(errors="replace")
            return None
        frame = None
        if self._data or self._fields.keys() & {"id", "retry"}:
            key, retry = self._fields.get("id"), self._fields.get("retry", "")
            frame = Frame(
                b"\n".join(self._data),
                None if key is None or "\0" in key else key,
                self._fields.get("event") or None,
                int(retry) if retry.isascii() and retry.isdigit() and len(retry) < 16 else None,
            )
        self._size, self._fields, self._data = 0, {}, []
        return frame

    def _check_size(self, more: int) -> None:
        if self._size + more > self._limit:
            raise TooLarge(f"An event of the stream has more than {self._limit} bytes")


def is_event_stream(content_type: str | None) -> bool:
    """Whether a Content-Type header announces server-sent events."""
    return (content_type or "").partition(";")[0].strip().lower() == "text/event-stream"


# --- HTTP -------------------------------------------------------------------------------------------------------------

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientLeft(ConnectionResetError):
    """The client is gone: there is nobody to answer, and nothing to complain about."""


async def read_body(receive: Receive, limit: int = LIMITS.body, timeout: float = 30.0) -> bytes:
    """Read the body of an ASGI request. Raises TooLarge beyond ``limit`` bytes, TooSlow after ``timeout`` seconds.

    Raises ClientLeft when the client disconnects before the end.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft("The client disconnected before its body was complete")
                piece = message.get("body", b"")
                size += len(piece)
                if size > limit:
                    raise TooLarge(f"The body has more than {limit} bytes; send less, or an artifact")
                pieces.append(piece)
                if not message.get("more_body", False):
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except TimeoutError:
        raise TooSlow(f"The body did not arrive within {timeout:g} s; send it faster, or send less") from None


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected. For use after the body was read: anything else is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


def parse_retry_after(header: str | None, now: float, longest: float = 86_400.0) -> float | None:
    """The seconds of a Retry-After header (RFC 9110, 10.2.3), from 0 to ``longest``; None if it cannot be read.

    Both forms are understood: a number of seconds, also with a fraction, and a date, which is compared to ``now``.
    """
    text = (header or "").strip()
    with suppress(ValueError):
        seconds = float(text)
        return None if math.isnan(seconds) else min(max(seconds, 0.0), longest)
    with suppress(ValueError, OverflowError):
        moment = parsedate_to_datetime(text)
        # A date that names no zone is in UTC, not in the zone of this machine.
        seconds = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() - now
        return min(max(seconds, 0.0), longest)
    return None
