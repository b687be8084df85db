"""The only way out for a browser: a forward proxy on loopback that asks a guard before every connection.

It speaks CONNECT (https and every WebSocket) and the absolute form (http), one request per connection, and connects
only to the addresses that the guard returns. It knows no browser and no rules. It has no password: what it lets through
are one website's hosts, which any local process could reach without it.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent3.errors import Agent3Error, SecurityError
from agent3.protocols.nlweb.browser.sandbox import Address

__all__ = ["GuardedProxy", "Request"]

Admit = Callable[[str, int], Awaitable[Sequence[Address]]]

_HEAD_LIMIT = 65_536
_HEAD_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
_CHUNK = 65_536
_KEPT = 100
_PHRASES = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}
# Hop-by-hop headers (RFC 9110, 7.6.1) concern the browser and us, not the site. Host is written from the judged target.
_HOP_BY_HOP = frozenset({b"connection", b"proxy-connection", b"keep-alive"})
_NOT_FORWARDED = _HOP_BY_HOP | {b"proxy-authorization", b"host"}
_HEAD = re.compile(rb"HTTP/.*?\r?\n\r?\n", re.DOTALL)
_INTERIM = re.compile(rb"HTTP/\S+ 1\d\d")
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:@/\\\s]+))(?::(?P<port>\d{1,5}))?")
_ABSOLUTE = re.compile(r"http://(?P<netloc>[^/?#\\]+)(?P<path>[/?]?[^#]*)")


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a browser's request. ``head`` is what the site gets to see; it is empty for a tunnel."""

    host: str
    port: int
    head: bytes = b""
    length: int = 0

    @classmethod
    def parse(cls, raw: bytes) -> Request:
        """From the bytes up to the blank line; ValueError says what is wrong with them."""
        first, *lines = raw.rstrip(b"\r\n").split(b"\r\n")
        method, target, version = first.decode("ascii").split(" ")
        if method == "CONNECT":
            return cls(*_parse_authority(target))
        url = _ABSOLUTE.fullmatch(target)
        if url is None:
            raise ValueError("only http is accepted in absolute form; https must use CONNECT")
        path = url["path"] if url["path"].startswith("/") else f"/{url['path']}"
        forwarded = [f"{method} {path} {version}\r\nHost: {url['netloc']}\r\nConnection: close".encode("ascii")]
        lengths: set[bytes] = set()
        for line in lines:
            name, colon, value = line.partition(b":")
            # A folded or indented line could hide a header from us that the site then sees.
            if not colon or not name or name != name.strip():
                raise ValueError("a header line without a name")
            lowered = name.lower()
            if lowered == b"transfer-encoding":
                # Browsers announce the length. With a chunked body, two readers could disagree about where it ends.
                raise ValueError("a body without Content-Length")
            if lowered == b"content-length":
                lengths.add(value.strip())
            if lowered not in _NOT_FORWARDED:
                forwarded.append(name + b":" + value)
        if len(lengths) > 1:
            raise ValueError("two Content-Length headers")
        length = lengths.pop() if lengths else b"0"
        if not length.isdigit():  # int() also takes -1, and a negative length would forward all that follows
            raise ValueError("a Content-Length that is not a number")
        return cls(*_parse_authority(url["netloc"], 80), b"\r\n".join([*forwarded, b"", b""]), int(length))


def _parse_authority(text: str, default_port: int = 0) -> Address:
    match = _AUTHORITY.fullmatch(text)
    if match is None or not (match["port"] or default_port):
        raise ValueError(f"{text!r} is not host:port")
    return (match["v6"] or match["name"]).lower(), int(match["port"] or default_port)


class GuardedProxy:
    """A proxy for one context.

    ``refused`` holds the last hosts that were refused, newest last, and ``unreached`` those that could not be reached,
    each with a readable reason; ``refusals`` and ``failures`` count them.
    """

    def __init__(self, admit: Admit):
        self.refused: deque[str] = deque(maxlen=_KEPT)
        self.refusals = 0
        self.unreached: deque[tuple[str, str]] = deque(maxlen=_KEPT)
        self.failures = 0
        self._admit = admit
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    async def start(self) -> str:
        """Listen on a free loopback port; the address for the browser."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def aclose(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._handle(reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # the browser or the site hung up
        except asyncio.CancelledError:
            pass  # by aclose; the streams of Python 3.11 would log a cancelled task as an error
        finally:
            self._connections.discard(task)
            await _close(writer)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Judge one request, connect, and carry bytes both ways until either side is done."""
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                request = Request.parse(await reader.readuntil(b"\r\n\r\n"))
        except (ValueError, asyncio.LimitOverrunError) as error:
            return await _respond(writer, 400, f"not a request that this proxy accepts: {error}")
        try:
            site_reader, site_writer = await self._connect(request)
        except SecurityError as error:
            self.refusals += 1
            self.refused.append(f"{request.host}:{request.port}")
            return await _respond(writer, 403, error.message)
        except (OSError, Agent3Error) as error:
            self.failures += 1
            self.unreached.append((f"{request.host}:{request.port}", _explain(error)))
            return await _respond(writer, 502, f"{request.host} could not be reached: {error}")
        try:
            if request.head:
                site_writer.write(request.head)
                await _run_until_one_ends(
                    _send_body(reader, site_writer, request.length), _return_response(site_reader, writer)
                )
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _run_until_one_ends(_copy(reader, site_writer), _copy(site_reader, writer))
        finally:
            await _close(site_writer)
        return None

    async def _connect(self, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the first judged address that answers."""
        failure: OSError = OSError("it has no address")
        async with asyncio.timeout(_CONNECT_SECONDS):
            for address, port in await self._admit(request.host, request.port):
                try:
                    return await asyncio.open_connection(address, port)
                except OSError as error:
                    failure = error
        raise failure


def _explain(error: OSError | Agent3Error) -> str:
    match error:
        case ConnectionRefusedError():
            return "it refused the connection: nothing listens there"
        case TimeoutError():
            return "it does not answer"
        case Agent3Error():
            return error.message
        case _:
            return (error.strerror or str(error) or type(error).__name__).lower()


async def _run_until_one_ends(*directions: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()


async def _send_body(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int) -> None:
    """Send exactly the announced body, then only watch for the hang-up.

    Anything more would be another request, perhaps for another host, and this connection was judged for one. Browsers
    send no other: ``_return_response`` tells them that the connection closes.
    """
    while length and (data := await source.read(min(length, _CHUNK))):
        length -= len(data)
        sink.write(data)
        await sink.drain()
    while await source.read(_CHUNK):
        pass


async def _return_response(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Return the site's response with ``Connection: close``, whatever the site says.

    Interim responses (1xx) pass unchanged. A head that never ends is passed on as it is.
    """
    pending = b""
    while len(pending) < _HEAD_LIMIT and (data := await source.read(_CHUNK)):
        pending += data
        while head := _HEAD.match(pending):
            pending = pending[head.end() :]
            if _INTERIM.match(head[0]):
                sink.write(head[0])
                continue
            end = b"\r\n" if b"\r\n" in head[0] else b"\n"
            status, *lines = head[0].rstrip(b"\r\n").split(end)
            kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _HOP_BY_HOP]
            sink.write(end.join([status, *kept, b"Connection: close", b"", b""]) + pending)
            await sink.drain()
            return await _copy(source, sink)
        await sink.drain()
    sink.write(pending)
    await sink.drain()
    return await _copy(source, sink)


async def _respond(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
