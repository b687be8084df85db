"""``GrpcChannel``: one agent over gRPC, asked in the shapes of the package. Its address is judged by the gate.

A name is resolved and judged once, when the channel is made, and the connection goes to what was judged; the name stays
the one that certificates are held against. Proxy variables are not read.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio

from agent3 import jsonrpc
from agent3.errors import Agent3Error, ValidationError
from agent3.protocols.a2a.grpc.codecs import GRPCS, Rpc, read_status
from agent3.protocols.a2a.wire import Value
from agent3.protocols.a2a.wire.types import Generation, Item, Request
from agent3.security.outbound import Gate

__all__ = ["ANSWERS", "GrpcChannel"]

ANSWERS = jsonrpc.Limits(body=8 << 20, nodes=200_000)
"""What an agent may answer: more than a stranger may ask."""
_NO_CONNECTION = "failed to connect"
_DETAILS = "grpc-status-details-bin"
_SECURE = frozenset({"https", "grpcs"})


class GrpcChannel:
    """A connection to an agent, for many requests at once; it belongs to the loop that made it.

    Errors are those of the house: what the agent says of itself by its details, and Unavailable or CallTimeout where
    there was no answer, with ``sent`` False if nothing can have left.
    """

    def __init__(self, channel: grpc.aio.Channel, generation: Generation, limits: jsonrpc.Limits = ANSWERS):
        self._channel = channel
        self._codec = GRPCS[generation]
        self._limits = limits

    @classmethod
    async def to(
        cls,
        gate: Gate,
        address: str,
        generation: Generation = "1.0",
        *,
        tls: bool | None = None,
        roots: bytes | None = None,
        limits: jsonrpc.Limits = ANSWERS,
    ) -> GrpcChannel:
        """A channel to ``host:port``, as cards write it, or to a URL. TLS by its scheme, by port 443, or as told.

        ``roots`` are the certificates to trust, in PEM, instead of those of this machine. SecurityError, Unavailable.
        """
        parts = urlsplit(address if "://" in address else f"//{address}")
        secure = tls if tls is not None else parts.scheme in _SECURE or (not parts.scheme and _port(parts) == 443)
        port = _port(parts) or (443 if secure else 80)
        name = f"{parts.netloc.rpartition(':')[0] if parts.port is not None else parts.netloc}:{port}"
        found = await gate.addresses(f"{'https' if secure else 'http'}://{name}/")
        trusted = grpc.ssl_channel_credentials(roots or _roots()) if secure else None
        return cls(_opened(found, port, name, trusted, limits.body), generation, limits)

    async def ask(
        self, request: Request, *, metadata: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> Value:
        """What a request that does not stream is answered with."""
        rpc, data = self._codec.ask(request)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(self._path(rpc))
        try:
            answer = await call(data, metadata=self._headers(metadata), timeout=timeout)
        except grpc.aio.AioRpcError as wrong:
            raise _told(wrong) from None
        return self._codec.read(rpc, request, answer, self._limits)

    async def stream(
        self, request: Request, *, metadata: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Item, None]:
        """What a request that streams is told. Leaving early ends the call."""
        rpc, data = self._codec.ask(request)
        opened: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(self._path(rpc))
        call = opened(data, metadata=self._headers(metadata), timeout=timeout)
        try:
            async for answer in call:
                yield self._codec.read_item(answer, self._limits)
        except grpc.aio.AioRpcError as wrong:
            raise _told(wrong) from None
        finally:
            call.cancel()

    async def aclose(self) -> None:
        """Close the connection; what still waits for an answer ends as Canceled."""
        await self._channel.close()

    def _path(self, rpc: Rpc) -> str:
        return f"/{self._codec.service}/{rpc.name}"

    def _headers(self, more: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
        given = {name.lower(): value for name, value in (more or {}).items()}
        return tuple({"a2a-version": self._codec.generation, **given}.items())


def _port(parts: Any) -> int | None:
    try:
        port: int | None = parts.port
    except ValueError:
        raise ValidationError("The address of the agent has a port that is no number. Write host:port.") from None
    return port


def _opened(addresses: list[str], port: int, name: str, trusted: Any, most: int) -> grpc.aio.Channel:
    # One kind of address is enough, and a target of gRPC can only hold one.
    fourth = [one for one in addresses if ":" not in one]
    places = ",".join(f"{one}:{port}" for one in fourth) or ",".join(f"[{one}]:{port}" for one in addresses)
    target = f"{'ipv4' if fourth else 'ipv6'}:{places}"
    options = [
        ("grpc.default_authority", name),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", most),
        ("grpc.enable_retries", 0),
    ]
    if trusted is None:
        return grpc.aio.insecure_channel(target, options=options)
    options.append(("grpc.ssl_target_name_override", name.rpartition(":")[0].strip("[]")))
    return grpc.aio.secure_channel(target, trusted, options=options)


@cache
def _roots() -> bytes | None:
    """The certificates that this machine trusts; those that grpcio brings along where it names none."""
    file: str | None = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else None


def _told(wrong: grpc.aio.AioRpcError) -> Agent3Error:
    details = dict(wrong.trailing_metadata() or ()).get(_DETAILS)
    text = wrong.details() or ""
    code = wrong.code().name
    told = read_status(code, text, details if isinstance(details, bytes) else None)
    told.sent = not (code == "UNAVAILABLE" and _NO_CONNECTION in text)
    return told
