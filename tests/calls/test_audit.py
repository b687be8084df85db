"""The audit chain: what was changed, taken out, moved, added or cut off afterwards is named."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agent3.calls.audit import Broken, delete_rows, export_lines, read_lines, verify_database
from agent3.calls.prices import Prices
from agent3.calls.steps.ledger import COLUMNS, FRACTIONS, Ledger
from agent3.directory import Directory
from agent3.env import REAL
from agent3.errors import Agent3Error, StorageUnsure
from agent3.identity.clients import StoredClients
from agent3.identity.own_keys import OwnKey, is_signed_with, open_own_keys
from agent3.model import Agent, Price
from agent3.observe.metrics import Metrics
from agent3.storage import Database, Transaction
from agent3.storage.audit import ACTOR, Segment, link_record, link_row, record, record_change
from tests.support.storage import using

Statement = tuple[Any, ...]


def a_row(number: int, at: float = 1e9) -> tuple[Any, ...]:
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    values |= {"id": f"{number:032}", "job": f"{number:032}", "turn": 1, "at": at + number / 7, "status": "done"}
    values |= {"seconds": 0.1 + number / 3e5, "cost": number / 3e7, "principal": f"client-{number % 3}", "agent": "ä"}
    return tuple(values[name] for name in COLUMNS)


async def open_key(database: Database) -> OwnKey:
    return await open_own_keys(database, "", ":memory:", REAL).key("audit")


def a_ledger(database: Database, key: OwnKey | None, mode: Any = "batched") -> Ledger:
    async def load() -> OwnKey:
        assert key is not None
        return key

    return Ledger(database, mode, REAL, Metrics(), Segment(database, REAL, load if key else None, FRACTIONS))


def known(key: OwnKey | None) -> Callable[[str, bytes, bytes], bool | None]:
    def is_signed(name: str, signature: bytes, content: bytes) -> bool | None:
        return is_signed_with(key.jwk(), signature, content) if key is not None and key.jwk()["kid"] == name else None

    return is_signed


async def write_rows(ledger: Ledger, numbers: Sequence[int], at: float = 1e9) -> None:
    for number in numbers:
        await ledger.write(a_row(number, at), refusal=False)
    await ledger.flush()


async def run_all(database: Database, *statements: Statement) -> None:
    async def work(tx: Transaction) -> None:
        for sql, *given in statements:
            await tx.run(sql, *given)

    await database.write(work)


async def copy_tables(database: Database) -> dict[str, list[dict[str, Any]]]:
    return {name: [dict(row) for row in await database.all(f"SELECT * FROM {name}")] for name in ("calls", "audit")}


async def put_back(database: Database, tables: dict[str, list[dict[str, Any]]]) -> None:
    async def work(tx: Transaction) -> None:
        for name, rows in tables.items():
            await tx.run(f"DELETE FROM {name}")
            marks = ", ".join("?" * len(rows[0]))
            await tx.many(f"INSERT INTO {name} ({', '.join(rows[0])}) VALUES ({marks})", [[*r.values()] for r in rows])

    await database.write(work)


async def broken_at(database: Database, key: OwnKey, head: tuple[int, str] | None = None) -> str:
    try:
        await verify_database(database, known(key), head)
    except Broken as broken:
        return broken.where
    return ""


async def make_links_anew(database: Database, segment: int, first: int) -> None:
    """What somebody does who knows how links are made, but has no key."""
    rows = await database.all("SELECT * FROM calls WHERE segment = ? ORDER BY sequence", segment)
    for before, row in itertools.pairwise(rows):
        if row["sequence"] >= first:
            values = [row[name] for name in COLUMNS]
            for place in FRACTIONS:
                values[place] = f"{values[place]:.15g}"
            (link,) = [one["link"] for one in await database.all("SELECT link FROM calls WHERE id = ?", before["id"])]
            made = link_row(link, segment, row["sequence"], values)
            await run_all(database, ("UPDATE calls SET link = ? WHERE id = ?", made, row["id"]))


def test_the_first_bad_row_is_named_after_every_kind_of_change(url: str) -> None:
    async def story(database: Database) -> None:
        key = await open_key(database)
        one, two = a_ledger(database, key), a_ledger(database, key, "durable")
        await write_rows(one, range(20))
        await one.sign_head()
        await write_rows(one, range(20, 25))
        await asyncio.gather(*(two.write(a_row(number), refusal=False) for number in range(50, 60)))
        await database.write(lambda tx: record_change(tx, REAL, "agent added", "ä", b"{}", "alice"))
        await one.aclose()
        report = await verify_database(database, known(key))
        assert (report["rows"], report["unsigned_rows"], report["outside"]) == (35, 10, 0), "the second is not closed"
        earlier = report["head"].split(":")
        await two.aclose()
        report = await verify_database(database, known(key))
        assert (report["records"], report["unsigned_records"], report["unsigned_rows"]) == (6, 0, 0)
        opened = [row["number"] for row in await database.all("SELECT number FROM audit WHERE kind = 'open'")]
        first, second = opened[0], opened[1]
        where = f"WHERE segment = {first} AND sequence"
        forged = dict(zip(COLUMNS, a_row(99, REAL.now()), strict=True))
        names, marks = ", ".join(forged), ", ".join("?" * len(forged))
        cases: list[tuple[str, list[Statement], str]] = [
            ("an edit", [(f"UPDATE calls SET status = 'failed' {where} = 5",)], f"row {first}:5 "),
            ("an edit of a fraction", [(f"UPDATE calls SET cost = cost * 2 {where} = 9",)], f"row {first}:9 "),
            ("an edit of nothing to something", [(f"UPDATE calls SET code = '' {where} = 6",)], f"row {first}:6 "),
            ("a deletion", [(f"DELETE FROM calls {where} = 7",)], f"row {first}:7"),
            ("the first", [(f"DELETE FROM calls {where} = 1",)], f"row {first}:1"),
            (
                "a swap",
                [
                    (f"UPDATE calls SET sequence = -1 {where} = 3",),
                    (f"UPDATE calls SET sequence = 3 {where} = 4",),
                    (f"UPDATE calls SET sequence = 4 {where} = -1",),
                ],
                f"row {first}:3 ",
            ),
            ("a cut at the end", [(f"DELETE FROM calls {where} > 22",)], f"row {first}:23"),
            ("a whole segment", [(f"DELETE FROM calls WHERE segment = {second}",)], f"row {second}:1"),
            ("a row of no segment", [(f"INSERT INTO calls ({names}) VALUES ({marks})", *forged.values())], "call 0"),
            ("a row of its own", [("UPDATE calls SET segment = 4 WHERE segment = 1",)], "row 4:1"),
            ("a record", [("DELETE FROM audit WHERE number = 2",)], "record 2"),
            ("who did it", [("UPDATE audit SET who = 'bob' WHERE who = 'alice'",)], "record 4"),
            ("what was done", [("UPDATE audit SET what = 'x' WHERE who = 'alice'",)], "record 4"),
            ("the records, and not the rows", [("DELETE FROM audit",)], f"row {first}:1"),
            ("the records at the end", [(f"DELETE FROM audit WHERE number >= {second}",)], f"row {second}:1"),
            ("a signature", [("UPDATE audit SET signature = 'AAAA' WHERE number = 3",)], "record 3"),
            ("no signature", [("UPDATE audit SET signature = NULL WHERE number = 3",)], "record 3"),
        ]
        tables = await copy_tables(database)
        assert await broken_at(database, key) == ""
        for name, statements, expected in cases:
            await run_all(database, *statements)
            assert (await broken_at(database, key)).startswith(expected), name
            await put_back(database, tables)
        # Somebody who makes all links anew meets the signed heads.
        await run_all(database, (f"UPDATE calls SET status = 'failed' {where} = 5",))
        await make_links_anew(database, first, 5)
        assert await broken_at(database, key) == f"row {first}:20"
        await put_back(database, tables)
        # Who removes rows and says so, as retention does, has no key to say it with.
        rows = await database.all(f"SELECT link FROM calls {where} = 5")
        await run_all(database, (f"DELETE FROM calls {where} = 5",))
        gaps = {"why": "retention", "gaps": [[first, 5, 5, rows[0]["link"]]]}
        await database.write(lambda tx: record(tx, REAL, "removed", "retention", gaps))
        assert await broken_at(database, key) == "record 7"
        await put_back(database, tables)
        # Everything since some moment cut off, records too: only a head that was noted elsewhere tells.
        await run_all(
            database,
            ("DELETE FROM audit WHERE number > 2",),
            (f"DELETE FROM calls {where} > 20",),
            (f"DELETE FROM calls WHERE segment = {second}",),
        )
        assert await broken_at(database, key) == ""
        assert await broken_at(database, key, (int(earlier[0]), earlier[1])) == "record 3"
        await put_back(database, tables)
        # A copy elsewhere is held to the same.
        lines = [line async for line in export_lines(database, [key.jwk()])]
        assert read_lines(lines, lambda _: known(key), None)["rows"] == 35
        for bad, where_bad in ((lines[:-1], f"row {second}:10"), (lines[:9] + lines[10:], f"row {first}:3")):
            with pytest.raises(Broken) as caught:
                read_lines(bad, lambda _: known(key), None)
            assert caught.value.where == where_bad
        assert b'"alice"' in b"".join(lines)

    using(url, story)


def test_what_retention_and_erasure_remove_is_not_missing(url: str) -> None:
    async def story(database: Database) -> None:
        key = await open_key(database)
        ledger = a_ledger(database, key)
        await write_rows(ledger, range(30))
        await ledger.sign_head()
        old = a_row(10)[COLUMNS.index("at")]

        async def work(tx: Transaction) -> int:
            gone = await delete_rows(tx, REAL, "at < ?", old, why="retention", signer=key)
            return gone + await delete_rows(tx, REAL, "principal = ?", "client-1", why="erased", signer=key)

        assert await database.write(work) == 17
        report = await verify_database(database, known(key))
        assert (report["rows"], report["removed"]) == (13, 17)
        await write_rows(ledger, range(30, 40))
        await ledger.aclose()
        assert (await verify_database(database, known(key)))["rows"] == 23
        await run_all(database, ("DELETE FROM calls WHERE sequence = 31",))
        assert await broken_at(database, key) == "row 1:31"

    using(url, story)


class Unsure:
    """A database whose commits sometimes happen unheard, and sometimes not at all."""

    def __init__(self, database: Database):
        self._database = database
        self.fates: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        await self._meet(self._database.many, sql, rows)

    async def append(self, *given: Any) -> int:
        found: int = await self._meet(self._database.append, *given)
        return found

    async def _meet(self, write: Callable[..., Any], *given: Any) -> Any:
        fate = self.fates.pop(0) if self.fates else "well"
        done = await write(*given) if fate != "lost" else None
        if fate != "well":
            raise StorageUnsure("the connection was lost")
        return done


def test_a_row_whose_fate_is_not_known_stands_in_the_chain_once(url: str) -> None:
    async def story(database: Database) -> None:
        for number, fates in enumerate((["unheard"], ["lost"], ["unheard", "lost", "unheard"], ["lost", "lost"])):
            unsure = Unsure(database)
            ledger = a_ledger(unsure, None, "durable")
            first = 100 * number
            await ledger.write(a_row(first), refusal=False)
            unsure.fates = list(fates)
            with pytest.raises(StorageUnsure):
                await ledger.write(a_row(first + 1), refusal=False)
            unsure.fates = unsure.fates[:1]
            several = (ledger.write(a_row(first + 2 + one), refusal=False) for one in range(3))
            await asyncio.gather(*several, return_exceptions=True)
            unsure.fates = []
            await ledger.aclose()
        # Of two processes that record the same turn, one comes too late, and its chain says so.
        late = a_ledger(database, None, "batched")
        await write_rows(late, (900, 1, 901))
        await late.aclose()
        report = await verify_database(database, known(None))
        assert (report["rows"], report["removed"]) == (22, 1)
        count = await database.one("SELECT COUNT(*) AS count FROM calls")
        assert count is not None
        assert count["count"] == 22, "each is there once"

    using(url, story)


def test_a_change_of_configuration_is_recorded_with_its_effect(url: str) -> None:
    async def story(database: Database) -> None:
        directory, clients = Directory(database, REAL), StoredClients(database)
        token = ACTOR.set("alice")
        try:
            await directory.add(Agent(id="shop", name="Shop"))
            await Prices(database, ()).set("shop", None, Price(call=0.5))
            key = await clients.add("bob")
            await clients.stop("bob")
            await directory.remove("shop")
        finally:
            ACTOR.reset(token)
        await clients.remove("bob")
        with pytest.raises(Agent3Error):
            await directory.remove("shop")
        with pytest.raises(Agent3Error):
            await clients.remove("bob")
        rows = await database.all("SELECT * FROM audit ORDER BY number")
        assert [(row["what"], row["who"]) for row in rows] == [
            ("agent stored", "alice"),
            ("price set", "alice"),
            ("client added", "alice"),
            ("client stopped", "alice"),
            ("agent removed", "alice"),
            ("client removed", ""),
        ], "what failed has no record"
        assert key not in repr([dict(row) for row in rows])
        assert (await verify_database(database, known(None)))["records"] == 6

    using(url, story)


def test_rows_from_before_the_chain_are_outside_of_it() -> None:
    async def story(database: Database) -> None:
        await database.append("calls", COLUMNS, [a_row(1)])
        ledger = a_ledger(database, None)
        await write_rows(ledger, (2,))
        await ledger.aclose()
        report = await verify_database(database, known(None))
        assert (report["rows"], report["outside"], report["unsigned_rows"]) == (1, 1, 1)

    using(":memory:", story)


def test_links_are_made_as_the_documentation_says() -> None:
    """Fixed values: whoever verifies with a program of their own relies on them."""
    assert link_record("0" * 64, 1, 1.5, "open", "", "ab", '{"heads":[]}') == (
        "f89a4d63de8bccafbfd87da2e2d27e8d2898ae357655d1582ecc113aa25e3268"
    )
    assert (
        link_row("0" * 64, 1, 1, ["é", None, 7, "0.25"])
        == "6eeb4213fc78feae5deb7c5893071bdd70757920fe5f2470de2cf3c399f0a8c4"
    )
