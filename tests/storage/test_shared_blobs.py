"""Blobs in the database and in an S3-compatible store keep the promises of those in a folder."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent3.env import REAL
from agent3.errors import Corrupt, NotFound, RequestError, SetupError, StorageError
from agent3.protocols.functions.standalone import blob_folder, blob_store
from agent3.settings import Settings, Storage
from agent3.storage import BlobStore, Database, open_database
from agent3.storage.at_rest import encrypt_database
from agent3.storage.shared_blobs import Bucket, DatabaseBlobs, ObjectBlobs, sign

EMPTY = hashlib.sha256(b"").hexdigest()


class Store:
    """An S3-compatible store on loopback that refuses what is not signed as it should be."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failures = 0
        self.bucket: Bucket
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, body = store.serve(self.command, self.path, self.headers, data)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        address = f"http://127.0.0.1:{self.server.server_port}"
        self.bucket = Bucket.of("s3://results/agent3", address, "eu-test-1", "AKIDTEST", "secret")

    def serve(self, method: str, path: str, headers: Any, data: bytes) -> tuple[int, bytes]:
        if self.failures:
            self.failures -= 1
            return 503, b""
        payload = headers["x-amz-content-sha256"]
        when = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        expected = sign(self.bucket, method, path, {"host": headers["host"]}, payload, when)["authorization"]
        if headers["authorization"] != expected or hashlib.sha256(data).hexdigest() != payload:
            return 403, b""
        if method == "PUT":
            self.objects[path] = data
            return 200, b""
        if path not in self.objects:
            return 404, b""
        if method == "DELETE":
            del self.objects[path]
            return 204, b""
        return 200, self.objects[path]


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def tell(url: str, make: Callable[[Database], BlobStore], story: Callable[[BlobStore], Awaitable[None]]) -> None:
    async def run() -> None:
        database = await open_database(url, env=REAL)
        try:
            await story(make(database))
        finally:
            await database.aclose()

    asyncio.run(run())


async def keeps_its_promises(blobs: BlobStore) -> None:
    data, sha256 = b"", ""
    for data in (b"", b"hello", bytes(300_000)):
        sha256 = await blobs.put(data)
        assert sha256 == hashlib.sha256(data).hexdigest() == await blobs.put(data)
        assert await blobs.exists(sha256)
        assert await blobs.get(sha256) == data
    assert not await blobs.discard(sha256, 3_600.0)  # it was put a moment ago
    assert await blobs.get(sha256) == data
    assert await blobs.discard(sha256, -1.0)
    with pytest.raises(NotFound, match=sha256):
        await blobs.get(sha256)
    assert await blobs.put(data) == sha256  # also after it was on its way out
    assert await blobs.delete(sha256)
    assert not await blobs.delete(sha256)
    with pytest.raises(RequestError, match="64 hexadecimal digits"):
        await blobs.get("../" * 10)


def test_the_database_keeps_blobs(url: str) -> None:
    tell(url, DatabaseBlobs, keeps_its_promises)


def test_an_object_store_keeps_blobs(url: str, store: Store) -> None:
    tell(url, lambda database: ObjectBlobs(database, store.bucket), keeps_its_promises)


def test_damage_and_refusals_are_told(store: Store) -> None:
    async def story(blobs: BlobStore) -> None:
        sha256 = await blobs.put(b"hello")
        store.failures = 1
        assert await blobs.get(sha256) == b"hello", "a store that stumbles is asked again"
        store.objects[next(iter(store.objects))] = b"hullo"
        with pytest.raises(Corrupt, match=sha256):
            await blobs.get(sha256)

    async def refused(blobs: BlobStore) -> None:
        with pytest.raises(StorageError, match=r"403\. Check the key"):
            await blobs.put(b"hello")

    tell(":memory:", lambda database: ObjectBlobs(database, store.bucket), story)
    other = Bucket.of("s3://results/agent3", store.bucket.endpoint, "eu-test-1", "AKIDTEST", "other")
    tell(":memory:", lambda database: ObjectBlobs(database, other), refused)
    assert "other" not in repr(other)


def test_one_that_is_being_deleted_is_stored_again_behind_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        database = await open_database(":memory:", env=REAL)
        try:
            blobs = ObjectBlobs(database, store.bucket)
            sha256 = await blobs.put(b"hello")
            await database.statement("UPDATE blobs SET going = 1 WHERE sha256 = ?", sha256)
            putting = asyncio.create_task(blobs.put(b"hello"))
            await asyncio.sleep(0.05)
            assert not putting.done()
            await blobs.delete(sha256)  # the end of the deletion
            await putting
            assert await blobs.get(sha256) == b"hello"
        finally:
            await database.aclose()

    asyncio.run(run())


def test_the_signature_is_that_of_the_published_example() -> None:
    # "Example: GET Object" of AWS's description of Signature Version 4.
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    bucket = Bucket("https://examplebucket.s3.amazonaws.com", "", "", "us-east-1", "AKIAIOSFODNN7EXAMPLE", secret)
    headers = {"host": "examplebucket.s3.amazonaws.com", "range": "bytes=0-9"}
    signed = sign(bucket, "GET", "/test.txt", headers, EMPTY, datetime(2013, 5, 24, tzinfo=UTC))
    assert signed["authorization"].endswith("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")


def test_the_settings_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def choose(where: str, endpoint: str = "") -> BlobStore:
        database = await open_database(":memory:", env=REAL)
        try:
            url = f"sqlite:///{tmp_path}/agent3.db"
            settings = Settings(storage=Storage(artifacts=where, object_endpoint=endpoint))
            assert blob_folder(settings, url) == tmp_path / ("elsewhere" if where.startswith("/") else "artifacts")
            return blob_store(settings, url, database)
        finally:
            await database.aclose()

    assert isinstance(asyncio.run(choose("database")), DatabaseBlobs)
    asyncio.run(choose(str(tmp_path / "elsewhere")))
    for wrong in ("s3:", "s3:/bucket", "gs://bucket", "S3://bucket"):
        with pytest.raises(SetupError, match=r"storage\.artifacts cannot be .*s3://BUCKET/PREFIX"):
            asyncio.run(choose(wrong))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with pytest.raises(SetupError, match="AWS_ACCESS_KEY_ID"):
        asyncio.run(choose("s3://bucket"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert isinstance(asyncio.run(choose("s3://bucket/a")), ObjectBlobs)
    with pytest.raises(SetupError, match="has no bucket"):
        asyncio.run(choose("s3://"))
    with pytest.raises(SetupError, match="is not an address"):
        asyncio.run(choose("s3://bucket", "minio"))


def test_nothing_large_is_hashed_or_encrypted_where_everybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    here, large = threading.get_ident(), b"x" * 300_000
    done: list[tuple[str, int]] = []

    class Cipher:
        strict = False

        def encrypt(self, plain: bytes, place: bytes = b"") -> bytes:
            done.append(("encrypt", threading.get_ident()))
            return b"closed" + plain

        def decrypt(self, stored: bytes) -> tuple[bytes, bytes]:
            done.append(("decrypt", threading.get_ident()))
            return stored.removeprefix(b"closed"), b""

        def is_closed(self, stored: bytes) -> bool:
            return stored.startswith(b"closed")

    def watch(data: bytes) -> Any:
        done.append(("hash", threading.get_ident()))
        return hashlib.sha256(data)

    monkeypatch.setattr("agent3.storage.shared_blobs.hashlib", SimpleNamespace(sha256=watch))

    async def story(blobs: BlobStore) -> None:
        assert await blobs.get(await blobs.put(large)) == large

    tell("sqlite://", lambda database: DatabaseBlobs(encrypt_database(database, Cipher())), story)
    assert {what for what, _ in done} == {"hash", "encrypt", "decrypt"}
    assert here not in {thread for _, thread in done}
