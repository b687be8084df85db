"""What outlives a turn beside its job: dead letters and artifacts; and for how long each is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from agent3.calls.jobs.jobs import Jobs
from agent3.env import Env
from agent3.errors import Corrupt, NotFound, StorageError
from agent3.model import Call, Failed, decode_call, decode_outcome, encode
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.settings import Calls
from agent3.storage import Blobs, Database, Row, Transaction
from agent3.storage.checksums import is_whole, sum_of, summed, whole

__all__ = ["ArtifactStore", "DeadLetter", "DeadLetters", "Retention", "StoredArtifact", "Waiting"]

log = logger("keeping")

_DAY = 86_400.0
_AT_ONCE = 500
_MOST_DROPPED = 5_000
"""Dead letters that one call, which waits for it, drops at most."""
"""Rows removed in one transaction: others write in between."""
_A_ROUND = 100_000
"""Rows of one kind removed in one round; what is left waits for the next."""
_YOUNG = 3_600.0
"""Seconds within which whoever stores bytes has surely written down that they are needed."""

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
    """How many dead letters nobody has sent again, and since when the oldest lies there."""

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
                    summed(encode(call)),
                    summed(encode(outcome)),
                )
            ],
        )
        self._buried += 1
        if self._most and self._buried * 100 >= self._most:
            self._buried = 0
            await self._bound()

    async def _bound(self) -> None:
        """Drop the oldest beyond the bound. Should it fail, the next one that is buried does it."""
        dropped = 0
        try:
            while dropped < _MOST_DROPPED and (some := await self._drop_some()):
                dropped += some
            if dropped >= _MOST_DROPPED:  # somebody waits for this call: the rest is for the next one
                self._buried = self._most
        except StorageError as error:
            self._buried = self._most
            log.warning("the oldest dead letters could not be dropped: %s", error.message)
        if dropped:
            self._metrics.dead_letters_dropped.inc(("calls",), dropped)
            log.warning("%d dead letters of calls, the oldest, were dropped: %d are kept", dropped, self._most)

    async def _drop_some(self) -> int:
        return await self._database.write(lambda tx: tx.run(_DROP_OLDEST, self._most, _AT_ONCE), frees=True, calm=True)

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
            raise NotFound(f"There is no dead letter {letter[:100]!r}. It may have been dropped, or have expired.")
        try:
            outcome = decode_outcome(whole(bytes(row["outcome"]), f"Dead letter {letter}"))
            call = decode_call(whole(bytes(row["call"]), f"Dead letter {letter}"))
        except msgspec.MsgspecError as wrong:
            raise Corrupt(f"Dead letter {letter} cannot be read: {wrong}. Drop it.") from None
        assert isinstance(outcome, Failed)
        return _letter(row), call, outcome

    async def mark(self, letter: str) -> None:
        """Remember that a letter was sent again."""
        await self._database.many("UPDATE dead_letters SET replayed = ? WHERE id = ?", [(self._env.now(), letter)])

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters; how many there were."""

        async def work(tx: Transaction) -> int:
            return sum([await tx.run("DELETE FROM dead_letters WHERE id = ?", one) for one in letters])

        return await self._database.write(work, frees=True)

    async def waiting(self) -> Waiting:
        """How many wait for somebody to look at them."""
        row = await self._database.one(
            "SELECT COUNT(*) AS count, MIN(at) AS oldest FROM dead_letters WHERE replayed IS NULL"
        )
        assert row is not None
        return Waiting(row["count"], row["oldest"])


def _letter(row: Row) -> DeadLetter:
    return msgspec.convert({name: row[name] for name in DeadLetter.__struct_fields__}, DeadLetter)


class StoredArtifact(Struct, frozen=True):
    """A large result: what it is, and its bytes."""

    id: str
    name: str | None
    media_type: str
    body: bytes


class ArtifactStore:
    """Large results by id; the bytes lie by their hash, so equal ones are kept once. Not yours is not there."""

    def __init__(self, database: Database, blobs: Blobs, env: Env, keep_days: float = 7.0):
        self._database = database
        self._blobs = blobs
        self._env = env
        self._keep = keep_days * _DAY

    async def store(self, call: Call, body: bytes, name: str | None, media_type: str) -> str:
        """Keep some bytes for the caller; the id is good only for that caller."""
        digest = await self._blobs.put(body)
        artifact = self._env.id()
        now = self._env.now()
        shown = (artifact, call.principal.id, digest, name, media_type)
        await self._database.many(
            "INSERT INTO artifacts (id, owner, sha256, name, media_type, size, job, created, expires, checksum) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(*shown, len(body), call.job or call.id, now, now + self._keep, sum_of(*shown))],
        )
        return artifact

    async def get(self, reader: str, artifact: str) -> StoredArtifact:
        """The artifact, for its owner and those he shares it with; NotFound for all else, Corrupt when it changed."""
        now = self._env.now()
        row = await self._database.one(
            "SELECT id, owner, sha256, name, media_type, checksum FROM artifacts "
            "WHERE id = ? AND expires > ? AND (owner = ? OR EXISTS (SELECT 1 FROM artifact_readers "
            "WHERE artifact = artifacts.id AND reader = ? AND until > ?))",
            artifact,
            now,
            reader,
            reader,
            now,
        )
        if row is None:
            raise NotFound(f"There is no artifact {artifact[:100]!r} of yours. It may have expired.")
        if not is_whole(row["checksum"], *(row[one] for one in ("id", "owner", "sha256", "name", "media_type"))):
            raise Corrupt(f"Artifact {artifact} is damaged: its row no longer matches its checksum. Restore a backup.")
        return StoredArtifact(artifact, row["name"], row["media_type"], await self._blobs.get(row["sha256"]))

    async def expire(self) -> int:
        """Remove artifacts past their time, with the bytes that no other needs; how many."""
        removed = 0
        while removed < _A_ROUND:
            hashes = await self._database.write(self._expire_some, frees=True)
            for digest in sorted(set(hashes)):
                await self._let_go(digest)
            removed += len(hashes)
            if len(hashes) < _AT_ONCE:
                break
        return removed

    async def _expire_some(self, tx: Transaction) -> list[str]:
        now = self._env.now()
        rows = await tx.all(
            "DELETE FROM artifacts WHERE id IN (SELECT id FROM artifacts WHERE expires < ? AND created < ? "
            "ORDER BY expires LIMIT ?) RETURNING sha256",
            now,
            now - _YOUNG,
            _AT_ONCE,
        )
        return [row["sha256"] for row in rows]

    async def _let_go(self, digest: str) -> None:
        """Forget bytes that no row refers to; somebody who has just put them is about to write such a row."""
        if await self._database.one("SELECT id FROM artifacts WHERE sha256 = ? LIMIT 1", digest) is None:
            await self._blobs.discard(digest, _YOUNG)


class Retention:
    """Removes what is past its time: ledger rows, dead letters, artifacts with their bytes, jobs, and ``others``."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        artifacts: ArtifactStore,
        env: Env,
        settings: Calls,
        others: Mapping[str, Callable[[], Awaitable[int]]] | None = None,
    ):
        self._others = others or {}
        self._database = database
        self._jobs = jobs
        self._artifacts = artifacts
        self._env = env
        self._settings = settings

    async def sweep(self) -> dict[str, int]:
        """One round, in small transactions and bounded; how many of each kind went. Any number may sweep at once."""
        return {
            "ledger rows": await self._older("calls", self._settings.ledger_days),
            "dead letters": await self._older("dead_letters", self._settings.dead_letter_days),
            "artifacts": await self._artifacts.expire(),
            "jobs": await self._jobs.expire(),
            "unread answers": await self._unread(),
            **{name: await expire() for name, expire in self._others.items()},
        }

    async def _unread(self) -> int:
        """Remove answers between agents that nobody has read, when a job of the same age would go."""
        before = self._env.now() - self._settings.job_days * _DAY
        sql = "DELETE FROM a2a_replies WHERE at < ?"
        return await self._database.write(lambda tx: tx.run(sql, before), frees=True)

    async def _older(self, table: str, days: float) -> int:
        """Remove rows older than some days; 0 days keep them for ever."""
        if days <= 0:
            return 0
        before = self._env.now() - days * _DAY
        sql = f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE at < ? ORDER BY at LIMIT ?)"
        removed = 0
        while removed < _A_ROUND:
            some = await self._database.write(lambda tx: tx.run(sql, before, _AT_ONCE), frees=True)
            removed += some
            if some < _AT_ONCE:
                break
        return removed
