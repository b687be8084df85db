"""Open a database, tell a story on it, close it: what every storage test does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent3.storage import Database, Transaction, open_database

__all__ = ["PUT", "put", "using"]

T = TypeVar("T")
PUT = "INSERT INTO counters (name, value) VALUES (?, ?)"


def put(name: str, value: int) -> Callable[[Transaction], Awaitable[int]]:
    """The smallest work: one row."""
    return lambda tx: tx.run(PUT, name, value)


def using(url: str, story: Callable[[Database], Awaitable[T]], *, max_bytes: int | None = None) -> T:
    """Run ``story`` on the open database in a loop of its own, within 100 seconds."""

    async def run() -> T:
        async with asyncio.timeout(100):
            database = await open_database(url, max_bytes=max_bytes)
            try:
                return await story(database)
            finally:
                await database.aclose()

    return asyncio.run(run())
