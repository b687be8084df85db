"""Migrations: numbered SQL files that bring a database to the schema that this version of the code expects.

One migration is one transaction, together with the row that records it: a process killed in the middle leaves the
database as it was, and the next one to open it continues from there. The database keeps two processes from migrating
at once. A gateway of the previous version may be running meanwhile, so a migration only adds, and only what the
previous version does not mind.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from agent3 import failpoints
from agent3.errors import SetupError
from agent3.storage.database import Row, Transaction
from agent3.storage.syntax import SYNTAX, Dialect

__all__ = ["Migration", "apply_next", "first_missing", "load_migrations"]

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_RECORDS = (
    "CREATE TABLE IF NOT EXISTS schema_migrations"
    " (version BIGINT PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied DOUBLE PRECISION NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, its name, and its text, with the fragments of ``Syntax`` unfilled."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """The SHA-256 of the text with normalised line ends: a checkout on Windows is the same migration."""
        return hashlib.sha256(self.text.replace("\r\n", "\n").encode()).hexdigest()

    def statements(self, dialect: Dialect) -> Iterator[str]:
        """The statements for one database, one by one."""
        statement = ""
        for line in SYNTAX[dialect].fill(self.text).splitlines():
            if not statement.strip() and line.lstrip().startswith("--"):
                continue
            statement += f"{line}\n"
            if sqlite3.complete_statement(statement):
                yield statement.strip()
                statement = ""
        if statement.strip():
            raise SetupError(f"Migration {self.version:04} ({self.name}) ends inside a statement. Add the semicolon.")


@cache
def load_migrations() -> tuple[Migration, ...]:
    """The migrations of this version of the code, in order."""
    found = [
        Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8"))
        for entry in (files("agent3.storage") / "migrations").iterdir()
        if (match := _NAME.fullmatch(entry.name))
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))


async def apply_next(tx: Transaction, dialect: Dialect, known: Sequence[Migration], now: float) -> Migration | None:
    """Apply the first migration that the database lacks, and record it; None when it lacks none.

    Raises SetupError, leaving the database as it was, when its migrations are not those of this code.
    """
    await tx.run(_RECORDS)
    applied = await tx.all("SELECT version, name, checksum FROM schema_migrations ORDER BY version")
    migration = first_missing(known, applied)
    if migration is None:
        return None
    for statement in migration.statements(dialect):
        failpoints.hit("migration.statement")
        await tx.run(statement)
    failpoints.hit("migration.statement")
    await tx.run(
        "INSERT INTO schema_migrations (version, name, checksum, applied) VALUES (?, ?, ?, ?)",
        migration.version,
        migration.name,
        migration.checksum,
        now,
    )
    return migration


def first_missing(known: Sequence[Migration], applied: Sequence[Row]) -> Migration | None:
    """The first migration that a database with these records lacks; SetupError when one is unknown or was changed."""
    missing = {migration.version: migration for migration in known}
    for row in applied:
        migration = missing.pop(row["version"], None)
        if migration is None:
            raise SetupError(
                f"The database has migration {row['version']:04} ({row['name']}), which this version of "
                "agent3 does not know: it was made by a newer version. Install that version, or open "
                "another database."
            )
        if migration.checksum != row["checksum"]:
            raise SetupError(
                f"Migration {migration.version:04} ({migration.name}) differs from the one that made this "
                "database: its file was changed after it was applied. Restore the file, and put the change "
                "into a new migration."
            )
    return min(missing.values(), key=lambda migration: migration.version, default=None)
