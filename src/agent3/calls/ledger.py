"""The ledger: one row for every turn, which is also the audit row, the cost entry, the metric and the span.

It is the outermost step, so it sees every turn once, whatever became of it: denied, refused, answered, cancelled.
Durable by default: the answer waits for the group commit. ``batched`` is at most 50 ms behind and bounded: when the
disk cannot follow, callers wait instead of rows being lost. Refusals are always durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from agent3 import failpoints
from agent3.calls.outcomes import HEALS, REFUSALS, UNTRUSTED, failed_by
from agent3.env import Env
from agent3.errors import Agent3Error, StorageError
from agent3.model import (
    Call,
    Capability,
    Done,
    Failed,
    Handler,
    Live,
    Needs,
    Outcome,
    Part,
    Price,
    Principal,
    Route,
    Step,
    Usage,
    Working,
)
from agent3.observe import logs
from agent3.observe.metrics import Metrics
from agent3.observe.traces import NoTracer, Tracer, here, new, parse
from agent3.storage import Database

__all__ = ["Began", "Entry", "Ledger", "Row", "ledger", "trace_id"]

log = logs.get("ledger")

Row = tuple[Any, ...]

_encode = msgspec.json.Encoder().encode

_COLUMNS = (
    *("id", "job", "turn", "at", "principal", "tenant", "agent", "capability", "route", "door", "entry", "context"),
    *("trace", "status", "code", "message", "seconds", "attempts", "hops", "cached", "tokens", "cost"),
    *("bytes_in", "bytes_out"),
)
_INSERT = f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_BACKLOG = 20_000
_PAUSE = 0.03
_LATE = 0.04


class Began(NamedTuple):
    """When a turn began: by the wall clock, and by the one that measures."""

    at: float
    started: float


class Entry:
    """What the rows of one capability's calls by one caller have in common, where they end well at the first try."""

    __slots__ = ("agent", "labels", "price", "whose")

    def __init__(self, principal: Principal, agent: str, capability: Capability, route: Route, door: str):
        self.agent = agent
        self.price = capability.price
        self.whose = _whose(principal, agent, capability.name, route, door, "start", None)[:-1]
        self.labels = (door, route.protocol, "done", "")


class Ledger:
    """Writes the rows. ``aclose`` writes what is left."""

    def __init__(self, database: Database, mode: Literal["durable", "batched"], env: Env, metrics: Metrics):
        self._database = database
        self._mode = mode
        self.env = env
        self.metrics = metrics
        self._rows: list[Row] = []
        self._oldest = 0.0
        self._writing = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    async def write(self, row: Row, *, refusal: bool) -> None:
        """Record one turn; when it returns, a durable row is on disk."""
        if refusal or self._mode == "durable":
            await self._write_now(row)
            return
        if len(self._rows) >= _BACKLOG:
            self._room.clear()
            await self._room.wait()
        elif self._rows and self.env.monotonic() - self._oldest > _LATE and not self._writing.locked():
            await asyncio.sleep(0)  # callers that never suspend would keep the flusher from its turn
        self.later(row)

    async def done(
        self,
        entry: Entry,
        call: str,
        given: Any,
        outcome: Done,
        began: Began,
        *,
        context: str | None = None,
        parts: tuple[Part, ...] = (),
    ) -> Done:
        """Record a call that ended well at the first try, and whose target counted nothing: its cost is our guess."""
        now = self.env.monotonic()
        seconds = now - began.started
        into, out = _json_weight(given) + _weight(parts), _weight(outcome.parts)
        tokens = (into + out) // 4
        cost = _cost(entry.price, seconds, tokens)
        _count(self.metrics, entry.labels, seconds, entry.agent, cost)
        how = ("done", None, None, seconds, 1, 0, 0, tokens, cost, into, out)
        outcome = Done(outcome.parts, usage=Usage(tokens, cost, estimated=True))
        row = (call, call, 1, began.at, *entry.whose, None if context is None else _storable(context), call, *how)
        if self._joins(row, now):
            return outcome
        try:
            await self.write(row, refusal=False)
        except StorageError as wrong:
            wrong.outcome = outcome
            raise
        return outcome

    def _joins(self, row: Row, now: float) -> bool:
        """Add a row to those that are written soon; False where something must be waited for or begun."""
        rows = self._rows
        if not rows or self._mode == "durable" or len(rows) >= _BACKLOG or now - self._oldest > _LATE:
            return False
        rows.append(row)
        return True

    def later(self, row: Row) -> None:
        """Record one turn soon, without waiting: for a caller that is already gone."""
        if len(self._rows) >= 2 * _BACKLOG:
            self._lose(row, "the backlog is full")
            return
        if not self._rows:
            self._oldest = self.env.monotonic()
        self._rows.append(row)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.get_running_loop().create_task(self._flush_all(), name="ledger")

    async def flush(self) -> None:
        """Wait until everything handed over so far is on disk."""
        await self._flush_once()
        while self._rows:
            await self._flush_once()

    async def aclose(self) -> None:
        """Write what is left and stop; what storage does not take even now is lost, and the log says so."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.wait([self._flusher])
        try:
            await self.flush()
        except StorageError as wrong:
            for row in self._rows:
                self._lose(row, str(wrong))

    def _lose(self, row: Row, why: str) -> None:
        """The end of a row that cannot be kept: never silent."""
        self.metrics.events_dropped.inc(("ledger row",))
        log.error("ledger: the row of call %s (%s/%s, %s) is lost: %s", row[0], row[6], row[7], row[13], why)

    async def _write_now(self, row: Row) -> None:
        try:
            if failpoints.armed is not None:
                await failpoints.reach("ledger.write")
            await self._database.many(_INSERT, [row])
        except (StorageError, asyncio.CancelledError):
            # The caller hears that it failed, or is gone; what happened is recorded all the same, as soon as it can be.
            self.later(row)
            raise

    async def _append(self, rows: list[Row]) -> None:
        """Write rows, which may be there already if nobody was left to hear whether they were written."""
        await self._database.append("calls", _COLUMNS, rows)

    async def _insert_singly(self, rows: list[Row]) -> None:
        """One of them cannot be stored; it must not take the others with it."""
        for row in rows:
            try:
                await self._append([row])
            except StorageError:
                self._rows.append(row)
            except Agent3Error as wrong:
                self._lose(row, wrong.message)

    async def _flush_all(self) -> None:
        while self._rows:
            await asyncio.sleep(max(0.0, _PAUSE - (self.env.monotonic() - self._oldest)))
            try:
                await self._flush_once()
            except StorageError as wrong:
                log.error("ledger: %s; %d rows are kept and tried again", wrong, len(self._rows))
                await asyncio.sleep(1.0)

    async def _flush_once(self) -> None:
        async with self._writing:
            rows, self._rows = self._rows, []
            if not rows:
                return
            self.metrics.ledger_backlog.set((), len(rows))
            try:
                await self._append(rows)
            except (StorageError, asyncio.CancelledError):
                self._rows = rows + self._rows
                raise
            except Agent3Error:
                await self._insert_singly(rows)
            self._room.set()
            self.metrics.ledger_backlog.set((), len(self._rows))


def trace_id(call: Call) -> str:
    """The trace a call belongs to: the one it came with, else the one it starts, which bears its own id."""
    given = parse(call.traceparent) if call.traceparent else None
    return given.trace_id if given is not None else call.id


def ledger(book: Ledger, tracer: Tracer | None = None, began: Began | None = None) -> Step:
    """Record every turn once: row, metrics, cost, span and the ids on its log lines."""
    spans = None if tracer is None or isinstance(tracer, NoTracer) else tracer

    def step(inner: Handler) -> Handler:
        def recorded(call: Call) -> Awaitable[Outcome]:
            return _record(call, inner, book, began) if spans is None else _traced(call, inner, book, spans)

        return recorded

    return step


async def _traced(call: Call, inner: Handler, book: Ledger, tracer: Tracer) -> Outcome:
    attributes = {"agent3.agent": call.agent, "agent3.capability": call.capability, "agent3.entry": call.entry}
    came_from = parse(call.traceparent) or new(book.env, call.id)
    span = tracer.start(f"{call.agent}/{call.capability}", came_from, attributes)
    inside = here.set(span.context)
    status = "canceled"
    try:
        outcome = await _record(replace(call, traceparent=span.context.header()), inner, book)
        status = _status(outcome, call.live)
        return outcome
    finally:
        here.reset(inside)
        span.end("ok" if status in ("done", "needs", "working") else "error", {"agent3.status": status})


async def _record(call: Call, inner: Handler, book: Ledger, began: Began | None = None) -> Outcome:
    at, started = began or (book.env.now(), book.env.monotonic())
    token = logs.bind(call.id, call.job, call.context, trace_id(call))
    try:
        outcome = await inner(call)
    except asyncio.CancelledError:
        gone = Failed("canceled", "The caller went away or cancelled.")
        book.later(_row(call, gone, at, book.env.monotonic() - started, "canceled", _sizes(call, gone), book.metrics))
        raise
    except StorageError as wrong:
        log.error("%s/%s: %s", call.agent, call.capability, wrong)
        outcome = failed_by(wrong)
    except Exception:
        log.exception("%s/%s: a step failed", call.agent, call.capability)
        outcome = Failed("internal", "Internal error. The log of the gateway says more.")
    finally:
        logs.reset(token)
    seconds = book.env.monotonic() - started
    sizes = _sizes(call, outcome)
    outcome = _accounted(call, outcome, seconds, sizes)
    status = _status(outcome, call.live)
    row = _row(call, outcome, at, seconds, status, sizes, book.metrics)
    call.live.answered = True
    try:
        await book.write(row, refusal=status in ("denied", "refused"))
    except StorageError as wrong:
        wrong.outcome = outcome
        raise
    return outcome


def _status(outcome: Outcome, live: Live) -> str:
    if isinstance(outcome, Done):
        return "done"
    if isinstance(outcome, Failed):
        if live.denied is not None:
            return "denied"
        if outcome.code == "canceled":
            return "canceled"
        # A target that was asked and answers with a code of ours has failed; only we refuse.
        return "refused" if outcome.code in REFUSALS and not live.attempts else "failed"
    return "needs" if isinstance(outcome, Needs) else "working"


def _accounted(call: Call, outcome: Outcome, seconds: float, sizes: tuple[int, int]) -> Outcome:
    """The outcome with what it cost: as the target counted, else as we estimate, and it says which."""
    if not isinstance(outcome, (Done, Failed)):
        return outcome
    given = outcome.usage
    if call.live.cached:
        return replace(outcome, usage=Usage(given.tokens if given is not None else 0))
    retries = max(0, call.live.attempts - 1)
    if given is not None and not _sane(given):
        given = None
    if given is not None and given.cost:
        return replace(outcome, usage=replace(given, retries=retries))
    if not call.live.attempts:  # never sent: nobody spent anything
        return outcome
    counted = given is not None and given.tokens > 0
    tokens = given.tokens if given is not None and counted else sum(sizes) // 4
    cost = _cost(call.live.capability.price, seconds, tokens)
    return replace(outcome, usage=Usage(tokens, cost, not counted, retries))


def _sane(usage: Usage) -> bool:
    """Whether it can be stored and added up; what a target counts is its own word."""
    return 0 <= usage.tokens < 2**53 and 0 <= usage.cost < 1e12


def _cost(price: Price, seconds: float, tokens: int) -> float:
    return price.call + price.second * seconds + price.tokens * tokens / 1000


def _sizes(call: Call, outcome: Outcome) -> tuple[int, int]:
    """About how many bytes went in and came out."""
    given = (_json_weight(call.input) if call.input is not None else 0) + (_weight(call.parts) if call.parts else 0)
    return given, 0 if isinstance(outcome, Working) else _weight(outcome.parts)


def _weight(parts: tuple[Part, ...]) -> int:
    total = 0
    for part in parts:
        if part.text is not None:
            total += len(part.text)
        elif part.raw is not None:
            total += len(part.raw)
        elif part.data is not UNSET:
            total += _json_weight(part.data)
    return total


def _json_weight(value: Any) -> int:
    """Its bytes as JSON; 0 for what is not JSON, which was refused, and is recorded nevertheless."""
    try:
        return len(_encode(value))
    except (TypeError, ValueError, RecursionError):
        return 0


def _row(
    call: Call,
    outcome: Outcome,
    at: float,
    seconds: float,
    status: str,
    sizes: tuple[int, int],
    metrics: Metrics,
) -> Row:
    live: Live = call.live
    route = live.route
    protocol = route.protocol if route is not None else ""
    code = message = None
    if isinstance(outcome, Failed):
        code, message = live.denied or outcome.code, outcome.message[:500]
    elif isinstance(outcome, Done) and (noted := _noted(outcome.meta)):
        message = noted[:500]
    usage = _usage(outcome)
    cost = 0.0 if live.cached else usage.cost
    _count(metrics, (live.door, protocol, status, code or ""), seconds, call.agent, cost)
    return (
        call.id,
        call.job or call.id,
        call.turn,
        at,
        *_whose(call.principal, call.agent, call.capability, route, live.door, call.entry, call.context),
        trace_id(call),
        status,
        code,
        _storable(message) if message is not None else None,
        seconds,
        live.attempts,
        live.hops,
        int(live.cached),
        usage.tokens,
        cost,
        *sizes,
    )


def _noted(meta: Mapping[str, Any]) -> str:
    """That a call went otherwise than its interface is written belongs to its record, also where it ended well."""
    notes = [f"untrusted: the page's own tool {one}" for one in meta.get(UNTRUSTED) or ()]
    if heals := meta.get(HEALS):
        notes.append(f"healed: {_healed(heals)}")
    return "; ".join(notes)


def _healed(heals: list[dict[str, Any]]) -> str:
    return "; ".join(f"{one['selector']} -> {one['healed']} ({one['id']}, score {one['score']:.2f})" for one in heals)


def _whose(
    principal: Principal, agent: str, capability: str, route: Route | None, door: str, entry: str, context: str | None
) -> Row:
    """The columns from ``principal`` to ``context``."""
    return (
        principal.id,
        principal.tenant,
        _storable(agent),
        _storable(capability),
        _storable(route.key) if route is not None else None,
        door,
        entry,
        _storable(context) if context is not None else None,
    )


def _storable(text: str) -> str:
    """A text that every database takes: what a stranger put into a name must not keep its call out of the ledger."""
    if text.isprintable():
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


_NOTHING = Usage()


def _usage(outcome: Outcome) -> Usage:
    used = outcome.usage if isinstance(outcome, (Done, Failed)) else None
    return _NOTHING if used is None else used


def _count(metrics: Metrics, labels: tuple[str, str, str, str], seconds: float, agent: str, cost: float) -> None:
    _, protocol, status, code = labels
    metrics.calls.inc(labels)
    metrics.call_seconds.observe((protocol,), seconds)
    if status in ("denied", "refused"):
        metrics.refusals.inc((code,))
    if cost:
        metrics.cost_usd.inc((agent,), cost)
