"""Agent cards as documents, and the addresses in them that we can talk to, in the order to try them.

What each generation calls the fields is in ``agent3.card_formats``.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from agent3 import card_formats
from agent3.definitions import AgentCard, AgentInterface
from agent3.protocols.a2a.wire.types import Generation

__all__ = ["address_of", "document", "grpc_url", "interfaces"]

_GENERATIONS: Final[dict[str, Generation]] = {"1.0": "1.0", "0.3": "0.3", "0.2": "0.3", "0.1": "0.1"}
"""The generation of each version, newest first."""
_BINDINGS: Final = ("JSONRPC", "HTTP+JSON", "GRPC")


def document(card: AgentCard) -> dict[str, Any]:
    """The card for readers of every generation at once; a signature in it covers the fields of 1.0."""
    return card_formats.union(card.model_dump())


def interfaces(card: AgentCard, bindings: tuple[str, ...] = _BINDINGS) -> list[tuple[AgentInterface, Generation]]:
    """The addresses that we can talk to, newest generation first and bindings in the order given.

    Within one generation and binding the order of the card stands, which is its agent's preference.
    """
    offered = card.interfaces
    if not offered and card.url:
        binding, version = card.preferred_transport or "JSONRPC", card.protocol_version or "1.0"
        offered = [AgentInterface(url=card.url, protocolBinding=binding, protocolVersion=version)]
    order = list(dict.fromkeys(_GENERATIONS.values()))
    known: list[tuple[int, int, AgentInterface, Generation]] = []
    for interface in offered:
        generation = _GENERATIONS.get(card_formats.minor_version(interface.protocol_version))
        binding = interface.protocol_binding.upper()
        if generation is not None and binding in bindings:
            known.append((order.index(generation), bindings.index(binding), interface, generation))
    known.sort(key=lambda entry: entry[:2])
    return [(interface, generation) for *_, interface, generation in known]


def address_of(interface: AgentInterface) -> str:
    """The address of an interface as a URL, whatever its binding."""
    return grpc_url(interface.url) if interface.protocol_binding.upper() == "GRPC" else interface.url


def grpc_url(address: str) -> str:
    """The address of a gRPC agent as a URL; cards write ``host:port``, which means TLS at port 443."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    secure = parts.scheme in ("https", "grpcs") or (not parts.scheme and parts.netloc.endswith(":443"))
    return f"{'https' if secure else 'http'}://{parts.netloc}{parts.path}"
