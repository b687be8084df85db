"""Jobs that are kept only when they have ended: one row and its log, many jobs in one transaction.

For turns that ended without ever waiting, and that may be run again: until the row is there, nobody was told of them,
and a process that dies before has done nothing that counts. Nobody else is told of such a job either: whoever is to be
told of one has to be known before it begins, which makes it a job from the start. One that told nothing but its end has
no line in the log: its row says it all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from agent3.calls.jobs.rows import (
    KIND,
    Job,
    detail_of,
    digest_of,
    ending,
    job_of,
    kept,
    never_ran,
    same,
    shown,
    status_of,
    stored,
)
from agent3.env import Env
from agent3.errors import Agent3Error, Conflict
from agent3.model import Call, Capability, Done, Event, Failed, encode
from agent3.storage import Database, Transaction
from agent3.storage.checksums import append_checksum
from agent3.storage.database import Dialect

__all__ = ["Finished", "may_repeat", "unlogged"]

_MOST: Final = 200
"""Jobs in one transaction."""
_COLUMNS = (
    *("id", "owner", "key", "key_hash", "status", "turn", "call", "outcome", "answers", "seq", "node", "generation"),
    *("created", "updated", "expires", "kind", "agent", "context", "detail"),
)
_MARKS = f"({', '.join('?' * len(_COLUMNS))})"
_INSERT = f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES {_MARKS} ON CONFLICT DO NOTHING"
_TOGETHER = {
    count: f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES {', '.join([_MARKS] * count)} ON CONFLICT DO NOTHING"
    for count in (128, 64, 32, 16, 8, 4, 2, 1)
}
"""Statements for so many rows: few of them, so that the driver keeps them all."""
_UNLOGGED = "SELECT * FROM jobs WHERE seq = 1 AND turn = 1 AND status IN ('done', 'failed', 'canceled') AND id IN "
_LOG = "INSERT INTO job_events (job, seq, turn, kind, body, at) VALUES (?, ?, ?, ?, ?, ?)"
_NO_ANSWERS: Final = stored({})


def may_repeat(capability: Capability) -> bool:
    """Whether its author allows it to be run again where nobody knows how far it came."""
    hints = capability.hints
    return hints.replay or hints.idempotent or hints.read_only


class _Entry(Struct, eq=False):
    """A job on its way into the table; the future tells whether its key was free."""

    job: Job
    row: tuple[object, ...]
    lines: list[tuple[object, ...]]
    written: asyncio.Future[bool]


class Finished:
    """Writes such jobs. All that come while a transaction is under way share the next one."""

    def __init__(self, database: Database, env: Env, node: str | None, keep: float, keep_unused: float):
        self._database = database
        self._env = env
        self._node = node
        self._keep = keep
        self._keep_unused = keep_unused
        self._waiting: list[_Entry] = []
        self._writer: asyncio.Task[None] | None = None

    async def put(self, call: Call, outcome: Done | Failed, events: Sequence[Event]) -> Job:
        """The job of a call that has ended, when it is on disk; that of its key, if another had that first.

        One key with another body is a Conflict. Events have their numbers already.
        """
        digest = digest_of(call)
        entry = self._entry(call, outcome, events, digest)
        self._waiting.append(entry)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="finished jobs")
        if await entry.written:
            return entry.job
        found = await self._database.one("SELECT * FROM jobs WHERE owner = ? AND key = ?", call.principal.id, call.key)
        if found is None:
            raise Conflict(f"job {call.id} exists already; start a new call with an id of its own")
        return same(found, call, digest)

    def _entry(self, call: Call, outcome: Done | Failed, events: Sequence[Event], digest: str | None) -> _Entry:
        now = self._env.now()
        seq = (events[-1].seq if events else 0) + 1
        job = Job(
            id=call.id,
            owner=call.principal.id,
            status=status_of(outcome),
            turn=1,
            call=call,
            key=call.key,
            key_hash=digest,
            outcome=outcome,
            seq=seq,
            node=self._node,
            generation=1,
            created=now,
            updated=now,
        )
        lines = [*events, _last(outcome, seq)] if events else []
        logged: list[tuple[object, ...]] = [
            (job.id, one.seq, 1, one.kind, append_checksum(encode(one), job.id, one.seq), now) for one in lines
        ]
        return _Entry(job, self._row(job, outcome), logged, asyncio.get_running_loop().create_future())

    def _row(self, job: Job, outcome: Done | Failed) -> tuple[object, ...]:
        unused = never_ran(job, outcome, attempted=True)
        return (
            job.id,
            job.owner,
            None if unused else job.key,
            job.key_hash,
            job.status,
            1,
            append_checksum(kept(encode, job.call)),
            ending(outcome, job.id, 1, job.seq, job.created, job.updated),
            _NO_ANSWERS,
            job.seq,
            job.node,
            1,
            job.created,
            job.updated,
            job.updated + (self._keep_unused if unused else self._keep),
            None if unused else job.call.meta.get(KIND),
            job.call.agent,
            job.call.context,
            detail_of(outcome),
        )

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            await self._write_some(batch)

    async def _write_some(self, batch: Sequence[_Entry]) -> None:
        try:
            taken = await self._database.write(lambda tx: _insert(tx, batch, self._database.dialect), calm=True)
        except Agent3Error as wrong:
            if len(batch) == 1:
                _tell(batch[0], wrong)
                return
            for one in batch:  # one of them cannot be stored; it must not take the others with it
                await self._write_some([one])
        except BaseException as wrong:
            for one in batch:
                _tell(one, wrong)
            raise
        else:
            for one in batch:
                _tell(one, one.job.id in taken)


async def _insert(tx: Transaction, batch: Sequence[_Entry], dialect: Dialect) -> set[str]:
    """Ids of those that are in the table now; a key that was there before keeps the others out."""
    taken = await (_one_by_one if dialect == "postgres" else _together)(tx, batch)
    lines = [line for one in batch if one.job.id in taken for line in one.lines]
    if lines:
        await tx.many(_LOG, lines)
    return taken


async def _one_by_one(tx: Transaction, batch: Sequence[_Entry]) -> set[str]:
    """A server takes the rows of one statement in one journey, and would plan anew for each number of them."""
    await tx.many(_INSERT, [one.row for one in batch])
    return await _there(tx, batch)


async def _together(tx: Transaction, batch: Sequence[_Entry]) -> set[str]:
    """SQLite's thread asks for the interpreter after each row, and beside a busy loop it waits long for that."""
    changed = start = 0
    for count, statement in _TOGETHER.items():
        while len(batch) - start >= count:
            values = [value for one in batch[start : start + count] for value in one.row]
            changed += await tx.run(statement, *values)
            start += count
    return {one.job.id for one in batch} if changed == len(batch) else await _there(tx, batch)


async def _there(tx: Transaction, batch: Sequence[_Entry]) -> set[str]:
    ids = [one.job.id for one in batch]
    found = await tx.all(f"SELECT id FROM jobs WHERE id IN ({', '.join('?' * len(ids))})", *ids)
    return {row["id"] for row in found}


def _last(outcome: Done | Failed, seq: int) -> Event:
    """What the log says of the end."""
    return Event("turn", data=shown(outcome), seq=seq, turn=1)


async def unlogged(database: Database, jobs: Sequence[str]) -> dict[str, tuple[Event, float]]:
    """The only event, and its time, of those jobs that told nothing but their end and therefore have no log."""
    if not jobs:
        return {}
    rows = await database.all(f"{_UNLOGGED}({', '.join('?' * len(jobs))})", *jobs)
    ended = [(row["id"], job_of(row)) for row in rows]
    return {
        name: (_last(job.outcome, 1), job.updated) for name, job in ended if isinstance(job.outcome, (Done, Failed))
    }


def _tell(entry: _Entry, what: bool | BaseException) -> None:
    if entry.written.done():  # whoever waited has left
        return
    if isinstance(what, BaseException):
        entry.written.set_exception(what)
    else:
        entry.written.set_result(what)
