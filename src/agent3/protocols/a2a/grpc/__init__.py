"""A2A over gRPC, an optional part: 1.0 and 0.3 on one port, and a channel to agents that speak it.

Protobuf is read and written by our own tables, so that grpcio is all it needs. Server and channel are loaded on first
use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agent3.errors import MissingExtra

if TYPE_CHECKING:
    from agent3.identity.certificates import ListenerCertificate
    from agent3.protocols.a2a.door.endpoint import A2AEndpoint
    from agent3.protocols.a2a.grpc.channel import GrpcChannel
    from agent3.protocols.a2a.grpc.server import GrpcDoor, Judge
    from agent3.protocols.a2a.wire.types import Generation
    from agent3.security.outbound import Gate

__all__ = ["check_installed", "connect", "listen"]


async def listen(
    endpoint: Callable[[], Awaitable[A2AEndpoint]],
    host: str,
    port: int,
    address: str,
    judge: Judge | None = None,
    certificate: ListenerCertificate | None = None,
    *,
    shared: bool = False,
) -> GrpcDoor:
    """A door for an endpoint on a port, where 0 takes a free one; close it with ``aclose``. MissingExtra, SetupError.

    ``address`` is the endpoint's own over HTTP, for cards. ``judge`` sees a call before it is asked who calls. With a
    ``certificate`` it speaks TLS. With ``shared`` other processes may serve the same port.
    """
    try:
        from agent3.protocols.a2a.grpc.server import GrpcDoor
    except ImportError as error:
        raise _as_missing_extra(error) from None
    door = GrpcDoor(endpoint, address, judge, certificate)
    await door.start(host, port, shared=shared)
    return door


def check_installed() -> None:
    """MissingExtra where the optional part is not installed."""
    try:
        import agent3.protocols.a2a.grpc.server  # noqa: F401
    except ImportError as error:
        raise _as_missing_extra(error) from None


async def connect(gate: Gate, address: str, generation: Generation = "1.0", **options: Any) -> GrpcChannel:
    """A channel to an agent, through the gate; close it with ``aclose``. MissingExtra, SecurityError."""
    try:
        from agent3.protocols.a2a.grpc.channel import GrpcChannel
    except ImportError as error:
        raise _as_missing_extra(error) from None
    return await GrpcChannel.to(gate, address, generation, **options)


def _as_missing_extra(error: ImportError) -> ImportError | MissingExtra:
    """MissingExtra if it is grpcio that is missing, else the error itself."""
    return MissingExtra("gRPC", "grpc") if (error.name or "").partition(".")[0] == "grpc" else error
