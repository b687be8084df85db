"""From a database URL to an open database."""

from __future__ import annotations

from pathlib import Path

from agent3.env import REAL, Env
from agent3.errors import MissingExtra, SetupError
from agent3.storage.database import Database
from agent3.storage.sqlite import SqliteDatabase

__all__ = ["open_database", "sqlite_path", "without_password"]

_MEMORY = ("", "/", "/:memory:")


async def open_database(url: str, *, env: Env = REAL, max_bytes: int | None = None) -> Database:
    """Open the database at ``url`` and migrate it to the schema of this version.

    ``sqlite:///PATH`` (``sqlite:////PATH`` for an absolute one), ``sqlite://`` or ``:memory:`` for one that lives in
    memory, or ``postgresql://USER@HOST/NAME``. ``max_bytes`` bounds a SQLite file; the default is 4 GiB. Several
    processes may open one database at the same time. Raises SetupError for an invalid URL or a database of a newer
    version, MissingExtra if the driver is not installed.
    """
    if url == ":memory:":
        return await SqliteDatabase.open(None, "sqlite://", env=env, max_bytes=max_bytes)
    if url.startswith("sqlite://"):
        path = sqlite_path(url)
        return await SqliteDatabase.open(path, url if path else "sqlite://", env=env, max_bytes=max_bytes)
    if url.startswith(("postgresql://", "postgres://")):
        try:
            from agent3.storage.postgres import PostgresDatabase  # the driver is an extra
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise MissingExtra("PostgreSQL", "postgres") from error
        return await PostgresDatabase.open(url, without_password(url), env=env)
    raise SetupError(
        f"{without_password(url)!r} is not a database URL. Use sqlite:///PATH or postgresql://USER@HOST/NAME."
    )


def without_password(url: str) -> str:
    """The URL without its password, for display."""
    head, mark, rest = url.partition("://")
    place, question, query = rest.partition("?")
    account, at, host = place.rpartition("@")
    shown = "&".join(pair for pair in query.split("&") if "password" not in pair.partition("=")[0].lower())
    return f"{head}{mark}{account.partition(':')[0]}{at}{host}{question if shown else ''}{shown}"


def sqlite_path(url: str) -> Path | None:
    """The file of a ``sqlite://`` URL; None for a database in memory."""
    rest = url.removeprefix("sqlite://")
    if rest in _MEMORY:
        return None
    if not rest.startswith("/"):
        raise SetupError(f"{url!r} names a host, but SQLite has none. Use sqlite:///PATH, with three slashes.")
    return Path(rest[1:]).expanduser().absolute()
