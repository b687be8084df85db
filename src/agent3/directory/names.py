"""Exact names: which agents and capabilities a text names, word for word.

An agent is named by its id or its name, a capability by its own name, or by that of its agent, a separator and its own.
What can be put together is not kept, but taken apart when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import intern

__all__ = ["LONGEST", "Names", "fold"]

LONGEST = 1_000
"""Characters of the longest text that is looked up."""
_SEPARATORS = ("__", "/", ".", " ")
_MOST_SPLITS = 100
_Ids = str | tuple[str, ...]


def fold(name: str) -> str:
    """A name as it is compared."""
    return name.strip().casefold()


class Names:
    """The names of some agents. One thread writes; others may look meanwhile."""

    def __init__(self) -> None:
        self._agents: dict[str, _Ids] = {}
        self._capabilities: dict[str, _Ids] = {}

    def put(self, agent_id: str, title: str, capabilities: Iterable[str]) -> None:
        """Take an agent with its folded name and the names of its capabilities. It must not be there yet."""
        for name in {fold(agent_id), title}:
            _add(self._agents, name, agent_id)
        for name in {fold(one) for one in capabilities}:
            _add(self._capabilities, name, agent_id)

    def remove(self, agent_id: str, title: str, capabilities: Iterable[str]) -> None:
        """Forget an agent that was put with the same words."""
        for name in {fold(agent_id), title}:
            _drop(self._agents, name, agent_id)
        for name in {fold(one) for one in capabilities}:
            _drop(self._capabilities, name, agent_id)

    def having(self, capability: str) -> list[str]:
        """The agents that have a capability of this name."""
        return sorted(_ids(self._capabilities.get(fold(capability), ())))

    def find(self, text: str) -> Iterator[tuple[str, str | None]]:
        """The agents that a text names, each with the folded capability that it names there; None stands for all."""
        if len(text) > LONGEST:
            return
        name = fold(text)
        for agent_id in _ids(self._agents.get(name, ())):
            yield agent_id, None
        for agent_id in _ids(self._capabilities.get(name, ())):
            yield agent_id, name
        splits = 0
        for separator in _SEPARATORS:
            at = name.find(separator)
            while at >= 0 and splits < _MOST_SPLITS:
                rest = name[at + len(separator) :]
                for agent_id in _ids(self._agents.get(name[:at], ())):
                    if fold(agent_id) == name[:at] and agent_id in _ids(self._capabilities.get(rest, ())):
                        yield agent_id, rest
                splits += 1
                at = name.find(separator, at + 1)


def _ids(found: _Ids) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else found


def _add(names: dict[str, _Ids], name: str, agent_id: str) -> None:
    known = names.get(name)
    names[intern(name)] = agent_id if known is None else (*_ids(known), agent_id)


def _drop(names: dict[str, _Ids], name: str, agent_id: str) -> None:
    left = tuple(one for one in _ids(names.get(name, ())) if one != agent_id)
    if not left:
        names.pop(name, None)
    else:
        names[name] = left[0] if len(left) == 1 else left
