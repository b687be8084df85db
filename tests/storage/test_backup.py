"""Backups: consistent while others write, verified both ways, restored in one step or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agent3.errors import Agent3Error, Conflict, Corrupt, NotFound, SetupError
from agent3.storage import Blobs, Database, Transaction, open_database
from agent3.storage.backup import back_up, inspect, restore
from tests.support.storage import PUT, put, using

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "agent3.db"


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    return tmp_path / "data" / "artifacts"


def url(file: Path) -> str:
    return f"sqlite:///{file}"


def fill(file: Path, blobs: Path, *names: str) -> str:
    """Rows of these names, and one large result; its hash."""

    async def story(database: Database) -> str:
        for name in names:
            await database.write(put(name, 1))
        sha256 = await Blobs(blobs).put(b"large")
        await database.many(
            "INSERT INTO artifacts (id, owner, sha256, created, expires) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [("a1", "me", sha256, 0.0, 1e12)],
        )
        return sha256

    return using(url(file), story)


def names(file: Path) -> list[str]:
    async def story(database: Database) -> list[str]:
        return [row["name"] for row in await database.all("SELECT name FROM counters ORDER BY name")]

    return using(url(file), story)


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_what_was_backed_up_comes_back(tmp_path: Path, file: Path, blobs: Path, ending: str) -> None:
    sha256 = fill(file, blobs, "a", "b")
    archive = tmp_path / f"backup.{ending}"
    made = back_up(file, blobs, archive)
    assert (made.blobs, made.missing) == (1, ())
    assert inspect(archive) == made
    fill(file, blobs, "later")
    done = restore(archive, file, blobs)
    assert names(file) == ["a", "b"]
    assert done.contents == made
    assert done.aside is not None
    assert names(Path(done.aside)) == ["a", "b", "later"]
    elsewhere = tmp_path / "elsewhere" / "agent3.db"
    assert restore(archive, elsewhere, elsewhere.parent / "artifacts").aside is None
    assert names(elsewhere) == ["a", "b"]
    assert asyncio.run(Blobs(elsewhere.parent / "artifacts").get(sha256)) == b"large"


def test_only_its_owner_may_read_a_backup_or_what_comes_back(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, "a")
    archive = tmp_path / "backup.tar"
    back_up(file, blobs, archive)
    restore(archive, file, blobs)
    assert [one.stat().st_mode & 0o077 for one in (archive, file)] == [0, 0]


def test_a_backup_is_whole_at_one_moment_while_others_write(tmp_path: Path, file: Path, blobs: Path) -> None:
    async def pair(tx: Transaction, number: int) -> None:
        await tx.run(PUT, f"{number}/1", 1)
        await tx.run(PUT, f"{number}/2", 1)

    async def story(database: Database) -> list[Path]:
        stop = asyncio.Event()
        written = 0

        async def write() -> None:
            nonlocal written
            while not stop.is_set():
                await database.write(partial(pair, number=written))
                written += 1

        writing = asyncio.create_task(write())
        archives = []
        for number in range(5):
            reached = written + 20
            while written < reached:
                await asyncio.sleep(0.001)
            archives.append(tmp_path / f"{number}.tar")
            await asyncio.to_thread(back_up, file, blobs, archives[-1])
        stop.set()
        await writing
        return archives

    counts = []
    for number, archive in enumerate(using(url(file), story)):
        copy = tmp_path / f"copy{number}.db"
        restore(archive, copy, None)
        found = names(copy)
        halves = {name[:-2] for name in found if name.endswith("/1")} ^ {n[:-2] for n in found if n.endswith("/2")}
        assert halves == set()
        counts.append(len(found))
    assert counts == sorted(set(counts))
    assert counts[0] >= 40


def test_nothing_is_replaced_unasked(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, "a")
    archive = tmp_path / "backup.tar"
    archive.write_text("mine")
    with pytest.raises(Conflict, match="already exists"):
        back_up(file, blobs, archive)
    assert archive.read_text() == "mine"
    back_up(file, blobs, archive, force=True)
    assert inspect(archive).schema > 0


def test_without_a_database_or_a_backup_there_is_nothing_to_do(tmp_path: Path, file: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        back_up(file, None, tmp_path / "x.tar")
    with pytest.raises(NotFound, match="does not exist"):
        restore(tmp_path / "x.tar", file, None)
    assert not file.exists()


def test_a_backup_makes_no_folder(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, "a")
    with pytest.raises(NotFound, match="does not exist"):
        back_up(file, blobs, tmp_path / "mistyped" / "x.tar")
    assert not (tmp_path / "mistyped").exists()


def test_a_database_in_use_is_not_replaced(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, "a")
    archive = tmp_path / "backup.tar"
    back_up(file, blobs, archive)
    code = (
        "import asyncio, sys\nfrom agent3.storage import open_database\n"
        "async def main():\n"
        "    database = await open_database(sys.argv[1])\n"
        "    print('open', flush=True)\n"
        "    await asyncio.to_thread(sys.stdin.readline)\n"
        f"    await database.many({PUT!r}, [('after', 1)])\n"
        "    await database.aclose()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, url(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "open\n"
            with pytest.raises(Conflict, match="in use"):
                restore(archive, file, blobs)
            other.communicate("\n", timeout=240)
        finally:
            other.kill()
    assert names(file) == ["a", "after"]
    restore(archive, file, blobs)
    assert names(file) == ["a"]


def torn(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-20_000])


def flipped(archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[30_000] ^= 1
    archive.write_bytes(bytes(data))


def other_blob(archive: Path) -> None:
    _add(archive, f"artifacts/00/00/{'0' * 64}", b"not that")


def nonsense(archive: Path) -> None:
    archive.write_bytes(b"nonsense" * 1_000)


def other_manifest(archive: Path) -> None:
    _add(archive, "manifest.json", b"{}")


def _add(archive: Path, name: str, body: bytes) -> None:
    with tarfile.open(archive, "a") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(body)
        tar.addfile(member, io.BytesIO(body))


@pytest.mark.parametrize("damage", [torn, flipped, other_blob, nonsense, other_manifest])
def test_a_damaged_backup_replaces_nothing(
    tmp_path: Path, file: Path, blobs: Path, damage: Callable[[Path], None]
) -> None:
    fill(file, blobs, "a")
    archive = tmp_path / "backup.tar"
    back_up(file, blobs, archive)
    fill(file, blobs, "b")
    damage(archive)
    with pytest.raises(Corrupt):
        restore(archive, file, blobs)
    assert names(file) == ["a", "b"]
    left = {one.name for one in file.parent.iterdir()} - {f"agent3.db-{tail}" for tail in ("wal", "shm", "reserve")}
    assert left == {"agent3.db", "artifacts"}


def test_a_backup_writes_only_where_it_belongs(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, "a")
    archive = tmp_path / "backup.tar"
    back_up(file, blobs, archive)
    _add(archive, "../../escaped", b"x")
    _add(archive, "artifacts/../../escaped", b"x")
    restore(archive, file, blobs)
    assert list(tmp_path.rglob("escaped*")) == []


def test_a_backup_of_a_newer_version_is_refused(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, "a")
    with sqlite3.connect(file) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (9000, 'future', 'x', 0)")
    connection.close()
    archive = tmp_path / "backup.tar"
    back_up(file, blobs, archive)
    target = tmp_path / "other" / "agent3.db"
    with pytest.raises(SetupError, match=r"9000 \(future\).*newer"):
        restore(archive, target, None)
    assert not target.exists()


def test_a_damaged_database_is_not_backed_up_but_can_be_replaced(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, *map(str, range(500)))
    archive, second = tmp_path / "backup.tar", tmp_path / "second.tar"
    back_up(file, blobs, archive)
    data = bytearray(file.read_bytes())
    data[100:] = os.urandom(len(data) - 100)
    file.write_bytes(bytes(data))
    with pytest.raises(Agent3Error):
        back_up(file, blobs, second)
    assert not second.exists()
    done = restore(archive, file, blobs)
    assert len(names(file)) == 500
    assert done.aside is not None
    assert Path(done.aside).read_bytes() == bytes(data)


def test_large_results_that_are_gone_or_damaged_are_named(tmp_path: Path, file: Path, blobs: Path) -> None:
    sha256 = fill(file, blobs, "a")
    place = blobs / sha256[:2] / sha256[2:4] / sha256
    place.write_bytes(b"other")
    archive = tmp_path / "backup.tar"
    assert back_up(file, blobs, archive).missing == (sha256,)
    place.write_bytes(b"large")
    back_up(file, blobs, archive, force=True)
    place.write_bytes(b"other")
    restore(archive, file, blobs)
    assert hashlib.sha256(place.read_bytes()).hexdigest() == sha256


def test_a_restore_that_is_killed_leaves_the_old_or_the_new(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, "a")
    archive = tmp_path / "backup.tar"
    back_up(file, blobs, archive)
    fill(file, blobs, "b")
    code = (
        "import sys\nfrom pathlib import Path\nfrom agent3.storage.backup import restore\n"
        "restore(Path(sys.argv[1]), Path(sys.argv[2]), None)\n"
    )
    environment = {**os.environ, "AGENT3_FAILPOINTS": "backup.placed=kill"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(archive), str(file)], env=environment, cwd=ROOT, timeout=240, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert names(file) == ["a", "b"]
    restore(archive, file, blobs)
    assert names(file) == ["a"]


def test_opening_a_restored_database_goes_on_as_usual(tmp_path: Path, file: Path, blobs: Path) -> None:
    fill(file, blobs, "a")
    archive = tmp_path / "backup.tar"
    back_up(file, blobs, archive)
    restore(archive, file, blobs)

    async def story() -> None:
        database = await open_database(url(file))
        try:
            assert (await database.check(thorough=True))["ok"] is True
            await database.write(put("again", 1))
        finally:
            await database.aclose()

    asyncio.run(story())
    assert names(file) == ["a", "again"]
