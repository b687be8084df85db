"""A2A as JSON-RPC, every generation at one address.

The method names the generation, and where two share a name the version that the request states, the task that it asks
for, or what the caller spoke last. An error is answered in the words of the generation too, with status 200 but for
those that clients of HTTP look for: who are you, you may not, too much, too slow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from msgspec import Raw, Struct

from agent3 import jsonrpc
from agent3.errors import AccessError, Agent3Error, RateLimited, RequestError, TooLarge, TooSlow
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.dispatch import Desk, streams
from agent3.protocols.a2a.door.http import Talk, answer, refusal_headers, stream
from agent3.protocols.a2a.wire import CODECS, Codec, generation_of
from agent3.protocols.a2a.wire.errors import ContentTypeNotSupported, VersionNotSupported
from agent3.protocols.a2a.wire.operations import OWNERS
from agent3.protocols.a2a.wire.types import Generation, GetCard, Request

__all__ = ["RpcDoor"]

log = logger("a2a.door")

_KINDS: Final = frozenset({"application/json", "application/a2a+json", "application/json-rpc", ""})
_REMEMBERED = 10_000
"""Callers of whom it is remembered which generation they spoke last."""
_INTERNAL = "Internal error. The log says more."
_REFUSED: Final = "agent3.a2a.refused"
"""Where the scope holds what came of a request that was begun without ASGI."""


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

    def __init__(self, desk: Desk, *, lenient: bool = False):
        self._desk = desk
        self._lenient = lenient
        self._spoken: OrderedDict[str, Generation] = OrderedDict()

    async def serve(self, talk: Talk) -> None:
        """One request, from its body to its answer."""
        try:
            await self._serve(talk)
        except ConnectionResetError:
            return
        except Agent3Error as wrong:
            await self._refuse(talk, wrong)
        except Exception:
            log.exception("a request failed")
            await self._refuse(talk, Agent3Error(_INTERNAL))

    async def _serve(self, talk: Talk) -> None:
        body = await self._desk.body(talk)
        if talk.heard.kind not in _KINDS:
            raise ContentTypeNotSupported(f"{talk.heard.kind[:100]!r} is not taken here. Send application/json.")
        said = self._said(talk, body)
        talk.words = self._generation(talk, said)
        if (wrong := talk.scope.pop(_REFUSED, None)) is not None:
            raise wrong
        principal = self._desk.who(talk.scope)
        if OWNERS.get(said.method, "") is None and not talk.heard.version:
            talk.words = await self._remembered(talk, said, principal)
        self._desk.offer(said.method)
        codec = CODECS[talk.words]
        request = self._desk.taken(talk, codec.read_request(said.method, said.params))
        self._remember(principal, talk.words)
        if streams(request):
            await self._stream(talk, self._frames(talk, principal, request, codec))
            return
        value = await self._desk.answered(talk, principal, request)
        result = jsonrpc.result_raw(talk.key, codec.write_result(request, value))
        await answer(talk.send, 200, result, more=self._desk.echo(talk))

    async def reply(self, talk: Talk, principal: Principal, body: bytes) -> bytes | None:
        """The answer to a regular request of this caller, without ASGI; None for one that has to come that way.

        Nothing is refused here. Whatever goes wrong once something was begun is left in the scope, to be told that way.
        """
        regular = self._regular(talk, body)
        if regular is None:
            return None
        codec, request = regular
        self._remember(principal, talk.words)
        try:
            value = await self._desk.answered(talk, principal, request)
            return jsonrpc.result_raw(talk.key, codec.write_result(request, value))
        except Agent3Error as wrong:
            talk.scope[_REFUSED] = wrong
        except Exception:
            log.exception("a request failed")
            talk.scope[_REFUSED] = Agent3Error(_INTERNAL)
        return None

    def _regular(self, talk: Talk, body: bytes) -> tuple[Codec, Request] | None:
        """What is asked, where it is well said and answered in one piece, in the words of one generation alone."""
        limits = self._desk.limits
        if talk.heard.extensions or talk.heard.kind not in _KINDS or len(body) > limits.body:
            return None
        try:
            jsonrpc.check_bytes(body, limits)
            said = _envelopes.decode(body)
            if said.jsonrpc != "2.0" or OWNERS.get(said.method) is None:
                return None
            talk.key, talk.words = said.id, self._generation(talk, said)
            self._desk.offer(said.method)
            codec = CODECS[talk.words]
            request = self._desk.taken(talk, codec.read_request(said.method, said.params))
        except (Agent3Error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return None if streams(request) or isinstance(request, GetCard) else (codec, request)

    def _said(self, talk: Talk, body: bytes) -> _Envelope:
        """The message in a body. A batch is none: A2A has no use for it, and no generation describes one."""
        try:
            said = _envelopes.decode(body)
            talk.key = said.id
            if said.jsonrpc == "2.0":
                return said
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            log.debug("a body is no regular message")
        message = jsonrpc.parse(body, self._desk.limits)
        raise RequestError(f"A request is wanted here, with a method and an id, not {type(message).__name__}.")

    def _generation(self, talk: Talk, said: _Envelope) -> Generation:
        """The generation as far as method and version say it."""
        return generation_of(said.method, talk.heard.version, lambda _: None, lenient=self._lenient)

    async def _remembered(self, talk: Talk, said: _Envelope, principal: Principal) -> Generation:
        """The generation of a method that two of them share: that of its task, else the one spoken last."""
        try:
            known = await self._desk.engine(talk.tenant).generation(principal, _ids.decode(said.params).id)
        except msgspec.MsgspecError:
            known = None
        last = known or self._spoken.get(principal.id)
        return generation_of(said.method, None, lambda _: last)

    def _remember(self, principal: Principal, spoken: Generation) -> None:
        if spoken == "1.0" or self._spoken.get(principal.id) == spoken:
            return
        self._spoken[principal.id] = spoken
        if len(self._spoken) > _REMEMBERED:
            self._spoken.popitem(last=False)

    async def _stream(self, talk: Talk, frames: AsyncGenerator[bytes, None]) -> None:
        await stream(
            talk.receive,
            talk.send,
            frames,
            lambda wrong: jsonrpc.sse(self._error(talk, wrong)),
            more=self._desk.echo(talk),
            beat=self._desk.beat,
            # 1.0 says that an error is a response of its own; before that clients expect a stream whatever comes.
            always=talk.words != "1.0",
        )

    async def _frames(
        self, talk: Talk, principal: Principal, request: Request, codec: Codec
    ) -> AsyncGenerator[bytes, None]:
        async for number, item in self._desk.items(talk, principal, request):
            yield jsonrpc.sse(jsonrpc.result_raw(talk.key, codec.write_item(item, request)), id=str(number))

    async def _refuse(self, talk: Talk, wrong: Agent3Error) -> None:
        if isinstance(wrong, RequestError) and talk.key is None:
            talk.key = jsonrpc.id_of(wrong)
        if isinstance(wrong, VersionNotSupported):
            talk.words = "1.0"  # only there is a number for it
        more = (*refusal_headers(wrong), *self._desk.echo(talk))
        await answer(talk.send, _status(wrong), self._error(talk, wrong), more=more)

    def _error(self, talk: Talk, wrong: Agent3Error) -> bytes:
        return msgspec.json.encode({"jsonrpc": "2.0", "id": talk.key, "error": CODECS[talk.words].write_error(wrong)})


def _status(wrong: Agent3Error) -> int:
    told = isinstance(wrong, (AccessError, TooLarge, TooSlow)) and not isinstance(wrong, RateLimited)
    return wrong.http_status if told else 200
