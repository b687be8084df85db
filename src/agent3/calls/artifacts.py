"""Large results, kept for their owner until they expire."""

from __future__ import annotations

from msgspec import Struct

from agent3.env import Env
from agent3.errors import Corrupt, NotFound, TooLarge
from agent3.model import Call
from agent3.storage import BlobStore, Database, Transaction
from agent3.storage.checksums import is_whole, sum_of

__all__ = ["ArtifactStore", "StoredArtifact"]

_DAY = 86_400.0
_AT_ONCE = 500
"""Rows removed in one transaction: others write in between."""
_A_ROUND = 100_000
"""Rows removed in one round; what is left waits for the next."""
_YOUNG = 3_600.0
"""Seconds within which the row that refers to some bytes has surely been written."""


_OLD = " The oldest expire first. The operator can raise limits.artifacts and limits.artifact_bytes."


class StoredArtifact(Struct, frozen=True):
    """A large result: what it is, and its bytes."""

    id: str
    name: str | None
    media_type: str
    body: bytes


class ArtifactStore:
    """Large results by id, for their readers alone. The bytes are stored by their hash, so equal ones are kept once."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        env: Env,
        keep_days: float = 7.0,
        *,
        most: int = 0,
        most_bytes: int = 0,
    ):
        self._database = database
        self.blobs = blobs
        self._env = env
        self._keep = keep_days * _DAY
        self._most = most
        self._most_bytes = most_bytes

    async def store(self, call: Call, body: bytes, name: str | None, media_type: str) -> str:
        """Keep some bytes for the caller; the id is good only for that caller. TooLarge where it keeps too much."""
        if call.principal.kind != "local" and (self._most or self._most_bytes):
            await self._check_room(call.principal.id, len(body))
        digest = await self.blobs.put(body)
        artifact = self._env.id()
        now = self._env.now()
        covered = (artifact, call.principal.id, digest, name, media_type)
        await self._database.many(
            "INSERT INTO artifacts (id, owner, sha256, name, media_type, size, job, created, expires, checksum) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(*covered, len(body), call.job or call.id, now, now + self._keep, sum_of(*covered))],
        )
        return artifact

    async def _check_room(self, owner: str, size: int) -> None:
        # What has expired counts until it is removed: its bytes are still there.
        row = await self._database.one(
            "SELECT COUNT(*) AS number, COALESCE(SUM(size), 0) AS bytes FROM artifacts WHERE owner = ?", owner
        )
        assert row is not None
        if self._most and row["number"] >= self._most:
            raise TooLarge(f"Client {owner} already has {row['number']} large results, the maximum.{_OLD}")
        if self._most_bytes and row["bytes"] + size > self._most_bytes:
            raise TooLarge(
                f"Client {owner} already has {row['bytes']} bytes of large results; {size} more exceed the "
                f"maximum.{_OLD}"
            )

    async def get(self, reader: str, artifact: str) -> StoredArtifact:
        """The artifact, for its owner and those it is shared with; NotFound for all else, Corrupt when it changed."""
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
            raise NotFound(f"Artifact {artifact[:100]!r} does not exist for you. It may have expired.")
        if not is_whole(row["checksum"], *(row[column] for column in ("id", "owner", "sha256", "name", "media_type"))):
            raise Corrupt(f"Artifact {artifact} is damaged: its row no longer matches its checksum. Restore a backup.")
        return StoredArtifact(artifact, row["name"], row["media_type"], await self.blobs.get(row["sha256"]))

    async def expire(self) -> int:
        """Remove artifacts past their time, with the bytes that no other needs; how many."""

        async def work(tx: Transaction) -> list[str]:
            now = self._env.now()
            rows = await tx.all(
                "DELETE FROM artifacts WHERE id IN (SELECT id FROM artifacts WHERE expires < ? AND created < ? "
                "ORDER BY expires LIMIT ?) RETURNING sha256",
                now,
                now - _YOUNG,
                _AT_ONCE,
            )
            return [row["sha256"] for row in rows]

        removed = 0
        while removed < _A_ROUND:
            hashes = await self._database.write(work, frees=True)
            for digest in sorted(set(hashes)):
                if await self._database.one("SELECT id FROM artifacts WHERE sha256 = ? LIMIT 1", digest) is None:
                    # Bytes that have just been put stay: the row that refers to them is about to be written.
                    await self.blobs.discard(digest, _YOUNG)
            removed += len(hashes)
            if len(hashes) < _AT_ONCE:
                break
        return removed
