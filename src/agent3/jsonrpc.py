"""JSON-RPC 2.0 on bytes, server-sent events, and the ends of an HTTP exchange; for every protocol alike.

Bytes are capped and scanned for depth before anything recursive meets them, envelopes are checked to the letter, and
every error has the code that the specification gives it. It knows no method, no session and no transport; a hang-up
is reported, and the door decides what it means.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from agent3.errors import Agent3Error, MethodNotFound, ParseError, RequestError, TooLarge, TooSlow

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "LIMITS",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "Dispatcher",
    "Frame",
    "Hangup",
    "Id",
    "Limits",
    "Message",
    "Request",
    "Response",
    "SSEParser",
    "check_bytes",
    "decode",
    "error",
    "error_of",
    "hung_up",
    "id_of",
    "notification",
    "parse",
    "read_body",
    "request",
    "result",
    "result_raw",
    "sse",
    "with_hangup",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

Id: TypeAlias = str | int | None
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What is taken: bytes of a body, nested containers, values in all, digits of a number, messages of a batch.

    ``batch`` 0 refuses batches altogether. ``strict`` is for signed messages: duplicate keys and integers beyond
    ±(2^53 - 1) mean different things to different readers, so neither is taken.
    """

    body: int = 1 << 20
    depth: int = 64
    nodes: int = 10_000
    digits: int = 64
    batch: int = 0
    strict: bool = False


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Request:
    """A call, or with ``id`` UNSET a notification."""

    method: str
    params: dict[str, Any] | list[Any] | None = None
    id: Id | UnsetType = UNSET

    @property
    def is_notification(self) -> bool:
        return isinstance(self.id, UnsetType)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: a result, or ``error`` with code, message and perhaps data."""

    id: Id
    result: Any = UNSET
    error: dict[str, Any] | None = None


Message: TypeAlias = Request | Response


# Bytes to values.

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {code: 1 if code in b"[{" else -1 for code in b"[]{}"}
_SAFE = 2**53 - 1
_DIGITS = bytes(ord("0") if code in b"0123456789+.eE-" else ord(" ") for code in range(256))


def check_bytes(body: bytes, limits: Limits = LIMITS) -> None:
    """Refuse what is too long, too deep or of too many values, without decoding it. Raises TooLarge.

    Counting every bracket and comma, also those in texts, can only find too many: most bodies pass by that alone.
    """
    if len(body) > limits.body:
        raise TooLarge(f"The body has {len(body)} bytes, more than {limits.body}; send less, or an artifact")
    opened = body.count(b"[") + body.count(b"{")
    if opened > limits.depth or opened + body.count(b",") >= limits.nodes:
        _check_structure(_STRINGS.sub(b"0", body), limits)
    _check_digits(body, limits)


def _check_structure(bare: bytes, limits: Limits) -> None:
    """The exact check, on JSON without its texts."""
    if bare.count(b"[") + bare.count(b"{") + bare.count(b",") >= limits.nodes:
        raise TooLarge(f"The body holds more than {limits.nodes} values; send it in parts")
    brackets = bare.translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > limits.depth:
        raise TooLarge(f"The body is nested deeper than {limits.depth} levels; send it flatter")


def _check_digits(body: bytes, limits: Limits) -> None:
    least = limits.digits + 1
    # Two passes of the processor's own speed say of almost every body that it has no such run of characters.
    if len(body) < least or b"0" * least not in body.translate(_DIGITS):
        return
    long = _long_number(least)
    if long.search(body) and long.search(_STRINGS.sub(b"0", body)):
        raise TooLarge(f"The body holds a number of more than {limits.digits} characters; send it as a text")


@lru_cache(maxsize=16)
def _long_number(least: int) -> re.Pattern[bytes]:
    # Only the start of a run is tried, or a body of almost long numbers would be scanned once per digit.
    return re.compile(rb"(?<![0-9+.eE-])[0-9+.eE-]{%d}" % least)


def decode(body: bytes, limits: Limits = LIMITS) -> Any:
    """The value of JSON bytes. Raises ParseError, or TooLarge before anything is decoded."""
    check_bytes(body, limits)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as reason:
        raise ParseError(f"The body is not JSON: {reason}") from None
    except RecursionError:
        raise TooLarge("The body is nested too deep; send it flatter") from None
    if limits.strict:
        _decode_strictly(body)
    return value


def _decode_strictly(body: bytes) -> None:
    json.loads(body.decode(), object_pairs_hook=_without_duplicates, parse_int=_safe_integer)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise RequestError(f"The key {twice[:64]!r} stands twice in one object; a signed message must be unambiguous")
    return found


def _safe_integer(text: str) -> int:
    number = int(text)
    if abs(number) > _SAFE:
        raise RequestError(f"The integer {text[:64]} is beyond ±(2^53 - 1) in a signed message; send it as a text")
    return number


# Values to messages.


def parse(body: bytes, limits: Limits = LIMITS) -> Message | list[Message | RequestError]:
    """The message in a body, or the messages of a batch, where a wrong one is the error that it earns.

    Raises ParseError (-32700) for what is not JSON and RequestError (-32600) for what is no JSON-RPC 2.0; TooLarge
    is one of the latter. ``id_of`` gives the id to answer them with.
    """
    value = decode(body, limits)
    return _batch(value, limits) if isinstance(value, list) else _message(value)


def _batch(values: list[Any], limits: Limits) -> list[Message | RequestError]:
    if not limits.batch:
        raise RequestError("Batches are not taken here; send one message per request")
    if not values:
        raise RequestError("The batch is empty; send at least one message")
    if len(values) > limits.batch:
        raise TooLarge(f"The batch has {len(values)} messages, more than {limits.batch}; send several")
    return [_message_or_error(value) for value in values]


def _message_or_error(value: Any) -> Message | RequestError:
    try:
        return _message(value)
    except RequestError as wrong:
        return wrong


def _message(value: Any) -> Message:
    if not isinstance(value, dict):
        raise RequestError(f"A message must be an object, got {type(value).__name__}")
    key = value.get("id", UNSET)
    if key is not UNSET and (isinstance(key, bool) or not isinstance(key, (str, int, type(None)))):
        raise RequestError(f"The id must be a string, an integer or null, got {type(key).__name__}")
    if value.get("jsonrpc") != "2.0":
        _refuse(key, 'The message must say "jsonrpc": "2.0"')
    return _request(value, key) if "method" in value else _response(value, key)


def _request(value: dict[str, Any], key: Id | UnsetType) -> Request:
    method, params = value["method"], value.get("params")
    if not isinstance(method, str):
        _refuse(key, f"The method must be a string, got {type(method).__name__}")
    if "params" in value and not isinstance(params, (dict, list)):
        _refuse(key, f"The params must be an object or an array, got {type(params).__name__}")
    if "result" in value or "error" in value:
        _refuse(key, "A message with a method has neither result nor error")
    return Request(method, params, key)


def _response(value: dict[str, Any], key: Id | UnsetType) -> Response:
    if isinstance(key, UnsetType) or ("result" in value) == ("error" in value):
        _refuse(key, "A message must have a method, or else an id and either a result or an error")
    failure = value.get("error")
    if "error" in value and not _is_error(failure):
        _refuse(key, "The error must be an object with an integer code and a message")
    return Response(key, value.get("result", UNSET), failure)


def _is_error(failure: Any) -> bool:
    return (
        isinstance(failure, dict)
        and isinstance(failure.get("code"), int)
        and not isinstance(failure["code"], bool)
        and isinstance(failure.get("message"), str)
    )


class _WrongMessage(RequestError):
    """A message that is wrong, but whose id could be read."""

    def __init__(self, message: str, key: Id):
        super().__init__(message)
        self.key = key


def _refuse(key: Id | UnsetType, message: str) -> NoReturn:
    raise _WrongMessage(message, None if isinstance(key, UnsetType) else key)


def id_of(wrong: RequestError) -> Id:
    """The id to answer an error of ``parse`` with; null where it could not be read."""
    return wrong.key if isinstance(wrong, _WrongMessage) else None


# Messages to bytes.

_encoder = msgspec.json.Encoder()


def request(id: Id, method: str, params: Any = None) -> bytes:  # noqa: A002 - the specification's word
    """The bytes of a call."""
    return _encoder.encode({"jsonrpc": "2.0", "id": id, **_call(method, params)})


def notification(method: str, params: Any = None) -> bytes:
    """The bytes of a notification."""
    return _encoder.encode({"jsonrpc": "2.0", **_call(method, params)})


def _call(method: str, params: Any) -> dict[str, Any]:
    return {"method": method} if params is None else {"method": method, "params": params}


def result(id: Id, value: Any) -> bytes:  # noqa: A002
    """The bytes of an answer; ``value`` is anything that msgspec encodes."""
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "result": value})


def result_raw(id: Id, raw: bytes) -> bytes:  # noqa: A002
    """The bytes of an answer whose result is JSON already; it is trusted to be."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encoder.encode(id), raw)


def error(id: Id, code: int, message: str, data: Any = None) -> bytes:  # noqa: A002
    """The bytes of a failure."""
    body = {"code": code, "message": message}
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "error": body if data is None else {**body, "data": data}})


def error_of(id: Id, exc: BaseException) -> bytes:  # noqa: A002
    """The bytes of an exception: one of ours in full, of any other only that it happened."""
    if not isinstance(exc, Agent3Error):
        return error(id, INTERNAL_ERROR, "Internal error")
    known = exc.to_dict()
    message, extra = known.pop("message"), known.pop("data", {})
    return error(id, exc.rpc_code, message, {**extra, **known})


# Dispatch.

Method: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


class Dispatcher:
    """Answers bodies: finds the method, awaits it with ``(params, context)`` and wraps what it returns or raises.

    A handler may return ``msgspec.Raw`` for a result that is JSON already. Cancelling a dispatch cancels its
    handlers, those of a batch too. ``failed`` is told of every exception that is not ours, since the caller is not.
    """

    def __init__(self, limits: Limits = LIMITS, failed: Callable[[str, Exception], None] | None = None):
        self._limits = limits
        self._failed = failed
        self._methods: dict[str, Method] = {}

    def register(self, method: str, handler: Method) -> None:
        """Give a method its handler; a second one is a mistake and refused."""
        if method in self._methods:
            raise ValueError(f"The method {method!r} has a handler already")
        self._methods[method] = handler

    async def dispatch(self, body: bytes, context: Any = None) -> bytes | None:
        """The answer to a body; None where nothing is to be answered: notifications and responses."""
        try:
            message = parse(body, self._limits)
        except RequestError as wrong:
            return error_of(id_of(wrong), wrong)
        if not isinstance(message, list):
            return await self._answer(message, context)
        return await self._answer_all(message, context)

    async def _answer_all(self, messages: list[Message | RequestError], context: Any) -> bytes | None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer(message, context)) for message in messages]
        answers = [answer for answer in (task.result() for task in tasks) if answer is not None]
        return b"[" + b",".join(answers) + b"]" if answers else None

    async def _answer(self, message: Message | RequestError, context: Any) -> bytes | None:
        if isinstance(message, RequestError):
            return error_of(id_of(message), message)
        if isinstance(message, Response):
            return None
        answer = await self._run(message, context)
        return None if message.is_notification else answer

    async def _run(self, message: Request, context: Any) -> bytes:
        key = None if isinstance(message.id, UnsetType) else message.id
        try:
            handler = self._methods.get(message.method)
            if handler is None:
                raise MethodNotFound(f"There is no method {message.method[:100]!r} here")
            value = await handler(message.params, context)
            return result_raw(key, bytes(value)) if isinstance(value, Raw) else result(key, value)
        except Agent3Error as known:
            return error_of(key, known)
        except Exception as unknown:  # noqa: BLE001 - the boundary: reported to ``failed``, hidden from the caller
            if self._failed is not None:
                self._failed(message.method, unknown)
            return error_of(key, unknown)


# Server-sent events.

_LINE_ENDS = re.compile(rb"\r\n|\r|\n")


def sse(data: bytes, *, id: str | None = None, event: str | None = None, retry: int | None = None) -> bytes:  # noqa: A002
    """One frame. A line break in ``id`` or ``event``, which would start a field of its own, is refused."""
    lines = [b"data: " + line for line in _LINE_ENDS.split(data)]
    if event is not None:
        lines.insert(0, b"event: " + _one_line(event, "event"))
    if id is not None:
        lines.insert(0, b"id: " + _one_line(id, "id"))
    if retry is not None:
        lines.insert(0, b"retry: %d" % retry)
    return b"\n".join(lines) + b"\n\n"


def _one_line(text: str, field: str) -> bytes:
    if any(mark in text for mark in "\r\n\0"):
        raise ValueError(f"The {field} of an event must be one line without NUL, got {text[:64]!r}")
    return text.encode()


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it arrived; ``id`` is that of this frame, None if it had none."""

    data: bytes
    id: str | None = None
    event: str | None = None
    retry: int | None = None


class SSEParser:
    """Frames from bytes in any pieces, by the rules of the HTML standard.

    Frames without data are dropped, unless they carry an id or a retry, which a reader has to remember. An event
    that never ends raises TooLarge at ``limit`` bytes.
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
        """The frames that this piece completes."""
        if self._after_cr and chunk:
            # The CR ended a line already; an LF that comes in the next piece belongs to it.
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        self._rest += chunk
        frames: list[Frame] = []
        if b"\n" in chunk or b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            *lines, last = _LINE_ENDS.split(bytes(self._rest))
            self._rest = bytearray(last)
            for line in lines:
                self._line(line, frames)
        self._bound(len(self._rest))
        return frames

    def _bound(self, more: int) -> None:
        if self._size + more > self._limit:
            raise TooLarge(f"An event of the stream has more than {self._limit} bytes")

    def _line(self, line: bytes, frames: list[Frame]) -> None:
        if self._start:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._start = False
        if line:
            self._size += len(line)
            self._bound(0)
            self._field(line)
            return
        if self._data or self._fields.keys() & {"id", "retry"}:
            frames.append(self._frame())
        self._size, self._fields, self._data = 0, {}, []

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name in (b"event", b"id", b"retry"):
            self._fields[name.decode()] = value.decode(errors="replace")

    def _frame(self) -> Frame:
        key, retry = self._fields.get("id"), self._fields.get("retry", "")
        return Frame(
            b"\n".join(self._data),
            None if key is None or "\0" in key else key,
            self._fields.get("event") or None,
            int(retry) if retry.isascii() and retry.isdigit() and len(retry) < 16 else None,
        )


# The two ends of an HTTP exchange, as ASGI tells of them.

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def read_body(receive: Receive, limit: int = LIMITS.body, timeout: float = 30.0) -> bytes:
    """The whole body of a request. Raises TooLarge at ``limit`` bytes, TooSlow after ``timeout`` seconds in all.

    Raises ConnectionResetError when the client leaves in the middle.
    """
    try:
        async with asyncio.timeout(timeout):
            return await _read(receive, limit)
    except TimeoutError:
        raise TooSlow(f"The body did not arrive within {timeout:g} s; send it faster, or less of it") from None


async def _read(receive: Receive, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("The client left before its body was complete")
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise TooLarge(f"The body has more than {limit} bytes; send less, or an artifact")
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def hung_up(receive: Receive) -> None:
    """Return when the client has gone. Only after the body was read: what comes before is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class Hangup(Generic[T]):
    """The client went away first. ``work`` goes on until the door awaits it, lets it be, or cancels it."""

    work: asyncio.Task[T]


async def with_hangup(receive: Receive, work: Awaitable[T]) -> T | Hangup[T]:
    """Run ``work``; its value or exception as it is, or a Hangup if the client leaves first.

    The work is never cancelled by a hang-up, for what that means differs by protocol: a modern MCP door cancels
    ``hangup.work``, one that must only detach keeps a reference to it. Cancelling this call cancels the work, since
    then nobody is left who could decide.
    """
    task = asyncio.ensure_future(_awaited(work))
    watch = asyncio.ensure_future(hung_up(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _stopped(watch)
        await _stopped(task)
        raise
    if task.done():
        await _stopped(watch)
        return task.result()
    watch.exception()  # a connection that fails to listen is gone as well
    return Hangup(task)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _stopped(task: asyncio.Future[Any]) -> None:
    """Cancel and wait, whatever it ends with."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
