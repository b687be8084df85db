"""Jobs: what the turns of a conversation share, with its event log, in storage.

A job is durable before its id is told, and a turn before its outcome is. Only the process that holds the newest
``generation`` of a job may write to it; an ended job never changes. Not yours is not there. How long a process may be
silent is measured by the clock of the database, which is one for all.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from agent3 import failpoints
from agent3.calls.nodes import dead, enter, leave
from agent3.calls.outcomes import REFUSALS
from agent3.env import Env
from agent3.errors import Conflict, Corrupt, JobNotFound, TurnTaken, ValidationError
from agent3.model import (
    Answer,
    Call,
    Done,
    Event,
    Failed,
    Needs,
    Outcome,
    Question,
    Route,
    Working,
    decode_call,
    decode_outcome,
    encode,
)
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.storage import Database, Row, Transaction
from agent3.storage.database import Work
from agent3.storage.leases import NOW
from agent3.storage.news import News

__all__ = ["Job", "Jobs", "Status", "Teller"]

log = logger("jobs")

T = TypeVar("T")
Status = Literal["working", "needs", "done", "failed", "canceled"]
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
    ("deliveries", "subject"),
    ("jobs", "id"),
)
"""What goes with a job when it is removed, itself last."""
_NAMES = 500
"""Parameters of one statement."""

_HAND = (
    "INSERT INTO job_handed (job, generation) VALUES (?, ?) "
    "ON CONFLICT (job) DO UPDATE SET generation = excluded.generation"
)

_answers: msgspec.json.Decoder[dict[str, Answer]] = msgspec.json.Decoder(dict[str, Answer])
_questions: msgspec.json.Decoder[tuple[Question, ...]] = msgspec.json.Decoder(tuple[Question, ...])
_route: msgspec.json.Decoder[Route] = msgspec.json.Decoder(Route)
_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_sorted = msgspec.json.Encoder(order="deterministic")


class Job(Struct, frozen=True, kw_only=True):
    """One row. ``kept`` is what ``ctx.once`` did, ``state`` the connector's own reference."""

    id: str
    owner: str
    status: Status
    turn: int
    call: Call
    key: str | None = None
    key_hash: str | None = None
    route: Route | None = None
    state: Any = None
    kept: dict[str, Any] = {}
    outcome: Outcome | None = None
    answers: dict[str, Answer] = {}
    questions: tuple[Question, ...] = ()
    seq: int = 0
    node: str | None = None
    lease: float | None = None
    generation: int = 0
    created: float = 0.0
    updated: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether it will never change again."""
        return self.status in ("done", "failed", "canceled")


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
        self._now = NOW[database.dialect]
        self._until = f"{self._now} + CAST(? AS DOUBLE PRECISION)"
        self.node = enter(env, self)
        self._changed: dict[str, set[asyncio.Event]] = {}
        self._unreadable: set[str] = set()
        self.called = asyncio.Event()
        """Set when another process asks for a job to be stopped, or gives its own up."""
        self.news = news if news is not None else News(database, self.node)
        self.news.on("job", self._ring_here)
        self.news.on("call", lambda _: self.called.set())

    async def open(self, call: Call) -> tuple[Job, bool]:
        """A new job for a first turn, or the one that (owner, key) already has; True where it is new.

        One key with another body is a Conflict.
        """
        digest = _digest(call)

        async def work(tx: Transaction) -> tuple[Job, bool]:
            row = await self._insert(tx, call, digest)
            if row is not None:
                return _job(row), True
            found = await tx.one("SELECT * FROM jobs WHERE owner = ? AND key = ?", call.principal.id, call.key)
            if found is None:
                raise Conflict(f"job {call.id} exists already; start a new call with an id of its own")
            return _same(found, call, digest), False

        return await self._write(work)

    async def known(self, call: Call) -> Job | None:
        """The job that (owner, key) already has, if any. One key with another body is a Conflict."""
        digest = _digest(call)
        if digest is None:
            return None
        found = await self._database.one("SELECT * FROM jobs WHERE owner = ? AND key = ?", call.principal.id, call.key)
        return _same(found, call, digest) if found is not None else None

    async def adopt(self, call: Call, outcome: Needs | Working, route: Route | None) -> Job:
        """Make a job of an inline turn that did not end, together with how it stands, in one commit."""

        async def work(tx: Transaction) -> Job:
            row = await self._insert(tx, call, None)
            if row is None:
                raise Conflict(f"job {call.id} exists already; start a new call with an id of its own")
            return await self._finish(tx, _job(row), outcome, route, None, ())

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
        return _job(row)

    async def owned(self, owner: str, limit: int = 50) -> list[Job]:
        """The owner's jobs, the latest changed first; one that cannot be read is left out."""
        rows = await self._database.all(
            "SELECT * FROM jobs WHERE owner = ? ORDER BY updated DESC, id DESC LIMIT ?", owner, limit
        )
        return [job for row in rows if (job := self._read(row)) is not None]

    async def claim(self, job: Job, answers: Mapping[str, Answer] | None = None, *, hand_to: str | None = None) -> Job:
        """Take the next turn of a paused job: of two at once, one wins, and the other gets TurnTaken.

        With ``hand_to`` it is taken for another process, which is called and finds it by ``handed``.
        """
        if failpoints.armed is not None:
            await failpoints.reach("job.claim")

        async def work(tx: Transaction) -> Job:
            row = await tx.one(
                "UPDATE jobs SET status = 'working', turn = turn + 1, generation = generation + 1, node = ?, "
                f"lease = {self._until}, answers = ?, updated = ? "
                "WHERE id = ? AND status = 'needs' AND turn = ? RETURNING *",
                hand_to or self.node,
                self._lease,
                encode(dict(answers if answers is not None else job.answers)),
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
            return _job(row)

        claimed = await self._write(work)
        if hand_to is None:
            self._tell(job.id)
        else:
            self.news.tell("call", job.id)
        return claimed

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
            return _job(row) if row is not None else None

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

        await self._write(work)
        self._tell(job.id)

    async def keep(self, job: Job, kept: Mapping[str, Any]) -> None:
        """Remember what ``ctx.once`` did."""
        changed = await self._write(
            lambda tx: tx.run(
                "UPDATE jobs SET state = ? WHERE id = ? AND generation = ? AND status = 'working'",
                _state(job.state, kept),
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
        rows = await self._database.all(
            "SELECT seq, turn, body FROM job_events WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?",
            job_id,
            after,
            limit,
        )
        return [self._read_event(job_id, row) for row in rows]

    async def follow(self, owner: str, job_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Events past ``after``, until the job is no longer working and all has been read."""
        job = await self.get(owner, job_id)
        seen = -1
        with self._bell(job.id) as bell:
            while True:
                bell.clear()
                status, seq, pause = await self._stands(job.id)
                batch = await self.events(job.id, after) if seq != seen else []
                for event in batch:
                    after = event.seq
                    if event.kind != "state":
                        yield event
                if batch:
                    continue
                if status != "working":
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
            some = await self._database.write(self._expire_some)
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

    def _read(self, row: Row) -> Job | None:
        """The job of a row; None where it cannot be read, so that one bad row does not stand in the way of others."""
        try:
            return _job(row)
        except Corrupt as wrong:
            self._complain(row["id"], wrong.message)
            return None

    def _read_event(self, job_id: str, row: Row) -> Event:
        """The event of a row, or one in its place that says why it is not shown."""
        try:
            return msgspec.structs.replace(_event.decode(bytes(row["body"])), seq=row["seq"])
        except _UNDECODABLE as wrong:
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
        return await tx.one(
            "INSERT INTO jobs (id, owner, key, key_hash, status, turn, call, seq, node, lease, generation, created, "
            f"updated, expires) VALUES (?, ?, ?, ?, 'working', 1, ?, 0, ?, {self._until}, 1, ?, ?, ?) "
            "ON CONFLICT DO NOTHING RETURNING *",
            call.job or call.id,
            call.principal.id,
            call.key,
            digest,
            _kept(encode, call),
            self.node,
            self._lease,
            now,
            now,
            now + self._keep,
        )

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
        unused = _never_ran(job, outcome, attempted)
        now = self._env.now()
        seq = max(job.seq, written, *(event.seq for event in events)) + 1
        row = await tx.one(
            "UPDATE jobs SET status = ?, outcome = ?, route = ?, state = ?, questions = ?, answers = ?, seq = ?, "
            f"key = CASE WHEN ? = 1 THEN NULL ELSE key END, updated = ?, expires = ?, lease = {self._until} "
            "WHERE id = ? AND generation = ? AND status = 'working' RETURNING *",
            _status(outcome),
            encode(outcome),
            encode(route) if route is not None else None,
            _state(getattr(outcome, "state", None), job.kept if kept is None else kept),
            encode(outcome.questions) if isinstance(outcome, Needs) else None,
            encode(dict(job.answers if answers is None else answers)),
            seq,
            int(unused),
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
        last = [Event("turn", data=_shown(outcome), seq=seq, turn=job.turn)] if news else []
        await self._log(tx, job.id, [*events, *last])
        ended = _job(row)
        if self._teller is not None and not isinstance(outcome, Working):
            await self._teller.turned(tx, ended)
        return ended

    async def _log(self, tx: Transaction, job_id: str, events: Sequence[Event]) -> None:
        if not events:
            return
        now = self._env.now()
        await tx.many(
            "INSERT INTO job_events (job, seq, turn, kind, body, at) VALUES (?, ?, ?, ?, ?, ?)",
            [(job_id, event.seq, event.turn, event.kind, encode(event), now) for event in events],
        )

    async def _write(self, work: Work[T]) -> T:
        """A transaction whose every statement looks at one job and tells by its own condition whether it may.

        So the lock of that row is enough. Serializable, as others are, PostgreSQL would let jobs collide that have
        nothing but an index page in common, and of 64 callers most would wait for another attempt.
        """
        if self._database.dialect == "sqlite":
            return await self._database.write(work)

        async def calmly(tx: Transaction) -> T:
            await tx.run("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            return await work(tx)

        return await self._database.write(calmly)

    def _tell(self, job_id: str) -> None:
        """A job has changed: whoever waits for it here hears it now, and elsewhere soon."""
        self._ring_here(job_id)
        self.news.tell("job", job_id)

    def _ring_here(self, job_id: str) -> None:
        """Ring the bells of a job; without a name, of every job, since news may have been missed."""
        named = self._changed.get(job_id, ()) if job_id else chain.from_iterable(self._changed.values())
        for bell in named:
            bell.set()


async def _ring(bell: asyncio.Event, seconds: float) -> None:
    """Wait for the bell, for a while: a bell may be lost on its way from another process."""
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        return


def _digest(call: Call) -> str | None:
    """What a key stands for; None without a key."""
    if call.key is None:
        return None
    asked = (call.agent, call.capability, call.input, call.parts)
    return hashlib.sha256(_kept(_sorted.encode, asked)).hexdigest()


def _kept(write: Callable[[Any], bytes], what: Any) -> bytes:
    """The bytes that a call is kept as; what has no JSON form cannot be kept."""
    try:
        return write(what)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise ValidationError(f"The input cannot be kept: {wrong}. Give JSON values only.") from None


def _same(row: Row, call: Call, digest: str | None) -> Job:
    """The job that a key stands for; Conflict when the call is another."""
    if row["key_hash"] != digest:
        raise Conflict(f"key {call.key!r} was used for another call; give each call a key of its own")
    return _job(row)


def _never_ran(job: Job, outcome: Outcome, attempted: bool) -> bool:
    """Whether a job ends without having reached its target: its key then stands for nothing and may be used again.

    A code is no proof, since targets fail with any; and of a later generation nobody knows what the earlier ones sent.
    """
    if not isinstance(outcome, Failed) or job.generation > 1:
        return False
    return not outcome.sent or (not attempted and outcome.code in REFUSALS)


def _shown(outcome: Outcome) -> Any:
    """An outcome for readers of the log: without the connector's own state."""
    if isinstance(outcome, Needs | Working) and outcome.state is not None:
        outcome = msgspec.structs.replace(outcome, state=None)
    return msgspec.to_builtins(outcome)


def _status(outcome: Outcome) -> Status:
    if isinstance(outcome, Done):
        return "done"
    if isinstance(outcome, Failed):
        return "canceled" if outcome.code == "canceled" else "failed"
    return "needs" if isinstance(outcome, Needs) else "working"


def _state(state: Any, kept: Mapping[str, Any]) -> bytes | None:
    return encode({"state": state, "kept": dict(kept)}) if state is not None or kept else None


_UNDECODABLE = (msgspec.MsgspecError, TypeError, ValueError, AttributeError)


def _job(row: Row) -> Job:
    """The job of a row; Corrupt when it cannot be read."""
    try:
        return _decoded(row)
    except _UNDECODABLE as wrong:
        raise Corrupt(f"Job {row['id']} cannot be read: {wrong}") from None


def _decoded(row: Row) -> Job:
    stored = msgspec.json.decode(bytes(row["state"])) if row["state"] is not None else {}
    return Job(
        id=row["id"],
        owner=row["owner"],
        status=row["status"],
        turn=row["turn"],
        call=decode_call(bytes(row["call"])),
        key=row["key"],
        key_hash=row["key_hash"],
        route=_route.decode(bytes(row["route"])) if row["route"] is not None else None,
        state=stored.get("state"),
        kept=stored.get("kept", {}),
        outcome=decode_outcome(bytes(row["outcome"])) if row["outcome"] is not None else None,
        answers=_answers.decode(bytes(row["answers"])) if row["answers"] is not None else {},
        questions=_questions.decode(bytes(row["questions"])) if row["questions"] is not None else (),
        seq=row["seq"],
        node=row["node"],
        lease=row["lease"],
        generation=row["generation"],
        created=row["created"],
        updated=row["updated"],
    )
