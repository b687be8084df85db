"""Addresses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent3.errors import SetupError
from agent3.storage import open_database
from agent3.storage.connect import without_password
from agent3.storage.syntax import number_placeholders


@pytest.mark.parametrize("url", [":memory:", "sqlite://", "sqlite:///:memory:"])
def test_memory_has_three_spellings(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def story() -> None:
        database = await open_database(url)
        assert (database.dialect, database.url) == ("sqlite", "sqlite://")
        await database.aclose()

    asyncio.run(story())
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_relative_and_folders_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def story() -> None:
        await (await open_database("sqlite:///a folder/b/house.db")).aclose()

    asyncio.run(story())
    assert (tmp_path / "a folder/b/house.db").is_file()


@pytest.mark.parametrize("url", ["mysql://me:secret@host/db", "house.db", "sqlite://host/house.db"])
def test_another_address_is_refused_with_the_forms_that_work(url: str) -> None:
    with pytest.raises(SetupError, match="sqlite:///PATH") as caught:
        asyncio.run(open_database(url))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/db", "postgresql://me@host:5432/db"),
        ("postgresql://me:se@cret@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?password=secret&host=/run", "postgresql://host/db?host=/run"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql:///db?user=me&password=secret", "postgresql:///db?user=me"),
    ],
)
def test_no_password_is_ever_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT ? + ?", "SELECT $1 + $2"),
        ("SELECT '?', ?", "SELECT '?', $1"),
        ("SELECT 'it''s ?', ?", "SELECT 'it''s ?', $1"),
        ('SELECT "a?" FROM t WHERE b = ?', 'SELECT "a?" FROM t WHERE b = $1'),
        ("SELECT ? -- why?\n, ?", "SELECT $1 -- why?\n, $2"),
        ("SELECT /* ? \n ? */ ?", "SELECT /* ? \n ? */ $1"),
    ],
)
def test_only_parameters_are_numbered(sql: str, expected: str) -> None:
    assert number_placeholders(sql) == expected
