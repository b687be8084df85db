"""Compression at every HTTP door: large answers packed for clients that accept it, packed requests unpacked.

Answers are packed whole, never streams of events. Requests are unpacked within the limit that plain bodies have. Both
are done in a thread when they are large, so that the event loop is not held.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent3 import jsonrpc
from agent3.errors import Agent3Error, EncodingNotSupported, ParseError, TooLarge
from agent3.gateway.http import error_response

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["PackAnswers", "UnpackRequests", "choose_encoding", "pack", "unpack"]

_HELD = 32_768
"""Bytes that are packed in a fraction of a millisecond; more goes to a thread."""
_GZIP_LEVEL, _ZSTD_LEVEL = 4, 3
_GZIP = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW = 23
"""A frame names how much memory unpacking it takes, as a power of two: 8 MiB, as RFC 8878 recommends, and no more."""
_LONGEST_HEADER = 1_000
_PACKABLE = ("application/json", "text/", "application/javascript", "application/xml")
_NO_STREAM = "text/event-stream"


# Encodings


@lru_cache(maxsize=256)
def _parse_accepted(header: bytes) -> str | None:
    quality: dict[str, float] = {}
    for entry in header.decode("latin-1").lower().split(","):
        name, _, parameter = entry.partition(";")
        _, _, value = parameter.partition("q=")
        try:
            quality[name.strip()] = float(value) if value else 1.0
        except ValueError:
            quality[name.strip()] = 0.0
    default = quality.get("*", 0.0)
    wanted = {name: quality.get(name, default) for name in ("zstd", "gzip")}
    best = max(wanted, key=lambda name: wanted[name])  # zstd if both are as welcome
    return best if wanted[best] > 0 else None


def choose_encoding(header: bytes | None) -> str | None:
    """How to pack an answer for a client that sent this Accept-Encoding; None for not at all."""
    return _parse_accepted(header) if header and len(header) <= _LONGEST_HEADER else None


def _pack(body: bytes, encoding: str) -> bytes:
    if encoding == "zstd":
        return zstd.compress(body, _ZSTD_LEVEL)
    packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP)
    return packer.compress(body) + packer.flush()


async def pack(body: bytes, encoding: str) -> bytes:
    """The body in an encoding that ``choose_encoding`` gave."""
    return _pack(body, encoding) if len(body) <= _HELD else await asyncio.to_thread(_pack, body, encoding)


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """The plain body. TooLarge beyond ``limit`` bytes, of which no more are unpacked; ParseError for damaged ones."""
    try:
        if encoding == "zstd":
            unpacker = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW})
            plain = unpacker.decompress(body, limit + 1)
            ended, rest = unpacker.eof, unpacker.unused_data
        else:
            # What is called deflate is a zlib stream (RFC 9110, 8.4.1.2); some send the bare one.
            bare = encoding == "deflate" and (len(body) < 2 or (body[0] << 8 | body[1]) % 31 or body[0] & 15 != 8)
            wbits = _GZIP if encoding == "gzip" else -zlib.MAX_WBITS if bare else zlib.MAX_WBITS
            inflater = zlib.decompressobj(wbits)
            plain = inflater.decompress(body, limit + 1)
            ended, rest = inflater.eof, inflater.unused_data
    except (zlib.error, zstd.ZstdError):
        raise ParseError(f"The body is not {encoding}, although Content-Encoding says so.") from None
    if len(plain) > limit:
        raise TooLarge(f"The decompressed body has more than {limit} bytes; send less, or an artifact")
    if not ended or rest:
        raise ParseError(f"The body is not a complete {encoding} stream.")
    return plain


_UNPACKED = ("gzip", "deflate", "zstd")


# Requests


def _find(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)


class UnpackRequests:
    """An app in front of others that unpacks request bodies. 415 for unknown encodings, 413 for what grows too large.

    It stands behind the check of signatures, which cover the body as it was sent.
    """

    def __init__(self, app: ASGIApp, *, limit: int, seconds: float):
        self._app = app
        self._limit = limit
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoding = _find(scope["headers"], b"content-encoding") if scope["type"] == "http" else None
        if encoding is None or (name := encoding.decode("latin-1").strip().lower()) == "identity":
            await self._app(scope, receive, send)
            return
        name = name.removeprefix("x-")
        try:
            if name not in _UNPACKED:
                raise EncodingNotSupported(
                    f"Content-Encoding {name[:40]!r} is not supported. Use {', '.join(_UNPACKED)}, or none."
                )
            packed = await jsonrpc.read_body(receive, self._limit, self._seconds)
            body = await asyncio.to_thread(unpack, packed, name, self._limit)
        except jsonrpc.ClientLeft:
            return
        except Agent3Error as error:
            answer = error_response(error)
            answer.headers["Accept-Encoding"] = ", ".join(_UNPACKED)
            await answer(scope, receive, send)
            return
        dropped = (b"content-encoding", b"content-length", b"transfer-encoding")
        headers = [(key, value) for key, value in scope["headers"] if key not in dropped]
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        plain = {**scope, "headers": [*headers, (b"content-length", b"%d" % len(body))]}
        await self._app(plain, replay, send)


# Answers


class PackAnswers:
    """An app in front of others that packs answers of at least ``least`` bytes that come in one piece."""

    def __init__(self, app: ASGIApp, *, least: int):
        self._app = app
        self._least = least

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoding = choose_encoding(_find(scope["headers"], b"accept-encoding")) if scope["type"] == "http" else None
        if encoding is None:
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Packing(send, encoding, self._least))


class _Packing:
    """Takes the messages of one answer. Its start waits for the body, which decides how it is sent."""

    def __init__(self, send: Send, encoding: str, least: int):
        self._send = send
        self._encoding = encoding
        self._least = least
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if _is_packable(message):
                self._start = message
            else:
                await self._send(message)
            return
        start, self._start = self._start, None
        if start is not None:
            body = message.get("body", b"")
            if not message.get("more_body", False) and len(body) >= self._least:
                body = await pack(body, self._encoding)
                start = {**start, "headers": _packed_headers(start["headers"], self._encoding, len(body))}
                message = {**message, "body": body}
            await self._send(start)
        await self._send(message)


def _is_packable(start: Message) -> bool:
    headers: dict[bytes, bytes] = {name.lower(): value for name, value in start["headers"]}
    kind = headers.get(b"content-type", b"").decode("latin-1").lower()
    return (start["status"] == 200 or start["status"] >= 400) and (
        (kind.startswith(_PACKABLE) or kind.partition(";")[0].endswith(("+json", "+xml")))
        and not kind.startswith(_NO_STREAM)
        and b"content-encoding" not in headers
        and b"no-transform" not in headers.get(b"cache-control", b"")
    )


def _packed_headers(headers: Sequence[tuple[bytes, bytes]], encoding: str, length: int) -> list[tuple[bytes, bytes]]:
    kept: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        match name.lower():
            case b"content-length":
                continue
            case b"etag" if not value.startswith(b"W/"):
                kept.append((name, b"W/" + value))  # other bytes than those that the tag was made for
            case _:
                kept.append((name, value))
    return [
        *kept,
        (b"content-encoding", encoding.encode()),
        (b"content-length", b"%d" % length),
        (b"vary", b"Accept-Encoding"),
    ]
