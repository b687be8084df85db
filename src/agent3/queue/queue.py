"""``Queue``: messages that are not lost, in order where order matters, and refused aloud where there is no room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import msgspec

from agent3 import failpoints
from agent3.env import REAL, Env
from agent3.errors import StorageError, ValidationError
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.queue.batches import Turns
from agent3.queue.messages import LONGEST_LEASE, Attempt, Depth, Fate, Lease, Letter, Message, QueueFull, Rules
from agent3.queue.operations import Ack, Answer, Claim, Extend, Nack, Operation, Put, Release, Turn
from agent3.queue.transactions import Shelf, overdue
from agent3.queue.wakeups import Carrier, bells_of, hear_for_ever
from agent3.storage import Database, Row, Transaction

__all__ = ["Queue"]

log = logger("queue")

TIDY_EVERY = 4_096
MOST_CLAIMED = 1_000
DROPPED_AT_ONCE = 500


class Queue:
    """One durable queue in a database that several processes may share. For the tasks of one event loop.

    Each message is handed out until it is acknowledged or dead, so at least once. Of the messages of one ``context``
    one is out at a time, in the order in which they were put, also over retries: while the first waits, all wait.
    Between contexts, and between messages without one, the higher priority goes first, then the older.

    A method given ``tx`` works inside that transaction and is kept or undone with it; its ``Database`` must be the
    queue's. StorageError means that nothing happened, except where it says that a commit was cut off: then put again
    with the same key.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        rules: Rules | None = None,
        *,
        env: Env = REAL,
        metrics: Metrics = METRICS,
    ):
        Message(name, b"").checked(1)
        self.name = name
        self.rules = rules or Rules()
        self.size = 0
        """Messages that had not ended when this process last counted."""
        self.database = database
        self._env = env
        self._metrics = metrics
        self._shelf = Shelf(name, self.rules, database.dialect)
        self._bells = bells_of(database, name)
        self._turns = Turns(self._commit)
        self._self = env.id()
        self._ear: asyncio.Task[None] | None = None
        self._untidied = 0
        self._died = self.rules.dead  # how many the processes before left is not known: the first one tells
        self._died_elsewhere = False
        self._dropping: asyncio.Task[None] | None = None

    async def put(
        self,
        body: bytes,
        *,
        context: str | None = None,
        priority: int = 0,
        key: str | None = None,
        delay: float = 0.0,
        id: str | None = None,  # noqa: A002 - it is the id
        tx: Transaction | None = None,
    ) -> str:
        """Put a message, to be handed out after ``delay`` seconds at the earliest; its id, once it is durable.

        A ``key`` that was used within a day gives the id of the first message and puts nothing: Conflict when that
        one had another body. QueueFull when there is no room. Inside a ``tx`` the bound counts what is committed.
        """
        message = Message(id or self._env.id(), body, context, priority, key, delay).checked(self.rules.largest)
        try:
            if tx is None:
                return cast("str", await self._turns.do(Put(message)))
            return await self._post(tx, message)
        except QueueFull:
            self._metrics.refusals.inc((QueueFull.code,))
            raise

    async def claim(
        self, most: int = 1, *, lease: float | None = None, wait: float = 0.0, tx: Transaction | None = None
    ) -> list[Lease]:
        """Take up to ``most`` messages for ``lease`` seconds; with ``wait``, wait so long for the first one.

        Empty when there is none. Cancelled, it gives back what it had been given. A message whose bytes have changed
        since it was put becomes a dead letter instead.
        """
        claim = Claim(_within("most", most, 1, MOST_CLAIMED), self._seconds(lease))
        if tx is not None:
            return await self._whole(cast("list[Lease]", await self._joined(tx, claim)), tx)
        leases = await self._whole(await self._turns.do(claim))
        return leases if leases or wait <= 0 else await self._claim_patiently(claim, wait)

    async def extend(self, lease: Lease, seconds: float | None = None, *, tx: Transaction | None = None) -> bool:
        """Keep it for ``seconds`` more from now on; False when it is no longer the caller's: stop working on it."""
        return cast("bool", await self._end(Extend(lease, self._seconds(seconds)), tx))

    async def ack(self, lease: Lease, *, tx: Transaction | None = None) -> bool:
        """It is done and will not be handed out again.

        False when the lease had ended and another consumer has, or had, the message: what was done counts for
        nothing, so undo it, or do it inside ``tx`` and raise.
        """
        return cast("bool", await self._end(Ack(lease), tx))

    async def nack(
        self, lease: Lease, reason: str, *, delay: float | None = None, tx: Transaction | None = None
    ) -> Fate:
        """It failed: try it again after ``delay`` seconds, by default a random share of an ever longer time.

        ``dead`` when these were all its attempts.
        """
        pause = self._backoff(lease.attempt) if delay is None else _within("delay", delay, 0.0, 365 * 86_400.0)
        return cast("Fate", await self._end(Nack(lease, reason, pause), tx))

    async def bury(self, lease: Lease, reason: str, *, tx: Transaction | None = None) -> bool:
        """It will never succeed: make it a dead letter now. False when the lease was no longer the caller's."""
        return await self._end(Nack(lease, reason, None), tx) == "dead"

    async def release(self, lease: Lease, *, tx: Transaction | None = None) -> bool:
        """It was not tried: hand it out again at once, without counting the attempt."""
        return cast("bool", await self._end(Release(lease), tx))

    async def dead(self, *, after: int = 0, limit: int = 100) -> list[Letter]:
        """Dead letters by age, those behind the letter whose ``seq`` is ``after``."""
        rows = await self.database.all(self._shelf.sql("letters"), self.name, after, limit)
        return [_letter(row) for row in rows]

    async def replay(self, ids: Sequence[str], *, state: Literal["dead", "done"] = "dead") -> int:
        """Line up dead letters once more, in their old places and with all their attempts; how many there were.

        ``done`` replays from the archive, which ``Rules.keep_done`` keeps. QueueFull, and none, if not all find room.
        """
        count = await self.database.write(lambda tx: self._shelf.replay(tx, ids, state), calm=True)
        self._bells.ring()
        return count

    async def drop(self, ids: Sequence[str]) -> int:
        """Delete dead letters; how many there were."""
        packed = msgspec.json.encode(list(ids)).decode()
        return await self.database.write(lambda tx: tx.run(self._shelf.sql("drop"), self.name, packed), frees=True)

    async def depth(self) -> Depth:
        """How many messages are in which state now."""
        rows = await self.database.all(self._shelf.sql("depth"), self.name)
        counts = {row["state"]: row["count"] for row in rows}
        counts["ready"] = counts.get("ready", 0) + counts.pop("new", 0)
        ages = [row["oldest"] for row in rows if row["state"] not in ("dead", "done")]
        return Depth(**counts, oldest=max(ages, default=0.0))

    async def aclose(self) -> None:
        """Finish what was asked for and stop listening. The database stays open."""
        if self._ear is not None:
            self._ear.cancel()
            await asyncio.wait([self._ear])
            self._ear = None
        await self._turns.aclose()
        if self._dropping is not None:
            await asyncio.wait([self._dropping])

    async def _whole(self, leases: list[Lease], tx: Transaction | None = None) -> list[Lease]:
        """Those that are still what was put; the others are buried."""
        for lease in [lease for lease in leases if lease.damaged]:
            log.error("queue %s: message %s is damaged and is not handed out", self.name, lease.id)
            await self.bury(lease, "it is damaged: its content no longer matches its checksum", tx=tx)
        return [lease for lease in leases if not lease.damaged]

    # Together

    async def _commit(self, operations: Sequence[Operation]) -> list[Answer[Any]]:
        """One transaction for all of them."""
        tidy = 2 * self._untidied if self._untidied >= TIDY_EVERY else 0
        turn = (None if tidy else await self._at_once(operations)) or await self._step_by_step(operations, tidy)
        await failpoints.reach("queue.committed")
        self._untidied = len(operations) + (0 if tidy else self._untidied)
        self._note(turn)
        self._bound_letters(turn.died)
        return [turn.answers[number] for number in range(len(operations))]

    async def _at_once(self, operations: Sequence[Operation]) -> Turn | None:
        """Put all of them in one statement, if there is nothing else to do. None, and nothing done, if there is."""
        packed = self._shelf.packed(operations, self._self)
        if packed is None:
            return None
        failpoints.hit("queue.commit")
        row = await self.database.statement(self._shelf.sql("put_all"), *packed)
        if row is None:
            return None
        answers = {number: Answer(cast("Put", one).message.id) for number, one in enumerate(operations)}
        return Turn(answers, depth=row["depth"], rings=True)

    async def _step_by_step(self, operations: Sequence[Operation], tidy: int) -> Turn:
        async def work(tx: Transaction) -> Turn:
            turn = await self._shelf.turn(tx, operations, word=self._self, tidy=tidy)
            if failpoints.armed is not None:
                failpoints.hit("queue.commit")
            return turn

        # Serializable, two of these would collide on the queue's row; its lock and fresh snapshots are enough.
        frees = not any(isinstance(one, Put) for one in operations)
        return await self.database.write(work, frees=frees, calm=True)

    def _note(self, turn: Turn) -> None:
        if turn.depth is not None:
            self.size = turn.depth
        if turn.died:
            self._metrics.dead_letters.inc(("queue",), turn.died)
            log.warning("queue %s: %d messages are dead letters now", self.name, turn.died)
        if turn.rings:
            self._bells.ring()

    def _bound_letters(self, died: int) -> None:
        """Have the oldest dead letters beyond the bound dropped, once a hundredth of it has died since then."""
        self._died += died
        busy = self._dropping is not None and not self._dropping.done()
        if busy or not (died or self._died_elsewhere) or not self.rules.dead or self._died * 100 < self.rules.dead:
            return
        self._died, self._died_elsewhere = 0, False
        self._dropping = asyncio.get_running_loop().create_task(self._drop_oldest(), name=f"letters of {self.name}")

    async def _drop_oldest(self) -> None:
        """A few at a time: others write in between."""
        dropped, sql = 0, self._shelf.sql("drop_oldest")
        try:
            row = await self.database.one(self._shelf.sql("too_old"), self.name, self.rules.dead)
            values = (self.name, row["seq"] if row is not None else 0, DROPPED_AT_ONCE)
            while row is not None and (
                some := await self.database.write(lambda tx: tx.run(sql, *values), frees=True, calm=True)
            ):
                dropped += some
        except StorageError as error:
            self._died, self._died_elsewhere = self.rules.dead, True
            log.warning("queue %s: its oldest dead letters could not be dropped: %s", self.name, error.message)
        if dropped:
            self._metrics.dead_letters_dropped.inc((self.name,), dropped)
            log.warning(
                "queue %s: %d dead letters, its oldest, were dropped: it keeps %d", self.name, dropped, self.rules.dead
            )

    # Within a caller's transaction

    async def _end(self, operation: Operation, tx: Transaction | None) -> object:
        return await (self._turns.do(operation) if tx is None else self._joined(tx, operation))

    async def _joined(self, tx: Transaction, operation: Operation) -> object:
        turn = await self._shelf.turn(tx, [operation])
        if turn.died:  # if the caller's transaction is undone, a look too many does no harm
            self._died, self._died_elsewhere = self._died + turn.died, True
        if turn.rings:
            self._ring_early()
        return turn.answers[0].get()

    async def _post(self, tx: Transaction, message: Message) -> str:
        posted = await self._shelf.post(tx, message)
        self._ring_early()
        return posted

    def _ring_early(self) -> None:
        """SQLite's one writer serves a claim only after this commit. PostgreSQL does not, and tells at the commit."""
        if self.database.dialect == "sqlite":
            self._bells.ring()

    # Waiting

    async def _claim_patiently(self, claim: Claim, wait: float) -> list[Lease]:
        clock = asyncio.get_running_loop().time  # as real as the waiting itself
        until = clock() + wait
        self._listen()
        with self._bells.hung() as bell:
            while True:
                bell.clear()
                leases = await self._whole(await self._turns.do(claim))
                if leases or clock() >= until:
                    return leases
                await self._news(bell, until, clock)

    async def _news(self, bell: asyncio.Event, until: float, clock: Callable[[], float]) -> None:
        """Until it makes sense to claim again: a bell, a message that is due, or one that nobody rang for."""
        while not bell.is_set() and clock() < until:
            row = await self.database.one(self._shelf.sql("look"), *[self.name] * 5)
            assert row is not None
            if row["ready"] or overdue(row):
                return
            soonest = min(one for one in (row["delayed"], row["leased"], self.rules.poll) if one is not None)
            await _heard(bell, min(soonest + 0.001, until - clock()))

    def _listen(self) -> None:
        if isinstance(self.database, Carrier) and (self._ear is None or self._ear.done()):
            self._ear = asyncio.create_task(hear_for_ever(self.database, self.name, self._self, self._bells))

    def _seconds(self, lease: float | None) -> float:
        return self.rules.lease if lease is None else _within("lease", lease, 0.001, LONGEST_LEASE)

    def _backoff(self, attempt: int) -> float:
        """Full jitter: as spread out as can be, so that those who failed together do not come back together."""
        return self._env.jitter(min(self.rules.first_delay * 2.0 ** min(attempt - 1, 60), self.rules.longest_delay))


async def _heard(bell: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        return


def _within(name: str, value: Any, low: float, high: float) -> Any:
    if not low <= value <= high:
        raise ValidationError(f"{name} is {value!r}; give one from {low:g} to {high:g}.")
    return value


def _letter(row: Row) -> Letter:
    history = msgspec.json.decode(row["history"], type=list[tuple[float, int, str]]) if row["history"] else []
    return Letter(
        id=row["id"],
        body=bytes(row["body"]),
        context=row["context"],
        priority=row["priority"],
        attempts=row["attempts"],
        seq=row["seq"],
        put=row["put"],
        history=tuple(Attempt(*one) for one in history),
    )
