"""What callers say of agents: one to five, with a word on why."""

from __future__ import annotations

from msgspec import Struct

from agent3.env import Env
from agent3.errors import ValidationError
from agent3.storage import Database

__all__ = ["Rating", "Reputation"]


class Rating(Struct, frozen=True):
    """How many callers rated, and their mean; each caller counts once, by its latest word."""

    count: int = 0
    mean: float | None = None


class Reputation:
    """The ratings, in the database."""

    def __init__(self, database: Database, env: Env):
        self._database = database
        self._env = env

    async def rate(self, agent: str, principal: str, rating: int, comment: str = "", call: str | None = None) -> None:
        """Record what a caller thinks."""
        if type(rating) is not int or not 1 <= rating <= 5:
            raise ValidationError(f"rating must be a whole number from 1 to 5, got {rating!r}")
        await self._database.many(
            "INSERT INTO feedback (id, at, agent, principal, call, rating, comment) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(self._env.id(), self._env.now(), agent, principal, call, rating, comment[:2000])],
        )

    async def of(self, agent: str) -> Rating:
        """The rating of one agent."""
        return (await self.all([agent]))[agent]

    async def all(self, agents: list[str]) -> dict[str, Rating]:
        """The ratings of some agents."""
        found = {agent: Rating() for agent in agents}
        if agents:
            marks = ", ".join("?" * len(agents))
            sql = (
                "SELECT agent, COUNT(*) AS voices, AVG(rating) AS mean FROM (SELECT agent, rating, "
                "ROW_NUMBER() OVER (PARTITION BY agent, principal ORDER BY at DESC, id DESC) AS age FROM feedback "
                f"WHERE agent IN ({marks})) AS latest WHERE age = 1 GROUP BY agent"
            )
            rows = await self._database.all(sql, *agents)
            found |= {row["agent"]: Rating(row["voices"], round(float(row["mean"]), 2)) for row in rows}
        return found
