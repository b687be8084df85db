"""What is held of a principal: given out whole, and erased.

It knows in which tables a principal leaves something behind, and by which rows. Erasing takes rows out of the audit
chain as retention does, with a signed note of their links, and forgets the name of who changed the configuration; the
chain is verified as before. Secrets are neither given out nor left behind.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from agent3.calls.audit import delete_rows
from agent3.env import Env
from agent3.storage import BlobStore, Database, Row, Transaction
from agent3.storage.audit import ACTOR, Signer, record
from agent3.storage.rests import rest_after

__all__ = ["PersonalData"]

_PAGE = 200
_AT_ONCE = 50
_RECENT = 2.0
"""Seconds between the bytes of an artifact and its row, at most."""
_HIDDEN = frozenset({"sealed", "checksum", "salt", "key_hash", "signature", "node", "lease", "generation"})
"""Columns that are no data of a person: secrets, and what the house needs for itself."""
_OF_JOB = "EXISTS (SELECT 1 FROM jobs WHERE jobs.id = {} AND owner = ?)"
_ENDED = "SELECT id FROM jobs WHERE owner = ? AND status <> 'working'"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rows of one kind: their table, what finds those of a principal, and the columns by which they are told apart.

    They are read in the order of these columns, a page after the last row of the one before.
    """

    name: str
    table: str
    where: str
    order: tuple[str, ...] = ("id",)
    gone: str = ""
    """What finds those that are erased, where not all are."""
    owner: str = ""
    """The column of the principal, where the others do not tell rows apart without it."""


# In the order in which they are erased: what is found by something else goes before it.
_KINDS = (
    _Kind(
        "bodies",
        "call_bodies",
        "EXISTS (SELECT 1 FROM calls WHERE calls.id = call_bodies.id AND principal = ?)",
        gone="id IN (SELECT id FROM calls WHERE principal = ?)",
    ),
    _Kind("calls", "calls", "principal = ?", ("at", "id")),
    _Kind("statistics", "call_stats", "principal = ?", ("hour", "agent", "capability"), owner="principal"),
    _Kind("statistics by day", "call_days", "principal = ?", ("day", "agent", "capability"), owner="principal"),
    _Kind("dead letters", "dead_letters", "principal = ?"),
    _Kind("ratings", "feedback", "principal = ?"),
    _Kind("experience with agents", "agent_use", "principal = ?", ("agent",), owner="principal"),
    _Kind("artifacts shared", "artifact_readers", "reader = ?", ("artifact",), owner="reader"),
    _Kind("artifacts", "artifacts", "owner = ?"),
    _Kind("sessions at websites", "web_sessions", "principal = ?", ("site",), owner="principal"),
    _Kind("push targets", "a2a_pushes", _OF_JOB.format("a2a_pushes.job"), ("job", "id"), f"job IN ({_ENDED})"),
    _Kind("callbacks", "deliveries", _OF_JOB.format("deliveries.subject"), gone=f"subject IN ({_ENDED})"),
    _Kind("events of jobs", "job_events", _OF_JOB.format("job_events.job"), ("job", "seq"), f"job IN ({_ENDED})"),
    _Kind("names of jobs", "job_aliases", "owner = ?", ("alias",), f"job IN ({_ENDED})", owner="owner"),
    _Kind(
        "approvals asked for",
        "approvals",
        "owner = ?",
        gone="owner = ? AND job NOT IN (SELECT id FROM jobs WHERE status = 'working')",
    ),
    _Kind("jobs", "jobs", "owner = ?", gone="owner = ? AND status <> 'working'"),
    _Kind("logins", "logins", "principal = ?", ("agent",), owner="principal"),
    _Kind("changes of configuration", "audit", "who = ?", ("number",)),
    _Kind("client", "clients", "id = ?"),
)


class PersonalData:
    """Everything that a database holds of principals."""

    def __init__(self, database: Database, blobs: BlobStore, env: Env):
        self._database = database
        self._blobs = blobs
        self._env = env

    async def export(self, principal: str) -> AsyncIterator[bytes]:
        """All of it, as lines of JSON: a head, then one for each row with the kind of thing that it is."""
        yield msgspec.json.encode({"agent3_data": 1, "principal": principal, "at": self._env.now()}) + b"\n"
        for kind in _KINDS:
            async for row in self._rows(kind, principal):
                yield msgspec.json.encode({"kind": kind.name, "data": await self._describe(kind, row)}) + b"\n"

    async def _rows(self, kind: _Kind, principal: str) -> AsyncIterator[Row]:
        columns, marks = ", ".join(kind.order), ", ".join("?" * len(kind.order))
        after, last = "", ()
        while True:
            page = await self._database.all(
                f"SELECT * FROM {kind.table} WHERE {kind.where}{after} ORDER BY {columns} LIMIT {_PAGE}",
                principal,
                *last,
            )
            for row in page:
                yield row
            if len(page) < _PAGE:
                return
            after, last = f" AND ({columns}) > ({marks})", tuple(page[-1][name] for name in kind.order)

    async def _describe(self, kind: _Kind, row: Row) -> dict[str, Any]:
        shown = {name: _plain(row[name]) for name in row.keys() if name not in _HIDDEN and row[name] is not None}  # noqa: SIM118
        if kind.table == "artifacts":
            try:
                shown["body"] = base64.b64encode(await self._blobs.get(row["sha256"])).decode()
            except Exception as error:  # noqa: BLE001 - one that is gone or damaged keeps nothing else back
                shown["missing"] = str(error)
        return shown

    async def erase(self, principal: str, signer: Signer | None = None) -> dict[str, int]:
        """Delete all of it, some rows in each transaction; how many of each kind. Safe to repeat and to interrupt.

        Jobs that run are left; they and what they leave can be erased when they have ended.
        """
        who, gone = ACTOR.get(), {}
        for kind in _KINDS:
            if kind.table == "audit":
                gone[kind.name] = await self._database.write(
                    lambda tx: tx.run("UPDATE audit SET who = NULL, salt = NULL WHERE who = ?", principal)
                )
            elif kind.table != "clients":
                gone[kind.name] = await self._erase(kind, principal, signer)
        gone["approvals decided"] = await self._database.write(
            lambda tx: tx.run(
                "UPDATE approvals SET decided_by = NULL, reason = NULL WHERE decided_by = ? AND settled IS NOT NULL",
                principal,
            )
        )
        running = await self._database.one(
            "SELECT COUNT(*) AS count FROM jobs WHERE owner = ? AND status = 'working'", principal
        )
        left = 0 if running is None else int(running["count"])

        async def note(tx: Transaction) -> None:
            # Of whom is not said: a name in the chain could never be taken out.
            await record(tx, self._env, "change", "data erased", {"rows": sum(gone.values())}, who=who)

        await self._database.write(note)
        return {**gone, "jobs that still run": left}

    async def _erase(self, kind: _Kind, principal: str, signer: Signer | None) -> int:
        found = f"SELECT {', '.join(kind.order)} FROM {kind.table} WHERE {kind.gone or kind.where} LIMIT {_AT_ONCE}"
        names = (*kind.order, kind.owner) if kind.owner else kind.order
        same = " AND ".join(f"{column} = ?" for column in names)

        async def work(tx: Transaction) -> int:
            if kind.table == "calls":
                where = f"id IN (SELECT id FROM calls WHERE principal = ? LIMIT {_AT_ONCE})"
                return await delete_rows(tx, self._env, where, principal, why="erasure", signer=signer)
            rows = await tx.all(found, principal)
            for row in rows:
                values = [row[column] for column in kind.order] + ([principal] if kind.owner else [])
                await _delete_behind(tx, kind, row, principal)
                await tx.run(f"DELETE FROM {kind.table} WHERE {same}", *values)
            return len(rows)

        if await self._database.one(found, principal) is None:
            return 0  # as most kinds are: a look costs less than a transaction
        total = 0
        hashes = await self._hashes(principal) if kind.table == "artifacts" else []
        while True:
            async with rest_after(self._env):
                some = await self._database.write(work, frees=True)
            total += some
            if some < _AT_ONCE:
                break
        # Somebody else may have put the same bytes, and not noted it yet: those are looked at once more.
        if recent := [digest for digest in hashes if not await self._discard(digest)]:
            await asyncio.sleep(_RECENT)
            for digest in recent:
                await self._discard(digest)
        return total

    async def _discard(self, digest: str) -> bool:
        """Delete bytes that no artifact refers to; False for those that were put a moment ago."""
        if await self._database.one("SELECT id FROM artifacts WHERE sha256 = ? LIMIT 1", digest) is not None:
            return True
        return await self._blobs.discard(digest, _RECENT)

    async def _hashes(self, principal: str) -> list[str]:
        rows = await self._database.all("SELECT DISTINCT sha256 FROM artifacts WHERE owner = ?", principal)
        return [row["sha256"] for row in rows]


async def _delete_behind(tx: Transaction, kind: _Kind, row: Row, principal: str) -> None:
    """What hangs on a row and would be found by nobody after it."""
    if kind.table == "artifacts":
        await tx.run("DELETE FROM artifact_readers WHERE artifact = ?", row["id"])
        await tx.run("DELETE FROM artifact_links WHERE artifact = ?", row["id"])
    elif kind.table == "deliveries":
        await tx.run("DELETE FROM queue_messages WHERE queue = 'webhooks' AND id = ? AND state = 'dead'", row["id"])
    elif kind.table == "logins":
        query = "SELECT reference FROM logins WHERE agent = ? AND principal = ?"
        found = await tx.one(query, row["agent"], principal)
        if found is not None:
            for table in ("sign_ins", "kept_secrets"):
                await tx.run(f"DELETE FROM {table} WHERE id = ?", found["reference"])


def _plain(value: Any) -> Any:
    """A column for people: JSON as what it says, other bytes in base64."""
    if not isinstance(value, bytes | memoryview):
        return value
    raw = bytes(value)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return base64.b64encode(raw).decode()
