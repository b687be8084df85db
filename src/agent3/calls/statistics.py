"""Statistics of calls: how many, how they ended, how long they took, what they cost, by who called what and when.

They are counted from the ledger in the background, in steps that each process may take and that count once, so a call
pays nothing for them. A query reads the days and hours that were counted, and the few rows that were not yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from agent3.env import Env
from agent3.errors import ValidationError
from agent3.model import Principal
from agent3.observe.metrics import CALL_BUCKETS
from agent3.security.access import may_operate
from agent3.storage import Database, Row, Transaction
from agent3.storage.rests import delete_in_pieces

__all__ = ["COUNT_EVERY", "Group", "Statistics", "StatisticsWanted", "Use", "quantile"]

Group: TypeAlias = Literal["agent", "capability", "caller", "day"]

COUNT_EVERY = 30.0
"""Seconds between two rounds of counting."""
_COUNTED = "statistics"
"""The counter that says until which second the ledger has been counted."""
_FINAL = "statistics final"
"""Likewise until which hour, for good."""
_DAYS = "statistics days"
"""Likewise until which day the hours have been added up."""
_HOUR = 3_600
_DAY = 86_400
_STEP = 600
"""Seconds of the ledger that one step counts at most."""
_SETTLED = 5.0
"""Seconds after the end of a call by which its row is there. What comes later is found when its hour is closed."""
_CLOSED = 600
"""Seconds after an hour at which it is counted again, for good: rows may be late when the disk was."""
_LIVE = 100_000
"""Rows that are counted while a query waits; only where nobody counts in the background there are more."""
_MOST = 1_000
_QUICK = 100
"""Entries that are described at once; more are in a thread, for each takes some 15 µs."""
_LONGEST = 400 * _DAY
_BUCKETS = tuple(f"b{number}" for number in range(len(CALL_BUCKETS) + 1))
_KEYS = ("hour", "principal", "agent", "capability")
_SUMS = ("calls", "failed", "refused", "seconds", "tokens", "cost", *_BUCKETS)
_ENDED = "(at + seconds)"

# A name that does not exist is a stranger's choice: all of them are one.
_NOBODY = "status IN ('denied', 'refused') AND (code LIKE '%not_found' OR status = 'denied')"
_RAN = "status NOT IN ('denied', 'refused')"


def _bucket(number: int) -> str:
    above = f"seconds > {CALL_BUCKETS[number - 1]!r}" if number else "1 = 1"
    below = f"seconds <= {CALL_BUCKETS[number]!r}" if number < len(CALL_BUCKETS) else "1 = 1"
    return f"CAST(SUM(CASE WHEN {_RAN} AND {above} AND {below} THEN 1 ELSE 0 END) AS BIGINT) AS b{number}"


_HOURS = f"""
SELECT {{hour}} AS hour, principal,
    CASE WHEN {_NOBODY} THEN '' ELSE agent END AS agent,
    CASE WHEN {_NOBODY} THEN '' ELSE capability END AS capability,
    COUNT(*) AS calls,
    CAST(SUM(CASE WHEN status = 'failed' THEN 1 ELSE 0 END) AS BIGINT) AS failed,
    CAST(SUM(CASE WHEN {_RAN} THEN 0 ELSE 1 END) AS BIGINT) AS refused,
    SUM(CASE WHEN {_RAN} THEN seconds ELSE 0.0 END) AS seconds,
    CAST(SUM(tokens) AS BIGINT) AS tokens, SUM(cost) AS cost,
    {", ".join(map(_bucket, range(len(_BUCKETS))))}
FROM ({{rows}}) AS counted GROUP BY 1, 2, 3, 4
"""
_BETWEEN = f"SELECT * FROM calls WHERE {_ENDED} >= ? AND {_ENDED} < ?"
_UNCOUNTED = f"""
SELECT * FROM calls WHERE {_ENDED} >= COALESCE((SELECT value FROM counters WHERE name = '{_COUNTED}'), 0)
ORDER BY {_ENDED} LIMIT {_LIVE}
"""
_ADD = f"""
INSERT INTO call_stats ({", ".join((*_KEYS, *_SUMS))}) VALUES ({", ".join("?" * len((*_KEYS, *_SUMS)))})
ON CONFLICT ({", ".join(_KEYS)}) DO UPDATE SET
{", ".join(f"{name} = call_stats.{name} + excluded.{name}" for name in _SUMS)}
"""
# Only what says something of the agent: not what it never saw, what its caller took back, or what a person declined.
_USES = f"""
SELECT COALESCE(served_by, agent) AS agent, principal, MAX({_ENDED}) AS at,
    CAST(SUM(CASE WHEN status = 'failed' THEN 0 ELSE 1 END) AS BIGINT) AS good,
    CAST(SUM(CASE WHEN status = 'failed' THEN 1 ELSE 0 END) AS BIGINT) AS bad,
    SUM(seconds) AS seconds
FROM calls WHERE {_ENDED} >= ? AND {_ENDED} < ? AND attempts > 0 AND cached = 0
    AND COALESCE(served_by, agent) <> principal AND (user_agent IS NULL OR user_agent <> COALESCE(served_by, agent))
    AND status IN ('done', 'failed', 'needs')
    AND (code IS NULL OR code NOT IN ('declined', 'rejected', 'canceled', 'interrupted', 'invalid_input'))
GROUP BY 1, 2
"""
_ADD_DAY = f"""
INSERT INTO call_days (day, {", ".join((*_KEYS[1:], *_SUMS))})
SELECT ?, {", ".join(_KEYS[1:])}, {", ".join(f"SUM({name})" for name in _SUMS)}
FROM call_stats WHERE hour >= ? AND hour < ? GROUP BY {", ".join(_KEYS[1:])}
"""
_BEGIN = "INSERT INTO counters (name, value) VALUES (?, 0) ON CONFLICT (name) DO NOTHING"
_TAKE = "UPDATE counters SET value = ? WHERE name = ? AND value = ?"


class Use(Struct, frozen=True):
    """What one caller met at one agent in some time: calls that went well, that failed, and their seconds."""

    agent: str
    principal: str
    at: float
    good: int
    bad: int
    seconds: float


Learn: TypeAlias = Callable[[Transaction, Sequence[Use]], Awaitable[None]]


class StatisticsWanted(Struct, frozen=True, kw_only=True):
    """Which calls, and by what they are grouped. Times are taken to the hour."""

    by: tuple[Group, ...] = ("agent",)
    agent: str | None = None
    capability: str | None = None
    caller: str | None = None
    since: float | None = None
    until: float | None = None
    limit: int = 100


class Statistics:
    """Counts the ledger, and tells. ``learn`` hears of each use of an agent once, in the transaction that counts it."""

    def __init__(self, database: Database, env: Env, keep_days: float = 0.0):
        self._database = database
        self._env = env
        self._keep_days = keep_days
        # A cast cuts off on SQLite, and rounds on PostgreSQL.
        hour = f"{_ENDED} / {_HOUR}.0" if database.syntax.embedded else f"FLOOR({_ENDED} / {_HOUR}.0)"
        hours = _HOURS.replace("{hour}", f"CAST({hour} AS BIGINT)")
        self._between, self._uncounted = hours.format(rows=_BETWEEN), hours.format(rows=_UNCOUNTED)
        self.learn: Learn | None = None

    async def count(self, most: int = 1_000) -> int:
        """Count what has ended since the last time, in at most so many steps; how many there were.

        Any number of processes may do so at once: each step is taken by one of them.
        """
        steps = 0
        while steps < most and await self._count_step():
            steps += 1
        while steps < most and await self._close_hour():
            steps += 1
        while steps < most and await self._close_day():
            steps += 1
        return steps

    async def read(self, reader: Principal, wanted: StatisticsWanted) -> list[dict[str, Any]]:
        """One entry for each group, the busiest first. A caller sees its own calls, an operator those of all."""
        until = wanted.until if wanted.until is not None else self._env.now() + _HOUR
        since = wanted.since if wanted.since is not None else until - 7 * _DAY
        if not wanted.by or len(set(wanted.by)) < len(wanted.by) or not set(wanted.by) <= set(get_args(Group)):
            raise ValidationError(f"Group by one or more of {', '.join(get_args(Group))}.")
        if not 1 <= wanted.limit <= _MOST:
            raise ValidationError(f"limit is {wanted.limit}; it must be from 1 to {_MOST}.")
        if until - since > _LONGEST:
            raise ValidationError(f"Statistics cover at most {_LONGEST // _DAY} days; use a later since.")
        rules: list[tuple[str, object]] = []
        caller = wanted.caller if may_operate(reader) else reader.id
        if wanted.caller not in (None, caller):
            return []
        for column, value in (("principal", caller), ("agent", wanted.agent), ("capability", wanted.capability)):
            if value is not None:
                rules.append((f"{column} = ?", value))
        columns = {"agent": "agent", "capability": "capability", "caller": "principal", "day": "hour / 24"}
        groups = ", ".join(f"{columns[one]} AS g_{one}" for one in wanted.by)
        rest = ", ".join((*_KEYS[1:], *_SUMS))
        where = "".join(f" AND {rule}" for rule, _ in rules)
        first, last = int(since // _HOUR), int(-(-until // _HOUR))
        # Whole days that were added up are read as such, so that a month is little more to read than a day.
        day = -(-first // 24)
        end = max(day, min(last // 24, await self._counter(_DAYS)))
        hours = f"SELECT hour, {rest} FROM call_stats WHERE hour >= ? AND hour < ?{where}"
        if day == end:
            spans = [(hours, first, last)]
        else:
            days = f"SELECT day * 24 AS hour, {rest} FROM call_days WHERE day >= ? AND day < ?{where}"
            spans = [(hours, first, day * 24), (days, day, end), (hours, end * 24, last)]
        live = f"SELECT hour, {rest} FROM ({self._uncounted}) AS live WHERE hour >= ? AND hour < ?{where}"
        spans.append((live, first, last))
        given = [value for _, value in rules]
        rows = await self._database.all(
            f"SELECT {groups}, {', '.join(f'SUM({name}) AS {name}' for name in _SUMS)} FROM ("
            f"{' UNION ALL '.join(span for span, _, _ in spans)}"
            f") AS told GROUP BY {', '.join(str(number) for number in range(1, len(wanted.by) + 1))} "
            "ORDER BY calls DESC, 1 LIMIT ?",
            *(value for _, low, high in spans for value in (low, high, *given)),
            wanted.limit,
        )
        if len(rows) <= _QUICK:
            return _describe(rows, wanted.by)
        return await asyncio.to_thread(_describe, rows, wanted.by)

    async def expire(self) -> int:
        """Remove what is past its time."""
        if self._keep_days <= 0:
            return 0
        before = self._env.now() - self._keep_days * _DAY

        delete = partial(delete_in_pieces, self._database, self._env)
        return (
            await delete("call_stats", "hour < ?", int(before // _HOUR), key=", ".join(_KEYS))
            + await delete("call_days", "day < ?", int(before // _DAY), key="day, principal, agent, capability")
            + await delete("agent_use", "at < ?", before, key="agent, principal")
            + await delete("budget_spent", "period > 0 AND period < ?", int(before // _DAY), key="key, period")
        )

    async def _count_step(self) -> bool:
        counted = await self._counter(_COUNTED)
        until = int(self._env.now() - _SETTLED)
        first = await self._database.one(
            f"SELECT {_ENDED} AS ended FROM calls WHERE {_ENDED} >= ? ORDER BY {_ENDED} LIMIT 1", float(counted)
        )
        if first is None or first["ended"] >= until:
            return False
        start = max(counted, int(first["ended"]))
        end = min(until, (start // _STEP + 1) * _STEP)  # never across the end of an hour
        rows = await self._database.all(self._between, float(start), float(end))
        uses = await self._database.all(_USES, float(start), float(end))
        learned = [Use(*(row[name] for name in Use.__struct_fields__)) for row in uses]

        async def work(tx: Transaction) -> None:
            await tx.run(_BEGIN, _COUNTED)
            if await tx.run(_TAKE, end, _COUNTED, counted):  # else another process has counted them
                await tx.many(_ADD, [tuple(row[name] for name in (*_KEYS, *_SUMS)) for row in rows])
                if self.learn is not None and learned:
                    await self.learn(tx, learned)

        await self._database.write(work)
        return True

    async def _close_hour(self) -> bool:
        """Count an hour that is over once more, from all its rows."""
        closed = await self._counter(_FINAL)
        row = await self._database.one("SELECT MIN(hour) AS hour FROM call_stats WHERE hour >= ?", closed)
        hour = None if row is None else row["hour"]
        counted = await self._counter(_COUNTED)
        if hour is None or (hour + 1) * _HOUR + _CLOSED > min(counted + _CLOSED, self._env.now()):
            return False
        start = float(hour * _HOUR)
        rows = await self._database.all(self._between, start, start + _HOUR)

        async def work(tx: Transaction) -> None:
            await tx.run(_BEGIN, _FINAL)
            if await tx.run(_TAKE, hour + 1, _FINAL, closed) and rows:
                await tx.run("DELETE FROM call_stats WHERE hour = ?", hour)
                await tx.many(_ADD, [tuple(row[name] for name in (*_KEYS, *_SUMS)) for row in rows])

        await self._database.write(work)
        return True

    async def _close_day(self) -> bool:
        """Add up the hours of a day of which all have been counted for good."""
        closed = await self._counter(_DAYS)
        row = await self._database.one("SELECT MIN(hour) AS hour FROM call_stats WHERE hour >= ?", closed * 24)
        if row is None or row["hour"] is None:
            return False
        day = row["hour"] // 24
        if await self._counter(_FINAL) < (day + 1) * 24:
            return False

        async def work(tx: Transaction) -> None:
            await tx.run(_BEGIN, _DAYS)
            if await tx.run(_TAKE, day + 1, _DAYS, closed):
                await tx.run(_ADD_DAY, day, day * 24, (day + 1) * 24)

        await self._database.write(work)
        return True

    async def _counter(self, name: str) -> int:
        row = await self._database.one("SELECT value FROM counters WHERE name = ?", name)
        return 0 if row is None else int(row["value"])


def _describe(rows: Sequence[Row], by: Sequence[Group]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        spread = [int(row[name]) for name in _BUCKETS]
        group = {one: row[f"g_{one}"] for one in by}
        if "day" in group:
            group["day"] = datetime.fromtimestamp(int(group["day"]) * _DAY, UTC).strftime("%Y-%m-%d")
        ran = int(row["calls"]) - int(row["refused"])
        mean = round(float(row["seconds"]) / ran, 6) if ran else None
        found.append(
            group
            | {
                "calls": int(row["calls"]),
                "failed": int(row["failed"]),
                "refused": int(row["refused"]),
                "mean": mean,
                "p50": mean if ran == 1 else quantile(spread, 0.5),
                "p95": mean if ran == 1 else quantile(spread, 0.95),
                "tokens": int(row["tokens"]),
                "cost": round(float(row["cost"]), 9),
            }
        )
    return found


def quantile(spread: Sequence[int], share: float) -> float | None:
    """The seconds that a share of the calls did not exceed, as near as the buckets tell; None where there are none."""
    wanted = share * sum(spread)
    if not wanted:
        return None
    below = 0.0
    for number, count in enumerate(spread):
        if below + count >= wanted:
            if number == len(CALL_BUCKETS):
                return CALL_BUCKETS[-1]
            low = CALL_BUCKETS[number - 1] if number else 0.0
            return round(low + (CALL_BUCKETS[number] - low) * (wanted - below) / count, 6)
        below += count
    return CALL_BUCKETS[-1]
