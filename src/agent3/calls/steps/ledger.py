"""``ledger``: records every turn once, whatever became of it: its row, its metrics, its cost, its span.

``Ledger`` writes the rows for the whole core: one for every turn, which is also the audit row. The step fills them in.
It is the outermost step, so it also puts the ids of the call on every log line, and turns what no other step has
understood into an outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from agent3 import failpoints
from agent3.calls.budgets import Account
from agent3.calls.outcomes import FALLBACK, HEALS, NOTICES, REFUSALS, UNTRUSTED, failed_by
from agent3.calls.prices import SetPrice
from agent3.calls.step import Aim, Entered, Left, Parts, Stage, Step
from agent3.env import Env
from agent3.errors import Agent3Error, Interrupted, StorageError
from agent3.model import Call, Done, Failed, Needs, Outcome, Part, Route, Turn, Usage, Working
from agent3.observe import logs
from agent3.observe.logs import BOUND, Bound, Ids
from agent3.observe.metrics import Metrics, Number, Spread
from agent3.observe.traces import NoTracer, here, new, parse
from agent3.security.sensitive import find_sensitive
from agent3.storage import Database, audit

__all__ = ["COLUMNS", "FRACTIONS", "Ledger", "Record", "Row", "trace_id"]

log = logs.get("ledger")

Row: TypeAlias = tuple[Any, ...]
COLUMNS = (
    *("id", "job", "turn", "at", "route", "context", "trace", "status", "code", "message", "seconds", "attempts"),
    *("hops", "cached", "tokens", "cost", "bytes_in", "bytes_out", "estimated", "user_agent", "served_by"),
    *("principal", "tenant", "door", "entry", "agent", "capability"),
)
"""Those last that are the same in every call of one aim."""
FRACTIONS = tuple(COLUMNS.index(name) for name in ("at", "seconds", "cost"))
"""The places of those that hold fractions."""
_INSERT = f"INSERT INTO calls ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_LINKED = (*COLUMNS, *audit.LINKED)
_INSERT_LINKED = f"INSERT INTO calls ({', '.join(_LINKED)}) VALUES ({', '.join('?' * len(_LINKED))})"
_BACKLOG = 20_000
"""Rows that wait to be written before callers have to wait; twice as many before rows are lost."""
_PAUSE = 0.03
"""Seconds in which rows gather before they are written."""
_LATE = 0.04
"""Seconds after which the flusher should have begun: only a loop that never suspends keeps it from that."""
_encode = msgspec.json.Encoder().encode
_NOTHING = Usage()


class Ledger:
    """Writes the rows of all turns. ``aclose`` writes what is left.

    Durable by default: the answer waits for the group commit. ``batched`` is at most 50 ms behind and bounded: when the
    disk cannot follow, callers wait, and no row is lost. Refusals are always durable.
    """

    def __init__(
        self,
        database: Database,
        mode: Literal["durable", "batched"],
        env: Env,
        metrics: Metrics,
        segment: audit.Segment | None = None,
    ):
        self.is_stopping = False
        """Whether a call that is cut off now is cut off by the stop of its gateway, and not by its caller."""
        self._database = database
        self._batched = mode == "batched"
        self._env = env
        self._metrics = metrics
        self._rows: list[Row] = []
        self._oldest = 0.0
        self._writing = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        """Durable rows whose callers wait, for the next commit."""
        self._committer: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._segment = segment
        self._linking = asyncio.Lock()
        self._unsure: list[Row] = []
        """Linked rows of which nobody knows whether they are stored: nothing is linked behind them before they are."""
        self._stored: set[str] = set()
        """Ids of those that were stored in the end, and that come again."""
        self._away: StorageError | None = None
        """Why the last row could not be written. That row is kept and tried every second, until storage takes it."""
        self._outage = logs.Outage(log, "writing rows of the ledger")

    def require(self) -> None:
        """Raise what storage said, as long as it takes no rows: then nothing may be begun that has to be recorded."""
        if self._away is not None:
            self._metrics.events_dropped.inc(("call while storage is away",))
            raise _copy_error(self._away)

    def join(self, row: Row, now: float) -> bool:
        """Add a row to a batch that is already under way; False where something must be waited for or begun."""
        rows = self._rows
        if not self._batched or not rows or len(rows) >= _BACKLOG or now - self._oldest > _LATE:
            return False
        rows.append(row)
        return True

    async def write(self, row: Row, *, refusal: bool) -> None:
        """Record one turn; when it returns, a durable row is on disk."""
        if refusal or not self._batched:
            if failpoints.armed is not None:
                try:
                    await failpoints.reach("ledger.write")
                except (StorageError, asyncio.CancelledError) as error:
                    if isinstance(error, StorageError):
                        self._away = error
                    self.write_later(row)
                    raise
            # Write a row with all others that wait now, in one statement and one commit. The caller hears that it
            # failed, or is gone meanwhile; what happened is recorded as soon as it can be.
            loop = asyncio.get_running_loop()
            written = loop.create_future()
            self._waiting.append((row, written))
            if self._committer is None or self._committer.done():
                self._committer = loop.create_task(self._commit_waiting(), name="ledger commits")
            await written
            return
        if len(self._rows) >= _BACKLOG:
            self._room.clear()
            await self._room.wait()
        elif self._rows and self._env.monotonic() - self._oldest > _LATE and not self._writing.locked():
            await asyncio.sleep(0)  # callers that never suspend would keep the flusher from its turn
        self.write_later(row)

    async def _commit_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._commit_batch(batch)
            finally:  # whatever happened, nobody is left waiting
                self._put_off(batch, StorageError("The ledger could not be written."))

    async def _commit_batch(self, batch: list[tuple[Row, asyncio.Future[None]]]) -> None:
        """Write rows and tell their callers; it empties the list."""
        try:
            await self._store([row for row, _ in batch], again=False)
        except StorageError as error:
            self._put_off(batch, error)
        except Agent3Error as error:
            if len(batch) == 1:
                _fail(batch.pop()[1], error)
            while batch:  # one of them cannot be stored, which must not take the others with it
                await self._commit_batch([batch.pop(0)])
        else:
            for _, written in batch:
                if not written.done():
                    written.set_result(None)
            batch.clear()

    def _put_off(self, batch: list[tuple[Row, asyncio.Future[None]]], error: StorageError) -> None:
        if batch:
            self._away = error
        while batch:
            row, written = batch.pop(0)
            self.write_later(row)
            _fail(written, error)

    async def _store(self, rows: Sequence[Row], *, again: bool) -> None:
        """Write rows, linked where there is a segment: all or none, unless it raises StorageError.

        Those that come ``again`` are appended, not inserted: after a lost connection nobody
        knows whether they are there.
        """
        segment = self._segment
        if segment is None:
            if len(rows) == 1 and not again:
                await self._database.many(_INSERT, rows)
            else:
                await self._database.append("calls", COLUMNS, rows)
            return
        async with self._linking:
            await self._settle_unsure(segment)
            if self._stored:
                new = [row for row in rows if row[0] not in self._stored]
                self._stored.difference_update([row[0] for row in rows])
                rows = new
            if not rows:
                return
            await segment.open()
            linked = segment.link(rows)
            try:
                if len(linked) == 1 and not again:
                    await self._database.many(_INSERT_LINKED, linked)
                    inserted = 1
                else:
                    inserted = await self._database.append("calls", _LINKED, linked)
            except (StorageError, asyncio.CancelledError):
                self._unsure = linked
                raise
            segment.advance(linked, inserted)

    async def _settle_unsure(self, segment: audit.Segment) -> None:
        """Write once more, with the same links, what may be stored or not. It comes again as rows without."""
        if unsure := self._unsure:
            try:
                inserted = await self._database.append("calls", _LINKED, unsure)
            except (StorageError, asyncio.CancelledError):
                raise
            except Agent3Error:  # one of them cannot be stored, and none is: they are linked anew as they come again
                self._unsure = []
                return
            self._unsure = []
            self._stored.update(row[0] for row in unsure)
            segment.advance(unsure, inserted)

    async def sign_head(self, *, closes: bool = False) -> None:
        """Record and sign how far the chain of this process is."""
        if self._segment is not None:
            async with self._linking:
                await self._settle_unsure(self._segment)
                await self._segment.record_head(closes=closes)

    def write_later(self, row: Row) -> None:
        """Record one turn soon, without waiting: for a caller that is already gone."""
        if len(self._rows) >= 2 * _BACKLOG:
            self._lose(row, "the backlog is full")
            return
        if not self._rows:
            self._oldest = self._env.monotonic()
        self._rows.append(row)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.get_running_loop().create_task(self._flush_until_empty(), name="ledger")

    async def flush(self) -> None:
        """Wait until everything handed over so far is on disk."""
        if self._committer is not None:
            await asyncio.wait([self._committer])
        await self._flush_once()
        while self._rows:
            await self._flush_once()

    async def aclose(self) -> None:
        """Write what is left, sign the chain and stop. What storage does not take is lost, and the log says so."""
        if self._committer is not None:
            await asyncio.wait([self._committer])
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.wait([self._flusher])
        try:
            await self.flush()
        except StorageError as error:
            for row in self._rows:
                self._lose(row, str(error))
        try:
            await self.sign_head(closes=True)
        except StorageError as error:
            log.error("audit: the chain of this process was not closed: %s", error)

    def _lose(self, row: Row, why: str) -> None:
        self._metrics.events_dropped.inc(("ledger row",))
        lost = dict(zip(COLUMNS, row, strict=True))
        call = f"{lost['id']} ({lost['agent']}/{lost['capability']}, {lost['status']})"
        log.error("ledger: the row of call %s was lost: %s", call, why)

    async def _flush_until_empty(self) -> None:
        while self._rows:
            await asyncio.sleep(max(0.0, _PAUSE - (self._env.monotonic() - self._oldest)))
            try:
                await self._flush_once()
            except StorageError as error:
                self._away = error
                self._outage.failed(error)
                await asyncio.sleep(1.0)

    async def _flush_once(self) -> None:
        async with self._writing:
            rows, self._rows = self._rows, []
            if not rows:
                return
            self._metrics.ledger_backlog.set((), len(rows))
            try:
                await self._store(rows, again=True)
            except (StorageError, asyncio.CancelledError):
                self._rows = rows + self._rows
                raise
            except Agent3Error:
                for row in rows:  # one of them cannot be stored, which must not take the others with it
                    try:
                        await self._store([row], again=True)
                    except StorageError:
                        self._rows.append(row)
                    except Agent3Error as error:
                        self._lose(row, error.message)
            if not self._rows:
                self._away = None
                self._outage.worked()
            self._room.set()
            self._metrics.ledger_backlog.set((), len(self._rows))


def _fail(written: asyncio.Future[None], error: Agent3Error) -> None:
    """Tell one who waits, with an error of its own: each notes its own outcome in it."""
    if not written.done():
        written.set_exception(_copy_error(error))


def _copy_error(error: Agent3Error) -> Agent3Error:
    own = type(error)(error.message, retry_after=error.retry_after, data=error.data)
    own.__cause__ = error
    return own


class Record(Step):
    """Writes the ledger."""

    name = "ledger"

    def __init__(self, parts: Parts):
        self.record_key = parts.scope.record_key if parts.scope is not None else b""
        self.ledger = parts.ledger
        self.env = parts.env
        self.metrics = parts.metrics
        self.tracer = None if isinstance(parts.tracer, NoTracer) else parts.tracer
        self.prices = parts.prices
        self.most_reported = parts.settings.costs.reported_per_call
        self.budgets = parts.budgets
        self.standards = parts.standards
        self.bodies = parts.bodies
        self.sparingly = logs.Sparingly()

    def bind(self, aim: Aim) -> Stage:
        return _Record(self, aim)


class _Record(Stage):
    def __init__(self, step: Record, aim: Aim):
        self._env = step.env
        self._clock = step.env.monotonic
        self._ledger = step.ledger
        self._sparingly = step.sparingly
        self._metrics = step.metrics
        self._calls = step.metrics.calls
        self._call_seconds = step.metrics.call_seconds
        self._tracer = step.tracer
        agent = aim.agent.id if aim.agent is not None else None
        self._agent = agent
        self._price = price = step.prices.of(agent or "", aim.capability)
        free = not (price.call or price.second or price.tokens)
        self._sensitive = find_sensitive(aim.capability, step.record_key)
        self._most_reported = step.most_reported if step.most_reported >= 0 else float("inf")
        # To tell a target to stop is no use of it.
        self._cancels = aim.entry == "cancel"
        self._starts = aim.entry == "start"
        self._costs_nothing = free and not self._cancels
        self._budgets = step.budgets
        self._accounts = step.budgets.match(aim.principal.id, agent) if agent is not None else ()
        self._standards = step.standards
        self._watched = frozenset(
            route.protocol for route in aim.capability.routes if step.standards.watches(route.protocol)
        )
        self._settles = bool(self._watched or self._accounts)
        self._bodies = step.bodies if step.bodies.on else None
        self._door = aim.door
        principal, capability = aim.principal, _storable(aim.capability.name)
        # The columns from ``principal`` on.
        self._whose = (principal.id, principal.tenant, aim.door, aim.entry, _storable(agent or ""), capability)
        # Names that do not exist are a stranger's choice, and no label.
        self._label = agent or ""
        self._routes = aim.capability.routes  # held, so that no other route gets one of these ids
        self._known: dict[int, tuple[str, Number, Spread]] = {}
        """By the id of a route how the ledger names it, and where a call by it that is Done is counted and timed."""

    def enter(self, call: Call) -> Entered:
        if self._starts:
            self._ledger.require()
        live = call.live
        live.at, live.started = self._env.now(), self._clock()
        if self._tracer is not None:
            attributes = {"agent3.agent": call.agent, "agent3.capability": call.capability, "agent3.entry": call.entry}
            came_from = parse(call.traceparent) or new(self._env, call.id)
            live.span = self._tracer.start(f"{call.agent}/{call.capability}", came_from, attributes)
            live.span_token = here.set(live.span.context)
            call = replace(call, traceparent=live.span.context.header())
        live.log_token = BOUND.set(Bound(_ids_of, call, BOUND.get()))
        return call

    def leave(self, call: Call, outcome: Outcome) -> Left:
        live = call.live
        BOUND.reset(live.log_token)
        now = self._clock()
        seconds = now - live.started
        into = 0 if call.input is None else _json_bytes(call.input)
        if call.parts:
            into += _part_bytes(call.parts)
        usage: Usage | None = None
        if type(outcome) is Done or type(outcome) is Failed:
            out = _part_bytes(outcome.parts)
            given = outcome.usage
            if (
                given is None
                and self._costs_nothing
                and live.attempts == 1
                and not (live.unsent or live.cached or live.price)
            ):  # as most are
                usage = Usage((into + out) // 4, 0.0, True)
            else:
                usage = self._count_usage(live, given, seconds, into + out)
            if usage is not given:
                outcome = replace(outcome, usage=usage)
                if given is not None and given.cost > self._most_reported:
                    outcome = self._note_report(call, outcome, given.cost)
            if self._settles or live.accounts:
                outcome = self._count_cost(live, outcome, usage)
        else:
            out = 0 if isinstance(outcome, Working) else _part_bytes(outcome.parts)
            live.seconds = seconds
        status, refusal = "done", False
        if type(outcome) is not Done:
            status = _status(outcome, live)
            refusal = status in ("denied", "refused")
        row = self._row(call, outcome, status, seconds, usage or _NOTHING, into, out)
        if self._bodies is not None:
            self._bodies.keep(call, outcome, into + out + _json_bytes(call.answers), self._sensitive)
        live.answered = True
        if self._tracer is not None:
            self._end_span(live, status)
        return outcome if not refusal and self._ledger.join(row, now) else self._write(row, outcome, refusal)

    def fail(self, call: Call, error: BaseException) -> Left | BaseException:
        live = call.live
        if isinstance(error, asyncio.CancelledError):
            BOUND.reset(live.log_token)
            gone, status = Failed("canceled", "The caller disconnected or cancelled."), "canceled"
            if self._ledger.is_stopping and live.handed_on:
                gone = failed_by(Interrupted("The gateway was stopped. The next one goes on with the job."))
            elif self._ledger.is_stopping:
                gone = failed_by(Interrupted("The gateway was stopped before the call ended."))
                status = "failed"
            seconds = self._env.monotonic() - live.started
            into = (0 if call.input is None else _json_bytes(call.input)) + _part_bytes(call.parts)
            usage = _NOTHING
            if not live.handed_on:  # what its target was asked for costs, whether its caller waits for it or not
                usage = self._count_usage(live, None, seconds, into) or _NOTHING
                self._budgets.settle(self._accounts_of(live), usage.cost, live.reserved)
                live.reserved = None
            self._ledger.write_later(self._row(call, gone, status, seconds, usage, into, 0))
            if self._bodies is not None:
                self._bodies.keep(call, None, into + _json_bytes(call.answers), self._sensitive)
            if self._tracer is not None:
                self._end_span(live, status)
            return error
        if isinstance(error, StorageError):
            return self.leave(call, failed_by(error))
        if isinstance(error, Exception):
            log.error("%s/%s: a step failed", call.agent, call.capability, exc_info=error)
            return self.leave(call, Failed("internal", "Internal error. The gateway's log has the details."))
        return error  # the coroutine is being thrown away: there is no loop left to write anything

    def _log_failure(self, call: Call, status: str, code: str, message: str) -> None:
        """One line for each call that failed, within a bound: what, and why, under the id of its row in the ledger."""
        if (left_out := self._sparingly.admit(self._env.monotonic())) is None:
            return
        more = {"left_out": left_out} if left_out else {}
        fields = {"call": call.id, "status": status, "code": code, "principal": self._whose[0], **more}
        log.info("%s/%s %s: %s", call.agent[:100], call.capability[:100], status, message[:300], extra=fields)

    def _count_usage(self, live: Turn, given: Usage | None, seconds: float, size: int) -> Usage | None:
        """What the job cost whose last turn this is: as the target counted, else as we estimate; ``estimated`` says
        which. A price that the operator set is the least, and what a target counts has a bound."""
        price = live.price
        if live.cached:
            return Usage(given.tokens if given is not None else 0)
        attempts = 0 if self._cancels else live.attempts
        if price is None:
            price = self._price
        seconds += live.seconds_before
        retries = max(0, attempts - 1)
        # What a target counts is its own word: it must at least be a number that can be stored and added up.
        if given is not None and not (0 <= given.tokens < 2**53 and 0 <= given.cost < 1e12):
            given = None
        said = 0.0 if given is None else min(given.cost, self._most_reported)
        if given is not None and said and not isinstance(price, SetPrice):
            return replace(given, cost=said, retries=retries)
        if not live.sent_before and attempts <= live.unsent:  # never sent, so nothing was spent
            return given if given is None else replace(given, cost=0.0)
        counted = given is not None and given.tokens > 0
        tokens = given.tokens if given is not None and counted else size // 4
        cost = price.call + price.second * seconds + price.tokens * tokens / 1000
        return Usage(tokens, max(cost, said), not counted and cost >= said, retries)

    def _note_report(self, call: Call, outcome: Done | Failed, said: float) -> Done | Failed:
        """The outcome with a note that its target says that it cost more than is believed."""
        self._metrics.reports_capped.inc((self._label,))
        text = f"{call.agent} reports a cost of ${said:.4g} for this call; ${self._most_reported:g} are counted."
        if not isinstance(outcome, Done):
            return outcome
        return replace(outcome, meta={**outcome.meta, NOTICES: [*(outcome.meta.get(NOTICES) or ()), text]})

    def _count_cost(self, live: Turn, outcome: Done | Failed, usage: Usage | None) -> Outcome:
        """Count what the turn cost on its budgets; the caller is told which budgets and standards are exceeded."""
        cost = 0.0 if live.cached or usage is None else usage.cost
        notes = []
        if live.attempts and live.route is not None and live.route.protocol in self._watched:
            notes += self._standards.note(live.route.protocol, cost)
        if accounts := self._accounts_of(live):
            self._budgets.settle(accounts, cost, live.reserved)
            live.reserved = None
            notes += self._budgets.notes(accounts)
        if not notes or not isinstance(outcome, Done):
            return outcome
        return replace(outcome, meta={**outcome.meta, NOTICES: [*(outcome.meta.get(NOTICES) or ()), *notes]})

    def _accounts_of(self, live: Turn) -> Sequence[Account]:
        """The budgets of who served."""
        return self._accounts if live.accounts is None else live.accounts

    def _row(self, call: Call, outcome: Outcome, status: str, seconds: float, usage: Usage, into: int, out: int) -> Row:
        live = call.live
        route = live.route
        code = message = None
        key: str | None
        if status == "done" and route is not None:
            key, count, timing = self._known.get(id(route)) or self._learn(route)
            count.inc()
            timing.observe(seconds)
        else:
            protocol, key = ("", None) if route is None else (route.protocol, _storable(route.key))
            if isinstance(outcome, Failed):
                told = outcome.message
                if self._sensitive is not None:
                    told = self._sensitive.hide_in_message(told, call.input)
                code, message = live.denied or outcome.code, _storable(told[:500])
                if live.hops and (earlier := _earlier_routes(outcome.data.get("routes"), outcome.message)):
                    if self._sensitive is not None:
                        earlier = self._sensitive.hide_in_message(earlier, call.input)
                    message = f"{message[:250]}; {_storable(earlier)}"[:500]
                if status in ("denied", "refused"):
                    self._metrics.refusals.inc((code,))
                self._log_failure(call, status, code, told)
            label = self._label if call.agent == self._agent else ""
            self._calls.inc((label, self._door, protocol, status, code or ""))
            self._call_seconds.observe((label, protocol), seconds)
        if type(outcome) is Done and outcome.meta and (notes := _notes(outcome.meta)):
            message = _storable(notes[:500])
        cached = live.cached
        cost = 0.0 if cached else usage.cost
        if cost:
            self._metrics.cost_usd.inc((call.agent,), cost)
        whose = self._whose
        if call.agent != self._agent:  # refused before it had a target
            whose = (*whose[:-2], _storable(call.agent), _storable(call.capability))
        return (
            call.id,
            call.job or call.id,
            call.turn,
            live.at,
            key,
            None if call.context is None else _storable(call.context),
            call.id if call.traceparent is None else trace_id(call),
            status,
            code,
            message,
            seconds,
            live.attempts,
            live.hops,
            1 if cached else 0,
            usage.tokens,
            cost,
            into,
            out,
            1 if usage.estimated else 0,
            _user_agent(call.meta) if call.meta else None,
            live.served_by,
            *whose,
        )

    def _learn(self, route: Route) -> tuple[str, Number, Spread]:
        """How the ledger names a route, and the series of calls by it."""
        count = self._calls.series((self._label, self._door, route.protocol, "done", ""))
        known = _storable(route.key), count, self._call_seconds.series((self._label, route.protocol))
        if any(route is one for one in self._routes):
            self._known[id(route)] = known
        return known

    async def _write(self, row: Row, outcome: Outcome, refusal: bool) -> Outcome:
        try:
            await self._ledger.write(row, refusal=refusal)
        except StorageError as error:
            error.outcome = outcome
            raise
        return outcome

    def _end_span(self, live: Turn, status: str) -> None:
        assert live.span is not None
        here.reset(live.span_token)
        live.span.end("ok" if status in ("done", "needs", "working") else "error", {"agent3.status": status})


def _ids_of(call: Call) -> Ids:
    return Ids(call.id, call.job, call.context, trace_id(call))


def trace_id(call: Call) -> str:
    """The trace a call belongs to: the one it came with, else the one it starts, which bears its own id."""
    if call.traceparent is None:
        return call.id
    given = parse(call.traceparent)
    return given.trace_id if given is not None else call.id


def _status(outcome: Outcome, live: Turn) -> str:
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


def _part_bytes(parts: tuple[Part, ...]) -> int:
    """About how many bytes the parts have."""
    total = 0
    for part in parts:
        if part.text is not None:
            total += len(part.text)
        elif part.raw is not None:
            total += len(part.raw)
        elif part.data is not UNSET:
            total += _json_bytes(part.data)
    return total


def _json_bytes(value: Any) -> int:
    """Its bytes as JSON; 0 for what is not JSON, which was refused and is recorded nevertheless."""
    try:
        return len(_encode(value))
    except (TypeError, ValueError, RecursionError):
        return 0


def _user_agent(meta: Mapping[str, Any]) -> str | None:
    """The agent that calls on behalf of the caller, by the caller's own word."""
    given = meta.get("userAgentId")
    return _storable(given[:200]) if isinstance(given, str) else None


def _notes(meta: Mapping[str, Any]) -> str:
    """What was done otherwise than the interface of a website says belongs to the record of a good call too."""
    notes = [f"untrusted: the page's own tool {tool}" for tool in meta.get(UNTRUSTED) or ()]
    heals = [
        f"{heal['selector']} -> {heal['healed']} ({heal['id']}, score {heal['score']:.2f})"
        for heal in meta.get(HEALS) or ()
    ]
    if heals:
        notes.append(f"healed: {'; '.join(heals)}")
    if earlier := _earlier_routes(meta.get(FALLBACK)):
        notes.append(earlier)
    return "; ".join(notes)


def _earlier_routes(failed: Any, told: str = "") -> str:
    """Why the routes that were asked before did not serve, but for what is told already."""
    each = [
        f"{one['agent']}/{one['capability']} ({one['protocol']}) failed: {one['code']}, {one['message'][:120]}"
        for one in failed or ()
        if one["message"] != told[:300]
    ]
    return f"earlier routes: {'; '.join(each)}" if each else ""


def _storable(text: str) -> str:
    """A text that every database takes: a stranger's odd characters must not keep a call out of the ledger."""
    if text.isprintable():
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
