"""``A2AMessageQueue``: the documented queue of messages between agents, over a durable one.

Where RT-014's own would forget the oldest message in silence, this one refuses the newest aloud. Messages live in the
core's database: in memory and gone with the process by default, or in the file or server that the core was given.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from agent3 import bridge
from agent3.definitions import A2AMessage
from agent3.env import REAL
from agent3.errors import StorageError, ValidationError
from agent3.observe.logs import get as logger
from agent3.observe.metrics import METRICS, Metrics
from agent3.protocols.a2a.agents.encryption import Cipher
from agent3.protocols.functions.standalone import Standalone, shared
from agent3.queue import Lease, Letter, Queue, Rules

__all__ = ["A2AMessageQueue"]

SEND_SECONDS: Final = 0.05
RECEIVE_SECONDS: Final = 0.1
_KEPT: Final = 1_000

log = logger("a2a.queue")


class A2AMessageQueue:
    """Messages in the order of their priority, and within a context in the order of sending.

    Safe from any thread and any event loop. ``agent_id`` names the queue in the metric ``a2a_message_queue_depth``,
    and in the database of a ``core`` that keeps one: there the next process finds what this one did not receive. A
    queue without one is nobody else's.
    With ``encryption`` nobody reads them there, and a plain one is refused.
    ``latency_stats`` holds the seconds of the last thousand sends.
    """

    def __init__(
        self,
        max_size: int = 10000,
        *,
        agent_id: str = "",
        core: Standalone | None = None,
        encryption: Cipher | None = None,
        metrics: Metrics = METRICS,
    ):
        self.agent_id = agent_id
        self.latency_stats: deque[float] = deque(maxlen=_KEPT)
        self._rules = Rules(bound=max_size)
        # Without a name it is nobody else's: two programs on one database must not get each other's messages.
        self._name = f"a2a:{agent_id}" if agent_id else f"a2a#{REAL.id()}"
        self._core = core or shared()
        self._cipher = encryption
        self._metrics = metrics
        self._queue: Queue | None = None

    async def send_message(self, message: A2AMessage) -> str:
        """Put the message and return its id once it is kept. QueueFull when there is no room: nothing is dropped.

        A message with an ``idempotency_key`` that was sent before is not sent again: the id is the first one's.
        """
        if not isinstance(message, A2AMessage):
            raise ValidationError(f"send_message takes an A2AMessage, got {type(message).__name__}.")
        return await asyncio.wrap_future(bridge.shared().spawn(self._send(message)))

    async def receive_message(self, timeout: float = 0.1) -> A2AMessage | None:
        """The next message, for which it waits up to ``timeout`` seconds; None if there is none.

        A message that was returned is not handed out again, unless the process dies, or the database fails, before that
        is written down. One
        that a cancelled call was about to return goes back, at the latest when its lease of half a minute ends.
        """
        receiving = bridge.shared().spawn(self._receive(timeout))
        try:
            lease = await asyncio.wrap_future(receiving)
        except asyncio.CancelledError:
            receiving.add_done_callback(self._give_back)
            raise
        if lease is None:
            return None
        message = self._opened(lease.body)
        bridge.shared().spawn(self._ack(lease))
        return message

    async def depth(self) -> int:
        """Messages that were sent and not yet received."""
        return await asyncio.wrap_future(bridge.shared().spawn(self._count()))

    async def dead_letters(self, limit: int = 100) -> list[Letter]:
        """Messages that were given up, the oldest first, each with why."""
        return await asyncio.wrap_future(bridge.shared().spawn(self._dead(limit)))

    async def replay(self, message_ids: Sequence[str]) -> int:
        """Line up dead letters once more; how many there were."""
        return await asyncio.wrap_future(bridge.shared().spawn(self._replay(message_ids)))

    def _closed(self, message: A2AMessage) -> bytes:
        return message.model_dump_json().encode() if self._cipher is None else self._cipher.encrypt_message(message)

    def _opened(self, body: bytes) -> A2AMessage:
        return A2AMessage.model_validate_json(body) if self._cipher is None else self._cipher.decrypt_message(body)

    # In the bridge's loop, where the queue lives, whichever loop the caller is in

    async def _dead(self, limit: int) -> list[Letter]:
        return await (await self._queue_now()).dead(limit=limit)

    async def _replay(self, message_ids: Sequence[str]) -> int:
        return await (await self._queue_now()).replay(message_ids)

    async def _queue_now(self) -> Queue:
        """The queue in the database that the core has now."""
        database = (await self._core.house()).database
        if self._queue is None or self._queue.database is not database:
            self._queue = Queue(database, self._name, self._rules, metrics=self._metrics)
        return self._queue

    async def _send(self, message: A2AMessage) -> str:
        queue = await self._queue_now()
        start = time.perf_counter()
        sent = await queue.put(
            self._closed(message),
            id=message.message_id,
            context=message.context_id or None,
            priority=message.priority,
            key=message.idempotency_key or None,
        )
        duration = time.perf_counter() - start
        self.latency_stats.append(duration)
        self._measure("send", duration, SEND_SECONDS)
        self._show(queue)
        return sent

    async def _receive(self, timeout: float) -> Lease | None:
        queue = await self._queue_now()
        start = time.perf_counter()
        leases = await queue.claim(wait=timeout)
        # Waiting for a message is not slowness; what it took beyond the waiting is.
        self._measure("receive", time.perf_counter() - start - timeout, RECEIVE_SECONDS)
        return leases[0] if leases else None

    async def _ack(self, lease: Lease) -> None:
        """Nobody waits for this, so what goes wrong is said here: the message comes again when its lease is over."""
        try:
            queue = await self._queue_now()
            await queue.ack(lease)
        except StorageError as wrong:
            log.error("Message %s was received, but that could not be written down: %s", lease.id, wrong)
            return
        self._show(queue)

    async def _release(self, lease: Lease) -> None:
        await (await self._queue_now()).release(lease)

    async def _count(self) -> int:
        return (await (await self._queue_now()).depth()).live

    def _give_back(self, received: Future[Lease | None]) -> None:
        """Nobody is there to take it. What was cancelled in time, the queue has given back by itself."""
        if not received.cancelled() and received.exception() is None and (lease := received.result()) is not None:
            bridge.shared().spawn(self._release(lease))

    def _show(self, queue: Queue) -> None:
        self._metrics.a2a_queue_depth.set((self.agent_id,), queue.size)

    def _measure(self, what: str, duration: float, target: float) -> None:
        if duration > target:
            self._metrics.missed_targets.inc((f"{what}_message",))
            log.warning("Message %s took %.3fs", what, duration)
