"""Retention: what is past its time is removed, in small transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from agent3.calls.artifacts import ArtifactStore
from agent3.calls.jobs import Jobs
from agent3.env import Env
from agent3.settings import Calls
from agent3.storage import Database

__all__ = ["Retention"]

_DAY = 86_400.0
_AT_ONCE = 500
"""Rows removed in one transaction: others write in between."""
_A_ROUND = 100_000
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
    ):
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
            "unread answers": await self._database.write(
                lambda tx: tx.run("DELETE FROM a2a_replies WHERE at < ?", answers), frees=True
            ),
            **{name: await expire() for name, expire in self._others.items()},
        }

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
