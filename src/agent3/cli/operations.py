"""What the command line does on the database of the settings: dead letters, backup, restore. A gateway may be running.

Each function stands for one command and blocks until it is done; only restoring needs the database for itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agent3.env import REAL
from agent3.errors import Agent3Error, SetupError, ValidationError
from agent3.gateway.dead_letters import Letters, Replayed, Wanted, replay
from agent3.gateway.registration import Added
from agent3.identity.sign_ins import SignInWish
from agent3.protocols.functions.standalone import blob_folder
from agent3.server.build import Server, build, database_url
from agent3.server.demo import agents
from agent3.settings import Settings
from agent3.storage import Database, open_database
from agent3.storage import backup as archives
from agent3.storage.connect import sqlite_path, without_password

__all__ = [
    "add_here",
    "back_up_here",
    "drop_letters",
    "letter",
    "list_letters",
    "moment",
    "remove_here",
    "replay_letters",
    "restore_here",
]

T = TypeVar("T")
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def add_here(
    settings: Settings, what: str, name: str | None, credential: str | None, sign_in: SignInWish | None
) -> list[Added]:
    """Add everything that ``what`` holds; a running gateway sees it at once."""

    async def work() -> list[Added]:
        async with build(settings, take_over=False) as server:
            return await server.registration.add_all(what, name, credential, sign_in=sign_in)

    return asyncio.run(work())


def remove_here(settings: Settings, agent: str) -> None:
    """Remove an agent that was added."""

    async def work() -> None:
        async with build(settings, take_over=False) as server:
            await server.registration.remove(agent)

    asyncio.run(work())


def list_letters(settings: Settings, wanted: Wanted) -> list[dict[str, Any]]:
    """Dead letters, the latest first."""
    return _on(settings, lambda database: Letters(database, REAL).find(wanted))


def letter(settings: Settings, name: str) -> dict[str, Any]:
    """Everything known of one dead letter."""
    return _on(settings, lambda database: Letters(database, REAL).show(name))


def drop_letters(settings: Settings, names: Sequence[str]) -> int:
    """Delete dead letters; how many there were."""
    return _on(settings, lambda database: Letters(database, REAL).drop(names))


def replay_letters(
    settings: Settings, names: Sequence[str], *, again: bool, twice: bool, demo: bool
) -> list[dict[str, Any]]:
    """Send dead letters again, one after another, from this process; what became of each.

    One that cannot be sent is told as refused, and the others are sent all the same.
    """

    async def work() -> list[Replayed]:
        async with build(settings, agents() if demo else (), take_over=False) as server:
            return [await one_of(server, one) for one in dict.fromkeys(names)]

    async def one_of(server: Server, name: str) -> Replayed:
        try:
            return await replay(server.gateway, name, again=again, twice=twice)
        except Agent3Error as wrong:
            return Replayed(name, "refused", code=wrong.code, message=wrong.message)

    return [_without_nothing(one) for one in asyncio.run(work())]


def back_up_here(settings: Settings, target: Path, *, force: bool) -> dict[str, Any]:
    """Back the embedded database up, with its large results."""
    url = database_url(settings)
    made = archives.back_up(_file(url, target), blob_folder(settings, url), target, force=force)
    return {"file": str(target), **msgspec.to_builtins(made)}


def restore_here(settings: Settings, archive: Path) -> dict[str, Any]:
    """Put a backup in the place of the embedded database."""
    url = database_url(settings)
    file = _file(url, archive)
    done = archives.restore(archive, file, blob_folder(settings, url))
    return {"database": str(file), "aside": done.aside, **msgspec.to_builtins(done.contents)}


def moment(text: str, now: float) -> float:
    """A moment as people write it: ``2h`` ago (s, m, h, d), or a date, with a time where it matters.

    Without an offset it is local time, as the lists show it.
    """
    if ago := _AGO.fullmatch(text):
        return now - float(ago[1]) * _SECONDS[ago[2]]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationError(f"--since {text!r} is no time. Write 2h, 7d, or a date such as 2026-01-31.") from None
    return found.timestamp()


def _file(url: str, archive: Path) -> Path:
    if url.startswith(("postgresql://", "postgres://")):
        shown = without_password(url)
        raise SetupError(
            "This command is for the embedded database. PostgreSQL has its own: pg_dump --format=custom"
            f" --file={archive} {shown} to back up, pg_restore --clean --dbname={shown} {archive} to restore."
            " Copy the folder of storage.artifacts beside it."
        )
    path = None if url == ":memory:" else sqlite_path(url)
    if path is None:
        raise SetupError("A database in memory is gone with its process. Name a file with --db sqlite:///PATH.")
    return path


def _on(settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    async def run() -> T:
        database = await open_database(database_url(settings), max_bytes=settings.storage.max_bytes)
        try:
            return await work(database)
        finally:
            await database.aclose()

    return asyncio.run(run())


def _without_nothing(one: Replayed) -> dict[str, Any]:
    return {key: value for key, value in msgspec.to_builtins(one).items() if value is not None}
