"""A2A as JSON-RPC, every generation at one address.

The method tells the generation, and where two generations share a method, the version of the request, the task that it
is about, or what the caller spoke last. Errors are written in the form of that generation too, with status 200 except
for those that HTTP clients look for: not authenticated, not allowed, too large, too slow.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec
from msgspec import Raw, Struct

from agent3 import jsonrpc
from agent3.errors import AccessError, Agent3Error, RateLimited, RequestError, TooLarge, TooSlow
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.dispatch import Dispatcher, is_streaming
from agent3.protocols.a2a.door.http import INTERNAL, Exchange, refusal_headers, send_response, stream
from agent3.protocols.a2a.wire import CODECS, generation_of
from agent3.protocols.a2a.wire.errors import ContentTypeNotSupported, VersionNotSupported
from agent3.protocols.a2a.wire.operations import OWNERS
from agent3.protocols.a2a.wire.types import Generation, GetCard

__all__ = ["RpcDoor"]

log = logger("a2a.door")

_CONTENT_TYPES: Final = frozenset({"application/json", "application/a2a+json", "application/json-rpc", ""})
_MOST_CALLERS = 10_000
"""Callers of whom it is remembered which generation they spoke last."""
_REFUSED: Final = "agent3.a2a.refused"
"""The key of a scope for the error of a request that was begun without ASGI."""


class _Envelope(Struct):
    jsonrpc: str
    method: str
    id: str | int | None = None
    params: Raw = Raw(b"{}")


class _Id(Struct):
    id: str


_envelopes = msgspec.json.Decoder(_Envelope)
_ids = msgspec.json.Decoder(_Id)


class RpcDoor:
    """Answers POSTs at the address of an agent."""

    def __init__(self, dispatcher: Dispatcher, *, lenient: bool = False):
        self._dispatcher = dispatcher
        self._lenient = lenient
        self._spoken: OrderedDict[str, Generation] = OrderedDict()

    async def serve(self, exchange: Exchange) -> None:
        """Answer one request."""
        try:
            dispatcher = self._dispatcher
            body = await dispatcher.read_body(exchange)
            if exchange.headers.content_type not in _CONTENT_TYPES:
                found = exchange.headers.content_type[:100]
                raise ContentTypeNotSupported(f"Content type {found!r} is not supported. Send application/json.")
            envelope = self._read_envelope(exchange, body)
            exchange.generation = generation_of(envelope.method, exchange.headers.version, lenient=self._lenient)
            if (refusal := exchange.scope.pop(_REFUSED, None)) is not None:
                raise refusal
            principal = dispatcher.who(exchange.scope)
            if OWNERS.get(envelope.method, "") is None and not exchange.headers.version:
                exchange.generation = await self._recall_generation(exchange, envelope, principal)
            dispatcher.check_offered(envelope.method)
            codec = CODECS[exchange.generation]
            request = dispatcher.accept(exchange, codec.read_request(envelope.method, envelope.params))
            self._remember_generation(principal, exchange.generation)
            if is_streaming(request):
                items = dispatcher.stream(exchange, principal, request)
                frames = (
                    jsonrpc.encode_event(jsonrpc.result_raw(exchange.id, codec.write_item(item, request)), id=str(n))
                    async for n, item in items
                )
                await stream(
                    exchange.receive,
                    exchange.send,
                    frames,
                    lambda error: jsonrpc.encode_event(self._write_error(exchange, error)),
                    more=dispatcher.extension_headers(exchange),
                    beat=dispatcher.beat,
                    # 1.0 says that an error is a response of its own; before that clients expect a stream in any case.
                    always=exchange.generation != "1.0",
                )
                return
            value = await dispatcher.answer(exchange, principal, request)
            result = jsonrpc.result_raw(exchange.id, codec.write_result(request, value))
            await send_response(exchange.send, 200, result, more=dispatcher.extension_headers(exchange))
        except jsonrpc.ClientLeft:
            return
        except Agent3Error as error:
            await self._refuse(exchange, error)
        except Exception:
            log.exception("a request failed")
            await self._refuse(exchange, Agent3Error(INTERNAL))

    async def reply(self, exchange: Exchange, principal: Principal, body: bytes) -> bytes | None:
        """The answer to an ordinary request of this caller, without ASGI; None for one that needs ``serve``.

        Ordinary is a valid request of a method that one generation owns, without extensions, and with one answer.
        Nothing is refused here: an error of the engine is left in the scope for ``serve`` to report.
        """
        dispatcher = self._dispatcher
        limits = dispatcher.limits
        if (
            exchange.headers.extensions
            or exchange.headers.content_type not in _CONTENT_TYPES
            or len(body) > limits.body
        ):
            return None
        try:
            jsonrpc.check_bytes(body, limits)
            envelope = _envelopes.decode(body)
            if envelope.jsonrpc != "2.0" or OWNERS.get(envelope.method) is None:
                return None
            exchange.id = envelope.id
            exchange.generation = generation_of(envelope.method, exchange.headers.version, lenient=self._lenient)
            dispatcher.check_offered(envelope.method)
            codec = CODECS[exchange.generation]
            request = dispatcher.accept(exchange, codec.read_request(envelope.method, envelope.params))
        except (Agent3Error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if is_streaming(request) or isinstance(request, GetCard):
            return None
        self._remember_generation(principal, exchange.generation)
        try:
            value = await dispatcher.answer(exchange, principal, request)
            return jsonrpc.result_raw(exchange.id, codec.write_result(request, value))
        except Agent3Error as error:
            exchange.scope[_REFUSED] = error
        except Exception:
            log.exception("a request failed")
            exchange.scope[_REFUSED] = Agent3Error(INTERNAL)
        return None

    def _read_envelope(self, exchange: Exchange, body: bytes) -> _Envelope:
        """The request in a body. A batch is refused: no generation of A2A describes one."""
        try:
            envelope = _envelopes.decode(body)
            exchange.id = envelope.id
            if envelope.jsonrpc == "2.0":
                return envelope
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            log.debug("a body is not an ordinary request")
        message = jsonrpc.parse(body, self._dispatcher.limits)
        what = "a batch" if isinstance(message, list) else "a response"
        raise RequestError(f"Send a request with a method and an id, not {what}.")

    async def _recall_generation(self, exchange: Exchange, envelope: _Envelope, principal: Principal) -> Generation:
        """The generation of a method that two of them share: that of its task, else the one spoken last."""
        try:
            task = _ids.decode(envelope.params).id
            known = await self._dispatcher.engine(exchange.tenant).generation(principal, task)
        except msgspec.MsgspecError:
            known = None
        last = known or self._spoken.get(principal.id)
        return generation_of(envelope.method, None, lambda _: last)

    def _remember_generation(self, principal: Principal, generation: Generation) -> None:
        if generation == "1.0" or self._spoken.get(principal.id) == generation:
            return
        self._spoken[principal.id] = generation
        if len(self._spoken) > _MOST_CALLERS:
            self._spoken.popitem(last=False)

    async def _refuse(self, exchange: Exchange, error: Agent3Error) -> None:
        if isinstance(error, RequestError) and exchange.id is None:
            exchange.id = jsonrpc.id_of(error)
        if isinstance(error, VersionNotSupported):
            exchange.generation = "1.0"  # the only one with a code for it
        by_status = isinstance(error, (AccessError, TooLarge, TooSlow)) and not isinstance(error, RateLimited)
        headers = (*refusal_headers(error), *self._dispatcher.extension_headers(exchange))
        await send_response(
            exchange.send, error.http_status if by_status else 200, self._write_error(exchange, error), more=headers
        )

    def _write_error(self, exchange: Exchange, error: Agent3Error) -> bytes:
        body = {"jsonrpc": "2.0", "id": exchange.id, "error": CODECS[exchange.generation].write_error(error)}
        return msgspec.json.encode(body)
