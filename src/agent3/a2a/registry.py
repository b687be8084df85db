"""``AgentRegistry``: the documented register of agents, by their cards."""

from __future__ import annotations

import threading

from agent3.definitions import AgentCard
from agent3.errors import AgentNotFound

__all__ = ["AgentRegistry"]


class AgentRegistry:
    """Cards of agents, in memory, in the order of their registration. Safe from any thread."""

    def __init__(self) -> None:
        self._cards: dict[str, AgentCard] = {}
        self._lock = threading.Lock()

    def register_agent(self, card: AgentCard) -> None:
        """Add a card, or replace the one of the same agent."""
        with self._lock:
            self._cards[card.agent_id] = card

    def unregister_agent(self, agent_id: str) -> None:
        """Remove a card."""
        with self._lock:
            if self._cards.pop(agent_id, None) is None:
                raise AgentNotFound(f"There is no agent {agent_id[:100]!r} in this registry.")

    def get_agent(self, agent_id: str) -> AgentCard | None:
        """The card of one agent, or None."""
        return self._cards.get(agent_id)

    def discover_agents(self, capability_required: str | None = None) -> list[AgentCard]:
        """All cards of agents in service, or those that have a capability of that name or id."""
        with self._lock:
            cards = [card for card in self._cards.values() if card.status in ("registered", "active")]
        if capability_required is None:
            return cards
        return [card for card in cards if card.capability(capability_required) is not None]
