"""One HTTP exchange of an A2A door: the headers of the request, an answer in one piece, or a stream of events.

Raw ASGI, without objects of a framework, because every message comes through here. It knows no method and no codec.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from agent3 import jsonrpc
from agent3.errors import Agent3Error, RequestError, Unauthenticated
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.wire.types import Generation

__all__ = [
    "A2A_JSON",
    "BEAT",
    "BINDING",
    "INTERNAL",
    "JSON",
    "Exchange",
    "Headers",
    "RequestHeaders",
    "build_address",
    "find_header",
    "parse_query",
    "read_headers",
    "refusal_headers",
    "send_response",
    "stream",
]

log = logger("a2a.door")

Headers = Sequence[tuple[bytes, bytes]]

JSON = b"application/json"
A2A_JSON = b"application/a2a+json"
BINDING = "agent3.binding"
"""The key of a scope that was not made from an HTTP request; its value is ``grpc``."""
INTERNAL: Final = "Internal error. See the log of the gateway."
BEAT = 15.0
"""Seconds of silence after which a stream sends a sign of life."""
_BEAT = b": still here\n\n"
_MOST_FIELDS = 100
_STREAM: Headers = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class RequestHeaders(NamedTuple):
    """The headers that matter, with the version that the query may have instead."""

    version: str | None
    extensions: frozenset[str]
    content_type: str
    accept: str
    last_event_id: str | None
    traceparent: str | None
    deadline: str | None = None


class Exchange:
    """One request and its answer: what is known of it so far.

    ``base`` is the path of the agent's address as cards write it, ``tenant`` is set where the address itself names it.
    ``generation`` is the one that it is answered in, ``id`` that of its JSON-RPC message, ``extensions`` are those that
    are active.
    """

    __slots__ = ("base", "extensions", "generation", "headers", "id", "receive", "scope", "send", "tenant")

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        base: str,
        tenant: str | None,
        headers: RequestHeaders | None = None,
    ):
        self.scope = scope
        self.receive = receive
        self.send = send
        self.base = base
        self.tenant = tenant
        self.headers = read_headers(scope) if headers is None else headers
        self.id: jsonrpc.Id = None
        self.extensions: frozenset[str] = _NONE
        # Until more is known, as the specification says: no version is 0.3.
        self.generation: Generation = (
            "0.3" if not self.headers.version or self.headers.version.startswith("0.") else "1.0"
        )


_NONE: frozenset[str] = frozenset()
_HEADERS = frozenset(
    {
        b"a2a-version",
        b"a2a-extensions",
        b"x-a2a-extensions",
        b"content-type",
        b"accept",
        b"last-event-id",
        b"traceparent",
        b"x-agent3-deadline",
    }
)


def read_headers(scope: Scope) -> RequestHeaders:
    """Read the headers of a request, once."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _HEADERS:
            text = value.decode("latin-1")
            found[name] = f"{found[name]},{text}" if name in found else text
    get = found.get
    version = get(b"a2a-version")
    if version is None and b"-" in scope["query_string"]:
        # For clients that cannot set a header, the specification allows the version in the query.
        try:
            pairs = parse_query(scope["query_string"])
        except RequestError:  # reported by the door that reads the query itself
            pairs = []
        version = next((value for name, value in pairs if name.lower() == "a2a-version"), None)
    asked = get(b"a2a-extensions") or get(b"x-a2a-extensions")
    return RequestHeaders(
        version.strip() if version is not None else None,
        frozenset(uri.strip() for uri in asked.split(",") if uri.strip()) if asked else _NONE,
        get(b"content-type", "").partition(";")[0].strip().lower(),
        get(b"accept", ""),
        get(b"last-event-id"),
        get(b"traceparent"),
        get(b"x-agent3-deadline"),
    )


def parse_query(query: bytes) -> list[tuple[str, str]]:
    """The fields of a query; RequestError if there are too many."""
    try:
        return parse_qsl(query.decode("latin-1"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise RequestError(f"The query has more than {_MOST_FIELDS} fields.") from None


def build_address(scope: Scope, path: str) -> str:
    """The URL of a path at the host that the client named."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    if not host:
        name, port = scope.get("server") or ("localhost", None)
        host = f"{name}:{port}" if port else str(name)
    return f"{scope.get('scheme', 'http')}://{host}{path}"


async def send_response(send: Send, status: int, body: bytes, kind: bytes = JSON, more: Headers = ()) -> None:
    """Send an answer in one piece."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(
    receive: Receive,
    send: Send,
    frames: AsyncGenerator[bytes, None],
    failed: Callable[[Agent3Error], bytes],
    *,
    more: Headers = (),
    beat: float = BEAT,
    always: bool = False,
) -> None:
    """Send frames until they end or the client leaves, with a sign of life whenever there are none for a while.

    An error before the first frame is raised, so that it gets a status of its own, unless the frame takes longer than a
    beat: then the stream begins with a sign of life. A later error, and with ``always`` any error, is sent as the frame
    that ``failed`` makes of it. A client that leaves only stops listening.
    """

    async def read_first() -> bytes | None:
        try:
            return await anext(frames, None)
        except Agent3Error as error:
            if not always:
                raise
            return failed(error)

    loop = asyncio.get_running_loop()
    opening = loop.create_task(read_first())
    try:
        await asyncio.wait((opening,), timeout=beat)
        silent = not opening.done()
        empty = not silent and opening.result() is None
        await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM, *more]})
        if empty:
            await send({"type": "http.response.body", "body": b""})
            return
        if silent:
            await send({"type": "http.response.body", "body": _BEAT, "more_body": True})
        sender = _Sender(send, frames, failed, beat)
        pump = loop.create_task(sender.pump(opening))
        gone = loop.create_task(jsonrpc.wait_for_disconnect(receive))
        heart = loop.create_task(sender.keep_alive())
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(pump, gone, heart)
    finally:
        await _stop(opening)
        await frames.aclose()


class _Sender:
    """Sends frames, and beats between them."""

    def __init__(
        self,
        send: Send,
        frames: AsyncGenerator[bytes, None],
        failed: Callable[[Agent3Error], bytes],
        beat: float,
    ):
        self._send = send
        self._frames = frames
        self._failed = failed
        self._beat = beat
        self._sent = 0

    async def pump(self, first: asyncio.Task[bytes | None]) -> None:
        """Send all frames, from the first one on, which may still be to come."""
        try:
            if (opening := await first) is not None:
                await self._send_frame(opening)
            async for frame in self._frames:
                await self._send_frame(frame)
        except Agent3Error as error:
            await self._send_frame(self._failed(error))
        except Exception:
            log.exception("a stream failed")
            await self._send_frame(self._failed(Agent3Error(INTERNAL)))
        await self._send({"type": "http.response.body", "body": b""})

    async def _send_frame(self, frame: bytes) -> None:
        self._sent += 1
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def keep_alive(self) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self._beat)
            if self._sent == before:
                await self._send({"type": "http.response.body", "body": _BEAT, "more_body": True})


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a stream ended: %s", error)  # a client that is gone makes sending fail


def find_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first header with a name."""
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


def refusal_headers(error: Agent3Error) -> Headers:
    """The headers of an error: how to authenticate, or when to come back."""
    if isinstance(error, Unauthenticated):
        return ((b"www-authenticate", b"Bearer"),)
    return () if error.retry_after is None else ((b"retry-after", b"%d" % max(1, round(error.retry_after))),)
