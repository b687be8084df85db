"""A2A as REST: 1.0 below the address of the agent, 0.3 below ``/v1`` of it, each with its own statuses."""

from __future__ import annotations

from typing import Final

import msgspec

from agent3 import jsonrpc
from agent3.errors import Agent3Error, MethodNotAllowed
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
from agent3.protocols.a2a.wire.types import Generation

__all__ = ["RestDoor"]

log = logger("a2a.door")

_CONTENT_TYPES: Final = frozenset({"application/json", "application/a2a+json"})


class RestDoor:
    """Answers requests below the address of an agent."""

    def __init__(self, dispatcher: Dispatcher, *, profile: Profile = "1.0.1", lenient: bool = False):
        self._dispatcher = dispatcher
        self._lenient = lenient
        self._codecs: dict[Generation, RestCodec] = rest_codecs(profile)

    async def serve(self, exchange: Exchange, path: str) -> None:
        """Answer one request. ``path`` is what comes below the agent's address, still percent-encoded."""
        # A tenant of 1.0 may be called v1, but then the request says that it is 1.0.
        old = path.startswith("/v1/") and not (exchange.headers.version or "").startswith("1")
        exchange.generation = "0.3" if old else "1.0"
        try:
            dispatcher, codec = self._dispatcher, self._codecs[exchange.generation]
            route, values = codec.match(exchange.scope["method"], path)

            version = version_of(exchange.headers.version)
            if version is None and exchange.generation == "1.0" and not self._lenient:
                # By the specification a request without a version is 0.3, which has no such path.
                raise VersionNotSupported("This is a path of A2A 1.0. Send the header A2A-Version: 1.0.")
            if version not in (None, exchange.generation):
                raise VersionNotSupported(f"This is a path of A2A {exchange.generation}, but A2A-Version is {version}.")

            principal = dispatcher.who(exchange.scope)
            dispatcher.check_offered(route.method)
            body = await dispatcher.read_body(exchange)
            if body and exchange.headers.content_type not in _CONTENT_TYPES:
                found = exchange.headers.content_type[:100]
                raise ContentTypeNotSupported(f"Content type {found!r} is not supported. Send application/json.")
            pairs = parse_query(exchange.scope["query_string"])
            query = {name: value for name, value in pairs if name.lower() != "a2a-version"}
            request = dispatcher.accept(exchange, codec.read_request(route, values, query, body))

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
        except ConnectionResetError:
            return
        except Agent3Error as error:
            await self.refuse(exchange, error)
        except Exception:
            log.exception("a request failed")
            await self.refuse(exchange, Agent3Error(INTERNAL))

    async def refuse(self, exchange: Exchange, error: Agent3Error) -> None:
        """Answer with an error, in the form of the generation that was spoken."""
        status, body = self._codecs[exchange.generation].write_error(error)
        headers = [*refusal_headers(error), *self._dispatcher.extension_headers(exchange)]
        if isinstance(error, MethodNotAllowed) and "allow" in error.data:
            headers.append((b"allow", str(error.data["allow"]).encode("latin-1")))
        await send_response(exchange.send, status, msgspec.json.encode(body), _content_type(exchange), headers)


def _content_type(exchange: Exchange) -> bytes:
    """Plain JSON, unless the client accepts the media type of A2A: 1.0.0 and the test kit know only that."""
    return (
        A2A_JSON if exchange.generation == "1.0" and "application/a2a+json" in exchange.headers.accept.lower() else JSON
    )
