"""The reserve: writes that free space go on when no others do, and all is well again by itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from agent3.errors import StorageFull
from agent3.storage import Database, disk_space
from tests.support.storage import PUT, using

FILL = "INSERT INTO agents (id, body) VALUES (?, ?)"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/house.db"


@pytest.fixture
def reserve(tmp_path: Path) -> Path:
    return tmp_path / "house.db-reserve"


def test_room_is_kept_back_on_the_disk_beside_the_database(url: str, reserve: Path) -> None:
    async def story(database: Database) -> None:
        found = reserve.stat()
        assert found.st_size == disk_space.RESERVE
        assert found.st_blocks * 512 >= disk_space.RESERVE, "it is a hole"
        assert found.st_mode & 0o077 == 0

    using(url, story)


def test_while_the_reserve_is_used_only_what_frees_room_is_written(
    url: str, reserve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(database: Database) -> None:
        await database.many(PUT, [("a", 1)])
        monkeypatch.setattr(disk_space, "_free_bytes", lambda _: 0)
        reserve.write_bytes(b"")  # as the writer leaves it that met a full disk, in this process or another
        with pytest.raises(StorageFull, match="no restart is needed"):
            await database.many(PUT, [("b", 1)])
        assert await database.write(lambda tx: tx.run("DELETE FROM counters"), frees=True) == 1
        assert await database.all("SELECT name FROM counters") == []
        monkeypatch.undo()
        await database.many(PUT, [("c", 1)])
        assert reserve.stat().st_size == disk_space.RESERVE

    using(url, story)


def test_a_disk_without_room_for_a_reserve_is_used_without_one(
    url: str, reserve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(database: Database) -> None:
        await database.many(PUT, [("a", 1)])
        assert not reserve.exists()

    monkeypatch.setattr(disk_space, "_free_bytes", lambda _: 0)
    using(url, story)


def test_what_frees_room_may_go_above_the_ceiling(url: str) -> None:
    async def fill(database: Database) -> None:
        for number in range(10_000):
            await database.many(FILL, [(f"{number}", b"x" * 8_000)])

    async def story(database: Database) -> None:
        with pytest.raises(StorageFull):
            await fill(database)
        large = b"x" * 200_000
        with pytest.raises(StorageFull):
            await database.write(lambda tx: tx.run(FILL, "large", large))
        await database.write(lambda tx: tx.run(FILL, "large", large), frees=True)
        with pytest.raises(StorageFull):
            await database.write(lambda tx: tx.run(FILL, "larger", large))
        with pytest.raises(StorageFull):
            await database.write(lambda tx: tx.run(FILL, "largest", 10 * large), frees=True)

    using(url, story, max_bytes=1024 * 1024)


def test_when_the_last_closes_it_the_log_is_in_the_file(url: str, tmp_path: Path) -> None:
    async def story(database: Database) -> None:
        await database.many(PUT, [("a", 1)])
        assert await database.all("SELECT name FROM counters") != []

    using(url, story)
    assert not (tmp_path / "house.db-wal").exists()
    with sqlite3.connect(tmp_path / "house.db") as copy:
        assert copy.execute("SELECT name FROM counters").fetchall() == [("a",)]
    copy.close()
