"""``GrpcDoor``: an A2A agent over gRPC, both generations that have it on one port, beside an ``A2AEndpoint``.

It asks the same desk as the HTTP doors: the same callers, tenants, extensions and engine. The package of a call names
its generation; an ``A2A-Version`` that says another is refused. gRPC is spoken without TLS, as HTTP is here: both
stand on loopback or behind what ends TLS for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote, urlsplit

import grpc
import grpc.aio
from starlette.types import Message, Scope

from agent3.errors import Agent3Error, SetupError, Unauthenticated
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.dispatch import Desk
from agent3.protocols.a2a.door.endpoint import A2AEndpoint
from agent3.protocols.a2a.door.http import BINDING, Talk, refusal_headers
from agent3.protocols.a2a.grpc.codecs import GRPCS, GrpcCodec, Rpc, write_status
from agent3.protocols.a2a.wire import version_of
from agent3.protocols.a2a.wire.errors import VersionNotSupported
from agent3.protocols.a2a.wire.types import GetCard, Item, Request

__all__ = ["GrpcDoor", "Judge"]

log = logger("a2a.door")

_GRACE = 5.0
"""Seconds that running calls have to finish when it stops."""
_MOST_CALLS = 2_000
_SIGNATURES = frozenset({b"signature", b"signature-input"})

Context: TypeAlias = Any
"""The side of a call that grpcio hands over, generic in what we read and write as bytes."""
Judge: TypeAlias = Callable[[Scope], Awaitable[None]]
"""Leaves in a scope what it takes time to find out about its caller."""


class GrpcDoor:
    """A port on which the agent of an endpoint answers. It lives in the loop that starts it.

    ``address`` is where the endpoint answers HTTP: its cards name it.
    """

    def __init__(self, endpoint: Callable[[], Awaitable[A2AEndpoint]], address: str, judge: Judge | None = None):
        self._endpoint = endpoint
        self._address = urlsplit(address)
        self._judge = judge
        self._begun: set[asyncio.Task[Any]] = set()
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen, and say so in the cards. SetupError where the port is taken."""
        endpoint = await self._endpoint()
        options = [("grpc.max_receive_message_length", endpoint.desk.limits.body), ("grpc.so_reuseport", 0)]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_CALLS)
        for codec in GRPCS.values():
            handlers = {name: _handler(self, codec, rpc) for name, rpc in codec.rpcs.items()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(codec.service, handlers),))
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = server.add_insecure_port(where)
        except RuntimeError:
            await server.stop(None)
            raise SetupError(f"gRPC cannot listen on {where}. Choose another port; 0 takes a free one.") from None
        await server.start()
        self._server = server
        endpoint.grpc_at(self.port)

    async def aclose(self) -> None:
        """Let running calls finish for a while, and stop. Tasks that were begun go on."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(_GRACE)
        if self._begun:
            await asyncio.wait(self._begun, timeout=_GRACE)

    async def unary(self, codec: GrpcCodec, rpc: Rpc, data: bytes, context: Context) -> bytes:
        """One call with one answer. Who hangs up stops waiting, and nothing else."""
        talk = self._talk(codec, context)
        try:
            endpoint = await self._endpoint()
            principal, request = await self._asked(talk, endpoint.desk, codec, rpc, data)
            value = await asyncio.shield(self._kept(_answered(talk, endpoint.desk, principal, request)))
            await _greet(talk, endpoint.desk, context)
            return codec.write_result(rpc, request, value)
        except Exception as wrong:  # noqa: BLE001 - it is told, and logged where it is a surprise
            await self._refuse(talk, wrong, context)

    async def stream(self, codec: GrpcCodec, rpc: Rpc, data: bytes, context: Context) -> AsyncIterator[bytes]:
        """One call with many."""
        talk = self._talk(codec, context)
        try:
            endpoint = await self._endpoint()
            principal, request = await self._asked(talk, endpoint.desk, codec, rpc, data)
            items = endpoint.desk.items(talk, principal, request)
            # A client that leaves at once has said its message all the same.
            opening = self._kept(_first(items))
            try:
                opened = await asyncio.shield(opening)
                await _greet(talk, endpoint.desk, context)
                for _, item in opened:
                    yield codec.write_item(item, request)
                async for _, item in items:
                    yield codec.write_item(item, request)
            finally:
                self._kept(_closed(items, opening))
        except Exception as wrong:  # noqa: BLE001 - it is told, and logged where it is a surprise
            await self._refuse(talk, wrong, context)

    async def _asked(
        self, talk: Talk, desk: Desk, codec: GrpcCodec, rpc: Rpc, data: bytes
    ) -> tuple[Principal, Request]:
        asked = version_of(talk.heard.version)
        if asked not in (None, codec.generation):
            raise VersionNotSupported(f"{codec.service} is A2A {codec.generation}, and A2A-Version says {asked}")
        self._check_unsigned(talk)
        if self._judge is not None:
            await self._judge(talk.scope)
        principal = desk.who(talk.scope)
        desk.offer(rpc.name)
        return principal, desk.taken(talk, codec.read_request(rpc, data, desk.limits))

    def _check_unsigned(self, talk: Talk) -> None:
        """A signature is over a request of HTTP, with its path and its digest; here it would prove nothing."""
        if any(name in _SIGNATURES for name, _ in talk.scope["headers"]):
            raise Unauthenticated(
                "Signed requests are taken over HTTP alone: what is signed there, path and body, is another over "
                f"gRPC. Send them as JSON-RPC or REST to {self._address.geturl()}, or show a key or a token here."
            )

    def _kept(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._begun.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still waited has it

    async def _refuse(self, talk: Talk, wrong: Exception, context: Context) -> NoReturn:
        """Tell what went wrong, with the status and details of the generation that was spoken."""
        if not isinstance(wrong, Agent3Error):
            log.error("a call failed", exc_info=wrong)
            wrong = Agent3Error("Internal error. The log says more.")
        endpoint = await self._endpoint()
        code, text, status = write_status(wrong, talk.words, endpoint.profile)
        headers = ((name.decode(), value.decode()) for name, value in refusal_headers(wrong))
        trailers = (("grpc-status-details-bin", status), *headers)
        await context.abort(getattr(grpc.StatusCode, code), text, trailers)
        raise AssertionError("abort raises")

    def _talk(self, codec: GrpcCodec, context: Context) -> Talk:
        """The call as an exchange of HTTP, which it is: what reads headers and addresses need not know of gRPC."""
        metadata = [(name.encode(), _bytes(value)) for name, value in context.invocation_metadata() or ()]
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "scheme": self._address.scheme or "http",
            "path": self._address.path or "/",
            "query_string": b"",
            "headers": [(b"host", self._address.netloc.encode()), *metadata],
            "client": _client(context.peer()),
            BINDING: "grpc",
        }
        talk = Talk(scope, _nothing, _nowhere, self._address.path, None)
        talk.words = codec.generation
        return talk


def _handler(door: GrpcDoor, codec: GrpcCodec, rpc: Rpc) -> Any:
    if rpc.streams:

        async def many(data: bytes, context: Context) -> AsyncIterator[bytes]:
            async for one in door.stream(codec, rpc, data, context):
                yield one

        return grpc.unary_stream_rpc_method_handler(many)

    async def one(data: bytes, context: Context) -> bytes:
        return await door.unary(codec, rpc, data, context)

    return grpc.unary_unary_rpc_method_handler(one)


Items: TypeAlias = AsyncGenerator[tuple[int, Item], None]


async def _answered(talk: Talk, desk: Desk, principal: Principal, request: Request) -> Any:
    if isinstance(request, GetCard) and talk.words == "0.3":
        return await desk.card(talk, principal)
    return await desk.answered(talk, principal, request)


async def _greet(talk: Talk, desk: Desk, context: Context) -> None:
    """Say which extensions are active."""
    await context.send_initial_metadata(tuple((name.decode(), value.decode()) for name, value in desk.echo(talk)))


async def _first(items: Items) -> list[tuple[int, Item]]:
    """The first of them, if there is one."""
    async for one in items:
        return [one]
    return []


async def _closed(items: Items, opening: asyncio.Task[Any]) -> None:
    await asyncio.wait((opening,))
    await items.aclose()


def _bytes(value: str | bytes) -> bytes:
    return value.encode("latin-1", "replace") if isinstance(value, str) else value


def _client(peer: str) -> tuple[str, int] | None:
    """The address of a peer, which gRPC writes as ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``."""
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _nowhere(message: Message) -> None:
    log.debug("gRPC answers by itself, not by %s", message["type"])
