"""Lines to an agent: one address where one generation is spoken in one binding, asked over the outbound gate.

A line writes a request with its codec, sends it, and reads the answer or the stream. It tells errors of the agent by
our names, with ``sent`` False where it is certain that the agent did not take the request. Which line to take, and what
to do when one breaks off, is the peer's business.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from agent3 import jsonrpc
from agent3.errors import Agent3Error, MalformedResponse, MissingExtra, ParseError, TargetRefused, TooLarge, Unavailable
from agent3.protocols.a2a import grpc
from agent3.protocols.a2a.wire import CODECS, RESTS, Value
from agent3.protocols.a2a.wire import errors as faults
from agent3.protocols.a2a.wire.errors import ContentTypeNotSupported
from agent3.protocols.a2a.wire.types import Generation, Item, Request
from agent3.security.outbound import Gate, Stream

if TYPE_CHECKING:
    from agent3.protocols.a2a.grpc.channel import GrpcChannel

__all__ = ["LINES", "How", "Line", "Place", "grpc_url"]

LIMITS: Final = jsonrpc.Limits(body=16 << 20, nodes=500_000)
"""What an agent may answer: more than a stranger may send, for the operator chose it."""
_STREAM: Final = 256 << 20
"""Bytes of a whole stream; each event of it is bounded like an answer."""
_JSON: Final = "application/json"
_LONGEST_PAUSE: Final = 3_600.0
"""Seconds after which we come again, whatever longer pause an agent asks for."""
_A2A_JSON: Final = "application/a2a+json"
_numbers = itertools.count(1)


class Place(NamedTuple):
    """Where and how an agent is spoken to."""

    url: str
    binding: str
    generation: Generation
    tenant: str | None = None


class How(NamedTuple):
    """What goes with one request, and how long it may take: in all, and between two words of a stream."""

    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    extensions: tuple[str, ...] = ()
    seconds: float = 300.0
    idle: float = 120.0


class Line(Protocol):
    """One way to speak to one agent."""

    place: Place

    @property
    def origin(self) -> str:
        """The address as a URL, whose scheme says whether what is sent there can be read on its way."""
        ...

    async def ask(self, request: Request, how: How) -> Value:
        """What a request is answered with."""
        ...

    def stream(
        self, request: Request, how: How, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        """What is told, each item with the id of its event if it has one; ``last`` is the event that was seen last."""
        ...

    async def aclose(self) -> None:
        """Let go of what is its own."""
        ...


def _headers(place: Place, how: How, accept: str, kind: str = _JSON) -> dict[str, str]:
    found = {"Content-Type": kind, "Accept": accept, "A2A-Version": place.generation, **how.headers}
    if how.extensions:
        name = "A2A-Extensions" if place.generation == "1.0" else "X-A2A-Extensions"
        found[name] = ", ".join(how.extensions)
    return found


def _url(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}" if query else url


def _for_tenant(request: Request, place: Place) -> Request:
    return replace(request, tenant=place.tenant) if place.tenant and request.tenant is None else request


# What an agent refuses


def _refusal(status: int, wrong: Agent3Error, headers: Mapping[str, str], place: Place) -> Agent3Error:
    """An error with what its HTTP status says: whose fault it is, when to come back, whether anything was done."""
    who = urlsplit(place.url).netloc
    if status in (401, 403):
        wrong = TargetRefused(f"{who} refused our credentials (HTTP {status}).", data={"status": status})
    elif 300 <= status < 400:
        wrong = Unavailable(f"{who} has moved (HTTP {status}). Add it again at its new address.")
    after = headers.get("Retry-After", "")
    if wrong.retry_after is None and after.isdigit():
        wrong.retry_after = min(float(after), _LONGEST_PAUSE)
    turned_away = status == 503 and bool(after)  # it says itself that the request is to be made again
    if (400 <= status < 500 and status != 408) or turned_away:
        wrong.sent = False
    wrong.data.setdefault("http_status", status)
    return wrong


def _decoded(body: bytes) -> Any:
    try:
        return jsonrpc.decode(body, LIMITS)
    except (ParseError, TooLarge):
        return None


async def _whole(answer: Stream) -> bytes:
    return b"".join([chunk async for chunk in answer])


def _is_stream(answer: Stream) -> bool:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/event-stream"


async def _frames(answer: Stream) -> AsyncIterator[tuple[str | None, bytes]]:
    parser = jsonrpc.SSEParser(LIMITS.body)
    async for chunk in answer:
        for frame in parser.feed(chunk):
            if frame.data:
                yield frame.id, frame.data


# JSON-RPC


class _Envelope(Struct):
    """The answer to a JSON-RPC request, its result unread."""

    result: Raw | UnsetType = UNSET
    error: Any = None


_envelope = msgspec.json.Decoder(_Envelope)


class RpcLine:
    """JSON-RPC 2.0 over HTTP, in every generation."""

    def __init__(self, place: Place, gate: Gate):
        self.place = place
        self._gate = gate
        self._codec = CODECS[place.generation]

    @property
    def origin(self) -> str:
        return self.place.url

    async def aclose(self) -> None:
        """The gate is the peer's."""

    async def ask(self, request: Request, how: How) -> Value:
        body = self._body(request)
        headers = _headers(self.place, how, _JSON)
        url = _url(self.place.url, how.query)
        answer = await self._gate.request(
            "POST", url, headers=headers, body=body, timeout=how.seconds, max_bytes=LIMITS.body, follow=True
        )
        return self._codec.read(request, self._result(answer.status, answer.body, answer.headers))

    async def stream(
        self, request: Request, how: How, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        body = self._body(request)
        headers = _headers(self.place, how, f"text/event-stream, {_JSON}")
        if last is not None:
            headers["Last-Event-ID"] = last
        url = _url(self.place.url, how.query)
        async with self._gate.stream(
            "POST", url, headers=headers, body=body, idle=how.idle, max_bytes=_STREAM, follow=True
        ) as answer:
            if not _is_stream(answer):
                yield None, self._codec.read_item(self._result(answer.status, await _whole(answer), answer.headers))
                return
            async for key, data in _frames(answer):
                yield key, self._codec.read_item(self._result(200, data, {}))

    def _body(self, request: Request) -> bytes:
        method, params = self._codec.ask(_for_tenant(request, self.place))
        return jsonrpc.request(next(_numbers), method, params)

    def _result(self, status: int, body: bytes, headers: Mapping[str, str]) -> Raw:
        try:
            jsonrpc.check_bytes(body, LIMITS)
            envelope = _envelope.decode(body)
        except (ParseError, TooLarge, msgspec.MsgspecError, UnicodeDecodeError):
            if status >= 300:
                raise _refusal(status, faults.read_rest(status, None), headers, self.place) from None
            raise MalformedResponse(f"{self._who} answered with something that is not JSON-RPC.") from None
        if envelope.error is not None:
            wrong = self._codec.read_error(envelope.error)
            raise _refusal(status, wrong, headers, self.place) if status >= 300 else wrong
        if isinstance(envelope.result, UnsetType):
            if status >= 300:
                raise _refusal(status, faults.read_rest(status, _decoded(body)), headers, self.place)
            raise MalformedResponse(f"{self._who} answered with neither a result nor an error.")
        return envelope.result

    @property
    def _who(self) -> str:
        return urlsplit(self.place.url).netloc


# REST


class RestLine:
    """HTTP with JSON, in the generations that have it."""

    def __init__(self, place: Place, gate: Gate):
        if place.generation not in RESTS:
            raise ContentTypeNotSupported(f"A2A {place.generation} has no REST binding.")
        self.place = place
        self._gate = gate
        self._codec = RESTS[place.generation]
        self._kind = _JSON

    @property
    def origin(self) -> str:
        return self.place.url

    async def aclose(self) -> None:
        """The gate is the peer's."""

    async def ask(self, request: Request, how: How) -> Value:
        async with self._sent(request, how, f"{_JSON}, {_A2A_JSON};q=0.9") as answer:
            body = await _whole(answer)
            if not 200 <= answer.status < 300:
                raise self._wrong(answer, body)
        return self._codec.read(request, body or b"{}")

    async def stream(
        self, request: Request, how: How, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        more = how if last is None else how._replace(headers={**how.headers, "Last-Event-ID": last})
        async with self._sent(request, more, f"text/event-stream, {_JSON}", streams=True) as answer:
            if not 200 <= answer.status < 300:
                raise self._wrong(answer, await _whole(answer))
            if not _is_stream(answer):
                yield None, self._codec.read_item(await _whole(answer))
                return
            async for key, data in _frames(answer):
                yield key, self._item(data)

    @asynccontextmanager
    async def _sent(self, request: Request, how: How, accept: str, *, streams: bool = False) -> AsyncIterator[Stream]:
        """The answer to a request; one that is refused for its media type alone is sent again under the other name.

        1.0.0 wrote ``application/json``, 1.0.1 ``application/a2a+json``, and there are servers for each.
        """
        method, path, query, body = self._codec.ask(_for_tenant(request, self.place))
        base = self.place.url.rstrip("/")
        if path.startswith("/v1/") and base.endswith("/v1"):
            base = base.removesuffix("/v1")
        url = _url(base + path, {**query, **how.query})
        seconds = None if streams else how.seconds
        for last in (False, True):
            headers = _headers(self.place, how, accept, self._kind)
            async with self._gate.stream(
                method,
                url,
                headers=headers,
                body=body,
                timeout=seconds,
                idle=how.idle,
                max_bytes=_STREAM if streams else LIMITS.body,
                follow=True,
            ) as answer:
                if answer.status != 415 or last or self.place.generation != "1.0":
                    yield answer
                    return
            self._kind = _A2A_JSON if self._kind == _JSON else _JSON

    def _item(self, data: bytes) -> Item:
        plain = _decoded(data)
        if isinstance(plain, dict) and isinstance(plain.get("error"), (dict, str)):
            wrong = plain["error"]
            status = wrong.get("code") if isinstance(wrong, dict) else None
            raise self._codec.read_error(status if isinstance(status, int) else 500, plain)
        return self._codec.read_item(data)

    def _wrong(self, answer: Stream, body: bytes) -> Agent3Error:
        return _refusal(
            answer.status, self._codec.read_error(answer.status, _decoded(body)), answer.headers, self.place
        )


# gRPC


class GrpcLine:
    """gRPC, where the optional part is installed. MissingExtra where it is not."""

    def __init__(self, place: Place, gate: Gate):
        if find_spec("grpc") is None:
            raise MissingExtra("An agent that is only reached over gRPC", "grpc")
        if place.generation == "0.1":
            raise ContentTypeNotSupported("A2A 0.1 has no gRPC binding.")
        self.place = place
        self._gate = gate
        self._opening: asyncio.Task[GrpcChannel] | None = None

    @property
    def origin(self) -> str:
        return grpc_url(self.place.url)

    async def ask(self, request: Request, how: How) -> Value:
        channel = await self._channel()
        return await channel.ask(_for_tenant(request, self.place), metadata=self._metadata(how), timeout=how.seconds)

    async def stream(
        self, request: Request, how: How, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        channel = await self._channel()
        asked = channel.stream(_for_tenant(request, self.place), metadata=self._metadata(how))
        async with aclosing(asked) as items:
            async for item in items:
                yield None, item

    async def aclose(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().aclose()

    async def _channel(self) -> GrpcChannel:
        """The one channel, which the first that asks opens; one that could not be opened is tried again."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            work = grpc.connect(self._gate, self.place.url, self.place.generation)
            self._opening = asyncio.get_running_loop().create_task(work)
        return await asyncio.shield(self._opening)

    def _metadata(self, how: How) -> dict[str, str]:
        found = {name: value for name, value in how.headers.items() if name.lower() not in ("content-type", "accept")}
        if how.extensions:
            found["a2a-extensions"] = ", ".join(how.extensions)
        return found


def grpc_url(address: str) -> str:
    """The address of a gRPC agent as a URL; cards write ``host:port``, which is TLS at port 443."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    secure = parts.scheme in ("https", "grpcs") or (not parts.scheme and parts.netloc.endswith(":443"))
    return f"{'https' if secure else 'http'}://{parts.netloc}{parts.path}"


LINES: Final[dict[str, Callable[[Place, Gate], Line]]] = {
    "JSONRPC": RpcLine,
    "HTTP+JSON": RestLine,
    "GRPC": GrpcLine,
}
"""The bindings that are spoken here, in the order in which they are tried."""
