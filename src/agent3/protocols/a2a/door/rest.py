"""A2A as REST: 1.0 below the address of the agent, 0.3 below ``/v1`` of it, with the statuses that each of them has."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from agent3 import jsonrpc
from agent3.errors import Agent3Error, MethodNotAllowed
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.dispatch import Desk, streams
from agent3.protocols.a2a.door.http import A2A_JSON, JSON, Talk, answer, query_of, refusal_headers, stream
from agent3.protocols.a2a.wire import RestCodec, rest_codecs, version_of
from agent3.protocols.a2a.wire.errors import ContentTypeNotSupported, Profile, VersionNotSupported
from agent3.protocols.a2a.wire.types import Generation, Request

__all__ = ["RestDoor"]

log = logger("a2a.door")

_KINDS: Final = frozenset({"application/json", "application/a2a+json"})
_THIRD: Final = "/v1/"
_INTERNAL = "Internal error. The log says more."


class RestDoor:
    """Answers what is asked below the address of an agent."""

    def __init__(self, desk: Desk, *, profile: Profile = "1.0.1", lenient: bool = False):
        self._desk = desk
        self._lenient = lenient
        self._codecs: dict[Generation, RestCodec] = rest_codecs(profile)

    async def serve(self, talk: Talk, path: str) -> None:
        """One request. ``path`` is what stands below the agent's address, as it came."""
        talk.words = "0.3" if _is_third(talk, path) else "1.0"
        try:
            await self._serve(talk, path)
        except ConnectionResetError:
            return
        except Agent3Error as wrong:
            await self.refuse(talk, wrong)
        except Exception:
            log.exception("a request failed")
            await self.refuse(talk, Agent3Error(_INTERNAL))

    async def refuse(self, talk: Talk, wrong: Agent3Error) -> None:
        """Tell what went wrong, in the words of the generation that was spoken."""
        status, body = self._codecs[talk.words].write_error(wrong)
        more = (*refusal_headers(wrong), *self._desk.echo(talk))
        if isinstance(wrong, MethodNotAllowed) and "allow" in wrong.data:
            more = (*more, (b"allow", str(wrong.data["allow"]).encode("latin-1")))
        await answer(talk.send, status, msgspec.json.encode(body), _kind(talk), more)

    async def _serve(self, talk: Talk, path: str) -> None:
        codec = self._codecs[talk.words]
        route, values = codec.match(talk.scope["method"], path)
        self._check_version(talk)
        principal = self._desk.who(talk.scope)
        self._desk.offer(route.method)
        body = await self._desk.body(talk)
        if body and talk.heard.kind not in _KINDS:
            raise ContentTypeNotSupported(f"{talk.heard.kind[:100]!r} is not taken here. Send application/json.")
        request = self._desk.taken(talk, codec.read_request(route, values, _query(talk), body))
        if streams(request):
            frames = self._frames(talk, principal, request, codec)
            await stream(
                talk.receive,
                talk.send,
                frames,
                lambda wrong: jsonrpc.sse(msgspec.json.encode(codec.write_error(wrong)[1]), event="error"),
                more=self._desk.echo(talk),
                beat=self._desk.beat,
            )
            return
        value = await self._desk.answered(talk, principal, request)
        await answer(talk.send, 200, codec.write_result(request, value), _kind(talk), self._desk.echo(talk))

    def _check_version(self, talk: Talk) -> None:
        """A path of 1.0 without a version is one of 0.3 by the specification, which has no such path."""
        asked = version_of(talk.heard.version)
        if asked is None and talk.words == "1.0" and not self._lenient:
            raise VersionNotSupported("This is a path of A2A 1.0; say so with the header A2A-Version: 1.0")
        if asked not in (None, talk.words):
            raise VersionNotSupported(f"This is a path of A2A {talk.words}, and A2A-Version says {asked}")

    async def _frames(
        self, talk: Talk, principal: Principal, request: Request, codec: RestCodec
    ) -> AsyncGenerator[bytes, None]:
        async for number, item in self._desk.items(talk, principal, request):
            yield jsonrpc.sse(codec.write_item(item, request), id=str(number))


def _is_third(talk: Talk, path: str) -> bool:
    """Whether a path is one of 0.3: a tenant of 1.0 may be called v1, but then the request says that it is 1.0."""
    return path.startswith(_THIRD) and not (talk.heard.version or "").startswith("1")


def _kind(talk: Talk) -> bytes:
    """Plain JSON, unless the client names the media type of A2A: clients of 1.0.0 and the test kit know only that."""
    return A2A_JSON if talk.words == "1.0" and "application/a2a+json" in talk.heard.accept.lower() else JSON


def _query(talk: Talk) -> dict[str, str]:
    return {name: value for name, value in query_of(talk.scope["query_string"]) if name.lower() != "a2a-version"}
