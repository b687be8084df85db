"""What all bindings of A2A share: who asks, for whom, with which extensions, and what comes of it."""

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
from agent3.protocols.a2a.door.card_pages import CardDesk
from agent3.protocols.a2a.door.http import Headers, Talk
from agent3.protocols.a2a.door.tasks import Caller, Engine
from agent3.protocols.a2a.wire.errors import PushNotSupported, StreamingNotSupported
from agent3.protocols.a2a.wire.types import GetCard, Item, Request, Search, Send, Subscribe

__all__ = ["Desk", "Engines", "Who", "streams"]

Who = Callable[[Scope], Principal]
"""Tells who calls from an ASGI scope; raises Unauthenticated for a caller that proves nothing."""
Engines = Callable[[str | None], Engine]
"""The engine of a tenant."""
R = TypeVar("R", bound=Request)


class Desk:
    """Takes requests that were read, and has them done."""

    def __init__(
        self,
        engines: Engines,
        who: Who,
        cards: CardDesk,
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

    async def body(self, talk: Talk) -> bytes:
        """The body, within its bounds."""
        body = await jsonrpc.read_body(talk.receive, self.limits.body, self._body_seconds)
        jsonrpc.check_bytes(body, self.limits)
        return body

    def offer(self, operation: str) -> None:
        """Refuse an operation that is not offered, before anybody asks whether it is well said."""
        if "ushNotification" in operation and not self._features.push_notifications:
            raise PushNotSupported("This agent sends no push notifications. Stream, or read the task now and then.")

    def taken(self, talk: Talk, request: R) -> R:
        """The request for the tenant whose address it came to, once its extensions are agreed on."""
        if not isinstance(request, GetCard):
            talk.active = self._extensions.activate(talk.heard.extensions)
        if isinstance(request, Search) and SEARCH not in talk.active:
            raise MethodNotFound(f"tasks/search is an extension. Activate it: A2A-Extensions: {SEARCH}")
        if streams(request) and not self._features.streaming:
            raise StreamingNotSupported("This agent does not stream. Send the message without streaming.")
        if talk.tenant is None or request.tenant == talk.tenant:
            return request
        if request.tenant is not None:
            raise NotFound(f"There is no tenant {request.tenant[:100]!r} at this address.")
        return replace(request, tenant=talk.tenant)

    async def answered(self, talk: Talk, principal: Principal, request: Request) -> Any:
        """What comes of a request that does not stream."""
        if isinstance(request, GetCard):
            return await self._cards.extended(talk, principal, request.tenant)
        caller = self._caller(talk, principal, request)
        engine = self.engine(request.tenant)
        if isinstance(request, Send) and not request.stream:
            value: Any = await engine.send(caller, request)
        else:
            value = await engine.handle(caller, request)
        return await self._extensions.extend(value, caller, engine) if talk.active else value

    async def card(self, talk: Talk, principal: Principal) -> Any:
        """The card of this address, for whoever asks by a call."""
        return await self._cards.open(talk, principal)

    async def items(self, talk: Talk, principal: Principal, request: Request) -> AsyncGenerator[tuple[int, Item], None]:
        """What a stream tells, from after the event that the client saw last."""
        caller, after = self._caller(talk, principal, request), _number(talk.heard.last_event)
        engine = self.engine(request.tenant)
        if isinstance(request, Subscribe):
            source = engine.subscribe(caller, replace(request, after=after))
        else:
            assert isinstance(request, Send)
            source = engine.stream(caller, request, after)
        async for number, item in source:
            yield number, await self._extensions.extend(item, caller, engine) if talk.active else item

    def echo(self, talk: Talk) -> Headers:
        """The extensions that were activated, as clients of this generation look for them."""
        if not talk.active:
            return ()
        name = b"a2a-extensions" if talk.words == "1.0" else b"x-a2a-extensions"
        return ((name, ", ".join(sorted(talk.active)).encode("latin-1", "replace")),)

    def _caller(self, talk: Talk, principal: Principal, request: Request) -> Caller:
        trace = self._extensions.traceparent(request, talk.active, talk.heard.traceparent)
        until = self._extensions.deadline(request, talk.heard.deadline)
        return Caller(
            principal=principal, generation=talk.words, traceparent=trace, extensions=talk.active, until=_moment(until)
        )


def streams(request: Request) -> bool:
    """Whether a request is answered by a stream."""
    return isinstance(request, Subscribe) or (isinstance(request, Send) and request.stream)


def _moment(deadline: str | None) -> float | None:
    """The moment that a deadline names, in seconds since the epoch."""
    if deadline is None:
        return None
    try:
        moment = datetime.fromisoformat(deadline[:40])
    except ValueError:
        raise ValidationError(f"A deadline is a moment as in 2026-01-31T12:00:00Z, got {deadline[:40]!r}.") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _number(last: str | None) -> int | None:
    """The event that a client saw last."""
    if last is None:
        return None
    if not (last.isascii() and last.isdigit() and len(last) <= 17):
        raise ValidationError(f"Last-Event-ID must be the id of an event that was told here, got {last[:40]!r}.")
    return int(last)
