"""Blobs, in files and in memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from agent3.errors import Corrupt, NotFound, RequestError, StorageError, StorageFull
from agent3.storage import Blobs

NOTHING = hashlib.sha256(b"nothing").hexdigest()


@pytest.fixture(params=["folder", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs" if request.param == "folder" else None)


def test_bytes_come_back_under_their_hash(blobs: Blobs) -> None:
    async def story() -> None:
        for data in (b"", b"hello", bytes(300_000)):
            sha256 = await blobs.put(data)
            assert sha256 == hashlib.sha256(data).hexdigest()
            assert await blobs.put(data) == sha256
            assert await blobs.exists(sha256)
            assert await blobs.get(sha256) == data

    asyncio.run(story())


def test_what_is_absent_or_deleted_is_not_found(blobs: Blobs) -> None:
    async def story() -> None:
        sha256 = await blobs.put(b"hello")
        assert await blobs.delete(sha256) is True
        assert await blobs.delete(sha256) is False
        assert not await blobs.exists(sha256)
        for missing in (sha256, NOTHING):
            with pytest.raises(NotFound, match=missing):
                await blobs.get(missing)

    asyncio.run(story())


@pytest.mark.parametrize("name", ["", "..", "../" * 20 + "etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n", "/" * 64])
def test_no_other_name_reaches_the_disk(blobs: Blobs, name: str) -> None:
    async def story() -> None:
        for method in (blobs.get, blobs.exists, blobs.delete):
            with pytest.raises(RequestError, match="64 hexadecimal digits"):
                await method(name)

    asyncio.run(story())


def test_many_writers_of_the_same_bytes_leave_one_copy(tmp_path: Path) -> None:
    async def story() -> None:
        blobs = Blobs(tmp_path)
        names = await asyncio.gather(*(blobs.put(b"same") for _ in range(16)))
        assert len(set(names)) == 1

    asyncio.run(story())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    name = hashlib.sha256(b"same").hexdigest()
    assert files == [tmp_path / name[:2] / name[2:4] / name]


def test_a_damaged_blob_is_named_and_not_served_and_storing_it_again_heals_it(tmp_path: Path) -> None:
    async def story() -> None:
        blobs = Blobs(tmp_path)
        sha256 = await blobs.put(b"precious")
        path = tmp_path / sha256[:2] / sha256[2:4] / sha256
        path.write_bytes(b"previous")
        with pytest.raises(Corrupt, match=sha256):
            await blobs.get(sha256)
        await blobs.put(b"precious")
        assert await blobs.get(sha256) == b"precious"

    asyncio.run(story())


def test_memory_is_bounded_and_deleting_makes_room() -> None:
    async def story() -> None:
        blobs = Blobs(None, memory_bytes=10)
        first = await blobs.put(b"12345678")
        await blobs.put(b"12345678")
        with pytest.raises(StorageFull):
            await blobs.put(b"abc")
        await blobs.delete(first)
        assert await blobs.get(await blobs.put(b"abc")) == b"abc"

    asyncio.run(story())


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("conflicted with others")
    with pytest.raises(StorageError):
        asyncio.run(Blobs(tmp_path / "file").put(b"data"))


def test_a_blob_is_discarded_only_when_nobody_has_put_it_for_a_while(blobs: Blobs) -> None:
    async def story() -> None:
        sha256 = await blobs.put(b"hello")
        assert await blobs.discard(sha256, 60) is False
        assert await blobs.get(sha256) == b"hello"
        assert await blobs.discard(sha256, 0) is True
        assert not await blobs.exists(sha256)
        assert await blobs.put(b"hello") == sha256
        assert await blobs.get(sha256) == b"hello"

    asyncio.run(story())


def test_putting_a_blob_again_saves_it_from_being_discarded(tmp_path: Path) -> None:
    async def story() -> None:
        blobs = Blobs(tmp_path)
        sha256 = await blobs.put(b"hello")
        (file,) = (one for one in tmp_path.rglob("*") if one.is_file())
        os.utime(file, (0, 0))
        await blobs.put(b"hello")
        assert await blobs.discard(sha256, 60) is False
        os.utime(file, (0, 0))
        assert await blobs.discard(sha256, 60) is True
        assert not [one for one in tmp_path.rglob("*") if one.is_file()]

    asyncio.run(story())


def test_what_is_put_while_it_is_discarded_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        blobs = Blobs(tmp_path)
        for _ in range(50):
            sha256 = await blobs.put(b"hello")
            (file,) = (one for one in tmp_path.rglob("*") if one.is_file())
            os.utime(file, (0, 0))
            await asyncio.gather(blobs.discard(sha256, 60), blobs.put(b"hello"), blobs.discard(sha256, 60))
            assert await blobs.get(sha256) == b"hello"

    asyncio.run(story())
