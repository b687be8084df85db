"""From ``?`` to ``$1``: the one difference between the two databases in how a statement names its parameters."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import count

__all__ = ["numbered"]

# What stands in a string, a quoted name or a comment is matched first and left as it is.
_TOKEN = re.compile(r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \?""", re.VERBOSE | re.DOTALL)


@lru_cache(maxsize=1024)
def numbered(sql: str) -> str:
    """The same statement with numbered parameters."""
    numbers = count(1)
    return _TOKEN.sub(lambda match: f"${next(numbers)}" if match[0] == "?" else match[0], sql)
