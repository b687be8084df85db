"""Leases: a duty that several processes could do is done by the one that holds its lease, by the database's clock.

A lease keeps two from beginning at once; it does not stop one that slept past its end. What a duty writes must bear
being written twice, or carry a fencing token of its own, as jobs and messages do.
"""

from __future__ import annotations

from collections.abc import Collection

from agent3.storage.database import Database, Dialect, Transaction

__all__ = ["NOW", "Leases"]

NOW: dict[Dialect, str] = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgres": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
}
"""The database's own clock, in seconds since 1970: those of the machines that use it may differ and jump."""

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
    """The duties of one process. Safe from several tasks and loops at once."""

    def __init__(self, database: Database, holder: str):
        self._database = database
        self._holder = holder
        self._now = NOW[database.dialect]
        self._take = _TAKE.replace("{now}", self._now)
        self._held = f"SELECT name FROM leases WHERE name = ? AND until >= {self._now}"

    async def take(self, name: str, seconds: float) -> bool:
        """Whether the duty is this process's for so many seconds from now; taken again, it is prolonged."""

        async def work(tx: Transaction) -> bool:
            return await tx.one(self._take, name, self._holder, seconds) is not None

        return await self._database.write(work)

    async def held(self, name: str) -> bool:
        """Whether anybody holds the lease now."""
        return await self._database.one(self._held, name) is not None

    async def held_of(self, names: Collection[str]) -> set[str]:
        """Those of some leases that anybody holds now."""
        rows = await self._database.all(
            f"SELECT name FROM leases WHERE name IN ({_marks(names)}) AND until >= {self._now}", *names
        )
        return {row["name"] for row in rows}

    async def prolong(self, names: Collection[str], seconds: float) -> set[str]:
        """Hold some leases for so many seconds from now; those of them that still were this process's."""
        prolonged = (
            f"UPDATE leases SET until = {self._now} + CAST(? AS DOUBLE PRECISION) "
            f"WHERE holder = ? AND name IN ({_marks(names)}) RETURNING name"
        )
        rows = await self._database.write(lambda tx: tx.all(prolonged, seconds, self._holder, *names), calm=True)
        return {row["name"] for row in rows}

    async def give_up(self, name: str) -> None:
        """Let the next have one lease at once."""
        await self._database.many("DELETE FROM leases WHERE name = ? AND holder = ?", [(name, self._holder)])

    async def expire(self) -> int:
        """Remove leases that nobody has held for a day: processes come and go, and so do their names."""
        old = f"DELETE FROM leases WHERE until < {self._now} - 86400.0"
        return await self._database.write(lambda tx: tx.run(old))

    async def leave(self) -> None:
        """Give up every duty, so that the next may take it at once."""
        await self._database.many("DELETE FROM leases WHERE holder = ?", [(self._holder,)])


def _marks(names: Collection[str]) -> str:
    return ", ".join("?" * len(names))
