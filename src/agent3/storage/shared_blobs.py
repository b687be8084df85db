"""Blobs that all machines of a gateway see without a shared folder: in their database, or in an S3-compatible store.

Both keep a row for each blob, by the clock of the database: it tells when a blob was last put, so that one which is put
again is not deleted at the same time. The requests to an object store are signed here (AWS Signature Version 4) and
sent from threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from agent3.errors import Corrupt, NotFound, SetupError, StorageError, StorageFull
from agent3.storage.blobs import check_hash
from agent3.storage.database import Database

__all__ = ["Bucket", "DatabaseBlobs", "ObjectBlobs", "is_shared", "sign"]

LARGEST = 64 * 1024 * 1024
"""Bytes of one blob in a database, which keeps it in memory as a whole."""
_SECONDS = 30.0
_ATTEMPTS = 3
_PAUSE = 0.2
_NOTE = """
INSERT INTO blobs (sha256, data, put_at) VALUES (?, ?, {now})
ON CONFLICT (sha256) DO UPDATE SET put_at = excluded.put_at, data = excluded.data
RETURNING going
"""
_CLAIM = "UPDATE blobs SET going = 1 WHERE sha256 = ? AND put_at < {now} - CAST(? AS DOUBLE PRECISION) RETURNING sha256"


def is_shared(where: str) -> bool:
    """Whether ``storage.artifacts`` names a store of this kind, and not a folder."""
    return where == "database" or where.startswith("s3://")


class DatabaseBlobs:
    """A store of immutable bytes in the database, with the promises of ``Blobs``."""

    def __init__(self, database: Database):
        self._database = database
        self._note = database.syntax.fill(_NOTE)
        self._drop = database.syntax.fill(
            "DELETE FROM blobs WHERE sha256 = ? AND put_at < {now} - CAST(? AS DOUBLE PRECISION) RETURNING sha256"
        )

    async def put(self, data: bytes) -> str:
        """Store the bytes; return their SHA-256 in hexadecimal."""
        if len(data) > LARGEST:
            raise StorageFull(
                f"A blob in the database may have at most {LARGEST // 1024 // 1024} MiB. Set "
                "storage.artifacts to a folder."
            )
        sha256 = await asyncio.to_thread(_hash, data)
        await self._database.statement(self._note, sha256, data)
        return sha256

    async def get(self, sha256: str) -> bytes:
        """The bytes of that hash. NotFound when absent, Corrupt when the stored bytes no longer match."""
        row = await self._database.one("SELECT data FROM blobs WHERE sha256 = ?", check_hash(sha256))
        if row is None or row["data"] is None:
            raise _not_found(sha256)
        return await asyncio.to_thread(_verify, sha256, bytes(row["data"]))

    async def exists(self, sha256: str) -> bool:
        """Whether a blob of that hash is stored."""
        row = await self._database.one(
            "SELECT 1 AS found FROM blobs WHERE sha256 = ? AND data IS NOT NULL", check_hash(sha256)
        )
        return row is not None

    async def delete(self, sha256: str) -> bool:
        """Delete the blob; return whether it existed."""
        sql = "DELETE FROM blobs WHERE sha256 = ? RETURNING sha256"
        return await self._database.statement(sql, check_hash(sha256)) is not None

    async def discard(self, sha256: str, unused: float) -> bool:
        """Delete the blob if it was not put for ``unused`` seconds; return whether it is gone."""
        await self._database.statement(self._drop, check_hash(sha256), unused)
        return not await self.exists(sha256)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where objects are, and who asks for them. ``endpoint`` is the address of the store, such as https://s3.example.com."""

    endpoint: str
    name: str
    prefix: str
    region: str
    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"Bucket({self.endpoint!r}, {self.name!r}, {self.prefix!r})"

    @classmethod
    def of(cls, address: str, endpoint: str, region: str, key_id: str, secret: str) -> Bucket:
        """The bucket of an address such as s3://bucket/prefix; SetupError for one that cannot be."""
        parts = urlsplit(address)
        if not parts.netloc:
            raise SetupError("storage.artifacts has no bucket: write s3://BUCKET or s3://BUCKET/PREFIX.")
        if not key_id or not secret:
            raise SetupError("The object store needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
        where = endpoint or f"https://s3.{region}.amazonaws.com"
        if urlsplit(where).scheme not in ("http", "https") or not urlsplit(where).hostname:
            raise SetupError(
                f"storage.object_endpoint is not an address: {where!r}. Write https://HOST or http://HOST:PORT."
            )
        return cls(where.rstrip("/"), parts.netloc, parts.path.strip("/"), region, key_id, secret)


class ObjectBlobs:
    """A store of immutable bytes in an S3-compatible store, with the promises of ``Blobs``."""

    def __init__(self, database: Database, bucket: Bucket):
        self._database = database
        self._bucket = bucket
        self._note = database.syntax.fill(_NOTE)
        self._claim = database.syntax.fill(_CLAIM)

    async def put(self, data: bytes) -> str:
        """Store the bytes; return their SHA-256 in hexadecimal."""
        sha256 = await asyncio.to_thread(_hash, data)
        until = time.monotonic() + _SECONDS
        # One that is being deleted is waited for: else the deletion could come behind this. After a while its process
        # is taken for dead.
        while (row := await self._database.statement(self._note, sha256, None)) is not None and row["going"]:
            if time.monotonic() > until:
                await self._database.statement("UPDATE blobs SET going = 0 WHERE sha256 = ?", sha256)
                break
            await asyncio.sleep(_PAUSE)
        status, _ = await self._ask("PUT", sha256, data)
        if status not in (200, 201, 204):
            raise _status_error("stored", sha256, status)
        return sha256

    async def get(self, sha256: str) -> bytes:
        """The bytes of that hash. NotFound when absent, Corrupt when the stored bytes no longer match."""
        status, body = await self._ask("GET", check_hash(sha256))
        if status == 404:
            raise _not_found(sha256)
        if status != 200:
            raise _status_error("read", sha256, status)
        return await asyncio.to_thread(_verify, sha256, body)

    async def exists(self, sha256: str) -> bool:
        """Whether a blob of that hash is stored; its content is not checked."""
        status, _ = await self._ask("HEAD", check_hash(sha256))
        if status not in (200, 404):
            raise _status_error("looked up", sha256, status)
        return status == 200

    async def delete(self, sha256: str) -> bool:
        """Delete the blob; return whether it existed."""
        existed = await self.exists(sha256)
        await self._remove(sha256)
        return existed

    async def discard(self, sha256: str, unused: float) -> bool:
        """Delete the blob if it was not put for ``unused`` seconds; return whether it is gone."""
        if await self._database.statement(self._claim, check_hash(sha256), unused) is None:
            return not await self.exists(sha256)
        await self._remove(sha256)
        return True

    async def _remove(self, sha256: str) -> None:
        status, _ = await self._ask("DELETE", sha256)
        if status not in (200, 204, 404):
            await self._database.statement("UPDATE blobs SET going = 0 WHERE sha256 = ?", sha256)
            raise _status_error("deleted", sha256, status)
        await self._database.statement("DELETE FROM blobs WHERE sha256 = ?", sha256)

    async def _ask(self, method: str, sha256: str, data: bytes = b"") -> tuple[int, bytes]:
        """Each of these may be repeated: the name of an object is the hash of its bytes."""
        for attempt in range(_ATTEMPTS):
            try:
                status, body = await asyncio.to_thread(_request, self._bucket, method, sha256, data)
            except (OSError, http.client.HTTPException) as error:
                if attempt == _ATTEMPTS - 1:
                    text = f"The object store at {self._bucket.endpoint} does not answer: {type(error).__name__}."
                    raise StorageError(text, retry_after=1.0) from error
            else:
                if status < 500 or attempt == _ATTEMPTS - 1:
                    return status, body
            await asyncio.sleep(_PAUSE * 2**attempt)
        raise AssertionError  # the loop has returned or raised


def _request(bucket: Bucket, method: str, sha256: str, data: bytes) -> tuple[int, bytes]:
    where = urlsplit(bucket.endpoint)
    assert where.hostname is not None
    folder = f"{bucket.prefix}/" if bucket.prefix else ""
    path = f"{where.path}/{bucket.name}/{folder}{sha256[:2]}/{sha256}"
    host = where.hostname if where.port is None else f"{where.hostname}:{where.port}"
    payload = hashlib.sha256(data).hexdigest()
    headers = sign(bucket, method, path, {"host": host}, payload, datetime.now(UTC))
    if where.scheme == "https":
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            where.hostname, where.port, timeout=_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=_SECONDS)
    try:
        connection.request(method, quote(path), body=data if method == "PUT" else None, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def sign(
    bucket: Bucket, method: str, path: str, headers: Mapping[str, str], payload: str, now: datetime
) -> dict[str, str]:
    """The headers of a request with its signature (AWS Signature Version 4); ``payload`` is the hash of its body."""
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    sent = {**headers, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    names = ";".join(sorted(sent))
    lines = "".join(f"{name}:{sent[name].strip()}\n" for name in sorted(sent))
    canonical = "\n".join((method, quote(path), "", lines, names, payload))
    scope = f"{day}/{bucket.region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{bucket.secret}".encode()
    for part in (day, bucket.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={bucket.key_id}/{scope}"
    return {**sent, "authorization": f"AWS4-HMAC-SHA256 {credential},SignedHeaders={names},Signature={signature}"}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _verify(sha256: str, data: bytes) -> bytes:
    if _hash(data) != sha256:
        raise Corrupt(f"Blob {sha256} is damaged: its content does not match its hash. Store it again.")
    return data


def _not_found(sha256: str) -> NotFound:
    return NotFound(f"Blob {sha256} is not stored. It may have expired.")


def _status_error(what: str, sha256: str, status: int) -> StorageError:
    text = f"Blob {sha256} could not be {what}: the object store answered {status}."
    if status in (401, 403):
        text += " Check the key, its permissions and the region."
    return StorageError(text, retry_after=1.0)
