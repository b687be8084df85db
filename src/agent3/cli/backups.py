"""``agent3 backup`` and ``agent3 restore``, for the embedded database. Only a restore needs the gateway stopped."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from agent3.cli.options import load_database_settings
from agent3.errors import SetupError
from agent3.protocols.functions.standalone import blob_folder
from agent3.settings import Settings, database_url
from agent3.storage import backup as archives
from agent3.storage.connect import sqlite_path, without_password
from agent3.terminal.options import DatabaseOptions
from agent3.terminal.output import print_json, print_note

__all__ = ["backup", "restore"]


def backup(
    file: Path,
    *,
    force: bool = False,
    options: DatabaseOptions = DatabaseOptions(),  # noqa: B008 - frozen
) -> None:
    """Back up the embedded database and its large results to one file. The gateway may keep running.

    Parameters
    ----------
    file:
        Archive to write; compressed if its name ends in gz.
    force:
        Overwrite an existing file.
    """
    database, blobs = _find_files(load_database_settings(options), file)
    made = archives.back_up(database, blobs, file, force=force)
    if options.json:
        print_json({"file": str(file), **msgspec.to_builtins(made)})
        return
    print(f"{file}: a database of {made.size:,} bytes and {made.blobs} large results, verified.")
    if made.missing:
        print_note(f"{len(made.missing)} large results are missing from the backup: their files are lost or damaged.")


def restore(file: Path, *, options: DatabaseOptions = DatabaseOptions()) -> None:  # noqa: B008 - frozen
    """Replace the embedded database with a backup. Stop the gateway first; the old database is kept.

    Parameters
    ----------
    file:
        Archive written by agent3 backup.
    """
    database, blobs = _find_files(load_database_settings(options), file)
    done = archives.restore(file, database, blobs)
    if options.json:
        print_json({"database": str(database), "aside": done.aside, **msgspec.to_builtins(done.contents)})
        return
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(done.contents.at))
    print(f"{database} was restored from the backup of {made}.")
    if done.aside:
        print(f"The previous database was moved to {done.aside}. Delete it when you no longer need it.")


def _find_files(settings: Settings, archive: Path) -> tuple[Path, Path | None]:
    """The file of the embedded database and the folder of its large results.

    SetupError for another kind of database, with the commands that back it up.
    """
    url = database_url(settings)
    if url.startswith(("postgresql://", "postgres://")):
        shown = without_password(url)
        raise SetupError(
            "This command works with the embedded database only. For PostgreSQL, back up with pg_dump "
            f"--format=custom --file={archive} {shown} and restore with pg_restore --clean --dbname={shown} "
            f"{archive}. Copy the folder storage.artifacts as well."
        )
    path = None if url == ":memory:" else sqlite_path(url)
    if path is None:
        raise SetupError("An in-memory database cannot be backed up or restored. Name a file with --db sqlite:///PATH.")
    return path, blob_folder(settings, url)
