"""The compiled schema of a definition that stands in a capability, kept for as long as it is used.

``schema.compile`` hashes what it is given at every call, because a dict may have changed. What stands in the model is
frozen by agreement, so here the very same dict is known by its identity, which a call notices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from agent3 import schema

__all__ = ["compiled", "once"]

T = TypeVar("T")
_MOST = 4_096


def once(make: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
    """The same function, which for the very same definition is asked once."""
    known: OrderedDict[int, tuple[dict[str, Any], T]] = OrderedDict()

    def found(definition: dict[str, Any]) -> T:
        entry = known.get(id(definition))
        if entry is not None and entry[0] is definition:  # held here, so its id cannot pass to another dict
            return entry[1]
        made = make(definition)
        known[id(definition)] = definition, made
        if len(known) > _MOST:
            known.popitem(last=False)
        return made

    return found


compiled = once(schema.compile)
"""The schema of a definition; an empty one takes any JSON of bounded shape."""
