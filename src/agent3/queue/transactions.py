"""What happens to the messages of a queue inside one transaction: admitting, handing out and ending them.

Many operations of one queue go through together, in few statements. It knows a ``Transaction``, not tasks, wake-ups or
commits; an operation that is refused gets its error as its answer and does not affect the others.

Only two changes happen without the queue's lock: ``ready`` becomes ``leased`` (skipping rows that others are taking
right now), and a put inside a caller's transaction adds a ``new`` row, touching none that others touch. So a busy queue
never makes the caller's serializable transaction fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from agent3.errors import Conflict, StorageFull
from agent3.queue.messages import LONGEST_LEASE, Fate, Lease, Message, QueueFull, Rules, checksum
from agent3.queue.sql import load_statements
from agent3.queue.types import Ack, Answer, Claim, Ending, Extend, Nack, Operation, Put, Release, Result
from agent3.queue.wakeups import channel_of
from agent3.storage.database import Row, Transaction
from agent3.storage.syntax import Syntax

__all__ = ["MessageTable", "needs_care"]

T = TypeVar("T")

_HISTORY = 20
_LONGEST_REASON = 500
_RESERVE = 512 * 1024
_IMPOSSIBLE_LEASE = LONGEST_LEASE + 60.0


class MessageTable:
    """The rows of one queue. It has no state of its own, so a transaction that runs again finds it as it was."""

    def __init__(self, name: str, rules: Rules, syntax: Syntax):
        self.name = name
        self.rules = rules
        self.syntax = syntax
        self.channel = channel_of(name)
        self.sql: Mapping[str, str] = load_statements(syntax.dialect)

    async def run(self, tx: Transaction, operations: Sequence[Operation], *, text: str = "", tidy: int = 0) -> Result:
        """Run all operations: endings first, since they make room, then puts, then claims.

        Where the database notifies, ``text`` is sent to other processes when a message may have become ready. ``tidy``
        is how many expired rows of each kind may be removed on the way.
        """
        return await _Transaction(self, tx, text).run(operations, tidy)

    def pack(self, operations: Sequence[Operation], text: str) -> Sequence[object] | None:
        """The parameters of ``put_all``, if that one statement can do everything: independent puts and nothing else.

        It does not look at the time: messages that are due or leased for too long are left to those who claim.
        """
        messages = [put.message for put in operations if isinstance(put, Put) and put.message.is_independent]
        if not self.syntax.takes_arrays or len(messages) < len(operations):
            return None
        count = len(messages)
        return (
            *(count, self.name, count, self.rules.bound, self.name, self.name),
            [message.id for message in messages],
            _empty_if_zero([message.priority for message in messages]),
            _empty_if_zero([message.delay for message in messages]),
            [message.body for message in messages],
            [message.checksum for message in messages],
            *(self.channel, text),
        )

    async def put(self, tx: Transaction, message: Message) -> str:
        """Put a message inside a caller's transaction; return its id.

        It touches no row that others touch, and therefore counts only what is committed: puts that run at the same
        moment can together exceed the bound.
        """
        work = _Transaction(self, tx)
        known = await work.find_keys([message])
        if message.key in known:
            return _answer_known_key(message, known[message.key]).get()
        row = await tx.one(self.sql["uncounted"], self.name, self.name, self.rules.bound)
        assert row is not None
        if (row["depth"] or 0) + row["new"] >= self.rules.bound:
            raise self.full()
        if await work.measure_space() < message.weight:
            raise self.no_space()
        await work.insert([message], counted=False)
        if self.syntax.notifies:
            await tx.all(self.sql["notify"], self.channel, "")
        return message.id

    async def replay(self, tx: Transaction, ids: Sequence[str], state: str) -> int:
        """Queue ended messages again; return how many. QueueFull, with nothing done, if there is no room for all."""
        work = _Transaction(self, tx)
        await work.lock()
        await work.admit()  # messages that are not counted yet take up room too
        count = await tx.run(self.sql["replay"], self.name, state, _encode(ids))
        if work.depth + count > self.rules.bound:
            raise self.full()
        await work.admit()
        await work.finish()
        return count

    def full(self) -> QueueFull:
        """The refusal of a full queue."""
        return QueueFull(
            f"Queue {self.name!r} is full ({self.rules.bound:,} messages). Try again later, or add consumers.",
            data={"queue": self.name, "bound": self.rules.bound},
            retry_after=1.0,
        )

    def no_space(self) -> StorageFull:
        """The refusal of a database that is nearly full."""
        return StorageFull(
            f"The database is full, so the message was not put into queue {self.name!r}; the remaining space "
            "is reserved for taking messages out. Delete old data, or raise storage.max_bytes.",
            data={"queue": self.name},
            retry_after=1.0,
        )


class _Transaction:
    """One transaction on the rows of a queue."""

    def __init__(self, table: MessageTable, tx: Transaction, text: str = ""):
        self._table = table
        self._text = text
        self._name = table.name
        self._rules = table.rules
        self._sql = table.sql
        self._tx = tx
        self._depth_before: int | None = None
        self._now = 0.0
        self.result = Result()
        self.depth = 0

    async def run(self, operations: Sequence[Operation], tidy: int) -> Result:
        numbered = list(enumerate(operations))
        puts = {number: put for number, put in numbered if isinstance(put, Put)}
        claims = {number: claim for number, claim in numbered if isinstance(claim, Claim)}
        endings = {number: ending for number, ending in numbered if not isinstance(ending, Put | Claim)}
        care = bool(puts or endings or tidy)
        if not care:  # claims alone need the lock only when time has passed for some message
            state = await self._tx.one(self._sql["look"], *[self._name] * 5)
            assert state is not None
            care = needs_care(state)
        if care:
            state = await self.lock()
            await self._end(endings)  # before leases are judged: a late ack is better than none
            await self._catch_up(state)
            await self._put(puts)
            if tidy:
                await self._tx.run(self._sql["purge_done"], self._name, tidy)
                await self._tx.run(self._sql["purge_dead"], self._name, tidy)
                await self._tx.run(self._sql["purge_keys"], self._name, self._name, tidy)
            await self.finish()
        for number, claim in claims.items():
            rows = await self._tx.all(self._sql["claim"], self._name, claim.most, claim.seconds)
            leases = sorted(map(_lease_of, rows), key=lambda lease: (-lease.priority, lease.seq))
            self._answer(number, leases)
        return self.result

    async def lock(self) -> Row:
        """Take the queue's lock; return the state of the queue as the statement saw it."""
        row = await self._tx.one(self._sql["lock"], *[self._name] * 6)
        assert row is not None
        self.depth = self._depth_before = row["depth"]
        self._now = row["now"]
        return row

    async def finish(self) -> None:
        """Store the depth, and notify other processes."""
        if self.result.wakes and self._table.syntax.notifies:
            channel = self._table.channel
            await self._tx.all(self._sql["set_depth_and_notify"], self.depth, self._name, channel, self._text)
        elif self.depth != self._depth_before:
            await self._tx.run(self._sql["set_depth"], self.depth, self._name)
        self.result.depth = self.depth

    async def admit(self) -> None:
        """Count and queue messages that were put inside callers' transactions, or replayed."""
        self.depth += await self._tx.run(self._sql["admit"], self._name)
        self.result.wakes = True

    async def _catch_up(self, state: Row) -> None:
        """Admit what is new, make ready what is due, take back what was leased for too long.

        ``state`` may be older than the lock, so it only says where to look; what it missed is found the next time.
        """
        if state["new"]:
            await self.admit()
        if _is_past(state["delayed"]):
            await self._tx.run(self._sql["come_due"], self._name)
            self.result.wakes = True
        if _is_past(state["leased"]):
            rows = await self._tx.all(self._sql["expired"], self._name)
            reason = "its lease expired without a reply from the consumer"
            dead = [row for row in rows if row["attempts"] >= self._rules.attempts]
            again = [row for row in rows if row["attempts"] < self._rules.attempts]
            if again:
                changes = [(self._add_to_history(row, reason), row["seq"]) for row in again]
                await self._tx.many(self._sql["take_back"], changes)
                self.result.wakes = True
            await self._bury([(row, reason) for row in dead])
            await self._promote(dead)
        if _is_impossible(state["longest"]):
            await self._tx.run(self._sql["shorten"], self._rules.lease, self._name, _IMPOSSIBLE_LEASE)

    # --- endings ---

    async def _end(self, endings: Mapping[int, Ending]) -> None:
        if not endings:
            return
        seqs = _encode([ending.lease.seq for ending in endings.values()])
        held = {row["seq"]: row for row in await self._tx.all(self._sql["held"], seqs, self._name)}
        valid: list[tuple[Ending, Row]] = []
        for number, ending in endings.items():
            row = held.get(ending.lease.seq)
            if row is None or row["token"] != ending.lease.token:
                self._answer(number, "lost" if isinstance(ending, Nack) else False)
                continue
            if not isinstance(ending, Extend):
                del held[ending.lease.seq]  # of two endings of one lease the second is refused
            valid.append((ending, row))
            self._answer(number, self._fate(ending, row) if isinstance(ending, Nack) else True)

        extended = [(ending.seconds, row["seq"]) for ending, row in valid if isinstance(ending, Extend)]
        if extended:
            await self._tx.many(self._sql["extend"], extended)
        released = [row for ending, row in valid if isinstance(ending, Release)]
        if released:
            await self._tx.run(self._sql["release"], _encode_seqs(released))
            self.result.wakes = True
        acked = [row for ending, row in valid if isinstance(ending, Ack)]
        if acked:
            if self._rules.keep_done > 0:
                await self._tx.run(self._sql["finish"], self._rules.keep_done, _encode_seqs(acked))
            else:
                await self._tx.run(self._sql["delete"], _encode_seqs(acked))
            self.depth -= len(acked)

        nacks = [(ending, row) for ending, row in valid if isinstance(ending, Nack)]
        retried = [(nack, row) for nack, row in nacks if self._fate(nack, row) == "retry"]
        await self._change(
            [("delayed" if nack.delay else "ready", nack.delay or 0.0, nack.reason, row) for nack, row in retried]
        )
        dead = [(row, nack.reason) for nack, row in nacks if self._fate(nack, row) == "dead"]
        await self._bury(dead)
        await self._promote([*acked, *(row for row, _ in dead)])

    def _fate(self, nack: Nack, row: Row) -> Fate:
        return "dead" if nack.delay is None or row["attempts"] >= self._rules.attempts else "retry"

    async def _bury(self, rows: Sequence[tuple[Row, str]]) -> None:
        await self._change([("dead", self._rules.keep_dead, reason, row) for row, reason in rows])
        self.depth -= len(rows)
        self.result.died += len(rows)

    async def _change(self, changes: Sequence[tuple[str, float, str, Row]]) -> None:
        """Give failed messages a new state, due after some seconds, and add the reason to their history."""
        if changes:
            values = [(state, due, self._add_to_history(row, why), row["seq"]) for state, due, why, row in changes]
            await self._tx.many(self._sql["retry"], values)
            self.result.wakes = True

    async def _promote(self, ended: Sequence[Row]) -> None:
        """Make the next message of each ended one's context its head."""
        contexts = [row["context"] for row in ended if row["context"] is not None]
        if contexts:
            await self._tx.run(self._sql["promote"], self._name, _encode(contexts))
            self.result.wakes = True

    def _add_to_history(self, row: Row, reason: str) -> str:
        earlier = msgspec.json.decode(row["history"]) if row["history"] else []
        # A reason may come from anywhere: NUL and lone surrogates are replaced, since no database stores them.
        text = reason[:_LONGEST_REASON].replace("\0", " ").encode(errors="replace").decode()
        return _encode([*earlier, [round(self._now, 3), row["attempts"], text]][-_HISTORY:])

    # --- puts ---

    async def _put(self, puts: Mapping[int, Put]) -> None:
        if not puts:
            return
        # Two puts of one batch may have the same key: ``known`` grows as they are accepted.
        known = await self.find_keys([put.message for put in puts.values()])
        space = await self.measure_space()
        room = max(self._rules.bound - self.depth, 0)
        accepted: list[Message] = []
        for number, put in puts.items():
            message = put.message
            if message.key in known:
                self.result.answers[number] = _answer_known_key(message, known[message.key])
            elif len(accepted) == room:
                self.result.answers[number] = Answer(error=self._table.full())
            elif space < message.weight:
                self.result.answers[number] = Answer(error=self._table.no_space())
            else:
                space -= message.weight
                accepted.append(message)
                self._answer(number, message.id)
                if message.key is not None:
                    known[message.key] = (message.id, message.digest)
        await self.insert(accepted)

    async def measure_space(self) -> float:
        """Bytes that puts may still take, less a reserve: taking messages out writes as well, so without the reserve
        a full database could never be emptied.
        """
        if not self._table.syntax.embedded:
            return math.inf  # a server manages its disk, and says when it is full
        row = await self._tx.one(self._sql["spare"])
        assert row is not None
        return float(row["bytes"]) - _RESERVE

    async def find_keys(self, messages: Sequence[Message]) -> dict[str | None, tuple[str, str]]:
        """The ids and digests of messages that were put under the same keys."""
        keys = sorted({message.key for message in messages if message.key is not None})
        if not keys:
            return {}
        rows = await self._tx.all(self._sql["known_keys"], self._name, _encode(keys))
        return {row["key"]: (row["id"], row["hash"]) for row in rows}

    async def insert(self, messages: Sequence[Message], *, counted: bool = True) -> None:
        """Add rows. Messages with a context, and those that are not ``counted``, start as ``new`` for ``admit``."""
        if not messages:
            return
        keys = [
            (self._name, message.key, message.id, message.digest, self._rules.keep_keys)
            for message in messages
            if message.key
        ]
        if keys:
            await self._tx.many(self._sql["insert_key"], keys)
        rows: list[tuple[object, ...]] = []
        for message in messages:
            state = "delayed" if message.delay > 0 else "ready"
            if not counted or message.context is not None:
                state = "new"
            rows.append(
                (message.id, message.context, message.priority, state, message.delay, message.body, message.checksum)
            )
        if self._table.syntax.takes_arrays:
            columns = [list(column) for column in zip(*rows, strict=True)]
            await self._tx.run(self._sql["insert_all"], self._name, *columns)
        else:
            await self._tx.many(self._sql["insert"], [(self._name, *row) for row in rows])
        self.result.wakes = True
        if counted:
            independent = sum(message.context is None for message in messages)
            self.depth += independent
            if independent < len(messages):
                await self.admit()  # it counts what it admits, which may be more than these

    def _answer(self, number: int, value: object) -> None:
        self.result.answers[number] = Answer(value)


def needs_care(state: Row) -> bool:
    """Whether time has passed for a message, in either direction, or one waits to be admitted."""
    return (
        bool(state["new"])
        or _is_past(state["delayed"])
        or _is_past(state["leased"])
        or _is_impossible(state["longest"])
    )


def _is_past(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0


def _is_impossible(seconds: float | None) -> bool:
    return seconds is not None and seconds > _IMPOSSIBLE_LEASE


def _answer_known_key(message: Message, known: tuple[str, str]) -> Answer[str]:
    """The first message's id if the body is the same, else Conflict."""
    first, digest = known
    if digest == message.digest:
        return Answer(first)
    return Answer(
        error=Conflict(f"Key {message.key!r} was already used for a different message. Use a new key for each message.")
    )


def _lease_of(row: Row) -> Lease:
    return Lease(
        id=row["id"],
        body=bytes(row["body"]),
        context=row["context"],
        priority=row["priority"],
        attempt=row["attempts"],
        token=row["token"],
        seq=row["seq"],
        age=max(row["age"], 0.0),
        damaged=row["checksum"] not in (None, checksum(row["id"], row["context"], row["body"])),
    )


def _empty_if_zero(column: list[T]) -> list[T]:
    """The column, or an empty one if it is all zeros, as most are: then it need not be sent."""
    return column if any(column) else []


def _encode(values: Sequence[object]) -> str:
    return msgspec.json.encode(values).decode()


def _encode_seqs(rows: Sequence[Row]) -> str:
    return _encode([row["seq"] for row in rows])
