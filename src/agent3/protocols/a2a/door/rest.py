"""A2A as REST: 1.0 below the address of the agent, 0.3 below ``/v1`` of it, each with its own statuses."""

from __future__ import annotations

from typing import Final

import msgspec

from agent3 import jsonrpc
from agent3.errors import Agent3Error, MethodNotAllowed
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.dispatch import Dispatcher, is_streaming
from agent3.protocols.a2a.door.http import (
    A2A_JSON,
    INTERNAL,
    JSON,
    Exchange,
    parse_query,
    refusal_headers,
    send_response,
    stream,
)
from agent3.protocols.a2a.wire import RestCodec, rest_codecs, version_of
from agent3.protocols.a2a.wire.errors import ContentTypeNotSupported, Profile, VersionNotSupported
from agent3.protocols.a2a.wire.operations import Match
from agent3.protocols.a2a.wire.types import Generation, GetCard, Request

__all__ = ["RestDoor"]

log = logger("a2a.door")

_REFUSED: Final = "agent3.a2a.refused_rest"
"""The key in a scope of the error with which ``reply`` left a request to ``serve``."""
_CONTENT_TYPES: Final = frozenset({"application/json", "application/a2a+json"})


class RestDoor:
    """Answers requests below the address of an agent."""

    def __init__(self, dispatcher: Dispatcher, *, profile: Profile = "1.0.1", lenient: bool = False):
        self._dispatcher = dispatcher
        self._lenient = lenient
        self._codecs: dict[Generation, RestCodec] = rest_codecs(profile)

    async def serve(self, exchange: Exchange, path: str) -> None:
        """Answer one request. ``path`` is what comes below the agent's address, still percent-encoded."""
        exchange.generation = _generation_of(exchange, path)
        try:
            dispatcher, codec = self._dispatcher, self._codecs[exchange.generation]
            match = self._match(exchange, exchange.scope["method"], path)
            principal = dispatcher.who(exchange.scope)
            dispatcher.check_offered(match.route.method)
            body = await dispatcher.read_body(exchange)
            if (refusal := exchange.scope.pop(_REFUSED, None)) is not None:
                raise refusal
            request = self._read(exchange, match, exchange.scope["query_string"], body)

            if is_streaming(request):
                items = dispatcher.stream(exchange, principal, request)
                frames = (jsonrpc.encode_event(codec.write_item(item, request), id=str(n)) async for n, item in items)
                await stream(
                    exchange.receive,
                    exchange.send,
                    frames,
                    lambda error: jsonrpc.encode_event(msgspec.json.encode(codec.write_error(error)[1]), event="error"),
                    more=dispatcher.extension_headers(exchange),
                    beat=dispatcher.beat,
                )
                return
            value = await dispatcher.answer(exchange, principal, request)
            result = codec.write_result(request, value)
            await send_response(
                exchange.send, 200, result, _content_type(exchange), dispatcher.extension_headers(exchange)
            )
        except jsonrpc.ClientLeft:
            return
        except Agent3Error as error:
            await self.refuse(exchange, error)
        except Exception:
            log.exception("a request failed")
            await self.refuse(exchange, Agent3Error(INTERNAL))

    async def reply(self, exchange: Exchange, principal: Principal, path: str, body: bytes) -> bytes | None:
        """The answer to an ordinary POST of this caller, without ASGI; None for one that needs ``serve``.

        Ordinary is a valid request without query and extensions, with one answer in plain JSON. Nothing is refused
        here: an error of the engine is left in the scope for ``serve`` to report.
        """
        headers, dispatcher = exchange.headers, self._dispatcher
        if headers.extensions or len(body) > dispatcher.limits.body or _content_type(exchange) is not JSON:
            return None
        exchange.generation = _generation_of(exchange, path)
        codec = self._codecs[exchange.generation]
        try:
            jsonrpc.check_bytes(body, dispatcher.limits)
            match = self._match(exchange, "POST", path)
            dispatcher.check_offered(match.route.method)
            request = self._read(exchange, match, b"", body)
        except (Agent3Error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if is_streaming(request) or isinstance(request, GetCard):
            return None
        try:
            return codec.write_result(request, await dispatcher.answer(exchange, principal, request))
        except Agent3Error as error:
            exchange.scope[_REFUSED] = error
        except Exception:
            log.exception("a request failed")
            exchange.scope[_REFUSED] = Agent3Error(INTERNAL)
        return None

    def _match(self, exchange: Exchange, http: str, path: str) -> Match:
        """The route of a path in the generation that the request speaks."""
        match = self._codecs[exchange.generation].match(http, path)
        version = version_of(exchange.headers.version)
        if version is None and exchange.generation == "1.0" and not self._lenient:
            # By the specification a request without a version is 0.3, which has no such path.
            raise VersionNotSupported("This is a path of A2A 1.0. Send the header A2A-Version: 1.0.")
        if version not in (None, exchange.generation):
            raise VersionNotSupported(f"This is a path of A2A {exchange.generation}, but A2A-Version is {version}.")
        return match

    def _read(self, exchange: Exchange, match: Match, query: bytes, body: bytes) -> Request:
        """The request with this body."""
        if body and exchange.headers.content_type not in _CONTENT_TYPES:
            found = exchange.headers.content_type[:100]
            raise ContentTypeNotSupported(f"Content type {found!r} is not supported. Send application/json.")
        fields = {name: value for name, value in parse_query(query) if name.lower() != "a2a-version"} if query else {}
        codec = self._codecs[exchange.generation]
        return self._dispatcher.accept(exchange, codec.read_request(match.route, match.values, fields, body))

    async def refuse(self, exchange: Exchange, error: Agent3Error) -> None:
        """Answer with an error, in the form of the generation that was spoken."""
        status, body = self._codecs[exchange.generation].write_error(error)
        headers = [*refusal_headers(error), *self._dispatcher.extension_headers(exchange)]
        if isinstance(error, MethodNotAllowed) and "allow" in error.data:
            headers.append((b"allow", str(error.data["allow"]).encode("latin-1")))
        await send_response(exchange.send, status, msgspec.json.encode(body), _content_type(exchange), headers)


def _generation_of(exchange: Exchange, path: str) -> Generation:
    # A tenant of 1.0 may be called v1, but then the request says that it is 1.0.
    old = path.startswith("/v1/") and not (exchange.headers.version or "").startswith("1")
    return "0.3" if old else "1.0"


def _content_type(exchange: Exchange) -> bytes:
    """Plain JSON, unless the client accepts the media type of A2A: 1.0.0 and the test kit know only that."""
    return (
        A2A_JSON if exchange.generation == "1.0" and "application/a2a+json" in exchange.headers.accept.lower() else JSON
    )
