"""Cards of agents as A2A shows and reads them: one document for every generation, or the one of a generation.

The words of each generation are in ``agent3.card_formats``. This is its door for the rest of the package, and says which
addresses of a card a client should try, and in which order.
"""

from __future__ import annotations

from typing import Any, Final

from agent3 import card_formats as cardwire
from agent3.definitions import AgentCard, AgentInterface
from agent3.protocols.a2a.wire.types import Generation

__all__ = ["document", "from_wire", "generation_of", "interfaces", "to_wire"]

_GENERATIONS: Final[dict[str, Generation]] = {"1.0": "1.0", "0.3": "0.3", "0.2": "0.3", "0.1": "0.1"}
_BINDINGS: Final = ("JSONRPC", "HTTP+JSON", "GRPC")


def document(card: AgentCard) -> dict[str, Any]:
    """The card for readers of every generation at once; a signature in it is that of its 1.0 projection."""
    return cardwire.union(card.model_dump())


def to_wire(card: AgentCard, generation: Generation) -> dict[str, Any]:
    """The card as one generation writes it."""
    return card.to_wire(generation)


def from_wire(document: Any) -> AgentCard:
    """The card of a document of any generation. ValidationError names each member that cannot be understood."""
    return AgentCard.from_wire(document)


def generation_of(interface: AgentInterface) -> Generation | None:
    """The generation that is spoken at an address; None for one that we do not speak."""
    return _GENERATIONS.get(cardwire.minor(interface.protocol_version))


def interfaces(card: AgentCard, bindings: tuple[str, ...] = _BINDINGS) -> list[tuple[AgentInterface, Generation]]:
    """The addresses that we can speak at, newest generation first and bindings in the order given.

    Within one generation and binding the order of the card stands, which is its agent's preference.
    """
    offered = card.interfaces
    if not offered and card.url:
        binding, version = card.preferred_transport or "JSONRPC", card.protocol_version or "1.0"
        offered = [AgentInterface(url=card.url, protocolBinding=binding, protocolVersion=version)]
    known = [(one, spoken) for one in offered if (spoken := generation_of(one)) is not None]
    ours = [(one, spoken) for one, spoken in known if one.protocol_binding.upper() in bindings]
    order = list(dict.fromkeys(_GENERATIONS.values()))
    return sorted(ours, key=lambda one: (order.index(one[1]), bindings.index(one[0].protocol_binding.upper())))
