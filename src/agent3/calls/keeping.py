"""What outlives a turn beside its job: dead letters and artifacts."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from agent3.env import Env
from agent3.errors import NotFound
from agent3.model import Call, Failed, encode
from agent3.storage import Blobs, Database

__all__ = ["ArtifactStore", "DeadLetter", "DeadLetters", "StoredArtifact"]


class DeadLetter(Struct, frozen=True):
    """A call that could not be delivered, and why."""

    id: str
    at: float
    principal: str
    agent: str
    capability: str
    code: str
    message: str
    attempts: int


class DeadLetters:
    """The table of what could not be delivered. A letter holds the call as it came in: it never held a secret."""

    def __init__(self, database: Database, env: Env):
        self._database = database
        self._env = env

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
                    encode(call),
                    encode(outcome),
                )
            ],
        )

    async def latest(self, limit: int = 100) -> list[DeadLetter]:
        """The latest ones first."""
        rows = await self._database.all(
            "SELECT id, at, principal, agent, capability, code, message, attempts FROM dead_letters "
            "ORDER BY id DESC LIMIT ?",
            limit,
        )
        return [msgspec.convert({name: row[name] for name in DeadLetter.__struct_fields__}, DeadLetter) for row in rows]


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
        self._keep = keep_days * 86_400.0

    async def store(self, call: Call, body: bytes, name: str | None, media_type: str) -> str:
        """Keep some bytes for the caller; the id is good only for that caller."""
        digest = await self._blobs.put(body)
        artifact = self._env.id()
        now = self._env.now()
        await self._database.many(
            "INSERT INTO artifacts (id, owner, sha256, name, media_type, size, job, created, expires) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    artifact,
                    call.principal.id,
                    digest,
                    name,
                    media_type,
                    len(body),
                    call.job or call.id,
                    now,
                    now + self._keep,
                )
            ],
        )
        return artifact

    async def get(self, owner: str, artifact: str) -> StoredArtifact:
        """The artifact of this owner; NotFound for anything else, Corrupt when its bytes have changed."""
        row = await self._database.one(
            "SELECT sha256, name, media_type FROM artifacts WHERE id = ? AND owner = ? AND expires > ?",
            artifact,
            owner,
            self._env.now(),
        )
        if row is None:
            raise NotFound(f"There is no artifact {artifact[:100]!r} of yours. It may have expired.")
        return StoredArtifact(artifact, row["name"], row["media_type"], await self._blobs.get(row["sha256"]))
