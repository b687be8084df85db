"""``A2AMessageQueue``: the documented queue of messages between agents, on top of the durable one.

RT-014's own queue silently drops the oldest message when it is full; this one refuses the newest with an error.
Messages are kept in the core's database: in memory, gone with the process, or where the core's settings say.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

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

T = TypeVar("T")

SEND_SECONDS: Final = 0.05
RECEIVE_SECONDS: Final = 0.1
_MOST_LATENCIES: Final = 1_000

log = logger("a2a.queue")


class A2AMessageQueue:
    """Messages in the order of their priority, and within a context in the order of sending.

    Safe from any thread and any event loop. ``agent_id`` names the queue in the metric ``a2a_message_queue_depth``,
    and in the database of a ``core`` that has one: there the next process finds what this one did not receive. A queue
    without an ``agent_id`` is not shared with any other program.
    With ``encryption``, messages are stored encrypted and plain ones are refused.
    ``latency_stats`` holds the seconds that the last thousand sends took.
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
        self.latency_stats: deque[float] = deque(maxlen=_MOST_LATENCIES)
        self._rules = Rules(bound=max_size)
        # Two programs on one database must not get each other's messages, unless they name the same agent.
        self._name = f"a2a:{agent_id}" if agent_id else f"a2a#{REAL.id()}"
        self._core = core or shared()
        self._cipher = encryption
        self._metrics = metrics
        self._queue: Queue | None = None

    async def send_message(self, message: A2AMessage) -> str:
        """Put a message; its id, once it is stored. QueueFull if there is no room: nothing is dropped.

        A message with an ``idempotency_key`` that was sent before is not sent again; the id is that of the first one.
        """
        if not isinstance(message, A2AMessage):
            raise ValidationError(f"send_message takes an A2AMessage, got {type(message).__name__}.")
        cipher = self._cipher

        async def send() -> str:
            queue = await self._open()
            start = time.perf_counter()
            message_id = await queue.put(
                message.model_dump_json().encode() if cipher is None else cipher.encrypt_message(message),
                id=message.message_id,
                context=message.context_id or None,
                priority=message.priority,
                key=message.idempotency_key or None,
            )
            duration = time.perf_counter() - start
            self.latency_stats.append(duration)
            self._check_duration("send", duration, SEND_SECONDS)
            self._metrics.a2a_queue_depth.set((self.agent_id,), queue.size)
            return message_id

        return await _run_in_bridge(send())

    async def receive_message(self, timeout: float = 0.1) -> A2AMessage | None:
        """The next message, waiting up to ``timeout`` seconds; None if there is none.

        A message that was returned is not handed out again, unless the process dies or the database fails before that
        is stored. One that a cancelled call was about to return goes back, at the latest when its lease of half a
        minute ends.
        """

        async def claim() -> Lease | None:
            queue = await self._open()
            start = time.perf_counter()
            leases = await queue.claim(wait=timeout)
            # Waiting for a message is not slowness; only what it took beyond that is.
            self._check_duration("receive", time.perf_counter() - start - timeout, RECEIVE_SECONDS)
            return leases[0] if leases else None

        async def release(lease: Lease) -> None:
            await (await self._open()).release(lease)

        async def ack(lease: Lease) -> None:
            try:
                queue = await self._open()
                await queue.ack(lease)
            except StorageError as error:
                # Nobody awaits this, so it is logged: the message comes again when its lease has ended.
                log.error("Message %s was received, but its receipt could not be stored: %s", lease.id, error)
                return
            self._metrics.a2a_queue_depth.set((self.agent_id,), queue.size)

        def give_back(claimed: Future[Lease | None]) -> None:
            # A claim that was cancelled in time has given the message back by itself.
            if not claimed.cancelled() and claimed.exception() is None and (lease := claimed.result()) is not None:
                bridge.get_shared().spawn(release(lease))

        claiming = bridge.get_shared().spawn(claim())
        try:
            lease = await asyncio.wrap_future(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(give_back)
            raise
        if lease is None:
            return None
        cipher = self._cipher
        message = A2AMessage.model_validate_json(lease.body) if cipher is None else cipher.decrypt_message(lease.body)
        bridge.get_shared().spawn(ack(lease))
        return message

    async def depth(self) -> int:
        """How many messages were sent and not yet received."""

        async def count() -> int:
            return (await (await self._open()).depth()).live

        return await _run_in_bridge(count())

    async def dead_letters(self, limit: int = 100) -> list[Letter]:
        """Messages that were given up, oldest first, with the reasons."""

        async def read() -> list[Letter]:
            return await (await self._open()).dead(limit=limit)

        return await _run_in_bridge(read())

    async def replay(self, message_ids: Sequence[str]) -> int:
        """Put dead letters back into the queue; how many there were."""

        async def put_back() -> int:
            return await (await self._open()).replay(message_ids)

        return await _run_in_bridge(put_back())

    async def _open(self) -> Queue:
        """The queue in the core's present database: a core that was closed and used again has another one."""
        database = (await self._core.call_core()).database
        if self._queue is None or self._queue.database is not database:
            self._queue = Queue(database, self._name, self._rules, metrics=self._metrics)
        return self._queue

    def _check_duration(self, operation: str, duration: float, target: float) -> None:
        if duration > target:
            self._metrics.missed_targets.inc((f"{operation}_message",))
            log.warning("Message %s took %.3fs", operation, duration)


async def _run_in_bridge(work: Coroutine[Any, Any, T]) -> T:
    """Run something in the bridge's loop, where the queue lives, from whichever loop this is."""
    return await asyncio.wrap_future(bridge.get_shared().spawn(work))
