"""Where the SQL of the databases differs: one table of fragments and abilities.

Statements are written once, with ``?`` for parameters and fragments such as ``{now}`` where the databases spell a thing
differently. Code that must behave differently asks for an ability (``notifies``, ``takes_arrays``), never for a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Literal, TypeAlias

__all__ = ["SYNTAX", "Dialect", "Syntax", "number_placeholders"]

Dialect: TypeAlias = Literal["sqlite", "postgres"]


@dataclass(frozen=True)
class Syntax:
    """How one database spells things, and what it can do."""

    dialect: Dialect
    now: str
    """The database's own clock, in seconds since 1970: the clocks of its clients may differ and jump."""
    blob: str
    """The type of a column of bytes."""
    serial: str
    """The type of a primary key that counts up by itself."""
    for_update: str
    """Locks the rows of a SELECT; empty where writers exclude each other anyway."""
    skip_locked: str
    """Likewise, and leaves out the rows that others have locked."""
    json_integers: str
    """A query for the integers of a JSON array that is given as one parameter."""
    json_texts: str
    """A query for its strings, as ``item``."""
    takes_arrays: bool
    """Whether a parameter can be an array, so that one statement inserts many rows in one round trip."""
    notifies: bool
    """Whether a commit can wake other processes (``pg_notify``)."""
    embedded: bool
    """Whether it runs in this process: its transactions run one after the other, and its size is ours to bound."""

    def fill(self, sql: str) -> str:
        """Replace every ``{name}`` in a statement by the fragment of that name."""
        for name in _FRAGMENTS:
            sql = sql.replace(f"{{{name}}}", getattr(self, name))
        return sql


_FRAGMENTS = ("now", "blob", "serial", "for_update", "skip_locked", "json_integers", "json_texts")

SYNTAX: Mapping[Dialect, Syntax] = {
    "sqlite": Syntax(
        dialect="sqlite",
        now="((julianday('now') - 2440587.5) * 86400.0)",
        blob="BLOB",
        serial="INTEGER PRIMARY KEY AUTOINCREMENT",
        for_update="",
        skip_locked="",
        json_integers="SELECT value FROM json_each(?)",
        json_texts="SELECT value AS item FROM json_each(?)",
        takes_arrays=False,
        notifies=False,
        embedded=True,
    ),
    "postgres": Syntax(
        dialect="postgres",
        now="CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
        blob="BYTEA",
        serial="BIGSERIAL PRIMARY KEY",
        for_update="FOR UPDATE",
        skip_locked="FOR UPDATE SKIP LOCKED",
        json_integers="SELECT CAST(json_array_elements_text(CAST(CAST(? AS TEXT) AS json)) AS BIGINT)",
        json_texts="SELECT json_array_elements_text(CAST(CAST(? AS TEXT) AS json)) AS item",
        takes_arrays=True,
        notifies=True,
        embedded=False,
    ),
}

# Strings, quoted names and comments are matched first, and left as they are.
_TOKEN = re.compile(r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \?""", re.VERBOSE | re.DOTALL)


@lru_cache(maxsize=1024)
def number_placeholders(sql: str) -> str:
    """The statement with ``$1``, ``$2``, … in place of each ``?``, as PostgreSQL wants it."""
    numbers = count(1)
    return _TOKEN.sub(lambda match: f"${next(numbers)}" if match[0] == "?" else match[0], sql)
