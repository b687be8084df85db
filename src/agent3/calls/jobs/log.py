"""The log of jobs: every event of every job, numbered, with the time at which it was written.

A job that ended at once and told nothing else has no lines; its row says it all (see ended.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agent3.calls.jobs.ended import read_unlogged
from agent3.calls.jobs.rows import RowReader
from agent3.env import Env
from agent3.model import Event, encode
from agent3.storage import Database, Row, Transaction
from agent3.storage.checksums import append_checksum

__all__ = ["MAX_PARAMETERS", "JobLog", "Line"]

MAX_PARAMETERS = 500
"""Parameters of one statement."""


class Line(NamedTuple):
    """An event, and when it was written down."""

    event: Event
    at: float


class JobLog:
    """The table ``job_events``. An event that cannot be read is replaced by one that says so."""

    def __init__(self, database: Database, env: Env, reader: RowReader):
        self._database = database
        self._env = env
        self._reader = reader

    @staticmethod
    def encode_body(job_id: str, event: Event) -> bytes:
        """An event as it is stored."""
        return append_checksum(encode(event), job_id, event.seq)

    async def append(self, tx: Transaction, job_id: str, events: Sequence[Event], now: float | None = None) -> None:
        """Add numbered events, inside the caller's transaction."""
        if not events:
            return
        at = self._env.now() if now is None else now
        await tx.many(
            "INSERT INTO job_events (job, seq, turn, kind, body, at) VALUES (?, ?, ?, ?, ?, ?)",
            [(job_id, event.seq, event.turn, event.kind, self.encode_body(job_id, event), at) for event in events],
        )

    async def read(self, job_id: str, after: int = 0, limit: int = 500) -> list[Line]:
        """The lines past a sequence number, in order."""
        rows = await self._database.all(
            "SELECT seq, turn, body, at FROM job_events WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?",
            job_id,
            after,
            limit,
        )
        if not rows and after == 0:
            return [Line(*line) for line in (await read_unlogged(self._database, [job_id])).values()]
        return self.decode(job_id, rows)

    async def read_all(self, job_ids: Sequence[str]) -> dict[str, list[Line]]:
        """All lines of some jobs, by job."""
        logs: dict[str, list[Line]] = {}
        for start in range(0, len(job_ids), MAX_PARAMETERS):
            some = job_ids[start : start + MAX_PARAMETERS]
            rows = await self._database.all(
                "SELECT job, seq, turn, body, at FROM job_events "
                f"WHERE job IN ({', '.join('?' * len(some))}) ORDER BY job, seq",
                *some,
            )
            for row in rows:
                logs.setdefault(row["job"], []).append(Line(self._reader.get_event(row["job"], row), row["at"]))
            unlogged = await read_unlogged(self._database, [job_id for job_id in some if job_id not in logs])
            logs |= {job_id: [Line(*line)] for job_id, line in unlogged.items()}
        return logs

    def decode(self, job_id: str, rows: Sequence[Row]) -> list[Line]:
        """The lines in some rows of the log of a job."""
        return [Line(self._reader.get_event(job_id, row), row["at"]) for row in rows]
