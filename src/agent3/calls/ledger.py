"""The ledger: one row for every turn, which is also the audit row.

Durable by default: the answer waits for the group commit. ``batched`` is at most 50 ms behind and bounded: when the
disk cannot follow, callers wait instead of rows being lost. Refusals are always durable. What stands in a row is the
business of the step (steps/ledger.py).
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypeAlias

from agent3 import failpoints
from agent3.env import Env
from agent3.errors import Agent3Error, StorageError
from agent3.observe import logs
from agent3.observe.metrics import Metrics
from agent3.storage import Database

__all__ = ["COLUMNS", "Ledger", "Row"]

log = logs.get("ledger")

Row: TypeAlias = tuple[Any, ...]
COLUMNS = (
    *("id", "job", "turn", "at", "principal", "tenant", "agent", "capability", "route", "door", "entry", "context"),
    *("trace", "status", "code", "message", "seconds", "attempts", "hops", "cached", "tokens", "cost"),
    *("bytes_in", "bytes_out"),
)
_INSERT = f"INSERT INTO calls ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_BACKLOG = 20_000
_PAUSE = 0.03
_LATE = 0.04


class Ledger:
    """Writes the rows. ``aclose`` writes what is left."""

    def __init__(self, database: Database, mode: Literal["durable", "batched"], env: Env, metrics: Metrics):
        self._database = database
        self._batched = mode == "batched"
        self._env = env
        self._metrics = metrics
        self._rows: list[Row] = []
        self._oldest = 0.0
        self._writing = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

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
            try:
                if failpoints.armed is not None:
                    await failpoints.reach("ledger.write")
                await self._database.many(_INSERT, [row])
            except (StorageError, asyncio.CancelledError):
                # The caller hears that it failed, or is gone; what happened is recorded as soon as it can be.
                self.write_later(row)
                raise
            return
        if len(self._rows) >= _BACKLOG:
            self._room.clear()
            await self._room.wait()
        elif self._rows and self._env.monotonic() - self._oldest > _LATE and not self._writing.locked():
            await asyncio.sleep(0)  # callers that never suspend would keep the flusher from its turn
        self.write_later(row)

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
        await self._flush_once()
        while self._rows:
            await self._flush_once()

    async def aclose(self) -> None:
        """Write what is left and stop. What storage does not take even now is lost, and the log says so."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.wait([self._flusher])
        try:
            await self.flush()
        except StorageError as error:
            for row in self._rows:
                self._lose(row, str(error))

    def _lose(self, row: Row, why: str) -> None:
        self._metrics.events_dropped.inc(("ledger row",))
        log.error("ledger: the row of call %s (%s/%s, %s) is lost: %s", row[0], row[6], row[7], row[13], why)

    async def _flush_until_empty(self) -> None:
        while self._rows:
            await asyncio.sleep(max(0.0, _PAUSE - (self._env.monotonic() - self._oldest)))
            try:
                await self._flush_once()
            except StorageError as error:
                log.error("ledger: %s; %d rows are kept and tried again", error, len(self._rows))
                await asyncio.sleep(1.0)

    async def _flush_once(self) -> None:
        async with self._writing:
            rows, self._rows = self._rows, []
            if not rows:
                return
            self._metrics.ledger_backlog.set((), len(rows))
            try:
                # append, not insert: after a lost connection nobody knows whether the rows were written.
                await self._database.append("calls", COLUMNS, rows)
            except (StorageError, asyncio.CancelledError):
                self._rows = rows + self._rows
                raise
            except Agent3Error:
                await self._append_singly(rows)
            self._room.set()
            self._metrics.ledger_backlog.set((), len(self._rows))

    async def _append_singly(self, rows: list[Row]) -> None:
        """One of them cannot be stored; it must not take the others with it."""
        for row in rows:
            try:
                await self._database.append("calls", COLUMNS, [row])
            except StorageError:
                self._rows.append(row)
            except Agent3Error as error:
                self._lose(row, error.message)
