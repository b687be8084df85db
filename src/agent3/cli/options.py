"""What the commands share: the options that many of them take, and how to run one on the database they name.

It is loaded with every command, so it imports no server.
"""

from __future__ import annotations

import asyncio
import json as notation
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cyclopts import Parameter

from agent3.settings import Settings, load

if TYPE_CHECKING:
    from agent3.storage import Database

__all__ = ["Here", "Where", "print_json", "run_on_database"]

T = TypeVar("T")


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """Which gateway a command speaks to, and how it answers."""

    server: str | None = None
    """Address of a running gateway, such as http://127.0.0.1:8333. By default the one that runs here, if any; of
    several, the one on the database of the settings, else the one started last."""
    db: str | None = None
    "Use this database directly, without a running gateway: sqlite:///PATH or postgresql://…"
    config: Path | None = None
    "Settings file; agent3.toml in this folder by default."
    demo: bool = False
    "Use the demo agents in this process, without a running gateway."
    json: bool = False
    "Print JSON."


@Parameter(name="*")
@dataclass(frozen=True)
class Here:
    """Which database a command works on, and how it answers. A gateway may be running on it."""

    db: str | None = None
    "The database: sqlite:///PATH or postgresql://… By default that of the settings."
    config: Path | None = None
    "Settings file; agent3.toml in this folder by default."
    json: bool = False
    "Print JSON."

    def settings(self) -> Settings:
        """The settings that these options name."""
        return load(self.config, overrides={"storage": {"url": self.db}})


def run_on_database(where: Here, work: Callable[[Database], Awaitable[T]]) -> T:
    """Do something on the database of a command, and wait for it."""
    from agent3.server.build import database_url
    from agent3.storage import open_database

    settings = where.settings()

    async def run() -> T:
        database = await open_database(database_url(settings), max_bytes=settings.storage.max_bytes)
        try:
            return await work(database)
        finally:
            await database.aclose()

    return asyncio.run(run())


def print_json(body: Any) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(notation.dumps(body, ensure_ascii=False) + "\n")
