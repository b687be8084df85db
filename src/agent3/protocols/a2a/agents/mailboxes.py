"""The mailboxes of agents: two queues for each, and the answers that wait to be read.

All processes on one database share them, so a message reaches its agent in whichever process it runs, and waits while
it runs in none. Mailboxes carry bytes: what a message says, and whether it is encrypted, is the executor's business.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from agent3.env import REAL
from agent3.errors import Agent3Error, Canceled, Conflict, StorageError
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS
from agent3.protocols.a2a.agents.memory_queue import MemoryQueue, MessageQueue
from agent3.protocols.functions.standalone import Standalone
from agent3.queue import Lease, Queue, Rules
from agent3.storage import Database, Transaction

__all__ = ["Envelope", "Handle", "Mailboxes", "answer_box", "mailboxes_of", "request_box"]

log = logger("a2a.mailboxes")

T = TypeVar("T")

Handle: TypeAlias = Callable[[MessageQueue, Lease], Awaitable[None]]
"""Processes a message and acknowledges it. An exception is a failed attempt."""

_CLAIM_WAIT = 30.0
"""Seconds that a consumer waits at an empty queue before it asks again."""
_SQLITE_POLL = 0.1
"""Seconds between two looks into a queue that another process on the same SQLite file may put something into."""
_ANSWER_POLL = 0.5
"""Seconds after which an answer is looked for without a sign of it: another process may have received it."""
_GRACE = 5.0
"""Seconds that messages being processed have to finish; then their jobs are left to the next process."""
_MOST_QUEUES = 1_000
_MOST_ANSWERS = 10_000
"""Unread answers kept for each agent."""
_TRIM_EVERY = 256
"""Stored answers between two removals of the oldest ones."""

_KEEP = (
    "INSERT INTO a2a_replies (agent, message, body, at) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (agent, message) DO UPDATE SET body = excluded.body, at = excluded.at"
)
_TRIM = (
    "DELETE FROM a2a_replies WHERE agent = ? AND at < "
    "(SELECT MIN(at) FROM (SELECT at FROM a2a_replies WHERE agent = ? ORDER BY at DESC LIMIT ?) AS latest)"
)


def request_box(agent: str) -> str:
    """The name of the queue of requests and events for an agent."""
    return f"a2a:{agent}"


def answer_box(agent: str) -> str:
    """The name of the queue of answers to an agent's own requests."""
    return f"a2a-answers:{agent}"


class Envelope(Struct, frozen=True, kw_only=True):
    """A message on its way: its recipient, its mailbox, its bytes, and what the queue must know of it."""

    to: str
    box: str
    body: bytes
    id: str
    context: str | None = None
    priority: int = 0

    async def put(self, queue: MessageQueue, tx: Transaction | None = None) -> str:
        """Put it into a queue; its id."""
        return await queue.put(self.body, id=self.id, context=self.context, priority=self.priority, tx=tx)


class Mailboxes:
    """The mailboxes of one core: in its database, or in memory if that would be gone with the process anyway.

    Only for the bridge's loop.
    """

    def __init__(self, core: Standalone):
        self._core = weakref.ref(core)
        self._durable = core.durable
        self._open = False
        self._database: Database | None = None
        self._queues: dict[str, MessageQueue] = {}
        self._answers: dict[str, dict[str, bytes]] = {}
        self._rules: dict[str, Rules] = {}
        self._awaited: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._stored_answers = 0

    def set_rules(self, box: str, rules: Rules) -> None:
        """Change the rules of a mailbox; every process that uses it should set the same."""
        self._rules[box] = rules
        self._queues.pop(box, None)

    async def database(self) -> Database:
        """The core's database, opened on first use."""
        database = (await self._get_core().call_core()).database
        if database is not self._database:
            self._database = database
            self._queues = {} if self._durable else self._queues
        return database

    def _get_core(self) -> Standalone:
        core = self._core()
        if core is None:
            raise Canceled("The core of this executor was garbage-collected. Keep a reference to it.")
        if not self._open:
            self._open = True
            core.on_close(self._close)
        return core

    async def write_together(self, work: Callable[[Transaction | None], Awaitable[T]]) -> T:
        """Change several queues, all or nothing."""
        return await (await self.database()).write(work) if self._durable else await work(None)

    async def open(self, box: str) -> MessageQueue:
        """The queue of a mailbox, whether its agent exists or not."""
        database = await self.database() if self._durable else None
        queue = self._queues.get(box)
        if queue is not None:
            return queue
        rules = self._rules.get(box)
        if database is not None:
            if len(self._queues) >= _MOST_QUEUES:
                self._queues.pop(next(iter(self._queues)))
            if rules is None and database.dialect == "sqlite":
                rules = Rules(poll=_SQLITE_POLL)  # SQLite tells other processes nothing, so they look more often
            queue = Queue(database, box, rules)
        else:
            self._get_core()
            if len(self._queues) >= _MOST_QUEUES:
                self._queues = {
                    name: each for name, each in self._queues.items() if isinstance(each, MemoryQueue) and each.in_use
                }
            queue = MemoryQueue(box, rules)
        self._queues[box] = queue
        return queue

    async def post(self, envelope: Envelope) -> str:
        """Put a message into its mailbox; once this returns, it is kept. QueueFull if the mailbox is full."""
        queue = await self.open(envelope.box)
        message_id = await envelope.put(queue)
        if queue.name == request_box(envelope.to):
            METRICS.a2a_queue_depth.set((envelope.to,), queue.size)
        return message_id

    async def end(self, queue: MessageQueue, lease: Lease, answer: Envelope | None = None) -> None:
        """A message was processed: post its answer, if any, and acknowledge it, both or neither."""
        if answer is None:
            await queue.ack(lease)
        else:
            target = await self.open(answer.box)

            async def work(tx: Transaction | None) -> None:
                await answer.put(target, tx)
                await _ack(queue, lease, tx)

            await self.write_together(work)
        if queue.name.startswith("a2a:"):
            METRICS.a2a_queue_depth.set((queue.name.removeprefix("a2a:"),), queue.size)

    # Answers

    async def keep_answer(
        self, agent: str, message: str, body: bytes, received: tuple[MessageQueue, Lease] | None = None
    ) -> None:
        """Keep the answer to a message of an agent until it is read, and acknowledge the message it came in."""
        if self._durable:
            self._stored_answers += 1
            trim = self._stored_answers % _TRIM_EVERY == 0

            async def work(tx: Transaction) -> int:
                await tx.run(_KEEP, agent, message, body, REAL.now())
                if received is not None:
                    await _ack(*received, tx)
                return await tx.run(_TRIM, agent, agent, _MOST_ANSWERS) if trim else 0

            if dropped := await (await self.database()).write(work):
                METRICS.events_dropped.inc(("unread reply",), dropped)
        else:
            answers = self._answers.setdefault(agent, {})
            answers[message] = body
            while len(answers) > _MOST_ANSWERS:
                answers.pop(next(iter(answers)))
                METRICS.events_dropped.inc(("unread reply",))
            if received is not None:
                queue, lease = received
                await queue.ack(lease)
        for came in self._awaited.get((agent, message), ()):
            came.set()

    async def read_answer(self, agent: str, message: str, seconds: float) -> bytes | None:
        """The answer to a message, waiting so long for it; None if it did not come. It can be read once."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        came = asyncio.Event()
        waiting = self._awaited.setdefault((agent, message), set())
        waiting.add(came)
        try:
            while True:
                answer = await self._take_answer(agent, message)
                left = until - clock()
                if answer is not None or left <= 0:
                    return answer
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _ANSWER_POLL)):
                        await came.wait()
                    came.clear()
        finally:
            waiting.discard(came)
            if not waiting:
                self._awaited.pop((agent, message), None)

    async def _take_answer(self, agent: str, message: str) -> bytes | None:
        if not self._durable:
            return self._answers.get(agent, {}).pop(message, None)
        database = await self.database()
        where = "FROM a2a_replies WHERE agent = ? AND message = ?"
        # A read first: this runs twice a second for each waiting caller, and a write would wait for the disk.
        if await database.one(f"SELECT message {where}", agent, message) is None:
            return None
        row = await database.write(lambda tx: tx.one(f"DELETE {where} RETURNING body", agent, message))
        return bytes(row["body"]) if row is not None else None

    # Consumers

    def serve(self, box: str, handle: Handle, at_once: int) -> asyncio.Task[None]:
        """Process the messages of a mailbox until ``end_task``; the task then finishes those it has taken."""

        async def consume() -> None:
            running: set[asyncio.Task[None]] = set()
            try:
                while True:
                    if len(running) >= at_once:
                        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                        continue
                    try:
                        queue = await self.open(box)
                        leases = await queue.claim(at_once - len(running), wait=_CLAIM_WAIT)
                    except StorageError as error:
                        log.warning("mailbox %s cannot be read, retrying: %s", box, error)
                        await asyncio.sleep(_ANSWER_POLL)
                        continue
                    for lease in leases:
                        task = asyncio.get_running_loop().create_task(_process(queue, lease, handle))
                        running.add(task)
                        task.add_done_callback(running.discard)
            finally:
                while running:  # what was taken is finished; a call that hangs has a deadline of its own
                    await asyncio.wait(running)

        return self.run_until_closed(consume())

    def run_until_closed(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until the core is closed, or until ``end_task``."""
        task = asyncio.get_running_loop().create_task(work, name="a2a mailboxes")
        for tasks in (self._tasks, self._ending):
            task.add_done_callback(tasks.discard)
        self._tasks.add(task)
        return task

    def end_task(self, task: asyncio.Task[None]) -> None:
        """Cancel a task, once: a second cancellation would cut off what the first one lets it finish."""
        if task in self._tasks and task not in self._ending:
            self._ending.add(task)
            task.cancel()

    async def _close(self) -> None:
        """The core is about to close: end everything that uses its database."""
        tasks = list(self._tasks)
        for task in tasks:
            self.end_task(task)
        if tasks:
            await asyncio.wait(tasks, timeout=_GRACE)
        while self._queues:  # somebody else may open one while another is closed
            _, queue = self._queues.popitem()
            await queue.aclose()
        self._database, self._answers, self._open = None, {}, False


async def _process(queue: MessageQueue, lease: Lease, handle: Handle) -> None:
    """Process one message, extending its lease meanwhile; one that fails goes back to the queue."""
    work = asyncio.ensure_future(handle(queue, lease))
    while not (await asyncio.wait([work], timeout=queue.rules.lease / 3))[0]:
        try:
            await queue.extend(lease)
        except StorageError as error:
            # The work goes on: if the lease ends meanwhile, its acknowledgement is refused and undoes the answer.
            log.warning("the lease of message %s of %s was not extended: %s", lease.id, queue.name, error)
    try:
        work.result()
    except Exception as error:
        if not isinstance(error, Agent3Error):
            log.exception("message %s of %s could not be processed", lease.id, queue.name)
        try:
            fate = await queue.nack(lease, f"{type(error).__name__}: {error}")
            log.warning("message %s of %s failed, and is %s: %s", lease.id, queue.name, fate, error)
        except StorageError as lost:
            log.warning("message %s of %s is delivered again when its lease expires: %s", lease.id, queue.name, lost)


async def _ack(queue: MessageQueue, lease: Lease, tx: Transaction | None) -> None:
    """Acknowledge, or undo the transaction: whoever has the message now will do it, and it must not be done twice."""
    if not await queue.ack(lease, tx=tx):
        raise Conflict(f"Message {lease.id} was taken by another process in the meantime.")


_mailboxes: weakref.WeakKeyDictionary[Standalone, Mailboxes] = weakref.WeakKeyDictionary()


def mailboxes_of(core: Standalone) -> Mailboxes:
    """The mailboxes of a core."""
    found = _mailboxes.get(core)
    return found if found is not None else _mailboxes.setdefault(core, Mailboxes(core))
