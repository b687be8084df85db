"""The letter boxes of agents: one durable queue for each, and the answers that wait to be read.

All processes on one database share them, so a message finds its agent in whichever of them it lives, and waits while it
lives in none. Bytes in, bytes out: what a message says, and whether it is sealed, is the executor's business.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from agent3.env import REAL
from agent3.errors import Agent3Error, Canceled, Conflict, StorageError
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.protocols.a2a.agents.memory_queue import Box, MemoryBox
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Lease, Queue, Rules
from agent3.storage import Database, Transaction

__all__ = ["Handle", "Letter", "Post", "answers_of", "box_of", "post_of"]

log = logger("a2a.post")

T = TypeVar("T")

Handle: TypeAlias = Callable[[Box, Lease], Awaitable[None]]
"""Processes a message and acknowledges it. What it raises is a failed attempt."""

_PATIENCE = 30.0
"""Seconds that an empty box is waited at."""
_GLANCE = 0.1
"""Seconds between two looks into an empty box that another process may put something into."""
_LOOK = 0.5
"""Seconds after which an answer is looked for by itself: another process may have taken it in."""
_GRACE = 5.0
"""Seconds that what is being processed has to finish; after that its jobs are left to the next process."""
_BOXES = 1_000
_REPLIES = 10_000
"""Unread answers kept for each agent."""
_TIDY_EVERY = 256

_KEEP = (
    "INSERT INTO a2a_replies (agent, message, body, at) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (agent, message) DO UPDATE SET body = excluded.body, at = excluded.at"
)
_FORGET = (
    "DELETE FROM a2a_replies WHERE agent = ? AND at < "
    "(SELECT MIN(at) FROM (SELECT at FROM a2a_replies WHERE agent = ? ORDER BY at DESC LIMIT ?) AS latest)"
)


def box_of(agent: str) -> str:
    """The queue of what others want of an agent."""
    return f"a2a:{agent}"


def answers_of(agent: str) -> str:
    """The queue of the answers to what an agent asked."""
    return f"a2a-answers:{agent}"


class Letter(Struct, frozen=True, kw_only=True):
    """A message on its way: to whom, into which box, its bytes, and what the queue must know of it."""

    to: str
    box: str
    body: bytes
    id: str
    context: str | None = None
    priority: int = 0

    async def put(self, box: Box, tx: Transaction | None = None) -> str:
        """Put it into a box; its id."""
        return await box.put(self.body, id=self.id, context=self.context, priority=self.priority, tx=tx)


class Post:
    """The boxes of one core, in its database or, where that is in memory anyway, without one.

    Everything happens in the bridge's loop.
    """

    def __init__(self, core: Standalone):
        self._core = weakref.ref(core)
        self._durable = core.durable
        self._open = False
        self._database: Database | None = None
        self._boxes: dict[str, Box] = {}
        self._replies: dict[str, dict[str, bytes]] = {}
        self._rules: dict[str, Rules] = {}
        self._awaited: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._kept = 0

    def rule(self, name: str, rules: Rules) -> None:
        """Let other rules hold for a box; every process that uses it should say the same."""
        self._rules[name] = rules
        self._boxes.pop(name, None)

    async def database(self) -> Database:
        """The core's, opened when it is first asked for."""
        database = (await self._here().house()).database
        if database is not self._database:
            self._database = database
            self._boxes = {} if self._durable else self._boxes
        return database

    def _here(self) -> Standalone:
        core = self._core()
        if core is None:
            raise Canceled("The core of this executor is gone. Keep a reference to it.")
        if not self._open:
            self._open = True
            core.on_close(self._close)
        return core

    async def together(self, work: Callable[[Transaction | None], Awaitable[T]]) -> T:
        """Do something to several boxes, all or nothing."""
        return await (await self.database()).write(work) if self._durable else await work(None)

    async def box(self, name: str) -> Box:
        """A box, whether its agent exists or not."""
        database = await self.database() if self._durable else None
        found = self._boxes.get(name)
        if found is None:
            found = self._boxes[name] = self._made(name, database)
        return found

    def _made(self, name: str, database: Database | None) -> Box:
        rules = self._rules.get(name)
        if database is None:
            self._here()
            if len(self._boxes) >= _BOXES:
                self._boxes = {
                    one: box for one, box in self._boxes.items() if isinstance(box, MemoryBox) and box.in_use
                }
            return MemoryBox(name, rules)
        if len(self._boxes) >= _BOXES:
            self._boxes.pop(next(iter(self._boxes)))
        # SQLite carries no bells between processes, so there a box is looked into more often.
        return Queue(database, name, rules or (Rules(poll=_GLANCE) if database.dialect == "sqlite" else None))

    async def put(self, letter: Letter) -> str:
        """Post a letter; when this returns, it is kept. QueueFull when the box is full."""
        box = await self.box(letter.box)
        posted = await letter.put(box)
        if box.name == box_of(letter.to):
            METRICS.a2a_queue_depth.set((letter.to,), box.size)
        return posted

    async def end(self, box: Box, lease: Lease, letter: Letter | None = None) -> None:
        """A message was processed: post the answer, if there is one, and acknowledge it, both or neither."""
        if letter is None:
            await box.ack(lease)
        else:
            await self._answer(box, lease, letter)
        if box.name.startswith("a2a:"):
            METRICS.a2a_queue_depth.set((box.name.removeprefix("a2a:"),), box.size)

    async def _answer(self, box: Box, lease: Lease, letter: Letter) -> None:
        target = await self.box(letter.box)

        async def work(tx: Transaction | None) -> None:
            await letter.put(target, tx)
            await _ack(box, lease, tx)

        await self.together(work)

    # Answers

    async def keep(self, agent: str, message: str, body: bytes, taken: tuple[Box, Lease] | None = None) -> None:
        """Keep the answer to a message of an agent until it is read; acknowledge what it came as."""
        if self._durable:
            await self._write_down(agent, message, body, taken)
        else:
            await self._remember(agent, message, body, taken)
        for event in self._awaited.get((agent, message), ()):
            event.set()

    async def _remember(self, agent: str, message: str, body: bytes, taken: tuple[Box, Lease] | None) -> None:
        kept = self._replies.setdefault(agent, {})
        kept[message] = body
        while len(kept) > _REPLIES:
            kept.pop(next(iter(kept)))
            METRICS.events_dropped.inc(("unread reply",))
        if taken is not None:
            await taken[0].ack(taken[1])

    async def _write_down(self, agent: str, message: str, body: bytes, taken: tuple[Box, Lease] | None) -> None:
        database = await self.database()
        self._kept += 1
        tidy = self._kept % _TIDY_EVERY == 0

        async def work(tx: Transaction) -> int:
            await tx.run(_KEEP, agent, message, body, REAL.now())
            if taken is not None:
                await _ack(*taken, tx)
            return await tx.run(_FORGET, agent, agent, _REPLIES) if tidy else 0

        if lost := await database.write(work):
            METRICS.events_dropped.inc(("unread reply",), lost)

    async def read(self, agent: str, message: str, seconds: float) -> bytes | None:
        """The answer to a message, for which it waits so long; None when it did not come. It is read once."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        came = asyncio.Event()
        waiting = self._awaited.setdefault((agent, message), set())
        waiting.add(came)
        try:
            while (found := await self._taken(agent, message)) is None and (left := until - clock()) > 0:
                await _heard(came, min(left, _LOOK))
            return found
        finally:
            waiting.discard(came)
            if not waiting:
                self._awaited.pop((agent, message), None)

    async def _taken(self, agent: str, message: str) -> bytes | None:
        if not self._durable:
            return self._replies.get(agent, {}).pop(message, None)
        database = await self.database()
        where = "FROM a2a_replies WHERE agent = ? AND message = ?"
        if await database.one(f"SELECT message {where}", agent, message) is None:
            return None
        row = await database.write(lambda tx: tx.one(f"DELETE {where} RETURNING body", agent, message))
        return bytes(row["body"]) if row is not None else None

    # Consumers

    def serve(self, box: str, handle: Handle, at_once: int) -> asyncio.Task[None]:
        """Hand out the messages of a box until the task is cancelled, which waits for those being processed."""
        return self.attend(_Counter(self, box, handle, at_once).serve())

    def attend(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the boxes, until the core is closed."""
        task = asyncio.get_running_loop().create_task(work, name="a2a post")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return task

    async def _close(self) -> None:
        """The core is about to be closed: nobody may work on its database any more."""
        tasks = [task for task in self._serving if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_GRACE)
        for box in self._boxes.values():
            await box.aclose()
        self._database, self._boxes, self._replies, self._open = None, {}, {}, False


class _Counter:
    """Where the messages of one agent are handed out, so many at once."""

    def __init__(self, post: Post, box: str, handle: Handle, at_once: int):
        self._post = post
        self._box = box
        self._handle = handle
        self._at_once = at_once
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        try:
            while True:
                await self._next()
        finally:
            while self._running:  # they were taken, so they are finished; a turn that hangs has a deadline of its own
                await asyncio.wait(self._running)

    async def _next(self) -> None:
        if len(self._running) >= self._at_once:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            return
        try:
            box = await self._post.box(self._box)
            leases = await box.claim(self._at_once - len(self._running), wait=_PATIENCE)
        except StorageError as wrong:
            log.warning("box of %s: %s; it is tried again", self._box, wrong)
            await asyncio.sleep(_LOOK)
            return
        for lease in leases:
            task = asyncio.get_running_loop().create_task(self._one(box, lease))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _one(self, box: Box, lease: Lease) -> None:
        work = asyncio.ensure_future(self._handle(box, lease))
        try:
            while not (await asyncio.wait([work], timeout=box.rules.lease / 3))[0]:
                await box.extend(lease)
            work.result()
        except Agent3Error as wrong:
            await self._again(box, lease, wrong)
        except Exception as wrong:
            log.exception("message %s of %s could not be processed", lease.id, self._box)
            await self._again(box, lease, wrong)

    async def _again(self, box: Box, lease: Lease, wrong: Exception) -> None:
        try:
            fate = await box.nack(lease, f"{type(wrong).__name__}: {wrong}")
            log.warning("message %s of %s failed, and is %s: %s", lease.id, self._box, fate, wrong)
        except StorageError as lost:
            log.warning("message %s of %s comes again when its lease is over: %s", lease.id, self._box, lost)


async def _ack(box: Box, lease: Lease, tx: Transaction | None) -> None:
    """Acknowledge, or undo all: whoever took the message meanwhile does it, and it must not be done twice."""
    if not await box.ack(lease, tx=tx):
        raise Conflict(f"Message {lease.id} was taken by another process meanwhile.")


async def _heard(came: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await came.wait()
        came.clear()
    except TimeoutError:
        return


_posts: weakref.WeakKeyDictionary[Standalone, Post] = weakref.WeakKeyDictionary()


def post_of(core: Standalone) -> Post:
    """The one of a core."""
    found = _posts.get(core)
    if found is None:
        found = _posts.setdefault(core, Post(core))
    return found
