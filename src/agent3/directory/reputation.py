"""Reputation: how agents did, and what callers say of them; one number for each, from 0 to 1, where 0.5 says nothing.

Two kinds of evidence. What callers met is learnt from the ledger as it is counted: how many calls went well, and how
long they took, the older the less. What they say are ratings from one to five. Both are counted by callers, not by
calls or ratings, and begin with some imaginary neutral ones: so neither one caller who calls a thousand times, nor an
agent that rates itself under a few names, moves much. What all of it comes to is kept with the agent: reading it costs
one look at a key, however many callers there are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from agent3.env import Env
from agent3.errors import AccessError, Corrupt, StorageError, ValidationError
from agent3.model import Agent, Principal, agent_id
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.storage import Database, Row, Transaction

__all__ = ["Rating", "Reputation", "check_rating"]

log = logger("directory")

_HALF_LIFE = 14 * 86_400.0
"""Seconds after which a call counts half."""
_NEUTRAL = 5.0
"""Imaginary callers and raters who found an agent neither good nor bad."""
_ENOUGH = 5.0
"""Calls of one caller after which it counts half of what it can count at most."""
_SLOW = 2.0
"""Seconds of a call that are neither fast nor slow."""
_CALLERS = 1_000
"""Callers of an agent that are looked at, the latest."""
_SHARES = (0.45, 0.45, 0.10)
"""What success, ratings and speed make of the whole."""
_PATIENCE = 2.0
"""Seconds for which reading from the database may take; then what was known does."""
_FRESH = 5.0
_KEPT = 50_000
_TIMES = 1_000_003
"""A rating is kept twice, the second time so often: so the database itself can compare them while it counts."""
_INSERT = (
    "INSERT INTO feedback (id, at, agent, principal, call, rating, comment, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_RATINGS = f"""
SELECT COALESCE(SUM(good), 0) AS voices, AVG(CASE WHEN good = 1 THEN rating END) AS mean,
    COUNT(*) - COALESCE(SUM(good), 0) AS damaged
FROM (
    SELECT rating, CASE WHEN checksum IS NULL OR checksum = rating * {_TIMES} THEN 1 ELSE 0 END AS good,
        ROW_NUMBER() OVER (PARTITION BY principal ORDER BY at DESC, id DESC) AS age
    FROM (SELECT * FROM feedback WHERE agent = ? ORDER BY at DESC LIMIT 10000) AS recent
) AS latest
WHERE age = 1
"""
_SET_RATING = """
INSERT INTO reputation (agent, voices, stars, callers, success, seconds, at) VALUES (?, ?, ?, 0, 0.5, 0.0, ?)
ON CONFLICT (agent) DO UPDATE SET voices = excluded.voices, stars = excluded.stars
"""
_SET_SUCCESS = """
INSERT INTO reputation (agent, voices, stars, callers, success, seconds, at) VALUES (?, 0, NULL, ?, ?, ?, ?)
ON CONFLICT (agent) DO UPDATE SET callers = excluded.callers, success = excluded.success, seconds = excluded.seconds,
    at = excluded.at
"""
_SET_USE = """
INSERT INTO agent_use (agent, principal, good, bad, seconds, at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (agent, principal) DO UPDATE SET good = excluded.good, bad = excluded.bad, seconds = excluded.seconds,
    at = excluded.at
"""
# What was not counted yet is among the last rows of the caller.
_RECENT_CALL = """
SELECT id FROM (
    SELECT id, COALESCE(served_by, agent) AS agent, attempts, user_agent FROM calls WHERE principal = ?
    ORDER BY at DESC LIMIT 10000
) AS recent WHERE agent = ? AND attempts > 0 AND (user_agent IS NULL OR user_agent <> agent) LIMIT 1
"""


class Rating(Struct, frozen=True):
    """How many callers rated, and their mean; each caller counts once, by its latest word."""

    count: int = 0
    mean: float | None = None


class Use(Protocol):
    """What one caller met at one agent in some time."""

    @property
    def agent(self) -> str: ...
    @property
    def principal(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def good(self) -> int: ...
    @property
    def bad(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class _Known(Struct, frozen=True):
    looked: float
    rating: Rating = Rating()
    score: float = 0.5


class Reputation:
    """The reputation of all agents, in the database."""

    def __init__(self, database: Database, env: Env, metrics: Metrics = METRICS):
        self._database = database
        self._env = env
        self._metrics = metrics
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def may_rate(self, agent: Agent, principal: Principal) -> str | None:
        """The call that lets a caller rate, if it is known; AccessError for one that never called, or is the agent."""
        if principal.id in (agent.id, agent.provider, agent_id(agent.provider or "", default="")):
            raise AccessError(f"{principal.id} cannot rate {agent.id!r}, which is its own agent.")
        call = await self._database.one(_RECENT_CALL, principal.id, agent.id)
        if call is not None:
            return str(call["id"])
        met = await self._database.one(
            "SELECT good FROM agent_use WHERE agent = ? AND principal = ?", agent.id, principal.id
        )
        if met is None:
            raise AccessError(f"Only a caller that has called {agent.id!r} can rate it. Call it first.")
        return None

    async def rate(self, agent: str, principal: str, rating: int, comment: str = "", call: str | None = None) -> None:
        """Record what a caller thinks. Its latest word counts, and is the only one kept."""
        check_rating(rating)
        row = (self._env.id(), self._env.now(), agent, principal, call, rating, comment[:2000], rating * _TIMES)

        async def work(tx: Transaction) -> None:
            await tx.run("DELETE FROM feedback WHERE agent = ? AND principal = ?", agent, principal)
            await tx.run(_INSERT, *row)
            found = await tx.one(_RATINGS, agent)
            assert found is not None
            mean = None if found["mean"] is None else float(found["mean"])
            await tx.run(_SET_RATING, agent, int(found["voices"]), mean, row[1])

        await self._database.write(work)
        self._known.pop(agent, None)

    async def of(self, agent: str) -> Rating:
        """The rating of one agent, counted anew. What is damaged does not count, and is told in the log."""
        row = await self._database.one(_RATINGS, agent)
        assert row is not None
        if damaged := int(row["damaged"]):
            log.error("ignoring %d damaged ratings of agent %s", damaged, agent)
            self._metrics.events_dropped.inc(("undecodable row",), damaged)
        return Rating(int(row["voices"]), round(float(row["mean"]), 2)) if row["voices"] else Rating()

    async def all(self, agents: Sequence[str]) -> dict[str, Rating]:
        """The ratings of some agents, with how many callers gave them, as they were counted when the last one came."""
        return {agent: known.rating for agent, known in (await self._look(agents)).items()}

    async def weights(self, agents: Sequence[str]) -> dict[str, float]:
        """The scores of some agents, from 0 to 1; 0.5 for those of which nothing is known.

        Kept in memory for five seconds; of the others, the database is asked once, by their keys.
        """
        return {agent: known.score for agent, known in (await self._look(agents)).items()}

    async def learn(self, tx: Transaction, uses: Sequence[Use]) -> None:
        """Take in what callers met, within the transaction that counts it."""
        for use in uses:
            row = await tx.one(
                "SELECT good, bad, seconds, at FROM agent_use WHERE agent = ? AND principal = ?",
                use.agent,
                use.principal,
            )
            good, bad, seconds, at = _decay(row, use.at) if row is not None else (0.0, 0.0, 0.0, use.at)
            new = (good + use.good, bad + use.bad, seconds + use.seconds, max(at, use.at))
            await tx.run(_SET_USE, use.agent, use.principal, *new)
        for agent in dict.fromkeys(use.agent for use in uses):
            rows = await tx.all(
                f"SELECT good, bad, seconds, at FROM agent_use WHERE agent = ? ORDER BY at DESC LIMIT {_CALLERS}", agent
            )
            weight = success = time = 0.0
            for row in rows:
                good, bad, seconds, _ = _decay(row, rows[0]["at"])
                calls = good + bad
                if calls > 0:
                    counts = calls / (calls + _ENOUGH)
                    weight += counts
                    success += counts * good / calls
                    time += counts * seconds / calls
            mean = (success + 0.5 * _NEUTRAL) / (weight + _NEUTRAL)
            # The time as it would be with some calls that are neither fast nor slow.
            spent = (time + _SLOW * _NEUTRAL) / (weight + _NEUTRAL)
            await tx.run(_SET_SUCCESS, agent, len(rows), mean, spent, rows[0]["at"] if rows else 0.0)

    async def _look(self, agents: Sequence[str]) -> Mapping[str, _Known]:
        now = self._env.monotonic()
        found: dict[str, _Known] = {}
        missing = []
        for agent in agents:
            known = self._known.get(agent)
            if known is None or now - known.looked > _FRESH:
                missing.append(agent)
            else:
                found[agent] = known
        if missing:
            marks = ", ".join("?" * len(missing))
            try:
                async with asyncio.timeout(_PATIENCE):
                    rows = await self._database.all(f"SELECT * FROM reputation WHERE agent IN ({marks})", *missing)
            except Corrupt:
                raise
            except (StorageError, TimeoutError):  # searching goes on by what was known, or by nothing
                self._metrics.events_dropped.inc(("reputation not read",))
                for agent in missing:
                    found[agent] = self._known.get(agent) or _read(None, now)
                return found
            read = {row["agent"]: row for row in rows}
            for agent in missing:
                found[agent] = self._known[agent] = _read(read.get(agent), now)
                self._known.move_to_end(agent)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found


def check_rating(rating: object) -> None:
    """Raise unless it is a rating."""
    if type(rating) is not int or not 1 <= rating <= 5:
        raise ValidationError(f"rating must be a whole number from 1 to 5, got {rating!r}")


def _read(row: Row | None, now: float) -> _Known:
    if row is None:
        return _Known(now)
    voices, stars = int(row["voices"]), row["stars"]
    rating = Rating(voices, round(float(stars), 2)) if voices and stars is not None else Rating()
    said = 0.5 if stars is None else (voices * (float(stars) - 1) / 4 + 0.5 * _NEUTRAL) / (voices + _NEUTRAL)
    fast = 1.0 / (1.0 + row["seconds"] / _SLOW) if row["callers"] else 0.5
    success, ratings, speed = _SHARES
    return _Known(now, rating, round(success * row["success"] + ratings * said + speed * fast, 6))


def _decay(row: Row, now: float) -> tuple[float, float, float, float]:
    left = 0.5 ** (max(now - row["at"], 0.0) / _HALF_LIFE)
    return row["good"] * left, row["bad"] * left, row["seconds"] * left, row["at"]
