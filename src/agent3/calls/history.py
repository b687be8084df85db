"""The ledger for readers: a page of rows, one call with all its turns, and what was kept of its bodies.

No query grows with the history: a page looks at a bounded number of rows, and its cursor says where the next one goes
on. A caller sees its own rows, and of a refusal only what it was told; an operator sees all.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from agent3.env import Env
from agent3.errors import NotFound, ValidationError
from agent3.model import Principal
from agent3.security.access import may_operate
from agent3.storage import Database, Row

__all__ = ["MOST", "History", "Page", "Wanted"]

MOST = 1_000
"""Rows on one page."""
STATUSES = ("done", "failed", "needs", "working", "denied", "refused", "canceled")
"""How a row can stand."""
_LOOKED_AT = 10_000
"""Rows that one page looks at; where too few of them match, it is shorter and says where to go on."""
_SETTLED = 1.0
"""Seconds after its end by which a row is on disk: those who follow are so far behind, and see every row once."""
_DESCRIBED_HERE = 100
"""Rows that are described in the event loop: a fraction of a millisecond."""
_TURNS = 1_000
"""Turns of one call that are shown."""
_KEPT_COLUMNS = (
    *("id", "job", "turn", "at", "principal", "user_agent", "agent", "capability", "served_by", "route", "door"),
    "entry",
    *("context", "trace", "message", "seconds", "attempts", "hops", "cached", "tokens", "cost", "estimated"),
    *("bytes_in", "bytes_out", "tenant"),
)
_ENDED = "(at + seconds)"


class Wanted(Struct, frozen=True, kw_only=True):
    """Which rows, and in which order: the latest first, or with ``follow`` as they end, from now on."""

    agent: str | None = None
    capability: str | None = None
    caller: str | None = None
    status: str | None = None
    code: str | None = None
    protocol: str | None = None
    door: str | None = None
    since: float | None = None
    until: float | None = None
    min_seconds: float | None = None
    trace: str | None = None
    job: str | None = None
    limit: int = 50
    cursor: str | None = None
    follow: bool = False


class Page(Struct, frozen=True):
    """Some rows, and the cursor of the next page; None where there are no more."""

    calls: list[dict[str, Any]]
    next: str | None


class History:
    """The rows of the ledger, as each reader may see them."""

    def __init__(self, database: Database, env: Env):
        self._database = database
        self._env = env

    async def find(self, reader: Principal, wanted: Wanted) -> Page:
        """One page. ValidationError for a limit or a cursor that cannot be."""
        if not 1 <= wanted.limit <= MOST:
            raise ValidationError(f"limit is {wanted.limit}; it must be from 1 to {MOST}.")
        if wanted.status is not None and wanted.status not in STATUSES:
            raise ValidationError(f"Unknown status {wanted.status[:40]!r}. Known are {', '.join(STATUSES)}.")
        if wanted.follow:
            return await self._follow(reader, wanted)
        rules, filters = self._rules(reader, wanted)
        if wanted.cursor is not None:
            at, last = _decode_cursor(wanted.cursor)
            # By the index of ``at`` to the moment, and by the id within it.
            rules.append(("at <= ? AND (at < ? OR id < ?)", (at, at, last)))
        if wanted.since is not None:
            rules.append(("at >= ?", (wanted.since,)))
        if wanted.until is not None:
            rules.append(("at < ?", (wanted.until,)))
        floor: Row | None = None
        if filters:  # which no index finds: so many rows are held against them, and the reading ends early
            where, given = _where(rules)
            floor = await self._database.one(
                f"SELECT at, id FROM calls {where} ORDER BY at DESC, id DESC LIMIT 1 OFFSET {_LOOKED_AT - 1}", *given
            )
            if floor is not None:
                rules.append(("at >= ? AND (at > ? OR id >= ?)", (floor["at"], floor["at"], floor["id"])))
        where, given = _where(rules)
        narrow, more = _where(filters)  # of the columns as the reader may see them
        rows = await self._database.all(
            f"SELECT * FROM (SELECT {_columns(reader)} FROM calls {where}) AS looked {narrow} "
            "ORDER BY at DESC, id DESC LIMIT ?",
            *given,
            *more,
            wanted.limit + 1,
        )
        rows, is_full = rows[: wanted.limit], len(rows) > wanted.limit
        end = rows[-1] if is_full else floor
        return Page(await _describe_all(rows), None if end is None else _encode_cursor(end["at"], end["id"]))

    async def get(self, reader: Principal, call_id: str) -> dict[str, Any]:
        """A call by its id, or a job, with all its turns and what was kept of their bodies; NotFound for others."""
        rules, filters = self._rules(reader, Wanted(job=call_id))
        where, given = _where([*rules, *filters])
        rows = await self._database.all(
            f"SELECT * FROM (SELECT {_columns(reader)} FROM calls {where}) AS looked ORDER BY turn, at LIMIT {_TURNS}",
            *given,
        )
        if not rows:
            raise NotFound(f"Call {call_id[:100]!r} is not in your part of the ledger. It may have been removed.")
        bodies = await self._database.all(
            f"SELECT id, kind, request, response FROM call_bodies WHERE id IN ({', '.join('?' * len(rows))})",
            *(row["id"] for row in rows),
        )
        kept = {
            row["id"]: {"kind": row["kind"], "request": row["request"], "response": row["response"]} for row in bodies
        }
        turns = [_describe(row) | ({"body": kept[row["id"]]} if row["id"] in kept else {}) for row in rows]
        return {"id": call_id, "turns": turns}

    async def _follow(self, reader: Principal, wanted: Wanted) -> Page:
        """What has ended since the cursor, in that order; the first page only says where to begin."""
        until = self._env.now() - _SETTLED
        if wanted.cursor is None:
            return Page([], _encode_cursor(until, ""))
        at, last = _decode_cursor(wanted.cursor)
        rules: list[_Rule] = [
            (f"{_ENDED} >= ? AND ({_ENDED} > ? OR id > ?)", (at, at, last)),
            (f"{_ENDED} < ?", (until,)),
        ]
        own, filters = self._rules(reader, wanted)
        where, given = _where(rules)
        narrow, more = _where([*own, *filters])
        rows = await self._database.all(
            f"SELECT * FROM (SELECT {_columns(reader)} FROM calls {where} ORDER BY {_ENDED}, id LIMIT {_LOOKED_AT})"
            f" AS looked {narrow} ORDER BY {_ENDED}, id LIMIT ?",
            *given,
            *more,
            wanted.limit,
        )
        if len(rows) == wanted.limit:
            end, last = rows[-1]["at"] + rows[-1]["seconds"], rows[-1]["id"]
        else:
            over = await self._database.one(
                f"SELECT {_ENDED} AS ended, id FROM calls {where} ORDER BY {_ENDED}, id "
                f"LIMIT 1 OFFSET {_LOOKED_AT - 1}",
                *given,
            )
            end, last = (max(until, at), "") if over is None else (over["ended"], over["id"])
        return Page(await _describe_all(rows), _encode_cursor(end, last))

    def _rules(self, reader: Principal, wanted: Wanted) -> tuple[list[_Rule], list[_Rule]]:
        """What an index finds, at most one of them, and what the rows found by it are then held against."""
        found: list[_Rule] = []
        filters: list[_Rule] = []
        for name, value in (("job", wanted.job), ("trace", wanted.trace)):
            if value is not None:
                # The two halves are for the primary key and for the index of those that are not alone.
                others = f"id IN (SELECT id FROM calls WHERE {name} = ? AND {name} <> id ORDER BY at LIMIT {_TURNS})"
                found.append((f"(id = ? OR {others})", (value, value)))
        caller = wanted.caller
        if not may_operate(reader):
            filters.append(("principal = ?", (reader.id,)))
            caller = reader.id if caller is None or caller == reader.id else None
            if wanted.caller is not None and caller is None:
                filters.append(("1 = 0", ()))
        keys = [("principal", caller), ("agent", wanted.agent)]
        for column, value in keys:
            if value is not None:
                (filters if found else found).append((f"{column} = ?", (value,)))
        plain = (("capability", wanted.capability), ("door", wanted.door))
        if wanted.status == "refused":  # as in the statistics: a denied call is one that was refused by a rule
            filters.append(("status IN ('refused', 'denied')", ()))
        elif wanted.status == "denied" and not may_operate(reader):
            filters.append(("1 = 0", ()))  # to its caller it was refused
        elif wanted.status is not None:
            filters.append(("status = ?", (wanted.status,)))
        if wanted.code is not None:
            filters.append((f"{_shown_code(reader)} = ?", (wanted.code,)))
        filters += [(f"{column} = ?", (value,)) for column, value in plain if value is not None]
        if wanted.protocol is not None:
            start = f"{wanted.protocol}:"
            filters.append((f"substr(route, 1, {len(start)}) = ?", (start,)))
        if wanted.min_seconds is not None:
            filters.append(("seconds >= ?", (wanted.min_seconds,)))
        return found, filters


_Rule = tuple[str, tuple[object, ...]]


def _where(rules: list[_Rule]) -> tuple[str, tuple[object, ...]]:
    if not rules:
        return "", ()
    return f"WHERE {' AND '.join(rule for rule, _ in rules)}", tuple(value for _, given in rules for value in given)


def _columns(reader: Principal) -> str:
    """The columns as a reader may see them: of what it may not call, it was told that it is not there."""
    if may_operate(reader):
        return f"{', '.join(_KEPT_COLUMNS)}, status, code"
    status = "CASE WHEN status = 'denied' THEN 'refused' ELSE status END AS status"
    return f"{', '.join(_KEPT_COLUMNS)}, {status}, {_shown_code(reader)} AS code"


def _shown_code(reader: Principal) -> str:
    if may_operate(reader):
        return "code"
    return "CASE WHEN status = 'denied' THEN 'capability_not_found' ELSE code END"


async def _describe_all(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A page, in a thread where it is a long one."""
    if len(rows) <= _DESCRIBED_HERE:
        return [_describe(row) for row in rows]
    return await asyncio.to_thread(lambda: [_describe(row) for row in rows])


def _describe(row: Row) -> dict[str, Any]:
    route = row["route"]
    return {
        "id": row["id"],
        "job": row["job"],
        "turn": row["turn"],
        "at": row["at"],
        "caller": row["principal"],
        "userAgent": row["user_agent"],
        "agent": row["agent"],
        "capability": row["capability"],
        "protocol": None if route is None else route.partition(":")[0],
        "route": route,
        "servedBy": row["served_by"],
        "door": row["door"],
        "entry": row["entry"],
        "context": row["context"],
        "trace": row["trace"],
        "status": row["status"],
        "code": row["code"],
        "message": row["message"],
        "seconds": row["seconds"],
        "attempts": row["attempts"],
        "hops": row["hops"],
        "cached": bool(row["cached"]),
        "tokens": row["tokens"],
        "cost": row["cost"],
        "estimated": None if row["estimated"] is None else bool(row["estimated"]),
        "bytesIn": row["bytes_in"],
        "bytesOut": row["bytes_out"],
    }


def _encode_cursor(at: float, call_id: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((at, call_id))).decode().rstrip("=")


def _decode_cursor(cursor: str) -> tuple[float, str]:
    try:
        raw = base64.urlsafe_b64decode(cursor[:500] + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=tuple[float, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise ValidationError("Unknown cursor. Pass the value of next from the previous page, unchanged.") from None
