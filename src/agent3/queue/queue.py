"""``Queue``: messages that are not lost, in order where order matters, and refused where there is no room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from agent3 import failpoints
from agent3.env import REAL, Env
from agent3.errors import StorageError, ValidationError
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.queue.batches import Batcher
from agent3.queue.messages import LONGEST_LEASE, Attempt, Depth, Fate, Lease, Letter, Message, QueueFull, Rules
from agent3.queue.transactions import MessageTable, needs_care
from agent3.queue.types import Ack, Answer, Claim, Extend, Nack, Operation, Put, Release, Result
from agent3.queue.wakeups import get_wakeups, listen_for_wakeups
from agent3.storage.database import Database, Notifier, Transaction

__all__ = ["Queue"]

log = logger("queue")

TIDY_EVERY = 4_096
MOST_CLAIMED = 1_000
DROPPED_AT_ONCE = 500


class Queue:
    """One durable queue in a database that several processes may share. For the tasks of one event loop.

    Each message is handed out until it is acknowledged or dead: at least once. Of the messages of one ``context`` one
    is out at a time, in the order in which they were put, also over retries: while the first waits, all wait. Between
    contexts, and between messages without one, the higher priority goes first, then the older.

    A method given ``tx`` works inside that transaction and is kept or undone with it; its database must be the queue's.
    StorageError means that nothing happened; after StorageUnsure, put again with the same key.
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
        Message(name, b"").check(1)
        self.name = name
        self.rules = rules or Rules()
        self.size = 0
        """Messages that had not ended when this process last counted."""
        self.database = database
        self._env = env
        self._metrics = metrics
        self._table = MessageTable(name, self.rules, database.syntax)
        self._wakeups = get_wakeups(database, name)
        self._batcher = Batcher(self._commit)
        self._process = env.id()
        self._listener: asyncio.Task[None] | None = None
        self._untidied = 0
        # How many dead letters earlier processes left is unknown, so the first death looks whether there are too many.
        self._died = self.rules.dead
        self._died_in_caller = False
        self._dropper: asyncio.Task[None] | None = None

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
        """Put a message, to be handed out after ``delay`` seconds at the earliest; return its id once it is durable.

        A ``key`` that was used within a day returns the id of the first message and puts nothing; Conflict if that one
        had another body. QueueFull when there is no room. Inside a ``tx`` the bound counts only committed messages.
        """
        message = Message(id or self._env.id(), body, context, priority, key, delay)
        message.check(self.rules.largest)
        try:
            if tx is None:
                return cast("str", await self._batcher.submit(Put(message)))
            known = await self._table.put(tx, message)
        except QueueFull:
            self._metrics.refusals.inc((QueueFull.code,))
            raise
        self._wake_early()
        return known

    async def claim(
        self, most: int = 1, *, lease: float | None = None, wait: float = 0.0, tx: Transaction | None = None
    ) -> list[Lease]:
        """Take up to ``most`` messages for ``lease`` seconds; wait up to ``wait`` seconds for the first one.

        Empty when there is none. Cancelled, it gives back what it was given. A message whose bytes have changed since
        it was put becomes a dead letter instead.
        """
        claim = Claim(_check_range("most", most, 1, MOST_CLAIMED), self._lease_seconds(lease))
        if tx is not None:
            return await self._bury_damaged(cast("list[Lease]", await self._join(tx, claim)), tx)
        leases = await self._bury_damaged(await self._batcher.submit(claim))
        if leases or wait <= 0:
            return leases

        clock = asyncio.get_running_loop().time  # the real clock, as for the waiting itself
        deadline = clock() + wait
        if isinstance(self.database, Notifier) and (self._listener is None or self._listener.done()):
            listening = listen_for_wakeups(self.database, self.name, self._process, self._wakeups)
            self._listener = asyncio.create_task(listening)
        with self._wakeups.subscribe() as woken:
            while True:
                woken.clear()
                leases = await self._bury_damaged(await self._batcher.submit(claim))
                if leases or clock() >= deadline:
                    return leases
                # Wait until it makes sense to claim again: a wake-up, a message that is due, or one without a wake-up.
                while not woken.is_set() and clock() < deadline:
                    state = await self.database.one(self._table.sql["look"], *[self.name] * 5)
                    assert state is not None
                    if state["ready"] or needs_care(state):
                        break
                    times = [self.rules.poll, state["delayed"], state["leased"]]
                    soonest = min(seconds for seconds in times if seconds is not None)
                    try:
                        async with asyncio.timeout(min(soonest + 0.001, deadline - clock())):
                            await woken.wait()
                    except TimeoutError:
                        pass

    async def extend(self, lease: Lease, seconds: float | None = None, *, tx: Transaction | None = None) -> bool:
        """Keep it for ``seconds`` from now on; False when it is no longer the caller's: stop working on it."""
        return cast("bool", await self._end(Extend(lease, self._lease_seconds(seconds)), tx))

    async def ack(self, lease: Lease, *, tx: Transaction | None = None) -> bool:
        """It is done and will not be handed out again.

        False when the lease had ended and another consumer has, or had, the message: what was done does not count, so
        undo it, or do it inside ``tx`` and raise.
        """
        return cast("bool", await self._end(Ack(lease), tx))

    async def nack(
        self, lease: Lease, reason: str, *, delay: float | None = None, tx: Transaction | None = None
    ) -> Fate:
        """It failed: retry it after ``delay`` seconds, by default a random share of a growing time.

        ``dead`` when no attempt is left.
        """
        pause = self._backoff(lease.attempt) if delay is None else _check_range("delay", delay, 0.0, 365 * 86_400.0)
        return cast("Fate", await self._end(Nack(lease, reason, pause), tx))

    async def bury(self, lease: Lease, reason: str, *, tx: Transaction | None = None) -> bool:
        """It will never succeed: make it a dead letter now. False when the lease was no longer the caller's."""
        return await self._end(Nack(lease, reason, None), tx) == "dead"

    async def release(self, lease: Lease, *, tx: Transaction | None = None) -> bool:
        """It was not tried: hand it out again at once, without counting the attempt."""
        return cast("bool", await self._end(Release(lease), tx))

    async def dead(self, *, after: int = 0, limit: int = 100) -> list[Letter]:
        """Dead letters by age, those behind the letter whose ``seq`` is ``after``."""
        letters = []
        for row in await self.database.all(self._table.sql["letters"], self.name, after, limit):
            history = msgspec.json.decode(row["history"], type=list[tuple[float, int, str]]) if row["history"] else []
            letters.append(
                Letter(
                    id=row["id"],
                    body=bytes(row["body"]),
                    context=row["context"],
                    priority=row["priority"],
                    attempts=row["attempts"],
                    seq=row["seq"],
                    put=row["put"],
                    history=tuple(Attempt(*entry) for entry in history),
                )
            )
        return letters

    async def replay(self, ids: Sequence[str], *, state: Literal["dead", "done"] = "dead") -> int:
        """Queue dead letters again, in their old places and with all their attempts; return how many there were.

        ``done`` replays from the archive, which ``Rules.keep_done`` keeps. QueueFull, and none replayed, if there is no
        room for all.
        """
        count = await self.database.write(lambda tx: self._table.replay(tx, ids, state), calm=True)
        self._wakeups.wake()
        return count

    async def drop(self, ids: Sequence[str]) -> int:
        """Delete dead letters; return how many there were."""
        packed = msgspec.json.encode(list(ids)).decode()
        return await self.database.write(lambda tx: tx.run(self._table.sql["drop"], self.name, packed), frees=True)

    async def depth(self) -> Depth:
        """How many messages are in which state now."""
        rows = await self.database.all(self._table.sql["depth"], self.name)
        counts = {row["state"]: row["count"] for row in rows}
        counts["ready"] = counts.get("ready", 0) + counts.pop("new", 0)
        ages = [row["oldest"] for row in rows if row["state"] not in ("dead", "done")]
        return Depth(**counts, oldest=max(ages, default=0.0))

    async def aclose(self) -> None:
        """Finish what was asked for and stop listening. The database stays open."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
            self._listener = None
        await self._batcher.aclose()
        if self._dropper is not None:
            await asyncio.wait([self._dropper])

    # --- in a batch ---

    async def _commit(self, operations: Sequence[Operation]) -> list[Answer[Any]]:
        """Run a batch in one transaction."""
        # Twice the operations since the last time, so that tidying catches up with what accumulated before.
        tidy = 2 * self._untidied if self._untidied >= TIDY_EVERY else 0
        packed = None if tidy else self._table.pack(operations, self._process)
        result = None
        if packed is not None:
            failpoints.hit("queue.commit")
            # One statement for all; no row, and nothing done, if it turns out that there is more to do.
            row = await self.database.statement(self._table.sql["put_all"], *packed)
            if row is not None:
                answers = {number: Answer(cast("Put", put).message.id) for number, put in enumerate(operations)}
                result = Result(answers, depth=row["depth"], wakes=True)
        if result is None:

            async def work(tx: Transaction) -> Result:
                result = await self._table.run(tx, operations, text=self._process, tidy=tidy)
                if failpoints.armed is not None:
                    failpoints.hit("queue.commit")
                return result

            # Serializable, two of these would collide on the queue's row; its lock and fresh snapshots are enough.
            frees = not any(isinstance(operation, Put) for operation in operations)
            result = await self.database.write(work, frees=frees, calm=True)
        await failpoints.reach("queue.committed")

        self._untidied = len(operations) + (0 if tidy else self._untidied)
        if result.depth is not None:
            self.size = result.depth
        if result.died:
            self._metrics.dead_letters.inc(("queue",), result.died)
            log.warning("queue %s: %d messages became dead letters", self.name, result.died)
        if result.wakes:
            self._wakeups.wake()
        self._bound_letters(result.died)
        return [result.answers[number] for number in range(len(operations))]

    def _bound_letters(self, died: int) -> None:
        """Drop the oldest dead letters beyond the bound, once another one per cent of it has died."""
        self._died += died
        busy = self._dropper is not None and not self._dropper.done()
        if busy or not (died or self._died_in_caller) or not self.rules.dead or self._died * 100 < self.rules.dead:
            return
        self._died, self._died_in_caller = 0, False
        self._dropper = asyncio.get_running_loop().create_task(self._drop_oldest(), name=f"letters of {self.name}")

    async def _drop_oldest(self) -> None:
        dropped, sql = 0, self._table.sql["drop_oldest"]
        try:
            row = await self.database.one(self._table.sql["too_old"], self.name, self.rules.dead)
            values = (self.name, row["seq"] if row is not None else 0, DROPPED_AT_ONCE)
            # A few at a time: others write in between.
            while row is not None and (
                count := await self.database.write(lambda tx: tx.run(sql, *values), frees=True, calm=True)
            ):
                dropped += count
        except StorageError as error:
            self._died, self._died_in_caller = self.rules.dead, True  # try again with the next batch
            log.warning("queue %s: its oldest dead letters could not be dropped: %s", self.name, error.message)
        if dropped:
            self._metrics.dead_letters_dropped.inc((self.name,), dropped)
            log.warning(
                "queue %s: dropped the %d oldest dead letters: it keeps %d", self.name, dropped, self.rules.dead
            )

    async def _bury_damaged(self, leases: list[Lease], tx: Transaction | None = None) -> list[Lease]:
        """The leases whose messages are intact; the others are buried."""
        for lease in [lease for lease in leases if lease.damaged]:
            log.error("queue %s: message %s is damaged and is not delivered", self.name, lease.id)
            await self.bury(lease, "it is damaged: its content does not match its checksum", tx=tx)
        return [lease for lease in leases if not lease.damaged]

    # --- within a caller's transaction ---

    async def _end(self, operation: Operation, tx: Transaction | None) -> object:
        return await (self._batcher.submit(operation) if tx is None else self._join(tx, operation))

    async def _join(self, tx: Transaction, operation: Operation) -> object:
        result = await self._table.run(tx, [operation])
        if result.died:  # if the caller's transaction is undone, a needless look does no harm
            self._died, self._died_in_caller = self._died + result.died, True
        if result.wakes:
            self._wake_early()
        return result.answers[0].get()

    def _wake_early(self) -> None:
        """Wake consumers before the caller's commit, where the one writer serves their claim only after it.

        Elsewhere they would look too early; the database notifies them at the commit.
        """
        if self.database.syntax.embedded:
            self._wakeups.wake()

    def _lease_seconds(self, lease: float | None) -> float:
        return self.rules.lease if lease is None else _check_range("lease", lease, 0.001, LONGEST_LEASE)

    def _backoff(self, attempt: int) -> float:
        # Full jitter: those that failed together do not come back together.
        return self._env.jitter(min(self.rules.first_delay * 2.0 ** min(attempt - 1, 60), self.rules.longest_delay))


def _check_range(name: str, value: Any, low: float, high: float) -> Any:
    if not low <= value <= high:
        raise ValidationError(f"{name} is {value!r}; it must be from {low:g} to {high:g}.")
    return value
