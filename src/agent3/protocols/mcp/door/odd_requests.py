"""Requests as clients really send them: what is odd and clear is put right before the SDK judges it.

Media types in other cases, an ``Accept`` that names half of what the protocol asks for, a byte order mark, an
``initialize`` that leaves something out, a notification with an id. What is wrong and would be lost without a word,
such as a call with the id ``null``, is refused with what to do. Security is not judged here: content types of simple
browser requests stay as they are, and so do Host and Origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.types import Message, Send

from agent3 import jsonrpc
from agent3.errors import RequestError
from agent3.model import encode

__all__ = ["WholeAnswer", "mend_body", "mend_headers"]

_JSON, _STREAM = b"application/json", b"text/event-stream"
_BOTH = _JSON + b", " + _STREAM
_OLDEST_WITH_HTTP = "2025-03-26"
"""The version of a client that names none, as the protocol says for its requests."""
_INTRODUCTION = {"protocolVersion": _OLDEST_WITH_HTTP, "capabilities": {}, "clientInfo": {}}

Headers = Sequence[tuple[bytes, bytes]]


def mend_headers(headers: Headers) -> tuple[Headers, str]:
    """The headers of a POST with the usual media types, and what the client takes: ``json``, ``stream`` or ``both``."""
    accepts = [value for name, value in headers if name == b"accept"]
    kinds = {kind.partition(b";")[0].strip().lower() for value in accepts for kind in value.split(b",")} - {b""}
    takes_json = not kinds or bool(kinds & {_JSON, b"application/*", b"*/*"})
    takes_stream = bool(kinds & {_STREAM, b"text/*", b"*/*"})
    mended = []
    for name, value in headers:
        if name == b"content-type" and value.partition(b";")[0].strip().lower() == _JSON:
            value = _JSON
        if name != b"accept" or not (takes_json or takes_stream):
            mended.append((name, value))
    if takes_json or takes_stream:
        mended.append((b"accept", _BOTH))
    return mended, "json" if not takes_stream else "both" if takes_json else "stream"


def mend_body(body: bytes) -> tuple[bytes, bytes | None]:
    """The message as the SDK takes it, and the answer to a notification that has an id. RequestError if it is wrong.

    The body is within bounds (``jsonrpc.check_bytes``). One with nothing to mend is returned itself.
    """
    try:
        message = msgspec.json.decode(body)
    except msgspec.ValidationError as error:  # a number that no float holds, such as the id 1e400
        raise RequestError(f"This message cannot be read: {error}.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return body, None  # the SDK says what is wrong
    if not isinstance(message, dict) or not isinstance(method := message.get("method"), str):
        return body, None
    if message.get("jsonrpc") != "2.0":
        raise RequestError('This is not a JSON-RPC 2.0 message: it must have "jsonrpc": "2.0".')
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        raise RequestError("The params of a message must be an object, with a value for each name.")
    if "id" not in message:
        return body, None
    key = message["id"]
    if isinstance(key, float) and key.is_integer():
        key = int(key)
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise RequestError("The id of a request must be a string or an integer; a notification has none.")
    if method.startswith("notifications/"):
        del message["id"]
        return encode(message), jsonrpc.result(key, {})
    given = {"id": key, **({"params": _introduce(params or {})} if method == "initialize" else {})}
    return encode(message | given), None


def _introduce(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of ``initialize``, with what a client left out."""
    found = _INTRODUCTION | {name: value for name, value in params.items() if value is not None}
    if isinstance(about := found["clientInfo"], dict):
        found["clientInfo"] = {"name": "unknown", "version": "", **about}
    return found


class _Sent(Struct):
    """A message of the server: one without a method is the answer."""

    method: str | UnsetType = UNSET


class WholeAnswer:
    """Sends the answer as JSON: of a stream its message alone, and ``instead`` of an empty answer."""

    def __init__(self, send: Send, instead: bytes | None = None):
        self._send = send
        self._instead = instead
        self._start: Message | None = None
        self._parser: jsonrpc.SSEParser | None = None
        self._is_done = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
            if message["status"] == 202 and self._instead is not None:
                self._start = {**message, "status": 200}
                await self._end(self._instead)
            elif jsonrpc.is_event_stream(kind.decode("latin-1")):
                self._start, self._parser = message, jsonrpc.SSEParser()
            else:
                await self._send(message)
        elif self._is_done:
            return
        elif self._parser is None:
            await self._send(message)
        else:
            for frame in self._parser.feed(message.get("body", b"")):
                if frame.data and msgspec.json.decode(frame.data, type=_Sent).method is UNSET:
                    await self._end(frame.data)
            if not message.get("more_body", False):
                await self._end(jsonrpc.error(None, jsonrpc.INTERNAL_ERROR, "The stream ended without an answer."))

    async def _end(self, body: bytes) -> None:
        if self._is_done:
            return
        self._is_done = True
        assert self._start is not None
        left_out = {b"content-type", b"content-length", b"cache-control", b"connection"}
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() not in left_out]
        headers += [(b"content-type", _JSON), (b"content-length", b"%d" % len(body))]
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
