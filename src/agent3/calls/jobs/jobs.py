"""The store of jobs: opened, claimed turn by turn, and ended, each in one transaction.

A job is durable before its id is told, and a turn before its outcome is. Only the process that holds the newest
``generation`` of a job may write to it, and an ended job never changes. To everyone but its owner a job does not exist.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from agent3 import failpoints
from agent3.calls.budgets import Bill, Reservation
from agent3.calls.jobs.changes import Changes, wait_until_set
from agent3.calls.jobs.ended import EndedJobs
from agent3.calls.jobs.leases import LEASE, JobLeases
from agent3.calls.jobs.log import JobLog, Line
from agent3.calls.jobs.nodes import register_node
from agent3.calls.jobs.rows import (
    META_ALIAS,
    META_KIND,
    Job,
    RowReader,
    Status,
    as_event_data,
    decode_job,
    detail_of,
    digest_of,
    encode_call,
    encode_column,
    encode_outcome,
    encode_state,
    match_key,
    never_ran,
    status_of,
)
from agent3.env import Env
from agent3.errors import Conflict, JobNotFound, TurnTaken
from agent3.model import Answer, Call, Event, Needs, Outcome, Route, Working
from agent3.observe.metrics import METRICS, Metrics
from agent3.storage import Database, Row, Transaction
from agent3.storage.database import Work
from agent3.storage.notifications import News
from agent3.storage.rests import rest_after

__all__ = ["JobFilter", "JobObserver", "Jobs"]

T = TypeVar("T")

_GAP = 10_000
"""Numbers left out when a job is taken over: its old process may have told events that it no longer wrote down."""
_KEEP_UNUSED = 3_600.0
"""Seconds that a refused call's job is kept: it did nothing, and strangers must not fill the disk with them."""
_EXPIRE_BATCH = 25
"""Jobs removed in one transaction: others write in between."""
_POLL = 0.05
"""Seconds between two looks at a job of another process whose changes are not notified."""
_POLL_NOTIFIED = 1.0
"""Likewise where changes are notified: a notification may be lost."""
_PARTS = (
    ("job_events", "job"),
    ("job_aliases", "job"),
    ("job_stops", "job"),
    ("job_handed", "job"),
    ("a2a_pushes", "job"),
    ("deliveries", "subject"),
    ("jobs", "id"),
)
"""What is removed with a job, by table and column; the job itself last."""
_NEW = (
    "id, owner, key, key_hash, status, turn, call, seq, node, lease, generation, created, updated, expires, kind, "
    "agent, context, bill"
)
_HELD = "id = ? AND generation = ? AND status = 'working'"
_IN_MEMORY = (":memory:", "sqlite://")
_NOTHING_SPENT = Bill()


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs to list. ``details`` are what an outcome adds to its status, ``before`` where a page goes on."""

    kind: str
    agent: str | None = None
    context: str | None = None
    status: Status | None = None
    details: tuple[str, ...] = ()
    exclude_details: bool = False
    """Whether ``details`` are those that are not wanted."""
    since: float | None = None
    before: tuple[float, str] | None = None


class JobObserver(Protocol):
    """Hears of changes inside the transaction that writes them, so that both are stored or neither.

    It may await nothing but that transaction.
    """

    def concerns(self, job: Job) -> bool:
        """Whether it could have anything to do for this job."""

    async def on_turn_end(self, tx: Transaction, job: Job) -> None:
        """A turn is over: the job pauses or has ended."""

    async def on_events(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        """Events were added to the log of a job."""


class Jobs:
    """All jobs of a database. Every method is one transaction, and what it returns is on disk.

    ``callbacks`` hears of events only while a turn goes on: progress that comes with its end is not worth a message.
    """

    def __init__(
        self,
        database: Database,
        env: Env,
        *,
        keep_days: float = 7.0,
        metrics: Metrics = METRICS,
        news: News | None = None,
        lease: float = LEASE,
        callbacks: JobObserver | None = None,
    ):
        self._database = database
        self._env = env
        self._keep = keep_days * 86_400.0
        self._keep_unused = min(self._keep, _KEEP_UNUSED)
        self._callbacks = callbacks
        self._observers: list[JobObserver] = []
        self.give_back: Callable[[Reservation | None], None] = lambda _: None
        """Hears what was reserved for jobs whose answers are no longer waited for, and that were never sent."""
        self._reader = RowReader(metrics)
        self._changes = Changes()
        self.node = register_node(env, self)
        self.news = news if news is not None else News(database, self.node)
        self.news.on("job", self._changes.notify)
        self.log = JobLog(database, env, self._reader)
        self.leases = JobLeases(database, self.node, lease, self.news, self._reader)
        self.ended = EndedJobs(database, env, self.node, self._keep, self._keep_unused)

    @property
    def is_volatile(self) -> bool:
        """Whether nothing outlives this process, and no other shares it: the database is in memory."""
        return self._database.url in _IN_MEMORY

    def add_observer(self, observer: JobObserver) -> None:
        """Have an observer hear of every event, also of those that come with the end of a turn."""
        self._observers.append(observer)

    # Opening

    async def open(self, call: Call, bill: Bill = _NOTHING_SPENT) -> tuple[Job, bool]:
        """A new job for a first turn, or the one that (owner, key) already has; True where it is new.

        KeyReused if that was another call.
        """
        digest = digest_of(call)
        if META_ALIAS not in call.meta:  # the usual one: a single statement, in one commit with those of others
            values = self._values(call, digest, bill)
            if (row := await self._open_gathered(values)) is not None:
                return decode_job(row), True

        async def work(tx: Transaction) -> tuple[Job, bool]:
            # Twice: the key that was in the way may have been released before its job is read.
            for _ in range(2):
                if (row := await self._insert(tx, call, digest, bill)) is not None:
                    return decode_job(row), True
                found = await tx.one("SELECT * FROM jobs WHERE owner = ? AND key = ?", call.principal.id, call.key)
                if found is not None:
                    return match_key(found, call, digest), False
            raise _already_exists(call)

        return await self._write(work)

    async def open_with_outcome(
        self,
        call: Call,
        outcome: Needs | Working,
        route: Route | None,
        events: Sequence[Event] = (),
        bill: Bill = _NOTHING_SPENT,
    ) -> Job:
        """A job for an inline turn that paused or goes on elsewhere, with all that it told, in one commit."""
        digest = digest_of(call)

        async def work(tx: Transaction) -> Job:
            row = await self._insert(tx, call, digest, bill)
            if row is None:
                raise _already_exists(call)
            return await self._end_turn(tx, decode_job(row), outcome, route, None, events)

        job = await self._write(work)
        self._notify(job.id)
        return job

    async def find_by_key(self, call: Call) -> Job | None:
        """The job that (owner, key) already has; KeyReused if that was another call."""
        digest = digest_of(call)
        if digest is None:
            return None
        found = await self._database.one("SELECT * FROM jobs WHERE owner = ? AND key = ?", call.principal.id, call.key)
        return match_key(found, call, digest) if found is not None else None

    async def release_key(self, job: Job) -> None:
        """Let the key of an ended job stand for nothing, so that the call can be made again under it.

        Nothing that is shown of the job changes.
        """
        await self._write(
            lambda tx: tx.run(
                "UPDATE jobs SET key = NULL WHERE id = ? AND key = ? AND status IN ('done', 'failed', 'canceled')",
                job.id,
                job.key,
            )
        )

    # Reading

    async def get(self, owner: str, job_id: str) -> Job:
        """The job of this owner, by its id or alias; JobNotFound for anything else."""
        row = await self._database.one("SELECT * FROM jobs WHERE id = ? AND owner = ?", job_id, owner)
        if row is None:
            row = await self._database.one(
                "SELECT jobs.* FROM jobs JOIN job_aliases ON job_aliases.job = jobs.id "
                "WHERE job_aliases.alias = ? AND job_aliases.owner = ?",
                job_id,
                owner,
            )
        if row is None:
            raise JobNotFound(f"Job {job_id!r} does not exist for you. It may have expired.")
        return decode_job(row)

    async def get_of_anyone(self, job_id: str) -> Job:
        """A job by its id, whoever owns it: for operators only."""
        row = await self._database.one("SELECT * FROM jobs WHERE id = ?", job_id)
        if row is None:
            raise JobNotFound(f"Job {job_id!r} does not exist. It may have expired.")
        return decode_job(row)

    async def list_open(self, owner: str | None, limit: int) -> list[Job]:
        """Jobs that are working or wait for an answer, of one owner or of all; one that cannot be read is left out."""
        found: list[Job] = []
        for status in ("working", "needs"):
            # In the order of the index, so that nothing is sorted however many there are.
            order = "lease DESC" if owner is None else "updated DESC, id DESC"
            whose = "" if owner is None else "AND owner = ? "
            values = (status,) if owner is None else (status, owner)
            rows = await self._database.all(
                f"SELECT * FROM jobs WHERE status = ? {whose}ORDER BY {order} LIMIT ?", *values, limit - len(found)
            )
            found += [job for row in rows if (job := self._reader.find_job(row)) is not None]
        return found

    async def list_latest(self, owner: str, limit: int = 50) -> list[Job]:
        """The owner's jobs, the latest changed first; one that cannot be read is left out."""
        rows = await self._database.all(
            "SELECT * FROM jobs WHERE owner = ? ORDER BY updated DESC, id DESC LIMIT ?", owner, limit
        )
        return [job for row in rows if (job := self._reader.find_job(row)) is not None]

    async def list_matching(self, owner: str, wanted: JobFilter, limit: int) -> tuple[list[Job], int]:
        """A page of the owner's jobs, the latest changed first, and how many there are on all pages."""
        conditions = {
            "owner = ?": owner,
            # Of a context there are few: then no index of all of a kind is wanted.
            "kind = ?" if wanted.context is None else "COALESCE(kind, '') = ?": wanted.kind,
            "agent = ?": wanted.agent,
            "context = ?": wanted.context,
            "status = ?": wanted.status,
            "updated >= ?": wanted.since,
        }
        given = {condition: value for condition, value in conditions.items() if value is not None}
        where, values = " AND ".join(given), list(given.values())
        if wanted.details:
            # Written into the statement: they are constants of ours, never what a caller gave.
            details = ", ".join(f"'{detail}'" for detail in wanted.details)
            exclude = f"(detail IS NULL OR detail NOT IN ({details}))"
            where += f" AND {exclude if wanted.exclude_details else f'detail IN ({details})'}"
        total = await self._database.one(f"SELECT COUNT(*) AS jobs FROM jobs WHERE {where}", *values)
        assert total is not None
        if wanted.before is not None:
            where += " AND (updated < ? OR (updated = ? AND id < ?))"
            updated, last = wanted.before
            values += [updated, updated, last]
        rows = await self._database.all(
            f"SELECT * FROM jobs WHERE {where} ORDER BY updated DESC, id DESC LIMIT ?", *values, limit
        )
        return [job for row in rows if (job := self._reader.find_job(row)) is not None], total["jobs"]

    async def count_waiting(self, owner: str, most: int) -> int:
        """How many jobs of an owner wait for an answer, counted up to ``most``."""
        row = await self._database.one(
            "SELECT COUNT(*) AS jobs FROM (SELECT 1 FROM jobs WHERE owner = ? AND status = 'needs' LIMIT ?) AS waiting",
            owner,
            most,
        )
        return int(row["jobs"]) if row is not None else 0

    async def count_by_status(self) -> dict[str, int]:
        """How many jobs have each status."""
        rows = await self._database.all("SELECT status, COUNT(*) AS jobs FROM jobs GROUP BY status")
        return {row["status"]: row["jobs"] for row in rows}

    # Following

    async def follow(self, owner: str, job_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Events past ``after``, until the job is no longer working and all has been read."""
        job = await self.get(owner, job_id)
        async with aclosing(self.follow_lines(job.id, after)) as lines:
            async for line in lines:
                yield line.event

    async def follow_lines(
        self, job_id: str, after: int = 0, *, through_pauses: bool = False
    ) -> AsyncGenerator[Line, None]:
        """The lines of the log past ``after``, until the job pauses or ends; ``through_pauses`` until it ends."""
        seen = -1
        with self._changes.watch(job_id) as changed:
            while True:
                changed.clear()  # before reading, so that a change during the read is not missed
                status, seq, poll = await self._changes.read_once(
                    job_id, "progress", partial(self._read_progress, job_id)
                )
                lines = []
                if seq != seen:
                    lines = await self._changes.read_once(job_id, after, partial(self.log.read, job_id, after))
                for line in lines:
                    after = line.event.seq
                    if line.event.kind != "state":  # the connector's own
                        yield line
                if lines:
                    continue
                if status != "working" and not (through_pauses and status == "needs"):
                    return
                seen = seq
                await wait_until_set(changed, poll)

    async def wait(self, owner: str, job_id: str, seconds: float) -> Job:
        """The job as soon as it is no longer working, or as it stands when the time is over."""
        job = await self.get(owner, job_id)
        status: str = job.status
        until = self._env.monotonic() + seconds
        with self._changes.watch(job.id) as changed:
            while status == "working" and (left := until - self._env.monotonic()) > 0:
                changed.clear()
                status, _, poll = await self._read_progress(job.id)
                if status == "working":
                    await wait_until_set(changed, min(left, poll))
        return await self.get(owner, job.id)

    async def _read_progress(self, job_id: str) -> tuple[str, int, float]:
        """Status, last number, and the seconds after which to look again without having been woken."""
        row = await self._database.one("SELECT status, seq, node FROM jobs WHERE id = ?", job_id)
        if row is None:
            raise JobNotFound(f"Job {job_id!r} has expired.")
        notified = row["node"] == self.node or self.news.live
        return row["status"], row["seq"], _POLL_NOTIFIED if notified else _POLL

    # A turn

    async def claim(
        self,
        job: Job,
        answers: Mapping[str, Answer] | None = None,
        *,
        hand_to: str | None = None,
        said: Sequence[Event] = (),
        call: Call | None = None,
        bill: Bill | None = None,
    ) -> Job:
        """Take the next turn of a paused job: of two at once one wins, and the other gets TurnTaken.

        With ``call`` the job asked what it is for, and this is what it does from now on: it starts in this turn, and
        ``bill`` is what was reserved for it.

        With ``hand_to`` it is taken for another process, which is woken and finds it with ``leases.list_handed_over``.
        The log of the turn begins with ``said``.
        """
        if failpoints.armed is not None:
            await failpoints.reach("job.claim")

        starts = "call = ?, outcome = NULL, state = NULL, questions = NULL, " if call is not None else ""
        given = () if call is None else (encode_call(call),)

        async def work(tx: Transaction) -> Job:
            row = await tx.one(
                f"UPDATE jobs SET {starts}status = 'working', turn = turn + 1, generation = generation + 1, "
                f"seq = seq + ?, node = ?, lease = {self.leases.until}, answers = ?, bill = ?, updated = ? "
                "WHERE id = ? AND status = 'needs' AND turn = ? RETURNING *",
                *given,
                len(said),
                hand_to or self.node,
                self.leases.seconds,
                encode_column(dict(answers if answers is not None else job.answers)),
                encode_column(job.bill if bill is None else bill),
                self._env.now(),
                job.id,
                job.turn,
            )
            if row is None:
                raise TurnTaken(
                    f"Turn {job.turn} of job {job.id} was already taken, or the job has ended. Read the job again."
                )
            if hand_to is not None:
                await tx.run(
                    "INSERT INTO job_handed (job, generation) VALUES (?, ?) "
                    "ON CONFLICT (job) DO UPDATE SET generation = excluded.generation",
                    job.id,
                    row["generation"],
                )
            claimed = decode_job(row)
            if said:
                first = claimed.seq - len(said) + 1
                events = [
                    msgspec.structs.replace(event, seq=first + index, turn=claimed.turn)
                    for index, event in enumerate(said)
                ]
                await self.log.append(tx, claimed.id, events)
                await self._tell_observers(tx, claimed, events)
            return claimed

        claimed = await self._write(work)
        if hand_to is None:
            self._notify(job.id)
        else:
            self.news.tell("call", job.id)
        return claimed

    async def take_over(self, job: Job) -> Job | None:
        """Take a working job from a process that is gone, or begin anew with an own one.

        None if another was faster. Whatever still holds the older generation can write no more. The time that a target
        went on working by itself since the last turn counts like that of a turn.
        """
        now, bill = self._env.now(), job.bill
        if isinstance(job.outcome, Working):
            bill = msgspec.structs.replace(bill, seconds=bill.seconds + max(0.0, now - job.updated))
        if failpoints.armed is not None:
            await failpoints.reach("job.claim")

        async def work(tx: Transaction) -> Job | None:
            row = await tx.one(
                "UPDATE jobs SET generation = generation + 1, seq = CASE WHEN node = ? THEN seq ELSE seq + ? END, "
                f"node = ?, lease = {self.leases.until}, bill = ?, updated = ? "
                "WHERE id = ? AND generation = ? AND status = 'working' RETURNING *",
                self.node,
                _GAP,
                self.node,
                self.leases.seconds,
                encode_column(bill),
                now,
                job.id,
                job.generation,
            )
            return decode_job(row) if row is not None else None

        return await self._write(work)

    async def append(self, job: Job, events: Sequence[Event]) -> None:
        """Add events to the log, in order; TurnTaken if another process holds the job now."""

        async def work(tx: Transaction) -> None:
            changed = await tx.run(
                "UPDATE jobs SET seq = ? WHERE id = ? AND generation = ? AND status = 'working'",
                events[-1].seq,
                job.id,
                job.generation,
            )
            if not changed:
                raise _taken_away(job)
            await self.log.append(tx, job.id, events)
            if self._callbacks is not None:
                await self._callbacks.on_events(tx, job, events)
            await self._tell_observers(tx, job, events)

        await self._write(work)
        self._notify(job.id)

    async def save_kept(self, job: Job, kept: Mapping[str, Any]) -> None:
        """Remember what ``ctx.once`` did; TurnTaken if another process holds the job now."""
        changed = await self._write(
            lambda tx: tx.run(
                "UPDATE jobs SET state = ? WHERE id = ? AND generation = ? AND status = 'working'",
                encode_state(job.state, kept),
                job.id,
                job.generation,
            )
        )
        if not changed:
            raise _taken_away(job)

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
        bill: Bill | None = None,
    ) -> Job:
        """Write the row, the remaining events and the event of the turn itself in one commit, then wake the readers.

        ``written`` is the number of the last event that was appended before. The key is released if the call was
        refused before it was ``attempted``, or was certainly not sent.
        """

        observers = (self._callbacks, *self._observers)
        gathers = self._database.dialect == "postgres"  # SQLite gathers whole works, and has no such statement
        heard = any(one is not None and one.concerns(job) for one in observers)
        if not gathers or events or heard or isinstance(outcome, (Needs, Working)):

            async def work(tx: Transaction) -> Job:
                return await self._end_turn(tx, job, outcome, route, answers, events, kept, written, attempted, bill)

            ended = await self._write(work)
        else:  # the usual end: a single statement, in one commit with those of others
            now = self._env.now()
            seq, values = self._ending(job, outcome, route, answers, events, kept, written, attempted, bill, now)
            last = Event("turn", data=as_event_data(outcome), seq=seq, turn=job.turn)
            line = (seq, job.turn, last.kind, self.log.encode_body(job.id, last), now)
            row = await self._database.gather(
                self._ending_with_event, job.id, *values, *line, many=self._endings_with_events
            )
            if row is None:
                raise _discard_error(job)
            ended = decode_job(row)
        self._notify(job.id)
        return ended

    # Removing

    async def expire(self, most: int = 1_000_000) -> int:
        """Remove jobs past their time that nobody works on, with all that belongs to them; how many.

        A few in each transaction, with a rest after it, so that others write in between.
        """

        async def work(tx: Transaction) -> list[Row]:
            rows = await tx.all(
                "SELECT id, status, bill FROM jobs WHERE expires < ? AND status <> 'working' ORDER BY expires LIMIT ?",
                self._env.now(),
                _EXPIRE_BATCH,
            )
            old = [row["id"] for row in rows]
            if old:
                marks = ", ".join("?" * len(old))
                for table, column in _PARTS:
                    await tx.run(f"DELETE FROM {table} WHERE {column} IN ({marks})", *old)
            return rows

        removed = 0
        while removed < most:
            async with rest_after(self._env):
                rows = await self._database.write(work, frees=True)
            for row in rows:
                if row["status"] == "needs" and not (bill := self._reader.get_bill(row)).sent:
                    self.give_back(bill.reserved)
            removed += len(rows)
            if len(rows) < _EXPIRE_BATCH:
                break
        return removed

    # Inside

    async def _insert(self, tx: Transaction, call: Call, digest: str | None, bill: Bill) -> Row | None:
        row = await tx.one(self._insertion, *self._values(call, digest, bill))
        if row is not None and (alias := call.meta.get(META_ALIAS)) is not None:
            await tx.run(
                "INSERT INTO job_aliases (owner, alias, job) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                call.principal.id,
                alias,
                row["id"],
            )
        return row

    async def _open_gathered(self, values: Sequence[object]) -> Row | None:
        return await self._database.gather(self._insertion, str(values[0]), *values, many=self._insertions)

    @cached_property
    def _insertion(self) -> str:
        return (
            f"INSERT INTO jobs ({_NEW}) VALUES ({self._new_values(lambda _: '?')}) ON CONFLICT DO NOTHING RETURNING *"
        )

    @cached_property
    def _insertions(self) -> str:
        """Likewise for many."""
        values = self._new_values(lambda number: f"p{number}")
        return f" INSERT INTO jobs ({_NEW}) SELECT {values} FROM given ON CONFLICT DO NOTHING RETURNING *"

    def _new_values(self, name: Callable[[int], str]) -> str:
        """What ``_NEW`` gets, with a name for each parameter."""
        p = [name(number) for number in range(15)]
        until = self.leases.until.replace("?", p[7])
        return (
            f"{p[1]}, {p[2]}, {p[3]}, {p[4]}, 'working', 1, {p[5]}, 0, {p[6]}, {until}, 1, {p[8]}, {p[9]}, {p[10]}, "
            f"{p[11]}, {p[12]}, {p[13]}, {p[14]}"
        )

    def _values(self, call: Call, digest: str | None, bill: Bill) -> tuple[object, ...]:
        now = self._env.now()
        return (
            call.job or call.id,
            call.principal.id,
            call.key,
            digest,
            encode_call(call),
            self.node,
            self.leases.seconds,
            now,
            now,
            now + self._keep,
            call.meta.get(META_KIND),
            call.agent,
            call.context,
            encode_column(bill),
        )

    async def _end_turn(
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
        bill: Bill | None = None,
    ) -> Job:
        now = self._env.now()
        seq, values = self._ending(job, outcome, route, answers, events, kept, written, attempted, bill, now)
        row = await tx.one(self._end, *values)
        if row is None:
            raise _discard_error(job)
        # A target that goes on working elsewhere and says the same as before is no news.
        news = not isinstance(outcome, Working) or outcome != job.outcome
        last = [Event("turn", data=as_event_data(outcome), seq=seq, turn=job.turn)] if news else []
        await self.log.append(tx, job.id, [*events, *last], now)
        ended = decode_job(row)
        await self._tell_observers(tx, job, events)
        if not isinstance(outcome, Working):
            for observer in (self._callbacks, *self._observers):
                if observer is not None:
                    await observer.on_turn_end(tx, ended)
        return ended

    @cached_property
    def _end(self) -> str:
        return f"UPDATE jobs SET {self._end_values(lambda _: '?')} WHERE {_HELD} RETURNING *"

    def _end_values(self, name: Callable[[int], str]) -> str:
        """What the end of a turn sets, with a name for each parameter."""
        p = [name(number) for number in range(15)]
        return (
            f"status = {p[1]}, outcome = {p[2]}, route = {p[3]}, state = {p[4]}, questions = {p[5]}, answers = {p[6]}, "
            f"seq = {p[7]}, key = CASE WHEN {p[8]} = 1 THEN NULL ELSE key END, "
            f"kind = CASE WHEN {p[9]} = 1 THEN NULL ELSE kind END, detail = {p[10]}, bill = {p[11]}, "
            f"updated = {p[12]}, expires = {p[13]}, lease = {self.leases.until.replace('?', p[14])}"
        )

    @cached_property
    def _ending_with_event(self) -> str:
        """The end of a turn and its one event as a single statement, where the database takes such a one."""
        return (
            f"WITH ended AS ({self._end}), noted AS (INSERT INTO job_events (job, seq, turn, kind, body, at) "
            "SELECT id, CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS TEXT), CAST(? AS BYTEA), "
            "CAST(? AS DOUBLE PRECISION) FROM ended) SELECT * FROM ended"
        )

    @cached_property
    def _endings_with_events(self) -> str:
        """Likewise for many."""
        return (
            f", ended AS (UPDATE jobs SET {self._end_values(lambda number: f'given.p{number}')} FROM given "
            "WHERE jobs.id = given.p15 AND jobs.generation = given.p16 AND jobs.status = 'working' RETURNING jobs.*), "
            "noted AS (INSERT INTO job_events (job, seq, turn, kind, body, at) "
            "SELECT ended.id, given.p17, given.p18, given.p19, given.p20, given.p21 "
            "FROM ended JOIN given ON given.p15 = ended.id) SELECT * FROM ended"
        )

    def _ending(
        self,
        job: Job,
        outcome: Outcome,
        route: Route | None,
        answers: Mapping[str, Answer] | None,
        events: Sequence[Event],
        kept: Mapping[str, Any] | None,
        written: int,
        attempted: bool,
        bill: Bill | None,
        now: float,
    ) -> tuple[int, tuple[object, ...]]:
        """The number of the event that ends a turn, and the values of the statement."""
        unused = never_ran(job, outcome, attempted)
        seq = max(job.seq, written, *(event.seq for event in events)) + 1
        return seq, (
            status_of(outcome),
            encode_outcome(outcome, job.id, job.turn, seq, job.created, now),
            encode_column(route) if route is not None else None,
            encode_state(getattr(outcome, "state", None), job.kept if kept is None else kept),
            encode_column(outcome.questions) if isinstance(outcome, Needs) else None,
            encode_column(dict(job.answers if answers is None else answers)),
            seq,
            int(unused),
            int(unused),
            detail_of(outcome),
            encode_column(job.bill if bill is None else bill),
            now,
            now + (self._keep_unused if unused else self._keep),
            self.leases.seconds if isinstance(outcome, Working) else None,
            job.id,
            job.generation,
        )

    async def _tell_observers(self, tx: Transaction, job: Job, events: Sequence[Event]) -> None:
        if events:
            for observer in self._observers:
                await observer.on_events(tx, job, events)

    async def _write(self, work: Work[T]) -> T:
        # Each of these transactions changes one job, under a condition on its own row, so the lock of that row is
        # enough. Serializable, as others are, PostgreSQL would let jobs collide that have nothing but an index page in
        # common, and of 64 callers most would wait for another attempt.
        return await self._database.write(work, calm=True)

    def _notify(self, job_id: str) -> None:
        """A job has changed: wake its readers here at once, and those in other processes soon."""
        self._changes.notify(job_id)
        self.news.tell("job", job_id)


def _already_exists(call: Call) -> Conflict:
    return Conflict(f"Job {call.id} already exists. Use a new id for each call.")


def _discard_error(job: Job) -> TurnTaken:
    return TurnTaken(f"Job {job.id} has ended or was taken over by another process; this outcome is discarded.")


def _taken_away(job: Job) -> TurnTaken:
    return TurnTaken(f"Job {job.id} has ended or was taken over by another process; nothing more can be written to it.")
