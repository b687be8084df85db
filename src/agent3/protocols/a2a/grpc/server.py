"""``GrpcDoor``: an A2A agent over gRPC, 1.0 and 0.3 on one port, beside an ``A2AEndpoint``.

It uses the dispatcher of the HTTP doors: the same callers, tenants, extensions and engine. The package of a call tells
its generation; an ``A2A-Version`` with another one is refused. With a certificate it speaks TLS, and can require one of
its clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote, urlsplit

import grpc
import grpc.aio
from starlette.types import Scope

from agent3.errors import Agent3Error, SetupError, Unauthenticated
from agent3.identity.certificates import CERTIFICATE, ListenerCertificate, read_peer_pem
from agent3.model import Principal
from agent3.observe.logs import get as logger
from agent3.protocols.a2a.door.dispatch import Dispatcher
from agent3.protocols.a2a.door.endpoint import A2AEndpoint
from agent3.protocols.a2a.door.http import BINDING, INTERNAL, Exchange, refusal_headers
from agent3.protocols.a2a.grpc.codecs import GRPCS, GrpcCodec, Rpc, write_status
from agent3.protocols.a2a.wire import version_of
from agent3.protocols.a2a.wire.errors import VersionNotSupported
from agent3.protocols.a2a.wire.types import GetCard, Item, Request

__all__ = ["GrpcDoor", "Judge"]

log = logger("a2a.door")

_GRACE = 5.0
"""Seconds that running calls have to finish when the door closes."""
_MOST_CALLS = 2_000
_SIGNATURES = frozenset({b"signature", b"signature-input"})

Context: TypeAlias = Any
"""The ServicerContext of a call, generic in what we read and write as bytes."""
Judge: TypeAlias = Callable[[Scope], Awaitable[None]]
"""Adds to a scope what takes time to find out about its caller."""


class GrpcDoor:
    """A port at which the agent of an endpoint answers. It belongs to the loop that starts it.

    ``address`` is where the endpoint answers HTTP: its cards name it.
    """

    name = "gRPC"

    def __init__(
        self,
        endpoint: Callable[[], Awaitable[A2AEndpoint]],
        address: str,
        judge: Judge | None = None,
        certificate: ListenerCertificate | None = None,
    ):
        self._endpoint = endpoint
        self._certificate = certificate
        self._address = urlsplit(address)
        self._judge = judge
        self._running: set[asyncio.Task[Any]] = set()
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen, and say so in the cards. SetupError where the port is taken, unless by others that share it."""
        endpoint = await self._endpoint()
        options = [
            ("grpc.max_receive_message_length", endpoint.dispatcher.limits.body),
            ("grpc.so_reuseport", int(shared)),
        ]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MOST_CALLS)
        for codec in GRPCS.values():
            handlers: dict[str, Any] = {
                name: grpc.unary_stream_rpc_method_handler(partial(self._stream, codec, rpc))
                if rpc.streams
                else grpc.unary_unary_rpc_method_handler(partial(self._answer, codec, rpc))
                for name, rpc in codec.rpcs.items()
            }
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(codec.service, handlers),))
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._certificate is None:
                self.port = server.add_insecure_port(where)
            else:
                self.port = server.add_secure_port(where, _credentials(self._certificate))
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
        if self._running:
            await asyncio.wait(self._running, timeout=_GRACE)

    async def _answer(self, codec: GrpcCodec, rpc: Rpc, data: bytes, context: Context) -> bytes:
        """Answer a call that does not stream. A client that hangs up only stops waiting."""
        exchange = self._open_exchange(codec, context)
        try:
            dispatcher = (await self._endpoint()).dispatcher
            principal, request = await self._accept(exchange, dispatcher, codec, rpc, data)
            work: Awaitable[Any]
            if isinstance(request, GetCard) and exchange.generation == "0.3":
                work = dispatcher.best_card(exchange, principal)
            else:
                work = dispatcher.answer(exchange, principal, request)
            value = await asyncio.shield(self._keep(work))
            await _send_extensions(exchange, dispatcher, context)
            return codec.write_result(rpc, request, value)
        except Exception as error:  # noqa: BLE001 - it is answered, and logged where it is a surprise
            await self._refuse(exchange, error, context)

    async def _stream(self, codec: GrpcCodec, rpc: Rpc, data: bytes, context: Context) -> AsyncIterator[bytes]:
        """Answer a call that streams."""
        exchange = self._open_exchange(codec, context)
        try:
            dispatcher = (await self._endpoint()).dispatcher
            principal, request = await self._accept(exchange, dispatcher, codec, rpc, data)
            items = dispatcher.stream(exchange, principal, request)
            # The first item comes in a task of its own: a client that leaves at once has sent its message all the same.
            opening: asyncio.Task[tuple[int, Item] | None] = self._keep(anext(items, None))
            try:
                first = await asyncio.shield(opening)
                await _send_extensions(exchange, dispatcher, context)
                if first is not None:
                    yield codec.write_item(first[1], request)
                async for _, item in items:
                    yield codec.write_item(item, request)
            finally:

                async def close() -> None:
                    await asyncio.wait((opening,))  # a generator cannot be closed while it runs
                    await items.aclose()

                self._keep(close())
        except Exception as error:  # noqa: BLE001 - it is answered, and logged where it is a surprise
            await self._refuse(exchange, error, context)

    def _open_exchange(self, codec: GrpcCodec, context: Context) -> Exchange:
        """The call as the HTTP exchange that it is, for everything that reads headers and addresses."""
        metadata = [
            (name.encode(), value.encode("latin-1", "replace") if isinstance(value, str) else value)
            for name, value in context.invocation_metadata() or ()
        ]
        # gRPC writes the address of a peer as ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``.
        kind, _, address = unquote(context.peer()).partition(":")
        host, _, port = address.rpartition(":")
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "scheme": self._address.scheme or "http",
            "path": self._address.path or "/",
            "query_string": b"",
            "headers": [(b"host", self._address.netloc.encode()), *metadata],
            "client": (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None,
            BINDING: "grpc",
        }
        shown = context.auth_context() if self._certificate is not None else {}
        if pem := shown.get("x509_pem_cert"):
            names = [name.decode("utf-8", "replace") for name in shown.get("x509_common_name", ())]
            scope[CERTIFICATE] = read_peer_pem(pem[0].decode("ascii"), names)
        exchange = Exchange(scope, _no_asgi, _no_asgi, self._address.path, None)
        exchange.generation = codec.generation
        return exchange

    async def _accept(
        self, exchange: Exchange, dispatcher: Dispatcher, codec: GrpcCodec, rpc: Rpc, data: bytes
    ) -> tuple[Principal, Request]:
        version = version_of(exchange.headers.version)
        if version not in (None, codec.generation):
            raise VersionNotSupported(f"{codec.service} is A2A {codec.generation}, but A2A-Version is {version}.")
        if any(name in _SIGNATURES for name, _ in exchange.scope["headers"]):
            # What a signature covers is an HTTP request, with its path and digest; over gRPC it would prove nothing.
            raise Unauthenticated(
                "Signed requests are accepted over HTTP only, because the path and body of gRPC differ from "
                f"the signed ones. Send them as JSON-RPC or REST to {self._address.geturl()}, or use a key "
                "or a token."
            )
        if self._judge is not None:
            await self._judge(exchange.scope)
        principal = dispatcher.who(exchange.scope)
        dispatcher.check_offered(rpc.name)
        return principal, dispatcher.accept(exchange, codec.read_request(rpc, data, dispatcher.limits))

    async def _refuse(self, exchange: Exchange, error: Exception, context: Context) -> NoReturn:
        """Answer with an error, with the status and details of the generation that was spoken."""
        if not isinstance(error, Agent3Error):
            log.error("a call failed", exc_info=error)
            error = Agent3Error(INTERNAL)
        endpoint = await self._endpoint()
        code, text, status = write_status(error, exchange.generation, endpoint.profile)
        headers = ((name.decode(), value.decode()) for name, value in refusal_headers(error))
        trailers = (("grpc-status-details-bin", status), *headers)
        await context.abort(getattr(grpc.StatusCode, code), text, trailers)
        raise AssertionError("abort raises")

    def _keep(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run something to its end, whatever becomes of the call."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._running.add(task)

        def forget(task: asyncio.Task[Any]) -> None:
            self._running.discard(task)
            if not task.cancelled():
                task.exception()  # mark it as seen: the call that waited for it has it, or is gone

        task.add_done_callback(forget)
        return task


async def _send_extensions(exchange: Exchange, dispatcher: Dispatcher, context: Context) -> None:
    headers = dispatcher.extension_headers(exchange)
    await context.send_initial_metadata(tuple((name.decode(), value.decode()) for name, value in headers))


async def _no_asgi(*_: Any) -> Any:
    raise RuntimeError("gRPC reads and answers by itself, not by ASGI")


def _credentials(certificate: ListenerCertificate) -> grpc.ServerCredentials:
    """What gRPC answers with: the files as they are when a connection comes.

    gRPC either requires a certificate of its clients or does not look at it: there is no asking for one.
    """

    def read() -> Any:
        authority = certificate.read_authority() if certificate.is_required_over_grpc else None
        return grpc.ssl_server_certificate_configuration([certificate.read_pair()], authority)

    def read_again() -> Any:
        try:
            return read()
        except OSError:
            return None  # it goes on with what it had

    return grpc.dynamic_ssl_server_credentials(
        read(), read_again, require_client_authentication=certificate.is_required_over_grpc
    )
