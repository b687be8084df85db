"""Leases: of several processes that could do a duty, one holds its lease and does it, by the database's clock.

A lease keeps two processes from starting a duty at once; it does not stop one that slept past its end. So what a duty
writes must be safe to write twice, or carry a fencing token of its own, as jobs and messages do.
"""

from __future__ import annotations

from collections.abc import Collection

from agent3.storage.database import Database, Transaction
from agent3.storage.syntax import SYNTAX, Dialect

__all__ = ["NOW", "Leases"]

NOW: dict[Dialect, str] = {dialect: syntax.now for dialect, syntax in SYNTAX.items()}
"""The database's own clock; prefer ``database.syntax.now``."""

_TAKE = """
INSERT INTO leases (name, holder, until, token) VALUES (?, ?, {now} + CAST(? AS DOUBLE PRECISION), 1)
ON CONFLICT (name) DO UPDATE SET
    until = excluded.until,
    token = leases.token + CASE WHEN leases.holder = excluded.holder THEN 0 ELSE 1 END,
    holder = excluded.holder
WHERE leases.holder = excluded.holder OR leases.until < {now}
RETURNING token
"""


class Leases:
    """The leases of one process. Safe to use from several tasks and event loops at once."""

    def __init__(self, database: Database, holder: str):
        self._database = database
        self._holder = holder
        self._now = database.syntax.now
        self._take = database.syntax.fill(_TAKE)

    async def take(self, name: str, seconds: float) -> bool:
        """Take or renew a lease for so many seconds from now; False if another process holds it."""

        async def work(tx: Transaction) -> bool:
            return await tx.one(self._take, name, self._holder, seconds) is not None

        return await self._database.write(work)

    async def held(self, name: str) -> bool:
        """Whether any process holds the lease now."""
        return bool(await self.held_of([name]))

    async def held_of(self, names: Collection[str]) -> set[str]:
        """Those of the leases that any process holds now."""
        sql = f"SELECT name FROM leases WHERE name IN ({_marks(names)}) AND until >= {self._now}"
        return {row["name"] for row in await self._database.all(sql, *names)}

    async def prolong(self, names: Collection[str], seconds: float) -> set[str]:
        """Renew some leases for so many seconds from now; return those that this process still held."""
        sql = (
            f"UPDATE leases SET until = {self._now} + CAST(? AS DOUBLE PRECISION) "
            f"WHERE holder = ? AND name IN ({_marks(names)}) RETURNING name"
        )
        rows = await self._database.write(lambda tx: tx.all(sql, seconds, self._holder, *names), calm=True)
        return {row["name"] for row in rows}

    async def give_up(self, name: str) -> None:
        """Release one lease, so that another process may take it at once."""
        await self._database.many("DELETE FROM leases WHERE name = ? AND holder = ?", [(name, self._holder)])

    async def leave(self) -> None:
        """Release every lease of this process."""
        await self._database.many("DELETE FROM leases WHERE holder = ?", [(self._holder,)])

    async def expire(self) -> int:
        """Delete leases that ended more than a day ago: processes come and go, and their names with them."""
        sql = f"DELETE FROM leases WHERE until < {self._now} - 86400.0"
        return await self._database.write(lambda tx: tx.run(sql))


def _marks(names: Collection[str]) -> str:
    return ", ".join("?" * len(names))
