"""``GrpcChannel``: a connection to one agent over gRPC, with requests and answers of ``wire.types``.

A name is resolved and checked by the outbound gate once, when the channel is made, and the connection goes to what was
checked; certificates are verified against the name. Proxy variables are ignored.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import grpc.aio

from agent3 import jsonrpc
from agent3.env import REAL
from agent3.errors import Agent3Error, RateLimited, TooLarge, ValidationError
from agent3.protocols.a2a.grpc.codecs import GRPCS, Rpc, read_status
from agent3.protocols.a2a.wire import Value
from agent3.protocols.a2a.wire.types import Generation, Item, Request
from agent3.security.outbound import Gate

__all__ = ["ANSWERS", "GrpcChannel"]

ANSWERS = jsonrpc.Limits(body=8 << 20, nodes=200_000)
"""Limits of an agent's answers, which are higher than those of a stranger's requests."""
STREAM_BYTES = 256 << 20
"""Bytes of a whole stream; each of its messages is bounded like an answer."""
_NO_CONNECTION = "failed to connect"
_DETAILS = "grpc-status-details-bin"
_SECURE = frozenset({"https", "grpcs"})


class GrpcChannel:
    """A connection to an agent, for many requests at once; it belongs to the loop that made it.

    Errors are ours: the one that the agent names in its details, or Unavailable or CallTimeout where there was no
    answer, with ``sent`` False if nothing can have been sent.
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
        """A channel to ``host:port``, as cards write it, or to a URL. TLS by its scheme, by port 443, or as given.

        ``roots`` are the certificates to trust, in PEM, instead of those of this machine. SecurityError, Unavailable.
        """
        parts = urlsplit(address if "://" in address else f"//{address}")
        try:
            given = parts.port
        except ValueError:
            raise ValidationError("The address of the agent has an invalid port. Write host:port.") from None
        secure = tls if tls is not None else parts.scheme in _SECURE or (not parts.scheme and given == 443)
        port = given or (443 if secure else 80)
        name = f"{parts.netloc.rpartition(':')[0] if given is not None else parts.netloc}:{port}"
        found = await gate.addresses(f"{'https' if secure else 'http'}://{name}/")

        # A gRPC target holds addresses of one family only; one is enough.
        ipv4 = [address for address in found if ":" not in address]
        places = [f"{address}:{port}" for address in ipv4] or [f"[{address}]:{port}" for address in found]
        target = f"{'ipv4' if ipv4 else 'ipv6'}:{','.join(places)}"
        options = [
            ("grpc.default_authority", name),
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", limits.body),
            ("grpc.enable_retries", 0),
        ]
        if not secure:
            return cls(grpc.aio.insecure_channel(target, options=options), generation, limits)
        options.append(("grpc.ssl_target_name_override", name.rpartition(":")[0].strip("[]")))
        trusted = grpc.ssl_channel_credentials(roots or _roots())
        return cls(grpc.aio.secure_channel(target, trusted, options=options), generation, limits)

    async def ask(
        self, request: Request, *, metadata: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> Value:
        """The answer to a request that does not stream."""
        rpc, data = self._codec.write_request(request)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(self._path(rpc))
        try:
            answer = await call(data, metadata=self._headers(metadata), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise _read_error(error) from None
        return self._codec.read_result(rpc, request, answer, self._limits)

    async def stream(
        self, request: Request, *, metadata: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Item, None]:
        """The items that answer a request that streams. Leaving early ends the call."""
        rpc, data = self._codec.write_request(request)
        opened: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(self._path(rpc))
        call = opened(data, metadata=self._headers(metadata), timeout=timeout)
        size = 0
        try:
            async for answer in call:
                size += len(answer)
                if size > STREAM_BYTES:
                    raise TooLarge(f"The stream has more than {STREAM_BYTES >> 20} MiB.")
                yield self._codec.read_item(answer, self._limits)
        except grpc.aio.AioRpcError as error:
            raise _read_error(error) from None
        finally:
            call.cancel()

    async def aclose(self) -> None:
        """Close the connection; requests that still wait for an answer end as Canceled."""
        await self._channel.close()

    def _path(self, rpc: Rpc) -> str:
        return f"/{self._codec.service}/{rpc.name}"

    def _headers(self, more: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
        given = {name.lower(): value for name, value in (more or {}).items()}
        return tuple({"a2a-version": self._codec.generation, **given}.items())


@cache
def _roots() -> bytes | None:
    """The certificates that this machine trusts; None, which means those of grpcio, where it names none."""
    file: str | None = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else None


def _read_error(error: grpc.aio.AioRpcError) -> Agent3Error:
    trailers = dict(error.trailing_metadata() or ())
    details = trailers.get(_DETAILS)
    text = error.details() or ""
    code = error.code().name
    read = read_status(code, text, details if isinstance(details, bytes) else None)
    if isinstance(read, RateLimited):  # an agent that says "too often" did not take it
        asked = trailers.get("retry-after")
        if read.retry_after is None and isinstance(asked, str):
            read.retry_after = jsonrpc.parse_retry_after(asked, REAL.now())
        read.sent = False
    else:
        read.sent = not (code == "UNAVAILABLE" and _NO_CONNECTION in text)
    return read
