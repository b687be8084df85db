"""What only SQLite can get wrong: its ceiling, its locks, its disk, and works that are driven by hand."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from agent3.env import SeededEnv
from agent3.errors import Conflict, Corrupt, SetupError, StorageError, StorageFull
from agent3.storage import Database, Transaction, open_database
from agent3.storage import sqlite_writer as writer
from agent3.storage.disk_space import DiskSpace
from agent3.storage.sqlite_writer import Writer
from tests.support.storage import PUT, using

FILL = "INSERT INTO agents (id, body) VALUES (?, ?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "house.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.mark.parametrize("stray", [lambda: asyncio.sleep(0), lambda: asyncio.sleep(1)])
def test_a_work_that_awaits_anything_else_is_refused_and_undone(url: str, stray: Any) -> None:
    async def work(tx: Transaction) -> None:
        await tx.run(PUT, "a", 1)
        await stray()

    async def story(database: Database) -> None:
        with pytest.raises(RuntimeError, match="other than its transaction"):
            await database.write(work)
        assert await database.all("SELECT name FROM counters") == []

    using(url, story)


async def fill(database: Database) -> int:
    for number in range(10_000):
        try:
            await database.many(FILL, [(f"{number}", b"x" * 8_000)])
        except StorageFull:
            return number
    raise AssertionError("the ceiling was never reached")


@pytest.mark.parametrize("memory", [False, True])
def test_a_full_database_refuses_inserts_but_lets_go_of_rows(url: str, memory: bool) -> None:
    async def story(database: Database) -> None:
        stored = await fill(database)
        assert 30 < stored < 130
        with pytest.raises(StorageFull):
            await database.write(lambda tx: tx.run(FILL, "one more", b"x" * 8_000))
        assert await database.write(lambda tx: tx.run("UPDATE agents SET updated = ? WHERE id = '0'", 1.0)) == 1
        assert await database.write(lambda tx: tx.run("DELETE FROM agents")) == stored
        await database.many(FILL, [("again", b"x" * 8_000)])
        assert (await database.check(thorough=True))["ok"] is True

    using(":memory:" if memory else url, story, max_bytes=1024 * 1024)


def test_a_work_that_finds_no_room_fails_alone_in_its_group(url: str) -> None:
    async def story(database: Database) -> None:
        await fill(database)
        await database.write(lambda tx: tx.run("DELETE FROM agents WHERE id IN ('0', '1')"))
        small = [database.many(PUT, [(f"small{i}", i)]) for i in range(20)]
        large = [database.many(FILL, [(f"large{i}", b"x" * 40_000)]) for i in range(3)]
        answers = await asyncio.gather(*small[:10], *large, *small[10:], return_exceptions=True)
        assert [type(answer) for answer in answers] == [type(None)] * 10 + [StorageFull] * 3 + [type(None)] * 10
        assert len(await database.all("SELECT name FROM counters")) == 20

    using(url, story, max_bytes=1024 * 1024)


def test_a_lock_of_another_process_is_waited_for(url: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(database: Database) -> None:
        monkeypatch.setattr(writer, "BUSY_SECONDS", 60.0)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.create_task(database.many(PUT, [("a", 1)]))
        done, _ = await asyncio.wait([write], timeout=0.2)
        assert not done
        assert await database.all("SELECT name FROM counters") == []
        other.execute("COMMIT")
        other.close()
        await write

    using(url, story)


def test_a_lock_that_stays_is_a_storage_error_and_no_hang(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(database: Database) -> None:
        monkeypatch.setattr(writer, "BUSY_SECONDS", 0.1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="locked") as caught:
            await database.many(PUT, [("a", 1)])
        assert caught.value.retryable
        other.close()
        await database.many(PUT, [("a", 1)])

    using(url, story)


def test_two_processes_write_one_file_without_starving(url: str) -> None:
    script = """
import asyncio, sys
from agent3.storage import open_database

async def main(url, who):
    database = await open_database(url)
    async def caller(n):
        for i in range(25):
            await database.many("INSERT INTO counters (name, value) VALUES (?, ?)", [(f"{who}-{n}-{i}", i)])
    await asyncio.gather(*(caller(n) for n in range(8)))
    await database.aclose()

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""
    processes = [subprocess.Popen([sys.executable, "-c", script, url, str(who)]) for who in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]

    async def count(database: Database) -> int:
        return len(await database.all("SELECT name FROM counters"))

    assert using(url, count) == 400


class FailingDisk(sqlite3.Connection):
    """A connection whose next commit fails as a broken disk makes it fail."""

    broken = False

    def execute(self, sql: str, *params: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and FailingDisk.broken:
            FailingDisk.broken = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return super().execute(sql, *params)


def test_a_commit_that_fails_fails_its_whole_group_and_the_connection_is_renewed(path: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=FailingDisk))
        return opened[-1]

    async def story() -> None:
        first = connect()
        first.execute("CREATE TABLE t (a)")
        thread = Writer(connect, first, DiskSpace(None, 2**30), reopens=True)
        holding, queued = threading.Event(), threading.Event()

        async def hold(_: Transaction) -> None:
            holding.set()
            assert queued.wait(60)

        async def insert(tx: Transaction) -> None:
            await tx.run("INSERT INTO t VALUES (1)")
            FailingDisk.broken = True

        held = asyncio.create_task(thread.write(hold))
        assert await asyncio.to_thread(holding.wait, 60)
        tasks = [asyncio.create_task(thread.write(insert)) for _ in range(8)]
        await asyncio.sleep(0)  # all are queued behind the first, and so are one group
        queued.set()
        await held
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StorageError] * 8
        await thread.write(lambda tx: tx.run("INSERT INTO t VALUES (99)"))
        rows = await thread.write(lambda tx: tx.all("SELECT a FROM t"))
        await asyncio.to_thread(thread.stop)
        assert [tuple(cast("Any", row)) for row in rows] == [(99,)]
        assert len(opened) == 2

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_file_that_is_no_database_is_named_as_damaged(url: str, path: Path) -> None:
    path.write_bytes(b"this is not a database " * 100)
    with pytest.raises(Corrupt, match=r"house\.db"):
        asyncio.run(open_database(url))


def test_a_damaged_page_is_found_by_check(url: str, path: Path) -> None:
    async def write(database: Database) -> None:
        for number in range(200):
            await database.many(FILL, [(f"{number:03}", b"x" * 1_000)])

    async def look(database: Database) -> dict[str, object]:
        return await database.check(thorough=True)

    using(url, write)
    assert using(url, look)["ok"] is True
    content = bytearray(path.read_bytes())
    page = 4096
    for start in range(len(content) - 20 * page, len(content) - 5 * page, page):
        content[start : start + 64] = b"\xa5" * 64
    path.write_bytes(content)
    report = using(url, look)
    assert report["ok"] is False
    assert report["integrity"] != "ok"


def test_a_folder_that_cannot_be_made_is_a_setup_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("conflicted with others")
    with pytest.raises(SetupError, match="cannot be opened"):
        asyncio.run(open_database(f"sqlite:///{tmp_path}/file/house.db"))


def test_the_file_is_for_its_owner_only(url: str, path: Path) -> None:
    async def story(database: Database) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    using(url, story)


def test_durability_and_foreign_keys_are_switched_on(url: str, path: Path) -> None:
    async def settings(tx: Transaction) -> list[object]:
        found = []
        for pragma in ("journal_mode", "synchronous", "foreign_keys"):
            row = await tx.one(f"PRAGMA {pragma}")
            found.append(row and row[pragma])
        return found

    async def story(database: Database) -> None:
        assert await database.write(settings) == ["wal", 2, 1]
        await database.write(lambda tx: tx.run("CREATE TABLE child (parent TEXT REFERENCES counters (name))"))
        with pytest.raises(Conflict):
            await database.write(lambda tx: tx.run("INSERT INTO child VALUES ('nobody')"))

    using(url, story)


def test_integrity_is_looked_at_again_after_ten_minutes_and_not_before(url: str) -> None:
    async def story() -> None:
        env = SeededEnv()
        database = await open_database(url, env=env)
        try:
            await database.check()
            first = database._checked_at  # type: ignore[attr-defined]
            env.advance(599)
            await database.check()
            assert database._checked_at == first  # type: ignore[attr-defined]
            env.advance(1)
            await database.check()
            assert database._checked_at == first + 600  # type: ignore[attr-defined]
        finally:
            await database.aclose()

    asyncio.run(story())
