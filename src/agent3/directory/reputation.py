"""What callers say of agents: one to five, with a word on why."""

from __future__ import annotations

from msgspec import Struct

from agent3.env import Env
from agent3.errors import ValidationError
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.storage import Database, Transaction

__all__ = ["Rating", "Reputation"]

log = logger("directory")

_TIMES = 1_000_003
"""A rating is kept twice, the second time so often: so the database itself can compare them while it counts."""
_INSERT = (
    "INSERT INTO feedback (id, at, agent, principal, call, rating, comment, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_RATINGS = f"""
SELECT agent, SUM(good) AS voices, AVG(CASE WHEN good = 1 THEN rating END) AS mean, COUNT(*) - SUM(good) AS damaged
FROM (
    SELECT agent, rating, CASE WHEN checksum IS NULL OR checksum = rating * {_TIMES} THEN 1 ELSE 0 END AS good,
        ROW_NUMBER() OVER (PARTITION BY agent, principal ORDER BY at DESC, id DESC) AS age
    FROM feedback WHERE agent IN ({{agents}})
) AS latest
WHERE age = 1 GROUP BY agent
"""


class Rating(Struct, frozen=True):
    """How many callers rated, and their mean; each caller counts once, by its latest word."""

    count: int = 0
    mean: float | None = None


class Reputation:
    """The ratings, in the database."""

    def __init__(self, database: Database, env: Env, metrics: Metrics = METRICS):
        self._database = database
        self._env = env
        self._metrics = metrics

    async def rate(self, agent: str, principal: str, rating: int, comment: str = "", call: str | None = None) -> None:
        """Record what a caller thinks. Its latest word counts, and is the only one kept."""
        if type(rating) is not int or not 1 <= rating <= 5:
            raise ValidationError(f"rating must be a whole number from 1 to 5, got {rating!r}")
        row = (self._env.id(), self._env.now(), agent, principal, call, rating, comment[:2000], rating * _TIMES)

        async def work(tx: Transaction) -> None:
            await tx.run(_INSERT, *row)
            await tx.run("DELETE FROM feedback WHERE agent = ? AND principal = ? AND id <> ?", agent, principal, row[0])

        await self._database.write(work)

    async def of(self, agent: str) -> Rating:
        """The rating of one agent."""
        return (await self.all([agent]))[agent]

    async def all(self, agents: list[str]) -> dict[str, Rating]:
        """The ratings of some agents. What is damaged does not count, and is told in the log."""
        found = {agent: Rating() for agent in agents}
        if agents:
            rows = await self._database.all(_RATINGS.replace("{agents}", ", ".join("?" * len(agents))), *agents)
            found |= {
                row["agent"]: Rating(row["voices"], round(float(row["mean"]), 2)) for row in rows if row["voices"]
            }
            for row in rows:
                if damaged := row["damaged"]:
                    log.error("%d ratings of agent %s are damaged and do not count", damaged, row["agent"])
                    self._metrics.events_dropped.inc(("undecodable row",), damaged)
        return found
