"""Agents in little memory: their cards compressed, and objects only of those that somebody uses.

An agent as an object takes some thirty times what its card takes. One that was read keeps its identity for as long as
anybody holds it, so that what was worked out for it can be kept beside it. ``unpack`` may be called in any thread; all
else belongs to the event loop.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, MutableMapping
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from agent3.directory.names import NameList, fold
from agent3.model import Agent, encode

__all__ = ["Packed", "PackedAgents", "pack"]

_decoder: msgspec.json.Decoder[Agent] = msgspec.json.Decoder(Agent)
_HELD = 200
"""Agents that are held as objects though nobody else does."""


class Packed(NamedTuple):
    """An agent, and what is asked of many agents at once."""

    body: bytes
    addresses: tuple[str, ...]
    """Where it is reached."""
    names: NameList
    """Of its capabilities."""
    title: str
    """Its own name, folded."""


def pack(agent: Agent, raw: bytes | None = None) -> Packed:
    """An agent, packed; ``raw`` is its JSON where that is at hand."""
    routes = (route.address for one in agent.capabilities for route in one.routes)
    addresses = tuple(dict.fromkeys(routes))
    return Packed(
        zlib.compress(encode(agent) if raw is None else raw, 1),
        addresses,
        NameList([one.name for one in agent.capabilities]),
        fold(agent.name),
    )


class PackedAgents(MutableMapping[str, Agent]):
    """Agents by id, in the order of their ids."""

    def __init__(self) -> None:
        self._packed: dict[str, Packed] = {}
        self._order: list[str] = []
        self._alive: WeakValueDictionary[str, Agent] = WeakValueDictionary()
        self._held: dict[str, Agent] = {}
        self._reached: dict[str, str | set[str]] = {}
        """The agent at each address, or several."""

    def __getitem__(self, agent_id: str) -> Agent:
        found = self._alive.get(agent_id)
        if found is None:
            found = self.unpack(agent_id)
            if found is None:
                raise KeyError(agent_id)
            self._hold(found)
        return found

    def __setitem__(self, agent_id: str, agent: Agent) -> None:
        self.put(agent_id, pack(agent))
        self._hold(agent)

    def put(self, agent_id: str, packed: Packed) -> None:
        """Take an agent that was packed in another thread."""
        known = self._packed.get(agent_id)
        if known is None:
            if self._order and agent_id > self._order[-1]:
                self._order.append(agent_id)
            else:
                insort(self._order, agent_id)
        else:
            self._leave(agent_id, known)
        self._packed[agent_id] = packed
        for address in packed.addresses:
            there = self._reached.setdefault(address, agent_id)
            if there != agent_id:
                self._reached[address] = {agent_id, *_several(there)}
        self._forget(agent_id)

    def __delitem__(self, agent_id: str) -> None:
        self._leave(agent_id, self._packed.pop(agent_id))
        del self._order[bisect_left(self._order, agent_id)]
        self._forget(agent_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._packed)

    def __contains__(self, agent_id: object) -> bool:
        return agent_id in self._packed

    def describe(self, agent_id: str) -> Packed | None:
        """What is known of an agent without opening its card."""
        return self._packed.get(agent_id)

    def unpack(self, agent_id: str) -> Agent | None:
        """An agent as a new object, unless somebody holds it."""
        packed = self._packed.get(agent_id)
        return None if packed is None else _decoder.decode(zlib.decompress(packed.body))

    def unpack_new(self, agents: Iterable[str]) -> list[tuple[Packed, Agent]]:
        """In any thread: those of some agents that nobody holds, as objects, for ``take_new``."""
        found = [(one, self._packed.get(one)) for one in agents if one not in self._held]
        return [(packed, _decoder.decode(zlib.decompress(packed.body))) for _, packed in found if packed is not None]

    def take_new(self, unpacked: Iterable[tuple[Packed, Agent]]) -> None:
        """Hold agents that were unpacked elsewhere, unless they changed meanwhile or somebody holds them already."""
        for packed, agent in unpacked:
            if self._packed.get(agent.id) is packed and agent.id not in self._alive:
                self._hold(agent)

    def reached_at(self, address: str) -> list[str]:
        """The agents that are reached at an address."""
        return sorted(_several(self._reached.get(address, set())))

    def around(self, agent_id: str, most: int) -> list[str]:
        """The ids that stand beside an id in their order, so many on each side."""
        at = bisect_left(self._order, agent_id)
        return self._order[max(0, at - most) : at + most]

    def after(self, agent_id: str, most: int) -> list[str]:
        """The ids that come after an id in their order, so many at most."""
        at = bisect_right(self._order, agent_id)
        return self._order[at : at + most]

    def _leave(self, agent_id: str, packed: Packed) -> None:
        for address in packed.addresses:
            left = _several(self._reached[address]) - {agent_id}
            if left:
                self._reached[address] = left
            else:
                del self._reached[address]

    def _hold(self, agent: Agent) -> None:
        self._alive[agent.id] = agent
        self._held[agent.id] = agent
        if len(self._held) > _HELD:
            del self._held[next(iter(self._held))]

    def _forget(self, agent_id: str) -> None:
        self._alive.pop(agent_id, None)
        self._held.pop(agent_id, None)


def _several(there: str | set[str]) -> set[str]:
    return {there} if isinstance(there, str) else there
