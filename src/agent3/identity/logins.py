"""Logins: what single users reach an agent with, in place of what it was added with.

A login names a credential by reference, as a route does: a sign-in (``oauth:ID``) or a sealed secret (``kept:NAME``).
It is used only where its agent was when the user logged in, so that it follows no agent to another address.
"""

from __future__ import annotations

from msgspec.structs import replace

from agent3.env import REAL, Env
from agent3.model import Route, place_of
from agent3.storage import Database, Transaction
from agent3.storage.audit import ACTOR, record_change

__all__ = ["Logins"]


class Logins:
    """The logins of one database. A change counts for the next call, in every gateway on it."""

    def __init__(self, database: Database, env: Env = REAL):
        self._database = database
        self._env = env

    async def own_route(self, principal: str, agent: str, route: Route) -> Route:
        """The route with what this user logged in with; as it is where they did not, or where it leads elsewhere."""
        row = await self._database.one(
            "SELECT reference, place FROM logins WHERE principal = ? AND agent = ?", principal, agent
        )
        if row is None or row["place"] != place_of(route.address):
            return route
        return replace(route, credential=row["reference"])

    async def keep(self, principal: str, agent: str, route: Route, reference: str) -> str | None:
        """Let a user reach an agent with a credential; the reference of what they used before."""
        who, now = ACTOR.get(), self._env.now()

        async def work(tx: Transaction) -> str | None:
            before = await _take(tx, principal, agent)
            insert = "INSERT INTO logins (principal, agent, place, reference, created) VALUES (?, ?, ?, ?, ?)"
            await tx.run(insert, principal, agent, place_of(route.address), reference, now)
            await record_change(tx, self._env, "login", agent, None, who)
            return before

        return await self._database.write(work)

    async def forget(self, principal: str, agent: str) -> str | None:
        """Forget a login; the reference of its credential, None where there was none."""
        who = ACTOR.get()

        async def work(tx: Transaction) -> str | None:
            before = await _take(tx, principal, agent)
            if before is not None:
                await record_change(tx, self._env, "logout", agent, None, who)
            return before

        return await self._database.write(work)

    async def of_agent(self, agent: str) -> list[str]:
        """Who is logged in to an agent."""
        rows = await self._database.all("SELECT principal FROM logins WHERE agent = ? ORDER BY principal", agent)
        return [row["principal"] for row in rows]


async def _take(tx: Transaction, principal: str, agent: str) -> str | None:
    row = await tx.one("DELETE FROM logins WHERE principal = ? AND agent = ? RETURNING reference", principal, agent)
    return None if row is None else str(row["reference"])
