"""``Dispatcher``: what all bindings of A2A share between reading a request and writing its answer.

It knows who calls, for which tenant and with which extensions, and hands the request to the engine or to the cards. It
knows no wire: requests and answers are those of ``wire.types``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from msgspec.structs import replace
from starlette.types import Scope

from agent3 import jsonrpc
from agent3.definitions import AgentFeatures
from agent3.errors import MethodNotFound, NotFound, ValidationError
from agent3.model import Principal
from agent3.protocols.a2a.cards.extensions import SEARCH, Extensions
from agent3.protocols.a2a.door.card_pages import CardPages
from agent3.protocols.a2a.door.http import Exchange, Headers
from agent3.protocols.a2a.door.tasks import Caller, Engine
from agent3.protocols.a2a.wire.errors import PushNotSupported, StreamingNotSupported
from agent3.protocols.a2a.wire.types import GetCard, Item, Request, Search, Send, Subscribe

__all__ = ["Dispatcher", "Engines", "Who", "is_streaming"]

Who = Callable[[Scope], Principal]
"""Tells who calls from an ASGI scope; raises Unauthenticated for a caller that proves nothing."""
Engines = Callable[[str | None], Engine]
"""The engine of a tenant."""
R = TypeVar("R", bound=Request)


class Dispatcher:
    """Takes requests of every binding, and has them done."""

    def __init__(
        self,
        engines: Engines,
        who: Who,
        cards: CardPages,
        extensions: Extensions,
        *,
        features: AgentFeatures,
        limits: jsonrpc.Limits,
        body_seconds: float,
        beat: float,
    ):
        self.engine = engines
        self.who = who
        self.limits = limits
        self.beat = beat
        self._cards = cards
        self._extensions = extensions
        self._features = features
        self._body_seconds = body_seconds

    async def read_body(self, exchange: Exchange) -> bytes:
        """The body, within its limits."""
        body = await jsonrpc.read_body(exchange.receive, self.limits.body, self._body_seconds)
        jsonrpc.check_bytes(body, self.limits)
        return body

    def check_offered(self, method: str) -> None:
        """Refuse a method that is not offered, before its params are even looked at."""
        if "ushNotification" in method and not self._features.push_notifications:
            raise PushNotSupported(
                "This agent sends no push notifications. Use streaming, or read the task from time to time."
            )

    def accept(self, exchange: Exchange, request: R) -> R:
        """Activate the extensions of a request; gives it for the tenant whose address it came to."""
        if not isinstance(request, GetCard):
            exchange.extensions = self._extensions.activate(exchange.headers.extensions)
        if isinstance(request, Search) and SEARCH not in exchange.extensions:
            raise MethodNotFound(f"tasks/search is an extension. Activate it: A2A-Extensions: {SEARCH}")
        if is_streaming(request) and not self._features.streaming:
            raise StreamingNotSupported("This agent does not stream. Send the message without streaming.")
        if exchange.tenant is None or request.tenant == exchange.tenant:
            return request
        if request.tenant is not None:
            raise NotFound(f"Tenant {request.tenant[:100]!r} does not exist at this address.")
        return replace(request, tenant=exchange.tenant)

    async def answer(self, exchange: Exchange, principal: Principal, request: Request) -> Any:
        """The answer to a request that does not stream."""
        if isinstance(request, GetCard):
            return await self._cards.extended_card(exchange, principal, request.tenant)
        caller = self._caller(exchange, principal, request)
        engine = self.engine(request.tenant)
        if isinstance(request, Send) and not request.stream:
            value: Any = await engine.send(caller, request)
        else:
            value = await engine.handle(caller, request)
        return await self._extensions.extend(value, caller, engine) if exchange.extensions else value

    async def best_card(self, exchange: Exchange, principal: Principal) -> dict[str, Any]:
        """The extended card where there is one, else the public one."""
        return await self._cards.best_card(exchange, principal)

    async def stream(
        self, exchange: Exchange, principal: Principal, request: Request
    ) -> AsyncGenerator[tuple[int, Item], None]:
        """The items of a stream with their numbers, from after the event that the client received last."""
        caller = self._caller(exchange, principal, request)
        after, last = None, exchange.headers.last_event_id
        if last is not None:
            if not (last.isascii() and last.isdigit() and len(last) <= 17):
                raise ValidationError(f"Last-Event-ID must be the id of an event of this stream, got {last[:40]!r}.")
            after = int(last)
        engine = self.engine(request.tenant)
        if isinstance(request, Subscribe):
            source = engine.subscribe(caller, replace(request, after=after))
        else:
            assert isinstance(request, Send)
            source = engine.stream(caller, request, after)
        async for number, item in source:
            yield number, await self._extensions.extend(item, caller, engine) if exchange.extensions else item

    def extension_headers(self, exchange: Exchange) -> Headers:
        """The header that names the active extensions, as clients of this generation look for it."""
        if not exchange.extensions:
            return ()
        name = b"a2a-extensions" if exchange.generation == "1.0" else b"x-a2a-extensions"
        return ((name, ", ".join(sorted(exchange.extensions)).encode("latin-1", "replace")),)

    def _caller(self, exchange: Exchange, principal: Principal, request: Request) -> Caller:
        trace = self._extensions.traceparent(request, exchange.extensions, exchange.headers.traceparent)
        until: float | None = None
        if (deadline := self._extensions.deadline(request, exchange.headers.deadline)) is not None:
            try:
                time = datetime.fromisoformat(deadline[:40])
            except ValueError:
                expected = "A deadline must be a time such as 2026-01-31T12:00:00Z"
                raise ValidationError(f"{expected}, got {deadline[:40]!r}.") from None
            until = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
        return Caller(
            principal=principal,
            generation=exchange.generation,
            traceparent=trace,
            extensions=exchange.extensions,
            until=until,
        )


def is_streaming(request: Request) -> bool:
    """Whether a request is answered by a stream."""
    return isinstance(request, Subscribe) or (isinstance(request, Send) and request.stream)
