"""A letter box in memory, with the manners of the durable queue: priorities, order in a context, retries, dead letters.

For cores that keep nothing anyway: what a database would do in milliseconds is done here in microseconds. It belongs to
one event loop and to one process, whose consumers cannot die without it; so its leases have no end.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from agent3.env import REAL
from agent3.errors import TooLarge
from agent3.observe.metrics import METRICS
from agent3.queue import Attempt, Depth, Fate, Lease, Letter, QueueFull, Rules
from agent3.storage import Transaction

__all__ = ["Box", "MemoryBox"]


class Box(Protocol):
    """What executors need of a queue: ``agent3.queue.Queue`` has it, and so has ``MemoryBox``."""

    name: str
    rules: Rules
    size: int

    async def put(
        self,
        body: bytes,
        *,
        context: str | None = None,
        priority: int = 0,
        id: str | None = None,  # noqa: A002 - it is the id
        tx: Transaction | None = None,
    ) -> str: ...
    async def claim(self, most: int = 1, *, wait: float = 0.0) -> list[Lease]: ...
    async def extend(self, lease: Lease) -> bool: ...
    async def ack(self, lease: Lease, *, tx: Transaction | None = None) -> bool: ...
    async def nack(self, lease: Lease, reason: str) -> Fate: ...
    async def bury(self, lease: Lease, reason: str) -> bool: ...
    async def release(self, lease: Lease) -> bool: ...
    async def dead(self, *, limit: int = 100) -> list[Letter]: ...
    async def replay(self, ids: Sequence[str]) -> int: ...
    async def depth(self) -> Depth: ...
    async def aclose(self) -> None: ...


class _Entry(Struct):
    id: str
    body: bytes
    context: str | None
    priority: int
    seq: int
    put: float
    attempts: int = 0
    history: tuple[Attempt, ...] = ()

    def lease(self, now: float) -> Lease:
        return Lease(self.id, self.body, self.context, self.priority, self.attempts, 0, self.seq, now - self.put)

    def letter(self) -> Letter:
        return Letter(self.id, self.body, self.context, self.priority, self.attempts, self.seq, self.put, self.history)


class MemoryBox:
    """One box. Of the messages of one context one is out at a time, in the order in which they were put."""

    def __init__(self, name: str, rules: Rules | None = None):
        self.name = name
        self.rules = rules or Rules()
        self.size = 0
        self._numbers = itertools.count(1)
        self._ready: list[tuple[int, int, _Entry]] = []
        self._behind: dict[str, deque[_Entry]] = {}
        """The contexts of which one is out or ready, with those that wait behind it."""
        self._leased: dict[int, _Entry] = {}
        self._delayed: dict[int, asyncio.TimerHandle] = {}
        self._dead: dict[str, _Entry] = {}
        self._bell = asyncio.Event()
        self._watching = 0

    @property
    def in_use(self) -> bool:
        """Whether something is in it, or somebody waits for something."""
        return bool(self.size or self._dead or self._watching)

    async def put(
        self,
        body: bytes,
        *,
        context: str | None = None,
        priority: int = 0,
        id: str | None = None,  # noqa: A002 - it is the id
        tx: Transaction | None = None,
    ) -> str:
        """Put a message; QueueFull when there is no room."""
        if len(body) > self.rules.largest:
            raise TooLarge(f"A message of {len(body)} bytes is too large; this queue takes {self.rules.largest}.")
        if self.size >= self.rules.bound:
            METRICS.refusals.inc((QueueFull.code,))
            raise self._full()
        entry = _Entry(id or REAL.id(), body, context, priority, next(self._numbers), REAL.now())
        self.size += 1
        self._line_up(entry)
        return entry.id

    async def claim(self, most: int = 1, *, wait: float = 0.0) -> list[Lease]:
        """Take up to ``most`` messages; with ``wait``, wait so long for the first one."""
        if not self._ready and wait > 0:
            await self._watch(wait)
        now = REAL.now()
        return [self._out().lease(now) for _ in range(min(most, len(self._ready)))]

    async def _watch(self, seconds: float) -> None:
        self._watching += 1
        try:
            async with asyncio.timeout(seconds):
                while not self._ready:
                    self._bell.clear()
                    await self._bell.wait()
        except TimeoutError:
            return
        finally:
            self._watching -= 1

    async def extend(self, lease: Lease) -> bool:
        """It is the consumer's until that ends it."""
        return lease.seq in self._leased

    async def ack(self, lease: Lease, *, tx: Transaction | None = None) -> bool:
        """It is done."""
        return self._end(lease) is not None

    async def nack(self, lease: Lease, reason: str) -> Fate:
        """It failed: try it again after a random share of an ever longer time, or give it up."""
        entry = self._leased.pop(lease.seq, None)
        if entry is None:
            return "lost"
        entry.history = (*entry.history[-19:], Attempt(REAL.now(), entry.attempts, reason[:500]))
        if entry.attempts >= self.rules.attempts:
            self._leased[lease.seq] = entry
            return "dead" if await self.bury(lease, reason, told=True) else "lost"
        ceiling = min(self.rules.first_delay * 2.0 ** min(entry.attempts - 1, 60), self.rules.longest_delay)
        pause = REAL.jitter(ceiling)
        self._delayed[entry.seq] = asyncio.get_running_loop().call_later(pause, self._due, entry)
        return "retry"

    async def bury(self, lease: Lease, reason: str, *, told: bool = False) -> bool:
        """It will never succeed: make it a dead letter."""
        entry = self._end(lease)
        if entry is None:
            return False
        if not told:
            entry.history = (*entry.history[-19:], Attempt(REAL.now(), entry.attempts, reason[:500]))
        self._dead[entry.id] = entry
        METRICS.dead_letters.inc(("queue",))
        while len(self._dead) > self.rules.bound:
            self._dead.pop(next(iter(self._dead)))
        return True

    async def release(self, lease: Lease) -> bool:
        """It was not tried: hand it out again, without counting the attempt."""
        entry = self._leased.pop(lease.seq, None)
        if entry is None:
            return False
        entry.attempts -= 1
        self._make_ready(entry)
        return True

    async def dead(self, *, limit: int = 100) -> list[Letter]:
        """Dead letters by age."""
        return [one.letter() for one in itertools.islice(self._dead.values(), limit)]

    async def replay(self, ids: Sequence[str]) -> int:
        """Line up dead letters once more, with all their attempts; QueueFull, and none, if not all find room."""
        found = [one for one in ids if one in self._dead]
        if self.size + len(found) > self.rules.bound:
            raise self._full()
        for name in found:
            entry = self._dead.pop(name)
            entry.attempts = 0
            self.size += 1
            self._line_up(entry)
        return len(found)

    async def depth(self) -> Depth:
        """How many are in which state now."""
        waiting = sum(map(len, self._behind.values()))
        return Depth(len(self._ready), waiting, len(self._delayed), len(self._leased), len(self._dead))

    async def aclose(self) -> None:
        """Try nothing again."""
        for timer in self._delayed.values():
            timer.cancel()

    def _line_up(self, entry: _Entry) -> None:
        if entry.context is None:
            self._make_ready(entry)
        elif (behind := self._behind.get(entry.context)) is not None:
            behind.append(entry)
        else:
            self._behind[entry.context] = deque()
            self._make_ready(entry)

    def _make_ready(self, entry: _Entry) -> None:
        heapq.heappush(self._ready, (-entry.priority, entry.seq, entry))
        self._bell.set()

    def _due(self, entry: _Entry) -> None:
        self._delayed.pop(entry.seq, None)
        self._make_ready(entry)

    def _out(self) -> _Entry:
        _, _, entry = heapq.heappop(self._ready)
        entry.attempts += 1
        self._leased[entry.seq] = entry
        return entry

    def _end(self, lease: Lease) -> _Entry | None:
        entry = self._leased.pop(lease.seq, None)
        if entry is None:
            return None
        self.size -= 1
        if entry.context is not None:
            behind = self._behind[entry.context]
            if behind:
                self._make_ready(behind.popleft())
            else:
                del self._behind[entry.context]
        return entry

    def _full(self) -> QueueFull:
        return QueueFull(
            f"Queue {self.name!r} holds {self.rules.bound:,} messages, which is all it takes, so this one was not put."
            " Try again later, or add consumers.",
            data={"queue": self.name, "bound": self.rules.bound},
            retry_after=1.0,
        )
