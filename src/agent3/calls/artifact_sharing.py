"""Artifacts that others may read: readers that their owner named, and holders of a link that the owner signed.

A link says until when it is good and carries a signature over that, by a key which only this artifact has; taking the
key away ends all links to it. To all who may not read it an artifact does not exist.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from collections.abc import Sequence

from agent3.env import Env
from agent3.errors import NotFound, ValidationError
from agent3.storage import Database, Transaction

__all__ = ["Sharing"]

_KEY = 32
_LONGEST = 100 * 365 * 86_400.0
_SOME = 500


class Sharing:
    """Who may read what besides its owner, in the database. Safe from several tasks and loops at once."""

    def __init__(self, database: Database, env: Env):
        self._database = database
        self._env = env

    async def share(self, owner: str, artifact: str, readers: Sequence[str], seconds: float | None = None) -> None:
        """Let some read an artifact, for some seconds or as long as it is kept; NotFound when it is not the owner's."""
        now = self._env.now()
        wanted = now + _check_seconds(seconds if seconds is not None else _LONGEST)

        async def work(tx: Transaction) -> None:
            until = min(wanted, await _get_expiry(tx, owner, artifact, now))
            await tx.many(
                "INSERT INTO artifact_readers (artifact, reader, until) VALUES (?, ?, ?) "
                "ON CONFLICT (artifact, reader) DO UPDATE SET until = excluded.until",
                [(artifact, reader, until) for reader in readers],
            )
            await tx.run(_SWEEP.format(table="artifact_readers"), now, now, _SOME)

        await self._database.write(work)

    async def unshare(self, owner: str, artifact: str, readers: Sequence[str] | None = None) -> None:
        """Let some, or all, read it no more. Without ``readers`` no link is good any more either."""
        now = self._env.now()

        async def work(tx: Transaction) -> None:
            await _get_expiry(tx, owner, artifact, now)
            if readers is None:
                await tx.run("DELETE FROM artifact_readers WHERE artifact = ?", artifact)
                await tx.run("DELETE FROM artifact_links WHERE artifact = ?", artifact)
            for reader in readers or ():
                await tx.run("DELETE FROM artifact_readers WHERE artifact = ? AND reader = ?", artifact, reader)

        await self._database.write(work)

    async def link(self, owner: str, artifact: str, seconds: float) -> str:
        """The path at the gateway by which it can be read for some seconds; NotFound when it is not the owner's."""
        now = self._env.now()
        expires = math.ceil(now + _check_seconds(seconds))
        fresh = self._env.random_bytes(_KEY)

        async def work(tx: Transaction) -> bytes:
            until = await _get_expiry(tx, owner, artifact, now)
            await tx.run(
                "INSERT INTO artifact_links (artifact, key, until) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                artifact,
                fresh,
                until,
            )
            await tx.run(_SWEEP.format(table="artifact_links"), now, now, _SOME)
            row = await tx.one("SELECT key FROM artifact_links WHERE artifact = ?", artifact)
            assert row is not None
            return bytes(row["key"])

        key = await self._database.write(work)
        return f"/v1/artifacts/{artifact}?expires={expires}&signature={_signature(key, artifact, expires)}"

    async def owner(self, artifact: str, expires: int, signature: str) -> str:
        """Whose artifact a link opens; NotFound when the link has expired, was changed, or was revoked."""
        row = await self._database.one(
            "SELECT owner, key FROM artifacts JOIN artifact_links ON artifact = id WHERE id = ?", artifact
        )
        right = _signature(bytes(row["key"]), artifact, expires) if row is not None else ""
        if row is None or expires <= self._env.now() or not hmac.compare_digest(right.encode(), signature.encode()):
            raise NotFound(f"This link to {artifact[:100]!r} leads nowhere. It may have expired; request a new one.")
        return str(row["owner"])


_SWEEP = (
    "DELETE FROM {table} WHERE until < ? AND artifact IN "
    "(SELECT artifact FROM {table} WHERE until < ? ORDER BY until LIMIT ?)"
)


async def _get_expiry(tx: Transaction, owner: str, artifact: str, now: float) -> float:
    """Until when an artifact of this owner is kept."""
    row = await tx.one("SELECT expires FROM artifacts WHERE id = ? AND owner = ? AND expires > ?", artifact, owner, now)
    if row is None:
        raise NotFound(f"Artifact {artifact[:100]!r} does not exist for you. It may have expired.")
    return float(row["expires"])


def _signature(key: bytes, artifact: str, expires: int) -> str:
    digest = hmac.new(key, f"agent3 artifact 1\n{artifact}\n{expires}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _check_seconds(seconds: float) -> float:
    if not 0 < seconds <= _LONGEST:
        raise ValidationError(f"An artifact cannot be shared for {seconds!r} seconds; the number must be above 0.")
    return seconds
