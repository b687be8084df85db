"""Work of a command on the database of the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent3.identity.data_keys import open_stored
from agent3.settings import Settings
from agent3.storage import Database

__all__ = ["run_on_database"]

T = TypeVar("T")


def run_on_database(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    """Open the database, do the work, and close it; blocks until done. A gateway may be running."""

    async def run() -> T:
        database = (await open_stored(settings)).database
        try:
            return await work(database)
        finally:
            await database.aclose()

    return asyncio.run(run())
