"""``growth``: what a large catalogue and a long history cost those who call, each figure beside its limit.

``agent3 serve`` with a function is started on databases of 10, 1,000 and 10,000 agents with ten capabilities each, and
on one with a million rows in the ledger, 200,000 jobs and 20,000 dead letters, which are written straight into its
file. Each is asked what callers and operators ask, over HTTP. ``--tasks`` chooses among ``10``, ``1000``, ``10000`` and
``ledger``; ``--data`` keeps the databases in a folder, and takes those that are there; each run works on a copy.

    held      the longest time that the event loop gave no sign of life, by a thread of its process that asked it for
              one every few milliseconds
    calls     of the function, one after the other over four connections: while nothing else goes on (quiet), and while
              agents are added or old rows removed. ``ratio`` compares the two.
    disk      the size of the file after the rows that are past their time were removed, beside what it was

Everything else is the time of one answer, the median of several unless it says that it was the first.

A time is at most the CPU that the gateway took meanwhile: what a process does not get of a shared machine is no fault
of its own. ``wall_ms`` is the time by the clock alone. A figure that is above its limit has ``met`` no, and the bench
ends with 0 all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from agent3.calls.audit import verify_database
from agent3.calls.dead_letters import DeadLetters
from agent3.calls.statistics import _KEYS, _SUMS, Statistics
from agent3.calls.steps.ledger import COLUMNS, FRACTIONS
from agent3.directory import Directory
from agent3.env import REAL
from agent3.model import LOCAL, Agent, Call, Done, Failed, Part, Route, encode
from agent3.storage import open_database
from agent3.storage.audit import LINKED, Segment
from agent3.storage.checksums import append_checksum
from bench.harness import HEALTHY, ROOT, Options, Result, Row, Server, ask, bench, ratio, resident_mb, say, serving
from bench.load import Load, Request, percentile, with_asyncio
from bench.mcp import call, listing
from bench.search import Words

__all__ = ["run"]

SIZES = (10, 1_000, 10_000)
CALLS, JOBS, LETTERS, APPROVALS = 1_000_000, 200_000, 20_000, 20_000
OLD_CALLS, OLD_JOBS = 100_000, 20_000
"""Of these, how many are past their time."""
ADDED = 100
ASKED = 9
"""How often each thing is asked."""
DAY = 86_400.0
HELD_MS, QUERY_MS, START_MS, MEMORY_MB, ADD_MS, SLOWER = 50.0, 50.0, 3_000.0, 250.0, 10.0, 1.2
INDEXING_MS, SEARCH_MS = 10.0, 5.0
SEARCHES = 300
_SETTINGS = """
[limits]
per_minute = 1e9
burst = 1000000
concurrent = 1000

[search]
semantic = false

[calls]
ledger_days = 30
"""
_JSON = {"Content-Type": "application/json"}


@bench("growth", "a large catalogue and a long history: what callers and operators feel, beside its limits")
def run(options: Options) -> Result:
    rows: list[Row] = []
    ratios: dict[str, float | None] = {}
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        kept = options.data or scratch / "kept"
        kept.mkdir(parents=True, exist_ok=True)

        def copy(name: str, write: Callable[[Path], Coroutine[Any, Any, None]]) -> Path:
            if not (kept / name).exists():
                asyncio.run(write(kept / name))
            return Path(shutil.copy(kept / name, scratch / name))

        for size in SIZES:
            if not options.tasks or str(size) in options.tasks:
                path = copy(f"catalogue-{size}.db", partial(_write_catalogue, size))
                _measure_catalogue(size, path, options, rows, ratios)
        if not options.tasks or "ledger" in options.tasks:
            _measure_history(copy("ledger.db", _write_history), options, rows, ratios)
    return Result(rows, ratios)


# --- the gateway ----------------------------------------------------------------------------------------------------


class _Gateway:
    """One that runs, what was asked of it, and how long its event loop was held meanwhile."""

    def __init__(self, server: Server, held: Path, name: str, rows: list[Row]):
        self.server = server
        self._held = held
        self._name = name
        self._rows = rows
        self._begun = time.monotonic()

    def judge(self, what: str, value: float, limit: float | None, unit: str = "ms", **more: Any) -> float:
        """Note a figure beside its limit."""
        judged = {} if limit is None else {"limit": limit, "met": value <= limit}
        self._rows.append(Row(f"{self._name} {what}", extra={"value": round(value, 2), "unit": unit, **judged, **more}))
        say(
            f"{self._name} {what}: {value:,.1f} {unit}{f' (limit {limit:g})' if limit is not None else ''} {more or ''}"
        )
        return value

    def judge_start(self) -> None:
        """How long it took until it answered."""
        wall = self.server.start_seconds * 1e3
        self.judge("start", min(wall, self._cpu_ms()), START_MS, wall_ms=round(wall, 1))

    def _cpu_ms(self) -> float:
        """CPU time so far of all threads that it has, without the one that watches it."""
        watching = Path(f"{self._held}.thread")
        without = watching.read_text() if watching.exists() else ""
        total = 0
        for path in Path(f"/proc/{self.server.process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(path.read_text().split()[0]) if path.parent.name != without else 0
        return total / 1e6

    def time(
        self,
        what: str,
        asked: Request | list[Request],
        limit: float | None,
        *,
        count: int = ASKED,
        status: int = 200,
        share: float = 0.5,
    ) -> None:
        """Ask it some times, one after the other, and note what so many of the answers did not exceed."""
        laps: list[float] = []
        walls: list[float] = []
        for request in asked if isinstance(asked, list) else [asked] * count:
            began, busy = time.perf_counter(), self._cpu_ms()
            got, _, body = ask(self.server.port, request, timeout=60)
            walls.append((time.perf_counter() - began) * 1e3)
            laps.append(min(walls[-1], self._cpu_ms() - busy))
            if got != status or request.expect.encode() not in body:
                note = f"the gateway answered {got}: {body[:300].decode(errors='replace')}"
                say(f"{self._name} {what}: {note}")
                self._rows.append(Row(f"{self._name} {what}", errors=1, extra={"note": note}))
                return
        more: dict[str, Any] = {"worst_ms": round(max(laps), 1)} if count > 1 else {}
        wall = percentile(sorted(walls), share)
        self.judge(what, percentile(sorted(laps), share), limit, wall_ms=round(wall, 1), **more)

    def load(self, options: Options, seconds: float | None = None) -> Load:
        """Calls of the function, over four connections."""
        return with_asyncio(self.server.port, _CALL, seconds=seconds or options.seconds, connections=4)

    @contextlib.contextmanager
    def phase(self, what: str, limit: float = HELD_MS) -> Iterator[None]:
        """Note the longest hold of the event loop within."""
        began = time.monotonic()
        yield
        time.sleep(0.05)
        lines: list[dict[str, Any]] = (
            [json.loads(line) for line in self._held.read_text().splitlines()] if self._held.exists() else []
        )
        during = [line for line in lines if line["at"] >= began]
        worst: dict[str, Any] = max(during, key=lambda line: float(line["busy"]), default={"busy": 0.0, "where": ""})
        wall = max((line["held"] for line in during), default=0.0)
        note: dict[str, Any] = {"note": worst["where"]} if worst["where"] else {}
        self.judge(f"held {what}", worst["busy"] * 1e3, limit, wall_ms=round(wall * 1e3, 1), **note)


@contextlib.contextmanager
def _gateway(database: Path, name: str, rows: list[Row]) -> Iterator[_Gateway]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config, held = Path(folder, "agent3.toml"), Path(folder, "held.jsonl")
        config.write_text(_SETTINGS)

        def command(port: int, _: Path) -> list[str]:
            return [
                *(sys.executable, "-m", "bench.apps.watched", str(held), "serve", "bench.apps.crowd_agent:agent"),
                *("--port", str(port), "--config", str(config), "--db", f"sqlite:///{database}"),
            ]

        environment = {"PYTHONPATH": str(ROOT), "AGENT3_DATA": folder}
        with serving(command, HEALTHY, environment=environment, ready_seconds=120) as server:
            yield _Gateway(server, held, name, rows)


def _post(path: str, body: Any, expect: str = "") -> Request:
    return Request(path, expect, json.dumps(body).encode(), _JSON)


def _get(path: str, expect: str = "") -> Request:
    return Request(path, expect, method="GET")


def _rpc(path: str, method: str, params: Mapping[str, Any], expect: str = "") -> Request:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {**_JSON, "Accept": "application/json, text/event-stream", "A2A-Version": "1.0"}
    return Request(path, expect, json.dumps(body).encode(), headers)


_CALL = _post("/v1/call", {"agentId": "crowd", "capability": "say", "input": {"text": "hello"}}, "hello")


# --- the catalogue --------------------------------------------------------------------------------------------------


def _measure_catalogue(
    size: int, path: Path, options: Options, rows: list[Row], ratios: dict[str, float | None]
) -> None:
    words, name = Words(7), f"{size:,}"
    with _gateway(path, name, rows) as gateway:
        port = gateway.server.port
        gateway.judge_start()
        with gateway.phase("first searches", INDEXING_MS):
            gateway.time("first search", _post("/v1/search", {"query": words.text(5)}), None, count=1)
            began = time.perf_counter()
            while b"Indexing" in ask(port, _post("/v1/search", {"query": words.text(5)}), timeout=60)[2]:
                gateway.load(options, 0.2)
            gateway.judge("indexed after", time.perf_counter() - began, None, "s")
        with gateway.phase("quiet"):
            gateway.load(options, 0.5)
            quiet = gateway.load(options)
            gateway.judge("call quiet p99", quiet.p99_ms, None, p50_ms=round(quiet.p50_ms, 2))
        with gateway.phase("asked"):
            searches = [_post("/v1/search", {"query": words.text(5)}) for _ in range(SEARCHES)]
            gateway.time("search p99", searches, SEARCH_MS, share=0.99)
            agent = _get("/v1/agents/agent-7", "agent-7")
            gateway.time("agent", agent, QUERY_MS)
            gateway.time("agent unknown", _get("/v1/agents/agnet-7", "agnet-7"), QUERY_MS, status=404)
            unknown = {"agentId": "no-such-agent-at-all", "message": "hello"}
            gateway.time("call unknown", _post("/v1/call", unknown, "does not exist"), QUERY_MS, status=404)
            gateway.time("list", _get("/v1/agents?limit=50"), QUERY_MS)
            gateway.time("list with a query", _get(f"/v1/agents?limit=50&query={quote(words.text(3))}"), QUERY_MS)
            gateway.time("who", _get(f"/who?query={quote(words.text(3))}"), QUERY_MS)
            gateway.time("A2A card", _get("/.well-known/agent-card.json", "skills"), QUERY_MS)
            message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
            skill = {"message": {**message, "metadata": {"skillId": "no-such-skill"}}}
            gateway.time("A2A unknown skill", _rpc("/a2a", "SendMessage", skill, "error"), QUERY_MS)
            gateway.time("MCP tools/list", listing(expect="agent3_search"), QUERY_MS)
            unknown_tool = dataclasses.replace(call("x__y", {}, modern=True), expect="x__y")
            gateway.time("MCP unknown tool", unknown_tool, QUERY_MS, status=400)
            gateway.time("A2A extended card", _rpc("/a2a", "GetExtendedAgentCard", {}), QUERY_MS)
            gateway.time("card of an agent", _get("/v1/agents/agent-7/card"), QUERY_MS)
            gateway.time("routes", _get("/v1/routes"), QUERY_MS)
            gateway.time("openapi", _get("/openapi.json"), QUERY_MS)
            gateway.time("metrics", _get("/metrics"), QUERY_MS)
            gateway.time("readyz", _get("/readyz"), QUERY_MS)
        with gateway.phase("one add", ADD_MS):
            gateway.time("one add", _post("/v1/agents", _openapi("first"), "first"), None, count=1, status=201)
        with gateway.phase("adding", ADD_MS):
            stop = threading.Event()
            adding = threading.Thread(target=_add_many, args=(port, stop))
            adding.start()
            busy = gateway.load(options, max(options.seconds, 6.0))
            stop.set()
            adding.join()
        gateway.judge("call adding p99", busy.p99_ms, SLOWER * quiet.p99_ms, p50_ms=round(busy.p50_ms, 2))
        gateway.judge("add delays p50 by", busy.p50_ms - quiet.p50_ms, ADD_MS)
        ratios[f"{name} adding_vs_quiet_p99"] = ratio(busy.p99_ms, quiet.p99_ms)
        with gateway.phase("one removal"):
            gone = Request("/v1/agents/first", "first", method="DELETE")
            gateway.time("one removal", gone, None, count=1)
        memory = resident_mb(gateway.server.process.pid)
        gateway.judge("memory", memory or 0.0, MEMORY_MB, "MB")


def _openapi(name: str) -> dict[str, Any]:
    words = Words(sum(name.encode()))
    paths = {
        f"/{number}": {
            "get": {
                "operationId": f"read{number}",
                "summary": words.text(10),
                "parameters": [{"name": "text", "in": "query", "schema": {"type": "string"}}],
                "responses": {"200": {"description": words.text(3)}},
            }
        }
        for number in range(10)
    }
    title = {"title": name, "version": "1", "description": words.text(12)}
    servers = [{"url": "http://127.0.0.1:9"}]
    return {"name": name, "source": {"openapi": "3.1.0", "info": title, "servers": servers, "paths": paths}}


def _add_many(port: int, stop: threading.Event) -> None:
    for number in range(ADDED):
        if stop.is_set():
            say(f"only {number} agents were added in time")
            return
        status, _, body = ask(port, _post("/v1/agents", _openapi(f"added-{number}")), timeout=60)
        if status != 201:
            say(f"adding: {status} {body[:200].decode(errors='replace')}")
            return


async def _write_catalogue(size: int, path: Path) -> None:
    say(f"writing {size:,} agents")
    words = Words(5)
    database = await open_database(f"sqlite:///{path}")
    directory = Directory(database, REAL)
    for start in range(0, size, 500):
        agents = [words.agent(number) for number in range(start, min(start + 500, size))]
        await asyncio.gather(*(directory.add(_with_routes(agent)) for agent in agents))
    await directory.aclose()
    await database.aclose()


def _with_routes(agent: Agent) -> Agent:
    """As if it was added from an OpenAPI document."""
    address = f"http://127.0.0.1:9/{agent.id}"
    routes = [(Route("openapi", address, f"{number}"),) for number in range(len(agent.capabilities))]
    several = zip(agent.capabilities, routes, strict=True)
    return replace(agent, capabilities=tuple(replace(one, routes=route) for one, route in several))


# --- the history ----------------------------------------------------------------------------------------------------


def _measure_history(path: Path, options: Options, rows: list[Row], ratios: dict[str, float | None]) -> None:
    rare, latest = _call_id(CALLS // 2), _call_id(CALLS - 10)
    queries = {
        "calls": "/v1/calls",
        "calls of an agent": "/v1/calls?agent=agent-3",
        "calls of a rare agent": "/v1/calls?agent=rare",
        "calls of a caller": "/v1/calls?caller=caller-7",
        "calls failed": "/v1/calls?status=failed",
        "calls by a code": "/v1/calls?code=rare_code",
        "calls of a capability": "/v1/calls?capability=do-2",
        "calls that were slow": "/v1/calls?min_seconds=50",
        "calls by a protocol": "/v1/calls?protocol=nlweb",
        "calls at a door": "/v1/calls?door=a2a",
        "calls of a trace": f"/v1/calls?trace={rare}",
        "calls long ago": f"/v1/calls?until={time.time() - 20 * DAY}",
        "calls show": f"/v1/calls/{latest}/record",
        "stats by agent": "/v1/calls/stats?by=agent",
        "stats by capability": "/v1/calls/stats?by=agent,capability",
        "stats by caller and day": "/v1/calls/stats?by=caller,day",
        "stats of an agent": "/v1/calls/stats?by=day&agent=agent-3",
        "calls export": "/v1/calls?limit=1000",
        "calls export as CSV": "/v1/calls?limit=1000&format=csv",
        "calls show long ago": f"/v1/calls/{rare}/record",
        "costs by day": "/v1/calls/stats?by=day",
        "costs of a month": f"/v1/calls/stats?by=agent,day&since={time.time() - 29 * DAY}&limit=1000",
        "approvals": "/v1/approvals",
        "approvals all": "/v1/approvals?status=all",
        "approval": f"/v1/approvals/{_call_id(APPROVALS - 1)}",
        "console": "/console/",
        "metrics": "/metrics",
        "readyz": "/readyz",
    }
    with _gateway(path, "ledger", rows) as gateway:
        gateway.judge_start()
        with gateway.phase("sweeping"):
            before = path.stat().st_size
            swept = gateway.load(options, max(options.seconds, 10.0))
            began = time.monotonic()
            while _count_old(path) and time.monotonic() - began < 120:
                time.sleep(1)
            gateway.judge("swept after", time.monotonic() - began, None, "s", left=_count_old(path))
        with gateway.phase("quiet"):
            quiet = gateway.load(options)
        gateway.judge("call while sweeping p99", swept.p99_ms, SLOWER * quiet.p99_ms, quiet_ms=round(quiet.p99_ms, 2))
        ratios["ledger sweeping_vs_quiet_p99"] = ratio(swept.p99_ms, quiet.p99_ms)
        with gateway.phase("asked"):
            for what, address in queries.items():
                gateway.time(what, _get(address), QUERY_MS)
            for what, params in _TASKS.items():
                gateway.time(what, _rpc("/a2a", "ListTasks", params, "tasks"), QUERY_MS)
        asyncio.run(_measure_letters(path, gateway))
        with gateway.phase("verifying"):
            verifying = threading.Thread(target=asyncio.run, args=(_verify(path, gateway),))
            verifying.start()
            verified = gateway.load(options)
            verifying.join()
        gateway.judge("call while verifying p99", verified.p99_ms, None)
        with gateway.phase("data of a caller"):
            gateway.time("data of a caller", _get("/v1/data/caller-7"), None, count=1)
        time.sleep(3)
        after = path.stat().st_size
        gateway.judge("disk", after / 1e6, 0.95 * before / 1e6, "MB", before=round(before / 1e6, 1))


_TASKS: dict[str, dict[str, Any]] = {
    "tasks": {},
    "tasks failed": {"status": "TASK_STATE_FAILED"},
    "tasks that wait": {"status": "TASK_STATE_INPUT_REQUIRED"},
    "tasks of a context": {"contextId": "context-17"},
}


async def _measure_letters(path: Path, gateway: _Gateway) -> None:
    """As ``agent3 dead-letters`` reads them: straight from the database."""
    database = await open_database(f"sqlite:///{path}")
    letters = DeadLetters(database, REAL)
    wanted: dict[str, Callable[[], Any]] = {
        "dead letters": lambda: letters.latest(),
        "dead letters of an agent": lambda: letters.latest(agent="rare"),
        "dead letters by a code": lambda: letters.latest(code="rare_code"),
        "dead letters that wait": lambda: letters.latest(replayed=False),
        "dead letters counted": letters.count_waiting,
    }
    for what, read in wanted.items():
        laps = []
        for _ in range(ASKED):
            began, busy = time.perf_counter(), time.process_time()
            await read()
            laps.append(min(time.perf_counter() - began, time.process_time() - busy) * 1e3)
        gateway.judge(what, statistics.median(laps), QUERY_MS, worst_ms=round(max(laps), 1))
    await database.aclose()


async def _verify(path: Path, gateway: _Gateway) -> None:
    """As ``agent3 audit verify`` does it; what one piece of it takes of the database is a query like others."""
    database = await open_database(f"sqlite:///{path}")
    began, laps, walls = time.perf_counter(), [0.0], [0.0]
    read = database.all

    async def timed(*given: Any) -> Any:
        started, busy = time.perf_counter(), time.process_time()
        try:
            return await read(*given)
        finally:
            walls.append((time.perf_counter() - started) * 1e3)
            laps.append(min(walls[-1], (time.process_time() - busy) * 1e3))

    database.all = timed  # type: ignore[method-assign, assignment]
    found = await verify_database(database, lambda *_: None)
    gateway.judge("audit verify", time.perf_counter() - began, None, "s", rows=found["rows"], removed=found["removed"])
    wall = round(statistics.median(walls), 1)
    gateway.judge(
        "audit verify, a piece", statistics.median(laps), QUERY_MS, worst_ms=round(max(laps), 1), wall_ms=wall
    )
    await database.aclose()


def _count_old(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT COUNT(*) FROM calls WHERE at < ?", (time.time() - 30 * DAY,))
        jobs = database.execute("SELECT COUNT(*) FROM jobs WHERE expires < ?", (time.time(),))
        return int(found.fetchone()[0]) + int(jobs.fetchone()[0])


def _call_id(number: int) -> str:
    return f"{number:032x}"


def _job_id(number: int) -> str:
    return f"{number + 2**64:032x}"


async def _write_history(path: Path) -> None:
    say(f"writing {CALLS:,} ledger rows, {JOBS:,} jobs, {LETTERS:,} dead letters and {APPROVALS:,} approvals")
    opened = await open_database(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")
        now = time.time()
        names = (*COLUMNS, *LINKED)
        insert = f"INSERT INTO calls ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        segment = Segment(opened, REAL, None, FRACTIONS)
        await segment.open()
        rows = _calls(now)
        while some := list(islice(rows, 1_000)):
            linked = segment.link(some)
            database.executemany(insert, linked)
            segment.advance(linked, len(linked))
        database.commit()
        await segment.record_head(closes=True)
        _write_jobs(database, now)
        # As if all hours had been counted in the background; days are added up by the gateway.
        columns = ", ".join((*_KEYS, *_SUMS))
        hours = Statistics(opened, REAL)._between
        database.execute(f"INSERT INTO call_stats ({columns}) {hours}", (0.0, now))
        counted = [("statistics", int(now)), ("statistics final", int(now // 3_600))]
        database.executemany("INSERT INTO counters (name, value) VALUES (?, ?)", counted)
        database.commit()
    await opened.aclose()


def _calls(now: float) -> Iterator[tuple[Any, ...]]:
    """From the oldest to the latest, over forty days."""
    rng = random.Random(11)
    for number in range(CALLS):
        old = number < OLD_CALLS
        span = (number / OLD_CALLS * 10 + 30.5) if old else 29.5 * (1 - (number - OLD_CALLS) / (CALLS - OLD_CALLS))
        at = now - (40.5 - (span - 30.5) if old else span) * DAY - 10
        is_rare = number % 100_000 == 50_000
        failed = number % 50 == 0
        row = dict.fromkeys(COLUMNS)
        row |= {
            "id": _call_id(number),
            "job": _call_id(number),
            "turn": 1,
            "at": at,
            "route": "nlweb:https://shop" if is_rare else "local:crowd",
            "trace": _call_id(number - number % 10) if number % 10 else _call_id(number),
            "status": "failed" if failed or is_rare else "done",
            "code": "rare_code" if is_rare else "timeout" if failed else None,
            "message": "it took too long" if failed else None,
            "seconds": 60.0 if is_rare else rng.expovariate(20),
            "attempts": 1,
            "hops": 0,
            "cached": 0,
            "tokens": 0,
            "cost": 0.0,
            "bytes_in": 40,
            "bytes_out": 60,
            "principal": f"caller-{number % 20}",
            "door": "a2a" if is_rare else "rest",
            "entry": "start",
            "agent": "rare" if is_rare else f"agent-{number % 50}",
            "capability": f"do-{number % 5}",
        }
        yield tuple(row[name] for name in COLUMNS)


def _write_jobs(database: sqlite3.Connection, now: float) -> None:
    call = append_checksum(
        encode(Call(id="1", principal=LOCAL, agent="crowd", capability="say", input={"text": "hello"}))
    )
    done = append_checksum(encode(Done((Part(text="hello"),))))
    statuses = ("done",) * 97 + ("failed", "needs", "canceled")

    def jobs() -> Iterator[tuple[Any, ...]]:
        for number in range(JOBS):
            old = number < OLD_JOBS
            at = now - (8 * DAY if old else 6.9 * DAY * (1 - number / JOBS))
            status = statuses[number % 100]
            detail = "timeout" if status == "failed" else None
            yield (
                *(_job_id(number), LOCAL.id, f"key-{number}", status, 1, call, done, 2),
                *(at, at, now - 60 if old else at + 7 * DAY + 3600, "task", "crowd", f"context-{number // 4}", detail),
            )

    columns = (
        "id, owner, key, status, turn, call, outcome, seq, created, updated, expires, kind, agent, context, detail"
    )
    database.executemany(f"INSERT INTO jobs ({columns}) VALUES ({', '.join('?' * 15)})", jobs())
    events = (
        (_job_id(number), seq, 1, "status" if seq == 1 else "turn", b'{"kind":"done"}', now)
        for number in range(JOBS)
        for seq in (1, 2)
    )
    database.executemany("INSERT INTO job_events (job, seq, turn, kind, body, at) VALUES (?, ?, ?, ?, ?, ?)", events)
    failed = append_checksum(encode(Failed("timeout", "it took too long")))
    letters = (
        (
            *(_call_id(number), now - DAY + number, "local", "rare" if number % 5_000 == 0 else f"agent-{number % 50}"),
            *("do-1", "rare_code" if number % 5_000 == 1 else "timeout", "it took too long", 3, call, failed),
            now if number % 2 else None,
        )
        for number in range(LETTERS)
    )
    columns = "id, at, principal, agent, capability, code, message, attempts, call, outcome, replayed"
    database.executemany(f"INSERT INTO dead_letters ({columns}) VALUES ({', '.join('?' * 11)})", letters)
    # Those that wait are of jobs that wait; the others were settled, the first half long ago.
    approvals = (
        (
            *(_call_id(number), _job_id(JOBS - 2 - 100 * (number % 1_000)), "caller", "crowd", "say", "It pays.", ""),
            *(1, now - (40 if 2 * number < APPROVALS else 1) * DAY + number, now + DAY),
            *(("waiting", None) if number % 20 == 19 else ("approved", now)),
        )
        for number in range(APPROVALS)
    )
    columns = "id, job, owner, agent, capability, why, approvers, itself, asked, expires, status, settled"
    database.executemany(f"INSERT INTO approvals ({columns}) VALUES ({', '.join('?' * 12)})", approvals)
