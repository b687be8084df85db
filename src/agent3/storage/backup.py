"""Backups of the embedded database: one archive with a consistent copy of the file and the blobs that it refers to.

The copy is taken online, inside one read transaction, while others write. What comes back is verified before it
replaces anything, the replacement is one rename, and what was there is kept aside. It knows files, not jobs or calls.
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
from agent3.errors import Agent3Error, Conflict, Corrupt, NotFound, SetupError, StorageError
from agent3.storage.migration import first_missing, shipped
from agent3.storage.sqlite_writer import primary, translated

__all__ = ["Contents", "Restored", "back_up", "inspect", "restore"]

FORMAT = 1
_CHUNK = 1 << 20
_DATABASE = "agent3.db"
_MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 64 << 20
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
    """What a restore did; ``aside`` is where the database lies that was there before."""

    contents: Contents
    aside: str | None


def back_up(database: Path, blobs: Path | None, target: Path, *, force: bool = False) -> Contents:
    """Write an archive of the database and its blobs; compressed when its name ends with ``gz``. Blocks.

    Consistent at one moment, whoever writes meanwhile. The archive appears only when it is complete and its copy has
    passed SQLite's own check. NotFound without a database or a folder for it, Conflict where the target exists and may
    not be replaced, Corrupt when the database is damaged.
    """
    if not database.is_file():
        raise NotFound(f"There is no database {database}. Give its address with --db.")
    if not target.parent.is_dir():
        raise NotFound(f"There is no folder {target.parent} for the backup. Make it, or give another name.")
    if target.exists() and not force:
        raise Conflict(f"{target} exists already. Give another name, or --force to replace it.")
    with _workshop(target.parent) as folder:
        copy = folder / _DATABASE
        schema = _copied(database, copy)
        archive = folder / "archive"
        contents = _packed(copy, schema, blobs, archive, "gz" if target.name.endswith("gz") else "")
        if inspect(archive) != contents:
            raise Corrupt(f"The archive for {target} does not read back as it was written. Try again, on another disk.")
        _place(archive, target)
    return contents


def inspect(archive: Path) -> Contents:
    """What an archive holds, every byte of it verified. Corrupt, and why, when it is not whole."""
    with _opened(archive) as tar:
        contents = _contents(tar, archive)
        seen, digest = 0, ""
        for member in tar:
            if member.name == _DATABASE:
                digest = _digest_of(tar, member, None)
            elif _BLOB.fullmatch(member.name):
                _digest_of(tar, member, member.name[-64:])
                seen += 1
        if digest != contents.sha256:
            raise Corrupt(f"{archive}: its database is not the one that was backed up. Take another backup.")
        if seen != contents.blobs:
            raise Corrupt(f"{archive}: it holds {seen} blobs and should hold {contents.blobs}. Take another backup.")
    return contents


def restore(archive: Path, database: Path, blobs: Path | None) -> Restored:
    """Put a backup in the place of the database, and its blobs beside those that are there. Blocks.

    The archive is verified first, all of it. Until one rename at the end the old database is there, whole; after it
    the new one is, and the old one lies aside. Conflict while any other process has the database open.
    """
    contents = inspect(archive)
    with _workshop(database.parent) as folder, _opened(archive) as tar:
        copy = folder / _DATABASE
        _extract(tar, tar.getmember(_DATABASE), copy)
        _verified(copy, archive)
        _unpack_blobs(tar, blobs)
        with _alone(database):
            aside = _set_aside(database)
            failpoints.hit("backup.placed")
            _place(copy, database)
    return Restored(contents, None if aside is None else str(aside))


# Making one


def _copied(database: Path, copy: Path) -> int:
    """A copy as of one moment, checked; the number of its newest migration."""
    try:
        with closing(_connect(database, "ro")) as source, closing(sqlite3.connect(copy)) as sink:
            source.backup(sink)  # all pages in one step: one read transaction, which no writer waits for
            sink.execute("PRAGMA journal_mode = DELETE").fetchone()  # so that it is one file
            return _checked(sink, f"The database {database}")
    except sqlite3.Error as error:
        raise _ours(error, database) from error
    finally:
        if copy.exists():
            copy.chmod(0o600)


def _checked(connection: sqlite3.Connection, what: str) -> int:
    verdict = connection.execute("PRAGMA integrity_check(5)").fetchall()
    if verdict != [("ok",)]:
        raise Corrupt(f"{what} is damaged: {'; '.join(str(row[0]) for row in verdict)}. Restore an earlier backup.")
    row = connection.execute("SELECT MAX(version) FROM schema_migrations").fetchone()
    return int(row[0] or 0)


def _packed(copy: Path, schema: int, blobs: Path | None, archive: Path, how: str) -> Contents:
    missing: list[str] = []
    count = 0
    archive.touch(0o600)
    with tarfile.open(archive, f"w:{how}") as tar:  # type: ignore[call-overload] # the mode is put together
        tar.add(copy, _DATABASE, filter=_nobodys)
        for sha256 in _wanted(copy):
            if _pack_blob(tar, blobs, sha256):
                count += 1
            else:
                missing.append(sha256)
        contents = Contents(
            time.time(), __version__, schema, _digest_of_file(copy), copy.stat().st_size, count, tuple(missing)
        )
        # Last: an archive that was cut off has none.
        _add_bytes(tar, _MANIFEST, msgspec.json.encode(contents))
    return contents


def _wanted(copy: Path) -> list[str]:
    with closing(_connect(copy, "ro")) as connection:
        rows = connection.execute(
            "SELECT DISTINCT sha256 FROM artifacts WHERE sha256 IS NOT NULL ORDER BY 1"
        ).fetchall()
    return [row[0] for row in rows]


def _pack_blob(tar: tarfile.TarFile, blobs: Path | None, sha256: str) -> bool:
    """Add a blob, if it is there and is what its name says. (It may have expired since the copy was taken.)"""
    name = f"{sha256[:2]}/{sha256[2:4]}/{sha256}"
    if blobs is None or not _BLOB.fullmatch(f"artifacts/{name}"):
        return False
    try:
        data = (blobs / name).read_bytes()
    except FileNotFoundError:
        return False
    if hashlib.sha256(data).hexdigest() != sha256:
        return False
    _add_bytes(tar, f"artifacts/{name}", data)
    return True


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    tar.addfile(member, io.BytesIO(data))


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names of whoever made it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


# Reading one


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    if not archive.is_file():
        raise NotFound(f"There is no backup {archive}.")
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:  # cut off, or damaged
        reason = str(error) if "\n" not in str(error) else "it is no archive of any kind"  # one line for each kind
        raise Corrupt(f"{archive} is no whole backup: {reason}. Take another one.") from error


def _contents(tar: tarfile.TarFile, archive: Path) -> Contents:
    try:
        member = tar.getmember(_MANIFEST)
        contents = msgspec.json.decode(_read(tar, member), type=Contents)
        tar.getmember(_DATABASE)
    except (KeyError, msgspec.DecodeError):
        raise Corrupt(f"{archive} is no backup of agent3, or was cut off: it does not say what it holds.") from None
    if contents.format > FORMAT:
        raise SetupError(f"{archive} was made by agent3 {contents.made_by}, which is newer. Install that version.")
    return contents


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member) if member.isreg() and member.size <= _LARGEST_MANIFEST else None
    return file.read() if file is not None else b""


def _pieces(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    file = tar.extractfile(member) if member.isreg() else None
    while file is not None and (piece := file.read(_CHUNK)):
        yield piece


def _digest_of(tar: tarfile.TarFile, member: tarfile.TarInfo, expected: str | None) -> str:
    found = hashlib.sha256()
    for piece in _pieces(tar, member):
        found.update(piece)
    if expected is not None and found.hexdigest() != expected:
        raise Corrupt(f"{member.name} in the backup is damaged. Take another backup.")
    return found.hexdigest()


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Write one member where we say, never where it says."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        for piece in _pieces(tar, member):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _verified(copy: Path, archive: Path) -> None:
    """Refuse a copy that SQLite finds fault with, or that a newer version made."""
    try:
        with closing(_connect(copy, "ro")) as connection:
            _checked(connection, f"The database in {archive}")
            connection.row_factory = sqlite3.Row
            rows = connection.execute(
                "SELECT version, name, checksum FROM schema_migrations ORDER BY version"
            ).fetchall()
            first_missing(shipped(), rows)
    except sqlite3.Error as error:
        raise _ours(error, archive) from error


def _unpack_blobs(tar: tarfile.TarFile, blobs: Path | None) -> None:
    """Add the blobs that are not there. They are named by their content, so those that are there are the same."""
    for member in tar:
        found = _BLOB.fullmatch(member.name)
        if found is None or blobs is None:
            continue
        path = blobs / found[1] / found[2] / found[3]
        if path.is_file() and _digest_of_file(path) == found[3]:
            continue
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _workshop(path.parent) as folder:
            _extract(tar, member, folder / found[3])
            _place(folder / found[3], path)


# Taking its place


@contextmanager
def _alone(database: Path) -> Iterator[None]:
    """Hold the database so that nobody has it open, and all of it lies in one file. Conflict when somebody has.

    SQLite leaves the mode of many processes only for a connection that is the only one. What is damaged beyond
    opening cannot be held; it is not in use either, or its user would have nothing of it.
    """
    if not database.exists():
        yield
        return
    with closing(_connect(database, "rw")) as connection:
        try:
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise Conflict(
                    f"{database} is in use: a gateway or a command has it open. Stop it, then restore again."
                ) from None
            if primary(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise _ours(error, database) from error
        yield


def _set_aside(database: Path) -> Path | None:
    """A second name for what is there, so that the first can be given to another in one step."""
    if not database.exists():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = _free(database.with_name(f"{database.name}.before-{stamp}"))
    try:
        os.link(database, aside)
    except OSError:  # a file system without second names
        shutil.copy2(database, aside)
    for tail in ("-wal", "-journal"):  # only a damaged one still has any, and they belong to it
        rest = database.with_name(database.name + tail)
        if rest.exists() and rest.stat().st_size:
            rest.replace(aside.with_name(aside.name + tail))
    return aside


def _free(path: Path) -> Path:
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _place(file: Path, target: Path) -> None:
    """Give a file its name, durably, in one step."""
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
def _workshop(parent: Path) -> Iterator[Path]:
    """A folder for what is not finished, on the disk where it will go, gone at the end."""
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


def _ours(error: sqlite3.Error, path: Path) -> Agent3Error:
    ours = translated(error)
    return type(ours)(f"{path}: {ours.message}")
