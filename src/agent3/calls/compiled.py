"""The compiled schema of a definition that stands in a capability, kept for as long as it is used.

``schema.compile`` hashes what it is given at every call, because a dict may have changed. What stands in the model is
frozen by agreement, so here the very same dict is known by its identity, which a call notices.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from agent3 import schema

__all__ = ["compiled"]

_MOST = 4_096
_known: OrderedDict[int, tuple[dict[str, Any], schema.Schema]] = OrderedDict()


def compiled(definition: dict[str, Any]) -> schema.Schema:
    """The schema of a definition; an empty one takes any JSON of bounded shape."""
    entry = _known.get(id(definition))
    if entry is not None and entry[0] is definition:  # held here, so its id cannot pass to another dict
        return entry[1]
    made = schema.compile(definition)
    _known[id(definition)] = definition, made
    if len(_known) > _MOST:
        _known.popitem(last=False)
    return made
