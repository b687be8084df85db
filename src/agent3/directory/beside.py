"""What was worked out for an object, kept beside it for exactly as long as the object itself is in memory."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import ReferenceType, ref

__all__ = ["Beside"]

K = TypeVar("K")
V = TypeVar("V")


class Beside(Generic[K, V]):
    """Values by the identity of objects, which may be equal to others, and costly to compare."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[ReferenceType[K], V]] = {}

    def get(self, key: K) -> V | None:
        """What was kept beside this very object."""
        known = self._values.get(id(key))
        return None if known is None else known[1]

    def put(self, key: K, value: V) -> V:
        """Keep a value, which must not hold the object; it is returned."""
        at = id(key)
        # The reference is told of the end of its object before another can have the same identity.
        self._values[at] = ref(key, lambda _: self._values.pop(at, None)), value
        return value
