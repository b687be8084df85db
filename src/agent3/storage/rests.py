"""Rests between small transactions of a long work in the background, so that callers have the disk most of the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent3.env import Env
from agent3.storage.database import Database, Transaction

__all__ = ["delete_in_pieces", "rest_after"]

_SHARE = 4.0
"""How much longer than the work took the rest is."""
_LONGEST = 0.25
_AT_ONCE = 50
"""Rows removed in one transaction: whoever writes then waits for it."""
_A_ROUND = 5_000_000
"""Rows removed in one round; what is left waits for the next."""


@asynccontextmanager
async def rest_after(env: Env) -> AsyncIterator[None]:
    """Rest after what is done within, for longer where that took longer."""
    began = env.monotonic()
    yield
    await asyncio.sleep(min(_LONGEST, _SHARE * max(0.0, env.monotonic() - began)))


async def delete_in_pieces(
    database: Database, env: Env, table: str, where: str, *given: object, key: str = "id"
) -> int:
    """Delete the rows of a table that ``where`` finds, some in each transaction, with rests; how many went.

    ``key`` are the columns of its primary key. An index has to find the rows: each piece looks for them anew.
    """
    sql = f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {where} LIMIT {_AT_ONCE})"

    async def work(tx: Transaction) -> int:
        return await tx.run(sql, *given)

    removed = 0
    while removed < _A_ROUND:
        async with rest_after(env):
            some = await database.write(work, frees=True)
        removed += some
        if some < _AT_ONCE:
            break
    return removed
