"""Jobs that are stored only once they have ended: one row each, many jobs in one transaction.

For turns that ended without ever waiting and that may be run again: until the row is there nobody was told of them, so
a process that dies before has done nothing that counts. They have no observers either: who wants to hear of a job must
be known before it begins, and that makes it a job from the start. One that told nothing but its end has no line in the
log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from agent3.calls.jobs.rows import (
    META_KIND,
    Job,
    as_event_data,
    decode_job,
    detail_of,
    digest_of,
    encode_call,
    encode_column,
    encode_outcome,
    match_key,
    never_ran,
    status_of,
)
from agent3.env import Env
from agent3.errors import Agent3Error, Conflict
from agent3.model import Call, Capability, Done, Event, Failed, encode
from agent3.storage import Database, Transaction
from agent3.storage.checksums import append_checksum

__all__ = ["EndedJobs", "may_repeat", "read_unlogged"]

_BATCH: Final = 200
"""Jobs in one transaction."""
_COLUMNS = (
    *("id", "owner", "key", "key_hash", "status", "turn", "call", "outcome", "answers", "seq", "node", "generation"),
    *("created", "updated", "expires", "kind", "agent", "context", "detail"),
)
_MARKS = f"({', '.join('?' * len(_COLUMNS))})"
_INSERT = {
    rows: f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES {', '.join([_MARKS] * rows)} ON CONFLICT DO NOTHING"
    for rows in (128, 64, 32, 16, 8, 4, 2, 1)
}
"""Statements by the number of rows they insert: only a few, so that the driver keeps all of them prepared."""
_NO_ANSWERS: Final = encode_column({})


def may_repeat(capability: Capability) -> bool:
    """Whether its author allows it to be run again when nobody knows how far an earlier run came."""
    hints = capability.hints
    # Nobody knows either which of its routes was taken, so all that stand in for it must allow it too.
    stand_ins = (route.stand_in for route in capability.routes if route.stand_in is not None)
    return (hints.replay or hints.idempotent or hints.read_only) and all(one.repeatable for one in stand_ins)


class _Entry(Struct, eq=False):
    """A job on its way into the table. ``stored`` tells whether its key was free."""

    job: Job
    row: tuple[object, ...]
    lines: list[tuple[object, ...]]
    stored: asyncio.Future[bool]

    def settle(self, result: bool | BaseException) -> None:
        if self.stored.done():  # the caller was cancelled meanwhile
            return
        if isinstance(result, BaseException):
            self.stored.set_exception(result)
        else:
            self.stored.set_result(result)


class EndedJobs:
    """Writes such jobs. All that come while a transaction is under way share the next one."""

    def __init__(self, database: Database, env: Env, node: str | None, keep: float, keep_unused: float):
        self._database = database
        self._env = env
        self._node = node
        self._keep = keep
        self._keep_unused = keep_unused
        self._waiting: list[_Entry] = []
        self._writer: asyncio.Task[None] | None = None

    async def add(self, call: Call, outcome: Done | Failed, events: Sequence[Event]) -> Job:
        """The job of a call that has ended, once it is on disk; the job that has its key, if there is one already.

        KeyReused if that was another call. The events have their numbers already.
        """
        now = self._env.now()
        seq = (events[-1].seq if events else 0) + 1
        job = Job(
            id=call.id,
            owner=call.principal.id,
            status=status_of(outcome),
            turn=1,
            call=call,
            key=call.key,
            key_hash=digest_of(call),
            outcome=outcome,
            seq=seq,
            node=self._node,
            generation=1,
            created=now,
            updated=now,
        )
        unused = never_ran(job, outcome, attempted=True)
        row = (
            job.id,
            job.owner,
            None if unused else job.key,
            job.key_hash,
            job.status,
            1,
            encode_call(call),
            encode_outcome(outcome, job.id, 1, seq, now, now),
            _NO_ANSWERS,
            seq,
            job.node,
            1,
            now,
            now,
            now + (self._keep_unused if unused else self._keep),
            None if unused else call.meta.get(META_KIND),
            call.agent,
            call.context,
            detail_of(outcome),
        )
        log = [*events, _end_event(outcome, seq)] if events else []
        lines: list[tuple[object, ...]] = [
            (job.id, event.seq, 1, event.kind, append_checksum(encode(event), job.id, event.seq), now) for event in log
        ]
        entry = _Entry(job, row, lines, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_all(), name="ended jobs")
        if await entry.stored:
            return job
        found = await self._database.one("SELECT * FROM jobs WHERE owner = ? AND key = ?", job.owner, call.key)
        if found is None:
            raise Conflict(f"Job {call.id} already exists. Use a new id for each call.")
        return match_key(found, call, job.key_hash)

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            await self._write(batch)

    async def _write(self, batch: Sequence[_Entry]) -> None:
        embedded = self._database.syntax.embedded
        try:
            stored = await self._database.write(lambda tx: _insert(tx, batch, embedded), calm=True)
        except Agent3Error as error:
            if len(batch) == 1:
                batch[0].settle(error)
                return
            for entry in batch:  # one of them cannot be stored, which must not take the others with it
                await self._write([entry])
        except BaseException as error:
            for entry in batch:
                entry.settle(error)
            raise
        else:
            for entry in batch:
                entry.settle(entry.job.id in stored)


async def _insert(tx: Transaction, batch: Sequence[_Entry], embedded: bool) -> set[str]:
    """Insert jobs and their lines; the ids of those whose key was free."""
    ids = [entry.job.id for entry in batch]
    changed = 0
    if embedded:
        # As few statements as possible: after each one SQLite's thread needs the interpreter again, and beside a busy
        # event loop it waits long for it.
        start = 0
        for rows, statement in _INSERT.items():
            while len(batch) - start >= rows:
                values = [value for entry in batch[start : start + rows] for value in entry.row]
                changed += await tx.run(statement, *values)
                start += rows
    else:
        # A server takes all rows of one statement in one round trip, and would plan anew for each number of rows.
        await tx.many(_INSERT[1], [entry.row for entry in batch])
    if changed == len(batch):
        stored = set(ids)
    else:
        found = await tx.all(f"SELECT id FROM jobs WHERE id IN ({', '.join('?' * len(ids))})", *ids)
        stored = {row["id"] for row in found}
    if lines := [line for entry in batch if entry.job.id in stored for line in entry.lines]:
        await tx.many("INSERT INTO job_events (job, seq, turn, kind, body, at) VALUES (?, ?, ?, ?, ?, ?)", lines)
    return stored


async def read_unlogged(database: Database, job_ids: Sequence[str]) -> dict[str, tuple[Event, float]]:
    """The only event, and its time, of those jobs that told nothing but their end and so have no log."""
    if not job_ids:
        return {}
    rows = await database.all(
        "SELECT * FROM jobs WHERE seq = 1 AND turn = 1 AND status IN ('done', 'failed', 'canceled') "
        f"AND id IN ({', '.join('?' * len(job_ids))})",
        *job_ids,
    )
    jobs = [decode_job(row) for row in rows]
    return {
        job.id: (_end_event(job.outcome, 1), job.updated) for job in jobs if isinstance(job.outcome, (Done, Failed))
    }


def _end_event(outcome: Done | Failed, seq: int) -> Event:
    return Event("turn", data=as_event_data(outcome), seq=seq, turn=1)
