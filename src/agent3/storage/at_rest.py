"""A database and blobs whose contents are encrypted: bytes go in and out in the clear, and lie there closed.

Every ``bytes`` parameter of a statement is encrypted, so each blob column is: calls and outcomes of jobs, events, dead
letters, messages, agents. So are texts that are marked as ``Private``. Columns that are searched, such as ids, names
and times, are not. What was written before encryption was turned on is read as it is. How is not known here: a
``Cipher`` does it.
"""

from __future__ import annotations

import asyncio
import base64
from asyncio import Future
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, cast

from agent3.errors import Corrupt
from agent3.storage.blobs import BlobStore
from agent3.storage.database import Database, Dialect, Notifier, Row, Transaction, Work
from agent3.storage.syntax import Syntax

__all__ = ["Cipher", "Private", "encrypt_blobs", "encrypt_database"]

T = TypeVar("T")
_TEXT = "a3e1:"
"""How an encrypted text begins."""
_LARGE = 262_144
"""Bytes beyond which a value is encrypted and decrypted in a thread: it takes longer than going there and back."""


class Private(str):
    """A text for a column that is never searched: encrypted where the database is."""

    __slots__ = ()


class Cipher(Protocol):
    """Closes bytes and opens them again. Safe to use from several threads at once."""

    def encrypt(self, plain: bytes) -> bytes:
        """The bytes, closed."""

    def decrypt(self, stored: bytes) -> bytes:
        """The bytes, opened; those that were never closed as they are. Corrupt for what was changed."""

    def is_closed(self, stored: bytes) -> bool:
        """Whether bytes are closed, by how they begin."""


def encrypt_database(database: Database, cipher: Cipher) -> Database:
    """The same database, with every blob encrypted from now on."""
    kind = _EncryptedNotifier if isinstance(database, Notifier) else _Encrypted
    return kind(database, cipher)


def encrypt_blobs(blobs: BlobStore, cipher: Cipher) -> BlobStore:
    """The same blobs, with their bytes encrypted from now on. Equal ones are then kept as often as they are put."""
    return _EncryptedBlobs(blobs, cipher)


class _EncryptedBlobs:
    """A store of blobs around another one."""

    def __init__(self, inner: BlobStore, cipher: Cipher):
        self._cipher = cipher
        self._inner = inner
        self.exists, self.delete, self.discard = inner.exists, inner.delete, inner.discard

    async def put(self, data: bytes) -> str:
        return await self._inner.put(await asyncio.to_thread(self._cipher.encrypt, data))

    async def get(self, sha256: str) -> bytes:
        return await asyncio.to_thread(self._cipher.decrypt, await self._inner.get(sha256))


class _Encrypted:
    """A Database around another one."""

    def __init__(self, inner: Database, cipher: Cipher):
        self._inner = inner
        self._cipher = cipher
        self.dialect: Dialect = inner.dialect
        self.syntax: Syntax = inner.syntax
        self.url = inner.url

    async def write(self, work: Work[T], *, frees: bool = False, calm: bool = False) -> T:
        return await self._inner.write(lambda tx: work(_Statements(tx, self._cipher)), frees=frees, calm=calm)

    async def statement(self, sql: str, *params: object) -> Row | None:
        row = await self._inner.statement(sql, *await _close_aside(self._cipher, params))
        return None if row is None else await _open_aside(self._cipher, row)

    async def gather(self, sql: str, key: str, *params: object) -> Row | None:
        row = await self._inner.gather(sql, key, *_close(self._cipher, params))
        return None if row is None else _open(self._cipher, row)

    async def all(self, sql: str, *params: object) -> list[Row]:
        return [_open(self._cipher, row) for row in await self._inner.all(sql, *_close(self._cipher, params))]

    async def one(self, sql: str, *params: object) -> Row | None:
        row = await self._inner.one(sql, *_close(self._cipher, params))
        return None if row is None else await _open_aside(self._cipher, row)

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._inner.many(sql, [_close(self._cipher, row) for row in rows])

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        return await self._inner.append(table, columns, [_close(self._cipher, row) for row in rows])

    async def shrink(self) -> int:
        return await self._inner.shrink()

    async def check(self, *, thorough: bool = False) -> dict[str, object]:
        return await self._inner.check(thorough=thorough)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _EncryptedNotifier(_Encrypted):
    """The same around one that carries texts between processes."""

    def listen(self, channel: str, on_text: Callable[[str], None]) -> AbstractAsyncContextManager[Future[None]]:
        return cast("Notifier", self._inner).listen(channel, on_text)

    async def notify(self, channel: str, text: str) -> None:
        await cast("Notifier", self._inner).notify(channel, text)


class _Statements:
    """A Transaction around another one."""

    __slots__ = ("_cipher", "_inner")

    def __init__(self, inner: Transaction, cipher: Cipher):
        self._inner = inner
        self._cipher = cipher

    async def all(self, sql: str, *params: object) -> list[Row]:
        return [_open(self._cipher, row) for row in await self._inner.all(sql, *_close(self._cipher, params))]

    async def one(self, sql: str, *params: object) -> Row | None:
        row = await self._inner.one(sql, *_close(self._cipher, params))
        return None if row is None else _open(self._cipher, row)

    async def run(self, sql: str, *params: object) -> int:
        return await self._inner.run(sql, *_close(self._cipher, params))

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._inner.many(sql, [_close(self._cipher, row) for row in rows])


async def _close_aside(cipher: Cipher, params: Sequence[object]) -> Sequence[object]:
    """The same as ``_close``; in a thread where it takes long, as for the blobs of a database."""
    if any(isinstance(value, bytes) and len(value) > _LARGE for value in params):
        return await asyncio.to_thread(_close, cipher, params)
    return _close(cipher, params)


async def _open_aside(cipher: Cipher, row: Row) -> Row:
    found = cast("dict[str, Any]", dict(cast("Any", row)))
    if any(isinstance(value, bytes) and len(value) > _LARGE for value in found.values()):
        return await asyncio.to_thread(_open, cipher, row)
    return _open(cipher, row)


def _close(cipher: Cipher, params: Sequence[object]) -> Sequence[object]:
    return [_close_value(cipher, value) for value in params]


def _close_value(cipher: Cipher, value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return cipher.encrypt(bytes(value))
    # One that only looks encrypted would be opened when it is read: who has a copy of the database could have a gateway
    # decrypt it, by sending what stands there as a name or a reason.
    if isinstance(value, Private) or (isinstance(value, str) and value.startswith(_TEXT)):
        return _TEXT + base64.b64encode(cipher.encrypt(value.encode("utf-8", "surrogatepass"))).decode()
    if isinstance(value, list) and any(isinstance(one, bytes | str) for one in value):  # an array of PostgreSQL
        return [_close_value(cipher, one) for one in value]
    return value


def _open(cipher: Cipher, row: Row) -> Row:
    found = cast("dict[str, Any]", dict(cast("Any", row)))
    opened: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, bytes) and cipher.is_closed(value):
            opened[name] = cipher.decrypt(value)
        elif isinstance(value, str) and value.startswith(_TEXT):
            opened[name] = _open_text(cipher, value)
    return {**found, **opened} if opened else row


def _open_text(cipher: Cipher, text: str) -> str:
    """A text that may be encrypted: a stranger may have written one that only begins like it."""
    try:
        stored = base64.b64decode(text.removeprefix(_TEXT), validate=True)
        return cipher.decrypt(stored).decode("utf-8", "surrogatepass") if cipher.is_closed(stored) else text
    except (Corrupt, ValueError):
        return text
