"""The id of a gateway: random, made once, and the same for every process on its database."""

from __future__ import annotations

from agent3.env import Env
from agent3.storage import Database, Transaction

__all__ = ["gateway_id"]

_NAME = "gateway id"


async def gateway_id(database: Database, env: Env) -> str:
    """The id of the gateway on this database, made where there is none."""
    new = int.from_bytes(env.random_bytes(8)) >> 1

    async def work(tx: Transaction) -> str:
        # Of two processes that make it at once one wins, and both have its id.
        await tx.run("INSERT INTO counters (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", _NAME, new)
        row = await tx.one("SELECT value FROM counters WHERE name = ?", _NAME)
        assert row is not None
        return f"{row['value']:x}"

    row = await database.one("SELECT value FROM counters WHERE name = ?", _NAME)
    return f"{row['value']:x}" if row is not None else await database.write(work)
