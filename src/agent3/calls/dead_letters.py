"""Dead letters: calls that could not be delivered, kept until they are sent again or dropped."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from agent3.env import Env
from agent3.errors import Corrupt, NotFound, StorageError
from agent3.model import Call, Failed, decode_call, decode_outcome, encode
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.storage import Database, Row, Transaction
from agent3.storage.checksums import append_checksum, whole

__all__ = ["DeadLetter", "DeadLetters", "Waiting"]

log = logger("dead letters")

_AT_ONCE = 500
"""Rows removed in one transaction: others write in between."""
_MOST_DROPPED = 5_000
"""Letters that one call, which waits for it, drops at most."""
_DROP_OLDEST = """
DELETE FROM dead_letters WHERE id IN (
    SELECT id FROM dead_letters WHERE id <= (SELECT id FROM dead_letters ORDER BY id DESC LIMIT 1 OFFSET ?)
    ORDER BY id LIMIT ?)
"""


class DeadLetter(Struct, frozen=True):
    """A call that could not be delivered, and why; when it was sent again, if it was."""

    id: str
    at: float
    principal: str
    agent: str
    capability: str
    code: str
    message: str
    attempts: int
    replayed: float | None = None


class Waiting(Struct, frozen=True):
    """How many dead letters have not been sent again, and when the oldest was buried."""

    count: int
    oldest: float | None


class DeadLetters:
    """The table of what could not be delivered. A letter holds the call as it came in: it never held a secret."""

    def __init__(self, database: Database, env: Env, most: int = 0, metrics: Metrics = METRICS):
        """At ``most`` so many are kept, give or take a hundredth: then the oldest are dropped. 0 keeps all of them."""
        self._database = database
        self._env = env
        self._most = most
        self._metrics = metrics
        self._buried = most  # how many there are already is not known: the first one tells

    async def bury(self, call: Call, outcome: Failed) -> None:
        """Keep a call; when this returns, it is on disk."""
        await self._database.many(
            "INSERT INTO dead_letters (id, at, principal, agent, capability, code, message, attempts, call, outcome) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    self._env.id(),
                    self._env.now(),
                    call.principal.id,
                    call.agent,
                    call.capability,
                    outcome.code,
                    outcome.message,
                    call.live.attempts,
                    append_checksum(encode(call)),
                    append_checksum(encode(outcome)),
                )
            ],
        )
        self._buried += 1
        if self._most and self._buried * 100 >= self._most:
            self._buried = 0
            await self._drop_oldest()

    async def _drop_oldest(self) -> None:
        """Drop the oldest beyond the bound. If that fails, the next one that is buried does it."""
        dropped = 0
        try:
            while dropped < _MOST_DROPPED:
                some = await self._database.write(
                    lambda tx: tx.run(_DROP_OLDEST, self._most, _AT_ONCE), frees=True, calm=True
                )
                if not some:
                    break
                dropped += some
            if dropped >= _MOST_DROPPED:  # a caller waits for this: the rest is for the next one
                self._buried = self._most
        except StorageError as error:
            self._buried = self._most
            log.warning("the oldest dead letters could not be dropped: %s", error.message)
        if dropped:
            self._metrics.dead_letters_dropped.inc(("calls",), dropped)
            log.warning("dropped the %d oldest dead letters of calls; %d are kept", dropped, self._most)

    async def latest(
        self,
        limit: int = 100,
        *,
        agent: str | None = None,
        code: str | None = None,
        since: float | None = None,
        replayed: bool = True,
    ) -> list[DeadLetter]:
        """The latest ones first: of an agent, with a code, since a moment, or not yet replayed, where that is asked."""
        wanted = [("agent = ?", agent), ("code = ?", code), ("at >= ?", since)]
        rules = [rule for rule, value in wanted if value is not None] + ([] if replayed else ["replayed IS NULL"])
        rows = await self._database.all(
            f"SELECT {', '.join(DeadLetter.__struct_fields__)} FROM dead_letters "
            f"{'WHERE ' if rules else ''}{' AND '.join(rules)} ORDER BY id DESC LIMIT ?",
            *(value for _, value in wanted if value is not None),
            limit,
        )
        return [_letter(row) for row in rows]

    async def get(self, letter: str) -> tuple[DeadLetter, Call, Failed]:
        """A letter, the call as it came in, and how it failed; NotFound when there is none."""
        row = await self._database.one("SELECT * FROM dead_letters WHERE id = ?", letter)
        if row is None:
            raise NotFound(f"Dead letter {letter[:100]!r} does not exist. It may have been dropped or have expired.")
        try:
            outcome = decode_outcome(whole(bytes(row["outcome"]), f"Dead letter {letter}"))
            call = decode_call(whole(bytes(row["call"]), f"Dead letter {letter}"))
        except msgspec.MsgspecError as error:
            raise Corrupt(f"Dead letter {letter} is damaged: {error}. Drop it.") from None
        assert isinstance(outcome, Failed)
        return _letter(row), call, outcome

    async def mark(self, letter: str) -> None:
        """Remember that a letter was sent again."""
        await self._database.many("UPDATE dead_letters SET replayed = ? WHERE id = ?", [(self._env.now(), letter)])

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters; how many there were."""

        async def work(tx: Transaction) -> int:
            return sum([await tx.run("DELETE FROM dead_letters WHERE id = ?", letter) for letter in letters])

        return await self._database.write(work, frees=True)

    async def count_waiting(self) -> Waiting:
        """How many have not been sent again."""
        row = await self._database.one(
            "SELECT COUNT(*) AS count, MIN(at) AS oldest FROM dead_letters WHERE replayed IS NULL"
        )
        assert row is not None
        return Waiting(row["count"], row["oldest"])


def _letter(row: Row) -> DeadLetter:
    return msgspec.convert({name: row[name] for name in DeadLetter.__struct_fields__}, DeadLetter)
