"""Jobs: what the turns of a conversation share, with its event log, in storage.

A job is durable before its id is told, and a turn before its outcome is. Only the process that holds the newest
``generation`` of a job may write to it; an ended job never changes. Not yours is not there. How long a process may be
silent is measured by the clock of the database, which is one for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from agent3 import failpoints
from agent3.calls.jobs.ended import Finished, unlogged
from agent3.calls.jobs.nodes import dead, enter, leave
from agent3.calls.jobs.rows import (
    ALIAS,
    KIND,
    RESULT,
    UNDECODABLE,
    Job,
    Status,
    detail_of,
    digest_of,
    ending,
    job_of,
    kept,
    never_ran,
    same,
    shown,
    state_of,
    status_of,
    stored,
)
from agent3.env import Env
from agent3.errors import Conflict, Corrupt, JobNotFound, TurnTaken
from agent3.model import (
    Answer,
    Call,
    Event,
    Needs,
    Outcome,
    Route,
    Working,
    encode,
)
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.storage import Database, Row, Transaction
from agent3.storage.checksums import append_checksum, whole
from agent3.storage.database import Work
from agent3.storage.leases import NOW
from agent3.storage.notifications import News

__all__ = ["ALIAS", "KIND", "RESULT", "Job", "Jobs", "Line", "Status", "Teller", "Wanted"]

log = logger("jobs")

T = TypeVar("T")
LEASE = 15.0
"""Seconds after which a silent process has lost its jobs."""
_GAP = 10_000
"""Numbers left out when a job is taken over: its old process may have told events that it no longer wrote down."""
_BRIEFLY = 3_600.0
"""Seconds that a job is kept whose call was refused: it did nothing, and strangers must not fill the disk with it."""
_AT_ONCE = 100
"""Jobs removed in one transaction: others write in between."""
_UNHEARD = 0.05
"""Seconds between two looks at a job of another process of which nothing is heard."""
_BELONGS = (
    ("job_events", "job"),
    ("job_aliases", "job"),
    ("job_stops", "job"),
    ("job_handed", "job"),
    ("a2a_pushes", "job"),
    ("deliveries", "subject"),
    ("jobs", "id"),
)
"""What goes with a job when it is removed, itself last."""
_IN_MEMORY = (":memory:", "sqlite://")
_NAMES = 500
"""Parameters of one statement."""

_HAND = (
    "INSERT INTO job_handed (job, generation) VALUES (?, ?) "
    "ON CONFLICT (job) DO UPDATE SET generation = excluded.generation"
)

_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class Wanted(Struct, frozen=True, kw_only=True):
    """Which jobs a list is to show. ``details`` are what an outcome adds to its status, ``before`` where to go on."""

    kind: str
    agent: str | None = None
    context: str | None = None
    status: Status | None = None
    details: tuple[str, ...] = ()
    other: bool = False
    """Whether ``details`` are those that are not wanted."""
    since: float | None = None
    before: tuple[float, str] | None = None

    def rules(self) -> list[tuple[str, Any]]:
        """Conditions with their values; one whose value is None is none."""
        return [
            ("kind = ?", self.kind),
            ("agent = ?", self.agent),
            ("context = ?", self.context),
            ("status = ?", self.status),
            ("updated >= ?", self.since),
        ]

    def fixed(self) -> list[str]:
        """Conditions on the details, which are words of ours and never a caller's."""
        if not self.details:
            return []
        words = ", ".join(f"'{one}'" for one in self.details)
        return [f"(detail IS NULL OR detail NOT IN ({words}))" if self.other else f"detail IN ({words})"]


class Line(NamedTuple):
    """An event, and when it was written down."""

    event: Event
    at: float


class Teller(Protocol):
    """Writes down whom to tell, in the very transaction that writes what there is to tell; it awaits nothing else."""

    async def turned(self, tx: Transaction, job: Job) -> None:
        """A turn is over: the job pauses or has ended."""

    async def told(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        """Its turn goes on and has told something."""


class Jobs:
    """The store of jobs. Every method is one transaction, and what it returns is on disk."""

    def __init__(
        self,
        database: Database,
        env: Env,
        *,
        keep_days: float = 7.0,
        metrics: Metrics = METRICS,
        news: News | None = None,
        lease: float = LEASE,
        teller: Teller | None = None,
    ):
        self._database = database
        self._env = env
        self._metrics = metrics
        self._keep = keep_days * 86_400.0
        self._lease = lease
        self._teller = teller
        self._tellers: list[Teller] = []
        self._now = NOW[database.dialect]
        self._until = f"{self._now} + CAST(? AS DOUBLE PRECISION)"
        self.node = enter(env, self)
        self.finished = Finished(database, env, self.node, self._keep, min(self._keep, _BRIEFLY))
        """Where jobs are kept that had ended before."""
        self._changed: dict[str, set[asyncio.Event]] = {}
        self._rings: dict[str, int] = {}
        self._reading: dict[tuple[object, ...], asyncio.Future[Any]] = {}
        self._unreadable: set[str] = set()
        self.called = asyncio.Event()
        """Set when another process asks for a job to be stopped, or gives its own up."""
        self.news = news if news is not None else News(database, self.node)
        self.news.on("job", self._ring_here)
        self.news.on("call", lambda _: self.called.set())

    @property
    def volatile(self) -> bool:
        """Whether nothing outlives this process, and no other shares it: its database is in memory."""
        return self._database.url in _IN_MEMORY

    def also_tell(self, teller: Teller) -> None:
        """Have one more hear of every event that is written down, also of those that come with the end of a turn."""
        self._tellers.append(teller)

    async def open(self, call: Call) -> tuple[Job, bool]:
        """A new job for a first turn, or the one that (owner, key) already has; True where it is new.

        One key with another body is a Conflict.
        """
        digest = digest_of(call)

        async def work(tx: Transaction) -> tuple[Job, bool]:
            for _ in range(2):  # a key that was in the way may be free before one sees whose it is
                if (row := await self._insert(tx, call, digest)) is not None:
                    return job_of(row), True
                found = await tx.one("SELECT * FROM jobs WHERE owner = ? AND key = ?", call.principal.id, call.key)
                if found is not None:
                    return same(found, call, digest), False
            raise Conflict(f"job {call.id} exists already; start a new call with an id of its own")

        return await self._write(work)

    async def known(self, call: Call) -> Job | None:
        """The job that (owner, key) already has, if any. One key with another body is a Conflict."""
        digest = digest_of(call)
        if digest is None:
            return None
        found = await self._database.one("SELECT * FROM jobs WHERE owner = ? AND key = ?", call.principal.id, call.key)
        return same(found, call, digest) if found is not None else None

    async def adopt(
        self, call: Call, outcome: Needs | Working, route: Route | None, events: Sequence[Event] = ()
    ) -> Job:
        """Make a job of an inline turn that did not end, with what it told and how it stands, in one commit."""
        digest = digest_of(call)

        async def work(tx: Transaction) -> Job:
            row = await self._insert(tx, call, digest)
            if row is None:
                raise Conflict(f"job {call.id} exists already; start a new call with an id of its own")
            return await self._finish(tx, job_of(row), outcome, route, None, events)

        job = await self._write(work)
        self._tell(job.id)
        return job

    async def get(self, owner: str, job_id: str) -> Job:
        """The job of this owner; JobNotFound for anything else."""
        row = await self._database.one("SELECT * FROM jobs WHERE id = ? AND owner = ?", job_id, owner)
        if row is None:
            row = await self._database.one(
                "SELECT jobs.* FROM jobs JOIN job_aliases ON job_aliases.job = jobs.id "
                "WHERE job_aliases.alias = ? AND job_aliases.owner = ?",
                job_id,
                owner,
            )
        if row is None:
            raise JobNotFound(f"There is no job {job_id!r} of yours. It may have expired.")
        return job_of(row)

    async def owned(self, owner: str, limit: int = 50) -> list[Job]:
        """The owner's jobs, the latest changed first; one that cannot be read is left out."""
        rows = await self._database.all(
            "SELECT * FROM jobs WHERE owner = ? ORDER BY updated DESC, id DESC LIMIT ?", owner, limit
        )
        return [job for row in rows if (job := self._read(row)) is not None]

    async def listed(self, owner: str, wanted: Wanted, limit: int) -> tuple[list[Job], int]:
        """Jobs of a kind, the latest changed first, and how many there are before any page is cut off."""
        rules = [(rule, value) for rule, value in wanted.rules() if value is not None]
        where = " AND ".join(["owner = ?", *(rule for rule, _ in rules), *wanted.fixed()])
        given = (owner, *(value for _, value in rules))
        total = await self._database.one(f"SELECT COUNT(*) AS jobs FROM jobs WHERE {where}", *given)
        assert total is not None
        if wanted.before is not None:
            where += " AND (updated < ? OR (updated = ? AND id < ?))"
            updated, last = wanted.before
            given = (*given, updated, updated, last)
        rows = await self._database.all(
            f"SELECT * FROM jobs WHERE {where} ORDER BY updated DESC, id DESC LIMIT ?", *given, limit
        )
        return [job for row in rows if (job := self._read(row)) is not None], total["jobs"]

    async def lines_of(self, jobs: Sequence[str]) -> dict[str, list[Line]]:
        """The whole logs of some jobs."""
        found: dict[str, list[Line]] = {}
        for start in range(0, len(jobs), _NAMES):
            some = jobs[start : start + _NAMES]
            rows = await self._database.all(
                "SELECT job, seq, turn, body, at FROM job_events "
                f"WHERE job IN ({', '.join('?' * len(some))}) ORDER BY job, seq",
                *some,
            )
            for row in rows:
                found.setdefault(row["job"], []).append(Line(self._read_event(row["job"], row), row["at"]))
            rest = await unlogged(self._database, [one for one in some if one not in found])
            found |= {name: [Line(*line)] for name, line in rest.items()}
        return found

    async def claim(
        self,
        job: Job,
        answers: Mapping[str, Answer] | None = None,
        *,
        hand_to: str | None = None,
        said: Sequence[Event] = (),
    ) -> Job:
        """Take the next turn of a paused job: of two at once, one wins, and the other gets TurnTaken.

        With ``hand_to`` it is taken for another process, which is called and finds it by ``handed``. ``said`` is what
        the turn begins with in the log.
        """
        if failpoints.armed is not None:
            await failpoints.reach("job.claim")

        async def work(tx: Transaction) -> Job:
            row = await tx.one(
                "UPDATE jobs SET status = 'working', turn = turn + 1, generation = generation + 1, seq = seq + ?, "
                f"node = ?, lease = {self._until}, answers = ?, updated = ? "
                "WHERE id = ? AND status = 'needs' AND turn = ? RETURNING *",
                len(said),
                hand_to or self.node,
                self._lease,
                stored(dict(answers if answers is not None else job.answers)),
                self._env.now(),
                job.id,
                job.turn,
            )
            if row is None:
                raise TurnTaken(
                    f"Turn {job.turn} of job {job.id} was taken already, or the job has ended. Read it again."
                )
            if hand_to is not None:
                await tx.run(_HAND, job.id, row["generation"])
            claimed = job_of(row)
            if said:
                await self._said(tx, claimed, said)
            return claimed

        claimed = await self._write(work)
        if hand_to is None:
            self._tell(job.id)
        else:
            self.news.tell("call", job.id)
        return claimed

    async def free_key(self, job: Job) -> None:
        """Let the key of a job that has ended stand for nothing: the call is made once more under it, as another job.

        Nothing that anybody is shown of the job changes.
        """
        await self._write(
            lambda tx: tx.run(
                "UPDATE jobs SET key = NULL WHERE id = ? AND key = ? AND status IN ('done', 'failed', 'canceled')",
                job.id,
                job.key,
            )
        )

    async def handed(self) -> list[Job]:
        """Jobs whose next turn another process has given to this one, and that it has not taken yet."""
        rows = await self._database.all(
            "SELECT jobs.* FROM job_handed JOIN jobs ON jobs.id = job_handed.job "
            "AND jobs.generation = job_handed.generation WHERE node = ? AND status = 'working'",
            self.node,
        )
        return [job for row in rows if (job := self._read(row)) is not None]

    async def seize(self, job: Job) -> Job | None:
        """Take over a job whose process is gone, or enter one's own again; None when somebody else was faster."""
        if failpoints.armed is not None:
            await failpoints.reach("job.claim")

        async def work(tx: Transaction) -> Job | None:
            row = await tx.one(
                "UPDATE jobs SET generation = generation + 1, seq = CASE WHEN node = ? THEN seq ELSE seq + ? END, "
                f"node = ?, lease = {self._until}, updated = ? "
                "WHERE id = ? AND generation = ? AND status = 'working' RETURNING *",
                self.node,
                _GAP,
                self.node,
                self._lease,
                self._env.now(),
                job.id,
                job.generation,
            )
            return job_of(row) if row is not None else None

        return await self._write(work)

    async def append(self, job: Job, events: Sequence[Event]) -> None:
        """Add events to the log, in order; TurnTaken when another process holds the job now."""

        async def work(tx: Transaction) -> None:
            changed = await tx.run(
                "UPDATE jobs SET seq = ? WHERE id = ? AND generation = ? AND status = 'working'",
                events[-1].seq,
                job.id,
                job.generation,
            )
            if not changed:
                raise TurnTaken(f"Job {job.id} is no longer this process's to write.")
            await self._log(tx, job.id, events)
            if self._teller is not None:
                await self._teller.told(tx, job, events)
            await self._tell_others(tx, job, events)

        await self._write(work)
        self._tell(job.id)

    async def keep(self, job: Job, kept: Mapping[str, Any]) -> None:
        """Remember what ``ctx.once`` did."""
        changed = await self._write(
            lambda tx: tx.run(
                "UPDATE jobs SET state = ? WHERE id = ? AND generation = ? AND status = 'working'",
                state_of(job.state, kept),
                job.id,
                job.generation,
            )
        )
        if not changed:
            raise TurnTaken(f"Job {job.id} is no longer this process's to write.")

    async def end_turn(
        self,
        job: Job,
        outcome: Outcome,
        route: Route | None,
        answers: Mapping[str, Answer] | None = None,
        events: Sequence[Event] = (),
        kept: Mapping[str, Any] | None = None,
        written: int = 0,
        attempted: bool = True,
    ) -> Job:
        """Row, remaining events and the turn's own event in one commit, and only then is anybody told.

        ``written`` is the number of the last event that was appended before. A key stands for nothing, and may be used
        again, if its call was refused before it was ``attempted``, or was certainly not sent.
        """

        async def work(tx: Transaction) -> Job:
            return await self._finish(tx, job, outcome, route, answers, events, kept, written, attempted)

        ended = await self._write(work)
        self._tell(job.id)
        return ended

    async def events(self, job_id: str, after: int, limit: int = 500) -> list[Event]:
        """Events past a sequence number, in order."""
        return [line.event for line in await self.lines(job_id, after, limit)]

    async def lines(self, job_id: str, after: int = 0, limit: int = 500) -> list[Line]:
        """Likewise, each with the time of its writing."""
        rows = await self._database.all(
            "SELECT seq, turn, body, at FROM job_events WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?",
            job_id,
            after,
            limit,
        )
        if not rows and after == 0:
            return [Line(*line) for line in (await unlogged(self._database, [job_id])).values()]
        return self.read_lines(job_id, rows)

    def read_lines(self, job_id: str, rows: Sequence[Row]) -> list[Line]:
        """The lines in some rows of the log; one that cannot be read says so."""
        return [Line(self._read_event(job_id, row), row["at"]) for row in rows]

    async def follow(self, owner: str, job_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Events past ``after``, until the job is no longer working and all has been read."""
        job = await self.get(owner, job_id)
        async with aclosing(self.trail(job.id, after)) as trail:
            async for line in trail:
                yield line.event

    async def trail(self, job_id: str, after: int = 0, *, through: bool = False) -> AsyncGenerator[Line, None]:
        """The lines of the log past ``after``, until the job is no longer working; with ``through``, until it ends."""
        seen = -1
        with self._bell(job_id) as bell:
            while True:
                bell.clear()
                status, seq, pause = await self._together((job_id, "stands"), lambda: self._stands(job_id))
                here = after  # the next line changes it
                batch = await self._together((job_id, here), partial(self.lines, job_id, here)) if seq != seen else []
                for line in batch:
                    after = line.event.seq
                    if line.event.kind != "state":
                        yield line
                if batch:
                    continue
                if status != "working" and not (through and status == "needs"):
                    return
                seen = seq
                await _ring(bell, pause)

    async def wait(self, owner: str, job_id: str, seconds: float) -> Job:
        """The job as soon as it is no longer working, or as it stands when the time is over."""
        job = await self.get(owner, job_id)
        status: str = job.status
        until = self._env.monotonic() + seconds
        with self._bell(job.id) as bell:
            while status == "working" and (left := until - self._env.monotonic()) > 0:
                bell.clear()
                status, _, pause = await self._stands(job.id)
                if status == "working":
                    await _ring(bell, min(left, pause))
        return await self.get(owner, job.id)

    async def abandoned(self, *, silent: bool = True) -> list[str]:
        """Ids of working jobs whose process is gone or silent; also this one's own, if it forgot them.

        Without ``silent`` only those whose process is certainly gone.
        """
        held = await self._database.all(
            "SELECT DISTINCT node FROM jobs WHERE status = 'working' AND node IS NOT NULL AND lease IS NOT NULL"
        )
        gone = [row["node"] for row in held if dead(row["node"], self.node)][:_NAMES]
        rows = await self._database.all(
            f"SELECT id FROM jobs WHERE status = 'working' AND (node IS NULL OR {self._silent(silent)} "
            f"OR node IN (''{', ?' * len(gone)})) ORDER BY updated, id",
            *gone,
        )
        return [row["id"] for row in rows]

    def _silent(self, counts: bool) -> str:
        return f"lease IS NULL OR lease < {self._now}" if counts else "lease IS NULL"

    async def stray(self, job_id: str) -> Job | None:
        """An abandoned job; None when it no longer is, or cannot be read."""
        row = await self._database.one(
            f"SELECT jobs.*, CASE WHEN {self._silent(True)} THEN 1 ELSE 0 END AS silent "
            "FROM jobs WHERE id = ? AND status = 'working'",
            job_id,
        )
        if row is None:
            return None
        return self._read(row) if row["silent"] or dead(row["node"], self.node) else None

    async def ask_to_stop(self, job: Job) -> None:
        """Ask the process that works on a job to stop it; it hears of it at once, or when it looks."""
        await self._database.many(
            f"INSERT INTO job_stops (job, asked) VALUES (?, {self._now}) ON CONFLICT DO NOTHING", [(job.id,)]
        )
        self.news.tell("call", job.id)

    async def to_stop(self) -> list[str]:
        """Ids of this process's jobs that another was asked to stop."""
        rows = await self._database.all(
            "SELECT id FROM jobs JOIN job_stops ON job_stops.job = jobs.id WHERE node = ? AND status = 'working'",
            self.node,
        )
        return [row["id"] for row in rows]

    async def mine(self, job_id: str) -> Job | None:
        """A job that this process works on."""
        row = await self._database.one(
            "SELECT * FROM jobs WHERE id = ? AND node = ? AND status = 'working'", job_id, self.node
        )
        return None if row is None else self._read(row)

    async def stop_asked(self, job_id: str) -> bool:
        """Whether somebody asked for this job to be stopped."""
        return await self._database.one("SELECT job FROM job_stops WHERE job = ?", job_id) is not None

    async def heartbeat(self, jobs: Sequence[str]) -> list[str]:
        """Say that this process still works on its jobs; those that another has taken meanwhile."""
        await self._database.many(
            f"UPDATE jobs SET lease = {self._until} WHERE id = ? AND node = ? AND status = 'working'",
            [(self._lease, job, self.node) for job in jobs],
        )
        mine: set[str] = set()
        for start in range(0, len(jobs), _NAMES):
            some = jobs[start : start + _NAMES]
            marks = ", ".join("?" * len(some))
            rows = await self._database.all(f"SELECT id FROM jobs WHERE node = ? AND id IN ({marks})", self.node, *some)
            mine.update(row["id"] for row in rows)
        return [job for job in jobs if job not in mine]

    async def leave(self) -> None:
        """Give up this process's jobs, so that the next may take them over at once."""
        leave(self.node)
        await self._database.many(
            f"UPDATE jobs SET node = NULL, lease = {self._now} WHERE node = ? AND status = 'working'", [(self.node,)]
        )
        self.news.tell("call")

    async def expire(self, most: int = 100_000) -> int:
        """Remove jobs past their time that nobody works on, with their events and aliases; how many.

        A transaction for every hundred, so that writers get their turn in between.
        """
        removed = 0
        while removed < most:
            some = await self._database.write(self._expire_some, frees=True)
            removed += some
            if some < _AT_ONCE:
                break
        return removed

    async def counts(self) -> dict[str, int]:
        """How many jobs stand in each status."""
        rows = await self._database.all("SELECT status, COUNT(*) AS jobs FROM jobs GROUP BY status")
        return {row["status"]: row["jobs"] for row in rows}

    async def _expire_some(self, tx: Transaction) -> int:
        rows = await tx.all(
            "SELECT id FROM jobs WHERE expires < ? AND status <> 'working' ORDER BY expires LIMIT ?",
            self._env.now(),
            _AT_ONCE,
        )
        old = [row["id"] for row in rows]
        if old:
            marks = ", ".join("?" * len(old))
            for table, column in _BELONGS:
                await tx.run(f"DELETE FROM {table} WHERE {column} IN ({marks})", *old)
        return len(old)

    async def _stands(self, job_id: str) -> tuple[str, int, float]:
        """Status, last number, and the seconds until it is worth while to look again unasked.

        This process hears the bell of its own jobs, and of another's where the database carries the news.
        """
        row = await self._database.one("SELECT status, seq, node FROM jobs WHERE id = ?", job_id)
        if row is None:
            raise JobNotFound(f"Job {job_id!r} has expired.")
        heard = row["node"] == self.node or self.news.live
        return row["status"], row["seq"], 1.0 if heard else _UNHEARD

    async def _together(self, what: tuple[str, object], read: Callable[[], Awaitable[T]]) -> T:
        """Read once for all who ask for the same since the job last changed: a thousand may follow one job."""
        key = (*what, self._rings.get(what[0], 0))
        if (reading := self._reading.get(key)) is None:
            reading = self._reading[key] = asyncio.ensure_future(read())
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
        return await asyncio.shield(reading)

    @contextmanager
    def _bell(self, job_id: str) -> Iterator[asyncio.Event]:
        """A bell that rings whenever this process changes the job."""
        bell = asyncio.Event()
        self._changed.setdefault(job_id, set()).add(bell)
        try:
            yield bell
        finally:
            self._changed[job_id].discard(bell)
            if not self._changed[job_id]:
                del self._changed[job_id]
                self._rings.pop(job_id, None)

    def _read(self, row: Row) -> Job | None:
        """The job of a row; None where it cannot be read, so that one bad row does not stand in the way of others."""
        try:
            return job_of(row)
        except Corrupt as wrong:
            self._complain(row["id"], wrong.message)
            return None

    def _read_event(self, job_id: str, row: Row) -> Event:
        """The event of a row, or one in its place that says why it is not shown."""
        try:
            event = _event.decode(whole(bytes(row["body"]), "it", job_id, row["seq"]))
            return msgspec.structs.replace(event, seq=row["seq"])
        except (*UNDECODABLE, Corrupt) as wrong:
            self._complain(f"{job_id}/{row['seq']}", f"Event {row['seq']} of job {job_id} cannot be read: {wrong}")
            return Event("log", text="An event stood here that cannot be read.", seq=row["seq"], turn=row["turn"] or 0)

    def _complain(self, name: str, text: str) -> None:
        """Log and count what cannot be read, once each."""
        if name in self._unreadable:
            return
        if len(self._unreadable) < 10_000:
            self._unreadable.add(name)
        log.error("jobs: %s; it is skipped", text)
        self._metrics.events_dropped.inc(("undecodable row",))

    async def _insert(self, tx: Transaction, call: Call, digest: str | None) -> Row | None:
        now = self._env.now()
        row = await tx.one(
            "INSERT INTO jobs (id, owner, key, key_hash, status, turn, call, seq, node, lease, generation, created, "
            f"updated, expires, kind, agent, context) VALUES (?, ?, ?, ?, 'working', 1, ?, 0, ?, {self._until}, 1, ?, "
            "?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING *",
            call.job or call.id,
            call.principal.id,
            call.key,
            digest,
            append_checksum(kept(encode, call)),
            self.node,
            self._lease,
            now,
            now,
            now + self._keep,
            call.meta.get(KIND),
            call.agent,
            call.context,
        )
        if row is not None and (alias := call.meta.get(ALIAS)) is not None:
            await tx.run(
                "INSERT INTO job_aliases (owner, alias, job) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                call.principal.id,
                alias,
                row["id"],
            )
        return row

    async def _finish(
        self,
        tx: Transaction,
        job: Job,
        outcome: Outcome,
        route: Route | None,
        answers: Mapping[str, Answer] | None,
        events: Sequence[Event],
        kept: Mapping[str, Any] | None = None,
        written: int = 0,
        attempted: bool = True,
    ) -> Job:
        unused = never_ran(job, outcome, attempted)
        now = self._env.now()
        seq = max(job.seq, written, *(event.seq for event in events)) + 1
        row = await tx.one(
            "UPDATE jobs SET status = ?, outcome = ?, route = ?, state = ?, questions = ?, answers = ?, seq = ?, "
            "key = CASE WHEN ? = 1 THEN NULL ELSE key END, kind = CASE WHEN ? = 1 THEN NULL ELSE kind END, "
            f"detail = ?, updated = ?, expires = ?, lease = {self._until} "
            "WHERE id = ? AND generation = ? AND status = 'working' RETURNING *",
            status_of(outcome),
            ending(outcome, job.id, job.turn, seq, job.created, now),
            stored(route) if route is not None else None,
            state_of(getattr(outcome, "state", None), job.kept if kept is None else kept),
            stored(outcome.questions) if isinstance(outcome, Needs) else None,
            stored(dict(job.answers if answers is None else answers)),
            seq,
            int(unused),
            int(unused),
            detail_of(outcome),
            now,
            now + (min(self._keep, _BRIEFLY) if unused else self._keep),
            self._lease if isinstance(outcome, Working) else None,
            job.id,
            job.generation,
        )
        if row is None:
            raise TurnTaken(f"Job {job.id} has ended or belongs to another process; this outcome is discarded.")
        # Asked again, a target that goes on working elsewhere has no news.
        news = not isinstance(outcome, Working) or outcome != job.outcome
        last = [Event("turn", data=shown(outcome), seq=seq, turn=job.turn)] if news else []
        await self._log(tx, job.id, [*events, *last], now)
        ended = job_of(row)
        await self._tell_others(tx, job, events)
        if not isinstance(outcome, Working):
            for teller in (self._teller, *self._tellers):
                if teller is not None:
                    await teller.turned(tx, ended)
        return ended

    async def _said(self, tx: Transaction, job: Job, said: Sequence[Event]) -> None:
        first = job.seq - len(said) + 1
        events = [msgspec.structs.replace(one, seq=first + index, turn=job.turn) for index, one in enumerate(said)]
        await self._log(tx, job.id, events)
        await self._tell_others(tx, job, events)

    async def _tell_others(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        if events:
            for teller in self._tellers:
                await teller.told(tx, job, events)

    async def _log(self, tx: Transaction, job_id: str, events: Sequence[Event], now: float | None = None) -> None:
        if not events:
            return
        now = self._env.now() if now is None else now
        await tx.many(
            "INSERT INTO job_events (job, seq, turn, kind, body, at) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (job_id, event.seq, event.turn, event.kind, append_checksum(encode(event), job_id, event.seq), now)
                for event in events
            ],
        )

    async def _write(self, work: Work[T]) -> T:
        """A transaction whose every statement looks at one job and tells by its own condition whether it may.

        So the lock of that row is enough. Serializable, as others are, PostgreSQL would let jobs collide that have
        nothing but an index page in common, and of 64 callers most would wait for another attempt.
        """
        return await self._database.write(work, calm=True)

    def _tell(self, job_id: str) -> None:
        """A job has changed: whoever waits for it here hears it now, and elsewhere soon."""
        self._ring_here(job_id)
        self.news.tell("job", job_id)

    def _ring_here(self, job_id: str) -> None:
        """Ring the bells of a job; without a name, of every job, since news may have been missed."""
        named = self._changed.get(job_id, ()) if job_id else chain.from_iterable(self._changed.values())
        for name in self._changed if not job_id else [job_id] if job_id in self._changed else ():
            self._rings[name] = self._rings.get(name, 0) + 1
        for bell in named:
            bell.set()


async def _ring(bell: asyncio.Event, seconds: float) -> None:
    """Wait for the bell, for a while: a bell may be lost on its way from another process."""
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        return
