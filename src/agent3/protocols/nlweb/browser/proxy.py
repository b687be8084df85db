"""The only way out for a browser: a forward proxy on loopback that asks a guard before every connection.

It speaks CONNECT (https and every WebSocket) and the absolute form (http), one request per connection, and connects
only to the addresses that the guard hands over. It knows no browser and no rules. It has no password: what it lets
through is one website's hosts, which any local process could reach without it.
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
_REFUSALS_KEPT = 100
# Headers between the browser and us, not for the site (RFC 9110, 7.6.1); Host is written anew from the target.
_OURS = frozenset({b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"host"})
_HOPS = frozenset({b"connection", b"proxy-connection", b"keep-alive"})
_HEAD = re.compile(rb"HTTP/.*?\r?\n\r?\n", re.DOTALL)
_INTERIM = re.compile(rb"HTTP/\S+ 1\d\d")
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:@/\\\s]+))(?::(?P<port>\d{1,5}))?")
_ABSOLUTE = re.compile(r"http://(?P<netloc>[^/?#\\]+)(?P<path>[/?]?[^#]*)")


@dataclass(frozen=True, slots=True)
class Request:
    """The head of what a browser asks for. ``head`` is what the site gets to see; empty for a tunnel."""

    host: str
    port: int
    head: bytes = b""
    length: int = 0

    @classmethod
    def read(cls, raw: bytes) -> Request:
        """From the bytes up to the blank line; ValueError says what is wrong with them."""
        first, *lines = raw.rstrip(b"\r\n").split(b"\r\n")
        method, target, version = first.decode("ascii").split(" ")
        if method == "CONNECT":
            return cls(*_authority(target))
        netloc, path = _absolute(target)
        headers = [_header(line) for line in lines]
        start = f"{method} {path} {version}\r\nHost: {netloc}\r\nConnection: close\r\n".encode("ascii")
        passed = b"".join(name + b":" + value + b"\r\n" for name, value in headers if name.lower() not in _OURS)
        return cls(*_authority(netloc, 80), start + passed + b"\r\n", _length(headers))


class GuardedProxy:
    """A proxy for one browser.

    ``refused`` holds the last hosts that were turned away, newest last, and ``unreached`` those that could not be
    reached, each with the reason in words.
    """

    def __init__(self, admit: Admit):
        self._admit = admit
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self.refused: deque[str] = deque(maxlen=_REFUSALS_KEPT)
        self.refusals = 0
        self.unreached: deque[tuple[str, str]] = deque(maxlen=_REFUSALS_KEPT)
        self.failures = 0

    async def start(self) -> str:
        """Listen on a free port of loopback; the address for the browser."""
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
            await self._answer(reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # the browser or the site hung up: there is nobody left to tell
        finally:
            self._connections.discard(task)
            await _close(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                request = Request.read(await reader.readuntil(b"\r\n\r\n"))
        except (ValueError, asyncio.LimitOverrunError) as error:
            return await _say(writer, 400, f"not a request this proxy takes: {error}")
        try:
            upstream = await self._connect(request)
        except SecurityError as error:
            self._note(request)
            return await _say(writer, 403, error.message)
        except (OSError, Agent3Error) as error:
            self.failures += 1
            self.unreached.append((f"{request.host}:{request.port}", _why(error)))
            return await _say(writer, 502, f"{request.host} could not be reached: {error}")
        await _carry(request, (reader, writer), upstream)
        return None

    def _note(self, request: Request) -> None:
        self.refusals += 1
        self.refused.append(f"{request.host}:{request.port}")

    async def _connect(self, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The first judged address that answers."""
        failure: OSError = OSError("it has no address")
        async with asyncio.timeout(_CONNECT_SECONDS):
            for address, port in await self._admit(request.host, request.port):
                try:
                    return await asyncio.open_connection(address, port)
                except OSError as error:
                    failure = error
        raise failure


async def _carry(
    request: Request,
    browser: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    site: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Bytes both ways until either side is done."""
    try:
        if request.head:
            site[1].write(request.head)
            await _until_one_ends(_send_body(browser[0], site[1], request.length), _answer_back(site[0], browser[1]))
        else:
            browser[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _until_one_ends(_copy(browser[0], site[1]), _copy(site[0], browser[1]))
    finally:
        await _close(site[1])


async def _until_one_ends(*directions: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(one) for one in directions]
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
    """Exactly the announced body, then only watch for the hang-up.

    Anything more would be another request, perhaps for another host, and this connection was judged for one. The answer
    says that the connection ends with it, so that a browser sends no other.
    """
    while length and (data := await source.read(min(length, _CHUNK))):
        length -= len(data)
        sink.write(data)
        await sink.drain()
    while await source.read(_CHUNK):
        pass


async def _answer_back(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """The site's answer, which closes the connection whatever the site says: here, one takes one request.

    A head that never ends is handed on as it is; the browser knows best what to make of it.
    """
    seen = b""
    while len(seen) < _HEAD_LIMIT and (data := await source.read(_CHUNK)):
        seen += data
        while head := _HEAD.match(seen):
            sink.write(_closing(head[0]))
            seen = seen[head.end() :]
            if not _INTERIM.match(head[0]):
                sink.write(seen)
                await sink.drain()
                return await _copy(source, sink)
        await sink.drain()
    sink.write(seen)
    await sink.drain()
    return await _copy(source, sink)


def _closing(head: bytes) -> bytes:
    """The head of an answer with the one word on its connection that holds between the browser and us."""
    if _INTERIM.match(head):
        return head
    end = b"\r\n" if b"\r\n" in head else b"\n"
    first, *lines = head.rstrip(b"\r\n").split(end)
    kept = [one for one in lines if one.partition(b":")[0].strip().lower() not in _HOPS]
    return end.join([first, *kept, b"Connection: close", b"", b""])


def _why(error: OSError | Agent3Error) -> str:
    """Why a host could not be reached, in a person's words."""
    match error:
        case ConnectionRefusedError():
            return "it refused the connection: nothing listens there"
        case TimeoutError():
            return "it does not answer"
        case Agent3Error():
            return error.message
        case _:
            return (error.strerror or str(error) or type(error).__name__).lower()


async def _say(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    phrase = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}[status]
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()


def _authority(text: str, port: int = 0) -> Address:
    found = _AUTHORITY.fullmatch(text)
    if found is None or not (found["port"] or port):
        raise ValueError(f"{text!r} is not host:port")
    return (found["v6"] or found["name"]).lower(), int(found["port"] or port)


def _absolute(url: str) -> tuple[str, str]:
    """Authority and path of an address in absolute form, as a browser writes it: already in its exact form."""
    found = _ABSOLUTE.fullmatch(url)
    if found is None:
        raise ValueError("only http is taken in absolute form; https comes by CONNECT")
    return found["netloc"], found["path"] if found["path"].startswith("/") else f"/{found['path']}"


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise ValueError("a header line without a name")
    return name, value


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    """The announced length of the body. Browsers announce it; a chunked body would make the end a matter of opinion."""
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        raise ValueError("a body without Content-Length")
    lengths = {value.strip() for name, value in headers if name.lower() == b"content-length"}
    if len(lengths) > 1:
        raise ValueError("two lengths of one body")
    return int(lengths.pop()) if lengths else 0
