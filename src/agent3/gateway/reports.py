"""Reports: the calls of the ledger, their statistics, and prices, for callers and operators.

Every door gives what it was asked for as plain texts by name, as they stand in a URL, and gets plain JSON. A caller
sees its own calls; an operator, who is the person at this machine or a client with the scope ``agent3:operate``, sees
those of all.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import Struct

from agent3.calls.history import History, Wanted
from agent3.calls.prices import Prices
from agent3.calls.statistics import Group, Statistics, StatisticsWanted
from agent3.env import Env
from agent3.errors import ValidationError
from agent3.model import Price, Principal
from agent3.schema.explain import nearest
from agent3.security.access import require_operator
from agent3.storage import Database

__all__ = ["COLUMNS", "Reports", "to_csv"]

COLUMNS = (
    *("id", "at", "caller", "userAgent", "agent", "capability", "protocol", "route", "door", "entry", "status", "code"),
    *("message", "seconds", "attempts", "hops", "cached", "tokens", "cost", "estimated", "bytesIn", "bytesOut", "job"),
    *("turn", "context", "trace"),
)
"""What stands in each line of a CSV file."""
_TIMES = ("since", "until")
_LATEST = 1e12
"""Seconds around 1970 beyond which there is no date."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

W = TypeVar("W", bound=Struct)


class Reports:
    """What was called, by whom, with what result and at what cost."""

    def __init__(
        self, database: Database, env: Env, statistics: Statistics | None = None, prices: Prices | None = None
    ):
        self._history = History(database, env)
        self._statistics = statistics or Statistics(database, env)
        self._prices = prices or Prices(database)

    async def list(self, reader: Principal, query: Mapping[str, str]) -> dict[str, Any]:
        """One page of calls, the latest first; with ``follow`` those that ended since the cursor."""
        return msgspec.to_builtins(await self._history.find(reader, _parse(query, Wanted)))  # type: ignore[no-any-return]

    async def show(self, reader: Principal, call_id: str) -> dict[str, Any]:
        """Everything that was recorded of one call."""
        return await self._history.get(reader, call_id)

    async def stats(self, reader: Principal, query: Mapping[str, str]) -> dict[str, Any]:
        """Calls, failures, times, tokens and cost for each group."""
        given = {**query, "by": [one.strip() for one in query.get("by", "agent").split(",") if one.strip()]}
        if unknown := [one for one in given["by"] if one not in get_args(Group)]:
            raise ValidationError(f"Cannot group by {unknown[0][:40]!r}. Group by {', '.join(get_args(Group))}.")
        wanted = _parse(given, StatisticsWanted)
        return {"by": list(wanted.by), "statistics": await self._statistics.read(reader, wanted)}

    async def price(self, reader: Principal, agent: str, capability: str | None, price: Price | None) -> dict[str, Any]:
        """Set what calls of an agent cost, or take that back; for operators."""
        require_operator(reader, "set prices")
        await self._prices.set(agent, capability, price)
        return {"agent": agent, "prices": await self._prices.stored(agent)}


def to_csv(calls: list[dict[str, Any]], head: bool = True) -> str:
    """Calls as lines of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    if head:
        writer.writerow(COLUMNS)
    for call in calls:
        at = datetime.fromtimestamp(call["at"], UTC).isoformat(timespec="milliseconds")
        writer.writerow([_cell({**call, "at": at}[name]) for name in COLUMNS])
    return lines.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _parse(query: Mapping[str, Any], kind: type[W]) -> W:
    """What the texts of a query ask for. ValidationError names the one that is wrong or unknown."""
    known = {name.replace("_", "-"): name for name in kind.__struct_fields__}
    given: dict[str, Any] = {}
    for name, value in query.items():
        field = known.get(name.replace("_", "-"))
        if field is None:
            near = nearest(name, known)
            hint = f"Did you mean {near!r}? " if near else ""
            raise ValidationError(f"Unknown filter {name[:40]!r}. {hint}Known are {', '.join(sorted(known))}.")
        if value in ("", None):
            continue
        if isinstance(value, str) and len(value) > 1_000:
            raise ValidationError(f"{name} is longer than 1,000 characters.")
        try:
            given[field] = _parse_time(name, value) if name in _TIMES else value
            msgspec.convert({**given}, kind, strict=False)
        except msgspec.ValidationError as error:
            wanted = (
                "a whole number" if "`int`" in str(error) else "a number" if "`float`" in str(error) else str(error)
            )
            raise ValidationError(f"{name} is {str(value)[:60]!r}; it must be {wanted}.") from None
    return msgspec.convert(given, kind, strict=False)


def _parse_time(name: str, text: str) -> float:
    """Seconds since 1970, or a date, with a time if it matters; UTC unless it says otherwise."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
            seconds = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            seconds = math.nan
    if not abs(seconds) < _LATEST:  # nan is not either
        raise ValidationError(
            f"{name} is {text[:40]!r}; it must be seconds since 1970, or a date such as 2026-01-31T08:00:00Z."
        )
    return seconds
