"""The faults are in order: they are listed, they run, and they can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent3.errors import Corrupt
from agent3.storage import open_database
from agent3.storage.sqlite_writer import translate_error
from faults import kill_writes
from faults.__main__ import main
from faults.registry import known


def test_every_fault_is_listed_with_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(known())
    assert all(len(line.split()) > 3 for line in lines)


def test_two_kills_lose_nothing() -> None:
    result = kill_writes.kill_writes(7, kills=2)
    assert result["ok"], result
    assert result["acknowledged"] > 0


def test_a_lost_row_and_a_half_written_pair_are_noticed(tmp_path: Path) -> None:
    async def story() -> dict[str, object]:
        database = await open_database(f"sqlite:///{tmp_path}/house.db")
        await database.many(kill_writes.PUT, [("a/1", 1), ("a/2", 1), ("b/1", 1)])
        await database.aclose()
        (tmp_path / "witness").write_text("a\nc\nd")
        return await kill_writes._compare(tmp_path)

    result = asyncio.run(story())
    assert (result["ok"], result["acknowledged"], result["lost"], result["halves"]) == (False, 2, 1, 1)


def test_damage_that_sqlite_quotes_in_its_message_is_named_as_damage() -> None:
    error = UnicodeDecodeError("utf-8", b"malformed database schema (\xdf", 27, 28, "invalid continuation byte")
    assert isinstance(translate_error(error), Corrupt)
