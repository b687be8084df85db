"""The audit chain read: verified, exported, and what may be taken out of it.

It knows records, rows and keys, not where they come from: a database and a file of ``export`` are verified alike. How
links are made is in ``agent3.storage.audit``.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from agent3.calls.steps.ledger import COLUMNS, FRACTIONS
from agent3.env import Env
from agent3.errors import ValidationError
from agent3.storage import Database, Transaction
from agent3.storage.audit import (
    BEGIN,
    LINKED,
    Signer,
    link_record,
    link_row,
    list_gaps,
    make_who_digest,
    record,
    signed_text,
)

__all__ = ["Broken", "IsSigned", "Verifier", "delete_rows", "export_lines", "read_lines", "verify_database"]

_PAGE = 2_000
_FORMAT = 1
_RECORD = ("number", "at", "kind", "what", "who", "salt", "who_digest", "detail", "link", "key", "signature")
_ROW = (*COLUMNS, *LINKED)
_ROWS = f"SELECT {', '.join(_ROW)} FROM calls WHERE segment = ? AND sequence > ? ORDER BY sequence LIMIT {_PAGE}"
IsSigned = Callable[[str, bytes, bytes], bool | None]
"""Whether the key of this id made this signature of this content; None where the key is not known."""


class Broken(Exception):
    """The chain does not hold: at which row, and what is wrong there."""

    def __init__(self, where: str, what: str):
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


class Verifier:
    """Takes all records of the spine, then all rows in the order of segment and sequence, then ``finish``.

    Each may raise Broken. ``head`` is a number and link that an earlier verification named.
    """

    def __init__(self, is_signed: IsSigned, head: tuple[int, str] | None = None):
        self._is_signed = is_signed
        self._head = head
        self._before = BEGIN
        self._number = 0
        self._begun_at: float | None = None
        self._opened: dict[int, str] = {}
        self._closed: dict[int, int] = {}
        self._heads: defaultdict[int, dict[int, tuple[str, int]]] = defaultdict(dict)
        self._gaps: defaultdict[int, dict[int, tuple[int, str]]] = defaultdict(dict)
        self._signed: dict[int, int] = {}
        """How far each segment is covered by a signature."""
        self._named: dict[int, int] = {}
        """How far it is named by a record: the next signature covers that."""
        self._signed_number = 0
        self._unknown_keys: set[str] = set()
        self._segment = 0
        self._sequence = 0
        self._link = BEGIN
        self._rows = 0
        self._removed = 0
        self._unsigned_rows = 0
        self._seen: set[int] = set()

    @property
    def records(self) -> int:
        """How many records were taken."""
        return self._number

    def take_record(self, one: Mapping[str, Any]) -> None:
        """The next record of the spine."""
        number, where = int(one["number"]), f"record {one['number']}"
        if number != self._number + 1:
            raise Broken(f"record {self._number + 1}", "it is missing")
        digest = one["who_digest"]
        if one["who"] is not None and make_who_digest(str(one["salt"]), one["who"]) != digest:
            raise Broken(where, "the name of who did it was changed")
        made = link_record(self._before, number, one["at"], one["kind"], one["what"], digest, one["detail"])
        if made != one["link"]:
            raise Broken(where, "it, or the link before it, was changed")
        self._number, self._before = number, made
        if self._begun_at is None:
            self._begun_at = float(one["at"])
        if self._head is not None and number == self._head[0] and made != self._head[1]:
            raise Broken(where, "it differs from the head that was given")
        self._take_detail(number, one["kind"], made, msgspec.json.decode(one["detail"]))
        if one["signature"] is not None:
            self._take_signature(where, number, one["key"], one["signature"], made)
        elif self._signed_number and one["kind"] != "change":
            # Whoever can write to the database can add records, and the next signature would cover them.
            raise Broken(
                where, f"it is not signed, unlike every other record of the kind {one['kind']!r} since the first"
            )

    def _take_signature(self, where: str, number: int, key: str, signature: str, link: str) -> None:
        try:
            is_good = self._is_signed(str(key), base64.b64decode(signature, validate=True), signed_text(link))
        except (binascii.Error, ValueError):
            is_good = False
        if is_good is False:
            raise Broken(where, "its signature is invalid")
        if is_good is None:
            self._unknown_keys.add(str(key))
            return
        self._signed_number = number
        self._signed.update(self._named)

    def _take_detail(self, number: int, kind: str, link: str, detail: Any) -> None:
        if kind == "open":
            self._opened[number] = link
            for segment, sequence, head in detail["heads"]:
                self._name_head(segment, sequence, head, number)
        elif kind in ("head", "close"):
            self._name_head(detail["segment"], detail["sequence"], detail["link"], number)
            if kind == "close":
                self._closed[detail["segment"]] = detail["sequence"]
        elif kind == "removed":
            for segment, first, last, after in detail["gaps"]:
                self._gaps[segment][first] = (last, after)
                self._removed += last - first + 1

    def _name_head(self, segment: int, sequence: int, link: str, number: int) -> None:
        self._heads[segment][sequence] = (link, number)
        self._named[segment] = max(sequence, self._named.get(segment, 0))

    def take_row(self, row: Mapping[str, Any]) -> None:
        """The next row."""
        segment, sequence = int(row["segment"]), int(row["sequence"])
        if segment != self._segment:
            self._end_segment()
            self._begin_segment(segment)
        where = f"row {segment}:{sequence} (call {str(row['id'])[:64]})"
        self._skip_gaps()
        if sequence != self._sequence + 1:
            raise Broken(f"row {segment}:{self._sequence + 1}", "it is missing")
        if sequence > self._closed.get(segment, sequence):
            raise Broken(where, "it was added after its segment was closed")
        values = [row[name] for name in COLUMNS]
        for place in FRACTIONS:
            if values[place] is not None:
                values[place] = f"{values[place]:.15g}"
        made = link_row(self._link, segment, sequence, values)
        if made != row["link"]:
            raise Broken(where, "it, or the link before it, was changed")
        self._rows += 1
        if sequence > self._signed.get(segment, 0):
            self._unsigned_rows += 1
        self._reach(sequence, made)

    def _begin_segment(self, segment: int) -> None:
        if segment not in self._opened or segment in self._seen:
            raise Broken(f"row {segment}:1", "no record of the spine opened its segment")
        self._seen.add(segment)
        self._segment, self._sequence, self._link = segment, 0, self._opened[segment]

    def _skip_gaps(self) -> None:
        while (gap := self._gaps[self._segment].get(self._sequence + 1)) is not None:
            self._reach(*gap)

    def _reach(self, sequence: int, link: str) -> None:
        self._sequence, self._link = sequence, link
        head = self._heads[self._segment].get(sequence)
        if head is not None and head[0] != link:
            raise Broken(
                f"row {self._segment}:{sequence}",
                f"it does not match record {head[1]}: it or an earlier one was changed",
            )

    def _end_segment(self) -> None:
        if not self._segment:
            return
        self._skip_gaps()
        last = max(self._heads[self._segment], default=0)
        if self._sequence < last:
            raise Broken(
                f"row {self._segment}:{self._sequence + 1}",
                (
                    f"it is missing, and so is everything up to {last}, which record "
                    f"{self._heads[self._segment][last][1]} names"
                ),
            )
        self._segment = 0

    def finish(self, outside: Iterable[tuple[str, float]] = ()) -> dict[str, Any]:
        """What was found, after everything was taken. ``outside`` are ids and times of rows without a segment."""
        self._end_segment()
        for segment in sorted(self._opened):
            if segment not in self._seen:
                self._begin_segment(segment)
                self._end_segment()
        if self._head is not None and self._number < self._head[0]:
            raise Broken(f"record {self._number + 1}", f"it is missing, and so is everything up to {self._head[0]}")
        older = 0
        for call, at in outside:
            if self._begun_at is not None and at >= self._begun_at:
                raise Broken(f"call {call[:64]}", "it is in no segment, although it is newer than the chain")
            older += 1
        return {
            "ok": True,
            "records": self._number,
            "rows": self._rows,
            "removed": self._removed,
            "outside": older,
            "unsigned_records": self._number - self._signed_number,
            "unsigned_rows": self._unsigned_rows,
            "unknown_keys": sorted(self._unknown_keys),
            "head": f"{self._number}:{self._before}",
        }


async def _records(database: Database) -> AsyncIterator[dict[str, Any]]:
    number = 0
    while True:
        page = await database.all(
            f"SELECT {', '.join(_RECORD)} FROM audit WHERE number > ? ORDER BY number LIMIT {_PAGE}", number
        )
        for row in page:
            yield {name: row[name] for name in _RECORD}
        if len(page) < _PAGE:
            return
        number = page[-1]["number"]


async def _rows(database: Database, records: int) -> AsyncIterator[dict[str, Any]]:
    """The rows, after so many records were read: without those of segments that were opened since."""
    segment = 0
    while True:
        found = await database.one("SELECT MIN(segment) AS segment FROM calls WHERE segment > ?", segment)
        if found is None or found["segment"] is None:
            return
        segment, sequence = found["segment"], -(2**62)
        if segment > records and await database.one("SELECT number FROM audit WHERE number = ?", segment) is not None:
            return
        while True:
            page = await database.all(_ROWS, segment, sequence)
            for row in page:
                yield {name: row[name] for name in _ROW}
            if len(page) < _PAGE:
                break
            sequence = page[-1]["sequence"]


async def verify_database(
    database: Database, is_signed: IsSigned, head: tuple[int, str] | None = None
) -> dict[str, Any]:
    """Verify the chain of a database that may be in use; Broken names the first bad row."""
    while True:
        verifier = Verifier(is_signed, head)
        removals = await _count_removals(database)
        try:
            async for one in _records(database):
                verifier.take_record(one)
            async for row in _rows(database, verifier.records):
                verifier.take_row(row)
            outside = await database.all("SELECT id, at FROM calls WHERE segment IS NULL ORDER BY at DESC LIMIT 1")
            report = verifier.finish((row["id"], row["at"]) for row in outside)
        except Broken:
            if await _count_removals(database) != removals:
                continue  # what was removed meanwhile is not missing
            raise
        count = await database.one("SELECT COUNT(*) AS count FROM calls WHERE segment IS NULL")
        return {**report, "outside": 0 if count is None else count["count"]}


async def _count_removals(database: Database) -> int:
    row = await database.one("SELECT COUNT(*) AS count FROM audit WHERE kind = 'removed'")
    return 0 if row is None else int(row["count"])


async def export_lines(database: Database, keys: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    """The whole chain as lines of JSON: a head with the public keys, the records, the rows."""
    yield msgspec.json.encode({"agent3_audit": _FORMAT, "keys": keys})
    records = 0
    async for one in _records(database):
        records = one["number"]
        yield msgspec.json.encode({"record": one})
    async for row in _rows(database, records):
        yield msgspec.json.encode({"row": row})


def read_lines(lines: Iterable[bytes], is_signed: Callable[[list[Any]], IsSigned], head: tuple[int, str] | None) -> Any:
    """Verify what ``export_lines`` wrote; Broken names the first bad row, ValidationError what is no export."""
    decoded = _decode_lines(lines)
    first = next(decoded, {})
    if first.get("agent3_audit") != _FORMAT or not isinstance(first.get("keys"), list):
        raise ValidationError("This is not an audit export. Use a file written by agent3 audit export.")
    verifier = Verifier(is_signed(first["keys"]), head)
    for number, line in enumerate(decoded, 2):
        try:
            if "record" in line:
                verifier.take_record(line["record"])
            else:
                verifier.take_row(line["row"])
        except (KeyError, TypeError, ValueError) as error:
            raise Broken(f"line {number}", f"it is neither a record nor a row ({error})") from None
    return verifier.finish()


def _decode_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number == 1:
                return
            raise Broken(f"line {number}", f"it cannot be read ({error})") from None


async def delete_rows(
    tx: Transaction, env: Env, where: str, *given: object, why: str, signer: Signer | None, who: str = ""
) -> int:
    """Delete rows of ``calls``, and record in the same transaction which links stood there; how many went."""
    gone = await tx.all(f"DELETE FROM calls WHERE {where} RETURNING segment, sequence, link", *given)
    gaps = list_gaps((row["segment"], row["sequence"], row["link"]) for row in gone if row["segment"] is not None)
    if gaps:
        await record(tx, env, "removed", why, {"why": why, "gaps": gaps}, signer=signer, who=who)
    return len(gone)
