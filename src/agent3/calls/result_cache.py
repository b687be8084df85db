"""The results that may be given again for a while."""

from __future__ import annotations

from collections import OrderedDict

from agent3.env import Env
from agent3.model import Done

__all__ = ["CACHED", "EPOCH", "ResultCache"]

CACHED = "io.agent3/cached"
"""The key in the ``meta`` of a result that was given before."""
EPOCH = "io.agent3/epoch"
"""The key in the ``meta`` of a capability whose value is changed to have all its cached results forgotten.

Also those of calls that were running at that moment: they end under the old value, which is never asked for again.
"""


class ResultCache:
    """Results by a key, each with its own end. Bounded; the least used go first."""

    def __init__(self, most: int, env: Env):
        self._most = most
        self._env = env
        self._entries: OrderedDict[bytes, tuple[float, Done]] = OrderedDict()

    def get(self, key: bytes) -> Done | None:
        """The result, if it is still good."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[0] <= self._env.monotonic():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return entry[1]

    def put(self, key: bytes, outcome: Done, seconds: float) -> None:
        """Keep a result for some seconds."""
        self._entries[key] = (self._env.monotonic() + seconds, outcome)
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
