"""Nonces: each is good for one request, in every process and also after a restart.

They live in the database, because a dictionary of one process forgets at every restart and knows nothing of its
neighbours. What makes a nonce acceptable, and who sends it, is known to ``signed_requests``.
"""

from __future__ import annotations

import math
from collections import Counter

from agent3.env import REAL, Env
from agent3.errors import RateLimited
from agent3.storage import Database, Transaction

__all__ = ["Nonces"]

GRACE = 60.0
"""Seconds that a nonce is kept beyond its time: clocks of two machines differ, and a write may have to wait."""
SPAN = 360.0
"""Seconds over which a client's claims are counted, twice: about as long as their rows live."""
SWEEP_EVERY = 256
SWEEP_AT_MOST = 1_024

# The row in counters remembers the latest expiry that was ever swept. Were the clock set back after a sweep, a request
# whose nonce is forgotten would look fresh again: what expires before that line is refused instead.
_CLAIM = """
INSERT INTO nonces (id, client, expires)
SELECT CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS DOUBLE PRECISION)
WHERE NOT EXISTS (SELECT 1 FROM counters WHERE name = 'nonces' AND value >= CAST(? AS DOUBLE PRECISION))
ON CONFLICT DO NOTHING
"""
_SWEEP = """
DELETE FROM nonces WHERE id IN (SELECT id FROM nonces WHERE expires < ? ORDER BY expires LIMIT ?) RETURNING expires
"""
_REMEMBER = """
INSERT INTO counters (name, value) VALUES ('nonces', ?)
ON CONFLICT (name) DO UPDATE
SET value = CASE WHEN excluded.value > counters.value THEN excluded.value ELSE counters.value END
"""


class Nonces:
    """Claims nonces in a database that several processes may share. Safe from several tasks and loops at once.

    Rows that are over are removed by later claims, always more of them than came meanwhile. One client has at most
    ``most`` in about twelve minutes for each process, so that it cannot fill the disk with them.
    """

    def __init__(self, database: Database, *, most: int = 1_000_000, env: Env = REAL):
        self._database = database
        self._most = most
        self._env = env
        self._claims = 0
        self._since = env.monotonic()
        self._counts: Counter[str] = Counter()
        self._before: Counter[str] = Counter()

    async def claim(self, client: str, nonce: str, until: float) -> bool:
        """Whether the nonce is this client's for the first time; durable when it returns. ``until`` is its wall time.

        RateLimited when the client has too many alive; StorageError when it cannot be known whether it is new.
        """
        now = self._env.monotonic()
        if now - self._since >= SPAN:
            self._before = self._counts if now - self._since < 2 * SPAN else Counter()
            self._counts, self._since = Counter(), now
        if self._counts[client] + self._before[client] >= self._most:
            wait = max(self._since + SPAN - now, 1.0)
            raise RateLimited(f"Client {client} has signed too many requests. Wait {wait:.0f} s.", retry_after=wait)
        self._counts[client] += 1
        self._claims += 1
        sweeps = self._claims % SWEEP_EVERY == 0
        expires = until + GRACE

        async def work(tx: Transaction) -> bool:
            new = await tx.run(_CLAIM, f"{nonce}:{client}", client, expires, expires)
            if sweeps and (gone := await tx.all(_SWEEP, self._env.now(), SWEEP_AT_MOST)):
                await tx.run(_REMEMBER, math.ceil(max(row["expires"] for row in gone)))
            return new == 1

        return await self._database.write(work)
