"""Backups of the embedded database: one archive with a consistent copy of the file and the blobs that it refers to.

The copy is taken online, inside one read transaction, while others write. An archive is verified before it replaces
anything, the replacement is one rename, and the old database is kept. It knows files, not jobs or calls.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from agent3 import failpoints
from agent3._version import __version__
from agent3.errors import Conflict, Corrupt, NotFound, SetupError, StorageError
from agent3.storage.migration import first_missing, load_migrations
from agent3.storage.sqlite_writer import primary_code, translate_error

__all__ = ["Contents", "Restored", "back_up", "inspect", "restore"]

FORMAT = 1
_CHUNK = 1 << 20
_DATABASE = "agent3.db"
_MANIFEST = "manifest.json"
_MAX_MANIFEST = 64 << 20
_BLOB = re.compile(r"artifacts/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})", re.ASCII)


class Contents(Struct, frozen=True):
    """What a backup holds. ``missing`` names blobs that were gone or damaged when it was made."""

    at: float
    made_by: str
    schema: int
    sha256: str
    size: int
    blobs: int
    missing: tuple[str, ...] = ()
    format: int = FORMAT


class Restored(Struct, frozen=True):
    """What a restore did; ``aside`` is the path of the database that it replaced."""

    contents: Contents
    aside: str | None


def back_up(database: Path, blobs: Path | None, target: Path, *, force: bool = False) -> Contents:
    """Write an archive of the database and its blobs; compressed when its name ends with ``gz``. Blocks.

    Consistent at one moment, however many processes write meanwhile. The archive appears only when it is complete and
    its copy has passed SQLite's own check. NotFound without a database or a folder for the archive, Conflict where the
    target exists and may not be replaced, Corrupt when the database is damaged.
    """
    if not database.is_file():
        raise NotFound(f"The database {database} does not exist. Name it with --db.")
    if not target.parent.is_dir():
        raise NotFound(f"The folder {target.parent} does not exist. Create it, or choose another name.")
    if target.exists() and not force:
        raise Conflict(f"{target} already exists. Choose another name, or add --force to overwrite it.")
    with _temporary_folder(target.parent) as folder:
        copy = folder / _DATABASE
        schema = _copy_database(database, copy)
        archive = folder / "archive"
        contents = _pack(copy, schema, blobs, archive, compress=target.name.endswith("gz"))
        if inspect(archive) != contents:
            raise Corrupt(
                f"The archive for {target} could not be read back as it was written. Try again, on another disk."
            )
        _place(archive, target)
    return contents


def inspect(archive: Path) -> Contents:
    """What an archive holds, every byte of it verified. Corrupt, with the reason, when it is not intact."""
    with _open_archive(archive) as tar:
        try:
            manifest = tar.getmember(_MANIFEST)
            file = tar.extractfile(manifest) if manifest.isreg() and manifest.size <= _MAX_MANIFEST else None
            contents = msgspec.json.decode(file.read() if file is not None else b"", type=Contents)
            tar.getmember(_DATABASE)
        except (KeyError, msgspec.DecodeError):
            raise Corrupt(f"{archive} is not a backup of agent3, or is incomplete: it has no manifest.") from None
        if contents.format > FORMAT:
            raise SetupError(f"{archive} was made by agent3 {contents.made_by}, which is newer. Install that version.")
        seen, sha256 = 0, ""
        for member in tar:
            if member.name == _DATABASE:
                sha256 = _hash_member(tar, member)
            elif _BLOB.fullmatch(member.name):
                if _hash_member(tar, member) != member.name[-64:]:
                    raise Corrupt(f"{member.name} in the backup is damaged. Use another backup.")
                seen += 1
        if sha256 != contents.sha256:
            raise Corrupt(f"{archive}: its database is not the one that was backed up. Use another backup.")
        if seen != contents.blobs:
            raise Corrupt(f"{archive}: it contains {seen} blobs instead of {contents.blobs}. Use another backup.")
    return contents


def restore(archive: Path, database: Path, blobs: Path | None) -> Restored:
    """Replace the database by a backup, and add the backup's blobs to those that exist. Blocks.

    The whole archive is verified first. Until one rename at the end the old database stays in place; after it the new
    one is there, and the old one is kept beside it. Conflict while any other process has the database open.
    """
    contents = inspect(archive)
    with _temporary_folder(database.parent) as folder, _open_archive(archive) as tar:
        copy = folder / _DATABASE
        _extract(tar, tar.getmember(_DATABASE), copy)
        try:
            with closing(_connect(copy, "ro")) as connection:
                _check_integrity(connection, f"The database in {archive}")
                connection.row_factory = sqlite3.Row
                applied = "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
                # Refuses the database of a newer version.
                first_missing(load_migrations(), connection.execute(applied).fetchall())
        except sqlite3.Error as error:
            raise _name_path(error, archive) from error
        if blobs is not None:
            _unpack_blobs(tar, blobs)
        with _exclusive(database):
            aside = _keep_aside(database)
            failpoints.hit("backup.placed")
            _place(copy, database)
    return Restored(contents, None if aside is None else str(aside))


# --- making an archive ------------------------------------------------------------------------------------------------


def _copy_database(database: Path, copy: Path) -> int:
    """Copy the database as of one moment and check the copy; return the number of its newest migration."""
    try:
        with closing(_connect(database, "ro")) as source, closing(sqlite3.connect(copy)) as sink:
            source.backup(sink)  # all pages in one step: one read transaction, which no writer waits for
            sink.execute("PRAGMA journal_mode = DELETE").fetchone()  # so that it is one file
            return _check_integrity(sink, f"The database {database}")
    except sqlite3.Error as error:
        raise _name_path(error, database) from error
    finally:
        if copy.exists():
            copy.chmod(0o600)


def _check_integrity(connection: sqlite3.Connection, what: str) -> int:
    verdict = connection.execute("PRAGMA integrity_check(5)").fetchall()
    if verdict != [("ok",)]:
        raise Corrupt(f"{what} is damaged: {'; '.join(str(row[0]) for row in verdict)}. Restore an earlier backup.")
    row = connection.execute("SELECT MAX(version) FROM schema_migrations").fetchone()
    return int(row[0] or 0)


def _pack(copy: Path, schema: int, blobs: Path | None, archive: Path, *, compress: bool) -> Contents:
    with closing(_connect(copy, "ro")) as connection:
        rows = connection.execute("SELECT DISTINCT sha256 FROM artifacts WHERE sha256 IS NOT NULL ORDER BY 1")
        wanted = [row[0] for row in rows]
    missing: list[str] = []
    archive.touch(0o600)
    with tarfile.open(archive, "w:gz" if compress else "w") as tar:
        tar.add(copy, _DATABASE, filter=_without_owner)
        for sha256 in wanted:
            name = f"{sha256[:2]}/{sha256[2:4]}/{sha256}"
            try:
                data = (
                    (blobs / name).read_bytes() if blobs is not None and _BLOB.fullmatch(f"artifacts/{name}") else None
                )
            except FileNotFoundError:  # it may have expired since the copy was taken
                data = None
            if data is not None and hashlib.sha256(data).hexdigest() == sha256:
                _add_bytes(tar, f"artifacts/{name}", data)
            else:
                missing.append(sha256)
        contents = Contents(
            at=time.time(),
            made_by=__version__,
            schema=schema,
            sha256=_hash_file(copy),
            size=copy.stat().st_size,
            blobs=len(wanted) - len(missing),
            missing=tuple(missing),
        )
        _add_bytes(tar, _MANIFEST, msgspec.json.encode(contents))  # last: a truncated archive has no manifest
    return contents


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    tar.addfile(member, io.BytesIO(data))


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


# --- reading an archive -----------------------------------------------------------------------------------------------


@contextmanager
def _open_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    if not archive.is_file():
        raise NotFound(f"The backup {archive} does not exist.")
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:  # truncated, or damaged
        # tarfile lists one line for each format that it tried, which helps nobody.
        reason = str(error) if "\n" not in str(error) else "it is not an archive"
        raise Corrupt(f"{archive} is not an intact backup: {reason}. Use another one.") from error


def _read_pieces(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    file = tar.extractfile(member) if member.isreg() else None
    while file is not None and (piece := file.read(_CHUNK)):
        yield piece


def _hash_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    digest = hashlib.sha256()
    for piece in _read_pieces(tar, member):
        digest.update(piece)
    return digest.hexdigest()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write one member to the path that we choose, never to the one that the archive names."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        for piece in _read_pieces(tar, member):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _unpack_blobs(tar: tarfile.TarFile, blobs: Path) -> None:
    """Add the blobs that do not exist. They are named by their content, so existing ones are the same."""
    for member in tar:
        found = _BLOB.fullmatch(member.name)
        if found is None:
            continue
        path = blobs / found[1] / found[2] / found[3]
        if path.is_file() and _hash_file(path) == found[3]:
            continue
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _temporary_folder(path.parent) as folder:
            _extract(tar, member, folder / found[3])
            _place(folder / found[3], path)


# --- replacing the database -------------------------------------------------------------------------------------------


@contextmanager
def _exclusive(database: Path) -> Iterator[None]:
    """Lock the database so that no other process has it open and all of it is in one file; Conflict if one has.

    SQLite leaves WAL mode only for a connection that is the only one. A file too damaged to be opened cannot be locked;
    it cannot be in use either.
    """
    if not database.exists():
        yield
        return
    with closing(_connect(database, "rw")) as connection:
        try:
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise Conflict(
                    f"{database} is in use by a gateway or a command. Stop it, then restore again."
                ) from None
            if primary_code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise _name_path(error, database) from error
        yield


def _keep_aside(database: Path) -> Path | None:
    """Give the old database a second name, so that one rename can replace the first."""
    if not database.exists():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = database.with_name(f"{database.name}.before-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = database.with_name(f"{database.name}.before-{stamp}-{number}")
    try:
        os.link(database, aside)
    except OSError:  # a file system without hard links
        shutil.copy2(database, aside)
    for suffix in ("-wal", "-journal"):  # only a damaged database still has one, and needs it
        rest = database.with_name(database.name + suffix)
        if rest.exists() and rest.stat().st_size:
            rest.replace(aside.with_name(aside.name + suffix))
    return aside


def _place(file: Path, target: Path) -> None:
    """Rename a finished file to its final name, durably."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    file.replace(target)
    if os.name != "nt":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder for unfinished files, on the disk of their final place; deleted at the end."""
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=parent, prefix=".agent3-") as name:
            yield Path(name)
    except OSError as error:
        raise StorageError(
            f"{parent}: {error.strerror or error}. Free some space, or choose another folder."
        ) from error


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=2.0)


def _name_path(error: sqlite3.Error, path: Path) -> Exception:
    """Our error for one of SQLite's, naming the file."""
    ours = translate_error(error)
    return type(ours)(f"{path}: {ours.message}")
