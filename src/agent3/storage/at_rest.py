"""A database and blobs whose contents are encrypted: bytes go in and out in the clear, and lie there closed.

Every ``bytes`` parameter of a statement is encrypted, so each blob column is: calls and outcomes of jobs, events, dead
letters, messages, agents. So are texts that are marked as ``Private``. Columns that are searched, such as ids, names
and times, are not. Each value is bound to its table, column and row, so that it opens nowhere else: which these are is
read from the statement. What was written before encryption was turned on is read as it is, unless the database was
encrypted from its beginning. How is not known here: a ``Cipher`` does it.
"""

from __future__ import annotations

import asyncio
import base64
import re
from asyncio import Future
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import quote

from agent3.errors import Corrupt, SetupError
from agent3.observe.logs import get as logger
from agent3.storage.blobs import BlobStore
from agent3.storage.database import Database, Dialect, Notifier, Row, Transaction, Work
from agent3.storage.syntax import Syntax

__all__ = ["TABLES", "Cipher", "Private", "encrypt_blobs", "encrypt_database"]

log = logger("storage")

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

    strict: bool
    """Whether everything here was closed with its place, so that anything else was put there by somebody else."""

    def encrypt(self, plain: bytes, place: bytes = b"") -> bytes:
        """The bytes, closed, with the place that they belong to."""

    def decrypt(self, stored: bytes) -> tuple[bytes, bytes]:
        """The bytes, opened, and their place; Corrupt for what was changed. Bytes that were never closed come back as
        they are, without a place."""

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
        return (await asyncio.to_thread(self._cipher.decrypt, await self._inner.get(sha256)))[0]


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
        row = await self._inner.statement(sql, *await _close_aside(self._cipher, sql, params))
        return None if row is None else await _open_aside(self._cipher, sql, params, row)

    async def gather(self, sql: str, key: str, *params: object, many: str = "") -> Row | None:
        row = await self._inner.gather(sql, key, *_close(self._cipher, sql, params), many=many)
        return None if row is None else _open(self._cipher, sql, params, row)

    async def all(self, sql: str, *params: object) -> list[Row]:
        rows = await self._inner.all(sql, *_close(self._cipher, sql, params))
        return [_open(self._cipher, sql, params, row) for row in rows]

    async def one(self, sql: str, *params: object) -> Row | None:
        row = await self._inner.one(sql, *_close(self._cipher, sql, params))
        return None if row is None else await _open_aside(self._cipher, sql, params, row)

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._inner.many(sql, [_close(self._cipher, sql, row) for row in rows])

    async def append(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        return await self._inner.append(table, columns, [_close(self._cipher, sql, row) for row in rows])

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
        rows = await self._inner.all(sql, *_close(self._cipher, sql, params))
        return [_open(self._cipher, sql, params, row) for row in rows]

    async def one(self, sql: str, *params: object) -> Row | None:
        row = await self._inner.one(sql, *_close(self._cipher, sql, params))
        return None if row is None else _open(self._cipher, sql, params, row)

    async def run(self, sql: str, *params: object) -> int:
        return await self._inner.run(sql, *_close(self._cipher, sql, params))

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._inner.many(sql, [_close(self._cipher, sql, row) for row in rows])


# Closing and opening


async def _close_aside(cipher: Cipher, sql: str, params: Sequence[object]) -> Sequence[object]:
    """The same as ``_close``; in a thread where it takes long, as for the blobs of a database."""
    if any(isinstance(value, bytes) and len(value) > _LARGE for value in params):
        return await asyncio.to_thread(_close, cipher, sql, params)
    return _close(cipher, sql, params)


async def _open_aside(cipher: Cipher, sql: str, params: Sequence[object], row: Row) -> Row:
    found = cast("dict[str, Any]", dict(cast("Any", row)))
    if any(isinstance(value, bytes) and len(value) > _LARGE for value in found.values()):
        return await asyncio.to_thread(_open, cipher, sql, params, row)
    return _open(cipher, sql, params, row)


def _close(cipher: Cipher, sql: str, params: Sequence[object]) -> Sequence[object]:
    if not any(isinstance(value, bytes | bytearray | memoryview | str | list) for value in params):
        return params
    return [_close_value(cipher, sql, params, number, value) for number, value in enumerate(params)]


def _close_value(cipher: Cipher, sql: str, params: Sequence[object], number: int, value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return cipher.encrypt(bytes(value), _place(sql, params, number))
    if isinstance(value, Private):
        return _close_text(cipher, value, _place(sql, params, number))
    # One that only looks encrypted would be opened when it is read: who has a copy of the database could have a gateway
    # decrypt it, by sending what stands there as a name or a reason.
    if isinstance(value, str) and value.startswith(_TEXT):
        return _close_text(cipher, value, b"")
    if isinstance(value, list):  # an array of PostgreSQL
        if value and isinstance(value[0], bytes):
            return [cipher.encrypt(one, _place(sql, params, number, at)) for at, one in enumerate(value)]
        if any(isinstance(one, str) and one.startswith(_TEXT) for one in value):
            return [_close_value(cipher, sql, params, number, one) for one in value]
    return value


def _close_text(cipher: Cipher, text: str, place: bytes) -> str:
    return _TEXT + base64.b64encode(cipher.encrypt(text.encode("utf-8", "surrogatepass"), place)).decode()


def _open(cipher: Cipher, sql: str, params: Sequence[object], row: Row) -> Row:
    found = cast("dict[str, Any]", dict(cast("Any", row)))
    opened: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, bytes):
            try:
                plain, place = cipher.decrypt(value)
                if place or cipher.strict:
                    _check_place(place, sql, params, name, found)
            except Corrupt as error:
                if "queue_messages" not in sql:
                    raise
                # One bad message must not hold up those behind it: as an empty one it becomes a dead letter.
                log.error("message %s is refused: %s", found.get("id"), error)
                plain = b""
            if plain is not value:
                opened[name] = plain
        elif isinstance(value, str):
            text, place = _open_text(cipher, value) if value.startswith(_TEXT) else (value, b"")
            if place or (cipher.strict and name in _PRIVATE and "call_bodies" in sql):
                _check_place(place, sql, params, name, found)
            if text is not value:
                opened[name] = text
    return {**found, **opened} if opened else row


def _open_text(cipher: Cipher, text: str) -> tuple[str, bytes]:
    """A text that may be encrypted, and its place: a stranger may have written one that only begins like it."""
    try:
        stored = base64.b64decode(text.removeprefix(_TEXT), validate=True)
        if not cipher.is_closed(stored):
            return text, b""
        plain, place = cipher.decrypt(stored)
        return plain.decode("utf-8", "surrogatepass"), place
    except (Corrupt, ValueError):
        return text, b""


# Places

_KEYS: Final = {
    "jobs": "id",
    "job_events": "job",
    "dead_letters": "id",
    "agents": "id",
    "routes": "agent",
    "agent_vectors": "agent",
    "queue_messages": "id",
    "a2a_replies": "message",
    "artifact_links": "artifact",
    "blobs": "sha256",
    "call_bodies": "id",
}
"""The tables with encrypted columns, and the column that tells their rows apart."""
_OWNERS: Final = {"a2a_replies": "agent"}
"""The column that a key is told apart by where it is not enough. A value that was written without it as a
parameter, as in earlier versions, is bound to its key alone, and still read."""
_PRIVATE: Final = frozenset({"request", "response"})
"""The columns of ``call_bodies`` that take nothing but ``Private`` texts."""
TABLES: Final = tuple(_KEYS)
_HEAD = re.compile(r"INSERT INTO (?P<into>\w+) \((?P<columns>[^)]*)\)|UPDATE (?P<changed>\w+)\s+SET\b")
_ARRAYS = re.compile(r"unnest\((?P<values>.*?)\)\s+AS \w+ \((?P<columns>[^)]*)\)", re.DOTALL)
_SELECTED = re.compile(r"\s*SELECT (?P<values>.*?)\s+FROM\b", re.DOTALL)
_GROUP = re.compile(r"[\s,]*\(")
_EQUAL = re.compile(r"(\w+) = \?")


class _Spot(NamedTuple):
    """The table and column that a parameter goes to, and which parameters are the key of its row and its owner."""

    name: str
    key: int
    owner: int | None


def _place(sql: str, params: Sequence[object], number: int, at: int | None = None) -> bytes:
    spot = _find_spots(sql).get(number)
    if spot is None:  # never written without one: it could not be told from what was moved there
        raise SetupError(f"Cannot tell from the statement where an encrypted value goes: {sql[:200]!r}.")
    key, owner = (
        None if one is None else params[one] if at is None else cast("Sequence[object]", params[one])[at]
        for one in (spot.key, spot.owner)
    )
    name = spot.name if spot.owner is None else f"{spot.name}\0{_quote(owner)}"
    return f"{name}\n{key}".encode("utf-8", "surrogatepass")


def _quote(owner: object) -> str:
    """An owner without line ends, so that it cannot be taken for a part of a key."""
    return quote(str(owner), safe="", errors="surrogatepass")


def _check_place(place: bytes, sql: str, params: Sequence[object], column: str, row: dict[str, Any]) -> None:
    """Corrupt unless a value belongs to the column and the row that it was read from."""
    name, _, key = place.decode("utf-8", "surrogatepass").partition("\n")
    table, _, known = name.partition(".")
    known, has_owner, owner = known.partition("\0")
    key_column, owner_column = _KEYS.get(table, ""), _OWNERS.get(table, "")
    if known == column and re.search(rf"\b{table}\b", sql):
        # Without its key a row was asked for by it.
        keys = [row[key_column]] if key_column in row else params
        owners = [row[owner_column]] if owner_column in row else _find_equal(owner_column, sql, params)
        if any(str(one) == key for one in keys) and (not has_owner or any(_quote(one) == owner for one in owners)):
            return
    raise Corrupt(
        f"A value in column {column!r} is not encrypted, or was moved from another row: the database was "
        "changed from outside. Restore it from a backup."
    )


def _find_equal(column: str, sql: str, params: Sequence[object]) -> list[object]:
    """The parameters that a statement compares a column with."""
    return [params[sql.count("?", 0, one.end() - 1)] for one in _EQUAL.finditer(sql) if one[1] == column]


@lru_cache(maxsize=512)
def _find_spots(sql: str) -> dict[int, _Spot]:
    """Where the parameters of a statement go, by their numbers; only those for tables with encrypted columns."""
    spots: dict[int, _Spot] = {}
    heads = list(_HEAD.finditer(sql))
    before: int | None = None
    for head, after in zip(heads, [*(one.start() for one in heads[1:]), len(sql)], strict=True):
        table = head["into"] or head["changed"]
        first, part = sql.count("?", 0, head.end()), sql[head.end() : after]
        for columns in _find_columns(head, part):
            key = next((first + at for at, column in columns if column == _KEYS.get(table)), before)
            before = key
            owner = next((first + at for at, column in columns if column == _OWNERS.get(table)), None)
            if key is not None and table in _KEYS:
                spots |= {first + at: _Spot(f"{table}.{column}", key, owner) for at, column in columns}
    return spots


def _find_columns(head: re.Match[str], part: str) -> Iterator[list[tuple[int, str]]]:
    """For each row of one INSERT or UPDATE: its parameters, by number, and the columns that they go to."""
    if head["into"] is None:
        yield [(part.count("?", 0, found.end() - 1), found[1]) for found in _EQUAL.finditer(part)]
    elif found := _ARRAYS.search(part) or _SELECTED.match(part):
        names = found["columns"] if "columns" in found.re.groupindex else head["columns"]
        yield _pair(part.count("?", 0, found.start("values")), found["values"], names)
    else:
        start = part.index("VALUES") + len("VALUES")
        while group := _GROUP.match(part, start):
            start = _find_end(part, group.end() - 1)
            yield _pair(part.count("?", 0, group.end()), part[group.end() : start - 1], head["columns"])


def _pair(number: int, values: str, columns: str) -> list[tuple[int, str]]:
    """The parameters in a list of values, and the columns that the values go to."""
    found, depth, column, names = [], 0, 0, [name.strip() for name in columns.split(",")]
    for one in values:
        depth += (one == "(") - (one == ")")
        if one == "?":
            found.append((number, names[column]))
            number += 1
        column += one == "," and not depth
    return found


def _find_end(text: str, opens: int) -> int:
    """The place behind the bracket that closes the one at ``opens``."""
    depth = 0
    for at in range(opens, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if not depth:
            return at + 1
    return len(text)
