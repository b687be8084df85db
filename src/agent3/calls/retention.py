"""Retention: what is past its time is removed, in small transactions with rests, and its space is given back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from agent3.calls.artifacts import ArtifactStore
from agent3.calls.audit import delete_rows
from agent3.calls.jobs import Jobs
from agent3.env import Env
from agent3.settings import Calls
from agent3.storage import Database, Transaction
from agent3.storage.audit import Signer
from agent3.storage.rests import delete_in_pieces, rest_after

__all__ = ["Retention"]

_DAY = 86_400.0
_AT_ONCE = 50
"""Rows removed in one transaction: whoever writes then waits for it."""
_A_ROUND = 5_000_000
"""Rows of one kind removed in one round; what is left waits for the next."""


class Retention:
    """Removes what is past its time: ledger rows, bodies, dead letters, artifacts and their bytes, jobs, ``others``."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        artifacts: ArtifactStore,
        env: Env,
        settings: Calls,
        others: Mapping[str, Callable[[], Awaitable[int]]] | None = None,
        load_signer: Callable[[], Awaitable[Signer | None]] | None = None,
    ):
        self._load_signer = load_signer or _sign_nothing
        self._others = others or {}
        self._database = database
        self._jobs = jobs
        self._artifacts = artifacts
        self._env = env
        self._settings = settings

    async def sweep(self) -> dict[str, int]:
        """One round, in small transactions and bounded; how many of each kind went. Any number may sweep at once."""
        # An answer between agents goes, also unread, when a job of the same age would go.
        answers = self._env.now() - self._settings.job_days * _DAY
        return {
            "ledger rows": await self._older("calls", self._settings.ledger_days),
            "bodies": await self._older("call_bodies", self._settings.body_days),
            "dead letters": await self._older("dead_letters", self._settings.dead_letter_days),
            "artifacts": await self._artifacts.expire(),
            "jobs": await self._jobs.expire(),
            "unread answers": await delete_in_pieces(
                self._database, self._env, "a2a_replies", "at < ?", answers, key="agent, message"
            ),
            **{name: await expire() for name, expire in self._others.items()},
            "bytes given back": await self._shrink(),
        }

    async def _older(self, table: str, days: float) -> int:
        """Remove rows older than some days; 0 days keep them for ever."""
        if days <= 0:
            return 0
        before = self._env.now() - days * _DAY
        if table != "calls":
            return await delete_in_pieces(self._database, self._env, table, "at < ?", before)
        which = "id IN (SELECT id FROM calls WHERE at < ? ORDER BY at LIMIT ?)"
        signer = await self._load_signer()

        async def work(tx: Transaction) -> int:
            return await delete_rows(tx, self._env, which, before, _AT_ONCE, why="retention", signer=signer)

        removed = 0
        while removed < _A_ROUND:
            async with rest_after(self._env):
                some = await self._database.write(work, frees=True)
            removed += some
            if some < _AT_ONCE:
                break
        return removed

    async def _shrink(self) -> int:
        """Give the disk back what was freed, a piece at a time."""
        given = 0
        while True:
            async with rest_after(self._env):
                some = await self._database.shrink()
            if not some:
                return given
            given += some


async def _sign_nothing() -> None:
    return None
