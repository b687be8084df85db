"""Exact names: which agents and capabilities a text names, word for word.

An agent is named by its id or its name, a capability by its own name, or by that of its agent, a separator and its own.
What can be put together is not kept, but taken apart when it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from agent3.arrays import NDArray, np

__all__ = ["LONGEST", "NameList", "Names", "fold"]

LONGEST = 1_000
"""Characters of the longest text that is looked up."""
_SEPARATORS = ("__", "/", ".", " ")
_MOST_SPLITS = 100
_FRESH, _FRESH_SHARE = 1_000, 32
"""Names that are not in order yet: so many, or one of so many."""
_MOST_GONE = 2
"""How many times as many places as agents there may be."""
_Ids = str | tuple[str, ...]


def fold(name: str) -> str:
    """A name as it is compared."""
    return name.strip().casefold()


class Names:
    """The names of some agents. One thread writes; others may look meanwhile.

    Of the names of capabilities only hashes are kept, 12 bytes each: what is found by one may be another that has the
    same hash, or of an agent that is gone, so that whoever asks compares the names. What is removed is left out when
    the hashes are put in order the next time.
    """

    def __init__(self) -> None:
        self._agents: dict[str, _Ids] = {}
        self._places: dict[str, int] = {}
        """Where each agent stands among the ids of the state."""
        self._state = _Hashes(np.empty(0, np.int64), np.empty(0, np.int32), {}, [])

    def put(self, agent_id: str, title: str, capabilities: Iterable[str]) -> None:
        """Take an agent with its folded name and the names of its capabilities. It must not be there yet."""
        folded = fold(agent_id)
        for name in {agent_id if folded == agent_id else folded, title}:  # mostly no text of its own
            known = self._agents.get(name)
            self._agents[name] = agent_id if known is None else (*_ids(known), agent_id)
        _, _, fresh, ids = self._state
        place = self._places[agent_id] = len(ids)
        ids.append(agent_id)
        for name in {fold(one) for one in capabilities}:
            fresh.setdefault(hash(name), []).append(place)
        if (
            len(fresh) > max(_FRESH, len(self._state.sorted) // _FRESH_SHARE)
            or len(ids) > _MOST_GONE * len(self._places) + _FRESH
        ):
            self._put_in_order()

    def remove(self, agent_id: str, title: str) -> None:
        """Forget an agent that was put with the same name."""
        for name in {fold(agent_id), title}:
            left = tuple(one for one in _ids(self._agents.get(name, ())) if one != agent_id)
            if not left:
                self._agents.pop(name, None)
            else:
                self._agents[name] = left[0] if len(left) == 1 else left
        place = self._places.pop(agent_id, None)
        if place is not None:
            self._state.ids[place] = None

    def having(self, name: str) -> set[str]:
        """The agents that may have a capability of this folded name."""
        hashed, (ordered, owners, fresh, ids) = hash(name), self._state
        first = int(np.searchsorted(ordered, hashed))
        last = int(np.searchsorted(ordered, hashed, side="right"))
        places = [*owners[first:last].tolist(), *fresh.get(hashed, ())]
        return {agent_id for agent_id in map(ids.__getitem__, places) if agent_id is not None}

    def find(self, text: str) -> Iterator[tuple[str, str | None]]:
        """The agents that a text may name, each with the folded capability that it names there; None stands for all."""
        if len(text) > LONGEST:
            return
        name = fold(text)
        for agent_id in _ids(self._agents.get(name, ())):
            yield agent_id, None
        for agent_id in self.having(name):
            yield agent_id, name
        splits = 0
        for separator in _SEPARATORS:
            at = name.find(separator)
            while at >= 0 and splits < _MOST_SPLITS:
                rest = name[at + len(separator) :]
                for agent_id in _ids(self._agents.get(name[:at], ())):
                    if fold(agent_id) == name[:at]:
                        yield agent_id, rest
                splits += 1
                at = name.find(separator, at + 1)

    def _put_in_order(self) -> None:
        ordered, owners, fresh, ids = self._state
        hashes = np.fromiter(chain.from_iterable(repeat(one, len(fresh[one])) for one in fresh), np.int64)
        places = np.fromiter(chain.from_iterable(fresh.values()), np.int32)
        order = np.argsort(hashes, kind="stable")
        at = np.searchsorted(ordered, hashes[order])
        ordered, owners = np.insert(ordered, at, hashes[order]), np.insert(owners, at, places[order])
        if len(ids) > _MOST_GONE * len(self._places) + _FRESH:
            left = [place for place, agent_id in enumerate(ids) if agent_id is not None]
            moved = np.full(len(ids), -1, np.int32)  # where the agents that are left stand afterwards
            moved[left] = np.arange(len(left), dtype=np.int32)
            owners = moved[owners]
            ordered, owners = ordered[owners >= 0], owners[owners >= 0]
            self._places = {str(ids[place]): at for at, place in enumerate(left)}
            ids = [ids[place] for place in left]
        self._state = _Hashes(ordered, owners, {}, ids)


class _Hashes(NamedTuple):
    """Hashes of names: those that are in order with the place of the agent of each, and those that came since."""

    sorted: NDArray[np.int64]
    owners: NDArray[np.int32]
    fresh: dict[int, list[int]]
    ids: list[str | None]
    """The agents by their places; None for one that is gone."""


def _ids(found: _Ids) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else found


class NameList:
    """Some names in the memory of two texts."""

    __slots__ = ("_sizes", "_text")

    def __init__(self, names: Sequence[str]):
        names = [name[: sys.maxunicode] for name in names]
        self._text = "".join(names)
        self._sizes = "".join(chr(len(name)) for name in names)
        """The length of each as a character."""

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, at: int) -> str:
        begin = sum(map(ord, self._sizes[:at]))
        return self._text[begin : begin + ord(self._sizes[at])]

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))
