"""Which process works on which job: leases, jobs of processes that are gone, and requests from one process to another.

How long a process has been silent is measured by the clock of the database, which is the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent3.calls.jobs.log import MAX_PARAMETERS
from agent3.calls.jobs.nodes import is_dead, unregister_node
from agent3.calls.jobs.rows import Job, RowReader
from agent3.storage import Database
from agent3.storage.notifications import News

__all__ = ["LEASE", "JobLeases"]

LEASE = 15.0
"""Seconds after which a silent process has lost its jobs."""


class JobLeases:
    """The working jobs of all processes, as one of them (``node``) sees them."""

    def __init__(self, database: Database, node: str, seconds: float, news: News, reader: RowReader):
        self.node = node
        self.seconds = seconds
        self.wakeup = asyncio.Event()
        """Set when another process asks for a job to be stopped, hands a turn over, or gives its own jobs up."""
        self.until = f"{database.syntax.now} + CAST(? AS DOUBLE PRECISION)"
        """The end of a lease in SQL; its parameter is ``seconds``."""
        self._database = database
        self._now = database.syntax.now
        self._news = news
        self._reader = reader
        news.on("call", lambda _: self.wakeup.set())

    async def renew(self, job_ids: Sequence[str]) -> list[str]:
        """Show that this process still works on its jobs; return those that another process has taken meanwhile."""
        await self._database.many(
            f"UPDATE jobs SET lease = {self.until} WHERE id = ? AND node = ? AND status = 'working'",
            [(self.seconds, job_id, self.node) for job_id in job_ids],
        )
        own: set[str] = set()
        for start in range(0, len(job_ids), MAX_PARAMETERS):
            some = job_ids[start : start + MAX_PARAMETERS]
            marks = ", ".join("?" * len(some))
            rows = await self._database.all(f"SELECT id FROM jobs WHERE node = ? AND id IN ({marks})", self.node, *some)
            own.update(row["id"] for row in rows)
        return [job_id for job_id in job_ids if job_id not in own]

    async def release_all(self) -> None:
        """Give up the jobs of this process, so that another may take them over at once."""
        unregister_node(self.node)
        await self._database.many(
            f"UPDATE jobs SET node = NULL, lease = {self._now} WHERE node = ? AND status = 'working'", [(self.node,)]
        )
        self._news.tell("call")

    async def list_abandoned(self, *, silent: bool = True) -> list[str]:
        """Ids of working jobs whose process is gone or silent, among them those that this process forgot.

        Without ``silent`` only those whose process is certainly gone.
        """
        held = await self._database.all(
            "SELECT DISTINCT node FROM jobs WHERE status = 'working' AND node IS NOT NULL AND lease IS NOT NULL"
        )
        dead = [row["node"] for row in held if is_dead(row["node"], self.node)][:MAX_PARAMETERS]
        expired = f"OR lease < {self._now}" if silent else ""
        rows = await self._database.all(
            f"SELECT id FROM jobs WHERE status = 'working' AND (node IS NULL OR lease IS NULL {expired} "
            f"OR node IN (''{', ?' * len(dead)})) ORDER BY updated, id",
            *dead,
        )
        return [row["id"] for row in rows]

    async def find_abandoned(self, job_id: str) -> Job | None:
        """An abandoned job; None if it is not, or no longer, or cannot be read."""
        row = await self._database.one(
            f"SELECT jobs.*, CASE WHEN lease IS NULL OR lease < {self._now} THEN 1 ELSE 0 END AS silent "
            "FROM jobs WHERE id = ? AND status = 'working'",
            job_id,
        )
        if row is None or not (row["silent"] or is_dead(row["node"], self.node)):
            return None
        return self._reader.find_job(row)

    async def find_own(self, job_id: str) -> Job | None:
        """A job that this process works on."""
        row = await self._database.one(
            "SELECT * FROM jobs WHERE id = ? AND node = ? AND status = 'working'", job_id, self.node
        )
        return None if row is None else self._reader.find_job(row)

    async def list_handed_over(self) -> list[Job]:
        """Jobs whose next turn another process claimed for this one, and that it has not begun yet."""
        # Beginning the turn raises the generation, and by that ends the entry.
        rows = await self._database.all(
            "SELECT jobs.* FROM job_handed JOIN jobs ON jobs.id = job_handed.job "
            "AND jobs.generation = job_handed.generation WHERE node = ? AND status = 'working'",
            self.node,
        )
        return [job for row in rows if (job := self._reader.find_job(row)) is not None]

    async def request_stop(self, job_id: str) -> None:
        """Ask the process that works on a job to stop it; it hears of it at once, or when it next looks."""
        await self._database.many(
            f"INSERT INTO job_stops (job, asked) VALUES (?, {self._now}) ON CONFLICT DO NOTHING", [(job_id,)]
        )
        self._news.tell("call", job_id)

    async def list_stop_requests(self) -> list[str]:
        """Ids of this process's jobs that another process asks to stop."""
        rows = await self._database.all(
            "SELECT id FROM jobs JOIN job_stops ON job_stops.job = jobs.id WHERE node = ? AND status = 'working'",
            self.node,
        )
        return [row["id"] for row in rows]

    async def is_stop_requested(self, job_id: str) -> bool:
        """Whether any process asked for this job to be stopped."""
        return await self._database.one("SELECT job FROM job_stops WHERE job = ?", job_id) is not None
