"""The id of a gateway, and the key of its scopes: random, made once, the same for every process on its database."""

from __future__ import annotations

from agent3.env import Env
from agent3.storage import Database, Transaction

__all__ = ["gateway_id", "scope_key"]

_NAME = "gateway id"
_KEY_NAMES = ("scope key 1", "scope key 2", "scope key 3")
"""A counter holds 63 bits; the key is made of three."""


async def gateway_id(database: Database, env: Env) -> str:
    """The id of the gateway on this database, made where there is none."""
    return f"{await _number(database, env, _NAME):x}"


async def scope_key(database: Database, env: Env) -> bytes:
    """The key by which ids are derived from callers, made where there is none. It never leaves the gateway."""
    return b"".join([(await _number(database, env, name)).to_bytes(8) for name in _KEY_NAMES])


async def _number(database: Database, env: Env, name: str) -> int:
    new = int.from_bytes(env.random_bytes(8)) >> 1

    async def work(tx: Transaction) -> int:
        # Of two processes that make it at once one wins, and both have its number.
        await tx.run("INSERT INTO counters (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", name, new)
        row = await tx.one("SELECT value FROM counters WHERE name = ?", name)
        assert row is not None
        return int(row["value"])

    row = await database.one("SELECT value FROM counters WHERE name = ?", name)
    return int(row["value"]) if row is not None else await database.write(work)
