"""One HTTP exchange of an A2A door: what the headers say, an answer in one piece, or a stream of events.

Raw ASGI, without objects of a framework: this is on the way of every message. It knows no method and no codec.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, NamedTuple
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
    "JSON",
    "Headers",
    "Heard",
    "Talk",
    "address_of",
    "answer",
    "hear",
    "one_of",
    "query_of",
    "refusal_headers",
    "stream",
]

log = logger("a2a.door")

Headers = Sequence[tuple[bytes, bytes]]

JSON = b"application/json"
A2A_JSON = b"application/a2a+json"
BINDING = "agent3.binding"
"""Where a scope says that its request did not come by HTTP, but in the form of it: ``grpc``."""
BEAT = 15.0
"""Seconds of silence after which a stream says that it is still there."""
_BEAT = b": still here\n\n"
_MOST_FIELDS = 100
_STREAM: Headers = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Heard(NamedTuple):
    """The headers that matter, and the version that the query may name instead."""

    version: str | None
    extensions: frozenset[str]
    kind: str
    accept: str
    last_event: str | None
    traceparent: str | None
    deadline: str | None = None


class Talk:
    """One request on its way: what is known of it so far, and in whose words it is answered.

    ``base`` is the path of the agent's address as cards write it. ``tenant`` is set where the address itself names it.
    """

    __slots__ = ("active", "base", "heard", "key", "receive", "scope", "send", "tenant", "words")

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, base: str, tenant: str | None, heard: Heard | None = None
    ):
        self.scope = scope
        self.receive = receive
        self.send = send
        self.base = base
        self.tenant = tenant
        self.heard = hear(scope) if heard is None else heard
        self.key: jsonrpc.Id = None
        self.active: frozenset[str] = _NOTHING
        # Where nothing else is known, as the specification says: no version is 0.3.
        self.words: Generation = "0.3" if not self.heard.version or self.heard.version.startswith("0.") else "1.0"


_NOTHING: frozenset[str] = frozenset()
_HEARD = frozenset(
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


def hear(scope: Scope) -> Heard:
    """Read the headers once."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in _HEARD:
            text = value.decode("latin-1")
            found[name] = f"{found[name]},{text}" if name in found else text
    get = found.get
    version = get(b"a2a-version")
    if version is None and b"-" in scope["query_string"]:
        version = _in_query(scope["query_string"])
    asked = get(b"a2a-extensions") or get(b"x-a2a-extensions")
    return Heard(
        version.strip() if version is not None else None,
        frozenset(one.strip() for one in asked.split(",") if one.strip()) if asked else _NOTHING,
        get(b"content-type", "").partition(";")[0].strip().lower(),
        get(b"accept", ""),
        get(b"last-event-id"),
        get(b"traceparent"),
        get(b"x-agent3-deadline"),
    )


def _in_query(query: bytes) -> str | None:
    """The version where a client can set no header, as the specification allows."""
    try:
        pairs = query_of(query)
    except RequestError:  # told by who reads the query for itself
        return None
    return next((value for name, value in pairs if name.lower() == "a2a-version"), None)


def query_of(query: bytes) -> list[tuple[str, str]]:
    """The fields of a query; RequestError where there are too many."""
    try:
        return parse_qsl(query.decode("latin-1"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise RequestError(f"The query has more than {_MOST_FIELDS} fields.") from None


def address_of(scope: Scope, path: str) -> str:
    """The address that a client wrote, up to the path that is given."""
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    if not host:
        name, port = scope.get("server") or ("localhost", None)
        host = f"{name}:{port}" if port else str(name)
    return f"{scope.get('scheme', 'http')}://{host}{path}"


async def answer(send: Send, status: int, body: bytes, kind: bytes = JSON, more: Headers = ()) -> None:
    """The whole answer."""
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
    """Tell what comes, until it ends or the client leaves.

    What fails before the first frame is raised, so that it can be told with a status of its own, unless that takes
    longer than a beat: then the stream begins with a sign of life. What fails later, and with ``always`` whatever
    fails, is told as a frame that ``failed`` makes. A client that leaves only stops listening.
    """
    opening = asyncio.get_running_loop().create_task(_first(frames, failed if always else None))
    try:
        await asyncio.wait((opening,), timeout=beat)
        silent = not opening.done()
        first = None if silent else opening.result()
        await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM, *more]})
        if silent:
            await send({"type": "http.response.body", "body": _BEAT, "more_body": True})
        if silent or first is not None:
            await _Streaming(send, frames, failed, beat).run(opening, receive)
        else:
            await send({"type": "http.response.body", "body": b""})
    finally:
        await _stopped(opening)
        await frames.aclose()


async def _first(frames: AsyncGenerator[bytes, None], failed: Callable[[Agent3Error], bytes] | None) -> bytes | None:
    """The first frame, if there is any; with ``failed``, also where there is only an error."""
    try:
        return await anext(frames, None)
    except Agent3Error as wrong:
        if failed is None:
            raise
        return failed(wrong)


class _Streaming:
    """The frames, with a sign of life where there are none for a while."""

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
        self._every = beat
        self._sent = 0

    async def run(self, first: asyncio.Task[bytes | None], receive: Receive) -> None:
        """Tell them all, from the first on, which may be still to come."""
        loop = asyncio.get_running_loop()
        pump = loop.create_task(self._pump(first))
        gone = loop.create_task(jsonrpc.hung_up(receive))
        beat = loop.create_task(self._beat())
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stopped(pump, gone, beat)

    async def _pump(self, first: asyncio.Task[bytes | None]) -> None:
        try:
            if (opening := await first) is not None:
                await self._tell(opening)
            async for frame in self._frames:
                await self._tell(frame)
        except Agent3Error as wrong:
            await self._tell(self._failed(wrong))
        except Exception:
            log.exception("a stream failed")
            await self._tell(self._failed(Agent3Error("Internal error. The log says more.")))
        await self._send({"type": "http.response.body", "body": b""})

    async def _tell(self, frame: bytes) -> None:
        self._sent += 1
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def _beat(self) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self._every)
            if self._sent == before:
                await self._send({"type": "http.response.body", "body": _BEAT, "more_body": True})


async def _stopped(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (wrong := task.exception()) is not None:
            log.debug("a stream ended: %s", wrong)  # a connection that fails to listen is gone


def one_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first header of a name."""
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


def refusal_headers(wrong: Agent3Error) -> Headers:
    """When to come back and how to show who one is, where the error is of that kind."""
    if isinstance(wrong, Unauthenticated):
        return ((b"www-authenticate", b"Bearer"),)
    return () if wrong.retry_after is None else ((b"retry-after", b"%d" % max(1, round(wrong.retry_after))),)
