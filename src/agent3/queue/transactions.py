"""What happens to messages inside one transaction: lining up, handing out, ending, in the tables of the queue.

Many operations of one queue go through together, in few statements. It knows a ``Transaction`` and nothing of tasks,
bells or commits; an operation that is refused gets its error as its answer and spoils no other.

The rows change in only two ways without the queue's lock: ``ready`` becomes ``leased`` (skipping what others are just
taking), and a put inside a caller's transaction adds a ``new`` one, which touches no row that others touch: so a busy
queue never makes the caller's serializable transaction fail.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from agent3.errors import Conflict, StorageFull
from agent3.queue.messages import LONGEST_LEASE, Fate, Lease, Message, QueueFull, Rules, checksum
from agent3.queue.operations import Ack, Answer, Claim, Ending, Extend, Nack, Operation, Put, Release, Turn
from agent3.queue.sql import sql
from agent3.queue.wakeups import channel_of
from agent3.storage.database import Dialect, Row, Transaction

__all__ = ["Shelf", "overdue"]

T = TypeVar("T")

_REMEMBERED = 20
_LONGEST_REASON = 500
_KEPT_BACK = 512 * 1024
_NO_LEASE = LONGEST_LEASE + 60.0


class Shelf:
    """The rows of one queue. It has no state of its own, so a work that is run again finds it as it was."""

    def __init__(self, name: str, rules: Rules, dialect: Dialect):
        self.name = name
        self.rules = rules
        self.channel = channel_of(name)
        self.tells = self.packs = dialect == "postgres"
        self._dialect: Dialect = dialect

    def sql(self, name: str) -> str:
        return sql(self._dialect, name)

    async def turn(self, tx: Transaction, operations: Sequence[Operation], *, word: str = "", tidy: int = 0) -> Turn:
        """Do all of them: what ends first, since it makes room, then what is put, then what is claimed.

        Other processes hear ``word`` when a message may have become ready, where the database carries it. ``tidy`` is
        how many rows of each kind that are over may be removed on the way.
        """
        return await _Work(self, tx, word).do(operations, tidy)

    def packed(self, operations: Sequence[Operation], word: str) -> Sequence[object] | None:
        """What ``put_all`` wants to know, if one statement can do all of them: puts that stand alone, and no others.

        Time passes without it: what is due or was leased for too long is for those who claim.
        """
        messages = [one.message for one in operations if isinstance(one, Put) and one.message.is_loose]
        if not self.packs or len(messages) < len(operations):
            return None
        count = len(messages)
        return (
            *(count, self.name, count, self.rules.bound, self.name, self.name),
            [one.id for one in messages],
            _unless_nothing([one.priority for one in messages]),
            _unless_nothing([one.delay for one in messages]),
            [one.body for one in messages],
            [one.checksum for one in messages],
            *(self.channel, word),
        )

    async def post(self, tx: Transaction, message: Message) -> str:
        """Put a message inside a caller's transaction; its id.

        It touches nothing that others touch, but therefore counts only what is committed: as many puts as run at the
        same moment can together go beyond the bound.
        """
        work = _Work(self, tx)
        known = await work.known([message])
        if message.key in known:
            return _same(message, known[message.key]).get()
        row = await tx.one(self.sql("uncounted"), self.name, self.name, self.rules.bound)
        assert row is not None
        if (row["depth"] or 0) + row["new"] >= self.rules.bound:
            raise self.full()
        if await work.spare() < message.weight:
            raise self.no_room()
        await work.insert([message], posted=True)
        if self.tells:
            await tx.all(self.sql("tell"), self.channel, "")
        return message.id

    async def replay(self, tx: Transaction, ids: Sequence[str], state: str) -> int:
        """Line up messages that ended once more; how many. QueueFull, and nothing done, if not all find room."""
        work = _Work(self, tx)
        await work.lock()
        await work.admit()  # what nobody has counted yet takes up room too
        count = await tx.run(self.sql("replay"), self.name, state, _json(ids))
        if work.depth + count > self.rules.bound:
            raise self.full()
        await work.admit()
        await work.close()
        return count

    def full(self) -> QueueFull:
        """The refusal."""
        return QueueFull(
            f"Queue {self.name!r} holds {self.rules.bound:,} messages, which is all it takes, so this one was not put."
            " Try again later, or add consumers.",
            data={"queue": self.name, "bound": self.rules.bound},
            retry_after=1.0,
        )

    def no_room(self) -> StorageFull:
        """The refusal of a database that is nearly full."""
        return StorageFull(
            f"The database is full, so this message was not put into queue {self.name!r}; the little room that is left"
            " is for taking messages out. Delete old data, or raise storage.max_bytes.",
            data={"queue": self.name},
            retry_after=1.0,
        )

    def lease_of(self, row: Row) -> Lease:
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


class _Work:
    """One transaction on a shelf."""

    def __init__(self, shelf: Shelf, tx: Transaction, word: str = ""):
        self._shelf = shelf
        self._word = word
        self._name = shelf.name
        self._rules = shelf.rules
        self._tx = tx
        self.turn = Turn()
        self.depth = 0
        self._before: int | None = None
        self._now = 0.0

    async def do(self, operations: Sequence[Operation], tidy: int) -> Turn:
        numbered = dict(enumerate(operations))
        puts = {number: one for number, one in numbered.items() if isinstance(one, Put)}
        claims = {number: one for number, one in numbered.items() if isinstance(one, Claim)}
        endings = {number: one for number, one in numbered.items() if not isinstance(one, Put | Claim)}
        if puts or endings or tidy or await self._overdue():
            seen = await self.lock()
            await self._end(endings)  # before the leases are judged: a word that is late is better than none
            await self._catch_up(seen)
            await self._put(puts)
            await self._tidy(tidy)
            await self.close()
        for number, claim in claims.items():
            self._answer(number, await self._claim(claim))
        return self.turn

    async def lock(self) -> Row:
        """Take the queue's lock; what was to be seen of it before."""
        row = await self._tx.one(self._sql("lock"), *[self._name] * 6)
        assert row is not None
        self.depth = self._before = row["depth"]
        self._now = row["now"]
        return row

    async def close(self) -> None:
        """Write the count down, and tell."""
        if self.turn.rings and self._shelf.tells:
            told = (self._shelf.channel, self._word)
            await self._tx.all(self._sql("set_depth_and_tell"), self.depth, self._name, *told)
        elif self.depth != self._before:
            await self._tx.run(self._sql("set_depth"), self.depth, self._name)
        self.turn.depth = self.depth

    async def admit(self) -> None:
        """Count and line up what was put inside transactions of callers, or replayed."""
        self.depth += await self._tx.run(self._sql("admit"), self._name)
        self.turn.rings = True

    # Time passes

    async def _overdue(self) -> bool:
        row = await self._tx.one(self._sql("look"), *[self._name] * 5)
        assert row is not None
        return overdue(row)

    async def _catch_up(self, seen: Row) -> None:
        """Admit what is new, make ready what is due, take back what was leased for too long.

        ``seen`` may be older than the lock, so it only says where to look; what it missed is found the next time.
        """
        if seen["new"]:
            await self.admit()
        if _passed(seen["delayed"]):
            await self._tx.run(self._sql("come_due"), self._name)
            self.turn.rings = True
        if _passed(seen["leased"]):
            await self._expire(await self._tx.all(self._sql("expired"), self._name))
        if _endless(seen["longest"]):
            await self._tx.run(self._sql("shorten"), self._rules.lease, self._name, _NO_LEASE)

    async def _expire(self, rows: Sequence[Row]) -> None:
        reason = "its lease ended without a word from the consumer"
        gone = [row for row in rows if row["attempts"] >= self._rules.attempts]
        back = [(self._told(row, reason), row["seq"]) for row in rows if row["attempts"] < self._rules.attempts]
        if back:
            await self._tx.many(self._sql("take_back"), back)
            self.turn.rings = True
        await self._bury([(row, reason) for row in gone])
        await self._promote(gone)

    # Ends

    async def _end(self, endings: Mapping[int, Ending]) -> None:
        if not endings:
            return
        held = await self._held([one.lease for one in endings.values()])
        good: list[tuple[Ending, Row]] = []
        for number, one in endings.items():
            row = held.get(one.lease.seq)
            if row is None or row["token"] != one.lease.token:
                self._answer(number, "lost" if isinstance(one, Nack) else False)
                continue
            if not isinstance(one, Extend):
                del held[one.lease.seq]  # of two ends of one lease the second is refused
            good.append((one, row))
            self._answer(number, self._fate(one, row) if isinstance(one, Nack) else True)
        await self._extend([(one.seconds, row["seq"]) for one, row in good if isinstance(one, Extend)])
        await self._release([row for one, row in good if isinstance(one, Release)])
        acked = [row for one, row in good if isinstance(one, Ack)]
        await self._finish(acked)
        nacks = [(one, row) for one, row in good if isinstance(one, Nack)]
        await self._fail([(row, one.reason, one.delay or 0.0) for one, row in nacks if self._fate(one, row) == "retry"])
        dead = [(row, one.reason) for one, row in nacks if self._fate(one, row) == "dead"]
        await self._bury(dead)
        await self._promote([*acked, *(row for row, _ in dead)])

    def _fate(self, nack: Nack, row: Row) -> Fate:
        return "dead" if nack.delay is None or row["attempts"] >= self._rules.attempts else "retry"

    async def _extend(self, changes: Sequence[tuple[float, int]]) -> None:
        if changes:
            await self._tx.many(self._sql("extend"), changes)

    async def _held(self, leases: Iterable[Lease]) -> dict[int, Row]:
        numbers = _json([lease.seq for lease in leases])
        return {row["seq"]: row for row in await self._tx.all(self._sql("held"), numbers, self._name)}

    async def _finish(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if self._rules.keep_done > 0:
            await self._tx.run(self._sql("finish"), self._rules.keep_done, _seqs(rows))
        else:
            await self._tx.run(self._sql("delete"), _seqs(rows))
        self.depth -= len(rows)

    async def _release(self, rows: Sequence[Row]) -> None:
        if rows:
            await self._tx.run(self._sql("release"), _seqs(rows))
            self.turn.rings = True

    async def _fail(self, rows: Sequence[tuple[Row, str, float]]) -> None:
        await self._change(
            [("delayed" if delay else "ready", delay, self._told(row, why), row["seq"]) for row, why, delay in rows]
        )

    async def _bury(self, rows: Sequence[tuple[Row, str]]) -> None:
        keep = self._rules.keep_dead
        await self._change([("dead", keep, self._told(row, why), row["seq"]) for row, why in rows])
        self.depth -= len(rows)
        self.turn.died += len(rows)

    async def _change(self, changes: Sequence[tuple[str, float, str, int]]) -> None:
        if changes:
            await self._tx.many(self._sql("retry"), changes)
            self.turn.rings = True

    async def _promote(self, ended: Sequence[Row]) -> None:
        contexts = [row["context"] for row in ended if row["context"] is not None]
        if contexts:
            await self._tx.run(self._sql("promote"), self._name, _json(contexts))
            self.turn.rings = True

    def _told(self, row: Row, reason: str) -> str:
        """The history with one more failure."""
        earlier = msgspec.json.decode(row["history"]) if row["history"] else []
        entry = [round(self._now, 3), row["attempts"], _storable(reason)]
        return _json([*earlier, entry][-_REMEMBERED:])

    # Puts

    async def _put(self, puts: Mapping[int, Put]) -> None:
        if not puts:
            return
        known = await self.known([one.message for one in puts.values()])
        spare = await self.spare()
        room = max(self._rules.bound - self.depth, 0)
        accepted: list[Message] = []
        for number, one in puts.items():
            message = one.message
            if message.key in known:
                self.turn.answers[number] = _same(message, known[message.key])
            elif len(accepted) == room:
                self.turn.answers[number] = Answer(error=self._shelf.full())
            elif spare < message.weight:
                self.turn.answers[number] = Answer(error=self._shelf.no_room())
            else:
                spare -= message.weight
                accepted.append(message)
                self._answer(number, message.id)
                if message.key is not None:
                    known[message.key] = (message.id, message.digest)
        await self.insert(accepted)

    async def spare(self) -> float:
        """Bytes that puts may still take. The last ones are kept back, since taking messages out needs some too:
        without them a full database could never be emptied.
        """
        if self._shelf.packs:
            return math.inf  # a server has its disk to itself, and says when that is full
        row = await self._tx.one(self._sql("spare"))
        assert row is not None
        return float(row["bytes"]) - _KEPT_BACK

    async def known(self, messages: Sequence[Message]) -> dict[str | None, tuple[str, str]]:
        """The id and the digest that their keys stand for already."""
        keys = sorted({one.key for one in messages if one.key is not None})
        if not keys:
            return {}
        rows = await self._tx.all(self._sql("known_keys"), self._name, _json(keys))
        return {row["key"]: (row["id"], row["hash"]) for row in rows}

    async def insert(self, messages: Sequence[Message], *, posted: bool = False) -> None:
        """Add rows. Those of a context are lined up by ``admit``; those that nobody has counted wait for it too."""
        if not messages:
            return
        keys = [(self._name, one.key, one.id, one.digest, self._rules.keep_keys) for one in messages if one.key]
        if keys:
            await self._tx.many(self._sql("insert_key"), keys)
        if self._shelf.packs:
            await self._tx.run(self._sql("insert_all"), self._name, *_columns(messages, posted))
        else:
            await self._tx.many(self._sql("insert"), [(self._name, *_row(one, posted)) for one in messages])
        self.turn.rings = True
        if posted:
            return
        loose = sum(one.context is None for one in messages)
        self.depth += loose
        if loose < len(messages):
            await self.admit()  # it counts what it lines up, which may be more than these

    # Claims

    async def _claim(self, claim: Claim) -> list[Lease]:
        rows = await self._tx.all(self._sql("claim"), self._name, claim.most, claim.seconds)
        return sorted((self._shelf.lease_of(row) for row in rows), key=lambda lease: (-lease.priority, lease.seq))

    async def _tidy(self, most: int) -> None:
        if not most:
            return
        await self._tx.run(self._sql("purge_done"), self._name, most)
        await self._tx.run(self._sql("purge_dead"), self._name, most)
        await self._tx.run(self._sql("purge_keys"), self._name, self._name, most)

    def _answer(self, number: int, value: object) -> None:
        self.turn.answers[number] = Answer(value)

    def _sql(self, name: str) -> str:
        return self._shelf.sql(name)


def overdue(seen: Row) -> bool:
    """Whether time has passed for a message, in either direction, or one waits to be admitted."""
    return bool(seen["new"]) or _passed(seen["delayed"]) or _passed(seen["leased"]) or _endless(seen["longest"])


def _same(message: Message, known: tuple[str, str]) -> Answer[str]:
    """The answer to a key that was seen before: the first message's id if the body is the same."""
    first, digest = known
    if digest == message.digest:
        return Answer(first)
    return Answer(
        error=Conflict(f"Key {message.key!r} was used for another message. Give each message a key of its own.")
    )


def _state(message: Message, posted: bool) -> str:
    if posted or message.context is not None:
        return "new"
    return "delayed" if message.delay > 0 else "ready"


def _row(message: Message, posted: bool) -> tuple[object, ...]:
    state = _state(message, posted)
    return message.id, message.context, message.priority, state, message.delay, message.body, message.checksum


def _columns(messages: Sequence[Message], posted: bool) -> list[list[object]]:
    """Their rows, turned: one array for each column."""
    return [list(column) for column in zip(*(_row(one, posted) for one in messages), strict=True)]


def _unless_nothing(column: list[T]) -> list[T]:
    """The column, or an empty one if it holds nothing but zeros, as most do: so it does not travel."""
    return column if any(column) else []


def _passed(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0


def _endless(seconds: float | None) -> bool:
    return seconds is not None and seconds > _NO_LEASE


def _json(values: Sequence[object]) -> str:
    return msgspec.json.encode(values).decode()


def _seqs(rows: Sequence[Row]) -> str:
    return _json([row["seq"] for row in rows])


def _storable(reason: str) -> str:
    """Words from anywhere, as every database can keep them."""
    return reason[:_LONGEST_REASON].replace("\0", " ").encode(errors="replace").decode()
