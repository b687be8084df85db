"""The three bindings of A2A, client side: one request and its answer, or one stream, over the outbound gate.

A binding encodes a request with the codec of its generation, sends it, and decodes what comes back. It translates the
agent's errors into ours and sets ``sent`` to False where the agent certainly did not take the request. It does not know
which interface of a card to use, who we are, or what to do when an exchange fails: that is up to the peer.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from agent3 import jsonrpc
from agent3.env import REAL
from agent3.errors import (
    Agent3Error,
    LoopDetected,
    MalformedResponse,
    MissingExtra,
    ParseError,
    TargetRefused,
    TooLarge,
    Unavailable,
)
from agent3.protocols.a2a import grpc
from agent3.protocols.a2a.cards.cards import grpc_url
from agent3.protocols.a2a.wire import CODECS, RESTS, Value
from agent3.protocols.a2a.wire import errors as wire_errors
from agent3.protocols.a2a.wire.errors import ContentTypeNotSupported
from agent3.protocols.a2a.wire.types import Generation, Item, Request
from agent3.security.outbound import Gate, Stream

if TYPE_CHECKING:
    from agent3.protocols.a2a.grpc.channel import GrpcChannel

__all__ = ["BINDINGS", "Binding", "GrpcBinding", "Interface", "RequestOptions", "spoken"]

LIMITS: Final = jsonrpc.Limits(body=16 << 20, nodes=500_000, lenient=True)
"""What an agent may answer: more than a stranger may send, since the operator chose the agent."""
_STREAM_BYTES: Final = 256 << 20
"""Bytes of a whole stream; each of its events is bounded like an answer."""
_LONGEST_RETRY_AFTER: Final = 3_600.0
"""Seconds after which we try again, however long a pause the agent asks for."""
_JSON: Final = "application/json"
_A2A_JSON: Final = "application/a2a+json"
_request_ids = itertools.count(1)


class Interface(NamedTuple):
    """One interface of an agent: its address, and the binding and generation spoken there."""

    url: str
    binding: str
    generation: Generation
    tenant: str | None = None


class RequestOptions(NamedTuple):
    """What goes with one request. ``timeout`` bounds the exchange, ``idle`` the silence between two stream events."""

    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    extensions: tuple[str, ...] = ()
    timeout: float = 300.0
    idle: float = 120.0


class Binding(Protocol):
    """One way to reach one agent."""

    interface: Interface

    @property
    def origin(self) -> str:
        """The address as a URL; its scheme says whether the transport is encrypted."""
        ...

    async def send(self, request: Request, options: RequestOptions) -> Value:
        """Send a request; its answer."""
        ...

    def stream(
        self, request: Request, options: RequestOptions, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        """Send a request; each item of its answer with its event id, if any. ``last`` is the last event id seen."""
        ...

    async def aclose(self) -> None:
        """Release what the binding itself has opened."""
        ...


def _build_headers(interface: Interface, options: RequestOptions, accept: str, content_type: str) -> dict[str, str]:
    headers = {"Content-Type": content_type, "Accept": accept, "A2A-Version": interface.generation, **options.headers}
    if options.extensions:
        name = "A2A-Extensions" if interface.generation == "1.0" else "X-A2A-Extensions"
        headers[name] = ", ".join(options.extensions)
    return headers


def _add_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}" if query else url


def _set_tenant(request: Request, interface: Interface) -> Request:
    return replace(request, tenant=interface.tenant) if interface.tenant and request.tenant is None else request


def _to_refusal(status: int, error: Agent3Error, headers: Mapping[str, str], interface: Interface) -> Agent3Error:
    """An error completed by its HTTP status: who is at fault, when to retry, and whether the request was taken."""
    host = urlsplit(interface.url).netloc
    if status in (401, 403):
        error = TargetRefused(f"{host} refused our credentials (HTTP {status}).", data={"status": status})
    elif status == LoopDetected.http_status:
        error = LoopDetected(f"{host} is this gateway itself, or leads back to it. A gateway does not call itself.")
    elif 300 <= status < 400:
        error = Unavailable(f"{host} has moved (HTTP {status}). Add it again at its new address.")
    retry_after = headers.get("Retry-After")
    if error.retry_after is None:
        error.retry_after = jsonrpc.parse_retry_after(retry_after, REAL.now(), _LONGEST_RETRY_AFTER)
    # A 503 with Retry-After asks for the same request again, so it was not taken; a 408 may have been.
    if (400 <= status < 500 and status != 408) or (status == 503 and retry_after):
        error.sent = False
    error.data.setdefault("http_status", status)
    return error


def _decode_json(body: bytes) -> Any:
    """The decoded body; None if it is not JSON within our limits."""
    try:
        return jsonrpc.decode(body, LIMITS)
    except (ParseError, TooLarge):
        return None


async def _read_body(response: Stream) -> bytes:
    return b"".join([chunk async for chunk in response])


def _is_event_stream(response: Stream) -> bool:
    return jsonrpc.is_event_stream(response.headers.get("Content-Type"))


async def _read_events(response: Stream) -> AsyncIterator[tuple[str | None, bytes]]:
    parser = jsonrpc.SSEParser(LIMITS.body)
    async for chunk in response:
        for frame in parser.feed(chunk):
            if frame.data:
                yield frame.id, frame.data


# JSON-RPC


class _Envelope(Struct):
    """The answer to a JSON-RPC request, its result not yet decoded."""

    result: Raw | UnsetType = UNSET
    error: Any = None


_envelope = msgspec.json.Decoder(_Envelope)


class JsonRpcBinding:
    """JSON-RPC 2.0 over HTTP, in every generation."""

    def __init__(self, interface: Interface, gate: Gate):
        self.interface = interface
        self._gate = gate
        self._codec = CODECS[interface.generation]

    @property
    def origin(self) -> str:
        return self.interface.url

    async def aclose(self) -> None:
        """Nothing to release: the gate belongs to the peer."""

    async def send(self, request: Request, options: RequestOptions) -> Value:
        response = await self._gate.request(
            "POST",
            _add_query(self.interface.url, options.query),
            headers=_build_headers(self.interface, options, _JSON, _JSON),
            body=self._encode(request),
            timeout=options.timeout,
            max_bytes=LIMITS.body,
            follow=True,
        )
        answer = response.status, response.body, response.headers
        return await jsonrpc.read_large(
            response.body, lambda: self._codec.read_result(request, self._read_result(*answer))
        )

    async def stream(
        self, request: Request, options: RequestOptions, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        headers = _build_headers(self.interface, options, f"text/event-stream, {_JSON}", _JSON)
        if last is not None:
            headers["Last-Event-ID"] = last
        async with self._gate.stream(
            "POST",
            _add_query(self.interface.url, options.query),
            headers=headers,
            body=self._encode(request),
            idle=options.idle,
            max_bytes=_STREAM_BYTES,
            follow=True,
        ) as response:
            if not _is_event_stream(response):
                yield None, await self._read_item(response.status, await _read_body(response), response.headers)
                return
            async for event_id, data in _read_events(response):
                yield event_id, await self._read_item(200, data, {})

    async def _read_item(self, status: int, body: bytes, headers: Mapping[str, str]) -> Item:
        return await jsonrpc.read_large(body, lambda: self._codec.read_item(self._read_result(status, body, headers)))

    def _encode(self, request: Request) -> bytes:
        method, params = self._codec.write_request(_set_tenant(request, self.interface))
        return jsonrpc.request(next(_request_ids), method, params)

    def _read_result(self, status: int, body: bytes, headers: Mapping[str, str]) -> Raw:
        """The undecoded result in a JSON-RPC answer; raises the error that it holds instead."""
        host = urlsplit(self.interface.url).netloc
        try:
            jsonrpc.check_bytes(body, LIMITS)
            envelope = _envelope.decode(body)
        except (ParseError, TooLarge, msgspec.MsgspecError, UnicodeDecodeError):
            if status >= 300:
                raise _to_refusal(status, wire_errors.read_rest(status, None), headers, self.interface) from None
            raise MalformedResponse(f"{host} did not answer with JSON-RPC.") from None
        if envelope.error is not None:
            error = self._codec.read_error(envelope.error)
            raise _to_refusal(status, error, headers, self.interface) if status >= 300 else error
        if isinstance(envelope.result, UnsetType):
            if status >= 300:
                error = wire_errors.read_rest(status, _decode_json(body))
                raise _to_refusal(status, error, headers, self.interface)
            raise MalformedResponse(f"{host} answered with neither a result nor an error.")
        return envelope.result


# REST


class RestBinding:
    """HTTP and JSON, in the generations that have this binding."""

    def __init__(self, interface: Interface, gate: Gate):
        if interface.generation not in RESTS:
            raise ContentTypeNotSupported(f"A2A {interface.generation} has no REST binding.")
        self.interface = interface
        self._gate = gate
        self._codec = RESTS[interface.generation]
        self._content_type = _JSON

    @property
    def origin(self) -> str:
        return self.interface.url

    async def aclose(self) -> None:
        """Nothing to release: the gate belongs to the peer."""

    async def send(self, request: Request, options: RequestOptions) -> Value:
        async with self._exchange(request, options, f"{_JSON}, {_A2A_JSON};q=0.9") as response:
            body = await _read_body(response)
            if not 200 <= response.status < 300:
                raise self._read_error(response, body)
        return await jsonrpc.read_large(body, lambda: self._codec.read_result(request, body or b"{}"))

    async def stream(
        self, request: Request, options: RequestOptions, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        if last is not None:
            options = options._replace(headers={**options.headers, "Last-Event-ID": last})
        async with self._exchange(request, options, f"text/event-stream, {_JSON}", streams=True) as response:
            if not 200 <= response.status < 300:
                raise self._read_error(response, await _read_body(response))
            if not _is_event_stream(response):
                body = await _read_body(response)
                yield None, await jsonrpc.read_large(body, lambda: self._codec.read_item(body))
                return
            async for event_id, data in _read_events(response):
                # The status was sent with the headers, so an error in the middle of a stream is an event of its own.
                document = await jsonrpc.read_large(data, partial(_decode_json, data))
                if isinstance(document, dict) and isinstance(error := document.get("error"), (dict, str)):
                    status = error.get("code") if isinstance(error, dict) else None
                    raise self._codec.read_error(status if isinstance(status, int) else 500, document)
                yield event_id, await jsonrpc.read_large(data, partial(self._codec.read_item, data))

    @asynccontextmanager
    async def _exchange(
        self, request: Request, options: RequestOptions, accept: str, *, streams: bool = False
    ) -> AsyncIterator[Stream]:
        """Send a request; one refused for its media type alone is sent again with the other one.

        1.0.0 asked for ``application/json``, 1.0.1 for ``application/a2a+json``, and there are servers for each.
        """
        method, path, query, body = self._codec.write_request(_set_tenant(request, self.interface))
        base = self.interface.url.rstrip("/")
        if path.startswith("/v1/") and base.endswith("/v1"):
            base = base.removesuffix("/v1")
        for last_try in (False, True):
            async with self._gate.stream(
                method,
                _add_query(base + path, {**query, **options.query}),
                headers=_build_headers(self.interface, options, accept, self._content_type),
                body=body,
                timeout=None if streams else options.timeout,
                idle=options.idle,
                max_bytes=_STREAM_BYTES if streams else LIMITS.body,
                follow=True,
            ) as response:
                if response.status != 415 or last_try or self.interface.generation != "1.0":
                    yield response
                    return
            self._content_type = _A2A_JSON if self._content_type == _JSON else _JSON

    def _read_error(self, response: Stream, body: bytes) -> Agent3Error:
        error = self._codec.read_error(response.status, _decode_json(body))
        return _to_refusal(response.status, error, response.headers, self.interface)


# gRPC


class GrpcBinding:
    """gRPC; MissingExtra where the extra is not installed."""

    def __init__(self, interface: Interface, gate: Gate):
        if find_spec("grpc") is None:
            raise MissingExtra("An agent that is reachable only over gRPC", "grpc")
        if interface.generation == "0.1":
            raise ContentTypeNotSupported("A2A 0.1 has no gRPC binding.")
        self.interface = interface
        self._gate = gate
        self._opening: asyncio.Task[GrpcChannel] | None = None

    @property
    def origin(self) -> str:
        return grpc_url(self.interface.url)

    async def send(self, request: Request, options: RequestOptions) -> Value:
        channel = await self._connect()
        tenanted = _set_tenant(request, self.interface)
        return await channel.ask(tenanted, metadata=self._build_metadata(options), timeout=options.timeout)

    async def stream(
        self, request: Request, options: RequestOptions, last: str | None = None
    ) -> AsyncGenerator[tuple[str | None, Item], None]:
        channel = await self._connect()
        tenanted = _set_tenant(request, self.interface)
        async with aclosing(channel.stream(tenanted, metadata=self._build_metadata(options))) as items:
            async for item in items:
                yield None, item

    async def aclose(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().aclose()

    async def _connect(self) -> GrpcChannel:
        """The one channel, opened by the first request; a later request retries one that could not be opened."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            work = grpc.connect(self._gate, self.interface.url, self.interface.generation)
            self._opening = asyncio.get_running_loop().create_task(work)
        # Shielded: a request that is cancelled must not cancel the opening for the others.
        return await asyncio.shield(self._opening)

    def _build_metadata(self, options: RequestOptions) -> dict[str, str]:
        metadata = {
            name: value for name, value in options.headers.items() if name.lower() not in ("content-type", "accept")
        }
        if options.extensions:
            metadata["a2a-extensions"] = ", ".join(options.extensions)
        return metadata


BINDINGS: Final[dict[str, Callable[[Interface, Gate], Binding]]] = {
    "JSONRPC": JsonRpcBinding,
    "HTTP+JSON": RestBinding,
    "GRPC": GrpcBinding,
}
"""The supported bindings, in the order in which they are tried."""


def spoken() -> tuple[str, ...]:
    """Those of them for which everything is installed."""
    return tuple(name for name in BINDINGS if name != "GRPC" or find_spec("grpc") is not None)
